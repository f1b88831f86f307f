"""Over HTTP: whose keys may export in clear, before an upgrade was finished and after it."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import uuid4

import httpx

from gateway.app import create_app
from gateway.authentication import api_keys
from storage.control.features import READABLE_EXPORTS
from storage.scope import OperatorScope
from storage.service import Store
from tests.support.features import switch_on
from tests.support.operations import assert_problem
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

EXPORTING = {"kind": "service", "permissions": ["state:export", "state:read"]}


@asynccontextmanager
async def gateway(database, root_key):
    """A gateway's store and how to ask it; with another one on the same database it is two processes of one build."""
    store = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=4, durable=False
    )
    transport = httpx.ASGITransport(create_app(settings(), store=store, background=False))

    async def ask(key: str, method: str, path: str, **more):
        async with httpx.AsyncClient(transport=transport, base_url="http://test/v1") as client:
            return await client.request(method, path, headers={"Authorization": f"Bearer {key}"}, **more)

    yield store, ask
    await store.close()


async def operator_of(store: Store) -> str:
    new = api_keys.NewKey(kind="operator", permissions=("operator",), now=datetime.now(UTC))
    record, text = api_keys.mint(PEPPERS, new)
    await store.tenants.add_key(OperatorScope(), record)
    return text


async def founded(ask, operator: str) -> dict:
    answer = await ask(operator, "POST", "/admin/tenants", json={"name": uuid4().hex})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def recovered(ask, operator: str, tenant_id: str) -> str:
    answer = await ask(operator, "POST", f"/admin/tenants/{tenant_id}/recover", json={"reason": "lost its keys"})
    assert answer.status_code == 201, answer.text
    return answer.json()["api_key"]


async def grants(ask, key: str) -> list[str]:
    return (await ask(key, "GET", "/whoami")).json()["grants"]


async def test_no_key_grants_exports_before_the_upgrade_was_finished(migrated_database, root_key):
    async with gateway(migrated_database, root_key) as (store, ask):
        operator = await operator_of(store)
        tenant = await founded(ask, operator)
        for key in (tenant["api_key"], await recovered(ask, operator, tenant["tenant_id"])):
            assert await grants(ask, key) == [
                "state:delete",
                "state:read",
                "state:write",
                "subject:act_as",
                "tenant:admin",
            ]
            assert_problem(await ask(key, "POST", "/api-keys", json=EXPORTING), 403, "permission-denied")


async def test_founding_and_recovered_keys_grant_exports_after_it(migrated_database, root_key):
    async with gateway(migrated_database, root_key) as (store, ask):
        operator = await operator_of(store)
        before = await founded(ask, operator)
        await switch_on(store, READABLE_EXPORTS)
        # A tenant from before exports once its operator says so, and not by itself.
        assert_problem(await ask(before["api_key"], "POST", "/api-keys", json=EXPORTING), 403, "permission-denied")
        for key in ((await founded(ask, operator))["api_key"], await recovered(ask, operator, before["tenant_id"])):
            assert "state:export" in await grants(ask, key)
            assert (await ask(key, "POST", "/api-keys", json=EXPORTING)).status_code == 201


async def test_a_key_that_grants_reading_does_not_grant_exporting(migrated_database, root_key):
    async with gateway(migrated_database, root_key) as (store, ask):
        await switch_on(store, READABLE_EXPORTS)
        tenant = await founded(ask, await operator_of(store))
        body = {"kind": "service", "permissions": ["tenant:admin"], "grants": ["state:read"]}
        maker = (await ask(tenant["api_key"], "POST", "/api-keys", json=body)).json()["api_key"]
        assert_problem(await ask(maker, "POST", "/api-keys", json=EXPORTING), 403, "permission-denied")
        reading = EXPORTING | {"permissions": ["state:read"]}
        assert (await ask(maker, "POST", "/api-keys", json=reading)).status_code == 201


async def test_a_process_that_has_not_read_yet_that_it_is_finished_says_so(migrated_database, root_key):
    async with (
        gateway(migrated_database, root_key) as (store, ask),
        gateway(migrated_database, root_key) as (_, ask_the_other),
    ):
        operator = await operator_of(store)
        await founded(ask_the_other, operator)  # it has read what is on
        await switch_on(store, READABLE_EXPORTS)
        key = (await founded(ask, operator))["api_key"]
        assert_problem(await ask_the_other(key, "POST", "/api-keys", json=EXPORTING), 409, "feature-off")
        assert (await ask(key, "POST", "/api-keys", json=EXPORTING)).status_code == 201
