"""Statements on checkpoints, chunks and pending writes: the hot path.

Why a save takes two statements after BEGIN, and what each may rely on:

`OPEN` locks the thread (creating it if need be) and reads under that lock. It waits for the lock inside the statement,
so its snapshot may be older than what the other writer committed. Rows that it locks itself (head, chunks) are read
in their newest version; a row that did not exist in the snapshot is not seen at all. So whatever `OPEN` reports
missing is written by `WRITE` under a condition (``ON CONFLICT``, the expected sequence), and a condition that fails
means: lost a race, run the whole transaction again. What the rows of the keys make (`KEYS_HASH`) comes back from both:
what `WRITE` sees was committed before anything is stored. `OPEN_WRITES` and `PUT_WRITES` divide the work likewise.

`OPEN` also tells what save policies say: of the tenant, of the agent that the save names, and of the one that the
thread had in the snapshot. Where somebody else wrote to the thread meanwhile (``activity``) that may be another one; in
a tenant with policies this is told (``policies_unsure``), and a save that names no head begins again with the lock.

A thread's ``searchable`` says by which keys all its checkpoints are tagged (`storage.schemas.tags`): `OPEN` narrows it,
under the lock, to what its save is tagged by. An empty array says that there is no checkpoint yet.

The newest checkpoint has to be the head, and a thread that `OPEN` made has to have nothing yet. `WRITE` tells, because
its snapshot is newer than the lock: what `OPEN` sees beside the head may have been removed meanwhile. `PUT_WRITES`
tells the latter likewise.

Chunks that a save merely refers to are locked ``FOR KEY SHARE`` after the thread (the join forces the order), so that
a prune that ran meanwhile makes them missing here, not in a checkpoint that was answered with 2xx.
"""

from storage.postgres import holds
from storage.postgres.keys import KEYS_HASH as NAMED_KEYS_HASH
from storage.postgres.statement import PlacedStatement

ROW_COLUMNS = (
    "thread_id",
    "namespace",
    "checkpoint_id",
    "parent_id",
    "step",
    "status",
    "outcome",
    "source",
    "agent",
    "run_id",
    "model",
    "state_schema",
    "state_version",
    "input_tokens",
    "output_tokens",
    "cost_micros",
    "created_at",
    "piece_ids",
    "named_ids",
    "manifest",
    "key_version",
)
_ROW = ", ".join(ROW_COLUMNS)

# By position, as the statements here are.
KEYS_HASH = NAMED_KEYS_HASH.replace(":tenant_id", "$1").replace(":subject_id", "$2")

# The newest checkpoint of a namespace. By order: row-level security keeps the index from what is compared with `>`.
_NEWEST = """
    (SELECT n.checkpoint_id FROM stateroom.checkpoints n
     WHERE n.tenant_id = $1 AND n.subject_id = $2 AND n.thread_id = $3 AND n.namespace = {namespace}
     ORDER BY n.checkpoint_id DESC LIMIT 1)"""

# Whether a thread has anything. By order likewise: whoever only asks whether there is a row may scan the table for it.
_LEFT_OVER = """coalesce(
        (SELECT true FROM stateroom.heads l WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
         ORDER BY l.namespace LIMIT 1),
        (SELECT true FROM stateroom.checkpoints l WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
         ORDER BY l.namespace, l.checkpoint_id LIMIT 1),
        (SELECT true FROM stateroom.pending_writes l WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
         ORDER BY l.namespace, l.checkpoint_id, l.task_id, l.idx LIMIT 1),
        false)"""

LEFT_OVER = f"SELECT {_LEFT_OVER}"

# Save policies, as `storage.access.strictness` reads them; as text, they are compared with what they were.
_POLICIES = ", ".join(
    f"array_agg(s.{column} ORDER BY s.agent) AS policy_{plural}"
    for column, plural in (
        ("agent", "agents"), ("strict", "strict"), ("updated_at", "updated_at"), ("mac", "macs"),
        ("mac_format", "mac_formats"),
    )
) + ", array_agg(s::text ORDER BY s.agent) AS policy_rows"  # fmt: skip

# What counts for a compaction, which reads before it saves: it names the agent $3.
POLICIES_OF = f"""
SELECT {_POLICIES}, $2::text AS agent_before, false AS policies_unsure
FROM stateroom.save_policies s WHERE s.tenant_id = $1 AND s.agent IN ('', $2, $3)
"""

OPEN = PlacedStatement(
    f"""
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES ($1, $2, $3, :agent, coalesce(:status, 'active'), 'hot', false, 1, :now, :now, :own_seal, :client_share,
      :searchable)
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
        activity = t.activity + 1,
        updated_at = excluded.updated_at,
        agent = CASE WHEN excluded.agent <> t.agent AND {holds.AGENT_HELD} THEN t.agent
            ELSE coalesce(excluded.agent, t.agent) END,
        status = coalesce(:status, t.status),
        searchable = CASE
            WHEN t.searchable = '{{}}' OR excluded.searchable <@ t.searchable THEN excluded.searchable
            WHEN t.searchable <@ excluded.searchable THEN t.searchable
        END
    RETURNING tenant_id, subject_id, thread_id, tier, strict, agent, activity, created_at, seal
)
SELECT t.tier, t.strict, t.agent AS thread_agent, t.created_at AS thread_created_at, t.seal AS thread_seal,
    {KEYS_HASH} AS keys_hash,
    h.head_id, h.sequence, h.seal AS head_seal,
    (SELECT array_agg(present.piece_id) FROM (
        SELECT c.piece_id FROM stateroom.chunks c
        WHERE c.tenant_id = t.tenant_id AND c.subject_id = t.subject_id AND c.thread_id = t.thread_id
          AND c.piece_id = ANY(:pieces::bytea[]) AND c.key_version = :key_version
        FOR KEY SHARE) present) AS present_ids,
    EXISTS (SELECT FROM stateroom.checkpoints e
     WHERE e.tenant_id = $1 AND e.subject_id = $2 AND e.thread_id = $3 AND e.namespace = :namespace
       AND e.checkpoint_id = :checkpoint_id) AS stored_before,
    early.*, asked.*, p.*
FROM thread t
LEFT JOIN LATERAL (
    SELECT head_id, sequence, seal FROM stateroom.heads
    WHERE tenant_id = t.tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND namespace = :namespace
    FOR UPDATE) h ON true
LEFT JOIN LATERAL (
    SELECT b.agent AS agent_before, said.*, coalesce(b.activity, 0) <> t.activity - 1 AND EXISTS (
        SELECT FROM stateroom.save_policies s WHERE s.tenant_id = $1) AS policies_unsure
    FROM (VALUES (1)) one
    LEFT JOIN stateroom.threads b ON b.tenant_id = $1 AND b.subject_id = $2 AND b.thread_id = $3
    LEFT JOIN LATERAL (
        SELECT {_POLICIES} FROM stateroom.save_policies s
        WHERE s.tenant_id = $1 AND s.agent IN ('', b.agent, :agent)) said ON true) asked ON true
LEFT JOIN LATERAL (
    SELECT array_agg(w.task_id ORDER BY w.member) AS early_tasks, array_agg(w.idx ORDER BY w.member) AS early_idx,
        array_agg(w.member ORDER BY w.member) AS early_members
    FROM stateroom.pending_writes w
    WHERE :checkpoint_id::text IS NOT NULL AND w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3
      AND w.namespace = :namespace
      AND w.checkpoint_id = :checkpoint_id) early ON true
LEFT JOIN LATERAL (
    SELECT {_ROW} FROM stateroom.checkpoints
    WHERE :needs_parent AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = :namespace
      AND checkpoint_id = CASE WHEN :parent_is_head THEN h.head_id ELSE :parent_id::text END
    FOR KEY SHARE) p ON true
""",
    (
        "agent status now own_seal key_version namespace checkpoint_id pieces "
        "needs_parent parent_is_head parent_id client_share searchable"
    ),
)

ONE = f"""
SELECT {_ROW} FROM stateroom.checkpoints
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4 AND checkpoint_id = $5
"""


_COLUMNS = (
    "namespace checkpoint_id parent_id step status source agent run_id model state_schema state_version "
    "input_tokens output_tokens cost_micros created_at piece_ids"
)
_WRITTEN = (
    "key_version pieces children envelopes "
    f"{_COLUMNS} manifest head_id sequence head_seal has_head blob_ids named_ids is_new_thread"
)


# A task's writes, and its outcome, may have arrived before their checkpoint; they are read here, under the lock, where
# none is missed: if they are others than OPEN saw, the head's seal is wrong, and the save starts over.
def _write(column: str = "", value: str = "", tags: str = "", more: str = "") -> PlacedStatement:
    text = f"""
WITH chunk AS (
    INSERT INTO stateroom.chunks AS c
        (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
    SELECT $1, $2, $3, p.piece_id, :key_version, p.children, p.named_ids, p.envelope
    FROM unnest(:pieces::bytea[], :children::bytea[], :blob_ids::bytea[], :envelopes::bytea[]) AS p(piece_id,
      children, named_ids, envelope)
    ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
        SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
        WHERE c.key_version <> excluded.key_version
), early AS (
    SELECT w.status, w.created_at, w.idx, w.member FROM stateroom.pending_writes w
    WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = :namespace
      AND w.checkpoint_id = :checkpoint_id
), told AS (
    SELECT status FROM early WHERE status IS NOT NULL ORDER BY created_at DESC, idx LIMIT 1
), checkpoint AS (
    INSERT INTO stateroom.checkpoints
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent,
         run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at,
         key_version, piece_ids, named_ids, manifest{column})
    VALUES ($1, $2, $3, :namespace, :checkpoint_id, :parent_id, :step, :status, (SELECT status FROM told), :source,
      :agent, :run_id, :model, :state_schema, :state_version, :input_tokens, :output_tokens,
        :cost_micros, :created_at, :key_version, :piece_ids, :named_ids, :manifest{value})
    ON CONFLICT DO NOTHING
    RETURNING 1
), head AS (
    INSERT INTO stateroom.heads AS h (tenant_id, subject_id, thread_id, namespace, head_id, sequence, seal)
    VALUES ($1, $2, $3, :namespace, :head_id, :sequence, :head_seal)
    ON CONFLICT (tenant_id, subject_id, thread_id, namespace) DO UPDATE
        SET head_id = excluded.head_id, sequence = excluded.sequence, seal = excluded.seal
        WHERE h.sequence = excluded.sequence - 1 AND :has_head
    RETURNING 1
), thread AS (
    UPDATE stateroom.threads t SET status = told.status FROM told
    WHERE :namespace = '' AND t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3
){tags}
SELECT (SELECT count(*) FROM checkpoint) + (SELECT count(*) FROM head) AS written,
    (SELECT array_agg(member ORDER BY member) FROM early) AS early_members,
    {_NEWEST.format(namespace=":namespace")} AS newest_id,
    CASE WHEN :is_new_thread::boolean THEN {_LEFT_OVER} ELSE false END AS left_over,
    {KEYS_HASH} AS keys_hash
"""
    return PlacedStatement(text, f"{_WRITTEN} {more}")


WRITE = _write()

# The same save with its tags: what it is tagged by, and the tags.
WRITE_TAGGED = _write(
    column=", searchable",
    value=", :searchable",
    tags=""", tag AS (
    INSERT INTO stateroom.checkpoint_tags (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag)
    SELECT $1, $2, $3, :namespace, :checkpoint_id, t.tag FROM unnest(:tags::bytea[]) AS t(tag) ON CONFLICT DO NOTHING
)""",
    more="searchable tags",
)


# Whole transactions of whoever knows what they stand on, as functions of the database (a34) that bind their
# scope and commit with their statement: one round trip. They depend on the stored seals being the remembered ones: a
# thread whose seal is another one, as after any pending write or new namespace, or a head that moved, make them fail
# as a whole; so do more or fewer writes that came before their checkpoint than the save was told of, a head that is not
# the newest checkpoint, and rows that are there already; to a save that names no head, another agent of the thread, or
# other policies than it knows of (null: it names one). Nothing that the head and its writes need can have been pruned
# while both seals are what they were, so its pieces are there. Whoever fails begins with OPEN or OPEN_WRITES.
SAVE_ON = PlacedStatement.of_function(
    "save_on_6",
    f"key_version pieces children envelopes {_COLUMNS} manifest head_id sequence head_seal thread_status "
    "thread_seal strict named_ids head_seal_before early_count policies keys_hash",
)
PUT_WRITES_ON = PlacedStatement.of_function(
    "put_writes_on_5",
    "key_version pieces children envelopes namespace checkpoint_id task_id task_path status now idx channels "
    "piece_ids values members state_schema state_version thread_status thread_seal_before thread_seal sequence "
    "head_seal_before head_seal keys_hash",
)

SEAL_THREAD = """
UPDATE stateroom.threads SET seal = $4 WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
"""

# What a task's writes stand on. Rows of this task that the snapshot knows are locked, so that one that a prune removed
# meanwhile is not taken for stored; one that it does not know makes PUT_WRITES fail.
OPEN_WRITES = PlacedStatement(
    f"""
WITH thread AS (
    INSERT INTO stateroom.threads AS t
        (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
         client_share, searchable)
    VALUES ($1, $2, $3, NULL, coalesce(:status, 'active'), 'hot', false, 1, :now, :now, :own_seal, :client_share,
      '{{}}')
    ON CONFLICT (tenant_id, subject_id, thread_id) DO UPDATE SET
        activity = t.activity + 1, updated_at = excluded.updated_at, status = coalesce(:status, t.status)
    RETURNING tenant_id, subject_id, thread_id, tier, created_at, seal
)
SELECT t.tier, t.created_at AS thread_created_at, t.seal AS thread_seal,
    {KEYS_HASH} AS keys_hash,
    h.head_id, h.sequence, h.seal AS head_seal, c.state_schema AS at_schema, c.state_version AS at_version, w.*
FROM thread t
LEFT JOIN stateroom.checkpoints c ON c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3
  AND c.namespace = :namespace
    AND c.checkpoint_id = :checkpoint_id
LEFT JOIN LATERAL (
    SELECT head_id, sequence, seal FROM stateroom.heads
    WHERE tenant_id = t.tenant_id AND subject_id = t.subject_id AND thread_id = t.thread_id AND namespace = :namespace
    FOR UPDATE) h ON true
LEFT JOIN LATERAL (
    SELECT array_agg(present.idx) AS present_idx, array_agg(present.member) AS present_members FROM (
        SELECT s.idx, s.member FROM stateroom.pending_writes s
        WHERE s.tenant_id = t.tenant_id AND s.subject_id = t.subject_id AND s.thread_id = t.thread_id
          AND s.namespace = :namespace AND s.checkpoint_id = :checkpoint_id AND s.task_id = :task_id
          AND s.idx = ANY(:idx::int[])
        FOR UPDATE) present) w ON true
""",
    "status now own_seal namespace checkpoint_id task_id idx client_share",
)

# A checkpoint's outcome is the status of one of its writes, or null if none has one, so that reads can tell when it was
# edited (`storage.format.record`). Therefore a status counts with what is stored along with it, and where others are
# replaced by writes without one, those that are left decide.
#
# A write that replaces another one names its member. The head as it is now comes back: it must be the one that
# OPEN_WRITES saw. In a later statement than the lock, the outcome reaches a checkpoint that was saved while that one
# waited; a save that waits for the writes reads their status in WRITE, so one of the two always knows of the other.
PUT_WRITES = PlacedStatement(
    f"""
WITH chunk AS (
    INSERT INTO stateroom.chunks AS c
        (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
    SELECT $1, $2, $3, p.piece_id, :key_version, p.children, p.named_ids, p.envelope
    FROM unnest(:pieces::bytea[], :children::bytea[], :blob_ids::bytea[], :envelopes::bytea[]) AS p(piece_id,
      children, named_ids, envelope)
    ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
        SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
        WHERE c.key_version <> excluded.key_version
), fresh AS (
    SELECT * FROM unnest(:idx::int[], :channels::text[], :piece_ids::bytea[], :named_ids::bytea[], :values::bytea[],
      :members::bytea[], :replaces::bytea[])
        AS p(idx, channel, piece_ids, named_ids, value, member, replaces)
), replaced AS (
    UPDATE stateroom.pending_writes w SET
        task_path = :task_path, channel = f.channel, status = :status, created_at = :now, key_version = :key_version,
        piece_ids = f.piece_ids, named_ids = f.named_ids, state_schema = :state_schema,
          state_version = :state_version, value = f.value,
        member = f.member
    FROM fresh f
    WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = :namespace
      AND w.checkpoint_id = :checkpoint_id
      AND w.task_id = :task_id AND w.idx = f.idx AND w.member = f.replaces AND w.idx < 0
    RETURNING 1
), added AS (
    INSERT INTO stateroom.pending_writes
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status,
         created_at, key_version, piece_ids, named_ids, state_schema, state_version, value, member)
    SELECT $1, $2, $3, :namespace, :checkpoint_id, :task_id, f.idx, :task_path, f.channel, :status, :now,
      :key_version, f.piece_ids, f.named_ids, :state_schema::text, :state_version::int,
        f.value, f.member
    FROM fresh f WHERE f.replaces IS NULL
    ON CONFLICT DO NOTHING
    RETURNING 1
), thread AS (
    UPDATE stateroom.threads SET seal = :thread_seal
    WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
), head AS (
    UPDATE stateroom.heads SET sequence = :sequence, seal = :head_seal
    WHERE :head_seal::bytea IS NOT NULL AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3
      AND namespace = :namespace
      AND sequence = :sequence - 1
), checkpoint AS (
    UPDATE stateroom.checkpoints SET outcome = coalesce(:status, (
        SELECT w.status FROM stateroom.pending_writes w
        WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = :namespace
          AND w.checkpoint_id = :checkpoint_id
          AND w.status IS NOT NULL AND NOT (w.task_id = :task_id AND w.idx = ANY(:idx::int[]))
        ORDER BY w.created_at DESC, w.idx LIMIT 1))
    WHERE EXISTS (SELECT FROM fresh WHERE :status IS NOT NULL OR replaces IS NOT NULL)
      AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = :namespace
      AND checkpoint_id = :checkpoint_id
)
SELECT (SELECT count(*) FROM replaced) + (SELECT count(*) FROM added) AS written, h.head_id, h.sequence,
    CASE WHEN :is_new_thread::boolean THEN {_LEFT_OVER} ELSE false END AS left_over,
    {KEYS_HASH} AS keys_hash
FROM (VALUES (1)) one
LEFT JOIN stateroom.heads h ON h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = :namespace
""",
    (
        "key_version pieces children envelopes namespace checkpoint_id task_id "
        "task_path status now idx channels piece_ids values members replaces thread_seal sequence head_seal "
        "blob_ids named_ids state_schema state_version is_new_thread"
    ),
)

# The channels of a checkpoint's pending writes that have no version of their own.
UNVERSIONED_CHANNELS = """
SELECT DISTINCT channel FROM stateroom.pending_writes
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4 AND checkpoint_id = $5
  AND state_schema IS NULL
"""

WRITE_COLUMNS = (
    "thread_id",
    "namespace",
    "checkpoint_id",
    "task_id",
    "idx",
    "task_path",
    "channel",
    "status",
    "created_at",
    "piece_ids",
    "named_ids",
    "state_schema",
    "state_version",
    "value",
    "member",
    "key_version",
)


def _unpacked(column: str) -> str:
    """The piece ids in a packed column, as rows."""
    return (
        f"SELECT substring({column} FROM 1 + 17 * n FOR 17) AS piece_id"
        f" FROM generate_series(0, length({column}) / 17 - 1) n"
    )


# A whole load: the checkpoint, its namespace's head, its pending writes and every piece both name directly. Columns
# of many rows come back as parallel arrays, so that it is one row of one statement.
LOAD = f"""
WITH target AS MATERIALIZED (
    SELECT h.head_id AS at_head_id, h.sequence AS at_sequence, h.seal AS at_head_seal,
        t.seal AS at_thread_seal, t.created_at AS at_thread_created_at, t.tier AS at_tier, c.*,
        coalesce({_NEWEST.format(namespace="$4")} > h.head_id, false) AS at_newer
    FROM stateroom.heads h
    LEFT JOIN stateroom.threads t
        ON t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3
    LEFT JOIN stateroom.checkpoints c
        ON c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.namespace = $4
        AND c.checkpoint_id = CASE WHEN $5::text IS NULL THEN h.head_id ELSE $5 END
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $4
), written AS MATERIALIZED (
    SELECT w.* FROM stateroom.pending_writes w
    WHERE $6 AND w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = $4
      AND w.checkpoint_id = (SELECT checkpoint_id FROM target)
), named AS (
    SELECT u.piece_id FROM target, LATERAL ({_unpacked("target.piece_ids")}) u WHERE $6
    UNION
    SELECT u.piece_id FROM written, LATERAL ({_unpacked("written.piece_ids")}) u
)
SELECT {_ROW}, at_head_id, at_sequence, at_head_seal, at_thread_seal, at_thread_created_at, at_tier, at_newer,
    (SELECT true FROM stateroom.checkpoints a
     WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.thread_id = $3 AND a.namespace = $4
       AND a.checkpoint_id = target.parent_id LIMIT 1) AS at_parent,
    {KEYS_HASH} AS keys_hash,
    writes.*, pieces.*
FROM target
LEFT JOIN LATERAL (
    SELECT {", ".join(f"array_agg(w.{c} ORDER BY w.task_path, w.task_id, w.idx) AS w_{c}" for c in WRITE_COLUMNS)}
    FROM written w) writes ON true
LEFT JOIN LATERAL (
    SELECT array_agg(c.piece_id) AS p_piece_id, array_agg(c.children) AS p_children,
        array_agg(c.named_ids) AS p_named_ids, array_agg(c.envelope) AS p_envelope,
        array_agg(c.key_version) AS p_key_version
    FROM stateroom.chunks c
    WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3
      AND c.piece_id = ANY(ARRAY(SELECT piece_id FROM named))) pieces ON true
"""

# Do nothing, once nobody holds a lock that a save would wait for; fail if that takes long.
WAIT_AS_SAVES = """
SET LOCAL lock_timeout = '1s';
LOCK TABLE stateroom.threads, stateroom.heads, stateroom.checkpoints, stateroom.chunks, stateroom.pending_writes
    IN ROW EXCLUSIVE MODE
"""

# As LOAD, as a transaction of its own (revision a34) that binds its scope, only reads, and ends with its statement: one
# round trip. Of a checkpoint that is not the head it has the members of all pending writes of the thread, too.
LOAD_AT_ONCE = "SELECT * FROM stateroom.load_checkpoint_4($1, $2, $3, $4, $5, $6)"

CHUNKS = """
SELECT piece_id, children, named_ids, envelope, key_version FROM stateroom.chunks
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND piece_id = ANY($4::bytea[])
"""

# Which of these pieces the thread has under this key version, kept from a prune until the transaction ends.
PRESENT = """
SELECT piece_id FROM stateroom.chunks
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND piece_id = ANY($4::bytea[]) AND key_version = $5
FOR KEY SHARE
"""

# A namespace's head, and its newest checkpoint, which must be it.
HEAD_AND_NEWEST = f"""
SELECT {_NEWEST.format(namespace="$4")} AS newest_id, (SELECT h.head_id FROM stateroom.heads h
     WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $4) AS head_id
"""

WRITES_OF = f"""
SELECT {", ".join(WRITE_COLUMNS)} FROM stateroom.pending_writes
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4 AND checkpoint_id = ANY($5::text[])
  AND ($6::text[] IS NULL OR channel = ANY($6)) AND ($7::text IS NULL OR task_id = $7)
ORDER BY checkpoint_id, task_path, task_id, idx
"""


def history_wanted() -> str:
    """What a listing asks of a row ``c``; the last three are where it goes on.

    The first condition is true of every checkpoint, and that of the index that listings use and nobody else may: the
    newest checkpoint of a namespace is found by the primary key, and not by reading a subject's from the newest on.
    """
    return """c.created_at >= '-infinity' AND c.tenant_id = $1 AND c.subject_id = $2
  AND ($3::text IS NULL OR c.thread_id = $3)
  AND ($4::text IS NULL OR c.namespace = $4)
  AND ($5::text IS NULL OR c.checkpoint_id < $5)
  AND ($6::text IS NULL OR coalesce(c.outcome, c.status) = $6)
  AND ($7::int IS NULL OR c.step = $7)
  AND ($8::text IS NULL OR c.run_id = $8)
  AND ($9::text IS NULL OR c.source = $9)
  AND ($10::text IS NULL OR c.agent = $10)
  AND ($11::timestamptz IS NULL OR c.created_at >= $11)
  AND ($12::timestamptz IS NULL OR c.created_at < $12)
  AND ($13::text IS NULL OR (c.checkpoint_id, c.thread_id, c.namespace) < ($13, $14::text, $15::text))"""


# A page of history, newest first. Writes are fetched apart, in the same snapshot.
HISTORY = f"""
SELECT {_ROW} FROM stateroom.checkpoints c
WHERE {history_wanted()}
ORDER BY checkpoint_id DESC, thread_id DESC, namespace DESC
LIMIT $16
"""

# Which of these checkpoints are stored: parents of a page, of which a prune may have removed some.
STORED_OF = """
SELECT p.thread_id, p.namespace, p.checkpoint_id
FROM unnest($3::text[], $4::text[], $5::text[]) AS p(thread_id, namespace, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT FROM stateroom.checkpoints c
    WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = p.thread_id AND c.namespace = p.namespace
      AND c.checkpoint_id = p.checkpoint_id
    LIMIT 1) stored
"""

# The seals of some threads: whether their checkpoints on a page of history can be opened.
THREAD_SEALS = """
SELECT thread_id, created_at, seal FROM stateroom.threads
WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = ANY($3::text[])
"""


def _tenant_listing(also: str) -> str:
    return f"""
SELECT subject_id, thread_id, namespace, checkpoint_id,
    (SELECT p.checkpoint_id FROM stateroom.checkpoints p
     WHERE p.tenant_id = $1 AND p.subject_id = c.subject_id AND p.thread_id = c.thread_id
       AND p.namespace = c.namespace AND p.checkpoint_id = c.parent_id LIMIT 1) AS parent_id,
    step, status, outcome, source, agent, run_id, model,
    state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at
FROM stateroom.checkpoints c
WHERE tenant_id = $1 AND {also}
  AND ($2::text IS NULL OR namespace = $2)
  AND ($3::text IS NULL OR checkpoint_id < $3)
  AND ($4::text IS NULL OR coalesce(outcome, status) = $4)
  AND ($5::int IS NULL OR step = $5)
  AND ($6::text IS NULL OR run_id = $6)
  AND ($7::text IS NULL OR source = $7)
  AND ($8::text IS NULL OR agent = $8)
  AND ($9::timestamptz IS NULL OR created_at >= $9)
  AND ($10::timestamptz IS NULL OR created_at < $10)
  AND ($11::timestamptz IS NULL
       OR (created_at, subject_id, thread_id, namespace, checkpoint_id) < ($11, $12::text, $13::text, $14::text,
           $15::text))
ORDER BY created_at DESC, subject_id DESC, thread_id DESC, namespace DESC, checkpoint_id DESC
LIMIT $16
"""


# Clear columns over all subjects of a tenant, newest first. What operators ask about most, failed and waiting steps,
# is what the partial index checkpoints_troubled holds; its condition has to be repeated literally to be used.
TENANT_LISTING = _tenant_listing("true")
TENANT_LISTING_TROUBLED = _tenant_listing("(status IN ('failed', 'waiting') OR outcome IS NOT NULL)")

# A stretch of a checkpoint's ancestors, nearest first. Parents come from clear columns, which the seal of each
# manifest binds; the depth bound ends a cycle that somebody might have edited in. LATERAL with its LIMIT makes every
# step one look-up by primary key: as a plain join, a subject without statistics was read whole at each step.
ANCESTORS = f"""
WITH RECURSIVE line AS (
    SELECT 1 AS depth, c.* FROM stateroom.checkpoints c
    WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.namespace = $4 AND c.checkpoint_id = $5
    UNION ALL
    SELECT line.depth + 1, c.* FROM line
    CROSS JOIN LATERAL (
        SELECT * FROM stateroom.checkpoints p
        WHERE p.tenant_id = $1 AND p.subject_id = $2 AND p.thread_id = $3 AND p.namespace = $4
          AND p.checkpoint_id = line.parent_id
        LIMIT 1) c
    WHERE line.depth < $6
)
SELECT {_ROW} FROM line ORDER BY depth
"""

CLAIM_IDEMPOTENCY = """
INSERT INTO stateroom.idempotency (tenant_id, subject_id, idempotency_key, request_digest, created_at)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING 1
"""

READ_IDEMPOTENCY = """
SELECT request_digest, receipt, created_at FROM stateroom.idempotency
WHERE tenant_id = $1 AND subject_id = $2 AND idempotency_key = $3
"""

SETTLE_IDEMPOTENCY = """
UPDATE stateroom.idempotency SET receipt = $4
WHERE tenant_id = $1 AND subject_id = $2 AND idempotency_key = $3
"""
