-- What a task's writes store, under the thread's lock and in the transaction that took it:
-- `storage.statements.threads.checkpoints.PUT_WRITES` says what it may rely on, and has its parameters. As `write_save` it reads
-- first, by plain statements, and binds no scope; a statement whose rows are counted inserts them by VALUES.
CREATE FUNCTION stateroom.put_writes(
    uuid, text, text, integer, bytea[], bytea[], bytea[], bytea[], text, text, text, text, text, timestamptz,
    integer[], text[], bytea[], bytea[], bytea[], bytea[], bytea[], text, integer, bytea, bigint, bytea, boolean
) RETURNS TABLE (written integer, head_id text, sequence bigint, left_over boolean, keys_hash bigint)
LANGUAGE plpgsql ROWS 1 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
DECLARE
    before record;
    others_status text;
    has_more boolean := false;
    total integer;
    fresh record;
BEGIN
    SELECT h.head_id, h.sequence INTO before FROM stateroom.heads h
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $9;
    IF $27 THEN
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
    SELECT w.status INTO others_status FROM stateroom.pending_writes w
    WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = $9 AND w.checkpoint_id = $10
      AND w.status IS NOT NULL AND NOT (w.task_id = $11 AND w.idx = ANY($15))
    ORDER BY w.created_at DESC, w.idx LIMIT 1;
    IF cardinality($5) > 0 THEN
        INSERT INTO stateroom.chunks AS c
            (tenant_id, subject_id, thread_id, piece_id, key_version, children, named_ids, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.named_ids, p.envelope
        FROM unnest($5, $6, $7, $8) AS p(piece_id, children, named_ids, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, named_ids = excluded.named_ids, envelope = excluded.envelope
            WHERE c.key_version <> excluded.key_version;
    END IF;
    UPDATE stateroom.pending_writes w SET
        task_path = $12, channel = f.channel, status = $13, created_at = $14, key_version = $4,
        piece_ids = f.piece_ids, named_ids = f.named_ids, state_schema = $22, state_version = $23, value = f.value,
        member = f.member
    FROM unnest($15, $16, $17, $18, $19, $20, $21) AS f(idx, channel, piece_ids, named_ids, value, member, replaces)
    WHERE w.tenant_id = $1 AND w.subject_id = $2 AND w.thread_id = $3 AND w.namespace = $9 AND w.checkpoint_id = $10
      AND w.task_id = $11 AND w.idx = f.idx AND w.member = f.replaces AND w.idx < 0;
    GET DIAGNOSTICS total = ROW_COUNT;
    FOR fresh IN SELECT * FROM unnest($15, $16, $17, $18, $19, $20, $21)
        AS f(idx, channel, piece_ids, named_ids, value, member, replaces) WHERE f.replaces IS NULL
    LOOP
        INSERT INTO stateroom.pending_writes
            (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, status,
             created_at, key_version, piece_ids, named_ids, state_schema, state_version, value, member)
        VALUES ($1, $2, $3, $9, $10, $11, fresh.idx, $12, fresh.channel, $13, $14, $4, fresh.piece_ids,
            fresh.named_ids, $22, $23, fresh.value, fresh.member)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            total := total + 1;
        END IF;
    END LOOP;
    UPDATE stateroom.threads SET seal = $24 WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3;
    IF $26 IS NOT NULL THEN
        UPDATE stateroom.heads SET sequence = $25, seal = $26
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $9 AND sequence = $25 - 1;
    END IF;
    IF $13 IS NOT NULL AND cardinality($15) > 0 OR EXISTS (SELECT FROM unnest($21) r WHERE r IS NOT NULL) THEN
        UPDATE stateroom.checkpoints SET outcome = coalesce($13, others_status)
        WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $9 AND checkpoint_id = $10;
    END IF;
    RETURN QUERY SELECT total, before.head_id, before.sequence, has_more,
        coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.state <> 'destroyed'), 0)
        # coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = $1 AND v.state <> 'destroyed'), 0);
END
$body$;
REVOKE ALL ON FUNCTION stateroom.put_writes FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.put_writes TO gw_app;
