-- Everything a load needs, in one statement and hence at one moment; rows that belong together come as parallel arrays.
--
-- The parameters are those of `storage.statements.threads.checkpoints.LOAD`, whose columns it has. Its own are the members (m_)
-- of all of a thread's pending writes, where the checkpoint is not the head: only the thread's seal counts its writes
-- then. It binds its scope as the function that saves does, and sets its transaction to read only.
--
-- Each of the thread and the checkpoint is looked up by itself, which a plan without statistics does not turn into a
-- join; by CASE, because row-level security keeps the index from what coalesce() compares with; and without sequential
-- scans. The statement takes four times as long to plan as to run, and once `pending_writes` has statistics, PostgreSQL
-- would plan each call, because a generic plan seems to cost more by writes behind a condition that is nearly always
-- false: all its scans are by primary key, whatever the parameters are. The newest checkpoint is found by order and not
-- by comparison, for row-level security keeps the index from what is compared with it.
CREATE FUNCTION stateroom.load_checkpoint_5(uuid, text, text, text, text, boolean) RETURNS TABLE (
    thread_id text, namespace text, checkpoint_id text, parent_id text, step integer, status text, outcome text,
    source text, agent text, run_id text, model text, state_schema text, state_version integer, input_tokens bigint,
    output_tokens bigint, cost_micros bigint, created_at timestamptz, piece_ids bytea, named_ids bytea,
    manifest bytea, key_version integer, at_head_id text, at_sequence bigint, at_head_seal bytea,
    at_thread_seal bytea, at_thread_created_at timestamptz, at_tier text, at_cold bytea, at_newer boolean, at_parent boolean,
    keys_hash bigint, w_thread_id text[], w_namespace text[], w_checkpoint_id text[], w_task_id text[],
    w_idx integer[], w_task_path text[], w_channel text[], w_status text[], w_created_at timestamptz[],
    w_piece_ids bytea[], w_named_ids bytea[], w_state_schema text[], w_state_version integer[], w_value bytea[],
    w_member bytea[], w_key_version integer[], p_piece_id bytea[], p_children bytea[], p_named_ids bytea[],
    p_envelope bytea[], p_key_version integer[], m_namespace text[], m_checkpoint_id text[], m_task_id text[],
    m_idx integer[], m_member bytea[]
) LANGUAGE plpgsql ROWS 1 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
BEGIN
    EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L;'
        ' SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L',
        $1, $2, '', '');
    RETURN QUERY
    WITH target AS MATERIALIZED (
        SELECT h.head_id AS at_head_id, h.sequence AS at_sequence, h.seal AS at_head_seal, t.*, c.*,
            coalesce(n.newest_id > h.head_id, false) AS at_newer
        FROM stateroom.heads h
        LEFT JOIN LATERAL (
            SELECT seal AS at_thread_seal, created_at AS at_thread_created_at, tier AS at_tier, cold AS at_cold
            FROM stateroom.threads
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
            LIMIT 1) t ON true
        LEFT JOIN LATERAL (
            SELECT thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent, run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, piece_ids, named_ids, manifest, key_version
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
    SELECT thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent, run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, piece_ids, named_ids, manifest, key_version, at_head_id, at_sequence, at_head_seal, at_thread_seal, at_thread_created_at, at_tier, at_cold,
        at_newer,
        (SELECT true FROM stateroom.checkpoints a
         WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.thread_id = $3 AND a.namespace = $4
           AND a.checkpoint_id = target.parent_id LIMIT 1) AS at_parent,
        (
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0)) AS keys_hash,
        writes.*, pieces.*, members.*
    FROM target
    LEFT JOIN LATERAL (
        SELECT array_agg(w.thread_id ORDER BY w.task_path, w.task_id, w.idx) AS w_thread_id, array_agg(w.namespace ORDER BY w.task_path, w.task_id, w.idx) AS w_namespace, array_agg(w.checkpoint_id ORDER BY w.task_path, w.task_id, w.idx) AS w_checkpoint_id, array_agg(w.task_id ORDER BY w.task_path, w.task_id, w.idx) AS w_task_id, array_agg(w.idx ORDER BY w.task_path, w.task_id, w.idx) AS w_idx, array_agg(w.task_path ORDER BY w.task_path, w.task_id, w.idx) AS w_task_path, array_agg(w.channel ORDER BY w.task_path, w.task_id, w.idx) AS w_channel, array_agg(w.status ORDER BY w.task_path, w.task_id, w.idx) AS w_status, array_agg(w.created_at ORDER BY w.task_path, w.task_id, w.idx) AS w_created_at, array_agg(w.piece_ids ORDER BY w.task_path, w.task_id, w.idx) AS w_piece_ids, array_agg(w.named_ids ORDER BY w.task_path, w.task_id, w.idx) AS w_named_ids, array_agg(w.state_schema ORDER BY w.task_path, w.task_id, w.idx) AS w_state_schema, array_agg(w.state_version ORDER BY w.task_path, w.task_id, w.idx) AS w_state_version, array_agg(w.value ORDER BY w.task_path, w.task_id, w.idx) AS w_value, array_agg(w.member ORDER BY w.task_path, w.task_id, w.idx) AS w_member, array_agg(w.key_version ORDER BY w.task_path, w.task_id, w.idx) AS w_key_version FROM written w) writes ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(p.piece_id) AS p_piece_id, array_agg(p.children) AS p_children, array_agg(p.named_ids) AS p_named_ids, array_agg(p.envelope) AS p_envelope, array_agg(p.key_version) AS p_key_version
        FROM stateroom.chunks p
        WHERE p.tenant_id = $1 AND p.subject_id = $2 AND p.thread_id = $3
          AND p.piece_id = ANY(ARRAY(
            SELECT substring(target.piece_ids FROM 1 + 17 * n FOR 17)
            FROM generate_series(0, length(target.piece_ids) / 17 - 1) n WHERE $6
            UNION ALL
            SELECT substring(w.piece_ids FROM 1 + 17 * n FOR 17)
            FROM written w, generate_series(0, length(w.piece_ids) / 17 - 1) n))) pieces ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(m.namespace) AS m_namespace, array_agg(m.checkpoint_id) AS m_checkpoint_id, array_agg(m.task_id) AS m_task_id, array_agg(m.idx) AS m_idx, array_agg(m.member) AS m_member
        FROM stateroom.pending_writes m
        WHERE $6 AND target.checkpoint_id <> target.at_head_id
          AND m.tenant_id = $1 AND m.subject_id = $2 AND m.thread_id = $3) members ON true;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.load_checkpoint_5 FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.load_checkpoint_5 TO gw_app;
