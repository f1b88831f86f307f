"""What happens, read once for all of a tenant's listeners and handed to each: the hub of a process.

A listener that comes reads what is behind it by itself, as its own subject. When it has come up to now it is live: from
then on one read of its tenant, once a tick, is for all its live listeners, whatever number they are, and each is
offered what it may hear and wants to. None of them holds a connection of the database meanwhile. What is numbered in
this process wakes them at once; else a tick asks for the newest number, every 100 ms first and every 2 s when nothing
happens.

Who takes less than comes is live no more: it takes what waits for it, reads what follows by itself, and may be live
again.

No event falls between reading and being live: a listener becomes live only where its own read came at least as far as
the last read for all, and the batches it is offered then begin there.

Owns, too, that nobody listens on who may not any more: keys and subjects are looked at again every few seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from secrets import SystemRandom
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from crypto import CryptoError
from crypto.errors import KeyDestroyed
from gateway.admission.limits import Drain, TooManyFailures
from gateway.authentication.principals import Authenticator
from gateway.events.listeners import Listener, Told, told
from gateway.problems import TenantSuspended, Unauthenticated
from storage.concurrency.turns import loop_turn
from storage.errors import (
    EventsExpired,
    EventsOff,
    EventsRewound,
    FeatureOff,
    IntegrityFailure,
    StorageError,
    Unavailable,
)
from storage.events.model import EventPage, EventPosition, EventQuery
from storage.scope import Scope, TenantScope

TICK_SECONDS_MIN: Final = 0.1
TICK_SECONDS_MAX: Final = 2.0
GATHER_SECONDS: Final = 0.05  # what is numbered within so long is read together
BATCH_EVENTS: Final = 100
SLICE_LISTENERS: Final = 64  # are offered a batch in one turn of the loop
# A revoked key must be noticed within 5 s: so long between two looks at a tenant's listeners, and for one look. Who was
# not looked at for longer than is allowed hears nothing more.
CHECK_SECONDS: Final = 2.5
CHECK_SECONDS_MAX: Final = 2.0
UNCHECKED_SECONDS_MAX: Final = 5.0
_TENANTS_AT_ONCE: Final = 8
SETTINGS_SECONDS: Final = 10.0  # where nothing happens, it is asked so often whether the tenant still has events

_OVER: Final = (EventsExpired, EventsOff, EventsRewound, FeatureOff, IntegrityFailure)
_REFUSED: Final = (Unauthenticated, TenantSuspended, TooManyFailures)

_JITTER: Final = SystemRandom()

_log = structlog.get_logger()


class EventReads(Protocol):
    """What the hub needs of storage's events."""

    async def read(self, scope: Scope | TenantScope, query: EventQuery) -> EventPage:
        """Events behind a position."""

    async def newest(self, tenant_id: UUID) -> int:
        """The number of the newest event of a tenant."""

    def woken(self, tenant_id: UUID) -> asyncio.Event:
        """What is set whenever this process numbered events of a tenant."""


class _Channel:
    """The live listeners of one tenant, and how far all of them are.

    Args:
        tenant_id: Whose events they hear.
        events: The way to what happened.
        begin: Runs what reads for all of them.

    Attributes:
        listeners: The live ones.
        catching_up: The turn of those who are not live at reading by themselves.
        count: The number of listeners, live or not.
    """

    def __init__(self, tenant_id: UUID, events: EventReads, begin: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.listeners: set[Listener] = set()
        self.catching_up = asyncio.Lock()
        self.count = 0
        self._tenant_id = tenant_id
        self._events = events
        self._begin = begin
        self._position: EventPosition | None = None  # None: nobody reads for all
        self._read_at = asyncio.get_running_loop().time()

    def join(self, listener: Listener) -> bool:
        """Let a listener be live that has read up to its position; False: others are further, and it must read on."""
        position = listener.position
        assert position is not None  # noqa: S101  for the type checker: it has read
        if self._position is not None and position.sequence < self._position.sequence:
            return False
        self.listeners.add(listener)
        listener.is_live = True
        if self._position is None:
            self._position = position
            self._begin(self._read_for_all())
        return True

    async def _read_for_all(self) -> None:
        woken = self._events.woken(self._tenant_id)
        pause = TICK_SECONDS_MIN
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
                if not self.listeners:  # looked at before anything is taken from those who listen by now
                    return
                was_woken = woken.is_set()
                if was_woken:
                    await asyncio.sleep(GATHER_SECONDS)
                    woken.clear()
                try:
                    moved = await self._read(ask_first=not was_woken)
                except (StorageError, CryptoError) as reason:
                    if isinstance(reason, _OVER):
                        self._end_all(reason)
                        return
                    _log.warning("events not read", error=type(reason).__name__)  # it is tried again
                    moved = False
                pause = TICK_SECONDS_MIN if moved else min(pause * 1.5, TICK_SECONDS_MAX)
        except Exception as reason:  # noqa: BLE001  whatever it is, nobody must listen to what nobody reads
            self._end_all(reason)
        finally:
            self._position = None

    def _end_all(self, reason: Exception) -> None:
        _log.warning("listeners of a tenant ended", error=type(reason).__name__, listeners=len(self.listeners))
        for each in list(self.listeners):
            each.end(reason)

    async def _read(self, *, ask_first: bool) -> bool:
        """Read what came, and offer it; whether anything did. Who was not woken asks for the newest number first."""
        assert self._position is not None  # noqa: S101  for the type checker: it is known as long as this runs
        clock = asyncio.get_running_loop().time
        is_quiet = ask_first and await self._events.newest(self._tenant_id) == self._position.sequence
        if is_quiet and clock() < self._read_at + SETTINGS_SECONDS:
            return False
        more = True
        while more:
            query = EventQuery(self._position, limit=BATCH_EVENTS)
            page = await self._events.read(TenantScope(self._tenant_id), query)
            # From here to the list of listeners nothing waits: whoever becomes live later has read as far.
            self._position, more, self._read_at = page.position, page.more, clock()
            await self._offer(list(self.listeners), told(page.events))
        return not is_quiet

    async def _offer(self, listeners: list[Listener], batch: list[Told]) -> None:
        assert self._position is not None  # noqa: S101  for the type checker, as above
        position = self._position
        for start in range(0, len(listeners), SLICE_LISTENERS):
            await loop_turn().take()
            for each in listeners[start : start + SLICE_LISTENERS]:
                each.offer(batch, position)
                if not each.is_live:
                    self.listeners.discard(each)
            await asyncio.sleep(0)  # so that these are told before the next ones are


class Hub:
    """All listeners of a process.

    Args:
        events: The way to what happened.
        authenticator: Looks at keys again.
        check_subject: Raises KeyDestroyed for a subject that was shredded.
        drain: The process's way out, at which listeners end, too.
    """

    def __init__(
        self,
        events: EventReads,
        authenticator: Authenticator,
        check_subject: Callable[[Scope], Awaitable[None]],
        drain: Drain,
    ) -> None:
        self._events = events
        self._authenticator = authenticator
        self._check_subject = check_subject
        self._drain = drain
        self._listeners: set[Listener] = set()
        self._channels: dict[UUID, _Channel] = {}
        self._reading: set[asyncio.Task[None]] = set()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Let one listen, in the block, as long as it may."""
        tenant_id = listener.tenant_id
        channel = self._channels.get(tenant_id)
        if channel is None:
            channel = self._channels[tenant_id] = _Channel(tenant_id, self._events, self._begin)
        channel.count += 1
        self._listeners.add(listener)
        listener.checked_at = asyncio.get_running_loop().time()  # it was let in just now
        if self._drain.draining:
            listener.end()
        try:
            yield
        finally:
            self._listeners.discard(listener)
            channel.listeners.discard(listener)
            channel.count -= 1
            if not channel.count:  # what still reads for it notices, and nothing is cancelled in the middle of a read
                del self._channels[tenant_id]

    def _begin(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(reading)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def read(self, listener: Listener, limit: int) -> list[Told]:
        """What is behind a listener's position, read as itself; when that is all, it is live from then on.

        Raises:
            StorageError: as `Events.read`.
            CryptoError: likewise.
        """
        page = await self._events.read(listener.scope, listener.query(limit))
        listener.position = page.position
        if not page.more:
            self._channels[listener.tenant_id].join(listener)
        return told(page.events)

    async def next(self, listener: Listener, limit: int, seconds: float) -> list[Told]:
        """What a listener hears next; nothing: nothing came in so many seconds, or it has ended.

        Raises:
            StorageError, CryptoError: as `read`.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not (listener.has_pending or listener.is_live or listener.is_ended):
            async with self._channels[listener.tenant_id].catching_up:  # those who come late read one after the other
                heard = await self.read(listener, limit)
            if heard or clock() > until:
                return heard
            if not listener.is_live:
                await asyncio.sleep(GATHER_SECONDS)
        await listener.wait(until - clock())
        return listener.take(limit)

    async def run(self) -> None:
        """End, until cancelled, who may not listen any more, and all when the process drains; then all at once."""
        draining = asyncio.create_task(self._end_with_drain())
        try:
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                try:
                    await self.check()
                except Exception as reason:  # noqa: BLE001  whoever is not looked at any more must not listen on
                    _log.error("listeners not looked at", error=type(reason).__name__)
                    for each in list(self._listeners):
                        each.end(Unavailable("who listens could not be looked at"))
        finally:
            draining.cancel()
            for each in list(self._listeners):
                each.end()
            for task in self._reading:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    async def _end_with_drain(self) -> None:
        """Spread the ends over half of the drain, so that not all come to the next process at once."""
        await self._drain.begun()
        loop = asyncio.get_running_loop()
        for each in list(self._listeners):
            loop.call_later(_JITTER.uniform(0, self._drain.drain_seconds / 2), each.end)

    async def check(self) -> None:
        """Look at who listens: tenants beside each other, so that a busy one keeps no other from it."""
        by_tenant: dict[UUID, list[Listener]] = {}
        for each in self._listeners:
            by_tenant.setdefault(each.tenant_id, []).append(each)
        turns = asyncio.Semaphore(_TENANTS_AT_ONCE)

        async def look(listeners: list[Listener]) -> None:
            async with turns:
                await self._check_tenant(listeners)

        await asyncio.gather(*map(look, by_tenant.values()))

    async def _check_tenant(self, listeners: list[Listener]) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                await self._check_keys(listeners)
                await self._check_subjects(listeners)
        except (StorageError, CryptoError, TimeoutError) as reason:
            _log.warning("listeners not looked at", error=type(reason).__name__)
            for each in listeners:
                if clock() - each.checked_at > UNCHECKED_SECONDS_MAX:
                    each.end(Unavailable("whether you may still listen could not be looked at"))
        else:
            for each in listeners:
                each.checked_at = clock()

    async def _check_keys(self, listeners: list[Listener]) -> None:
        by_key: dict[bytes, list[Listener]] = {}
        for each in listeners:
            by_key.setdefault(each.authorization, []).append(each)
        for authorization, of_key in by_key.items():
            try:
                await self._authenticator.verify(authorization, anew=True)
            except _REFUSED as reason:
                for each in of_key:
                    each.end(reason)

    async def _check_subjects(self, listeners: list[Listener]) -> None:
        by_subject: dict[Scope, list[Listener]] = {}
        for each in listeners:
            if isinstance(each.scope, Scope):
                by_subject.setdefault(each.scope, []).append(each)
        for scope, of_subject in by_subject.items():
            try:
                await self._check_subject(scope)
            except (KeyDestroyed, IntegrityFailure) as reason:
                for each in of_subject:
                    each.end(reason)
