"""Messages that arrive in parts of any size, sealed and opened chunk by chunk, as blobs are."""

from collections.abc import Iterable, Iterator

from crypto import OpenError
from crypto.ciphers.cobblestone import CHUNK_BYTES, PREFIX_BYTES, SEALED_CHUNK_BYTES, ChunkOpener, ChunkSealer


def _chunks(pending: bytearray, parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Chunks of one size; what is left after the last, less than that, stays pending."""
    for part in parts:
        pending += part
        while len(pending) >= size:
            yield bytes(pending[:size])
            del pending[:size]


def seal_stream(input_key: bytes, context: bytes, parts: Iterable[bytes], salt: bytes) -> Iterator[bytes]:
    """The prefix, then every sealed chunk."""
    sealer = ChunkSealer(input_key, context, salt)
    yield sealer.prefix
    pending = bytearray()
    for chunk in _chunks(pending, parts, CHUNK_BYTES):
        yield sealer.seal_next(chunk)
    yield sealer.seal_next(pending)


def open_stream(input_key: bytes, context: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    """The plaintext, chunk by chunk; that it ends where it should is known when this ends without an error."""
    arriving = iter(parts)
    pending = bytearray()
    while len(pending) < PREFIX_BYTES:
        part = next(arriving, None)
        if part is None:
            raise OpenError("format")
        pending += part
    opener = ChunkOpener(input_key, context, pending)
    del pending[:PREFIX_BYTES]
    index = 0
    for chunk in _chunks(pending, (b"", *arriving), SEALED_CHUNK_BYTES):
        yield opener.open_chunk(index, chunk)
        index += 1
    yield opener.open_chunk(index, pending)
