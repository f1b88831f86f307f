"""Approval policies: what a tenant asks of approvals, of all or of those of an agent or a tool.

The most specific one counts for a tool: of an agent's tool, of the agent, of the tool, of the tenant; for an approval
of several tools each part is the strictest of theirs. It is copied into each approval when that is made. Every change
is recorded in the audit log in its own transaction; a row that no gateway wrote as it is says nothing, and whoever asks
for approval while it would count is refused.
"""

import builtins
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, astuple, fields
from typing import Final
from uuid import UUID

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.approvals.model import (
    APPROVAL_POLICIES_MAX,
    EXPIRES_SECONDS_MAX,
    EXPIRES_SECONDS_MIN,
    ApprovalPolicy,
    PolicyEntry,
)
from storage.control.features import DECISIONS
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, approval_policy_row, proof_of
from storage.errors import ApprovalPoliciesExceeded, InvalidState
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import TenantScope, check_id
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import PolicyRow

_EVERY: Final = ""
_DECISIONS_MAX: Final = 5
_NAMES: Final = tuple(each.name for each in fields(ApprovalPolicy))


async def policy_for(
    transaction: Transaction, control: ControlRows, agent: str | None, tools: Iterable[str]
) -> ApprovalPolicy:
    """What holds for an approval of these tools; ``control`` is ready to check.

    Raises:
        IntegrityFailure: A policy that would count was written or edited outside the gateway.
    """
    wanted = sorted({*tools})
    rows = await transaction.fetch_all(
        sql.POLICIES_OF, agents=sorted({agent or _EVERY, _EVERY}), tools=[_EVERY, *wanted]
    )
    found = {(row.agent, row.tool): row for row in rows}
    for row in rows:
        control.check(_row(row.tenant_id, row), proof_of(row))
    return _strictest([_of_tool(found, agent, tool) for tool in wanted])


def _of_tool(found: Mapping[tuple[str, str], PolicyRow], agent: str | None, tool: str) -> ApprovalPolicy:
    of_agent = [] if agent is None else [(agent, tool), (agent, _EVERY)]
    for place in (*of_agent, (_EVERY, tool), (_EVERY, _EVERY)):
        if place in found:
            return _policy(found[place])
    return ApprovalPolicy()


def _strictest(policies: list[ApprovalPolicy]) -> ApprovalPolicy:
    return ApprovalPolicy(
        required=any(each.required for each in policies),
        decisions_needed=max(each.decisions_needed for each in policies),
        requester_may_approve=all(each.requester_may_approve for each in policies),
        edit_allowed=all(each.edit_allowed for each in policies),
        expires_seconds=min(each.expires_seconds for each in policies),
        valid_seconds=min(each.valid_seconds for each in policies),
        asserted_count=all(each.asserted_count for each in policies),
    )


class ApprovalPolicies:
    """The verbs on approval policies."""

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control

    async def list(self, scope: TenantScope) -> builtins.list[PolicyEntry]:
        """All policies of a tenant, by agent and tool.

        Raises:
            CryptoError: The root key cannot be asked whether a gateway wrote them.
        """
        await self._control.ready_to_check()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await self._read(transaction, scope.tenant_id)

    async def put(
        self,
        scope: TenantScope,
        agent: str | None,
        tool: str | None,
        policy: ApprovalPolicy | None,
        actor: str = LOCAL_ACTOR,
    ) -> builtins.list[PolicyEntry]:
        """Set a policy, or (None) take it back; the same again changes nothing. Returns all of them.

        Raises:
            FeatureOff: An older build may run; finish the upgrade first.
            ApprovalPoliciesExceeded: The tenant has as many as it may.
            InvalidState: It says what no policy may.
            CryptoError: As `list`; nothing changed.
        """
        place = {
            "agent": _EVERY if agent is None else check_id(agent, "agent"),
            "tool": _EVERY if tool is None else check_id(tool, "tool"),
        }
        await self._control.ready()
        await self._control.features.require(DECISIONS, "approval policies are set")
        if policy is not None:
            _check(policy)
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK_POLICIES, name=f"{scope.tenant_id}/approval-policies")
            row = await transaction.fetch_one(sql.POLICY, **place)
            damaged = row is not None and not self._control.is_sound(_row(scope.tenant_id, row), proof_of(row))
            before = None if row is None else _policy(row)
            if damaged or policy != before:
                await self._write(transaction, scope.tenant_id, place, policy, is_new=row is None)
                named = f"agent:{place['agent']} tool:{place['tool']}"
                detail = {
                    "before": "damaged" if damaged else None if before is None else asdict(before),
                    "after": None if policy is None else asdict(policy),
                }
                await self._audit.append(transaction, scope.tenant_id, actor, "approval-policy.set", named, detail)
            return await self._read(transaction, scope.tenant_id)

    async def _write(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        place: Mapping[str, str],
        policy: ApprovalPolicy | None,
        *,
        is_new: bool,
    ) -> None:
        if policy is None:
            await transaction.run(sql.REMOVE_POLICY, **place)
            return
        if is_new and await transaction.fetch_only(sql.POLICIES_COUNT) >= APPROVAL_POLICIES_MAX:
            raise ApprovalPoliciesExceeded
        now = await transaction.fetch_only(NOW)
        says = tuple(int(each) for each in astuple(policy))
        proof = self._control.proof(approval_policy_row(tenant_id, (place["agent"], place["tool"]), says, now))
        await transaction.run(sql.PUT_POLICY, updated_at=now, **place, **asdict(policy), **proof._asdict())

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every policy as it is proved, and its stored proof: for a check of all of them."""
        for row in await transaction.fetch_all(sql.POLICIES):
            yield _row(tenant_id, row), proof_of(row)

    async def _read(self, transaction: Transaction, tenant_id: UUID) -> builtins.list[PolicyEntry]:
        entries = []
        for row in await transaction.fetch_all(sql.POLICIES):
            sound = self._control.is_sound(_row(tenant_id, row), proof_of(row))
            policy = _policy(row) if sound else None
            at = row.updated_at if sound else None
            entries.append(PolicyEntry(row.agent or None, row.tool or None, policy, at, damaged=not sound))
        return entries


def _check(policy: ApprovalPolicy) -> None:
    if not 1 <= policy.decisions_needed <= _DECISIONS_MAX:
        raise InvalidState(f"decisions_needed is 1 to {_DECISIONS_MAX}", "/decisions_needed")
    for name in ("expires_seconds", "valid_seconds"):
        if not EXPIRES_SECONDS_MIN <= getattr(policy, name) <= EXPIRES_SECONDS_MAX:
            raise InvalidState(f"{name} is 60 seconds to 30 days", f"/{name}")


def _policy(row: PolicyRow) -> ApprovalPolicy:
    return ApprovalPolicy(**{name: getattr(row, name) for name in _NAMES})


def _row(tenant_id: UUID, row: PolicyRow) -> Row:
    says = tuple(int(getattr(row, name)) for name in _NAMES)
    return approval_policy_row(tenant_id, (row.agent, row.tool), says, row.updated_at)
