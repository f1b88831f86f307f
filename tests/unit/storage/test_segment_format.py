"""What stays in the database of segments: sums and lists open at their place, and nowhere else."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.cold.archive import ArchiveRecord, Stub
from storage.format.cold.segment import ColdSums, ListedCheckpoint, SegmentList

AT = datetime(2026, 11, 25, 4, 5, 6, 789012, tzinfo=UTC)
SEALER = Sealer(UUID(int=1), UUID(int=2), "user", SubjectKeys({1: SecretKey(b"1" * 32)}, 1, SecretKey(b"2" * 32)))
LIFE = b"i" * 16
LISTED = SegmentList(
    [
        ListedCheckpoint.of("", "c1", b"\1" * 32, LiveSet(2, 7)),
        ListedCheckpoint.of("", "c2", b"\2" * 32, LiveSet()),
        ListedCheckpoint.of("sub|1", "c3", b"\xff" * 32, LiveSet(1, 2**256 - 1)),
    ],
    b"p" * 34,
)
STUB = Stub(
    thread_id="t",
    blob_id=UUID(int=3),
    activity=0,
    key_versions=[1],
    client_share=False,
    checkpoints=3,
    pending_writes=3,
    chunks=2,
    hot_bytes=100,
    size_bytes=200,
    run_ids=[],
    state_schemas=[],
    agents=["planner"],
    named_ids=None,
    storage_class="STANDARD",
    created_at=AT,
    key_version=1,
    sealed=b"",
    segment=2,
    volume=1,
    first_id="c1",
    last_id="c3",
)
RECORD = ArchiveRecord(b"k" * 32, 150, b"d" * 32)
SUMS = ColdSums(LIFE).with_segment(SEALER, STUB, LISTED)


def other(**columns):
    return msgspec.structs.replace(STUB, **columns)


def test_sums_are_of_what_is_listed():
    assert SUMS.of("") == LiveSet(2, int.from_bytes(b"\1" * 32) + int.from_bytes(b"\2" * 32))
    assert SUMS.of("sub|1").count == 1
    assert SUMS.of("nobody") == LiveSet()
    assert SUMS.writes == LiveSet(3, 6)
    assert SUMS.segments.count == 1
    assert SUMS.without_segment(SEALER, STUB, LISTED) == ColdSums(LIFE)


def test_a_segment_that_is_not_among_them_is_not_taken_away():
    for sums, stub in ((SUMS.without_segment(SEALER, STUB, LISTED), STUB), (ColdSums(LIFE), STUB)):
        with pytest.raises(IntegrityFailure):
            sums.without_segment(SEALER, stub, LISTED)


@pytest.mark.parametrize(
    "columns",
    [
        {"segment": 3},
        {"volume": 2},
        {"first_id": "c0"},
        {"last_id": "c4"},
        {"blob_id": UUID(int=4)},
        {"thread_id": "u"},
    ],
    ids=str,
)  # fmt: skip
def test_stubs_that_are_not_those_of_the_sums_are_found(columns):
    SUMS.compare(SEALER, [STUB])
    for stubs in ([other(**columns)], [], [STUB, STUB], [STUB, other(**columns)]):
        with pytest.raises(IntegrityFailure, match="segments were added"):
            SUMS.compare(SEALER, stubs)


def test_sums_open_at_their_thread_and_life_only_with_and_without_a_share():
    sealed = SUMS.seal(SEALER, "t", AT)
    for sealer in (SEALER, SEALER.with_share(b"s" * 32)):
        assert ColdSums.open(sealer, "t", AT, LIFE, sealed) == SUMS
    for thread_id, at, life in (("u", AT, LIFE), ("t", AT + timedelta(seconds=1), LIFE), ("t", AT, b"j" * 16)):
        with pytest.raises(IntegrityFailure):
            ColdSums.open(SEALER, thread_id, at, life, sealed)
    with pytest.raises(IntegrityFailure):
        ColdSums.open(SEALER, "t", AT, LIFE, sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_a_thread_without_segments_has_no_sums():
    assert ColdSums(LIFE).seal(SEALER, "t", AT) is None
    assert ColdSums.open(SEALER, "t", AT, LIFE, None) == ColdSums(LIFE)


def test_a_list_opens_at_its_segment_only_with_and_without_a_share():
    sealed = LISTED.seal(SEALER.with_share(b"s" * 32), STUB)
    assert SegmentList.open(SEALER, STUB, sealed) == LISTED
    assert LISTED.checkpoints[2].writes == LiveSet(1, 2**256 - 1)
    for stub in (other(segment=3), other(blob_id=UUID(int=4)), other(thread_id="u")):
        with pytest.raises(IntegrityFailure):
            SegmentList.open(SEALER, stub, sealed)
    with pytest.raises(IntegrityFailure, match="but not what says"):
        SegmentList.open(SEALER, STUB, None)


def test_what_is_of_a_newer_format_is_refused():
    newer = msgspec.structs.replace(LISTED, format=2)
    with pytest.raises(IntegrityFailure, match="newer"):
        SegmentList.open(SEALER, STUB, newer.seal(SEALER, STUB))


@pytest.mark.parametrize(
    "columns", [{"segment": 3}, {"volume": 2}, {"first_id": "c0"}, {"last_id": "c4"}, {"segment": 0}], ids=str
)
def test_the_range_of_a_stub_is_bound_into_what_opens_its_object(columns):
    sealed = STUB.sealing(SEALER, RECORD)
    assert other(sealed=sealed).record(SEALER) == RECORD
    with pytest.raises(IntegrityFailure):
        other(sealed=sealed, **columns).record(SEALER)
