"""What agents remember: the gateway's store against LangGraph's own for PostgreSQL, in one run on one PostgreSQL.

``python -m benchmarks.items [VECTORS ...]`` puts, gets, reads batches of 20 and searches with a filter, by both stores
through LangGraph's interface; then by meaning over so many vectors of 384 dimensions of one subject (1,000, 10,000 and
100,000): the first search, which opens them, and later ones; how many of the ten nearest by 32-bit floats are found;
and the gateway's memory. LangGraph's store keeps everything in clear, talks to PostgreSQL as a superuser, and has no
approximate index, so that both compare everything.
"""

import asyncio
import random
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import numkong
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.aio import AsyncPostgresStore

from benchmarks import engines
from benchmarks.engines import Engines
from stateroom.langgraph import StateroomStore

DIMENSIONS = 384
VECTORS = (1_000, 10_000, 100_000)
ROUNDS = 5
EACH = 200
_TOPICS = 200
_NEAREST = 10
_AT_ONCE = 8

Work = Callable[[BaseStore], Awaitable[object]]


class Texts:
    """Texts whose vectors are known: some around each of many topics, as sentences are."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._topics = [self._gauss(1.0) for _ in range(_TOPICS)]
        self.vectors: dict[str, list[float]] = {}

    def _gauss(self, width: float) -> list[float]:
        return [self._rng.gauss(0, width) for _ in range(DIMENSIONS)]

    def take(self) -> str:
        """Another text."""
        topic = self._rng.choice(self._topics)
        text = f"text {len(self.vectors)}"
        self.vectors[text] = [one + other for one, other in zip(topic, self._gauss(0.7), strict=True)]
        return text

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """What a model would make of them, at no cost."""
        return [self.vectors[text] for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        """The same, for a store that asks on an event loop."""
        return self.embed(texts)


@asynccontextmanager
async def contenders(running: Engines, texts: Texts) -> AsyncIterator[dict[str, BaseStore]]:
    """Both stores, empty."""
    await running.create_database("items")
    index = {"dims": DIMENSIONS, "embed": texts.aembed, "fields": ["text"]}
    flat = {**index, "embed": texts.embed, "ann_index_config": {"kind": "flat"}}
    with PostgresStore.from_conn_string(running.dsn("items"), index=flat) as made:
        made.setup()
    theirs = AsyncPostgresStore.from_conn_string(
        running.dsn("items"), pool_config={"min_size": 4, "max_size": 20}, index={**flat, "embed": texts.aembed}
    )
    ours = StateroomStore(running.url, running.api_key, subject=f"user-{uuid4().hex}", index=index)
    async with theirs as postgres, ours as stateroom:
        yield {"LangGraph": postgres, "Stateroom": stateroom}


async def _timed(store: BaseStore, works: Sequence[Work], at_once: int = 1) -> float:
    """The median time of one of some works, or of so many at once the mean."""
    lasted: list[float] = []
    began = time.perf_counter()
    for start in range(0, len(works), at_once):
        before = time.perf_counter()
        await asyncio.gather(*(work(store) for work in works[start : start + at_once]))
        lasted.append(time.perf_counter() - before)
    return statistics.median(lasted) if at_once == 1 else (time.perf_counter() - began) / len(works)


async def compare(what: str, stores: dict[str, BaseStore], works: Callable[[], list[Work]], at_once: int = 1) -> None:
    """Print how long both take, and the ratio of each round."""
    took: dict[str, list[float]] = {name: [] for name in stores}
    for _ in range(ROUNDS):
        for name, store in stores.items():
            took[name].append(await _timed(store, works(), at_once))
    ratios = sorted(ours / theirs for ours, theirs in zip(took["Stateroom"], took["LangGraph"], strict=True))
    shown = ", ".join(f"{name} {statistics.median(each) * 1000:.2f} ms" for name, each in took.items())
    print(f"{what}: {shown}; {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def _value(rng: random.Random) -> dict[str, object]:
    return {"kind": rng.choice(["fact", "plan"]), "text": rng.randbytes(300).hex(), "n": rng.randrange(1000)}


async def small(stores: dict[str, BaseStore], rng: random.Random) -> None:
    """Puts, gets, batches and searches with a filter, over items without vectors."""
    path = ("memories", uuid4().hex)
    keys = [f"k{number}" for number in range(EACH)]

    def puts() -> list[Work]:
        new = [(key, _value(rng)) for key in keys]
        return [lambda store, key=key, value=value: store.aput(path, key, value, index=False) for key, value in new]

    await compare("put", stores, puts)
    await compare("put, 16 at once", stores, puts, 16)
    await compare("get", stores, lambda: [lambda store, key=key: store.aget(path, key) for key in keys])
    await compare("get, 16 at once", stores, lambda: [lambda store, key=key: store.aget(path, key) for key in keys], 16)
    gets = [GetOp(path, key) for key in keys]
    batches = [gets[start : start + 20] for start in range(0, EACH, 20)]
    await compare("20 gets in a batch", stores, lambda: [lambda store, ops=ops: store.abatch(ops) for ops in batches])

    def batch() -> list[Work]:
        many = [[PutOp(path, key, _value(rng), index=False) for key in keys[s : s + 20]] for s in range(0, EACH, 20)]
        return [lambda store, ops=ops: store.abatch(ops) for ops in many]

    await compare("20 puts in a batch", stores, batch)
    wanted = [lambda store: store.asearch(path, filter={"kind": "fact"}, limit=10)] * 50
    await compare("search with a filter among 200", stores, lambda: [*wanted])
    everything = [lambda store: store.asearch(path, limit=100)] * 20
    await compare("search for 100 of 200", stores, lambda: [*everything])


async def meaning(running: Engines, stores: dict[str, BaseStore], texts: Texts, count: int) -> None:
    """Search by meaning over so many vectors."""
    path = ("vectors", str(count))
    known = [texts.take() for _ in range(count)]
    for name, store in stores.items():
        began = time.perf_counter()
        for start in range(0, count, 100 * _AT_ONCE):
            batches = [
                [PutOp(path, text, {"text": text}) for text in known[at : at + 100]]
                for at in range(start, min(start + 100 * _AT_ONCE, count), 100)
            ]
            await asyncio.gather(*(store.abatch(ops) for ops in batches))
        print(f"{count:,} vectors put by {name} in {time.perf_counter() - began:.0f} s", flush=True)
    memory = running.memory().gateway
    queries = [texts.take() for _ in range(20)]
    first = {}
    for name, store in stores.items():
        began = time.perf_counter()
        await store.asearch(path, query=queries[0], limit=_NEAREST)
        first[name] = time.perf_counter() - began
    grown = (running.memory().gateway - memory) / 1e6
    print(
        f"first search: LangGraph {first['LangGraph'] * 1000:.1f} ms, Stateroom {first['Stateroom'] * 1000:.1f} ms;"
        f" {first['Stateroom'] / first['LangGraph']:.2f}; the gateway grew by {grown:.0f} MB",
        flush=True,
    )
    works = [lambda store, query=query: store.asearch(path, query=query, limit=_NEAREST) for query in queries]
    await compare(f"search by meaning among {count:,}", stores, lambda: [*works])
    kept = array("f", [number for text in known for number in texts.vectors[text]])
    matrix = memoryview(kept).cast("B").cast("f", (count, DIMENSIONS))
    hits = 0
    for query in queries:
        asked = memoryview(array("f", texts.vectors[query])).cast("B").cast("f", (1, DIMENSIONS))
        distances = memoryview(numkong.cdist(asked, matrix, "angular")).cast("B").cast("d").tolist()
        exact = {known[at] for at in sorted(range(count), key=distances.__getitem__)[:_NEAREST]}
        found = await stores["Stateroom"].asearch(path, query=query, limit=_NEAREST)
        hits += len(exact & {each.key for each in found})
    print(f"of the {_NEAREST} nearest by 32-bit floats were found: {hits / (_NEAREST * len(queries)):.3f}", flush=True)


async def look(counts: Sequence[int]) -> None:
    """Print all of it."""
    rng = random.Random(7)  # noqa: S311 - the same items in every run
    texts = Texts(rng)
    with engines.running() as running:
        async with contenders(running, texts) as stores:
            await small(stores, rng)
            for count in counts:
                await meaning(running, stores, texts, count)


if __name__ == "__main__":
    asyncio.run(look([int(each) for each in sys.argv[1:]] or VECTORS))
