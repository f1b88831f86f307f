"""Which volumes of segments go, with which others and before which."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from storage.archive.volumes_that_go import Kept, volumes_that_go
from storage.statements.threads.archives import SegmentRow

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def kept(segment, volume=None, first_id=None, last_id=None, *, days=9, **said):
    """A segment with the ids that begin with its number, unless others are given."""
    first_id, last_id = first_id or f"{segment}a", last_id or f"{segment}z"
    row = SegmentRow("t", segment, volume or segment, first_id, last_id, UUID(int=segment), 1, 0, 0, 0, [], [])
    said = {name: frozenset(each) if name in {"parted", "strays"} else each for name, each in said.items()}
    return Kept(row, NOW - timedelta(days=days), **said)


def going(*segments, needs=(), days=5):
    groups = volumes_that_go(segments, NOW - timedelta(days=days), needs)
    return [[each.segment.segment for each in group] for group in groups]


def test_a_volume_goes_when_all_of_it_is_old_enough():
    assert going() == []
    assert going(kept(1), kept(2)) == [[1], [2]]
    assert going(kept(1, 1), kept(2, 1), kept(3)) == [[1, 2], [3]]
    assert going(kept(1, 1), kept(2, 1, days=4), kept(3)) == [[3]]
    assert going(kept(1, 1), kept(2, 1, days=5)) == [], "of that moment is not before it"


def test_what_stays_keeps_what_it_is_rebuilt_from_and_so_on():
    young = kept(4, days=1, rebuilt_from=["3b", "3b"])
    assert going(kept(1), kept(2), kept(3), young) == [[1], [2]]
    assert going(kept(1), kept(2), kept(3, rebuilt_from=["1z", "1z"]), young) == [[2]]
    assert going(kept(1), kept(2, 2), kept(3, 2, rebuilt_from=["2b", "2c"]), young) == [[1]]
    assert going(kept(1), kept(2), kept(3, days=1, rebuilt_from=["", "1a"])) == [[2]]
    assert going(kept(1), kept(2, days=1, rebuilt_from=["3b", "3b"]), kept(3)) == [[1]], "an id need not be less"


def test_a_list_that_does_not_say_it_may_need_everything():
    assert going(kept(1), kept(2), kept(3, days=1, rebuilt_from=None)) == []
    assert going(kept(1), kept(2, rebuilt_from=None)) == [[1, 2]]
    assert going(kept(1, rebuilt_from=None), kept(2)) == [[1], [2]]


@pytest.mark.parametrize(("needs", "expected"), [("2b", [[3]]), ("1a", [[2], [3]]), ("0", [[1], [2], [3]]), ("9", [])])
def test_what_is_in_the_database_keeps_what_it_may_be_rebuilt_from(needs, expected):
    assert going(kept(1), kept(2), kept(3), needs=[needs]) == expected


def test_a_head_stays_for_what_a_volume_that_stays_has_of_its_namespace():
    assert going(kept(1, days=1, strays={"n"}), kept(2, parted={"n"})) == []
    assert going(kept(1, days=1, strays={"n"}), kept(2, parted={"m"})) == [[2]]
    assert going(kept(1, strays={"n"}), kept(2, days=1, parted={"n"})) == [[1]]
    assert going(kept(1, strays={"n"}), kept(2, parted={"n"})) == [[1], [2]]


def test_volumes_of_which_neither_can_go_first_go_together():
    parts = kept(1, strays={"n"}), kept(2), kept(3, parted={"n"}, rebuilt_from=["1b", "1b"]), kept(4)
    assert going(*parts) == [[1, 2, 3], [4]]
    assert going(kept(1, parted={"n"}), kept(2, strays={"n"}), kept(3)) == [[1, 2], [3]]
