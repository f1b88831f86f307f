"""Save, load, history and pending writes: the verbs on checkpoints.

A save is one transaction: lock the thread and read what it stands on, seal what is new, write, commit. Nothing is
acknowledged before the commit; a lost race starts over on a fresh snapshot. Reads are one statement, or one snapshot,
and write nothing. Values are bytes to this module; only lists are cut, none are instantiated.

It promises neither that a caller may do this (the gateway's guards) nor that state is still meaningful to a newer
agent (state migrations).
"""

from collections.abc import Sequence

from crypto import Sealer
from storage import reading
from storage.access import Access
from storage.errors import CheckpointNotFound, IntegrityFailure, InvalidState, ThreadArchived
from storage.format.chain import ThreadSeal
from storage.format.manifest import FORMAT, WriteColumns, WriteRecord
from storage.format.pieces import Cutter, Piece
from storage.format.record import (
    PieceReader,
    open_checkpoint,
    open_head,
    open_write,
    seal_piece,
    seal_thread,
    seal_write,
)
from storage.model import (
    ChannelHistory,
    Checkpoint,
    HistoryQuery,
    Loaded,
    NewWrite,
    Page,
    PendingWrite,
    Save,
    Saved,
    Status,
    WritesReceipt,
)
from storage.postgres import checkpoints as sql
from storage.reading import ids_of, open_write_arrays, read_chunks, scan, with_state
from storage.saving import save_once
from storage.scope import Scope, check_id


class Checkpoints:
    """The verbs on checkpoints and their pending writes."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def save(self, scope: Scope, save: Save) -> Saved:
        """Save a checkpoint; when this returns, it is durable.

        Raises:
            CheckpointExists: the id is stored with other content.
            ChannelUnchangedUnknown: an unchanged channel is not in the parent at that version.
            HeadMoved: the precondition does not hold.
            PreconditionRequired: the thread is strict, or the save is a patch, and there is no precondition.
            IdempotencyKeyReused: the key belongs to another request.
            InvalidState: an id or a patch cannot be applied.
            ThreadArchived: the thread is not in the hot tier.
            IntegrityFailure: what the save stands on does not authenticate.
            Unavailable: nothing was saved; or, as CommitUnknown, perhaps.
        """
        check_id(save.thread_id, "thread id")
        if save.checkpoint_id is not None:
            check_id(save.checkpoint_id, "checkpoint id")

        return await self._access.writing(scope, lambda sealer: save_once(self._access, scope, sealer, save))

    async def load(
        self, scope: Scope, thread_id: str, namespace: str, checkpoint_id: str | None, *, with_state: bool
    ) -> Loaded:
        """Load a checkpoint with its pending writes; ``checkpoint_id`` None: the namespace's head.

        Raises:
            CheckpointNotFound: there is none.
            IntegrityFailure: it does not authenticate.
        """

        async def with_sealer(sealer: Sealer) -> Loaded:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                row = await transaction.fetchrow(
                    sql.LOAD,
                    scope.tenant_id,
                    scope.subject_id,
                    thread_id,
                    namespace,
                    checkpoint_id,
                    with_state,
                    sealer.active_key_version,
                )
                if row is None:
                    raise CheckpointNotFound
                self._access.check_key(scope, row["key_state"])
                head_id = row["at_head_id"]
                open_head(sealer, thread_id, namespace, head_id, row["at_sequence"], row["at_head_seal"])
                if row["checkpoint_id"] is None:
                    if checkpoint_id is None or checkpoint_id == head_id:
                        raise IntegrityFailure("the head's checkpoint is missing")
                    raise CheckpointNotFound
                opened = open_checkpoint(sealer, row)
                if not with_state:
                    return Loaded(checkpoint=opened.value(None, None), head_id=head_id)
                reader = PieceReader(sealer)
                pieces = zip(row["p_piece_id"] or (), row["p_children"] or (), row["p_envelope"] or (), strict=True)
                wanted = reader.add(pieces)
                await read_chunks(transaction, scope, reader, thread_id, wanted)
            writes = [each.value(reader.look_up) for each in open_write_arrays(sealer, row)]
            return Loaded(checkpoint=opened.value(reader.look_up, writes), head_id=head_id)

        return await self._access.reading(scope, with_sealer, CheckpointNotFound())

    async def history(self, scope: Scope, query: HistoryQuery) -> Page[Checkpoint]:
        """Checkpoints, newest first: one page.

        A page may be shorter than the limit (opened bytes, rows looked at) and still have a successor.

        Raises:
            IntegrityFailure: a row does not authenticate.
        """

        async def with_sealer(sealer: Sealer) -> Page[Checkpoint]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                state = await transaction.fetchval(
                    sql.KEY_STATE, scope.tenant_id, scope.subject_id, sealer.active_key_version
                )
                self._access.check_key(scope, state)
                matches, after = await scan(transaction, scope, sealer, query)
                if not query.with_state:
                    return Page([each.value(None, None) for each in matches], after)
                return await with_state(transaction, scope, sealer, matches, after)

        try:
            return await self._access.reading(scope, with_sealer, CheckpointNotFound())
        except CheckpointNotFound:
            return Page([], None)

    async def put_writes(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[NewWrite],
        status: Status | None,
    ) -> WritesReceipt:
        """Store a task's writes against a checkpoint that may not exist yet.

        A write at ``idx`` >= 0 is kept as first written, one below is replaced. ``status`` is what the task's
        outcome makes of the checkpoint.

        Raises:
            InvalidState: an id cannot be stored, or an ``idx`` occurs twice.
            ThreadArchived: the thread is not in the hot tier.
        """
        check_id(thread_id, "thread id")
        check_id(checkpoint_id, "checkpoint id")
        check_id(task_id, "task id")
        if len({write.idx for write in writes}) != len(writes):
            raise InvalidState("an idx occurs twice in one request", "/writes")

        async def attempt(sealer: Sealer) -> WritesReceipt:
            now = self._access.clock.now()
            cutter_pieces: dict[bytes, Piece] = {}
            columns: list[WriteColumns] = []
            values: list[bytes] = []
            for write in writes:
                cutter = Cutter(sealer, pieces=cutter_pieces)
                body = cutter.cut(write.value)
                columns.append(
                    WriteColumns(
                        thread_id=thread_id,
                        namespace=namespace,
                        checkpoint_id=checkpoint_id,
                        task_id=task_id,
                        idx=write.idx,
                        task_path=task_path,
                        channel=write.channel,
                        status=status,
                        created_at=now,
                        piece_ids=cutter.listed.pack(),
                    )
                )
                values.append(seal_write(sealer, columns[-1], WriteRecord(FORMAT, write.value.encoding, body)))
            pieces = list(cutter_pieces.values())
            async with self._access.unit_of_work.begin(scope) as transaction:
                row = await transaction.fetchrow(
                    sql.PUT_WRITES,
                    scope.tenant_id,
                    scope.subject_id,
                    thread_id,
                    status if namespace == "" else None,
                    now,
                    seal_thread(sealer, thread_id, now, ThreadSeal.new()),
                    sealer.active_key_version,
                    [each.piece_id for each in pieces],
                    [each.children for each in pieces],
                    [seal_piece(sealer, each) for each in pieces],
                    namespace,
                    checkpoint_id,
                    task_id,
                    task_path,
                    status,
                    [each.idx for each in columns],
                    [each.channel for each in columns],
                    [each.piece_ids for each in columns],
                    values,
                )
                self._access.check_key(scope, row["key_state"])
                if row["tier"] != "hot":
                    raise ThreadArchived
                if status is not None:
                    await transaction.execute(
                        sql.OUTCOME, scope.tenant_id, scope.subject_id, thread_id, namespace, checkpoint_id, status
                    )
            return WritesReceipt(stored=row["stored"], unchanged=len(writes) - row["stored"])

        return await self._access.writing(scope, attempt)

    async def task_writes(
        self, scope: Scope, thread_id: str, namespace: str, checkpoint_id: str, task_id: str
    ) -> list[PendingWrite]:
        """What one task wrote against a checkpoint; empty if nothing."""

        async def with_sealer(sealer: Sealer) -> list[PendingWrite]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                state = await transaction.fetchval(
                    sql.KEY_STATE, scope.tenant_id, scope.subject_id, sealer.active_key_version
                )
                self._access.check_key(scope, state)
                rows = await transaction.fetch(
                    sql.WRITES_OF,
                    scope.tenant_id,
                    scope.subject_id,
                    thread_id,
                    namespace,
                    [checkpoint_id],
                    None,
                    task_id,
                )
                opened = [open_write(sealer, row) for row in rows]
                reader = PieceReader(sealer)
                await read_chunks(transaction, scope, reader, thread_id, ids_of(opened))
            return [each.value(reader.look_up) for each in opened]

        try:
            return await self._access.reading(scope, with_sealer, CheckpointNotFound())
        except CheckpointNotFound:
            return []

    async def channel_history(
        self, scope: Scope, thread_id: str, namespace: str, checkpoint_id: str | None, channels: Sequence[str]
    ) -> dict[str, ChannelHistory]:
        """For each channel: its value at the nearest ancestor that holds one, and the writes since, oldest first.

        The target's own value and writes are left out; those of the ancestor that holds the value are included.
        This is how LangGraph rebuilds a DeltaChannel.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
        """

        async def with_sealer(sealer: Sealer) -> dict[str, ChannelHistory]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                return await reading.channel_history(
                    transaction, scope, sealer, thread_id, namespace, checkpoint_id, channels
                )

        return await self._access.reading(scope, with_sealer, CheckpointNotFound())
