"""What the generated blocking client has instead of ``on_loop``: threads, and which library sends.

It owns everything that happens at the same time. It decides nothing about calls.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import httpx2

from stateroom._artifacts.sources import LocalSource, SourceReader, open_source
from stateroom._io.httpcore_transport import HttpcoreTransport
from stateroom._io.httpx_transport import HttpxTransport
from stateroom._io.transport import Transport, proxied

__all__ = [
    "Beat", "InFlight", "Source", "SourceReader", "finished", "in_blocks", "open_source", "open_transport", "shielded",
    "together",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Source = LocalSource


def open_transport(url: str, custom: httpx2.BaseTransport | None) -> Transport:
    """The transport of a client.

    Args:
        url: The gateway's URL.
        custom: An httpx2 transport that the caller brought.
    """
    if custom is None and not proxied(url):
        return HttpcoreTransport(url)
    transport = HttpxTransport(custom)
    transport.begin()
    return transport


def finished(result: R) -> R:
    """The result of a function."""
    return result


def together(do: Callable[[T], R], each: Sequence[T]) -> tuple[R, ...]:
    """Do something with each of several things at the same time, in worker threads."""
    with ThreadPoolExecutor(len(each)) as workers:
        return tuple(workers.map(do, each))


def shielded(work: Callable[[], R], seconds_max: float) -> R:
    """Do something to its end: nothing cancels a thread."""
    del seconds_max
    return work()


class Beat:
    """Does something again and again in a thread of its own, until it says that it is over.

    Args:
        every_seconds: The pause before each time.
        seconds_max: For how long at most.
        do: What to do; whether to go on.
    """

    def __init__(self, every_seconds: float, seconds_max: float, do: Callable[[], bool]) -> None:
        self._ended = threading.Event()
        beating = threading.Thread(
            target=self._run, args=(every_seconds, seconds_max, do), name="stateroom-claim", daemon=True
        )
        beating.start()

    def _run(self, every_seconds: float, seconds_max: float, do: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds_max
        while time.monotonic() + every_seconds <= until:
            if self._ended.wait(every_seconds) or not do():
                return

    def end(self) -> None:
        """Stop doing it; what is being done now is not waited for."""
        self._ended.set()


class InFlight:
    """Parts of an upload that are being sent at the same time. Leaving it waits for what is still being sent.

    Args:
        parts_max: How many; beginning another one waits.
        sent: Called with the size of every part that the gateway has acknowledged.
    """

    def __init__(self, parts_max: int, sent: Callable[[int], None]) -> None:
        self._parts_max, self._sent = parts_max, sent
        self._running: dict[Future[None], int] = {}
        self._workers = ThreadPoolExecutor(parts_max, thread_name_prefix="stateroom-part")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.shutdown()

    def begin(self, size_bytes: int, send: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin to send a part; raises the failure of another one."""
        if len(self._running) >= self._parts_max:
            self._settle(None)
        self._running[self._workers.submit(send, *args, **kwargs)] = size_bytes

    def settle(self) -> None:
        """Account for the parts that are sent by now; raises the failure of one."""
        self._settle(0)

    def settle_all(self) -> None:
        """Wait until every part is sent; raises the failure of one."""
        while self._running:
            self._settle(None)

    def _settle(self, seconds: float | None) -> None:
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            size_bytes = self._running.pop(future)
            future.result()
            self._sent(size_bytes)


@contextmanager
def in_blocks(write: Callable[[bytes], object]) -> Iterator[Callable[[bytes], object]]:
    """Pieces are written as they come; yields what takes a piece."""
    yield write
