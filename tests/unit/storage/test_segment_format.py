"""What stays in the database of segments: sums and lists open at their place, and nowhere else."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from crypto import Kind, Sealer, SecretKey, SubjectKeys
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet, namespace_mac
from storage.format.cold.archive import ArchiveRecord, Stub
from storage.format.cold.segment import (
    ColdSums,
    Directory,
    ListedCheckpoint,
    ListedHead,
    MadeCheckpoint,
    SegmentList,
    cold_location,
    head_digest,
    may_need,
)

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
    place = ("segment-list", "t", 2, UUID(int=3))
    head = encode_msgpack(HEAD)
    for record in ([[], b"", 3], [[], b"", 2], [[], b"", 1, [msgspec.Raw(head)]], [[], b"", 3, [msgspec.Raw(head)]]):
        sealed = SEALER.seal(Kind.SEGMENT, place, encode_msgpack(record))
        with pytest.raises(IntegrityFailure, match="newer"):
            SegmentList.open(SEALER, STUB, sealed)
    nothing = [0, bytes(32)]
    for record in (
        [LIFE, {}, nothing, nothing, 2],
        [LIFE, {}, nothing, nothing, 1, [1, bytes(32)], nothing, bytes(32), b""],
    ):
        sealed = SEALER.seal(Kind.SEGMENT, cold_location("t", AT), encode_msgpack(record))
        with pytest.raises(IntegrityFailure, match="newer"):
            ColdSums.open(SEALER, "t", AT, LIFE, sealed)


def test_what_authenticates_and_is_no_record_is_damage():
    sealed = SEALER.seal(Kind.SEGMENT, ("segment-list", "t", 2, UUID(int=3)), b"\xc1")
    with pytest.raises(IntegrityFailure, match="cannot be read"):
        SegmentList.open(SEALER, STUB, sealed)


def test_an_object_that_is_exchanged_for_one_with_the_same_checkpoints_changes_no_other_sum():
    again = other(blob_id=UUID(int=9))
    exchanged = SUMS.with_object(SEALER, STUB, again)
    assert exchanged == ColdSums(LIFE).with_segment(SEALER, again, LISTED)
    with pytest.raises(IntegrityFailure):
        ColdSums(LIFE).with_object(SEALER, STUB, again)


# --- namespaces that are cold as a whole -----------------------------------------------------------------------------

EARLIER = ListedCheckpoint.of("sub|1", "b9", b"\7" * 32, LiveSet())
BEFORE = SegmentList([EARLIER], b"")
FIRST = other(segment=1, first_id="b9", last_id="b9")
HEAD = ListedHead.of("sub|1", "c3", 9, b"sealed", namespace_mac(SEALER, "sub|1"), LiveSet().add(EARLIER.member))
ENDED = SegmentList(LISTED.checkpoints, LISTED.piece_ids, [HEAD])


def cold():
    """Sums and directory after a namespace left, of which a checkpoint had left before."""
    directory = Directory().with_segment(STUB, ENDED)
    sums = ColdSums(LIFE).with_segment(SEALER, FIRST, BEFORE).with_segment(SEALER, STUB, ENDED)
    return sums.with_directory(SEALER, "t", directory), directory


def test_a_namespace_that_left_whole_is_counted_once_and_comes_back_as_it_was():
    sums, directory = cold()
    assert sums.of("sub|1") == LiveSet()
    assert sums.of("").count == 2
    assert sums.namespaces == LiveSet().add(namespace_mac(SEALER, "sub|1"))
    assert sums.heads == LiveSet().add(head_digest("sub|1", "c3", 9))
    assert sums.ended == LiveSet().add(EARLIER.member).add(LISTED.checkpoints[2].member)
    assert list(directory.segments_of(SEALER, "sub|1")) == [2]
    assert [*directory.segments_of(SEALER, "sub|2"), *directory.segments_of(SEALER, "")] == []

    left = directory.without_segment(STUB, ENDED)
    assert left == Directory()
    back = sums.without_segment(SEALER, STUB, ENDED).with_directory(SEALER, "t", left)
    assert back == ColdSums(LIFE).with_segment(SEALER, FIRST, BEFORE)
    assert back.without_segment(SEALER, FIRST, BEFORE) == ColdSums(LIFE)


def test_a_head_leaves_with_what_is_in_segments_of_its_namespace_only():
    with pytest.raises(IntegrityFailure, match="counts other checkpoints"):
        ColdSums(LIFE).with_segment(SEALER, STUB, ENDED)
    with pytest.raises(IntegrityFailure):
        SUMS.without_segment(SEALER, STUB, ENDED)


def test_a_directory_is_the_one_of_the_sums_and_of_the_thread():
    sums, directory = cold()
    assert Directory.open(SEALER, "t", sums, directory.entries) == directory
    for macs, thread_id, stored in (
        (SEALER, "t", None), (SEALER, "t", b""), (SEALER, "t", directory.entries[:-1] + b"\3"),
        (SEALER, "u", directory.entries), (SEALER, "t", directory.entries * 2),
    ):  # fmt: skip
        with pytest.raises(IntegrityFailure, match="where heads"):
            Directory.open(macs, thread_id, sums, stored)
    assert Directory.open(SEALER, "t", SUMS, None) == Directory()
    with pytest.raises(IntegrityFailure, match="where heads"):
        Directory.open(SEALER, "t", SUMS, directory.entries)


def test_a_directory_finds_each_of_many_namespaces():
    directory, expected, lists = Directory(), {}, {}
    for number in range(1, 40):
        stub = other(segment=number)
        names = [f"call:{number}-{each}" for each in range(number % 7)]
        heads = [ListedHead.of(each, "c", 1, b"", namespace_mac(SEALER, each), LiveSet()) for each in names]
        lists[number] = SegmentList([], b"", heads)
        directory = directory.with_segment(stub, lists[number])
        expected |= dict.fromkeys(names, number)
    assert {each: list(directory.segments_of(SEALER, each)) for each in expected} == {
        each: [number] for each, number in expected.items()
    }
    assert len(directory.entries) == 12 * len(expected)
    entries = [directory.entries[at : at + 12] for at in range(0, len(directory.entries), 12)]
    assert entries == sorted(entries)
    without = directory.without_segment(other(segment=5), lists[5])
    with pytest.raises(IntegrityFailure, match="does not know one"):
        without.without_segment(other(segment=5), lists[5])
    assert list(without.segments_of(SEALER, "call:5-1")) == []
    assert list(without.segments_of(SEALER, "call:6-1")) == [6]
    assert without.with_segment(other(segment=5), lists[5]) == directory
    for number in sorted(lists, reverse=True):
        directory = directory.without_segment(other(segment=number), lists[number])
    assert directory == Directory()


def test_sums_and_lists_with_heads_open_as_they_were_sealed():
    sums, _ = cold()
    assert ColdSums.open(SEALER, "t", AT, LIFE, sums.seal(SEALER, "t", AT)) == sums
    assert SegmentList.open(SEALER, STUB, ENDED.seal(SEALER, STUB)) == ENDED


# Sealed by the build that made segments first; and by the first one whose heads leave.
FORMAT_1 = {
    "list": (
        "c1535201010117010000000142ee5fd771e18a6e37755238fc032b4326d16aaf672573ad50a7ef4c3558d76685e55de6"
        "ddb7aed74209ca4ac791bf4baaa1ab857d27fb510ddf97e48c02ccd46cfc4c08e190cf0060919c0aee68559c6e46de37"
        "ac3c655d6db9fbfb111af07164b2bc7bf21cedd82aff34c96c57260582bdc1c987bb58d0c4c788c3d47e33fd456de9fd"
        "e4c82222b893279da05b465bdf5d19a597a40b00"
    ),
    "sums": (
        "c1535201010017010000000149ec4025d40f6f6586593106264ae9b626b3f16b557a98ff2e34a8745673742ec5df9b4b"
        "aa089fe70be76f3cd475680be6e73e00b11cf0d662a1116c66ebd3acd04f9f56e098cb8166c6c8ed7cd38be3410536f8"
        "c30ea5ab0667765abad17124958ed098b2e954c59b4351157f8be6cd5f51dd92f63b63dfcd62512dcf58129a93c2f911"
        "fc78fa8eeac222edc4d5495b681b233a162f422e43b9962c416fcfb8705625d9af6b0db2fc0079528148344ce1e8da97"
        "e3eb2f444ba6d25321c12feae6b1b0d59dde62e1fda5b1affd3bfcd58ebcefeb1041f68ae6b5eb7702dfc5676df14e7b"
        "eb30f030c0b88584ba7e37a2b55a9234e9631ce01c42898b"
    ),
}
FORMAT_2 = {
    "list": (
        "c153520101011701000000015ec1e1dab58894d86929518e9f6672faf9a5f1fb5c046b7caecf5820118b61933038a9dc"
        "debe6ca6024f70f161c41b9b207c3a8180b2a4a59323a5a1c6ed41b2bf621a32e5eed6edb04d9f2164d758f520b64d29"
        "ed97050893704ea0f3f72e22413ef6928b5f9a312080e53912c2cdb45bcb8ad35da76ffccda5c3368d2dd4e4f2084104"
        "0efba3fcfdd4d41e964577d1cd2fb8e05ec9532258a6a855159346b2567557d0ba4f9369f172272592862ed7ca1b3be8"
        "de8661fe2fc7bc1f625a368473e978349e34950944c2d537c84b"
    ),
    "sums": (
        "c15352010100170100000001b764030e4d87515c371b4df67891f3a5e0b132ec7e7b401eb8ce5695e8c0f6d071b885d9"
        "907ff9f25d9dbc700c0728bee6714bc5ce00122cc0d3d1ee15389cfa7c4e872d7b48b6700f3bd5ec8e0a9876eec3fa76"
        "2617e7b4c84834e70cd57bfb97918e7a907ec1f9ba2b16b32121492430975ca9b5f943839e3c8afc35cf3a04a9991892"
        "d357c16ea5d7cf58473e0ef43add8c3453ea75f47627370f338b60c6731d9ac5db37dd344e5f59dc2b5130ad69199af2"
        "f1bddad2e07f8e9803cfcb19254cf56aed10d1b86aeba4f42515b8cccde12772e924fbf0adb14fe44971aa1ab154a094"
        "eb00d2d4412de7ca45d6c07d92d5b326c2cbcc8f82696026b6cb23b25bcf0b92b9b46f1541d2e4fb4fc19793818a69c9"
        "11464c2fd8ce6cf4bbb961838c971f702d6fca519e9a265f67a5c4677f16b2732af63fb8c8fb33f54af77b0ea23913c2"
        "0200f2255c3cca029fbb91a490641fabe2f6917794b1e192999b"
    ),
}


def test_what_was_sealed_in_either_format_is_read():
    assert SegmentList.open(SEALER, STUB, bytes.fromhex(FORMAT_1["list"])) == LISTED
    assert ColdSums.open(SEALER, "t", AT, LIFE, bytes.fromhex(FORMAT_1["sums"])) == SUMS
    assert SegmentList.open(SEALER, STUB, bytes.fromhex(FORMAT_2["list"])) == ENDED
    assert ColdSums.open(SEALER, "t", AT, LIFE, bytes.fromhex(FORMAT_2["sums"])) == cold()[0]


def test_without_heads_nothing_is_sealed_otherwise_than_before():
    opened = SEALER.open(Kind.SEGMENT, ("segment-list", "t", 2, UUID(int=3)), LISTED.seal(SEALER, STUB))
    assert opened == encode_msgpack([LISTED.checkpoints, LISTED.piece_ids, 1])
    opened = SEALER.open(Kind.SEGMENT, cold_location("t", AT), SUMS.seal(SEALER, "t", AT))
    assert len(msgspec.msgpack.decode(opened)) == 5


@pytest.mark.parametrize("rebuilt_from", [[], ["", "b7"], ["a1", "a1"]], ids=str)
@pytest.mark.parametrize("listed", [LISTED, ENDED], ids=["plain", "heads"])
def test_a_list_says_what_its_checkpoints_are_rebuilt_from(listed, rebuilt_from):
    said = msgspec.structs.replace(listed, rebuilt_from=rebuilt_from)
    assert SegmentList.open(SEALER, STUB, said.seal(SEALER, STUB)) == said
    assert SegmentList.open(SEALER, STUB, listed.seal(SEALER, STUB)).rebuilt_from is None


@pytest.mark.parametrize("rebuilt_from", [None, [], ["", "b7"]], ids=str)
@pytest.mark.parametrize("listed", [LISTED, ENDED], ids=["plain", "heads"])
def test_a_list_says_how_its_checkpoints_were_made(listed, rebuilt_from):
    made = [MadeCheckpoint(None, -1, AT), MadeCheckpoint("c1", 0, AT), MadeCheckpoint(None, 7, AT)]
    said = msgspec.structs.replace(listed, rebuilt_from=rebuilt_from, made=made)
    sealed = said.seal(SEALER, STUB)
    assert SegmentList.open(SEALER, STUB, sealed) == said
    assert SegmentList.open(SEALER, STUB, listed.seal(SEALER, STUB)).made is None
    short = msgspec.structs.replace(said, made=made[:2])
    with pytest.raises(IntegrityFailure, match="other checkpoints"):
        SegmentList.open(SEALER, STUB, short.seal(SEALER, STUB))


def test_what_is_rebuilt_from_something_may_need_what_is_between():
    found = [
        may_need(["b1", "b5"], *ends) for ends in (("a", "b0"), ("a", "b1"), ("b3", "b4"), ("b5", "c"), ("c", "d"))
    ]
    assert found == [False, True, True, True, False]
    assert may_need(None, "a", "b")
    assert not may_need([], "a", "b")


def test_sums_are_without_checkpoints_that_are_gone():
    assert SUMS.without_checkpoints(SEALER, STUB, LISTED) == ColdSums(LIFE)
    sums, _ = cold()
    # The namespace goes on without what it had in the other segment, and its head says so.
    less = msgspec.structs.replace(HEAD, sequence=10, earlier_count=0, earlier_total=bytes(32))
    left = sums.without_checkpoints(SEALER, FIRST, BEFORE).with_head(HEAD, less)
    directory = Directory().with_segment(STUB, ENDED)
    again = msgspec.structs.replace(ENDED, heads=[less])
    assert left == ColdSums(LIFE).with_segment(SEALER, STUB, again).with_directory(SEALER, "t", directory)
    gone = left.without_checkpoints(SEALER, STUB, again).with_directory(SEALER, "t", Directory())
    assert gone == ColdSums(LIFE)


@pytest.mark.parametrize(
    "columns", [{"segment": 3}, {"volume": 2}, {"first_id": "c0"}, {"last_id": "c4"}, {"segment": 0}], ids=str
)
def test_the_range_of_a_stub_is_bound_into_what_opens_its_object(columns):
    sealed = STUB.sealing(SEALER, RECORD)
    assert other(sealed=sealed).record(SEALER) == RECORD
    with pytest.raises(IntegrityFailure):
        other(sealed=sealed, **columns).record(SEALER)
