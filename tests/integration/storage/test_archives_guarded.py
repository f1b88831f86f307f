"""What keeps an archive honest: seals that stay behind, bound stubs, held key versions; and the end of keys."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio

import pytest

from crypto import KeyDestroyed
from storage.access.sealing import Sealing
from storage.archive.moving import Archives
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import Sweep
from storage.errors import IntegrityFailure, LegalHold, StorageError
from storage.migration.jobs import STATE_MIGRATE_KIND, read_position
from storage.model import Save
from storage.postgres.tables import metadata
from storage.retention.planner import Policy
from storage.schemas.registry import Definition
from storage.scope import Scope, TenantScope
from storage.statements.threads import archives as archives_sql
from tests.support.archive_rows import fill, fsck, moved, opened, rows, seen
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.interleaving import SteeredUnitOfWork, blocked, parts_of
from tests.support.states import contents, load, put, save, state, write


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        yield made


async def codes(store, scope):
    return {each.code for each in (await store.verification.subject(scope)).findings}


async def clean(store, scope):
    assert (await store.verification.subject(scope)).findings == []
    assert (await fsck(store, scope)).faults == {}


async def refused(store, scope, admin, thread_id="t1"):
    """Neither read nor restored, and a verification tells."""
    before = await rows(admin, scope, thread_id, "archives")
    with pytest.raises(IntegrityFailure):
        await load(store, scope, thread_id)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, thread_id)
    with pytest.raises(IntegrityFailure):
        await save(store, scope, thread_id)
    assert "archive" in await codes(store, scope)
    assert await rows(admin, scope, thread_id, "archives") == before
    assert (await store.threads.get(scope, thread_id)).tier == "archive"


# --- the object ------------------------------------------------------------------------------------------------------


class Bucket:
    """Whoever holds the bucket of archives."""

    def __init__(self, store, scope):
        self._objects = store.archive._objects
        self._states = store.archive._states
        self._prefix = tenant_prefix(scope.tenant_id, "archive")

    @property
    def keys(self):
        return sorted(each for each in self._objects if each.startswith(self._prefix))

    def __getitem__(self, key):
        return self._objects[key]

    def __setitem__(self, key, data):
        self._objects[key] = data

    def remove(self, key):
        del self._objects[key]
        del self._states[key]


@pytest.fixture
def bucket(store, scope):
    return Bucket(store, scope)


@pytest.mark.parametrize("attack", ["truncated", "longer", "altered", "missing", "empty"])
async def test_a_damaged_object_is_refused(store, scope, admin, bucket, attack):
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    await clean(store, scope)
    [key] = bucket.keys
    whole = bucket[key]
    if attack == "missing":
        bucket.remove(key)
    else:
        middle = len(whole) // 2
        bucket[key] = {
            "truncated": whole[:-1],
            "longer": whole + b"\0",
            "altered": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
        }[attack]
    await refused(store, scope, admin)


async def test_another_threads_object_is_refused(store, scope, admin, bucket):
    await fill(store, scope, "t1")
    await fill(store, scope, "t2")
    await store.archives.archive(scope, "t1")
    await store.archives.archive(scope, "t2")
    first, second = bucket.keys
    bucket[first], bucket[second] = bucket[second], bucket[first]
    await refused(store, scope, admin, "t1")
    await refused(store, scope, admin, "t2")


async def test_an_older_archive_of_the_same_thread_is_refused(store, scope, admin):
    """Stub, blob and object, whole and authentic, of before the last save: the seals that stayed know better."""
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    [older] = await rows(admin, scope, "t1", "archives")
    await store.archives.restore(scope, "t1")
    await save(store, scope, content=state(note="newer"))
    await store.archives.archive(scope, "t1")
    await clean(store, scope)
    await admin.execute("DELETE FROM stateroom.archives WHERE tenant_id = $1", scope.tenant_id)
    await insert(admin, "archives", older)
    await refused(store, scope, admin)


async def test_an_older_archive_with_fewer_pending_writes_is_refused(store, scope, admin):
    ids = await fill(store, scope)
    await store.archives.archive(scope, "t1")
    [older] = await rows(admin, scope, "t1", "archives")
    await put(store, scope, ids[0], write(0, "c", "acknowledged"), task_id="late")
    await store.archives.archive(scope, "t1")
    await admin.execute("DELETE FROM stateroom.archives WHERE tenant_id = $1", scope.tenant_id)
    await insert(admin, "archives", older)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")
    with pytest.raises(IntegrityFailure):
        await seen(store, scope)
    assert "archive" in await codes(store, scope)


async def insert(admin, table, row):
    names = list(row)
    places = ", ".join(f"${at + 1}" for at in range(len(names)))
    await admin.execute(f"INSERT INTO stateroom.{table} ({', '.join(names)}) VALUES ({places})", *row.values())


# --- the stub --------------------------------------------------------------------------------------------------------

EDITS = {
    "blob_id": "gen_random_uuid()",
    "activity": "activity + 1",
    "key_versions": "'{1,2}'",
    "client_share": "NOT client_share",
    "checkpoints": "checkpoints + 1",
    "pending_writes": "pending_writes - 1",
    "chunks": "chunks + 1",
    "hot_bytes": "hot_bytes + 1",
    "size_bytes": "size_bytes + 1",
    "run_ids": "run_ids[2:]",
    "state_schemas": "'{travel}'",
    "agents": "'{}'",
    "named_ids": "NULL",
    "storage_class": "'GLACIER'",
    "created_at": "created_at + interval '1 second'",
    "key_version": "key_version + 1",
    "sealed": "set_byte(sealed, 39, get_byte(sealed, 39) # 1)",
    "segment": "segment + 1",
    "volume": "volume + 1",
    "first_id": "'a'",
    "last_id": "'z'",
}
# Advisory; who the stub belongs to is in the seal's context; and an archived thread's has no list.
NOT_EDITED = {"stored_at", "tenant_id", "subject_id", "thread_id", "listed"}


def test_every_column_of_a_stub_is_attacked():
    assert {each.name for each in metadata.tables["stateroom.archives"].columns} == EDITS.keys() | NOT_EDITED


@pytest.mark.parametrize("column", EDITS)
async def test_an_edited_stub_opens_nothing(store, scope, admin, column):
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    hot = (await store.verification.subject(scope)).checkpoints
    assert hot == 4
    changed = await admin.execute(
        f"UPDATE stateroom.archives SET {column} = {EDITS[column]} WHERE tenant_id = $1", scope.tenant_id
    )
    assert changed == "UPDATE 1"
    await refused(store, scope, admin)


async def test_a_stub_moved_to_another_thread_or_subject_opens_nothing(store, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    await fill(store, scope, "t1")
    await fill(store, other, "t1")
    await fill(store, scope, "t2")
    for place, thread_id in ((scope, "t1"), (other, "t1"), (scope, "t2")):
        await store.archives.archive(place, thread_id)
    for column, value in (("thread_id", "t2"), ("subject_id", "user-2")):
        moving = f"{column} = '{value}'"
        where = "tenant_id = $1 AND subject_id = 'user-1' AND thread_id = 't1'"
        [[original]] = [await rows(admin, scope, "t1", "archives")]
        target = other if column == "subject_id" else scope
        target_thread = "t1" if column == "subject_id" else "t2"
        [victim] = await rows(admin, target, target_thread, "archives")
        await admin.execute(
            "DELETE FROM stateroom.archives WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
            scope.tenant_id, target.subject_id, target_thread,
        )  # fmt: skip
        await admin.execute(f"UPDATE stateroom.archives SET {moving} WHERE {where}", scope.tenant_id)
        await refused(store, target, admin, target_thread)
        await admin.execute(
            "DELETE FROM stateroom.archives WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
            scope.tenant_id, target.subject_id, target_thread,
        )  # fmt: skip
        await insert(admin, "archives", original)
        await insert(admin, "archives", victim)
    await clean(store, scope)


async def test_a_stub_that_was_taken_away_or_a_tier_that_was_edited_is_found(store, scope, admin):
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    await admin.execute("UPDATE stateroom.threads SET tier = 'hot' WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)
    with pytest.raises(IntegrityFailure):
        await save(store, scope)
    assert {"archive", "live-set"} <= await codes(store, scope)
    await admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    await clean(store, scope)
    await admin.execute("DELETE FROM stateroom.archives WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(StorageError):
        await load(store, scope)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")
    assert await codes(store, scope) == {"archive"}


async def test_rows_put_beside_an_archive_are_found_and_not_mixed_with_it(store, scope, admin):
    await fill(store, scope)
    [first, *_] = await rows(admin, scope, "t1", "checkpoints")
    await store.archives.archive(scope, "t1")
    await insert(admin, "checkpoints", first)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")
    assert await codes(store, scope) == {"archive"}


async def test_a_hot_thread_called_archived_is_found(store, scope, admin):
    await fill(store, scope)
    await admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")
    assert await codes(store, scope) == {"archive"}


A_CHUNK = """
DELETE FROM stateroom.chunks WHERE tenant_id = $1 AND $2::text IS NOT NULL
AND piece_id = (SELECT min(piece_id) FROM stateroom.chunks WHERE tenant_id = $1)
"""


async def test_a_thread_that_does_not_verify_is_not_archived(store, scope, admin):
    ids = await fill(store, scope)
    for statement in (
        "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND checkpoint_id = $2",
        "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND checkpoint_id = $2",
        A_CHUNK,
    ):
        before = {table: await rows(admin, scope, "t1", table) for table in ("checkpoints", "pending_writes", "chunks")}
        touched = await admin.execute(statement, scope.tenant_id, ids[2] if "pending" in statement else ids[0])
        assert touched != "DELETE 0"
        with pytest.raises(IntegrityFailure):
            await store.archives.archive(scope, "t1")
        assert (await store.threads.get(scope, "t1")).tier == "hot"
        for table, kept in before.items():
            await admin.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)
            for row in kept:
                await insert(admin, table, row)
    await clean_after_sweep(store, scope)
    assert (await store.archives.archive(scope, "t1")).created


async def clean_after_sweep(store, scope):
    await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    await clean(store, scope)


# --- keys ------------------------------------------------------------------------------------------------------------


async def finished(store, scope, job_id):
    async with asyncio.timeout(30):
        while (await store.jobs.get(TenantScope(scope.tenant_id), job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()
    return await store.jobs.get(TenantScope(scope.tenant_id), job_id)


async def rotated(store, scope):
    return await finished(store, scope, (await store.rotation.rotate_subject(scope, "tester")).job_id)


async def versions(store, scope):
    status = await store.rotation.subject_status(scope)
    return {each.key_version: each.state for each in status if each.purpose == "data"}


async def test_a_key_version_lives_as_long_as_an_archive_needs_it(store, scope):
    await fill(store, scope, "t1")
    await fill(store, scope, "hot")
    before = await seen(store, scope)
    await store.archives.archive(scope, "t1")

    job = await rotated(store, scope)
    assert (job.state, "archived" in job.note) == ("done", True)
    assert await versions(store, scope) == {1: "decrypt_only", 2: "active"}
    assert await seen(store, scope) == before

    # It comes back under the old version, is written to, and goes again, needing both.
    await save(store, scope, content=state(note="under the new key"))
    archived = await store.archives.archive(scope, "t1")
    [stub] = await stubs(store, scope)
    assert (stub.blob_id, stub.key_versions) == (archived.stub.blob_id, [1, 2])
    await rotated(store, scope)
    assert await versions(store, scope) == {1: "decrypt_only", 2: "decrypt_only", 3: "active"}
    assert len(await seen(store, scope)) > len(before)

    await store.archives.expire(scope, "t1")
    job = await rotated(store, scope)
    assert (job.state, job.error, job.note) == ("done", None, None)
    assert await versions(store, scope) == {1: "destroyed", 2: "destroyed", 3: "destroyed", 4: "active"}
    assert len(await seen(store, scope, "hot")) > 2
    await clean(store, scope)


async def stubs(store, scope):
    async with store.unit_of_work.snapshot(scope) as transaction:
        found = await store.archives.objects.stub(transaction, "t1")
        return [] if found is None else [found]


async def test_a_stub_that_denies_what_it_needs_keeps_every_version(store, scope, admin):
    saved = await save(store, scope)
    await store.rotation.rotate_subject(scope, "tester")
    # Its seals are sealed anew with this, so that only the archive needs the old version.
    await put(store, scope, saved.checkpoint_id, write(0, "c", 1))
    await store.archives.archive(scope, "t1")
    [stub] = await stubs(store, scope)
    assert stub.key_versions == [1, 2]
    await admin.execute("UPDATE stateroom.archives SET key_versions = '{2}' WHERE tenant_id = $1", scope.tenant_id)
    [job] = (await store.jobs.list(TenantScope(scope.tenant_id))).items
    job = await finished(store, scope, job.job_id)
    assert job.state == "failed"
    assert "are damaged" in job.error
    assert await versions(store, scope) == {1: "decrypt_only", 2: "active"}
    await admin.execute("UPDATE stateroom.archives SET key_versions = '{1,2}' WHERE tenant_id = $1", scope.tenant_id)
    assert contents(await load(store, scope)) == {"note": "x"}


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
@pytest.mark.parametrize("moment", ["put_if_absent", "get_range", "change_class"])
async def test_a_rotation_that_ends_while_a_thread_is_archived_loses_nothing(database, root_key, scope, moment, begins):
    """Rows were read under the old version; it is destroyed before the flip, which then takes the rows of now."""
    bucket = FaultyBlobStore(MemoryBlobStore(storage_class="GLACIER", thaw_seconds=0))
    async with opened(database, root_key, archive=bucket) as store:
        await fill(store, scope)
        before = await seen(store, scope)
        done = []
        begun = await store.rotation.rotate_subject(scope, "tester") if begins == "before" else None

        async def rotate_meanwhile(when, operation):
            if (when, operation) == ("before", moment) and not done:
                done.append(await (rotated(store, scope) if begun is None else finished(store, scope, begun.job_id)))

        bucket.hook = rotate_meanwhile
        archived = await store.archives.archive(scope, "t1")
        assert done[0].error is None
        assert archived.created
        assert await versions(store, scope) == {1: "destroyed", 2: "active"}
        [stub] = await stubs(store, scope)
        assert stub.key_versions == [2]
        await store.archives.objects.thaw(scope, stub)
        assert await seen(store, scope) == before
        await store.archives.restore(scope, "t1")
        assert await seen(store, scope) == before


async def test_shredding_reaches_the_archive(store, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    for place in (scope, other):
        await fill(store, place)
        await store.archives.archive(place, "t1")
    shredded = await store.shred.subject(scope, scope.subject_id, "tester")
    for verb in (load, save):
        with pytest.raises(KeyDestroyed):
            await verb(store, scope)
    with pytest.raises(KeyDestroyed):
        await store.archives.restore(scope, "t1")
    await finished(store, scope, shredded.job_id)
    for table in ("threads", "heads", "archives", "blob_refs"):
        assert await rows(admin, scope, "t1", table) == []
    assert len(await seen(store, other)) > 2
    sweep = Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0)
    for _ in range(3):
        await sweep.tenant(scope.tenant_id, now=True)
    assert len(await store.archive.list_keys("")) == 1
    assert (await fsck(store, scope)).faults == {}


# --- state versions --------------------------------------------------------------------------------------------------


async def test_an_eager_migration_passes_archived_threads_over_and_counts_them(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=[{"op": "rename", "from": "/a", "to": "/b"}]))
    for thread_id, schema in (("t1", "travel"), ("t2", "travel"), ("other", None)):
        number = None if schema is None else 1
        await store.states.save(
            scope, Save(thread_id=thread_id, content=state(a=thread_id), state_schema=schema, state_version=number)
        )
    await store.archives.archive(scope, "t1")
    await store.archives.archive(scope, "other")
    options = {"idle_seconds": 0, "heads_per_second": 1000}
    job_id = await store.migrating.begin(tenant, STATE_MIGRATE_KIND, "travel", "tester", **options)
    await finished(store, scope, job_id)
    [job] = await store.migrating.jobs(tenant, "travel")
    _, report = read_position(job.position)
    assert (report.heads, report.changed, report.archived) == (2, 1, 1)
    assert (await store.threads.get(scope, "t1")).tier == "archive"
    assert contents(await load(store, scope, "t2")) == {"b": "t2"}
    assert contents(await load(store, scope, "t1")) == {"a": "t1"}


POSITION = "SELECT position FROM stateroom.jobs WHERE job_id = $1"


# --- what is relied on is what was read back -------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["altered", "replaced", "gone"])
async def test_rows_stay_when_the_object_does_not_come_back_as_it_was_sent(database, root_key, scope, admin, damage):
    bucket = FaultyBlobStore(MemoryBlobStore())
    async with opened(database, root_key, archive=bucket) as store:
        await fill(store, scope)
        before = await moved(admin, scope)

        async def spoil(when, operation):
            if (when, operation) == ("after", "put_if_absent"):
                [key] = bucket.inner._objects
                whole = bucket.inner._objects[key]
                altered = whole[:-1] + bytes([whole[-1] ^ 1])
                bucket.inner._objects[key] = bytes(len(whole)) if damage == "replaced" else altered
                if damage == "gone":
                    del bucket.inner._objects[key], bucket.inner._states[key]

        bucket.hook = spoil
        with pytest.raises(IntegrityFailure):
            await store.archives.archive(scope, "t1")
        bucket.hook = None
        assert await moved(admin, scope) == before
        assert (await store.threads.get(scope, "t1")).tier == "hot"
        await clean_after_sweep(store, scope)
        assert (await store.archives.archive(scope, "t1")).created


async def test_no_version_is_given_up_between_the_flip_and_its_commit(database, root_key, scope, admin):
    """Rows were read before they were re-sealed; whoever then counts what needs a version waits for the flip."""
    bucket = FaultyBlobStore(MemoryBlobStore())
    tenant = TenantScope(scope.tenant_id)
    async with opened(database, root_key, archive=bucket) as store:
        saved = await save(store, scope)
        rotated = await store.rotation.rotate_subject(scope, "tester")
        await put(store, scope, saved.checkpoint_id, write(0, "c", 1))
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def reseal_meanwhile(when, operation):
            if (when, operation) == ("before", "put_if_absent"):
                position = ""
                while not position.startswith('["count"'):
                    await store.runner.run_due()
                    position = await admin.fetchval(POSITION, rotated.job_id)

        async def stop(statement):
            if statement == archives_sql.INTO_ARCHIVE.text:
                reached.set()
                await go_on.wait()

        bucket.hook = reseal_meanwhile
        steered = SteeredUnitOfWork(store._engine, {}, stop)
        sealing = Sealing(parts_of(store, steered))
        parts = (store.archives.objects, store.archive_writer, store.jobs, store.audit)
        archiving = asyncio.create_task(Archives(sealing, *parts).archive(scope, "t1"))
        await reached.wait()
        ending = asyncio.create_task(finished(store, scope, rotated.job_id))
        await blocked(admin)
        go_on.set()
        await archiving
        assert "archived" in (await ending).note
        assert (await store.jobs.get(tenant, rotated.job_id)).error is None
        assert await versions(store, scope) == {1: "decrypt_only", 2: "active"}
        assert contents(await load(store, scope)) == {"note": "x"}


async def test_a_thread_that_somebody_must_keep_does_not_expire(store, scope):
    await fill(store, scope)
    await store.archives.archive(scope, "t1")
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True), "tester")
    with pytest.raises(LegalHold):
        await store.archives.expire(scope, "t1")
    assert (await store.threads.get(scope, "t1")).tier == "archive"
