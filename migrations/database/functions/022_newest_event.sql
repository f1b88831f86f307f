-- The number of a tenant's newest event, which whoever waits for the next one asks for; 0: it never had one.
CREATE FUNCTION stateroom.newest_event(uuid) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
BEGIN
    EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L;'
        ' SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L; SET LOCAL app.relay = %L',
        $1, '', '', '', 'on');
    RETURN coalesce((SELECT c.next_sequence - 1 FROM stateroom.event_counters c WHERE c.tenant_id = $1), 0);
END
$body$;
REVOKE ALL ON FUNCTION stateroom.newest_event FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.newest_event TO gw_app;
