"""Sealed records about blobs: the pointer in a blob's row, the record in an intent's, and an artifact's description.

A pointer holds the blob's own random key and the size of its content, so that rotating a subject's key re-seals
pointers and no object, and destroying it makes every blob of the subject unreadable. Each record is bound to every
column of its row that does not change, and opens nowhere else.

Knows nothing of objects in a bucket: what a blob key seals is `crypto.blob`'s, and what an artifact's description
says is its caller's.
"""

from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.key_versions import check_key_version

FORMAT = 1


class BlobPointer(msgspec.Struct, array_like=True, frozen=True):
    """What opens a blob.

    Attributes:
        blob_key: 32 random bytes, of this blob alone.
        size_bytes: Of the content; the object is longer by what sealing adds.
    """

    blob_key: bytes
    size_bytes: int
    format: int = FORMAT

    def __repr__(self) -> str:
        return f"BlobPointer(size_bytes={self.size_bytes})"


class IntentRecord(msgspec.Struct, array_like=True, frozen=True):
    """What an upload needs to be resumed.

    Attributes:
        blob_key: As the pointer will have it.
        details: The caller's own bytes, such as an artifact's name and media type.
    """

    blob_key: bytes
    details: bytes = b""
    format: int = FORMAT

    def __repr__(self) -> str:
        return "IntentRecord()"


R = TypeVar("R", BlobPointer, IntentRecord)


def pointer_location(
    blob_id: UUID, content_id: bytes | None, size_bytes: int, created_at: datetime
) -> tuple[Field, ...]:
    """Where a pointer stands. ``size_bytes`` is the object's, as the row's column has it."""
    return "blob", blob_id, content_id, size_bytes, created_at


def intent_location(blob_id: UUID, purpose: str, content_id: bytes | None, created_at: datetime) -> tuple[Field, ...]:
    """Where an intent's record stands."""
    return "intent", blob_id, purpose, content_id, created_at


def artifact_location(
    artifact_id: UUID, name_digest: bytes, number: int, blob_id: UUID, size_bytes: int, created_at: datetime
) -> tuple[Field, ...]:
    """Where an artifact's description stands. ``size_bytes`` is the content's.

    The thread is not in it: an artifact that others refer to outlives its thread, and ``name_digest`` is made with the
    thread's id.
    """
    return "artifact", artifact_id, name_digest, number, blob_id, size_bytes, created_at


def artifact_name_digest(sealer: Sealer, thread_id: str, name: str) -> bytes:
    """A file's name within a thread, where its text must not appear: equal for equal names, 32 bytes."""
    return sealer.mac(b"artifact-name", thread_id.encode(), name.encode())


def seal_record(sealer: Sealer, location: tuple[Field, ...], record: msgspec.Struct) -> bytes:
    """Seal a record for its place; its length does not depend on what compresses well."""
    return sealer.seal(Kind.POINTER, location, encode_msgpack(record), compress=False)


def open_record(kind: type[R], sealer: Sealer, location: tuple[Field, ...], envelope: bytes, key_version: int) -> R:
    """Open a blob's pointer or an intent's record, whose row names this key version.

    Raises:
        IntegrityFailure: it was edited or moved, its row names another key version, or it is of a newer format.
    """
    try:
        opened = sealer.open(Kind.POINTER, location, envelope)
        check_key_version(key_version, envelope)
        record = msgspec.msgpack.decode(opened, type=kind)
    except OpenError:
        raise IntegrityFailure("a stored pointer does not authenticate") from None
    except msgspec.DecodeError:
        raise IntegrityFailure("a stored pointer cannot be read") from None
    if record.format != FORMAT:
        raise IntegrityFailure("a stored pointer is of a newer format")
    return record
