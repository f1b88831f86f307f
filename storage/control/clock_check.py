"""Whether this process's clock and the database's agree.

What decides a removal compares times of the database's clock only. A clock of a process that is far from it says that
one of the two is wrong, and from here it cannot be told which: such a process removes nothing by time until they agree,
and says so. Owns the measurement and the bound; it sets no clock, and what was stored before it looked stays as it is.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from storage.clock import Clock
from storage.errors import ClockOff
from storage.postgres.clock import NOW
from storage.postgres.session import Session
from storage.postgres.unit_of_work import UnitOfWork

# Synchronized machines are milliseconds apart; what is further than this is not synchronized.
OFFSET_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far the database's clock is from this process's.

    Attributes:
        seconds: The seconds by which the database's clock is ahead; negative: behind.
        uncertain_seconds: The seconds that asking took at most, which are no disagreement by themselves.
    """

    seconds: float
    uncertain_seconds: float

    @property
    def agrees(self) -> bool:
        """Whether it is within the bound."""
        return abs(self.seconds) - self.uncertain_seconds <= OFFSET_SECONDS_MAX


async def measure_offset(connection: Any, clock: Clock) -> ClockOffset:
    """Ask the database for the time."""
    begun, ours = time.monotonic(), clock.now()
    theirs = await Session(connection).fetch_only(NOW)
    half = (time.monotonic() - begun) / 2
    return ClockOffset((theirs - ours).total_seconds() - half, half)


class ClockCheck:
    """The check that comes before anything is removed because its time has come."""

    def __init__(self, unit_of_work: UnitOfWork, clock: Clock) -> None:
        self._unit_of_work = unit_of_work
        self._clock = clock

    async def require(self) -> None:
        """Measure now.

        Raises:
            ClockOff: the clocks disagree by more than `OFFSET_SECONDS_MAX`.
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.connection() as connection:
            offset = await measure_offset(connection, self._clock)
        if not offset.agrees:
            raise ClockOff(
                f"the database's clock is {offset.seconds:+.1f} s from this process's, more than"
                f" {OFFSET_SECONDS_MAX:.0f} s: nothing is removed by time until both are synchronized"
            )
