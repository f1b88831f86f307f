"""JSON Schemas of tenants: what checking by one costs, and checking by it. Pure; `tasks` runs it in worker processes.

1. A schema refers to itself only, by JSON Pointer; its patterns match in linear time, and are bounded in size when a
   schema is registered, each and together.
2. One value inside a state is looked at about `EVALUATIONS_MAX` times at most, however deep the state is. Alternatives
   that refer to alternatives double the work with each level, and so does recursion in more than one place; the library
   has no limit of its own, and holds the interpreter while it works. An ``enum`` or ``const`` is compared member by
   member unless all members are texts, or all are integers, and counts as that many.
3. `Cost` says which schemas are so plain that small values may be checked by them where nothing could be stopped.

A state is shown to a JSON Schema as an object of channels. Extension values appear as ``{"$ext": code}``, binary as
text in base64, floats that JSON cannot say as text, channels in encodings that the gateway does not read as
``{"$encoded": name}``. It reads values and instantiates nothing. What is proportional to the size of a state it does
not bound: who calls it stops it (`worker`).
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import jsonschema_rs
import msgpack

from migrations.state.errors import SchemaInvalid
from migrations.state.patterns import DFA_BYTES_MAX, PATTERN_BYTES_MAX

EVALUATIONS_MAX: Final = 1_000
# More is no schema that anybody wrote.
SUBSCHEMAS_MAX: Final = 20_000
# The worst legal schema has as many patterns, each as large, compiled, as `PATTERNS_BYTES_MAX` leaves it.
PATTERNS_MAX: Final = 500
PATTERNS_BYTES_MAX: Final = 16 * 1024 * 1024
PATTERN_BYTES_EACH: Final = 64 * 1024  # what any pattern may take, however many there are: two classes of Unicode's

# What of a state is checked: all of it, some channels, or elements that are appended to lists.
Part = Literal["whole", "some", "elements"]

# These bind a whole state. A save that brings only some channels is checked against the rest.
_OF_THE_WHOLE: Final = frozenset(
    {
        "required", "minProperties", "dependentRequired", "dependentSchemas",
        "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "unevaluatedProperties",
    }
)  # fmt: skip

# Checking by these takes a time that is linear in the value and known beforehand; by any other it may not.
_PLAIN: Final = frozenset(
    {
        "$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
        "readOnly", "writeOnly", "$ref", "type", "properties", "required", "additionalProperties", "items",
        "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "minProperties", "maxProperties", "enum", "const", "anyOf", "allOf", "oneOf", "not", "if",
        "then", "else", "format",
    }
)  # fmt: skip
_NULL, _BYTES = "null", frozenset({"bytes", "bytearray"})  # LangGraph's serialisers

_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$dynamicRef", "$recursiveRef", "$id")
_ITEMS: Final = ("items", "contains", "unevaluatedItems", "additionalItems")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
# Labels of the ways down: to elements, to members of any name, and, under "/" and its name, to a member.
_ITEM, _ANY_MEMBER, _MEMBER = "[]", "*", "/"

_Edge = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Cost:
    """What checking one value by a schema takes.

    Attributes:
        plain: Whether the schema has only keywords whose work is linear in the value.
        steps: How many comparisons one value takes at most; a value has a byte at least.
    """

    plain: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """Where a value differs from its schema, without what is there: the keyword, and the way to the value."""

    rule: str
    steps: list[str | int]


class TooDeep(ValueError):
    """The value is nested too deeply for its schema."""


class JsonSchema:
    """A JSON Schema, as far as it goes for a part of a state, compiled."""

    __slots__ = ("_validator",)

    def __init__(
        self, schema: Mapping[str, Any], part: Part = "whole", *, pattern_bytes_max: int | None = None
    ) -> None:
        options = jsonschema_rs.RegexOptions(size_limit=pattern_bytes_max, dfa_size_limit=DFA_BYTES_MAX)
        self._validator = jsonschema_rs.Draft202012Validator(
            _OF_PART[part](dict(schema)), offline=True, pattern_options=options, ignore_unknown_formats=False
        )

    def misfit(self, shown: Any) -> Misfit | None:
        """The first place at which a value differs, or None.

        Raises:
            TooDeep: it cannot be looked at.
        """
        try:
            if not self._validator.is_valid(shown):
                self._validator.validate(shown)  # only the first fault, found again: a list of all takes seconds
        except jsonschema_rs.ValidationError as found:
            return Misfit(str(found.schema_path[-1]) if found.schema_path else "false", list(found.instance_path))
        except ValueError:
            raise TooDeep from None
        return None


def check_json_schema(schema: dict[str, Any]) -> None:
    """Refuse what is no JSON Schema, refers outside itself, or is out of bounds.

    Raises:
        SchemaInvalid: what is wrong, and where.
    """
    patterns = _patterns(schema)
    if patterns > PATTERNS_MAX:
        raise _refused(f"it has more than {PATTERNS_MAX} patterns")
    each = min(PATTERN_BYTES_MAX, max(PATTERN_BYTES_EACH, PATTERNS_BYTES_MAX // max(patterns, 1)))
    try:
        JsonSchema(schema, pattern_bytes_max=each)
    except jsonschema_rs.ValidationError as error:
        steps: Iterable[str | int] = error.instance_path
        where = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in steps)
        if where.endswith("/pattern") or "/patternProperties" in where:
            why = f"the pattern is no regular expression, or takes more than {each} bytes when it is compiled"
            raise SchemaInvalid(why, f"/json_schema{where}") from None
        raise SchemaInvalid("this is not a JSON Schema (draft 2020-12)", f"/json_schema{where}") from None
    except (ValueError, jsonschema_rs.ReferencingError):
        raise SchemaInvalid("the JSON Schema refers outside itself, or cannot be used", "/json_schema") from None
    try:
        _Bounds(schema).check()
    except RecursionError:
        raise _refused("references follow one another too far") from None


def cost_of(schema: Mapping[str, Any], part: Part) -> Cost:
    """What checking by a schema takes that was registered, perhaps under bounds that were wider."""
    try:
        return _Bounds(_OF_PART[part](dict(schema))).check()
    except (SchemaInvalid, RecursionError):
        return Cost(plain=False, steps=0)


def _of_some(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in schema.items() if name not in _OF_THE_WHOLE}


def _of_elements(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema says directly of the elements of its lists; how many there may be is a matter of the whole list."""
    properties = schema.get("properties")
    reduced = {name: each for name, each in schema.items() if name.startswith("$") and name not in _OF_THE_WHOLE}
    reduced["properties"] = {
        name: {"items": each["items"]}
        for name, each in (properties if isinstance(properties, dict) else {}).items()
        if isinstance(each, dict) and "items" in each and "prefixItems" not in each
    }
    reduced |= {"definitions": schema["definitions"]} if "definitions" in schema else {}
    return reduced


_OF_PART: Final[dict[Part, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "whole": dict,
    "some": _of_some,
    "elements": _of_elements,
}


def _patterns(schema: Any) -> int:
    """How many patterns a schema has at most."""
    found, waiting = 0, [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found += isinstance(each.get("pattern"), str)
            named = each.get("patternProperties")
            found += len(named) if isinstance(named, dict) else 0
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return found


def _comparisons(members: list[Any]) -> int:
    """How many members of an ``enum`` a value is compared with: all, unless the library looks them up."""
    kinds = {type(each) for each in members}
    if kinds <= {str} or kinds <= {int}:
        return 1
    count, waiting = 0, list(members)
    while waiting and count <= EVALUATIONS_MAX:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return count


def shown(encoding: str, data: bytes) -> Any:
    """A channel's value as a JSON Schema sees it."""
    try:
        if encoding == "msgpack":
            tree = msgpack.unpackb(
                data, raw=False, strict_map_key=False, use_list=True, timestamp=0, ext_hook=msgpack.ExtType
            )
            return _jsonable(tree)
        if encoding == "json":
            return _jsonable(json.loads(data))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return {"$encoded": encoding}
    if encoding == _NULL:
        return None
    if encoding in _BYTES:
        return _text(data)
    return {"$encoded": encoding}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _jsonable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name if isinstance(name, str) else str(name): _jsonable(each) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_jsonable(each) for each in tree]
    if isinstance(tree, msgpack.ExtType):
        return {"$ext": tree.code}
    if isinstance(tree, msgpack.Timestamp):
        return {"$ext": -1}
    if isinstance(tree, bytes):
        return _text(tree)
    if isinstance(tree, float) and not math.isfinite(tree):
        return str(tree)
    return tree


@dataclass(slots=True)
class _Local:
    """What applies to one value: how many evaluations, and with which schemas it goes on below it."""

    evaluations: int = 1
    edges: Counter[_Edge] = field(default_factory=Counter)


class _Bounds:
    """How often one value may be looked at by a schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._subschemas: dict[int, Any] = {}
        self._local: dict[int, _Local | None] = {}

    def check(self) -> Cost:
        """Refuse a schema that is out of bounds, and say what checking by another takes.

        Raises:
            SchemaInvalid: it is out of bounds.
        """
        order = self._reachable(self._root)
        component = self._components(order)
        members: dict[int, set[int]] = {}
        for each in order:
            members.setdefault(component[each], set()).add(each)
        most: dict[int, int] = {}
        recursive: set[int] = set()
        # Components come in the order in which Tarjan closes them: what they lead to comes before them.
        for number in sorted(members):
            inside = members[number]
            edges = {each: self._of(each).edges for each in inside}
            targets = {target for each in inside for _, target in edges[each]}
            if len(inside) > 1 or not targets.isdisjoint(inside | recursive):
                recursive.update(inside)
            worst = max(self._of(each).evaluations for each in inside)
            for group in (group for each in inside for group in _groups(edges[each])):
                again = sum(count for target, count in group.items() if target in recursive)
                if again > 1 and not inside.isdisjoint(group):
                    raise _refused("recursion in more than one alternative at the same place")
                worst = max(worst, sum(count * most[target] for target, count in group.items() if target not in inside))
            if worst > EVALUATIONS_MAX:
                raise _refused(f"one value would be looked at more than {EVALUATIONS_MAX} times")
            most.update(dict.fromkeys(inside, worst))
        every = [each for each in self._subschemas.values() if isinstance(each, dict)]
        widest = max((_width(each) for each in every), default=1)
        return Cost(plain=all(each.keys() <= _PLAIN for each in every), steps=max(most.values()) * widest)

    def _of(self, place: int) -> _Local:
        """What applies to a value that a schema applies to, references and alternatives included."""
        if place in self._local:
            known = self._local[place]
            if known is None:
                raise _refused("a reference leads back to itself without going into the value")
            return known
        self._local[place] = None
        schema = self._subschemas[place]
        local = _Local()
        if isinstance(schema, dict):
            for members in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
                local.evaluations += _comparisons(members) if isinstance(members, list) else 0
            for each in self._in_place(schema):
                more = self._of(self._note(each))
                local.evaluations += more.evaluations
                local.edges.update(more.edges)
                if local.evaluations > EVALUATIONS_MAX:
                    raise _refused(f"one value would be looked at more than {EVALUATIONS_MAX} times")
            for label, each in _below(schema):
                local.edges[label, self._note(each)] += 1
        self._local[place] = local
        return local

    def _note(self, schema: Any) -> int:
        self._subschemas[id(schema)] = schema
        if len(self._subschemas) > SUBSCHEMAS_MAX:
            raise _refused(f"it has more than {SUBSCHEMAS_MAX} subschemas")
        return id(schema)

    def _in_place(self, schema: dict[str, Any]) -> Iterator[Any]:
        if "$schema" in schema and schema is not self._root:
            # The library would go on by that draft's rules, under which `format` is checked and `id` moves references.
            raise _refused("$schema stands at its root only: all of it is of one draft")
        for name in _REFERENCES:
            if name in schema:
                raise _refused(f"references are JSON Pointers into it, without {name}")
        if "$ref" in schema:
            yield self._referenced(schema["$ref"])
        for name in _IN_PLACE_LISTS:
            yield from schema.get(name, ())
        yield from (schema[name] for name in _IN_PLACE if name in schema)
        for name in _IN_PLACE_MAPS:
            yield from (each for each in schema.get(name, {}).values() if isinstance(each, dict))

    def _referenced(self, reference: str) -> Any:
        found: Any = self._root
        # What is percent-encoded the library decodes, and then goes elsewhere than this.
        if (reference != "#" and not reference.startswith("#/")) or "%" in reference:
            raise _refused("references are JSON Pointers into it, and not percent-encoded: #/$defs/name")
        for token in reference[2:].split("/") if reference != "#" else ():
            name = token.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                raise _refused("a reference leads nowhere, or is escaped more than JSON Pointer needs") from None
        return found

    def _reachable(self, root: Any) -> list[int]:
        order, waiting = [self._note(root)], [id(root)]
        seen = {id(root)}
        while waiting:
            for _, target in self._of(waiting.pop()).edges:
                if target not in seen:
                    seen.add(target)
                    order.append(target)
                    waiting.append(target)
        return order

    def _components(self, order: list[int]) -> dict[int, int]:
        """The strongly connected component of each, by Tarjan's algorithm without recursion."""
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        component: dict[int, int] = {}
        stack: list[int] = []
        closed = 0
        for start in order:
            if start in index:
                continue
            walk = [(start, iter({target for _, target in self._of(start).edges}))]
            index[start] = low[start] = len(index)
            stack.append(start)
            while walk:
                at, targets = walk[-1]
                for target in targets:
                    if target not in index:
                        index[target] = low[target] = len(index)
                        stack.append(target)
                        walk.append((target, iter({after for _, after in self._of(target).edges})))
                        break
                    if target not in component:
                        low[at] = min(low[at], index[target])
                else:
                    walk.pop()
                    if walk:
                        low[walk[-1][0]] = min(low[walk[-1][0]], low[at])
                    if low[at] == index[at]:
                        while at not in component:
                            component[stack.pop()] = closed
                        closed += 1
        return component


def _below(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _ITEMS:
        if isinstance(schema.get(name), dict):
            yield _ITEM, schema[name]
    yield from ((_ITEM, each) for each in schema.get("prefixItems", ()))
    for name in _MEMBERS:
        if isinstance(schema.get(name), dict):
            yield _ANY_MEMBER, schema[name]
    yield from ((_ANY_MEMBER, each) for each in schema.get("patternProperties", {}).values())
    yield from ((_MEMBER + name, each) for name, each in schema.get("properties", {}).items())


def _width(schema: dict[str, Any]) -> int:
    """How many names or places one subschema compares with a value's."""
    named = (schema.get(each) for each in ("properties", "required", "prefixItems"))
    return 1 + sum(len(each) for each in named if isinstance(each, dict | list))


def _groups(edges: Counter[_Edge]) -> Iterator[Counter[int]]:
    """What applies to one value below, for each place that it may be at."""
    by_label: dict[str, Counter[int]] = {}
    for (label, target), count in edges.items():
        by_label.setdefault(label, Counter())[target] += count
    everywhere = by_label.get(_ANY_MEMBER, Counter())
    for label, group in by_label.items():
        yield group + everywhere if label.startswith(_MEMBER) else group


def _refused(why: str) -> SchemaInvalid:
    return SchemaInvalid(f"the JSON Schema is out of bounds: {why}", "/json_schema")
