"""Which segments are a volume: by their bytes, and by what a reader of it holds."""

from types import SimpleNamespace

from storage.archive.choosing import VOLUME_READ_BYTES_MAX, SegmentBounds, Volume
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


def test_a_volume_is_full_at_three_times_its_first_segment_but_not_before_8_mib():
    assert not BOUNDS.is_full(MIB, 8 * MIB - 1)
    assert BOUNDS.is_full(MIB, 8 * MIB)
    assert not BOUNDS.is_full(5 * MIB, 10 * MIB - 1)
    assert BOUNDS.is_full(5 * MIB, 10 * MIB)


def test_a_volume_has_room_for_what_a_reader_may_hold_with_its_pieces():
    volume = Volume(1, pieces_bytes=40 * MIB)
    assert BOUNDS.has_room(volume, VOLUME_READ_BYTES_MAX - 40 * MIB)
    assert not BOUNDS.has_room(volume, VOLUME_READ_BYTES_MAX - 40 * MIB + 1)
    assert VOLUME_READ_BYTES_MAX < ARCHIVE_READ_BYTES_MAX


def test_another_volume_repeats_no_more_than_what_was_or_is_added():
    assert BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=10), 1, 1000)
    assert BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=9), 500, 1000)
    assert not BOUNDS.repays(Volume(1, first_bytes=20, more_bytes=9), 499, 1000)
