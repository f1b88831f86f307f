"""The manifest of a workspace: what was in a folder, and which artifact has the content of each file. Pure.

This module owns the format (``docs/formats/workspace.md``) and what of a manifest is believed: whoever can write to a
thread can write one, so a path leads nowhere but into the folder, and a link is made only where it ends in there. It
opens no file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, Self

import msgspec

from stateroom.errors import InvalidRequest

ENTRIES_MAX = 500_000
CONTENTS_MAX = 100_000
# Its manifest is held as a whole.
MANIFEST_BYTES_MAX = 128 * 1024 * 1024
PATH_BYTES_MAX = 4096
TARGET_BYTES_MAX = 4095
NAME_BYTES_MAX = 255
# As many links as Linux follows in one path.
LINKS_FOLLOWED_MAX = 40
PERMISSIONS = 0o777

_DIGEST_BYTES = 32
_OF_NOTHING = hashlib.sha256().digest()
_VALUE = "stateroom_workspace"


class FileEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="file"):
    """A file.

    Attributes:
        path: Where it is in the folder, with ``/`` between names.
        mode: Its permissions; nothing but the lowest nine bits.
        size_bytes: Its size.
        digest: SHA-256 of its content.
        content: Which of the manifest's contents has it.
        offset: Where it begins there, in bytes.
    """

    path: str
    mode: int
    size_bytes: int
    digest: bytes
    content: int
    offset: int


class FolderEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="folder"):
    """A folder.

    Attributes:
        path: Where it is.
        mode: Its permissions.
    """

    path: str
    mode: int


class LinkEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="link"):
    """A symbolic link.

    Attributes:
        path: Where it is.
        target: What it says.
    """

    path: str
    target: str


Entry = FileEntry | FolderEntry | LinkEntry


class Content(msgspec.Struct, frozen=True):
    """An artifact with the content of some files.

    Attributes:
        pointer: How a state names it.
        size_bytes: Its size.
    """

    pointer: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """What was in a folder.

    Attributes:
        format: Which format this is.
        contents: The artifacts with the files' content.
        entries: Everything that was there: a folder before what is in it.
        ignore: What was left out beside what is named in the folder, as lines of a ``.gitignore``.
    """

    format: Literal["stateroom-workspace/1"]
    contents: list[Content]
    entries: list[Entry]
    ignore: list[str] = []


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was not stored, or did not come back.

    Attributes:
        path: Where it is in the folder.
        reason: Why.
    """

    path: str
    reason: str


class WorkspaceSnapshot(msgspec.Struct, frozen=True):
    """A folder as it was stored.

    Attributes:
        manifest: The pointer of the artifact that says what was there.
        contents: The pointers of those that have the content.
        files: How many files there were.
        size_bytes: What they took.
        stored_bytes: How much content was not stored before; 0 in a snapshot that a state names.
        left_out: What has no content to store: sockets, devices, pipes.
    """

    manifest: str
    contents: list[str]
    files: int
    size_bytes: int
    stored_bytes: int = 0
    left_out: list[LeftOut] = []

    @property
    def value(self) -> dict[str, Any]:
        """What goes into a state, under whichever name: as long as a checkpoint has it, the snapshot is kept."""
        named = {"manifest": self.manifest, "contents": self.contents}
        return {_VALUE: 1, **named, "files": self.files, "size_bytes": self.size_bytes}

    @classmethod
    def of_value(cls, value: Any) -> Self:
        """The snapshot that a state names.

        Raises:
            InvalidRequest: The value is none.
        """
        if not isinstance(value, Mapping) or value.get(_VALUE) != 1:
            raise InvalidRequest("this value of a state is no workspace snapshot that this version knows")
        try:
            return msgspec.convert({name: each for name, each in value.items() if name != _VALUE}, cls)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"this value of a state is no workspace snapshot: {error}") from None


class WorkspaceRestored(msgspec.Struct, frozen=True):
    """What came back of a snapshot.

    Attributes:
        files: How many files there are of it now.
        written: How many of them were written; the others were there already.
        written_bytes: What those take.
        removed: The paths that are no more, because the snapshot does not have them.
        left_out: The links that would have led out of the folder.
    """

    files: int
    written: int
    written_bytes: int
    removed: list[str]
    left_out: list[LeftOut]


def encoded(manifest: Manifest) -> bytes:
    """The bytes of a manifest: the same for the same folder."""
    return msgspec.msgpack.encode(manifest)


def decoded(data: bytes) -> Manifest:
    """The manifest in some bytes.

    Raises:
        InvalidRequest: They are none, or one that leads out of the folder.
    """
    try:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the manifest of this workspace cannot be read: {error}") from None
    if len(manifest.entries) > ENTRIES_MAX or len(manifest.contents) > CONTENTS_MAX:
        raise InvalidRequest(f"a workspace has at most {ENTRIES_MAX:,} entries, in {CONTENTS_MAX:,} artifacts")
    folders = {""}
    seen: set[str] = set()
    for each in manifest.entries:
        if refused := _refused(each, folders, len(manifest.contents)):
            raise InvalidRequest(f"the manifest of this workspace cannot be used: {each.path!r} {refused}")
        if each.path in seen:
            raise InvalidRequest(f"the manifest of this workspace cannot be used: {each.path!r} is there twice")
        seen.add(each.path)
        if isinstance(each, FolderEntry):
            folders.add(each.path)
    return manifest


def _refused(entry: Entry, folders: set[str], contents: int) -> str | None:
    if why := unusable(entry.path):
        return why
    if parent_of(entry.path) not in folders:
        return "is in no folder"
    match entry:
        case FileEntry():
            return _refused_file(entry, contents)
        case FolderEntry():
            return None if 0 <= entry.mode <= PERMISSIONS else "has an impossible mode"
        case LinkEntry():
            usable = 0 < len(entry.target.encode()) <= TARGET_BYTES_MAX and "\0" not in entry.target
            return None if usable else "leads nowhere"


def _refused_file(entry: FileEntry, contents: int) -> str | None:
    if min(entry.size_bytes, entry.offset, entry.mode) < 0 or entry.mode > PERMISSIONS:
        return "has an impossible size, place or mode"
    if not entry.size_bytes:
        return None if entry.digest == _OF_NOTHING else "has no content"
    return None if len(entry.digest) == _DIGEST_BYTES and 0 <= entry.content < contents else "has no content"


def unusable(path: str) -> str | None:
    """Why nothing can have this path; None: it can."""
    if len(path.encode(errors="surrogateescape")) > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX} bytes"
    if any(name in {"", ".", ".."} or "\0" in name for name in path.split("/")):
        return "is no path within a folder"
    if any(len(name.encode(errors="surrogateescape")) > NAME_BYTES_MAX for name in path.split("/")):
        return f"has a name of more than {NAME_BYTES_MAX} bytes"
    return None


def parent_of(path: str) -> str:
    """The path of the folder that something is in; empty: the whole."""
    return path.rpartition("/")[0]


def leading_out(entries: Iterable[Entry]) -> list[LeftOut]:
    """The links that end outside of the folder, or nowhere, followed through the other links."""
    links: dict[str, str] = {}
    folders = {""}
    for each in entries:
        if isinstance(each, LinkEntry):
            links[each.path] = each.target
        elif isinstance(each, FolderEntry):
            folders.add(each.path)
    ends, left_out = _Ends(links, folders), list[LeftOut]()
    for path in links:
        try:
            ends.of(path)
        except _Nowhere as nowhere:
            left_out.append(LeftOut(path, str(nowhere)))
    return left_out


class _Nowhere(Exception):
    """A link does not end in the folder; says why."""


class _Ends:
    """Where links end, each followed once.

    Only from folders of the manifest does a step go up: what else is in a folder may be a link, or have two names.
    """

    def __init__(self, links: Mapping[str, str], folders: AbstractSet[str]) -> None:
        self._links = links
        self._folders = folders
        self._ends: dict[str, str] = {}
        self._nowhere: dict[str, str] = {}

    def of(self, path: str, followed: int = 1) -> str:
        """The path at which a link ends.

        Raises:
            _Nowhere: It does not end in the folder.
        """
        if path in self._nowhere:
            raise _Nowhere(self._nowhere[path])
        if path not in self._ends:
            self._nowhere[path] = "the link leads nowhere"  # as long as it is followed: it is met again
            try:
                self._ends[path] = self._followed(path, followed)
            except _Nowhere as nowhere:
                self._nowhere[path] = str(nowhere)
                raise
            del self._nowhere[path]
        return self._ends[path]

    def _followed(self, path: str, followed: int) -> str:
        target, at = self._links[path], parent_of(path)
        if target.startswith("/"):
            raise _Nowhere("the link leads out of the folder")
        if followed > LINKS_FOLLOWED_MAX:
            raise _Nowhere("the link leads nowhere")
        for name in target.split("/"):
            if name == "..":
                at = self._up(at)
            elif name not in {"", "."}:
                at = f"{at}/{name}" if at else name
                if len(at) > PATH_BYTES_MAX:
                    raise _Nowhere("the link leads nowhere")
                at = self.of(at, followed + 1) if at in self._links else at
        return at

    def _up(self, at: str) -> str:
        if not at:
            raise _Nowhere("the link leads out of the folder")
        if at not in self._folders:
            raise _Nowhere(f"the link leads over {at!r}, which is no folder of the snapshot")
        return parent_of(at)
