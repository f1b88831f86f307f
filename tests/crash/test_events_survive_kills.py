"""Events are neither lost nor told twice, and each stream's come in order, whatever gateways are killed meanwhile.

Eight writers save through two gateways, both of which number events, and one of which is killed again and again; a
client listens to the whole tenant, at a gateway that is killed, too.
"""

import asyncio
import itertools
import random  # noqa: TID251 - seeded: the same order of kills in every run
import socket
import time
from collections import Counter, defaultdict
from contextlib import suppress
from uuid import uuid4

import httpx
import pytest

from gateway.embedded.postgres import EmbeddedPostgres
from stateroom import AsyncClient, Event, Timeouts
from storage.control.features import EVENTS
from tests.support.events import events_on
from tests.support.features import finish_upgrade
from tests.support.production import Deployment, Launcher, ProductionGateway, deploy
from tests.victims.rows import opened

WRITERS, THREADS_OF_EACH = 8, 4
SEED = 20_261_127
EVENTS_TOLD, KILLS = 1_000, 5
SOAK_EVENTS_TOLD, SOAK_KILLS = 100_000, 60
LAST_SECONDS_MAX = 120


@pytest.fixture
async def heard(durable_postgres: EmbeddedPostgres, durable_template: str, production_dir: object) -> Deployment:
    """A deployment whose tenant has events."""
    made = await deploy(durable_postgres, production_dir, durable_template)  # type: ignore[arg-type]
    await finish_upgrade(made, EVENTS)
    async with opened(made) as store:
        record = await store.tenants.look_up_key(made.api_key.split("_")[2])
        await events_on(store, record.tenant_id)
    return made


class Gateways:
    """Two gateways, each at an address that it keeps when it is killed and started again."""

    def __init__(self, launcher: Launcher, deployment: Deployment) -> None:
        self._launcher = launcher
        self._deployment = deployment
        self._ports = [_free_port() for _ in range(2)]
        self._running: list[ProductionGateway] = []

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    async def start(self) -> None:
        for port in self._ports:
            self._running.append(await self._started(port))

    def _started(self, port: int):
        return ProductionGateway(self._launcher, self._deployment, listen=f"127.0.0.1:{port}").start()

    async def kill(self, number: int) -> None:
        """End one with SIGKILL, and start it again."""
        await self._running[number].kill()
        self._running[number] = await self._started(self._ports[number])

    async def stop(self) -> None:
        for each in self._running:
            await each.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Written:
    """What was acknowledged: of each thread its checkpoints, in order."""

    def __init__(self, wanted: int) -> None:
        self._left = iter(range(wanted))
        self._wanted = wanted
        self.saved: dict[str, list[str]] = defaultdict(list)
        self.count = 0
        self.moved = asyncio.Event()

    def take(self) -> int | None:
        """The number of the next save; None: there are enough."""
        return next(self._left, None)

    def acknowledged(self, thread_id: str, checkpoint_id: str) -> None:
        self.saved[thread_id].append(checkpoint_id)
        self.count += 1
        self.moved.set()

    async def until(self, count: int) -> None:
        while self.count < min(count, self._wanted):
            self.moved.clear()
            await self.moved.wait()


async def write(gateways: Gateways, api_key: str, written: Written) -> None:
    """Save at whatever gateway answers; a save whose answer was lost is sent again, under its idempotency key."""
    threads = itertools.cycle([f"t-{uuid4()}" for _ in range(THREADS_OF_EACH)])
    urls = itertools.cycle(gateways.urls)
    headers = {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": "user-1"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        while (number := written.take()) is not None:
            thread_id, key = next(threads), {"Idempotency-Key": str(uuid4())}
            body = {"state": {"n": number}, "run_id": f"run-{number}"}
            while True:
                with suppress(httpx.TransportError):
                    path = f"{next(urls)}/v1/threads/{thread_id}/checkpoints"
                    answer = await client.post(path, json=body, headers=key)
                    if answer.is_success:
                        written.acknowledged(thread_id, answer.json()["checkpoint_id"])
                        break
                    assert answer.status_code in {409, 429, 503}, answer.text
                await asyncio.sleep(0.05)


async def listen(url: str, api_key: str, told: list[Event], first: asyncio.Event, last: asyncio.Event) -> None:
    """Take what is told of the whole tenant until the last of all was told."""
    timeouts = Timeouts(attempt_seconds=5.0, total_seconds=10.0)
    async with AsyncClient(url, api_key, timeouts=timeouts) as client:
        async for event in client.events(types=["checkpoint.saved"]):
            first.set()
            told.append(event)
            if event.run_id == "last":
                last.set()
                return


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (EVENTS_TOLD, KILLS),
        pytest.param(SOAK_EVENTS_TOLD, SOAK_KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
    ids=["ci", "soak"],
)
async def test_each_event_of_many_writers_is_told_once_and_in_its_streams_order_while_gateways_are_killed(
    launcher: Launcher, heard: Deployment, count: int, kills: int
) -> None:
    rng, begun = random.Random(SEED), time.monotonic()  # noqa: S311
    gateways, written = Gateways(launcher, heard), Written(count)
    told: list[Event] = []
    first, last = asyncio.Event(), asyncio.Event()
    await gateways.start()
    try:
        headers = {"Authorization": f"Bearer {heard.api_key}", "Stateroom-Subject": "user-1"}
        listening = asyncio.create_task(listen(gateways.urls[0], heard.api_key, told, first, last))
        async with httpx.AsyncClient(headers=headers, timeout=30) as client:

            async def save(run_id: str) -> None:
                path = f"{gateways.urls[1]}/v1/threads/edge/checkpoints"
                answer = await client.post(path, json={"state": {"n": 0}, "run_id": run_id})
                assert answer.status_code == 201, answer.text

            while not first.is_set():  # it begins at what is "now" for its first step
                await save("before")
                with suppress(TimeoutError):
                    await asyncio.wait_for(first.wait(), 0.1)
            writing = [asyncio.create_task(write(gateways, heard.api_key, written)) for _ in range(WRITERS)]
            for number in range(1, kills + 1):
                await written.until(number * count // (kills + 1))
                await gateways.kill(rng.randrange(2))
            await asyncio.gather(*writing)
            await save("last")
            async with asyncio.timeout(LAST_SECONDS_MAX):
                await last.wait()
        await listening
    finally:
        await gateways.stop()
    print(f"{count} events, {kills} kills, {WRITERS} writers: {time.monotonic() - begun:.0f} s")  # noqa: T201
    of_threads: dict[str, list[str]] = defaultdict(list)
    for event in told:
        if event.run_id not in {"before", "last"}:
            of_threads[event.thread_id].append(event.checkpoint_id)
    assert [each for each, times in Counter(event.event_id for event in told).items() if times > 1] == []
    assert of_threads == written.saved
    assert sum(map(len, of_threads.values())) == count
