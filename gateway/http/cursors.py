"""Page cursors: opaque, signed, and good only for the list they were given for.

A cursor carries where the next page begins and a MAC over that position and everything the list depends on:
the tenant, the subject, the route and its filters. It grants nothing (the next request is authorised like any
other) and it does not expire.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.admission import limits
from gateway.problems import InvalidRequest
from gateway.wire.problems import Fault
from storage.encoding import encode_msgpack
from storage.keys.key_seals import Peppers

_MAC_BYTES = 16  # 128 bits: a forgery would only start the caller's own list elsewhere
_after = msgspec.msgpack.Decoder(tuple[str, ...])


class PageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page of a list."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


class Cursors:
    """Signs and reads cursors under keys derived from the peppers: all processes of a deployment agree."""

    def __init__(self, peppers: Peppers) -> None:
        self._signing, *self._accepted = peppers.derive(b"stateroom/cursor/v1")

    def _mac(self, binding: bytes, position: bytes, key: bytes) -> bytes:
        message = len(binding).to_bytes(8, "big") + binding + position
        return hmac.digest(key, message, hashlib.sha256)[:_MAC_BYTES]

    def write(self, binding: bytes, after: tuple[str, ...] | None) -> str | None:
        """The cursor of the page that begins ``after``; None when there is none."""
        if after is None:
            return None
        position = encode_msgpack(after)
        return (
            base64.urlsafe_b64encode(self._mac(binding, position, self._signing) + position)
            .rstrip(b"=")
            .decode("ascii")
        )

    def read(self, binding: bytes, cursor: str | None) -> tuple[str, ...] | None:
        """Where the page begins.

        Raises:
            InvalidRequest: the cursor is forged, damaged or another list's.
        """
        if cursor is None:
            return None
        try:
            sealed = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError, ValueError):
            sealed = b""
        claimed, position = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        keys = (self._signing, *self._accepted)
        genuine = any(hmac.compare_digest(claimed, self._mac(binding, position, key)) for key in keys)
        if not position or not genuine:
            raise InvalidRequest(
                Fault(detail="this cursor was not given for this list; start without one", parameter="cursor")
            )
        return _after.decode(position)


class ListCursor:
    """Where one page of a list begins, and the cursor of the page after it.

    Args:
        cursors: Signs and reads.
        binding: Everything that the list depends on.
        given: The cursor that the client sent; None: the list's beginning.

    Raises:
        InvalidRequest: the cursor is forged, damaged or another list's.
    """

    def __init__(self, cursors: Cursors, binding: bytes, cursor: str | None) -> None:
        self._cursors = cursors
        self._binding = binding
        self.after = cursors.read(binding, cursor)

    def next(self, after: tuple[str, ...] | None) -> str | None:
        """The cursor of the page that begins ``after``; None: this page is the last."""
        return self._cursors.write(self._binding, after)
