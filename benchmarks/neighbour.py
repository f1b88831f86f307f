"""What a tenant notices of another one that sends as much as it may.

One writer of a tenant saves 10 KB, one after another, alone and while a process of its own (`benchmarks.hammer`)
keeps more connections of a second tenant busy than the gateway admits of one: that tenant is at its cap all the time,
and what is refused comes again when the answer said. "At another gateway": it does so at a second gateway process, so
that the two share PostgreSQL and the machine.

All of it shares the machine's cores, clients included: on two of them a neighbour that keeps a gateway busy makes
everything slower, whoever takes turns how. What does not depend on that is how many of the neighbour's saves are
answered during one of ours.
"""

import asyncio
import base64
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec

from benchmarks import gateways
from benchmarks.bench import P50
from benchmarks.contenders import SocketSaves, new_thread, saves_path
from benchmarks.engines import Engines
from benchmarks.hammer import SAVED
from benchmarks.workload import Prose
from gateway.admission.limits import TENANT_REQUESTS_IN_FLIGHT_MAX

ALONE = "alone"
BESIDE = "beside a tenant at its cap"
ELSEWHERE = "beside one at another gateway"
P99, THEIRS = "p99 ms", "the neighbour's during one"
_SAVE_BYTES = 10_000
_OVER_THE_CAP = 16
_BODIES = 32


def _bodies(prose: Prose, count: int) -> list[bytes]:
    return [msgspec.msgpack.encode({"state": {"text": prose.take(_SAVE_BYTES)}}) for _ in range(count)]


class NeighbourBench:
    """Two tenants of the run's gateway, and a second gateway.

    Attributes:
        saves: How many are timed in a slice.
    """

    def __init__(self, engines: Engines, other_url: str, api_key: str, saves: int) -> None:
        self.saves = saves
        self._engines = engines
        self._urls = {BESIDE: engines.url, ELSEWHERE: other_url}
        self._api_key = api_key

    @asynccontextmanager
    async def _hammered(self, url: str) -> AsyncIterator[dict[str, float]]:
        order = {
            "url": url,
            "api_key": self._api_key,
            "writers": TENANT_REQUESTS_IN_FLIGHT_MAX + _OVER_THE_CAP,
            "bodies": [base64.b64encode(each).decode() for each in _bodies(Prose("hammer"), _BODIES)],
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("hammer.py")), stdin=PIPE, stdout=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        found: dict[str, float] = {}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            if await process.stdout.readline() != b"warm\n":
                raise RuntimeError("the neighbour did not get going")
            yield found
            process.stdin.close()
            said, _ = await process.communicate()
            found.update(json.loads(said))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _timed(self, prose: Prose) -> list[float]:
        sockets, path = SocketSaves(self._engines), saves_path(new_thread())
        lasted = []
        try:
            for body in _bodies(prose, self.saves):
                began = time.perf_counter()
                await sockets.post(path, body)
                lasted.append(time.perf_counter() - began)
        finally:
            sockets.close()
        return lasted

    async def slice(self, contender: str, prose: Prose) -> dict[str, float]:
        """Save one after another while the neighbour does what it does."""
        beside: dict[str, float] = {}
        if contender == ALONE:
            lasted = await self._timed(prose)
        else:
            async with self._hammered(self._urls[contender]) as found:
                lasted = await self._timed(prose)
            beside = {THEIRS: found[SAVED] * statistics.mean(lasted), **found}
        return {P50: statistics.median(lasted) * 1000, P99: statistics.quantiles(lasted, n=100)[98] * 1000, **beside}


@asynccontextmanager
async def neighbour_bench(engines: Engines, saves: int) -> AsyncIterator[NeighbourBench]:
    """Make the second tenant, and a second gateway while it is measured."""
    async with httpx2.AsyncClient(base_url=engines.url) as client:
        headers = {"Authorization": f"Bearer {engines.operator_key}"}
        founded = await client.post("/v1/admin/tenants", json={"name": "neighbour"}, headers=headers)
        founded.raise_for_status()
        # The key that comes with a tenant administers it, and opens no state.
        headers = {"Authorization": f"Bearer {founded.json()['api_key']}"}
        wanted = {"kind": "service", "permissions": ["state:write", "subject:act_as"]}
        made = await client.post("/v1/api-keys", json=wanted, headers=headers)
    made.raise_for_status()
    async with gateways.serving(engines, 1) as (other_url,):
        yield NeighbourBench(engines, other_url, made.json()["api_key"], saves)
