"""A rotation that is asked to be complete writes archives and segments again, and then the old key version goes."""

from datetime import UTC, datetime

import pytest

from crypto import peek_header
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.scope import ClientShare, TenantScope
from storage.threads.thinning import ThinningRule
from tests.integration.storage.test_rotation import finished
from tests.support.archive_rows import fill, fsck, opened, rows, seen
from tests.support.features import switch_on
from tests.support.states import document, load, put, save, state, write

ACTOR = "test"
ALL = ThinningRule(made_since=datetime(2100, 1, 1, tzinfo=UTC))
SHARE = ClientShare(b"s" * 32)


@pytest.fixture
def bucket():
    return MemoryBlobStore()


@pytest.fixture
async def store(database, root_key, bucket):
    async with opened(database, root_key, archive=bucket) as made:
        for feature in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(made, feature)
        yield made


async def talk(store, scope, thread_id, turns=8):
    """A thread with two namespaces, one of which ends."""
    for number in range(turns):
        for namespace in ("", "call:1"):
            content = state(text=document(f"{thread_id}-{namespace}-{number}", 5000), n=number)
            saved = await save(store, scope, thread_id, content=content, namespace=namespace, step=number)
            await put(
                store, scope, saved.checkpoint_id, write(0, "c", number), thread_id=thread_id, namespace=namespace
            )
    await save(store, scope, thread_id, content=state(n="last"))


async def everything(store, scope):
    """Threads with segments, one of which has a cold namespace, an archive, and an archive with segments."""
    for name in ("segments", "archive", "both"):
        await talk(store, scope, name)
    await store.archives.segmenting.move(scope, "segments", ThinningRule(keep_last=5), actor=ACTOR)
    await store.archives.segmenting.move(scope, "segments", ALL, actor=ACTOR)
    await store.archives.segmenting.move(scope, "both", ThinningRule(keep_last=2), actor=ACTOR)
    for name in ("archive", "both"):
        await store.archives.archive(scope, name)


async def rotated(store, scope, *, complete=True):
    begun = await store.rotation.rotate_subject(scope, ACTOR, complete=complete)
    return await finished(store, TenantScope(scope.tenant_id), begun.job_id)


async def versions(store, scope):
    states = await store.rotation.subject_status(scope)
    return {row.key_version: (row.state, row.archived_bytes > 0) for row in states if row.purpose == "data"}


NAMES = ("segments", "archive", "both")


async def stubs_of(admin, scope):
    return [row for name in NAMES for row in await rows(admin, scope, name, "archives")]


async def shown(store, scope):
    return {name: await seen(store, scope, name) for name in NAMES}


async def test_a_complete_rotation_ends_and_everything_reads_as_before(store, scope, admin, bucket):
    await everything(store, scope)
    before = await shown(store, scope)
    stubs = {(row["thread_id"], row["segment"]): row for row in await stubs_of(admin, scope)}

    job = await rotated(store, scope)

    assert (job.state, job.note) == ("done", None)
    assert await versions(store, scope) == {1: ("destroyed", False), 2: ("active", True)}
    assert await shown(store, scope) == before
    for name in NAMES:
        for row in await rows(admin, scope, name, "archives"):
            old = stubs.pop((name, row["segment"]))
            assert row["key_versions"] == [2]
            assert row["blob_id"] != old["blob_id"]
            kept = ("checkpoints", "pending_writes", "chunks", "created_at", "first_id", "last_id", "volume", "run_ids")
            assert [row[each] for each in kept] == [old[each] for each in kept]
        for row in await rows(admin, scope, name, "heads"):
            assert peek_header(row["seal"]).key_version == 2
    assert stubs == {}
    report = await store.verification.subject(scope)
    assert report.findings == []
    assert (await fsck(store, scope)).faults == {}
    for name in NAMES:
        await store.archives.restore(scope, name)
    assert {name: (await load(store, scope, name)).checkpoint_id for name in NAMES}
    assert (await store.verification.subject(scope)).findings == []


async def test_a_rotation_that_is_not_asked_to_leaves_objects_and_says_so(store, scope):
    await everything(store, scope)
    job = await rotated(store, scope, complete=False)
    assert "archived" in job.note
    assert await versions(store, scope) == {1: ("decrypt_only", True), 2: ("active", False)}
    job = await rotated(store, scope)
    assert job.note is None
    assert await versions(store, scope) == {
        1: ("destroyed", False), 2: ("destroyed", False), 3: ("active", True),
    }  # fmt: skip


async def test_the_audit_log_says_which_objects_were_exchanged(store, scope):
    await talk(store, scope, "segments", 3)
    await store.archives.segmenting.move(scope, "segments", ALL, actor=ACTOR)
    await rotated(store, scope)
    page = await store.audit.page(TenantScope(scope.tenant_id), ACTOR, limit=1000)
    told = [each.event for each in page.items if each.event.action == "archive.reseal"]
    names = ("segment", "key_versions_before", "key_version")
    assert [[each.detail[name] for name in names] for each in told] == [[1, [1], 2]]


async def test_what_only_a_client_opens_is_left_and_the_version_stays(store, scope):
    await fill(store, scope, "shared", share=SHARE)
    await store.archives.archive(scope, "shared")
    await talk(store, scope, "segments", 3)
    await store.archives.segmenting.move(scope, "segments", ALL, actor=ACTOR)
    job = await rotated(store, scope)
    assert "client-held share" in job.note
    assert (await versions(store, scope))[1] == ("decrypt_only", True)
    assert (await seen(store, scope, "shared", share=SHARE)) is not None


async def test_a_damaged_object_is_left_and_hides_no_other(store, scope, bucket, admin):
    await everything(store, scope)
    (first, *_) = sorted(await rows(admin, scope, "archive", "archives"), key=lambda row: row["segment"])
    key = next(each for each in await bucket.list_keys("") if first["blob_id"].hex in each.replace("-", ""))
    data = bytearray(bucket._objects[key])
    data[len(data) // 2] ^= 1
    bucket._objects[key] = bytes(data)
    job = await rotated(store, scope)
    assert "older key versions stay" in job.note
    left = [row["key_versions"] for row in await stubs_of(admin, scope)]
    assert sorted(left) == [[1], *[[2]] * (len(left) - 1)]


async def test_frozen_objects_are_thawed_first_and_freeze_again(database, root_key, scope, admin):
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    bucket = MemoryBlobStore(thaw_seconds=0)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        await talk(store, scope, "segments", 3)
        await store.archives.archive(scope, "segments", storage_class="GLACIER")
        job = await rotated(store, scope)
        assert (job.state, job.note) == ("done", None)
        (row,) = await rows(admin, scope, "segments", "archives")
        assert (row["key_versions"], row["storage_class"]) == ([2], "GLACIER")
        assert (await store.archives.status(scope, "segments")).state == "frozen"


async def test_who_restores_an_object_meanwhile_wins(store, scope, admin):
    await everything(store, scope)
    before = await shown(store, scope)
    begun = await store.rotation.rotate_subject(scope, ACTOR, complete=True)
    for name in NAMES:
        await store.archives.restore(scope, name)
    job = await finished(store, TenantScope(scope.tenant_id), begun.job_id)
    assert (job.state, job.note) == ("done", None)
    assert await versions(store, scope) == {1: ("destroyed", False), 2: ("active", False)}
    assert await shown(store, scope) == before
