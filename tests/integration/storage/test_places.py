"""The bucket of archived threads is counted, checked and swept as the bucket of blobs is, and neither for the other."""

from dataclasses import replace

import pytest

from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.clock import SystemClock
from storage.collection.fsck import Fsck
from storage.collection.sweep import Sweep
from storage.errors import BlobsNotConfigured
from storage.ledger.ledger import new_blob_id, pack_named_ids
from tests.support.blob_rows import Blobs, Upload

HOUR = 3600
# The stub of a thread whose rows are in an object.
ARCHIVE = """
INSERT INTO stateroom.archives
    (tenant_id, subject_id, thread_id, blob_id, activity, key_versions, client_share, checkpoints, pending_writes,
     chunks, hot_bytes, size_bytes, run_ids, state_schemas, agents, named_ids, storage_class, created_at, key_version,
     sealed)
VALUES ($1, $2, $3, $4, 0, '{1}', false, 1, 0, 1, 100, 12, '{}', '{}', '{}', $5, 'GLACIER', now(), 1, ''::bytea)
"""
MOVE = "UPDATE stateroom.checkpoints SET thread_id = $2 WHERE tenant_id = $1"
STATE = "SELECT state FROM stateroom.blobs WHERE tenant_id = $1 AND blob_id = $2"
REVIVE = """
UPDATE stateroom.blobs SET state = 'live', condemned_at = NULL, unreferenced_at = NULL
WHERE tenant_id = $1 AND state = 'condemned'
"""
REFERENCES = "SELECT blob_id FROM stateroom.blob_refs WHERE tenant_id = $1 ORDER BY blob_id"


@pytest.fixture(params=["two buckets", "one bucket", "two real buckets"])
async def plain(store, request):
    if request.param == "two real buckets":
        server = request.getfixturevalue("s3_server")
        made = [S3BlobStore(S3Location.parse(url), threads=4) for url in (server.url(), server.archive_url())]
        yield Blobs(store, made[0], archive=made[1])
        for each in made:
            await each.aclose()
        return
    blobs = MemoryBlobStore()
    yield Blobs(store, blobs, archive=blobs if request.param == "one bucket" else MemoryBlobStore())


def archived() -> Upload:
    return Upload(purpose="archive", place="archive", data=b"a sealed thread")


async def used(admin, scope):
    return await admin.fetchval("SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1", scope.tenant_id)


async def clean(plain, scope):
    report = await plain.fsck(scope)
    assert (report.faults, report.findings) == ({}, [])
    return report


async def test_an_object_lives_and_dies_in_its_own_bucket(plain, scope, admin):
    piece = await plain.stored(scope, Upload())
    whole = await plain.stored(scope, archived(), "t2")
    assert await plain.there(scope, whole, "archive")
    assert not await plain.there(scope, whole)
    assert not await plain.there(scope, piece, "archive")
    report = await clean(plain, scope)
    assert (report.blobs, report.objects) == (2, 2)
    assert await used(admin, scope) == len(Upload().data) + len(archived().data)
    for thread_id in ("t1", "t2"):
        await plain.forget(scope, thread_id)
    for days in (30, 0):
        await plain.sweeper(days=days).tenant(scope.tenant_id, now=True)
        assert await plain.there(scope, whole, "archive") == bool(days)
        assert await plain.there(scope, piece) == bool(days)
        await clean(plain, scope)
    assert await used(admin, scope) == 0


async def test_an_archive_that_was_given_up_is_removed_from_its_bucket(plain, scope, admin):
    made = await plain.put(scope, archived())
    await plain.ledger.abandon(scope, made.blob_id)
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert not await plain.there(scope, made.blob_id, "archive")
    assert await used(admin, scope) == 0
    await clean(plain, scope)


@pytest.mark.parametrize("place", ["blobs", "archive"])
async def test_an_upload_in_parts_that_nobody_knows_is_aborted_in_either_bucket(plain, scope, place):
    await plain.stored(scope, Upload())
    location = BlobLocation(scope.tenant_id, new_blob_id(), place)
    bucket = plain.bucket(place)
    await bucket.begin_multipart(location)
    report = await plain.fsck(scope)
    assert report.faults == {"stray-upload": 1}
    swept = await Sweep(plain.unit_of_work, plain.buckets, 0, stray_seconds=-HOUR).tenant(scope.tenant_id, now=True)
    assert swept is not None
    assert swept.strays == 1
    assert await bucket.list_multiparts(location.object_key()) == []
    await clean(plain, scope)


async def test_an_upload_in_parts_of_an_archive_that_is_known_is_left_alone(plain, scope):
    upload = archived()
    await plain.stored(scope, Upload())
    await plain.put(scope, upload)
    other = BlobLocation(scope.tenant_id, upload.blob_id, "archive")
    bucket = plain.bucket("archive")
    multipart_id = await bucket.begin_multipart(other)
    swept = await Sweep(plain.unit_of_work, plain.buckets, 0, stray_seconds=-HOUR).tenant(scope.tenant_id, now=True)
    assert swept is not None
    assert swept.strays == 0
    assert [each.multipart_id for each in await bucket.list_multiparts(other.object_key())] == [multipart_id]


async def test_an_archive_that_no_row_knows_is_found_and_handed_to_the_sweeper(plain, scope, admin):
    await plain.stored(scope, Upload())
    kept = await used(admin, scope)
    upload = archived()
    await plain.write(scope, upload)
    report = await plain.fsck(scope, repair=True)
    assert (report.faults, report.mended) == ({"orphan": 1}, 1)
    await clean(plain, scope)
    assert await plain.there(scope, upload.blob_id, "archive")  # a backup may name it
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert not await plain.there(scope, upload.blob_id, "archive")
    assert await used(admin, scope) == kept


async def test_an_object_in_the_wrong_bucket_is_missing_in_one_and_unknown_in_the_other(plain, scope, admin):
    whole = await plain.stored(scope, archived())
    await plain.bucket("archive").delete(BlobLocation(scope.tenant_id, whole, "archive"))
    await plain.write(scope, replace(archived(), blob_id=whole, place="blobs"))
    report = await plain.fsck(scope)
    assert report.faults == {"dangling": 1, "orphan": 1}


async def test_what_an_archived_thread_names_is_neither_lost_nor_superfluous(plain, scope, admin):
    piece = await plain.stored(scope, Upload())
    made = await plain.put(scope, archived())
    sealer = await plain.sealer(scope)
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.settle(transaction, sealer, [made.settlement()], "t1")
    await admin.execute(ARCHIVE, scope.tenant_id, scope.subject_id, "t1", made.blob_id, pack_named_ids([piece]))
    await admin.execute(MOVE, scope.tenant_id, "elsewhere")
    wanted = sorted([piece, made.blob_id])
    await clean(plain, scope)
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.keep(transaction, "t1")
    assert [row["blob_id"] for row in await admin.fetch(REFERENCES, scope.tenant_id)] == wanted
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    await plain.fsck(scope, repair=True)
    assert await plain.there(scope, piece)
    assert await plain.there(scope, made.blob_id, "archive")

    await admin.execute("DELETE FROM stateroom.blob_refs WHERE tenant_id = $1", scope.tenant_id)
    for _ in range(2):  # marked, and condemned
        await plain.sweeper(days=30).tenant(scope.tenant_id, now=True)
    assert await admin.fetchval(STATE, scope.tenant_id, made.blob_id) == "live"
    assert (
        await admin.fetchval(STATE, scope.tenant_id, piece) == "condemned"
    )  # as it is for a thread that is not archived
    await admin.execute(REVIVE, scope.tenant_id)
    report = await plain.fsck(scope, repair=True)
    assert (report.faults, report.mended) == ({"unreferred": 2}, 2)
    assert [row["blob_id"] for row in await admin.fetch(REFERENCES, scope.tenant_id)] == wanted

    # Restored: its rows name the piece again, and nothing names the object.
    await admin.execute(MOVE, scope.tenant_id, "t1")
    await admin.execute("DELETE FROM stateroom.archives WHERE tenant_id = $1", scope.tenant_id)
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.keep(transaction, "t1")
    assert [row["blob_id"] for row in await admin.fetch(REFERENCES, scope.tenant_id)] == [piece]
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert not await plain.there(scope, made.blob_id, "archive")
    assert await plain.there(scope, piece)


async def test_what_is_frozen_is_there_and_can_be_removed(store, scope):
    plain = Blobs(store, MemoryBlobStore(), archive=MemoryBlobStore(storage_class="DEEP_ARCHIVE"))
    whole = await plain.stored(scope, archived())
    await clean(plain, scope)
    await plain.forget(scope)
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert not await plain.there(scope, whole, "archive")


async def test_without_the_archives_bucket_nothing_of_it_is_forgotten(store, scope, admin):
    both = Blobs(store, MemoryBlobStore(), archive=MemoryBlobStore())
    whole = await both.stored(scope, archived())
    alone = Blobs(store, both.blobs)
    report = await alone.fsck(scope, repair=True)
    assert (report.faults, report.mended) == ({"dangling": 1}, 0)
    assert "STATEROOM_ARCHIVE_URL" in report.findings[0].detail
    await both.forget(scope)
    swept = await alone.sweeper().tenant(scope.tenant_id, now=True)
    assert swept is not None
    assert (swept.condemned, swept.deleted, swept.failed) == (1, 0, 1)
    assert await used(admin, scope) == len(archived().data)
    await both.sweeper().tenant(scope.tenant_id, now=True)
    assert not await both.there(scope, whole, "archive")
    with pytest.raises(BlobsNotConfigured):
        await Fsck(store.unit_of_work, both.ledger, Buckets(None), SystemClock()).run(scope.tenant_id)


async def test_a_deployment_with_an_archive_only_is_swept_and_checked(store, scope):
    both = Blobs(store, MemoryBlobStore(), archive=MemoryBlobStore())
    whole = await both.stored(scope, archived())
    buckets = Buckets(None, both.buckets.archive)
    report = await Fsck(store.unit_of_work, both.ledger, buckets, SystemClock()).run(scope.tenant_id)
    assert (report.faults, report.blobs, report.objects) == ({}, 1, 1)
    await both.forget(scope)
    await Sweep(store.unit_of_work, buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert not await both.there(scope, whole, "archive")


async def test_a_check_goes_on_in_the_bucket_where_it_stopped(plain, scope):
    await plain.stored(scope, Upload())
    await plain.stored(scope, archived(), "t2")
    for place in ("blobs", "archive"):  # one that no row knows in each
        await plain.write(scope, Upload(place=place, data=b"orphan"))
    check = Fsck(plain.store.unit_of_work, plain.ledger, plain.buckets, SystemClock(), grace_seconds=-HOUR)
    report = await check.run(scope.tenant_id)
    assert (report.faults, report.objects) == ({"orphan": 2}, 4)
    assert report.position.startswith(tenant_prefix(scope.tenant_id, "archive"))
    first = tenant_prefix(scope.tenant_id)
    assert (await check.run(scope.tenant_id, after=first)).faults == {"orphan": 2}
    second = tenant_prefix(scope.tenant_id, "archive")
    report = await check.run(scope.tenant_id, after=second)
    assert (report.faults, report.objects) == ({"orphan": 1}, 2)
