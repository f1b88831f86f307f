"""Statements on the audit log, its heads and the key that signs its anchors."""

LOCK_HEAD = "SELECT sequence, hash FROM stateroom.audit_heads WHERE tenant_id = $1 FOR UPDATE"
ADD_HEAD = "INSERT INTO stateroom.audit_heads (tenant_id, sequence, hash) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING"
MOVE_HEAD = "UPDATE stateroom.audit_heads SET sequence = $2, hash = $3 WHERE tenant_id = $1"
ADD_EVENT = """
INSERT INTO stateroom.audit_log (tenant_id, sequence, at, actor, action, target, body, previous, hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""

HEAD = "SELECT sequence, hash, anchored FROM stateroom.audit_heads WHERE tenant_id = $1"
EVENTS = """
SELECT sequence, at, actor, action, target, body, previous, hash
FROM stateroom.audit_log WHERE tenant_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3
"""
LAST_EVENT = "SELECT max(sequence) FROM stateroom.audit_log WHERE tenant_id = $1"

# Across tenants, by an operator's binding: where chains end, and nothing of what they hold.
TO_ANCHOR = """
SELECT tenant_id FROM stateroom.audit_heads WHERE sequence > anchored AND tenant_id > $1 ORDER BY tenant_id LIMIT $2
"""
# A tenant whose log was taken away altogether has a chain all the same.
ENDS = """
SELECT tenant_id, max(sequence) AS sequence FROM (
    SELECT tenant_id, sequence FROM stateroom.audit_heads WHERE tenant_id > $1
    UNION ALL SELECT tenant_id, 0 FROM stateroom.tenants WHERE tenant_id > $1
) AS chains GROUP BY tenant_id ORDER BY tenant_id LIMIT $2
"""
TENANTS = "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2"
ANCHORED = "UPDATE stateroom.audit_heads SET anchored = $2 WHERE tenant_id = $1 AND anchored < $2"

SIGNING_KEY = """
SELECT provider, root_key_id, root_key_version, wrapped, public
FROM stateroom.deployment_keys WHERE purpose = 'audit' AND key_version = $1
"""
# Another gateway may have stored its key first; what is stored is then read again, and only that is ever used.
ADD_SIGNING_KEY = """
INSERT INTO stateroom.deployment_keys
    (purpose, key_version, provider, root_key_id, root_key_version, wrapped, public, created_at)
VALUES ('audit', $1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
"""
