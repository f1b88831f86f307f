"""Verifying the ledger of a thread: its claim and its effects are what its seal counts, and each opens.

It is one snapshot with the thread, in whichever tier that is, because ledgers stay in the database. Of a thread under a
client's share nothing is opened, but all is compared. That a whole ledger was put back is for the anchors to say
(`storage.verification.threads`).
"""

from collections.abc import Callable
from contextlib import aclosing

from crypto import KeyDestroyed, Sealer
from storage.effects.rows import whole_effects
from storage.errors import IntegrityFailure, ThreadNotFound
from storage.format.chain import LiveSet
from storage.format.thread_ledgers.claim import open_note
from storage.format.thread_ledgers.effect import PARTS, counted, open_part
from storage.format.thread_ledgers.seal import EFFECT_PARTS, effect_part, member
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import claims as claims_sql
from storage.statements.thread_ledgers import verifying as sql
from storage.statements.thread_ledgers.effects import WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger
from storage.verification.report import Code

_GONE = "sealed under a key that does not exist any more"

Find = Callable[[Code, str], None]


async def verify_ledger(transaction: Transaction, sealer: Sealer, thread_id: str, find: Find) -> bool:
    """Verify what a thread's ledger holds; returns whether there is any trace of one."""
    traces = await transaction.fetch_only(sql.TRACES_OF, thread_id=thread_id)
    try:
        ledger = await LockedLedger.read(transaction, sealer, thread_id, without_share=True)
    except ThreadNotFound:
        if traces:
            find("thread-missing", "the thread's row is gone, but not its ledger")
        return traces
    except IntegrityFailure as error:
        find("ledger", str(error))
        return traces
    except KeyDestroyed:
        return traces  # found when the thread itself was verified
    await _claim(transaction, ledger, find)
    await _effects(transaction, ledger, find)
    return traces


async def _claim(transaction: Transaction, ledger: LockedLedger, find: Find) -> None:
    row = await transaction.fetch_one(claims_sql.ONE, thread_id=ledger.thread_id)
    try:
        ledger.check("claims", [] if row is None else [("claim", row.mac)])
        if row is not None:
            row.columns.check(ledger.sealer, ledger.opened_thread.incarnation, row.mac)
            if not row.client_share:
                open_note(ledger.sealer, row.columns, row.note)
    except IntegrityFailure as error:
        find("claim", str(error))
    except KeyDestroyed:
        find("claim", _GONE)
    said = (0, False) if row is None else (row.thread_fence, row.required)
    if said != (ledger.thread.fence, ledger.thread.claims_required):
        find("claim", "what the thread says of its claim is not what the claim says")


async def _effects(transaction: Transaction, ledger: LockedLedger, find: Find) -> None:
    totals = [LiveSet()] * EFFECT_PARTS
    async with aclosing(whole_effects(transaction, ledger.thread_id)) as rows:
        async for row in rows:
            part, place = effect_part(row.name_mac), (row.namespace, row.name_mac, row.execution)
            totals[part] = totals[part].add(member(ledger.sealer, "effect", counted(*place, row.mac)))
            _effect(ledger, row, find)
    if tuple(totals) != ledger.seal.effects:
        expected, found = (sum(each.count for each in sets) for sets in (ledger.seal.effects, totals))
        find("ledger", f"the effects are not those that are counted: {expected} expected, {found} found")


def _effect(ledger: LockedLedger, row: WholeEffectRow, find: Find) -> None:
    named = f"effect {row.name_mac.hex()}-{row.execution}"
    try:
        row.columns.check(ledger.sealer, ledger.opened_thread.incarnation, row.mac)
        if not row.client_share:
            for part in PARTS:
                open_part(ledger.sealer, row.columns, part, getattr(row, part))
    except IntegrityFailure as error:
        find("effect", f"{named}: {error}")
    except KeyDestroyed:
        find("effect", f"{named}: {_GONE}")
