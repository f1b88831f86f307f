"""Heads that are what they say: loads and saves that look whether the newest checkpoint is the head.

A row of `heads` that was put back from outside authenticates as well as it did before, and the newer checkpoint beside
it was not looked for. Now a load tells whether the newest checkpoint of the namespace is newer than the head, and a
save begins at the newest instead of at the parent that it was told of, which has to be it. Beside the head's seal, its
id must be what was remembered: saves, and pending writes of the head, wrote it anew whatever had been made of it.

The newest is found by order and not by comparison: row-level security keeps the index from what is compared with it.
The index of a subject's checkpoints by age has that order, too, and the planner, which took it for as good as the
primary key, read all newer checkpoints of other threads. It becomes partial, as those of `threads` in revision a17, by
a condition that is always true and that only listings state.

It expands only: the previous release calls the functions of a18 and a19, which stay; its listings of a subject sort
while both releases run. Building the index holds up writers, for about a second where there are a million checkpoints.
"""

from alembic import op

revision = "a20"
down_revision = "a19"
branch_labels = None
depends_on = None

BIND = """EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L', $1, $2, '', '');"""
STALE = "RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';"
STALE_UNLESS_FOUND = f"""IF NOT FOUND THEN
        {STALE}
    END IF;"""
# Most pending writes and many small states have no chunk at all.
PUT_CHUNKS = """IF cardinality($5) > 0 THEN
        INSERT INTO stateroom.chunks AS c (tenant_id, subject_id, thread_id, piece_id, key_version, children, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.envelope
        FROM unnest($5, $6, $7) AS p(piece_id, children, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, envelope = excluded.envelope, named_ids = NULL
            WHERE c.key_version <> excluded.key_version;
    END IF;"""
# Asked last, in a snapshot newer than the locks: the key may have been destroyed while this waited.
KEY_IS_ACTIVE = """EXISTS (SELECT FROM stateroom.subject_keys k
        WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.purpose = 'data' AND k.key_version = $4
          AND k.state = 'active')"""
# The parameters are those of `storage.postgres.checkpoints.SAVE_ON` and PUT_WRITES_ON, which say what each may rely on.
SAVE_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text, text, text,
    integer, bigint, bigint, bigint, timestamptz, bytea, bytea, text, bigint, bytea, text, bytea, boolean, bytea, bytea,
    bigint
"""
# The new checkpoint is selected beside the newest one: if that is not its parent, nothing is inserted. While the
# thread's seal is what it was, the writes that came before the checkpoint are those that were counted ($33).
SAVE_ON = f"""
CREATE FUNCTION stateroom.save_on_4({SAVE_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
AS $function$
BEGIN
    {BIND}
    UPDATE stateroom.threads t SET
        activity = t.activity + 1, updated_at = $22,
        agent = CASE WHEN $14 <> t.agent AND EXISTS (SELECT FROM stateroom.retention r
            WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.target = t.agent AND r.legal_hold) THEN t.agent
            ELSE coalesce($14, t.agent) END,
        status = coalesce($28, t.status), searchable = NULL
    WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $29
      AND t.strict = $30;
    {STALE_UNLESS_FOUND}
    {PUT_CHUNKS}
    INSERT INTO stateroom.checkpoints
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, source, agent, run_id,
         model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, key_version,
         piece_ids, named_ids, manifest)
    SELECT $1, $2, $3, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $4, $23, $31, $24
    FROM (
        SELECT n.checkpoint_id FROM stateroom.checkpoints n
        WHERE n.tenant_id = $1 AND n.subject_id = $2 AND n.thread_id = $3 AND n.namespace = $8
        ORDER BY n.checkpoint_id DESC LIMIT 1) b
    WHERE b.checkpoint_id = $10
    ON CONFLICT DO NOTHING;
    {STALE_UNLESS_FOUND}
    UPDATE stateroom.heads h SET head_id = $25, sequence = $26, seal = $27
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
      AND h.head_id = $10 AND h.sequence = $26 - 1 AND h.seal = $32;
    {STALE_UNLESS_FOUND}
    IF (SELECT count(*) FROM stateroom.pending_writes w WHERE w.tenant_id = $1 AND w.subject_id = $2
        AND w.thread_id = $3 AND w.namespace = $8 AND w.checkpoint_id = $9) <> $33
      OR NOT {KEY_IS_ACTIVE} THEN
        {STALE}
    END IF;
END
$function$
"""

WRITES_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, text, text, timestamptz, integer[], text[],
    bytea[], bytea[], bytea[], text, integer, text, bytea, bytea, bigint, bytea, bytea
"""
# Without a new seal of the head ($26), the writes are of a checkpoint that comes after it: the head stays what it was.
PUT_WRITES_ON = f"""
CREATE FUNCTION stateroom.put_writes_on_4({WRITES_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
AS $function$
DECLARE
    written bigint;
BEGIN
    {BIND}
    UPDATE stateroom.threads t SET
        activity = t.activity + 1, updated_at = $13, status = coalesce($21, t.status), seal = $23
    WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $22;
    {STALE_UNLESS_FOUND}
    {PUT_CHUNKS}
    INSERT INTO stateroom.pending_writes
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status,
         created_at, key_version, piece_ids, state_schema, state_version, value, member)
    SELECT $1, $2, $3, $8, $9, $10, p.idx, $11, p.channel, $12, $13, $4, p.piece_ids, $19, $20, p.value, p.member
    FROM unnest($14, $15, $16, $17, $18) AS p(idx, channel, piece_ids, value, member)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> cardinality($14) THEN
        {STALE}
    END IF;
    IF $26 IS NULL THEN
        PERFORM FROM stateroom.heads h
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.sequence = $24 AND h.seal = $25;
    ELSE
        UPDATE stateroom.heads h SET sequence = $24, seal = $26
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.head_id = $9 AND h.sequence = $24 - 1 AND h.seal = $25;
    END IF;
    {STALE_UNLESS_FOUND}
    IF $12 IS NOT NULL THEN
        UPDATE stateroom.checkpoints c SET outcome = $12
        WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.namespace = $8
          AND c.checkpoint_id = $9;
    END IF;
    IF NOT {KEY_IS_ACTIVE} THEN
        {STALE}
    END IF;
END
$function$
"""

BIND_READER = """EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L;'
        ' SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L',
        $1, $2, '', '');"""
ROW = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "parent_id": "text", "step": "integer",
    "status": "text", "outcome": "text", "source": "text", "agent": "text", "run_id": "text", "model": "text",
    "state_schema": "text", "state_version": "integer", "input_tokens": "bigint", "output_tokens": "bigint",
    "cost_micros": "bigint", "created_at": "timestamptz", "piece_ids": "bytea", "named_ids": "bytea",
    "manifest": "bytea",
}  # fmt: skip
STANDING = {
    "at_head_id": "text", "at_sequence": "bigint", "at_head_seal": "bytea", "at_thread_seal": "bytea",
    "at_thread_created_at": "timestamptz", "at_tier": "text", "at_newer": "boolean", "key_state": "text",
}  # fmt: skip
WRITE = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer",
    "task_path": "text", "channel": "text", "status": "text", "created_at": "timestamptz", "piece_ids": "bytea",
    "named_ids": "bytea", "state_schema": "text", "state_version": "integer", "value": "bytea", "member": "bytea",
}  # fmt: skip
PIECE = {"piece_id": "bytea", "children": "bytea", "named_ids": "bytea", "envelope": "bytea"}
MEMBER = {"namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer", "member": "bytea"}


def _arrays(columns: dict[str, str], letter: str, order: str = "") -> str:
    return ", ".join(f"array_agg({letter}.{name}{order}) AS {letter}_{name}" for name in columns)


LOAD_PARAMETERS = "uuid, text, text, text, text, boolean, integer"
LOAD_RESULT = ", ".join(
    f"{name} {kind}"
    for name, kind in (
        *ROW.items(),
        *STANDING.items(),
        *((f"{letter}_{name}", f"{kind}[]")
          for letter, columns in (("w", WRITE), ("p", PIECE), ("m", MEMBER))
          for name, kind in columns.items()),
    )
)  # fmt: skip
# The parameters are those of `storage.postgres.checkpoints.LOAD`, whose columns it has. Its own are the members (m_) of
# all of a thread's pending writes, where the checkpoint is not the head: only the thread's seal counts its writes then.
# Each of the thread and the checkpoint is looked up by itself, which a plan without statistics does not turn into a
# join; by CASE, because row-level security keeps the index from what coalesce() compares with; and without sequential
# scans, because plans that were made while tables were small are kept (revision a17).
LOAD = f"""
CREATE FUNCTION stateroom.load_checkpoint_2({LOAD_PARAMETERS}) RETURNS TABLE ({LOAD_RESULT}) LANGUAGE plpgsql ROWS 1
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    {BIND_READER}
    RETURN QUERY
    WITH target AS MATERIALIZED (
        SELECT h.head_id AS at_head_id, h.sequence AS at_sequence, h.seal AS at_head_seal, t.*, c.*,
            coalesce(n.newest_id > h.head_id, false) AS at_newer
        FROM stateroom.heads h
        LEFT JOIN LATERAL (
            SELECT seal AS at_thread_seal, created_at AS at_thread_created_at, tier AS at_tier
            FROM stateroom.threads
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
            LIMIT 1) t ON true
        LEFT JOIN LATERAL (
            SELECT {", ".join(ROW)}
            FROM stateroom.checkpoints
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
              AND checkpoint_id = CASE WHEN $5 IS NULL THEN h.head_id ELSE $5 END
            LIMIT 1) c ON true
        LEFT JOIN LATERAL (
            SELECT checkpoint_id AS newest_id
            FROM stateroom.checkpoints
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
            ORDER BY checkpoint_id DESC LIMIT 1) n ON true
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $4
    ), written AS MATERIALIZED (
        SELECT * FROM stateroom.pending_writes
        WHERE $6 AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
          AND checkpoint_id = (SELECT checkpoint_id FROM target)
    )
    SELECT {", ".join(ROW)}, at_head_id, at_sequence, at_head_seal, at_thread_seal, at_thread_created_at, at_tier,
        at_newer,
        (SELECT k.state FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.purpose = 'data' AND k.key_version = $7) AS key_state,
        writes.*, pieces.*, members.*
    FROM target
    LEFT JOIN LATERAL (
        SELECT {_arrays(WRITE, "w", " ORDER BY w.task_path, w.task_id, w.idx")} FROM written w) writes ON true
    LEFT JOIN LATERAL (
        SELECT {_arrays(PIECE, "p")}
        FROM stateroom.chunks p
        WHERE p.tenant_id = $1 AND p.subject_id = $2 AND p.thread_id = $3
          AND p.piece_id = ANY(ARRAY(
            SELECT substring(target.piece_ids FROM 1 + 17 * n FOR 17)
            FROM generate_series(0, length(target.piece_ids) / 17 - 1) n WHERE $6
            UNION ALL
            SELECT substring(w.piece_ids FROM 1 + 17 * n FOR 17)
            FROM written w, generate_series(0, length(w.piece_ids) / 17 - 1) n))) pieces ON true
    LEFT JOIN LATERAL (
        SELECT {_arrays(MEMBER, "m")}
        FROM stateroom.pending_writes m
        WHERE $6 AND target.checkpoint_id <> target.at_head_id
          AND m.tenant_id = $1 AND m.subject_id = $2 AND m.thread_id = $3) members ON true;
END
$function$
"""
FUNCTIONS = {
    f"stateroom.save_on_4({SAVE_PARAMETERS})": SAVE_ON,
    f"stateroom.put_writes_on_4({WRITES_PARAMETERS})": PUT_WRITES_ON,
    f"stateroom.load_checkpoint_2({LOAD_PARAMETERS})": LOAD,
}


def make_index(condition: str) -> None:
    """Make the index that listings of a subject use, in place of the one that is there."""
    op.execute("DROP INDEX stateroom.checkpoints_by_age")
    op.execute(
        "CREATE INDEX checkpoints_by_age ON stateroom.checkpoints (tenant_id, subject_id, checkpoint_id) " + condition
    )


def upgrade() -> None:
    """Make the index partial, and add the functions."""
    make_index("WHERE created_at >= '-infinity'")
    for function, definition in FUNCTIONS.items():
        op.execute(definition)
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO gw_app")


def downgrade() -> None:
    """Drop the functions, and let every statement use the index again."""
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
    make_index("")
