"""Jobs: long operations as rows, so that they survive the process that works on them.

A job has a kind, a target and a position; the process that holds its lease works on it a slice at a time and moves the
position in the same transaction as the work, so that a crash repeats nothing and loses nothing. A lease ends by itself
when its owner dies; its exact end is its owner's token, so that an owner who comes back late changes nothing
(`LeaseLostError`).

Every row is proved by a MAC (`storage.control.rows`) that moves with it: a job that no gateway wrote, sent elsewhere or
made say something else ends without being worked on, and is not shown.

What a job waits for that cannot go on now is a code beside that (`waits_for`): it tells people, and decides nothing.

Owns the rows and the loop that picks due jobs. What a job does is decided by the performer of its kind. It promises
no order between jobs and no moment at which one ends.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, ParamSpec, cast, get_args
from uuid import UUID

import structlog
from uuid_utils import uuid7

from crypto import CryptoError, KeyCache, KeyDenied, KeyUnavailable, RootKeyInvalid
from storage.administration.rounds import LeaseLostError, given_back
from storage.blobs.store import BlobUnavailable
from storage.concurrency.turns import Pauses
from storage.control.key import Row
from storage.control.rows import ControlRows, JobDraft, Proof, job_row, proof_of
from storage.encoding import decode_json, encode_json
from storage.errors import (
    ClockOff,
    IntegrityFailure,
    JobNotFound,
    LostRaceError,
    PlaceInLineRefused,
    StorageError,
    Unavailable,
    WorkersBusy,
)
from storage.event_queue.emitting import Emitting
from storage.format.audit import OPERATOR_CHAIN
from storage.model import Page
from storage.postgres.unit_of_work import Observer, OpenJobs, Silent, Transaction, UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.deployment import jobs as sql

# A dead owner's job goes on after so long; an owner renews it with every batch, far more often.
LEASE_SECONDS = 30.0
# How often a process looks for due jobs when it is not woken and none that it gave back is due.
POLL_SECONDS = 2.0
# The pause after which something is tried again that was out of reach: root key, object store or database.
RETRY_SECONDS = 5.0
# What the root key refused, and a job that has to end waits for: as long as refusals are remembered.
REFUSED_SECONDS = KeyCache.DENIED_TTL_SECONDS
# How often a process counts what is open, for its metrics.
COUNT_SECONDS = 10.0
# Says of a job that no gateway wrote why it ended.
UNPROVED = "the row of this job was written or edited outside the gateway"
# Says of a job that it was ended before its time.
CANCELLED: Final = "it was cancelled"
_DUE_MAX = 20
_PAGE_ROWS = 100
# More than a transaction is ever tried.
_TOKENS_MAX = 32

ARCHIVE_KIND: Final = "archive"
RESTORE_KIND: Final = "restore"
# Their targets are threads (`thread_target`), and a caller who may write to the thread begins them.
THREAD_KINDS: Final = frozenset({ARCHIVE_KIND, RESTORE_KIND})

JobState = Literal["queued", "running", "done", "failed"]
WaitsFor = Literal[
    "clock",  # this process's and the database's disagree
    "database",
    "newer-build",  # its kind is one that this build does not know
    "object-store",
    "older-transactions",  # what began before a key changed
    "other-jobs",  # those it began
    "root-key-refused",
    "root-key-unavailable",
    "tenant-refused",  # its requests took too much just now
    "thaw",
    "worker-processes",
]
_WAITS: Final = frozenset(get_args(WaitsFor))
# What such a job waits for ends by itself, and there is nothing to do.
_EXPECTED_WAITS: Final = frozenset({"older-transactions", "other-jobs", "thaw"})
OPEN_STATES: Final = frozenset({"queued", "running"})
# The first that fits; what lost a race just runs again.
_WAIT_OF: Final[tuple[tuple[type[Exception], WaitsFor | None], ...]] = (
    (LostRaceError, None),
    (BlobUnavailable, "object-store"),
    (ClockOff, "clock"),
    (WorkersBusy, "worker-processes"),
    (PlaceInLineRefused, "worker-processes"),
    (KeyUnavailable, "root-key-unavailable"),
    (Unavailable, "database"),
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Job:
    """A job as callers see it.

    ``total`` is an estimate, None before it is known. ``position`` is the performer's, and says what it found.
    ``waits_for`` says what an open job waited for when it was last tried; None: it goes on, or has not begun. What a
    ``damaged`` job says, which no gateway wrote as it is, is left out, and nothing is done by it.
    """

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
    position: str = field(repr=False)
    damaged: bool = False
    waits_for: WaitsFor | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """How a slice of a job ended: with the job, or to be continued after a while."""

    ended: bool
    again_seconds: float = 0.0
    error: str | None = None
    note: str | None = None
    waits_for: WaitsFor | None = None


MORE = Slice(ended=False)


def job_scope(tenant_id: UUID) -> TenantScope | OperatorScope:
    """The scope that reaches a tenant's jobs, or the deployment's."""
    return OperatorScope() if tenant_id == OPERATOR_CHAIN else TenantScope(tenant_id)


def job_tenant(scope: Scope | TenantScope | OperatorScope) -> UUID:
    """Under which id a scope's jobs are kept."""
    return OPERATOR_CHAIN if isinstance(scope, OperatorScope) else scope.tenant_id


def thread_target(scope: Scope, thread_id: str) -> str:
    """What a job on one thread is for, as its row names it."""
    return encode_json((scope.subject_id, thread_id)).decode()


def thread_of(target: str) -> tuple[str, str]:
    """The subject and the thread of a `thread_target`."""
    return decode_json(target, tuple[str, str])


def is_on_thread_of(scope: Scope, kind: str, target: str) -> bool:
    """Whether a job is on a thread of the subject: what whoever reaches the thread may have begun, and may follow."""
    return kind in THREAD_KINDS and thread_of(target)[0] == scope.subject_id


class Lease:
    """A job in work. Only `Jobs.claim` and `Jobs.add_claimed` make one."""

    def __init__(self, row: sql.ClaimedRow, control: ControlRows) -> None:
        self._control = control
        self.tenant_id = row.tenant_id
        self.job_id = row.job_id
        self.kind = row.kind
        self.target = row.target
        self.position = row.position
        self.done = row.done
        self.total = row.total
        self.waits_for = row.waits_for
        # Several, because a transaction that renewed may be rolled back and run again; all of them are ours alone.
        self.tokens = [row.lease_until]

    def proof(self, state: JobState, position: str, error: str | None = None, note: str | None = None) -> Proof:
        """What proves the row when it says this."""
        draft = JobDraft(self.tenant_id, self.job_id, self.kind, self.target, state, position, error, note)
        return self._control.proof(job_row(draft))

    async def advance(self, transaction: Transaction, position: str, done: int = 0, total: int | None = None) -> None:
        """Move on and renew the lease, in the transaction that did the work.

        ``position`` is where to go on, ``done`` how much more is done, ``total`` how much there is, if that is known
        now.

        Raises:
            LeaseLostError: another process has it; the transaction must not commit.
        """
        proof = self.proof("running", position)
        row = await transaction.fetch_one(
            sql.ADVANCE,
            owner=self.tenant_id,
            job_id=self.job_id,
            leases=self.tokens,
            done=done,
            total=total,
            position=position,
            lease_seconds=LEASE_SECONDS,
            **proof._asdict(),
        )
        if row is None:
            raise LeaseLostError
        self.position, self.done, self.total = position, row.done, row.total
        self.tokens = [*self.tokens, row.lease_until][-_TOKENS_MAX:]


Performer = Callable[[Lease], Awaitable[Slice]]
P = ParamSpec("P")


def outlasting_refusals(perform: Callable[P, Awaitable[Slice]]) -> Callable[P, Coroutine[Any, Any, Slice]]:
    """A performer whose job waits, instead of failing, while the root key refuses.

    For what has begun and must end (shreds, rotations, re-seals): an expired token or a key file that is away comes
    back, and no one would begin the rest again. What a caller waits for and can ask for once more fails at once.
    """

    @functools.wraps(perform)
    async def performed(*args: P.args, **kwargs: P.kwargs) -> Slice:
        try:
            return await perform(*args, **kwargs)
        except (KeyDenied, RootKeyInvalid):
            return Slice(ended=False, again_seconds=REFUSED_SECONDS, waits_for="root-key-refused")

    return performed


class Jobs:
    """The rows. `ready` comes before every transaction in which one is added or looked for."""

    def __init__(self, unit_of_work: UnitOfWork, control: ControlRows, emitting: Emitting) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self._emitting = emitting
        self.added = asyncio.Event()

    async def ready(self) -> None:
        """Have at hand what the proofs of jobs need; it raises what `ControlRows.ready` raises."""
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
        await self._add(transaction, JobDraft(tenant_id, job_id, kind, target, position=position), total)
        transaction.when_committed(self.added.set)
        return job_id

    async def _add(self, transaction: Transaction, draft: JobDraft, total: int | None) -> None:
        await transaction.run(
            sql.ADD,
            owner=draft.tenant_id,
            job_id=draft.job_id,
            kind=draft.kind,
            target=draft.target,
            total=total,
            position=draft.position,
            **self._control.proof(job_row(draft))._asdict(),
        )

    async def add_claimed(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> Lease:
        """Add a job that its maker works on itself; no other process ever sees it without a lease."""
        job_id = UUID(str(uuid7()))
        await self._add(transaction, JobDraft(tenant_id, job_id, kind, target), None)
        row = await transaction.fetch_only(sql.CLAIM, owner=tenant_id, job_id=job_id, lease_seconds=LEASE_SECONDS)
        return Lease(row, self._control)

    async def cancel(self, transaction: Transaction, job: Job) -> None:
        """End an open job, whose row the transaction locked, as failed by the error `CANCELLED`."""
        ended = JobDraft(
            job.tenant_id, job.job_id, job.kind, job.target, "failed", job.position, CANCELLED, job.note
        )  # fmt: skip
        proof = self._control.proof(job_row(ended))
        await transaction.run(sql.CANCEL, owner=job.tenant_id, job_id=job.job_id, error=CANCELLED, **proof._asdict())
        await self._emitting.of_job(transaction, job.tenant_id, job.job_id, "failed")

    async def open(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> UUID | None:
        """The job of this kind and target that has not ended, if there is one that a gateway wrote."""
        found = await self.all_open(transaction, tenant_id, kind, target)
        return found[0].job_id if found else None

    async def all_open(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> list[sql.JobRow]:
        """The jobs of this kind and target that have not ended and that a gateway wrote, the oldest first."""
        rows = await transaction.fetch_all(sql.OPEN, owner=tenant_id, kind=kind, target=target, page_rows=_PAGE_ROWS)
        return [row for row in rows if self.is_sound(row)]

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every job of a tenant, as it is proved, and its stored proof: for a check of all of them."""
        after = UUID(int=0)
        while rows := await transaction.fetch_all(sql.EVERY, owner=tenant_id, after=after, page_rows=_PAGE_ROWS):
            for row in rows:
                after = row.job_id
                yield job_row(row), proof_of(row)

    def check(self, row: sql.JobRow) -> None:
        """Refuse a job's row that no gateway wrote as it is.

        Raises:
            IntegrityFailure: it is one.
        """
        self._control.check(job_row(row), proof_of(row))

    def is_sound(self, row: sql.JobRow) -> bool:
        """Whether a gateway wrote a job's row as it is; as `ControlRows.is_sound`."""
        return self._control.is_sound(job_row(row), proof_of(row))

    def read(self, row: sql.JobRow) -> Job:
        """The job of a row; of a damaged one nothing that it says."""
        place, times = (row.tenant_id, row.job_id), (row.created_at, row.updated_at)
        if not self.is_sound(row):
            return Job(*place, "", "", "failed", 0, None, UNPROVED, None, *times, "", damaged=True)
        # No MAC covers it, and older builds leave it where it was: only a code, and only of what is open, is shown.
        waits = row.state in OPEN_STATES and row.waits_for in _WAITS
        return Job(
            *place,
            row.kind,
            row.target,
            cast("JobState", row.state),
            row.done,
            row.total,
            row.error,
            row.note,
            *times,
            row.position,
            waits_for=cast("WaitsFor", row.waits_for) if waits else None,
        )

    async def get(self, scope: Scope | TenantScope | OperatorScope, job_id: UUID) -> Job:
        """One job: of a tenant or the deployment any, of a subject those on its threads.

        Raises:
            JobNotFound: this scope has none of this id.
            CryptoError: the root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.ONE, owner=job_tenant(scope), job_id=job_id)
        if row is None or (isinstance(scope, Scope) and not is_on_thread_of(scope, row.kind, row.target)):
            raise JobNotFound
        return self.read(row)

    async def of_tenant(self, _: OperatorScope, tenant_id: UUID, job_id: UUID, kinds: Collection[str]) -> Job:
        """A job of one of the ``kinds``, which operators begin at a tenant.

        Raises:
            JobNotFound, IntegrityFailure, CryptoError: as `get`.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            row = await transaction.fetch_one(sql.ONE, owner=tenant_id, job_id=job_id)
        if row is None or row.kind not in kinds:
            raise JobNotFound
        return self.read(row)

    async def due(self) -> list[tuple[UUID, UUID]]:
        """Jobs that no process works on, as (tenant, job); those that waited longest first."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(sql.DUE, page_rows=_DUE_MAX)
        return [(row.tenant_id, row.job_id) for row in rows]

    async def count_open(self) -> dict[str, OpenJobs]:
        """How many jobs of each kind have not ended, whosever they are, and since when."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(sql.COUNT_OPEN)
        return {row.kind: OpenJobs(row.jobs, row.oldest_seconds) for row in rows}

    async def claim(self, tenant_id: UUID, job_id: UUID) -> Lease | None:
        """Take a job's lease, or None if another process has it or it ended.

        Raises:
            IntegrityFailure: no gateway wrote it as it is. It is put aside as failed, and stays without proof.
            CryptoError: the root key cannot be asked whether one did.
        """
        await self._control.ready()
        await self._emitting.ready(tenant_id)
        async with self._unit_of_work.begin(job_scope(tenant_id)) as transaction:
            row = await transaction.fetch_one(sql.CLAIM, owner=tenant_id, job_id=job_id, lease_seconds=LEASE_SECONDS)
            if row is None:
                return None
            lease = Lease(row, self._control)
            if not self._control.is_authentic(job_row(row), proof_of(row)):
                await self._end(transaction, lease, "failed", Proof(None, None), (UNPROVED, row.note))
        self.check(row)
        return lease

    async def _end(
        self,
        transaction: Transaction,
        lease: Lease,
        state: JobState,
        proof: Proof,
        outcome: tuple[str | None, str | None],
    ) -> int:
        error, note = outcome
        ended = await transaction.run(
            sql.END,
            owner=lease.tenant_id,
            job_id=lease.job_id,
            leases=lease.tokens,
            state=state,
            error=error,
            note=note,
            position=lease.position,
            **proof._asdict(),
        )
        if ended:
            await self._emitting.of_job(transaction, lease.tenant_id, lease.job_id, state)
        return ended

    async def release(self, lease: Lease, seconds: float, waits_for: WaitsFor | None = None) -> None:
        """Give a lease back; the job is due again after ``seconds``, and says what it ``waits_for``."""
        async with self._unit_of_work.begin(job_scope(lease.tenant_id)) as transaction:
            await transaction.run(
                sql.RELEASE,
                owner=lease.tenant_id,
                job_id=lease.job_id,
                leases=lease.tokens,
                again_seconds=seconds,
                waits_for=waits_for,
            )

    async def end(self, lease: Lease, error: str | None = None, note: str | None = None) -> bool:
        """End a job, as done, or as failed if there is an error; returns whether it was still ours to end."""
        state: JobState = "done" if error is None else "failed"
        await self._emitting.ready(lease.tenant_id)
        async with self._unit_of_work.begin(job_scope(lease.tenant_id)) as transaction:
            proof = lease.proof(state, lease.position, error, note)
            ended = await self._end(transaction, lease, state, proof, (error, note))
        return ended > 0

    async def list(
        self, scope: TenantScope | OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[Job]:
        """Jobs, newest first.

        Raises:
            CryptoError: as `get`, for any of them.
        """
        await self._control.ready()
        before_at, before_id = (datetime.fromisoformat(after[0]), UUID(after[1])) if after else (None, None)
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.LIST, owner=job_tenant(scope), before_at=before_at, before_id=before_id, page_rows=limit
            )
        jobs = []
        pauses = Pauses()
        for row in rows:
            jobs.append(self.read(row))
            await pauses.after(0)
        last = jobs[-1] if len(jobs) == limit else None
        return Page(jobs, (last.created_at.isoformat(), str(last.job_id)) if last else None)


class Runner:
    """Works on due jobs, one slice at a time, so that a long one does not keep the others waiting."""

    def __init__(
        self,
        jobs: Jobs,
        performers: Mapping[str, Performer],
        observer: Observer | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._jobs = jobs
        self._performers = performers
        self._observer = observer or Silent()
        self._poll_seconds = poll_seconds
        self._counted_at: float | None = None
        # When the next of those given back here is due, by the monotonic clock.
        self._again_at = math.inf

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

        ``failed`` is told of each round that failed; the next one comes all the same.
        """
        while True:
            self._jobs.added.clear()
            if self._again_at <= time.monotonic():
                self._again_at = math.inf
            worked = 0
            try:
                await self._count()
                worked = await self.run_due()
            except Exception as reason:  # noqa: BLE001  whatever it is, the next round must come
                failed(reason)
            if not worked:
                try:
                    seconds = min(self._poll_seconds, self._again_at - time.monotonic())
                    await asyncio.wait_for(self._jobs.added.wait(), seconds)
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
            if error is not None:
                _log.warning("job failed", kind=lease.kind, job_id=str(lease.job_id))

    async def _release(self, lease: Lease, seconds: float, waits_for: WaitsFor | None) -> None:
        if waits_for is not None:
            self._observer.job_waits(lease.kind, waits_for)
            if waits_for != lease.waits_for:
                level = logging.INFO if waits_for in _EXPECTED_WAITS else logging.WARNING
                _log.log(level, "job waits", kind=lease.kind, job_id=str(lease.job_id), waits_for=waits_for)
        await self._jobs.release(lease, seconds, waits_for)
        now = time.monotonic()
        # A moment that has passed meanwhile is the next round's, which comes at once: it must not hide this one.
        self._again_at = min(self._again_at if self._again_at > now else math.inf, now + seconds)

    async def _slice(self, lease: Lease) -> None:
        performer = self._performers.get(lease.kind)
        if performer is None:
            # A newer release's kind: it is for its processes.
            await self._release(lease, RETRY_SECONDS, "newer-build")
            return
        try:
            async with given_back(lambda: self._jobs.release(lease, 0.0)):
                ended = await performer(lease)
        except LeaseLostError:
            return
        except (Unavailable, KeyUnavailable) as error:
            waits_for = next(code for kind, code in _WAIT_OF if isinstance(error, kind))
            await self._release(lease, RETRY_SECONDS, waits_for)
        except (StorageError, CryptoError) as error:
            await self._end(lease, error=str(error) or type(error).__name__)
        else:
            if ended.ended:
                await self._end(lease, ended.error, ended.note)
            else:
                await self._release(lease, ended.again_seconds, ended.waits_for)
