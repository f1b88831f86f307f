"""One save: what it stands on, the new checkpoint, what is sealed of it, and the statement that writes it.

`Saving` is one request to save. Each of its attempts is one transaction: what it stands on is remembered by this
process (`storage.access.remembered`), or is locked, read and verified; either is a `Ground`. On it the checkpoint is
composed (`storage.checkpoints.composing`), sealed and written. What each statement of a transaction may believe of the
other's is said in `storage.statements.threads.checkpoints`; every condition that fails there ends the attempt, and
another one begins on a fresh snapshot (`storage.access.sealing`).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Never, TypeVar

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import admit, check_acknowledged, check_count, check_token
from storage.access.idempotency import claim, settle
from storage.access.offload import Uploads
from storage.access.remembered import RememberedHead, reachable
from storage.access.save_rules import AgentUnsure, SaveRules, precondition_required
from storage.access.storing import Beside, Storing
from storage.approvals import asking
from storage.checkpoints.composing import (
    Draft,
    Stored,
    at_version,
    check_removals,
    columns_of,
    compose,
    data_of,
    long_lists,
    manifest_of,
    tails_of,
    tails_of_record,
)
from storage.checkpoints.piece_rows import sealed_pieces
from storage.checkpoints.reading import one, read_pieces
from storage.checkpoints.same_save import Comparison, CutOtherwiseError, same_but_for_pieces
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
    Unfinished,
)
from storage.event_queue.model import OfThread
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.cold.segment import ColdSums
from storage.format.ids import mint_checkpoint_id
from storage.format.manifest import ChannelRecord, CheckpointColumns, Manifest
from storage.format.pieces import LEAF, Cutter, is_long_to_cut, look_up_own
from storage.format.record import (
    OpenedCheckpoint,
    PieceReader,
    SealedCheckpoint,
    member_of,
    new_thread,
    open_checkpoint,
    open_head,
    open_thread,
    seal_checkpoint,
    seal_head,
    seal_thread,
)
from storage.format.token import ThreadToken
from storage.model import FullState, Patch, Save, Saved
from storage.postgres.unit_of_work import Transaction
from storage.schemas.versions import OtherVersionError, is_control
from storage.scope import Scope
from storage.statements.threads import checkpoints as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.checkpoints import OpenRow
from storage.thread_ledgers.locked import check_fence, check_unclaimed
from storage.tiers.hot import HotRows
from storage.tiers.segments import ColdHead, find_cold, find_cold_head, refuse_cold

T = TypeVar("T")
# What a save has to be to stand on a parent of another version, or of one where it names none.
AtVersion = Callable[[Save, OtherVersionError], Awaitable[Save]]


class Saving(Storing[Saved]):
    """A request to save.

    ``at_version`` answers a parent of another version; None: that is the caller's to see. ``beside`` is written with
    the checkpoint, or neither is.
    """

    def __init__(
        self,
        access: Access,
        scope: Scope,
        save: Save,
        at_version: AtVersion | None = None,
        beside: Beside | None = None,
    ) -> None:
        super().__init__(access, scope)
        self._save = save
        self._beside = beside
        self._at_version = at_version
        self._same: bytes | None = None
        self._lock_first = False

    async def _attempt(self, sealer: Sealer) -> Saved:
        access, scope, save = self._access, self._scope, self._save
        await asking.ready(access, save.approvals, save.asker)
        now, bytes_min = access.clock.now(), access.offload.bytes_min
        draft = await _cutting(scope, save, lambda: Draft.of(sealer, save, now, bytes_min))
        attempt = _Attempt(access, scope, sealer, save, draft)
        async with access.remembered_heads.turn(scope, save.thread_id):
            remembered = access.remembered_heads.take(scope, sealer, save.thread_id, save.namespace)
            alone = self._beside is None
            if remembered is not None and alone and access.row_quotas.has_room(scope) and attempt.goes_on(remembered):
                return await attempt.on_remembered(remembered)
            return await attempt.under_lock(self._uploads, self._same, self._beside, lock_first=self._lock_first)

    async def _answer(self, sealer: Sealer, reason: Unfinished) -> None:
        match reason:
            case CutOtherwiseError():
                self._same = await reason.comparison.compare(self._scope, sealer, self._access.offload)
            case AgentUnsure():
                self._lock_first = True
            case OtherVersionError() if self._at_version is not None:
                self._save = await self._at_version(self._save, reason)
            case _:
                await super()._answer(sealer, reason)


async def _cutting(scope: Scope, save: Save, work: Callable[[], T]) -> T:
    """Do ``work``, which cuts what is saved: beside the event loop, if that is long."""
    return await compute(scope.tenant_id, work) if is_long_to_cut(data_of(save.content)) else work()


class Ground(msgspec.Struct, frozen=True):
    """What a save stands on, verified: remembered, or read under the thread's lock.

    Attributes:
        thread_created_at: The moment that is bound into the thread's seal.
        thread_seal: The stored bytes of `thread`.
        thread: The thread's seal.
        strict: Whether the thread itself asks a save to name what it stands on.
        rules: What save policies say.
        head_id: The namespace's head; None: it has none.
        head: The head's seal.
        sums: What is in the thread's segments; None: nothing is, or whatever is there does not matter to a save on top
            of the head.
        is_new_thread: Whether this transaction made the thread.
    """

    thread_created_at: datetime
    thread_seal: bytes
    thread: ThreadSeal
    strict: bool
    rules: SaveRules
    head_id: str | None
    head: HeadSeal | None
    sums: ColdSums | None = None
    is_new_thread: bool = False

    @classmethod
    def remembered(cls, head: RememberedHead) -> "Ground":
        """The ground that this process left, and still remembers."""
        return cls(
            head.thread_created_at, head.thread_seal, head.thread, head.strict, head.rules,
            head.head_id, head.head,
        )  # fmt: skip

    @classmethod
    def read(cls, sealer: Sealer, save: Save, row: OpenRow, own_seal: bytes, rules: SaveRules) -> "Ground":
        """Open what `OPEN` gave; ``own_seal``: the seal that a thread has which the statement made.

        Raises:
            IntegrityFailure: a seal does not authenticate, or they do not belong together.
        """
        created_at, seal = row.thread_created_at, row.thread_seal
        thread = open_thread(sealer, save.thread_id, created_at, seal)
        head = None
        if row.head_id is not None and row.sequence is not None and row.head_seal is not None:
            place = (save.namespace, row.head_id, row.sequence, row.head_seal)
            head = open_head(sealer, save.thread_id, thread, *place)
        is_new = row.head_id is None and seal == own_seal
        sums = None
        if row.cold is not None:
            sums = ColdSums.open(sealer, save.thread_id, created_at, thread.incarnation, row.cold)
        return cls(created_at, seal, thread, row.strict, rules, row.head_id, head, sums, is_new)

    def on_cold(self, sealer: Sealer, thread_id: str, cold: ColdHead) -> "Ground":
        """With the head of a namespace that is cold as a whole."""
        row = cold.row
        head = open_head(sealer, thread_id, self.thread, row.namespace, row.head_id, row.sequence, row.seal)
        return msgspec.structs.replace(self, head_id=row.head_id, head=head)

    def check(self, save: Save) -> None:
        """Compare with what the caller believes of the head.

        Raises:
            HeadExists, HeadMoved: it is another.
            PreconditionRequired: the caller has to say.
        """
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
            self._check_parent(save)

    def _check_parent(self, save: Save) -> None:
        """Refuse a save that names no head, or another one, where the thread or a save policy asks for that."""
        # An adapter names its parent with every save; that says as much as If-Match.
        names_head = save.parent is not None and save.parent.checkpoint_id == self.head_id
        # Nothing is lost by the first save of a namespace: only a thread asks for that one, too.
        if names_head or (self.head_id is None and not self.strict):
            return
        who = None if self.strict else self.rules.asked_by(save.agent)
        if (self.strict or who is not None) and save.parent is not None:
            raise HeadMoved(self.head_id)
        if self.strict:
            raise PreconditionRequired
        if who is not None:
            raise precondition_required(who)

    def with_member(self, member: bytes, early: LiveSet | None) -> HeadSeal:
        """The head seal after one more checkpoint; ``early``: its writes, if it becomes the head."""
        if self.head is None:
            return HeadSeal(self.thread.incarnation, self.thread.floor + 1, LiveSet().add(member), early or NO_WRITES)
        writes = self.head.writes if early is None else early
        return HeadSeal(self.head.incarnation, self.head.sequence + 1, self.head.live.add(member), writes)


class _Composed(msgspec.Struct, frozen=True):
    """A new checkpoint, sealed, and the head that there is then."""

    columns: CheckpointColumns
    channels: list[ChannelRecord]
    manifest: Manifest
    sealed: SealedCheckpoint
    head_id: str
    head: HeadSeal
    head_seal: bytes

    @property
    def is_head(self) -> bool:
        return self.head_id == self.columns.checkpoint_id

    def saved(self, token: str, rules: SaveRules) -> Saved:
        saved = _saved(self.columns, self.head, token, head_id=self.head_id, created=True)
        long = long_lists(self.manifest, *rules.lists_of(self.columns.agent))
        return dataclasses.replace(saved, needs_compaction=long) if long else saved

    def to_remember(
        self, ground: Ground, agent: str | None, pieces: "_HeadPieces", seen: ThreadToken, token: str
    ) -> RememberedHead:
        """What the next save can stand on."""
        assert self.is_head  # noqa: S101  for the reader: nothing stands on another checkpoint than the head
        return RememberedHead(
            thread_created_at=ground.thread_created_at,
            thread_seal=ground.thread_seal,
            thread=ground.thread,
            strict=ground.strict,
            rules=ground.rules.of_thread(agent),
            head_id=self.head_id,
            head_seal=self.head_seal,
            head=self.head,
            base=OpenedCheckpoint(self.columns, self.manifest, self.sealed.member, None),
            pieces=pieces.pieces,
            tails=pieces.tails,
            early=pieces.early,
            seen=seen,
            token=token,
        )


class _HeadPieces(msgspec.Struct, frozen=True):
    """What is known of the pieces of a new head, and of pending writes that came before their checkpoints."""

    pieces: dict[bytes, bytes | None]
    tails: dict[bytes, bytes]
    early: dict[str, LiveSet]

    @classmethod
    def of(
        cls, composed: _Composed, cutter: Cutter, before: RememberedHead | None, tails: Mapping[bytes, bytes]
    ) -> "_HeadPieces":
        """By what was cut, what was known before, and the open tails that composing looked at."""
        pieces: Mapping[bytes, bytes | None] = {} if before is None else before.pieces
        early = {} if before is None else before.early
        head_id = composed.head_id.encode()
        own = {each.piece_id: each.children for each in cutter.pieces.values()}
        return cls(
            reachable(cutter.listed.ids, own, pieces),
            _tails(composed.channels, cutter, tails),
            {each: early[each] for each in early if each.encode() > head_id},
        )


def _tails(channels: Iterable[ChannelRecord], cutter: Cutter, before: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The pieces of open tails, as far as they are known; a large leaf among them is read when it is needed."""
    left: dict[bytes, bytes] = {}
    for each in channels:
        for piece_id in tails_of_record(each, cutter.listed.ids):
            piece = cutter.pieces.get(piece_id)
            plaintext = before.get(piece_id) if piece is None else piece.plaintext
            if plaintext is not None and plaintext[0] != LEAF:
                left[piece_id] = plaintext
    return left


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at a save."""

    access: Access
    scope: Scope
    sealer: Sealer
    save: Save
    draft: Draft

    def _compose(
        self, ground: Ground, channels: list[ChannelRecord], base: OpenedCheckpoint | None, parent_id: str | None,
        early_of: Callable[[CheckpointColumns], LiveSet],
    ) -> _Composed:  # fmt: skip
        """Seal the checkpoint that consists of these channels, and the head that there is then."""
        save, sealer = self.save, self.sealer
        columns = columns_of(
            save,
            channels,
            self.draft.cutter,
            checkpoint_id=save.checkpoint_id or mint_checkpoint_id(self.draft.now, ground.head_id),
            parent_id=parent_id,
            step=save.step if save.step is not None else (base.columns.step + 1 if base else 0),
            created_at=self.draft.now,
        )
        manifest = manifest_of(save, channels)
        sealed = seal_checkpoint(sealer, columns, manifest)
        head_id = max(ground.head_id or "", columns.checkpoint_id, key=str.encode)
        early = early_of(columns) if head_id == columns.checkpoint_id else None
        head = ground.with_member(sealed.member, early)
        head_seal = seal_head(sealer, save.thread_id, save.namespace, head_id, head)
        return _Composed(columns, channels, manifest, sealed, head_id, head, head_seal)

    # --- on what is remembered -------------------------------------------------------------------------------------

    def goes_on(self, remembered: RememberedHead) -> bool:
        """Whether the save adds to a head that is remembered, and needs nothing else from the database."""
        save, draft = self.save, self.draft
        return (
            isinstance(save.content, FullState)
            and not save.approvals
            and not save.between_claims
            and save.idempotency is None
            and (save.known_token is None or save.known_token == remembered.token)
            and (save.parent is None or save.parent.checkpoint_id == remembered.head_id)
            and (save.checkpoint_id is None or save.checkpoint_id.encode() > remembered.head_id.encode())
            and not draft.named
            and draft.tagging is None
            and (tails := tails_of(save.content, remembered.base)) is not None
            and remembered.tails.keys() >= {*tails}
            and remembered.covers(draft.cutter, self.access.offload.is_large)
        )

    async def on_remembered(self, remembered: RememberedHead) -> Saved:
        """Save on top of a head that is remembered: nothing is read.

        Raises:
            LostRaceError: begin by reading; what is remembered is another state, or the save would be refused on it.
        """
        access, scope, sealer, save, cutter = self.access, self.scope, self.sealer, self.save, self.draft.cutter
        ground = Ground.remembered(remembered)
        try:
            ground.check(save)
            at_version(save, remembered.base)
            stored = Stored(remembered.base, remembered.base, look_up_own(remembered.tails))
            channels = await _cutting(scope, save, lambda: compose(save.content, self.draft, stored))
        except (StorageError, Unfinished):
            raise LostRaceError from None
        if cutter.referenced.keys() - remembered.pieces.keys():
            raise LostRaceError
        composed = self._compose(
            ground,
            channels,
            remembered.base,
            remembered.head_id,
            lambda columns: remembered.early.get(columns.checkpoint_id, NO_WRITES),
        )
        columns, early = composed.columns, composed.head.writes
        if early.count and save.state_schema is not None and remembered.base.columns.state_schema is None:
            raise LostRaceError  # the writes may name no version
        fresh = [each for each in cutter.pieces.values() if each.piece_id not in remembered.pieces]
        if any(map(access.offload.is_large, fresh)):  # among what was appended
            raise LostRaceError
        envelopes = await sealed_pieces(sealer, ((each, None) for each in fresh))
        values = dict(
            **_columns(columns),
            key_version=sealer.active_key_version,
            pieces=[each.piece_id for each in fresh],
            children=[each.children for each in fresh],
            envelopes=envelopes,
            manifest=composed.sealed.envelope,
            head_id=columns.checkpoint_id,
            sequence=composed.head.sequence,
            head_seal=composed.head_seal,
            thread_status=save.status if save.namespace == "" else None,
            thread_seal=remembered.thread_seal,
            strict=remembered.strict,
            head_seal_before=remembered.head_seal,
            early_count=early.count,
            policies=remembered.rules.compared(),
            keys_hash=sealer.keys_hash,
            event_id=(event_id := access.emitting.fresh_id(scope.tenant_id)),
            fence=save.fence,
        )
        await access.unit_of_work.call(sql.SAVE_ON, scope, **values)
        if event_id is not None:
            access.emitting.committed(scope.tenant_id)
        seen = remembered.seen.after(sealer.without_share, columns.checkpoint_id, composed.head)
        access.acknowledge(scope, sealer, save.thread_id, seen)
        token = seen.encode(sealer.without_share, save.thread_id)
        pieces = _HeadPieces.of(composed, cutter, remembered, remembered.tails)
        agent = save.agent or remembered.rules.agent
        access.remembered_heads.remember(scope, sealer, composed.to_remember(ground, agent, pieces, seen, token))
        return composed.saved(token, remembered.rules)

    # --- on what is read -------------------------------------------------------------------------------------------

    async def under_lock(
        self, uploads: Uploads, same: bytes | None, beside: Beside | None, *, lock_first: bool
    ) -> Saved:
        """Save on what is read under the thread's lock.

        ``uploads`` is what is in the object store for the save, ``same`` as in `_saved_before`. ``beside`` is written
        after a new checkpoint. ``lock_first``: wait for the lock in a statement of its own, so that nothing is
        `AgentUnsure`.
        """
        access, scope, sealer, save = self.access, self.scope, self.sealer, self.save
        acknowledged = access.remembered_heads.acknowledged(scope, save.thread_id, save.namespace)
        async with access.unit_of_work.begin_step(scope) as transaction:
            if save.idempotency is not None:
                replayed = await claim(transaction, sealer, save.idempotency, self.draft.now, Saved)
                if replayed is not None:
                    await admit(transaction, sealer, save.thread_id)
                    return self._acknowledged(dataclasses.replace(replayed, created=False))
            own_seal = seal_thread(sealer, save.thread_id, self.draft.now, new_thread(sealer, save.thread_id))
            row = await self._open(transaction, own_seal, lock_first=lock_first)
            if save.known_token is not None:
                await check_token(transaction, sealer, save.thread_id, save.known_token)
            ground = Ground.read(
                sealer, save, row, own_seal, SaveRules.read(access.control, scope.tenant_id, row.policies)
            )
            ground, cold = await self._with_cold_head(transaction, ground)
            await check_acknowledged(transaction, sealer, save.thread_id, acknowledged, ground.head_id, ground.head)
            left = None
            if row.stored_before:
                saved = await self._saved_before(transaction, ground, same)
            elif (found := await self._saved_cold(transaction, ground, is_hot=cold is None)) is not None:
                saved = found
            else:
                self._refuse_cold_namespace(cold)
                saved, left = await self._write(transaction, ground, row, uploads)
                if beside is not None:
                    await beside(transaction, sealer)
                if save.approvals or row.open_approvals:
                    await self._ask(transaction, saved)
            if save.idempotency is not None:
                receipt = dataclasses.replace(saved, needs_compaction=())  # names of channels are state
                await settle(transaction, sealer, save.idempotency, receipt)
        if left is not None:
            access.remembered_heads.remember(scope, sealer, left)
        return self._acknowledged(saved)

    async def _ask(self, transaction: Transaction, saved: Saved) -> None:
        """Store what is asked with a new checkpoint, which supersedes what waited in its namespace."""
        save = self.save
        await asking.ask(
            self.access,
            self.scope,
            transaction,
            self.sealer,
            asking.Asking(
                save.thread_id,
                save.namespace,
                saved.checkpoint_id,
                save.run_id,
                save.agent,
                save.asker,
                save.approvals,
                supersedes=True,
            ),
        )

    def _acknowledged(self, saved: Saved) -> Saved:
        if saved.token:
            self.access.acknowledge(self.scope, self.sealer, self.save.thread_id, ThreadToken.parse(saved.token))
        return saved

    async def _open(self, transaction: Transaction, own_seal: bytes, *, lock_first: bool) -> OpenRow:
        """What the save stands on, under the thread's lock.

        Raises:
            KeyDestroyed: the keys are not the stored ones any more.
            ThreadArchived: it is to be restored first.
        """
        scope, sealer, save, draft = self.scope, self.sealer, self.save, self.draft
        if lock_first:
            await transaction.fetch_one(threads_sql.LOCK, thread_id=save.thread_id)
        row = await transaction.fetch_only(
            sql.OPEN,
            thread_id=save.thread_id,
            agent=save.agent,
            status=save.status if save.namespace == "" else None,
            now=draft.now,
            own_seal=own_seal,
            key_version=sealer.active_key_version,
            namespace=save.namespace,
            checkpoint_id=save.checkpoint_id,
            pieces=[*draft.cutter.pieces, *draft.cutter.referenced],
            needs_parent=draft.needs_parent(save),
            parent_is_head=save.parent is None,
            parent_id=save.parent.checkpoint_id if save.parent else None,
            client_share=sealer.shared,
            searchable=None if draft.tagging is None else draft.tagging.keys,
            fence=save.fence,
        )
        self.access.check_keys(scope, sealer, row.keys_hash)
        if save.between_claims:
            check_unclaimed(row.live_until)
        else:
            check_fence(save.fence, row.fence, claims_required=row.claims_required)
        if row.tier != "hot":
            raise ThreadArchived(save.thread_id)
        if (
            save.agent is not None
            and save.agent != row.thread_agent
            and await transaction.run(threads_sql.SET_AGENT, thread_id=save.thread_id, agent=save.agent)
        ):
            return msgspec.structs.replace(row, thread_agent=save.agent)
        return row

    async def _parent(
        self, transaction: Transaction, ground: Ground, row: OpenRow
    ) -> tuple[str | None, OpenedCheckpoint | None]:
        """The parent's id, and the parent, if composing needs it.

        Raises:
            ParentUnknown: it was removed, or never was.
            IntegrityFailure: it must be there: it is the head, or fewer checkpoints are there than the seals say.
        """
        save = self.save
        base = None if row.parent is None else open_checkpoint(self.sealer, row.parent)
        parent_id = ground.head_id if save.parent is None else save.parent.checkpoint_id
        needs_parent = self.draft.needs_parent(save)
        if base is None and parent_id is not None and (needs_parent or parent_id != ground.head_id):
            # It may be newer than the snapshot of the statement that waited for the lock.
            base = await one(HotRows(transaction, save.thread_id), self.sealer, save.namespace, parent_id)
            if base is None:
                await self._refuse_parent(transaction, ground, parent_id)
        return parent_id, base if needs_parent else None

    async def _refuse_parent(self, transaction: Transaction, ground: Ground, parent_id: str) -> Never:
        if parent_id == ground.head_id:
            raise IntegrityFailure("the head's checkpoint is missing")
        await self._refuse_cold(transaction, ground, parent_id)
        if ground.head is not None:
            rows, namespace = HotRows(transaction, self.save.thread_id), self.save.namespace
            await check_count(rows, namespace, ground.head, None if ground.sums is None else ground.sums.of(namespace))
        raise ParentUnknown

    async def _with_cold_head(self, transaction: Transaction, ground: Ground) -> tuple[Ground, ColdHead | None]:
        """With the head of a namespace that is cold as a whole; None: it is none, or a new one."""
        if ground.head is not None or ground.sums is None:
            return ground, None
        sealer, save = self.sealer, self.save
        cold = await find_cold_head(transaction, sealer, save.thread_id, ground.sums, save.namespace)
        return (ground, None) if cold is None else (ground.on_cold(sealer, save.thread_id, cold), cold)

    def _refuse_cold_namespace(self, cold: ColdHead | None) -> None:
        """Return if the namespace is not cold as a whole.

        Raises:
            HeadExists: The caller believes that it is not there.
            ThreadArchived: It is to be brought back first.
        """
        if cold is None:
            return
        save = self.save
        if save.precondition is not None and save.precondition.absent:
            raise HeadExists(cold.head.head_id)
        raise ThreadArchived(save.thread_id, segment=cold.segment.segment)

    async def _refuse_cold(self, transaction: Transaction, ground: Ground, checkpoint_id: str) -> None:
        """Return if a parent is in no segment; as `storage.tiers.segments.refuse_cold`."""
        if ground.sums is not None:
            place = (self.save.namespace, checkpoint_id)
            await refuse_cold(transaction, self.sealer, self.save.thread_id, ground.sums, place)

    async def _channels(
        self,
        transaction: Transaction,
        reader: PieceReader,
        base: OpenedCheckpoint | None,
        parent: OpenedCheckpoint | None,
    ) -> list[ChannelRecord]:
        """The channels of the new checkpoint, composed on what is read of these two with ``reader``."""
        save, content = self.save, self.save.content
        at_version(save, base)
        appended_to = parent if isinstance(content, FullState) else base
        if isinstance(content, Patch):
            check_removals(content, base)
        tails = tails_of(content, appended_to) or ()
        await read_pieces(HotRows(transaction, save.thread_id), reader, tails)
        if isinstance(content, FullState) and reader.in_blobs():  # nothing is fetched under a lock
            raise ChannelUnchangedUnknown(
                next(name for name, each in content.channels.items() if each.append_to is not None)
            )
        stored = Stored(base, parent, reader.look_up)
        if isinstance(content, FullState) and not _appends(save):  # all were cut before
            return compose(content, self.draft, stored)
        return await _cutting(self.scope, save, lambda: compose(content, self.draft, stored))

    async def _check_early(self, transaction: Transaction, row: OpenRow) -> None:
        """Compare the version of the save with that of its pending writes that came before it.

        Raises:
            StateSchemaMismatch: there are some to channels of the state, and those have no version.
        """
        save = self.save
        if save.state_schema is None or not row.early_tasks:
            return
        found = await transaction.fetch_all(
            sql.UNVERSIONED_CHANNELS,
            thread_id=save.thread_id,
            namespace=save.namespace,
            checkpoint_id=save.checkpoint_id,
        )
        if not all(map(is_control, found)):
            raise StateSchemaMismatch(
                "pending writes that name no version came before their checkpoint: nothing says that they are at"
                f" version {save.state_version} of {save.state_schema!r}"
            )

    async def _write(
        self, transaction: Transaction, ground: Ground, row: OpenRow, uploads: Uploads
    ) -> tuple[Saved, RememberedHead | None]:
        """Compose and write; returns the answer and, if the checkpoint is the head, what the next save can stand on."""
        access, scope, sealer, save, cutter = self.access, self.scope, self.sealer, self.save, self.draft.cutter
        if not save.makes_room:
            access.row_quotas.require_room(scope)
        ground.check(save)
        await self._check_early(transaction, row)
        present = {*(row.present_ids or ())}
        if not cutter.referenced.keys() <= present:
            raise PieceUnknown
        parent_id, base = await self._parent(transaction, ground, row)
        reader = PieceReader(sealer, refs=True)
        channels = await self._channels(transaction, reader, base, base)
        named = [each for some in self.draft.named.values() for each in some]
        await access.offload.name_artifacts(transaction, save.thread_id, named)
        composed = self._compose(ground, channels, base, parent_id, lambda columns: _early(sealer, columns, row))
        fresh = [piece for piece in cutter.pieces.values() if piece.piece_id not in present]
        blobs = await access.offload.place(transaction, sealer, save.thread_id, fresh, uploads)
        blob_ids = [blobs.get(piece.piece_id) for piece in fresh]
        columns, tagging = composed.columns, self.draft.tagging
        written = await transaction.fetch_only(
            sql.WRITE,
            **_columns(columns),
            key_version=sealer.active_key_version,
            pieces=[piece.piece_id for piece in fresh],
            children=[piece.children for piece in fresh],
            envelopes=await sealed_pieces(sealer, zip(fresh, blob_ids, strict=True)),
            manifest=composed.sealed.envelope,
            head_id=composed.head_id,
            sequence=composed.head.sequence,
            head_seal=composed.head_seal,
            has_head=ground.head is not None,
            blob_ids=[None if blob_id is None else blob_id.bytes for blob_id in blob_ids],
            is_new_thread=ground.is_new_thread,
            searchable=None if tagging is None else tagging.keys,
            tags=[] if tagging is None else tagging.tags,
        )
        access.check_keys(scope, sealer, written.keys_hash)
        # Written are the checkpoint, and the head on top of the one that was read.
        if written.written != 2 or written.early_members != row.early_members:
            raise LostRaceError
        if written.newest_id != ground.head_id:
            raise IntegrityFailure("the newest checkpoint is not the head")
        if written.left_over:
            raise IntegrityFailure("a thread was removed outside the gateway, but not what belongs to it")
        if ground.head is None:
            thread = ground.thread.with_namespace(sealer, save.namespace)
            seal = seal_thread(sealer, save.thread_id, ground.thread_created_at, thread)
            await transaction.run(threads_sql.SEAL, thread_id=save.thread_id, seal=seal)
            ground = msgspec.structs.replace(ground, thread=thread, thread_seal=seal)
        await self._emit(transaction, columns, is_new_thread=ground.is_new_thread)
        seen = ThreadToken.of(sealer.without_share, columns.namespace, composed.head_id, composed.head)
        token = seen.encode(sealer.without_share, columns.thread_id)
        if not composed.is_head:
            return composed.saved(token, ground.rules), None
        pieces = _HeadPieces.of(composed, cutter, None, reader.plaintexts())
        return composed.saved(token, ground.rules), composed.to_remember(ground, row.thread_agent, pieces, seen, token)

    async def _emit(self, transaction: Transaction, columns: CheckpointColumns, *, is_new_thread: bool) -> None:
        """Tell of the new checkpoint, and of a new thread, if the tenant has events."""
        emitting, scope, thread_id = self.access.emitting, self.scope, columns.thread_id
        if is_new_thread:
            await emitting.of_thread(transaction, scope, "thread.created", OfThread(thread_id))
        said = OfThread(
            thread_id, columns.namespace, columns.checkpoint_id, columns.run_id, columns.agent, columns.status
        )
        await emitting.of_thread(transaction, scope, "checkpoint.saved", said)

    async def _saved_before(self, transaction: Transaction, ground: Ground, same: bytes | None) -> Saved:
        """Answer a save whose id is stored: the same save again is a no-op, another one a conflict.

        ``same``: the member of the checkpoint whose values were found to be this save's, although they are other
        pieces.

        Raises:
            CheckpointExists: it is another one.
            CutOtherwiseError: it may be.
        """
        sealer, save, cutter = self.sealer, self.save, self.draft.cutter
        rows = HotRows(transaction, save.thread_id)
        stored = await one(rows, sealer, save.namespace, save.checkpoint_id)
        await self._check_newest(transaction)
        if stored is None or ground.head is None or ground.head_id is None:
            raise LostRaceError
        # An unchanged channel is compared with what was stored; a patch or elements are applied to the same parent.
        base: OpenedCheckpoint | None = stored
        parent: OpenedCheckpoint | None = stored
        if _appends(save) or isinstance(save.content, Patch):
            parent = await one(rows, sealer, save.namespace, stored.columns.parent_id)
        if isinstance(save.content, Patch):
            base = parent
            if base is None and stored.columns.parent_id is not None:
                raise CheckpointExists
        try:
            channels = await self._channels(transaction, PieceReader(sealer, refs=True), base, parent)
        except (ChannelUnchangedUnknown, InvalidState):
            if _appends(save):  # the parent may be gone: whole values show whether it is the same save
                raise
            raise CheckpointExists from None
        again = columns_of(
            save,
            channels,
            cutter,
            checkpoint_id=stored.columns.checkpoint_id,
            parent_id=stored.columns.parent_id if save.parent is None else save.parent.checkpoint_id,
            step=stored.columns.step if save.step is None else save.step,
            created_at=stored.columns.created_at,
        )
        manifest = manifest_of(save, channels)
        if (again, manifest) != (stored.columns, stored.manifest):
            if not same_but_for_pieces(stored, again, manifest):
                raise CheckpointExists
            if same != stored.member:
                offload = self.access.offload
                raise CutOtherwiseError(await Comparison.read(transaction, sealer, offload, stored, manifest, cutter))
        return self._repeated(ground, stored.columns)

    async def _saved_cold(self, transaction: Transaction, ground: Ground, *, is_hot: bool) -> Saved | None:
        """Answer a save whose id is that of a cold checkpoint, by the list of its segment; None: it is in none.

        As `_saved_before`, but that values which another build cut otherwise are other ones. ``is_hot``: whether the
        namespace has its head in the database.

        Raises:
            CheckpointExists: it is another one.
            ThreadArchived: only the stored rows tell what the save consists of, or the list was written before it could
                tell; nothing of the save will be stored when they are back.
            IntegrityFailure: what is said of segments does not authenticate.
        """
        sealer, save, sums = self.sealer, self.save, ground.sums
        if save.checkpoint_id is None or sums is None or (is_hot and not sums.of(save.namespace).count):
            return None
        found = await find_cold(transaction, sealer, save.thread_id, sums, (save.namespace, save.checkpoint_id))
        if found is None:
            return None
        if is_hot:
            await self._check_newest(transaction)
        made, content = found.made, save.content
        if made is None or not isinstance(content, FullState) or len(self.draft.cut) < len(content.channels):
            raise ThreadArchived(save.thread_id, segment=found.segment.segment, needs_room=False)
        channels = compose(content, self.draft, Stored(None, None, look_up_own({})))
        again = columns_of(
            save,
            channels,
            self.draft.cutter,
            checkpoint_id=save.checkpoint_id,
            parent_id=made.parent_id if save.parent is None else save.parent.checkpoint_id,
            step=made.step if save.step is None else save.step,
            created_at=made.created_at,
        )
        if member_of(sealer, again, manifest_of(save, channels)) != found.listed.member:
            raise CheckpointExists
        return self._repeated(ground, again)

    def _repeated(self, ground: Ground, columns: CheckpointColumns) -> Saved:
        """The answer to a save that is stored already."""
        if ground.head is None or ground.head_id is None:
            raise LostRaceError
        macs = self.sealer.without_share
        seen = ThreadToken.of(macs, columns.namespace, ground.head_id, ground.head)
        token = seen.encode(macs, columns.thread_id)
        return _saved(columns, ground.head, token, head_id=ground.head_id, created=False)

    async def _check_newest(self, transaction: Transaction) -> None:
        """Compare the head with the newest checkpoint, as both are under the lock.

        Raises:
            IntegrityFailure: one was put back, or taken away.
        """
        row = await transaction.fetch_only(
            sql.HEAD_AND_NEWEST, thread_id=self.save.thread_id, namespace=self.save.namespace
        )
        if row.newest_id != row.head_id:
            raise IntegrityFailure("the newest checkpoint is not the head")


def _columns(columns: CheckpointColumns) -> dict[str, Any]:
    """A checkpoint's clear columns, by name."""
    return {name: getattr(columns, name) for name in columns.__struct_fields__}


def _appends(save: Save) -> bool:
    """Whether a complete state has lists of which only new elements were sent."""
    content = save.content
    return isinstance(content, FullState) and any(each.append_to is not None for each in content.channels.values())


def _early(sealer: Sealer, columns: CheckpointColumns, row: OpenRow) -> LiveSet:
    """The pending writes that arrived before their checkpoint."""
    early = NO_WRITES
    arrived = (row.early_tasks or (), row.early_idx or (), row.early_members or ())
    for task_id, idx, member in zip(*arrived, strict=True):
        early = early.add(write_mac(sealer, columns.namespace, columns.checkpoint_id, task_id, idx, member))
    return early


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
