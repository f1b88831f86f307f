"""Statements on the registry of processes, by the database's clock: processes need not agree on the time.

A process is seen when its statement began: where that waited for a lock, some seconds before its row says so, which is
far less than makes one gone.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.engine import UNREGISTERED_APPLICATION_NAME
from storage.postgres.statement import Statement


class ProcessRow(msgspec.Struct, frozen=True):
    """A process as the registry has it."""

    instance: UUID
    place: str
    build: str
    features: list[str]
    started_at: datetime
    seen_at: datetime
    age_seconds: float


class HostSessions(msgspec.Struct, frozen=True):
    """The number of sessions of builds that enter no registry, by host."""

    host: str
    sessions: int


# In one statement with the removal of old rows. Neither part reads what the other writes.
BEAT = Statement("""
WITH forgotten AS (
    DELETE FROM stateroom.processes
    WHERE seen_at < statement_timestamp() - make_interval(secs => :forgotten_seconds) AND instance <> :instance
)
INSERT INTO stateroom.processes (instance, place, build, features, started_at, seen_at)
VALUES (:instance, :place, :build, :features, statement_timestamp(), statement_timestamp())
ON CONFLICT (instance) DO UPDATE SET seen_at = excluded.seen_at
""")

LEAVE = Statement("DELETE FROM stateroom.processes WHERE instance = :instance")

SEEN = Statement(
    """
SELECT instance, place, build, features, started_at, seen_at,
    extract(epoch FROM statement_timestamp() - seen_at)::float8 AS age_seconds
FROM stateroom.processes ORDER BY started_at, instance
""",
    ProcessRow,
)

# Until the transaction ends, no process is entered: one that comes then sees what it switched on.
LOCK = Statement("LOCK TABLE stateroom.processes IN SHARE MODE")

# Builds from before the registry call their sessions by one name, and no later build calls its own by that.
_UNREGISTERED = f"""
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = '{UNREGISTERED_APPLICATION_NAME}'
"""
UNREGISTERED = Statement(f"SELECT count(*) {_UNREGISTERED}", int)
UNREGISTERED_HOSTS = Statement(
    f"""
SELECT coalesce(host(client_addr), 'this machine') AS host, count(*) AS sessions {_UNREGISTERED} GROUP BY 1 ORDER BY 1
""",
    HostSessions,
)
