"""Statements on artifacts: files that a user named, whose content is a blob."""

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from storage.postgres.statement import Statement, columns
from storage.statements.objects.blobs import NAMED_IDS


class ArtifactRow(Struct, frozen=True):
    """An artifact as its row says; ``sealed`` is its description, which `storage.artifacts.rows` opens."""

    artifact_id: UUID
    thread_id: str
    name_digest: bytes
    number: int
    blob_id: UUID
    url_epoch: int
    size_bytes: int
    client_share: bool
    key_version: int
    created_at: datetime
    sealed: bytes


_COLUMNS = columns(ArtifactRow)
_ONE = "tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id = :artifact_id"
_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"

# Deleting the thread waits for us, or we find nothing. Saves of the thread go on.
LOCK_THREAD = Statement(
    f"""
SELECT tier FROM stateroom.threads WHERE {_THREAD} FOR KEY SHARE
""",
    str,
)
NEXT_NUMBER = Statement(
    f"""
SELECT coalesce(max(number), 0) + 1 FROM stateroom.artifacts WHERE {_THREAD} AND name_digest = :name_digest
""",
    int,
)
# Nothing returned: another one of this name took the number.
ADD = Statement(
    """
INSERT INTO stateroom.artifacts
    (tenant_id, subject_id, artifact_id, thread_id, name_digest, number, blob_id, url_epoch, size_bytes, client_share,
     key_version, created_at, sealed)
VALUES (:tenant_id, :subject_id, :artifact_id, :thread_id, :name_digest, :number, :blob_id, :url_epoch, :size_bytes,
    :client_share, :key_version, :created_at, :sealed)
ON CONFLICT DO NOTHING RETURNING artifact_id
""",
    UUID,
)
ONE = Statement(f"SELECT {_COLUMNS} FROM stateroom.artifacts WHERE {_ONE}", ArtifactRow)
MANY = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id = ANY(:artifact_ids::uuid[])
ORDER BY artifact_id
""",
    ArtifactRow,
)
# Newest first; of one name, or all. Ids are UUIDv7, so that they sort by time.
LIST = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE {_THREAD} AND (:name_digest::bytea IS NULL OR name_digest = :name_digest)
  AND (:after::uuid IS NULL OR artifact_id < :after)
ORDER BY artifact_id DESC LIMIT :limit
""",
    ArtifactRow,
)
# A transaction that re-seals the row, or revokes its URLs too, waits.
LOCK_ROW = Statement(f"SELECT {_COLUMNS} FROM stateroom.artifacts WHERE {_ONE} FOR NO KEY UPDATE", ArtifactRow)
SET_URL_EPOCH = Statement(
    f"UPDATE stateroom.artifacts SET url_epoch = :url_epoch, key_version = :key_version, sealed = :sealed WHERE {_ONE}"
)

# --- references ----------------------------------------------------------------------------------------------------

# The lock that deleting an artifact conflicts with.
LOCK_NAMED = Statement(
    """
SELECT artifact_id FROM stateroom.artifacts
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id = ANY(:artifact_ids::uuid[])
ORDER BY artifact_id FOR KEY SHARE
""",
    UUID,
)
ADD_REFS = Statement("""
INSERT INTO stateroom.artifact_refs (tenant_id, subject_id, artifact_id, thread_id)
SELECT :tenant_id, :subject_id, x.artifact_id, :thread_id
FROM unnest(:artifact_ids::uuid[]) AS x(artifact_id) ORDER BY x.artifact_id
ON CONFLICT DO NOTHING
""")
REFERRED = Statement(f"SELECT artifact_id FROM stateroom.artifact_refs WHERE {_THREAD} ORDER BY artifact_id", UUID)
KEEP_REFS = Statement(
    f"""
WITH named AS ({NAMED_IDS})
DELETE FROM stateroom.artifact_refs r
WHERE r.tenant_id = :tenant_id AND r.subject_id = :subject_id AND r.thread_id = :thread_id
  AND NOT EXISTS (SELECT FROM named WHERE named.named_id = r.artifact_id)
RETURNING r.artifact_id
""",
    UUID,
)
DROP_REFS = Statement(f"DELETE FROM stateroom.artifact_refs WHERE {_THREAD} RETURNING artifact_id", UUID)

# --- deleting ------------------------------------------------------------------------------------------------------

# Waits for transactions about to refer to it; whether one did shows in the next statement.
LOCK = Statement(f"SELECT artifact_id FROM stateroom.artifacts WHERE {_ONE} FOR UPDATE", UUID)
IS_REFERENCED = Statement(f"SELECT EXISTS (SELECT FROM stateroom.artifact_refs WHERE {_ONE})", bool)


class DeletedArtifact(Struct, frozen=True):
    """An artifact that is gone: the blob it had, and the thread it was of."""

    blob_id: UUID
    thread_id: str


DELETE = Statement(f"DELETE FROM stateroom.artifacts WHERE {_ONE} RETURNING blob_id, thread_id", DeletedArtifact)

# Of a thread that goes: its own artifacts, and those it was the last to refer to whose own thread is gone.
LOCK_OF_THREAD = Statement(
    f"SELECT artifact_id FROM stateroom.artifacts WHERE {_THREAD} ORDER BY artifact_id FOR UPDATE", UUID
)
LOCK_STRAYS = Statement(
    """
SELECT artifact_id FROM stateroom.artifacts a
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id = ANY(:artifact_ids::uuid[])
  AND NOT EXISTS (SELECT FROM stateroom.threads t
      WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = a.thread_id)
ORDER BY artifact_id FOR UPDATE
""",
    UUID,
)
DELETE_UNREFERENCED = Statement(
    """
DELETE FROM stateroom.artifacts a
WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.artifact_id = ANY(:artifact_ids::uuid[])
  AND NOT EXISTS (SELECT FROM stateroom.artifact_refs r
      WHERE r.tenant_id = :tenant_id AND r.subject_id = :subject_id AND r.artifact_id = a.artifact_id)
RETURNING a.blob_id
""",
    UUID,
)

# --- checking ------------------------------------------------------------------------------------------------------

AFTER = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id > :after
ORDER BY artifact_id LIMIT :limit
""",
    ArtifactRow,
)


class DanglingArtifact(Struct, frozen=True):
    """An artifact whose blob is not live."""

    artifact_id: UUID
    blob_id: UUID


DANGLING = Statement(
    """
SELECT a.artifact_id, a.blob_id FROM stateroom.artifacts a
WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.artifact_id > :after
  AND NOT EXISTS (SELECT FROM stateroom.blobs b
      WHERE b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = a.blob_id AND b.state = 'live')
ORDER BY a.artifact_id LIMIT :limit
""",
    DanglingArtifact,
)

# --- re-sealing ----------------------------------------------------------------------------------------------------


STALE = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.artifacts
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND NOT client_share
  AND substring(sealed FROM 9 FOR 4) <> :version::bytea
  AND artifact_id > :after
ORDER BY artifact_id LIMIT :limit
""",
    ArtifactRow,
)
RESEAL = Statement("""
UPDATE stateroom.artifacts SET key_version = :key_version, sealed = :sealed
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND artifact_id = :row_id AND sealed = :was
""")
