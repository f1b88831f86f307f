"""What was decided, as the value that a waiting graph is resumed with.

This module knows the answers to the shapes of ``asking``. It is pure, and says nothing of whether an action may be
done: that is the gate's (``gate``).
"""

import json
from typing import Any, Final

from msgspec import UNSET

from stateroom._approvals.shapes import Approval, ApprovalAction, ApprovalContent
from stateroom._langgraph.decisions.asking import shape_of

# Nothing was decided that a graph could go on with.
WAITING: Final = object()
# How a question ended that nobody answered.
_UNANSWERED: Final = {
    "expired": "Nobody decided in time.",
    "cancelled": "The question was taken back.",
    "lapsed": "It was approved, but not done in time.",
}
_ANSWERED: Final = frozenset({"approved", "answered", "rejected", "consumed"})


def answer(value: Any, approval: Approval, content: ApprovalContent) -> Any:
    """What the interrupt of a value is resumed with; ``WAITING``: with nothing, yet.

    Args:
        value: What the graph asked.
        approval: How that stands.
        content: What was decided.
    """
    over = _UNANSWERED.get(approval.status)
    if over is None and approval.status not in _ANSWERED:
        return WAITING
    match shape_of(value):
        case "inbox":
            return [_inbox(each, over) for each in content.actions]
        case "batch":
            return {"decisions": [_decision(each, over) for each in content.actions]}
        case "call":
            return _decision(content.actions[0], over)
        case "value":
            return _value(content.actions[0], over)


def _decision(action: ApprovalAction, over: str | None) -> dict[str, Any]:
    """LangChain's ``Decision``."""
    if over is not None:
        return {"type": "reject", "message": over}
    if action.verdict == "respond":
        return {"type": "respond", "message": _text(action)}
    if action.verdict == "reject":
        return {"type": "reject", "message": action.message} if action.message else {"type": "reject"}
    # Whoever approves after somebody edited approves what it was made into.
    if action.edited_args is not UNSET:
        return {"type": "edit", "edited_action": {"name": action.tool, "args": action.edited_args}}
    return {"type": "approve"}


def _inbox(action: ApprovalAction, over: str | None) -> dict[str, Any]:
    """Agent Inbox's ``HumanResponse``; it has no words for why something is left."""
    if over is not None or action.verdict == "reject":
        return {"type": "ignore", "args": None}
    if action.verdict == "respond":
        return {"type": "response", "args": _text(action)}
    if action.edited_args is not UNSET:
        return {"type": "edit", "args": {"action": action.tool, "args": action.edited_args}}
    return {"type": "accept", "args": None}


def _value(action: ApprovalAction, over: str | None) -> Any:
    if over is not None or action.verdict == "reject":
        return False
    return action.response if action.verdict == "respond" else True


def _text(action: ApprovalAction) -> str:
    said = action.response
    if said is UNSET:
        return action.message or ""
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
