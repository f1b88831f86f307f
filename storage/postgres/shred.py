"""Statements that end keys for good and take away what they sealed."""

SUBJECT_STANDING = """
SELECT count(*) AS keys, count(*) FILTER (WHERE state = 'active') AS active,
    max(shred_effective_at) AS shred_effective_at
FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = $2
"""
TENANT_STANDING = """
SELECT count(*) AS keys, count(*) FILTER (WHERE state = 'active') AS active, max(destroyed_at) AS destroyed_at
FROM stateroom.tenant_keys WHERE tenant_id = $1
"""

LAST_JOB = """
SELECT job_id, kind, target, state, position, error, note, mac, mac_format FROM stateroom.jobs
WHERE tenant_id = $1 AND kind = $2 AND target = $3
ORDER BY created_at DESC LIMIT 1
"""

DESTROY_SUBJECT = """
UPDATE stateroom.subject_keys
SET state = 'destroyed', wrapped = NULL, destroyed_at = $3, shred_effective_at = $4
WHERE tenant_id = $1 AND subject_id = $2 AND state <> 'destroyed'
"""
DESTROY_TENANT = """
UPDATE stateroom.tenant_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = $2
WHERE tenant_id = $1 AND state <> 'destroyed'
"""
# In a later statement than the one above, which waits for whoever is wrapping a new subject key: it sees that, too.
DESTROY_SUBJECTS = """
UPDATE stateroom.subject_keys
SET state = 'destroyed', wrapped = NULL, destroyed_at = $2, shred_effective_at = $3
WHERE tenant_id = $1 AND state <> 'destroyed'
"""
# A tenant that never had a key must not get one any more.
REFUSE_KEYS = """
INSERT INTO stateroom.tenant_keys
    (tenant_id, key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, created_at, destroyed_at)
VALUES ($1, 1, 'destroyed', 'none', '-', '-', NULL, '\\x'::bytea, $2, $2)
ON CONFLICT DO NOTHING
"""

SUBJECTS_AFTER = """
SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id > $2
ORDER BY subject_id LIMIT $3
"""

PURGE_REST = tuple(
    f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2"
    for table in ("idempotency", "removed_threads")
)

# What says how a tenant's threads are saved to and kept, and the rounds that look for them: nothing is left to keep.
PURGE_TENANT = tuple(
    f"DELETE FROM stateroom.{table} WHERE tenant_id = $1"
    for table in ("save_policies", "retention", "retention_rounds")
)

# Of the tombstones with these ids: those this database does not know, and those whose keys open, however far their jobs
# say that they are. ``begun``: the shred was on its way to destroying them, or a backup was made while it was.
UNAPPLIED = """
SELECT t.shred_id, j.job_id, j.kind, j.target, j.state, j.position, j.error, j.note, j.mac, j.mac_format,
    coalesce(j.position = $3 AND j.state <> 'done', false) AS begun
FROM unnest($2::uuid[]) AS t(shred_id)
LEFT JOIN stateroom.jobs j ON j.tenant_id = $1 AND j.job_id = t.shred_id
WHERE j.job_id IS NULL
   OR j.kind = $4 AND EXISTS (SELECT FROM stateroom.subject_keys s WHERE s.tenant_id = $1
        AND s.subject_id = j.target AND s.state IN ('active', 'decrypt_only', 'retired'))
   OR j.kind = $5 AND EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = $1
        AND k.state IN ('active', 'decrypt_only', 'retired'))
"""

# A shred that is to be done from its beginning, known or not.
BEGIN_AGAIN = """
INSERT INTO stateroom.jobs AS j
    (tenant_id, job_id, kind, target, state, done, total, position, created_at, updated_at, mac, mac_format)
VALUES ($1, $2, $3, $4, 'queued', 0, NULL, $5, now(), now(), $6, $7)
ON CONFLICT (tenant_id, job_id) DO UPDATE SET kind = excluded.kind, target = excluded.target, state = 'queued',
    position = excluded.position, error = NULL, note = NULL, lease_until = NULL, updated_at = now(),
    mac = excluded.mac, mac_format = excluded.mac_format
"""
