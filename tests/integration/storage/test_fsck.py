"""Each fault that somebody can plant is found, and nothing is reported beside uploads at work."""

import asyncio
from uuid import uuid4

import pytest

from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.clock import SystemClock
from storage.collection.fsck import Fsck
from storage.errors import BlobsNotConfigured
from storage.ledger.ledger import NewBlob, new_blob_id, pack_named_ids
from tests.support.blob_rows import Blobs, Upload
from tests.support.states import put, save, write

CONTENT = b"\x01" + b"c" * 16


@pytest.fixture(params=["memory", "real"])
async def blobs(request):
    if request.param == "memory":
        yield MemoryBlobStore()
        return
    made = S3BlobStore(S3Location.parse(request.getfixturevalue("s3_server").url()))
    yield made
    await made.aclose()


@pytest.fixture
def plain(store, blobs):
    return Blobs(store, blobs)


async def run(admin, text, scope, *args):
    await admin.execute(text, scope.tenant_id, *args)


async def found(plain, scope):
    """What a check finds; then mends; then what is left."""
    report = await plain.fsck(scope)
    mended = await plain.fsck(scope, repair=True)
    assert mended.faults == report.faults
    left = await plain.fsck(scope)
    return report.faults, left.faults


async def test_a_store_without_faults_is_clean(plain, scope):
    await plain.stored(scope)
    report = await plain.fsck(scope)
    assert (report.blobs, report.threads, report.objects, report.faults) == (1, 1, 1, {})
    assert report.clean


async def test_a_missing_object_is_dangling_and_cannot_be_mended(plain, blobs, scope):
    blob_id = await plain.stored(scope)
    await blobs.delete(BlobLocation(scope.tenant_id, blob_id))
    assert await found(plain, scope) == ({"dangling": 1}, {"dangling": 1})
    (finding,) = (await plain.fsck(scope)).findings
    assert (finding.what, finding.subject_id, finding.mended) == (str(blob_id), scope.subject_id, False)


async def test_an_object_of_another_size_is_dangling(plain, blobs, scope):
    blob_id = await plain.stored(scope)
    location = BlobLocation(scope.tenant_id, blob_id)
    await blobs.delete(location)
    await blobs.put_if_absent(location, b"cut")
    assert await found(plain, scope) == ({"dangling": 1}, {"dangling": 1})


async def test_a_name_without_a_row_is_dangling(plain, scope, admin):
    await plain.stored(scope)
    await run(
        admin,
        "UPDATE stateroom.checkpoints SET named_ids = named_ids || $2 WHERE tenant_id = $1",
        scope,
        pack_named_ids([new_blob_id()]),
    )
    assert await found(plain, scope) == ({"dangling": 1}, {"dangling": 1})


async def test_a_name_whose_blob_was_condemned_is_dangling(plain, scope, admin):
    await plain.stored(scope)
    await run(admin, "UPDATE stateroom.blobs SET state = 'condemned', condemned_at = now() WHERE tenant_id = $1", scope)
    faults, left = await found(plain, scope)
    assert faults == {"dangling": 1}
    assert left == {"dangling": 1}


@pytest.mark.parametrize("table", ["checkpoints", "chunks", "pending_writes"])
async def test_a_missing_reference_is_found_and_mended_wherever_the_name_stands(store, plain, scope, admin, table):
    blob_id = await plain.stored(scope)
    name = pack_named_ids([blob_id])
    await run(admin, "UPDATE stateroom.checkpoints SET named_ids = NULL WHERE tenant_id = $1", scope)
    if table == "chunks":
        await run(
            admin,
            "INSERT INTO stateroom.chunks"
            " (tenant_id, subject_id, thread_id, piece_id, key_version, envelope, named_ids)"
            " VALUES ($1, 'user-1', 't1', decode(repeat('01', 17), 'hex'), 1, '', $2)",
            scope,
            name,
        )
    elif table == "pending_writes":
        await put(store, scope, "c", write(0, "a", 1))
        await run(admin, "UPDATE stateroom.pending_writes SET named_ids = $2 WHERE tenant_id = $1", scope, name)
    else:
        await run(admin, "UPDATE stateroom.checkpoints SET named_ids = $2 WHERE tenant_id = $1", scope, name)
    await run(admin, "DELETE FROM stateroom.blob_refs WHERE tenant_id = $1", scope)
    assert await found(plain, scope) == ({"unreferred": 1}, {})
    assert (await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)).condemned == 0


async def test_a_reference_that_nothing_names_is_found_and_mended(plain, scope, admin):
    await plain.stored(scope)
    await run(admin, "UPDATE stateroom.checkpoints SET named_ids = NULL WHERE tenant_id = $1", scope)
    assert await found(plain, scope) == ({"superfluous": 1}, {})
    assert (await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)).condemned == 1


async def test_an_object_without_a_row_is_registered_and_kept_as_long_as_a_backup(plain, blobs, scope):
    await plain.stored(scope)
    orphan = BlobLocation(scope.tenant_id, new_blob_id())
    await blobs.put_if_absent(orphan, b"who wrote this")
    assert await found(plain, scope) == ({"orphan": 1}, {})
    assert (await plain.sweeper(days=30).tenant(scope.tenant_id, now=True)).deleted == 0
    assert (await plain.sweeper(days=0).tenant(scope.tenant_id, now=True)).deleted == 1
    assert not await plain.there(scope, orphan.blob_id)
    assert (await plain.fsck(scope)).faults == {}  # the quota, too


async def test_a_young_object_without_a_row_is_left_alone(plain, blobs, scope):
    await blobs.put_if_absent(BlobLocation(scope.tenant_id, new_blob_id()), b"just arrived")
    report = await plain.fsck(scope, grace_seconds=3600)
    assert (report.young, report.faults) == (1, {})


async def test_an_object_with_a_name_of_somebody_elses_is_shown_and_left_alone(plain, blobs, scope):
    class Elsewhere:
        def object_key(self):
            return f"{tenant_prefix(scope.tenant_id)}notes.txt"

    await blobs.put_if_absent(Elsewhere(), b"x")
    assert await found(plain, scope) == ({"orphan": 1}, {"orphan": 1})
    assert await blobs.get(Elsewhere()) == b"x"


async def test_an_upload_in_parts_that_no_intent_knows_is_aborted(plain, blobs, scope):
    location = BlobLocation(scope.tenant_id, new_blob_id())
    multipart_id = await blobs.begin_multipart(location)
    await blobs.put_part(location, multipart_id, 0, b"x" * 100)
    assert await found(plain, scope) == ({"stray-upload": 1}, {})
    assert await blobs.list_multiparts(tenant_prefix(scope.tenant_id)) == []


async def test_an_upload_in_parts_with_an_intent_is_none_and_goes_with_it(plain, blobs, scope, admin):
    upload = Upload(purpose="artifact")
    location = BlobLocation(scope.tenant_id, upload.blob_id)
    expiring = Blobs(plain.store, blobs, intent_seconds=-1)
    reserved = NewBlob(upload.blob_id, "artifact", 0)
    await expiring.ledger.reserve(scope, await plain.sealer(scope), [reserved], SystemClock().now())
    multipart_id = await blobs.begin_multipart(location)
    assert await expiring.ledger.name_multipart(scope, upload.blob_id, multipart_id) == multipart_id
    assert await expiring.ledger.name_multipart(scope, upload.blob_id, "another") == multipart_id
    await blobs.put_part(location, multipart_id, 0, b"x" * 100)
    assert (await plain.fsck(scope)).faults == {}
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert await blobs.list_multiparts(tenant_prefix(scope.tenant_id)) == []


async def test_a_wrong_count_of_the_quota_is_found_and_mended(plain, scope, admin):
    await plain.stored(scope)
    await run(admin, "UPDATE stateroom.blob_usage SET bytes = bytes + 7 WHERE tenant_id = $1", scope)
    assert await found(plain, scope) == ({"miscounted": 1}, {})


async def test_an_artifact_whose_blob_is_gone_is_dangling(plain, scope, admin):
    await run(
        admin,
        "INSERT INTO stateroom.artifacts (tenant_id, subject_id, artifact_id, thread_id, name_digest, number, blob_id,"
        " url_epoch, size_bytes, client_share, key_version, created_at, sealed)"
        " VALUES ($1, 'user-1', $2, 't1', '', 1, $2, 0, 1, false, 1, now(), '')",
        scope,
        uuid4(),
    )
    await plain.stored(scope)
    assert await found(plain, scope) == ({"dangling": 1}, {"dangling": 1})


async def test_a_check_beside_uploads_at_every_stage_finds_nothing(plain, scope):
    """No grace at all: whatever the check sees of an upload must have its row already."""
    for n in range(3):
        await save(plain.store, scope, f"t{n}")
    ended = asyncio.Event()

    async def upload(n):
        for _ in range(6):
            await plain.settle(scope, await plain.put(scope, Upload()), thread_id=f"t{n}")
            await plain.put(scope, Upload())  # given up
            await plain.forget(scope, f"t{n}")

    async def sweep():
        while not ended.is_set():
            await plain.sweeper(days=0).tenant(scope.tenant_id, now=True)

    async def check():
        checks = 0
        while not ended.is_set() or not checks:
            report = await plain.fsck(scope)
            assert report.faults == {}
            checks += 1

    async def everything():
        await asyncio.gather(*(upload(n) for n in range(3)))
        ended.set()

    await asyncio.gather(everything(), sweep(), check())


async def test_a_check_says_how_far_it_is_and_can_be_resumed(plain, blobs, scope):
    await plain.stored(scope)
    for _ in range(2):
        await blobs.put_if_absent(BlobLocation(scope.tenant_id, new_blob_id()), b"x")
    stages = []

    async def progress(report):
        stages.append(report.stage)

    check = Fsck(plain.store.unit_of_work, plain.ledger, Buckets(blobs), SystemClock(), grace_seconds=-60)
    whole = await check.run(scope.tenant_id, progress=progress)
    assert list(dict.fromkeys(stages)) == ["blobs", "names", "objects", "quota"]
    (first, *_) = await blobs.list_keys(tenant_prefix(scope.tenant_id))
    rest = await check.run(scope.tenant_id, after=first)
    assert (rest.objects, rest.position) == (whole.objects - 1, whole.position)


async def test_a_deployment_without_an_object_store_says_so(store, plain, scope):
    with pytest.raises(BlobsNotConfigured):
        await Fsck(store.unit_of_work, plain.ledger, Buckets(None), SystemClock()).run(scope.tenant_id)


async def test_tenants_with_blobs_are_listed(plain, scope):
    await plain.stored(scope)
    assert scope.tenant_id in [each async for each in plain.store.fsck.tenants()]
