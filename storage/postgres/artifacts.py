"""Statements on artifacts: files that a user named, whose content is a blob."""

from storage.postgres.blobs import NAMED_IDS

_COLUMNS = """
    artifact_id, thread_id, name_digest, number, blob_id, url_epoch, size_bytes, client_share, key_version, created_at,
    sealed
"""
_ONE = "tenant_id = $1 AND subject_id = $2 AND artifact_id = $3"
_THREAD = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"

# Deleting the thread waits for us, or we find nothing. Saves of the thread go on.
LOCK_THREAD = f"""
SELECT client_share, tier, created_at, seal FROM stateroom.threads WHERE {_THREAD} FOR KEY SHARE
"""
NEXT_NUMBER = f"""
SELECT coalesce(max(number), 0) + 1 FROM stateroom.artifacts WHERE {_THREAD} AND name_digest = $4
"""
# Nothing returned: another one of this name took the number.
ADD = """
INSERT INTO stateroom.artifacts
    (tenant_id, subject_id, artifact_id, thread_id, name_digest, number, blob_id, url_epoch, size_bytes, client_share,
     key_version, created_at, sealed)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING RETURNING artifact_id
"""
ONE = f"SELECT {_COLUMNS} FROM stateroom.artifacts WHERE {_ONE}"
MANY = f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE tenant_id = $1 AND subject_id = $2 AND artifact_id = ANY($3::uuid[]) ORDER BY artifact_id
"""
# Newest first; of one name, or all. Ids are UUIDv7, so that they sort by time.
LIST = f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE {_THREAD} AND ($4::bytea IS NULL OR name_digest = $4) AND ($5::uuid IS NULL OR artifact_id < $5)
ORDER BY artifact_id DESC LIMIT $6
"""
# Whoever re-seals the row, or revokes its URLs too, waits.
LOCK_ROW = f"SELECT {_COLUMNS} FROM stateroom.artifacts WHERE {_ONE} FOR NO KEY UPDATE"
SET_URL_EPOCH = f"UPDATE stateroom.artifacts SET url_epoch = $4, key_version = $5, sealed = $6 WHERE {_ONE}"

# --- references ----------------------------------------------------------------------------------------------------

# The lock that deleting an artifact conflicts with.
LOCK_NAMED = """
SELECT artifact_id, client_share FROM stateroom.artifacts
WHERE tenant_id = $1 AND subject_id = $2 AND artifact_id = ANY($3::uuid[]) ORDER BY artifact_id FOR KEY SHARE
"""
ADD_REFS = """
INSERT INTO stateroom.artifact_refs (tenant_id, subject_id, artifact_id, thread_id)
SELECT $1, $2, x.artifact_id, $3 FROM unnest($4::uuid[]) AS x(artifact_id) ORDER BY x.artifact_id
ON CONFLICT DO NOTHING
"""
REFERRED = f"SELECT artifact_id FROM stateroom.artifact_refs WHERE {_THREAD} ORDER BY artifact_id"
KEEP_REFS = f"""
WITH named AS ({NAMED_IDS})
DELETE FROM stateroom.artifact_refs r
WHERE r.tenant_id = $1 AND r.subject_id = $2 AND r.thread_id = $3
  AND NOT EXISTS (SELECT FROM named WHERE named.named_id = r.artifact_id)
RETURNING r.artifact_id
"""
DROP_REFS = f"DELETE FROM stateroom.artifact_refs WHERE {_THREAD} RETURNING artifact_id"

# --- deleting ------------------------------------------------------------------------------------------------------

# Waits for whoever is about to refer to it; whether somebody did shows in the next statement.
LOCK = f"SELECT artifact_id, blob_id FROM stateroom.artifacts WHERE {_ONE} FOR UPDATE"
IS_REFERENCED = f"SELECT EXISTS (SELECT FROM stateroom.artifact_refs WHERE {_ONE})"
DELETE = f"DELETE FROM stateroom.artifacts WHERE {_ONE} RETURNING blob_id, thread_id"

# Of a thread that goes: its own artifacts, and those it was the last to refer to whose own thread is gone.
LOCK_OF_THREAD = f"SELECT artifact_id FROM stateroom.artifacts WHERE {_THREAD} ORDER BY artifact_id FOR UPDATE"
LOCK_STRAYS = """
SELECT artifact_id FROM stateroom.artifacts a
WHERE tenant_id = $1 AND subject_id = $2 AND artifact_id = ANY($3::uuid[])
  AND NOT EXISTS (SELECT FROM stateroom.threads t
      WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = a.thread_id)
ORDER BY artifact_id FOR UPDATE
"""
DELETE_UNREFERENCED = """
DELETE FROM stateroom.artifacts a
WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.artifact_id = ANY($3::uuid[])
  AND NOT EXISTS (SELECT FROM stateroom.artifact_refs r
      WHERE r.tenant_id = $1 AND r.subject_id = $2 AND r.artifact_id = a.artifact_id)
RETURNING a.blob_id
"""

# --- checking ------------------------------------------------------------------------------------------------------

AFTER = f"""
SELECT {_COLUMNS} FROM stateroom.artifacts WHERE tenant_id = $1 AND subject_id = $2 AND artifact_id > $3
ORDER BY artifact_id LIMIT $4
"""
# Artifacts after an id whose blob is not live.
DANGLING = """
SELECT a.artifact_id, a.blob_id FROM stateroom.artifacts a
WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.artifact_id > $3
  AND NOT EXISTS (SELECT FROM stateroom.blobs b
      WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = a.blob_id AND b.state = 'live')
ORDER BY a.artifact_id LIMIT $4
"""

# --- re-sealing ----------------------------------------------------------------------------------------------------

STALE = """
SELECT artifact_id, name_digest, number, blob_id, size_bytes, created_at, key_version, sealed FROM stateroom.artifacts
WHERE tenant_id = $1 AND subject_id = $2 AND NOT client_share AND substring(sealed FROM 9 FOR 4) <> $3::bytea
  AND artifact_id > $4
ORDER BY artifact_id LIMIT $5
"""
RESEAL = """
UPDATE stateroom.artifacts SET key_version = $4, sealed = $5
WHERE tenant_id = $1 AND subject_id = $2 AND artifact_id = $3 AND sealed = $6
"""
