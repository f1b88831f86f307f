"""Connections of clients: how much of a request's head is read, how long anybody is waited for, how many there are.

Owns what a client can take before it is known who it is (the head of a request, a connection that says nothing) and
after its request was served (an answer that it does not read), and the answer to what is no HTTP. uvicorn reads and
writes; this bounds what it would wait for or keep. It knows one process only, and counts nothing by address: that is a
proxy's business.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import structlog
from uuid_utils import uuid7
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.admission import limits
from gateway.admission.limits import HeadersTooLarge, Overloaded
from gateway.http.exchange import COMMON_HEADERS
from gateway.problems import HttpMalformed, HttpVersionUnsupported, describe
from gateway.telemetry import Metrics
from storage.encoding import encode_json

_VERSIONS = frozenset({"1.0", "1.1"})
# What the parser says of a version that it does not read, and where HTTP/2 begins (RFC 9113, section 3.4).
_OTHER_VERSION = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Connections:
    """What all connections of a process go by.

    Attributes:
        metrics: The metrics that count refusals.
        public_url: The URL below which problems are explained.
        header_seconds_max: How long a request's head may take.
        unread_seconds_max: How long a client may leave what was sent to it unread.
        connections_max: How many there may be.
    """

    metrics: Metrics
    public_url: str
    header_seconds_max: float = limits.HEADER_SECONDS_MAX
    unread_seconds_max: float = limits.STREAM_IDLE_SECONDS_MAX
    connections_max: int = limits.CONNECTIONS_MAX

    def refuse(self, reason: Exception, server_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The answer to what did not become a request, counted and logged."""
        request_id = str(uuid7())
        problem, fields = describe(reason, public_url=self.public_url, request_id=request_id)
        body = encode_json(problem)
        fields |= {"connection": "close", "content-length": str(len(body)), "x-request-id": request_id}
        headers = [*server_headers, *COMMON_HEADERS, *((name.encode(), text.encode()) for name, text in fields.items())]
        self.metrics.refused(problem.code)
        _log.info("connection refused", code=problem.code, status=problem.status, request_id=request_id)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"%b%b\r\n%b" % (STATUS_LINE[problem.status], lines, body)


class BoundedConnection(HttpToolsProtocol):
    """One connection.

    No timer is set for a request whose head comes in one piece, and nothing is done for each byte or header.

    Args:
        connections: The settings and counters of the process's connections.
        arguments: uvicorn's.
    """

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connections = connections
        self._head_begun = False
        self._arrived_bytes = 0  # at once, and last
        self._unheard_bytes = 0  # that arrived since the parser last gave us a head or a part of a body
        self._refusal: Exception | None = None
        self._patience: asyncio.TimerHandle | None = None  # for the client to send something
        self._unread: asyncio.TimerHandle | None = None  # for it to read something

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is room."""
        super().connection_made(transport)
        if len(self.connections) <= self._connections.connections_max:
            self._await_client()
            return
        self._refusal = Overloaded("this process has as many connections as CONNECTIONS_MAX allows")
        transport.write(self._connections.refuse(self._refusal, self.server_state.default_headers))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of a connection that has ended."""
        for timer in (self._patience, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # --- what arrives ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read ``data``, unless it is the rest of what was refused."""
        if self._refusal is not None:
            return
        self._arrived_bytes = len(data)
        self._unheard_bytes += self._arrived_bytes
        super().data_received(data)
        if self._unheard_bytes > limits.HEADER_BYTES_MAX and self._refusal is None:
            self._refuse(HeadersTooLarge("HEADER_BYTES_MAX", limits.HEADER_BYTES_MAX, "bytes"))
        elif self._head_begun or self.cycle is None or self.cycle.response_complete:
            if self._patience is None and self._refusal is None:
                self._await_client()
        elif self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the request, if its head may be.

        Raises:
            Exception: it may not; so that the parser stops.
        """
        objection = self._objection()
        if objection is not None:
            self._refuse(objection)
            raise objection
        self._head_begun = False
        self._unheard_bytes = 0
        super().on_headers_complete()
        self.headers = []  # what comes behind a chunked body is no header of the request (RFC 9110, section 6.5.1)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._unheard_bytes = 0
        super().on_body(body)

    def _objection(self) -> Exception | None:
        if self.parser.get_http_version() not in _VERSIONS:  # the parser reads 2.0 and 0.9, too, as if they were 1.1
            return HttpVersionUnsupported()
        if len(self.headers) > limits.HEADERS_MAX:
            return HeadersTooLarge("HEADERS_MAX", limits.HEADERS_MAX, "fields")
        # Hardly ever can it be too large; then it is looked at what of all that came is head.
        if max(self._arrived_bytes, self._unheard_bytes) > limits.HEADER_BYTES_MAX:
            size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
            if size > limits.HEADER_BYTES_MAX:
                return HeadersTooLarge("HEADER_BYTES_MAX", limits.HEADER_BYTES_MAX, "bytes")
        # The parser takes any list that ends in chunked, and undoes nothing but that.
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            return HttpMalformed()  # the parser would take other transfer codings, and nobody undo them
        return None

    def _await_client(self) -> None:
        """Wait for a head; or, if a request was answered before its body was there, for the rest of it."""
        sends_body = self.cycle is not None and self.cycle.more_body and not self._head_begun
        seconds = limits.BODY_SECONDS_MAX if sends_body else self._connections.header_seconds_max
        self._patience = self.loop.call_later(seconds, self._out_of_patience)

    def _out_of_patience(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_client()  # another request is being answered, and meanwhile we may not be reading
        else:
            self.timeout_keep_alive_handler()

    # --- what is refused ---------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  what a client is told is of ours
        """Refuse what the parser refused; or what could not be kept of it, which is no fault of the client's."""
        if self._refusal is not None:
            return
        failure = sys.exception()
        kept = None if failure is None else failure.__context__
        if isinstance(kept, MemoryError):
            self._refuse(kept)
        else:
            self._refuse(HttpVersionUnsupported() if str(failure) in _OTHER_VERSION else HttpMalformed())

    def _refuse(self, reason: Exception) -> None:
        """Read no further. Requests that were read completely are answered before ``reason`` is."""
        self._refusal = reason
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                return
            if self.pipeline:
                self.pipeline.popleft()  # what is refused is the last one's body, and its turn has not come
                return
            cycle.disconnected = True  # the body's reader is told that there is no more of it
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self._answer_refusal(reason)

    def _answer_refusal(self, reason: Exception) -> None:
        self.transport.write(self._connections.refuse(reason, self.server_state.default_headers))
        # Closing now would reset the connection of a client that still sends, and take the answer from it.
        self.transport.write_eof()
        self._unset_keepalive_if_required()
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(limits.REFUSED_SECONDS_MAX, self.transport.abort)

    # --- what is sent ------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Go on with what waits behind the answer."""
        was_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()
        elif was_last and self._refusal is not None:
            self._answer_refusal(self._refusal)

    def pause_writing(self) -> None:
        """More waits to be read than should; the sender waits, too."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """The client reads."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close what is not in use; what was not read by now is let go of, as closing would wait for it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _await_reader(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self._connections.unread_seconds_max, self._give_up_reader)

    def _give_up_reader(self) -> None:
        _log.info("answer not read")
        self.transport.abort()
