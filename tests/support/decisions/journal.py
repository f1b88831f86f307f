"""Files that outlive whoever writes them: one line is one write, so that what a SIGKILL leaves is whole lines."""

import os
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """A file that several processes append lines to.

    Args:
        path: The file.
        durable: Whether each line is flushed to the disk before `write` returns, as what happens in the world is.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._durable = durable

    def write(self, line: Any) -> None:
        """Append one line."""
        data = msgspec.json.encode(line) + b"\n"
        assert os.write(self._file, data) == len(data)
        if self._durable:
            os.fsync(self._file)


class Tail:
    """Reads what is appended to a file, from its beginning on."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def lines(self) -> list[dict[str, Any]]:
        """What was appended since the last time."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [msgspec.json.decode(each) for each in whole]

    def close(self) -> None:
        self._file.close()
