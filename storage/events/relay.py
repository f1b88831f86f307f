"""The relay: it takes what was committed to tenants' queues, numbers it, and so makes it readable.

One call of a function of the database is one batch: it takes a tenant's lease, or renews it, moves what is due from the
queue into the numbered events, and commits. So of two processes at one tenant each event gets one number, whichever of
them dies when. A process numbers soon what it committed itself; for what others did who then died it asks now and then
which tenants are due. A tenant at which it was lately it keeps, and looks at its queue often; then it gives it back.

Owns the order of events: within a stream that of commits, between streams none, but for a turn for each. It promises no
moment at which an event is numbered.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from storage.administration.rounds import GIVE_BACK_SECONDS_MAX
from storage.control.features import EVENTS, Features
from storage.errors import StorageError
from storage.event_queue.emitting import Emitting
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, TenantRelay
from storage.statements.events import queue as sql

ROWS_MAX: Final = 500
# Events that come together are numbered together: so long it waits after the first, and so long after it numbered some,
# because a batch costs about as much as saving what ten events are about.
GATHER_SECONDS: Final = 0.02
BUSY_GATHER_SECONDS: Final = 0.1
# How often it looks while some tenant is due, or was a moment ago, and while none is.
POLL_SECONDS: Final = 0.25
IDLE_SECONDS: Final = 1.0
# A tenant without events for so long is given back.
REST_SECONDS: Final = 1.0
# How often it is looked at how long tenants wait.
MEASURE_SECONDS: Final = 5.0
# A dead process's tenant is another one's after so long.
LEASE_SECONDS: Final = 5.0
# Tenants that it looks at in one turn, and those of them at the same time.
_TENANTS_MAX: Final = 200
_AT_ONCE: Final = 4
# Batches of one tenant before the others' turn.
_BATCHES_MAX: Final = 10
_DRAIN_BATCHES_MAX: Final = 100
_FIRST: Final = ("", "", "")


@dataclass(slots=True)
class _Held:
    """A tenant at which this process is.

    Attributes:
        until: The end of its lease, by which it is known to be ours.
        after: The stream behind which the next batch begins.
        active: When there were events last, by the monotonic clock.
        turn: Held by who makes a batch, so that it knows the lease as it is.
    """

    until: datetime | None = None
    after: tuple[str, str, str] = _FIRST
    active: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class EventRelay:
    """Numbers events; several processes may."""

    def __init__(self, unit_of_work: UnitOfWork, features: Features, emitting: Emitting) -> None:
        self._unit_of_work = unit_of_work
        self._features = features
        self._emitting = emitting
        self._held: dict[UUID, _Held] = {}
        self._woken: WeakValueDictionary[UUID, asyncio.Event] = WeakValueDictionary()

    def woken(self, tenant_id: UUID) -> asyncio.Event:
        """What is set whenever this process numbered events of a tenant; as `storage.events.verbs.Events.woken`."""
        return self._woken.setdefault(tenant_id, asyncio.Event())

    async def keep_running(
        self,
        failed: Callable[[Exception], None],
        numbered: Callable[[int], None] = lambda _: None,
        lagging: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Number events until cancelled, which is safe at any moment.

        Args:
            failed: Told of each look that failed; the next one comes all the same.
            numbered: Told the number of events that were numbered.
            lagging: Told every few seconds how long the tenant has waited that nobody is at.
        """
        polled, due, measured, busy = float("-inf"), False, float("-inf"), float("-inf")
        try:
            while True:
                pause = POLL_SECONDS if due or self._held else IDLE_SECONDS
                await self._wait(polled + pause - time.monotonic(), busy + BUSY_GATHER_SECONDS)
                try:
                    if time.monotonic() - polled >= pause:
                        polled = time.monotonic()
                        due = await self._find_due()
                    some = await self.run_once()
                    numbered(some)
                    busy = time.monotonic() if some else busy
                    if time.monotonic() - measured >= MEASURE_SECONDS:
                        measured = time.monotonic()
                        lagging(await self._lag_seconds())
                except Exception as reason:  # noqa: BLE001  whatever it is, the next look must come
                    failed(reason)
        finally:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                    await self._give_back()

    async def _wait(self, seconds: float, not_before: float) -> None:
        """Wait for the first event, and for those that come with it; or until it is time to look anyway."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._emitting.added.wait(), max(seconds, 0.0))
            await asyncio.sleep(max(GATHER_SECONDS, not_before - time.monotonic()))
        self._emitting.added.clear()

    async def _find_due(self) -> bool:
        """Note who is due and nobody's; returns whether anybody is."""
        if EVENTS.name not in self._features.since():
            return False
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            found = await transaction.fetch_all(sql.TENANTS_DUE, limit=_TENANTS_MAX)
        for tenant_id in (*found, *self._held):
            self._emitting.waiting.setdefault(tenant_id)
        return bool(found)

    async def _lag_seconds(self) -> float:
        if EVENTS.name not in self._features.since():
            return 0.0
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return await transaction.fetch_only(sql.LAG_SECONDS)

    async def run_once(self) -> int:
        """Number what this process knows to be due; returns how many events that were.

        Raises:
            Exception: What failed first, of one tenant; the others' were numbered all the same.
        """
        tenants = list(islice(self._emitting.waiting, _TENANTS_MAX))
        for tenant_id in tenants:
            del self._emitting.waiting[tenant_id]
        left = iter(tenants)
        if self._emitting.waiting:
            self._emitting.added.set()  # the others have their turn at once
        failures: list[Exception] = []
        numbered = 0

        async def work() -> None:
            nonlocal numbered
            for tenant_id in left:
                try:
                    numbered += await self._advance(tenant_id)
                except Exception as reason:  # noqa: BLE001  of one tenant, which must not stop the others
                    self._emitting.waiting.setdefault(tenant_id)
                    failures.append(reason)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(tenants))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return numbered

    async def _advance(self, tenant_id: UUID) -> int:
        """Number events of a tenant, some batches at most; none, if another process is at it."""
        held = self._held.setdefault(tenant_id, _Held())
        numbered = 0
        for _ in range(_BATCHES_MAX):
            row = await self._batch(tenant_id, held, may_rest=time.monotonic() - held.active >= REST_SECONDS)
            if row is None or row.rests:
                return numbered
            numbered += row.taken
            if row.taken < ROWS_MAX and held.after == _FIRST:
                return numbered
            # Behind the stream that it came to; and once nothing is behind it, with the first one.
            last = (row.last_kind or "", row.last_id or "", row.last_incarnation or "")
            held.after = last if row.taken == ROWS_MAX else _FIRST
        self._emitting.committed(tenant_id)  # there is more
        return numbered

    async def _batch(self, tenant_id: UUID, held: _Held, *, may_rest: bool) -> sql.RelayedRow | None:
        """Number a batch; None: another process is at the tenant."""
        async with held.turn:
            kind, of_id, incarnation = held.after
            row = await self._unit_of_work.ask(
                sql.RELAY,
                TenantRelay(tenant_id),
                after_kind=kind,
                after_id=of_id,
                after_incarnation=incarnation,
                rows_max=ROWS_MAX,
                lease_seconds=LEASE_SECONDS,
                held_until=held.until,
                may_rest=may_rest,
            )
            if row is None or row.rests:
                if self._held.get(tenant_id) is held:
                    del self._held[tenant_id]
            else:
                held.until = row.held_until
                self._held[tenant_id] = held
        if row is not None and row.taken:
            held.active = time.monotonic()
            if (woken := self._woken.get(tenant_id)) is not None:
                woken.set()
        return row

    async def drain(self, tenant_id: UUID) -> int | None:
        """Number all that is in a tenant's queue, now.

        Returns:
            The number of its newest event; None: another process is at it, and will have done so soon, or there is
            more than some batches.
        """
        held = self._held.setdefault(tenant_id, _Held())
        for _ in range(_DRAIN_BATCHES_MAX):
            row = await self._batch(tenant_id, held, may_rest=True)
            if row is None:
                return None
            if row.rests or (not row.taken and held.after == _FIRST):
                return row.newest
            held.after = _FIRST
        self._emitting.committed(tenant_id)
        return None

    async def _give_back(self) -> None:
        held, self._held = self._held, {}
        for tenant_id, each in held.items():
            if each.until is not None:
                async with self._unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
                    await transaction.run(sql.RELEASE, held_until=each.until)
