"""Where content comes from and goes to: blocking reads and writes that both clients share.

This module owns local files, iterators and the partial file of a download. It promises that a target's name never
shows half a download, and that a source is held a part at a time. It knows nothing of the gateway.
"""

import contextlib
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import BinaryIO, Protocol, Self, cast

from stateroom._artifacts.transfers import PieceBuffer, Reception, checked_piece, partial_name, size_of
from stateroom.errors import InvalidRequest
from stateroom.types import Artifact

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: two downloads of one artifact to one path at once are then not kept apart
    fcntl = None

BLOCK_BYTES = 1024 * 1024

LocalSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
"""A path, content, a binary file from where it stands, or pieces of content."""


class Writable(Protocol):
    """A binary file to write to."""

    def write(self, piece: bytes, /) -> int | None:
        """Write, and say how much of it was written."""


class SourceReader:
    """Reads a source in parts of one size.

    Args:
        pull: Gives some bytes, about as many as asked for, and none at the end.
        size_bytes: How many there are, where it is known.
    """

    def __init__(self, pull: Callable[[int], bytes | bytearray | memoryview], size_bytes: int | None) -> None:
        self._pull = pull
        self._held = PieceBuffer()
        self._unread: bytes | None = None
        self.size_bytes = size_bytes

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""
        unread, self._unread = self._unread, None
        if unread is not None:
            if len(unread) == size and not len(self._held):
                return unread
            unread += self._held.take(len(self._held))
            self._held.add(unread)
        while len(self._held) < size:
            piece = self._pull(size - len(self._held))
            if len(piece) == size and not len(self._held):
                return bytes(piece)
            if not len(piece):
                break
            self._held.add(piece)
        return self._held.take(size)

    def unread(self, content: bytes) -> None:
        """Give back what was read last."""
        self._unread = content


@contextmanager
def open_source(source: LocalSource) -> Iterator[SourceReader]:
    """Read a source; a path is opened and closed again, a file is left open.

    Args:
        source: What to read.

    Raises:
        InvalidRequest: It is no source.
        OSError: It cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb") as file:
            yield _file_reader(file)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
        yield _view_reader(view)
    elif hasattr(source, "read"):
        yield _file_reader(cast(BinaryIO, source))
    elif isinstance(source, Iterable):
        pieces = filter(len, map(checked_piece, source))  # an empty piece is not the end
        yield SourceReader(lambda _: next(pieces, b""), None)
    else:
        raise InvalidRequest(f"content cannot be read from {type(source).__name__}")


def _file_reader(file: BinaryIO) -> SourceReader:
    return SourceReader(lambda size: checked_piece(file.read(size)), size_of(file))


def _view_reader(view: memoryview) -> SourceReader:
    position = 0

    def pull(size: int) -> memoryview:
        nonlocal position
        piece = view[position : position + size]
        position += len(piece)
        return piece

    return SourceReader(pull, len(view))


def write_all(file: Writable, piece: bytes) -> None:
    """Write a piece, also to a file that takes less at a time.

    Raises:
        BlockingIOError: The file takes nothing now.
    """
    left = memoryview(piece)
    while left:
        written = file.write(left)  # type: ignore[arg-type]
        if written is None:
            raise BlockingIOError("the target does not block")
        left = left[written:]


class PartialFile:
    """What has arrived of a download, beside its target; takes the target's name when it is whole.

    Args:
        artifact: What is downloaded.
        target: Where to.
        resume: Whether to go on with what an earlier attempt left.

    Raises:
        OSError: The folder cannot be written to.
    """

    def __init__(self, artifact: Artifact, target: str | os.PathLike[str], *, resume: bool) -> None:
        self._target = Path(target)
        if self._target.is_dir():
            raise IsADirectoryError(f"{self._target} is a folder; the target of a download is a file")
        self._path = self._target.with_name(partial_name(artifact, self._target.name))
        self._file = self._path.open("a+b")
        self._is_private = False
        if not _is_ours(self._file, self._path):  # another download to this path is under way; it may end first
            self._file.close()
            self._path = self._path.with_name(f"{self._path.name}-{secrets.token_hex(4)}")
            self._file = self._path.open("x+b")
            self._is_private = True
        if not resume or self._file.seek(0, io.SEEK_END) > artifact.size_bytes:
            self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._is_private:  # no later download would find it to go on with
            self._path.unlink(missing_ok=True)

    def feed(self, reception: Reception) -> bool:
        """Tell a reception what is there already; false when there is nothing."""
        self._file.seek(0)
        while block := self._file.read(BLOCK_BYTES):
            reception.already(block)
        return self._file.tell() > 0

    def write(self, piece: bytes) -> None:
        """Write the next piece."""
        self._file.write(piece)

    def restart(self) -> None:
        """Empty the partial file: the download begins anew."""
        self._file.seek(0)
        self._file.truncate(0)

    def finish(self) -> None:
        """Give the target its content: on disk first, then under its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._target)

    def discard(self) -> None:
        """Remove the partial file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _is_ours(file: BinaryIO, path: Path) -> bool:
    """Lock a partial file until it is closed; false when another download has it, or had it and is done."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
