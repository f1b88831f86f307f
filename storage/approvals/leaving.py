"""What becomes of questions when their thread goes."""

from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR
from storage.approvals.telling import draft_of, record
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import ApprovalRow


async def is_asking(transaction: Transaction, thread_id: str) -> bool:
    """Whether something waits for a decision in a thread, which no policy moves or removes then."""
    return bool(await transaction.fetch_one(sql.IS_ASKING, thread_id=thread_id))


async def waiting_in(transaction: Transaction, thread_id: str) -> list[ApprovalRow]:
    """What waits in a thread, which is locked and about to be removed."""
    return await transaction.fetch_all(sql.PENDING, thread_id=thread_id)


async def tell_cancelled(
    access: Access, transaction: Transaction, scope: Scope, thread_id: str, gone: list[ApprovalRow]
) -> None:
    """Say of what waited in a thread that it is cancelled by its removal, last of all in the transaction."""
    for row in gone:
        draft = draft_of("approval.decided", scope, thread_id, row)
        draft = draft._replace(status="cancelled", stream_sequence=row.revision + 1)
        await access.emitting.of_approval(transaction, scope.tenant_id, draft)
    for row in gone:
        said = ("approval.cancelled", thread_id, row)
        await record(access, transaction, scope, GATEWAY_ACTOR, said, thread_deleted=True)
