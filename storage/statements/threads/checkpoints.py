"""Statements on checkpoints, chunks and pending writes: the hot path.

Why a save takes two statements after BEGIN, and what each may rely on:

`OPEN` locks the thread (creating it if need be) and reads under that lock. It waits for the lock inside the statement,
so its snapshot may be older than what the other writer committed. Rows that it locks itself (head, chunks) are read
in their newest version; a row that did not exist in the snapshot is not seen at all. So whatever `OPEN` reports
missing is written by `WRITE` under a condition (``ON CONFLICT``, the expected sequence), and a condition that fails
means: lost a race, run the whole transaction again. What the rows of the keys make (`KEYS_HASH`) comes back from both:
what `WRITE` sees was committed before anything is stored. `OPEN_WRITES` and `PUT_WRITES` divide the work likewise.

`OPEN` also tells what save policies say: of the tenant, of the agent that the save names, and of the one that the
thread had in the snapshot. Where another request wrote to the thread meanwhile (``activity``) that may be another one;
in a tenant with policies this is told (``policies_unsure``), and a save that names no head begins again with the lock.

A thread that has an agent keeps it here: another one that a save names is set under the lock of `OPEN` by
`storage.statements.threads.threads.SET_AGENT`, unless a legal hold on the former forbids it.

A thread's ``searchable`` says by which keys all its checkpoints are tagged (`storage.schemas.tags`): `OPEN` narrows it,
under the lock, to what its save is tagged by. An empty array says that there is no checkpoint yet.

The newest checkpoint has to be the head, and a thread that `OPEN` made has to have nothing yet. `WRITE` tells, because
it reads after the lock was granted: what `OPEN` sees beside the head may have been removed meanwhile. `PUT_WRITES`
tells the latter likewise. Both are functions of plain statements (a37), which mean the same on a distributed server.

Chunks that a save merely refers to are locked ``FOR KEY SHARE`` after the thread (the join forces the order), so that
a prune that ran meanwhile makes them missing here, not in a checkpoint that was answered with 2xx.
"""

from datetime import datetime
from typing import TypeVar

import msgspec

from storage.format.manifest import CheckpointColumns
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.postgres.statement import Statement, column_names, columns
from storage.statements.keys.keys import KEYS_HASH

R = TypeVar("R", bound=msgspec.Struct)

_ROW = columns(CheckpointRow)
_WRITE = columns(WriteRow)

# The newest checkpoint of a namespace. By order: row-level security keeps the index from what is compared with `>`.
_NEWEST = """
    (SELECT n.checkpoint_id FROM stateroom.checkpoints n
     WHERE n.tenant_id = :tenant_id AND n.subject_id = :subject_id AND n.thread_id = :thread_id
       AND n.namespace = {namespace}
     ORDER BY n.checkpoint_id DESC LIMIT 1)"""

# Whether a thread has anything. By order likewise: a statement that only asks whether there is a row may scan the table
# for it.
_LEFT_OVER = """coalesce(
        (SELECT true FROM stateroom.heads l WHERE l.tenant_id = :tenant_id AND l.subject_id = :subject_id
          AND l.thread_id = :thread_id
         ORDER BY l.namespace LIMIT 1),
        (SELECT true FROM stateroom.checkpoints l WHERE l.tenant_id = :tenant_id AND l.subject_id = :subject_id
          AND l.thread_id = :thread_id
         ORDER BY l.namespace, l.checkpoint_id LIMIT 1),
        (SELECT true FROM stateroom.pending_writes l WHERE l.tenant_id = :tenant_id
          AND l.subject_id = :subject_id AND l.thread_id = :thread_id
         ORDER BY l.namespace, l.checkpoint_id, l.task_id, l.idx LIMIT 1),
        false)"""

LEFT_OVER = Statement(f"SELECT {_LEFT_OVER}", bool)

# Save policies, as `storage.access.save_rules` reads them; as text, they are compared with what they were.
_POLICIES = ", ".join(
    f"array_agg(s.{column} ORDER BY s.agent) AS policy_{plural}"
    for column, plural in (
        ("agent", "agents"), ("strict", "strict"), ("compact_elements", "compact_elements"),
        ("compact_bytes", "compact_bytes"), ("updated_at", "updated_at"), ("mac", "macs"),
        ("mac_format", "mac_formats"),
    )
) + ", array_agg(s::text ORDER BY s.agent) AS policy_rows"  # fmt: skip


class PoliciesRow(msgspec.Struct, frozen=True):
    """The save policies that count for a save, as parallel arrays; NULL, if there are none.

    ``agent_before`` is the agent that the thread had in the snapshot; ``policies_unsure``: it may have another by now.
    The empty agent is the tenant. ``policy_rows`` has each as the database writes it.
    """

    agent_before: str | None
    policy_agents: list[str] | None
    policy_strict: list[bool | None] | None
    policy_compact_elements: list[int | None] | None
    policy_compact_bytes: list[int | None] | None
    policy_updated_at: list[datetime] | None
    policy_macs: list[bytes] | None
    policy_mac_formats: list[int] | None
    policy_rows: list[str] | None
    policies_unsure: bool


# What counts for a compaction, which reads before it saves: it names the agent `:agent`.
POLICIES_OF = Statement(
    f"""
SELECT :agent_before::text AS agent_before, {_POLICIES}, false AS policies_unsure
FROM stateroom.save_policies s WHERE s.tenant_id = :tenant_id AND s.agent IN ('', :agent_before, :agent)
""",
    PoliciesRow,
)


class OpenRow(msgspec.Struct, frozen=True):
    """What a save stands on: its parent, the thread, its head and what counts.

    ``present_ids`` are those of the pieces asked for that the thread has; the early ones are pending writes that came
    before their checkpoint. ``live_until`` is when the claim of the thread is over, if that is live.
    """

    parent: CheckpointRow | None
    tier: str
    strict: bool
    thread_agent: str | None
    thread_created_at: datetime
    thread_seal: bytes
    cold: bytes | None
    fence: int
    claims_required: bool
    live_until: datetime | None
    open_approvals: int
    keys_hash: int
    head_id: str | None
    sequence: int | None
    head_seal: bytes | None
    present_ids: list[bytes] | None
    stored_before: bool
    early_tasks: list[str] | None
    early_idx: list[int] | None
    early_members: list[bytes] | None
    policies: PoliciesRow


# A save under the fence of the thread's claim keeps that alive (`storage.claims`); under another one it fails.
_RENEWED = """claimed_until = CASE WHEN :fence::bigint = t.fence AND t.claimed_until IS NOT NULL
            THEN greatest(t.claimed_until, statement_timestamp() + make_interval(secs => t.claim_seconds))
            ELSE t.claimed_until END"""

OPEN = Statement(
    f"""
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES (:tenant_id, :subject_id, :thread_id, :agent, coalesce(:status, 'active'), 'hot', false, 1, :now, :now,
      :own_seal, :client_share,
      :searchable)
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
        activity = t.activity + 1,
        updated_at = excluded.updated_at,
        agent = coalesce(t.agent, excluded.agent),
        status = coalesce(:status, t.status),
        {_RENEWED},
        searchable = CASE
            WHEN t.searchable = '{{}}' OR excluded.searchable <@ t.searchable THEN excluded.searchable
            WHEN t.searchable <@ excluded.searchable THEN t.searchable
        END
    RETURNING tenant_id, subject_id, thread_id, tier, strict, agent, activity, created_at, seal, cold, fence,
        claims_required, claimed_until, open_approvals
)
SELECT p.*, t.tier, t.strict, t.agent AS thread_agent, t.created_at AS thread_created_at, t.seal AS thread_seal, t.cold,
    t.fence, t.claims_required,
    CASE WHEN t.claimed_until > statement_timestamp() THEN t.claimed_until END AS live_until, t.open_approvals,
    {KEYS_HASH} AS keys_hash,
    h.head_id, h.sequence, h.seal AS head_seal,
    (SELECT array_agg(present.piece_id) FROM (
        SELECT c.piece_id FROM stateroom.chunks c
        WHERE c.tenant_id = :tenant_id AND c.subject_id = t.subject_id AND c.thread_id = t.thread_id
          AND c.piece_id = ANY(:pieces::bytea[]) AND c.key_version = :key_version
        FOR KEY SHARE) present) AS present_ids,
    EXISTS (SELECT FROM stateroom.checkpoints e
     WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.thread_id = :thread_id
       AND e.namespace = :namespace
       AND e.checkpoint_id = :checkpoint_id) AS stored_before,
    early.*, asked.*
FROM thread t
LEFT JOIN LATERAL (
    SELECT head_id, sequence, seal FROM stateroom.heads
    WHERE tenant_id = :tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND namespace = :namespace
    FOR UPDATE) h ON true
LEFT JOIN LATERAL (
    SELECT b.agent AS agent_before, policies.*, coalesce(b.activity, 0) <> t.activity - 1 AND EXISTS (
        SELECT FROM stateroom.save_policies s WHERE s.tenant_id = :tenant_id) AS policies_unsure
    FROM (VALUES (1)) one
    LEFT JOIN stateroom.threads b ON b.tenant_id = :tenant_id AND b.subject_id = :subject_id
      AND b.thread_id = :thread_id
    LEFT JOIN LATERAL (
        SELECT {_POLICIES} FROM stateroom.save_policies s
        WHERE s.tenant_id = :tenant_id AND s.agent IN ('', b.agent, :agent)) policies ON true) asked ON true
LEFT JOIN LATERAL (
    SELECT array_agg(w.task_id ORDER BY w.member) AS early_tasks, array_agg(w.idx ORDER BY w.member) AS early_idx,
        array_agg(w.member ORDER BY w.member) AS early_members
    FROM stateroom.pending_writes w
    WHERE :checkpoint_id::text IS NOT NULL AND w.tenant_id = :tenant_id AND w.subject_id = :subject_id
      AND w.thread_id = :thread_id
      AND w.namespace = :namespace
      AND w.checkpoint_id = :checkpoint_id) early ON true
LEFT JOIN LATERAL (
    SELECT {_ROW} FROM stateroom.checkpoints
    WHERE :needs_parent AND tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
      AND namespace = :namespace
      AND checkpoint_id = CASE WHEN :parent_is_head THEN h.head_id ELSE :parent_id::text END
    FOR KEY SHARE) p ON true
""",
    OpenRow,
)

ONE = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND checkpoint_id = :checkpoint_id
""",
    CheckpointRow,
)


def _select(function: str, parameters: str, row: type[R]) -> Statement[R]:
    values = ", ".join(f":{name}" for name in parameters.split())
    call = f"stateroom.{function}(:tenant_id, :subject_id, :thread_id, {values})"
    return Statement(f"SELECT {columns(row)} FROM {call}", row)


class WrittenRow(msgspec.Struct, frozen=True):
    """What a save wrote, and what it was written on.

    ``written`` counts the checkpoint and the head. ``early_members`` are of pending writes that came before the
    checkpoint. ``left_over``: a thread that is new had something already.
    """

    written: int
    early_members: list[bytes] | None
    newest_id: str | None
    left_over: bool
    keys_hash: int


# A task's writes, and its outcome, may have arrived before their checkpoint; they are read here, under the lock, where
# none is missed: if they are others than OPEN saw, the head's seal is wrong, and the save starts over. What a save is
# tagged by and its tags are written along; NULL and none, if it is not tagged.
WRITE = _select(
    "write_save",
    "key_version pieces children blob_ids envelopes namespace checkpoint_id parent_id step status source agent run_id"
    " model state_schema state_version input_tokens output_tokens cost_micros created_at piece_ids named_ids manifest"
    " head_id sequence head_seal has_head is_new_thread searchable tags",
    WrittenRow,
)


def _call(function: str, parameters: str) -> Statement[None]:
    values = ", ".join(f":{name}" for name in parameters.split())
    return Statement(f"SELECT stateroom.{function}(:tenant_id, :subject_id, :thread_id, {values})")


# Whole transactions of whoever knows what they stand on, as functions of the database that bind their
# scope and commit with their statement: one round trip. They depend on the stored seals being the remembered ones: a
# thread whose seal is another one, as after any pending write or new namespace, or a head that moved, make them fail
# as a whole; so do more or fewer writes that came before their checkpoint than the save was told of, a head that is not
# the newest checkpoint, and rows that are there already; to a save that names no head, another agent of the thread, or
# other policies than it knows of (null: it names one). Nothing that the head and its writes need can have been pruned
# while both seals are what they were, so its pieces are there. A save that fails begins with OPEN or OPEN_WRITES.
SAVE_ON = _call(
    "save_on_9",
    "key_version pieces children envelopes namespace checkpoint_id parent_id step status source agent run_id model"
    " state_schema state_version input_tokens output_tokens cost_micros created_at piece_ids manifest head_id sequence"
    " head_seal thread_status thread_seal strict named_ids head_seal_before early_count policies keys_hash event_id"
    " fence",
)
PUT_WRITES_ON = _call(
    "put_writes_on_8",
    "key_version pieces children envelopes namespace checkpoint_id task_id task_path status now idx channels piece_ids"
    " values members state_schema state_version thread_status thread_seal_before thread_seal sequence head_seal_before"
    " head_seal keys_hash event_id fence",
)


class OpenWritesRow(msgspec.Struct, frozen=True):
    """What a task's writes stand on: the thread, the namespace's head, their checkpoint's version, what is stored.

    ``present_idx`` are positions of this task that are stored, ``present_members`` the members there.
    """

    tier: str
    thread_created_at: datetime
    thread_seal: bytes
    cold: bytes | None
    fence: int
    claims_required: bool
    open_approvals: int
    keys_hash: int
    head_id: str | None
    sequence: int | None
    head_seal: bytes | None
    at_schema: str | None
    at_version: int | None
    present_idx: list[int] | None
    present_members: list[bytes] | None


# What a task's writes stand on. Rows of this task that the snapshot knows are locked, so that one that a prune removed
# meanwhile is not taken for stored; one that it does not know makes PUT_WRITES fail.
OPEN_WRITES = Statement(
    f"""
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES (:tenant_id, :subject_id, :thread_id, NULL, coalesce(:status, 'active'), 'hot', false, 1, :now, :now,
      :own_seal, :client_share,
      '{{}}')
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
        activity = t.activity + 1, updated_at = excluded.updated_at, status = coalesce(:status, t.status), {_RENEWED}
    RETURNING tenant_id, subject_id, thread_id, tier, created_at, seal, cold, fence, claims_required, open_approvals
)
SELECT t.tier, t.created_at AS thread_created_at, t.seal AS thread_seal, t.cold, t.fence, t.claims_required,
    t.open_approvals,
    {KEYS_HASH} AS keys_hash,
    h.head_id, h.sequence, h.seal AS head_seal, c.state_schema AS at_schema, c.state_version AS at_version, w.*
FROM thread t
LEFT JOIN stateroom.checkpoints c ON c.tenant_id = :tenant_id AND c.subject_id = :subject_id
  AND c.thread_id = :thread_id
  AND c.namespace = :namespace
    AND c.checkpoint_id = :checkpoint_id
LEFT JOIN LATERAL (
    SELECT head_id, sequence, seal FROM stateroom.heads
    WHERE tenant_id = :tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND namespace = :namespace
    FOR UPDATE) h ON true
LEFT JOIN LATERAL (
    SELECT array_agg(present.idx) AS present_idx, array_agg(present.member) AS present_members FROM (
        SELECT s.idx, s.member FROM stateroom.pending_writes s
        WHERE s.tenant_id = :tenant_id AND s.subject_id = t.subject_id AND s.thread_id = t.thread_id
          AND s.namespace = :namespace AND s.checkpoint_id = :checkpoint_id AND s.task_id = :task_id
          AND s.idx = ANY(:idx::int[])
        FOR UPDATE) present) w ON true
""",
    OpenWritesRow,
)


class WrittenWritesRow(msgspec.Struct, frozen=True):
    """What was written of a task's writes, and what it was written on.

    ``head_id`` and ``sequence`` are as they were before. ``left_over``: a thread that is new had something already.
    """

    written: int
    head_id: str | None
    sequence: int | None
    left_over: bool
    keys_hash: int


# A checkpoint's outcome is the status of one of its writes, or null if none has one, so that reads can tell when it was
# edited (`storage.format.record`). Therefore a status counts with what is stored along with it, and where others are
# replaced by writes without one, those that are left decide.
#
# A write that replaces another one names its member. The head as it is now comes back: it must be the one that
# OPEN_WRITES saw. In a later statement than the lock, the outcome reaches a checkpoint that was saved while that one
# waited; a save that waits for the writes reads their status in WRITE, so one of the two always knows of the other.
PUT_WRITES = _select(
    "put_writes",
    "key_version pieces children blob_ids envelopes namespace checkpoint_id task_id task_path status now idx channels"
    " piece_ids named_ids values members replaces state_schema state_version thread_seal sequence head_seal"
    " is_new_thread",
    WrittenWritesRow,
)

# The channels of a checkpoint's pending writes that have no version of their own.
UNVERSIONED_CHANNELS = Statement(
    """
SELECT DISTINCT channel FROM stateroom.pending_writes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND checkpoint_id = :checkpoint_id
  AND state_schema IS NULL
""",
    str,
)


class LoadedRows(msgspec.Struct, frozen=True):
    """A checkpoint with all that a load needs, as one statement finds it.

    ``thread_seal`` None: the thread has no row. ``cold``: the sums of its segments, if it has some. ``is_newer``: a
    checkpoint of the namespace is newer than the head.
    ``is_parent_stored`` False: a prune removed the parent. ``writes`` are ordered by task path, task and position;
    ``pieces`` are those that the checkpoint and they name directly; ``members`` are of all pending writes of the
    thread, if the checkpoint is not the head.
    """

    head_id: str
    sequence: int
    head_seal: bytes
    thread_seal: bytes | None
    thread_created_at: datetime | None
    tier: str | None
    cold: bytes | None
    is_newer: bool
    is_parent_stored: bool
    keys_hash: int
    checkpoint: CheckpointRow | None
    writes: list[WriteRow]
    pieces: list[PieceRow]
    members: list[MemberRow]


# A whole load, as a function of the database: the checkpoint, its namespace's head, its pending writes and every
# piece both name directly; of one that is not the head the members of all pending writes of the thread, too. It binds
# its scope and only reads. By itself it is a transaction of one round trip; in a snapshot it binds the scope again that
# the snapshot has.
LOAD = Statement(
    f"""
SELECT at_head_id AS head_id, at_sequence AS sequence, at_head_seal AS head_seal, at_thread_seal AS thread_seal,
    at_thread_created_at AS thread_created_at, at_tier AS tier, at_cold AS cold, at_newer AS is_newer,
    at_parent IS NOT NULL AS is_parent_stored, keys_hash, {", ".join(column_names(LoadedRows)[10:])}
FROM stateroom.load_checkpoint_5(:tenant_id, :subject_id, :thread_id, :namespace, :checkpoint_id, :with_state)
""",
    LoadedRows,
)

# Do nothing, once no session holds a lock that a save would wait for; fail if that takes long.
WAIT_AS_SAVES = """
SET LOCAL lock_timeout = '1s';
LOCK TABLE stateroom.threads, stateroom.heads, stateroom.checkpoints, stateroom.chunks, stateroom.pending_writes
    IN ROW EXCLUSIVE MODE
"""

# Which of these pieces the thread has under this key version, kept from a prune until the transaction ends.
PRESENT = Statement(
    """
SELECT piece_id FROM stateroom.chunks
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
  AND piece_id = ANY(:piece_ids::bytea[]) AND key_version = :key_version
FOR KEY SHARE
""",
    bytes,
)


class HeadAndNewestRow(msgspec.Struct, frozen=True):
    """A namespace's head and its newest checkpoint, each None where there is none."""

    newest_id: str | None
    head_id: str | None


# A namespace's head, and its newest checkpoint, which must be it.
HEAD_AND_NEWEST = Statement(
    f"""
SELECT {_NEWEST.format(namespace=":namespace")} AS newest_id, (SELECT h.head_id FROM stateroom.heads h
     WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id AND h.thread_id = :thread_id
       AND h.namespace = :namespace) AS head_id
""",
    HeadAndNewestRow,
)

WRITES_OF = Statement(
    f"""
SELECT {_WRITE} FROM stateroom.pending_writes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND checkpoint_id = ANY(:checkpoint_ids::text[]) AND (:task_id::text IS NULL OR task_id = :task_id)
ORDER BY checkpoint_id, task_path, task_id, idx
""",
    WriteRow,
)


# What a listing asks of a row ``c``; the last three are where it goes on.
#
# The first condition is true of every checkpoint, and that of the index that only listings may use: the newest
# checkpoint of a namespace is found by the primary key, and not by reading a subject's from the newest on.
HISTORY_WANTED = """c.created_at >= '-infinity' AND c.tenant_id = :tenant_id AND c.subject_id = :subject_id
  AND (:thread_id::text IS NULL OR c.thread_id = :thread_id)
  AND (:namespace::text IS NULL OR c.namespace = :namespace)
  AND (:before::text IS NULL OR c.checkpoint_id < :before)
  AND (:status::text IS NULL OR coalesce(c.outcome, c.status) = :status)
  AND (:step::int IS NULL OR c.step = :step)
  AND (:run_id::text IS NULL OR c.run_id = :run_id)
  AND (:source::text IS NULL OR c.source = :source)
  AND (:agent::text IS NULL OR c.agent = :agent)
  AND (:since::timestamptz IS NULL OR c.created_at >= :since)
  AND (:until::timestamptz IS NULL OR c.created_at < :until)
  AND (:after_id::text IS NULL OR (c.checkpoint_id, c.thread_id, c.namespace) < (:after_id, :after_thread::text,
    :after_namespace::text))"""


# A page of history, newest first. Writes are fetched apart, in the same snapshot.
HISTORY = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints c
WHERE {HISTORY_WANTED}
ORDER BY checkpoint_id DESC, thread_id DESC, namespace DESC
LIMIT :limit
""",
    CheckpointRow,
)


class ReferenceRow(msgspec.Struct, frozen=True):
    """A checkpoint by its place."""

    thread_id: str
    namespace: str
    checkpoint_id: str


# Which of these checkpoints are stored: parents of a page, of which a prune may have removed some.
STORED_OF = Statement(
    """
SELECT p.thread_id, p.namespace, p.checkpoint_id
FROM unnest(:thread_ids::text[], :namespaces::text[], :checkpoint_ids::text[]) AS p(thread_id, namespace, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT FROM stateroom.checkpoints c
    WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = p.thread_id
      AND c.namespace = p.namespace
      AND c.checkpoint_id = p.checkpoint_id
    LIMIT 1) stored
""",
    ReferenceRow,
)


# As `STORED_OF`; whatever may be in a segment, by the range of that, is taken to be stored.
STORED_OR_COLD = Statement(
    """
SELECT p.thread_id, p.namespace, p.checkpoint_id
FROM unnest(:thread_ids::text[], :namespaces::text[], :checkpoint_ids::text[]) AS p(thread_id, namespace, checkpoint_id)
WHERE EXISTS (
    SELECT FROM stateroom.checkpoints c
    WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = p.thread_id
      AND c.namespace = p.namespace AND c.checkpoint_id = p.checkpoint_id)
  OR EXISTS (
    SELECT FROM stateroom.archives a
    WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.thread_id = p.thread_id AND a.segment > 0
      AND p.checkpoint_id BETWEEN a.first_id AND a.last_id)
""",
    ReferenceRow,
)


class ThreadSealRow(msgspec.Struct, frozen=True):
    """A thread's seal, the moment that is bound into it, and the sums of its segments."""

    thread_id: str
    created_at: datetime
    seal: bytes
    cold: bytes | None


# The seals of some threads: whether their checkpoints on a page of history can be opened.
THREAD_SEALS = Statement(
    """
SELECT thread_id, created_at, seal, cold FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = ANY(:thread_ids::text[])
""",
    ThreadSealRow,
)


class ListedRow(CheckpointColumns, frozen=True):
    """A checkpoint by its clear columns, without what it names."""

    outcome: str | None
    subject_id: str


def _tenant_listing(also: str) -> Statement[ListedRow]:
    text = f"""
SELECT thread_id, namespace, checkpoint_id,
    (SELECT p.checkpoint_id FROM stateroom.checkpoints p
     WHERE p.tenant_id = :tenant_id AND p.subject_id = c.subject_id AND p.thread_id = c.thread_id
       AND p.namespace = c.namespace AND p.checkpoint_id = c.parent_id LIMIT 1) AS parent_id,
    step, status, source, agent, run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros,
    created_at, ''::bytea AS piece_ids, NULL::bytea AS named_ids, outcome, subject_id
FROM stateroom.checkpoints c
WHERE tenant_id = :tenant_id AND {also}
  AND (:namespace::text IS NULL OR namespace = :namespace)
  AND (:before::text IS NULL OR checkpoint_id < :before)
  AND (:status::text IS NULL OR coalesce(outcome, status) = :status)
  AND (:step::int IS NULL OR step = :step)
  AND (:run_id::text IS NULL OR run_id = :run_id)
  AND (:source::text IS NULL OR source = :source)
  AND (:agent::text IS NULL OR agent = :agent)
  AND (:since::timestamptz IS NULL OR created_at >= :since)
  AND (:until::timestamptz IS NULL OR created_at < :until)
  AND (:after_at::timestamptz IS NULL
       OR (created_at, subject_id, thread_id, namespace, checkpoint_id) < (:after_at, :after_subject::text,
         :after_thread::text, :after_namespace::text,
           :after_id::text))
ORDER BY created_at DESC, subject_id DESC, thread_id DESC, namespace DESC, checkpoint_id DESC
LIMIT :limit
"""
    return Statement(text, ListedRow)


# Clear columns over all subjects of a tenant, newest first. What operators ask about most, failed and waiting steps,
# is what the partial index checkpoints_troubled holds; its condition has to be repeated literally to be used.
TENANT_LISTING = _tenant_listing("true")
TENANT_LISTING_TROUBLED = _tenant_listing("(status IN ('failed', 'waiting') OR outcome IS NOT NULL)")

# All checkpoints of a namespace in order, a stretch at a time.
AFTER = Statement(
    f"""
SELECT {_ROW} FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND checkpoint_id > :after
ORDER BY checkpoint_id LIMIT :limit
""",
    CheckpointRow,
)

# A stretch of a checkpoint's ancestors, nearest first. Parents come from clear columns, which the seal of each
# manifest binds; the depth bound ends a cycle that might have been edited in. LATERAL with its LIMIT makes every step
# one look-up by primary key: as a plain join, a subject without statistics was read whole at each step.
ANCESTORS = Statement(
    f"""
WITH RECURSIVE line AS (
    SELECT 1 AS depth, c.* FROM stateroom.checkpoints c
    WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
      AND c.namespace = :namespace AND c.checkpoint_id = :checkpoint_id
    UNION ALL
    SELECT line.depth + 1, c.* FROM line
    CROSS JOIN LATERAL (
        SELECT * FROM stateroom.checkpoints p
        WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.thread_id = :thread_id
          AND p.namespace = :namespace
          AND p.checkpoint_id = line.parent_id
        LIMIT 1) c
    WHERE line.depth < :limit
)
SELECT {_ROW} FROM line ORDER BY depth
""",
    CheckpointRow,
)

CLAIM_IDEMPOTENCY = Statement(
    """
INSERT INTO stateroom.idempotency (tenant_id, subject_id, idempotency_key, request_digest, created_at)
VALUES (:tenant_id, :subject_id, :idempotency_key, :request_digest, :now) ON CONFLICT DO NOTHING RETURNING 1
""",
    int,
)


class IdempotencyRow(msgspec.Struct, frozen=True):
    """What is kept of a request that named a key."""

    request_digest: bytes
    receipt: bytes | None
    created_at: datetime


READ_IDEMPOTENCY = Statement(
    """
SELECT request_digest, receipt, created_at FROM stateroom.idempotency
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND idempotency_key = :idempotency_key
""",
    IdempotencyRow,
)

# At once, by who did the work before: who waits for another transaction with the same key finds it there afterwards.
KEEP_IDEMPOTENCY = Statement(
    """
INSERT INTO stateroom.idempotency (tenant_id, subject_id, idempotency_key, request_digest, created_at, receipt)
VALUES (:tenant_id, :subject_id, :idempotency_key, :request_digest, :now, :receipt) ON CONFLICT DO NOTHING RETURNING 1
""",
    int,
)
SETTLE_IDEMPOTENCY = Statement("""
UPDATE stateroom.idempotency SET receipt = :receipt
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND idempotency_key = :idempotency_key
""")
