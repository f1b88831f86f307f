"""Statements on links of threads: who is whose parent.

Rows are found by the column `threads.parent_thread_id`, which says what the seal says; a reader of them opens it.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement
from storage.statements.threads.threads import LISTED_COLUMNS, ListedThread

# A transaction that links in a subject waits for others that do, and sees then what they did.
LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0))")


def links_lock(tenant_id: UUID, subject_id: str) -> str:
    """The name of the lock that is taken to link a thread of a subject."""
    return f"{tenant_id}/links/{subject_id}"


LINK = Statement("""
UPDATE stateroom.threads
SET seal = :seal, parent_thread_id = :parent_thread_id, activity = activity + 1, updated_at = :now
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")


class LinkedRow(msgspec.Struct, frozen=True):
    """A thread, as far as its link is concerned."""

    thread_id: str
    created_at: datetime
    client_share: bool
    parent_thread_id: str | None
    seal: bytes


_LINKED = "t.thread_id, t.created_at, t.client_share, t.parent_thread_id, t.seal"

ONE = Statement(
    f"""
SELECT {_LINKED} FROM stateroom.threads t
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
""",
    LinkedRow,
)

# A thread, its parent, and so on, as many as are asked for.
ANCESTORS = Statement(
    f"""
WITH RECURSIVE up AS (
    SELECT 1 AS distance, {_LINKED} FROM stateroom.threads t
    WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = :thread_id
    UNION ALL
    SELECT up.distance + 1, {_LINKED} FROM up JOIN stateroom.threads t
        ON t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.thread_id = up.parent_thread_id
    WHERE up.distance < :limit
)
SELECT thread_id, created_at, client_share, parent_thread_id, seal FROM up ORDER BY distance
""",
    LinkedRow,
)

# The children of some threads.
CHILDREN_OF = Statement(
    f"""
SELECT {_LINKED} FROM stateroom.threads t
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.parent_thread_id = ANY(:parents::text[])
LIMIT :limit
""",
    LinkedRow,
)

# Newest first. The moment alone leads into the index: row-level security keeps a comparison of text from it.
CHILDREN = Statement(
    f"""
SELECT {LISTED_COLUMNS} FROM stateroom.threads t
WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.parent_thread_id = :parent_thread_id
  AND t.created_at <= :until_at AND (t.created_at < :until_at OR t.thread_id < :before)
ORDER BY t.created_at DESC, t.thread_id DESC
LIMIT :limit
""",
    ListedThread,
)
