"""HTTP by httpx2: through proxies, content as a stream, and whatever httpx2 transport a caller brings.

It owns the reading of httpx2's failures. For whole answers straight from the gateway ``_aiohttp`` and ``_http_client``
are used, which take less processor time.
"""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx2

from stateroom._transport import CONNECTIONS_MAX, KEEPALIVE_SECONDS, SLICED_BYTES_MIN, NoAnswer, Reply, slices

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


@contextmanager
def _told() -> Iterator[None]:
    """Tell a failure without its cause, which holds the request with its credential."""
    try:
        yield
    except httpx2.RequestError as error:
        kind, received = type(error), not isinstance(error, _NEVER_RECEIVED)
    else:
        return
    raise NoAnswer(kind, received=received)


async def _async_slices(body: bytes) -> AsyncIterator[bytes]:
    for piece in slices(body):
        yield piece


class Stream:
    """An answer whose body is still to be read, by a blocking caller."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = _lower(response.headers)
        self._response = response

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives. Raises ``NoAnswer`` where it breaks off."""
        with _told():
            yield from self._response.iter_bytes()

    def read(self) -> bytes:
        """The whole body. Raises ``NoAnswer`` where it breaks off."""
        with _told():
            return self._response.read()


class HttpxTransport:
    """As ``AsyncTransport``, for blocking callers.

    Args:
        transport: Another httpx2 transport than a network connection.
        tls: Which certificates to trust, if not the usual ones.
    """

    def __init__(self, transport: httpx2.BaseTransport | None, tls: ssl.SSLContext | None = None) -> None:
        self._http = httpx2.Client(transport=transport, limits=_LIMITS, follow_redirects=False, verify=tls or True)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        content: bytes | Iterator[bytes] | None = body
        if body is not None and len(body) >= SLICED_BYTES_MIN:
            headers, content = {**headers, "Content-Length": str(len(body))}, slices(body)
        with _told():
            answer = self._http.request(method, url, headers=headers, content=content, timeout=_timeout(waits))
            return Reply(answer.status_code, _lower(answer.headers), answer.content)

    @contextmanager
    def stream(self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]) -> Iterator[Stream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""
        with _told(), self._http.stream(method, url, headers=headers, timeout=_timeout(waits)) as response:
            yield Stream(response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class _AsyncStream:
    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = _lower(response.headers)
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        with _told():
            async for piece in self._response.aiter_bytes():
                yield piece

    async def read(self) -> bytes:
        with _told():
            return await self._response.aread()


class AsyncHttpxTransport:
    """An ``AsyncTransport`` that can stream, too.

    Args:
        transport: Another httpx2 transport than a network connection.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._http = httpx2.AsyncClient(transport=transport, limits=_LIMITS, follow_redirects=False)

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        content: bytes | AsyncIterator[bytes] | None = body
        if body is not None and len(body) >= SLICED_BYTES_MIN:
            headers, content = {**headers, "Content-Length": str(len(body))}, _async_slices(body)
        with _told():
            answer = await self._http.request(method, url, headers=headers, content=content, timeout=_timeout(waits))
            return Reply(answer.status_code, _lower(answer.headers), answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> AsyncIterator[_AsyncStream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""
        with _told():
            async with self._http.stream(method, url, headers=headers, timeout=_timeout(waits)) as response:
                yield _AsyncStream(response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
