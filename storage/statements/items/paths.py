"""Statements on the paths of items, and on what a subject's paths are together."""

import msgspec

from storage.postgres.statement import Statement
from storage.statements.keys.keys import KEYS_HASH


class ScopeRow(msgspec.Struct, frozen=True):
    """What a subject's paths are together."""

    sequence: int
    seal: bytes


class ScopeNow(msgspec.Struct, frozen=True):
    """The same as a snapshot has it, where there is none null, and what the stored keys make."""

    sequence: int | None
    seal: bytes | None
    keys_hash: int


class PathRow(msgspec.Struct, frozen=True):
    """A path's seal with the columns that it is bound to."""

    path_id: bytes
    share_check: bytes | None
    sequence: int
    seal: bytes


class LabelsRow(msgspec.Struct, frozen=True):
    """A path's labels; ``share_check`` null: they are under no client's share."""

    path_id: bytes
    share_check: bytes | None
    labels: bytes


# One order for everybody who locks several.
LOCK_PATHS = Statement(
    """
SELECT path_id, share_check, sequence, seal FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = ANY(:path_ids::bytea[])
ORDER BY path_id FOR UPDATE
""",
    PathRow,
)
ADD_PATH = Statement(
    """
INSERT INTO stateroom.item_paths (tenant_id, subject_id, path_id, share_check, sequence, seal, labels)
VALUES (:tenant_id, :subject_id, :path_id, :share_check, :sequence, :seal, :labels)
ON CONFLICT DO NOTHING RETURNING true
""",
    bool,
)
SET_PATH = Statement("""
UPDATE stateroom.item_paths SET sequence = :sequence, seal = :seal
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
""")
REMOVE_PATH = Statement("""
DELETE FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
""")

ADD_SCOPE = Statement("""
INSERT INTO stateroom.item_scopes (tenant_id, subject_id, sequence, seal)
VALUES (:tenant_id, :subject_id, :sequence, :seal)
ON CONFLICT DO NOTHING
""")
LOCK_SCOPE = Statement(
    """
SELECT sequence, seal FROM stateroom.item_scopes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id FOR UPDATE
""",
    ScopeRow,
)
SET_SCOPE = Statement("""
UPDATE stateroom.item_scopes SET sequence = :sequence, seal = :seal
WHERE tenant_id = :tenant_id AND subject_id = :subject_id
""")

SCOPE = Statement(
    f"""
SELECT s.sequence, s.seal, k.keys_hash FROM (SELECT {KEYS_HASH} AS keys_hash) k
LEFT JOIN stateroom.item_scopes s ON s.tenant_id = :tenant_id AND s.subject_id = :subject_id
""",
    ScopeNow,
)
LABELS_AFTER = Statement(
    """
SELECT path_id, share_check, labels FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id LIMIT :page_rows
""",
    LabelsRow,
)
PATHS = Statement(
    """
SELECT path_id, share_check, sequence, seal FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = ANY(:path_ids::bytea[])
""",
    PathRow,
)
PATHS_AFTER = Statement(
    """
SELECT path_id, share_check, sequence, seal FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id LIMIT :page_rows
""",
    PathRow,
)

# Those in which something is that is not over.
WITH_ITEMS = Statement(
    """
SELECT w.path_id FROM unnest(:path_ids::bytea[]) AS w(path_id)
CROSS JOIN LATERAL (SELECT FROM stateroom.items i
    WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = w.path_id
      AND (i.expires_at IS NULL OR i.expires_at > statement_timestamp()) LIMIT 1) i
""",
    bytes,
)
