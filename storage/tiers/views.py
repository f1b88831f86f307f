"""Rows that are not in the database, opened for reading: one thread at a time, seen through snapshots like a hot one.

Owns the order of things: which objects are the thread's is read in one snapshot, they are fetched while none is open,
and the snapshot in which the verb then reads checks that they still are. A thread that was restored, deleted or
archived anew meanwhile is read again from the start. It also owns how much of archives and segments a process holds in
memory for readers at once. What it never does is write, thaw or restore.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from typing import Final
from uuid import UUID

from crypto import Sealer
from storage.errors import IntegrityFailure, LostRaceError, RestoreNeeded
from storage.format.cold.archive import CHUNKS, Stub
from storage.format.cold.segment import ColdSums
from storage.format.record import open_thread_seal
from storage.ledger.streams import Budget
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import SegmentRow
from storage.statements.threads.threads import ThreadRow
from storage.tiers.cold import ColdPieces, ColdRows
from storage.tiers.hot import HotRows
from storage.tiers.objects import ArchiveObjects
from storage.tiers.segments import Lists, SegmentedRows, Segments, SegmentsNeeded, open_segments
from storage.tiers.snapshots import Snapshot

# What one read may take of a process's memory, opened: with the answer that is made of it, a gateway of 512 MiB
# serves two at a time. Content of 64 KiB and more is in blobs of its own, which are fetched as those of a hot thread.
ARCHIVE_READ_BYTES_MAX: Final = 64 * 1024 * 1024
# And all of them together; who comes later waits.
ARCHIVES_READ_BYTES_MAX: Final = 128 * 1024 * 1024
# What a row takes beside its sealed bytes, decoded and indexed: 900 to 1,400 measured, and more while it is decoded.
ROW_BYTES: Final = 2048
# And a piece of which nothing but the row is kept, page by page: 190 measured.
PIECE_ROW_BYTES: Final = 512
# Indexing more rows than these goes on beside the event loop: about 3 ms of work, measured.
_ROWS_AT_ONCE: Final = 1000


class View:
    """One thread, as far as its rows were fetched for a read; `storage.tiers.segments.Fetched`."""

    def __init__(self, unit_of_work: UnitOfWork, objects: ArchiveObjects, scope: Scope, sealer: Sealer) -> None:
        self._unit_of_work = unit_of_work
        self._objects = objects
        self._scope = scope
        self._sealer = sealer
        self.segments: dict[UUID, ColdRows] = {}
        self.pieces: dict[UUID, ColdPieces] = {}
        self._held: dict[UUID, int] = {}
        self.bytes_left = 0
        self.bytes_not_taken = 0
        self.archive: tuple[Stub, ColdRows] | None = None

    def has_room(self, segment: SegmentRow, pieces_of: Collection[SegmentRow] = ()) -> bool:
        """Whether one more segment may be fetched, and then the pieces of others."""
        return self._more(segment, memory_bytes(segment)) + sum(map(pieces_bytes, pieces_of)) <= self.bytes_left

    def _more(self, segment: SegmentRow, wanted: int) -> int:
        """What a segment takes more than is held of it."""
        return wanted - self._held.get(segment.blob_id, 0)

    async def fetch(self, needed: SegmentsNeeded) -> None:
        """Fetch what a read needs, while no snapshot is open.

        Raises:
            RestoreNeeded: They take more memory than a read may.
            ThreadArchived: One has to be thawed first.
            LostRaceError: One is not there any more, or was not there yet when memory was taken for the read.
            ArchiveUnavailable, IntegrityFailure, BlobUnavailable: As `ArchiveViews.opened`.
        """
        segments, charge = needed.segments, pieces_bytes if needed.pieces_only else memory_bytes
        wanted = sum(self._more(each, charge(each)) for each in segments)
        if wanted > self.bytes_left + self.bytes_not_taken:
            raise RestoreNeeded(wanted, self.bytes_left)
        if wanted > self.bytes_left:
            raise LostRaceError
        async with self._unit_of_work.snapshot(self._scope) as transaction:
            stubs = [
                await transaction.fetch_one(archives_sql.SEGMENT_STUB, thread_id=each.thread_id, segment=each.segment)
                for each in segments
            ]
        for each, stub in zip(segments, stubs, strict=True):
            if stub is None or stub.blob_id != each.blob_id:
                raise LostRaceError
            self.bytes_left -= self._more(each, charge(each))
            self._held[each.blob_id] = charge(each)
            if needed.pieces_only:
                self.pieces[each.blob_id] = await self._pieces(stub)
            else:
                self.pieces.pop(each.blob_id, None)
                self.segments[each.blob_id] = await self._rows(stub)

    def _let_go(self, segments: Segments) -> None:
        """Hold nothing of segments that are there no more: they came back, or their objects were exchanged."""
        for gone in self._held.keys() - {each.blob_id for each in segments.all}:
            self.segments.pop(gone, None)
            self.pieces.pop(gone, None)
            self.bytes_left += self._held.pop(gone)

    async def fetch_archive(self, stub: Stub) -> None:
        """Fetch what an archived thread has in no segment."""
        self.bytes_left -= memory_bytes(stub)
        self.archive = stub, await self._rows(stub)

    async def _rows(self, stub: Stub) -> ColdRows:
        rows = await self._objects.rows(self._scope, self._sealer, stub)
        if stub.checkpoints + stub.pending_writes + stub.chunks <= _ROWS_AT_ONCE:
            return ColdRows(stub.thread_id, rows)
        return await asyncio.to_thread(ColdRows, stub.thread_id, rows)

    async def _pieces(self, stub: Stub) -> ColdPieces:
        """The pieces of a segment; its other rows are dropped as they come."""
        pieces = ColdPieces(stub.thread_id)
        async with aclosing(self._objects.read(self._scope, self._sealer, stub)) as pages:
            async for table, page in pages:
                if table == CHUNKS:
                    pieces.add(page)
        return pieces

    @asynccontextmanager
    async def snapshot(self, thread_id: str) -> AsyncIterator[Snapshot]:
        """See the thread at one moment.

        Raises:
            LostRaceError: It is somewhere else by now; begin again.
        """
        async with self._unit_of_work.snapshot(self._scope) as transaction:
            row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
            stub = None
            if row is not None and row.tier != "hot":
                stub = await self._objects.stub(transaction, thread_id)
            if row is None or (stub and stub.blob_id) != (self.archive and self.archive[0].blob_id):
                raise LostRaceError
            unsegmented = HotRows(transaction, thread_id) if self.archive is None else self.archive[1]
            sums = cold_sums(self._sealer, thread_id, row)
            is_archived = self.archive is not None
            if not sums.segments.count:
                yield Snapshot(transaction, thread_id, unsegmented, unsegmented, sums, is_archived)
                return
            segments = await open_segments(transaction, self._sealer, thread_id, sums)
            self._let_go(segments)
            rows = SegmentedRows(Lists(transaction, self._sealer), segments, sums, unsegmented, self)
            yield Snapshot(transaction, thread_id, rows, unsegmented, sums, is_archived)


class ArchiveViews:
    """Opens archives and segments for readers; one for each process, because it owns their memory."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        objects: ArchiveObjects,
        *,
        bytes_max: int = ARCHIVE_READ_BYTES_MAX,
        all_bytes_max: int = ARCHIVES_READ_BYTES_MAX,
    ) -> None:
        """``bytes_max``: of one read, opened; ``all_bytes_max``: of all reads."""
        self._unit_of_work = unit_of_work
        self._objects = objects
        self._bytes_max = bytes_max
        self.budget = Budget(max(bytes_max, all_bytes_max))

    @asynccontextmanager
    async def opened(self, scope: Scope, sealer: Sealer, thread_id: str) -> AsyncIterator[View]:
        """How to open snapshots in which a thread's rows are seen that are not in the database, as often as need be.

        Raises:
            ThreadArchived: An object has to be thawed first; nothing was begun.
            RestoreNeeded: It would take more memory than a read may.
            LostRaceError: All of its rows are in the database; begin again.
            ArchiveUnavailable: This process has no bucket of archives.
            IntegrityFailure: A stub or an object is missing, or one is not what the other says.
            BlobUnavailable: The object store does not answer, or too many archives are being read.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            stub, segments = await self._parts(transaction, sealer, thread_id)
        archived = 0 if stub is None else memory_bytes(stub)
        if archived > self._bytes_max:
            raise RestoreNeeded(archived, self._bytes_max)
        apart = 0 if segments is None else sum(map(memory_bytes, segments.all))
        taken = min(archived + apart, self._bytes_max)
        async with self.budget.holding(taken, scope.tenant_id):
            view = View(self._unit_of_work, self._objects, scope, sealer)
            view.bytes_left, view.bytes_not_taken = taken, self._bytes_max - taken
            if stub is not None:
                await view.fetch_archive(stub)
            yield view

    async def _parts(
        self, transaction: Transaction, sealer: Sealer, thread_id: str
    ) -> tuple[Stub | None, Segments | None]:
        """The stub of an archived thread, and the segments of a thread that has some."""
        row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
        if row is None:
            raise LostRaceError
        stub = None if row.tier == "hot" else await self._objects.stub(transaction, thread_id)
        if stub is None and row.tier != "hot":
            raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
        if row.cold is None:
            if stub is None:
                raise LostRaceError
            return stub, None
        sums = cold_sums(sealer, thread_id, row)
        return stub, await open_segments(transaction, sealer, thread_id, sums)


def cold_sums(sealer: Sealer, thread_id: str, row: ThreadRow) -> ColdSums:
    """What is in a thread's segments, as sums.

    Raises:
        IntegrityFailure: The thread's seal, or the sums, do not authenticate.
    """
    thread = open_thread_seal(sealer, thread_id, row.created_at, row.seal)
    return ColdSums.open(sealer, thread_id, row.created_at, thread.incarnation, row.cold)


def memory_bytes(stub: Stub | SegmentRow) -> int:
    """About what an archive or a segment takes, opened."""
    return stub.hot_bytes + ROW_BYTES * (stub.checkpoints + stub.pending_writes + stub.chunks)


def pieces_bytes(stub: Stub | SegmentRow) -> int:
    """At most what the pieces of a segment take without its other rows, whose bytes the stub does not tell apart."""
    return stub.hot_bytes + PIECE_ROW_BYTES * stub.chunks
