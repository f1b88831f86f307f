"""JSON Schemas of tenants, compiled, once it is known what checking by them costs.

1. A schema refers to itself only, by JSON Pointer; its patterns match in linear time.
2. One value inside a state is looked at about `EVALUATIONS_MAX` times at most, however deep the state is. Alternatives
   that refer to alternatives double the work with each level, and so does recursion in more than one place; the library
   has no limit of its own, and holds the interpreter while it works.

It promises nothing about what is proportional to the size of a state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs

from storage.errors import StateSchemaInvalid

EVALUATIONS_MAX: Final = 1_000
# More is no schema that anybody wrote.
SUBSCHEMAS_MAX: Final = 20_000

_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$dynamicRef", "$recursiveRef", "$id")
_ITEMS: Final = ("items", "contains", "unevaluatedItems", "additionalItems")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
# Labels of the ways down: to elements, to members of any name, and, under "/" and its name, to a member.
_ITEM, _ANY_MEMBER, _MEMBER = "[]", "*", "/"

_Edge = tuple[str, int]


def compile_json_schema(schema: Mapping[str, Any]) -> Any:
    """A validator of a JSON Schema (draft 2020-12) that was checked before, or of a part of it."""
    return jsonschema_rs.Draft202012Validator(
        dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions(), ignore_unknown_formats=False
    )


def check_json_schema(schema: dict[str, Any]) -> None:
    """Refuse what is no JSON Schema, refers outside itself, or is out of bounds.

    Raises:
        StateSchemaInvalid: what is wrong, and where.
    """
    try:
        compile_json_schema(schema)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
        raise StateSchemaInvalid("this is not a JSON Schema (draft 2020-12)", f"/json_schema{where}") from None
    except (ValueError, jsonschema_rs.ReferencingError):
        raise StateSchemaInvalid("the JSON Schema refers outside itself, or cannot be used", "/json_schema") from None
    try:
        _Bounds(schema).check()
    except RecursionError:
        raise _refused("references follow one another too far") from None


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

    def check(self) -> None:
        """Refuse a schema that is out of bounds.

        Raises:
            StateSchemaInvalid: it is.
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
        if reference != "#" and not reference.startswith("#/"):
            raise _refused("references are JSON Pointers into it: #/$defs/name")
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


def _groups(edges: Counter[_Edge]) -> Iterator[Counter[int]]:
    """What applies to one value below, for each place that it may be at."""
    by_label: dict[str, Counter[int]] = {}
    for (label, target), count in edges.items():
        by_label.setdefault(label, Counter())[target] += count
    everywhere = by_label.get(_ANY_MEMBER, Counter())
    for label, group in by_label.items():
        yield group + everywhere if label.startswith(_MEMBER) else group


def _refused(why: str) -> StateSchemaInvalid:
    return StateSchemaInvalid(f"the JSON Schema is out of bounds: {why}", "/json_schema")
