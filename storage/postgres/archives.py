"""Statements that move a thread's rows into the archive and back, and on the stubs that stay.

`storage.archive.moving` says in which order they are safe. Columns are the tables' own, so that a new one moves along,
except for when the database got a row: one that comes back was got anew.
"""

from storage.postgres.tables import archives, metadata

# As `storage.format.archive` names and orders them.
CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS = TABLES = ("checkpoints", "checkpoint_tags", "pending_writes", "chunks")
_OWNER = ("tenant_id", "subject_id")
_STAYS = {*_OWNER, "stored_at"}
_THREAD = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"

_tables = {name: metadata.tables[f"stateroom.{name}"] for name in TABLES}

# Of each table that moves: its columns but the owner's, and what their rows are ordered by within a thread.
COLUMNS = {
    name: tuple(str(each.name) for each in table.columns if each.name not in _STAYS) for name, table in _tables.items()
}
ORDER = {
    name: tuple(str(each.name) for each in table.primary_key.columns if each.name not in {*_OWNER, "thread_id"})
    for name, table in _tables.items()
}


# The sealed column of each table that has one.
ENVELOPES = {CHECKPOINTS: "manifest", PENDING_WRITES: "value", CHUNKS: "envelope"}


def _count(table: str) -> str:
    envelope = ENVELOPES.get(table)
    size = "0" if envelope is None else f"coalesce(sum(octet_length({envelope})), 0)"
    return f"""
LEFT JOIN LATERAL (SELECT count(*)::integer AS {table}, ({size})::bigint AS {table}_bytes
    FROM stateroom.{table} WHERE {_THREAD}) {table} ON true"""


# A thread, and how much of it there is; the lengths of envelopes are known without reading those.
STANDING = f"""
SELECT t.tier, t.activity, t.client_share, t.created_at, t.seal,
    {", ".join(f"{table}.{table}" for table in TABLES)},
    {" + ".join(f"{table}_bytes" for table in TABLES)} AS hot_bytes
FROM stateroom.threads t {"".join(_count(table) for table in TABLES)}
WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3
"""
ACTIVITY = f"SELECT tier, activity FROM stateroom.threads WHERE {_THREAD}"
LOCK = f"SELECT tier, activity, created_at, seal FROM stateroom.threads WHERE {_THREAD} FOR UPDATE"


def _page(table: str) -> str:
    order = ", ".join(ORDER[table])
    places = ", ".join(f"${number}" for number in range(4, 4 + len(ORDER[table])))
    return f"""
SELECT {", ".join(COLUMNS[table])} FROM stateroom.{table}
WHERE {_THREAD} AND ({order}) > ({places}) ORDER BY {order} LIMIT ${4 + len(ORDER[table])}
"""


def _add(table: str) -> str:
    names = COLUMNS[table]
    return f"""
INSERT INTO stateroom.{table} (tenant_id, subject_id, {", ".join(names)})
VALUES ($1, $2, {", ".join(f"${at}" for at in range(3, 3 + len(names)))})
"""


PAGE = {table: _page(table) for table in TABLES}
ADD = {table: _add(table) for table in TABLES}
# Tags go with their checkpoints; here they go first, so that they can be counted.
REMOVE = {
    table: f"DELETE FROM stateroom.{table} WHERE {_THREAD}" for table in (TAGS, CHECKPOINTS, PENDING_WRITES, CHUNKS)
}

# --- stubs ---------------------------------------------------------------------------------------------------------

_STUB = tuple(str(each.name) for each in archives.columns if each.name not in _STAYS)

STUB = f"SELECT {', '.join(_STUB)} FROM stateroom.archives WHERE {_THREAD}"
LOCK_STUB = f"{STUB} FOR UPDATE"
ADD_STUB = f"""
INSERT INTO stateroom.archives (tenant_id, subject_id, {", ".join(_STUB)})
VALUES ($1, $2, {", ".join(f"${at}" for at in range(3, 3 + len(_STUB)))})
"""
STUB_COLUMNS = _STUB
DELETE_STUB = f"DELETE FROM stateroom.archives WHERE {_THREAD} RETURNING checkpoints, pending_writes, blob_id"
STUBS_AFTER = f"""
SELECT {", ".join(_STUB)} FROM stateroom.archives WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3
ORDER BY thread_id LIMIT $4
"""

INTO_ARCHIVE = f"UPDATE stateroom.threads SET tier = 'archive' WHERE {_THREAD} AND tier = 'hot'"
OUT_OF_ARCHIVE = f"""
UPDATE stateroom.threads SET tier = 'hot', activity = activity + 1, updated_at = $4 WHERE {_THREAD} AND tier = 'archive'
"""

# --- key versions --------------------------------------------------------------------------------------------------

# Those of these versions that stay for as long as somebody needs them. The lock is what giving a version up waits for;
# whoever does counts what needs it again, in a later statement.
HOLD_KEY_VERSIONS = """
SELECT key_version FROM stateroom.subject_keys
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' AND key_version = ANY($3::integer[])
  AND state IN ('active', 'decrypt_only')
ORDER BY key_version FOR SHARE
"""
