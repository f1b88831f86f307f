"""Bodies of approvals: what people are asked, how it stands, what exactly would be done, and what they decide."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.wire.base import Name, Request, Response

ApprovalKind = Literal["tool_call", "input", "confirmation"]
ApprovalStatus = Literal[
    "pending",
    "approved",
    "rejected",
    "answered",
    "expired",
    "cancelled",
    "superseded",
    "consumed",
    "lapsed",
]
ActionStatus = Literal["pending", "approved", "rejected", "answered", "consumed", "lapsed"]
VerdictWord = Literal["approve", "reject", "edit", "respond"]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Pointer = Annotated[str, Meta(max_length=1024, pattern=r"^(/[^\x00]*)?\Z")]
Text = Annotated[str, Meta(max_length=16_384)]


class NewApprovalAction(Request):
    """Something that an agent wants to do. ``args`` are what its tool's schema makes of them, without what is injected.

    ``hide`` has JSON pointers into ``args`` that nobody is shown: they are hashed, and cannot be edited.
    """

    tool: Name
    args: Raw
    tool_digest: Digest | None = None
    args_schema: Raw | UnsetType = UNSET
    hide: Annotated[list[Pointer], Meta(max_length=64)] = []
    description: Text | None = None


class NewApproval(Request):
    """What a person is asked, stored in the transaction that stores the state which waits for the answer.

    ``external_id`` names the question, such as LangGraph's interrupt id: the same id with the same actions is the same
    approval, with others it supersedes the one before. ``display`` is sealed without a client-held share, for an
    approver who does not have that.
    """

    external_id: Name
    actions: Annotated[list[NewApprovalAction], Meta(min_length=1, max_length=32)]
    kind: ApprovalKind = "tool_call"
    message: Text | None = None
    display: Text | None = None
    response_schema: Raw | UnsetType = UNSET
    expires_seconds: Annotated[int, Meta(ge=60, le=30 * 86_400)] | None = None
    allowed: Annotated[tuple[VerdictWord, ...], Meta(min_length=1, max_length=4)] = ("approve", "reject")
    agent: Name | None = None


Approvals = Annotated[list[NewApproval], Meta(max_length=64)]
ApprovalRefs = Annotated[list[Name], Meta(max_length=64)]


class ApprovalActionState(Response):
    """How one action of an approval stands. ``edited``: it is another one than the agent asked about."""

    position: int
    status: ActionStatus
    verdict: VerdictWord | None
    edited: bool


class ApprovalVote(Response):
    """Who said what. ``asserted``: the key of ``key_id`` named the person."""

    principal: str
    key_id: str
    verdict: VerdictWord
    at: datetime
    asserted: bool


class Approval(Response):
    """How an approval stands; nothing of what it is about.

    ``client_share``: its content opens only with the share that its thread was made with, but for ``display``.
    """

    approval_id: str
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
    actions: list[ApprovalActionState]
    votes: list[ApprovalVote]


class ApprovalPage(Response):
    """Approvals, newest first."""

    approvals: list[Approval]
    next_cursor: str | None


class ApprovalAction(Response):
    """An action, exactly: its arguments, which stand as ``hidden, n bytes`` where the asker hides them, and its hash.

    ``edited_args`` are what an approver made of them: what would be done then.
    """

    tool: str
    tool_digest: str | None
    args: Raw
    args_schema: Raw | None
    hide: list[str]
    description: str | None
    action_hash: str
    verdict: VerdictWord | None
    edited_args: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    message: str | UnsetType = UNSET


class ApprovalContent(Response):
    """What exactly is asked. Whoever decides repeats ``action_hash``.

    ``withheld``: it opens only with the client-held share that was not sent; ``display`` is what the asker says of it.
    """

    approval_id: str
    external_id: str | None
    action_hash: str
    allowed: list[VerdictWord]
    message: str | None
    display: str | None
    response_schema: Raw | None
    actions: list[ApprovalAction]
    withheld: bool = False


class Verdict(Request):
    """What is said of one action; ``edit`` takes ``edited_args``, ``respond`` a ``response``."""

    verdict: VerdictWord
    edited_args: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    message: Text | None = None


class DecisionRequest(Request):
    """A decision: the hash of what was shown, and one verdict for each action, in their order."""

    action_hash: Digest
    verdicts: Annotated[list[Verdict], Meta(min_length=1, max_length=32)]
