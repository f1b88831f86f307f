"""A spool: records that wait, in memory while they are few and in an unnamed file afterwards.

A long copy reads a thread in one snapshot and sends it at its reader's pace, or takes one at its sender's pace and
writes it in one transaction. In between its records are here, so that neither a connection nor memory waits for
anybody. What is written is sealed under a key of this object alone, which nothing outlives: a disk that is looked at
later holds nothing that opens. Nothing here is durable, and no other process can read it.
"""

import tempfile
from collections.abc import Iterator
from typing import Any, Final, Self

import msgspec

from crypto import SecretKey
from crypto.ciphers.cobblestone import open_, seal
from storage.encoding import encode_msgpack

# Most threads never reach the file.
MEMORY_BYTES_MAX: Final = 4 * 1024 * 1024
_CONTEXT: Final = b"stateroom/v1/spool\0"
_LENGTH_BYTES: Final = 4

_decoder = msgspec.msgpack.Decoder()


class Spool:
    """Records in the order they were added; each is some values that MessagePack knows, and moments."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        # The file has no name: it is gone with this object, however the process ends.
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes_max)  # noqa: SIM115  closed by `close`
        self._spool_key = SecretKey.generate()
        self.size_bytes = 0  # sealed
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, *values: Any) -> int:
        """Add a record; returns where it is."""
        at = self.size_bytes
        sealed = seal(self._spool_key.borrow(), _context(at), encode_msgpack(values))
        self._file.seek(at)
        self._file.write(len(sealed).to_bytes(_LENGTH_BYTES, "big"))
        self._file.write(sealed)
        self.size_bytes = at + _LENGTH_BYTES + len(sealed)
        self.count += 1
        return at

    def get(self, at: int) -> list[Any]:
        """The record at a place that `add` returned."""
        return self._read(at)[0]

    def __iter__(self) -> Iterator[list[Any]]:
        """All records; more may be read or added meanwhile."""
        return self.between(0, None)

    def between(self, start: int, end: int | None) -> Iterator[list[Any]]:
        """The records from a place that `add` returned up to another one; None: to the end, wherever that is then."""
        at = start
        while at < (self.size_bytes if end is None else end):
            values, at = self._read(at)
            yield values

    def close(self) -> None:
        """Let everything go."""
        self._file.close()

    def _read(self, at: int) -> tuple[list[Any], int]:
        self._file.seek(at)
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
        sealed = self._file.read(length)
        values: list[Any] = _decoder.decode(open_(self._spool_key.borrow(), _context(at), sealed))
        return values, at + _LENGTH_BYTES + length


def _context(at: int) -> bytes:
    return _CONTEXT + at.to_bytes(8, "big")
