"""Statements on the life of keys: new versions, what still needs an old one, and the end of it.

Which key sealed an envelope is read from the envelope's header (bytes 9 to 12), never only from the clear column beside
it: nothing is destroyed on the word of a column that somebody could edit.
"""

from storage.postgres.blobs import STALE_BLOBS

# --- versions ------------------------------------------------------------------------------------------------------

LOCK_TENANT_KEYS = """
SELECT key_version, state FROM stateroom.tenant_keys WHERE tenant_id = $1 ORDER BY key_version FOR UPDATE
"""
LOCK_SUBJECT_KEYS = """
SELECT key_version, state FROM stateroom.subject_keys
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' ORDER BY key_version FOR UPDATE
"""

# The one that was active first: two active versions are refused by an index, row by row.
DEMOTE_TENANT_KEY = """
UPDATE stateroom.tenant_keys SET state = 'decrypt_only' WHERE tenant_id = $1 AND state = 'active'
"""
PROMOTE_TENANT_KEY = """
UPDATE stateroom.tenant_keys SET state = 'active' WHERE tenant_id = $1 AND key_version = $2 AND state = 'pending'
"""
DEMOTE_SUBJECT_KEY = """
UPDATE stateroom.subject_keys SET state = 'decrypt_only'
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' AND state = 'active'
"""
PROMOTE_SUBJECT_KEY = """
UPDATE stateroom.subject_keys SET state = 'active'
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' AND key_version = $3 AND state = 'pending'
"""

RETIRE_TENANT_KEYS = """
UPDATE stateroom.tenant_keys SET state = 'retired'
WHERE tenant_id = $1 AND key_version < $2 AND state = 'decrypt_only'
"""
DESTROY_TENANT_KEYS = """
UPDATE stateroom.tenant_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = $3
WHERE tenant_id = $1 AND key_version < $2 AND state = 'retired' RETURNING key_version
"""
RETIRE_SUBJECT_KEYS = """
UPDATE stateroom.subject_keys SET state = 'retired'
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' AND key_version < $3 AND state = 'decrypt_only'
"""
DESTROY_SUBJECT_KEYS = """
UPDATE stateroom.subject_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = $4
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' AND key_version < $3 AND state = 'retired'
RETURNING key_version
"""

# --- what is rewrapped ---------------------------------------------------------------------------------------------

# Also keys whose column names this version and whose envelope another one: they are refused as damage then.
_UNDER_OTHERS = """
tenant_id = $1 AND state <> 'destroyed'
  AND (tenant_key_version <> $2 OR substring(wrapped FROM 9 FOR 4) <> int4send($2))
"""
SUBJECT_KEYS_UNDER_OTHERS = f"""
SELECT subject_id, purpose, key_version, tenant_key_version, wrapped, kcv FROM stateroom.subject_keys
WHERE {_UNDER_OTHERS}
  AND (subject_id, purpose, key_version) > ($3, $4, $5)
ORDER BY subject_id, purpose, key_version LIMIT $6
"""
COUNT_SUBJECT_KEYS_UNDER_OTHERS = f"SELECT count(*) FROM stateroom.subject_keys WHERE {_UNDER_OTHERS}"
# Only what was read: a key that was destroyed or rewrapped meanwhile stays as it is.
REWRAP_SUBJECT_KEY = """
UPDATE stateroom.subject_keys SET tenant_key_version = $5, wrapped = $6
WHERE tenant_id = $1 AND subject_id = $2 AND purpose = $3 AND key_version = $4 AND wrapped = $7
"""

# Across tenants, by an operator's binding.
TENANT_KEYS_AFTER = """
SELECT tenant_id, key_version, provider, root_key_id, root_key_version, wrapped, kcv FROM stateroom.tenant_keys
WHERE state <> 'destroyed' AND (tenant_id, key_version) > ($1, $2) ORDER BY tenant_id, key_version LIMIT $3
"""
COUNT_TENANT_KEYS = "SELECT count(*) FROM stateroom.tenant_keys WHERE state <> 'destroyed'"
REWRAP_TENANT_KEY = """
UPDATE stateroom.tenant_keys SET provider = $3, root_key_id = $4, root_key_version = $5, wrapped = $6
WHERE tenant_id = $1 AND key_version = $2 AND wrapped = $7
"""
DEPLOYMENT_KEYS = """
SELECT purpose, key_version, provider, root_key_id, root_key_version, wrapped, public FROM stateroom.deployment_keys
ORDER BY purpose, key_version
"""
REWRAP_DEPLOYMENT_KEY = """
UPDATE stateroom.deployment_keys SET provider = $3, root_key_id = $4, root_key_version = $5, wrapped = $6
WHERE purpose = $1 AND key_version = $2 AND wrapped = $7
"""

# --- what shows ----------------------------------------------------------------------------------------------------

# The job of a rotation, by what comes before the key version in its id.
ROTATION_OF = """
SELECT job_id, kind, target FROM stateroom.jobs WHERE tenant_id = $1 AND job_id BETWEEN $2 AND $3 LIMIT 1
"""

TENANT_KEY_STATES = """
SELECT t.key_version, t.state, t.provider, t.root_key_id, t.root_key_version, t.created_at, t.destroyed_at,
    (SELECT count(*) FROM stateroom.subject_keys s
     WHERE s.tenant_id = t.tenant_id AND s.tenant_key_version = t.key_version AND s.state <> 'destroyed')
        AS subject_keys
FROM stateroom.tenant_keys t WHERE t.tenant_id = $1 ORDER BY t.key_version
"""
SUBJECT_KEY_STATES = """
SELECT purpose, key_version, tenant_key_version, state, created_at, destroyed_at, shred_effective_at
FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = $2 ORDER BY purpose, key_version
"""
ROOT_KEY_USES = """
SELECT provider, root_key_id, root_key_version, count(*) AS tenant_keys FROM stateroom.tenant_keys
WHERE state <> 'destroyed' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

# --- quiet ---------------------------------------------------------------------------------------------------------

MOMENT = "SELECT clock_timestamp()"
# Whether a transaction of a gateway is open that began before a moment: it may still believe what changed since. Only
# transactions count, so that the pool's idle connections do not.
BUSY_SINCE = """
SELECT current_setting('track_activities') = 'on' AS tracked,
    EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
          AND xact_start <= $1) AS busy
"""

# --- re-sealing ----------------------------------------------------------------------------------------------------

_PLACE = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"


def _other(column: str, parameter: str) -> str:
    """Whether an envelope was sealed under another key version than the 4 bytes in a parameter."""
    return f"substring({column} FROM 9 FOR 4) <> {parameter}::bytea"


# Threads whose pieces only their client opens, and archived ones, are not re-sealed.
THREADS_AFTER = """
SELECT thread_id FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 AND NOT client_share AND tier = 'hot'
ORDER BY thread_id LIMIT $4
"""
LOCK_THREAD = f"""
SELECT created_at, seal, {_other("seal", "$4")} AS stale FROM stateroom.threads
WHERE {_PLACE} AND NOT client_share AND tier = 'hot' FOR UPDATE
"""
STALE_CHUNKS = f"""
SELECT piece_id, children, named_ids, key_version, envelope FROM stateroom.chunks
WHERE {_PLACE} AND {_other("envelope", "$4")} AND piece_id > $5 ORDER BY piece_id LIMIT $6
"""
STALE_CHECKPOINTS = f"""
SELECT thread_id, namespace, checkpoint_id, parent_id, step, status, source, agent, run_id, model, state_schema,
    state_version, input_tokens, output_tokens, cost_micros, created_at, piece_ids, named_ids,
    key_version, manifest
FROM stateroom.checkpoints
WHERE {_PLACE} AND {_other("manifest", "$4")} AND (namespace, checkpoint_id) > ($5, $6)
ORDER BY namespace, checkpoint_id LIMIT $7
"""
STALE_WRITES = f"""
SELECT thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status, created_at, piece_ids,
    named_ids, state_schema, state_version, key_version, value
FROM stateroom.pending_writes
WHERE {_PLACE} AND {_other("value", "$4")} AND (namespace, checkpoint_id, task_id, idx) > ($5, $6, $7, $8)
ORDER BY namespace, checkpoint_id, task_id, idx LIMIT $9
"""
STALE_HEADS = f"""
SELECT namespace, head_id, sequence, seal FROM stateroom.heads WHERE {_PLACE} AND {_other("seal", "$4")}
"""
# Receipts are sealed under the subject's ordinary keys, whatever thread the request was for.
STALE_RECEIPTS = f"""
SELECT idempotency_key, request_digest, receipt FROM stateroom.idempotency
WHERE tenant_id = $1 AND subject_id = $2 AND receipt IS NOT NULL AND {_other("receipt", "$3")}
  AND idempotency_key > $4
ORDER BY idempotency_key LIMIT $5
"""

RESEAL_CHUNK = f"UPDATE stateroom.chunks SET key_version = $5, envelope = $6 WHERE {_PLACE} AND piece_id = $4"
RESEAL_CHECKPOINT = f"""
UPDATE stateroom.checkpoints SET key_version = $6, manifest = $7
WHERE {_PLACE} AND namespace = $4 AND checkpoint_id = $5
"""
RESEAL_WRITE = f"""
UPDATE stateroom.pending_writes SET key_version = $8, value = $9
WHERE {_PLACE} AND namespace = $4 AND checkpoint_id = $5 AND task_id = $6 AND idx = $7
"""
RESEAL_HEAD = f"UPDATE stateroom.heads SET seal = $5 WHERE {_PLACE} AND namespace = $4"
RESEAL_RECEIPT = """
UPDATE stateroom.idempotency SET receipt = $4
WHERE tenant_id = $1 AND subject_id = $2 AND idempotency_key = $3 AND receipt = $5
"""

_SEALED = (
    ("chunks", "envelope"),
    ("checkpoints", "manifest"),
    ("pending_writes", "value"),
    ("heads", "seal"),
    ("threads", "seal"),
)
_SET_ASIDE = """
EXISTS (SELECT FROM stateroom.threads t WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = x.thread_id
    AND (t.client_share OR t.tier <> 'hot'))
"""

# How many envelopes another version than $3 (4 bytes) sealed: those to re-seal, and those that are set aside. What is
# in an archive is counted once for the thread, by the versions its stub names, which `storage.key_lifecycle.reseal`
# authenticates before it believes that they are none.
COUNT_STALE = f"""
SELECT coalesce(sum(rows) FILTER (WHERE NOT aside), 0)::bigint AS stale,
    coalesce(sum(rows) FILTER (WHERE aside), 0)::bigint AS aside
FROM (
    {
    " UNION ALL ".join(
        f"SELECT {_SET_ASIDE} AS aside, 1 AS rows FROM stateroom.{table} x"
        f" WHERE x.tenant_id = $1 AND x.subject_id = $2 AND {_other(f'x.{column}', '$3')}"
        for table, column in _SEALED
    )
}
    UNION ALL SELECT false, 1 FROM stateroom.idempotency x
    WHERE x.tenant_id = $1 AND x.subject_id = $2 AND x.receipt IS NOT NULL AND {_other("x.receipt", "$3")}
    UNION ALL SELECT true, 1 FROM stateroom.archives x
    WHERE x.tenant_id = $1 AND x.subject_id = $2
      AND ({_other("x.sealed", "$3")} OR x.key_versions <> ARRAY[('x' || encode($3, 'hex'))::bit(32)::integer])
    UNION ALL {STALE_BLOBS}
) sealed
"""
