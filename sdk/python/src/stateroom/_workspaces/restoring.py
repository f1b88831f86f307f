"""How a folder becomes what a snapshot says: what of it is there already, what is written, what goes.

This module owns the order of things: folders first, files under other names until they are whole, links and permissions
last, so that nothing is written through a link that a snapshot brings. A restore that broke off goes on when it is
asked again: a file whose content is there is not fetched. It sends nothing.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stateroom._workspaces.folders import NewFile, Root
from stateroom._workspaces.manifest import (
    PERMISSIONS,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Manifest,
    WorkspaceRestored,
    leading_out,
)
from stateroom._workspaces.scanning import digested, walk
from stateroom.errors import InvalidRequest


class Wanted(msgspec.Struct, frozen=True):
    """Files of one artifact that have to be fetched.

    Attributes:
        pointer: The artifact.
        files: The files, in the order in which they are in it.
    """

    pointer: str
    files: list[FileEntry]


class Restoring:
    """Makes a folder what a manifest says.

    Args:
        folder: Where files are written; made if it is not there.
        manifest: What it is to be.
        remove_others: Whether to remove what the snapshot does not have and its ignore files do not name.
        ignore: More that stays, as patterns.

    Raises:
        OSError: The folder cannot be made, or not be opened.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, remove_others: bool, ignore: Iterable[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._root = Root(folder)
        self._manifest = manifest
        self._remove_others = remove_others
        self._ignore = tuple(ignore)
        self._removed: list[str] = []
        self.written = self.written_bytes = 0
        self.there_bytes = 0

    def close(self) -> None:
        """Let go of the folder."""
        self._root.__exit__(None, None, None)

    @property
    def size_bytes(self) -> int:
        """What its files take."""
        return sum(each.size_bytes for each in self._files())

    def _files(self) -> Iterator[FileEntry]:
        return (each for each in self._manifest.entries if isinstance(each, FileEntry))

    def begin(self) -> list[Wanted]:
        """Make the folders, and say what has to be fetched.

        Raises:
            InvalidRequest: A folder is where the snapshot has a file or a link, and may not be removed.
            OSError: Something cannot be read or written.
        """
        for each in self._manifest.entries:
            if isinstance(each, FolderEntry):
                self._root.make_folder(each.path)
            else:
                self._make_room(each.path)
        wanted: dict[int, list[FileEntry]] = {}
        for file in self._files():
            if self._has(file):
                self.there_bytes += file.size_bytes
            elif not file.size_bytes:
                with self.write(file) as empty:
                    empty.finish()
            else:
                wanted.setdefault(file.content, []).append(file)
        return [
            Wanted(self._manifest.contents[number].pointer, sorted(files, key=lambda each: each.offset))
            for number, files in wanted.items()
        ]

    def _make_room(self, path: str) -> None:
        """See to it that no folder is where a file or a link will be."""
        if not self._root.is_folder(path):
            return
        if not self._remove_others:
            raise InvalidRequest(f"{path} is a folder here and none in the snapshot; let others be removed, or move it")
        self._root.remove(path)
        self._removed.append(path)

    def _has(self, file: FileEntry) -> bool:
        """Whether a file is there with its content; its permissions are seen to."""
        try:
            found = self._root.stat(file.path)
            if found.st_size != file.size_bytes:
                return False
            with self._root.open(file.path) as opened:
                if digested(opened)[0] != file.digest:
                    return False
                if found.st_mode & PERMISSIONS != file.mode:
                    os.fchmod(opened.fileno(), file.mode)
        except OSError:
            return False  # it is not there, is something else, or cannot be read: it is written
        return True

    def write(self, file: FileEntry) -> NewFile:
        """A file that has to be written; it counts as written from now on.

        Raises:
            OSError: It cannot be.
        """
        self.written += 1
        self.written_bytes += file.size_bytes
        self.there_bytes += file.size_bytes
        return NewFile(self._root, file.path, file.mode)

    def finish(self) -> WorkspaceRestored:
        """Make the links, remove the others, and give folders their permissions.

        Raises:
            OSError: Something cannot be written.
        """
        left_out = leading_out(self._manifest.entries)
        refused = {each.path for each in left_out}
        for each in self._manifest.entries:
            if isinstance(each, LinkEntry) and each.path not in refused and not self._is_link(each):
                self._root.make_link(each.path, each.target)
        if self._remove_others:
            self._remove(refused)
        for folder in reversed(self._manifest.entries):
            if isinstance(folder, FolderEntry):
                self._root.change_mode(folder.path, folder.mode)
        files = sum(1 for _ in self._files())
        return WorkspaceRestored(files, self.written, self.written_bytes, sorted(self._removed), left_out)

    def _is_link(self, link: LinkEntry) -> bool:
        try:
            return self._root.target(link.path) == link.target
        except OSError:
            return False

    def _remove(self, refused: set[str]) -> None:
        """Remove what the snapshot does not have; folders with something that is ignored stay."""
        own = {each.path for each in self._manifest.entries} - refused
        others = [path for path, _ in walk(self._root, self._ignore) if path not in own]
        for path in reversed(others):
            if self._root.remove_unless_full(path):
                self._removed.append(path)
