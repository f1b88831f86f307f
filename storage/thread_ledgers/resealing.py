"""Sealing what is in a subject's ledgers again under its active data key: one step of a re-seal, a few rows at a time.

Effects come first, then claims. The same content is sealed at the same place; clear columns, MACs and seals stay, and
only envelopes change, each row by itself: a change at the same moment wins. What is under a client's share is left as
it is, and so is what is damaged, which keeps the older version alive.
"""

from typing import Final, Literal, NamedTuple

from crypto import KeyDestroyed, Sealer
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.thread_ledgers.claim import open_note, seal_note
from storage.format.thread_ledgers.effect import PARTS, open_part, seal_part
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import resealing as sql
from storage.statements.thread_ledgers.claims import ClaimRow
from storage.statements.thread_ledgers.effects import WholeEffectRow
from storage.statements.thread_ledgers.resealing import LedgerPlace

# An effect has up to 2 MiB.
BATCH_ROWS: Final = 8
_DAMAGED: Final = (IntegrityFailure, KeyDestroyed)

LedgerStep = Literal["effects", "claims"]


class LedgerPosition(NamedTuple):
    """Where a re-seal of ledgers goes on: at what, and after which row of it."""

    step: LedgerStep = "effects"
    after: LedgerPlace = LedgerPlace()


class ResealedLedgers(NamedTuple):
    """How many envelopes a batch dealt with, and where to go on; None: that was all."""

    done: int
    position: LedgerPosition | None


async def reseal_ledgers(transaction: Transaction, sealer: Sealer, position: LedgerPosition) -> ResealedLedgers:
    """Seal a batch again, in the caller's transaction, which compared the sealer's keys with the stored ones."""
    version = sealer.active_key_version.to_bytes(4)
    done, after = 0, position.after
    if position.step == "claims":
        claims = await transaction.fetch_all(
            sql.STALE_CLAIMS, version=version, thread_id=after.thread_id, page_rows=BATCH_ROWS
        )
        for claim in claims:
            done += await _claim(transaction, sealer, claim)
        more = len(claims) == BATCH_ROWS
        return ResealedLedgers(done, LedgerPosition("claims", LedgerPlace(claims[-1].thread_id)) if more else None)
    pauses = Pauses()
    effects = await transaction.fetch_all(
        sql.STALE_EFFECTS,
        version=version,
        thread_id=after.thread_id,
        namespace=after.namespace,
        name_mac=after.name_mac,
        execution=after.execution,
        page_rows=BATCH_ROWS,
    )
    for effect in effects:
        await pauses.after(2 * (len(effect.args) + len(effect.result or b"")))
        done += await _effect(transaction, sealer, effect)
    if len(effects) < BATCH_ROWS:
        return ResealedLedgers(done, LedgerPosition("claims"))
    last = effects[-1]
    place = LedgerPlace(last.thread_id, last.namespace, last.name_mac, last.execution)
    return ResealedLedgers(done, LedgerPosition("effects", place))


async def _claim(transaction: Transaction, sealer: Sealer, row: ClaimRow) -> int:
    try:
        note = open_note(sealer, row.columns, row.note)
    except _DAMAGED:
        return 0
    again = seal_note(sealer, row.thread_id, row.fence, note)
    return await transaction.run(sql.RESEAL_CLAIM, thread_id=row.thread_id, note=again.envelope, mac=row.mac)


async def _effect(transaction: Transaction, sealer: Sealer, row: WholeEffectRow) -> int:
    columns = row.columns
    again: dict[str, bytes | None] = {}
    try:
        for part in PARTS:
            plaintext = open_part(sealer, columns, part, getattr(row, part))
            again[part] = None if plaintext is None else seal_part(sealer, columns, part, plaintext)
    except _DAMAGED:
        return 0
    stored = await transaction.run(
        sql.RESEAL_EFFECT,
        thread_id=row.thread_id,
        namespace=row.namespace,
        name_mac=row.name_mac,
        execution=row.execution,
        mac=row.mac,
        **again,
    )
    return stored * sum(each is not None for each in again.values())
