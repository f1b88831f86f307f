"""What the planner knows of a database, or does not know yet, decides how fast a statement is, never by how much.

Rows that statements looked at, as PostgreSQL counts them, in databases that mislead its planner.
"""

# ruff: noqa: S608  names of tables are constants of these tests

import re

import pytest

from storage.model import Parent
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.checkpoints import LOAD, PUT_WRITES_ON, SAVE_ON
from tests.support.own_database import rows
from tests.support.states import document, history, load, put, save, state, write

TABLES = ("threads", "heads", "checkpoints", "chunks", "pending_writes", "checkpoint_tags")
STEPS = 12
COPIED = 300
THREADS = 3_000
FEW, MILLION = 20_000, 1_000_000
CHILDREN, PAGE = 100_000, 1_000


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
        nothing = dict.fromkeys(("status", "agent", "tier", "after_at", "after_thread"))
        page = await transaction.fetch_all(threads_sql.LIST, **nothing, limit=10)
    assert [each.thread_id for each in page][:3] == ["t1", "x1", "x2"]
    _, listed = await read(own_store, admin, "threads")
    assert listed - fetched <= 20


async def test_a_page_of_many_children_looks_at_that_page_only(own_store, admin, scope):
    """A hundred thousand children, of which some are of one moment, among as many other threads of the subject."""
    await save(own_store, scope)
    columns = "tenant_id, subject_id, status, tier, strict, activity, updated_at, seal"
    await admin.execute(
        f"INSERT INTO stateroom.threads ({columns}, thread_id, created_at, parent_thread_id)"
        f" SELECT {columns}, 'x' || n, created_at - (n / 10) * interval '1 second',"
        f" CASE WHEN n % 2 = 0 THEN 't1' WHEN n % 20 = 1 THEN 'other' END"
        f" FROM stateroom.threads, generate_series(1, {2 * CHILDREN}) n WHERE tenant_id = $1",
        scope.tenant_id,
    )
    await admin.execute("ANALYZE stateroom.threads")
    _, before = await read(own_store, admin, "threads")
    found, after, pages = set(), None, 0
    while True:
        page = await own_store.links.children(scope, "t1", limit=PAGE, after=after)
        found |= {each.thread_id for each in page.items}
        pages, after = pages + 1, page.after
        if after is None:
            break
    _, fetched = await read(own_store, admin, "threads")
    assert (len(found), pages) == (CHILDREN, CHILDREN // PAGE + 1)
    # Each child and its parent, which is looked for; and what of its moment was on the page before.
    assert fetched - before <= 2 * CHILDREN + 20 * pages


async def _fill(admin, tenant_id, count):
    """Fill the tables with copies of one row each, of other tenants' threads, and analyze them.

    A fifth of the rows are those of twenty busy threads, the others of many with five each.
    """
    thread = f"CASE WHEN n % 5 > 0 THEN n % {count // 5} ELSE n % 20 END"
    other = {
        "tenant_id": f"('00000000-0000-4000-8000-' || lpad((({thread}) % 50)::text, 12, '0'))::uuid",
        "subject_id": f"'s' || ({thread}) % 1000",
        "thread_id": f"'x' || ({thread})",
        "checkpoint_id": "lpad((n - n % 3)::text, 36, '0')",
        "piece_id": "decode(md5(n::text) || '00', 'hex')",
        "idx": "n",
        **dict.fromkeys(("envelope", "manifest", "value", "seal"), "'x'"),
    }
    await admin.execute("SET session_replication_role = replica; SET synchronous_commit = off")
    for table in ("threads", "heads", "checkpoints", "chunks", "pending_writes"):
        columns = [
            row["column_name"]
            for row in await admin.fetch(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_schema = 'stateroom' AND table_name = $1 AND is_generated = 'NEVER'",
                table,
            )
        ]
        await admin.execute(
            f"INSERT INTO stateroom.{table} ({', '.join(columns)})"
            f" SELECT {', '.join(other.get(each, f'c.{each}') for each in columns)}"
            f" FROM (SELECT * FROM stateroom.{table} WHERE tenant_id = $1 LIMIT 1) c, generate_series(1, {count}) n"
            f" ON CONFLICT DO NOTHING",
            tenant_id,
        )
    await admin.execute(f"ANALYZE {', '.join(f'stateroom.{each}' for each in TABLES)}")


@pytest.mark.parametrize("count", [FEW, pytest.param(MILLION, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
async def test_what_agents_do_at_every_step_is_planned_once_for_a_connection_and_looks_up_what_it_needs(
    own_store, admin, scope, count
):
    """Statistics make a plan for each call seem cheaper than one for all of them, which it never is: it costs more.

    Listings are left out, whose conditions say what they are worth a plan for; so is what a process does once.
    """
    first = await save(own_store, scope, content=state(a=document("a")))
    await put(own_store, scope, first.checkpoint_id, write(0, "m", document("w")))
    await _fill(admin, scope.tenant_id, count)
    before = {table: await read(own_store, admin, table) for table in TABLES}
    for step in range(STEPS):
        saved = await save(own_store, scope, content=state(a=document(f"{step}")))
        await put(own_store, scope, saved.checkpoint_id, write(0, "m", document(f"w{step}")))
        await load(own_store, scope)
        await load(own_store, scope, checkpoint_id=first.checkpoint_id)
        await put(own_store, scope, first.checkpoint_id, write(0, "m", step), task_id=f"task-{step}")
        await save(own_store, scope, content=state(n=step), parent=Parent(first.checkpoint_id), fork=True)
        await save(own_store, scope, thread_id=f"new-{step}", content=state(n=step))
    for table in TABLES:
        scanned, fetched = await read(own_store, admin, table)
        assert scanned == before[table][0], table
        # A load of an older checkpoint reads the members of all pending writes of its thread: the most there are here.
        assert fetched - before[table][1] <= (4 * STEPS + 30) * STEPS, table
    for function in (SAVE_ON.text, PUT_WRITES_ON.text, LOAD.text):
        name = re.search(r"stateroom\.\w+", function)[0]
        settings = await admin.fetchval("SELECT proconfig FROM pg_proc WHERE oid = $1::regproc", name)
        assert set(settings) == {"enable_seqscan=off", "plan_cache_mode=force_generic_plan"}
    async with own_store.unit_of_work.connection() as connection:
        planned = await connection.fetch("SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements")
    # The server tries five plans of their own before it compares, where nothing is said.
    assert [each["statement"] for each in planned if each["custom_plans"] > 5] == []
    assert sum(each["generic_plans"] > 0 for each in planned if "stateroom." in each["statement"]) >= 6


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
