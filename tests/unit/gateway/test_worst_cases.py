"""A verb or a limit that nobody said the worst of is not finished (see `tests.victims.cases`)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gateway.admission import limits
from gateway.documents.limits_page import SECTIONS
from tests.support.operations import DECLARED
from tests.victims.cases import ALL, CASES, LIMITS, UNPUSHED, VERBS

ROOT = Path(__file__).parents[3]


def named_by_refusals() -> Iterator[str]:
    """The limits by which gateways refuse: those in a condition that raises, and in what it raises."""
    for package in ("gateway", "storage", "migrations/state"):
        for file in (ROOT / package).rglob("*.py"):
            if "cli" not in file.parts:
                for each in ast.walk(ast.parse(file.read_text())):
                    if isinstance(each, ast.If) and any(isinstance(then, ast.Raise) for then in each.body):
                        nodes = [*ast.walk(each.test), *(node for then in each.body for node in ast.walk(then))]
                        names = (getattr(node, "id", getattr(node, "attr", "")) for node in nodes)
                        yield from (name for name in names if re.fullmatch("[A-Z_]+_MAX", str(name)))


def test_every_verb_has_a_worst_case():
    assert VERBS.keys() == DECLARED.keys()
    assert not VERBS.keys() & CASES.keys()


def test_every_limit_has_a_worst_case_or_a_reason_to_have_none():
    own = {name for name in vars(limits) if re.fullmatch(r"[A-Z]+_[A-Z_]+", name)}
    shown = {limit.name for rows in SECTIONS.values() for limit in rows}
    refusing = {*named_by_refusals()}
    assert {"ADOPTIONS_MAX", "AGENT_SAVE_POLICIES_MAX", "VERSIONS_MAX"} <= refusing  # the search finds them
    assert sorted((own | shown | refusing) - LIMITS.keys() - UNPUSHED.keys()) == []
    assert sorted((LIMITS.keys() | UNPUSHED.keys()) - own - shown - refusing) == []
    assert not LIMITS.keys() & UNPUSHED.keys()
    assert set(LIMITS.values()) <= ALL.keys()
