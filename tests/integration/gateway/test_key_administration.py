"""Keys, operators and tenants over HTTP: nobody climbs, nobody is locked out, and a tenant can be stopped."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from tests.support.operations import assert_problem, key_id
from tests.support.production import ProductionGateway, serving
from tests.support.tenants import new_tenant

STATE = {"state": {"n": 1}}
PATH = "/v1/threads/t/checkpoints"
SUBJECT = {"Stateroom-Subject": "user-1"}


@pytest.fixture(scope="module")
async def gateways(deployment, launcher, s3_server) -> AsyncIterator[tuple[ProductionGateway, ProductionGateway]]:
    with_files = deployment.with_buckets(s3_server.url())
    async with serving(launcher, with_files) as one, serving(launcher, with_files) as other:
        yield one, other


@pytest.fixture
async def call(gateways):
    """A request with a key, at the first gateway or at the second."""
    async with (
        httpx.AsyncClient(base_url=gateways[0].url, timeout=30) as one,
        httpx.AsyncClient(base_url=gateways[1].url, timeout=30) as other,
    ):

        async def call(key: str, method: str, path: str, *, second: bool = False, headers=None, **more):
            headers = {"Authorization": f"Bearer {key}", **(headers or {})}
            return await (other if second else one).request(method, path, headers=headers, **more)

        yield call


@pytest.fixture
def operator_key(deployment) -> str:
    return deployment.operator_key


@pytest.fixture
def tenant(gateways, operator_key):
    return new_tenant(gateways[0].url, operator_key)


async def make(call, key: str, permissions: list[str], **more):
    return await call(key, "POST", "/v1/api-keys", json={"kind": "service", "permissions": permissions, **more})


async def actions(call, key: str, path: str) -> list[tuple[str, str]]:
    events = (await call(key, "GET", f"{path}?limit=1000")).json()["events"]
    return [(each["action"], each["target"]) for each in events]


async def test_a_key_that_administers_makes_none_that_may_do_more_than_it_grants(call, tenant):
    made = (await make(call, tenant["api_key"], ["tenant:admin"])).json()
    assert made["grants"] == ["tenant:admin"]
    climber = made["api_key"]
    for body in (
        {"permissions": ["state:read", "subject:act_as"]},
        {"permissions": ["tenant:admin"], "grants": ["state:read"]},
        {"kind": "subject", "subject_id": "user-1", "permissions": ["state:read"]},
    ):
        answer = await call(climber, "POST", "/v1/api-keys", json={"kind": "service", **body})
        problem = assert_problem(answer, 403, "permission-denied")
        assert "state:read" in problem["detail"]
    assert (await make(call, climber, ["tenant:admin"])).status_code == 201
    assert_problem(await call(climber, "GET", f"{PATH}/latest", headers=SUBJECT), 403, "permission-denied")


async def test_a_founding_key_opens_no_state_and_makes_the_key_that_does(call, tenant):
    founding = tenant["founding_key"]
    who = (await call(founding, "GET", "/v1/whoami")).json()
    assert who["permissions"] == ["tenant:admin"]
    assert who["grants"] == ["state:delete", "state:read", "state:write", "subject:act_as", "tenant:admin"]
    assert_problem(await call(founding, "POST", PATH, json=STATE, headers=SUBJECT), 403, "permission-denied")
    delegate = (await make(call, founding, ["tenant:admin"], grants=["state:read", "state:write"])).json()["api_key"]
    agent = (
        await call(
            delegate,
            "POST",
            "/v1/api-keys",
            json={"kind": "subject", "subject_id": "user-1", "permissions": ["state:write"]},
        )
    ).json()
    assert agent["grants"] == ["state:write"]
    assert (await call(agent["api_key"], "POST", PATH, json=STATE)).status_code == 201
    assert_problem(await make(call, delegate, ["state:delete"]), 403, "permission-denied")


async def test_an_operator_lists_and_ends_operators_keys_and_not_the_last(call, operator_key):
    listed = (await call(operator_key, "GET", "/v1/admin/api-keys")).json()["api_keys"]
    assert [each["status"] for each in listed if each["key_id"] == key_id(operator_key)] == ["active"]
    assert all(each["tenant_id"] is None and "api_key" not in each for each in listed)
    own = f"/v1/admin/api-keys/{key_id(operator_key)}"
    assert_problem(await call(operator_key, "DELETE", own), 409, "last-admin-key")
    assert (await call(operator_key, "GET", "/v1/admin/tenants")).status_code == 200
    assert_problem(await call(operator_key, "DELETE", "/v1/admin/api-keys/nobody"), 404, "not-found")


async def test_a_tenants_keys_are_not_the_operators_to_list_or_end(call, operator_key, tenant):
    listed = (await call(operator_key, "GET", "/v1/admin/api-keys?limit=1000")).text
    assert key_id(tenant["api_key"]) not in listed
    path = f"/v1/admin/api-keys/{key_id(tenant['api_key'])}"
    assert_problem(await call(operator_key, "DELETE", path), 404, "not-found")
    assert_problem(await call(tenant["api_key"], "GET", "/v1/admin/api-keys"), 403, "permission-denied")


async def test_a_tenant_that_lost_its_last_key_is_recovered_on_the_record(call, operator_key, tenant):
    both = {key_id(tenant["founding_key"]), key_id(tenant["api_key"])}
    path = f"/v1/api-keys/{key_id(tenant['founding_key'])}"
    assert (await call(tenant["api_key"], "DELETE", path)).status_code == 204
    last = f"/v1/api-keys/{key_id(tenant['api_key'])}"
    assert_problem(await call(tenant["api_key"], "DELETE", last), 409, "last-admin-key")
    assert (await call(tenant["api_key"], "DELETE", f"{last}?force=true")).status_code == 204
    assert_problem(await call(tenant["api_key"], "GET", "/v1/whoami"), 401, "unauthenticated")

    recover, named = f"/v1/admin/tenants/{tenant['tenant_id']}/recover", {"Idempotency-Key": uuid4().hex}
    body = {"reason": "ticket 513"}
    made = await call(operator_key, "POST", recover, json=body, headers=named)
    again = await call(operator_key, "POST", recover, json=body, headers=named)
    assert (made.status_code, again.status_code, again.json()["api_key"]) == (201, 200, None)
    key = made.json()["api_key"]
    assert made.json()["permissions"] == ["tenant:admin"]
    assert_problem(await call(key, "GET", f"{PATH}/latest", headers=SUBJECT), 403, "permission-denied")
    assert (await make(call, key, ["state:read", "subject:act_as"])).status_code == 201
    shown = {each["key_id"] for each in (await call(key, "GET", "/v1/api-keys")).json()["api_keys"]}
    assert both | {key_id(key)} <= shown
    for reader, log in ((key, "/v1/audit"), (operator_key, "/v1/admin/audit")):
        found = await actions(call, reader, log)
        assert found.count(("tenant.recover", f"tenant:{tenant['tenant_id']}")) == 1
    assert "ticket 513" in (await call(key, "GET", "/v1/audit?limit=1000")).text
    nobody = f"/v1/admin/tenants/{uuid4()}/recover"
    assert_problem(await call(operator_key, "POST", nobody, json=body), 404, "not-found")
    assert_problem(await call(key, "POST", recover, json=body), 403, "permission-denied")


async def test_a_suspended_tenants_keys_are_refused_in_every_process_until_it_is_resumed(call, operator_key, tenant):
    key, path = tenant["api_key"], f"/v1/admin/tenants/{tenant['tenant_id']}"
    url = await _signed_url(call, key)
    for second in (False, True):
        assert (await call(key, "POST", PATH, json=STATE, headers=SUBJECT, second=second)).status_code == 201
    assert (await call(key, "GET", url)).status_code == 200
    suspended = await call(operator_key, "POST", f"{path}/suspend", json={"reason": "ticket 512"})
    assert (suspended.status_code, suspended.json()["suspended_at"] is not None) == (200, True)
    for method, where in (("GET", f"{PATH}/latest"), ("POST", PATH), ("GET", "/v1/whoami"), ("GET", "/v1/audit")):
        assert_problem(await call(key, method, where, headers=SUBJECT), 403, "tenant-suspended")
    assert_problem(await call(key, "GET", url), 403, "artifact-url-invalid")
    async with asyncio.timeout(10):  # the other one remembers a key for five seconds
        while (answer := await call(key, "GET", "/v1/whoami", second=True)).status_code == 200:
            pass
    assert_problem(answer, 403, "tenant-suspended")
    assert (await call(operator_key, "GET", path)).json()["suspended_at"] == suspended.json()["suspended_at"]

    assert (await call(operator_key, "POST", f"{path}/resume")).json()["suspended_at"] is None
    loaded = await call(key, "GET", f"{PATH}/latest", headers=SUBJECT)
    assert loaded.json()["state"] == STATE["state"]
    assert (await call(key, "GET", url)).status_code == 200
    for reader, log in ((key, "/v1/audit"), (operator_key, "/v1/admin/audit")):
        found = [action for action, target in await actions(call, reader, log) if tenant["tenant_id"] in target]
        assert found[-2:] == ["tenant.suspend", "tenant.resume"]


async def _signed_url(call, key: str) -> str:
    headers = SUBJECT | {"Stateroom-Artifact-Name": "file"}
    stored = await call(key, "POST", "/v1/threads/t/artifacts", content=b"file", headers=headers)
    assert stored.status_code == 201, stored.text
    made = await call(key, "POST", f"/v1/artifacts/{stored.json()['artifact_id']}/urls", json={}, headers=SUBJECT)
    assert made.status_code in {200, 201}, made.text
    return httpx.URL(made.json()["url"]).raw_path.decode()


async def test_a_tenants_name_is_its_own_and_can_change(call, operator_key, tenant):
    path, taken = f"/v1/admin/tenants/{tenant['tenant_id']}", f"taken-{uuid4()}"
    assert (await call(operator_key, "POST", "/v1/admin/tenants", json={"name": taken})).status_code == 201
    for method, where in (("POST", "/v1/admin/tenants"), ("PATCH", path)):
        assert_problem(await call(operator_key, method, where, json={"name": taken}), 409, "tenant-name-taken")
    renamed = await call(operator_key, "PATCH", path, json={"name": f"renamed-{uuid4()}"})
    assert (renamed.status_code, renamed.json()["tenant_id"]) == (200, tenant["tenant_id"])
    assert (await call(operator_key, "PATCH", path, json={"name": renamed.json()["name"]})).status_code == 200
    assert ("tenant.rename", f"tenant:{tenant['tenant_id']}") in await actions(call, tenant["api_key"], "/v1/audit")
    names = [f"both-{uuid4()}"] * 8
    at_once = await asyncio.gather(
        *(call(operator_key, "POST", "/v1/admin/tenants", json={"name": name}) for name in names)
    )
    assert sorted(each.status_code for each in at_once) == [201, *[409] * 7]
