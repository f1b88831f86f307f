-- A page of a tenant's events, and all that tells what a position means, in one round trip.
--
-- $1 and $2: the tenant, and the subject that reads (empty: the whole tenant); $3: the number behind which to go on
-- (null: from now on); $4: the types that are wanted (none: all), $5: the thread (null: any); $6: how many events at
-- most, and $7: how many numbers are looked at for them.
--
-- What there is of numbers is the tenant's, and is read by the relay's binding; events by the reader's own. The newest
-- number is read before the page, which ends there, so that no event is passed over; the oldest after it, so that a page
-- that lacks what retention removed meanwhile is known as one.
CREATE FUNCTION stateroom.read_events(uuid, text, bigint, text[], text, integer, bigint) RETURNS TABLE (
    is_on boolean, since timestamptz, changed_at timestamptz, mac bytea, mac_format smallint, newest bigint,
    oldest bigint, now timestamptz, at_id uuid, reached bigint, reached_id uuid, e_sequence bigint[], e_event_id uuid[], e_type text[],
    e_at timestamptz[], e_stream_kind text[], e_stream_id text[], e_incarnation text[], e_stream_sequence bigint[],
    e_subject_id text[], e_thread_id text[], e_namespace text[], e_checkpoint_id text[], e_run_id text[],
    e_agent text[], e_status text[], e_job_id uuid[], e_key_id text[], e_subject_tag text[]
) LANGUAGE plpgsql ROWS 1 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
DECLARE
    settings record;
    counter record;
    until bigint;
    until_id uuid;
    found_id uuid;
    page record;
    kept bigint;
BEGIN
    EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L;'
        ' SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L; SET LOCAL app.relay = %L',
        $1, '', '', '', 'on');
    SELECT s.is_on, s.since, s.changed_at, s.mac, s.mac_format INTO settings FROM stateroom.event_settings s
    WHERE s.tenant_id = $1;
    SELECT c.next_sequence - 1 AS newest INTO counter FROM stateroom.event_counters c WHERE c.tenant_id = $1;
    until := coalesce(CASE WHEN $3 IS NULL THEN counter.newest ELSE least(counter.newest, $3 + $7) END, 0);
    SELECT e.event_id INTO until_id FROM stateroom.events e WHERE e.tenant_id = $1 AND e.sequence = until;
    SELECT e.event_id INTO found_id FROM stateroom.events e WHERE e.tenant_id = $1 AND e.sequence = $3;
    EXECUTE format('SET LOCAL app.relay = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.tenant_listing = %L',
        '', $2, CASE WHEN $2 = '' THEN 'on' ELSE '' END);
    SELECT array_agg(p.sequence) AS sequence, array_agg(p.event_id) AS event_id, array_agg(p.type) AS type,
        array_agg(p.at) AS at, array_agg(p.stream_kind) AS stream_kind, array_agg(p.stream_id) AS stream_id,
        array_agg(p.incarnation) AS incarnation, array_agg(p.stream_sequence) AS stream_sequence,
        array_agg(p.subject_id) AS subject_id, array_agg(p.thread_id) AS thread_id,
        array_agg(p.namespace) AS namespace, array_agg(p.checkpoint_id) AS checkpoint_id,
        array_agg(p.run_id) AS run_id, array_agg(p.agent) AS agent, array_agg(p.status) AS status,
        array_agg(p.job_id) AS job_id, array_agg(p.key_id) AS key_id, array_agg(p.subject_tag) AS subject_tag
    INTO page FROM (
        SELECT * FROM stateroom.events e
        WHERE e.tenant_id = $1 AND e.sequence > $3 AND e.sequence <= until
          AND (cardinality($4) = 0 OR e.type = ANY($4)) AND ($5 IS NULL OR e.thread_id = $5)
        ORDER BY e.sequence LIMIT $6) p;
    EXECUTE format('SET LOCAL app.relay = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.tenant_listing = %L',
        'on', '', '');
    SELECT c.oldest_sequence INTO kept FROM stateroom.event_counters c WHERE c.tenant_id = $1;
    RETURN QUERY SELECT settings.is_on, settings.since, settings.changed_at, settings.mac, settings.mac_format,
        coalesce(counter.newest, 0), coalesce(kept, 1), statement_timestamp(), found_id, until, until_id, page.sequence, page.event_id,
        page.type, page.at, page.stream_kind, page.stream_id, page.incarnation, page.stream_sequence,
        page.subject_id, page.thread_id, page.namespace, page.checkpoint_id, page.run_id, page.agent, page.status,
        page.job_id, page.key_id, page.subject_tag;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.read_events FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.read_events TO gw_app;
