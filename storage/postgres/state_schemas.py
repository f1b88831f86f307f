"""Statements on state schemas."""

# Registrations of one schema wait for each other, also the first, which finds no row to lock.
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

VERSIONS = """
SELECT number, definition, created_at, mac, mac_format FROM stateroom.state_schemas
WHERE tenant_id = $1 AND schema = $2 ORDER BY number
"""

# By order, so that nobody scans the table for it.
ANY = """
SELECT number FROM stateroom.state_schemas WHERE tenant_id = $1 AND schema = $2 ORDER BY number LIMIT 1
"""

EVERY = """
SELECT schema, number, definition, created_at, mac, mac_format FROM stateroom.state_schemas WHERE tenant_id = $1
AND (schema, number) > ($2, $3) ORDER BY schema, number LIMIT $4
"""

NAMES = """
SELECT schema, max(number) AS newest FROM stateroom.state_schemas WHERE tenant_id = $1 AND schema > $2
GROUP BY schema ORDER BY schema LIMIT $3
"""

# Of a version that no gateway registered as it is.
SUPERSEDE = """
UPDATE stateroom.state_schemas SET definition = $4, created_at = $5, mac = $6, mac_format = $7
WHERE tenant_id = $1 AND schema = $2 AND number = $3
"""

ADD = """
INSERT INTO stateroom.state_schemas (tenant_id, schema, number, definition, created_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
