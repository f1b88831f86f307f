"""Statements that verification walks through a subject's items with, a path at a time, and what is of no path."""

from storage.postgres.statement import Statement
from storage.statements.items.paths import PathRow


class WholePathRow(PathRow, frozen=True):
    """A path's row."""

    labels: bytes


# The next name of a path of which there is anything, be it its row or items without one.
NEXT_PATH = Statement(
    """
SELECT path_id FROM (
    (SELECT path_id FROM stateroom.item_paths
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id LIMIT 1)
    UNION ALL
    (SELECT path_id FROM stateroom.items
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id > :path_id ORDER BY path_id, key_id LIMIT 1)
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
