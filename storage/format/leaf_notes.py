"""Notes: what is said of the large leaves of a value beside their content, so that it comes with every load.

The notes of a value are a list with an element for each of its last large leaves, in their order: where the leaf
stands, its media type, and a preview if the client sent one. It is cut and stored as any list is, in the record of its
value: what was said of leaves that are still there is not stored again when a list grows. It is a list of the *last*
leaves, because builds before this one stored leaves without notes, and a list only grows at its end.

A note describes, and decides nothing: nothing here is compared with a leaf's content, and what cannot be read as notes,
which only another deployment's export can bring, says nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from storage.encoding import encode_msgpack
from storage.format.leaves import EXTENSIONS, LEAF_TOKENS_MAX, STRINGS, container, escaped, extent
from storage.model import LargeLeaf

# Longer paths are left out: they help a person, and must not be a multiplier in anybody's hands.
PATH_BYTES_MAX = 255
_TEXT, _BINARY, _EXTENSION = "text/plain", "application/octet-stream", "application/msgpack"
_NAME_BYTES_MAX = 255


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What is said of one large leaf; ``path``: where it stood when it was saved, None: not known or too long."""

    path: str | None
    media_type: str | None
    preview: bytes | None


_notes = msgspec.msgpack.Decoder(list[Note])


def encode(note: Note) -> bytes:
    """An element of the list."""
    return encode_msgpack(note)


def decode(data: bytes) -> list[Note]:
    """Read a list of notes; what is none has none."""
    try:
        return _notes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def moved(client_notes: Iterable[LargeLeaf], elements: int, offset: int) -> tuple[LargeLeaf, ...]:
    """What is said of leaves in a list, once so many elements and bytes more stand before them."""
    after = []
    for each in client_notes:
        path = each.path
        number, slash, rest = (path or "").removeprefix("/").partition("/")
        if path is not None and number.isdecimal():
            path = f"/{int(number) + elements}{slash}{rest}"
        after.append(replace(each, at=None if each.at is None else each.at + offset, path=path))
    return tuple(after)


def with_notes(leaves: Sequence[LargeLeaf], notes: Sequence[Note]) -> tuple[LargeLeaf, ...]:
    """The leaves of a value with what is said of the last of them."""
    notes = notes[max(0, len(notes) - len(leaves)) :]
    first = len(leaves) - len(notes)
    noted = (  # as they are in `LargeLeaf`: there may be many, and copying one takes three times as long
        LargeLeaf(
            at=leaf.at,
            path=note.path,
            media_type=note.media_type,
            preview=note.preview,
            piece_id=leaf.piece_id,
            size_bytes=leaf.size_bytes,
        )
        for leaf, note in zip(leaves[first:], notes, strict=True)
    )
    return (*leaves[:first], *noted)


def notes_of(
    data: bytes, offsets: Sequence[int], holes: Sequence[int], client_notes: Sequence[LargeLeaf],
    bounds: Sequence[int] | None, first: int = 0,
) -> list[bytes]:  # fmt: skip
    """The notes of the leaves that are taken out of a value, encoded.

    Args:
        data: The value, or the elements that are put behind a list.
        offsets: Where its leaves begin, ascending.
        holes: Those of them at which a placeholder stands.
        client_notes: What the client says, of whatever: of leaves that stay where they are it is not kept. By path goes
            before by offset, which programs say of what they upload.
        bounds: Where the elements of a list begin and end; None: it is no list.
        first: The number of the first element.
    """
    by_offset = {each.at: each for each in client_notes if each.at is not None}
    by_path = {each.path: each for each in client_notes if each.at is None}
    holed = {*holes}
    notes = []
    for at, path in zip(offsets, paths_at(data, offsets, bounds, first), strict=True):
        named = [each for each in (by_path.get(path), by_offset.get(at)) if each is not None]
        media_type = next((each.media_type for each in named if each.media_type is not None), None)
        preview = next((each.preview for each in named if each.preview is not None), None)
        if media_type is None and at not in holed:
            media_type = _type_of(data[at])
        notes.append(encode(Note(path, media_type, preview)))
    return notes


def _type_of(header: int) -> str:
    if header in STRINGS:
        return _TEXT
    return _EXTENSION if header in EXTENSIONS else _BINARY


def paths_at(data: bytes, offsets: Sequence[int], bounds: Sequence[int] | None, first: int = 0) -> list[str | None]:
    """JSON pointers (RFC 6901) to the objects that begin at these ascending offsets; arguments as for `notes_of`.

    None: the object is a name, stands below one that cannot be told, behind more objects than are searched for leaves,
    or at a path that is too long.
    """
    found: list[str | None] = []
    while len(found) < len(offsets):
        start, end, path = 0, len(data), ""
        if bounds is not None:
            number = bisect_right(bounds, offsets[len(found)]) - 1
            start, end, path = bounds[number], bounds[number + 1], f"/{first + number}"
        until = max(bisect_left(offsets, end), len(found) + 1)
        found += _paths_in(data, start, offsets[len(found) : until], path)
    return found


class _Level:
    """A container that is being walked, and the path of the member at hand; None: it cannot be told."""

    __slots__ = ("is_map", "left", "name", "prefix", "seen")

    def __init__(self, prefix: str | None, left: int, *, is_map: bool) -> None:
        self.prefix, self.left, self.is_map = prefix, left, is_map
        self.seen = 0
        self.name: str | None = None

    def path(self) -> str | None:
        step = self.name if self.is_map else str(self.seen - 1)
        if self.prefix is None or step is None or len(self.prefix) > PATH_BYTES_MAX:
            return None
        return f"{self.prefix}/{step}"


def _paths_in(data: bytes, at: int, offsets: Sequence[int], prefix: str) -> list[str | None]:
    """Find what `paths_at` finds, inside of one object that begins at ``at``."""
    found: list[str | None] = []
    levels: list[_Level] = []
    is_begun = False
    try:
        for _ in range(LEAF_TOKENS_MAX):
            while levels and not levels[-1].left:
                levels.pop()
            if at > offsets[len(found)] or (is_begun and not levels):
                break
            level, is_begun = levels[-1] if levels else None, True
            is_name = False
            if level is not None:
                is_name = level.is_map and level.left % 2 == 0
                level.left -= 1
                level.seen += 1
            if at == offsets[len(found)]:
                path = prefix if level is None else None if is_name else level.path()
                found.append(path if path is not None and len(path.encode()) <= PATH_BYTES_MAX else None)
                if len(found) == len(offsets):
                    break
            opened = container(data, at)
            if opened is not None:
                at, count, is_map = opened
                levels.append(_Level(prefix if level is None else level.path(), count, is_map=is_map))
                continue
            content, after = extent(data, at)
            if level is not None and is_name:
                level.name = _step(data, at, content, after)
            at = after
    except (IndexError, KeyError):
        pass
    return [*found, *[None] * (len(offsets) - len(found))]


def _step(data: bytes, at: int, content: int, after: int) -> str | None:
    """The step of a path that a name is: text or a small number."""
    header = data[at]
    if header < 0x80 or header >= 0xE0:
        return str(header if header < 0x80 else header - 256)
    if not (0xA0 <= header < 0xC0 or header in STRINGS) or after - content > _NAME_BYTES_MAX:
        return None
    return escaped(data[content:after].decode(errors="replace"))
