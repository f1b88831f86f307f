"""The verbs on events: whether a tenant has them, and reading them.

A reader goes on behind a position, the number and the id of the last event that it saw (or that was there). Numbers of
a tenant are given in the order of the relay (`storage.events.relay`), under one row's lock, so that whoever sees a
number sees all below it. What a page promises: in one stream the order of commits, each event at least once.

A position is refused where it would lead past events in silence: where another event has its number, or none yet (a
backup was restored, or a replica promoted that lagged behind), and where what followed it is not kept any more. Events
that were switched off leave no trace of what happened meanwhile: positions from before are too old then.

Owns what a position means. It does not wait: who waits asks `newest` now and then, or is `woken`.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final
from uuid import UUID

from storage.administration.audit import Audit
from storage.control.features import EVENTS
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, event_settings_row, proof_of
from storage.errors import EventsExpired, EventsOff, EventsRewound, IntegrityFailure, LostRaceError
from storage.event_queue.emitting import Emitting
from storage.events.model import Event, EventPage, EventPosition, EventQuery, EventSettings, Stream
from storage.events.relay import EventRelay
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope, TenantRelay, TenantScope
from storage.statements.events import events as sql
from storage.statements.events.queue import BEGIN_RELAY
from storage.statements.rules.retention import BEGIN_ROUNDS

# Events count from so long after they were switched on: every process knows of it then.
LEAD_SECONDS: Final = 10.0
# Numbers that one page looks at, however few of them it shows.
NUMBERS_MAX: Final = 10_000


class Events:
    """The verbs on events."""

    def __init__(
        self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows, emitting: Emitting, relay: EventRelay
    ) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control
        self._emitting = emitting
        self._relay = relay

    async def settings(self, scope: TenantScope) -> EventSettings:
        """Whether a tenant has events.

        Raises:
            CryptoError: The root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready_to_check()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return self._read(scope.tenant_id, await transaction.fetch_one(sql.SETTINGS))

    async def set_settings(self, scope: TenantScope, actor: str, *, on: bool) -> EventSettings:
        """Switch a tenant's events on or off; the same again changes nothing. Returns what holds now.

        Args:
            scope: The tenant.
            actor: Who says so.
            on: Whether what happens is told.

        Raises:
            FeatureOff: An older build may run; finish the upgrade first.
            CryptoError: As `settings`; nothing changed.
        """
        await self._control.ready()
        await self._control.features.require(EVENTS, "events are told")

        async def attempt() -> EventSettings:
            return await self._set(scope, actor, on=on)

        said = await self._unit_of_work.retrying(attempt)
        self._emitting.learn(scope.tenant_id, is_on=on)
        return said

    async def _set(self, scope: TenantScope, actor: str, *, on: bool) -> EventSettings:
        begins = on and not (await self.settings(scope)).on
        if begins:
            # Nobody reads before `since`: positions that were given before that are too old from now on.
            async with self._unit_of_work.begin(TenantRelay(scope.tenant_id)) as transaction:
                await transaction.run(sql.BEGIN_ANEW)
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK, name=f"{scope.tenant_id}/event-settings")
            before = self._read(scope.tenant_id, await transaction.fetch_one(sql.SETTINGS))
            if before.on == on and not before.damaged:
                return before
            if on and not begins:  # somebody switched them off since
                raise LostRaceError
            said = await self.store(transaction, scope.tenant_id, on=on, lead_seconds=LEAD_SECONDS)
            target = f"tenant:{scope.tenant_id}"
            detail = {"before": "damaged" if before.damaged else before.on, "after": on}
            await self._audit.append(transaction, scope.tenant_id, actor, "event-settings.set", target, detail)
        return said

    async def store(self, transaction: Transaction, tenant_id: UUID, *, on: bool, lead_seconds: float) -> EventSettings:
        """Store what is said, with its proof, and what the relay and the rounds of retention need to begin.

        Args:
            transaction: The transaction, of the tenant's scope.
            tenant_id: The tenant that says so.
            on: Whether what happens is told.
            lead_seconds: The time until all processes know of it.
        """
        now = await transaction.fetch_only(NOW)
        since = now + timedelta(seconds=lead_seconds) if on else None
        proof = self._control.proof(event_settings_row(tenant_id, on, since, now))
        await transaction.run(sql.PUT_SETTINGS, is_on=on, since=since, changed_at=now, **proof._asdict())
        await transaction.run(BEGIN_RELAY)
        if on:
            await transaction.run(BEGIN_ROUNDS, owner=tenant_id)
        return EventSettings(on, since)

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """What a tenant says of its events as it is proved, and its stored proof: for a check of all such rows."""
        for row in await transaction.fetch_all(sql.SETTINGS):
            yield event_settings_row(tenant_id, row.is_on, row.since, row.changed_at), proof_of(row)

    def _read(self, tenant_id: UUID, row: sql.SettingsRow | None) -> EventSettings:
        if row is None:
            return EventSettings()
        said = event_settings_row(tenant_id, row.is_on, row.since, row.changed_at)
        if not self._control.is_sound(said, proof_of(row)):
            return EventSettings(damaged=True)
        return EventSettings(row.is_on, row.since)

    async def read(self, scope: Scope | TenantScope, query: EventQuery) -> EventPage:
        """Events behind a position: of a subject its own, of a tenant all.

        Args:
            scope: Who reads.
            query: What it asks for.

        Raises:
            EventsOff: The tenant has none, or none yet.
            EventsExpired: Some behind the position are not kept any more.
            EventsRewound: Another event has the position's number, or none has got it yet.
            IntegrityFailure: What the tenant says of its events was not written by a gateway.
            FeatureOff: An older build may run; finish the upgrade first.
            CryptoError: As `settings`.
        """
        await self._control.ready_to_check()
        await self._control.features.require(EVENTS, "events are told")
        page = await self._unit_of_work.ask(
            sql.READ,
            TenantRelay(scope.tenant_id),
            reader=scope.subject_id if isinstance(scope, Scope) else "",
            after=None if query.after is None else query.after.sequence,
            types=sorted(query.types),
            thread_id=query.thread_id,
            rows_max=query.limit,
            numbers_max=NUMBERS_MAX,
        )
        assert page is not None  # noqa: S101  for the type checker: the function gives one row
        await self._check_on(scope.tenant_id, page)
        if query.after is not None:
            _check_position(query.after, page)
        events = [_event(row) for row in page.events]
        if len(events) == query.limit:
            last = events[-1]
            return EventPage(events, EventPosition(last.sequence, last.event_id), last.sequence < page.newest)
        return EventPage(events, EventPosition(page.reached, page.reached_id), page.reached < page.newest)

    async def _check_on(self, tenant_id: UUID, page: sql.PageRow) -> None:
        said = self._read(tenant_id, page.settings)
        if said.damaged:
            raise IntegrityFailure("the settings of events were written or edited outside the gateway; set them again")
        if said.since is None:
            raise EventsOff
        if page.now < said.since:
            raise EventsOff(f"events are told from {said.since:%H:%M:%S} UTC on; try again then")

    async def newest(self, tenant_id: UUID) -> int:
        """The number of the newest event of a tenant; 0: it never had one."""
        return await self._unit_of_work.ask(sql.NEWEST, TenantRelay(tenant_id)) or 0

    def woken(self, tenant_id: UUID) -> asyncio.Event:
        """What is set whenever this process numbered events of a tenant; who waits for it clears it before it reads.

        It is one per tenant, and lives as long as somebody holds it.
        """
        return self._relay.woken(tenant_id)


def _check_position(after: EventPosition, page: sql.PageRow) -> None:
    """Refuse a position behind which events would be passed over in silence.

    Raises:
        EventsExpired: What followed it is not kept any more.
        EventsRewound: It is of events that are no more.
    """
    if after.sequence > page.newest:
        raise EventsRewound
    if after.sequence < page.oldest - 1:
        raise EventsExpired
    # The event just before the oldest may be gone; any other one is there, or it is not the one that was seen.
    if page.at_id != after.event_id and not (page.at_id is None and after.sequence == page.oldest - 1):
        raise EventsRewound


def _event(row: sql.EventRow) -> Event:
    return Event(
        sequence=row.sequence,
        event_id=row.event_id,
        type=row.type,  # type: ignore[arg-type]  # as it was added
        at=row.at,
        stream=Stream(row.stream_kind, row.stream_id, row.incarnation),  # type: ignore[arg-type]
        stream_sequence=row.stream_sequence,
        subject_id=row.subject_id or None,
        thread_id=row.thread_id,
        namespace=row.namespace,
        checkpoint_id=row.checkpoint_id,
        run_id=row.run_id,
        agent=row.agent,
        status=row.status,
        job_id=row.job_id,
        key_id=row.key_id,
        subject_tag=row.subject_tag,
    )
