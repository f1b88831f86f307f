"""Statements on adoptions, and the one predicate by which others look unversioned state up in them."""

# A pattern is a namespace, or the beginning of some and a star. The exact one counts before the longest, as in
# `storage.schemas.adoptions`; of one pattern the newest adoption.
MATCHES = (
    "(a.namespace = c.namespace OR (right(a.namespace, 1) = '*' AND starts_with(c.namespace, left(a.namespace, -1))))"
)
_ORDER = "(a.namespace = c.namespace) DESC, length(a.namespace) DESC, a.number DESC"

# Joins to each checkpoint ``c`` of tenant $1 what it was adopted as: nothing, where it has a schema of its own or came
# later. It only finds work: whoever opens state compares MACs and decides again.
ADOPTED = f"""
LEFT JOIN LATERAL (
    SELECT a.state_schema, a.state_version, a.adopted_at FROM stateroom.state_adoptions a
    WHERE a.tenant_id = $1 AND c.state_schema IS NULL AND a.agent = coalesce(c.agent, '') AND {MATCHES}
    ORDER BY {_ORDER} LIMIT 1
) adopted ON c.created_at < adopted.adopted_at
"""
SCHEMA = "coalesce(c.state_schema, adopted.state_schema)"
VERSION = "coalesce(c.state_version, adopted.state_version)"

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
NOW = "SELECT clock_timestamp()"

_COLUMNS = "agent, namespace, number, state_schema, state_version, adopted_at, mac, mac_format"

# Those that count: the newest of each pattern.
NEWEST = f"""
SELECT DISTINCT ON (agent, namespace) {_COLUMNS} FROM stateroom.state_adoptions WHERE tenant_id = $1
ORDER BY agent, namespace, number DESC
"""

EVERY = f"""
SELECT {_COLUMNS} FROM stateroom.state_adoptions WHERE tenant_id = $1 AND (agent, namespace, number) > ($2, $3, $4)
ORDER BY agent, namespace, number LIMIT $5
"""

ADD = """
INSERT INTO stateroom.state_adoptions
    (tenant_id, agent, namespace, number, state_schema, state_version, adopted_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""

# Whether anything was saved at a version on top of state that an adoption ($2 its agent, $3 its pattern, $4 since when)
# holds for. Of archived threads only the stub tells, and not where: one with a schema counts.
BUILT_ON = f"""
SELECT EXISTS (
    SELECT FROM stateroom.checkpoints later
    JOIN stateroom.checkpoints c ON c.tenant_id = $1 AND c.subject_id = later.subject_id
        AND c.thread_id = later.thread_id AND c.namespace = later.namespace AND c.checkpoint_id = later.parent_id
    JOIN (VALUES ($3::text)) a(namespace) ON {MATCHES}
    WHERE later.tenant_id = $1 AND later.created_at >= $4 AND later.state_schema IS NOT NULL
      AND c.state_schema IS NULL AND c.created_at < $4 AND coalesce(c.agent, '') = $2
) OR EXISTS (
    SELECT FROM stateroom.archives s WHERE s.tenant_id = $1 AND s.created_at >= $4 AND cardinality(s.state_schemas) > 0
      AND ($2 = '' OR s.agents @> ARRAY[$2])
)
"""

# Threads whose root is unversioned and not adopted, by agent, over all subjects by the binding of a listing. As
# `storage.postgres.migrating.HEADS_BY_VERSION`: for a person who asks.
UNVERSIONED = f"""
SELECT c.agent, count(*) AS threads FROM (
    SELECT DISTINCT ON (subject_id, thread_id) subject_id, thread_id, namespace, agent, state_schema, created_at
    FROM stateroom.checkpoints
    WHERE tenant_id = $1 AND namespace = '' ORDER BY subject_id, thread_id, namespace, checkpoint_id DESC
) c {ADOPTED}
WHERE c.state_schema IS NULL AND adopted.state_schema IS NULL GROUP BY c.agent ORDER BY 2 DESC, 1 LIMIT $2
"""
