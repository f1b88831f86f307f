"""Rows and values: a row opens as it was sealed, at its place and with its columns, and nowhere else."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgpack
import msgspec
import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from storage.errors import (
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    IntegrityFailure,
    StateTooLarge,
)
from storage.format.chain import write_mac
from storage.format.leaves import PLACEHOLDER_BYTES
from storage.format.manifest import ChannelRecord, CheckpointColumns, Manifest, WriteColumns, WriteRecord
from storage.format.pieces import LEAF, LEAF_SHOWN_BYTES, BlobChunk, Cutter
from storage.format.record import (
    CheckpointRow,
    PieceReader,
    PieceRow,
    WriteRow,
    clear_checkpoint,
    member_of,
    new_thread,
    open_checkpoint,
    open_thread,
    open_thread_seal,
    open_write,
    seal_checkpoint,
    seal_piece,
    seal_thread,
    seal_write,
)
from storage.model import Channel, PendingWrite, Value

AT = datetime(2026, 11, 25, 2, 30, tzinfo=UTC)
BLOB_ID = UUID(int=7)
ARTIFACT = UUID(int=8).bytes
CHECKPOINT = CheckpointColumns(
    "t", "", "c2", "c1", 3, "active", "loop", "planner", "run", "opus", "travel", 2, 10, None, 5, AT, b"", ARTIFACT
)  # fmt: skip
WRITE = WriteColumns("t", "", "c2", "task", -1, "~", "messages", "waiting", AT, b"", ARTIFACT, "travel", 2)
MANIFEST = Manifest(
    1, [ChannelRecord("n", 4, "msgpack", b"\x07")], {"by": "test"}, {"name": "opus", "max_tokens": 9}, ("messages",)
)
RECORD = WriteRecord(1, "msgpack", b"\x07")


def new_sealer(subject="user-1"):
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    return Sealer(UUID(int=1), UUID(int=2), subject, keys)


@pytest.fixture(scope="module")
def sealer():
    return new_sealer()


def altered(value):
    """Another value of the column, and none."""
    others = [None] if value is not None else ["x"]
    if isinstance(value, str):
        others += [value + "x"]
    if isinstance(value, int):
        others += [value + 1]
    if isinstance(value, bytes):
        others += [value + bytes(17)]
    if isinstance(value, datetime):
        others = [value + timedelta(microseconds=1)]
    return others


def alterations(columns):
    return [
        pytest.param({name: other}, id=f"{name}={other!r:.12}")
        for name in columns.__struct_fields__
        for other in altered(getattr(columns, name))
    ]


# --- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoint_row(sealer, columns=CHECKPOINT, *, outcome=None, key_version=1):
    sealed = seal_checkpoint(sealer, CHECKPOINT, MANIFEST)
    return CheckpointRow(*msgspec.structs.astuple(columns), outcome, sealed.envelope, key_version)


def test_a_checkpoint_opens_as_it_was_sealed(sealer):
    sealed = seal_checkpoint(sealer, CHECKPOINT, MANIFEST)
    row = CheckpointRow(*msgspec.structs.astuple(CHECKPOINT), "done", sealed.envelope, 1)
    opened = open_checkpoint(sealer, row)
    assert (opened.columns, opened.manifest, opened.outcome) == (CHECKPOINT, MANIFEST, "done")
    assert opened.member == sealed.member
    assert (opened.place, opened.parent_id, opened.ids) == (("c2", "t", ""), "c1", [])
    assert opened.opened_bytes == len(msgspec.msgpack.encode(MANIFEST))


def test_a_checkpoint_that_would_be_saved_again_has_the_member_that_it_has_and_another_one_another(sealer):
    member = seal_checkpoint(sealer, CHECKPOINT, MANIFEST).member
    assert member_of(sealer, CHECKPOINT, MANIFEST) == member
    later = msgspec.structs.replace(CHECKPOINT, created_at=CHECKPOINT.created_at + timedelta(seconds=1))
    assert member_of(sealer, later, MANIFEST) != member
    assert member_of(new_sealer("user-2"), CHECKPOINT, MANIFEST) != member


@pytest.mark.parametrize("changes", alterations(CHECKPOINT))
def test_no_clear_column_of_a_checkpoint_can_be_altered(sealer, changes):
    with pytest.raises(IntegrityFailure):
        open_checkpoint(sealer, checkpoint_row(sealer, msgspec.structs.replace(CHECKPOINT, **changes)))


def test_a_checkpoint_opens_for_its_subject_and_under_the_key_version_that_its_row_names(sealer):
    with pytest.raises(IntegrityFailure):
        open_checkpoint(new_sealer(), checkpoint_row(sealer))
    with pytest.raises(IntegrityFailure, match="another key version"):
        open_checkpoint(sealer, checkpoint_row(sealer, key_version=2))


def test_a_checkpoint_is_shown_with_the_outcome_of_its_tasks_and_what_it_took(sealer):
    opened = open_checkpoint(sealer, checkpoint_row(sealer, outcome="done"))
    writes = [PendingWrite(task_id="task", idx=0, task_path="", channel="n", value=Value("msgpack", b"\x07"))]
    shown = opened.value(PieceReader(sealer), writes)
    assert (shown.status, shown.usage) == ("done", {"input_tokens": 10, "cost_micros": 5})
    assert shown.channels == {"n": Channel(version=4, value=Value("msgpack", b"\x07"))}
    assert (shown.writes, shown.metadata, shown.model) == (writes, MANIFEST.metadata, MANIFEST.model)
    assert not shown.withheld


def test_a_checkpoint_without_a_reader_is_shown_without_its_state(sealer):
    shown = open_checkpoint(sealer, checkpoint_row(sealer)).value(None, None)
    assert (shown.status, shown.channels, shown.writes) == ("active", None, None)


def test_what_clear_columns_say_is_withheld_and_holds_nothing_sealed():
    shown = clear_checkpoint(CHECKPOINT, "failed")
    assert (shown.status, shown.model, shown.withheld) == ("failed", {"name": "opus"}, True)
    assert (shown.metadata, shown.channels, shown.writes, shown.delta_channels) == ({}, None, None, ())
    plain = msgspec.structs.replace(CHECKPOINT, model=None, input_tokens=None, cost_micros=None)
    shown = clear_checkpoint(plain, None)
    assert (shown.status, shown.model, shown.usage) == ("active", None, None)


# --- pending writes --------------------------------------------------------------------------------------------------


def write_row(sealer, columns=WRITE, *, member=None, key_version=1):
    sealed = seal_write(sealer, WRITE, RECORD)
    return WriteRow(*msgspec.structs.astuple(columns), sealed.envelope, member or sealed.member, key_version)


def test_a_write_opens_as_it_was_sealed_and_its_part_of_the_sums_is_of_its_place(sealer):
    opened = open_write(sealer, write_row(sealer))
    assert (opened.columns, opened.record, opened.ids) == (WRITE, RECORD, [])
    sealed = seal_write(sealer, WRITE, RECORD)
    assert opened.mac == sealed.mac == write_mac(sealer, "", "c2", "task", -1, sealed.member)
    assert opened.value(PieceReader(sealer)) == PendingWrite(
        task_id="task", idx=-1, task_path="~", channel="messages", state_schema="travel", state_version=2,
        value=Value("msgpack", b"\x07"),
    )  # fmt: skip


@pytest.mark.parametrize("changes", alterations(WRITE))
def test_no_clear_column_of_a_write_can_be_altered(sealer, changes):
    with pytest.raises(IntegrityFailure):
        open_write(sealer, write_row(sealer, msgspec.structs.replace(WRITE, **changes)))


def test_a_write_of_another_member_or_key_version_is_refused(sealer):
    with pytest.raises(IntegrityFailure, match="member was altered"):
        open_write(sealer, write_row(sealer, member=bytes(16)))
    with pytest.raises(IntegrityFailure, match="another key version"):
        open_write(sealer, write_row(sealer, key_version=2))


# --- pieces ----------------------------------------------------------------------------------------------------------


def cut(sealer, tree):
    """A value, its body and ids, and the rows of its pieces."""
    value = Value("msgpack", msgpack.packb(tree))
    cutter = Cutter(sealer)
    body = cutter.cut(value)
    return value, body, cutter.listed.ids, [row(sealer, each) for each in cutter.pieces.values()]


def row(sealer, piece, blob_id=None):
    named = None if blob_id is None else blob_id.bytes
    return PieceRow(piece.piece_id, piece.children, named, seal_piece(sealer, piece, blob_id), 1)


LONG = [f"message {number} " * 10 for number in range(12_000)]


def test_a_value_is_put_together_from_its_pieces_when_their_children_are_there(sealer):
    value, body, ids, rows = cut(sealer, LONG)
    by_id = {each.piece_id: each for each in rows}
    reader = PieceReader(sealer)
    assert reader.missing([*ids, ids[0]]) == list(dict.fromkeys(ids))
    wanted = reader.add([by_id[each] for each in ids])
    assert wanted != []
    while wanted:
        wanted = reader.add([by_id[each] for each in wanted])
    assert (reader.missing(ids), len(reader.unopened())) == ([], len(by_id))
    assert reader.value("msgpack", body, ids) == value
    assert reader.unopened() == []
    assert reader.size_of(body, ids) == len(value.data)
    assert reader.plaintexts().keys() == by_id.keys()


def test_a_piece_of_another_place_or_key_version_is_refused(sealer):
    _, _, _, [first, second, *_] = cut(sealer, LONG)
    moved = msgspec.structs.replace(first, envelope=second.envelope)
    renamed = msgspec.structs.replace(second, key_version=2)
    reader = PieceReader(sealer)
    reader.add([moved, renamed])
    with pytest.raises(IntegrityFailure):
        reader.look_up(moved.piece_id)
    with pytest.raises(IntegrityFailure, match="another key version"):
        reader.look_up(renamed.piece_id)


def test_values_that_share_pieces_count_each_and_what_is_too_long_is_not_gathered(sealer):
    value, body, ids, rows = cut(sealer, LONG)
    reader = PieceReader(sealer, bytes_max=len(value.data) * 3 // 2)
    reader.add(rows)
    assert reader.value("msgpack", body, ids) == value
    with pytest.raises(StateTooLarge):
        reader.value("msgpack", body, ids)
    small = PieceReader(sealer, bytes_max=10_000)
    small.add(rows)
    with pytest.raises(StateTooLarge):
        small.value("msgpack", body, ids)
    assert len(small.unopened()) > len(rows) // 2


def in_blob(sealer, tree):
    """A value with a large leaf, and its rows; the leaf is in a blob."""
    value = Value("msgpack", msgpack.packb(tree))
    cutter = Cutter(sealer, offload_bytes_min=64 * 1024)
    body = cutter.cut(value)
    pieces = cutter.pieces.values()
    [leaf] = [each for each in pieces if each.kind == LEAF]
    rows = [row(sealer, each, BLOB_ID if each is leaf else None) for each in pieces]
    return value, body, cutter.listed.ids, rows, leaf


IMAGE = {"text": "a map", "image": b"p" * 100_000}


def test_what_is_in_a_blob_is_fetched_counted_and_compared(sealer):
    value, body, ids, rows, leaf = in_blob(sealer, IMAGE)
    taken = []
    reader = PieceReader(sealer, take=taken.append)
    reader.add(rows)
    assert reader.in_blobs() == {leaf.piece_id: BlobChunk(LEAF, leaf.size, BLOB_ID)}
    assert taken == [leaf.size]
    with pytest.raises(IntegrityFailure, match="not fetched"):
        reader.value("msgpack", body, ids)
    with pytest.raises(IntegrityFailure):
        reader.take({leaf.piece_id: leaf.plaintext[1:-1] + b"x"})
    reader.take({leaf.piece_id: leaf.plaintext[1:]})
    assert reader.in_blobs() == {}
    assert reader.value("msgpack", body, ids) == value
    assert sum(taken) == len(value.data) + LEAF_SHOWN_BYTES


def test_a_large_leaf_stays_a_placeholder_for_who_asks_for_references(sealer):
    value, body, ids, rows, leaf = in_blob(sealer, IMAGE)
    reader = PieceReader(sealer, refs=True, bytes_max=1000)
    reader.add(rows)
    assert reader.in_blobs() == {}
    shown = reader.value("msgpack", body, ids)
    assert len(shown.holes) == 1
    assert len(shown.data) == len(value.data) - leaf.size + PLACEHOLDER_BYTES
    assert reader.size_of(body, ids) == len(shown.data) + LEAF_SHOWN_BYTES
    assert leaf.piece_id not in reader.plaintexts()


# --- threads and their client-held shares ----------------------------------------------------------------------------


def test_a_thread_opens_at_its_place(sealer):
    thread = new_thread(sealer, "t")
    seal = seal_thread(sealer, "t", AT, thread)
    assert open_thread(sealer, "t", AT, seal) == thread
    for other in (("u", AT), ("t", AT + timedelta(microseconds=1))):
        with pytest.raises(IntegrityFailure):
            open_thread(sealer, *other, seal)
    with pytest.raises(ClientShareUnexpected):
        open_thread(sealer.with_share(bytes(32)), "t", AT, seal)


def test_a_thread_made_with_a_share_opens_with_this_share_only_and_says_so_without_it(sealer):
    shared = sealer.with_share(b"\x01" * 32)
    thread = new_thread(shared, "t")
    seal = seal_thread(shared, "t", AT, thread)
    assert open_thread(shared, "t", AT, seal) == thread
    with pytest.raises(ClientShareRequired):
        open_thread(sealer, "t", AT, seal)
    with pytest.raises(ClientShareWrong):
        open_thread(sealer.with_share(b"\x02" * 32), "t", AT, seal)
    assert open_thread_seal(sealer, "t", AT, seal) == thread
    assert new_thread(shared, "t").share_check != thread.share_check
