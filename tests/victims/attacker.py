"""A tenant at its worst: a process of its own that keeps connections busy with raw requests until it is ended.

It is told what to send by a file in MessagePack, says `begun`, and when its standard input ends, how often it got each
status. It never waits longer than `PAUSE_SECONDS` after a refusal, whatever the refusal says. `Connection` is the HTTP
client of the victims, too: next to nothing, so that what is measured is the gateway.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgpack

NUMBER, CAPTURED = b"@N@", b"@ID@"  # in a request: another text in each round; what was captured from the answer before
PAUSE_SECONDS = 0.05
CHANGED_BYTES_MAX = 4096  # as large a body has placeholders
KEPT_BYTES = 4096  # of an answer, for whoever captures something
_CHUNK_BYTES = 256 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class Connection:
    """One connection to a gateway: a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int, *, receives_bytes: int | None = None) -> Self:
        """Connect; ``receives_bytes``: how much the kernel keeps of what is not read."""
        opened = socket.socket()
        if receives_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (host, port))
        return cls(*await asyncio.open_connection(sock=opened))

    def close(self) -> None:
        self._writer.transport.abort()

    async def send(self, head: bytes, body: bytes) -> None:
        self._writer.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
        for at in range(0, len(body), _CHUNK_BYTES):
            self._writer.write(body[at : at + _CHUNK_BYTES])
            await self._writer.drain()

    async def hold(self, part: bytes) -> None:
        """Send what is not a whole request, and wait until the gateway has had enough of it.

        Raises:
            EOFError: it has.
        """
        self._writer.write(part)
        await self._reader.read()
        raise EOFError

    async def status(self) -> tuple[int, bytes]:
        """The status of an answer, and its head."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head[9:12]), head

    async def _bytes(self, count: int, kept: bytearray) -> None:
        while count:
            part = await self._reader.read(min(count, _CHUNK_BYTES))
            if not part:
                raise EOFError
            count -= len(part)
            kept += part[: KEPT_BYTES - len(kept)]

    async def exchange(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer: the status and the beginning of the content.

        An answer that came before all was sent ends the connection, as it has to.
        """
        sending = asyncio.ensure_future(self.send(head, body))
        try:
            status, said = await self.status()
            kept = bytearray()
            if _CHUNKED.search(said):
                while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    await self._bytes(size, kept)
                    await self._reader.readexactly(2)
                await self._reader.readexactly(2)
            elif status not in {204, 304} and (length := _LENGTH.search(said)):
                await self._bytes(int(length[1]), kept)
            if not sending.done():
                self.close()
            return status, bytes(kept)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


class Attacker:
    """What is sent, and what came of it."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._host, self._port = plan["host"], plan["port"]
        self._bodies = plan["bodies"]
        self._lines = plan["lines"]
        self.answers: Counter[str] = Counter()

    async def _rounds(self, line: Mapping[str, Any], connection: Connection, name: str) -> None:
        round_number = 0
        while True:
            round_number += 1
            number = f"{name}-{round_number}".encode()
            captured = b"none"
            for request in line["requests"]:
                head, body = request["head"], self._bodies[request["body"]]
                head = head.replace(NUMBER, number).replace(CAPTURED, captured)
                if len(body) <= CHANGED_BYTES_MAX:
                    body = body.replace(NUMBER, number).replace(CAPTURED, captured)
                if not request["is_whole"]:
                    await connection.hold(head)
                if not line["reads"]:
                    await connection.send(head, body)
                    status, _ = await connection.status()
                    self.answers[str(status)] += 1
                    if status < 400:
                        await asyncio.sleep(3600)
                else:
                    status, said = await connection.exchange(head, body)
                    self.answers[str(status)] += 1
                    if request["captures"] and (found := re.search(request["captures"], said)):
                        captured = found[1]
                if status in {429, 503}:
                    await asyncio.sleep(PAUSE_SECONDS)

    async def keep_busy(self, line: Mapping[str, Any], name: str) -> None:
        """One connection, again and again."""
        while True:
            try:
                connection = await Connection.open(
                    self._host, self._port, receives_bytes=None if line["reads"] else 16 * 1024
                )
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                await self._rounds(line, connection, name)
            except (OSError, EOFError, ValueError):
                self.answers["closed"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                connection.close()

    async def run(self) -> None:
        """Keep all connections busy until standard input ends."""
        busy = [
            asyncio.create_task(self.keep_busy(line, f"{number}-{index}"))
            for number, line in enumerate(self._lines)
            for index in range(line["connections"])
        ]
        print("begun", flush=True)  # noqa: T201 - the answer
        await asyncio.to_thread(sys.stdin.read)
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


def main() -> None:
    """Do what the file says that the command line names."""
    os.nice(5)  # the attacker's processors are his own, not those of whom he attacks
    attacker = Attacker(msgpack.unpackb(Path(sys.argv[1]).read_bytes()))
    asyncio.run(attacker.run())
    print(json.dumps(attacker.answers), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
