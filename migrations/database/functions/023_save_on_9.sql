-- As `save_on_8`, and it asks whether the caller may go on with the thread ($37: the fence of its claim): with a fence it
-- must be the thread's, whose claim is renewed; null: the thread must not ask for one. A thread on which a person is
-- asked something takes another way, because this save may answer that.
CREATE FUNCTION stateroom.save_on_9(
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text, text,
    text, integer, bigint, bigint, bigint, timestamptz, bytea, bytea, text, bigint, bytea, text, bytea, boolean,
    bytea, bytea, bigint, text[], bigint, uuid, bigint
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    newest text;
    number bigint;
    made_at timestamptz;
    moment timestamptz := clock_timestamp();
BEGIN
    EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L; SET LOCAL app.relay = %L', $1, $2, '', '', '');
    UPDATE stateroom.threads t SET
        activity = t.activity + 1, updated_at = $22,
        agent = CASE WHEN $14 <> t.agent AND EXISTS (SELECT FROM stateroom.retention r
            WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.target = t.agent AND r.legal_hold) THEN t.agent
            ELSE coalesce($14, t.agent) END,
        status = coalesce($28, t.status), searchable = NULL,
        claimed_until = CASE WHEN $37 IS NULL OR t.claimed_until IS NULL THEN t.claimed_until
            ELSE greatest(t.claimed_until, moment + make_interval(secs => t.claim_seconds)) END
    WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $29
      AND t.strict = $30 AND t.open_approvals = 0
      AND CASE WHEN $37 IS NULL THEN NOT t.claims_required ELSE t.fence = $37 END
      AND ($34 IS NULL OR $34 = array_prepend(coalesce(t.agent, ''), (
        SELECT array_agg(p::text ORDER BY p.agent) FROM stateroom.save_policies p
        WHERE p.tenant_id = $1 AND p.agent IN ('', t.agent, $14))))
    RETURNING t.activity, t.created_at INTO number, made_at;
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    IF cardinality($5) > 0 THEN
        INSERT INTO stateroom.chunks AS c (tenant_id, subject_id, thread_id, piece_id, key_version, children, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.envelope
        FROM unnest($5, $6, $7) AS p(piece_id, children, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, envelope = excluded.envelope, named_ids = NULL
            WHERE c.key_version <> excluded.key_version;
    END IF;
    SELECT n.checkpoint_id INTO newest FROM stateroom.checkpoints n
    WHERE n.tenant_id = $1 AND n.subject_id = $2 AND n.thread_id = $3 AND n.namespace = $8
    ORDER BY n.checkpoint_id DESC LIMIT 1;
    IF newest IS DISTINCT FROM $10 THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    INSERT INTO stateroom.checkpoints
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, source, agent, run_id,
         model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, key_version,
         piece_ids, named_ids, manifest)
    VALUES ($1, $2, $3, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $4, $23, $31, $24)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    UPDATE stateroom.heads h SET head_id = $25, sequence = $26, seal = $27
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
      AND h.head_id = $10 AND h.sequence = $26 - 1 AND h.seal = $32;
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    IF (SELECT count(*) FROM stateroom.pending_writes w WHERE w.tenant_id = $1 AND w.subject_id = $2
        AND w.thread_id = $3 AND w.namespace = $8 AND w.checkpoint_id = $9) <> $33
      OR (
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0)) <> $35 THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    IF $36 IS NOT NULL THEN
        PERFORM stateroom.queue_event($1, $2, $36, 'checkpoint.saved', 'thread', $3,
            (extract(epoch FROM made_at) * 1000000)::bigint::text, number, $3, $8, $9, $15, $14, $12, NULL, NULL, NULL);
    END IF;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.save_on_9 FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.save_on_9 TO gw_app;
