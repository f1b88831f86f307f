"""What is known of a thread that is changed in parts: planned without a lock, kept true under it.

A plan is read in a snapshot that locks nothing: every checkpoint in the database is opened, and all of it is compared
with the seals. Work goes on in short transactions that lock the thread (`Plans.locked`) and first learn what came since
the plan; the sealed live set proves that they learned of everything. A plan that does not describe the thread any more
is a `storage.threads.thinning.StaleError`: plan again.

It decides nothing: what may go is `storage.threads.thinning`'s to choose, and what is done with it belongs to the verb
that asks for the plan.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crypto import Sealer
from crypto.envelope import peek_header
from storage.access.completeness import (
    check_writes,
    compare_checkpoints,
    compare_namespaces,
    compare_writes,
    open_own_head,
)
from storage.access.sealing import Sealing
from storage.concurrency.turns import Pauses
from storage.errors import ThreadArchived, Unavailable
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.cold.segment import ColdSums
from storage.format.pieces import unpack_ids
from storage.format.record import (
    CheckpointRow,
    MemberRow,
    OpenedCheckpoint,
    check_share,
    open_checkpoint,
    open_thread_seal,
    seal_thread,
)
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.threads import pruning as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.pruning import GarbageRow
from storage.statements.threads.threads import HeadRow, ThreadRow
from storage.threads.holds import refuse_held
from storage.threads.thinning import ByRule, CheckpointRef, Choice, Entry, StaleError, closed
from storage.tiers.rows import write_key

# Pieces that one transaction removes while a save may be waiting for it, and the bytes of their envelopes.
BATCH_CHUNKS = 250
BATCH_BYTES = 1024 * 1024
# Plans that may go stale one after another: two removals at once, or a thread that is deleted and begun again.
_ROUNDS_MAX = 5
# Checkpoints read at a time.
_READ_ROWS = 200
# Checkpoints saved since the last batch that are looked for among the newest before all ids are read.
_NEWEST_ROWS_MAX = 64

Guard = Callable[[Transaction], Awaitable[None]]
"""Asked under the thread's lock in every batch; what it raises stops the work, and that batch is not committed."""


async def in_rounds(work: Callable[[], Awaitable[None]]) -> None:
    """Do work by a plan, and by another plan where that one does not describe the thread any more.

    Raises:
        Unavailable: Others were at work on the same thread, again and again.
    """
    for _ in range(_ROUNDS_MAX):
        try:
            return await work()
        except StaleError:
            continue
    raise Unavailable("others were at work on the same thread, again and again")


class Gone(Exception):
    """The thread is not there any more, or is another one of its name."""


class WrittenMeanwhile(Exception):
    """Another request wrote to checkpoints that were to go."""

    def __init__(self, refs: set[CheckpointRef]) -> None:
        super().__init__()
        self.refs = refs


@dataclass(slots=True)
class KnownNamespace:
    """What a plan knows of a namespace; `storage.threads.thinning.PlannedNamespace`."""

    head_id: str
    sequence: int
    live: LiveSet
    entries: dict[str, Entry]
    # Of the head's seal, when the plan was read.
    key_version: int = 0


@dataclass(slots=True)
class Plan:
    """What is known of a thread: all of it in a snapshot, kept true under the lock from batch to batch.

    Attributes:
        sealer: Fits the thread.
        incarnation: Which life of the thread it is.
        thread: Its namespaces.
        writes: Its pending writes, by checkpoint.
        written: What the thread's seal says of them.
        newest_write: When the newest of each checkpoint's was written.
        members: Of all pending writes that it ever knew.
        fresh: Checkpoints that came since the snapshot, until a batch has spared what they need.
        new_pieces: Pieces named by what came since the snapshot.
        followed: Those of them whose own children are known.
        cold: The sums of what is in segments, as the thread's column has them.
        sums: They, opened.
        doomed: Checkpoints that are still to go, by namespace.
    """

    sealer: Sealer
    incarnation: bytes
    thread: dict[str, KnownNamespace]
    writes: dict[CheckpointRef, list[MemberRow]]
    written: LiveSet
    newest_write: dict[CheckpointRef, datetime]
    members: list[bytes]
    cold: bytes | None
    sums: ColdSums
    fresh: list[tuple[str, Entry]] = field(default_factory=list)
    new_pieces: set[bytes] = field(default_factory=set)
    followed: set[bytes] = field(default_factory=set)
    doomed: dict[str, set[str]] = field(default_factory=dict)

    def sum_of(self, writes: Collection[MemberRow]) -> LiveSet:
        """What a seal says of these writes."""
        total = NO_WRITES
        for each in writes:
            total = total.add(write_mac(self.sealer, *write_key(each), each.member))
        return total


@dataclass(frozen=True, slots=True)
class Target:
    """One thread to change, and how."""

    scope: Scope
    thread_id: str
    guard: Guard | None
    # A request of a client finds its archived thread restored, and is run again; housekeeping leaves it where it is.
    restores: bool
    # Whether it is a use of the thread; housekeeping is none, or no thread that is thinned would ever be idle.
    touches: bool
    # Whether all of the thread has to be in the database; what is in segments stays there otherwise.
    whole: bool = True
    # Whether something is removed, which a legal hold forbids.
    removes: bool = True

    def archived(self) -> ThreadArchived:
        """What is raised where rows of the thread are in its archive."""
        return ThreadArchived(self.thread_id, needs_room=not self.removes) if self.restores else ThreadArchived()


class LockedThread:
    """A transaction that holds a thread's lock, and what it does to the thread."""

    def __init__(
        self,
        transaction: Transaction,
        target: Target,
        plan: Plan,
        created_at: datetime,
        thread: ThreadSeal,
        taken: Sequence[CheckpointRef] = (),
    ) -> None:
        self.transaction = transaction
        self.target = target
        self.plan = plan
        self.thread_id = target.thread_id
        self.thread = thread
        self.heads: dict[str, HeadRow] = {}
        self.taken = list(taken)
        self.writes_taken = 0
        self.moved: dict[str, tuple[str, HeadSeal]] = {}
        self.ended: list[str] = []
        # What the seal says of pending writes as the lock was granted; what the plan's would be after this.
        self.written_before = thread.writes
        self.written_after = plan.written
        self.knows_writes = False
        self.created_at = created_at

    def take_writes(self, writes: Collection[MemberRow]) -> None:
        """Take writes that were removed out of the sums."""
        removed = self.plan.sum_of(writes)
        self.thread = replace(self.thread, writes=self.thread.writes.part(removed))
        planned = [each for each in writes if each in self.plan.writes.get((each.namespace, each.checkpoint_id), ())]
        self.written_after = self.written_after.part(self.plan.sum_of(planned))
        self.writes_taken += len(writes)

    async def writes_at(self, refs: Collection[CheckpointRef]) -> list[MemberRow]:
        """The pending writes that checkpoints have now."""
        names, ids = columns_of(refs)
        return await self.transaction.fetch_all(
            sql.WRITES_AT, thread_id=self.thread_id, namespaces=names, checkpoint_ids=ids
        )

    async def touch(self, moment: datetime | None) -> None:
        """Say that the thread changed, and store its seal. ``moment``: it was used, too."""
        sealed = seal_thread(self.plan.sealer, self.thread_id, self.created_at, self.thread)
        await self.transaction.run(sql.TOUCH, thread_id=self.thread_id, used_at=moment, seal=sealed)

    async def count(self) -> None:
        """Say that the thread changed, where its seal did not: saves that know it still go on."""
        await self.transaction.run(sql.COUNT, thread_id=self.thread_id)

    def keep_plan_true(self) -> None:
        """Tell the plan what was done, once that is committed."""
        plan = self.plan
        for name, each in self.taken:
            del plan.thread[name].entries[each]
            plan.doomed[name].discard(each)
            plan.writes.pop((name, each), None)
        plan.written = self.thread.writes if self.knows_writes else self.written_after
        for name in self.ended:
            del plan.thread[name]
        for name, (head_id, head) in self.moved.items():
            known = plan.thread[name]
            known.head_id, known.sequence, known.live = head_id, head.sequence, head.live


class Plans:
    """Reads plans, and keeps them true."""

    def __init__(self, sealing: Sealing, batch_chunks: int = BATCH_CHUNKS) -> None:
        """``batch_chunks``: what one transaction removes at most."""
        self._sealing = sealing
        self._batch_chunks = batch_chunks

    async def read(self, transaction: Transaction, target: Target, sealer: Sealer) -> Plan | None:
        """Read and verify a thread in one snapshot; None: there is none."""
        await self._sealing.check_keys_in(transaction, target.scope, sealer)
        row = await transaction.fetch_one(threads_sql.READ, thread_id=target.thread_id)
        if row is None:
            return None
        if row.tier != "hot" or (target.whole and row.cold is not None):
            raise target.archived()
        thread = open_thread_seal(sealer, target.thread_id, row.created_at, row.seal)
        if thread.share_check is None:
            sealer = sealer.without_share  # of several threads, perhaps only some need the share
        check_share(sealer, target.thread_id, thread)
        heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=target.thread_id)
        sums = ColdSums.open(sealer, target.thread_id, row.created_at, thread.incarnation, row.cold)
        compare_namespaces(sealer, thread, [each.namespace for each in heads], sums.namespaces)
        plan = Plan(sealer, thread.incarnation, {}, {}, thread.writes, {}, [], row.cold, sums)
        for each in await transaction.fetch_all(sql.WRITES, thread_id=target.thread_id):
            write, ref = each.member_row, (each.namespace, each.checkpoint_id)
            plan.writes.setdefault(ref, []).append(write)
            plan.members.append(write.member)
            plan.newest_write[ref] = max(each.stored_at, plan.newest_write.get(ref, each.stored_at))
        written = await check_writes(
            sealer, (each for some in plan.writes.values() for each in some), thread, sums.writes
        )
        for at in heads:
            head = open_own_head(sealer, target.thread_id, thread, at)
            compare_writes(written.of(at.namespace, at.head_id), head.writes)
            entries: dict[str, Entry] = {}
            found = LiveSet()
            async for opened in _walk(transaction, target.thread_id, sealer, at.namespace):
                found = found.add(opened.member)
                entries[opened.columns.checkpoint_id] = _entry(opened)
            compare_checkpoints(found.join(sums.of(at.namespace)), head.live)
            version = peek_header(at.seal).key_version
            plan.thread[at.namespace] = KnownNamespace(at.head_id, head.sequence, head.live, entries, version)
        return plan

    # --- under the lock -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def locked(self, target: Target, plan: Plan) -> AsyncIterator[LockedThread]:
        """A transaction that holds the thread's lock, in which the plan is true again."""
        await self._sealing.control.ready()
        async with self._sealing.unit_of_work.begin(target.scope) as transaction:
            yield await self.lock(transaction, target, plan)

    async def lock(
        self, transaction: Transaction, target: Target, plan: Plan, taken: Sequence[CheckpointRef] = ()
    ) -> LockedThread:
        """Lock the thread as `locked` does, in a transaction that has begun and has removed the checkpoints ``taken``.

        `storage.control.rows.ControlRows.ready` is for the caller, before it begins.
        """
        row = self._same(target, plan, await transaction.fetch_one(threads_sql.LOCK, thread_id=target.thread_id))
        if target.removes:
            await refuse_held(transaction, self._sealing.control, target.scope, target.thread_id)
        if target.guard is not None:
            await target.guard(transaction)
        return await self._caught_up(transaction, target, plan, row, taken)

    async def catch_up(self, target: Target, plan: Plan) -> LiveSet:
        """Learn without the lock what came since the plan, so that there is little to learn under it.

        Returns:
            What the thread's seal says of pending writes at this moment.

        Raises:
            Gone, ThreadArchived, StaleError: As `locked`.
        """
        async with self._sealing.unit_of_work.snapshot(target.scope) as transaction:
            row = self._same(target, plan, await transaction.fetch_one(threads_sql.READ, thread_id=target.thread_id))
            return (await self._caught_up(transaction, target, plan, row)).thread.writes

    def _same(self, target: Target, plan: Plan, row: ThreadRow | None) -> ThreadRow:
        """The thread's row, if it still is where it was planned."""
        if row is None:
            raise Gone
        if row.tier != "hot":
            raise target.archived()
        if row.cold != plan.cold:
            raise StaleError
        return row

    async def _caught_up(
        self,
        transaction: Transaction,
        target: Target,
        plan: Plan,
        row: ThreadRow,
        taken: Sequence[CheckpointRef] = (),
    ) -> LockedThread:
        await self._sealing.check_keys_in(transaction, target.scope, plan.sealer)
        thread = open_thread_seal(plan.sealer, target.thread_id, row.created_at, row.seal)
        self._check_life(plan, thread)
        locked = LockedThread(transaction, target, plan, row.created_at, thread, taken)
        await self._catch_up(locked)
        return locked

    def _check_life(self, plan: Plan, thread: ThreadSeal) -> None:
        if thread.incarnation != plan.incarnation:
            raise Gone

    async def _catch_up(self, locked: LockedThread) -> None:
        """Learn which checkpoints came or went since the plan was true."""
        plan = locked.plan
        rows = await locked.transaction.fetch_all(threads_sql.HEADS, thread_id=locked.thread_id)
        locked.heads = {row.namespace: row for row in rows}
        if locked.heads.keys() != plan.thread.keys():
            compare_namespaces(plan.sealer, locked.thread, locked.heads, plan.sums.namespaces)
            for name in plan.thread.keys() - locked.heads.keys():
                del plan.thread[name]
        for name, row in locked.heads.items():
            known = plan.thread.get(name)
            if known is None:
                known = plan.thread[name] = KnownNamespace("", 0, LiveSet(), {})
            if (known.head_id, known.sequence) == (row.head_id, row.sequence):
                continue
            head = open_own_head(plan.sealer, locked.thread_id, locked.thread, row)
            if known.live != head.live:
                for opened in await self._new_checkpoints(locked, name, known, head.live):
                    entry = _entry(opened)
                    known.entries[entry.checkpoint_id] = entry
                    plan.new_pieces.update(opened.ids)
                    plan.fresh.append((name, entry))
                known.live = head.live
            known.head_id, known.sequence = row.head_id, head.sequence

    async def _new_checkpoints(
        self, locked: LockedThread, namespace: str, known: KnownNamespace, live: LiveSet
    ) -> list[OpenedCheckpoint]:
        """The checkpoints that the plan does not know yet; it also forgets those that are there no more."""
        sealer, more = locked.plan.sealer, live.count - known.live.count
        where = {"thread_id": locked.thread_id, "namespace": namespace}
        if 0 < more <= _NEWEST_ROWS_MAX:
            rows = await locked.transaction.fetch_all(sql.NEWEST, **where, limit=more)
            found = await _opened(sealer, [row for row in rows if row.checkpoint_id not in known.entries])
            if known.live.join(_live(found)) == live:
                return found
        # Saved out of order, or others removed something, too: compare ids, all of them.
        present = {*await locked.transaction.fetch_all(sql.CHECKPOINT_IDS, **where)}
        present.update(each for name, each in locked.taken if name == namespace)
        entries = {each: entry for each, entry in known.entries.items() if each in present}
        found = []
        for some in _parts(sorted(present - entries.keys()), _READ_ROWS):
            rows = await locked.transaction.fetch_all(sql.CHECKPOINTS, **where, checkpoint_ids=some)
            found += await _opened(sealer, rows)
        total = _live(found).join(locked.plan.sums.of(namespace))
        for entry in entries.values():
            total = total.add(entry.member)
        if total != live:
            # One was removed and saved again as another; or this was done outside the gateway: the next plan finds it.
            raise StaleError
        known.entries = entries
        return found

    @staticmethod
    def spared(locked: LockedThread, choice: Choice) -> set[CheckpointRef]:
        """Which of those that are to go came to be needed."""
        plan = locked.plan
        doomed = plan.doomed
        spared: set[CheckpointRef] = set()
        for name in {name for name, _ in plan.fresh}.intersection(plan.thread):
            fresh = [entry for at, entry in plan.fresh if at == name]
            entries = plan.thread[name].entries
            spared.update((name, each) for each in choice.spared(entries, doomed.get(name, set()), fresh))
        if not choice.takes_all:
            # Others may have removed the head of before.
            ended = choice.ended(plan.thread)
            heads = {
                (name, locked.heads[name].head_id)
                for name, some in doomed.items()
                if name in locked.heads and name not in ended and locked.heads[name].head_id in some
            }
            spared.update(ref for ref in with_theirs(plan, heads) if ref[1] in doomed[ref[0]])
        return spared

    @staticmethod
    def compare_with_plan(
        plan: Plan, batch: Sequence[CheckpointRef], found: Mapping[CheckpointRef, Collection[MemberRow]]
    ) -> None:
        """What was planned to go must be what goes: else an acknowledged write would go unread.

        Raises:
            WrittenMeanwhile: it is not.
        """
        late = {ref for ref in batch if set(found.get(ref, ())) != set(plan.writes.get(ref, ()))}
        if late:
            raise WrittenMeanwhile(late)

    # --- chunks ----------------------------------------------------------------------------------------------------

    def chunk_batches(self, rows: Sequence[GarbageRow]) -> list[list[bytes]]:
        """Garbage in parts of which each is removed by one transaction."""
        batches: list[list[bytes]] = []
        size = BATCH_BYTES
        for row in rows:
            if size >= BATCH_BYTES or len(batches[-1]) >= self._batch_chunks:
                batches.append([])
                size = 0
            batches[-1].append(row.piece_id)
            size += row.size_bytes
        return batches

    async def collect(self, target: Target, plan: Plan, batches: Sequence[list[bytes]]) -> None:
        """Remove garbage, a batch at a time, except for what came to be named."""
        for chunks in batches:
            async with self.locked(target, plan) as locked:
                if await self.collect_in(locked, chunks):
                    await locked.count()
            locked.keep_plan_true()
            await asyncio.sleep(0)

    async def collect_in(self, locked: LockedThread, chunks: list[bytes]) -> int:
        """Remove those of these chunks that nothing came to name since they were found to be garbage."""
        await self._learn_of_writes(locked)
        await self._follow(locked)
        named = locked.plan.new_pieces
        return await locked.transaction.run(
            sql.COLLECT, thread_id=locked.thread_id, piece_ids=[each for each in chunks if each not in named]
        )

    async def _follow(self, locked: LockedThread) -> None:
        """Learn what the index pieces among those that came to be named name themselves."""
        plan = locked.plan
        while wanted := plan.new_pieces - plan.followed:
            found = await locked.transaction.fetch_all(sql.CHILDREN, thread_id=locked.thread_id, piece_ids=list(wanted))
            plan.followed |= wanted
            for children in found:
                plan.new_pieces.update(unpack_ids(children))

    async def _learn_of_writes(self, locked: LockedThread) -> None:
        plan = locked.plan
        if locked.written_before == plan.written:
            return
        rows = await locked.transaction.fetch_all(sql.NEW_WRITES, thread_id=locked.thread_id, members=plan.members)
        for row in rows:
            plan.members.append(row.member)
            plan.new_pieces.update(unpack_ids(row.piece_ids))
        locked.knows_writes = True

    async def drop_references(self, target: Target, plan: Plan) -> None:
        """Let go of blobs and artifacts that nothing in the thread names any more."""
        async with self._sealing.unit_of_work.snapshot(target.scope) as transaction:
            if not await transaction.fetch_only(sql.REFERS_TO_UNNAMED, thread_id=target.thread_id):
                return
        async with self.locked(target, plan) as locked:
            await self._sealing.offload.ledger.keep(locked.transaction, target.thread_id)
            await locked.touch(None)
        locked.keep_plan_true()


def with_theirs(plan: Plan, refs: set[CheckpointRef]) -> set[CheckpointRef]:
    """These checkpoints with all that has to stay with them."""
    result = set(refs)
    for name in {name for name, _ in refs}:
        known = plan.thread.get(name)
        if known is not None:
            kept = {each for at, each in refs if at == name and each in known.entries}
            result.update((name, each) for each in closed(known.entries, kept))
    return result


def doomed_of(plan: Plan, choice: Choice) -> dict[str, set[str]]:
    """The checkpoints that go by a choice, by namespace."""
    since = choice.rule.writes_since if isinstance(choice, ByRule) else None
    return choice.doomed(plan.thread, written_since(plan, since))


def written_since(plan: Plan, since: datetime | None) -> set[CheckpointRef]:
    """The checkpoints with a pending write from then or later; None: none."""
    return set() if since is None else {ref for ref, newest in plan.newest_write.items() if newest >= since}


def _entry(opened: OpenedCheckpoint) -> Entry:
    columns = opened.columns
    return Entry(
        columns.checkpoint_id,
        columns.parent_id,
        columns.run_id,
        columns.step,
        columns.status,
        opened.outcome,
        columns.source,
        opened.member,
        columns.created_at,
        frozenset(each.name for each in opened.manifest.channels),
        opened.manifest.delta_channels,
        _outer(opened.manifest.metadata.get("parents")),
    )


def _outer(parents: Any) -> tuple[CheckpointRef, ...]:
    """What a sub-agent's metadata says about the namespaces around it; anything else says nothing."""
    if not isinstance(parents, dict):
        return ()
    return tuple((name, each) for name, each in parents.items() if isinstance(name, str) and isinstance(each, str))


def _live(opened: Collection[OpenedCheckpoint]) -> LiveSet:
    total = LiveSet()
    for each in opened:
        total = total.add(each.member)
    return total


async def _opened(sealer: Sealer, rows: Sequence[CheckpointRow]) -> list[OpenedCheckpoint]:
    """These checkpoints, opened; other requests of this process have their turn in between."""
    found: list[OpenedCheckpoint] = []
    pauses = Pauses()
    for row in rows:
        found.append(open_checkpoint(sealer, row))
        await pauses.after(found[-1].opened_bytes)
    return found


async def _walk(
    transaction: Transaction, thread_id: str, sealer: Sealer, namespace: str
) -> AsyncIterator[OpenedCheckpoint]:
    """All checkpoints of a namespace, opened; other requests of this process have their turn in between."""
    where = {"thread_id": thread_id, "namespace": namespace}
    ids = await transaction.fetch_all(sql.CHECKPOINT_IDS, **where)
    pauses = Pauses()
    for some in _parts(ids, _READ_ROWS):
        found = await transaction.fetch_all(sql.CHECKPOINTS, **where, checkpoint_ids=some)
        for row in found:
            opened = open_checkpoint(sealer, row)
            yield opened
            await pauses.after(opened.opened_bytes)


async def garbage_of(
    transaction: Transaction, thread_id: str, namespaces: Sequence[str] = (), checkpoint_ids: Sequence[str] = ()
) -> list[GarbageRow]:
    """The pieces that nothing names once these checkpoints and their writes are gone."""
    return await transaction.fetch_all(
        sql.GARBAGE, thread_id=thread_id, namespaces=namespaces, checkpoint_ids=checkpoint_ids
    )


def columns_of(refs: Collection[CheckpointRef]) -> tuple[list[str], list[str]]:
    """The namespaces and the ids of checkpoints, as statements take them."""
    return [name for name, _ in refs], [each for _, each in refs]


def _parts(items: Sequence[str], count: int) -> list[Sequence[str]]:
    return [items[at : at + count] for at in range(0, len(items), count)]
