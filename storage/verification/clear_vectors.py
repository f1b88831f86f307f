"""Comparing clear vectors with the sealed rows that they are of: which items and puts they are of, not their numbers.

Nothing proves a row of that table: whoever edits the database can move a hit to the front or to the end, never make one
of what is not there. So what counts is what the sealed rows say, and here is told where the table says something else.
"""

from collections.abc import AsyncIterator
from typing import Final

from storage.clear_vectors.policies import VectorsNow
from storage.format.items.vectors import VectorColumns
from storage.postgres.unit_of_work import Transaction
from storage.statements.items import clear_vectors as sql

PAGE_ROWS: Final = 1_000


class ClearPath:
    """The clear vectors of a path, walked beside the sealed ones in the order of key and model.

    Attributes:
        wrong: How many rows are not as the sealed ones are, so far.
    """

    def __init__(self, transaction: Transaction, now: VectorsNow, path_id: bytes, *, opened: bool) -> None:
        self._now = now
        self._opened = opened
        # What a tenant said last may not be done yet; of one whose word is damaged nothing is known.
        self._compared = now.schema is not None and not now.damaged and (now.clear or not now.has_policy)
        self._rows = self._walk(transaction, path_id)
        self._next: sql.ClearRows | None = None
        self._begun = False
        self.wrong = 0

    async def _walk(self, transaction: Transaction, path_id: bytes) -> AsyncIterator[sql.ClearRows]:
        after = (b"", b"")
        while self._now.schema is not None:
            rows = await transaction.fetch_all(
                sql.of(self._now.schema).of_path,
                path_id=path_id,
                key_id=after[0],
                model_id=after[1],
                page_rows=PAGE_ROWS,
            )
            for row in rows:
                yield row
            if len(rows) < PAGE_ROWS:
                return
            after = (rows[-1].key_id, rows[-1].model_id)

    async def _move(self) -> None:
        self._begun = True
        self._next = await anext(self._rows, None)

    async def sealed(self, row: VectorColumns, numbers: int) -> None:
        """Compare what is there of the next sealed row; ``numbers`` is how many vectors it has."""
        if not self._compared:
            return
        if not self._begun:
            await self._move()
        place = (row.key_id, row.model_id)
        while self._next is not None and (self._next.key_id, self._next.model_id) < place:
            self.wrong += 1
            await self._move()
        if self._next is None or (self._next.key_id, self._next.model_id) != place:
            self.wrong += self._now.clear and self._now.complete and self._opened
            return
        same = (self._next.revision, self._next.sequence, self._next.numbers) == (row.revision, row.sequence, numbers)
        self.wrong += not (same and self._now.clear and self._opened)
        await self._move()

    async def end(self) -> None:
        """Count what is left, which is of no sealed row."""
        if not self._compared:
            return
        if not self._begun:
            await self._move()
        while self._next is not None:
            self.wrong += 1
            await self._move()
