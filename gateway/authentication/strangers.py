"""Strangers: what callers may cost whose keys nothing vouches for yet, neither an earlier use nor the key itself.

Owns how many of their keys are looked up at once, how many that open nothing are looked up in a second, how long an
answer that was no is good for another time, and how long strangers wait for theirs when there are many. It counts for
the whole process and not by address: behind a proxy all have one. So strangers may be told to come again because of
other strangers. A caller who is vouched for is no stranger and never waits here.
"""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.admission.limits import TooManyFailures
from gateway.problems import Unauthenticated
from storage.concurrency.queues import FairQueue

LOOK_UPS_AT_ONCE = 2  # connections of the process; one for who is right while another one waits for its answer
LOOK_UPS_WAITING_MAX = 64  # a fleet that starts; who waits holds a request
LOOK_UP_SECONDS_MAX = 2.0  # well within a client's attempt timeout of 10 s
FAILURES_PER_SECOND = 10.0  # on average; as many look-ups are not seen in the database's load
FAILURES_MAX = 50  # at once; a fleet whose keys were revoked
REFUSALS_PER_SECOND = 50.0  # that are answered at once: of a process's thousand requests a second
REFUSALS_MAX = 100
DELAY_SECONDS = 1.0  # before each further one: so a connection costs one request a second, not hundreds
REFUSED_SECONDS = 1.0  # how long a key that was made in another process meanwhile stays unknown
REFUSED_MAX = 10_000  # about 2 MB


class _Bucket:
    """So many at once, and so many a second on average."""

    def __init__(self, most: float, per_second: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._per_second = per_second
        self._clock = clock
        self._left = most
        self._counted_at = clock()

    @property
    def is_empty(self) -> bool:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return self._left < 1

    def take(self) -> None:
        self._left -= 1


class Strangers:
    """Look-ups of keys that nothing vouches for, and keys that were refused a moment ago.

    Args:
        clock: Seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue = FairQueue(LOOK_UPS_AT_ONCE, LOOK_UPS_WAITING_MAX, LOOK_UP_SECONDS_MAX, TooManyFailures)
        self._failures = _Bucket(FAILURES_MAX, FAILURES_PER_SECOND, clock)
        self._refusals = _Bucket(REFUSALS_MAX, REFUSALS_PER_SECOND, clock)
        self._refused: OrderedDict[bytes, float] = OrderedDict()

    def was_refused(self, name: bytes) -> bool:
        """Whether what ``name`` stands for, a key or an id, was refused within `REFUSED_SECONDS`."""
        until = self._refused.get(name)
        return until is not None and until > self._clock()

    def refuse(self, name: bytes) -> None:
        """Remember that it was; of too many the oldest is forgotten."""
        self._refused[name] = self._clock() + REFUSED_SECONDS
        self._refused.move_to_end(name)
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have one look-up while the block runs; a block that ends in `Unauthenticated` is a failure.

        Raises:
            TooManyFailures: there were too many of them, or too many strangers wait.
        """
        self._check()
        async with self._queue.turn(None):
            self._check()
            try:
                yield
            except Unauthenticated:
                self._failures.take()
                raise

    def delay_seconds(self) -> float:
        """How long the next answer that refuses a stranger should wait, which is counted; 0: not at all."""
        if self._refusals.is_empty:
            return DELAY_SECONDS
        self._refusals.take()
        return 0.0

    def _check(self) -> None:
        if self._failures.is_empty:
            raise TooManyFailures
