"""Statements of jobs that verify: whose turn is next, and how many there are."""

from uuid import UUID

from storage.postgres.statement import Statement

# Across tenants, by an operator's binding.
TENANTS_AFTER = Statement(
    "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > :after ORDER BY tenant_id LIMIT :limit", UUID
)
COUNT_TENANTS = Statement("SELECT count(*) FROM stateroom.tenants", int)

COUNT_SUBJECTS = Statement(
    """
SELECT count(DISTINCT subject_id) FROM stateroom.subject_keys
WHERE tenant_id = :tenant_id AND state <> 'destroyed'
""",
    int,
)
