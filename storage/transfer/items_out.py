"""Items on their way out: a subject's paths one after another, each as it was at one moment.

A path is read into a spool in one snapshot, a few rows at a time, and its rows are compared with its seal there; so no
connection waits for whoever takes the records, and a path takes memory for the order of its items alone. What does not
agree with its seal, or does not open, is named and left out, and hides nothing else: vectors without their item, an
item by itself, a path whole. That vectors are missing is named, and those that are there go. What is over stays here.
What is under another client's share than the one that was sent is counted.
"""

from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, NotFound
from storage.format.chain import LiveSet
from storage.format.export import (
    FloorRecord,
    ItemRecord,
    PathEnding,
    PathRecord,
    PathsLeftOut,
    Record,
    RunningDigest,
    VectorsRecord,
    encode,
)
from storage.format.items.item import ID_BYTES, open_item, open_labels, share_check
from storage.format.items.seals import PathSeal, ScopeSeal, item_mac, path_mac
from storage.format.items.vectors import OpenedVectors, open_vectors, pack_vectors, vectors_mac
from storage.items.model import Labels
from storage.items.paths import check_scope
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.items import items as sql
from storage.statements.items import paths as paths_sql
from storage.statements.items import verifying as verifying_sql
from storage.statements.items.vectors import VectorsRow
from storage.statements.items.verifying import WholePathRow
from storage.transfer.items_rows import each_item, each_vectors
from storage.transfer.spool import Spool

_PATH_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Listed:
    """A subject's paths in one snapshot.

    Attributes:
        open: The names of those that the share opens, and of those that need none.
        closed: How many are under another share.
        is_whole: Whether they are those that the subject's seal counts.
    """

    open: list[bytes]
    closed: int
    is_whole: bool


@dataclass(slots=True)
class _SpooledPath:
    """A path at one moment. Its items are as they are stored, sealed; those that are over are not among them.

    Attributes:
        sealer: What opens its items.
        row: Its own row.
        labels: Its labels.
        expected: What its seal counts.
        found: What is there.
        items: Its items.
        vectors: The rows of vectors of its items, and of those that are over.
    """

    sealer: Sealer
    row: WholePathRow
    labels: Labels
    expected: PathSeal
    found: PathSeal = field(default_factory=PathSeal)
    items: Spool = field(default_factory=Spool)
    vectors: Spool = field(default_factory=Spool)
    _revisions: "array[int]" = field(default_factory=lambda: array("q"))
    _places: "array[int]" = field(default_factory=lambda: array("q"))
    _vectors_keys: bytearray = field(default_factory=bytearray)
    _vectors_places: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, item: sql.ItemRow) -> None:
        """Add an item, whatever its revision is."""
        self._revisions.append(item.revision)
        self._places.append(self.items.add(*msgspec.structs.astuple(item)))

    def by_revision(self) -> list[int]:
        """Where the items are in the spool, in the order of their revisions."""
        numbers = sorted(range(len(self._revisions)), key=self._revisions.__getitem__)
        return [self._places[number] for number in numbers]

    def add_vectors(self, row: VectorsRow) -> None:
        """Add a row of vectors; those of a path come in the order of their keys."""
        if len(row.key_id) == ID_BYTES:  # otherwise it is no item's
            self._vectors_keys += row.key_id
            self._vectors_places.append(self.vectors.add(*msgspec.structs.astuple(row)))

    def vectors_of(self, key_id: bytes) -> Iterator[VectorsRow]:
        """The rows of vectors of an item."""
        numbers = range(len(self._vectors_places))
        for number in numbers[bisect_left(numbers, key_id, key=self._vectors_key) :]:
            if self._vectors_key(number) != key_id:
                return
            yield VectorsRow(*self.vectors.get(self._vectors_places[number]))

    def _vectors_key(self, number: int) -> bytes:
        return bytes(self._vectors_keys[number * ID_BYTES : (number + 1) * ID_BYTES])

    def close(self) -> None:
        """Let everything go."""
        self.items.close()
        self.vectors.close()


@dataclass(slots=True)
class _Left:
    """What of a subject does not travel.

    Attributes:
        damaged: The names of what is left out.
        sequence: The greatest of a path in which everything is over.
    """

    damaged: list[str]
    sequence: int = 0


@dataclass(slots=True)
class _Emission:
    """A path on its way out.

    Attributes:
        spooled: The path.
        left: Gets the names of what is damaged.
        name: That of the path, as they have it.
        items: How many came.
        damaged: How many did not.
        vectors: How many rows of vectors came.
        vectors_damaged: How many did not.
    """

    spooled: _SpooledPath
    left: _Left
    name: str
    items: int = 0
    damaged: int = 0
    vectors: int = 0
    vectors_damaged: int = 0
    digest: RunningDigest = field(default_factory=RunningDigest)
    pauses: Pauses = field(default_factory=Pauses)

    def out(self, encoded: bytes) -> bytes:
        """A record of the path, encoded."""
        self.digest.add(encoded)
        return encoded

    def ending(self) -> PathEnding:
        """Its last record."""
        return PathEnding(self.items, self.damaged, self.vectors, self.vectors_damaged, self.digest.digest())


class ItemsOut:
    """The way out of items."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def of_subject(
        self, scope: Scope, share: ClientShare | None, damaged: list[str]
    ) -> AsyncGenerator[Record | bytes, None]:
        """The records of a subject's paths, those in paths encoded; ``damaged`` gets the names of what is left out.

        Names are those in rows: what clients call their paths and keys is for nobody but them.
        """
        try:
            listed = await self._listed(scope, share)
        except (NotFound, KeyDestroyed):  # a subject without keys has no items
            return
        except IntegrityFailure:
            damaged.append(_named(scope))
            yield PathsLeftOut(scope.subject_id, "damaged", 0, None)
            return
        if listed.closed:
            yield PathsLeftOut(scope.subject_id, "client-share", listed.closed, None)
        if not listed.is_whole:
            damaged.append(_named(scope))
            yield PathsLeftOut(scope.subject_id, "damaged", 0, None)
        left = _Left(damaged)
        for path_id in listed.open:
            async with aclosing(self._path(scope, share, path_id, left)) as records:
                async for each in records:
                    yield each
        # Last, so that it counts what was removed meanwhile, and raises nothing that came.
        if floor := max(left.sequence, await self._floor(scope)):
            yield FloorRecord(scope.subject_id, floor)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _listed(self, scope: Scope, share: ClientShare | None) -> _Listed:
        async def attempt(sealer: Sealer) -> _Listed:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                now = await transaction.fetch_only(paths_sql.SCOPE)
                wanted = {None, share_check(sealer)}
                found, closed, counted, after = list[bytes](), 0, LiveSet(), b""
                while True:
                    rows = await transaction.fetch_all(paths_sql.PATHS_AFTER, path_id=after, page_rows=_PATH_ROWS)
                    for row in rows:
                        after = row.path_id
                        counted = counted.add(path_mac(sealer, row.path_id, row.share_check))
                        if row.share_check in wanted:
                            found.append(row.path_id)
                        else:
                            closed += 1
                    if len(rows) < _PATH_ROWS:
                        break
            try:
                check_scope(sealer, now.sequence, now.seal, counted)
            except IntegrityFailure:
                self._access.found_damage()
                return _Listed(found, closed, is_whole=False)
            return _Listed(found, closed, is_whole=True)

        return await self._access.with_existing_keys(scope, attempt, NotFound(), share)

    async def _floor(self, scope: Scope) -> int:
        """The subject's floor; 0 if it has none, or none that opens, which the list of its paths says then."""

        async def attempt(sealer: Sealer) -> int:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                now = await transaction.fetch_only(paths_sql.SCOPE)
                if now.seal is None or now.sequence is None:
                    return 0
                return ScopeSeal.open(sealer, now.sequence, now.seal).floor

        try:
            return await self._access.with_existing_keys(scope, attempt, NotFound())
        except (NotFound, KeyDestroyed, IntegrityFailure):
            return 0

    async def _spooled(self, scope: Scope, share: ClientShare | None, path_id: bytes) -> _SpooledPath:
        """Read a path; the caller closes it.

        Raises:
            NotFound: It is gone by now.
            IntegrityFailure: Its seal or its labels do not open.
        """

        async def attempt(sealer: Sealer) -> _SpooledPath:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                row = await transaction.fetch_one(verifying_sql.PATH, path_id=path_id)
                if row is None:
                    raise NotFound
                own = sealer if row.share_check is not None else sealer.without_share
                seal = PathSeal.open(own, row.path_id, row.share_check, row.sequence, row.seal)
                spooled = _SpooledPath(own, row, open_labels(own, row.path_id, row.labels), seal)
                try:
                    spooled.found = await _read(transaction, spooled)
                except BaseException:
                    spooled.close()
                    raise
                return spooled

        return await self._access.with_existing_keys(scope, attempt, NotFound(), share)

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _path(
        self, scope: Scope, share: ClientShare | None, path_id: bytes, left: _Left
    ) -> AsyncGenerator[Record | bytes, None]:
        """A path, or that it is left out; nothing of one that is gone by now, or in which everything is over."""
        name = _named(scope, path_id)
        try:
            spooled = await self._spooled(scope, share, path_id)
        except IntegrityFailure:
            left.damaged.append(name)
            yield PathsLeftOut(scope.subject_id, "damaged", 1, None)
            return
        except (NotFound, KeyDestroyed):
            return
        try:
            if spooled.found.items != spooled.expected.items:
                self._access.found_damage()
                left.damaged.append(name)
                yield PathsLeftOut(scope.subject_id, "damaged", 1, [*spooled.labels])
            elif spooled.items.count:
                async for each in self._items(scope, _Emission(spooled, left, name)):
                    yield each
            else:
                left.sequence = max(left.sequence, spooled.row.sequence)
        finally:
            spooled.close()

    async def _items(self, scope: Scope, path: _Emission) -> AsyncGenerator[Record | bytes, None]:
        spooled, row = path.spooled, path.spooled.row
        beginning = PathRecord(scope.subject_id, [*spooled.labels], row.share_check is not None, row.sequence)
        yield path.out(encode(beginning))
        for place in spooled.by_revision():
            item = sql.ItemRow(*spooled.items.get(place))
            await path.pauses.after(len(item.envelope))
            try:
                record = open_item(spooled.sealer, item.columns, item.envelope, item.member)
            except IntegrityFailure:
                self._access.found_damage()
                path.left.damaged.append(f"{path.name}/{item.key_id.hex()}")
                path.damaged += 1
                continue
            path.items += 1
            yield path.out(
                encode(
                    ItemRecord(
                        record.key, record.encoding, record.data, item.revision, item.ttl_seconds, item.created_at,
                        item.updated_at, item.expires_at,
                    )
                )
            )  # fmt: skip
            async for encoded in self._vectors(path, item):
                yield encoded
        self._miss_vectors(path)
        yield path.ending()

    def _miss_vectors(self, path: _Emission) -> None:
        """Name vectors that are missing, or came from elsewhere, unless it is one that did not open."""
        expected, found = path.spooled.expected.vectors, path.spooled.found.vectors
        apart = abs(expected.count - found.count)
        if apart or (expected != found and not path.vectors_damaged):
            self._access.found_damage()
            path.left.damaged.append(f"{path.name}/vectors")
            path.vectors_damaged += max(1, apart)

    async def _vectors(self, path: _Emission, item: sql.ItemRow) -> AsyncIterator[bytes]:
        """An item's vectors in the order of their models, whose names only the opened rows know."""
        with Spool() as opened:
            order: list[tuple[str, int, int]] = []
            for row in path.spooled.vectors_of(item.key_id):
                await path.pauses.after(len(row.envelope))
                try:
                    model, vectors = _opened(path.spooled.sealer, row, item)
                except IntegrityFailure:
                    self._access.found_damage()
                    path.left.damaged.append(f"{path.name}/{row.key_id.hex()}/{row.model_id.hex()}")
                    path.vectors_damaged += 1
                    continue
                dimensions = len(vectors[0].codes)
                place = opened.add(encode(VectorsRecord(model, dimensions, pack_vectors(vectors))))
                order.append((model, dimensions, place))
            path.vectors += len(order)
            for *_, place in sorted(order):
                yield path.out(opened.get(place)[0])


def _opened(sealer: Sealer, row: VectorsRow, item: sql.ItemRow) -> OpenedVectors:
    if row.revision != item.revision:
        raise IntegrityFailure  # those of another state of the item were taken away by its put
    return open_vectors(sealer, row.columns, row.envelope, row.member)


async def _read(transaction: Transaction, spooled: _SpooledPath) -> PathSeal:
    """Read what is in a path; returns what a seal counts of it, with those items that are over."""
    path_id, items, vectors = spooled.row.path_id, LiveSet(), LiveSet()
    async for item in each_item(transaction, path_id):
        items = items.add(item_mac(spooled.sealer, path_id, item.key_id, item.member))
        if not item.over:
            spooled.add(item)
    async for row in each_vectors(transaction, path_id):
        vectors = vectors.add(vectors_mac(spooled.sealer, row, row.member))
        spooled.add_vectors(row)
    return PathSeal(items, vectors)


def _named(scope: Scope, *names: bytes) -> str:
    """Where damage is, by its names in rows."""
    return "/".join([scope.subject_id, "items", *(each.hex() for each in names)])
