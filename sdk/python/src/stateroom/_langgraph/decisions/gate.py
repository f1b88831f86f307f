"""The gate before an action: nothing is done that was not approved exactly so.

It looks, after the answer and before the tool, for an approved action whose hash is that of what is about to be done.
It neither asks nor runs a tool. That an approved action is done at most once is for what `authorise` is connected to.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stateroom._approvals import requests
from stateroom._approvals.shapes import Approval, ApprovalContent
from stateroom._decisions.actions import Action, action_hash
from stateroom._langgraph.decisions.tools import ToolForm
from stateroom._protocol.core import Steps
from stateroom._remembered.recent import Recent
from stateroom.errors import ActionChanged, ApprovalConsumed, ApprovalRequired

_PAGE = 100


class Permit(msgspec.Struct, frozen=True):
    """An approved action.

    Attributes:
        approval: The approval, as the inbox shows it.
        position: Which of its actions it is.
        action: What may be done.
    """

    approval: Approval
    position: int
    action: Action


class Opened:
    """What approvals say, each opened once for each state in which it was seen."""

    def __init__(self) -> None:
        self._contents = Recent[ApprovalContent](256)

    def content(self, approval: Approval) -> Steps[ApprovalContent]:
        """What an approval says.

        Raises:
            ApprovalNotFound: It is gone.
        """
        seen = approval.approval_id, approval.revision
        content = self._contents.get(seen)
        if content is None:
            content = yield from requests.content(approval.approval_id)
            self._contents.note(seen, content)
        return content


def authorise(thread_id: str, approval: Approval, position: int, action: Action) -> Steps[None]:
    """Let an approved action begin. This is the one place where that is said to the gateway.

    Today it says nothing: the approval was found in the gateway just before, with the hash of exactly this action. The
    ledger of effects belongs here (``PUT /v1/threads/{t}/effects/{name}`` with ``approval_id``), which consumes it.

    Args:
        thread_id: Where it is done.
        approval: What was approved.
        position: Which of its actions it is.
        action: What is about to be done.

    Raises:
        ApprovalConsumed: It was begun before.
    """
    del thread_id, approval, position, action
    yield from ()


def permit(thread_id: str, form: ToolForm, args: Mapping[str, Any], opened: Opened) -> Steps[Permit]:
    """Find what approves an action, and let it begin.

    Args:
        thread_id: Where it is done.
        form: Of the tool.
        args: Its arguments, in the one form.
        opened: What is known of approvals.

    Raises:
        ActionChanged: Something else of the tool is approved.
        ApprovalRequired: Nothing of the tool is approved.
        ApprovalConsumed: It was approved, and begun before.
    """
    consumed: ApprovalConsumed | None = None
    others = 0
    cursor: str | None = None
    while True:
        page = yield from requests.page({"status": "approved", "thread": thread_id}, _PAGE, cursor)
        for approval in page.approvals:
            content = yield from opened.content(approval)
            for found in _approved(approval, content, form, args):
                if action_hash(found.action).hex() != content.actions[found.position].action_hash:
                    others += 1
                    continue
                try:
                    yield from authorise(thread_id, approval, found.position, found.action)
                except ApprovalConsumed as error:  # the same may have been approved twice
                    consumed = error
                    continue
                return found
        cursor = page.next_cursor
        if cursor is None:
            break
    if consumed is not None:
        raise consumed
    if others:
        raise ActionChanged(f"{form.name} would be called with other arguments than were approved; it was not called")
    raise ApprovalRequired(f"nobody approved this call of {form.name}; it was not called")


def _approved(
    approval: Approval, content: ApprovalContent, form: ToolForm, args: Mapping[str, Any]
) -> Iterator[Permit]:
    """The actions of a tool that are approved, as what is about to be done would be."""
    for state, shown in zip(approval.actions, content.actions, strict=False):
        if state.status == "approved" and shown.tool == form.name:
            action = Action(
                tool=form.name, args=args, thread_id=approval.thread_id, subject_id=approval.subject_id,
                agent=approval.agent, tool_digest=form.digest,
            )  # fmt: skip
            yield Permit(approval, state.position, action)
