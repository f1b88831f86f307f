"""Statements on what counts a thread's approvals, effects and claims, and on the thread as these see it.

The thread is locked by a statement of its own; what the next ones see, and the time they tell, is not older than the
lock (`storage.thread_ledgers.locked`).
"""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class LedgerThreadRow(msgspec.Struct, frozen=True):
    """A thread, as far as its ledger is about it."""

    agent: str | None
    status: str
    tier: str
    created_at: datetime
    seal: bytes
    activity: int
    client_share: bool
    fence: int
    claimed_until: datetime | None
    claim_seconds: int
    claims_required: bool
    open_approvals: int


_THREAD = """
SELECT agent, status, tier, created_at, seal, activity, client_share, fence, claimed_until, claim_seconds,
    claims_required, open_approvals
FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
"""
LOCK_THREAD = Statement(f"{_THREAD} FOR UPDATE", LedgerThreadRow)
THREAD = Statement(_THREAD, LedgerThreadRow)


class LedgerSealRow(msgspec.Struct, frozen=True):
    """A thread's ledger seal, None where it has no ledger, and the time."""

    now: datetime
    sequence: int | None
    seal: bytes | None


READ = Statement(
    """
SELECT clock_timestamp() AS now, l.sequence, l.seal FROM (VALUES (1)) one
LEFT JOIN stateroom.ledger_seals l ON l.tenant_id = :tenant_id AND l.subject_id = :subject_id
    AND l.thread_id = :thread_id
""",
    LedgerSealRow,
)
ADD = Statement("""
INSERT INTO stateroom.ledger_seals (tenant_id, subject_id, thread_id, sequence, seal)
VALUES (:tenant_id, :subject_id, :thread_id, :sequence, :seal)
""")
SET = Statement("""
UPDATE stateroom.ledger_seals SET sequence = :sequence, seal = :seal
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")


class LedgerOfThreadRow(msgspec.Struct, frozen=True):
    """A ledger's seal with that of its thread."""

    thread_id: str
    created_at: datetime
    thread_seal: bytes
    sequence: int
    seal: bytes


AFTER = Statement(
    """
SELECT t.thread_id, t.created_at, t.seal AS thread_seal, l.sequence, l.seal
FROM stateroom.ledger_seals l JOIN stateroom.threads t ON t.tenant_id = :tenant_id AND t.subject_id = :subject_id
    AND t.thread_id = l.thread_id
WHERE l.tenant_id = :tenant_id AND l.subject_id = :subject_id AND l.thread_id > :after
    AND (:thread_id::text IS NULL OR l.thread_id = :thread_id)
ORDER BY l.thread_id LIMIT :limit
""",
    LedgerOfThreadRow,
)
