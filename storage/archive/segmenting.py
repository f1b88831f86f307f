"""Moving the old part of a thread that stays hot into segments, one at a time (docs/formats/segment.md).

1. The thread is planned as for a removal (`storage.threads.plans`): what may go is what thinning would remove, so that
   what stays is whole by itself. Candidates are taken in the order of their ids, in ranges that no segment has.
2. An intent is committed, the rows are written as one sealed object with the pieces that they name and no earlier
   segment of the volume has, and read back. What was read back is compared with the plan.
3. One transaction, **the flip**: what is still as it was read is removed, stub and list say where it is; then the
   thread is locked, the plan learns what came since, what was removed must still be free to go, and the cold sums
   count it. Seals do not change. A thread that is saved to all the time does not keep it from finishing, because it
   compares no `activity`.
4. Pieces that nothing hot names any more are collected as after a removal.

A namespace of which nothing has to stay leaves whole (`storage.threads.thinning.may_leave_whole`): the flip that takes
the last of its checkpoints, which is its head, takes the head's row, too, and the list keeps it.

Rows go before the thread is locked, because removing a thousand takes longer than all the rest, and whoever saves
waits for that lock. Elsewhere the thread is locked first; so who holds its lock may wait for those rows, while the flip
waits for the lock. Then the flip gives way (`WAIT_BRIEFLY`), and is made again in the order of everybody else.

Whoever dies in between leaves a whole thread, and an object that the sweeper removes. Which checkpoints are old is not
decided here, nor whether somebody may do this; `storage.archive.bringing_back` is the way back.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from crypto import Sealer
from crypto.blob import object_bytes
from crypto.envelope import peek_header
from storage.access.completeness import open_own_head
from storage.access.sealing import Sealing
from storage.administration.audit import Audit
from storage.archive.bringing_back import BringingBack
from storage.archive.check import ArchiveContents
from storage.archive.choosing import SegmentBounds, Volume, runs_of, stuck_in
from storage.archive.drafting import Draft, drafted, repeated_bytes
from storage.archive.stubs import audit_target, set_cold, told
from storage.archive.writing import encoded, freeze, write_object
from storage.blobs.keyspace import BlobLocation
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import (
    ArchiveUnavailable,
    CommitUnknown,
    IntegrityFailure,
    RowQuotaExceeded,
    ThreadArchived,
    ThreadNotFound,
    Unavailable,
    UploadExpired,
    UploadNotFound,
)
from storage.format.chain import LiveSet, namespace_mac
from storage.format.cold.archive import (
    CHECKPOINTS,
    CHUNKS,
    PENDING_WRITES,
    ArchiveEncoder,
    ArchiveRecord,
    Stub,
)
from storage.format.cold.segment import (
    ColdSums,
    Directory,
    ListedCheckpoint,
    ListedHead,
    MadeCheckpoint,
    SegmentList,
)
from storage.format.pieces import unpack_ids
from storage.format.pointer import BlobPointer
from storage.ledger.ledger import NewBlob, Settlement, new_blob_id
from storage.ledger.streams import BlobWriter
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.threads import archives as sql
from storage.statements.threads import pruning as pruning_sql
from storage.statements.threads.pruning import GarbageRow
from storage.statements.threads.threads import HeadRow
from storage.threads.plans import (
    Gone,
    Guard,
    LockedThread,
    Plan,
    Plans,
    Target,
    WrittenMeanwhile,
    columns_of,
    doomed_of,
    garbage_of,
    in_rounds,
    written_since,
)
from storage.threads.thinning import CheckpointRef, Entries, Leaving, StaleError, ThinningRule, lines, may_leave_whole
from storage.tiers.objects import ArchiveObjects
from storage.tiers.segments import Lists, Segments, open_directory, open_segments


@dataclass(slots=True)
class Moved:
    """What was moved into segments.

    Attributes:
        segments: The number of segments that were made.
        checkpoints: The number of checkpoints in them.
        pending_writes: The number of their pending writes.
        hot_bytes: The lengths of the envelopes that moved; pieces that hot rows name, too, are among them.
        size_bytes: The sizes of the objects.
    """

    segments: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    hot_bytes: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Request(Target):
    """One thread of which an old part is to move.

    ``moved`` outlives the attempts.
    """

    rule: ThinningRule = field(default_factory=ThinningRule)
    actor: str = ""
    storage_class: str = ""
    moved: Moved = field(default_factory=Moved)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment whose object is there, and all that the flip stores of it, made before it begins.

    Attributes:
        refs: Its checkpoints.
        stub: Its stub.
        listed: Its list, without heads.
        record: What opens its object.
        sealed: The list, as it is stored.
        sums: The thread's cold sums with it.
        writes: What the thread's seal said of pending writes before its rows were taken.
    """

    refs: list[CheckpointRef]
    stub: Stub
    listed: SegmentList
    record: ArchiveRecord
    sealed: bytes
    sums: ColdSums
    writes: LiveSet


class _Lines(msgspec.Struct, frozen=True):
    """What the checkpoints of a thread are rebuilt from, as its plan was read.

    Attributes:
        entries: The checkpoints in the database, by namespace.
        segments: Where the others are.
    """

    entries: Mapping[str, Entries]
    segments: Segments

    def rebuilt_from(self, refs: Sequence[CheckpointRef]) -> list[str]:
        """What these, in the order of their ids, are rebuilt from; see `SegmentList.rebuilt_from`.

        What a line goes on to in a segment may be rebuilt from anything before it: where that ends is not known here.
        """
        found: set[str] = set()
        for name, ids in _by_name(iter(refs)).items():
            entries = self.entries[name]
            here, beyond = lines(entries, (entries[each] for each in ids))
            cold = {each for each in beyond if self.segments.around(each) is not None}
            found |= here | cold | ({""} if cold else set())
        apart = sorted(each for each in found if not refs[0][1] <= each <= refs[-1][1])
        return [apart[0], apart[-1]] if apart else []


class Segmenting:
    """Moves checkpoints into segments."""

    def __init__(
        self,
        sealing: Sealing,
        objects: ArchiveObjects,
        writer: BlobWriter | None,
        audit: Audit,
        bringing_back: BringingBack,
        *,
        bounds: SegmentBounds | None = None,
    ) -> None:
        """Use the object store of archives; ``writer`` None: there is none."""
        self._sealing = sealing
        self._objects = objects
        self._writer = writer
        self._audit = audit
        self._plans = Plans(sealing)
        self._bounds = bounds or SegmentBounds()
        self._bringing_back = bringing_back

    async def move(
        self,
        scope: Scope,
        thread_id: str,
        rule: ThinningRule,
        *,
        actor: str,
        storage_class: str | None = None,
        guard: Guard | None = None,
        share: ClientShare | None = None,
    ) -> Moved:
        """Move what a rule does not keep into segments; repeating it goes on, and is a no-op where nothing is old.

        ``guard`` is asked under the thread's lock; what it raises stops the work, and what was moved stays moved.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: It is archived as a whole.
            FeatureOff: A process of an older build may run.
            ArchiveUnavailable: This deployment has no bucket of archives.
            ClientShareRequired, ClientShareWrong: The thread needs a share, or another one.
            QuotaExceeded: The tenant has no room for an object.
            IntegrityFailure: The thread is not what its seals say; nothing more is moved.
            BlobUnavailable: The object store does not answer.
            Unavailable: Others were at work on the same checkpoints, again and again.
        """
        if self._writer is None:
            raise ArchiveUnavailable
        await self.require_feature()
        wanted = storage_class or self._writer.store.storage_class
        request = _Request(
            scope, thread_id, guard, restores=False, touches=False, whole=False, removes=False,
            rule=rule, actor=actor, storage_class=wanted,
        )  # fmt: skip
        heads = await self._takes_heads()
        run = _Moving(self._sealing, self._objects, self._writer, self._audit, self._plans, self._bounds, heads)

        async def work(sealer: Sealer, *, anew: bool) -> list[int]:
            back: list[int] = []

            async def attempt() -> None:
                back[:] = await run.attempt(request, sealer, anew=anew)

            try:
                await in_rounds(attempt)
            except Gone:
                raise ThreadNotFound from None
            return back

        back = await self._sealing.run(scope, lambda sealer: work(sealer, anew=True), ThreadNotFound(), share)
        if back:
            # Of a frozen one, and of a tenant that may store no more rows, it stays as it is.
            with suppress(ThreadArchived, RowQuotaExceeded):
                for number in back:
                    await self._bringing_back.bring_back(scope, thread_id, number, actor=actor)
            await self._sealing.run(scope, lambda sealer: work(sealer, anew=False), ThreadNotFound(), share)
        return request.moved

    async def is_on(self) -> bool:
        """Whether segments may be written."""
        await self._sealing.control.ready()
        return self._sealing.control.features.is_on(SEGMENTS)

    async def _takes_heads(self) -> bool:
        """Whether namespaces may leave with their heads; before that is switched on, their heads stay."""
        await self._sealing.control.ready()
        return self._sealing.control.features.is_on(COLD_NAMESPACES)

    async def require_feature(self) -> None:
        """Return if segments may be written.

        Raises:
            FeatureOff: A process of an older build may run.
        """
        await self._sealing.control.ready()
        await self._sealing.control.features.require(SEGMENTS, "checkpoints move into segments")

    async def preview(
        self, scope: Scope, thread_id: str, rule: ThinningRule, *, share: ClientShare | None = None
    ) -> Moved:
        """What `move` would move now, without sizes, nor what comes back first and moves again. Reads only.

        Raises:
            ThreadNotFound, ThreadArchived, ClientShareRequired, ClientShareWrong, IntegrityFailure: As `move`.
        """
        target = Target(scope, thread_id, None, restores=False, touches=False, whole=False, removes=False)

        async def work(sealer: Sealer) -> Moved:
            async with self._sealing.unit_of_work.snapshot(scope) as transaction:
                plan = await self._plans.read(transaction, target, sealer)
                if plan is None:
                    raise ThreadNotFound
                segments = await open_segments(transaction, plan.sealer, thread_id, plan.sums)
            choice = await asyncio.to_thread(_choice, plan, rule, segments, heads=await self._takes_heads())
            plan.doomed = await asyncio.to_thread(doomed_of, plan, choice)
            runs = list(runs_of(plan.doomed, segments))
            refs = [ref for run in runs for ref in run]
            writes = sum(len(plan.writes.get(ref, ())) for ref in refs)
            return Moved(len(runs), len(refs), writes)

        return await self._sealing.run(scope, work, ThreadNotFound(), share)


@dataclass(frozen=True, slots=True)
class _Moving:
    """Moves the old part of one thread; see the module."""

    sealing: Sealing
    objects: ArchiveObjects
    writer: BlobWriter
    audit: Audit
    plans: Plans
    bounds: SegmentBounds
    takes_heads: bool

    async def attempt(self, request: _Request, sealer: Sealer, *, anew: bool) -> list[int]:
        """Move what may go by one plan.

        Returns:
            The segments that have to come back first, if some are made ``anew``; then nothing moved.

        Raises:
            StaleError: The plan does not describe the thread any more; what was moved stays moved.
        """
        scope, thread_id = request.scope, request.thread_id
        async with self.sealing.unit_of_work.snapshot(scope) as transaction:
            plan = await self.plans.read(transaction, request, sealer)
            if plan is None:
                raise ThreadNotFound
            segments = await open_segments(transaction, plan.sealer, thread_id, plan.sums)
            if anew and (
                back := await asyncio.to_thread(
                    _coming_back, plan, request.rule, segments, self.bounds, heads=self.takes_heads
                )
            ):
                return back
            volume = await _volume(transaction, plan.sealer, segments)
            choice = await asyncio.to_thread(_choice, plan, request.rule, segments, heads=self.takes_heads)
            plan.doomed = await asyncio.to_thread(doomed_of, plan, choice)
            runs = list(runs_of(plan.doomed, segments))
            plan.doomed = _by_name(ref for run in runs for ref in run)
            # What moves first is still what the next segments are rebuilt from.
            known = _Lines({name: dict(each.entries) for name, each in plan.thread.items()}, segments)
            names, ids = columns_of([ref for run in runs for ref in run])
            garbage: list[GarbageRow] = []
            if runs:
                garbage = await garbage_of(transaction, thread_id, names, ids)
        number = max((each.segment for each in segments.all), default=0)
        for run in runs:
            left = run
            while left:
                number += 1
                moved, volume = await self._move(request, plan, (choice, known), left, (number, volume))
                left = left[moved:]
                await asyncio.sleep(0)
        await self.plans.collect(request, plan, self.plans.chunk_batches(garbage))
        return []

    async def _move(
        self, request: _Request, plan: Plan, chosen: tuple[Leaving, _Lines], run: Sequence[CheckpointRef],
        place: tuple[int, Volume],
    ) -> tuple[int, Volume]:  # fmt: skip
        """Move as many of these as one segment has; returns how many, and the volume that it is in."""
        (choice, known), (number, volume), bounds = chosen, place, self.bounds
        async with self.sealing.unit_of_work.snapshot(request.scope) as transaction:
            draft = await drafted(transaction, request.thread_id, plan, run, volume, bounds.checkpoints_max)
            if bounds.is_full(volume) and bounds.may_repeat(
                volume, await repeated_bytes(transaction, request.thread_id, draft, volume)
            ):
                volume = Volume()
                draft = await drafted(transaction, request.thread_id, plan, run, volume, bounds.checkpoints_max)
            elif volume.number and not bounds.has_room(volume, draft.memory_bytes):
                apart = await drafted(transaction, request.thread_id, plan, run, Volume(), bounds.checkpoints_max)
                if bounds.repays(volume, draft.memory_bytes, apart.memory_bytes):
                    volume, draft = Volume(), apart
        scope = request.scope
        new = NewBlob(new_blob_id(), "archive", object_bytes(draft.content_bytes), place="archive")
        now = self.sealing.clock.now()
        async with self.sealing.offload.ledger.reserving(scope, plan.sealer.without_share, new, now):
            stub, listed, record = await self._written(request, plan, draft, (number, volume), new, now)
            await self._reserve_exactly(scope, new, stub.size_bytes)
            listed = msgspec.structs.replace(listed, rebuilt_from=known.rebuilt_from(draft.refs))
            await self._flip(request, plan, choice, draft.refs, (stub, listed, record))
        moved = request.moved
        moved.segments += 1
        moved.checkpoints += stub.checkpoints
        moved.pending_writes += stub.pending_writes
        moved.hot_bytes += stub.hot_bytes
        moved.size_bytes += stub.size_bytes
        return len(draft.refs), volume.with_segment(stub, frozenset(unpack_ids(listed.piece_ids)))

    async def _reserve_exactly(self, scope: Scope, new: NewBlob, size_bytes: int) -> None:
        """Reserve what an object takes, so that settling it does not touch the tenant's sum, for which others wait.

        Raises:
            UploadExpired: The sweeper was at it.
        """
        try:
            await self.sealing.offload.ledger.renew(scope, new.blob_id, size_bytes - new.reserved_bytes)
        except UploadNotFound:
            raise UploadExpired from None

    # --- reading and writing ---------------------------------------------------------------------------------------

    async def _written(
        self, request: _Request, plan: Plan, draft: Draft, place: tuple[int, Volume], new: NewBlob, now: datetime
    ) -> tuple[Stub, SegmentList, ArchiveRecord]:
        """Write the object, read it back, and say what is in it."""
        scope, sealer, (number, volume) = request.scope, plan.sealer, place
        location = BlobLocation(scope.tenant_id, new.blob_id, "archive")
        encoder = ArchiveEncoder(sql.COLUMNS)
        key = sealer.new_blob_key()
        wanted = request.storage_class
        cipher = sealer.without_share.blob_cipher(new.blob_id, key)
        written = await write_object(
            self.sealing.offload.ledger, self.writer, scope, (location, cipher, wanted),
            encoded(draft.rows, encoder), bytes_expected=new.reserved_bytes,
        )  # fmt: skip
        record = ArchiveRecord(bytes(key.borrow()), written.size_bytes, encoder.digest)
        contents = ArchiveContents(sealer, request.thread_id, opens=True)
        async for table, page in self.objects.stored(scope, sealer, new.blob_id, record):
            await contents.take(table, page)
        listed = _list(plan, draft, contents)
        self._compare(contents, listed, volume)
        await freeze(self.writer, location, wanted)
        version = sealer.active_key_version
        # A head that leaves may be sealed under another version than its checkpoint.
        heads = {
            plan.thread[name].key_version
            for name, each in draft.refs
            if self.takes_heads and plan.thread[name].head_id == each
        }
        stub = Stub(
            thread_id=request.thread_id,
            blob_id=new.blob_id,
            activity=0,
            key_versions=sorted(contents.key_versions | heads | {version}),
            client_share=sealer.shared,
            checkpoints=contents.counts[CHECKPOINTS],
            pending_writes=contents.counts[PENDING_WRITES],
            chunks=contents.counts[CHUNKS],
            hot_bytes=contents.hot_bytes,
            size_bytes=written.object_bytes,
            run_ids=contents.run_ids,
            state_schemas=contents.every_schema,
            agents=contents.agents,
            named_ids=contents.named_ids,
            storage_class=wanted,
            created_at=now,
            key_version=version,
            sealed=b"",
            segment=number,
            volume=volume.number or number,
            first_id=draft.refs[0][1],
            last_id=draft.refs[-1][1],
        )
        return msgspec.structs.replace(stub, sealed=stub.sealing(sealer, record)), listed, record

    def _compare(self, contents: ArchiveContents, listed: SegmentList, volume: Volume) -> None:
        """Compare what was read back with what was planned.

        Raises:
            StaleError: It was written to, or removed, since the plan: the next plan tells whether that is damage.
            IntegrityFailure: A piece is missing.
        """
        if (contents.live, contents.writes.total) != (listed.live_sets(), listed.writes):
            raise StaleError
        if not contents.named <= contents.present | volume.piece_ids:
            raise IntegrityFailure("a stored piece is missing")

    # --- the flip --------------------------------------------------------------------------------------------------

    async def _flip(
        self, request: _Request, plan: Plan, choice: Leaving, refs: list[CheckpointRef],
        written: tuple[Stub, SegmentList, ArchiveRecord],
    ) -> None:  # fmt: skip
        await self.sealing.control.ready()
        writes = await self.plans.catch_up(request, plan)
        stub, listed, record = written
        sealed, sums = await asyncio.to_thread(_counted, plan, stub, listed)
        segment = _Segment(refs, stub, listed, record, sealed, sums, writes)
        try:
            await self._flip_once(request, plan, choice, segment, locks_first=False)
        except CommitUnknown:
            raise
        except Unavailable:
            await self._flip_once(request, plan, choice, segment, locks_first=True)

    async def _flip_once(
        self, request: _Request, plan: Plan, choice: Leaving, segment: _Segment, *, locks_first: bool
    ) -> None:
        async with self.sealing.unit_of_work.begin(request.scope) as transaction:
            if locks_first:
                locked = await self.plans.lock(transaction, request, plan)
                await self._move_rows(transaction, request, plan, segment)
                locked.taken = segment.refs
            else:
                await transaction.run(sql.WAIT_BRIEFLY)
                await self._move_rows(transaction, request, plan, segment)
                locked = await self.plans.lock(transaction, request, plan, segment.refs)
            spared = self.plans.spared(locked, choice)
            if not spared.isdisjoint(segment.refs):
                raise StaleError
            if locked.thread.writes != segment.writes and await locked.writes_at(segment.refs):
                raise StaleError  # what was written to after its rows were taken
            heads = _leaving(locked, choice, segment.refs, segment.stub)
            cold, sums = await self._take_heads(locked, heads, segment)
            await self.audit.append(
                transaction, request.scope.tenant_id, request.actor, "segment.archive",
                audit_target(request.scope, request.thread_id), told(segment.stub),
            )  # fmt: skip
            locked.ended = [each.namespace for each in heads]
        locked.keep_plan_true()
        if not spared:  # otherwise what came keeps something of a later segment
            plan.fresh.clear()
        plan.cold, plan.sums = cold, sums

    async def _move_rows(self, transaction: Transaction, request: _Request, plan: Plan, segment: _Segment) -> None:
        """Exchange the rows that are in a segment for what says where it is; neither seals nor sums change.

        Raises:
            StaleError: Somebody wrote to one, took one, or made a segment meanwhile.
        """
        stub, record = segment.stub, segment.record
        held = await transaction.fetch_all(sql.HOLD_KEY_VERSIONS, key_versions=stub.key_versions)
        if len(held) != len(stub.key_versions):
            raise StaleError  # re-sealed while it was read
        await self._remove(transaction, plan, segment)
        settlement = Settlement(stub.blob_id, stub.size_bytes, BlobPointer(record.blob_key, record.content_bytes))
        ledger = self.sealing.offload.ledger
        await ledger.settle(transaction, plan.sealer.without_share, [settlement], request.thread_id)
        if not await transaction.run(sql.ADD_SEGMENT, **msgspec.structs.asdict(stub), listed=segment.sealed):
            raise StaleError

    async def _remove(self, transaction: Transaction, plan: Plan, segment: _Segment) -> None:
        names, ids = columns_of(segment.refs)
        where = {"thread_id": segment.stub.thread_id, "namespaces": names, "checkpoint_ids": ids}
        found: dict[CheckpointRef, list[Any]] = {}
        for write in await transaction.fetch_all(pruning_sql.DELETE_WRITES_OF, **where):
            found.setdefault((write.namespace, write.checkpoint_id), []).append(write)
        try:
            self.plans.compare_with_plan(plan, segment.refs, found)
        except WrittenMeanwhile:
            raise StaleError from None
        if len(await transaction.fetch_all(pruning_sql.DELETE_CHECKPOINTS, **where)) != len(segment.refs):
            raise StaleError

    async def _take_heads(
        self, locked: LockedThread, heads: Sequence[HeadRow], segment: _Segment
    ) -> tuple[bytes | None, ColdSums]:
        """Take the heads that leave with the segment, and store the cold sums; returns those, sealed and opened."""
        transaction, plan, stub, sums = locked.transaction, locked.plan, segment.stub, segment.sums
        listed, directory = await self._remove_heads(locked, heads, stub, segment.listed)
        if heads:
            sealed, sums = _counted(plan, stub, listed)
            await transaction.run(sql.SET_LISTED, thread_id=stub.thread_id, segment=stub.segment, listed=sealed)
        return await set_cold(transaction, plan.sealer, stub.thread_id, locked.created_at, sums, directory)

    async def _remove_heads(
        self, locked: LockedThread, heads: Sequence[HeadRow], stub: Stub, listed: SegmentList
    ) -> tuple[SegmentList, Directory | None]:
        """Take heads out of the database that leave with the last of their checkpoints.

        Returns:
            The list with them, and the directory, or None if there are none.

        Raises:
            StaleError: Somebody wrote to one of their namespaces since the plan.
        """
        if not heads:
            return listed, None
        transaction, plan = locked.transaction, locked.plan
        names = [each.namespace for each in heads]
        if await transaction.fetch_all(sql.WITH_WRITES, thread_id=locked.thread_id, namespaces=names):
            raise StaleError
        taken = await transaction.fetch_all(
            sql.TAKE_HEADS,
            thread_id=locked.thread_id,
            namespaces=names,
            head_ids=[each.head_id for each in heads],
            sequences=[each.sequence for each in heads],
            seals=[each.seal for each in heads],
        )
        if len(taken) != len(heads):
            raise StaleError
        rows = [
            ListedHead.of(
                each.namespace,
                each.head_id,
                each.sequence,
                each.seal,
                namespace_mac(plan.sealer, each.namespace),
                plan.sums.of(each.namespace),
            )
            for each in heads
        ]
        listed = msgspec.structs.replace(listed, heads=rows)
        directory = await open_directory(transaction, plan.sealer, locked.thread_id, plan.sums)
        return listed, directory.with_segment(stub, listed)


def _choice(plan: Plan, rule: ThinningRule, segments: Segments | None, *, heads: bool) -> Leaving:
    """What may go; ``heads``: namespaces may leave whole. ``segments`` None: as if none were in the way."""
    if not heads:
        return Leaving(rule)
    stays = {name for name, each in plan.writes if name not in plan.thread or each not in plan.thread[name].entries}
    if segments is not None:
        stays |= {name for name, known in plan.thread.items() if _is_around(segments, known.entries)}
    whole = may_leave_whole(plan.thread, rule, written_since(plan, rule.writes_since))
    return Leaving(rule, whole - stays)


def _is_around(segments: Segments, checkpoint_ids: Iterable[str]) -> bool:
    """Whether one of these is in the range of a segment."""
    return any(segments.around(each) is not None for each in checkpoint_ids)


def _coming_back(
    plan: Plan, rule: ThinningRule, segments: Segments, bounds: SegmentBounds, *, heads: bool
) -> list[int]:
    """The segments that come back first, because too much of what may go is in their ranges."""
    if not any(_is_around(segments, known.entries) for known in plan.thread.values()):
        return []
    free = doomed_of(plan, _choice(plan, rule, None, heads=heads))
    return bounds.coming_back(stuck_in(free, segments))


def _leaving(locked: LockedThread, choice: Leaving, refs: Collection[CheckpointRef], stub: Stub) -> list[HeadRow]:
    """The heads that leave with these checkpoints, as they are under the lock.

    Raises:
        StaleError: One would leave without something of its namespace, or the thread's newest checkpoint would.
    """
    plan, here = locked.plan, _by_name(iter(refs))
    heads = [row for name, row in locked.heads.items() if row.head_id in here.get(name, ())]
    left = {row.head_id for name, row in locked.heads.items() if row.head_id not in here.get(name, ())}
    for row in heads:
        known = plan.thread[row.namespace]
        if row.namespace not in choice.whole or known.entries.keys() != here[row.namespace]:
            raise StaleError
        if row.head_id >= max(left, default=""):
            raise StaleError
        if peek_header(row.seal).key_version not in stub.key_versions:
            raise StaleError  # re-sealed since the plan
        if open_own_head(plan.sealer, locked.thread_id, locked.thread, row).live != known.live:
            raise StaleError
    return heads


def _by_name(refs: Iterator[CheckpointRef]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, each in refs:
        found.setdefault(name, set()).add(each)
    return found


async def _volume(transaction: Transaction, sealer: Sealer, segments: Segments) -> Volume:
    """The volume that the next segment may belong to."""
    volume = Volume()
    newest = max(segments.all, key=lambda each: each.segment, default=None)
    if newest is None:
        return volume
    own = segments.of_volume(newest)
    if own[0].segment != newest.volume:
        return volume  # its first segment was brought back
    lists = Lists(transaction, sealer)
    for each in own:
        volume = volume.with_segment(each, await lists.piece_ids(each))
    return volume


def _list(plan: Plan, draft: Draft, contents: ArchiveContents) -> SegmentList:
    checkpoints = [
        ListedCheckpoint.of(
            name, each, plan.thread[name].entries[each].member, plan.sum_of(plan.writes.get((name, each), ()))
        )
        for name, each in draft.refs
    ]
    entries = [plan.thread[name].entries[each] for name, each in draft.refs]
    made = [MadeCheckpoint(each.parent_id, each.step, each.created_at) for each in entries]
    return SegmentList(checkpoints, b"".join(sorted(contents.present)), made=made)


def _counted(plan: Plan, stub: Stub, listed: SegmentList) -> tuple[bytes, ColdSums]:
    """The list of a segment as it is stored, and the thread's cold sums with it."""
    return listed.seal(plan.sealer, stub), plan.sums.with_segment(plan.sealer.without_share, stub, listed)
