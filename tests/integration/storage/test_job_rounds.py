"""When the loop of a process looks for due jobs."""

import asyncio
import time
from contextlib import suppress

import pytest

from storage.administration.jobs import Runner, Slice
from storage.scope import TenantScope
from storage.verification.jobs import VERIFY_TENANT_KIND
from tests.support.states import save, state


async def test_a_job_goes_on_when_it_asked_to_and_not_at_the_next_look_for_others(store, scope):
    await save(store, scope, content=state(n=1))
    slices = [Slice(ended=False, again_seconds=0.02), Slice(ended=False, again_seconds=0.01), Slice(ended=True)]
    ended = asyncio.Event()

    async def perform(_):
        if len(slices) == 1:
            ended.set()
        return slices.pop(0)

    runner = Runner(store.jobs, {VERIFY_TENANT_KIND: perform}, poll_seconds=3600)
    running = asyncio.create_task(runner.keep_running(pytest.fail))
    try:
        async with asyncio.timeout(30):
            await store.verifying.begin_tenant(TenantScope(scope.tenant_id), "api-key:test")
            await ended.wait()
    finally:
        running.cancel()


async def test_a_moment_that_passed_while_a_round_came_to_the_job_hides_no_later_one(store, scope):
    await save(store, scope, content=state(n=1))
    slices = [Slice(ended=False, again_seconds=0.3), Slice(ended=True)]
    ended = asyncio.Event()

    async def perform(_):
        if len(slices) == 1:
            ended.set()
        runner._again_at = time.monotonic()
        return slices.pop(0)

    runner = Runner(store.jobs, {VERIFY_TENANT_KIND: perform}, poll_seconds=3600)
    running = asyncio.create_task(runner.keep_running(pytest.fail))
    try:
        async with asyncio.timeout(30):
            await store.verifying.begin_tenant(TenantScope(scope.tenant_id), "api-key:test")
            await ended.wait()
    finally:
        running.cancel()


async def test_the_loop_is_woken_when_it_can_see_the_job_and_not_before(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.jobs.ready()
    store.jobs.added.clear()
    with suppress(ZeroDivisionError):
        async with store.unit_of_work.begin(tenant) as transaction:
            await store.jobs.add(transaction, tenant.tenant_id, VERIFY_TENANT_KIND, "*", "")
            raise ZeroDivisionError
    assert not store.jobs.added.is_set()
    async with store.unit_of_work.begin(tenant) as transaction:
        await store.jobs.add(transaction, tenant.tenant_id, VERIFY_TENANT_KIND, "*", "")
        assert not store.jobs.added.is_set()
    assert store.jobs.added.is_set()
