"""Statements on save policies; whether one counts for a save, `storage.postgres.checkpoints.OPEN` tells."""

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
NOW = "SELECT clock_timestamp()"

_COLUMNS = "agent, strict, updated_at, mac, mac_format"
EVERY = f"SELECT {_COLUMNS} FROM stateroom.save_policies WHERE tenant_id = $1 ORDER BY agent"
ONE = f"SELECT {_COLUMNS} FROM stateroom.save_policies WHERE tenant_id = $1 AND agent = $2"
AGENTS = "SELECT count(*) FROM stateroom.save_policies WHERE tenant_id = $1 AND agent <> ''"

PUT = """
INSERT INTO stateroom.save_policies (tenant_id, agent, strict, updated_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant_id, agent) DO UPDATE SET strict = excluded.strict, updated_at = excluded.updated_at,
    mac = excluded.mac, mac_format = excluded.mac_format
"""
TAKE_BACK = "DELETE FROM stateroom.save_policies WHERE tenant_id = $1 AND agent = $2"
