"""Archive and restore: rows move out and back verbatim, readers see the same, and whoever writes meanwhile wins."""

import asyncio
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgpack
import pytest

from crypto.blob import PART_BYTES
from storage.archive.moving import PAGE_ROWS
from storage.artifacts.model import NewArtifact
from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.collection.sweep import Sweep
from storage.errors import (
    ArchiveTooLarge,
    ArchiveUnavailable,
    CheckpointNotFound,
    ClientShareRequired,
    InvalidState,
    ThreadActive,
    ThreadArchived,
    ThreadNotFound,
)
from storage.model import Load, Precondition
from storage.scope import ClientShare, TenantScope
from storage.service import Store, StoreOptions
from tests.support.archive_rows import fill, fsck, moved, opened, rows, seen
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.states import contents, document, load, put, save, state, write
from tests.support.stores import DEPLOYMENT_ID

MULTIPART = "SELECT multipart_id FROM stateroom.blob_intents WHERE tenant_id = $1 AND state = 'open'"


@pytest.fixture
def store(connections, root_key):
    options = StoreOptions(blobs=MemoryBlobStore(), archive=MemoryBlobStore())
    return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options)


async def test_a_thread_moves_into_the_archive_and_back_and_readers_see_the_same(store, scope, admin):
    await fill(store, scope)
    hot, before = await seen(store, scope), await moved(admin, scope)
    kept = {table: await rows(admin, scope, "t1", table) for table in ("heads", "blob_refs")}

    archived = await store.archives.archive(scope, "t1")

    assert archived.created
    assert (archived.stub.checkpoints, archived.stub.pending_writes) == (4, 3)
    assert archived.stub.hot_bytes == sum(
        len(row.get("manifest") or row.get("value") or row.get("envelope") or b"")
        for table in before.values()
        for row in table
    )
    assert await moved(admin, scope) == {"checkpoints": [], "checkpoint_tags": [], "pending_writes": [], "chunks": []}
    assert await rows(admin, scope, "t1", "heads") == kept["heads"]
    assert (await store.threads.get(scope, "t1")).tier == "archive"
    assert await seen(store, scope) == hot
    assert (await fsck(store, scope)).faults == {}

    restored = await store.archives.restore(scope, "t1")

    assert restored
    assert await moved(admin, scope) == before
    assert await rows(admin, scope, "t1", "archives") == []
    assert await rows(admin, scope, "t1", "heads") == kept["heads"]
    assert await rows(admin, scope, "t1", "blob_refs") == kept["blob_refs"]
    assert await seen(store, scope) == hot
    assert (await fsck(store, scope)).faults == {}


async def test_archiving_and_restoring_again_changes_nothing(store, scope, admin):
    await fill(store, scope)
    first = await store.archives.archive(scope, "t1")
    again = await store.archives.archive(scope, "t1")
    assert not again.created
    assert again.stub == first.stub
    assert len(await store.archive.list_keys(tenant_prefix(scope.tenant_id, "archive"))) == 1
    assert await store.archives.restore(scope, "t1")
    assert not await store.archives.restore(scope, "t1")


async def test_a_save_restores_first(store, scope):
    ids = await fill(store, scope)
    await store.archives.archive(scope, "t1")
    saved = await save(store, scope, content=state(note="later"))
    assert saved.parent_id == ids[2]
    assert (await store.threads.get(scope, "t1")).tier == "hot"
    assert (await load(store, scope)).checkpoint_id == saved.checkpoint_id


async def test_what_does_not_exist_is_not_archived(store, scope, database, root_key):
    with pytest.raises(ThreadNotFound):
        await store.archives.archive(scope, "t1")
    await fill(store, scope)
    with pytest.raises(ThreadNotFound):
        await store.archives.archive(scope, "t2")
    with pytest.raises(InvalidState, match="storage class"):
        await store.archives.archive(scope, "t1", storage_class="WARM")
    async with opened(database, root_key) as without:
        with pytest.raises(ArchiveUnavailable):
            await without.archives.archive(scope, "t1")


# --- every verb that writes ------------------------------------------------------------------------------------------


async def pending(store, scope, ids):
    await put(store, scope, ids[0], write(0, "late", "value"), task_id="late")


async def piece(store, scope, ids):
    await store.pieces.put(scope, "t1", msgpack.packb("leaf" * 5000))


async def copy(store, scope, ids):
    copied = await store.threads.copy(scope, "t1", "t2")
    assert (copied.checkpoints, copied.pending_writes) == (4, 3)


async def prune(store, scope, ids):
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 2


async def delete_runs(store, scope, ids):
    assert (await store.threads.delete_runs(scope, ["run-2"])).checkpoints == 1


async def artifact(store, scope, ids):
    async def content():
        yield b"file"

    await store.artifacts.create(scope, "t1", NewArtifact(name="file", media_type="text/plain"), content())


WRITING = [pending, piece, copy, prune, delete_runs, artifact]


@pytest.mark.parametrize("verb", WRITING, ids=lambda verb: verb.__name__)
async def test_whatever_writes_to_an_archived_thread_restores_it_first(store, scope, verb):
    ids = await fill(store, scope)
    await store.archives.archive(scope, "t1")
    await verb(store, scope, ids)
    assert (await store.threads.get(scope, "t1")).tier == "hot"
    assert (await store.verification.subject(scope)).findings == []
    assert (await fsck(store, scope)).faults == {}


@pytest.mark.parametrize("verb", WRITING, ids=lambda verb: verb.__name__)
async def test_whatever_writes_to_a_frozen_thread_is_refused_and_changes_nothing(
    database, root_key, scope, admin, verb
):
    async with opened(database, root_key, archive=MemoryBlobStore(storage_class="GLACIER")) as store:
        ids = await fill(store, scope)
        await store.archives.archive(scope, "t1")
        before = await rows(admin, scope, "t1", "threads")
        with pytest.raises(ThreadArchived) as refused:
            await verb(store, scope, ids)
        assert (refused.value.thread_id, refused.value.state) == ("t1", "frozen")
        assert refused.value.retry_after_seconds > 0
        assert await rows(admin, scope, "t1", "threads") == before
        assert (await fsck(store, scope)).faults == {}


async def test_an_archived_thread_is_deleted_without_its_object_being_read(database, root_key, scope, admin):
    async with opened(database, root_key, archive=MemoryBlobStore(storage_class="DEEP_ARCHIVE")) as store:
        await fill(store, scope)
        token = (await store.checkpoints.load(scope, Load("t1", "", None, with_state=False))).token
        await store.archives.archive(scope, "t1")
        removal = await store.threads.delete(scope, "t1")
        assert (removal.threads, removal.checkpoints, removal.pending_writes) == (1, 4, 3)
        for table in ("threads", "heads", "archives", "blob_refs"):
            assert await rows(admin, scope, "t1", table) == []
        assert (await fsck(store, scope)).faults == {}
        # The removal is remembered, so that nobody who holds a token of the thread takes it for an attack.
        with pytest.raises(CheckpointNotFound):
            await store.checkpoints.load(scope, Load("t1", "", None, with_state=False, known_token=token))
        buckets = Buckets(store.blobs, store.archive)
        for _ in range(3):
            await Sweep(store.unit_of_work, buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
        assert await store.archive.list_keys("") == []
        assert await store.blobs.list_keys(tenant_prefix(scope.tenant_id)) == []


async def test_a_thread_under_a_share_is_archived_and_restored_without_it(store, scope, admin):
    share = ClientShare(b"s" * 32)
    await fill(store, scope, share=share)
    hot, before = await seen(store, scope, share=share), await moved(admin, scope)
    archived = await store.archives.archive(scope, "t1")
    assert archived.created
    assert await seen(store, scope, share=share) == hot
    with pytest.raises(ClientShareRequired):
        await load(store, scope)
    await store.archives.restore(scope, "t1")
    assert await moved(admin, scope) == before
    assert await seen(store, scope, share=share) == hot


async def test_a_thread_of_many_pages_is_streamed(store, scope, admin):
    for number in range(PAGE_ROWS + 5):
        await save(store, scope, content=state(n=number, text=document(f"d{number}", 5000)))
    hot, before = await seen(store, scope), await moved(admin, scope)
    assert len(before["chunks"]) > PAGE_ROWS
    await store.archives.archive(scope, "t1")
    assert await seen(store, scope) == hot
    await store.archives.restore(scope, "t1")
    assert await moved(admin, scope) == before


@pytest.mark.parametrize("channels", [160, PAGE_ROWS + 10], ids=["at once", "streamed"])
async def test_a_thread_of_several_parts_is_uploaded_in_parts_that_its_intent_knows(
    database, root_key, scope, admin, channels
):
    bucket, known = FaultyBlobStore(MemoryBlobStore()), []
    async with opened(database, root_key, archive=bucket) as store:
        content = {f"c{number}": os.urandom(60_000) for number in range(channels)}
        await save(store, scope, content=state(**content))
        before = await moved(admin, scope)

        async def look(when, operation):
            if (when, operation) == ("before", "put_part"):
                known.append(await admin.fetchval(MULTIPART, scope.tenant_id))

        bucket.hook = look
        archived = await store.archives.archive(scope, "t1")
        assert archived.stub.size_bytes > PART_BYTES
        assert len(known) == archived.stub.size_bytes // PART_BYTES + 1
        assert None not in known
        assert contents(await load(store, scope)) == content
        await store.archives.restore(scope, "t1")
        assert await moved(admin, scope) == before


async def test_a_thread_too_large_for_a_restore_is_not_archived(store, scope, admin):
    await fill(store, scope)
    before = await moved(admin, scope)
    store.archives._bytes_max = 1000
    with pytest.raises(ArchiveTooLarge):
        await store.archives.archive(scope, "t1")
    assert await moved(admin, scope) == before
    assert await store.archive.list_keys("") == []


async def test_a_thread_without_checkpoints_can_be_archived(store, scope):
    await store.threads.put(scope, "t1", strict=True)
    await store.archives.archive(scope, "t1")
    assert (await store.threads.get(scope, "t1")).tier == "archive"
    with pytest.raises(CheckpointNotFound):
        await load(store, scope)
    saved = await save(store, scope, precondition=Precondition(absent=True))
    assert saved.created


# --- who writes meanwhile wins ---------------------------------------------------------------------------------------


async def late_save(store, scope, ids):
    await save(store, scope, content=state(note="late"))


async def late_delete(store, scope, ids):
    await store.threads.delete(scope, "t1")


async def late_prune(store, scope, ids):
    await store.threads.prune(scope, ["t1"], "keep_latest")


@pytest.mark.parametrize("moment", ["put_if_absent", "get_range", "change_class"])
@pytest.mark.parametrize(
    "verb", [late_save, pending, piece, late_prune, late_delete, artifact], ids=lambda v: v.__name__
)
async def test_what_is_written_while_a_thread_is_archived_wins(database, root_key, scope, admin, verb, moment):
    bucket = MemoryBlobStore(storage_class="GLACIER")
    faulty = FaultyBlobStore(bucket)
    async with opened(database, root_key, archive=faulty) as store:
        ids = await fill(store, scope)
        done = []

        async def write_meanwhile(when, operation):
            if (when, operation) == ("before", moment) and not done:
                done.append(operation)
                await verb(store, scope, ids)

        faulty.hook = write_meanwhile
        with pytest.raises(ThreadActive):
            await store.archives.archive(scope, "t1")
        assert done == [moment]
        assert await rows(admin, scope, "t1", "archives") == []
        if verb is not late_delete:
            assert (await store.threads.get(scope, "t1")).tier == "hot"
            assert len(await seen(store, scope)) > 2
        assert (await store.verification.subject(scope)).findings == []
        assert (await fsck(store, scope)).faults == {}
        buckets = Buckets(store.blobs, bucket)
        await Sweep(store.unit_of_work, buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
        assert await bucket.list_keys("") == []


async def test_archivers_at_once_leave_one_archive(store, scope):
    await fill(store, scope)
    outcomes = await asyncio.gather(*(store.archives.archive(scope, "t1") for _ in range(4)), return_exceptions=True)
    made = [each for each in outcomes if not isinstance(each, Exception) and each.created]
    assert len(made) == 1
    assert all(not isinstance(each, Exception) or isinstance(each, ThreadActive) for each in outcomes)
    assert (await store.verification.subject(scope)).findings == []
    restored = await asyncio.gather(*(store.archives.restore(scope, "t1") for _ in range(4)))
    assert sum(restored) == 1
    assert (await fsck(store, scope)).faults == {}


async def test_a_thread_that_was_archived_anew_meanwhile_comes_back_as_it_is_now(database, root_key, scope):
    bucket, done = FaultyBlobStore(MemoryBlobStore()), []
    async with opened(database, root_key, archive=bucket) as store:
        await fill(store, scope)
        await store.archives.archive(scope, "t1")

        async def move_meanwhile(when, operation):
            if (when, operation) == ("after", "get_range") and not done:
                done.append(operation)
                await save(store, scope, content=state(note="newer"))
                await store.archives.archive(scope, "t1")

        bucket.hook = move_meanwhile
        assert await store.archives.restore(scope, "t1")
        assert done
        assert contents(await load(store, scope)) == {"note": "newer"}
        assert (await store.verification.subject(scope)).findings == []
        assert (await fsck(store, scope)).faults == {}


async def test_saves_race_archiving_and_restoring_and_none_is_lost(store, scope):
    await save(store, scope, content=state(n=-1))
    acknowledged, ended = [], asyncio.Event()

    async def move():
        while not ended.is_set():
            with suppress(ThreadActive):
                await store.archives.archive(scope, "t1")
            await asyncio.sleep(0)

    async def write_on():
        for number in range(25):
            saved = await save(store, scope, content=state(n=number, text=document(f"n{number}", 5000)))
            acknowledged.append(saved.checkpoint_id)
            await put(store, scope, saved.checkpoint_id, write(0, "c", number), task_id=f"task-{number}")
        ended.set()

    await asyncio.gather(move(), write_on())
    found = {each.checkpoint_id: each for each in (await seen(store, scope))[0]}
    assert {*acknowledged} <= {*found}
    assert [found[each].writes[0].task_id for each in acknowledged] == [f"task-{number}" for number in range(25)]
    assert (await store.verification.subject(scope)).findings == []
    assert (await fsck(store, scope)).faults == {}


# --- thawing ---------------------------------------------------------------------------------------------------------


async def test_a_restore_thaws_waits_and_survives_the_process_that_began_it(database, root_key, scope, admin):
    clock = ManualClock(datetime.now(UTC))
    bucket = MemoryBlobStore(clock=clock, storage_class="GLACIER", thaw_seconds=3 * 3600)
    tenant, blobs = TenantScope(scope.tenant_id), MemoryBlobStore()
    async with opened(database, root_key, blobs=blobs, archive=bucket, clock=clock) as store:
        await fill(store, scope)
        hot = await seen(store, scope)
        await store.archives.archive(scope, "t1")
        assert (await store.archives.status(scope, "t1")).state == "frozen"
        job_id = await store.archives.begin_restore(scope, "t1", "tester")
        assert await store.archives.begin_restore(scope, "t1", "tester") == job_id
        await due(admin, job_id)
        await store.runner.run_due()
        status = await store.archives.status(scope, "t1")
        assert (status.state, status.job_id) == ("thawing", job_id)
        with pytest.raises(ThreadArchived) as refused:
            await load(store, scope)
        assert refused.value.state == "thawing"
        clock.set(clock.now() + timedelta(hours=1))
        assert 0.1 < (await store.archives.status(scope, "t1")).progress < 0.9

    async with opened(database, root_key, blobs=blobs, archive=bucket, clock=clock) as store:
        await due(admin, job_id)
        await store.runner.run_due()
        assert (await store.jobs.get(tenant, job_id)).state == "running"
        clock.set(clock.now() + timedelta(hours=2, seconds=1))
        assert (await store.archives.status(scope, "t1")).state == "ready"
        assert await seen(store, scope) == hot
        await due(admin, job_id)
        await store.runner.run_due()
        job = await store.jobs.get(tenant, job_id)
        assert (job.state, job.done, job.error) == ("done", 1, None)
        assert (await store.archives.status(scope, "t1")).state == "hot"
        assert await seen(store, scope) == hot


async def due(admin, job_id):
    await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL WHERE job_id = $1", job_id)


async def test_all_who_begin_at_once_get_the_same_job(store, scope):
    await fill(store, scope)
    for begin in (store.archives.begin_archive, store.archives.begin_restore):
        jobs = await asyncio.gather(*[begin(scope, "t1", f"tester-{number}") for number in range(8)])
        assert len({*jobs}) == 1


async def test_archiving_as_a_job(store, scope):
    await fill(store, scope)
    tenant = TenantScope(scope.tenant_id)
    job_id = await store.archives.begin_archive(scope, "t1", "tester")
    while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    job = await store.jobs.get(tenant, job_id)
    assert (job.kind, job.state, job.done, job.error) == ("archive", "done", 1, None)
    assert (await store.threads.get(scope, "t1")).tier == "archive"
    with pytest.raises(ThreadNotFound):
        await store.archives.begin_restore(scope, "t2", "tester")


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_expiry_removes_everything_and_says_so(store, scope, admin):
    await fill(store, scope)
    token = (await store.checkpoints.load(scope, Load("t1", "", None, with_state=False))).token
    assert (await store.archives.expire(scope, "t1")).threads == 0
    assert (await store.threads.get(scope, "t1")).tier == "hot"
    archived = await store.archives.archive(scope, "t1")
    assert (await store.archives.expire(scope, "t1", blob_id=uuid4())).threads == 0
    removal = await store.archives.expire(scope, "t1", actor="policy", blob_id=archived.stub.blob_id)
    assert (removal.threads, removal.checkpoints, removal.pending_writes) == (1, 4, 3)
    for table in ("threads", "heads", "archives", "blob_refs"):
        assert await rows(admin, scope, "t1", table) == []
    events = await admin.fetch(
        "SELECT actor, action, target FROM stateroom.audit_log WHERE tenant_id = $1 ORDER BY sequence", scope.tenant_id
    )
    assert [row["action"] for row in events] == ["thread.archive", "thread.expire"]
    assert events[-1]["actor"] == "policy"
    assert events[-1]["target"] == 'thread:["user-1","t1"]'
    with pytest.raises(CheckpointNotFound):
        await store.checkpoints.load(scope, Load("t1", "", None, with_state=False, known_token=token))
    assert (await fsck(store, scope)).faults == {}
    # A backup may name the object: it goes when the last one has expired.
    window = Sweep(store.unit_of_work, store.buckets, 30, grace_seconds=0)
    for _ in range(3):
        await window.tenant(scope.tenant_id, now=True)
    assert len(await store.archive.list_keys("")) == 1
    for _ in range(3):
        await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert await store.archive.list_keys("") == []


async def test_an_object_of_a_restored_thread_is_freed(store, scope):
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    await store.archives.restore(scope, "t1")
    for _ in range(3):
        await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert await store.archive.list_keys("") == []
    assert len(await seen(store, scope)) > 2
