"""What stays of effects when their thread goes, and what keeps a thread from going by itself."""

from storage.effects.model import EFFECT_TOMBSTONE_DAYS
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import effects as sql


async def bury_effects(transaction: Transaction, thread_id: str) -> None:
    """Keep the tags of what a thread that is deleted did once, so that one of the same id does not do it again.

    They are the subject's, say nothing, and are forgotten after a while: whenever another thread of it is deleted.
    """
    await transaction.run(sql.FORGET_BURIED, days=EFFECT_TOMBSTONE_DAYS)
    await transaction.run(sql.BURY, thread_id=thread_id)


async def is_busy(transaction: Transaction, thread_id: str) -> bool:
    """Whether a thread has a live claim, or an effect that did not end: no policy deletes or archives it then."""
    return await transaction.fetch_only(sql.BUSY, thread_id=thread_id)
