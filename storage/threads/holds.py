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

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from storage.concurrency.turns import Pauses
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, policy_row, proof_of
from storage.errors import IntegrityFailure, LegalHold
from storage.postgres import retention as sql
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope

TENANT_LEVEL, AGENT_LEVEL, CEILINGS_LEVEL, THREAD_LEVEL = "tenant", "agent", "ceilings", "thread"
_PAGE_ROWS = 1_000


def said_above(tenant_id: UUID, row: Any) -> Row:
    """What a tenant, an agent or the operator says, as it is proved."""
    return policy_row(
        tenant_id, row["level"], (row["target"],), row["policy"], row["legal_hold"], row["updated_at"]
    )  # fmt: skip


def said_by_thread(scope: Scope, thread_id: str, row: Any) -> Row:
    """What a thread says, as it is proved."""
    target = (scope.subject_id, thread_id)
    return policy_row(scope.tenant_id, THREAD_LEVEL, target, row["policy"], row["legal_hold"], row["updated_at"])


async def said(transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
    """What is said in a tenant of all threads, and by threads; with the stored proofs."""
    for row in await transaction.fetch(sql.POLICIES, tenant_id):
        yield said_above(tenant_id, row), proof_of(row)
    async for found in said_by_threads(transaction, tenant_id, None):
        yield found


async def said_by_threads(
    transaction: Transaction, tenant_id: UUID, subject_id: str | None
) -> AsyncIterator[tuple[Row, Proof]]:
    """What is said by threads of one subject or (None) of all; with the stored proofs."""
    at = ("", "")
    while rows := await transaction.fetch(sql.THREADS_SAY, tenant_id, subject_id, *at, _PAGE_ROWS):
        for row in rows:
            at = (row["subject_id"], row["thread_id"])
            yield said_by_thread(Scope(tenant_id, at[0]), at[1], row), proof_of(row)


async def _lock(transaction: Transaction, tenant_id: UUID) -> None:
    """What comes after it is in statements of its own: their snapshots are newer than the lock."""
    await transaction.execute(sql.SHARE_HOLDS, sql.holds_lock(tenant_id))


async def _damaged_above(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> frozenset[str]:
    """The agents whose policies are damaged: one could hold that agent's threads, and no other.

    Raises:
        IntegrityFailure: the tenant's own is damaged, which could hold everything.
    """
    damaged = set()
    pauses = Pauses()
    for row in await transaction.fetch(sql.POLICIES, tenant_id):
        await pauses.after(len(row["policy"]))
        if row["level"] == CEILINGS_LEVEL:
            continue  # it holds nothing, whoever wrote it
        if row["level"] == AGENT_LEVEL:
            if not control.is_sound(said_above(tenant_id, row), proof_of(row)):
                damaged.add(row["target"])
        else:
            control.check(said_above(tenant_id, row), proof_of(row))
    return frozenset(damaged)


async def _check(control: ControlRows, rows: AsyncIterator[tuple[Row, Proof]]) -> None:
    """Check rows; others go first between them."""
    pauses = Pauses()
    async for row, proof in rows:
        control.check(row, proof)
        await pauses.after(0)


def _unknown(agents: frozenset[str]) -> IntegrityFailure:
    named = ", ".join(map(repr, sorted(agents)))
    return IntegrityFailure(f"retention of agent {named} was edited outside the gateway, and could hold this")


async def refuse_held(transaction: Transaction, control: ControlRows, scope: Scope, thread_id: str) -> None:
    """Refuse to remove anything of a thread that is held; the transaction must be the one that would.

    Args:
        transaction: Bound to the scope.
        control: Checks what is said; `ControlRows.ready` came before the transaction.
        scope: Whose thread.
        thread_id: Which.

    Raises:
        LegalHold: it is.
        IntegrityFailure: what could hold it was written or edited outside the gateway.
    """
    place = (scope.tenant_id, scope.subject_id, thread_id)
    await _lock(transaction, scope.tenant_id)
    damaged = await _damaged_above(transaction, control, scope.tenant_id)
    if damaged and await transaction.fetchval(sql.THREAD_IS_OF, *place, list(damaged)):
        raise _unknown(damaged)
    row = await transaction.fetchrow(sql.THREAD_ONE, *place)
    if row is not None:
        control.check(said_by_thread(scope, thread_id, row), proof_of(row))
    if await transaction.fetchval(sql.THREAD_HELD, *place):
        raise LegalHold


async def refuse_held_subject(transaction: Transaction, control: ControlRows, scope: Scope) -> None:
    """Refuse to remove a subject of which any thread is held; as `refuse_held`.

    Raises:
        LegalHold: one is, or the whole tenant.
        IntegrityFailure: what could hold one was written or edited outside the gateway.
    """
    await _lock(transaction, scope.tenant_id)
    damaged = await _damaged_above(transaction, control, scope.tenant_id)
    if damaged and await transaction.fetchval(sql.SUBJECT_IS_OF, scope.tenant_id, scope.subject_id, list(damaged)):
        raise _unknown(damaged)
    await _check(control, said_by_threads(transaction, scope.tenant_id, scope.subject_id))
    if await transaction.fetchval(sql.SUBJECT_HELD, scope.tenant_id, scope.subject_id):
        raise LegalHold


async def refuse_held_tenant(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> None:
    """Refuse to remove a tenant in which anything is held; as `refuse_held`.

    Raises:
        LegalHold: something is.
        IntegrityFailure: what is said in it was written or edited outside the gateway.
    """
    await _lock(transaction, tenant_id)
    await _check(control, said(transaction, tenant_id))
    if await transaction.fetchval(sql.TENANT_HELD, tenant_id):
        raise LegalHold
