"""Fair queues: a bounded number of turns at once for each name, and a bounded line of those who wait.

Owns the order, first come first served, the promise that no turn is lost when a caller gives up waiting, and the number
of turns of a name: fewer while several names ask, so that no name finds all of another one's before it. What a turn
permits is the caller's concern. A queue knows one process only.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

COMPANY_SECONDS = 1.0  # how long names count as asking side by side; an agent's next step comes within it


class _Line:
    __slots__ = ("active", "waiting")

    def __init__(self) -> None:
        self.active = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class FairQueue:
    """A queue by name: so many are active at once, and the others wait in the order in which they came.

    Args:
        active_max: The number of callers that have a turn at once.
        waiting_max: The number of callers that wait for one; None: another limit has counted them already.
        seconds_max: The time that they wait; None: as long as it takes.
        refused: The function that makes the exception for the others.
        company_max: The number of callers that have a turn at once while another name asked, too, within
            `COMPANY_SECONDS`; ``active_max`` when left out.
        clock: The seconds that only go forward.
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
        """The number of names of which a caller has a turn."""
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncIterator[None]:
        """Hold a turn while the block runs; raises what `enter` does."""
        await self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    async def enter(self, name: Hashable) -> None:
        """Wait for a turn; the caller has to `leave` when it is done.

        Raises:
            Exception: What ``refused`` makes: too many wait already, or the turn did not come in time.
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
                self.leave(name)  # the turn came in the same moment: the next one has it
            elif turn in line.waiting:  # otherwise a turn that left meanwhile has skipped it
                line.waiting.remove(turn)
            if isinstance(reason, TimeoutError):
                raise self._refused() from None
            raise

    def leave(self, name: Hashable) -> None:
        """Pass the turn on to the caller that waits longest, and to more of them if the name may have more again."""
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
