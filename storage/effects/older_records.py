"""Records of once-calls that earlier clients kept as pending writes (``docs/formats/once-record.md``), as effects.

What one of them says was done is done: it is told again, whatever is meant now, because it does not say that in a form
that is compared here.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from crypto import Sealer
from storage.access.access import Access
from storage.access.offload import answering
from storage.effects.model import Effect, EffectStart
from storage.errors import IntegrityFailure
from storage.format.record import OpenedWrite, PieceReader, open_write
from storage.ledger.ledger import LiveBlob
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.tiers.hot import HotRows

_PLACE: Final = "stateroom:once"
_DIGITS: Final = 32
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OlderRecord:
    """A record that was found, and what its result is read from when the transaction has ended."""

    access: Access
    sealer: Sealer
    write: OpenedWrite
    reader: PieceReader
    blobs: dict[UUID, LiveBlob]

    async def effect(self, scope: Scope, wanted: EffectStart) -> Effect:
        """The effect that it stands for; its execution is 0, because it is none of the ledger's.

        Raises:
            IntegrityFailure: The result does not authenticate.
            BlobUnavailable: The object store does not answer.
        """
        await self.access.offload.fill(scope, self.sealer, self.reader, self.blobs)
        value = self.write.value(self.reader).value
        stored_at = self.write.columns.created_at or _NEVER
        return Effect(
            thread_id=wanted.thread_id,
            namespace=self.write.columns.namespace,
            name=wanted.name,
            execution=0,
            attempt=0,
            mode="once",
            tool=wanted.tool,
            status="done",
            provider_key=UUID(int=0),
            anchor_checkpoint_id=None,
            run_id=None,
            started_at=stored_at,
            finished_at=stored_at,
            leased_until=stored_at,
            result_state="stored" if value.encoding == "msgpack" else "missing",
            result=value.data if value.encoding == "msgpack" else None,
            result_digest=None,
            result_bytes=len(value.data),
            artifact_id=None,
            error=None,
            resolved_by=None,
            started_by="",
            repeats=None,
            repeats_name=None,
        )


async def find_older(
    access: Access, transaction: Transaction, sealer: Sealer, wanted: EffectStart
) -> OlderRecord | None:
    """The record of a name in the namespace that a start names, if an earlier client kept one.

    Raises:
        IntegrityFailure: There is one, and it does not authenticate or misses a part.
    """
    rows = HotRows(transaction, wanted.thread_id)
    task_id = f"once:{hashlib.sha256(wanted.name.encode()).hexdigest()[:_DIGITS]}"
    for row in await rows.writes_of(wanted.namespace, [_PLACE], task_id):
        if row.idx == 0:
            opened = open_write(sealer, row)
            reader = answering(sealer, refs=False)
            missing = opened.ids
            while missing:
                missing = reader.add(await rows.pieces(missing))
            if reader.missing(opened.ids):
                raise IntegrityFailure("a stored piece is missing")
            blobs = await access.offload.find(transaction, sealer, reader)
            return OlderRecord(access, sealer, opened, reader, blobs)
    return None
