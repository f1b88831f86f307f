"""Statements on single pieces, which clients upload before a save names them."""

# The thread's row is locked (and created if need be); whether the piece is there is read in its newest version.
OPEN = """
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES ($1, $2, $3, NULL, 'active', 'hot', false, 1, $4, $4, $5, $6, '{}')
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET activity = t.activity + 1
    RETURNING tenant_id, subject_id, thread_id, tier, created_at, seal
)
SELECT t.tier, t.created_at, t.seal, c.piece_id IS NOT NULL AS present
FROM thread t
LEFT JOIN LATERAL (
    SELECT piece_id FROM stateroom.chunks
    WHERE tenant_id = t.tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND piece_id = $7
      AND key_version = $8
    FOR KEY SHARE) c ON true
"""

PUT = """
INSERT INTO stateroom.chunks AS c
    (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
VALUES ($1, $2, $3, $4, $5, NULL, $6, $7)
ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
    SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
    WHERE c.key_version <> excluded.key_version
"""

EXISTS = """
SELECT EXISTS (SELECT FROM stateroom.chunks
    WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND piece_id = $4)
"""
