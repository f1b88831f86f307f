"""Approval policies: what a tenant asks of approvals, of all or of those of an agent or a tool.

The most specific one counts: of an agent's tool, of the agent, of the tool, of the tenant. It is copied into each
approval when that is made. Every change is recorded in the audit log in its own transaction; a row that no gateway wrote
as it is says nothing, and whoever asks for approval while it would count is refused.
"""

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.approvals.model import ApprovalPolicy, PolicyEntry
from storage.control.rows import ControlRows
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import TenantScope


class ApprovalPolicies:
    """The verbs on approval policies."""

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control

    async def list(self, scope: TenantScope) -> list[PolicyEntry]:
        """All policies of a tenant, by agent and tool."""
        raise NotImplementedError

    async def put(
        self,
        scope: TenantScope,
        agent: str | None,
        tool: str | None,
        policy: ApprovalPolicy | None,
        actor: str = LOCAL_ACTOR,
    ) -> list[PolicyEntry]:
        """Set a policy, or (None) take it back; returns all of them.

        Raises:
            FeatureOff: An older build may run; finish the upgrade first.
            ApprovalPoliciesExceeded: The tenant has as many as it may.
        """
        raise NotImplementedError
