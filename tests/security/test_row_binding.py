"""Whoever can edit the database cannot move, edit, swap or take away what a reader then believes (threats 3 and 4)."""

# ruff: noqa: S608  table and column names are constants of these tests

import itertools
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from storage.errors import IntegrityFailure, RollbackDetected
from storage.format.manifest import CheckpointColumns, WriteColumns
from storage.scope import Scope
from storage.service import Store
from tests.support.states import contents, document, history, load, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

PLACES = {
    "tenant_id": [UUID(int=0xA), UUID(int=0xB)],
    "subject_id": ["user-1", "user-2"],
    "thread_id": ["t1", "t2"],
    "namespace": ["", "sub"],
    "checkpoint_id": [f"1f0c0000-0000-6000-8000-00000000000{number}" for number in (1, 2)],
    "task_id": ["task-1", "task-2"],
    "idx": [0, 1],
}
KEYS = {
    "threads": list(PLACES)[:3],
    "heads": list(PLACES)[:4],
    "checkpoints": list(PLACES)[:5],
    "pending_writes": list(PLACES)[:7],
}
SEALED = {
    "threads": "seal",
    "heads": "seal",
    "checkpoints": "manifest",
    "pending_writes": "value",
    "chunks": "envelope",
}
# What may change later is advisory by definition and not bound.
MOVES = [(table, column) for table, columns in KEYS.items() for column in columns]


def place(table, **other):
    """The newest of each, or another one."""
    return {column: other.get(column, PLACES[column][1]) for column in KEYS[table]}


def condition(where, first=1):
    return " AND ".join(f"{column} = ${first + at}" for at, column in enumerate(where))


async def row_of(admin, table, where):
    found = await admin.fetch(f"SELECT * FROM stateroom.{table} WHERE {condition(where)}", *where.values())
    assert len(found) == 1
    return dict(found[0])


async def assign(admin, table, where, values):
    assignments = ", ".join(f"{column} = ${len(where) + 1 + at}" for at, column in enumerate(values))
    done = await admin.execute(
        f"UPDATE stateroom.{table} SET {assignments} WHERE {condition(where)}", *where.values(), *values.values()
    )
    assert done == "UPDATE 1"


@asynccontextmanager
async def edited(admin, table, where, values):
    before = await row_of(admin, table, where)
    await assign(admin, table, where, values)
    yield
    moved = {column: values.get(column, old) for column, old in where.items()}
    await assign(admin, table, moved, {column: before[column] for column in values})


@pytest.fixture(scope="module")
async def world(store, admin):
    """Every combination of two tenants, subjects, threads, namespaces, checkpoints, tasks and numbers."""
    for tenant_id, subject_id, thread_id, namespace in itertools.product(*list(PLACES.values())[:4]):
        scope = Scope(tenant_id, subject_id)
        for checkpoint_id in PLACES["checkpoint_id"]:
            await save(
                store,
                scope,
                thread_id,
                namespace=namespace,
                checkpoint_id=checkpoint_id,
                content=state(a=document(f"{checkpoint_id}{namespace}{thread_id}", 12_000), b=document("common")),
                source="loop",
                agent="travel",
                run_id="run",
                model={"name": "m"},
                usage={"input_tokens": 1, "output_tokens": 2, "cost_micros": 3},
                state_schema="trip",
                state_version=1,
            )
            for task_id in PLACES["task_id"]:
                await put(
                    store,
                    scope,
                    checkpoint_id,
                    *(write(idx, "a", document(f"{checkpoint_id}{task_id}{idx}")) for idx in PLACES["idx"]),
                    task_id=task_id,
                    thread_id=thread_id,
                    namespace=namespace,
                    task_path="path",
                    status="waiting",
                    state_schema="trip",
                    state_version=1,
                )
    return store


async def read(store, table, where):
    """Read a row the way callers do."""
    scope = Scope(where["tenant_id"], where["subject_id"])
    if table == "threads":
        await store.threads.copy(scope, where["thread_id"], "the-copy")
        await store.threads.delete(scope, "the-copy")
        return
    await load(store, scope, where["thread_id"], where.get("checkpoint_id"), where["namespace"])


async def refused(store, table, where):
    with pytest.raises(IntegrityFailure):
        await read(store, table, where)
    if table == "threads":
        with pytest.raises(IntegrityFailure):
            await save(store, Scope(where["tenant_id"], where["subject_id"]), where["thread_id"])


@pytest.mark.parametrize(("table", "column"), MOVES, ids="-".join)
async def test_a_row_copied_to_another_place_is_refused(world, admin, table, column):
    target = place(table)
    source = await row_of(admin, table, place(table, **{column: PLACES[column][0]}))
    stolen = {name: value for name, value in source.items() if name not in KEYS[table]}
    await read(world, table, target)
    async with edited(admin, table, target, stolen):
        await refused(world, table, target)
    await read(world, table, target)


@pytest.mark.parametrize(("table", "other"), list(itertools.permutations(SEALED, 2)), ids=str)
async def test_an_envelope_of_another_kind_is_refused(world, admin, table, other):
    own = place("pending_writes")
    envelope = await admin.fetchval(
        f"SELECT {SEALED[other]} FROM stateroom.{other} WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        *list(own.values())[:3],
    )
    if table == "chunks":
        where = {
            **place("threads"),
            "piece_id": await admin.fetchval(
                "SELECT substring(piece_ids FROM 1 FOR 17) FROM stateroom.checkpoints"
                f" WHERE {condition(place('checkpoints'))}",
                *place("checkpoints").values(),
            ),
        }
        reading = ("checkpoints", place("checkpoints"))
    else:
        where = place(table)
        reading = (table, where)
    async with edited(admin, table, where, {SEALED[table]: envelope}):
        await refused(world, *reading)
    await read(world, *reading)


def changed(name, value):
    """Another value the column could hold."""
    if name == "status":
        return "done" if value != "done" else "failed"
    if name == "piece_ids":
        return value[17:34] + value[:17] + value[34:]
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int):
        return value + 1
    return value.replace(microsecond=(value.microsecond + 1) % 1_000_000)


NULLABLE = {
    *("parent_id", "source", "agent", "run_id", "model", "state_schema", "state_version"),
    *("input_tokens", "output_tokens", "cost_micros"),
}
COLUMNS = [
    *(("checkpoints", name) for name in CheckpointColumns.__struct_fields__ if name not in KEYS["checkpoints"]),
    *(("pending_writes", name) for name in WriteColumns.__struct_fields__ if name not in KEYS["pending_writes"]),
    *(("heads", name) for name in ("head_id", "sequence")),
    ("threads", "created_at"),
    ("pending_writes", "member"),
    ("checkpoints", "key_version"),
    ("pending_writes", "key_version"),
]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids="-".join)
async def test_an_edited_column_is_refused(world, admin, table, column):
    where = place(table)
    before = (await row_of(admin, table, where))[column]
    if column == "named_ids":
        before = before or bytes(16)
    assert before is not None
    value = PLACES["checkpoint_id"][0] if column == "head_id" else changed(column, before)
    if column == "piece_ids" and value == before:
        value = before * 2
    async with edited(admin, table, where, {column: value}):
        await refused(world, table, where)
    if column in NULLABLE:
        async with edited(admin, table, where, {column: None}):
            await refused(world, table, where)
    await read(world, table, where)


@pytest.mark.parametrize("table", ["checkpoints", "pending_writes"])
async def test_an_edited_key_version_is_refused_by_whatever_opens_the_row(world, admin, table):
    where = place(table)
    scope, thread_id = Scope(where["tenant_id"], where["subject_id"]), where["thread_id"]

    async def readings():
        yield read(world, "checkpoints", place("checkpoints"))
        yield history(world, scope, thread_id=thread_id, with_state=True)
        yield read(world, "threads", place("threads"))

    async with edited(admin, table, where, {"key_version": 2}):
        async for reading in readings():
            with pytest.raises(IntegrityFailure):
                await reading
        assert (await world.verification.thread(scope, thread_id)).findings
    async for reading in readings():
        await reading


@pytest.mark.parametrize("edit", ["none", "fewer", "more", "repeated", "ragged"])
async def test_an_edited_list_of_pieces_is_refused(world, admin, edit):
    where = place("checkpoints")
    ids = (await row_of(admin, "checkpoints", where))["piece_ids"]
    assert len(ids) >= 34
    value = {"none": b"", "fewer": ids[17:], "more": ids + bytes(17), "repeated": ids[:17] * 2, "ragged": ids[:-1]}
    async with edited(admin, "checkpoints", where, {"piece_ids": value[edit]}):
        await refused(world, "checkpoints", where)
        scope = Scope(where["tenant_id"], where["subject_id"])
        with pytest.raises(IntegrityFailure):
            await history(world, scope, thread_id=where["thread_id"], with_state=True)
        damaged = [each.checkpoint_id for each in await history(world, scope, with_state=True) if each.damaged]
        assert damaged == [where["checkpoint_id"]]


async def two_chunks(admin):
    packed = (await row_of(admin, "checkpoints", place("checkpoints")))["piece_ids"]
    return [{**place("threads"), "piece_id": packed[at : at + 17]} for at in (0, 17)]


async def test_swapped_chunks_are_refused(world, admin):
    one, two = await two_chunks(admin)
    first, second = await row_of(admin, "chunks", one), await row_of(admin, "chunks", two)
    async with (
        edited(admin, "chunks", one, {"envelope": second["envelope"]}),
        edited(admin, "chunks", two, {"envelope": first["envelope"]}),
    ):
        await refused(world, "checkpoints", place("checkpoints"))
    await read(world, "checkpoints", place("checkpoints"))


@pytest.mark.parametrize("column", ["piece_id", "children", "named_ids", "envelope"])
async def test_an_edited_chunk_is_refused(world, admin, column):
    one, _ = await two_chunks(admin)
    row = await row_of(admin, "chunks", one)
    value = {
        "piece_id": bytes(17),
        "children": row["piece_id"],
        "named_ids": bytes(16),
        "envelope": row["envelope"][:-1] + bytes([row["envelope"][-1] ^ 1]),
    }[column]
    async with edited(admin, "chunks", one, {column: value}):
        await refused(world, "checkpoints", place("checkpoints"))


async def test_a_verification_names_a_piece_whose_key_version_was_edited(world, admin):
    one, _ = await two_chunks(admin)
    scope, thread_id = Scope(one["tenant_id"], one["subject_id"]), one["thread_id"]
    async with edited(admin, "chunks", one, {"key_version": 2}):
        assert [each.code for each in (await world.verification.thread(scope, thread_id)).findings] == ["piece"]
    assert (await world.verification.thread(scope, thread_id)).findings == []


async def test_a_chunk_of_another_tenant_or_subject_is_refused(world, admin):
    one, _ = await two_chunks(admin)
    for column in ("tenant_id", "subject_id"):
        other = (PLACES[column][0], *(one[each] for each in ("tenant_id", "subject_id", "thread_id") if each != column))
        foreign = await admin.fetchval(
            f"SELECT envelope FROM stateroom.chunks WHERE {column} = $1 AND "
            + condition([each for each in ("tenant_id", "subject_id", "thread_id") if each != column], 2),
            *other,
        )
        async with edited(admin, "chunks", one, {"envelope": foreign}):
            await refused(world, "checkpoints", place("checkpoints"))


async def delete(admin, table, scope, **where):
    where = {"tenant_id": scope.tenant_id, "subject_id": scope.subject_id, **where}
    await admin.execute(f"DELETE FROM stateroom.{table} WHERE {condition(where)}", *where.values())


async def found_by_prune_and_copy(store, scope):
    with pytest.raises(IntegrityFailure):
        await store.threads.prune(scope, ["t1"], "keep_latest")
    with pytest.raises(IntegrityFailure):
        await store.threads.copy(scope, "t1", "t2")
    assert [each.thread_id for each in (await store.threads.list(scope)).items] == ["t1"]


@pytest.fixture
async def chain(store, scope):
    return [await save(store, scope, content=state(a=document(str(number)))) for number in range(4)]


async def test_a_deleted_chunk_is_refused(store, scope, admin, chain):
    await delete(admin, "chunks", scope)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


@pytest.mark.parametrize("which", range(4))
async def test_a_deleted_checkpoint_is_found(store, scope, admin, chain, which):
    await delete(admin, "checkpoints", scope, checkpoint_id=chain[which].checkpoint_id)
    await found_by_prune_and_copy(store, scope)
    if which == 3:
        with pytest.raises(IntegrityFailure):
            await load(store, scope)
        with pytest.raises(IntegrityFailure):
            await save(store, scope)


async def test_a_checkpoint_put_back_after_it_was_pruned_is_found(store, scope, admin, chain):
    await admin.execute(
        "CREATE TEMP TABLE stolen AS SELECT * FROM stateroom.checkpoints"
        " WHERE tenant_id = $1 AND checkpoint_id = $2".replace("$1", f"'{scope.tenant_id}'").replace(
            "$2", f"'{chain[0].checkpoint_id}'"
        )
    )
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await admin.execute("INSERT INTO stateroom.checkpoints SELECT * FROM stolen")
    await admin.execute("DROP TABLE stolen")
    await found_by_prune_and_copy(store, scope)


async def test_a_head_rolled_back_is_found(store, scope, admin, chain):
    where = {"tenant_id": scope.tenant_id, "subject_id": scope.subject_id, "thread_id": "t1", "namespace": ""}
    old = await row_of(admin, "heads", where)
    await save(store, scope)
    await assign(admin, "heads", where, {name: old[name] for name in ("head_id", "sequence", "seal")})
    await found_by_prune_and_copy(store, scope)
    with pytest.raises(IntegrityFailure):
        await save(store, scope)
    await found_by_prune_and_copy(store, scope)


async def test_a_namespace_taken_away_is_found(store, scope, admin, chain, database, root_key):
    await save(store, scope, namespace="sub")
    for table in ("checkpoints", "heads"):
        await delete(admin, table, scope, namespace="sub")
    await found_by_prune_and_copy(store, scope)
    with pytest.raises(RollbackDetected):
        await save(store, scope, namespace="sub")
    # A process that acknowledged nothing of it makes a new one, which does not hide that another is gone.
    stranger = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False
    )
    try:
        await save(stranger, scope, namespace="sub")
    finally:
        await stranger.close()
    await found_by_prune_and_copy(store, scope)


async def test_a_head_of_an_earlier_life_of_the_thread_is_refused(store, scope, admin, chain):
    where = {"tenant_id": scope.tenant_id, "subject_id": scope.subject_id, "thread_id": "t1", "namespace": ""}
    old = await row_of(admin, "heads", where)
    await store.threads.delete(scope, "t1")
    await save(store, scope)
    await assign(admin, "heads", where, {name: old[name] for name in ("head_id", "sequence", "seal")})
    with pytest.raises(IntegrityFailure):
        await save(store, scope)
    await found_by_prune_and_copy(store, scope)


async def test_the_world_reads_as_it_was_written(world):
    scope = Scope(PLACES["tenant_id"][1], "user-2")
    loaded = await load(world, scope, "t2", namespace="sub")
    assert contents(loaded)["b"] == document("common")
    assert len(writes_of(loaded)) == 4
