"""A tenant, and all tenants, verified by jobs: resumable, with progress, and with what was found kept."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from uuid import UUID, uuid4

import pytest
from msgspec import json
from sqlalchemy.engine import make_url

from crypto import MemoryRootKey
from gateway.telemetry import Metrics
from storage.access.head_anchors import HeadAnchors
from storage.administration.jobs import CANCELLED
from storage.blobs.keyspace import AnchorLocation
from storage.blobs.memory import MemoryBlobStore
from storage.clock import SystemClock
from storage.collection.accepted_losses import AcceptedLosses
from storage.format.audit import OPERATOR_CHAIN
from storage.model import ApiKeyRecord, Save, Tenant
from storage.postgres.tables import SUBJECT_TABLES
from storage.scope import ClientShare, OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from storage.verification import jobs as verifying
from tests.support.engines import fresh_database
from tests.support.states import document, save, state
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID

ACTOR = "api-key:test"


@pytest.fixture
def blobs():
    return MemoryBlobStore()


@pytest.fixture
async def opened(database, root_key, blobs):
    stores = []

    async def one():
        stores.append(
            await Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=4,
                durable=False,
                options=StoreOptions(blobs=blobs),
            )
        )
        return stores[-1]

    yield one
    for each in stores:
        await each.close()


@pytest.fixture
async def gateway(opened):
    return await opened()


@pytest.fixture
async def users(gateway, scope):
    """Three subjects with two threads each, anchored."""
    made = [Scope(scope.tenant_id, f"user-{number}") for number in range(3)]
    for user in made:
        for thread in ("t1", "t2"):
            await save(gateway, user, thread, content=state(a=document(thread)))
    await gateway.head_anchors.flush()
    return made


async def ended(store, scope, job_id):
    """Work until the job has ended."""
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(scope, job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    return job


async def verified(store, tenant_id):
    scope = TenantScope(tenant_id)
    job = await ended(store, scope, await store.verifying.begin_tenant(scope, ACTOR))
    assert (job.state, job.error) == ("done", None)
    return job, json.decode(job.note, type=verifying.TenantReport)


async def erase(admin, scope, *tables):
    for table in tables or [each.name for each in SUBJECT_TABLES]:
        await admin.execute(
            f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2", scope.tenant_id, scope.subject_id
        )


async def test_a_whole_tenant_is_verified_and_counted(gateway, users):
    job, report = await verified(gateway, users[0].tenant_id)
    assert (job.done, job.total) == (3, 3)
    assert (report.threads, report.checkpoints, report.threads_skipped) == (6, 6, 0)
    assert (report.found, report.findings) == ({}, [])


async def test_a_tenant_with_nothing_is_whole(gateway, scope):
    job, report = await verified(gateway, scope.tenant_id)
    assert (job.done, report.threads, report.found) == (0, 0, {})


async def test_beginning_twice_is_one_job_and_is_audited(gateway, users):
    scope = TenantScope(users[0].tenant_id)
    first = await gateway.verifying.begin_tenant(scope, ACTOR)
    assert await gateway.verifying.begin_tenant(scope, ACTOR) == first
    events = (await gateway.audit.page(scope, ACTOR)).items
    assert [each.event.detail["job_id"] for each in events if each.event.action == "verify.begin"] == [str(first)]
    await ended(gateway, scope, first)
    assert await gateway.verifying.begin_tenant(scope, ACTOR) != first


async def test_damage_of_several_subjects_is_named_by_place(gateway, users, admin):
    for user in users[:2]:
        await admin.execute(
            "UPDATE stateroom.checkpoints SET step = step + 1 WHERE tenant_id = $1 AND subject_id = $2"
            " AND thread_id = 't2'",
            user.tenant_id,
            user.subject_id,
        )
    _, report = await verified(gateway, users[0].tenant_id)
    assert {(each.subject_id, each.thread_id) for each in report.findings} == {("user-0", "t2"), ("user-1", "t2")}
    assert report.found["checkpoint"] == 2
    assert report.threads == 6


async def test_findings_are_bounded_and_all_are_counted(gateway, scope, admin):
    for number in range(verifying.FINDINGS_MAX + 5):
        await save(gateway, scope, f"t{number}")
    await admin.execute("UPDATE stateroom.threads SET seal = '' WHERE tenant_id = $1", scope.tenant_id)
    _, report = await verified(gateway, scope.tenant_id)
    assert len(report.findings) == verifying.FINDINGS_MAX
    assert sum(report.found.values()) >= verifying.FINDINGS_MAX + 5


async def test_threads_under_a_client_held_share_are_reported_as_skipped(gateway, users):
    share = ClientShare(bytes(range(32)))
    await gateway.checkpoints.save(users[0], Save(thread_id="private", content=state(a="secret")), share)
    await gateway.head_anchors.flush()
    _, report = await verified(gateway, users[0].tenant_id)
    assert (report.threads, report.threads_skipped, report.found) == (6, 1, {})


async def test_a_job_goes_on_where_another_process_left_it(gateway, opened, users):
    scope = TenantScope(users[0].tenant_id)
    job_id = await gateway.verifying.begin_tenant(scope, ACTOR)
    lease = await gateway.jobs.claim(scope.tenant_id, job_id)
    at = verifying._TenantPosition(subject_id="user-0", thread_id="t1", threads=1, checkpoints=1)
    async with gateway.unit_of_work.begin(scope) as transaction:
        await lease.advance(transaction, json.encode(at).decode(), 0, 3)
    await gateway.jobs.release(lease, 0.0)
    other = await opened()
    job = await ended(other, scope, job_id)
    report = json.decode(job.note, type=verifying.TenantReport)
    assert (job.done, report.threads, report.checkpoints, report.found) == (3, 6, 6, {})


class PausedBlobStore(MemoryBlobStore):
    """An object store whose answer to a listing waits until it is told to come."""

    def __init__(self):
        super().__init__()
        self.answers = asyncio.Event()

    async def list_keys(self, *arguments, **named):
        await self.answers.wait()
        return await super().list_keys(*arguments, **named)


async def test_a_job_is_kept_while_one_stretch_takes_longer_than_a_lease(gateway, users):
    scope = TenantScope(users[0].tenant_id)
    slow = PausedBlobStore()
    losses = AcceptedLosses(gateway.unit_of_work, gateway.control, HeadAnchors(slow), SystemClock())
    patient = verifying.Verifying(
        gateway.checkpoints._access,
        gateway.jobs,
        gateway.audit,
        gateway.verification,
        verifying.Witnesses(gateway.keys, losses, gateway.shred.tombstones, gateway.anchors),
        verifying.SteeringRows(gateway.control, [gateway.jobs.rows]),
        renew_seconds=0.001,
    )
    job_id = await patient.begin_tenant(scope, ACTOR)
    lease = await gateway.jobs.claim(scope.tenant_id, job_id)
    first = lease.tokens[-1]
    working = asyncio.create_task(patient.perform_tenant(lease))
    async with asyncio.timeout(20):
        while lease.tokens[-1] == first:  # noqa: ASYNC110 - the database's clock, nothing of ours
            await asyncio.sleep(0)
    slow.answers.set()
    assert (await working).ended
    await gateway.jobs.end(lease)


# --- subjects that are gone ----------------------------------------------------------------------------------------


async def test_a_subject_that_is_gone_with_its_keys_is_missed(gateway, users, admin):
    await erase(admin, users[1])
    gateway.keys.evict(users[1])
    _, report = await verified(gateway, users[0].tenant_id)
    assert report.found == {"subject-missing": 1}
    assert report.findings[0].subject_id is None
    # Whoever saves under its name again is somebody else, also for a process that remembers who was there.
    gateway.checkpoints._access.remembered_heads.forget(users[1])
    await save(gateway, users[1])
    assert (await verified(gateway, users[0].tenant_id))[1].found == {"subject-missing": 1}


async def test_the_last_subject_of_a_tenant_is_missed_too(gateway, users, admin):
    for user in users:
        await erase(admin, user)
    _, report = await verified(gateway, users[0].tenant_id)
    assert report.findings[0].detail.startswith("3 or more subjects")


async def test_a_subject_whose_keys_somebody_marked_as_destroyed_is_missed(gateway, users, admin):
    await admin.execute(
        "UPDATE stateroom.subject_keys SET state = 'destroyed', wrapped = NULL WHERE tenant_id = $1"
        " AND subject_id = 'user-1'",
        users[0].tenant_id,
    )
    _, report = await verified(gateway, users[0].tenant_id)
    assert report.found == {"keys": 1, "subject-missing": 1}
    assert [each.subject_id for each in report.findings if each.code == "keys"] == ["user-1"]


async def test_a_shredded_subject_is_not_missed_and_explains_no_other(gateway, users, admin):
    await gateway.shred.subject(users[0], "user-0", ACTOR)
    assert (await verified(gateway, users[0].tenant_id))[1].found == {}
    await erase(admin, users[1])
    assert (await verified(gateway, users[0].tenant_id))[1].found == {"subject-missing": 1}


async def test_a_tombstone_of_an_older_release_explains_one_subject(gateway, users, admin):
    """Made without a tag, as where the keys did not open any more."""
    await admin.execute(
        "UPDATE stateroom.subject_keys SET wrapped = '\\x00' WHERE tenant_id = $1 AND subject_id = 'user-0'",
        users[0].tenant_id,
    )
    gateway.keys.evict(users[0])
    await gateway.shred.subject(users[0], "user-0", ACTOR)
    explained = await gateway.shred.tombstones.explained(users[0].tenant_id)
    assert (explained.tags, explained.untagged) == (frozenset(), 1)
    assert (await verified(gateway, users[0].tenant_id))[1].found == {}
    await erase(admin, users[1])
    assert (await verified(gateway, users[0].tenant_id))[1].found == {"subject-missing": 1}


async def test_a_shredded_tenant_misses_nobody(gateway, users, admin):
    tenant_id = users[0].tenant_id
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'acme', now())", tenant_id)
    await gateway.shred.tenant(tenant_id, str(tenant_id), ACTOR)
    assert (await verified(gateway, tenant_id))[1].found == {}


async def test_keys_that_do_not_open_are_a_finding_and_hide_nobody_else(gateway, users, admin):
    await admin.execute(
        "UPDATE stateroom.subject_keys SET wrapped = '\\x00' WHERE tenant_id = $1 AND subject_id = 'user-0'",
        users[0].tenant_id,
    )
    gateway.keys.evict(users[0])
    _, report = await verified(gateway, users[0].tenant_id)
    assert [(each.code, each.subject_id) for each in report.findings] == [("keys", "user-0")]
    assert report.threads == 4


# --- what operators watch ------------------------------------------------------------------------------------------


async def test_open_and_ended_jobs_are_counted_by_kind_and_outcome(database, root_key, scope):
    metrics = Metrics()
    store = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(observer=metrics),
    )
    try:
        tenant = TenantScope(scope.tenant_id)
        job_id = await store.verifying.begin_tenant(tenant, ACTOR)
        metrics.jobs_open(await store.jobs.count_open())
        before = metrics.registry.get_sample_value("stateroom_jobs_open", {"kind": "verify-tenant"})
        await ended(store, tenant, job_id)
        metrics.jobs_open(await store.jobs.count_open())
    finally:
        await store.close()
    assert before >= 1
    ends = {"kind": "verify-tenant", "outcome": "done"}
    assert metrics.registry.get_sample_value("stateroom_jobs_ended_total", ends) == 1
    metrics.jobs_open({})
    assert metrics.registry.get_sample_value("stateroom_jobs_open", {"kind": "verify-tenant"}) == 0


# --- all tenants ---------------------------------------------------------------------------------------------------


async def test_tenants_jobs_end_with_the_cancelled_job_that_began_them_and_others_go_on(gateway, admin):
    # The first by id, which therefore are begun first.
    tenants = [TenantScope(UUID(int=number)) for number in (1, 2)]
    for each in tenants:
        await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, $2, now())", each.tenant_id, uuid4().hex)
    asked_for = await gateway.verifying.begin_tenant(tenants[0], ACTOR)
    job_id = await gateway.verifying.begin_deployment(ACTOR)
    lease = await gateway.jobs.claim(OPERATOR_CHAIN, job_id)
    await gateway.verifying.perform_deployment(lease)
    [begun] = [each.job_id for each in (await gateway.jobs.list(tenants[1])).items]
    await gateway.job_cancelling.cancel(OperatorScope(), job_id, ACTOR)
    assert (await ended(gateway, tenants[0], asked_for)).state == "done"
    child = await ended(gateway, tenants[1], begun)
    assert (child.state, child.error) == ("failed", CANCELLED)
    events = [each.event for each in (await gateway.audit.page(tenants[1], ACTOR, limit=100)).items]
    [cancelled] = [each for each in events if each.action == "job.cancel"]
    assert (cancelled.target, cancelled.detail["begun_by"]) == (f"job:{begun}", str(job_id))


async def test_the_operator_sees_codes_and_numbers_by_tenant_and_nobodys_name(gateway, users, admin):
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'acme', now())", users[0].tenant_id)
    healthy = Tenant(tenant_id=DEPLOYMENT_ID, name=uuid4().hex, created_at=gateway.audit._clock.now())
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'other', $2)", healthy.tenant_id, healthy.created_at)
    await admin.execute(
        "UPDATE stateroom.checkpoints SET step = step + 1 WHERE tenant_id = $1 AND thread_id = 't2'", users[0].tenant_id
    )
    job = await ended(gateway, OperatorScope(), await gateway.verifying.begin_deployment(ACTOR))
    assert job.done == job.total >= 2
    report = json.decode(job.note, type=verifying.DeploymentReport)
    own = [each for each in report.findings if each.tenant_id == users[0].tenant_id]
    assert ("checkpoint", 3) in {(each.code, each.count) for each in own}
    assert {each.tenant_id for each in report.findings} == {users[0].tenant_id}
    assert "user-" not in job.note
    assert "t2" not in job.note
    child = await gateway.jobs.get(TenantScope(users[0].tenant_id), own[0].job_id)
    assert "user-0" in child.note


@pytest.fixture
async def other_deployment(postgres, migrated_template, blobs):
    """A deployment of its own that shares the bucket."""
    async with fresh_database(postgres, template=migrated_template) as made:
        url = make_url(made.superuser_url).set(username="gw_app", password=APP_PASSWORD).render_as_string(False)
        store = await Store.open(
            url,
            root_key=MemoryRootKey(),
            deployment_id=uuid4(),
            connections_max=2,
            durable=False,
            options=StoreOptions(blobs=blobs),
        )
        yield store
        await store.close()


async def found_tenant(store, tenant):
    key = ApiKeyRecord(
        key_id=uuid4().hex[:12],
        kind="service",
        name="",
        tenant_id=tenant.tenant_id,
        subject_id=None,
        permissions=("tenant:admin",),
        mac=bytes(32),
        pepper_version=1,
        created_at=tenant.created_at,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
    )
    await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, key)


async def test_a_tenant_that_is_gone_altogether_is_named(gateway, admin, blobs, other_deployment):
    """As after a restore from before it was founded, or when somebody took every row of it."""
    now = gateway.audit._clock.now()
    founded = [Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now) for _ in range(3)]
    for tenant in founded[:2]:
        await found_tenant(gateway, tenant)
        await gateway.anchors.anchor(TenantScope(tenant.tenant_id))
    await found_tenant(other_deployment, founded[2])
    await other_deployment.anchors.anchor(TenantScope(founded[2].tenant_id))
    assert await gateway.anchors.missing_tenants() == []
    for table in ("tenants", "api_keys", "audit_log", "audit_heads", "tenant_keys", "jobs"):
        await admin.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1", founded[0].tenant_id)
    assert await gateway.anchors.missing_tenants() == [founded[0].tenant_id]
    job = await ended(gateway, OperatorScope(), await gateway.verifying.begin_deployment(ACTOR))
    report = json.decode(job.note, type=verifying.DeploymentReport)
    missed = [each for each in report.findings if each.code == "tenant-missing"]
    assert [(each.tenant_id, each.count) for each in missed] == [(founded[0].tenant_id, 1)]
    assert report.found["tenant-missing"] == 1
    # What nobody signed proves nothing.
    kept = await gateway.anchors.anchor(TenantScope(founded[1].tenant_id))
    await blobs.put_if_absent(AnchorLocation(uuid4(), 1), kept.note.encode())
    await blobs.put_if_absent(AnchorLocation(uuid4(), 1), b"nonsense")
    assert await gateway.anchors.missing_tenants() == [founded[0].tenant_id]
