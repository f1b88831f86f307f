"""Searching items: those of some paths in the order of their changes, the newest first.

First comes where they stand, without their content, then the content of those that may be shown or are looked into.
Whoever reads paths to their end has them compared with the live sets in their seals. What one request reads is bounded
for all of its searches together; a search that comes to the bound says where to go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from crypto import Sealer
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.items.seals import PathSeal, item_mac
from storage.items import matching
from storage.items.model import Item, ItemSearch, Labels
from storage.items.reading import Reading, size_bytes
from storage.model import Page
from storage.postgres.unit_of_work import Transaction
from storage.statements.items import items as sql
from storage.statements.items import paths as paths_sql

ITEM_SCAN_ROWS_MAX: Final = 50_000
ITEM_OPENED_ROWS_MAX: Final = 10_000
ITEM_OPENED_BYTES_MAX: Final = 16 * 1024 * 1024
# Rows that one statement looks at, and rows and bytes of content that one brings.
PAGE_ROWS: Final = 1_000
PART_ROWS: Final = 100
PART_BYTES_MAX: Final = 1024 * 1024
# Paths whose seals are compared at the end of one search; a search over more leaves that to verification.
COMPARED_PATHS_MAX: Final = 1_000


# What a value of a filter counts for at each item beside the item's bytes.
_BYTES_AS_A_VALUE: Final = 16


@dataclass(slots=True)
class Budget:
    """What the searches of one request may still read.

    Attributes:
        scan_rows: Rows that may be looked at.
        rows: Rows that may be opened.
        bytes: Bytes that may be opened, as long as they are when they are not compressed, and what filters cost.
    """

    scan_rows: int = ITEM_SCAN_ROWS_MAX
    rows: int = ITEM_OPENED_ROWS_MAX
    bytes: int = ITEM_OPENED_BYTES_MAX

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be looked at or opened."""
        return min(self.scan_rows, self.rows, self.bytes) <= 0


async def opened_if_wanted(
    reading: Reading, budget: Budget, wanted: ItemSearch, row: sql.ItemRow, labels: Labels
) -> Item | None:
    """Open an item, and give it if the search's filter wants it; what that takes is taken from the budget.

    Raises:
        IntegrityFailure: It is not as it was put.
    """
    item = await reading.opened(row, labels)
    if wanted.filter is None:
        budget.bytes -= size_bytes(item)
        return item
    filter_bytes = wanted.filter.values * _BYTES_AS_A_VALUE
    budget.bytes -= size_bytes(item) + filter_bytes
    await reading.pauses.after(len(item.value.data) + filter_bytes)
    return item if wanted.filter.matches(item.value) else None


async def search(reading: Reading, budget: Budget, wanted: ItemSearch) -> Page[Item]:
    """The items that a search finds.

    Raises:
        IntegrityFailure: One is not as it was put, or something was removed or added outside the gateway.
    """
    labels = await reading.paths_like(lambda each: matching.begins_with(each, wanted.prefix))
    if not labels:
        return Page([], None)
    return await _Search(reading, budget, wanted, labels).run()


class _Search:
    """One search."""

    def __init__(self, reading: Reading, budget: Budget, wanted: ItemSearch, labels: dict[bytes, Labels]) -> None:
        self._reading = reading
        self._budget = budget
        self._wanted = wanted
        self._labels = labels
        self._walk = _Walk(reading.transaction, reading.sealer, labels, _position(wanted.after))
        self._offset = int(wanted.after[-1]) if wanted.after is not None else wanted.offset
        self._found: list[Item] = []

    async def run(self) -> Page[Item]:
        """Go on until there are as many as wanted, nothing is left, or the budget is."""
        while not self._walk.ended:
            if self._budget.is_spent:
                return self._page_so_far()
            places = await self._walk.next(min(PAGE_ROWS, self._budget.scan_rows))
            self._budget.scan_rows -= self._walk.scanned
            if self._wanted.filter is None:  # nothing is opened of what is left out
                left_out = min(self._offset, len(places))
                self._offset -= left_out
                self._walk.deal_with(places[:left_out])
                places = places[left_out:]
            for few in _by_bytes(places):
                if self._budget.rows < len(few) or self._budget.bytes <= 0:
                    return self._page_so_far()
                if await self._is_full_after(few):
                    return Page(self._found, None) if self._ended_with(places[-1]) else self._page_so_far()
            self._walk.deal_with_page()
        if self._wanted.after is None:
            await self._compare()
        return Page(self._found, None)

    async def _is_full_after(self, few: Sequence[sql.PlaceRow]) -> bool:
        """Open what is at some places, and say whether that is enough, or as much as may be opened."""
        rows = await self._reading.rows([(each.path_id, each.key_id) for each in few])
        self._budget.rows -= len(few)
        for each in few:
            self._walk.deal_with([each])
            row = rows[each.path_id, each.key_id]
            item = await opened_if_wanted(self._reading, self._budget, self._wanted, row, self._labels[row.path_id])
            if item is not None and self._offset:
                self._offset -= 1
            elif item is not None:
                self._found.append(item)
                self._reading.show(item, row, keep=self._wanted.refresh)
            if len(self._found) == self._wanted.limit or self._budget.bytes <= 0:
                return True
        return False

    def _ended_with(self, last: sql.PlaceRow) -> bool:
        return self._walk.ended and self._walk.is_at(last)

    def _page_so_far(self) -> Page[Item]:
        return Page(self._found, self._walk.after(self._offset))

    async def _compare(self) -> None:
        """Compare paths that were read to their end with their seals."""
        if len(self._labels) > COMPARED_PATHS_MAX:
            return
        sealer = self._reading.sealer
        for row in await self._reading.transaction.fetch_all(paths_sql.PATHS, path_ids=list(self._labels)):
            seal = PathSeal.open(sealer, row.path_id, row.share_check, row.sequence, row.seal)
            if seal.items != self._walk.counted.get(row.path_id, LiveSet()):
                raise IntegrityFailure("items were removed, added or put back outside the gateway")
            await self._reading.pauses.after(0)


_Position = tuple[datetime, bytes, bytes]


def _position(after: tuple[str, ...] | None) -> _Position | None:
    if after is None or not after[0]:
        return None
    return datetime.fromisoformat(after[0]), bytes.fromhex(after[1]), bytes.fromhex(after[2])


def _by_bytes(places: Sequence[sql.PlaceRow]) -> list[list[sql.PlaceRow]]:
    """Places in parts whose content one statement brings."""
    parts: list[list[sql.PlaceRow]] = []
    size = 0
    for each in places:
        size += each.size
        if not parts or size > PART_BYTES_MAX or len(parts[-1]) == PART_ROWS:
            parts.append([])
            size = each.size
        parts[-1].append(each)
    return parts


class _Walk:
    """The places of a search's paths, the last changed first.

    Attributes:
        ended: Whether there are no more.
        scanned: The number of rows that the last page looked at, those of other paths included.
        counted: The live sets of what was seen, by path, with what is over.
    """

    def __init__(
        self, transaction: Transaction, sealer: Sealer, labels: dict[bytes, Labels], begin: _Position | None
    ) -> None:
        self._transaction = transaction
        self._sealer = sealer
        self._labels = labels
        self._read = self._dealt_with = begin
        self.ended = False
        self.scanned = 0
        self.counted: dict[bytes, LiveSet] = {}

    async def next(self, page_rows: int) -> list[sql.PlaceRow]:
        """The next places of the search's paths in which something is that is not over."""
        rows = await self._page(page_rows)
        self.scanned = len(rows)
        self.ended = len(rows) < page_rows
        if rows:
            self._read = _place_of(rows[-1])
        found = []
        for row in rows:
            if row.path_id in self._labels:
                counted = self.counted.get(row.path_id, LiveSet())
                self.counted[row.path_id] = counted.add(item_mac(self._sealer, row.path_id, row.key_id, row.member))
                if not row.over:
                    found.append(row)
        return found

    async def _page(self, page_rows: int) -> list[sql.PlaceRow]:
        updated_at, in_path, key = self._read or (None, b"", b"")
        if len(self._labels) == 1:  # an index has them by themselves
            (of_path,) = self._labels
            return await self._transaction.fetch_all(
                sql.PLACES_OF_PATH, of_path=of_path, updated_at=updated_at, key_id=key, page_rows=page_rows
            )
        return await self._transaction.fetch_all(
            sql.PLACES, updated_at=updated_at, path_id=in_path, key_id=key, page_rows=page_rows
        )

    def deal_with(self, places: Sequence[sql.PlaceRow]) -> None:
        """Say that these, which come next, need not be seen again."""
        if places:
            self._dealt_with = _place_of(places[-1])

    def deal_with_page(self) -> None:
        """Say so of the whole page."""
        self._dealt_with = self._read

    def is_at(self, place: sql.PlaceRow) -> bool:
        """Whether this is the last one that was dealt with."""
        return self._dealt_with == _place_of(place)

    def after(self, offset: int) -> tuple[str, ...]:
        """Where the next page begins: behind what was dealt with, less so many that are still to be left out."""
        if self._dealt_with is None:
            return "", "", "", str(offset)
        updated_at, in_path, key = self._dealt_with
        return updated_at.isoformat(), in_path.hex(), key.hex(), str(offset)


def _place_of(row: sql.PlaceRow) -> _Position:
    return row.updated_at, row.path_id, row.key_id
