"""If-Match of saves is what RFC 9110 (section 13.1.1) says: a tag, several, ``*``; a weak tag never matches."""

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
