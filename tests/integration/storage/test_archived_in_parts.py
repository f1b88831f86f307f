"""A large thread is archived in parts: its older checkpoints in segments first, so that nothing holds all of it."""

import asyncio
from types import SimpleNamespace

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import SEGMENTS
from storage.errors import ArchiveTooLarge
from storage.model import Save
from storage.scope import ClientShare
from tests.support.archive_rows import fsck, moved, opened, rows, seen
from tests.support.features import switch_on
from tests.support.states import document, put, save, state, write

TURNS = 12


class Stopped(Exception):
    pass


class Stopping(MemoryBlobStore):
    """A bucket that stops whoever stores the object of this number."""

    stops_at = None
    stored = 0

    async def put_if_absent(self, *parts, **named):
        self.stored += 1
        if self.stored == self.stops_at:
            raise Stopped
        return await super().put_if_absent(*parts, **named)


@pytest.fixture
def bucket():
    return Stopping()


@pytest.fixture
async def store(database, root_key, bucket):
    async with opened(database, root_key, archive=bucket) as made:
        await switch_on(made, SEGMENTS)
        made.archives._unsegmented_bytes_max = 20_000
        yield made


async def talk(store, scope, thread_id="t1"):
    for number in range(TURNS):
        content = state(text=document(f"{thread_id}-{number}", 5000), n=number)
        saved = await save(store, scope, thread_id, content=content, step=number)
        await put(store, scope, saved.checkpoint_id, write(0, "c", number), thread_id=thread_id)


async def test_a_large_thread_goes_in_parts_is_read_where_it_is_and_comes_back(store, scope, admin):
    await talk(store, scope)
    before, hot = await moved(admin, scope), await seen(store, scope)
    archived = await store.archives.archive(scope, "t1")
    status = await store.archives.status(scope, "t1")
    assert (status.tier, status.segments.checkpoints, archived.stub.checkpoints) == ("archive", TURNS - 1, 1)
    assert await rows(admin, scope, "t1", "checkpoints") == []
    assert await seen(store, scope) == hot
    report = await store.verification.thread(scope, "t1")
    assert (report.checkpoints, report.findings) == (TURNS, [])
    assert (await fsck(store, scope)).faults == {}
    assert await store.archives.restore(scope, "t1")
    assert await moved(admin, scope) == before
    assert await seen(store, scope) == hot


async def test_a_small_thread_is_one_object(store, scope):
    await save(store, scope, content=state(text=document("text", 5000)))
    await store.archives.archive(scope, "t1")
    assert (await store.archives.status(scope, "t1")).segments is None


@pytest.mark.parametrize("stops_at", [1, 2])
async def test_who_dies_in_between_leaves_a_hot_thread_that_is_archived_later(store, scope, bucket, stops_at):
    await talk(store, scope)
    hot = await seen(store, scope)
    bucket.stops_at = stops_at
    with pytest.raises(Stopped):
        await store.archives.archive(scope, "t1")
    status = await store.archives.status(scope, "t1")
    assert (status.tier, status.segments is not None) == ("hot", stops_at == 2)
    assert await seen(store, scope) == hot
    assert (await store.archives.archive(scope, "t1")).created
    assert await seen(store, scope) == hot


async def test_a_thread_under_a_share_goes_whole_and_only_as_far_as_a_restore_can_hold(store, scope):
    share = ClientShare(b"s" * 32)
    for number in range(6):
        content = state(text=document(f"shared-{number}", 5000))
        await store.checkpoints.save(scope, Save(thread_id="t1", content=content), share=share)
    store.archives._bytes_max = 5_000
    with pytest.raises(ArchiveTooLarge):
        await store.archives.archive(scope, "t1")
    store.archives._bytes_max = 1_000_000
    await store.archives.archive(scope, "t1")
    assert (await store.archives.status(scope, "t1")).segments is None


async def test_before_no_older_build_runs_a_large_thread_goes_whole(own_database, root_key, scope):
    database = SimpleNamespace(app_url=own_database.url(own_database.port))
    async with opened(database, root_key, archive=MemoryBlobStore()) as store:
        store.archives._unsegmented_bytes_max = 20_000
        await talk(store, scope)
        await store.archives.archive(scope, "t1")
        assert (await store.archives.status(scope, "t1")).segments is None


async def test_who_saves_while_a_large_thread_is_archived_wins(store, scope):
    await talk(store, scope)
    archiving = asyncio.create_task(store.archives.archive(scope, "t1"))
    saves = 0
    while not archiving.done():
        await save(store, scope, content=state(n=saves))
        saves += 1
    # Whichever was last: the thread is whole, and where its row says.
    await asyncio.gather(archiving, return_exceptions=True)
    report = await store.verification.thread(scope, "t1")
    assert (report.checkpoints, report.findings) == (TURNS + saves, [])
