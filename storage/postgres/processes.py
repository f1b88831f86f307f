"""Statements on the registry of processes, by the database's clock: processes need not agree on the time."""

from storage.postgres.engine import UNREGISTERED_APPLICATION_NAME

# In one statement with the removal of rows that nobody wants to see any more.
BEAT = """
WITH forgotten AS (
    DELETE FROM stateroom.processes WHERE seen_at < clock_timestamp() - make_interval(secs => $5) AND instance <> $1
)
INSERT INTO stateroom.processes (instance, place, build, features, started_at, seen_at)
VALUES ($1, $2, $3, $4, clock_timestamp(), clock_timestamp())
ON CONFLICT (instance) DO UPDATE SET seen_at = excluded.seen_at
"""

LEAVE = "DELETE FROM stateroom.processes WHERE instance = $1"

SEEN = """
SELECT instance, place, build, features, started_at, seen_at,
    extract(epoch FROM clock_timestamp() - seen_at)::float8 AS age_seconds
FROM stateroom.processes ORDER BY started_at, instance
"""

# Until the transaction ends, nobody is entered: who comes then sees what it switched on.
LOCK = "LOCK TABLE stateroom.processes IN SHARE MODE"

# Builds from before the registry call their sessions by one name, and no later build calls its own by that.
_UNREGISTERED = f"""
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = '{UNREGISTERED_APPLICATION_NAME}'
"""
UNREGISTERED = f"SELECT count(*) {_UNREGISTERED}"
UNREGISTERED_HOSTS = f"""
SELECT coalesce(host(client_addr), 'this machine') AS host, count(*) AS sessions {_UNREGISTERED} GROUP BY 1 ORDER BY 1
"""
