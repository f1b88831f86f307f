"""How long events are kept, and what is left of those of a subject that was shredded.

Events are for waking, not for proof: they go by age and number, oldest first, and what is below the oldest that is kept
is refused to readers before it is gone. A shred leaves of a subject's events that there were some, so that the numbers
stay whole and who goes on behind one of them still can.
"""

from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

from storage.events.relay import EventRelay
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import TenantRelay
from storage.statements.events import events as sql

SECONDS_MAX: Final = 7 * 86_400.0
EVENTS_MAX: Final = 1_000_000
PAGE_ROWS: Final = 5_000


class EventKeeping:
    """Removes events, page by page."""

    def __init__(
        self, unit_of_work: UnitOfWork, relay: EventRelay, *, page_rows: int = PAGE_ROWS, events_max: int = EVENTS_MAX
    ) -> None:
        self._unit_of_work = unit_of_work
        self._relay = relay
        self._page_rows = page_rows
        self._events_max = events_max

    async def expire(self, tenant_id: UUID) -> AsyncIterator[int]:
        """Remove a tenant's events that are too old or too many; gives how many were, a transaction each.

        What waits in its queue and nobody knows to be due is numbered before.

        Raises:
            Unavailable: The database cannot be reached.
        """
        async with self._unit_of_work.snapshot(TenantRelay(tenant_id)) as transaction:
            there_is = await transaction.fetch_only(sql.THERE_IS)
        if there_is.queued:
            await self._relay.drain(tenant_id)
        while there_is.queued or there_is.numbered:
            async with self._unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
                over = await transaction.fetch_one(
                    sql.OVER, seconds_max=SECONDS_MAX, rows_kept=self._events_max, page_rows=self._page_rows
                )
                if over is None:
                    return
                await transaction.run(sql.KEEP_FROM, oldest=over + 1)
                removed = await transaction.run(sql.DELETE_BELOW, oldest=over + 1)
            yield removed
            if removed < self._page_rows:
                return

    async def forget(self, tenant_id: UUID, subject_id: str) -> AsyncIterator[bool]:
        """Leave of a subject's events that there were some; nobody adds any more.

        Gives after each transaction whether all are done. The last time it is False where some are not numbered yet,
        because another process is at the queue: this is to be done again.

        Raises:
            Unavailable: The database cannot be reached.
        """
        async with self._unit_of_work.snapshot(TenantRelay(tenant_id)) as transaction:
            waiting = (await transaction.fetch_only(sql.OF_SUBJECT, gone=subject_id)).waiting
        if waiting:
            await self._relay.drain(tenant_id)
        async with self._unit_of_work.snapshot(TenantRelay(tenant_id)) as transaction:
            left = await transaction.fetch_only(sql.OF_SUBJECT, gone=subject_id)
        if left.waiting:
            yield False
            return
        after = left.oldest - 1
        while after < left.newest:
            until = min(after + self._page_rows, left.newest)
            async with self._unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
                await transaction.run(sql.REMOVE_OF_SUBJECT, after=after, until=until, gone=subject_id)
            after = until
            yield after == left.newest
        yield True

    async def forget_all(self, tenant_id: UUID) -> AsyncIterator[int]:
        """Remove everything of a tenant; gives how many rows were, a transaction each."""
        for statement in sql.PURGE_PAGES:
            removed = self._page_rows
            while removed == self._page_rows:
                async with self._unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
                    removed = await transaction.run(statement, page_rows=self._page_rows)
                yield removed
