"""What events and the audit log say of an approval: its clear columns."""

from typing import Any

from storage.access.access import Access
from storage.event_queue.model import Draft, EventType, Stream
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.thread_ledgers.approvals import ApprovalRow


def draft_of(event: EventType, scope: Scope, thread_id: str, row: ApprovalRow) -> Draft:
    """An event of an approval as it now stands; its number is the approval's revision."""
    return Draft(
        event,
        Stream("approval", str(row.approval_id)),
        row.revision,
        subject_id=scope.subject_id,
        thread_id=thread_id,
        namespace=row.namespace,
        checkpoint_id=row.checkpoint_id,
        run_id=row.run_id,
        agent=row.agent,
        status=row.status,
    )


async def record(
    access: Access,
    transaction: Transaction,
    scope: Scope,
    actor: str,
    said: tuple[str, str, ApprovalRow],
    **more: Any,
) -> None:
    """Put a change of an approval on the tenant's record, last of all in the transaction.

    Args:
        access: Has the audit log.
        transaction: The one that changes it.
        scope: The tenant and subject.
        actor: Who did it.
        said: What was done, in which thread, and the approval.
        more: What else is said of it, none of it secret.
    """
    action, thread_id, row = said
    detail = {"thread": thread_id, "mac": row.action_mac.hex(), **more}
    await access.records.append(transaction, scope.tenant_id, actor, action, f"approval:{row.approval_id}", detail)
