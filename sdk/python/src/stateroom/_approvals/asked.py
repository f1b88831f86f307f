"""How a question of a plain agent ended.

This module owns no behaviour but reading what was answered to the first action, which is the only one of a plain agent.
"""

from typing import Any

from msgspec import UNSET, Struct

from stateroom._approvals.shapes import Approval, ApprovalAction, ApprovalContent


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
