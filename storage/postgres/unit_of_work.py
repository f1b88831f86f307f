"""The unit of work: one transaction bound to one scope, and the commit line.

1. ``begin`` takes a pooled connection and sends ``BEGIN`` with the scope's bindings as one simple-protocol message
   that holds nothing else (Citus replays the whole message on its workers). The bindings are literals because
   ``set_config()`` is not propagated there.
2. The caller runs statements.
3. Leaving the block commits; nothing above says 2xx before that returned. Leaving it by an exception rolls back;
   leaving it by cancellation gives the connection back as it is, and the pool destroys it.

A lost answer to COMMIT is `CommitUnknown`. This module never retries by itself except through `retrying`, whose
body must be safe to run again from the start.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine

from storage.concurrency.queues import FairQueue
from storage.errors import CommitUnknown, DatabaseReadOnly, LostRaceError, Unavailable
from storage.postgres.engine import POOL_TIMEOUT_SECONDS, UNFINISHED
from storage.postgres.session import Session
from storage.postgres.statement import Statement
from storage.scope import AnyScope, OperatorScope, Scope, TenantListing, TenantRelay, TenantScope

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")

# Losing a race against a concurrent writer of the same thread; each attempt sees a fresh snapshot.
RACES_MAX = 5

# Of the connections of a process, those that one tenant uses at once: so many keep the process busy. Its other requests
# wait among themselves, so that another tenant's finds few before it and, in a pool of more than three, a free one.
TENANT_CONNECTIONS_MAX = 8
# While other tenants' requests come, too: each of theirs waits, at every step, for as many as a tenant has at work.
TENANT_CONNECTIONS_IN_COMPANY_MAX = 2

_CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    ConnectionError,
    TimeoutError,
    OSError,
)
# The server said no, in words, and so stored nothing: no connection was lost, and no answer to COMMIT.
_NO_WRITES = (asyncpg.ReadOnlySQLTransactionError, asyncpg.DiskFullError)
# A server that answers the first message of a verb no sooner is frozen, or the way to it is: its caller is told before
# it gives up by itself, as clients do after ten seconds. What comes later may take `COMMAND_TIMEOUT_SECONDS`.
FIRST_ANSWER_SECONDS_MAX = 7.0
_BUSY = (
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_LOST_RACE = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class OpenJobs(NamedTuple):
    """The jobs of a kind that have not ended: how many, and since when the oldest of them."""

    jobs: int
    oldest_seconds: float


NO_JOBS = OpenJobs(0, 0.0)


class Observer(Protocol):
    """Where storage reports what operators want to see."""

    def pool_wait(self, seconds: float) -> None:
        """A connection was waited for."""

    def commit(self, seconds: float) -> None:
        """A COMMIT returned."""

    def integrity_failure(self) -> None:
        """Stored state did not authenticate."""

    def root_key_refused(self, reason: str) -> None:
        """The root key was asked and did not give what it was asked for."""

    def audit_note_dropped(self) -> None:
        """An access was not recorded by name, only counted: too many different ones waited."""

    def state_read(self, saved: int, shown: int) -> None:
        """State that was saved at one version was shown at one, perhaps another."""

    def job_ended(self, kind: str, outcome: str) -> None:
        """A job ended here; ``outcome`` is ``done`` or ``failed``."""

    def job_waits(self, kind: str, waits_for: str) -> None:
        """A job was tried and cannot go on; see `storage.administration.jobs.WaitsFor`."""

    def jobs_open(self, by_kind: Mapping[str, OpenJobs]) -> None:
        """What jobs of each kind have not ended; a kind that is not named has none."""

    def workers_busy(self, count: int) -> None:
        """So many worker processes have a task."""

    def worker_lost(self, cause: str) -> None:
        """A worker process ended in the middle of a task; see `storage.schemas.workers.Cause`."""

    def too_costly(self) -> None:
        """A tenant was told that what it registered costs too much."""


class Silent:
    """An observer that keeps nothing."""

    def _ignore(self, *_: object, **__: object) -> None:
        return

    pool_wait = commit = integrity_failure = root_key_refused = audit_note_dropped = state_read = _ignore
    job_ended = job_waits = jobs_open = workers_busy = worker_lost = too_costly = _ignore


class Transaction(Session):
    """An open transaction, bound to a scope. Only `UnitOfWork.begin` makes one."""

    def __init__(self, connection: Any, scope: AnyScope) -> None:
        super().__init__(connection, bound(scope))
        self._when_committed: list[Callable[[], None]] = []

    def when_committed(self, then: Callable[[], None]) -> None:
        """Call ``then`` once others can see what this transaction did; never, if it is rolled back."""
        self._when_committed.append(then)

    def committed(self) -> None:
        """Say that it was."""
        for then in self._when_committed:
            then()


def bound(scope: AnyScope) -> dict[str, object]:
    """The parameters that a scope says, for every statement that names them; an operator's says none."""
    match scope:
        case Scope(tenant_id, subject_id):
            return {"tenant_id": tenant_id, "subject_id": subject_id}
        case TenantScope(tenant_id) | TenantListing(tenant_id) | TenantRelay(tenant_id):
            return {"tenant_id": tenant_id}
        case OperatorScope():
            return {}


def _literal(text: str) -> str:
    """Quote ``text`` as a literal; ``standard_conforming_strings`` leaves only the quote to double."""
    return "'" + text.replace("'", "''") + "'"


def bindings(scope: AnyScope) -> str:
    """The ``SET LOCAL`` statements that bind ``scope``; every setting is set every time."""
    subject = operator = listing = relay = ""
    match scope:
        case Scope(tenant_id, subject_id):
            tenant, subject = str(tenant_id), subject_id
        case TenantScope(tenant_id):
            tenant = str(tenant_id)
        case TenantListing(tenant_id):
            tenant, listing = str(tenant_id), "on"
        case TenantRelay(tenant_id):
            tenant, relay = str(tenant_id), "on"
        case OperatorScope(founding):
            tenant, operator = str(founding or ""), "on"
    return (
        f"SET LOCAL app.tenant_id = '{tenant}'; SET LOCAL app.subject_id = {_literal(subject)};"
        f" SET LOCAL app.operator = '{operator}'; SET LOCAL app.tenant_listing = '{listing}';"
        f" SET LOCAL app.relay = '{relay}'"
    )


def _share_taken() -> Unavailable:
    return Unavailable("the tenant's other requests use its share of the database's connections")


class UnitOfWork:
    """The only way to tenant tables: hands out scope-bound transactions."""

    def __init__(self, engine: AsyncEngine, observer: Observer) -> None:
        self._engine = engine
        self._observer = observer
        # What a refused connection raises comes from the dialect, and not always wrapped in a DBAPIError.
        self._connect_error: type[Exception] = engine.dialect.loaded_dbapi.Error
        share = min(TENANT_CONNECTIONS_MAX, self.connections_max - self.connections_max // 4)
        # How many requests of a tenant there are was counted where they were admitted.
        self._queue = FairQueue(
            share,
            None,
            POOL_TIMEOUT_SECONDS,
            _share_taken,
            company_max=min(share, TENANT_CONNECTIONS_IN_COMPANY_MAX),
        )

    @property
    def connections_max(self) -> int:
        """How many connections this process may have."""
        return self._engine.pool.size()  # type: ignore[attr-defined,no-any-return]  # of the pool `create_engine` makes

    @property
    def connections_used(self) -> int:
        """How many of them are at work now."""
        return self._engine.pool.checkedout()  # type: ignore[attr-defined,no-any-return]

    def begin(self, scope: AnyScope) -> AbstractAsyncContextManager[Transaction]:
        """A read-write transaction, READ COMMITTED."""
        return self._transaction("BEGIN", scope)

    def begin_step(self, scope: Scope) -> AbstractAsyncContextManager[Transaction]:
        """A transaction for what agents do at every step: its statements look up by primary key whatever their values.

        Each of them is planned once for a connection. Left to itself, the server plans some at every call, once tables
        are large: a plan for the values at hand seems cheaper by more than planning does.
        """
        return self._transaction("BEGIN; SET LOCAL plan_cache_mode = force_generic_plan", scope)

    def snapshot(self, scope: AnyScope) -> AbstractAsyncContextManager[Transaction]:
        """A read-only transaction that sees one moment, so that a concurrent save cannot look like damage."""
        return self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", scope)

    def frozen(self, scope: AnyScope) -> AbstractAsyncContextManager[Transaction]:
        """A read-write transaction that sees one moment (copying)."""
        return self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ", scope)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A pooled connection outside any transaction, bound to nothing: sees no tenant's row."""
        started = time.perf_counter()
        try:
            pooled = await self._engine.raw_connection()
        except PoolTimeoutError:
            raise Unavailable("no database connection became free in time") from None
        except (DBAPIError, self._connect_error, *_CONNECTION_LOST):
            raise Unavailable("the database cannot be reached") from None
        self._observer.pool_wait(time.perf_counter() - started)
        pooled.info[UNFINISHED] = True
        try:
            with _translated():
                yield pooled.driver_connection
        except Exception:
            del pooled.info[UNFINISHED]
            raise
        else:
            del pooled.info[UNFINISHED]
        finally:
            pooled.close()

    @asynccontextmanager
    async def _of(self, scope: AnyScope) -> AsyncIterator[Any]:
        """A connection within the share of the scope's tenant; operators, who name none, are few."""
        tenant_id = None if isinstance(scope, OperatorScope) else scope.tenant_id
        if tenant_id is None:
            async with self.connection() as connection:
                yield connection
        else:
            async with self._queue.turn(tenant_id), self.connection() as connection:
                yield connection

    @asynccontextmanager
    async def _transaction(self, begin: str, scope: AnyScope) -> AsyncIterator[Transaction]:
        async with self._of(scope) as connection:
            await connection.execute(f"{begin}; {bindings(scope)}", timeout=FIRST_ANSWER_SECONDS_MAX)
            transaction = Transaction(connection, scope)
            try:
                yield transaction
            except Exception:
                if connection.is_in_transaction() and not connection.is_closed():
                    await connection.execute("ROLLBACK")
                raise
            started = time.perf_counter()
            try:
                await connection.execute("COMMIT")
            except _NO_WRITES:
                raise
            except _CONNECTION_LOST:
                raise CommitUnknown from None
            self._observer.commit(time.perf_counter() - started)
            transaction.committed()

    async def call(self, statement: Statement[None], scope: Scope, **values: object) -> None:
        """Run one function that binds ``scope`` by itself: one round trip, which commits.

        Raises:
            LostRaceError: it found something else than it was told to, and did nothing.
            CommitUnknown: the connection was lost before the answer.
        """
        arguments = statement.arguments(bound(scope), values)
        async with self._of(scope) as connection:
            started = time.perf_counter()
            try:
                await connection.execute(statement.text, *arguments, timeout=FIRST_ANSWER_SECONDS_MAX)
            except _NO_WRITES:
                raise
            except _CONNECTION_LOST:
                raise CommitUnknown from None
            self._observer.commit(time.perf_counter() - started)

    async def each(self, scope: AnyScope, statement: Statement[K], after: K, limit: int) -> AsyncIterator[K]:
        """The keys that a statement gives in their order, ``limit`` at a time, each page of a snapshot of its own.

        ``after`` is less than all of them. No snapshot is open while the caller does something about one.
        """
        while True:
            async with self.snapshot(scope) as transaction:
                page = await transaction.fetch_all(statement, after=after, limit=limit)
            for key in page:
                yield key
            if len(page) < limit:
                return
            after = page[-1]

    async def ask(self, statement: Statement[R], scope: Scope | TenantRelay, **values: object) -> R | None:
        """Run one function that binds ``scope`` by itself: one round trip, which commits what it wrote.

        Who calls one that writes must not mind whether it did: a lost answer says nothing of that.

        Returns:
            Its first row, or None.
        """
        arguments = statement.arguments(bound(scope), values)
        async with self._of(scope) as connection:
            record = await connection.fetchrow(statement.text, *arguments, timeout=FIRST_ANSWER_SECONDS_MAX)
        return None if record is None else statement.made(record)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run ``attempt``, which opens its own transaction, again when it lost a race.

        Raises:
            Unavailable: it lost every time.
        """
        for _ in range(RACES_MAX):
            try:
                return await attempt()
            except LostRaceError:
                continue
        raise Unavailable("too many writers changed this thread at the same moment")


@contextmanager
def _translated() -> Iterator[None]:
    """Turn driver errors into storage errors; a driver's message may hold values and goes no further."""
    try:
        yield
    except _LOST_RACE:
        raise LostRaceError from None
    except _BUSY:
        raise Unavailable("the thread or the database is busy") from None
    except _NO_WRITES:
        raise DatabaseReadOnly from None
    except _CONNECTION_LOST:
        raise Unavailable("the connection to the database was lost") from None
