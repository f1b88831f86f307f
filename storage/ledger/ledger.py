"""The ledger of blobs: every transition of a row that says which objects are needed, and which are not any more.

1. **reserve**, in a transaction of its own: the quota and an *intent*. Only then may an object be written.
2. The object is written; no transaction is open meanwhile.
3. **settle**, in the transaction that stores whatever names the blob: it takes the intent, which must still be open,
   and makes the blob live. **refer** does the same for a blob that is live already, under a lock that condemning
   conflicts with.
4. References go with what held them (`keep`, `drop`); `storage.collection.sweep` condemns what nobody refers to, and
   much later removes it. A condemned blob never comes back: its content is uploaded again under a new id.

The order of locks is: thread, intents, blobs by content id or blob id, references, usage. Verbs that take a
`Transaction` belong in the caller's; the others commit by themselves. Nothing here talks to the object store.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from uuid_utils import uuid7

from crypto import Sealer
from storage.blobs.keyspace import Place
from storage.errors import (
    ArtifactNotFound,
    ArtifactReferenced,
    IntegrityFailure,
    LostRaceError,
    QuotaExceeded,
    UploadExpired,
    UploadNotFound,
)
from storage.format.key_versions import check_key_version
from storage.format.pointer import (
    BlobPointer,
    IntentRecord,
    artifact_location,
    intent_location,
    open_intent,
    open_pointer,
    pointer_location,
    seal_record,
)
from storage.postgres import artifacts as artifacts_sql
from storage.postgres import blobs as sql
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope

# An upload that nobody went on with for so long is given up; each part of a resumable one begins the time anew.
INTENT_SECONDS = 24 * 3600
# How long a swept intent is remembered: longer than the longest PUT that may still be under way. At its end the
# object is removed once more.
INTENT_TOMBSTONE_SECONDS = 24 * 3600
NAMED_ID_BYTES = 16

Purpose = Literal["piece", "artifact", "archive"]


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
        purpose: Of a value's piece, of a file, or of an archived thread.
        reserved_bytes: Of the object, as far as it is known; `BlobLedger.renew` reserves more.
        content_id: Of a piece: equal content is kept once for each subject. None: kept as it is.
        record: What resuming needs, or None for an upload that is done in one go.
        place: Which bucket it goes to.
    """

    blob_id: UUID
    purpose: Purpose
    reserved_bytes: int
    content_id: bytes | None = None
    record: IntentRecord | None = None
    place: Place = "blobs"


@dataclass(frozen=True, slots=True)
class Intent:
    """An open intent. ``record`` is None for an upload that cannot be resumed."""

    blob_id: UUID
    place: Place
    purpose: Purpose
    content_id: bytes | None
    multipart_id: str | None
    reserved_bytes: int
    key_version: int
    client_share: bool
    created_at: datetime
    expires_at: datetime
    sealed: bytes | None = field(repr=False)

    def record(self, sealer: Sealer) -> IntentRecord:
        """What resuming needs. ``sealer`` must be mixed with the share if ``client_share`` says so.

        Raises:
            UploadNotFound: it cannot be resumed.
            IntegrityFailure: it does not authenticate, or the row names another key version.
        """
        if self.sealed is None:
            raise UploadNotFound
        location = intent_location(self.blob_id, self.purpose, self.content_id, self.created_at)
        return open_intent(sealer, location, self.sealed, self.key_version)


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part of a resumable upload that the object store has.

    Attributes:
        number: Counted from 0, as in the sealed format.
        etag: The object store's name for it.
        size_bytes: Of its content.
        digest: What tells its content from another one; the caller's own bytes, sealed.
    """

    number: int
    etag: str
    size_bytes: int
    digest: bytes


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
    place: Place = "blobs"


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """An artifact as its row says; ``sealed`` is opened at `location`."""

    artifact_id: UUID
    thread_id: str
    name_digest: bytes
    number: int
    blob_id: UUID
    url_epoch: int
    size_bytes: int
    client_share: bool
    key_version: int
    created_at: datetime
    sealed: bytes = field(repr=False)

    @property
    def location(self) -> tuple[Any, ...]:
        """Where its description stands."""
        return artifact_location(
            self.artifact_id, self.name_digest, self.number, self.blob_id, self.size_bytes, self.created_at
        )


def _place(scope: Scope) -> tuple[UUID, str]:
    return scope.tenant_id, scope.subject_id


def _intent(row: Any) -> Intent:
    return Intent(
        blob_id=row["blob_id"],
        place=row["place"],
        purpose=row["purpose"],
        content_id=row["content_id"],
        multipart_id=row["multipart_id"],
        reserved_bytes=row["reserved_bytes"],
        key_version=row["key_version"],
        client_share=row["client_share"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        sealed=row["record"],
    )


def _pointer(sealer: Sealer, row: Any) -> BlobPointer:
    location = pointer_location(row["blob_id"], row["content_id"], row["size_bytes"], row["created_at"])
    opener = sealer if row["client_share"] else sealer.without_share
    return open_pointer(opener, location, row["pointer"], row["key_version"])


def check_blob(sealer: Sealer, row: Any) -> None:
    """Return if a live blob's row is as it was written; of one under a client-held share, as far as can be told.

    Raises:
        IntegrityFailure: it is not.
        KeyDestroyed: it is sealed under a key that is gone.
    """
    if row["pointer"] is None:
        raise IntegrityFailure("nothing is stored that opens it")
    if row["client_share"]:
        check_key_version(row["key_version"], row["pointer"])
    else:
        _pointer(sealer, row)


def check_intent(sealer: Sealer, row: Any) -> None:
    """As `check_blob`, of the row of an upload that can be resumed."""
    intent = _intent(row)
    if intent.client_share and intent.sealed is not None:
        check_key_version(intent.key_version, intent.sealed)
    else:
        intent.record(sealer)


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

        Args:
            scope: Whose they are.
            sealer: Of the scope; mixed with the client-held share if the thread takes one.
            uploads: All of them, or none, are reserved.
            now: Wall time.

        Raises:
            QuotaExceeded: the tenant has not so many bytes left; nothing is reserved.
            CommitUnknown: nobody knows; the ids must not be used again.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            for each in uploads:
                record = None
                if each.record is not None:
                    location = intent_location(each.blob_id, each.purpose, each.content_id, now)
                    record = seal_record(sealer, location, each.record)
                await transaction.execute(
                    sql.ADD_INTENT,
                    *_place(scope),
                    each.blob_id,
                    each.purpose,
                    each.content_id,
                    each.reserved_bytes,
                    sealer.active_key_version,
                    sealer.shared,
                    record,
                    now,
                    self._intent_seconds,
                    each.place,
                )
            await self._reserve_bytes(transaction, scope, sum(each.reserved_bytes for each in uploads))

    async def _reserve_bytes(self, transaction: Transaction, scope: Scope, amount: int) -> None:
        # Last in its transaction: the row is the tenant's, and whoever stores something waits for it.
        # A tenant's first row is inserted without looking at a quota, because it has none.
        if amount < 0:
            await transaction.execute(sql.COUNT_BYTES, scope.tenant_id, amount)
        elif await transaction.fetchrow(sql.RESERVE_BYTES, scope.tenant_id, amount) is None:
            raise QuotaExceeded

    async def intent(self, transaction: Transaction, scope: Scope, blob_id: UUID) -> Intent:
        """An open intent.

        Raises:
            UploadNotFound: there is none: settled, given up, or expired.
        """
        row = await transaction.fetchrow(sql.OPEN_INTENT, *_place(scope), blob_id)
        if row is None:
            raise UploadNotFound
        return _intent(row)

    async def renew(self, scope: Scope, blob_id: UUID, more_bytes: int = 0) -> Intent:
        """Begin an open intent's time anew, and reserve more bytes before they are written. Commits.

        Raises:
            UploadNotFound: it is not open any more; do not write to its object.
            QuotaExceeded: the tenant has not so many bytes left; nothing changed.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            row = await transaction.fetchrow(
                sql.RENEW_INTENT, *_place(scope), blob_id, self._intent_seconds, more_bytes
            )
            if row is None:
                raise UploadNotFound
            if more_bytes:
                await self._reserve_bytes(transaction, scope, more_bytes)
        return _intent(row)

    async def name_multipart(self, scope: Scope, blob_id: UUID, multipart_id: str) -> str:
        """Record which multipart upload of the object store this is; the first one stays. Commits.

        Returns:
            The one in force. If it is not ``multipart_id``, the caller aborts its own.

        Raises:
            UploadNotFound: the intent is not open any more; the caller aborts its own.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            kept: str | None = await transaction.fetchval(sql.NAME_MULTIPART, *_place(scope), blob_id, multipart_id)
        if kept is None:
            raise UploadNotFound
        return kept

    async def record_part(self, scope: Scope, blob_id: UUID, part: UploadedPart) -> Intent:
        """Record a part that the object store has, in the place of an earlier one of its number. Commits.

        Raises:
            UploadNotFound: the intent is not open any more.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            row = await transaction.fetchrow(sql.RENEW_INTENT, *_place(scope), blob_id, self._intent_seconds, 0)
            if row is None:
                raise UploadNotFound
            await transaction.execute(
                sql.PUT_PART, *_place(scope), blob_id, part.number, part.etag, part.size_bytes, part.digest
            )
        return _intent(row)

    async def parts(self, transaction: Transaction, scope: Scope, blob_id: UUID) -> list[UploadedPart]:
        """The recorded parts of an upload, by number."""
        rows = await transaction.fetch(sql.PARTS, *_place(scope), blob_id)
        return [UploadedPart(**dict(row)) for row in rows]

    async def part(self, transaction: Transaction, scope: Scope, blob_id: UUID, number: int) -> UploadedPart | None:
        """One recorded part of an upload, or None."""
        row = await transaction.fetchrow(sql.PART, *_place(scope), blob_id, number)
        return None if row is None else UploadedPart(**dict(row))

    async def forget_parts(self, scope: Scope, blob_id: UUID, number: int | None = None) -> None:
        """Forget one recorded part, or all of them: before other bytes take its place in the object store. Commits.

        So a part that is recorded is always the one that is stored, however the process ends in between.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.execute(sql.FORGET_PARTS, *_place(scope), blob_id, number)

    async def abandon(self, scope: Scope, blob_id: UUID) -> None:
        """Give an upload up; the sweeper removes what was written. Commits.

        Raises:
            UploadNotFound: it is not open any more.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            if not await self._abandon(transaction, scope, [blob_id]):
                raise UploadNotFound

    async def _abandon(self, transaction: Transaction, scope: Scope, blob_ids: list[UUID]) -> int:
        rows = await transaction.fetch(sql.ABANDON_INTENTS, *_place(scope), blob_ids, self._tombstone_seconds)
        await transaction.execute(sql.DELETE_PARTS, *_place(scope), blob_ids)
        return len(rows)

    async def settle(
        self,
        transaction: Transaction,
        scope: Scope,
        sealer: Sealer,
        settlements: Sequence[Settlement],
        thread_id: str | None,
    ) -> dict[UUID, UUID]:
        """Make blobs live, in the transaction that stores what names them.

        Args:
            transaction: The caller's; READ COMMITTED.
            scope: Whose they are.
            sealer: As it was for `reserve`.
            settlements: Their objects are in the bucket.
            thread_id: Which thread refers to them. None: no thread does yet, or an artifact's row will; then, without
                one, they are swept after the grace period.

        Returns:
            For each blob id the one to name: another one where the same content was settled by somebody else first.

        Raises:
            UploadExpired: an intent was swept. The caller's transaction must not commit; upload again under a new id.
            LostRaceError: the blob with the same content is being condemned at this moment; as before.
            QuotaExceeded: an object is larger than what was reserved, and the tenant has not so many bytes left.
        """
        if not settlements:
            return {}
        wanted = [each.blob_id for each in settlements]
        rows = await transaction.fetch(sql.LOCK_INTENTS, *_place(scope), wanted)
        intents = {row["blob_id"]: row for row in rows}
        if len(intents) != len(set(wanted)):
            raise UploadExpired
        created = [intents[each.blob_id]["created_at"] for each in settlements]
        pointers = [
            seal_record(
                sealer, pointer_location(each.blob_id, each.content_id, each.object_bytes, created_at), each.pointer
            )
            for each, created_at in zip(settlements, created, strict=True)
        ]
        added = await transaction.fetch(
            sql.ADD_BLOBS,
            *_place(scope),
            sealer.shared,
            sealer.active_key_version,
            thread_id is None,
            wanted,
            [each.content_id for each in settlements],
            [each.object_bytes for each in settlements],
            pointers,
            created,
            [intents[each.blob_id]["place"] for each in settlements],
        )
        new = {row["blob_id"] for row in added}
        named = {blob_id: blob_id for blob_id in new}
        duplicates = [each for each in settlements if each.blob_id not in new]
        if duplicates:
            named |= await self._winners(transaction, scope, duplicates)
            await self._abandon(transaction, scope, [each.blob_id for each in duplicates])
        await transaction.execute(sql.SETTLE_INTENTS, *_place(scope), list(new))
        await transaction.execute(sql.DELETE_PARTS, *_place(scope), list(new))
        if thread_id is not None:
            await transaction.execute(sql.ADD_REFS, *_place(scope), thread_id, sorted(set(named.values())))
        more = sum(
            each.object_bytes - intents[each.blob_id]["reserved_bytes"] for each in settlements if each.blob_id in new
        )
        if more:
            await self._reserve_bytes(transaction, scope, more)
        return named

    async def _winners(
        self, transaction: Transaction, scope: Scope, duplicates: Sequence[Settlement]
    ) -> dict[UUID, UUID]:
        """For each blob the live one with the same content, locked."""
        content_ids = [each.content_id for each in duplicates if each.content_id is not None]
        known = await self.known(transaction, scope, content_ids)
        if len(content_ids) != len(duplicates) or not all(each in known for each in content_ids):
            raise LostRaceError
        await self._lock_live(transaction, scope, known.values())
        return {each.blob_id: known[each.content_id] for each in duplicates if each.content_id is not None}

    # --- references ------------------------------------------------------------------------------------------------

    async def known(self, transaction: Transaction, scope: Scope, content_ids: Sequence[bytes]) -> dict[bytes, UUID]:
        """Live blobs by content id: a hint, to spare an upload; `refer` decides."""
        rows = await transaction.fetch(sql.KNOWN, *_place(scope), list(content_ids))
        return {row["content_id"]: row["blob_id"] for row in rows}

    async def refer(self, transaction: Transaction, scope: Scope, thread_id: str, blob_ids: Iterable[UUID]) -> None:
        """Let a thread refer to blobs that are live, in the transaction that stores what names them.

        Raises:
            LostRaceError: one is not live any more; upload its content again.
        """
        wanted = sorted(set(blob_ids))
        if wanted:
            await self._lock_live(transaction, scope, wanted)
            await transaction.execute(sql.ADD_REFS, *_place(scope), thread_id, wanted)

    async def _lock_live(self, transaction: Transaction, scope: Scope, blob_ids: Iterable[UUID]) -> None:
        wanted = sorted(set(blob_ids))
        rows = await transaction.fetch(sql.LOCK_LIVE, *_place(scope), wanted)
        if len(rows) != len(wanted):
            raise LostRaceError("a blob was condemned meanwhile")
        marked = [row["blob_id"] for row in rows if row["unreferenced_at"] is not None]
        if marked:
            await transaction.execute(sql.MARK_REFERENCED, *_place(scope), marked)

    async def pointers(
        self, transaction: Transaction, scope: Scope, sealer: Sealer, blob_ids: Iterable[UUID]
    ) -> dict[UUID, LiveBlob]:
        """What opens these blobs.

        Args:
            transaction: The caller's; a snapshot will do.
            scope: Whose they are.
            sealer: Mixed with the client-held share where the thread takes one. Blobs without it open, too.
            blob_ids: Any; each once.

        Raises:
            IntegrityFailure: one has no pointer, it does not authenticate, its row names another key version, or it
                takes a share that is not there.
        """
        wanted = set(blob_ids)
        found: dict[UUID, LiveBlob] = {}
        for row in await transaction.fetch(sql.POINTERS, *_place(scope), list(wanted)):
            pointer = _pointer(sealer, row)
            found[row["blob_id"]] = LiveBlob(row["blob_id"], row["size_bytes"], pointer, row["place"])
        if len(found) != len(wanted):
            raise IntegrityFailure("a stored blob is missing")
        return found

    async def keep(self, transaction: Transaction, scope: Scope, thread_id: str) -> None:
        """Drop the references of a thread that none of its remaining rows holds. The thread is locked."""
        place = (*_place(scope), thread_id)
        blobs = await transaction.fetch(sql.KEEP_BLOB_REFS, *place)
        artifacts = await transaction.fetch(artifacts_sql.KEEP_REFS, *place)
        strays = await self._delete_strays(transaction, scope, [row["artifact_id"] for row in artifacts])
        await self._unreferenced(transaction, scope, {row["blob_id"] for row in blobs} | strays)

    async def drop(self, transaction: Transaction, scope: Scope, thread_id: str) -> None:
        """Drop a thread's references and delete its artifacts, except those that other threads refer to.

        The thread is locked, and its row deleted before in this transaction.
        """
        place = (*_place(scope), thread_id)
        blobs = await transaction.fetch(sql.DROP_BLOB_REFS, *place)
        referred = await transaction.fetch(artifacts_sql.DROP_REFS, *place)
        own = await transaction.fetch(artifacts_sql.LOCK_OF_THREAD, *place)
        freed = await self._delete_unreferenced(transaction, scope, [row["artifact_id"] for row in own])
        freed |= await self._delete_strays(transaction, scope, [row["artifact_id"] for row in referred])
        await self._unreferenced(transaction, scope, {row["blob_id"] for row in blobs} | freed)

    async def copy(self, transaction: Transaction, scope: Scope, source_id: str, target_id: str) -> None:
        """Let a copy of a thread refer to what the thread refers to; its artifacts stay the source's.

        Raises:
            LostRaceError: what the source refers to is being removed at this moment; begin again.
        """
        blobs = await transaction.fetch(sql.REFERRED_BLOBS, *_place(scope), source_id)
        await self.refer(transaction, scope, target_id, [row["blob_id"] for row in blobs])
        artifacts = await transaction.fetch(artifacts_sql.REFERRED, *_place(scope), source_id)
        wanted = [row["artifact_id"] for row in artifacts]
        if await self.refer_artifacts(transaction, scope, target_id, wanted):
            raise LostRaceError("an artifact was deleted meanwhile")

    async def _unreferenced(self, transaction: Transaction, scope: Scope, blob_ids: set[UUID]) -> None:
        if blob_ids:
            await transaction.execute(sql.MARK_UNREFERENCED, *_place(scope), sorted(blob_ids))

    # --- artifacts -------------------------------------------------------------------------------------------------

    async def next_number(self, transaction: Transaction, scope: Scope, thread_id: str, name_digest: bytes) -> int:
        """The number of the next artifact of this name: one more than the greatest there is."""
        number: int = await transaction.fetchval(artifacts_sql.NEXT_NUMBER, *_place(scope), thread_id, name_digest)
        return number

    async def add_artifact(self, transaction: Transaction, scope: Scope, row: ArtifactRow) -> None:
        """Add an artifact whose blob was settled, or locked by `lock_blob`, in this transaction.

        Raises:
            LostRaceError: another one of this name took the number; take the next one.
        """
        added = await transaction.fetchrow(
            artifacts_sql.ADD,
            *_place(scope),
            row.artifact_id,
            row.thread_id,
            row.name_digest,
            row.number,
            row.blob_id,
            row.size_bytes,
            row.client_share,
            row.key_version,
            row.created_at,
            row.sealed,
        )
        if added is None:
            raise LostRaceError("another file of this name was added meanwhile")

    async def lock_blob(self, transaction: Transaction, scope: Scope, blob_id: UUID) -> None:
        """Keep a live blob from being condemned until this transaction ends: for another artifact of its content.

        Raises:
            LostRaceError: it is not live any more.
        """
        await self._lock_live(transaction, scope, [blob_id])

    async def artifact(self, transaction: Transaction, scope: Scope, artifact_id: UUID) -> ArtifactRow:
        """One artifact.

        Raises:
            ArtifactNotFound: this scope has none of this id.
        """
        row = await transaction.fetchrow(artifacts_sql.ONE, *_place(scope), artifact_id)
        if row is None:
            raise ArtifactNotFound
        return ArtifactRow(**dict(row))

    async def artifacts(
        self, transaction: Transaction, scope: Scope, artifact_ids: Iterable[UUID]
    ) -> Mapping[UUID, ArtifactRow]:
        """Those of these artifacts that there are."""
        rows = await transaction.fetch(artifacts_sql.MANY, *_place(scope), list(set(artifact_ids)))
        return {row["artifact_id"]: ArtifactRow(**dict(row)) for row in rows}

    async def list_artifacts(
        self,
        transaction: Transaction,
        scope: Scope,
        thread_id: str,
        name_digest: bytes | None,
        after: UUID | None,
        limit: int,
    ) -> list[ArtifactRow]:
        """A thread's artifacts, newest first; of one name, or all."""
        rows = await transaction.fetch(artifacts_sql.LIST, *_place(scope), thread_id, name_digest, after, limit)
        return [ArtifactRow(**dict(row)) for row in rows]

    async def lock_artifact(self, transaction: Transaction, scope: Scope, artifact_id: UUID) -> ArtifactRow:
        """The row of an artifact, which nobody else changes until the transaction ends.

        Raises:
            ArtifactNotFound: this scope has none of this id.
        """
        row = await transaction.fetchrow(artifacts_sql.LOCK_ROW, *_place(scope), artifact_id)
        if row is None:
            raise ArtifactNotFound
        return ArtifactRow(**dict(row))

    async def set_url_epoch(self, transaction: Transaction, scope: Scope, row: ArtifactRow) -> None:
        """Write the URL epoch of a row that is locked, with the seal that vouches for it."""
        await transaction.execute(
            artifacts_sql.SET_URL_EPOCH, *_place(scope), row.artifact_id, row.url_epoch, row.key_version, row.sealed
        )

    async def refer_artifacts(
        self, transaction: Transaction, scope: Scope, thread_id: str, artifact_ids: Iterable[UUID]
    ) -> set[UUID]:
        """Let a thread refer to artifacts, in the transaction that stores what names them.

        Returns:
            Those that this scope does not have; if there are any, the transaction must not commit.
        """
        wanted = sorted(set(artifact_ids))
        if not wanted:
            return set()
        rows = await transaction.fetch(artifacts_sql.LOCK_NAMED, *_place(scope), wanted)
        found = [row["artifact_id"] for row in rows]
        await transaction.execute(artifacts_sql.ADD_REFS, *_place(scope), thread_id, found)
        return set(wanted) - set(found)

    async def delete_artifact(self, transaction: Transaction, scope: Scope, artifact_id: UUID) -> str:
        """Delete an artifact that no thread refers to; returns whose it was.

        Raises:
            ArtifactNotFound: this scope has none of this id.
            ArtifactReferenced: a checkpoint or pending write names it.
        """
        place = (*_place(scope), artifact_id)
        if await transaction.fetchrow(artifacts_sql.LOCK, *place) is None:
            raise ArtifactNotFound
        if await transaction.fetchval(artifacts_sql.IS_REFERENCED, *place):
            raise ArtifactReferenced
        rows = await transaction.fetch(artifacts_sql.DELETE, *place)
        await self._unreferenced(transaction, scope, {row["blob_id"] for row in rows})
        thread_id: str = rows[0]["thread_id"]
        return thread_id

    async def _delete_strays(self, transaction: Transaction, scope: Scope, artifact_ids: list[UUID]) -> set[UUID]:
        """Delete those of these artifacts whose thread is gone and that nobody refers to; returns their blobs."""
        if not artifact_ids:
            return set()
        rows = await transaction.fetch(artifacts_sql.LOCK_STRAYS, *_place(scope), artifact_ids)
        return await self._delete_unreferenced(transaction, scope, [row["artifact_id"] for row in rows])

    async def _delete_unreferenced(self, transaction: Transaction, scope: Scope, artifact_ids: list[UUID]) -> set[UUID]:
        """Delete those of these locked artifacts that nobody refers to; returns their blobs."""
        if not artifact_ids:
            return set()
        rows = await transaction.fetch(artifacts_sql.DELETE_UNREFERENCED, *_place(scope), artifact_ids)
        return {row["blob_id"] for row in rows}

    # --- shredding -------------------------------------------------------------------------------------------------

    async def condemn_subject(self, transaction: Transaction, scope: Scope) -> int:
        """Condemn every blob of a subject whose keys are destroyed, and delete what refers to them.

        Returns:
            How many blobs were live.
        """
        condemned = await transaction.execute(sql.CONDEMN_SUBJECT, *_place(scope))
        await transaction.execute(sql.ABANDON_SUBJECT, *_place(scope), self._tombstone_seconds)
        for statement in sql.FORGET_SUBJECT:
            await transaction.execute(statement, *_place(scope))
        return condemned
