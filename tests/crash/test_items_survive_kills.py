"""A batch of items that was acknowledged is there, whole, whatever gateway is killed; one that was not may be repeated.

As `tests.crash.test_acknowledged_saves`, with writers that put and delete items of paths that all of them share. Each
has keys of its own, so that what is there in the end says which of its batches happened.
"""

import asyncio
import random  # noqa: TID251 - seeded: the same moments in every run
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from storage.control.features import ITEMS
from tests.crash.test_acknowledged_saves import GATEWAYS, Fleet, client_of, lives_and_dies, seeded
from tests.support.features import finish_upgrade
from tests.support.production import Deployment, Launcher, ProductionGateway, serving

KILLS, SOAK_KILLS = 10, 201
WRITERS = 5
PATHS = [["shared"], ["shared", "deeper"], ["comes", "and", "goes"]]
KEYS = 4

Name = tuple[str, str]
State = dict[Name, int]


@dataclass
class Writer:
    """One agent: sends batches, repeats what got no answer, and remembers what was acknowledged."""

    number: int
    rng: random.Random
    state: State = field(default_factory=dict)  # after the last batch that was acknowledged
    sent: State | None = None  # after one that was not, and was given up
    acknowledged: int = 0
    repeated: int = 0
    replayed: int = 0

    def next_batch(self, count: int) -> tuple[list[dict[str, Any]], State]:
        """Writes of which each changes another key, and what is there after all of them."""
        after = dict(self.state)
        writes: list[dict[str, Any]] = []
        for path in PATHS:
            for key in self.rng.sample(range(KEYS), 2):
                name = ("/".join(path), f"w{self.number}-{key}")
                where = {"path": path, "key": name[1]}
                if name in after and self.rng.random() < 0.5:
                    writes.append({**where, "delete": True})
                    del after[name]
                else:
                    writes.append({**where, "value": {"n": count, "filling": self.rng.randbytes(500)}})
                    after[name] = count
        return writes, after

    async def send(self, client: httpx.AsyncClient, url: str, key: str, writes: list[dict[str, Any]]) -> bool:
        """Try once; whether it is known to have happened."""
        body = msgspec.msgpack.encode({"writes": writes, "atomic": True})
        try:
            answer = await client.post(f"{url}/v1/items:batch", content=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            return False
        if answer.status_code != 200:
            problem = msgspec.json.decode(answer.content)
            assert problem["retryable"] is True, problem
            return False
        told = msgspec.msgpack.decode(answer.content)["writes"]
        assert {each["status"] for each in told} <= {"created", "replaced", "deleted"}, told
        self.replayed += "idempotency-replayed" in answer.headers
        return True

    async def write(self, client: httpx.AsyncClient, fleet: Fleet) -> None:
        count = 0
        while not fleet.done.is_set():
            count += 1
            writes, after = self.next_batch(count)
            key = str(uuid4())
            self.sent = after
            while not fleet.done.is_set():
                url = await fleet.any_url(self.rng)
                if await self.send(client, url, key, writes):
                    self.state, self.sent = after, None
                    self.acknowledged += 1
                    fleet.acknowledged(url)
                    break
                self.repeated += 1


async def stored(client: httpx.AsyncClient, url: str) -> State:
    """Everything, read to its end: so live sets are compared."""
    body = msgspec.msgpack.encode({"limit": 1000})
    answer = await client.post(f"{url}/v1/items:search", content=body)
    page = msgspec.msgpack.decode(answer.raise_for_status().content)
    assert page["next_cursor"] is None
    found = {("/".join(each["path"]), each["key"]): each["value"]["n"] for each in page["items"]}
    listed = msgspec.msgpack.decode(
        (await client.post(f"{url}/v1/items:paths", content=msgspec.msgpack.encode({}))).raise_for_status().content
    )
    assert {"/".join(each) for each in listed["paths"]} == {path for path, _ in found}
    return found


@pytest.mark.parametrize("kills", [KILLS, pytest.param(SOAK_KILLS, marks=pytest.mark.soak)])
async def test_no_acknowledged_batch_is_lost_or_half_there_whatever_gateway_is_killed(
    deployment: Deployment, launcher: Launcher, kills: int
) -> None:
    await finish_upgrade(deployment, ITEMS)
    fleet, writers = Fleet(), [Writer(number, seeded(number)) for number in range(WRITERS)]
    gateways = [ProductionGateway(launcher, deployment, database_connections_max="4") for _ in range(GATEWAYS)]
    async with client_of(deployment, f"items-{kills}") as client:
        async with asyncio.TaskGroup() as running:
            for writer in writers:
                running.create_task(writer.write(client, fleet))
            async with asyncio.TaskGroup() as dying:
                for number, gateway in enumerate(gateways):
                    dying.create_task(lives_and_dies(gateway, fleet, kills // GATEWAYS, seeded(100 + number)))
            fleet.end()
        async with serving(launcher, deployment) as gateway:
            found = await stored(client, gateway.url)
    for writer in writers:
        own = {name: n for name, n in found.items() if name[1].startswith(f"w{writer.number}-")}
        assert own in (writer.state, writer.sent)
    assert sum(writer.repeated for writer in writers) > 0, "the kills hit nothing: this run proved nothing"
    assert sum(writer.acknowledged for writer in writers) > kills
