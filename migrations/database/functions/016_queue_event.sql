-- Add an event to the queue, in the transaction that makes it true, and have the tenant's relay look.
--
-- $1 to $3: the tenant, the subject (empty: the tenant's own) and the event's id; $4: its type; $5 to $8: its stream and
-- the number there; then its clear columns. Nothing here makes a write fail: the key of the queue is an id that is made
-- anew for each event.
--
-- Whoever adds an event holds a lock that all who add share until they have committed; the relay says that nothing is
-- due only while nobody holds it (`relay_events`). So a writer that finds the tenant due need not write that, however
-- long its transaction lasts. Of several that find it not due one says so; no one waits for another. A transaction that
-- sees one moment (a copy) would fail where the row changed since, or believe what was so then: its caller says so after
-- its COMMIT.
CREATE FUNCTION stateroom.queue_event(
    uuid, text, uuid, text, text, text, text, bigint, text, text, text, text, text, text, uuid, text, text
) RETURNS void LANGUAGE plpgsql
AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('stateroom/events/' || $1, 0));
    INSERT INTO stateroom.event_queue
        (tenant_id, subject_id, event_id, type, stream_kind, stream_id, incarnation, stream_sequence, thread_id,
         namespace, checkpoint_id, run_id, agent, status, job_id, key_id, subject_tag)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
    ON CONFLICT DO NOTHING;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM FROM stateroom.event_relays r WHERE r.tenant_id = $1 AND r.due_at IS NULL FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE stateroom.event_relays r SET due_at = statement_timestamp() WHERE r.tenant_id = $1;
    END IF;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.queue_event FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.queue_event TO gw_app;
