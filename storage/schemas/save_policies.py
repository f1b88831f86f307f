"""Save policies: a tenant asks every save, or those of an agent, to name the head it follows.

What a strict thread asks for itself (`storage.threads.verbs`) a policy asks for all threads, so that no agent loses an
update because its program forgot to: `storage.access.strictness` has the rule, and a save looks it up in its own
transaction. So a policy holds for every save that begins after it was set, in every process.

An agent's policy counts before the tenant's, also where it says that heads need not be named. Every change is recorded
in the audit log in its own transaction. A row that no gateway wrote as it is (`storage.control.rows`) is named, hides
no other one, and is superseded by whoever says again what it said.

Policies are set only once no older build runs (`storage.control.features`): that would not look. Owns the rows.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from storage.access.strictness import EVERY_AGENT, Strictness
from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.concurrency.turns import Pauses
from storage.control.features import SAVE_POLICIES
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, proof_of, save_policy_row
from storage.errors import IntegrityFailure, SavePoliciesExceeded
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import TenantScope, check_id
from storage.statements.rules import save_policies as sql

# More agents than anybody runs; who asks for the policies gets all of them.
AGENT_SAVE_POLICIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """What is said for the tenant, or for an agent.

    ``strict`` None: there is no policy.
    """

    strict: bool | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TenantSavePolicies:
    """Everything that a tenant says of its saves.

    ``damaged`` has the agents whose policies no gateway wrote as they are; an empty one: the tenant's.
    """

    tenant: SavePolicy = SavePolicy()
    agents: Mapping[str, SavePolicy] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()

    def of(self, agent: str | None) -> SavePolicy:
        """What is said for an agent, or (None) for the tenant."""
        return self.tenant if agent is None else self.agents.get(agent, SavePolicy())

    def effective(self, agent: str | None) -> bool | None:
        """Whether saves of an agent, to threads of its own, must name the head; None: something damaged decides."""
        policies = {EVERY_AGENT: self.tenant, **self.agents}
        says = {name: each.strict for name, each in policies.items() if each.strict is not None}
        try:
            return Strictness(says=says, damaged=self.damaged).asked_by(agent) is not None
        except IntegrityFailure:
            return None


class SavePolicies:
    """The verbs on save policies."""

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control

    async def get(self, scope: TenantScope) -> TenantSavePolicies:
        """What a tenant says.

        Raises:
            CryptoError: the root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready_to_check()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await self._read(transaction, scope.tenant_id)

    async def put(
        self, scope: TenantScope, agent: str | None, strict: bool | None, actor: str = LOCAL_ACTOR
    ) -> TenantSavePolicies:
        """Say whether saves must name the head they follow; the same again changes nothing. Returns all that is said.

        ``agent`` None: all agents. ``strict`` None takes the policy back.

        Raises:
            FeatureOff: an older build may run; finish the upgrade first.
            SavePoliciesExceeded: the tenant has as many as it may.
            CryptoError: as `get`; nothing changed.
        """
        target = EVERY_AGENT if agent is None else check_id(agent, "agent")
        await self._ready()
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK, name=f"{scope.tenant_id}/save-policies")
            row = await transaction.fetch_one(sql.ONE, agent=target)
            superseded = row is not None and not self._is_sound(scope.tenant_id, row)
            before = "damaged" if superseded else None if row is None else row.strict
            if strict != before:
                if strict is None:
                    await transaction.run(sql.TAKE_BACK, agent=target)
                else:
                    if row is None and agent is not None:
                        await _require_room(transaction)
                    now = await transaction.fetch_only(NOW)
                    proof = self._control.proof(save_policy_row(scope.tenant_id, target, strict, now))
                    await transaction.run(sql.PUT, agent=target, strict=strict, updated_at=now, **proof._asdict())
                detail = {"before": before, "after": strict}
                named = f"tenant:{scope.tenant_id}" if agent is None else f"agent:{agent}"
                await self._audit.append(transaction, scope.tenant_id, actor, "save-policy.set", named, detail)
            return await self._read(transaction, scope.tenant_id)

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every policy as it is proved, and its stored proof: for whoever checks all of them."""
        for row in await transaction.fetch_all(sql.EVERY):
            yield _row(tenant_id, row), proof_of(row)

    def _is_sound(self, tenant_id: UUID, row: sql.SavePolicyRow) -> bool:
        return self._control.is_sound(_row(tenant_id, row), proof_of(row))

    async def _read(self, transaction: Transaction, tenant_id: UUID) -> TenantSavePolicies:
        """What all of a tenant's rows say; others go first between them."""
        policies, damaged = {}, set()
        pauses = Pauses()
        for row in await transaction.fetch_all(sql.EVERY):
            if self._is_sound(tenant_id, row):
                policies[row.agent] = SavePolicy(row.strict, row.updated_at)
            else:
                damaged.add(row.agent)
            await pauses.after(0)
        tenant = policies.pop(EVERY_AGENT, SavePolicy())
        return TenantSavePolicies(tenant, policies, frozenset(damaged))

    async def _ready(self) -> None:
        await self._control.ready()
        await self._control.features.require(SAVE_POLICIES, "save policies are set")


def _row(tenant_id: UUID, row: sql.SavePolicyRow) -> Row:
    return save_policy_row(tenant_id, row.agent, row.strict, row.updated_at)


async def _require_room(transaction: Transaction) -> None:
    if await transaction.fetch_only(sql.AGENTS) >= AGENT_SAVE_POLICIES_MAX:
        raise SavePoliciesExceeded
