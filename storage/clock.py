"""The one source of time for storage, so that tests can hold it still.

Times that are compared across processes come from the database instead.
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time, timezone-aware, UTC."""

    def now(self) -> datetime:
        """The present moment in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present moment in UTC, to the microsecond."""
        return datetime.now(UTC)


class ManualClock:
    """The in-memory twin: time stands still until it is moved."""

    def __init__(self, start: datetime) -> None:
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """The moment the clock was last set to."""
        return self._now

    def set(self, moment: datetime) -> None:
        """Move to ``moment``; going backwards is allowed, as real clocks do it."""
        self._now = moment.astimezone(UTC)
