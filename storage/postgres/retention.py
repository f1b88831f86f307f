"""Statements on retention: policies, legal holds, and the rounds that act on them.

Everything goes by the database's clock: leases, the timetable of rounds, and what is due. Facts come with the moment
that they are of (``present``). Rows from before revision a23 say when they were made by a gateway's clock.
"""

from uuid import UUID

# --- holds -----------------------------------------------------------------------------------------------------------

SHARE_HOLDS = "SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))"
# Whoever sets or lifts waits for removals that are under way, and has them wait.
TAKE_HOLDS = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"


def holds_lock(tenant_id: UUID) -> str:
    """The name of the lock that removals in a tenant share and that setting what holds takes alone."""
    return f"{tenant_id}/retention"


_TENANT_HELD = "EXISTS (SELECT FROM stateroom.retention WHERE tenant_id = $1 AND level = 'tenant' AND legal_hold)"

# A thread is an agent's that is named in its row, or that saved one of its checkpoints, archived ones included.
THREAD_HELD = f"""
SELECT {_TENANT_HELD}
    OR EXISTS (SELECT FROM stateroom.thread_retention
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND legal_hold)
    OR EXISTS (
        SELECT FROM stateroom.retention r WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.legal_hold AND (
            EXISTS (SELECT FROM stateroom.threads t
                WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.checkpoints c
                WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.archives a
                WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.thread_id = $3 AND r.target = ANY(a.agents))
        )
    )
"""

SUBJECT_HELD = f"""
SELECT {_TENANT_HELD}
    OR EXISTS (SELECT FROM stateroom.thread_retention WHERE tenant_id = $1 AND subject_id = $2 AND legal_hold)
    OR EXISTS (
        SELECT FROM stateroom.retention r WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.legal_hold AND (
            EXISTS (SELECT FROM stateroom.threads t
                WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.checkpoints c
                WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.archives a
                WHERE a.tenant_id = $1 AND a.subject_id = $2 AND r.target = ANY(a.agents))
        )
    )
"""

# Whether a thread, or any thread of a subject, is one of these agents'.
THREAD_IS_OF = """
SELECT EXISTS (SELECT FROM stateroom.threads
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND agent = ANY($4::text[]))
    OR EXISTS (SELECT FROM stateroom.checkpoints
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND agent = ANY($4::text[]))
    OR EXISTS (SELECT FROM stateroom.archives
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND agents && $4::text[])
"""
SUBJECT_IS_OF = """
SELECT EXISTS (SELECT FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND agent = ANY($3::text[]))
    OR EXISTS (SELECT FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND agent = ANY($3::text[]))
    OR EXISTS (SELECT FROM stateroom.archives WHERE tenant_id = $1 AND subject_id = $2 AND agents && $3::text[])
"""

# A page of what threads say, of one subject or of all; bound to the tenant, or to that subject.
THREADS_SAY = """
SELECT subject_id, thread_id, policy, legal_hold, updated_at, mac, mac_format FROM stateroom.thread_retention
WHERE tenant_id = $1 AND ($2::text IS NULL OR subject_id = $2) AND (subject_id, thread_id) > ($3, $4)
ORDER BY subject_id, thread_id LIMIT $5
"""

TENANT_HELD = """
SELECT EXISTS (SELECT FROM stateroom.retention WHERE tenant_id = $1 AND legal_hold)
    OR EXISTS (SELECT FROM stateroom.thread_retention WHERE tenant_id = $1 AND legal_hold)
"""

# --- policies --------------------------------------------------------------------------------------------------------

_POLICIES = """
SELECT level, target, policy, legal_hold, updated_at, mac, mac_format FROM stateroom.retention WHERE tenant_id = $1
"""
POLICIES = f"{_POLICIES} ORDER BY level, target"

# What concerns threads of some agents: what is said of these, and (an empty target) of all. Whatever the others are.
POLICIES_OF = f"{_POLICIES} AND level IN ('tenant', 'agent', 'ceilings') AND target = ANY($2::text[])"

# An agent's row stays when what it said is taken back: that it changed, and when, is for the next round to know.
REMOVE_TAKEN_BACK = """
DELETE FROM stateroom.retention r USING stateroom.retention_rounds rounds
WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.target = ANY($2::text[])
  AND rounds.tenant_id = $1 AND r.updated_at < rounds.thinned_until
RETURNING r.target
"""

PUT = """
INSERT INTO stateroom.retention (tenant_id, level, target, policy, legal_hold, updated_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant_id, level, target) DO UPDATE SET
    policy = excluded.policy, legal_hold = excluded.legal_hold, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
"""

# Against a deletion, which locks the same row and then asks again what holds.
LOCK_THREAD = """
SELECT agent FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 FOR NO KEY UPDATE
"""

THREAD_ONE = """
SELECT policy, legal_hold, updated_at, mac, mac_format FROM stateroom.thread_retention
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

PUT_THREAD = """
INSERT INTO stateroom.thread_retention
    (tenant_id, subject_id, thread_id, policy, legal_hold, updated_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
    policy = excluded.policy, legal_hold = excluded.legal_hold, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
"""

# --- facts -----------------------------------------------------------------------------------------------------------

# A build from before revision a23 imports a thread as if it had been written to when its file says.
_FACTS = """
SELECT t.subject_id, t.thread_id, t.agent, t.status, t.tier, t.client_share, t.activity,
    greatest(t.updated_at, t.began_at) AS updated_at,
    coalesce(t.began_at, t.created_at) AS created_at, coalesce(a.stored_at, a.created_at) AS archived_at,
    clock_timestamp() AS present,
    a.blob_id, a.size_bytes, a.hot_bytes,
    r.policy, r.legal_hold, r.updated_at AS policy_updated_at, r.mac, r.mac_format
FROM stateroom.threads t
LEFT JOIN stateroom.archives a
    ON a.tenant_id = t.tenant_id AND a.subject_id = t.subject_id AND a.thread_id = t.thread_id
LEFT JOIN stateroom.thread_retention r
    ON r.tenant_id = t.tenant_id AND r.subject_id = t.subject_id AND r.thread_id = t.thread_id
"""

# A tenant's threads in the order of the primary key: nothing that changes has an index for this. The planner takes row
# security to leave few rows, and would read and sort all that are left for every page: it is told not to sort.
IN_ORDER = "SET LOCAL enable_sort = off"
PAGE = f"""
{_FACTS}
WHERE t.tenant_id = $1 AND (t.subject_id, t.thread_id) > ($2, $3)
ORDER BY t.subject_id, t.thread_id LIMIT $4
"""

FACTS_OF = f"{_FACTS} WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3"

# What takes more than the thread's own row; heads keep their pending writes.
COUNTS_OF = """
SELECT
    (SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3)
        AS checkpoints,
    EXISTS (
        SELECT FROM stateroom.pending_writes w
        WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3
          AND coalesce(w.stored_at, w.created_at) < $4 AND coalesce(w.stored_at, w.created_at) >= $5
          AND NOT EXISTS (SELECT FROM stateroom.heads h WHERE h.tenant_id = $1 AND h.subject_id = $2
              AND h.thread_id = $3 AND h.namespace = w.namespace AND h.head_id = w.checkpoint_id)
    ) AS writes_due
"""

# The lengths of the envelopes of threads' rows. Those are stored outside of their rows and not compressed, so that the
# lengths are known without reading them.
HOT_BYTES = """
SELECT given.thread_id,
    coalesce((SELECT sum(octet_length(c.manifest)) FROM stateroom.checkpoints c
        WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = given.thread_id), 0)::bigint
    + coalesce((SELECT sum(octet_length(k.envelope)) FROM stateroom.chunks k
        WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.thread_id = given.thread_id), 0)::bigint
    + coalesce((SELECT sum(octet_length(w.value)) FROM stateroom.pending_writes w
        WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = given.thread_id), 0)::bigint AS bytes
FROM unnest($3::text[]) AS given(thread_id)
"""

# The moment that facts read by this transaction are of, where there are none.
PRESENT = "SELECT clock_timestamp()"

# --- rounds ----------------------------------------------------------------------------------------------------------

# Where anybody says something, there are rounds.
BEGIN_ROUNDS = "INSERT INTO stateroom.retention_rounds (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING"

# The next round comes so many seconds from now; a round that is under way goes on.
DELAY_ROUND = """
UPDATE stateroom.retention_rounds SET due_at = clock_timestamp() + make_interval(secs => $2) WHERE tenant_id = $1
"""

# Across tenants, by an operator's binding.
# Of a suspended tenant nothing is removed: it has no round, and one that goes on ends at its next page.
_NOT_SUSPENDED = """NOT EXISTS (
      SELECT FROM stateroom.tenants t WHERE t.tenant_id = retention_rounds.tenant_id AND t.suspended_at IS NOT NULL)"""

TENANTS_DUE = f"""
SELECT tenant_id FROM stateroom.retention_rounds
WHERE due_at < clock_timestamp() AND (lease_until IS NULL OR lease_until < clock_timestamp())
  AND {_NOT_SUSPENDED}
ORDER BY due_at LIMIT $1
"""

CLAIM = f"""
UPDATE stateroom.retention_rounds SET lease_until = clock_timestamp() + make_interval(secs => $2)
WHERE tenant_id = $1 AND (lease_until IS NULL OR lease_until < clock_timestamp())
  AND ($3 OR due_at < clock_timestamp()) AND {_NOT_SUSPENDED}
RETURNING lease_until, coalesce(started_at, clock_timestamp()) AS started_at, progress, thinned_until
"""

# Whoever holds the lease knows its exact end, so that a late owner changes nothing.
ADVANCE = f"""
UPDATE stateroom.retention_rounds SET lease_until = clock_timestamp() + make_interval(secs => $3),
    started_at = $4, progress = $5
WHERE tenant_id = $1 AND lease_until = $2 AND {_NOT_SUSPENDED}
RETURNING lease_until
"""

PAUSE = """
UPDATE stateroom.retention_rounds SET lease_until = NULL, due_at = clock_timestamp() + make_interval(secs => $3)
WHERE tenant_id = $1 AND lease_until = $2
"""

FINISH = """
UPDATE stateroom.retention_rounds SET lease_until = NULL, due_at = clock_timestamp() + make_interval(secs => $3),
    started_at = NULL, progress = NULL, finished_at = clock_timestamp(), census = $4::text::jsonb,
    thinned_until = coalesce($5, thinned_until)
WHERE tenant_id = $1 AND lease_until = $2
"""

STANDING = """
SELECT coalesce(lease_until > clock_timestamp(), false) AS running, lease_until, started_at, progress,
    nullif(due_at, '-infinity') AS due_at, finished_at, census::text AS census
FROM stateroom.retention_rounds WHERE tenant_id = $1
"""

# Across tenants, by an operator's binding: numbers only.
CENSUS = """
SELECT count(*) AS tenants,
    coalesce(extract(epoch FROM clock_timestamp() - min(finished_at)), 0)::float8 AS age_seconds,
    count(*) FILTER (WHERE due_at < clock_timestamp() - make_interval(secs => $1)) AS overdue,
    coalesce(extract(epoch FROM clock_timestamp() - min((census ->> 'late_since')::timestamptz)), 0)::float8
        AS late_seconds
FROM stateroom.retention_rounds
"""
CENSUS_COUNTS = """
SELECT c.key AS what, sum((c.value)::text::bigint)::bigint AS count
FROM stateroom.retention_rounds r, jsonb_each(r.census -> 'counts') c GROUP BY 1
"""
