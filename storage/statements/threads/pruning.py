"""Statements that thin a thread: what is read without its lock, and what is removed under it.

Candidates come from a snapshot that locks nothing. Each removal is a short transaction whose first statement locks the
thread (`storage.statements.threads.threads.LOCK`); later statements then see all that was committed before the lock was
granted, and no request saves to the thread, nor refers to a chunk of it, until they commit.

Look-ups are by equality: row-level security keeps a comparison of text by order from the index.
"""

from datetime import datetime

import msgspec

from storage.format.record import CheckpointRow, MemberRow
from storage.postgres.statement import Statement, columns
from storage.statements.objects.blobs import NAMED_IDS

_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
_ROW = columns(CheckpointRow)

# --- read without the lock ----------------------------------------------------------------------------------------

CHECKPOINT_IDS = Statement(
    f"""
SELECT checkpoint_id FROM stateroom.checkpoints WHERE {_THREAD} AND namespace = :namespace ORDER BY checkpoint_id
""",
    str,
)

CHECKPOINTS = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints WHERE {_THREAD} AND namespace = :namespace
  AND checkpoint_id = ANY(:checkpoint_ids::text[])
""",
    CheckpointRow,
)


class StoredWriteRow(msgspec.Struct, frozen=True):
    """A pending write by its place and member, and when the database got it."""

    namespace: str
    checkpoint_id: str
    task_id: str
    idx: int
    member: bytes
    stored_at: datetime

    @property
    def member_row(self) -> MemberRow:
        """Its place and member by themselves."""
        return MemberRow(self.namespace, self.checkpoint_id, self.task_id, self.idx, self.member)


class GarbageRow(msgspec.Struct, frozen=True):
    """A piece that nothing names, and the length of its envelope."""

    piece_id: bytes
    size_bytes: int


class NewWriteRow(msgspec.Struct, frozen=True):
    """What a pending write names, packed."""

    member: bytes
    piece_ids: bytes


class RemovedRow(msgspec.Struct, frozen=True):
    """A checkpoint that was removed."""

    namespace: str
    checkpoint_id: str


# All pending writes of a thread, as its seal sums them up.
WRITES = Statement(
    f"""
SELECT namespace, checkpoint_id, task_id, idx, member, coalesce(stored_at, created_at) AS stored_at
FROM stateroom.pending_writes WHERE {_THREAD}
""",
    StoredWriteRow,
)


def _unpacked(packed: str) -> str:
    return f"LATERAL (SELECT substring({packed} FROM 1 + 17 * n FOR 17) AS piece_id\
 FROM generate_series(0, length({packed}) / 17 - 1) n) u"


# Chunks that nothing names, directly or through index pieces, once these checkpoints and their writes are
# gone. Only candidates: what came to name one of them meanwhile is asked again before `COLLECT`.
GARBAGE = Statement(
    f"""
WITH RECURSIVE doomed AS (
    SELECT namespace, checkpoint_id
      FROM unnest(:namespaces::text[], :checkpoint_ids::text[]) AS d(namespace, checkpoint_id)
), roots AS (
    SELECT piece_ids AS packed FROM stateroom.checkpoints
    WHERE {_THREAD} AND (namespace, checkpoint_id) NOT IN (SELECT namespace, checkpoint_id FROM doomed)
    UNION
    SELECT piece_ids FROM stateroom.pending_writes
    WHERE {_THREAD} AND (namespace, checkpoint_id) NOT IN (SELECT namespace, checkpoint_id FROM doomed)
), live AS (
    SELECT u.piece_id FROM roots r, {_unpacked("r.packed")}
    UNION
    SELECT u.piece_id FROM live JOIN stateroom.chunks c ON c.tenant_id = :tenant_id
      AND c.subject_id = :subject_id AND c.thread_id = :thread_id
        AND c.piece_id = live.piece_id, {_unpacked("c.children")}
    WHERE c.children IS NOT NULL
)
SELECT c.piece_id, length(c.envelope) AS size_bytes FROM stateroom.chunks c
WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
  AND NOT EXISTS (SELECT FROM live WHERE live.piece_id = c.piece_id)
""",
    GarbageRow,
)

# Whether the thread refers to a blob or an artifact that none of its rows names any more: only then is it worth to
# lock the thread and drop what `storage.ledger.ledger` finds then.
REFERS_TO_UNNAMED = Statement(
    f"""
WITH referred AS (
    SELECT blob_id AS referred_id FROM stateroom.blob_refs WHERE {_THREAD}
    UNION ALL SELECT artifact_id FROM stateroom.artifact_refs WHERE {_THREAD}
)
SELECT EXISTS (SELECT FROM referred) AND EXISTS (
    SELECT FROM referred WHERE referred_id NOT IN (SELECT named_id FROM ({NAMED_IDS}) named))
""",
    bool,
)

# Archived ones, too: their stubs know of the runs.
THREADS_OF_RUNS = Statement(
    """
SELECT thread_id FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND run_id = ANY(:run_ids::text[])
UNION
SELECT thread_id FROM stateroom.archives WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND run_ids && :run_ids::text[]
ORDER BY thread_id
""",
    str,
)

# --- read under the lock ------------------------------------------------------------------------------------------

# The newest checkpoints of a namespace: most of the time, what was saved since a plan was made.
NEWEST = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints WHERE {_THREAD} AND namespace = :namespace
  ORDER BY checkpoint_id DESC LIMIT :limit
""",
    CheckpointRow,
)

# What pending writes name that the plan, which has these members, does not know.
NEW_WRITES = Statement(
    f"""
SELECT member, piece_ids FROM stateroom.pending_writes WHERE {_THREAD} AND member <> ALL(:members::bytea[])
""",
    NewWriteRow,
)

# What index pieces among these name.
CHILDREN = Statement(
    f"""
SELECT children FROM stateroom.chunks WHERE {_THREAD} AND piece_id = ANY(:piece_ids::bytea[]) AND children IS NOT NULL
""",
    bytes,
)

WRITES_AT = Statement(
    """
SELECT w.namespace, w.checkpoint_id, w.task_id, w.idx, w.member FROM stateroom.pending_writes w
JOIN unnest(:namespaces::text[], :checkpoint_ids::text[]) AS d(namespace, checkpoint_id)
    ON w.namespace = d.namespace AND w.checkpoint_id = d.checkpoint_id
WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = :thread_id
""",
    MemberRow,
)

# --- removed under the lock ---------------------------------------------------------------------------------------

DELETE_WRITES_OF = Statement(
    """
DELETE FROM stateroom.pending_writes w USING unnest(:namespaces::text[], :checkpoint_ids::text[]) AS d(namespace,
  checkpoint_id)
WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = :thread_id AND w.namespace = d.namespace
  AND w.checkpoint_id = d.checkpoint_id
RETURNING w.namespace, w.checkpoint_id, w.task_id, w.idx, w.member
""",
    MemberRow,
)

# These writes, if they are still what the plan knows: one that was replaced meanwhile has another member. What they
# said of their checkpoint goes with them: its outcome is the status of one of its writes, or null.
DELETE_WRITES = Statement(
    """
WITH gone AS (
    DELETE FROM stateroom.pending_writes w
    USING unnest(:namespaces::text[], :checkpoint_ids::text[], :task_ids::text[], :idx::int[], :members::bytea[])
        AS d(namespace, checkpoint_id, task_id, idx, member)
    WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = :thread_id
      AND w.namespace = d.namespace
      AND w.checkpoint_id = d.checkpoint_id AND w.task_id = d.task_id AND w.idx = d.idx AND w.member = d.member
    RETURNING w.namespace, w.checkpoint_id, w.task_id, w.idx, w.member
), checkpoint AS (
    UPDATE stateroom.checkpoints c SET outcome = (
        SELECT w.status FROM stateroom.pending_writes w
        WHERE w.tenant_id = :tenant_id AND w.subject_id = :subject_id AND w.thread_id = :thread_id
          AND w.namespace = c.namespace
          AND w.checkpoint_id = c.checkpoint_id AND w.status IS NOT NULL
          AND NOT EXISTS (SELECT FROM gone g WHERE g.namespace = w.namespace AND g.checkpoint_id = w.checkpoint_id
            AND g.task_id = w.task_id AND g.idx = w.idx)
        ORDER BY w.created_at DESC, w.idx LIMIT 1)
    FROM (SELECT DISTINCT g.namespace, g.checkpoint_id FROM gone g) g
    WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
      AND c.namespace = g.namespace
      AND c.checkpoint_id = g.checkpoint_id AND c.outcome IS NOT NULL
)
SELECT namespace, checkpoint_id, task_id, idx, member FROM gone
""",
    MemberRow,
)

# Tags of a checkpoint go with it, by their foreign key.
DELETE_CHECKPOINTS = Statement(
    """
DELETE FROM stateroom.checkpoints c
USING unnest(:namespaces::text[], :checkpoint_ids::text[]) AS d(namespace, checkpoint_id)
WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id AND c.namespace = d.namespace
  AND c.checkpoint_id = d.checkpoint_id
RETURNING c.namespace, c.checkpoint_id
""",
    RemovedRow,
)

MOVE_HEADS = Statement("""
UPDATE stateroom.heads h SET head_id = m.head_id, sequence = m.sequence, seal = m.seal
FROM unnest(:namespaces::text[], :head_ids::text[], :sequences::bigint[], :seals::bytea[]) AS m(namespace, head_id,
  sequence, seal)
WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id AND h.thread_id = :thread_id AND h.namespace = m.namespace
""")

DELETE_HEADS = Statement(f"DELETE FROM stateroom.heads WHERE {_THREAD} AND namespace = ANY(:namespaces::text[])")

# `used_at`: when the thread was used last, if it was now.
TOUCH = Statement(f"""
UPDATE stateroom.threads SET activity = activity + 1, updated_at = coalesce(:used_at, updated_at),
  seal = :seal WHERE {_THREAD}
""")

# What no seal counts is gone: whoever moves the thread as a whole has to read it again.
COUNT = Statement(f"UPDATE stateroom.threads SET activity = activity + 1 WHERE {_THREAD}")

COLLECT = Statement(f"DELETE FROM stateroom.chunks WHERE {_THREAD} AND piece_id = ANY(:piece_ids::bytea[])")
