"""Sealing a subject's items again under its active data key: one step of a re-seal, a few rows at a time.

Items come first, then their vectors, then paths with their labels and seals, then the subject's seal. The same content
is sealed at the same place: revisions, members, sequences and live sets stay, and only envelopes change. Items and
vectors are stored under the locks of their paths, and only over the envelope that was opened, so that a put at the same
moment wins. What is under a client's share is left as it is; the seals of its paths take no share, and are sealed
again. What is damaged is left, too, and keeps the older version alive.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from crypto import KeyDestroyed, Sealer
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.items.item import open_item, open_labels, seal_item, seal_labels
from storage.format.items.seals import PathSeal, ScopeSeal
from storage.format.items.vectors import open_vectors, seal_vectors
from storage.postgres.unit_of_work import Transaction
from storage.statements.items import items as items_sql
from storage.statements.items import paths as paths_sql
from storage.statements.items import resealing as sql
from storage.statements.items.vectors import VectorsRow

# What one batch opens: rows, and bytes of their envelopes, unless the first has more.
BATCH_ROWS: Final = 64
BATCH_BYTES_MAX: Final = 2 * 1024 * 1024
_DAMAGED: Final = (IntegrityFailure, KeyDestroyed)

R = TypeVar("R", items_sql.ItemRow, VectorsRow)
ItemStep = Literal["items", "vectors", "paths"]


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """Where a re-seal of items goes on: at what, and after which row of it."""

    step: ItemStep = "items"
    path_id: bytes = b""
    key_id: bytes = b""
    model_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Resealed:
    """How many a batch dealt with, those that were put meanwhile too, and where to go on; None: that was all."""

    done: int
    position: ItemPosition | None


async def reseal_items(transaction: Transaction, sealer: Sealer, position: ItemPosition) -> Resealed:
    """Seal a batch again, in the caller's transaction, which compared the sealer's keys with the stored ones."""
    version = sealer.active_key_version.to_bytes(4)
    after = {"version": version, "path_id": position.path_id, "page_rows": BATCH_ROWS}
    if position.step == "paths":
        return await _paths(transaction, sealer, version, position.path_id)
    if position.step == "items":
        places = await transaction.fetch_all(sql.STALE_ITEMS, key_id=position.key_id, **after)
    else:
        places = await transaction.fetch_all(
            sql.STALE_VECTORS, key_id=position.key_id, model_id=position.model_id, **after
        )
    few = _by_bytes(places)
    seal_again = _items if position.step == "items" else _vectors
    done = await seal_again(transaction, sealer, few) if few else 0
    if len(few) < len(places) or len(places) == BATCH_ROWS:
        last = few[-1]
        return Resealed(done, ItemPosition(position.step, last.path_id, last.key_id, last.model_id))
    return Resealed(done, ItemPosition("vectors" if position.step == "items" else "paths"))


def _by_bytes(places: Sequence[sql.PlaceSize]) -> Sequence[sql.PlaceSize]:
    """So many of the first places that what is there may be opened at once."""
    size = 0
    for number, each in enumerate(places):
        size += each.size
        if number and size > BATCH_BYTES_MAX:
            return places[:number]
    return places


async def _items(transaction: Transaction, sealer: Sealer, places: Sequence[sql.PlaceSize]) -> int:
    path_ids, key_ids = [each.path_id for each in places], [each.key_id for each in places]
    rows = await transaction.fetch_all(items_sql.NAMED, path_ids=path_ids, key_ids=key_ids)
    again = [(row, envelope) async for row, envelope in _again(sealer, rows, _item_again)]
    if not again:
        return 0
    await transaction.fetch_all(paths_sql.LOCK_PATHS, path_ids=sorted({*path_ids}))
    named = ("path_id", "key_id", "revision")
    await transaction.run_many(sql.RESEAL_ITEMS, [_replaced(row, envelope, named) for row, envelope in again])
    return len(again)


async def _vectors(transaction: Transaction, sealer: Sealer, places: Sequence[sql.PlaceSize]) -> int:
    path_ids, key_ids = [each.path_id for each in places], [each.key_id for each in places]
    model_ids = [each.model_id for each in places]
    rows = await transaction.fetch_all(sql.VECTORS, path_ids=path_ids, key_ids=key_ids, model_ids=model_ids)
    again = [(row, envelope) async for row, envelope in _again(sealer, rows, _vectors_again)]
    if not again:
        return 0
    await transaction.fetch_all(paths_sql.LOCK_PATHS, path_ids=sorted({*path_ids}))
    named = ("path_id", "key_id", "model_id", "sequence")
    await transaction.run_many(sql.RESEAL_VECTORS, [_replaced(row, envelope, named) for row, envelope in again])
    return len(again)


def _replaced(row: items_sql.ItemRow | VectorsRow, envelope: bytes, named: Sequence[str]) -> dict[str, object]:
    return {name: getattr(row, name) for name in named} | {"envelope": envelope, "before": row.envelope}


async def _again(
    sealer: Sealer, rows: Sequence[R], seal_again: Callable[[Sealer, R], tuple[bytes, bytes]]
) -> AsyncIterator[tuple[R, bytes]]:
    """Rows with their envelopes under the active version; those that are damaged are left out."""
    pauses = Pauses()
    for row in rows:
        await pauses.after(2 * len(row.envelope))
        try:
            envelope, member = seal_again(sealer, row)
        except _DAMAGED:
            continue
        if member == row.member:
            yield row, envelope


def _item_again(sealer: Sealer, row: items_sql.ItemRow) -> tuple[bytes, bytes]:
    return seal_item(sealer, row.columns, open_item(sealer, row.columns, row.envelope, row.member))


def _vectors_again(sealer: Sealer, row: VectorsRow) -> tuple[bytes, bytes]:
    sealed = seal_vectors(sealer, row.columns, *open_vectors(sealer, row.columns, row.envelope, row.member))
    return sealed.envelope, sealed.member


async def _paths(transaction: Transaction, sealer: Sealer, version: bytes, after: bytes) -> Resealed:
    rows = await transaction.fetch_all(sql.LOCK_STALE_PATHS, version=version, path_id=after, page_rows=BATCH_ROWS)
    done = 0
    for row in rows:
        seal, labels = _path_seal(sealer, row), _path_labels(sealer, row)
        if seal is not None or labels is not None:
            await transaction.run(sql.RESEAL_PATH, path_id=row.path_id, seal=seal, labels=labels)
            done += (seal is not None) + (labels is not None)
    if len(rows) == BATCH_ROWS:
        return Resealed(done, ItemPosition("paths", rows[-1].path_id))
    return Resealed(done + await _scope(transaction, sealer, version), None)


def _path_seal(sealer: Sealer, row: sql.StalePath) -> bytes | None:
    if not row.stale_seal:
        return None
    place = (row.path_id, row.share_check, row.sequence)
    try:
        return PathSeal.open(sealer, *place, row.seal).seal(sealer, *place)
    except _DAMAGED:
        return None


def _path_labels(sealer: Sealer, row: sql.StalePath) -> bytes | None:
    if row.labels is None:
        return None
    try:
        return seal_labels(sealer, row.path_id, open_labels(sealer, row.path_id, row.labels))
    except _DAMAGED:
        return None


async def _scope(transaction: Transaction, sealer: Sealer, version: bytes) -> int:
    row = await transaction.fetch_one(sql.LOCK_STALE_SCOPE, version=version)
    if row is None:
        return 0
    try:
        seal = ScopeSeal.open(sealer, row.sequence, row.seal).seal(sealer, row.sequence)
    except _DAMAGED:
        return 0
    return await transaction.run(paths_sql.SET_SCOPE, sequence=row.sequence, seal=seal)
