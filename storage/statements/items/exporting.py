"""Statements on what is exported of a subject's items."""

from datetime import datetime

import msgspec

from storage.format.items.item import ItemColumns
from storage.postgres.statement import Statement
from storage.statements.items.paths import PathRow


class ExportedPath(PathRow, frozen=True):
    """A path with its labels."""

    labels: bytes


class ExportedItem(msgspec.Struct, frozen=True):
    """An item of a path that is known; ``over``: its time was over when it was read."""

    key_id: bytes
    revision: int
    ttl_seconds: int | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    member: bytes
    envelope: bytes
    over: bool

    def columns(self, path_id: bytes) -> ItemColumns:
        """The columns that its envelope is bound to."""
        return ItemColumns(
            path_id, self.key_id, self.revision, self.ttl_seconds, self.created_at, self.updated_at
        )  # fmt: skip


EXPORTED_PATH = Statement(
    """
SELECT path_id, share_check, sequence, seal, labels FROM stateroom.item_paths
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id
""",
    ExportedPath,
)
ITEMS_AFTER = Statement(
    """
SELECT key_id, revision, ttl_seconds, created_at, updated_at, expires_at, member, envelope,
    coalesce(expires_at <= statement_timestamp(), false) AS over
FROM stateroom.items
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND path_id = :path_id AND key_id > :key_id
ORDER BY key_id LIMIT :page_rows
""",
    ExportedItem,
)
