"""Statements that find what an eager migration of state has to do."""

# A stretch of a subject's heads under a schema, by place, or one of them ($8), and what says whether to touch them.
HEADS = """
SELECT h.thread_id, h.namespace, c.state_version, coalesce(c.outcome, c.status) AS status, c.source, t.tier,
    t.client_share, c.created_at > clock_timestamp() - make_interval(secs => $6) AS recent,
    EXISTS (SELECT FROM stateroom.pending_writes w
     WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = h.thread_id AND w.namespace = h.namespace
       AND w.checkpoint_id = h.head_id) AS written
FROM stateroom.heads h
JOIN stateroom.threads t ON t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = h.thread_id
JOIN stateroom.checkpoints c ON c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = h.thread_id
    AND c.namespace = h.namespace AND c.checkpoint_id = h.head_id
WHERE h.tenant_id = $1 AND h.subject_id = $2 AND c.state_schema = $5
  AND CASE WHEN $8 THEN (h.thread_id, h.namespace) = ($3, $4) ELSE (h.thread_id, h.namespace) > ($3, $4) END
ORDER BY h.thread_id, h.namespace LIMIT $7
"""

# Heads of a subject under a schema whose threads are in the archive: only their stubs tell.
ARCHIVED_HEADS = """
SELECT count(*) FROM stateroom.archives a, unnest(a.state_schemas) AS found(state_schema)
WHERE a.tenant_id = $1 AND a.subject_id = $2 AND found.state_schema = $3
"""

# Heads by version over all subjects of a tenant, by the binding of a listing. Reads the clear columns of all the
# tenant's checkpoints, in the order of their index: for a person who asks, not for a loop.
HEADS_BY_VERSION = """
SELECT state_version AS number, count(*) AS heads FROM (
    SELECT DISTINCT ON (subject_id, thread_id, namespace) state_schema, state_version FROM stateroom.checkpoints
    WHERE tenant_id = $1 ORDER BY subject_id, thread_id, namespace, checkpoint_id DESC
) heads
WHERE state_schema = $2 AND state_version IS NOT NULL GROUP BY state_version ORDER BY state_version
"""

LAST_JOBS = """
SELECT * FROM (
    SELECT DISTINCT ON (kind)
        job_id, kind, target, state, done, total, error, note, position, created_at, updated_at, mac
    FROM stateroom.jobs WHERE tenant_id = $1 AND target = $2 AND kind = ANY($3::text[])
    ORDER BY kind, created_at DESC, job_id DESC
) last ORDER BY created_at DESC, job_id DESC
"""
