"""Pending writes that come before their checkpoint, and its save, without reading: functions that also take these.

A graph puts the writes of a task while the checkpoint they belong to is still on its way. Those of revision a17 knew
such writes only as a reason to begin by reading, which took eight of the twelve round trips of a turn.

It expands only: the previous release calls the functions of a17, which stay.
"""

from alembic import op

revision = "a19"
down_revision = "a18"
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
# The new checkpoint is selected beside its parent: without that one, nothing is inserted. While the thread's seal is
# what it was, the writes that came before the checkpoint are those that were counted ($33).
SAVE_ON = f"""
CREATE FUNCTION stateroom.save_on_3({SAVE_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
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
    FROM stateroom.checkpoints b
    WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.thread_id = $3 AND b.namespace = $8 AND b.checkpoint_id = $10
    ON CONFLICT DO NOTHING;
    {STALE_UNLESS_FOUND}
    UPDATE stateroom.heads h SET head_id = $25, sequence = $26, seal = $27
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
      AND h.sequence = $26 - 1 AND h.seal = $32;
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
CREATE FUNCTION stateroom.put_writes_on_3({WRITES_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
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
          AND h.sequence = $24 - 1 AND h.seal = $25;
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
FUNCTIONS = {
    f"stateroom.save_on_3({SAVE_PARAMETERS})": SAVE_ON,
    f"stateroom.put_writes_on_3({WRITES_PARAMETERS})": PUT_WRITES_ON,
}


def upgrade() -> None:
    """Add the functions."""
    for function, definition in FUNCTIONS.items():
        op.execute(definition)
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO gw_app")


def downgrade() -> None:
    """Drop them."""
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
