"""Retention policies as rows: who says what, and how it is changed.

A tenant says what holds for all of its threads and for those of an agent, a caller who may write a thread what holds
for it, and the operator what a tenant may say at most. Every change is recorded in the audit log in its own
transaction, a legal hold that is set or lifted once more under its own name. A policy that does not mention the hold
leaves it as it is. A row that no gateway wrote as it is is superseded when a caller who may says anew what it said.

Owns the verbs on the rows. What holds for a thread is `storage.retention.examining`'s to say; nothing is removed or
started here (`storage.retention.rounds` does).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.blobs.store import STORAGE_CLASSES
from storage.control.features import SEGMENTS
from storage.control.rows import ControlRows, Proof, policy_row
from storage.encoding import json_encoder
from storage.errors import (
    IntegrityFailure,
    InvalidState,
    RetentionPoliciesExceeded,
    TenantNotFound,
    ThreadNotFound,
)
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.retention.examining import (
    Capped,
    Stored,
    TenantPolicies,
    decode_policy,
    examine,
    keeping_hold,
    own_of,
    read_all_policies,
    read_policies,
)
from storage.retention.planner import (
    NO_POLICY,
    Ceilings,
    Effective,
    Plan,
    Policy,
    check_ceilings,
    check_policy,
    outlook,
)
from storage.scope import OperatorScope, Scope, TenantScope, check_id
from storage.statements.deployment.tenants import ONE_TENANT
from storage.statements.rules import retention as sql
from storage.threads.holds import AGENT_LEVEL, CEILINGS_LEVEL, TENANT_LEVEL, THREAD_LEVEL, proved_thread_policy

# More agents than anybody runs; a round reads all of them.
AGENT_POLICIES_MAX = 1_000
# With those that were taken back since the last round that is through.
AGENT_POLICY_ROWS_MAX = 2 * AGENT_POLICIES_MAX

_encoder = json_encoder(order="deterministic")


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


def _require_hold(policy: Policy) -> None:
    if policy.legal_hold is None:
        why = "what is superseded was damaged, and may have held: say whether there is a legal hold"
        raise InvalidState(why, pointer="/legal_hold")


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

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control

    async def _require_segments(self, bounds: Policy | Ceilings) -> None:
        """Return if what is said can be read by every process there is. `ControlRows.ready` came before.

        Raises:
            FeatureOff: An older build may run, which does not know what is said of segments.
        """
        times = (bounds.checkpoints_idle_ttl_seconds, bounds.segment_ttl_seconds)
        if any(each is not None for each in times) or (isinstance(bounds, Policy) and bounds.keep_hot):
            await self._control.features.require(SEGMENTS, "checkpoints move into segments")

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
            return await read_all_policies(transaction, self._control, scope.tenant_id)

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
            after = keeping_hold(policy, before)
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
            return await read_all_policies(transaction, self._control, tenant_id)

    async def _make_room(self, transaction: Transaction, tenant_id: UUID) -> None:
        """Before an agent gets a policy: remove what was taken back of others, once a round has acted on that.

        Raises:
            RetentionPoliciesExceeded: too many are left.
        """
        policies = await read_all_policies(transaction, self._control, tenant_id)
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
                        before = decode_policy(row.policy)
                after = keeping_hold(policy, before)
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
