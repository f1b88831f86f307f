"""Regular expressions: they match what CEL's own function matches, and take no more than they may."""

import cel
import pytest

from migrations.state.patterns import Pattern, PatternInvalid

TEXTS = [
    "",
    "a",
    "\u00e9",
    "\u0663",
    "abc",
    "a b",
    "a\u00a0b",
    "a\nb",
    "x-1",
    "1234-12-12",
    "_",
    "\u00df",
    "A\u200db",
    "\u2028",
    "\u65e5\u672c",
    "a.b@c.de",
    "\ufeff",
    "$",
    "\\",
    "\u212a",
    "\u0001",
    "[",
    "]",
    "^",
]
PATTERNS = [
    r"^\w+$",
    r"\d",
    r"\D",
    r"^\s$",
    r"\S",
    r"[\w-]+$",
    r"[^\w]",
    r"\W",
    r"\bb",
    r"a\Bb",
    r"^.{1,3}$",
    r"(?i)ABC",
    r"(?s)a.b",
    r"a.b",
    r"(?m)^b$",
    r"^b$",
    r"\p{L}",
    r"\pL",
    r"\\",
    r"\\w",
    r"\$",
    r"a|b",
    r"(?P<x>a)",
    r"(?:a)",
    r"\x41",
    r"\x{41}",
    r"\A[a-z]+\z",
    r"[\d\s]",
    r"[^\d\s]",
    r"[^\D]",
    r"[\S]",
    r"(?x) a b # c",
    r"\t",
    r"\n",
    r"\-",
    r"(?-u)a",
    r"(?i)k",
    r"[\-a]",
    r"^$",
    r"a{2}",
    r"(a*)*",
    r"\.",
    r"\@",
    r"[]a]",
    r"[^]a]",
    r"[\]]",
    r"[\[]",
    r"(?i)\w",
    r"\d{4}-\d\d-\d\d",
    r"[",
    r"(",
    r"a**",
    r"*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_it_matches_in_cel(pattern):
    literal = pattern.replace("\\", "\\\\").replace("'", "\\'")
    program = cel.compile(f"value.matches('{literal}')")

    def in_cel(text):
        try:
            return program.execute({"value": text})
        except RuntimeError:
            return None

    try:
        mine = Pattern(pattern).found_in
    except PatternInvalid:
        mine = {}.get
    assert [mine(text) for text in TEXTS] == [in_cel(text) for text in TEXTS]


@pytest.mark.parametrize(
    "pattern", [r"\pL{190}", r"[\p{L}]{200}", r"(\w{100}){40}", "a{1000}{1000}", "[[:alpha:]]", r"[a&&b]", r"[\W]"]
)
def test_what_is_too_large_or_not_of_the_engine_is_refused(pattern):
    with pytest.raises(PatternInvalid):
        Pattern(pattern)
