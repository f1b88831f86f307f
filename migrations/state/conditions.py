"""Conditions of declarative steps: CEL expressions, compiled once, over two names.

``value`` is what the operation is about to work on, ``root`` the state (or, inside ``for_each``, the element). The
language is the Common Expression Language (https://cel.dev): no side effects, no loops. Macros that iterate are refused
as well, so that an expression's cost is bounded by its own length and what it looks at; regular expressions match in
linear time.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import cel
import msgpack

from migrations.state.errors import PathFault, StepInvalid

EXPRESSION_CHARACTERS_MAX: Final = 500
# What of a state may be handed to an expression: 10,000 scalars convert in about 5 ms.
NODES_MAX: Final = 10_000

# An evaluation takes 5 us and more, as long as looking at 20 values. A regular expression is compiled each time: what
# its parts cost, repeated as often as it counts, and how much of that is accepted (about 25 ms).
WORK: Final = 20
WORK_REGULAR_EXPRESSION: Final = 500
WORK_REGULAR_EXPRESSION_MAX: Final = 100_000
_WORK_CHARACTER: Final = 20
_WORK_CLASS: Final = 500
_WORK_UNICODE_CLASS: Final = 5_000
_MATCHES: Final = re.compile(r"""\.\s*matches\s*\(\s*r?("[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*')\s*\)""")
_COUNTED: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")

_NAMES: Final = frozenset({"value", "root"})
_TYPES: Final = frozenset({"string", "int", "uint", "double", "bool", "bytes", "list", "map", "null_type"})
_ITERATING: Final = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter|transformList|transformMap)\s*\(")


# Pure and of one argument's size; what an evaluation would not find is refused when it is registered.
FUNCTIONS: Final = frozenset(
    {
        "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bool", "bytes",
        "type", "min", "max",
    }
)  # fmt: skip


class Condition:
    """A compiled condition."""

    __slots__ = ("_names", "_program", "work")

    def __init__(self, program: "cel.Program", names: frozenset[str], work: int) -> None:
        self._program = program
        self._names = names
        self.work = WORK + len(program.source) + work
        """What one evaluation costs, in values looked at, beside what it is given."""

    def holds(self, value: Any, root: Callable[[], Any], spend: Callable[[int], None]) -> bool:
        """Whether the condition is true.

        Args:
            value: What the operation works on; None when it is absent.
            root: Gives the surrounding state; called only if the expression names it.
            spend: Counts what the expression is given, and raises when that is too much.

        Raises:
            PathFault: it has no truth value here, or would have to look at too much.
        """
        context: dict[str, Any] = {}
        if "value" in self._names:
            context["value"] = _given(value, spend)
        if "root" in self._names:
            context["root"] = _given(root(), spend)
        try:
            answer = self._program.execute(context)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            raise PathFault("the condition cannot be evaluated on this state; guard it with has()") from None
        if not isinstance(answer, bool):
            raise PathFault("the condition is neither true nor false")
        return answer


def compile_condition(expression: object, pointer: str) -> Condition:
    """Compile an expression.

    Raises:
        StepInvalid: it is not one of those allowed here.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise StepInvalid("a condition is a CEL expression, as text", pointer)
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise StepInvalid(f"a condition has at most {EXPRESSION_CHARACTERS_MAX} characters", pointer)
    if _ITERATING.search(expression):
        raise StepInvalid("a condition cannot iterate; use for_each", pointer)
    try:
        program = cel.compile(expression)
    except (ValueError, RecursionError):
        raise StepInvalid("the condition is not a CEL expression", pointer) from None
    unknown = set(program.variables()) - _NAMES - _TYPES
    if unknown:
        raise StepInvalid("a condition knows only 'value' and 'root'", pointer)
    # Operators are functions, too, under names that no expression can spell.
    foreign = [name for name in program.functions() if name.isidentifier() and name not in FUNCTIONS]
    if foreign:
        raise StepInvalid(f"a condition has only these functions: {', '.join(sorted(FUNCTIONS))}", pointer)
    return Condition(program, frozenset(program.variables()) & _NAMES, _regular_expressions(program, pointer))


def _regular_expressions(program: "cel.Program", pointer: str) -> int:
    """What the regular expressions of a program cost each time.

    Raises:
        StepInvalid: one is not written out, or counts too far.
    """
    if "matches" not in program.functions():
        return 0
    patterns = [each[1:-1] for each in _MATCHES.findall(program.source)]
    if len(patterns) != program.source.count("matches"):
        raise StepInvalid("a regular expression is written out: value.matches('...')", pointer)
    work = sum(WORK_REGULAR_EXPRESSION + _work_of(each) for each in patterns)
    if work > WORK_REGULAR_EXPRESSION_MAX:
        raise StepInvalid("the regular expressions count too far, or have too many classes of characters", pointer)
    return work


def _work_of(pattern: str) -> int:
    """About what compiling a regular expression takes: counted repetitions are written out by the compiler."""
    groups, last, at = [0], 0, 0
    # Without regard to case, and in the classes of Unicode, each character stands for many.
    character = _WORK_CLASS if "(?" in pattern else _WORK_CHARACTER
    while at < len(pattern):
        counted = _COUNTED.match(pattern, at)
        if counted:
            groups[-1] += last * max(int(counted[3] or 0), int(counted[1] or 0), 1)
            last *= max(int(counted[3] or 0), int(counted[1] or 0), 1)
            at = counted.end()
            continue
        each = pattern[at]
        at += 1
        if each == "\\" and at < len(pattern):
            while at < len(pattern) and pattern[at] == "\\":  # as CEL's text writes a backslash, too
                at += 1
            named = pattern[at : at + 1]
            at += 1
            last = _WORK_UNICODE_CLASS if named in "wWbBpP" else _WORK_CLASS
        elif each == "(":
            groups.append(0)
            continue
        elif each == ")" and len(groups) > 1:
            last = groups.pop()
        else:
            last = _WORK_CLASS if each in ".^" else character
        groups[-1] += last
    return sum(groups)


def _given(tree: Any, spend: Callable[[int], None]) -> Any:
    left = [NODES_MAX]
    plain = _plain(tree, left, spend)
    spend(NODES_MAX - left[0])
    return plain


def _plain(tree: Any, left: list[int], spend: Callable[[int], None]) -> Any:
    """The tree as CEL knows it; extension values, which nobody looks into, are null."""
    left[0] -= 1
    if left[0] < 0:
        raise PathFault(f"a condition looks at no more than {NODES_MAX} values; put it on a smaller place")
    if isinstance(tree, dict):
        return {name: _plain(each, left, spend) for name, each in tree.items() if isinstance(name, str | int | bool)}
    if isinstance(tree, msgpack.ExtType):
        return None
    if isinstance(tree, list | tuple):
        return [_plain(each, left, spend) for each in tree]
    if isinstance(tree, str | bytes):
        spend(len(tree) // 64)
    return float(tree) if isinstance(tree, float) else tree
