"""A folder, and what is below it, without following a link: every step is made from an open folder.

Whoever else writes there, an agent's own tools for example, may put a link where a folder was; nothing is read or
written through it. It needs a system that opens files relative to open folders: Linux, macOS, not Windows.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stateroom._workspaces.manifest import parent_of
from stateroom.errors import InvalidRequest

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# What is half written; never stored.
PARTIAL_PREFIX = ".stateroom-"
PARTIAL_SUFFIX = ".part"
_PRIVATE = 0o700


class Root:
    """A folder that is read or written below.

    Args:
        folder: Its path; that itself may be a link.

    Raises:
        InvalidRequest: This system cannot.
        OSError: It cannot be opened.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            raise InvalidRequest("workspaces need a system that opens files relative to folders, such as Linux")
        self._fd = os.open(Path(folder), _FOLDER & ~os.O_NOFOLLOW)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A folder below; empty: the folder itself.

        Raises:
            OSError: It is none, or a link is on the way.
        """
        fd = os.dup(self._fd)
        try:
            for name in filter(None, path.split("/")):
                below = os.open(name, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def names(self, path: str) -> list[str]:
        """What is in a folder, in order."""
        with self.folder(path) as fd:
            return sorted(each.name for each in os.scandir(fd))

    def stat(self, path: str) -> os.stat_result:
        """What something is; of a link, the link."""
        with self.folder(parent_of(path)) as fd:
            return os.stat(_name(path), dir_fd=fd, follow_symlinks=False)

    def is_folder(self, path: str) -> bool:
        """Whether a folder has this path."""
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def target(self, path: str) -> str:
        """What a link says."""
        with self.folder(parent_of(path)) as fd:
            return os.readlink(_name(path), dir_fd=fd)

    def open(self, path: str) -> BinaryIO:
        """A file, to be read."""
        # What is no file by now, a pipe for example, would make opening wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.folder(parent_of(path)) as fd:
            opened = os.open(_name(path), flags, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise FileNotFoundError(f"{path} is no file any more")
        return os.fdopen(opened, "rb")

    def make_folder(self, path: str) -> None:
        """Make a folder, or see to it that one that is there can be written to. What else has its name is removed."""
        with self.folder(parent_of(path)) as fd:
            name = _name(path)
            try:
                os.mkdir(name, _PRIVATE, dir_fd=fd)
            except FileExistsError:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(name, dir_fd=fd)
                    os.mkdir(name, _PRIVATE, dir_fd=fd)
                elif found.st_mode & _PRIVATE != _PRIVATE:
                    self.change_mode(path, stat.S_IMODE(found.st_mode) | _PRIVATE)

    def change_mode(self, path: str, mode: int) -> None:
        """Give a folder permissions."""
        with self.folder(path) as fd:
            os.fchmod(fd, mode)

    def make_link(self, path: str, target: str) -> None:
        """Make a link, in the place of what else has its name and is no folder."""
        with self.folder(parent_of(path)) as fd:
            with suppress(FileNotFoundError):
                os.unlink(_name(path), dir_fd=fd)
            os.symlink(target, _name(path), dir_fd=fd)

    def remove(self, path: str) -> None:
        """Remove something, a folder with all that is in it."""
        with self.folder(parent_of(path)) as fd:
            name = _name(path)
            if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)

    def remove_unless_full(self, path: str) -> bool:
        """Remove something, but not a folder that has something in it; false: it has."""
        with self.folder(parent_of(path)) as fd:
            name = _name(path)
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                return True
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                return False
        return True


class NewFile:
    """A file that takes its name when it is whole; left before, nothing of it stays.

    Args:
        root: The folder it is below.
        path: Its path.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, root: Root, path: str, mode: int) -> None:
        self._name, self._mode = _name(path), mode
        self._partial = f"{PARTIAL_PREFIX}{secrets.token_hex(8)}{PARTIAL_SUFFIX}"
        with root.folder(parent_of(path)) as fd:
            self._folder = os.dup(fd)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._partial, flags, 0o600, dir_fd=self._folder), "wb")
        except BaseException:
            os.close(self._folder)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._partial, dir_fd=self._folder)
        os.close(self._folder)

    def write(self, piece: bytes) -> None:
        """Write the next piece."""
        self._file.write(piece)

    def finish(self) -> None:
        """Give it its permissions and its name; what had that before is replaced.

        Raises:
            OSError: A folder has it.
        """
        self._file.flush()
        os.fchmod(self._file.fileno(), self._mode)
        self._file.close()
        os.replace(self._partial, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
