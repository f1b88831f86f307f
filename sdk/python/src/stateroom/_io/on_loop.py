"""What the asynchronous client is made of besides calls: tasks, and which library sends.

The blocking client is generated (``sdk/python/generate.py``); ``blocking`` is this module for it, with the same names.
It owns everything that happens at the same time. It decides nothing about calls.
"""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

import httpx2

from stateroom._artifacts.sources import BLOCK_BYTES, LocalSource, SourceReader, open_source
from stateroom._artifacts.transfers import PieceBuffer, checked_piece
from stateroom._io.aiohttp_transport import AiohttpTransport
from stateroom._io.httpx_transport import AsyncHttpxTransport
from stateroom._io.transport import AsyncTransport, proxied
from stateroom.errors import StateroomError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AsyncSource = LocalSource | AsyncIterable[bytes]
"""A path, content, a binary file from where it stands, or pieces of content, asynchronous ones included."""


def open_async_transport(url: str, custom: httpx2.AsyncBaseTransport | None) -> AsyncTransport:
    """The transport of a client.

    Args:
        url: The gateway's URL.
        custom: An httpx2 transport that the caller brought.
    """
    streams = AsyncHttpxTransport(custom)
    if custom is None and not proxied(url):
        return AiohttpTransport(streams)
    streams.begin()
    return streams


async def finished(result: Any) -> Any:
    """The result of a function, or of the coroutine that it returned."""
    return await result if inspect.isawaitable(result) else result


async def together(do: Callable[[T], Awaitable[R]], each: Sequence[T]) -> tuple[R, ...]:
    """Do something with each of several things at the same time; the first failure ends the others."""
    tasks = [asyncio.ensure_future(do(one)) for one in each]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def shielded(work: Callable[[], Awaitable[R]], seconds_max: float) -> R:
    """Do something to its end even if the task is cancelled meanwhile, which it is told afterwards.

    Args:
        work: Begins it.
        seconds_max: For how long at most.

    Raises:
        TimeoutError: It took longer, and was given up.
        CancelledError: The task was cancelled meanwhile.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds_max
    doing = asyncio.ensure_future(work())
    cancelled: asyncio.CancelledError | None = None
    while not doing.done() and (left := until - clock()) > 0:
        try:
            await asyncio.wait([doing], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if not doing.done():
        doing.cancel()
        await asyncio.wait([doing])
    if cancelled is not None:
        doing.cancelled() or doing.exception()  # seen, though it is not told
        raise cancelled
    if doing.cancelled():
        raise TimeoutError
    return doing.result()


class AsyncBeat:
    """Does something again and again in a task of its own, until it says that it is over.

    Args:
        every_seconds: The pause before each time.
        seconds_max: For how long at most.
        do: What to do; whether to go on.
    """

    def __init__(self, every_seconds: float, seconds_max: float, do: Callable[[], Awaitable[bool]]) -> None:
        self._task = asyncio.ensure_future(self._run(every_seconds, seconds_max, do))

    @staticmethod
    async def _run(every_seconds: float, seconds_max: float, do: Callable[[], Awaitable[bool]]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds_max
        while clock() + every_seconds <= until:
            await asyncio.sleep(every_seconds)
            if not await do():
                return

    async def end(self) -> None:
        """Stop doing it, and wait until what is being done now has ended.

        Raises:
            CancelledError: The task that waits was cancelled meanwhile; it is stopped all the same.
        """
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # seen: who ends it has other things to say


class AsyncInFlight:
    """Parts of an upload that are being sent at the same time. Leaving it ends what is still being sent.

    Args:
        parts_max: How many; beginning another one waits.
        sent: Called with the size of every part that the gateway has acknowledged.
    """

    def __init__(self, parts_max: int, sent: Callable[[int], None]) -> None:
        self._parts_max, self._sent = parts_max, sent
        self._running: dict[asyncio.Future[None], int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def begin(
        self, size_bytes: int, send: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Begin to send a part; raises the failure of another one."""
        if len(self._running) >= self._parts_max:
            await self._settle(None)
        self._running[asyncio.ensure_future(send(*args, **kwargs))] = size_bytes

    async def settle(self) -> None:
        """Account for the parts that are sent by now; raises the failure of one."""
        await self._settle(0)

    async def settle_all(self) -> None:
        """Wait until every part is sent; raises the failure of one."""
        while self._running:
            await self._settle(None)

    async def _settle(self, seconds: float | None) -> None:
        if not self._running:
            return
        done, _ = await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            size_bytes = self._running.pop(task)
            task.result()
            self._sent(size_bytes)


class AsyncSourceReader:
    """Reads a source in parts of one size: a local one in a worker thread, or an asynchronous one."""

    def __init__(self, local: SourceReader | None, pieces: AsyncIterable[bytes] | None) -> None:
        self._local = local
        self._pieces = None if pieces is None else aiter(pieces)
        self._held = PieceBuffer()
        self.size_bytes = None if local is None else local.size_bytes

    async def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""
        if self._local is not None:
            return await asyncio.to_thread(self._local.read, size)
        while self._pieces is not None and len(self._held) < size:
            try:
                self._held.add(checked_piece(await anext(self._pieces)))
            except StopAsyncIteration:
                self._pieces = None
        return self._held.take(size)

    def unread(self, content: bytes) -> None:
        """Give back what was read last."""
        if self._local is not None:
            self._local.unread(content)
        else:
            rest = self._held.take(len(self._held))
            self._held.add(content)
            self._held.add(rest)


@asynccontextmanager
async def open_async_source(source: AsyncSource) -> AsyncIterator[AsyncSourceReader]:
    """Read a source; a path is opened and closed again, a file is left open.

    Raises:
        InvalidRequest: It is no source.
        OSError: It cannot be read.
    """
    if isinstance(source, AsyncIterable) and not isinstance(source, Iterable):
        yield AsyncSourceReader(None, source)
        return
    with ExitStack() as opened:
        opening = open_source(cast(LocalSource, source))
        yield AsyncSourceReader(await asyncio.to_thread(opened.enter_context, opening), None)


@asynccontextmanager
async def in_blocks(write: Callable[[bytes], object]) -> AsyncIterator[Callable[[bytes], Awaitable[object]]]:
    """Gather small pieces, so that not each one takes a trip to a worker thread; yields what takes a piece."""
    held = PieceBuffer()

    async def flush(at_least: int) -> None:
        if len(held) >= at_least:
            await asyncio.to_thread(write, held.take(len(held)))

    async def take(piece: bytes) -> None:
        held.add(piece)
        await flush(BLOCK_BYTES)

    try:
        yield take
    except StateroomError:
        await flush(1)  # a download that is resumed goes on behind what has arrived
        raise
    await flush(1)
