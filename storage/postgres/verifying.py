"""Statements of jobs that verify: whose turn is next, and how many there are."""

# Across tenants, by an operator's binding.
TENANTS_AFTER = "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2"
COUNT_TENANTS = "SELECT count(*) FROM stateroom.tenants"

COUNT_SUBJECTS = """
SELECT count(DISTINCT subject_id) FROM stateroom.subject_keys WHERE tenant_id = $1 AND state <> 'destroyed'
"""
