"""Statements that find what an eager migration of state has to do."""

from msgspec import Struct

from storage.postgres.statement import Statement
from storage.statements.deployment.jobs import COLUMNS, JobRow
from storage.statements.rules.adoptions import ADOPTED, SCHEMA, VERSION


class MigratingHead(Struct, frozen=True):
    """A head that a migration looks at.

    Attributes:
        state_version: The version its state is at; None: of an adoption that names none.
        status: What its run came to.
        recent: Whether an agent saved it so shortly ago that it may be at work, or holds a claim of its thread.
        written: Whether it has pending writes.
    """

    thread_id: str
    namespace: str
    state_version: int | None
    status: str
    source: str | None
    tier: str
    client_share: bool
    recent: bool
    written: bool


class HeadsAtVersion(Struct, frozen=True):
    """How many heads are at a version."""

    number: int
    heads: int


# A stretch of a subject's heads under a schema, by place, or the one at a place, and what says whether to touch them.
# What a migration or a rollback saved is no recent use: no agent is at work on it.
HEADS = Statement(
    f"""
SELECT h.thread_id, h.namespace, {VERSION} AS state_version, coalesce(c.outcome, c.status) AS status, c.source, t.tier,
    t.client_share,
    coalesce(c.source, '') NOT IN ('migrate', 'rollback')
        AND c.created_at > statement_timestamp() - make_interval(secs => :idle_seconds)
        OR coalesce(t.claimed_until > statement_timestamp(), false) AS recent,
    EXISTS (SELECT FROM stateroom.pending_writes w
     WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = h.thread_id
       AND w.namespace = h.namespace
       AND w.checkpoint_id = h.head_id) AS written
FROM stateroom.heads h
JOIN stateroom.threads t ON t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = h.thread_id
JOIN stateroom.checkpoints c ON c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = h.thread_id
    AND c.namespace = h.namespace AND c.checkpoint_id = h.head_id
{ADOPTED}
WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id AND {SCHEMA} = :state_schema
  AND CASE WHEN :only_this THEN (h.thread_id, h.namespace) = (:after_thread, :after_namespace) ELSE (h.thread_id,
      h.namespace) > (:after_thread, :after_namespace) END
ORDER BY h.thread_id, h.namespace LIMIT :limit
""",
    MigratingHead,
)

# Heads of a subject under a schema whose threads are in the archive: only their stubs tell. Which heads an agent saved
# unversioned they do not: a thread none of whose heads has a schema counts as one, if its agent's state was adopted.
ARCHIVED_HEADS = Statement(
    """
SELECT coalesce(sum(
    (SELECT count(*) FROM unnest(s.state_schemas) AS found(state_schema) WHERE found.state_schema = :state_schema)
    + (cardinality(s.state_schemas) = 0 AND EXISTS (
        SELECT FROM stateroom.state_adoptions a WHERE a.tenant_id = :tenant_id AND a.state_schema = :state_schema
          AND (s.agents @> ARRAY[a.agent] OR (a.agent = '' AND cardinality(s.agents) = 0))))::int
), 0)::bigint
FROM stateroom.archives s WHERE s.tenant_id = :tenant_id AND s.subject_id = :subject_id AND s.segment = 0
""",
    int,
)

# Heads by version over all subjects of a tenant, by the binding of a listing. Reads the clear columns of all the
# tenant's checkpoints, in the order of their index: for a person who asks, not for a loop.
HEADS_BY_VERSION = Statement(
    f"""
SELECT {VERSION} AS number, count(*) AS heads FROM (
    SELECT DISTINCT ON (subject_id, thread_id, namespace) state_schema, state_version, agent, namespace, created_at
    FROM stateroom.checkpoints
    WHERE tenant_id = :tenant_id ORDER BY subject_id, thread_id, namespace, checkpoint_id DESC
) c {ADOPTED}
WHERE {SCHEMA} = :state_schema AND {VERSION} IS NOT NULL GROUP BY 1 ORDER BY 1
""",
    HeadsAtVersion,
)

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
