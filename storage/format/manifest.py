"""Manifests and pending-write records: what a checkpoint holds, sealed, and what the seal is bound to.

A record is one msgpack array. Its envelope's context holds the place it was asked for at and **every immutable clear
column of its row**, so that no column can be edited and no row moved without the next read failing. ``status`` is
the status at save; what may change later (``outcome``, tier, activity) is advisory and not bound.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from crypto import Field
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.pieces import Body
from storage.model import ChannelVersion

FORMAT = 1


class ChannelRecord(msgspec.Struct, array_like=True, frozen=True):
    """One channel: its adapter's version, the encoding of its bytes, and the cut value."""

    name: str
    version: ChannelVersion
    encoding: str
    body: Body
    # Packed ids of the artifacts that the value names; a channel that is saved unchanged still names them.
    artifacts: bytes | None = None
    # Bytes of the whole value with its large leaves; None: a build that did not count them had it last.
    size: int | None = None
    # What is said of the value's large leaves (`storage.format.leaf_notes`), cut as the value is.
    leaves: Body | None = None


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The sealed list of what a checkpoint holds."""

    format: int
    channels: list[ChannelRecord]
    metadata: dict[str, Any]
    model: dict[str, Any] | None
    delta_channels: tuple[str, ...]


class WriteRecord(msgspec.Struct, array_like=True, frozen=True):
    """The sealed value of a pending write."""

    format: int
    encoding: str
    body: Body
    # As in `ChannelRecord`.
    leaves: Body | None = None


R = TypeVar("R", Manifest, WriteRecord)

_manifests = msgspec.msgpack.Decoder(Manifest)
_writes = msgspec.msgpack.Decoder(WriteRecord)


def encode(record: Manifest | WriteRecord) -> bytes:
    """The record's plaintext."""
    return encode_msgpack(record)


def decode_manifest(plaintext: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        IntegrityFailure: it authenticated but is not a manifest of a known format.
    """
    return _decoded(_manifests, plaintext, "manifest")


def decode_write(plaintext: bytes) -> WriteRecord:
    """Read a pending write's record.

    Raises:
        IntegrityFailure: it authenticated but is not a record of a known format.
    """
    return _decoded(_writes, plaintext, "write")


def _decoded(decoder: msgspec.msgpack.Decoder[R], plaintext: bytes, what: str) -> R:
    try:
        record = decoder.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None
    if record.format != FORMAT:
        raise IntegrityFailure(f"the {what} was written by a newer release; upgrade this gateway")
    return record


class CheckpointColumns(msgspec.Struct, frozen=True):
    """The immutable clear columns of a checkpoint, in the order of its context."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: str
    source: str | None
    agent: str | None
    run_id: str | None
    model: str | None
    state_schema: str | None
    state_version: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost_micros: int | None
    created_at: datetime
    piece_ids: bytes
    named_ids: bytes | None

    def location(self) -> tuple[Field, ...]:
        """The context fields of the manifest's envelope."""
        return msgspec.structs.astuple(self)


class WriteColumns(msgspec.Struct, frozen=True):
    """The immutable clear columns of a pending write, in the order of its context."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    task_id: str
    idx: int
    task_path: str
    channel: str
    status: str | None
    created_at: datetime
    piece_ids: bytes
    named_ids: bytes | None
    state_schema: str | None
    state_version: int | None

    def location(self) -> tuple[Field, ...]:
        """The context fields of the value's envelope."""
        return msgspec.structs.astuple(self)


def chunk_location(piece_id: bytes, children: bytes | None, named_ids: bytes | None = None) -> tuple[Field, ...]:
    """The context fields of a chunk's envelope: no thread, so that copies move ciphertext verbatim."""
    return (piece_id, children, named_ids)
