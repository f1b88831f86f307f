"""What was decided, as the value that a waiting graph is resumed with.

This module knows the answers to the shapes of ``asking``. It is pure, and says nothing of whether an action may be
done: that is the gate's (``gate``).
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph.types import Interrupt
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


def answer(interrupt: Interrupt[Any], approval: Approval, content: ApprovalContent) -> Any:
    """What an interrupt is resumed with; ``WAITING``: with nothing, yet.

    Args:
        interrupt: What the graph asked.
        approval: How that stands.
        content: What was decided.
    """
    value = interrupt.value
    over = _UNANSWERED.get(approval.status)
    if over is None and approval.status not in _ANSWERED:
        return WAITING
    match shape_of(value):
        case "inbox":
            requests = value if isinstance(value, list | tuple) else [value]
            asked = [each["action_request"]["args"] for each in requests]
            return [_inbox(each, args, over) for each, args in zip(content.actions, asked, strict=True)]
        case "batch":
            asked = [each["args"] for each in value["action_requests"]]
            return {"decisions": [_decision(*each, over) for each in zip(content.actions, asked, strict=True)]}
        case "call":
            return _decision(content.actions[0], value["args"], over)
        case "value":
            return _value(content.actions[0], over, is_free=interrupt.response_schema is None)


def _decision(action: ApprovalAction, asked: Mapping[str, Any], over: str | None) -> dict[str, Any]:
    """LangChain's ``Decision``."""
    if over is not None:
        return {"type": "reject", "message": over}
    if action.verdict == "respond":
        return {"type": "respond", "message": _text(action)}
    if action.verdict == "reject":
        return {"type": "reject", "message": action.message} if action.message else {"type": "reject"}
    # Whoever approves after somebody edited approves what it was made into.
    if action.edited_args is not UNSET:
        return {"type": "edit", "edited_action": {"name": action.tool, "args": _edited(action, asked)}}
    return {"type": "approve"}


def _inbox(action: ApprovalAction, asked: Mapping[str, Any], over: str | None) -> dict[str, Any]:
    """Agent Inbox's ``HumanResponse``; it has no words for why something is left."""
    if over is not None or action.verdict == "reject":
        return {"type": "ignore", "args": None}
    if action.verdict == "respond":
        return {"type": "response", "args": _text(action)}
    if action.edited_args is not UNSET:
        return {"type": "edit", "args": {"action": action.tool, "args": _edited(action, asked)}}
    return {"type": "accept", "args": None}


def _value(action: ApprovalAction, over: str | None, *, is_free: bool) -> Any:
    if over is None and action.verdict == "respond":
        return action.response
    # Where an answer has a form, neither a no nor a yes has one: False would pass for the number 0.
    return (over is None and action.verdict != "reject") if is_free else WAITING


def _text(action: ApprovalAction) -> str:
    said = action.response
    if said is UNSET:
        return action.message or ""
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


def _edited(action: ApprovalAction, asked: Mapping[str, Any]) -> Any:
    """The arguments that a person made, with what was hidden from that person as it was asked."""
    edited = copy.deepcopy(action.edited_args)
    for pointer in action.hide:
        *path, last = [_unescaped(part) for part in pointer.split("/")[1:]] or [""]
        original, target = _at(asked, path), _at(edited, path)
        if isinstance(target, dict):
            if isinstance(original, Mapping) and last in original:
                target[last] = original[last]
            else:  # a default, which the tool fills in again
                target.pop(last, None)
        elif isinstance(target, list) and isinstance(original, list | tuple) and last.isdecimal():
            target[int(last)] = original[int(last)]
    return edited


def _at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
