"""What retention knows of a thread: the policies that hold for it, and the facts they are held against.

The levels above threads are read and merged here (by `storage.retention.planner`), and what a policy asks about is
counted. A row that no gateway wrote as it is (`storage.control.rows`) is named and hides no other one; whatever it
could apply to is left alone. Only reads, and says of no act whether it is done.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from storage.archive.moving import KeepHot
from storage.concurrency.turns import Pauses
from storage.control.features import COLD_NAMESPACES
from storage.control.rows import ControlRows, Proof, policy_row
from storage.encoding import json_decoder
from storage.errors import IntegrityFailure
from storage.postgres.unit_of_work import Transaction
from storage.retention.planner import (
    NO_CEILINGS,
    NO_POLICY,
    Action,
    Ceilings,
    Effective,
    Facts,
    Plan,
    Policy,
    Thinning,
    may_expire_segments,
    may_segment,
    may_thin,
    plan,
    plan_besides,
    resolve,
)
from storage.scope import Scope
from storage.statements.rules import retention as sql
from storage.statements.rules.retention import FactsRow, PolicyRow
from storage.threads.holds import AGENT_LEVEL, CEILINGS_LEVEL, TENANT_LEVEL, THREAD_LEVEL, proved_policy
from storage.threads.thinning import ThinningRule

# What is done to a thread that stays; what it takes is counted.
BESIDES: frozenset[Action] = frozenset({"segment", "segment-expire", "thin"})
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

decode_policy = json_decoder(Policy)
_ceilings = json_decoder(Ceilings)


@dataclass(frozen=True, slots=True)
class Stored:
    """The policy of one level, and since when it holds; None: it never had one, or took it back."""

    policy: Policy = NO_POLICY
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Capped:
    """The operator's ceilings for a tenant, and since when."""

    ceilings: Ceilings = NO_CEILINGS
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TenantPolicies:
    """The policies of the levels above threads.

    Attributes:
        tenant: The policy of all threads.
        agents: The policies of the threads of an agent, by agent.
        capped: The bounds that the operator sets.
        damaged: The policies that no gateway wrote as they are, as (level, target). They count for nothing, and the
            threads that one could apply to are left alone.
    """

    tenant: Stored = Stored()
    agents: Mapping[str, Stored] = field(default_factory=dict)
    capped: Capped = Capped()
    damaged: frozenset[tuple[str, str]] = frozenset()

    def damages(self, agent: str | None) -> list[tuple[str, str]]:
        """List the damaged policies that could apply to an agent's threads, as (level, target)."""
        concerned = {(TENANT_LEVEL, ""), (CEILINGS_LEVEL, ""), (AGENT_LEVEL, agent)}
        return sorted(self.damaged & concerned)

    def effective(self, agent: str | None, own: Policy = NO_POLICY) -> Effective:
        """Merge what holds for a thread of an agent, with the thread's own policy.

        Raises:
            IntegrityFailure: something that applies to it was written or edited outside the gateway.
        """
        if damaged := self.damages(agent):
            named = ", ".join(f"{level} {target!r}" if target else level for level, target in damaged)
            raise IntegrityFailure(f"retention of {named} was written or edited outside the gateway")
        of_agent = self.agents.get(agent, Stored()) if agent is not None else Stored()
        return resolve((self.tenant.policy, of_agent.policy, own), self.capped.ceilings)

    def changed_at(self, agent: str | None, own: datetime | None) -> datetime:
        """The moment at which what holds for a thread of an agent was last changed."""
        of_agent = self.agents.get(agent, Stored()) if agent is not None else Stored()
        changes = (self.tenant.updated_at, of_agent.updated_at, self.capped.updated_at, own)
        return max((each for each in changes if each is not None), default=_BEGINNING)

    def with_draft(self, agent: str | None, draft: Policy, now: datetime) -> "TenantPolicies":
        """The same, with a draft as the policy of all threads, or of those of an agent."""
        before = self.tenant.policy if agent is None else self.agents.get(agent, Stored()).policy
        drafted = Stored(keeping_hold(draft, before), now)
        level = (TENANT_LEVEL, "") if agent is None else (AGENT_LEVEL, agent)
        others = replace(self, damaged=self.damaged - {level})
        if agent is None:
            return replace(others, tenant=drafted)
        return replace(others, agents={**self.agents, agent: drafted})


@dataclass(frozen=True, slots=True)
class Examined:
    """A thread as retention sees it.

    ``plan`` is the act that is due now; None: there is none.
    """

    row: FactsRow
    policy: Effective
    facts: Facts
    plan: Plan | None


def keeping_hold(policy: Policy, before: Policy) -> Policy:
    """The policy, with the hold of before where it does not mention one. No hold and none mentioned are the same."""
    held = policy.legal_hold if policy.legal_hold is not None else before.legal_hold
    return structs.replace(policy, legal_hold=True if held else None)


def rule_of(policy: Effective, now: datetime) -> ThinningRule:
    """The rule by which thinning goes under a policy."""
    thinning = policy.thinning
    window = policy.pending_writes_seconds
    return ThinningRule(
        every=None if thinning is None else thinning.every,
        keep_first=0 if thinning is None else thinning.keep_first,
        keep_last=0 if thinning is None else thinning.keep_last,
        keep_statuses=frozenset() if thinning is None else frozenset(thinning.keep_statuses),
        checkpoints_max=policy.checkpoints_max,
        writes_since=None if window is None else now - timedelta(seconds=window),
    )


def segment_rule_of(policy: Effective, now: datetime) -> ThinningRule:
    """The rule that says which checkpoints move into segments under a policy, which has a time for it."""
    kept = policy.keep_hot or Thinning()
    return KeepHot(
        seconds=policy.checkpoints_idle_ttl_seconds or 0,
        first=kept.keep_first,
        last=kept.keep_last,
        every=kept.every,
        statuses=kept.keep_statuses,
    ).rule(now)


def segments_before(policy: Effective, now: datetime) -> datetime:
    """The moment before which segments were made that go under a policy, which has a time for it."""
    return now - timedelta(seconds=policy.segment_ttl_seconds or 0)


async def read_policies(
    transaction: Transaction, control: ControlRows, tenant_id: UUID, agents: Iterable[str | None]
) -> TenantPolicies:
    """Read the policies of the levels above threads that concern threads of these agents.

    `ControlRows.ready` came before the transaction. What no gateway wrote is named, and is not looked at.
    """
    targets = {"", *(agent for agent in agents if agent is not None)}
    rows = await transaction.fetch_all(sql.POLICIES_OF, owner=tenant_id, targets=[*targets])
    return await _checked(control, tenant_id, rows)


async def read_all_policies(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> TenantPolicies:
    """Read all policies of the levels above threads; as `read_policies`."""
    return await _checked(control, tenant_id, await transaction.fetch_all(sql.POLICIES, owner=tenant_id))


async def _checked(control: ControlRows, tenant_id: UUID, rows: Sequence[PolicyRow]) -> TenantPolicies:
    """Check and read rows, as `read_policies`; other tasks have their turn between them."""
    tenant, capped, agents, damaged = Stored(), Capped(), {}, set()
    pauses = Pauses()
    for row in rows:
        if not control.is_sound(proved_policy(tenant_id, row), Proof(row.mac, row.mac_format)):
            damaged.add((row.level, row.target))
        elif row.level == CEILINGS_LEVEL:
            capped = Capped(_ceilings(row.policy), row.updated_at)
        elif row.level == TENANT_LEVEL:
            tenant = _stored(row)
        else:
            agents[row.target] = _stored(row)
        await pauses.after(len(row.policy))
    return TenantPolicies(tenant, agents, capped, frozenset(damaged))


def _stored(row: PolicyRow) -> Stored:
    return Stored(decode_policy(row.policy), row.updated_at)


def own_of(control: ControlRows, tenant_id: UUID, row: FactsRow) -> Stored:
    """Read a thread's own policy from the facts about it.

    Raises:
        IntegrityFailure: it was written or edited outside the gateway.
    """
    if row.policy is None or row.policy_updated_at is None:
        return Stored()
    target, held = (row.subject_id, row.thread_id), bool(row.legal_hold)
    proved = policy_row(tenant_id, THREAD_LEVEL, target, row.policy, held, row.policy_updated_at)
    control.check(proved, Proof(row.mac, row.mac_format))
    return Stored(decode_policy(row.policy), row.policy_updated_at)


def glance(
    policies: TenantPolicies, own: Stored, row: FactsRow, thinned_until: datetime | None, now: datetime | None = None
) -> tuple[Examined, bool]:
    """Examine a thread by its own row; returns also whether more must be counted to know whether it is to be thinned.

    ``now`` is the moment to ask about; None: the one that the row was read at.

    Raises:
        IntegrityFailure: as `TenantPolicies.effective`.
    """
    policy = policies.effective(row.agent, own.policy)
    touched = max(row.updated_at, policies.changed_at(row.agent, own.updated_at))
    facts = Facts(
        tier=row.tier,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        client_share=row.client_share,
        archived_at=row.archived_at,
        changed=thinned_until is None or touched >= thinned_until,
        segmented=row.segmented,
    )
    due = plan(policy, facts, row.present if now is None else now)
    ended = due is not None and due.action not in BESIDES
    window = policy.pending_writes_seconds
    # A write that became due since the last time was written when the thread was touched, at the latest.
    aged = window is not None and (
        thinned_until is None or touched + timedelta(seconds=window) >= thinned_until or facts.changed
    )
    counts = not ended and (
        (may_thin(policy, facts) and (facts.changed or aged))
        or may_segment(policy, facts)
        or may_expire_segments(policy, facts)
    )
    return Examined(row, policy, facts, due), counts


async def count(
    transaction: Transaction,
    control: ControlRows,
    seen: Examined,
    thinned_until: datetime | None,
    now: datetime | None = None,
) -> Examined:
    """Examine a thread by its other rows as well; as `glance`."""
    now = seen.row.present if now is None else now
    window = timedelta(seconds=seen.policy.pending_writes_seconds or 0)
    looked_at = None if seen.facts.changed else thinned_until
    since = _BEGINNING if looked_at is None else looked_at - window
    idle = seen.policy.checkpoints_idle_ttl_seconds
    ttl = None if idle is None else timedelta(seconds=idle)
    counts = await transaction.fetch_only(
        sql.COUNTS_OF,
        thread_id=seen.row.thread_id,
        written_before=now - window,
        written_since=since,
        made_before=None if ttl is None else now - ttl,
        overdue_before=None if ttl is None else now - 2 * ttl,
        overdue_since=_BEGINNING if looked_at is None or ttl is None else looked_at - 2 * ttl,
        leaving=None if ttl is None or not control.features.is_on(COLD_NAMESPACES) else _leaving(seen.policy),
        volumes_since=_volumes_since(seen, looked_at),
    )
    due = seen.policy.pending_writes_seconds is not None and counts.writes_due
    facts = replace(
        seen.facts,
        checkpoints=counts.checkpoints,
        writes_due=due,
        old_checkpoints=counts.old_checkpoints,
        has_overdue=counts.has_overdue,
        volume_at=counts.volume_at,
    )
    return Examined(seen.row, seen.policy, facts, plan(seen.policy, facts, now))


def besides(seen: Examined, now: datetime | None = None) -> Examined:
    """The same after what was due of it was done, with what is due besides."""
    assert seen.plan is not None  # noqa: S101  for the type checker: the caller looked
    return replace(
        seen, plan=plan_besides(seen.policy, seen.facts, seen.plan, seen.row.present if now is None else now)
    )


def _volumes_since(seen: Examined, looked_at: datetime | None) -> datetime | None:
    """Volumes of segments that were made before that and are to go were found to be needed; None: none may go."""
    seconds = seen.policy.segment_ttl_seconds
    if seconds is None or not may_expire_segments(seen.policy, seen.facts):
        return None
    return _BEGINNING if looked_at is None else looked_at - timedelta(seconds=seconds)


def _leaving(policy: Effective) -> str:
    """A pattern of the names of namespaces whose heads may move into segments: all, or those of calls.

    Which of them are over is known when the thread is opened (`storage.threads.thinning.may_leave_whole`).
    """
    kept = policy.keep_hot or Thinning()
    return "%:%" if kept.keep_first or kept.keep_last or kept.every is not None else "%"


async def examine(
    transaction: Transaction,
    control: ControlRows,
    scope: Scope,
    thread_id: str,
    thinned_until: datetime | None = None,
) -> Examined | None:
    """Examine a thread at this moment, by the database's clock; None: there is none.

    `ControlRows.ready` came before the transaction. What did not change since ``thinned_until`` was thinned already.

    Raises:
        IntegrityFailure: what is said of it was written or edited outside the gateway.
    """
    row = await transaction.fetch_one(sql.FACTS_OF, thread_id=thread_id)
    if row is None:
        return None
    policies = await read_policies(transaction, control, scope.tenant_id, [row.agent])
    seen, counts = glance(policies, own_of(control, scope.tenant_id, row), row, thinned_until)
    return await count(transaction, control, seen, thinned_until) if counts else seen


async def effective_of(
    transaction: Transaction, control: ControlRows, scope: Scope, thread_id: str
) -> Effective | None:
    """Merge what holds for a thread at this moment; None: there is none. As `examine`."""
    row = await transaction.fetch_one(sql.FACTS_OF, thread_id=thread_id)
    if row is None:
        return None
    policies = await read_policies(transaction, control, scope.tenant_id, [row.agent])
    return policies.effective(row.agent, own_of(control, scope.tenant_id, row).policy)
