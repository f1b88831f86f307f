"""One save: lock and verify what it stands on, compose the new checkpoint, seal what is new, write it.

`save_once` is one transaction. It relies on `storage.postgres.checkpoints` for what each statement may believe of the
other's; every condition that fails there starts the whole save over on a fresh snapshot. What this process remembers of
the thread (`storage.access.standings`) spares it the reading; it holds no other state between saves.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Never, TypeVar

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import admit, check_acknowledged, check_count, check_token
from storage.access.idempotency import claim, settle
from storage.access.offload import Uploads, artifacts_in, pack_artifacts
from storage.access.standings import Standing, reachable
from storage.access.strictness import AgentUnsure, Strictness, checking, precondition_required
from storage.checkpoints.piece_rows import sealed_pieces
from storage.checkpoints.reading import one, read_chunks
from storage.checkpoints.repeats import CutOtherwiseError, Repeat, same_but_for_pieces
from storage.concurrency.computing import compute
from storage.errors import (
    ChannelUnchangedUnknown,
    CheckpointExists,
    HeadExists,
    HeadMoved,
    IntegrityFailure,
    InvalidState,
    LostRaceError,
    ParentUnknown,
    PieceUnknown,
    PreconditionRequired,
    StateSchemaMismatch,
    StorageError,
    ThreadArchived,
)
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.ids import mint_checkpoint_id
from storage.format.leaves import Pointer, escaped, find_pointer, may_name, may_point
from storage.format.manifest import FORMAT, ChannelRecord, CheckpointColumns, Manifest
from storage.format.pieces import (
    LEAF,
    Body,
    Cutter,
    Opened,
    is_long_to_cut,
    list_bounds,
    list_count,
    list_header,
    look_up_own,
    tail_ids,
)
from storage.format.record import (
    OpenedCheckpoint,
    PieceReader,
    new_thread,
    open_checkpoint,
    open_head,
    open_thread,
    seal_checkpoint,
    seal_head,
    seal_thread,
)
from storage.format.token import ThreadToken
from storage.ledger.ledger import pack_named_ids, unpack_named_ids
from storage.model import ChannelValue, FullState, Patch, Save, Saved, Value
from storage.postgres import checkpoints as sql
from storage.postgres import threads as threads_sql
from storage.postgres.unit_of_work import Transaction
from storage.schemas.tags import Tagging, tagging_of
from storage.schemas.versions import OtherVersionError, is_control
from storage.scope import Scope

T = TypeVar("T")


def _at_version(save: Save, base: OpenedCheckpoint | None) -> Save:
    """The save, if its version is its parent's where it has to be.

    Raises:
        ChannelUnchangedUnknown: an unchanged or appended channel is at another version, or its parent at none.
        OtherVersionError: a patch is, or its parent; or it names none, and so has not been checked by its parent's.
    """
    if base is None:
        return save
    at = (base.columns.state_schema, base.columns.state_version)
    if isinstance(save.content, Patch):
        if (save.state_schema, save.state_version) != at:
            raise OtherVersionError(base.columns.checkpoint_id, *at)
    elif save.state_schema is not None and (save.state_schema, save.state_version) != at:
        for name, each in save.content.channels.items():
            if each.value is None or each.append_to is not None:
                raise ChannelUnchangedUnknown(name)
    return save


async def save_once(access: Access, scope: Scope, sealer: Sealer, save: Save, uploads: Uploads) -> Saved:
    """One attempt at a save, in a transaction of its own. ``uploads``: what is in the object store for it.

    Raises:
        UploadNeeded: upload these pieces, then run it again.
        LostRaceError: run it again.
        StorageError: as `Checkpoints.save`.
    """
    try:
        return await _save_in_turn(access, scope, sealer, save, await _draft(access, scope, sealer, save), uploads)
    except CutOtherwiseError as other:  # nothing is fetched under a lock
        same = await other.repeat.compare(scope, sealer, access.offload)
    return await _save_in_turn(access, scope, sealer, save, await _draft(access, scope, sealer, save), uploads, same)


async def _save_in_turn(
    access: Access,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    draft: "_Draft",
    uploads: Uploads,
    same: bytes | None = None,
) -> Saved:
    async with access.standings.turn(scope, save.thread_id):
        known = access.standings.take(scope, sealer, save.thread_id, save.namespace)
        if known is not None and access.row_quotas.has_room(scope) and _goes_on(access, save, known, draft):
            return await _save_on(access, scope, sealer, save, known, draft)
        reading = partial(_save_reading, access, scope, sealer, save, draft, uploads, same)
        try:
            saved = await checking(access.control, reading)
        except AgentUnsure:
            saved = await checking(access.control, partial(reading, lock_first=True))
    if saved.token:
        access.acknowledge(scope, sealer, save.thread_id, ThreadToken.parse(saved.token))
    return saved


class _Draft(msgspec.Struct, frozen=True):
    """What a save makes of its values before it knows what it stands on.

    Attributes:
        now: When.
        cutter: Has the pieces.
        cut: The channels that came with a whole value.
        named: The artifacts that values name, by channel.
        tagging: What the checkpoint is found by, if its schema declares anything.
    """

    now: datetime
    cutter: Cutter
    cut: dict[str, Body]
    named: dict[str, list[Pointer]]
    tagging: Tagging | None

    @classmethod
    def of(cls, access: Access, sealer: Sealer, save: Save) -> "_Draft":
        now = access.clock.now()
        cutter = Cutter(sealer, offload_bytes_min=access.offload.bytes_min)
        given = save.content.channels if isinstance(save.content, FullState) else {}
        named = _named(save.content)
        cut = {
            name: _cut(cutter, save.content, name, each.value)
            for name, each in given.items()
            if each.value is not None and each.append_to is None
        }
        return cls(now, cutter, cut, named, tagging_of(sealer, save))


def _cut(cutter: Cutter, content: FullState | Patch, name: str, value: Value) -> Body:
    """Cut a channel's value; a fault of its placeholders is said where the client named them."""
    try:
        return cutter.cut(value)
    except InvalidState as error:
        plain = isinstance(content, FullState) and content.root == "/state"
        where = f"/state_holes/{escaped(name)}" if plain else f"/channels/{escaped(name)}{error.pointer}"
        raise InvalidState(str(error), where) from None


async def _draft(access: Access, scope: Scope, sealer: Sealer, save: Save) -> _Draft:
    return await _cutting(scope, save.content, lambda: _Draft.of(access, sealer, save))


async def _cutting(scope: Scope, content: FullState | Patch, work: Callable[[], T]) -> T:
    """Do ``work``, which cuts ``content``: beside the event loop, if that is long."""
    return await compute(scope.tenant_id, work) if is_long_to_cut(_data_of(content)) else work()


def _data_of(content: FullState | Patch) -> Iterator[bytes]:
    if isinstance(content, FullState):
        yield from (each.value.data for each in content.channels.values() if each.value is not None)
        return
    yield from (value.data for value in content.set.values())
    for elements in content.append.values():
        yield list_header(len(elements))
        yield from elements


async def _save_reading(
    access: Access,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    draft: _Draft,
    uploads: Uploads,
    same: bytes | None,
    *,
    lock_first: bool = False,
) -> Saved:
    """A save that reads what it stands on, under the thread's lock.

    Args:
        access: The way to the rows.
        scope: Whose.
        sealer: Of the scope.
        save: What to save.
        draft: What it makes of its values.
        uploads: What is in the object store for it.
        same: As `_saved_before`.
        lock_first: Whether the lock is waited for in a statement of its own, so that nothing is `AgentUnsure`.
    """
    now, cutter, cut, named = draft.now, draft.cutter, draft.cut, draft.named
    acknowledged = access.standings.acknowledged(scope, save.thread_id, save.namespace)
    full = save.content if isinstance(save.content, FullState) else None
    needs_parent = full is None or len(cut) < len(full.channels) or save.step is None
    async with access.unit_of_work.begin(scope) as transaction:
        if save.idempotency is not None:
            replayed = await claim(transaction, scope, sealer, save.idempotency, now, Saved)
            if replayed is not None:
                await admit(transaction, scope, sealer, save.thread_id)
                return dataclasses.replace(replayed, created=False)
        own_seal = seal_thread(sealer, save.thread_id, now, new_thread(sealer, save.thread_id))
        row = await _open(
            access, transaction, scope, sealer, save, draft, own_seal, needs_parent, lock_first=lock_first
        )
        if save.known_token is not None:
            await check_token(transaction, scope, sealer, save.thread_id, save.known_token)
        strictness = Strictness.read(access.control, scope.tenant_id, row)
        standing = _Standing.open(sealer, save, row, own_seal, strictness)
        await check_acknowledged(
            transaction, scope, sealer, save.thread_id, acknowledged, standing.head_id, standing.head
        )
        base = None if row["checkpoint_id"] is None else open_checkpoint(sealer, row)
        if row["stored_before"]:
            saved = await _saved_before(access, transaction, scope, sealer, save, standing, cut, cutter, named, same)
            await _settle(transaction, scope, sealer, save, saved)
            return saved
        if not save.makes_room:
            access.row_quotas.require_room(scope)
        standing.check(save, row["strict"])
        await _check_early(transaction, scope, save, row)
        if not cutter.referenced.keys() <= {*(row["present_ids"] or ())}:
            raise PieceUnknown
        parent_id = standing.head_id if save.parent is None else save.parent.checkpoint_id
        if base is None and parent_id is not None and (needs_parent or parent_id != standing.head_id):
            # It may be newer than the snapshot of the statement that waited for the lock.
            parent = await one(transaction, scope, sealer, save.thread_id, save.namespace, parent_id)
            if parent is None:
                await _refuse_parent(transaction, scope, save, standing, parent_id)
            base = parent if needs_parent else None
        save = _at_version(save, base)
        reader = PieceReader(sealer, refs=True)
        channels = await _compose(transaction, scope, reader, save, cut, cutter, base, named, base)
        await access.offload.name_artifacts(
            transaction, scope, save.thread_id, [each for some in named.values() for each in some]
        )
        columns = _columns(
            save,
            channels,
            checkpoint_id=save.checkpoint_id or mint_checkpoint_id(now, standing.head_id),
            parent_id=parent_id,
            step=save.step if save.step is not None else (base.columns.step + 1 if base else 0),
            created_at=now,
            piece_ids=cutter.listed.pack(),
        )
        saved, left = await _write(
            access,
            transaction,
            scope,
            sealer,
            save,
            standing,
            columns,
            channels,
            cutter,
            reader,
            row,
            uploads,
            draft.tagging,
        )
        await _settle(transaction, scope, sealer, save, saved)
    if left is not None:
        access.standings.remember(scope, sealer, left)
    return saved


async def _open(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    draft: _Draft,
    own_seal: bytes,
    needs_parent: bool,
    *,
    lock_first: bool,
) -> Any:
    """What a save stands on, under the thread's lock.

    Raises:
        KeyDestroyed: the subject's keys are gone.
        ThreadArchived: it is to be restored first.
    """
    if lock_first:
        await transaction.fetchrow(threads_sql.LOCK, scope.tenant_id, scope.subject_id, save.thread_id)
    row = await transaction.fetchrow(
        sql.OPEN,
        scope.tenant_id,
        scope.subject_id,
        save.thread_id,
        save.agent,
        save.status if save.namespace == "" else None,
        draft.now,
        own_seal,
        sealer.active_key_version,
        save.namespace,
        save.checkpoint_id,
        [*draft.cutter.pieces, *draft.cutter.referenced],
        needs_parent,
        save.parent is None,
        save.parent.checkpoint_id if save.parent else None,
        sealer.shared,
        None if draft.tagging is None else draft.tagging.keys,
    )
    access.check_keys(scope, sealer, row["keys_hash"])
    if row["tier"] != "hot":
        raise ThreadArchived(save.thread_id)
    return row


async def _refuse_parent(
    transaction: Transaction, scope: Scope, save: Save, standing: "_Standing", parent_id: str
) -> Never:
    """Say why a parent is not there.

    Raises:
        ParentUnknown: it was removed, or never was.
        IntegrityFailure: it must be there: it is the head, or fewer checkpoints are there than the seals say.
    """
    if parent_id == standing.head_id:
        raise IntegrityFailure("the head's checkpoint is missing")
    if standing.head is not None:
        await check_count(transaction, scope, save.thread_id, save.namespace, standing.head)
    raise ParentUnknown


def _appended_to(content: FullState, base: OpenedCheckpoint | None) -> list[bytes] | None:
    """The pieces that appending looks at: the open tails of the parent's lists. None: it has not all of these lists."""
    ids = base.ids if base else []
    tails: list[bytes] = []
    for name, each in content.channels.items():
        if each.append_to is not None:
            held = _held(base, name)
            if held is None or held.version != each.append_to:
                return None
            tails += tail_ids(held.body, ids)
    return tails


def _is_blind(save: Save) -> bool:
    """Whether a save does not say which head it follows."""
    believed = save.precondition
    return (believed is None or believed.exists) and save.parent is None


def _goes_on(access: Access, save: Save, known: Standing, draft: _Draft) -> bool:
    """Whether a save adds to a head that is remembered, and needs nothing else from the database."""
    return (
        isinstance(save.content, FullState)
        and save.idempotency is None
        and (save.known_token is None or save.known_token == known.token)
        and (save.parent is None or save.parent.checkpoint_id == known.head_id)
        and (save.checkpoint_id is None or save.checkpoint_id.encode() > known.head_id.encode())
        and not draft.named
        and draft.tagging is None
        and (tails := _appended_to(save.content, known.base)) is not None
        and known.tails.keys() >= {*tails}
        and known.covers(draft.cutter, access.offload.is_large)
    )


async def _save_on(access: Access, scope: Scope, sealer: Sealer, save: Save, known: Standing, draft: _Draft) -> Saved:
    """A save on top of a head that is remembered: nothing is read.

    Raises:
        LostRaceError: begin by reading; what is remembered is another state, or the save would be refused on it.
    """
    standing = _Standing(known.thread, known.head_id, known.head, known.strictness)
    cutter = draft.cutter
    assert isinstance(save.content, FullState)  # noqa: S101  for the type checker: the caller looked
    try:
        standing.check(save, known.strict)
        _at_version(save, known.base)
        content, look_up = save.content, look_up_own(known.tails)
        channels = await _cutting(
            scope, content, lambda: _composed(content, draft.cut, cutter, known.base, known.base, {}, look_up)
        )
    except StorageError:
        raise LostRaceError from None
    if cutter.referenced.keys() - known.pieces.keys():
        raise LostRaceError
    base = known.base.columns
    columns = _columns(
        save,
        channels,
        checkpoint_id=save.checkpoint_id or mint_checkpoint_id(draft.now, known.head_id),
        parent_id=known.head_id,
        step=base.step + 1 if save.step is None else save.step,
        created_at=draft.now,
        piece_ids=cutter.listed.pack(),
    )
    manifest = _manifest(save, channels)
    sealed = seal_checkpoint(sealer, columns, manifest)
    early = known.early.get(columns.checkpoint_id, NO_WRITES)
    if early.count and save.state_schema is not None and base.state_schema is None:
        raise LostRaceError  # the writes may name no version
    head = standing.with_member(sealed.member, early)
    head_seal = seal_head(sealer, save.thread_id, save.namespace, columns.checkpoint_id, head)
    fresh = [each for each in cutter.pieces.values() if each.piece_id not in known.pieces]
    if any(map(access.offload.is_large, fresh)):  # among what was appended
        raise LostRaceError
    envelopes = await sealed_pieces(sealer, ((each, None) for each in fresh))
    await access.unit_of_work.call(
        sql.SAVE_ON,
        scope,
        save.thread_id,
        sealer.active_key_version,
        [each.piece_id for each in fresh],
        [each.children for each in fresh],
        envelopes,
        *columns.location()[1:-1],
        sealed.envelope,
        columns.checkpoint_id,
        head.sequence,
        head_seal,
        save.status if save.namespace == "" else None,
        known.thread_seal,
        known.strict,
        columns.named_ids,
        known.head_seal,
        early.count,
        known.strictness.compared() if _is_blind(save) else None,
        sealer.keys_hash,
    )
    seen = known.seen.after(sealer.without_share, columns.checkpoint_id, head)
    access.acknowledge(scope, sealer, save.thread_id, seen)
    token = seen.encode(sealer.without_share, save.thread_id)
    left = msgspec.structs.replace(
        known,
        strictness=known.strictness.of_thread(save.agent or known.strictness.agent),
        head_id=columns.checkpoint_id,
        head_seal=head_seal,
        head=head,
        base=OpenedCheckpoint(columns, manifest, sealed.member, None),
        pieces=_left_pieces(cutter, known.pieces),
        tails=_left_tails(channels, cutter, known.tails),
        early={each: known.early[each] for each in known.early if each.encode() > columns.checkpoint_id.encode()},
        seen=seen,
        token=token,
    )
    access.standings.remember(scope, sealer, left)
    return _saved(columns, head, token, head_id=columns.checkpoint_id, created=True)


def _left_pieces(cutter: Cutter, before: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """The pieces that a record just cut consists of, as far as they are known."""
    own = {each.piece_id: each.children for each in cutter.pieces.values()}
    return reachable(cutter.listed.ids, own, before)


def _left_tails(channels: Iterable[ChannelRecord], cutter: Cutter, before: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The pieces of open tails, as far as they are known; a large leaf among them is read when it is needed."""
    left: dict[bytes, bytes] = {}
    for each in channels:
        for piece_id in tail_ids(each.body, cutter.listed.ids):
            piece = cutter.pieces.get(piece_id)
            plaintext = before.get(piece_id) if piece is None else piece.plaintext
            if plaintext is not None and plaintext[0] != LEAF:
                left[piece_id] = plaintext
    return left


async def _write(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    standing: "_Standing",
    columns: CheckpointColumns,
    channels: list[ChannelRecord],
    cutter: Cutter,
    reader: PieceReader,
    row: Any,
    uploads: Uploads,
    tagging: Tagging | None,
) -> tuple[Saved, Standing | None]:
    """Write what was composed; returns the answer, and what is left to stand on, if it is the head."""
    manifest = _manifest(save, channels)
    sealed = seal_checkpoint(sealer, columns, manifest)
    head_id = max(standing.head_id or "", columns.checkpoint_id, key=str.encode)
    head = standing.with_member(
        sealed.member, _early(sealer, columns, row) if head_id == columns.checkpoint_id else None
    )
    head_seal = seal_head(sealer, save.thread_id, save.namespace, head_id, head)
    present = set(row["present_ids"] or ())
    fresh = [piece for piece in cutter.pieces.values() if piece.piece_id not in present]
    blobs = await access.offload.place(transaction, scope, sealer, save.thread_id, fresh, uploads)
    blob_ids = [blobs.get(piece.piece_id) for piece in fresh]
    written = await transaction.fetchrow(
        sql.WRITE if tagging is None else sql.WRITE_TAGGED,
        scope.tenant_id,
        scope.subject_id,
        save.thread_id,
        sealer.active_key_version,
        [piece.piece_id for piece in fresh],
        [piece.children for piece in fresh],
        await sealed_pieces(sealer, zip(fresh, blob_ids, strict=True)),
        columns.namespace,
        columns.checkpoint_id,
        columns.parent_id,
        columns.step,
        columns.status,
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
        head_seal,
        standing.head is not None,
        [None if blob_id is None else blob_id.bytes for blob_id in blob_ids],
        columns.named_ids,
        standing.is_new_thread,
        *(() if tagging is None else (tagging.keys, tagging.tags)),
    )
    access.check_keys(scope, sealer, written["keys_hash"])
    # Written are the checkpoint, and the head on top of the one that was read.
    if written["written"] != 2 or written["early_members"] != row["early_members"]:
        raise LostRaceError
    if written["newest_id"] != standing.head_id:
        raise IntegrityFailure("the newest checkpoint is not the head")
    if written["left_over"]:
        raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
    thread, thread_seal = standing.thread, row["thread_seal"]
    if standing.head is None:
        thread = standing.thread.with_namespace(sealer, save.namespace)
        thread_seal = seal_thread(sealer, save.thread_id, row["thread_created_at"], thread)
        await transaction.execute(sql.SEAL_THREAD, scope.tenant_id, scope.subject_id, save.thread_id, thread_seal)
    seen = ThreadToken.of(sealer.without_share, columns.namespace, head_id, head)
    token = seen.encode(sealer.without_share, columns.thread_id)
    saved = _saved(columns, head, token, head_id=head_id, created=True)
    if head_id != columns.checkpoint_id:
        return saved, None
    left = Standing(
        thread_created_at=row["thread_created_at"],
        thread_seal=thread_seal,
        thread=thread,
        strict=row["strict"],
        strictness=standing.strictness.of_thread(row["thread_agent"]),
        head_id=head_id,
        head_seal=head_seal,
        head=head,
        base=OpenedCheckpoint(columns, manifest, sealed.member, None),
        pieces=_left_pieces(cutter, {}),
        tails=_left_tails(channels, cutter, reader.plaintexts()),
        early={},
        seen=seen,
        token=token,
    )
    return saved, left


async def _saved_before(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    save: Save,
    standing: "_Standing",
    cut: dict[str, Body],
    cutter: Cutter,
    named: Mapping[str, Sequence[Pointer]],
    same: bytes | None,
) -> Saved:
    """Answer a save whose id is stored: the same save again is a no-op, another one a conflict.

    ``same``: the member of the checkpoint whose values were found to be this save's, although they are other pieces.

    Raises:
        CutOtherwiseError: they may be.
    """
    stored = await one(transaction, scope, sealer, save.thread_id, save.namespace, save.checkpoint_id)
    await _check_newest(transaction, scope, save)
    if stored is None or standing.head is None or standing.head_id is None:
        raise LostRaceError
    # An unchanged channel is compared with what was stored; a patch or elements are applied to the same parent again.
    base: OpenedCheckpoint | None = stored
    parent: OpenedCheckpoint | None = stored
    appends = isinstance(save.content, FullState) and any(
        each.append_to is not None for each in save.content.channels.values()
    )
    if appends or isinstance(save.content, Patch):
        parent = await one(transaction, scope, sealer, save.thread_id, save.namespace, stored.columns.parent_id)
    if isinstance(save.content, Patch):
        base = parent
        if base is None and stored.columns.parent_id is not None:
            raise CheckpointExists
    try:
        save = _at_version(save, base)
        reader = PieceReader(sealer, refs=True)
        channels = await _compose(transaction, scope, reader, save, cut, cutter, base, named, parent)
    except (ChannelUnchangedUnknown, InvalidState):
        if appends:  # the parent may be gone: whole values show whether it is the same save
            raise
        raise CheckpointExists from None
    again = _columns(
        save,
        channels,
        checkpoint_id=stored.columns.checkpoint_id,
        parent_id=stored.columns.parent_id if save.parent is None else save.parent.checkpoint_id,
        step=stored.columns.step if save.step is None else save.step,
        created_at=stored.columns.created_at,
        piece_ids=cutter.listed.pack(),
    )
    manifest = _manifest(save, channels)
    if (again, manifest) != (stored.columns, stored.manifest):
        if not same_but_for_pieces(stored, again, manifest):
            raise CheckpointExists
        if same != stored.member:
            offload = access.offload
            raise CutOtherwiseError(await Repeat.read(transaction, scope, sealer, offload, stored, manifest, cutter))
    macs = sealer.without_share
    seen = ThreadToken.of(macs, stored.columns.namespace, standing.head_id, standing.head)
    token = seen.encode(macs, stored.columns.thread_id)
    return _saved(stored.columns, standing.head, token, head_id=standing.head_id, created=False)


async def _check_newest(transaction: Transaction, scope: Scope, save: Save) -> None:
    """Compare the head with the newest checkpoint, as both are under the lock.

    Raises:
        IntegrityFailure: one was put back, or taken away.
    """
    place = (scope.tenant_id, scope.subject_id, save.thread_id, save.namespace)
    row = await transaction.fetchrow(sql.HEAD_AND_NEWEST, *place)
    if row["newest_id"] != row["head_id"]:
        raise IntegrityFailure("the newest checkpoint is not the head")


class _Standing:
    """What a save stands on: the thread's and the namespace's seals, verified, and what save policies ask of it."""

    def __init__(
        self,
        thread: ThreadSeal,
        head_id: str | None,
        head: HeadSeal | None,
        strictness: Strictness,
        *,
        is_new_thread: bool = False,
    ) -> None:
        self.thread = thread
        self.head_id = head_id
        self.head = head
        self.strictness = strictness
        self.is_new_thread = is_new_thread

    @classmethod
    def open(cls, sealer: Sealer, save: Save, row: Any, own_seal: bytes, strictness: Strictness) -> "_Standing":
        """Open what `OPEN` gave; ``own_seal``: the seal that a thread has which it made."""
        thread = open_thread(sealer, save.thread_id, row["thread_created_at"], row["thread_seal"])
        head_id = row["head_id"]
        if head_id is None:
            return cls(thread, None, None, strictness, is_new_thread=row["thread_seal"] == own_seal)
        head = open_head(sealer, save.thread_id, thread, save.namespace, head_id, row["sequence"], row["head_seal"])
        return cls(thread, head_id, head, strictness)

    def check(self, save: Save, strict: bool) -> None:
        """Compare with what the caller believes of the head; ``strict``: the thread itself asks for that."""
        believed = save.precondition
        if believed is not None:
            if believed.absent and self.head_id is not None:
                raise HeadExists(self.head_id)
            if not believed.holds(self.head_id):
                raise HeadMoved(self.head_id)
            if believed.sequence is not None and (self.head is None or self.head.sequence != believed.sequence):
                raise HeadMoved(self.head_id)
            if not believed.exists:  # that there is one says nothing of which
                return
        if isinstance(save.content, Patch):
            raise PreconditionRequired
        if not save.fork or save.parent is None:  # without a parent it is the head's, whatever it calls itself
            self._check_parent(save, strict)

    def _check_parent(self, save: Save, strict: bool) -> None:
        """Refuse a save that names no head, or another one, where the thread or a save policy asks for that."""
        # An adapter names its parent with every save; that says as much as If-Match.
        names_head = save.parent is not None and save.parent.checkpoint_id == self.head_id
        # Nothing is lost by the first save of a namespace: only a thread asks for that one, too.
        if names_head or (self.head_id is None and not strict):
            return
        who = None if strict else self.strictness.asked_by(save.agent)
        if (strict or who is not None) and save.parent is not None:
            raise HeadMoved(self.head_id)
        if strict:
            raise PreconditionRequired
        if who is not None:
            raise precondition_required(who)

    def with_member(self, member: bytes, early: LiveSet | None) -> HeadSeal:
        """The head seal after one more checkpoint; ``early``: its writes, if it becomes the head."""
        if self.head is None:
            return HeadSeal(self.thread.incarnation, self.thread.floor + 1, LiveSet().add(member), early or NO_WRITES)
        writes = self.head.writes if early is None else early
        return HeadSeal(self.head.incarnation, self.head.sequence + 1, self.head.live.add(member), writes)


async def _check_early(transaction: Transaction, scope: Scope, save: Save, row: Any) -> None:
    """Compare the version of a save with that of its pending writes that came before it: those without one have none.

    Raises:
        StateSchemaMismatch: there are some to channels of the state.
    """
    if save.state_schema is None or not row["early_tasks"]:
        return
    place = (scope.tenant_id, scope.subject_id, save.thread_id, save.namespace, save.checkpoint_id)
    found = await transaction.fetch(sql.UNVERSIONED_CHANNELS, *place)
    if any(not is_control(row["channel"]) for row in found):
        raise StateSchemaMismatch(
            "pending writes that name no version came before their checkpoint: nothing says that they are at"
            f" version {save.state_version} of {save.state_schema!r}"
        )


def _early(sealer: Sealer, columns: CheckpointColumns, row: Any) -> LiveSet:
    """The pending writes that arrived before their checkpoint."""
    early = NO_WRITES
    arrived = (row["early_tasks"] or (), row["early_idx"] or (), row["early_members"] or ())
    for task_id, idx, member in zip(*arrived, strict=True):
        early = early.add(write_mac(sealer, columns.namespace, columns.checkpoint_id, task_id, idx, member))
    return early


def _named(content: FullState | Patch) -> dict[str, list[Pointer]]:
    """The artifacts that the values of a save name, by channel, and where."""
    if isinstance(content, FullState):
        return _named_in_state(content)
    named: dict[str, list[Pointer]] = {}
    for name, value in content.set.items():
        where = f"/changes/set/{escaped(name)}"
        if found := find_pointer(name, where) + artifacts_in(value, where):
            named[name] = found
    for name, elements in content.append.items():
        for position, element in enumerate(elements):
            where = f"/changes/append/{escaped(name)}/{position}"
            if found := artifacts_in(Value("msgpack", element), where):
                named.setdefault(name, []).extend(found)
    return named


def _named_in_state(content: FullState) -> dict[str, list[Pointer]]:
    named: dict[str, list[Pointer]] = {}
    for name, each in content.channels.items():
        # A channel's name is part of the state, too.
        if may_point(name) or (each.value is not None and may_name(each.value.encoding, each.value.data)):
            where = f"{content.root}/{escaped(name)}"
            found = find_pointer(name, where)
            if each.value is not None:
                found += artifacts_in(each.value, where)
            if found:
                named[name] = found
    return named


def _columns(
    save: Save,
    channels: Sequence[ChannelRecord],
    *,
    checkpoint_id: str,
    parent_id: str | None,
    step: int,
    created_at: datetime,
    piece_ids: bytes,
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
        named_ids=_union(each.artifacts for each in channels),
    )


def _union(packed: Iterable[bytes | None]) -> bytes | None:
    given = [each for each in packed if each is not None]
    return pack_named_ids(each for some in given for each in unpack_named_ids(some)) if given else None


def _manifest(save: Save, channels: list[ChannelRecord]) -> Manifest:
    return Manifest(FORMAT, channels, save.metadata, save.model, save.delta_channels)


def _saved(columns: CheckpointColumns, head: HeadSeal, token: str, *, head_id: str, created: bool) -> Saved:
    return Saved(
        thread_id=columns.thread_id,
        namespace=columns.namespace,
        checkpoint_id=columns.checkpoint_id,
        parent_id=columns.parent_id,
        step=columns.step,
        status=columns.status,  # type: ignore[arg-type]
        sequence=head.sequence,
        created_at=columns.created_at,
        created=created,
        head_id=head_id,
        token=token,
    )


async def _compose(
    transaction: Transaction,
    scope: Scope,
    reader: PieceReader,
    save: Save,
    cut: Mapping[str, Body],
    cutter: Cutter,
    base: OpenedCheckpoint | None,
    named: Mapping[str, Sequence[Pointer]],
    parent: OpenedCheckpoint | None,
) -> list[ChannelRecord]:
    """The channels of the new checkpoint; ``base`` is what unchanged channels and patches refer to, mostly ``parent``.

    Elements are appended to what ``parent`` holds.
    """
    if isinstance(save.content, FullState):
        await read_chunks(transaction, scope, reader, save.thread_id, _appended_to(save.content, parent) or ())
        if reader.in_blobs():  # nothing is fetched under a lock
            raise ChannelUnchangedUnknown(
                next(name for name, each in save.content.channels.items() if each.append_to is not None)
            )
        content = save.content
        if all(each.append_to is None for each in content.channels.values()):  # all were cut before
            return _composed(content, cut, cutter, base, parent, named, reader.look_up)
        return await _cutting(
            scope, content, lambda: _composed(content, cut, cutter, base, parent, named, reader.look_up)
        )
    return await _apply(transaction, scope, reader, save.content, cutter, base, save.thread_id, named)


def _composed(
    content: FullState,
    cut: Mapping[str, Body],
    cutter: Cutter,
    base: OpenedCheckpoint | None,
    parent: OpenedCheckpoint | None,
    named: Mapping[str, Sequence[Pointer]],
    look_up: Callable[[bytes], Opened],
) -> list[ChannelRecord]:
    """The channels of a complete state; ``look_up`` gives the open tails of the parent's lists that are appended to."""
    channels = []
    for name, each in content.channels.items():
        if each.append_to is not None:
            channels.append(_with_elements(name, each, parent, cutter, named.get(name, ()), look_up))
            continue
        if each.value is not None:
            artifacts = pack_artifacts(named.get(name, ()))
            channels.append(ChannelRecord(name, each.version, each.value.encoding, cut[name], artifacts))
            continue
        held = _held(base, name)
        if base is None or held is None or held.version != each.version:
            raise ChannelUnchangedUnknown(name)
        channels.append(msgspec.structs.replace(held, body=_adopt(held.body, base.ids, cutter)))
    return channels


def _with_elements(
    name: str,
    sent: ChannelValue,
    parent: OpenedCheckpoint | None,
    cutter: Cutter,
    named: Sequence[Pointer],
    look_up: Callable[[bytes], Opened],
) -> ChannelRecord:
    """A list of the parent with the elements that were sent after its own.

    Raises:
        ChannelUnchangedUnknown: there is no such list, or these are no elements: the whole value says what is meant.
    """
    held = _held(parent, name)
    bounds = None
    if sent.value is not None and sent.value.encoding == "msgpack" and not sent.value.holes:
        bounds = list_bounds(sent.value.data)
    if parent is None or held is None or held.version != sent.append_to or sent.value is None or bounds is None:
        raise ChannelUnchangedUnknown(name)
    elements = sent.value.data[bounds[0] :]
    try:
        body = _appended(name, held, parent.ids, (len(bounds) - 1, elements), cutter, look_up)
    except InvalidState:
        raise ChannelUnchangedUnknown(name) from None
    artifacts = _union((held.artifacts, pack_artifacts(named)))
    return ChannelRecord(name, sent.version, "msgpack", body, artifacts)


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
    reader: PieceReader,
    patch: Patch,
    cutter: Cutter,
    base: OpenedCheckpoint | None,
    thread_id: str,
    named: Mapping[str, Sequence[Pointer]],
) -> list[ChannelRecord]:
    held = {each.name: each for each in (base.manifest.channels if base else [])}
    ids = base.ids if base else []
    for position, name in enumerate(patch.remove):
        if name not in held:
            raise InvalidState(f"there is no channel {name!r} to remove", f"/changes/remove/{position}")
    tails: list[bytes] = []
    for name in patch.append:
        if name in held:
            tails += tail_ids(held[name].body, ids)
    await read_chunks(transaction, scope, reader, thread_id, tails)
    return await _cutting(scope, patch, lambda: _patched(patch, cutter, base, named, reader))


def _patched(
    patch: Patch,
    cutter: Cutter,
    base: OpenedCheckpoint | None,
    named: Mapping[str, Sequence[Pointer]],
    reader: PieceReader,
) -> list[ChannelRecord]:
    """The channels of a state with the changes; what they name is there."""
    held = {each.name: each for each in (base.manifest.channels if base else [])}
    ids = base.ids if base else []
    channels: dict[str, ChannelRecord] = {}
    for name, each in held.items():
        if name not in patch.remove and name not in patch.set and name not in patch.append:
            channels[name] = msgspec.structs.replace(each, body=_adopt(each.body, ids, cutter))
    for name, value in patch.set.items():
        if value.holes:
            raise InvalidState("placeholders come in channels", f"/changes/set/{escaped(name)}")
        artifacts = pack_artifacts(named.get(name, ()))
        channels[name] = ChannelRecord(name, None, value.encoding, cutter.cut(value), artifacts)
    for name, elements in patch.append.items():
        body = _appended(name, held.get(name), ids, (len(elements), b"".join(elements)), cutter, reader.look_up)
        before = held[name].artifacts if name in held else None
        artifacts = _union((before, pack_artifacts(named.get(name, ()))))
        channels[name] = ChannelRecord(name, None, "msgpack", body, artifacts)
    order = [*held, *(name for name in channels if name not in held)]
    return [channels[name] for name in order if name in channels]


def _appended(
    name: str,
    held: ChannelRecord | None,
    ids: Sequence[bytes],
    elements: tuple[int, bytes],
    cutter: Cutter,
    look_up: Callable[[bytes], Opened],
) -> Body:
    """A list with elements, which are so many and these bytes, after its own."""
    more, added = elements
    if held is None:
        return cutter.cut(Value("msgpack", list_header(more) + added))
    if held.encoding == "msgpack" and isinstance(held.body, bytes):
        bounds = list_bounds(held.body)
        if bounds is not None:
            count = len(bounds) - 1 + more
            return cutter.cut(Value("msgpack", list_header(count) + held.body[bounds[0] :] + added))
    if held.encoding == "msgpack" and not isinstance(held.body, bytes) and held.body[0]:
        header = list_header(list_count(held.body[0]) + more)
        return cutter.append(header, held.body, ids, look_up, added)
    raise InvalidState(f"channel {name!r} is not a list", f"/changes/append/{name}")


async def _settle(transaction: Transaction, scope: Scope, sealer: Sealer, save: Save, saved: Saved) -> None:
    if save.idempotency is not None:
        await settle(transaction, scope, sealer, save.idempotency, saved)
