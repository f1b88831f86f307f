-- The row of an API key, before a tenant is known.
--
-- It is what builds before 0.1.0 call, which may still run while an upgrade rolls; how it differs from the one in use
-- is said there.
CREATE FUNCTION stateroom.look_up_api_key(wanted text) RETURNS SETOF stateroom.api_keys
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $body$SELECT * FROM stateroom.api_keys WHERE key_id = wanted$body$;
REVOKE ALL ON FUNCTION stateroom.look_up_api_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.look_up_api_key TO gw_app;
GRANT CREATE ON SCHEMA stateroom TO gw_auth;
ALTER FUNCTION stateroom.look_up_api_key OWNER TO gw_auth;
REVOKE CREATE ON SCHEMA stateroom FROM gw_auth;
