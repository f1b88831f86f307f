"""Consuming: one action of an approval becomes one effect, once.

It runs under the thread's lock, in the transaction that starts the effect, whose owner stores the ledger.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from storage.access.access import Access
from storage.approvals.policies import policy_for
from storage.approvals.rows import ThreadApprovals, action_mac
from storage.approvals.telling import draft_of, record
from storage.errors import (
    ActionChanged,
    ApprovalConsumed,
    ApprovalLapsed,
    ApprovalNotFound,
    ApprovalRejected,
    ApprovalUndecided,
)
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.thread_ledgers.locked import LockedLedger

_DENIED: Final = frozenset({"rejected", "answered", "cancelled", "superseded"})


@dataclass(frozen=True, slots=True)
class Consumption:
    """One action of an approval, and the effect that it is to become.

    Attributes:
        approval_id: The approval that the start of the effect named.
        position: Which of its actions.
        action_for: Gives the canonical form of the action as it is about to happen
            (`storage.format.thread_ledgers.actions`), by the agent that asked.
        name_mac: The keyed tag of the effect's name.
        key_id: The id of the key that starts the effect.
    """

    approval_id: UUID
    position: int
    action_for: Callable[[str | None], Awaitable[bytes]]
    name_mac: bytes
    key_id: str


class Consuming:
    """What the ledger of effects asks about approvals. It is `ready` before the transaction."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def ready(self) -> None:
        """Have at hand what checking policies takes, outside of transactions."""
        await self._access.control.ready_to_check()

    async def consume(
        self, scope: Scope, transaction: Transaction, ledger: LockedLedger, wanted: Consumption, /
    ) -> None:
        """Use up the approval of one action; what changes of it is counted in the ledger, which the caller stores.

        It is the last thing that the transaction waits for: the tenant's record is its own from then on.

        Raises:
            ApprovalNotFound: The thread has no such approval, or that no such action.
            ApprovalUndecided: It still waits.
            ApprovalRejected: The action was not approved, or is not asked any more.
            ApprovalConsumed: It was used before.
            ApprovalLapsed: It was not used, or not decided, in time.
            ActionChanged: Another action was approved.
            IntegrityFailure: The thread's approvals were changed outside the gateway.
        """
        rows = await ThreadApprovals.read(transaction, ledger)
        approval = rows.approvals.get(wanted.approval_id)
        if approval is None:
            raise ApprovalNotFound
        actions = rows.actions[wanted.approval_id]
        if not 0 <= wanted.position < len(actions):
            raise ApprovalNotFound
        action = actions[wanted.position]
        if action.status == "consumed":
            raise ApprovalConsumed
        is_late = approval.status == "pending" and approval.expires_at <= ledger.now
        if is_late or approval.status in {"expired", "lapsed"}:
            raise ApprovalLapsed
        if approval.status == "pending":
            raise ApprovalUndecided
        if approval.status in _DENIED or action.status != "approved":
            raise ApprovalRejected
        if approval.valid_until is None or approval.valid_until <= ledger.now:
            raise ApprovalLapsed
        form = await wanted.action_for(approval.agent)
        if action_mac(ledger.sealer, hashlib.sha256(form).digest()) != action.action_mac:
            raise ActionChanged
        await rows.change_action(action, status="consumed", effect_name_mac=wanted.name_mac)
        if all(each.status != "approved" for each in rows.actions[wanted.approval_id]):
            await rows.change(approval, status="consumed")
            draft = draft_of("approval.consumed", scope, ledger.thread_id, rows.approvals[wanted.approval_id])
            await self._access.emitting.of_approval(transaction, scope.tenant_id, draft)
        said = ("approval.consumed", ledger.thread_id, approval)
        await record(
            self._access, transaction, scope, f"api-key:{wanted.key_id}", said,
            position=wanted.position, effect=wanted.name_mac.hex(),
        )  # fmt: skip

    async def required(self, transaction: Transaction, agent: str | None, tool: str, /) -> bool:
        """Whether a policy asks for an approval of a tool's calls by an agent.

        Raises:
            IntegrityFailure: A policy that would count was changed outside the gateway.
        """
        return (await policy_for(transaction, self._access.control, agent, [tool])).required
