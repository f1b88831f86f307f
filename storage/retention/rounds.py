"""Rounds of retention: archive, delete, expire and thin what is due, and remove items that are over, by tenants.

1. A tenant whose time has come is leased (`retention_rounds`): one process works on it, and another one goes on where a
   dead one stopped.
2. Its threads are paged through by primary key, by clear columns alone; the planner (`storage.retention.planner`) says
   what is due. Each thread that something is due of is asked about again, by itself, just before it is acted on.
3. The act belongs to another module and is safe by itself: archiving compares `activity`, expiry the stub, thinning
   locks batch by batch. A deletion and an expiry ask once more what is due under the thread's lock, and thinning what
   is said, so that a save or a new policy that arrived meanwhile wins. A legal hold is asked about in the transaction
   of each.
4. After each page the position is committed. A crash repeats a page, whose threads are then found not to be due.
5. When the threads are done, items go whose time is over (`storage.items.expiring`), whether or not a policy says
   anything; what a slice does not come to is left for the next one. So do events that are too old or too many
   (`storage.events.keeping`).

A round spares other work: so many acts a second, a few at a time, a slice of a tenant before the next one's turn, and
intervals that jitter, so that processes and tenants do not fall into step. What cannot be done now (busy, object store
out of reach, being written to) is left for the next round and counted as late; what can never be done (damaged) is
counted, and left as it is; so are threads of whose policy or hold a row is not what a gateway wrote. It promises no
moment at which something that is due is done.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from crypto import CryptoError, KeyUnavailable
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.administration.rounds import LeaseLostError, Rounds, Tally, given_back, jittered
from storage.approvals.expiring import Expiring as ApprovalsExpiring
from storage.approvals.leaving import is_asking
from storage.archive.moving import Archives
from storage.blobs.store import BlobUnavailable
from storage.clock import Clock
from storage.concurrency.turns import Pauses
from storage.control.clock_check import ClockCheck
from storage.control.rows import ControlRows
from storage.effects.leaving import is_busy
from storage.encoding import decode_json, encode_json
from storage.errors import (
    ArchiveUnavailable,
    ClientShareRequired,
    FeatureOff,
    IntegrityFailure,
    LegalHold,
    QuotaExceeded,
    StorageError,
    ThreadActive,
    ThreadArchived,
    ThreadNotFound,
    Unavailable,
)
from storage.events.keeping import EventKeeping
from storage.items.expiring import Expiring
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.retention.examining import (
    BESIDES,
    Examined,
    besides,
    effective_of,
    examine,
    glance,
    own_of,
    read_policies,
    rule_of,
    segment_rule_of,
    segments_before,
)
from storage.retention.planner import ACTIONS, Action, Plan
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope
from storage.statements.rules import retention as sql
from storage.statements.rules.retention import FactsRow
from storage.threads.plans import Guard
from storage.threads.pruning import Pruning
from storage.threads.verbs import Threads

# How often a tenant has a round: what is due waits for so long at most, give or take the jitter.
ROUND_SECONDS = 900.0
# A round that left something behind comes again sooner.
AGAIN_SECONDS = 120.0
# A dead process's tenant is taken over after so long; longer than any one act takes.
LEASE_SECONDS = 300.0
RENEW_SECONDS = 30.0
# A tenant with more to do than this gives way to the others.
SLICE_SECONDS = 30.0
# Acts of one process: each writes to the database and perhaps to the object store beside everybody's requests.
ACTS_PER_SECOND = 20.0
ACTS_AT_ONCE = 4
PAGE_ROWS = 500
# So many acts in a row that failed for want of another service: the rest of the round would fail, too.
FAILURES_MAX = 8
# What was written so shortly before a round is looked at again: its transaction may have ended only while that went on.
OVERLAP_SECONDS = 300.0
# Something that is due is late when it was still there after so long.
LATE_SECONDS = 2 * ROUND_SECONDS
_ROUND_ACTION = "retention.round"
_ITEMS_EXPIRED = "items_expired"
# `gone`: the thread is not there any more, or nothing is due of it any more. `left`: not now. `failed`: not ever.
# `unavailable`: not before the deployment has an archive. `over-quota`: not before the tenant's quota of bytes in the
# object store has room, without which its rows stay in the database.
Outcome = Literal["done", "gone", "held", "left", "unavailable", "over-quota", "failed"]

# A request is at work on the thread, or something that everybody needs is out of reach: the next round tries again.
_NOT_NOW = (
    Unavailable, BlobUnavailable, KeyUnavailable, ThreadActive, ThreadArchived, FeatureOff,
)  # fmt: skip
_OUT_OF_REACH = (Unavailable, BlobUnavailable, KeyUnavailable)


@dataclass(slots=True)
class Round(Tally):
    """What rounds did.

    ``tenants`` came to the end of their round. ``expired`` threads were deleted from the archive, ``deleted`` ones were
    hot. Of ``segmented`` threads older checkpoints moved into segments, and of ``segments_expired`` ones old segments
    were removed. ``checkpoints`` and ``pending_writes`` were removed by thinning and with segments. ``bytes`` is the
    size of envelopes that archiving and moving took from the database, and of objects that expired. ``held`` threads
    are under a legal hold. ``left`` acts could not be done now, ``over_quota`` ones not before the tenant's quota of
    bytes has room, ``failed`` ones cannot be done, because what they are about is damaged. ``items_expired`` were
    removed because their time was over.
    """

    tenants: int = 0
    threads: int = 0
    archived: int = 0
    deleted: int = 0
    expired: int = 0
    thinned: int = 0
    segmented: int = 0
    segments_expired: int = 0
    items_expired: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    bytes: int = 0
    held: int = 0
    left: int = 0
    over_quota: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class RetentionCensus:
    """What there is and what waits, over all tenants that have a policy, as their last rounds left it.

    ``tenants`` have rounds; threads are ``hot``, in the ``archive``, or ``held``. ``done`` and ``due`` count the acts
    that the last round of each tenant did and left, by action. ``late_seconds`` is how long the oldest of those has
    been due (0: there are none), ``age_seconds`` the time since the last whole round of the tenant that waits longest
    for one. ``overdue`` tenants' rounds should have begun long ago.
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


class _GiveUpError(Exception):
    """Too much failed in a row: what everybody needs is out of reach."""


class _NotDueError(Exception):
    """The act that was due of a thread is not due any more."""


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
class RoundStatus:
    """How far a tenant's round is, from what is on record.

    Attributes:
        state: ``running``: a process has the lease; ``waiting``: for its time, or for a process.
        lease_until: When the lease ends by itself, if no process renews it; None: no process has it.
        due_at: When its time comes, or has come.
        started_at: When the round that is under way began; None: none is.
        finished_at: When the last whole round ended.
        looked_at: The number of threads that the round under way has looked at.
        counts: The counts of the round under way, or without one of the last: threads by tier, and ``done_`` and
            ``due_`` acts, and ``over_quota`` of the latter.
        late_since: Since when the oldest act has been due that the last round left.
    """

    state: Literal["running", "waiting"]
    lease_until: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    looked_at: int
    counts: Mapping[str, int]
    late_since: datetime | None


class _LastRound(Struct, kw_only=True):
    """The counts that a whole round leaves on record."""

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


@dataclass(frozen=True, slots=True)
class Acts:
    """The verbs that a round acts with."""

    threads: Threads
    pruning: Pruning
    archives: Archives
    expiring: Expiring
    events: EventKeeping
    approvals: ApprovalsExpiring


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """How much a round may do beside everybody's requests.

    ``page_rows`` threads are planned together; for ``slice_seconds`` a tenant keeps the others waiting.
    """

    acts_per_second: float = ACTS_PER_SECOND
    acts_at_once: int = ACTS_AT_ONCE
    page_rows: int = PAGE_ROWS
    slice_seconds: float = SLICE_SECONDS


_LIMITS = RoundLimits()


class Retaining(Rounds[Round, RetentionCensus]):
    """Does the rounds; several processes may."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        clock: Clock,
        acts: Acts,
        control: ControlRows,
        limits: RoundLimits = _LIMITS,
    ) -> None:
        super().__init__(unit_of_work, sql.TENANTS_DUE, Round)
        self._audit = audit
        self._clock_check = ClockCheck(unit_of_work, clock)
        self._acts = acts
        self._control = control
        self._limits = limits
        self._pace = _Pace(limits.acts_per_second)

    # --- whose turn it is --------------------------------------------------------------------------------------------

    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> Round | None:
        """A slice of a tenant's round; None if its time has not come or another process is at it.

        ``now``: begin at any time, and go on to the end.

        Raises:
            Unavailable: the database cannot be reached; what was done is committed.
            ClockOff: this process's clock and the database's disagree; nothing was done.
            CryptoError: the root key cannot be asked who wrote the policies; nothing was done.
        """
        await self._clock_check.require()
        await self._control.ready()
        async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            claim = await transaction.fetch_one(sql.CLAIM, lease_seconds=LEASE_SECONDS, now=now)
        if claim is None:
            return None
        progress = _Progress() if claim.progress is None else decode_json(claim.progress, _Progress)
        claimed_at = claim.lease_until - timedelta(seconds=LEASE_SECONDS)
        lease = _Lease(tenant_id, claim.lease_until, claim.started_at or claimed_at, claim.thinned_until, progress)
        round_ = Round()
        try:
            async with given_back(lambda: self._release(lease, 0.0)):
                ended = await self._slice(lease, round_, None if now else time.monotonic() + self._limits.slice_seconds)
                if ended:
                    await self._finish(lease)
                    round_.tenants = 1
                else:
                    await self._release(lease, 0.0)
        except _GiveUpError:
            await self._release(lease, AGAIN_SECONDS)
        except LeaseLostError:
            pass
        return round_

    async def _release(self, lease: _Lease, seconds: float) -> None:
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            await transaction.run(sql.PAUSE, lease_until=lease.lease_until, seconds=seconds)

    async def _advance(self, lease: _Lease, position: tuple[str, str] | None = None) -> None:
        """Renew the lease, and put on record how far the round is."""
        if position is not None:
            lease.progress.subject_id, lease.progress.thread_id = position
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            lease_until = await transaction.fetch_one(
                sql.ADVANCE,
                lease_until=lease.lease_until,
                lease_seconds=LEASE_SECONDS,
                started_at=lease.started_at,
                progress=encode_json(lease.progress),
            )
        if lease_until is None:
            raise LeaseLostError
        lease.lease_until = lease_until
        lease.renewed = time.monotonic()

    async def _finish(self, lease: _Lease) -> None:
        progress = lease.progress
        seconds = jittered(AGAIN_SECONDS if progress.again else ROUND_SECONDS)
        thinned_until = None if progress.unfinished else lease.started_at - timedelta(seconds=OVERLAP_SECONDS)
        census = {"counts": progress.counts, "late_since": progress.late_since}
        did: dict[str, Any] = {
            action: count for action in ACTIONS if (count := progress.counts.get(f"done_{action}", 0)) > 0
        }
        if (items := progress.counts.get(_ITEMS_EXPIRED, 0)) > 0:
            did[_ITEMS_EXPIRED] = items
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            ended = await transaction.run(
                sql.FINISH,
                lease_until=lease.lease_until,
                seconds=seconds,
                census=encode_json(census).decode(),
                thinned_until=thinned_until,
            )
            if not ended:
                raise LeaseLostError
            if did:
                target = f"tenant:{lease.tenant_id}"
                await self._audit.append(transaction, lease.tenant_id, GATEWAY_ACTOR, _ROUND_ACTION, target, did)

    # --- the round ---------------------------------------------------------------------------------------------------

    async def _slice(self, lease: _Lease, round_: Round, until: float | None) -> bool:
        """Page on; returns whether the round came to its end."""
        while True:
            progress = lease.progress
            async with self._unit_of_work.snapshot(TenantListing(lease.tenant_id)) as transaction:
                await transaction.run(sql.IN_ORDER)
                rows = await transaction.fetch_all(
                    sql.PAGE,
                    after_subject=progress.subject_id,
                    after_thread=progress.thread_id,
                    limit=self._limits.page_rows,
                )
                agents = {row.agent for row in rows}
                policies = await read_policies(transaction, self._control, lease.tenant_id, agents)
            due = []
            pauses = Pauses()
            for row in rows:
                await pauses.after(len(row.policy or b""))
                progress.count(row.tier)
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
            last = (rows[-1].subject_id, rows[-1].thread_id) if rows else None
            await self._advance(lease, last)
            if len(rows) < self._limits.page_rows:
                await self._expire_approvals(lease)
                return await self._expire_items(lease, round_, until) and await self._expire_events(lease, until)
            if until is not None and time.monotonic() > until:
                return False

    async def _expire_items(self, lease: _Lease, round_: Round, until: float | None) -> bool:
        """Remove items whose time is over, step by step; returns whether all were looked at."""
        try:
            async with aclosing(self._acts.expiring.run(TenantScope(lease.tenant_id))) as steps:
                async for step in steps:
                    round_.items_expired += step.items
                    round_.failed += step.damaged
                    lease.progress.count(_ITEMS_EXPIRED, step.items)
                    late = until is not None and time.monotonic() > until
                    if late or time.monotonic() - lease.renewed > RENEW_SECONDS:
                        await self._advance(lease)
                    if late:
                        return False
                    await self._pace.turn()
        except _NOT_NOW:
            round_.left += 1
            lease.progress.again = True
        return True

    async def _expire_approvals(self, lease: _Lease) -> None:
        """Store of what people were asked that nobody decided in time: as many as one round does."""
        try:
            await self._acts.approvals.tenant(lease.tenant_id)
        except _NOT_NOW:
            lease.progress.again = True

    async def _expire_events(self, lease: _Lease, until: float | None) -> bool:
        """Remove events that are too old or too many; returns whether all are gone."""
        try:
            async for _ in self._acts.events.expire(lease.tenant_id):
                late = until is not None and time.monotonic() > until
                if late or time.monotonic() - lease.renewed > RENEW_SECONDS:
                    await self._advance(lease)
                if late:
                    return False
                await self._pace.turn()
        except _NOT_NOW:
            lease.progress.again = True
        return True

    async def _act_on(self, lease: _Lease, round_: Round, rows: Sequence[FactsRow]) -> None:
        """Act on threads of a page, a few at a time; each to its end, also when another one stops the round."""
        waiting = list(reversed(rows))
        stopped: list[Exception] = []

        async def work() -> None:
            while waiting and not stopped:
                row = waiting.pop()
                try:
                    await self._look_after(lease, round_, Scope(lease.tenant_id, row.subject_id), row.thread_id)
                except (LeaseLostError, _GiveUpError) as reason:
                    stopped.append(reason)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._limits.acts_at_once, len(rows))):
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
        while seen is not None and seen.plan is not None:
            await self._do_one(lease, round_, scope, thread_id, seen)
            seen = besides(seen)

    async def _do_one(self, lease: _Lease, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> None:
        """Do one of the acts that are due of a thread, and put on record what came of it."""
        assert seen.plan is not None  # noqa: S101  for the type checker: the caller looked
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
            round_.left += outcome in {"left", "unavailable"}
            round_.failed += outcome == "failed"
            progress.leave(seen.plan)
            if outcome == "over-quota":
                round_.over_quota += 1
                progress.count("over_quota")
            # Room comes with the next round at the earliest: bytes that were freed count until no backup needs them.
            progress.again |= outcome == "left"
            progress.unfinished |= outcome in {"left", "over-quota"} and seen.plan.action in BESIDES

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
        except QuotaExceeded:
            outcome = "over-quota"
        except (StorageError, CryptoError):
            outcome = "failed"
        lease.failures = 0
        return outcome

    async def _act(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        """Do what is due of a thread; returns whether anything was done."""
        due = seen.plan
        assert due is not None  # noqa: S101  for the type checker: the caller looked
        if due.action == "archive":
            async with self._unit_of_work.snapshot(scope) as transaction:
                await _check_idle(transaction, thread_id)  # before an object is written in vain
            wanted = seen.policy.archive_storage_class
            archived = await self._acts.archives.archive(
                scope,
                thread_id,
                actor=GATEWAY_ACTOR,
                storage_class=wanted,
                activity=seen.row.activity,
                guard=lambda transaction: _check_idle(transaction, thread_id),
            )
            round_.archived += archived.created
            round_.bytes += archived.stub.hot_bytes if archived.created else 0
            return archived.created
        if due.action == "expire":
            removal = await self._acts.archives.expire(
                scope,
                thread_id,
                actor=GATEWAY_ACTOR,
                blob_id=seen.row.blob_id,
                guard=self._still_due(scope, thread_id, seen),
            )
            round_.expired += removal.threads
            round_.bytes += (seen.row.size_bytes or 0) if removal.threads else 0
            return removal.threads > 0
        if due.action == "delete":
            await self._acts.threads.delete(scope, thread_id, guard=self._still_due(scope, thread_id, seen))
            round_.deleted += 1
            return True
        if due.action == "segment":
            return await self._segment(round_, scope, thread_id, seen)
        if due.action == "segment-expire":
            return await self._expire_segments(round_, scope, thread_id, seen)
        return await self._thin(round_, scope, thread_id, seen)

    async def _segment(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        moved = await self._acts.archives.segmenting.move(
            scope,
            thread_id,
            segment_rule_of(seen.policy, seen.row.present),
            actor=GATEWAY_ACTOR,
            storage_class=seen.policy.archive_storage_class,
            guard=self._still_holds(scope, thread_id, seen),
        )
        round_.segmented += moved.segments > 0
        round_.bytes += moved.hot_bytes
        return moved.segments > 0

    async def _expire_segments(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        expired = await self._acts.archives.expiring.expire(
            scope,
            thread_id,
            segments_before(seen.policy, seen.row.present),
            actor=GATEWAY_ACTOR,
            guard=self._still_holds(scope, thread_id, seen),
        )
        round_.segments_expired += expired.segments > 0
        round_.checkpoints += expired.checkpoints
        round_.pending_writes += expired.pending_writes
        round_.bytes += expired.size_bytes
        return expired.segments > 0

    def _still_due(self, scope: Scope, thread_id: str, seen: Examined) -> Guard:
        """Ask under the thread's lock whether the act is still due by the policies of this moment, and record it.

        Nothing goes by itself while somebody holds a claim, or before it is known what an effect did.

        Who expires an archived thread keeps a record of its own.
        """

        async def guard(transaction: Transaction) -> None:
            again = await examine(transaction, self._control, scope, thread_id)
            due = None if again is None else again.plan
            if again is None or due is None or seen.plan is None or due.action != seen.plan.action:
                raise _NotDueError
            if again.row.activity != seen.row.activity:
                raise _NotDueError
            await _check_idle(transaction, thread_id)
            if due.action == "expire":
                return
            detail = {"reason": due.reason, "due_since": due.at.isoformat(), "tier": again.facts.tier}
            target = f"thread:{scope.subject_id}/{thread_id}"
            await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "thread.expire", target, detail)

        return guard

    def _still_holds(self, scope: Scope, thread_id: str, seen: Examined) -> Guard:
        """Ask under the thread's lock, before each batch, whether what holds for the thread is still the same."""

        async def guard(transaction: Transaction) -> None:
            if await effective_of(transaction, self._control, scope, thread_id) != seen.policy:
                raise _NotDueError

        return guard

    async def _thin(self, round_: Round, scope: Scope, thread_id: str, seen: Examined) -> bool:
        now = seen.row.present
        checkpoints = writes = 0
        due, window = seen.plan, seen.policy.pending_writes_seconds
        guard = self._still_holds(scope, thread_id, seen)
        if due is not None and due.reason != "pending_writes":
            removal = await self._acts.pruning.thin(scope, thread_id, rule_of(seen.policy, now), guard=guard)
            checkpoints, writes = removal.checkpoints, removal.pending_writes
        if window is not None and seen.facts.writes_due:
            removal = await self._acts.pruning.drop_writes(
                scope, thread_id, now - timedelta(seconds=window), guard=guard
            )
            writes += removal.pending_writes
        round_.checkpoints += checkpoints
        round_.pending_writes += writes
        round_.thinned += (checkpoints + writes) > 0
        return checkpoints + writes > 0

    # --- what shows --------------------------------------------------------------------------------------------------

    async def begin(self, scope: TenantScope) -> RoundStatus | None:
        """Have a tenant's round begin as soon as a process is free, instead of when it is due; as `status`."""
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.DELAY_ROUND, seconds=0.0)
        return await self.status(scope)

    async def status(self, scope: TenantScope) -> RoundStatus | None:
        """How far a tenant's round is; None: it has none, for nobody said how long what is kept, or put what ends."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.ROUND)
        if row is None:
            return None
        progress = None if row.progress is None else decode_json(row.progress, _Progress)
        last = decode_json(row.census, _LastRound)
        counts = last.counts if progress is None else progress.counts
        return RoundStatus(
            state="running" if row.running else "waiting",
            lease_until=row.lease_until if row.running else None,
            due_at=row.due_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            looked_at=0 if progress is None else counts.get("hot", 0) + counts.get("archive", 0),
            counts=counts,
            late_since=last.late_since,
        )

    async def census(self) -> RetentionCensus:
        """Count what there is and what waits; as `Rounds.census`."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            total = await transaction.fetch_only(sql.CENSUS, late_seconds=LATE_SECONDS)
            rows = await transaction.fetch_all(sql.CENSUS_COUNTS)
        counts = {row.what: row.count for row in rows}
        return RetentionCensus(
            tenants=total.tenants,
            hot=counts.get("hot", 0),
            archive=counts.get("archive", 0),
            held=counts.get("held", 0),
            done={action: counts.get(f"done_{action}", 0) for action in ACTIONS},
            due={action: counts.get(f"due_{action}", 0) for action in ACTIONS},
            late_seconds=max(total.late_seconds, 0.0),
            age_seconds=total.age_seconds,
            overdue=total.overdue,
        )


async def _check_idle(transaction: Transaction, thread_id: str) -> None:
    """Return if nobody holds a claim of a thread, waits for an answer, or has yet to learn what an effect did.

    Raises:
        _NotDueError: Somebody does.
    """
    if await is_busy(transaction, thread_id) or await is_asking(transaction, thread_id):
        raise _NotDueError
