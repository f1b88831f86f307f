"""What is in a folder: its files, folders and links, without what is ignored. Reads, and changes nothing."""

import hashlib
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from stateroom._workspaces.folders import PARTIAL, Root
from stateroom._workspaces.ignoring import IGNORE_BYTES_MAX, IGNORE_FILE, Rules
from stateroom._workspaces.manifest import (
    ENTRIES_MAX,
    PERMISSIONS,
    FolderEntry,
    LeftOut,
    LinkEntry,
    unusable,
)
from stateroom.errors import InvalidRequest

BLOCK_BYTES = 1024 * 1024


class FoundFile(msgspec.Struct, frozen=True):
    """A file as it was when it was looked at.

    Attributes:
        path: Where it is.
        mode: Its permissions.
        size_bytes: Its size.
        digest: SHA-256 of its content.
    """

    path: str
    mode: int
    size_bytes: int
    digest: bytes


class Found(msgspec.Struct):
    """What is in a folder.

    Attributes:
        entries: In the order of paths, a folder before what is in it.
        left_out: What cannot be stored.
    """

    entries: list[FoundFile | FolderEntry | LinkEntry] = msgspec.field(default_factory=list)
    left_out: list[LeftOut] = msgspec.field(default_factory=list)


def scan(root: Root, ignore: Iterable[str]) -> Found:
    """Look at all that is in a folder, and compute the digests of its files.

    Raises:
        InvalidRequest: It has more entries than a workspace may.
        OSError: Something cannot be read.
    """
    found = Found()
    for each in walk(root, ignore):
        if len(found.entries) + len(found.left_out) >= ENTRIES_MAX:
            raise InvalidRequest(f"a workspace has at most {ENTRIES_MAX:,} entries; ignore some")
        mode = stat.S_IMODE(each.mode) & PERMISSIONS
        if each.unusable:
            shown = each.path.encode(errors="surrogateescape").decode(errors="replace")
            found.left_out.append(LeftOut(shown, each.unusable))
            continue
        try:
            if stat.S_ISDIR(each.mode):
                found.entries.append(FolderEntry(each.path, mode))
            elif stat.S_ISLNK(each.mode):
                found.entries.append(LinkEntry(each.path, each.target))
            else:
                with root.open(each.path) as file:
                    digest, size = digested(file)
                found.entries.append(FoundFile(each.path, mode, size, digest))
        except FileNotFoundError:
            continue  # it went while others were looked at
    return found


class Walked(msgspec.Struct, frozen=True):
    """Something in a folder.

    Attributes:
        path: Where it is.
        mode: What it is, as `os.stat` says.
        target: What it says, if it is a link.
        unusable: Why it cannot be stored, nor what is in it; empty: it can.
    """

    path: str
    mode: int
    target: str
    unusable: str


def walk(root: Root, ignore: Iterable[str]) -> Iterator[Walked]:
    """Everything that is not ignored; a folder before what is in it."""
    left = [("", Rules.of(ignore))]
    while left:
        folder, rules = left.pop()
        try:
            names = root.names(folder)
            if IGNORE_FILE in names:
                rules = rules.below(folder, _ignore_file(root, folder))
        except FileNotFoundError:
            continue
        folders: list[tuple[str, Rules]] = []
        for name in names:
            path = f"{folder}/{name}" if folder else name
            try:
                mode = root.stat(path).st_mode
                target = root.target(path) if stat.S_ISLNK(mode) else ""
            except FileNotFoundError:
                continue
            if PARTIAL.fullmatch(name) or rules.ignores(path, is_folder=stat.S_ISDIR(mode)):
                continue
            why = _unusable(path, mode, target)
            yield Walked(path, mode, target, why)
            if stat.S_ISDIR(mode) and not why:
                folders.append((path, rules))
        left += reversed(folders)


def _unusable(path: str, mode: int, target: str) -> str:
    """Why something cannot be stored; empty: it can."""
    try:
        f"{path}{target}".encode()
    except UnicodeEncodeError:
        return "has a name, or leads to one, that is not UTF-8"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
        return "is no file, folder or link"
    return unusable(path) or ""


def _ignore_file(root: Root, folder: str) -> str:
    path = f"{folder}/{IGNORE_FILE}" if folder else IGNORE_FILE
    if not stat.S_ISREG(root.stat(path).st_mode):
        return ""  # Git does not follow a link here, either
    with root.open(path) as file:
        data = file.read(IGNORE_BYTES_MAX + 1)
    if len(data) > IGNORE_BYTES_MAX:
        raise InvalidRequest(f"{path} is larger than {IGNORE_BYTES_MAX:,} bytes")
    return data.decode(errors="surrogateescape")


def digested(file: BinaryIO) -> tuple[bytes, int]:
    """The SHA-256 of what is left of a file, and how much that is."""
    digest, size = hashlib.sha256(), 0
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    return digest.digest(), size
