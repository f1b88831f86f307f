"""Statements that find what an eager migration of state has to do."""

from storage.postgres.adoptions import ADOPTED as NAMED_ADOPTED
from storage.postgres.adoptions import SCHEMA, VERSION
from storage.postgres.jobs import COLUMNS, JobRow
from storage.postgres.statement import Statement

# By position, as the statements here are.
ADOPTED = NAMED_ADOPTED.replace(":tenant_id", "$1")

# A stretch of a subject's heads under a schema, by place, or one of them ($8), and what says whether to touch them.
# What a migration or a rollback saved is no recent use: no agent is at work on it.
HEADS = f"""
SELECT h.thread_id, h.namespace, {VERSION} AS state_version, coalesce(c.outcome, c.status) AS status, c.source, t.tier,
    t.client_share,
    coalesce(c.source, '') NOT IN ('migrate', 'rollback')
        AND c.created_at > clock_timestamp() - make_interval(secs => $6) AS recent,
    EXISTS (SELECT FROM stateroom.pending_writes w
     WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = h.thread_id AND w.namespace = h.namespace
       AND w.checkpoint_id = h.head_id) AS written
FROM stateroom.heads h
JOIN stateroom.threads t ON t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = h.thread_id
JOIN stateroom.checkpoints c ON c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = h.thread_id
    AND c.namespace = h.namespace AND c.checkpoint_id = h.head_id
{ADOPTED}
WHERE h.tenant_id = $1 AND h.subject_id = $2 AND {SCHEMA} = $5
  AND CASE WHEN $8 THEN (h.thread_id, h.namespace) = ($3, $4) ELSE (h.thread_id, h.namespace) > ($3, $4) END
ORDER BY h.thread_id, h.namespace LIMIT $7
"""

# Heads of a subject under a schema whose threads are in the archive: only their stubs tell. Which heads an agent saved
# unversioned they do not: a thread none of whose heads has a schema counts as one, if its agent's state was adopted.
ARCHIVED_HEADS = """
SELECT coalesce(sum(
    (SELECT count(*) FROM unnest(s.state_schemas) AS found(state_schema) WHERE found.state_schema = $3)
    + (cardinality(s.state_schemas) = 0 AND EXISTS (
        SELECT FROM stateroom.state_adoptions a WHERE a.tenant_id = $1 AND a.state_schema = $3
          AND (s.agents @> ARRAY[a.agent] OR (a.agent = '' AND cardinality(s.agents) = 0))))::int
), 0)::bigint
FROM stateroom.archives s WHERE s.tenant_id = $1 AND s.subject_id = $2
"""

# Heads by version over all subjects of a tenant, by the binding of a listing. Reads the clear columns of all the
# tenant's checkpoints, in the order of their index: for a person who asks, not for a loop.
HEADS_BY_VERSION = f"""
SELECT {VERSION} AS number, count(*) AS heads FROM (
    SELECT DISTINCT ON (subject_id, thread_id, namespace) state_schema, state_version, agent, namespace, created_at
    FROM stateroom.checkpoints
    WHERE tenant_id = $1 ORDER BY subject_id, thread_id, namespace, checkpoint_id DESC
) c {ADOPTED}
WHERE {SCHEMA} = $2 AND {VERSION} IS NOT NULL GROUP BY 1 ORDER BY 1
"""

LAST_JOBS = Statement(
    f"""
SELECT * FROM (
    SELECT DISTINCT ON (kind) {COLUMNS}
    FROM stateroom.jobs WHERE tenant_id = :tenant_id AND target = :schema AND kind = ANY(:kinds::text[])
    ORDER BY kind, created_at DESC, job_id DESC
) last ORDER BY created_at DESC, job_id DESC
""",
    JobRow,
)
