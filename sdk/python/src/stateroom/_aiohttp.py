"""HTTP by aiohttp: what the asynchronous client sends with.

It takes a fifth of the processor time of httpx2 for a request of a few kilobytes, and an agent waits for every save.
It owns the reading of aiohttp's failures. Connections belong to the event loop they were made on. Two things are left
to ``_httpx``: proxies, because aiohttp reads the environment anew for each request, in a thread, which costs more than
the request; and content that is read as a stream, because it drops what it had buffered when a connection breaks.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp

from stateroom._transport import CONNECTIONS_MAX, KEEPALIVE_SECONDS, SLICED_BYTES_MIN, NoAnswer, Reply, slices

# An answer is read whole, so nothing is gained by stopping at 128 KB of it until those are taken: two stops in one of
# 465 KB took a tenth of the time that reading it takes here, and a seventh of what sending it takes there.
_UNPAUSED_BYTES = 1024 * 1024
_NEVER_RECEIVED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): text for name, text in response.headers.items()}


class AiohttpTransport:
    """An ``AsyncTransport`` to the network."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def _http(self) -> aiohttp.ClientSession:
        """The session, made when first needed: it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEPALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_UNPAUSED_BYTES,
            )
        return self._session

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        try:
            if body is not None and len(body) >= SLICED_BYTES_MIN:
                return await self._send_slices(method, url, headers, body, waits)
            async with self._request(method, url, headers, body, waits) as response:
                return Reply(response.status, _lower(response), await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            kind, received = type(error), not isinstance(error, _NEVER_RECEIVED)
        raise NoAnswer(kind, received=received)  # not from its cause, which holds the request with its credential

    async def _send_slices(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, waits: tuple[float, float]
    ) -> Reply:
        """A large body, slice by slice: aiohttp has no time limit for sending, so each slice has one here."""
        patience = sum(waits)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(patience) as limit:

            async def content() -> AsyncIterator[bytes]:
                for piece in slices(body):
                    limit.reschedule(loop.time() + patience)
                    yield piece
                limit.reschedule(loop.time() + patience)

            headers = {**headers, "Content-Length": str(len(body))}
            async with self._request(method, url, headers, content(), waits) as response:
                return Reply(response.status, _lower(response), await response.read())

    def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None,
        waits: tuple[float, float],
    ) -> "aiohttp.client._RequestContextManager":
        connect, other = waits
        return self._http().request(
            method,
            url,
            headers=headers,
            data=body,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=other, sock_connect=connect, sock_read=other),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
