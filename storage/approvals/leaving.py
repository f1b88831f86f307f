"""What becomes of questions when their thread goes."""

from storage.approvals.events import draft_of
from storage.event_queue.emitting import Emitting
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.thread_ledgers import approvals as sql


async def is_asking(transaction: Transaction, thread_id: str) -> bool:
    """Whether something waits for a decision in a thread, which no policy moves or removes then."""
    return bool(await transaction.fetch_one(sql.IS_ASKING, thread_id=thread_id))


async def tell_cancelled(transaction: Transaction, emitting: Emitting, scope: Scope, thread_id: str) -> None:
    """Say of what waits in a thread, which is locked and about to be removed, that it is cancelled by that."""
    if not emitting.is_on(scope.tenant_id):
        return
    for row in await transaction.fetch_all(sql.ALL, thread_id=thread_id):
        if row.status == "pending":
            draft = draft_of("approval.decided", scope, thread_id, row)
            gone = draft._replace(status="cancelled", stream_sequence=row.revision + 1)
            await emitting.of_approval(transaction, scope.tenant_id, gone)
