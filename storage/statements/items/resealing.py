"""Statements that seal items, vectors, labels and seals again: which need it, and what is stored instead.

Which key sealed an envelope is read from its header (bytes 9 to 12), as in `storage.statements.keys.rotation`. What is
under a client's share is left to the client.
"""

import msgspec

from storage.postgres.statement import Statement, columns
from storage.statements.items.paths import PathRow, ScopeRow
from storage.statements.items.vectors import VectorsRow


class StalePath(PathRow, frozen=True):
    """A path that is locked; ``labels`` null: they need nothing, or are under a client's share."""

    labels: bytes | None
    stale_seal: bool


class PlaceSize(msgspec.Struct, frozen=True):
    """Where something is that needs it, and the bytes of its envelope; of an item the model's name is empty."""

    path_id: bytes
    key_id: bytes
    model_id: bytes
    size: int


def _other(column: str) -> str:
    return f"substring({column} FROM 9 FOR 4) <> :version::bytea"


def _stale(table: str, names: str, parameters: str, model: str) -> Statement[PlaceSize]:
    """Also what is in a path that is gone, which is damage: it opens, or it does not."""
    return Statement(
        f"""
SELECT x.path_id, x.key_id, {model} AS model_id, octet_length(x.envelope) AS size FROM stateroom.{table} x
WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND {_other("x.envelope")} AND ({names}) > ({parameters})
  AND NOT EXISTS (SELECT FROM stateroom.item_paths p
      WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.path_id = x.path_id
        AND p.share_check IS NOT NULL)
ORDER BY {names} LIMIT :page_rows
""",
        PlaceSize,
    )


STALE_ITEMS = _stale("items", "x.path_id, x.key_id", ":path_id, :key_id", "''::bytea")
STALE_VECTORS = _stale("item_vectors", "x.path_id, x.key_id, x.model_id", ":path_id, :key_id, :model_id", "x.model_id")
VECTORS = Statement(
    f"""
SELECT {columns(VectorsRow)}
FROM unnest(:path_ids::bytea[], :key_ids::bytea[], :model_ids::bytea[]) AS w(of_path, of_key, of_model)
CROSS JOIN LATERAL (SELECT * FROM stateroom.item_vectors x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = w.of_path AND x.key_id = w.of_key
      AND x.model_id = w.of_model LIMIT 1) v
""",
    VectorsRow,
)
# Only over what was read: what was put since was sealed anew.
RESEAL_ITEMS = Statement("""
UPDATE stateroom.items SET envelope = :envelope
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
  AND revision = :revision AND envelope = :before
""")
RESEAL_VECTORS = Statement("""
UPDATE stateroom.item_vectors SET envelope = :envelope
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
  AND model_id = :model_id AND sequence = :sequence AND envelope = :before
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
