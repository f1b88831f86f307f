"""Saves and loads that depend on the keys as they were opened, and loads that name the key versions of pieces.

A process keeps a subject's open keys for minutes and asked, with each save and load, for the state of one of their
rows. Other rows, those of the other purpose and those of the tenant's keys could be edited or removed, and nobody told
before the keys were opened again. Now all of them go into one number: the rows that are not destroyed, hashed and
summed by XOR, so that no order matters. Whoever opened the keys knows the number; a save depends on it, and a load
gives it.

How a tenant's key is wrapped is left out: exchanging a root key would make every process open every subject again.

It expands only: the previous release calls the functions of a20, a30 and a32, which stay.
"""

from alembic import op

revision = "a34"
down_revision = "a33"
branch_labels = None
depends_on = None

# As `storage.postgres.keys.KEYS_HASH`: this text and that one give the same number.
KEYS_HASH = """(
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0))"""

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
# Asked last, in a snapshot newer than the locks: a key may have been destroyed while this waited.
KEYS_ARE_OTHERS = f"{KEYS_HASH} <> {{parameter}}"
SAVE_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text, text, text,
    integer, bigint, bigint, bigint, timestamptz, bytea, bytea, text, bigint, bytea, text, bytea, boolean, bytea, bytea,
    bigint, text[], bigint
"""
# As `save_on_5` of revision a32, but for the keys ($35).
SAVE_ON = f"""
CREATE FUNCTION stateroom.save_on_6({SAVE_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
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
      AND t.strict = $30
      AND ($34 IS NULL OR $34 = array_prepend(coalesce(t.agent, ''), (
        SELECT array_agg(p::text ORDER BY p.agent) FROM stateroom.save_policies p
        WHERE p.tenant_id = $1 AND p.agent IN ('', t.agent, $14))));
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
      OR {KEYS_ARE_OTHERS.format(parameter="$35")} THEN
        {STALE}
    END IF;
END
$function$
"""

WRITES_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, text, text, timestamptz, integer[], text[],
    bytea[], bytea[], bytea[], text, integer, text, bytea, bytea, bigint, bytea, bytea, bigint
"""
# As `put_writes_on_4` of revision a20, but for the keys ($27). Without a new seal of the head ($26), the writes are of
# a checkpoint that comes after it: the head stays what it was.
PUT_WRITES_ON = f"""
CREATE FUNCTION stateroom.put_writes_on_5({WRITES_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
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
    IF {KEYS_ARE_OTHERS.format(parameter="$27")} THEN
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
    "manifest": "bytea", "key_version": "integer",
}  # fmt: skip
STANDING = {
    "at_head_id": "text", "at_sequence": "bigint", "at_head_seal": "bytea", "at_thread_seal": "bytea",
    "at_thread_created_at": "timestamptz", "at_tier": "text", "at_newer": "boolean", "at_parent": "boolean",
    "keys_hash": "bigint",
}  # fmt: skip
WRITE = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer",
    "task_path": "text", "channel": "text", "status": "text", "created_at": "timestamptz", "piece_ids": "bytea",
    "named_ids": "bytea", "state_schema": "text", "state_version": "integer", "value": "bytea", "member": "bytea",
    "key_version": "integer",
}  # fmt: skip
PIECE = {
    "piece_id": "bytea", "children": "bytea", "named_ids": "bytea", "envelope": "bytea", "key_version": "integer",
}  # fmt: skip
MEMBER = {"namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer", "member": "bytea"}


def _arrays(columns: dict[str, str], letter: str, order: str = "") -> str:
    return ", ".join(f"array_agg({letter}.{name}{order}) AS {letter}_{name}" for name in columns)


LOAD_PARAMETERS = "uuid, text, text, text, text, boolean"
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
# As `load_checkpoint_3` of revision a30, but for the keys, and the key versions of pieces.
LOAD = f"""
CREATE FUNCTION stateroom.load_checkpoint_4({LOAD_PARAMETERS}) RETURNS TABLE ({LOAD_RESULT}) LANGUAGE plpgsql ROWS 1
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
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
        (SELECT true FROM stateroom.checkpoints a
         WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.thread_id = $3 AND a.namespace = $4
           AND a.checkpoint_id = target.parent_id LIMIT 1) AS at_parent,
        {KEYS_HASH} AS keys_hash,
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
    f"stateroom.save_on_6({SAVE_PARAMETERS})": SAVE_ON,
    f"stateroom.put_writes_on_5({WRITES_PARAMETERS})": PUT_WRITES_ON,
    f"stateroom.load_checkpoint_4({LOAD_PARAMETERS})": LOAD,
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
