"""Re-sealing a subject's state under its active data key, in the background, and the end of the older ones.

In this order, each step durable and repeatable:

1. **settle**: wait until no request is at work that began before the rotation; what is saved later is sealed anew.
2. **threads**: a few rows at a time, under the thread's lock: chunks, checkpoints, pending writes, heads, and the
   thread's own seal last. **blobs**: pointers, open uploads and artifacts; the objects themselves stay. **receipts**:
   those of idempotency keys. **ledgers**: effects and claims, wherever their threads are. **approvals**: what is asked
   and decided, likewise. **items**: items and their vectors, labels and seals of paths, the subject's seal.
3. **count**: by the headers of the envelopes. Something is left (a copy moved old chunks meanwhile): once more from 2.
   Nothing is left: older versions become retired.
4. **drain**: wait as in 1, and count again; still nothing: they are destroyed, with an entry in the audit log.

Readers and writers go on all the time; a crash at any point leaves every envelope readable, because a version goes
last. Re-sealing opens and seals the same bytes at the same place (`storage.key_lifecycle.sealed_again`): ids, digests
and live sets do not change. Threads and items under a client-held share are left as they are and keep the older
versions. So are archives and segments, unless the rotation was asked to be complete: then **objects** is a step after
the items, which writes them again (`storage.key_lifecycle.rewriting`).
"""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from crypto import Field, KeyDestroyed, Kind, Sealer
from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR
from storage.administration.jobs import MORE, Lease, Slice, outlasting_refusals
from storage.approvals.resealing import ApprovalPlace, reseal_approvals
from storage.archive.moving import THAW_LOOK_SECONDS
from storage.encoding import decode_json, encode_json
from storage.errors import IntegrityFailure, NotFound
from storage.format.key_versions import check_key_version
from storage.format.manifest import chunk_location
from storage.items.resealing import ItemPosition, ItemStep, reseal_items
from storage.key_lifecycle.parts import Parts
from storage.key_lifecycle.rewriting import Rewriting
from storage.key_lifecycle.sealed_again import active_version, seal_thread_again, sealed_again
from storage.ledger.reseal import BlobPosition, reseal_blobs
from storage.postgres.clock import NOW
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.keys import rotation as sql
from storage.statements.thread_ledgers.resealing import LedgerPlace
from storage.statements.threads.archives import STUBS_AFTER
from storage.thread_ledgers.resealing import LedgerPosition, LedgerStep, reseal_ledgers

R = TypeVar("R")

RESEAL_KIND = "reseal"
# As the former, and archives and segments are written again.
COMPLETE_KIND = "reseal-complete"
# Rows of one batch: how long a thread's lock is held, a few milliseconds.
BATCH_ROWS = 64
# After so long another job has its turn.
SLICE_SECONDS = 2.0
# A pause as long as the work before it: re-sealing never takes more than half of one connection and one core.
PAUSE_RATIO = 1.0
# How soon to look again whether everybody has gone.
SETTLE_SECONDS = 0.2
_THREADS_PAGE = 100
_LEAST = -(2**31)


class Reseal:
    """Performs the jobs that `Rotation.rotate_subject` adds."""

    def __init__(self, access: Access, parts: Parts, rewriting: Rewriting, pause_ratio: float = PAUSE_RATIO) -> None:
        self._access = access
        self._rewriting = rewriting
        self._older_transactions = parts.older_transactions
        self._audit = parts.audit
        self._pause_ratio = pause_ratio

    @outlasting_refusals
    async def perform(self, lease: Lease) -> Slice:
        """A slice of a re-seal. Position: the step, then what the step needs."""
        scope = Scope(lease.tenant_id, lease.target)
        step, *at = decode_json(lease.position) if lease.position else ["begin"]
        match step:
            case "begin":
                return await self._begin(lease, scope)
            case "settle" | "drain":
                if not await self._older_transactions.have_ended(datetime.fromisoformat(at[0])):
                    return Slice(ended=False, again_seconds=SETTLE_SECONDS, waits_for="older-transactions")
                if step == "settle":
                    await self._move(lease, scope, "threads", lease.done, "")
                    return MORE
                return await self._access.with_existing_keys(
                    scope, lambda sealer: self._end(lease, scope, sealer), NotFound()
                )
            case "threads":
                return await self._threads(lease, scope, *at)
            case "blobs":
                return await self._blobs(lease, scope, *at)
            case "receipts":
                return await self._receipts(lease, scope, *at)
            case "ledgers" | "approvals" | "items":
                return await self._sealed_beside(step, lease, scope, *at)
            case "objects":
                return await self._objects(lease, scope, *at)
            case _:
                return await self._count(lease, scope, int(at[0]))

    async def _sealed_beside(self, step: str, lease: Lease, scope: Scope, *at: Any) -> Slice:
        """What is sealed beside threads: their ledgers, what people were asked in them, and items."""
        if step == "ledgers":
            return await self._ledgers(lease, scope, *at)
        return await (self._approvals if step == "approvals" else self._items)(lease, scope, *at)

    async def _begin(self, lease: Lease, scope: Scope) -> Slice:
        moment = await self._older_transactions.moment()

        async def count(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                found = await transaction.fetch_only(sql.COUNT_STALE, version=active_version(sealer))
                await lease.advance(transaction, _position("settle", moment.isoformat()), 0, found.stale)

        await self._access.with_existing_keys(scope, count, NotFound())
        return MORE

    async def _move(self, lease: Lease, scope: Scope, *position: str | int) -> None:
        async with self._access.unit_of_work.begin(scope) as transaction:
            await lease.advance(transaction, _position(*position))

    # --- threads ---------------------------------------------------------------------------------------------------

    async def _threads(self, lease: Lease, scope: Scope, done_before: int, after: str) -> Slice:
        until = time.monotonic() + SLICE_SECONDS
        async for thread_id in self._access.unit_of_work.each(scope, sql.THREADS_AFTER, after, _THREADS_PAGE):
            thread = _Thread(thread_id)
            while not thread.finished:
                await self._paced(lambda: self._batch(lease, scope, thread, done_before, after))  # noqa: B023
                if time.monotonic() > until:
                    return MORE
            after = thread_id
        await self._move(lease, scope, "blobs", done_before, *_parts_of(BlobPosition()))
        return MORE

    async def _blobs(self, lease: Lease, scope: Scope, done_before: int, table: str, after: str) -> Slice:
        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                begin = BlobPosition(table, UUID(after))
                batch = await reseal_blobs(transaction, sealer, begin, BATCH_ROWS)
                more = batch.position is not None and ("blobs", done_before, *_parts_of(batch.position))
                await lease.advance(transaction, _position(*(more or ("receipts", done_before, ""))), batch.done)

        await self._paced(lambda: self._access.with_existing_keys(scope, with_sealer, NotFound()))
        return MORE

    async def _paced(self, work: Callable[[], Any]) -> None:
        started = time.monotonic()
        await work()
        await asyncio.sleep((time.monotonic() - started) * self._pause_ratio)

    async def _batch(self, lease: Lease, scope: Scope, thread: "_Thread", done_before: int, after: str) -> None:
        async def with_sealer(sealer: Sealer) -> "_Thread":
            moved = thread.copy()
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                done = await _reseal_thread(transaction, scope, sealer, moved)
                position = _position("threads", done_before, thread.thread_id if moved.finished else after)
                await lease.advance(transaction, position, done)
            return moved

        thread.become(await self._access.with_existing_keys(scope, with_sealer, NotFound()))

    async def _receipts(self, lease: Lease, scope: Scope, done_before: int, after: str) -> Slice:
        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                rows = await transaction.fetch_all(
                    sql.STALE_RECEIPTS, version=active_version(sealer), after_key=after, page_rows=BATCH_ROWS
                )
                done = 0
                for row in rows:
                    location = (row.idempotency_key, row.request_digest)
                    again = sealed_again(sealer, Kind.IDEMPOTENCY, location, row.receipt)
                    if again is not None:
                        done += await transaction.run(
                            sql.RESEAL_RECEIPT,
                            idempotency_key=row.idempotency_key,
                            receipt=again,
                            receipt_before=row.receipt,
                        )
                position: tuple[str | int, ...] = ("ledgers", done_before, *_ledger_parts(LedgerPosition()))
                if len(rows) == BATCH_ROWS:
                    position = ("receipts", done_before, rows[-1].idempotency_key)
                await lease.advance(transaction, _position(*position), done)

        await self._paced(lambda: self._access.with_existing_keys(scope, with_sealer, NotFound()))
        return MORE

    async def _ledgers(
        self, lease: Lease, scope: Scope, done_before: int, step: LedgerStep, *place: str | int
    ) -> Slice:
        thread_id, namespace, name, execution = place
        after = LedgerPlace(str(thread_id), str(namespace), bytes.fromhex(str(name)), int(execution))

        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                batch = await reseal_ledgers(transaction, sealer, LedgerPosition(step, after))
                position: tuple[str | int, ...] = ("approvals", done_before, "", UUID(int=0).hex)
                if batch.position is not None:
                    position = ("ledgers", done_before, *_ledger_parts(batch.position))
                await lease.advance(transaction, _position(*position), batch.done)

        await self._paced(lambda: self._access.with_existing_keys(scope, with_sealer, NotFound()))
        return MORE

    async def _approvals(self, lease: Lease, scope: Scope, done_before: int, thread_id: str, approval_id: str) -> Slice:
        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                after = ApprovalPlace(thread_id, UUID(approval_id))
                done, place = await reseal_approvals(transaction, sealer, after)
                position: tuple[str | int, ...] = ("items", done_before, "items")
                if place is not None:
                    position = ("approvals", done_before, place.thread_id, place.approval_id.hex)
                await lease.advance(transaction, _position(*position), done)

        await self._paced(lambda: self._access.with_existing_keys(scope, with_sealer, NotFound()))
        return MORE

    async def _items(self, lease: Lease, scope: Scope, done_before: int, step: ItemStep, *names: str) -> Slice:
        begin = ItemPosition(step, *map(bytes.fromhex, names))

        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                batch = await reseal_items(transaction, sealer, begin)
                position: tuple[str | int, ...] = ("count", done_before)
                if (after := batch.position) is not None:
                    names = (after.path_id.hex(), after.key_id.hex(), after.model_id.hex())
                    position = ("items", done_before, after.step, *names)
                elif lease.kind == COMPLETE_KIND:
                    position = ("objects", done_before, "", 0)
                await lease.advance(transaction, _position(*position), batch.done)

        await self._paced(lambda: self._access.with_existing_keys(scope, with_sealer, NotFound()))
        return MORE

    async def _objects(self, lease: Lease, scope: Scope, done_before: int, thread_id: str, segment: int) -> Slice:
        async def with_sealer(sealer: Sealer) -> Slice:
            rewritten = await self._rewriting.next(scope, sealer, (thread_id, segment))
            position = ("count", done_before) if rewritten.after is None else ("objects", done_before, *rewritten.after)
            async with self._access.unit_of_work.begin(scope) as transaction:
                await lease.advance(transaction, _position(*position), rewritten.envelopes)
            if rewritten.thaw_seconds:
                again = min(rewritten.thaw_seconds, THAW_LOOK_SECONDS)
                return Slice(ended=False, again_seconds=again, waits_for="thaw")
            return MORE

        return await self._access.without_restore(scope, with_sealer, NotFound())

    # --- the end of older versions ---------------------------------------------------------------------------------

    async def _count(self, lease: Lease, scope: Scope, done_before: int) -> Slice:
        async def with_sealer(sealer: Sealer) -> Slice:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                found = await self._count_stale(transaction, sealer)
                if found.stale:
                    if lease.done == done_before:
                        return Slice(
                            ended=True,
                            error=f"{found.stale} sealed rows are damaged; the older key versions stay",
                        )
                    await lease.advance(transaction, _position("threads", lease.done, ""))
                    return MORE
                if found.aside:
                    note = (
                        f"{found.aside} envelopes of threads and items under a client-held share, or archived, were"
                        " left as they are; the older key versions stay for them"
                    )
                    return Slice(ended=True, note=note)
                await transaction.run(sql.RETIRE_SUBJECT_KEYS, before_version=sealer.active_key_version)
                moment = await transaction.fetch_only(NOW)
                await lease.advance(transaction, _position("drain", moment.isoformat()))
            return MORE

        return await self._access.with_existing_keys(scope, with_sealer, NotFound())

    async def _count_stale(self, transaction: Transaction, sealer: Sealer) -> sql.StaleCount:
        """What needs an older version, before one is given up.

        Archiving holds the versions that its rows need until it commits; under this lock the next statement sees
        whoever held them, and no row comes to need one that is given up in this transaction.
        """
        await transaction.fetch_all(sql.LOCK_SUBJECT_KEYS)
        found = await transaction.fetch_only(sql.COUNT_STALE, version=active_version(sealer))
        if found.aside:
            return found
        return sql.StaleCount(found.stale + await _unproven(transaction, sealer), 0)

    async def _end(self, lease: Lease, scope: Scope, sealer: Sealer) -> Slice:
        async with self._access.unit_of_work.begin(scope) as transaction:
            await self._access.check_keys_in(transaction, scope, sealer)
            found = await self._count_stale(transaction, sealer)
            if found.stale or found.aside:
                await lease.advance(transaction, _position("threads", lease.done, ""))
                return MORE
            now = self._access.clock.now()
            destroyed = await transaction.fetch_all(
                sql.DESTROY_SUBJECT_KEYS, before_version=sealer.active_key_version, now=now
            )
            await lease.advance(transaction, lease.position)
            for key_version in destroyed:
                detail = {"key_version": key_version}
                target = f"subject:{scope.subject_id}"
                await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "key.destroy", target, detail)
        return Slice(ended=True)


class _Thread:
    """How far the walk through one thread's rows is; lost with the process, which then begins the thread again."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.piece = b""
        self.checkpoint = ("", "")
        self.write = ("", "", "", _LEAST)
        self.finished = False

    def copy(self) -> "_Thread":
        """For a transaction that may not commit."""
        other = _Thread(self.thread_id)
        other.become(self)
        return other

    def become(self, other: "_Thread") -> None:
        """Take over how far another walk through the same thread is."""
        self.piece, self.checkpoint, self.write = other.piece, other.checkpoint, other.write
        self.finished = other.finished


def _position(*parts: str | int) -> str:
    return encode_json(parts).decode()


def _parts_of(position: BlobPosition) -> tuple[str, str]:
    return position.table, position.after.hex


def _ledger_parts(position: LedgerPosition) -> tuple[str | int, ...]:
    after = position.after
    return position.step, after.thread_id, after.namespace, after.name_mac.hex(), after.execution


def _place(scope: Scope) -> tuple[object, str]:
    return scope.tenant_id, scope.subject_id


async def _unproven(transaction: Transaction, sealer: Sealer) -> int:
    """How many stubs of archives are damaged: what they say of key versions is not believed."""
    found, after = 0, ("", 0)
    while True:
        rows = await transaction.fetch_all(
            STUBS_AFTER, after_thread=after[0], after_segment=after[1], limit=_THREADS_PAGE
        )
        for row in rows:
            after = (row.thread_id, row.segment)
            try:
                row.record(sealer)
            except (IntegrityFailure, KeyDestroyed):
                found += 1
        if len(rows) < _THREADS_PAGE:
            return found


async def _reseal_thread(transaction: Transaction, scope: Scope, sealer: Sealer, thread: _Thread) -> int:
    """Re-seal up to `BATCH_ROWS` rows of a thread under its lock; returns how many."""
    locked = await transaction.fetch_one(sql.LOCK_THREAD, thread_id=thread.thread_id, version=active_version(sealer))
    if locked is None:  # deleted meanwhile, or not ours to re-seal
        thread.finished = True
        return 0
    batch = _Batch(transaction, scope, sealer, thread)
    for table in (batch.chunks, batch.checkpoints, batch.writes):
        await table()
        if not batch.rows_left:
            return batch.done
    batch.done += await seal_thread_again(transaction, sealer, thread.thread_id, locked)
    thread.finished = True
    return batch.done


class _Batch:
    """A few rows of a thread whose lock is held."""

    def __init__(self, transaction: Transaction, scope: Scope, sealer: Sealer, thread: _Thread) -> None:
        self._transaction = transaction
        self._scope = scope
        self._sealer = sealer
        self._thread = thread
        self.rows_left = BATCH_ROWS
        self.done = 0

    async def _stale(self, statement: Statement[R], **after: object) -> list[R]:
        rows = await self._transaction.fetch_all(
            statement,
            thread_id=self._thread.thread_id,
            version=active_version(self._sealer),
            page_rows=self.rows_left,
            **after,
        )
        self.rows_left -= len(rows)
        return rows

    async def _store(self, statement: Statement[None], **columns: object) -> None:
        self.done += await self._transaction.run(statement, thread_id=self._thread.thread_id, **columns)

    def _resealed(self, kind: Kind, location: tuple[Field, ...], key_version: int, envelope: bytes) -> bytes | None:
        """Seal an envelope again, if it is sealed under the key version that its row names."""
        try:
            check_key_version(key_version, envelope)
        except IntegrityFailure:
            return None
        return sealed_again(self._sealer, kind, location, envelope)

    # What does not authenticate is damaged, and stays as it is.

    async def chunks(self) -> None:
        """Seal pieces of values again."""
        for row in await self._stale(sql.STALE_CHUNKS, after_piece=self._thread.piece):
            self._thread.piece = row.piece_id
            location = chunk_location(row.piece_id, row.children, row.named_ids)
            again = self._resealed(Kind.CHUNK, location, row.key_version, row.envelope)
            if again is not None:
                active = self._sealer.active_key_version
                await self._store(sql.RESEAL_CHUNK, piece_id=row.piece_id, key_version=active, envelope=again)

    async def checkpoints(self) -> None:
        """Seal manifests again."""
        namespace, checkpoint_id = self._thread.checkpoint
        for row in await self._stale(sql.STALE_CHECKPOINTS, after_namespace=namespace, after_checkpoint=checkpoint_id):
            self._thread.checkpoint = (row.namespace, row.checkpoint_id)
            again = self._resealed(Kind.MANIFEST, row.columns.location(), row.key_version, row.manifest)
            if again is not None:
                await self._store(
                    sql.RESEAL_CHECKPOINT,
                    namespace=row.namespace,
                    checkpoint_id=row.checkpoint_id,
                    key_version=self._sealer.active_key_version,
                    manifest=again,
                )

    async def writes(self) -> None:
        """Seal pending writes again."""
        namespace, checkpoint_id, task_id, idx = self._thread.write
        for row in await self._stale(
            sql.STALE_WRITES,
            after_namespace=namespace,
            after_checkpoint=checkpoint_id,
            after_task=task_id,
            after_idx=idx,
        ):
            self._thread.write = (row.namespace, row.checkpoint_id, row.task_id, row.idx)
            again = self._resealed(Kind.WRITE, row.columns.location(), row.key_version, row.value)
            if again is not None:
                await self._store(
                    sql.RESEAL_WRITE,
                    namespace=row.namespace,
                    checkpoint_id=row.checkpoint_id,
                    task_id=row.task_id,
                    idx=row.idx,
                    key_version=self._sealer.active_key_version,
                    value=again,
                )
