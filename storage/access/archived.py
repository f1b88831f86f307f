"""An archived thread read as if it were hot: the statements of the reading path, answered from the rows of its archive.

A verb that reads runs unchanged on an `ArchivedTransaction`. What it asks of threads, heads, keys and blobs goes to the
snapshot it wraps, because those rows stay; what it asks of checkpoints, chunks and pending writes is answered here as
PostgreSQL would answer it: text compares by its bytes (collation "C"; code points of Unicode have the order of their
UTF-8), a condition on NULL does not hold, and order and limit are the statement's. So what a reader gets is what it got
before, to the byte, and seals that stayed behind prove that the rows are complete.

It owns no statement: it knows each by its text, and refuses one that touches the rows that moved and that it does not
know. It promises nothing about where the rows come from (`storage.archive.moving`), and it never writes.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from itertools import islice
from typing import Any, Final, NoReturn, TypeVar

from storage.errors import IntegrityFailure
from storage.format.archive import TABLES, ThreadRows
from storage.format.record import PIECE_COLUMNS
from storage.postgres import checkpoints as checkpoints_sql
from storage.postgres import completeness as completeness_sql
from storage.postgres import pieces as pieces_sql
from storage.postgres import tags as tags_sql
from storage.postgres import threads as threads_sql
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope

R = TypeVar("R")

_PIECE_ID_BYTES: Final = 17
_MOVED = re.compile(rf"\bstateroom\.(?:{'|'.join(TABLES)})\b")


class ThreadElsewhere(Exception):
    """The rows that come next are not in the database: the thread is in the archive tier."""


class UnansweredStatement(Exception):
    """A statement on rows that moved into the archive, which nobody here knows how to answer from it."""


class Row:
    """A row as asyncpg's: by name, by position, and to unpack."""

    __slots__ = ("_positions", "_values")

    def __init__(self, positions: Mapping[str, int], values: Sequence[Any]) -> None:
        """``positions``: of each column in ``values``."""
        self._positions = positions
        self._values = values

    def __getitem__(self, at: str | int) -> Any:
        """A column's value."""
        return self._values[self._positions[at] if isinstance(at, str) else at]

    def __iter__(self) -> Iterator[Any]:
        """The values, in the order of the columns."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many columns there are."""
        return len(self._values)

    def keys(self) -> Iterator[str]:
        """The columns."""
        return iter(self._positions)

    def items(self) -> Iterator[tuple[str, Any]]:
        """The columns with their values."""
        return zip(self._positions, self._values, strict=True)


class _Columns:
    """What a statement selects."""

    def __init__(self, names: Iterable[str]) -> None:
        self.positions = {name: position for position, name in enumerate(names)}

    def of(self, stored: Mapping[str, Any]) -> Row:
        """The row of a stored one."""
        return Row(self.positions, [stored[name] for name in self.positions])

    def row(self, *values: Any) -> Row:
        """A row of these values."""
        return Row(self.positions, values)


_CHECKPOINT: Final = _Columns(checkpoints_sql.ROW_COLUMNS)
_WRITE: Final = _Columns(checkpoints_sql.WRITE_COLUMNS)
_CHUNK: Final = _Columns(PIECE_COLUMNS)
_MEMBER: Final = _Columns(("namespace", "checkpoint_id", "task_id", "idx", "member"))
_NAMESPACE: Final = _Columns(("namespace",))
_PLACE: Final = _Columns(("thread_id", "namespace", "checkpoint_id"))
_STANDING: Final = _Columns(("name", "tag", "open", "tags"))
_EXISTS: Final = _Columns(("exists",))
_COUNT: Final = _Columns(("count",))
_MIN: Final = _Columns(("min",))

_Stored = Mapping[str, Any]


class ArchivedThread:
    """The rows of one archived thread, found by what statements look for. Nothing in it is opened.

    Raises:
        IntegrityFailure: A row is of another thread, or two have one primary key.
    """

    def __init__(self, thread_id: str, rows: ThreadRows) -> None:
        """Index the rows."""
        self.thread_id = thread_id
        self._checkpoints = _indexed(thread_id, rows.checkpoints, _place_of_checkpoint)
        self._order = sorted(self._checkpoints)  # one thread: history's order, ascending
        self._writes = _indexed(thread_id, rows.writes, _place_of_write)
        self._chunks = _indexed(thread_id, rows.chunks, lambda row: row["piece_id"])
        tags = _indexed(thread_id, rows.tags, lambda row: (*_place_of_checkpoint(row), row["tag"]))
        self._tags: dict[tuple[str, str], set[bytes]] = {}
        for checkpoint_id, namespace, tag in tags:
            self._tags.setdefault((checkpoint_id, namespace), set()).add(tag)
        self._writes_of: dict[tuple[str, str], list[_Stored]] = {}
        for row in self._writes.values():
            self._writes_of.setdefault((row["namespace"], row["checkpoint_id"]), []).append(row)
        for some in self._writes_of.values():
            some.sort(key=lambda row: (row["task_path"], row["task_id"], row["idx"]))
        self._ids: dict[str, list[str]] = {}
        for checkpoint_id, namespace in self._order:
            self._ids.setdefault(namespace, []).append(checkpoint_id)

    # --- what statements look for ----------------------------------------------------------------------------------

    @cached_property
    def _write_order(self) -> list[tuple[str, str, str, int]]:
        return sorted(self._writes)

    @cached_property
    def _piece_order(self) -> list[bytes]:
        return sorted(self._chunks)

    def checkpoint(self, namespace: str, checkpoint_id: str | None) -> _Stored | None:
        """One checkpoint."""
        return None if checkpoint_id is None else self._checkpoints.get((checkpoint_id, namespace))

    def writes_of(self, namespace: str, checkpoint_id: str) -> list[_Stored]:
        """The pending writes of a checkpoint, by task path, task and position."""
        return self._writes_of.get((namespace, checkpoint_id), [])

    def pieces(self, wanted: Iterable[bytes]) -> list[_Stored]:
        """Those of these pieces that there are."""
        return [self._chunks[each] for each in dict.fromkeys(wanted) if each in self._chunks]

    # --- the statements, each with the arguments that follow the thread's place ------------------------------------

    def one(self, namespace: str, checkpoint_id: str | None) -> list[Row]:
        """Answer `storage.postgres.checkpoints.ONE`."""
        found = self.checkpoint(namespace, checkpoint_id)
        return [] if found is None else [_CHECKPOINT.of(found)]

    def stored_of(self, namespaces: Sequence[str], checkpoint_ids: Sequence[str]) -> list[Row]:
        """Answer `storage.postgres.checkpoints.STORED_OF`."""
        places = zip(namespaces, checkpoint_ids, strict=True)
        return [_PLACE.row(self.thread_id, *place) for place in places if self.checkpoint(*place) is not None]

    def history(self, *wanted: Any) -> list[Row]:
        """Answer `storage.postgres.checkpoints.HISTORY`; its last argument is the limit."""
        return list(islice(map(_CHECKPOINT.of, self._listed(*wanted[:-1])), wanted[-1]))

    def history_unless_excluded(self, *wanted: Any) -> list[Row]:
        """Answer `storage.postgres.tags.HISTORY_UNLESS_EXCLUDED`."""
        *listed, limit, names, tags = wanted
        found = (row for row in self._listed(*listed) if self._possible(row, names, tags))
        return list(islice(map(_CHECKPOINT.of, found), limit))

    def history_by_tag(self, *wanted: Any) -> list[Row]:
        """Answer `storage.postgres.tags.HISTORY_BY_TAG`."""
        *listed, limit, names, tags, untagged_threads = wanted
        looked_through = self.thread_id in untagged_threads

        def found() -> Iterator[_Stored]:
            for row in self._listed(*listed):
                tagged = names[0] in (row["searchable"] or ())
                at = tags[0] in self._tags.get(_place_of_checkpoint(row), ()) if tagged else looked_through
                if at and self._possible(row, names, tags):
                    yield row

        return list(islice(map(_CHECKPOINT.of, found()), limit))

    def standing_of_thread(self, names: Sequence[str], tags: Sequence[bytes]) -> list[Row]:
        """Answer `storage.postgres.tags.STANDING_OF_THREAD`, as of a hot thread.

        The thread's row may say of fewer keys that all of its checkpoints are tagged by them than are; that decides
        in which order rows are looked at, and not which are found.
        """
        rows = self._checkpoints.values()

        def standing(name: str, tag: bytes) -> Row:
            every = bool(rows) and all(name in (row["searchable"] or ()) for row in rows)
            count = sum(tag in each for each in self._tags.values())
            return _STANDING.row(name, tag, [] if every else [self.thread_id], min(count, tags_sql.COUNTED_MAX))

        return [standing(name, tag) for name, tag in zip(names, tags, strict=True)]

    def _possible(self, row: _Stored, names: Sequence[str], tags: Sequence[bytes]) -> bool:
        """Whether no key that a checkpoint is tagged by lacks the tag that is looked for."""
        tagged_by = row["searchable"] or ()
        own = self._tags.get(_place_of_checkpoint(row), ())
        return all(tag in own for name, tag in zip(names, tags, strict=True) if name in tagged_by)

    def _listed(
        self,
        namespace: str | None,
        before: str | None,
        status: str | None,
        step: int | None,
        run_id: str | None,
        source: str | None,
        agent: str | None,
        since: datetime | None,
        until: datetime | None,
        after_id: str | None,
        after_thread: str | None,
        after_namespace: str | None,
    ) -> Iterator[_Stored]:
        """The checkpoints that a listing asks for, newest first: `storage.postgres.checkpoints.HISTORY_WANTED`."""
        end = len(self._order)
        if before is not None:
            end = bisect_left(self._order, (before, ""))
        if after_id is not None:
            # Where ids are equal, the thread decides, and it is the same for all of these rows.
            assert after_thread is not None  # noqa: S101  for the type checker: a cursor is whole
            assert after_namespace is not None  # noqa: S101  likewise
            if self.thread_id == after_thread:
                bound = bisect_left(self._order, (after_id, after_namespace))
            elif self.thread_id < after_thread:
                bound = bisect_right(self._order, after_id, key=lambda place: place[0])
            else:
                bound = bisect_left(self._order, (after_id, ""))
            end = min(end, bound)
        for position in range(end - 1, -1, -1):
            row = self._checkpoints[self._order[position]]
            if (
                (namespace is None or row["namespace"] == namespace)
                and (status is None or (row["status"] if row["outcome"] is None else row["outcome"]) == status)
                and (step is None or row["step"] == step)
                and (run_id is None or row["run_id"] == run_id)
                and (source is None or row["source"] == source)
                and (agent is None or row["agent"] == agent)
                and (since is None or row["created_at"] >= since)
                and (until is None or row["created_at"] < until)
            ):
                yield row

    def ancestors(self, namespace: str, checkpoint_id: str | None, depth_max: int) -> list[Row]:
        """Answer `storage.postgres.checkpoints.ANCESTORS`."""
        line: list[Row] = []
        found = self.checkpoint(namespace, checkpoint_id)
        while found is not None:
            line.append(_CHECKPOINT.of(found))
            if len(line) >= depth_max:
                break
            found = self.checkpoint(namespace, found["parent_id"])
        return line

    def stretch(self, namespace: str, after: str, limit: int) -> list[Row]:
        """Answer `storage.postgres.threads.STRETCH`."""
        ids = self._ids.get(namespace, [])
        start = bisect_right(ids, after)
        return [_CHECKPOINT.of(self._checkpoints[each, namespace]) for each in ids[start : start + limit]]

    def chunks(self, wanted: Sequence[bytes]) -> list[Row]:
        """Answer `storage.postgres.checkpoints.CHUNKS`."""
        return [_CHUNK.of(row) for row in self.pieces(wanted)]

    def chunks_after(self, after: bytes, limit: int) -> list[Row]:
        """Answer `storage.postgres.completeness.CHUNKS_AFTER`."""
        start = bisect_right(self._piece_order, after)
        return [_CHUNK.of(self._chunks[each]) for each in self._piece_order[start : start + limit]]

    def writes(
        self, namespace: str, checkpoint_ids: Sequence[str], channels: Sequence[str] | None, task_id: str | None
    ) -> list[Row]:
        """Answer `storage.postgres.checkpoints.WRITES_OF`."""
        return [
            _WRITE.of(row)
            for row in self._writes_in(namespace, checkpoint_ids)
            if (channels is None or row["channel"] in channels) and (task_id is None or row["task_id"] == task_id)
        ]

    def _writes_in(self, namespace: str, checkpoint_ids: Sequence[str]) -> Iterator[_Stored]:
        for checkpoint_id in sorted(set(checkpoint_ids)):
            yield from self.writes_of(namespace, checkpoint_id)

    def all_writes(self, namespace: str, checkpoint_id: str, task_id: str, idx: int, limit: int) -> list[Row]:
        """Answer `storage.postgres.threads.ALL_WRITES`."""
        start = bisect_right(self._write_order, (namespace, checkpoint_id, task_id, idx))
        return [_WRITE.of(self._writes[each]) for each in self._write_order[start : start + limit]]

    def members(self) -> list[Row]:
        """Answer `storage.postgres.completeness.MEMBERS`."""
        return [_MEMBER.of(row) for row in self._writes.values()]

    def namespaces(self) -> list[Row]:
        """Answer `storage.postgres.completeness.NAMESPACES`."""
        return [_NAMESPACE.row(each) for each in sorted(self._ids)]

    def has_checkpoints(self, namespace: str) -> list[Row]:
        """Answer `storage.postgres.completeness.HAS_CHECKPOINTS`."""
        return [_EXISTS.row(namespace in self._ids)]

    def count_checkpoints(self, namespace: str) -> list[Row]:
        """Answer `storage.postgres.completeness.COUNT_CHECKPOINTS`."""
        return [_COUNT.row(len(self._ids.get(namespace, [])))]

    def next_checkpoint(self, namespace: str, after: str) -> list[Row]:
        """Answer `storage.postgres.completeness.NEXT_CHECKPOINT`."""
        ids = self._ids.get(namespace, [])
        start = bisect_right(ids, after)
        return [_MIN.row(ids[start] if start < len(ids) else None)]

    def has_piece(self, piece_id: bytes) -> list[Row]:
        """Answer `storage.postgres.pieces.EXISTS`."""
        return [_EXISTS.row(piece_id in self._chunks)]

    def loaded(self, standing: Any, namespace: str, checkpoint_id: str | None, with_state: bool) -> Row:
        """Answer `storage.postgres.checkpoints.LOAD`; ``standing``: its answer where the rows are gone."""
        found = self.checkpoint(namespace, standing["at_head_id"] if checkpoint_id is None else checkpoint_id)
        columns = dict(standing.items())
        columns["at_newer"] = self._ids.get(namespace, [""])[-1] > standing["at_head_id"]
        parent = None if found is None else self.checkpoint(namespace, found["parent_id"])
        columns["at_parent"] = None if parent is None else True
        columns.update(dict.fromkeys(checkpoints_sql.ROW_COLUMNS) if found is None else _CHECKPOINT.of(found).items())
        writes = self.writes_of(namespace, found["checkpoint_id"]) if with_state and found is not None else []
        named: list[bytes] = []
        if with_state and found is not None:
            named = [piece_id for row in (found, *writes) for piece_id in _unpacked(row["piece_ids"])]
        pieces = self.pieces(named)
        # As array_agg: over no rows it is NULL, not an empty array.
        for name in checkpoints_sql.WRITE_COLUMNS:
            columns[f"w_{name}"] = [row[name] for row in writes] or None
        for name in PIECE_COLUMNS:
            columns[f"p_{name}"] = [row[name] for row in pieces] or None
        return Row({name: position for position, name in enumerate(columns)}, list(columns.values()))


def _unpacked(packed: bytes) -> list[bytes]:
    """The ids in a packed column, as the statement takes them apart: what is no whole id is passed over."""
    return [packed[at : at + _PIECE_ID_BYTES] for at in range(0, len(packed) - _PIECE_ID_BYTES + 1, _PIECE_ID_BYTES)]


def _place_of_checkpoint(row: _Stored) -> tuple[str, str]:
    return row["checkpoint_id"], row["namespace"]


def _place_of_write(row: _Stored) -> tuple[str, str, str, int]:
    return row["namespace"], row["checkpoint_id"], row["task_id"], row["idx"]


def _indexed(thread_id: str, rows: Iterable[_Stored], place: Callable[[_Stored], Any]) -> dict[Any, _Stored]:
    found: dict[Any, _Stored] = {}
    for row in rows:
        if row["thread_id"] != thread_id:
            raise IntegrityFailure("an archive holds a row of another thread")
        if found.setdefault(place(row), row) is not row:
            raise IntegrityFailure("an archive holds a row twice")
    return found


# Every statement on moved rows that a reading verb runs, by its text.
ANSWERS: Final[Mapping[str, Callable[..., list[Row]]]] = {
    checkpoints_sql.ONE: ArchivedThread.one,
    checkpoints_sql.HISTORY: ArchivedThread.history,
    tags_sql.HISTORY_BY_TAG: ArchivedThread.history_by_tag,
    tags_sql.HISTORY_UNLESS_EXCLUDED: ArchivedThread.history_unless_excluded,
    checkpoints_sql.ANCESTORS: ArchivedThread.ancestors,
    checkpoints_sql.CHUNKS: ArchivedThread.chunks,
    checkpoints_sql.WRITES_OF: ArchivedThread.writes,
    completeness_sql.HAS_CHECKPOINTS: ArchivedThread.has_checkpoints,
    completeness_sql.COUNT_CHECKPOINTS: ArchivedThread.count_checkpoints,
    completeness_sql.MEMBERS: ArchivedThread.members,
    completeness_sql.NAMESPACES: ArchivedThread.namespaces,
    completeness_sql.CHUNKS_AFTER: ArchivedThread.chunks_after,
    completeness_sql.NEXT_CHECKPOINT: ArchivedThread.next_checkpoint,
    threads_sql.STRETCH: ArchivedThread.stretch,
    threads_sql.ALL_WRITES: ArchivedThread.all_writes,
    pieces_sql.EXISTS: ArchivedThread.has_piece,
}


@cache
def touches_moved_rows(sql: str) -> bool:
    """Whether a statement names a table whose rows are in the archive. There are few statements, all constants."""
    return _MOVED.search(sql) is not None


class ArchivedTransaction(Transaction):
    """A snapshot in which one thread's archived rows are seen where they were before.

    Args of the constructor:
        transaction: A snapshot that is bound to the thread's scope.
        scope: That scope.
        thread: The rows.
    """

    def __init__(self, transaction: Transaction, scope: Scope, thread: ArchivedThread) -> None:
        self._transaction = transaction
        self._place = (scope.tenant_id, scope.subject_id, thread.thread_id)
        self._thread = thread

    async def fetch_all(self, statement: Statement[R], **values: object) -> list[R]:
        """Run a statement that touches no moved rows; otherwise as `fetch`."""
        self._check_untouched(statement.text)
        return await self._transaction.fetch_all(statement, **values)

    async def fetch_one(self, statement: Statement[R], **values: object) -> R | None:
        """Run a statement that touches no moved rows; otherwise as `fetch`."""
        self._check_untouched(statement.text)
        return await self._transaction.fetch_one(statement, **values)

    async def fetch_only(self, statement: Statement[R], **values: object) -> R:
        """Run a statement that touches no moved rows; otherwise as `fetch`."""
        self._check_untouched(statement.text)
        return await self._transaction.fetch_only(statement, **values)

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        """Run or answer a statement and return its rows.

        Raises:
            UnansweredStatement: It touches rows that moved, and is not known or of another thread.
        """
        answer = ANSWERS.get(sql)
        if answer is not None:
            return answer(self._thread, *self._own(args))
        if sql == checkpoints_sql.LOAD:
            namespace, checkpoint_id, with_state = self._own(args)
            standing = await self._transaction.fetch(sql, *args)
            return [self._thread.loaded(row, namespace, checkpoint_id, with_state) for row in standing]
        if sql == checkpoints_sql.STORED_OF:
            tenant_id, subject_id, thread_ids, namespaces, checkpoint_ids = args
            for thread_id in thread_ids:  # type: ignore[attr-defined]  # arguments are objects
                self._own((tenant_id, subject_id, thread_id))
            return self._thread.stored_of(namespaces, checkpoint_ids)  # type: ignore[arg-type]  # likewise
        if sql == tags_sql.STANDING_OF_THREAD:
            tenant_id, subject_id, names, tags, thread_id = args
            self._own((tenant_id, subject_id, thread_id))
            return self._thread.standing_of_thread(names, tags)  # type: ignore[arg-type]  # arguments are objects
        self._check_untouched(sql)
        return await self._transaction.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: object) -> Any:
        """Run or answer a statement and return its first row, or None; otherwise as `fetch`."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: object) -> Any:
        """Run or answer a statement and return the first column of its first row, or None; otherwise as `fetch`."""
        row = await self.fetchrow(sql, *args)
        return None if row is None else row[0]

    async def execute(self, sql: str, *args: object) -> int:  # noqa: ARG002  reads never write
        """Refuse: whoever writes to the thread restores it first.

        Raises:
            UnansweredStatement: Always.
        """
        self._refuse(sql)

    async def executemany(self, sql: str, rows: list[tuple[object, ...]]) -> None:  # noqa: ARG002  likewise
        """Refuse, as `execute`.

        Raises:
            UnansweredStatement: Always.
        """
        self._refuse(sql)

    def _own(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if args[:3] != self._place:
            raise UnansweredStatement("the statement is not about the thread whose archive was opened")
        return args[3:]

    def _check_untouched(self, sql: str) -> None:
        if touches_moved_rows(sql):
            self._refuse(sql)

    def _refuse(self, sql: str) -> NoReturn:
        raise UnansweredStatement(f"an archived thread cannot answer: {' '.join(sql.split())[:80]}")


def check_tier(transaction: Transaction, tier: str) -> None:
    """Go on if the rows of a thread in this tier are in this transaction's sight.

    Raises:
        ThreadElsewhere: They are in its archive: read them there (`storage.access.access.Access.reading_thread`).
    """
    if tier != "hot" and not isinstance(transaction, ArchivedTransaction):
        raise ThreadElsewhere
