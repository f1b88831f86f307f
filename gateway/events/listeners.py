"""One who listens: what it hears, what it has not taken yet, and whether it may go on.

Owns the bound on what waits for a reader that takes nothing. It reads nothing itself: `gateway.events.hub` offers it
what happens.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec import UNSET

from gateway import wire
from gateway.admission.limits import WAITER_BYTES_MAX
from storage.encoding import encode_json
from storage.events.model import Event, EventPosition, EventQuery
from storage.scope import Scope, TenantScope

LATE_SECONDS: Final = 1.0  # a reader for whom as much waits as may has so long to take what is being sent to it


class Told(NamedTuple):
    """An event, and what is said of it, as JSON; whoever hears it is told the same."""

    event: Event
    line: bytes

    @property
    def position(self) -> EventPosition:
        """Where one goes on who has heard it."""
        return EventPosition(self.event.sequence, self.event.event_id)


def event_out(event: Event) -> wire.events.Event:
    """An event as the API shows it; its number is nobody's business (`gateway.events.positions`)."""
    return wire.events.Event.of(
        event,
        event_id=str(event.event_id),
        stream=wire.events.EventStream.of(event.stream),
        job_id=None if event.job_id is None else str(event.job_id),
        cursor=UNSET,
    )


def told(events: Sequence[Event]) -> list[Told]:
    """What is said of events."""
    return [Told(each, encode_json(event_out(each))) for each in events]


class Wanted(NamedTuple):
    """What one wants to hear: events of these types (none: of all), and of this thread (None: of all)."""

    types: frozenset[str] = frozenset()
    thread_id: str | None = None


class Listener:
    """One who listens.

    Args:
        scope: Whose events it hears.
        wanted: Which of them.
        authorization: The header by which it was let in, which is looked at again.
        position: Where it begins; None: with what happens from now on.

    Attributes:
        is_live: Whether it is offered what happens, so that it need not read.
        is_ended: Whether it hears nothing more.
        checked_at: When its key and its subject were looked at last, by the clock of the loop.
        reason: Why it ended, where something is wrong; None: nothing is.
    """

    def __init__(
        self, scope: Scope | TenantScope, wanted: Wanted, authorization: bytes, position: EventPosition | None
    ) -> None:
        self.scope = scope
        self.wanted = wanted
        self.authorization = authorization
        self.position = position
        self.is_live = False
        self.is_ended = False
        self.checked_at = 0.0
        self.reason: Exception | None = None
        self._subject_id = scope.subject_id if isinstance(scope, Scope) else None
        self._pending: deque[Told] = deque()
        self._pending_bytes = 0
        self._offered: EventPosition | None = None
        self._woken = asyncio.Event()
        self._sending: asyncio.Timeout | None = None

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose events it hears."""
        return self.scope.tenant_id

    def query(self, limit: int) -> EventQuery:
        """What it asks for where it reads by itself."""
        return EventQuery(self.position, self.wanted.types, self.wanted.thread_id, limit)

    def _hears(self, event: Event) -> bool:
        return (
            (self._subject_id is None or event.subject_id == self._subject_id)
            and (not self.wanted.types or event.type in self.wanted.types)
            and (self.wanted.thread_id is None or event.thread_id == self.wanted.thread_id)
        )

    def offer(self, batch: Sequence[Told], position: EventPosition) -> None:
        """Hear what has happened up to a position. Where more would wait for it than may, it is live no more."""
        last = self._offered or self.position
        if self.is_ended or (last is not None and position.sequence <= last.sequence):
            return
        heard = [
            each for each in batch if self._hears(each.event) and (last is None or each.event.sequence > last.sequence)
        ]
        size = sum(len(each.line) for each in heard)
        if self._pending_bytes + size > WAITER_BYTES_MAX:
            self._fall_behind()
            return
        self._offered = position
        if heard:
            self._pending.extend(heard)
            self._pending_bytes += size
            self._woken.set()

    def take(self, limit: int) -> list[Told]:
        """Take what was heard, and go on behind it."""
        taken = [self._pending.popleft() for _ in range(min(limit, len(self._pending)))]
        self._pending_bytes -= sum(len(each.line) for each in taken)
        if taken:
            self.position = taken[-1].position
        if not self._pending and self._offered is not None:
            self.position, self._offered = self._offered, None
        return taken

    @property
    def has_pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pending)

    async def wait(self, seconds: float) -> None:
        """Wait until something was heard, or it has ended, so many seconds at most."""
        self._woken.clear()
        if self._pending or self.is_ended:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    def end(self, reason: Exception | None = None) -> None:
        """Let it hear nothing more: for a reason that its client is told, or because it is time."""
        if not self.is_ended:
            self.is_ended, self.reason = True, reason
            self._woken.set()

    def _fall_behind(self) -> None:
        """Let it take what waits for it, and read what follows by itself. A reader must take what is sent now soon."""
        self.is_live = False
        self._offered = None
        self._woken.set()
        if self._sending is not None:
            late = asyncio.get_running_loop().time() + LATE_SECONDS
            self._sending.reschedule(min(late, self._sending.when() or late))

    def sending(self, limit: asyncio.Timeout | None) -> None:
        """What is sent now ends with ``limit`` if the reader turns out to be too slow; None: nothing is sent now."""
        self._sending = limit
