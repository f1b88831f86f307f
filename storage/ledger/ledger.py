"""The ledger of blobs: every transition of a row that says which objects are needed, and which are not any more.

1. **reserve**, in a transaction of its own: the quota and an *intent*. Only then may an object be written.
2. The object is written; no transaction is open meanwhile.
3. **settle**, in the transaction that stores whatever names the blob: it takes the intent, which must still be open,
   and makes the blob live. **refer** does the same for a blob that is live already, under a lock that condemning
   conflicts with.
4. References go with what held them (`keep`, `drop`); `storage.collection.sweep` condemns what nothing refers to, and
   much later removes it. A condemned blob never comes back: its content is uploaded again under a new id.

The order of locks is: thread, intents, blobs by content id or blob id, references, usage. A segment, whose rows are new
and which reserved exactly what it takes, is settled before its thread is locked. Verbs that take a `Transaction` belong
in the caller's; the others commit by themselves. Nothing here talks to the object store.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from msgspec import structs
from uuid_utils import uuid7

from crypto import Field, Sealer
from storage.errors import (
    ArtifactNotFound,
    ArtifactReferenced,
    CommitUnknown,
    IntegrityFailure,
    LostRaceError,
    QuotaExceeded,
    StorageError,
    UploadExpired,
    UploadNotFound,
)
from storage.format.key_versions import check_key_version
from storage.format.pointer import (
    BlobPointer,
    IntentRecord,
    artifact_location,
    intent_location,
    open_record,
    pointer_location,
    seal_record,
)
from storage.model import Bucket, Purpose
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope
from storage.statements.objects import artifacts as artifacts_sql
from storage.statements.objects import blobs as sql
from storage.statements.objects.artifacts import ArtifactRow
from storage.statements.objects.blobs import Intent, PointerRow, UploadedPart

# An upload that did not go on for so long is given up; each part of a resumable one begins the time anew.
INTENT_SECONDS = 24 * 3600
# How long a swept intent is remembered: longer than the longest PUT that may still be under way. At its end the
# object is removed once more.
INTENT_TOMBSTONE_SECONDS = 24 * 3600
NAMED_ID_BYTES = 16


def new_blob_id() -> UUID:
    """An id that no blob had before."""
    return UUID(str(uuid7()))


def pack_named_ids(ids: Iterable[UUID]) -> bytes | None:
    """The ``named_ids`` column of a row that names these blobs and artifacts: each once, in order; None for none."""
    return b"".join(sorted({each.bytes for each in ids})) or None


def unpack_named_ids(packed: bytes | None) -> list[UUID]:
    """The ids in a ``named_ids`` column.

    Raises:
        IntegrityFailure: it is no such column.
    """
    if packed is None:
        return []
    if len(packed) % NAMED_ID_BYTES:
        raise IntegrityFailure("a stored list of blobs cannot be read")
    return [UUID(bytes=packed[at : at + NAMED_ID_BYTES]) for at in range(0, len(packed), NAMED_ID_BYTES)]


@dataclass(frozen=True, slots=True)
class NewBlob:
    """An upload that is about to begin.

    Attributes:
        blob_id: From `new_blob_id`.
        purpose: Whether it is a value's piece, a file, or an archived thread.
        reserved_bytes: The size of the object, as far as it is known; `BlobLedger.renew` reserves more.
        content_id: The id of a piece's content, which is kept once for each subject; None: it is kept as it is.
        record: What resuming needs, or None for an upload that is done in one go.
        place: The bucket that it goes to.
    """

    blob_id: UUID
    purpose: Purpose
    reserved_bytes: int
    content_id: bytes | None = None
    record: IntentRecord | None = None
    place: Bucket = "blobs"


@dataclass(frozen=True, slots=True)
class Settlement:
    """An object that is in the bucket now, and what opens it."""

    blob_id: UUID
    object_bytes: int
    pointer: BlobPointer
    content_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class LiveBlob:
    """A blob as its row says; ``object_bytes`` is the size of the object."""

    blob_id: UUID
    object_bytes: int
    pointer: BlobPointer
    place: Bucket = "blobs"


def described_at(row: ArtifactRow) -> tuple[Field, ...]:
    """The location that an artifact's description is sealed to."""
    return artifact_location(row.artifact_id, row.name_digest, row.number, row.blob_id, row.size_bytes, row.created_at)


def open_intent(sealer: Sealer, intent: Intent) -> IntentRecord:
    """Open what resuming an upload needs. ``sealer`` must be mixed with the share if ``client_share`` says so.

    Raises:
        UploadNotFound: it cannot be resumed.
        IntegrityFailure: the record does not authenticate, or the row names another key version.
    """
    if intent.record is None:
        raise UploadNotFound
    location = intent_location(intent.blob_id, intent.purpose, intent.content_id, intent.created_at)
    return open_record(IntentRecord, sealer, location, intent.record, intent.key_version)


def _pointer(sealer: Sealer, row: PointerRow, sealed: bytes) -> BlobPointer:
    location = pointer_location(row.blob_id, row.content_id, row.size_bytes, row.created_at)
    opener = sealer if row.client_share else sealer.without_share
    return open_record(BlobPointer, opener, location, sealed, row.key_version)


def check_blob(sealer: Sealer, row: PointerRow) -> None:
    """Return if a live blob's row is as it was written; of one under a client-held share, as far as can be told.

    Raises:
        IntegrityFailure: it is not.
        KeyDestroyed: it is sealed under a key that is gone.
    """
    if row.pointer is None:
        raise IntegrityFailure("nothing is stored that opens it")
    if row.client_share:
        check_key_version(row.key_version, row.pointer)
    else:
        _pointer(sealer, row, row.pointer)


def check_intent(sealer: Sealer, intent: Intent) -> None:
    """Return if the row of an upload that can be resumed is as it was written; otherwise as `check_blob`."""
    if intent.client_share and intent.record is not None:
        check_key_version(intent.key_version, intent.record)
    else:
        open_intent(sealer, intent)


class BlobLedger:
    """The rows of blobs, intents, artifacts and references."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        *,
        intent_seconds: float = INTENT_SECONDS,
        tombstone_seconds: float = INTENT_TOMBSTONE_SECONDS,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._intent_seconds = intent_seconds
        self._tombstone_seconds = tombstone_seconds

    # --- uploads ---------------------------------------------------------------------------------------------------

    async def reserve(self, scope: Scope, sealer: Sealer, uploads: Sequence[NewBlob], now: datetime) -> None:
        """Commit the intents of uploads that may begin when this has returned.

        All of them, or none, are reserved. The sealer is mixed with the client-held share if the thread takes one.

        Raises:
            QuotaExceeded: the tenant has not so many bytes left; nothing is reserved.
            CommitUnknown: perhaps they are; the ids must not be used again.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            for each in uploads:
                record = None
                if each.record is not None:
                    location = intent_location(each.blob_id, each.purpose, each.content_id, now)
                    record = seal_record(sealer, location, each.record)
                await transaction.run(
                    sql.ADD_INTENT,
                    blob_id=each.blob_id,
                    purpose=each.purpose,
                    content_id=each.content_id,
                    reserved_bytes=each.reserved_bytes,
                    key_version=sealer.active_key_version,
                    client_share=sealer.shared,
                    record=record,
                    created_at=now,
                    intent_seconds=self._intent_seconds,
                    place=each.place,
                )
            await self._reserve_bytes(transaction, sum(each.reserved_bytes for each in uploads))

    async def _reserve_bytes(self, transaction: Transaction, amount: int) -> None:
        # Last in its transaction: the row is the tenant's, and every request that stores something waits for it.
        # A tenant's first row is inserted without looking at a quota, because it has none.
        if amount < 0:
            await transaction.run(sql.COUNT_BYTES, amount=amount)
        elif await transaction.fetch_one(sql.RESERVE_BYTES, amount=amount) is None:
            raise QuotaExceeded

    async def intent(self, transaction: Transaction, blob_id: UUID) -> Intent:
        """An open intent.

        Raises:
            UploadNotFound: there is none: settled, given up, or expired.
        """
        intent = await transaction.fetch_one(sql.OPEN_INTENT, blob_id=blob_id)
        if intent is None:
            raise UploadNotFound
        return intent

    async def renew(self, scope: Scope, blob_id: UUID, more_bytes: int = 0) -> Intent:
        """Begin an open intent's time anew, and reserve more bytes before they are written. Commits.

        Raises:
            UploadNotFound: it is not open any more; do not write to its object.
            QuotaExceeded: the tenant has not so many bytes left; nothing changed.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            intent = await self._renewed(transaction, blob_id, more_bytes)
            if more_bytes:
                await self._reserve_bytes(transaction, more_bytes)
        return intent

    async def _renewed(self, transaction: Transaction, blob_id: UUID, more_bytes: int) -> Intent:
        intent = await transaction.fetch_one(
            sql.RENEW_INTENT, blob_id=blob_id, intent_seconds=self._intent_seconds, more_bytes=more_bytes
        )
        if intent is None:
            raise UploadNotFound
        return intent

    async def name_multipart(self, scope: Scope, blob_id: UUID, multipart_id: str) -> str:
        """Record which multipart upload of the object store this is; the first one stays. Commits.

        Returns:
            The one in force. If it is not ``multipart_id``, the caller aborts its own.

        Raises:
            UploadNotFound: the intent is not open any more; the caller aborts its own.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            in_force = await transaction.fetch_one(sql.NAME_MULTIPART, blob_id=blob_id, multipart_id=multipart_id)
        if in_force is None:
            raise UploadNotFound
        return in_force

    async def record_part(self, scope: Scope, blob_id: UUID, part: UploadedPart) -> Intent:
        """Record a part that the object store has, in the place of an earlier one of its number. Commits.

        Raises:
            UploadNotFound: the intent is not open any more.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            intent = await self._renewed(transaction, blob_id, 0)
            await transaction.run(sql.PUT_PART, blob_id=blob_id, **structs.asdict(part))
        return intent

    async def parts(self, transaction: Transaction, blob_id: UUID) -> list[UploadedPart]:
        """The recorded parts of an upload, by number."""
        return await transaction.fetch_all(sql.PARTS, blob_id=blob_id)

    async def part(self, transaction: Transaction, blob_id: UUID, number: int) -> UploadedPart | None:
        """One recorded part of an upload, or None."""
        return await transaction.fetch_one(sql.PART, blob_id=blob_id, number=number)

    async def forget_parts(self, scope: Scope, blob_id: UUID, number: int | None = None) -> None:
        """Forget one recorded part, or all of them: before other bytes take its place in the object store. Commits.

        So a part that is recorded is always the one that is stored, however the process ends in between.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.FORGET_PARTS, blob_id=blob_id, number=number)

    @asynccontextmanager
    async def reserving(self, scope: Scope, sealer: Sealer, new: NewBlob, now: datetime) -> AsyncIterator[None]:
        """Reserve an upload for as long as it takes to write and settle it; it is abandoned if that fails.

        Raises:
            QuotaExceeded, CommitUnknown: As `reserve`.
        """
        await self.reserve(scope, sealer, [new], now)
        try:
            yield
        except CommitUnknown:
            raise  # it may be settled
        except BaseException:
            with suppress(StorageError):
                await self.abandon(scope, new.blob_id)
            raise

    async def abandon(self, scope: Scope, blob_id: UUID) -> None:
        """Give an upload up; the sweeper removes what was written. Commits.

        Raises:
            UploadNotFound: it is not open any more.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            if not await self._abandon(transaction, [blob_id]):
                raise UploadNotFound

    async def withdraw(self, scope: Scope, blob_id: UUID) -> None:
        """Give an upload up of which nothing was sent to the object store: its bytes are free at once. Commits.

        Raises:
            UploadNotFound: it is not open any more.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            reserved = await transaction.fetch_one(sql.WITHDRAW_INTENT, blob_id=blob_id)
            if reserved is None:
                raise UploadNotFound
            if reserved:
                await self._reserve_bytes(transaction, -reserved)

    async def _abandon(self, transaction: Transaction, blob_ids: list[UUID]) -> int:
        abandoned = await transaction.run(
            sql.ABANDON_INTENTS, blob_ids=blob_ids, tombstone_seconds=self._tombstone_seconds
        )
        await transaction.run(sql.DELETE_PARTS, blob_ids=blob_ids)
        return abandoned

    async def settle(
        self,
        transaction: Transaction,
        sealer: Sealer,
        settlements: Sequence[Settlement],
        thread_id: str | None,
    ) -> dict[UUID, UUID]:
        """Make blobs live, in the transaction that stores what names them.

        The transaction is READ COMMITTED, the sealer the one that was given to `reserve`, and the objects are in the
        bucket. ``thread_id`` None: no thread refers to them yet, or an artifact's row will; without one they are swept
        after the grace period.

        Returns:
            For each blob id the one to name: another one where the same content was settled by another request first.

        Raises:
            UploadExpired: an intent was swept. The caller's transaction must not commit; upload again under a new id.
            LostRaceError: the blob with the same content is being condemned at this moment; as before.
            QuotaExceeded: an object is larger than what was reserved, and the tenant has not so many bytes left.
        """
        if not settlements:
            return {}
        wanted = [each.blob_id for each in settlements]
        locked = await transaction.fetch_all(sql.LOCK_INTENTS, blob_ids=wanted)
        intents = {intent.blob_id: intent for intent in locked}
        if len(intents) != len(set(wanted)):
            raise UploadExpired
        created = [intents[each.blob_id].created_at for each in settlements]
        pointers = [
            seal_record(
                sealer, pointer_location(each.blob_id, each.content_id, each.object_bytes, created_at), each.pointer
            )
            for each, created_at in zip(settlements, created, strict=True)
        ]
        added = await transaction.fetch_all(
            sql.ADD_BLOBS,
            client_share=sealer.shared,
            key_version=sealer.active_key_version,
            unreferenced=thread_id is None,
            blob_ids=wanted,
            content_ids=[each.content_id for each in settlements],
            sizes_bytes=[each.object_bytes for each in settlements],
            pointers=pointers,
            created=created,
            places=[intents[each.blob_id].place for each in settlements],
        )
        new = set(added)
        named = {blob_id: blob_id for blob_id in new}
        duplicates = [each for each in settlements if each.blob_id not in new]
        if duplicates:
            named |= await self._winners(transaction, duplicates)
            await self._abandon(transaction, [each.blob_id for each in duplicates])
        await transaction.run(sql.SETTLE_INTENTS, blob_ids=added)
        await transaction.run(sql.DELETE_PARTS, blob_ids=added)
        if thread_id is not None:
            await transaction.run(sql.ADD_REFS, thread_id=thread_id, blob_ids=sorted(set(named.values())))
        more = sum(
            each.object_bytes - intents[each.blob_id].reserved_bytes for each in settlements if each.blob_id in new
        )
        if more:
            await self._reserve_bytes(transaction, more)
        return named

    async def _winners(self, transaction: Transaction, duplicates: Sequence[Settlement]) -> dict[UUID, UUID]:
        """For each blob the live one with the same content, locked."""
        content_ids = [each.content_id for each in duplicates if each.content_id is not None]
        known = await self.live_blobs(transaction, content_ids)
        if len(content_ids) != len(duplicates) or not all(each in known for each in content_ids):
            raise LostRaceError
        await self._lock_live(transaction, known.values())
        return {each.blob_id: known[each.content_id] for each in duplicates if each.content_id is not None}

    # --- references ------------------------------------------------------------------------------------------------

    async def live_blobs(self, transaction: Transaction, content_ids: Sequence[bytes]) -> dict[bytes, UUID]:
        """Live blobs by content id: a hint, to spare an upload; `refer` decides."""
        rows = await transaction.fetch_all(sql.KNOWN, content_ids=list(content_ids))
        return {row.content_id: row.blob_id for row in rows}

    async def refer(self, transaction: Transaction, thread_id: str, blob_ids: Iterable[UUID]) -> None:
        """Let a thread refer to blobs that are live, in the transaction that stores what names them.

        Raises:
            LostRaceError: one is not live any more; upload its content again.
        """
        wanted = sorted(set(blob_ids))
        if wanted:
            await self._lock_live(transaction, wanted)
            await transaction.run(sql.ADD_REFS, thread_id=thread_id, blob_ids=wanted)

    async def _lock_live(self, transaction: Transaction, blob_ids: Iterable[UUID]) -> None:
        wanted = sorted(set(blob_ids))
        rows = await transaction.fetch_all(sql.LOCK_LIVE, blob_ids=wanted)
        if len(rows) != len(wanted):
            raise LostRaceError("a blob was condemned meanwhile")
        marked = [row.blob_id for row in rows if row.unreferenced_at is not None]
        if marked:
            await transaction.run(sql.MARK_REFERENCED, blob_ids=marked)

    async def pointers(
        self, transaction: Transaction, sealer: Sealer, blob_ids: Iterable[UUID]
    ) -> dict[UUID, LiveBlob]:
        """Read what opens these blobs.

        The sealer is mixed with the client-held share where the thread takes one; blobs without it open, too.

        Raises:
            IntegrityFailure: one has no pointer, it does not authenticate, its row names another key version, or it
                takes a share that is not there.
        """
        wanted = set(blob_ids)
        found: dict[UUID, LiveBlob] = {}
        for row in await transaction.fetch_all(sql.POINTERS, blob_ids=list(wanted)):
            if row.pointer is not None:
                pointer = _pointer(sealer, row, row.pointer)
                found[row.blob_id] = LiveBlob(row.blob_id, row.size_bytes, pointer, row.place)
        if len(found) != len(wanted):
            raise IntegrityFailure("a stored blob is missing")
        return found

    async def keep(self, transaction: Transaction, thread_id: str) -> None:
        """Drop the references of a thread that none of its remaining rows holds. The thread is locked."""
        blobs = await transaction.fetch_all(sql.KEEP_BLOB_REFS, thread_id=thread_id)
        artifacts = await transaction.fetch_all(artifacts_sql.KEEP_REFS, thread_id=thread_id)
        await self._unreferenced(transaction, {*blobs, *await self._delete_strays(transaction, artifacts)})

    async def drop(self, transaction: Transaction, thread_id: str) -> None:
        """Drop a thread's references and delete its artifacts, except those that other threads refer to.

        The thread is locked, and its row deleted before in this transaction.
        """
        blobs = await transaction.fetch_all(sql.DROP_BLOB_REFS, thread_id=thread_id)
        referred = await transaction.fetch_all(artifacts_sql.DROP_REFS, thread_id=thread_id)
        own = await transaction.fetch_all(artifacts_sql.LOCK_OF_THREAD, thread_id=thread_id)
        freed = await self._delete_unreferenced(transaction, own)
        strays = await self._delete_strays(transaction, referred)
        await self._unreferenced(transaction, {*blobs, *freed, *strays})

    async def copy(self, transaction: Transaction, source_id: str, target_id: str) -> None:
        """Let a copy of a thread refer to what the thread refers to; its artifacts stay the source's.

        Raises:
            LostRaceError: what the source refers to is being removed at this moment; begin again.
        """
        blobs = await transaction.fetch_all(sql.REFERRED_BLOBS, thread_id=source_id)
        await self.refer(transaction, target_id, blobs)
        artifacts = await transaction.fetch_all(artifacts_sql.REFERRED, thread_id=source_id)
        if await self.refer_artifacts(transaction, target_id, artifacts):
            raise LostRaceError("an artifact was deleted meanwhile")

    async def _unreferenced(self, transaction: Transaction, blob_ids: set[UUID]) -> None:
        if blob_ids:
            await transaction.run(sql.MARK_UNREFERENCED, blob_ids=sorted(blob_ids))

    # --- artifacts -------------------------------------------------------------------------------------------------

    async def next_number(self, transaction: Transaction, thread_id: str, name_digest: bytes) -> int:
        """The number of the next artifact of this name: one more than the greatest there is."""
        return await transaction.fetch_only(artifacts_sql.NEXT_NUMBER, thread_id=thread_id, name_digest=name_digest)

    async def add_artifact(self, transaction: Transaction, row: ArtifactRow) -> None:
        """Add an artifact whose blob was settled, or locked by `lock_blob`, in this transaction.

        Raises:
            LostRaceError: another one of this name took the number; take the next one.
        """
        if await transaction.fetch_one(artifacts_sql.ADD, **structs.asdict(row)) is None:
            raise LostRaceError("another file of this name was added meanwhile")

    async def lock_blob(self, transaction: Transaction, blob_id: UUID) -> None:
        """Keep a live blob from being condemned until this transaction ends: for another artifact of its content.

        Raises:
            LostRaceError: it is not live any more.
        """
        await self._lock_live(transaction, [blob_id])

    async def artifact(self, transaction: Transaction, artifact_id: UUID) -> ArtifactRow:
        """One artifact.

        Raises:
            ArtifactNotFound: this scope has none of this id.
        """
        row = await transaction.fetch_one(artifacts_sql.ONE, artifact_id=artifact_id)
        if row is None:
            raise ArtifactNotFound
        return row

    async def artifacts(self, transaction: Transaction, artifact_ids: Iterable[UUID]) -> Mapping[UUID, ArtifactRow]:
        """Read those of these artifacts that exist."""
        rows = await transaction.fetch_all(artifacts_sql.MANY, artifact_ids=list(set(artifact_ids)))
        return {row.artifact_id: row for row in rows}

    async def list_artifacts(
        self, transaction: Transaction, thread_id: str, name_digest: bytes | None, after: UUID | None, limit: int
    ) -> list[ArtifactRow]:
        """A thread's artifacts, newest first; of one name, or all."""
        return await transaction.fetch_all(
            artifacts_sql.LIST, thread_id=thread_id, name_digest=name_digest, after=after, limit=limit
        )

    async def lock_artifact(self, transaction: Transaction, artifact_id: UUID) -> ArtifactRow:
        """The row of an artifact, which no other request changes until the transaction ends.

        Raises:
            ArtifactNotFound: this scope has none of this id.
        """
        row = await transaction.fetch_one(artifacts_sql.LOCK_ROW, artifact_id=artifact_id)
        if row is None:
            raise ArtifactNotFound
        return row

    async def set_url_epoch(self, transaction: Transaction, row: ArtifactRow) -> None:
        """Write the URL epoch of a row that is locked, with the seal that vouches for it."""
        await transaction.run(
            artifacts_sql.SET_URL_EPOCH,
            artifact_id=row.artifact_id,
            url_epoch=row.url_epoch,
            key_version=row.key_version,
            sealed=row.sealed,
        )

    async def refer_artifacts(
        self, transaction: Transaction, thread_id: str, artifact_ids: Iterable[UUID]
    ) -> set[UUID]:
        """Let a thread refer to artifacts, in the transaction that stores what names them.

        Returns:
            Those that this scope does not have; if there are any, the transaction must not commit.
        """
        wanted = sorted(set(artifact_ids))
        if not wanted:
            return set()
        locked = await transaction.fetch_all(artifacts_sql.LOCK_NAMED, artifact_ids=wanted)
        await transaction.run(artifacts_sql.ADD_REFS, thread_id=thread_id, artifact_ids=locked)
        return {*wanted} - {*locked}

    async def delete_artifact(self, transaction: Transaction, artifact_id: UUID) -> str:
        """Delete an artifact that no thread refers to; returns whose it was.

        Raises:
            ArtifactNotFound: this scope has none of this id.
            ArtifactReferenced: a checkpoint or pending write names it.
        """
        if await transaction.fetch_one(artifacts_sql.LOCK, artifact_id=artifact_id) is None:
            raise ArtifactNotFound
        if await transaction.fetch_one(artifacts_sql.IS_REFERENCED, artifact_id=artifact_id):
            raise ArtifactReferenced
        deleted = await transaction.fetch_one(artifacts_sql.DELETE, artifact_id=artifact_id)
        if deleted is None:
            raise ArtifactNotFound
        await self._unreferenced(transaction, {deleted.blob_id})
        return deleted.thread_id

    async def _delete_strays(self, transaction: Transaction, artifact_ids: list[UUID]) -> list[UUID]:
        """Delete those of these artifacts whose thread is gone and that nothing refers to; returns their blobs."""
        if not artifact_ids:
            return []
        locked = await transaction.fetch_all(artifacts_sql.LOCK_STRAYS, artifact_ids=artifact_ids)
        return await self._delete_unreferenced(transaction, locked)

    async def _delete_unreferenced(self, transaction: Transaction, artifact_ids: list[UUID]) -> list[UUID]:
        """Delete those of these locked artifacts that nothing refers to; returns their blobs."""
        if not artifact_ids:
            return []
        return await transaction.fetch_all(artifacts_sql.DELETE_UNREFERENCED, artifact_ids=artifact_ids)

    # --- shredding -------------------------------------------------------------------------------------------------

    async def condemn_subject(self, transaction: Transaction) -> int:
        """Condemn every blob of a subject whose keys are destroyed, and delete what refers to them.

        Returns:
            How many blobs were live.
        """
        condemned = await transaction.run(sql.CONDEMN_SUBJECT)
        await transaction.run(sql.ABANDON_SUBJECT, tombstone_seconds=self._tombstone_seconds)
        for statement in sql.FORGET_SUBJECT:
            await transaction.run(statement)
        return condemned
