"""Two gateways on one database agree on heads, keys and revocations."""

import asyncio
import time

import pytest

from gateway.authentication.principals import VERIFIED_SECONDS_MAX
from tests.support.production import serving

REVOKED_WITHIN_SECONDS = 6.0
ROUNDS = 25
JOB_SECONDS_MAX = 60


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
            assert lost.json()["head_id"] == won.json()["checkpoint_id"]
            head = won.headers["etag"]
        latest = [await client.get(f"{path}/latest") for client in (first, second)]
        assert latest[0].json() == latest[1].json()
        assert {answer.headers["etag"] for answer in latest} == {head}
        history = await second.get(path, params={"limit": 1000})
        assert len(history.json()["checkpoints"]) == ROUNDS + 1


async def test_a_thread_that_hops_between_gateways_at_every_save_is_never_behind_and_never_refused(two):
    """Each remembers the thread as it left it; by the next save there, the other one has moved on."""
    async with two[0].client() as first, two[1].client() as second:
        clients = (first, second)
        path = "/v1/threads/hops/checkpoints"
        heads = [(await first.post(path, json={"state": {"list": [0], "n": 0}})).headers["etag"]]
        for number in range(1, ROUNDS):
            here, there = clients[number % 2], clients[(number + 1) % 2]
            if number > 1:  # what stood when this one saved here is no longer the head
                stale = await here.post(path, json={"state": {"n": -1}}, headers={"If-Match": heads[-2]})
                assert (stale.status_code, stale.json()["code"]) == (412, "head-moved")
                assert f'"{stale.json()["head_id"]}"' == heads[-1]
            body = {"changes": {"append": {"list": [number]}, "set": {"n": number}}}
            saved = await here.post(path, json=body, headers={"If-Match": heads[-1]})
            assert saved.status_code == 201, saved.text
            heads.append(saved.headers["etag"])
            write = {"writes": [{"idx": 0, "channel": "n", "value": number}]}
            put = await there.post(f"{path}/{heads[-1][1:-1]}/writes/task", json=write)
            assert put.status_code in (200, 201, 204), put.text
            unconditional = await here.post(path, json={"state": {"list": list(range(number + 1)), "n": number}})
            assert unconditional.status_code == 201, unconditional.text
            assert f'"{unconditional.json()["parent_id"]}"' == heads[-1]
            heads.append(unconditional.headers["etag"])
            latest = await there.get(f"{path}/latest")
            assert latest.headers["etag"] == heads[-1]
            assert latest.json()["state"] == {"list": list(range(number + 1)), "n": number}
        history = await second.get(path, params={"limit": 1000})
        found = [each["checkpoint_id"] for each in history.json()["checkpoints"]]
        assert found == [head[1:-1] for head in reversed(heads)]


async def test_keys_rotated_on_one_are_used_by_the_other_at_its_next_save(two):
    async with two[0].client("rotated") as first, two[1].client("rotated") as second, two[1].client() as administrator:
        del administrator.headers["Stateroom-Subject"]  # to see jobs that are no subject's
        path = "/v1/threads/t/checkpoints"
        for client in (first, second, second):  # now both have the subject's key, and one stands on its own save
            assert (await client.post(path, json={"state": {"n": 0}})).status_code == 201
        for body, count in (({"level": "subject", "subject_id": "rotated"}, 1), ({"level": "tenant"}, 4)):
            rotated = await first.post("/v1/keys:rotate", json=body)
            assert rotated.status_code == 202, rotated.text
            for number, client in enumerate((second, first, second), count):
                saved = await client.post(path, json={"state": {"n": number}})
                assert saved.status_code == 201, saved.text
                for reader in (first, second):
                    assert (await reader.get(f"{path}/latest")).json()["state"] == {"n": number}
            async with asyncio.timeout(JOB_SECONDS_MAX):
                while True:
                    job = (await administrator.get(f"/v1/jobs/{rotated.json()['job_id']}")).json()
                    if job["state"] not in ("queued", "running"):
                        break
                    await asyncio.sleep(0.05)  # another process does it: there is nothing to await
            assert job["state"] == "done", job


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
