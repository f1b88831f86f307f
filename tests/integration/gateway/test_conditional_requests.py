"""Conditions of RFC 9110 (section 13.1): If-Match of saves, If-None-Match of reads.

A save goes on where the head has one of the tags: a tag, several, ``*``; a weak tag never matches. Who reads what he
has already is told so, and only then: pending writes come without another head.
"""

from uuid import uuid4

import pytest

from tests.support.operations import assert_problem
from tests.support.production import serving

OTHER = '"1f0c6c3e-0000-6000-8000-000000000001"'


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


async def saved(client, path, value=0, **headers):
    return await client.post(path, json={"state": {"a": value, "list": [1]}}, headers=headers)


@pytest.mark.parametrize("condition", ["{}", '"x", {}', '{}, "x"', '"~gA",{} , W/"x"', ",{},", 'W/"x" , ,\t{}', "*"])
async def test_a_save_goes_on_where_one_of_the_tags_is_the_heads(client, path, condition):
    head = (await saved(client, path)).headers["etag"]
    again = await saved(client, path, 1, **{"If-Match": condition.format(head)})
    assert again.status_code == 201
    assert again.json()["parent_id"] == head.strip('"')


@pytest.mark.parametrize("condition", ["W/{}", OTHER, f'{OTHER}, "x"', 'W/{}, "x"', '"~gA"', '""', '"é"', '"a,b"'])
async def test_a_save_is_refused_where_none_of_them_is(client, path, condition):
    head = (await saved(client, path)).headers["etag"]
    refused = await saved(client, path, 1, **{"If-Match": condition.format(head).encode("latin-1")})
    assert assert_problem(refused, 412, "head-moved")["head_id"] == head.strip('"')
    assert (await client.get(f"{path}/latest")).json()["state"]["a"] == 0


@pytest.mark.parametrize("condition", ["*", OTHER, f'{OTHER}, "x"', 'W/"x"'])
async def test_where_there_is_no_head_nothing_matches_and_nothing_is_made(client, path, condition):
    problem = assert_problem(await saved(client, path, **{"If-Match": condition}), 412, "head-moved")
    assert (problem["head_id"], "no head" in problem["detail"]) == (None, True)
    assert_problem(await client.get(f"{path}/latest"), 404)


async def test_a_repeat_does_nothing_although_its_tags_are_the_heads_no_more(client, path):
    head = (await saved(client, path)).headers["etag"]
    headers = {"If-Match": f'"x", {head}', "Idempotency-Key": "once"}
    first = await saved(client, path, 1, **headers)
    again = await saved(client, path, 1, **headers)
    assert (first.status_code, again.status_code, again.json()["created"]) == (201, 200, False)


async def test_changes_and_strict_threads_need_to_know_which_head_it_is(client, path):
    head = (await saved(client, path)).headers["etag"]
    changes = {"changes": {"set": {"a": 2}}}
    for condition in ({"If-Match": "*"}, {"If-None-Match": "*"}, {}):
        assert_problem(await client.post(path, json=changes, headers=condition), 428, "precondition-required")
    several = await client.post(path, json=changes, headers={"If-Match": f'"x", {head}'})
    assert assert_problem(several, 422, "invalid-request")["errors"][0]["header"] == "If-Match"
    assert_problem(await client.post(path, json=changes, headers={"If-Match": f"W/{head}"}), 412, "head-moved")
    assert (await client.post(path, json=changes, headers={"If-Match": f"{head}, {head}"})).status_code == 201

    await client.patch(path.removesuffix("/checkpoints"), json={"strict": True})
    assert_problem(await saved(client, path, 3, **{"If-Match": "*"}), 428, "precondition-required")
    head = (await client.get(f"{path}/latest")).headers["etag"]
    assert (await saved(client, path, 3, **{"If-Match": f"{OTHER}, {head}"})).status_code == 201


async def test_a_compaction_takes_the_same_conditions(client, path):
    head = (await saved(client, path)).headers["etag"]
    compact = path.replace("/checkpoints", "/compact")
    body = {"channel": "list", "keep_last": 0, "summary": "s"}
    for condition in (OTHER, f"W/{head}"):
        assert_problem(await client.post(compact, json=body, headers={"If-Match": condition}), 412, "head-moved")
    for condition in ("*", 'x"'):
        answer = await client.post(compact, json=body, headers={"If-Match": condition})
        assert answer.status_code == (201 if condition == "*" else 422), answer.text
    head = (await client.get(f"{path}/latest")).headers["etag"]
    assert (await client.post(compact, json=body, headers={"If-Match": f'"x", {head}'})).status_code == 201

    await client.patch(path.removesuffix("/checkpoints"), json={"strict": True})
    strict = await client.post(compact, json=body, headers={"If-Match": "*"})
    assert_problem(strict, 428, "precondition-required")


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
