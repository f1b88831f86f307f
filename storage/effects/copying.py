"""Effects of a thread that is copied: they come along as history, so that the copy does not do again what was done.

What was done, or may have been, keeps its provider key and says that it is a copy. What only reads and did not end
stays where it is: the copy begins it anew.
"""

from collections.abc import Callable

import msgspec

from crypto import Sealer
from storage.concurrency.turns import Pauses
from storage.effects.rows import check_parts, check_row
from storage.format.thread_ledgers.effect import (
    PARTS,
    EffectColumns,
    counted,
    open_asked,
    open_part,
    seal_part,
)
from storage.format.thread_ledgers.names import effect_name_mac
from storage.format.thread_ledgers.seal import EFFECT_PARTS, effect_part
from storage.format.token import ThreadToken
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import effects as sql
from storage.statements.thread_ledgers import verifying as verifying_sql
from storage.statements.thread_ledgers.effects import WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger

# An effect has up to 2 MiB.
_PAGE_ROWS = 8


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
    pauses = Pauses()
    copied, place = 0, ("", b"", 0)
    while True:
        rows = await transaction.fetch_all(
            verifying_sql.EFFECTS_AFTER,
            thread_id=source,
            after_namespace=place[0],
            after_name=place[1],
            after_execution=place[2],
            limit=_PAGE_ROWS,
        )
        for row in rows:
            place = (row.namespace, row.name_mac, row.execution)
            check_row(before, row)
            await pauses.after(2 * (len(row.args) + len(row.result or b"")))
            again = _copied(ledger, row)
            if again is not None:
                await transaction.run(sql.ADD, **msgspec.structs.asdict(again))
                place_and_mac = counted(again.namespace, again.name_mac, again.execution, again.mac)
                ledger.add(effect_part(again.name_mac), "effect", place_and_mac)
                copied += 1
        if len(rows) < _PAGE_ROWS:
            break
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
    parts: dict[str, bytes | None] = {}
    for part in PARTS:
        plaintext = open_part(sealer, row.columns, part, getattr(row, part))
        parts[part] = None if plaintext is None else seal_part(sealer, columns, part, plaintext)
    mac = columns.proof(sealer, ledger.opened_thread.incarnation)
    return WholeEffectRow(**msgspec.structs.asdict(columns), mac=mac, **parts)  # type: ignore[arg-type]  # of `PARTS`
