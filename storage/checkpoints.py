"""Save, load, history and pending writes: the verbs on checkpoints.

A save is one transaction: lock the thread and read what it stands on, seal what is new, write, commit. Nothing is
acknowledged before the commit; a lost race starts over on a fresh snapshot. Reads are one statement, or one snapshot,
and write nothing. Values are bytes to this module; only lists are cut, none are instantiated.

It promises neither that a caller may do this (the gateway's guards) nor that state is still meaningful to a newer
agent (state migrations).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from crypto import Sealer
from storage import reading
from storage.access import Access
from storage.completeness import (
    Listing,
    admit,
    begin_listing,
    check_absent,
    check_count,
    check_token,
    end_listing,
    leaves_nothing_out,
)
from storage.errors import CheckpointNotFound, IntegrityFailure, InvalidState, RollbackDetected, ThreadArchived
from storage.format.chain import HeadSeal
from storage.format.manifest import FORMAT, WriteColumns, WriteRecord
from storage.format.pieces import Cutter, Piece
from storage.format.record import (
    OpenedCheckpoint,
    PieceReader,
    clear_checkpoint,
    new_thread,
    open_checkpoint,
    open_head,
    open_thread,
    open_write,
    seal_piece,
    seal_thread,
    seal_write,
)
from storage.format.token import ThreadToken
from storage.model import (
    ChannelHistory,
    Checkpoint,
    HistoryQuery,
    ListedCheckpoint,
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
from storage.postgres.unit_of_work import Transaction
from storage.reading import ThreadSealers, ids_of, open_write_arrays, read_chunks, scan, with_state
from storage.saving import save_once
from storage.scope import ClientShare, Scope, TenantListing, check_id


class Checkpoints:
    """The verbs on checkpoints and their pending writes."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def save(self, scope: Scope, save: Save, share: ClientShare | None = None) -> Saved:
        """Save a checkpoint; when this returns, it is durable. A thread that is made with a ``share`` keeps needing it.

        Raises:
            ClientShareRequired: the thread was made under a share (and so for every verb that takes one).
            ClientShareWrong: the thread was made under another share.
            ClientShareUnexpected: the thread was made without one.
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

        async def attempt(sealer: Sealer) -> Saved:
            saved = await save_once(self._access, scope, sealer, save)
            if saved.token:
                self._access.head_anchors.note(scope, sealer, saved.thread_id, ThreadToken.parse(saved.token))
            return saved

        return await self._access.writing(scope, attempt, share)

    async def load(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        *,
        with_state: bool,
        known_token: str | None = None,
        share: ClientShare | None = None,
    ) -> Loaded:
        """Load a checkpoint with its pending writes; ``checkpoint_id`` None: the namespace's head.

        Args:
            scope: whose.
            thread_id: the thread.
            namespace: the namespace.
            checkpoint_id: the checkpoint, or None.
            with_state: whether to read values and pending writes.
            known_token: what the caller has seen of the thread before.
            share: the client's share of the thread's keys.

        Raises:
            CheckpointNotFound: there is none.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
            RollbackDetected: the thread is older than ``known_token``, or another one.
            IntegrityFailure: it does not authenticate, or something is missing that should be there.
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
                if row is not None:
                    self._access.check_key(scope, row["key_state"])
                if known_token is not None:
                    await check_token(transaction, scope, sealer, thread_id, known_token)
                if row is None:
                    await check_absent(transaction, scope, sealer, thread_id, namespace)
                    raise CheckpointNotFound
                head_id = row["at_head_id"]
                head = _own_head(sealer, thread_id, namespace, row)
                if row["checkpoint_id"] is None:
                    if checkpoint_id is None or checkpoint_id == head_id:
                        raise IntegrityFailure("the head's checkpoint is missing")
                    await check_count(transaction, scope, thread_id, namespace, head)
                    raise CheckpointNotFound
                if row["checkpoint_id"].encode() > head_id.encode():
                    raise IntegrityFailure("the checkpoint is newer than the head")
                opened = open_checkpoint(sealer, row)
                macs = sealer.without_share
                token = ThreadToken.of(macs, namespace, head_id, head).encode(macs, thread_id)
                if not with_state:
                    return Loaded(checkpoint=opened.value(None, None), head_id=head_id, token=token)
                reader = PieceReader(sealer)
                pieces = zip(row["p_piece_id"] or (), row["p_children"] or (), row["p_envelope"] or (), strict=True)
                wanted = reader.add(pieces)
                await read_chunks(transaction, scope, reader, thread_id, wanted)
            writes = [each.value(reader.look_up) for each in open_write_arrays(sealer, row)]
            return Loaded(checkpoint=opened.value(reader.look_up, writes), head_id=head_id, token=token)

        return await self._access.reading(scope, with_sealer, _without_keys(known_token), share)

    async def history(self, scope: Scope, query: HistoryQuery, share: ClientShare | None = None) -> Page[Checkpoint]:
        """Checkpoints, newest first: one page.

        Over all threads, ``share`` opens those that were made under it; of those under another one, or under one when
        none was sent, only the clear columns come (``withheld``), and no metadata of theirs ever matches.

        A page may be shorter than the limit (opened bytes, rows looked at) and still have a successor. Whoever reads
        all pages of a thread, or of a namespace of it, without a filter, knows at the end that nothing was missing.

        Raises:
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`, where one thread is asked for.
            RollbackDetected: the thread is older than ``query.known_token``, or another one.
            IntegrityFailure: a row does not authenticate, or a whole listing is not what the seals say.
        """

        async def with_sealer(sealer: Sealer) -> Page[Checkpoint]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                if query.known_token is not None and query.thread_id is not None:
                    await check_token(transaction, scope, sealer, query.thread_id, query.known_token)
                if query.thread_id is not None:
                    await admit(transaction, scope, sealer, query.thread_id)
                sealers = ThreadSealers(transaction, scope, sealer, query.thread_id)
                matches, after = await scan(transaction, scope, sealers, query)
                page = Page([each.value(None, None) for each in matches], after)
                if query.with_state:
                    page = await with_state(transaction, scope, sealers, matches, after)
                opened = [each for each in matches if isinstance(each, OpenedCheckpoint)]
                return await _compared(transaction, scope, sealer, query, page, opened)

        try:
            return await self._access.reading(scope, with_sealer, _without_keys(query.known_token), share)
        except CheckpointNotFound:
            return Page([], None)

    async def tenant_listing(self, scope: TenantListing, query: HistoryQuery) -> Page[ListedCheckpoint]:
        """Checkpoints of all subjects of a tenant, newest first, by clear columns only: one page. Opens nothing.

        Raises:
            InvalidState: the query asks for state or metadata, or for one thread.
        """
        if query.with_state or query.metadata or query.thread_id is not None:
            raise InvalidState("a listing of a whole tenant has neither state nor metadata")
        troubled = query.status in {"failed", "waiting"}
        after = query.after
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(
                sql.TENANT_LISTING_TROUBLED if troubled else sql.TENANT_LISTING,
                scope.tenant_id,
                query.namespace,
                query.before,
                query.status,
                query.step,
                query.run_id,
                query.source,
                query.agent,
                query.since,
                query.until,
                datetime.fromisoformat(after[0]) if after else None,
                *(after[1:] if after else (None,) * 4),
                query.limit,
            )
        listed = [ListedCheckpoint(subject_id=row["subject_id"], checkpoint=clear_checkpoint(row)) for row in rows]
        if len(rows) < query.limit:
            return Page(listed, None)
        last = rows[-1]
        place = (last["subject_id"], last["thread_id"], last["namespace"], last["checkpoint_id"])
        return Page(listed, (last["created_at"].isoformat(), *place))

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
        share: ClientShare | None = None,
    ) -> WritesReceipt:
        """Store a task's writes against a checkpoint that may not exist yet.

        A write at ``idx`` >= 0 is kept as first written, one below is replaced. ``status`` is what the task's
        outcome makes of the checkpoint.

        Raises:
            InvalidState: an id cannot be stored, or an ``idx`` occurs twice.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
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
                    seal_thread(sealer, thread_id, now, new_thread(sealer, thread_id)),
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
                    sealer.shared,
                )
                self._access.check_key(scope, row["key_state"])
                open_thread(sealer, thread_id, row["thread_created_at"], row["thread_seal"])
                if row["tier"] != "hot":
                    raise ThreadArchived
                if status is not None:
                    await transaction.execute(
                        sql.OUTCOME, scope.tenant_id, scope.subject_id, thread_id, namespace, checkpoint_id, status
                    )
            return WritesReceipt(stored=row["stored"], unchanged=len(writes) - row["stored"])

        return await self._access.writing(scope, attempt, share)

    async def task_writes(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        share: ClientShare | None = None,
    ) -> list[PendingWrite]:
        """What one task wrote against a checkpoint; empty if nothing."""

        async def with_sealer(sealer: Sealer) -> list[PendingWrite]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                await admit(transaction, scope, sealer, thread_id)
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
            return await self._access.reading(scope, with_sealer, CheckpointNotFound(), share)
        except CheckpointNotFound:
            return []

    async def channel_history(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        channels: Sequence[str],
        *,
        known_token: str | None = None,
        share: ClientShare | None = None,
    ) -> dict[str, ChannelHistory]:
        """For each channel: its value at the nearest ancestor that holds one, and the writes since, oldest first.

        The target's own value and writes are left out; those of the ancestor that holds the value are included.
        This is how LangGraph rebuilds a DeltaChannel.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
        """

        async def with_sealer(sealer: Sealer) -> dict[str, ChannelHistory]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_key_in(transaction, scope, sealer)
                return await reading.channel_history(
                    transaction, scope, sealer, thread_id, namespace, checkpoint_id, channels, known_token
                )

        return await self._access.reading(scope, with_sealer, _without_keys(known_token), share)


def _without_keys(known_token: str | None) -> CheckpointNotFound | RollbackDetected:
    """What it means that a subject has no keys: no data yet, unless the caller has seen some."""
    return CheckpointNotFound() if known_token is None else RollbackDetected()


def _own_head(sealer: Sealer, thread_id: str, namespace: str, row: Any) -> HeadSeal:
    """The head that came with a load, which must belong to the thread's life of now."""
    if row["at_thread_seal"] is None:
        raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
    thread = open_thread(sealer, thread_id, row["at_thread_created_at"], row["at_thread_seal"])
    head = open_head(sealer, thread_id, namespace, row["at_head_id"], row["at_sequence"], row["at_head_seal"])
    if head.incarnation != thread.incarnation:
        raise IntegrityFailure("the head belongs to another life of this thread")
    return head


async def _compared(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    query: HistoryQuery,
    page: Page[Checkpoint],
    matches: Sequence[OpenedCheckpoint],
) -> Page[Checkpoint]:
    """A page of a listing, compared with the seals as far as it goes."""
    if not leaves_nothing_out(query):
        return page
    if query.after is None:
        first = matches[0] if matches else None
        listing: Listing | None = await begin_listing(transaction, scope, sealer, query, first)
    else:
        listing = Listing.resume(query.after)
    if listing is None:
        return page
    listing = listing.take(matches[: len(page.items)])
    if page.after is not None:
        return Page(page.items, (*page.after, *listing.cursor()))
    await end_listing(transaction, scope, sealer, query, listing)
    return page
