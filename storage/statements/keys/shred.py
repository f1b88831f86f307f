"""Statements that end keys for good and take away what they sealed."""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement
from storage.statements.deployment.jobs import COLUMNS, JobRow


class SubjectKeysLeft(msgspec.Struct, frozen=True):
    """The numbers of a subject's keys and of those that are active, and when its shred was or will be effective."""

    keys: int
    active: int
    shred_effective_at: datetime | None


class TenantKeysLeft(msgspec.Struct, frozen=True):
    """The numbers of a tenant's keys and of those that are active, and when the last one was destroyed."""

    keys: int
    active: int
    destroyed_at: datetime | None


SUBJECT_KEYS_LEFT = Statement(
    """
SELECT count(*) AS keys, count(*) FILTER (WHERE state = 'active') AS active,
    max(shred_effective_at) AS shred_effective_at
FROM stateroom.subject_keys WHERE tenant_id = :tenant_id AND subject_id = :subject_id
""",
    SubjectKeysLeft,
)
TENANT_KEYS_LEFT = Statement(
    """
SELECT count(*) AS keys, count(*) FILTER (WHERE state = 'active') AS active, max(destroyed_at) AS destroyed_at
FROM stateroom.tenant_keys WHERE tenant_id = :tenant_id
""",
    TenantKeysLeft,
)

LAST_JOB = Statement(
    f"""
SELECT {COLUMNS} FROM stateroom.jobs
WHERE tenant_id = :owner AND kind = :kind AND target = :target
ORDER BY created_at DESC LIMIT 1
""",
    JobRow,
)

DESTROY_SUBJECT = Statement("""
UPDATE stateroom.subject_keys
SET state = 'destroyed', wrapped = NULL, destroyed_at = :now, shred_effective_at = :effective_at
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state <> 'destroyed'
""")
DESTROY_TENANT = Statement("""
UPDATE stateroom.tenant_keys SET state = 'destroyed', wrapped = NULL, destroyed_at = :now
WHERE tenant_id = :tenant_id AND state <> 'destroyed'
""")
# In a later statement than the one above, which waits for transactions that are wrapping a new subject key: it sees
# that, too.
DESTROY_SUBJECTS = Statement("""
UPDATE stateroom.subject_keys
SET state = 'destroyed', wrapped = NULL, destroyed_at = :now, shred_effective_at = :effective_at
WHERE tenant_id = :tenant_id AND state <> 'destroyed'
""")
# A tenant that never had a key must not get one any more.
REFUSE_KEYS = Statement("""
INSERT INTO stateroom.tenant_keys
    (tenant_id, key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, created_at, destroyed_at)
VALUES (:tenant_id, 1, 'destroyed', 'none', '-', '-', NULL, '\\x'::bytea, :now, :now)
ON CONFLICT DO NOTHING
""")

SUBJECTS_AFTER = Statement(
    """
SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = :tenant_id AND subject_id > :after
ORDER BY subject_id LIMIT :limit
""",
    str,
)

PURGE_REST = tuple(
    Statement(f"DELETE FROM stateroom.{table} WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
    for table in ("idempotency", "removed_threads", "effect_tombstones", "item_paths", "item_scopes")
)


class PurgedItem(msgspec.Struct, frozen=True, order=True):
    """Where an item was that a shred took away."""

    path_id: bytes = b""
    key_id: bytes = b""


class PurgedVectors(PurgedItem, frozen=True, order=True):
    """Where vectors of an item were."""

    model_id: bytes = b""


# A page of a subject's items, or of their vectors, in order; the next page begins behind the greatest, past the rows
# that are gone.
PURGE_ITEMS = Statement(
    """
DELETE FROM stateroom.items i USING (
    SELECT path_id, key_id FROM stateroom.items
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND (path_id, key_id) > (:path_id, :key_id)
    ORDER BY path_id, key_id LIMIT :page_rows) page
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = page.path_id AND i.key_id = page.key_id
RETURNING i.path_id, i.key_id
""",
    PurgedItem,
)
PURGE_VECTORS = Statement(
    """
DELETE FROM stateroom.item_vectors v USING (
    SELECT path_id, key_id, model_id FROM stateroom.item_vectors
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id
      AND (path_id, key_id, model_id) > (:path_id, :key_id, :model_id)
    ORDER BY path_id, key_id, model_id LIMIT :page_rows) page
WHERE v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = page.path_id AND v.key_id = page.key_id
  AND v.model_id = page.model_id
RETURNING v.path_id, v.key_id, v.model_id
""",
    PurgedVectors,
)

# What says how a tenant's threads are saved to and kept, and the rounds that look for them: nothing is left to keep.
PURGE_TENANT = tuple(
    Statement(f"DELETE FROM stateroom.{table} WHERE tenant_id = :tenant_id")
    for table in (
        "save_policies",
        "approval_policies",
        "vector_policies",
        "event_settings",
        "event_relays",
        "tenant_streams",
        "retention",
        "retention_rounds",
    )
)

# Of the tombstones with these ids: those this database does not know, and those whose keys open, however far their jobs
# say that they are.
UNAPPLIED = Statement(
    """
SELECT t.shred_id FROM unnest(:shred_ids::uuid[]) AS t(shred_id)
LEFT JOIN stateroom.jobs j ON j.tenant_id = :tenant_id AND j.job_id = t.shred_id
WHERE j.job_id IS NULL
   OR j.kind = :subject_kind AND EXISTS (SELECT FROM stateroom.subject_keys s WHERE s.tenant_id = :tenant_id
        AND s.subject_id = j.target AND s.state IN ('active', 'decrypt_only', 'retired'))
   OR j.kind = :tenant_kind AND EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = :tenant_id
        AND k.state IN ('active', 'decrypt_only', 'retired'))
""",
    UUID,
)

# A shred that is to be done from its beginning, known or not.
BEGIN_AGAIN = Statement("""
INSERT INTO stateroom.jobs AS j
    (tenant_id, job_id, kind, target, state, done, total, position, created_at, updated_at, mac, mac_format)
VALUES (:owner, :job_id, :kind, :target, 'queued', 0, NULL, :position, now(), now(), :mac, :mac_format)
ON CONFLICT (tenant_id, job_id) DO UPDATE SET kind = excluded.kind, target = excluded.target, state = 'queued',
    position = excluded.position, error = NULL, note = NULL, lease_until = NULL, updated_at = excluded.updated_at,
    mac = excluded.mac, mac_format = excluded.mac_format
""")
