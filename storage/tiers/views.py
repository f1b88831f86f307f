"""Archives opened for reading: one archived thread at a time, seen through snapshots like a hot one.

Owns the order of things: which object is the thread's is read in one snapshot, the object is fetched while none is
open, and the snapshot in which the verb then reads checks that it is still that object. A thread that was restored,
deleted or archived anew meanwhile is read again from the start. It also owns how much of archives a process holds in
memory for readers at once. What it never does is write, thaw or restore.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from crypto import Sealer
from storage.errors import IntegrityFailure, LostRaceError, RestoreNeeded
from storage.format.archive import Stub
from storage.ledger.streams import Budget
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import Scope
from storage.statements.threads import threads as threads_sql
from storage.tiers.cold import ColdRows
from storage.tiers.objects import ArchiveObjects
from storage.tiers.snapshots import OpenSnapshot, Snapshot

# What one archive may take of a process's memory, opened: with the answer that is made of it, a gateway of 512 MiB
# serves two at a time. Content of 64 KiB and more is in blobs of its own, which are fetched as those of a hot thread.
ARCHIVE_READ_BYTES_MAX: Final = 64 * 1024 * 1024
# And all of them together; who comes later waits.
ARCHIVES_READ_BYTES_MAX: Final = 128 * 1024 * 1024
# What a row takes beside its sealed bytes, decoded and indexed: 900 to 1,400 measured, and more while it is decoded.
_ROW_BYTES: Final = 2048
# Indexing more rows than these goes on beside the event loop: about 3 ms of work, measured.
_ROWS_AT_ONCE: Final = 1000


class ArchiveViews:
    """Opens archives for readers; one for each process, because it owns their memory."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        objects: ArchiveObjects,
        *,
        bytes_max: int = ARCHIVE_READ_BYTES_MAX,
        all_bytes_max: int = ARCHIVES_READ_BYTES_MAX,
    ) -> None:
        """``bytes_max``: of one archive, opened; ``all_bytes_max``: of all that are being read."""
        self._unit_of_work = unit_of_work
        self._objects = objects
        self._bytes_max = bytes_max
        self.budget = Budget(max(bytes_max, all_bytes_max))

    @asynccontextmanager
    async def opened(self, scope: Scope, sealer: Sealer, thread_id: str) -> AsyncIterator[OpenSnapshot]:
        """How to open snapshots in which an archived thread's rows are seen, as often as need be.

        Raises:
            ThreadArchived: Its object has to be thawed first; nothing was begun.
            RestoreNeeded: It would take more memory than a read may.
            LostRaceError: It is not archived any more; begin again.
            ArchiveUnavailable: This process has no bucket of archives.
            IntegrityFailure: The stub or the object is missing, or one is not what the other says.
            BlobUnavailable: The object store does not answer, or too many archives are being read.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            stub = await self._objects.stub(transaction, thread_id)
            if stub is None:
                row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
                if row is not None and row.tier != "hot":
                    raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
                raise LostRaceError
        taken = memory_bytes(stub)
        if taken > self._bytes_max:
            raise RestoreNeeded(taken, self._bytes_max)
        async with self.budget.holding(taken, scope.tenant_id):
            rows = await self._objects.rows(scope, sealer, stub)
            if stub.checkpoints + stub.pending_writes + stub.chunks <= _ROWS_AT_ONCE:
                cold = ColdRows(thread_id, rows)
            else:
                cold = await asyncio.to_thread(ColdRows, thread_id, rows)
            yield functools.partial(self._snapshot, scope, stub, cold)

    @asynccontextmanager
    async def _snapshot(self, scope: Scope, stub: Stub, cold: ColdRows) -> AsyncIterator[Snapshot]:
        async with self._unit_of_work.snapshot(scope) as transaction:
            current = await self._objects.stub(transaction, stub.thread_id)
            if current is None or current.blob_id != stub.blob_id:
                raise LostRaceError
            yield Snapshot(transaction, stub.thread_id, cold, is_archived=True)


def memory_bytes(stub: Stub) -> int:
    """About what an archive takes, opened."""
    return stub.hot_bytes + _ROW_BYTES * (stub.checkpoints + stub.pending_writes + stub.chunks)
