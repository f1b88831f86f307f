"""A key version that somebody edited in a clear column is damage, told by whoever opens the row and by verification."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import msgspec
import pytest

from crypto import OpenError
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.errors import IntegrityFailure
from storage.postgres.tables import metadata
from storage.scope import Scope, TenantScope
from storage.verification.jobs import TenantReport
from tests.support.archive_rows import fill, opened
from tests.support.interleaving import WAIT_SECONDS
from tests.support.states import document, history, load, put, save, state, write
from tests.support.transfers import exported

SCOPE = Scope(uuid4(), "user-1")
NEW = NewArtifact(name="a")
STAY = "the older key versions stay"


async def body() -> AsyncIterator[bytes]:
    yield b"content"


class World:
    """A store with a row in every table that names a key version, and whoever opens each."""

    def __init__(self, store, reopened):
        self.store = store
        self.reopened = reopened

    async def made(self):
        store = self.store
        saved = await save(store, SCOPE, "t1", content=state(a=document("a", 12_000), b=document("b", 2_000_000)))
        await put(store, SCOPE, saved.checkpoint_id, write(0, "a", "written"), thread_id="t1")
        await fill(store, SCOPE, "moved")
        await store.archives.archive(SCOPE, "moved")
        self.artifact_id = (await store.artifacts.create(SCOPE, "t1", NEW, body())).artifact_id
        self.upload_id = (await store.artifacts.begin(SCOPE, "t1", NEW)).upload_id
        await store.transfer_keys.newest()
        await store.anchors.anchor(TenantScope(SCOPE.tenant_id))
        await verified(store)
        return self

    async def load(self):
        await load(self.store, SCOPE, "t1")

    async def load_archived(self):
        await load(self.store, SCOPE, "moved")

    async def list_history(self):
        await history(self.store, SCOPE, thread_id="t1", with_state=True)

    async def export(self):
        await exported(self.store, self.store, SCOPE, SCOPE.tenant_id)

    async def list_artifacts(self):
        await self.store.artifacts.list(SCOPE, "t1")

    async def get_artifact(self):
        await self.store.artifacts.get(SCOPE, self.artifact_id)

    async def read_artifact(self):
        await self.store.artifacts.open(SCOPE, self.artifact_id)

    async def name_artifact(self):
        await self.store.artifacts.open_named(SCOPE, [self.artifact_id])

    async def revoke_urls(self):
        await self.store.artifacts.revoke_urls(SCOPE, self.artifact_id)

    async def show_upload(self):
        await self.store.artifacts.upload(SCOPE, self.upload_id)

    async def complete_upload(self):
        await self.store.artifacts.complete(SCOPE, self.upload_id, 0)

    async def verify_thread(self):
        return {each.code for each in (await self.store.verification.thread(SCOPE, "t1")).findings}

    async def verify_subject(self):
        return {each.code for each in (await self.store.verification.subject(SCOPE)).findings}


ALL = "true"
# Of each table: which rows are edited, who then refuses to open them, and as what verification tells it.
CASES = {
    "checkpoints": (ALL, (World.load, World.list_history), {"checkpoint"}),
    "pending_writes": (ALL, (World.load,), {"pending-write"}),
    "chunks": (ALL, (World.load, World.list_history, World.export), {"piece"}),
    "artifacts": (
        ALL,
        (World.list_artifacts, World.get_artifact, World.read_artifact, World.name_artifact, World.revoke_urls),
        {"artifact"},
    ),
    "blobs": ("place = 'blobs'", (World.load, World.read_artifact, World.name_artifact), {"blob", "piece"}),
    "blob_intents": (ALL, (World.show_upload, World.complete_upload), {"upload"}),
    "archives": (ALL, (World.load_archived,), {"archive"}),
}


def test_every_table_that_names_a_key_version_is_attacked():
    naming = {table.name for table in metadata.tables.values() if "key_version" in table.columns}
    assert naming == CASES.keys() | {table for table, *_ in KEY_CASES}


@pytest.fixture(scope="module")
async def world(database, root_key):
    blobs, archive = MemoryBlobStore(), MemoryBlobStore()

    def reopened():
        return opened(database, root_key, blobs=blobs, archive=archive)

    async with reopened() as store:
        yield await World(store, reopened).made()


@asynccontextmanager
async def edited(admin, table, where, by, column="key_version"):
    edit = f"UPDATE stateroom.{table} SET {column} = {column} + $1 WHERE {where}"
    assert await admin.execute(edit, by) != "UPDATE 0"
    yield
    await admin.execute(edit, -by)


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("table", CASES)
async def test_an_edited_key_version_is_damage_to_whoever_opens_the_row(world, admin, table, by):
    where, readings, codes = CASES[table]
    async with edited(admin, table, where, by):
        for reading in readings:
            with pytest.raises(IntegrityFailure):
                await reading(world)
        assert codes <= await world.verify_subject()
        if table not in {"archives", "blob_intents"}:  # of another thread, and of none yet
            assert codes <= await world.verify_thread()
    assert not await world.verify_subject()
    for reading in readings:
        if reading is not World.complete_upload:
            await reading(world)


async def cannot_be_read(world):
    async with world.reopened() as store:
        for reading in (load(store, SCOPE, "t1"), store.threads.list(SCOPE), save(store, SCOPE, "t1")):
            with pytest.raises(IntegrityFailure):
                await reading
        assert (await verified(store)).found.keys() == {"keys"}


async def damages_control_rows(world):
    async with world.reopened() as store:
        tenant = TenantScope(SCOPE.tenant_id)
        assert any(each.damaged for each in (await store.jobs.list(tenant)).items)
        assert "control-row" in (await verified(store)).found


async def cannot_be_anchored(world):
    async with world.reopened() as store:
        with pytest.raises(IntegrityFailure):
            await store.anchors.anchor(TenantScope(SCOPE.tenant_id))


async def takes_in_no_export(world):
    async with world.reopened() as store:
        with pytest.raises(OpenError):  # to a client the same integrity-failure
            await store.transfer_keys.newest()


async def ended(store, job_id):
    async with asyncio.timeout(WAIT_SECONDS):
        while (job := await store.jobs.get(TenantScope(SCOPE.tenant_id), job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
    return job


async def verified(store):
    tenant = TenantScope(SCOPE.tenant_id)
    job_id = await store.verifying.begin_tenant(tenant, "key:admin")
    job = await ended(store, job_id)
    assert job.state == "done"
    return msgspec.json.decode(job.note, type=TenantReport)


# Of the tables of keys: the column, which rows, and how a process that opens them anew tells.
KEY_CASES = [
    ("tenant_keys", "key_version", ALL, cannot_be_read),
    ("subject_keys", "key_version", "purpose = 'data'", cannot_be_read),
    ("subject_keys", "key_version", "purpose = 'id'", cannot_be_read),
    ("subject_keys", "tenant_key_version", ALL, cannot_be_read),
    ("subject_keys", "tenant_key_version", "purpose = 'data'", cannot_be_read),
    ("deployment_keys", "key_version", "purpose = 'control'", damages_control_rows),
    ("deployment_keys", "key_version", "purpose = 'audit'", cannot_be_anchored),
    ("deployment_keys", "key_version", "purpose = 'transfer'", takes_in_no_export),
]


@pytest.mark.parametrize(("table", "column", "where", "told"), KEY_CASES)
async def test_an_edited_version_of_a_key_is_damage_to_whoever_needs_the_key(world, admin, table, column, where, told):
    async with edited(admin, table, where, 1, column):
        await told(world)
        # Whoever finds no deployment key of its version makes one.
        made = f"DELETE FROM stateroom.{table} WHERE {column} = 1 AND {where}"
        assert await admin.execute(made) == f"DELETE {int(told in {damages_control_rows, cannot_be_anchored})}"


async def test_a_tenant_key_is_kept_that_a_subject_key_needs_which_says_it_was_wrapped_again(world, admin):
    tenant = TenantScope(SCOPE.tenant_id)
    rotated = await world.store.rotation.rotate_tenant(tenant, "key:admin")
    async with edited(admin, "subject_keys", "purpose = 'data'", 1, "tenant_key_version"):
        job = await ended(world.store, rotated.job_id)
        assert job.error == "1 subject keys do not authenticate; the older tenant keys stay"
    async with world.reopened() as store:
        await load(store, SCOPE, "t1")


async def test_a_data_key_is_kept_while_rows_name_other_versions_than_they_were_sealed_under(world, admin):
    sealed = {table: where for table, (where, *_) in CASES.items() if table != "archives"}
    tables = [f"SELECT count(*) AS rows FROM stateroom.{table} WHERE {where}" for table, where in sealed.items()]
    wrong = await admin.fetchval(f"SELECT sum(rows)::integer FROM ({' UNION ALL '.join(tables)}) wrong")
    async with AsyncExitStack() as edits:
        for table, where in sealed.items():
            await edits.enter_async_context(edited(admin, table, where, 1))
        rotated = await world.store.rotation.rotate_subject(SCOPE, "key:admin")
        assert (await ended(world.store, rotated.job_id)).error == f"{wrong} sealed rows are damaged; {STAY}"
    assert not await world.verify_subject()
