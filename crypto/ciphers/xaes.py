"""XAES-256-GCM: AES-256-GCM with a 24-byte nonce that is safe to choose at random.

Owns the construction of https://c2sp.org/XAES-256-GCM (v1.0.1): the first 12 nonce bytes select a derived key
through CMAC with NIST SP 800-108 counter mode, the last 12 are that key's GCM nonce. It does not commit to
its key and is the second suite; new data is sealed with `crypto.ciphers.cobblestone`.
"""

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from crypto.errors import OpenError
from crypto.suites import KEY_BYTES, TAG_BYTES, BytesLike

NONCE_BYTES: Final = 24

_BLOCK_BYTES: Final = 16
_HALF_NONCE_BYTES: Final = 12
_CMAC_R: Final = 0x87
_BLOCK_MASK: Final = (1 << 128) - 1


def derive_key(key: BytesLike, nonce: bytes) -> bytes:
    """Derive the AES-256-GCM key for the first half of a 24-byte nonce.

    Raises:
        ValueError: The key is not 32 bytes or the nonce is not 24.
    """
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError("XAES-256-GCM takes a key of 32 bytes and a nonce of 24")
    # The specification defines CMAC here by three single-block AES calls; ECB is that block function.
    block = Cipher(AES(key), ECB()).encryptor()  # noqa: S305
    subkey = int.from_bytes(block.update(bytes(_BLOCK_BYTES)), "big") << 1
    if subkey > _BLOCK_MASK:
        subkey = (subkey & _BLOCK_MASK) ^ _CMAC_R
    half = nonce[:_HALF_NONCE_BYTES]
    first = int.from_bytes(b"\x00\x01X\x00" + half, "big") ^ subkey
    second = int.from_bytes(b"\x00\x02X\x00" + half, "big") ^ subkey
    return block.update(first.to_bytes(_BLOCK_BYTES, "big") + second.to_bytes(_BLOCK_BYTES, "big"))


def seal(key: BytesLike, context: bytes, plaintext: BytesLike, nonce: bytes | None = None) -> bytes:
    """Seal one message with `context` as associated data.

    Args:
        key: 32 uniformly random bytes.
        context: What the message is bound to.
        plaintext: Up to 64 GiB.
        nonce: 24 bytes that never repeat under one key. Only test vectors give it; otherwise it is random.

    Returns:
        `nonce || ciphertext || tag`.

    Raises:
        ValueError: The key or the nonce has the wrong length.
    """
    if nonce is None:
        nonce = os.urandom(NONCE_BYTES)
    cipher = AESGCM(derive_key(key, nonce))
    return nonce + cipher.encrypt(nonce[_HALF_NONCE_BYTES:], plaintext, context)


def open_(key: BytesLike, context: bytes, message: BytesLike) -> bytes:
    """Open one message.

    Raises:
        OpenError: `format` if it is too short to be one, `authentication` otherwise.
    """
    if len(message) < NONCE_BYTES + TAG_BYTES:
        raise OpenError("format")
    source = memoryview(message)
    nonce = bytes(source[:NONCE_BYTES])
    if len(key) != KEY_BYTES:
        raise OpenError("authentication")
    try:
        cipher = AESGCM(derive_key(key, nonce))
        return cipher.decrypt(nonce[_HALF_NONCE_BYTES:], source[NONCE_BYTES:], context)
    except InvalidTag:
        raise OpenError("authentication") from None
