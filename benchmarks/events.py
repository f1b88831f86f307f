"""What events cost: saves of a tenant without them, of one that has them, and of one to which somebody listens.

``python -m benchmarks.events [ROUNDS]`` lets all three save states of 10 KB in turns, at one gateway that also numbers
the events, and compares the processor time of the gateway and of all of PostgreSQL and the bytes of write-ahead log of
each slice with those of the slice of the tenant without events beside it. A slice ends when its last event can be read,
or as long after its last save, so that the relay is in it.
"""

import asyncio
import json
import os
import random
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import uuid4

import httpx

from benchmarks import engines
from benchmarks.engines import Engines

ROUNDS = 8
SAVES = 1_000  # of some 10 ms of ticks a hundredth
STATE_BYTES = 10_000
SETTLE_SECONDS = 1.0  # the relay looks again after a quarter of that, and gives the tenant back after it
LEAD_SECONDS = 11.0  # after which events are told
WITHOUT, WITH, HEARD = "off", "on", "on, and one listens"


class Slice(NamedTuple):
    """What one slice took, a save: microseconds of processors, and bytes of log."""

    gateway: float
    postgres: float
    wal: float


def _client(running: Engines, api_key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": f"user-{uuid4().hex}"}
    return httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60)


async def _tenant(running: Engines) -> str:
    """A key of a tenant that has events."""
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {running.operator_key}"
        made = (await client.post("/v1/admin/tenants", json={"name": uuid4().hex})).raise_for_status().json()
        client.headers["Authorization"] = f"Bearer {made['api_key']}"
        permissions = ["state:read", "state:write", "subject:act_as", "tenant:admin"]
        asked = {"kind": "service", "permissions": permissions}
        key = str((await client.post("/v1/api-keys", json=asked)).raise_for_status().json()["api_key"])
        (await client.put("/v1/events/settings", json={"on": True})).raise_for_status()
    return key


@asynccontextmanager
async def _listening(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Somebody takes what is told of a subject."""

    async def take() -> None:
        async with client.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as stream:
            async for _ in stream.aiter_lines():
                pass

    taking = asyncio.create_task(take())
    try:
        yield
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def _slice(running: Engines, client: httpx.AsyncClient, rng: random.Random) -> Slice:
    bodies = [json.dumps({"state": {"text": rng.randbytes(STATE_BYTES // 2).hex()}}).encode() for _ in range(SAVES)]
    path = f"/v1/threads/{uuid4()}/checkpoints"
    before, wal = running.cpu(), await running.wal_bytes()
    for body in bodies:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        answer.raise_for_status()
    await asyncio.sleep(SETTLE_SECONDS)
    used, written = running.cpu().since(before), await running.wal_bytes() - wal
    return Slice(used.gateway / SAVES * 1e6, used.postgres / SAVES * 1e6, written / SAVES)


def _ratios(slices: dict[str, list[Slice]], name: str, part: Callable[[Slice], float]) -> str:
    found = sorted(part(one) / part(other) for one, other in zip(slices[name], slices[WITHOUT], strict=True))
    return f"{statistics.median(found):.2f} [{found[0]:.2f}-{found[-1]:.2f}]"


async def look(rounds: int) -> None:
    """Print all of it."""
    rng = random.Random(7)  # noqa: S311 - the same states in every run
    print(
        f"load before {os.getloadavg()[0]:.1f}; {rounds} rounds of {SAVES} saves of {STATE_BYTES:,} bytes", flush=True
    )
    with engines.running() as running:
        heard_key = await _tenant(running)
        on_key = await _tenant(running)
        await asyncio.sleep(LEAD_SECONDS)
        slices: dict[str, list[Slice]] = {WITHOUT: [], WITH: [], HEARD: []}
        async with (
            _client(running, running.api_key) as without,
            _client(running, on_key) as with_events,
            _client(running, heard_key) as heard,
        ):
            for client in (without, with_events, heard):
                await _slice(running, client, rng)  # so that all is warm
            idle = running.cpu()
            await asyncio.sleep(5 * SETTLE_SECONDS)
            rest = running.cpu().since(idle)
            for _ in range(rounds):
                slices[WITHOUT].append(await _slice(running, without, rng))
                slices[WITH].append(await _slice(running, with_events, rng))
                async with _listening(heard):
                    slices[HEARD].append(await _slice(running, heard, rng))
    print(f"idle, a second: gateway {rest.gateway / 5 * 1e3:.1f} ms, PostgreSQL {rest.postgres / 5 * 1e3:.1f} ms")
    for name, each in slices.items():
        medians = Slice(*(statistics.median(column) for column in zip(*each, strict=True)))
        print(
            f"{name}, a save: gateway {medians.gateway:,.0f} us, PostgreSQL {medians.postgres:,.0f} us, "
            f"WAL {medians.wal:,.0f} bytes"
        )
    for name in (WITH, HEARD):
        print(
            f"{name}, to off: gateway {_ratios(slices, name, lambda one: one.gateway)}, "
            f"PostgreSQL {_ratios(slices, name, lambda one: one.postgres)}, "
            f"WAL {_ratios(slices, name, lambda one: one.wal)}",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(look(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
