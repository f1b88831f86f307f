"""Deterministic interleaving: stop a transaction before a statement, run a variant of it, cancel at the n-th await.

`SteeredUnitOfWork` is a real unit of work on a real pool. It lets a test hold a verb at a chosen statement, and run
the text without one of its protections, to show what that protection is for.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from storage.access.access import Access
from storage.access.offload import Offload
from storage.access.row_quotas import RowQuotas
from storage.access.sealing import Parts
from storage.checkpoints.verbs import Checkpoints
from storage.clock import Clock, SystemClock
from storage.ledger.ledger import BlobLedger
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Silent, Transaction, UnitOfWork
from storage.scope import AnyScope
from storage.service import Store
from storage.threads.pruning import Pruning
from storage.threads.verbs import Threads
from tests.support.stores import MigratedDatabase

R = TypeVar("R")

WAIT_SECONDS = 60  # what is waited for takes a moment, on a busy machine some seconds


def text_of(statement: str | Statement[Any]) -> str:
    """The text by which a statement is recognized."""
    return statement.text if isinstance(statement, Statement) else statement


class Gate:
    """Holds whoever arrives at a statement, once, until it is opened."""

    def __init__(self, statement: str | Statement[Any]) -> None:
        self.statement = text_of(statement)
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, statement: str) -> None:
        if statement == self.statement and not self.reached.is_set():
            self.reached.set()
            async with asyncio.timeout(WAIT_SECONDS):
                await self.opened.wait()

    async def arrival(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.reached.wait()


class CommitAfter:
    """Holds the COMMIT of the first transaction in which a statement ran."""

    def __init__(self, statement: str | Statement[Any]) -> None:
        self.statement = text_of(statement)
        self.seen = False
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, statement: str) -> None:
        self.seen = self.seen or statement == self.statement
        if statement == "COMMIT" and self.seen and not self.reached.is_set():
            self.reached.set()
            async with asyncio.timeout(WAIT_SECONDS):
                await self.opened.wait()

    async def arrival(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.reached.wait()


class Meeting:
    """Lets nobody pass a statement for the first time before all parties of ``barrier`` have arrived there."""

    def __init__(self, statement: str | Statement[Any], barrier: asyncio.Barrier) -> None:
        self._statement = text_of(statement)
        self._barrier = barrier
        self._met = False

    async def __call__(self, statement: str) -> None:
        if statement == self._statement and not self._met:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._barrier.wait()
            self._met = True


async def _go_on(_statement: str) -> None:
    return


class SteeredTransaction(Transaction):
    def __init__(
        self, connection: Any, scope: AnyScope, variants: Mapping[str, str], before: Callable[[str], Awaitable[None]]
    ) -> None:
        super().__init__(connection, scope)
        self._variants = variants
        self._before = before

    async def _steered(self, statement: Statement[R]) -> Statement[R]:
        await self._before(statement.text)
        text = self._variants.get(statement.text)
        if text is None:
            return statement
        steered = copy.copy(statement)
        steered.text = text
        return steered

    async def fetch_all(self, statement: Statement[R], **values: object) -> list[R]:
        return await super().fetch_all(await self._steered(statement), **values)

    async def fetch_one(self, statement: Statement[R], **values: object) -> R | None:
        return await super().fetch_one(await self._steered(statement), **values)

    async def fetch_only(self, statement: Statement[R], **values: object) -> R:
        return await super().fetch_only(await self._steered(statement), **values)

    async def run(self, statement: Statement[None], **values: object) -> int:
        return await super().run(await self._steered(statement), **values)


def parts_of(
    store: Store, unit_of_work: UnitOfWork, clock: Clock | None = None, offload: Offload | None = None
) -> Parts:
    """What the ways to a subject's state share in a store, by other transactions; without ``offload`` in no bucket."""
    clock = clock or SystemClock()
    offload = offload or Offload(unit_of_work, BlobLedger(unit_of_work), None, None, clock)
    return Parts(
        unit_of_work, store.keys, clock, Silent(), store.control, offload, RowQuotas(unit_of_work), store.emitting,
        store.audit,
    )  # fmt: skip


class SteeredUnitOfWork(UnitOfWork):
    """``before`` is asked before every statement and before ``"COMMIT"``; ``variants`` replace texts."""

    def __init__(self, engine: Any, variants: Mapping[str, str], before: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(engine, Silent())
        self._variants = variants
        self._before = before

    @asynccontextmanager
    async def _transaction(self, begin: str, scope: AnyScope) -> AsyncIterator[Transaction]:
        async with super()._transaction(self._variants.get(begin, begin), scope) as transaction:
            yield SteeredTransaction(transaction._connection, scope, self._variants, self._before)
            await self._before("COMMIT")


class Steered:
    """The verbs of ``store`` on its own pool and keys, steered."""

    def __init__(
        self,
        store: Store,
        *,
        variants: Mapping[str, str] | None = None,
        before: Callable[[str], Awaitable[None]] = _go_on,
    ) -> None:
        self.unit_of_work = SteeredUnitOfWork(store._engine, variants or {}, before)
        access = Access(parts_of(store, self.unit_of_work))
        self.checkpoints = Checkpoints(access)
        self.threads = Threads(access)
        self.pruning = Pruning(access)


def without(statement: str | Statement[Any], protection: str, instead: str = "") -> dict[str, str]:
    """A variant of ``statement`` in which ``protection`` is replaced; it must have been there."""
    text = text_of(statement)
    assert protection in text
    return {text: text.replace(protection, instead)}


async def blocked(watcher: asyncpg.Connection, sessions: int = 1) -> None:
    """Wait until ``sessions`` sessions of this database wait for another one's lock."""
    async with asyncio.timeout(WAIT_SECONDS):
        while sessions > await watcher.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
        ):
            pass


async def settled(watcher: asyncpg.Connection) -> None:
    """Wait until nobody else is at work in this database: a COMMIT whose caller was cancelled may come all the same."""
    async with asyncio.timeout(WAIT_SECONDS):
        while await watcher.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
        ):
            pass


class CancelAtAwait:
    """Awaits ``work`` and cancels the task at its ``number``-th suspension (counted from 1), exactly."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self._work = work
        self._number = number
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        seen = 0
        sent: BaseException | None = None
        while True:
            try:
                waiting = next(steps) if sent is None else steps.throw(sent)
            except StopIteration as end:
                return end.value
            seen += 1
            if seen == self._number:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self.cancelled = True
            try:
                yield waiting
                sent = None
            except BaseException as error:  # noqa: BLE001  handed on to the work, as await does
                sent = error

    async def run(self) -> None:
        """Run in a task of its own; a cancellation of ours is its normal end."""

        async def outer() -> None:
            await self

        task = asyncio.create_task(outer())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await task
        except asyncio.CancelledError:
            if not self.cancelled:
                raise


@pytest.fixture(scope="module")
async def admin(database: MigratedDatabase) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection: sees and edits every row, as whoever holds the disks can."""
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    yield connection
    await connection.close()
