"""HTTP by aiohttp: what the asynchronous client sends with.

It takes a fifth of the processor time of httpx2 for a request of a few kilobytes, and an agent waits for every save.
It owns the reading of aiohttp's failures. Connections belong to the event loop and the process that made them. Two
things are left to ``httpx_transport``: proxies, because aiohttp reads the environment anew for each request, in a
thread, which costs more than the request; and content that is read as a stream, because it drops what it had buffered
when a connection breaks.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from stateroom._io.processes import PerProcess
from stateroom._io.transport import (
    CONNECTIONS_MAX,
    KEEPALIVE_SECONDS,
    SLICED_BYTES_MIN,
    AsyncTransport,
    NoAnswer,
    Reply,
    async_paced,
)
from stateroom.errors import ClientClosed

# An answer is read whole, so nothing is gained by stopping at 128 KB of it until those are taken: two stops in one of
# 465 KB took a tenth of the time that reading it takes here, and a seventh of what sending it takes there.
_UNPAUSED_BYTES = 1024 * 1024
_NEVER_RECEIVED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): text for name, text in response.headers.items()}


class AiohttpTransport:
    """An ``AsyncTransport`` to the network. What a fork inherits is neither used nor closed by it.

    Args:
        streams: Takes what is read as a stream; closed with this one.
    """

    def __init__(self, streams: AsyncTransport) -> None:
        self.stream = streams.stream
        self._close_streams = streams.aclose
        self._session: PerProcess[aiohttp.ClientSession] = PerProcess(_new_session)
        self._closed = False

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        try:
            return await self._exchange(method, url, headers, body, waits)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            kind, received = type(error), not isinstance(error, _NEVER_RECEIVED)
        raise NoAnswer(kind, received=received)  # not from its cause, which holds the request with its credential

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        if self._closed:
            raise ClientClosed("the client has been closed")
        connect, attempt = waits
        content: bytes | AsyncIterator[bytes] | None = body
        # A time limit of aiohttp's is one for everything, whatever is to be sent, or starts anew with each byte.
        async with asyncio.timeout(attempt) as limit:
            if body is not None and len(body) >= SLICED_BYTES_MIN:
                headers, content = {**headers, "Content-Length": str(len(body))}, async_paced(body, limit, attempt)
            async with self._session.mine().request(
                method,
                url,
                headers=headers,
                data=content,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=attempt, sock_connect=connect),
            ) as response:
                reply = Reply(response.status, _lower(response), await response.read())
            if isinstance(response, _Response):
                response.end_if_unsent()
            return reply

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._session.mine().close()
        await self._close_streams()


class _Response(aiohttp.ClientResponse):
    """Knows its connection after it let go of it, which is before a small answer is read."""

    _sent_on: asyncio.Transport | None = None

    async def start(self, connection: Any) -> "_Response":
        """Begin to read."""
        self._sent_on = connection.transport
        await super().start(connection)
        return self

    def end_if_unsent(self) -> None:
        """End the connection if it was answered before the request was sent whole.

        No caller takes the rest, so that the connection would stay open, and a loop that ends would leave it so. One
        that is being closed has no further use and is ended, too: over TLS it may not know any more what it holds.
        """
        sent_on = self._sent_on
        if sent_on is not None and (sent_on.is_closing() or sent_on.get_write_buffer_size()):
            sent_on.abort()


class _Connector(aiohttp.TCPConnector):
    """Ends in its own process only: in a fork, that would take its connections out of the selector both have."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._process = os.getpid()

    def __del__(self, *arguments: Any) -> None:
        if self._process == os.getpid():
            super().__del__(*arguments)


def _new_session() -> aiohttp.ClientSession:
    """A session, which belongs to the running event loop."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEPALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_Response,
        read_bufsize=_UNPAUSED_BYTES,
    )
