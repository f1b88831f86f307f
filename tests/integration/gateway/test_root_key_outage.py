"""The root key's service goes away while the gateway serves: what is known goes on, what is not is refused politely."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from gateway.readiness import Probes
from gateway.telemetry import Metrics
from storage.model import Tenant
from storage.scope import OperatorScope, Scope
from storage.service import Store, StoreOptions
from tests.support.operations import STATE, assert_problem
from tests.support.root_keys import UnsteadyRootKey
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings


@pytest.fixture
def root_key():
    return UnsteadyRootKey()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
async def serving_store(database, root_key, metrics):
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(observer=metrics),
    )
    yield opened
    await opened.close()


@pytest.fixture
async def app(serving_store, root_key, metrics):
    async def healthy():
        await root_key.health()
        return True

    made = create_app(settings(), store=serving_store, probes=Probes(root_key=healthy), metrics=metrics)
    started, ended = asyncio.Event(), asyncio.Event()

    async def live():  # a task of its own: a lifespan must end in the task it began in
        async with made.lifespan():
            started.set()
            await ended.wait()

    life = asyncio.create_task(live())
    await started.wait()
    yield made
    ended.set()
    await life


@pytest.fixture
def client(app, serving_store):
    @asynccontextmanager
    async def of_new_tenant(subject):
        now = datetime.now(UTC)
        tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
        service, text = api_keys.mint(
            PEPPERS,
            api_keys.NewKey(
                kind="service", permissions=(*STATE, "subject:act_as"), now=now, tenant_id=tenant.tenant_id
            ),
        )
        await serving_store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
        headers = {"Authorization": f"Bearer {text}", "Stateroom-Subject": subject}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as made:
            yield made

    return of_new_tenant


async def save(client, thread="t1"):
    return await client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": 1}})


async def test_an_outage_of_the_root_key_stops_only_tenants_that_are_not_known(client, root_key, app):
    async with client("user-1") as known, client("user-1") as other:
        assert (await save(known)).status_code == 201
        root_key.reachable = False
        assert (await save(known, "t2")).status_code == 201
        assert (await known.get("/v1/threads/t1/checkpoints/latest")).json()["state"] == {"n": 1}
        # Another subject of a known tenant needs no root key either.
        assert (await save(known, "t3")).status_code == 201
        known.headers["Stateroom-Subject"] = "user-2"
        assert (await save(known)).status_code == 201

        refused = await save(other)
        problem = assert_problem(refused, 503, "key-unavailable")
        assert problem["retryable"] is True
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        ready = await known.get("/readyz")
        assert ready.status_code == 200
        assert app.services.metrics.registry.get_sample_value(
            "stateroom_root_key_refused_total", {"reason": "unavailable"}
        )

        root_key.reachable = True
        tenant_id = UUID((await other.get("/v1/whoami")).json()["tenant_id"])
        app.services.store.keys.evict(Scope(tenant_id, "user-1"))  # instead of waiting out the Retry-After
        app.services.store.keys.evict_tenant(tenant_id)
        assert (await save(other)).status_code == 201
