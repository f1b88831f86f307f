"""Two gateways on one database agree on heads, keys and revocations."""

import asyncio
import time

import pytest

from gateway.auth import VERIFIED_SECONDS_MAX
from tests.support.production import serving

REVOKED_WITHIN_SECONDS = 6.0
ROUNDS = 25


@pytest.fixture(scope="module")
async def two(deployment, launcher):
    ready, over = asyncio.Event(), asyncio.Event()
    made = []

    async def live() -> None:
        async with serving(launcher, deployment) as one, serving(launcher, deployment) as other:
            made.extend((one, other))
            ready.set()
            await over.wait()

    life = asyncio.create_task(live())
    await ready.wait()
    yield made
    over.set()
    await life


async def test_of_two_saves_on_the_same_head_exactly_one_wins(two):
    one, other = two
    async with one.client() as first, other.client() as second:
        path = "/v1/threads/shared/checkpoints"
        head = (await first.post(path, json={"state": {"n": 0}})).headers["etag"]
        for number in range(ROUNDS):
            answers = await asyncio.gather(
                first.post(path, json={"state": {"n": number, "by": 1}}, headers={"If-Match": head}),
                second.post(path, json={"state": {"n": number, "by": 2}}, headers={"If-Match": head}),
            )
            assert sorted(answer.status_code for answer in answers) == [201, 412]
            won, lost = sorted(answers, key=lambda answer: answer.status_code)
            assert lost.json()["code"] == "head-moved"
            assert lost.json()["head_id"] == won.json()["id"]
            head = won.headers["etag"]
        latest = [await client.get(f"{path}/latest") for client in (first, second)]
        assert latest[0].json() == latest[1].json()
        assert {answer.headers["etag"] for answer in latest} == {head}
        history = await second.get(path, params={"limit": 1000})
        assert len(history.json()["checkpoints"]) == ROUNDS + 1


async def test_what_one_seals_for_a_new_subject_the_other_opens_even_at_the_same_moment(two):
    one, other = two
    for number in range(5):
        async with one.client(f"new-{number}") as first, other.client(f"new-{number}") as second:
            answers = await asyncio.gather(
                first.post("/v1/threads/a/checkpoints", json={"state": {"by": 1}}),
                second.post("/v1/threads/b/checkpoints", json={"state": {"by": 2}}),
            )
            assert [answer.status_code for answer in answers] == [201, 201]
            crossed = await second.get("/v1/threads/a/checkpoints/latest")
            assert crossed.json()["state"] == {"by": 1}
            crossed = await first.get("/v1/threads/b/checkpoints/latest")
            assert crossed.json()["state"] == {"by": 2}


async def test_a_key_revoked_on_one_is_refused_by_the_other_within_six_seconds(two):
    one, other = two
    async with one.client() as administrator:
        made = await administrator.post("/v1/api-keys", json={"kind": "subject", "subject_id": "s"})
        key = made.json()
        async with one.client("s", key["api_key"]) as here, other.client("s", key["api_key"]) as there:
            assert (await here.get("/v1/whoami")).status_code == 200
            assert (await there.get("/v1/whoami")).status_code == 200
            assert (await administrator.delete(f"/v1/api-keys/{key['key_id']}")).status_code == 204
            revoked = time.monotonic()
            assert (await here.get("/v1/whoami")).status_code == 401
            while (await there.get("/v1/whoami")).status_code == 200:
                assert time.monotonic() - revoked < REVOKED_WITHIN_SECONDS
                await asyncio.sleep(0.05)  # what another process remembers: there is nothing to await
    assert REVOKED_WITHIN_SECONDS > VERIFIED_SECONDS_MAX
