"""A verb or a limit that nobody said the worst of is not finished (see `tests.victims.cases`)."""

from gateway import limits
from tests.support.operations import DECLARED
from tests.victims.cases import ALL, CASES, LIMITS, VERBS


def test_every_verb_and_every_limit_has_a_worst_case():
    named = {name for name, value in vars(limits).items() if name.isupper() and isinstance(value, int | float)}
    assert VERBS.keys() == DECLARED.keys()
    assert LIMITS.keys() == named
    assert set(LIMITS.values()) <= ALL.keys()
    assert not VERBS.keys() & CASES.keys()
