"""What a thread that is larger than memory takes of it: archived, read where it is, exported, verified, brought back.

``python -m benchmarks.large_thread [MIB...]`` makes a thread of each size in MiB (64 and 2,048), of checkpoints
of a MiB that share nothing and cannot be compressed, and does each of these with it in a process of its own. It prints
the most that the process held, less what one holds that only opened a store and saved a small thread. Memory is flat
if the figures do not grow with the thread. It crosses no HTTP; bytes go to a real PostgreSQL and a real S3 server.
"""

import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgpack

from crypto import SecretKey
from crypto.roots.local import LocalRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.control.features import KNOWN
from storage.model import ChannelValue, FullState, HistoryQuery, Load, Save, Value
from storage.postgres.setup import prepare
from storage.scope import OperatorScope, Scope
from storage.service import Store, StoreOptions

SIZES_MIB = (64, 2048)
_SCOPE = Scope(UUID(int=2), "user")
_ROOT_KEY = b"r" * 32
_LINE_BYTES = 2048
_MIB = 1024 * 1024


@asynccontextmanager
async def _store(database_url: str, archive_url: str) -> AsyncIterator[Store]:
    bucket = S3BlobStore(S3Location.parse(archive_url))
    store = await Store.open(
        database_url,
        root_key=LocalRootKey("benchmark", {1: SecretKey(_ROOT_KEY)}, 1),
        deployment_id=UUID(int=1),
        connections_max=4,
        durable=True,
        options=StoreOptions(archive=bucket),
    )
    try:
        yield store
    finally:
        await store.close()
        await bucket.aclose()


async def _small(store: Store, _: str) -> None:
    """Save and load a small thread, as whatever else a process does before."""
    await store.checkpoints.save(_SCOPE, Save(thread_id="small", content=_state([b"x"])))
    await store.checkpoints.load(_SCOPE, Load("small", "", None, with_state=True))


def _state(lines: list[bytes]) -> FullState:
    return FullState({"lines": ChannelValue(None, Value("msgpack", msgpack.packb(lines)))})


async def _archive(store: Store, thread_id: str) -> None:
    await store.archives.archive(_SCOPE, thread_id)


async def _read(store: Store, thread_id: str) -> None:
    """Every id, and a page of states near the beginning."""
    after, ids = None, list[str]()
    while True:
        page = await store.checkpoints.history(_SCOPE, HistoryQuery(thread_id=thread_id, limit=100, after=after))
        ids += [each.checkpoint_id for each in page.items]
        after = page.after
        if after is None:
            break
    for each in ids[-3:]:
        await store.checkpoints.load(_SCOPE, Load(thread_id, "", each, with_state=True))


async def _export(store: Store, thread_id: str) -> None:
    await store.exporting.content_digest(_SCOPE, thread_id)


async def _verify(store: Store, thread_id: str) -> None:
    report = await store.verification.thread(_SCOPE, thread_id)
    assert not report.findings, report.findings


async def _restore(store: Store, thread_id: str) -> None:
    await store.archives.restore(_SCOPE, thread_id)


async def _make(store: Store, thread_id: str) -> None:
    await store.features.refresh()
    async with store.unit_of_work.begin(OperatorScope()) as transaction:
        for feature in KNOWN:
            if feature.name not in store.features.since():
                await store.features.add(transaction, feature, datetime(2020, 1, 1, tzinfo=UTC))
    await store.features.refresh()
    for _ in range(int(thread_id)):
        lines = [os.urandom(_LINE_BYTES) for _ in range(_MIB // _LINE_BYTES)]
        await store.checkpoints.save(_SCOPE, Save(thread_id=thread_id, content=_state(lines)))


_WORK: dict[str, Callable[[Store, str], Awaitable[None]]] = {
    "make": _make, "export hot": _export, "verify hot": _verify, "archive": _archive, "read": _read, "export": _export,
    "verify": _verify, "restore": _restore,
}  # fmt: skip


async def _work(name: str, thread_id: str, database_url: str, archive_url: str) -> None:
    """One of these in this process; prints the most it held, in MiB, and how long it took."""
    async with _store(database_url, archive_url) as store:
        await _small(store, thread_id)
        before, began = _held(), time.perf_counter()
        await _WORK[name](store, thread_id)
        print(f"{_held() - before:.0f} MiB, {time.perf_counter() - began:.0f} s", flush=True)


def _held() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def look(sizes_mib: list[int]) -> None:
    """Print all of it."""
    with tempfile.TemporaryDirectory(prefix="stateroom-large-") as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240  once; engines run as an unprivileged user where this is root
        postgres, s3 = EmbeddedPostgres(Path(folder)), EmbeddedS3(Path(folder))
        await asyncio.to_thread(postgres.start)
        try:
            await asyncio.to_thread(s3.start)
            _, app_url = await prepare(
                postgres.superuser_url(), database="large", owner_password="o" * 20, app_password="a" * 20
            )
            for size in sizes_mib:
                for name in _WORK:
                    own = [sys.executable, "-m", "benchmarks.large_thread", name, str(size), app_url, s3.archive_url()]
                    done = await asyncio.create_subprocess_exec(*own, stdout=asyncio.subprocess.PIPE)
                    printed, _ = await done.communicate()
                    print(f"{size} MiB: {name}: {printed.decode().strip() or 'failed'}", flush=True)
        finally:
            await asyncio.to_thread(s3.stop)
            await asyncio.to_thread(postgres.stop)


if __name__ == "__main__":
    if len(sys.argv) == 5:  # see `look`
        asyncio.run(_work(*sys.argv[1:]))
    else:
        asyncio.run(look([int(each) for each in sys.argv[1:]] or [*SIZES_MIB]))
