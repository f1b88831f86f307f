"""The question of a plain agent: which approval it is, and how it ended.

This module owns how one is known again: by its name and the hash of its action. It reads what was answered to the first
action, which is the only one of a plain agent.
"""

from typing import Any

from msgspec import UNSET, Struct

from stateroom._approvals.shapes import Approval, ApprovalAction, ApprovalContent, NewApproval
from stateroom._decisions.actions import Action, action_hash
from stateroom.errors import InvalidRequest

_GONE = frozenset({"superseded", "cancelled"})


class Asked(Struct, frozen=True):
    """How a question ended: what ``thread.ask`` returns.

    Attributes:
        approval: How the approval stands; still ``pending`` if nobody decided within the time.
        content: What was asked, and answered.
    """

    approval: Approval
    content: ApprovalContent

    @property
    def _action(self) -> ApprovalAction:
        return self.content.actions[0]

    @property
    def is_approved(self) -> bool:
        """Whether the action may be done, with ``args``."""
        return self.approval.status == "approved" and self._action.verdict in {"approve", "edit"}

    @property
    def args(self) -> Any:
        """The arguments as they were approved: the edited ones, if there are any."""
        return self._action.args if self._action.edited_args is UNSET else self._action.edited_args

    @property
    def response(self) -> Any:
        """What was answered in place of the action; ``None``: nothing."""
        return None if self._action.response is UNSET else self._action.response

    @property
    def message(self) -> str | None:
        """What was said to the agent; ``None``: nothing."""
        return self._action.message or None


def is_asked_here(approval: Approval, namespace: str) -> bool:
    """Whether an approval may be one that was asked in a namespace, and was not put aside."""
    return approval.namespace == namespace.partition("|")[0] and approval.status not in _GONE


def is_about(approval: Approval, content: ApprovalContent, question: NewApproval) -> bool:
    """Whether an approval is that of a question with one action.

    Args:
        approval: How it stands.
        content: What is asked; an action that somebody edited is known by the question's name alone.
        question: What is asked, and about which actions.

    Raises:
        InvalidRequest: The arguments are no values that an action can have.
    """
    if content.withheld or content.external_id != question.external_id or len(content.actions) != 1:
        return False
    [asked] = question.actions
    action = Action(
        tool=asked.tool,
        args=asked.args,
        thread_id=approval.thread_id,
        subject_id=approval.subject_id,
        agent=approval.agent,
        tool_digest=asked.tool_digest,
    )
    try:
        expected = action_hash(action).hex()
    except ValueError as error:
        raise InvalidRequest(f"the arguments of {asked.tool} cannot be asked about: {error}") from None
    [state] = approval.actions
    shown = content.actions[0]
    # Somebody may have edited it after the approval was listed.
    return state.edited or shown.edited_args is not UNSET or shown.action_hash == expected
