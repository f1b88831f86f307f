"""The content of an export: its bytes, what a record may say, and how a stream is taken apart."""

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.encoding import encode_msgpack
from storage.errors import ImportRefused
from storage.format import export
from storage.format.export import (
    RECORD_BYTES_MAX,
    AdoptionRecord,
    ArtifactRecord,
    Beginning,
    Broken,
    CheckpointRecord,
    Data,
    EffectRecord,
    End,
    Ending,
    FloorRecord,
    Frames,
    Head,
    ItemRecord,
    LeftOut,
    LinkRecord,
    Opening,
    PathEnding,
    PathRecord,
    PathsLeftOut,
    PendingRecord,
    PieceRecord,
    PolicyRecord,
    RunningDigest,
    SavePolicyRecord,
    Schema,
    VectorsRecord,
)
from storage.format.leaves import PIECE_ID_BYTES, placeholder
from storage.format.manifest import ChannelRecord
from storage.format.pieces import COMPOSITE, ELEMENTS, INDEX, LEAF, SEGMENT, write_composite

AT = datetime(2026, 11, 25, 2, 30, 0, 123456, tzinfo=UTC)
ID = UUID(int=7)
DIGEST = bytes(32)
# In the order of the numbers that docs/formats/export.md gives them.
RECORDS = [
    Opening(2, ID, "tenant", ID, ID, AT),
    Schema("travel", 1, b"{}"),
    Beginning(
        DIGEST, "user-1", "trip-7", "planner", "active", strict=True, client_share=False, created_at=AT, updated_at=AT,
    ),
    ArtifactRecord(
        ID, "trip-7", "map.png", 3, "image/png", b"{}", b"preview", DIGEST, 5, client_share=False, created_at=AT,
    ),
    PieceRecord(SEGMENT, [], 5, b"bytes"),
    Data(b"bytes"),
    PendingRecord(
        "", "c1", "task", -1, "", "messages", None, AT, [0], None, "travel", 1, "msgpack", (b"\x91", [0], 1), b"\x90",
    ),
    CheckpointRecord(
        "", "c1", None, 0, "active", None, "loop", "planner", "run", "model", "travel", 1, 10, 20, None, AT, [0], None,
        [ChannelRecord("messages", 1, "msgpack", (b"\x91", [0], 1)), ChannelRecord("n", "v1", "msgpack", b"\x01")],
        {"step": 1}, {"name": "model"}, ("messages",),
    ),
    Head("", "c1", 7),
    Ending(1, 1, 1, 1, DIGEST),
    LeftOut("user-1", "trip-8", "client-share"),
    End(1, 1, DIGEST, 2, 1),
    PolicyRecord("agent", "planner", b"{}"),
    AdoptionRecord("planner", "*", 1, "travel", 1, AT),
    Broken("damaged"),
    SavePolicyRecord("", strict=True),
    LinkRecord("trip-7", "", None),
    PathRecord("user-1", ["memories", "nul \0"], client_share=False, sequence=7),
    ItemRecord("seat", "msgpack", b"\x80", 7, 60, AT, AT, AT),
    PathEnding(1, 1, 1, 2, DIGEST),
    PathsLeftOut("user-1", "damaged", 1, ["memories"]),
    VectorsRecord("example-embed", 2, bytes(14)),
    FloorRecord("user-1", 7),
    EffectRecord(
        "", "call-1", 1, 2, "once", "done", "pay", [""], None, 1, "call-0", ID, "c1", "run", AT, AT, AT, "key-1",
        None, "stored", 1, None, DIGEST, None, b"\x80", b"\x01",
    ),
]  # fmt: skip
OPENING, SCHEMA, BEGINNING, ARTIFACT, PIECE, DATA, PENDING, CHECKPOINT, HEAD, ENDING, LEFT_OUT, END, *_ = RECORDS
PATH, ITEM, PATH_ENDING, PATHS_LEFT_OUT, VECTORS, FLOOR, EFFECT = RECORDS[-7:]


def change(record, **members):
    return msgspec.structs.replace(record, **members)


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "record"), [*enumerate(RECORDS, 1)], ids=[type(each).__name__ for each in RECORDS])
def test_a_record_is_an_array_that_begins_with_its_number(number, record):
    encoded = export.encode(record)
    first, *members = msgpack.unpackb(encoded, timestamp=3)
    assert (first, len(members)) == (number, len(record.__struct_fields__))
    assert export.decode(encoded) == record


def test_the_bytes_of_records_are_these():
    assert export.encode(HEAD).hex(" ") == "94 09 a0 a2 63 31 07"
    assert export.encode(DATA).hex(" ") == "92 06 c4 05 62 79 74 65 73"
    assert export.frame(export.encode(HEAD)).hex(" ") == "00 00 00 07 00 00 00 07 94 09 a0 a2 63 31 07"


@pytest.mark.parametrize(
    "record",
    [
        change(HEAD, head_id=""),
        change(HEAD, head_id="x" * 256),
        change(HEAD, head_id="nul\0"),
        change(HEAD, namespace="x" * 1025),
        change(HEAD, sequence=0),
        change(HEAD, sequence=2**62 + 1),
        change(LEFT_OUT, reason="weather"),
        change(ENDING, pieces=-1),
        change(ENDING, pieces=2**53),
        change(ENDING, digest=bytes(31)),
        change(ENDING, digest=bytes(33)),
        change(BEGINNING, created_at=AT.replace(tzinfo=None)),
        change(BEGINNING, status="asleep"),
        change(BEGINNING, strict=1),
        change(ARTIFACT, number=0),
        change(ARTIFACT, name="x" * 256),
        change(ARTIFACT, preview=bytes(4097)),
        change(PIECE, kind=5),
        change(PIECE, size=export.PIECE_BYTES_MAX + 1),
        change(PIECE, data=bytes(export.SLICE_BYTES + 1)),
        change(PIECE, children=[-1]),
        change(DATA, data=b""),
        change(DATA, data=bytes(export.SLICE_BYTES + 1)),
        change(PENDING, idx=2**31),
        change(PENDING, named_ids=bytes(15)),
        change(PENDING, body=7),
        change(CHECKPOINT, cost_micros=2**63),
        change(CHECKPOINT, channels=[["messages", 1, "msgpack"]]),
        change(SCHEMA, number=2**31),
        change(SCHEMA, definition=bytes(1024 * 1024 + 1)),
        change(OPENING, kind="deployment"),
        change(OPENING, export_id="7"),
        change(END, paths=-1),
        change(PATH, labels=[]),
        change(PATH, labels=[""]),
        change(PATH, labels=["x" * 256]),
        change(PATH, labels=["x"] * 256),
        change(PATH, sequence=0),
        change(ITEM, key="x" * 256),
        change(ITEM, data=b""),
        change(ITEM, data=bytes(export.SLICE_BYTES + 1)),
        change(ITEM, revision=0),
        change(ITEM, revision=2**62),
        change(ITEM, ttl_seconds=0),
        change(ITEM, ttl_seconds=2**31),
        change(ITEM, expires_at=AT.replace(tzinfo=None)),
        change(PATH_ENDING, damaged=-1),
        change(PATH_ENDING, vectors_damaged=-1),
        change(PATHS_LEFT_OUT, reason="archived"),
        change(VECTORS, model=""),
        change(VECTORS, model="x" * 256),
        change(VECTORS, dimensions=0),
        change(VECTORS, dimensions=2**16),
        change(VECTORS, data=b""),
        change(VECTORS, data=bytes(export.SLICE_BYTES + 1)),
        change(FLOOR, floor=0),
        change(FLOOR, floor=2**62),
        change(EFFECT, name=""),
        change(EFFECT, execution=0),
        change(EFFECT, attempt=2**31),
        change(EFFECT, mode="twice"),
        change(EFFECT, status="started"),
        change(EFFECT, identity=[]),
        change(EFFECT, identity=[""] * 33),
        change(EFFECT, finished_at=None),
        change(EFFECT, result_digest=bytes(31)),
        change(EFFECT, args=b""),
        change(EFFECT, args=bytes(export.SLICE_BYTES + 1)),
        change(EFFECT, result=bytes(export.SLICE_BYTES + 1)),
    ],
)
def test_a_record_that_says_what_none_may_say_is_refused(record):
    with pytest.raises(ImportRefused, match="says what none may say"):
        export.decode(encode_msgpack(record))


def test_members_that_came_later_are_left_out_where_they_say_nothing():
    """So what an older build exported has the same digest when it is exported again."""
    assert len(msgpack.unpackb(export.encode(change(PENDING, leaves=None)), timestamp=3)) == 15
    assert len(msgpack.unpackb(export.encode(change(END, paths=None, paths_left_out=None)), timestamp=3)) == 4
    assert len(msgpack.unpackb(export.encode(change(END, paths=None)), timestamp=3)) == 6
    channels = [
        ChannelRecord("old", 1, "msgpack", b"\x01"),
        ChannelRecord("counted", 1, "msgpack", b"\x01", None, 1),
        ChannelRecord("noted", 1, "msgpack", b"\x01", None, None, b"\x90"),
    ]
    encoded = export.encode(change(CHECKPOINT, channels=channels))
    assert [len(each) for each in msgpack.unpackb(encoded, timestamp=3)[19]] == [5, 6, 7]
    assert export.decode(encoded).channels == channels


@pytest.mark.parametrize(
    "record",
    [
        change(HEAD, head_id="x" * 255, namespace="x" * 1024, sequence=2**62),
        change(ENDING, pieces=2**53 - 1),
        change(PENDING, idx=-(2**31), named_ids=bytes(16)),
        change(CHECKPOINT, input_tokens=-(2**63), output_tokens=2**63 - 1, step=2**31 - 1),
        change(PIECE, kind=COMPOSITE, size=export.PIECE_BYTES_MAX, data=None),
        change(DATA, data=bytes(export.SLICE_BYTES)),
        change(BEGINNING, created_at=AT.astimezone(timezone(timedelta(hours=5)))),
        change(BEGINNING, source=b"", agent=None),
        change(LEFT_OUT, thread_id="a line\n"),
        change(ITEM, key="", ttl_seconds=None, expires_at=None, revision=2**62 - 1),
        change(PATHS_LEFT_OUT, paths=0, labels=None),
    ],
)
def test_a_record_may_be_as_large_as_this(record):
    assert export.decode(export.encode(record)) == record


def test_a_record_of_a_newer_release_is_refused_by_its_number():
    with pytest.raises(ImportRefused, match="records of kind 25, which a newer release writes"):
        export.decode(encode_msgpack([25, "anything"]))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgpack.packb([17, "of a newer format"]),
        msgpack.packb({"type": 9}),
        export.encode(HEAD)[:-1],
        export.encode(HEAD) + b"\0",
        export.encode(change(CHECKPOINT, metadata={"x": None})).replace(b"\xa1x\xc0", b"\xa1x" + b"\x91" * 5000),
    ],
    ids=["nothing", "no msgpack", "no number", "another number", "no array", "cut", "more", "nested"],
)  # fmt: skip
def test_what_is_no_record_is_refused(encoded):
    with pytest.raises(ImportRefused, match="cannot be read"):
        export.decode(encoded)


# --- the stream ------------------------------------------------------------------------------------------------------

ENCODED = [export.encode(each) for each in RECORDS] + [
    export.encode(Data(b"text " * 1000)),
    export.encode(Data(bytes(3))),
]
STREAM = b"".join(map(export.frame, ENCODED))


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_records_come_out_whole_in_whatever_pieces_the_stream_comes(cuts):
    frames, found, at = Frames(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += frames.take(STREAM[at:cut])
        at = cut
    assert found == ENCODED
    assert frames.held_bytes == 0


def test_what_is_here_of_a_record_is_held():
    frames = Frames()
    assert list(frames.take(STREAM[:5])) == []
    assert frames.held_bytes == 5
    assert list(frames.take(STREAM[5:-1])) == ENCODED[:-1]
    assert frames.held_bytes == len(export.frame(ENCODED[-1])) - 1


def test_a_long_record_is_compressed_alone_and_one_that_does_not_become_shorter_is_not():
    encoded = export.encode(Data(b"text " * 1000))
    framed = export.frame(encoded)
    assert framed[0] & 0x80
    assert len(framed) < 200
    assert int.from_bytes(framed[4:8]) == len(encoded)
    noise = export.encode(Data(hashlib.shake_256(b"noise").digest(5000)))
    assert export.frame(noise)[8:] == noise


def framed(body_bytes, raw_bytes, body=b"", *, compressed=False):
    return (body_bytes | compressed << 31).to_bytes(4) + raw_bytes.to_bytes(4) + body


@pytest.mark.parametrize(
    "frame",
    [
        framed(RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX + 1),
        framed(7, RECORD_BYTES_MAX + 1, compressed=True),
        framed(8, 7),
        framed(7, 8),
        framed(7, 7, compressed=True),
        framed(8, 7, compressed=True),
    ],
    ids=["too long", "inflates to too much", "longer", "shorter", "compressed to its length", "compressed to more"],
)
def test_a_frame_that_none_can_be_is_refused_before_its_record_is_here(frame):
    with pytest.raises(ImportRefused, match="longer than any may be"):
        list(Frames().take(frame))


def test_a_frame_that_is_at_the_bound_is_waited_for():
    frames = Frames()
    assert list(frames.take(framed(RECORD_BYTES_MAX, RECORD_BYTES_MAX))) == []
    assert frames.held_bytes == 8


def test_a_record_that_does_not_inflate_to_what_its_frame_says_is_refused():
    body = export.frame(export.encode(Data(b"text " * 1000)))[8:]
    for frame in (framed(len(body), 6000, body, compressed=True), framed(5, 10, b"noise", compressed=True)):
        with pytest.raises(ImportRefused, match="inflated"):
            list(Frames().take(frame))


# --- digests ---------------------------------------------------------------------------------------------------------


def test_a_digest_is_over_records_and_where_they_end():
    digest = RunningDigest()
    assert digest.digest() == hashlib.sha256().digest()
    for each in (b"ab", None, b"c"):
        digest.add(each)
    assert digest.digest() == hashlib.sha256(bytes(7) + b"\x02ab" + bytes(7) + b"\x01c").digest()


def content(*records, thread_id="trip-7"):
    return [export.digested(each, export.encode(each), thread_id) for each in records]


def test_equal_content_of_other_deployments_has_one_digest():
    elsewhere = change(BEGINNING, source=b"\x01" * 32)
    assert content(BEGINNING) == content(elsewhere) == [export.encode(change(BEGINNING, source=b""))]
    assert content(RECORDS[12]) == [None]
    assert content(HEAD, PIECE) == [export.encode(HEAD), export.encode(PIECE)]


def test_the_number_of_an_artifact_counts_where_the_thread_owns_it():
    assert content(ARTIFACT) == [export.encode(ARTIFACT)]
    other = change(ARTIFACT, thread_id="trip-6")
    assert content(other) == content(change(other, number=9)) == [export.encode(change(other, number=1))]


# --- pieces without keys ---------------------------------------------------------------------------------------------

HERE = [bytes([n]) * PIECE_ID_BYTES for n in (1, 2)]
HOLED = b"\x93\x01" + placeholder(HERE[0], 70_000) + placeholder(HERE[1], 80_000)
HOLES = [2, 2 + len(placeholder(HERE[0], 0))]
PIECES = [
    (ELEMENTS, b"\x01\x02", []),
    (SEGMENT, b"content", []),
    (LEAF, b"\xc4\x01x", []),
    (INDEX, b"".join(HERE), HERE),
    (COMPOSITE, write_composite(HOLED, HOLES), HERE),
]


@pytest.mark.parametrize(("kind", "stored", "children"), PIECES)
def test_a_piece_without_ids_is_the_same_whatever_its_childrens_ids_and_comes_back_with_them(kind, stored, children):
    travels = export.without_ids(kind, stored)
    assert not any(each in travels for each in children)
    assert export.with_ids(kind, travels, children) == stored
    others = [bytes([n]) * PIECE_ID_BYTES for n, _ in enumerate(children, 8)]
    assert export.without_ids(kind, export.with_ids(kind, travels, others)) == travels


def test_the_sizes_of_leaves_travel_with_their_placeholders():
    travels = export.without_ids(COMPOSITE, write_composite(HOLED, HOLES))
    assert export.leaf_sizes(travels) == [70_000, 80_000]
    with pytest.raises(ImportRefused, match="no placeholder"):
        export.leaf_sizes(write_composite(bytes(100), [3]))
    with pytest.raises(ImportRefused, match="other children"):
        export.with_ids(COMPOSITE, travels, HERE[:1])
