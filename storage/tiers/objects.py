"""The objects of archived threads: read and opened by what a thread's stub keeps, and thawed where they are frozen.

Owns the way from a stub to the rows: the sealed record is opened first, so that an edited stub opens nothing; then the
object is fetched by the blob's own key, and what comes out must be the archive that was written, by its digest and its
counts. Whether the rows are all that the thread had, its seals say (`storage.archive.check`). It holds no transaction
while it talks to the object store, writes no row, and keeps nothing: how much memory readers take together is theirs to
bound.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID

from crypto import Sealer, SecretKey
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import THAW_SECONDS, BlobFrozen, BlobNotFound, BlobStore
from storage.errors import ArchiveUnavailable, IntegrityFailure, ThreadArchived
from storage.format.cold.archive import (
    CHECKPOINTS,
    CHUNKS,
    PENDING_WRITES,
    ArchiveDecoder,
    ArchiveRecord,
    StoredRow,
    Stub,
    ThreadRows,
)
from storage.ledger.streams import BlobDamaged, BlobReader
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.threads import archives as sql

# How long a thawed object stays readable: a restore takes minutes, but a process may be down for a night.
THAW_DAYS: Final = 2
# How soon to look again at an object that is being thawed.
LOOK_SECONDS: Final = 60.0
# Of a class that this build does not know to freeze, and that was found frozen all the same.
_THAW_SECONDS_UNKNOWN: Final = max(THAW_SECONDS.values())

State = Literal["ready", "thawing", "frozen"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether an archive's object can be read, and when it is worth asking again.

    ``retry_after_seconds`` is 0 when it can be read; of a frozen one it is how long a thaw takes at most.
    ``thaw_seconds`` is that, too, and 0 where none is needed.
    """

    state: State
    retry_after_seconds: float = 0.0
    thaw_seconds: float = 0.0


class ArchiveObjects:
    """Reads archives; one for each process, because the reader owns the process's memory for that."""

    def __init__(self, store: BlobStore | None, reader: BlobReader | None) -> None:
        """Use the object store of archives, whose life is the caller's; None: there is none."""
        self._store = store
        self._reader = reader

    @property
    def configured(self) -> bool:
        """Whether there is a bucket of archives."""
        return self._store is not None

    async def stub(self, transaction: Transaction, thread_id: str) -> Stub | None:
        """What the thread's row of archives says, or None if it is not archived."""
        return await transaction.fetch_one(sql.STUB, thread_id=thread_id)

    async def rows(self, scope: Scope, sealer: Sealer, stub: Stub) -> ThreadRows:
        """All rows of an archive; no transaction is open meanwhile.

        The sealer may or may not have the client's share: the archive itself never takes one.

        Raises:
            ThreadArchived: The object has to be thawed first, or is being thawed.
            ArchiveUnavailable: This process has no bucket of archives.
            IntegrityFailure: The stub was edited, or the object is missing, or not the one that was written.
            KeyDestroyed: The key that the stub is sealed under is gone.
            BlobUnavailable: The object store does not answer.
        """
        rows = ThreadRows.empty()
        async with aclosing(self.read(scope, sealer, stub)) as pages:
            async for table, page in pages:
                rows.of(table).extend(page)
        return rows

    async def read(self, scope: Scope, sealer: Sealer, stub: Stub) -> AsyncGenerator[tuple[str, list[StoredRow]], None]:
        """Read `rows` a few at a time, by table; only a stream that ended without an error is the whole archive."""
        counts = dict.fromkeys(sql.COLUMNS, 0)
        record = stub.record(sealer)
        try:
            async with aclosing(self.stored(scope, sealer, stub.blob_id, record)) as pages:
                async for table, page in pages:
                    if any(row["thread_id"] != stub.thread_id for row in page):
                        raise IntegrityFailure("an archive holds rows of another thread")
                    counts[table] += len(page)
                    yield table, page
        except BlobFrozen:
            raise await self._frozen(BlobLocation(scope.tenant_id, stub.blob_id, "archive"), stub) from None
        if (counts[CHECKPOINTS], counts[PENDING_WRITES], counts[CHUNKS]) != (
            stub.checkpoints, stub.pending_writes, stub.chunks,
        ):  # fmt: skip
            raise IntegrityFailure("an archive has other rows than its thread's stub says")

    async def stored(
        self, scope: Scope, sealer: Sealer, blob_id: UUID, record: ArchiveRecord
    ) -> AsyncGenerator[tuple[str, list[StoredRow]], None]:
        """Read an object that no stub names yet, a few rows at a time, by table.

        Raises:
            ArchiveUnavailable: As `rows`.
            BlobFrozen: The object has to be thawed first.
            IntegrityFailure: It is missing, or is not what the record says.
            BlobUnavailable: The object store does not answer.
        """
        if self._reader is None:
            raise ArchiveUnavailable
        cipher = sealer.without_share.blob_cipher(blob_id, SecretKey(record.blob_key))
        decoder = ArchiveDecoder(sql.COLUMNS)
        location = BlobLocation(scope.tenant_id, blob_id, "archive")
        try:
            async with aclosing(self._reader.read(location, cipher, record.content_bytes)) as content:
                async for data in content:
                    for page in decoder.feed(data):
                        yield page
        except BlobDamaged:
            raise IntegrityFailure("the object of an archived thread is damaged or missing") from None
        decoder.close()
        if decoder.digest != record.digest:
            raise IntegrityFailure("the object of an archived thread is not the one that was written")

    # --- thawing ---------------------------------------------------------------------------------------------------

    async def readiness(self, scope: Scope, stub: Stub) -> Readiness:
        """Whether an archive can be read, by what the object store says of it, which reads nothing.

        Raises:
            ArchiveUnavailable: As `rows`.
            IntegrityFailure: The object is missing.
            BlobUnavailable: The object store does not answer.
        """
        return await self._readiness(BlobLocation(scope.tenant_id, stub.blob_id, "archive"), stub)

    async def thaw(self, scope: Scope, stub: Stub) -> Readiness:
        """Let an archive be thawed, if it is frozen; repeating it does no harm. As `readiness` otherwise."""
        location = BlobLocation(scope.tenant_id, stub.blob_id, "archive")
        readiness = await self._readiness(location, stub)
        if readiness.state != "frozen" or self._store is None:
            return readiness
        await self._store.thaw(location, THAW_DAYS)
        return await self._readiness(location, stub)

    async def _readiness(self, location: BlobLocation, stub: Stub) -> Readiness:
        if self._store is None:
            raise ArchiveUnavailable
        try:
            info = await self._store.head(location)
        except BlobNotFound:
            raise IntegrityFailure("the object of an archived thread is missing") from None
        if info.state == "ready":
            return Readiness("ready")
        thaw_seconds = THAW_SECONDS.get(stub.storage_class, _THAW_SECONDS_UNKNOWN)
        if info.state == "frozen":
            return Readiness("frozen", thaw_seconds, thaw_seconds)
        return Readiness("thawing", min(thaw_seconds, LOOK_SECONDS), thaw_seconds)

    async def _frozen(self, location: BlobLocation, stub: Stub) -> ThreadArchived:
        readiness = await self._readiness(location, stub)
        if readiness.state == "ready":  # thawed between the two calls
            return ThreadArchived(stub.thread_id, "thawing", 1.0)
        return ThreadArchived(stub.thread_id, readiness.state, readiness.retry_after_seconds)


def thaw_progress(elapsed: timedelta, thaw_seconds: float) -> float:
    """How far a thaw is, from 0 to 1, going by the longest one there is: it never says that it is finished."""
    if thaw_seconds <= 0:
        return 1.0
    return min(max(elapsed.total_seconds() / thaw_seconds, 0.0), 0.99)
