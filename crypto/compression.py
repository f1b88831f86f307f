"""Zstandard, one record at a time, with an output that cannot exceed what was promised.

Owns compressing before a seal and inflating after an open. No dictionary and no history is shared between
records: a shared one would let one record's text show in another's length. Whether a record may be compressed
at all is the caller's choice.
"""

import sys
import threading
from typing import Final

from crypto.errors import OpenError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL: Final = 3
TRY_BYTES_MIN: Final = 128
WINDOW_LOG_MAX: Final = 23  # 8 MiB: what a decoder may be made to allocate

_DECODER_OPTIONS: Final = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG_MAX}
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class _Encoder(threading.local):
    """One encoder for each thread: a new one costs more than compressing 1 KB does."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(level=LEVEL)

    def compress(self, raw: bytes) -> bytes:
        try:
            self.compressor.set_pledged_input_size(len(raw))
            return self.compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        except BaseException:
            # A half-fed encoder must not put one record's bytes into the next one's frame.
            self.compressor = zstd.ZstdCompressor(level=LEVEL)
            raise


_encoder: Final = _Encoder()


def compress_if_smaller(raw: bytes) -> bytes | None:
    """Return one zstd frame that states its content size, or None if it does not save at least 5 %."""
    size = len(raw)
    if size < TRY_BYTES_MIN:
        return None
    frame = _encoder.compress(raw)
    return frame if len(frame) * 20 <= size * 19 else None


def inflate(frame: bytes, raw_bytes: int) -> bytes:
    """Return the content of exactly one zstd frame of exactly `raw_bytes` bytes.

    The frame must state that size itself, need a window of at most 8 MiB and end where its bytes end. At most
    `raw_bytes` + 1 bytes are ever produced.

    Raises:
        OpenError: `size` if the content has another length, `format` if it is not one such frame.
    """
    if frame[:4] != _MAGIC:
        raise OpenError("format")
    try:
        stated_bytes = zstd.get_frame_info(frame).decompressed_size
        if stated_bytes != raw_bytes:
            raise OpenError("size")
        decompressor = zstd.ZstdDecompressor(options=_DECODER_OPTIONS)
        raw = decompressor.decompress(frame, max_length=raw_bytes + 1)
    except zstd.ZstdError:
        raise OpenError("format") from None
    if len(raw) != raw_bytes:
        raise OpenError("size")
    if not decompressor.eof or decompressor.unused_data:
        raise OpenError("format")
    return raw
