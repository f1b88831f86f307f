"""Filters over values: which items a search is about, by what their members are.

A filter is a map from members of the value to conditions: a value that the member must equal, or operators (``$eq``,
``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``, ``$in``) that it must meet; ``$and`` and ``$or`` join filters. A map that
has no operators is looked into member by member. Numbers are compared with numbers, texts with texts, and nothing else
has an order; a member that is not there meets no condition, and null is met by null alone. A list or map of more than
64 KiB equals nothing, though it is looked into.

Owns the bounds of one: whatever a filter says, each member of an item that it looks at is decoded once, and whether
maps that are compared have one key twice is not asked: the last one counts. It is pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import msgspec
from msgspec import Raw

from storage.encoding import decode_json
from storage.errors import InvalidState
from storage.model import Value

ITEM_FILTER_BYTES_MAX: Final = 16 * 1024
ITEM_FILTER_DEPTH_MAX: Final = 16
ITEM_FILTER_VALUES_MAX: Final = 1_000

# Larger lists and maps are not compared whole: decoding them would hold up everybody else.
ITEM_COMPARED_BYTES_MAX: Final = 64 * 1024

_NAME_SHOWN: Final = 64
_JOINING: Final = ("$and", "$or")
_ORDERING: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": lambda one, other: one > other,
    "$gte": lambda one, other: one >= other,
    "$lt": lambda one, other: one < other,
    "$lte": lambda one, other: one <= other,
}
_COMPARING: Final = ("$eq", "$ne", "$in", *_ORDERING)
_packed_members = msgspec.msgpack.Decoder(dict[str, Raw])
_NOTHING: Final = object()  # is equal to nothing and has no order
_UNREAD: Final = object()


class _Member:
    """A member of a value, or the value: bytes that are decoded as far as a condition looks, and then once."""

    __slots__ = ("_is_json", "_members", "_raw", "_raws", "_value")

    def __init__(self, raw: bytes | Raw, *, is_json: bool) -> None:
        self._raw = raw
        self._is_json = is_json
        self._raws: dict[str, Raw] | None = None
        self._members: dict[str, _Member] = {}
        self._value: Any = _UNREAD

    def member(self, name: str) -> "_Member | None":
        """A member of a map whose keys are texts; None: there is none, or it is anything else."""
        found = self._members.get(name)
        if found is None:
            if self._raws is None:
                self._raws = self._read_members()
            raw = self._raws.get(name)
            if raw is not None:
                found = self._members[name] = _Member(raw, is_json=self._is_json)
        return found

    def _read_members(self) -> dict[str, Raw]:
        try:
            return decode_json(self._raw, dict[str, Raw]) if self._is_json else _packed_members.decode(self._raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}

    def is_map(self) -> bool:
        """Whether it is a map."""
        first = bytes(memoryview(self._raw)[:1])
        return first == b"{" if self._is_json else bool(first) and (first[0] & 0xF0 == 0x80 or first[0] in {0xDE, 0xDF})

    def value(self) -> Any:
        """What it is; `_NOTHING` of a list or map that is too large, and of a map whose keys are no texts."""
        if self._value is _UNREAD:
            self._value = self._read_value()
        return self._value

    def _read_value(self) -> Any:
        if len(memoryview(self._raw)) > ITEM_COMPARED_BYTES_MAX and self._is_container():
            return _NOTHING
        try:
            if self._is_json:
                return decode_json(self._raw)
            # Keys that are not text are refused: the hashes of numbers can be chosen.
            return msgpack.unpackb(self._raw, raw=False, strict_map_key=True, timestamp=0)
        except (ValueError, RecursionError, msgspec.DecodeError, msgpack.UnpackException):
            return _NOTHING

    def _is_container(self) -> bool:
        first = bytes(memoryview(self._raw)[:1])
        if self._is_json:
            return first in {b"{", b"["}
        return bool(first) and (0x80 <= first[0] <= 0x9F or first[0] in {0xDC, 0xDD, 0xDE, 0xDF})


Condition = Callable[[_Member], bool]
Part = Callable[[_Member], bool]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that was checked; made by `parse`. ``values``: how many it has, which is what it costs at each item."""

    _parts: tuple[Part, ...]
    values: int = 0

    def matches(self, value: Value) -> bool:
        """Whether a value is like this. Only what the filter names is decoded; what is no map never matches."""
        member = _Member(value.data, is_json=value.encoding == "json")
        if not member.is_map():
            return False
        return _all(self._parts, member)


def parse(source: Any, pointer: str) -> Filter:
    """A filter from what a client sent, decoded.

    Raises:
        InvalidState: It is none; ``pointer`` says where it stands.
    """
    values = _checked_size(source, pointer)
    return Filter(_parts(source, pointer), values)


def _checked_size(source: Any, pointer: str) -> int:
    """The number of values in it."""
    left, depth = [source], 0
    count = 0
    while left:
        depth += 1
        if depth > ITEM_FILTER_DEPTH_MAX:
            raise InvalidState(f"a filter is at most {ITEM_FILTER_DEPTH_MAX} deep", pointer)
        count += len(left)
        if count > ITEM_FILTER_VALUES_MAX:
            raise InvalidState(f"a filter has at most {ITEM_FILTER_VALUES_MAX:,} values", pointer)
        left = [below for each in left for below in _below(each, pointer)]
    return count


def _below(value: Any, pointer: str) -> list[Any]:
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):  # MessagePack has maps whose keys are bytes
            raise InvalidState("a filter is an object whose keys are texts", pointer)
        return [*value.values()]
    return value if isinstance(value, list) else []


def _parts(source: Any, pointer: str) -> tuple[Part, ...]:
    if not isinstance(source, dict):
        raise InvalidState("a filter is an object: members and what they must be", pointer)
    return tuple(_part(name, wanted, f"{pointer}/{_escaped(name)}") for name, wanted in source.items())


def _part(name: str, wanted: Any, pointer: str) -> Part:
    if name in _JOINING:
        if not isinstance(wanted, list) or not wanted:
            raise InvalidState(f"{name} takes a list of filters", pointer)
        filters = [_parts(each, f"{pointer}/{number}") for number, each in enumerate(wanted)]
        join = all if name == "$and" else any
        return lambda value: join(_all(each, value) for each in filters)
    if name.startswith("$"):
        raise InvalidState(f"there is no operator {name[:16]} here; there are $and and $or", pointer)
    condition = _condition(wanted, pointer)
    return lambda value: (found := value.member(name)) is not None and condition(found)


def _all(parts: tuple[Part, ...], value: _Member) -> bool:
    return all(part(value) for part in parts)


def _condition(wanted: Any, pointer: str) -> Condition:
    if not isinstance(wanted, dict) or not wanted:
        return lambda found: _equal(found.value(), wanted)
    operators = [name for name in wanted if name.startswith("$")]
    if not operators:
        below = _parts(wanted, pointer)
        return lambda found: found.is_map() and _all(below, found)
    if len(operators) < len(wanted):
        raise InvalidState("operators and members do not stand in one object", pointer)
    conditions = [_operator(name, each, f"{pointer}/{_escaped(name)}") for name, each in wanted.items()]
    return lambda found: _meets(found.value(), conditions)


def _meets(value: Any, conditions: list[Callable[[Any], bool]]) -> bool:
    return all(each(value) for each in conditions)


def _operator(name: str, wanted: Any, pointer: str) -> Callable[[Any], bool]:
    if name == "$eq":
        return lambda value: _equal(value, wanted)
    if name == "$ne":
        return lambda value: not _equal(value, wanted)
    if name == "$in":
        if not isinstance(wanted, list):
            raise InvalidState("$in takes a list of values", pointer)
        return lambda value: any(_equal(value, each) for each in wanted)
    if name in _ORDERING:
        compare = _ORDERING[name]
        kind = _ordered_kind(wanted)
        if kind is None:
            raise InvalidState(f"{name} takes a number or a text", pointer)
        return lambda value: _ordered_kind(value) is kind and compare(value, wanted)
    raise InvalidState(f"there is no operator {name[:16]}; there are {', '.join(_COMPARING)}", pointer)


def _ordered_kind(value: Any) -> type | None:
    if isinstance(value, bool):
        return None
    return float if isinstance(value, (int, float)) else str if isinstance(value, str) else None


def _equal(found: Any, wanted: Any) -> bool:
    """Whether two values are the same: 1 is 1.0, but neither is true."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(_equal(found[name], each) for name, each in wanted.items())
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(_equal(one, other) for one, other in zip(found, wanted, strict=True))
        )
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return not isinstance(found, (dict, list)) and found is not _NOTHING and bool(found == wanted)


def _escaped(name: str) -> str:
    """The beginning of a member's name in a JSON pointer (RFC 6901): enough to find it, and no payload."""
    return name[:_NAME_SHOWN].replace("~", "~0").replace("/", "~1")
