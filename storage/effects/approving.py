"""What the ledger of effects asks about approvals; approvals themselves are another room."""

from typing import NamedTuple, Protocol
from uuid import UUID

from storage.errors import ApprovalNotFound
from storage.postgres.unit_of_work import Transaction
from storage.thread_ledgers.locked import LockedLedger


class Consumption(NamedTuple):
    """One action of an approval, and the effect that it is to become.

    Attributes:
        approval_id: The approval that the start named.
        position: Which of its actions.
        action: The canonical form of the action as it is about to happen (`storage.format.thread_ledgers.actions`): of
            ``{v, tool, tool_digest, args, thread, agent, subject}``.
        name_mac: The keyed tag of the effect's name.
    """

    approval_id: UUID
    position: int
    action: bytes
    name_mac: bytes


class Approving(Protocol):
    """Says whether an action was approved, under the lock of its thread."""

    async def consume(self, transaction: Transaction, ledger: LockedLedger, wanted: Consumption, /) -> None:
        """Use up the approval of one action; what changes of it is counted in the ledger, which the caller stores.

        Raises:
            StorageError: It does not exist, is not approved or not valid any more, or is of another action.
        """

    async def required(self, transaction: Transaction, agent: str | None, tool: str, /) -> bool:
        """Whether a policy asks for an approval of a tool's calls by an agent."""


class NoApprovals:
    """A deployment without approvals: none exists, and none is asked for."""

    async def consume(self, _: Transaction, __: LockedLedger, ___: Consumption) -> None:
        """Refuse: there is no such approval.

        Raises:
            ApprovalNotFound: Always.
        """
        raise ApprovalNotFound

    async def required(self, _: Transaction, __: str | None, ___: str) -> bool:
        """No policy asks for one."""
        return False
