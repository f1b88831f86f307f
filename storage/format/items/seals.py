"""The seals that say which items and paths must be there.

A **path seal** holds the path's live set, which adds a MAC of each item's member at its place; a **scope seal** holds
the set of a subject's paths. So an item that is edited, put somewhere else, put back or removed is noticed by whoever
reads a path to its end, and a path that is removed by whoever lists paths. Neither takes a client's share, so that what
is over can be removed by those who do not have it. Rolling back a whole path, its seal included, is not visible here.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet

_SUM_BYTES = 32
_FORMAT = 1
# The format; count and sum of items, and of rows of vectors.
_PATH = struct.Struct(f">BQ{_SUM_BYTES}sQ{_SUM_BYTES}s")
# The format; the floor; count and sum of paths.
_SCOPE = struct.Struct(f">BQQ{_SUM_BYTES}s")


def path_mac(sealer: Sealer, named: bytes, share_check: bytes | None) -> bytes:
    """A path's member of its subject's set of paths; the share is in it, so that nobody hides a path behind another."""
    return sealer.without_share.mac(b"live-path", named, share_check or b"")


def item_mac(sealer: Sealer, named: bytes, key: bytes, member: bytes) -> bytes:
    """What an item adds to the live set of its path."""
    return sealer.without_share.mac(b"live-item", named + key + member)


class PathSeal(msgspec.Struct, frozen=True):
    """What a path's sealed column says.

    Attributes:
        items: The live set of its items.
        vectors: That of the rows of their vectors (`storage.format.items.vectors`).
    """

    items: LiveSet = LiveSet()
    vectors: LiveSet = LiveSet()

    def seal(self, sealer: Sealer, path_id: bytes, share_check: bytes | None, sequence: int) -> bytes:
        """The envelope, which is bound to the path's clear columns."""
        plaintext = _PATH.pack(
            _FORMAT,
            self.items.count,
            self.items.total.to_bytes(_SUM_BYTES),
            self.vectors.count,
            self.vectors.total.to_bytes(_SUM_BYTES),
        )
        location = (path_id, share_check, sequence)
        return sealer.without_share.seal(Kind.ITEM_PATH, location, plaintext, compress=False)

    @classmethod
    def open(
        cls, sealer: Sealer, path_id: bytes, share_check: bytes | None, sequence: int, envelope: bytes
    ) -> "PathSeal":
        """Undo `seal`.

        Raises:
            IntegrityFailure: It is not this path's, or a column was edited.
        """
        plaintext = _opened(sealer.without_share, Kind.ITEM_PATH, (path_id, share_check, sequence), envelope)
        count, total, vectors, vectors_total = _unpacked(_PATH, plaintext)
        return cls(LiveSet(count, int.from_bytes(total)), LiveSet(vectors, int.from_bytes(vectors_total)))


class ScopeSeal(msgspec.Struct, frozen=True):
    """What a subject's sealed column says: its paths, and where the sequences of new ones begin.

    Attributes:
        paths: The live set of its paths.
        floor: The greatest sequence of a path that was removed: one made later begins there, so that no revision
            returns.
    """

    paths: LiveSet = LiveSet()
    floor: int = 0

    def seal(self, sealer: Sealer, sequence: int) -> bytes:
        """The envelope, which is bound to the row's sequence."""
        plaintext = _SCOPE.pack(_FORMAT, self.floor, self.paths.count, self.paths.total.to_bytes(_SUM_BYTES))
        return sealer.without_share.seal(Kind.ITEM_SCOPE, (sequence,), plaintext, compress=False)

    @classmethod
    def open(cls, sealer: Sealer, sequence: int, envelope: bytes) -> "ScopeSeal":
        """Undo `seal`.

        Raises:
            IntegrityFailure: It is not this subject's, or its sequence was edited.
        """
        plaintext = _opened(sealer.without_share, Kind.ITEM_SCOPE, (sequence,), envelope)
        floor, count, total = _unpacked(_SCOPE, plaintext)
        return cls(LiveSet(count, int.from_bytes(total)), floor)


def _unpacked(layout: struct.Struct, plaintext: bytes) -> tuple[Any, ...]:
    try:
        number, *parts = layout.unpack(plaintext)
    except struct.error:
        raise IntegrityFailure from None
    if number != _FORMAT:
        raise IntegrityFailure
    return tuple(parts)


def _opened(sealer: Sealer, kind: Kind, location: Sequence[Field], envelope: bytes) -> bytes:
    try:
        return sealer.open(kind, location, envelope)
    except OpenError:
        raise IntegrityFailure from None
