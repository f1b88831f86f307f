"""Approvals as verbs take and give them, and their limits. What is asked with a save is in `storage.model`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from storage.model import ApprovalKind, Asker, NewAction, NewApproval, VerdictWord

__all__ = [
    "ActionState",
    "ActionStatus",
    "Approval",
    "ApprovalContent",
    "ApprovalKind",
    "ApprovalPage",
    "ApprovalPolicy",
    "ApprovalQuery",
    "ApprovalStatus",
    "AskedAction",
    "Asker",
    "Decision",
    "NewAction",
    "NewApproval",
    "PolicyEntry",
    "Verdict",
    "VerdictWord",
    "Vote",
    "Voter",
]  # fmt: skip

APPROVAL_ACTIONS_MAX: Final = 32
APPROVALS_PENDING_MAX: Final = 64
APPROVALS_ENDED_MAX: Final = 1_000
APPROVAL_CONTENT_BYTES_MAX: Final = 256 * 1024
APPROVAL_POLICIES_MAX: Final = 1_000
EXPIRES_SECONDS_MIN: Final = 60
EXPIRES_SECONDS_MAX: Final = 30 * 86_400

ApprovalStatus = Literal[
    "pending", "approved", "rejected", "answered", "expired", "cancelled", "superseded", "consumed", "lapsed"
]
ActionStatus = Literal["pending", "approved", "rejected", "answered", "consumed", "lapsed"]


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """What is asked of approvals. It is copied into each when it is made: loosening it changes none that waits.

    Attributes:
        required: Whether the ledger of effects refuses an action without an approval.
        decisions_needed: How many principals must approve, 1 to 5.
        requester_may_approve: Whether whoever asked may approve, too.
        edit_allowed: Whether arguments may be edited.
        expires_seconds: How long a question waits, at most.
        valid_seconds: How long an approval holds once it is given.
        asserted_count: Whether each person that a backend names counts; False: all of them together are one.
    """

    required: bool = False
    decisions_needed: int = 1
    requester_may_approve: bool = False
    edit_allowed: bool = True
    expires_seconds: int = 7 * 86_400
    valid_seconds: int = 86_400
    asserted_count: bool = False


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """The policy of a tool of an agent; None: of all agents, of all tools.

    Attributes:
        agent: Whose approvals it is about.
        tool: The tool that it is about.
        policy: What it says; None: its row is damaged.
        updated_at: When it was set.
        damaged: Whether its row was written or edited outside the gateway, so that it says nothing.
    """

    agent: str | None
    tool: str | None
    policy: ApprovalPolicy | None
    updated_at: datetime | None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ActionState:
    """How one action of an approval stands. ``edited``: it is another one than the agent asked about."""

    position: int
    status: ActionStatus
    verdict: VerdictWord | None
    edited: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Who said what. ``asserted``: the key of ``key_id`` named the person."""

    principal: str
    key_id: str
    verdict: VerdictWord
    at: datetime
    asserted: bool


@dataclass(frozen=True, slots=True)
class Approval:
    """How an approval stands, in clear columns: nothing of what it is about.

    ``status`` is ``expired`` from the moment on at which it is over, also where that is not stored yet. ``namespace``
    is the root of the one that asked. ``client_share``: its content opens only with its thread's share, but for the
    display text. A list of them has no ``votes``.
    """

    approval_id: UUID
    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str | None
    run_id: str | None
    agent: str | None
    kind: ApprovalKind
    status: ApprovalStatus
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
    actions: tuple[ActionState, ...] = ()
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedAction:
    """An action, exactly.

    Attributes:
        tool: The tool's name.
        tool_digest: SHA-256 of what it takes, in hex.
        args: The arguments in MessagePack, as the agent asked; ``hide`` is applied by whoever shows them.
        args_schema: Their JSON schema, in JSON.
        hide: JSON pointers to what nobody is shown.
        description: What the agent says of it.
        action_hash: The hash, in hex; that of the edited arguments, where there are some.
        verdict: What was decided.
        edited_args: What an approver made of the arguments, in MessagePack.
        response: What was answered, in MessagePack.
        message: What the approver says of it.
    """

    tool: str
    tool_digest: str | None
    args: bytes
    args_schema: bytes | None
    hide: tuple[str, ...]
    description: str | None
    action_hash: str
    verdict: VerdictWord | None = None
    edited_args: bytes | None = None
    response: bytes | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalContent:
    """What exactly is asked. Whoever decides repeats ``action_hash`` (`approval_hash` over the actions', in hex).

    ``withheld``: it opens only with the client-held share that was not sent; ``display`` is what the asker says of it,
    and ``action_hash`` is empty then.
    """

    approval: Approval
    external_id: str | None
    action_hash: str
    allowed: frozenset[VerdictWord]
    message: str | None
    display: str | None
    response_schema: bytes | None
    actions: tuple[AskedAction, ...]
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one action; ``edit`` takes ``edited_args``, ``respond`` a ``response``, both in MessagePack."""

    verdict: VerdictWord
    edited_args: bytes | None = None
    response: bytes | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the hash of what was shown, in hex, and one verdict for each action, in their order."""

    approval_id: UUID
    action_hash: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Voter:
    """Who decides.

    Attributes:
        key_id: The API key.
        principal: The key's principal.
        created_at: When the key was made.
        asserted_principal: The person whom a backend names.
        made_by: The key that made this one, where that is known.
        break_glass: Whether it is an operator's emergency key, which never approves.
        asker_made_by: Who stands behind the key that made the one that asks, where that is known.
    """

    key_id: str
    principal: str
    created_at: datetime
    asserted_principal: str | None = None
    made_by: str | None = None
    break_glass: bool = False
    asker_made_by: str | None = None

    @property
    def named(self) -> str:
        """Who is recorded."""
        return self.asserted_principal or self.principal


@dataclass(frozen=True, slots=True)
class ApprovalQuery:
    """Which approvals to list, newest first.

    Attributes:
        status: Only those that stand so.
        agent: Only what this agent asks.
        thread_id: Only what is asked in this thread.
        before: Only those that are older than the one of this id: where an earlier page ended.
        limit: So many, at most.
    """

    status: ApprovalStatus | None = None
    agent: str | None = None
    thread_id: str | None = None
    before: UUID | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ApprovalPage:
    """Some approvals; ``next_before``: where the next page begins, None: there is none."""

    approvals: list[Approval] = field(default_factory=list)
    next_before: UUID | None = None
