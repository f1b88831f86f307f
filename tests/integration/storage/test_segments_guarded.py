"""What keeps segments honest: whoever writes the database or the bucket is found out. And what ends when."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio

import pytest
from sqlalchemy.engine import make_url

from crypto import KeyDestroyed, MemoryRootKey
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import Sweep
from storage.control.features import SEGMENTS
from storage.errors import IntegrityFailure, ThreadNotFound
from storage.model import HistoryQuery
from storage.scope import Scope, TenantScope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fsck, opened, rows, seen
from tests.support.engines import create_database, drop_database
from tests.support.features import switch_on
from tests.support.states import contents, document, history, load, put, save, state, write
from tests.support.stores import APP_PASSWORD, MigratedDatabase

OLD = ThinningRule(keep_last=1)


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        yield made


async def segmented(store, scope, thread_id="t1", rounds=2):
    """A thread with some segments of one volume; returns the ids of its checkpoints."""
    ids = []
    for number in range(rounds):
        for _ in range(2):
            saved = await save(store, scope, thread_id, content=state(a=document(f"a{len(ids)}", 3000), b=number))
            ids.append(saved.checkpoint_id)
            await put(store, scope, saved.checkpoint_id, write(0, "c", len(ids)), thread_id=thread_id)
        await store.archives.segmenting.move(scope, thread_id, OLD, actor="test")
    return ids


async def found(store, scope):
    return {each.code for each in (await store.verification.subject(scope)).findings}


async def refused(store, scope, ids, thread_id="t1"):
    """What is in segments is neither read nor brought back, and a verification tells."""
    with pytest.raises(IntegrityFailure):
        await history(store, scope, thread_id=thread_id, with_state=True)
    with pytest.raises(IntegrityFailure):
        await put(store, scope, ids[0], write(7, "c", "late"), thread_id=thread_id)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, thread_id)
    assert "archive" in await found(store, scope)


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
    "run_ids": "'{r}'",
    "state_schemas": "'{travel}'",
    "agents": "'{planner}'",
    "named_ids": "'\\x00000000000000000000000000000000'",
    "storage_class": "'GLACIER'",
    "created_at": "created_at + interval '1 second'",
    "key_version": "key_version + 1",
    "sealed": "set_byte(sealed, 39, get_byte(sealed, 39) # 1)",
    "segment": "segment + 5",
    "volume": "volume + 1",
    "first_id": "first_id || 'x'",
    "last_id": "last_id || 'x'",
    "listed": "set_byte(listed, 39, get_byte(listed, 39) # 1)",
}


@pytest.mark.parametrize("column", EDITS)
async def test_an_edited_stub_of_a_segment_is_refused(store, scope, admin, column):
    ids = await segmented(store, scope)
    assert await found(store, scope) == set()
    changed = await admin.execute(
        f"UPDATE stateroom.archives SET {column} = {EDITS[column]} WHERE tenant_id = $1 AND segment = 1",
        scope.tenant_id,
    )
    assert changed == "UPDATE 1"
    await refused(store, scope, ids)


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM stateroom.archives WHERE tenant_id = $1 AND segment = 1",
        "UPDATE stateroom.archives SET listed = NULL WHERE tenant_id = $1 AND segment = 1",
        "UPDATE stateroom.threads SET cold = set_byte(cold, 39, get_byte(cold, 39) # 1) WHERE tenant_id = $1",
        (
            "UPDATE stateroom.archives a SET listed = b.listed FROM stateroom.archives b WHERE a.tenant_id = $1"
            " AND b.tenant_id = $1 AND a.segment = 1 AND b.segment = 2"
        ),
    ],
    ids=["stub", "list", "sums", "another list"],
)
async def test_what_says_where_checkpoints_are_is_missed(store, scope, admin, attack):
    ids = await segmented(store, scope)
    await admin.execute(attack, scope.tenant_id)
    await refused(store, scope, ids)


async def test_a_thread_whose_sums_were_taken_away_is_found(store, scope, admin):
    ids = await segmented(store, scope)
    await admin.execute("UPDATE stateroom.threads SET cold = NULL WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await history(store, scope, thread_id="t1")
    with pytest.raises(IntegrityFailure):
        await load(store, scope, checkpoint_id=ids[0])
    assert {"live-set", "pending-writes"} <= await found(store, scope)


async def test_segments_of_before_are_found_whole_as_they_are(store, scope, admin):
    """Stubs, list and sums, authentic, of before another segment: the seals that stayed know better."""
    ids = await segmented(store, scope)
    older = await rows(admin, scope, "t1", "archives")
    [thread] = await rows(admin, scope, "t1", "threads")
    await save(store, scope, content=state(b=9))
    await store.archives.segmenting.move(scope, "t1", OLD, actor="test")
    await admin.execute("DELETE FROM stateroom.archives WHERE tenant_id = $1 AND segment > 2", scope.tenant_id)
    await admin.execute("UPDATE stateroom.threads SET cold = $2 WHERE tenant_id = $1", scope.tenant_id, thread["cold"])
    assert await rows(admin, scope, "t1", "archives") == older
    with pytest.raises(IntegrityFailure):
        await history(store, scope, thread_id="t1")
    assert {"live-set"} <= await found(store, scope)
    assert ids


async def test_rows_put_back_beside_their_segment_are_found(store, scope, admin):
    saved = await save(store, scope, content=state(b=1))
    [row] = await rows(admin, scope, "t1", "checkpoints")
    await save(store, scope, content=state(b=2))
    await store.archives.segmenting.move(scope, "t1", OLD, actor="test")
    names = list(row)
    places = ", ".join(f"${at + 1}" for at in range(len(names)))
    await admin.execute(f"INSERT INTO stateroom.checkpoints ({', '.join(names)}) VALUES ({places})", *row.values())
    with pytest.raises(IntegrityFailure):
        await history(store, scope, thread_id="t1")
    assert "live-set" in await found(store, scope)
    with pytest.raises(IntegrityFailure):
        await store.archives.restore(scope, "t1")
    assert saved.created


@pytest.mark.parametrize("attack", ["truncated", "altered", "missing", "another's"])
async def test_a_damaged_object_of_a_segment_is_refused(store, scope, attack):
    ids = await segmented(store, scope)
    objects = store.archive._objects
    first, second = sorted(each for each in objects if each.startswith(tenant_prefix(scope.tenant_id, "archive")))
    whole = objects[first]
    if attack == "missing":
        del objects[first]
        del store.archive._states[first]
    else:
        middle = len(whole) // 2
        altered = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        objects[first] = {"truncated": whole[:-1], "altered": altered, "another's": objects[second]}[attack]
    await refused(store, scope, ids)


async def test_a_segment_of_another_thread_or_subject_opens_nothing(store, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    ids = await segmented(store, scope, "t1")
    await segmented(store, scope, "t2")
    await segmented(store, other, "t1")
    for subject_id, thread_id in ((scope.subject_id, "t2"), (other.subject_id, "t1")):
        moved = await admin.execute(
            "UPDATE stateroom.archives a SET blob_id = b.blob_id, sealed = b.sealed, listed = b.listed,"
            " first_id = b.first_id, last_id = b.last_id, created_at = b.created_at FROM stateroom.archives b"
            " WHERE a.tenant_id = $1 AND b.tenant_id = $1 AND a.segment = b.segment"
            " AND a.subject_id = $2 AND a.thread_id = 't1' AND b.subject_id = $3 AND b.thread_id = $4",
            scope.tenant_id, scope.subject_id, subject_id, thread_id,
        )  # fmt: skip
        assert moved == "UPDATE 2"
        await refused(store, scope, ids)


# --- the end ---------------------------------------------------------------------------------------------------------


async def finished(store, scope, job_id):
    """Run jobs until one has ended."""
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(TenantScope(scope.tenant_id), job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()
    return job


async def objects_of(store, scope):
    return await store.archive.list_keys(tenant_prefix(scope.tenant_id, "archive"))


async def test_objects_of_segments_go_with_their_thread_after_the_backup_window(store, scope):
    await segmented(store, scope)
    assert len(await objects_of(store, scope)) == 2
    await store.threads.delete(scope, "t1")
    await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert await objects_of(store, scope) == []
    assert (await fsck(store, scope)).faults == {}
    with pytest.raises(ThreadNotFound):
        await store.checkpoints.history(scope, HistoryQuery(thread_id="t1"))


async def test_a_backup_from_before_segments_came_back_reads_them(postgres, migrated_template, scope):
    root_key, blobs, archive = MemoryRootKey(), MemoryBlobStore(), MemoryBlobStore()
    names = [(await create_database(postgres, migrated_template)).name]

    def at(name):
        url = make_url(postgres.superuser_url(name)).set(username="gw_app", password=APP_PASSWORD)
        database = MigratedDatabase(postgres.superuser_url(name), "", url.render_as_string(False))
        return opened(database, root_key, blobs=blobs, archive=archive)

    try:
        async with at(names[0]) as store:
            await switch_on(store, SEGMENTS)
            await segmented(store, scope)
            before = await seen(store, scope)
        names.append((await create_database(postgres, names[0])).name)  # the backup

        async with at(names[0]) as store:
            assert await store.archives.restore(scope, "t1")
            await store.archives.segmenting.move(scope, "t1", OLD, actor="test")
            for _ in range(2):
                await Sweep(store.unit_of_work, store.buckets, 30, grace_seconds=0).tenant(scope.tenant_id, now=True)
            assert await seen(store, scope) == before

        async with at(names[1]) as store:
            assert await seen(store, scope) == before
            assert await found(store, scope) == set()
            assert await store.archives.restore(scope, "t1")
            assert await seen(store, scope) == before
    finally:
        for each in names:
            await drop_database(postgres, each)


async def test_what_the_rows_in_segments_name_is_kept(store, scope, admin):
    image = document("picture", 90_000)
    first = await save(store, scope, content=state(image=image))
    await save(store, scope, content=state(b=1))
    await store.archives.segmenting.move(scope, "t1", OLD, actor="test")
    await store.pruning.thin(scope, "t1", ThinningRule(keep_last=1))
    await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert contents(await load(store, scope, checkpoint_id=first.checkpoint_id)) == {"image": image}
    assert (await fsck(store, scope)).faults == {}


async def test_a_segment_keeps_the_key_versions_that_it_needs(store, scope, admin):
    ids = await segmented(store, scope)
    job_id = (await store.rotation.rotate_subject(scope, "tester")).job_id
    assert "archived" in (await finished(store, scope, job_id)).note
    assert contents(await load(store, scope, checkpoint_id=ids[0]))["b"] == 0
    assert await found(store, scope) == set()
    assert await store.archives.restore(scope, "t1")
    assert await found(store, scope) == set()


async def test_a_shred_reaches_segments_at_once(store, scope):
    ids = await segmented(store, scope)
    shredded = await store.shred.subject(scope, scope.subject_id, "tester")
    with pytest.raises((KeyDestroyed, ThreadNotFound)):
        await history(store, scope, thread_id="t1")
    await finished(store, scope, shredded.job_id)
    assert ids
    await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert await objects_of(store, scope) == []
