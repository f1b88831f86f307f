-- Number a tenant's queued events: what is due leaves the queue and becomes events, in one statement.
--
-- $1: the tenant; $2 to $4: the stream behind which this begins (empty: with the first one), so that a stream that is
-- written to all the time does not keep the others waiting; $5: how many at most; $6: for how many seconds the lease is
-- taken, and $7: its end, if the caller has it; $8: whether nothing is due any more, if the queue is found empty.
--
-- It returns no row if another process has the lease, or a writer the row; it waits for neither. The counter's row is locked first, so that numbers are given one
-- batch after the other, and whoever sees a number sees all below it. Within a stream they follow the numbers there,
-- and where two have one number, the time, which is taken under the stream's lock: of two events of a stream the later
-- one was committed later, so that who sees it in the queue sees the earlier one. Streams are mixed by time, as far as
-- their own orders let them.
--
-- Nothing is due any more once nobody is about to commit an event (`queue_event`) and the queue is empty after that.
CREATE FUNCTION stateroom.relay_events(uuid, text, text, text, integer, double precision, timestamptz, boolean)
RETURNS TABLE (held_until timestamptz, taken integer, newest bigint, last_kind text, last_id text, last_incarnation text,
    rests boolean)
LANGUAGE plpgsql ROWS 1 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
DECLARE
    lease timestamptz;
    number bigint;
    moved integer;
    idle boolean := false;
    last record;
BEGIN
    EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L; SET LOCAL app.relay = %L', $1, '', '', '', 'on');
    SELECT r.leased_until INTO lease FROM stateroom.event_relays r
    WHERE r.tenant_id = $1 AND r.leased_until = $7 AND $7 > statement_timestamp() + make_interval(secs => $6 / 2);
    IF NOT FOUND THEN
        PERFORM FROM stateroom.event_relays r
        WHERE r.tenant_id = $1
          AND (r.leased_until IS NULL OR r.leased_until < statement_timestamp() OR r.leased_until = $7)
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE stateroom.event_relays r SET leased_until = statement_timestamp() + make_interval(secs => $6)
            WHERE r.tenant_id = $1 RETURNING r.leased_until INTO lease;
        END IF;
    END IF;
    IF NOT FOUND THEN
        INSERT INTO stateroom.event_relays (tenant_id, due_at, leased_until)
        VALUES ($1, statement_timestamp(), statement_timestamp() + make_interval(secs => $6))
        ON CONFLICT DO NOTHING RETURNING leased_until INTO lease;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT c.next_sequence INTO number FROM stateroom.event_counters c WHERE c.tenant_id = $1 FOR UPDATE;
    IF NOT FOUND THEN
        SELECT e.sequence + 1 INTO number FROM stateroom.events e WHERE e.tenant_id = $1
        ORDER BY e.sequence DESC LIMIT 1;
        number := coalesce(number, 1);
        INSERT INTO stateroom.event_counters (tenant_id, next_sequence, oldest_sequence) VALUES ($1, number, number);
    END IF;
    WITH gone AS (
        DELETE FROM stateroom.event_queue q WHERE q.tenant_id = $1 AND q.event_id IN (
            SELECT w.event_id FROM stateroom.event_queue w
            WHERE w.tenant_id = $1 AND ($2 = '' OR (w.stream_kind, w.stream_id, w.incarnation) > ($2, $3, $4))
            ORDER BY w.tenant_id, w.stream_kind, w.stream_id, w.incarnation, w.stream_sequence, w.at LIMIT $5)
        RETURNING q.*
    )
    INSERT INTO stateroom.events
        (tenant_id, sequence, subject_id, event_id, type, at, stream_kind, stream_id, incarnation, stream_sequence,
         thread_id, namespace, checkpoint_id, run_id, agent, status, job_id, key_id, subject_tag)
    SELECT n.tenant_id, number - 1 + row_number() OVER (
            ORDER BY n.reached_at, n.stream_kind, n.stream_id, n.incarnation, n.stream_sequence, n.at),
        n.subject_id, n.event_id, n.type, n.at, n.stream_kind, n.stream_id, n.incarnation, n.stream_sequence,
        n.thread_id, n.namespace, n.checkpoint_id, n.run_id, n.agent, n.status, n.job_id, n.key_id, n.subject_tag
    FROM (
        SELECT g.*, max(g.at) OVER (
            PARTITION BY g.stream_kind, g.stream_id, g.incarnation ORDER BY g.stream_sequence, g.at) AS reached_at
        FROM gone g) n;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved > 0 THEN
        UPDATE stateroom.event_counters c SET next_sequence = number + moved WHERE c.tenant_id = $1;
    END IF;
    SELECT e.stream_kind, e.stream_id, e.incarnation INTO last FROM stateroom.events e
    WHERE moved = $5 AND e.tenant_id = $1 AND e.sequence >= number AND e.sequence < number + moved
    ORDER BY e.stream_kind DESC, e.stream_id DESC, e.incarnation DESC LIMIT 1;
    IF $8 AND moved = 0 AND $2 = '' THEN
        PERFORM FROM stateroom.event_relays r WHERE r.tenant_id = $1 FOR UPDATE SKIP LOCKED;
        idle := FOUND AND pg_try_advisory_xact_lock(hashtextextended('stateroom/events/' || $1, 0));
        IF idle AND NOT EXISTS (SELECT FROM stateroom.event_queue w WHERE w.tenant_id = $1) THEN
            UPDATE stateroom.event_relays r SET due_at = NULL, leased_until = NULL WHERE r.tenant_id = $1;
        ELSIF idle THEN
            idle := false;
            UPDATE stateroom.event_relays r SET due_at = coalesce(r.due_at, statement_timestamp())
            WHERE r.tenant_id = $1;
        END IF;
    END IF;
    RETURN QUERY SELECT lease, moved, number + moved - 1, last.stream_kind, last.stream_id, last.incarnation, idle;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.relay_events FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.relay_events TO gw_app;
