"""Statements that verification walks through a subject's items with, a path at a time, and what is of no path."""

from storage.postgres.statement import Statement, columns
from storage.statements.items.paths import PathRow
from storage.statements.items.vectors import VectorsMember, VectorsRow


class WholePathRow(PathRow, frozen=True):
    """A path's row."""

    labels: bytes


# The next name of a path of which there is anything, be it its row, or items or vectors without one.
NEXT_PATH = Statement(
    """
SELECT path_id FROM (
    (SELECT path_id FROM stateroom.item_paths
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id LIMIT 1)
    UNION ALL
    (SELECT path_id FROM stateroom.items
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id, key_id LIMIT 1)
    UNION ALL
    (SELECT path_id FROM stateroom.item_vectors
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id
    ORDER BY path_id, key_id, model_id LIMIT 1)
) found ORDER BY path_id LIMIT 1
""",
    bytes,
)

PATH = Statement(
    """
SELECT path_id, share_check, sequence, seal, labels FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
""",
    WholePathRow,
)

# A page of a path's rows of vectors, with and without what only its client opens.
_VECTORS = """
FROM stateroom.item_vectors
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
  AND (key_id, model_id) > (:key_id, :model_id)
ORDER BY key_id, model_id LIMIT :page_rows
"""
VECTORS_OF_PATH = Statement(f"SELECT {columns(VectorsRow)} {_VECTORS}", VectorsRow)
MEMBERS_OF_PATH = Statement(f"SELECT {columns(VectorsMember)} {_VECTORS}", VectorsMember)

# Items whose rows do not say that they have vectors: whoever puts them would leave those.
UNTOLD_VECTORS = Statement(
    """
SELECT count(*) FROM stateroom.items i
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.path_id = :path_id AND NOT i.indexed
  AND EXISTS (SELECT FROM stateroom.item_vectors v
      WHERE v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = i.path_id AND v.key_id = i.key_id)
""",
    int,
)
