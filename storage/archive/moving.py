"""Moving stale threads out of the database and back: archive, restore, expire, as verbs and as jobs.

Archiving, in this order:

1. Snapshots of the thread's rows, a page each; the seals and `activity` are read with the first.
2. An intent is committed, the rows are written as one sealed object, and read back. What was read back, and nothing
   else, is compared with the seals (`storage.archive.check`). Only then is an object that ends in a frozen class moved
   there: S3 freezes it at once.
3. One transaction, **the flip**: the thread is locked, and must be hot and at the same `activity`, so that a save or a
   pending write that arrived meanwhile wins; every key version that the archive needs is held; the object is settled,
   the stub written, the rows deleted, as many as were archived, and the tier turned.

A process that dies before the flip commits leaves an intent, whose object the sweeper removes; after it, an archived
thread. There is never a moment at which the rows are in neither place, nor one at which both are believed: the tier
says which.

A thread that takes much more than a reader may hold is archived in parts, where segments may be written: first its
older checkpoints move into segments, and then what is left is archived as above. So neither archiving nor reading nor
restoring holds all of it, and a process that dies in between leaves a hot thread with segments.

Restoring reads the object, checks it in the same way, and puts the rows back verbatim in one transaction that compares
the stub; of a thread with segments it brings those back too. An object brought back has no reference, and the sweeper
frees it after the backup window. A job that archives only the older part of a thread is begun and driven here, but the
part is `storage.archive.segmenting`'s to move. Nothing is open while the object store is waited for. Which threads are
stale is not decided here, and whether a caller may do this is the gateway's to say.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from crypto import CryptoError, Sealer
from crypto.blob import object_bytes
from storage.access.sealing import Sealing
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.administration.jobs import ARCHIVE_KIND, RESTORE_KIND, Job, Jobs, Lease, Slice, thread_of, thread_target
from storage.archive.bringing_back import BringingBack
from storage.archive.check import ArchiveCheck
from storage.archive.expiring import Expiring
from storage.archive.segmenting import Segmenting
from storage.archive.stubs import audit_target, told
from storage.archive.writing import FRAME_ROWS, freeze, write_object
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import STORAGE_CLASSES, BlobUnavailable
from storage.encoding import decode_json, encode_json
from storage.errors import (
    ArchiveTooLarge,
    ArchiveUnavailable,
    IntegrityFailure,
    InvalidState,
    JobNotFound,
    LostRaceError,
    StorageError,
    ThreadActive,
    ThreadArchived,
    ThreadNotFound,
)
from storage.event_queue.model import OfThread
from storage.format.cold.archive import (
    CHECKPOINTS,
    CHUNKS,
    PENDING_WRITES,
    TABLES,
    ArchiveEncoder,
    ArchiveRecord,
    StoredRow,
    Stub,
    ThreadRows,
)
from storage.format.pointer import BlobPointer
from storage.ledger.ledger import NewBlob, Settlement, new_blob_id
from storage.ledger.streams import BlobWriter, Budget
from storage.model import Removal, Status
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope, TenantScope
from storage.statements.deployment.jobs import JobRow
from storage.statements.threads import archives as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import SegmentRow, SegmentTotals, SizedThreadRow
from storage.statements.threads.threads import HeadRow
from storage.threads.plans import Guard
from storage.threads.pruning import NOTHING
from storage.threads.thinning import ThinningRule
from storage.threads.verbs import remove_thread
from storage.tiers.objects import ArchiveObjects, Readiness, thaw_progress

# Envelopes of one archive: a restore holds them in memory, so that no transaction waits for the object store.
ARCHIVE_BYTES_MAX: Final = 256 * 1024 * 1024
# Of a thread that takes more, the older part goes into segments before it is archived: its readers hold less then.
UNSEGMENTED_BYTES_MAX: Final = 32 * 1024 * 1024
# What restores under way in one process hold together.
RESTORING_BYTES_MAX: Final = ARCHIVE_BYTES_MAX
# Of one table, in one snapshot and one frame of the archive.
PAGE_ROWS: Final = FRAME_ROWS
# What a row takes beside its envelope, about: clear columns and lists of pieces.
ROW_BYTES: Final = 512
# How often a restore looks at an object that is being thawed: what S3 promises is hours.
THAW_LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Archived:
    """A thread that is in the archive. ``created`` False: it was there before."""

    stub: Stub
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStatus:
    """Where a thread's rows are, and how far away.

    Attributes:
        state: ``hot``, or whether the object can be read; ``unknown`` if there is no object store that answers. Of a
            hot thread whose segments a restore brings back, whether the next one can.
        retry_after_seconds: The seconds after which it is worth asking again.
        progress: How far the thaw is that a restore waits for, from 0 to 1; None: it is not known.
        job_id: The job of the restore that is under way, if one is.
        stub: The thread's row of ``archives``; None of a hot thread.
        segments: What the thread has in segments; None: nothing.
        ranges: Each of them, in the order of their ranges.
    """

    tier: Literal["hot", "archive"]
    state: Literal["hot", "ready", "frozen", "thawing", "unknown"]
    retry_after_seconds: float = 0.0
    progress: float | None = None
    job_id: UUID | None = None
    stub: Stub | None = None
    segments: SegmentTotals | None = None
    ranges: Sequence[SegmentRow] = ()


class KeepHot(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What of a thread stays hot while its older part moves into segments.

    Attributes:
        seconds: The seconds for which a checkpoint stays after it was made, and after it was written to.
        first: So many of the oldest of each namespace stay.
        last: So many of the newest of each namespace stay.
        every: Those stay whose step is a multiple of it.
        statuses: Those stay that had or came to one of these statuses.
    """

    seconds: int = 0
    first: int = 0
    last: int = 0
    every: int | None = None
    statuses: tuple[Status, ...] = ()

    def rule(self, now: datetime) -> ThinningRule:
        """The thinning rule that says which checkpoints leave.

        Raises:
            ValueError: A number is out of its range.
        """
        since = now - timedelta(seconds=self.seconds)
        return ThinningRule(
            every=self.every,
            keep_first=self.first,
            keep_last=self.last,
            keep_statuses=frozenset(self.statuses),
            made_since=since,
            writes_since=since,
        )


class _Order(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a job is to do, as its position keeps it.

    ``keep_hot`` None: a thread is archived as a whole. ``segment`` None: a thread is restored as a whole.
    """

    actor: str
    storage_class: str | None = None
    keep_hot: KeepHot | None = None
    segment: int | None = None
    thaw_begun: bool = False


def _target(lease: Lease) -> tuple[Scope, str]:
    subject_id, thread_id = thread_of(lease.target)
    return Scope(lease.tenant_id, subject_id), thread_id


class _Request(msgspec.Struct, frozen=True):
    """One thread to archive.

    ``activity`` is the thread's when it was decided to archive it; None: whatever it is. ``guard`` as in
    `Archives.archive`.
    """

    scope: Scope
    thread_id: str
    actor: str
    storage_class: str
    activity: int | None
    guard: Guard | None


class _InPartsFirst(Exception):
    """The thread is so large that its older part should be in segments."""


class _Read(msgspec.Struct, frozen=True):
    """What the first snapshot of a thread showed: its row and heads, and the first page of each table."""

    thread: SizedThreadRow
    heads: Sequence[HeadRow]
    pages: dict[str, list[StoredRow]]


class Archives:
    """Archives, restores and expires threads."""

    def __init__(
        self,
        sealing: Sealing,
        objects: ArchiveObjects,
        writer: BlobWriter | None,
        jobs: Jobs,
        audit: Audit,
        *,
        thaw_look_seconds: float = THAW_LOOK_SECONDS,
    ) -> None:
        """Use the object store of archives, whose life is the caller's; None: nothing can be archived."""
        self.objects = objects
        self.bringing_back = BringingBack(sealing, objects, audit)
        self.segmenting = Segmenting(sealing, objects, writer, audit, self.bringing_back)
        self.expiring = Expiring(sealing, audit)
        self._sealing = sealing
        self._writer = writer
        self._jobs = jobs
        self._audit = audit
        self._bytes_max = ARCHIVE_BYTES_MAX
        self._unsegmented_bytes_max = UNSEGMENTED_BYTES_MAX
        self._thaw_look_seconds = thaw_look_seconds
        self._restoring = Budget(RESTORING_BYTES_MAX)

    # --- archiving -------------------------------------------------------------------------------------------------

    async def archive(
        self,
        scope: Scope,
        thread_id: str,
        *,
        actor: str = GATEWAY_ACTOR,
        storage_class: str | None = None,
        activity: int | None = None,
        guard: Guard | None = None,
    ) -> Archived:
        """Move a thread into the archive; when this returns, its rows are there and only there. Repeating is a no-op.

        A thread under a client-held share is archived without it. ``storage_class`` None: the bucket's own.
        ``activity`` is the thread's when it was decided to archive it: what was written since then wins. None: what was
        written before this began does not. ``guard`` is asked under the thread's lock; when it raises, the thread stays
        hot.

        Raises:
            ThreadNotFound: There is none.
            ArchiveUnavailable: This deployment has no bucket of archives.
            InvalidState: There is no such storage class.
            ThreadActive: It was written to meanwhile, which wins; it stays hot.
            ArchiveTooLarge: It stays hot.
            QuotaExceeded: The tenant has no room for the object; it stays hot.
            IntegrityFailure: What would be archived does not authenticate, or is not all there; it stays hot.
            BlobUnavailable: The object store does not answer; it stays hot.
            CommitUnknown: It is in one of the two places; repeat it to learn in which.
        """
        _check_class(storage_class)
        if self._writer is None:
            raise ArchiveUnavailable
        wanted = storage_class or self._writer.store.storage_class
        run = _Archiving(self._sealing, self.objects, self._writer, self._audit, self._bytes_max)
        request = _Request(scope, thread_id, actor, wanted, activity, guard)

        async def archived(unsegmented_bytes_max: int) -> Archived:
            async def work(sealer: Sealer) -> Archived:
                return await run.attempt(request, sealer.without_share, unsegmented_bytes_max)

            return await self._sealing.run(scope, work, ThreadNotFound())

        try:
            return await archived(self._unsegmented_bytes_max)
        except _InPartsFirst:
            if await self.segmenting.is_on():
                rule = ThinningRule(keep_last=1)
                await self.segmenting.move(
                    scope, thread_id, rule, actor=actor, storage_class=storage_class, guard=guard
                )
            return await archived(self._bytes_max)

    # --- restoring -------------------------------------------------------------------------------------------------

    async def restore(self, scope: Scope, thread_id: str, *, actor: str = GATEWAY_ACTOR) -> bool:
        """Bring a thread back, as it was, with all of its segments; when this returns, it is hot.

        Repeating it is a no-op, and returns False. An archived thread counts as active from now on, so that no policy
        archives it again at once. A thread under a client-held share comes back without it.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: Its object has to be thawed first (`begin_restore`); nothing changed.
            ArchiveUnavailable: This process has no bucket of archives.
            ArchiveTooLarge: It takes more memory than this process gives to a restore.
            RowQuotaExceeded: Its rows would come back to a tenant that may store no more.
            IntegrityFailure: The object is missing, damaged, older or another thread's; nothing changed.
            BlobUnavailable: The object store does not answer; nothing changed.
            CommitUnknown: It is in one of the two places; repeat it to learn in which.
        """
        restored = await self._restored(scope, thread_id, actor, needs_room=True)
        return bool(await self.bringing_back.bring_back(scope, thread_id, actor=actor)) or restored

    async def _restored(self, scope: Scope, thread_id: str, actor: str, *, needs_room: bool) -> bool:
        """Bring back what an archived thread has in no segment."""

        async def work(sealer: Sealer) -> bool:
            return await self._restore_once(scope, sealer.without_share, thread_id, actor, needs_room)

        return await self._sealing.run(scope, work, ThreadNotFound())

    async def _restore_once(self, scope: Scope, sealer: Sealer, thread_id: str, actor: str, needs_room: bool) -> bool:
        async with self._sealing.unit_of_work.snapshot(scope) as transaction:
            await self._sealing.check_keys_in(transaction, scope, sealer)
            thread = await transaction.fetch_one(sql.SIZED_THREAD, thread_id=thread_id)
            if thread is None:
                raise ThreadNotFound
            if thread.tier == "hot":
                return False
            stub = await self.objects.stub(transaction, thread_id)
            if stub is None:
                raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
            heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=thread_id)
        if any(thread.counts.values()):
            raise IntegrityFailure("rows of an archived thread are in the database, too")
        if stub.hot_bytes > self._restoring.bytes_max:
            raise ArchiveTooLarge
        if needs_room:
            self._sealing.row_quotas.require_room(scope)
        moved = stub.checkpoints + stub.pending_writes + stub.chunks
        async with self._restoring.holding(stub.hot_bytes + moved * ROW_BYTES, scope.tenant_id):
            check = ArchiveCheck(sealer, thread_id, thread, heads)
            rows = ThreadRows.empty()
            async with aclosing(self.objects.read(scope, sealer, stub)) as pages:
                async for table, page in pages:
                    await check.take(table, page)
                    rows.of(table).extend(page)
            check.end()
            await self._flip_back(scope, sealer, stub, rows, actor)
        return True

    async def _flip_back(self, scope: Scope, sealer: Sealer, stub: Stub, rows: ThreadRows, actor: str) -> None:
        place = {"thread_id": stub.thread_id}
        async with self._sealing.unit_of_work.begin(scope) as transaction:
            locked = await transaction.fetch_one(sql.LOCK, **place)
            found = await transaction.fetch_one(sql.LOCK_STUB, **place)
            if locked is None or locked.tier == "hot" or found is None or found != stub:
                raise LostRaceError  # deleted, restored or archived anew meanwhile
            await self._sealing.check_keys_in(transaction, scope, sealer)
            for table in TABLES:
                for at in range(0, len(rows.of(table)), PAGE_ROWS):
                    await transaction.run_many(sql.ADD[table], rows.of(table)[at : at + PAGE_ROWS])
            await transaction.fetch_one(sql.DELETE_STUB, **place, segment=0)
            await transaction.run(sql.OUT_OF_ARCHIVE, **place, now=self._sealing.clock.now())
            # The rows are back, and name what they named: only the archive's own object loses its reference.
            await self._sealing.offload.ledger.keep(transaction, stub.thread_id)
            await self._audit.append(
                transaction, scope.tenant_id, actor, "thread.restore", audit_target(scope, stub.thread_id), told(stub)
            )
            said = OfThread(stub.thread_id)
            await self._sealing.emitting.of_thread(transaction, scope, "thread.restored", said)

    async def bring_back(
        self, scope: Scope, thread_id: str, segment: int | None = None, *, needs_room: bool = True
    ) -> None:
        """Restore what a request writes to, on the gateway's own account.

        ``segment`` None: an archived thread without its segments, or all segments of a hot one. ``needs_room``: only to
        a tenant that may store rows.
        """
        with suppress(ThreadNotFound):  # deleted meanwhile: the writer finds that out, or makes it anew
            if segment is None and await self._restored(scope, thread_id, GATEWAY_ACTOR, needs_room=needs_room):
                return
            await self.bringing_back.bring_back(scope, thread_id, segment, actor=GATEWAY_ACTOR, needs_room=needs_room)

    # --- expiring --------------------------------------------------------------------------------------------------

    async def expire(
        self,
        scope: Scope,
        thread_id: str,
        *,
        actor: str = GATEWAY_ACTOR,
        blob_id: UUID | None = None,
        guard: Guard | None = None,
    ) -> Removal:
        """Delete an archived thread for good: its stub, heads and row now, its object when no backup names it any more.

        With ``blob_id`` only if it is still archived as this object. ``guard`` is asked under the thread's lock; what
        it raises leaves the thread as it is.

        Returns:
            What was removed; nothing if the thread is not archived any more, or as another object.
        """
        sealer = await self._sealing.sealer_if_any(scope)
        await self._sealing.emitting.ready(scope.tenant_id)

        async def attempt() -> Removal:
            async with self._sealing.unit_of_work.begin(scope) as transaction:
                locked = await transaction.fetch_one(sql.LOCK, thread_id=thread_id)
                stub = await transaction.fetch_one(sql.LOCK_STUB, thread_id=thread_id)
                if locked is None or locked.tier == "hot" or stub is None:
                    return NOTHING
                if blob_id is not None and stub.blob_id != blob_id:
                    return NOTHING
                said = OfThread(thread_id, step=1)
                await self._sealing.emitting.of_thread(transaction, scope, "thread.deleted", said)
                removal = await remove_thread(
                    transaction, self._sealing.control, scope, sealer, thread_id, self._sealing.clock.now(), guard
                )
                await self._sealing.offload.ledger.drop(transaction, thread_id)
                named = audit_target(scope, thread_id)
                await self._audit.append(transaction, scope.tenant_id, actor, "thread.expire", named, told(stub))
            return removal

        return await self._sealing.unit_of_work.retrying(attempt)

    # --- what shows ------------------------------------------------------------------------------------------------

    async def status(self, scope: Scope, thread_id: str) -> ArchiveStatus:
        """Where a thread's rows are, and how soon they can be had. Asks the object store about an archived one.

        Raises:
            ThreadNotFound: There is none.
            IntegrityFailure: Its stub or its object is missing.
        """
        await self._jobs.ready()
        async with self._sealing.unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
            if row is None:
                raise ThreadNotFound
            segments, ranges = None, list[SegmentRow]()
            if row.cold is not None:
                segments = await transaction.fetch_only(sql.SEGMENT_TOTALS, thread_id=thread_id)
                ranges = await transaction.fetch_all(sql.SEGMENTS, thread_id=thread_id)
            is_hot = row.tier == "hot"
            status = ArchiveStatus(tier="hot" if is_hot else "archive", state="hot", segments=segments, ranges=ranges)
            if is_hot and not ranges:
                return status
            target = thread_target(scope, thread_id)
            jobs = await self._jobs.all_open(transaction, scope.tenant_id, RESTORE_KIND, target)
            if is_hot and not jobs:
                return status
            stub = await (
                self._next_back(transaction, ranges, jobs[0]) if is_hot else self.objects.stub(transaction, thread_id)
            )
        if stub is None:
            if is_hot:
                return status  # it came back between the statements
            raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
        job_id = jobs[0].job_id if jobs else None
        status = replace(status, job_id=job_id, stub=None if is_hot else stub)
        try:
            readiness = await self.objects.readiness(scope, stub)
        except (BlobUnavailable, ArchiveUnavailable):
            return replace(status, state="unknown")
        return replace(
            status,
            state=readiness.state,
            retry_after_seconds=readiness.retry_after_seconds,
            progress=await self._progress(scope, job_id, readiness),
        )

    async def _next_back(self, transaction: Transaction, ranges: Sequence[SegmentRow], job: JobRow) -> Stub | None:
        """The segment that a restore of a hot thread's segments brings back next; None: it has, or others do."""
        number = decode_json(job.position, _Order).segment
        wanted = next((each.volume for each in ranges if each.segment == number), None)
        of_it = [each for each in ranges if number is None or each.volume == wanted]
        if not of_it:
            return None
        last = max(of_it, key=lambda each: each.segment)
        return await transaction.fetch_one(sql.SEGMENT_STUB, thread_id=last.thread_id, segment=last.segment)

    async def _progress(self, scope: Scope, job_id: UUID | None, readiness: Readiness) -> float | None:
        if job_id is None or readiness.state != "thawing":
            return None
        try:
            job: Job = await self._jobs.get(TenantScope(scope.tenant_id), job_id)
        except JobNotFound:
            return None
        return thaw_progress(self._sealing.clock.now() - job.created_at, readiness.thaw_seconds)

    async def thaw_progress(self, scope: Scope, thread_id: str) -> float | None:
        """How far the thaw is that a restore of the thread waits for, from 0 to 1; None: none does, or unknown."""
        try:
            return (await self.status(scope, thread_id)).progress
        except (StorageError, CryptoError):
            return None  # the caller has a better error to tell

    # --- jobs ------------------------------------------------------------------------------------------------------

    async def begin_archive(
        self,
        scope: Scope,
        thread_id: str,
        actor: str,
        storage_class: str | None = None,
        keep_hot: KeepHot | None = None,
    ) -> UUID:
        """Begin to archive a thread, or what of it does not stay hot; while that goes on, this is the same job.

        Raises:
            ThreadNotFound: There is none.
            ArchiveUnavailable: This deployment has no bucket of archives.
            FeatureOff: A part of a thread is to move, and a process of an older build may run.
        """
        _check_class(storage_class)
        if not self.objects.configured:
            raise ArchiveUnavailable
        if keep_hot is not None:
            await self.segmenting.require_feature()
        order = _Order(actor=actor, storage_class=storage_class, keep_hot=keep_hot)
        return await self._begin(scope, thread_id, ARCHIVE_KIND, order)

    async def begin_restore(self, scope: Scope, thread_id: str, actor: str, segment: int | None = None) -> UUID:
        """Begin to restore a thread, which thaws its object if need be; while that goes on, this is the same job.

        Args:
            scope: Whose thread.
            thread_id: The id of the thread to restore.
            actor: Who asked.
            segment: Only the segment of this number, of a thread that is hot, and what that needs; None: all of it.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: A segment of a thread that is archived as a whole is asked for.
            InvalidState: The thread has no segment of this number.
            RowQuotaExceeded: Its rows would come back to a tenant that may store no more.
        """
        self._sealing.row_quotas.require_room(scope)
        return await self._begin(scope, thread_id, RESTORE_KIND, _Order(actor=actor, segment=segment))

    async def _begin(self, scope: Scope, thread_id: str, kind: str, order: _Order) -> UUID:
        target = thread_target(scope, thread_id)
        await self._jobs.ready()
        async with self._sealing.unit_of_work.begin(scope) as transaction:
            # The lock has others who begin the same at this moment find this job.
            locked = await transaction.fetch_one(sql.LOCK, thread_id=thread_id)
            if locked is None:
                raise ThreadNotFound
            if order.segment is not None:
                await _check_segment(transaction, thread_id, order.segment, is_hot=locked.tier == "hot")
            for running in await self._jobs.all_open(transaction, scope.tenant_id, kind, target):
                # What restores the whole thread brings the segment back, too.
                if decode_json(running.position, _Order).segment in {None, order.segment}:
                    return running.job_id
            return await self._jobs.add(transaction, scope.tenant_id, kind, target, encode_json(order).decode(), 1)

    async def perform_archive(self, lease: Lease) -> Slice:
        """Archive a thread or a part of it, as a job; what was written to meanwhile stays hot, and the job says so."""
        scope, thread_id = _target(lease)
        order = decode_json(lease.position, _Order)
        try:
            if order.keep_hot is None:
                await self.archive(scope, thread_id, actor=order.actor, storage_class=order.storage_class)
            else:
                rule = order.keep_hot.rule(self._sealing.clock.now())
                await self.segmenting.move(scope, thread_id, rule, actor=order.actor, storage_class=order.storage_class)
        except ThreadNotFound:
            return Slice(ended=True, note="the thread was deleted meanwhile")
        await self._done(lease)
        return Slice(ended=True)

    async def perform_restore(self, lease: Lease) -> Slice:
        """Restore a thread, as a job: thaw its object, look again now and then, and bring it back when it is there."""
        scope, thread_id = _target(lease)
        order = decode_json(lease.position, _Order)
        try:
            if order.segment is None:
                await self.restore(scope, thread_id, actor=order.actor)
            else:
                await self.bringing_back.bring_back(scope, thread_id, order.segment, actor=order.actor)
        except ThreadNotFound:
            return Slice(ended=True, note="the thread was deleted meanwhile")
        except ThreadArchived:
            readiness = await self._thawed(scope, thread_id, order.segment)
            if readiness is None:  # another process restored it
                return Slice(ended=False)
            if not order.thaw_begun:
                order.thaw_begun = True
                async with self._sealing.unit_of_work.begin(scope) as transaction:
                    await lease.advance(transaction, encode_json(order).decode())
            again = min(readiness.retry_after_seconds, self._thaw_look_seconds)
            return Slice(ended=False, again_seconds=again, waits_for="thaw")
        await self._done(lease)
        return Slice(ended=True)

    async def _thawed(self, scope: Scope, thread_id: str, segment: int | None) -> Readiness | None:
        """Let what a restore needs next be thawed; of several, the one that takes longest. None: all is there.

        Of one segment that is its volume, or if that is there all: the head of a namespace is in another one.
        """
        async with self._sealing.unit_of_work.snapshot(scope) as transaction:
            stub = await self.objects.stub(transaction, thread_id)
            stubs = [stub] if stub is not None else await transaction.fetch_all(sql.SEGMENT_STUBS, thread_id=thread_id)
        volumes = {each.volume for each in stubs if each.segment == segment}
        own = [each for each in stubs if each.volume in volumes] if stub is None else []
        for some in (own, stubs):
            found = [await self.objects.thaw(scope, each) for each in some]
            waiting = [each for each in found if each.state != "ready"]
            if waiting:
                return max(waiting, key=lambda each: each.retry_after_seconds)
        return None

    async def _done(self, lease: Lease) -> None:
        async with self._sealing.unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            await lease.advance(transaction, lease.position, 1)


async def _check_segment(transaction: Transaction, thread_id: str, segment: int, *, is_hot: bool) -> None:
    """Return if a hot thread has a segment.

    Raises:
        ThreadArchived: It is archived as a whole, which comes back first.
        InvalidState: It has none of this number.
    """
    if not is_hot:
        raise ThreadArchived(thread_id)
    if await transaction.fetch_one(sql.SEGMENT_STUB, thread_id=thread_id, segment=segment) is None:
        raise InvalidState(f"the thread has no segment {segment}: it came back, or never was")


@dataclass(frozen=True, slots=True)
class _Archiving:
    """Moves one thread; see the module."""

    sealing: Sealing
    objects: ArchiveObjects
    writer: BlobWriter
    audit: Audit
    bytes_max: int

    async def attempt(self, request: _Request, sealer: Sealer, unsegmented_bytes_max: int) -> Archived:
        """One attempt, with an object of its own.

        Raises:
            _InPartsFirst: The thread takes more than ``unsegmented_bytes_max``, and no share keeps it from going in
                parts.
        """
        scope = request.scope
        async with self.sealing.unit_of_work.snapshot(scope) as transaction:
            await self.sealing.check_keys_in(transaction, scope, sealer)
            read = await self._first(transaction, request.thread_id)
            if read is None:
                stub = await self.objects.stub(transaction, request.thread_id)
                if stub is None:
                    raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
                return Archived(stub, created=False)
        if request.activity is not None and read.thread.activity != request.activity:
            raise ThreadActive
        size = read.thread.hot_bytes + ROW_BYTES * sum(read.thread.counts.values())
        if unsegmented_bytes_max < size and unsegmented_bytes_max < self.bytes_max and not read.thread.client_share:
            raise _InPartsFirst
        if size > self.bytes_max:
            raise ArchiveTooLarge
        new = NewBlob(new_blob_id(), "archive", object_bytes(size), place="archive")
        now = self.sealing.clock.now()
        async with self.sealing.offload.ledger.reserving(scope, sealer, new, now):
            return await self._moved(request, sealer, read, new.blob_id, now)

    async def _moved(self, request: _Request, sealer: Sealer, read: _Read, blob_id: UUID, now: datetime) -> Archived:
        location = BlobLocation(request.scope.tenant_id, blob_id, "archive")
        wanted = request.storage_class
        record, stored_bytes = await self._written(request, sealer, read, location, wanted)
        check = await self._checked(request, sealer, read, blob_id, record)
        await freeze(self.writer, location, wanted)
        stub = Stub(
            thread_id=request.thread_id,
            blob_id=blob_id,
            activity=read.thread.activity,
            key_versions=sorted(check.key_versions | {sealer.active_key_version}),
            client_share=check.client_share,
            checkpoints=check.counts[CHECKPOINTS],
            pending_writes=check.counts[PENDING_WRITES],
            chunks=check.counts[CHUNKS],
            hot_bytes=check.hot_bytes,
            size_bytes=stored_bytes,
            run_ids=check.run_ids,
            state_schemas=check.state_schemas,
            agents=check.agents,
            named_ids=check.named_ids,
            storage_class=wanted,
            created_at=now,
            key_version=sealer.active_key_version,
            sealed=b"",
        )
        stub = msgspec.structs.replace(stub, sealed=stub.sealing(sealer, record))
        await self._flip(request, sealer, stub, record, (read.thread.cold, check.counts))
        return Archived(stub, created=True)

    # --- reading and writing ---------------------------------------------------------------------------------------

    async def _first(self, transaction: Transaction, thread_id: str) -> _Read | None:
        """The thread as it stands, in one snapshot; None if it is archived already."""
        thread = await transaction.fetch_one(sql.SIZED_THREAD, thread_id=thread_id)
        if thread is None:
            raise ThreadNotFound
        if thread.tier != "hot":
            return None
        heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=thread_id)
        pages = {
            table: await _page(transaction, thread_id, table, sql.BEFORE[table]) if count else []
            for table, count in thread.counts.items()
        }
        return _Read(thread, heads, pages)

    async def _written(
        self, request: _Request, sealer: Sealer, read: _Read, location: BlobLocation, storage_class: str
    ) -> tuple[ArchiveRecord, int]:
        blob_key = sealer.new_blob_key()
        cipher = sealer.blob_cipher(location.blob_id, blob_key)
        encoder = ArchiveEncoder(sql.COLUMNS)
        content = self._content(request, read, encoder)
        ledger, target = self.sealing.offload.ledger, (location, cipher, storage_class)
        expected = read.thread.hot_bytes + ROW_BYTES * sum(read.thread.counts.values())
        written = await write_object(ledger, self.writer, request.scope, target, content, bytes_expected=expected)
        return ArchiveRecord(bytes(blob_key.borrow()), written.size_bytes, encoder.digest), written.object_bytes

    async def _content(self, request: _Request, read: _Read, encoder: ArchiveEncoder) -> AsyncGenerator[bytes, None]:
        yield encoder.header(read.thread.counts)
        for table, count in read.thread.counts.items():
            left = count
            async for page in self._pages(request, table, read.pages[table]):
                left -= len(page)
                if left < 0:
                    raise ThreadActive
                yield encoder.rows(table, page)
            if left:
                raise ThreadActive
        yield encoder.end()

    async def _pages(self, request: _Request, table: str, first: list[StoredRow]) -> AsyncIterator[list[StoredRow]]:
        """The rows of a table, a page in each snapshot: no transaction is open while the object store takes them."""
        page = first
        while page:
            yield page
            if len(page) < PAGE_ROWS:
                return
            after = tuple(page[-1][name] for name in sql.ORDER[table])
            async with self.sealing.unit_of_work.snapshot(request.scope) as transaction:
                page = await _page(transaction, request.thread_id, table, after)

    async def _checked(
        self, request: _Request, sealer: Sealer, read: _Read, blob_id: UUID, record: ArchiveRecord
    ) -> ArchiveCheck:
        """Read the object back and compare it with the thread's seals.

        Raises:
            ThreadActive: It does not match, because the thread was written to while its pages were read.
            IntegrityFailure: It does not match.
        """
        try:
            check = ArchiveCheck(sealer, request.thread_id, read.thread, read.heads)
            async with aclosing(self.objects.stored(request.scope, sealer, blob_id, record)) as pages:
                async for table, page in pages:
                    await check.take(table, page)
            check.end()
        except IntegrityFailure:
            async with self.sealing.unit_of_work.snapshot(request.scope) as transaction:
                now = await transaction.fetch_one(sql.ACTIVITY, thread_id=request.thread_id)
            if now is None or (now.tier, now.activity, now.cold) != ("hot", read.thread.activity, read.thread.cold):
                raise ThreadActive from None
            raise
        return check

    # --- the flip --------------------------------------------------------------------------------------------------

    async def _flip(
        self,
        request: _Request,
        sealer: Sealer,
        stub: Stub,
        record: ArchiveRecord,
        expected: tuple[bytes | None, Mapping[str, int]],
    ) -> None:
        """Turn the tier; ``expected`` are the thread's cold sums, and how many rows of each table it has."""
        scope, thread_id, (cold, counts) = request.scope, request.thread_id, expected
        async with self.sealing.unit_of_work.begin(scope) as transaction:
            locked = await transaction.fetch_one(sql.LOCK, thread_id=thread_id)
            if locked is None or (locked.tier, locked.activity, locked.cold) != ("hot", stub.activity, cold):
                raise ThreadActive
            if request.guard is not None:
                await request.guard(transaction)
            await self.sealing.check_keys_in(transaction, scope, sealer)
            held = await transaction.fetch_all(sql.HOLD_KEY_VERSIONS, key_versions=stub.key_versions)
            if len(held) != len(stub.key_versions):
                # Re-sealed while it was read: the rows of now need none of the versions that are being given up.
                raise LostRaceError
            settlement = Settlement(stub.blob_id, stub.size_bytes, BlobPointer(record.blob_key, record.content_bytes))
            await self.sealing.offload.ledger.settle(transaction, sealer, [settlement], thread_id)
            await transaction.run(sql.ADD_STUB, **msgspec.structs.asdict(stub))
            for table, statement in sql.REMOVE.items():
                if await transaction.run(statement, thread_id=thread_id) != counts[table]:
                    raise ThreadActive
            await transaction.run(sql.INTO_ARCHIVE, thread_id=thread_id)
            await self.audit.append(
                transaction,
                scope.tenant_id,
                request.actor,
                "thread.archive",
                audit_target(scope, thread_id),
                told(stub),
            )
            await self.sealing.emitting.of_thread(transaction, scope, "thread.archived", OfThread(thread_id))


async def _page(transaction: Transaction, thread_id: str, table: str, after: Sequence[object]) -> list[StoredRow]:
    """A page of a table's rows, in the order of their primary key."""
    places = {f"after_{name}": each for name, each in zip(sql.ORDER[table], after, strict=True)}
    rows = await transaction.fetch_all(sql.PAGE[table], thread_id=thread_id, **places, limit=PAGE_ROWS)
    return [msgspec.structs.asdict(row) for row in rows]


def _check_class(storage_class: str | None) -> None:
    if storage_class is not None and storage_class not in STORAGE_CLASSES:
        raise InvalidState(f"there is no storage class {storage_class!r}", "/storage_class")
