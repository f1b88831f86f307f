"""The rows of a thread of which some are in the database and some are elsewhere.

No checkpoint and no pending write is in two sources; a piece may be in several, and is then the same. So ordered ranges
are merged, counts are added up, and what is asked for by its name is asked of one source after the other.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from storage.format.chain import NO_WRITES, LiveSet
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.model import HistoryQuery
from storage.statements.threads.tags import COUNTED_MAX, TagUse
from storage.tiers.rows import Reference, Search, WholeRows, WriteKey, history_order, task_order, write_key

T = TypeVar("T")


def _merged(
    parts: Iterable[Sequence[T]], order: Callable[[T], Any], limit: int | None = None, *, descending: bool = False
) -> list[T]:
    return list(islice(heapq.merge(*parts, key=order, reverse=descending), limit))


class UnionRows:
    """The rows of several sources.

    They are asked by name in their order.
    """

    def __init__(self, *sources: WholeRows) -> None:
        self._sources = sources

    async def tag_uses(self, names: Sequence[str], tags: Sequence[bytes]) -> list[TagUse]:
        """As `storage.tiers.rows.Listing.tag_uses`."""
        together: dict[str, TagUse] = {}
        for source in self._sources:
            for use in await source.tag_uses(names, tags):
                before = together.get(use.name, TagUse(use.name, use.tag, [], 0))
                untagged = list(dict.fromkeys([*before.untagged_threads, *use.untagged_threads]))
                count = min(before.count + use.count, COUNTED_MAX)
                together[use.name] = TagUse(use.name, use.tag, untagged, count)
        return list(together.values())

    async def history(
        self, query: HistoryQuery, search: Search, after: Sequence[str] | None, limit: int
    ) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Listing.history`."""
        parts = [await source.history(query, search, after, limit) for source in self._sources]
        return _merged(parts, history_order, limit, descending=True)

    async def stored(self, references: Collection[Reference]) -> set[Reference]:
        """As `storage.tiers.rows.Listing.stored`."""
        found: set[Reference] = set()
        for source in self._sources:
            found |= await source.stored({*references} - found)
        return found

    async def checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        """As `storage.tiers.rows.Rows.checkpoint`."""
        for source in self._sources:
            found = await source.checkpoint(namespace, checkpoint_id)
            if found is not None:
                return found
        return None

    async def checkpoints_after(self, namespace: str, after: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.checkpoints_after`."""
        parts = [await source.checkpoints_after(namespace, after, limit) for source in self._sources]
        return _merged(parts, lambda row: row.checkpoint_id, limit)

    async def next_checkpoint(self, namespace: str, after: str) -> str | None:
        """As `storage.tiers.rows.Rows.next_checkpoint`."""
        found = [await source.next_checkpoint(namespace, after) for source in self._sources]
        return min((each for each in found if each is not None), default=None)

    async def ancestors(self, namespace: str, checkpoint_id: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.ancestors`."""
        line: list[CheckpointRow] = []
        wanted: str | None = checkpoint_id
        while wanted is not None and len(line) < limit:
            for source in self._sources:
                part = await source.ancestors(namespace, wanted, limit - len(line))
                if part:
                    break
            else:
                break
            line += part
            wanted = part[-1].parent_id
        return line

    async def count(self, namespace: str) -> int:
        """As `storage.tiers.rows.Rows.count`."""
        return sum([await source.count(namespace) for source in self._sources])

    async def namespaces(self) -> list[str]:
        """As `storage.tiers.rows.Rows.namespaces`."""
        return sorted({name for source in self._sources for name in await source.namespaces()})

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""
        found: dict[bytes, PieceRow] = {}
        for source in self._sources:
            missing = [each for each in piece_ids if each not in found]
            if missing:
                found.update({row.piece_id: row for row in await source.pieces(missing)})
        return list(found.values())

    async def pieces_after(self, after: bytes, limit: int) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces_after`."""
        found: dict[bytes, PieceRow] = {}
        for source in self._sources:
            for row in await source.pieces_after(after, limit):
                found.setdefault(row.piece_id, row)
        return [found[each] for each in sorted(found)[:limit]]

    async def writes_of(
        self, namespace: str, checkpoint_ids: Sequence[str], task_id: str | None = None
    ) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_of`."""
        parts = [await source.writes_of(namespace, checkpoint_ids, task_id) for source in self._sources]
        return _merged(parts, task_order)

    async def writes_after(self, after: WriteKey, limit: int) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_after`."""
        parts = [await source.writes_after(after, limit) for source in self._sources]
        return _merged(parts, write_key, limit)

    async def members(self) -> list[MemberRow]:
        """As `storage.tiers.rows.Rows.members`."""
        return [row for source in self._sources for row in await source.members()]

    @property
    def cold_writes(self) -> LiveSet:
        """As `storage.tiers.rows.Rows.cold_writes`: of none."""
        return NO_WRITES
