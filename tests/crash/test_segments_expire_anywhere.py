"""A process that dies while it lets volumes of segments go leaves a whole thread, and somebody else lets the rest go.

Death is what SIGKILL is to everybody else (`tests.crash.test_archive_dies_anywhere`): its points are the COMMITs, one
for each volume. Before and after each of them the thread reads, verifies and is written to; what a volume has is there
as a whole, or not at all.
"""

import asyncio
from datetime import UTC, datetime
from itertools import count
from uuid import uuid4

import pytest
from sqlalchemy import event

from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import Sweep
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.scope import Scope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fsck, opened, rows
from tests.support.death import Death, Died
from tests.support.features import switch_on
from tests.support.segments import ChosenBounds, move_within
from tests.support.states import document, history, put, save, state, write

ALWAYS = datetime(2100, 1, 1, tzinfo=UTC)
VOLUMES = 3


@pytest.fixture(scope="module")
async def stores(database, root_key):
    death, blobs, archive = Death(), MemoryBlobStore(), MemoryBlobStore()
    mortal = opened(database, root_key, blobs=blobs, archive=archive, observer=death)
    async with mortal as one, opened(database, root_key, blobs=blobs, archive=archive) as other:
        event.listen(one._engine.sync_engine, "checkout", death.connect)
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(other, each)
        await one.features.refresh()
        yield one, other, death
        death.at(0)


async def begin(store, scope):
    """A thread with volumes, and a namespace that is in all of them and leaves with its head in the last."""
    for volume in range(VOLUMES):
        for name in ("", "sub", "sub"):
            content = state(name=name, text=document(f"{volume}", 3000))
            saved = await save(store, scope, namespace=name, content=content)
            await put(store, scope, saved.checkpoint_id, write(0, "c", volume), namespace=name)
        await save(store, scope, content=state(volume=volume))
        rule = ThinningRule(keep_last=1) if volume + 1 < VOLUMES else ThinningRule(made_since=ALWAYS)
        await move_within(ChosenBounds(), store, scope, rule)


async def whole(store, scope, admin):
    """The ids of a thread's checkpoints, each of which reads; nothing is damaged."""
    page = await history(store, scope, thread_id="t1", with_state=True, limit=1000)
    assert (await store.verification.thread(scope, "t1")).findings == []
    assert (await fsck(store, scope)).faults == {}
    heads = {row["namespace"] for row in await rows(admin, scope, "t1", "heads")}
    assert heads == {row["namespace"] for row in await rows(admin, scope, "t1", "checkpoints")}
    return {each.checkpoint_id for each in page}


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "while others write"])
async def test_who_dies_at_any_commit_leaves_whole_volumes_or_none_and_another_ends_it(stores, admin, busy):
    mortal, living, death = stores
    for point in count(1):
        scope = Scope(uuid4(), "user-1")
        await begin(living, scope)
        listed = await rows(admin, scope, "t1", "archives")
        assert len({row["volume"] for row in listed}) == VOLUMES
        assert {row["namespace"] for row in await rows(admin, scope, "t1", "heads")} == {""}
        all_of_it = await whole(living, scope, admin)
        written = set()

        async def writing(scope=scope, written=written):
            while True:
                written.add((await save(living, scope, content=state(n="goes on"))).checkpoint_id)
                await history(living, scope, thread_id="t1", with_state=True, limit=1000)

        task = asyncio.create_task(writing()) if busy else None
        death.at(point)
        try:
            await mortal.archives.expiring.expire(scope, "t1", ALWAYS, actor="test")
        except Died:
            died = True
        else:
            died = False
        death.at(0)
        if task is not None:
            task.cancel()
            [ended] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended
        left = await whole(living, scope, admin)
        stubs = await rows(admin, scope, "t1", "archives")
        assert {row["segment"] for row in stubs} <= {row["segment"] for row in listed}
        gone = sum(row["checkpoints"] for row in listed) - sum(row["checkpoints"] for row in stubs)
        assert len(all_of_it - left) == gone
        assert written <= left
        await living.archives.expiring.expire(scope, "t1", ALWAYS, actor="test")
        left = await whole(living, scope, admin)
        assert await rows(admin, scope, "t1", "archives") == []
        assert written <= left
        assert len(left & all_of_it) == len(all_of_it) - sum(row["checkpoints"] for row in listed)
        await Sweep(living.unit_of_work, living.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
        assert await living.archive.list_keys(tenant_prefix(scope.tenant_id, "archive")) == []
        if not died:
            break
    assert point > VOLUMES
