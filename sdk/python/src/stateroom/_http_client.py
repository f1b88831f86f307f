"""HTTP by the standard library: what the blocking client sends with.

``http.client`` takes a third of the processor time of httpx2 for a request of a few kilobytes. This module owns a pool
of its connections and the reading of its failures. It knows no proxies and streams no content; ``_httpx`` does.
"""

import http.client
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from stateroom._transport import CONNECTIONS_MAX, KEEPALIVE_SECONDS, SLICED_BYTES_MIN, NoAnswer, Reply, slices


class _Idle(NamedTuple):
    connection: http.client.HTTPConnection
    since: float


class HttpClientTransport:
    """As ``AsyncTransport``, for blocking callers: a pool of connections to one gateway. Threads may share it.

    Args:
        url: The gateway's URL; only its paths may be asked for.
        tls: Which certificates to trust, if not the system's.
        connections_max: How many requests are under way at most; others wait.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, connections_max: int = CONNECTIONS_MAX) -> None:
        parts = urlsplit(url)
        self._origin = url[: url.index("://") + 3 + len(parts.netloc)]
        self._address = parts.hostname or "", parts.port
        self._secure, self._tls = parts.scheme == "https", tls
        self._places = threading.BoundedSemaphore(connections_max)
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()  # the one used last is last
        self._closed = False

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        """Send a request and read its answer. Raises ``NoAnswer``."""
        connect, other = waits
        if not self._places.acquire(timeout=other):
            raise NoAnswer(TimeoutError, received=False)
        received = False
        try:
            connection = self._take() or self._open(connect)
            received = True
            try:
                return self._exchange(connection, method, url.removeprefix(self._origin), headers, body, other)
            except BaseException:
                connection.close()  # an answer to this request must not be taken for that of another one
                raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind = type(error)
        finally:
            self._places.release()
        raise NoAnswer(kind, received=received)  # not from its cause, which may hold what was sent or received

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        patience_seconds: float,
    ) -> Reply:
        content: bytes | Iterator[bytes] | None = body
        if body is not None and len(body) >= SLICED_BYTES_MIN:
            # A socket's time limit is one for everything it is given to send.
            headers, content = {**headers, "Content-Length": str(len(body))}, slices(body)
        connection.sock.settimeout(patience_seconds)
        connection.request(method, target, content, headers)
        response = connection.getresponse()
        if response.length is None and not response.chunked:
            # It would end with the connection, and `http.client` takes a head that breaks off for such a one.
            raise http.client.IncompleteRead(b"")
        answer = response.read()
        reply = Reply(response.status, {name.lower(): text for name, text in response.getheaders()}, answer)
        if not response.will_close:
            self._give(connection)
        return reply

    def _open(self, patience_seconds: float) -> http.client.HTTPConnection:
        host, port = self._address
        connection = (
            http.client.HTTPSConnection(host, port, timeout=patience_seconds, context=self._tls)
            if self._secure
            else http.client.HTTPConnection(host, port, timeout=patience_seconds)
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _take(self) -> http.client.HTTPConnection | None:
        """The connection used last that is still good, if there is one."""
        while True:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the client has been closed")
                self._close_idle(before=time.monotonic() - KEEPALIVE_SECONDS)
                if not self._idle:
                    return None
                connection = self._idle.pop().connection
            if not _has_something_to_read(connection.sock):
                return connection
            connection.close()

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(_Idle(connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close the connections; those in use, when they have their answers."""
        with self._lock:
            self._closed = True
            self._close_idle(before=math.inf)

    def _close_idle(self, *, before: float) -> None:
        while self._idle and self._idle[0].since < before:
            self._idle.popleft().connection.close()


def _has_something_to_read(connected: socket.socket) -> bool:
    """Whether something came that nobody asked for: mostly the end, from a gateway that waits no longer."""
    if sys.platform == "win32":
        return bool(select.select([connected], [], [], 0)[0])
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))
