"""One task's pending writes: lock and verify what they stand on, seal what is new, write it with the seals.

An attempt is one transaction of two statements, as a save's is; `storage.statements.threads.checkpoints` says what each
may believe of the other's. A write changes the thread's seal, and the head's if it is of the head, so that a read
misses it when it is taken away. What this process remembers of the thread (`storage.access.remembered`) spares it the
reading; it holds no other state.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import check_acknowledged, check_token
from storage.access.offload import Uploads, artifacts_in, pack_artifacts
from storage.access.remembered import EARLY_MAX, RememberedHead
from storage.access.storing import Storing
from storage.approvals import asking
from storage.checkpoints.piece_rows import sealed_pieces
from storage.concurrency.computing import compute
from storage.errors import IntegrityFailure, InvalidState, LostRaceError, PieceUnknown, ThreadArchived, Unfinished
from storage.event_queue.model import OfThread
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.cold.segment import ColdSums
from storage.format.leaves import Pointer
from storage.format.manifest import FORMAT, WriteColumns, WriteRecord
from storage.format.pieces import Cutter, Piece, is_long_to_cut, to_cut
from storage.format.record import (
    SealedWrite,
    new_thread,
    open_head,
    open_thread,
    seal_head,
    seal_thread,
    seal_write,
)
from storage.format.token import ThreadToken
from storage.model import NewWrite, TaskWrites, WritesReceipt
from storage.postgres.unit_of_work import Transaction
from storage.schemas.versions import OtherVersionError
from storage.scope import Scope
from storage.statements.threads import checkpoints as sql
from storage.statements.threads.checkpoints import OpenWritesRow
from storage.thread_ledgers.locked import check_fence
from storage.tiers.segments import ColdCheckpoint, find_cold, find_cold_head

# As many writes are sealed beside the event loop.
_SEALED_BESIDE_MIN = 64

# What writes have to be to belong to a checkpoint at a version, where they name none.
AtVersion = Callable[[TaskWrites, OtherVersionError], Awaitable[TaskWrites]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Fresh:
    """A write that is stored, and the member of the one that it replaces, if any."""

    columns: WriteColumns
    sealed: SealedWrite
    replaces: bytes | None


class Writing(Storing[WritesReceipt]):
    """A request to store a task's writes.

    ``at_version`` answers a checkpoint at a version, where the writes name none; None: that is the caller's to see.
    """

    def __init__(self, access: Access, scope: Scope, new: TaskWrites, at_version: AtVersion | None = None) -> None:
        super().__init__(access, scope)
        self._new = new
        self._at_version = at_version

    async def _attempt(self, sealer: Sealer) -> WritesReceipt:
        access, scope, new = self._access, self._scope, self._new
        await asking.ready(access, new.approvals, new.asker)
        draft = await _drafted(access, scope, sealer, new)
        attempt = _Attempt(access, scope, sealer, new, draft)
        async with access.remembered_heads.turn(scope, new.thread_id):
            remembered = access.remembered_heads.take(scope, sealer, new.thread_id, new.namespace)
            if remembered is not None and access.row_quotas.has_room(scope) and attempt.goes_on(remembered):
                return await attempt.on_remembered(remembered)
            return await attempt.under_lock(self._uploads)

    async def _answer(self, sealer: Sealer, reason: Unfinished) -> None:
        if isinstance(reason, OtherVersionError) and self._at_version is not None:
            self._new = await self._at_version(self._new, reason)
        else:
            await super()._answer(sealer, reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Draft:
    """Writes before it is known what they stand on.

    ``sealed`` has the columns of each, and what is sealed of it; ``named`` the artifacts that each names, by its
    ``idx``.
    """

    now: datetime
    cutter: Cutter
    sealed: Sequence[tuple[WriteColumns, SealedWrite]]
    named: Mapping[int, Sequence[Pointer]]


async def _drafted(access: Access, scope: Scope, sealer: Sealer, new: TaskWrites) -> _Draft:
    now = access.clock.now()
    cutter = Cutter(sealer, offload_bytes_min=access.offload.bytes_min)
    named = {
        write.idx: artifacts_in(write.value, f"/writes/{position}/value") for position, write in enumerate(new.writes)
    }

    def seal() -> list[tuple[WriteColumns, SealedWrite]]:
        return [
            _seal(sealer, new, write, cutter, named[write.idx], now, f"/writes/{position}")
            for position, write in enumerate(new.writes)
        ]

    large = len(new.writes) >= _SEALED_BESIDE_MIN or is_long_to_cut(
        data for write in new.writes for data in to_cut(write.value)
    )
    return _Draft(now, cutter, await compute(scope.tenant_id, seal) if large else seal(), named)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sealed:
    """The seals of a thread and of a namespace of it, as they are or will be; no head: the namespace has none."""

    thread: ThreadSeal
    head: HeadSeal | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at storing a task's writes."""

    access: Access
    scope: Scope
    sealer: Sealer
    new: TaskWrites
    draft: _Draft

    def _moved(self, before: LiveSet, fresh: Sequence[_Fresh]) -> LiveSet:
        """A sum after what is fresh was added and what it replaces was taken away."""
        new, after = self.new, before
        for each in fresh:
            if each.replaces is not None:
                place = (new.namespace, new.checkpoint_id, new.task_id, each.columns.idx)
                after = after.subtract(write_mac(self.sealer, *place, each.replaces))
            after = after.add(each.sealed.mac)
        return after

    def _with(self, before: _Sealed, head_id: str | None, fresh: Sequence[_Fresh]) -> _Sealed:
        """The seals after the writes were stored; the head's changes if it is their checkpoint."""
        thread = dataclasses.replace(before.thread, writes=self._moved(before.thread.writes, fresh))
        head = before.head
        if head is not None and head_id == self.new.checkpoint_id:
            writes = self._moved(head.writes, fresh)
            head = msgspec.structs.replace(head, sequence=head.sequence + 1, writes=writes)
        return _Sealed(thread, head)

    def _seal_head(self, head: HeadSeal) -> bytes:
        new = self.new
        return seal_head(self.sealer, new.thread_id, new.namespace, new.checkpoint_id, head)

    def _written(self, fresh: Sequence[_Fresh]) -> dict[str, Any]:
        """What both statements take of the writes that are stored, by name."""
        new = self.new
        return {
            "thread_id": new.thread_id,
            "key_version": self.sealer.active_key_version,
            "namespace": new.namespace,
            "checkpoint_id": new.checkpoint_id,
            "task_id": new.task_id,
            "task_path": new.task_path,
            "status": new.status,
            "now": self.draft.now,
            "idx": [each.columns.idx for each in fresh],
            "channels": [each.columns.channel for each in fresh],
            "piece_ids": [each.columns.piece_ids for each in fresh],
            "values": [each.sealed.envelope for each in fresh],
            "members": [each.sealed.member for each in fresh],
            "state_schema": new.state_schema,
            "state_version": new.state_version,
        }

    # --- on what is remembered -------------------------------------------------------------------------------------

    def goes_on(self, remembered: RememberedHead) -> bool:
        """Whether the writes are of a head that is remembered or one to come, and nothing else has to be read."""
        new = self.new
        return (
            bool(new.writes)
            and not new.approvals
            and not any(self.draft.named.values())
            and (new.known_token is None or new.known_token == remembered.token)
            and remembered.covers(self.draft.cutter, self.access.offload.is_large)
            and (new.checkpoint_id == remembered.head_id or _is_early(new, remembered))
            and _is_at_version(new, remembered)
        )

    async def on_remembered(self, remembered: RememberedHead) -> WritesReceipt:
        """Store writes of a head that is remembered, or of a checkpoint that comes after it: nothing is read.

        Raises:
            LostRaceError: begin by reading; what is remembered is another state, or some of them are stored.
        """
        access, scope, sealer, new = self.access, self.scope, self.sealer, self.new
        fresh = [_Fresh(columns, each, None) for columns, each in self.draft.sealed]
        stored = [each for each in self.draft.cutter.pieces.values() if each.piece_id not in remembered.pieces]
        after = self._with(_Sealed(remembered.thread, remembered.head), remembered.head_id, fresh)
        thread_seal = seal_thread(sealer, new.thread_id, remembered.thread_created_at, after.thread)
        after_head = msgspec.structs.replace(remembered, thread_seal=thread_seal, thread=after.thread)
        new_head_seal = None
        if new.checkpoint_id == remembered.head_id and after.head is not None:
            new_head_seal = self._seal_head(after.head)
            seen = remembered.seen.after(sealer.without_share, new.checkpoint_id, after.head)
            after_head = msgspec.structs.replace(
                after_head,
                head_seal=new_head_seal,
                head=after.head,
                pieces={**remembered.pieces, **{each.piece_id: each.children for each in stored}}
                if stored
                else remembered.pieces,
                seen=seen,
                token=seen.encode(sealer.without_share, new.thread_id),
            )
        else:
            early = self._moved(remembered.early.get(new.checkpoint_id, NO_WRITES), fresh)
            after_head = msgspec.structs.replace(after_head, early={**remembered.early, new.checkpoint_id: early})
        values = dict(
            **self._written(fresh),
            pieces=[each.piece_id for each in stored],
            children=[each.children for each in stored],
            envelopes=await sealed_pieces(sealer, ((each, None) for each in stored)),
            thread_status=new.status if new.namespace == "" else None,
            thread_seal_before=remembered.thread_seal,
            thread_seal=thread_seal,
            sequence=after_head.head.sequence,
            head_seal_before=remembered.head_seal,
            head_seal=new_head_seal,
            keys_hash=sealer.keys_hash,
            event_id=(event_id := access.emitting.fresh_id(scope.tenant_id) if new.tells_status else None),
            fence=new.fence,
        )
        await access.unit_of_work.call(sql.PUT_WRITES_ON, scope, **values)
        if event_id is not None:
            access.emitting.committed(scope.tenant_id)
        access.remembered_heads.remember(scope, sealer, after_head)
        if new_head_seal is None:
            return WritesReceipt(stored=len(fresh), unchanged=0, token=None)
        access.acknowledge(scope, sealer, new.thread_id, after_head.seen)
        return WritesReceipt(stored=len(fresh), unchanged=0, token=after_head.token)

    # --- on what is read -------------------------------------------------------------------------------------------

    async def under_lock(self, uploads: Uploads) -> WritesReceipt:
        """Store the writes on what is read under the thread's lock; ``uploads``: what is in the object store."""
        access, scope, sealer, new = self.access, self.scope, self.sealer, self.new
        acknowledged = access.remembered_heads.acknowledged(scope, new.thread_id, new.namespace)
        async with access.unit_of_work.begin_step(scope) as transaction:
            own_seal = seal_thread(sealer, new.thread_id, self.draft.now, new_thread(sealer, new.thread_id))
            row = await self._open(transaction, own_seal)
            if new.known_token is not None:
                await check_token(transaction, sealer, new.thread_id, new.known_token)
            if new.state_schema is None and row.at_schema is not None:
                raise OtherVersionError(new.checkpoint_id, row.at_schema, row.at_version)
            before = self._read(row)
            await self._refuse_cold(transaction, row, before)
            await check_acknowledged(transaction, sealer, new.thread_id, acknowledged, row.head_id, before.head)
            present = dict(zip(row.present_idx or (), row.present_members or (), strict=True))
            fresh = [
                _Fresh(columns, each, present.get(columns.idx))
                for columns, each in self.draft.sealed
                if columns.idx < 0 or columns.idx not in present
            ]
            after = self._with(before, row.head_id, fresh) if fresh else before
            if fresh:
                access.row_quotas.require_room(scope)
                pointers = [pointer for each in fresh for pointer in self.draft.named[each.columns.idx]]
                await access.offload.name_artifacts(transaction, new.thread_id, pointers)
                stored = await self._stored(transaction, uploads)
                await self._write(transaction, after, fresh, stored, row, is_new=row.thread_seal == own_seal)
            if new.approvals:
                asked = (new.thread_id, new.namespace, new.checkpoint_id, None, None, new.asker, new.approvals)
                await asking.ask(access, scope, transaction, sealer, asking.Asking(*asked, supersedes=False))
        token = None
        if after.head is not None and row.head_id == new.checkpoint_id:
            seen = ThreadToken.of(sealer.without_share, new.namespace, new.checkpoint_id, after.head)
            access.acknowledge(scope, sealer, new.thread_id, seen)
            token = seen.encode(sealer.without_share, new.thread_id)
        return WritesReceipt(stored=len(fresh), unchanged=len(new.writes) - len(fresh), token=token)

    async def _open(self, transaction: Transaction, own_seal: bytes) -> OpenWritesRow:
        """What the writes stand on, under the thread's lock.

        Raises:
            KeyDestroyed: the keys are not the stored ones any more.
            ThreadArchived: it is to be restored first.
        """
        new = self.new
        row = await transaction.fetch_only(
            sql.OPEN_WRITES,
            thread_id=new.thread_id,
            status=new.status if new.namespace == "" else None,
            now=self.draft.now,
            own_seal=own_seal,
            namespace=new.namespace,
            checkpoint_id=new.checkpoint_id,
            task_id=new.task_id,
            idx=[each.idx for each in new.writes],
            client_share=self.sealer.shared,
            fence=new.fence,
        )
        self.access.check_keys(self.scope, self.sealer, row.keys_hash)
        check_fence(new.fence, row.fence, claims_required=row.claims_required)
        if row.tier != "hot":
            raise ThreadArchived(new.thread_id)
        return row

    def _read(self, row: OpenWritesRow) -> _Sealed:
        """The seals that `OPEN_WRITES` gave, opened."""
        new = self.new
        thread = open_thread(self.sealer, new.thread_id, row.thread_created_at, row.thread_seal)
        if row.head_id is None or row.sequence is None or row.head_seal is None:
            return _Sealed(thread, None)
        place = (new.namespace, row.head_id, row.sequence, row.head_seal)
        return _Sealed(thread, open_head(self.sealer, new.thread_id, thread, *place))

    async def _refuse_cold(self, transaction: Transaction, row: OpenWritesRow, before: _Sealed) -> None:
        """Return if neither the checkpoint nor its namespace is in a segment.

        A list says how many writes a checkpoint has, not which: whether a cold one has these only its rows tell.

        Raises:
            ThreadArchived: The segment that is named is to be brought back first.
        """
        new = self.new
        if row.cold is None or new.checkpoint_id == row.head_id:
            return
        incarnation = before.thread.incarnation
        sums = ColdSums.open(self.sealer, new.thread_id, row.thread_created_at, incarnation, row.cold)
        head = None
        if row.head_id is None:
            head = await find_cold_head(transaction, self.sealer, new.thread_id, sums, new.namespace)
        if head is None and not sums.of(new.namespace).count:
            return
        place = (new.namespace, new.checkpoint_id)
        found = await find_cold(transaction, self.sealer, new.thread_id, sums, place)
        needs_room = found is None or not self._may_repeat(found)
        if head is not None:
            raise ThreadArchived(new.thread_id, segment=head.segment.segment, needs_room=needs_room)
        if found is not None:
            raise ThreadArchived(new.thread_id, segment=found.segment.segment, needs_room=needs_room)

    def _may_repeat(self, found: ColdCheckpoint) -> bool:
        """Whether a cold checkpoint may have all of the writes, so that none would be stored."""
        return found.listed.writes_count >= len(self.new.writes) and all(each.idx >= 0 for each in self.new.writes)

    async def _stored(self, transaction: Transaction, uploads: Uploads) -> list[tuple[Piece, UUID | None]]:
        """The pieces to store, each with the blob that holds its content, if one does.

        Large ones that the thread has already are left out, so that they need not be uploaded again.

        Raises:
            PieceUnknown: the thread does not have a piece that a placeholder names.
            UploadNeeded: upload these pieces first.
        """
        sealer, cutter, offload = self.sealer, self.draft.cutter, self.access.offload
        pieces = list(cutter.pieces.values())
        asked = [each.piece_id for each in pieces if offload.is_large(each)] + [*cutter.referenced]
        if asked:
            found = await transaction.fetch_all(
                sql.PRESENT, thread_id=self.new.thread_id, piece_ids=asked, key_version=sealer.active_key_version
            )
            present = {*found}
            if not cutter.referenced.keys() <= present:
                raise PieceUnknown
            pieces = [each for each in pieces if each.piece_id not in present]
        blobs = await offload.place(transaction, sealer, self.new.thread_id, pieces, uploads)
        return [(each, blobs.get(each.piece_id)) for each in pieces]

    async def _write(
        self,
        transaction: Transaction,
        after: _Sealed,
        fresh: Sequence[_Fresh],
        stored: Sequence[tuple[Piece, UUID | None]],
        row: OpenWritesRow,
        *,
        is_new: bool,
    ) -> None:
        """Store what is fresh, with the seals; ``is_new``: this transaction made the thread."""
        sealer, new, head = self.sealer, self.new, after.head
        written = await transaction.fetch_only(
            sql.PUT_WRITES,
            **self._written(fresh),
            pieces=[each.piece_id for each, _ in stored],
            children=[each.children for each, _ in stored],
            envelopes=await sealed_pieces(sealer, stored),
            replaces=[each.replaces for each in fresh],
            thread_seal=seal_thread(sealer, new.thread_id, row.thread_created_at, after.thread),
            sequence=None if head is None else head.sequence,
            head_seal=None if head is None or row.head_id != new.checkpoint_id else self._seal_head(head),
            blob_ids=[None if blob_id is None else blob_id.bytes for _, blob_id in stored],
            named_ids=[each.columns.named_ids for each in fresh],
            is_new_thread=is_new,
        )
        self.access.check_keys(self.scope, sealer, written.keys_hash)
        stands_on = (row.head_id, row.sequence)
        if written.written != len(fresh) or (written.head_id, written.sequence) != stands_on:
            raise LostRaceError
        if written.left_over:
            raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
        emitting, scope = self.access.emitting, self.scope
        if is_new:
            await emitting.of_thread(transaction, scope, "thread.created", OfThread(new.thread_id))
        if new.tells_status:
            said = OfThread(new.thread_id, new.namespace, new.checkpoint_id, status=new.status)
            await emitting.of_thread(transaction, scope, "thread.status", said)


def _is_at_version(new: TaskWrites, remembered: RememberedHead) -> bool:
    """Whether writes name a version, or the head has none: what names none is at its checkpoint's, which is asked."""
    return new.state_schema is not None or remembered.base.columns.state_schema is None


def _is_early(new: TaskWrites, remembered: RememberedHead) -> bool:
    """Whether writes are of a checkpoint to come, and may be remembered for its save."""
    return (
        new.checkpoint_id.encode() > remembered.head_id.encode()
        and new.status is None  # which the checkpoint, when it comes, takes from the stored rows
        and (new.checkpoint_id in remembered.early or len(remembered.early) < EARLY_MAX)
    )


def _seal(
    sealer: Sealer,
    new: TaskWrites,
    write: NewWrite,
    together: Cutter,
    named: Sequence[Pointer],
    now: datetime,
    where: str,
) -> tuple[WriteColumns, SealedWrite]:
    cutter = together.beside()
    try:
        body, leaves = cutter.cut_noted(write.value)
    except InvalidState as error:  # of its placeholders
        raise InvalidState(str(error), where + error.pointer) from None
    columns = WriteColumns(
        thread_id=new.thread_id,
        namespace=new.namespace,
        checkpoint_id=new.checkpoint_id,
        task_id=new.task_id,
        idx=write.idx,
        task_path=new.task_path,
        channel=write.channel,
        status=new.status,
        created_at=now,
        piece_ids=cutter.listed.pack(),
        named_ids=pack_artifacts(named),
        state_schema=new.state_schema,
        state_version=new.state_version,
    )
    return columns, seal_write(sealer, columns, WriteRecord(FORMAT, write.value.encoding, body, leaves))
