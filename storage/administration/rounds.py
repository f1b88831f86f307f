"""Rounds over tenants in the background: whose time has come, one process at each tenant, and again after a pause.

Owns what sweeping, retention and the counting of rows have in common: finding the tenants that are due, adding up what
was done for each, telling what came of a pass, and giving a tenant back when the process stops in the middle of it, as
jobs are given back. What is done for a tenant, and the lease that spares two processes the same work, are each
subclass's own; safety must not depend on the lease. It promises no moment at which a tenant has its turn.
"""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from typing import Final, Generic, Self, TypeVar
from uuid import UUID

from storage.errors import StorageError
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope

# How often a process looks for tenants whose time has come.
POLL_SECONDS: Final = 15.0
# Intervals differ by so much either way, so that processes and tenants do not fall into step.
JITTER: Final = 0.2
# The time that a process which stops takes at most to let another one go on.
GIVE_BACK_SECONDS_MAX: Final = 5.0
# Tenants of one pass.
TENANTS_MAX: Final = 50
_random = secrets.SystemRandom()

T = TypeVar("T")
D = TypeVar("D", bound="Tally")
C = TypeVar("C")


class LeaseLostError(Exception):
    """Another process works on this tenant, or on this job, now."""


@dataclass(slots=True)
class Tally:
    """Counts of what was done, all of them numbers."""

    def add(self, other: Self) -> None:
        """Count what another one did, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def jittered(seconds: float) -> float:
    """About so many seconds."""
    return seconds * _random.uniform(1 - JITTER, 1 + JITTER)


async def telling(
    work: Callable[[], Awaitable[T]], ended: Callable[[T], None], failed: Callable[[Exception], None]
) -> None:
    """Run ``work`` and report its result or its failure; only a cancellation gets out."""
    try:
        ended(await work())
    except Exception as reason:  # noqa: BLE001  whatever it is, the next pass must come
        failed(reason)


@asynccontextmanager
async def given_back(release: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Release a tenant or a job when the work on it is cancelled, so that another process goes on at once.

    If releasing fails, another process goes on when the lease has ended.
    """
    try:
        yield
    except asyncio.CancelledError:
        with suppress(StorageError, TimeoutError, LeaseLostError):
            async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                await release()
        raise


async def tenants_due(unit_of_work: UnitOfWork, statement: Statement[UUID]) -> list[UUID]:
    """The tenants whose time has come and that no process is at, the one that waits longest first."""
    async with unit_of_work.snapshot(OperatorScope()) as transaction:
        return await transaction.fetch_all(statement, limit=TENANTS_MAX)


class Rounds(ABC, Generic[D, C]):
    """Work on one tenant after another; several processes may do it.

    ``due`` finds the tenants whose time has come; ``nothing`` makes the empty tally.
    """

    def __init__(self, unit_of_work: UnitOfWork, due: Statement[UUID], nothing: Callable[[], D]) -> None:
        self._unit_of_work = unit_of_work
        self._due = due
        self._nothing = nothing

    @abstractmethod
    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> D | None:
        """Work on one tenant; None if its time has not come or another process is at it."""

    @abstractmethod
    async def census(self) -> C:
        """Count what there is and what waits, over all tenants, from what their rounds left on record.

        Raises:
            Unavailable: the database cannot be reached.
        """

    async def run_due(self) -> D:
        """Work on every tenant whose time has come and that no other process is at.

        Raises:
            Unavailable: the database cannot be reached.
        """
        done = self._nothing()
        for tenant_id in await tenants_due(self._unit_of_work, self._due):
            part = await self.tenant(tenant_id)
            if part is not None:
                done.add(part)
        return done

    async def keep_running(
        self, done: Callable[[D], None], failed: Callable[[Exception], None], counted: Callable[[C], None]
    ) -> None:
        """Do what is due, again and again, until cancelled, which is safe at any moment.

        ``done`` is told what a pass did, ``failed`` why one failed, and ``counted`` what there is and waits, after
        every pass.
        """
        while True:
            await telling(self.run_due, done, failed)
            await telling(self.census, counted, failed)
            await asyncio.sleep(jittered(POLL_SECONDS))
