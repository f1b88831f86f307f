"""Effects between their rows and what callers see, and changes of rows that are counted in the ledger's seal."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import msgspec

from crypto import Sealer
from storage.concurrency.turns import Pauses
from storage.effects.model import Effect
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.thread_ledgers.effect import (
    NOTHING,
    PARTS,
    Asked,
    EffectColumns,
    Outcome,
    Part,
    counted,
    encode,
    open_asked,
    open_outcome,
    open_part,
    part_member,
    seal_part,
)
from storage.format.thread_ledgers.seal import effect_part, member
from storage.format.token import ThreadToken
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import effects as sql
from storage.statements.thread_ledgers import verifying as verifying_sql
from storage.statements.thread_ledgers.effects import EffectMac, EffectRow, PlacedEffectRow, WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger

_ALTERED = "the effects of this thread were changed outside the gateway"
_ROW_BYTES = 64
# An effect has up to 2 MiB.
_PAGE_ROWS = 8
_BEFORE_ALL = ("", b"", 0)


async def check_parts(transaction: Transaction, ledger: LockedLedger, parts: Iterable[int]) -> None:
    """Compare all effects of some parts with the seal; the caller reads those that it opens in the same transaction.

    Raises:
        IntegrityFailure: One was edited, removed, or put back.
    """
    wanted = sorted({*parts})
    found = dict.fromkeys(wanted, LiveSet())
    pauses = Pauses()
    for row in await transaction.fetch_all(sql.MACS, thread_id=ledger.thread_id, parts=wanted):
        part = effect_part(row.name_mac)
        found[part] = found[part].add(member(ledger.sealer, "effect", _counted(row, row.mac)))
        await pauses.after(_ROW_BYTES)
    if any(ledger.seal.effects[part] != total for part, total in found.items()):
        raise IntegrityFailure(_ALTERED)


async def whole_effects(transaction: Transaction, thread_id: str) -> AsyncGenerator[WholeEffectRow, None]:
    """All effects of a thread with all that is sealed in them, as they are stored, by a few at a time.

    Whether they are what a gateway wrote, and all of them, is for the caller to compare.
    """
    pauses, place = Pauses(), _BEFORE_ALL
    while True:
        rows = await transaction.fetch_all(
            verifying_sql.EFFECTS_AFTER,
            thread_id=thread_id,
            after_namespace=place[0],
            after_name=place[1],
            after_execution=place[2],
            limit=_PAGE_ROWS,
        )
        for row in rows:
            place = (row.namespace, row.name_mac, row.execution)
            await pauses.after(len(row.args) + len(row.result or b""))
            yield row
        if len(rows) < _PAGE_ROWS:
            return


def sealed_row(ledger: LockedLedger, columns: EffectColumns, said: Mapping[Part, bytes | None]) -> WholeEffectRow:
    """A whole row: its parts sealed, their tags among its columns, and its MAC.

    Args:
        ledger: Of the thread that it is an effect of.
        columns: The others of its columns; what they say of tags does not count.
        said: The parts in their plain form; of one that is left out, or None, there is nothing.
    """
    sealer = ledger.sealer
    plain = {part: said.get(part) for part in PARTS}
    tags = {f"{part}_member": None if each is None else part_member(sealer, part, each) for part, each in plain.items()}
    columns = msgspec.structs.replace(columns, **tags)
    sealed = {part: None if each is None else seal_part(sealer, columns, part, each) for part, each in plain.items()}
    mac = columns.proof(sealer, ledger.opened_thread.incarnation)
    return WholeEffectRow(**msgspec.structs.asdict(columns), mac=mac, **sealed)  # type: ignore[arg-type]  # of `PARTS`


async def add_row(transaction: Transaction, ledger: LockedLedger, row: WholeEffectRow) -> None:
    """Add a row, and count it in the ledger, which the caller stores."""
    await transaction.run(sql.ADD, **msgspec.structs.asdict(row))
    ledger.add(effect_part(row.name_mac), "effect", _counted(row, row.mac))


def _counted(row: EffectRow | EffectMac, mac: bytes) -> bytes:
    return counted(row.namespace, row.name_mac, row.execution, mac)


def check_row(ledger: LockedLedger, row: EffectRow) -> None:
    """Return if a row is as a gateway wrote it.

    Raises:
        IntegrityFailure: It was edited, or is another's.
    """
    row.columns.check(ledger.sealer, ledger.opened_thread.incarnation, row.mac)


def shown(sealer: Sealer, row: PlacedEffectRow, *, name: str | None = None) -> Effect:
    """An effect as callers see it; all of it, if the row has all of it.

    Args:
        sealer: With the client's share, if the effect is under one; without it only clear columns are shown.
        row: Its row, which is what a gateway wrote.
        name: What it was asked for by, where that is known.

    Raises:
        IntegrityFailure: Something does not open.
    """
    is_readable = sealer.shared or not row.client_share
    columns = row.columns
    asked = open_asked(sealer, columns, row.asked) if is_readable else Asked(name or "", "", ())
    outcome = open_outcome(sealer, columns, row.outcome) if is_readable else NOTHING
    result = args = None
    if isinstance(row, WholeEffectRow) and is_readable:
        args = open_part(sealer, columns, "args", row.args)
        result = open_part(sealer, columns, "result", row.result)
    return Effect(
        thread_id=row.thread_id,
        namespace=row.namespace,
        name=asked.name,
        execution=row.execution,
        attempt=row.attempt,
        mode=row.mode,  # type: ignore[arg-type]  # a gateway wrote it
        tool=asked.tool,
        status=row.status,  # type: ignore[arg-type]
        provider_key=row.provider_key,
        anchor_checkpoint_id=row.anchor_checkpoint_id,
        run_id=row.run_id,
        started_at=row.started_at,
        finished_at=row.finished_at,
        leased_until=row.leased_until,
        result_state=row.result_state,  # type: ignore[arg-type]
        result=result,
        args=args,
        result_digest=outcome.result_digest,
        result_bytes=row.result_bytes,
        artifact_id=row.artifact_id,
        error=outcome.error,
        resolved_by=row.resolved_by,
        started_by=row.started_by,
        repeats=asked.repeats,
        repeats_name=asked.repeats_name,
        is_copy=row.copied,
    )


class Sealed(msgspec.Struct, frozen=True):
    """Parts of an effect as they are stored; None: there is no such part."""

    outcome: bytes | None = None
    result: bytes | None = None


class EffectChange:
    """Changes of effects of a thread that is locked."""

    def __init__(self, transaction: Transaction, ledger: LockedLedger, noted: Callable[[ThreadToken], None]) -> None:
        self._transaction = transaction
        self._ledger = ledger
        self._noted = noted

    async def add(self, columns: EffectColumns, asked: Asked, args: bytes) -> WholeEffectRow:
        """Add one that is started; ``columns`` need not have the tags of what is sealed."""
        row = sealed_row(self._ledger, columns, {"asked": encode(asked), "args": args})
        await add_row(self._transaction, self._ledger, row)
        await self._ledger.store(self._transaction, self._noted)
        return row

    async def set(self, row: EffectRow, **changes: Any) -> EffectColumns:
        """Change clear columns of one; what is sealed stays."""
        columns = msgspec.structs.replace(row.columns, **changes)
        await self._store(row, columns, None)
        return columns

    async def end(
        self, row: EffectRow, outcome: Outcome, result: bytes | None, **changes: Any
    ) -> tuple[EffectColumns, Sealed]:
        """Change clear columns of one, and what became of it."""
        sealer = self._ledger.sealer
        said: dict[Part, bytes | None] = {"outcome": None if outcome == NOTHING else encode(outcome), "result": result}
        tags = {
            f"{part}_member": None if plaintext is None else part_member(sealer, part, plaintext)
            for part, plaintext in said.items()
        }
        columns = msgspec.structs.replace(row.columns, **changes, **tags)
        sealed = Sealed(
            **{
                part: None if plaintext is None else seal_part(sealer, columns, part, plaintext)
                for part, plaintext in said.items()
            }
        )
        await self._store(row, columns, sealed)
        return columns, sealed

    async def _store(self, row: EffectRow, columns: EffectColumns, sealed: Sealed | None) -> None:
        mac = columns.proof(self._ledger.sealer, self._ledger.opened_thread.incarnation)
        values = {**msgspec.structs.asdict(columns), "mac": mac, "before": row.mac}
        statement = sql.SET
        if sealed is not None:
            statement, values = sql.SET_ENDED, {**values, **msgspec.structs.asdict(sealed)}
        if not await self._transaction.run(statement, **values):
            raise IntegrityFailure(_ALTERED)
        self._ledger.change(effect_part(row.name_mac), "effect", _counted(row, row.mac), _counted(row, mac))
        await self._ledger.store(self._transaction, self._noted)
