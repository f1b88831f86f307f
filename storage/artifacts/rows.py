"""The rows of artifacts: sealed, opened, numbered, and made of objects that are in the bucket.

Owns what is common to every way an artifact comes into being or is read: what of it is sealed and what the seal is
bound to, which client-held share opens it, how its thread is entered, and the transaction that turns an upload into an
artifact. It reads and writes no object; which verb promises what is said where the verb is.
"""

import hmac
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import structs

from crypto import Kind, OpenError, Sealer
from storage.access.access import Access
from storage.access.completeness import admit
from storage.access.idempotency import claim, settle
from storage.artifacts.model import Artifact, NewArtifact, NewVersion
from storage.blobs.store import BlobStore
from storage.encoding import decode_json, encode_json
from storage.errors import (
    ArtifactNotFound,
    BlobsNotConfigured,
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    DigestMismatch,
    IntegrityFailure,
    StorageError,
    ThreadArchived,
    UploadExpired,
    UploadNotFound,
)
from storage.event_queue.model import OfThread
from storage.format.key_versions import check_key_version
from storage.format.pointer import artifact_name_digest, seal_record
from storage.format.record import new_thread, open_thread, seal_thread
from storage.format.token import TAG_BYTES
from storage.ledger.ledger import BlobLedger, Settlement, described_at
from storage.ledger.streams import BlobReader, BlobWriter
from storage.model import Idempotency
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.objects import artifacts as artifacts_sql
from storage.statements.objects.artifacts import ArtifactRow
from storage.statements.threads import checkpoints as checkpoints_sql
from storage.statements.threads import threads as threads_sql


class _Description(msgspec.Struct, array_like=True, frozen=True):
    """What an artifact's row has sealed.

    ``url_epoch`` is how often the artifact's URLs were revoked by a process that seals that: the row's own epoch may be
    greater, because a build before this one counts in the row alone, and is never smaller.
    """

    thread_id: str
    name: str
    media_type: str
    metadata: bytes
    preview: bytes | None
    digest: bytes
    format: int = 1
    url_epoch: int = 0


class Receipt(msgspec.Struct, array_like=True, frozen=True):
    """What an Idempotency-Key gave: an artifact or an upload."""

    made_id: UUID


_description = msgspec.msgpack.Decoder(_Description)


@dataclass(frozen=True, slots=True)
class Ends:
    """The object store, and the ways to and from it that the whole process shares."""

    blobs: BlobStore
    writer: BlobWriter
    reader: BlobReader


class ArtifactRows:
    """A subject's artifacts as rows; every verb works through it."""

    def __init__(
        self,
        access: Access,
        ledger: BlobLedger,
        blobs: BlobStore | None,
        writer: BlobWriter | None,
        reader: BlobReader | None,
    ) -> None:
        self.access = access
        self.ledger = ledger
        self._ends = None
        if blobs is not None and writer is not None and reader is not None:
            self._ends = Ends(blobs, writer, reader)

    def ends(self) -> Ends:
        """The object store.

        Raises:
            BlobsNotConfigured: there is none.
        """
        if self._ends is None:
            raise BlobsNotConfigured
        return self._ends

    def now(self) -> datetime:
        """The moment by the deployment's clock."""
        return self.access.clock.now()

    async def give_up(self, scope: Scope, blob_id: UUID, *, sent: bool = True) -> None:
        """Let the sweeper have what was ``sent`` to the object store, soon; nothing was: its bytes are free at once.

        Without the database the sweeper finds out by itself, tomorrow.
        """
        with suppress(StorageError):
            if sent:
                await self.ledger.abandon(scope, blob_id)
            else:
                await self.ledger.withdraw(scope, blob_id)

    async def admit_upload(self, scope: Scope, sealer: Sealer, thread_id: str, idempotency: Idempotency | None) -> bool:
        """Admit an upload to a thread; whether its Idempotency-Key was used before.

        Raises:
            RowQuotaExceeded: the tenant may store no more rows.
            ThreadArchived: the thread is in the archive tier.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        async with self.access.unit_of_work.begin(scope) as transaction:
            await self.access.check_keys_in(transaction, scope, sealer)
            await self.enter(transaction, scope, sealer, thread_id)
            if idempotency is not None:
                key = idempotency.idempotency_key
                if await transaction.fetch_one(checkpoints_sql.READ_IDEMPOTENCY, idempotency_key=key) is not None:
                    return True
            self.access.row_quotas.require_room(scope)
            return False

    async def enter(self, transaction: Transaction, scope: Scope, sealer: Sealer, thread_id: str) -> None:
        """Lock a thread, made if there is none, so that nothing removes it and no other request numbers its artifacts.

        Raises:
            ThreadArchived: the thread is in the archive tier.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        now = self.now()
        seal = seal_thread(sealer, thread_id, now, new_thread(sealer, thread_id))
        put = {"thread_id": thread_id, "agent": None, "strict": None, "now": now, "seal": seal}
        row = await transaction.fetch_only(threads_sql.PUT, **put, client_share=sealer.shared)
        open_thread(sealer, thread_id, row.created_at, row.seal)
        if await transaction.fetch_one(artifacts_sql.LOCK_THREAD, thread_id=thread_id) != "hot":
            raise ThreadArchived(thread_id)
        if row.seal == seal:
            await self.access.emitting.of_thread(transaction, scope, "thread.created", OfThread(thread_id))

    async def settle_upload(
        self,
        scope: Scope,
        thread_id: str,
        new: NewArtifact,
        settlement: Settlement,
        digest: bytes,
        idempotency: Idempotency | None,
        share: ClientShare | None,
    ) -> Artifact:
        """Make an artifact of an object that is in the bucket; its id is the blob's.

        Raises:
            UploadNotFound: the intent was given up.
            IdempotencyKeyReused: the key was used for another request.
            ThreadArchived, ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `enter`.
        """

        async def work(sealer: Sealer) -> tuple[Artifact, bool]:
            async with self.access.unit_of_work.begin(scope) as transaction:
                await self.access.check_keys_in(transaction, scope, sealer)
                now = self.now()
                if idempotency is not None:
                    receipt = await claim(transaction, sealer, idempotency, now, Receipt)
                    if receipt is not None:
                        return await self.one(transaction, sealer, receipt.made_id), False
                await self.enter(transaction, scope, sealer, thread_id)
                try:
                    await self.ledger.settle(transaction, sealer, [settlement], None)
                except UploadExpired:
                    raise UploadNotFound from None  # the stream is gone: nothing to upload again
                version = NewVersion(
                    artifact_id=settlement.blob_id,
                    thread_id=thread_id,
                    new=new,
                    blob_id=settlement.blob_id,
                    size_bytes=settlement.pointer.size_bytes,
                    digest=digest,
                )
                made = await self.add(transaction, sealer, version)
                if idempotency is not None:
                    await settle(transaction, sealer, idempotency, Receipt(made.artifact_id))
                return made, True

        artifact, ours = await self.access.with_keys(scope, work, share)
        if not ours:
            await self.give_up(scope, settlement.blob_id)
        return artifact

    async def add(self, transaction: Transaction, sealer: Sealer, version: NewVersion) -> Artifact:
        """Write the row of an artifact, the next version of its name. Its thread is entered, its blob is live.

        Raises:
            LostRaceError: another one took the number, or its id.
        """
        thread_id, new = version.thread_id, version.new
        name_digest = artifact_name_digest(sealer, thread_id, new.name)
        row = ArtifactRow(
            artifact_id=version.artifact_id,
            thread_id=thread_id,
            name_digest=name_digest,
            number=version.number or await self.ledger.next_number(transaction, thread_id, name_digest),
            blob_id=version.blob_id,
            url_epoch=0,
            size_bytes=version.size_bytes,
            client_share=sealer.shared,
            key_version=sealer.active_key_version,
            created_at=version.created_at or self.now(),
            sealed=b"",
        )
        described = _Description(
            thread_id, new.name, new.media_type, encode_json(new.metadata), new.preview, version.digest
        )
        sealed = seal_record(sealer, described_at(row), described)
        await self.ledger.add_artifact(transaction, structs.replace(row, sealed=sealed))
        return _artifact(sealer, row, described)

    async def get(self, scope: Scope, artifact_id: UUID, *, share: ClientShare | None = None) -> Artifact:
        """One artifact, without its content.

        Raises:
            BlobsNotConfigured: there is no object store.
            ArtifactNotFound: this scope has none of this id.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the one it was made under.
        """
        self.ends()

        async def work(sealer: Sealer) -> Artifact:
            async with self.access.unit_of_work.snapshot(scope) as transaction:
                await self.access.check_keys_in(transaction, scope, sealer)
                return await self.one(transaction, sealer, artifact_id)

        return await self.access.with_existing_keys(scope, work, ArtifactNotFound(), share)

    async def one(self, transaction: Transaction, sealer: Sealer, artifact_id: UUID) -> Artifact:
        """One artifact, as `open`.

        Raises:
            ArtifactNotFound: this scope has none of this id.
        """
        row = await self.ledger.artifact(transaction, artifact_id)
        return await self.open(transaction, sealer, row)

    async def open(self, transaction: Transaction, sealer: Sealer, row: ArtifactRow) -> Artifact:
        """What a row has sealed.

        Raises:
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the one it was made under.
            IntegrityFailure: the row is not as it was written.
        """
        check_flag(sealer, needed=row.client_share)
        try:
            described = _described(sealer, row)
        except OpenError:
            # If the thread says that the share is its own, the row is damaged; if it does not, or is gone, the share is
            # wrong.
            if row.client_share and await admit(transaction, sealer, row.thread_id) is None:
                raise ClientShareWrong from None
            raise IntegrityFailure("a stored artifact does not authenticate") from None
        _compare_clear(row, described)
        return _artifact(sealer, row, described)

    def revoked(self, sealer: Sealer, row: ArtifactRow) -> ArtifactRow:
        """A row whose URLs made so far are revoked, also where a revocation had been taken back.

        An artifact under a client-held share has no URLs: without the share, its epoch is not sealed.

        Raises:
            IntegrityFailure: the row is not as it was written.
        """
        if row.client_share:
            return structs.replace(row, url_epoch=row.url_epoch + 1)
        try:
            described = _described(sealer, row)
        except OpenError:
            raise IntegrityFailure("a stored artifact does not authenticate") from None
        epoch = max(row.url_epoch, described.url_epoch) + 1
        sealed = seal_record(sealer, described_at(row), structs.replace(described, url_epoch=epoch))
        return structs.replace(row, url_epoch=epoch, key_version=sealer.active_key_version, sealed=sealed)


def check_row(sealer: Sealer, row: ArtifactRow) -> None:
    """Return if a row is as it was written; of one under a client-held share, as far as can be told without it.

    Raises:
        IntegrityFailure: it is not.
        KeyDestroyed: it is sealed under a key that is gone.
    """
    if row.client_share:
        check_key_version(row.key_version, row.sealed)
        return
    try:
        _compare_clear(row, _described(sealer, row))
    except OpenError:
        raise IntegrityFailure("a stored artifact does not authenticate") from None


def _described(sealer: Sealer, row: ArtifactRow) -> _Description:
    try:
        described = _description.decode(sealer.open(Kind.POINTER, described_at(row), row.sealed))
    except msgspec.DecodeError:
        raise IntegrityFailure("a stored artifact cannot be read") from None
    check_key_version(row.key_version, row.sealed)
    return described


def _compare_clear(row: ArtifactRow, described: _Description) -> None:
    """Compare the clear columns that no seal is bound to with what is sealed."""
    if described.thread_id != row.thread_id:
        raise IntegrityFailure("a stored artifact was moved to another thread")
    if row.url_epoch < described.url_epoch:
        raise IntegrityFailure("a revocation of an artifact's URLs was taken back")


def _artifact(sealer: Sealer, row: ArtifactRow, described: _Description) -> Artifact:
    # Without the share: a client that has it gets the same tag as a URL that was made for it.
    version = row.number.to_bytes(8)
    tag = sealer.without_share.mac(b"artifact-tag", row.artifact_id.bytes, version, described.digest)[:TAG_BYTES]
    return Artifact(
        artifact_id=row.artifact_id,
        thread_id=row.thread_id,
        name=described.name,
        number=row.number,
        media_type=described.media_type,
        size_bytes=row.size_bytes,
        digest=described.digest,
        tag=tag,
        metadata=decode_json(described.metadata),
        preview=described.preview,
        created_at=row.created_at,
        url_epoch=row.url_epoch,
        client_share=row.client_share,
        opened_bytes=len(described.metadata) + len(described.preview or b""),
    )


def check_flag(sealer: Sealer, *, needed: bool) -> None:
    """Refuse a share that is missing, or one too many.

    Raises:
        ClientShareRequired: what is stored is under a share, and none was sent.
        ClientShareUnexpected: one was sent, and what is stored is under none.
    """
    if needed and not sealer.shared:
        raise ClientShareRequired
    if sealer.shared and not needed:
        raise ClientShareUnexpected


def compare(found: bytes, wanted: bytes | None) -> None:
    """Compare a content's digest with the one it must have, if there is one.

    Raises:
        DigestMismatch: they differ.
    """
    if wanted is not None and not hmac.compare_digest(found, wanted):
        raise DigestMismatch
