"""Strangers: what callers may cost whose keys nothing vouches for yet, neither an earlier use nor the key itself.

Owns how many of their keys are looked up at once, how many that open nothing are looked up in a second, and how long an
answer that was no is good for another time; how long they wait for it when there are many is as for all who are refused
(`gateway.admission.refusals`), counted by itself. It counts for
the whole process and not by address: behind a proxy all have one. So strangers may be told to come again because of
other strangers. A caller who is vouched for is no stranger and never waits here.
"""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.admission.limits import TooManyFailures
from gateway.admission.refusals import Bucket, Refusals
from gateway.problems import Unauthenticated
from storage.concurrency.queues import FairQueue

LOOK_UPS_AT_ONCE = 2  # connections of the process; one for who is right while another one waits for its answer
LOOK_UPS_WAITING_MAX = 64  # a fleet that starts; who waits holds a request
LOOK_UP_SECONDS_MAX = 2.0  # well within a client's attempt timeout of 10 s
FAILURES_PER_SECOND = 10.0  # on average; as many look-ups are not seen in the database's load
FAILURES_MAX = 50  # at once; a fleet whose keys were revoked
REFUSED_SECONDS = 1.0  # how long a key that was made in another process meanwhile stays unknown
REFUSED_MAX = 10_000  # about 2 MB


class Strangers:
    """Look-ups of keys that nothing vouches for, and keys that were refused a moment ago.

    Args:
        clock: Seconds that only go forward.

    Attributes:
        refusals: The answers that were no.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue = FairQueue(LOOK_UPS_AT_ONCE, LOOK_UPS_WAITING_MAX, LOOK_UP_SECONDS_MAX, TooManyFailures)
        self._failures = Bucket(FAILURES_MAX, FAILURES_PER_SECOND, clock)
        self.refusals = Refusals(clock)
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

    def _check(self) -> None:
        if self._failures.is_empty:
            raise TooManyFailures
