"""What events say of an approval: its clear columns."""

from storage.event_queue.model import Draft, EventType, Stream
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
