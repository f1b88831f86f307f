"""The transfer key: made once whoever asks first, rewrapped with the root, and never believed when it was exchanged."""

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from crypto import MemoryRootKey, SecretKey, TransferKey
from storage.blobs.memory import MemoryBlobStore
from storage.clock import SystemClock
from storage.control.deployment_keys import Deployment
from storage.errors import IntegrityFailure
from storage.keys.transfer_keys import TransferKeys
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Silent
from storage.scope import OperatorScope, Scope, TenantScope
from tests.support.states import contents, load, save, state
from tests.support.stores import DEPLOYMENT_ID, MigratedDatabase
from tests.support.transfers import deployment, exported, imported, recipient

WRAPPED = Statement("SELECT wrapped FROM stateroom.deployment_keys WHERE purpose = 'transfer'", bytes)


def keys_of(store, root_key):
    return TransferKeys(Deployment(store.unit_of_work, root_key, DEPLOYMENT_ID, SystemClock(), Silent()))


async def test_processes_that_ask_at_once_use_one_key(store, root_key):
    asked = await asyncio.gather(*(keys_of(store, root_key).newest() for _ in range(4)))
    assert len({each.public_key for each in asked}) == 1
    found = await keys_of(store, root_key).of(asked[0].public_key.fingerprint)
    assert found is not None
    assert found.public_key == asked[0].public_key
    assert await keys_of(store, root_key).of("0" * 32) is None


async def test_an_exchanged_public_half_is_found(store, root_key, database):
    await keys_of(store, root_key).newest()
    admin = await asyncpg.connect(MigratedDatabase.dsn(database.superuser_url))
    try:
        other = TransferKey(SecretKey.generate()).public_key.raw
        kept = await admin.fetchval("SELECT public FROM stateroom.deployment_keys WHERE purpose = 'transfer'")
        await admin.execute("UPDATE stateroom.deployment_keys SET public = $1 WHERE purpose = 'transfer'", other)
        with pytest.raises(IntegrityFailure):
            await keys_of(store, root_key).newest()
        await admin.execute("UPDATE stateroom.deployment_keys SET public = $1 WHERE purpose = 'transfer'", kept)
    finally:
        await admin.close()


async def test_the_root_keys_rotation_takes_it_along_and_old_files_open(postgres, migrated_template, store, scope):
    await save(store, scope, content=state(n=1))
    root_key, own_id = MemoryRootKey(), uuid4()
    async with deployment(postgres, migrated_template, root_key=root_key, deployment_id=own_id) as there:
        target = Scope(uuid4(), scope.subject_id)
        file = await exported(store, there, scope, target.tenant_id)
        async with there.unit_of_work.snapshot(OperatorScope()) as transaction:
            before = await transaction.fetch_only(WRAPPED)
        root_key.rotate()
        await there.rotation.rewrap_root("local")
        while await there.runner.run_due():
            pass
        async with there.unit_of_work.snapshot(OperatorScope()) as transaction:
            after = await transaction.fetch_only(WRAPPED)
        assert after != before
        fresh = TransferKeys(Deployment(there.unit_of_work, root_key, own_id, SystemClock(), Silent()))
        assert (await fresh.newest()).public_key == (await there.transfer_keys.newest()).public_key
        assert (await imported(there, target.tenant_id, file)).verified == 1
        assert contents(await load(there, target)) == {"n": 1}


async def test_an_archived_thread_is_exported_from_its_object(postgres, migrated_template, scope):
    async with (
        deployment(postgres, migrated_template, archive=MemoryBlobStore()) as here,
        deployment(postgres, migrated_template) as there,
    ):
        await save(here, scope, content=state(messages=["x" * 5_000] * 30))
        digest = (await here.exporting.content_digest(scope, "t1")).digest
        written_at = (await here.threads.get(scope, "t1")).updated_at
        await here.archives.archive(scope, "t1")
        assert (await here.threads.get(scope, "t1")).tier == "archive"
        target = Scope(uuid4(), scope.subject_id)
        assert (
            await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
        ).verified == 1
        assert (await here.threads.get(scope, "t1")).tier == "archive"
        assert (await there.exporting.content_digest(target, "t1", updated_at=written_at)).digest == digest
        assert (await there.threads.get(target, "t1")).tier == "hot"


async def test_a_transfer_whose_connection_is_gone_ends_as_failed(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await save(store, scope, content=state(n=1))
    target = uuid4()
    receiver = await recipient(store, target)
    export = await store.exporting.thread(scope, "t1", receiver, "api-key:test")
    await anext(export.content)
    await export.content.aclose()
    job = await store.jobs.get(tenant, export.job_id)
    assert (job.state, job.error) == ("failed", "the download was broken off")
    async with store.unit_of_work.begin(tenant) as transaction:
        job_id = await store.jobs.add(transaction, scope.tenant_id, "import", "*", "")  # its process died at once
    while await store.runner.run_due():
        pass
    assert (await store.jobs.get(tenant, job_id)).state == "failed"


async def test_a_runner_beside_a_transfer_leaves_its_job_alone(store, scope):
    await save(store, scope, content=state(n=1))
    target = uuid4()
    receiver = await recipient(store, target)
    running = asyncio.create_task(store.runner.keep_running(pytest.fail))
    try:
        export = await store.exporting.thread(scope, "t1", receiver, "api-key:test")
        await store.runner.run_due()
        file = b"".join([each async for each in export.content])
        report = await imported(store, target, file)
    finally:
        running.cancel()
    assert report.verified == 1
    job = await store.jobs.get(TenantScope(scope.tenant_id), export.job_id)
    assert (job.state, job.done) == ("done", 1)
