"""An HTTP proxy in front of a real S3 server that breaks by script what passes through it.

    async with S3Faults(s3_server) as faults:
        faults.plan("put_object", None, S3Fault.LOST_ANSWER)   # the second PUT is done, but nobody hears of it
        faults.always("get_object", S3Fault.DRIP)
        faults.connections_refused = 2                         # the next two are closed before anything is read
        store = S3BlobStore(S3Location.parse(faults.url()))

Requests that no plan covers pass. What a plan still holds is in `planned`; every request that was read is in
`requests`, by the name of its S3 operation. Signatures stay good: the server checks them against the host that the
client named.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from gateway.embedded.s3 import EmbeddedS3

_HEAD_BYTES_MAX = 64 * 1024
_DRIP_SECONDS = 0.02

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class S3Fault(Enum):
    """What goes wrong with one request."""

    LOST_REQUEST = "read, and the connection closed; the server never hears of it"
    LOST_ANSWER = "done, and the connection closed instead of an answer"
    SLOW_DOWN = "503 SlowDown; the server never hears of it"
    ERROR_IN_OK = "200 whose body is an error, as S3 may answer to completing an upload; the server never hears of it"
    TRUNCATED = "done, and the connection closed in the middle of the body"
    DRIP = "done, and the body comes in one byte at a time"


class S3Faults:
    """See the module.

    Attributes:
        connections_refused: How many of the next connections are closed at once; negative: all of them.
        connections: How many there were.
        requests: Operations that were asked for, in order.
        region: Where the bucket is; a request that is signed for another one is sent there. None: anywhere.
    """

    def __init__(self, server: EmbeddedS3) -> None:
        self.connections_refused = 0
        self.connections = 0
        self.requests: list[str] = []
        self.region: str | None = None
        self._server = server
        self._plans: defaultdict[str, deque[S3Fault | None]] = defaultdict(deque)
        self._always: dict[str, S3Fault] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        self._port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listening.wait_closed()

    def url(self) -> str:
        """The `STATEROOM_S3_URL` that leads through here."""
        port = urlsplit(self._server.endpoint_url).port
        return self._server.url().replace(f":{port}/", f":{self._port}/")

    def plan(self, operation: str, *faults: S3Fault | None) -> None:
        """Let the next requests for an operation fail so, one after another; None lets one pass."""
        self._plans[operation].extend(faults)

    def always(self, operation: str, fault: S3Fault) -> None:
        """Let every request for an operation fail so, once its plan is through."""
        self._always[operation] = fault

    def heal(self) -> None:
        """Let everything pass from now on."""
        self._plans.clear()
        self._always.clear()
        self.connections_refused = 0

    @property
    def planned(self) -> int:
        """How many planned requests were not made yet."""
        return sum(map(len, self._plans.values()))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self.connections += 1
            if self.connections_refused:
                self.connections_refused -= 1
                return
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is closed under a client that still waits
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request; the answer ends the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = lines[0].split(" ")
        operation = _operation(method, target)
        self.requests.append(operation)
        plans = self._plans[operation]
        fault = plans.popleft() if plans else self._always.get(operation)
        if fault is S3Fault.LOST_REQUEST:
            return
        if fault in {S3Fault.SLOW_DOWN, S3Fault.ERROR_IN_OK}:
            text, line = (_SLOW_DOWN, "503 Slow Down") if fault is S3Fault.SLOW_DOWN else (_INTERNAL, "200 OK")
            about = f"HTTP/1.1 {line}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n"
            writer.write(f"{about}Connection: close\r\n\r\n".encode() + text)
            await writer.drain()
            return
        if self.region is not None and f"/{self.region}/s3/" not in headers.get("authorization", ""):
            writer.write(_elsewhere(self.region, method))
            await writer.drain()
            return
        answer = await self._forward(lines, body)
        if self.region is not None:
            answer = answer.replace(b"\r\n", f"\r\nx-amz-bucket-region: {self.region}\r\n".encode(), 1)
        if fault is S3Fault.LOST_ANSWER:
            return
        end = answer.index(b"\r\n\r\n") + 4
        if fault is S3Fault.TRUNCATED:
            answer = answer[: end + (len(answer) - end) // 2]
        elif fault is S3Fault.DRIP:
            writer.write(answer[:end])
            for each in answer[end:]:
                writer.write(bytes([each]))
                await writer.drain()
                await asyncio.sleep(_DRIP_SECONDS)
            return
        writer.write(answer)
        await writer.drain()

    async def _forward(self, lines: list[str], body: bytes) -> bytes:
        """The server's whole answer."""
        kept = [line for line in lines if line.partition(":")[0].lower() not in {"connection", "expect"}]
        server = urlsplit(self._server.endpoint_url)
        reader, writer = await asyncio.open_connection(server.hostname, server.port)
        try:
            writer.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1") + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def _elsewhere(region: str, method: str) -> bytes:
    """S3's redirect, which names a region and no address; the answer to HEAD has no body."""
    about = f"HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: {region}\r\nConnection: close\r\n"
    text = b"" if method == "HEAD" else b"<Error><Code>PermanentRedirect</Code><Message>Elsewhere.</Message></Error>"
    return f"{about}Content-Length: {len(text)}\r\n\r\n".encode() + text


def _operation(method: str, target: str) -> str:
    """The S3 operation that a request asks for, named as boto3 does."""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    if "uploads" in query:
        return "create_multipart_upload" if method == "POST" else "list_multipart_uploads"
    if "uploadId" in query:
        named = {"PUT": "upload_part", "POST": "complete_multipart_upload", "DELETE": "abort_multipart_upload"}
        return named.get(method, "list_parts")
    if "list-type" in query:
        return "list_objects_v2"
    return f"{method.lower()}_object"
