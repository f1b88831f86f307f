"""Cobblestone-256: C2SP chunked encryption with HKDF-Expand-SHA-512 and AES-256-GCM.

Owns the construction of https://c2sp.org/chunked-encryption and nothing around it: no header, no key choice.
The message is bound to its context through the key derivation; the 32-byte commitment is compared, in
constant time, before any chunk is decrypted.

    key (32) || base nonce (12) || commitment (32) = HKDF-Expand(SHA-512, prk = input key,
        info = "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM" || 00 || salt (24) || context)
    message = salt || commitment || chunk 0 || chunk 1 ...
    chunk i = AES-256-GCM(key, nonce = base nonce XOR i, empty AAD, 16 KiB of plaintext)

Every chunk but the last holds exactly 16 KiB; the last is always shorter and may be empty, which is what
makes a truncation visible. It does not hide lengths and does not promise that an old message is the newest
one.
"""

import hmac
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from crypto.errors import OpenError
from crypto.suites import KEY_BYTES, TAG_BYTES, BytesLike

SALT_BYTES: Final = 24
COMMITMENT_BYTES: Final = 32
PREFIX_BYTES: Final = SALT_BYTES + COMMITMENT_BYTES
CHUNK_BYTES: Final = 16384
SEALED_CHUNK_BYTES: Final = CHUNK_BYTES + TAG_BYTES
CHUNKS_MAX: Final = 1 << 38

_NONCE_BYTES: Final = 12
_OKM_BYTES: Final = KEY_BYTES + _NONCE_BYTES + COMMITMENT_BYTES
_NONCE_END: Final = KEY_BYTES + _NONCE_BYTES
_INFO_PREFIX: Final = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0"
_SHA512: Final = hashes.SHA512()


def _derive(input_key: BytesLike, salt: bytes, context: bytes) -> bytes:
    return HKDFExpand(_SHA512, _OKM_BYTES, _INFO_PREFIX + salt + context).derive(input_key)


def _nonce(base_nonce: int, index: int) -> bytes:
    return (base_nonce ^ index).to_bytes(_NONCE_BYTES, "big")


def _new_salt(input_key: BytesLike, salt: bytes | None) -> bytes:
    if len(input_key) != KEY_BYTES:
        raise ValueError("the input key must be 32 bytes")
    if salt is None:
        return os.urandom(SALT_BYTES)
    if len(salt) != SALT_BYTES:
        raise ValueError("the salt must be 24 bytes")
    return salt


def sealed_bytes(plaintext_bytes: int) -> int:
    """Length in bytes of the sealed form of a plaintext of that length."""
    return PREFIX_BYTES + plaintext_bytes + (plaintext_bytes // CHUNK_BYTES + 1) * TAG_BYTES


def chunk_offset(index: int) -> int:
    """Offset in bytes of sealed chunk `index` inside a message."""
    return PREFIX_BYTES + index * SEALED_CHUNK_BYTES


def seal(input_key: BytesLike, context: bytes, plaintext: BytesLike, salt: bytes | None = None) -> bytes:
    """Seal one whole message.

    Args:
        input_key: 32 uniformly random bytes.
        context: What the message is bound to; the same bytes are needed to open it.
        plaintext: Up to 4 PiB.
        salt: 24 bytes that never repeat under one input key. Only test vectors give it; otherwise it is
            random.

    Returns:
        `salt || commitment || chunks`.

    Raises:
        ValueError: The input key or the salt has the wrong length.
    """
    salt = _new_salt(input_key, salt)
    okm = _derive(input_key, salt, context)
    cipher = AESGCM(okm[:KEY_BYTES])
    if len(plaintext) < CHUNK_BYTES:  # the base nonce is that of chunk 0
        return b"".join((salt, okm[_NONCE_END:], cipher.encrypt(okm[KEY_BYTES:_NONCE_END], plaintext, None)))
    base_nonce = int.from_bytes(okm[KEY_BYTES:_NONCE_END], "big")
    source = memoryview(plaintext)
    chunks = (
        cipher.encrypt(_nonce(base_nonce, index), source[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES], None)
        for index in range(len(source) // CHUNK_BYTES + 1)
    )
    # One large allocation: what a second one costs in page faults is more than the cipher takes.
    return b"".join((salt, okm[_NONCE_END:], *chunks))


class ChunkSealer:
    """Seals the chunks of one message in their order, each once.

    Attributes:
        prefix: The message's first 56 bytes: salt and commitment.
    """

    __slots__ = ("_base_nonce", "_cipher", "_index", "prefix")

    def __init__(self, input_key: BytesLike, context: bytes, salt: bytes | None = None) -> None:
        """Begin a message under a new random salt; only test vectors give one.

        Raises:
            ValueError: The input key or the salt has the wrong length.
        """
        salt = _new_salt(input_key, salt)
        okm = _derive(input_key, salt, context)
        self.prefix = salt + okm[_NONCE_END:]
        self._cipher: AESGCM | None = AESGCM(okm[:KEY_BYTES])
        self._base_nonce = int.from_bytes(okm[KEY_BYTES:_NONCE_END], "big")
        self._index = 0

    def seal_next(self, chunk: BytesLike) -> bytes:
        """Seal the next chunk; one of fewer than 16 KiB, even of none, is the last.

        Raises:
            ValueError: The chunk is longer, or the message has ended.
        """
        if self._cipher is None or len(chunk) > CHUNK_BYTES:
            raise ValueError("a chunk has at most 16 KiB, and none follows the last")
        sealed = self._cipher.encrypt(_nonce(self._base_nonce, self._index), chunk, None)
        self._index += 1
        if len(chunk) < CHUNK_BYTES:
            self._cipher = None
        return sealed


class ChunkOpener:
    """Opens single chunks of one message, in any order, once the message's commitment was checked.

    A chunk that opens is authentic at its place; only the last one (shorter than 16 KiB) also proves where
    the message ends.
    """

    __slots__ = ("_base_nonce", "_cipher")

    def __init__(self, input_key: BytesLike, context: bytes, prefix: BytesLike) -> None:
        """Check the commitment.

        Args:
            input_key: The key the message was sealed under.
            context: The context it was sealed under.
            prefix: The message's first 56 bytes, or more of it.

        Raises:
            OpenError: `format` if the prefix is too short, `authentication` if key or context are others.
        """
        if len(prefix) < PREFIX_BYTES:
            raise OpenError("format")
        if len(input_key) != KEY_BYTES:
            raise OpenError("authentication")
        okm = _derive(input_key, bytes(prefix[:SALT_BYTES]), context)
        if not hmac.compare_digest(okm[_NONCE_END:], prefix[SALT_BYTES:PREFIX_BYTES]):
            raise OpenError("authentication")
        self._cipher = AESGCM(okm[:KEY_BYTES])
        self._base_nonce = int.from_bytes(okm[KEY_BYTES:_NONCE_END], "big")

    def open_chunk(self, index: int, sealed_chunk: BytesLike) -> bytes:
        """Return the plaintext of the sealed chunk at `index`.

        Raises:
            OpenError: `format` for an impossible length or index, `authentication` if it is not that chunk.
        """
        if not TAG_BYTES <= len(sealed_chunk) <= SEALED_CHUNK_BYTES or not 0 <= index < CHUNKS_MAX:
            raise OpenError("format")
        try:
            return self._cipher.decrypt(_nonce(self._base_nonce, index), sealed_chunk, None)
        except InvalidTag:
            raise OpenError("authentication") from None

    def open_chunk_into(self, index: int, sealed_chunk: memoryview, target: memoryview) -> None:
        """Write the plaintext of the sealed chunk at `index` to `target`, which has exactly its length.

        Raises:
            OpenError: `authentication` if it is not that chunk.
        """
        try:
            self._cipher.decrypt_into(_nonce(self._base_nonce, index), sealed_chunk, None, target)
        except InvalidTag:
            raise OpenError("authentication") from None


def open_(input_key: BytesLike, context: bytes, message: BytesLike) -> bytes:
    """Open one whole message; releases nothing unless all of it is authentic.

    Raises:
        OpenError: `format` for a length no message can have (truncated), `authentication` for a wrong key, a
            wrong context or altered bytes.
    """
    size = len(message)
    if size < PREFIX_BYTES + TAG_BYTES:
        raise OpenError("format")
    source = memoryview(message)
    if size < PREFIX_BYTES + SEALED_CHUNK_BYTES:
        if len(input_key) != KEY_BYTES:
            raise OpenError("authentication")
        okm = _derive(input_key, bytes(source[:SALT_BYTES]), context)
        if not hmac.compare_digest(okm[_NONCE_END:], source[SALT_BYTES:PREFIX_BYTES]):
            raise OpenError("authentication")
        try:
            return AESGCM(okm[:KEY_BYTES]).decrypt(okm[KEY_BYTES:_NONCE_END], source[PREFIX_BYTES:], None)
        except InvalidTag:
            raise OpenError("authentication") from None
    full_chunks, last_bytes = divmod(size - PREFIX_BYTES, SEALED_CHUNK_BYTES)
    opener = ChunkOpener(input_key, context, source[:PREFIX_BYTES])
    if last_bytes < TAG_BYTES:
        raise OpenError("format")
    out = bytearray(full_chunks * CHUNK_BYTES + last_bytes - TAG_BYTES)
    target = memoryview(out)
    for index in range(full_chunks + 1):
        offset = chunk_offset(index)
        opener.open_chunk_into(
            index,
            source[offset : offset + SEALED_CHUNK_BYTES],
            target[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES],
        )
    return bytes(out)
