"""Sealing what people are asked, and what they decided, again under the active data key: a few at a time.

No MAC covers an envelope, so that no seal and no thread is touched. What takes a client's share is left as it is, and
so is what is damaged, which keeps the older version alive.
"""

from typing import Final, NamedTuple
from uuid import UUID

from crypto import KeyDestroyed, Sealer
from storage.approvals.rows import open_part, seal_part
from storage.errors import IntegrityFailure
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import StaleRow

BATCH_ROWS: Final = 16


class ApprovalPlace(NamedTuple):
    """An approval among those of a subject."""

    thread_id: str = ""
    approval_id: UUID = UUID(int=0)


async def reseal_approvals(
    transaction: Transaction, sealer: Sealer, after: ApprovalPlace
) -> tuple[int, ApprovalPlace | None]:
    """Seal a batch again, in the caller's transaction, which compared the sealer's keys with the stored ones.

    Returns:
        How many, and where to go on; None: that was all.
    """
    sealer = sealer.without_share
    version = sealer.active_key_version.to_bytes(4)
    rows = await transaction.fetch_all(sql.STALE, version=version, page_rows=BATCH_ROWS, **after._asdict())
    done = 0
    for row in rows:
        try:
            again = {part: _again(sealer, row, part) for part in ("request", "display", "decision")}
        except (IntegrityFailure, KeyDestroyed):
            continue
        before = {"request_before": row.request, "decision_before": row.decision}
        place = {"thread_id": row.thread_id, "approval_id": row.approval_id}
        await transaction.run(sql.RESEAL, **place, **before, **again)
        done += 1
    if len(rows) < BATCH_ROWS:
        return done, None
    return done, ApprovalPlace(rows[-1].thread_id, rows[-1].approval_id)


def _again(sealer: Sealer, row: StaleRow, part: str) -> bytes | None:
    envelope: bytes | None = getattr(row, part)
    if envelope is None or (part == "request" and row.client_share):
        return envelope
    content = open_part(sealer, row.thread_id, row.approval_id, part, envelope)
    return seal_part(sealer, row.thread_id, row.approval_id, part, content)
