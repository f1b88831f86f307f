"""Statements that give a MAC to a control row that has none, where it still says what was read."""

from storage.postgres.statement import Statement

ADOPT_SCHEMA = Statement("""
UPDATE stateroom.state_schemas SET mac = :mac, mac_format = :mac_format
WHERE tenant_id = :tenant_id AND schema = :schema AND number = :number AND definition = :definition
  AND created_at = :created_at AND mac IS NULL
""")
ADOPT_RETENTION = Statement("""
UPDATE stateroom.retention SET mac = :mac, mac_format = :mac_format
WHERE tenant_id = :tenant_id AND level = :level AND target = :target AND policy = :policy
  AND legal_hold = :legal_hold AND updated_at = :updated_at
  AND mac IS NULL
""")
ADOPT_THREAD_RETENTION = Statement("""
UPDATE stateroom.thread_retention SET mac = :mac, mac_format = :mac_format
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND policy = :policy
  AND legal_hold = :legal_hold AND updated_at = :updated_at
  AND mac IS NULL
""")
ADOPT_JOB = Statement("""
UPDATE stateroom.jobs SET mac = :mac, mac_format = :mac_format
WHERE tenant_id = :owner AND job_id = :job_id AND kind = :kind AND target = :target
  AND CASE WHEN state IN ('done', 'failed') THEN state ELSE 'open' END = :outcome
  AND position = :position AND error IS NOT DISTINCT FROM :error AND note IS NOT DISTINCT FROM :note AND mac IS NULL
""")
