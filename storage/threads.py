"""Whole threads: list, show, settings, copy, delete, prune, delete for runs.

Removal keeps the tamper evidence true: what goes is read first, compared with the live sets of its thread, and
subtracted. It never takes what a survivor needs: ancestors down to the value that a delta channel is rebuilt from,
pending writes of checkpoints that stay (or have not arrived yet), and pieces that anything left still names.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access import Access
from storage.clock import Clock
from storage.completeness import (
    BEFORE_WRITES,
    Writes,
    admit,
    check_writes,
    compare_namespaces,
    compare_writes,
    open_own_head,
    walk,
)
from storage.errors import (
    DeltaChainNeeded,
    IntegrityFailure,
    ThreadArchived,
    ThreadExists,
    ThreadNotFound,
)
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal
from storage.format.record import (
    check_share,
    new_thread,
    open_thread,
    open_thread_seal,
    open_write,
    seal_checkpoint,
    seal_head,
    seal_thread,
    seal_write,
)
from storage.format.token import ThreadToken, incarnation_tag, removal_mac, thread_tag
from storage.idempotency import claim, settle
from storage.model import Copied, Idempotency, Page, Removal, Status, Strategy, Thread
from storage.postgres import threads as sql
from storage.postgres.checkpoints import SEAL_THREAD
from storage.postgres.completeness import REMEMBER_REMOVAL
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, check_id

# Rows that are opened at a time while a whole thread is walked.
_STRETCH_ROWS = 500

NOTHING = Removal(threads=0, checkpoints=0, pending_writes=0)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What removal must know of a checkpoint; its manifest is not kept."""

    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    member: bytes
    channels: frozenset[str]
    delta_channels: tuple[str, ...]


class Threads:
    """The verbs on whole threads."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def list(
        self,
        scope: Scope,
        *,
        status: Status | None = None,
        agent: str | None = None,
        tier: Literal["hot", "archive"] | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
    ) -> Page[Thread]:
        """Threads, newest first. Clear columns only; ``status`` and ``tier`` are advisory."""
        moment = datetime.fromisoformat(after[0]) if after else None
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(
                sql.LIST,
                scope.tenant_id,
                scope.subject_id,
                status,
                agent,
                tier,
                moment,
                after[1] if after else None,
                limit,
            )
        last = (rows[-1]["created_at"].isoformat(), rows[-1]["thread_id"]) if len(rows) == limit else None
        return Page([Thread(**dict(row)) for row in rows], last)

    async def get(self, scope: Scope, thread_id: str) -> Thread:
        """One thread.

        Raises:
            ThreadNotFound: there is none.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            return await _get(transaction, scope, thread_id)

    async def put(
        self,
        scope: Scope,
        thread_id: str,
        *,
        strict: bool | None = None,
        agent: str | None = None,
        agent_given: bool = False,
        share: ClientShare | None = None,
    ) -> Thread:
        """Set what is given, creating the thread if need be; one that is made with a ``share`` keeps needing it.

        Raises:
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        check_id(thread_id, "thread id")

        async def with_sealer(sealer: Sealer) -> Thread:
            now = self._access.clock.now()
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                row = await transaction.fetchrow(
                    sql.PUT,
                    scope.tenant_id,
                    scope.subject_id,
                    thread_id,
                    agent,
                    strict,
                    now,
                    seal_thread(sealer, thread_id, now, new_thread(sealer, thread_id)),
                    agent_given,
                    sealer.shared,
                )
                open_thread(sealer, thread_id, row["created_at"], row["seal"])
                return await _get(transaction, scope, thread_id)

        return await self._access.writing(scope, with_sealer, share)

    async def delete(self, scope: Scope, thread_id: str) -> Removal:
        """Remove a thread with everything in it; a client-held share is not needed for that.

        Raises:
            ThreadNotFound: there is none.
        """
        sealer = await self._access.sealer_if_any(scope)

        async def attempt() -> Removal:
            async with self._access.unit_of_work.begin(scope) as transaction:
                removal = await _delete(transaction, scope, sealer, thread_id, self._access.clock.now())
                if removal is not NOTHING:
                    await self._access.offload.ledger.drop(transaction, scope, thread_id)
            if removal is NOTHING:
                raise ThreadNotFound
            return removal

        return await self._access.unit_of_work.retrying(attempt)

    async def prune(
        self, scope: Scope, thread_ids: Sequence[str], strategy: Strategy, share: ClientShare | None = None
    ) -> Removal:
        """Keep each namespace's head and what it needs, or (``delete``) nothing. Unknown threads are passed over.

        One transaction a thread: what was pruned stays pruned if a later thread fails; repeat to finish. ``share`` is
        used for threads that were made under one.

        Raises:
            ClientShareRequired, ClientShareWrong: a thread needs a share, or another one.
        """
        total = NOTHING
        for thread_id in dict.fromkeys(thread_ids):
            if strategy == "delete":
                total = _sum(total, await self._delete_if_there(scope, thread_id))
            else:
                total = _sum(total, await self._remove(scope, thread_id, _all_but_latest, share))
        return total

    async def delete_runs(self, scope: Scope, run_ids: Sequence[str], share: ClientShare | None = None) -> Removal:
        """Remove all checkpoints of these runs, with their writes, in every thread and namespace of the subject.

        Raises:
            ClientShareRequired, ClientShareWrong: as `prune`; what was removed from other threads stays removed.
            DeltaChainNeeded: a checkpoint of another run is rebuilt from one of them; that thread is unchanged.
        """
        wanted = frozenset(run_ids)
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.THREADS_OF_RUNS, scope.tenant_id, scope.subject_id, sorted(wanted))

        def choose(entries: Sequence[_Entry]) -> set[str]:
            doomed = {each.checkpoint_id for each in entries if each.run_id in wanted}
            survivors = [each for each in entries if each.checkpoint_id not in doomed]
            if doomed & _needed(entries, survivors):
                raise DeltaChainNeeded
            return doomed

        total = NOTHING
        for row in rows:
            total = _sum(total, await self._remove(scope, row["thread_id"], choose, share))
        return total

    async def copy(
        self,
        scope: Scope,
        source: str,
        target: str,
        idempotency: Idempotency | None = None,
        share: ClientShare | None = None,
    ) -> Copied:
        """Copy a thread, history and pending writes included. Chunks move as ciphertext, the rest is re-sealed.

        The copy of a thread under a client-held share is under the same one.

        Raises:
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the source's.
            ThreadNotFound: there is no source.
            ThreadExists: the target exists.
        """
        check_id(target, "target thread id")

        async def attempt(sealer: Sealer) -> Copied:
            async with self._access.unit_of_work.frozen(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                now = self._access.clock.now()
                if idempotency is None:
                    return await self._copied(transaction, scope, sealer, source, target, now)
                replayed = await claim(transaction, scope, sealer, idempotency, now, Copied)
                if replayed is not None:
                    await admit(transaction, scope, sealer, source)
                    return replayed
                copied = await self._copied(transaction, scope, sealer, source, target, now)
                await settle(transaction, scope, sealer, idempotency, copied)
                return copied

        return await self._access.reading(scope, attempt, ThreadNotFound(), share)

    async def _copied(
        self, transaction: Transaction, scope: Scope, sealer: Sealer, source: str, target: str, now: datetime
    ) -> Copied:
        copied = await _copy(transaction, scope, sealer, source, target, now)
        await self._access.offload.ledger.copy(transaction, scope, source, target)
        return copied

    async def _delete_if_there(self, scope: Scope, thread_id: str) -> Removal:
        try:
            return await self.delete(scope, thread_id)
        except ThreadNotFound:
            return NOTHING

    async def _remove(
        self,
        scope: Scope,
        thread_id: str,
        choose: Callable[[Sequence[_Entry]], set[str]],
        share: ClientShare | None,
    ) -> Removal:
        async def attempt(sealer: Sealer) -> Removal:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                changed: list[ThreadToken] = []
                removal = await _remove(transaction, scope, sealer, thread_id, choose, self._access.clock, changed)
                # Also when no checkpoint goes: a write that was replaced may have been the last to name a blob.
                await self._access.offload.ledger.keep(transaction, scope, thread_id)
            for token in changed:
                self._access.head_anchors.note(scope, sealer, thread_id, token)
            return removal

        try:
            return await self._access.reading(scope, attempt, ThreadNotFound(), share)
        except ThreadNotFound:
            return NOTHING


def _sum(one: Removal, other: Removal) -> Removal:
    return Removal(
        threads=one.threads + other.threads,
        checkpoints=one.checkpoints + other.checkpoints,
        pending_writes=one.pending_writes + other.pending_writes,
    )


async def _get(transaction: Transaction, scope: Scope, thread_id: str) -> Thread:
    row = await transaction.fetchrow(sql.ONE, scope.tenant_id, scope.subject_id, thread_id)
    if row is None:
        raise ThreadNotFound
    return Thread(**dict(row))


async def _delete(
    transaction: Transaction, scope: Scope, sealer: Sealer | None, thread_id: str, now: datetime
) -> Removal:
    place = (scope.tenant_id, scope.subject_id, thread_id)
    locked = await transaction.fetchrow(sql.LOCK, *place)
    if locked is None:
        return NOTHING
    # What is damaged, or sealed under keys that are gone, can be deleted, too; but then nothing proves that a request
    # did it, and whoever holds a token of the thread is told.
    with suppress(IntegrityFailure, KeyDestroyed):
        if sealer is not None:
            thread = open_thread_seal(sealer, thread_id, locked["created_at"], locked["seal"])
            removal = removal_mac(sealer, thread_tag(sealer, thread_id), incarnation_tag(sealer, thread.incarnation))
            await transaction.execute(REMEMBER_REMOVAL, scope.tenant_id, scope.subject_id, removal, now)
    writes, checkpoints, *_ = [await transaction.execute(statement, *place) for statement in sql.DELETE_ALL]
    return Removal(threads=1, checkpoints=checkpoints, pending_writes=writes)


def _all_but_latest(entries: Sequence[_Entry]) -> set[str]:
    latest = entries[-1]
    return {each.checkpoint_id for each in entries} - _needed(entries, [latest]) - {latest.checkpoint_id}


def _needed(entries: Sequence[_Entry], survivors: Sequence[_Entry]) -> set[str]:
    """Ancestors that survivors' delta channels are rebuilt from: back to one that holds a value, it included."""
    by_id = {each.checkpoint_id: each for each in entries}
    needed: set[str] = set()
    for survivor in survivors:
        for channel in survivor.delta_channels:
            seen: set[str] = set()
            at = survivor.parent_id
            while at is not None and at in by_id and at not in seen:
                seen.add(at)
                needed.add(at)
                if channel in by_id[at].channels:
                    break
                at = by_id[at].parent_id
    return needed


async def _entries(
    transaction: Transaction, scope: Scope, sealer: Sealer, thread_id: str, namespace: str, live: LiveSet
) -> list[_Entry]:
    """A namespace's checkpoints, oldest first, compared with what the head seal says must be there."""
    entries: list[_Entry] = []
    found = LiveSet()
    async for opened in walk(transaction, scope, sealer, thread_id, namespace):
        found = found.add(opened.member)
        entries.append(
            _Entry(
                opened.columns.checkpoint_id,
                opened.columns.parent_id,
                opened.columns.run_id,
                opened.member,
                frozenset(each.name for each in opened.manifest.channels),
                opened.manifest.delta_channels,
            )
        )
    if found != live:
        raise IntegrityFailure("checkpoints were added to or taken from this thread outside the gateway")
    return entries


async def _remove(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    thread_id: str,
    choose: Callable[[Sequence[_Entry]], set[str]],
    clock: Clock,
    changed: list[ThreadToken],
) -> Removal:
    place = (scope.tenant_id, scope.subject_id, thread_id)
    locked = await transaction.fetchrow(sql.LOCK, *place)
    if locked is None:
        return NOTHING
    if locked["tier"] != "hot":
        raise ThreadArchived
    thread = open_thread_seal(sealer, thread_id, locked["created_at"], locked["seal"])
    if thread.share_check is None:
        sealer = sealer.without_share  # of several threads, perhaps only some need the share
    check_share(sealer, thread_id, thread)
    removal = NOTHING
    heads = await transaction.fetch(sql.HEADS, *place)
    compare_namespaces(sealer, thread, [row["namespace"] for row in heads])
    written = await check_writes(transaction, scope, sealer, thread_id, thread)
    for row in heads:
        namespace = row["namespace"]
        head = open_own_head(sealer, thread_id, thread, row)
        compare_writes(written.of(namespace, row["head_id"]), head.writes)
        entries = await _entries(transaction, scope, sealer, thread_id, namespace, head.live)
        doomed = choose(entries)
        if not doomed:
            continue
        ids = sorted(doomed)
        writes = await transaction.execute(sql.DELETE_WRITES, *place, namespace, ids)
        thread = _without_writes(thread, (written.of(namespace, each) for each in ids))
        await transaction.execute(sql.DELETE_CHECKPOINTS, *place, namespace, ids)
        removal = _sum(removal, Removal(threads=0, checkpoints=len(ids), pending_writes=writes))
        left = [each for each in entries if each.checkpoint_id not in doomed]
        if not left:
            await transaction.execute(sql.DELETE_HEAD, *place, namespace)
            thread = thread.without_namespace(sealer, namespace, head.sequence)
            continue
        head_id = left[-1].checkpoint_id
        live = _without(head.live, (each.member for each in entries if each.checkpoint_id in doomed))
        after = HeadSeal(head.incarnation, head.sequence + 1, live, written.of(namespace, head_id))
        changed.append(ThreadToken.of(sealer.without_share, namespace, head_id, after))
        await transaction.execute(
            sql.MOVE_HEAD,
            *place,
            namespace,
            head_id,
            after.sequence,
            seal_head(sealer, thread_id, namespace, head_id, after),
        )
    # Also when no checkpoint goes: a pending write that was replaced leaves pieces behind.
    await transaction.execute(sql.COLLECT_CHUNKS, *place)
    if removal is NOTHING:
        return NOTHING
    await transaction.execute(
        sql.TOUCH, *place, clock.now(), seal_thread(sealer, thread_id, locked["created_at"], thread)
    )
    return _sum(removal, Removal(threads=1, checkpoints=0, pending_writes=0))


def _without(live: LiveSet, members: Iterable[bytes]) -> LiveSet:
    for member in members:
        live = live.subtract(member)
    return live


def _without_writes(thread: ThreadSeal, removed: Iterable[LiveSet]) -> ThreadSeal:
    writes = thread.writes
    for each in removed:
        writes = writes.part(each)
    return replace(thread, writes=writes)


async def _copy(
    transaction: Transaction, scope: Scope, sealer: Sealer, source: str, target: str, now: datetime
) -> Copied:
    place = (scope.tenant_id, scope.subject_id, source)
    found = await transaction.fetchrow(sql.READ, *place)
    if found is None:
        raise ThreadNotFound
    if found["tier"] != "hot":
        raise ThreadArchived
    original = open_thread(sealer, source, found["created_at"], found["seal"])
    thread = new_thread(sealer, target)
    heads = await transaction.fetch(sql.HEADS, *place)
    compare_namespaces(sealer, original, [row["namespace"] for row in heads])
    for row in heads:
        thread = thread.with_namespace(sealer, row["namespace"])
    created = await transaction.fetchval(
        sql.CREATE,
        scope.tenant_id,
        scope.subject_id,
        target,
        found["agent"],
        found["status"],
        found["strict"],
        now,
        seal_thread(sealer, target, now, thread),
        sealer.shared,
    )
    if not created:
        raise ThreadExists
    await transaction.execute(sql.COPY_CHUNKS, *place, target)
    found_writes, writes = await _copy_writes(transaction, scope, sealer, source, target)
    compare_writes(found_writes.total, original.writes)
    checkpoints = 0
    for row in heads:
        head = open_own_head(sealer, source, original, row)
        compare_writes(found_writes.of(row["namespace"], row["head_id"]), head.writes)
        checkpoints += await _copy_namespace(transaction, scope, sealer, source, target, thread, writes, row, head)
    if writes.total.count:
        thread = replace(thread, writes=writes.total)
        await transaction.execute(
            SEAL_THREAD, scope.tenant_id, scope.subject_id, target, seal_thread(sealer, target, now, thread)
        )
    return Copied(thread_id=target, checkpoints=checkpoints, pending_writes=writes.total.count)


async def _copy_namespace(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    source: str,
    target: str,
    thread: ThreadSeal,
    writes: Writes,
    row: Any,
    head: HeadSeal,
) -> int:
    namespace = row["namespace"]
    found, copied = LiveSet(), LiveSet()
    batch: list[tuple[object, ...]] = []
    async for opened in walk(transaction, scope, sealer, source, namespace):
        found = found.add(opened.member)
        columns = msgspec.structs.replace(opened.columns, thread_id=target)
        sealed = seal_checkpoint(sealer, columns, opened.manifest)
        copied = copied.add(sealed.member)
        own = (scope.tenant_id, scope.subject_id, sealer.active_key_version, opened.outcome, sealed.envelope)
        batch.append((*own, *columns.location()))
        if len(batch) >= _STRETCH_ROWS:
            await transaction.executemany(sql.ADD_CHECKPOINT, batch)
            batch = []
    if batch:
        await transaction.executemany(sql.ADD_CHECKPOINT, batch)
    if found != head.live:
        raise IntegrityFailure("checkpoints were added to or taken from this thread outside the gateway")
    after = HeadSeal(thread.incarnation, copied.count, copied, writes.of(namespace, row["head_id"]))
    await transaction.execute(
        sql.ADD_HEAD,
        scope.tenant_id,
        scope.subject_id,
        target,
        namespace,
        row["head_id"],
        after.sequence,
        seal_head(sealer, target, namespace, row["head_id"], after),
    )
    return copied.count


async def _copy_writes(
    transaction: Transaction, scope: Scope, sealer: Sealer, source: str, target: str
) -> tuple[Writes, Writes]:
    """Copy all pending writes; returns those that were found, and what they are in the target."""
    found, copied = Writes(), Writes()
    after: tuple[object, ...] = BEFORE_WRITES
    while True:
        rows = await transaction.fetch(sql.ALL_WRITES, scope.tenant_id, scope.subject_id, source, *after, _STRETCH_ROWS)
        batch: list[tuple[object, ...]] = []
        for row in rows:
            opened = open_write(sealer, row)
            columns = msgspec.structs.replace(opened.columns, thread_id=target)
            sealed = seal_write(sealer, columns, opened.record)
            found.add(columns.namespace, columns.checkpoint_id, opened.mac)
            copied.add(columns.namespace, columns.checkpoint_id, sealed.mac)
            own = (scope.tenant_id, scope.subject_id, sealer.active_key_version, sealed.envelope, sealed.member)
            batch.append((*own, *columns.location()))
            after = (columns.namespace, columns.checkpoint_id, columns.task_id, columns.idx)
        if batch:
            await transaction.executemany(sql.ADD_WRITE, batch)
        if len(rows) < _STRETCH_ROWS:
            return found, copied
