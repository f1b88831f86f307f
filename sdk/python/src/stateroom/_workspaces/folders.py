"""A folder, and what is below it, without following a link: every step is made from an open folder.

Whoever else writes there, an agent's own tools for example, may put a link where a folder was; nothing is read or
written through it. It needs a system that opens files relative to open folders: Linux, macOS, not Windows.
"""

import errno
import os
import re
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stateroom._workspaces.manifest import parent_of
from stateroom.errors import InvalidRequest

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opens what may not be read, only in order to name it; Linux has it.
_NAMED_ONLY = getattr(os, "O_PATH", 0)
# What is half written; never stored.
PARTIAL = re.compile(r"\.stateroom-[0-9a-f]{16}\.part")
_OWN = 0o700
# What a path met instead of what it was: gone, no folder any more, a link, a device without anybody.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO}


class _Closed(ABC):
    """Something that is closed when it is left, or when nobody has it any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of it; again: nothing."""


class Root(_Closed):
    """A folder that is read or written below.

    Closed, nothing is found below it: also not by a thread that still works there.

    Args:
        folder: Its path; that itself may be a link.

    Raises:
        InvalidRequest: This system cannot.
        OSError: It cannot be opened.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._top: int | None = None
        # The folder that was asked for last: most questions are about what is in the same one.
        self._last: tuple[str, int] | None = None
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            raise InvalidRequest("workspaces need a system that opens files relative to folders, such as Linux")
        self._top = os.open(Path(folder), _FOLDER & ~os.O_NOFOLLOW)

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            top, self._top = self._top, None
            self._forget()
        if top is not None:
            os.close(top)

    def _forget(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
            self._last = None

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A folder below; empty: the folder itself.

        Raises:
            FileNotFoundError: It is none any more, or a link is on the way.
            OSError: It cannot be opened.
        """
        with self._lock, _gone_is_not_found(path):
            fd = self._opened(path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _opened(self, path: str) -> int:
        if self._top is None:
            raise ValueError("the folder is closed")
        known, fd = self._last or ("", self._top)
        if known and path != known and not path.startswith(f"{known}/"):
            known, fd = "", self._top
        fd = os.dup(fd)
        try:
            for name in filter(None, path[len(known) :].split("/")):
                below = os.open(name, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            if path and path != known:
                self._forget()
                self._last = (path, os.dup(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def names(self, path: str) -> list[str]:
        """What is in a folder, in order.

        Raises:
            FileNotFoundError: It is none any more.
        """
        with self.folder(path) as fd, os.scandir(fd) as found:
            return sorted(each.name for each in found)

    def stat(self, path: str) -> os.stat_result:
        """What something is; of a link, the link.

        Raises:
            FileNotFoundError: It is not there.
        """
        with self.folder(parent_of(path)) as fd, _gone_is_not_found(path):
            return os.stat(_name(path), dir_fd=fd, follow_symlinks=False)

    def mode(self, path: str) -> int | None:
        """What something is, as `os.stat` says; None: it is not there."""
        try:
            return self.stat(path).st_mode
        except FileNotFoundError:
            return None

    def target(self, path: str) -> str:
        """What a link says.

        Raises:
            FileNotFoundError: It is none any more.
        """
        with self.folder(parent_of(path)) as fd, _gone_is_not_found(path):
            return os.readlink(_name(path), dir_fd=fd)

    def open(self, path: str) -> BinaryIO:
        """A file, to be read.

        Raises:
            FileNotFoundError: It is none any more.
        """
        # What is no file by now, a pipe for example, would make opening wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.folder(parent_of(path)) as fd, _gone_is_not_found(path):
            opened = os.open(_name(path), flags, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise FileNotFoundError(errno.ENOENT, "is no file any more", path)
        return os.fdopen(opened, "rb")

    def make_folder(self, path: str) -> None:
        """Make a folder, or see to it that one that is there can be written to."""
        with self.folder(parent_of(path)) as fd:
            try:
                os.mkdir(_name(path), _OWN, dir_fd=fd)
            except FileExistsError:
                _own(_name(path), fd)

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

    def remove(self, path: str) -> bool:
        """Remove a file, a link, or a folder that has nothing in it; false: it has."""
        with self.folder(parent_of(path)) as fd:
            name = _name(path)
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            remove = os.rmdir if stat.S_ISDIR(mode) else os.unlink
            try:
                try:
                    remove(name, dir_fd=fd)
                except PermissionError:
                    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | _OWN)
                    remove(name, dir_fd=fd)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                return False
        return True


class NewFile(_Closed):
    """A file that takes its name when it is whole; left before, nothing of it stays.

    Args:
        root: The folder it is below.
        path: Its path.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, root: Root, path: str, mode: int) -> None:
        self._folder = -1
        self._name, self._mode = _name(path), mode
        self._partial = f".stateroom-{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with root.folder(parent_of(path)) as fd:
            self._folder = os.dup(fd)
        try:
            self._file = os.fdopen(os.open(self._partial, flags, 0o600, dir_fd=self._folder), "wb")
        except OSError:
            os.close(self._folder)
            self._folder = -1
            raise

    def close(self) -> None:
        """Let go of it; what was not finished is removed."""
        if self._folder < 0:
            return
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._partial, dir_fd=self._folder)
        os.close(self._folder)
        self._folder = -1

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


@contextmanager
def _gone_is_not_found(path: str) -> Iterator[None]:
    """Whatever is there instead of what was: it is not found."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise FileNotFoundError(errno.ENOENT, "is not there any more", path) from error


def _own(name: str, parent: int) -> None:
    """Give a folder that is there the permissions that working in it takes."""
    mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    if mode & _OWN == _OWN:
        return
    fd = os.open(name, _FOLDER | _NAMED_ONLY, dir_fd=parent)
    try:
        if _NAMED_ONLY:
            Path(f"/proc/self/fd/{fd}").chmod(mode | _OWN)
        else:
            os.fchmod(fd, mode | _OWN)
    finally:
        os.close(fd)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
