"""The rows of an archived thread, in memory, read as if they were in the database.

They are found as PostgreSQL finds them: text compares by its bytes (collation "C"; code points of Unicode have the
order of their UTF-8), a condition on NULL does not hold, and order and limit are the statement's. So what a reader gets
is what it got before, to the byte, and seals that stayed behind prove that the rows are complete.

It promises nothing about where the rows come from (`storage.tiers.objects`), opens none, and never writes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from storage.errors import IntegrityFailure
from storage.format.chain import NO_WRITES, LiveSet
from storage.format.cold.archive import StoredRow, ThreadRows, row_of
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.model import HistoryQuery
from storage.statements.threads.tags import COUNTED_MAX, TagUse
from storage.tiers.rows import Reference, Search, WriteKey, task_order, write_key

R = TypeVar("R", CheckpointRow, WriteRow, PieceRow)
# A checkpoint of a thread as history orders it: its id and its namespace.
_CheckpointKey = tuple[str, str]


class ColdPieces:
    """Pieces of one thread. Nothing in them is opened.

    Raises:
        IntegrityFailure: A row is of another thread, or two have one id.
    """

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._pieces: dict[bytes, PieceRow] = {}

    def add(self, rows: Iterable[StoredRow]) -> None:
        """Take some more."""
        for row in _structs(self._thread_id, rows, PieceRow):
            if self._pieces.setdefault(row.piece_id, row) is not row:
                raise IntegrityFailure("an archive holds a row twice")

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""
        return [self._pieces[each] for each in dict.fromkeys(piece_ids) if each in self._pieces]


class ColdRows:
    """The rows of one archived thread. Nothing in them is opened.

    Raises:
        IntegrityFailure: A row is of another thread, or two have one primary key.
    """

    def __init__(self, thread_id: str, rows: ThreadRows) -> None:
        self._thread_id = thread_id
        self._checkpoints = _indexed(_structs(thread_id, rows.checkpoints, CheckpointRow), _checkpoint_key)
        self._searchable = {
            (row["checkpoint_id"], row["namespace"]): frozenset(row["searchable"] or ()) for row in rows.checkpoints
        }
        self._order = sorted(self._checkpoints)  # of one thread, this is the order of history, ascending
        self._writes = _indexed(_structs(thread_id, rows.writes, WriteRow), write_key)
        self._pieces = _indexed(_structs(thread_id, rows.chunks, PieceRow), lambda row: row.piece_id)
        self._tags: dict[_CheckpointKey, set[bytes]] = {}
        for row in _own(thread_id, rows.tags):
            tags = self._tags.setdefault((row["checkpoint_id"], row["namespace"]), set())
            if row["tag"] in tags:
                raise IntegrityFailure("an archive holds a row twice")
            tags.add(row["tag"])
        self._ids: dict[str, list[str]] = {}
        for checkpoint_id, namespace in self._order:
            self._ids.setdefault(namespace, []).append(checkpoint_id)

    @cached_property
    def _write_order(self) -> list[WriteKey]:
        return sorted(self._writes)

    @cached_property
    def _piece_order(self) -> list[bytes]:
        return sorted(self._pieces)

    @cached_property
    def _writes_of(self) -> dict[_CheckpointKey, list[WriteRow]]:
        found: dict[_CheckpointKey, list[WriteRow]] = {}
        for row in self._writes.values():
            found.setdefault((row.checkpoint_id, row.namespace), []).append(row)
        for some in found.values():
            some.sort(key=task_order)
        return found

    # --- listings --------------------------------------------------------------------------------------------------

    async def tag_uses(self, names: Sequence[str], tags: Sequence[bytes]) -> list[TagUse]:
        """As `storage.tiers.rows.Listing.tag_uses`.

        The row of a thread may say of fewer keys that all of its checkpoints are tagged by them than are; that decides
        in which order rows are looked at, and not which are found.
        """

        def use(name: str, tag: bytes) -> TagUse:
            every = all(name in searchable for searchable in self._searchable.values())
            count = sum(tag in own for own in self._tags.values())
            return TagUse(name, tag, [] if every else [self._thread_id], min(count, COUNTED_MAX))

        return [use(name, tag) for name, tag in zip(names, tags, strict=True)]

    async def history(
        self, query: HistoryQuery, search: Search, after: Sequence[str] | None, limit: int
    ) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Listing.history`."""
        found = (row for row in self._listed(query, after) if self._is_possible(_checkpoint_key(row), search))
        return list(islice(found, limit))

    def _is_possible(self, key: _CheckpointKey, search: Search) -> bool:
        """Whether a checkpoint is looked at, and no key that it is tagged by lacks the tag that is looked for."""
        tagged_by, own = self._searchable[key], self._tags.get(key, ())
        untagged = search.untagged_threads
        if untagged is not None and search.names[0] not in tagged_by and self._thread_id not in untagged:
            return False
        return all(tag in own for name, tag in zip(search.names, search.tags, strict=True) if name in tagged_by)

    def _listed(self, query: HistoryQuery, after: Sequence[str] | None) -> Iterator[CheckpointRow]:
        """The checkpoints that a listing asks for by their clear columns, newest first."""
        end = len(self._order)
        if query.before is not None:
            end = bisect_left(self._order, (query.before, ""))
        if after is not None:
            end = min(end, self._end_after(*after))
        for position in range(end - 1, -1, -1):
            row = self._checkpoints[self._order[position]]
            if (
                (query.namespace is None or row.namespace == query.namespace)
                and (query.status is None or (row.status if row.outcome is None else row.outcome) == query.status)
                and (query.step is None or row.step == query.step)
                and (query.run_id is None or row.run_id == query.run_id)
                and (query.source is None or row.source == query.source)
                and (query.agent is None or row.agent == query.agent)
                and (query.since is None or row.created_at >= query.since)
                and (query.until is None or row.created_at < query.until)
            ):
                yield row

    def _end_after(self, checkpoint_id: str, thread_id: str, namespace: str) -> int:
        """Where the rows end that come after this one in history: of equal ids the thread decides, then the name."""
        if self._thread_id == thread_id:
            return bisect_left(self._order, (checkpoint_id, namespace))
        if self._thread_id < thread_id:
            return bisect_right(self._order, checkpoint_id, key=lambda each: each[0])
        return bisect_left(self._order, (checkpoint_id, ""))

    async def stored(self, references: Collection[Reference]) -> set[Reference]:
        """As `storage.tiers.rows.Listing.stored`."""
        return {
            (thread_id, namespace, checkpoint_id)
            for thread_id, namespace, checkpoint_id in references
            if thread_id == self._thread_id and (checkpoint_id, namespace) in self._checkpoints
        }

    # --- checkpoints -----------------------------------------------------------------------------------------------

    async def checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        """As `storage.tiers.rows.Rows.checkpoint`."""
        return self._checkpoint(namespace, checkpoint_id)

    def _checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        return None if checkpoint_id is None else self._checkpoints.get((checkpoint_id, namespace))

    async def checkpoints_after(self, namespace: str, after: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.checkpoints_after`."""
        ids = self._ids.get(namespace, [])
        start = bisect_right(ids, after)
        return [self._checkpoints[each, namespace] for each in ids[start : start + limit]]

    async def next_checkpoint(self, namespace: str, after: str) -> str | None:
        """As `storage.tiers.rows.Rows.next_checkpoint`."""
        ids = self._ids.get(namespace, [])
        start = bisect_right(ids, after)
        return ids[start] if start < len(ids) else None

    async def ancestors(self, namespace: str, checkpoint_id: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.ancestors`."""
        line: list[CheckpointRow] = []
        found = self._checkpoint(namespace, checkpoint_id)
        while found is not None and len(line) < limit:
            line.append(found)
            found = self._checkpoint(namespace, found.parent_id)
        return line

    async def count(self, namespace: str) -> int:
        """As `storage.tiers.rows.Rows.count`."""
        return len(self._ids.get(namespace, []))

    async def namespaces(self) -> list[str]:
        """As `storage.tiers.rows.Rows.namespaces`."""
        return sorted(self._ids)

    # --- pieces and writes -----------------------------------------------------------------------------------------

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""
        return [self._pieces[each] for each in dict.fromkeys(piece_ids) if each in self._pieces]

    async def pieces_after(self, after: bytes, limit: int) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces_after`."""
        start = bisect_right(self._piece_order, after)
        return [self._pieces[each] for each in self._piece_order[start : start + limit]]

    async def writes_of(
        self, namespace: str, checkpoint_ids: Sequence[str], task_id: str | None = None
    ) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_of`."""
        return [
            row
            for checkpoint_id in sorted({*checkpoint_ids})
            for row in self._writes_of.get((checkpoint_id, namespace), ())
            if task_id is None or row.task_id == task_id
        ]

    async def writes_after(self, after: WriteKey, limit: int) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_after`."""
        start = bisect_right(self._write_order, after)
        return [self._writes[each] for each in self._write_order[start : start + limit]]

    async def members(self) -> list[MemberRow]:
        """As `storage.tiers.rows.Rows.members`."""
        return [
            MemberRow(row.namespace, row.checkpoint_id, row.task_id, row.idx, row.member)
            for row in self._writes.values()
        ]

    @property
    def cold_writes(self) -> LiveSet:
        """As `storage.tiers.rows.Rows.cold_writes`: of none."""
        return NO_WRITES


def _checkpoint_key(row: CheckpointRow) -> _CheckpointKey:
    return row.checkpoint_id, row.namespace


def _own(thread_id: str, rows: Iterable[StoredRow]) -> Iterator[StoredRow]:
    for row in rows:
        if row["thread_id"] != thread_id:
            raise IntegrityFailure("an archive holds a row of another thread")
        yield row


def _structs(thread_id: str, rows: Iterable[StoredRow], kind: type[R]) -> Iterator[R]:
    return (row_of(kind, row) for row in _own(thread_id, rows))


def _indexed(rows: Iterable[R], key: Callable[[R], Any]) -> dict[Any, R]:
    found: dict[Any, R] = {}
    for row in rows:
        if found.setdefault(key(row), row) is not row:
            raise IntegrityFailure("an archive holds a row twice")
    return found
