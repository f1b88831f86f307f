"""Statements that move a thread's rows into the archive and back, and on the stubs that stay.

`storage.archive.moving` says in which order they are safe. Columns are the tables' own, so that a new one moves along,
except for when the database got a row: one that comes back was got anew.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TABLES, TAGS, Stub
from storage.model import HistoryQuery
from storage.postgres.statement import Statement, columns
from storage.postgres.tables import metadata
from storage.statements.rules.retention import MOVED_AT

_OWNER = ("tenant_id", "subject_id")
_STAYS = {*_OWNER, "stored_at"}
_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"

_tables = {name: metadata.tables[f"stateroom.{name}"] for name in TABLES}

# Of each table that moves: its columns but the owner's, and what their rows are ordered by within a thread.
COLUMNS = {
    name: tuple(str(each.name) for each in table.columns if each.name not in _STAYS) for name, table in _tables.items()
}
ORDER = {
    name: tuple(str(each.name) for each in table.primary_key.columns if each.name not in {*_OWNER, "thread_id"})
    for name, table in _tables.items()
}
# What comes before the first row of each.
BEFORE: Mapping[str, tuple[object, ...]] = {
    CHECKPOINTS: ("", ""), TAGS: ("", "", b""), PENDING_WRITES: ("", "", "", -(2**31)), CHUNKS: (b"",),
}  # fmt: skip


# The sealed column of each table that has one.
ENVELOPES = {CHECKPOINTS: "manifest", PENDING_WRITES: "value", CHUNKS: "envelope"}


def _count(table: str) -> str:
    envelope = ENVELOPES.get(table)
    size = "0" if envelope is None else f"coalesce(sum(octet_length({envelope})), 0)"
    return f"""
LEFT JOIN LATERAL (SELECT count(*)::integer AS {table}, ({size})::bigint AS {table}_bytes
    FROM stateroom.{table} WHERE {_THREAD}) {table} ON true"""


class SizedThreadRow(msgspec.Struct, frozen=True):
    """A thread, and how much of it is in the database.

    ``hot_bytes`` is the sum of the lengths of its envelopes.
    """

    tier: str
    activity: int
    client_share: bool
    parent_thread_id: str | None
    created_at: datetime
    seal: bytes
    cold: bytes | None
    checkpoints: int
    checkpoint_tags: int
    pending_writes: int
    chunks: int
    hot_bytes: int

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows of each table."""
        return {
            CHECKPOINTS: self.checkpoints, TAGS: self.checkpoint_tags, PENDING_WRITES: self.pending_writes,
            CHUNKS: self.chunks,
        }  # fmt: skip


# The lengths of envelopes are known without reading those.
SIZED_THREAD = Statement(
    f"""
SELECT t.tier, t.activity, t.client_share, t.parent_thread_id, t.created_at, t.seal, t.cold,
    {", ".join(f"{table}.{table}" for table in TABLES)},
    {" + ".join(f"{table}_bytes" for table in TABLES)} AS hot_bytes
FROM stateroom.threads t {"".join(_count(table) for table in TABLES)}
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
""",
    SizedThreadRow,
)


class ActivityRow(msgspec.Struct, frozen=True):
    """Where a thread is, how often it was written to, and the sums of its segments."""

    tier: str
    activity: int
    cold: bytes | None


_ACTIVITY = f"SELECT tier, activity, cold FROM stateroom.threads WHERE {_THREAD}"
ACTIVITY = Statement(_ACTIVITY, ActivityRow)
LOCK = Statement(f"{_ACTIVITY} FOR UPDATE", ActivityRow)


def _page(table: str) -> Statement[msgspec.Struct]:
    order = ", ".join(ORDER[table])
    places = ", ".join(f":after_{name}" for name in ORDER[table])
    return Statement(
        f"""
SELECT {", ".join(COLUMNS[table])} FROM stateroom.{table}
WHERE {_THREAD} AND ({order}) > ({places}) ORDER BY {order} LIMIT :limit
""",
        _row(table),
    )


def _row(table: str) -> type[msgspec.Struct]:
    # The columns are the table's, whatever those are: what is read goes into the archive by their names.
    return msgspec.defstruct(f"{table}_row", [(name, Any) for name in COLUMNS[table]], frozen=True)


def _of(table: str) -> Statement[msgspec.Struct]:
    """The rows of some checkpoints."""
    return Statement(
        f"""
SELECT {", ".join(f"x.{name}" for name in COLUMNS[table])} FROM stateroom.{table} x
JOIN unnest(:namespaces::text[], :checkpoint_ids::text[]) AS d(namespace, checkpoint_id)
    ON x.namespace = d.namespace AND x.checkpoint_id = d.checkpoint_id
WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.thread_id = :thread_id
ORDER BY {", ".join(f"x.{name}" for name in ORDER[table])}
""",
        _row(table),
    )


def _add(table: str) -> Statement[None]:
    names = COLUMNS[table]
    # A piece may be there: it is named by its content, and others came to name it.
    there = " ON CONFLICT DO NOTHING" if table == CHUNKS else ""
    return Statement(f"""
INSERT INTO stateroom.{table} (tenant_id, subject_id, {", ".join(names)})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in names)}){there}
""")


PAGE = {table: _page(table) for table in TABLES}
OF = {table: _of(table) for table in (CHECKPOINTS, TAGS, PENDING_WRITES)}
PIECES = Statement(
    f"SELECT {', '.join(COLUMNS[CHUNKS])} FROM stateroom.chunks"
    f" WHERE {_THREAD} AND piece_id = ANY(:piece_ids::bytea[])",
    _row(CHUNKS),
)


class PieceSizeRow(msgspec.Struct, frozen=True):
    """How long a piece's envelope is, and the pieces that it consists of."""

    piece_id: bytes
    children: bytes | None
    size: int


PIECE_SIZES = Statement(
    f"SELECT piece_id, children, octet_length(envelope) AS size FROM stateroom.chunks"
    f" WHERE {_THREAD} AND piece_id = ANY(:piece_ids::bytea[])",
    PieceSizeRow,
)
ADD = {table: _add(table) for table in TABLES}
# Tags go with their checkpoints; here they go first, so that they can be counted.
REMOVE = {
    table: Statement(f"DELETE FROM stateroom.{table} WHERE {_THREAD}")
    for table in (TAGS, CHECKPOINTS, PENDING_WRITES, CHUNKS)
}

# --- stubs ---------------------------------------------------------------------------------------------------------


_STUB = columns(Stub)
_ONE_STUB = f"SELECT {_STUB} FROM stateroom.archives WHERE {_THREAD} AND segment = 0"
STUB = Statement(_ONE_STUB, Stub)
LOCK_STUB = Statement(f"{_ONE_STUB} FOR UPDATE", Stub)
ADD_STUB = Statement(f"""
INSERT INTO stateroom.archives (tenant_id, subject_id, {_STUB})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in Stub.__struct_fields__)})
""")
# With its list. Not without the thread's lock: another segment of this number may be about to be there.
ADD_SEGMENT = Statement(f"""
INSERT INTO stateroom.archives (tenant_id, subject_id, {_STUB}, listed)
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in Stub.__struct_fields__)}, :listed)
ON CONFLICT DO NOTHING
""")


class RemovedStubRow(msgspec.Struct, frozen=True):
    """What went with a stub."""

    checkpoints: int
    pending_writes: int


DELETE_STUB = Statement(
    f"DELETE FROM stateroom.archives WHERE {_THREAD} AND segment = :segment RETURNING checkpoints, pending_writes",
    RemovedStubRow,
)
DELETE_STUBS = Statement(
    f"DELETE FROM stateroom.archives WHERE {_THREAD} RETURNING checkpoints, pending_writes", RemovedStubRow
)
STUBS_AFTER = Statement(
    f"""
SELECT {_STUB} FROM stateroom.archives
WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND (thread_id, segment) > (:after_thread, :after_segment)
ORDER BY thread_id, segment LIMIT :limit
""",
    Stub,
)

# --- segments ------------------------------------------------------------------------------------------------------


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment, as far as a read must know of it to tell whether it needs it; `Stub` has the words."""

    thread_id: str
    segment: int
    volume: int
    first_id: str
    last_id: str
    blob_id: UUID
    checkpoints: int
    pending_writes: int
    chunks: int
    hot_bytes: int
    run_ids: list[str]
    agents: list[str]

    def may_have(self, query: HistoryQuery) -> bool:
        """Whether a checkpoint of it may be on a page of history."""
        return (
            (query.before is None or self.first_id < query.before)
            and (query.run_id is None or query.run_id in self.run_ids)
            and (query.agent is None or query.agent in self.agents)
        )


# The segments of a thread, in the order of their ranges.
SEGMENTS = Statement(
    f"SELECT {columns(SegmentRow)} FROM stateroom.archives WHERE {_THREAD} AND segment > 0 ORDER BY first_id",
    SegmentRow,
)


class SegmentTotals(msgspec.Struct, frozen=True):
    """What a thread has in segments; `Stub` has the words."""

    segments: int
    checkpoints: int
    pending_writes: int
    hot_bytes: int
    size_bytes: int


SEGMENT_TOTALS = Statement(
    f"""
SELECT count(*)::integer AS segments, coalesce(sum(checkpoints), 0)::bigint AS checkpoints,
    coalesce(sum(pending_writes), 0)::bigint AS pending_writes, coalesce(sum(hot_bytes), 0)::bigint AS hot_bytes,
    coalesce(sum(size_bytes), 0)::bigint AS size_bytes
FROM stateroom.archives WHERE {_THREAD} AND segment > 0
""",
    SegmentTotals,
)
SEGMENT_STUBS = Statement(f"SELECT {_STUB} FROM stateroom.archives WHERE {_THREAD} AND segment > 0", Stub)
SEGMENT_STUB = Statement(f"SELECT {_STUB} FROM stateroom.archives WHERE {_THREAD} AND segment = :segment", Stub)


class SegmentAgeRow(msgspec.Struct, frozen=True):
    """Since when a segment has what is in it, and the size of its object."""

    segment: int
    moved_at: datetime
    size_bytes: int


SEGMENT_AGES = Statement(
    f"SELECT segment, {MOVED_AT} AS moved_at, size_bytes FROM stateroom.archives WHERE {_THREAD} AND segment > 0",
    SegmentAgeRow,
)
DELETE_SEGMENTS = Statement(
    f"DELETE FROM stateroom.archives WHERE {_THREAD} AND segment = ANY(:segments::integer[]) RETURNING segment", int
)
RESEAL_SEGMENT = Statement(f"""
UPDATE stateroom.archives SET key_versions = :key_versions, key_version = :key_version, sealed = :sealed,
    listed = :listed
WHERE {_THREAD} AND segment = :segment
""")
# When the database got what is in an object, which an exchange of that does not change; null: before it was noted.
STORED_AT = Statement(f"SELECT stored_at FROM stateroom.archives WHERE {_THREAD} AND segment = :segment", datetime)
SET_STORED_AT = Statement(
    f"UPDATE stateroom.archives SET stored_at = :stored_at WHERE {_THREAD} AND segment = :segment"
)
LISTED = Statement(f"SELECT listed FROM stateroom.archives WHERE {_THREAD} AND segment = :segment", bytes)
SET_LISTED = Statement(f"UPDATE stateroom.archives SET listed = :listed WHERE {_THREAD} AND segment = :segment")
SET_COLD = Statement(f"UPDATE stateroom.threads SET cold = :cold WHERE {_THREAD}")
COLD_NAMESPACES = Statement(f"SELECT cold_namespaces FROM stateroom.threads WHERE {_THREAD}", bytes)
SET_COLD_NAMESPACES = Statement(f"UPDATE stateroom.threads SET cold_namespaces = :cold_namespaces WHERE {_THREAD}")
# Of whoever locks rows before their thread: those who hold its lock and wait for the rows go first, before the server
# takes both for a deadlock, and ends one of them.
WAIT_BRIEFLY = Statement("SET LOCAL lock_timeout = '250ms'")
# The heads of namespaces that leave with their checkpoints, if they are still what was read.
TAKE_HEADS = Statement(
    """
DELETE FROM stateroom.heads h
USING unnest(:namespaces::text[], :head_ids::text[], :sequences::bigint[], :seals::bytea[])
    AS d(namespace, head_id, sequence, seal)
WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id AND h.thread_id = :thread_id
  AND h.namespace = d.namespace AND h.head_id = d.head_id AND h.sequence = d.sequence AND h.seal = d.seal
RETURNING h.namespace
""",
    str,
)
# Those of some namespaces that have a head, and those that have pending writes.
WITH_HEAD = Statement(
    f"SELECT namespace FROM stateroom.heads WHERE {_THREAD} AND namespace = ANY(:namespaces::text[])", str
)
WITH_WRITES = Statement(
    f"SELECT DISTINCT namespace FROM stateroom.pending_writes WHERE {_THREAD} AND namespace = ANY(:namespaces::text[])",
    str,
)

INTO_ARCHIVE = Statement(f"UPDATE stateroom.threads SET tier = 'archive' WHERE {_THREAD} AND tier = 'hot'")
OUT_OF_ARCHIVE = Statement(f"""
UPDATE stateroom.threads SET tier = 'hot', activity = activity + 1, updated_at = :now
WHERE {_THREAD} AND tier = 'archive'
""")

# --- key versions --------------------------------------------------------------------------------------------------

# Those of these versions that stay for as long as something needs them. The lock is what giving a version up waits for;
# a transaction that does counts what needs it again, in a later statement.
HOLD_KEY_VERSIONS = Statement(
    """
SELECT key_version FROM stateroom.subject_keys
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data'
  AND key_version = ANY(:key_versions::integer[])
  AND state IN ('active', 'decrypt_only')
ORDER BY key_version FOR SHARE
""",
    int,
)
