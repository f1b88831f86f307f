"""Rounds of retention remove items whose time is over, and nothing of what lives, is held or is put at this moment."""

import asyncio

import pytest

from storage.access.access import Access
from storage.clock import SystemClock
from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.items.expiring import Expiring
from storage.retention.planner import Policy
from storage.retention.rounds import Acts, Retaining, RoundLimits
from storage.scope import Scope, TenantScope
from storage.statements.items import items as items_sql
from storage.statements.items import paths as paths_sql
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.interleaving import Gate, SteeredUnitOfWork, blocked, parts_of
from tests.support.item_rows import PATH, SHARE, VECTORS, end, found, get, paths, put, restore, rows, values, write

OTHER = ("memories", "bob")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
def tenant(scope):
    return TenantScope(scope.tenant_id)


def rounds(store, *, expiring=None, **limits):
    acts = Acts(
        store.threads,
        store.pruning,
        store.archives,
        expiring or store.items.expiring,
        store.event_keeping,
        store.approvals_expiring,
    )
    limits = RoundLimits(**{"acts_per_second": 10_000, **limits})
    return Retaining(store.unit_of_work, store.audit, SystemClock(), acts, store.control, limits)


async def perform(store, tenant, **how):
    """A whole round; returns what it did, without zeros."""
    done = await rounds(store, **how).tenant(tenant.tenant_id, now=True)
    return {name: number for name in done.__slots__ if (number := getattr(done, name)) and name != "tenants"}


async def said(store, tenant):
    page = await store.audit.page(tenant, "tester", limit=1000)
    return [(each.event.action, each.event.detail) for each in page.items if each.event.action == "retention.round"]


async def test_what_is_over_goes_with_its_path_and_a_later_put_is_newer(store, scope, tenant, admin):
    (first, *_) = await write(
        store,
        scope,
        put("a", {}, ttl_seconds=60, vectors=VECTORS),
        put("b", {}, path=OTHER, ttl_seconds=60),
        put("c", {}, path=OTHER),
    )
    assert await perform(store, tenant) == {}
    await end(admin, scope)
    assert await perform(store, tenant) == {"items_expired": 2}
    assert [row["revision"] for row in await rows(admin, scope, "items")] == [2]
    assert len(await rows(admin, scope, "item_paths")) == 1
    assert await rows(admin, scope, "item_vectors") == []
    assert await paths(store, scope) == [OTHER]
    assert (await store.verification.subject(scope)).findings == []
    (again,) = await write(store, scope, put("a", {}))
    assert (again.status, again.revision > first.revision) == ("created", True)
    assert await said(store, tenant) == [("retention.round", {"items_expired": 2})]
    assert await perform(store, tenant) == {}


async def test_a_tenant_that_says_nothing_of_retention_has_rounds_once_items_will_be_over(store, scope, tenant, admin):
    await write(store, scope, put("a", {}))
    assert await store.retaining.status(tenant) is None
    await write(store, scope, put("b", {}, ttl_seconds=60))
    await end(admin, scope)
    async with asyncio.timeout(60):
        while len(await rows(admin, scope, "items")) > 1:
            await store.retaining.run_due()
    assert [key for _, key, _ in await found(store, scope)] == ["a"]


async def test_what_is_over_under_a_share_goes_as_well(store, scope, tenant, admin):
    await write(store, scope, put("a", {}, ttl_seconds=60), put("b", {}), share=SHARE)
    await write(store, scope, put("a", {}, path=OTHER, ttl_seconds=60), share=SHARE)
    await end(admin, scope)
    assert await perform(store, tenant) == {"items_expired": 2}
    assert await paths(store, scope, SHARE) == [PATH]
    assert [key for _, key, _ in await found(store, scope, SHARE)] == ["b"]
    assert (await store.verification.subject(scope)).findings == []


async def test_a_held_tenant_keeps_what_is_over_until_it_is_lifted(store, scope, tenant, admin):
    await write(store, scope, put("a", {}, ttl_seconds=60))
    await store.retention_policies.put(tenant, None, Policy(legal_hold=True))
    await end(admin, scope)
    assert await perform(store, tenant) == {}
    assert len(await rows(admin, scope, "items")) == 1
    assert await get(store, scope, "a") == [None]  # kept is not shown
    await store.retention_policies.put(tenant, None, Policy(legal_hold=False))
    assert await perform(store, tenant) == {"items_expired": 1}


async def test_a_hold_on_an_agent_keeps_no_items(store, scope, tenant, admin):
    await write(store, scope, put("a", {}, ttl_seconds=60))
    await store.retention_policies.put(tenant, "planner", Policy(legal_hold=True))
    await end(admin, scope)
    assert await perform(store, tenant) == {"items_expired": 1}


async def test_more_than_a_step_goes_by_steps_and_more_than_a_slice_in_the_next(store, scope, tenant, admin):
    names = [Scope(scope.tenant_id, f"user-{number}") for number in range(3)]
    for each in names:
        await write(store, each, *(put(f"k{number}", {}, ttl_seconds=60) for number in range(7)))
        await end(admin, each)
    few = Expiring(store.verification._access, page_rows=3)
    retaining = rounds(store, expiring=few, slice_seconds=0.0)
    slices = [await retaining.tenant(scope.tenant_id)]
    async with asyncio.timeout(60):
        while not slices[-1].tenants:
            slices.append(await retaining.tenant(scope.tenant_id))
    assert {each.items_expired for each in slices[:-1]} <= {1, 3}  # three at once, and what is left of a subject
    assert sum(each.items_expired for each in slices) == 21
    assert await said(store, tenant) == [("retention.round", {"items_expired": 21})]
    for each in names:
        assert await rows(admin, each, "item_paths") == []


async def test_a_damaged_path_stays_and_hides_no_other(store, scope, tenant, admin):
    await write(store, scope, *(put(f"k{number}", {}, ttl_seconds=60) for number in range(7)))
    stored = await rows(admin, scope, "item_paths")
    stored[0]["sequence"] += 1
    await restore(admin, scope, "item_paths", stored)
    await end(admin, scope)
    other = Scope(scope.tenant_id, "user-2")
    await write(store, other, put("a", {}, ttl_seconds=60))
    await end(admin, other)
    few = Expiring(store.verification._access, page_rows=3)
    assert await perform(store, tenant, expiring=few) == {"items_expired": 1, "failed": 1}
    assert len(await rows(admin, scope, "items")) == 7
    assert await rows(admin, other, "items") == []


@pytest.mark.parametrize("step", ["before it has the lock", "when it has the lock"])
async def test_a_put_at_the_same_moment_wins(store, scope, tenant, admin, step):
    await write(store, scope, put("a", {"n": 1}, ttl_seconds=60), put("b", {"n": 1}, ttl_seconds=60))
    await end(admin, scope)
    gate = Gate(paths_sql.LOCK_PATHS if step == "before it has the lock" else items_sql.OVER_IN_PATH)
    access = Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, gate)))
    round_ = asyncio.create_task(perform(store, tenant, expiring=Expiring(access)))
    await gate.arrival()
    putting = asyncio.create_task(write(store, scope, put("a", {"n": 2}, ttl_seconds=60)))
    if step == "before it has the lock":
        await putting
    else:
        await blocked(admin)
    gate.opened.set()
    assert await round_ == {"items_expired": 1 if step == "before it has the lock" else 2}
    assert [each.status for each in await putting] == ["created"]
    assert await values(store, scope, "a", "b") == [encode_msgpack({"n": 2}), None]
    assert (await store.verification.subject(scope)).findings == []


async def test_a_round_that_stops_in_the_middle_goes_on_where_another_process_is(store, scope, tenant, admin):
    await write(store, scope, *(put(f"k{number}", {}, ttl_seconds=60) for number in range(5)))
    await end(admin, scope)
    gate = Gate(items_sql.OVER_IN_PATH)
    access = Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, gate)))
    stopped = asyncio.create_task(perform(store, tenant, expiring=Expiring(access)))
    await gate.arrival()
    assert await rounds(store).tenant(scope.tenant_id, now=True) is None  # one process is at it
    stopped.cancel()
    await asyncio.wait({stopped})
    assert len(await rows(admin, scope, "items")) == 5
    assert await perform(store, tenant) == {"items_expired": 5}
