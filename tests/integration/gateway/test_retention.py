"""Retention over HTTP and on the command line: who may say what, what is refused, and what a preview shows."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest

from tests.support.operations import assert_problem
from tests.support.production import ProductionGateway, serving
from tests.support.tenants import new_tenant

DAY = 86_400
WAIT_SECONDS = 30


@pytest.fixture(scope="module")
async def gateway(deployment, launcher) -> AsyncIterator[ProductionGateway]:
    async with serving(launcher, deployment) as running:
        yield running


@pytest.fixture
async def operator(gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {gateway.deployment.operator_key}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
async def tenant(gateway) -> dict[str, str]:
    return new_tenant(gateway.url, gateway.deployment.operator_key)


@pytest.fixture
async def client(gateway, tenant) -> AsyncIterator[httpx.AsyncClient]:
    """With every permission, acting for a user."""
    async with gateway.client(api_key=tenant["api_key"]) as opened:
        opened.headers["Stateroom-Subject"] = "user-1"
        yield opened


async def as_subject(gateway, client, *permissions):
    body = {"kind": "subject", "subject_id": "user-1", "name": "limited", "permissions": list(permissions)}
    made = await client.post("/v1/api-keys", json=body)
    assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['api_key']}"}
    return httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30)


async def thread(client, **parts):
    thread_id = f"t-{uuid4()}"
    saved = await client.post(f"/v1/threads/{thread_id}/checkpoints", json={"state": {"note": 1}, **parts})
    assert saved.status_code == 201, saved.text
    return thread_id


async def test_levels_are_merged_and_shown(client, operator, tenant):
    own = await thread(client, agent="travel")
    path = f"/v1/threads/{own}/retention"
    nothing = (await client.get("/v1/retention")).json()
    assert (nothing["policy"], nothing["agents"], nothing["updated_at"]) == ({}, [], None)
    assert nothing["effective"]["on_expiry"] == "archive"

    said = await client.put("/v1/retention", json={"idle_ttl_seconds": 90 * DAY, "thinning": {"every": 10}})
    assert said.status_code == 200, said.text
    assert (await client.get("/v1/retention")).json() == said.json()
    of_agent = await client.put("/v1/retention?agent=travel", json={"idle_ttl_seconds": 30 * DAY})
    assert of_agent.json()["effective"]["thinning"] == {"every": 10}
    assert of_agent.json()["agents"] == ["travel"]
    of_thread = (await client.put(path, json={"done_ttl_seconds": DAY, "on_expiry": "delete"})).json()
    assert of_thread["effective"]["idle_ttl_seconds"] == 30 * DAY
    assert of_thread["next"]["reason"] == "thinning"
    assert (await client.get(path)).json()["policy"] == {"done_ttl_seconds": DAY, "on_expiry": "delete"}

    ceilings = f"/v1/admin/tenants/{tenant['tenant_id']}/retention-ceilings"
    capped = await operator.put(ceilings, json={"idle_ttl_seconds": 7 * DAY})
    assert (capped.status_code, capped.json()["ceilings"]) == (200, {"idle_ttl_seconds": 7 * DAY})
    assert (await operator.get(ceilings)).json() == capped.json()
    assert (await client.get(path)).json()["effective"]["idle_ttl_seconds"] == 7 * DAY
    assert (await client.get("/v1/retention")).json()["ceilings"] == {"idle_ttl_seconds": 7 * DAY}
    assert_problem(await operator.get(ceilings.replace(tenant["tenant_id"], str(uuid4()))), 404, "not-found")
    assert_problem(await client.get(f"/v1/threads/{uuid4()}/retention"), 404, "thread-not-found")


async def test_a_hold_refuses_every_removal_until_it_is_lifted(client, operator, tenant):
    held = await thread(client, run_id="run-1")
    path = f"/v1/threads/{held}/retention"
    assert (await client.put(path, json={"legal_hold": True})).json()["effective"]["legal_hold"] is True
    # What does not mention the hold does not lift it.
    assert (await client.put(path, json={})).json()["effective"]["legal_hold"] is True
    confirmed = {"confirm": tenant["tenant_id"]}
    for refused in (
        await client.delete(f"/v1/threads/{held}"),
        await client.post("/v1/threads:prune", json={"thread_ids": [held], "strategy": "delete"}),
        await client.post("/v1/runs:delete", json={"run_ids": ["run-1"]}),
        await client.post("/v1/subjects/user-1/shred", json={"confirm": "user-1"}),
        await operator.post(f"/v1/admin/tenants/{tenant['tenant_id']}/shred", json=confirmed),
    ):
        assert_problem(refused, 409, "legal-hold")
    assert (await client.get(f"/v1/threads/{held}/checkpoints/latest")).status_code == 200
    assert (await client.put(path, json={"legal_hold": False})).json()["effective"]["legal_hold"] is False
    assert (await client.delete(f"/v1/threads/{held}")).status_code in {200, 204}


async def test_who_may_not_delete_sets_no_policy_that_does(gateway, client):
    own = await thread(client)
    path = f"/v1/threads/{own}/retention"
    async with await as_subject(gateway, client, "state:read", "state:write") as writer:
        for policy in (
            {"idle_ttl_seconds": 1}, {"on_expiry": "delete"}, {"checkpoints_max": 1}, {"segment_ttl_seconds": 1},
        ):  # fmt: skip
            assert_problem(await writer.put(path, json=policy), 403, "permission-denied")
        archiving = {"idle_ttl_seconds": DAY, "on_expiry": "archive"}
        assert (await writer.put(path, json=archiving)).json()["policy"] == archiving
        assert_problem(await writer.put(path, json={"legal_hold": True}), 403, "permission-denied")
        assert_problem(await writer.get("/v1/retention"), 403, "permission-denied")
        assert_problem(await writer.put("/v1/retention", json={}), 403, "permission-denied")
        assert_problem(await writer.get("/v1/retention/preview"), 403, "permission-denied")
        # Nor takes one back that keeps what would be deleted without it.
        longer = {"on_expiry": "delete", "idle_ttl_seconds": 9 * DAY}
        await client.put("/v1/retention", json={"on_expiry": "delete", "idle_ttl_seconds": 2 * DAY})
        await client.put(path, json=longer)
        assert_problem(await writer.put(path, json={}), 403, "permission-denied")
        assert (await writer.get(path)).json()["policy"] == longer
        keeping = {"on_expiry": "archive", "idle_ttl_seconds": 2 * DAY}
        assert (await writer.put(path, json=keeping)).status_code == 200
        await client.put("/v1/retention", json={})
    async with await as_subject(gateway, client, "state:read", "state:write", "state:delete") as owner:
        assert (await owner.put(path, json={"checkpoints_max": 1})).status_code == 200
        await client.put(path, json={"legal_hold": True})
        assert_problem(await owner.put(path, json={"legal_hold": False}), 403, "permission-denied")
        assert (await owner.put(path, json={})).json()["effective"]["legal_hold"] is True


@pytest.mark.parametrize(
    ("policy", "pointer"),
    [
        ({"idle_ttl_seconds": 0}, "/idle_ttl_seconds"),
        ({"thinning": {}}, "/thinning"),
        ({"archive_storage_class": "FREEZER"}, "/archive_storage_class"),
        ({"on_expiry": "burn"}, "/on_expiry"),
    ],
)
async def test_a_policy_that_means_nothing_is_refused_where_it_does(client, policy, pointer):
    problem = assert_problem(await client.put("/v1/retention", json=policy), 422, "invalid-request")
    assert problem["errors"][0]["pointer"] == pointer
    drafted = await client.get("/v1/retention/preview", params={"draft": json.dumps(policy)})
    assert assert_problem(drafted, 422, "invalid-request")["errors"][0]["parameter"] == "draft"


async def test_a_preview_counts_page_by_page(client):
    for number in range(5):
        await thread(client, agent="travel" if number % 2 else "other")
    everything = (await client.get("/v1/retention/preview")).json()
    assert (everything["threads"], everything["actions"], everything["next_cursor"]) == (5, [], None)
    draft = {"draft": json.dumps({"thinning": {"keep_last": 1}, "idle_ttl_seconds": 1, "on_expiry": "delete"})}
    async with asyncio.timeout(WAIT_SECONDS):  # a second later: the preview asks about this moment
        while True:
            whole = (await client.get("/v1/retention/preview", params=draft)).json()
            if [(each["action"], each["threads"]) for each in whole["actions"]] == [("delete", 5)]:
                break
    [foreseen] = whole["actions"]
    assert (foreseen["threads"], whole["threads"]) == (5, 5)
    assert foreseen["bytes"] > 0
    params, seen = {**draft, "limit": 2}, []
    while True:
        page = (await client.get("/v1/retention/preview", params=params)).json()
        seen.append(page)
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert [each["threads"] for each in seen] == [2, 2, 1]
    assert {each["at"] for each in seen} == {seen[0]["at"]}
    assert sum(each["actions"][0]["bytes"] for each in seen) == foreseen["bytes"]
    elsewhere = {"cursor": seen[0]["next_cursor"]}
    assert_problem(await client.get("/v1/retention/preview", params=elsewhere), 422, "invalid-request")
    of_agent = await client.get("/v1/retention/preview", params={**draft, "agent": "travel"})
    assert of_agent.json()["actions"][0]["threads"] == 2


async def test_the_command_line_says_shows_and_previews(gateway, stateroom, client, tenant):
    environ = {"STATEROOM_API_KEY": tenant["api_key"], "STATEROOM_OPERATOR_KEY": gateway.deployment.operator_key}
    place = replace(gateway.deployment, api_key=tenant["api_key"], environ=gateway.deployment.environ | environ)
    here = SimpleNamespace(url=gateway.url, deployment=place)

    async def run(*arguments):
        done = await stateroom(here, "retention", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    own = await thread(client, agent="travel")
    await run("set", "--idle-ttl", "90d", "--thin-every", "10", "--keep-status", "failed", "--legal-hold")
    await run("set", "--thin-every", "none", "--done-ttl", "12h")
    shown = json.loads(await run("get", "--json"))
    assert shown["policy"] == {
        "idle_ttl_seconds": 90 * DAY,
        "done_ttl_seconds": DAY // 2,
        "thinning": {"keep_statuses": ["failed"]},
        "legal_hold": True,
    }
    await run("set", "--no-legal-hold", "--keep-last", "5")
    assert json.loads(await run("get", "--json"))["effective"]["legal_hold"] is False
    await run("set", "--thread", own, "--checkpoints-max", "7")
    assert b"checkpoints_max" in await run("get", "--thread", own)
    await run("set", "--agent", "travel", "--archive-class", "GLACIER")
    assert "travel" in json.loads(await run("get", "--json"))["agents"]
    await client.put(f"/v1/threads/{own}/retention", json={"legal_hold": True})
    preview = json.loads(await run("preview", "--idle-ttl", "1s", "--on-expiry", "delete", "--json"))
    assert (preview["threads"], preview["actions"]) == (1, {})
    assert json.loads(await run("get", "--json"))["policy"]["idle_ttl_seconds"] == 90 * DAY, "a draft says nothing"
    assert b"7d" in await run("ceilings", tenant["tenant_id"], "--archive-ttl", "7d")
    both = await stateroom(here, "retention", "set", "--agent", "a", "--thread", "b", "--idle-ttl", "1d")
    assert both.returncode == 2
