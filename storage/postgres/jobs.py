"""Statements on jobs. Leases go by the database's clock: gateways need not agree on the time."""

_SHOWN = "tenant_id, job_id, kind, target, state, done, total, error, note, created_at, updated_at, waits_for"
_COLUMNS = f"{_SHOWN}, position, mac, mac_format"

ADD = """
INSERT INTO stateroom.jobs
    (tenant_id, job_id, kind, target, state, done, total, position, created_at, updated_at, mac, mac_format)
VALUES ($1, $2, $3, $4, 'queued', 0, $5, $6, now(), now(), $7, $8)
"""

ONE = f"SELECT {_COLUMNS} FROM stateroom.jobs WHERE tenant_id = $1 AND job_id = $2"

LOCK = f"{ONE} FOR UPDATE"

# Whoever works on it finds its lease gone.
CANCEL = """
UPDATE stateroom.jobs SET state = 'failed', error = $3, mac = $4, mac_format = $5, waits_for = NULL,
    lease_until = NULL, updated_at = clock_timestamp()
WHERE tenant_id = $1 AND job_id = $2
"""

SUPERSEDE = """
UPDATE stateroom.jobs SET kind = $3, target = '', position = '', state = 'failed', error = $4, note = NULL, mac = $5,
    mac_format = $6, lease_until = NULL, updated_at = clock_timestamp()
WHERE tenant_id = $1 AND job_id = $2
"""

LIST = f"""
SELECT {_COLUMNS} FROM stateroom.jobs
WHERE tenant_id = $1 AND ($2::timestamptz IS NULL OR (created_at, job_id) < ($2, $3::uuid))
ORDER BY created_at DESC, job_id DESC LIMIT $4
"""

EVERY = f"""
SELECT {_COLUMNS} FROM stateroom.jobs WHERE tenant_id = $1 AND job_id > $2 ORDER BY job_id LIMIT $3
"""

OPEN = f"""
SELECT {_COLUMNS} FROM stateroom.jobs
WHERE tenant_id = $1 AND kind = $2 AND target = $3 AND state IN ('queued', 'running')
ORDER BY created_at LIMIT $4
"""

# Across tenants, by an operator's binding.
DUE = """
SELECT tenant_id, job_id FROM stateroom.jobs
WHERE state IN ('queued', 'running') AND (lease_until IS NULL OR lease_until < clock_timestamp())
ORDER BY updated_at LIMIT $1
"""

# Across tenants, by an operator's binding: numbers only.
COUNT_OPEN = """
SELECT kind, count(*) AS open,
    extract(epoch FROM statement_timestamp() - min(created_at))::float8 AS oldest_seconds
FROM stateroom.jobs WHERE state IN ('queued', 'running') GROUP BY kind
"""

CLAIM = """
UPDATE stateroom.jobs SET state = 'running', lease_until = clock_timestamp() + make_interval(secs => $3),
    updated_at = clock_timestamp()
WHERE tenant_id = $1 AND job_id = $2 AND state IN ('queued', 'running')
  AND (lease_until IS NULL OR lease_until < clock_timestamp())
RETURNING job_id, kind, target, state, done, total, position, error, note, lease_until, mac, mac_format, waits_for
"""

# Whoever holds the lease knows its exact end: another one's differs, so that a late owner changes nothing.
ADVANCE = """
UPDATE stateroom.jobs SET done = done + $4, total = coalesce($5, total), position = $6, mac = $8, mac_format = $9,
    waits_for = NULL, lease_until = clock_timestamp() + make_interval(secs => $7), updated_at = clock_timestamp()
WHERE tenant_id = $1 AND job_id = $2 AND lease_until = ANY($3::timestamptz[]) AND state = 'running'
RETURNING done, total, lease_until
"""

RELEASE = """
UPDATE stateroom.jobs SET lease_until = clock_timestamp() + make_interval(secs => $4), updated_at = clock_timestamp(),
    waits_for = $5
WHERE tenant_id = $1 AND job_id = $2 AND lease_until = ANY($3::timestamptz[]) AND state = 'running'
"""

END = """
UPDATE stateroom.jobs SET state = $4, error = $5, note = $6, position = $7, mac = $8, mac_format = $9,
    waits_for = NULL, lease_until = NULL, updated_at = clock_timestamp()
WHERE tenant_id = $1 AND job_id = $2 AND lease_until = ANY($3::timestamptz[]) AND state = 'running'
"""
