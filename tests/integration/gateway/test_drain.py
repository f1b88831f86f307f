"""SIGTERM loses no request: readiness goes first, then what was begun is finished, then the process ends with 0."""

import asyncio
import signal

import httpx

from tests.support.half_request import HalfRequest
from tests.support.production import serving

WRITERS = 4


async def test_who_follows_readiness_sees_no_failed_request_while_one_of_two_stops(deployment, launcher):
    async with (
        serving(launcher, deployment, drain_seconds="1") as leaving,
        serving(launcher, deployment) as staying,
        leaving.client() as to_leaving,
        staying.client() as to_staying,
    ):
        in_rotation = [to_leaving, to_staying]
        statuses: list[int] = []
        over = asyncio.Event()

        async def check_readiness() -> None:
            while (await to_leaving.get("/readyz")).status_code == 200:
                pass
            in_rotation.remove(to_leaving)
            over.set()

        async def write(number: int) -> None:
            sent = 0
            while not over.is_set() or sent % 2:
                client = in_rotation[sent % len(in_rotation)]
                answer = await client.post(f"/v1/threads/rotation-{number}/checkpoints", json={"state": {"n": sent}})
                statuses.append(answer.status_code)
                sent += 1
                if sent == 5 and number == 0:
                    leaving.send(signal.SIGTERM)

        async with asyncio.TaskGroup() as running:
            running.create_task(check_readiness())
            for number in range(WRITERS):
                running.create_task(write(number))
        assert await leaving.wait() == 0
        assert set(statuses) == {201}
        assert (await to_staying.get("/readyz")).status_code == 200
        histories = [await to_staying.get(f"/v1/threads/rotation-{n}/checkpoints?limit=1000") for n in range(WRITERS)]
        assert sum(len(each.json()["checkpoints"]) for each in histories) == len(statuses)


async def test_a_request_in_flight_is_finished_and_later_ones_are_refused_before_the_end(deployment, launcher):
    async with serving(launcher, deployment) as gateway, gateway.client() as client:
        assert (await client.get("/readyz")).status_code == 200
        late = [await HalfRequest(gateway, f"late-{number}").begin() for number in range(3)]
        # A request that was read completely after these: so they have begun, too.
        assert (await client.get("/livez")).status_code == 200
        gateway.send(signal.SIGTERM)
        refused = None
        try:
            while True:
                answer = await client.get("/v1/whoami")
                if answer.status_code != 200:
                    refused = answer
        except httpx.TransportError:
            pass  # nobody listens any more
        assert refused is None or refused.json()["code"] == "draining"
        assert [await each.finish() for each in late] == [201, 201, 201]
        assert await gateway.wait() == 0
    async with serving(launcher, deployment) as again, again.client() as client:
        for number in range(3):
            assert (await client.get(f"/v1/threads/late-{number}/checkpoints/latest")).status_code == 200


async def test_readiness_says_that_the_process_drains_while_it_still_serves(deployment, launcher):
    async with serving(launcher, deployment, drain_seconds="30") as gateway, gateway.client() as client:
        gateway.send(signal.SIGTERM)
        while (ready := await client.get("/readyz")).status_code == 200:
            pass
        assert ready.status_code == 503
        assert ready.json()["draining"] is True
        assert ready.json()["database"] is True
        assert (await client.post("/v1/threads/t/checkpoints", json={"state": {}})).status_code == 201
        gateway.send(signal.SIGTERM)  # a second one ends the drain early
        assert await gateway.wait() == 0
