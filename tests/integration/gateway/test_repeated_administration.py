"""Administration with an Idempotency-Key: however often a request comes, it has one effect."""

import asyncio
from uuid import uuid4

import httpx
import pytest

from tests.support.gateway import GatewayProcess
from tests.support.tenants import new_tenant

AT_ONCE = 8


@pytest.fixture
async def tenant(running_gateway: GatewayProcess):
    """An administrator of a tenant of its own, with a key to rotate, and an operator."""
    async with httpx.AsyncClient(base_url=running_gateway.url, timeout=60) as operator:
        operator.headers["Authorization"] = f"Bearer {running_gateway.operator_key}"
        made = new_tenant(running_gateway.url, running_gateway.operator_key)
        async with httpx.AsyncClient(base_url=running_gateway.url, timeout=60) as client:
            client.headers["Authorization"] = f"Bearer {made['api_key']}"
            for subject in ("user-1", "user-2"):
                saved = await client.post(
                    "/v1/threads/t/checkpoints", json={"state": {"n": 1}}, headers={"Stateroom-Subject": subject}
                )
                assert saved.status_code == 201
            yield client, operator


def named(word=None):
    return {"Idempotency-Key": word or f"again-{uuid4()}"}


async def at_once(client, path, body, headers):
    return await asyncio.gather(*(client.post(path, json=body, headers=headers) for _ in range(AT_ONCE)))


async def test_an_api_key_is_made_once_and_its_secret_shown_once(tenant):
    client, _ = tenant
    body = {"kind": "subject", "name": "laptop", "subject_id": "user-1", "expires_at": "2100-01-01T00:00:00Z"}
    headers = named()
    first = await client.post("/v1/api-keys", json=body, headers=headers)
    again = await client.post("/v1/api-keys", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "api_key": None}
    own = {"Authorization": f"Bearer {first.json()['api_key']}"}
    assert (await client.get("/v1/whoami", headers=own)).json()["key_id"] == first.json()["key_id"]
    assert len((await client.get("/v1/api-keys")).json()["api_keys"]) == 3
    assert (await client.post("/v1/api-keys", json=body, headers=named())).status_code == 201
    assert (await client.post("/v1/api-keys", json=body)).status_code == 201


async def test_the_same_key_at_the_same_moment_makes_one(tenant):
    client, operator = tenant
    name = f"Example {uuid4()}"
    for caller, path, body, members in (
        (client, "/v1/api-keys", {"kind": "service", "name": name}, "api_keys"),
        (operator, "/v1/admin/tenants", {"name": name}, "tenants"),
    ):
        answers = await at_once(caller, path, body, named())
        assert sorted(each.status_code for each in answers) == [200] * (AT_ONCE - 1) + [201]
        assert len([each for each in answers if each.json()["api_key"]]) == 1
        listed = (await caller.get(path)).json()[members]
        assert [each["name"] for each in listed].count(name) == 1


@pytest.mark.parametrize("body", [{"level": "tenant"}, {"level": "subject", "subject_id": "user-1"}])
async def test_a_key_is_rotated_once(tenant, body):
    client, _ = tenant
    headers = named()
    answers = await at_once(client, "/v1/keys:rotate", body, headers)
    assert {each.status_code for each in answers} == {202}
    assert {(each.json()["job_id"], each.json()["key_version"]) for each in answers} == {
        (answers[0].json()["job_id"], 2)
    }
    later = await client.post("/v1/keys:rotate", json=body, headers=named())
    assert later.json()["key_version"] == 3
    again = (await client.post("/v1/keys:rotate", json=body, headers=headers)).json()
    assert (again["job_id"], again["key_version"]) == (answers[0].json()["job_id"], 2)
    job = await client.get(f"/v1/jobs/{answers[0].json()['job_id']}")
    assert job.json()["kind"] in {"rewrap-subject-keys", "reseal"}


async def test_another_request_under_the_same_key_is_refused_and_has_no_effect(tenant):
    client, operator = tenant
    for caller, path, first, other in (
        (client, "/v1/api-keys", {"kind": "service", "name": "a"}, {"kind": "service", "name": "b"}),
        (client, "/v1/keys:rotate", {"level": "tenant"}, {"level": "subject", "subject_id": "user-1"}),
        (operator, "/v1/admin/tenants", {"name": f"a-{uuid4()}"}, {"name": f"b-{uuid4()}"}),
    ):
        headers = named()
        assert (await caller.post(path, json=first, headers=headers)).is_success
        refused = await caller.post(path, json=other, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused")
        assert (await caller.post(path, json=first, headers=headers)).is_success
    shown = (await client.get("/v1/keys", params={"subject_id": "user-1"})).json()
    assert {each["key_version"] for each in shown["subject_keys"]} == {1}


async def test_a_key_is_good_for_one_tenant_and_must_be_one(tenant):
    client, operator = tenant
    headers = named()
    body = {"kind": "service"}
    first = await client.post("/v1/api-keys", json=body, headers=headers)
    other = await operator.post("/v1/admin/tenants", json={"name": f"Other {uuid4()}"}, headers=headers)
    theirs = {"Authorization": f"Bearer {other.json()['api_key']}", **headers}
    second = await client.post("/v1/api-keys", json=body, headers=theirs)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["key_id"] != second.json()["key_id"]
    for path, sent in (("/v1/api-keys", body), ("/v1/keys:rotate", {"level": "tenant"})):
        refused = await client.post(path, json=sent, headers=named("a key"))
        assert (refused.status_code, refused.json()["errors"][0]["header"]) == (422, "Idempotency-Key")


async def test_the_other_administrative_requests_are_repeated_by_their_nature(tenant):
    client, operator = tenant
    shreds = [await client.post("/v1/subjects/user-2/shred", json={"confirm": "user-2"}) for _ in range(2)]
    assert shreds[0].json()["job_id"] == shreds[1].json()["job_id"]
    tenant_id = (await client.get("/v1/whoami")).json()["tenant_id"]
    path = f"/v1/admin/tenants/{tenant_id}/shred"
    shreds = [await operator.post(path, json={"confirm": tenant_id}) for _ in range(2)]
    assert shreds[0].json()["job_id"] == shreds[1].json()["job_id"]
