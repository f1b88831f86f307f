"""Large pieces in the object store: uploaded before the transaction that names them, fetched after the one that read.

A save composes its checkpoint inside its transaction, and only there shows which pieces are new. If one of them is
large and not in the object store yet, the attempt stops (`UploadNeeded`), nothing is kept of it, the pieces are
uploaded while no transaction is open, and the save runs again; then each is settled, or the live blob with the same
content referred to, in the transaction that stores its chunk. A save without a new large piece does nothing here.

What was uploaded and not settled, because the save failed or another one was first, is given up, and if this process
dies it is left to the sweeper: `storage.ledger.ledger`. It promises nothing about the order in which pieces arrive.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from crypto import Sealer, SecretKey
from crypto.blob import object_bytes
from storage.blobs.keyspace import BlobLocation
from storage.clock import Clock
from storage.concurrency.computing import compute
from storage.concurrency.room import taking
from storage.errors import (
    ArtifactUnknown,
    BlobsNotConfigured,
    CommitUnknown,
    IntegrityFailure,
    LostRaceError,
    StateTooLarge,
    StorageError,
    Unfinished,
)
from storage.format.leaves import OFFLOAD_BYTES_MIN, Pointer, find_pointers
from storage.format.pieces import BlobChunk, Piece
from storage.format.pointer import BlobPointer
from storage.format.record import PieceReader
from storage.ledger.ledger import BlobLedger, LiveBlob, NewBlob, Settlement, new_blob_id, pack_named_ids
from storage.ledger.streams import BlobDamaged, BlobReader, BlobWriter
from storage.model import Value
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope

# Blobs that one request writes or reads at once; memory is bounded for the process by `storage.ledger.streams`.
TRANSFERS_AT_ONCE = 8
# What the values of one answer may take, put together: they must fit the gateway's memory several times.
RESOLVED_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")


class UploadNeeded(Unfinished):
    """The attempt needs these pieces in the object store before it can commit."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        self.pieces = pieces


@dataclass(slots=True)
class Uploads:
    """What one request has in the object store, by piece; it outlives the attempts of the request."""

    written: dict[bytes, Settlement] = field(default_factory=dict)
    known: dict[bytes, UUID] = field(default_factory=dict)
    reserved: set[UUID] = field(default_factory=set)
    settled: set[UUID] = field(default_factory=set)

    def has(self, piece_id: bytes) -> bool:
        """Whether a piece can be named without an upload."""
        return piece_id in self.written or piece_id in self.known

    def forget(self, pieces: Iterable[Piece]) -> None:
        """Upload these again: their intent was swept, or their blob condemned."""
        for each in pieces:
            self.written.pop(each.piece_id, None)
            self.known.pop(each.piece_id, None)


def answering(sealer: Sealer, *, refs: bool) -> PieceReader:
    """A reader for one answer, which puts together no more than `RESOLVED_BYTES_MAX`."""
    return PieceReader(sealer, refs=refs, bytes_max=RESOLVED_BYTES_MAX, take=taking())


class Offload:
    """Moves large pieces between a request and the object store.

    Attributes:
        bytes_min: How large a piece must be to live in a blob. None: there is no object store, so none does.
    """

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        ledger: BlobLedger,
        writer: BlobWriter | None,
        reader: BlobReader | None,
        clock: Clock,
        bytes_min: int = OFFLOAD_BYTES_MIN,
    ) -> None:
        self.bytes_min = None if writer is None else bytes_min
        self.ledger = ledger
        self._unit_of_work = unit_of_work
        self._writer = writer
        self._reader = reader
        self._clock = clock

    def is_large(self, piece: Piece) -> bool:
        """Whether a piece lives in a blob."""
        return self.bytes_min is not None and piece.size >= self.bytes_min

    # --- saving ----------------------------------------------------------------------------------------------------

    def request(self, scope: Scope) -> "_Request":
        """What one request uploads; at its end, what was not settled is given up.

        Best effort: what is not given up here expires. After an unknown commit, or when the process is going down,
        nothing is touched, because it may be settled.
        """
        return _Request(self, scope)

    async def abandon(self, scope: Scope, blob_ids: Iterable[UUID]) -> None:
        """Give up what was reserved for these, if the database answers."""
        for blob_id in blob_ids:
            with suppress(StorageError):
                await self.ledger.abandon(scope, blob_id)

    async def place(
        self,
        transaction: Transaction,
        sealer: Sealer,
        thread_id: str,
        pieces: Iterable[Piece],
        uploads: Uploads,
    ) -> dict[bytes, UUID]:
        """Make the thread refer to the blobs of those of these pieces that are large, in the save's transaction.

        Returns:
            The blob of each large piece.

        Raises:
            UploadNeeded: some are not in the object store.
            LostRaceError: an upload was swept, or a blob condemned; begin again.
            QuotaExceeded: an object is larger than what was reserved.
        """
        large = [each for each in pieces if self.is_large(each)]
        if not large:
            return {}
        missing = [each for each in large if not uploads.has(each.piece_id)]
        if missing:
            raise UploadNeeded(missing)
        written = {each.piece_id: uploads.written[each.piece_id] for each in large if each.piece_id in uploads.written}
        known = {each.piece_id: uploads.known[each.piece_id] for each in large if each.piece_id not in written}
        try:
            named = await self.ledger.settle(transaction, sealer, [*written.values()], thread_id)
            await self.ledger.refer(transaction, thread_id, known.values())
        except LostRaceError:
            uploads.forget(large)
            raise
        uploads.settled = {each.blob_id for each in written.values()}
        return {**{piece_id: named[each.blob_id] for piece_id, each in written.items()}, **known}

    async def upload(self, scope: Scope, sealer: Sealer, pieces: Sequence[Piece], uploads: Uploads) -> None:
        """Find or write the blobs of large pieces, while no transaction is open.

        Raises:
            QuotaExceeded: the tenant has no room for a piece.
            BlobUnavailable: the object store does not answer.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            known = await self.ledger.live_blobs(transaction, [each.piece_id for each in pieces])
        uploads.known.update(known)
        new = {new_blob_id(): each for each in pieces if each.piece_id not in known}
        if not new:
            return
        reservations = [
            NewBlob(blob_id, "piece", object_bytes(each.size), each.piece_id) for blob_id, each in new.items()
        ]
        uploads.reserved.update(new)
        await self.ledger.reserve(scope, sealer, reservations, self._clock.now())
        writer = self._writer
        if writer is None:
            raise BlobsNotConfigured
        turns = asyncio.Semaphore(TRANSFERS_AT_ONCE)

        async def write(blob_id: UUID, piece: Piece) -> None:
            async with turns:
                blob_key = sealer.new_blob_key()
                written = await writer.write_bytes(
                    BlobLocation(scope.tenant_id, blob_id),
                    sealer.blob_cipher(blob_id, blob_key),
                    memoryview(piece.plaintext)[1:].tobytes(),
                )
            pointer = BlobPointer(bytes(blob_key.borrow()), written.size_bytes)
            uploads.written[piece.piece_id] = Settlement(blob_id, written.object_bytes, pointer, piece.piece_id)

        await _all(write(blob_id, each) for blob_id, each in new.items())

    async def name_artifacts(self, transaction: Transaction, thread_id: str, named: Sequence[Pointer]) -> None:
        """Make the thread refer to artifacts that its state names, in the save's transaction.

        Raises:
            ArtifactUnknown: the scope has no such artifact.
        """
        if not named:
            return
        wanted = [each.artifact_id for each in named]
        unknown = await self.ledger.refer_artifacts(transaction, thread_id, wanted)
        if unknown:
            raise ArtifactUnknown(next(each.path for each in named if each.artifact_id in unknown))

    # --- loading ---------------------------------------------------------------------------------------------------

    async def find(self, transaction: Transaction, sealer: Sealer, reader: PieceReader) -> dict[UUID, LiveBlob]:
        """What opens the blobs of the pieces that were read, in the snapshot that found them.

        Raises:
            StateTooLarge: together they are more than an answer may hold. What is not in the object store, and how
                often each is named, is counted by a reader that `answering` made.
            IntegrityFailure: one is missing or does not authenticate.
        """
        wanted = reader.in_blobs()
        if not wanted:
            return {}
        if sum(each.size for each in wanted.values()) > RESOLVED_BYTES_MAX:
            raise StateTooLarge(RESOLVED_BYTES_MAX)
        return await self.ledger.pointers(transaction, sealer, {each.blob_id for each in wanted.values()})

    async def fill(self, scope: Scope, sealer: Sealer, reader: PieceReader, blobs: Mapping[UUID, LiveBlob]) -> None:
        """Fetch what `find` found, after the snapshot has ended.

        Raises:
            IntegrityFailure: an object is missing, or not what its pointer or its piece's id says.
            BlobUnavailable: the object store does not answer.
        """
        if blobs:
            contents = await self.fetch(scope, sealer, reader.in_blobs(), blobs)
            await compute(scope.tenant_id, lambda: reader.take(contents))  # a digest of all of it

    async def fetch(
        self, scope: Scope, sealer: Sealer, wanted: Mapping[bytes, BlobChunk], blobs: Mapping[UUID, LiveBlob]
    ) -> dict[bytes, bytes]:
        """The content of these pieces, after the snapshot has ended. Whose it is, is checked by its id.

        Raises:
            IntegrityFailure: an object is missing or not what its pointer says.
            BlobUnavailable: the object store does not answer.
        """
        found: dict[bytes, bytes] = {}
        if not wanted:
            return found
        reader = self._reader
        if reader is None:
            raise BlobsNotConfigured
        turns = asyncio.Semaphore(TRANSFERS_AT_ONCE)

        async def read(piece_id: bytes, piece: BlobChunk) -> None:
            pointer = blobs[piece.blob_id].pointer
            if pointer.size_bytes != piece.size:
                raise IntegrityFailure("a blob has another size than its piece")
            cipher = sealer.blob_cipher(piece.blob_id, SecretKey(pointer.blob_key))
            async with turns:
                try:
                    found[piece_id] = await reader.read_bytes(
                        BlobLocation(scope.tenant_id, piece.blob_id), cipher, piece.size
                    )
                except BlobDamaged:
                    raise IntegrityFailure("the object of a large piece is damaged or missing") from None

        await _all(read(piece_id, each) for piece_id, each in wanted.items())
        return found


class _Request:
    """The uploads of one request; see `Offload.request`."""

    def __init__(self, offload: Offload, scope: Scope) -> None:
        self._offload = offload
        self._scope = scope
        self._uploads = Uploads()

    async def __aenter__(self) -> Uploads:
        return self._uploads

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        uploads = self._uploads
        if not uploads.reserved:
            return
        if error is None:
            await self._offload.abandon(self._scope, uploads.reserved - uploads.settled)
        elif isinstance(error, Exception) and not isinstance(error, CommitUnknown):
            await self._offload.abandon(self._scope, uploads.reserved)


def artifacts_in(value: Value, where: str) -> list[Pointer]:
    """The artifacts a value names; ``where``: the JSON pointer of the value."""
    found = find_pointers(value.encoding, value.data)
    return [Pointer(each.artifact_id, where + each.path) for each in found] if found else []


def pack_artifacts(named: Sequence[Pointer]) -> bytes | None:
    """Their ids as a row's ``named_ids`` or a channel's record has them."""
    return pack_named_ids(each.artifact_id for each in named) if named else None


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Wait for all; when one fails, stop the others and raise what it raised."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
