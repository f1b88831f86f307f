"""All that is wrong with a body that was refused, each with a pointer to the member itself.

The validator tells the first fault and stops. Here a body is walked along its shape: what the shape looks into is taken
apart, and everything else is given to the validator by itself, so that bounds, patterns and words are the validator's
and those of `gateway.problems.explain`. A body that the validator takes does not come here.

A byte is read once at each level of the shape, in slices, and none is behind one fault more than are told. Values are
repeated nowhere, and of names those that the API has or that a pointer needs. Where a map of MessagePack names a member
twice, the last one is looked at.
"""

import builtins
import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from gateway.admission import limits
from gateway.admission.slices import Work
from gateway.bodies.scanning import Format
from gateway.bodies.validation import ClientName, Difference, Steps, explain, missing_member, unknown_member
from gateway.bodies.whole_numbers import as_integer
from gateway.problems import InvalidRequest, pointer
from gateway.wire.problems import Fault
from storage.encoding import json_decoder

_SLICE_COST: Final = 4_000  # of one slice, some 5 ms: one for a value, and one for `_BYTES_AS_ONE` of it
_BYTES_AS_ONE: Final = 1024
_WHOLE_NUMBER_COST: Final = 3  # beside that of its value

# First bytes of what holds members, and of what holds elements.
_OBJECTS: Final[dict[Format, set[int]]] = {"json": {0x7B}, "msgpack": {*range(0x80, 0x90), 0xDE, 0xDF}}
_ARRAYS: Final[dict[Format, set[int]]] = {"json": {0x5B}, "msgpack": {*range(0x90, 0xA0), 0xDC, 0xDD}}


@dataclass(frozen=True, slots=True)
class _Struct:
    """An object whose members the API names."""

    members: dict[str, "_ShapeNode"]
    required: tuple[str, ...]
    is_closed: bool


@dataclass(frozen=True, slots=True)
class _Many:
    """An object whose members the client names, or an array: by itself, whatever it holds, and what it holds."""

    own: "_ShapeNode"
    each: "_ShapeNode"


@dataclass(frozen=True, slots=True)
class _ShapeNode:
    """A node of a shape, and what is looked into if an object or an array stands there."""

    shape: Any
    decode: Callable[[Raw], Any]
    object: _Struct | _Many | None = None
    array: _Many | None = None


_Held: TypeAlias = Iterator[tuple[str | int, Raw, _ShapeNode | None]]  # steps, values, and what these must be


def check_shape(name: Format, body: bytes, shape: Any, not_text: frozenset[str] = frozenset()) -> Work[None]:
    """Look for everything in which a body that parses is no ``shape``; integers may have a point (`whole_numbers`).

    Args:
        name: The body's format.
        body: The bytes that came.
        shape: The shape they must have.
        not_text: Members of the body that have maps with keys that are no text; they are not looked into.

    Raises:
        InvalidRequest: with all faults, or the first ones (`limits.FAULTS_MAX`).
        msgspec.DecodeError, UnicodeDecodeError: it does not parse after all: the first fault was before that.
    """
    walk = _Walk(name, not_text)
    raw = Raw(body.strip(b" \t\r\n") if name == "json" else body)
    with contextlib.suppress(_Enough):
        yield from walk.of(raw, _shape_node(name, shape), ())
    if walk.faults:
        faults = [Fault(detail=what, pointer=where) for where, what in walk.faults]
        raise InvalidRequest(*faults, limit=next(filter(None, walk.faults.values()), None))


class _Enough(Exception):
    """There are more faults than are told."""


class _Walk:
    """One look at one body."""

    def __init__(self, name: Format, not_text: frozenset[str]) -> None:
        self.faults: dict[tuple[str, str], str | None] = {}  # by pointer and what is said, the limit that is exceeded
        self._name = name
        self._not_text = not_text
        self._objects, self._arrays = _OBJECTS[name], _ARRAYS[name]
        self._any_object = _ShapeNode(dict[str, Raw], decoder(name, dict[str, Raw]))
        self._apart = decoder(name, dict[str, Raw] | list[Raw])
        self._cost = 0

    def of(self, raw: Raw, node: _ShapeNode | None, at: Steps) -> Generator[None, None, None]:
        """Look at one value; ``node`` None: it is of a member that there should not be."""
        self._cost += 1 + len(raw) // _BYTES_AS_ONE
        if self._cost >= _SLICE_COST:
            self._cost = 0
            yield
        if node is None:
            self._tell(unknown_member(str(at[-1]), at[:-1]))
        elif len(at) == 1 and at[0] in self._not_text:
            self._tell(Difference("names of members must be text", at))
        elif (inside := self._inside(raw, node)) is not None:
            held = self._members(raw, inside, at) if isinstance(inside, _Struct) else self._items(raw, inside, at)
            for step, value, below in held:
                yield from self.of(value, below, (*at, step))
        elif node.shape is not Raw:
            self._read(node, raw, at)

    def _inside(self, raw: Raw, node: _ShapeNode) -> _Struct | _Many | None:
        first = memoryview(raw)[0]
        return node.object if first in self._objects else node.array if first in self._arrays else None

    # What a container holds; the faults that are its own are told on the way.

    def _members(self, raw: Raw, inside: _Struct, at: Steps) -> _Held:
        members = self._read(self._any_object, raw, at)
        if members is None:
            return
        for name, value in members.items():
            if inside.is_closed or name in inside.members:
                yield name, value, inside.members.get(name)
        for name in inside.required:
            if name not in members:
                self._tell(missing_member(name, at))

    def _items(self, raw: Raw, inside: _Many, at: Steps) -> _Held:
        items = self._read(inside.own, raw, at)
        if items is None:
            with contextlib.suppress(msgspec.ValidationError):  # names that are no text; it was told
                items = self._apart(raw)
        if isinstance(items, list):
            for index, value in enumerate(items):
                yield index, value, inside.each
        for name, value in items.items() if isinstance(items, dict) else ():
            if len(name) <= limits.NAME_BYTES_MAX:  # or else the name is the fault, and too long for a pointer
                yield ClientName(name), value, inside.each

    def _read(self, node: _ShapeNode, raw: Raw, at: Steps) -> Any:
        """What is there, as it should be; None, and a fault, if it is not."""
        try:
            return node.decode(raw)
        except msgspec.ValidationError as error:
            whole = as_integer(raw) if self._name == "json" else raw
            if whole is not raw:
                self._cost += _WHOLE_NUMBER_COST
                return self._read(node, whole, at)
            self._tell(explain(error, node.shape, at))
            return None

    def _tell(self, difference: Difference) -> None:
        self.faults[pointer(*difference.steps), difference.what] = difference.limit
        if len(self.faults) > limits.FAULTS_MAX:
            raise _Enough


# --- shapes -------------------------------------------------------------------------------------------------------


@functools.cache
def decoder(name: Format, shape: Any) -> Callable[[Any], Any]:
    """What reads a value of one format as a shape."""
    if name == "json":
        return json_decoder(shape)
    return msgspec.msgpack.Decoder(shape).decode


@functools.cache
def _shape_node(name: Format, shape: Any) -> _ShapeNode:
    """A shape with what is looked into. No shape contains itself."""
    inside: dict[str, _Struct | _Many | None] = {}
    for kind, bounds in _alternatives(shape):
        held = get_args(kind)
        match get_origin(kind):
            case builtins.dict:
                inside["object"] = _many(name, dict[held[0], Raw], bounds, held[1])  # type: ignore[valid-type]
            case builtins.list | builtins.tuple:
                inside["array"] = _many(name, list[Raw], bounds, held[0])
            case None if kind is Raw:
                shape = Raw
            case None if isinstance(kind, type) and issubclass(kind, Struct):
                inside["object"] = _struct(name, kind)
    return _ShapeNode(shape, decoder(name, shape), **inside)  # type: ignore[arg-type]


def _struct(name: Format, kind: type[Struct]) -> _Struct:
    fields = msgspec.structs.fields(kind)
    return _Struct(
        {field.encode_name: _shape_node(name, field.type) for field in fields},
        tuple(field.encode_name for field in fields if field.required),
        kind.__struct_config__.forbid_unknown_fields,
    )


def _many(name: Format, own: Any, bounds: tuple[Any, ...], held: Any) -> _Many | None:
    """None: what it holds can be anything, so that the validator reads it at once."""
    if held in {Raw, Any}:
        return None
    shape = Annotated[own, *bounds] if bounds else own
    return _Many(_ShapeNode(shape, decoder(name, shape)), _shape_node(name, held))


def _alternatives(shape: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types that a place may have, each with what is annotated of it."""
    origin, args = get_origin(shape), get_args(shape)
    if origin is Annotated:
        yield from ((kind, (*more, *args[1:])) for kind, more in _alternatives(args[0]))
    elif origin in {Union, UnionType}:
        for each in args:
            yield from _alternatives(each)
    else:
        yield shape, ()
