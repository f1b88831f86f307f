"""Whole threads: list, show, settings, copy, delete; what removes a part of one is in `storage.threads.pruning`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.access.completeness import (
    BEFORE_WRITES,
    Writes,
    admit,
    compare_checkpoints,
    compare_namespaces,
    compare_writes,
    open_listed,
    open_own_head,
    walk,
)
from storage.access.idempotency import claim, settle
from storage.concurrency.turns import Pauses
from storage.control.rows import ControlRows
from storage.errors import (
    IntegrityFailure,
    ThreadArchived,
    ThreadExists,
    ThreadNotFound,
)
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal
from storage.format.record import (
    new_thread,
    open_thread,
    open_thread_seal,
    open_write,
    seal_checkpoint,
    seal_head,
    seal_thread,
    seal_write,
)
from storage.format.token import incarnation_tag, removal_mac, thread_tag
from storage.model import Copied, Idempotency, Page, Removal, Status, Strategy, Thread
from storage.postgres import tags as tags_sql
from storage.postgres import threads as sql
from storage.postgres.archives import DELETE_STUB
from storage.postgres.checkpoints import HEAD_AND_NEWEST, LEFT_OVER, SEAL_THREAD
from storage.postgres.completeness import REMEMBER_REMOVAL
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, check_id
from storage.threads.holds import refuse_held
from storage.threads.pruning import NOTHING, Guard, Pruning, sum_of_removals

# Rows that are opened at a time while a whole thread is walked.
_STRETCH_ROWS = 500


class Threads:
    """The verbs on whole threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pruning = Pruning(access)

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
        """Threads, newest first. Each one's seal is opened; ``status``, ``agent`` and ``tier`` are advisory.

        One that was made or altered outside the gateway is told to be damaged, and hides no other.

        Raises:
            IntegrityFailure: the subject's keys are gone.
        """
        moment = datetime.fromisoformat(after[0]) if after else None

        async def with_sealer(sealer: Sealer) -> Page[Thread]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
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
            pauses = Pauses()
            threads = []
            for row in rows:
                threads.append(self._listed(sealer, row))
                await pauses.after(0)
            last = (rows[-1]["created_at"].isoformat(), rows[-1]["thread_id"]) if len(rows) == limit else None
            return Page(threads, last)

        try:
            return await self._access.reading(scope, with_sealer, ThreadNotFound())
        except ThreadNotFound:
            return Page([], None)

    def _listed(self, sealer: Sealer, row: Any) -> Thread:
        try:
            open_listed(sealer, row)
        except IntegrityFailure:
            self._access.found_damage()
            return _thread(row, damaged=True)
        return _thread(row)

    async def get(self, scope: Scope, thread_id: str) -> Thread:
        """One thread. Its seal is opened, and without a client-held share those of its heads.

        Raises:
            ThreadNotFound: there is none.
            IntegrityFailure: one does not authenticate or is missing, or the head is not the newest checkpoint.
        """

        async def with_sealer(sealer: Sealer) -> Thread:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                return await _compared(transaction, scope, sealer, thread_id)

        return await self._access.reading(scope, with_sealer, ThreadNotFound())

    async def put(
        self,
        scope: Scope,
        thread_id: str,
        *,
        strict: bool | None = None,
        agent: str | None = None,
        agent_given: bool = False,
        share: ClientShare | None = None,
    ) -> tuple[Thread, bool]:
        """Set what is given, creating the thread if need be; one that is made with a ``share`` keeps needing it.

        Returns:
            The thread, and whether it was created.

        Raises:
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
            RowQuotaExceeded: there is no such thread, and the tenant may store no more rows.
        """
        check_id(thread_id, "thread id")

        async def with_sealer(sealer: Sealer) -> tuple[Thread, bool]:
            now = self._access.clock.now()
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
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
                created = row["activity"] == 1
                if created:
                    self._access.row_quotas.require_room(scope)
                return await _get(transaction, scope, thread_id), created

        return await self._access.writing(scope, with_sealer, share)

    async def delete(self, scope: Scope, thread_id: str, *, guard: Guard | None = None) -> Removal:
        """Remove a thread with everything in it; a client-held share is not needed for that.

        Args:
            scope: Whose.
            thread_id: Which.
            guard: Asked under the thread's lock; what it raises leaves the thread as it is.

        Raises:
            LegalHold: somebody must keep it.
            ThreadNotFound: there is none.
        """
        sealer = await self._access.sealer_if_any(scope)

        async def attempt() -> Removal:
            async with self._access.unit_of_work.begin(scope) as transaction:
                now = self._access.clock.now()
                removal = await remove_thread(transaction, self._access.control, scope, sealer, thread_id, now, guard)
                if removal is not NOTHING:
                    await self._access.offload.ledger.drop(transaction, scope, thread_id)
            if removal is NOTHING:
                raise ThreadNotFound
            return removal

        return await self._access.unit_of_work.retrying(attempt)

    async def prune(
        self,
        scope: Scope,
        thread_ids: Sequence[str],
        strategy: Strategy,
        share: ClientShare | None = None,
        *,
        guard: Guard | None = None,
    ) -> Removal:
        """Keep each namespace's head and what it needs, or (``delete``) nothing. Unknown threads are passed over.

        What was pruned stays pruned if a later thread fails; repeat to finish. Damaged ones are left as they are, and
        told of when all others are done. ``share`` is used for threads that were made under one, and ``guard`` for
        those that stay.

        Raises:
            ClientShareRequired, ClientShareWrong: a thread needs a share, or another one.
            IntegrityFailure: a thread is damaged.
            StorageError: as `Pruning.keep_latest`.
        """
        total = NOTHING
        damage: IntegrityFailure | None = None
        for thread_id in dict.fromkeys(thread_ids):
            try:
                if strategy == "delete":
                    removal = await self._delete_if_there(scope, thread_id)
                else:
                    removal = await self._pruning.keep_latest(scope, thread_id, guard=guard, share=share)
                total = sum_of_removals(total, removal)
            except IntegrityFailure as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return total

    async def delete_runs(
        self, scope: Scope, run_ids: Sequence[str], share: ClientShare | None = None, *, guard: Guard | None = None
    ) -> Removal:
        """Remove all checkpoints of these runs, with their writes, in every thread and namespace of the subject.

        Raises:
            ClientShareRequired, ClientShareWrong: as `prune`; what was removed from other threads stays removed.
            DeltaChainNeeded: a checkpoint of another run is rebuilt from one of them.
            StorageError: as `Pruning.delete_runs`.
        """
        return await self._pruning.delete_runs(scope, run_ids, guard=guard, share=share)

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
            RowQuotaExceeded: the tenant may store no more rows.
        """
        check_id(target, "target thread id")

        async def attempt(sealer: Sealer) -> Copied:
            async with self._access.unit_of_work.frozen(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
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
        self._access.row_quotas.require_room(scope)
        copied = await _copy(transaction, scope, sealer, source, target, now)
        await self._access.offload.ledger.copy(transaction, scope, source, target)
        return copied

    async def _delete_if_there(self, scope: Scope, thread_id: str) -> Removal:
        try:
            return await self.delete(scope, thread_id)
        except ThreadNotFound:
            return NOTHING


async def _get(transaction: Transaction, scope: Scope, thread_id: str) -> Thread:
    row = await transaction.fetchrow(sql.ONE, scope.tenant_id, scope.subject_id, thread_id)
    if row is None:
        raise ThreadNotFound
    return _thread(row)


async def _compared(transaction: Transaction, scope: Scope, sealer: Sealer, thread_id: str) -> Thread:
    """A thread that is what its seal and its heads say, in one snapshot."""
    place = (scope.tenant_id, scope.subject_id, thread_id)
    row = await transaction.fetchrow(sql.ONE, *place)
    if row is None:
        if await transaction.fetchval(LEFT_OVER, *place):
            raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
        raise ThreadNotFound
    thread = open_listed(sealer, row)
    if thread.share_check is None:
        heads = await transaction.fetch(sql.HEADS, *place)
        compare_namespaces(sealer, thread, [each["namespace"] for each in heads])
        for each in heads:
            open_own_head(sealer, thread_id, thread, each)
    if row["tier"] == "hot":
        standing = await transaction.fetchrow(HEAD_AND_NEWEST, *place, "")
        if standing["newest_id"] != standing["head_id"]:
            raise IntegrityFailure("the newest checkpoint is not the head")
    return _thread(row)


_COLUMNS = Thread.__dataclass_fields__.keys() - {"damaged"}


def _thread(row: Any, *, damaged: bool = False) -> Thread:
    return Thread(**{name: row[name] for name in _COLUMNS}, damaged=damaged)


async def remove_thread(
    transaction: Transaction,
    control: ControlRows,
    scope: Scope,
    sealer: Sealer | None,
    thread_id: str,
    now: datetime,
    guard: Guard | None = None,
) -> Removal:
    """Remove a thread and everything of it that is in the database, in whichever tier; not what it refers to.

    What is damaged, or sealed under keys that are gone, can be removed, too; but then nothing proves that a request did
    it, and whoever holds a token of the thread is told.

    Args:
        transaction: The caller's, who drops the thread's references in it afterwards (`BlobLedger.drop`).
        control: Checks what is said of holds.
        scope: Whose.
        sealer: Of the scope, if its keys open.
        thread_id: The thread.
        now: Wall time.
        guard: Asked under the thread's lock; what it raises leaves the thread as it is.

    Returns:
        What was removed; `NOTHING` if there is no such thread.

    Raises:
        LegalHold: somebody must keep it.
        IntegrityFailure: what is said of holds was written or edited outside the gateway.
    """
    place = (scope.tenant_id, scope.subject_id, thread_id)
    locked = await transaction.fetchrow(sql.LOCK, *place)
    if locked is None:
        return NOTHING
    await refuse_held(transaction, control, scope, thread_id)
    if guard is not None:
        await guard(transaction)
    with suppress(IntegrityFailure, KeyDestroyed):
        if sealer is not None:
            thread = open_thread_seal(sealer, thread_id, locked["created_at"], locked["seal"])
            removal = removal_mac(sealer, thread_tag(sealer, thread_id), incarnation_tag(sealer, thread.incarnation))
            await transaction.execute(REMEMBER_REMOVAL, scope.tenant_id, scope.subject_id, removal, now)
    stub = await transaction.fetchrow(DELETE_STUB, *place)
    writes, checkpoints, *_ = [await transaction.execute(statement, *place) for statement in sql.DELETE_ALL]
    if stub is not None:
        writes, checkpoints = writes + stub["pending_writes"], checkpoints + stub["checkpoints"]
    return Removal(threads=1, checkpoints=checkpoints, pending_writes=writes)


async def _copy(
    transaction: Transaction, scope: Scope, sealer: Sealer, source: str, target: str, now: datetime
) -> Copied:
    place = (scope.tenant_id, scope.subject_id, source)
    found = await transaction.fetchrow(sql.READ, *place)
    if found is None:
        raise ThreadNotFound
    if found["tier"] != "hot":
        raise ThreadArchived(source)
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
    await transaction.execute(tags_sql.COPY, *place, target)
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
        batch.append((*own, *columns.location(), source))
        if len(batch) >= _STRETCH_ROWS:
            await transaction.executemany(sql.COPY_CHECKPOINT, batch)
            batch = []
    if batch:
        await transaction.executemany(sql.COPY_CHECKPOINT, batch)
    compare_checkpoints(found, head.live)
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
    pauses = Pauses()
    after: tuple[object, ...] = BEFORE_WRITES
    while True:
        rows = await transaction.fetch(sql.ALL_WRITES, scope.tenant_id, scope.subject_id, source, *after, _STRETCH_ROWS)
        batch: list[tuple[object, ...]] = []
        for row in rows:
            await pauses.after(len(row["value"]))
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
