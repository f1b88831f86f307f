"""All database connections of a process are busy for longer than a request waits for one: it is told to come again."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from gateway.telemetry import Metrics
from storage.model import Tenant
from storage.postgres.engine import POOL_TIMEOUT_SECONDS
from storage.scope import OperatorScope
from storage.service import Store
from tests.support.operations import assert_problem
from tests.support.stores import DEPLOYMENT_ID
from tests.support.tenants import SERVICE
from tests.unit.gateway.doubles import PEPPERS, settings

CONNECTIONS = 8  # of which one tenant may wait for more than these requests need
CHECKPOINTS = "/v1/threads/t1/checkpoints"


@pytest.fixture
async def busy_store(database, root_key):
    """One whose every connection can be held."""
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=CONNECTIONS,
        durable=False,
    )
    yield opened
    await opened.close()


@pytest.fixture
async def keys(busy_store):
    """Two API keys of one new tenant."""
    now, tenant_id = datetime.now(UTC), uuid4()
    (first, text), (second, other) = (
        api_keys.mint(PEPPERS, api_keys.NewKey(kind="service", permissions=SERVICE, now=now, tenant_id=tenant_id))
        for _ in range(2)
    )
    await busy_store.tenants.create(
        OperatorScope(founding=tenant_id), Tenant(tenant_id=tenant_id, name=uuid4().hex, created_at=now), first
    )
    await busy_store.tenants.add_key(OperatorScope(founding=tenant_id), second)
    return text, other


@pytest.fixture
async def client(busy_store):
    app = create_app(settings(), store=busy_store, metrics=Metrics(), background=False)
    started, ended = asyncio.Event(), asyncio.Event()

    async def live():  # a task of its own: a lifespan must end in the task it began in
        async with app.lifespan():
            started.set()
            await ended.wait()

    life = asyncio.create_task(live())
    await started.wait()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as made:
        yield made
    ended.set()
    await life


def by(api_key, subject="user-1"):
    return {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": subject}


async def test_who_waits_in_vain_for_a_connection_is_told_to_come_again_and_nothing_was_saved(client, keys, busy_store):
    known, unknown = keys
    first = await client.post(CHECKPOINTS, json={"state": {"n": 1}}, headers=by(known))
    assert first.status_code == 201, first.text
    latest = f"{CHECKPOINTS}/latest"
    async with AsyncExitStack() as held:
        for _ in range(CONNECTIONS):
            await held.enter_async_context(busy_store.unit_of_work.connection())
        begun = time.monotonic()
        refused = await asyncio.gather(
            client.post(CHECKPOINTS, json={"state": {"n": 2}}, headers=by(known)),
            client.post(CHECKPOINTS, json={"state": {"n": 3}}, headers=by(known, "user-2")),  # who has no keys yet
            client.post(CHECKPOINTS, json={"state": {"n": 4}}, headers=by(known) | {"Idempotency-Key": "once"}),
            client.get(latest, headers=by(known)),
            client.get(latest, headers=by(unknown)),  # whose key has to be looked up
        )
        waited = time.monotonic() - begun
    for answer in refused:
        problem = assert_problem(answer, 503, "database-unavailable")
        assert (problem["retryable"], answer.headers["retry-after"]) == (True, "1")
    assert waited >= POOL_TIMEOUT_SECONDS

    loaded = await client.get(latest, headers=by(unknown))
    assert (loaded.status_code, loaded.json()["state"]) == (200, {"n": 1})
    assert_problem(await client.get(latest, headers=by(known, "user-2")), 404, "checkpoint-not-found")
    again = await client.post(CHECKPOINTS, json={"state": {"n": 4}}, headers=by(known) | {"Idempotency-Key": "once"})
    assert (again.status_code, again.json()["parent_id"]) == (201, first.json()["checkpoint_id"])
