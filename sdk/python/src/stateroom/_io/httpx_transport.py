"""HTTP by httpx2: through proxies, and whatever httpx2 transport a caller brings; on a loop also content as a stream.

It owns the reading of httpx2's failures. Straight to the gateway ``aiohttp_transport`` and ``httpcore_transport`` are
used, which take less processor time. A fork makes connections of its own; those it inherits it neither uses nor closes,
since httpx2 would take a lock for that. A transport that a caller brings is the caller's in every process. The blocking
transport does not bound the head of an answer that trickles: httpx2 has a time limit for each read only.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx2

from stateroom._io.processes import PerProcess
from stateroom._io.transport import (
    CONNECTIONS_MAX,
    KEEPALIVE_SECONDS,
    SLICED_BYTES_MIN,
    Deadline,
    NoAnswer,
    Reply,
    async_paced,
    paced,
)
from stateroom.errors import ClientClosed

_LIMITS = httpx2.Limits(
    max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX, keepalive_expiry=KEEPALIVE_SECONDS
)
_NEVER_RECEIVED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def _timeout(seconds: tuple[float, float]) -> httpx2.Timeout:
    connect, other = seconds
    return httpx2.Timeout(other, connect=connect)


def _lower(headers: httpx2.Headers) -> dict[str, str]:
    return {name.lower(): text for name, text in headers.items()}


_WITH_DEADLINE = (httpx2.RequestError, TimeoutError)


@contextmanager
def _without_text(failures: tuple[type[Exception], ...] = (httpx2.RequestError,)) -> Iterator[None]:
    """Tell a failure without its cause, which holds the request with its credential."""
    try:
        yield
    except failures as error:
        kind, received = type(error), not isinstance(error, _NEVER_RECEIVED)
    else:
        return
    raise NoAnswer(kind, received=received)


def _by(deadline: Deadline, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        deadline.seconds_left()
        yield piece


class _Stream:
    """An answer whose body is still to be read, by a blocking caller."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = _lower(response.headers)
        self._response = response

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives. Raises ``NoAnswer`` where it breaks off."""
        with _without_text():
            yield from self._response.iter_bytes()

    def read(self) -> bytes:
        """The whole body. Raises ``NoAnswer`` where it breaks off."""
        with _without_text():
            return self._response.read()


class HttpxTransport:
    """A ``Transport``. It begins with its first request, or when told to.

    Args:
        transport: Another httpx2 transport than a network connection.
    """

    def __init__(self, transport: httpx2.BaseTransport | None) -> None:
        self._http = PerProcess(lambda: httpx2.Client(transport=transport, limits=_LIMITS, follow_redirects=False))
        self._closed = False

    def begin(self) -> None:
        """Tell now what is wrong with the environment: its proxies, its certificates."""
        self._open()

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        deadline = Deadline(waits[1])
        content: bytes | Iterator[bytes] | None = body
        if body is not None and len(body) >= SLICED_BYTES_MIN:
            headers, content = {**headers, "Content-Length": str(len(body))}, paced(body, deadline)
        request = self._open().stream(method, url, headers=headers, content=content, timeout=_timeout(waits))
        with _without_text(_WITH_DEADLINE), request as answer:
            return Reply(answer.status_code, _lower(answer.headers), b"".join(_by(deadline, answer.iter_bytes())))

    @contextmanager
    def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> Iterator[_Stream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""
        request = self._open().stream(method, url, headers=headers, timeout=_timeout(waits))
        with _without_text(), request as response:
            yield _Stream(response)

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        http = self._http.made()
        if http is not None:
            http.close()

    def _open(self) -> httpx2.Client:
        if self._closed:
            raise ClientClosed("the client has been closed")
        return self._http.mine()


class _AsyncStream:
    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = _lower(response.headers)
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        with _without_text():
            async for piece in self._response.aiter_bytes():
                yield piece

    async def read(self) -> bytes:
        with _without_text():
            return await self._response.aread()


class AsyncHttpxTransport:
    """An ``AsyncTransport`` that can stream, too. It begins with its first request, or when told to.

    Args:
        transport: Another httpx2 transport than a network connection.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._http = PerProcess(lambda: httpx2.AsyncClient(transport=transport, limits=_LIMITS, follow_redirects=False))
        self._closed = False

    def begin(self) -> None:
        """Tell now what is wrong with the environment: its proxies, its certificates."""
        self._open()

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        attempt = waits[1]
        content: bytes | AsyncIterator[bytes] | None = body
        with _without_text(_WITH_DEADLINE):
            async with asyncio.timeout(attempt) as limit:
                if body is not None and len(body) >= SLICED_BYTES_MIN:
                    headers, content = {**headers, "Content-Length": str(len(body))}, async_paced(body, limit, attempt)
                http = self._open()
                answer = await http.request(method, url, headers=headers, content=content, timeout=_timeout(waits))
                return Reply(answer.status_code, _lower(answer.headers), answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> AsyncIterator[_AsyncStream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""
        request = self._open().stream(method, url, headers=headers, timeout=_timeout(waits))
        with _without_text():
            async with request as response:
                yield _AsyncStream(response)

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        http = self._http.made()
        if http is not None:
            await http.aclose()

    def _open(self) -> httpx2.AsyncClient:
        if self._closed:
            raise ClientClosed("the client has been closed")
        return self._http.mine()
