"""What is sealed about blobs follows a rotation; the objects do not move."""

import asyncio

import pytest
from msgspec import structs

from crypto import KeyDestroyed, Kind
from storage.blobs.memory import MemoryBlobStore
from storage.clock import SystemClock
from storage.format.pointer import IntentRecord
from storage.ledger.ledger import NewBlob, described_at, new_blob_id, open_intent
from storage.ledger.reseal import BlobPosition, reseal_blobs
from storage.postgres.statement import Statement
from storage.statements.objects import blobs as sql
from storage.statements.objects.artifacts import ArtifactRow
from tests.support.blob_rows import Blobs, Upload
from tests.support.interleaving import WAIT_SECONDS

STALE = Statement(f"SELECT aside FROM ({sql.STALE_BLOBS}) stale", bool)  # noqa: S608  a constant


@pytest.fixture
def plain(store):
    return Blobs(store, MemoryBlobStore())


async def stale(plain, scope, sealer):
    async with plain.unit_of_work.snapshot(scope) as transaction:
        return sorted(await transaction.fetch_all(STALE, version=sealer.active_key_version.to_bytes(4)))


async def test_pointers_uploads_and_artifacts_are_sealed_anew_and_say_the_same(plain, scope, admin):
    old = await plain.sealer(scope)
    kept = [await plain.stored(scope, thread_id=f"t{n}") for n in range(3)]
    gone = await plain.stored(scope, thread_id="t3")
    await plain.forget(scope, "t3")
    await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)
    upload_id, artifact_id = new_blob_id(), new_blob_id()
    reserved = NewBlob(upload_id, "artifact", 0, record=IntentRecord(b"k" * 32, b"details"))
    await plain.ledger.reserve(scope, old, [reserved], SystemClock().now())
    row = ArtifactRow(artifact_id, "t0", b"n", 1, kept[0], 0, 1, False, 1, SystemClock().now(), b"")
    sealed = old.seal(Kind.POINTER, described_at(row), b"description")
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.add_artifact(transaction, structs.replace(row, sealed=sealed))
    shared = Blobs(plain.store, plain.blobs)
    aside = Upload()
    await shared.ledger.reserve(
        scope,
        old.with_share(b"s" * 32),
        [NewBlob(aside.blob_id, "artifact", 0, record=IntentRecord(b"k" * 32))],
        SystemClock().now(),
    )

    await plain.store.rotation.rotate_subject(scope, "key:admin")
    new = await plain.sealer(scope)
    assert new.active_key_version == old.active_key_version + 1
    assert await stale(plain, scope, new) == [False] * 6 + [True]

    done, position = 0, BlobPosition()
    while position is not None:
        async with plain.unit_of_work.begin(scope) as transaction:
            batch = await reseal_blobs(transaction, new, position, 2)
        done, position = done + batch.done, batch.position
    assert done == 5
    assert await stale(plain, scope, new) == [True]
    assert await admin.fetchval("SELECT pointer FROM stateroom.blobs WHERE blob_id = $1", gone) is None

    async with plain.unit_of_work.snapshot(scope) as transaction:
        pointers = await plain.ledger.pointers(transaction, new, kept)
        intent = await plain.ledger.intent(transaction, upload_id)
        artifact = await plain.ledger.artifact(transaction, artifact_id)
    assert {each.pointer.blob_key for each in pointers.values()} == {b"k" * 32}
    assert open_intent(new, intent).details == b"details"
    assert new.open(Kind.POINTER, described_at(artifact), artifact.sealed) == b"description"
    assert artifact.key_version == new.active_key_version


async def test_a_rotation_ends_with_every_pointer_under_the_new_key_and_the_old_key_destroyed(plain, scope, admin):
    kept = [await plain.stored(scope, thread_id=f"t{n}") for n in range(2)]
    # The names were planted beside manifests that are sealed without any; what is sealed with them is a save's affair.
    await admin.execute("UPDATE stateroom.checkpoints SET named_ids = NULL WHERE tenant_id = $1", scope.tenant_id)
    await plain.put(scope, Upload())
    old = await plain.sealer(scope)
    await plain.store.rotation.rotate_subject(scope, "key:admin")
    async with asyncio.timeout(WAIT_SECONDS):
        while await admin.fetchval(
            "SELECT count(*) FROM stateroom.jobs WHERE tenant_id = $1 AND state IN ('queued', 'running')",
            scope.tenant_id,
        ):
            await plain.store.runner.run_due()
    job = await admin.fetchrow("SELECT state, error FROM stateroom.jobs WHERE tenant_id = $1", scope.tenant_id)
    assert tuple(job) == ("done", None)
    states = await plain.store.rotation.subject_status(scope)
    assert {each.key_version: each.state for each in states if each.purpose == "data"} == {1: "destroyed", 2: "active"}
    new = await plain.sealer(scope)
    async with plain.unit_of_work.snapshot(scope) as transaction:
        assert len(await plain.ledger.pointers(transaction, new, kept)) == 2
        with pytest.raises(KeyDestroyed):  # a sealer from before has no key that opens them
            await plain.ledger.pointers(transaction, old, kept)


async def test_a_pointer_that_does_not_authenticate_keeps_the_old_key(plain, scope, admin):
    blob_id = await plain.stored(scope)
    await admin.execute(
        "UPDATE stateroom.blobs SET pointer = set_byte(pointer, 100, get_byte(pointer, 100) # 1) WHERE blob_id = $1",
        blob_id,
    )
    await admin.execute("UPDATE stateroom.checkpoints SET named_ids = NULL WHERE tenant_id = $1", scope.tenant_id)
    await plain.store.rotation.rotate_subject(scope, "key:admin")
    async with asyncio.timeout(WAIT_SECONDS):
        while await admin.fetchval(
            "SELECT count(*) FROM stateroom.jobs WHERE tenant_id = $1 AND state IN ('queued', 'running')",
            scope.tenant_id,
        ):
            await plain.store.runner.run_due()
    job = await admin.fetchrow("SELECT state, error FROM stateroom.jobs WHERE tenant_id = $1", scope.tenant_id)
    assert job["state"] == "failed"
    assert job["error"].startswith("1 sealed rows are damaged")
    states = await plain.store.rotation.subject_status(scope)
    assert "destroyed" not in {each.state for each in states}
