"""Which content of a folder has to be stored, and in which artifacts: small files together, large ones alone.

This module owns how files are laid out in artifacts. It promises that the same files make the same artifacts, so that a
store that broke off finds by name what has arrived, and that content which an earlier snapshot has is referred to. It
reads files and sends nothing.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import msgspec

from stateroom._artifacts.transfers import digest_of_field
from stateroom._workspaces.folders import Root
from stateroom._workspaces.manifest import (
    Content,
    Entry,
    FileEntry,
    Manifest,
)
from stateroom._workspaces.scanning import Found, FoundFile
from stateroom.errors import InvalidRequest
from stateroom.types import Artifact

# Files of at least this size have an artifact each, and go up in parts.
ALONE_BYTES_MIN = 8 * 1024 * 1024
# The others come together until they have so much: four parts, which go up at the same time.
PACK_BYTES = 32 * 1024 * 1024


class Pack(msgspec.Struct):
    """Small files, one behind the other.

    Attributes:
        name: What its artifact is called: the same for the same content.
        digest: SHA-256 of all of it.
        data: The content.
        places: Of each file in it, by digest: where it begins.
        files: What is in it.
    """

    name: str
    digest: bytes
    data: bytes
    places: dict[bytes, int]
    files: list[FoundFile]


class LargeFile(msgspec.Struct):
    """A file that has an artifact of its own; as `Pack`."""

    name: str
    digest: bytes
    root: Root
    files: list[FoundFile]

    @property
    def size_bytes(self) -> int:
        """How much of it is stored: what it had when it was looked at."""
        return self.files[0].size_bytes

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file, without what was written to it since.

        Raises:
            OSError: It cannot be read.
        """
        with self.root.open(self.files[0].path) as file:
            yield cast(BinaryIO, FirstBytes(file, self.size_bytes))


class FirstBytes:
    """The first bytes of a file."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._left = size_bytes

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""
        block = self._file.read(min(size, self._left))
        self._left -= len(block)
        return block


Source = Pack | LargeFile
"""Content that has to be stored."""


class _Place(msgspec.Struct, frozen=True):
    """Where the content of a file is."""

    pointer: str
    offset: int


class Packing:
    """How the files of a folder are stored.

    Args:
        root: Where the files are read.
        found: What is in it.
        base: An earlier snapshot, whose content is referred to.
        there: Those of its artifacts that are still there, by pointer.
        ignore: What was left out beside what is named in the folder.

    Attributes:
        size_bytes: What the files take.
        stored_bytes: How much content was not there before.
    """

    def __init__(self, root: Root, found: Found, base: Manifest | None, there: set[str], ignore: list[str]) -> None:
        self._root = root
        self._found = found
        self._ignore = ignore
        self._sizes: dict[str, int] = {}
        self._places: dict[bytes, _Place] = {}
        self._changed: dict[str, FoundFile | None] = {}
        self.size_bytes = sum(each.size_bytes for each in self._files())
        if base is not None:
            self._refer_to(base, there)
        self.stored_bytes = 0

    def _files(self) -> Iterator[FoundFile]:
        return (each for each in self._found.entries if isinstance(each, FoundFile))

    def _refer_to(self, base: Manifest, there: set[str]) -> None:
        """Use the content that a snapshot has, but not for the sake of a small part of an artifact."""
        wanted = {each.digest for each in self._files()}
        used: Counter[int] = Counter()
        places: dict[bytes, FileEntry] = {}
        for each in base.entries:
            if isinstance(each, FileEntry) and each.digest in wanted and each.digest not in places:
                places[each.digest] = each
                used[each.content] += each.size_bytes
        for digest, each in places.items():
            content = base.contents[each.content] if each.size_bytes else None
            if content is None or content.pointer not in there or 2 * used[each.content] < content.size_bytes:
                continue
            self._places[digest] = _Place(content.pointer, each.offset)
            self._sizes[content.pointer] = content.size_bytes

    @property
    def settled_bytes(self) -> int:
        """What of the files needs no sending, or was sent."""
        return sum(each.size_bytes for each in self._files() if each.digest in self._places)

    def sources(self) -> Iterator[Source]:
        """What has to be stored, one after the other; each is `settled` before the next one is asked for.

        Raises:
            OSError: A file cannot be read.
        """
        pack, taken, size = list[tuple[FoundFile, bytes]](), set[bytes](), 0
        for each in self._files():
            if each.digest in self._places or not each.size_bytes:
                continue
            if each.size_bytes >= ALONE_BYTES_MIN:
                yield LargeFile(_name_of(each.digest), each.digest, self._root, [each])
                continue
            if each.digest in taken:
                continue
            read = self._read(each)
            if read is None:
                continue
            pack.append(read)
            taken.add(read[0].digest)
            size += len(read[1])
            if size >= PACK_BYTES:
                yield _packed(pack)
                pack, taken, size = [], set(), 0
        if pack:
            yield _packed(pack)

    def _read(self, file: FoundFile) -> tuple[FoundFile, bytes] | None:
        """A small file as it is now; None: it went meanwhile."""
        try:
            with self._root.open(file.path) as opened:
                data = opened.read(file.size_bytes)  # what was written to it since is of another moment
        except FileNotFoundError:
            self._changed[file.path] = None
            return None
        digest = hashlib.sha256(data).digest()
        if digest != file.digest:
            file = FoundFile(file.path, file.mode, len(data), digest)
            self._changed[file.path] = file
        return file, data

    def settled(self, source: Source, artifact: Artifact, *, was_there: bool) -> None:
        """Say which artifact has a source's content."""
        self._sizes[artifact.pointer] = artifact.size_bytes
        if not was_there:
            self.stored_bytes += artifact.size_bytes
        if isinstance(source, Pack):
            for each in source.files:
                self._places[each.digest] = _Place(artifact.pointer, source.places[each.digest])
        else:
            digest = digest_of_field(artifact.digest) or b""
            (file,) = source.files
            if digest != source.digest:  # it was written to meanwhile: what arrived counts
                self._changed[file.path] = FoundFile(file.path, file.mode, artifact.size_bytes, digest)
            self._places[digest] = _Place(artifact.pointer, 0)

    def gone(self, source: Source) -> None:
        """Say that a file went before it was read."""
        self._changed.update(dict.fromkeys((each.path for each in source.files), None))

    def manifest(self) -> Manifest:
        """What was stored."""
        entries: list[Entry] = []
        numbers: dict[str, int] = {}
        for each in self._found.entries:
            if not isinstance(each, FoundFile):
                entries.append(each)
                continue
            file = self._changed.get(each.path, each)
            if file is None:
                continue
            if not file.size_bytes:
                entries.append(FileEntry(file.path, file.mode, 0, file.digest, 0, 0))
                continue
            place = self._places.get(file.digest)
            if place is None:  # equal to another file that changed before it was read
                raise InvalidRequest(f"{file.path} changed while the workspace was stored; store it again")
            number = numbers.setdefault(place.pointer, len(numbers))
            entries.append(FileEntry(file.path, file.mode, file.size_bytes, file.digest, number, place.offset))
        return Manifest(
            "stateroom-workspace/1", [Content(each, self._sizes[each]) for each in numbers], entries, self._ignore
        )


def _packed(files: list[tuple[FoundFile, bytes]]) -> Pack:
    places: dict[bytes, int] = {}
    size = 0
    for file, data in files:
        places[file.digest] = size
        size += len(data)
    data = b"".join(each for _, each in files)
    digest = hashlib.sha256(data).digest()
    return Pack(_name_of(digest), digest, data, places, [file for file, _ in files])


def _name_of(digest: bytes) -> str:
    return f"workspace/{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
