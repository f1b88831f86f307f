"""Save, load, history and pending writes: the verbs on checkpoints.

A save is one transaction: lock the thread and read what it stands on, seal what is new, write, commit. Nothing is
acknowledged before the commit; a lost race starts over on a fresh snapshot. Reads are one statement, or one snapshot,
and write nothing. Values are bytes to this module; only lists are cut, none are instantiated.

It promises neither that a caller may do this (the gateway's guards) nor that state is still meaningful to a newer
agent (state migrations).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from crypto import KeyDestroyed, Kind, OpenError, Sealer

from storage.clock import Clock
from storage.errors import (
    ChannelUnchangedUnknown,
    CheckpointExists,
    CheckpointNotFound,
    HeadMoved,
    IdempotencyKeyReused,
    IntegrityFailure,
    InvalidState,
    PreconditionRequired,
    ThreadArchived,
)
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal
from storage.format.ids import mint_checkpoint_id
from storage.format.manifest import FORMAT, ChannelRecord, CheckpointColumns, Manifest, WriteColumns, WriteRecord
from storage.format.pieces import (
    Body,
    Cutter,
    join,
    list_bounds,
    list_count,
    list_header,
    piece_ids_of,
)
from storage.format.record import (
    OpenedCheckpoint,
    OpenedWrite,
    PieceReader,
    open_checkpoint,
    open_head,
    open_thread,
    open_write,
    seal_checkpoint,
    seal_head,
    seal_piece,
    seal_thread,
    seal_write,
)
from storage.keys import Keys
from storage.model import (
    Channel,
    ChannelHistory,
    Checkpoint,
    FullState,
    HistoryQuery,
    Loaded,
    NewWrite,
    Page,
    Patch,
    PendingWrite,
    Save,
    Saved,
    Status,
    Value,
    WritesReceipt,
)
from storage.postgres import checkpoints as sql
from storage.postgres.unit_of_work import LostRaceError, Observer, Transaction, UnitOfWork
from storage.scope import Scope, check_id

T = TypeVar("T")

# How many rows a request may open to match undeclared metadata, before it answers with a cursor instead.
HISTORY_SCAN_ROWS_MAX = 10_000
# Opened state on one page of history; a page that reaches it ends early, with a cursor.
HISTORY_BYTES_MAX = 16 * 1024 * 1024
_SCAN_ROWS = 500
_STATE_ROWS = 16
_ANCESTORS_ROWS = 256


class Checkpoints:
    """The verbs on checkpoints and their pending writes."""

    def __init__(self, unit_of_work: UnitOfWork, keys: Keys, clock: Clock, observer: Observer) -> None:
        self._unit_of_work = unit_of_work
        self._keys = keys
        self._clock = clock
        self._observer = observer

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

        async def with_sealer(sealer: Sealer) -> Saved:
            return await self._unit_of_work.retrying(lambda: self._save(scope, sealer, save))

        return await self.with_sealer(scope, with_sealer)

    async def load(
        self, scope: Scope, thread_id: str, namespace: str, checkpoint_id: str | None, *, with_state: bool
    ) -> Loaded:
        """Load a checkpoint with its pending writes; ``checkpoint_id`` None: the namespace's head.

        Raises:
            CheckpointNotFound: there is none.
            IntegrityFailure: it does not authenticate.
        """

        async def with_sealer(sealer: Sealer) -> Loaded:
            async with self._unit_of_work.snapshot(scope) as transaction:
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
                self._check_key(scope, row["key_state"])
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
                pieces = zip(
                    row["p_piece_id"] or (), row["p_children"] or (), row["p_envelope"] or (), strict=True
                )
                wanted = reader.add(pieces)
                await _read_chunks(transaction, scope, reader, thread_id, wanted)
            writes = [each.value(reader.look_up) for each in _open_write_arrays(sealer, row)]
            return Loaded(checkpoint=opened.value(reader.look_up, writes), head_id=head_id)

        return await self._with_existing(scope, with_sealer)

    async def history(self, scope: Scope, query: HistoryQuery) -> Page[Checkpoint]:
        """Checkpoints, newest first: one page.

        A page may be shorter than the limit (opened bytes, rows looked at) and still have a successor.

        Raises:
            IntegrityFailure: a row does not authenticate.
        """
        sealer = await self._keys.existing_sealer(scope)
        if sealer is None:
            return Page([], None)

        async def with_sealer(sealer: Sealer) -> Page[Checkpoint]:
            async with self._unit_of_work.snapshot(scope) as transaction:
                state = await transaction.fetchval(
                    sql.KEY_STATE, scope.tenant_id, scope.subject_id, sealer.active_key_version
                )
                self._check_key(scope, state)
                matches, after = await _scan(transaction, scope, sealer, query)
                if not query.with_state:
                    return Page([each.value(None, None) for each in matches], after)
                return await _with_state(transaction, scope, sealer, matches, after)

        return await self._with_existing(scope, with_sealer)

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
            now = self._clock.now()
            cutter_pieces: dict[bytes, Any] = {}
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
            async with self._unit_of_work.begin(scope) as transaction:
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
                self._check_key(scope, row["key_state"])
                if row["tier"] != "hot":
                    raise ThreadArchived
            return WritesReceipt(stored=row["stored"], unchanged=len(writes) - row["stored"])

        async def with_sealer(sealer: Sealer) -> WritesReceipt:
            return await self._unit_of_work.retrying(lambda: attempt(sealer))

        return await self.with_sealer(scope, with_sealer)

    async def task_writes(
        self, scope: Scope, thread_id: str, namespace: str, checkpoint_id: str, task_id: str
    ) -> list[PendingWrite]:
        """What one task wrote against a checkpoint; empty if nothing."""
        if await self._keys.existing_sealer(scope) is None:
            return []

        async def with_sealer(sealer: Sealer) -> list[PendingWrite]:
            async with self._unit_of_work.snapshot(scope) as transaction:
                state = await transaction.fetchval(
                    sql.KEY_STATE, scope.tenant_id, scope.subject_id, sealer.active_key_version
                )
                self._check_key(scope, state)
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
                await _read_chunks(transaction, scope, reader, thread_id, _ids_of(opened))
            return [each.value(reader.look_up) for each in opened]

        return await self._with_existing(scope, with_sealer)

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
            async with self._unit_of_work.snapshot(scope) as transaction:
                return await _channel_history(
                    transaction, scope, sealer, thread_id, namespace, checkpoint_id, channels
                )

        return await self._with_existing(scope, with_sealer)

    async def with_sealer(self, scope: Scope, work: Callable[[Sealer], Awaitable[T]]) -> T:
        """Run ``work`` with the scope's sealer, creating its keys if it has none.

        A cached sealer may not know a key version that another gateway made; then it is read again, once.
        """
        try:
            return await self._watched(work(await self._keys.sealer(scope)))
        except KeyDestroyed:
            self._keys.evict(scope)
            return await self._watched(work(await self._keys.sealer(scope)))

    async def _with_existing(self, scope: Scope, work: Callable[[Sealer], Awaitable[T]]) -> T:
        """As `with_sealer`, for reads: a scope without keys has no data."""
        if await self._keys.existing_sealer(scope) is None:
            raise CheckpointNotFound
        return await self.with_sealer(scope, work)

    async def _watched(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except IntegrityFailure:
            self._observer.integrity_failure()
            raise

    def _check_key(self, scope: Scope, state: str | None) -> None:
        """Refuse a key that was destroyed after it was cached; read in the same statement as the data."""
        if state != "active":
            self._keys.evict(scope)
            raise KeyDestroyed

    async def _save(self, scope: Scope, sealer: Sealer, save: Save) -> Saved:
        now = self._clock.now()
        cutter = Cutter(sealer)
        full = save.content if isinstance(save.content, FullState) else None
        cut = {
            name: cutter.cut(each.value)
            for name, each in (full.channels.items() if full else ())
            if each.value is not None
        }
        needs_parent = full is None or len(cut) < len(full.channels) or save.step is None
        async with self._unit_of_work.begin(scope) as transaction:
            if save.idempotency is not None:
                replayed = await _claim(transaction, scope, sealer, save, now)
                if replayed is not None:
                    return replayed
            row = await transaction.fetchrow(
                sql.OPEN,
                scope.tenant_id,
                scope.subject_id,
                save.thread_id,
                save.agent,
                save.status if save.namespace == "" else None,
                now,
                seal_thread(sealer, save.thread_id, now, ThreadSeal.new()),
                sealer.active_key_version,
                save.namespace,
                save.checkpoint_id,
                list(cutter.pieces),
                needs_parent,
                save.parent is None,
                save.parent.checkpoint_id if save.parent else None,
            )
            self._check_key(scope, row["key_state"])
            if row["tier"] != "hot":
                raise ThreadArchived
            base = None if row["checkpoint_id"] is None else open_checkpoint(sealer, row)
            standing = _Standing.open(sealer, save, row)
            if row["stored_before"]:
                return await self._saved_before(transaction, scope, sealer, save, standing, cut, cutter)
            standing.check(save, row["strict"])
            parent_id = standing.head_id if save.parent is None else save.parent.checkpoint_id
            if base is None and needs_parent and save.parent is None and standing.head_id is not None:
                raise LostRaceError  # the head is newer than this statement's snapshot
            channels = await _compose(transaction, scope, sealer, save, cut, cutter, base)
            columns = _columns(
                save,
                checkpoint_id=save.checkpoint_id or mint_checkpoint_id(now, standing.head_id),
                parent_id=parent_id,
                step=save.step if save.step is not None else (base.columns.step + 1 if base else 0),
                created_at=now,
                piece_ids=cutter.listed.pack(),
            )
            saved = await self._write(
                transaction, scope, sealer, save, standing, columns, channels, cutter, row
            )
            if save.idempotency is not None:
                await _settle(transaction, scope, sealer, save, saved)
            return saved

    async def _write(
        self,
        transaction: Transaction,
        scope: Scope,
        sealer: Sealer,
        save: Save,
        standing: "_Standing",
        columns: CheckpointColumns,
        channels: list[ChannelRecord],
        cutter: Cutter,
        row: Any,
    ) -> Saved:
        sealed = seal_checkpoint(sealer, columns, _manifest(save, channels))
        head_id = max(standing.head_id or "", columns.checkpoint_id, key=str.encode)
        head = standing.with_member(sealed.member)
        present = set(row["present_ids"] or ())
        fresh = [piece for piece in cutter.pieces.values() if piece.piece_id not in present]
        written = await transaction.fetchval(
            sql.WRITE,
            scope.tenant_id,
            scope.subject_id,
            save.thread_id,
            sealer.active_key_version,
            [piece.piece_id for piece in fresh],
            [piece.children for piece in fresh],
            [seal_piece(sealer, piece) for piece in fresh],
            columns.namespace,
            columns.checkpoint_id,
            columns.parent_id,
            columns.step,
            columns.status,
            row["early_status"],
            columns.source,
            columns.agent,
            columns.run_id,
            columns.model,
            columns.state_schema,
            columns.state_version,
            columns.input_tokens,
            columns.output_tokens,
            columns.cost_micros,
            columns.created_at,
            columns.piece_ids,
            sealed.envelope,
            head_id,
            head.sequence,
            seal_head(sealer, save.thread_id, save.namespace, head_id, head),
        )
        if written != 2:  # the checkpoint, and the head on top of the one that was read
            raise LostRaceError
        if standing.head is None:
            thread = standing.thread.with_namespace(sealer, save.namespace)
            await transaction.execute(
                sql.SEAL_THREAD,
                scope.tenant_id,
                scope.subject_id,
                save.thread_id,
                seal_thread(sealer, save.thread_id, row["thread_created_at"], thread),
            )
        return _saved(columns, sequence=head.sequence, head_id=head_id, created=True)

    async def _saved_before(
        self,
        transaction: Transaction,
        scope: Scope,
        sealer: Sealer,
        save: Save,
        standing: "_Standing",
        cut: dict[str, Body],
        cutter: Cutter,
    ) -> Saved:
        """Answer a save whose id is stored: the same save again is a no-op, another one a conflict."""
        stored = await _one(transaction, scope, sealer, save.thread_id, save.namespace, save.checkpoint_id)
        if stored is None or standing.head is None or standing.head_id is None:
            raise LostRaceError
        # An unchanged channel is compared with what was stored; a patch is applied to the same parent again.
        base: OpenedCheckpoint | None = stored
        if isinstance(save.content, Patch):
            base = await _one(
                transaction, scope, sealer, save.thread_id, save.namespace, stored.columns.parent_id
            )
            if base is None:
                raise CheckpointExists
        try:
            channels = await _compose(transaction, scope, sealer, save, cut, cutter, base)
        except (ChannelUnchangedUnknown, InvalidState):
            raise CheckpointExists from None
        again = _columns(
            save,
            checkpoint_id=stored.columns.checkpoint_id,
            parent_id=stored.columns.parent_id if save.parent is None else save.parent.checkpoint_id,
            step=stored.columns.step if save.step is None else save.step,
            created_at=stored.columns.created_at,
            piece_ids=cutter.listed.pack(),
        )
        if again != stored.columns or _manifest(save, channels) != stored.manifest:
            raise CheckpointExists
        return _saved(
            stored.columns, sequence=standing.head.sequence, head_id=standing.head_id, created=False
        )


class _Standing:
    """What a save stands on: the thread's and the namespace's seals, verified."""

    def __init__(self, thread: ThreadSeal, head_id: str | None, head: HeadSeal | None) -> None:
        self.thread = thread
        self.head_id = head_id
        self.head = head

    @classmethod
    def open(cls, sealer: Sealer, save: Save, row: Any) -> "_Standing":
        thread = open_thread(sealer, save.thread_id, row["thread_created_at"], row["thread_seal"])
        head_id = row["head_id"]
        if head_id is None:
            return cls(thread, None, None)
        head = open_head(sealer, save.thread_id, save.namespace, head_id, row["sequence"], row["head_seal"])
        if head.incarnation != thread.incarnation:
            raise IntegrityFailure("the head belongs to another life of this thread")
        return cls(thread, head_id, head)

    def check(self, save: Save, strict: bool) -> None:
        """Compare with what the caller believes of the head."""
        believed = save.precondition
        if believed is not None:
            if (believed.absent and self.head_id is not None) or (
                not believed.absent and believed.head_id != self.head_id
            ):
                raise HeadMoved(self.head_id)
            return
        if isinstance(save.content, Patch):
            raise PreconditionRequired
        if strict and not save.fork:
            # An adapter names its parent with every save; that says as much as If-Match.
            if save.parent is None:
                raise PreconditionRequired
            if save.parent.checkpoint_id != self.head_id:
                raise HeadMoved(self.head_id)

    def with_member(self, member: bytes) -> HeadSeal:
        """The head seal after one more checkpoint."""
        if self.head is None:
            return HeadSeal(self.thread.incarnation, 1, LiveSet().add(member))
        return HeadSeal(self.head.incarnation, self.head.sequence + 1, self.head.live.add(member))


def _columns(
    save: Save, *, checkpoint_id: str, parent_id: str | None, step: int, created_at: datetime, piece_ids: bytes
) -> CheckpointColumns:
    usage = save.usage or {}
    return CheckpointColumns(
        thread_id=save.thread_id,
        namespace=save.namespace,
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        step=step,
        status=save.status,
        source=save.source,
        agent=save.agent,
        run_id=save.run_id,
        model=save.model["name"] if save.model else None,
        state_schema=save.state_schema,
        state_version=save.state_version,
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cost_micros=usage.get("cost_micros"),
        created_at=created_at,
        piece_ids=piece_ids,
    )


def _manifest(save: Save, channels: list[ChannelRecord]) -> Manifest:
    return Manifest(FORMAT, channels, save.metadata, save.model, save.delta_channels)


def _saved(columns: CheckpointColumns, *, sequence: int, head_id: str, created: bool) -> Saved:
    return Saved(
        thread_id=columns.thread_id,
        namespace=columns.namespace,
        checkpoint_id=columns.checkpoint_id,
        parent_id=columns.parent_id,
        step=columns.step,
        status=columns.status,  # type: ignore[arg-type]
        sequence=sequence,
        created_at=columns.created_at,
        created=created,
        head_id=head_id,
    )


async def _compose(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    cut: Mapping[str, Body],
    cutter: Cutter,
    base: OpenedCheckpoint | None,
) -> list[ChannelRecord]:
    """The channels of the new checkpoint; ``base`` is the parent that unchanged channels and patches refer to."""
    if isinstance(save.content, FullState):
        channels = []
        for name, each in save.content.channels.items():
            if each.value is not None:
                channels.append(ChannelRecord(name, each.version, each.value.encoding, cut[name]))
                continue
            held = _held(base, name)
            if base is None or held is None or held.version != each.version:
                raise ChannelUnchangedUnknown(name)
            channels.append(msgspec.structs.replace(held, body=_adopt(held.body, base.ids, cutter)))
        return channels
    return await _apply(transaction, scope, sealer, save.content, cutter, base, save.thread_id)


def _held(base: OpenedCheckpoint | None, name: str) -> ChannelRecord | None:
    channels = base.manifest.channels if base else []
    return next((each for each in channels if each.name == name), None)


def _adopt(body: Body, ids: Sequence[bytes], cutter: Cutter) -> Body:
    """A body of another record, renumbered for this one; its pieces are alive as long as that record is."""
    if isinstance(body, bytes):
        return body
    prefix, leaves, closed = body
    return (
        prefix,
        [leaf if isinstance(leaf, bytes) else cutter.listed.number(ids[leaf]) for leaf in leaves],
        closed,
    )


async def _apply(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    patch: Patch,
    cutter: Cutter,
    base: OpenedCheckpoint | None,
    thread_id: str,
) -> list[ChannelRecord]:
    held = {each.name: each for each in (base.manifest.channels if base else [])}
    ids = base.ids if base else []
    for position, name in enumerate(patch.remove):
        if name not in held:
            raise InvalidState(f"there is no channel {name!r} to remove", f"/changes/remove/{position}")
    tails: list[bytes] = []
    for name in patch.append:
        if name in held and not isinstance(held[name].body, bytes):
            prefix, leaves, closed = held[name].body  # type: ignore[misc]
            tails.extend(piece_ids_of((prefix, leaves[closed:], 0), ids))
    reader = PieceReader(sealer)
    await _read_chunks(transaction, scope, reader, thread_id, tails)
    channels: dict[str, ChannelRecord] = {}
    for name, each in held.items():
        if name not in patch.remove and name not in patch.set and name not in patch.append:
            channels[name] = msgspec.structs.replace(each, body=_adopt(each.body, ids, cutter))
    for name, value in patch.set.items():
        channels[name] = ChannelRecord(name, None, value.encoding, cutter.cut(value))
    for name, elements in patch.append.items():
        body = _appended(name, held.get(name), ids, elements, cutter, reader)
        channels[name] = ChannelRecord(name, None, "msgpack", body)
    order = [*held, *(name for name in channels if name not in held)]
    return [channels[name] for name in order if name in channels]


def _appended(
    name: str,
    held: ChannelRecord | None,
    ids: Sequence[bytes],
    elements: Sequence[bytes],
    cutter: Cutter,
    reader: PieceReader,
) -> Body:
    added = b"".join(elements)
    if held is None:
        return cutter.cut(Value("msgpack", list_header(len(elements)) + added))
    if held.encoding == "msgpack" and isinstance(held.body, bytes):
        bounds = list_bounds(held.body)
        if bounds is not None:
            count = len(bounds) - 1 + len(elements)
            return cutter.cut(Value("msgpack", list_header(count) + held.body[bounds[0] :] + added))
    if held.encoding == "msgpack" and not isinstance(held.body, bytes) and held.body[0]:
        prefix, leaves, closed = held.body
        tail = join((b"", leaves[closed:], 0), ids, reader.look_up)
        return cutter.append(
            list_header(list_count(prefix) + len(elements)),
            piece_ids_of((b"", leaves[:closed], 0), ids),
            tail + added,
        )
    raise InvalidState(f"channel {name!r} is not a list", f"/changes/append/{name}")


async def _one(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
) -> OpenedCheckpoint | None:
    row = await transaction.fetchrow(
        sql.ONE, scope.tenant_id, scope.subject_id, thread_id, namespace, checkpoint_id
    )
    return None if row is None else open_checkpoint(sealer, row)


async def _claim(transaction: Transaction, scope: Scope, sealer: Sealer, save: Save, now: datetime) -> Saved | None:
    """Take an Idempotency-Key, or replay what was answered under it. Waits for a request that is under way."""
    idempotency = save.idempotency
    if idempotency is None:
        return None
    claim = (scope.tenant_id, scope.subject_id, idempotency.idempotency_key)
    if await transaction.fetchval(sql.CLAIM_IDEMPOTENCY, *claim, idempotency.request_digest, now):
        return None
    row = await transaction.fetchrow(sql.READ_IDEMPOTENCY, *claim)
    if row is None or row["receipt"] is None:
        raise LostRaceError
    if row["request_digest"] != idempotency.request_digest:
        raise IdempotencyKeyReused
    try:
        receipt = sealer.open(
            Kind.IDEMPOTENCY, (idempotency.idempotency_key, row["request_digest"]), row["receipt"]
        )
    except OpenError:
        raise IntegrityFailure from None
    return dataclasses.replace(msgspec.msgpack.decode(receipt, type=Saved), created=False)


async def _settle(transaction: Transaction, scope: Scope, sealer: Sealer, save: Save, saved: Saved) -> None:
    if save.idempotency is None:
        return
    location = (save.idempotency.idempotency_key, save.idempotency.request_digest)
    receipt = sealer.seal(Kind.IDEMPOTENCY, location, msgspec.msgpack.encode(saved))
    await transaction.execute(
        sql.SETTLE_IDEMPOTENCY,
        scope.tenant_id,
        scope.subject_id,
        save.idempotency.idempotency_key,
        receipt,
    )


async def _read_chunks(
    transaction: Transaction, scope: Scope, reader: PieceReader, thread_id: str, ids: Iterable[bytes]
) -> None:
    """Read pieces, and whatever index pieces among them name, until nothing is missing that exists."""
    wanted = reader.missing(ids)
    while wanted:
        rows = await transaction.fetch(sql.CHUNKS, scope.tenant_id, scope.subject_id, thread_id, wanted)
        found = [(row["piece_id"], row["children"], row["envelope"]) for row in rows]
        if len(found) != len(wanted):
            raise IntegrityFailure("a stored piece is missing")
        wanted = reader.add(found)


def _open_write_arrays(sealer: Sealer, row: Any) -> list[OpenedWrite]:
    """Pending writes that came as parallel arrays in the row of a load."""
    names = [*WriteColumns.__struct_fields__, "value"]
    arrays = [row[f"w_{name}"] for name in names]
    if arrays[0] is None:
        return []
    return [open_write(sealer, dict(zip(names, values, strict=True))) for values in zip(*arrays, strict=True)]


def _ids_of(records: Iterable[OpenedCheckpoint | OpenedWrite]) -> list[bytes]:
    return [piece_id for each in records for piece_id in each.ids]


def _contains(found: Any, wanted: Any) -> bool:
    """Whether ``found`` has everything ``wanted`` has; objects recursively, everything else by equality."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            name in found and _contains(found[name], value) for name, value in wanted.items()
        )
    return bool(found == wanted)


async def _scan(
    transaction: Transaction, scope: Scope, sealer: Sealer, query: HistoryQuery
) -> tuple[list[OpenedCheckpoint], tuple[str, ...] | None]:
    """The rows of a page, and where the next one begins."""
    matches: list[OpenedCheckpoint] = []
    after = query.after
    looked_at = 0
    while True:
        size = min(_SCAN_ROWS, query.limit if not query.metadata else _SCAN_ROWS)
        rows = await transaction.fetch(
            sql.HISTORY,
            scope.tenant_id,
            scope.subject_id,
            query.thread_id,
            query.namespace,
            query.before,
            query.status,
            query.step,
            query.run_id,
            query.source,
            query.agent,
            query.since,
            query.until,
            *(after or (None, None, None)),
            size,
        )
        for row in rows:
            after = (row["checkpoint_id"], row["thread_id"], row["namespace"])
            opened = open_checkpoint(sealer, row)
            if _contains(opened.manifest.metadata, query.metadata):
                matches.append(opened)
                if len(matches) == query.limit:
                    return matches, after
        looked_at += len(rows)
        if len(rows) < size:
            return matches, None
        if looked_at >= HISTORY_SCAN_ROWS_MAX:
            return matches, after


async def _with_state(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    matches: list[OpenedCheckpoint],
    after: tuple[str, ...] | None,
) -> Page[Checkpoint]:
    """Read writes and pieces for a page, a few checkpoints at a time, until the byte budget is spent."""
    page: list[Checkpoint] = []
    readers: dict[str, PieceReader] = {}
    spent = 0
    for start in range(0, len(matches), _STATE_ROWS):
        for place, group in _by_place(matches[start : start + _STATE_ROWS]):
            thread_id, namespace = place
            rows = await transaction.fetch(
                sql.WRITES_OF,
                scope.tenant_id,
                scope.subject_id,
                thread_id,
                namespace,
                [each.columns.checkpoint_id for each in group],
                None,
                None,
            )
            writes: dict[str, list[OpenedWrite]] = {}
            for row in rows:
                writes.setdefault(row["checkpoint_id"], []).append(open_write(sealer, row))
            reader = readers.setdefault(thread_id, PieceReader(sealer))
            ids = _ids_of(group) + _ids_of(each for some in writes.values() for each in some)
            await _read_chunks(transaction, scope, reader, thread_id, ids)
            for opened in group:
                own = [each.value(reader.look_up) for each in writes.get(opened.columns.checkpoint_id, ())]
                checkpoint = opened.value(reader.look_up, own)
                page.append(checkpoint)
                spent += sum(len(each.value.data) for each in (checkpoint.channels or {}).values())
                spent += sum(len(each.value.data) for each in own)
                last = (opened.columns.checkpoint_id, thread_id, namespace)
                if spent >= HISTORY_BYTES_MAX and len(page) < len(matches):
                    return Page(page, last)
    return Page(page, after)


def _by_place(
    rows: Sequence[OpenedCheckpoint],
) -> list[tuple[tuple[str, str], list[OpenedCheckpoint]]]:
    """Neighbouring checkpoints of the same thread and namespace, in order."""
    groups: list[tuple[tuple[str, str], list[OpenedCheckpoint]]] = []
    for each in rows:
        place = (each.columns.thread_id, each.columns.namespace)
        if groups and groups[-1][0] == place:
            groups[-1][1].append(each)
        else:
            groups.append((place, [each]))
    return groups


async def _channel_history(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    channels: Sequence[str],
) -> dict[str, ChannelHistory]:
    place = (scope.tenant_id, scope.subject_id, thread_id, namespace)
    if checkpoint_id is None:
        head = await transaction.fetchrow(sql.HEAD, *place)
        if head is None:
            raise CheckpointNotFound
        checkpoint_id = head["head_id"]
    target = await _one(transaction, scope, sealer, thread_id, namespace, checkpoint_id)
    if target is None:
        raise CheckpointNotFound
    lines, seeds = await _walk(transaction, sealer, place, target.columns.parent_id, channels)
    ancestors = max((len(line) for line in lines.values()), default=0)
    longest = next((line for line in lines.values() if len(line) == ancestors), [])
    rows = await transaction.fetch(sql.WRITES_OF, *place, longest, list(channels), None)
    opened = [open_write(sealer, row) for row in rows]
    reader = PieceReader(sealer)
    await _read_chunks(transaction, scope, reader, thread_id, _ids_of([*opened, *seeds.values()]))
    result: dict[str, ChannelHistory] = {}
    for name in channels:
        depth = {each: at for at, each in enumerate(lines[name])}
        own = [each for each in opened if each.columns.channel == name and each.columns.checkpoint_id in depth]
        own.sort(key=lambda each: -depth[each.columns.checkpoint_id])  # stable: order inside a checkpoint stays
        seed = seeds[name].channel(name, reader.look_up) if name in seeds else None
        result[name] = ChannelHistory(writes=[each.value(reader.look_up) for each in own], seed=seed)
    return result


async def _walk(
    transaction: Transaction,
    sealer: Sealer,
    place: tuple[Any, ...],
    parent_id: str | None,
    channels: Sequence[str],
) -> tuple[dict[str, list[str]], dict[str, OpenedCheckpoint]]:
    """For each channel its ancestors, nearest first, up to and with the one that holds a value, if any."""
    lines: dict[str, list[str]] = {name: [] for name in channels}
    seeds: dict[str, OpenedCheckpoint] = {}
    seen: set[str] = set()
    while parent_id is not None and parent_id not in seen and len(seeds) < len(lines):
        rows = await transaction.fetch(sql.ANCESTORS, *place, parent_id, _ANCESTORS_ROWS)
        if not rows:
            break
        for row in rows:
            ancestor = open_checkpoint(sealer, row)
            if ancestor.columns.checkpoint_id in seen:
                return lines, seeds
            seen.add(ancestor.columns.checkpoint_id)
            held = {each.name for each in ancestor.manifest.channels}
            for name in channels:
                if name not in seeds:
                    lines[name].append(ancestor.columns.checkpoint_id)
                    if name in held:
                        seeds[name] = ancestor
            parent_id = ancestor.columns.parent_id
    return lines, seeds
