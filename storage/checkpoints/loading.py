"""Loading one checkpoint: with one function of the database, or in a snapshot that can ask further.

`at_once` is one round trip, and the only one for most loads; with histories of channels there is none, since they take
more statements of the same moment. What it finds is opened and compared like what a snapshot finds; it refuses nothing
that one moment of several statements would explain better: whatever is missing, is older than the caller has seen, or
was removed meanwhile is left to `load_in`, which begins anew and says so.

Nothing is written. Whether the rows are in the database or in the thread's archive is for `storage.access.access` to
find out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.access import Access, AtOnce
from storage.access.completeness import (
    RowSeals,
    check_absent,
    check_acknowledged,
    check_count,
    check_token,
    check_writes,
    compare_writes,
)
from storage.access.offload import answering
from storage.checkpoints import channel_histories
from storage.checkpoints.piece_rows import open_pieces, open_writes, put_together, values_of
from storage.checkpoints.reading import read_pieces, statuses_of, sum_of
from storage.errors import CheckpointNotFound, IntegrityFailure, StorageError
from storage.format.record import CheckpointRow, OpenedCheckpoint, OpenedWrite, PieceReader
from storage.format.token import ThreadToken
from storage.ledger.ledger import LiveBlob
from storage.model import Checkpoint, Load, Loaded
from storage.schemas.versions import WantedNames
from storage.scope import Scope
from storage.statements.threads import checkpoints as sql
from storage.statements.threads.checkpoints import LoadedRows
from storage.tiers.hot import HotRows
from storage.tiers.snapshots import OpenSnapshot, ThreadElsewhere


class Wanted(msgspec.Struct, frozen=True):
    """What to load, and what this process acknowledged of its namespace.

    ``names``: under which the reader of histories knows channels; None: those that were stored.
    """

    load: Load
    acknowledged: ThreadToken | None = None
    names: WantedNames | None = None


class _Head:
    """The head of what is loaded, and what is answered with it."""

    def __init__(self, sealer: Sealer, wanted: Wanted, rows: LoadedRows) -> None:
        seals = RowSeals.open(sealer, wanted.load.thread_id, wanted.load.namespace, rows)
        self.head_id, self.thread, self.head = seals.head_id, seals.thread, seals.head
        self.seals = seals
        # A prune may have removed it; then nothing can be read at its name.
        self._is_parent_stored = rows.is_parent_stored
        self._sealer = sealer
        self._wanted = wanted

    def admits(self, known_token: str) -> bool:
        """Whether what the caller has seen can have become this; False: or it is of another namespace or life."""
        macs = self._sealer.without_share
        token = ThreadToken.decode(macs, self._wanted.load.thread_id, known_token)
        return token.namespace == self._wanted.load.namespace and token.admits(macs, self.head_id, self.head)

    def goes_on(self, acknowledged: ThreadToken) -> bool:
        """Whether what this process itself acknowledged can have become this."""
        return acknowledged.admits(self._sealer.without_share, self.head_id, self.head)

    def checkpoint(self, row: CheckpointRow) -> OpenedCheckpoint:
        """The checkpoint that was found with it."""
        return self.seals.checkpoint(self._sealer, row)

    def without_state(self, opened: OpenedCheckpoint) -> Loaded:
        """The answer to who did not ask for the state."""
        return self._loaded(opened.value(None, None))

    async def loaded(
        self, scope: Scope, opened: OpenedCheckpoint, reader: PieceReader, written: Sequence[OpenedWrite]
    ) -> Loaded:
        """The answer with the state: pieces are opened, and values put together from them."""
        await open_pieces(reader)
        writes = await values_of(written, reader)
        return self._loaded(await put_together(scope.tenant_id, reader, opened, lambda: opened.value(reader, writes)))

    def _loaded(self, checkpoint: Checkpoint) -> Loaded:
        macs = self._sealer.without_share
        token = ThreadToken.of(macs, self._wanted.load.namespace, self.head_id, self.head)
        if not self._is_parent_stored:
            checkpoint = replace(checkpoint, parent_id=None)
        return Loaded(
            checkpoint=checkpoint,
            head_id=self.head_id,
            token=token.encode(macs, self._wanted.load.thread_id),
        )

    async def opened_writes(self, opened: OpenedCheckpoint, rows: LoadedRows) -> list[OpenedWrite]:
        """The pending writes of the checkpoint, all of which are there.

        Raises:
            IntegrityFailure: they are not, or one does not authenticate.
        """
        written = await open_writes(self._sealer, rows.writes)
        opened.check_outcome(statuses_of(written))
        if opened.columns.checkpoint_id == self.head_id:
            compare_writes(sum_of(written), self.head.writes)
        else:
            await check_writes(self._sealer, rows.members, self.thread, self.seals.sums.writes)
        return written


def at_once(access: Access, scope: Scope, wanted: Wanted) -> AtOnce[Loaded, LoadedRows] | None:
    """How a load is one round trip; None: histories are wanted, which take more statements at the same moment."""
    load = wanted.load
    if load.history is not None:
        return None
    values = {
        "thread_id": load.thread_id,
        "namespace": load.namespace,
        "checkpoint_id": load.checkpoint_id,
        "with_state": load.with_state,
    }
    return AtOnce(sql.LOAD, values, partial(_open_at_once, access, scope, wanted))


async def _open_at_once(  # noqa: C901  what is left to a snapshot is said at one place
    access: Access, scope: Scope, wanted: Wanted, sealer: Sealer, rows: LoadedRows | None
) -> Loaded | None:
    """Make the answer of what one call found; None: only a snapshot can tell.

    Pieces below index pieces, and what opens large ones, are read afterwards, at another moment. A piece is named by
    its content, so that it is the same whenever it is found; if it is not, a prune may have come between.

    Raises:
        KeyDestroyed: the subject or tenant was shredded.
        ThreadElsewhere: the thread's rows are in its archive.
        StateTooLarge, BlobUnavailable, ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `load_in`.
        IntegrityFailure: what was found does not authenticate.
    """
    if rows is None:
        return None
    access.check_keys(scope, sealer, rows.keys_hash)
    try:
        head = _Head(sealer, wanted, rows)
        if wanted.load.known_token is not None and not head.admits(wanted.load.known_token):
            return None
        if wanted.acknowledged is not None and not head.goes_on(wanted.acknowledged):
            return None
    except StorageError:
        if wanted.load.known_token is None and wanted.acknowledged is None:
            raise
        return None  # what the caller has seen may say more than this: that the thread was replaced
    if rows.tier != "hot":
        raise ThreadElsewhere
    if rows.checkpoint is None:
        return None
    if rows.cold is not None and not rows.is_parent_stored and rows.checkpoint.parent_id is not None:
        return None  # it may be in a segment
    opened = head.checkpoint(rows.checkpoint)
    if not wanted.load.with_state:
        return head.without_state(opened)
    written = await head.opened_writes(opened, rows)
    reader = answering(sealer, refs=wanted.load.refs)
    below = reader.add(rows.pieces)
    if below or reader.in_blobs():
        blobs = await _rest(access, scope, sealer, wanted, reader, below)
        if blobs is None:
            return None
        await access.offload.fill(scope, sealer, reader, blobs)
    return await head.loaded(scope, opened, reader, written)


async def _rest(
    access: Access, scope: Scope, sealer: Sealer, wanted: Wanted, reader: PieceReader, below: Sequence[bytes]
) -> Mapping[UUID, LiveBlob] | None:
    """Read the pieces below index pieces and what opens blobs; None: something is not there, or not any more."""
    try:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await read_pieces(HotRows(transaction, wanted.load.thread_id), reader, below)
            return await access.offload.find(transaction, sealer, reader)
    except IntegrityFailure:
        return None


async def load_in(open_snapshot: OpenSnapshot, access: Access, scope: Scope, sealer: Sealer, wanted: Wanted) -> Loaded:
    """Load at one moment of several statements; what it raises is in `storage.checkpoints.verbs.Checkpoints.load`."""
    load, seen = wanted.load, wanted.acknowledged
    async with open_snapshot() as snapshot:
        transaction = snapshot.transaction
        rows = await snapshot.load(load.namespace, load.checkpoint_id, with_state=load.with_state)
        if rows is None:  # perhaps because a shred has removed the rows, too
            await access.check_keys_in(transaction, scope, sealer)
        else:
            access.check_keys(scope, sealer, rows.keys_hash)
        if load.known_token is not None:
            await check_token(transaction, sealer, load.thread_id, load.known_token)
        if rows is None:
            await check_acknowledged(transaction, sealer, load.thread_id, seen, None, None)
            await check_absent(snapshot, sealer, load.namespace)
            raise CheckpointNotFound
        head = _Head(sealer, wanted, rows)
        await check_acknowledged(transaction, sealer, load.thread_id, seen, head.head_id, head.head)
        snapshot.check_tier(rows.tier, rows.cold)
        if rows.checkpoint is None:
            if load.checkpoint_id is None or load.checkpoint_id == head.head_id:
                raise IntegrityFailure("the head's checkpoint is missing")
            await check_count(snapshot.rows, load.namespace, head.head)
            raise CheckpointNotFound
        opened = head.checkpoint(rows.checkpoint)
        reader = answering(sealer, refs=load.refs)
        written, together = None, None
        if load.with_state:
            await read_pieces(snapshot.rows, reader, reader.add(rows.pieces))
            written = await head.opened_writes(opened, rows)
        if load.history is not None:
            wanted_history = channel_histories.Wanted(load.namespace, load.history, load.mark, wanted.names)
            at = channel_histories.At(sealer, head.seals, opened)
            together = await channel_histories.read(snapshot.rows, reader, at, wanted_history)
        blobs = await access.offload.find(transaction, sealer, reader)
    await access.offload.fill(scope, sealer, reader, blobs)
    loaded = head.without_state(opened) if written is None else await head.loaded(scope, opened, reader, written)
    return loaded if together is None else replace(loaded, histories=await together())
