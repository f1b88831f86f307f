"""What authenticates and is no record that this build reads: a wrong layout, a newer format, something missing."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID

import msgpack
import msgspec
import pytest

from crypto import Kind, Sealer, SecretKey, SubjectKeys
from storage.errors import (
    ClientShareUnexpected,
    ImportRefused,
    IntegrityFailure,
    InvalidState,
    RollbackDetected,
    StateTooLarge,
)
from storage.format import audit, export, pieces
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, head_location
from storage.format.key_versions import check_key_version
from storage.format.leaves import PIECE_ID_BYTES, PLACEHOLDER_BYTES, find_pointers, placeholder
from storage.format.manifest import Manifest, WriteRecord, chunk_location, decode_manifest, decode_write, encode
from storage.format.pieces import BLOB, COMPOSITE, INDEX, LEAF, SEGMENT, Cutter, Opened
from storage.format.pointer import (
    BlobPointer,
    IntentRecord,
    intent_location,
    open_record,
    pointer_location,
    seal_record,
)
from storage.format.record import OpenedCheckpoint, PieceReader, PieceRow, check_share, open_head, seal_head
from storage.format.token import ThreadToken
from storage.model import ThreadLink, Value

BLOB_ID = UUID(int=7)
AT = datetime(2026, 11, 22, tzinfo=UTC)
PIECE_ID = bytes(PIECE_ID_BYTES)
NOT_MSGPACK = b"\xc1"


def new_sealer() -> Sealer:
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    return Sealer(UUID(int=1), UUID(int=2), "user-1", keys)


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return new_sealer()


# --- seals and tokens ------------------------------------------------------------------------------------------------


def test_nothing_is_taken_from_a_set_that_has_less():
    with pytest.raises(IntegrityFailure):
        LiveSet().subtract(bytes(32))
    with pytest.raises(IntegrityFailure):
        LiveSet(1, 5).part(LiveSet(2, 5))


@pytest.mark.parametrize("seal", [ThreadSeal.new(), HeadSeal(bytes(16), 1, LiveSet(), NO_WRITES)])
def test_a_seal_of_another_layout_is_refused(seal):
    plaintext = seal.encode()
    assert type(seal).decode(plaintext) == seal
    for other in (b"", plaintext[:-1], plaintext + b"\0", b"\x09" + plaintext[1:]):
        with pytest.raises(IntegrityFailure):
            type(seal).decode(other)


def test_a_seal_with_half_a_link_or_one_of_another_layout_is_refused():
    plain = ThreadSeal.new().encode()
    linked = ThreadSeal(bytes(16), LiveSet(), link=ThreadLink("trip-7")).encode()
    for other in (linked[:-1], linked + b"\0", b"\x03" + plain[1:], b"\x02" + linked[1:], plain + NOT_MSGPACK):
        with pytest.raises(IntegrityFailure):
            ThreadSeal.decode(other)
    for link in (["trip-7", "", None, "more"], [], [7, "", None], {"thread_id": "trip-7"}):
        with pytest.raises(IntegrityFailure):
            ThreadSeal.decode(b"\x03" + plain[1:] + msgspec.msgpack.encode(link))


def test_a_head_seal_of_another_life_or_sequence_is_refused(sealer):
    thread = ThreadSeal.new()
    head = HeadSeal(thread.incarnation, 3, LiveSet(), NO_WRITES)
    seal = seal_head(sealer, "t", "", "c", head)
    assert open_head(sealer, "t", thread, "", "c", 3, seal) == head
    with pytest.raises(IntegrityFailure, match="another life"):
        open_head(sealer, "t", ThreadSeal.new(), "", "c", 3, seal)
    elsewhere = sealer.seal(Kind.HEAD, head_location("t", "", "c", 4), head.encode())
    with pytest.raises(IntegrityFailure):
        open_head(sealer, "t", thread, "", "c", 4, elsewhere)


def test_a_token_of_another_thread_or_life_or_format_admits_nothing(sealer):
    head = HeadSeal(bytes(16), 3, LiveSet(), NO_WRITES)
    token = ThreadToken.of(sealer, "", "c", head)
    text = token.encode(sealer, "t")
    assert ThreadToken.decode(sealer, "t", text) == token
    with pytest.raises(RollbackDetected):
        ThreadToken.decode(sealer, "other", text)
    for other in ("ä", "x", "", text[:20], "B" + text[1:], text[:75]):
        with pytest.raises(InvalidState):
            ThreadToken.parse(other)
    assert token.admits(sealer, "c", head)
    assert token.admits(sealer, "d", msgspec.structs.replace(head, sequence=4))
    assert not token.admits(sealer, "d", head)
    assert not token.admits(sealer, "c", msgspec.structs.replace(head, incarnation=bytes(15) + b"1"))


def test_a_share_for_a_thread_without_one_is_unexpected(sealer):
    check_share(sealer, "t", ThreadSeal.new())
    with pytest.raises(ClientShareUnexpected):
        check_share(sealer.with_share(bytes(32)), "t", ThreadSeal.new())


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_manifest_or_a_write_of_another_shape_or_a_newer_format_is_refused():
    manifest, write = Manifest(1, [], {}, None, ()), WriteRecord(1, "msgpack", b"")
    for decode, record in ((decode_manifest, manifest), (decode_write, write)):
        assert decode(encode(record)) == record
        for other in (NOT_MSGPACK, msgpack.packb(7)):
            with pytest.raises(IntegrityFailure):
                decode(other)
        with pytest.raises(IntegrityFailure, match="newer release"):
            decode(encode(msgspec.structs.replace(record, format=2)))


@pytest.mark.parametrize(
    ("location", "record"),
    [
        (pointer_location(BLOB_ID, None, 5, AT), BlobPointer(bytes(32), 5)),
        (intent_location(BLOB_ID, "artifact", None, AT), IntentRecord(bytes(32), b"details")),
    ],
)
def test_a_record_of_a_blob_is_opened_where_it_stands_and_shows_no_key(sealer, location, record):
    def opened(where, sealed, key_version):
        return open_record(type(record), sealer, where, sealed, key_version)

    sealed = seal_record(sealer, location, record)
    assert opened(location, sealed, 1) == record
    assert "\\x00" not in repr(record)
    with pytest.raises(IntegrityFailure, match="authenticate"):
        opened((*location, 1), sealed, 1)
    with pytest.raises(IntegrityFailure, match="another key version"):
        opened(location, sealed, 2)
    with pytest.raises(IntegrityFailure, match="newer format"):
        opened(location, seal_record(sealer, location, msgspec.structs.replace(record, format=9)), 1)
    with pytest.raises(IntegrityFailure, match="cannot be read"):
        opened(location, sealer.seal(Kind.POINTER, location, NOT_MSGPACK), 1)


def test_what_is_no_envelope_has_no_key_version():
    with pytest.raises(IntegrityFailure):
        check_key_version(1, b"no envelope")


def opened_checkpoint(outcome=None, channels=()):
    return OpenedCheckpoint(SimpleNamespace(piece_ids=b""), Manifest(1, list(channels), {}, None, ()), b"", outcome)


@pytest.mark.parametrize(("outcome", "statuses"), [(None, []), ("done", ["done"]), ("failed", ["done", "failed"])])
def test_an_outcome_that_a_write_says_is_none(outcome, statuses):
    opened_checkpoint(outcome).check_outcome(statuses)


@pytest.mark.parametrize(("outcome", "statuses"), [("done", []), (None, ["done"]), ("failed", ["done"])])
def test_an_outcome_that_no_write_says_is_damage(outcome, statuses):
    with pytest.raises(IntegrityFailure, match="status of a checkpoint"):
        opened_checkpoint(outcome).check_outcome(statuses)


def test_a_checkpoint_has_the_channels_that_it_holds(sealer):
    opened = opened_checkpoint(channels=[channel("a"), channel("b")])
    reader = PieceReader(sealer)
    assert opened.channel("b", reader).value == Value("msgpack", b"\x01")
    assert opened.channel("c", reader) is None


def channel(name):
    return msgspec.convert([name, 1, "msgpack", b"\x01"], type=Manifest.__annotations__["channels"].__args__[0])


# --- pieces ----------------------------------------------------------------------------------------------------------


def stored(sealer, kind, content, children=None, named=None):
    """A piece that stands where it belongs."""
    piece = pieces.Piece(sealer.content_id(pieces._KIND_NAMES[kind], "", content), bytes((kind,)) + content, children)
    location = chunk_location(piece.piece_id, children, named)
    return PieceRow(piece.piece_id, children, named, sealer.seal(Kind.CHUNK, location, piece.plaintext), 1)


def test_a_piece_that_is_missing_or_names_a_blob_that_it_is_not_is_refused(sealer):
    reader = PieceReader(sealer)
    with pytest.raises(IntegrityFailure, match="missing"):
        reader.look_up(PIECE_ID)
    row = stored(sealer, SEGMENT, b"content", named=BLOB_ID.bytes)
    reader.add([row])
    with pytest.raises(IntegrityFailure, match="another blob"):
        reader.look_up(row.piece_id)


def test_values_are_counted_before_they_are_put_together(sealer):
    taken = []
    reader = PieceReader(sealer, bytes_max=10, take=taken.append)
    with pytest.raises(StateTooLarge):
        reader.value("msgpack", b"\xc4\x09" + bytes(9), [])
    reader = PieceReader(sealer, take=taken.append)
    reader.reserve(100)
    reader.reserve(50)
    reader.value("msgpack", b"\xc4\x09" + bytes(9), [])
    assert taken[-1:] == [100]
    reader.reserve(100)
    assert taken[-1:] == [11]


def test_ids_and_pieces_and_content_that_are_none_are_refused(sealer):
    with pytest.raises(IntegrityFailure):
        pieces.unpack_ids(bytes(PIECE_ID_BYTES + 1))
    with pytest.raises(IntegrityFailure):
        pieces.piece_of(sealer, SEGMENT, b"content", PIECE_ID)
    for plaintext in (b"", b"\xfe"):
        with pytest.raises(IntegrityFailure):
            pieces.open_piece(sealer, PIECE_ID, plaintext, None)
    with pytest.raises(IntegrityFailure):
        pieces.look_up_own({})(PIECE_ID)
    with pytest.raises(IntegrityFailure):
        pieces.element_bounds(b"\x93\x01")
    with pytest.raises(IntegrityFailure, match="not fetched"):
        pieces._content(Opened(None, None, LEAF, 5))


def test_a_composite_piece_whose_placeholders_are_none_or_overlap_is_refused(sealer):
    for content in (
        pieces.write_composite(bytes(100), [0]),
        pieces.write_composite(bytes(100), [0, PLACEHOLDER_BYTES - 1]),
        NOT_MSGPACK,
    ):
        with pytest.raises(IntegrityFailure):
            pieces.piece_of(sealer, COMPOSITE, content, PIECE_ID)


def test_a_chunk_of_a_blob_names_a_kind_of_piece():
    plaintext = pieces.BlobChunk(SEGMENT, 5, BLOB_ID).encode()
    assert pieces.BlobChunk.decode(plaintext) == pieces.BlobChunk(SEGMENT, 5, BLOB_ID)
    assert pieces.BlobChunk.decode(b"\x01" + plaintext[1:]) is None
    for other in (bytes((BLOB,)), plaintext[:1] + b"\xfe" + plaintext[2:]):
        with pytest.raises(IntegrityFailure):
            pieces.BlobChunk.decode(other)


def test_long_stretches_beside_placeholders_are_pieces_of_their_own(sealer):
    hole = placeholder(PIECE_ID, 70_000)
    head = b"\x83" + msgpack.packb("a") + msgpack.packb(b"x" * 9000) + msgpack.packb("b")
    data = head + hole + msgpack.packb("c") + msgpack.packb(b"x" * 9000)
    cutter = Cutter(sealer)
    body = cutter.cut(Value("msgpack", data, (len(head),)))
    pieces_there = {**cutter.pieces}

    def look_up(piece_id):
        found = pieces_there.get(piece_id)
        if found is None:  # what the placeholder stands for
            return Opened(None, None, LEAF, 70_000)
        return pieces.open_piece(sealer, piece_id, found.plaintext, found.children)

    assert pieces.join_holed(body, cutter.listed.ids, look_up) == (data, (len(head),))


@pytest.mark.parametrize(
    ("kind", "content", "children"),
    [
        (INDEX, b"x", [PIECE_ID]),
        (INDEX, b"", []),
        (SEGMENT, b"content", [PIECE_ID]),
        (COMPOSITE, pieces.write_composite(placeholder(PIECE_ID, 5), [0]), []),
        (COMPOSITE, pieces.write_composite(bytes(PLACEHOLDER_BYTES), [0]), [PIECE_ID]),
    ],
)
def test_a_piece_of_an_export_with_other_children_than_it_says_is_refused(kind, content, children):
    with pytest.raises(ImportRefused):
        export.with_ids(kind, content, children)


def test_in_json_that_is_none_there_are_no_pointers():
    text = b'{"a":"stateroom:artifact:%s"' % str(BLOB_ID).encode()
    assert [each.artifact_id for each in find_pointers("json", text + b"}")] == [BLOB_ID]
    assert find_pointers("json", text) == []
    cut = b"\x92" + msgpack.packb(f"stateroom:artifact:{BLOB_ID}") + b"\xd9\x40stateroom:artifact:"
    assert [each.artifact_id for each in find_pointers("msgpack", cut)] == [BLOB_ID]


# --- the audit log ---------------------------------------------------------------------------------------------------


def test_the_detail_of_an_event_is_an_object():
    event = replace(gap_event(), detail=["no", "object"])
    with pytest.raises(audit.AuditInvalid):
        audit.encode_body(event)


GAP = {"kept": 3, "found": 4, "found_hash": "00" * 32, "anchored": 6, "anchored_hash": "11" * 32}


def gap_event(sequence=7, **changes):
    return audit.Event(
        tenant_id=UUID(int=2),
        sequence=sequence,
        at=AT,
        actor="a",
        action=audit.RESTORED_ACTION,
        target="c",
        detail=GAP | changes,
    )


def test_a_gap_is_read_from_the_event_that_documents_it():
    gap = audit.Gap.of(gap_event())
    assert (gap.detail, gap.sequence) == (GAP, 7)
    assert "events after 3 and up to 6" in gap.message
    assert audit.Gap.after(3, 4, bytes(32), audit.AnchorText("o", 6, b"\x11" * 32)) == gap


@pytest.mark.parametrize(
    "event",
    [
        gap_event(sequence=8),
        gap_event(kept=5),
        gap_event(kept=True),
        gap_event(anchored=3),
        gap_event(anchored="6"),
        gap_event(found_hash="xx"),
        gap_event(found_hash="00"),
        gap_event(anchored_hash=None),
        gap_event(more=1),
    ],
)
def test_a_gap_that_cannot_be_is_refused(event):
    with pytest.raises(audit.AuditInvalid):
        audit.Gap.of(event)
