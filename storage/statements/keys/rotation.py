"""Statements on the life of keys: new versions, what still needs an old one, and the end of it.

Which key sealed an envelope is read from the envelope's header (bytes 9 to 12), never only from the clear column beside
it: nothing is destroyed on the word of a column that could be edited.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.format.record import CheckpointRow, PieceRow, WriteRow
from storage.postgres.statement import Statement, columns
from storage.statements.keys.keys import StoredSubjectKey
from storage.statements.objects.blobs import STALE_BLOBS


class KeyState(msgspec.Struct, frozen=True):
    """A version of a key, and whether it is pending, active, only for decrypting, retired or destroyed."""

    key_version: int
    state: str


class SubjectKeyToRewrap(StoredSubjectKey, frozen=True):
    """A subject's key that another version of the tenant key wrapped."""

    subject_id: str


class TenantKeyToRewrap(msgspec.Struct, frozen=True):
    """A tenant's key as a root key wrapped it."""

    tenant_id: UUID
    key_version: int
    provider: str
    root_key_id: str
    root_key_version: str
    wrapped: bytes
    kcv: bytes


class RotationRow(msgspec.Struct, frozen=True):
    """The job of a rotation."""

    job_id: UUID
    kind: str
    target: str


class TenantKeyState(msgspec.Struct, frozen=True):
    """One version of a tenant key; ``subject_keys`` is the number of keys it wraps."""

    key_version: int
    state: str
    provider: str
    root_key_id: str
    root_key_version: str
    created_at: datetime
    destroyed_at: datetime | None
    subject_keys: int


class SubjectKeyState(msgspec.Struct, frozen=True):
    """One version of a subject's data or id key; ``archived_bytes``: of objects with rows that need it."""

    purpose: str
    key_version: int
    tenant_key_version: int
    state: str
    archived_bytes: int
    created_at: datetime
    destroyed_at: datetime | None
    shred_effective_at: datetime | None


class RootKeyUse(msgspec.Struct, frozen=True):
    """The number of tenant keys that a version of a root key wraps."""

    provider: str
    root_key_id: str
    root_key_version: str
    tenant_keys: int


class OlderTransactions(msgspec.Struct, frozen=True):
    """Whether the server tells which transactions are open, and whether one is that began by a moment."""

    tracked: bool
    open: bool


class LockedThread(msgspec.Struct, frozen=True):
    """A thread that is to be sealed again.

    ``stale``: its own seal is one of those; ``cold``: the sums of its segments, if they are.
    """

    created_at: datetime
    seal: bytes
    stale: bool
    cold: bytes | None


class StaleHead(msgspec.Struct, frozen=True):
    """A head that another key version sealed."""

    namespace: str
    head_id: str
    sequence: int
    seal: bytes


class StaleReceipt(msgspec.Struct, frozen=True):
    """A receipt that another key version sealed."""

    idempotency_key: str
    request_digest: bytes
    receipt: bytes


class StaleCount(msgspec.Struct, frozen=True):
    """The number of envelopes that another key version sealed.

    ``aside`` counts those that are left as they are.
    """

    stale: int
    aside: int


# --- versions ------------------------------------------------------------------------------------------------------

LOCK_TENANT_KEYS = Statement(
    """
SELECT key_version, state FROM stateroom.tenant_keys WHERE tenant_id = :tenant_id ORDER BY key_version FOR UPDATE
""",
    KeyState,
)
LOCK_SUBJECT_KEYS = Statement(
    """
SELECT key_version, state FROM stateroom.subject_keys
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data' ORDER BY key_version FOR UPDATE
""",
    KeyState,
)

# The one that was active first: two active versions are refused by an index, row by row.
DEMOTE_TENANT_KEY = Statement("""
UPDATE stateroom.tenant_keys SET state = 'decrypt_only' WHERE tenant_id = :tenant_id AND state = 'active'
""")
PROMOTE_TENANT_KEY = Statement("""
UPDATE stateroom.tenant_keys SET state = 'active'
WHERE tenant_id = :tenant_id AND key_version = :key_version AND state = 'pending'
""")
DEMOTE_SUBJECT_KEY = Statement("""
UPDATE stateroom.subject_keys SET state = 'decrypt_only'
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data' AND state = 'active'
""")
PROMOTE_SUBJECT_KEY = Statement("""
UPDATE stateroom.subject_keys SET state = 'active'
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data' AND key_version = :key_version
  AND state = 'pending'
""")

RETIRE_TENANT_KEYS = Statement("""
UPDATE stateroom.tenant_keys SET state = 'retired'
WHERE tenant_id = :tenant_id AND key_version < :before_version AND state = 'decrypt_only'
""")
DESTROY_TENANT_KEYS = Statement(
    """
UPDATE stateroom.tenant_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = :now
WHERE tenant_id = :tenant_id AND key_version < :before_version AND state = 'retired' RETURNING key_version
""",
    int,
)
RETIRE_SUBJECT_KEYS = Statement("""
UPDATE stateroom.subject_keys SET state = 'retired'
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data' AND key_version < :before_version
  AND state = 'decrypt_only'
""")
DESTROY_SUBJECT_KEYS = Statement(
    """
UPDATE stateroom.subject_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = :now
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = 'data' AND key_version < :before_version
  AND state = 'retired'
RETURNING key_version
""",
    int,
)

# --- what is rewrapped ---------------------------------------------------------------------------------------------

# Also keys whose column names this version and whose envelope another one: they are refused as damage then.
_UNDER_OTHERS = """
tenant_id = :tenant_id AND state <> 'destroyed'
  AND (tenant_key_version <> :tenant_key_version OR substring(wrapped FROM 9 FOR 4) <> int4send(:tenant_key_version))
"""
SUBJECT_KEYS_UNDER_OTHERS = Statement(
    f"""
SELECT purpose, key_version, tenant_key_version, wrapped, kcv, subject_id FROM stateroom.subject_keys
WHERE {_UNDER_OTHERS}
  AND (subject_id, purpose, key_version) > (:after_subject, :after_purpose, :after_version)
ORDER BY subject_id, purpose, key_version LIMIT :page_rows
""",
    SubjectKeyToRewrap,
)
COUNT_SUBJECT_KEYS_UNDER_OTHERS = Statement(f"SELECT count(*) FROM stateroom.subject_keys WHERE {_UNDER_OTHERS}", int)
# Only what was read: a key that was destroyed or rewrapped meanwhile stays as it is.
REWRAP_SUBJECT_KEY = Statement("""
UPDATE stateroom.subject_keys SET tenant_key_version = :tenant_key_version, wrapped = :wrapped
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND purpose = :purpose AND key_version = :key_version
  AND wrapped = :wrapped_before
""")

# Across tenants, by an operator's binding.
TENANT_KEYS_AFTER = Statement(
    """
SELECT tenant_id, key_version, provider, root_key_id, root_key_version, wrapped, kcv FROM stateroom.tenant_keys
WHERE state <> 'destroyed' AND (tenant_id, key_version) > (:after_tenant, :after_version)
ORDER BY tenant_id, key_version LIMIT :page_rows
""",
    TenantKeyToRewrap,
)
COUNT_TENANT_KEYS = Statement("SELECT count(*) FROM stateroom.tenant_keys WHERE state <> 'destroyed'", int)
REWRAP_TENANT_KEY = Statement("""
UPDATE stateroom.tenant_keys SET provider = :provider, root_key_id = :root_key_id,
    root_key_version = :root_key_version, wrapped = :wrapped
WHERE tenant_id = :tenant_id AND key_version = :key_version AND wrapped = :wrapped_before
""")

# --- what shows ----------------------------------------------------------------------------------------------------

# The job of a rotation, by what comes before the key version in its id.
ROTATION_OF = Statement(
    """
SELECT job_id, kind, target FROM stateroom.jobs WHERE tenant_id = :tenant_id AND job_id BETWEEN :first_id AND :last_id
LIMIT 1
""",
    RotationRow,
)

TENANT_KEY_STATES = Statement(
    """
SELECT t.key_version, t.state, t.provider, t.root_key_id, t.root_key_version, t.created_at, t.destroyed_at,
    (SELECT count(*) FROM stateroom.subject_keys s
     WHERE s.tenant_id = t.tenant_id AND s.tenant_key_version = t.key_version AND s.state <> 'destroyed')
        AS subject_keys
FROM stateroom.tenant_keys t WHERE t.tenant_id = :tenant_id ORDER BY t.key_version
""",
    TenantKeyState,
)
SUBJECT_KEY_STATES = Statement(
    """
SELECT k.purpose, k.key_version, k.tenant_key_version, k.state, coalesce(a.bytes, 0)::bigint AS archived_bytes,
    k.created_at, k.destroyed_at, k.shred_effective_at
FROM stateroom.subject_keys k
LEFT JOIN (
    SELECT v.key_version, sum(x.size_bytes) AS bytes
    FROM stateroom.archives x CROSS JOIN unnest(x.key_versions) AS v(key_version)
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id GROUP BY 1) a
  ON a.key_version = k.key_version AND k.purpose = 'data'
WHERE k.tenant_id = :tenant_id AND k.subject_id = :subject_id ORDER BY k.purpose, k.key_version
""",
    SubjectKeyState,
)
ROOT_KEY_USES = Statement(
    """
SELECT provider, root_key_id, root_key_version, count(*) AS tenant_keys FROM stateroom.tenant_keys
WHERE state <> 'destroyed' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
""",
    RootKeyUse,
)

# --- older transactions --------------------------------------------------------------------------------------------

# Whether a transaction of a gateway is open that began by a moment: it may still believe what changed since. Only
# transactions count, so that the pool's idle connections do not.
OLDER_TRANSACTIONS = Statement(
    """
SELECT current_setting('track_activities') = 'on' AS tracked,
    EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
          AND xact_start <= :moment) AS open
""",
    OlderTransactions,
)

# --- re-sealing ----------------------------------------------------------------------------------------------------

_PLACE = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"


def _other(column: str) -> str:
    """Whether an envelope was sealed under another key version than the one of 4 bytes that is given."""
    return f"substring({column} FROM 9 FOR 4) <> :version::bytea"


# Threads whose pieces only their client opens, and archived ones, are not re-sealed.
THREADS_AFTER = Statement(
    """
SELECT thread_id FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after AND NOT client_share AND tier = 'hot'
ORDER BY thread_id LIMIT :limit
""",
    str,
)
LOCK_THREAD = Statement(
    f"""
SELECT created_at, seal, {_other("seal")} AS stale, CASE WHEN {_other("cold")} THEN cold END AS cold
FROM stateroom.threads
WHERE {_PLACE} AND NOT client_share AND tier = 'hot' FOR UPDATE
""",
    LockedThread,
)
STALE_CHUNKS = Statement(
    f"""
SELECT {columns(PieceRow)} FROM stateroom.chunks
WHERE {_PLACE} AND {_other("envelope")} AND piece_id > :after_piece ORDER BY piece_id LIMIT :page_rows
""",
    PieceRow,
)
STALE_CHECKPOINTS = Statement(
    f"""
SELECT {columns(CheckpointRow)} FROM stateroom.checkpoints
WHERE {_PLACE} AND {_other("manifest")} AND (namespace, checkpoint_id) > (:after_namespace, :after_checkpoint)
ORDER BY namespace, checkpoint_id LIMIT :page_rows
""",
    CheckpointRow,
)
STALE_WRITES = Statement(
    f"""
SELECT {columns(WriteRow)} FROM stateroom.pending_writes
WHERE {_PLACE} AND {_other("value")}
  AND (namespace, checkpoint_id, task_id, idx) > (:after_namespace, :after_checkpoint, :after_task, :after_idx)
ORDER BY namespace, checkpoint_id, task_id, idx LIMIT :page_rows
""",
    WriteRow,
)
STALE_HEADS = Statement(
    f"""
SELECT namespace, head_id, sequence, seal FROM stateroom.heads WHERE {_PLACE} AND {_other("seal")}
""",
    StaleHead,
)
# Receipts are sealed under the subject's ordinary keys, whatever thread the request was for.
STALE_RECEIPTS = Statement(
    f"""
SELECT idempotency_key, request_digest, receipt FROM stateroom.idempotency
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND receipt IS NOT NULL AND {_other("receipt")}
  AND idempotency_key > :after_key
ORDER BY idempotency_key LIMIT :page_rows
""",
    StaleReceipt,
)

RESEAL_CHUNK = Statement(f"""
UPDATE stateroom.chunks SET key_version = :key_version, envelope = :envelope
WHERE {_PLACE} AND piece_id = :piece_id
""")
RESEAL_CHECKPOINT = Statement(f"""
UPDATE stateroom.checkpoints SET key_version = :key_version, manifest = :manifest
WHERE {_PLACE} AND namespace = :namespace AND checkpoint_id = :checkpoint_id
""")
RESEAL_WRITE = Statement(f"""
UPDATE stateroom.pending_writes SET key_version = :key_version, value = :value
WHERE {_PLACE} AND namespace = :namespace AND checkpoint_id = :checkpoint_id AND task_id = :task_id AND idx = :idx
""")
RESEAL_HEAD = Statement(f"UPDATE stateroom.heads SET seal = :seal WHERE {_PLACE} AND namespace = :namespace")
RESEAL_RECEIPT = Statement("""
UPDATE stateroom.idempotency SET receipt = :receipt
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND idempotency_key = :idempotency_key
  AND receipt = :receipt_before
""")

_SEALED = (
    ("chunks", "envelope"),
    ("checkpoints", "manifest"),
    ("pending_writes", "value"),
    ("heads", "seal"),
    ("threads", "seal"),
    ("threads", "cold"),
)
# They stay in the database whatever tier their thread is in.
_IN_LEDGERS = (
    ("effects", "asked"),
    ("effects", "args"),
    ("effects", "outcome"),
    ("effects", "result"),
    ("claims", "note"),
)
_SET_ASIDE = """
EXISTS (SELECT FROM stateroom.threads t WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id
  AND t.thread_id = x.thread_id
    AND (t.client_share OR t.tier <> 'hot'))
"""

_IN_PATHS = f"""
SELECT p.share_check IS NOT NULL, 1 FROM stateroom.{{}} x
LEFT JOIN stateroom.item_paths p ON p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.path_id = x.path_id
WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.envelope")}
"""

# How many envelopes another version than the given one sealed: those to re-seal, and those that are set aside. Of a
# path under a client's share those are its labels and items; its seal takes no share. What is in an archive is counted
# once for the thread, by the versions its stub names, which `storage.key_lifecycle.reseal` authenticates before it
# believes that they are none.
COUNT_STALE = Statement(
    f"""
SELECT coalesce(sum(rows) FILTER (WHERE NOT aside), 0)::bigint AS stale,
    coalesce(sum(rows) FILTER (WHERE aside), 0)::bigint AS aside
FROM (
    {
        " UNION ALL ".join(
            f"SELECT {_SET_ASIDE} AS aside, 1 AS rows FROM stateroom.{table} x"
            f" WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other(f'x.{column}')}"
            for table, column in _SEALED
        )
    }
    UNION ALL SELECT false, 1 FROM stateroom.idempotency x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.receipt IS NOT NULL AND {_other("x.receipt")}
    UNION ALL {_IN_PATHS.format("items")}
    UNION ALL {_IN_PATHS.format("item_vectors")}
    UNION ALL SELECT x.share_check IS NOT NULL, 1 FROM stateroom.item_paths x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.labels")}
    UNION ALL SELECT false, 1 FROM stateroom.item_paths x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.seal")}
    UNION ALL SELECT false, 1 FROM stateroom.item_scopes x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.seal")}
    {
        " ".join(
            f"UNION ALL SELECT x.client_share, 1 FROM stateroom.{table} x"
            f" WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other(f'x.{column}')}"
            for table, column in _IN_LEDGERS
        )
    }
    UNION ALL SELECT x.client_share, 1 FROM stateroom.approvals x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.request")}
    UNION ALL SELECT false, 1 FROM stateroom.approvals x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.display")}
    UNION ALL SELECT false, 1 FROM stateroom.approvals x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.decision")}
    UNION ALL SELECT true, 1 FROM stateroom.archives x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id
      AND ({_other("x.sealed")} OR x.key_versions <> ARRAY[('x' || encode(:version, 'hex'))::bit(32)::integer])
    UNION ALL {STALE_BLOBS}
) sealed
""",
    StaleCount,
)
