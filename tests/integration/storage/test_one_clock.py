"""What decides a removal goes by the database's clock, whatever those of gateways and workers say."""

from datetime import UTC, datetime, timedelta

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock, SystemClock
from storage.control.clock_check import OFFSET_SECONDS_MAX
from storage.errors import ClockOff
from storage.retention.planner import Policy
from storage.retention.rounds import Acts, Retaining
from storage.scope import TenantScope
from tests.support.archive_rows import opened
from tests.support.passing_time import PassingTime
from tests.support.states import load, put, save, state, write

HOUR = 3600
TTL = 1800


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        yield made


@pytest.fixture
async def elsewhere(database, root_key, request):
    """A gateway whose clock is an hour off."""
    clock = ManualClock(datetime.now(UTC) + timedelta(hours=request.param))
    async with opened(database, root_key, archive=MemoryBlobStore(), clock=clock) as made:
        yield made


EITHER_WAY = pytest.mark.parametrize("elsewhere", [-1, 1], indirect=True, ids=["behind", "ahead"])
BEHIND = pytest.mark.parametrize("elsewhere", [-1], indirect=True, ids=["behind"])


async def perform(store, scope, clock=None):
    acts = Acts(
        store.threads,
        store.pruning,
        store.archives,
        store.items.expiring,
        store.event_keeping,
        store.approvals_expiring,
    )
    rounds = Retaining(store.unit_of_work, store.audit, clock or SystemClock(), acts, store.control)
    return await rounds.tenant(scope.tenant_id, now=True)


@BEHIND
@pytest.mark.parametrize(
    "policy",
    [Policy(idle_ttl_seconds=TTL, on_expiry="delete"), Policy(absolute_ttl_seconds=TTL, on_expiry="delete"),
     Policy(done_ttl_seconds=TTL, on_expiry="delete")],
)  # fmt: skip
async def test_what_a_gateway_with_a_slow_clock_saved_is_not_removed(store, elsewhere, scope, policy):
    await store.retention_policies.put(TenantScope(scope.tenant_id), None, policy)
    await save(elsewhere, scope, "t1", status="done")
    assert (await perform(store, scope)).deleted == 0
    assert (await load(store, scope, "t1")).status == "done"


@EITHER_WAY
async def test_a_slow_or_fast_gateway_does_not_move_a_thread_in_time(store, elsewhere, scope):
    await store.retention_policies.put(
        TenantScope(scope.tenant_id), None, Policy(idle_ttl_seconds=TTL, on_expiry="delete")
    )
    await save(store, scope, "t1", content=state(note=1))
    first = (await store.threads.get(scope, "t1")).updated_at
    await save(elsewhere, scope, "t1", content=state(note=2))
    second = (await store.threads.get(scope, "t1")).updated_at
    assert timedelta() < second - first < timedelta(seconds=TTL)
    assert (await perform(store, scope)).deleted == 0
    assert (await load(store, scope, "t1")).checkpoint_id


@BEHIND
async def test_pending_writes_and_archives_are_as_old_as_the_database_says(store, elsewhere, scope):
    policy = Policy(pending_writes_seconds=TTL, archive_ttl_seconds=TTL)
    await store.retention_policies.put(TenantScope(scope.tenant_id), None, policy)
    first = await save(elsewhere, scope, "t1", content=state(note=1))
    await put(elsewhere, scope, first.checkpoint_id, write(0, "note", "w"))
    await save(elsewhere, scope, "t1", content=state(note=2))
    await save(elsewhere, scope, "t2")
    await elsewhere.archives.archive(scope, "t2")
    done = await perform(store, scope)
    assert (done.pending_writes, done.expired, done.failed) == (0, 0, 0)


async def test_a_thread_never_goes_back_in_time(store, scope, admin):
    await save(store, scope, "t1", content=state(note=1))
    await PassingTime(admin, scope.tenant_id).go_on(-HOUR)  # as if the database's clock had been put back
    before = (await store.threads.get(scope, "t1")).updated_at
    await save(store, scope, "t1", content=state(note=2))
    assert (await store.threads.get(scope, "t1")).updated_at == before


@EITHER_WAY
async def test_a_process_whose_clock_is_off_removes_nothing(store, elsewhere, scope, admin):
    await store.retention_policies.put(
        TenantScope(scope.tenant_id), None, Policy(idle_ttl_seconds=TTL, on_expiry="delete")
    )
    await save(store, scope, "t1")
    await PassingTime(admin, scope.tenant_id).go_on(2 * HOUR)
    for removal in (
        elsewhere.retaining.tenant(scope.tenant_id, now=True),
        elsewhere.sweep.tenant(scope.tenant_id, now=True),
        elsewhere.fsck.run(scope.tenant_id, repair=True),
    ):
        with pytest.raises(ClockOff, match="nothing is removed"):
            await removal
    found = (await elsewhere.health()).clock
    assert not found.agrees
    assert abs(found.seconds) == pytest.approx(HOUR, abs=60)
    assert (await load(store, scope, "t1")).checkpoint_id
    assert (await store.health()).clock.agrees
    assert (await perform(store, scope)).deleted == 1


async def test_a_clock_within_the_bound_is_good_enough(store, scope):
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=OFFSET_SECONDS_MAX / 2))
    await store.retention_policies.put(TenantScope(scope.tenant_id), None, Policy(idle_ttl_seconds=TTL))
    assert (await perform(store, scope, clock)).tenants == 1


AS_OF_BEFORE = """
INSERT INTO stateroom.threads
    (tenant_id, subject_id, thread_id, status, tier, strict, activity, created_at, updated_at, seal, origin)
VALUES ($1, $2, $3, 'active', 'hot', false, 1, $4, $4, '', $5) RETURNING updated_at
"""


async def test_an_import_by_a_build_of_before_keeps_the_time_of_its_file(scope, admin):
    """Such a build compares what it reads back; nobody else stores a thread as it likes, and nobody one of tomorrow."""
    now = await admin.fetchval("SELECT clock_timestamp()")
    place = (scope.tenant_id, scope.subject_id)
    past, future = now - timedelta(days=9), now + timedelta(days=9)
    assert await admin.fetchval(AS_OF_BEFORE, *place, "t1", past, bytes(32)) == past
    assert now <= await admin.fetchval(AS_OF_BEFORE, *place, "t2", future, bytes(32)) < future
    assert now <= await admin.fetchval(AS_OF_BEFORE, *place, "t3", past, None) < future


async def test_a_thread_that_a_build_of_before_imported_is_idle_since_then(store, scope, admin):
    await store.retention_policies.put(
        TenantScope(scope.tenant_id), None, Policy(idle_ttl_seconds=TTL, on_expiry="delete")
    )
    await save(store, scope, "t1")
    async with admin.transaction():
        await admin.execute("SET LOCAL session_replication_role = replica")
        await admin.execute(
            "UPDATE stateroom.threads SET updated_at = updated_at - interval '9 days' WHERE tenant_id = $1",
            scope.tenant_id,
        )
    assert (await perform(store, scope)).deleted == 0
    await PassingTime(admin, scope.tenant_id).go_on(2 * HOUR)
    assert (await perform(store, scope)).deleted == 1
