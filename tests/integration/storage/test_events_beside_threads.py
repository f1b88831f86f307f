"""What is done to state, and to whole deployments, as it shows in events: those that were told stay as they are."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from msgspec import json

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import SEGMENTS
from storage.events.keeping import EventKeeping
from storage.model import Save, TaskWrites
from storage.retention.planner import Policy
from storage.scope import ClientShare, Scope, TenantScope
from storage.threads.thinning import ThinningRule
from storage.verification.jobs import TenantReport
from tests.support.archive_rows import fsck, opened
from tests.support.events import all_events, events_on
from tests.support.features import switch_on
from tests.support.states import packed, save, state, write
from tests.support.transfers import deployment, exported_tenant, imported

ACTOR = "api-key:test"
SHARE = ClientShare(b"s" * 32)


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        yield made


@pytest.fixture
async def listened(store, scope):
    await events_on(store, scope.tenant_id)
    return scope


async def _worked(store, scope, job_id):
    tenant = TenantScope(scope.tenant_id)
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(tenant, job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    assert job.error is None
    return job


async def _pruned(store, scope):
    await store.threads.prune(scope, ["t1"], "keep_latest")


async def _runs_deleted(store, scope):
    await store.threads.delete_runs(scope, ["run-1"])


async def _thinned(store, scope):
    await store.pruning.thin(scope, "t1", ThinningRule(keep_last=1))


async def _segmented(store, scope):
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")


async def _rotated(store, scope):
    await _worked(store, scope, (await store.rotation.rotate_subject(scope, ACTOR)).job_id)


async def _swept(store, scope):
    await store.sweep.tenant(scope.tenant_id, now=True)
    assert (await fsck(store, scope)).faults == {}


async def _verified(store, scope):
    assert (await store.verification.subject(scope)).findings == []


async def _deleted(store, scope):
    await store.threads.delete(scope, "t1")


@pytest.mark.parametrize(
    "verb",
    [_pruned, _runs_deleted, _thinned, _segmented, _rotated, _swept, _verified, _deleted],
    ids=lambda verb: verb.__name__[1:],
)
async def test_a_verb_leaves_events_as_they_were_told(store, listened, verb):
    for number in range(4):
        await save(store, listened, run_id=f"run-{number % 2}")
    before = await all_events(store, TenantScope(listened.tenant_id))
    assert len(before) == 5
    await verb(store, listened)
    after = await all_events(store, TenantScope(listened.tenant_id))
    assert after[:5] == before
    assert [each.type for each in after[5:]] in ([], ["job.ended"], ["thread.deleted"])


async def test_nothing_but_ids_and_status_is_in_an_event(store, listened, database):
    """What a client wrote is sealed; what it named is in an event as it is in a list of checkpoints."""
    secrets = (
        "value-of-a-secret",
        "channel-of-a-secret",
        "metadata-of-a-secret",
        "tag-of-a-secret",
        "write-of-a-secret",
    )
    saved = await save(
        store, listened, content=state(**{secrets[1]: secrets[0]}), metadata={secrets[2]: secrets[3]}, agent="a"
    )  # fmt: skip
    await store.checkpoints.put_writes(listened, _interrupt(saved.checkpoint_id, secrets[4]))
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    dump = []
    for _ in range(2):  # as they wait, and as they are read
        for table in ("event_queue", "events"):
            rows = await connection.fetch(f"SELECT t::text FROM stateroom.{table} t")  # noqa: S608
            dump += [row["t"] for row in rows]
        await all_events(store, listened)
    await connection.close()
    assert sum(saved.checkpoint_id in row for row in dump) >= 4
    for secret in secrets:
        for form in (secret, secret.encode().hex()):
            assert not any(form in row for row in dump)


def _interrupt(checkpoint_id, text):
    return TaskWrites("t1", "", checkpoint_id, "task", "", [write(-3, "__interrupt__", text)], "waiting")


async def test_events_grow_old_also_while_everything_is_held(store, listened):
    tenant = TenantScope(listened.tenant_id)
    await store.retention_policies.put(tenant, None, Policy(legal_hold=True))
    for _ in range(6):
        await save(store, listened)
    before = await all_events(store, tenant)
    keeping = EventKeeping(store.unit_of_work, store.event_relay, events_max=2)
    assert sum([each async for each in keeping.expire(listened.tenant_id)]) == 5
    assert await all_events(store, tenant) == before[5:]


async def test_a_thread_under_a_share_is_told_of_and_nobody_needs_the_share_to_read_that(store, listened):
    saved = await store.checkpoints.save(listened, Save(thread_id="t1", content=state(a=packed("b").data)), share=SHARE)
    created, event = await all_events(store, listened)
    assert (created.type, event.checkpoint_id) == ("thread.created", saved.checkpoint_id)


async def test_an_import_tells_of_its_threads_and_no_event_comes_along(store, listened, postgres, migrated_template):
    for thread in ("t1", "t2"):
        await save(store, listened, thread)
    async with deployment(postgres, migrated_template) as there:
        target = TenantScope(listened.tenant_id)
        await events_on(there, target.tenant_id)
        file = await exported_tenant(store, there, listened.tenant_id, target.tenant_id)
        await imported(there, target.tenant_id, file)
        events = await all_events(there, target)
    assert [(each.type, each.thread_id) for each in events if each.type != "job.ended"] == [
        ("thread.created", "t1"), ("thread.created", "t2"),
    ]  # fmt: skip


async def test_an_edit_of_the_settings_of_events_is_found_by_verification(store, listened, database):
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "UPDATE stateroom.event_settings SET since = since + $2 WHERE tenant_id = $1",
        listened.tenant_id, timedelta(days=1),
    )  # fmt: skip
    await connection.close()
    tenant = TenantScope(listened.tenant_id)
    job = await _worked(store, listened, await store.verifying.begin_tenant(tenant, ACTOR))
    report = json.decode(job.note, type=TenantReport)
    assert sum(report.found.values()) == 1


async def test_a_thread_that_a_piece_or_an_early_write_made_is_told_of_once(store, listened):
    await store.pieces.put(listened, "by-piece", packed("x" * 100).data)
    await store.pieces.put(listened, "by-piece", packed("y" * 100).data)
    await store.checkpoints.put_writes(listened, _interrupt("early", "x"))
    await save(store, listened, "by-piece")
    await save(store, listened, "t1")
    events = await all_events(store, listened)
    assert sorted((each.type, each.thread_id) for each in events if each.type != "checkpoint.saved") == [
        ("thread.created", "by-piece"), ("thread.created", "t1"), ("thread.status", "t1"),
    ]  # fmt: skip
    assert {each.subject_id for each in events} == {Scope(listened.tenant_id, "user-1").subject_id}
