"""The bytes of an archive: what is written comes back, whatever the pieces it arrives in, and nothing else does."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import Kind, Sealer, SecretKey, SubjectKeys
from storage.errors import IntegrityFailure
from storage.format.cold import archive
from storage.format.cold.archive import (
    CHECKPOINTS,
    CHUNKS,
    MAGIC,
    PENDING_WRITES,
    TABLES,
    TAGS,
    ArchiveDecoder,
    ArchiveEncoder,
    ArchiveRecord,
    Stub,
    ThreadRows,
    row_of,
)
from storage.format.record import PieceRow
from storage.postgres.tables import metadata
from storage.statements.threads import archives as sql

AT = datetime(2026, 11, 22, 4, 5, 6, 789012, tzinfo=UTC)
COLUMNS = {
    CHECKPOINTS: ("thread_id", "checkpoint_id", "parent_id", "step", "created_at", "manifest", "searchable"),
    TAGS: ("thread_id", "tag"),
    PENDING_WRITES: ("thread_id", "idx", "value"),
    CHUNKS: ("thread_id", "piece_id", "envelope"),
}
ROWS = {
    CHECKPOINTS: [
        dict(zip(COLUMNS[CHECKPOINTS], row, strict=True))
        for row in (("t", "1", None, 0, AT, b"\xc1SR", None), ("t", "2", "1", 2**31 - 1, AT, b"", ["a", "é"]))
    ],
    TAGS: [{"thread_id": "t", "tag": bytes(17)}],
    PENDING_WRITES: [{"thread_id": "t", "idx": -(2**31), "value": b"w"}],
    CHUNKS: [{"thread_id": "t", "piece_id": bytes([n]), "envelope": bytes(1000)} for n in range(5)],
}


def encoded(rows=None, columns=None, counts=None, page=2):
    rows = rows or ROWS
    encoder = ArchiveEncoder(columns or COLUMNS)
    data = encoder.header(counts or {table: len(rows[table]) for table in TABLES})
    for table in TABLES:
        for at in range(0, len(rows[table]), page):
            data += encoder.rows(table, rows[table][at : at + page])
    data += encoder.end()
    assert encoder.digest == hashlib.sha256(data).digest()
    return data


def decoded(data, sizes=(10**9,), columns=None):
    decoder, found, at, turn = ArchiveDecoder(columns or COLUMNS), ThreadRows.empty(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        for table, page in decoder.feed(data[at : at + size]):
            found.of(table).extend(page)
        at, turn = at + size, turn + 1
    decoder.close()
    assert decoder.digest == hashlib.sha256(data).digest()
    return {table: found.of(table) for table in TABLES}


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), page=st.integers(1, 6))
def test_what_is_written_comes_back_in_pieces_of_any_size(sizes, page):
    assert decoded(encoded(page=page), sizes) == ROWS


def test_a_struct_takes_the_columns_that_it_has_by_their_names():
    row = {"envelope": b"e", "key_version": 3, "piece_id": b"p", "children": None, "named_ids": None, "colour": "red"}
    assert row_of(PieceRow, row) == PieceRow(b"p", None, None, b"e", 3)


def test_a_thread_without_rows_has_an_archive():
    nothing = {table: [] for table in TABLES}
    assert decoded(encoded(nothing)) == nothing


def test_every_cut_and_every_addition_is_refused():
    data = encoded()
    for length in range(len(data)):
        with pytest.raises(IntegrityFailure):
            decoded(data[:length])
    with pytest.raises(IntegrityFailure):
        decoded(data + b"\0")


def test_every_altered_byte_is_refused():
    data = encoded({**ROWS, CHUNKS: ROWS[CHUNKS][:1]})
    for at in range(len(data)):
        with pytest.raises(IntegrityFailure):
            decoded(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


@pytest.mark.parametrize(("table", "count"), [(CHUNKS, 4), (CHUNKS, 6), (CHECKPOINTS, 1), (TAGS, -1)])
def test_other_counts_than_rows_are_refused(table, count):
    counts = {each: len(ROWS[each]) for each in TABLES} | {table: count}
    with pytest.raises(IntegrityFailure):
        decoded(encoded(counts=counts))


def test_a_column_that_this_build_added_is_none_and_one_that_it_does_not_know_is_refused():
    more = {**COLUMNS, CHUNKS: (*COLUMNS[CHUNKS], "colour")}
    assert decoded(encoded(), columns=more)[CHUNKS] == [{**row, "colour": None} for row in ROWS[CHUNKS]]
    painted = {**ROWS, CHUNKS: [{**row, "colour": "red"} for row in ROWS[CHUNKS]]}
    with pytest.raises(IntegrityFailure, match="newer"):
        decoded(encoded(painted, more))


def test_a_newer_format_is_refused_by_name():
    with pytest.raises(IntegrityFailure, match="another format"):
        decoded(encoded().replace(MAGIC, b"stateroom-archive/2\n"))


def test_the_statements_move_every_column_of_the_tables():
    assert sql.TABLES == archive.TABLES
    for table in TABLES:
        columns = {each.name for each in metadata.tables[f"stateroom.{table}"].columns}
        assert {*sql.COLUMNS[table]} == columns - {"tenant_id", "subject_id", "stored_at"}
        assert {*sql.ORDER[table]} < {*sql.COLUMNS[table]}
        assert (table in sql.ENVELOPES) == (table != TAGS)
    # Whatever else belongs to one thread stays where it is, and is named here so that a new table is decided about.
    stays = {"threads", "heads", "blob_refs", "artifact_refs", "artifacts", "archives", "thread_retention"}
    # At hand while their thread is archived.
    stays |= {"ledger_seals", "claims", "effects", "approvals", "approval_actions", "approval_votes"}
    stays |= {"event_queue", "events"}  # what happened to a thread is told wherever its rows are
    of_threads = {name.partition(".")[2] for name, table in metadata.tables.items() if "thread_id" in table.columns}
    assert of_threads == {*TABLES} | stays


# --- the stub --------------------------------------------------------------------------------------------------------

SEALER = Sealer(UUID(int=1), UUID(int=2), "user", SubjectKeys({1: SecretKey(b"1" * 32)}, 1, SecretKey(b"2" * 32)))
STUB = Stub(
    thread_id="t",
    blob_id=UUID(int=3),
    activity=7,
    key_versions=[1, 2],
    client_share=False,
    checkpoints=3,
    pending_writes=2,
    chunks=1,
    hot_bytes=100,
    size_bytes=200,
    run_ids=["a", "b"],
    state_schemas=["travel"],
    agents=["planner"],
    named_ids=None,
    storage_class="STANDARD",
    created_at=AT,
    key_version=1,
    sealed=b"",
)
RECORD = ArchiveRecord(b"k" * 32, 150, b"d" * 32)
SEALED = STUB.sealing(SEALER, RECORD)


def stub(**columns):
    return msgspec.structs.replace(STUB, **{"sealed": SEALED, **columns})


def test_a_stub_opens_its_record_with_and_without_a_share():
    assert stub().record(SEALER) == RECORD
    assert stub().record(SEALER.with_share(b"s" * 32)) == RECORD
    assert b"k" * 32 not in repr(stub()).encode() + repr(RECORD).encode()


OTHERS = {
    "thread_id": "u", "blob_id": UUID(int=4), "activity": 8, "key_versions": [2, 1], "client_share": True,
    "checkpoints": 2, "pending_writes": 3, "chunks": 0, "hot_bytes": 99, "size_bytes": 201, "run_ids": ["a"],
    "state_schemas": [], "agents": ["b", "planner"], "named_ids": b"", "storage_class": "GLACIER",
    "created_at": AT.replace(microsecond=0), "sealed": b"\0" * 200, "segment": 2, "volume": 3, "first_id": "a",
    "last_id": "b",
}  # fmt: skip


def test_every_column_of_a_stub_is_bound():
    assert OTHERS.keys() | {"key_version"} == {*Stub.__struct_fields__}
    assert {each.name for each in metadata.tables["stateroom.archives"].columns} == {*Stub.__struct_fields__} | {
        "tenant_id", "subject_id", "stored_at", "listed",
    }  # fmt: skip
    for column, other in OTHERS.items():
        with pytest.raises(IntegrityFailure):
            stub(**{column: other}).record(SEALER)


def test_lists_next_to_each_other_are_not_mistaken_for_each_other():
    for lists in (
        {"run_ids": ["a"], "state_schemas": ["b", "travel"]},
        {"state_schemas": [], "agents": ["travel", "planner"]},
    ):
        with pytest.raises(IntegrityFailure):
            stub(**lists).record(SEALER)


def test_a_record_of_a_newer_format_is_refused():
    newer = STUB.sealing(SEALER, ArchiveRecord(b"k" * 32, 150, b"d" * 32, format=2))
    with pytest.raises(IntegrityFailure, match="newer"):
        stub(sealed=newer).record(SEALER)


def test_the_example_of_the_format_page_is_one():
    page = (Path(__file__).parents[3] / "docs" / "formats" / "archive.md").read_text()
    example = bytes.fromhex(page.partition("## Example")[2].partition("```")[2].partition("```")[0])
    columns = {**dict.fromkeys(TABLES, ()), CHECKPOINTS: ("a",)}
    nothing = {table: [] for table in TABLES}
    assert decoded(example, columns=columns) == nothing
    assert encoded(nothing, columns) == example


def test_a_frame_after_the_last_one_is_refused():
    with pytest.raises(IntegrityFailure):
        decoded(encoded() + bytes((0, 0, 0, 1)) + b"x")


def test_a_stub_that_opens_to_no_record_is_refused():
    no_record = SEALER.without_share.seal(Kind.POINTER, STUB.location, b"\xc1", compress=False)
    with pytest.raises(IntegrityFailure, match="cannot be read"):
        stub(sealed=no_record).record(SEALER)
