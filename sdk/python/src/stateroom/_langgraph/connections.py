"""The connections of a saver, a store or a cache: one client for blocking calls, and one for every event loop.

This module owns when their clients are made and closed, in each process and on each loop. What they send with, and
what a fork must not share of that, is theirs to know.
"""

import asyncio
import copy
import threading
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self, TypedDict
from weakref import WeakKeyDictionary

import httpx2

from stateroom._io.processes import PerProcess
from stateroom._protocol.core import Endpoint, Timeouts
from stateroom.async_client import AsyncClient
from stateroom.client import Client
from stateroom.share import ClientShare
from stateroom.subject import Subject, current_subject
from stateroom.tokens import TokenStore


class ConnectionOptions(TypedDict, total=False):
    """The options that all of them have, which they describe."""

    subject: Subject
    timeouts: Timeouts | None
    transport: Callable[[], httpx2.BaseTransport] | None
    async_transport: Callable[[], httpx2.AsyncBaseTransport] | None
    client_share: ClientShare


class Connected:
    """What LangGraph calls and a gateway serves: it acts for whoever its endpoint says, and is closed."""

    def _connect(
        self, url: str, api_key: str, options: ConnectionOptions, *,
        timeouts: Timeouts | None = None, token_store: TokenStore | None = None,
    ) -> None:  # fmt: skip
        """Say where it is; ``timeouts`` are those of who gave none.

        Raises:
            NotConfigured: The URL or the key cannot be used.
        """
        subject, client_share = options.get("subject", current_subject), options.get("client_share")
        timeouts = options.get("timeouts") or timeouts
        transport, async_transport = options.get("transport"), options.get("async_transport")
        # Refuses an unusable address now, not at the first request.
        self._endpoint = Endpoint(url, api_key, subject, client_share)
        self._connections = Connections(
            lambda: Client(
                url,
                api_key,
                subject=subject,
                timeouts=timeouts,
                transport=transport and transport(),
                token_store=token_store,
                client_share=client_share,
            ),
            lambda: AsyncClient(
                url,
                api_key,
                subject=subject,
                timeouts=timeouts,
                transport=async_transport and async_transport(),
                token_store=token_store,
                client_share=client_share,
            ),
        )

    @property
    def endpoint(self) -> Endpoint:
        """Where its gateway is, and whom it acts for."""
        return self._endpoint

    @property
    def connections(self) -> "Connections":
        """Its clients."""
        return self._connections

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections of the blocking methods; a later call opens new ones.

        Connections of an event loop are closed by ``aclose`` on it, or when it shuts down.
        """
        self._connections.close_blocking()

    async def aclose(self) -> None:
        """Close the connections of the running event loop and of the blocking methods."""
        await self._connections.close_on_loop()
        self._connections.close_blocking()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy shallowly: the copy shares connections, which cannot be copied."""
        return copy.copy(self)


class Connections:
    """The clients of one of them and of its shallow copies: one for worker threads, one for every event loop."""

    def __init__(self, blocking: Callable[[], Client], on_loop: Callable[[], AsyncClient]) -> None:
        self._make_blocking = blocking
        self._make_on_loop = on_loop
        self._lock = PerProcess(threading.Lock)
        self._blocking: Client | None = None
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncClient, AsyncGenerator[None, None]]] = (
            WeakKeyDictionary()
        )

    def blocking(self) -> Client:
        """The client of blocking calls, made when first needed."""
        with self._lock.mine():
            if self._blocking is None:
                self._blocking = self._make_blocking()
            return self._blocking

    async def on_loop(self) -> AsyncClient:
        """The client of the running event loop, made when first needed; it is closed with the loop."""
        loop = asyncio.get_running_loop()
        with self._lock.mine():
            opened = self._by_loop.get(loop)
            if opened is not None:
                return opened[0]
            for other in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[other]
            client = self._make_on_loop()
            lifetime = _until_loop_ends(client)
            self._by_loop[loop] = client, lifetime
        # Starting the generator registers it with the loop, which finishes it when it shuts down.
        await anext(lifetime)
        return client

    def close_blocking(self) -> None:
        """Close the client of blocking calls; a later one opens another."""
        with self._lock.mine():
            client, self._blocking = self._blocking, None
        if client is not None:
            client.close()

    async def close_on_loop(self) -> None:
        """Close the client of the running event loop."""
        with self._lock.mine():
            opened = self._by_loop.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].aclose()


async def _until_loop_ends(client: AsyncClient) -> AsyncGenerator[None, None]:
    """Close a client together with its event loop (``asyncio.run`` finishes pending async generators)."""
    try:
        yield
    finally:
        await client.close()
