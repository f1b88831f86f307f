"""Namespaces of finished calls leave the database with their heads, read the same, and come back when written to."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from datetime import UTC, datetime

import pytest

from crypto import KeyDestroyed
from storage.archive.choosing import SegmentBounds
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import (
    CheckpointExists,
    CheckpointNotFound,
    HeadExists,
    HeadMoved,
    IntegrityFailure,
    LegalHold,
    RollbackDetected,
    ThreadArchived,
)
from storage.model import Compaction, HistoryQuery, Load, Parent, Precondition, Save, TaskWritesQuery
from storage.retention.planner import Policy
from storage.scope import ClientShare, TenantScope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fsck, moved, opened, rows, seen
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.features import switch_on
from tests.support.segments import move_within
from tests.support.states import contents, document, history, load, patch, put, save, state, write

OLD = ThinningRule(keep_last=1)
# Everything but heads that stay: what the verb by hand says with nothing to keep.
ALL = ThinningRule(made_since=datetime(2100, 1, 1, tzinfo=UTC))


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        await switch_on(made, COLD_NAMESPACES)
        yield made


@pytest.fixture
async def another(database, root_key, store):
    """Another process on the same database and buckets."""
    async with opened(database, root_key, blobs=store.blobs, archive=store.archive) as made:
        yield made


async def call(store, scope, name, steps=2, thread_id="t1", **parts):
    """A call of a sub-agent at what the root stands at; returns the ids of its checkpoints."""
    at = (await load(store, scope, thread_id)).checkpoint_id
    ids = []
    for number in range(steps):
        content = state(inner=document(f"{name}-{number}", 900), step=number)
        saved = await save(
            store, scope, thread_id, namespace=name, content=content, metadata={"parents": {"": at}}, **parts
        )
        ids.append(saved.checkpoint_id)
    await put(store, scope, ids[-1], write(0, "inner", name), namespace=name, thread_id=thread_id)
    return ids


async def agent(store, scope, turns, thread_id="t1", steps=2):
    """Turns of an agent, each with a call of a sub-agent; returns the names of those."""
    names = []
    for number in range(turns):
        await save(store, scope, thread_id, content=state(turn=number, text=document(f"turn {number}", 900)))
        names.append(f"work:{number}")
        await call(store, scope, names[-1], steps, thread_id)
    await save(store, scope, thread_id, content=state(turn=turns))
    return names


async def move(store, scope, rule=OLD, thread_id="t1", checkpoints_max=1000):
    return await move_within(SegmentBounds(checkpoints_max), store, scope, rule, thread_id=thread_id)


async def hot_heads(admin, scope, thread_id="t1"):
    return {row["namespace"] for row in await rows(admin, scope, thread_id, "heads")}


async def clean(store, scope, thread_id="t1"):
    report = await store.verification.thread(scope, thread_id)
    assert report.findings == []
    assert (await fsck(store, scope)).faults == {}
    return report


async def everything(store, scope, names, thread_id="t1"):
    """What readers see, of the thread and of each namespace by itself."""
    found = [await seen(store, scope, thread_id)]
    for name in names:
        found.append(await history(store, scope, thread_id=thread_id, namespace=name, with_state=True))
        loaded = await store.checkpoints.load(scope, Load(thread_id, name, None, with_state=True))
        found.append(loaded)
        written = TaskWritesQuery(thread_id, name, loaded.head_id, "task")
        found.append(await store.checkpoints.task_writes(scope, written))
    return found


@pytest.mark.parametrize("checkpoints_max", [1000, 3, 1])
async def test_finished_calls_leave_with_their_heads_and_readers_see_the_same(store, scope, admin, checkpoints_max):
    names = await agent(store, scope, 4)
    heads, before = await rows(admin, scope, "t1", "heads"), await moved(admin, scope)
    [thread] = await rows(admin, scope, "t1", "threads")
    hot = await everything(store, scope, names)

    done = await move(store, scope, checkpoints_max=checkpoints_max)

    assert (done.checkpoints, done.pending_writes) == (12, 4)
    assert await hot_heads(admin, scope) == {""}
    assert len(await rows(admin, scope, "t1", "checkpoints")) == 1
    assert (await rows(admin, scope, "t1", "threads"))[0]["seal"] == thread["seal"]
    assert await everything(store, scope, names) == hot
    assert (await clean(store, scope)).checkpoints == 13
    assert (await store.threads.get(scope, "t1")).segmented
    assert await store.archives.restore(scope, "t1")

    assert await rows(admin, scope, "t1", "heads") == heads
    assert await moved(admin, scope) == before
    [thread] = await rows(admin, scope, "t1", "threads")
    assert (thread["cold"], thread["cold_namespaces"]) == (None, None)
    assert await everything(store, scope, names) == hot
    await clean(store, scope)


async def test_an_archived_thread_reads_namespaces_that_left_before(store, scope, admin):
    names = await agent(store, scope, 3)
    hot, before = await everything(store, scope, names), await moved(admin, scope)
    await move(store, scope, checkpoints_max=2)
    assert (await store.archives.archive(scope, "t1")).created
    assert await everything(store, scope, names) == hot
    await clean(store, scope)
    saved = await save(store, scope, namespace=names[1], content=state(goes="on"))
    assert saved.created
    assert saved.sequence == 4
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    assert len((await moved(admin, scope))["checkpoints"]) == len(before["checkpoints"]) + 1


async def test_of_a_thread_under_a_share_only_its_client_lets_namespaces_leave_and_anybody_brings_them_back(
    store, scope, admin
):
    share = ClientShare(b"s" * 32)
    saved = {}
    for name in ("", "work:1", "work:2", ""):
        metadata = {"parents": {"": "gone"}} if name else {}
        new = Save(thread_id="t1", namespace=name, content=state(name=name), metadata=metadata)
        saved[name] = await store.checkpoints.save(scope, new, share)
    hot, heads = await seen(store, scope, share=share), await rows(admin, scope, "t1", "heads")
    await store.archives.segmenting.move(scope, "t1", OLD, actor="test", share=share)
    assert await hot_heads(admin, scope) == {""}
    assert await seen(store, scope, share=share) == hot
    known = Load("t1", "work:1", None, with_state=True, known_token=saved["work:1"].token)
    loaded = await store.checkpoints.load(scope, known, share)
    assert loaded.head_id == saved["work:1"].checkpoint_id
    new = Save(thread_id="t1", namespace="work:1", content=state(a=1), precondition=Precondition(absent=True))
    with pytest.raises(HeadExists):
        await store.checkpoints.save(scope, new, share)
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    assert await rows(admin, scope, "t1", "heads") == heads
    assert await seen(store, scope, share=share) == hot


async def test_a_namespace_that_never_was_is_not_found_beside_those_that_left(store, scope, admin):
    await agent(store, scope, 2)
    await move(store, scope)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, namespace="work:new")
    assert await history(store, scope, thread_id="t1", namespace="work:new") == []
    assert (await store.archives.archive(scope, "t1")).created
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, namespace="work:new")


async def test_a_listing_of_a_namespace_fetches_only_what_may_have_some_of_it(database, root_key, scope, admin):
    archive = FaultyBlobStore(MemoryBlobStore())
    async with opened(database, root_key, archive=archive) as store:
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(store, each)
        names = await agent(store, scope, 4)
        await move(store, scope, checkpoints_max=3)
        assert len(await rows(admin, scope, "t1", "archives")) == 4
        archive.calls.clear()
        assert len(await history(store, scope, thread_id="t1", namespace=names[1])) == 2
        assert archive.calls == ["get_range"]
        await save(store, scope, namespace="work:new")
        archive.calls.clear()
        assert len(await history(store, scope, thread_id="t1", namespace="work:new")) == 1
        assert await history(store, scope, thread_id="t1", namespace="never") == []
        assert archive.calls == []


# --- what stays ------------------------------------------------------------------------------------------------------


async def test_a_call_at_which_the_agent_stands_or_that_waits_stays(store, scope, admin):
    await save(store, scope, content=state(turn=0))
    await call(store, scope, "asks:1", status="waiting")
    await call(store, scope, "over:1")
    await save(store, scope, content=state(turn=1))
    await call(store, scope, "runs:1")
    await save(store, scope, namespace="remembers", content=state(turn=1))
    await move(store, scope)
    assert await hot_heads(admin, scope) == {"", "asks:1", "runs:1", "remembers"}
    await clean(store, scope)


@pytest.mark.parametrize("rule", [ThinningRule(keep_last=1), ThinningRule(keep_first=1), ThinningRule(every=1)])
async def test_what_is_kept_by_its_number_is_kept_of_namespaces_that_go_on(store, scope, admin, rule):
    await agent(store, scope, 2)
    await save(store, scope, namespace="remembers", content=state(turn=1))
    await save(store, scope, content=state(turn=5))
    await move(store, scope, rule)
    assert await hot_heads(admin, scope) == {"", "remembers"}


async def test_any_namespace_leaves_of_which_nothing_is_kept(store, scope, admin):
    await save(store, scope, content=state(turn=0))
    for name in ("remembers", "plain", "failed", "written", "early", "sub|1"):
        status = "failed" if name == "failed" else "active"
        saved = await save(store, scope, namespace=name, content=state(turn=1), status=status)
    [at] = [each for each in await history(store, scope, thread_id="t1") if each.namespace == "written"]
    await put(store, scope, at.checkpoint_id, write(0, "c", 1), namespace="written")
    await put(store, scope, "z-never-saved", write(0, "c", 1), namespace="early")
    await save(store, scope, content=state(turn=2))
    young = ThinningRule(made_since=datetime(2000, 1, 1, tzinfo=UTC))
    assert (await move(store, scope, young)).segments == 0
    kept = {"failed", "written", "early"}
    since = datetime(2000, 1, 1, tzinfo=UTC)
    rule = ThinningRule(made_since=ALL.made_since, keep_statuses=frozenset({"failed"}), writes_since=since)
    await move(store, scope, rule)
    assert await hot_heads(admin, scope) == {"", *kept}
    await clean(store, scope)
    assert saved.created


async def test_the_newest_checkpoint_of_a_thread_stays_whosever_it_is(store, scope, admin):
    for name in ("a", "b", "c"):
        await save(store, scope, namespace=name, content=state(name=name))
    await move(store, scope, ALL)
    assert await hot_heads(admin, scope) == {"c"}
    assert len(await history(store, scope, thread_id="t1")) == 3
    await clean(store, scope)


async def test_a_namespace_with_something_inside_an_older_range_stays(store, scope, admin):
    """Ranges do not overlap: what became free there stays until the segment comes back."""
    names = await agent(store, scope, 2)
    await admin.execute("DELETE FROM stateroom.deployment_features WHERE feature = $1", COLD_NAMESPACES.name)
    store.features._since.pop(COLD_NAMESPACES.name)
    await move(store, scope)
    assert await hot_heads(admin, scope) == {"", *names}
    await switch_on(store, COLD_NAMESPACES)
    hot = await everything(store, scope, names)
    await move(store, scope)
    # Of the last call the head is behind the range: it leaves, with a checkpoint in another segment.
    assert await hot_heads(admin, scope) == {"", names[0]}
    assert await everything(store, scope, names) == hot
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    assert await everything(store, scope, names) == hot


async def test_before_the_feature_is_on_heads_stay(database, root_key, scope, admin):
    await admin.execute("DELETE FROM stateroom.deployment_features WHERE feature = $1", COLD_NAMESPACES.name)
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        names = await agent(made, scope, 2)
        await move(made, scope)
        assert await hot_heads(admin, scope) == {"", *names}
        [thread] = await rows(admin, scope, "t1", "threads")
        assert thread["cold_namespaces"] is None
        await clean(made, scope)


# --- writes ----------------------------------------------------------------------------------------------------------


async def segmented(store, scope, admin, turns=3, **options):
    names = await agent(store, scope, turns)
    await move(store, scope, **options)
    assert await hot_heads(admin, scope) == {""}
    return names


async def test_a_save_goes_on_from_the_head_that_left(store, scope, admin):
    names = await segmented(store, scope, admin)
    [head, *_] = await history(store, scope, thread_id="t1", namespace=names[0])
    saved = await save(store, scope, namespace=names[0], content=state(on=1))
    assert (saved.parent_id, saved.step, saved.sequence) == (head.checkpoint_id, head.step + 1, 4)
    assert len(await history(store, scope, thread_id="t1", namespace=names[0])) == 3
    assert names[0] in await hot_heads(admin, scope)
    await clean(store, scope)


async def test_who_believes_that_a_cold_namespace_is_not_there_is_told_its_head(store, scope, admin):
    names = await segmented(store, scope, admin)
    [head, *_] = await history(store, scope, thread_id="t1", namespace=names[1])
    with pytest.raises(HeadExists) as refused:
        await save(store, scope, namespace=names[1], precondition=Precondition(absent=True))
    assert refused.value.head_id == head.checkpoint_id
    assert await hot_heads(admin, scope) == {""}
    with pytest.raises(HeadMoved):
        await save(store, scope, namespace=names[1], precondition=Precondition(head_id="other"))
    assert (await save(store, scope, namespace="work:new", precondition=Precondition(absent=True))).created
    await clean(store, scope)


async def test_every_other_write_to_a_cold_namespace_is_what_it_would_be_to_a_hot_one(store, scope, admin):
    names = await segmented(store, scope, admin, turns=6)
    heads = {name: (await history(store, scope, thread_id="t1", namespace=name))[0] for name in names}

    again = await put(store, scope, heads[names[0]].checkpoint_id, write(0, "inner", names[0]), namespace=names[0])
    assert (again.stored, again.unchanged) == (0, 1)
    await move(store, scope)

    early = await put(store, scope, "z-to-come", write(0, "inner", 1), namespace=names[1], task_id="early")
    assert (early.stored, early.unchanged) == (1, 0)
    assert (await save(store, scope, namespace=names[1], checkpoint_id="z-to-come")).sequence == 4
    await move(store, scope)

    older = (await history(store, scope, thread_id="t1", namespace=names[2]))[1].checkpoint_id
    await put(store, scope, older, write(3, "inner", "late"), namespace=names[2], status="failed")
    loaded = await store.checkpoints.load(scope, Load("t1", names[2], older, with_state=True))
    assert loaded.checkpoint.status == "failed"
    await move(store, scope)

    believed = Precondition(head_id=heads[names[3]].checkpoint_id)
    await save(store, scope, namespace=names[3], content=patch(put={"more": 1}), precondition=believed)
    assert contents(await load(store, scope, namespace=names[3]))["more"] == 1
    await move(store, scope)

    with pytest.raises(CheckpointExists):
        await save(
            store, scope, namespace=names[4], checkpoint_id=heads[names[4]].checkpoint_id, content=state(other=1)
        )
    await move(store, scope)

    forked = await save(
        store, scope, namespace=names[5], parent=Parent(heads[names[5]].parent_id), fork=True, source="fork"
    )
    assert forked.parent_id == heads[names[5]].parent_id
    await clean(store, scope)


async def test_a_compaction_brings_its_namespace_back(store, scope, admin):
    await save(store, scope, content=state(turn=0))
    await save(store, scope, namespace="work:1", content=state(items=[1, 2, 3]), metadata={"parents": {"": "gone"}})
    await save(store, scope, content=state(turn=1))
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    compaction = Compaction(thread_id="t1", namespace="work:1", channel="items", keep_last=1)
    await store.compacting.compact(scope, compaction)
    assert contents(await load(store, scope, namespace="work:1"))["items"] == [3]
    with pytest.raises(CheckpointNotFound):
        await store.compacting.compact(
            scope, Compaction(thread_id="t1", namespace="never", channel="items", keep_last=1)
        )
    await clean(store, scope)


async def test_tokens_of_a_namespace_that_left_hold(store, scope, admin):
    await save(store, scope, content=state(turn=0))
    first = await save(store, scope, namespace="work:1", metadata={"parents": {"": "gone"}})
    last = await save(store, scope, namespace="work:1", metadata={"parents": {"": "gone"}})
    await save(store, scope, content=state(turn=1))
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    for token in (first.token, last.token):
        loaded = await store.checkpoints.load(scope, Load("t1", "work:1", None, with_state=True, known_token=token))
        assert loaded.head_id == last.checkpoint_id
        assert loaded.token == last.token
        page = await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", known_token=token))
        assert len(page.items) == 4
    assert (await save(store, scope, namespace="work:1", known_token=last.token)).sequence == 3


async def test_two_writers_of_a_cold_namespace_make_one_head(store, another, scope, admin):
    names = await segmented(store, scope, admin)

    def saving(process, number, **parts):
        return save(process, scope, namespace=names[1], content=state(by=number), **parts)

    absent = Precondition(absent=True)
    found = await asyncio.gather(
        *(saving(each, 0, precondition=absent) for each in (store, another)), return_exceptions=True
    )
    assert [type(each) for each in found] == [HeadExists, HeadExists]

    saved = await asyncio.gather(*(saving((store, another)[each % 2], each) for each in range(6)))
    assert sorted(each.sequence for each in saved) == list(range(4, 10))
    assert [row["sequence"] for row in await rows(admin, scope, "t1", "heads") if row["namespace"] == names[1]] == [9]
    await clean(store, scope)

    await move(store, scope)
    head = (await history(store, scope, thread_id="t1", namespace=names[1]))[0].checkpoint_id
    found = await asyncio.gather(
        *(saving(each, 9, precondition=Precondition(head_id=head)) for each in (store, another)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in found) == ["HeadMoved", "Saved"]
    await clean(store, scope)


async def test_writers_and_moves_at_the_same_time_leave_one_head_of_each_namespace(store, another, scope, admin):
    """Namespaces leave and come back while two processes write to them; what was acknowledged is there, once."""
    names = await agent(store, scope, 4)
    acknowledged = {row["checkpoint_id"] for row in await rows(admin, scope, "t1", "checkpoints")}
    stop = asyncio.Event()

    async def moving():
        while not stop.is_set():
            await move(store, scope, ALL, checkpoints_max=3)

    async def writing(process, number):
        for turn in range(12):
            name = names[(turn + number) % len(names)]
            if turn % 3 == 2:
                parts = {"precondition": Precondition(absent=True)}
                with pytest.raises(HeadExists):
                    await save(process, scope, namespace=name, **parts)
            saved = await save(process, scope, namespace=name, content=state(by=number, turn=turn))
            acknowledged.add(saved.checkpoint_id)
            await save(process, scope, content=state(root=turn, by=number))

    mover = asyncio.create_task(moving())
    try:
        await asyncio.gather(writing(store, 0), writing(another, 1))
    finally:
        stop.set()
        await mover
    await move(store, scope, ALL)
    assert await hot_heads(admin, scope) == {""}
    found = [each.checkpoint_id for each in await history(store, scope, thread_id="t1", limit=1000)]
    assert len(found) == len({*found})
    assert acknowledged <= {*found}
    for name in names:
        assert len(await history(store, scope, thread_id="t1", namespace=name, limit=1000)) == 2 + 6
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    assert len(await rows(admin, scope, "t1", "heads")) == 1 + len(names)
    await clean(store, scope)


async def test_a_segment_comes_back_after_the_heads_of_its_namespaces(store, scope, admin):
    """One that has only the older part of a namespace: its head comes first, so that no checkpoint is without one."""
    await save(store, scope, content=state(turn=0))
    ids = await call(store, scope, "work:1", steps=5)
    await save(store, scope, content=state(turn=1))
    await move(store, scope, checkpoints_max=2)
    assert len(await rows(admin, scope, "t1", "archives")) == 3
    first = min(await rows(admin, scope, "t1", "archives"), key=lambda row: row["first_id"])
    await admin.execute("SELECT 1")
    assert await store.archives.bringing_back.bring_back(scope, "t1", first["segment"], actor="test") == 6
    assert await hot_heads(admin, scope) == {"", "work:1"}
    assert len(await history(store, scope, thread_id="t1", namespace="work:1")) == len(ids)
    await clean(store, scope)


# --- verbs on the whole thread ---------------------------------------------------------------------------------------


async def test_verbs_that_need_all_of_a_thread_bring_its_namespaces_back(store, scope, admin):
    names = await segmented(store, scope, admin)
    copied = await store.threads.copy(scope, "t1", "t2")
    assert copied.checkpoints == 10
    await clean(store, scope, "t2")
    assert await hot_heads(admin, scope, "t2") == {"", *names}
    await move(store, scope, thread_id="t2")
    removed = await store.threads.prune(scope, ["t2"], "keep_latest")
    assert removed.checkpoints == 9
    await clean(store, scope, "t2")
    await move(store, scope)
    removed = await store.threads.delete(scope, "t1")
    assert (removed.checkpoints, removed.pending_writes) == (10, 3)
    for table in ("archives", "heads", "threads"):
        assert await rows(admin, scope, "t1", table) == []


async def test_runs_are_deleted_wherever_they_are(store, scope, admin):
    await save(store, scope, content=state(turn=0))
    await call(store, scope, "work:1", run_id="run-1")
    await call(store, scope, "work:2", run_id="run-2")
    await save(store, scope, content=state(turn=1))
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    removed = await store.threads.delete_runs(scope, ["run-1"])
    assert removed.checkpoints == 2
    assert await hot_heads(admin, scope) == {"", "work:2"}
    await clean(store, scope)


async def test_thinning_leaves_namespaces_that_left(store, scope, admin):
    names = await segmented(store, scope, admin)
    for number in range(4):
        await save(store, scope, content=state(more=number))
    removed = await store.pruning.thin(scope, "t1", ThinningRule(keep_last=2))
    assert removed.checkpoints == 3
    assert await hot_heads(admin, scope) == {""}
    assert len(await history(store, scope, thread_id="t1", namespace=names[0])) == 2
    await clean(store, scope)


async def test_a_frozen_namespace_is_neither_read_nor_written(database, root_key, scope, admin):
    archive = MemoryBlobStore(storage_class="STANDARD", thaw_seconds=3600)
    async with opened(database, root_key, archive=archive) as store:
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(store, each)
        names = await agent(store, scope, 2)
        await store.archives.segmenting.move(scope, "t1", OLD, actor="test", storage_class="GLACIER")
        assert await hot_heads(admin, scope) == {""}
        with pytest.raises(ThreadArchived):
            await load(store, scope, namespace=names[0])
        with pytest.raises(ThreadArchived):
            await save(store, scope, namespace=names[0])
        with pytest.raises(HeadExists):
            await save(store, scope, namespace=names[0], precondition=Precondition(absent=True))
        assert (await save(store, scope, namespace="work:new")).created
        assert contents(await load(store, scope))


async def test_a_hold_lets_namespaces_leave_and_keeps_all_from_being_deleted(store, scope, admin):
    await agent(store, scope, 2)
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True), "test")
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    with pytest.raises(LegalHold):
        await store.threads.delete(scope, "t1")
    with pytest.raises(LegalHold):
        await store.threads.prune(scope, ["t1"], "keep_latest")
    assert len(await history(store, scope, thread_id="t1")) == 7
    await clean(store, scope)


# --- honesty ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        "cold_namespaces = NULL",
        "cold_namespaces = ''",
        "cold_namespaces = substr(cold_namespaces, 13)",
        "cold_namespaces = set_byte(cold_namespaces, 0, get_byte(cold_namespaces, 0) # 1)",
        "cold_namespaces = set_byte(cold_namespaces, 11, get_byte(cold_namespaces, 11) # 1)",
        "cold_namespaces = cold_namespaces || substr(cold_namespaces, 1, 12)",
    ],
)
async def test_an_edited_directory_is_refused_and_makes_no_second_head(store, scope, admin, edit):
    names = await segmented(store, scope, admin)
    await admin.execute(f"UPDATE stateroom.threads SET {edit} WHERE tenant_id = $1", scope.tenant_id)
    for name in (*names, "work:new"):
        with pytest.raises(IntegrityFailure):
            await save(store, scope, namespace=name)
        with pytest.raises(IntegrityFailure):
            await put(store, scope, "z", write(0, "c", 1), namespace=name)
        with pytest.raises((IntegrityFailure, RollbackDetected)):
            await load(store, scope, namespace=name)
    assert await hot_heads(admin, scope) == {""}
    assert {each.code for each in (await store.verification.subject(scope)).findings} == {"archive"}
    assert contents(await load(store, scope))


async def test_a_head_put_back_beside_its_segment_is_found(store, scope, admin):
    await agent(store, scope, 2)
    head = next(row for row in await rows(admin, scope, "t1", "heads") if row["namespace"])
    await move(store, scope)
    names = list(head)
    places = ", ".join(f"${at + 1}" for at in range(len(names)))
    await admin.execute(f"INSERT INTO stateroom.heads ({', '.join(names)}) VALUES ({places})", *head.values())
    for read in (history(store, scope, thread_id="t1"), store.threads.get(scope, "t1")):
        with pytest.raises(IntegrityFailure):
            await read
    assert "namespaces" in {each.code for each in (await store.verification.subject(scope)).findings}
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")


async def test_sums_of_before_a_namespace_left_are_found(store, scope, admin):
    await agent(store, scope, 3)
    await move(store, scope, ThinningRule(keep_last=1, keep_statuses=frozenset({"active"})))
    [before] = await rows(admin, scope, "t1", "threads")
    await move(store, scope)
    await admin.execute(
        "UPDATE stateroom.threads SET cold = $2, cold_namespaces = $3 WHERE tenant_id = $1",
        scope.tenant_id, before["cold"], before["cold_namespaces"],
    )  # fmt: skip
    with pytest.raises(IntegrityFailure):
        await history(store, scope, thread_id="t1")
    assert "namespaces" in {each.code for each in (await store.verification.subject(scope)).findings}


async def test_anchored_heads_that_left_are_accounted_for(store, scope, admin):
    names = await segmented(store, scope, admin)
    await store.head_anchors.flush()
    await clean(store, scope)
    assert (await store.verification.subject(scope)).findings == []
    assert names


async def test_a_segment_keeps_the_key_versions_that_its_heads_need(store, scope, admin):
    """Also of a head that is sealed under another version than its checkpoint, as after a pending write."""
    await agent(store, scope, 1)
    await move(store, scope)
    assert await store.archives.restore(scope, "t1")
    job_id = (await store.rotation.rotate_subject(scope, "tester")).job_id
    [head, *_] = await history(store, scope, thread_id="t1", namespace="work:0")
    await put(store, scope, head.checkpoint_id, write(9, "c", "late"), namespace="work:0")
    await move(store, scope)
    assert await hot_heads(admin, scope) == {""}
    [stub] = await rows(admin, scope, "t1", "archives")
    assert stub["key_versions"] == [1, 2]
    await ended(store, scope, job_id)
    assert len((await load(store, scope, namespace="work:0")).writes) == 2
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    await ended(store, scope, (await store.rotation.rotate_subject(scope, "tester")).job_id)
    assert len((await load(store, scope, namespace="work:0")).writes) == 2
    await clean(store, scope)


async def ended(store, scope, job_id):
    """Run jobs until one has ended."""
    async with asyncio.timeout(60):
        while (await store.jobs.get(TenantScope(scope.tenant_id), job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()


async def test_a_shred_reaches_namespaces_that_left_at_once(store, scope, admin):
    names = await segmented(store, scope, admin)
    shredded = await store.shred.subject(scope, scope.subject_id, "tester")
    with pytest.raises((KeyDestroyed, CheckpointNotFound)):
        await load(store, scope, namespace=names[0])
    await ended(store, scope, shredded.job_id)
    for table in ("archives", "heads", "threads"):
        assert await rows(admin, scope, "t1", table) == []


# --- how much stays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calls", [40, pytest.param(2000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["hundred", "thousands"]
)
async def test_heads_in_the_database_are_bounded_however_many_calls_there_were(store, scope, admin, calls):
    """Calls without end: heads, sums and what a load carries do not grow with them."""
    sizes = []
    for _ in range(3):
        for number in range(calls):
            await save(store, scope, content=state(turn=number))
            await call(store, scope, f"work:{len(sizes)}-{number}", steps=1)
        await save(store, scope, content=state(turn=-1))
        await move(store, scope)
        assert await hot_heads(admin, scope) == {""}
        [thread] = await rows(admin, scope, "t1", "threads")
        assert len(thread["cold_namespaces"]) == 12 * calls * (len(sizes) + 1)
        sizes.append(len(thread["cold"]))
    assert max(sizes) - min(sizes) < 16
    await clean(store, scope)
