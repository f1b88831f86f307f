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

# An evaluation takes 5 us and more, as long as looking at 20 values; a regular expression is compiled each time.
WORK: Final = 20
WORK_REGULAR_EXPRESSION: Final = 500

_NAMES: Final = frozenset({"value", "root"})
_TYPES: Final = frozenset({"string", "int", "uint", "double", "bool", "bytes", "list", "map", "null_type"})
_ITERATING: Final = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter|transformList|transformMap)\s*\(")


class Condition:
    """A compiled condition."""

    __slots__ = ("_names", "_program", "work")

    def __init__(self, program: "cel.Program", names: frozenset[str]) -> None:
        self._program = program
        self._names = names
        self.work = WORK + len(program.source) + WORK_REGULAR_EXPRESSION * program.source.count("matches")
        """What one evaluation costs, in values looked at."""

    def holds(self, value: Any, root: Callable[[], Any]) -> bool:
        """Whether the condition is true.

        Args:
            value: What the operation works on; None when it is absent.
            root: Gives the surrounding state; called only if the expression names it.

        Raises:
            PathFault: it has no truth value here, or would have to look at too much.
        """
        context: dict[str, Any] = {}
        if "value" in self._names:
            context["value"] = _plain(value, [NODES_MAX])
        if "root" in self._names:
            context["root"] = _plain(root(), [NODES_MAX])
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
    return Condition(program, frozenset(program.variables()) & _NAMES)


def _plain(tree: Any, left: list[int]) -> Any:
    """The tree as CEL knows it; extension values, which nobody looks into, are null."""
    left[0] -= 1
    if left[0] < 0:
        raise PathFault(f"a condition looks at no more than {NODES_MAX} values; put it on a smaller place")
    if isinstance(tree, dict):
        return {name: _plain(each, left) for name, each in tree.items() if isinstance(name, str | int | bool)}
    if isinstance(tree, msgpack.ExtType):
        return None
    if isinstance(tree, list | tuple):
        return [_plain(each, left) for each in tree]
    return float(tree) if isinstance(tree, float) else tree
