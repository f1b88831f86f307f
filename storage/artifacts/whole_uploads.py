"""Artifacts that arrive in one stream.

Owns that way of uploading: so many bytes are reserved as are announced, or as they come, the object is written while
no transaction is open, and one transaction makes it an artifact. A stream that breaks off leaves what the sweeper
collects. Memory does not grow with a file. An Idempotency-Key covers the content: the same request with other bytes is
refused.
"""

import dataclasses
import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

from crypto import Sealer, SecretKey
from crypto.blob import BlobCipher, object_bytes
from storage.access.idempotency import claim
from storage.artifacts.model import ARTIFACT_BYTES_MAX, Announced, Artifact, NewArtifact
from storage.artifacts.rows import ArtifactRows, Receipt, compare
from storage.blobs.keyspace import BlobLocation
from storage.errors import CommitUnknown, QuotaExceeded, Unavailable, UploadExpired, UploadNotFound
from storage.format.pointer import BlobPointer
from storage.ledger.ledger import BlobLedger, NewBlob, Settlement, new_blob_id
from storage.model import Idempotency
from storage.scope import ClientShare, Scope, check_id

# What a stream of unknown length reserves at once, at most: few enough reservations, and little kept from others.
GROWTH_BYTES_MAX = 64 * 1024 * 1024

_NOTHING_ANNOUNCED = Announced()


class WholeUploads:
    """Uploads in one request."""

    def __init__(self, rows: ArtifactRows) -> None:
        self._rows = rows
        self._access = rows.access
        self._ledger = rows.ledger

    async def create(
        self,
        scope: Scope,
        thread_id: str,
        new: NewArtifact,
        body: AsyncIterator[bytes],
        *,
        announced: Announced = _NOTHING_ANNOUNCED,
        idempotency: Idempotency | None = None,
        share: ClientShare | None = None,
    ) -> Artifact:
        """Store a file that arrives in one stream; creates the thread if there is none.

        The digest of ``idempotency`` covers everything but the content; the content's is added.

        Raises:
            BlobsNotConfigured: there is no object store.
            QuotaExceeded: the tenant has not so many bytes left; of a stream of unknown length nothing more is read.
            BlobTooLarge: it is longer than was announced, or than an artifact may be.
            DigestMismatch: the content has another digest; nothing is stored.
            IdempotencyKeyReused: the key was used for another request.
            ThreadArchived: the thread is in the archive tier.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
            UploadNotFound: the upload took so long that it was given up.
            BlobUnavailable: the object store does not answer.
        """
        writer = self._rows.ends().writer
        size_bytes = announced.size_bytes
        check_id(thread_id, "thread id")

        async def prepare(sealer: Sealer) -> tuple[UUID, SecretKey, BlobCipher] | None:
            if await self._rows.admit_upload(scope, sealer, thread_id, idempotency):
                return None
            blob_id, blob_key = new_blob_id(), sealer.new_blob_key()
            reserved = object_bytes(min(size_bytes or 0, ARTIFACT_BYTES_MAX))
            await self._ledger.reserve(scope, sealer, [NewBlob(blob_id, "artifact", reserved)], self._rows.now())
            return blob_id, blob_key, sealer.blob_cipher(blob_id, blob_key)

        prepared = await self._access.with_keys(scope, prepare, share)
        if prepared is None:
            hashing = hashlib.sha256()
            async for data in body:
                hashing.update(data)
            return await self._replay(scope, _with_content(idempotency, hashing.digest()), share)
        blob_id, blob_key, cipher = prepared
        upload = _Upload(self._ledger, scope, blob_id, size_bytes or 0)
        try:
            written = await writer.write(
                BlobLocation(scope.tenant_id, blob_id),
                cipher,
                upload.arriving(body),
                size_bytes=size_bytes,
                size_bytes_max=ARTIFACT_BYTES_MAX,
                on_multipart=upload.name_multipart,
            )
            found = upload.hashing.digest()
            compare(found, announced.digest)
            pointer = BlobPointer(bytes(blob_key.borrow()), written.size_bytes)
            settlement = Settlement(blob_id, written.object_bytes, pointer)
            return await self._rows.settle_upload(
                scope, thread_id, new, settlement, found, _with_content(idempotency, found), share
            )
        except CommitUnknown:
            raise  # perhaps it is stored: a repeated request finds out
        except UploadExpired:
            await self._rows.give_up(scope, blob_id)
            raise UploadNotFound from None  # the stream is gone: nothing to upload again
        except BaseException:
            await self._rows.give_up(scope, blob_id, sent=upload.sent)
            raise

    async def _replay(self, scope: Scope, idempotency: Idempotency | None, share: ClientShare | None) -> Artifact:
        """The artifact that an Idempotency-Key made before."""

        async def work(sealer: Sealer) -> Artifact:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                receipt = None
                if idempotency is not None:
                    receipt = await claim(transaction, sealer, idempotency, self._rows.now(), Receipt)
                if receipt is None:
                    raise Unavailable("the request that used this Idempotency-Key did not end; repeat this one")
                return await self._rows.one(transaction, sealer, receipt.made_id)

        return await self._access.with_keys(scope, work, share)


def _with_content(idempotency: Idempotency | None, digest: bytes) -> Idempotency | None:
    """A key whose digest covers the content, too."""
    if idempotency is None:
        return None
    return dataclasses.replace(idempotency, request_digest=hashlib.sha256(idempotency.request_digest + digest).digest())


class _Upload:
    """What is known of one stream while it arrives.

    Attributes:
        hashing: The SHA-256 of what arrived.
        sent: Whether the object store may have anything of it.
    """

    def __init__(self, ledger: BlobLedger, scope: Scope, blob_id: UUID, size_bytes: int) -> None:
        self.hashing = hashlib.sha256()
        self.sent = False
        self._ledger = ledger
        self._scope = scope
        self._blob_id = blob_id
        self._reserved = object_bytes(min(size_bytes, ARTIFACT_BYTES_MAX))

    async def arriving(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass the stream on; what goes beyond the size that was announced is reserved before it is passed."""
        received = 0
        async for data in body:
            self.hashing.update(data)
            received += len(data)
            missing = object_bytes(min(received, ARTIFACT_BYTES_MAX)) - self._reserved
            if missing > 0:
                await self._reserve(missing)
            yield data
        self.sent = True

    async def name_multipart(self, multipart_id: str) -> None:
        self.sent = True
        await self._ledger.name_multipart(self._scope, self._blob_id, multipart_id)

    async def _reserve(self, missing: int) -> None:
        """Reserve more, at least what is ``missing``.

        Each reservation is as large as all before, up to `GROWTH_BYTES_MAX`, so that a long stream needs few; the
        tenant's last bytes are reserved as they are needed.
        """
        growth = max(missing, min(self._reserved, GROWTH_BYTES_MAX))
        try:
            await self._ledger.renew(self._scope, self._blob_id, growth)
        except QuotaExceeded:
            if growth == missing:
                raise
            growth = missing
            await self._ledger.renew(self._scope, self._blob_id, growth)
        self._reserved += growth
