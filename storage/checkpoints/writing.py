"""One task's pending writes: lock and verify what they stand on, seal what is new, write it with the seals.

`put_once` is one transaction of two statements, as a save is; `storage.postgres.checkpoints` says what each may believe
of the other's. A write changes the thread's seal, and the head's if it is of the head, so that a read misses it when it
is taken away. What this process remembers of the thread (`storage.access.standings`) spares it the reading; it holds no
other state.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import check_acknowledged, check_token
from storage.access.offload import Uploads, artifacts_in, pack_artifacts
from storage.access.standings import EARLY_MAX, Standing
from storage.checkpoints.piece_rows import sealed_pieces
from storage.concurrency.computing import compute
from storage.errors import IntegrityFailure, InvalidState, LostRaceError, PieceUnknown, ThreadArchived
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.leaves import Pointer
from storage.format.manifest import FORMAT, WriteColumns, WriteRecord
from storage.format.pieces import Cutter, Piece, is_long_to_cut
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
from storage.model import NewWrite, Status, WritesReceipt
from storage.postgres import checkpoints as sql
from storage.postgres.unit_of_work import Transaction
from storage.schemas.versions import OtherVersionError
from storage.scope import Scope


@dataclasses.dataclass(frozen=True, slots=True)
class TaskWrites:
    """What a task wrote, to be stored; as `Checkpoints.put_writes` takes it."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    writes: Sequence[NewWrite]
    status: Status | None
    known_token: str | None
    state_schema: str | None = None
    state_version: int | None = None


# As many writes are sealed beside the event loop.
_SEALED_BESIDE_MIN = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Fresh:
    """A write that is stored, and the member of the one that it replaces, if any."""

    columns: WriteColumns
    sealed: SealedWrite
    replaces: bytes | None


async def put_once(access: Access, scope: Scope, sealer: Sealer, new: TaskWrites, uploads: Uploads) -> WritesReceipt:
    """One attempt at storing a task's writes, in a transaction of its own. ``uploads``: as `save_once`.

    Raises:
        UploadNeeded: upload these pieces, then run it again.
        LostRaceError: run it again.
        OtherVersionError: the writes name no state version, and their checkpoint is at one.
        StorageError: as `Checkpoints.put_writes`.
    """
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

    large = len(new.writes) >= _SEALED_BESIDE_MIN or is_long_to_cut(write.value.data for write in new.writes)
    sealed = await compute(scope.tenant_id, seal) if large else seal()
    async with access.standings.turn(scope, new.thread_id):
        known = access.standings.take(scope, sealer, new.thread_id, new.namespace)
        has_room = access.row_quotas.has_room(scope)
        if known is not None and has_room and _goes_on(access, new, known, cutter) and not any(named.values()):
            return await _put_on(access, scope, sealer, new, known, sealed, cutter, now)
        return await _put_reading(access, scope, sealer, new, sealed, named, cutter, now, uploads)


async def _put_reading(
    access: Access,
    scope: Scope,
    sealer: Sealer,
    new: TaskWrites,
    sealed: Sequence[tuple[WriteColumns, SealedWrite]],
    named: Mapping[int, Sequence[Pointer]],
    cutter: Cutter,
    now: datetime,
    uploads: Uploads,
) -> WritesReceipt:
    """Writes that read what they stand on, under the thread's lock."""
    acknowledged = access.standings.acknowledged(scope, new.thread_id, new.namespace)
    async with access.unit_of_work.begin(scope) as transaction:
        own_seal = seal_thread(sealer, new.thread_id, now, new_thread(sealer, new.thread_id))
        row = await transaction.fetchrow(
            sql.OPEN_WRITES,
            scope.tenant_id,
            scope.subject_id,
            new.thread_id,
            new.status if new.namespace == "" else None,
            now,
            own_seal,
            new.namespace,
            new.checkpoint_id,
            new.task_id,
            [each.idx for each in new.writes],
            sealer.shared,
        )
        access.check_keys(scope, sealer, row["keys_hash"])
        if row["tier"] != "hot":
            raise ThreadArchived(new.thread_id)
        if new.known_token is not None:
            await check_token(transaction, scope, sealer, new.thread_id, new.known_token)
        if new.state_schema is None and row["at_schema"] is not None:
            raise OtherVersionError(new.checkpoint_id, row["at_schema"], row["at_version"])
        thread, head = _open_seals(sealer, new, row)
        await check_acknowledged(transaction, scope, sealer, new.thread_id, acknowledged, row["head_id"], head)
        present = dict(zip(row["present_idx"] or (), row["present_members"] or (), strict=True))
        fresh = [
            _Fresh(columns, each, present.get(columns.idx))
            for columns, each in sealed
            if columns.idx < 0 or columns.idx not in present
        ]
        if fresh:
            access.row_quotas.require_room(scope)
            pointers = [pointer for each in fresh for pointer in named[each.columns.idx]]
            await access.offload.name_artifacts(transaction, scope, new.thread_id, pointers)
            stored = await _stored(access, transaction, scope, sealer, new, cutter, uploads)
            is_new = row["thread_seal"] == own_seal
            head = await _write(access, transaction, scope, sealer, new, now, thread, head, fresh, stored, row, is_new)
    token = None
    if head is not None and row["head_id"] == new.checkpoint_id:
        seen = ThreadToken.of(sealer.without_share, new.namespace, new.checkpoint_id, head)
        access.acknowledge(scope, sealer, new.thread_id, seen)
        token = seen.encode(sealer.without_share, new.thread_id)
    return WritesReceipt(stored=len(fresh), unchanged=len(new.writes) - len(fresh), token=token)


def _goes_on(access: Access, new: TaskWrites, known: Standing, cutter: Cutter) -> bool:
    """Whether the writes are of a head that is remembered or one to come, and need nothing else from the database."""
    return (
        bool(new.writes)
        and (new.known_token is None or new.known_token == known.token)
        and known.covers(cutter, access.offload.is_large)
        and (new.checkpoint_id == known.head_id or _is_early(new, known))
        and _is_at_version(new, known)
    )


def _is_at_version(new: TaskWrites, known: Standing) -> bool:
    """Whether writes name a version, or the head has none: what names none is at its checkpoint's, which is asked."""
    return new.state_schema is not None or known.base.columns.state_schema is None


def _is_early(new: TaskWrites, known: Standing) -> bool:
    """Whether writes are of a checkpoint to come, and may be remembered for its save."""
    return (
        new.checkpoint_id.encode() > known.head_id.encode()
        and new.status is None  # which the checkpoint, when it comes, takes from the stored rows
        and (new.checkpoint_id in known.early or len(known.early) < EARLY_MAX)
    )


async def _put_on(
    access: Access,
    scope: Scope,
    sealer: Sealer,
    new: TaskWrites,
    known: Standing,
    sealed: Sequence[tuple[WriteColumns, SealedWrite]],
    cutter: Cutter,
    now: datetime,
) -> WritesReceipt:
    """Writes of a head that is remembered, or of a checkpoint that comes after it: nothing is read.

    Raises:
        LostRaceError: begin by reading; what is remembered is another state, or some of them are stored.
    """
    fresh = [_Fresh(columns, each, None) for columns, each in sealed]
    stored = [each for each in cutter.pieces.values() if each.piece_id not in known.pieces]
    thread = dataclasses.replace(known.thread, writes=_moved(sealer, new, known.thread.writes, fresh))
    thread_seal = seal_thread(sealer, new.thread_id, known.thread_created_at, thread)
    left = msgspec.structs.replace(known, thread_seal=thread_seal, thread=thread)
    new_head_seal = None
    if new.checkpoint_id == known.head_id:
        writes = _moved(sealer, new, known.head.writes, fresh)
        head = msgspec.structs.replace(known.head, sequence=known.head.sequence + 1, writes=writes)
        new_head_seal = seal_head(sealer, new.thread_id, new.namespace, new.checkpoint_id, head)
        seen = known.seen.after(sealer.without_share, new.checkpoint_id, head)
        left = msgspec.structs.replace(
            left,
            head_seal=new_head_seal,
            head=head,
            pieces={**known.pieces, **{each.piece_id: each.children for each in stored}} if stored else known.pieces,
            seen=seen,
            token=seen.encode(sealer.without_share, new.thread_id),
        )
    else:
        early = _moved(sealer, new, known.early.get(new.checkpoint_id, NO_WRITES), fresh)
        left = msgspec.structs.replace(left, early={**known.early, new.checkpoint_id: early})
    await access.unit_of_work.call(
        sql.PUT_WRITES_ON,
        scope,
        new.thread_id,
        sealer.active_key_version,
        [each.piece_id for each in stored],
        [each.children for each in stored],
        await sealed_pieces(sealer, ((each, None) for each in stored)),
        new.namespace,
        new.checkpoint_id,
        new.task_id,
        new.task_path,
        new.status,
        now,
        [each.columns.idx for each in fresh],
        [each.columns.channel for each in fresh],
        [each.columns.piece_ids for each in fresh],
        [each.sealed.envelope for each in fresh],
        [each.sealed.member for each in fresh],
        new.state_schema,
        new.state_version,
        new.status if new.namespace == "" else None,
        known.thread_seal,
        thread_seal,
        left.head.sequence,
        known.head_seal,
        new_head_seal,
        sealer.keys_hash,
    )
    access.standings.remember(scope, sealer, left)
    if new_head_seal is None:
        return WritesReceipt(stored=len(fresh), unchanged=0, token=None)
    access.acknowledge(scope, sealer, new.thread_id, left.seen)
    return WritesReceipt(stored=len(fresh), unchanged=0, token=left.token)


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
        body = cutter.cut(write.value)
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
    return columns, seal_write(sealer, columns, WriteRecord(FORMAT, write.value.encoding, body))


def _open_seals(sealer: Sealer, new: TaskWrites, row: Any) -> tuple[ThreadSeal, HeadSeal | None]:
    thread = open_thread(sealer, new.thread_id, row["thread_created_at"], row["thread_seal"])
    if row["head_id"] is None:
        return thread, None
    place = (new.namespace, row["head_id"], row["sequence"], row["head_seal"])
    return thread, open_head(sealer, new.thread_id, thread, *place)


async def _stored(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    new: TaskWrites,
    cutter: Cutter,
    uploads: Uploads,
) -> list[tuple[Piece, UUID | None]]:
    """The pieces to store, each with the blob that holds its content, if one does.

    Large ones that the thread has already are left out, so that they need not be uploaded again.

    Raises:
        PieceUnknown: the thread does not have a piece that a placeholder names.
        UploadNeeded: as `put_once`.
    """
    pieces = list(cutter.pieces.values())
    asked = [each.piece_id for each in pieces if access.offload.is_large(each)] + [*cutter.referenced]
    if asked:
        place = (scope.tenant_id, scope.subject_id, new.thread_id)
        rows = await transaction.fetch(sql.PRESENT, *place, asked, sealer.active_key_version)
        present = {row["piece_id"] for row in rows}
        if not cutter.referenced.keys() <= present:
            raise PieceUnknown
        pieces = [each for each in pieces if each.piece_id not in present]
    blobs = await access.offload.place(transaction, scope, sealer, new.thread_id, pieces, uploads)
    return [(each, blobs.get(each.piece_id)) for each in pieces]


async def _write(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    new: TaskWrites,
    now: datetime,
    thread: ThreadSeal,
    head: HeadSeal | None,
    fresh: Sequence[_Fresh],
    stored: Sequence[tuple[Piece, UUID | None]],
    row: Any,
    is_new_thread: bool,
) -> HeadSeal | None:
    """Store what is fresh, with the seals; returns the head as it then is."""
    thread = dataclasses.replace(thread, writes=_moved(sealer, new, thread.writes, fresh))
    thread_seal = seal_thread(sealer, new.thread_id, row["thread_created_at"], thread)
    head_seal = None
    if head is not None and row["head_id"] == new.checkpoint_id:
        writes = _moved(sealer, new, head.writes, fresh)
        head = msgspec.structs.replace(head, sequence=head.sequence + 1, writes=writes)
        head_seal = seal_head(sealer, new.thread_id, new.namespace, new.checkpoint_id, head)
    written = await transaction.fetchrow(
        sql.PUT_WRITES,
        scope.tenant_id,
        scope.subject_id,
        new.thread_id,
        sealer.active_key_version,
        [each.piece_id for each, _ in stored],
        [each.children for each, _ in stored],
        await sealed_pieces(sealer, stored),
        new.namespace,
        new.checkpoint_id,
        new.task_id,
        new.task_path,
        new.status,
        now,
        [each.columns.idx for each in fresh],
        [each.columns.channel for each in fresh],
        [each.columns.piece_ids for each in fresh],
        [each.sealed.envelope for each in fresh],
        [each.sealed.member for each in fresh],
        [each.replaces for each in fresh],
        thread_seal,
        None if head is None else head.sequence,
        head_seal,
        [None if blob_id is None else blob_id.bytes for _, blob_id in stored],
        [each.columns.named_ids for each in fresh],
        new.state_schema,
        new.state_version,
        is_new_thread,
    )
    access.check_keys(scope, sealer, written["keys_hash"])
    stands_on = (row["head_id"], row["sequence"])
    if written["written"] != len(fresh) or (written["head_id"], written["sequence"]) != stands_on:
        raise LostRaceError
    if written["left_over"]:
        raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
    return head


def _moved(sealer: Sealer, new: TaskWrites, before: LiveSet, fresh: Sequence[_Fresh]) -> LiveSet:
    """A sum after what is fresh was added and what it replaces was taken away."""
    after = before
    for each in fresh:
        if each.replaces is not None:
            replaced = write_mac(sealer, new.namespace, new.checkpoint_id, new.task_id, each.columns.idx, each.replaces)
            after = after.subtract(replaced)
        after = after.add(each.sealed.mac)
    return after
