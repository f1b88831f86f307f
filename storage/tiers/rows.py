"""The reads of rows that move between tiers: checkpoints with their tags, pending writes and pieces.

`Rows` is what a verb that reads a thread asks. It has two sources, the database (`storage.tiers.hot`) and rows that
were read from an archive (`storage.tiers.cold`), their union (`storage.tiers.union`), and the rows of a thread of which
a part is in segments (`storage.tiers.segments`); all answer the same for the same rows. Texts are ordered by their
bytes, which is the order of their code points, and limits count rows.

It owns no row that stays in the database whatever the tier: the thread's own, heads, keys and blobs are asked of the
transaction beside it (`storage.tiers.snapshots`). Nothing is opened here, and nothing is written.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from storage.format.chain import LiveSet
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.model import HistoryQuery
from storage.statements.threads.tags import TagUse

# A checkpoint of a subject: its thread, namespace and id.
Reference = tuple[str, str, str]
# A write of a thread: its namespace, checkpoint, task and position.
WriteKey = tuple[str, str, str, int]
# Before the first write of a thread.
BEFORE_WRITES: WriteKey = ("", "", "", -(2**31))


class PageEnds(Exception):
    """A page of history ends here, although there is more: the next one begins ``after`` this place.

    ``rows`` are those that belong on it before that place.
    """

    def __init__(self, rows: "Sequence[CheckpointRow]", after: Reference) -> None:
        super().__init__()
        self.rows = rows
        self.after = after


class Search(msgspec.Struct, frozen=True):
    """By which tags a listing finds checkpoints; none: it does not.

    Attributes:
        names: The metadata keys that are looked for, the most selective first.
        tags: The tag of each.
        untagged_threads: Threads of which not every checkpoint is tagged by the first key, so that they are looked
            through; None: too many, and all rows are.
    """

    names: Sequence[str] = ()
    tags: Sequence[bytes] = ()
    untagged_threads: Sequence[str] | None = None


class Listing(Protocol):
    """What a page of history asks, of a thread or of all threads of a subject."""

    async def tag_uses(self, names: Sequence[str], tags: Sequence[bytes]) -> list[TagUse]:
        """How each of these keys is used with its tag; empty, if there is nothing to look through."""

    async def history(
        self, query: HistoryQuery, search: Search, after: Sequence[str] | None, limit: int
    ) -> list[CheckpointRow]:
        """Checkpoints, newest first, that are not excluded by the query's clear columns or by a tag.

        ``after`` is the id, thread and namespace of the checkpoint to go on after; None: begin with the newest.
        """

    async def stored(self, references: Collection[Reference]) -> set[Reference]:
        """Those of these checkpoints that are stored."""


class Rows(Listing, Protocol):
    """What is read of one thread, wherever its rows are."""

    async def checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        """The checkpoint of this id; None: it is not stored, or there is no id."""

    async def ancestors(self, namespace: str, checkpoint_id: str, limit: int) -> list[CheckpointRow]:
        """A checkpoint and those it was made from, nearest first, as far as they are stored."""

    async def count(self, namespace: str) -> int:
        """The number of checkpoints of a namespace."""

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """Those of these pieces that are stored, in no order."""

    async def writes_of(
        self, namespace: str, checkpoint_ids: Sequence[str], task_id: str | None = None
    ) -> list[WriteRow]:
        """The pending writes of checkpoints, or of one task of theirs, by checkpoint, task path, task and position."""

    async def members(self) -> list[MemberRow]:
        """The keys and members of all of the thread's pending writes but those in segments, in no order."""

    @property
    def cold_writes(self) -> LiveSet:
        """The sum of the pending writes in segments."""


class WholeRows(Rows, Protocol):
    """What is read of a thread, or of the part of it that is in no segment, by a reader of all of it."""

    async def checkpoints_after(self, namespace: str, after: str, limit: int) -> list[CheckpointRow]:
        """The checkpoints of a namespace with greater ids, in the order of their ids."""

    async def next_checkpoint(self, namespace: str, after: str) -> str | None:
        """The least id of a checkpoint of a namespace that is greater than this one."""

    async def namespaces(self) -> list[str]:
        """The namespaces that have checkpoints, in order."""

    async def pieces_after(self, after: bytes, limit: int) -> list[PieceRow]:
        """The pieces with greater ids, in the order of their ids."""

    async def writes_after(self, after: WriteKey, limit: int) -> list[WriteRow]:
        """The thread's pending writes behind a key, in the order of their keys."""


def history_order(row: CheckpointRow) -> Reference:
    """What history is ordered by, descending."""
    return row.checkpoint_id, row.thread_id, row.namespace


def task_order(row: WriteRow) -> tuple[str, str, str, int]:
    """What the writes of checkpoints are ordered by."""
    return row.checkpoint_id, row.task_path, row.task_id, row.idx


def write_key(row: WriteRow | MemberRow) -> WriteKey:
    """What tells a write from the others of its thread."""
    return row.namespace, row.checkpoint_id, row.task_id, row.idx
