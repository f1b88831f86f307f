"""Which segments are a volume: by their bytes, and by what a reader of it holds."""

from types import SimpleNamespace

import pytest

from storage.archive.choosing import VOLUME_READ_BYTES_MAX, SegmentBounds, Volume, runs_of, stuck_in
from storage.tiers.views import ARCHIVE_READ_BYTES_MAX

MIB = 1024 * 1024
BOUNDS = SegmentBounds()


def segment(number, volume, hot_bytes, chunks):
    return SimpleNamespace(segment=number, volume=volume, hot_bytes=hot_bytes, chunks=chunks)


def test_a_volume_adds_up_what_its_segments_have():
    first = Volume().with_segment(segment(3, 3, 1000, 2), frozenset({b"a"}))
    both = first.with_segment(segment(4, 3, 500, 1), frozenset({b"b"}))
    assert (both.number, both.first_bytes, both.more_bytes) == (3, 1000, 500)
    assert both.pieces_bytes == 1500 + 3 * 512
    assert both.piece_ids == {b"a", b"b"}
    assert both.with_segment(segment(5, 5, 7, 0), frozenset({b"c"})).piece_ids == {b"c"}


def test_a_volume_is_full_when_8_mib_were_added_to_its_first_segment():
    assert not BOUNDS.is_full(Volume(1, 20 * MIB, 8 * MIB - 1))
    assert BOUNDS.is_full(Volume(1, 20 * MIB, 8 * MIB))


def test_another_volume_repeats_at_most_three_eighths_of_one():
    assert BOUNDS.may_repeat(Volume(1, 5 * MIB, 11 * MIB), 6 * MIB)
    assert not BOUNDS.may_repeat(Volume(1, 5 * MIB, 11 * MIB), 6 * MIB + 1)


@pytest.mark.parametrize("added", [MIB // 3, MIB, 5 * MIB])
@pytest.mark.parametrize("named_on", [0, MIB, 4 * MIB, 40 * MIB, 4000 * MIB])
def test_all_volumes_take_less_than_1_6_times_what_is_in_them_once(added, named_on):
    volume, once, stored = Volume(), 0, 0
    for number in range(1, 400):
        repeated = min(named_on, once)
        if BOUNDS.is_full(volume) and BOUNDS.may_repeat(volume, repeated):
            volume = Volume()
        size = added if volume.number else added + repeated
        volume = volume.with_segment(segment(number, volume.number or number, size, 0), frozenset())
        once, stored = once + added, stored + size
        assert stored <= 1.6 * once


def test_a_volume_has_room_for_what_a_reader_may_hold_with_its_pieces():
    volume = Volume(1, pieces_bytes=40 * MIB)
    assert BOUNDS.has_room(volume, VOLUME_READ_BYTES_MAX - 40 * MIB)
    assert not BOUNDS.has_room(volume, VOLUME_READ_BYTES_MAX - 40 * MIB + 1)
    assert VOLUME_READ_BYTES_MAX < ARCHIVE_READ_BYTES_MAX


def test_another_volume_repeats_no_more_than_what_was_or_is_added():
    assert BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=10), 1, 1000)
    assert BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=9), 500, 1000)
    assert not BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=9), 499, 1000)


class Ranges:
    """Segments, of which nothing but the ranges is known."""

    def __init__(self, **ranges):
        self._all = [segment_over(int(name[1:]), *ids) for name, ids in ranges.items()]

    def before(self, checkpoint_id):
        return next((each for each in reversed(self._all) if each.first_id <= checkpoint_id), None)

    def around(self, checkpoint_id):
        found = self.before(checkpoint_id)
        return found if found is not None and checkpoint_id <= found.last_id else None


def segment_over(number, first_id, last_id):
    return SimpleNamespace(segment=number, first_id=first_id, last_id=last_id)


def test_no_part_of_what_goes_has_the_range_of_a_segment_in_it():
    ranges = Ranges(s1="ce", s2="hk")
    doomed = {"": {"a", "d", "f", "i"}, "sub": {"b", "g", "l"}}
    runs = [[("", "a"), ("sub", "b")], [("", "f"), ("sub", "g")], [("sub", "l")]]
    assert list(runs_of(doomed, ranges)) == runs
    assert stuck_in(doomed, ranges) == {1: 1, 2: 1}
    assert list(runs_of({}, ranges)) == []


def test_segments_come_back_for_more_than_a_few_and_no_more_than_need_be():
    bounds = SegmentBounds(stuck_max=10)
    assert bounds.coming_back({1: 4, 2: 6}) == []
    assert bounds.coming_back({1: 4, 2: 6, 3: 1}) == [2]
    assert bounds.coming_back({1: 4, 2: 4, 3: 4, 4: 1}) == [2, 1]
