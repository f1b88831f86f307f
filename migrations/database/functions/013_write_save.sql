-- What a save writes, under the thread's lock and in the transaction that took it: `storage.statements.threads.checkpoints.WRITE`
-- says what it may rely on, and has its parameters.
--
-- It reads first and writes then, by plain statements: where one statement did both in parts, Citus ran each part by
-- itself, with a snapshot of its own, and the save found its own checkpoint to be the newest one (ADR 40). Each
-- statement sees what was committed before it, which is all that was committed before the lock was granted. It binds no
-- scope: the transaction has one. Its plans scan no table, as those of `save_on_7`.
CREATE FUNCTION stateroom.write_save(
    uuid, text, text, integer, bytea[], bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text,
    text, text, integer, bigint, bigint, bigint, timestamptz, bytea, bytea, bytea, text, bigint, bytea, boolean,
    boolean, text[], bytea[]
) RETURNS TABLE (written integer, early_members bytea[], newest_id text, left_over boolean, keys_hash bigint)
LANGUAGE plpgsql ROWS 1 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
DECLARE
    own_outcome text;
    members bytea[];
    newest text;
    has_more boolean := false;
    counted integer;
    total integer;
BEGIN
    SELECT array_agg(w.member ORDER BY w.member),
        (array_agg(w.status ORDER BY w.created_at DESC, w.idx) FILTER (WHERE w.status IS NOT NULL))[1]
    INTO members, own_outcome FROM stateroom.pending_writes w
    WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = $9 AND w.checkpoint_id = $10;
    SELECT n.checkpoint_id INTO newest FROM stateroom.checkpoints n
    WHERE n.tenant_id = $1 AND n.subject_id = $2 AND n.thread_id = $3 AND n.namespace = $9
    ORDER BY n.checkpoint_id DESC LIMIT 1;
    IF $31 THEN
        SELECT coalesce(
            (SELECT true FROM stateroom.heads l WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
             ORDER BY l.namespace LIMIT 1),
            (SELECT true FROM stateroom.checkpoints l WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
             ORDER BY l.namespace, l.checkpoint_id LIMIT 1),
            (SELECT true FROM stateroom.pending_writes l
             WHERE l.tenant_id = $1 AND l.subject_id = $2 AND l.thread_id = $3
             ORDER BY l.namespace, l.checkpoint_id, l.task_id, l.idx LIMIT 1),
            false) INTO has_more;
    END IF;
    IF cardinality($5) > 0 THEN
        INSERT INTO stateroom.chunks AS c
            (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.named_ids, p.envelope
        FROM unnest($5, $6, $7, $8) AS p(piece_id, children, named_ids, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
            WHERE c.key_version <> excluded.key_version;
    END IF;
    INSERT INTO stateroom.checkpoints
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent,
         run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at,
         key_version, piece_ids, named_ids, manifest, searchable)
    VALUES ($1, $2, $3, $9, $10, $11, $12, $13, own_outcome, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $4, $24,
        $25, $26, $32)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS total = ROW_COUNT;
    INSERT INTO stateroom.heads AS h (tenant_id, subject_id, thread_id, namespace, head_id, sequence, seal)
    VALUES ($1, $2, $3, $9, $27, $28, $29)
    ON CONFLICT (tenant_id, subject_id, thread_id, namespace) DO UPDATE
        SET head_id = excluded.head_id, sequence = excluded.sequence, seal = excluded.seal
        WHERE h.sequence = excluded.sequence - 1 AND $30;
    GET DIAGNOSTICS counted = ROW_COUNT;
    IF $9 = '' AND own_outcome IS NOT NULL THEN
        UPDATE stateroom.threads t SET status = own_outcome
        WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3;
    END IF;
    IF cardinality($33) > 0 THEN
        INSERT INTO stateroom.checkpoint_tags (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag)
        SELECT $1, $2, $3, $9, $10, t.tag FROM unnest($33) AS t(tag) ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY SELECT total + counted, members, newest, has_more,
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0);
END
$body$;
REVOKE ALL ON FUNCTION stateroom.write_save FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.write_save TO gw_app;
