"""The gate before an action: nothing is done that was not approved exactly so.

It looks, after the answer and before the tool, for approved actions whose hash is that of what is about to be done. It
neither asks nor runs a tool. That an approved action is done at most once is for the ledger of effects, in which each
call of a gated tool is started with its approval.
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
from stateroom._thread_ledgers.shapes import EffectStart
from stateroom._threads.effect_calls import EffectPlace, EffectPolicy
from stateroom.errors import ActionChanged, ApprovalRequired

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


class Permits(msgspec.Struct, frozen=True):
    """What is approved of a tool.

    Attributes:
        permits: The approved actions that are what is about to be done, the newest first.
        others: The number of those that are not.
    """

    permits: list[Permit]
    others: int

    def starts(
        self, place: EffectPlace, policy: EffectPolicy, form: ToolForm, args: Mapping[str, Any]
    ) -> list[EffectStart]:
        """What to start in the ledger, one after the other until one is not used up: each with an approval.

        The last one has none. By it what was begun with an approval is told again, and nothing new begins.
        """
        started = EffectStart(
            tool=form.name, args=args, mode=policy.mode, namespace=place.namespace, checkpoint_id=place.checkpoint_id,
            run_id=place.run_id, fence=place.fence, lease_seconds=policy.lease_seconds, tool_digest=form.digest,
            needs_approval=True, repeat=True,
        )  # fmt: skip
        with_approvals = [
            msgspec.structs.replace(started, approval_id=each.approval.approval_id, approval_position=each.position)
            for each in self.permits
        ]
        return [*with_approvals, started]

    def refused(self, form: ToolForm, reason: ApprovalRequired) -> Exception:
        """Why nothing was done."""
        if self.others:
            return ActionChanged(
                f"{form.name} would be called with other arguments than were approved; it was not called"
            )
        return ApprovalRequired(f"nobody approved this call of {form.name}; it was not called ({reason})")


def permits(thread_id: str, form: ToolForm, args: Mapping[str, Any], opened: Opened) -> Steps[Permits]:
    """Find what approves an action.

    Args:
        thread_id: Where it is done.
        form: Of the tool.
        args: Its arguments, in the one form.
        opened: What is known of approvals.
    """
    found = Permits([], 0)
    others = 0
    cursor: str | None = None
    while True:
        page = yield from requests.page({"status": "approved", "thread": thread_id}, _PAGE, cursor)
        for approval in page.approvals:
            content = yield from opened.content(approval)
            for each in _approved(approval, content, form, args):
                if action_hash(each.action).hex() == content.actions[each.position].action_hash:
                    found.permits.append(each)
                else:
                    others += 1
        cursor = page.next_cursor
        if cursor is None:
            return msgspec.structs.replace(found, others=others)


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
