"""How a folder becomes what a snapshot says: what of it is there already, what is written, what goes.

This module owns the order of things: folders first, files under other names until they are whole, links and permissions
last, so that nothing is written through a link that a snapshot brings. A restore that broke off goes on when it is
asked again: a file whose content is there is not fetched. It sends nothing.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stateroom._workspaces.folders import NewFile, Root
from stateroom._workspaces.manifest import (
    PERMISSIONS,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Manifest,
    WorkspaceRestored,
    leading_out,
)
from stateroom._workspaces.scanning import BLOCK_BYTES, digested, walk
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
        self._ignore = (*manifest.ignore, *ignore)
        self._left_out = leading_out(manifest.entries)
        self._others: set[str] = set()
        self._removed: list[str] = []
        self.written = self.written_bytes = 0
        self.there_bytes = 0
        self.size_bytes = sum(each.size_bytes for each in self._files())

    def close(self) -> None:
        """Let go of the folder."""
        self._root.close()

    def _files(self) -> Iterator[FileEntry]:
        return (each for each in self._manifest.entries if isinstance(each, FileEntry))

    def begin(self) -> list[Wanted]:
        """Make the folders, and say what has to be fetched.

        Raises:
            InvalidRequest: Something else is where the snapshot has a folder, or a folder where it has something
                else, and may not be removed.
            OSError: Something cannot be read or written.
        """
        if self._remove_others:
            # By what is ignored now, too: what comes back may ignore less, and what it does not know is not its own.
            self._others = {each.path for each in walk(self._root, self._ignore) if not each.unusable}
        refused = {each.path for each in self._left_out}
        for each in self._manifest.entries:
            if each.path not in refused:
                self._make_room(each)
            if isinstance(each, FolderEntry):
                self._root.make_folder(each.path)
        wanted: dict[int, list[FileEntry]] = {}
        for file in self._files():
            if self._has(file):
                self.there_bytes += file.size_bytes
            elif not file.size_bytes:
                with self.new(file) as empty:
                    empty.finish()
                self.wrote(file)
            else:
                wanted.setdefault(file.content, []).append(file)
        return [
            Wanted(self._manifest.contents[number].pointer, sorted(files, key=lambda each: each.offset))
            for number, files in wanted.items()
        ]

    def _make_room(self, entry: Entry) -> None:
        """See to it that no folder is where something else will be, and nothing else where a folder will be."""
        mode, is_folder = self._root.mode(entry.path), isinstance(entry, FolderEntry)
        if mode is None or stat.S_ISDIR(mode) == is_folder:
            return
        if not self._remove_others:
            what = "is no folder here, and one" if is_folder else "is a folder here, and none"
            raise InvalidRequest(f"{entry.path} {what} in the snapshot; let others be removed, or move it")
        below = [path for path in self._others if path == entry.path or path.startswith(f"{entry.path}/")]
        if not all(map(self._remove, sorted(below, reverse=True))) or self._root.mode(entry.path) is not None:
            raise InvalidRequest(f"{entry.path} has something that is ignored, or cannot be stored; move it first")

    def _remove(self, path: str) -> bool:
        """Remove something, unless it is a folder with something in it."""
        if not self._root.remove(path):
            return False
        self._removed.append(path)
        return True

    def _has(self, file: FileEntry) -> bool:
        """Whether a file is there with its content; its permissions are seen to."""
        try:
            with self._root.open(file.path) as opened:
                found = os.fstat(opened.fileno())
                if found.st_size != file.size_bytes or digested(opened)[0] != file.digest:
                    return False
                if found.st_mode & PERMISSIONS != file.mode:
                    if found.st_nlink > 1:
                        return False  # another name of it, here or elsewhere, would change as well
                    os.fchmod(opened.fileno(), file.mode)
        except OSError:
            return False  # it is not there, is something else, or cannot be read: it is written
        return True

    def new(self, file: FileEntry) -> NewFile:
        """A file that has to be written.

        Raises:
            OSError: It cannot be.
        """
        return NewFile(self._root, file.path, file.mode)

    def wrote(self, file: FileEntry) -> None:
        """Say that a file was written."""
        self.written += 1
        self.written_bytes += file.size_bytes
        self.there_bytes += file.size_bytes

    def copy(self, file: FileEntry, other: FileEntry) -> bool:
        """Write a file with the content of an equal one that was written; false: that changed meanwhile."""
        try:
            content = self._root.open(other.path)
        except FileNotFoundError:
            return False
        with content, self.new(file) as new:
            digest = hashlib.sha256()
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
                new.write(block)
            if digest.digest() != file.digest:
                return False
            new.finish()
        return True

    def finish(self) -> WorkspaceRestored:
        """Make the links, remove the others, and give folders their permissions.

        Raises:
            OSError: Something cannot be written.
        """
        refused = {each.path for each in self._left_out}
        for each in self._manifest.entries:
            if isinstance(each, LinkEntry) and each.path not in refused and not self._is_link(each):
                self._root.make_link(each.path, each.target)
        if self._remove_others:
            own = {each.path for each in self._manifest.entries} - refused
            others = self._others - own
            walked = [each.path for each in walk(self._root, self._ignore) if each.path in others]
            for path in reversed(walked):
                self._remove(path)
        for folder in reversed(self._manifest.entries):
            if isinstance(folder, FolderEntry):
                self._root.change_mode(folder.path, folder.mode)
        files = sum(1 for _ in self._files())
        return WorkspaceRestored(files, self.written, self.written_bytes, sorted(self._removed), self._left_out)

    def _is_link(self, link: LinkEntry) -> bool:
        try:
            return self._root.target(link.path) == link.target
        except FileNotFoundError:
            return False
