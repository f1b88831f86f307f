"""Statements on approvals, their actions and their votes; everything that writes runs under the thread's lock.

A row is changed only as it was read (``mac = :before``). What is sealed is read by who opens it, and by nobody else.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement, columns


class ApprovalRow(msgspec.Struct, frozen=True):
    """An approval without what is sealed; all columns but the MAC are under the MAC."""

    approval_id: UUID
    namespace: str
    checkpoint_id: str | None
    run_id: str | None
    agent: str | None
    kind: str
    external_mac: bytes
    asked_mac: bytes
    action_mac: bytes
    status: str
    allowed: list[str]
    requested_by: str
    requested_principal: str
    created_at: datetime
    expires_at: datetime
    valid_until: datetime | None
    decided_at: datetime | None
    decisions_needed: int
    requester_may_approve: bool
    edit_allowed: bool
    valid_seconds: int
    asserted_count: bool
    revision: int
    client_share: bool
    has_display: bool
    request_member: bytes
    display_member: bytes | None
    decision_member: bytes | None
    mac: bytes


class ActionRow(msgspec.Struct, frozen=True):
    """An action of an approval."""

    approval_id: UUID
    position: int
    action_mac: bytes
    status: str
    verdict: str | None
    effect_name_mac: bytes | None
    edited: bool
    mac: bytes


class VoteRow(msgspec.Struct, frozen=True):
    """What one principal said.

    ``digest`` is a MAC of all of it, by which a repetition is known; ``counts_as`` is whom it is distinct by.
    """

    approval_id: UUID
    principal: str
    key_id: str
    counts_as: str
    verdicts: list[str]
    digest: bytes
    at: datetime
    asserted: bool
    mac: bytes


class SealedRow(msgspec.Struct, frozen=True):
    """What is sealed of an approval."""

    request: bytes
    display: bytes | None
    decision: bytes | None


_PLACE = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
_ONE = f"{_PLACE} AND approval_id = :approval_id"
_OWNER = "tenant_id, subject_id, thread_id"
_OWNER_VALUES = ":tenant_id, :subject_id, :thread_id"


def _values(row: type[msgspec.Struct]) -> str:
    return ", ".join(f":{name}" for name in row.__struct_fields__)


ALL = Statement(f"SELECT {columns(ApprovalRow)} FROM stateroom.approvals WHERE {_PLACE} ORDER BY approval_id",
    ApprovalRow)  # fmt: skip
PENDING = Statement(
    f"SELECT {columns(ApprovalRow)} FROM stateroom.approvals WHERE {_PLACE} AND status = 'pending' ORDER BY 1",
    ApprovalRow,
)
ALL_ACTIONS = Statement(
    f"SELECT {columns(ActionRow)} FROM stateroom.approval_actions WHERE {_PLACE} ORDER BY approval_id, position",
    ActionRow,
)
ALL_VOTES = Statement(
    f"SELECT {columns(VoteRow)} FROM stateroom.approval_votes WHERE {_PLACE} ORDER BY approval_id, at, principal",
    VoteRow,
)
SEALED = Statement(f"SELECT request, display, decision FROM stateroom.approvals WHERE {_ONE}", SealedRow)

ADD = Statement(f"""
INSERT INTO stateroom.approvals ({_OWNER}, {columns(ApprovalRow)}, request, display)
VALUES ({_OWNER_VALUES}, {_values(ApprovalRow)}, :request, :display)
""")
ADD_ACTION = Statement(f"""
INSERT INTO stateroom.approval_actions ({_OWNER}, {columns(ActionRow)}) VALUES ({_OWNER_VALUES}, {_values(ActionRow)})
""")
ADD_VOTE = Statement(f"""
INSERT INTO stateroom.approval_votes ({_OWNER}, {columns(VoteRow)}) VALUES ({_OWNER_VALUES}, {_values(VoteRow)})
""")
# One row, or it is not as it was read.
CHANGE = Statement(
    f"""
UPDATE stateroom.approvals SET action_mac = :action_mac, status = :status, valid_until = :valid_until,
    decided_at = :decided_at, revision = :revision, decision_member = :decision_member, mac = :mac
WHERE {_ONE} AND mac = :before RETURNING 1
""",
    int,
)
SET_DECISION = Statement(f"UPDATE stateroom.approvals SET decision = :decision WHERE {_ONE}")
CHANGE_ACTION = Statement(
    f"""
UPDATE stateroom.approval_actions SET action_mac = :action_mac, status = :status, verdict = :verdict,
    effect_name_mac = :effect_name_mac, edited = :edited, mac = :mac
WHERE {_ONE} AND position = :position AND mac = :before RETURNING 1
""",
    int,
)
REMOVE_VOTE = Statement(
    f"DELETE FROM stateroom.approval_votes WHERE {_ONE}"
    " AND principal = :principal AND asserted = :asserted AND mac = :before RETURNING 1",
    int,
)
REMOVE_ACTIONS = Statement(f"DELETE FROM stateroom.approval_actions WHERE {_ONE}")
REMOVE_VOTES = Statement(f"DELETE FROM stateroom.approval_votes WHERE {_ONE}")
REMOVE = Statement(f"DELETE FROM stateroom.approvals WHERE {_ONE} AND mac = :before RETURNING 1", int)
SET_OPEN = Statement(f"UPDATE stateroom.threads SET open_approvals = :open_approvals WHERE {_PLACE}")


class PlaceRow(msgspec.Struct, frozen=True):
    """Where an approval is."""

    subject_id: str
    thread_id: str


# Under a tenant's listing or a subject's binding: the policies of the rows say whose there are.
WHERE_IS = Statement(
    "SELECT subject_id, thread_id FROM stateroom.approvals WHERE tenant_id = :tenant_id AND approval_id = :approval_id",
    PlaceRow,
)


class ListedRow(msgspec.Struct, frozen=True):
    """What a list shows of an approval."""

    subject_id: str
    thread_id: str
    approval_id: UUID
    namespace: str
    checkpoint_id: str | None
    run_id: str | None
    agent: str | None
    kind: str
    status: str
    requested_by: str
    requested_principal: str
    created_at: datetime
    expires_at: datetime
    valid_until: datetime | None
    decided_at: datetime | None
    decisions_needed: int
    revision: int
    client_share: bool
    has_display: bool
    now: datetime


_LISTED = ", ".join(f"a.{name}" for name in ListedRow.__struct_fields__ if name != "now")
# As it stands now: what is over is expired, and an approval that nobody used in time has lapsed.
_STANDS = """CASE WHEN a.status = 'pending' AND a.expires_at <= statement_timestamp() THEN 'expired'
    WHEN a.status = 'approved' AND a.valid_until <= statement_timestamp() THEN 'lapsed' ELSE a.status END"""
_LIST = f"""
SELECT {_LISTED}, statement_timestamp() AS now FROM stateroom.approvals a
WHERE a.tenant_id = :tenant_id AND (:before::uuid IS NULL OR a.approval_id < :before)
  AND (:agent::text IS NULL OR a.agent = :agent) AND (:thread_id::text IS NULL OR a.thread_id = :thread_id)
  AND {{status}}
ORDER BY a.approval_id DESC LIMIT :limit
"""
LIST = Statement(_LIST.format(status=f"(:status::text IS NULL OR {_STANDS} = :status)"), ListedRow)
# What is asked for most, by the index of what waits: what has ended is never looked at.
LIST_PENDING = Statement(
    _LIST.format(status="a.status = 'pending' AND a.expires_at > statement_timestamp()"), ListedRow
)
LISTED_ONE = Statement(
    f"""
SELECT {_LISTED}, statement_timestamp() AS now FROM stateroom.approvals a
WHERE a.tenant_id = :tenant_id AND a.approval_id = :approval_id
""",
    ListedRow,
)


class ListedActionRow(msgspec.Struct, frozen=True):
    """What a list shows of an action."""

    approval_id: UUID
    position: int
    status: str
    verdict: str | None
    edited: bool


LIST_ACTIONS = Statement(
    """
SELECT approval_id, position, status, verdict, edited FROM stateroom.approval_actions
WHERE tenant_id = :tenant_id AND subject_id = ANY(:subject_ids::text[]) AND thread_id = ANY(:thread_ids::text[])
  AND approval_id = ANY(:approval_ids::uuid[])
ORDER BY approval_id, position
""",
    ListedActionRow,
)


class ListedVoteRow(msgspec.Struct, frozen=True):
    """What is shown of a vote."""

    principal: str
    key_id: str
    verdicts: list[str]
    at: datetime
    asserted: bool


LIST_VOTES = Statement(
    """
SELECT principal, key_id, verdicts, at, asserted FROM stateroom.approval_votes
WHERE tenant_id = :tenant_id AND subject_id = :of_subject AND thread_id = :thread_id AND approval_id = :approval_id
ORDER BY at, principal
""",
    ListedVoteRow,
)


class OverRow(msgspec.Struct, frozen=True):
    """An approval whose time is over, and where it is."""

    subject_id: str
    thread_id: str
    approval_id: UUID
    expires_at: datetime


# The ones that are over for longest first, behind one of them.
OVER = Statement(
    """
SELECT subject_id, thread_id, approval_id, expires_at FROM stateroom.approvals
WHERE tenant_id = :tenant_id AND status = 'pending' AND expires_at <= statement_timestamp()
  AND (:after_at::timestamptz IS NULL OR (expires_at, approval_id) > (:after_at, :after_id))
ORDER BY expires_at, approval_id LIMIT :limit
""",
    OverRow,
)
# When the next one of a tenant is over.
NEXT_OVER = Statement(
    """
SELECT min(expires_at) FROM stateroom.approvals
WHERE tenant_id = :tenant_id AND status = 'pending' AND expires_at > statement_timestamp()
""",
    datetime,
)


class PolicyRow(msgspec.Struct, frozen=True):
    """An approval policy as it is stored; an empty agent or tool stands for all."""

    agent: str
    tool: str
    required: bool
    decisions_needed: int
    requester_may_approve: bool
    edit_allowed: bool
    expires_seconds: int
    valid_seconds: int
    asserted_count: bool
    updated_at: datetime
    mac: bytes
    mac_format: int | None


class CountingPolicyRow(PolicyRow, frozen=True):
    """A policy of the tenant that the transaction is bound to."""

    tenant_id: UUID


POLICIES = Statement(
    f"SELECT {columns(PolicyRow)} FROM stateroom.approval_policies WHERE tenant_id = :tenant_id ORDER BY agent, tool",
    PolicyRow,
)
POLICY = Statement(
    f"""
SELECT {columns(PolicyRow)} FROM stateroom.approval_policies
WHERE tenant_id = :tenant_id AND agent = :agent AND tool = :tool
""",
    PolicyRow,
)
POLICIES_OF = Statement(
    f"""
SELECT {columns(CountingPolicyRow)} FROM stateroom.approval_policies
WHERE tenant_id = :tenant_id AND agent = ANY(:agents::text[]) AND tool = ANY(:tools::text[]) ORDER BY agent, tool
""",
    CountingPolicyRow,
)
POLICIES_COUNT = Statement("SELECT count(*) FROM stateroom.approval_policies WHERE tenant_id = :tenant_id", int)
PUT_POLICY = Statement(f"""
INSERT INTO stateroom.approval_policies (tenant_id, {columns(PolicyRow)}) VALUES (:tenant_id, {_values(PolicyRow)})
ON CONFLICT (tenant_id, agent, tool) DO UPDATE SET required = excluded.required,
    decisions_needed = excluded.decisions_needed, requester_may_approve = excluded.requester_may_approve,
    edit_allowed = excluded.edit_allowed, expires_seconds = excluded.expires_seconds,
    valid_seconds = excluded.valid_seconds, asserted_count = excluded.asserted_count, updated_at = excluded.updated_at,
    mac = excluded.mac, mac_format = excluded.mac_format
""")
REMOVE_POLICY = Statement(
    "DELETE FROM stateroom.approval_policies WHERE tenant_id = :tenant_id AND agent = :agent AND tool = :tool"
)
LOCK_POLICIES = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


class StaleRow(msgspec.Struct, frozen=True):
    """An approval with something that another key version sealed."""

    thread_id: str
    approval_id: UUID
    client_share: bool
    request: bytes
    display: bytes | None
    decision: bytes | None


def _other(column: str) -> str:
    return f"substring({column} FROM 9 FOR 4) <> :version"


STALE = Statement(
    f"""
SELECT {columns(StaleRow)} FROM stateroom.approvals
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND (thread_id, approval_id) > (:thread_id, :approval_id)
  AND ((NOT client_share AND {_other("request")}) OR {_other("display")} OR {_other("decision")})
ORDER BY thread_id, approval_id LIMIT :page_rows
""",
    StaleRow,
)
RESEAL = Statement(f"""
UPDATE stateroom.approvals SET request = :request, display = :display, decision = :decision
WHERE {_ONE} AND request = :request_before AND decision IS NOT DISTINCT FROM :decision_before
""")

IS_ASKING = Statement(
    f"SELECT true FROM stateroom.approvals WHERE {_PLACE} AND status = 'pending' LIMIT 1",
    bool,
)
OPEN_COUNT = Statement(f"SELECT open_approvals FROM stateroom.threads WHERE {_PLACE}", int)
