"""What both clients need to know about httpx2.

This module owns connection limits and the reading of transport failures. It sends nothing.
"""

from collections.abc import Mapping

import httpx2

LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30.0)

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
