"""What both clients ask of an HTTP library, and what is the same with each.

This module owns the seam: how a request is handed over, what comes back, and how "no answer" is told without quoting
what was sent or received. ``_aiohttp``, ``_http_client`` and ``_httpx`` are behind it. It sends nothing.
"""

from collections.abc import Iterator, Mapping
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


class AsyncTransport(Protocol):
    """Sends requests from an event loop. ``waits`` are seconds for connecting, and for every other wait."""

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""

    async def aclose(self) -> None:
        """Close the connections."""


def proxied(url: str) -> bool:
    """Whether requests go through a proxy (``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``).

    It is asked once for each client, as httpx2 does, which then sends everything: it knows every kind of proxy.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.netloc)


def slices(body: bytes) -> Iterator[bytes]:
    """A large body in slices, so that a time limit is one of a slice: a slow connection that moves is no dead one."""
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]
