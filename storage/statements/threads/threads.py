"""Statements on whole threads.

Every verb that removes rows locks the thread first and computes in a later statement, whose snapshot then sees all
that was committed before the lock was granted; `storage.statements.threads.pruning` removes parts of a thread.
"""

from datetime import datetime

import msgspec

from storage.format.record import CheckpointRow, WriteRow
from storage.postgres.statement import Statement
from storage.statements.threads import holds


class ListedThread(msgspec.Struct, frozen=True):
    """A thread by its clear columns, and the seal that vouches for some of them."""

    thread_id: str
    agent: str | None
    status: str
    tier: str
    strict: bool
    client_share: bool
    created_at: datetime
    updated_at: datetime
    head_id: str | None
    segmented: bool
    parent_thread_id: str | None
    parent_absent: bool
    seal: bytes


LISTED_COLUMNS = """
    t.thread_id, t.agent, t.status, t.tier, t.strict, t.client_share, t.created_at, t.updated_at,
    (SELECT h.head_id FROM stateroom.heads h WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id
     AND h.thread_id = t.thread_id AND h.namespace = '') AS head_id, t.cold IS NOT NULL AS segmented,
    t.parent_thread_id,
    t.parent_thread_id IS NOT NULL AND
        (SELECT true FROM stateroom.threads p WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id
         AND p.thread_id = t.parent_thread_id) IS NULL AS parent_absent, t.seal
"""

# True of every thread, and the condition of the two indexes that only listings may use: a single thread is looked up by
# its primary key. Where there are many subjects, the planner takes tenant and subject for as selective as the whole
# key, and would find one thread by reading all of its subject's in a smaller index.
LISTED = "t.created_at >= '-infinity'"

ONE = Statement(
    f"""
SELECT {LISTED_COLUMNS} FROM stateroom.threads t
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
""",
    ListedThread,
)

LIST = Statement(
    f"""
SELECT {LISTED_COLUMNS} FROM stateroom.threads t
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND {LISTED}
  AND (:status::text IS NULL OR t.status = :status)
  AND (:agent::text IS NULL OR t.agent = :agent)
  AND (:tier::text IS NULL OR t.tier = :tier)
  AND (:after_at::timestamptz IS NULL OR (t.created_at, t.thread_id) < (:after_at, :after_thread::text))
ORDER BY t.created_at DESC, t.thread_id DESC
LIMIT :limit
""",
    ListedThread,
)


class PutRow(msgspec.Struct, frozen=True):
    """A thread as a request to set it left it."""

    created_at: datetime
    seal: bytes
    activity: int


# The agent is set in a statement of its own, `SET_AGENT`, under the lock of this one (ADR 40).
PUT = Statement(
    """
INSERT INTO stateroom.threads AS t
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share, searchable)
VALUES (:tenant_id, :subject_id, :thread_id, :agent, 'active', 'hot', coalesce(:strict, false), 1, :now, :now, :seal,
    :client_share, '{}')
ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
    activity = t.activity + 1, updated_at = excluded.updated_at, strict = coalesce(:strict, t.strict)
RETURNING created_at, seal, activity
""",
    PutRow,
)
SET_AGENT = Statement(f"""
UPDATE stateroom.threads t SET agent = :agent
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id AND NOT {holds.AGENT_HELD}
""")

CREATE = Statement(
    """
INSERT INTO stateroom.threads
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share, parent_thread_id)
VALUES (:tenant_id, :subject_id, :thread_id, :agent, :status, 'hot', :strict, 1, :now, :now, :seal, :client_share,
    :parent_thread_id)
ON CONFLICT DO NOTHING RETURNING 1
""",
    int,
)


class ThreadRow(msgspec.Struct, frozen=True):
    """A thread's own row, as far as what belongs to it is read or written."""

    agent: str | None
    status: str
    tier: str
    strict: bool
    created_at: datetime
    seal: bytes
    cold: bytes | None


_READ = """
SELECT agent, status, tier, strict, created_at, seal, cold FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
"""
READ = Statement(_READ, ThreadRow)
LOCK = Statement(f"{_READ} FOR UPDATE", ThreadRow)


class HeadRow(msgspec.Struct, frozen=True):
    """The head of a namespace."""

    namespace: str
    head_id: str
    sequence: int
    seal: bytes


HEADS = Statement(
    """
SELECT namespace, head_id, sequence, seal FROM stateroom.heads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id ORDER BY namespace
""",
    HeadRow,
)

ADD_HEAD = Statement("""
INSERT INTO stateroom.heads (tenant_id, subject_id, thread_id, namespace, head_id, sequence, seal)
VALUES (:tenant_id, :subject_id, :thread_id, :namespace, :head_id, :sequence, :seal)
""")

SEAL = Statement("""
UPDATE stateroom.threads SET seal = :seal
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")

DELETE_ALL = tuple(
    Statement(f"""
DELETE FROM stateroom.{table}
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")
    for table in (
        "pending_writes",
        "checkpoints",
        "heads",
        "chunks",
        "archives",
        "thread_retention",
        "claims",
        "effects",
        "approval_votes",
        "approval_actions",
        "approvals",
        "ledger_seals",
        "threads",
    )
)

COPY_CHUNKS = Statement("""
INSERT INTO stateroom.chunks (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
SELECT tenant_id, subject_id, :target, piece_id, key_version, children, named_ids, envelope FROM stateroom.chunks
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :source
""")

_CHECKPOINT = CheckpointRow.__struct_fields__
_CHECKPOINT_VALUES = ", ".join(f":{name}" for name in _CHECKPOINT)

ADD_CHECKPOINT = Statement(f"""
INSERT INTO stateroom.checkpoints (tenant_id, subject_id, {", ".join(_CHECKPOINT)})
VALUES (:tenant_id, :subject_id, {_CHECKPOINT_VALUES})
""")

# The same for a copy of another thread: what the checkpoint is tagged by comes with it, by one look-up. Joining the two
# threads afterwards compared each checkpoint with each other one wherever the tables had no statistics yet.
COPY_CHECKPOINT = Statement(f"""
INSERT INTO stateroom.checkpoints (tenant_id, subject_id, {", ".join(_CHECKPOINT)}, searchable)
SELECT s.tenant_id, s.subject_id, {_CHECKPOINT_VALUES}, s.searchable FROM stateroom.checkpoints s
WHERE s.tenant_id = :tenant_id AND s.subject_id = :subject_id AND s.thread_id = :copied_from
  AND s.namespace = :namespace AND s.checkpoint_id = :checkpoint_id
""")

_WRITE = WriteRow.__struct_fields__

ADD_WRITE = Statement(f"""
INSERT INTO stateroom.pending_writes (tenant_id, subject_id, {", ".join(_WRITE)})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in _WRITE)})
""")

WRITES_AFTER = Statement(
    f"""
SELECT {", ".join(_WRITE)} FROM stateroom.pending_writes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
  AND (namespace, checkpoint_id, task_id, idx) > (:namespace, :checkpoint_id, :task_id, :idx)
ORDER BY namespace, checkpoint_id, task_id, idx LIMIT :limit
""",
    WriteRow,
)
