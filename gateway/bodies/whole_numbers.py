"""Whole numbers of a JSON body that were written with a point or an exponent, written as the integers that they are.

JSON has one kind of number (RFC 8259, section 6): ``5``, ``5.0`` and ``5e0`` are the same, and languages that have one
kind, too, write any of them. Members of a body that are integers by its shape may come so. What is a number by its
shape stays as it is, and so does whatever the shape does not look into: the values of a state are their agent's.

A body is read as it came first; this is for the few that were refused then, and in which nothing else is wrong.
"""

import functools
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from msgspec import Raw, inspect

from gateway.admission.slices import Work
from gateway.wire.base import alternatives
from storage.encoding import encode_json, json_decoder

_EXACT_MAX: Final = 2**53  # beyond it, who has floats only may mean another number
_CHARACTERS_MAX: Final = 64
_SLICE_MEMBERS: Final = 5_000
_NUMBER = re.compile(rb"-?\d+(?=[.eE])[\d.eE+-]*")

_members = json_decoder(dict[str, Raw])
_elements = json_decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class _IntegerNode:
    """A node of a shape that has integers: itself, members by name, or each of its elements."""

    is_integer: bool = False
    members: dict[str, "_IntegerNode"] = field(default_factory=dict)
    each: "_IntegerNode | None" = None


_INTEGER = _IntegerNode(is_integer=True)


def with_integers(body: bytes, shape: Any) -> Work[bytes]:
    """A JSON body that parses, with integers where ``shape`` has them and whole numbers up to 2^53 came."""
    node = _node_of_shape(shape)
    return body if node is None else bytes((yield from _Writing().of(Raw(body.strip(b" \t\r\n")), node)))


class _Writing:
    def __init__(self) -> None:
        self._done = 0

    def of(self, raw: Raw, node: _IntegerNode) -> Generator[None, None, Raw]:
        self._done += 1
        if self._done % _SLICE_MEMBERS == 0:
            yield
        first = bytes(memoryview(raw)[:1])
        if first == b"{" and (node.members or node.each):
            members = _members(raw)
            for name, value in members.items():
                below = node.members.get(name, node.each)
                if below is not None:
                    members[name] = yield from self.of(value, below)
            return Raw(encode_json(members))
        if first == b"[" and node.each:
            elements = _elements(raw)
            for index, value in enumerate(elements):
                if node.each != _INTEGER:
                    elements[index] = yield from self.of(value, node.each)
                    continue
                elements[index] = as_integer(value)
                if index % _SLICE_MEMBERS == 0:
                    yield
            return Raw(encode_json(elements))
        return as_integer(raw) if node.is_integer else raw


def as_integer(raw: Raw) -> Raw:
    """A value as the integer that it is, if it is one up to 2^53 with a point or an exponent; otherwise itself."""
    if len(raw) > _CHARACTERS_MAX or not _NUMBER.fullmatch(raw):
        return raw
    try:
        number = Decimal(bytes(raw).decode("ascii"))
    except InvalidOperation:  # an exponent that nothing holds
        return raw
    if abs(number) > _EXACT_MAX or number != int(number):
        return raw
    return Raw(str(int(number)).encode("ascii"))


@functools.cache
def _node_of_shape(shape: Any) -> _IntegerNode | None:
    return _node_of(inspect.type_info(shape))


def _node_of(kind: inspect.Type) -> _IntegerNode | None:
    """None: there are no integers at this node, or below it. No shape contains itself."""
    kinds = alternatives(kind)
    is_number = any(isinstance(each, inspect.FloatType) for each in kinds)
    is_integer = not is_number and any(isinstance(each, inspect.IntType) for each in kinds)
    members: dict[str, _IntegerNode] = {}
    below: Any = None
    for each in kinds:
        match each:
            case inspect.StructType(fields=fields):
                nodes = {one.encode_name: _node_of(one.type) for one in fields}
                members |= {name: node for name, node in nodes.items() if node is not None}
            case inspect.DictType(value_type=inner) | inspect.CollectionType(item_type=inner):
                below = _node_of(inner)
    return _IntegerNode(is_integer, members, below) if is_integer or members or below else None
