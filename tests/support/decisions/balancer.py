"""One address for several gateways: each connection goes to one that is up, and ends when that is killed."""

import asyncio
import contextlib
import random  # noqa: TID251 - seeded
from typing import Self

_BLOCK_BYTES = 1 << 16


class Balancer:
    """Listens on `url`, and passes connections on to the ports of `up`.

    Attributes:
        up: The ports of those that are up.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.up: set[int] = set()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if self.up:
                await self._connect(reader, writer, self._rng.choice(sorted(self.up)))
        except (OSError, asyncio.CancelledError):
            pass  # one that was killed, or the end of the test
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", port)
        try:
            ways = [asyncio.create_task(_pass_on(reader, here)), asyncio.create_task(_pass_on(there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in ways:
                    each.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            here.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(_BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
