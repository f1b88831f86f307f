"""Trajectories of whole threads that are archived, or whose older checkpoints and namespaces moved into segments."""

import json
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COLD_NAMESPACES, READABLE_EXPORTS, SEGMENTS
from storage.model import Tenant
from storage.scope import OperatorScope
from storage.service import Store, StoreOptions
from tests.support.features import switch_on
from tests.support.operations import STATE
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

WHOLE = "/threads/t1/trajectory?namespaces=all&view=channels"


@pytest.fixture
def serving_store(connections, root_key):
    options = StoreOptions(blobs=MemoryBlobStore(), archive=MemoryBlobStore())
    return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options)


@pytest.fixture
async def client(serving_store):
    for feature in (SEGMENTS, COLD_NAMESPACES, READABLE_EXPORTS):
        await switch_on(serving_store, feature)
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    permissions = (*STATE, "state:export", "subject:act_as", "tenant:admin")
    key, text = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=permissions, now=now, tenant_id=tenant.tenant_id)
    )
    await serving_store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, key)
    # Without the lifespan: no loop works on jobs, so that a test says when one is worked on.
    transport = httpx.ASGITransport(create_app(settings(), store=serving_store))
    headers = {"Authorization": f"Bearer {text}", "Stateroom-Subject": "user-1"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test/v1", headers=headers) as made:
        yield made


async def worked(client) -> None:
    """A root that worked before and after three sub-agents, with pending writes."""
    await saved(client, "", 0)
    for number in range(3):
        for step in range(3):
            await saved(client, f"agent-{number}", step, status="done" if step == 2 else "active")
        await saved(client, "", number + 1)


async def saved(client, namespace, step, status="active") -> None:
    body = {"state": {"n": list(range(step)), "of": namespace}, "namespace": namespace, "status": status}
    answer = await client.post("/threads/t1/checkpoints", json=body)
    assert answer.status_code == 201, answer.text
    writes = {"writes": [{"channel": "n", "idx": 0, "value": step}], "namespace": namespace}
    place = f"/threads/t1/checkpoints/{answer.json()['checkpoint_id']}/writes/task"
    assert (await client.post(place, json=writes)).status_code == 200


async def told(client) -> list[dict]:
    answer = await client.post(WHOLE)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("query", ["", "?older_than_seconds=0&keep_last=1", "?older_than_seconds=0"])
async def test_what_moved_is_told_with_the_rest_as_it_was(client, serving_store, query):
    await worked(client)
    before = await told(client)
    assert len(before) == 13 + 2
    assert (await client.post(f"/threads/t1/archive{query}")).status_code == 202
    await serving_store.runner.run_due()
    shown = (await client.get("/threads/t1")).json()
    assert shown["tier"] == "archive" if not query else shown["segments"]["checkpoints"] > 0
    assert await told(client) == before
    last = before[-1]["checkpoint_id"]
    step = before[4]
    after = f"&checkpoint_id={last}&after={step['checkpoint_id']}&after_namespace={step['namespace']}"
    answer = await client.post(WHOLE + after)
    assert [json.loads(line) for line in answer.text.splitlines()][1:-1] == before[5:-1]
