"""HTTP by the standard library: what the blocking client sends with.

``http.client`` takes a third of the processor time of httpx2 for a request of a few kilobytes. This module owns a pool
of its connections and the reading of its failures. It knows no proxies and streams no content, as ``httpx_transport``
does.
"""

import contextlib
import http.client
import io
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stateroom._io.processes import PerProcess
from stateroom._io.transport import (
    CONNECTIONS_MAX,
    KEEPALIVE_SECONDS,
    SLICED_BYTES_MIN,
    Deadline,
    NoAnswer,
    Reply,
    Transport,
    paced,
)

# What sending says when the other side has ended the connection.
_ENDED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class HttpClientTransport:
    """A ``Transport``: connections to one gateway. Threads may share it, and forks.

    Args:
        url: The gateway's URL; only its paths may be asked for.
        tls: Says which certificates to trust; asked for each connection to an https gateway, and never for http.
        streams: Takes what is read as a stream; closed with this one.
        connections_max: How many requests are under way at most; others wait.
    """

    def __init__(
        self,
        url: str,
        tls: Callable[[], ssl.SSLContext],
        streams: Transport,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.stream = streams.stream
        self._close_streams = streams.close
        parts = urlsplit(url)
        self._origin = url[: url.index("://") + 3 + len(parts.netloc)]
        self._address = parts.hostname or "", parts.port
        self._secure, self._tls = parts.scheme == "https", tls
        self._pool = PerProcess(lambda: _Pool(connections_max), _Pool.leave)
        self._closed = False

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        connect, attempt = waits
        deadline, pool = Deadline(attempt), self._pool.mine()
        if not pool.places.acquire(timeout=attempt):
            raise NoAnswer(TimeoutError, received=False)
        received = False
        try:
            if self._closed:
                raise RuntimeError("the client has been closed")
            connection = pool.take() or self._open(min(connect, deadline.left()))
            received = True
            try:
                reply = _exchange(connection, method, url.removeprefix(self._origin), headers, body, deadline)
            except BaseException:
                connection.close()  # an answer to this request must not be taken for that of another one
                raise
            pool.give(connection)
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind = type(error)
        else:
            return reply
        finally:
            pool.places.release()
        raise NoAnswer(kind, received=received)  # not from its cause, which may hold what was sent or received

    def _open(self, patience_seconds: float) -> http.client.HTTPConnection:
        host, port = self._address
        connection = (
            http.client.HTTPSConnection(host, port, timeout=patience_seconds, context=self._tls())
            if self._secure
            else http.client.HTTPConnection(host, port, timeout=patience_seconds)
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the connections; those in use, when they have their answers."""
        self._closed = True
        self._pool.mine().close()
        self._close_streams()


class _Idle(NamedTuple):
    connection: http.client.HTTPConnection
    since: float


class _Pool:
    """The connections of one process."""

    def __init__(self, connections_max: int) -> None:
        self.places = threading.BoundedSemaphore(connections_max)
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()  # the one used last is last
        self._closed = False

    def take(self) -> http.client.HTTPConnection | None:
        """The connection used last that is still good, if there is one."""
        while True:
            with self._lock:
                self._close_idle(before=time.monotonic() - KEEPALIVE_SECONDS)
                if not self._idle:
                    return None
                connection = self._idle.pop().connection
            if not _has_something_to_read(connection.sock):
                return connection
            connection.close()

    def give(self, connection: http.client.HTTPConnection) -> None:
        """Give back a connection that has had its answer; nothing happens to one that ended with it."""
        if connection.sock is None:
            return
        with self._lock:
            if not self._closed:
                self._idle.append(_Idle(connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        with self._lock:
            self._closed = True
            self._close_idle(before=math.inf)

    def leave(self) -> None:
        """Close what a fork duplicated. That sends nothing, also with TLS: the connection stays whole elsewhere."""
        for idle in self._idle:
            idle.connection.close()

    def _close_idle(self, *, before: float) -> None:
        while self._idle and self._idle[0].since < before:
            self._idle.popleft().connection.close()


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None,
    deadline: Deadline,
) -> Reply:
    content: bytes | Iterator[bytes] | None = body
    if body is not None and len(body) >= SLICED_BYTES_MIN:
        # A socket's time limit is one for everything it is given to send.
        headers = {**headers, "Content-Length": str(len(body))}
        content = _timed(paced(body, deadline), connection.sock, deadline)
    connection.sock.settimeout(deadline.left())
    is_sent = False
    with contextlib.suppress(*_ENDED):  # who refuses a body before it is there has answered, and ended the connection
        connection.request(method, target, content, headers)
        is_sent = True
    connection.response_class = partial(_Response, deadline)  # type: ignore[assignment]
    response = connection.getresponse()
    if response.length is None and not response.chunked:
        # It would end with the connection, and `http.client` takes a head that breaks off for such a one.
        raise http.client.IncompleteRead(b"")
    answer = response.read()
    if not is_sent or response.will_close:
        connection.close()
    return Reply(response.status, {name.lower(): text for name, text in response.getheaders()}, answer)


def _timed(pieces: Iterator[bytes], connected: socket.socket, deadline: Deadline) -> Iterator[bytes]:
    for piece in pieces:
        connected.settimeout(deadline.left())
        yield piece


class _Response(http.client.HTTPResponse):
    """An answer that has arrived whole by a deadline; ``http.client`` gives each byte a time limit of its own."""

    def __init__(self, deadline: Deadline, connected: socket.socket, **options: Any) -> None:
        super().__init__(connected, **options)
        self.fp = io.BufferedReader(_Arriving(self.fp.detach(), connected, deadline))


class _Arriving(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, connected: socket.socket, deadline: Deadline) -> None:
        super().__init__()
        self._raw, self._connected, self._deadline = raw, connected, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._connected.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _has_something_to_read(connected: socket.socket) -> bool:
    """Whether something came that nobody asked for: mostly the end, from a gateway that waits no longer."""
    if sys.platform == "win32":
        return bool(select.select([connected], [], [], 0)[0])
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))
