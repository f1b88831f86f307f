"""Conditions of declarative steps: CEL expressions, compiled once, over two names.

``value`` is what the operation is about to work on, ``root`` the state (or, inside ``for_each``, the element). The
language is the Common Expression Language (https://cel.dev): no side effects, no loops. Macros that iterate are refused
as well, so that an expression's cost is bounded by its own length and what it looks at. Regular expressions are written
out; each is taken from its literal as CEL reads it, compiled once, and matched in linear time (`patterns`).
"""

import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import msgpack

from migrations.state.errors import PathFault, StepInvalid
from migrations.state.patterns import PATTERN_BYTES_MAX, Pattern, PatternInvalid

# The package imports its command line with itself, and with that a toolkit for terminals: three fifths of the time that
# a worker takes to start and a third of its memory, for what is never called here. An empty module stands in meanwhile.
sys.modules["cel.cli"] = ModuleType("cel.cli")
import cel  # noqa: E402  as above

del sys.modules["cel.cli"]

EXPRESSION_CHARACTERS_MAX: Final = 500
# What of a state may be handed to an expression: 10,000 scalars convert in about 5 ms.
NODES_MAX: Final = 10_000

# An evaluation takes 5 us and more, as long as looking at 20 values, and so does each regular expression in it.
WORK: Final = 20

_NAMES: Final = frozenset({"value", "root"})
_TYPES: Final = frozenset({"string", "int", "uint", "double", "bool", "bytes", "list", "map", "null_type"})
_ITERATING: Final = frozenset(
    {"all", "exists", "exists_one", "existsOne", "map", "filter", "transformList", "transformMap"}
)
# The tokens of CEL (language definition, "Syntax"), as far as calls and literals have to be told from each other.
_TOKEN: Final = re.compile(
    r"""
    (?P<blank> \s+ | //[^\n]* )
    | (?P<text>
        [bB]?[rR] (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
        | [bB]? (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
      )
    | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_MATCHES: Final = "matches"
# What takes the place of `matches`: a function of the text and of which expression it is. None can spell it.
_MATCHING: Final = "stateroom_matches"


# Pure and of one argument's size; what an evaluation would not find is refused when it is registered.
FUNCTIONS: Final = frozenset(
    {
        "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bool", "bytes",
        "type", "min", "max",
    }
)  # fmt: skip


class Condition:
    """A compiled condition."""

    __slots__ = ("_names", "_patterns", "_program", "work")

    def __init__(self, program: "cel.Program", names: frozenset[str], patterns: Sequence[Pattern]) -> None:
        self._program = program
        self._names = names
        self._patterns = patterns
        self.work = WORK * (1 + len(patterns)) + len(program.source)
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
            context["value"] = _plain_within_bounds(value, spend)
        if "root" in self._names:
            context["root"] = _plain_within_bounds(root(), spend)
        matched = _Matching(self._patterns)
        try:
            answer = self._program.execute(cel.Context(context, {_MATCHING: matched.found}))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            raise PathFault("the condition cannot be evaluated on this state; guard it with has()") from None
        if matched.misused:
            raise PathFault("the condition matches something that is no text; guard it with type()")
        if not isinstance(answer, bool):
            raise PathFault("the condition is neither true nor false")
        return answer


class _Matching:
    """The regular expressions of one evaluation. What it raised would be written to stderr by CEL's library."""

    __slots__ = ("_patterns", "misused")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self.misused = False

    def found(self, text: Any, index: int) -> bool:
        if not isinstance(text, str):
            self.misused = True
            return False
        return self._patterns[index].found_in(text)


def compile_condition(expression: object, pointer: str) -> Condition:
    """Compile an expression.

    Raises:
        StepInvalid: it is not one of those allowed here.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise StepInvalid("a condition is a CEL expression, as text", pointer)
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise StepInvalid(f"a condition has at most {EXPRESSION_CHARACTERS_MAX} characters", pointer)
    program = _program(expression, pointer)
    unknown = set(program.variables()) - _NAMES - _TYPES
    if unknown:
        raise StepInvalid("a condition knows only 'value' and 'root'", pointer)
    plain, patterns = _without_patterns(expression, pointer)
    # Operators are functions, too, under names that no expression can spell. Nothing is known that CEL takes for a call
    # of `matches` and `_TOKEN` does not, or the other way round; should there be anything, it is refused.
    called = {name for name in program.functions() if name.isidentifier()}
    if not called <= FUNCTIONS or (_MATCHES in called) != bool(patterns):
        raise StepInvalid(f"a condition has only these functions: {', '.join(sorted(FUNCTIONS))}", pointer)
    if patterns:
        program = _program(plain, pointer)
    return Condition(program, frozenset(program.variables()) & _NAMES, patterns)


def _without_patterns(expression: str, pointer: str) -> tuple[str, list[Pattern]]:
    """The expression with a call of ours, by number, for each regular expression, and those, compiled.

    Raises:
        StepInvalid: one is not written out, or cannot be compiled; or the expression iterates.
    """
    tokens = [(each.lastgroup, each[0]) for each in _TOKEN.finditer(expression)]
    visible = [position for position, (kind, _) in enumerate(tokens) if kind != "blank"]
    patterns: list[Pattern] = []
    for place, position in enumerate(visible):
        kind, name = tokens[position]
        if kind != "word":
            continue
        before, after = visible[:place][-1:], visible[place + 1 : place + 4]
        called = [tokens[at][1] for at in before + after[:1]] == [".", "("]
        if called and name in _ITERATING:
            raise StepInvalid("a condition cannot iterate; use for_each", pointer)
        if name == _MATCHES:
            arguments = [tokens[at] for at in after[1:]]
            if not called or len(arguments) < 2 or arguments[0][0] != "text" or arguments[1][1] != ")":
                raise StepInvalid("a regular expression is written out: value.matches('...')", pointer)
            tokens[position] = ("word", _MATCHING)
            tokens[after[1]] = ("other", str(len(patterns)))
            patterns.append(_pattern(arguments[0][1], pointer))
    return "".join(text for _, text in tokens), patterns


def _program(expression: str, pointer: str) -> "cel.Program":
    try:
        return cel.compile(expression)
    except (ValueError, RecursionError):
        raise StepInvalid("the condition is not a CEL expression", pointer) from None


def _pattern(literal: str, pointer: str) -> Pattern:
    """The regular expression that a literal says, with its escapes resolved by the code that reads them later."""
    text = _program(literal, pointer).execute({})
    try:
        if isinstance(text, str):
            return Pattern(text)
    except PatternInvalid:
        pass
    why = f"this is no regular expression in linear time, or takes more than {PATTERN_BYTES_MAX} bytes when compiled"
    raise StepInvalid(why, pointer)


def _plain_within_bounds(tree: Any, spend: Callable[[int], None]) -> Any:
    nodes_left = [NODES_MAX]
    plain = _plain(tree, nodes_left, spend)
    spend(NODES_MAX - nodes_left[0])
    return plain


def _plain(tree: Any, nodes_left: list[int], spend: Callable[[int], None]) -> Any:
    """The tree as CEL knows it; extension values, which are not looked into, are null."""
    nodes_left[0] -= 1
    if nodes_left[0] < 0:
        raise PathFault(f"a condition looks at no more than {NODES_MAX} values; put it on a smaller place")
    if isinstance(tree, dict):
        return {
            name: _plain(each, nodes_left, spend) for name, each in tree.items() if isinstance(name, str | int | bool)
        }
    if isinstance(tree, msgpack.ExtType):
        return None
    if isinstance(tree, list | tuple):
        return [_plain(each, nodes_left, spend) for each in tree]
    if isinstance(tree, str | bytes):
        spend(len(tree) // 64)
    return float(tree) if isinstance(tree, float) else tree
