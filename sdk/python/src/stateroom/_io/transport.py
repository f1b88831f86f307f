"""What both clients ask of an HTTP library, and what is the same with each.

This module owns the seam: how a request is handed over, what comes back, and how "no answer" is told without quoting
what was sent or received. The modules named ``..._transport`` are behind it. It sends nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

CONNECTIONS_MAX = 100
KEEPALIVE_SECONDS = 30.0

SLICE_BYTES = 128 * 1024
SLICED_BYTES_MIN = 1024 * 1024


class Reply(NamedTuple):
    """A whole answer: its status, its headers with lower-case names, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(Exception):
    """An attempt got no answer.

    Args:
        kind: What sort of failure; its own text could quote what was sent or received.
        received: Whether the gateway may have received the request.
    """

    def __init__(self, kind: type[BaseException], *, received: bool) -> None:
        super().__init__(f"no answer from the gateway: {kind.__name__}")
        self.received = received


class Deadline:
    """When an attempt of a blocking caller ends.

    Args:
        seconds: From now on, and again from each ``renew`` on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """A slice of a large body went out, so the other side is alive: put the end off."""
        self._at = time.monotonic() + self._seconds

    def seconds_left(self) -> float:
        """How many seconds are left, more than none. Raises ``TimeoutError``."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class AsyncStream(Protocol):
    """An answer whose body is still to be read.

    Attributes:
        status: Its status.
        headers: Its headers with lower-case names.
    """

    status: int
    headers: Mapping[str, str]

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ``NoAnswer`` where it breaks off."""

    async def read(self) -> bytes:
        """The whole body. Raises ``NoAnswer`` where it breaks off."""


class AsyncTransport(Protocol):
    """Sends requests from an event loop.

    ``waits`` are seconds for connecting, and for the whole attempt; while a large body is sent, for each slice of it.
    """

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""

    def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> AbstractAsyncContextManager[AsyncStream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""

    async def aclose(self) -> None:
        """Close the connections."""


class Stream(Protocol):
    """An answer like an ``AsyncStream``, for a caller that blocks."""

    status: int
    headers: Mapping[str, str]

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives. Raises ``NoAnswer`` where it breaks off."""

    def read(self) -> bytes:
        """The whole body. Raises ``NoAnswer`` where it breaks off."""


class Transport(Protocol):
    """Sends requests as an ``AsyncTransport`` does, for callers that block."""

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""

    def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> AbstractContextManager[Stream]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""

    def close(self) -> None:
        """Close the connections."""


def proxied(url: str) -> bool:
    """Whether requests go through a proxy (``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``).

    It is asked once for each client, as httpx2 does, which then sends everything: it knows every kind of proxy.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.netloc)


def paced(body: bytes, deadline: Deadline) -> Iterator[bytes]:
    """A large body in slices, each of which puts the deadline off: a slow connection that moves is no dead one."""
    for start in range(0, len(body), SLICE_BYTES):
        deadline.renew()
        yield body[start : start + SLICE_BYTES]
    deadline.renew()


async def async_paced(body: bytes, limit: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """A large body in slices as ``paced`` gives them, on an event loop."""
    loop = asyncio.get_running_loop()
    for start in range(0, len(body), SLICE_BYTES):
        limit.reschedule(loop.time() + seconds)
        await asyncio.sleep(0)  # an answer that has come is read before sending more finds the connection ended
        yield body[start : start + SLICE_BYTES]
    limit.reschedule(loop.time() + seconds)
