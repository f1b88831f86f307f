"""Searching items by meaning: those whose vectors are nearest to one, with a score.

Every vector of the paths that are searched is compared: nothing is missed. Slices of vectors are compared beside the
event loop, by a kernel that lets go of the interpreter's lock; then the best are looked up in the order of their scores
until there are as many as wanted. Where the tenant has its vectors in clear (`storage.clear_vectors`), the database
compares them, and the sealed rows of those that are found say their scores. An item's row is the only authority: what
is not there any more, is over or is at another revision than its vectors is no hit, and the search goes on behind it.

An item that is put while a search of it is under way may be missing from that search: others that began later may have
opened more than its snapshot has.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import merge, nlargest
from importlib import import_module
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, cast

from storage.clear_vectors.rows import Nearest
from storage.concurrency.turns import PAUSE_ROW_BYTES, Pauses
from storage.errors import IntegrityFailure
from storage.format.items.vectors import Vector, model_id, open_vectors, quantized
from storage.items import matching
from storage.items.finding.index import Entry, Index, Indexes, PathVectors
from storage.items.finding.searching import Budget, opened_if_wanted
from storage.items.model import Item, ItemSearch, Labels, Metric, Near
from storage.items.reading import Reading
from storage.model import Page
from storage.scope import Scope
from storage.statements.items import items as items_sql
from storage.statements.items import vectors as sql

# What is compared in one slice: by the kernel its codes, then on the event loop what comes of each vector.
SLICE_BYTES: Final = 16 * 1024 * 1024
SLICE_VECTORS: Final = 8192
# Fewer codes are compared on the event loop, too.
BESIDE_BYTES_MIN: Final = 256 * 1024
_LOOKED_UP_AT_ONCE: Final = 16  # items of 256 KiB, and vectors that an item may have
_RANKED_MIN: Final = 64
_RANKED_FACTOR: Final = 4
_SCORE_BYTES: Final = 8

Score = Callable[[float, float, float], float]


async def nearest(reading: Reading, scope: Scope, indexes: Indexes, budget: Budget, wanted: ItemSearch) -> Page[Item]:
    """The items whose vectors are nearest to that of a search, the best first.

    Raises:
        IntegrityFailure: Vectors or an item are not as they were put.
        ItemIndexTooLarge: The subject has more vectors by this model than are searched.
    """
    assert wanted.near is not None  # noqa: S101  for the type checker: the caller looked
    labels = await reading.paths_like(lambda each: matching.begins_with(each, wanted.prefix))
    if not labels:
        return Page([], None)
    near = wanted.near
    named = model_id(reading.sealer, near.model, len(near.values))
    rows = await reading.transaction.fetch_all(sql.SEQUENCES, path_ids=list(labels))
    async with indexes.using(scope, reading.sealer, named, len(near.values)) as index:
        sequences = {row.path_id: row.sequence for row in rows}
        await index.bring_up(reading.transaction, reading.sealer, named, sequences)
        ranking = await _Compared.of(index, sequences, list(labels), near)
        return await _Search(reading, budget, wanted, labels, named, ranking).run()


async def nearest_in_clear(reading: Reading, schema: str, budget: Budget, wanted: ItemSearch) -> Page[Item]:
    """The same of a tenant whose vectors are all in clear, too; ``schema`` is where the extension is.

    Raises:
        IntegrityFailure: Vectors or an item are not as they were put.
    """
    assert wanted.near is not None  # noqa: S101  for the type checker: the caller looked
    labels = await reading.paths_like(lambda each: matching.begins_with(each, wanted.prefix))
    if not labels:
        return Page([], None)
    near = wanted.near
    named = model_id(reading.sealer, near.model, len(near.values))
    found = Nearest(reading.transaction, schema, named, [*labels], near.values, near.metric)
    return await _Search(reading, budget, wanted, labels, named, _InClear(found)).run()


class _Ranked(NamedTuple):
    """A vector that is near: of which path and entry it is."""

    path_id: bytes
    entry: Entry

    @property
    def place(self) -> tuple[bytes, bytes]:
        """Which item's it is."""
        return self.path_id, self.entry.key_id


class _Ranking(Protocol):
    """All vectors that are searched, of which the best are taken as far as they are needed."""

    async def best(self, count: int) -> list[_Ranked]:
        """The best so many; fewer are all that there are."""

    def is_newest(self, ranked: _Ranked) -> bool:
        """Whether nothing took the place of the vectors that one is of."""

    def forget(self, ranked: _Ranked) -> None:
        """Say that the item of one is gone."""


class _InClear:
    """Those that the database compares."""

    def __init__(self, nearest_in_clear: Nearest) -> None:
        self._nearest = nearest_in_clear

    async def best(self, count: int) -> list[_Ranked]:
        """As `_Ranking.best`."""
        hits = await self._nearest.best(count)
        return [_Ranked(each.path_id, Entry(each.key_id, each.revision, each.sequence, 1)) for each in hits]

    def is_newest(self, _ranked: _Ranked) -> bool:
        """As `_Ranking.is_newest`."""
        return True

    def forget(self, _ranked: _Ranked) -> None:
        """As `_Ranking.forget`."""


class _Compared:
    """The scores of all vectors that are searched, from which the best are taken as far as they are needed."""

    def __init__(
        self, index: Index, sequences: Mapping[bytes, int], parts: list[tuple[PathVectors, int, list[float]]]
    ) -> None:
        self._of = index.paths
        self._sequences = sequences
        self._parts = parts

    def is_newest(self, ranked: _Ranked) -> bool:
        """As `_Ranking.is_newest`."""
        return self._of[ranked.path_id].is_newest(ranked.entry)

    def forget(self, ranked: _Ranked) -> None:
        """As `_Ranking.forget`."""
        if ranked.entry.sequence <= self._sequences[ranked.path_id]:  # it was there, and is not any more
            self._of[ranked.path_id].forget(ranked.entry)

    @classmethod
    async def of(
        cls, index: Index, sequences: Mapping[bytes, int], path_ids: Sequence[bytes], near: Near
    ) -> "_Compared":
        """Compare the vectors of some paths."""
        await _load_kernel()
        query = quantized(near.values)
        rows = min(SLICE_VECTORS, SLICE_BYTES // index.dimensions)
        pauses = Pauses()
        parts = []
        for path_id in path_ids:
            vectors = index.paths.get(path_id)
            for start in range(0, 0 if vectors is None else len(vectors.entries), rows):
                assert vectors is not None  # noqa: S101  for the type checker: there is none without it
                dots = await _dots(vectors.codes, query.codes, start, min(start + rows, len(vectors.entries)))
                parts.append((vectors, start, _scores(vectors, start, dots, query, near.metric)))
                await pauses.after(PAUSE_ROW_BYTES + _SCORE_BYTES * len(dots))
        return cls(index, sequences, parts)

    async def best(self, count: int) -> list[_Ranked]:
        """As `_Ranking.best`."""
        pauses = Pauses()
        parts: list[list[tuple[float, int, int]]] = []
        for number, (_, _, scores) in enumerate(self._parts):
            best = nlargest(count, range(len(scores)), key=scores.__getitem__)
            parts.append([(scores[at], number, at) for at in best])
            await pauses.after(PAUSE_ROW_BYTES + _SCORE_BYTES * len(scores))
        found: list[_Ranked] = []
        for _, number, at in islice(merge(*parts, key=itemgetter(0), reverse=True), count):
            vectors, start, _ = self._parts[number]
            found.append(_Ranked(vectors.path_id, vectors.entries[start + at]))
            await pauses.after(_SCORE_BYTES)
        return found


async def _dots(codes: bytearray, query: bytes, start: int, end: int) -> list[float]:
    """The dot products of a query's codes and those of the vectors from ``start`` to ``end``."""
    size = len(query)
    if (end - start) * size < BESIDE_BYTES_MIN:
        return _compared(codes, query, start, end)
    return await asyncio.to_thread(_compared, codes, query, start, end)


async def _load_kernel() -> None:
    """Load the kernel beside the loop: 45 MB, which no process needs before its first search."""
    if "numkong" not in sys.modules:
        await asyncio.to_thread(import_module, "numkong")


def _compared(codes: bytearray, query: bytes, start: int, end: int) -> list[float]:
    import numkong  # noqa: PLC0415  as `_load_kernel` says

    size = len(query)
    with memoryview(codes) as whole, whole[start * size : end * size] as part:
        vectors = part.cast("b", (end - start, size))
        dots = numkong.cdist(memoryview(query).cast("b", (1, size)), vectors, "dot")
        products: list[float] = memoryview(cast(bytes, dots)).cast("B").cast("d").tolist()  # type: ignore[assignment]  # the driver has no types
        del dots
        vectors.release()
    return products


def _scores(vectors: PathVectors, start: int, dots: list[float], query: Vector, metric: Metric) -> list[float]:
    score = _METRICS[metric]
    end = start + len(dots)
    return [
        score(dot * query.scale * scale, query.length, length)
        for dot, scale, length in zip(dots, vectors.scales[start:end], vectors.lengths[start:end], strict=True)
    ]


def _cosine(dot: float, one: float, other: float) -> float:
    return dot / (one * other) if one and other else 0.0


def _dot(dot: float, _one: float, _other: float) -> float:
    return dot


def _l2(dot: float, one: float, other: float) -> float:
    return -math.sqrt(max(one * one + other * other - 2 * dot, 0.0))


_METRICS: Final[dict[Metric, Score]] = {"cosine": _cosine, "dot": _dot, "l2": _l2}


class _Search:
    """One search, after everything was compared."""

    def __init__(
        self,
        reading: Reading,
        budget: Budget,
        wanted: ItemSearch,
        labels: dict[bytes, Labels],
        named: bytes,
        ranking: _Ranking,
    ) -> None:
        self._reading = reading
        self._budget = budget
        self._wanted = wanted
        self._labels = labels
        self._model_id = named
        self._ranking = ranking
        self._offset = wanted.offset
        self._seen: set[tuple[bytes, bytes]] = set()
        self._found: list[Item] = []

    async def run(self) -> Page[Item]:
        """Look up the best until there are as many as wanted."""
        at = 0 if self._wanted.after is None else int(self._wanted.after[0])
        if self._wanted.after is not None:
            self._offset = int(self._wanted.after[1])
        count = max(_RANKED_MIN, at + _RANKED_FACTOR * (self._offset + self._wanted.limit))
        while True:
            best = await self._ranking.best(count)
            # An item has the score of its best vector; of one that was seen on an earlier page nothing comes again.
            for each in best[:at]:
                self._seen.add(each.place)
                await self._reading.pauses.after(_SCORE_BYTES)
            while at < len(best):
                part = best[at : at + _LOOKED_UP_AT_ONCE]
                if self._budget.rows < len(part) or self._budget.bytes <= 0:
                    return self._page(at)
                at += await self._look_up(part)
                if len(self._found) == self._wanted.limit:
                    return self._page(at if at < len(best) or len(best) == count else None)
            if len(best) < count:
                return self._page(None)
            count *= _RANKED_FACTOR

    def _page(self, at: int | None) -> Page[Item]:
        """What was found, the best first; and where the next page begins."""
        self._found.sort(key=lambda each: each.score or 0.0, reverse=True)
        return Page(self._found, None if at is None else (str(at), str(self._offset)))

    async def _look_up(self, part: Sequence[_Ranked]) -> int:
        """Look at some of the best in their order; returns how many of them were dealt with."""
        rows = await self._reading.rows([*dict.fromkeys(each.place for each in part if each.place not in self._seen)])
        self._budget.rows -= len(rows)
        hits: dict[tuple[bytes, bytes], Item] = {}
        dealt_with = 0
        for ranked in part:
            dealt_with += 1
            item = await self._hit(ranked, rows)
            if item is not None:
                hits[ranked.place] = item
            if len(self._found) + len(hits) == self._wanted.limit or self._budget.bytes <= 0:
                break
        if hits:
            await self._score(hits)
        return dealt_with

    async def _hit(self, ranked: _Ranked, rows: Mapping[tuple[bytes, bytes], items_sql.ItemRow]) -> Item | None:
        """The item of a vector, if that is of the item as it is and the search wants it."""
        if ranked.place in self._seen or not self._ranking.is_newest(ranked):
            return None
        self._seen.add(ranked.place)
        row = rows.get(ranked.place)
        if row is None or row.revision > ranked.entry.revision:
            self._ranking.forget(ranked)
            return None
        if row.over or row.revision != ranked.entry.revision:
            return None
        labels = self._labels[row.path_id]
        item = await opened_if_wanted(self._reading, self._budget, self._wanted, row, labels)
        if item is not None and self._offset:
            self._offset -= 1
            return None
        if item is not None:
            self._reading.show(item, row, keep=self._wanted.refresh)
        return item

    async def _score(self, hits: Mapping[tuple[bytes, bytes], Item]) -> None:
        """Add hits with their scores, which are of the vectors as they came."""
        assert self._wanted.near is not None  # noqa: S101  for the type checker: it is why this runs
        path_ids, key_ids = zip(*hits, strict=True)
        rows = await self._reading.transaction.fetch_all(
            sql.OF_MODEL, path_ids=list(path_ids), key_ids=list(key_ids), model_id=self._model_id
        )
        if len(rows) != len(hits):
            raise IntegrityFailure("vectors of an item were removed, or added in clear, outside the gateway")
        for row in rows:
            self._budget.bytes -= len(row.envelope)
            await self._reading.pauses.after(len(row.envelope))
            _, vectors = open_vectors(self._reading.sealer, row.columns, row.envelope, row.member)
            score = _score(self._wanted.near, await _best_of(self._wanted.near, vectors))
            self._found.append(replace(hits[row.path_id, row.key_id], score=score))


async def _best_of(near: Near, vectors: list[Vector]) -> Vector:
    """The best of an item's vectors, as the codes say."""
    if len(vectors) == 1:
        return vectors[0]
    await _load_kernel()
    query = quantized(near.values)
    together = bytearray().join(each.codes for each in vectors)
    dots = await _dots(together, query.codes, 0, len(vectors))
    score = _METRICS[near.metric]
    scores = [
        score(dot * query.scale * each.scale, query.length, each.length)
        for dot, each in zip(dots, vectors, strict=True)
    ]
    return vectors[max(range(len(vectors)), key=scores.__getitem__)]


def _score(near: Near, vector: Vector) -> float:
    values = vector.values()
    dot = math.fsum(one * other for one, other in zip(near.values, values, strict=True))
    if near.metric == "l2":
        return -math.dist(near.values, values)
    return _METRICS[near.metric](dot, math.hypot(*near.values), vector.length)
