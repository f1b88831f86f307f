"""Jobs: long operations as rows, so that they survive the process that works on them.

A job has a kind, a target and a position; whoever holds its lease works on it a slice at a time and moves the position
in the same transaction as the work, so that a crash repeats nothing and loses nothing. A lease ends by itself when its
owner dies; its exact end is its owner's token, so that an owner who comes back late changes nothing (`LeaseLostError`).

Every row is proved by a MAC (`storage.control_rows`) that moves with it: a job that somebody else wrote, sent elsewhere
or made say something else ends without being worked on, and is not shown.

Owns the rows and the loop that picks due jobs. What a job does is decided by the performer of its kind. It promises
no order between jobs and no moment at which one ends.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, ParamSpec
from uuid import UUID

from uuid_utils import uuid7

from crypto import CryptoError, KeyCache, KeyDenied, KeyUnavailable, RootKeyInvalid
from storage.control_rows import ControlRows, Row, job_row
from storage.errors import IntegrityFailure, JobNotFound, StorageError, Unavailable
from storage.format.audit import OPERATOR_CHAIN
from storage.model import Page
from storage.postgres import jobs as sql
from storage.postgres.unit_of_work import Observer, Silent, Transaction, UnitOfWork
from storage.scope import OperatorScope, TenantScope

# A dead owner's job goes on after so long; an owner renews it with every batch, far more often.
LEASE_SECONDS = 30.0
# How often a process looks for due jobs when nobody wakes it.
POLL_SECONDS = 2.0
# What could not be done now (root key, object store or database out of reach) is tried again after so long.
RETRY_SECONDS = 5.0
# What the root key refused, and a job that has to end waits for: as long as refusals are remembered.
REFUSED_SECONDS = KeyCache.DENIED_TTL_SECONDS
# How often a process counts what is open, for whoever watches.
COUNT_SECONDS = 10.0
# What a process that stops takes at most to let another one go on.
GIVE_BACK_SECONDS_MAX = 5.0
# Says of a job that no gateway wrote why it ended.
UNPROVED = "the row of this job was written or edited outside the gateway"
_DUE_MAX = 20
_PAGE_ROWS = 100
# More than a transaction is ever tried.
_TOKENS_MAX = 32

JobState = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as callers see it. ``total`` is an estimate, None before it is known."""

    tenant_id: UUID
    job_id: UUID
    kind: str
    target: str
    state: JobState
    done: int
    total: int | None
    error: str | None
    note: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Slice:
    """How a slice of a job ended: with the job, or to be continued after a while."""

    ended: bool
    again_seconds: float = 0.0
    error: str | None = None
    note: str | None = None


MORE = Slice(ended=False)


def job_scope(tenant_id: UUID) -> TenantScope | OperatorScope:
    """The scope that reaches a tenant's jobs, or the deployment's."""
    return OperatorScope() if tenant_id == OPERATOR_CHAIN else TenantScope(tenant_id)


def job_tenant(scope: TenantScope | OperatorScope) -> UUID:
    """Under which id a scope's jobs are kept."""
    return scope.tenant_id if isinstance(scope, TenantScope) else OPERATOR_CHAIN


def _proved(tenant_id: UUID, row: Any) -> Row:
    """What of a job's row its MAC proves."""
    place = (tenant_id, row["job_id"], row["kind"], row["target"])
    return job_row(*place, row["state"], row["position"], row["error"], row["note"])


class LeaseLostError(Exception):
    """Somebody else works on this job now."""


class Lease:
    """A job in work. Only `Jobs.claim` and `Jobs.add_claimed` make one."""

    def __init__(self, tenant_id: UUID, job_id: UUID, row: Any, control: ControlRows) -> None:
        self._control = control
        self.tenant_id = tenant_id
        self.job_id = job_id
        self.kind: str = row["kind"]
        self.target: str = row["target"]
        self.position: str = row["position"]
        self.done: int = row["done"]
        self.total: int | None = row["total"]
        # Several, because a transaction that renewed may be rolled back and run again; all of them are ours alone.
        self._tokens: list[datetime] = [row["lease_until"]]

    @property
    def tokens(self) -> list[datetime]:
        """What the row's lease may be, if it is still ours."""
        return self._tokens

    def mac(self, state: JobState, position: str, error: str | None = None, note: str | None = None) -> bytes:
        """What proves the row when it says this."""
        place = (self.tenant_id, self.job_id, self.kind, self.target)
        return self._control.mac(job_row(*place, state, position, error, note))

    async def advance(self, transaction: Transaction, position: str, done: int = 0, total: int | None = None) -> None:
        """Move on and renew the lease, in the transaction that did the work.

        Args:
            transaction: Bound to the job's tenant.
            position: Where to go on.
            done: How much more is done.
            total: How much there is, if that is known now.

        Raises:
            LeaseLostError: somebody else has it; the transaction must not commit.
        """
        mac = self.mac("running", position)
        row = await transaction.fetchrow(
            sql.ADVANCE, self.tenant_id, self.job_id, self._tokens, done, total, position, LEASE_SECONDS, mac
        )
        if row is None:
            raise LeaseLostError
        self.position, self.done, self.total = position, row["done"], row["total"]
        self._tokens = [*self._tokens, row["lease_until"]][-_TOKENS_MAX:]


Performer = Callable[[Lease], Awaitable[Slice]]
P = ParamSpec("P")


def outlasting_refusals(perform: Callable[P, Awaitable[Slice]]) -> Callable[P, Coroutine[Any, Any, Slice]]:
    """A performer whose job waits, instead of failing, while the root key refuses.

    For what has begun and must end (shreds, rotations, re-seals): an expired token or a key file that is away comes
    back, and nobody would begin the rest again. What somebody waits for and can ask for once more fails at once.
    """

    @functools.wraps(perform)
    async def performed(*args: P.args, **kwargs: P.kwargs) -> Slice:
        try:
            return await perform(*args, **kwargs)
        except (KeyDenied, RootKeyInvalid):
            return Slice(ended=False, again_seconds=REFUSED_SECONDS)

    return performed


class Jobs:
    """The rows. `ready` comes before every transaction in which one is added or looked for."""

    def __init__(self, unit_of_work: UnitOfWork, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self.added = asyncio.Event()

    async def ready(self) -> None:
        """As `ControlRows.ready`."""
        await self._control.ready()

    async def add(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        kind: str,
        target: str,
        position: str,
        total: int | None = None,
        job_id: UUID | None = None,
    ) -> UUID:
        """Add a job in the transaction that makes it necessary."""
        job_id = job_id or UUID(str(uuid7()))
        mac = self._control.mac(job_row(tenant_id, job_id, kind, target, "queued", position, None, None))
        await transaction.execute(sql.ADD, tenant_id, job_id, kind, target, total, position, mac)
        self.added.set()
        return job_id

    async def add_claimed(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> Lease:
        """Add a job that its maker works on itself; nobody else ever sees it without a lease."""
        job_id = UUID(str(uuid7()))
        mac = self._control.mac(job_row(tenant_id, job_id, kind, target, "queued", "", None, None))
        await transaction.execute(sql.ADD, tenant_id, job_id, kind, target, None, "", mac)
        row = await transaction.fetchrow(sql.CLAIM, tenant_id, job_id, LEASE_SECONDS)
        return Lease(tenant_id, job_id, row, self._control)

    async def open(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> UUID | None:
        """The job of this kind and target that has not ended, if there is one.

        Raises:
            IntegrityFailure: no gateway wrote it as it is.
        """
        row = await transaction.fetchrow(sql.OPEN, tenant_id, kind, target)
        return None if row is None else self._job(row).job_id

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, bytes | None]]:
        """Every job of a tenant, as it is proved, and its stored MAC: for whoever checks all of them."""
        after = UUID(int=0)
        while rows := await transaction.fetch(sql.EVERY, tenant_id, after, _PAGE_ROWS):
            for row in rows:
                after = row["job_id"]
                yield _proved(tenant_id, row), row["mac"]

    def check(self, tenant_id: UUID, row: Any) -> None:
        """Refuse a job's row that no gateway wrote as it is.

        Raises:
            IntegrityFailure: it is one.
        """
        self._control.check(_proved(tenant_id, row), row["mac"])

    def _job(self, row: Any) -> Job:
        self.check(row["tenant_id"], row)
        columns = dict(row)
        del columns["position"], columns["mac"]
        return Job(**columns)

    async def get(self, scope: TenantScope | OperatorScope, job_id: UUID) -> Job:
        """One job.

        Raises:
            JobNotFound: this scope has none of this id.
            IntegrityFailure: no gateway wrote it as it is.
            CryptoError: the root key cannot be asked whether one did.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetchrow(sql.ONE, job_tenant(scope), job_id)
        if row is None:
            raise JobNotFound
        return self._job(row)

    async def due(self) -> list[tuple[UUID, UUID]]:
        """Jobs that nobody works on, as (tenant, job); those that waited longest first."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.DUE, _DUE_MAX)
        return [(row["tenant_id"], row["job_id"]) for row in rows]

    async def count_open(self) -> dict[str, int]:
        """How many jobs of each kind have not ended, whosever they are."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return {row["kind"]: row["open"] for row in await transaction.fetch(sql.COUNT_OPEN)}

    async def claim(self, tenant_id: UUID, job_id: UUID) -> Lease | None:
        """Take a job's lease, or None if somebody has it or it ended.

        Raises:
            IntegrityFailure: no gateway wrote it as it is. It is put aside as failed, and stays without proof.
            CryptoError: the root key cannot be asked whether one did.
        """
        await self._control.ready()
        async with self._unit_of_work.begin(job_scope(tenant_id)) as transaction:
            row = await transaction.fetchrow(sql.CLAIM, tenant_id, job_id, LEASE_SECONDS)
            if row is None:
                return None
            lease = Lease(tenant_id, job_id, row, self._control)
            if not self._control.is_authentic(_proved(tenant_id, row), row["mac"]):
                ending = ("failed", UNPROVED, row["note"], row["position"], None)
                await transaction.execute(sql.END, tenant_id, job_id, lease.tokens, *ending)
        self.check(tenant_id, row)
        return lease

    async def release(self, lease: Lease, seconds: float) -> None:
        """Give a lease back; the job is due again after ``seconds``."""
        async with self._unit_of_work.begin(job_scope(lease.tenant_id)) as transaction:
            await transaction.execute(sql.RELEASE, lease.tenant_id, lease.job_id, lease.tokens, seconds)

    async def end(self, lease: Lease, error: str | None = None, note: str | None = None) -> bool:
        """End a job, as done, or as failed if there is an error; returns whether it was still ours to end."""
        state: JobState = "done" if error is None else "failed"
        async with self._unit_of_work.begin(job_scope(lease.tenant_id)) as transaction:
            mac = lease.mac(state, lease.position, error, note)
            ending = (state, error, note, lease.position, mac)
            ended = await transaction.execute(sql.END, lease.tenant_id, lease.job_id, lease.tokens, *ending)
        return ended > 0

    async def list(
        self, scope: TenantScope | OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[Job]:
        """Jobs, newest first.

        Raises:
            IntegrityFailure, CryptoError: as `get`, for any of them.
        """
        await self._control.ready()
        since = (datetime.fromisoformat(after[0]), UUID(after[1])) if after else (None, None)
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.LIST, job_tenant(scope), *since, limit)
        jobs = [self._job(row) for row in rows]
        last = jobs[-1] if len(jobs) == limit else None
        return Page(jobs, (last.created_at.isoformat(), str(last.job_id)) if last else None)


class Runner:
    """Works on due jobs, one slice at a time, so that a long one does not keep the others waiting."""

    def __init__(self, jobs: Jobs, performers: Mapping[str, Performer], observer: Observer | None = None) -> None:
        self._jobs = jobs
        self._performers = performers
        self._observer = observer or Silent()
        self._counted_at: float | None = None

    async def run_due(self) -> int:
        """Do a slice of every due job of a kind that is known here; returns how many slices were done.

        Raises:
            Unavailable: the database cannot be reached.
            CryptoError: something is due, and the root key cannot be asked who wrote it.
        """
        slices = 0
        for tenant_id, job_id in await self._jobs.due():
            try:
                lease = await self._jobs.claim(tenant_id, job_id)
            except IntegrityFailure:
                continue
            if lease is not None:
                slices += 1
                await self._slice(lease)
        return slices

    async def keep_running(self, failed: Callable[[Exception], None]) -> None:
        """Work on due jobs until cancelled, which is safe at any moment.

        Args:
            failed: Told of a round that failed; the next one comes all the same.
        """
        while True:
            self._jobs.added.clear()
            worked = 0
            try:
                await self._count()
                worked = await self.run_due()
            except Exception as reason:  # noqa: BLE001  whatever it is, the next round must come
                failed(reason)
            if not worked:
                try:
                    await asyncio.wait_for(self._jobs.added.wait(), POLL_SECONDS)
                except TimeoutError:
                    continue

    async def _count(self) -> None:
        now = time.monotonic()
        if self._counted_at is None or now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            self._observer.jobs_open(await self._jobs.count_open())

    async def _end(self, lease: Lease, error: str | None = None, note: str | None = None) -> None:
        if await self._jobs.end(lease, error, note):
            self._observer.job_ended(lease.kind, "done" if error is None else "failed")

    async def _give_back(self, lease: Lease) -> None:
        """Let another process go on at once; if that fails, it goes on when the lease has ended."""
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                await self._jobs.release(lease, 0.0)

    async def _slice(self, lease: Lease) -> None:
        performer = self._performers.get(lease.kind)
        if performer is None:
            # A newer release's kind: it is for its processes.
            await self._jobs.release(lease, RETRY_SECONDS)
            return
        try:
            ended = await performer(lease)
        except asyncio.CancelledError:
            await self._give_back(lease)
            raise
        except LeaseLostError:
            return
        except (Unavailable, KeyUnavailable):
            await self._jobs.release(lease, RETRY_SECONDS)
        except (StorageError, CryptoError) as error:
            await self._end(lease, error=str(error) or type(error).__name__)
        else:
            if ended.ended:
                await self._end(lease, ended.error, ended.note)
            else:
                await self._jobs.release(lease, ended.again_seconds)
