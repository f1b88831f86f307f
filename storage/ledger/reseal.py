"""Re-sealing what is sealed about a subject's blobs: pointers, the records of open uploads, descriptions of artifacts.

One step of a re-seal (`storage.key_lifecycle.reseal`), a few rows at a time. Objects stay as they are: a pointer holds
its blob's own key, so that a gigabyte follows a rotation with a hundred bytes. Rows under a client-held share are left
as they are, as everywhere. What is damaged is left, too, and keeps the older version alive.
"""

from dataclasses import dataclass
from uuid import UUID

from crypto import Field, KeyDestroyed, Kind, OpenError, Sealer
from storage.errors import IntegrityFailure
from storage.format.key_versions import check_key_version
from storage.format.pointer import artifact_location, intent_location, pointer_location
from storage.postgres.unit_of_work import Transaction
from storage.statements.objects import artifacts as artifacts_sql
from storage.statements.objects import blobs as sql

TABLES = ("blobs", "intents", "artifacts")
_NIL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class BlobPosition:
    """Where a re-seal of blobs goes on; it begins with the first table and the nil UUID."""

    table: str = TABLES[0]
    after: UUID = _NIL


@dataclass(frozen=True, slots=True)
class Resealed:
    """What a batch did, and where to go on; None: that was all."""

    done: int
    position: BlobPosition | None


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What one row has sealed, and where it stands."""

    row_id: UUID
    location: tuple[Field, ...]
    key_version: int
    envelope: bytes


def _pointer(row: sql.StalePointer) -> _Sealed:
    location = pointer_location(row.blob_id, row.content_id, row.size_bytes, row.created_at)
    return _Sealed(row.blob_id, location, row.key_version, row.pointer)


def _intent(row: sql.StaleIntent) -> _Sealed:
    location = intent_location(row.blob_id, row.purpose, row.content_id, row.created_at)
    return _Sealed(row.blob_id, location, row.key_version, row.record)


def _artifact(row: artifacts_sql.ArtifactRow) -> _Sealed:
    location = artifact_location(
        row.artifact_id, row.name_digest, row.number, row.blob_id, row.size_bytes, row.created_at
    )
    return _Sealed(row.artifact_id, location, row.key_version, row.sealed)


async def _stale(transaction: Transaction, position: BlobPosition, version: bytes, limit: int) -> list[_Sealed]:
    values = {"version": version, "after": position.after, "limit": limit}
    match position.table:
        case "blobs":
            return [_pointer(row) for row in await transaction.fetch_all(sql.STALE_POINTERS, **values)]
        case "intents":
            return [_intent(row) for row in await transaction.fetch_all(sql.STALE_INTENTS, **values)]
        case _:
            return [_artifact(row) for row in await transaction.fetch_all(artifacts_sql.STALE, **values)]


_STORE = {"blobs": sql.RESEAL_POINTER, "intents": sql.RESEAL_INTENT, "artifacts": artifacts_sql.RESEAL}


async def reseal_blobs(transaction: Transaction, sealer: Sealer, position: BlobPosition, limit: int) -> Resealed:
    """Re-seal up to ``limit`` rows under the active key version, in the caller's transaction.

    A row that was changed meanwhile is left: the change sealed it anew, or it is found stale again.
    """
    version = sealer.active_key_version.to_bytes(4)
    rows = await _stale(transaction, position, version, limit)
    done = 0
    for row in rows:
        try:
            check_key_version(row.key_version, row.envelope)
            opened = sealer.open(Kind.POINTER, row.location, row.envelope)
        except (OpenError, KeyDestroyed, IntegrityFailure):
            continue
        done += await transaction.run(
            _STORE[position.table],
            row_id=row.row_id,
            key_version=sealer.active_key_version,
            sealed=sealer.seal(Kind.POINTER, row.location, opened, compress=False),
            was=row.envelope,
        )
    if len(rows) == limit:
        return Resealed(done, BlobPosition(position.table, rows[-1].row_id))
    if position.table == TABLES[0]:
        await transaction.run(sql.FORGET_CONDEMNED_POINTERS, version=version)
    following = TABLES.index(position.table) + 1
    return Resealed(done, BlobPosition(TABLES[following]) if following < len(TABLES) else None)
