"""Statements that move a thread's rows into the archive and back, and on the stubs that stay.

`storage.archive.moving` says in which order they are safe. Columns are the tables' own, so that a new one moves along,
except for when the database got a row: one that comes back was got anew.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from storage.format.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TABLES, TAGS, Stub
from storage.postgres.statement import Statement, columns
from storage.postgres.tables import metadata

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
    created_at: datetime
    seal: bytes
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
SELECT t.tier, t.activity, t.client_share, t.created_at, t.seal,
    {", ".join(f"{table}.{table}" for table in TABLES)},
    {" + ".join(f"{table}_bytes" for table in TABLES)} AS hot_bytes
FROM stateroom.threads t {"".join(_count(table) for table in TABLES)}
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
""",
    SizedThreadRow,
)


class ActivityRow(msgspec.Struct, frozen=True):
    """Where a thread is, and how often it was written to."""

    tier: str
    activity: int


_ACTIVITY = f"SELECT tier, activity FROM stateroom.threads WHERE {_THREAD}"
ACTIVITY = Statement(_ACTIVITY, ActivityRow)
LOCK = Statement(f"{_ACTIVITY} FOR UPDATE", ActivityRow)


def _page(table: str) -> Statement[msgspec.Struct]:
    order = ", ".join(ORDER[table])
    places = ", ".join(f":after_{name}" for name in ORDER[table])
    # The columns are the table's, whatever those are: what is read goes into the archive by their names.
    row = msgspec.defstruct(f"{table}_row", [(name, Any) for name in COLUMNS[table]], frozen=True)
    return Statement(
        f"""
SELECT {", ".join(COLUMNS[table])} FROM stateroom.{table}
WHERE {_THREAD} AND ({order}) > ({places}) ORDER BY {order} LIMIT :limit
""",
        row,
    )


def _add(table: str) -> Statement[None]:
    names = COLUMNS[table]
    return Statement(f"""
INSERT INTO stateroom.{table} (tenant_id, subject_id, {", ".join(names)})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in names)})
""")


PAGE = {table: _page(table) for table in TABLES}
ADD = {table: _add(table) for table in TABLES}
# Tags go with their checkpoints; here they go first, so that they can be counted.
REMOVE = {
    table: Statement(f"DELETE FROM stateroom.{table} WHERE {_THREAD}")
    for table in (TAGS, CHECKPOINTS, PENDING_WRITES, CHUNKS)
}

# --- stubs ---------------------------------------------------------------------------------------------------------


_STUB = columns(Stub)
_ONE_STUB = f"SELECT {_STUB} FROM stateroom.archives WHERE {_THREAD}"
STUB = Statement(_ONE_STUB, Stub)
LOCK_STUB = Statement(f"{_ONE_STUB} FOR UPDATE", Stub)
ADD_STUB = Statement(f"""
INSERT INTO stateroom.archives (tenant_id, subject_id, {_STUB})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in Stub.__struct_fields__)})
""")


class RemovedStubRow(msgspec.Struct, frozen=True):
    """What went with a stub."""

    checkpoints: int
    pending_writes: int


DELETE_STUB = Statement(
    f"DELETE FROM stateroom.archives WHERE {_THREAD} RETURNING checkpoints, pending_writes", RemovedStubRow
)
STUBS_AFTER = Statement(
    f"""
SELECT {_STUB} FROM stateroom.archives
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after
ORDER BY thread_id LIMIT :limit
""",
    Stub,
)

INTO_ARCHIVE = Statement(f"UPDATE stateroom.threads SET tier = 'archive' WHERE {_THREAD} AND tier = 'hot'")
OUT_OF_ARCHIVE = Statement(f"""
UPDATE stateroom.threads SET tier = 'hot', activity = activity + 1, updated_at = :now
WHERE {_THREAD} AND tier = 'archive'
""")

# --- key versions --------------------------------------------------------------------------------------------------

# Those of these versions that stay for as long as somebody needs them. The lock is what giving a version up waits for;
# whoever does counts what needs it again, in a later statement.
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
