"""Turns of the event loop, for work that holds it: one slice of work in each, and names in turn.

Owns which slice is next, and how much of opened rows is one slice. It bounds neither how long a slice takes nor how
many wait; a `storage.concurrency.queues.FairQueue` bounds callers.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from itertools import count
from weakref import WeakKeyDictionary

PAUSE_BYTES = 16 * 1024
PAUSE_ROW_BYTES = 512  # what a row counts for beside its bytes: to authenticate it takes a while, however small it is

_turns_as: ContextVar[tuple[Hashable, int]] = ContextVar("storage_turns_as", default=(None, 0))
_ages = count(1)


def take_turns_as(name: Hashable) -> None:
    """Say whose the slices of this request are; its task says it, too, to the tasks that work for it."""
    _turns_as.set((name, next(_ages)))


class _Slices:
    """The slices of one name that wait for a turn of the loop."""

    __slots__ = ("_by_age", "_came", "_in_order", "_oldest_next")

    def __init__(self) -> None:
        self._in_order: deque[asyncio.Future[None]] = deque()
        self._by_age: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = 0
        self._oldest_next = False

    def add(self, age: int, turn: asyncio.Future[None]) -> None:
        """Let a slice wait."""
        self._came += 1
        self._in_order.append(turn)
        heappush(self._by_age, (age, self._came, turn))
        if len(self._by_age) > 2 * len(self._in_order) + 64:  # most had their turn in the other order
            self._by_age = [each for each in self._by_age if not each[2].done()]
            heapify(self._by_age)

    def next(self) -> asyncio.Future[None] | None:
        """The slice that has the next turn: the first to come, and every other time the oldest; None: none waits."""
        self._oldest_next = not self._oldest_next
        while self._in_order:
            turn = heappop(self._by_age)[2] if self._oldest_next and self._by_age else self._in_order.popleft()
            if not turn.done():  # otherwise it had its turn in the other order, or who waited was cancelled
                return turn
        return None


class LoopTurn:
    """One slice of work in each turn of an event loop: names in turn (`take_turns_as`).

    Of a name, the first to come and the oldest take turns: so what began first ends while the rest goes on. A request
    that comes in meanwhile waits for one slice, however many others have more to do, and a request of one slice waits
    for one of each other name. Work without competition begins at once.

    Attributes:
        taken: The number of slices that have begun.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._is_taken = False
        self._lines: dict[Hashable, _Slices] = {}
        self._names: deque[Hashable] = deque()  # of the lines, the next one first

    async def take(self) -> None:
        """Wait for a turn of the loop in which no other slice runs. The turn ends by itself."""
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
    """The turns of the running event loop, which the slices of all its work wait for."""
    loop = asyncio.get_running_loop()
    found = _loop_turns.get(loop)
    if found is None:
        found = _loop_turns[loop] = LoopTurn()
    return found


class Pauses:
    """Pauses between opened rows that let other requests go first: one after every `PAUSE_BYTES` of rows.

    A client chooses what a row holds; `PAUSE_BYTES` of empty lists take some 5 ms to decode.
    """

    def __init__(self) -> None:
        self._bytes = 0

    async def after(self, size_bytes: int) -> None:
        """Count a row that was opened, and pause if it is time."""
        self._bytes += size_bytes + PAUSE_ROW_BYTES
        if self._bytes >= PAUSE_BYTES:
            self._bytes = 0
            await self.now()

    async def now(self) -> None:
        """Let other requests go first, before work that takes a while."""
        await asyncio.sleep(0)
        await loop_turn().take()
