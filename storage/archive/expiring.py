"""Removing what has been in segments for as long as it may be kept there: whole volumes, without reading an object.

A volume goes as a whole, when what moved into it last is old enough and nothing that stays needs a checkpoint of it:
`storage.archive.volumes_that_go` has the rule.

The plan is read, compared with the seals and chosen from without a lock. One transaction for each volume then locks the
thread, refuses what is held, learns what came since, takes the stubs and the cold sums' part away, and leaves all seals
true: heads count less and their sequence goes on, the thread's pending writes are fewer, and namespaces that were cold
with their heads in the volume are gone, as after a removal. A head in another segment goes on likewise, in its list.

A process that dies in between leaves a whole thread, and doing it again goes on. Objects lose their references, and the
sweeper removes them after the backup window. A thread under a client-held share takes the share, and an archived one
goes as a whole. How old is old enough is not decided here, nor whether the caller may do this.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from crypto import Sealer
from storage.access.completeness import open_own_head
from storage.access.sealing import Sealing
from storage.administration.audit import Audit
from storage.archive.stubs import audit_target, set_cold, stub_of
from storage.archive.volumes_that_go import Kept, volumes_that_go
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, LostRaceError, ThreadNotFound
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal
from storage.format.cold.segment import ColdSums, Directory, ListedHead, SegmentList
from storage.format.record import seal_head, seal_thread
from storage.format.token import ThreadToken
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.threads import archives as sql
from storage.statements.threads import pruning as pruning_sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import SegmentRow
from storage.statements.threads.threads import HeadRow
from storage.threads.plans import Gone, Guard, LockedThread, Plan, Plans, Target, in_rounds
from storage.threads.thinning import StaleError, lines
from storage.tiers.segments import Lists, Segments, open_directory, open_list, open_segments

_LISTED_BYTES: Final = 200  # what a listed checkpoint takes, about
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Expired:
    """What was removed with segments.

    Attributes:
        segments: The number of segments.
        checkpoints: The number of checkpoints in them.
        pending_writes: The number of their pending writes.
        size_bytes: The sizes of the objects.
    """

    segments: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Request(Target):
    """One thread of which old volumes are to go.

    ``expired`` outlives the attempts.
    """

    before: datetime = _BEGINNING
    actor: str = ""
    expired: Expired = field(default_factory=Expired)


class Expiring:
    """Removes volumes that have been there for long enough."""

    def __init__(self, sealing: Sealing, audit: Audit) -> None:
        self._sealing = sealing
        self._audit = audit
        self._plans = Plans(sealing)

    async def expire(
        self,
        scope: Scope,
        thread_id: str,
        before: datetime,
        *,
        actor: str,
        guard: Guard | None = None,
        share: ClientShare | None = None,
    ) -> Expired:
        """Remove volumes that nothing needs, whose segments were all made before a moment of the database's clock.

        ``guard`` is asked under the thread's lock; what it raises stops the work, and what went is gone.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: It is archived as a whole.
            LegalHold: It is held; so are the volumes that were to go and are still there.
            ClientShareRequired, ClientShareWrong: The thread needs a share, or another one.
            IntegrityFailure: The thread is not what its seals say; nothing more is removed.
            Unavailable: Others were at work on it, again and again.
        """
        request = _Request(
            scope, thread_id, guard, restores=False, touches=False, whole=False, before=before, actor=actor
        )

        async def work(sealer: Sealer) -> Expired:
            try:
                await in_rounds(lambda: self._attempt(request, sealer))
            except Gone:
                raise ThreadNotFound from None
            return request.expired

        return await self._sealing.run(scope, work, ThreadNotFound(), share)

    async def preview(
        self, scope: Scope, thread_id: str, before: datetime, *, share: ClientShare | None = None
    ) -> Expired:
        """What `expire` would remove now. Reads only.

        Raises:
            ThreadNotFound, ThreadArchived, ClientShareRequired, ClientShareWrong, IntegrityFailure: As `expire`.
        """
        target = _Request(scope, thread_id, None, restores=False, touches=False, whole=False, before=before)

        async def work(sealer: Sealer) -> Expired:
            found = Expired()
            _, _, groups = await self._read(target, sealer)
            for each in (each for group in groups for each in group):
                _count(found, each)
            return found

        return await self._sealing.run(scope, work, ThreadNotFound(), share)

    async def _attempt(self, request: _Request, sealer: Sealer) -> None:
        """Remove what may go by one plan.

        Raises:
            StaleError: The plan does not describe the thread any more; what was removed is gone.
        """
        plan, kept, groups = await self._read(request, sealer)
        for group in groups:
            heads = await self._remove(request, plan, kept, group)
            for namespace, head_id, head in heads:
                token = ThreadToken.of(plan.sealer.without_share, namespace, head_id, head)
                self._sealing.acknowledge(request.scope, plan.sealer, request.thread_id, token)
            gone = {each.segment.segment for each in group}
            kept = [each for each in kept if each.segment.segment not in gone]
            for each in group:
                _count(request.expired, each)
            await asyncio.sleep(0)

    # --- choosing --------------------------------------------------------------------------------------------------

    async def _read(self, request: _Request, sealer: Sealer) -> tuple[Plan, list[Kept], list[list[Kept]]]:
        """A thread's plan, its segments, and those that go."""
        async with self._sealing.unit_of_work.snapshot(request.scope) as transaction:
            plan = await self._plans.read(transaction, request, sealer)
            if plan is None:
                raise ThreadNotFound
            segments = await open_segments(transaction, plan.sealer, request.thread_id, plan.sums)
            kept = await _kept(transaction, plan, segments)
            beyond = await asyncio.to_thread(_beyond, plan, segments)
            lists = Lists(transaction, plan.sealer)
            needs = [
                each
                for name, each in beyond
                if (at := segments.around(each)) is not None and (name, each) in await lists.checkpoints(at)
            ]
        return plan, kept, volumes_that_go(kept, request.before, needs)

    # --- removing --------------------------------------------------------------------------------------------------

    async def _remove(
        self, request: _Request, plan: Plan, kept: Sequence[Kept], group: Sequence[Kept]
    ) -> list[tuple[str, str, HeadSeal]]:
        """Remove segments; returns the heads that went on for it.

        Raises:
            StaleError: The plan does not describe the thread any more; nothing was removed.
        """
        going = {each.segment.segment: each for each in group}
        strays = frozenset().union(*(each.strays for each in group))
        owners = [each.segment for each in kept if each.segment.segment not in going and strays & each.parted]
        async with self._sealing.unit_of_work.snapshot(request.scope) as transaction:
            row = await transaction.fetch_one(threads_sql.READ, thread_id=request.thread_id)
            if row is None or row.cold != plan.cold:
                raise StaleError
            lists = await _lists(transaction, plan.sealer, [*(each.segment for each in group), *owners])
        async with self._plans.locked(request, plan) as locked:
            _refuse_new_lines(plan, [each.segment for each in kept])
            change = _Change(locked, [(each.segment, lists[each.segment.segment]) for each in group])
            heads = await change.move_heads()
            heads += await change.move_cold_heads([(each, lists[each.segment]) for each in owners])
            cold, sums = await change.take_away()
            await self._sealing.offload.ledger.keep(locked.transaction, request.thread_id)
            await self._record(locked.transaction, request, group)
        locked.keep_plan_true()
        plan.fresh.clear()
        plan.cold, plan.sums = cold, sums
        return heads

    async def _record(self, transaction: Transaction, request: _Request, group: Sequence[Kept]) -> None:
        for volume in sorted({each.segment.volume for each in group}):
            own = [each for each in group if each.segment.volume == volume]
            total = Expired()
            for each in own:
                _count(total, each)
            detail: dict[str, Any] = {
                "volume": volume,
                "segments": [each.segment.segment for each in own],
                "blob_ids": [str(each.segment.blob_id) for each in own],
                "checkpoints": total.checkpoints,
                "pending_writes": total.pending_writes,
                "size_bytes": total.size_bytes,
                "moved_at": max(each.moved_at for each in own).isoformat(),
            }
            target = audit_target(request.scope, request.thread_id)
            await self._audit.append(
                transaction, request.scope.tenant_id, request.actor, "segment.expire", target, detail
            )


class _Change:
    """What one transaction does to a thread of which it takes segments away."""

    def __init__(self, locked: LockedThread, segments: Sequence[tuple[SegmentRow, SegmentList]]) -> None:
        self._locked = locked
        self._transaction = locked.transaction
        self._plan = locked.plan
        self._thread_id = locked.thread_id
        self._segments = segments
        self._sums = locked.plan.sums
        self._taken: dict[str, LiveSet] = {}
        self._writes = NO_WRITES
        self._ended: dict[str, ListedHead] = {}
        for segment, listed in segments:
            self._sums = self._sums.without_checkpoints(self._plan.sealer.without_share, segment, listed)
            self._writes = self._writes.join(listed.writes)
            self._ended |= {each.namespace: each for each in listed.heads}
            for name, live in listed.live_sets().items():
                self._taken[name] = self._taken.get(name, LiveSet()).join(live)

    async def move_heads(self) -> list[tuple[str, str, HeadSeal]]:
        """Let the heads in the database count less."""
        heads: list[tuple[str, str, HeadSeal]] = []
        for name in sorted(self._taken.keys() & self._locked.heads.keys()):
            row = self._locked.heads[name]
            head = self._less(row, self._taken[name])
            self._locked.moved[name] = (row.head_id, head)
            heads.append((name, row.head_id, head))
        if heads:
            await self._transaction.run(
                pruning_sql.MOVE_HEADS,
                thread_id=self._thread_id,
                namespaces=[name for name, _, _ in heads],
                head_ids=[head_id for _, head_id, _ in heads],
                sequences=[head.sequence for _, _, head in heads],
                seals=[seal_head(self._plan.sealer, self._thread_id, *each) for each in heads],
            )
        return heads

    async def move_cold_heads(
        self, owners: Sequence[tuple[SegmentRow, SegmentList]]
    ) -> list[tuple[str, str, HeadSeal]]:
        """Let heads in other segments count less.

        Raises:
            IntegrityFailure: There is a checkpoint whose namespace has no head.
        """
        heads: list[tuple[str, str, HeadSeal]] = []
        for segment, listed in owners:
            after: list[ListedHead] = []
            for each in listed.heads:
                taken = self._taken.get(each.namespace)
                if taken is None:
                    after.append(each)
                    continue
                row = HeadRow(each.namespace, each.head_id, each.sequence, each.seal)
                head = self._less(row, taken)
                sealed = seal_head(self._plan.sealer, self._thread_id, each.namespace, each.head_id, head)
                left = each.earlier.part(taken)
                moved = ListedHead.of(each.namespace, each.head_id, head.sequence, sealed, each.mac, left)
                self._sums = self._sums.with_head(each, moved)
                after.append(moved)
                heads.append((each.namespace, each.head_id, head))
            await self._seal_list_again(segment, msgspec.structs.replace(listed, heads=after))
        if self._taken.keys() - self._locked.heads.keys() - self._ended.keys() != {name for name, _, _ in heads}:
            raise IntegrityFailure("the namespace has checkpoints but no head")
        return heads

    async def take_away(self) -> tuple[bytes | None, ColdSums]:
        """Remove the stubs, and have the thread count less; returns its cold sums as they are stored, and opened.

        Raises:
            IntegrityFailure: What is left is not what the sums say.
        """
        locked, sealer = self._locked, self._plan.sealer
        numbers = [segment.segment for segment, _ in self._segments]
        gone = await self._transaction.fetch_all(sql.DELETE_SEGMENTS, thread_id=self._thread_id, segments=numbers)
        if len(gone) != len(numbers):
            raise LostRaceError
        thread: ThreadSeal = replace(locked.thread, writes=locked.thread.writes.part(self._writes))
        for each in self._ended.values():
            thread = thread.without_namespace(sealer, each.namespace, each.sequence)
        locked.thread, locked.written_after = thread, locked.written_after.part(self._writes)
        sealed = seal_thread(sealer, self._thread_id, locked.created_at, thread)
        await self._transaction.run(threads_sql.SEAL, thread_id=self._thread_id, seal=sealed)
        directory: Directory | None = None
        if self._ended:
            directory = await open_directory(self._transaction, sealer, self._thread_id, self._plan.sums)
            for segment, listed in self._segments:
                directory = directory.without_segment(segment, listed) if listed.heads else directory
        cold, sums = await set_cold(
            self._transaction, sealer, self._thread_id, locked.created_at, self._sums, directory
        )
        if cold is None and sums != ColdSums(self._plan.incarnation):
            raise IntegrityFailure("the lists of the thread's segments are not what its cold sums say")
        return cold, sums

    def _less(self, row: HeadRow, taken: LiveSet) -> HeadSeal:
        head = open_own_head(self._plan.sealer, self._thread_id, self._locked.thread, row)
        return HeadSeal(head.incarnation, head.sequence + 1, head.live.part(taken), head.writes)

    async def _seal_list_again(self, segment: SegmentRow, listed: SegmentList) -> None:
        """Store another list of a segment, whose stub says which key versions it takes.

        Raises:
            LostRaceError: The active key version is not the active one any more.
        """
        sealer = self._plan.sealer
        stub = await stub_of(self._transaction, segment)
        version = sealer.active_key_version
        if version not in stub.key_versions:
            if not await self._transaction.fetch_all(sql.HOLD_KEY_VERSIONS, key_versions=[version]):
                raise LostRaceError
            record = stub.record(sealer)
            stub = msgspec.structs.replace(
                stub, key_versions=sorted({*stub.key_versions, version}), key_version=version
            )
            stub = msgspec.structs.replace(stub, sealed=stub.sealing(sealer, record))
        await self._transaction.run(
            sql.RESEAL_SEGMENT,
            thread_id=self._thread_id,
            segment=stub.segment,
            key_versions=stub.key_versions,
            key_version=stub.key_version,
            sealed=stub.sealed,
            listed=listed.seal(sealer, stub),
        )


async def _kept(transaction: Transaction, plan: Plan, segments: Segments) -> list[Kept]:
    """What says of each segment of a thread whether it may go; others have their turn in between."""
    ages: Mapping[int, sql.SegmentAgeRow] = {}
    if segments.all:
        thread_id = segments.all[0].thread_id
        ages = {row.segment: row for row in await transaction.fetch_all(sql.SEGMENT_AGES, thread_id=thread_id)}
    pauses = Pauses()
    found: list[Kept] = []
    for each in segments.all:
        listed = await open_list(transaction, plan.sealer, each)
        here = {head.namespace for head in listed.heads}
        names = {checkpoint.namespace for checkpoint in listed.checkpoints}
        found.append(
            Kept(
                each,
                ages[each.segment].moved_at,
                ages[each.segment].size_bytes,
                listed.rebuilt_from,
                frozenset(head.namespace for head in listed.heads if head.earlier_count),
                frozenset(name for name in names - here if not plan.sums.of(name).count),
            )
        )
        await pauses.after(len(listed.checkpoints) * _LISTED_BYTES)
    return found


async def _lists(transaction: Transaction, sealer: Sealer, segments: Sequence[SegmentRow]) -> dict[int, SegmentList]:
    pauses = Pauses()
    found: dict[int, SegmentList] = {}
    for each in segments:
        found[each.segment] = await open_list(transaction, sealer, each)
        await pauses.after(len(found[each.segment].checkpoints) * _LISTED_BYTES)
    return found


def _beyond(plan: Plan, segments: Segments) -> list[tuple[str, str]]:
    """Where the lines of what is in the database go on in the ranges of segments, as namespaces and ids."""
    return [
        (name, each)
        for name, known in plan.thread.items()
        for each in lines(known.entries, known.entries.values())[1]
        if segments.around(each) is not None
    ]


def _refuse_new_lines(plan: Plan, segments: Sequence[SegmentRow]) -> None:
    """Return if what came since the plan is rebuilt from nothing that may be in a segment.

    Raises:
        StaleError: Something may be.
    """
    for name in {name for name, _ in plan.fresh}.intersection(plan.thread):
        fresh = [entry for at, entry in plan.fresh if at == name]
        for each in lines(plan.thread[name].entries, fresh)[1]:
            if any(segment.first_id <= each <= segment.last_id for segment in segments):
                raise StaleError


def _count(total: Expired, kept: Kept) -> None:
    total.segments += 1
    total.checkpoints += kept.segment.checkpoints
    total.pending_writes += kept.segment.pending_writes
    total.size_bytes += kept.size_bytes
