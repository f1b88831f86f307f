"""A shred takes items with it: their rows, a page at a time, and what any gateway has opened of them."""

import asyncio

import pytest

from crypto import KeyDestroyed
from storage.control.features import ITEMS
from storage.items.paths import LIST_SECONDS, PathLists
from storage.key_lifecycle import shred as shredding
from storage.scope import Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.item_rows import SHARE, TABLES, VECTORS, found, get, paths, put, rows, write

ACTOR = "api-key:test"


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
async def other(database, root_key):
    """Another gateway, with caches of its own."""
    async with opened(database, root_key) as made:
        yield made


async def shredded(store, scope):
    """Shred a subject; returns the job, when its rows are gone."""
    begun = await store.shred.subject(scope, scope.subject_id, ACTOR)
    tenant = TenantScope(scope.tenant_id)
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(tenant, begun.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    return job


async def test_a_shred_removes_items_a_page_at_a_time_and_nobody_elses(store, scope, admin):
    stays = Scope(scope.tenant_id, "stays")
    number = 2 * shredding._ITEMS_PAGE + 1
    for start in range(0, number, 100):
        writes = [
            put(f"k{each}", {}, path=(str(each % 7),), vectors=VECTORS)
            for each in range(start, min(start + 100, number))
        ]
        await write(store, scope, *writes)
    await write(store, scope, put("a", {}, vectors=VECTORS), share=SHARE)
    await write(store, stays, put("a", {}, vectors=VECTORS))
    job = await shredded(store, scope)
    assert (job.state, job.done) == ("done", 2 * (number + 1))
    for table in TABLES:
        assert await rows(admin, scope, table) == []
        assert len(await rows(admin, stays, table)) == 1
    assert len(await found(store, stays)) == 1


async def test_a_warm_gateway_shows_nothing_of_a_shredded_subjects_items_and_forgets_its_paths(store, other, scope):
    await write(store, scope, put("a", {}))
    neighbour = Scope(scope.tenant_id, "neighbour")
    await write(store, neighbour, put("a", {}))
    for gateway in (store, other):
        for each in (scope, neighbour):
            assert await paths(gateway, each) == [("memories", "ada")]
    known = [gateway.items.lists.subjects for gateway in (store, other)]
    await store.shred.subject(scope, scope.subject_id, ACTOR)
    for gateway, before in zip((store, other), known, strict=True):
        for refused in (paths(gateway, scope), get(gateway, scope, "a"), write(gateway, scope, put("b", {}))):
            with pytest.raises(KeyDestroyed):
                await refused
        assert gateway.items.lists.subjects == before - 1
        assert await paths(gateway, neighbour) == [("memories", "ada")]


async def test_whoever_only_writes_to_a_shredded_subject_forgets_its_paths_too(store, other, scope):
    await write(store, scope, put("a", {}))
    await paths(other, scope)
    before = other.items.lists.subjects
    await store.shred.subject(scope, scope.subject_id, ACTOR)
    with pytest.raises(KeyDestroyed):
        await write(other, scope, put("b", {}))
    assert other.items.lists.subjects == before - 1


async def test_paths_are_not_kept_for_long_nor_under_a_share(store, scope):
    now = [1000.0]
    store.items.lists = lists = PathLists(monotonic=lambda: now[0])
    await write(store, scope, put("a", {}))
    await write(store, scope, put("a", {}), share=SHARE)
    assert await paths(store, scope, SHARE) == [("memories", "ada")]
    assert lists.subjects == 0
    await paths(store, scope)
    assert lists.subjects == 1
    now[0] += LIST_SECONDS - 1
    await store.items.flush()
    assert lists.subjects == 1
    now[0] += 1
    await store.items.flush()  # as each process does every second, whoever asks or nobody
    assert lists.subjects == 0
    assert lists._bytes == 0
