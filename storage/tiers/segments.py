"""The rows of a thread of which an older part is in segments, fetched as far as a read asks for them.

Where a checkpoint is, the thread's stubs and the lists of its segments say, which are in the database; its rows are in
the segment's object. So a read over a thread with segments is an attempt in one snapshot: it sees the rows that are in
no segment and those of the segments that were fetched for it, and whatever it needs of another one ends the attempt
with `SegmentsNeeded`. They are fetched while no snapshot is open, and the read begins anew (`storage.access.access`).

Nothing is fetched here, no row is opened, and nothing is written. How much a read may hold is `Fetched`'s to say.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.errors import IntegrityFailure, ThreadArchived
from storage.format.chain import LiveSet
from storage.format.cold.segment import (
    ColdSums,
    Directory,
    ListedCheckpoint,
    ListedHead,
    MadeCheckpoint,
    Segment,
    SegmentList,
)
from storage.format.pieces import unpack_ids
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.model import HistoryQuery
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import archives as sql
from storage.statements.threads.archives import SegmentRow
from storage.statements.threads.tags import COUNTED_MAX, TagUse
from storage.statements.threads.threads import HeadRow
from storage.tiers.rows import PageEnds, Reference, Search, WholeRows
from storage.tiers.union import UnionRows


class SegmentsNeeded(Exception):
    """A read needs rows of these segments; ``pieces_only``: nothing of them but pieces."""

    def __init__(self, segments: Sequence[SegmentRow], *, pieces_only: bool = False) -> None:
        super().__init__()
        self.segments = segments
        self.pieces_only = pieces_only


class PiecesOf(Protocol):
    """The pieces of a segment of which nothing else was fetched."""

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""


class Fetched(Protocol):
    """The segments that were fetched for a read."""

    @property
    def segments(self) -> Mapping[UUID, WholeRows]:
        """The rows of each, by its object."""

    @property
    def pieces(self) -> Mapping[UUID, PiecesOf]:
        """The pieces of those of which nothing else was, by their objects."""

    def has_room(self, segment: SegmentRow, pieces_of: Collection[SegmentRow] = ()) -> bool:
        """Whether one more may be fetched, and then the pieces of others."""


class Lists:
    """The lists of a thread's segments, each opened when it is asked for."""

    def __init__(self, transaction: Transaction, sealer: Sealer) -> None:
        self._transaction = transaction
        self._sealer = sealer
        self._checkpoints: dict[UUID, dict[tuple[str, str], ListedCheckpoint]] = {}
        self._heads: dict[UUID, dict[str, ListedHead]] = {}
        self._pieces: dict[UUID, frozenset[bytes]] = {}

    async def checkpoints(self, segment: SegmentRow) -> Mapping[tuple[str, str], ListedCheckpoint]:
        """The checkpoints of a segment, by namespace and id."""
        await self._open(segment)
        return self._checkpoints[segment.blob_id]

    async def heads(self, segment: SegmentRow) -> Mapping[str, ListedHead]:
        """The heads of the namespaces that left with a segment, by namespace."""
        await self._open(segment)
        return self._heads[segment.blob_id]

    async def piece_ids(self, segment: SegmentRow) -> frozenset[bytes]:
        """The pieces in a segment's object."""
        await self._open(segment)
        return self._pieces[segment.blob_id]

    async def directory(self, thread_id: str, sums: ColdSums) -> Directory:
        """Which segment has the head of which cold namespace."""
        return await open_directory(self._transaction, self._sealer, thread_id, sums)

    async def cold_head(self, namespace: str, sums: ColdSums, segments: "Segments") -> "ColdHead | None":
        """The head of a cold namespace; None: it is none, and has a head in the database or has none at all."""
        if not sums.namespaces.count or not segments.all:
            return None
        directory = await self.directory(segments.all[0].thread_id, sums)
        for number in directory.segments_of(self._sealer, namespace):
            for segment in segments.all:
                if segment.segment == number and (head := (await self.heads(segment)).get(namespace)) is not None:
                    return ColdHead(segment, head)
        return None

    async def _open(self, segment: SegmentRow) -> None:
        if segment.blob_id in self._pieces:
            return
        listed = await open_list(self._transaction, self._sealer, segment)
        self._heads[segment.blob_id] = {each.namespace: each for each in listed.heads}
        self._checkpoints[segment.blob_id] = {(each.namespace, each.checkpoint_id): each for each in listed.checkpoints}
        self._pieces[segment.blob_id] = frozenset(unpack_ids(listed.piece_ids))


class ColdHead(msgspec.Struct, frozen=True):
    """The head of a cold namespace, and the segment that has it."""

    segment: SegmentRow
    head: ListedHead

    @property
    def row(self) -> HeadRow:
        """The row of the head, as it was in the database."""
        return HeadRow(self.head.namespace, self.head.head_id, self.head.sequence, self.head.seal)


async def open_directory(transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums) -> Directory:
    """Which segment has the head of which cold namespace of a thread.

    Raises:
        IntegrityFailure: It is not the one that the sums are of.
    """
    stored = None
    if sums.namespaces.count:
        stored = await transaction.fetch_one(sql.COLD_NAMESPACES, thread_id=thread_id)
    return Directory.open(sealer.without_share, thread_id, sums, stored)


async def find_cold_head(
    transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums, namespace: str
) -> ColdHead | None:
    """The head of a namespace that is cold as a whole; None: it has a head in the database, or there is no such one.

    Before a writer takes a namespace without a head in the database for a new one, this is asked under the lock.

    Raises:
        IntegrityFailure: What is said of segments does not authenticate.
    """
    if not sums.namespaces.count:
        return None
    directory = await open_directory(transaction, sealer, thread_id, sums)
    if next(directory.segments_of(sealer, namespace), None) is None:
        return None
    segments = await open_segments(transaction, sealer, thread_id, sums)
    return await Lists(transaction, sealer).cold_head(namespace, sums, segments)


async def refuse_cold_namespace(
    transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums, namespace: str
) -> None:
    """Return if a namespace without a head in the database is a new one: under the lock, before it is written to.

    Raises:
        ThreadArchived: It is cold; the segment with its head is named, which is to be brought back first.
        IntegrityFailure: What is said of segments does not authenticate.
    """
    found = await find_cold_head(transaction, sealer, thread_id, sums, namespace)
    if found is not None:
        raise ThreadArchived(thread_id, segment=found.segment.segment)


async def open_list(transaction: Transaction, sealer: Sealer, segment: Segment) -> SegmentList:
    """What counts of a segment.

    Raises:
        IntegrityFailure: It does not authenticate, or is not there.
        KeyDestroyed: The key it was sealed under is gone.
    """
    envelope = await transaction.fetch_one(sql.LISTED, thread_id=segment.thread_id, segment=segment.segment)
    return SegmentList.open(sealer, segment, envelope)


class Segments:
    """The segments of a thread by their ranges, which do not overlap.

    Raises:
        IntegrityFailure: These are not the thread's, or their ranges overlap.
    """

    def __init__(self, sealer: Sealer, sums: ColdSums, found: Sequence[SegmentRow]) -> None:
        sums.compare(sealer.without_share, found)
        self.all = sorted(found, key=lambda each: each.first_id)
        for before, after in zip(self.all, self.all[1:], strict=False):
            if before.last_id >= after.first_id:
                raise IntegrityFailure("two segments of a thread have the same checkpoints")
        self._first_ids = [each.first_id for each in self.all]

    def around(self, checkpoint_id: str) -> SegmentRow | None:
        """The segment in whose range an id is."""
        found = self.before(checkpoint_id)
        return found if found is not None and checkpoint_id <= found.last_id else None

    def before(self, checkpoint_id: str) -> SegmentRow | None:
        """The last segment that begins before an id."""
        at = bisect_right(self._first_ids, checkpoint_id) - 1
        return self.all[at] if at >= 0 else None

    def of_volume(self, segment: SegmentRow) -> list[SegmentRow]:
        """A segment with those that its volume had before it: all that its pieces may be in."""
        own = (each for each in self.all if each.volume == segment.volume and each.segment <= segment.segment)
        return sorted(own, key=lambda each: each.segment)


class SegmentedRows:
    """`storage.tiers.rows.Rows` of a thread with segments.

    Raises:
        SegmentsNeeded: From every method: what is asked for is in segments that were not fetched.
        IntegrityFailure: Likewise: what is said of segments does not authenticate.
    """

    def __init__(
        self, lists: Lists, segments: Segments, sums: ColdSums, unsegmented: WholeRows, fetched: Fetched
    ) -> None:
        self._lists = lists
        self._segments = segments
        self._sums = sums
        self._unsegmented = unsegmented
        self._fetched = fetched
        here = [fetched.segments[each.blob_id] for each in segments.all if each.blob_id in fetched.segments]
        self._here = UnionRows(unsegmented, *here)

    def _missing(self, segments: Iterable[SegmentRow]) -> list[SegmentRow]:
        return [each for each in segments if each.blob_id not in self._fetched.segments]

    async def _listed_in(self, namespace: str, checkpoint_id: str) -> SegmentRow | None:
        """The segment that has a checkpoint."""
        segment = self._segments.around(checkpoint_id)
        if segment is None or (namespace, checkpoint_id) not in await self._lists.checkpoints(segment):
            return None
        return segment

    async def _fetch_of(self, namespace: str, checkpoint_ids: Collection[str]) -> None:
        """Return if the rows of these checkpoints are here, as far as they are stored."""
        found = [await self._listed_in(namespace, each) for each in checkpoint_ids]
        if missing := self._missing({each.blob_id: each for each in found if each is not None}.values()):
            raise SegmentsNeeded(missing)

    # --- listings --------------------------------------------------------------------------------------------------

    async def tag_uses(self, names: Sequence[str], tags: Sequence[bytes]) -> list[TagUse]:
        """As `storage.tiers.rows.Listing.tag_uses`; what was not fetched may not be tagged, and is looked through."""
        thread_id = self._segments.all[0].thread_id
        return [TagUse(name, tag, [thread_id], COUNTED_MAX) for name, tag in zip(names, tags, strict=True)]

    async def history(
        self, query: HistoryQuery, search: Search, after: Sequence[str] | None, limit: int
    ) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Listing.history`.

        Raises:
            PageEnds: More segments would have to be looked through than one read may hold, with the pieces of the
                states that are asked for.
        """
        rows = await self._here.history(query, search, after, limit)
        reached = rows[-1].checkpoint_id if len(rows) == limit else ""
        begin = None if after is None else after[0]
        only = await self._only_in(query.namespace)
        for segment in reversed(self._segments.all):
            if begin is not None and segment.first_id > begin:
                continue
            if segment.last_id < reached:
                break
            if segment.blob_id in self._fetched.segments or not segment.may_have(query):
                continue
            if only is not None and segment.blob_id not in only:
                continue
            states = self._pieces_with(segment) if query.with_state else []
            if not self._fetched.segments or self._fetched.has_room(segment, states):
                raise SegmentsNeeded([segment])
            # Behind the first id that may be in it: the next page begins there.
            before = [row for row in rows if row.checkpoint_id > segment.last_id]
            raise PageEnds(before, (segment.last_id, "\U0010ffff", "\U0010ffff"))
        return rows

    def _pieces_with(self, segment: SegmentRow) -> list[SegmentRow]:
        """The segments of which the pieces may be needed for states in those that were fetched, and in this one."""
        here = [each for each in self._segments.all if each.blob_id in self._fetched.segments]
        needed = {one.blob_id: one for each in (*here, segment) for one in self._segments.of_volume(each)}
        missing = self._missing(needed.values())
        return [each for each in missing if each is not segment and each.blob_id not in self._fetched.pieces]

    async def _only_in(self, namespace: str | None) -> Collection[UUID] | None:
        """The objects of the segments that have checkpoints of a namespace; None: any may."""
        if namespace is None or self._sums.of(namespace).count:
            return None
        cold = await self.cold_head(namespace)
        if cold is None:
            return ()
        return None if cold.head.earlier_count else (cold.segment.blob_id,)

    async def stored(self, references: Collection[Reference]) -> set[Reference]:
        """As `storage.tiers.rows.Listing.stored`."""
        found = await self._unsegmented.stored(references)
        for reference in {*references} - found:
            if await self._listed_in(*reference[1:]) is not None:
                found.add(reference)
        return found

    # --- checkpoints -----------------------------------------------------------------------------------------------

    async def checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        """As `storage.tiers.rows.Rows.checkpoint`."""
        found = await self._here.checkpoint(namespace, checkpoint_id)
        if found is None and checkpoint_id is not None:
            await self._fetch_of(namespace, [checkpoint_id])
        return found

    async def ancestors(self, namespace: str, checkpoint_id: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.ancestors`."""
        line = await self._here.ancestors(namespace, checkpoint_id, limit)
        if len(line) < limit:
            wanted = line[-1].parent_id if line else checkpoint_id
            if wanted is not None:
                await self._fetch_of(namespace, [wanted])
        return line

    async def count(self, namespace: str) -> int:
        """As `storage.tiers.rows.Rows.count`."""
        count = await self._unsegmented.count(namespace) + self._sums.of(namespace).count
        found = await self.cold_head(namespace)
        if found is not None:
            own = (await self._lists.checkpoints(found.segment)).values()
            count += found.head.earlier_count + sum(each.namespace == namespace for each in own)
        return count

    async def cold_head(self, namespace: str) -> ColdHead | None:
        """The head of a cold namespace; None: it is none."""
        return await self._lists.cold_head(namespace, self._sums, self._segments)

    # --- pieces and writes -----------------------------------------------------------------------------------------

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""
        found = await self._here.pieces(piece_ids)
        missing = {*piece_ids} - {row.piece_id for row in found}
        for source in self._fetched.pieces.values():
            if missing:
                found += await source.pieces([*missing])
                missing -= {row.piece_id for row in found}
        if missing:
            needed: dict[UUID, SegmentRow] = {}
            for segment in self._segments.all:
                if segment.blob_id not in self._fetched.segments:
                    continue
                for each in self._missing(self._segments.of_volume(segment)):
                    if each.blob_id in self._fetched.pieces:
                        continue
                    if not missing.isdisjoint(await self._lists.piece_ids(each)):
                        needed[each.blob_id] = each
            if needed:
                raise SegmentsNeeded([*needed.values()], pieces_only=True)
        return found

    async def writes_of(
        self, namespace: str, checkpoint_ids: Sequence[str], task_id: str | None = None
    ) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_of`."""
        await self._fetch_of(namespace, checkpoint_ids)
        return await self._here.writes_of(namespace, checkpoint_ids, task_id)

    async def members(self) -> list[MemberRow]:
        """As `storage.tiers.rows.Rows.members`."""
        return await self._unsegmented.members()

    @property
    def cold_writes(self) -> LiveSet:
        """As `storage.tiers.rows.Rows.cold_writes`."""
        return self._sums.writes


async def cold_heads(lists: Lists, segments: Segments, sums: ColdSums) -> list[HeadRow]:
    """The heads of all cold namespaces, for a reader of the whole thread.

    Raises:
        IntegrityFailure: What is said of segments does not authenticate.
    """
    found: list[HeadRow] = []
    if sums.namespaces.count:
        for segment in segments.all:
            found += [ColdHead(segment, each).row for each in (await lists.heads(segment)).values()]
    return found


class ColdCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is in a segment; ``made`` None: the segment's list does not say how it was made."""

    segment: SegmentRow
    listed: ListedCheckpoint
    made: MadeCheckpoint | None


async def find_cold(
    transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums, key: tuple[str, str]
) -> ColdCheckpoint | None:
    """What the lists say of a checkpoint, of this namespace and id; None: it is in no segment.

    Asked under the lock, before it is written to, of a namespace that has checkpoints in segments.

    Raises:
        IntegrityFailure: What is said of segments does not authenticate.
    """
    segment = (await open_segments(transaction, sealer, thread_id, sums)).around(key[1])
    if segment is None:
        return None
    found = await open_list(transaction, sealer, segment)
    for at, each in enumerate(found.checkpoints):
        if (each.namespace, each.checkpoint_id) == key:
            return ColdCheckpoint(segment, each, None if found.made is None else found.made[at])
    return None


async def refuse_cold(
    transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums, key: tuple[str, str]
) -> None:
    """Return if a checkpoint, of this namespace and id, is in no segment: under the lock, before one stands on it.

    Raises:
        ThreadArchived: It is in the segment that is named, which is to be brought back first.
        IntegrityFailure: What is said of segments does not authenticate.
    """
    if not sums.of(key[0]).count:
        return  # what is cold as a whole has no head, which its writer found out before
    found = await find_cold(transaction, sealer, thread_id, sums, key)
    if found is not None:
        raise ThreadArchived(thread_id, segment=found.segment.segment)


async def open_segments(transaction: Transaction, sealer: Sealer, thread_id: str, sums: ColdSums) -> Segments:
    """A thread's segments, as its cold sums say.

    Raises:
        IntegrityFailure: They are others.
    """
    return Segments(sealer, sums, await transaction.fetch_all(sql.SEGMENTS, thread_id=thread_id))
