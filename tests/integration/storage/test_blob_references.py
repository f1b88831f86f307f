"""What threads refer to: kept while a row names it, and no longer."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from uuid import uuid4

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.clock import SystemClock
from storage.errors import (
    ArtifactNotFound,
    ArtifactReferenced,
    IntegrityFailure,
    InvalidState,
    LostRaceError,
    TenantNotFound,
    UploadNotFound,
)
from storage.format.pointer import artifact_name_digest
from storage.ledger.ledger import new_blob_id, pack_named_ids, unpack_named_ids
from storage.postgres.statement import Statement
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.objects import artifacts as sql
from tests.support.blob_rows import Blobs, Upload, name
from tests.support.interleaving import WAIT_SECONDS, Gate, SteeredUnitOfWork, blocked, without
from tests.support.states import save

CONTENT = b"\x01" + b"c" * 16
DELETE_THREAD = Statement(
    "DELETE FROM stateroom.threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
)


@pytest.fixture
def plain(store):
    return Blobs(store, MemoryBlobStore())


async def rows(admin, table, scope):
    return await admin.fetch(f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)


async def add_artifact(plain, scope, thread_id="t1", filename="shot.png"):
    """An artifact as an upload leaves it."""
    sealer = await plain.sealer(scope)
    upload = await plain.put(scope, Upload(purpose="artifact"))
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.settle(transaction, sealer, [upload.settlement()], None)
        digest = artifact_name_digest(sealer, thread_id, filename)
        row = sql.ArtifactRow(
            artifact_id=new_blob_id(),
            thread_id=thread_id,
            name_digest=digest,
            number=await plain.ledger.next_number(transaction, thread_id, digest),
            blob_id=upload.blob_id,
            url_epoch=0,
            size_bytes=len(upload.data),
            client_share=False,
            key_version=sealer.active_key_version,
            created_at=SystemClock().now(),
            sealed=b"sealed",
        )
        await plain.ledger.add_artifact(transaction, row)
    return row


async def refer_artifact(plain, scope, artifact_id, thread_id="t1", unit_of_work=None):
    async with (unit_of_work or plain.unit_of_work).begin(scope) as transaction:
        missing = await plain.ledger.refer_artifacts(transaction, thread_id, [artifact_id])
        if missing:
            raise ArtifactNotFound
        await name(transaction, thread_id, [artifact_id])


async def delete_artifact(plain, scope, artifact_id, unit_of_work=None):
    async with (unit_of_work or plain.unit_of_work).begin(scope) as transaction:
        await plain.ledger.delete_artifact(transaction, artifact_id)


async def delete_thread(plain, scope, thread_id):
    async with plain.unit_of_work.begin(scope) as transaction:
        await transaction.run(DELETE_THREAD, thread_id=thread_id)
        await plain.ledger.drop(transaction, thread_id)


async def condemned(plain, scope):
    return (await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)).condemned


async def test_names_are_packed_once_and_in_order():
    some = [new_blob_id() for _ in range(3)]
    assert unpack_named_ids(pack_named_ids([*reversed(some), *some])) == sorted(some)
    assert pack_named_ids([]) is None
    assert unpack_named_ids(None) == []
    with pytest.raises(IntegrityFailure):
        unpack_named_ids(b"short")


async def test_a_pointer_opens_in_its_own_row_only(plain, scope, admin):
    blob_id = await plain.stored(scope, Upload(data=b"twelve bytes"))
    sealer = await plain.sealer(scope)

    async def pointers():
        async with plain.unit_of_work.snapshot(scope) as transaction:
            return await plain.ledger.pointers(transaction, sealer, [blob_id])

    assert (await pointers())[blob_id].pointer.size_bytes == 12
    for column, value in (
        ("size_bytes", "size_bytes + 1"),
        ("created_at", "created_at + interval '1 second'"),
        ("content_id", "decode(repeat('02', 17), 'hex')"),
        ("pointer", "pointer || '\\x00'::bytea"),
    ):
        await admin.execute("BEGIN")
        await admin.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM stateroom.blobs WHERE blob_id = '{blob_id}'")
        await admin.execute(f"UPDATE stateroom.blobs SET {column} = {value} WHERE blob_id = '{blob_id}'")
        await admin.execute("COMMIT")
        with pytest.raises(IntegrityFailure):
            await pointers()
        await admin.execute(
            f"UPDATE stateroom.blobs b SET {column} = k.{column} FROM kept k WHERE b.blob_id = k.blob_id"
        )
        await admin.execute("DROP TABLE kept")
    with pytest.raises(IntegrityFailure):
        async with plain.unit_of_work.snapshot(scope) as transaction:
            await plain.ledger.pointers(transaction, sealer, [new_blob_id()])


async def test_a_copy_keeps_what_its_source_forgets(plain, scope):
    await plain.stored(scope)
    await save(plain.store, scope, "t2")
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.copy(transaction, "t1", "t2")
    await delete_thread(plain, scope, "t1")
    assert await condemned(plain, scope) == 0
    await delete_thread(plain, scope, "t2")
    assert await condemned(plain, scope) == 1


async def test_a_copy_of_what_is_being_condemned_begins_again(plain, scope, admin):
    await plain.stored(scope)
    await admin.execute(
        "UPDATE stateroom.blobs SET state = 'condemned', condemned_at = now() WHERE tenant_id = $1", scope.tenant_id
    )
    with pytest.raises(LostRaceError):
        async with plain.unit_of_work.begin(scope) as transaction:
            await plain.ledger.copy(transaction, "t1", "t2")


async def test_pruning_keeps_what_remaining_rows_name(plain, scope, admin):
    kept = await plain.stored(scope)
    await plain.settle(scope, await plain.put(scope, Upload()))
    await admin.execute(
        "UPDATE stateroom.checkpoints SET named_ids = $2 WHERE tenant_id = $1", scope.tenant_id, pack_named_ids([kept])
    )
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.keep(transaction, "t1")
    assert [row["blob_id"] for row in await rows(admin, "blob_refs", scope)] == [kept]
    assert await condemned(plain, scope) == 1
    assert (await plain.fsck(scope)).faults == {}


async def test_content_that_comes_back_within_the_grace_period_is_not_uploaded_again(plain, scope, admin):
    blob_id = await plain.stored(scope, Upload(CONTENT))
    await plain.forget(scope)
    assert (await rows(admin, "blobs", scope))[0]["unreferenced_at"] is not None
    async with plain.unit_of_work.snapshot(scope) as transaction:
        assert await plain.ledger.live_blobs(transaction, [CONTENT]) == {CONTENT: blob_id}
    await plain.refer(scope, blob_id)
    assert (await rows(admin, "blobs", scope))[0]["unreferenced_at"] is None


async def test_a_piece_that_no_save_names_goes_after_the_grace_period(plain, scope):
    sealer = await plain.sealer(scope)
    upload = await plain.put(scope, Upload(CONTENT))
    async with plain.unit_of_work.begin(scope) as transaction:
        await plain.ledger.settle(transaction, sealer, [upload.settlement()], None)
    assert (await plain.sweeper(grace_seconds=3600).tenant(scope.tenant_id, now=True)).condemned == 0
    assert await condemned(plain, scope) == 1


async def test_subjects_do_not_share_content(plain, scope, admin):
    await plain.stored(scope, Upload(CONTENT))
    other = Scope(scope.tenant_id, "user-2")
    async with plain.unit_of_work.snapshot(other) as transaction:
        assert await plain.ledger.live_blobs(transaction, [CONTENT]) == {}
    await plain.stored(other, Upload(CONTENT))
    assert len(await rows(admin, "blobs", scope)) == 2


# --- artifacts -----------------------------------------------------------------------------------------------------


async def test_an_artifact_keeps_its_blob_until_it_is_deleted(plain, scope, admin):
    await save(plain.store, scope)
    row = await add_artifact(plain, scope)
    assert await condemned(plain, scope) == 0
    await delete_artifact(plain, scope, row.artifact_id)
    assert await condemned(plain, scope) == 1
    with pytest.raises(ArtifactNotFound):
        await delete_artifact(plain, scope, row.artifact_id)
    assert (await plain.fsck(scope)).faults == {}


async def test_numbers_of_a_name_count_up_and_two_of_a_kind_are_a_lost_race(plain, scope):
    await save(plain.store, scope)
    made = [await add_artifact(plain, scope) for _ in range(3)]
    other = await add_artifact(plain, scope, filename="other.png")
    assert ([each.number for each in made], other.number) == ([1, 2, 3], 1)
    async with plain.unit_of_work.snapshot(scope) as transaction:
        listed = await plain.ledger.list_artifacts(transaction, "t1", made[0].name_digest, None, 2)
        rest = await plain.ledger.list_artifacts(transaction, "t1", None, listed[-1].artifact_id, 10)
    assert [each.artifact_id for each in listed] == [made[2].artifact_id, made[1].artifact_id]
    assert [each.artifact_id for each in rest] == [made[0].artifact_id]
    with pytest.raises(LostRaceError):
        async with plain.unit_of_work.begin(scope) as transaction:
            await plain.ledger.add_artifact(transaction, made[0])


async def test_a_referenced_artifact_cannot_be_deleted(plain, scope):
    await save(plain.store, scope)
    row = await add_artifact(plain, scope)
    await refer_artifact(plain, scope, row.artifact_id)
    with pytest.raises(ArtifactReferenced):
        await delete_artifact(plain, scope, row.artifact_id)
    assert (await plain.fsck(scope)).faults == {}
    await plain.forget(scope)
    await delete_artifact(plain, scope, row.artifact_id)


async def test_another_subjects_artifact_is_unknown(plain, scope):
    await save(plain.store, scope)
    row = await add_artifact(plain, scope)
    other = Scope(scope.tenant_id, "user-2")
    async with plain.unit_of_work.begin(other) as transaction:
        assert await plain.ledger.refer_artifacts(transaction, "t1", [row.artifact_id]) == {row.artifact_id}
        with pytest.raises(ArtifactNotFound):
            await plain.ledger.artifact(transaction, row.artifact_id)


async def refer_beside_a_delete(plain, scope, admin, variants):
    await save(plain.store, scope)
    row = await add_artifact(plain, scope)
    gate = Gate("COMMIT")
    referring = asyncio.create_task(
        refer_artifact(
            plain, scope, row.artifact_id, unit_of_work=SteeredUnitOfWork(plain.store._engine, variants, gate)
        )
    )
    await gate.arrival()
    deleting = asyncio.create_task(delete_artifact(plain, scope, row.artifact_id))
    if not variants:
        await blocked(admin)
    else:
        await deleting
    gate.opened.set()
    await referring
    return deleting


async def test_an_artifact_that_is_being_referred_to_is_not_deleted(plain, scope, admin):
    deleting = await refer_beside_a_delete(plain, scope, admin, {})
    with pytest.raises(ArtifactReferenced):
        await deleting
    assert (await plain.fsck(scope)).faults == {}


async def test_without_the_referrers_lock_the_artifact_is_deleted_under_it(plain, scope, admin):
    await refer_beside_a_delete(plain, scope, admin, without(sql.LOCK_NAMED.text, "FOR KEY SHARE"))
    assert (await plain.fsck(scope)).faults == {"dangling": 1}


async def test_deleting_a_thread_deletes_its_artifacts_except_those_others_refer_to(plain, scope, admin):
    for thread_id in ("t1", "t2"):
        await save(plain.store, scope, thread_id)
    gone, kept = await add_artifact(plain, scope), await add_artifact(plain, scope)
    await refer_artifact(plain, scope, gone.artifact_id, "t1")
    await refer_artifact(plain, scope, kept.artifact_id, "t2")
    await delete_thread(plain, scope, "t1")
    assert [row["artifact_id"] for row in await rows(admin, "artifacts", scope)] == [kept.artifact_id]
    assert await condemned(plain, scope) == 1
    await plain.forget(scope, "t2")  # the last who refers to it; its own thread is gone
    assert await rows(admin, "artifacts", scope) == []
    assert await condemned(plain, scope) == 1


# --- uploads that are given up, and shreds --------------------------------------------------------------------------


async def test_an_upload_that_was_given_up_is_gone_at_once_and_swept(plain, scope):
    upload = await plain.put(scope, Upload(purpose="artifact"))
    await plain.ledger.abandon(scope, upload.blob_id)
    for gone in (
        plain.ledger.abandon(scope, upload.blob_id),
        plain.ledger.renew(scope, upload.blob_id),
        plain.ledger.name_multipart(scope, upload.blob_id, "m"),
    ):
        with pytest.raises(UploadNotFound):
            await gone
    swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert (swept.removed, swept.freed_bytes) == (1, len(upload.data))


async def test_a_shredded_subjects_blobs_are_condemned_and_nobody_elses(plain, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    await plain.stored(scope)
    kept = await plain.stored(other)
    await add_artifact(plain, scope)
    await plain.put(scope, Upload())
    async with plain.unit_of_work.begin(scope) as transaction:
        assert await plain.ledger.condemn_subject(transaction) == 2
    live = [row for row in await rows(admin, "blobs", scope) if row["state"] == "live"]
    assert [row["blob_id"] for row in live] == [kept]
    for table in ("artifacts", "artifact_refs", "upload_parts"):
        assert await rows(admin, table, scope) == []
    assert {row["state"] for row in await rows(admin, "blob_intents", scope)} == {"swept"}
    assert {row["subject_id"] for row in await rows(admin, "blob_refs", scope)} == {"user-2"}


async def test_shredding_a_subject_condemns_its_blobs_and_the_sweeper_removes_them(store, plain, scope, admin):
    blob_id = await plain.stored(scope)
    await add_artifact(plain, scope)
    await store.shred.subject(scope, scope.subject_id, "key:admin")
    async with asyncio.timeout(WAIT_SECONDS):
        while await admin.fetchval(
            "SELECT count(*) FROM stateroom.jobs WHERE tenant_id = $1 AND state <> 'done'", scope.tenant_id
        ):
            await store.runner.run_due()
    assert {row["state"] for row in await rows(admin, "blobs", scope)} == {"condemned"}
    assert (await plain.fsck(scope)).faults == {}
    assert (await plain.sweeper(days=30).tenant(scope.tenant_id, now=True)).deleted == 0
    assert (await plain.sweeper(days=0).tenant(scope.tenant_id, now=True)).deleted == 2
    assert not await plain.there(scope, blob_id)
    assert [row["bytes"] for row in await rows(admin, "blob_usage", scope)] == [0]


# --- quotas --------------------------------------------------------------------------------------------------------


async def test_an_operator_sets_a_tenants_quota_and_both_chains_say_so(store, plain, scope, admin):
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'acme', now())", scope.tenant_id)
    await plain.stored(scope)
    used = len(Upload().data)
    tenants = store.tenants
    assert await tenants.usage(TenantScope(scope.tenant_id), scope.tenant_id) == type(
        await tenants.usage(OperatorScope(), scope.tenant_id)
    )(used, None)
    assert (await tenants.set_quota(scope.tenant_id, 5, "key:op")).quota_bytes == 5
    usage = await tenants.usage(OperatorScope(), scope.tenant_id)
    assert (usage.bytes, usage.quota_bytes) == (used, 5)
    actions = await admin.fetch(
        "SELECT tenant_id, actor FROM stateroom.audit_log WHERE action = 'tenant.quota' AND target = $1",
        f"tenant:{scope.tenant_id}",
    )
    assert {row["tenant_id"] for row in actions} >= {scope.tenant_id}
    assert len(actions) == 2
    with pytest.raises(TenantNotFound):
        await tenants.set_quota(uuid4(), 5)
    with pytest.raises(InvalidState):
        await tenants.set_quota(scope.tenant_id, -1)
