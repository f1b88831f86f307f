"""Statements on jobs.

A job is of a tenant or, under the operators' chain, of the deployment, which no scope says; so its owner is always
given. Leases go by the database's clock: gateways need not agree on the time. The moment is that at which a statement
began, and not the one at which it got the row's lock, which comes at most `storage.postgres.engine.LOCK_TIMEOUT_MS`
later: a lease then ends that much sooner, which its owner renews long before, and one that ended while a claim waited
is claimed by the next.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement


class JobRow(msgspec.Struct, frozen=True):
    """A job as it is stored."""

    tenant_id: UUID
    job_id: UUID
    kind: str
    target: str
    state: str
    done: int
    total: int | None
    error: str | None
    note: str | None
    created_at: datetime
    updated_at: datetime
    waits_for: str | None
    position: str
    mac: bytes | None
    mac_format: int | None


class ClaimedRow(JobRow, frozen=True):
    """A job whose lease was taken, and the moment at which that ends."""

    lease_until: datetime


class AdvancedRow(msgspec.Struct, frozen=True):
    """What a job's row became when it moved on."""

    done: int
    total: int | None
    lease_until: datetime


class DueJob(msgspec.Struct, frozen=True):
    """A job without a lease."""

    tenant_id: UUID
    job_id: UUID


class OpenCount(msgspec.Struct, frozen=True):
    """The number of jobs of a kind that have not ended, and the age of the oldest."""

    kind: str
    jobs: int
    oldest_seconds: float


_SHOWN = "tenant_id, job_id, kind, target, state, done, total, error, note, created_at, updated_at, waits_for"
COLUMNS = f"{_SHOWN}, position, mac, mac_format"

ADD = Statement("""
INSERT INTO stateroom.jobs
    (tenant_id, job_id, kind, target, state, done, total, position, created_at, updated_at, mac, mac_format)
VALUES (:owner, :job_id, :kind, :target, 'queued', 0, :total, :position, now(), now(), :mac, :mac_format)
""")

_ONE = f"SELECT {COLUMNS} FROM stateroom.jobs WHERE tenant_id = :owner AND job_id = :job_id"
ONE = Statement(_ONE, JobRow)
LOCK = Statement(f"{_ONE} FOR UPDATE", JobRow)

# The process that works on it finds its lease gone.
CANCEL = Statement("""
UPDATE stateroom.jobs SET state = 'failed', error = :error, mac = :mac, mac_format = :mac_format, waits_for = NULL,
    lease_until = NULL, updated_at = statement_timestamp()
WHERE tenant_id = :owner AND job_id = :job_id
""")

SUPERSEDE = Statement("""
UPDATE stateroom.jobs SET kind = :kind, target = '', position = '', state = 'failed', error = :error, note = NULL,
    mac = :mac, mac_format = :mac_format, lease_until = NULL, updated_at = statement_timestamp()
WHERE tenant_id = :owner AND job_id = :job_id
""")

LIST = Statement(
    f"""
SELECT {COLUMNS} FROM stateroom.jobs
WHERE tenant_id = :owner AND (:before_at::timestamptz IS NULL OR (created_at, job_id) < (:before_at, :before_id::uuid))
ORDER BY created_at DESC, job_id DESC LIMIT :page_rows
""",
    JobRow,
)

EVERY = Statement(
    f"""
SELECT {COLUMNS} FROM stateroom.jobs WHERE tenant_id = :owner AND job_id > :after ORDER BY job_id LIMIT :page_rows
""",
    JobRow,
)

OPEN = Statement(
    f"""
SELECT {COLUMNS} FROM stateroom.jobs
WHERE tenant_id = :owner AND kind = :kind AND target = :target AND state IN ('queued', 'running')
ORDER BY created_at LIMIT :page_rows
""",
    JobRow,
)

# Across tenants, by an operator's binding.
DUE = Statement(
    """
SELECT tenant_id, job_id FROM stateroom.jobs
WHERE state IN ('queued', 'running') AND (lease_until IS NULL OR lease_until < statement_timestamp())
ORDER BY updated_at LIMIT :page_rows
""",
    DueJob,
)

# Across tenants, by an operator's binding: numbers only.
COUNT_OPEN = Statement(
    """
SELECT kind, count(*) AS jobs,
    extract(epoch FROM statement_timestamp() - min(created_at))::float8 AS oldest_seconds
FROM stateroom.jobs WHERE state IN ('queued', 'running') GROUP BY kind
""",
    OpenCount,
)

CLAIM = Statement(
    f"""
UPDATE stateroom.jobs SET state = 'running', updated_at = statement_timestamp(),
    lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :owner AND job_id = :job_id AND state IN ('queued', 'running')
  AND (lease_until IS NULL OR lease_until < statement_timestamp())
RETURNING {COLUMNS}, lease_until
""",
    ClaimedRow,
)

# The holder of the lease knows its exact end: another one's differs, so that a late owner changes nothing.
ADVANCE = Statement(
    """
UPDATE stateroom.jobs SET done = done + :done, total = coalesce(:total, total), position = :position,
    mac = :mac, mac_format = :mac_format, waits_for = NULL, updated_at = statement_timestamp(),
    lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :owner AND job_id = :job_id AND lease_until = ANY(:leases::timestamptz[]) AND state = 'running'
RETURNING done, total, lease_until
""",
    AdvancedRow,
)

RELEASE = Statement("""
UPDATE stateroom.jobs SET lease_until = statement_timestamp() + make_interval(secs => :again_seconds),
    updated_at = statement_timestamp(), waits_for = :waits_for
WHERE tenant_id = :owner AND job_id = :job_id AND lease_until = ANY(:leases::timestamptz[]) AND state = 'running'
""")

END = Statement("""
UPDATE stateroom.jobs SET state = :state, error = :error, note = :note, position = :position,
    mac = :mac, mac_format = :mac_format, waits_for = NULL, lease_until = NULL, updated_at = statement_timestamp()
WHERE tenant_id = :owner AND job_id = :job_id AND lease_until = ANY(:leases::timestamptz[]) AND state = 'running'
""")
