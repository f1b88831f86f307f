"""Zstandard, one record at a time, with an output that cannot exceed what was promised.

Owns compressing before a seal and inflating after an open. No dictionary and no history is shared between
records: a shared one would let one record's text show in another's length. Whether a record may be compressed
at all is the caller's choice.
"""

import threading
from typing import Final

import zstandard

from crypto.errors import OpenError

LEVEL: Final = 3
TRY_BYTES_MIN: Final = 128
WINDOW_BYTES_MAX: Final = 1 << 23  # what a decoder may be made to allocate

_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class _Coders(threading.local):
    """Of each thread: making a decoder takes longer than it needs for a kilobyte, and an encoder longer still."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)


_coders: Final = _Coders()


def _is_for_memory(error: zstandard.ZstdError) -> bool:
    """Whether zstd could not get memory: it says so in its text only."""
    return "not enough memory" in str(error)


def compress_if_smaller(raw: bytes) -> bytes | None:
    """Return one zstd frame that states its content size, or None if it does not save at least 5 %."""
    size = len(raw)
    if size < TRY_BYTES_MIN:
        return None
    try:
        frame = _coders.compressor.compress(raw)
    except zstandard.ZstdError as error:
        raise (MemoryError() if _is_for_memory(error) else error) from None
    return frame if len(frame) * 20 <= size * 19 else None


def inflate(frame: bytes, raw_bytes: int) -> bytes:
    """Return the content of exactly one zstd frame of exactly `raw_bytes` bytes.

    The frame must state that size itself, need a window of at most 8 MiB and end where its bytes end. At most
    `raw_bytes` bytes are ever produced.

    Raises:
        OpenError: `size` if the content has another length, `format` if it is not one such frame.
    """
    if frame[:4] != _MAGIC:
        raise OpenError("format")
    try:
        stated = zstandard.get_frame_parameters(frame)
        if stated.content_size != raw_bytes:  # before room is made for it
            raise OpenError("size")
        if stated.window_size > WINDOW_BYTES_MAX:  # the decoder itself looks only where it needs a window
            raise OpenError("format")
        # What comes out is as long as the frame states: zstd raises otherwise.
        return _coders.decompressor.decompress(frame, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise (MemoryError() if _is_for_memory(error) else OpenError("format")) from None
