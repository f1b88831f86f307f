"""A wire between a gateway and PostgreSQL whose bytes are counted, and that can be cut, also exactly at a COMMIT."""

import asyncio
import contextlib
import re
from typing import Literal, Self

_COMMIT = b"COMMIT\0"  # as a simple query ends; nothing else that the gateway sends holds it
# The preparation of a function that commits with its statement, and the statement's name on this connection.
_PREPARED = re.compile(rb"P.{4}([^\0]+)\0SELECT stateroom\.(?:save_on|put_writes_on)_\d+\(", re.DOTALL)
_BLOCK_BYTES = 1 << 16


class Interruption:
    """Listens on `port` and passes everything on to `target_port`, which may change.

    Attributes:
        at_commit: Cut the connection of the next COMMIT, or of the next call of a function that is a transaction
            of its own, ``before`` PostgreSQL hears of it or ``after`` it has answered, and then no other.
        cut_a_function: Whether it was one of those.
        asked_bytes: How many bytes PostgreSQL was sent.
        answered_bytes: How many bytes it sent.
        flowing: Answers come while it is set; cleared, PostgreSQL seems to be frozen.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.at_commit: Literal["before", "after"] | None = None
        self.cut_a_function = False
        self.asked_bytes = self.answered_bytes = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
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
            await self._connect(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the test: asyncio would call it an error of this callback
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            return
        answer_lost = asyncio.Event()
        ways = {
            asyncio.create_task(self._ask(reader, upstream, answer_lost)),
            asyncio.create_task(self._answer(upstream_reader, writer, answer_lost)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            upstream.transport.abort()

    async def _ask(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, answer_lost: asyncio.Event
    ) -> None:
        functions: set[bytes] = set()
        with contextlib.suppress(OSError):
            while block := await reader.read(_BLOCK_BYTES):
                calls = any(b"\0" + name + b"\0" in block for name in functions)
                functions.update(_PREPARED.findall(block))
                if self.at_commit is not None and (calls or _COMMIT in block):
                    how, self.at_commit = self.at_commit, None
                    self.cut_a_function = calls
                    if how == "before":
                        return
                    answer_lost.set()
                self.asked_bytes += len(block)
                upstream.write(block)
                await upstream.drain()

    async def _answer(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_lost: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while (block := await upstream.read(_BLOCK_BYTES)) and not answer_lost.is_set():
                await self.flowing.wait()
                self.answered_bytes += len(block)
                writer.write(block)
                await writer.drain()
