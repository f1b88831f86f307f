"""Legal holds: refusing to remove what somebody must keep, whoever asks for it.

A hold stands at a thread, at an agent or at the whole tenant. Whatever removes state looks here in the transaction that
removes it. The look-up is preceded by a lock of the tenant that removals share and that setting a hold takes alone, so
that a hold that was acknowledged is overtaken by no removal that was under way.

The statements go by columns. So what the tenant, its agents and the thread say is checked first to be what a gateway
wrote (`storage.control_rows`): where one row is not, nothing at all is removed.

A hold on an agent holds every thread that is the agent's now or has a checkpoint that the agent saved, so that nobody
escapes it by naming another agent. Owns the refusals; holds are set and lifted by `storage.retention_policies`.
"""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from storage.control_rows import ControlRows, Row, policy_row
from storage.errors import LegalHold
from storage.postgres import retention as sql
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope

THREAD_LEVEL = "thread"
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


async def said(
    transaction: Transaction, tenant_id: UUID, subject_id: str | None = None
) -> AsyncIterator[tuple[Row, bytes | None]]:
    """What is said in a tenant of all threads, and by threads of one subject or of all; with the stored MACs."""
    for row in await transaction.fetch(sql.POLICIES, tenant_id):
        yield said_above(tenant_id, row), row["mac"]
    at = ("", "")
    while rows := await transaction.fetch(sql.THREADS_SAY, tenant_id, subject_id, *at, _PAGE_ROWS):
        for row in rows:
            at = (row["subject_id"], row["thread_id"])
            yield said_by_thread(Scope(tenant_id, at[0]), at[1], row), row["mac"]


async def _lock(transaction: Transaction, tenant_id: UUID) -> None:
    """What comes after it is in statements of its own: their snapshots are newer than the lock."""
    await transaction.execute(sql.SHARE_HOLDS, sql.holds_lock(tenant_id))


async def refuse_held(transaction: Transaction, control: ControlRows, scope: Scope, thread_id: str) -> None:
    """Refuse to remove anything of a thread that is held; the transaction must be the one that would.

    Args:
        transaction: Bound to the scope.
        control: Checks what is said; `ControlRows.ready` came before the transaction.
        scope: Whose thread.
        thread_id: Which.

    Raises:
        LegalHold: it is.
        IntegrityFailure: what is said of it was written or edited outside the gateway.
    """
    place = (scope.tenant_id, scope.subject_id, thread_id)
    await _lock(transaction, scope.tenant_id)
    for row in await transaction.fetch(sql.POLICIES, scope.tenant_id):
        control.check(said_above(scope.tenant_id, row), row["mac"])
    row = await transaction.fetchrow(sql.THREAD_ONE, *place)
    if row is not None:
        control.check(said_by_thread(scope, thread_id, row), row["mac"])
    if await transaction.fetchval(sql.THREAD_HELD, *place):
        raise LegalHold


async def refuse_held_subject(transaction: Transaction, control: ControlRows, scope: Scope) -> None:
    """Refuse to remove a subject of which any thread is held; as `refuse_held`.

    Raises:
        LegalHold: one is, or the whole tenant.
        IntegrityFailure: what is said of one was written or edited outside the gateway.
    """
    await _lock(transaction, scope.tenant_id)
    async for row, mac in said(transaction, scope.tenant_id, scope.subject_id):
        control.check(row, mac)
    if await transaction.fetchval(sql.SUBJECT_HELD, scope.tenant_id, scope.subject_id):
        raise LegalHold


async def refuse_held_tenant(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> None:
    """Refuse to remove a tenant in which anything is held; as `refuse_held`.

    Raises:
        LegalHold: something is.
        IntegrityFailure: what is said in it was written or edited outside the gateway.
    """
    await _lock(transaction, tenant_id)
    async for row, mac in said(transaction, tenant_id):
        control.check(row, mac)
    if await transaction.fetchval(sql.TENANT_HELD, tenant_id):
        raise LegalHold
