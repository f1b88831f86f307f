"""What a process remembers of a thread spares the next write its reading, and the database is believed, not it."""

# ruff: noqa: S608  table names are constants of these tests

import asyncio

import asyncpg
import pytest

from crypto import KeyDestroyed
from storage.access.remembered import EARLY_MAX, ENTRIES_MAX, KEPT_SECONDS, RememberedHeads, reachable
from storage.errors import CheckpointExists, HeadMoved, IntegrityFailure, PreconditionRequired
from storage.model import ChannelValue, FullState, Parent, Precondition
from storage.scope import Scope
from tests.support.costs import CountedGateway
from tests.support.interleaving import blocked
from tests.support.states import contents, document, history, load, patch, put, save, state, write, writes_of

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"
ID_3 = "1f0c0000-0000-6000-8000-000000000003"


@pytest.fixture
def gateway(store):
    return CountedGateway(store)


@pytest.fixture
def other(store):
    return CountedGateway(store)


async def test_a_save_on_what_was_just_saved_reads_nothing(store, scope, gateway):
    await save(gateway, scope, content=state(a=document("a"), n=1))
    assert gateway.counted() == 4  # OPEN, WRITE, the seal of a new namespace, COMMIT
    for number in range(2, 5):
        saved = await save(gateway, scope, content=state(a=document("a"), b=document(f"b{number}"), n=number))
    assert gateway.counted() == 0
    loaded = await load(store, scope)
    assert contents(loaded) == {"a": document("a"), "b": document("b4"), "n": 4}
    assert (loaded.checkpoint_id, loaded.step) == (saved.checkpoint_id, 3)
    assert [each.step for each in await history(store, scope, thread_id="t1")] == [3, 2, 1, 0]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_a_run_as_langgraph_makes_it_reads_nothing_after_its_first_save(store, scope, gateway):
    await save(
        gateway, scope, checkpoint_id=ID_1, step=0, content=FullState({"a": _value("a", 1), "m": _value("m", 1)})
    )
    gateway.counted()
    await put(gateway, scope, ID_1, write(0, "m", document("said")), write(1, "branch", "x"))
    unchanged = {"a": ChannelValue(1, None), "m": _value("m2", 2)}
    await save(gateway, scope, checkpoint_id=ID_2, step=1, parent=Parent(ID_1), content=FullState(unchanged))
    await put(gateway, scope, ID_2, write(-1, "__error__", "e"), status="failed")
    assert gateway.counted() == 0
    first, second = await load(store, scope, checkpoint_id=ID_1), await load(store, scope)
    assert writes_of(first) == [("task", 0, "m", document("said")), ("task", 1, "branch", "x")]
    assert contents(second) == {"a": document("a"), "m": document("m2")}
    assert (second.status, writes_of(second)) == ("failed", [("task", -1, "__error__", "e")])
    assert (await store.threads.get(scope, "t1")).status == "failed"
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_who_writes_at_the_same_moment_waits_for_what_the_other_leaves_and_reads_nothing(store, scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1)
    gateway.counted()
    # As a graph does: its tasks' writes and its next checkpoint, each on its own.
    await asyncio.gather(
        put(gateway, scope, ID_1, write(0, "m", "a"), task_id="a"),
        put(gateway, scope, ID_1, write(0, "m", "b"), task_id="b"),
        save(gateway, scope, checkpoint_id=ID_2, content=state(n=2)),
        put(gateway, scope, ID_2, write(0, "m", "c")),
    )
    assert gateway.counted() == 0
    assert [each[3] for each in writes_of(await load(store, scope, checkpoint_id=ID_1))] == ["a", "b"]
    assert [each[3] for each in writes_of(await load(store, scope))] == ["c"]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_who_waits_fails_or_gives_up_holds_nobody_up(scope, gateway):
    for thread_id in ("t0", "t1"):
        await save(gateway, scope, thread_id, checkpoint_id=ID_1)
    remembered_heads = gateway.checkpoints._access.remembered_heads
    async with remembered_heads.turn(scope, "t0"):
        waiting = asyncio.create_task(save(gateway, scope, "t0", checkpoint_id=ID_2))
        for number in range(40):  # long enough for the other's connection
            await save(gateway, scope, "t1", content=state(n=number))
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    with pytest.raises(CheckpointExists):
        await save(gateway, scope, "t0", checkpoint_id=ID_1, content=state(n="other"))
    await save(gateway, scope, "t0", checkpoint_id=ID_2)


def _value(name, version):
    return ChannelValue(version, state(x=document(name)).channels["x"].value)


async def test_an_equal_value_is_sent_once(scope, gateway, admin):
    for number in range(3):
        await save(gateway, scope, content=state(a=document("same", 50_000), n=number))
    rows = await admin.fetch("SELECT xmin FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)
    assert len({row["xmin"] for row in rows}) == 1


async def test_another_process_that_saved_meanwhile_is_not_overwritten(store, scope, gateway, other):
    await save(gateway, scope, content=state(n=1))
    between = await save(other, scope, content=state(n=2))
    gateway.counted()
    last = await save(gateway, scope, content=state(n=3))
    assert gateway.counted() > 0
    assert last.parent_id == between.checkpoint_id
    assert [contents(await load(store, scope, checkpoint_id=each.checkpoint_id)) for each in (between, last)] == [
        {"n": 2},
        {"n": 3},
    ]


async def test_a_precondition_is_compared_with_the_database_and_not_with_what_is_remembered(scope, gateway, other):
    first = await save(gateway, scope)
    second = await save(other, scope)
    with pytest.raises(HeadMoved) as refused:
        await save(gateway, scope, precondition=Precondition(first.checkpoint_id))
    assert refused.value.head_id == second.checkpoint_id
    held = await save(gateway, scope, precondition=Precondition(second.checkpoint_id))
    assert held.parent_id == second.checkpoint_id


async def test_a_stale_refusal_is_not_given(scope, gateway, other):
    await save(gateway, scope)
    second = await save(other, scope)
    saved = await save(gateway, scope, precondition=Precondition(second.checkpoint_id))
    assert saved.parent_id == second.checkpoint_id


async def test_writes_that_another_process_put_are_kept(store, scope, gateway, other):
    await save(gateway, scope, checkpoint_id=ID_1)
    await put(other, scope, ID_1, write(0, "m", "theirs"), task_id="a")
    await put(gateway, scope, ID_1, write(0, "m", "ours"), task_id="b")
    await put(other, scope, ID_2, write(0, "m", "early"), task_id="a")
    await save(gateway, scope, checkpoint_id=ID_2, content=state(n=2))
    assert [each[3] for each in writes_of(await load(store, scope, checkpoint_id=ID_1))] == ["theirs", "ours"]
    assert [each[3] for each in writes_of(await load(store, scope))] == ["early"]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_writes_that_came_before_their_checkpoint_by_the_same_process_are_sealed_into_the_head(
    store, scope, gateway
):
    await save(gateway, scope, checkpoint_id=ID_1)
    await put(gateway, scope, ID_2, write(0, "m", "early"), status="failed")
    await save(gateway, scope, checkpoint_id=ID_2, content=state(n=2))
    loaded = await load(store, scope)
    assert (loaded.status, [each[3] for each in writes_of(loaded)]) == ("failed", ["early"])


async def test_writes_before_their_checkpoint_and_its_save_read_nothing(store, scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1)
    gateway.counted()
    first = await put(gateway, scope, ID_2, write(0, "m", document("said")), write(1, "branch", "x"), task_id="a")
    await put(gateway, scope, ID_3, write(0, "m", "later"))
    await put(gateway, scope, ID_1, write(0, "m", "of the head"))
    await put(gateway, scope, ID_2, write(0, "m", "b"), task_id="b")
    await save(gateway, scope, checkpoint_id=ID_2, content=state(n=2))
    of_head = await put(gateway, scope, ID_2, write(0, "m", "c"), task_id="c")
    await save(gateway, scope, checkpoint_id=ID_3, content=state(n=3))
    assert gateway.counted() == 0
    assert (first.stored, first.token, of_head.token is None) == (2, None, False)
    loaded = [await load(store, scope, checkpoint_id=each) for each in (ID_1, ID_2, None)]
    assert [[each[3] for each in writes_of(found)] for found in loaded] == [
        ["of the head"],
        [document("said"), "x", "b", "c"],
        ["later"],
    ]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_writes_of_a_checkpoint_that_another_process_saved_meanwhile_count_for_the_head(
    store, scope, gateway, other
):
    await save(gateway, scope, checkpoint_id=ID_1)
    await save(other, scope, checkpoint_id=ID_2)
    await put(gateway, scope, ID_2, write(0, "m", "not early any more"))  # of which this process knows nothing
    assert [each[3] for each in writes_of(await load(store, scope))] == ["not early any more"]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_early_writes_of_two_processes_are_all_sealed_into_the_head(store, scope, gateway, other):
    await save(gateway, scope, checkpoint_id=ID_1)
    await put(gateway, scope, ID_2, write(0, "m", "ours"), task_id="a")
    await put(other, scope, ID_2, write(0, "m", "theirs"), task_id="b")
    await save(gateway, scope, checkpoint_id=ID_2)
    assert [each[3] for each in writes_of(await load(store, scope))] == ["ours", "theirs"]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_the_same_early_writes_again_change_nothing(store, scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1)
    first, again = [await put(gateway, scope, ID_2, write(0, "m", content)) for content in ("x", "y")]
    await save(gateway, scope, checkpoint_id=ID_2)
    assert (first.stored, again.stored, again.unchanged) == (1, 0, 1)
    assert [each[3] for each in writes_of(await load(store, scope))] == ["x"]


async def test_writes_of_more_checkpoints_to_come_than_are_remembered_are_kept(store, scope, gateway):
    ids = [f"1f0c0000-0000-6000-8000-{number:012}" for number in range(EARLY_MAX + 3)]
    await save(gateway, scope, checkpoint_id=ids[0])
    for each in ids[1:]:
        await put(gateway, scope, each, write(0, "m", each))
    for each in ids[1:]:
        await save(gateway, scope, checkpoint_id=each)
        assert [put[3] for put in writes_of(await load(store, scope))] == [each]
    assert (await store.verification.thread(scope, "t1")).findings == []


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1",
        "UPDATE stateroom.pending_writes SET task_id = 'other' WHERE tenant_id = $1",
        "UPDATE stateroom.pending_writes SET member = decode(repeat('00', 16), 'hex') WHERE tenant_id = $1",
        "UPDATE stateroom.pending_writes SET checkpoint_id = '" + ID_3 + "' WHERE tenant_id = $1",
    ],
)
async def test_who_touches_an_early_write_before_its_checkpoint_comes_is_found_out(
    store, scope, gateway, admin, attack
):
    await save(gateway, scope, checkpoint_id=ID_1)
    await put(gateway, scope, ID_2, write(0, "m", "early"))
    await admin.execute(attack, scope.tenant_id)
    await save(gateway, scope, checkpoint_id=ID_2)
    assert (await store.verification.thread(scope, "t1")).findings


async def test_the_same_writes_again_change_nothing(store, scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1)
    first = await put(gateway, scope, ID_1, write(0, "m", "x"), write(-1, "e", "1"))
    again = await put(gateway, scope, ID_1, write(0, "m", "y"), write(-1, "e", "2"))
    assert (first.stored, again.stored, again.unchanged) == (2, 1, 1)
    assert [each[3] for each in writes_of(await load(store, scope))] == ["2", "x"]


async def test_the_same_save_again_is_a_no_op_and_another_one_a_conflict(scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1, content=state(n=1))
    first = await save(gateway, scope, checkpoint_id=ID_2, content=state(n=2))
    again = await save(gateway, scope, checkpoint_id=ID_2, content=state(n=2))
    assert (first.created, again.created) == (True, False)
    with pytest.raises(CheckpointExists):
        await save(gateway, scope, checkpoint_id=ID_2, content=state(n=3))


async def test_a_thread_that_was_deleted_and_made_again_is_another_one(store, scope, gateway, other):
    await save(gateway, scope, content=state(a=document("a")))
    await other.threads.delete(scope, "t1")
    await save(other, scope, content=state(n=1))
    await save(gateway, scope, content=state(a=document("a")))
    assert contents(await load(store, scope)) == {"a": document("a")}
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_pieces_that_were_pruned_meanwhile_are_stored_again(store, scope, gateway, other):
    await save(gateway, scope, content=state(a=document("a"), b=document("b")))
    await save(other, scope, content=state(n=1))
    await other.threads.prune(scope, ["t1"], "keep_latest")
    await save(gateway, scope, content=state(a=document("a"), b=document("c")))
    assert contents(await load(store, scope)) == {"a": document("a"), "b": document("c")}


async def test_a_thread_that_became_strict_refuses(store, scope, gateway):
    await save(gateway, scope)
    await store.threads.put(scope, "t1", strict=True)
    with pytest.raises(PreconditionRequired):
        await save(gateway, scope)


async def test_a_patch_and_a_fork_read_what_they_stand_on(store, scope, gateway):
    first = await save(gateway, scope, content=state(items=[1], n=1))
    second = await save(gateway, scope, content=state(items=[1], n=2))
    gateway.counted()
    patched = await save(
        gateway, scope, content=patch(append={"items": [2]}), precondition=Precondition(second.checkpoint_id)
    )
    assert gateway.counted() > 0
    assert contents(await load(store, scope)) == {"items": [1, 2], "n": 2}
    forked = await save(gateway, scope, parent=Parent(first.checkpoint_id), content=state(n=9))
    assert gateway.counted() > 0
    assert (forked.parent_id, patched.parent_id) == (first.checkpoint_id, second.checkpoint_id)


@pytest.mark.parametrize("verb", ["save", "put_writes"])
async def test_who_waited_while_the_subject_was_shredded_is_refused_and_stores_nothing(
    store, scope, gateway, admin, database, verb
):
    await save(gateway, scope, checkpoint_id=ID_1)
    work = {
        "save": lambda: save(gateway, scope, checkpoint_id=ID_2, content=state(a=document("late"))),
        "put_writes": lambda: put(gateway, scope, ID_1, write(0, "m", document("late"))),
    }[verb]
    holder = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        await holder.execute("BEGIN")
        await holder.execute("SELECT FROM stateroom.threads WHERE tenant_id = $1 FOR UPDATE", scope.tenant_id)
        task = asyncio.create_task(work())
        await blocked(admin)
        await store.shred.subject(scope, scope.subject_id, "api-key:test")
        await holder.execute("COMMIT")
        with pytest.raises(KeyDestroyed):
            await task
    finally:
        await holder.close()
    for table, count in (("checkpoints", 1), ("pending_writes", 0), ("chunks", 0)):
        assert count == await admin.fetchval(
            f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id
        )


@pytest.mark.parametrize("table", ["threads", "heads"])
async def test_a_seal_that_was_put_back_from_outside_is_not_written_over(scope, gateway, admin, table):
    await save(gateway, scope, content=state(n=1))
    old = await admin.fetchrow(f"SELECT seal FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)
    await put(gateway, scope, (await save(gateway, scope, content=state(n=2))).checkpoint_id, write(0, "m", "x"))
    await admin.execute(f"UPDATE stateroom.{table} SET seal = $2 WHERE tenant_id = $1", scope.tenant_id, old["seal"])
    if table == "heads":
        with pytest.raises(IntegrityFailure):
            await save(gateway, scope, content=state(n=3))
    else:  # the thread's own sum of writes is compared when it is read as a whole
        await save(gateway, scope, content=state(n=3))
        with pytest.raises(IntegrityFailure):
            await gateway.threads.prune(scope, ["t1"], "keep_latest")


async def test_a_binding_ends_with_the_function_that_made_it(store, scope, gateway):
    await save(gateway, scope)
    await save(gateway, scope)
    async with store.unit_of_work.connection() as connection:
        for setting in ("app.tenant_id", "app.subject_id", "app.operator", "app.tenant_listing"):
            assert (await connection.fetchval("SELECT current_setting($1, true)", setting)) in {None, ""}
        assert await connection.fetchval("SELECT count(*) FROM stateroom.threads") == 0


async def test_many_writers_of_one_thread_in_two_processes_lose_nothing(store, scope, gateway, other):
    await asyncio.gather(
        *(save(each, scope, content=state(n=number)) for number in range(10) for each in (gateway, other))
    )
    rows = await history(store, scope, thread_id="t1", with_state=True)
    assert sorted(contents(each)["n"] for each in rows) == sorted([*range(10), *range(10)])
    assert [each.parent_id for each in rows[:-1]] == [each.checkpoint_id for each in rows[1:]]
    assert (await store.verification.thread(scope, "t1")).findings == []


# --- the memory itself ---------------------------------------------------------------------------------------------


async def test_what_is_remembered_is_bounded_and_ends(scope, gateway):
    await save(gateway, scope)
    access = gateway.checkpoints._access
    sealer = await access._keys.sealer(scope)
    head = access.remembered_heads.take(scope, sealer, "t1", "")
    assert access.remembered_heads.take(scope, sealer, "t1", "") is None
    seconds = [0.0]
    remembered_heads = RememberedHeads(lambda: seconds[0])
    remembered_heads.remember(scope, sealer, head)
    seconds[0] = KEPT_SECONDS + 1
    assert remembered_heads.take(scope, sealer, "t1", "") is None
    remembered_heads.remember(scope, sealer, head)
    remembered_heads.forget(scope)
    assert remembered_heads.take(scope, sealer, "t1", "") is None
    for number in range(ENTRIES_MAX + 2):
        remembered_heads.remember(Scope(scope.tenant_id, f"user-{number}"), sealer, head)
    kept = [
        number
        for number in range(ENTRIES_MAX + 2)
        if remembered_heads.take(Scope(scope.tenant_id, f"user-{number}"), sealer, "t1", "")
    ]
    assert kept == list(range(2, ENTRIES_MAX + 2))


def test_only_pieces_that_are_reached_are_known():
    a, b, c, d = (bytes([n]) * 17 for n in range(4))
    known = {a: b + c, b: None, c: None, d: None}
    assert reachable([a], known) == {a: b + c, b: None, c: None}
    assert reachable([b], {}, known) == {b: None}
    assert reachable([c], {}) == {}
