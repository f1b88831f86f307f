"""Statements that compare and verify: what is there, counted and walked."""

HAS_CHECKPOINTS = """
SELECT EXISTS (SELECT FROM stateroom.checkpoints
    WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4)
"""

COUNT_CHECKPOINTS = """
SELECT count(*) FROM stateroom.checkpoints
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
"""

# What the sums of a thread's pending writes are of. Not in stretches: row-level security keeps a comparison of text
# from the index, so that each stretch would read and sort all of them again.
MEMBERS = """
SELECT namespace, checkpoint_id, task_id, idx, member FROM stateroom.pending_writes
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

# One row if there is a thread or a head of the namespace.
STANDING = """
SELECT t.seal AS thread_seal, t.created_at AS thread_created_at, h.head_id, h.sequence, h.seal
FROM (SELECT seal, created_at FROM stateroom.threads
      WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3) t
FULL JOIN (SELECT head_id, sequence, seal FROM stateroom.heads
      WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4) h ON true
"""

WAS_REMOVED = """
SELECT EXISTS (SELECT FROM stateroom.removed_threads WHERE tenant_id = $1 AND subject_id = $2 AND removal = $3)
"""

REMEMBER_REMOVAL = """
INSERT INTO stateroom.removed_threads (tenant_id, subject_id, removal, removed_at) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
"""

# Threads of a subject by any trace: one whose row was taken away still has heads, checkpoints, writes or chunks.
TRACES = """
SELECT thread_id FROM (
    (SELECT thread_id FROM stateroom.threads
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION (SELECT DISTINCT thread_id FROM stateroom.heads
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION (SELECT DISTINCT thread_id FROM stateroom.checkpoints
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION (SELECT DISTINCT thread_id FROM stateroom.pending_writes
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION (SELECT DISTINCT thread_id FROM stateroom.chunks
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION (SELECT thread_id FROM stateroom.archives
     WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3 ORDER BY thread_id LIMIT $4)
) traces ORDER BY thread_id LIMIT $4
"""

THREAD = """
SELECT created_at, seal, client_share FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

TIER = """
SELECT tier FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

# Namespaces that have checkpoints, whether or not they have a head.
NAMESPACES = """
SELECT DISTINCT namespace FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
ORDER BY namespace
"""

CHUNKS_AFTER = """
SELECT piece_id, children, named_ids, envelope, key_version FROM stateroom.chunks
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND piece_id > $4 ORDER BY piece_id LIMIT $5
"""

NEXT_CHECKPOINT = """
SELECT min(checkpoint_id) FROM stateroom.checkpoints
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4 AND checkpoint_id > $5
"""

# Threads with their heads, by place; a thread without a head has one row. One thread, or all of the subject.
STANDINGS = """
SELECT t.thread_id, t.created_at, t.seal AS thread_seal, t.client_share, h.namespace, h.head_id, h.sequence, h.seal
FROM stateroom.threads t
LEFT JOIN stateroom.heads h
    ON h.tenant_id = t.tenant_id AND h.subject_id = t.subject_id AND h.thread_id = t.thread_id
WHERE t.tenant_id = $1 AND t.subject_id = $2 AND ($3::text IS NULL OR t.thread_id = $3)
  AND (t.thread_id, coalesce(h.namespace, '')) > ($4::text, $5::text)
ORDER BY t.thread_id, h.namespace
LIMIT $6
"""

# Subjects with threads, of which no key is stored, or destroyed ones only.
SUBJECTS_WITHOUT_KEYS = """
SELECT t.subject_id, EXISTS (
    SELECT FROM stateroom.subject_keys k WHERE k.tenant_id = $1 AND k.subject_id = t.subject_id) AS destroyed
FROM (SELECT DISTINCT subject_id FROM stateroom.threads WHERE tenant_id = $1) t
WHERE NOT EXISTS (SELECT FROM stateroom.subject_keys k
    WHERE k.tenant_id = $1 AND k.subject_id = t.subject_id AND k.state <> 'destroyed')
ORDER BY t.subject_id
"""

SUBJECTS = """
SELECT DISTINCT subject_id FROM stateroom.subject_keys
WHERE tenant_id = $1 AND subject_id > $2 AND state <> 'destroyed' ORDER BY subject_id LIMIT $3
"""
