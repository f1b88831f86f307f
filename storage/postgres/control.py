"""Statements on the key of control rows, whose public column holds its check value, and on rows without a MAC."""

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

# Where a row has no MAC and still says what was read.
ADOPT_SCHEMA = """
UPDATE stateroom.state_schemas SET mac = $6, mac_format = $7
WHERE tenant_id = $1 AND schema = $2 AND number = $3 AND definition = $4 AND created_at = $5 AND mac IS NULL
"""
ADOPT_RETENTION = """
UPDATE stateroom.retention SET mac = $7, mac_format = $8
WHERE tenant_id = $1 AND level = $2 AND target = $3 AND policy = $4 AND legal_hold = $5 AND updated_at = $6
  AND mac IS NULL
"""
ADOPT_THREAD_RETENTION = """
UPDATE stateroom.thread_retention SET mac = $7, mac_format = $8
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND policy = $4 AND legal_hold = $5 AND updated_at = $6
  AND mac IS NULL
"""
ADOPT_JOB = """
UPDATE stateroom.jobs SET mac = $9, mac_format = $10
WHERE tenant_id = $1 AND job_id = $2 AND kind = $3 AND target = $4
  AND CASE WHEN state IN ('done', 'failed') THEN state ELSE 'open' END = $5
  AND position = $6 AND error IS NOT DISTINCT FROM $7 AND note IS NOT DISTINCT FROM $8 AND mac IS NULL
"""
