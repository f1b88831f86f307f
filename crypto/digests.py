"""Keyed digests: content ids, MACs and the boundary digest of list elements.

Owns how bytes become ids. Every digest here is keyed; an unkeyed digest of plaintext must never reach a
database, an object name, an ETag or a log, because it answers the question "is it this text?". Which key is
used, and that it is destroyed with its subject, is the sealer's business.
"""

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Final

from crypto.suites import BytesLike

CONTENT_ID_VERSION: Final = 1
CONTENT_ID_BYTES: Final = 17
DIGEST_BYTES: Final = 32

_VERSION_BYTE: Final = bytes((CONTENT_ID_VERSION,))
_BOUNDARY_BYTES: Final = 8
# Below this, joining the parts for the one-shot C call is cheaper than three incremental updates.
_JOIN_BYTES_MAX: Final = 65536


def _framed(part: BytesLike) -> tuple[bytes, BytesLike]:
    return (part.nbytes if isinstance(part, memoryview) else len(part)).to_bytes(8, "big"), part


@lru_cache(maxsize=64)
def _content_head(kind: str | bytes, encoding: str | bytes) -> bytes:
    """The framed kind and encoding of content, of which a program has few."""
    parts = (each.encode() if isinstance(each, str) else each for each in (kind, encoding))
    return b"".join(chain.from_iterable(map(_framed, parts)))


def _digest(subkey: BytesLike, framed: Iterable[BytesLike], size: int) -> bytes:
    if size <= _JOIN_BYTES_MAX:
        return hmac.digest(subkey, b"".join(framed), "sha256")
    state = hmac.new(bytearray(subkey), digestmod="sha256")
    for each in framed:
        state.update(each)
    return state.digest()


def keyed_digest(subkey: BytesLike, *parts: BytesLike) -> bytes:
    """HMAC-SHA256 over the parts, each preceded by its length as u64 big endian.

    Returns:
        32 bytes. `keyed_digest(k, b"a", b"bc")` differs from `keyed_digest(k, b"ab", b"c")`.
    """
    return _digest(subkey, chain.from_iterable(map(_framed, parts)), sum(map(len, parts)))


def content_id(id_subkey: BytesLike, kind: str | bytes, encoding: str | bytes, data: BytesLike) -> bytes:
    """The id of a piece of content: one version byte (01) and 16 bytes of keyed digest.

    The digest is HMAC-SHA256 over kind, encoding and data, each preceded by its length as u64 big endian,
    truncated to 16 bytes. Equal content of one subject has one id; under another subject's key it has an
    unrelated one.

    Returns:
        `CONTENT_ID_BYTES` (17) bytes.
    """
    return _VERSION_BYTE + _digest(id_subkey, (_content_head(kind, encoding), *_framed(data)), len(data))[:16]


def boundary_digest(subkey: BytesLike, data: BytesLike) -> int:
    """A keyed 64-bit number for deciding where a group of list elements ends.

    Keyed BLAKE2b with 8 bytes of output, because it runs once per element; keyed, so that group lengths say
    nothing about known text. Never an id: 64 bits collide.
    """
    return int.from_bytes(
        hashlib.blake2b(data, digest_size=_BOUNDARY_BYTES, key=subkey).digest(),
        "big",
    )
