"""Statements that find checkpoints by their tags (`storage.schemas.tags`).

A tag says where to look, never what is there. Whether a checkpoint is tagged by a key is in its row (``searchable``),
and whether all checkpoints of a thread are, in the thread's; null is: by none. So a row is left out unread only where
it is tagged by a key and has not the tag that is looked for, and a thread's rows only where that holds for all of them.
"""

from storage.postgres.checkpoints import ROW_COLUMNS, history_wanted
from storage.postgres.threads import LISTED

# Threads that one statement looks through beside the tags; with more, all rows are looked through in their order.
OPEN_THREADS_MAX = 100
# Tags are counted up to here, to begin with the rarest.
COUNTED_MAX = 1_000

_ROW = ", ".join(ROW_COLUMNS)
_WANTED = history_wanted()
_ORDER = "checkpoint_id DESC, thread_id DESC, namespace DESC"

# For each key that is looked for ($3, with its tag in $4): how many tags there are, and which threads hold checkpoints
# that are not tagged by it, counted a little further than anybody cares. Distinct values of ``searchable`` are few, and
# read by one look-up in its index each.
STANDING = f"""
WITH RECURSIVE cover AS (
    (SELECT t.searchable FROM stateroom.threads t
     WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.searchable IS NOT NULL AND {LISTED}
     ORDER BY t.searchable LIMIT 1)
    UNION ALL
    SELECT (SELECT t.searchable FROM stateroom.threads t
        WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.searchable > cover.searchable AND {LISTED}
        ORDER BY t.searchable LIMIT 1)
    FROM cover WHERE cover.searchable IS NOT NULL
)
SELECT f.name, f.tag,
    ARRAY(
        SELECT * FROM (
            (SELECT t.thread_id FROM stateroom.threads t
             WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.searchable IS NULL AND t.tier = 'hot' AND {LISTED})
            UNION ALL
            SELECT t.thread_id FROM cover JOIN stateroom.threads t
                ON t.tenant_id = $1 AND t.subject_id = $2 AND t.searchable = cover.searchable AND t.tier = 'hot'
                AND {LISTED}
            WHERE cover.searchable <> ARRAY[]::text[] AND NOT cover.searchable @> ARRAY[f.name]
        ) untagged LIMIT {OPEN_THREADS_MAX + 1}
    ) AS open,
    (SELECT count(*) FROM (
        SELECT FROM stateroom.checkpoint_tags g WHERE g.tenant_id = $1 AND g.subject_id = $2 AND g.tag = f.tag
        LIMIT {COUNTED_MAX}) counted) AS tags
FROM unnest($3::text[], $4::bytea[]) AS f(name, tag)
"""

# The same of one thread ($5); no row, if it is not there or not in the hot tier.
STANDING_OF_THREAD = f"""
SELECT f.name, f.tag,
    CASE WHEN t.searchable @> ARRAY[f.name] THEN ARRAY[]::text[] ELSE ARRAY[t.thread_id] END AS open,
    (SELECT count(*) FROM (
        SELECT FROM stateroom.checkpoint_tags g
        WHERE g.tenant_id = $1 AND g.subject_id = $2 AND g.tag = f.tag AND g.thread_id = $5
        LIMIT {COUNTED_MAX}) counted) AS tags
FROM stateroom.threads t, unnest($3::text[], $4::bytea[]) AS f(name, tag)
WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $5 AND t.tier = 'hot'
"""

# No key that the row is tagged by ($17) lacks the tag that is looked for ($18).
_POSSIBLE = """
(c.searchable IS NULL OR NOT EXISTS (
    SELECT FROM unnest($17::text[], $18::bytea[]) AS f(name, tag)
    WHERE c.searchable @> ARRAY[f.name] AND NOT EXISTS (
        SELECT FROM stateroom.checkpoint_tags o
        WHERE o.tenant_id = $1 AND o.subject_id = $2 AND o.thread_id = c.thread_id AND o.namespace = c.namespace
          AND o.checkpoint_id = c.checkpoint_id AND o.tag = f.tag)))
"""

# As `storage.postgres.checkpoints.HISTORY`, without rows that a tag excludes.
HISTORY_UNLESS_EXCLUDED = f"""
SELECT {_ROW} FROM stateroom.checkpoints c
WHERE {_WANTED} AND {_POSSIBLE}
ORDER BY {_ORDER} LIMIT $16
"""

# The same, found by the first tag, and in threads ($19) of which not every checkpoint is tagged by its key. LATERAL and
# its LIMIT make every checkpoint one look-up by primary key: as a plain join, a subject without statistics was read
# whole.
HISTORY_BY_TAG = f"""
SELECT {_ROW} FROM (
    (SELECT c.* FROM stateroom.checkpoint_tags g
     CROSS JOIN LATERAL (
        SELECT * FROM stateroom.checkpoints p
        WHERE p.tenant_id = $1 AND p.subject_id = $2 AND p.thread_id = g.thread_id AND p.namespace = g.namespace
          AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1) c
     WHERE g.tenant_id = $1 AND g.subject_id = $2 AND g.tag = ($18::bytea[])[1]
       AND ($3::text IS NULL OR g.thread_id = $3)
       AND ($5::text IS NULL OR g.checkpoint_id < $5)
       AND ($13::text IS NULL OR g.checkpoint_id <= $13)
       AND c.searchable @> ($17::text[])[1:1] AND {_WANTED} AND {_POSSIBLE}
     ORDER BY g.checkpoint_id DESC, g.thread_id DESC, g.namespace DESC LIMIT $16)
    UNION ALL
    (SELECT c.* FROM stateroom.checkpoints c
     WHERE c.thread_id = ANY($19::text[]) AND (c.searchable IS NULL OR NOT c.searchable @> ($17::text[])[1:1])
       AND {_WANTED} AND {_POSSIBLE}
     ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.namespace DESC LIMIT $16)
) c ORDER BY {_ORDER} LIMIT $16
"""

# The tags of a thread for its copy ($4), whose checkpoints are there already: a tag is the subject's, not the thread's.
COPY = """
WITH thread AS (
    UPDATE stateroom.threads t SET searchable = s.searchable FROM stateroom.threads s
    WHERE s.tenant_id = $1 AND s.subject_id = $2 AND s.thread_id = $3 AND s.searchable IS NOT NULL
      AND t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $4
)
INSERT INTO stateroom.checkpoint_tags (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag)
SELECT tenant_id, subject_id, $4, namespace, checkpoint_id, tag FROM stateroom.checkpoint_tags
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""
