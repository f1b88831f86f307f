"""Legal holds: refusing to remove what somebody must keep, whoever asks for it.

A hold stands at a thread, at an agent or at the whole tenant. Whatever removes state looks here in the transaction that
removes it. The look-up is preceded by a lock of the tenant that removals share and that setting a hold takes alone, so
that a hold that was acknowledged is overtaken by no removal that was under way.

The statements go by columns. So what the tenant, its agents and the thread say is checked first to be what a gateway
wrote (`storage.control.rows`). A row that is not could have been a hold: what it could have held is not removed, which
is everything where it is the tenant's, an agent's threads, or one thread; its neighbours do not suffer.

A hold on an agent holds every thread that is the agent's now or has a checkpoint that the agent saved, so that nobody
escapes it by naming another agent. Owns the refusals; holds are set and lifted by `storage.retention.policies`.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from storage.concurrency.turns import Pauses
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, policy_row, proof_of
from storage.errors import IntegrityFailure, LegalHold
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.rules import retention as sql
from storage.statements.rules.retention import OwnPolicyRow, PolicyRow, ThreadPolicyRow

TENANT_LEVEL, AGENT_LEVEL, CEILINGS_LEVEL, THREAD_LEVEL = "tenant", "agent", "ceilings", "thread"
_PAGE_ROWS = 1_000


def proved_policy(tenant_id: UUID, row: PolicyRow) -> Row:
    """The row that the MAC of a tenant's, an agent's or the operator's policy covers."""
    return policy_row(tenant_id, row.level, (row.target,), row.policy, row.legal_hold, row.updated_at)


def proved_thread_policy(scope: Scope, thread_id: str, row: ThreadPolicyRow | OwnPolicyRow) -> Row:
    """The row that the MAC of a thread's policy covers."""
    target = (scope.subject_id, thread_id)
    return policy_row(scope.tenant_id, THREAD_LEVEL, target, row.policy, row.legal_hold, row.updated_at)


async def every_policy(transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
    """Every policy of a tenant, its agents and its threads, with the stored proof."""
    for row in await transaction.fetch_all(sql.POLICIES, owner=tenant_id):
        yield proved_policy(tenant_id, row), Proof(row.mac, row.mac_format)
    async for policy in _thread_policies(transaction, tenant_id, None):
        yield policy


async def _thread_policies(
    transaction: Transaction, tenant_id: UUID, subject_id: str | None
) -> AsyncIterator[tuple[Row, Proof]]:
    """The policies of threads of one subject or (None) of all, with the stored proofs."""
    after = ("", "")
    while rows := await transaction.fetch_all(
        sql.THREAD_POLICIES,
        owner=tenant_id,
        only_subject=subject_id,
        after_subject=after[0],
        after_thread=after[1],
        limit=_PAGE_ROWS,
    ):
        for row in rows:
            after = (row.subject_id, row.thread_id)
            proved = proved_thread_policy(Scope(tenant_id, row.subject_id), row.thread_id, row)
            yield proved, Proof(row.mac, row.mac_format)


async def _lock(transaction: Transaction, tenant_id: UUID) -> None:
    """What comes after it is in statements of its own: their snapshots are newer than the lock."""
    await transaction.run(sql.SHARE_HOLDS, lock=sql.holds_lock(tenant_id))


async def _damaged_above(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> frozenset[str]:
    """The agents whose policies are damaged: one could hold that agent's threads, and no other.

    Raises:
        IntegrityFailure: the tenant's own is damaged, which could hold everything.
    """
    damaged = set()
    pauses = Pauses()
    for row in await transaction.fetch_all(sql.POLICIES, owner=tenant_id):
        await pauses.after(len(row.policy))
        if row.level == CEILINGS_LEVEL:
            continue  # it holds nothing, whoever wrote it
        proved, proof = proved_policy(tenant_id, row), Proof(row.mac, row.mac_format)
        if row.level == AGENT_LEVEL:
            if not control.is_sound(proved, proof):
                damaged.add(row.target)
        else:
            control.check(proved, proof)
    return frozenset(damaged)


async def _check(control: ControlRows, rows: AsyncIterator[tuple[Row, Proof]]) -> None:
    """Check rows; others go first between them."""
    pauses = Pauses()
    async for row, proof in rows:
        control.check(row, proof)
        await pauses.after(0)


class OwnPolicy(Protocol):
    """What a tenant says of itself, as a statement brought it along."""

    @property
    def policy(self) -> bytes: ...  # noqa: D102
    @property
    def legal_hold(self) -> bool: ...  # noqa: D102
    @property
    def policy_updated_at(self) -> datetime: ...  # noqa: D102
    @property
    def mac(self) -> bytes | None: ...  # noqa: D102
    @property
    def mac_format(self) -> int | None: ...  # noqa: D102


def tenant_is_held(control: ControlRows, tenant_id: UUID, said: OwnPolicy | None) -> bool:
    """Whether all of a tenant is held, by what it says itself (None: nothing); it was read under the lock of holds.

    `ControlRows.ready` came before the transaction.

    Raises:
        IntegrityFailure: What could hold it was written or edited outside the gateway.
    """
    if said is None:
        return False
    row = policy_row(tenant_id, TENANT_LEVEL, ("",), said.policy, said.legal_hold, said.policy_updated_at)
    control.check(row, proof_of(said))
    return said.legal_hold


def _unknown(agents: frozenset[str]) -> IntegrityFailure:
    named = ", ".join(map(repr, sorted(agents)))
    return IntegrityFailure(f"retention of agent {named} was edited outside the gateway, and could hold this")


async def refuse_held(transaction: Transaction, control: ControlRows, scope: Scope, thread_id: str) -> None:
    """Refuse to remove anything of a thread that is held; the transaction must be the one that would.

    `ControlRows.ready` came before the transaction.

    Raises:
        LegalHold: it is.
        IntegrityFailure: what could hold it was written or edited outside the gateway.
    """
    await refuse_any_held(transaction, control, scope, [thread_id])


async def refuse_any_held(
    transaction: Transaction, control: ControlRows, scope: Scope, thread_ids: Sequence[str]
) -> None:
    """Refuse where one of some threads is held; as `refuse_held`.

    Raises:
        LegalHold, IntegrityFailure: as `refuse_held`.
    """
    await _lock(transaction, scope.tenant_id)
    damaged = await _damaged_above(transaction, control, scope.tenant_id)
    for thread_id in thread_ids:
        if bool(damaged) and await transaction.fetch_one(sql.THREAD_IS_OF, thread_id=thread_id, agents=list(damaged)):
            raise _unknown(damaged)
        row = await transaction.fetch_one(sql.THREAD_ONE, thread_id=thread_id)
        if row is not None:
            control.check(proved_thread_policy(scope, thread_id, row), Proof(row.mac, row.mac_format))
        if await transaction.fetch_one(sql.THREAD_HELD, thread_id=thread_id):
            raise LegalHold


async def refuse_held_items(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> None:
    """Refuse to remove items of a tenant that is held as a whole; as `refuse_held`.

    Raises:
        LegalHold: it is.
        IntegrityFailure: what could hold it was written or edited outside the gateway.
    """
    await _lock(transaction, tenant_id)
    for row in await transaction.fetch_all(sql.POLICIES, owner=tenant_id):
        if row.level == TENANT_LEVEL:
            control.check(proved_policy(tenant_id, row), Proof(row.mac, row.mac_format))
            if row.legal_hold:
                raise LegalHold


async def refuse_held_subject(transaction: Transaction, control: ControlRows, scope: Scope) -> None:
    """Refuse to remove a subject of which any thread is held; as `refuse_held`.

    Raises:
        LegalHold: one is, or the whole tenant.
        IntegrityFailure: what could hold one was written or edited outside the gateway.
    """
    await _lock(transaction, scope.tenant_id)
    damaged = await _damaged_above(transaction, control, scope.tenant_id)
    if bool(damaged) and await transaction.fetch_one(sql.SUBJECT_IS_OF, agents=list(damaged)):
        raise _unknown(damaged)
    await _check(control, _thread_policies(transaction, scope.tenant_id, scope.subject_id))
    if await transaction.fetch_one(sql.SUBJECT_HELD):
        raise LegalHold


async def refuse_held_tenant(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> None:
    """Refuse to remove a tenant in which anything is held; as `refuse_held`.

    Raises:
        LegalHold: something is.
        IntegrityFailure: what is said in it was written or edited outside the gateway.
    """
    await _lock(transaction, tenant_id)
    await _check(control, every_policy(transaction, tenant_id))
    if await transaction.fetch_one(sql.TENANT_HELD, owner=tenant_id):
        raise LegalHold
