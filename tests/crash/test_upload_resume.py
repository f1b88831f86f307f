"""An upload whose gateway is killed goes on where it was, and no salt is ever used for two contents.

What the gateway sends to the object store is recorded by a proxy between them, so that the sealed parts of attempts
that came to nothing are seen as well.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from crypto.blob import PART_BYTES
from crypto.ciphers.cobblestone import SALT_BYTES
from tests.support.production import ProductionGateway, serving

_PART_PUT = re.compile(rb"PUT /[^ ]*[?&]partNumber=(\d+)[^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n", re.IGNORECASE)
PARTS = 3


class RecordingProxy:
    """Passes bytes between a gateway and the object store, and keeps what the gateway sends."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server
        self._sent: list[bytearray] = []
        self._known = 0
        self.part_began = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        recorded = bytearray()
        self._sent.append(recorded)
        try:
            back, onward = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, onward, recorded))
                both.create_task(self._pass(back, writer, None))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recorded: bytearray | None
    ) -> None:
        while data := await reader.read(1 << 16):
            if recorded is not None:
                recorded += data
                if not self.part_began.is_set() and len(self.salts()) > self._known:
                    self.part_began.set()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    def await_next_part(self) -> None:
        """From now on `part_began` is set when another part has begun to be sent."""
        self._known = len(self.salts())
        self.part_began.clear()

    def salts(self) -> list[bytes]:
        """The salt of every sealed part that began to be sent, in no order."""
        found = []
        for recorded in self._sent:
            for match in _PART_PUT.finditer(recorded):
                salt = bytes(recorded[match.end() : match.end() + SALT_BYTES])
                if len(salt) == SALT_BYTES:
                    found.append(salt)
        return found


@pytest.fixture
async def proxy(s3_server) -> AsyncIterator[tuple[RecordingProxy, str]]:
    url = s3_server.url()
    target = urlsplit(url)
    made = RecordingProxy(target.hostname, target.port)
    port = await made.start()
    yield made, url.replace(f":{target.port}/", f":{port}/")
    await made.stop()


def digest_field(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


async def half_a_part(gateway: ProductionGateway, path: str, content: bytes, share: float) -> asyncio.StreamWriter:
    """Send the head of a part and a share of its body."""
    address = urlsplit(gateway.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.deployment.api_key}\r\n"
        f"Stateroom-Subject: user-1\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content[: int(len(content) * share)])
    await writer.drain()
    return writer


async def put(client: httpx.AsyncClient, upload_id: str, number: int, content: bytes) -> None:
    headers = {"Content-Digest": digest_field(content)}
    stored = await client.put(f"/v1/uploads/{upload_id}/parts/{number}", content=content, headers=headers)
    assert stored.status_code == 200, stored.text


@pytest.mark.parametrize("moment", ["in the middle of the body", "while the part is being stored"])
@pytest.mark.parametrize("changed", [False, True])
async def test_a_killed_upload_goes_on_with_the_same_and_with_changed_bytes(
    deployment, launcher, proxy, moment, changed
):
    recorder, s3_url = proxy
    parts = [os.urandom(PART_BYTES), os.urandom(PART_BYTES), os.urandom(100_000)]
    settings = {"s3_url": s3_url}
    gateway = await ProductionGateway(launcher, deployment, **settings).start()
    async with gateway.client() as client:
        begun = await client.post(f"/v1/threads/{uuid4()}/uploads", json={"name": "big"})
        upload_id = begun.json()["upload_id"]
        await put(client, upload_id, 0, parts[0])
        recorder.await_next_part()
        path = f"/v1/uploads/{upload_id}/parts/1"
        whole = moment == "while the part is being stored"
        writer = await half_a_part(gateway, path, parts[1], 1.0 if whole else 0.5)
        if whole:
            await asyncio.wait_for(recorder.part_began.wait(), 20)
        await gateway.kill()
        writer.transport.abort()

    if changed:
        parts[1] = os.urandom(PART_BYTES)
    async with serving(launcher, deployment, **settings) as second, second.client() as client:
        arrived = (await client.get(f"/v1/uploads/{upload_id}")).json()["parts"]
        assert arrived[0]["digest"] == digest_field(parts[0])
        assert {each["part_number"] for each in arrived} <= {0, 1}
        for number in (1, 2):
            await put(client, upload_id, number, parts[number])
        content = b"".join(parts)
        body = {"parts": PARTS, "digest": digest_field(content)}
        done = await client.post(f"/v1/uploads/{upload_id}/complete", json=body)
        assert done.status_code == 201, done.text
        assert done.json()["digest"] == digest_field(content)
        answer = await client.get(f"/v1/artifacts/{upload_id}/content")
        assert hashlib.sha256(answer.content).digest() == hashlib.sha256(content).digest()

    salts = recorder.salts()
    assert len(salts) >= PARTS + whole  # every stored part, and the one that was being stored
    assert len(set(salts)) == len(salts)


async def test_a_part_that_replaces_another_has_a_salt_of_its_own_and_a_repeated_one_is_not_sealed_again(
    deployment, launcher, proxy
):
    recorder, s3_url = proxy
    async with serving(launcher, deployment, s3_url=s3_url) as gateway, gateway.client() as client:
        begun = await client.post(f"/v1/threads/{uuid4()}/uploads", json={"name": "big"})
        upload_id = begun.json()["upload_id"]
        first, second = os.urandom(PART_BYTES), os.urandom(PART_BYTES)
        for content in (first, first, second, second, first):
            await put(client, upload_id, 0, content)
    salts = recorder.salts()
    assert len(salts) == len(set(salts)) == len([first, second, first])
