"""Runs the API in this process: socket, server, readiness, drain, stop.

Owns the order of a process's life: the application's own start (which may refuse), then the server, then
``/readyz`` until it says 200, then requests, then, after SIGTERM or SIGINT, the drain and a clean stop. One
process, one event loop. What one connection may take is `gateway.http.connections`'s affair; TLS and HTTP/2 are a
proxy's.
"""

import asyncio
import contextlib
import functools
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import structlog
import uvicorn

from gateway.admission.limits import Drain
from gateway.cli.failure import Failure
from gateway.cli.local.supervisor import Supervisor
from gateway.http.connections import BoundedConnection, Connections
from gateway.settings import Address

if TYPE_CHECKING:
    from gateway.app import Gateway

BACKLOG = 2048  # connections the kernel keeps while the loop is busy
KEEP_ALIVE_SECONDS = 75  # longer than the idle time of usual load balancers, so that they close first
FINISH_SECONDS_MAX = 40  # for requests in flight at the end: a statement may take 30 s
READY_POLL_SECONDS = 0.05
READY_TIMEOUT_SECONDS = 5.0  # of one question to /readyz
READY_PATIENCE_SECONDS = 10.0  # then say once what is missing

_log = structlog.get_logger()


class StopRequest:
    """A stop that was asked for by SIGTERM or SIGINT, also while there is no event loop yet.

    As a context manager it takes both signals and gives them back.
    """

    def __init__(self) -> None:
        self.count = 0
        self._listener: Callable[[], None] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._asked()

    def _asked(self) -> None:
        self.count += 1
        if self._listener is not None:
            self._listener()

    @contextlib.contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """In the block, call ``listener`` in the running loop at every signal; at once, if one came."""
        loop = asyncio.get_running_loop()
        self._listener = listener
        for number in self._previous:
            loop.add_signal_handler(number, self._asked)
        if self.count:
            loop.call_soon(listener)
        try:
            yield
        finally:
            self._listener = None
            for number in self._previous:
                loop.remove_signal_handler(number)
                signal.signal(number, self._note)  # removing it left the default: to die


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end a clean stop with the signal itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address but not listening yet; port 0 picks a free one.

    Raises:
        Failure: The address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Failure(f"cannot listen on {host}:{port}", detail=str(error.strerror)) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Failure(
            f"cannot listen on {host}:{port}",
            detail=str(error.strerror),
            hint="Is another gateway running there? --port 0 picks a free port.",
        ) from None
    return listener


async def _is_ready(address: tuple[Any, ...]) -> tuple[bool, str]:
    """Ask our own ``/readyz``; return whether it said 200, and what it said."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])  # noqa: S104 - compared, not bound
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(host, address[1])
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return False, type(error).__name__
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 "), body.decode(errors="replace")


async def _announce(address: tuple[Any, ...], on_ready: Callable[[], None], supervisor: Supervisor) -> None:
    """Wait until the gateway is ready, then say so."""
    loop = asyncio.get_running_loop()
    deadline: float | None = loop.time() + READY_PATIENCE_SECONDS
    while True:
        ready, answer = await _is_ready(address)
        if ready:
            on_ready()
            supervisor.ready(f"ready on {Address(*address[:2])}")
            return
        if deadline is not None and loop.time() > deadline:
            _log.warning("not ready yet", readyz=answer[:500])
            supervisor.status(f"not ready yet: {answer[:500]}")
            deadline = None
        await asyncio.sleep(READY_POLL_SECONDS)


async def serve(
    app: "Gateway",
    listener: socket.socket,
    *,
    stop: StopRequest,
    drain: Drain,
    connections: Connections,
    on_ready: Callable[[], None],
    supervisor: Supervisor,
) -> None:
    """Serve ``app`` until a stop is asked for.

    A first signal begins the drain; a second one ends it early; a third does not wait for requests in flight.

    Args:
        app: The application; started and stopped here.
        listener: A bound socket.
        stop: The request to stop.
        drain: The application's way out.
        connections: The settings and counters of the process's connections.
        on_ready: Called once, when ``/readyz`` said 200. What it raises ends the serving.
        supervisor: Who is told of readiness after that, and of the stop.

    Raises:
        Exception: Whatever the application refused to start with, or ``on_ready`` raised.
    """
    config = uvicorn.Config(
        app,
        http=functools.partial(BoundedConnection, connections),  # type: ignore[arg-type]  # it is only called
        ws="none",
        lifespan="off",  # entered below, so that a refusal arrives as itself and not as a log line
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FINISH_SECONDS_MAX,
    )
    server = _Server(config)
    connections.metrics.bounded(
        "connections", connections.connections_max, lambda: len(server.server_state.connections)
    )
    over = asyncio.Event()

    def note() -> None:
        drain.begin()
        supervisor.stopping(f"draining for {drain.drain_seconds:g} s")
        if stop.count > 1:
            over.set()
        server.force_exit = stop.count > 2

    with stop.notifying(note):
        async with app.lifespan():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            announcing = asyncio.create_task(_announce(listener.getsockname(), on_ready, supervisor))
            announcing.add_done_callback(
                lambda ended: None if ended.cancelled() or not ended.exception() else over.set()
            )
            ending = asyncio.create_task(over.wait())
            beside = [announcing, ending, asyncio.create_task(drain.run(over.set))]
            try:
                await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                server.should_exit = True
                for task in beside:
                    task.cancel()
                answers = await asyncio.gather(*beside, return_exceptions=True)
            supervisor.status("finishing the requests in flight")
            await serving
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
