"""One moment of a thread, or of a subject: what is in the database, and the rows that may be elsewhere.

A verb that reads opens snapshots by what it is given. It asks `Snapshot.rows` for checkpoints, pending writes and
pieces, and the transaction for what stays in the database; before it relies on the former it checks the thread's tier.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from storage.format.chain import LiveSet
from storage.format.cold.segment import ColdSums
from storage.postgres.unit_of_work import Transaction
from storage.statements.keys.keys import HASH_NOW
from storage.statements.threads import checkpoints as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.checkpoints import LoadedRows
from storage.statements.threads.threads import HeadRow, ThreadRow
from storage.tiers.hot import HotListing, HotRows
from storage.tiers.rows import Listing, Rows, WholeRows
from storage.tiers.segments import SegmentedRows

_PIECE_ID_BYTES = 17


class ThreadElsewhere(Exception):
    """Rows that may come next are not in the database: the thread is in the archive tier, or has segments."""


class Snapshot(msgspec.Struct, frozen=True):
    """One thread at one moment.

    Attributes:
        transaction: What reads the rows that stay in the database.
        thread_id: The id of the thread.
        rows: Those that move between tiers, wherever they are.
        unsegmented: Those of them that are in no segment.
        sums: What is in segments; None: whether the thread has some was not looked at, and none are in sight.
        is_archived: The rows that are in no segment are the ones of its archive.
    """

    transaction: Transaction
    thread_id: str
    rows: Rows
    unsegmented: WholeRows
    sums: ColdSums | None = None
    is_archived: bool = False

    @classmethod
    def hot(cls, transaction: Transaction, thread_id: str) -> "Snapshot":
        """Of a thread whose rows are in the database."""
        rows = HotRows(transaction, thread_id)
        return cls(transaction, thread_id, rows, rows)

    @property
    def listing(self) -> Listing:
        """What a page of history asks."""
        return self.rows

    def rows_of(self, thread_id: str) -> Rows:
        """The rows of a thread on a page of history: of this one."""
        assert thread_id == self.thread_id  # noqa: S101  for the reader: the page has no other
        return self.rows

    def check_tier(self, tier: str | None, cold: bytes | None) -> None:
        """Go on if the rows of the thread, which is in this tier, are in sight; ``cold``: it has segments.

        Raises:
            ThreadElsewhere: Some are in its archive: read them by
                `storage.access.access.Access.with_thread_snapshots`.
        """
        if (tier != "hot" and not self.is_archived) or (cold is not None and self.sums is None):
            raise ThreadElsewhere

    async def thread(self) -> ThreadRow | None:
        """The thread's own row."""
        return await self.transaction.fetch_one(threads_sql.READ, thread_id=self.thread_id)

    async def heads(self) -> list[HeadRow]:
        """The heads of its namespaces that are in the database."""
        return await self.transaction.fetch_all(threads_sql.HEADS, thread_id=self.thread_id)

    async def cold_head(self, namespace: str) -> HeadRow | None:
        """The head of one namespace that is cold as a whole."""
        found = await self.rows.cold_head(namespace) if isinstance(self.rows, SegmentedRows) else None
        return None if found is None else found.row

    @property
    def cold_namespaces(self) -> LiveSet:
        """The sum of the namespaces that are cold as a whole, whose heads are not in the database."""
        return LiveSet() if self.sums is None else self.sums.namespaces

    async def load(self, namespace: str, checkpoint_id: str | None, *, with_state: bool) -> LoadedRows | None:
        """A checkpoint, or the head's, with everything that a load needs; None: the namespace has no head.

        ``checkpoint_id`` None: the head. ``with_state``: pending writes, pieces and members are wanted.
        """
        found = await self.transaction.fetch_one(
            sql.LOAD,
            thread_id=self.thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            with_state=with_state,
        )
        if found is None:
            found = await self._load_cold(namespace)
        if found is None or (not self.is_archived and self.sums is None):
            return found
        return await load_from(self, found, namespace, checkpoint_id, with_state=with_state)

    async def _load_cold(self, namespace: str) -> LoadedRows | None:
        """What a load finds of a namespace that is cold as a whole, without its rows; None: it is none."""
        at = await self.rows.cold_head(namespace) if isinstance(self.rows, SegmentedRows) else None
        row = None if at is None else await self.thread()
        if at is None or row is None:
            return None
        head = at.row
        return LoadedRows(
            head_id=head.head_id,
            sequence=head.sequence,
            head_seal=head.seal,
            thread_seal=row.seal,
            thread_created_at=row.created_at,
            tier=row.tier,
            cold=row.cold,
            is_newer=False,
            is_parent_stored=False,
            keys_hash=await self.transaction.fetch_only(HASH_NOW),
            checkpoint=None,
            writes=[],
            pieces=[],
            members=[],
        )


class SubjectSnapshot(msgspec.Struct, frozen=True):
    """All hot threads of a subject at one moment."""

    transaction: Transaction

    @property
    def listing(self) -> Listing:
        """What a page of history asks."""
        return HotListing(self.transaction, None)

    def rows_of(self, thread_id: str) -> Rows:
        """The rows of a thread on a page of history."""
        return HotRows(self.transaction, thread_id)


OpenSnapshot = Callable[[], AbstractAsyncContextManager[Snapshot]]


async def load_from(
    snapshot: Snapshot, stored: LoadedRows, namespace: str, checkpoint_id: str | None, *, with_state: bool
) -> LoadedRows:
    """What a load finds where not all rows are in the database: its seals, with the rows of the snapshot.

    ``checkpoint_id`` None: the head. ``with_state``: pending writes, pieces and members are wanted.
    """
    rows = snapshot.rows
    found = await rows.checkpoint(namespace, stored.head_id if checkpoint_id is None else checkpoint_id)
    is_newer = await snapshot.unsegmented.next_checkpoint(namespace, stored.head_id) is not None
    parent = set()
    if found is not None and found.parent_id is not None:
        parent = await rows.stored({(snapshot.thread_id, namespace, found.parent_id)})
    writes = await rows.writes_of(namespace, [found.checkpoint_id]) if with_state and found is not None else []
    packed = [] if found is None else [found.piece_ids, *(row.piece_ids for row in writes)]
    named = dict.fromkeys(piece_id for ids in packed for piece_id in _unpacked(ids))
    is_other = found is not None and found.checkpoint_id != stored.head_id
    return msgspec.structs.replace(
        stored,
        checkpoint=found,
        is_newer=is_newer,
        is_parent_stored=bool(parent),
        writes=writes,
        pieces=await rows.pieces(list(named)) if with_state else [],
        members=await rows.members() if with_state and is_other else [],
    )


def _unpacked(packed: bytes) -> list[bytes]:
    """The ids in a packed column, as the statement takes them apart: what is no whole id is passed over."""
    return [packed[at : at + _PIECE_ID_BYTES] for at in range(0, len(packed) - _PIECE_ID_BYTES + 1, _PIECE_ID_BYTES)]
