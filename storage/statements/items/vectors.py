"""Statements on vectors of items: those of some items, and those that came since an index was read."""

import msgspec

from storage.format.items.vectors import VectorColumns
from storage.postgres.statement import Statement, columns


class VectorsRow(VectorColumns, frozen=True):
    """A stored row of vectors."""

    member: bytes
    envelope: bytes

    @property
    def columns(self) -> VectorColumns:
        """The columns that its envelope is bound to."""
        return VectorColumns(self.path_id, self.key_id, self.model_id, self.revision, self.sequence)


class VectorsMember(VectorColumns, frozen=True):
    """A row of vectors without its content."""

    member: bytes


class SequenceRow(msgspec.Struct, frozen=True):
    """A path, and how many changes it has had."""

    path_id: bytes
    sequence: int


PUT_VECTORS = Statement("""
INSERT INTO stateroom.item_vectors AS v
    (tenant_id, subject_id, path_id, key_id, model_id, revision, sequence, member, envelope)
VALUES (:tenant_id, :subject_id, :path_id, :key_id, :model_id, :revision, :sequence, :member, :envelope)
ON CONFLICT (tenant_id, subject_id, path_id, key_id, model_id) DO UPDATE SET revision = excluded.revision,
    sequence = excluded.sequence, member = excluded.member, envelope = excluded.envelope
""")
DELETE_VECTORS = Statement("""
DELETE FROM stateroom.item_vectors
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
""")
SET_INDEXED = Statement("""
UPDATE stateroom.items SET indexed = true
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id = :key_id
""")

MEMBERS = Statement(
    f"""
SELECT {columns(VectorsMember).replace("path_id, key_id", "v.path_id, v.key_id")}
FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(path_id, key_id)
JOIN stateroom.item_vectors v ON v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = w.path_id
    AND v.key_id = w.key_id
""",
    VectorsMember,
)

OF_MODEL = Statement(
    f"""
SELECT {columns(VectorsRow).replace("path_id, key_id", "v.path_id, v.key_id")}
FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(path_id, key_id)
JOIN stateroom.item_vectors v ON v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = w.path_id
    AND v.key_id = w.key_id AND v.model_id = :model_id
""",
    VectorsRow,
)

SEQUENCES = Statement(
    """
SELECT path_id, sequence FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = ANY(:path_ids::bytea[])
""",
    SequenceRow,
)
# Of some paths, those rows that came after a sequence of each; page by page in the order of path, sequence and key.
CHANGED = Statement(
    f"""
SELECT {columns(VectorsRow).replace("path_id, key_id", "v.path_id, v.key_id").replace(" sequence", " v.sequence")}
FROM unnest(:path_ids::bytea[], :sequences::bigint[]) AS w(path_id, since)
JOIN stateroom.item_vectors v ON v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = w.path_id
    AND v.model_id = :model_id AND v.sequence > w.since
WHERE (v.path_id, v.sequence, v.key_id) > (:after_path, :after_sequence, :after_key)
ORDER BY v.path_id, v.sequence, v.key_id LIMIT :page_rows
""",
    VectorsRow,
)

# --- the walks of verification, rotation and export ------------------------------------------------------------------

ALL_VECTORS_AFTER = Statement(
    f"""
SELECT {columns(VectorsRow)} FROM stateroom.item_vectors
WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND (path_id, key_id, model_id) > (:path_id, :key_id, :model_id)
ORDER BY path_id, key_id, model_id LIMIT :page_rows
""",
    VectorsRow,
)
