# ruff: noqa: S608  table and column names are constants of these tests

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgpack
import pytest

from storage.clock import ManualClock
from storage.errors import (
    CheckpointNotFound,
    DeltaChainNeeded,
    IntegrityFailure,
    InvalidState,
    ThreadExists,
    ThreadNotFound,
)
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    FullState,
    Load,
    Parent,
    Precondition,
    TaskWritesQuery,
    Value,
)
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.states import (
    contents,
    document,
    history,
    list_with_indexes,
    load,
    packed,
    patch,
    put,
    save,
    state,
    write,
    writes_of,
)
from tests.support.stores import DEPLOYMENT_ID


async def chunks(admin, scope, thread_id="t1"):
    return await admin.fetchval(
        "SELECT count(*) FROM stateroom.chunks WHERE tenant_id = $1 AND thread_id = $2", scope.tenant_id, thread_id
    )


async def rows(admin, scope, thread_id):
    counts = {}
    for table in ("threads", "heads", "checkpoints", "chunks", "pending_writes"):
        counts[table] = await admin.fetchval(
            f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1 AND thread_id = $2",
            scope.tenant_id,
            thread_id,
        )
    return counts


async def test_threads_are_listed_newest_first_and_paged(database, root_key, scope):
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    store = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=2,
        durable=False,
        options=StoreOptions(clock=clock),
    )
    try:
        for number in range(5):
            await save(
                store, scope, f"t{number}", agent="a" if number % 2 else "b", status="done" if number == 4 else "active"
            )
            if number != 2:  # two threads of one moment
                clock.set(clock.now() + timedelta(seconds=1))
        seen, after = [], None
        while True:
            page = await store.threads.list(scope, limit=2, after=after)
            seen += [each.thread_id for each in page.items]
            if (after := page.after) is None:
                break
        assert seen == ["t4", "t3", "t2", "t1", "t0"]
        assert [each.thread_id for each in (await store.threads.list(scope, agent="a")).items] == ["t3", "t1"]
        assert [each.thread_id for each in (await store.threads.list(scope, status="done")).items] == ["t4"]
        assert (await store.threads.list(scope, tier="archive")).items == []
        assert len((await store.threads.list(scope, tier="hot")).items) == 5
    finally:
        await store.close()


async def test_a_thread_shows_its_record(store, scope):
    saved = await save(store, scope, agent="travel", status="waiting")
    thread = await store.threads.get(scope, "t1")
    assert (thread.agent, thread.status, thread.tier, thread.strict) == ("travel", "waiting", "hot", False)
    assert thread.head_id == saved.checkpoint_id
    assert thread.created_at <= thread.updated_at


async def test_settings_are_set_where_given(store, scope):
    made, created = await store.threads.put(scope, "t1", strict=True, agent="a", agent_given=True)
    assert (made.strict, made.agent, made.head_id, created) == (True, "a", None, True)
    same, created = await store.threads.put(scope, "t1")
    assert (same.agent, created) == ("a", False)
    cleared, _ = await store.threads.put(scope, "t1", agent=None, agent_given=True)
    assert (cleared.strict, cleared.agent) == (True, None)
    await save(store, scope, precondition=Precondition(absent=True))
    loose, _ = await store.threads.put(scope, "t1", strict=False)
    assert loose.strict is False


async def test_unknown_threads_are_not_found(store, scope):
    nobody = Scope(uuid4(), "nobody")
    await save(store, scope)
    for where in (scope, nobody):
        with pytest.raises(ThreadNotFound):
            await store.threads.get(where, "t2")
        with pytest.raises(ThreadNotFound):
            await store.threads.delete(where, "t2")
        with pytest.raises(ThreadNotFound):
            await store.threads.copy(where, "t2", "t3")
        removal = await store.threads.prune(where, ["t2"], "keep_latest")
        assert (removal.threads, removal.checkpoints) == (0, 0)
        assert (await store.threads.prune(where, ["t2"], "delete")).threads == 0
        assert (await store.threads.delete_runs(where, ["r"])).threads == 0
    assert (await store.threads.list(nobody)).items == []


async def test_a_copy_has_everything_and_stands_alone(store, scope, admin):
    items = list_with_indexes()
    first = await save(store, scope, content=state(items=items, note="n"), metadata={"k": "v"}, agent="a")
    second = await save(
        store,
        scope,
        content=patch(append={"items": ["more"]}),
        precondition=Precondition(head_id=first.checkpoint_id),
        status="waiting",
    )
    sub = await save(store, scope, namespace="sub", content=state(text=document("sub")))
    early = "ffffffff-ffff-6fff-bfff-ffffffffffff"
    await put(store, scope, second.checkpoint_id, write(0, "items", document("pending")), status="failed")
    await put(store, scope, early, write(0, "items", "early"), write(-1, "__error__", "x"))
    assert await admin.fetchval(
        "SELECT count(*) FROM stateroom.chunks WHERE tenant_id = $1 AND children IS NOT NULL", scope.tenant_id
    )

    copied = await store.threads.copy(scope, "t1", "t2")
    assert (copied.thread_id, copied.checkpoints, copied.pending_writes) == ("t2", 3, 3)
    await store.threads.delete(scope, "t1")

    head = await load(store, scope, "t2")
    assert (head.checkpoint_id, head.parent_id, head.status) == (second.checkpoint_id, first.checkpoint_id, "failed")
    assert contents(head) == {"items": [*items, "more"], "note": "n"}
    assert writes_of(head) == [("task", 0, "items", document("pending"))]
    old = await load(store, scope, "t2", first.checkpoint_id)
    assert (contents(old)["items"], old.metadata) == (items, {"k": "v"})
    assert (await load(store, scope, "t2", namespace="sub")).checkpoint_id == sub.checkpoint_id
    assert len(await store.checkpoints.task_writes(scope, TaskWritesQuery("t2", "", early, "task"))) == 2
    thread = await store.threads.get(scope, "t2")
    assert (thread.agent, thread.head_id) == ("a", second.checkpoint_id)
    assert (await save(store, scope, "t2")).parent_id == second.checkpoint_id
    assert (await store.threads.prune(scope, ["t2"], "keep_latest")).checkpoints == 2


async def test_a_copy_of_a_copy_and_of_an_empty_thread_works(store, scope):
    await store.threads.put(scope, "empty", strict=True)
    assert (await store.threads.copy(scope, "empty", "empty-2")).checkpoints == 0
    assert (await store.threads.get(scope, "empty-2")).strict is True
    await save(store, scope, content=state(a=document("a")))
    await store.threads.copy(scope, "t1", "t2")
    await store.threads.copy(scope, "t2", "t3")
    assert contents(await load(store, scope, "t3")) == {"a": document("a")}


async def test_a_copy_does_not_overwrite(store, scope):
    await save(store, scope)
    await save(store, scope, "t2", content=state(a=2))
    for target in ("t1", "t2"):
        with pytest.raises(ThreadExists):
            await store.threads.copy(scope, "t1", target)
    assert contents(await load(store, scope, "t2")) == {"a": 2}
    with pytest.raises(InvalidState):
        await store.threads.copy(scope, "t1", "a\0b")


async def test_long_threads_are_copied_and_pruned_in_stretches(store, scope):
    for number in range(510):
        await save(store, scope, step=number)
    copied = await store.threads.copy(scope, "t1", "t2")
    assert copied.checkpoints == 510
    assert (await store.threads.prune(scope, ["t1", "t2", "t1"], "keep_latest")).checkpoints == 1018
    assert len(await history(store, scope, limit=1000)) == 2


async def test_more_pending_writes_than_one_stretch_are_copied(store, scope):
    saved = await save(store, scope)
    for task in range(3):
        await put(
            store,
            scope,
            saved.checkpoint_id,
            *(write(number, "c", number) for number in range(-150, 150)),
            task_id=f"task-{task}",
        )
    assert (await store.threads.copy(scope, "t1", "t2")).pending_writes == 900
    assert writes_of(await load(store, scope, "t2")) == writes_of(await load(store, scope))


async def test_deleting_a_thread_leaves_no_row_of_it_and_all_of_the_others(store, scope, admin):
    for thread_id in ("t1", "t2"):
        saved = await save(store, scope, thread_id, content=state(a=document("a")))
        await save(store, scope, thread_id, namespace="sub")
        await put(store, scope, saved.checkpoint_id, write(0, "a", 1), thread_id=thread_id)
    removal = await store.threads.delete(scope, "t1")
    assert (removal.threads, removal.checkpoints, removal.pending_writes) == (1, 2, 1)
    assert set((await rows(admin, scope, "t1")).values()) == {0}
    assert contents(await load(store, scope, "t2")) == {"a": document("a")}
    with pytest.raises(CheckpointNotFound):
        await load(store, scope)


async def test_a_deleted_thread_can_be_begun_again(store, scope):
    saved = await save(store, scope, content=state(a=1))
    await store.threads.delete(scope, "t1")
    again = await save(store, scope, content=state(a=2), checkpoint_id=saved.checkpoint_id)
    assert (again.created, again.parent_id, again.sequence) == (True, None, 1)
    assert contents(await load(store, scope)) == {"a": 2}


async def test_pruning_keeps_each_namespaces_head_with_its_writes(store, scope, admin):
    old = await save(store, scope, content=state(a=document("old")))
    await put(store, scope, old.checkpoint_id, write(0, "a", document("doomed")))
    inner = await save(store, scope, namespace="sub", content=state(a=document("sub")))
    head = await save(store, scope, content=state(a=document("new")))
    await put(store, scope, head.checkpoint_id, write(0, "a", document("kept")))
    removal = await store.threads.prune(scope, ["t1"], "keep_latest")
    assert (removal.threads, removal.checkpoints, removal.pending_writes) == (1, 1, 1)
    loaded = await load(store, scope)
    assert (contents(loaded), writes_of(loaded)) == ({"a": document("new")}, [("task", 0, "a", document("kept"))])
    assert (await load(store, scope, namespace="sub")).checkpoint_id == inner.checkpoint_id
    assert await chunks(admin, scope) == 3
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).threads == 0
    assert (await save(store, scope)).parent_id == head.checkpoint_id


async def test_pruning_collects_what_replaced_writes_left_behind(store, scope, admin):
    saved = await save(store, scope)
    await put(store, scope, saved.checkpoint_id, write(-1, "__error__", document("first")))
    await put(store, scope, saved.checkpoint_id, write(-1, "__error__", document("second")))
    assert await chunks(admin, scope) == 2
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await chunks(admin, scope) == 1
    assert writes_of(await load(store, scope)) == [("task", -1, "__error__", document("second"))]


async def test_pruning_keeps_writes_whose_checkpoint_has_not_arrived(store, scope):
    early = "ffffffff-ffff-6fff-bfff-ffffffffffff"
    await save(store, scope)
    await save(store, scope)
    await put(store, scope, early, write(0, "a", document("early")))
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).pending_writes == 0
    await save(store, scope, checkpoint_id=early)
    assert writes_of(await load(store, scope)) == [("task", 0, "a", document("early"))]


async def test_pruning_keeps_the_line_a_delta_channel_is_rebuilt_from(store, scope):
    forgotten = await save(store, scope, content=state(d="older"))
    seed = await save(store, scope, content=state(d="seed"))
    await put(store, scope, seed.checkpoint_id, write(0, "d", "w1"))
    middle = await save(store, scope, content=state(x=1), delta_channels=("d",))
    await put(store, scope, middle.checkpoint_id, write(0, "d", "w2"))
    side = await save(store, scope, content=state(x=2), parent=Parent(seed.checkpoint_id))
    head = await save(store, scope, content=state(x=3), delta_channels=("d",), parent=Parent(middle.checkpoint_id))
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 2
    kept = {each.checkpoint_id for each in await history(store, scope)}
    assert kept == {seed.checkpoint_id, middle.checkpoint_id, head.checkpoint_id}
    assert {forgotten.checkpoint_id, side.checkpoint_id}.isdisjoint(kept)
    found = (await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"]))).channels["d"]
    assert msgpack.unpackb(found.seed.value.data) == "seed"
    assert [msgpack.unpackb(each.value.data) for each in found.writes] == ["w1", "w2"]


async def test_pruning_by_deletion_removes_the_threads(store, scope):
    for thread_id in ("t1", "t2", "t3"):
        await save(store, scope, thread_id)
    assert (await store.threads.prune(scope, ["t1", "t3", "t9"], "delete")).threads == 2
    assert [each.thread_id for each in (await store.threads.list(scope)).items] == ["t2"]


async def test_pieces_shared_with_a_survivor_are_kept_index_pieces_too(store, scope, admin):
    items = list_with_indexes()
    first = await save(store, scope, content=state(items=items))
    await save(
        store,
        scope,
        content=patch(append={"items": ["last"]}),
        precondition=Precondition(head_id=first.checkpoint_id),
    )
    await save(store, scope, content=state(items=items[1500:]))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert contents(await load(store, scope)) == {"items": items[1500:]}


async def test_deleting_runs_removes_their_checkpoints_everywhere(store, scope, admin):
    doomed = await save(store, scope, run_id="r1", content=state(a=document("one")))
    await put(store, scope, doomed.checkpoint_id, write(0, "a", 1))
    kept = await save(store, scope, run_id="r2", content=state(a=document("two")))
    newest = await save(store, scope, run_id="r1")
    await save(store, scope, run_id="r1", namespace="sub")
    await save(store, scope, "t2", run_id="r3")
    await save(store, scope, "t3", run_id="r2")
    removal = await store.threads.delete_runs(scope, ["r1", "r3", "r9"])
    assert (removal.threads, removal.checkpoints, removal.pending_writes) == (2, 4, 1)
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True))
    assert (loaded.head_id, contents(loaded.checkpoint)) == (kept.checkpoint_id, {"a": document("two")})
    assert await chunks(admin, scope) == 1
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, namespace="sub")
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, "t2")
    assert (await store.threads.get(scope, "t2")).head_id is None
    again = await save(store, scope)
    assert (again.parent_id, again.checkpoint_id > newest.checkpoint_id) == (kept.checkpoint_id, True)
    assert (await save(store, scope, namespace="sub")).parent_id is None
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 1


async def test_a_run_that_a_delta_channel_needs_stays_and_its_thread_is_unchanged(store, scope):
    await save(store, scope, run_id="r1", namespace="a")
    seed = await save(store, scope, run_id="r1", content=state(d=1))
    await save(store, scope, run_id="r2", content=state(x=1), delta_channels=("d",))
    with pytest.raises(DeltaChainNeeded):
        await store.threads.delete_runs(scope, ["r1"])
    assert len(await history(store, scope)) == 3
    assert (await store.threads.delete_runs(scope, ["r1", "r2"])).checkpoints == 3
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=seed.checkpoint_id)


async def test_a_thread_called_archived_that_no_archive_holds_is_not_written_copied_or_pruned(store, scope, admin):
    saved = await save(store, scope)
    await admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await save(store, scope)
    with pytest.raises(IntegrityFailure):
        await put(store, scope, saved.checkpoint_id, write(0, "a", 1))
    with pytest.raises(IntegrityFailure):
        await store.threads.copy(scope, "t1", "t2")
    with pytest.raises(IntegrityFailure):
        await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await rows(admin, scope, "t1") == {
        "threads": 1,
        "heads": 1,
        "checkpoints": 1,
        "chunks": 0,
        "pending_writes": 0,
    }


async def test_a_value_unchanged_since_a_pruned_checkpoint_survives(store, scope):
    await save(store, scope, content=FullState({"a": ChannelValue("1", packed(document("kept")))}))
    await save(
        store, scope, content=FullState({"a": ChannelValue("1", None), "b": ChannelValue(None, Value("x", b""))})
    )
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert (await load(store, scope)).channels["a"].value == packed(document("kept"))
