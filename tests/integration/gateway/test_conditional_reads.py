"""Who has what there is already is told so, and only then: pending writes come without another head."""

from uuid import uuid4

import pytest

from tests.support.production import serving


@pytest.fixture(scope="module")
async def gateway(deployment, launcher):
    async with serving(launcher, deployment) as running:
        yield running


@pytest.fixture
async def client(gateway):
    async with gateway.client() as opened:
        yield opened


@pytest.fixture
def path():
    return f"/v1/threads/{uuid4()}/checkpoints"


async def test_an_unchanged_head_is_not_sent_again_and_a_new_one_is(client, path):
    first = await client.post(path, json={"state": {"a": 1}})
    read = await client.get(f"{path}/latest")
    known = {"If-None-Match": read.headers["etag"]}
    again = await client.get(f"{path}/latest", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == read.headers["etag"] == first.headers["etag"]
    assert "content-length" not in again.headers
    for names in ("*", f'"other", W/{read.headers["etag"]}'):
        assert (await client.get(f"{path}/latest", headers={"If-None-Match": names})).status_code == 304
    assert (await client.get(f"{path}/latest", headers={"If-None-Match": '"other"'})).status_code == 200
    assert (await client.head(f"{path}/latest", headers=known)).status_code == 304
    assert (await client.post(path, json={"state": {"a": 2}})).status_code == 201
    moved = await client.get(f"{path}/latest", headers=known)
    assert (moved.status_code, moved.json()["state"]) == (200, {"a": 2})
    older = await client.get(
        f"{path}/{first.json()['checkpoint_id']}", headers={"If-None-Match": moved.headers["etag"]}
    )
    assert (older.status_code, older.json()["state"]) == (200, {"a": 1})


async def test_pending_writes_are_news_although_the_head_is_the_same(client, path):
    head = (await client.post(path, json={"state": {"a": 1}})).json()["checkpoint_id"]
    read = await client.get(f"{path}/latest")
    known = {"If-None-Match": read.headers["etag"], "Stateroom-Known-Token": read.headers["stateroom-thread-token"]}
    for view in ("state", "none"):
        assert (await client.get(f"{path}/latest", params={"view": view}, headers=known)).status_code == 304
    write = {"writes": [{"idx": 0, "channel": "a", "value": 2}], "status": "done"}
    assert (await client.post(f"{path}/{head}/writes/task", json=write)).status_code == 200
    for headers in (known, {"If-None-Match": read.headers["etag"]}):
        news = await client.get(f"{path}/latest", headers=headers)
        assert (news.status_code, news.headers["etag"]) == (200, read.headers["etag"])
        assert [each["value"] for each in news.json()["pending_writes"]] == [2]
        plain = await client.get(f"{path}/latest", params={"view": "none"}, headers=headers)
        assert plain.status_code == 200
    known["Stateroom-Known-Token"] = news.headers["stateroom-thread-token"]
    assert (await client.get(f"{path}/latest", headers=known)).status_code == 304


async def test_without_a_token_a_view_that_shows_no_writes_is_sent_whole(client, path):
    read = await client.post(path, json={"state": {"a": 1}})
    answer = await client.get(
        f"{path}/latest", params={"view": "none"}, headers={"If-None-Match": read.headers["etag"]}
    )
    assert answer.status_code == 200
