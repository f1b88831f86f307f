"""Effects of a thread that moves to another deployment: as history, so that what was done here is not done there again.

What comes along is what a copy has (`storage.effects.copying`): what was done, and what nobody knows. Both ends are
here; when records are read and written, and that each thread's come in one order, is their caller's.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from crypto import Sealer
from storage.effects.copying import as_history
from storage.effects.intents import identity_in
from storage.effects.model import EFFECT_EXECUTIONS_MAX, EFFECTS_MAX, EffectStart
from storage.effects.rows import add_row, check_parts, check_row, sealed_row, whole_effects
from storage.errors import ImportRefused, InvalidState, LimitExceeded, StorageError
from storage.format.export import EffectRecord
from storage.format.thread_ledgers.effect import (
    NOTHING,
    Asked,
    EffectColumns,
    Outcome,
    Part,
    encode,
    open_asked,
    open_outcome,
    open_part,
)
from storage.format.thread_ledgers.names import effect_name_mac, intent_mac, root_of
from storage.format.thread_ledgers.seal import EFFECT_PARTS
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.thread_ledgers.effects import WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger


def place_of(record: EffectRecord) -> tuple[bytes, bytes, int]:
    """Where a record stands among those of its thread, in every deployment."""
    return record.namespace.encode(), record.name.encode(), record.execution


async def effects_out(transaction: Transaction, sealer: Sealer, thread_id: str) -> AsyncGenerator[EffectRecord, None]:
    """What moves of a thread's effects, in no certain order, after all of them were compared with the ledger's seal.

    Raises:
        IntegrityFailure: They are not what the seal counts, or do not open.
    """
    ledger = await LockedLedger.read(transaction, sealer, thread_id)
    await check_parts(transaction, ledger, range(EFFECT_PARTS))
    async with aclosing(whole_effects(transaction, thread_id)) as rows:
        async for row in rows:
            check_row(ledger, row)
            history = as_history(row.columns)
            if history is not None:
                yield _record(sealer, row, history)


def _record(sealer: Sealer, row: WholeEffectRow, history: EffectColumns) -> EffectRecord:
    asked = open_asked(sealer, row.columns, row.asked)
    outcome = open_outcome(sealer, row.columns, row.outcome)
    return EffectRecord(
        namespace=row.namespace,
        name=asked.name,
        execution=row.execution,
        attempt=row.attempt,
        mode=row.mode,  # type: ignore[arg-type]  # a gateway wrote it
        status=history.status,  # type: ignore[arg-type]
        tool=asked.tool,
        identity=[*asked.identity],
        tool_digest=asked.tool_digest,
        repeats=asked.repeats,
        repeats_name=asked.repeats_name,
        provider_key=row.provider_key,
        anchor_checkpoint_id=row.anchor_checkpoint_id,
        run_id=row.run_id,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=history.finished_at or row.leased_until,
        started_by=row.started_by,
        resolved_by=row.resolved_by,
        result_state=row.result_state,  # type: ignore[arg-type]
        result_bytes=row.result_bytes,
        artifact_id=row.artifact_id,
        result_digest=outcome.result_digest,
        error=outcome.error,
        args=open_part(sealer, row.columns, "args", row.args) or b"",
        result=open_part(sealer, row.columns, "result", row.result),
    )


def check_effect(record: EffectRecord, number: int) -> None:
    """Return if a record can be an effect of its thread; ``number`` of it came before.

    Raises:
        ImportRefused: A gateway would not have written it.
    """
    said = EffectStart(
        thread_id="any",
        namespace=record.namespace,
        name=record.name,
        tool=record.tool,
        args=record.args,
        identity=tuple(record.identity),
        run_id=record.run_id,
    )
    try:
        said.check()
    except StorageError as fault:
        raise ImportRefused(f"the export has an effect that cannot be: {fault}") from None
    if root_of(record.namespace) != record.namespace:
        raise ImportRefused("the export has an effect in a namespace that none counts for")
    if number >= EFFECTS_MAX or record.execution > EFFECT_EXECUTIONS_MAX:
        raise ImportRefused("a thread of the export has more effects than one may have")
    if (record.result is not None) != (record.result_state == "stored"):
        raise ImportRefused("the export has an effect whose result is not where it says")
    if (record.artifact_id is not None) != (record.result_state == "artifact"):
        raise ImportRefused("the export has an effect whose result is not where it says")


async def effects_in(
    transaction: Transaction, scope: Scope, ledger: LockedLedger, records: Iterable[EffectRecord]
) -> None:
    """Add what moved to a thread that was made in the same transaction; the caller stores the ledger.

    Raises:
        ImportRefused: Arguments cannot be read.
    """
    sealer = ledger.sealer
    for record in records:
        try:
            identity = await identity_in(record.args, record.identity, scope)
        except (InvalidState, LimitExceeded):
            raise ImportRefused("the arguments of an effect of the export cannot be read") from None
        await add_row(transaction, ledger, _row(ledger, record, intent_mac(sealer, record.tool, identity)))


def _row(ledger: LockedLedger, record: EffectRecord, intent: bytes) -> WholeEffectRow:
    asked = Asked(
        record.name,
        record.tool,
        tuple(record.identity),
        record.tool_digest,
        record.repeats,
        record.repeats_name,
    )
    outcome = Outcome(record.result_digest, record.error)
    said: dict[Part, bytes | None] = {
        "asked": encode(asked),
        "args": record.args,
        "outcome": None if outcome == NOTHING else encode(outcome),
        "result": record.result,
    }
    columns = EffectColumns(
        thread_id=ledger.thread_id,
        namespace=record.namespace,
        name_mac=effect_name_mac(ledger.sealer, ledger.thread_id, record.namespace, record.name),
        execution=record.execution,
        attempt=record.attempt,
        mode=record.mode,
        status=record.status,
        intent_mac=intent,
        provider_key=record.provider_key,
        anchor_checkpoint_id=record.anchor_checkpoint_id,
        run_id=record.run_id,
        fence=0,
        created_at=record.created_at,
        started_at=record.started_at,
        leased_until=record.finished_at,
        finished_at=record.finished_at,
        started_by=record.started_by,
        resolved_by=record.resolved_by,
        result_state=record.result_state,
        result_bytes=record.result_bytes,
        artifact_id=record.artifact_id,
        approval_id=None,
        approval_position=None,
        copied=True,
        client_share=ledger.sealer.shared,
        asked_member=b"",
        args_member=b"",
        outcome_member=None,
        result_member=None,
    )
    return sealed_row(ledger, columns, said)
