"""The verbs on approvals: decide, open, list, get, cancel.

What suspends a run asks in its own transaction (`storage.approvals.asking`). Everything that changes an approval goes
under its thread's lock, compares all rows of the thread's approvals with the seal of its ledger, and decides by the
database's clock after the lock was granted whether something is over. Owns no policy of who may call.
"""

from uuid import UUID

from storage.access.access import Access
from storage.administration.audit import Audit
from storage.approvals.model import (
    Approval,
    ApprovalContent,
    ApprovalPage,
    ApprovalQuery,
    Decision,
    Voter,
)
from storage.scope import ClientShare, Scope, TenantListing


class Approvals:
    """The verbs on approvals."""

    def __init__(self, access: Access, audit: Audit) -> None:
        self._access = access
        self._audit = audit

    async def list(self, scope: Scope | TenantListing, query: ApprovalQuery) -> ApprovalPage:
        """Approvals, newest first: a page of clear columns, of a subject or of the whole tenant."""
        raise NotImplementedError

    async def get(self, scope: Scope | TenantListing, approval_id: UUID) -> Approval:
        """How an approval stands, with its votes; clear columns only.

        Raises:
            ApprovalNotFound: There is none in this scope.
        """
        raise NotImplementedError

    async def open(
        self, scope: Scope | TenantListing, approval_id: UUID, voter: Voter, share: ClientShare | None = None
    ) -> ApprovalContent:
        """What exactly is asked; on the tenant's record as ``approval.opened``.

        Without the share that its thread was made with, a display text is shown, if there is one (``withheld``).

        Raises:
            ApprovalNotFound: There is none in this scope.
            ClientShareRequired: It opens with a share only, and has no display text.
            ClientShareWrong: It opens with another share.
            IntegrityFailure: It was changed outside the gateway.
        """
        raise NotImplementedError

    async def decide(self, scope: Scope | TenantListing, decision: Decision, voter: Voter) -> Approval:
        """Decide. The same decision of the same principal again changes nothing.

        Raises:
            ApprovalNotFound: There is none in this scope.
            ActionChanged: Something else is asked than what was shown.
            ApprovalDecided: It was decided otherwise, cancelled or superseded.
            ApprovalExpired: Nobody decided in time.
            ApprovalNotYours: This principal may not approve it.
            EditInvalid: Edited arguments are not what the tool takes.
            InvalidState: A verdict is not allowed here, or there are not as many as actions.
        """
        raise NotImplementedError

    async def cancel(self, scope: Scope, approval_id: UUID, voter: Voter) -> Approval:
        """Take a question back; one that was cancelled before is given as it is.

        Raises:
            ApprovalNotFound: There is none in this scope.
            ApprovalDecided: It was decided before.
        """
        raise NotImplementedError
