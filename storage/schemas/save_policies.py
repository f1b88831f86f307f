"""Save policies: what a tenant asks of every save, or of those of an agent.

What a strict thread asks for itself (`storage.threads.verbs`) a policy asks for all threads: to name the head that a
save follows, so that no agent loses an update because its program forgot to. It also says which lists are so long that
whoever saves them is told so. `storage.access.save_rules` has the rules, and a save looks them up in its own
transaction. So a policy holds for every save that begins after it was set, in every process.

What an agent's policy says counts before what the tenant's says, also where it says that heads need not be named. Every
change is recorded in the audit log in its own transaction. A row that no gateway wrote as it is
(`storage.control.rows`) is named, hides no other one, and is superseded by whoever says again what it said.

Policies are set only once no older build runs (`storage.control.features`): that would not look. Owns the rows.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from uuid import UUID

from storage.access.save_rules import EVERY_AGENT, SaveRules
from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.concurrency.turns import Pauses
from storage.control.features import COMPACTION_POLICIES, SAVE_POLICIES
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, proof_of, save_policy_row
from storage.errors import IntegrityFailure, SavePoliciesExceeded
from storage.model import SaveRule
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import TenantScope, check_id
from storage.statements.rules import save_policies as sql

# More agents than anybody runs; who asks for the policies gets all of them.
AGENT_SAVE_POLICIES_MAX = 1_000
NOTHING = SaveRule()


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """What is said for the tenant, or for an agent; there is no policy that says nothing."""

    rule: SaveRule = NOTHING
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

    def effective(self, agent: str | None) -> SaveRule:
        """What holds for saves of an agent to threads of its own; ``strict`` None: something damaged decides."""
        policies = {EVERY_AGENT: self.tenant, **self.agents}
        rules = SaveRules(says={name: each.rule for name, each in policies.items()}, damaged=self.damaged)
        try:
            strict = rules.asked_by(agent) is not None
        except IntegrityFailure:
            strict = None
        return SaveRule(strict, *rules.lists_of(agent))


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
        self, scope: TenantScope, agent: str | None, rule: SaveRule, actor: str = LOCAL_ACTOR
    ) -> TenantSavePolicies:
        """Say what is asked of saves; the same again changes nothing. Returns all that is said.

        ``agent`` None: of all agents. A rule that says nothing takes the policy back.

        Raises:
            FeatureOff: an older build may run; finish the upgrade first.
            SavePoliciesExceeded: the tenant has as many as it may.
            CryptoError: as `get`; nothing changed.
        """
        target = EVERY_AGENT if agent is None else check_id(agent, "agent")
        await self._ready(rule)
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK, name=f"{scope.tenant_id}/save-policies")
            row = await transaction.fetch_one(sql.ONE, agent=target)
            superseded = row is not None and not self._is_sound(scope.tenant_id, row)
            before = NOTHING if row is None else _rule(row)
            if superseded or rule != before:
                if rule == NOTHING:
                    await transaction.run(sql.TAKE_BACK, agent=target)
                else:
                    if row is None and agent is not None:
                        await _require_room(transaction)
                    now = await transaction.fetch_only(NOW)
                    proof = self._control.proof(save_policy_row(scope.tenant_id, target, rule, now))
                    values = {**asdict(rule), **proof._asdict()}
                    await transaction.run(sql.PUT, agent=target, updated_at=now, **values)
                detail = {"before": "damaged" if superseded else _audit_value(before), "after": _audit_value(rule)}
                named = f"tenant:{scope.tenant_id}" if agent is None else f"agent:{agent}"
                await self._audit.append(transaction, scope.tenant_id, actor, "save-policy.set", named, detail)
            return await self._read(transaction, scope.tenant_id)

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every policy as it is proved, and its stored proof: for a check of all of them."""
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
                policies[row.agent] = SavePolicy(_rule(row), row.updated_at)
            else:
                damaged.add(row.agent)
            await pauses.after(0)
        tenant = policies.pop(EVERY_AGENT, SavePolicy())
        return TenantSavePolicies(tenant, policies, frozenset(damaged))

    async def _ready(self, rule: SaveRule) -> None:
        await self._control.ready()
        await self._control.features.require(SAVE_POLICIES, "save policies are set")
        if rule != SaveRule(rule.strict):
            await self._control.features.require(COMPACTION_POLICIES, "save policies say when lists need compaction")


def _rule(row: sql.SavePolicyRow) -> SaveRule:
    return SaveRule(row.strict, row.compact_elements, row.compact_bytes)


def _audit_value(rule: SaveRule) -> bool | dict[str, bool | int] | None:
    """A rule in the audit log: as it always was, where it says nothing of lists."""
    if rule == SaveRule(rule.strict):
        return rule.strict
    return {name: value for name, value in asdict(rule).items() if value is not None}


def _row(tenant_id: UUID, row: sql.SavePolicyRow) -> Row:
    return save_policy_row(tenant_id, row.agent, _rule(row), row.updated_at)


async def _require_room(transaction: Transaction) -> None:
    if await transaction.fetch_only(sql.AGENTS) >= AGENT_SAVE_POLICIES_MAX:
        raise SavePoliciesExceeded
