"""Statements that find checkpoints by their tags (`storage.schemas.tags`).

A tag says where to look, never what is there. Whether a checkpoint is tagged by a key is in its row (``searchable``),
and whether all checkpoints of a thread are, in the thread's; null is: by none. So a row is left out unread only where
it is tagged by a key and has not the tag that is looked for, and a thread's rows only where that holds for all of them.
"""

import msgspec

from storage.format.record import CheckpointRow
from storage.postgres.statement import Statement, columns
from storage.statements.threads.checkpoints import HISTORY_WANTED
from storage.statements.threads.threads import LISTED

# Threads that one statement looks through beside the tags; with more, all rows are looked through in their order.
OPEN_THREADS_MAX = 100
# Tags are counted up to here, to begin with the rarest.
COUNTED_MAX = 1_000

_ROW = columns(CheckpointRow)
_ORDER = "checkpoint_id DESC, thread_id DESC, namespace DESC"


class TagUse(msgspec.Struct, frozen=True):
    """How a key that is looked for is used with its tag.

    ``untagged_threads`` hold checkpoints which are not tagged by the key, up to some more than matter; ``count`` goes
    up to `COUNTED_MAX`.
    """

    name: str
    tag: bytes
    untagged_threads: list[str]
    count: int


# For each key that is looked for (:names, with its tag in :tags): how many tags there are, and which threads hold
# checkpoints that are not tagged by it, counted a little further than anybody cares. Distinct values of ``searchable``
# are few, and read by one look-up in its index each.
USES = Statement(
    f"""
WITH RECURSIVE cover AS (
    (SELECT t.searchable FROM stateroom.threads t
     WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.searchable IS NOT NULL AND {LISTED}
     ORDER BY t.searchable LIMIT 1)
    UNION ALL
    SELECT (SELECT t.searchable FROM stateroom.threads t
        WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.searchable > cover.searchable AND {LISTED}
        ORDER BY t.searchable LIMIT 1)
    FROM cover WHERE cover.searchable IS NOT NULL
)
SELECT f.name, f.tag,
    ARRAY(
        SELECT * FROM (
            (SELECT t.thread_id FROM stateroom.threads t
             WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.searchable IS NULL
               AND t.tier = 'hot' AND {LISTED})
            UNION ALL
            SELECT t.thread_id FROM cover JOIN stateroom.threads t
                ON t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.searchable = cover.searchable
                  AND t.tier = 'hot'
                AND {LISTED}
            WHERE cover.searchable <> ARRAY[]::text[] AND NOT cover.searchable @> ARRAY[f.name]
        ) untagged LIMIT {OPEN_THREADS_MAX + 1}
    ) AS untagged_threads,
    (SELECT count(*) FROM (
        SELECT FROM stateroom.checkpoint_tags g WHERE g.tenant_id = :tenant_id AND g.subject_id = :subject_id
          AND g.tag = f.tag
        LIMIT {COUNTED_MAX}) counted) AS count
FROM unnest(:names::text[], :tags::bytea[]) AS f(name, tag)
""",
    TagUse,
)

# The same of one thread; no row, if it is not there or not in the hot tier.
USES_IN_THREAD = Statement(
    f"""
SELECT f.name, f.tag,
    CASE WHEN t.searchable @> ARRAY[f.name] THEN ARRAY[]::text[] ELSE ARRAY[t.thread_id] END AS untagged_threads,
    (SELECT count(*) FROM (
        SELECT FROM stateroom.checkpoint_tags g
        WHERE g.tenant_id = :tenant_id AND g.subject_id = :subject_id AND g.tag = f.tag AND g.thread_id = :thread_id
        LIMIT {COUNTED_MAX}) counted) AS count
FROM stateroom.threads t, unnest(:names::text[], :tags::bytea[]) AS f(name, tag)
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id AND t.tier = 'hot'
""",
    TagUse,
)

# No key that the row is tagged by lacks the tag that is looked for (:names, :tags).
_POSSIBLE = """
(c.searchable IS NULL OR NOT EXISTS (
    SELECT FROM unnest(:names::text[], :tags::bytea[]) AS f(name, tag)
    WHERE c.searchable @> ARRAY[f.name] AND NOT EXISTS (
        SELECT FROM stateroom.checkpoint_tags o
        WHERE o.tenant_id = :tenant_id AND o.subject_id = :subject_id AND o.thread_id = c.thread_id
          AND o.namespace = c.namespace
          AND o.checkpoint_id = c.checkpoint_id AND o.tag = f.tag)))
"""

# As `storage.statements.threads.checkpoints.HISTORY`, without rows that a tag excludes.
HISTORY_UNLESS_EXCLUDED = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints c
WHERE {HISTORY_WANTED} AND {_POSSIBLE}
ORDER BY {_ORDER} LIMIT :limit
""",
    CheckpointRow,
)

# The same, found by the first tag, and in threads of which not every checkpoint is tagged by its key. LATERAL and
# its LIMIT make every checkpoint one look-up by primary key: as a plain join, a subject without statistics was read
# whole.
HISTORY_BY_TAG = Statement(
    f"""
SELECT {_ROW} FROM (
    (SELECT c.* FROM stateroom.checkpoint_tags g
     CROSS JOIN LATERAL (
        SELECT * FROM stateroom.checkpoints p
        WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.thread_id = g.thread_id
          AND p.namespace = g.namespace
          AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1) c
     WHERE g.tenant_id = :tenant_id AND g.subject_id = :subject_id AND g.tag = (:tags::bytea[])[1]
       AND (:thread_id::text IS NULL OR g.thread_id = :thread_id)
       AND (:before::text IS NULL OR g.checkpoint_id < :before)
       AND (:after_id::text IS NULL OR g.checkpoint_id <= :after_id)
       AND c.searchable @> (:names::text[])[1:1] AND {HISTORY_WANTED} AND {_POSSIBLE}
     ORDER BY g.checkpoint_id DESC, g.thread_id DESC, g.namespace DESC LIMIT :limit)
    UNION ALL
    (SELECT c.* FROM stateroom.checkpoints c
     WHERE c.thread_id = ANY(:untagged_threads::text[])
       AND (c.searchable IS NULL OR NOT c.searchable @> (:names::text[])[1:1])
       AND {HISTORY_WANTED} AND {_POSSIBLE}
     ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.namespace DESC LIMIT :limit)
) c ORDER BY {_ORDER} LIMIT :limit
""",
    CheckpointRow,
)

# The tags of a thread for its copy, whose checkpoints are there already: a tag is the subject's, not the thread's.
COPY_SEARCHABLE = Statement("""
UPDATE stateroom.threads t SET searchable = s.searchable FROM stateroom.threads s
WHERE s.tenant_id = :tenant_id AND s.subject_id = :subject_id AND s.thread_id = :source AND s.searchable IS NOT NULL
  AND t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :target
""")
COPY = Statement("""
INSERT INTO stateroom.checkpoint_tags (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag)
SELECT tenant_id, subject_id, :target, namespace, checkpoint_id, tag FROM stateroom.checkpoint_tags
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :source
""")
