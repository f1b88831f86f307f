"""Statements on the key of control rows, whose public column holds its check value."""

CONTROL_KEY = """
SELECT provider, root_key_id, root_key_version, wrapped, public
FROM stateroom.deployment_keys WHERE purpose = 'control' AND key_version = $1
"""
# Another gateway may have stored its key first; what is stored is then read again, and only that is ever used.
ADD_CONTROL_KEY = """
INSERT INTO stateroom.deployment_keys
    (purpose, key_version, provider, root_key_id, root_key_version, wrapped, public, created_at)
VALUES ('control', $1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
"""
