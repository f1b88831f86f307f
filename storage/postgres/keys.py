"""Statements on wrapped keys, and the number that all rows of a scope's keys make."""

# Rows that are not destroyed, hashed and summed by XOR, so that no order matters. Edited rows, rows that were put back
# and rows that were removed make another number: whoever keeps opened keys compares it (revision a34). How a tenant key
# is wrapped is left out, because exchanging a root key would make every process open every subject's keys again.
_SUBJECT_HASH = """coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)"""
_TENANT_HASH = """coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0)"""

# Of the subject $2 of the tenant $1, in a statement of any kind.
KEYS_HASH = f"({_SUBJECT_HASH} # {_TENANT_HASH})"

HASH_NOW = f"SELECT {KEYS_HASH} AS keys_hash"

TENANT_KEYS = f"""
SELECT key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, {_TENANT_HASH} AS tenant_hash
FROM stateroom.tenant_keys WHERE tenant_id = $1 ORDER BY key_version
"""

# Beside each row, what all of them make, and the tenant's alone.
SUBJECT_KEYS = f"""
SELECT purpose, key_version, tenant_key_version, state, wrapped, kcv, {KEYS_HASH} AS keys_hash,
    {_TENANT_HASH} AS tenant_hash
FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = $2 ORDER BY purpose, key_version
"""

# Whether a subject has anything. By order, because whoever only asks whether there is a row may scan the table for it.
HAS_ANYTHING = """
SELECT coalesce(
        (SELECT true FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 ORDER BY thread_id LIMIT 1),
        (SELECT true FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2
         ORDER BY thread_id, namespace, checkpoint_id LIMIT 1),
        (SELECT true FROM stateroom.heads WHERE tenant_id = $1 AND subject_id = $2
         ORDER BY thread_id, namespace LIMIT 1),
        (SELECT true FROM stateroom.pending_writes WHERE tenant_id = $1 AND subject_id = $2
         ORDER BY thread_id, namespace, checkpoint_id, task_id, idx LIMIT 1),
        false)
"""

# Another gateway may have stored its key first; what is stored is then read again, and only that is ever used.
ADD_TENANT_KEY = """
INSERT INTO stateroom.tenant_keys
    (tenant_id, key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
"""

ADD_SUBJECT_KEY = """
INSERT INTO stateroom.subject_keys
    (tenant_id, subject_id, purpose, key_version, tenant_key_version, state, wrapped, kcv, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
"""

# Held to the end of the transaction that wraps a key under it: a rotation or a shred of the tenant key waits, and
# whoever comes after one sees another state. So no subject key is ever wrapped under a version that was given up.
HOLD_TENANT_KEY = """
SELECT state FROM stateroom.tenant_keys WHERE tenant_id = $1 AND key_version = $2 FOR SHARE
"""
