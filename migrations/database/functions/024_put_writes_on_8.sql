-- As `put_writes_on_7`, and it asks whether the caller may go on with the thread ($29: the fence of its claim), as
-- `save_on_9` does. A thread on which a person is asked something takes another way, because the writes may ask it anew.
CREATE FUNCTION stateroom.put_writes_on_8(
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, text, text, timestamptz, integer[],
    text[], bytea[], bytea[], bytea[], text, integer, text, bytea, bytea, bigint, bytea, bytea, bigint, uuid, bigint
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    fresh record;
    thread record;
    moment timestamptz := clock_timestamp();
BEGIN
    EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L; SET LOCAL app.relay = %L', $1, $2, '', '', '');
    UPDATE stateroom.threads t SET
        activity = t.activity + 1, updated_at = $13, status = coalesce($21, t.status), seal = $23,
        claimed_until = CASE WHEN $29 IS NULL OR t.claimed_until IS NULL THEN t.claimed_until
            ELSE greatest(t.claimed_until, moment + make_interval(secs => t.claim_seconds)) END
    WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $22
      AND t.open_approvals = 0 AND CASE WHEN $29 IS NULL THEN NOT t.claims_required ELSE t.fence = $29 END
    RETURNING t.activity, t.created_at, t.agent INTO thread;
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
    FOR fresh IN SELECT * FROM unnest($14, $15, $16, $17, $18) AS p(idx, channel, piece_ids, value, member) LOOP
        INSERT INTO stateroom.pending_writes
            (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status,
             created_at, key_version, piece_ids, state_schema, state_version, value, member)
        VALUES ($1, $2, $3, $8, $9, $10, fresh.idx, $11, fresh.channel, $12, $13, $4, fresh.piece_ids, $19, $20,
            fresh.value, fresh.member)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
        END IF;
    END LOOP;
    IF $26 IS NULL THEN
        PERFORM FROM stateroom.heads h
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.sequence = $24 AND h.seal = $25;
    ELSE
        UPDATE stateroom.heads h SET sequence = $24, seal = $26
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
          AND h.head_id = $9 AND h.sequence = $24 - 1 AND h.seal = $25;
    END IF;
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    IF $12 IS NOT NULL THEN
        UPDATE stateroom.checkpoints c SET outcome = $12
        WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = $3 AND c.namespace = $8
          AND c.checkpoint_id = $9;
    END IF;
    IF (
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0)) <> $27 THEN
        RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';
    END IF;
    IF $28 IS NOT NULL THEN
        PERFORM stateroom.queue_event($1, $2, $28, 'thread.status', 'thread', $3,
            (extract(epoch FROM thread.created_at) * 1000000)::bigint::text, thread.activity, $3, $8, $9, NULL,
            thread.agent, $12, NULL, NULL, NULL);
    END IF;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.put_writes_on_8 FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.put_writes_on_8 TO gw_app;
