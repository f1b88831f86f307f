"""Statements on pieces, also on single ones, which clients upload before a save names them."""

from datetime import datetime

import msgspec

from storage.format.record import PieceRow
from storage.postgres.statement import Statement, columns

_ROW = columns(PieceRow)

OF_IDS = Statement(
    f"""
SELECT {_ROW} FROM stateroom.chunks
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
  AND piece_id = ANY(:piece_ids::bytea[])
""",
    PieceRow,
)

AFTER = Statement(
    f"""
SELECT {_ROW} FROM stateroom.chunks
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND piece_id > :after
ORDER BY piece_id LIMIT :limit
""",
    PieceRow,
)

ADD = Statement(f"""
INSERT INTO stateroom.chunks (tenant_id, subject_id, thread_id, {_ROW})
VALUES (:tenant_id, :subject_id, :thread_id, {", ".join(f":{name}" for name in PieceRow.__struct_fields__)})
""")


class OpenPieceRow(msgspec.Struct, frozen=True):
    """A thread that is locked, and whether a piece is in it."""

    tier: str
    created_at: datetime
    seal: bytes
    present: bool


# The thread's row is locked (and created if need be); whether the piece is there is read in its newest version.
OPEN = Statement(
    """
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES (:tenant_id, :subject_id, :thread_id, NULL, 'active', 'hot', false, 1, :now, :now, :own_seal,
        :client_share, '{}')
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET activity = t.activity + 1
    RETURNING tenant_id, subject_id, thread_id, tier, created_at, seal
)
SELECT t.tier, t.created_at, t.seal, c.piece_id IS NOT NULL AS present
FROM thread t
LEFT JOIN LATERAL (
    SELECT piece_id FROM stateroom.chunks
    WHERE tenant_id = :tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND piece_id = :piece_id
      AND key_version = :key_version
    FOR KEY SHARE) c ON true
""",
    OpenPieceRow,
)

PUT = Statement("""
INSERT INTO stateroom.chunks AS c
    (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
VALUES (:tenant_id, :subject_id, :thread_id, :piece_id, :key_version, NULL, :named_ids, :envelope)
ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
    SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
    WHERE c.key_version <> excluded.key_version
""")
