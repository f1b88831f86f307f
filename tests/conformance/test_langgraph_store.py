"""The store for LangGraph, held against the suite that any store can be held against."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from stateroom.langgraph import StateroomStore
from stateroom.testing.stores import CASES, validate_store
from storage.control.features import ITEMS
from storage.model import Tenant
from storage.scope import OperatorScope
from tests.support.features import switch_on
from tests.support.operations import STATE
from tests.unit.gateway.doubles import PEPPERS, settings

# Not a claim about stores: this one says that it supports a time to live, so one case has nothing to find out.
BESIDE_THE_POINT = "time-is-refused-where-it-is-not-supported"


class OnTheLoop(httpx2.BaseTransport):
    """What worker threads ask is answered on the event loop of the test, where the gateway is."""

    def __init__(self, transport, loop):
        self._transport, self._loop = transport, loop

    def handle_request(self, request):
        request.read()
        return asyncio.run_coroutine_threadsafe(self._answered(request), self._loop).result()

    async def _answered(self, request):
        asked = httpx2.Request(request.method, request.url, headers=request.headers, content=request.content)
        answer = await self._transport.handle_async_request(asked)
        return httpx2.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@pytest.fixture
async def gateway_in_process(store):
    """A gateway without rounds in the background, over the same loop, and a key for all that subjects may do."""
    await switch_on(store, ITEMS)
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    service, key = api_keys.mint(
        PEPPERS,
        api_keys.NewKey(kind="service", permissions=(*STATE, "subject:act_as"), now=now, tenant_id=tenant.tenant_id),
    )
    await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
    return httpx2.ASGITransport(create_app(settings(), store=store, background=False)), key


async def test_the_store_passes_every_case_in_both_halves(gateway_env, subject):
    @asynccontextmanager
    async def stateroom(config):
        async with StateroomStore(
            gateway_env.url, gateway_env.api_key, subject=subject, index=config.index, ttl=config.ttl
        ) as made:
            yield made

    report = await validate_store(stateroom)
    assert report.failures() == []
    assert {each.name for each in report.skipped} == {each.name for each in CASES if each.needs_time} | {
        BESIDE_THE_POINT
    }
    assert len(report.results) == 2 * len(CASES)


async def test_the_store_passes_every_case_about_time(gateway_in_process, store, database, subject):
    transport, key = gateway_in_process
    loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def stateroom(config):
        async with StateroomStore(
            "http://test",
            key,
            subject=subject,
            index=config.index,
            ttl=config.ttl,
            async_transport=lambda: transport,
            transport=lambda: OnTheLoop(transport, loop),
        ) as made:
            yield made

    async def advance(seconds):
        await store.items.flush()  # what was read lives anew from when it was read
        await admin.execute(
            "UPDATE stateroom.items SET expires_at = expires_at - make_interval(secs => $1) WHERE subject_id = $2",
            seconds, subject,
        )  # fmt: skip

    admin = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        report = await validate_store(stateroom, advance=advance, only=[each.name for each in CASES if each.needs_time])
    finally:
        await admin.close()
    assert report.failures() == []
    assert {each.outcome for each in report.results} == {"passed"}


async def test_a_blocking_call_is_refused_on_a_loop_that_the_store_is_used_on_and_works_elsewhere(gateway_env, subject):
    async with StateroomStore(gateway_env.url, gateway_env.api_key, subject=subject) as used:
        for call in (lambda: used.put(("a",), "k", {}), lambda: used.get(("a",), "k"), lambda: used.search(("a",))):
            with pytest.raises(asyncio.InvalidStateError, match="another thread"):
                call()
        assert await used.aget(("a",), "k") is None  # nothing was sent
        await asyncio.to_thread(used.put, ("a",), "k", {"v": 1})
        assert (await used.aget(("a",), "k")).value == {"v": 1}
    with StateroomStore(gateway_env.url, gateway_env.api_key, subject=subject) as blocking:
        assert blocking.get(("a",), "k").value == {"v": 1}
