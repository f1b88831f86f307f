"""Statements on whole threads that are exported and imported."""

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from storage.model import Status, Tier
from storage.postgres.statement import Statement


class ExportedThread(Struct, frozen=True):
    """The row of a thread that is exported."""

    agent: str | None
    status: Status
    tier: Tier
    strict: bool
    client_share: bool
    activity: int
    created_at: datetime
    updated_at: datetime
    seal: bytes
    cold: bytes | None


EXPORTED = Statement(
    """
SELECT agent, status, tier, strict, client_share, activity, created_at, updated_at, seal, cold FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    ExportedThread,
)


class ThreadId(Struct, frozen=True):
    """A thread, and whether only its client can open it."""

    thread_id: str
    client_share: bool


THREADS_AFTER = Statement(
    """
SELECT thread_id, client_share FROM stateroom.threads
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after ORDER BY thread_id LIMIT :limit
""",
    ThreadId,
)

# What the thread owns, and what its state names of others.
ARTIFACT_IDS = Statement(
    """
SELECT artifact_id FROM stateroom.artifacts
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
UNION
SELECT artifact_id FROM stateroom.artifact_refs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
ORDER BY artifact_id
""",
    UUID,
)


class Origin(Struct, frozen=True):
    """Where a thread that was imported came from; None: it was not imported."""

    origin: bytes | None


ORIGIN = Statement(
    """
SELECT origin FROM stateroom.threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND thread_id = :thread_id
""",
    Origin,
)

# Nothing returned: there is one of this name. It is as old as it is where it comes from, and was written to now, which
# the trigger leaves to imports to say (revision a33).
ADD_THREAD = Statement(
    """
INSERT INTO stateroom.threads
    (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at, seal,
     client_share, parent_thread_id, origin, began_at)
VALUES (:tenant_id, :subject_id, :thread_id, :agent, :status, 'hot', :strict, 1, :created_at, clock_timestamp(),
    :seal, :client_share, :parent_thread_id, :origin, least(:created_at, clock_timestamp()))
ON CONFLICT DO NOTHING RETURNING 1
""",
    int,
)

ACCEPT_UNBOUND = Statement(
    """
INSERT INTO stateroom.unbound_imports (tenant_id, export_id, accepted_at, mac, mac_format) VALUES (:tenant_id,
    :export_id, :accepted_at, :mac, :mac_format)
ON CONFLICT DO NOTHING RETURNING export_id
""",
    UUID,
)


class UnboundImport(Struct, frozen=True):
    """An export that a tenant may take in though it names no tenant, with the proof that an operator said so."""

    export_id: UUID
    accepted_at: datetime
    mac: bytes | None
    mac_format: int | None


UNBOUND = Statement(
    "SELECT export_id, accepted_at, mac, mac_format FROM stateroom.unbound_imports WHERE tenant_id = :tenant_id",
    UnboundImport,
)

USE_UP_UNBOUND = Statement(
    "DELETE FROM stateroom.unbound_imports WHERE tenant_id = :tenant_id AND export_id = :export_id"
)
