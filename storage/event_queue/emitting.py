"""Adding events to the queue, in the transactions that make them true; and knowing of which tenants there are any.

Whether a tenant has events is known from the look-up of its keys, which every request makes every few seconds; who
writes for a tenant without one, such as a round or a job, is told by `Emitting.ready`, which asks once in a while. A
tenant that has none costs no statement and no round trip: each verb asks `is_on`, which is a look into memory, or gives
no id to the function that writes (`fresh_id`).

What is known may be a little old. Therefore events count from a moment after they were switched on
(`storage.events.verbs.LEAD_SECONDS`), which is longer than that. Owns no order: that is the relay's
(`storage.events.relay`), which is woken here when a transaction of this process has committed.
"""

import asyncio
import time
from contextlib import suppress
from typing import Final
from uuid import UUID

from uuid_utils import uuid7

from storage.control.features import EVENTS, Features
from storage.errors import StorageError
from storage.event_queue.model import TENANT_STREAM, Draft, EventType, OfThread, Stream
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope, TenantScope
from storage.statements.events import queue as sql

# How long what is known of a tenant serves; longer than a gateway keeps a credential, and than a request waits.
KNOWN_SECONDS: Final = 8.0
# Of so many tenants at once, and of all that are at work; of one that was forgotten a verb asks again.
TENANTS_MAX: Final = 10_000
# Longer than a request takes.
FORGET_SECONDS: Final = 600.0


class Emitting:
    """Adds events, where a tenant has some.

    Attributes:
        waiting: The tenants of which this process committed events that it has not numbered, as they came.
        added: Set, whenever there is one.
    """

    def __init__(self, unit_of_work: UnitOfWork, features: Features) -> None:
        self._unit_of_work = unit_of_work
        self._features = features
        self._known: dict[UUID, tuple[float, bool]] = {}
        self.waiting: dict[UUID, None] = {}
        self.added = asyncio.Event()

    def learn(self, tenant_id: UUID, *, is_on: bool) -> None:
        """Take note of what was just read of a tenant."""
        now = time.monotonic()
        self._known.pop(tenant_id, None)
        # The first is the one that was learned of longest ago: what somebody may be acting on now stays.
        while (
            len(self._known) >= TENANTS_MAX and self._known[first := next(iter(self._known))][0] < now - FORGET_SECONDS
        ):
            del self._known[first]
        self._known[tenant_id] = (now + KNOWN_SECONDS, is_on)

    async def ready(self, tenant_id: UUID) -> None:
        """Know whether a tenant has events, outside of transactions; it asks only where that was not said lately.

        Raises:
            Unavailable: The database cannot be reached.
        """
        if tenant_id == OPERATOR_CHAIN:
            return
        known = self._known.get(tenant_id)
        if (known is not None and time.monotonic() < known[0]) or EVENTS.name not in self._features.since():
            return
        async with self._unit_of_work.snapshot(TenantScope(tenant_id)) as transaction:
            self.learn(tenant_id, is_on=bool(await transaction.fetch_one(sql.IS_ON)))

    def is_on(self, tenant_id: UUID) -> bool:
        """Whether a tenant has events, as far as it is known."""
        known = self._known.get(tenant_id)
        return known is not None and known[1]

    def fresh_id(self, tenant_id: UUID) -> UUID | None:
        """The id of an event that a function of the database adds; None: the tenant has none."""
        return _new_id() if self.is_on(tenant_id) else None

    def committed(self, tenant_id: UUID) -> None:
        """Have the relay of this process look at a tenant: events of it were committed."""
        if len(self.waiting) < TENANTS_MAX:  # of others the relay is told by their row
            self.waiting.setdefault(tenant_id)
        self.added.set()

    async def mark_due(self, tenant_id: UUID) -> None:
        """Say that a tenant is due, after a transaction that saw one moment and could not say so by itself.

        It may fail in silence: the tenant's next event or round of retention finds what waits.
        """
        if not self.is_on(tenant_id):
            return
        with suppress(StorageError):
            async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
                await transaction.run(sql.MARK_DUE)

    async def of_thread(self, transaction: Transaction, scope: Scope, event: EventType, said: OfThread) -> None:
        """Add an event of a thread, whose row is locked by that, if the tenant has events and the thread is there."""
        if not self.is_on(scope.tenant_id):
            return
        await transaction.run(sql.ADD_OF_THREAD, event_id=_new_id(), type=event, **said._asdict())
        transaction.when_committed(lambda: self.committed(scope.tenant_id))

    async def of_approval(self, transaction: Transaction, tenant_id: UUID, draft: Draft) -> None:
        """Add an event of an approval, whose thread is locked, if the tenant has events."""
        if self.is_on(tenant_id):
            await self._add(transaction, tenant_id, draft)

    async def of_job(self, transaction: Transaction, tenant_id: UUID, job_id: UUID, status: str) -> None:
        """Add the end of a job of a tenant; of the deployment's own nobody is told."""
        if tenant_id != OPERATOR_CHAIN and self.is_on(tenant_id):
            stream = Stream("job", str(job_id))
            await self._add(transaction, tenant_id, Draft("job.ended", stream, 1, job_id=job_id, status=status))

    async def of_key(self, transaction: Transaction, tenant_id: UUID | None, event: EventType, key_id: str) -> None:
        """Add what happened to an API key of a tenant, last of all in its transaction; of operators' nobody is told."""
        if tenant_id is not None and self.is_on(tenant_id):
            await self._add_of_tenant(transaction, tenant_id, Draft(event, TENANT_STREAM, 0, key_id=key_id))

    async def of_shred(self, transaction: Transaction, tenant_id: UUID, job_id: UUID, subject_tag: str) -> None:
        """Add that nothing of a subject is left, last of all in its transaction."""
        if self.is_on(tenant_id):
            draft = Draft("subject.shredded", TENANT_STREAM, 0, job_id=job_id, subject_tag=subject_tag)
            await self._add_of_tenant(transaction, tenant_id, draft)

    async def _add_of_tenant(self, transaction: Transaction, tenant_id: UUID, draft: Draft) -> None:
        number = await transaction.fetch_only(sql.NEXT_OF_TENANT, owner=tenant_id)
        await self._add(transaction, tenant_id, draft._replace(stream_sequence=number))

    async def _add(self, transaction: Transaction, tenant_id: UUID, draft: Draft) -> None:
        values = draft._asdict()
        stream: Stream = values.pop("stream")
        await transaction.run(
            sql.ADD,
            owner=tenant_id,
            owner_subject=values.pop("subject_id"),
            event_id=_new_id(),
            stream_kind=stream.kind,
            stream_id=stream.id,
            incarnation=stream.incarnation,
            **values,
        )
        transaction.when_committed(lambda: self.committed(tenant_id))


def _new_id() -> UUID:
    return UUID(int=uuid7().int)
