"""Gateways on ports that stay theirs, so that one that was stopped comes back where a proxy looks for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.metrics import free_port
from tests.support.production import Deployment, Launcher, ProductionGateway


class Rotation:
    """So many gateways of a deployment, running in the block."""

    def __init__(self, launcher: Launcher, deployment: Deployment, count: int = 2, **settings: str) -> None:
        self.deployment = deployment
        self.ports = [(free_port(), free_port()) for _ in range(count)]
        self.gateways = [
            ProductionGateway(
                launcher,
                deployment,
                "--port",
                str(port),
                **{"metrics_listen": f"127.0.0.1:{metrics_port}", "log_level": "info"} | settings,
            )
            for port, metrics_port in self.ports
        ]

    async def __aenter__(self) -> Self:
        for gateway in self.gateways:
            await gateway.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gateway in self.gateways:
            if gateway.pid:
                await gateway.kill()

    def headers(self, subject: str = "user-1") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.deployment.api_key}", "Stateroom-Subject": subject}


class Load:
    """What clients without any patience of their own notice: the status of each answer, or what came instead of it."""

    def __init__(self) -> None:
        self.answers: list[int | str] = []
        self.saved: dict[str, int] = {}

    @property
    def failed(self) -> list[int | str]:
        return [each for each in self.answers if each not in {200, 201}]

    async def save_and_load(self, client: httpx.AsyncClient, thread_id: str, over: asyncio.Event) -> None:
        while not over.is_set():
            sent = self.saved.get(thread_id, 0)
            if await self._ask(client.post(f"/v1/threads/{thread_id}/checkpoints", json={"state": {"n": sent}})) == 201:
                self.saved[thread_id] = sent + 1
            await self._ask(client.get(f"/v1/threads/{thread_id}/checkpoints/latest"))

    async def _ask(self, asking: Any) -> int | str:
        try:
            answer: int | str = (await asking).status_code
        except httpx.HTTPError as error:
            answer = type(error).__name__
        self.answers.append(answer)
        return answer


@contextlib.asynccontextmanager
async def under_load(connect: Callable[[], httpx.AsyncClient], name: str, writers: int = 4) -> AsyncIterator[Load]:
    """Save and load in the block, each writer in a thread and with a connection of its own."""
    load, over = Load(), asyncio.Event()

    async def write(number: int) -> None:
        async with connect() as client:
            await load.save_and_load(client, f"{name}-{number}", over)

    async with asyncio.TaskGroup() as running:
        for number in range(writers):
            running.create_task(write(number))
        try:
            while len(load.answers) < 10 * writers:  # noqa: ASYNC110 - each answer is the event
                await asyncio.sleep(0.01)
            yield load
        finally:
            over.set()
