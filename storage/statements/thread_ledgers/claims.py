"""Statements on claims, and on what a thread says of its newest one."""

from datetime import datetime

import msgspec

from storage.format.thread_ledgers.claim import ClaimColumns
from storage.postgres.statement import Statement, column_names


class ClaimRow(ClaimColumns, frozen=True):
    """A claim as it is stored."""

    note: bytes | None
    mac: bytes

    @property
    def columns(self) -> ClaimColumns:
        """The clear columns by themselves."""
        return ClaimColumns(*msgspec.structs.astuple(self)[: len(_CLEAR)])


_CLEAR = ClaimColumns.__struct_fields__
_ALL = column_names(ClaimRow)

ONE = Statement(
    f"""
SELECT {", ".join(_ALL)} FROM stateroom.claims
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""",
    ClaimRow,
)
ADD = Statement(f"""
INSERT INTO stateroom.claims (tenant_id, subject_id, {", ".join(_ALL)})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in _ALL)})
""")
SET = Statement(f"""
UPDATE stateroom.claims SET {", ".join(f"{name} = :{name}" for name in _ALL if name != "thread_id")}
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND mac = :before
""")

# What the thread's own row says of its claim; saves compare it and renew it.
SET_THREAD = Statement("""
UPDATE stateroom.threads SET fence = :fence, claimed_until = :claimed_until, claim_seconds = :claim_seconds,
    claims_required = :claims_required
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")


class SilentRow(msgspec.Struct, frozen=True):
    """A thread whose claim is over though nobody released it."""

    subject_id: str
    thread_id: str
    agent: str | None
    status: str
    fence: int
    holder: str
    run_id: str | None
    claimed_at: datetime
    claimed_until: datetime
    lease_seconds: int
    takeovers: int
    stuck: bool


# From the claims that nobody released, by their index; threads have none on a column that each save changes.
SILENT = Statement(
    """
SELECT c.subject_id, c.thread_id, t.agent, t.status, c.fence, c.holder, c.run_id, c.claimed_at, t.claimed_until,
    c.lease_seconds, c.takeovers, c.takeovers >= :takeovers_max AND c.activity = t.activity AS stuck
FROM stateroom.claims c JOIN stateroom.threads t ON t.tenant_id = :tenant_id AND t.subject_id = c.subject_id
    AND t.thread_id = c.thread_id
WHERE c.tenant_id = :tenant_id AND c.status <> 'released'
  AND (c.subject_id, c.thread_id) > (:after_subject, :after_thread)
  AND (:only_subject::text IS NULL OR c.subject_id = :only_subject) AND (:agent::text IS NULL OR t.agent = :agent)
  AND t.claimed_until <= statement_timestamp() - make_interval(secs => :silent_seconds)
ORDER BY c.subject_id, c.thread_id LIMIT :limit
""",
    SilentRow,
)
