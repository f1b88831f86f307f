"""Retention policies as rows: who says what, what holds for a thread, and what a round would do.

A tenant says what holds for all of its threads and for those of an agent, whoever may write a thread what holds for it,
and the operator what a tenant may say at most. Every change is recorded in the audit log in its own transaction, a
legal hold that is set or lifted once more under its own name. A policy that does not mention the hold leaves it as it
is.

A row that no gateway wrote as it is (`storage.control.rows`) is named, hides no other one, and is superseded by whoever
may say what it said; until then whatever it could apply to is left alone.

Owns the rows, the resolution (by `storage.retention.planner`) and the preview, which asks the same planner about the
same facts as a round does, and changes nothing. It removes nothing and starts nothing; `storage.retention.rounds` does.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec import structs

from crypto import KeyDestroyed
from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.archive.expiring import Expired
from storage.archive.moving import Archives, KeepHot
from storage.archive.segmenting import Moved
from storage.blobs.store import STORAGE_CLASSES
from storage.concurrency.turns import Pauses
from storage.control.features import COLD_NAMESPACES
from storage.control.rows import ControlRows, Proof, policy_row
from storage.encoding import json_decoder, json_encoder
from storage.errors import (
    IntegrityFailure,
    InvalidState,
    RetentionPoliciesExceeded,
    StorageError,
    TenantNotFound,
    ThreadNotFound,
)
from storage.format.audit import OPERATOR_CHAIN
from storage.model import Removal
from storage.postgres.unit_of_work import Transaction, UnitOfWork
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
    check_ceilings,
    check_policy,
    may_expire_segments,
    may_segment,
    may_thin,
    outlook,
    plan,
    plan_besides,
    resolve,
)
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope, check_id
from storage.statements.deployment.tenants import ONE_TENANT
from storage.statements.rules import retention as sql
from storage.statements.rules.retention import FactsRow, PolicyRow
from storage.threads.holds import (
    AGENT_LEVEL,
    CEILINGS_LEVEL,
    TENANT_LEVEL,
    THREAD_LEVEL,
    proved_policy,
    proved_thread_policy,
)
from storage.threads.pruning import Pruning
from storage.threads.thinning import ThinningRule

# More agents than anybody runs; a round reads all of them.
AGENT_POLICIES_MAX = 1_000
# With those that were taken back since the last round that is through.
AGENT_POLICY_ROWS_MAX = 2 * AGENT_POLICIES_MAX
# Threads of one page of a preview, and how long it may take: thinning opens what it would thin.
PREVIEW_ROWS = 500
PREVIEW_SECONDS = 5.0
# What is done to a thread that stays; what it takes is counted.
BESIDES: frozenset[Action] = frozenset({"segment", "segment-expire", "thin"})
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

_encoder = json_encoder(order="deterministic")
_policy = json_decoder(Policy)
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
        drafted = Stored(_keeping_hold(draft, before), now)
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


@dataclass(frozen=True, slots=True)
class ThreadRetention:
    """The policy that holds for one thread.

    Attributes:
        own: Its own policy.
        effective: All levels merged and capped; None: something damaged applies to it, and nothing is done to it.
        next: The act that time brings next, or that is due already; None: there is none.
        damaged: Whether its own policy was written or edited outside the gateway.
    """

    own: Stored
    effective: Effective | None
    next: Plan | None
    damaged: bool


@dataclass(slots=True)
class Foreseen:
    """What a round would do of one action.

    Attributes:
        threads: The number of threads it would do it to.
        bytes: The size of an archived thread's object, or of a hot one's envelopes. Of thinning it is an estimate: the
            part of a thread's envelopes that the checkpoints which go are of all.
        checkpoints: The number of checkpoints that would go, without those of threads that go wholly.
        pending_writes: The number of pending writes that would go, likewise.
    """

    threads: int = 0
    bytes: int = 0
    checkpoints: int = 0
    pending_writes: int = 0


@dataclass(slots=True)
class PreviewPage:
    """A stretch of a tenant's threads.

    Attributes:
        now: The moment that is asked about, the same for all pages.
        threads: The number of threads that were looked at.
        held: The number of those that only a legal hold keeps from what is due.
        damaged: The number of those that are left alone because something damaged applies to them.
        actions: The acts that would be done, by action.
        next: The thread to go on after; None: this was the last page.
    """

    now: datetime
    threads: int = 0
    held: int = 0
    damaged: int = 0
    actions: dict[Action, Foreseen] = field(default_factory=dict)
    next: tuple[str, str] | None = None


def _keeping_hold(policy: Policy, before: Policy) -> Policy:
    """The policy, with the hold of before where it does not mention one. No hold and none mentioned are the same."""
    held = policy.legal_hold if policy.legal_hold is not None else before.legal_hold
    return structs.replace(policy, legal_hold=True if held else None)


def _require_hold(policy: Policy) -> None:
    if policy.legal_hold is None:
        why = "what is superseded was damaged, and may have held: say whether there is a legal hold"
        raise InvalidState(why, pointer="/legal_hold")


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


async def _read_all(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> TenantPolicies:
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
    return Stored(_policy(row.policy), row.updated_at)


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
    return Stored(_policy(row.policy), row.policy_updated_at)


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


async def put_own(transaction: Transaction, control: ControlRows, scope: Scope, thread_id: str, policy: Policy) -> None:
    """Store a thread's own policy. The lock of holds is taken before where a hold changes."""
    now = await transaction.fetch_only(sql.PRESENT)
    target, body, held = (scope.subject_id, thread_id), _encoder(policy), bool(policy.legal_hold)
    proof = control.proof(policy_row(scope.tenant_id, THREAD_LEVEL, target, body, held, now))
    await transaction.run(
        sql.PUT_THREAD, thread_id=thread_id, policy=body, legal_hold=held, updated_at=now, **proof._asdict()
    )
    await transaction.run(sql.BEGIN_ROUNDS, owner=scope.tenant_id)


class RetentionPolicies:
    """The verbs on policies."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        pruning: Pruning,
        archives: Archives,
        control: ControlRows,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._pruning = pruning
        self._archives = archives
        self._control = control

    async def _require_segments(self, bounds: Policy | Ceilings) -> None:
        """Return if what is said can be read by every process there is.

        Raises:
            FeatureOff: An older build may run, which does not know what is said of segments.
        """
        times = (bounds.checkpoints_idle_ttl_seconds, bounds.segment_ttl_seconds)
        if any(each is not None for each in times) or (isinstance(bounds, Policy) and bounds.keep_hot):
            await self._archives.segmenting.require_feature()

    async def delay(self, scope: TenantScope, seconds: float) -> None:
        """Let no round begin for so many seconds; one that is under way goes on."""
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.DELAY_ROUND, seconds=seconds)

    # --- tenant and agents -----------------------------------------------------------------------------------------

    async def get(self, scope: TenantScope) -> TenantPolicies:
        """Read all policies of the levels above threads, and which of them are damaged.

        Raises:
            CryptoError: the root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await _read_all(transaction, self._control, scope.tenant_id)

    async def put(
        self, scope: TenantScope, agent: str | None, policy: Policy, actor: str = LOCAL_ACTOR
    ) -> TenantPolicies:
        """Set the policy of all threads, or of those of an agent; it replaces the one before, except for the hold.

        A damaged policy is superseded, on the record. Whether it held is not known, so the hold must then be given.

        ``agent`` None: all threads. ``legal_hold`` None leaves the hold as it is.

        Returns:
            All policies above threads, as they are now.

        Raises:
            InvalidState: it makes no sense, or does not say the hold though it must.
            RetentionPoliciesExceeded: the tenant has as many as it may.
            CryptoError: as `get`; nothing changed.
        """
        check_policy(policy, STORAGE_CLASSES)
        await self._control.ready()
        await self._require_segments(policy)
        level, target = (TENANT_LEVEL, "") if agent is None else (AGENT_LEVEL, check_id(agent, "agent"))
        tenant_id = scope.tenant_id
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.TAKE_HOLDS, lock=sql.holds_lock(tenant_id))
            policies = await read_policies(transaction, self._control, tenant_id, [agent])
            before = (policies.tenant if agent is None else policies.agents.get(agent, Stored())).policy
            after = _keeping_hold(policy, before)
            superseded = (level, target) in policies.damaged
            if superseded:
                _require_hold(policy)
            if after != before or superseded:
                if before == NO_POLICY and agent is not None and not superseded:
                    await self._make_room(transaction, tenant_id)
                # Also where nothing is policies any more: that it changed says that threads are to be looked at again.
                await self._put(transaction, tenant_id, level, target, _encoder(after), held=bool(after.legal_hold))
                named = f"tenant:{tenant_id}" if agent is None else f"agent:{agent}"
                await self._record(transaction, tenant_id, actor, named, before, after, superseded=superseded)
            return await _read_all(transaction, self._control, tenant_id)

    async def _make_room(self, transaction: Transaction, tenant_id: UUID) -> None:
        """Before an agent gets a policy: remove what was taken back of others, once a round has acted on that.

        Raises:
            RetentionPoliciesExceeded: too many are left.
        """
        policies = await _read_all(transaction, self._control, tenant_id)
        taken_back = [agent for agent, stored in policies.agents.items() if stored.policy == NO_POLICY]
        removed: Sequence[str] = ()
        if taken_back:
            removed = await transaction.fetch_all(sql.REMOVE_TAKEN_BACK, owner=tenant_id, targets=taken_back)
        rows = len(policies.agents) + len(policies.damaged)
        if rows - len(taken_back) >= AGENT_POLICIES_MAX or rows - len(removed) >= AGENT_POLICY_ROWS_MAX:
            raise RetentionPoliciesExceeded

    async def _put(
        self, transaction: Transaction, tenant_id: UUID, level: str, target: str, body: bytes, *, held: bool
    ) -> None:
        now = await transaction.fetch_only(sql.PRESENT)
        proof = self._control.proof(policy_row(tenant_id, level, (target,), body, held, now))
        await transaction.run(
            sql.PUT,
            owner=tenant_id,
            level=level,
            target=target,
            policy=body,
            legal_hold=held,
            updated_at=now,
            **proof._asdict(),
        )
        await transaction.run(sql.BEGIN_ROUNDS, owner=tenant_id)

    async def _record(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        actor: str,
        target: str,
        before: Policy,
        after: Policy,
        *,
        superseded: bool,
    ) -> None:
        detail: dict[str, Any] = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
        if superseded:
            detail["before"] = "damaged"
        await self._audit.append(transaction, tenant_id, actor, "retention.set", target, detail)
        if superseded or bool(before.legal_hold) != bool(after.legal_hold):
            action = "legal-hold.set" if after.legal_hold else "legal-hold.lift"
            await self._audit.append(transaction, tenant_id, actor, action, target)

    # --- one thread ------------------------------------------------------------------------------------------------

    async def get_thread(self, scope: Scope, thread_id: str) -> ThreadRetention:
        """Read what holds for a thread, and what will become of it.

        Raises:
            ThreadNotFound: there is none.
            CryptoError: as `get`.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await self._of_thread(transaction, scope, thread_id)

    async def put_thread(
        self,
        scope: Scope,
        thread_id: str,
        policy: Policy,
        actor: str = LOCAL_ACTOR,
        *,
        check: Callable[[Effective, Effective], None] | None = None,
        supersede: bool = False,
    ) -> ThreadRetention:
        """Set the policy of one thread; as `put`.

        ``check`` is told what holds and what would hold, under the thread's lock; what it raises changes nothing.
        Whether the caller may is the gateway's to know, and ``supersede`` says whether it may replace what is damaged.

        Raises:
            InvalidState: it makes no sense, or does not say the hold though it must.
            ThreadNotFound: there is no such thread.
            IntegrityFailure: what it said is damaged, and the caller may not replace it; or ``check`` cannot be told
                what holds. Nothing changed.
            CryptoError: as `get`; nothing changed.
        """
        check_policy(policy, STORAGE_CLASSES)
        await self._control.ready()
        await self._require_segments(policy)

        async def attempt() -> ThreadRetention:
            async with self._unit_of_work.begin(scope) as transaction:
                # The order of every removal: the thread, then the holds.
                locked = await transaction.fetch_one(sql.LOCK_THREAD, thread_id=thread_id)
                if locked is None:
                    raise ThreadNotFound
                row = await transaction.fetch_one(sql.THREAD_ONE, thread_id=thread_id)
                before, superseded = NO_POLICY, False
                if row is not None:
                    proved, proof = proved_thread_policy(scope, thread_id, row), Proof(row.mac, row.mac_format)
                    if not supersede:
                        self._control.check(proved, proof)
                    elif superseded := not self._control.is_sound(proved, proof):
                        _require_hold(policy)
                    if not superseded:
                        before = _policy(row.policy)
                after = _keeping_hold(policy, before)
                if after != before or superseded:
                    if check is not None:
                        others = await read_policies(transaction, self._control, scope.tenant_id, [locked.agent])
                        check(others.effective(locked.agent, before), others.effective(locked.agent, after))
                    if superseded or before.legal_hold != after.legal_hold:
                        await transaction.run(sql.TAKE_HOLDS, lock=sql.holds_lock(scope.tenant_id))
                    await put_own(transaction, self._control, scope, thread_id, after)
                    target = f"thread:{scope.subject_id}/{thread_id}"
                    await self._record(
                        transaction, scope.tenant_id, actor, target, before, after, superseded=superseded
                    )
                return await self._of_thread(transaction, scope, thread_id)

        return await self._unit_of_work.retrying(attempt)

    async def _of_thread(self, transaction: Transaction, scope: Scope, thread_id: str) -> ThreadRetention:
        row = await transaction.fetch_one(sql.FACTS_OF, thread_id=thread_id)
        if row is None:
            raise ThreadNotFound
        try:
            own = own_of(self._control, scope.tenant_id, row)
        except IntegrityFailure:
            return ThreadRetention(Stored(), None, None, damaged=True)
        try:
            seen = await examine(transaction, self._control, scope, thread_id)
        except IntegrityFailure:
            return ThreadRetention(own, None, None, damaged=False)
        if seen is None:
            raise ThreadNotFound
        following = seen.plan if seen.plan is not None else outlook(seen.policy, seen.facts)
        return ThreadRetention(own, seen.policy, following, damaged=False)

    # --- ceilings --------------------------------------------------------------------------------------------------

    async def ceilings(self, tenant_id: UUID) -> Capped:
        """Read the bounds that the operator sets for a tenant.

        Raises:
            TenantNotFound: there is no such tenant.
            IntegrityFailure: it was written or edited outside the gateway.
            CryptoError: as `get`.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            policies = await read_policies(transaction, self._control, tenant_id, [])
        if (CEILINGS_LEVEL, "") in policies.damaged:
            raise IntegrityFailure("the ceilings were written or edited outside the gateway; set them again")
        return policies.capped

    async def set_ceilings(self, tenant_id: UUID, ceilings: Ceilings, actor: str = LOCAL_ACTOR) -> Capped:
        """Set the bounds of a tenant's policies, superseding damaged ones. Threads beyond them are due at once.

        Raises:
            InvalidState: they make no sense.
            TenantNotFound: there is no such tenant.
            CryptoError: as `get`; nothing changed.
        """
        check_ceilings(ceilings)
        await self._control.ready()
        await self._require_segments(ceilings)
        body = _encoder(ceilings)
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            await transaction.run(sql.TAKE_HOLDS, lock=sql.holds_lock(tenant_id))
            policies = await read_policies(transaction, self._control, tenant_id, [])
            before, superseded = policies.capped, (CEILINGS_LEVEL, "") in policies.damaged
            if ceilings != before.ceilings or superseded:
                await self._put(transaction, tenant_id, CEILINGS_LEVEL, "", body, held=False)
                target = f"tenant:{tenant_id}"
                shown = "damaged" if superseded else msgspec.to_builtins(before.ceilings)
                detail = {"before": shown, "after": msgspec.to_builtins(ceilings)}
                await self._audit.append(transaction, tenant_id, actor, "retention.ceilings", target, detail)
                await self._audit.append(transaction, OPERATOR_CHAIN, actor, "retention.ceilings", target, detail)
            return (await read_policies(transaction, self._control, tenant_id, [])).capped

    # --- what would happen -----------------------------------------------------------------------------------------

    async def preview(
        self,
        scope: TenantScope,
        *,
        now: datetime | None = None,
        after: tuple[str, str] | None = None,
        draft: tuple[str | None, Policy] | None = None,
        rows: int = PREVIEW_ROWS,
    ) -> PreviewPage:
        """Foresee what a round would do to some of a tenant's threads. It only reads, and all of it of one moment.

        ``now`` and ``after`` are what the page before said; None: this moment, and the beginning. ``draft`` is a policy
        of an agent's threads, or (None) of all, to take in the place of the stored one. At most ``rows`` threads are
        looked at.

        Raises:
            InvalidState: the draft makes no sense.
            CryptoError: as `get`.
        """
        await self._control.ready()
        if draft is not None:
            check_policy(draft[1], STORAGE_CLASSES)
        until = time.monotonic() + PREVIEW_SECONDS
        async with self._unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            await transaction.run(sql.IN_ORDER)
            now = await transaction.fetch_only(sql.PRESENT) if now is None else now
            after_subject, after_thread = after or ("", "")
            threads = await transaction.fetch_all(
                sql.PAGE, after_subject=after_subject, after_thread=after_thread, limit=rows
            )
            agents = {row.agent for row in threads} | {None if draft is None else draft[0]}
            policies = await read_policies(transaction, self._control, scope.tenant_id, agents)
        if draft is not None:
            policies = policies.with_draft(*draft, now)
        page = PreviewPage(now)
        hot: dict[str, list[Examined]] = {}
        pauses = Pauses()
        for row in threads:
            await pauses.after(len(row.policy or b""))
            subject = Scope(scope.tenant_id, row.subject_id)
            try:
                seen, counts = glance(policies, own_of(self._control, scope.tenant_id, row), row, None, now)
            except IntegrityFailure:
                page.threads += 1
                page.damaged += 1
                continue
            if counts:
                async with self._unit_of_work.snapshot(subject) as transaction:
                    seen = await count(transaction, self._control, seen, None, now)
            page.threads += 1
            page.held += seen.policy.legal_hold and _without_hold(seen, now) is not None and seen.plan is None
            if seen.plan is not None:
                if seen.facts.tier == "hot":
                    hot.setdefault(row.subject_id, []).append(seen)
                else:
                    _foresee(page, seen, seen.row.size_bytes or 0)
            if seen.plan is not None and seen.plan.action in BESIDES and time.monotonic() > until:
                break
        await self._weigh(page, scope, hot)
        if threads and (page.threads < len(threads) or len(threads) == rows):
            last = threads[page.threads - 1]
            page.next = (last.subject_id, last.thread_id)
        return page

    async def _weigh(self, page: PreviewPage, scope: TenantScope, hot: Mapping[str, list[Examined]]) -> None:
        """Add what is due of hot threads, by subject, with what their envelopes take."""
        for subject_id, seen in hot.items():
            subject = Scope(scope.tenant_id, subject_id)
            ids = [each.row.thread_id for each in seen]
            async with self._unit_of_work.snapshot(subject) as transaction:
                rows = await transaction.fetch_all(sql.HOT_BYTES, thread_ids=ids)
            size = {row.thread_id: row.bytes for row in rows}
            for each in seen:
                following = each
                while following.plan is not None:
                    await self._weigh_one(page, subject, following, size[each.row.thread_id])
                    following = besides(following, page.now)

    async def _weigh_one(self, page: PreviewPage, scope: Scope, seen: Examined, size: int) -> None:
        """Add one act that is due of a hot thread, whose envelopes have a size."""
        action = None if seen.plan is None else seen.plan.action
        if action == "segment-expire":
            expired = await self._expired(scope, seen, page.now)
            if expired.segments:
                removal = Removal(threads=0, checkpoints=expired.checkpoints, pending_writes=expired.pending_writes)
                _foresee(page, seen, expired.size_bytes, removal)
            return
        if action not in {"segment", "thin"}:
            _foresee(page, seen, size)
            return
        removal = await (self._segmented if action == "segment" else self._thinned)(scope, seen, page.now)
        if action == "segment" or removal.checkpoints or seen.facts.writes_due:
            part = removal.checkpoints / max(seen.facts.checkpoints or 0, 1)
            _foresee(page, seen, int(size * min(part, 1.0)), removal)

    async def _thinned(self, scope: Scope, seen: Examined, now: datetime) -> Removal:
        try:
            return await self._pruning.preview(scope, seen.row.thread_id, rule_of(seen.policy, now))
        except (StorageError, KeyDestroyed):  # it is damaged, or was removed meanwhile: a round would leave it, too
            return Removal(threads=0, checkpoints=0, pending_writes=0)

    async def _segmented(self, scope: Scope, seen: Examined, now: datetime) -> Removal:
        """What would leave the database; nothing of it would be removed."""
        try:
            moved = await self._archives.segmenting.preview(
                scope, seen.row.thread_id, segment_rule_of(seen.policy, now)
            )
        except (StorageError, KeyDestroyed):  # as `_thinned`
            moved = Moved()
        return Removal(threads=0, checkpoints=moved.checkpoints, pending_writes=moved.pending_writes)

    async def _expired(self, scope: Scope, seen: Examined, now: datetime) -> Expired:
        """What would be removed with segments."""
        try:
            return await self._archives.expiring.preview(scope, seen.row.thread_id, segments_before(seen.policy, now))
        except (StorageError, KeyDestroyed):  # as `_thinned`
            return Expired()


def _without_hold(seen: Examined, now: datetime) -> Plan | None:
    return plan(replace(seen.policy, legal_hold=False), seen.facts, now)


def _foresee(page: PreviewPage, seen: Examined, size: int, removal: Removal | None = None) -> None:
    if seen.plan is None:
        return
    total = page.actions.setdefault(seen.plan.action, Foreseen())
    total.threads += 1
    total.bytes += size
    if removal is not None:
        total.checkpoints += removal.checkpoints
        total.pending_writes += removal.pending_writes
