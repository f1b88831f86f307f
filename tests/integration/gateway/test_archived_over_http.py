"""What a client gets over HTTP from an archived thread is what it got before, to the byte."""

import asyncio
import json
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import msgpack
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import SEGMENTS
from storage.model import Tenant
from storage.schemas.registry import Definition
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from storage.threads.thinning import ThinningRule
from tests.support.features import switch_on
from tests.support.operations import STATE, assert_problem
from tests.support.states import document
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

PACKED = "application/msgpack"
UNKNOWN_ID = "1f0c0000-0000-6000-8000-000000000001"
TOLD = ("etag", "stateroom-token", "content-type", "retry-after")


@pytest.fixture
async def serving_store(database, root_key):
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(blobs=MemoryBlobStore(), archive=MemoryBlobStore()),
    )
    yield opened
    await opened.close()


@pytest.fixture
async def app(serving_store):
    made = create_app(settings(), store=serving_store)
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
async def client(app, serving_store):
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    permissions = (*STATE, "subject:act_as")
    service, text = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=permissions, now=now, tenant_id=tenant.tenant_id)
    )
    await serving_store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
    headers = {"Authorization": f"Bearer {text}", "Stateroom-Subject": "user-1"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test/v1", headers=headers) as made:
        yield made


@pytest.fixture
async def scope(client):
    return Scope(UUID((await client.get("/whoami")).json()["tenant_id"]), "user-1")


async def ok(work):
    answer = await work
    assert answer.is_success, answer.text
    return answer.json()


async def fill(client):
    """A thread with a fork, changes, two namespaces, a delta channel, pending writes and values large and binary."""
    path = "/threads/t1/checkpoints"

    async def save(**body):
        headers = {"Content-Type": PACKED, **body.pop("headers", {})}
        return (await ok(client.post(path, content=msgpack.packb(body), headers=headers)))["checkpoint_id"]

    async def write(checkpoint_id, task, *writes):
        encoded = [{"idx": idx, "channel": channel, "value": value} for idx, channel, value in writes]
        body = msgpack.packb({"writes": encoded})
        await ok(client.post(f"{path}/{checkpoint_id}/writes/{task}", content=body, headers={"Content-Type": PACKED}))

    ids = [await save(state={"log": ["a"], "note": document("n"), "shot": bytes(range(256)) * 400}, agent="x")]
    await write(ids[0], "one", (0, "log", "b"), (1, "log", document("c")))
    ids.append(await save(state={"x": 1}, metadata={"k": [1, {"n": None}]}, step=4))
    ids.append(await save(state={"x": 2}, parent_id=ids[0], fork=True, delta_channels=["log"], status="waiting"))
    ids.append(await save(changes={"append": {"log": [1]}}, headers={"If-Match": f'"{ids[-1]}"'}))
    ids.append(await save(state={"n": document("sub")}, namespace="sub"))
    await write(ids[2], "two", (-3, "__interrupt__", {"ask": "sure?"}))
    return ids


async def bodies(client, ids):
    """What every reading route answers: status, headers that say something of the state, and the bytes of the body."""
    path = "/threads/t1/checkpoints"
    filters = (
        "",
        "view=state",
        "limit=2&view=state",
        "status=waiting",
        "step=4",
        "filter=%7B%22k%22:[1,%7B%22n%22:null%7D]%7D",
    )
    urls = [
        *(f"{path}/{each}{query}" for each in ("latest", *ids) for query in ("", "?view=none", "?pieces=refs")),
        f"{path}/latest?namespace=sub", f"{path}/{ids[4]}?namespace=sub",
        *(f"{path}?{query}" for query in filters),
        *(f"{path}/{each}/channel-history?channel=log&channel=x" for each in ("latest", *ids[:4])),
        *(f"{path}/{each}?history=log&history=x&view=channels" for each in ("latest", *ids[:4])),
        *(f"{path}/{each}/writes/{task}" for each in ids[:3] for task in ("one", "two")),
    ]  # fmt: skip
    found = {}
    for url in urls:
        for accept in (PACKED,) if "refs" in url else ("application/json", PACKED):
            at, page = url, 0
            while at is not None:
                answer = await client.get(at, headers={"Accept": accept})
                told = {name: answer.headers[name] for name in TOLD if name in answer.headers}
                problem = answer.headers["content-type"] == "application/problem+json"
                found[url, accept, page] = (
                    answer.status_code,
                    told,
                    answer.json()["code"] if problem else answer.content,
                )
                content = msgpack.unpackb(answer.content) if accept == PACKED and not problem else answer.json()
                cursor = content.get("next_cursor")
                at, page = (f"{url}&cursor={cursor}" if cursor else None), page + 1
    return found


async def test_bodies_are_the_same_before_from_the_archive_and_after(client, scope, serving_store):
    ids = await fill(client)
    hot = await bodies(client, ids)
    assert {status for status, *_ in hot.values()} == {200, 404}
    await serving_store.archives.archive(scope, "t1")
    assert (await ok(client.get("/threads/t1")))["tier"] == "archive"
    assert await bodies(client, ids) == hot
    assert (await ok(client.get("/threads/t1")))["tier"] == "archive"
    await serving_store.archives.restore(scope, "t1")
    assert (await ok(client.get("/threads/t1")))["tier"] == "hot"
    assert await bodies(client, ids) == hot


async def test_what_is_in_a_segment_is_converted_and_comes_with_its_artifacts(client, scope, serving_store):
    await switch_on(serving_store, SEGMENTS)
    rename = [{"op": "rename", "from": "/shot", "to": "/picture"}]
    for number, definition in ((1, Definition()), (2, Definition(up=rename))):
        await serving_store.state_schemas.put(TenantScope(scope.tenant_id), "travel", number, definition)
    named = {"Content-Type": "image/png", "Stateroom-Artifact-Name": "shot.png"}
    artifact = await ok(client.post("/threads/t1/artifacts", content=b"\x89PNG", headers=named))
    large = bytes(range(256)) * 1024
    ids = []
    for number in range(3):
        state = {"shot": artifact["pointer"], "blob": large, "n": number}
        body = {"state": state, "state_schema": "travel", "state_version": 1}
        headers = {"Content-Type": PACKED}
        saved = await ok(client.post("/threads/t1/checkpoints", content=msgpack.packb(body), headers=headers))
        ids.append(saved["checkpoint_id"])

    async def read():
        found = []
        for resolve in ("inline", "previews", "pointers"):
            for pieces in ("refs", "resolved"):
                url = f"/threads/t1/checkpoints/{ids[0]}?resolve={resolve}&pieces={pieces}"
                answer = await client.get(url, headers={"Accept": PACKED, "Accept-State-Version": "2"})
                assert answer.status_code == 200, answer.text
                found.append(answer.content)
        return found

    hot = await read()
    shown = msgpack.unpackb(hot[0])
    assert (shown["state_version"], set(shown["state"])) == (2, {"picture", "blob", "n"})
    assert shown["artifacts"][artifact["artifact_id"]]["data"] == b"\x89PNG"
    moved = await serving_store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
    assert moved.checkpoints == 2
    assert await read() == hot
    assert (await ok(client.get("/threads/t1")))["segments"]["checkpoints"] == 2


async def test_a_frozen_thread_answers_409_and_when_to_ask_again(client, scope, serving_store):
    ids = await fill(client)
    await serving_store.archives.archive(scope, "t1", storage_class="GLACIER")
    path = "/threads/t1/checkpoints"
    for url in (f"{path}/latest", f"{path}/{ids[0]}", path, f"{path}/latest/channel-history?channel=log"):
        answer = await client.get(url)
        problem = assert_problem(answer, 409, "thread-archived")
        assert (problem["retryable"], problem["state"]) == (True, "frozen")
        assert int(answer.headers["retry-after"]) >= 3600
        assert "progress" not in problem
    assert_problem(await client.get(path, headers={"Stateroom-Subject": "user-2"}), 404)
    assert_problem(await client.get(f"{path}/latest", headers={"Stateroom-Subject": "user-2"}), 404)


async def test_a_load_gives_what_the_load_and_the_histories_give_apart(client):
    await fill(client)
    path = "/threads/t1/checkpoints/latest"
    for accept, decoded in (("application/json", json.loads), (PACKED, msgpack.unpackb)):
        headers = {"Accept": accept}

        async def ok(url, headers=headers):
            answer = await client.get(url, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer

        apart = decoded((await ok(f"{path}/channel-history?channel=log&channel=x&pieces=refs")).content)
        for view in ("state", "channels", "none"):
            alone = await ok(f"{path}?view={view}&pieces=refs")
            known = {"If-None-Match": alone.headers["etag"], **headers}
            loaded = await ok(f"{path}?view={view}&pieces=refs&history=log&history=x", known)
            assert decoded(loaded.content) == decoded(alone.content) | {"history": apart}
            assert [loaded.headers.get(each) for each in TOLD] == [alone.headers.get(each) for each in TOLD]
            newer = decoded((await ok(f"{path}?view={view}&history=log&history=x&mark={apart['mark']}")).content)
            assert newer["history"]["channels"]["log"] == {"writes": [], "continues": True}


async def test_listings_show_archived_threads_and_not_their_checkpoints(client, scope, serving_store):
    await fill(client)
    [before] = (await ok(client.get("/threads")))["threads"]
    await ok(client.post("/threads/t2/checkpoints", json={"state": {"n": 1}}))
    await serving_store.archives.archive(scope, "t1")
    [shown] = (await ok(client.get("/threads?tier=archive")))["threads"]
    assert shown == before | {"tier": "archive"}
    assert [each["thread_id"] for each in (await ok(client.get("/threads?tier=hot")))["threads"]] == ["t2"]
    found = (await ok(client.get("/checkpoints")))["checkpoints"]
    assert {each["thread_id"] for each in found} == {"t2"}
    with_id = await ok(client.get(f"/threads/t1/checkpoints/{before['head_id']}"))
    assert with_id["thread_id"] == "t1"
    assert_problem(await client.get(f"/threads/t1/checkpoints/{UNKNOWN_ID}"), 404, "checkpoint-not-found")
