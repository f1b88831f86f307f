"""Uploads by hand, and rows that name them: what a save with large pieces does, a step at a time."""

# ruff: noqa: S608  table and column names are constants of these tests

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from crypto import Sealer
from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import BlobStore
from storage.clock import SystemClock
from storage.collection.fsck import Fsck, FsckReport
from storage.collection.sweep import Sweep
from storage.format.pointer import BlobPointer
from storage.ledger.ledger import BlobLedger, NewBlob, Settlement, new_blob_id, pack_named_ids
from storage.model import Bucket, Purpose
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope
from storage.service import Store
from tests.support.states import save

_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
NAME = Statement(
    f"UPDATE stateroom.checkpoints SET named_ids = coalesce(named_ids, '') || :named_ids::bytea WHERE {_THREAD}"
)
NAME_NOTHING = Statement(f"UPDATE stateroom.checkpoints SET named_ids = NULL WHERE {_THREAD}")
LOCK_THREAD = Statement(f"SELECT 1 FROM stateroom.threads WHERE {_THREAD} FOR UPDATE", int)


@dataclass
class Upload:
    """An object under way; ``content_id`` None keeps it apart from equal ones."""

    content_id: bytes | None = None
    data: bytes = b"sealed bytes"
    purpose: Purpose = "piece"
    place: Bucket = "blobs"
    blob_id: UUID = field(default_factory=new_blob_id)

    def settlement(self) -> Settlement:
        return Settlement(self.blob_id, len(self.data), BlobPointer(b"k" * 32, len(self.data)), self.content_id)


class Blobs:
    """The ledger, a sweeper and a check of one store, on a unit of work that may be steered."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        unit_of_work: UnitOfWork | None = None,
        *,
        archive: BlobStore | None = None,
        intent_seconds: float = 3600,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.buckets = Buckets(blobs, archive)
        self.unit_of_work = unit_of_work or store.unit_of_work
        self.ledger = BlobLedger(self.unit_of_work, intent_seconds=intent_seconds)

    def sweeper(self, *, grace_seconds: float = 0, tombstone_seconds: float = 3600, days: float = 0) -> Sweep:
        return Sweep(
            self.unit_of_work, self.buckets, days, grace_seconds=grace_seconds, tombstone_seconds=tombstone_seconds
        )

    async def fsck(self, scope: Scope, *, repair: bool = False, grace_seconds: float = -60) -> FsckReport:
        check = Fsck(self.store.unit_of_work, self.ledger, self.buckets, SystemClock(), grace_seconds=grace_seconds)
        return await check.run(scope.tenant_id, repair=repair)

    async def sealer(self, scope: Scope) -> Sealer:
        return await self.store.keys.sealer(scope)

    async def put(self, scope: Scope, upload: Upload) -> Upload:
        """Reserve, and write the object."""
        reserved = NewBlob(upload.blob_id, upload.purpose, len(upload.data), upload.content_id, place=upload.place)
        await self.ledger.reserve(scope, await self.sealer(scope), [reserved], SystemClock().now())
        await self.write(scope, upload)
        return upload

    async def write(self, scope: Scope, upload: Upload) -> None:
        location = BlobLocation(scope.tenant_id, upload.blob_id, upload.place)
        await self.bucket(upload.place).put_if_absent(location, upload.data)

    async def there(self, scope: Scope, blob_id: UUID, place: Bucket = "blobs") -> bool:
        location = BlobLocation(scope.tenant_id, blob_id, place)
        return location.object_key() in await self.bucket(place).list_keys(location.object_key())

    def bucket(self, place: Bucket) -> BlobStore:
        found = self.buckets.of(place)
        assert found is not None
        return found

    async def settle(self, scope: Scope, *uploads: Upload, thread_id: str = "t1") -> list[UUID]:
        """Settle, and let the thread's checkpoints name what came of it, in one transaction, as a save does."""
        sealer = await self.sealer(scope)
        async with self.unit_of_work.begin(scope) as transaction:
            await transaction.fetch_all(LOCK_THREAD, thread_id=thread_id)
            named = await self.ledger.settle(transaction, sealer, [each.settlement() for each in uploads], thread_id)
            ids = [named[each.blob_id] for each in uploads]
            await name(transaction, thread_id, ids)
        return ids

    async def refer(self, scope: Scope, *blob_ids: UUID, thread_id: str = "t1") -> None:
        """Let a thread name blobs that are there."""
        async with self.unit_of_work.begin(scope) as transaction:
            await transaction.fetch_all(LOCK_THREAD, thread_id=thread_id)
            await self.ledger.refer(transaction, thread_id, blob_ids)
            await name(transaction, thread_id, blob_ids)

    async def forget(self, scope: Scope, thread_id: str = "t1") -> None:
        """Let a thread name nothing any more, as pruning does."""
        async with self.unit_of_work.begin(scope) as transaction:
            await transaction.fetch_all(LOCK_THREAD, thread_id=thread_id)
            await transaction.run(NAME_NOTHING, thread_id=thread_id)
            await self.ledger.keep(transaction, thread_id)

    async def stored(self, scope: Scope, upload: Upload | None = None, thread_id: str = "t1") -> UUID:
        """A live blob that a checkpoint of the thread names."""
        await save(self.store, scope, thread_id)
        made = await self.put(scope, upload or Upload())
        return (await self.settle(scope, made, thread_id=thread_id))[0]


async def name(transaction: Transaction, thread_id: str, ids: Any) -> None:
    await transaction.run(NAME, thread_id=thread_id, named_ids=pack_named_ids(ids))
