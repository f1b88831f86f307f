"""The connections of a saver: one client for blocking calls, and one for every event loop.

This module owns when a saver's clients are made and closed, in each process and on each loop. What they send with, and
what a fork must not share of that, is theirs to know.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from weakref import WeakKeyDictionary

from stateroom._io.processes import PerProcess
from stateroom.async_client import AsyncClient
from stateroom.client import Client


class Connections:
    """The clients of a saver and of its shallow copies: one for worker threads, one for every event loop."""

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
