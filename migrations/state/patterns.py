"""Regular expressions that tenants write: compiled once, bounded in size, matched in linear time.

The engine is Rust's ``regex``, which is also that of CEL's library and of JSON Schema's; it is reached through the
latter, because neither of them lets a program be compiled once and kept, and bounded, otherwise. That one reads the
classes of digits, blanks and words as JavaScript does, of ASCII; here they are what they are in CEL, of Unicode, and
are spelled out. It has no classes inside classes, nor what is left of one without another: those are refused.

It promises nothing about how long a text may be: matching is linear in that.
"""

import re
from typing import Final

import jsonschema_rs

# What one regular expression may take when it is compiled: `^.{1,255}$` takes 800 KiB, and 2 MiB take some 10 ms.
PATTERN_BYTES_MAX: Final = 2 * 1024 * 1024
# What the engine may keep of states it has seen while it matches; what does not fit is found again, in linear time.
DFA_BYTES_MAX: Final = 256 * 1024

_WORD: Final = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
_CLASSES: Final = {
    r"\d": r"\p{Nd}", r"\D": r"\P{Nd}", r"\s": r"\p{White_Space}", r"\S": r"\P{White_Space}", r"\w": _WORD,
    r"\W": f"[^{_WORD}]",
}  # fmt: skip
_TOKEN: Final = re.compile(r"\\.|\[\^?\]?|&&|--|~~|.", re.DOTALL)
_INSIDE_ONLY_REFUSED: Final = frozenset({"&&", "--", "~~", r"\W"})


class PatternInvalid(ValueError):
    """This is no regular expression of the engine, or it is larger than `PATTERN_BYTES_MAX`."""


class Pattern:
    """A compiled regular expression."""

    __slots__ = ("_validator",)

    def __init__(self, text: str) -> None:
        """Compile it.

        Raises:
            PatternInvalid: it cannot be, or is too large.
        """
        spelled = _spelled(text)
        options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=DFA_BYTES_MAX)
        try:
            self._validator = jsonschema_rs.Draft202012Validator({"pattern": spelled}, pattern_options=options)
        except ValueError:
            raise PatternInvalid from None

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere in a text."""
        return self._validator.is_valid(text)


def _spelled(text: str) -> str:
    """The regular expression with the classes of Unicode written out.

    Raises:
        PatternInvalid: a class has another one in it.
    """
    parts, inside = [], False
    for part in _TOKEN.findall(text):
        if not inside:
            parts.append(f"[{_WORD}]" if part == r"\w" else _CLASSES.get(part, part))
            inside = part.startswith("[")
        elif part.startswith("[") or part in _INSIDE_ONLY_REFUSED:
            raise PatternInvalid
        else:
            parts.append(_CLASSES.get(part, part))
            inside = part != "]"
    return "".join(parts)
