"""Statements on wrapped keys."""

TENANT_KEYS = """
SELECT key_version, state, provider, root_key_id, root_key_version, wrapped, kcv
FROM stateroom.tenant_keys WHERE tenant_id = $1 ORDER BY key_version
"""

SUBJECT_KEYS = """
SELECT purpose, key_version, tenant_key_version, state, wrapped, kcv
FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = $2 ORDER BY purpose, key_version
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
