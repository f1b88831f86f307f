"""Between rows and items: the names of paths and keys in rows, and what is sealed.

An **item** is a value under a key of a path; a path is a list of labels. Rows name both by MACs of their text, so that
the database knows neither. An item's row keeps its **member**, a keyed digest of what it says and of its clear columns,
which the path's seal counts (`storage.format.items.seals`). What a client that brings a share puts takes the share, its
names included.
"""

import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from crypto.context import Location
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.chain import MEMBER_BYTES

ID_BYTES = 16
_labels = msgspec.msgpack.Decoder(tuple[str, ...])


class ItemColumns(msgspec.Struct, frozen=True):
    """The immutable clear columns of an item's row, which its envelope is bound to."""

    path_id: bytes
    key_id: bytes
    revision: int
    ttl_seconds: int | None
    created_at: datetime
    updated_at: datetime

    def location(self) -> tuple[Field, ...]:
        """The context fields of the envelope."""
        return msgspec.structs.astuple(self)


class ItemRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an item's envelope holds: its key, and its value in an encoding."""

    key: str
    encoding: str
    data: bytes


_record = msgspec.msgpack.Decoder(ItemRecord)


class SealedItem(NamedTuple):
    """An item's sealed column, and its member."""

    envelope: bytes
    member: bytes


# --- names -----------------------------------------------------------------------------------------------------------


def share_check(sealer: Sealer) -> bytes | None:
    """By what the paths of a client's share are told from others; None: there is no share."""
    return sealer.mac(b"item-share")[:ID_BYTES] if sealer.shared else None


def path_id(sealer: Sealer, labels: Sequence[str]) -> bytes:
    """The name of a path in rows."""
    return sealer.mac(b"item-path", *(_utf8(each) for each in labels))[:ID_BYTES]


def key_id(sealer: Sealer, in_path: bytes, key: str) -> bytes:
    """The name of a key of a path in rows."""
    return sealer.mac(b"item-key", in_path, _utf8(key))[:ID_BYTES]


def _utf8(text: str) -> bytes:
    return text.encode()


# --- envelopes -------------------------------------------------------------------------------------------------------


def seal_labels(sealer: Sealer, named: bytes, labels: Sequence[str]) -> bytes:
    """The envelope of a path's labels."""
    location = (named, share_check(sealer))
    return sealer.seal(Kind.ITEM_LABELS, location, encode_msgpack(tuple(labels)))


def open_labels(sealer: Sealer, named: bytes, envelope: bytes) -> tuple[str, ...]:
    """Undo `seal_labels`.

    Raises:
        IntegrityFailure: They are not this path's.
    """
    plaintext = _opened(sealer, Kind.ITEM_LABELS, (named, share_check(sealer)), envelope)
    try:
        labels = _labels.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None
    if not hmac.compare_digest(path_id(sealer, labels), named):
        raise IntegrityFailure
    return labels


def seal_item(sealer: Sealer, columns: ItemColumns, record: ItemRecord) -> SealedItem:
    """An item's record, sealed under its row's columns."""
    plaintext = encode_msgpack(record)
    location = Location(columns.location())
    return SealedItem(sealer.seal(Kind.ITEM, location, plaintext), _member(sealer, plaintext, location))


def open_item(sealer: Sealer, columns: ItemColumns, envelope: bytes, member: bytes) -> ItemRecord:
    """Undo `seal_item`.

    Raises:
        IntegrityFailure: A column was edited, the row was moved, it is not an item, or its member is not its own.
    """
    location = Location(columns.location())
    plaintext = _opened(sealer, Kind.ITEM, location, envelope)
    if not hmac.compare_digest(_member(sealer, plaintext, location), member):
        raise IntegrityFailure("an item's member was altered")
    try:
        return _record.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None


def _member(sealer: Sealer, plaintext: bytes, location: Location) -> bytes:
    return sealer.mac(b"item", plaintext, location.encoded)[:MEMBER_BYTES]


def _opened(sealer: Sealer, kind: Kind, location: Sequence[Field] | Location, envelope: bytes) -> bytes:
    try:
        return sealer.open(kind, location, envelope)
    except OpenError:
        raise IntegrityFailure from None
