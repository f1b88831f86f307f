"""Rounds of retention: archive, delete, expire and thin what is due, a tenant at a time.

1. A tenant whose time has come is leased (`retention_rounds`): one process works on it, and another one goes on where a
   dead one stopped.
2. Its threads are paged through by primary key, by clear columns alone; the planner (`storage.retention.planner`) says
   what is due. Each thread that something is due of is asked about again, by itself, just before it is acted on.
3. The act is somebody else's and safe by itself: archiving compares `activity`, expiry the stub, thinning locks batch
   by batch. A deletion and an expiry ask once more what is due under the thread's lock, and thinning what is said, so
   that a save or a new policy that arrived meanwhile wins. A legal hold is asked about in the transaction of each.
4. After each page the position is committed. A crash repeats a page, whose threads are then found not to be due.

A round spares other work: so many acts a second, a few at a time, a slice of a tenant before the next one's turn, and
intervals that jitter, so that processes and tenants do not fall into step. What cannot be done now (busy, object store
out of reach, being written to) is left for the next round and counted as late; what can never be done (damaged) is
counted, and left as it is; so are threads of whose policy or hold a row is not what a gateway wrote. It promises no
moment at which something that is due is done.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

from msgspec import Struct

from crypto import CryptoError, KeyUnavailable
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.blobs.store import BlobUnavailable
from storage.clock import Clock
from storage.concurrency.rounds import telling
from storage.concurrency.turns import Pauses
from storage.control.clock_check import ClockCheck
from storage.control.rows import ControlRows
from storage.encoding import decode_json, encode_json
from storage.errors import (
    ArchiveUnavailable,
    ClientShareRequired,
    IntegrityFailure,
    LegalHold,
    QuotaExceeded,
    StorageError,
    ThreadActive,
    ThreadArchived,
    ThreadNotFound,
    Unavailable,
)
from storage.model import Removal
from storage.postgres import retention as sql
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.retention.planner import ACTIONS, Action, Plan
from storage.retention.policies import (
    Examined,
    examine,
    glance,
    own_of,
    read_policies,
    rule_of,
    said_of,
)
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope
from storage.threads.pruning import Guard, Pruning
from storage.threads.verbs import Threads

# How often a tenant has a round: what is due waits for so long at most, give or take the jitter.
ROUND_SECONDS = 900.0
JITTER = 0.2
# A round that left something behind comes again sooner.
AGAIN_SECONDS = 120.0
# A dead process's tenant is taken over after so long; longer than any one act takes.
LEASE_SECONDS = 300.0
RENEW_SECONDS = 30.0
# What a process that stops takes at most to let another one go on.
GIVE_BACK_SECONDS_MAX = 5.0
# A tenant with more to do than this gives way to the others.
SLICE_SECONDS = 30.0
POLL_SECONDS = 15.0
# Acts of one process: each writes to the database and perhaps to the object store beside everybody's requests.
ACTS_PER_SECOND = 20.0
ACTS_AT_ONCE = 4
PAGE_ROWS = 500
# So many acts in a row that failed for want of somebody else's service: the rest of the round would fail, too.
FAILURES_MAX = 8
# What was written so shortly before a round is looked at again: its transaction may have ended only while that went on.
OVERLAP_SECONDS = 300.0
# Something that is due is late when it was still there after so long.
LATE_SECONDS = 2 * ROUND_SECONDS
_TENANTS_MAX = 50
_ROUND_ACTION = "retention.round"
_random = secrets.SystemRandom()
# `gone`: the thread is not there any more, or nothing is due of it any more. `left`: not now. `failed`: not ever.
# `unavailable`: not before the deployment has an archive.
Outcome = Literal["done", "gone", "held", "left", "unavailable", "failed"]

# Somebody is at work on the thread, or something that everybody needs is out of reach: the next round tries again.
_NOT_NOW = (Unavailable, BlobUnavailable, KeyUnavailable, ThreadActive, ThreadArchived, QuotaExceeded)
_OUT_OF_REACH = (Unavailable, BlobUnavailable, KeyUnavailable)


class ArchivedSize(Protocol):
    """What archiving answers, as far as a round counts it."""

    @property
    def hot_bytes(self) -> int:
        """Envelopes that left the database."""
        ...

    @property
    def created(self) -> bool:
        """Whether this call archived it."""
        ...


class Archiving(Protocol):
    """Moving threads to the archive, and out of it for good; see `storage.archive.moving.Archives`."""

    async def archive(
        self,
        scope: Scope,
        thread_id: str,
        *,
        actor: str = ...,
        storage_class: str | None = None,
        activity: int | None = None,
    ) -> ArchivedSize:
        """Archive a thread that is still at this activity."""
        ...

    async def expire(
        self,
        scope: Scope,
        thread_id: str,
        *,
        actor: str = ...,
        blob_id: UUID | None = None,
        guard: Guard | None = None,
    ) -> Removal:
        """Delete an archived thread, unless the guard forbids it under its lock."""
        ...


@dataclass(slots=True)
class Round:
    """What rounds did.

    Attributes:
        tenants: Whose round came to its end.
        threads: That were looked at.
        archived: Threads that were archived.
        deleted: Hot threads that were deleted.
        expired: Archived threads that were deleted.
        thinned: Threads that checkpoints or pending writes were taken from.
        checkpoints: That thinning removed.
        pending_writes: That thinning removed.
        bytes: Envelopes that archiving took from the database, and objects of threads that expired.
        held: Threads under a legal hold.
        left: Acts that could not be done now.
        failed: Acts that cannot be done: what they are about is damaged.
    """

    tenants: int = 0
    threads: int = 0
    archived: int = 0
    deleted: int = 0
    expired: int = 0
    thinned: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    bytes: int = 0
    held: int = 0
    left: int = 0
    failed: int = 0

    def add(self, other: "Round") -> None:
        """Count what another round did, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True)
class RetentionCensus:
    """What there is and what waits, over all tenants that have a policy, as their last rounds left it.

    Attributes:
        tenants: That have rounds.
        hot: Threads in the database.
        archive: Threads in the archive.
        held: Threads under a legal hold.
        done: What the last round of each tenant did, by action.
        due: What the last rounds left undone, by action.
        late_seconds: How long the oldest of that has been due; 0: nothing.
        age_seconds: Since the last whole round of the tenant that waits longest for one.
        overdue: Tenants whose round should have begun long ago, and did not.
    """

    tenants: int
    hot: int
    archive: int
    held: int
    done: Mapping[Action, int]
    due: Mapping[Action, int]
    late_seconds: float
    age_seconds: float
    overdue: int


class _Progress(Struct, kw_only=True):
    """How far a round is."""

    subject_id: str = ""
    thread_id: str = ""
    counts: dict[str, int] = {}
    late_since: datetime | None = None
    again: bool = False  # something could not be done now, and perhaps can be soon
    unfinished: bool = False  # as before, of threads that the next round would pass over because they do not change

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def leave(self, due: Plan) -> None:
        """Put on record that something that is due was not done."""
        self.count(f"due_{due.action}")
        self.late_since = due.at if self.late_since is None else min(due.at, self.late_since)


class _LeaseLostError(Exception):
    """Somebody else works on this tenant now."""


class _GiveUpError(Exception):
    """Too much failed in a row: what everybody needs is out of reach."""


class _NotDueError(Exception):
    """What was due of a thread is not due any more."""


class _Pace:
    """Spreads acts evenly over time."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._next = 0.0

    async def turn(self) -> None:
        now = time.monotonic()
        self._next = max(self._next, now) + self._interval
        wait = self._next - self._interval - now
        if wait > 0:
            await asyncio.sleep(wait)


@dataclass(frozen=True, slots=True)
class RoundStanding:
    """How far a tenant's round is, from what is on record.

    Attributes:
        state: ``running``: a process has the lease; ``waiting``: for its time, or for a process.
        lease_until: When the lease ends by itself, if nobody renews it; None: nobody has it.
        due_at: When its time comes, or has come.
        started_at: Of the round that is under way; None: none is.
        finished_at: Of the last whole round.
        looked_at: Threads that the round under way has looked at.
        counts: Of the round under way, or without one of the last: threads by tier, and ``done_`` and ``due_`` acts.
        late_since: How long the oldest thing has been due that the last round left.
    """

    state: Literal["running", "waiting"]
    lease_until: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    looked_at: int
    counts: Mapping[str, int]
    late_since: datetime | None


class _Left(Struct, kw_only=True):
    """What a whole round leaves on record."""

    counts: dict[str, int] = {}
    late_since: datetime | None = None


@dataclass(slots=True)
class _Lease:
    """A tenant in work."""

    tenant_id: UUID
    lease_until: datetime
    started_at: datetime
    thinned_until: datetime | None
    progress: _Progress
    renewed: float = field(default_factory=time.monotonic)
    failures: int = 0
    unavailable: bool = False


class Retaining:
    """Does the rounds; several processes may."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        clock: Clock,
        threads: Threads,
        pruning: Pruning,
        archives: Archiving,
        control: ControlRows,
        *,
        acts_per_second: float = ACTS_PER_SECOND,
        acts_at_once: int = ACTS_AT_ONCE,
        page_rows: int = PAGE_ROWS,
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        """Bind to what the acts are done by.

        Args:
            unit_of_work: The way to the rows.
            audit: Deletions, and what a round came to, are recorded.
            clock: This process's, which must agree with the database's.
            threads: Deletes.
            pruning: Thins.
            archives: Archives and expires.
            control: Tells policies and holds that a gateway wrote.
            acts_per_second: Of this process, at most.
            acts_at_once: Of one tenant.
            page_rows: Threads that are planned together.
            slice_seconds: How long a tenant keeps the others waiting.
        """
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._clock_check = ClockCheck(unit_of_work, clock)
        self._threads = threads
        self._pruning = pruning
        self._archives = archives
        self._control = control
        self._pace = _Pace(acts_per_second)
        self._acts_at_once = acts_at_once
        self._page_rows = page_rows
        self._slice_seconds = slice_seconds

    # --- whose turn it is --------------------------------------------------------------------------------------------

    async def run_due(self) -> Round:
        """A slice of the round of every tenant whose time has come and that nobody else is at.

        Raises:
            Unavailable: the database cannot be reached.
        """
        done = Round()
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.TENANTS_DUE, _TENANTS_MAX)
        for row in rows:
            round_ = await self.tenant(row["tenant_id"])
            if round_ is not None:
                done.add(round_)
        return done

    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> Round | None:
        """A slice of a tenant's round; None if its time has not come or somebody else is at it.

        Args:
            tenant_id: Which.
            now: Whatever the time, and to its end.

        Raises:
            Unavailable: the database cannot be reached; what was done is committed.
            ClockOff: this process's clock and the database's disagree; nothing was done.
            CryptoError: the root key cannot be asked who wrote the policies; nothing was done.
        """
        await self._clock_check.require()
        await self._control.ready()
        async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            row = await transaction.fetchrow(sql.CLAIM, tenant_id, LEASE_SECONDS, now)
        if row is None:
            return None
        progress = _Progress() if row["progress"] is None else decode_json(row["progress"], _Progress)
        lease = _Lease(tenant_id, row["lease_until"], row["started_at"], row["thinned_until"], progress)
        round_ = Round()
        try:
            ended = await self._slice(lease, round_, None if now else time.monotonic() + self._slice_seconds)
            if ended:
                await self._finish(lease)
                round_.tenants = 1
            else:
                await self._release(lease, 0.0)
        except _GiveUpError:
            await self._release(lease, AGAIN_SECONDS)
        except _LeaseLostError:
            pass
        except asyncio.CancelledError:  # the process stops: another one goes on at once
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                    await self._release(lease, 0.0)
            raise
        return round_

    async def _release(self, lease: _Lease, seconds: float) -> None:
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            await transaction.execute(sql.PAUSE, lease.tenant_id, lease.lease_until, seconds)

    async def _advance(self, lease: _Lease, position: tuple[str, str] | None = None) -> None:
        """Renew the lease, and put on record how far the round is."""
        if position is not None:
            lease.progress.subject_id, lease.progress.thread_id = position
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            row = await transaction.fetchrow(
                sql.ADVANCE,
                lease.tenant_id,
                lease.lease_until,
                LEASE_SECONDS,
                lease.started_at,
                encode_json(lease.progress),
            )
        if row is None:
            raise _LeaseLostError
        lease.lease_until = row["lease_until"]
        lease.renewed = time.monotonic()

    async def _finish(self, lease: _Lease) -> None:
        progress = lease.progress
        seconds = (AGAIN_SECONDS if progress.again else ROUND_SECONDS) * _random.uniform(1 - JITTER, 1 + JITTER)
        thinned_until = None if progress.unfinished else lease.started_at - timedelta(seconds=OVERLAP_SECONDS)
        census = {"counts": progress.counts, "late_since": progress.late_since}
        did: dict[str, Any] = {
            action: count for action in ACTIONS if (count := progress.counts.get(f"done_{action}", 0)) > 0
        }
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            ended = await transaction.execute(
                sql.FINISH,
                lease.tenant_id,
                lease.lease_until,
                seconds,
                encode_json(census).decode(),
                thinned_until,
            )
            if not ended:
                raise _LeaseLostError
            if did:
                target = f"tenant:{lease.tenant_id}"
                await self._audit.append(transaction, lease.tenant_id, GATEWAY_ACTOR, _ROUND_ACTION, target, did)

    # --- the round ---------------------------------------------------------------------------------------------------

    async def _slice(self, lease: _Lease, round_: Round, until: float | None) -> bool:
        """Page on; returns whether the round came to its end."""
        while True:
            at = (lease.progress.subject_id, lease.progress.thread_id)
            async with self._unit_of_work.snapshot(TenantListing(lease.tenant_id)) as transaction:
                await transaction.execute(sql.IN_ORDER)
                rows = await transaction.fetch(sql.PAGE, lease.tenant_id, *at, self._page_rows)
                agents = {row["agent"] for row in rows}
                policies = await read_policies(transaction, self._control, lease.tenant_id, agents)
            due = []
            pauses = Pauses()
            for row in rows:
                await pauses.after(len(row["policy"] or b""))
                lease.progress.count(row["tier"])
                round_.threads += 1
                try:
                    own = own_of(self._control, lease.tenant_id, row)
                    seen, counts = glance(policies, own, row, lease.thinned_until)
                except IntegrityFailure:  # it is left alone, and only it
                    round_.failed += 1
                    continue
                if seen.policy.legal_hold:
                    round_.held += 1
                    lease.progress.count("held")
                if seen.plan is not None and seen.plan.action == "archive" and lease.unavailable:
                    lease.progress.leave(seen.plan)
                elif seen.plan is not None or counts:
                    due.append(row)
            await self._act_on(lease, round_, due)
            last = (rows[-1]["subject_id"], rows[-1]["thread_id"]) if rows else None
            await self._advance(lease, last)
            if len(rows) < self._page_rows:
                return True
            if until is not None and time.monotonic() > until:
                return False

    async def _act_on(self, lease: _Lease, round_: Round, rows: Sequence[Any]) -> None:
        """Act on threads of a page, a few at a time; each to its end, also when another one stops the round."""
        waiting = list(reversed(rows))
        stopped: list[Exception] = []

        async def work() -> None:
            while waiting and not stopped:
                row = waiting.pop()
                try:
                    await self._look_after(lease, round_, Scope(lease.tenant_id, row["subject_id"]), row["thread_id"])
                except (_LeaseLostError, _GiveUpError) as reason:
                    stopped.append(reason)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._acts_at_once, len(rows))):
                group.create_task(work())
        if stopped:
            raise stopped[0]

    async def _look_after(self, lease: _Lease, round_: Round, scope: Scope, thread_id: str) -> None:
        try:
            async with self._unit_of_work.snapshot(scope) as transaction:
                seen = await examine(transaction, self._control, scope, thread_id, lease.thinned_until)
        except IntegrityFailure:
            round_.failed += 1
            return
        if seen is None or seen.plan is None:
            return
        await self._pace.turn()
        if time.monotonic() - lease.renewed > RENEW_SECONDS:
            lease.renewed = time.monotonic()  # the others need not
            await self._advance(lease)
        outcome = await self._outcome(lease, round_, scope, thread_id, seen)
        progress = lease.progress
        if outcome == "done":
            progress.count(f"done_{seen.plan.action}")
        elif outcome == "held":
            round_.held += 1
            progress.count("held")
        elif outcome != "gone":
            round_.left += outcome != "failed"
            round_.failed += outcome == "failed"
            progress.leave(seen.plan)
            progress.again |= outcome == "left"
            progress.unfinished |= outcome == "left" and seen.plan.action == "thin"

    async def _outcome(self, lease: _Lease, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> Outcome:
        try:
            outcome: Outcome = "done" if await self._act(round_, scope, thread_id, seen) else "gone"
        except (ThreadNotFound, _NotDueError, ClientShareRequired):
            outcome = "gone"
        except LegalHold:
            outcome = "held"
        except _NOT_NOW as reason:
            lease.failures = lease.failures + 1 if isinstance(reason, _OUT_OF_REACH) else 0
            if lease.failures >= FAILURES_MAX:
                raise _GiveUpError from None
            return "left"
        except ArchiveUnavailable:
            lease.unavailable = True
            outcome = "unavailable"
        except (StorageError, CryptoError):
            outcome = "failed"
        lease.failures = 0
        return outcome

    async def _act(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        """Do what is due of a thread; returns whether anything was done."""
        due = seen.plan
        assert due is not None  # noqa: S101  for the type checker: the caller looked
        if due.action == "archive":
            wanted = seen.policy.archive_storage_class
            archived = await self._archives.archive(
                scope, thread_id, actor=GATEWAY_ACTOR, storage_class=wanted, activity=seen.row["activity"]
            )
            round_.archived += archived.created
            round_.bytes += archived.hot_bytes if archived.created else 0
            return archived.created
        if due.action == "expire":
            removal = await self._archives.expire(
                scope,
                thread_id,
                actor=GATEWAY_ACTOR,
                blob_id=seen.row["blob_id"],
                guard=self._still_due(scope, thread_id, seen),
            )
            round_.expired += removal.threads
            round_.bytes += seen.row["size_bytes"] if removal.threads else 0
            return removal.threads > 0
        if due.action == "delete":
            await self._threads.delete(scope, thread_id, guard=self._still_due(scope, thread_id, seen))
            round_.deleted += 1
            return True
        return await self._thin(round_, scope, thread_id, seen)

    def _still_due(self, scope: Scope, thread_id: str, seen: Examined) -> Guard:
        """Under the thread's lock: whether it is still due by the policies of this moment, and the record of it.

        Who expires an archived thread keeps a record of its own.
        """

        async def guard(transaction: Transaction) -> None:
            again = await examine(transaction, self._control, scope, thread_id)
            due = None if again is None else again.plan
            if again is None or due is None or seen.plan is None or due.action != seen.plan.action:
                raise _NotDueError
            if again.row["activity"] != seen.row["activity"]:
                raise _NotDueError
            if due.action == "expire":
                return
            detail = {"reason": due.reason, "due_since": due.at.isoformat(), "tier": again.facts.tier}
            target = f"thread:{scope.subject_id}/{thread_id}"
            await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "thread.expire", target, detail)

        return guard

    def _still_said(self, scope: Scope, thread_id: str, seen: Examined) -> Guard:
        """Under the thread's lock, before each batch: whether what holds for the thread is still the same."""

        async def guard(transaction: Transaction) -> None:
            if await said_of(transaction, self._control, scope, thread_id) != seen.policy:
                raise _NotDueError

        return guard

    async def _thin(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        now = seen.row["present"]
        checkpoints = writes = 0
        due, window = seen.plan, seen.policy.pending_writes_seconds
        guard = self._still_said(scope, thread_id, seen)
        if due is not None and due.reason != "pending_writes":
            removal = await self._pruning.thin(scope, thread_id, rule_of(seen.policy, now), guard=guard)
            checkpoints, writes = removal.checkpoints, removal.pending_writes
        if window is not None and seen.facts.writes_due:
            removal = await self._pruning.drop_writes(scope, thread_id, now - timedelta(seconds=window), guard=guard)
            writes += removal.pending_writes
        round_.checkpoints += checkpoints
        round_.pending_writes += writes
        round_.thinned += (checkpoints + writes) > 0
        return checkpoints + writes > 0

    # --- what shows --------------------------------------------------------------------------------------------------

    async def begin(self, scope: TenantScope) -> RoundStanding | None:
        """Have a tenant's round begin as soon as a process is free, instead of when it is due; as `standing`."""
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.execute(sql.DELAY_ROUND, scope.tenant_id, 0.0)
        return await self.standing(scope)

    async def standing(self, scope: TenantScope) -> RoundStanding | None:
        """How far a tenant's round is; None: nobody ever said how long its threads are kept, so it has no rounds."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetchrow(sql.STANDING, scope.tenant_id)
        if row is None:
            return None
        progress = None if row["progress"] is None else decode_json(row["progress"], _Progress)
        left = decode_json(row["census"], _Left)
        counts = left.counts if progress is None else progress.counts
        return RoundStanding(
            state="running" if row["running"] else "waiting",
            lease_until=row["lease_until"] if row["running"] else None,
            due_at=row["due_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            looked_at=0 if progress is None else counts.get("hot", 0) + counts.get("archive", 0),
            counts=counts,
            late_since=left.late_since,
        )

    async def census(self) -> RetentionCensus:
        """Count what there is and what waits, over all tenants, from what their rounds left on record.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            total = await transaction.fetchrow(sql.CENSUS, LATE_SECONDS)
            rows = await transaction.fetch(sql.CENSUS_COUNTS)
        counts = {row["what"]: row["count"] for row in rows}
        return RetentionCensus(
            tenants=total["tenants"],
            hot=counts.get("hot", 0),
            archive=counts.get("archive", 0),
            held=counts.get("held", 0),
            done={action: counts.get(f"done_{action}", 0) for action in ACTIONS},
            due={action: counts.get(f"due_{action}", 0) for action in ACTIONS},
            late_seconds=max(total["late_seconds"], 0.0),
            age_seconds=total["age_seconds"],
            overdue=total["overdue"],
        )

    async def keep_running(
        self,
        done: Callable[[Round], None],
        failed: Callable[[Exception], None],
        counted: Callable[[RetentionCensus], None],
    ) -> None:
        """Do what is due, again and again, until cancelled, which is safe at any moment.

        Args:
            done: Told what a pass did.
            failed: Told of a pass that failed; the next one comes all the same.
            counted: Told what there is and what waits, after every pass, also after one that failed.
        """
        while True:
            await telling(self.run_due, done, failed)
            await telling(self.census, counted, failed)
            await asyncio.sleep(POLL_SECONDS * _random.uniform(1 - JITTER, 1 + JITTER))
