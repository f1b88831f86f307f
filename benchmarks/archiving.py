"""Archiving and restoring threads, and what a writer beside it notices.

`THREADS` threads of `CHECKPOINTS` checkpoints are made for every slice, then moved out and back by `MOVERS` at a time.
"Archive" is `storage.archive.moving` on an S3 server: pages of rows, an object that is sealed, stored, read back and
compared with the thread's seals, and the flip; and the way back. "Plain SQL" moves the same rows of as many threads
into tables beside and back, in one transaction for each thread: no object store, nothing is read back, checked or
audited. It is a floor, not a peer: nobody else archives.

The second group times the saves of a writer to a thread of its own, alone and while threads are archived in the same
process, as a small installation does it; "half a rate" pauses after each thread for as long as it took.

It crosses no HTTP. Sizes are of the objects, against the envelopes that moved and against what the rows took.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgpack

from benchmarks.workload import Prose
from crypto import MemoryRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.model import ChannelValue, FullState, Save, Value
from storage.postgres.setup import prepare
from storage.scope import Scope
from storage.service import Store, StoreOptions

ARCHIVE = "archive"
SQL = "plain SQL"
OUT, BACK = "out, threads per s", "back, threads per s"
OF_ENVELOPES, OF_ROWS = "object / envelopes", "object / rows"
ALONE, BESIDE, BESIDE_HALF = "alone", "beside the archiver", "beside it at half a rate"
P50, P99, MOVED = "p50 ms", "p99 ms", "archived meanwhile, per s"
MOVERS = 4
CHECKPOINTS = 20
_TABLES = ("checkpoints", "checkpoint_tags", "pending_writes", "chunks")
_MESSAGE_BYTES = 2000
_THREAD = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
_SAVE_PAUSE_SECONDS = 0.005

Mover = Callable[[str], Awaitable[object]]


class ArchivingBench:
    """A PostgreSQL and an S3 server of their own.

    Attributes:
        threads: How many are moved in a slice.
    """

    def __init__(self, store: Store, admin: asyncpg.Pool, threads: int) -> None:
        self.threads = threads
        self._store = store
        self._admin = admin
        self._scope = Scope(uuid4(), "user")
        self._number = 0

    async def prepare(self) -> None:
        """Make the tables beside."""
        for table in _TABLES:
            await self._admin.execute(f"CREATE TABLE public.{table} (LIKE stateroom.{table} INCLUDING ALL)")

    def _content(self, thread_id: str, number: int) -> FullState:
        prose = Prose(thread_id)
        messages = [{"id": f"{thread_id}-{each}", "content": prose.take(_MESSAGE_BYTES)} for each in range(number + 1)]
        channels = {"messages": msgpack.packb(messages), "note": msgpack.packb({"step": number})}
        return FullState({name: ChannelValue(None, Value("msgpack", data)) for name, data in channels.items()})

    async def _save(self, thread_id: str, number: int) -> None:
        save = Save(thread_id=thread_id, content=self._content(thread_id, number))
        await self._store.checkpoints.save(self._scope, save)

    async def _fill(self, count: int) -> list[str]:
        self._number += 1
        made = [f"slice-{self._number}-{each}" for each in range(count)]

        async def one(thread_id: str) -> None:
            for number in range(CHECKPOINTS):
                await self._save(thread_id, number)

        for at in range(0, count, MOVERS):
            await asyncio.gather(*(one(each) for each in made[at : at + MOVERS]))
        return made

    async def _all(self, thread_ids: list[str], move: Mover) -> float:
        """Move all of them, `MOVERS` at a time; how many a second."""
        waiting = list(thread_ids)

        async def mover() -> None:
            while waiting:
                await move(waiting.pop())

        gc.collect()
        began = time.perf_counter()
        await asyncio.gather(*(mover() for _ in range(MOVERS)))
        return len(thread_ids) / (time.perf_counter() - began)

    async def _beside(self, thread_id: str, source: str, target: str) -> None:
        place = (self._scope.tenant_id, self._scope.subject_id, thread_id)
        async with self._admin.acquire() as connection, connection.transaction():
            await connection.execute(f"SELECT FROM stateroom.threads WHERE {_THREAD} FOR UPDATE", *place)
            for table in _TABLES:
                await connection.execute(
                    f"INSERT INTO {target}.{table} SELECT * FROM {source}.{table} WHERE {_THREAD}",  # noqa: S608
                    *place,
                )
            for table in reversed(_TABLES):
                await connection.execute(f"DELETE FROM {source}.{table} WHERE {_THREAD}", *place)  # noqa: S608

    async def _row_bytes(self, thread_id: str) -> int:
        """What a thread's rows take in the tables, without indexes and free space."""
        total = 0
        for table in _TABLES:
            total += await self._admin.fetchval(
                f"SELECT coalesce(sum(pg_column_size(t)), 0)::bigint FROM stateroom.{table} t"  # noqa: S608
                f" WHERE {_THREAD}",
                self._scope.tenant_id, self._scope.subject_id, thread_id,
            )  # fmt: skip
        return total

    async def move_slice(self, contender: str) -> dict[str, float]:
        """Move threads out and back."""
        made = await self._fill(self.threads)
        archives = self._store.archives
        if contender == SQL:
            out = await self._all(made, lambda each: self._beside(each, "stateroom", "public"))
            back = await self._all(made, lambda each: self._beside(each, "public", "stateroom"))
            found = {OUT: out, BACK: back}
        else:
            taken = sum([await self._row_bytes(each) for each in made])
            out = await self._all(made, lambda each: archives.archive(self._scope, each))
            stubs = [await archives.archive(self._scope, each) for each in made]
            back = await self._all(made, lambda each: archives.restore(self._scope, each))
            size = sum(each.size_bytes for each in stubs)
            found = {
                OUT: out,
                BACK: back,
                OF_ENVELOPES: size / sum(each.hot_bytes for each in stubs),
                OF_ROWS: size / taken,
            }
        for each in made:
            await self._store.threads.delete(self._scope, each)
        return found

    async def writer_slice(self, contender: str) -> dict[str, float]:
        """Save at a steady pace, and archive beside it or not."""
        made = await self._fill(self.threads)
        waiting = list(made)
        ended = asyncio.Event()

        async def archiver() -> None:
            while waiting:
                began = time.perf_counter()
                await self._store.archives.archive(self._scope, waiting.pop())
                if contender == BESIDE_HALF:
                    await asyncio.sleep(time.perf_counter() - began)
            ended.set()

        gc.collect()
        lasted: list[float] = []
        began = time.perf_counter()
        archiving = None if contender == ALONE else asyncio.create_task(archiver())
        number = 0
        while len(lasted) < self.threads * 10 if archiving is None else not ended.is_set():
            started = time.perf_counter()
            await self._save(f"writer-{self._number}", number % 5)
            lasted.append(time.perf_counter() - started)
            number += 1
            await asyncio.sleep(_SAVE_PAUSE_SECONDS)
        elapsed = time.perf_counter() - began
        if archiving is not None:
            await archiving
        for each in [*made, f"writer-{self._number}"]:
            await self._store.threads.delete(self._scope, each)
        found = {P50: statistics.median(lasted) * 1000, P99: statistics.quantiles(lasted, n=100)[98] * 1000}
        return found if archiving is None else {**found, MOVED: len(made) / elapsed}


@asynccontextmanager
async def archiving_bench(threads: int, parent: Path | None = None) -> AsyncIterator[ArchivingBench]:
    """Start the servers, and stop and remove all of it."""
    async with store_with_bucket(parent) as (store, admin):
        bench = ArchivingBench(store, admin, threads)
        await bench.prepare()
        yield bench


@asynccontextmanager
async def store_with_bucket(parent: Path | None = None) -> AsyncIterator[tuple[Store, asyncpg.Pool]]:
    """A store on servers of its own, and connections of the database's superuser."""
    with tempfile.TemporaryDirectory(prefix="stateroom-archiving-", dir=parent) as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240  once; engines run as an unprivileged user where this is root
        postgres, s3 = EmbeddedPostgres(Path(folder)), EmbeddedS3(Path(folder))
        await asyncio.to_thread(postgres.start)
        try:
            await asyncio.to_thread(s3.start)
            try:
                _, app_url = await prepare(
                    postgres.superuser_url(), database="archiving", owner_password="o" * 20, app_password="a" * 20
                )
                bucket = S3BlobStore(S3Location.parse(s3.archive_url()))
                store = await Store.open(
                    app_url,
                    root_key=MemoryRootKey(),
                    deployment_id=UUID(int=1),
                    connections_max=MOVERS + 2,
                    durable=True,
                    options=StoreOptions(archive=bucket),
                )
                dsn = postgres.superuser_url("archiving").replace("+asyncpg", "", 1)
                admin = await asyncpg.create_pool(dsn, min_size=MOVERS, max_size=MOVERS)
                try:
                    yield store, admin
                finally:
                    await admin.close()
                    await store.close()
                    await bucket.aclose()
            finally:
                await asyncio.to_thread(s3.stop)
        finally:
            await asyncio.to_thread(postgres.stop)


async def look(threads: int, rounds: int) -> None:
    """Print rounds of all: ``python -m benchmarks.archiving``."""
    async with archiving_bench(threads) as bench:
        for _ in range(rounds):
            for contender in (SQL, ARCHIVE):
                _say(contender, await bench.move_slice(contender))
            for contender in (ALONE, BESIDE, BESIDE_HALF):
                _say(contender, await bench.writer_slice(contender))


def _say(contender: str, found: dict[str, float]) -> None:
    print(f"{contender}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    import sys

    asyncio.run(look(int(sys.argv[1]) if len(sys.argv) > 1 else 100, 3))
