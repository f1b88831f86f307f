"""Rows of a path's items and of their vectors: walked in a snapshot, and read back after an import.

What an import stored is known by the live sets of what it sealed, and by the sequence that its path had before: in a
path that nobody wrote to since, exactly those rows are newer. Each is opened, and all together make the same sets.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from crypto import Sealer
from storage.access.access import Access
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, NotFound
from storage.format.chain import LiveSet
from storage.format.items.item import open_item
from storage.format.items.seals import PathSeal, item_mac
from storage.format.items.vectors import open_vectors, vectors_mac
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.items import items as sql
from storage.statements.items import verifying as verifying_sql
from storage.statements.items.vectors import VectorsRow

# Rows that are read at a time; each may have a quarter of a mebibyte, or three.
_ITEM_ROWS: Final = 32
_VECTORS_ROWS: Final = 8


async def each_item(transaction: Transaction, path_id: bytes) -> AsyncIterator[sql.ItemRow]:
    """The items of a path in the order of their keys' names, those that are over, too."""
    after = b""
    while True:
        rows = await transaction.fetch_all(sql.OF_PATH, of_path=path_id, key_id=after, page_rows=_ITEM_ROWS)
        for row in rows:
            after = row.key_id
            yield row
        if len(rows) < _ITEM_ROWS:
            return


async def each_vectors(transaction: Transaction, path_id: bytes) -> AsyncIterator[VectorsRow]:
    """The rows of vectors of a path's items, in the order of their keys' and models' names."""
    after = (b"", b"")
    while True:
        rows = await transaction.fetch_all(
            verifying_sql.VECTORS_OF_PATH, path_id=path_id, key_id=after[0], model_id=after[1], page_rows=_VECTORS_ROWS
        )
        for row in rows:
            after = (row.key_id, row.model_id)
            yield row
        if len(rows) < _VECTORS_ROWS:
            return


@dataclass(frozen=True, slots=True)
class StoredPath:
    """What an import stored in a path.

    Attributes:
        path_id: Its name in rows.
        before: The path's sequence before.
        sequence: The path's sequence after.
        seal: What its seal says after.
        stored: The live sets of what was stored alone.
    """

    path_id: bytes
    before: int
    sequence: int
    seal: PathSeal
    stored: PathSeal


async def reads_back(access: Access, scope: Scope, share: ClientShare | None, path: StoredPath) -> bool:
    """Open what was stored in a path; whether it is what was stored. Else somebody wrote to the path since.

    Raises:
        IntegrityFailure: It does not read back as it was stored.
        NotFound, KeyDestroyed: The subject's keys are gone.
    """

    async def attempt(sealer: Sealer) -> bool:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await access.check_keys_in(transaction, scope, sealer)
            row = await transaction.fetch_one(verifying_sql.PATH, path_id=path.path_id)
            if row is None or row.sequence != path.sequence:
                return False
            if PathSeal.open(sealer, row.path_id, row.share_check, row.sequence, row.seal) != path.seal:
                raise IntegrityFailure
            if await _opened(transaction, sealer, path) != path.stored:
                raise IntegrityFailure
            return True

    return await access.with_existing_keys(scope, attempt, NotFound(), share)


async def _opened(transaction: Transaction, sealer: Sealer, path: StoredPath) -> PathSeal:
    items, vectors, pauses = LiveSet(), LiveSet(), Pauses()
    async for item in each_item(transaction, path.path_id):
        if item.revision > path.before:
            await pauses.after(len(item.envelope))
            open_item(sealer, item.columns, item.envelope, item.member)
            items = items.add(item_mac(sealer, path.path_id, item.key_id, item.member))
    async for row in each_vectors(transaction, path.path_id):
        if row.sequence > path.before:
            await pauses.after(len(row.envelope))
            open_vectors(sealer, row.columns, row.envelope, row.member)
            vectors = vectors.add(vectors_mac(sealer, row, row.member))
    return PathSeal(items, vectors)
