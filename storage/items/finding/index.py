"""Opened vectors of subjects, in memory: what searches by meaning scan.

Vectors are plaintext. They are opened into memory that is bounded for the process, the last used of all subjects, and
dropped with the keys they were opened under. An index knows how many changes each path had had when its vectors were
read; a search brings along how many there were in its own snapshot, and only what came since is read. Whether an item
is still there is not known here: its own row says so.

One search at a time uses an index, and of those that read much of one there is one at a time in the whole process.
"""

import asyncio
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from crypto import Sealer
from storage.concurrency.turns import Pauses
from storage.errors import ItemIndexTooLarge
from storage.format.items.vectors import open_vectors, sealed_bytes
from storage.items.model import ITEM_VECTORS_MAX
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import vectors as sql

# Of all subjects, and of one subject by one model.
INDEXES_BYTES_MAX: Final = 256 * 1024 * 1024
ITEM_INDEX_BYTES_MAX: Final = 128 * 1024 * 1024
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
# How long an index is kept that nobody uses.
INDEX_SECONDS: Final = 300.0
# What a vector takes in memory besides its codes, where every item has one.
VECTOR_BYTES: Final = 256
# What a path and an index take without a vector.
_PATH_BYTES: Final = 512
_INDEX_BYTES: Final = 1024
_DEAD_SHARE: Final = 0.25
_DEAD_MIN: Final = 64


class Entry(msgspec.Struct, frozen=True):
    """Whose some vectors are: an item's at one revision. ``sequence`` is that of the path when they were put."""

    key_id: bytes
    revision: int
    sequence: int
    count: int


class PathVectors:
    """The vectors of one path by one model.

    Attributes:
        path_id: The path's name in rows.
        sequence: How many changes the path had had when they were read.
        codes: Those of all vectors, one after the other.
        scales: The scale of each.
        lengths: The length of each.
        entries: Whose each is.
    """

    __slots__ = ("_alive", "_newest", "codes", "entries", "lengths", "path_id", "scales", "sequence")

    def __init__(self, path_id: bytes) -> None:
        self.path_id = path_id
        self.sequence = 0
        self.codes = bytearray()
        self.scales = array("f")
        self.lengths = array("f")
        self.entries: list[Entry] = []
        self._newest: dict[bytes, Entry] = {}  # by key
        self._alive = 0  # vectors of these

    @property
    def size_bytes(self) -> int:
        """About how much memory they take."""
        return _PATH_BYTES + len(self.codes) + VECTOR_BYTES * len(self.entries)

    def is_newest(self, entry: Entry) -> bool:
        """Whether nothing took the place of the vectors that an entry is of."""
        return self._newest.get(entry.key_id) is entry

    def add(self, sealer: Sealer, row: sql.VectorsRow) -> int:
        """Add an item's vectors, in the place of those it had; returns how many bytes were opened.

        Raises:
            IntegrityFailure: They are not as they were put.
        """
        _, vectors = open_vectors(sealer, row.columns, row.envelope, row.member)
        entry = Entry(row.key_id, row.revision, row.sequence, len(vectors))
        for vector in vectors:
            self.codes += vector.codes
            self.scales.append(vector.scale)
            self.lengths.append(vector.length)
            self.entries.append(entry)
        self.forget(self._newest.get(row.key_id, entry))
        self._newest[row.key_id] = entry
        self._alive += len(vectors)
        return len(row.envelope)

    def forget(self, entry: Entry) -> None:
        """Say that the item of an entry is gone."""
        if self.is_newest(entry):
            del self._newest[entry.key_id]
            self._alive -= entry.count

    def is_worn(self) -> bool:
        """Whether so many vectors are of what is not there any more, that all are better read anew."""
        dead = len(self.entries) - self._alive
        return dead > max(_DEAD_MIN, _DEAD_SHARE * len(self.entries))


class Index:
    """What a subject has by one model, as far as its searches asked for it.

    Attributes:
        keys_hash: What it was opened under.
        dimensions: How many a vector has.
        paths: The vectors of each path.
        lock: Held by the search that uses it.
        used_at: When it was used last.
        size_bytes: About how much memory it takes.
        counted_bytes: As much of that as its holder has counted.
    """

    def __init__(self, keys_hash: int, dimensions: int, cold: asyncio.Semaphore, bytes_max: int) -> None:
        self.keys_hash = keys_hash
        self._cold = cold
        self._bytes_max = bytes_max
        self.dimensions = dimensions
        self.paths: dict[bytes, PathVectors] = {}
        self.lock = asyncio.Lock()
        self.used_at = float("inf")  # before its first use
        self.size_bytes = _INDEX_BYTES
        self.counted_bytes = 0

    async def bring_up(
        self, transaction: Transaction, sealer: Sealer, model_id: bytes, sequences: Mapping[bytes, int]
    ) -> None:
        """Read what came since; ``sequences`` has the paths that are to be searched, with how many changes each had.

        Raises:
            IntegrityFailure: A row is not as it was put.
            ItemIndexTooLarge: The subject has more vectors by this model than may be opened.
        """
        since: dict[bytes, int] = {}
        for path_id, sequence in sequences.items():
            known = self.paths.get(path_id)
            if known is None or known.is_worn():
                self.size_bytes -= 0 if known is None else known.size_bytes
                known = self.paths[path_id] = PathVectors(path_id)
                self.size_bytes += known.size_bytes
            if known.sequence < sequence:
                since[path_id] = known.sequence
        if since:
            await self._read(transaction, sealer, model_id, since)
            for path_id in since:
                self.paths[path_id].sequence = sequences[path_id]

    async def _read(
        self, transaction: Transaction, sealer: Sealer, model_id: bytes, since: Mapping[bytes, int]
    ) -> None:
        """Read what came since, page by page; what is more than one waits for others that read as much."""
        pages = _Pages(transaction, model_id, since, sealed_bytes(self.dimensions))
        await self._take(sealer, await pages.next())
        if not pages.ended:
            async with self._cold:
                while not pages.ended:
                    await self._take(sealer, await pages.next())

    async def _take(self, sealer: Sealer, rows: Sequence[sql.VectorsRow]) -> None:
        pauses = Pauses()
        for row in rows:
            vectors = self.paths[row.path_id]
            self.size_bytes -= vectors.size_bytes
            await pauses.after(vectors.add(sealer, row))
            self.size_bytes += vectors.size_bytes
        if self.size_bytes > self._bytes_max:
            raise ItemIndexTooLarge(self._bytes_max)


class _Pages:
    """The rows of some paths that came since, some at a time: of each path in the order in which they were put.

    At once there are rows of so many paths that one of each may have as many vectors as an item may have.
    """

    def __init__(
        self, transaction: Transaction, model_id: bytes, since: Mapping[bytes, int], vector_bytes: int
    ) -> None:
        self._transaction = transaction
        self._model_id = model_id
        self._since = dict(since)  # of those that are not read to their end
        self._page_rows = max(1, PAGE_BYTES_MAX // vector_bytes)
        self._paths_at_once = max(1, PAGE_BYTES_MAX // (ITEM_VECTORS_MAX * vector_bytes))

    @property
    def ended(self) -> bool:
        """Whether there are no more."""
        return not self._since

    async def next(self) -> list[sql.VectorsRow]:
        """The next rows."""
        part = dict(islice(self._since.items(), self._paths_at_once))
        path_rows, path_bytes = self._page_rows // len(part), PAGE_BYTES_MAX // len(part)
        rows = await self._transaction.fetch_all(
            sql.CHANGED,
            path_ids=[*part],
            sequences=[*part.values()],
            model_id=self._model_id,
            path_rows=path_rows,
            path_bytes=path_bytes,
        )
        rows.sort(key=attrgetter("path_id", "sequence"))
        counts = Counter(row.path_id for row in rows)
        sizes: Counter[bytes] = Counter()
        for row in rows:
            sizes[row.path_id] += len(row.envelope)
        for path_id in part:
            if counts[path_id] < path_rows and sizes[path_id] < path_bytes:
                del self._since[path_id]
        self._since |= {row.path_id: row.sequence for row in rows if row.path_id in self._since}
        return rows


Key = tuple[Scope, bytes]


class Indexes:
    """The indexes of all subjects that were used last.

    What is under a client's share is kept for one search only, and everything else for as long as it is used: nobody
    may come to say that its keys are gone.
    """

    def __init__(
        self,
        bytes_max: int = INDEXES_BYTES_MAX,
        index_bytes_max: int = ITEM_INDEX_BYTES_MAX,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_max = bytes_max
        self._index_bytes_max = index_bytes_max
        self._monotonic = monotonic
        self._indexes: OrderedDict[Key, Index] = OrderedDict()  # the last used is the last
        self._cold = asyncio.Semaphore(1)
        self.size_bytes = 0  # about how much memory all of them take

    @asynccontextmanager
    async def using(self, scope: Scope, sealer: Sealer, model_id: bytes, dimensions: int) -> AsyncIterator[Index]:
        """The index of a subject by a model, for one search at a time; what it grows by is made room for afterwards."""
        if sealer.shared:
            yield self._new(sealer, dimensions)
            return
        key = (scope, model_id)
        while True:
            index = self._indexes.get(key)
            if index is None or index.keys_hash != sealer.keys_hash:
                self._drop(key)
                index = self._indexes[key] = self._new(sealer, dimensions)
            async with index.lock:
                if self._indexes.get(key) is not index:
                    continue  # whoever had it before failed, and read it in part
                try:
                    yield index
                except BaseException:
                    if self._indexes.get(key) is index:
                        self._drop(key)
                    raise
            index.used_at = self._monotonic()
            if self._indexes.get(key) is index:
                self.size_bytes += index.size_bytes - index.counted_bytes
                index.counted_bytes = index.size_bytes
                self._indexes.move_to_end(key)
            self._make_room()
            return

    def _new(self, sealer: Sealer, dimensions: int) -> Index:
        return Index(sealer.keys_hash, dimensions, self._cold, self._index_bytes_max)

    def _drop(self, key: Key) -> None:
        index = self._indexes.pop(key, None)
        if index is not None:
            self.size_bytes -= index.counted_bytes

    def forget(self, scope: Scope) -> None:
        """Forget what a subject has, by whichever model."""
        for key in [key for key in self._indexes if key[0] == scope]:
            self._drop(key)

    def forget_old(self) -> None:
        """Forget what was not used for a while."""
        oldest = self._monotonic() - INDEX_SECONDS
        for key in [key for key, index in self._indexes.items() if index.used_at <= oldest and not index.lock.locked()]:
            self._drop(key)

    def _make_room(self) -> None:
        for key, index in list(self._indexes.items()) if self.size_bytes > self._bytes_max else ():
            if not index.lock.locked():
                self._drop(key)
            if self.size_bytes <= self._bytes_max:
                return
