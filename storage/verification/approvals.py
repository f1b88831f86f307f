"""Verifying what people were asked in a thread: all rows are what the seal of its ledger counts, and each opens.

It is one snapshot with the thread, in whichever tier that is, because approvals stay in the database. What takes a
client's share is compared and not opened. That a whole ledger was put back is for the anchors to say.
"""

from collections.abc import Callable

from crypto import KeyDestroyed, Sealer
from storage.approvals.rows import check_parts, check_rows, counted
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.record import open_thread_seal
from storage.format.thread_ledgers.seal import LedgerSeal
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers import seals as seals_sql
from storage.statements.thread_ledgers.approvals import ActionRow, ApprovalRow, VoteRow
from storage.statements.thread_ledgers.seals import LedgerOfThreadRow
from storage.verification.report import Code

Find = Callable[[Code, str], None]


def _sum(sealer: Sealer, row: LedgerOfThreadRow) -> LiveSet:
    opened = open_thread_seal(sealer, row.thread_id, row.created_at, row.thread_seal)
    return LedgerSeal.open(sealer, row.thread_id, opened.incarnation, row.sequence, row.seal).approvals


async def verify_approvals(transaction: Transaction, sealer: Sealer, thread_id: str, find: Find) -> bool:
    """Verify the approvals of a thread; returns whether there is any."""
    approvals = await transaction.fetch_all(sql.ALL, thread_id=thread_id)
    actions = await transaction.fetch_all(sql.ALL_ACTIONS, thread_id=thread_id)
    votes = await transaction.fetch_all(sql.ALL_VOTES, thread_id=thread_id)
    seals = await transaction.fetch_all(seals_sql.AFTER, thread_id=thread_id, after="", limit=1)
    rows: list[ApprovalRow | ActionRow | VoteRow] = [*approvals, *actions, *votes]
    if not seals:
        if rows:
            find("approval", "a thread's row or the seal of its ledger is gone, but not its approvals")
        return bool(rows)
    try:
        if counted(sealer, rows) != _sum(sealer, seals[0]):
            find("approval", "the approvals of the thread, their actions or votes are not those that are counted")
    except IntegrityFailure as error:
        find("approval", str(error))
    except KeyDestroyed:
        return bool(rows)  # found when the thread itself was verified
    waiting = sum(row.status == "pending" for row in approvals)
    if waiting != await transaction.fetch_only(sql.OPEN_COUNT, thread_id=thread_id):
        find("approval", "the thread says another number of approvals that wait")
    for row in rows:
        await _row(transaction, sealer, thread_id, row, find)
    return bool(rows)


async def _row(
    transaction: Transaction, sealer: Sealer, thread_id: str, row: ApprovalRow | ActionRow | VoteRow, find: Find
) -> None:
    try:
        check_rows(sealer, thread_id, [row])
        if isinstance(row, ApprovalRow):
            sealed = await transaction.fetch_only(sql.SEALED, thread_id=thread_id, approval_id=row.approval_id)
            check_parts(sealer, thread_id, row, sealed)
    except IntegrityFailure as error:
        find("approval", f"approval {row.approval_id}: {error}")
    except KeyDestroyed:
        find("approval", f"approval {row.approval_id}: sealed under a key that does not exist any more")
