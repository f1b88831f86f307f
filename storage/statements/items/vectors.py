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

# By look-ups of each name, however many vectors the subject has (as `storage.statements.items.items` does).
MEMBERS = Statement(
    f"""
SELECT {columns(VectorsMember)} FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(of_path, of_key)
CROSS JOIN LATERAL (
    SELECT * FROM stateroom.item_vectors x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = w.of_path AND x.key_id = w.of_key
    OFFSET 0) v
""",
    VectorsMember,
)

OF_MODEL = Statement(
    f"""
SELECT {columns(VectorsRow)} FROM unnest(:path_ids::bytea[], :key_ids::bytea[]) AS w(of_path, of_key)
CROSS JOIN LATERAL (
    SELECT * FROM stateroom.item_vectors x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = w.of_path AND x.key_id = w.of_key
      AND x.model_id = :model_id
    LIMIT 1) v
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
# Of some paths, the first rows of each that came after a sequence of its own: so many, and no more behind so many
# bytes. That a sequence is positive is true of every row, and the condition of the index that only this uses.
CHANGED = Statement(
    f"""
SELECT {columns(VectorsRow)} FROM unnest(:path_ids::bytea[], :sequences::bigint[]) AS w(of_path, since)
CROSS JOIN LATERAL (
    SELECT *, sum(octet_length(x.envelope)) OVER (ORDER BY x.sequence) - octet_length(x.envelope) AS bytes_before
    FROM stateroom.item_vectors x
    WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.path_id = w.of_path
      AND x.model_id = :model_id AND x.sequence > w.since AND x.sequence > 0
    ORDER BY x.sequence LIMIT :path_rows) v
WHERE v.bytes_before < :path_bytes
""",
    VectorsRow,
)
