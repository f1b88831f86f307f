"""Inside a serialised value: its large leaves, the placeholders that stand for them, and the pointers it names.

A *leaf* is a complete MessagePack str, bin or extension object. Where a large one is stored apart, a placeholder
stands in its place: itself an extension object, so that a list is still cut at the same elements. Which placeholders
mean something is said beside the data, as *holes*: offsets. Bytes that merely look like a placeholder are data.

Everything here reads bytes and instantiates nothing. How much it looks at is bounded; what lies beyond the bound is
left as it is, which costs storage and never correctness. Pointers are the exception: whatever cannot be told apart
any more counts as one.
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from storage.encoding import decode_json

PIECE_ID_BYTES = 17
# A piece of at least this size lives in the object store.
OFFLOAD_BYTES_MIN = 64 * 1024
# MessagePack objects that one element of a list, or one other value, is searched for leaves. The bound must not depend
# on bytes: a value that has placeholders is searched as far as the same value without.
LEAF_TOKENS_MAX = 4096
# As much for all pointers of a value: what it takes to say where they are.
POINTER_TOKENS_MAX = 200_000

_PLACEHOLDER = struct.Struct(f">3s{PIECE_ID_BYTES}sQ")
# Extension, 25 bytes, code 0x68. Any code would do; see the module's first paragraph.
_PLACEHOLDER_HEADER = b"\xc7\x19\x68"
PLACEHOLDER_BYTES = _PLACEHOLDER.size

# Bytes of the length that follows the first byte, and bytes beside the content (an extension's code).
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
    0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Bytes that follow the first byte of an object of fixed size.
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2,
    0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
# Bytes of the count that follows the first byte, and objects for each element.
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})
STRINGS = frozenset({0xD9, 0xDA, 0xDB})

_POINTER_TEXT = "stateroom:artifact:"
_POINTER_MARK = _POINTER_TEXT.encode()
_POINTER = re.compile(rb"stateroom:artifact:([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.ASCII)
_TEXT_POINTER = re.compile(_POINTER.pattern.decode() + r"\Z", re.ASCII)
_NAME_BYTES_MAX = 255
# Longer paths are cut: a path helps a person, and its length must not be a multiplier in anybody's hands.
_PATH_STEPS_MAX = 64
_EXTENSIONS_DEEP_MAX = 8


def placeholder(piece_id: bytes, size: int) -> bytes:
    """What stands for a leaf of ``size`` bytes that is stored as this piece."""
    return _PLACEHOLDER.pack(_PLACEHOLDER_HEADER, piece_id, size)


def read_placeholder(data: bytes | memoryview, at: int) -> tuple[bytes, int] | None:
    """The piece id and the size that a placeholder at this offset holds, or None if there is none."""
    if not 0 <= at <= len(data) - PLACEHOLDER_BYTES:
        return None
    header, piece_id, size = _PLACEHOLDER.unpack_from(data, at)
    return (piece_id, size) if header == _PLACEHOLDER_HEADER else None


def large_leaves(  # noqa: C901  one branch a row of the format
    data: bytes, start: int, end: int, bytes_min: int
) -> list[tuple[int, int]]:
    """Where the leaves of at least ``bytes_min`` bytes begin and end in one MessagePack object.

    What does not parse up to ``end`` is passed over. A leaf's length includes its header.
    """
    found: list[tuple[int, int]] = []
    at, left = start, 1  # objects still to come, at whichever level
    for _ in range(LEAF_TOKENS_MAX):
        if not left or end - at < bytes_min:
            break
        left -= 1
        first = data[at]
        if 0xA0 <= first < 0xC0:
            at += 1 + (first & 0x1F)
        elif first < 0x80 or first >= 0xE0:
            at += 1
        elif first < 0xA0:
            at += 1
            left += (first & 0x0F) * (1 if first >= 0x90 else 2)
        elif first in _SIZED:
            width, more = _SIZED[first]
            after = at + 1 + width + more + int.from_bytes(data[at + 1 : at + 1 + width])
            if after > end:
                break
            if after - at >= bytes_min:
                found.append((at, after))
            at = after
        elif first in _FIXED:
            at += 1 + _FIXED[first]
        elif first in _CONTAINERS:
            width, each = _CONTAINERS[first]
            left += each * int.from_bytes(data[at + 1 : at + 1 + width])
            at += 1 + width
        else:
            break
    return found


@dataclass(frozen=True, slots=True)
class Pointer:
    """An artifact that a value names, and where: a JSON pointer (RFC 6901) into the value."""

    artifact_id: UUID
    path: str


def may_name(encoding: str, data: bytes) -> bool:
    """Whether it is worth looking for the artifacts that a value names."""
    # JSON may spell any of a pointer's characters as an escape.
    return _POINTER_MARK in data or (encoding == "json" and b"\\u00" in data)


def find_pointers(encoding: str, data: bytes) -> list[Pointer]:
    """The artifacts a value names: each string that is exactly a pointer, in order, each artifact once.

    Extension objects are looked into as far as they hold MessagePack; a path ends at the outermost one.
    """
    if not may_name(encoding, data):
        return []
    if encoding == "msgpack":
        found: Iterator[Pointer] = _Walk(data).run()
    elif encoding == "json":
        found = _in_json(data)
    else:
        return []
    first: dict[UUID, Pointer] = {}
    for each in found:
        first.setdefault(each.artifact_id, each)
    return list(first.values())


def may_point(name: str) -> bool:
    """Whether it is worth looking whether a name is a pointer."""
    return name.startswith(_POINTER_TEXT)


def find_pointer(name: str, path: str) -> list[Pointer]:
    """The artifact that a name is the pointer of, if it is one; ``path``: where the name stands."""
    matched = _TEXT_POINTER.match(name)
    return [Pointer(UUID(matched[1]), path)] if matched else []


def names_artifacts(data: bytes) -> bool:
    """Whether a leaf may hold a pointer, and so must stay where a save can see it."""
    return _POINTER_MARK in data and _POINTER.search(data) is not None


def escaped(step: str) -> str:
    """A name as a step of a JSON pointer (RFC 6901, 3)."""
    return step.replace("~", "~0").replace("/", "~1")


def _in_json(data: bytes) -> Iterator[Pointer]:
    try:
        yield from _in_tree(decode_json(data), "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def _in_tree(tree: Any, path: str) -> Iterator[Pointer]:
    if isinstance(tree, str):
        if matched := _TEXT_POINTER.match(tree):
            yield Pointer(UUID(matched[1]), path)
    elif isinstance(tree, dict):
        for name, inner in tree.items():
            yield from _in_tree(name, f"{path}/{escaped(name)}")
            yield from _in_tree(inner, f"{path}/{escaped(name)}")
    elif isinstance(tree, list):
        for position, inner in enumerate(tree):
            yield from _in_tree(inner, f"{path}/{position}")


@dataclass(slots=True)
class _Level:
    """A container that is being walked: objects left in it, elements begun, and the name of the member at hand."""

    left: int
    is_map: bool
    seen: int = 0
    name: str = ""

    def step(self) -> str:
        return escaped(self.name) if self.is_map else str(self.seen - 1)


class _Walk:
    """One pass over the objects of a value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._tokens = POINTER_TOKENS_MAX
        self._marks = [each.start() for each in _POINTER.finditer(data)]

    def run(self) -> Iterator[Pointer]:
        """The pointers in order; one that is named twice comes twice."""
        return self._objects(0, len(self._data), None, 0)

    def _objects(  # noqa: C901, PLR0912  one branch a row of the format
        self, at: int, end: int, inside: str | None, depth: int
    ) -> Iterator[Pointer]:
        """Walk one object; ``inside`` is the path of the extension object whose content it is, if it is one."""
        levels = [_Level(1, is_map=False)]
        begun = at
        try:
            while levels and at < end:
                level = levels[-1]
                if not level.left:
                    levels.pop()
                    continue
                if self._tokens <= 0 or depth > _EXTENSIONS_DEEP_MAX:
                    yield from self._rest(at, end, _path(levels, inside))
                    return
                self._tokens -= 1
                is_name = level.is_map and level.left % 2 == 0
                level.left -= 1
                level.seen += 1
                if is_name:
                    level.name = ""
                opened = container(self._data, at)
                if opened is not None:
                    at, count, is_map = opened
                    levels.append(_Level(count, is_map))
                    continue
                first = self._data[at]
                content, after = extent(self._data, at)
                if after > end:
                    break
                if 0xA0 <= first < 0xC0 or first in STRINGS:
                    if is_name and after - content <= _NAME_BYTES_MAX:
                        level.name = self._data[content:after].decode(errors="replace")
                    matched = _POINTER.fullmatch(self._data, content, after)
                    if matched is not None:
                        yield Pointer(UUID(matched[1].decode()), _path(levels, inside))
                elif first in EXTENSIONS and self._holds_mark(content, after):
                    yield from self._objects(content, after, _path(levels, inside), depth + 1)
                elif is_name and (first < 0x80 or first >= 0xE0):
                    level.name = str(first if first < 0x80 else first - 256)
                at = after
        except (IndexError, KeyError):
            pass
        if inside is not None and (at != end or any(level.left for level in levels)):
            # What an extension holds is for its own reader to say: it cannot be told that a pointer is none.
            yield from self._rest(begun, end, inside)

    def _holds_mark(self, start: int, end: int) -> bool:
        first = bisect_left(self._marks, start)
        return first < len(self._marks) and self._marks[first] < end

    def _rest(self, start: int, end: int, path: str) -> Iterator[Pointer]:
        """Whatever looks like a pointer, where strings cannot be told from other bytes."""
        for matched in _POINTER.finditer(self._data, start, end):
            yield Pointer(UUID(matched[1].decode()), path)


def _path(levels: list[_Level], inside: str | None) -> str:
    if inside is not None:
        return inside
    return "".join(f"/{level.step()}" for level in levels[1 : _PATH_STEPS_MAX + 1])


def container(data: bytes, at: int) -> tuple[int, int, bool] | None:
    """For a container: where its first object begins, how many there are, and whether it is a map."""
    first = data[at]
    if 0x80 <= first < 0xA0:
        is_map = first < 0x90
        return at + 1, (first & 0x0F) * (2 if is_map else 1), is_map
    if first not in _CONTAINERS:
        return None
    width, each = _CONTAINERS[first]
    return at + 1 + width, each * int.from_bytes(data[at + 1 : at + 1 + width]), each == 2


def extent(data: bytes, at: int) -> tuple[int, int]:
    """For any other object: where its content begins, and where it ends."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1, at + 1
    if first < 0xC0:
        return at + 1, at + 1 + (first & 0x1F)
    if first in _SIZED:
        width, more = _SIZED[first]
        content = at + 1 + width + more
        return content, content + int.from_bytes(data[at + 1 : at + 1 + width])
    return at + (2 if first in EXTENSIONS else 1), at + 1 + _FIXED[first]
