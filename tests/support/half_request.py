"""A save whose body stops in the middle: a request that is surely in flight, for as long as a test wants."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

from gateway.admission.limits import BODY_IDLE_SECONDS_MAX
from tests.support.production import ProductionGateway

_BLANKS = 100


@asynccontextmanager
async def held_open(requests: Iterable["HalfRequest"]) -> AsyncIterator[list["HalfRequest"]]:
    """Begin requests and keep them going, however long a busy machine takes for what is done meanwhile."""
    begun = await asyncio.gather(*(each.begin() for each in requests))

    async def go_on() -> None:
        while True:
            await asyncio.sleep(BODY_IDLE_SECONDS_MAX / 5)
            for each in begun:
                await each.send_blank()

    going = asyncio.create_task(go_on())
    try:
        yield begun
    finally:
        going.cancel()


class HalfRequest:
    """Sends the head of a save and all of its body but the last blanks."""

    def __init__(
        self,
        gateway: ProductionGateway,
        thread_id: str,
        *,
        subject: str = "user-1",
        api_key: str | None = None,
        body_bytes: int = 0,
    ) -> None:
        self._address = urlsplit(gateway.url)
        body = json.dumps({"state": {"n": uuid4().hex}}).encode()
        body = body.replace(b'"}}', b"x" * (body_bytes - len(body) - _BLANKS) + b'"}}') + b" " * _BLANKS
        head = (
            f"POST /v1/threads/{thread_id}/checkpoints HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {api_key or gateway.deployment.api_key}\r\nStateroom-Subject: {subject}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._first, self._left = head.encode() + body[:-_BLANKS], _BLANKS
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def begin(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        self._writer.write(self._first)
        await self._writer.drain()
        return self

    async def send_blank(self) -> None:
        """Send one byte more, unless it is the last: a client that sends nothing is given up in a few seconds."""
        if self._left > 1:
            self._left -= 1
            self._writer.write(b" ")
            await self._writer.drain()

    async def send_rest(self) -> None:
        self._writer.write(b" " * self._left)
        self._left = 0
        await self._writer.drain()

    async def finish(self) -> int:
        """Send the last byte; return the status of the answer."""
        await self.send_rest()
        answer = await self._reader.read()
        self._writer.close()
        return int(answer.split(b" ", 2)[1])

    def hang_up(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()
