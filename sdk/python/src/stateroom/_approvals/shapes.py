"""Approvals as the client takes and returns them.

This module owns the shapes of what people are asked, how it stands and what they decided. Members and words of a newer
gateway are passed over, or passed on.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

ApprovalKind = Literal["tool_call", "input", "confirmation"]
VerdictWord = Literal["approve", "reject", "edit", "respond"]


class NewAction(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Something that an agent wants to do, and asks about.

    Attributes:
        tool: The tool's name.
        args: Its arguments, as ``plain`` values: defaults included, what is injected left out.
        tool_digest: Which form of the tool it is, as ``tool_digest`` makes it.
        args_schema: What arguments it takes, as a JSON Schema: what a person makes of them must fit it.
        hide: JSON pointers into ``args`` that nobody is shown. They are hashed, and cannot be edited.
        description: What it does, for whoever decides.
    """

    tool: str
    args: dict[str, Any]
    tool_digest: str | None = None
    args_schema: dict[str, Any] | None = None
    hide: Sequence[str] = ()
    description: str | None = None


class NewApproval(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a person is asked, stored together with the state that waits for the answer.

    Attributes:
        external_id: Names the question. The same id with the same actions is the same approval; with others, it
            supersedes the one before.
        actions: What the agent wants to do; one to 32 actions, decided together.
        kind: Whether a tool waits, something to fill in, or a yes.
        message: What the person is asked.
        display: What is shown to an approver who does not have the thread's client share. It is sealed without that.
        response_schema: What an answer must fit, as a JSON Schema.
        expires_seconds: How long it can be decided; the tenant's policy otherwise, and at most.
        allowed: What can be said of its actions.
        agent: The name of the program that asks.
    """

    external_id: str
    actions: Sequence[NewAction]
    kind: ApprovalKind = "tool_call"
    message: str | None = None
    display: str | None = None
    response_schema: Any = None
    expires_seconds: int | None = None
    # The gateway has a default, which is not that of every question.
    allowed: Sequence[VerdictWord] | msgspec.UnsetType = msgspec.UNSET
    agent: str | None = None


class ApprovalActionState(msgspec.Struct, kw_only=True, frozen=True):
    """How one action of an approval stands.

    Attributes:
        position: Which one it is, from 0.
        status: ``pending``, ``approved``, ``rejected``, ``answered``, ``consumed`` or ``lapsed``.
        verdict: What was said of it.
        edited: Whether it is another one than the agent asked about.
    """

    position: int
    status: str
    verdict: str | None = None
    edited: bool = False


class ApprovalVote(msgspec.Struct, kw_only=True, frozen=True):
    """What one person said.

    Attributes:
        principal: The person or program that voted.
        key_id: The API key that it was said with.
        verdict: What was said.
        at: When.
        asserted: Whether the key named the person, on its word.
    """

    principal: str
    key_id: str
    verdict: str
    at: datetime
    asserted: bool = False


class Approval(msgspec.Struct, kw_only=True, frozen=True):
    """How an approval stands; nothing of what it is about.

    Attributes:
        approval_id: Its id.
        subject_id: For whom the agent acts.
        thread_id: The thread that waits.
        namespace: The root namespace in which it waits.
        checkpoint_id: The checkpoint that it waits at.
        run_id: The run that asked.
        agent: The program that asked.
        kind: What is asked for.
        status: ``pending``, ``approved``, ``rejected``, ``answered``, ``expired``, ``cancelled``, ``superseded``,
            ``consumed`` or ``lapsed``.
        requested_by: The API key that asked.
        requested_principal: Who that is.
        created_at: When it was asked.
        expires_at: Until when it can be decided.
        valid_until: Until when it can be acted on; ``None``: it is not approved.
        decided_at: When it was decided.
        decisions_needed: How many people have to approve.
        revision: A number that grows with each change.
        client_share: Whether its content opens only with the thread's client share.
        has_display: Whether something can be shown without that.
        actions: Its actions, in their order.
        votes: What was said so far.
    """

    approval_id: str
    subject_id: str
    thread_id: str
    namespace: str
    kind: str
    status: str
    created_at: datetime
    expires_at: datetime
    checkpoint_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    requested_by: str = ""
    requested_principal: str = ""
    valid_until: datetime | None = None
    decided_at: datetime | None = None
    decisions_needed: int = 1
    revision: int = 0
    client_share: bool = False
    has_display: bool = False
    actions: list[ApprovalActionState] = []
    votes: list[ApprovalVote] = []

    @property
    def is_pending(self) -> bool:
        """Whether it waits for a decision."""
        return self.status == "pending"


class ApprovalAction(msgspec.Struct, kw_only=True, frozen=True):
    """An action, exactly as it would be done.

    Attributes:
        tool: The tool's name.
        args: Its arguments as they were asked about; what is hidden stands as ``hidden, n bytes``.
        action_hash: Its hash, in hex; of what it was made into, where somebody edited it.
        tool_digest: Which form of the tool it is.
        args_schema: What arguments it takes.
        hide: What is hidden of its arguments.
        description: What it does.
        verdict: What was decided.
        edited_args: The arguments that whoever decided put in the place of ``args``.
        response: What was answered.
        message: What was said with it.
    """

    tool: str
    args: Any
    action_hash: str
    tool_digest: str | None = None
    args_schema: Any = None
    hide: list[str] = []
    description: str | None = None
    verdict: str | None = None
    edited_args: Any = msgspec.UNSET
    response: Any = msgspec.UNSET
    message: str | msgspec.UnsetType | None = None


class ApprovalContent(msgspec.Struct, kw_only=True, frozen=True):
    """What exactly is asked, and what was decided.

    Attributes:
        approval_id: Its id.
        external_id: The asker's name for the question.
        action_hash: The hash of all that is asked, in hex, which a decision repeats.
        allowed: What can be said of its actions.
        message: What is asked.
        display: What is shown to whoever does not have the client share.
        response_schema: What an answer must fit.
        actions: What would be done.
        withheld: Whether it opens only with the client share, which was not sent.
    """

    approval_id: str
    action_hash: str
    external_id: str | None = None
    allowed: list[str] = []
    message: str | None = None
    display: str | None = None
    response_schema: Any = None
    actions: list[ApprovalAction] = []
    withheld: bool = False


class ApprovalPage(msgspec.Struct, frozen=True):
    """Approvals, newest first, and where to go on."""

    approvals: list[Approval]
    next_cursor: str | None = None

    @property
    def items(self) -> list[Approval]:
        """The page's approvals."""
        return self.approvals


class Verdict(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a person says of one action.

    Attributes:
        verdict: ``approve``, ``reject``, ``edit`` or ``respond``.
        edited_args: With ``edit``: all of the arguments as they shall be.
        response: With ``respond``: the answer.
        message: What is said with it.
    """

    verdict: VerdictWord
    edited_args: Any = msgspec.UNSET
    response: Any = msgspec.UNSET
    message: str | None = None

    @classmethod
    def approve(cls, message: str | None = None) -> "Verdict":
        """Let it be done, exactly as it was shown."""
        return cls(verdict="approve", message=message)

    @classmethod
    def reject(cls, message: str | None = None) -> "Verdict":
        """Let it not be done."""
        return cls(verdict="reject", message=message)

    @classmethod
    def edit(cls, args: Mapping[str, Any], message: str | None = None) -> "Verdict":
        """Let it be done with these arguments, all of them."""
        return cls(verdict="edit", edited_args=args, message=message)

    @classmethod
    def respond(cls, response: Any, message: str | None = None) -> "Verdict":
        """Answer in place of the tool, or to the question."""
        return cls(verdict="respond", response=response, message=message)
