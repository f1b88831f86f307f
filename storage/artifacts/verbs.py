"""Artifacts: files that users name, sealed into blobs.

Owns the verbs on what is stored: show, list, delete, copy, open. How artifacts come into being is
`storage.artifacts.whole_uploads` and `storage.artifacts.part_uploads`; the verbs of both are here as well, so that
there is one way in.

An artifact's name, type, metadata, preview and digest are sealed in its row; its content is sealed in the blob under
a key of its own. An upload reserves its bytes, writes its object while no transaction is open, and becomes an artifact
in one transaction; until then nothing refers to it, and what is left over is the sweeper's (`storage.ledger.ledger`,
`storage.collection.sweep`). Versions of a name are numbered in their thread by one more than the greatest there is. It
promises no order between uploads, and no moment at which the bytes of a deleted artifact are gone.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID

from crypto import Sealer, SecretKey
from crypto.blob import PART_BYTES
from storage.access.access import Access
from storage.access.completeness import admit
from storage.access.idempotency import claim, settle
from storage.artifacts.model import Artifact, ArtifactContent, NewArtifact, NewVersion
from storage.artifacts.part_uploads import PartUploads
from storage.artifacts.rows import ArtifactRows, Receipt
from storage.artifacts.whole_uploads import WholeUploads
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import BlobStore
from storage.checkpoints.reading import HISTORY_MANIFESTS_BYTES_MAX
from storage.concurrency.turns import Pauses
from storage.errors import ArtifactNotFound, ClientShareRequired, ClientShareWrong, IntegrityFailure, ThreadNotFound
from storage.format.pointer import BlobPointer, artifact_name_digest
from storage.ledger.ledger import BlobLedger, new_blob_id
from storage.ledger.streams import BlobReader, BlobWriter
from storage.model import Idempotency, Page
from storage.scope import ClientShare, Scope, check_id
from storage.threads.holds import refuse_held


class Artifacts:
    """The verbs on artifacts."""

    part_bytes = PART_BYTES

    def __init__(
        self,
        access: Access,
        ledger: BlobLedger,
        blobs: BlobStore | None,
        writer: BlobWriter | None,
        reader: BlobReader | None,
    ) -> None:
        self._access = access
        self._ledger = ledger
        self._rows = rows = ArtifactRows(access, ledger, blobs, writer, reader)
        self.get = rows.get
        self.create = WholeUploads(rows).create
        parts = PartUploads(rows)
        self.begin = parts.begin
        self.upload = parts.upload
        self.put_part = parts.put_part
        self.complete = parts.complete
        self.abort = parts.abort

    async def list(
        self,
        scope: Scope,
        thread_id: str,
        name: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
        *,
        share: ClientShare | None = None,
    ) -> Page[Artifact]:
        """A thread's artifacts, newest first; of one name, or all. A page with much metadata ends early.

        Raises:
            ThreadNotFound: there is no such thread.
            BlobsNotConfigured: there is no object store.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        self._rows.ends()

        async def work(sealer: Sealer) -> Page[Artifact]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                if await admit(transaction, sealer, thread_id) is None:
                    raise ThreadNotFound
                name_digest = None if name is None else artifact_name_digest(sealer, thread_id, name)
                rows = await self._ledger.list_artifacts(
                    transaction, thread_id, name_digest, UUID(after[0]) if after else None, limit
                )
                items: list[Artifact] = []
                pauses = Pauses()
                opened_bytes = 0
                for number, row in enumerate(rows, 1):
                    # What an earlier thread of this name left to others may be under another share.
                    if row.client_share == sealer.shared:
                        items.append(await self._rows.open(transaction, sealer, row))
                        opened_bytes += items[-1].opened_bytes
                        await pauses.after(items[-1].opened_bytes)
                    if number == limit or (opened_bytes >= HISTORY_MANIFESTS_BYTES_MAX and number < len(rows)):
                        return Page(items, (str(row.artifact_id),))
            return Page(items, None)

        return await self._access.with_existing_keys(scope, work, ThreadNotFound(), share)

    async def delete(self, scope: Scope, artifact_id: UUID) -> None:
        """Delete an artifact; the client-held share is not needed for that. Its object goes with the sweeper.

        Raises:
            BlobsNotConfigured: there is no object store.
            ArtifactNotFound: this scope has none of this id.
            ArtifactReferenced: a checkpoint or pending write names it.
            LegalHold: its thread must be kept, and it with the thread.
        """
        self._rows.ends()
        await self._access.control.ready()

        async def attempt() -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                thread_id = await self._ledger.delete_artifact(transaction, artifact_id)
                await refuse_held(transaction, self._access.control, scope, thread_id)

        await self._access.unit_of_work.retrying(attempt)

    async def copy(
        self,
        scope: Scope,
        artifact_id: UUID,
        thread_id: str,
        name: str | None = None,
        *,
        idempotency: Idempotency | None = None,
        share: ClientShare | None = None,
    ) -> Artifact:
        """Give an artifact's content to another thread, made if there is none, or another name. No byte is copied.

        Raises:
            BlobsNotConfigured: there is no object store.
            ArtifactNotFound: this scope has none of this id.
            RowQuotaExceeded: the tenant may store no more rows.
            IdempotencyKeyReused, ThreadArchived: as `create`.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: both threads must be under the same share.
        """
        self._rows.ends()
        check_id(thread_id, "thread id")

        async def work(sealer: Sealer) -> Artifact:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                if idempotency is not None:
                    receipt = await claim(transaction, sealer, idempotency, self._rows.now(), Receipt)
                    if receipt is not None:
                        return await self._rows.one(transaction, sealer, receipt.made_id)
                self._access.row_quotas.require_room(scope)
                source_row = await self._ledger.artifact(transaction, artifact_id)
                await self._rows.enter(transaction, scope, sealer, thread_id)
                source = await self._rows.open(transaction, sealer, source_row)
                await self._ledger.lock_blob(transaction, source_row.blob_id)
                new = NewArtifact(
                    name=name or source.name,
                    media_type=source.media_type,
                    metadata=source.metadata,
                    preview=source.preview,
                )
                version = NewVersion(
                    artifact_id=new_blob_id(),
                    thread_id=thread_id,
                    new=new,
                    blob_id=source_row.blob_id,
                    size_bytes=source.size_bytes,
                    digest=source.digest,
                )
                made = await self._rows.add(transaction, sealer, version)
                if idempotency is not None:
                    await settle(transaction, sealer, idempotency, Receipt(made.artifact_id))
                return made

        return await self._access.with_existing_keys(scope, work, ArtifactNotFound(), share)

    async def open(self, scope: Scope, artifact_id: UUID, *, share: ClientShare | None = None) -> ArtifactContent:
        """An artifact whose content can be read; reading holds no transaction.

        ``read`` raises `BlobDamaged` or `BlobUnavailable`, possibly after it gave some slices: what it gave is
        authentic, but not complete.

        Raises:
            BlobsNotConfigured: there is no object store.
            ArtifactNotFound: this scope has none of this id.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the one it was made under.
        """
        self._rows.ends()

        async def work(sealer: Sealer) -> ArtifactContent:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                row = await self._ledger.artifact(transaction, artifact_id)
                artifact = await self._rows.open(transaction, sealer, row)
                found = await self._ledger.pointers(transaction, sealer, [row.blob_id])
            return self._content(scope, sealer, artifact, row.blob_id, found[row.blob_id].pointer)

        return await self._access.with_existing_keys(scope, work, ArtifactNotFound(), share)

    async def open_named(
        self, scope: Scope, artifact_ids: Sequence[UUID], *, share: ClientShare | None = None
    ) -> dict[UUID, ArtifactContent | None]:
        """Those of these artifacts that this scope has, open for reading, as `open`; found in one snapshot.

        None stands for one under a client-held share that was not sent, or another one than was sent. A share that an
        artifact does not take is passed over: a state under a share may name artifacts that are under none. All are
        without their metadata: 16 KiB of JSON can be 400 KiB of objects, and a state may name a thousand artifacts.

        Raises:
            BlobsNotConfigured: there is no object store.
            IntegrityFailure: one is not as it was stored.
        """
        self._rows.ends()

        async def work(sealer: Sealer) -> dict[UUID, ArtifactContent | None]:
            named: dict[UUID, ArtifactContent | None] = {}
            opened: list[tuple[Artifact, UUID]] = []
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                rows = await self._ledger.artifacts(transaction, artifact_ids)
                pauses = Pauses()
                for row in rows.values():
                    opener = sealer if row.client_share else sealer.without_share
                    try:
                        artifact = await self._rows.open(transaction, opener, row)
                        opened.append((replace(artifact, metadata={}), row.blob_id))
                        await pauses.after(artifact.opened_bytes)
                    except (ClientShareRequired, ClientShareWrong):
                        named[row.artifact_id] = None
                found = await self._ledger.pointers(transaction, sealer, [blob_id for _, blob_id in opened])
            for artifact, blob_id in opened:
                pointer = found[blob_id].pointer
                named[artifact.artifact_id] = self._content(scope, sealer, artifact, blob_id, pointer)
            return named

        try:
            return await self._access.with_existing_keys(scope, work, ArtifactNotFound(), share)
        except ArtifactNotFound:
            return {}

    def _content(
        self, scope: Scope, sealer: Sealer, artifact: Artifact, blob_id: UUID, pointer: BlobPointer
    ) -> ArtifactContent:
        if pointer.size_bytes != artifact.size_bytes:
            raise IntegrityFailure("an artifact and its blob do not have the same length")
        cipher = sealer.blob_cipher(blob_id, SecretKey(pointer.blob_key))
        location = BlobLocation(scope.tenant_id, blob_id)
        reader = self._rows.ends().reader

        def read(start: int, length: int) -> AsyncIterator[bytes]:
            return reader.read(location, cipher, pointer.size_bytes, start, length)

        return ArtifactContent(artifact, read)

    async def revoke_urls(self, scope: Scope, artifact_id: UUID) -> int:
        """Revoke every URL of an artifact made so far; returns the epoch of those to come.

        Raises:
            BlobsNotConfigured: there is no object store.
            ArtifactNotFound: this scope has none of this id.
            IntegrityFailure: the row is not as it was written.
        """
        self._rows.ends()

        async def work(sealer: Sealer) -> int:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                row = await self._ledger.lock_artifact(transaction, artifact_id)
                revoked = self._rows.revoked(sealer, row)
                await self._ledger.set_url_epoch(transaction, revoked)
                return revoked.url_epoch

        return await self._access.with_existing_keys(scope, work, ArtifactNotFound())
