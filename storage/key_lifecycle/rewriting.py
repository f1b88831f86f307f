"""Archives and segments written again under a subject's active data key, so that a rotation can end.

What is in an object needs the key versions that its rows were sealed under, for as long as it is there; an object of a
live thread is there for years. Here, an object after the other: its rows are read and each is sealed again as it is,
the new object is written and read back, and one transaction exchanges the two, if the stub is still the one that was
read. Ids, members and the moment of archiving stay, so that no seal counts anything else afterwards; the old object
loses its reference and is freed after the backup window. Who dies in between leaves an object that the sweeper removes.

Objects of threads under a client-held share are left as they are, because only their client opens them; so are those
that are damaged, which verification names. Frozen ones are thawed first. Which versions may go is not decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from crypto import KeyDestroyed, Sealer
from crypto.blob import object_bytes
from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.archive.check import ArchiveContents
from storage.archive.moving import ARCHIVE_BYTES_MAX, ROW_BYTES
from storage.archive.stubs import audit_target
from storage.archive.writing import encoded, freeze, write_object
from storage.blobs.keyspace import BlobLocation
from storage.concurrency.turns import Pauses
from storage.errors import ArchiveUnavailable, IntegrityFailure, LostRaceError, ThreadArchived
from storage.format.cold.archive import TABLES, TAGS, ArchiveEncoder, ArchiveRecord, Stub, ThreadRows
from storage.format.cold.segment import ListedHead, SegmentList
from storage.format.pointer import BlobPointer
from storage.key_lifecycle.sealed_again import head_sealed_again, seal_row_again, seal_thread_again
from storage.ledger.ledger import NewBlob, Settlement, new_blob_id
from storage.ledger.streams import BlobWriter, Budget
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.keys.rotation import LockedThread
from storage.statements.threads import archives as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.threads import ThreadRow
from storage.tiers.objects import ArchiveObjects
from storage.tiers.segments import open_list
from storage.tiers.views import cold_sums

_PAGE_STUBS: Final = 100

# A stub among those of a subject: its thread and its segment.
StubKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """How far the walk over a subject's objects is.

    Attributes:
        after: The last object that was looked at; None: it was the last one of all.
        envelopes: How many envelopes were sealed again.
        thaw_seconds: The seconds after which to look again at the next one, which is being thawed; 0: it can be read.
    """

    after: StubKey | None
    envelopes: int = 0
    thaw_seconds: float = 0.0


class Rewriting:
    """Writes objects again."""

    def __init__(self, access: Access, objects: ArchiveObjects, writer: BlobWriter | None, audit: Audit) -> None:
        """Use the object store of archives, whose life is the caller's; ``writer`` None: there is none."""
        self._access = access
        self._objects = objects
        self._writer = writer
        self._audit = audit
        self._budget = Budget(ARCHIVE_BYTES_MAX)

    async def next(self, scope: Scope, sealer: Sealer, after: StubKey) -> Rewritten:
        """Write the next object again that needs another key version than the active one.

        Raises:
            ArchiveUnavailable: There is one, and this process has no bucket of archives.
            LostRaceError: It was restored or deleted meanwhile; begin again.
            QuotaExceeded: The tenant has no room for both objects.
            BlobUnavailable: The object store does not answer.
            CommitUnknown: It may be done; begin again.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            stubs = await transaction.fetch_all(
                sql.STUBS_AFTER, after_thread=after[0], after_segment=after[1], limit=_PAGE_STUBS
            )
        for stub in stubs:
            key = (stub.thread_id, stub.segment)
            if stub.client_share or (stub.key_versions, stub.key_version) == (
                [sealer.active_key_version], sealer.active_key_version,
            ):  # fmt: skip
                after = key
                continue
            try:
                return Rewritten(key, await self._rewrite(scope, sealer, stub))
            except (IntegrityFailure, KeyDestroyed):
                return Rewritten(key)  # it needs its version on, and the rotation says so
            except ThreadArchived:
                readiness = await self._objects.thaw(scope, stub)
                return Rewritten(after, thaw_seconds=max(readiness.retry_after_seconds, 1.0))
        return Rewritten(after if len(stubs) == _PAGE_STUBS else None)

    async def _rewrite(self, scope: Scope, sealer: Sealer, stub: Stub) -> int:
        """Write one object again; returns how many envelopes it has."""
        if self._writer is None:
            raise ArchiveUnavailable
        counted = stub.checkpoints + stub.pending_writes + stub.chunks
        async with self._budget.holding(2 * stub.hot_bytes + counted * ROW_BYTES, scope.tenant_id):
            rows = await self._objects.rows(scope, sealer, stub)
            before = await _contents(sealer, stub, rows)
            await _seal_again(sealer, rows)
            after = await _contents(sealer, stub, rows)
            _compare(before, after)
            size = after.hot_bytes + counted * ROW_BYTES
            new = NewBlob(new_blob_id(), "archive", object_bytes(size), place="archive")
            now = self._access.clock.now()
            ledger = self._access.offload.ledger
            async with ledger.reserving(scope, sealer.without_share, new, now):
                written, record = await self._written(scope, sealer, stub, rows, new)
                again = msgspec.structs.replace(
                    stub,
                    blob_id=new.blob_id,
                    key_versions=[sealer.active_key_version],
                    key_version=sealer.active_key_version,
                    hot_bytes=after.hot_bytes,
                    size_bytes=written,
                )
                again = msgspec.structs.replace(again, sealed=again.sealing(sealer, record))
                await self._exchange(scope, sealer, stub, again, record)
        return counted

    async def _written(
        self, scope: Scope, sealer: Sealer, stub: Stub, rows: ThreadRows, new: NewBlob
    ) -> tuple[int, ArchiveRecord]:
        """Write an object and read it back; returns its size, and what opens it."""
        assert self._writer is not None  # noqa: S101  for the type checker: `_rewrite` asked
        location = BlobLocation(scope.tenant_id, new.blob_id, "archive")
        encoder = ArchiveEncoder(sql.COLUMNS)
        key = sealer.new_blob_key()
        cipher = sealer.without_share.blob_cipher(new.blob_id, key)
        ledger, target = self._access.offload.ledger, (location, cipher, stub.storage_class)
        written = await write_object(
            ledger, self._writer, scope, target, encoded(rows, encoder), bytes_expected=new.reserved_bytes
        )
        record = ArchiveRecord(bytes(key.borrow()), written.size_bytes, encoder.digest)
        async for _ in self._objects.stored(scope, sealer, new.blob_id, record):
            pass
        await freeze(self._writer, location, stub.storage_class)
        return written.object_bytes, record

    # --- the exchange ----------------------------------------------------------------------------------------------

    async def _exchange(self, scope: Scope, sealer: Sealer, stub: Stub, again: Stub, record: ArchiveRecord) -> None:
        key = {"thread_id": stub.thread_id, "segment": stub.segment}
        async with self._access.unit_of_work.begin(scope) as transaction:
            locked = await transaction.fetch_one(threads_sql.LOCK, thread_id=stub.thread_id)
            if locked is None or await transaction.fetch_one(sql.SEGMENT_STUB, **key) != stub:
                raise LostRaceError
            await self._access.check_keys_in(transaction, scope, sealer)
            if not await transaction.fetch_all(sql.HOLD_KEY_VERSIONS, key_versions=again.key_versions):
                raise LostRaceError  # rotated again
            listed = None if not stub.segment else await open_list(transaction, sealer, stub)
            stored_at = await transaction.fetch_one(sql.STORED_AT, **key)
            await transaction.fetch_one(sql.DELETE_STUB, **key)
            settlement = Settlement(again.blob_id, again.size_bytes, BlobPointer(record.blob_key, record.content_bytes))
            ledger = self._access.offload.ledger
            await ledger.settle(transaction, sealer.without_share, [settlement], stub.thread_id)
            await transaction.run(sql.ADD_STUB, **msgspec.structs.asdict(again))
            await transaction.run(sql.SET_STORED_AT, **key, stored_at=stored_at)
            if listed is not None:
                locked = await self._exchange_list(transaction, sealer, locked, (stub, again), listed)
            if locked.tier != "hot":  # its seals are sealed again only here
                seals = LockedThread(locked.created_at, locked.seal, stale=True, cold=locked.cold)
                await seal_thread_again(transaction, sealer, stub.thread_id, seals)
            await ledger.keep(transaction, stub.thread_id)
            target = audit_target(scope, stub.thread_id)
            await self._audit.append(
                transaction, scope.tenant_id, GATEWAY_ACTOR, "archive.reseal", target, _audit_detail(stub, again)
            )

    async def _exchange_list(
        self, transaction: Transaction, sealer: Sealer, locked: ThreadRow, stubs: tuple[Stub, Stub], listed: SegmentList
    ) -> ThreadRow:
        """Exchange a segment's list, and the thread's sums with it; returns the thread with those."""
        stub, again = stubs
        resealed = msgspec.structs.replace(listed, heads=_heads_again(sealer, stub, listed.heads))
        sums = cold_sums(sealer, stub.thread_id, locked)
        cold = sums.with_object(sealer.without_share, stub, again).seal(sealer, stub.thread_id, locked.created_at)
        key = {"thread_id": stub.thread_id, "segment": stub.segment}
        await transaction.run(sql.SET_LISTED, **key, listed=resealed.seal(sealer, again))
        await transaction.run(sql.SET_COLD, thread_id=stub.thread_id, cold=cold)
        return msgspec.structs.replace(locked, cold=cold)


async def _contents(sealer: Sealer, stub: Stub, rows: ThreadRows) -> ArchiveContents:
    """What is in an object, every row of which is opened."""
    contents = ArchiveContents(sealer, stub.thread_id, opens=True)
    for table in TABLES:
        await contents.take(table, rows.of(table))
    return contents


async def _seal_again(sealer: Sealer, rows: ThreadRows) -> None:
    """Seal all rows again, in place; others have their turn now and then."""
    pauses = Pauses()
    for table in TABLES:
        if table != TAGS:
            for row in rows.of(table):
                await pauses.after(seal_row_again(sealer, table, row))


def _compare(before: ArchiveContents, after: ArchiveContents) -> None:
    """Return if rows that were sealed again are the same rows.

    Raises:
        IntegrityFailure: They are not.
    """
    if (before.live, before.writes.total, before.named, before.present, before.named_ids) != (
        after.live, after.writes.total, after.named, after.present, after.named_ids,
    ):  # fmt: skip
        raise IntegrityFailure("rows changed while they were sealed again")


def _heads_again(sealer: Sealer, stub: Stub, heads: Sequence[ListedHead]) -> list[ListedHead]:
    again = []
    for each in heads:
        seal = head_sealed_again(sealer, stub.thread_id, each)
        if seal is None:
            raise IntegrityFailure("a head in a segment does not authenticate")
        again.append(msgspec.structs.replace(each, seal=seal))
    return again


def _audit_detail(stub: Stub, again: Stub) -> dict[str, Any]:
    return {
        "segment": stub.segment,
        "blob_id": str(again.blob_id),
        "blob_id_before": str(stub.blob_id),
        "key_versions_before": stub.key_versions,
        "key_version": again.key_version,
    }
