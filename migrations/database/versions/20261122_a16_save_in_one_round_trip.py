"""Saves and pending writes in one round trip: functions that bind their scope, write, and commit with their statement.

Every round trip costs the gateway time and makes the caller wait, and binding and committing were two of three. A
function runs with its caller's rights under row-level security, which it binds as `storage.postgres.unit_of_work` does:
by literal ``SET LOCAL``, so that it holds for this transaction only. It expands only: the previous release does not
call it. A later release that needs another one makes it under another name.
"""

from alembic import op

revision = "a16"
down_revision = "a15"
branch_labels = None
depends_on = None

BIND = """EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L', $1, $2, '', '');"""
STALE = "RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';"
# In a statement of its own, whose snapshot is newer than the locks: the key may have been destroyed while this waited.
REFUSE_DESTROYED_KEY = f"""IF NOT EXISTS (SELECT FROM stateroom.subject_keys k
        WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.purpose = 'data' AND k.key_version = $4
          AND k.state = 'active') THEN
        {STALE}
    END IF;"""
# The parameters are those of `storage.postgres.checkpoints.SAVE_ON` and PUT_WRITES_ON, which say what each may rely on.
SAVE_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text, text, text,
    integer, bigint, bigint, bigint, timestamptz, bytea, bytea, text, bigint, bytea, text, bytea, boolean, bytea, bytea
"""
SAVE_ON = f"""
CREATE FUNCTION stateroom.save_on({SAVE_PARAMETERS}) RETURNS void LANGUAGE plpgsql AS $function$
DECLARE
    written bigint;
BEGIN
    {BIND}
    WITH thread AS (
        UPDATE stateroom.threads t SET
            activity = t.activity + 1, updated_at = $22,
            agent = CASE WHEN $14 <> t.agent AND EXISTS (SELECT FROM stateroom.retention r
                WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.target = t.agent AND r.legal_hold) THEN t.agent
                ELSE coalesce($14, t.agent) END,
            status = coalesce($28, t.status), searchable = NULL
        WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $29
          AND t.strict = $30
          AND EXISTS (SELECT FROM stateroom.checkpoints b WHERE b.tenant_id = $1 AND b.subject_id = $2
            AND b.thread_id = $3 AND b.namespace = $8 AND b.checkpoint_id = $10)
          AND NOT EXISTS (SELECT FROM stateroom.pending_writes w WHERE w.tenant_id = $1 AND w.subject_id = $2
            AND w.thread_id = $3 AND w.namespace = $8 AND w.checkpoint_id = $9)
        RETURNING 1
    ), chunk AS (
        INSERT INTO stateroom.chunks AS c (tenant_id, subject_id, thread_id, piece_id, key_version, children, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.envelope
        FROM thread, unnest($5::bytea[], $6::bytea[], $7::bytea[]) AS p(piece_id, children, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, envelope = excluded.envelope, named_ids = NULL
            WHERE c.key_version <> excluded.key_version
    ), checkpoint AS (
        INSERT INTO stateroom.checkpoints
            (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, source, agent, run_id,
             model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, key_version,
             piece_ids, named_ids, manifest)
        SELECT $1, $2, $3, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $4, $23, $31, $24
        FROM thread
        ON CONFLICT DO NOTHING
        RETURNING 1
    ), head AS (
        UPDATE stateroom.heads h SET head_id = $25, sequence = $26, seal = $27 FROM thread
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.sequence = $26 - 1 AND h.seal = $32
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM checkpoint) + (SELECT count(*) FROM head) INTO written;
    IF written <> 2 THEN
        {STALE}
    END IF;
    {REFUSE_DESTROYED_KEY}
END
$function$
"""

WRITES_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, text, text, timestamptz, integer[], text[],
    bytea[], bytea[], bytea[], text, integer, text, bytea, bytea, bigint, bytea, bytea
"""
PUT_WRITES_ON = f"""
CREATE FUNCTION stateroom.put_writes_on({WRITES_PARAMETERS}) RETURNS void LANGUAGE plpgsql AS $function$
DECLARE
    written bigint;
    moved bigint;
BEGIN
    {BIND}
    WITH thread AS (
        UPDATE stateroom.threads t SET
            activity = t.activity + 1, updated_at = $13, status = coalesce($21, t.status), seal = $23
        WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $22
        RETURNING 1
    ), chunk AS (
        INSERT INTO stateroom.chunks AS c (tenant_id, subject_id, thread_id, piece_id, key_version, children, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.envelope
        FROM thread, unnest($5, $6, $7) AS p(piece_id, children, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, envelope = excluded.envelope, named_ids = NULL
            WHERE c.key_version <> excluded.key_version
    ), added AS (
        INSERT INTO stateroom.pending_writes
            (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status,
             created_at, key_version, piece_ids, state_schema, state_version, value, member)
        SELECT $1, $2, $3, $8, $9, $10, p.idx, $11, p.channel, $12, $13, $4, p.piece_ids, $19, $20, p.value, p.member
        FROM thread, unnest($14, $15, $16, $17, $18) AS p(idx, channel, piece_ids, value, member)
        ON CONFLICT DO NOTHING
        RETURNING 1
    ), head AS (
        UPDATE stateroom.heads h SET sequence = $24, seal = $26 FROM thread
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.sequence = $24 - 1 AND h.seal = $25
        RETURNING 1
    ), checkpoint AS (
        UPDATE stateroom.checkpoints c SET outcome = $12 FROM thread
        WHERE $12 IS NOT NULL AND c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.namespace = $8
          AND c.checkpoint_id = $9
    )
    SELECT (SELECT count(*) FROM added), (SELECT count(*) FROM head) INTO written, moved;
    IF written <> cardinality($14) OR moved <> 1 THEN
        {STALE}
    END IF;
    {REFUSE_DESTROYED_KEY}
END
$function$
"""
FUNCTIONS = {
    f"stateroom.save_on({SAVE_PARAMETERS})": SAVE_ON,
    f"stateroom.put_writes_on({WRITES_PARAMETERS})": PUT_WRITES_ON,
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
