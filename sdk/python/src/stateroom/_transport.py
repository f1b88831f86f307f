"""What both clients need to know about httpx2.

This module owns connection limits, how large bodies are handed over, and the reading of transport failures. It sends
nothing.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TypeVar

import httpx2

LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30.0)

SLICE_BYTES = 128 * 1024
_SLICED_BYTES_MIN = 1024 * 1024

_NEVER_RECEIVED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def timeout_of(seconds: tuple[float, float]) -> httpx2.Timeout:
    """The time limits of an attempt: seconds for connecting, and for every other wait."""
    connect, other = seconds
    return httpx2.Timeout(other, connect=connect)


def was_received(error: httpx2.RequestError) -> bool:
    """Whether the gateway may have received a request that failed so."""
    return not isinstance(error, _NEVER_RECEIVED)


def failure_reason(error: httpx2.RequestError) -> str:
    """What happened, by the failure's kind; its text could quote what was sent or received."""
    return f"no answer from the gateway: {type(error).__name__}"


def lower_headers(headers: httpx2.Headers) -> Mapping[str, str]:
    """Headers with lower-case names."""
    return {name.lower(): text for name, text in headers.items()}


class SlicedBody:
    """A large body in slices, so that a time limit is one of a slice: a slow connection that moves is no dead one.

    Args:
        body: The body.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), SLICE_BYTES):
            yield self._body[start : start + SLICE_BYTES]


class AsyncSlicedBody:
    """The same for callers on an event loop; httpx2 wants them apart.

    Args:
        body: The body.
    """

    def __init__(self, body: bytes) -> None:
        self._slices = SlicedBody(body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._slices:
            yield piece


S = TypeVar("S")


def content_of(body: bytes | None, headers: dict[str, str], sliced: Callable[[bytes], S]) -> bytes | S | None:
    """A body as httpx2 is to send it; says its length in ``headers`` where httpx2 cannot tell."""
    if body is None or len(body) < _SLICED_BYTES_MIN:
        return body
    headers["Content-Length"] = str(len(body))
    return sliced(body)
