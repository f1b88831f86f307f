"""Removing checkpoints and pending writes from threads that go on being written to.

1. **Plan**, in a snapshot that locks nothing: open every checkpoint, compare all of it with the seals, choose what goes
   (`storage.threads.thinning`), and find the chunks that nothing will name then.
2. **Remove**, a batch at a time: a short transaction that locks the thread, learns what came since the plan (the sealed
   live set proves that it learned of everything), spares what that needs, and leaves the seals true. A save waits for
   one batch, never for the walk.
3. **Collect** chunks in the same way: a candidate goes only if nothing that came since names it.

Checkpoints go before their parents do, so that after each batch everything that is left loads. A process that dies
between two batches leaves a whole thread; doing it again goes on. It promises nothing about checkpoints that are saved
meanwhile, except that they stay. What may go is opened, so that a thread under a client-held share needs the share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import open_own_head
from storage.errors import IntegrityFailure, ThreadNotFound
from storage.format.chain import HeadSeal
from storage.format.record import MemberRow, seal_head
from storage.format.token import ThreadToken
from storage.model import Removal
from storage.scope import ClientShare, Scope
from storage.statements.threads import pruning as sql
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
    with_theirs,
)
from storage.threads.thinning import (
    AllButLatest,
    ByRule,
    CheckpointRef,
    Choice,
    OfRuns,
    StaleError,
    ThinningRule,
    children_first,
    needed,
    writes_that_may_go,
)

# Rows that one transaction removes while a save may be waiting for it.
BATCH_ROWS = 100

NOTHING = Removal(threads=0, checkpoints=0, pending_writes=0)


@dataclass(slots=True)
class _Removed:
    """What a request has removed so far; it outlives its attempts."""

    checkpoints: int = 0
    pending_writes: int = 0

    def removal(self) -> Removal:
        """What the caller is told of it."""
        if not self.checkpoints and not self.pending_writes:
            return NOTHING
        return Removal(threads=1, checkpoints=self.checkpoints, pending_writes=self.pending_writes)


@dataclass(frozen=True, slots=True)
class _Request(Target):
    """One thread to remove from, and what was removed so far."""

    removed: _Removed = field(default_factory=_Removed)


class Pruning:
    """Removes what is not needed of threads that stay."""

    def __init__(self, access: Access, plans: Plans | None = None, *, batch_rows: int = BATCH_ROWS) -> None:
        """``batch_rows``: what one transaction removes at most."""
        self._access = access
        self._plans = plans or Plans(access)
        self._batch_rows = batch_rows

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
        return await self._remove(
            _Request(scope, thread_id, guard, restores=False, touches=False, whole=False), ByRule(rule), share
        )

    async def preview(
        self, scope: Scope, thread_id: str, rule: ThinningRule, *, share: ClientShare | None = None
    ) -> Removal:
        """What `thin` would remove now. Reads only.

        Raises:
            ClientShareRequired, ClientShareWrong, ThreadArchived, IntegrityFailure: as `keep_latest`.
        """
        request = _Request(scope, thread_id, None, restores=False, touches=False, whole=False)

        async def attempt(sealer: Sealer) -> Removal:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                plan = await self._plans.read(transaction, request, sealer)
            found = _Removed()
            if plan is not None:
                refs = [(name, each) for name, some in doomed_of(plan, ByRule(rule)).items() for each in some]
                found.checkpoints = len(refs)
                found.pending_writes = sum(len(plan.writes.get(ref, ())) for ref in refs)
            return found.removal()

        try:
            return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)
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
        request = _Request(scope, thread_id, guard, restores=False, touches=False, whole=False)

        async def attempt(sealer: Sealer) -> None:
            await in_rounds(lambda: self._drop_writes(request, sealer, older_than))

        return await self._counted(request, attempt, share)

    # --- rounds ----------------------------------------------------------------------------------------------------

    async def _remove(self, request: _Request, choice: Choice, share: ClientShare | None) -> Removal:
        async def attempt(sealer: Sealer) -> None:
            await in_rounds(lambda: self._prune(request, sealer, choice))

        return await self._counted(request, attempt, share)

    async def _counted(
        self, request: _Request, attempt: Callable[[Sealer], Awaitable[None]], share: ClientShare | None
    ) -> Removal:
        with suppress(ThreadNotFound, Gone):
            await self._access.with_existing_keys(request.scope, attempt, ThreadNotFound(), share)
        return request.removed.removal()

    async def _prune(self, request: _Request, sealer: Sealer, choice: Choice) -> None:
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            plan = await self._plans.read(transaction, request, sealer)
            if plan is None:
                return
            # Of a long thread it takes long; others have their turn meanwhile.
            plan.doomed = await asyncio.to_thread(doomed_of, plan, choice)
            names, ids = columns_of([(name, each) for name, some in plan.doomed.items() for each in some])
            garbage = await garbage_of(transaction, request.thread_id, names, ids)
        queue = await asyncio.to_thread(self._queue, plan)
        chunks = self._plans.chunk_batches(garbage)
        spared_any = False
        while queue:
            batch = self._next_batch(plan, queue)
            # What is little goes together with the last checkpoints.
            last = chunks[0] if len(batch) == len(queue) and len(chunks) == 1 and not spared_any else None
            try:
                spared = await self._remove_batch(request, plan, choice, batch, last)
            except WrittenMeanwhile as late:
                if choice.takes_all:
                    raise StaleError from None
                spared = {(name, each) for name, each in with_theirs(plan, late.refs) if each in plan.doomed[name]}
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
                chunks = self._plans.chunk_batches(await garbage_of(transaction, request.thread_id))
        await self._plans.collect(request, plan, chunks)
        await self._plans.drop_references(request, plan)

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

    async def _remove_batch(
        self,
        request: _Request,
        plan: Plan,
        choice: Choice,
        batch: Sequence[CheckpointRef],
        chunks: list[bytes] | None,
    ) -> set[CheckpointRef]:
        """Remove a batch, and with the last one the chunks that go with it; returns what was spared."""
        async with self._plans.locked(request, plan) as locked:
            spared = self._plans.spared(locked, choice)
            here = plan.thread
            batch = [at for at in batch if at not in spared and at[0] in here and at[1] in here[at[0]].entries]
            if batch:
                await self._delete(locked, batch)
            if chunks is not None and not spared:
                await self._plans.collect_in(locked, chunks)
        self._took(request, locked)
        plan.fresh.clear()
        return spared

    async def _delete(self, locked: LockedThread, batch: Sequence[CheckpointRef]) -> None:
        plan, transaction = locked.plan, locked.transaction
        names, ids = columns_of(batch)
        where = {"thread_id": locked.thread_id, "namespaces": names, "checkpoint_ids": ids}
        found: dict[CheckpointRef, list[MemberRow]] = {}
        for write in await transaction.fetch_all(sql.DELETE_WRITES_OF, **where):
            found.setdefault((write.namespace, write.checkpoint_id), []).append(write)
        self._plans.compare_with_plan(plan, batch, found)
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
        await locked.touch(self._access.clock.now() if locked.target.touches else None)

    async def _head_after(self, locked: LockedThread, name: str, taken: set[str]) -> tuple[str, HeadSeal] | None:
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

    def _took(self, request: _Request, locked: LockedThread) -> None:
        """Account for a batch that was committed."""
        plan = locked.plan
        locked.keep_plan_true()
        for name, (head_id, head) in locked.moved.items():
            token = ThreadToken.of(plan.sealer.without_share, name, head_id, head)
            self._access.acknowledge(request.scope, plan.sealer, request.thread_id, token)
        request.removed.checkpoints += len(locked.taken)
        request.removed.pending_writes += locked.writes_taken

    # --- pending writes --------------------------------------------------------------------------------------------

    async def _drop_writes(self, request: _Request, sealer: Sealer, older_than: datetime) -> None:
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            plan = await self._plans.read(transaction, request, sealer)
        if plan is None:
            return
        old = {ref for ref, newest in plan.newest_write.items() if newest < older_than}
        queue = sorted(writes_that_may_go(plan.thread, old))
        while queue:
            batch = self._next_batch(plan, queue)
            async with self._plans.locked(request, plan) as locked:
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
            self._took(request, locked)
            queue = queue[len(batch) :]
            await asyncio.sleep(0)
        async with self._access.unit_of_work.snapshot(request.scope) as transaction:
            garbage = await garbage_of(transaction, request.thread_id)
        await self._plans.collect(request, plan, self._plans.chunk_batches(garbage))
        await self._plans.drop_references(request, plan)

    async def _needed_now(self, locked: LockedThread, batch: Sequence[CheckpointRef]) -> set[CheckpointRef]:
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
