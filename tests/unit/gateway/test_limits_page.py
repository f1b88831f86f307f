import re
from pathlib import Path

from gateway import problems, wire
from gateway.admission import limits
from gateway.bodies import validation
from gateway.documents import limits_page

ROOT = Path(__file__).parents[3]
ROWS = [limit for rows in limits_page.SECTIONS.values() for limit in rows]
NAMES = {limit.name for limit in ROWS}


def test_the_page_of_limits_is_up_to_date():
    assert (ROOT / "docs/limits.md").read_text() == limits_page.page(), "run python -m gateway.documents.limits_page"


def test_every_limit_that_a_problem_can_name_is_on_the_page():
    named = set(validation._LIMITS.values())
    for package in ("gateway", "storage"):
        for module in (ROOT / package).rglob("*.py"):
            text = module.read_text()
            named |= set(re.findall(r"(?:LimitExceeded|BodyTooLarge|HeadersTooLarge)\(\s*\"([A-Z_]+)\"", text))
            named |= set(re.findall(r"\blimit(?:: str)? ?= ?\"([A-Z_]+)\"", text))
    assert {"DEPTH_MAX", "KEPT_BYTES_MAX", "RESOLVED_BYTES_MAX", "HEADERS_MAX"} <= named  # the search finds them
    assert named - NAMES == set()


def test_every_limit_of_the_gateway_is_on_the_page_or_said_to_be_inner():
    there = {name for name in vars(limits) if re.fullmatch(r"[A-Z]+_[A-Z_]+", name)}
    assert sorted(there - NAMES - limits_page.INNER) == []
    assert sorted(limits_page.INNER - there) == []
    assert sorted(limits_page.INNER & NAMES) == []


def test_what_is_beyond_a_limit_is_a_code_or_a_sentence():
    assert [each.then for each in ROWS if each.then not in problems.KINDS and not each.then.endswith(".")] == []


def test_the_numbers_of_shapes_are_those_of_the_page():
    by_name = {limit.name: limit.source for limit in ROWS if isinstance(limit.source, int)}
    for (_, bound), name in validation._LIMITS.items():
        if bound.isdecimal() and name in by_name:
            assert by_name[name] == int(bound), name
    assert wire.base.NAME_BYTES_MAX == limits.NAME_BYTES_MAX
