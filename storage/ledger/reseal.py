"""Re-sealing what is sealed about a subject's blobs: pointers, the records of open uploads, descriptions of artifacts.

One step of a re-seal (`storage.key_lifecycle.reseal`), a few rows at a time. Objects stay as they are: a pointer holds
its blob's own key, so that a gigabyte follows a rotation with a hundred bytes. Rows under a client-held share are left
as they are, as everywhere. What is damaged is left, too, and keeps the older version alive.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from crypto import Field, KeyDestroyed, Kind, OpenError, Sealer
from storage.errors import IntegrityFailure
from storage.format.key_versions import check_key_version
from storage.format.pointer import artifact_location, intent_location, pointer_location
from storage.postgres import artifacts as artifacts_sql
from storage.postgres import blobs as sql
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope

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


def _pointer(row: Any) -> tuple[tuple[Field, ...], bytes]:
    return pointer_location(row["blob_id"], row["content_id"], row["size_bytes"], row["created_at"]), row["pointer"]


def _intent(row: Any) -> tuple[tuple[Field, ...], bytes]:
    return intent_location(row["blob_id"], row["purpose"], row["content_id"], row["created_at"]), row["record"]


def _artifact(row: Any) -> tuple[tuple[Field, ...], bytes]:
    location = artifact_location(
        row["artifact_id"], row["name_digest"], row["number"], row["blob_id"], row["size_bytes"], row["created_at"]
    )
    return location, row["sealed"]


_STEPS = {
    "blobs": (sql.STALE_POINTERS, sql.RESEAL_POINTER, "blob_id", _pointer),
    "intents": (sql.STALE_INTENTS, sql.RESEAL_INTENT, "blob_id", _intent),
    "artifacts": (artifacts_sql.STALE, artifacts_sql.RESEAL, "artifact_id", _artifact),
}


async def reseal_blobs(
    transaction: Transaction, scope: Scope, sealer: Sealer, position: BlobPosition, limit: int
) -> Resealed:
    """Re-seal up to ``limit`` rows under the active key version, in the caller's transaction.

    A row that somebody changed meanwhile is left: whoever did sealed it anew, or it is found stale again.
    """
    place = (scope.tenant_id, scope.subject_id)
    version = sealer.active_key_version.to_bytes(4)
    stale, store, column, sealed_of = _STEPS[position.table]
    rows = await transaction.fetch(stale, *place, version, position.after, limit)
    done = 0
    for row in rows:
        location, envelope = sealed_of(row)
        try:
            check_key_version(row["key_version"], envelope)
            again = sealer.seal(Kind.POINTER, location, sealer.open(Kind.POINTER, location, envelope), compress=False)
        except (OpenError, KeyDestroyed, IntegrityFailure):
            continue
        done += await transaction.execute(store, *place, row[column], sealer.active_key_version, again, envelope)
    if len(rows) == limit:
        return Resealed(done, BlobPosition(position.table, rows[-1][column]))
    if position.table == TABLES[0]:
        await transaction.execute(sql.FORGET_CONDEMNED_POINTERS, *place, version)
    following = TABLES.index(position.table) + 1
    return Resealed(done, BlobPosition(TABLES[following]) if following < len(TABLES) else None)
