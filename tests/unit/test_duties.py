"""The table of duties is true: every table of subjects is of a kind, and every cell names a test that there is."""

import re
from pathlib import Path

from storage.postgres.tables import metadata

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "duties.md").read_text()
KINDS, DUTIES = (
    [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    for block in re.findall(r"(?:^\|.*\n?)+", PAGE, re.MULTILINE)
)


def test_every_table_of_subjects_is_of_one_kind():
    named = [name for _, tables in KINDS for name in re.findall(r"`(\w+)`", tables)]
    of_subjects = [table.name for table in metadata.sorted_tables if "subject_id" in table.columns]
    assert sorted(named) == sorted(of_subjects)


def test_every_duty_of_every_kind_names_a_test_that_there_is():
    tests = {
        name
        for folder in ("tests", "sdk/python/tests")
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert len(DUTIES) > 10
    for duty, *cells in DUTIES:
        assert len(cells) == len(KINDS), duty
        for cell in cells:
            named = re.findall(r"`(test_\w+)`", cell)
            assert named, duty
            assert {*named} <= tests, duty
