"""Artifacts against boto3 straight to the same embedded S3: what sealing, checking and streaming cost.

Three groups: one large file up, the same file down, and many files of 100 KB by 16 writers. "Sealed" is the
gateway's own way between a stream and the object store (`storage.ledger.streams`): it cuts, seals and opens with
bounded memory, but crosses no HTTP and writes no row, so it is the share of an artifact's cost that the blob format is
responsible for. "boto3" is the client as most programs use it: its transfer functions with their own threads for the
large file, and one call a file for the small ones.
"""

import asyncio
import gc
import hashlib
import io
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import boto3
import psutil
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from crypto import Sealer, SecretKey, SubjectKeys
from gateway.embedded.s3 import EmbeddedS3
from storage.blobs.keyspace import BlobLocation
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.ledger.streams import BlobReader, BlobWriter

SEALED = "sealed"
BOTO3 = "boto3"
WRITERS = 16
UP, DOWN = "up, MB per s", "down, MB per s"
UP_CPU, DOWN_CPU = "up, CPU s", "down, CPU s"
GROWN = "memory above idle, MB"
FILES, FILE_CPU = "files per s", "CPU ms a file"
SMALL_BYTES = 100_000
_CHUNK_BYTES = 64 * 1024  # as a body arrives from the network
_PATTERN = os.urandom((8 << 20) + 1)  # no multiple of a part, so that no two parts are alike


class ArtifactBench:
    """An S3 server of its own, and both ways to it.

    Attributes:
        large_bytes: Size of the large file.
        small_count: How many files of 100 KB.
    """

    def __init__(self, server: EmbeddedS3, *, large_bytes: int, small_count: int) -> None:
        self.large_bytes = large_bytes
        self.small_count = small_count
        self._bucket = server.bucket
        self._store = S3BlobStore(S3Location.parse(server.url()))
        self._writer, self._reader = BlobWriter(self._store), BlobReader(self._store)
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            region_name=server.region,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=Config(max_pool_connections=WRITERS, s3={"addressing_style": "path"}),
        )
        self._threads = ThreadPoolExecutor(WRITERS)
        self._sealer = Sealer(uuid4(), uuid4(), "user", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate()))
        self._stored: tuple[UUID, SecretKey] | None = None
        self._key = ""

    async def aclose(self) -> None:
        """Give connections and threads back."""
        await self._store.aclose()
        self._threads.shutdown()
        self._client.close()

    def _location(self, blob_id: UUID) -> BlobLocation:
        return BlobLocation(self._sealer.tenant_id, blob_id)

    async def upload(self, contender: str) -> None:
        """Store the large file, which `download` and `remove` then mean."""
        if contender == BOTO3:
            self._key = f"plain/{uuid4().hex}"
            await asyncio.to_thread(self._client.upload_fileobj, _Source(self.large_bytes), self._bucket, self._key)
            return
        blob_id, blob_key = uuid4(), self._sealer.new_blob_key()
        cipher = self._sealer.blob_cipher(blob_id, blob_key)
        await self._writer.write(self._location(blob_id), cipher, _body(self.large_bytes))
        self._stored = blob_id, blob_key

    async def download(self, contender: str) -> bytes:
        """The SHA-256 of what came back; both contenders pay for it, and it proves that nothing was skipped."""
        digest = hashlib.sha256()
        if contender == BOTO3:
            sink = _Sink(digest)
            # One thread, because the sink takes bytes in their order; boto3 reads ahead itself.
            config = TransferConfig(max_concurrency=4)
            await asyncio.to_thread(self._client.download_fileobj, self._bucket, self._key, sink, Config=config)
            return digest.digest()
        assert self._stored is not None
        blob_id, blob_key = self._stored
        cipher = self._sealer.blob_cipher(blob_id, blob_key)
        async for piece in self._reader.read(self._location(blob_id), cipher, self.large_bytes):
            digest.update(piece)
        return digest.digest()

    async def remove(self, contender: str) -> None:
        """Delete the large file."""
        if contender == BOTO3:
            await asyncio.to_thread(self._client.delete_object, Bucket=self._bucket, Key=self._key)
        elif self._stored is not None:
            await self._store.delete(self._location(self._stored[0]))

    async def small(self, contender: str) -> None:
        """Store the small files with 16 writers."""
        waiting = iter(range(self.small_count))
        loop = asyncio.get_running_loop()

        async def write() -> None:
            for number in waiting:
                data = _PATTERN[number : number + SMALL_BYTES]
                if contender == BOTO3:
                    await loop.run_in_executor(self._threads, self._put_plain, data)
                else:
                    blob_id = uuid4()
                    cipher = self._sealer.blob_cipher(blob_id, self._sealer.new_blob_key())
                    await self._writer.write_bytes(self._location(blob_id), cipher, data)

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    def _put_plain(self, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=f"plain/{uuid4().hex}", Body=data)


def _chunk(offset: int, size: int) -> bytes:
    start = offset % (len(_PATTERN) - _CHUNK_BYTES)
    return _PATTERN[start : start + size]


async def _body(size_bytes: int) -> AsyncIterator[bytes]:
    for offset in range(0, size_bytes, _CHUNK_BYTES):
        yield _chunk(offset, min(_CHUNK_BYTES, size_bytes - offset))


class _Source(io.RawIOBase):
    """The same bytes as a file that cannot seek."""

    def __init__(self, size_bytes: int) -> None:
        self._offset, self._size = 0, size_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._offset if size < 0 else min(size, self._size - self._offset)
        found = []
        while wanted:
            within = self._offset % _CHUNK_BYTES
            data = _chunk(self._offset - within, _CHUNK_BYTES)[within : within + wanted]
            found.append(data)
            self._offset += len(data)
            wanted -= len(data)
        return b"".join(found)


class _Sink(io.RawIOBase):
    """Takes bytes in their order and keeps none."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)


@asynccontextmanager
async def artifact_bench(
    *, large_bytes: int, small_count: int, parent: Path | None = None
) -> AsyncIterator[ArtifactBench]:
    """Start an S3 server of its own, so that what is stored here counts for nobody else, and remove it."""
    with (
        tempfile.TemporaryDirectory(prefix="stateroom-bench-s3-", dir=parent) as folder,
        EmbeddedS3(Path(folder)) as s3,
    ):
        bench = ArtifactBench(s3, large_bytes=large_bytes, small_count=small_count)
        try:
            yield bench
        finally:
            await bench.aclose()


class Timed(NamedTuple):
    """What some work took: seconds, processor seconds of this process, and how far its memory grew, in MB."""

    elapsed: float
    cpu: float
    grown: float


async def timed(work: Callable[[], Awaitable[object]]) -> Timed:
    """Do some work and measure it."""
    process = psutil.Process()
    gc.collect()
    idle = peak = process.memory_info().rss
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    cpu, began = time.process_time(), time.perf_counter()
    try:
        await work()
    finally:
        elapsed, used = time.perf_counter() - began, time.process_time() - cpu
        done.set()
        await watching
    return Timed(elapsed, used, (peak - idle) / 1e6)


async def large_slice(bench: ArtifactBench, contender: str) -> dict[str, float]:
    """The large file up and down.

    Raises:
        AssertionError: Other bytes came back than both contenders send.
    """
    sent, received = hashlib.sha256(), b""

    async def download() -> None:
        nonlocal received
        received = await bench.download(contender)

    up = await timed(lambda: bench.upload(contender))
    down = await timed(download)
    async for data in _body(bench.large_bytes):
        sent.update(data)
    assert received == sent.digest()
    await bench.remove(contender)
    size = bench.large_bytes / 1e6
    return {
        UP: size / up.elapsed,
        DOWN: size / down.elapsed,
        UP_CPU: up.cpu,
        DOWN_CPU: down.cpu,
        GROWN: max(up.grown, down.grown),
    }


async def small_slice(bench: ArtifactBench, contender: str) -> dict[str, float]:
    """The small files."""
    took = await timed(lambda: bench.small(contender))
    return {FILES: bench.small_count / took.elapsed, FILE_CPU: took.cpu * 1000 / bench.small_count}
