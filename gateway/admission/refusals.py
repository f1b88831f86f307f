"""How long an answer that refuses waits when there are many: who is refused at once comes again at once.

Owns how many refusals a second are answered at once, of all who are refused for one kind of reason. Whoever waits here
holds a connection, and no place among requests.
"""

import time
from collections.abc import Callable

REFUSALS_PER_SECOND = 50.0  # that are answered at once: of a process's thousand requests a second
REFUSALS_MAX = 100
DELAY_SECONDS = 1.0  # before each further one: so a connection costs one request a second, not hundreds


class Bucket:
    """So many at once, and so many a second on average.

    Args:
        most: As many at once.
        per_second: As many on average.
        clock: Seconds that only go forward.
    """

    def __init__(self, most: float, per_second: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._per_second = per_second
        self._clock = clock
        self._left = most
        self._counted_at = clock()

    @property
    def is_empty(self) -> bool:
        """Whether there was too much lately."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return self._left < 1

    def take(self) -> None:
        """Count one."""
        self._left -= 1


class Refusals:
    """The refusals of one kind in this process.

    Args:
        clock: Seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = Bucket(REFUSALS_MAX, REFUSALS_PER_SECOND, clock)

    def delay_seconds(self) -> float:
        """How long the next answer that refuses should wait, which is counted; 0: not at all."""
        if self._bucket.is_empty:
            return DELAY_SECONDS
        self._bucket.take()
        return 0.0
