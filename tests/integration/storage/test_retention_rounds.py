"""Retention: policies, legal holds and rounds on real rows, while time passes."""

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY
from uuid import uuid4

import pytest

from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control.features import COLD_NAMESPACES, DECISIONS, LINKS, SEGMENTS
from storage.control.rows import policy_row
from storage.errors import (
    FeatureOff,
    InvalidState,
    LegalHold,
    RetentionPoliciesExceeded,
    TenantNotFound,
    ThreadNotFound,
)
from storage.model import TaskWrites, Tenant, ThreadLink
from storage.postgres.statement import Statement
from storage.retention.planner import Ceilings, Effective, Plan, Policy, Thinning
from storage.retention.rounds import AGAIN_SECONDS, Acts, Retaining, RoundLimits
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope
from storage.statements.rules import retention as retention_sql
from storage.threads.holds import refuse_held
from storage.threads.thinning import ThinningRule
from storage.threads.verbs import Threads
from tests.support.archive_rows import fill, fsck, moved, opened
from tests.support.features import switch_on
from tests.support.ledgers import claim, effect_over, finish, start
from tests.support.ledgers import rows as ledger_rows
from tests.support.passing_time import PassingTime
from tests.support.states import history, load, save, state, write

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = 3600, 86_400
WAIT_SECONDS = 10
FOUND = Statement("INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, :created_at)")


@pytest.fixture
def clock(admin, scope):
    return PassingTime(admin, scope.tenant_id)


@pytest.fixture
async def store(database, root_key, clock):
    async with opened(database, root_key, archive=MemoryBlobStore(), clock=clock) as made:
        yield made


@pytest.fixture
def tenant(scope):
    return TenantScope(scope.tenant_id)


def rounds(store, clock, *, threads=None, pruning=None, archives=None, **limits):
    acts = Acts(
        threads or store.threads,
        pruning or store.pruning,
        archives or store.archives,
        store.items.expiring,
        store.event_keeping,
        store.approvals_expiring,
    )
    limits = RoundLimits(**{"acts_per_second": 10_000, **limits})
    return Retaining(store.unit_of_work, store.audit, clock, acts, store.control, limits)


async def perform(store, clock, tenant):
    """A whole round; returns what it did, without zeros."""
    done = await rounds(store, clock).tenant(tenant.tenant_id, now=True)
    return {name: number for name in done.__slots__ if (number := getattr(done, name)) and name != "tenants"}


async def tiers(store, scope):
    return {each.thread_id: each.tier for each in (await store.threads.list(scope)).items}


async def said(store, tenant):
    """The audit log without accesses: (action, target)."""
    page = await store.audit.page(tenant, "tester", limit=1000)
    return [(each.event.action, each.event.target) for each in page.items if each.event.action != "audit.read"]


# --- policies --------------------------------------------------------------------------------------------------------


async def test_the_most_specific_level_wins_and_ceilings_cap_it(store, scope, tenant):
    await save(store, scope, "t1", agent="travel")
    await save(store, scope, "t2", agent="other")
    policies = store.retention_policies
    await policies.put(tenant, None, Policy(idle_ttl_seconds=100, done_ttl_seconds=50))
    await policies.put(tenant, "travel", Policy(idle_ttl_seconds=200, on_expiry="delete"))
    found = await policies.put_thread(scope, "t1", Policy(idle_ttl_seconds=300))
    assert found.effective == Effective(idle_ttl_seconds=300, done_ttl_seconds=50, on_expiry="delete")
    assert found.own.policy == Policy(idle_ttl_seconds=300)
    assert (await policies.get_thread(scope, "t2")).effective == Effective(idle_ttl_seconds=100, done_ttl_seconds=50)
    written_at = (await store.threads.get(scope, "t1")).updated_at
    assert found.next == Plan("delete", "idle_ttl", written_at + timedelta(seconds=300))

    await policies.put(tenant, "travel", Policy())
    await policies.put_thread(scope, "t1", Policy())
    assert (await policies.get_thread(scope, "t1")).effective == Effective(idle_ttl_seconds=100, done_ttl_seconds=50)
    with pytest.raises(ThreadNotFound):
        await policies.get_thread(scope, "t3")
    with pytest.raises(ThreadNotFound):
        await policies.put_thread(scope, "t3", Policy(idle_ttl_seconds=1))
    with pytest.raises(InvalidState):
        await policies.put(tenant, None, Policy(idle_ttl_seconds=0))


async def test_retention_removes_a_parent_and_leaves_its_children(store, scope, tenant, clock):
    await switch_on(store, LINKS)
    await save(store, scope, "parent")
    await clock.go_on(DAY)
    await save(store, scope, "child")
    await store.links.link(scope, "child", ThreadLink("parent"))
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY, on_expiry="delete"))
    assert (await perform(store, clock, tenant))["deleted"] == 1
    (child,) = (await store.links.children(scope, "parent")).items
    assert (child.thread_id, child.parent_absent) == ("child", True)


async def test_an_operator_caps_a_tenant(store, scope, tenant, clock):
    made = Tenant(tenant_id=tenant.tenant_id, name=uuid4().hex, created_at=clock.now())
    async with store.unit_of_work.begin(OperatorScope(founding=tenant.tenant_id)) as transaction:
        await transaction.run(FOUND, tenant_id=made.tenant_id, name=made.name, created_at=made.created_at)
    await save(store, scope, "t1")
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=1000 * DAY))
    capped = await store.retention_policies.set_ceilings(tenant.tenant_id, Ceilings(idle_ttl_seconds=DAY), "operator")
    assert capped.ceilings == (await store.retention_policies.ceilings(tenant.tenant_id)).ceilings
    assert (await store.retention_policies.get_thread(scope, "t1")).effective.idle_ttl_seconds == DAY
    await clock.go_on(DAY)
    assert (await perform(store, clock, tenant))["archived"] == 1
    assert ("retention.ceilings", f"tenant:{tenant.tenant_id}") in await said(store, tenant)
    with pytest.raises(TenantNotFound):
        await store.retention_policies.set_ceilings(uuid4(), Ceilings(idle_ttl_seconds=DAY), "operator")


async def test_every_change_is_in_the_audit_log_and_no_change_is_not(store, scope, tenant):
    await save(store, scope, "t1")
    for _ in range(2):
        await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=100), "somebody")
        await store.retention_policies.put(tenant, "travel", Policy(legal_hold=True), "somebody")
        await store.retention_policies.put_thread(scope, "t1", Policy(checkpoints_max=3), "somebody")
    # What does not mention the hold leaves it.
    await store.retention_policies.put(tenant, "travel", Policy(done_ttl_seconds=5), "somebody")
    await store.retention_policies.put(tenant, "travel", Policy(legal_hold=False), "somebody")
    assert [each for each in await said(store, tenant) if each[0].startswith(("retention", "legal"))] == [
        ("retention.set", f"tenant:{tenant.tenant_id}"),
        ("retention.set", "agent:travel"),
        ("legal-hold.set", "agent:travel"),
        ("retention.set", f"thread:{scope.subject_id}/t1"),
        ("retention.set", "agent:travel"),
        ("retention.set", "agent:travel"),
        ("legal-hold.lift", "agent:travel"),
    ]
    page = await store.audit.page(tenant, "tester", limit=1000)
    last = [each.event for each in page.items if each.event.action == "retention.set"][-1]
    assert last.actor == "somebody"
    assert last.detail == {"before": {"done_ttl_seconds": 5, "legal_hold": True}, "after": {}}


async def test_a_policy_goes_with_its_thread(store, scope, admin):
    await save(store, scope, "t1")
    await store.retention_policies.put_thread(scope, "t1", Policy(idle_ttl_seconds=100))
    await store.threads.delete(scope, "t1")
    count = "SELECT count(*) FROM stateroom.thread_retention WHERE tenant_id = $1"
    assert await admin.fetchval(count, scope.tenant_id) == 0
    await save(store, scope, "t1")
    assert (await store.retention_policies.get_thread(scope, "t1")).own.policy == Policy()


async def test_a_tenant_has_so_many_policies_for_agents(store, tenant, room_for):
    for number in range(room_for):
        await store.retention_policies.put(tenant, f"agent-{number}", Policy(idle_ttl_seconds=1))
    with pytest.raises(RetentionPoliciesExceeded):
        await store.retention_policies.put(tenant, "one-more", Policy(idle_ttl_seconds=1))
    await store.retention_policies.put(tenant, "agent-0", Policy())
    await store.retention_policies.put(tenant, "one-more", Policy(idle_ttl_seconds=1))


async def test_what_was_taken_back_takes_no_room_once_a_round_has_seen_it(store, tenant, clock, admin):
    put = store.retention_policies.put
    for agent in ("gone", "damaged"):
        await put(tenant, agent, Policy(legal_hold=True))
    await put(tenant, "gone", Policy(legal_hold=False))
    await admin.execute(  # what a thief of evidence would write
        "UPDATE stateroom.retention SET policy = '{}', legal_hold = false WHERE tenant_id = $1 AND target = 'damaged'",
        tenant.tenant_id,
    )
    await put(tenant, "early", Policy(idle_ttl_seconds=1))
    assert await agents_with_rows(admin, tenant) == ["damaged", "early", "gone"]
    await a_later_round_is_through(store, clock, tenant, admin)
    await put(tenant, "late", Policy(idle_ttl_seconds=1))
    assert await agents_with_rows(admin, tenant) == ["damaged", "early", "late"]
    assert (await store.retention_policies.get(tenant)).damaged == {("agent", "damaged")}


async def test_policies_that_are_taken_back_again_and_again_wait_for_a_round(store, tenant, clock, admin):
    await fill_policies(store, clock, tenant, admin, 1_999, b"{}")
    await store.retention_policies.put(tenant, "first", Policy(idle_ttl_seconds=1))
    with pytest.raises(RetentionPoliciesExceeded):
        await store.retention_policies.put(tenant, "one-more", Policy(idle_ttl_seconds=1))
    await a_later_round_is_through(store, clock, tenant, admin)
    await store.retention_policies.put(tenant, "one-more", Policy(idle_ttl_seconds=1))
    assert await agents_with_rows(admin, tenant) == ["first", "one-more"]


@pytest.fixture
async def room_for(admin, store, clock, tenant):
    """All but three of the policies a tenant may have, as a gateway writes them."""
    await fill_policies(store, clock, tenant, admin, 997, b'{"idle_ttl_seconds":1}')
    return 3


async def fill_policies(store, clock, tenant, admin, count, said):
    await store.control.ready()
    now, rows = clock.now(), []
    for number in range(count):
        columns = (f"filler-{number}", said, False, now)
        proof = store.control.proof(policy_row(tenant.tenant_id, "agent", columns[:1], *columns[1:]))
        rows.append((tenant.tenant_id, "agent", *columns, *proof))
    await admin.executemany(retention_sql.PUT.text, rows)


async def a_later_round_is_through(store, clock, tenant, admin):
    """One that began now and not, as rounds allow for, a while before: nobody waits for that here."""
    await perform(store, clock, tenant)
    seen = "UPDATE stateroom.retention_rounds SET thinned_until = clock_timestamp() WHERE tenant_id = $1"
    await admin.execute(seen, tenant.tenant_id)


async def agents_with_rows(admin, tenant):
    rows = "SELECT target FROM stateroom.retention WHERE tenant_id = $1 AND level = 'agent' ORDER BY target"
    return [row["target"] for row in await admin.fetch(rows, tenant.tenant_id)]


# --- rounds ----------------------------------------------------------------------------------------------------------


async def test_threads_are_archived_deleted_and_expired_when_their_time_is_over(store, scope, tenant, clock, admin):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=10 * DAY, archive_ttl_seconds=30 * DAY))
    await store.retention_policies.put(tenant, "scratch", Policy(idle_ttl_seconds=5 * DAY, on_expiry="delete"))
    await fill(store, scope, "t1")
    await save(store, scope, "t2", agent="scratch")
    await save(store, scope, "t3", status="done")
    await store.retention_policies.put_thread(scope, "t3", Policy(done_ttl_seconds=DAY))
    assert await perform(store, clock, tenant) == {"threads": 3}

    await clock.go_on(DAY)
    assert (await perform(store, clock, tenant))["archived"] == 1
    assert await tiers(store, scope) == {"t1": "hot", "t2": "hot", "t3": "archive"}
    await clock.go_on(4 * DAY)
    assert await perform(store, clock, tenant) == {"threads": 3, "deleted": 1}
    assert await tiers(store, scope) == {"t1": "hot", "t3": "archive"}
    await save(store, scope, "t1", content=state(note="later"))
    await clock.go_on(9 * DAY)
    assert await perform(store, clock, tenant) == {"threads": 2}, "it is not idle since then"
    await clock.go_on(DAY)
    assert (await perform(store, clock, tenant))["archived"] == 1
    assert await tiers(store, scope) == {"t1": "archive", "t3": "archive"}
    assert (await load(store, scope, "t1")).status == "active"
    await clock.go_on(30 * DAY)
    assert (await perform(store, clock, tenant))["expired"] == 2
    assert await tiers(store, scope) == {}
    assert all(not rows for rows in (await moved(admin, scope)).values())
    assert (await fsck(store, scope)).faults == {}

    expired = [each for each in await said(store, tenant) if each[0] == "thread.expire"]
    assert sorted(expired) == [("thread.expire", target) for target in sorted(each[1] for each in expired)]
    assert len(expired) == 3
    assert ("retention.round", f"tenant:{tenant.tenant_id}") in await said(store, tenant)


async def test_a_thread_is_thinned_down_and_then_left_alone(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(checkpoints_max=8))
    for number in range(10):
        await save(store, scope, "t1", content=state(note=number), step=number)
    assert await perform(store, clock, tenant) == {"threads": 1}
    await save(store, scope, "t1", content=state(note=10), step=10)
    assert await perform(store, clock, tenant) == {"threads": 1, "thinned": 1, "checkpoints": 3}
    assert await perform(store, clock, tenant) == {"threads": 1}
    for number in range(11, 13):
        await save(store, scope, "t1", content=state(note=number), step=number)
    assert await perform(store, clock, tenant) == {"threads": 1}, "8 and a quarter"
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_thinning_does_not_keep_a_thread_from_being_idle(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(thinning=Thinning(every=5), idle_ttl_seconds=2 * DAY))
    for number in range(12):
        await save(store, scope, "t1", content=state(note=number), step=number)
    await clock.go_on(DAY)
    before = (await store.threads.get(scope, "t1")).updated_at
    assert (await perform(store, clock, tenant))["checkpoints"] == 8
    assert (await store.threads.get(scope, "t1")).updated_at == before
    assert await perform(store, clock, tenant) == {"threads": 1}, "again there is nothing to do"
    await clock.go_on(DAY)
    assert (await perform(store, clock, tenant))["archived"] == 1


async def test_what_did_not_change_is_not_opened_again_until_its_policy_changes(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(thinning=Thinning(keep_last=3)))
    for number in range(6):
        await save(store, scope, "t1", content=state(note=number), step=number)
    assert (await perform(store, clock, tenant))["checkpoints"] == 3
    await clock.go_on(DAY)
    assert await perform(store, clock, tenant) == {"threads": 1}
    await clock.go_on(HOUR)
    await store.retention_policies.put(tenant, None, Policy(thinning=Thinning(keep_last=1)))
    assert (await perform(store, clock, tenant))["checkpoints"] == 2


async def test_pending_writes_that_nobody_resumes_from_go(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(pending_writes_seconds=DAY))
    first = await save(store, scope, "t1", content=state(note=1))
    await store.checkpoints.put_writes(
        scope, TaskWrites("t1", "", first.checkpoint_id, "task", "", [write(0, "note", "w")], None)
    )
    assert await perform(store, clock, tenant) == {"threads": 1}
    await save(store, scope, "t1", content=state(note=2))
    await clock.go_on(DAY + 1)
    assert await perform(store, clock, tenant) == {"threads": 1, "thinned": 1, "pending_writes": 1}
    assert await perform(store, clock, tenant) == {"threads": 1}
    head = await load(store, scope, "t1")
    await store.checkpoints.put_writes(
        scope, TaskWrites("t1", "", head.checkpoint_id, "task", "", [write(0, "note", "w")], None)
    )
    await clock.go_on(DAY + 1)
    assert await perform(store, clock, tenant) == {"threads": 1}, "the head's are resumed from"


async def test_a_save_that_arrives_before_the_deletion_wins(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY, on_expiry="delete"))
    await save(store, scope, "t1")
    await clock.go_on(DAY)

    class Interrupted(Threads):
        async def delete(self, scope, thread_id, **how):
            await save(store, scope, thread_id, content=state(note="just in time"))
            return await super().delete(scope, thread_id, **how)

    late = rounds(store, clock, threads=Interrupted(store.threads._access))
    done = await late.tenant(tenant.tenant_id, now=True)
    assert (done.deleted, done.left, done.failed) == (0, 0, 0)
    assert (await load(store, scope, "t1")).checkpoint_id
    assert "thread.expire" not in {action for action, _ in await said(store, tenant)}


async def test_a_policy_that_was_changed_before_the_deletion_wins(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY, on_expiry="delete"))
    await save(store, scope, "t1")
    await clock.go_on(DAY)

    class Interrupted(Threads):
        async def delete(self, scope, thread_id, **how):
            await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=2 * DAY, on_expiry="delete"))
            return await super().delete(scope, thread_id, **how)

    late = rounds(store, clock, threads=Interrupted(store.threads._access))
    assert (await late.tenant(tenant.tenant_id, now=True)).deleted == 0
    assert await tiers(store, scope) == {"t1": "hot"}


class Late:
    """Something that is done before each act."""

    def __init__(self, inner, first):
        self._inner, self._first = inner, first

    def __getattr__(self, name):
        verb = getattr(self._inner, name)

        async def late(*place, **how):
            await self._first()
            return await verb(*place, **how)

        return late


async def test_a_save_that_arrives_before_the_archiving_wins(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    await save(store, scope, "t1")
    await clock.go_on(DAY)
    archives = Late(store.archives, lambda: save(store, scope, "t1", content=state(note="just in time")))
    done = await rounds(store, clock, archives=archives).tenant(tenant.tenant_id, now=True)
    assert (done.archived, done.left, done.failed) == (0, 1, 0)
    assert await tiers(store, scope) == {"t1": "hot"}


async def test_a_policy_that_was_changed_before_the_expiry_wins(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(archive_ttl_seconds=DAY))
    await save(store, scope, "t1")
    await store.archives.archive(scope, "t1")
    await clock.go_on(DAY)
    policies = store.retention_policies
    archives = Late(store.archives, lambda: policies.put(tenant, None, Policy(archive_ttl_seconds=2 * DAY)))
    done = await rounds(store, clock, archives=archives).tenant(tenant.tenant_id, now=True)
    assert (done.expired, done.left, done.failed) == (0, 0, 0)
    assert await tiers(store, scope) == {"t1": "archive"}
    await clock.go_on(DAY)
    assert (await perform(store, clock, tenant))["expired"] == 1


@pytest.mark.parametrize("policy", [Policy(thinning=Thinning(keep_last=1)), Policy(checkpoints_max=1)])
async def test_a_policy_that_was_changed_before_the_thinning_wins(store, scope, tenant, clock, admin, policy):
    await store.retention_policies.put(tenant, None, policy)
    for number in range(5):
        await save(store, scope, "t1", content=state(note=number), step=number)
    before = await moved(admin, scope)
    pruning = Late(store.pruning, lambda: store.retention_policies.put(tenant, None, Policy()))
    done = await rounds(store, clock, pruning=pruning).tenant(tenant.tenant_id, now=True)
    assert (done.thinned, done.left, done.failed) == (0, 0, 0)
    assert await moved(admin, scope) == before


class Gated:
    """Archives that wait at a gate."""

    def __init__(self, archives):
        self._archives = archives
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self.expire = archives.expire

    async def archive(self, *place, **how):
        self.reached.set()
        await self.opened.wait()
        return await self._archives.archive(*place, **how)


async def test_one_process_at_a_time_is_at_a_tenant(store, scope, tenant, clock):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    await save(store, scope, "t1")
    await clock.go_on(DAY)
    gate = Gated(store.archives)
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
        first = group.create_task(rounds(store, clock, archives=gate).tenant(tenant.tenant_id, now=True))
        await gate.reached.wait()
        assert await rounds(store, clock).tenant(tenant.tenant_id, now=True) is None
        gate.opened.set()
    assert first.result().archived == 1


async def test_who_lost_the_lease_changes_the_position_no_more(store, scope, tenant, clock, admin):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    await save(store, scope, "t1")
    await clock.go_on(DAY)
    gate = Gated(store.archives)
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
        first = group.create_task(rounds(store, clock, archives=gate).tenant(tenant.tenant_id, now=True))
        await gate.reached.wait()
        await admin.execute(
            "UPDATE stateroom.retention_rounds SET lease_until = '-infinity' WHERE tenant_id = $1", tenant.tenant_id
        )
        second = await rounds(store, clock).tenant(tenant.tenant_id, now=True)
        gate.opened.set()
    assert (second.tenants, second.archived) == (1, 1)
    assert (first.result().tenants, first.result().archived) == (0, 0)


async def test_a_round_goes_on_where_another_process_left_it(store, scope, tenant, clock, admin):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    for number in range(7):
        await save(store, Scope(scope.tenant_id, f"user-{number % 2}"), f"t{number}")
    await clock.go_on(DAY)
    seen = []
    while True:
        await admin.execute(
            "UPDATE stateroom.retention_rounds SET due_at = '-infinity' WHERE tenant_id = $1", tenant.tenant_id
        )
        one = await rounds(store, clock, page_rows=2, slice_seconds=-1).tenant(tenant.tenant_id)
        seen.append((one.threads, one.archived))
        if one.tenants:
            break
    assert seen == [(2, 2), (2, 2), (2, 2), (1, 1)]
    census = await admin.fetchval(
        "SELECT census::text FROM stateroom.retention_rounds WHERE tenant_id = $1", tenant.tenant_id
    )
    assert '"hot": 7' in census
    assert '"done_archive": 7' in census


async def test_a_tenant_whose_time_has_not_come_is_left_alone(store, scope, tenant, clock, admin):
    await save(store, scope, "t1")
    assert await rounds(store, clock).tenant(tenant.tenant_id) is None, "nobody said anything"
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    assert (await rounds(store, clock).tenant(tenant.tenant_id)).tenants == 1
    assert await rounds(store, clock).tenant(tenant.tenant_id) is None
    await admin.execute(
        "UPDATE stateroom.retention_rounds SET due_at = '-infinity' WHERE tenant_id = $1", tenant.tenant_id
    )
    assert (await rounds(store, clock).run_due()).tenants >= 1


async def test_of_a_suspended_tenant_nothing_is_removed_until_it_is_resumed(store, scope, tenant, clock, admin):
    add = "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES ($1, $2, now())"
    await admin.execute(add, tenant.tenant_id, str(tenant.tenant_id))
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY, on_expiry="delete"))
    await save(store, scope, "t1")
    await clock.go_on(DAY)
    await store.tenants.suspend(tenant.tenant_id, "ticket 512")
    assert await rounds(store, clock).tenant(tenant.tenant_id, now=True) is None
    due = "UPDATE stateroom.retention_rounds SET due_at = '-infinity' WHERE tenant_id = $1"
    await admin.execute(due, tenant.tenant_id)
    await rounds(store, clock).run_due()
    assert await store.threads.get(scope, "t1")
    await store.tenants.resume(tenant.tenant_id)
    assert (await perform(store, clock, tenant))["deleted"] == 1


async def test_an_object_store_that_is_away_puts_archiving_off(store, scope, tenant, clock, admin):
    await admin.execute("DELETE FROM stateroom.retention_rounds")
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    for number in range(3):
        await save(store, scope, f"t{number}")
    await clock.go_on(DAY)
    store.archive.available = False
    assert await perform(store, clock, tenant) == {"threads": 3, "left": 3}
    census = await store.retaining.census()
    assert (census.due["archive"], census.done["archive"], census.hot) == (3, 0, 3)
    assert census.late_seconds > 0, "by the wall's clock, which is ahead of the test's"
    store.archive.available = True
    assert (await perform(store, clock, tenant))["archived"] == 3
    census = await store.retaining.census()
    assert (census.tenants, census.due["archive"], census.done["archive"], census.late_seconds) == (1, 0, 3, 0)
    assert 0 <= census.age_seconds < 60


async def test_a_deployment_without_an_archive_only_deletes(database, root_key, scope, tenant, clock):
    async with opened(database, root_key, clock=clock) as store:
        await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
        await store.retention_policies.put(tenant, "scratch", Policy(on_expiry="delete"))
        await save(store, scope, "t1")
        await save(store, scope, "t2", agent="scratch")
        await clock.go_on(DAY)
        assert await perform(store, clock, tenant) == {"threads": 2, "deleted": 1, "left": 1}
        assert await tiers(store, scope) == {"t1": "hot"}


# --- legal holds -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def held(store, tenant, scope, level):
    """A hold at a level, lifted again."""
    policies = store.retention_policies

    async def put(hold):
        if level == "thread":
            await policies.put_thread(scope, "t1", Policy(legal_hold=hold))
        else:
            await policies.put(tenant, "travel" if level == "agent" else None, Policy(legal_hold=hold))

    await put(True)
    yield
    await put(False)


LEVELS = pytest.mark.parametrize("level", ["thread", "agent", "tenant"])


async def requests(store, scope):
    """What anybody can ask for that takes state away, by name."""
    return {
        "delete": lambda: store.threads.delete(scope, "t1"),
        "prune delete": lambda: store.threads.prune(scope, ["t1"], "delete"),
        "prune keep_latest": lambda: store.threads.prune(scope, ["t1"], "keep_latest"),
        "delete runs": lambda: store.threads.delete_runs(scope, ["run-1"]),
        "shred subject": lambda: store.shred.subject(scope, scope.subject_id, "somebody"),
    }


@LEVELS
async def test_nobody_removes_anything_of_what_is_held(store, scope, tenant, admin, level):
    await save(store, scope, "t1", agent="travel", run_id="run-1")
    await save(store, scope, "t1", agent="travel", run_id="run-2", content=state(note=2))
    before = await moved(admin, scope)
    async with held(store, tenant, scope, level):
        for name, request in (await requests(store, scope)).items():
            with pytest.raises(LegalHold):
                await request()
            assert await moved(admin, scope) == before, name
        # Archiving loses nothing, and what is archived stays.
        await store.archives.archive(scope, "t1")
        with pytest.raises(LegalHold):
            await store.threads.delete(scope, "t1")
        with pytest.raises(LegalHold):
            await store.archives.expire(scope, "t1")
        assert (await load(store, scope, "t1")).run_id == "run-2"
        await store.archives.restore(scope, "t1")
        assert await moved(admin, scope) == before
    await store.threads.delete(scope, "t1")
    assert await tiers(store, scope) == {}


@LEVELS
async def test_no_round_removes_anything_of_what_is_held(store, scope, tenant, clock, admin, level):
    await save(store, scope, "t1", agent="travel")
    for number in range(5):
        await save(store, scope, "t1", agent="travel", content=state(note=number), step=number)
    strict = Policy(on_expiry="delete", idle_ttl_seconds=DAY, checkpoints_max=1, thinning=Thinning(keep_last=1))
    await store.retention_policies.put_thread(scope, "t1", strict)
    before = await moved(admin, scope)
    await clock.go_on(2 * DAY)
    async with held(store, tenant, scope, level):
        # The policy of the thread goes when it is held by a policy that says nothing else.
        await store.retention_policies.put_thread(scope, "t1", strict)
        assert await perform(store, clock, tenant) == {"threads": 1, "held": 1}
        assert await moved(admin, scope) == before
    await store.retention_policies.put_thread(scope, "t1", strict)
    assert (await perform(store, clock, tenant))["deleted"] == 1


@pytest.mark.parametrize("on_expiry", ["archive", "delete"])
async def test_no_round_takes_a_thread_that_somebody_claims_or_that_has_an_effect_that_did_not_end(
    store, scope, tenant, clock, admin, on_expiry
):
    await switch_on(store, DECISIONS)
    threads = ["claimed", "released", "started", "unknown", "in progress", "gave up", "done"]
    for thread_id in threads:
        await save(store, scope, thread_id)
    await claim(store, scope, thread_id="claimed", lease_seconds=300)
    held = await claim(store, scope, thread_id="released")
    await store.claims.release(scope, "released", held.fence)
    begun = {name: await start(store, scope, thread_id=name) for name in ("started", "unknown", "done")}
    for status in ("unknown", "done"):
        await finish(store, scope, begun[status], status)
    for thread_id in ("in progress", "gave up"):
        await start(store, scope, thread_id=thread_id, mode="idempotent")
    await effect_over(store, scope, thread_id="gave up")  # may be begun again, so that nobody has to know
    await store.retention_policies.put(tenant, None, Policy(on_expiry=on_expiry, idle_ttl_seconds=DAY))
    await clock.go_on(2 * DAY)
    busy = {"claimed", "started", "unknown", "in progress"}
    await perform(store, clock, tenant)
    found = await tiers(store, scope)
    if on_expiry == "archive":
        assert found == {each: "hot" if each in busy else "archive" for each in threads}
    else:
        assert found == dict.fromkeys(busy, "hot")
        stored = await ledger_rows(admin, scope, "effects")
        assert {row["thread_id"] for row in stored} == busy - {"claimed"}
        assert len(await ledger_rows(admin, scope, "effect_tombstones")) == 1
    # Once it is known what became of it, nothing keeps a thread.
    await finish(store, scope, begun["started"])
    await clock.go_on(2 * DAY)
    await perform(store, clock, tenant)
    after = await tiers(store, scope)
    assert after.get("started") == ("archive" if on_expiry == "archive" else None)
    assert {after[each] for each in busy - {"started"}} == {"hot"}


@pytest.mark.parametrize("parts_first", [False, True])
@pytest.mark.parametrize("meanwhile", ["claimed", "started"])
async def test_who_claims_a_thread_or_starts_an_effect_while_it_is_about_to_be_archived_keeps_it(
    store, scope, tenant, clock, meanwhile, parts_first
):
    for feature in (DECISIONS, SEGMENTS):
        await switch_on(store, feature)
    for number in range(3):
        await save(store, scope, "t1", content=state(n=number))
    await store.retention_policies.put(tenant, None, Policy(on_expiry="archive", idle_ttl_seconds=DAY))
    await clock.go_on(2 * DAY)
    archive = store.archives.archive
    if parts_first:
        store.archives._unsegmented_bytes_max = 1

    async def late(*args, **options):
        await (claim(store, scope, lease_seconds=300) if meanwhile == "claimed" else start(store, scope))
        return await archive(*args, **options)

    store.archives.archive = late
    assert await perform(store, clock, tenant) == {"threads": 1}
    assert await tiers(store, scope) == {"t1": "hot"}
    assert (await store.archives.status(scope, "t1")).segments is None
    assert (await fsck(store, scope)).faults == {}


@LEVELS
async def test_a_tenant_is_not_shredded_while_anything_of_it_is_held(store, scope, tenant, clock, level):
    await admin_tenant(store, tenant, clock)
    await save(store, scope, "t1", agent="travel")
    async with held(store, tenant, scope, level):
        with pytest.raises(LegalHold):
            await store.shred.tenant(tenant.tenant_id, str(tenant.tenant_id), "operator")
        assert (await load(store, scope, "t1")).checkpoint_id
    assert (await store.shred.tenant(tenant.tenant_id, str(tenant.tenant_id), "operator")).job_id


async def admin_tenant(store, tenant, clock):
    async with store.unit_of_work.begin(OperatorScope(founding=tenant.tenant_id)) as transaction:
        await transaction.run(FOUND, tenant_id=tenant.tenant_id, name="held", created_at=clock.now())


async def test_others_are_not_held(store, scope, tenant):
    await save(store, scope, "t1", agent="travel")
    await save(store, scope, "t2", agent="other")
    await save(store, Scope(scope.tenant_id, "user-2"), "t1", agent="other")
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    await store.retention_policies.put(tenant, "travel", Policy(legal_hold=True))
    await store.threads.delete(scope, "t2")
    await store.shred.subject(Scope(scope.tenant_id, "user-2"), "user-2", "somebody")


@pytest.mark.parametrize("archived", [False, True])
async def test_naming_another_agent_is_no_way_out_of_a_hold(store, scope, tenant, archived):
    await save(store, scope, "t1", agent="travel")
    await store.retention_policies.put(tenant, "travel", Policy(legal_hold=True))
    await save(store, scope, "t1", agent="other", content=state(note=2))
    if archived:
        await store.archives.archive(scope, "t1")
    for request in (store.threads.delete(scope, "t1"), store.shred.subject(scope, scope.subject_id, "somebody")):
        with pytest.raises(LegalHold):
            await request


@pytest.mark.parametrize("way", ["put", "save", "save on"])
async def test_a_thread_whose_agent_only_its_row_names_is_held_all_the_same(store, scope, tenant, way):
    await store.threads.put(scope, "t1", agent="travel", agent_given=True)
    await save(store, scope, "t1")
    await store.retention_policies.put(tenant, "travel", Policy(legal_hold=True))
    if way == "put":
        await store.threads.put(scope, "t1", agent="other", agent_given=True)
    else:
        if way == "save":
            store.checkpoints._access.remembered_heads.forget(scope)
        await save(store, scope, "t1", agent="other", content=state(note=2))
    assert (await store.threads.get(scope, "t1")).agent == "travel"
    with pytest.raises(LegalHold):
        await store.threads.delete(scope, "t1")
    await store.retention_policies.put(tenant, "travel", Policy(legal_hold=False))
    await store.threads.put(scope, "t1", agent="other", agent_given=True)
    assert (await store.threads.get(scope, "t1")).agent == "other"


async def test_a_shredded_tenant_has_no_rounds_any_more(store, scope, tenant, clock, admin):
    await admin_tenant(store, tenant, clock)
    await save(store, scope, "t1")
    await store.retention_policies.put(tenant, "travel", Policy(idle_ttl_seconds=DAY))
    shredded = await store.shred.tenant(tenant.tenant_id, str(tenant.tenant_id), "operator")
    async with asyncio.timeout(WAIT_SECONDS):
        while (await store.jobs.get(tenant, shredded.job_id)).state != "done":
            await store.runner.run_due()
    left = "SELECT (SELECT count(*) FROM stateroom.retention WHERE tenant_id = $1)"
    left += " + (SELECT count(*) FROM stateroom.retention_rounds WHERE tenant_id = $1)"
    left += " + (SELECT count(*) FROM stateroom.thread_retention WHERE tenant_id = $1)"
    assert await admin.fetchval(left, scope.tenant_id) == 0


async def test_a_hold_waits_for_a_removal_under_way_and_is_overtaken_by_none(store, scope, tenant):
    await save(store, scope, "t1")
    async with asyncio.timeout(WAIT_SECONDS):
        async with store.unit_of_work.begin(scope) as transaction:
            await refuse_held(transaction, store.control, scope, "elsewhere")
            setting = asyncio.create_task(store.retention_policies.put(tenant, None, Policy(legal_hold=True)))
            await waiting(store, 1)
            assert not setting.done()
        await setting
        with pytest.raises(LegalHold):
            await store.threads.delete(scope, "t1")
        await store.retention_policies.put(tenant, None, Policy(legal_hold=False))

        lock = retention_sql.holds_lock(tenant.tenant_id)
        async with store.unit_of_work.begin(tenant) as transaction:
            await transaction.run(retention_sql.TAKE_HOLDS, lock=lock)
            deleting = asyncio.create_task(store.threads.delete(scope, "t1"))
            await waiting(store, 1)
            proof = store.control.proof(policy_row(tenant.tenant_id, "tenant", ("",), b"{}", True, START))
            await transaction.run(
                retention_sql.PUT, owner=tenant.tenant_id, level="tenant", target="", policy=b"{}", legal_hold=True,
                updated_at=START, **proof._asdict(),
            )  # fmt: skip
        with pytest.raises(LegalHold):
            await deleting


async def waiting(store, count):
    """Until so many wait for an advisory lock."""
    while True:
        async with store.unit_of_work.connection() as connection:
            found = await connection.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            )
        if found >= count:
            return


# --- previews --------------------------------------------------------------------------------------------------------


async def test_a_preview_says_what_a_round_does_then(store, scope, tenant, clock, admin):
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=10 * DAY))
    await store.retention_policies.put(tenant, "scratch", Policy(idle_ttl_seconds=5 * DAY, on_expiry="delete"))
    await store.retention_policies.put(tenant, "busy", Policy(checkpoints_max=4))
    other = Scope(scope.tenant_id, "user-2")
    for place in (scope, other):
        await fill(store, place, "old")
        await save(store, place, "gone", agent="scratch")
        await save(store, place, "kept", agent="scratch")
        await store.retention_policies.put_thread(place, "kept", Policy(legal_hold=True))
    await fill(store, scope, "archived")
    await store.archives.archive(scope, "archived")
    await store.retention_policies.put_thread(scope, "archived", Policy(archive_ttl_seconds=DAY))
    await clock.go_on(10 * DAY)
    for number in range(8):
        await save(store, scope, "long", content=state(note=number), agent="busy", step=number)
    before = await counts(admin, scope)
    page = await store.retention_preview.page(tenant)
    assert (page.threads, page.held, page.next) == (8, 2, None)
    assert await counts(admin, scope) == before, "it changes nothing"

    small = [await store.retention_preview.page(tenant, rows=3)]
    while small[-1].next is not None:
        small.append(await store.retention_preview.page(tenant, rows=3, now=small[0].now, after=small[-1].next))
    assert sum(each.threads for each in small) == 8
    for action, all_of in page.actions.items():
        found = [each.actions[action] for each in small if action in each.actions]
        assert sum(each.threads for each in found) == all_of.threads
        assert sum(each.bytes for each in found) == all_of.bytes

    done = await rounds(store, clock).tenant(tenant.tenant_id, now=True)
    told = page.actions
    assert (done.archived, done.deleted, done.expired, done.thinned) == tuple(
        told[action].threads for action in ("archive", "delete", "expire", "thin")
    )
    assert (done.archived, done.deleted, done.expired, done.thinned) == (2, 2, 1, 1)
    assert done.checkpoints == told["thin"].checkpoints == 4
    assert done.bytes == told["archive"].bytes + told["expire"].bytes
    assert told["delete"].bytes > 0
    assert (await store.retention_preview.page(tenant)).actions == {}


async def counts(admin, scope):
    tables = ("threads", "checkpoints", "chunks", "pending_writes", "archives", "audit_log", "retention")
    return [
        await admin.fetchval(f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)  # noqa: S608
        for table in tables
    ]


async def test_a_draft_is_previewed_without_being_said(store, scope, tenant, clock):
    await save(store, scope, "t1", agent="travel")
    await save(store, scope, "t2")
    await store.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=10 * DAY))
    await clock.go_on(2 * DAY)
    assert (await store.retention_preview.page(tenant)).actions == {}
    draft = Policy(idle_ttl_seconds=DAY)
    everything = await store.retention_preview.page(tenant, draft=(None, draft))
    assert everything.actions["archive"].threads == 2
    of_agent = await store.retention_preview.page(tenant, draft=("travel", draft))
    assert of_agent.actions["archive"].threads == 1
    assert (await store.retention_preview.page(tenant)).actions == {}
    with pytest.raises(InvalidState):
        await store.retention_preview.page(tenant, draft=(None, Policy(idle_ttl_seconds=0)))


async def test_an_artifact_of_a_held_thread_stays(store, scope):
    async def body():
        yield b"content"

    await save(store, scope, "t1")
    artifact = await store.artifacts.create(scope, "t1", NewArtifact(name="file"), body())
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    with pytest.raises(LegalHold):
        await store.artifacts.delete(scope, artifact.artifact_id)
    assert (await store.artifacts.get(scope, artifact.artifact_id)).name == "file"
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=False))
    await store.artifacts.delete(scope, artifact.artifact_id)


async def test_a_page_of_a_round_reads_its_own_rows_and_no_others(store, scope, admin):
    """However far the round is: else a large tenant's round takes the square of its time."""
    await admin.execute(
        "INSERT INTO stateroom.threads"
        " (tenant_id, subject_id, thread_id, status, tier, strict, activity, created_at, updated_at, seal)"
        " SELECT $1, 'user-' || n % 100, 't' || n, 'active', 'hot', false, 1, now(), now(), ''"
        " FROM generate_series(1, 20000) n",
        scope.tenant_id,
    )
    await admin.execute("ANALYZE stateroom.threads")
    async with store.unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
        await transaction.run(retention_sql.IN_ORDER)
        page = retention_sql.PAGE
        named = re.sub(r"\$(\d+)", lambda found: f":{page.names[int(found[1]) - 1]}", page.text)
        explained = Statement("EXPLAIN (ANALYZE, FORMAT JSON) " + named, list)
        [plan] = await transaction.fetch_only(explained, after_subject="user-50", after_thread="t5", limit=100)
    nodes = [plan["Plan"]]
    for node in nodes:
        nodes += node.get("Plans", [])
    [threads] = [node for node in nodes if node.get("Relation Name") == "threads"]
    assert (threads["Node Type"], threads["Actual Rows"]) == ("Index Scan", 100)
    assert "ROW(subject_id, thread_id) >" in threads["Index Cond"]


# --- checkpoints that leave while their thread stays -----------------------------------------------------------------


async def grown(database, root_key, bucket, scope, days_ago, count):
    """Save checkpoints of t1 as a gateway did so many days ago."""
    then = ManualClock(datetime.now(UTC) - timedelta(days=days_ago))
    async with opened(database, root_key, archive=bucket, clock=then) as store:
        return [
            (await save(store, scope, content=state(n=number, d=days_ago))).checkpoint_id for number in range(count)
        ]


async def test_older_checkpoints_of_a_thread_that_is_used_leave_the_database_and_are_read_on(
    database, root_key, scope, tenant, admin, clock
):
    bucket = MemoryBlobStore()
    ids = await grown(database, root_key, bucket, scope, 90, 6)
    ids += await grown(database, root_key, bucket, scope, 10, 3)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        policy = Policy(checkpoints_idle_ttl_seconds=30 * DAY, keep_hot=Thinning(keep_first=1))
        await store.retention_policies.put(tenant, None, policy)
        page = await store.retention_preview.page(tenant)
        assert (page.actions["segment"].threads, page.actions["segment"].checkpoints) == (1, 5)
        assert (await perform(store, clock, tenant))["segmented"] == 1
        stored = await moved(admin, scope)
        assert {row["checkpoint_id"] for row in stored["checkpoints"]} == {ids[0], *ids[6:]}
        assert [each.checkpoint_id for each in await history(store, scope, thread_id="t1")] == ids[::-1]
        assert "segmented" not in await perform(store, clock, tenant)
        assert (await store.verification.subject(scope)).findings == []
        assert ("segment.archive", f'thread:["{scope.subject_id}","t1"]') in await said(store, tenant)


async def test_a_tenant_at_its_quota_of_bytes_is_told_why_its_rows_stay(
    database, root_key, scope, tenant, admin, clock
):
    bucket = MemoryBlobStore()
    await grown(database, root_key, bucket, scope, 90, 4)
    quota = (
        "INSERT INTO stateroom.blob_usage (tenant_id, bytes, quota_bytes) VALUES ($1, 0, $2)"
        " ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = $2"
    )
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        await store.retention_policies.put(tenant, None, Policy(checkpoints_idle_ttl_seconds=30 * DAY))
        await admin.execute(quota, scope.tenant_id, 1)
        for _ in range(2):
            assert await perform(store, clock, tenant) == {"threads": 1, "over_quota": 1}
        counts = (await store.retaining.status(tenant)).counts
        assert (counts["over_quota"], counts["due_segment"]) == (1, 1)
        due_at = (await store.retaining.status(tenant)).due_at
        assert due_at - datetime.now(UTC) > timedelta(seconds=2 * AGAIN_SECONDS), "it is no matter of minutes"
        await admin.execute(quota, scope.tenant_id, None)
        assert (await perform(store, clock, tenant))["segmented"] == 1
        assert "over_quota" not in (await store.retaining.status(tenant)).counts


async def test_rounds_take_finished_calls_of_which_only_the_heads_are_old(
    database, root_key, scope, tenant, admin, clock
):
    bucket = MemoryBlobStore()
    then = ManualClock(datetime.now(UTC) - timedelta(days=90))
    async with opened(database, root_key, archive=bucket, clock=then) as store:
        for name in ("work:1", "work:2", "remembers"):
            await save(store, scope, namespace=name, content=state(n=name), metadata={"parents": {"": "gone"}})
    await grown(database, root_key, bucket, scope, 10, 2)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(store, each)
        policy = Policy(checkpoints_idle_ttl_seconds=30 * DAY, keep_hot=Thinning(keep_last=1))
        await store.retention_policies.put(tenant, None, policy)
        page = await store.retention_preview.page(tenant)
        assert (page.actions["segment"].threads, page.actions["segment"].checkpoints) == (1, 2)
        assert (await perform(store, clock, tenant))["segmented"] == 1
        heads = "SELECT namespace FROM stateroom.heads WHERE tenant_id = $1"
        assert {row["namespace"] for row in await admin.fetch(heads, scope.tenant_id)} == {"", "remembers"}
        assert "segmented" not in await perform(store, clock, tenant)
        assert len(await history(store, scope, thread_id="t1")) == 5
        assert (await store.verification.subject(scope)).findings == []


async def test_held_checkpoints_move_and_none_is_removed(database, root_key, scope, tenant, clock):
    bucket = MemoryBlobStore()
    ids = await grown(database, root_key, bucket, scope, 90, 4)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        policy = Policy(checkpoints_idle_ttl_seconds=30 * DAY, legal_hold=True)
        await store.retention_policies.put(tenant, None, policy)
        assert (await perform(store, clock, tenant))["segmented"] == 1
        assert [each.checkpoint_id for each in await history(store, scope, thread_id="t1")] == ids[::-1]
        with pytest.raises(LegalHold):
            await store.threads.delete(scope, "t1")


async def test_nothing_is_said_of_segments_while_an_older_build_may_run(store, tenant, admin):
    await admin.execute("DELETE FROM stateroom.deployment_features WHERE feature = $1", SEGMENTS.name)
    for policy in (
        Policy(checkpoints_idle_ttl_seconds=DAY),
        Policy(keep_hot=Thinning(keep_last=1)),
        Policy(segment_ttl_seconds=DAY),
    ):
        with pytest.raises(FeatureOff):
            await store.retention_policies.put(tenant, None, policy)
    assert (await store.retention_policies.get(tenant)).tenant.policy == Policy()


async def test_checkpoints_in_segments_go_when_they_were_there_for_long_enough(
    database, root_key, scope, tenant, admin, clock
):
    bucket = MemoryBlobStore()
    ids = await grown(database, root_key, bucket, scope, 90, 4)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        policy = Policy(checkpoints_idle_ttl_seconds=30 * DAY, segment_ttl_seconds=10 * DAY)
        await store.retention_policies.put(tenant, None, policy)
        assert await perform(store, clock, tenant) == {"threads": 1, "segmented": 1, "bytes": ANY}
        following = (await store.retention_policies.get_thread(scope, "t1")).next
        assert (following.action, following.reason) == ("segment-expire", "segment_ttl")
        assert timedelta(days=9) < following.at - clock.now() < timedelta(days=11)
        await clock.go_on(9 * DAY)
        assert "segment-expire" not in (await store.retention_preview.page(tenant)).actions
        assert "segments_expired" not in await perform(store, clock, tenant)
        await clock.go_on(2 * DAY)
        [before] = await admin.fetch(
            "SELECT updated_at, activity FROM stateroom.threads WHERE tenant_id = $1", scope.tenant_id
        )
        foreseen = (await store.retention_preview.page(tenant)).actions["segment-expire"]
        assert (foreseen.threads, foreseen.checkpoints) == (1, 3)
        done = await perform(store, clock, tenant)
        assert done == {"threads": 1, "segments_expired": 1, "checkpoints": 3, "bytes": foreseen.bytes}
        [after] = await admin.fetch(
            "SELECT updated_at, activity FROM stateroom.threads WHERE tenant_id = $1", scope.tenant_id
        )
        assert after == before
        assert [each.checkpoint_id for each in await history(store, scope, thread_id="t1")] == ids[-1:]
        assert "segments_expired" not in await perform(store, clock, tenant)
        assert ("segment.expire", f'thread:["{scope.subject_id}","t1"]') in await said(store, tenant)
        assert (await store.retaining.census()).done["segment-expire"] == 0
        assert (await store.verification.subject(scope)).findings == []


async def test_segments_go_beside_what_else_is_due_of_their_thread(database, root_key, scope, tenant, admin, clock):
    bucket = MemoryBlobStore()
    await grown(database, root_key, bucket, scope, 90, 4)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        await store.retention_policies.put(tenant, None, Policy(checkpoints_idle_ttl_seconds=30 * DAY))
        assert (await perform(store, clock, tenant))["segmented"] == 1
        for number in range(3):
            await save(store, scope, content=state(n=number))
        await clock.go_on(DAY)
        both = Policy(segment_ttl_seconds=DAY, thinning=Thinning(keep_last=1))
        await store.retention_policies.put(tenant, None, both)
        page = await store.retention_preview.page(tenant)
        assert {name: each.checkpoints for name, each in page.actions.items()} == {"segment-expire": 3, "thin": 3}
        done = await perform(store, clock, tenant)
        assert (done["segments_expired"], done["thinned"], done["checkpoints"]) == (1, 1, 6)
        assert await perform(store, clock, tenant) == {"threads": 1}


@pytest.mark.parametrize("meanwhile", ["held", "longer", "deleted"])
async def test_what_is_said_while_segments_are_about_to_go_is_heard(
    database, root_key, scope, tenant, clock, meanwhile
):
    bucket = MemoryBlobStore()
    await grown(database, root_key, bucket, scope, 90, 4)
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
        await clock.go_on(2 * DAY)
        said_first = Policy(segment_ttl_seconds=DAY)
        await store.retention_policies.put(tenant, None, said_first)
        expire = store.archives.expiring.expire

        async def late(*args, **options):
            if meanwhile == "deleted":
                await store.threads.delete(scope, "t1")
            elif meanwhile == "held":
                await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
            else:
                await store.retention_policies.put(tenant, None, Policy(segment_ttl_seconds=3 * DAY))
            return await expire(*args, **options)

        store.archives.expiring.expire = late
        assert "segments_expired" not in await perform(store, clock, tenant)
        left = (
            [] if meanwhile == "deleted" else [each.thread_id for each in await history(store, scope, thread_id="t1")]
        )
        assert len(left) == (0 if meanwhile == "deleted" else 4)
