"""Single pieces: a client uploads a large leaf before it names it, and fetches one that a load left out.

An uploaded piece belongs to the thread as if a checkpoint had stored it, but nothing names it yet: the next prune takes
it away, and a save that names it afterwards is refused with `PieceUnknown`, upon which the client uploads it again.
Only leaves go this way; how other pieces are put together is of no concern outside.
"""

from dataclasses import dataclass

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import admit_reader
from storage.access.offload import answering
from storage.access.storing import Storing
from storage.errors import InvalidState, PieceNotFound, ThreadArchived
from storage.event_queue.model import OfThread
from storage.format.leaves import names_artifacts
from storage.format.pieces import LEAF, leaf_piece
from storage.format.record import new_thread, open_thread, seal_piece, seal_thread
from storage.scope import ClientShare, Scope, check_id
from storage.statements.threads import pieces as sql
from storage.tiers.snapshots import OpenSnapshot


@dataclass(frozen=True, slots=True)
class PieceReceipt:
    """A piece that is stored. ``created`` False: the thread had it before."""

    piece_id: bytes
    size_bytes: int
    created: bool


class _Putting(Storing[PieceReceipt]):
    """A request to store a piece."""

    def __init__(self, access: Access, scope: Scope, thread_id: str, data: bytes) -> None:
        super().__init__(access, scope)
        self._thread_id = thread_id
        self._data = data

    async def _attempt(self, sealer: Sealer) -> PieceReceipt:
        scope = self._scope
        piece = leaf_piece(sealer, self._data)
        now = self._access.clock.now()
        own_seal = seal_thread(sealer, self._thread_id, now, new_thread(sealer, self._thread_id))
        async with self._access.unit_of_work.begin(scope) as transaction:
            row = await transaction.fetch_only(
                sql.OPEN,
                thread_id=self._thread_id,
                now=now,
                own_seal=own_seal,
                client_share=sealer.shared,
                piece_id=piece.piece_id,
                key_version=sealer.active_key_version,
            )
            open_thread(sealer, self._thread_id, row.created_at, row.seal)
            if row.tier != "hot":
                raise ThreadArchived(self._thread_id)
            if not row.present:
                self._access.row_quotas.require_room(scope)
                blobs = await self._access.offload.place(transaction, sealer, self._thread_id, [piece], self._uploads)
                blob_id = blobs.get(piece.piece_id)
                await transaction.run(
                    sql.PUT,
                    thread_id=self._thread_id,
                    piece_id=piece.piece_id,
                    key_version=sealer.active_key_version,
                    named_ids=None if blob_id is None else blob_id.bytes,
                    envelope=seal_piece(sealer, piece, blob_id),
                )
            # In a statement after the lock was granted: what was sealed while a shred went by must not stay.
            await self._access.check_keys_in(transaction, scope, sealer)
            if row.seal == own_seal:
                said = OfThread(self._thread_id)
                await self._access.emitting.of_thread(transaction, scope, "thread.created", said)
        return PieceReceipt(piece.piece_id, piece.size, not row.present)


class Pieces:
    """The verbs on single pieces."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def put(self, scope: Scope, thread_id: str, data: bytes, share: ClientShare | None = None) -> PieceReceipt:
        """Store a leaf, creating the thread if need be; durable when this returns. Safe to repeat.

        ``data`` is exactly one MessagePack string, binary or extension object.

        Raises:
            InvalidState: it is no such object, or may name an artifact, which a save must see.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `Checkpoints.save`.
            ThreadArchived: the thread is not in the hot tier.
            QuotaExceeded: the tenant has no room for it.
            BlobUnavailable: the object store does not answer.
        """
        check_id(thread_id, "thread id")
        if names_artifacts(data):
            raise InvalidState("a piece cannot name artifacts; send the value as it is", "/data")
        async with _Putting(self._access, scope, thread_id, data) as putting:
            return await putting.stored(share)

    async def get(self, scope: Scope, thread_id: str, piece_id: bytes, share: ClientShare | None = None) -> bytes:
        """A leaf of a thread.

        Raises:
            PieceNotFound: the thread has no such leaf.
            ThreadArchived, RestoreNeeded: as `Checkpoints.load`.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `Checkpoints.save`.
            IntegrityFailure: it is not what its id names.
            BlobUnavailable: the object store does not answer.
        """

        async def with_sealer(sealer: Sealer, open_snapshot: OpenSnapshot) -> bytes:
            reader = answering(sealer, refs=False)
            async with open_snapshot() as snapshot:
                await self._access.check_keys_in(snapshot.transaction, scope, sealer)
                await admit_reader(snapshot, sealer)
                reader.add(await snapshot.rows.pieces([piece_id]))
                if reader.missing([piece_id]) or reader.look_up(piece_id).kind != LEAF:
                    raise PieceNotFound
                blobs = await self._access.offload.find(snapshot.transaction, sealer, reader)
            await self._access.offload.fill(scope, sealer, reader, blobs)
            return reader.look_up(piece_id).data or b""

        return await self._access.with_thread_snapshots(scope, thread_id, with_sealer, PieceNotFound(), share)
