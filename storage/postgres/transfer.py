"""Statements on whole threads that are exported and imported."""

STANDING = """
SELECT agent, status, tier, strict, client_share, activity, created_at, updated_at, seal FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

THREADS_AFTER = """
SELECT thread_id, client_share FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4
"""

# What the thread owns, and what its state names of others.
ARTIFACT_IDS = """
SELECT artifact_id FROM stateroom.artifacts WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
UNION
SELECT artifact_id FROM stateroom.artifact_refs WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
ORDER BY artifact_id
"""

ORIGIN = """
SELECT client_share, origin FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

# Nothing returned: there is one of this name. It is as old as it is where it comes from, and was written to now, which
# the trigger leaves to imports to say (revision a33).
ADD_THREAD = """
INSERT INTO stateroom.threads
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share, origin, began_at)
VALUES ($1, $2, $3, $4, $5, 'hot', $6, 1, $7, clock_timestamp(), $8, $9, $10, least($7, clock_timestamp()))
ON CONFLICT DO NOTHING RETURNING 1
"""

ACCEPT_UNBOUND = """
INSERT INTO stateroom.unbound_imports (tenant_id, export_id, accepted_at, mac, mac_format) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
"""

UNBOUND = "SELECT export_id, accepted_at, mac, mac_format FROM stateroom.unbound_imports WHERE tenant_id = $1"

USE_UP_UNBOUND = "DELETE FROM stateroom.unbound_imports WHERE tenant_id = $1 AND export_id = $2"
