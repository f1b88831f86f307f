"""Segments: old checkpoints leave the database while their thread goes on, and readers see the same."""

import asyncio
from random import Random  # noqa: TID251  seeded

import pytest

from storage.archive.segmenting import SegmentBounds, Segmenting
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import SEGMENTS
from storage.errors import (
    CheckpointExists,
    CheckpointNotFound,
    FeatureOff,
    ParentUnknown,
    QuotaExceeded,
    ThreadNotFound,
)
from storage.model import HistoryQuery, Parent
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import threads as threads_sql
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fill, fsck, moved, opened, rows, seen
from tests.support.features import switch_on
from tests.support.interleaving import Gate, Steered
from tests.support.states import contents, document, load, put, save, state, write

OLD = ThinningRule(keep_last=2)


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        yield made


async def chat(store, scope, turns, thread_id="t1", **parts):
    """A chat that grows by a message a turn, each a checkpoint with a pending write; returns the ids."""
    messages, ids = [], []
    for number in range(turns):
        messages.append(document(f"{thread_id}-{number}", 700))
        saved = await save(store, scope, thread_id, content=state(messages=messages, note=number), step=number, **parts)
        await put(store, scope, saved.checkpoint_id, write(0, "messages", f"w{number}"), thread_id=thread_id)
        ids.append(saved.checkpoint_id)
    return ids


async def move(store, scope, rule=OLD, thread_id="t1"):
    return await store.archives.segmenting.move(scope, thread_id, rule, actor="test")


async def clean(store, scope, thread_id="t1"):
    report = await store.verification.thread(scope, thread_id)
    assert report.findings == []
    assert (await fsck(store, scope)).faults == {}
    return report


async def test_old_checkpoints_move_out_and_back_and_readers_see_the_same(store, scope, admin):
    ids = await chat(store, scope, 12)
    before, hot = await moved(admin, scope), await seen(store, scope)
    seals = [await rows(admin, scope, "t1", table) for table in ("heads",)]

    done = await move(store, scope)

    assert (done.segments, done.checkpoints, done.pending_writes) == (1, 10, 10)
    assert {row["checkpoint_id"] for row in await rows(admin, scope, "t1", "checkpoints")} == {*ids[-2:]}
    assert [await rows(admin, scope, "t1", table) for table in ("heads",)] == seals
    assert await seen(store, scope) == hot
    assert (await clean(store, scope)).checkpoints == 12

    assert await store.archives.restore(scope, "t1")

    assert await moved(admin, scope) == before
    assert await rows(admin, scope, "t1", "archives") == []
    assert (await rows(admin, scope, "t1", "threads"))[0]["cold"] is None
    assert await seen(store, scope) == hot
    await clean(store, scope)


async def test_a_thread_with_something_of_everything_reads_the_same(store, scope, admin):
    await fill(store, scope)
    hot, before = await seen(store, scope), await moved(admin, scope)
    done = await move(store, scope, ThinningRule(keep_last=1))
    assert done.checkpoints == 2
    assert await seen(store, scope) == hot
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    assert await moved(admin, scope) == before


async def test_moving_again_takes_what_became_old_into_the_same_volume(store, scope, admin):
    await chat(store, scope, 6)
    await move(store, scope)
    await chat_on(store, scope, 6)
    done = await move(store, scope)
    assert done.segments == 1
    stubs = await rows(admin, scope, "t1", "archives")
    assert sorted((row["segment"], row["volume"]) for row in stubs) == [(1, 1), (2, 1)]
    assert (await move(store, scope)).segments == 0
    assert len((await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=100))).items) == 12
    await clean(store, scope)


async def test_a_segment_has_room_for_so_many_bytes_of_pieces_and_for_one_checkpoint_with_more(store, scope, admin):
    random = Random(8)  # noqa: S311  the same bytes each time, which nothing makes shorter

    async def add(mib):
        lines = [random.randbytes(2048) for _ in range(mib * 512)]
        return (await save(store, scope, content=state(lines=lines))).checkpoint_id

    sizes = [3, 3, 3, 10, 3, 1, 1, 1, 1]  # the last one stays
    ids = [await add(mib) for mib in sizes]
    hot = [contents(await load(store, scope, checkpoint_id=each)) for each in ids]

    done = await move(store, scope, ThinningRule(keep_last=1))

    assert (done.segments, done.checkpoints) == (4, 8)
    stubs = sorted(await rows(admin, scope, "t1", "archives"), key=lambda row: row["segment"])
    assert [row["checkpoints"] for row in stubs] == [2, 1, 1, 4]
    assert [contents(await load(store, scope, checkpoint_id=each)) for each in ids] == hot
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    assert [contents(await load(store, scope, checkpoint_id=each)) for each in ids] == hot


async def chat_on(store, scope, turns):
    messages = contents(await load(store, scope))["messages"]
    for number in range(turns):
        messages.append(document(f"more-{number}", 700))
        await save(store, scope, content=state(messages=messages, note=number))


def held_at(store, gate, bounds=None):
    """What moves old checkpoints, and stops at a gate."""
    access = Steered(store, before=gate).pruning._access
    archives = store.archives
    return Segmenting(
        access, archives.objects, store.archive_writer, store.audit, archives.bringing_back, bounds=bounds
    )


async def waiting(admin):
    """Return once somebody waits for a lock of a row."""
    for _ in range(500):
        if await admin.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            return
        await asyncio.sleep(0.01)
    pytest.fail("nobody waits for a lock")


async def test_a_thread_that_is_deleted_while_its_checkpoints_move_is_not_found(store, scope, admin):
    await chat(store, scope, 4)
    gate = Gate(archives_sql.WAIT_BRIEFLY)
    task = asyncio.create_task(held_at(store, gate).move(scope, "t1", OLD, actor="test"))
    await gate.arrival()
    await store.threads.delete(scope, "t1")
    gate.opened.set()
    with pytest.raises(ThreadNotFound):
        await task
    assert await rows(admin, scope, "t1", "archives") == []


async def test_who_holds_the_lock_and_waits_for_rows_that_move_goes_first(store, scope, admin):
    await chat(store, scope, 4)
    gate = Gate(threads_sql.LOCK)
    task = asyncio.create_task(held_at(store, gate).move(scope, "t1", OLD, actor="test"))
    await gate.arrival()
    deleting = asyncio.create_task(store.threads.delete(scope, "t1"))
    await waiting(admin)
    gate.opened.set()
    await deleting
    with pytest.raises(ThreadNotFound):
        await task
    assert await rows(admin, scope, "t1", "archives") == []


async def test_rows_move_under_the_lock_where_somebody_holds_it_for_long(store, scope, admin):
    ids = await chat(store, scope, 6)
    gate = Gate(threads_sql.LOCK)
    task = asyncio.create_task(held_at(store, gate).move(scope, "t1", OLD, actor="test"))
    await gate.arrival()
    async with store.unit_of_work.begin(scope) as transaction:
        await transaction.fetch_one(threads_sql.LOCK, thread_id="t1")
        gate.opened.set()
        await asyncio.sleep(0.5)
    assert (await task).checkpoints == 4
    assert {row["checkpoint_id"] for row in await rows(admin, scope, "t1", "checkpoints")} == {*ids[-2:]}
    await clean(store, scope)


async def test_a_write_to_a_checkpoint_whose_rows_were_taken_is_not_lost(store, scope, admin):
    ids = await chat(store, scope, 6)
    gate = Gate(threads_sql.LOCK)
    task = asyncio.create_task(held_at(store, gate).move(scope, "t1", OLD, actor="test"))
    await gate.arrival()
    putting = asyncio.create_task(put(store, scope, ids[1], write(7, "messages", "late")))
    await asyncio.wait([putting], timeout=0.2)
    gate.opened.set()
    assert (await putting).stored == 1
    assert (await task).checkpoints == 4
    again = await put(store, scope, ids[1], write(7, "messages", "late"))
    assert (again.stored, again.unchanged) == (0, 1)
    await clean(store, scope)


async def test_what_came_keeps_its_line_from_every_later_segment(store, scope, admin):
    ids = await chat(store, scope, 8)
    gate = Gate(threads_sql.LOCK)
    moving = held_at(store, gate, SegmentBounds(checkpoints_max=2))
    task = asyncio.create_task(moving.move(scope, "t1", OLD, actor="test"))
    await gate.arrival()
    fork = await save(store, scope, parent=Parent(ids[3]), fork=True, content=state(note="fork"), source="fork")
    gate.opened.set()
    await task
    left = {row["checkpoint_id"] for row in await rows(admin, scope, "t1", "checkpoints")}
    assert {ids[3], fork.checkpoint_id} <= left
    await clean(store, scope)


# --- writes to what is cold ------------------------------------------------------------------------------------------


async def test_what_is_written_to_a_cold_checkpoint_is_what_it_would_be_to_a_hot_one(store, scope, admin):
    ids = await chat(store, scope, 8)
    await move(store, scope)
    again = await put(store, scope, ids[2], write(0, "messages", "w2"))
    assert (again.stored, again.unchanged) == (0, 1)
    await clean(store, scope)
    await move(store, scope)
    new = await put(store, scope, ids[3], write(5, "messages", "later"), status="failed")
    assert (new.stored, new.unchanged) == (1, 0)
    assert (await load(store, scope, checkpoint_id=ids[3])).status == "failed"
    await clean(store, scope)


async def test_other_content_under_the_id_of_a_cold_checkpoint_is_refused(store, scope):
    ids = await chat(store, scope, 8)
    await move(store, scope)
    with pytest.raises(CheckpointExists):
        await save(store, scope, checkpoint_id=ids[1], content=state(note="other"))
    await clean(store, scope)


async def test_a_fork_from_a_cold_checkpoint_goes_on_from_it(store, scope):
    ids = await chat(store, scope, 8)
    await move(store, scope)
    saved = await save(store, scope, parent=Parent(ids[2]), fork=True, content=state(note="fork"), source="fork")
    assert saved.parent_id == ids[2]
    await clean(store, scope)
    with pytest.raises(ParentUnknown):
        await save(store, scope, parent=Parent(ids[2][:-1] + "z"), fork=True, content=state(note="fork"))


async def test_a_checkpoint_that_never_was_is_not_found(store, scope):
    ids = await chat(store, scope, 8)
    await move(store, scope)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=ids[2][:-1] + "z")


# --- verbs that take the thread whole --------------------------------------------------------------------------------


async def test_verbs_that_need_all_of_a_thread_bring_it_back(store, scope, admin):
    ids = await chat(store, scope, 8)
    await move(store, scope)
    copied = await store.threads.copy(scope, "t1", "t2")
    assert copied.checkpoints == 8
    assert await rows(admin, scope, "t1", "archives") == []
    await move(store, scope)
    removed = await store.threads.prune(scope, ["t1"], "keep_latest")
    assert removed.checkpoints == 7
    await clean(store, scope)
    await move(store, scope, thread_id="t2")
    removed = await store.threads.delete(scope, "t2")
    assert removed.checkpoints == 8
    assert await rows(admin, scope, "t2", "archives") == []
    assert ids


async def test_a_thread_with_segments_is_archived_and_restored(store, scope, admin):
    await chat(store, scope, 8)
    hot, before = await seen(store, scope), await moved(admin, scope)
    await move(store, scope)
    assert (await store.archives.archive(scope, "t1")).stub.checkpoints == 2
    assert await seen(store, scope) == hot
    await clean(store, scope)
    saved = await save(store, scope, content=state(note="goes on"), precondition=None)
    assert saved.created
    assert {row["segment"] for row in await rows(admin, scope, "t1", "archives")} == {1}
    assert await store.archives.restore(scope, "t1")
    assert {row["checkpoint_id"] for row in before["checkpoints"]} < {
        row["checkpoint_id"] for row in await rows(admin, scope, "t1", "checkpoints")
    }
    await clean(store, scope)


async def test_thinning_leaves_what_is_cold(store, scope):
    await chat(store, scope, 12)
    await move(store, scope, ThinningRule(keep_last=6))
    removed = await store.pruning.thin(scope, "t1", ThinningRule(keep_last=2))
    assert removed.checkpoints == 4
    assert len((await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=100))).items) == 8
    await clean(store, scope)


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_nothing_moves_before_the_feature_is_on(database, root_key, scope, admin):
    await admin.execute("DELETE FROM stateroom.deployment_features WHERE feature = $1", SEGMENTS.name)
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await chat(made, scope, 4)
        with pytest.raises(FeatureOff):
            await move(made, scope)


async def test_a_thread_that_is_not_there_is_not_moved(store, scope):
    with pytest.raises(ThreadNotFound):
        await move(store, scope)


async def test_a_segment_counts_against_the_tenants_bytes(store, scope, admin):
    await chat(store, scope, 6)
    usage = "SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1"
    before = await admin.fetchval(usage, scope.tenant_id) or 0
    done = await move(store, scope)
    assert await admin.fetchval(usage, scope.tenant_id) == before + done.size_bytes
    await chat_on(store, scope, 3)
    await admin.execute("UPDATE stateroom.blob_usage SET quota_bytes = bytes WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(QuotaExceeded):
        await move(store, scope)
    assert len((await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=100))).items) == 9
    await clean(store, scope)
