"""Statements on adoptions, and the one predicate by which others look unversioned state up in them."""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class AdoptionRow(msgspec.Struct, frozen=True):
    """An adoption as it is stored; an empty ``agent`` stands for checkpoints that name none."""

    agent: str
    namespace: str
    number: int
    state_schema: str
    state_version: int
    adopted_at: datetime
    mac: bytes | None
    mac_format: int | None


class UnversionedThreads(msgspec.Struct, frozen=True):
    """The number of an agent's threads whose root is neither versioned nor adopted."""

    agent: str | None
    threads: int


# A pattern is a namespace, or the beginning of some and a star. The exact one counts before the longest, as in
# `storage.schemas.adoptions`; of one pattern the newest adoption.
MATCHES = (
    "(a.namespace = c.namespace OR (right(a.namespace, 1) = '*' AND starts_with(c.namespace, left(a.namespace, -1))))"
)
_ORDER = "(a.namespace = c.namespace) DESC, length(a.namespace) DESC, a.number DESC"

# Joins to each checkpoint ``c`` of the tenant what it was adopted as: nothing, where it has a schema of its own or came
# later. It only finds work: code that opens state compares MACs and decides again.
ADOPTED = f"""
LEFT JOIN LATERAL (
    SELECT a.state_schema, a.state_version, a.adopted_at FROM stateroom.state_adoptions a
    WHERE a.tenant_id = :tenant_id AND c.state_schema IS NULL AND a.agent = coalesce(c.agent, '') AND {MATCHES}
    ORDER BY {_ORDER} LIMIT 1
) adopted ON c.created_at < adopted.adopted_at
"""
SCHEMA = "coalesce(c.state_schema, adopted.state_schema)"
VERSION = "coalesce(c.state_version, adopted.state_version)"

LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

_COLUMNS = "agent, namespace, number, state_schema, state_version, adopted_at, mac, mac_format"

# Those that count: the newest of each pattern.
NEWEST = Statement(
    f"""
SELECT DISTINCT ON (agent, namespace) {_COLUMNS} FROM stateroom.state_adoptions WHERE tenant_id = :tenant_id
ORDER BY agent, namespace, number DESC
""",
    AdoptionRow,
)

EVERY = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.state_adoptions WHERE tenant_id = :tenant_id
  AND (agent, namespace, number) > (:after_agent, :after_namespace, :after_number)
ORDER BY agent, namespace, number LIMIT :page_rows
""",
    AdoptionRow,
)

ADD = Statement("""
INSERT INTO stateroom.state_adoptions
    (tenant_id, agent, namespace, number, state_schema, state_version, adopted_at, mac, mac_format)
VALUES (:tenant_id, :agent, :namespace, :number, :state_schema, :state_version, :adopted_at, :mac, :mac_format)
""")

# Whether anything was saved at a version on top of state that an adoption of an agent and a pattern, since some moment,
# holds for. Of archived threads only the stub tells, and not where: one with a schema counts.
BUILT_ON = Statement(
    f"""
SELECT EXISTS (
    SELECT FROM stateroom.checkpoints later
    JOIN stateroom.checkpoints c ON c.tenant_id = :tenant_id AND c.subject_id = later.subject_id
        AND c.thread_id = later.thread_id AND c.namespace = later.namespace AND c.checkpoint_id = later.parent_id
    JOIN (VALUES (:pattern::text)) a(namespace) ON {MATCHES}
    WHERE later.tenant_id = :tenant_id AND later.created_at >= :since AND later.state_schema IS NOT NULL
      AND c.state_schema IS NULL AND c.created_at < :since AND coalesce(c.agent, '') = :agent
) OR EXISTS (
    SELECT FROM stateroom.archives s WHERE s.tenant_id = :tenant_id AND s.created_at >= :since
      AND cardinality(s.state_schemas) > 0
      AND (:agent = '' OR s.agents @> ARRAY[:agent])
)
""",
    bool,
)

# Threads whose root is unversioned and not adopted, by agent, over all subjects by the binding of a listing. As
# `storage.statements.threads.migrating.HEADS_BY_VERSION`: for a person who asks.
UNVERSIONED = Statement(
    f"""
SELECT c.agent, count(*) AS threads FROM (
    SELECT DISTINCT ON (subject_id, thread_id) subject_id, thread_id, namespace, agent, state_schema, created_at
    FROM stateroom.checkpoints
    WHERE tenant_id = :tenant_id AND namespace = '' ORDER BY subject_id, thread_id, namespace, checkpoint_id DESC
) c {ADOPTED}
WHERE c.state_schema IS NULL AND adopted.state_schema IS NULL GROUP BY c.agent ORDER BY 2 DESC, 1 LIMIT :page_rows
""",
    UnversionedThreads,
)
