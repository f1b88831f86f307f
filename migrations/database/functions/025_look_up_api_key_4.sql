-- The row of an API key and its seal, before a tenant is known, with whether that tenant has events and who stands
-- behind the key.
--
-- It runs with its owner's rights, who can read these columns and do nothing else.
CREATE FUNCTION stateroom.look_up_api_key_4(wanted text) RETURNS TABLE (
    key_id text, kind text, name text, tenant_id uuid, subject_id text, permissions text[], mac bytea,
    pepper_version integer, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz,
    last_used_at timestamptz, grants text[], seal_mac bytea, seal_pepper_version integer, principal text,
    made_by text, suspended boolean, events boolean
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $body$SELECT k.key_id, k.kind, k.name, k.tenant_id, k.subject_id, k.permissions, k.mac, k.pepper_version,
            k.created_at, k.expires_at, k.revoked_at, k.last_used_at, s.grants, s.mac, s.pepper_version,
            s.principal, s.made_by, t.suspended_at IS NOT NULL, coalesce(e.is_on, false)
        FROM stateroom.api_keys k LEFT JOIN stateroom.api_key_seals s ON s.key_id = k.key_id
        LEFT JOIN stateroom.tenants t ON t.tenant_id = k.tenant_id
        LEFT JOIN stateroom.event_settings e ON e.tenant_id = k.tenant_id
        WHERE k.key_id = wanted$body$;
REVOKE ALL ON FUNCTION stateroom.look_up_api_key_4 FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.look_up_api_key_4 TO gw_app;
GRANT CREATE ON SCHEMA stateroom TO gw_auth;
ALTER FUNCTION stateroom.look_up_api_key_4 OWNER TO gw_auth;
REVOKE CREATE ON SCHEMA stateroom FROM gw_auth;
