"""Statements on whole threads.

Every verb that removes rows locks the thread first and computes in a later statement, whose snapshot then sees all
that was committed before the lock was granted; what removes a part of a thread is in `storage.postgres.pruning`.
"""

from storage.postgres import holds

_COLUMNS = """
    t.thread_id, t.agent, t.status, t.tier, t.strict, t.client_share, t.created_at, t.updated_at, t.seal,
    (SELECT h.head_id FROM stateroom.heads h WHERE h.tenant_id = t.tenant_id AND h.subject_id = t.subject_id
     AND h.thread_id = t.thread_id AND h.namespace = '') AS head_id
"""

# True of every thread, and the condition of the two indexes that listings use and nobody else may: a single thread is
# looked up by its primary key. Where there are many subjects, the planner takes tenant and subject for as selective as
# the whole key, and would find one thread by reading all of its subject's in a smaller index.
LISTED = "t.created_at >= '-infinity'"

ONE = f"""
SELECT {_COLUMNS} FROM stateroom.threads t WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3
"""

LIST = f"""
SELECT {_COLUMNS} FROM stateroom.threads t
WHERE t.tenant_id = $1 AND t.subject_id = $2 AND {LISTED}
  AND ($3::text IS NULL OR t.status = $3)
  AND ($4::text IS NULL OR t.agent = $4)
  AND ($5::text IS NULL OR t.tier = $5)
  AND ($6::timestamptz IS NULL OR (t.created_at, t.thread_id) < ($6, $7::text))
ORDER BY t.created_at DESC, t.thread_id DESC
LIMIT $8
"""

PUT = f"""
INSERT INTO stateroom.threads AS t
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share, searchable)
VALUES ($1, $2, $3, $4, 'active', 'hot', coalesce($5, false), 1, $6, $6, $7, $9, '{{}}')
ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
    activity = t.activity + 1, updated_at = excluded.updated_at,
    strict = coalesce($5, t.strict),
    agent = CASE WHEN $8 AND NOT {holds.AGENT_HELD}
        THEN excluded.agent ELSE t.agent END
RETURNING created_at, seal, activity
"""

CREATE = """
INSERT INTO stateroom.threads
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share)
VALUES ($1, $2, $3, $4, $5, 'hot', $6, 1, $7, $7, $8, $9)
ON CONFLICT DO NOTHING RETURNING 1
"""

LOCK = """
SELECT agent, status, tier, strict, created_at, seal FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 FOR UPDATE
"""

READ = LOCK.replace("FOR UPDATE", "")

HEADS = """
SELECT namespace, head_id, sequence, seal FROM stateroom.heads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 ORDER BY namespace
"""

# All checkpoints of a namespace in order, a stretch at a time.
STRETCH = """
SELECT thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent, run_id, model,
    state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, piece_ids, named_ids,
    manifest, key_version
FROM stateroom.checkpoints
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4 AND checkpoint_id > $5
ORDER BY checkpoint_id LIMIT $6
"""

ADD_HEAD = """
INSERT INTO stateroom.heads (tenant_id, subject_id, thread_id, namespace, head_id, sequence, seal)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""

DELETE_ALL = tuple(
    f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
    for table in ("pending_writes", "checkpoints", "heads", "chunks", "archives", "thread_retention", "threads")
)

COPY_CHUNKS = """
INSERT INTO stateroom.chunks (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
SELECT tenant_id, subject_id, $4, piece_id, key_version, children, named_ids, envelope FROM stateroom.chunks
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""


def _add_checkpoint(column: str = "", value: str = "") -> str:
    return f"""
INSERT INTO stateroom.checkpoints
    (tenant_id, subject_id, key_version, outcome, manifest, thread_id, namespace, checkpoint_id, parent_id, step,
     status, source, agent, run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros,
     created_at, piece_ids, named_ids{column})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23{value})
"""


ADD_CHECKPOINT = _add_checkpoint()

# The same for a copy of thread $24: what the checkpoint is tagged by comes with it, by one look-up. Joining the two
# threads afterwards compared each checkpoint with each other one wherever the tables had no statistics yet.
COPY_CHECKPOINT = _add_checkpoint(
    column=", searchable",
    value=""",
    (SELECT s.searchable FROM stateroom.checkpoints s WHERE s.tenant_id = $1 AND s.subject_id = $2
     AND s.thread_id = $24 AND s.namespace = $7 AND s.checkpoint_id = $8)""",
)

ADD_WRITE = """
INSERT INTO stateroom.pending_writes
    (tenant_id, subject_id, key_version, value, member, thread_id, namespace, checkpoint_id, task_id, idx, task_path,
     channel, status, created_at, piece_ids, named_ids, state_schema, state_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
"""

ALL_WRITES = """
SELECT thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status, created_at, piece_ids, named_ids,
    state_schema, state_version, value, member, key_version
FROM stateroom.pending_writes WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
  AND (namespace, checkpoint_id, task_id, idx) > ($4, $5, $6, $7)
ORDER BY namespace, checkpoint_id, task_id, idx LIMIT $8
"""
