"""Statements that compare and verify: what is there, counted and walked."""

from datetime import datetime

import msgspec

from storage.format.record import MemberRow
from storage.postgres.statement import Statement

COUNT_CHECKPOINTS = Statement(
    """
SELECT count(*) FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
""",
    int,
)


# What the sums of a thread's pending writes are of. Not in stretches: row-level security keeps a comparison of text
# from the index, so that each stretch would read and sort all of them again.
MEMBERS = Statement(
    """
SELECT namespace, checkpoint_id, task_id, idx, member FROM stateroom.pending_writes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    MemberRow,
)


class SealsRow(msgspec.Struct, frozen=True):
    """The seals of a thread and of one of its namespaces; each is None where there is none."""

    thread_seal: bytes | None
    thread_created_at: datetime | None
    cold: bytes | None
    head_id: str | None
    sequence: int | None
    seal: bytes | None


# One row if there is a thread or a head of the namespace.
SEALS = Statement(
    """
SELECT t.seal AS thread_seal, t.created_at AS thread_created_at, t.cold, h.head_id, h.sequence, h.seal
FROM (SELECT seal, created_at, cold FROM stateroom.threads
      WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id) t
FULL JOIN (SELECT head_id, sequence, seal FROM stateroom.heads
      WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
        AND namespace = :namespace) h ON true
""",
    SealsRow,
)

WAS_REMOVED = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.removed_threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND removal = :removal)
""",
    bool,
)

REMEMBER_REMOVAL = Statement("""
INSERT INTO stateroom.removed_threads (tenant_id, subject_id, removal, removed_at) VALUES (:tenant_id, :subject_id,
  :removal, :removed_at)
ON CONFLICT DO NOTHING
""")

# Threads of a subject by any trace: one whose row was taken away still has heads, checkpoints, writes or chunks.
TRACES = Statement(
    """
SELECT thread_id FROM (
    (SELECT thread_id FROM stateroom.threads
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.heads
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.checkpoints
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.pending_writes
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.chunks
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT thread_id FROM stateroom.ledger_seals
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT thread_id FROM stateroom.claims
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.effects
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION (SELECT DISTINCT thread_id FROM stateroom.archives
     WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit)
) traces ORDER BY thread_id LIMIT :limit
""",
    str,
)


class ListedThreadRow(msgspec.Struct, frozen=True):
    """A thread's seal, and the clear columns that it vouches for."""

    created_at: datetime
    seal: bytes
    client_share: bool
    parent_thread_id: str | None
    cold: bytes | None


THREAD = Statement(
    """
SELECT created_at, seal, client_share, parent_thread_id, cold FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    ListedThreadRow,
)

TIER = Statement(
    """
SELECT tier FROM stateroom.threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    str,
)

# Namespaces that have checkpoints, whether or not they have a head.
NAMESPACES = Statement(
    """
SELECT DISTINCT namespace FROM stateroom.checkpoints WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND thread_id = :thread_id
ORDER BY namespace
""",
    str,
)

NEXT_CHECKPOINT = Statement(
    """
SELECT min(checkpoint_id) FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND checkpoint_id > :after
""",
    str,
)


class HeadOfThreadRow(msgspec.Struct, frozen=True):
    """A thread with one of its heads, or with none."""

    thread_id: str
    created_at: datetime
    thread_seal: bytes
    client_share: bool
    namespace: str | None
    head_id: str | None
    sequence: int | None
    seal: bytes | None


# Threads with their heads, by place; a thread without a head has one row. One thread, or all of the subject.
HEADS_AFTER = Statement(
    """
SELECT t.thread_id, t.created_at, t.seal AS thread_seal, t.client_share, h.namespace, h.head_id, h.sequence, h.seal
FROM stateroom.threads t
LEFT JOIN stateroom.heads h
    ON h.tenant_id = t.tenant_id AND h.subject_id = t.subject_id AND h.thread_id = t.thread_id
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND (:thread_id::text IS NULL OR t.thread_id = :thread_id)
  AND (t.thread_id, coalesce(h.namespace, '')) > (:after_thread::text, :after_namespace::text)
ORDER BY t.thread_id, h.namespace
LIMIT :limit
""",
    HeadOfThreadRow,
)


class ThreadWithColdRow(msgspec.Struct, frozen=True):
    """A thread with segments."""

    thread_id: str
    created_at: datetime
    thread_seal: bytes
    client_share: bool
    cold: bytes


# Threads with segments, by id. One thread, or all of the subject.
SEGMENTED_AFTER = Statement(
    """
SELECT thread_id, created_at, seal AS thread_seal, client_share, cold FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND (:thread_id::text IS NULL OR thread_id = :thread_id)
  AND thread_id > :after AND cold IS NOT NULL
ORDER BY thread_id LIMIT :limit
""",
    ThreadWithColdRow,
)


class KeylessRow(msgspec.Struct, frozen=True):
    """A subject without keys, and whether destroyed ones are on record."""

    subject_id: str
    destroyed: bool


# Subjects with threads or items, of which no key is stored, or destroyed ones only.
SUBJECTS_WITHOUT_KEYS = Statement(
    """
SELECT t.subject_id, EXISTS (
    SELECT FROM stateroom.subject_keys k WHERE k.tenant_id = :tenant_id AND k.subject_id = t.subject_id) AS destroyed
FROM (SELECT subject_id FROM stateroom.threads WHERE tenant_id = :tenant_id
    UNION SELECT subject_id FROM stateroom.items WHERE tenant_id = :tenant_id) t
WHERE NOT EXISTS (SELECT FROM stateroom.subject_keys k
    WHERE k.tenant_id = :tenant_id AND k.subject_id = t.subject_id AND k.state <> 'destroyed')
ORDER BY t.subject_id
""",
    KeylessRow,
)

SUBJECTS = Statement(
    """
SELECT DISTINCT subject_id FROM stateroom.subject_keys
WHERE tenant_id = :tenant_id AND subject_id > :after AND state <> 'destroyed' ORDER BY subject_id LIMIT :limit
""",
    str,
)
