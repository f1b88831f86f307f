"""The manifest of a workspace: what was in a folder, and which artifact has the content of each file. Pure.

This module owns the format (``docs/formats/workspace.md``) and what of a manifest is believed: whoever can write to a
thread can write one, so a path leads nowhere but into the folder, and a link is made only where it ends in there. It
opens no file.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import msgspec

from stateroom.errors import InvalidRequest

ENTRIES_MAX = 1_000_000
# Its manifest is held as a whole.
MANIFEST_BYTES_MAX = 256 * 1024 * 1024
PATH_BYTES_MAX = 4096
NAME_BYTES_MAX = 255
# As many links as Linux follows in one path.
LINKS_FOLLOWED_MAX = 40
PERMISSIONS = 0o777

_DIGEST_BYTES = 32
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
        entries: Everything that was there, in the order of paths: a folder before what is in it.
    """

    format: Literal["stateroom-workspace/1"]
    contents: list[Content]
    entries: list[Entry]


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the manifest of this workspace cannot be read: {error}") from None
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
    if len(seen) > ENTRIES_MAX:
        raise InvalidRequest(f"a workspace has at most {ENTRIES_MAX:,} entries")
    return manifest


def _refused(entry: Entry, folders: set[str], contents: int) -> str | None:
    if why := unusable(entry.path):
        return why
    if parent_of(entry.path) not in folders:
        return "is in no folder"
    match entry:
        case FileEntry():
            if min(entry.size_bytes, entry.offset, entry.mode) < 0 or entry.mode > PERMISSIONS:
                return "has an impossible size, place or mode"
            if len(entry.digest) != _DIGEST_BYTES or not 0 <= entry.content < max(contents, not entry.size_bytes):
                return "has no content"
        case FolderEntry():
            if not 0 <= entry.mode <= PERMISSIONS:
                return "has an impossible mode"
        case LinkEntry():
            if not entry.target or "\0" in entry.target:
                return "leads nowhere"
    return None


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
    links = {each.path: each.target for each in entries if isinstance(each, LinkEntry)}
    found = ((path, _leads_out(path, links)) for path in links)
    return [LeftOut(path, why) for path, why in found if why]


def _leads_out(path: str, links: Mapping[str, str]) -> str | None:
    """Why a link is not made."""
    at = [name for name in parent_of(path).split("/") if name]
    left, followed = deque[str](), 0
    target: str | None = links[path]
    while True:
        if target is not None:
            followed += 1
            if target.startswith("/"):
                return "the link leads out of the folder"
            if followed > LINKS_FOLLOWED_MAX:
                return "the link leads nowhere"
            left.extendleft(reversed(target.split("/")))
            target = None
        if not left:
            return None
        name = left.popleft()
        if name == "..":
            if not at:
                return "the link leads out of the folder"
            at.pop()
        elif name not in {"", "."}:
            at.append(name)
            target = links.get("/".join(at))
            if target is not None:
                at.pop()
