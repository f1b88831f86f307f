"""Legal holds: refusing to remove what somebody must keep, whoever asks for it.

A hold stands at a thread, at an agent or at the whole tenant. Whatever removes state looks here in the transaction that
removes it. The look-up is preceded by a lock of the tenant that removals share and that setting a hold takes alone, so
that a hold that was acknowledged is overtaken by no removal that was under way.

A hold on an agent holds every thread that is the agent's now or has a checkpoint that the agent saved, so that nobody
escapes it by naming another agent. Owns the refusals; holds are set and lifted by `storage.retention_policies`.
"""

from uuid import UUID

from storage.errors import LegalHold
from storage.postgres import retention as sql
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope


async def _refuse(transaction: Transaction, statement: str, tenant_id: UUID, *place: str) -> None:
    await transaction.execute(sql.SHARE_HOLDS, sql.holds_lock(tenant_id))
    # In a statement of its own: its snapshot is newer than the lock.
    if await transaction.fetchval(statement, tenant_id, *place):
        raise LegalHold


async def refuse_held(transaction: Transaction, scope: Scope, thread_id: str) -> None:
    """Refuse to remove anything of a thread that is held; the transaction must be the one that would.

    Raises:
        LegalHold: it is.
    """
    await _refuse(transaction, sql.THREAD_HELD, scope.tenant_id, scope.subject_id, thread_id)


async def refuse_held_subject(transaction: Transaction, scope: Scope) -> None:
    """Refuse to remove a subject of which any thread is held.

    Raises:
        LegalHold: one is, or the whole tenant.
    """
    await _refuse(transaction, sql.SUBJECT_HELD, scope.tenant_id, scope.subject_id)


async def refuse_held_tenant(transaction: Transaction, tenant_id: UUID) -> None:
    """Refuse to remove a tenant in which anything is held.

    Raises:
        LegalHold: something is.
    """
    await _refuse(transaction, sql.TENANT_HELD, tenant_id)
