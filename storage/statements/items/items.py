"""Statements on items: those of some names, those of some paths in the order of their changes, and what is over.

Whether an item is over goes by the database's clock. What is over stays until it is swept, and is counted by its path
until then, so the statements return it.
"""

from datetime import datetime

import msgspec

from storage.format.items.item import ItemColumns
from storage.postgres.statement import Statement
from storage.statements.keys.keys import KEYS_HASH


class ItemRow(ItemColumns, frozen=True):
    """A stored item, whole.

    ``over``: its time was over when it was read; ``fading``: a tenth of it or more was.
    """

    expires_at: datetime | None
    member: bytes
    envelope: bytes
    over: bool
    fading: bool

    @property
    def columns(self) -> ItemColumns:
        """The columns that its envelope is bound to."""
        return ItemColumns(self.path_id, self.key_id, self.revision, self.ttl_seconds, self.created_at, self.updated_at)


class PlaceRow(msgspec.Struct, frozen=True):
    """Where an item stands in the order of changes, without its content; ``size``: the bytes of that."""

    path_id: bytes
    key_id: bytes
    updated_at: datetime
    member: bytes
    size: int
    over: bool


class TenantPolicy(msgspec.Struct, frozen=True):
    """What a tenant says of retention and holds, with its proof."""

    policy: bytes
    legal_hold: bool
    policy_updated_at: datetime
    mac: bytes | None
    mac_format: int | None


class FoundRow(msgspec.Struct, frozen=True):
    """What is stored under a name that is to be written; everything but the name and the clock is null if nothing is.

    The tenant's policy comes along, because it may hold what is stored; ``keys_hash`` and ``now`` are the statement's.
    """

    path_id: bytes
    key_id: bytes
    revision: int | None
    created_at: datetime | None
    member: bytes | None
    over: bool | None
    indexed: bool | None
    keys_hash: int
    now: datetime
    tenant_policy: TenantPolicy | None


class ExpiredRow(msgspec.Struct, frozen=True):
    """An item whose time is over, of any subject."""

    expires_at: datetime
    subject_id: str
    path_id: bytes
    key_id: bytes


_OVER = "coalesce(i.expires_at <= statement_timestamp(), false)"
_ITEM = f"""i.path_id, i.key_id, i.revision, i.ttl_seconds, i.created_at, i.updated_at, i.expires_at, i.member,
    i.envelope, {_OVER} AS over, coalesce(i.expires_at - statement_timestamp()
        < make_interval(secs => 0.9 * i.ttl_seconds), false) AS fading"""

# One look-up by primary key for each name, however many items the subject has: as a plain join, a subject without
# statistics, or with many others that have few, was read whole.
_EACH = """(
    SELECT * FROM stateroom.items x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = w.path_id AND x.key_id = w.key_id
    LIMIT 1) i"""
# True of every item, and the condition of the indexes that only lists may use.
_LISTED = "i.revision > 0"

# Those of some names; names and rows are matched by the caller.
NAMED = Statement(
    f"""
SELECT {_ITEM} FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(path_id, key_id) CROSS JOIN LATERAL {_EACH}
""",
    ItemRow,
)

# A row for each name, also for one that nothing is stored under. After the paths are locked, so that it stays true, and
# so that its moment is later than what was put before.
FOUND = Statement(
    f"""
SELECT w.path_id, w.key_id, i.revision, i.created_at, i.member, i.expires_at <= statement_timestamp() AS over,
    i.indexed, {KEYS_HASH} AS keys_hash, statement_timestamp() AS now,
    r.policy, r.legal_hold, r.updated_at AS policy_updated_at, r.mac, r.mac_format
FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(path_id, key_id)
LEFT JOIN LATERAL {_EACH} ON true
LEFT JOIN stateroom.retention r ON r.tenant_id = :tenant_id AND r.level = 'tenant' AND r.target = ''
""",
    FoundRow,
)

PUT = Statement("""
INSERT INTO stateroom.items AS i (tenant_id, subject_id, path_id, key_id, revision, ttl_seconds, created_at, updated_at,
    expires_at, member, envelope, indexed)
VALUES (:tenant_id, :subject_id, :path_id, :key_id, :revision, :ttl_seconds, :created_at, :updated_at, :expires_at,
    :member, :envelope, :indexed)
ON CONFLICT (tenant_id, subject_id, path_id, key_id) DO UPDATE SET revision = excluded.revision,
    ttl_seconds = excluded.ttl_seconds, created_at = excluded.created_at, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at, member = excluded.member, envelope = excluded.envelope,
    indexed = excluded.indexed
""")
DELETE = Statement("""
DELETE FROM stateroom.items
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
""")

# Never a row that was written since, nor one that is over: it was shown as absent by then. What somebody is writing is
# left out, so that this waits for nobody.
KEEP = Statement("""
UPDATE stateroom.items SET expires_at = statement_timestamp() + make_interval(secs => ttl_seconds)
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = (
    SELECT x.key_id FROM stateroom.items x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = :path_id AND x.key_id = :key_id
      AND x.revision = :revision AND x.expires_at > statement_timestamp()
      AND x.expires_at < statement_timestamp() + make_interval(secs => x.ttl_seconds)
    FOR UPDATE SKIP LOCKED)
""")

# --- in the order of changes, the newest first -----------------------------------------------------------------------

_PLACE = f"i.path_id, i.key_id, i.updated_at, i.member, octet_length(i.envelope) AS size, {_OVER} AS over"
_AFTER = """(:updated_at::timestamptz IS NULL OR (i.updated_at, i.path_id, i.key_id) < (:updated_at, :path_id, :key_id))
ORDER BY i.updated_at DESC, i.path_id DESC, i.key_id DESC LIMIT :page_rows"""
PLACES = Statement(
    f"""
SELECT {_PLACE} FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND {_LISTED} AND {_AFTER}
""",
    PlaceRow,
)
PLACES_OF_PATH = Statement(
    f"""
SELECT {_PLACE} FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = :of_path AND {_LISTED}
  AND (:updated_at::timestamptz IS NULL OR (i.updated_at, i.key_id) < (:updated_at, :key_id))
ORDER BY i.updated_at DESC, i.key_id DESC LIMIT :page_rows
""",
    PlaceRow,
)

# --- what is over ----------------------------------------------------------------------------------------------------

# By the tenant's binding, from the first that was over on.
EXPIRED = Statement(
    """
SELECT expires_at, subject_id, path_id, key_id FROM stateroom.items
WHERE tenant_id = :tenant_id AND expires_at <= statement_timestamp()
  AND (expires_at, subject_id, path_id, key_id) > (:expires_at, :subject_id, :path_id, :key_id)
ORDER BY expires_at, subject_id, path_id, key_id LIMIT :page_rows
""",
    ExpiredRow,
)
OVER_IN_PATH = Statement(
    f"""
SELECT {_PLACE} FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = :of_path
  AND i.expires_at <= statement_timestamp()
ORDER BY i.key_id LIMIT :page_rows FOR UPDATE
""",
    PlaceRow,
)

# --- the walks of verification, rotation and export ------------------------------------------------------------------

# Those of one path in the order of their keys, with and without what only its client opens.
OF_PATH = Statement(
    f"""
SELECT {_ITEM} FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = :of_path AND i.key_id > :key_id
ORDER BY i.key_id LIMIT :page_rows
""",
    ItemRow,
)
MEMBERS_OF_PATH = Statement(
    f"""
SELECT {_PLACE} FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = :of_path AND i.key_id > :key_id
ORDER BY i.key_id LIMIT :page_rows
""",
    PlaceRow,
)
