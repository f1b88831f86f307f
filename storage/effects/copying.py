"""Effects of a thread that is copied: they come along as history, so that the copy does not do again what was done.

What was done, or may have been, keeps its provider key and says that it is a copy. What only reads and did not end
stays where it is: the copy begins it anew.
"""

from collections.abc import Callable
from contextlib import aclosing

import msgspec

from crypto import Sealer
from storage.effects.rows import add_row, check_parts, check_row, sealed_row, whole_effects
from storage.format.thread_ledgers.effect import (
    PARTS,
    EffectColumns,
    open_asked,
    open_part,
)
from storage.format.thread_ledgers.names import effect_name_mac
from storage.format.thread_ledgers.seal import EFFECT_PARTS
from storage.format.token import ThreadToken
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers.effects import WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger


async def copy_effects(
    transaction: Transaction, sealer: Sealer, source: str, target: str, noted: Callable[[ThreadToken], None]
) -> int:
    """Copy the effects of a thread to one that was made in the same transaction; returns how many.

    Raises:
        IntegrityFailure: The source's are not what its seal counts.
    """
    before = await LockedLedger.read(transaction, sealer, source)
    await check_parts(transaction, before, range(EFFECT_PARTS))
    if not any(each.count for each in before.seal.effects):
        return 0
    ledger = await LockedLedger.lock(transaction, sealer, target)
    copied = 0
    async with aclosing(whole_effects(transaction, source)) as rows:
        async for row in rows:
            check_row(before, row)
            again = _copied(ledger, row)
            if again is not None:
                await add_row(transaction, ledger, again)
                copied += 1
    if copied:
        await ledger.store(transaction, noted)
    return copied


def as_history(columns: EffectColumns) -> EffectColumns | None:
    """What is said of an effect where its thread goes on a second time; None: nothing, it may be begun anew there."""
    is_unfinished = columns.status == "started" and columns.mode != "read"
    if columns.status not in {"done", "unknown"} and not is_unfinished:
        return None
    return msgspec.structs.replace(
        columns,
        status="unknown" if is_unfinished else columns.status,
        finished_at=columns.finished_at or columns.leased_until,
        fence=0,
        approval_id=None,
        approval_position=None,
        copied=True,
    )


def _copied(ledger: LockedLedger, row: WholeEffectRow) -> WholeEffectRow | None:
    """The row in the copy; None: it does not come along."""
    sealer, target = ledger.sealer, ledger.thread_id
    history = as_history(row.columns)
    if history is None:
        return None
    name = open_asked(sealer, row.columns, row.asked).name
    columns = msgspec.structs.replace(
        history, thread_id=target, name_mac=effect_name_mac(sealer, target, row.namespace, name)
    )
    said = {part: open_part(sealer, row.columns, part, getattr(row, part)) for part in PARTS}
    return sealed_row(ledger, columns, said)
