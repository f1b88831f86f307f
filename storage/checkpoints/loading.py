"""Loading one checkpoint: with one function of the database, or in a snapshot that can ask further.

`at_once` is one round trip, and the only one for most loads. What it finds is opened and compared like what a
snapshot finds; it refuses nothing that one moment of several statements would explain better: whatever is missing, is
older than the caller has seen, or was removed meanwhile is left to `load_in`, which begins anew and says so.

Nothing is written. Whether the rows are in the database or in the thread's archive is for `storage.access.access` to
find out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.access import Access, AtOnce
from storage.access.archive_views import Snapshot
from storage.access.archived import ThreadElsewhere, check_tier
from storage.access.completeness import (
    RowSeals,
    check_absent,
    check_acknowledged,
    check_count,
    check_members,
    check_token,
    check_writes,
    compare_writes,
)
from storage.access.offload import answering
from storage.checkpoints.piece_rows import open_pieces, put_together, values_of
from storage.checkpoints.reading import open_write_arrays, read_chunks, statuses_of, sum_of
from storage.errors import CheckpointNotFound, IntegrityFailure, StorageError
from storage.format.record import PIECE_COLUMNS, OpenedCheckpoint, OpenedWrite, PieceReader
from storage.format.token import ThreadToken
from storage.ledger.ledger import LiveBlob
from storage.model import Checkpoint, Load, Loaded
from storage.postgres import checkpoints as sql
from storage.scope import Scope

_PIECE_ARRAYS = [f"p_{name}" for name in PIECE_COLUMNS]
_MEMBER_ARRAYS = ("m_namespace", "m_checkpoint_id", "m_task_id", "m_idx", "m_member")


class Wanted(msgspec.Struct, frozen=True):
    """What to load, and what this process acknowledged of its namespace."""

    load: Load
    acknowledged: ThreadToken | None = None


class _Standing:
    """A row's seals, and what is answered with them."""

    def __init__(self, sealer: Sealer, wanted: Wanted, row: Any) -> None:
        seals = RowSeals.open(sealer, wanted.load.thread_id, wanted.load.namespace, row)
        self.head_id, self.thread, self.head = seals.head_id, seals.thread, seals.head
        self._seals = seals
        # A prune may have removed it; then nothing can be read at its name.
        self._parent_stored = row["at_parent"]
        self._sealer = sealer
        self._wanted = wanted

    def admits(self, known_token: str) -> bool:
        """Whether what the caller has seen can have become this; False: or it is of another namespace or life."""
        macs = self._sealer.without_share
        token = ThreadToken.decode(macs, self._wanted.load.thread_id, known_token)
        return token.namespace == self._wanted.load.namespace and token.admits(macs, self.head_id, self.head)

    def goes_on(self, acknowledged: ThreadToken) -> bool:
        """As `admits`, of what this process acknowledged itself."""
        return acknowledged.admits(self._sealer.without_share, self.head_id, self.head)

    def checkpoint(self, row: Any) -> OpenedCheckpoint:
        """The checkpoint that the row has."""
        return self._seals.checkpoint(self._sealer, row)

    def without_state(self, opened: OpenedCheckpoint) -> Loaded:
        """The answer to who did not ask for the state."""
        return self._loaded(opened.value(None, None))

    async def loaded(
        self, scope: Scope, opened: OpenedCheckpoint, reader: PieceReader, written: Sequence[OpenedWrite]
    ) -> Loaded:
        """The answer."""
        await open_pieces(reader)
        writes = await values_of(written, reader)
        return self._loaded(await put_together(scope.tenant_id, reader, opened, lambda: opened.value(reader, writes)))

    def _loaded(self, checkpoint: Checkpoint) -> Loaded:
        macs = self._sealer.without_share
        token = ThreadToken.of(macs, self._wanted.load.namespace, self.head_id, self.head)
        if not self._parent_stored:
            checkpoint = replace(checkpoint, parent_id=None)
        return Loaded(
            checkpoint=checkpoint,
            head_id=self.head_id,
            token=token.encode(macs, self._wanted.load.thread_id),
        )


def _pieces(sealer: Sealer, wanted: Wanted, row: Any) -> tuple[PieceReader, list[bytes]]:
    """The pieces that came with a row, and which of those that they name did not."""
    reader = answering(sealer, refs=wanted.load.refs)
    return reader, reader.add(zip(*(row[name] or () for name in _PIECE_ARRAYS), strict=True))


def at_once(access: Access, scope: Scope, wanted: Wanted) -> AtOnce[Loaded]:
    """How a load is one round trip."""
    arguments = (wanted.load.thread_id, wanted.load.namespace, wanted.load.checkpoint_id, wanted.load.with_state)
    return AtOnce(sql.LOAD_AT_ONCE, arguments, partial(_open_at_once, access, scope, wanted))


async def _open_at_once(  # noqa: C901  what is left to a snapshot is said at one place
    access: Access, scope: Scope, wanted: Wanted, sealer: Sealer, row: Any
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
    if row is None:
        return None
    access.check_keys(scope, sealer, row["keys_hash"])
    try:
        standing = _Standing(sealer, wanted, row)
        if wanted.load.known_token is not None and not standing.admits(wanted.load.known_token):
            return None
        if wanted.acknowledged is not None and not standing.goes_on(wanted.acknowledged):
            return None
    except StorageError:
        if wanted.load.known_token is None and wanted.acknowledged is None:
            raise
        return None  # what the caller has seen may say more than this: that the thread was replaced
    if row["at_tier"] != "hot":
        raise ThreadElsewhere
    if row["checkpoint_id"] is None:
        return None
    opened = standing.checkpoint(row)
    if not wanted.load.with_state:
        return standing.without_state(opened)
    written = await open_write_arrays(sealer, row)
    opened.check_outcome(statuses_of(written))
    if row["checkpoint_id"] == standing.head_id:
        compare_writes(sum_of(written), standing.head.writes)
    else:
        members = [*zip(*(row[name] or () for name in _MEMBER_ARRAYS), strict=True)]
        await check_members(sealer, members, standing.thread)
    reader, below = _pieces(sealer, wanted, row)
    if below or reader.in_blobs():
        blobs = await _rest(access, scope, sealer, wanted, reader, below)
        if blobs is None:
            return None
        await access.offload.fill(scope, sealer, reader, blobs)
    return await standing.loaded(scope, opened, reader, written)


async def _rest(
    access: Access, scope: Scope, sealer: Sealer, wanted: Wanted, reader: PieceReader, below: Sequence[bytes]
) -> Mapping[UUID, LiveBlob] | None:
    """Read the pieces below index pieces and what opens blobs; None: something is not there, or not any more."""
    try:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await read_chunks(transaction, scope, reader, wanted.load.thread_id, below)
            return await access.offload.find(transaction, scope, sealer, reader)
    except IntegrityFailure:
        return None


async def load_in(snapshot: Snapshot, access: Access, scope: Scope, sealer: Sealer, wanted: Wanted) -> Loaded:
    """Load at one moment of several statements; what it raises is in `storage.checkpoints.verbs.Checkpoints.load`."""
    thread_id, namespace = wanted.load.thread_id, wanted.load.namespace
    async with snapshot() as transaction:
        row = await transaction.fetchrow(
            sql.LOAD,
            scope.tenant_id,
            scope.subject_id,
            thread_id,
            namespace,
            wanted.load.checkpoint_id,
            wanted.load.with_state,
        )
        if row is None:  # perhaps because a shred has removed the rows, too
            await access.check_keys_in(transaction, scope, sealer)
        else:
            access.check_keys(scope, sealer, row["keys_hash"])
        if wanted.load.known_token is not None:
            await check_token(transaction, scope, sealer, thread_id, wanted.load.known_token)
        if row is None:
            await check_acknowledged(transaction, scope, sealer, thread_id, wanted.acknowledged, None, None)
            await check_absent(transaction, scope, sealer, thread_id, namespace)
            raise CheckpointNotFound
        standing = _Standing(sealer, wanted, row)
        seen = wanted.acknowledged
        await check_acknowledged(transaction, scope, sealer, thread_id, seen, standing.head_id, standing.head)
        check_tier(transaction, row["at_tier"])
        if row["checkpoint_id"] is None:
            if wanted.load.checkpoint_id is None or wanted.load.checkpoint_id == standing.head_id:
                raise IntegrityFailure("the head's checkpoint is missing")
            await check_count(transaction, scope, thread_id, namespace, standing.head)
            raise CheckpointNotFound
        opened = standing.checkpoint(row)
        if not wanted.load.with_state:
            return standing.without_state(opened)
        reader, below = _pieces(sealer, wanted, row)
        await read_chunks(transaction, scope, reader, thread_id, below)
        written = await open_write_arrays(sealer, row)
        opened.check_outcome(statuses_of(written))
        if row["checkpoint_id"] == standing.head_id:
            compare_writes(sum_of(written), standing.head.writes)
        else:
            await check_writes(transaction, scope, sealer, thread_id, standing.thread)
        blobs = await access.offload.find(transaction, scope, sealer, reader)
    await access.offload.fill(scope, sealer, reader, blobs)
    return await standing.loaded(scope, opened, reader, written)
