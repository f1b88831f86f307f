"""Statements on retention: policies, legal holds, and the rounds that act on them.

Everything goes by the database's clock: leases, the timetable of rounds, and what is due. Facts come with the moment
that they are of (``present``). Rows from before revision a23 say when they were made by a gateway's clock.

The clock is `statement_timestamp()`, which may stand in an UPDATE on one server and on many. A statement that waited
for a lock says a moment up to the lock timeout (5 s) ago: a lease of minutes then ends so much sooner, a round begins
so much sooner, and a round that counts from there looks at more, never at less. What is claimed is compared once more
when the lock is granted, so that two processes cannot both have it.
"""

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from storage.model import Status, Tier
from storage.postgres.statement import Statement

# --- holds -----------------------------------------------------------------------------------------------------------

SHARE_HOLDS = Statement("SELECT pg_advisory_xact_lock_shared(hashtextextended(:lock, 0))")
# A transaction that sets or lifts waits for removals that are under way, and has them wait.
TAKE_HOLDS = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0))")


def holds_lock(tenant_id: UUID) -> str:
    """The name of the lock that removals in a tenant share and that setting what holds takes alone."""
    return f"{tenant_id}/retention"


_TENANT_HELD = (
    "EXISTS (SELECT FROM stateroom.retention WHERE tenant_id = :tenant_id AND level = 'tenant' AND legal_hold)"
)

# A thread is an agent's that is named in its row, or that saved one of its checkpoints, archived ones included.
THREAD_HELD = Statement(
    f"""
SELECT {_TENANT_HELD}
    OR EXISTS (SELECT FROM stateroom.thread_retention
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND legal_hold)
    OR EXISTS (
        SELECT FROM stateroom.retention r WHERE r.tenant_id = :tenant_id AND r.level = 'agent' AND r.legal_hold AND (
            EXISTS (SELECT FROM stateroom.threads t
                WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
                  AND t.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.checkpoints c
                WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
                  AND c.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.archives a
                WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.thread_id = :thread_id
                  AND r.target = ANY(a.agents))
        )
    )
""",
    bool,
)

SUBJECT_HELD = Statement(
    f"""
SELECT {_TENANT_HELD}
    OR EXISTS (SELECT FROM stateroom.thread_retention
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND legal_hold)
    OR EXISTS (
        SELECT FROM stateroom.retention r WHERE r.tenant_id = :tenant_id AND r.level = 'agent' AND r.legal_hold AND (
            EXISTS (SELECT FROM stateroom.threads t
                WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.checkpoints c
                WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.agent = r.target)
            OR EXISTS (SELECT FROM stateroom.archives a
                WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND r.target = ANY(a.agents))
        )
    )
""",
    bool,
)

# Whether a thread, or any thread of a subject, is one of these agents'.
THREAD_IS_OF = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.threads
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
          AND agent = ANY(:agents::text[]))
    OR EXISTS (SELECT FROM stateroom.checkpoints
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
          AND agent = ANY(:agents::text[]))
    OR EXISTS (SELECT FROM stateroom.archives
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
          AND agents && :agents::text[])
""",
    bool,
)
SUBJECT_IS_OF = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND agent = ANY(:agents::text[]))
    OR EXISTS (SELECT FROM stateroom.checkpoints
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND agent = ANY(:agents::text[]))
    OR EXISTS (SELECT FROM stateroom.archives
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND agents && :agents::text[])
""",
    bool,
)


class OwnPolicyRow(Struct, frozen=True):
    """What a thread says, with its proof."""

    subject_id: str
    thread_id: str
    policy: bytes
    legal_hold: bool
    updated_at: datetime
    mac: bytes | None
    mac_format: int | None


# A page of the policies of threads, of one subject or of all; bound to the tenant, or to that subject.
THREAD_POLICIES = Statement(
    """
SELECT subject_id, thread_id, policy, legal_hold, updated_at, mac, mac_format FROM stateroom.thread_retention
WHERE tenant_id = :owner AND (:only_subject::text IS NULL OR subject_id = :only_subject) AND (subject_id,
    thread_id) > (:after_subject, :after_thread)
ORDER BY subject_id, thread_id LIMIT :limit
""",
    OwnPolicyRow,
)

TENANT_HELD = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.retention WHERE tenant_id = :owner AND legal_hold)
    OR EXISTS (SELECT FROM stateroom.thread_retention WHERE tenant_id = :owner AND legal_hold)
""",
    bool,
)

# --- policies --------------------------------------------------------------------------------------------------------


class PolicyRow(Struct, frozen=True):
    """What a tenant, one of its agents or the operator says, with its proof."""

    level: str
    target: str
    policy: bytes
    legal_hold: bool
    updated_at: datetime
    mac: bytes | None
    mac_format: int | None


_POLICIES = """
SELECT level, target, policy, legal_hold, updated_at, mac, mac_format FROM stateroom.retention WHERE tenant_id = :owner
"""
POLICIES = Statement(f"{_POLICIES} ORDER BY level, target", PolicyRow)

# What concerns threads of some agents: what is said of these, and (an empty target) of all. Whatever the others are.
POLICIES_OF = Statement(
    f"{_POLICIES} AND level IN ('tenant', 'agent', 'ceilings') AND target = ANY(:targets::text[])", PolicyRow
)

# An agent's row stays when what it said is taken back: that it changed, and when, is for the next round to know.
REMOVE_TAKEN_BACK = Statement(
    """
DELETE FROM stateroom.retention r USING stateroom.retention_rounds rounds
WHERE r.tenant_id = :owner AND r.level = 'agent' AND r.target = ANY(:targets::text[])
  AND rounds.tenant_id = :owner AND r.updated_at < rounds.thinned_until
RETURNING r.target
""",
    str,
)

PUT = Statement("""
INSERT INTO stateroom.retention (tenant_id, level, target, policy, legal_hold, updated_at, mac, mac_format)
VALUES (:owner, :level, :target, :policy, :legal_hold, :updated_at, :mac, :mac_format)
ON CONFLICT (tenant_id, level, target) DO UPDATE SET
    policy = excluded.policy, legal_hold = excluded.legal_hold, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
""")


class LockedThread(Struct, frozen=True):
    """A thread that is not removed meanwhile, and the agent that its row names."""

    agent: str | None


# Against a deletion, which locks the same row and then asks again what holds.
LOCK_THREAD = Statement(
    """
SELECT agent FROM stateroom.threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND thread_id = :thread_id FOR NO KEY UPDATE
""",
    LockedThread,
)


class ThreadPolicyRow(Struct, frozen=True):
    """What one thread says, with its proof."""

    policy: bytes
    legal_hold: bool
    updated_at: datetime
    mac: bytes | None
    mac_format: int | None


THREAD_ONE = Statement(
    """
SELECT policy, legal_hold, updated_at, mac, mac_format FROM stateroom.thread_retention
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    ThreadPolicyRow,
)

PUT_THREAD = Statement("""
INSERT INTO stateroom.thread_retention
    (tenant_id, subject_id, thread_id, policy, legal_hold, updated_at, mac, mac_format)
VALUES (:tenant_id, :subject_id, :thread_id, :policy, :legal_hold, :updated_at, :mac, :mac_format)
ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
    policy = excluded.policy, legal_hold = excluded.legal_hold, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
""")

# --- facts -----------------------------------------------------------------------------------------------------------


class FactsRow(Struct, frozen=True):
    """The clear columns of a thread, of its archive and of what it says.

    Attributes:
        updated_at: When the thread was last written to, or came back from the archive.
        present: The moment that the row is of.
        size_bytes: The size of an archived thread's object.
        hot_bytes: The size of an archived thread's envelopes before it was archived.
        policy: What the thread says; None: it never said anything.
        segmented: Whether it has segments.
    """

    subject_id: str
    thread_id: str
    agent: str | None
    status: Status
    tier: Tier
    client_share: bool
    activity: int
    segmented: bool
    updated_at: datetime
    created_at: datetime
    archived_at: datetime | None
    present: datetime
    blob_id: UUID | None
    size_bytes: int | None
    hot_bytes: int | None
    policy: bytes | None
    legal_hold: bool | None
    policy_updated_at: datetime | None
    mac: bytes | None
    mac_format: int | None


# A build from before revision a23 imports a thread as if it had been written to when its file says.
_FACTS = """
SELECT t.subject_id, t.thread_id, t.agent, t.status, t.tier, t.client_share, t.activity,
    t.cold IS NOT NULL AS segmented,
    greatest(t.updated_at, t.began_at) AS updated_at,
    coalesce(t.began_at, t.created_at) AS created_at, coalesce(a.stored_at, a.created_at) AS archived_at,
    statement_timestamp() AS present,
    a.blob_id, a.size_bytes, a.hot_bytes,
    r.policy, r.legal_hold, r.updated_at AS policy_updated_at, r.mac, r.mac_format
FROM stateroom.threads t
LEFT JOIN stateroom.archives a
    ON a.tenant_id = t.tenant_id AND a.subject_id = t.subject_id AND a.thread_id = t.thread_id AND a.segment = 0
LEFT JOIN stateroom.thread_retention r
    ON r.tenant_id = t.tenant_id AND r.subject_id = t.subject_id AND r.thread_id = t.thread_id
"""

# A tenant's threads in the order of the primary key: nothing that changes has an index for this. The planner takes row
# security to leave few rows, and would read and sort all that are left for every page: it is told not to sort.
IN_ORDER = Statement("SET LOCAL enable_sort = off")
PAGE = Statement(
    f"""
{_FACTS}
WHERE t.tenant_id = :tenant_id AND (t.subject_id, t.thread_id) > (:after_subject, :after_thread)
ORDER BY t.subject_id, t.thread_id LIMIT :limit
""",
    FactsRow,
)

FACTS_OF = Statement(
    f"{_FACTS} WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id", FactsRow
)


class ThreadCounts(Struct, frozen=True):
    """How many checkpoints a thread has, whether any of its pending writes is due, and which checkpoints are old.

    ``old_checkpoints`` are behind its newest segment, and no head that stays; ``has_overdue``: one is older still.
    ``volume_at`` is when the newest segment was made of the volume of which that is longest ago.
    """

    checkpoints: int
    writes_due: bool
    old_checkpoints: int
    has_overdue: bool
    volume_at: datetime | None


# Since when a segment has what is in it, by the database's clock.
MOVED_AT = "coalesce(stored_at, created_at)"

# What takes more than the thread's own row; heads keep their pending writes. `:leaving`: which heads may leave with
# their namespaces, as a pattern of its name; null: none. The root's stays.
COUNTS_OF = Statement(
    f"""
SELECT
    (SELECT count(*) FROM stateroom.checkpoints
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id)
        AS checkpoints,
    EXISTS (
        SELECT FROM stateroom.pending_writes w
        WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = :thread_id
          AND coalesce(w.stored_at, w.created_at) < :written_before AND coalesce(w.stored_at,
              w.created_at) >= :written_since
          AND NOT EXISTS (SELECT FROM stateroom.heads h WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id
              AND h.thread_id = :thread_id AND h.namespace = w.namespace AND h.head_id = w.checkpoint_id)
    ) AS writes_due,
    old.count AS old_checkpoints, old.has_overdue,
    (SELECT min(v.moved_at) FROM (
        SELECT max({MOVED_AT}) AS moved_at FROM stateroom.archives
        WHERE :volumes_since::timestamptz IS NOT NULL AND tenant_id = :tenant_id AND subject_id = :subject_id
          AND thread_id = :thread_id AND segment > 0
        GROUP BY volume) v WHERE v.moved_at >= :volumes_since) AS volume_at
FROM (
    SELECT count(*) AS count, coalesce(bool_or(
        c.created_at < :overdue_before AND c.created_at >= :overdue_since), false) AS has_overdue
    FROM stateroom.checkpoints c
    WHERE :made_before::timestamptz IS NOT NULL
      AND c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
      AND c.created_at < :made_before
      AND c.checkpoint_id > coalesce((SELECT max(a.last_id) FROM stateroom.archives a
          WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.thread_id = :thread_id
            AND a.segment > 0), '')
      AND NOT EXISTS (SELECT FROM stateroom.heads h WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id
          AND h.thread_id = :thread_id AND h.namespace = c.namespace AND h.head_id = c.checkpoint_id
          AND (h.namespace = '' OR :leaving::text IS NULL OR h.namespace NOT LIKE :leaving))
) old
""",
    ThreadCounts,
)


class ThreadBytes(Struct, frozen=True):
    """The size of a thread's envelopes."""

    thread_id: str
    bytes: int


# The lengths of the envelopes of threads' rows. Those are stored outside of their rows and not compressed, so that the
# lengths are known without reading them.
HOT_BYTES = Statement(
    """
SELECT given.thread_id,
    coalesce((SELECT sum(octet_length(c.manifest)) FROM stateroom.checkpoints c
        WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = given.thread_id), 0)::bigint
    + coalesce((SELECT sum(octet_length(k.envelope)) FROM stateroom.chunks k
        WHERE k.tenant_id = :tenant_id AND k.subject_id = :subject_id AND k.thread_id = given.thread_id), 0)::bigint
    + coalesce((SELECT sum(octet_length(w.value)) FROM stateroom.pending_writes w
        WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = given.thread_id),
            0)::bigint AS bytes
FROM unnest(:thread_ids::text[]) AS given(thread_id)
""",
    ThreadBytes,
)

# The moment that facts read by this transaction are of, where there are none.
PRESENT = Statement("SELECT statement_timestamp()", datetime)

# --- rounds ----------------------------------------------------------------------------------------------------------

# Where anybody says something, or puts an item that will be over, there are rounds.
BEGIN_ROUNDS = Statement("INSERT INTO stateroom.retention_rounds (tenant_id) VALUES (:owner) ON CONFLICT DO NOTHING")

# When the next approval of a tenant is over, which is known no later than that by whoever asked last. A change that is
# none locks nothing.
APPROVALS_DUE = Statement("""
UPDATE stateroom.retention_rounds SET approvals_due_at = :due_at
WHERE tenant_id = :owner AND (approvals_due_at IS NULL OR approvals_due_at > :due_at)
""")
# Across tenants, by an operator's binding.
APPROVALS_OVER = Statement(
    """
SELECT tenant_id FROM stateroom.retention_rounds WHERE approvals_due_at <= statement_timestamp()
ORDER BY approvals_due_at LIMIT :limit
""",
    UUID,
)
# One process does it; if that dies, another one after so many seconds.
TAKE_APPROVALS = Statement(
    """
UPDATE stateroom.retention_rounds
SET approvals_due_at = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :tenant_id AND approvals_due_at <= statement_timestamp() RETURNING 1
""",
    int,
)
SET_APPROVALS_DUE = Statement(
    "UPDATE stateroom.retention_rounds SET approvals_due_at = :due_at WHERE tenant_id = :tenant_id"
)

# The next round comes so many seconds from now; a round that is under way goes on.
DELAY_ROUND = Statement("""
UPDATE stateroom.retention_rounds SET due_at = statement_timestamp() + make_interval(secs => :seconds)
WHERE tenant_id = :tenant_id
""")

# Across tenants, by an operator's binding.
# Of a suspended tenant nothing is removed: it has no round, and one that goes on ends at its next page.
_NOT_SUSPENDED = """NOT EXISTS (
      SELECT FROM stateroom.tenants t WHERE t.tenant_id = retention_rounds.tenant_id AND t.suspended_at IS NOT NULL)"""

TENANTS_DUE = Statement(
    f"""
SELECT tenant_id FROM stateroom.retention_rounds
WHERE due_at < statement_timestamp() AND (lease_until IS NULL OR lease_until < statement_timestamp())
  AND {_NOT_SUSPENDED}
ORDER BY due_at LIMIT :limit
""",
    UUID,
)


class RoundClaim(Struct, frozen=True):
    """A tenant whose round is leased.

    ``lease_until`` proves who holds it. ``started_at`` None: it begins now. Up to ``thinned_until`` all was thinned.
    """

    lease_until: datetime
    started_at: datetime | None
    progress: bytes | None
    thinned_until: datetime | None


CLAIM = Statement(
    f"""
UPDATE stateroom.retention_rounds SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :tenant_id AND (lease_until IS NULL OR lease_until < statement_timestamp())
  AND (:now OR due_at < statement_timestamp()) AND {_NOT_SUSPENDED}
RETURNING lease_until, started_at, progress, thinned_until
""",
    RoundClaim,
)

# The holder of the lease knows its exact end, so that a late owner changes nothing.
ADVANCE = Statement(
    f"""
UPDATE stateroom.retention_rounds SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds),
    started_at = :started_at, progress = :progress
WHERE tenant_id = :tenant_id AND lease_until = :lease_until AND {_NOT_SUSPENDED}
RETURNING lease_until
""",
    datetime,
)

PAUSE = Statement("""
UPDATE stateroom.retention_rounds SET lease_until = NULL,
    due_at = statement_timestamp() + make_interval(secs => :seconds)
WHERE tenant_id = :tenant_id AND lease_until = :lease_until
""")

FINISH = Statement("""
UPDATE stateroom.retention_rounds SET lease_until = NULL,
    due_at = statement_timestamp() + make_interval(secs => :seconds),
    started_at = NULL, progress = NULL, finished_at = statement_timestamp(), census = :census::text::jsonb,
    thinned_until = coalesce(:thinned_until, thinned_until)
WHERE tenant_id = :tenant_id AND lease_until = :lease_until
""")


class RoundRow(Struct, frozen=True):
    """A tenant's round, and what its last one left on record."""

    running: bool
    lease_until: datetime | None
    started_at: datetime | None
    progress: bytes | None
    due_at: datetime | None
    finished_at: datetime | None
    census: str


ROUND = Statement(
    """
SELECT coalesce(lease_until > statement_timestamp(), false) AS running, lease_until, started_at, progress,
    nullif(due_at, '-infinity') AS due_at, finished_at, census::text AS census
FROM stateroom.retention_rounds WHERE tenant_id = :tenant_id
""",
    RoundRow,
)


class RoundsCensus(Struct, frozen=True):
    """How the rounds of all tenants keep up.

    ``age_seconds`` and ``late_seconds`` are as in `storage.retention.rounds.RetentionCensus`.
    """

    tenants: int
    age_seconds: float
    overdue: int
    late_seconds: float


class RoundsCount(Struct, frozen=True):
    """A count over the last rounds of all tenants."""

    what: str
    count: int


# Across tenants, by an operator's binding: numbers only.
CENSUS = Statement(
    """
SELECT count(*) AS tenants,
    coalesce(extract(epoch FROM statement_timestamp() - min(finished_at)), 0)::float8 AS age_seconds,
    count(*) FILTER (WHERE due_at < statement_timestamp() - make_interval(secs => :late_seconds)) AS overdue,
    coalesce(extract(epoch FROM statement_timestamp() - min((census ->> 'late_since')::timestamptz)), 0)::float8
        AS late_seconds
FROM stateroom.retention_rounds
""",
    RoundsCensus,
)
CENSUS_COUNTS = Statement(
    """
SELECT c.key AS what, sum((c.value)::text::bigint)::bigint AS count
FROM stateroom.retention_rounds r, jsonb_each(r.census -> 'counts') c GROUP BY 1
""",
    RoundsCount,
)
