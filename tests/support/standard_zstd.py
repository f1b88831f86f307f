"""Zstandard of the standard library, which is another one than the product's; before Python 3.14 its backport."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        compress,
    )
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError, compress

__all__ = ["CompressionParameter", "ZstdCompressor", "ZstdDecompressor", "ZstdError", "compress"]
