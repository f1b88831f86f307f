"""Declarative steps: what a tenant may register over the API, safe by construction.

A step is a list of operations on places of the state. Each is checked and compiled when it is registered; running one
evaluates no code of the tenant's but its conditions (`conditions`), never loops over anything but the state itself, and
builds no more than `NODES_MAX` values. Operations, each with an optional condition ``when``:

    rename, move    from, to               the target must not exist; rename keeps a channel's place in the order
    copy            from, to
    remove          path
    set_default     path, value            only where nothing is; never on a lone pending write
    map_values      path, mapping [[old, new], ...], otherwise "keep" (default) or "fail"
    convert         path, type             string, integer, number or boolean
    split           from, separator, to [path, ...]     text; the last target takes the rest; missing parts are ""
    join            from [path, ...], separator, to     text
    wrap            path, in               a member's name, or absent: into a list
    unwrap          path, from             a member's name, or absent: out of a list of one
    for_each        path, operations       on every element of a list or every value of an object

Where an operation's source is absent it does nothing, unless it says ``"required": true``: states lack optional
channels. This is also how a step applies to a pending write, which is a state of one channel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from migrations.state.conditions import Condition, compile_condition
from migrations.state.document import ABSENT, WORK_MAX, Allowance, Channel, Document
from migrations.state.errors import PathFault, StepInvalid
from migrations.state.places import DocumentRoot, ElementRoot, Root, Tokens, parse_pointer, show, value_of

OPERATIONS_MAX: Final = 200
NESTING_MAX: Final = 3
MAPPINGS_MAX: Final = 1_000
TARGETS_MAX: Final = 16
LITERAL_BYTES_MAX: Final = 64 * 1024
SEPARATOR_CHARACTERS_MAX: Final = 100
INTEGER_CHARACTERS_MAX: Final = 20  # -9223372036854775808
NUMBER_CHARACTERS_MAX: Final = 400  # more digits than any double has
# What one run of a step may build, counted as if nothing were shared: ten times a large agent's state. A copy of a
# copy of a copy doubles what it copies; this is what stops it.
NODES_MAX: Final = 1_000_000

Json = Any


class Budget:
    """How much a run may still build, of its own and of what all steps of the conversion may together."""

    __slots__ = ("_allowance", "_nodes_left")

    def __init__(self, allowance: Allowance) -> None:
        self._nodes_left = NODES_MAX
        self._allowance = allowance

    def work(self, amount: int) -> None:
        """Count values that are copied or looked at.

        Raises:
            PathFault: the run does too much.
        """
        self._nodes_left -= amount
        if self._nodes_left < 0:
            raise PathFault(f"the step touches more than {NODES_MAX} values")
        self._allowance.work_left -= amount
        if self._allowance.work_left < 0:
            raise PathFault(f"this step and those before it touch more than {WORK_MAX} values")

    def spend(self, value: Any) -> None:
        """Count a value that gets another place, as large as it is.

        Raises:
            PathFault: the run builds too much.
        """
        level = [value]
        while level:
            after: list[Any] = []
            text = 0
            for each in level:
                if isinstance(each, dict):
                    after.extend(each.values())
                elif isinstance(each, list):
                    after.extend(each)
                elif isinstance(each, str | bytes):
                    text += len(each)
            self.work(len(level) + text // 64)
            level = after


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a step: its budget, and whether the state is a lone pending write."""

    budget: Budget
    partial: bool


Work = Callable[[Root, Run], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """A compiled operation."""

    source: Tokens
    work: Work
    condition: Condition | None
    required: bool

    def apply(self, root: Root, run: Run) -> None:
        """Do it, or nothing where its source is absent or its condition does not hold.

        Raises:
            PathFault: it cannot be done on this state.
        """
        run.budget.work(1)
        handle = root.take(self.source)
        if self.condition is not None:
            run.budget.work(self.condition.work)
            value = None if handle is ABSENT else value_of(handle, self.source)
            try:
                if not self.condition.holds(value, root.tree, run.budget.work):
                    return
            except PathFault as fault:
                raise PathFault(fault.why, fault.pointer or show(self.source)) from None
        if handle is ABSENT and self.required and not run.partial:
            raise PathFault("there is nothing here, and the operation requires it", show(self.source))
        self.work(root, run)


class Declared:
    """A compiled step in one direction."""

    __slots__ = ("_operations",)

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = tuple(operations)

    def __call__(self, document: Document, *, partial: bool) -> Document:
        """The state after the step; the given one is left as it is.

        Raises:
            PathFault: an operation cannot be done.
        """
        after = document.copy()
        budget = Budget(document.allowance)
        root, run = DocumentRoot(after, budget.work), Run(budget, partial)
        for operation in self._operations:
            operation.apply(root, run)
        return after


def compile_operations(operations: Json, pointer: str = "/operations") -> Declared:
    """Check and compile the operations of a step.

    Raises:
        StepInvalid: where and why they cannot be accepted.
    """
    return Declared(_compile(operations, pointer, 0, [OPERATIONS_MAX]))


def _compile(operations: Json, pointer: str, nesting: int, operations_left: list[int]) -> list[Operation]:
    if not isinstance(operations, list) or not operations:
        raise StepInvalid("operations are a list of at least one", pointer)
    compiled: list[Operation] = []
    for position, operation in enumerate(operations):
        at = f"{pointer}/{position}"
        operations_left[0] -= 1
        if operations_left[0] < 0:
            raise StepInvalid(f"a step has at most {OPERATIONS_MAX} operations", at)
        if not isinstance(operation, dict):
            raise StepInvalid("an operation is an object", at)
        compiled.append(_one(operation, at, nesting, operations_left))
    return compiled


def _one(operation: Mapping[str, Json], at: str, nesting: int, operations_left: list[int]) -> Operation:
    name = operation.get("op")
    maker = _MAKERS.get(name) if isinstance(name, str) else None
    if maker is None:
        raise StepInvalid(f"an operation's op is one of {', '.join(sorted(_MAKERS))}", f"{at}/op")
    make, members = maker
    for member in operation:
        if member not in {"op", "when", "required", *members}:
            raise StepInvalid(f"{name} has no such member", f"{at}/{member}")
    required = operation.get("required", False)
    if not isinstance(required, bool):
        raise StepInvalid("required is true or false", f"{at}/required")
    condition = compile_condition(operation["when"], f"{at}/when") if "when" in operation else None
    source, work = make(operation, at, nesting, operations_left)
    return Operation(source, work, condition, required)


def _literal(value: Json, at: str) -> Any:
    try:
        size = len(msgpack.packb(value, use_bin_type=True))
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise StepInvalid("the value cannot be stored", at) from None
    if size > LITERAL_BYTES_MAX:
        raise StepInvalid(f"a value in a step has at most {LITERAL_BYTES_MAX} bytes", at)
    return value


def _text(value: Json, at: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > SEPARATOR_CHARACTERS_MAX or not (value or empty):
        raise StepInvalid(f"this is text of 1 to {SEPARATOR_CHARACTERS_MAX} characters", at)
    return value


def _free(root: Root, target: Tokens) -> None:
    if root.take(target) is not ABSENT:
        raise PathFault("something is at the target already", show(target))


def _distinct(source: Tokens, target: Tokens, at: str) -> None:
    shorter = min(len(source), len(target))
    if source[:shorter] == target[:shorter]:
        raise StepInvalid("source and target lie inside each other", at)


Made = tuple[Tokens, Work]


def _move(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    source, target = parse_pointer(operation.get("from"), f"{at}/from"), parse_pointer(operation.get("to"), f"{at}/to")
    _distinct(source, target, f"{at}/to")

    def work(root: Root, _run: Run) -> None:
        handle = root.take(source)
        if handle is ABSENT:
            return
        _free(root, target)
        if isinstance(root, DocumentRoot) and len(source) == len(target) == 1:
            root.rename(source[0], target[0])
            return
        if isinstance(handle, Channel) and len(target) > 1:
            handle = value_of(handle, source)
        root.drop(source)
        root.give(target, handle)

    return source, work


def _rename(operation: Mapping[str, Json], at: str, nesting: int, operations_left: list[int]) -> Made:
    source, target = parse_pointer(operation.get("from"), f"{at}/from"), parse_pointer(operation.get("to"), f"{at}/to")
    if source[:-1] != target[:-1]:
        raise StepInvalid("rename changes the last part of a path only; use move", f"{at}/to")
    return _move(operation, at, nesting, operations_left)


def _copy(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    source, target = parse_pointer(operation.get("from"), f"{at}/from"), parse_pointer(operation.get("to"), f"{at}/to")
    if source == target:
        raise StepInvalid("source and target are the same", f"{at}/to")

    def work(root: Root, run: Run) -> None:
        handle = root.take(source)
        if handle is ABSENT:
            return
        _free(root, target)
        if isinstance(handle, Channel) and len(target) > 1:
            handle = value_of(handle, source)
        run.budget.spend(value_of(handle, source))
        root.give(target, handle)

    return source, work


def _remove(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")

    def work(root: Root, _run: Run) -> None:
        root.drop(path)

    return path, work


def _set_default(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    if "value" not in operation:
        raise StepInvalid("set_default needs a value", f"{at}/value")
    value = _literal(operation["value"], f"{at}/value")

    def work(root: Root, run: Run) -> None:
        if run.partial and (len(path) == 1 or root.take(path[:1]) is ABSENT) and isinstance(root, DocumentRoot):
            return
        if root.take(path) is ABSENT:
            run.budget.spend(value)
            root.give(path, value)

    return path, work


def _on_value(path: Tokens, change: Callable[[Any, Run], Any]) -> Made:
    """An operation that replaces the value at a place by what ``change`` makes of it."""

    def work(root: Root, run: Run) -> None:
        handle = root.take(path)
        if handle is ABSENT:
            return
        before = value_of(handle, path)
        try:
            after = change(before, run)
        except PathFault as fault:
            raise PathFault(fault.why, show(path) + fault.pointer) from None
        if after is not before:
            root.give(path, after)

    return path, work


def _map_values(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    pairs = operation.get("mapping")
    otherwise = operation.get("otherwise", "keep")
    if otherwise not in {"keep", "fail"}:
        raise StepInvalid('otherwise is "keep" or "fail"', f"{at}/otherwise")
    if not isinstance(pairs, list) or not 1 <= len(pairs) <= MAPPINGS_MAX:
        raise StepInvalid(f"mapping is a list of 1 to {MAPPINGS_MAX} pairs", f"{at}/mapping")
    mapping: dict[tuple[type, Any], Any] = {}
    for position, pair in enumerate(pairs):
        here = f"{at}/mapping/{position}"
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str | int | float | bool | None):
            raise StepInvalid("a pair is [old, new], and old is a scalar", here)
        if (type(pair[0]), pair[0]) in mapping:
            raise StepInvalid("this old value has a pair already", here)
        mapping[type(pair[0]), pair[0]] = _literal(pair[1], here)

    def change(value: Any, run: Run) -> Any:
        known = None if isinstance(value, dict | list) else (type(value), value)
        if known in mapping:
            run.budget.spend(mapping[known])
            return mapping[known]
        if otherwise == "fail":
            raise PathFault("the value has no pair in the mapping")
        return value

    return _on_value(path, change)


_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value + 0)  # a plain int or float, whatever subclass it came as
    raise PathFault("only numbers and booleans become text")


def _to_integer(value: Any) -> int:
    try:
        is_integral = isinstance(value, bool) or (isinstance(value, float) and value == int(value))
        if not is_integral and not (isinstance(value, str) and len(value) <= INTEGER_CHARACTERS_MAX):
            raise PathFault("the value is not a whole number")
        number = int(value)
    except (ValueError, OverflowError):
        raise PathFault("the value is not a whole number") from None
    if not -(2**63) <= number < 2**64:
        raise PathFault("the number has more than 64 bits")
    return number


def _to_number(value: Any) -> float:
    try:
        if (
            isinstance(value, int | str)
            and not isinstance(value, bool)
            and (not isinstance(value, str) or len(value) < 400)
        ):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise PathFault("the value is not a number")


def _to_boolean(value: Any) -> bool:
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise PathFault("the value is neither true nor false")


_CONVERSIONS: Final[dict[str, tuple[type, Callable[[Any], Any]]]] = {
    "string": (str, _to_string),
    "integer": (int, _to_integer),
    "number": (float, _to_number),
    "boolean": (bool, _to_boolean),
}


def _convert(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    wanted = operation.get("type")
    if not isinstance(wanted, str) or wanted not in _CONVERSIONS:
        raise StepInvalid(f"type is one of {', '.join(_CONVERSIONS)}", f"{at}/type")
    kind, conversion = _CONVERSIONS[wanted]

    def change(value: Any, _run: Run) -> Any:
        already = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        return value if value is None or already else conversion(value)

    return _on_value(path, change)


def _targets(value: Json, at: str) -> list[Tokens]:
    if not isinstance(value, list) or not 2 <= len(value) <= TARGETS_MAX:
        raise StepInvalid(f"this is a list of 2 to {TARGETS_MAX} paths", at)
    places = [parse_pointer(each, f"{at}/{position}") for position, each in enumerate(value)]
    if len(set(places)) != len(places):
        raise StepInvalid("a path occurs twice", at)
    return places


def _split(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    source = parse_pointer(operation.get("from"), f"{at}/from")
    separator = _text(operation.get("separator"), f"{at}/separator")
    targets = _targets(operation.get("to"), f"{at}/to")

    def work(root: Root, run: Run) -> None:
        handle = root.take(source)
        if handle is ABSENT:
            return
        text = value_of(handle, source)
        if not isinstance(text, str):
            raise PathFault("only text can be split", show(source))
        run.budget.spend(text)
        parts = text.split(separator, len(targets) - 1)
        root.drop(source)
        for target, part in zip(targets, parts + [""] * (len(targets) - len(parts)), strict=True):
            _free(root, target)
            root.give(target, part)

    return source, work


def _join(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    sources = _targets(operation.get("from"), f"{at}/from")
    separator = _text(operation.get("separator", " "), f"{at}/separator", empty=True)
    target = parse_pointer(operation.get("to"), f"{at}/to")

    def work(root: Root, run: Run) -> None:
        handles = [root.take(source) for source in sources]
        if all(handle is ABSENT for handle in handles):
            return
        parts: list[str] = []
        for source, handle in zip(sources, handles, strict=True):
            part = None if handle is ABSENT else value_of(handle, source)
            if not isinstance(part, str):
                why = "a pending write of one part alone" if run.partial else "what is no text, or is not there,"
                raise PathFault(f"{why} cannot be joined", show(source))
            parts.append(part)
        text = separator.join(parts)
        run.budget.spend(text)
        for source in sources:
            root.drop(source)
        _free(root, target)
        root.give(target, text)

    return sources[0], work


def _wrap(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    member = _text(operation["in"], f"{at}/in") if "in" in operation else None
    return _on_value(path, lambda value, _run: [value] if member is None else {member: value})


def _unwrap(operation: Mapping[str, Json], at: str, _nesting: int, _operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    member = _text(operation["from"], f"{at}/from") if "from" in operation else None

    def change(value: Any, _run: Run) -> Any:
        if member is None and isinstance(value, list) and len(value) == 1:
            return value[0]
        if member is not None and isinstance(value, dict) and set(value) == {member}:
            return value[member]
        raise PathFault("there is not exactly one value to take out")

    return _on_value(path, change)


def _for_each(operation: Mapping[str, Json], at: str, nesting: int, operations_left: list[int]) -> Made:
    path = parse_pointer(operation.get("path"), f"{at}/path")
    if nesting >= NESTING_MAX:
        raise StepInvalid(f"for_each nests at most {NESTING_MAX} deep", at)
    operations = _compile(operation.get("operations"), f"{at}/operations", nesting + 1, operations_left)

    def element(value: Any, token: str, run: Run) -> Any:
        root = ElementRoot(value, run.budget.work)
        try:
            for each in operations:
                each.apply(root, run)
        except PathFault as fault:
            raise PathFault(fault.why, show((token,)) + fault.pointer) from None
        return root.element

    def change(value: Any, run: Run) -> Any:
        if isinstance(value, list):
            return [element(each, str(index), run) for index, each in enumerate(value)]
        if isinstance(value, dict):
            return {name: element(each, str(name), run) for name, each in value.items()}
        raise PathFault("only a list or an object has elements")

    return _on_value(path, change)


Maker = Callable[[Mapping[str, Json], str, int, list[int]], Made]

_MAKERS: Final[dict[str, tuple[Maker, frozenset[str]]]] = {
    "rename": (_rename, frozenset({"from", "to"})),
    "move": (_move, frozenset({"from", "to"})),
    "copy": (_copy, frozenset({"from", "to"})),
    "remove": (_remove, frozenset({"path"})),
    "set_default": (_set_default, frozenset({"path", "value"})),
    "map_values": (_map_values, frozenset({"path", "mapping", "otherwise"})),
    "convert": (_convert, frozenset({"path", "type"})),
    "split": (_split, frozenset({"from", "separator", "to"})),
    "join": (_join, frozenset({"from", "separator", "to"})),
    "wrap": (_wrap, frozenset({"path", "in"})),
    "unwrap": (_unwrap, frozenset({"path", "from"})),
    "for_each": (_for_each, frozenset({"path", "operations"})),
}
