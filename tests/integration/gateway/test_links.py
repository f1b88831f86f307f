"""Links of threads over HTTP: what a request may say, what shows, and who may do it."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import httpx2
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import MemoryRootKey
from gateway.app import create_app
from gateway.authentication import api_keys
from stateroom import AsyncClient
from storage.control.features import LINKS
from storage.model import Tenant
from storage.scope import OperatorScope, TenantScope
from storage.service import Store
from tests.support.features import switch_on
from tests.support.operations import STATE, assert_problem
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

Connect = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
SHARE = {"Stateroom-Client-Share": base64.b64encode(b"s" * 32).decode()}


@pytest.fixture
async def store(connections: AsyncEngine, root_key: MemoryRootKey) -> Store:
    made = Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID)
    await switch_on(made, LINKS)
    return made


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=datetime.now(UTC))


@pytest.fixture
async def service_key(store: Store, tenant: Tenant) -> str:
    permissions = (*STATE, "subject:act_as", "tenant:admin")
    new = api_keys.NewKey(
        kind="service", permissions=permissions, now=tenant.created_at, tenant_id=tenant.tenant_id, grants=permissions
    )
    key, text = api_keys.mint(PEPPERS, new)
    await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, key)
    return text


@pytest.fixture
def connect(store: Store) -> Connect:
    transport = httpx.ASGITransport(create_app(settings(), store=store))

    def open_for(api_key: str, subject: str | None = "user-1") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {api_key}"} | ({"Stateroom-Subject": subject} if subject else {})
        return httpx.AsyncClient(transport=transport, base_url="http://test/v1", headers=headers)

    return open_for


@pytest.fixture
async def client(connect: Connect, service_key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(service_key) as made:
        yield made


async def test_a_child_is_begun_from_a_checkpoint_and_shows_it(client):
    saved = await client.post("/threads/trip/checkpoints", json={"state": {"n": 1}})
    parent = {"thread_id": "trip", "checkpoint_id": saved.json()["checkpoint_id"]}
    made = await client.put("/threads/hotels/parent", json=parent)
    assert (made.status_code, made.headers["location"]) == (201, "/v1/threads/hotels")
    shown = {**parent, "namespace": "", "absent": False}
    assert made.json()["parent"] == shown
    again = await client.put("/threads/hotels/parent", json=parent)
    assert (again.status_code, again.json()["parent"]) == (200, shown)
    assert (await client.post("/threads/hotels/checkpoints", json={"state": {"n": 1}})).status_code == 201
    assert (await client.get("/threads/hotels")).json()["parent"] == shown
    assert "parent" not in (await client.get("/threads/trip")).json()
    assert [each.get("parent") for each in (await client.get("/threads")).json()["threads"]] == [shown, None]

    assert (await client.delete("/threads/trip")).status_code == 204
    assert (await client.get("/threads/hotels")).json()["parent"] == {**shown, "absent": True}
    for _ in range(2):
        assert (await client.delete("/threads/hotels/parent")).status_code == 204
    assert "parent" not in (await client.get("/threads/hotels")).json()
    assert_problem(await client.delete("/threads/trip/parent"), 404, "thread-not-found")


async def test_children_come_page_by_page_with_a_cursor_of_their_own(client):
    for number in range(5):
        assert (await client.put(f"/threads/c{number}/parent", json={"thread_id": "ünï/code"})).is_success
    path = "/threads/~w7xuw68vY29kZQ/children"
    first = (await client.get(path, params={"limit": 3})).json()
    rest = (await client.get(path, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [each["thread_id"] for page in (first, rest) for each in page["threads"]] == ["c4", "c3", "c2", "c1", "c0"]
    assert rest["next_cursor"] is None
    for other in ("/threads/other/children", "/threads"):
        refused = await client.get(other, params={"cursor": first["next_cursor"]})
        assert_problem(refused, 422, "invalid-request")
    assert (await client.get("/threads/other/children")).json() == {"threads": [], "next_cursor": None}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"thread_id": ""},
        {"thread_id": None},
        {"thread_id": "a\0b"},
        {"thread_id": "ü" * 200},
        {"thread_id": "a", "namespace": "x" * 1025},
        {"thread_id": "a", "namespace": "ü" * 1000},
        {"thread_id": "a", "namespace": None},
        {"thread_id": "a", "checkpoint_id": ""},
        {"thread_id": "a", "checkpoint_id": "ü" * 200},
        {"thread_id": "a", "tenant_id": "b"},
        [],
    ],
)
async def test_what_cannot_be_a_parent_is_a_fault_of_the_request(client, body):
    assert_problem(await client.put("/threads/child/parent", json=body), 422, "invalid-request")
    assert_problem(await client.get("/threads/child"), 404)


async def test_a_circle_and_too_many_ancestors_are_named(client):
    assert_problem(await client.put("/threads/a/parent", json={"thread_id": "a"}), 409, "link-circular")
    for number in range(1, 34):
        assert (await client.put(f"/threads/t{number}/parent", json={"thread_id": f"t{number - 1}"})).is_success
    refused = await client.put("/threads/t34/parent", json={"thread_id": "t33"})
    assert assert_problem(refused, 422, "limit-exceeded")["limit"] == "ANCESTORS_MAX"
    assert_problem(await client.put("/threads/t1/parent", json={"thread_id": "t20"}), 409, "link-circular")


async def test_a_thread_under_a_share_takes_it_to_be_linked(client):
    assert (await client.put("/threads/child/parent", json={"thread_id": "a"}, headers=SHARE)).status_code == 201
    for refused in (
        await client.put("/threads/child/parent", json={"thread_id": "b"}),
        await client.delete("/threads/child/parent"),
    ):
        assert_problem(refused, 400, "client-share-required")
    assert (await client.delete("/threads/child/parent", headers=SHARE)).status_code == 204


async def test_a_family_goes_as_a_whole_or_not_at_all(client):
    for child, parent in ("ba", "cb", "yx"):
        assert (await client.put(f"/threads/{child}/parent", json={"thread_id": parent})).is_success
    assert (await client.put("/threads/c/retention", json={"legal_hold": True})).is_success
    assert_problem(await client.delete("/threads/a", params={"family": "true"}), 409, "legal-hold")
    assert_problem(await client.put("/threads/c/parent", json={"thread_id": "x"}), 409, "legal-hold")
    assert_problem(await client.delete("/threads/c/parent"), 409, "legal-hold")
    assert (await client.put("/threads/c/retention", json={"legal_hold": False})).is_success
    for wrong in ({"family": "perhaps"}, {"families": "true"}):
        assert_problem(await client.delete("/threads/a", params=wrong), 422, "invalid-request")
    assert (await client.delete("/threads/a", params={"family": "true"})).status_code == 204
    assert [each["thread_id"] for each in (await client.get("/threads")).json()["threads"]] == ["y"]
    assert_problem(await client.delete("/threads/a", params={"family": "true"}), 404, "thread-not-found")
    assert (await client.delete("/threads/y", params={"family": "false"})).status_code == 204


async def test_linking_takes_the_right_to_write_and_listing_the_one_to_read(connect, client):
    keys = {}
    for permission in STATE:
        body = {"kind": "subject", "subject_id": "user-1", "name": "k", "permissions": [permission]}
        made = await client.post("/api-keys", json=body)
        assert made.status_code == 201, made.text
        keys[permission] = made.json()["api_key"]
    wanted = {
        "state:write": [("PUT", "/threads/c/parent", {"thread_id": "a"}), ("DELETE", "/threads/c/parent", None)],
        "state:read": [("GET", "/threads/a/children", None)],
        "state:delete": [("DELETE", "/threads/c?family=true", None)],
    }
    for permission, requests in wanted.items():
        for method, path, body in requests:
            for other, api_key in keys.items():
                async with connect(api_key, None) as caller:
                    answer = await caller.request(method, path, json=body)
                assert answer.is_success == (other == permission), (method, path, other, answer.text)


async def test_who_links_and_deletes_families_is_on_record(store, client, tenant):
    await client.put("/threads/child/parent", json={"thread_id": "trip"})
    await client.get("/threads/trip/children")
    await client.delete("/threads/child/parent")
    await client.put("/threads/child/parent", json={"thread_id": "trip"})
    await client.delete("/threads/trip", params={"family": "true"})
    await store.audit.flush()
    page = await store.audit.page(TenantScope(tenant.tenant_id), "tester", limit=100)
    batches = [each.event.detail["accesses"] for each in page.items if each.event.action == "access"]
    found = {(each["action"], each["target"], each["status"]) for batch in batches for each in batch}
    assert found == {
        ("link_thread", "subject/user-1/thread/child", 201),
        ("list_children", "subject/user-1/thread/trip", 200),
        ("unlink_thread", "subject/user-1/thread/child", 204),
        ("link_thread", "subject/user-1/thread/child", 200),
        ("delete_thread", "subject/user-1/thread/trip", 204),
    }


async def test_the_client_links_lists_unlinks_and_deletes_a_family(store, service_key):
    transport = httpx2.ASGITransport(create_app(settings(), store=store))
    async with AsyncClient("http://test", api_key=service_key, subject="user-1", transport=transport) as sdk:
        trip, hotels, flights = (sdk.thread(name) for name in ("trip", "hotels", "flights"))
        saved = await trip.save({"n": 1})
        made = await hotels.link("trip", checkpoint_id=saved.checkpoint_id)
        shown = made.parent
        assert (shown.thread_id, shown.checkpoint_id, shown.absent) == ("trip", saved.checkpoint_id, False)
        await flights.link("trip")
        assert [each.thread_id async for each in trip.children()] == ["flights", "hotels"]
        assert (await hotels.info()).parent == shown
        await flights.unlink()
        assert [each.thread_id async for each in trip.children()] == ["hotels"]
        assert await trip.delete(family=True)
        assert [each.thread_id async for each in sdk.threads()] == ["flights"]
