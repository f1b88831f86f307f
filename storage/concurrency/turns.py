"""Turns: so many at once for each name, and a bounded line of those who wait.

Owns the order, first come first served, that no turn is lost when somebody who waits gives up, and how many have one:
fewer while several names ask, so that nobody finds all of another one's before it. What a turn is good for is the
caller's; it knows one process only. `LoopTurn` and `Pauses` are for work that holds the event loop instead of a turn.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from itertools import count
from weakref import WeakKeyDictionary

PAUSE_BYTES = 16 * 1024
PAUSE_ROW_BYTES = 512  # what a row counts for beside its bytes: to authenticate it takes a while, however small it is
COMPANY_SECONDS = 1.0  # how long names count as asking side by side; an agent's next step comes within it


class _Line:
    __slots__ = ("active", "waiting")

    def __init__(self) -> None:
        self.active = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Turns:
    """Turns by name.

    Args:
        active_max: How many have a turn at once.
        waiting_max: How many wait for one; None: whoever comes has been counted elsewhere.
        seconds_max: How long they wait; None: as long as it takes.
        refused: Makes what is raised for the others.
        company_max: How many have a turn at once while another name asked, too, within `COMPANY_SECONDS`; no fewer
            than otherwise when left out.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        active_max: int,
        waiting_max: int | None,
        seconds_max: float | None,
        refused: Callable[[], Exception],
        *,
        company_max: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._active_max = active_max
        self._company_max = active_max if company_max is None else company_max
        self._clock = clock
        self._last: Hashable = None
        self._company_until = 0.0
        self._waiting_max = waiting_max
        self._seconds_max = seconds_max
        self._refused = refused
        self._lines: dict[Hashable, _Line] = {}

    def __len__(self) -> int:
        """For how many names somebody has a turn."""
        return len(self._lines)

    @asynccontextmanager
    async def of(self, name: Hashable) -> AsyncIterator[None]:
        """Have a turn while the block runs; raises as `enter`."""
        await self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    async def enter(self, name: Hashable) -> None:
        """Wait for a turn, which whoever gets it has to `leave`.

        Raises:
            Exception: what ``refused`` makes: too many wait already, or the turn did not come in time.
        """
        if name != self._last:
            if self._last is not None:
                self._company_until = self._clock() + COMPANY_SECONDS
            self._last = name
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if not line.waiting and line.active < self._most():
            line.active += 1
            return
        if self._waiting_max is not None and len(line.waiting) >= self._waiting_max:
            raise self._refused()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            async with asyncio.timeout(self._seconds_max):
                await turn
        except BaseException as reason:
            if turn.done() and not turn.cancelled():
                self.leave(name)  # the turn came in the same moment: it is somebody else's now
            elif turn in line.waiting:  # otherwise whoever left meanwhile has skipped it
                line.waiting.remove(turn)
            if isinstance(reason, TimeoutError):
                raise self._refused() from None
            raise

    def leave(self, name: Hashable) -> None:
        """Pass a turn on to who waits longest, if the name may have it still, and more of them if it may again."""
        line = self._lines[name]
        line.active -= 1
        most = self._most()
        while line.waiting and line.active < most:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                line.active += 1
        if not line.active:
            del self._lines[name]

    def _most(self) -> int:
        return self._company_max if self._clock() < self._company_until else self._active_max


_turns_as: ContextVar[tuple[Hashable, int]] = ContextVar("storage_turns_as", default=(None, 0))
_ages = count(1)


def take_turns_as(name: Hashable) -> None:
    """Say whose the slices of the request at hand are: they go with its task, and with those that work for it."""
    _turns_as.set((name, next(_ages)))


class _Slices:
    """Who waits for a turn of the loop under one name."""

    __slots__ = ("_by_age", "_came", "_in_order", "_oldest_next")

    def __init__(self) -> None:
        self._in_order: deque[asyncio.Future[None]] = deque()
        self._by_age: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = 0
        self._oldest_next = False

    def add(self, age: int, turn: asyncio.Future[None]) -> None:
        """Begin to wait."""
        self._came += 1
        self._in_order.append(turn)
        heappush(self._by_age, (age, self._came, turn))
        if len(self._by_age) > 2 * len(self._in_order) + 64:  # most had their turn in the other order
            self._by_age = [each for each in self._by_age if not each[2].done()]
            heapify(self._by_age)

    def next(self) -> asyncio.Future[None] | None:
        """Who has the next turn: whoever came first, and every other time what is oldest. None: nobody waits."""
        self._oldest_next = not self._oldest_next
        while self._in_order:
            turn = heappop(self._by_age)[2] if self._oldest_next and self._by_age else self._in_order.popleft()
            if not turn.done():  # otherwise it had its turn in the other order, or who waited was cancelled
                return turn
        return None


class LoopTurn:
    """One slice of work in each turn of an event loop: names in turn (`take_turns_as`).

    Of a name, whoever came first and what is oldest take turns: so what began first is ended while the rest goes on.
    So what comes in meanwhile waits for one slice, however many requests have more to do, and who has one slice to do
    waits for one of each other name. Work that nobody else competes with begins at once.

    Attributes:
        taken: How many slices have begun.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._is_taken = False
        self._lines: dict[Hashable, _Slices] = {}
        self._names: deque[Hashable] = deque()  # of the lines, the next one first

    async def take(self) -> None:
        """Wait for a turn of the loop in which no other slice is done. It is over by itself."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, loop)
        else:
            name, age = _turns_as.get()
            if name not in self._lines:
                self._lines[name] = _Slices()
                self._names.append(name)
            turn: asyncio.Future[None] = loop.create_future()
            self._lines[name].add(age, turn)
            await turn
        self.taken += 1

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._names:
            name = self._names.popleft()
            turn = self._lines[name].next()
            if turn is None:
                del self._lines[name]
                continue
            self._names.append(name)
            turn.set_result(None)
            loop.call_soon(self._pass_on, loop)
            return
        self._is_taken = False


_loop_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurn] = WeakKeyDictionary()


def loop_turn() -> LoopTurn:
    """What the slices of all work on the running event loop wait for."""
    loop = asyncio.get_running_loop()
    found = _loop_turns.get(loop)
    if found is None:
        found = _loop_turns[loop] = LoopTurn()
    return found


class Pauses:
    """Between opened rows, so that others go first: after every `PAUSE_BYTES` of them, however many there are.

    What a row holds is a client's to choose; `PAUSE_BYTES` of empty lists take some 5 ms to decode.
    """

    def __init__(self) -> None:
        self._bytes = 0

    async def after(self, size_bytes: int) -> None:
        """A row of so many bytes was opened."""
        self._bytes += size_bytes + PAUSE_ROW_BYTES
        if self._bytes >= PAUSE_BYTES:
            self._bytes = 0
            await self.now()

    async def now(self) -> None:
        """Let others go first before what comes next, which takes a while."""
        await asyncio.sleep(0)
        await loop_turn().take()
