"""One tenant at its full allowance, and what another one and whoever asks `/livez` notice of it.

The victim saves and loads a small state, one request after another; `/livez` is asked every 10 ms on a connection of
its own. Both are measured before the attack and during it, so that what the machine does otherwise is in both. A wait
longer than 10 ms counts as often as somebody would have begun to wait meanwhile: one stall is not one of many samples.
So a second has the 100 samples of each that a 99th percentile takes.
Attackers are processes of their own (`tests.victims.attacker`); each case has a tenant of its own.
"""

import asyncio
import json
import resource
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import msgpack

from tests.support import gateway as support
from tests.support.operations import Tenancy
from tests.support.production import Deployment, Launcher, ProductionGateway, serving
from tests.victims.attacker import Connection

JSON, MSGPACK = "application/json", "application/msgpack"
LIVEZ_SECONDS = 0.01
WEIGH_SECONDS = 0.05
WARM_SECONDS = 0.3
STOP_SECONDS_MAX = 30.0
_PREPARED_AT_ONCE = 16
_PAGE_BYTES = resource.getpagesize()


class Request(NamedTuple):
    """A raw request.

    ``captures`` (a regular expression): what of the answer stands for `CAPTURED` in the next one. Not ``is_whole``:
    only its head is sent, whose end never comes.
    """

    head: bytes
    body: bytes = b""
    captures: str = ""
    is_whole: bool = True


class Line(NamedTuple):
    """So many connections, each sending these requests in turn. ``reads``: the answers, too, or their heads only."""

    connections: int
    requests: Sequence[Request]
    reads: bool = True


class Waits(NamedTuple):
    """How long everybody waited, in seconds, and what memory was taken meanwhile."""

    victim: list[float]
    livez: list[float]
    peak_bytes: int

    @property
    def victim_p99(self) -> float:
        return p99(self.victim)

    @property
    def livez_p99(self) -> float:
        return p99(self.livez)


class Measured(NamedTuple):
    """What one case came to."""

    before: Waits
    during: Waits
    answers: Mapping[str, int]

    @property
    def more_seconds(self) -> float:
        """How much longer than without the attack the victim, or `/livez`, waited at the 99th percentile."""
        return max(
            self.during.victim_p99 - self.before.victim_p99,
            self.during.livez_p99 - self.before.livez_p99,
        )


def p99(waits: Sequence[float]) -> float:
    """The 99th percentile of all who would have begun to wait, one every `LIVEZ_SECONDS`."""
    begun = [each - LIVEZ_SECONDS * later for each in waits for later in range(1 + int(each / LIVEZ_SECONDS))]
    return statistics.quantiles(begun, n=100, method="inclusive")[98]


def memory_bytes(pid: int) -> int:
    """What a gateway and its workers have of memory."""
    total = 0
    for each in (pid, *_children(pid)):
        with suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * _PAGE_BYTES
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


class Tenant:
    """The attacker's tenant, and the means to prepare what is attacked with."""

    def __init__(self, url: str, api_key: str) -> None:
        self.api_key = api_key
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port
        headers = {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": "attacker"}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60)
        self._url, self._headers = url, headers

    def close(self) -> None:
        self.client.close()

    def raw(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        media_type: str = JSON,
        accept: str = JSON,
        api_key: str | None = None,
        captures: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Request:
        """A request of this tenant, or of whoever has another key ("": nobody)."""
        key = self.api_key if api_key is None else api_key
        said = {"Host": f"{self.host}:{self.port}", "Stateroom-Subject": "attacker", "Accept": accept, **headers}
        if key:
            said["Authorization"] = f"Bearer {key}"
        if body:
            said["Content-Type"] = media_type
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in said.items())
        return Request(head.encode(), body, captures)

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Prepare something, which must succeed."""
        answer = self.client.request(method, path, **more)
        assert answer.status_code < 300, (path, answer.status_code, answer.text[:300])
        return answer

    def save(self, thread_id: str, **body: Any) -> httpx.Response:
        return self.send("POST", f"/v1/threads/{thread_id}/checkpoints", json=body)

    def send_many(self, requests: Sequence[Mapping[str, Any]], at_once: int = _PREPARED_AT_ONCE) -> None:
        """Prepare much: `httpx` arguments of each request."""
        asyncio.run(self._send_many(requests, at_once))

    async def _send_many(self, requests: Sequence[Mapping[str, Any]], at_once: int) -> None:
        turns = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=60) as client:

            async def send(what: Mapping[str, Any]) -> None:
                async with turns:
                    answer = await client.request(**what)
                    for pause_seconds in range(1, 10):
                        if answer.status_code not in {429, 503}:
                            break
                        await asyncio.sleep(pause_seconds / 10)
                        answer = await client.request(**what)
                assert answer.status_code < 300, (what["url"], answer.status_code, answer.text[:300])

            await asyncio.gather(*map(send, requests))


class Arena:
    """A gateway, a victim, and a place for attackers."""

    def __init__(self, gateway: ProductionGateway, folder: Path) -> None:
        deployment = gateway.deployment
        self._gateway = gateway
        self._tenancy = Tenancy(support.Tenant(gateway.url, deployment.api_key, deployment.operator_key))
        self._folder = folder
        self._victim = Tenant(gateway.url, self._tenancy.tenant())
        self._victim.close()

    @asynccontextmanager
    async def tenant(self, api_key: str | None = None) -> AsyncIterator[Tenant]:
        """A tenant that nobody else knows, so that nothing is held against it, or one that exists."""
        key = api_key or await asyncio.to_thread(self._tenancy.tenant)
        with closing(Tenant(self._gateway.url, key)) as tenant:
            yield tenant

    async def measure(self, seconds: float) -> Waits:
        """How long everybody waits who asks within so many seconds; everybody is answered, or this fails."""
        waits = Waits([], [], 0)
        end = time.monotonic() + seconds
        peak = 0

        async def act() -> None:
            connection = await Connection.open(str(self._victim.host), int(self._victim.port or 0))
            path = f"/v1/threads/victim-{uuid4()}/checkpoints"
            save = self._victim.raw("POST", path, json.dumps({"state": {"text": "small " * 100}}).encode())
            load = self._victim.raw("GET", f"{path}/latest")
            try:
                while time.monotonic() < end:
                    for request, expected in ((save, 201), (load, 200)):
                        began = time.monotonic()
                        status, said = await connection.exchange(request.head, request.body)
                        waits.victim.append(time.monotonic() - began)
                        assert status == expected, said[:300]
            finally:
                connection.close()

        async def poll() -> None:
            connection = await Connection.open(str(self._victim.host), int(self._victim.port or 0))
            livez = self._victim.raw("GET", "/livez", api_key="")
            try:
                while (began := time.monotonic()) < end:
                    status, said = await connection.exchange(livez.head, b"")
                    waits.livez.append(time.monotonic() - began)
                    assert status == 200, said[:300]
                    await asyncio.sleep(max(0.0, began + LIVEZ_SECONDS - time.monotonic()))
            finally:
                connection.close()

        async def weigh() -> None:
            nonlocal peak
            while True:
                peak = max(peak, memory_bytes(self._gateway.pid))
                await asyncio.sleep(WEIGH_SECONDS)

        weighing = asyncio.create_task(weigh())
        try:
            await asyncio.gather(act(), poll())
        finally:
            weighing.cancel()
        return waits._replace(peak_bytes=peak)

    @asynccontextmanager
    async def attacked(self, tenant: Tenant, lines: Sequence[Line]) -> AsyncIterator[dict[str, int]]:
        """While this is entered, an attacker sends ``lines``; then it says what it was answered."""
        file = self._folder / f"{uuid4().hex}.plan"
        await asyncio.to_thread(file.write_bytes, msgpack.packb(_plan(tenant, lines)))
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.victims.attacker", str(file), stdin=PIPE, stdout=PIPE,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        answers: dict[str, int] = {}
        try:
            assert attacker.stdin is not None
            assert attacker.stdout is not None
            assert await attacker.stdout.readline() == b"begun\n"
            yield answers
            attacker.stdin.close()
            async with asyncio.timeout(STOP_SECONDS_MAX):
                answers.update(json.loads(await attacker.stdout.readline()))
        finally:
            if attacker.returncode is None:
                with suppress(ProcessLookupError):
                    attacker.kill()
            await attacker.wait()
            file.unlink()

    async def attack(
        self,
        tenant: Tenant,
        lines: Sequence[Line],
        *,
        before_seconds: float,
        seconds: float,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> Measured:
        """Measure what others notice of ``lines``, and of what is done ``beside`` them, again and again."""
        before = await self.measure(before_seconds)
        async with self.attacked(tenant, lines) as answers, _repeated(beside) as done:
            during = await self.measure(seconds)
        return Measured(before, during, answers | done)


@asynccontextmanager
async def _repeated(what: Callable[[], Awaitable[None]] | None) -> AsyncIterator[dict[str, int]]:
    """While this is entered, something is done again and again; then it says how often it was."""
    done: dict[str, int] = {}
    if what is None:
        yield done
        return

    async def repeat() -> None:
        while True:
            await what()
            done["done"] = done.get("done", 0) + 1

    repeating = asyncio.create_task(repeat())
    try:
        yield done
    finally:
        repeating.cancel()
        with suppress(asyncio.CancelledError):
            await repeating


@asynccontextmanager
async def arena(launcher: Launcher, deployment: Deployment, folder: Path) -> AsyncIterator[Arena]:
    """A gateway of its own, warm. It is killed in the end: what an attack left it to do would take a while."""
    async with serving(launcher, deployment) as gateway:
        try:
            made = await asyncio.to_thread(Arena, gateway, folder)
            await made.measure(WARM_SECONDS)
            yield made
        finally:
            await gateway.kill()


def _plan(tenant: Tenant, lines: Sequence[Line]) -> dict[str, Any]:
    """What an attacker is told. Bodies are told once, however many requests have them."""
    bodies: dict[bytes, int] = {}
    told = [
        {
            **line._asdict(),
            "requests": [
                {**each._asdict(), "body": bodies.setdefault(each.body, len(bodies))} for each in line.requests
            ],
        }
        for line in lines
    ]
    return {"host": tenant.host, "port": tenant.port, "bodies": list(bodies), "lines": told}
