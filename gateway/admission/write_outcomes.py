"""Whether the database took what this process wrote last.

A server whose disk is full answers everything that only reads, and refuses whatever needs room: one cannot ask it
beforehand whether it will take the next save without saving something. So the writes of clients tell. When several in a
row were refused, and none went through, the process says that it is not fit for writes (`gateway.readiness`). It says
so for a while only, since a process that is sent no requests learns nothing: then it lets writes come again, and the
first one decides.

Owns that judgement, and no I/O. A write that was refused for a reason of its own, as every 4xx is, says nothing here.
"""

import time
from collections.abc import Callable

from storage.errors import DatabaseReadOnly

REFUSED_MIN = 3  # in a row: one may have met a server that was about to be replaced
REST_SECONDS = 10.0  # how long no writes are sent here after the last one that was refused


class WriteOutcomes:
    """What became of the last writes.

    Args:
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._refused = 0
        self._refused_at = 0.0

    def note(self, error: BaseException | None) -> None:
        """Take in how a write ended; None: it was committed."""
        if error is None:
            self._refused = 0
        elif isinstance(error, DatabaseReadOnly):
            self._refused += 1
            self._refused_at = self._now()

    @property
    def are_refused(self) -> bool:
        """Whether the next write would be refused, too, as far as the last ones tell."""
        return self._refused >= REFUSED_MIN and self._now() - self._refused_at < REST_SECONDS
