"""Statements on the audit log and its heads.

Both are of a chain: a tenant's, or the operators', which no scope says; so the chain is always given.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement


class HeadRow(msgspec.Struct, frozen=True):
    """The end of a chain, and the newest event that was anchored of it."""

    sequence: int
    hash: bytes
    anchored: int


class EventRow(msgspec.Struct, frozen=True):
    """An event as it is stored."""

    sequence: int
    at: datetime
    actor: str
    action: str
    target: str
    body: bytes
    previous: bytes
    hash: bytes


class ChainEnd(msgspec.Struct, frozen=True):
    """A chain, and the sequence of its last event; 0: there is none."""

    tenant_id: UUID
    sequence: int


LOCK_HEAD = Statement(
    "SELECT sequence, hash, anchored FROM stateroom.audit_heads WHERE tenant_id = :chain FOR UPDATE", HeadRow
)
ADD_HEAD = Statement(
    "INSERT INTO stateroom.audit_heads (tenant_id, sequence, hash) VALUES (:chain, 0, :hash) ON CONFLICT DO NOTHING"
)
MOVE_HEAD = Statement("UPDATE stateroom.audit_heads SET sequence = :sequence, hash = :hash WHERE tenant_id = :chain")
ADD_EVENT = Statement("""
INSERT INTO stateroom.audit_log (tenant_id, sequence, at, actor, action, target, body, previous, hash)
VALUES (:chain, :sequence, :at, :actor, :action, :target, :body, :previous, :hash)
""")

HEAD = Statement("SELECT sequence, hash, anchored FROM stateroom.audit_heads WHERE tenant_id = :chain", HeadRow)
EVENTS = Statement(
    """
SELECT sequence, at, actor, action, target, body, previous, hash
FROM stateroom.audit_log WHERE tenant_id = :chain AND sequence > :after ORDER BY sequence LIMIT :page_rows
""",
    EventRow,
)
LAST_EVENT = Statement("SELECT max(sequence) FROM stateroom.audit_log WHERE tenant_id = :chain", int)

# Across tenants, by an operator's binding: where chains end, and nothing of what they hold.
TO_ANCHOR = Statement(
    """
SELECT tenant_id FROM stateroom.audit_heads WHERE sequence > anchored
  AND tenant_id > :after ORDER BY tenant_id LIMIT :page_rows
""",
    UUID,
)
# A tenant whose log was taken away altogether has a chain all the same.
ENDS = Statement(
    """
SELECT tenant_id, max(sequence) AS sequence FROM (
    SELECT tenant_id, sequence FROM stateroom.audit_heads WHERE tenant_id > :after
    UNION ALL SELECT tenant_id, 0 FROM stateroom.tenants WHERE tenant_id > :after
) AS chains GROUP BY tenant_id ORDER BY tenant_id LIMIT :page_rows
""",
    ChainEnd,
)
TENANTS = Statement(
    "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > :after ORDER BY tenant_id LIMIT :page_rows", UUID
)
ANCHORED = Statement(
    "UPDATE stateroom.audit_heads SET anchored = :sequence WHERE tenant_id = :chain AND anchored < :sequence"
)
