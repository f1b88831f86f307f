"""What the planner knows of a database, or does not know yet, decides how fast a statement is, never by how much.

Rows that statements looked at, as PostgreSQL counts them, in databases that mislead its planner.
"""

# ruff: noqa: S608  names of tables are constants of these tests

import pytest

from storage.model import Parent
from storage.postgres import threads as threads_sql
from storage.postgres.checkpoints import LOAD_AT_ONCE
from tests.support.own_database import rows
from tests.support.states import document, history, load, put, save, state, write

TABLES = ("threads", "heads", "checkpoints", "chunks", "pending_writes", "checkpoint_tags")
STEPS = 12
COPIED = 300
THREADS = 3_000


@pytest.fixture
def admin(own_database):
    return own_database.admin


async def read(store, admin, table):
    """How many rows of a table were read so far: by scans of the whole table, and by look-ups."""
    return (await rows(store, admin))[table][:2]


async def test_a_save_and_its_writes_scan_no_table_however_misleading_its_statistics(own_store, admin, scope):
    first = await save(own_store, scope, content=state(a=document("a")))
    # One checkpoint has nearly all pending writes there are: whoever looks for one seems to find it at once.
    await admin.execute(
        "INSERT INTO stateroom.pending_writes (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id,"
        " idx, task_path, channel, created_at, key_version, piece_ids, value, member)"
        " SELECT $1, 'user-1', 'other', '', $2, 'task', n, '', 'c', now(), 1, '', 'x', $3"
        " FROM generate_series(1, 500) n",
        scope.tenant_id, first.checkpoint_id, bytes(16),
    )  # fmt: skip
    await admin.execute("ANALYZE stateroom.pending_writes, stateroom.checkpoints, stateroom.threads, stateroom.heads")
    before = {table: await read(own_store, admin, table) for table in TABLES}
    for step in range(STEPS):
        saved = await save(own_store, scope, content=state(a=document(f"{step}")))
        await put(own_store, scope, saved.checkpoint_id, write(0, "m", document(f"w{step}")))
    for table in TABLES:
        scanned, _ = await read(own_store, admin, table)
        assert scanned == before[table][0], table


async def test_one_thread_is_found_at_once_among_many_of_its_subject(own_store, admin, scope):
    """Many subjects have one thread each, so that nothing says that this one has thousands."""
    first = await save(own_store, scope)
    columns = "(tenant_id, subject_id, thread_id, status, tier, strict, activity, created_at, updated_at, seal)"
    for tenant, subject in (
        ("('00000000-0000-4000-8000-' || lpad((n % 50)::text, 12, '0'))::uuid", "'s' || n"),
        (f"'{scope.tenant_id}'::uuid", f"'{scope.subject_id}'"),
    ):
        await admin.execute(
            f"INSERT INTO stateroom.threads {columns} SELECT {tenant}, {subject}, 'x' || n, 'active', 'hot', false, 1,"
            f" now() - n * interval '1 minute', now(), 'x' FROM generate_series(1, {THREADS}) n"
        )
    await admin.execute("ANALYZE stateroom.threads")
    _, before = await read(own_store, admin, "threads")
    for step in range(STEPS):
        await save(own_store, scope, content=state(n=step))
        await put(own_store, scope, first.checkpoint_id, write(step, "m", step), task_id=f"task-{step}")
        await load(own_store, scope)
        await own_store.threads.get(scope, "t1")
    _, fetched = await read(own_store, admin, "threads")
    assert fetched - before <= 4 * 4 * STEPS
    async with own_store.unit_of_work.snapshot(scope) as transaction:  # their seals are none
        page = await transaction.fetch(threads_sql.LIST, scope.tenant_id, scope.subject_id, *(None,) * 5, 10)
    assert [each["thread_id"] for each in page][:3] == ["t1", "x1", "x2"]
    _, listed = await read(own_store, admin, "threads")
    assert listed - fetched <= 20


async def test_a_load_is_planned_once_for_a_connection_however_many_pending_writes_there_are(own_store, admin, scope):
    """Its plan costs four times what it does; the server would make one for each call once writes are analyzed."""
    saved = await save(own_store, scope, content=state(a=document("a")))
    for step in range(STEPS):
        await put(own_store, scope, saved.checkpoint_id, write(step, "m", step), task_id=f"task-{step}")
    latest = await save(own_store, scope, content=state(a=document("b")))
    await admin.execute("ANALYZE stateroom.pending_writes")
    function = LOAD_AT_ONCE.partition("FROM ")[2].partition("(")[0]
    settings = await admin.fetchval("SELECT proconfig FROM pg_proc WHERE oid = $1::regproc", function)
    assert set(settings) == {"enable_seqscan=off", "plan_cache_mode=force_generic_plan"}
    for checkpoint_id, most in ((latest.checkpoint_id, 0), (saved.checkpoint_id, 2 * STEPS)):
        before = {table: await read(own_store, admin, table) for table in TABLES}
        for _ in range(STEPS):
            await load(own_store, scope, checkpoint_id=checkpoint_id)
        for table in TABLES:
            assert (await read(own_store, admin, table))[0] == before[table][0], table
        _, fetched = await read(own_store, admin, "pending_writes")
        assert fetched - before["pending_writes"][1] <= most * STEPS


@pytest.mark.parametrize("analyzed", [True, False])
async def test_one_checkpoint_is_found_at_once_among_many_of_its_subject(own_store, admin, scope, analyzed):
    saved = await save(own_store, scope, content=state(a=document("a")))
    (names,) = await admin.fetchrow(
        "SELECT string_agg(column_name, ', ') FROM information_schema.columns"
        " WHERE table_schema = 'stateroom' AND table_name = 'checkpoints'"
        " AND column_name NOT IN ('checkpoint_id', 'subject_id')"
    )
    for subject in ("subject_id", "'s' || n"):
        await admin.execute(
            f"INSERT INTO stateroom.checkpoints ({names}, checkpoint_id, subject_id)"
            f" SELECT {names}, '0' || n, {subject} FROM stateroom.checkpoints, generate_series(1, {THREADS}) n"
            f" WHERE checkpoint_id = '{saved.checkpoint_id}'"
        )
    if analyzed:
        await admin.execute("ANALYZE stateroom.checkpoints")
    before = sum(await read(own_store, admin, "checkpoints"))
    for _ in range(STEPS):
        await load(own_store, scope)
        await load(own_store, scope, checkpoint_id=saved.checkpoint_id)
    assert sum(await read(own_store, admin, "checkpoints")) - before <= 4 * STEPS


async def test_the_newest_checkpoint_of_a_thread_is_found_at_once_beside_thousands_of_newer_ones(
    own_store, admin, scope
):
    """Each other subject has one checkpoint, so that nothing says that this one has thousands, in other threads."""
    saved = await save(own_store, scope)
    (names,) = await admin.fetchrow(
        "SELECT string_agg(column_name, ', ') FROM information_schema.columns"
        " WHERE table_schema = 'stateroom' AND table_name = 'checkpoints'"
        " AND column_name NOT IN ('checkpoint_id', 'subject_id', 'thread_id')"
    )
    for subject in ("subject_id", "'s' || n"):
        await admin.execute(
            f"INSERT INTO stateroom.checkpoints ({names}, checkpoint_id, subject_id, thread_id)"
            f" SELECT {names}, 'z' || n, {subject}, 'x' || n"
            f" FROM stateroom.checkpoints, generate_series(1, {THREADS}) n"
            f" WHERE checkpoint_id = '{saved.checkpoint_id}'"
        )
    await admin.execute("ANALYZE stateroom.checkpoints")
    before = sum(await read(own_store, admin, "checkpoints"))
    for step in range(STEPS):
        await save(own_store, scope, content=state(n=step))
        await load(own_store, scope)
        await save(own_store, scope, content=state(n=-step), parent=Parent(saved.checkpoint_id), fork=True)
        await own_store.threads.get(scope, "t1")
    assert sum(await read(own_store, admin, "checkpoints")) - before <= 8 * STEPS


async def test_a_copy_of_many_tagged_checkpoints_looks_at_each_a_few_times(own_store, admin, scope):
    for step in range(COPIED):
        await save(own_store, scope, content=state(n=step))
    place = (scope.tenant_id, scope.subject_id)
    await admin.execute(
        "UPDATE stateroom.checkpoints SET searchable = CASE WHEN step % 3 > 0 THEN ARRAY['k' || step % 3] END"
        " WHERE tenant_id = $1 AND subject_id = $2",
        *place,
    )
    before = sum(await read(own_store, admin, "checkpoints"))
    copied = await own_store.threads.copy(scope, "t1", "t2")
    assert copied.checkpoints == COPIED
    assert sum(await read(own_store, admin, "checkpoints")) - before <= 4 * COPIED
    tagged = "SELECT step, searchable FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2"
    ours, theirs = [
        await admin.fetch(f"{tagged} AND thread_id = '{thread_id}' ORDER BY step", *place) for thread_id in ("t1", "t2")
    ]
    assert ours == theirs
    assert len(await history(own_store, scope, thread_id="t2", limit=COPIED)) == COPIED
