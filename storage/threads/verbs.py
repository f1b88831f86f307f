"""Whole threads: list, show, settings, copy, delete; what removes a part of one is in `storage.threads.pruning`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Literal

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.access.completeness import (
    Writes,
    admit,
    compare_checkpoints,
    compare_namespaces,
    compare_writes,
    open_own_head,
    walk,
)
from storage.access.idempotency import claim, settle
from storage.approvals.leaving import tell_cancelled, waiting_in
from storage.concurrency.turns import Pauses
from storage.control.rows import ControlRows
from storage.effects.copying import copy_effects
from storage.effects.leaving import bury_effects
from storage.errors import (
    IntegrityFailure,
    ThreadArchived,
    ThreadExists,
    ThreadNotFound,
)
from storage.event_queue.model import OfThread
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal
from storage.format.cold.segment import ColdSums
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
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, check_id
from storage.statements.thread_ledgers.approvals import ApprovalRow
from storage.statements.threads import tags as tags_sql
from storage.statements.threads import threads as sql
from storage.statements.threads.archives import DELETE_STUBS
from storage.statements.threads.checkpoints import HEAD_AND_NEWEST, LEFT_OVER
from storage.statements.threads.completeness import REMEMBER_REMOVAL
from storage.threads.holds import refuse_held
from storage.threads.listed import open_listed, page_of, shown, shown_in
from storage.threads.plans import Guard
from storage.threads.pruning import NOTHING, Pruning, sum_of_removals
from storage.tiers.hot import HotRows
from storage.tiers.rows import BEFORE_WRITES, write_key
from storage.tiers.snapshots import Snapshot

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
                rows = await transaction.fetch_all(
                    sql.LIST,
                    status=status,
                    agent=agent,
                    tier=tier,
                    after_at=moment,
                    after_thread=after[1] if after else None,
                    limit=limit,
                )
            return await page_of(rows, sealer, limit, self._access.found_damage)

        try:
            return await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound())
        except ThreadNotFound:
            return Page([], None)

    async def get(self, scope: Scope, thread_id: str) -> Thread:
        """One thread. Its seal is opened, and without a client-held share those of its heads.

        Raises:
            ThreadNotFound: there is none.
            IntegrityFailure: one does not authenticate or is missing, or the head is not the newest checkpoint.
        """

        async def with_sealer(sealer: Sealer) -> Thread:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                return await _compared(Snapshot.hot(transaction, thread_id), sealer)

        return await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound())

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
                row = await transaction.fetch_only(
                    sql.PUT,
                    thread_id=thread_id,
                    agent=agent,
                    strict=strict,
                    now=now,
                    seal=seal_thread(sealer, thread_id, now, new_thread(sealer, thread_id)),
                    client_share=sealer.shared,
                )
                open_thread(sealer, thread_id, row.created_at, row.seal)
                created = row.activity == 1
                if created:
                    self._access.row_quotas.require_room(scope)
                elif agent_given:
                    await transaction.run(sql.SET_AGENT, thread_id=thread_id, agent=agent)
                shown = await shown_in(transaction, sealer, thread_id)
                if created:
                    said = OfThread(thread_id)
                    await self._access.emitting.of_thread(transaction, scope, "thread.created", said)
                return shown, created

        return await self._access.with_keys(scope, with_sealer, share)

    async def delete(self, scope: Scope, thread_id: str, *, guard: Guard | None = None) -> Removal:
        """Remove a thread with everything in it; a client-held share is not needed for that.

        ``guard`` is asked under the thread's lock; what it raises leaves the thread as it is.

        Raises:
            LegalHold: somebody must keep it.
            ThreadNotFound: there is none.
        """
        sealer = await self._access.sealer_if_any(scope)
        await self._access.emitting.ready(scope.tenant_id)

        gone: list[ApprovalRow] = []

        async def guarded(transaction: Transaction) -> None:
            if guard is not None:
                await guard(transaction)
            gone[:] = await waiting_in(transaction, thread_id)

        async def attempt() -> Removal:
            async with self._access.unit_of_work.begin(scope) as transaction:
                now = self._access.clock.now()
                said = OfThread(thread_id, step=1)
                await self._access.emitting.of_thread(transaction, scope, "thread.deleted", said)
                removal = await remove_thread(transaction, self._access.control, scope, sealer, thread_id, now, guarded)
                if removal is not NOTHING:
                    await self._access.offload.ledger.drop(transaction, thread_id)
                    await tell_cancelled(self._access, transaction, scope, thread_id, gone)
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

        The copy of a thread under a client-held share is under the same one, and the copy of a child has its parent.

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
                    return await self._copied(_Copy(transaction, scope, sealer, source, target, now))
                replayed = await claim(transaction, sealer, idempotency, now, Copied)
                if replayed is not None:
                    await admit(transaction, sealer, source)
                    return replayed
                copied = await self._copied(_Copy(transaction, scope, sealer, source, target, now))
                await settle(transaction, sealer, idempotency, copied)
                return copied

        copied = await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)
        await self._access.emitting.mark_due(scope.tenant_id)
        return copied

    async def _copied(self, copy: "_Copy") -> Copied:
        self._access.row_quotas.require_room(copy.scope)
        copied = await copy.run()
        await self._access.offload.ledger.copy(copy.transaction, copy.source, copy.target)
        noted = self._access.note_ledger(copy.scope, copy.sealer, copy.target)
        await copy_effects(copy.transaction, copy.sealer, copy.source, copy.target, noted)
        said = OfThread(copy.target)
        await self._access.emitting.of_thread(copy.transaction, copy.scope, "thread.created", said)
        return copied

    async def _delete_if_there(self, scope: Scope, thread_id: str) -> Removal:
        try:
            return await self.delete(scope, thread_id)
        except ThreadNotFound:
            return NOTHING


async def _compared(snapshot: Snapshot, sealer: Sealer) -> Thread:
    """A thread that is what its seal and its heads say, in one snapshot."""
    transaction, thread_id = snapshot.transaction, snapshot.thread_id
    row = await transaction.fetch_one(sql.ONE, thread_id=thread_id)
    if row is None:
        if await transaction.fetch_only(LEFT_OVER, thread_id=thread_id):
            raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
        raise ThreadNotFound
    thread = open_listed(sealer, row)
    if thread.share_check is None:
        heads = await snapshot.heads()
        cold = await _cold_namespaces(snapshot, sealer, thread) if row.segmented else None
        compare_namespaces(sealer, thread, [each.namespace for each in heads], cold)
        for each in heads:
            open_own_head(sealer, thread_id, thread, each)
    if row.tier == "hot":
        ends = await transaction.fetch_only(HEAD_AND_NEWEST, thread_id=thread_id, namespace="")
        if ends.newest_id != ends.head_id:
            raise IntegrityFailure("the newest checkpoint is not the head")
    return shown(row, thread)


async def _cold_namespaces(snapshot: Snapshot, sealer: Sealer, thread: ThreadSeal) -> LiveSet | None:
    """The sum of the namespaces that are in segments with their heads."""
    row = await snapshot.thread()
    if row is None:
        return None
    return ColdSums.open(sealer, snapshot.thread_id, row.created_at, thread.incarnation, row.cold).namespaces


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
    it, and the holder of a token of the thread is told.

    The caller drops the thread's references in the same transaction afterwards (`BlobLedger.drop`). ``sealer`` is of
    the scope, if its keys open. ``guard`` is asked under the thread's lock; what it raises leaves the thread as it is.

    Returns:
        What was removed; `NOTHING` if there is no such thread.

    Raises:
        LegalHold: somebody must keep it.
        IntegrityFailure: what is said of holds was written or edited outside the gateway.
    """
    locked = await transaction.fetch_one(sql.LOCK, thread_id=thread_id)
    if locked is None:
        return NOTHING
    await refuse_held(transaction, control, scope, thread_id)
    if guard is not None:
        await guard(transaction)
    with suppress(IntegrityFailure, KeyDestroyed):
        if sealer is not None:
            thread = open_thread_seal(sealer, thread_id, locked.created_at, locked.seal)
            removal = removal_mac(sealer, thread_tag(sealer, thread_id), incarnation_tag(sealer, thread.incarnation))
            await transaction.run(REMEMBER_REMOVAL, removal=removal, removed_at=now)
    stubs = await transaction.fetch_all(DELETE_STUBS, thread_id=thread_id)
    await bury_effects(transaction, thread_id)
    writes, checkpoints, *_ = [await transaction.run(each, thread_id=thread_id) for each in sql.DELETE_ALL]
    return Removal(
        threads=1,
        checkpoints=checkpoints + sum(each.checkpoints for each in stubs),
        pending_writes=writes + sum(each.pending_writes for each in stubs),
    )


class _Copy(msgspec.Struct, frozen=True):
    """A copy of a thread, in one transaction."""

    transaction: Transaction
    scope: Scope
    sealer: Sealer
    source: str
    target: str
    now: datetime

    async def run(self) -> Copied:
        """Copy everything but what the thread refers to.

        Raises:
            ThreadNotFound: there is no source.
            ThreadArchived: it is to be restored first.
            ThreadExists: the target exists.
            IntegrityFailure: the source is not what its seals say.
        """
        transaction, sealer, source, target = self.transaction, self.sealer, self.source, self.target
        found = await transaction.fetch_one(sql.READ, thread_id=source)
        if found is None:
            raise ThreadNotFound
        if found.tier != "hot" or found.cold is not None:
            raise ThreadArchived(source)
        original = open_thread(sealer, source, found.created_at, found.seal)
        thread = replace(new_thread(sealer, target), link=original.link)
        heads = await transaction.fetch_all(sql.HEADS, thread_id=source)
        compare_namespaces(sealer, original, [row.namespace for row in heads])
        for row in heads:
            thread = thread.with_namespace(sealer, row.namespace)
        created = await transaction.fetch_one(
            sql.CREATE,
            thread_id=target,
            agent=found.agent,
            status=found.status,
            strict=found.strict,
            now=self.now,
            seal=seal_thread(sealer, target, self.now, thread),
            client_share=sealer.shared,
            parent_thread_id=None if thread.link is None else thread.link.thread_id,
        )
        if not created:
            raise ThreadExists
        await transaction.run(sql.COPY_CHUNKS, source=source, target=target)
        written, writes = await self._writes()
        compare_writes(written.total, original.writes)
        checkpoints = 0
        for row in heads:
            head = open_own_head(sealer, source, original, row)
            compare_writes(written.of(row.namespace, row.head_id), head.writes)
            live = await self._namespace(row.namespace, head)
            copied = HeadSeal(thread.incarnation, live.count, live, writes.of(row.namespace, row.head_id))
            await self._add_head(row, copied)
            checkpoints += live.count
        if writes.total.count:
            sealed = seal_thread(sealer, target, self.now, replace(thread, writes=writes.total))
            await transaction.run(sql.SEAL, thread_id=target, seal=sealed)
        await transaction.run(tags_sql.COPY_SEARCHABLE, source=source, target=target)
        await transaction.run(tags_sql.COPY, source=source, target=target)
        return Copied(thread_id=target, checkpoints=checkpoints, pending_writes=writes.total.count)

    async def _add_head(self, row: sql.HeadRow, head: HeadSeal) -> None:
        sealed = seal_head(self.sealer, self.target, row.namespace, row.head_id, head)
        await self.transaction.run(
            sql.ADD_HEAD,
            thread_id=self.target,
            namespace=row.namespace,
            head_id=row.head_id,
            sequence=head.sequence,
            seal=sealed,
        )

    async def _namespace(self, namespace: str, head: HeadSeal) -> LiveSet:
        """Copy the checkpoints of a namespace, all that its head counts; returns what they are in the target."""
        found, copied = LiveSet(), LiveSet()
        batch: list[dict[str, object]] = []
        async for opened in walk(HotRows(self.transaction, self.source), self.sealer, namespace):
            found = found.add(opened.member)
            columns = msgspec.structs.replace(opened.columns, thread_id=self.target)
            sealed = seal_checkpoint(self.sealer, columns, opened.manifest)
            copied = copied.add(sealed.member)
            values = {"outcome": opened.outcome, "manifest": sealed.envelope, "copied_from": self.source}
            batch.append({**msgspec.structs.asdict(columns), **values, "key_version": self.sealer.active_key_version})
            if len(batch) >= _STRETCH_ROWS:
                await self.transaction.run_many(sql.COPY_CHECKPOINT, batch)
                batch = []
        await self.transaction.run_many(sql.COPY_CHECKPOINT, batch)
        compare_checkpoints(found, head.live)
        return copied

    async def _writes(self) -> tuple[Writes, Writes]:
        """Copy all pending writes; returns those that were found, and what they are in the target."""
        found, copied = Writes(), Writes()
        pauses = Pauses()
        rows, after = HotRows(self.transaction, self.source), BEFORE_WRITES
        while True:
            page = await rows.writes_after(after, _STRETCH_ROWS)
            batch: list[dict[str, object]] = []
            for row in page:
                await pauses.after(len(row.value))
                opened = open_write(self.sealer, row)
                columns = msgspec.structs.replace(opened.columns, thread_id=self.target)
                sealed = seal_write(self.sealer, columns, opened.record)
                found.add(columns.namespace, columns.checkpoint_id, opened.mac)
                copied.add(columns.namespace, columns.checkpoint_id, sealed.mac)
                values = {"value": sealed.envelope, "member": sealed.member}
                version = self.sealer.active_key_version
                batch.append({**msgspec.structs.asdict(columns), **values, "key_version": version})
                after = write_key(row)
            await self.transaction.run_many(sql.ADD_WRITE, batch)
            if len(page) < _STRETCH_ROWS:
                return found, copied
