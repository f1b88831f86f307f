"""HTTP by httpcore2: what the blocking client sends with.

It is the layer below httpx2, without what httpx2 adds to a request, and takes two thirds of its processor time. This
module owns the reading of its failures and the end of an attempt. It knows no proxies; ``httpx_transport`` does.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import httpcore2
import httpx2

from stateroom._io.processes import PerProcess
from stateroom._io.transport import (
    CONNECTIONS_MAX,
    KEEPALIVE_SECONDS,
    SLICED_BYTES_MIN,
    Deadline,
    NoAnswer,
    Reply,
    paced,
)
from stateroom.errors import ClientClosed

_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
_NEVER_RECEIVED = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_WITHOUT_BODY = frozenset({204, 304})

# Seconds for each read or write, or what says how many are left; httpcore2 hands them to `_Network` as they are.
_Limit = float | Callable[[], float] | None


class HttpcoreTransport:
    """A ``Transport``: connections to one gateway. Threads may share it, and forks.

    Args:
        url: The gateway's URL; only its paths may be asked for.
        tls: Says which certificates to trust; asked once, and never for http.
        connections_max: How many requests are under way at most; others wait.
    """

    def __init__(
        self,
        url: str,
        tls: Callable[[], ssl.SSLContext] = httpx2.create_ssl_context,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        parts = urlsplit(url)
        self._prefix = url[: url.index("://") + 3 + len(parts.netloc)]
        self._host = parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna")
        self._origin = parts.scheme.encode(), (parts.hostname or "").encode("idna"), parts.port
        self._tls = tls if parts.scheme == "https" else None
        self._connections_max = connections_max
        self._pool: PerProcess[_Pool] = PerProcess(self._open, _Pool.leave)
        self._closed = False

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        deadline = Deadline(waits[1])
        content: bytes | Iterator[bytes] | None = body
        if body is not None or method in _WITH_BODY:
            headers = {**headers, "Content-Length": str(len(body or b""))}
        if body is not None and len(body) >= SLICED_BYTES_MIN:
            content = paced(body, deadline)
        try:
            limits = {
                "connect": lambda: min(waits[0], deadline.seconds_left()),
                "read": deadline.seconds_left,
                "write": deadline.seconds_left,
            }
            answer = self._exchange(method, url, headers, content, {**limits, "pool": waits[1]})
            try:
                return Reply(answer.status, _checked_headers(answer), b"".join(answer.iter_stream()))
            finally:
                answer.close()
                self._leave_if_closed()
        except (*_FAILURES, OSError, ValueError) as error:
            failure = _kind(error), not isinstance(error, _NEVER_RECEIVED)
        raise NoAnswer(failure[0], received=failure[1])  # not from its cause, which may hold what was sent or received

    @contextmanager
    def stream(
        self, method: str, url: str, headers: Mapping[str, str], waits: tuple[float, float]
    ) -> Iterator["_Stream"]:
        """Send a request without a body and read the head of its answer. Raises ``NoAnswer``."""
        with _without_text():
            limits = {"connect": waits[0], **dict.fromkeys(("read", "write", "pool"), waits[1])}
            answer = self._exchange(method, url, headers, None, limits)
            try:
                yield _Stream(answer)
            finally:
                answer.close()
                self._leave_if_closed()

    def close(self) -> None:
        """Close the connections; those in use, when they have their answers."""
        self._closed = True
        self._leave_if_closed()

    def _leave_if_closed(self) -> None:
        pool = self._pool.made()
        if self._closed and pool is not None:
            pool.close_idle()

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | Iterator[bytes] | None,
        limits: Mapping[str, _Limit],
    ) -> httpcore2.Response:
        if self._closed:
            raise ClientClosed("the client has been closed")
        scheme, host, port = self._origin
        target = url.removeprefix(self._prefix).encode("ascii") or b"/"
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=scheme, host=host, port=port, target=target),
            headers=[(b"Host", self._host), *((name.encode(), text.encode()) for name, text in headers.items())],
            content=content,
            extensions={"timeout": limits},
        )
        return self._pool.mine().handle_request(request)

    def _open(self) -> "_Pool":
        return _Pool(self._tls() if self._tls else None, self._connections_max)


class _Pool(httpcore2.ConnectionPool):
    """The connections of one process."""

    def __init__(self, tls: ssl.SSLContext | None, connections_max: int) -> None:
        self._network = _Network()
        super().__init__(
            ssl_context=tls,
            max_connections=connections_max,
            max_keepalive_connections=connections_max,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=self._network,
        )

    def close_idle(self) -> None:
        """Close what is idle now."""
        for connection in self.connections:
            if connection.is_idle():
                connection.close()

    def leave(self) -> None:
        """Close what a fork duplicated. That sends nothing, also with TLS: the connection stays whole elsewhere."""
        for connected in list(self._network.opened):
            connected.close()


class _Network(httpcore2.NetworkBackend):
    """Opens connections whose reads and writes end with an attempt; httpcore2 gives each a time limit of its own."""

    def __init__(self) -> None:
        self.opened: WeakSet[_Connected] = WeakSet()
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(self, host: str, port: int, timeout: _Limit = None, *args: Any, **options: Any) -> "_Connected":
        connected = _Connected(self._backend.connect_tcp(host, port, _seconds(timeout), *args, **options), self.opened)
        self.opened.add(connected)
        return connected


class _Connected(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, opened: "WeakSet[_Connected]") -> None:
        self._inner, self._opened = inner, opened

    def read(self, max_bytes: int, timeout: _Limit = None) -> bytes:
        return self._inner.read(max_bytes, _seconds(timeout))

    def write(self, buffer: bytes, timeout: _Limit = None) -> None:
        self._inner.write(buffer, _seconds(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: _Limit = None
    ) -> "_Connected":
        secured = _Connected(self._inner.start_tls(ssl_context, server_hostname, _seconds(timeout)), self._opened)
        self._opened.add(secured)
        return secured

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _seconds(limit: _Limit) -> float | None:
    return limit() if callable(limit) else limit


class _Stream:
    """An answer whose body is still to be read."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = _checked_headers(answer)
        self._answer = answer

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives. Raises ``NoAnswer`` where it breaks off."""
        with _without_text():
            yield from self._answer.iter_stream()

    def read(self) -> bytes:
        """The whole body. Raises ``NoAnswer`` where it breaks off."""
        with _without_text():
            return self._answer.read()


def _checked_headers(answer: httpcore2.Response) -> dict[str, str]:
    """The headers; an answer that only the end of its connection would end is none, since it may break off."""
    headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in answer.headers}
    if answer.status not in _WITHOUT_BODY and "content-length" not in headers and "transfer-encoding" not in headers:
        raise httpcore2.RemoteProtocolError
    return headers


@contextmanager
def _without_text() -> Iterator[None]:
    """Tell a failure without its text, which may quote what was sent or received."""
    try:
        yield
    except _FAILURES as error:
        raise NoAnswer(_kind(error), received=not isinstance(error, _NEVER_RECEIVED)) from None


def _kind(error: Exception) -> type[BaseException]:
    """What the operating system or TLS said, where httpcore2 translated that."""
    cause = error.__context__
    return type(cause if isinstance(cause, OSError) else error)
