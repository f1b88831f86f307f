"""The cipher suites an envelope may name, and their lengths.

A suite's number is a byte of the sealed format: it is never reused and never changes its meaning. The ciphers
themselves live in `crypto.ciphers.cobblestone` and `crypto.ciphers.xaes`.
"""

from enum import IntEnum
from typing import Final

BytesLike = bytes | bytearray | memoryview

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16


class Suite(IntEnum):
    """Suite byte of an envelope.

    `COBBLESTONE_256` is C2SP chunked encryption with HKDF-Expand-SHA-512 and AES-256-GCM (commits to its
    key). `XAES_256_GCM` is the C2SP extended-nonce AES-256-GCM, the second suite should the first have to be
    left.
    """

    COBBLESTONE_256 = 1
    XAES_256_GCM = 2

    @property
    def body_bytes_min(self) -> int:
        """Length in bytes of the sealed form of an empty plaintext; nothing shorter is valid."""
        return _PREFIX_BYTES[self] + TAG_BYTES


_PREFIX_BYTES: Final = {Suite.COBBLESTONE_256: 56, Suite.XAES_256_GCM: 24}
