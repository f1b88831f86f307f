"""The sealed format: a 12-byte header and one sealed body.

Owns envelope version 1, byte for byte (docs/formats/envelope.md):

    offset size field
    0      3    magic C1 53 52
    3      1    envelope_version 01
    4      1    suite
    5      1    flags: bit 0 zstd, bit 2 padme (reserved), bit 3 client share
    6      1    kind
    7      1    scope: whose key sealed it, 00 tenant, 01 subject
    8      4    key_version, u32 big endian
    12     ...  the suite's body

    sealed plaintext = raw_len u32 || body_len u32 || body || zero padding (none in this version)

The header is authenticated because it is part of the context. It says which key to use and nothing that could
choose a weaker way: what is unknown, reserved or newer is refused by name. Which key that is, and what the
context holds, is decided elsewhere.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Final

from crypto.ciphers import cobblestone, xaes
from crypto.context import HEADER_BYTES, Kind
from crypto.errors import OpenError
from crypto.suites import BytesLike, Suite

MAGIC: Final = b"\xc1\x53\x52"
WRITE_ENVELOPE_VERSION: Final = 1
READABLE_ENVELOPE_VERSIONS: Final = frozenset({1})
KEY_VERSION_MAX: Final = 0xFFFF_FFFF
RAW_BYTES_LIMIT: Final = 0xFFFF_FFFF
OVERHEAD_BYTES: Final = HEADER_BYTES + Suite.COBBLESTONE_256.body_bytes_min + 8

_HEADER: Final = struct.Struct(">3sBBBBBI")
_SUITE_OFFSET: Final = 4
_LENGTHS: Final = struct.Struct(">II")


class Flag(IntFlag):
    """Flag bits of an envelope; every other bit must be zero."""

    ZSTD = 1
    PADME = 4
    CLIENT_SHARE = 8


_DEFINED_FLAGS: Final = int(Flag.ZSTD | Flag.PADME | Flag.CLIENT_SHARE)
_READABLE_FLAGS: Final = int(Flag.ZSTD | Flag.CLIENT_SHARE)


class KeyScope(IntEnum):
    """Whose key sealed an envelope; a byte of its header."""

    TENANT = 0
    SUBJECT = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The first 12 bytes of an envelope.

    ``key_version`` is from 1 to 2^32 - 1, of the key whose ``scope`` sealed it; ``envelope_version`` is the format's
    own.
    """

    suite: Suite
    flags: Flag
    kind: Kind
    scope: KeyScope
    key_version: int
    envelope_version: int = WRITE_ENVELOPE_VERSION

    def pack(self) -> bytes:
        """Return the 12 bytes.

        Raises:
            ValueError: A value that this version of the format cannot write.
        """
        if self.envelope_version != WRITE_ENVELOPE_VERSION:
            raise ValueError("this build writes another envelope version")
        if not 1 <= self.key_version <= KEY_VERSION_MAX:
            raise ValueError("key_version must be 1 to 4294967295")
        if self.flags & ~_READABLE_FLAGS:
            raise ValueError("padme is a reserved flag")
        return _HEADER.pack(
            MAGIC,
            self.envelope_version,
            self.suite,
            self.flags,
            self.kind,
            self.scope,
            self.key_version,
        )

    @classmethod
    def unpack(cls, header: bytes) -> "Header":
        """Read exactly 12 bytes, refusing everything this build does not know.

        Raises:
            OpenError: `format` if this is no envelope, `unsupported` if it is one this build cannot read.
        """
        if len(header) != HEADER_BYTES:
            raise OpenError("format")
        magic, envelope_version, suite, flags, kind, scope, key_version = _HEADER.unpack(header)
        if magic != MAGIC:
            raise OpenError("format")
        if envelope_version not in READABLE_ENVELOPE_VERSIONS:
            raise OpenError("unsupported")
        if suite not in _SUITES:
            raise OpenError("unsupported")
        if flags & ~_DEFINED_FLAGS or kind not in _KINDS or scope not in _SCOPES or key_version == 0:
            raise OpenError("format")
        if flags & ~_READABLE_FLAGS:
            raise OpenError("unsupported")
        return cls(Suite(suite), Flag(flags), Kind(kind), KeyScope(scope), key_version, envelope_version)


_SUITES: Final = frozenset(Suite)
_KINDS: Final = frozenset(Kind)
_SCOPES: Final = frozenset(KeyScope)

# A header repeats for every row of a subject; parsing one takes longer than looking it up.
_unpack_cached: Final = lru_cache(maxsize=1024)(Header.unpack)


def envelope_bytes_min(header: Header) -> int:
    """Length in bytes of an envelope with this header and nothing in it; nothing shorter is one."""
    return HEADER_BYTES + header.suite.body_bytes_min + _LENGTHS.size


def peek_header(envelope: bytes) -> Header:
    """Read and check an envelope's header without any key.

    Nothing it says is authenticated until the envelope is opened.

    Raises:
        OpenError: `format` if it is no envelope or too short for one, `unsupported` if it is newer.
    """
    header = _unpack_cached(bytes(envelope[:HEADER_BYTES]))
    if len(envelope) < envelope_bytes_min(header):
        raise OpenError("format")
    return header


def seal_body(header: bytes, input_key: BytesLike, context: bytes, raw_bytes: int, body: bytes) -> bytes:
    """Seal a body and put the header in front.

    Args:
        header: The 12 packed bytes; the suite is read from them, and the context must hold them.
        input_key: 32 bytes, used with this suite only.
        context: What the envelope is bound to.
        raw_bytes: Length in bytes of the content before compression.
        body: The content, compressed or not.

    Raises:
        ValueError: The content is longer than 2^32 - 1 bytes.
    """
    if raw_bytes > RAW_BYTES_LIMIT or len(body) > RAW_BYTES_LIMIT:
        raise ValueError("an envelope holds less than 4 GiB")
    plaintext = _LENGTHS.pack(raw_bytes, len(body)) + body
    if header[_SUITE_OFFSET] == Suite.COBBLESTONE_256:
        return header + cobblestone.seal(input_key, context, plaintext)
    return header + xaes.seal(input_key, context, plaintext)


def open_body(envelope: bytes, input_key: BytesLike, context: bytes) -> tuple[int, bytes]:
    """Open the body of an envelope whose header was checked by `peek_header`.

    Returns:
        `raw_bytes` (length in bytes before compression, authentic) and the body.

    Raises:
        OpenError: `format` if the lengths inside disagree or bytes follow the body, `authentication` for a
            wrong key, a wrong context or altered bytes.
    """
    message = memoryview(envelope)[HEADER_BYTES:]
    if envelope[_SUITE_OFFSET] == Suite.COBBLESTONE_256:
        plaintext = cobblestone.open_(input_key, context, message)
    else:
        plaintext = xaes.open_(input_key, context, message)
    if len(plaintext) < _LENGTHS.size:
        raise OpenError("format")
    raw_bytes, body_bytes = _LENGTHS.unpack_from(plaintext)
    if body_bytes != len(plaintext) - _LENGTHS.size:
        raise OpenError("format")
    return raw_bytes, plaintext[_LENGTHS.size :]
