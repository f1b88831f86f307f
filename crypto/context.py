"""What an envelope is bound to: kinds, fields and their injective encoding.

Owns the bytes that go into key derivation beside the key. Deployment, tenant and subject come from the
authenticated principal and the location from the request, never from the row that is opened; this module only
encodes what it is given.

    context = "stateroom/v1/context" 00 || header (12) || field(deployment) || field(tenant) || field(subject)
              || field(location 0) || field(location 1) ...
    field   = type tag (1) || length u32 big endian || bytes

The encoding is injective: no two different sequences of fields share their bytes, and None, "", b"" and 0 are
four different fields.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final
from uuid import UUID

Field = bytes | str | int | UUID | datetime | None

HEADER_BYTES: Final = 12

_PREFIX: Final = b"stateroom/v1/context\0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NONE_FIELD: Final = b"\x00\x00\x00\x00\x00"
_UUID_HEAD: Final = b"\x04\x00\x00\x00\x10"
_DATETIME_HEAD: Final = b"\x05\x00\x00\x00\x08"


class Kind(IntEnum):
    """What an envelope holds; a byte of its header, never reused."""

    MANIFEST = 0x10
    THREAD = 0x11
    WRITE = 0x12
    CHUNK = 0x13
    POINTER = 0x14
    HEAD = 0x15
    IDEMPOTENCY = 0x16
    SEGMENT = 0x17
    ITEM = 0x18
    ITEM_LABELS = 0x19
    ITEM_PATH = 0x1A
    ITEM_SCOPE = 0x1B
    ITEM_VECTORS = 0x1C
    CLAIM_NOTE = 0x1E
    EFFECT = 0x1F
    APPROVAL = 0x1D
    BLOB_PART = 0x20
    SUBJECT_KEY = 0x30
    TENANT_KEY = 0x31
    AUDIT = 0x40
    METADATA = 0x41


def _encode_field(field: Field) -> bytes:
    if field is None:
        return _NONE_FIELD
    if isinstance(field, bytes):  # first: every piece has one
        return b"\x01" + len(field).to_bytes(4, "big") + field
    if isinstance(field, str):
        try:
            raw = field.encode()
        except UnicodeEncodeError:
            raise ValueError("a context field is not valid Unicode") from None
        return b"\x02" + len(raw).to_bytes(4, "big") + raw
    if isinstance(field, UUID):
        return _UUID_HEAD + field.bytes
    if isinstance(field, int) and not isinstance(field, bool):
        width = (field if field >= 0 else ~field).bit_length() // 8 + 1
        return b"\x03" + width.to_bytes(4, "big") + field.to_bytes(width, "big", signed=True)
    if isinstance(field, datetime):
        if field.utcoffset() is None:
            raise ValueError("a datetime in a context needs its time zone")
        return _DATETIME_HEAD + ((field - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)
    raise TypeError(f"{type(field).__name__} cannot be a context field")


def encode_fields(fields: Sequence[Field]) -> bytes:
    """Encode a sequence of fields injectively.

    Tags: 00 None (empty), 01 bytes, 02 str (UTF-8), 03 int (shortest big endian two's complement), 04 UUID
        (16
    bytes), 05 datetime (i64 microseconds since 1970-01-01 UTC).

    Raises:
        ValueError: A datetime without time zone, or text with a lone surrogate.
        TypeError: A field of another type; `bool` is refused, too.
    """
    return b"".join(map(_encode_field, fields))


class Location:
    """Where content stands, encoded once for all that is bound to it."""

    __slots__ = ("encoded",)

    def __init__(self, fields: Sequence[Field]) -> None:
        """Encode the fields of the request and every immutable clear column.

        Raises:
            ValueError, TypeError: As `encode_fields`.
        """
        self.encoded = encode_fields(fields)


def encode_owner(deployment_id: UUID, tenant_id: UUID, subject_id: str | None) -> bytes:
    """Encode the first three fields of every context; a subject of None is the tenant itself."""
    return encode_fields((deployment_id, tenant_id, subject_id))


def context_start(header: bytes, owner: bytes) -> bytes:
    """What the contexts of an owner's envelopes with this header begin with; the encoded location follows.

    Args:
        header: The envelope's first 12 bytes (more are ignored).
        owner: What `encode_owner` made.

    Raises:
        ValueError: The header is shorter than 12 bytes.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError("a context needs the 12 header bytes")
    return _PREFIX + header[:HEADER_BYTES] + owner


def encode_context(
    header: bytes,
    deployment_id: UUID,
    tenant_id: UUID,
    subject_id: str | None,
    location: Sequence[Field],
) -> bytes:
    """Encode the full context of one envelope.

    Args:
        header: The envelope's first 12 bytes (more are ignored).
        deployment_id: Keeps rows of one deployment from opening in another.
        tenant_id: From the authenticated principal.
        subject_id: From the authenticated principal; None for what belongs to the tenant.
        location: Where the content stands: the fields of the request and every immutable clear column.

    Raises:
        ValueError: The header is too short, a datetime is naive, or text is not valid Unicode.
        TypeError: A field of a type that has no encoding.
    """
    return context_start(header, encode_owner(deployment_id, tenant_id, subject_id)) + encode_fields(location)
