"""Removing checkpoints and pending writes from threads that go on being written to.

1. **Plan**, in a snapshot that locks nothing: open every checkpoint, compare all of it with the seals, choose what goes
   (`storage.threads.thinning`), and find the chunks that nothing will name then.
2. **Remove**, a batch at a time: a short transaction that locks the thread, learns what came since the plan (the sealed
   live set proves that it learned of everything), spares what that needs, and leaves the seals true. A save waits for
   one batch, never for the walk.
3. **Collect** chunks in the same way: a candidate goes only if nothing that came since names it.

Checkpoints go before their parents do, so that after each batch everything that is left loads. Whoever dies between two
batches leaves a whole thread; doing it again goes on. It promises nothing about checkpoints that are saved meanwhile,
except that they stay. What may go is opened, so that a thread under a client-held share needs the share.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import (
    check_writes,
    compare_checkpoints,
    compare_namespaces,
    compare_writes,
    open_own_head,
)
from storage.errors import IntegrityFailure, ThreadArchived, ThreadNotFound, Unavailable
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.pieces import unpack_ids
from storage.format.record import (
    MemberRow,
    OpenedCheckpoint,
    check_share,
    open_checkpoint,
    open_thread_seal,
    seal_head,
    seal_thread,
)
from storage.format.token import ThreadToken
from storage.model import Removal
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.threads import pruning as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.pruning import GarbageRow
from storage.statements.threads.threads import HeadRow
from storage.threads.holds import refuse_held
from storage.threads.thinning import (
    AllButLatest,
    ByRule,
    CheckpointRef,
    Choice,
    Entry,
    OfRuns,
    StaleError,
    ThinningRule,
    children_first,
    closed,
    needed,
    writes_that_may_go,
)
from storage.tiers.rows import place_of

# Rows that one transaction removes while a save may be waiting for it.
BATCH_ROWS = 100
BATCH_CHUNKS = 250
BATCH_BYTES = 1024 * 1024
# Checkpoints read at a time, and opened before other requests of this process have their turn.
_READ_ROWS = 200
_TURN_ROWS = 16
# Checkpoints saved since the last batch that are looked for among the newest before all ids are read.
_NEWEST_ROWS_MAX = 64
# Plans that may go stale one after another: two removals at once, or a thread that is deleted and begun again.
_ROUNDS_MAX = 5

NOTHING = Removal(threads=0, checkpoints=0, pending_writes=0)

Guard = Callable[[Transaction], Awaitable[None]]
"""Asked under the thread's lock in every batch; what it raises stops the removal, and that batch is not committed."""


class _Gone(Exception):
    """The thread is not there any more, or is another one of its name."""


class _WrittenMeanwhile(Exception):
    """Somebody wrote to checkpoints that were to go."""

    def __init__(self, refs: set[CheckpointRef]) -> None:
        super().__init__()
        self.refs = refs


@dataclass(slots=True)
class _Namespace:
    """What a plan knows of a namespace; `storage.threads.thinning.Known`."""

    head_id: str
    sequence: int
    live: LiveSet
    entries: dict[str, Entry]


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
        news: Pieces named by what came since the snapshot.
        followed: Those of them whose own children are known.
        doomed: Checkpoints that are still to go, by namespace.
    """

    sealer: Sealer
    incarnation: bytes
    thread: dict[str, _Namespace]
    writes: dict[CheckpointRef, list[MemberRow]]
    written: LiveSet
    newest_write: dict[CheckpointRef, datetime]
    members: list[bytes]
    fresh: list[tuple[str, Entry]] = field(default_factory=list)
    news: set[bytes] = field(default_factory=set)
    followed: set[bytes] = field(default_factory=set)
    doomed: dict[str, set[str]] = field(default_factory=dict)

    def sum_of(self, writes: Collection[MemberRow]) -> LiveSet:
        """What a seal says of these writes."""
        total = NO_WRITES
        for each in writes:
            total = total.add(write_mac(self.sealer, *place_of(each), each.member))
        return total


@dataclass(slots=True)
class _Removed:
    """What a request has removed so far; it outlives its attempts."""

    checkpoints: int = 0
    pending_writes: int = 0

    def removal(self) -> Removal:
        """As the caller is told."""
        if not self.checkpoints and not self.pending_writes:
            return NOTHING
        return Removal(threads=1, checkpoints=self.checkpoints, pending_writes=self.pending_writes)


@dataclass(frozen=True, slots=True)
class _Request:
    """One thread to remove from, and how."""

    scope: Scope
    thread_id: str
    guard: Guard | None
    # A request of a client finds its archived thread restored, and is run again; housekeeping leaves it where it is.
    restores: bool
    # Whether it is a use of the thread; housekeeping is none, or no thread that is thinned would ever be idle.
    touches: bool
    removed: _Removed = field(default_factory=_Removed)

    def archived(self) -> ThreadArchived:
        return ThreadArchived(self.thread_id) if self.restores else ThreadArchived()


class _Locked:
    """A transaction that holds a thread's lock, and what it does to the thread."""

    def __init__(
        self, transaction: Transaction, request: _Request, plan: Plan, created_at: datetime, thread: ThreadSeal
    ) -> None:
        self.transaction = transaction
        self.request = request
        self.plan = plan
        self.thread_id = request.thread_id
        self.thread = thread
        self.heads: dict[str, HeadRow] = {}
        self.taken: list[CheckpointRef] = []
        self.writes_taken = 0
        self.moved: dict[str, tuple[str, HeadSeal]] = {}
        self.ended: list[str] = []
        # What the seal says of pending writes as the lock was granted; what the plan's would be after this.
        self.written_before = thread.writes
        self.written_after = plan.written
        self.knows_writes = False
        self._created_at = created_at

    def take_writes(self, writes: Collection[MemberRow]) -> None:
        """Take writes that were removed out of the sums."""
        removed = self.plan.sum_of(writes)
        self.thread = replace(self.thread, writes=self.thread.writes.part(removed))
        planned = [each for each in writes if each in self.plan.writes.get((each.namespace, each.checkpoint_id), ())]
        self.written_after = self.written_after.part(self.plan.sum_of(planned))
        self.writes_taken += len(writes)

    async def writes_at(self, refs: Collection[CheckpointRef]) -> list[MemberRow]:
        """The pending writes that checkpoints have now."""
        names, ids = _columns(refs)
        return await self.transaction.fetch_all(
            sql.WRITES_AT, thread_id=self.thread_id, namespaces=names, checkpoint_ids=ids
        )

    async def touch(self, moment: datetime | None) -> None:
        """Say that the thread changed, and store its seal. ``moment``: it was used, too."""
        sealed = seal_thread(self.plan.sealer, self.thread_id, self._created_at, self.thread)
        await self.transaction.run(sql.TOUCH, thread_id=self.thread_id, used_at=moment, seal=sealed)


class Pruning:
    """Removes what is not needed of threads that stay."""

    def __init__(self, access: Access, *, batch_rows: int = BATCH_ROWS, batch_chunks: int = BATCH_CHUNKS) -> None:
        """``batch_rows`` and ``batch_chunks``: what one transaction removes at most."""
        self._access = access
        self._batch_rows = batch_rows
        self._batch_chunks = batch_chunks

    # --- verbs -----------------------------------------------------------------------------------------------------

    async def keep_latest(
        self, scope: Scope, thread_id: str, *, guard: Guard | None = None, share: ClientShare | None = None
    ) -> Removal:
        """Keep each namespace's head and what it is rebuilt from; finished calls of sub-agents go whole.

        Nothing happens if there is no such thread. `storage.threads.thinning.finished_calls` says what is finished;
        ``guard`` may forbid it.

        Raises:
            ClientShareRequired, ClientShareWrong: the thread needs a share, or another one.
            ThreadArchived: it is not in the hot tier.
            LegalHold: it is held; so are its checkpoints that were to go and are still there.
            IntegrityFailure: the thread is not what its seals say; nothing more is removed.
            Unavailable: too many others are at work on it; what was removed stays removed, and repeating goes on.
        """
        request = _Request(scope, thread_id, guard, restores=True, touches=False)
        return await self._remove(request, AllButLatest(), share)

    async def delete_runs(
        self, scope: Scope, run_ids: Sequence[str], *, guard: Guard | None = None, share: ClientShare | None = None
    ) -> Removal:
        """Remove all checkpoints of these runs, with their writes, in every thread and namespace of the subject.

        Raises:
            ClientShareRequired, ClientShareWrong, ThreadArchived, LegalHold, IntegrityFailure, Unavailable: as
                `keep_latest`; what was removed from other threads stays removed.
            DeltaChainNeeded: a checkpoint of another run is rebuilt from one of them. That thread is unchanged, unless
                the checkpoint was saved while it was at work.
        """
        choice = OfRuns(frozenset(run_ids))
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            thread_ids = await transaction.fetch_all(sql.THREADS_OF_RUNS, run_ids=sorted(choice.run_ids))
        total = NOTHING
        for thread_id in thread_ids:
            request = _Request(scope, thread_id, guard, restores=True, touches=True)
            total = sum_of_removals(total, await self._remove(request, choice, share))
        return total

    async def thin(
        self,
        scope: Scope,
        thread_id: str,
        rule: ThinningRule,
        *,
        guard: Guard | None = None,
        share: ClientShare | None = None,
    ) -> Removal:
        """Remove what a rule does not keep; as `keep_latest`, but an archived thread is not restored for it.

        A checkpoint that is written to meanwhile stays.
        """
        return await self._remove(_Request(scope, thread_id, guard, restores=False, touches=False), ByRule(rule), share)

    async def preview(
        self, scope: Scope, thread_id: str, rule: ThinningRule, *, share: ClientShare | None = None
    ) -> Removal:
        """What `thin` would remove now. Reads only.

        Raises:
            ClientShareRequired, ClientShareWrong, ThreadArchived, IntegrityFailure: as `keep_latest`.
        """
        request = _Request(scope, thread_id, None, restores=False, touches=False)

        async def attempt(sealer: Sealer) -> Removal:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                plan = await self._plan(transaction, request, sealer)
            found = _Removed()
            if plan is not None:
                refs = [(name, each) for name, some in _doomed(plan, ByRule(rule)).items() for each in some]
                found.checkpoints = len(refs)
                found.pending_writes = sum(len(plan.writes.get(ref, ())) for ref in refs)
            return found.removal()

        try:
            return await self._access.reading(scope, attempt, ThreadNotFound(), share)
        except ThreadNotFound:
            return NOTHING

    async def drop_writes(
        self,
        scope: Scope,
        thread_id: str,
        older_than: datetime,
        *,
        guard: Guard | None = None,
        share: ClientShare | None = None,
    ) -> Removal:
        """Remove pending writes from before a moment that nothing needs; as `thin`.

        What is needed: `storage.threads.thinning.writes_that_may_go`.
        """
        request = _Request(scope, thread_id, guard, restores=False, touches=False)

        async def attempt(sealer: Sealer) -> None:
            await self._rounds(lambda: self._drop_writes(request, sealer, older_than))

        return await self._counted(request, attempt, share)

    # --- rounds ----------------------------------------------------------------------------------------------------

    async def _remove(self, request: _Request, choice: Choice, share: ClientShare | None) -> Removal:
        async def attempt(sealer: Sealer) -> None:
            await self._rounds(lambda: self._prune(request, sealer, choice))

        return await self._counted(request, attempt, share)

    async def _counted(
        self, request: _Request, attempt: Callable[[Sealer], Awaitable[None]], share: ClientShare | None
    ) -> Removal:
        with suppress(ThreadNotFound, _Gone):
            await self._access.reading(request.scope, attempt, ThreadNotFound(), share)
        return request.removed.removal()

    async def _rounds(self, work: Callable[[], Awaitable[None]]) -> None:
        for _ in range(_ROUNDS_MAX):
            try:
                return await work()
            except StaleError:
                continue
        raise Unavailable("others removed from this thread at the same moment, again and again")

    async def _prune(self, request: _Request, sealer: Sealer, choice: Choice) -> None:
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            plan = await self._plan(transaction, request, sealer)
            if plan is None:
                return
            # Of a long thread it takes long; others have their turn meanwhile.
            plan.doomed = await asyncio.to_thread(_doomed, plan, choice)
            names, ids = _columns([(name, each) for name, some in plan.doomed.items() for each in some])
            garbage = await _garbage(transaction, request.thread_id, names, ids)
        queue = await asyncio.to_thread(self._queue, plan)
        chunks = self._chunk_batches(garbage)
        spared_any = False
        while queue:
            batch = self._next_batch(plan, queue)
            # What is little goes together with the last checkpoints.
            last = chunks[0] if len(batch) == len(queue) and len(chunks) == 1 and not spared_any else None
            try:
                spared = await self._remove_batch(request, plan, choice, batch, last)
            except _WrittenMeanwhile as late:
                if choice.takes_all:
                    raise StaleError from None
                spared = {
                    (name, each) for name, each in self._with_theirs(plan, late.refs) if each in plan.doomed[name]
                }
            else:
                queue = queue[len(batch) :]
                if last is not None and not spared:
                    chunks = []
            if spared:
                spared_any = True
                queue = [each for each in queue if each not in spared]
                for name, each in spared:
                    plan.doomed[name].discard(each)
            await asyncio.sleep(0)
        if spared_any:
            async with self._access.unit_of_work.snapshot(request.scope) as transaction:
                chunks = self._chunk_batches(await _garbage(transaction, request.thread_id))
        await self._collect(request, plan, chunks)
        await self._drop_references(request, plan)

    def _queue(self, plan: Plan) -> list[CheckpointRef]:
        return [
            (name, each)
            for name, some in plan.doomed.items()
            for each in children_first(plan.thread[name].entries, some)
        ]

    def _next_batch(self, plan: Plan, queue: Sequence[CheckpointRef]) -> list[CheckpointRef]:
        batch: list[CheckpointRef] = []
        rows = 0
        for ref in queue:
            rows += 1 + len(plan.writes.get(ref, ()))
            if batch and rows > self._batch_rows:
                break
            batch.append(ref)
        return batch

    @staticmethod
    def _with_theirs(plan: Plan, refs: set[CheckpointRef]) -> set[CheckpointRef]:
        """These checkpoints with all that has to stay with them."""
        result = set(refs)
        for name in {name for name, _ in refs}:
            known = plan.thread.get(name)
            if known is not None:
                kept = {each for at, each in refs if at == name and each in known.entries}
                result.update((name, each) for each in closed(known.entries, kept))
        return result

    # --- the plan, without a lock ----------------------------------------------------------------------------------

    async def _plan(self, transaction: Transaction, request: _Request, sealer: Sealer) -> Plan | None:
        """Read and verify a thread in one snapshot; None: there is none."""
        await self._access.check_keys_in(transaction, request.scope, sealer)
        row = await transaction.fetch_one(threads_sql.READ, thread_id=request.thread_id)
        if row is None:
            return None
        if row.tier != "hot":
            raise request.archived()
        thread = open_thread_seal(sealer, request.thread_id, row.created_at, row.seal)
        if thread.share_check is None:
            sealer = sealer.without_share  # of several threads, perhaps only some need the share
        check_share(sealer, request.thread_id, thread)
        heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=request.thread_id)
        compare_namespaces(sealer, thread, [each.namespace for each in heads])
        plan = Plan(sealer, thread.incarnation, {}, {}, thread.writes, {}, [])
        for each in await transaction.fetch_all(sql.WRITES, thread_id=request.thread_id):
            write, ref = each.member_row, (each.namespace, each.checkpoint_id)
            plan.writes.setdefault(ref, []).append(write)
            plan.members.append(write.member)
            plan.newest_write[ref] = max(each.stored_at, plan.newest_write.get(ref, each.stored_at))
        written = await check_writes(sealer, (each for some in plan.writes.values() for each in some), thread)
        for at in heads:
            head = open_own_head(sealer, request.thread_id, thread, at)
            compare_writes(written.of(at.namespace, at.head_id), head.writes)
            entries: dict[str, Entry] = {}
            found = LiveSet()
            async for opened in _walk(transaction, request.thread_id, sealer, at.namespace):
                found = found.add(opened.member)
                entries[opened.columns.checkpoint_id] = _entry(opened)
            compare_checkpoints(found, head.live)
            plan.thread[at.namespace] = _Namespace(at.head_id, head.sequence, head.live, entries)
        return plan

    # --- under the lock --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, request: _Request, plan: Plan) -> AsyncIterator[_Locked]:
        """A transaction that holds the thread's lock, in which the plan is true again."""
        await self._access.control.ready()
        async with self._access.unit_of_work.begin(request.scope) as transaction:
            row = await transaction.fetch_one(threads_sql.LOCK, thread_id=request.thread_id)
            if row is None:
                raise _Gone
            if row.tier != "hot":
                raise request.archived()
            await refuse_held(transaction, self._access.control, request.scope, request.thread_id)
            if request.guard is not None:
                await request.guard(transaction)
            await self._access.check_keys_in(transaction, request.scope, plan.sealer)
            thread = open_thread_seal(plan.sealer, request.thread_id, row.created_at, row.seal)
            self._check_life(plan, thread)
            locked = _Locked(transaction, request, plan, row.created_at, thread)
            await self._catch_up(locked)
            yield locked

    def _check_life(self, plan: Plan, thread: ThreadSeal) -> None:
        if thread.incarnation != plan.incarnation:
            raise _Gone

    async def _catch_up(self, locked: _Locked) -> None:
        """Learn which checkpoints came or went since the plan was true."""
        plan = locked.plan
        rows = await locked.transaction.fetch_all(threads_sql.HEADS, thread_id=locked.thread_id)
        locked.heads = {row.namespace: row for row in rows}
        if locked.heads.keys() != plan.thread.keys():
            compare_namespaces(plan.sealer, locked.thread, locked.heads)
            for name in plan.thread.keys() - locked.heads.keys():
                del plan.thread[name]
        for name, row in locked.heads.items():
            known = plan.thread.get(name)
            if known is None:
                known = plan.thread[name] = _Namespace("", 0, LiveSet(), {})
            if (known.head_id, known.sequence) == (row.head_id, row.sequence):
                continue
            head = open_own_head(plan.sealer, locked.thread_id, locked.thread, row)
            if known.live != head.live:
                for opened in await self._news(locked, name, known, head.live):
                    entry = _entry(opened)
                    known.entries[entry.checkpoint_id] = entry
                    plan.news.update(opened.ids)
                    plan.fresh.append((name, entry))
                known.live = head.live
            known.head_id, known.sequence = row.head_id, head.sequence

    async def _news(self, locked: _Locked, namespace: str, known: _Namespace, live: LiveSet) -> list[OpenedCheckpoint]:
        """The checkpoints that the plan does not know; those that it knows in vain are taken out of it."""
        sealer, more = locked.plan.sealer, live.count - known.live.count
        where = {"thread_id": locked.thread_id, "namespace": namespace}
        if 0 < more <= _NEWEST_ROWS_MAX:
            rows = await locked.transaction.fetch_all(sql.NEWEST, **where, limit=more)
            found = [open_checkpoint(sealer, row) for row in rows if row.checkpoint_id not in known.entries]
            if known.live.join(_live(found)) == live:
                return found
        # Saved out of order, or others removed something, too: compare ids, all of them.
        present = {*await locked.transaction.fetch_all(sql.CHECKPOINT_IDS, **where)}
        entries = {each: entry for each, entry in known.entries.items() if each in present}
        found = []
        for some in _parts(sorted(present - entries.keys()), _READ_ROWS):
            rows = await locked.transaction.fetch_all(sql.CHECKPOINTS, **where, checkpoint_ids=some)
            found += [open_checkpoint(sealer, row) for row in rows]
        total = _live(found)
        for entry in entries.values():
            total = total.add(entry.member)
        if total != live:
            # One was removed and saved again as another; or this was done outside the gateway: the next plan finds it.
            raise StaleError
        known.entries = entries
        return found

    def _spared(self, locked: _Locked, choice: Choice) -> set[CheckpointRef]:
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
            spared.update(ref for ref in self._with_theirs(plan, heads) if ref[1] in doomed[ref[0]])
        return spared

    async def _remove_batch(
        self,
        request: _Request,
        plan: Plan,
        choice: Choice,
        batch: Sequence[CheckpointRef],
        chunks: list[bytes] | None,
    ) -> set[CheckpointRef]:
        """Remove a batch, and with the last one the chunks that go with it; returns what was spared."""
        async with self._locked(request, plan) as locked:
            spared = self._spared(locked, choice)
            here = plan.thread
            batch = [at for at in batch if at not in spared and at[0] in here and at[1] in here[at[0]].entries]
            if batch:
                await self._delete(locked, batch)
            if chunks is not None and not spared:
                await self._collect_in(locked, chunks)
        self._took(locked)
        plan.fresh.clear()
        return spared

    async def _delete(self, locked: _Locked, batch: Sequence[CheckpointRef]) -> None:
        plan, transaction = locked.plan, locked.transaction
        names, ids = _columns(batch)
        where = {"thread_id": locked.thread_id, "namespaces": names, "checkpoint_ids": ids}
        found: dict[CheckpointRef, list[MemberRow]] = {}
        for write in await transaction.fetch_all(sql.DELETE_WRITES_OF, **where):
            found.setdefault((write.namespace, write.checkpoint_id), []).append(write)
        self._compare_with_plan(plan, batch, found)
        locked.take_writes([each for some in found.values() for each in some])
        if len(await transaction.fetch_all(sql.DELETE_CHECKPOINTS, **where)) != len(batch):
            raise IntegrityFailure("checkpoints were taken from this thread outside the gateway")
        locked.taken = list(batch)
        moved: list[tuple[str, str, int, bytes]] = []
        ended: list[str] = []
        for name in {name for name, _ in batch}:
            after = await self._head_after(locked, name, {each for at, each in batch if at == name})
            if after is None:
                ended.append(name)
                locked.thread = locked.thread.without_namespace(plan.sealer, name, plan.thread[name].sequence)
                continue
            head_id, head = after
            locked.moved[name] = (head_id, head)
            sealed = seal_head(plan.sealer, locked.thread_id, name, head_id, head)
            moved.append((name, head_id, head.sequence, sealed))
        if moved:
            namespaces, head_ids, sequences, seals = map(list, zip(*moved, strict=True))
            await transaction.run(
                sql.MOVE_HEADS,
                thread_id=locked.thread_id,
                namespaces=namespaces,
                head_ids=head_ids,
                sequences=sequences,
                seals=seals,
            )
        if ended:
            await transaction.run(sql.DELETE_HEADS, thread_id=locked.thread_id, namespaces=ended)
            locked.ended = ended
        await locked.touch(self._access.clock.now() if locked.request.touches else None)

    def _compare_with_plan(
        self, plan: Plan, batch: Sequence[CheckpointRef], found: Mapping[CheckpointRef, Collection[MemberRow]]
    ) -> None:
        """What was planned to go must be what goes: else an acknowledged write would go unread.

        Raises:
            _WrittenMeanwhile: it is not.
        """
        late = {ref for ref in batch if set(found.get(ref, ())) != set(plan.writes.get(ref, ()))}
        if late:
            raise _WrittenMeanwhile(late)

    async def _head_after(self, locked: _Locked, name: str, taken: set[str]) -> tuple[str, HeadSeal] | None:
        """A namespace's head when these are gone; None: nothing is left."""
        plan, known = locked.plan, locked.plan.thread[name]
        head = open_own_head(plan.sealer, locked.thread_id, locked.thread, locked.heads[name])
        live = head.live
        for each in taken:
            live = live.subtract(known.entries[each].member)
        if not live.count:
            return None
        head_id, writes = known.head_id, head.writes
        if head_id in taken:
            head_id = max(each for each in known.entries if each not in taken)
            found = await locked.writes_at([(name, head_id)])
            if set(found) != set(plan.writes.get((name, head_id), ())):
                raise StaleError  # written to meanwhile: the next plan verifies what
            writes = plan.sum_of(found)
        return head_id, HeadSeal(head.incarnation, head.sequence + 1, live, writes)

    def _took(self, locked: _Locked) -> None:
        """Account for a batch that was committed."""
        plan, request = locked.plan, locked.request
        for name, each in locked.taken:
            del plan.thread[name].entries[each]
            plan.doomed[name].discard(each)
            plan.writes.pop((name, each), None)
        plan.written = locked.thread.writes if locked.knows_writes else locked.written_after
        for name in locked.ended:
            del plan.thread[name]
        for name, (head_id, head) in locked.moved.items():
            known = plan.thread[name]
            known.head_id, known.sequence, known.live = head_id, head.sequence, head.live
            token = ThreadToken.of(plan.sealer.without_share, name, head_id, head)
            self._access.acknowledge(request.scope, plan.sealer, request.thread_id, token)
        request.removed.checkpoints += len(locked.taken)
        request.removed.pending_writes += locked.writes_taken

    # --- chunks ----------------------------------------------------------------------------------------------------

    def _chunk_batches(self, rows: Sequence[GarbageRow]) -> list[list[bytes]]:
        batches: list[list[bytes]] = []
        size = BATCH_BYTES
        for row in rows:
            if size >= BATCH_BYTES or len(batches[-1]) >= self._batch_chunks:
                batches.append([])
                size = 0
            batches[-1].append(row.piece_id)
            size += row.size_bytes
        return batches

    async def _collect(self, request: _Request, plan: Plan, batches: Sequence[list[bytes]]) -> None:
        for chunks in batches:
            async with self._locked(request, plan) as locked:
                if await self._collect_in(locked, chunks):
                    await locked.touch(None)
            self._took(locked)
            await asyncio.sleep(0)

    async def _collect_in(self, locked: _Locked, chunks: list[bytes]) -> int:
        """Remove those of these chunks that nothing came to name since they were found to be garbage."""
        await self._learn_of_writes(locked)
        await self._follow(locked)
        named = locked.plan.news
        return await locked.transaction.run(
            sql.COLLECT, thread_id=locked.thread_id, piece_ids=[each for each in chunks if each not in named]
        )

    async def _follow(self, locked: _Locked) -> None:
        """Learn what the index pieces among those that came to be named name themselves."""
        plan = locked.plan
        while wanted := plan.news - plan.followed:
            found = await locked.transaction.fetch_all(sql.CHILDREN, thread_id=locked.thread_id, piece_ids=list(wanted))
            plan.followed |= wanted
            for children in found:
                plan.news.update(unpack_ids(children))

    async def _learn_of_writes(self, locked: _Locked) -> None:
        plan = locked.plan
        if locked.written_before == plan.written:
            return
        rows = await locked.transaction.fetch_all(sql.NEW_WRITES, thread_id=locked.thread_id, members=plan.members)
        for row in rows:
            plan.members.append(row.member)
            plan.news.update(unpack_ids(row.piece_ids))
        locked.knows_writes = True

    async def _drop_references(self, request: _Request, plan: Plan) -> None:
        """Let go of blobs and artifacts that nothing in the thread names any more."""
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            if not await transaction.fetch_only(sql.REFERS_TO_UNNAMED, thread_id=request.thread_id):
                return
        async with self._locked(request, plan) as locked:
            await self._access.offload.ledger.keep(locked.transaction, request.thread_id)
            await locked.touch(None)
        self._took(locked)

    # --- pending writes --------------------------------------------------------------------------------------------

    async def _drop_writes(self, request: _Request, sealer: Sealer, older_than: datetime) -> None:
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            plan = await self._plan(transaction, request, sealer)
        if plan is None:
            return
        old = {ref for ref, newest in plan.newest_write.items() if newest < older_than}
        queue = sorted(writes_that_may_go(plan.thread, old))
        while queue:
            batch = self._next_batch(plan, queue)
            async with self._locked(request, plan) as locked:
                held = await self._needed_now(locked, batch)
                going = [each for each in batch if each not in held]
                writes = [each for ref in going for each in plan.writes[ref]]
                if writes:
                    removed = await locked.transaction.fetch_all(
                        sql.DELETE_WRITES,
                        thread_id=locked.thread_id,
                        namespaces=[each.namespace for each in writes],
                        checkpoint_ids=[each.checkpoint_id for each in writes],
                        task_ids=[each.task_id for each in writes],
                        idx=[each.idx for each in writes],
                        members=[each.member for each in writes],
                    )
                    locked.take_writes(removed)
                    await locked.touch(None)
            self._took(locked)
            queue = queue[len(batch) :]
            await asyncio.sleep(0)
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            garbage = await _garbage(transaction, request.thread_id)
        await self._collect(request, plan, self._chunk_batches(garbage))
        await self._drop_references(request, plan)

    async def _needed_now(self, locked: _Locked, batch: Sequence[CheckpointRef]) -> set[CheckpointRef]:
        """Which of these checkpoints' writes are needed by now: a head's, a fresh delta line's, a working task's."""
        plan = locked.plan
        held = {(name, row.head_id) for name, row in locked.heads.items()}
        for name in {name for name, _ in plan.fresh}.intersection(plan.thread):
            fresh = [entry for at, entry in plan.fresh if at == name]
            held.update((name, each) for each in needed(plan.thread[name].entries, fresh))
            held.update((name, each.checkpoint_id) for each in fresh)
        if locked.written_before != plan.written:
            found: dict[CheckpointRef, set[MemberRow]] = {}
            for write in await locked.writes_at(batch):
                found.setdefault((write.namespace, write.checkpoint_id), set()).add(write)
            held.update(ref for ref in batch if found.get(ref) != set(plan.writes[ref]))
        return held


def sum_of_removals(one: Removal, other: Removal) -> Removal:
    """What both removed."""
    return Removal(
        threads=one.threads + other.threads,
        checkpoints=one.checkpoints + other.checkpoints,
        pending_writes=one.pending_writes + other.pending_writes,
    )


def _doomed(plan: Plan, choice: Choice) -> dict[str, set[str]]:
    since = choice.rule.writes_since if isinstance(choice, ByRule) else None
    written = set() if since is None else {ref for ref, newest in plan.newest_write.items() if newest >= since}
    return choice.doomed(plan.thread, written)


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
        frozenset(each.name for each in opened.manifest.channels),
        opened.manifest.delta_channels,
        _outer(opened.manifest.metadata.get("parents")),
    )


def _outer(parents: Any) -> tuple[CheckpointRef, ...]:
    """What a sub-agent's metadata says about the namespaces around it; whoever writes something else says nothing."""
    if not isinstance(parents, dict):
        return ()
    return tuple((name, each) for name, each in parents.items() if isinstance(name, str) and isinstance(each, str))


def _live(opened: Collection[OpenedCheckpoint]) -> LiveSet:
    total = LiveSet()
    for each in opened:
        total = total.add(each.member)
    return total


async def _walk(
    transaction: Transaction, thread_id: str, sealer: Sealer, namespace: str
) -> AsyncIterator[OpenedCheckpoint]:
    """All checkpoints of a namespace, opened; other requests of this process have their turn in between."""
    where = {"thread_id": thread_id, "namespace": namespace}
    ids = await transaction.fetch_all(sql.CHECKPOINT_IDS, **where)
    for some in _parts(ids, _READ_ROWS):
        found = await transaction.fetch_all(sql.CHECKPOINTS, **where, checkpoint_ids=some)
        for number, row in enumerate(found):
            if number % _TURN_ROWS == 0:
                await asyncio.sleep(0)
            yield open_checkpoint(sealer, row)


async def _garbage(
    transaction: Transaction, thread_id: str, namespaces: Sequence[str] = (), checkpoint_ids: Sequence[str] = ()
) -> list[GarbageRow]:
    """The pieces that nothing names once these checkpoints and their writes are gone."""
    return await transaction.fetch_all(
        sql.GARBAGE, thread_id=thread_id, namespaces=namespaces, checkpoint_ids=checkpoint_ids
    )


def _columns(refs: Collection[CheckpointRef]) -> tuple[list[str], list[str]]:
    return [name for name, _ in refs], [each for _, each in refs]


def _parts(items: Sequence[str], count: int) -> list[Sequence[str]]:
    return [items[at : at + count] for at in range(0, len(items), count)]
