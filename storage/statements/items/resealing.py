"""Statements that seal items, labels and the seals of paths again: which need it, and what is stored instead.

Which key sealed an envelope is read from its header (bytes 9 to 12), as in `storage.statements.keys.rotation`. What is
under a client's share is left to the client.
"""

import msgspec

from storage.postgres.statement import Statement
from storage.statements.items.paths import PathRow, ScopeRow


class StalePath(PathRow, frozen=True):
    """A path that is locked; ``labels`` null: they need nothing, or are under a client's share."""

    labels: bytes | None
    stale_seal: bool


class PlaceSize(msgspec.Struct, frozen=True):
    """Where an item that needs it is, and the bytes of its envelope."""

    path_id: bytes
    key_id: bytes
    size: int


def _other(column: str) -> str:
    return f"substring({column} FROM 9 FOR 4) <> :version::bytea"


# Also items whose path is gone, which is damage: they open, or they do not.
STALE_PLACES = Statement(
    f"""
SELECT i.path_id, i.key_id, octet_length(i.envelope) AS size FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND {_other("i.envelope")}
  AND (i.path_id, i.key_id) > (:path_id, :key_id)
  AND NOT EXISTS (SELECT FROM stateroom.item_paths p
      WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.path_id = i.path_id
        AND p.share_check IS NOT NULL)
ORDER BY i.path_id, i.key_id LIMIT :page_rows
""",
    PlaceSize,
)
RESEAL_ITEM = Statement("""
UPDATE stateroom.items SET envelope = :envelope
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
  AND revision = :revision AND envelope = :envelope_before
""")

# One order for everybody who locks several.
LOCK_PATHS = Statement("""
SELECT path_id FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = ANY(:path_ids::bytea[])
ORDER BY path_id FOR UPDATE
""")
LOCK_STALE_PATHS = Statement(
    f"""
SELECT path_id, share_check, sequence, seal, CASE WHEN share_check IS NULL AND {_other("labels")} THEN labels END
    AS labels, {_other("seal")} AS stale_seal
FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id
  AND ({_other("seal")} OR share_check IS NULL AND {_other("labels")})
ORDER BY path_id LIMIT :page_rows FOR UPDATE
""",
    StalePath,
)
RESEAL_PATH = Statement("""
UPDATE stateroom.item_paths SET seal = coalesce(:seal, seal), labels = coalesce(:labels, labels)
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
""")
LOCK_STALE_SCOPE = Statement(
    f"""
SELECT sequence, seal FROM stateroom.item_scopes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND {_other("seal")} FOR UPDATE
""",
    ScopeRow,
)
