"""Counting what tenants' rows take in PostgreSQL, so that a quota can bound it.

1. A tenant whose time has come is leased (`row_usage.count_after`): one process counts, and another one does where a
   dead one stopped.
2. Subject by subject, under the subject's own binding, and page by page: no transaction looks at more than a page of
   each table, and none locks a row. So the sum is of no one moment; what was there all the time is in it exactly once.
3. The sum is put on record with the time, and the next count comes the later the longer this one took.

Counting spares other work: a process reads one page at a time, and a pause follows each, in proportion to what it took.
Tenants take turns page by page, so that none waits for another one's millions of rows. It needs no object store. What
a tenant writes between two counts is seen by the next one only.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from storage.access.row_quotas import RowQuotas
from storage.administration.rounds import POLL_SECONDS, TENANTS_MAX, LeaseLostError, given_back, jittered, telling
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.rules.vector_policies import EXTENSION_SCHEMA
from storage.statements.threads import row_usage as sql

R = TypeVar("R")

# How soon a tenant with a quota is counted again at the earliest, and one that has as much as it likes.
COUNT_SECONDS_MIN: Final = 60.0
UNLIMITED_COUNT_SECONDS_MIN: Final = 900.0
# How soon in proportion to what the last count took, and at the latest.
COUNT_RATIO: Final = 100.0
COUNT_SECONDS_MAX: Final = 3600.0
# A pause three times as long as the work before it: a process never counts for more than a quarter of its time.
PAUSE_RATIO: Final = 3.0
# A dead process's tenant is counted by another one after so long; the lease is renewed in time.
LEASE_SECONDS: Final = 300.0
RENEW_SECONDS: Final = 15.0
# Passes of a process that are under way: those before wait for tenants that take long.
PASSES_MAX: Final = 8
# Of each table, in one statement: some milliseconds.
PAGE_ROWS: Final = 5000
_SUBJECTS_PAGE = 500


@dataclass(frozen=True, slots=True)
class RowCensus:
    """What all tenants' rows take, as last counted.

    ``over`` is the number of tenants that may store no more, ``age_seconds`` the age of the oldest count of one that
    has a quota.
    """

    used_bytes: int
    over: int
    age_seconds: float


class RowCounting:
    """Counts; several processes may."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        quotas: RowQuotas,
        *,
        page_rows: int = PAGE_ROWS,
        pause_ratio: float = PAUSE_RATIO,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._quotas = quotas
        self._page_rows = page_rows
        self._pages = _Pages(unit_of_work, pause_ratio)

    async def run_due(self) -> int:
        """Count every tenant whose time has come and that no other process is at; returns how many were counted.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            due = await transaction.fetch_all(sql.TENANTS_DUE, page_rows=TENANTS_MAX)
        # Each to its end, also when another one fails.
        outcomes = await asyncio.gather(*(self.tenant(tenant_id) for tenant_id in due), return_exceptions=True)
        counted = sum(isinstance(each, int) for each in outcomes)
        if counted:
            await self._quotas.refresh()
        for each in outcomes:
            if isinstance(each, BaseException):
                raise each
        return counted

    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> int | None:
        """Count a tenant's bytes; None if its time has not come or another process is at it.

        ``now``: count whatever the time, and although another process counts, which then gives up.

        Raises:
            Unavailable: the database cannot be reached; the last count stays.
        """
        async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            claim = await transaction.fetch_one(sql.CLAIM, lease_seconds=LEASE_SECONDS, at_once=now)
        if claim is None:
            return None
        count = _Count(self._unit_of_work, self._pages, tenant_id, claim.count_after, self._page_rows)
        try:
            async with given_back(count.release):
                await count.run()
                least = UNLIMITED_COUNT_SECONDS_MIN if claim.quota_bytes is None else COUNT_SECONDS_MIN
                await count.finish(min(max(least, COUNT_RATIO * count.work_seconds), COUNT_SECONDS_MAX))
        except LeaseLostError:
            return None
        return count.bytes

    async def census(self) -> RowCensus:
        """What all tenants' rows take.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            found = await transaction.fetch_only(sql.CENSUS)
        return RowCensus(found.used_bytes, found.over, found.age_seconds)

    async def keep_running(
        self,
        counted: Callable[[int], None],
        failed: Callable[[Exception], None],
        measured: Callable[[RowCensus], None],
    ) -> None:
        """Count the tenants whose time has come, again and again, until cancelled, which is safe at any moment.

        ``counted`` is told the number of tenants that a pass counted, ``failed`` why one failed, and ``measured`` what
        there is after every pass.
        """
        passes: set[asyncio.Task[None]] = set()
        try:
            while True:
                if len(passes) < PASSES_MAX:
                    begun = asyncio.create_task(telling(self.run_due, counted, failed))
                    passes.add(begun)
                    begun.add_done_callback(passes.discard)
                await telling(self.census, measured, failed)
                await asyncio.sleep(jittered(POLL_SECONDS))
        finally:
            for each in passes:
                each.cancel()
            await asyncio.gather(*passes, return_exceptions=True)


class _Pages:
    """The way of all counts of a process to the rows: a page at a time, in the order they ask, with pauses."""

    def __init__(self, unit_of_work: UnitOfWork, pause_ratio: float) -> None:
        self._unit_of_work = unit_of_work
        self._pause_ratio = pause_ratio
        self._turn = asyncio.Lock()

    async def read(
        self, scope: Scope | TenantScope, statement: Statement[R], values: Mapping[str, object]
    ) -> tuple[list[R], float]:
        """Rows, and the seconds that reading them took."""
        async with self._turn:
            begun = time.monotonic()
            async with self._unit_of_work.snapshot(scope) as transaction:
                await transaction.run(sql.AS_PLANNED)
                rows = await transaction.fetch_all(statement, **values)
            took = time.monotonic() - begun
            await asyncio.sleep(took * self._pause_ratio)
        return rows, took


class _Count:
    """One count of one tenant.

    ``work_seconds`` leaves out its pauses.
    """

    def __init__(
        self, unit_of_work: UnitOfWork, pages: _Pages, tenant_id: UUID, lease: datetime, page_rows: int
    ) -> None:
        self._unit_of_work = unit_of_work
        self._pages = pages
        self._tenant = TenantScope(tenant_id)
        self._lease = lease
        self._renewed = time.monotonic()
        self._page_rows = page_rows
        self._in_clear: str | None = None
        self.bytes = 0
        self.work_seconds = 0.0

    async def run(self) -> None:
        """Count all subjects."""
        after = ""
        (self._in_clear,) = await self._read(self._tenant, EXTENSION_SCHEMA) or (None,)
        while True:
            subject_ids = await self._read(self._tenant, sql.SUBJECTS_AFTER, after=after, page_rows=_SUBJECTS_PAGE)
            for subject_id in subject_ids:
                await self._subject(Scope(self._tenant.tenant_id, subject_id))
            if len(subject_ids) < _SUBJECTS_PAGE:
                return
            after = subject_ids[-1]

    async def finish(self, seconds: float) -> None:
        """Put the sum on record, and that the next count comes in so many seconds."""
        async with self._unit_of_work.begin(self._tenant) as transaction:
            if not await transaction.run(sql.FINISH, lease=self._lease, again_seconds=seconds, bytes=self.bytes):
                raise LeaseLostError

    async def release(self) -> None:
        """Let another process count at once."""
        await self._renew(0.0)

    async def _subject(self, scope: Scope) -> None:
        for table in await self._read(scope, sql.BEGINNING, page_rows=self._page_rows):
            if table.rows < self._page_rows:
                self.bytes += table.bytes
            else:
                await self._table(scope, table.name)
        if self._in_clear is not None:
            await self._clear_vectors(scope)

    async def _clear_vectors(self, scope: Scope) -> None:
        """Count a table that an operator made."""
        pages = await self._read(scope, sql.ClearVectors.FIRST_PAGE, page_rows=self._page_rows)
        while pages:
            page = pages[0]
            self.bytes += page.bytes
            if page.rows < self._page_rows:
                return
            after = sql.after_clear_vectors(page)
            pages = await self._read(scope, sql.ClearVectors.NEXT_PAGE, page_rows=self._page_rows, **after)

    async def _table(self, scope: Scope, name: str) -> None:
        """Count a table of which a subject has more than a page."""
        pages = await self._read(scope, sql.FIRST_PAGES[name], page_rows=self._page_rows)
        while pages:
            page = pages[0]
            self.bytes += page.bytes
            if page.rows < self._page_rows:
                return
            pages = await self._read(scope, sql.NEXT_PAGES[name], page_rows=self._page_rows, **sql.after(name, page))

    async def _read(self, scope: Scope | TenantScope, statement: Statement[R], **values: object) -> list[R]:
        rows, took = await self._pages.read(scope, statement, values)
        self.work_seconds += took
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            await self._renew(LEASE_SECONDS)
        return rows

    async def _renew(self, seconds: float) -> None:
        async with self._unit_of_work.begin(self._tenant) as transaction:
            lease = await transaction.fetch_one(sql.RENEW, lease=self._lease, again_seconds=seconds)
        if lease is None:
            raise LeaseLostError
        self._lease = lease
        self._renewed = time.monotonic()
