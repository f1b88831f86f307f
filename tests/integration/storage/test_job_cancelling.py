"""A job is ended before its time, and whoever works on it notices."""

from uuid import uuid4

import pytest

from storage.administration.jobs import CANCELLED
from storage.administration.rounds import LeaseLostError
from storage.errors import JobCancelled, JobNotCancellable, JobNotFound
from storage.scope import OperatorScope, Scope, TenantScope
from storage.transfer.exporting import EXPORT_KIND, Progress
from tests.support.states import save, state

ACTOR = "api-key:test"


@pytest.fixture
def tenant(scope):
    return TenantScope(scope.tenant_id)


async def cancellations(store, tenant):
    events = [each.event for each in (await store.audit.page(tenant, ACTOR, limit=1000)).items]
    return [event.target for event in events if event.action == "job.cancel"]


async def begun(store, scope):
    await save(store, scope, content=state(n=1))
    return await store.verifying.begin_tenant(TenantScope(scope.tenant_id), ACTOR)


async def test_a_cancelled_job_has_failed_and_is_not_done(store, scope, tenant):
    job_id = await begun(store, scope)
    for _ in range(2):  # the second time changes nothing
        cancelled = await store.job_cancelling.cancel(tenant, job_id, ACTOR)
        assert (cancelled.state, cancelled.error, cancelled.damaged) == ("failed", CANCELLED, False)
    await store.runner.run_due()
    assert await store.jobs.get(tenant, job_id) == cancelled
    assert await cancellations(store, tenant) == [f"job:{job_id}"]


async def test_a_job_that_has_ended_stays_as_it_ended(store, scope, tenant):
    job_id = await begun(store, scope)
    while (ended := await store.jobs.get(tenant, job_id)).state in {"queued", "running"}:
        await store.runner.run_due()
    assert await store.job_cancelling.cancel(tenant, job_id, ACTOR) == ended
    assert await cancellations(store, tenant) == []


async def test_who_works_on_a_cancelled_job_can_neither_move_it_nor_end_it(store, scope, tenant):
    job_id = await begun(store, scope)
    lease = await store.jobs.claim(tenant.tenant_id, job_id)
    cancelled = await store.job_cancelling.cancel(tenant, job_id, ACTOR)
    with pytest.raises(LeaseLostError):
        async with store.unit_of_work.begin(tenant) as transaction:
            await lease.advance(transaction, lease.position, 1)
    assert not await store.jobs.end(lease, note="done after all")
    await store.jobs.release(lease, 0.0)
    assert await store.jobs.claim(tenant.tenant_id, job_id) is None
    assert await store.jobs.get(tenant, job_id) == cancelled


async def test_what_must_end_is_not_cancelled(store, scope, tenant):
    await save(store, scope, content=state(n=1))
    resealing = await store.rotation.rotate_subject(scope, ACTOR)
    rewrapping = await store.rotation.rotate_tenant(tenant, ACTOR)
    shredding = await store.shred.subject(scope, scope.subject_id, ACTOR)
    for job_id in (resealing.job_id, rewrapping.job_id, shredding.job_id):
        before = await store.jobs.get(tenant, job_id)
        with pytest.raises(JobNotCancellable, match=before.kind):
            await store.job_cancelling.cancel(tenant, job_id, ACTOR)
        assert await store.jobs.get(tenant, job_id) == before


async def test_a_subject_cancels_jobs_on_its_own_threads_only(store, scope, tenant):
    await save(store, scope, content=state(n=1))
    of_thread = await store.archives.begin_restore(scope, "t1", ACTOR)
    of_tenant = await store.verifying.begin_tenant(tenant, ACTOR)
    other = Scope(scope.tenant_id, "somebody-else")
    strangers = (other, Scope(uuid4(), scope.subject_id), TenantScope(uuid4()), OperatorScope())
    for who, job_id in ((scope, of_tenant), *((who, of_thread) for who in strangers)):
        with pytest.raises(JobNotFound):
            await store.job_cancelling.cancel(who, job_id, ACTOR)
    assert (await store.job_cancelling.cancel(scope, of_thread, ACTOR)).error == CANCELLED


async def test_a_transfer_whose_job_is_cancelled_breaks_off(store, scope, tenant):
    await save(store, scope, content=state(n=1))
    await store.jobs.ready()
    async with store.unit_of_work.begin(tenant) as transaction:
        lease = await store.jobs.add_claimed(transaction, tenant.tenant_id, EXPORT_KIND, "tenant")
    progress = Progress(store.unit_of_work, store.jobs, lease)
    await progress.moved(1, now=True)
    cancelled = await store.job_cancelling.cancel(tenant, progress.job_id, ACTOR)
    for now in (True, False):
        with pytest.raises(JobCancelled):
            await progress.moved(1, now=now)
    await progress.end(note="all of it")
    assert await store.jobs.get(tenant, progress.job_id) == cancelled
