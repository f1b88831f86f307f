"""Artifacts that arrive in parts, and survive a crash of either side.

Owns uploads in parts: what is remembered of one until it is completed, that the same bytes again change nothing and
other bytes are sealed under a salt of their own, and the digest of the whole: computed while parts come in order here,
otherwise by reading the object back. One part of a file is held in memory for each request, and only so many at once.
It promises no order between uploads.
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from crypto import KeyDestroyed, Kind, OpenError, Sealer, SecretKey
from crypto.blob import PART_BYTES, SEALED_PART_BYTES, BlobCipher, PartSealer, object_bytes
from crypto.ciphers.cobblestone import sealed_bytes as sealed_part_bytes
from storage.access.idempotency import claim, settle
from storage.artifacts.model import ARTIFACT_BYTES_MAX, Artifact, NewArtifact, Part, Upload
from storage.artifacts.rows import ArtifactRows, Receipt, check_flag, compare
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import BlobNotFound, MultipartNotFound, PartMismatch
from storage.encoding import decode_json, encode_json, encode_msgpack
from storage.errors import (
    ArtifactNotFound,
    ClientShareWrong,
    DigestMismatch,
    IntegrityFailure,
    PartInvalid,
    UploadIncomplete,
    UploadNotFound,
)
from storage.format.pointer import BlobPointer, IntentRecord
from storage.ledger.ledger import NewBlob, Settlement, new_blob_id, open_intent
from storage.model import Idempotency
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, check_id
from storage.statements.objects.blobs import Intent, UploadedPart

PARTS_MAX = -(-ARTIFACT_BYTES_MAX // PART_BYTES)
# Running digests that are kept of uploads in parts; one that is not is computed by reading the object back.
_RUNNING_MAX = 256
# How long a part waits for the one before it to be read, when both are sent at once.
_TURN_SECONDS_MAX = 2.0
_PARTS_OPENED_AT_ONCE = 500


class _Details(msgspec.Struct, array_like=True, frozen=True):
    """What an upload in parts must remember until it is completed."""

    thread_id: str
    name: str
    media_type: str
    metadata: bytes
    preview: bytes | None
    size_bytes: int | None

    @classmethod
    def of(cls, thread_id: str, new: NewArtifact, size_bytes: int | None) -> "_Details":
        return cls(thread_id, new.name, new.media_type, encode_json(new.metadata), new.preview, size_bytes)

    @property
    def new(self) -> NewArtifact:
        return NewArtifact(
            name=self.name,
            media_type=self.media_type,
            metadata=decode_json(self.metadata),
            preview=self.preview,
        )


_details = msgspec.msgpack.Decoder(_Details)


@dataclass(slots=True)
class _Running:
    """The digest of an upload's parts as far as they came in order, here.

    ``broken``: something came otherwise; then the digest says nothing. ``etags`` are the stored parts', in order.
    """

    digest: Any = field(default_factory=hashlib.sha256)
    read: int = 0
    broken: bool = False
    reading: set[int] = field(default_factory=set)
    etags: dict[int, str] = field(default_factory=dict)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    def covers(self, parts: list[UploadedPart]) -> bool:
        """Whether the digest is of exactly these parts."""
        return not self.broken and self.read == len(parts) and all(self.etags.get(p.number) == p.etag for p in parts)


class PartUploads:
    """Stores artifacts that are uploaded in parts, which a client may go on with later."""

    def __init__(self, rows: ArtifactRows) -> None:
        self._rows = rows
        self._access = rows.access
        self._ledger = rows.ledger
        self._running: OrderedDict[tuple[Scope, UUID], _Running] = OrderedDict()
        self._sending: dict[tuple[Scope, UUID, int], asyncio.Lock] = {}

    async def begin(
        self,
        scope: Scope,
        thread_id: str,
        new: NewArtifact,
        *,
        size_bytes: int | None = None,
        idempotency: Idempotency | None = None,
        share: ClientShare | None = None,
    ) -> Upload:
        """Begin a file that arrives in parts; creates the thread if there is none.

        Raises:
            BlobsNotConfigured, QuotaExceeded, IdempotencyKeyReused, ThreadArchived, ClientShareRequired,
            ClientShareWrong, ClientShareUnexpected: as `create`.
            UploadNotFound: the upload that the Idempotency-Key began has ended.
        """
        self._rows.ends()
        check_id(thread_id, "thread id")
        details = encode_msgpack(_Details.of(thread_id, new, size_bytes))

        async def work(sealer: Sealer) -> UUID:
            blob_id = new_blob_id()
            if not await self._rows.admit_upload(scope, sealer, thread_id, idempotency):
                record = IntentRecord(bytes(sealer.new_blob_key().borrow()), details)
                reserved = 0 if size_bytes is None else object_bytes(size_bytes)
                upload = NewBlob(blob_id, "artifact", reserved, record=record)
                await self._ledger.reserve(scope, sealer, [upload], self._rows.now())
            if idempotency is None:
                return blob_id
            async with self._access.unit_of_work.begin(scope) as transaction:
                receipt = await claim(transaction, sealer, idempotency, self._rows.now(), Receipt)
                if receipt is None:
                    await settle(transaction, sealer, idempotency, Receipt(blob_id))
                    return blob_id
            await self._rows.give_up(scope, blob_id)  # another request with this key came first
            return receipt.made_id

        upload_id = await self._access.with_keys(scope, work, share)
        return await self.upload(scope, upload_id, share=share)

    async def upload(self, scope: Scope, upload_id: UUID, *, share: ClientShare | None = None) -> Upload:
        """An upload in parts, with the parts that arrived.

        Raises:
            BlobsNotConfigured: there is no object store.
            UploadNotFound: there is no such upload, or it has ended.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        self._rows.ends()

        async def work(sealer: Sealer) -> Upload:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                intent, _, details = await self._open_upload(transaction, scope, sealer, upload_id)
                parts = await self._ledger.parts(transaction, upload_id)
            shown = []
            for count, each in enumerate(parts):
                if count % _PARTS_OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                shown.append(
                    Part(number=each.number, size_bytes=each.size_bytes, digest=_open_part(sealer, upload_id, each))
                )
            return Upload(
                upload_id=upload_id,
                thread_id=details.thread_id,
                name=details.name,
                part_bytes=PART_BYTES,
                expires_at=intent.expires_at,
                parts=shown,
            )

        return await self._access.with_existing_keys(scope, work, UploadNotFound(), share)

    async def _open_upload(
        self, transaction: Transaction, scope: Scope, sealer: Sealer, upload_id: UUID
    ) -> tuple[Intent, IntentRecord, _Details]:
        await self._access.check_keys_in(transaction, scope, sealer)
        intent = await self._ledger.intent(transaction, upload_id)
        if intent.purpose != "artifact" or intent.record is None:
            raise UploadNotFound
        check_flag(sealer, needed=intent.client_share)
        try:
            record = open_intent(sealer, intent)
            details = _details.decode(record.details)
        except IntegrityFailure:
            if intent.client_share:
                raise ClientShareWrong from None  # which thread it is of is not known before it is opened
            raise
        except msgspec.DecodeError:
            raise IntegrityFailure from None
        return intent, record, details

    async def put_part(
        self,
        scope: Scope,
        upload_id: UUID,
        number: int,
        body: AsyncIterator[bytes],
        *,
        size_bytes: int | None = None,
        digest: bytes | None = None,
        share: ClientShare | None = None,
    ) -> Part:
        """Store one part. The same bytes again change nothing; other bytes are sealed under a salt of their own.

        ``number`` counts from 0. ``body`` has the upload's `part_bytes`, or fewer in the last part, and the SHA-256
        ``digest``. ``size_bytes`` is its size at most, if that is known; a short part then takes no more memory than it
        needs.

        Raises:
            PartInvalid: it is longer than a part or than ``size_bytes``, or lies outside the size that was announced.
            DigestMismatch: the content has another digest; nothing changed.
            UploadNotFound: there is no such upload, or it has ended.
            QuotaExceeded: the tenant has not so many bytes left.
            BlobsNotConfigured, BlobUnavailable: as `create`.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        writer = self._rows.ends().writer
        if not 0 <= number < PARTS_MAX:
            raise PartInvalid

        async def look_up(sealer: Sealer) -> tuple[BlobCipher, _Details]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                _, record, details = await self._open_upload(transaction, scope, sealer, upload_id)
            return sealer.blob_cipher(upload_id, SecretKey(record.blob_key)), details

        cipher, details = await self._access.with_existing_keys(scope, look_up, UploadNotFound(), share)
        async with self._alone(scope, upload_id, number):
            running = self._running_of(scope, upload_id, afresh=number == 0)
            most = _size_max(number, size_bytes, details.size_bytes)
            memory = SEALED_PART_BYTES if most == PART_BYTES else object_bytes(most)
            async with self._turn(running, number) as in_order, writer.budget.holding(memory, scope.tenant_id):
                part = cipher.part_sealer(number)
                hashing = hashlib.sha256()
                size = 0
                try:
                    async for data in body:
                        size += _take(part, data, most - size)
                        hashing.update(data)
                        if in_order:
                            running.digest.update(data)
                except BaseException:
                    running.broken = True
                    raise
                await self._has_read(running, number, in_order=in_order)
                found = hashing.digest()
                if digest is not None and not hmac.compare_digest(found, digest):
                    running.broken = True
                    raise DigestMismatch
                try:
                    etag = await self._store_part(scope, upload_id, number, part, size, found, share)
                except BaseException:
                    running.broken = True
                    raise
            running.etags[number] = etag
        return Part(number=number, size_bytes=size, digest=found)

    async def _store_part(
        self,
        scope: Scope,
        upload_id: UUID,
        number: int,
        part: PartSealer,
        size: int,
        digest: bytes,
        share: ClientShare | None,
    ) -> str:
        """Store a part unless the very bytes are stored; returns its etag."""
        blobs = self._rows.ends().blobs

        async def look_up(sealer: Sealer) -> tuple[Intent, UploadedPart | None, bytes | None]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                intent, _, _ = await self._open_upload(transaction, scope, sealer, upload_id)
                there = await self._ledger.part(transaction, upload_id, number)
            return intent, there, None if there is None else _open_part(sealer, upload_id, there)

        intent, there, before = await self._access.with_existing_keys(scope, look_up, UploadNotFound(), share)
        if there is not None and there.size_bytes == size and before == digest:
            await self._ledger.renew(scope, upload_id)
            return there.etag
        sealed = part.finish(last=size < PART_BYTES)
        if there is not None:
            await self._ledger.forget_parts(scope, upload_id, number)
        await self._reserve_part(scope, upload_id, intent, there, len(sealed), share)
        location = BlobLocation(scope.tenant_id, upload_id)
        try:
            multipart_id = intent.multipart_id or await self._begin_multipart(scope, upload_id)
            etag = await blobs.put_part(location, multipart_id, number, sealed)
        except MultipartNotFound:
            raise UploadNotFound from None

        async def record(sealer: Sealer) -> None:
            sealed_digest = _seal_part(sealer, upload_id, number, etag, size, digest)
            await self._ledger.record_part(scope, upload_id, UploadedPart(number, etag, size, sealed_digest))

        await self._access.with_existing_keys(scope, record, UploadNotFound(), share)
        return etag

    async def _reserve_part(
        self,
        scope: Scope,
        upload_id: UUID,
        intent: Intent,
        there: UploadedPart | None,
        sealed_bytes: int,
        share: ClientShare | None,
    ) -> None:
        """Reserve what a part takes, unless the whole was reserved when the upload began."""

        async def announced(sealer: Sealer) -> int | None:
            return _details.decode(open_intent(sealer, intent).details).size_bytes

        if await self._access.with_existing_keys(scope, announced, UploadNotFound(), share) is not None:
            return
        before = 0 if there is None else sealed_part_bytes(there.size_bytes)
        if sealed_bytes > before:
            await self._ledger.renew(scope, upload_id, sealed_bytes - before)

    async def _begin_multipart(self, scope: Scope, upload_id: UUID) -> str:
        """Begin the upload at the object store, or find that another part has begun it."""
        blobs = self._rows.ends().blobs
        location = BlobLocation(scope.tenant_id, upload_id)
        begun = await blobs.begin_multipart(location)
        try:
            in_force = await self._ledger.name_multipart(scope, upload_id, begun)
        except UploadNotFound:
            await blobs.abort_multipart(location, begun)
            raise
        if in_force != begun:
            await blobs.abort_multipart(location, begun)
        return in_force

    async def complete(
        self,
        scope: Scope,
        upload_id: UUID,
        parts: int,
        *,
        digest: bytes | None = None,
        share: ClientShare | None = None,
    ) -> tuple[Artifact, bool]:
        """Make an artifact of an upload's parts. Repeating it gives the artifact that was made.

        ``parts`` is their number, ``digest`` the SHA-256 that the whole content must have.

        Returns:
            The artifact, and whether it was made now.

        Raises:
            UploadIncomplete: parts are missing, or one is not as long as it must be; send them, then repeat.
            IntegrityFailure: a part's record does not authenticate.
            DigestMismatch: the content has another digest. Where the parts came in order, they can still be replaced;
                otherwise the upload has ended.
            UploadNotFound: there is no such upload.
            ThreadArchived, BlobsNotConfigured, BlobUnavailable, QuotaExceeded: as `create`.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
        """
        reader = self._rows.ends().reader
        location = BlobLocation(scope.tenant_id, upload_id)

        async def look_up(sealer: Sealer) -> tuple[Intent, _Details, IntentRecord, list[UploadedPart], BlobCipher]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                intent, record, details = await self._open_upload(transaction, scope, sealer, upload_id)
                recorded = await self._ledger.parts(transaction, upload_id)
            stored = []
            for count, each in enumerate(recorded):
                if count % _PARTS_OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                # Its seal binds the etag: some object stores would give earlier bytes for an earlier one.
                if _open_part(sealer, upload_id, each) is not None:
                    stored.append(each)
            return intent, details, record, stored, sealer.blob_cipher(upload_id, SecretKey(record.blob_key))

        try:
            intent, details, record, stored, cipher = await self._access.with_existing_keys(
                scope, look_up, UploadNotFound(), share
            )
        except UploadNotFound:
            return await self._completed(scope, upload_id, digest, share), False
        size = _whole(stored, parts, details.size_bytes)
        running = self._running.get((scope, upload_id))
        found: bytes | None = running.digest.digest() if running is not None and running.covers(stored) else None
        if found is not None:
            compare(found, digest)
        multipart_id = intent.multipart_id or await self._begin_multipart(scope, upload_id)
        await self._assemble(scope, upload_id, cipher, multipart_id, stored, size)
        if found is None:
            found = await _digest_of(reader.read(location, cipher, size))
            if digest is not None and not hmac.compare_digest(found, digest):
                await self._rows.give_up(scope, upload_id)
                raise DigestMismatch
        settlement = Settlement(upload_id, object_bytes(size), BlobPointer(record.blob_key, size))
        try:
            artifact = await self._rows.settle_upload(
                scope, details.thread_id, details.new, settlement, found, None, share
            )
        except UploadNotFound:
            return await self._completed(scope, upload_id, digest, share), False
        self._running.pop((scope, upload_id), None)
        return artifact, True

    async def _assemble(
        self,
        scope: Scope,
        upload_id: UUID,
        cipher: BlobCipher,
        multipart_id: str,
        stored: list[UploadedPart],
        size: int,
    ) -> None:
        """Make the object of its parts; done already is as good."""
        blobs = self._rows.ends().blobs
        location = BlobLocation(scope.tenant_id, upload_id)
        named = [(each.number, each.etag) for each in stored]
        try:
            if len(stored) * PART_BYTES == size:  # all of them are full, and the last part of a blob never is
                empty = cipher.seal_part(len(stored), b"", last=True)
                named.append((len(stored), await blobs.put_part(location, multipart_id, len(stored), empty)))
            await blobs.complete_multipart(location, multipart_id, named, size_bytes=object_bytes(size))
        except MultipartNotFound:
            try:
                there = await blobs.head(location)
            except BlobNotFound:
                raise UploadNotFound from None
            if there.size_bytes != object_bytes(size):
                raise UploadIncomplete from None
        except PartMismatch:
            # Two processes stored the same part at once, and it is not known whose is there.
            await self._ledger.forget_parts(scope, upload_id)
            self._running.pop((scope, upload_id), None)
            raise UploadIncomplete from None

    async def _completed(
        self, scope: Scope, upload_id: UUID, digest: bytes | None, share: ClientShare | None
    ) -> Artifact:
        """The artifact that an upload became before."""
        try:
            artifact = await self._rows.get(scope, upload_id, share=share)
        except ArtifactNotFound:
            raise UploadNotFound from None
        compare(artifact.digest, digest)
        return artifact

    async def abort(self, scope: Scope, upload_id: UUID) -> None:
        """Give an upload up; the client-held share is not needed for that.

        Raises:
            UploadNotFound: there is no such upload, or it has ended.
            BlobsNotConfigured: there is no object store.
        """
        self._rows.ends()
        await self._access.unit_of_work.retrying(lambda: self._ledger.abandon(scope, upload_id))
        self._running.pop((scope, upload_id), None)

    def _running_of(self, scope: Scope, upload_id: UUID, *, afresh: bool) -> _Running:
        """The digest of an upload as far as it is known; with its first part it may begin ``afresh``."""
        place = (scope, upload_id)
        running = self._running.get(place)
        if running is None or (afresh and running.read and not running.reading) or (afresh and running.broken):
            running = self._running[place] = _Running()
            if len(self._running) > _RUNNING_MAX:
                self._running.popitem(last=False)
        self._running.move_to_end(place)
        return running

    @asynccontextmanager
    async def _alone(self, scope: Scope, upload_id: UUID, number: int) -> AsyncIterator[None]:
        """One at a time stores a part of one number, in this process."""
        place = (scope, upload_id, number)
        lock = self._sending.setdefault(place, asyncio.Lock())
        async with lock:
            try:
                yield
            finally:
                if not lock.locked() or not getattr(lock, "_waiters", None):
                    self._sending.pop(place, None)

    @asynccontextmanager
    async def _turn(self, running: _Running, number: int) -> AsyncIterator[bool]:
        """Let a part be read after those before it that are being sent as well; whether it is the digest's next."""
        running.reading.add(number)
        try:
            if running.read < number and running.reading.issuperset(range(running.read, number)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TURN_SECONDS_MAX), running.moved:
                        await running.moved.wait_for(lambda: running.broken or running.read >= number)
            in_order = not running.broken and running.read == number
            if not in_order:
                running.broken = True
            yield in_order
        finally:
            running.reading.discard(number)

    async def _has_read(self, running: _Running, number: int, *, in_order: bool) -> None:
        if in_order:
            async with running.moved:
                running.read = number + 1
                running.moved.notify_all()


def _take(part: PartSealer, data: bytes, room_bytes: int) -> int:
    if len(data) > room_bytes:
        raise PartInvalid
    return part.write(data)


def _size_max(number: int, announced: int | None, whole: int | None) -> int:
    """How long a part may be: as long as every part, as itself was announced, and as what is left of the file.

    Raises:
        PartInvalid: it begins behind the end of the file.
    """
    left = PART_BYTES if whole is None else whole - number * PART_BYTES
    if left < 0:
        raise PartInvalid("the part lies outside the size that the upload was begun with")
    return min(PART_BYTES, left, PART_BYTES if announced is None else announced)


async def _digest_of(slices: AsyncGenerator[bytes, None]) -> bytes:
    hashing = hashlib.sha256()
    async with aclosing(slices):
        async for each in slices:
            hashing.update(each)
    return hashing.digest()


def _part_location(upload_id: UUID, number: int, etag: str, size_bytes: int) -> tuple[Any, ...]:
    return "upload-part", upload_id, number, etag, size_bytes


def _seal_part(sealer: Sealer, upload_id: UUID, number: int, etag: str, size_bytes: int, digest: bytes) -> bytes:
    return sealer.seal(Kind.POINTER, _part_location(upload_id, number, etag, size_bytes), digest, compress=False)


def _open_part(sealer: Sealer, upload_id: UUID, part: UploadedPart) -> bytes | None:
    """A part's digest; None when the key it was sealed under was rotated away: the part is sent again."""
    try:
        location = _part_location(upload_id, part.number, part.etag, part.size_bytes)
        return sealer.open(Kind.POINTER, location, part.digest)
    except KeyDestroyed:
        return None
    except OpenError:
        raise IntegrityFailure("a stored part of an upload does not authenticate") from None


def _whole(stored: list[UploadedPart], parts: int, announced: int | None) -> int:
    """The size of a content whose parts are all there.

    Raises:
        UploadIncomplete: they are not, or one of them is not as long as it must be.
    """
    if len(stored) != parts or any(each.number != place for place, each in enumerate(stored)):
        arrived = {each.number for each in stored}
        missing = [str(number) for number in range(parts) if number not in arrived][:10]
        beyond = [str(number) for number in sorted(arrived) if number >= parts][:10]
        what = f"missing: {', '.join(missing)}" if missing else f"not counted: {', '.join(beyond)}"
        raise UploadIncomplete(f"the upload does not have exactly the parts 0 to {parts - 1}; {what}")
    short = [each for each in stored[:-1] if each.size_bytes != PART_BYTES]
    if short:
        raise UploadIncomplete(f"part {short[0].number} is shorter than {PART_BYTES} bytes and not the last")
    size = sum(each.size_bytes for each in stored)
    if announced is not None and size != announced:
        raise UploadIncomplete(f"the parts have {size} bytes together, and {announced} were announced")
    return size
