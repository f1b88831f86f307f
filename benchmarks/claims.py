"""What a claim costs: saves of a thread that nobody claims, and of one under a claim, whose fence they name.

``python -m benchmarks.claims [ROUNDS]`` lets both save states of 10 KB in turns, at one gateway, and compares the
processor time of the gateway and of all of PostgreSQL, the bytes of write-ahead log and the committed transactions of
each slice with those of the slice without a claim beside it; which of the two comes first changes with the rounds. Then
it counts what a run pays besides: to claim, to renew and to release. That a save under a claim is as many statements
and rows is held exactly by a test (`tests/integration/storage/test_costs_of_calls.py`), and not by this.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import httpx

from benchmarks import engines
from benchmarks.engines import GATEWAY_DATABASE, Engines

ROUNDS = 12
SAVES = 250
RUNS = 200
STATE_BYTES = 10_000
SETTLE_SECONDS = 1.5  # PostgreSQL tells of a transaction within a second
WITHOUT, UNDER = "without a claim", "under a claim"
_COMMITTED = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1"


class Slice(NamedTuple):
    """What one slice took, a save: microseconds of processors, bytes of log, transactions, and milliseconds."""

    gateway: float
    postgres: float
    wal: float
    transactions: float
    milliseconds: float


async def _committed(running: Engines) -> int:
    connection = await asyncpg.connect(running.dsn("postgres"))
    try:
        return int(await connection.fetchval(_COMMITTED, GATEWAY_DATABASE))
    finally:
        await connection.close()


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.post(path, json=body)).raise_for_status().json()
    return answer


async def _slice(running: Engines, client: httpx.AsyncClient, rng: random.Random, name: str) -> Slice:
    thread = f"/v1/threads/{uuid4()}"
    await _post(client, f"{thread}/checkpoints", {"state": {"text": ""}})
    fence = {}
    if name == UNDER:
        wanted = {"holder": "bench", "lease_seconds": 300}
        fence = {"fence": (await _post(client, f"{thread}/resume-claim", wanted))["fence"]}
    states = [{"text": rng.randbytes(STATE_BYTES // 2).hex()} for _ in range(SAVES)]
    bodies = [json.dumps({"state": state, **fence}).encode() for state in states]
    await asyncio.sleep(SETTLE_SECONDS)
    before, wal, committed = running.cpu(), await running.wal_bytes(), await _committed(running)
    begun = time.perf_counter()
    for body in bodies:
        answer = await client.post(f"{thread}/checkpoints", content=body, headers={"Content-Type": "application/json"})
        answer.raise_for_status()
    took = time.perf_counter() - begun
    used, written = running.cpu().since(before), await running.wal_bytes() - wal
    await asyncio.sleep(SETTLE_SECONDS)
    transactions = await _committed(running) - committed
    return Slice(
        used.gateway / SAVES * 1e6, used.postgres / SAVES * 1e6, written / SAVES, transactions / SAVES,
        took / SAVES * 1e3,
    )  # fmt: skip


async def _runs(client: httpx.AsyncClient) -> dict[str, float]:
    """Milliseconds that a run takes to claim its thread, to renew and to release it: medians."""
    path = f"/v1/threads/{uuid4()}"
    await _post(client, f"{path}/checkpoints", {"state": {"text": ""}})
    took: dict[str, list[float]] = {"claim": [], "renew": [], "release": []}
    for _ in range(RUNS):
        fence: dict[str, Any] = {}
        for verb, each in took.items():
            begun = time.perf_counter()
            if verb == "claim":
                fence = {"fence": (await _post(client, f"{path}/resume-claim", {"holder": "bench"}))["fence"]}
            else:
                await _post(client, f"{path}/resume-claim/{verb}", fence)
            each.append((time.perf_counter() - begun) * 1e3)
    return {verb: statistics.median(each) for verb, each in took.items()}


def _ratios(slices: dict[str, list[Slice]], part: Callable[[Slice], float]) -> str:
    found = sorted(part(one) / part(other) for one, other in zip(slices[UNDER], slices[WITHOUT], strict=True))
    return f"{statistics.median(found):.2f} [{found[0]:.2f}-{found[-1]:.2f}]"


async def look(rounds: int) -> None:
    """Print all of it."""
    rng = random.Random(7)  # noqa: S311 - the same states in every run
    print(
        f"load before {os.getloadavg()[0]:.1f}; {rounds} rounds of {SAVES} saves of {STATE_BYTES:,} bytes", flush=True
    )
    slices: dict[str, list[Slice]] = {WITHOUT: [], UNDER: []}
    with engines.running() as running:
        headers = {"Authorization": f"Bearer {running.api_key}", "Stateroom-Subject": f"user-{uuid4().hex}"}
        async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as client:
            for name in slices:
                await _slice(running, client, rng, name)  # so that all is warm
            for number in range(rounds):
                for name in sorted(slices, reverse=bool(number % 2)):
                    slices[name].append(await _slice(running, client, rng, name))
            runs = await _runs(client)
    for name, each in slices.items():
        medians = Slice(*(statistics.median(column) for column in zip(*each, strict=True)))
        print(
            f"{name}, a save: gateway {medians.gateway:,.0f} us, PostgreSQL {medians.postgres:,.0f} us, "
            f"WAL {medians.wal:,.0f} bytes, {medians.transactions:.2f} transactions, {medians.milliseconds:.2f} ms"
        )
    print(
        f"{UNDER}, to {WITHOUT}: gateway {_ratios(slices, lambda one: one.gateway)}, "
        f"PostgreSQL {_ratios(slices, lambda one: one.postgres)}, WAL {_ratios(slices, lambda one: one.wal)}, "
        f"transactions {_ratios(slices, lambda one: one.transactions)}, "
        f"time {_ratios(slices, lambda one: one.milliseconds)}"
    )
    print("a run, besides: " + ", ".join(f"{verb} {each:.1f} ms" for verb, each in runs.items()), flush=True)


if __name__ == "__main__":
    asyncio.run(look(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
