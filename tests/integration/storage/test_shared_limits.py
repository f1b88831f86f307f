"""What slow or endless files may take from everybody else: no quota that is not there, and no memory of saves."""

import asyncio
import os
from contextlib import suppress
from uuid import uuid4

import pytest

from crypto.blob import SEALED_PART_BYTES, object_bytes
from storage.artifact_model import NewArtifact
from storage.blob_io import BlobTooLarge
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.errors import QuotaExceeded
from storage.service import Store
from tests.support.states import contents, load, save, state
from tests.support.stores import DEPLOYMENT_ID

MIB = 1024 * 1024
NEW = NewArtifact(name="file", media_type="application/octet-stream")
SET_QUOTA = """
INSERT INTO stateroom.blob_usage (tenant_id, bytes, quota_bytes) VALUES ($1, 0, $2)
ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
"""
RESERVED = "SELECT coalesce(sum(reserved_bytes), 0) FROM stateroom.blob_intents WHERE tenant_id = $1"
USED = "SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1"


@pytest.fixture
def bucket():
    return MemoryBlobStore()


@pytest.fixture
async def store(database, root_key, bucket):
    opened = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=8, durable=False, blobs=bucket
    )
    yield opened
    await opened.close()


class Body:
    """A stream of ``size_bytes`` that counts what is taken of it."""

    def __init__(self, size_bytes, slice_bytes=65_536):
        self.taken = 0
        self._size = size_bytes
        self._slice = os.urandom(slice_bytes)

    async def __aiter__(self):
        while self.taken < self._size:
            data = self._slice[: self._size - self.taken]
            self.taken += len(data)
            yield data


async def test_a_stream_of_unknown_length_stops_where_the_quota_ends(store, bucket, scope, admin):
    await admin.execute(SET_QUOTA, scope.tenant_id, MIB)
    body = Body(40 * MIB)
    with pytest.raises(QuotaExceeded):
        await store.artifacts.create(scope, "t", NEW, aiter(body))
    assert body.taken <= MIB + 65_536
    assert await bucket.list_objects(tenant_prefix(scope.tenant_id)) == []
    assert await bucket.list_multiparts(tenant_prefix(scope.tenant_id)) == []


async def test_a_stream_of_unknown_length_may_take_the_quotas_last_byte_and_counts_exactly(store, scope, admin):
    size = 3 * MIB + 12_345
    await admin.execute(SET_QUOTA, scope.tenant_id, object_bytes(size))
    await store.artifacts.create(scope, "t", NEW, aiter(Body(size)))
    assert await admin.fetchval(USED, scope.tenant_id) == object_bytes(size)
    assert await admin.fetchval(RESERVED, scope.tenant_id) == 0
    with pytest.raises(QuotaExceeded):
        await store.artifacts.create(scope, "t", NEW, aiter(Body(1)))


async def test_two_streams_of_unknown_length_cannot_both_take_the_last_bytes(store, scope, admin):
    await admin.execute(SET_QUOTA, scope.tenant_id, object_bytes(5 * MIB))
    both = [store.artifacts.create(scope, "t", NEW, aiter(Body(4 * MIB))) for _ in range(2)]
    ended = await asyncio.gather(*both, return_exceptions=True)
    assert any(isinstance(each, QuotaExceeded) for each in ended)
    assert sum(not isinstance(each, BaseException) for each in ended) <= 1


async def test_a_stream_longer_than_it_said_is_refused(store, scope, bucket):
    with pytest.raises(BlobTooLarge):
        await store.artifacts.create(scope, "t", NEW, aiter(Body(100_000)), size_bytes=99_999)
    assert await bucket.list_objects(tenant_prefix(scope.tenant_id)) == []


class Held:
    """A stream that gives its first bytes and then nothing until it is let go."""

    def __init__(self):
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __aiter__(self):
        yield b"x" * 1_000
        self.begun.set()
        await self.go_on.wait()
        yield b"y" * 1_000


async def slow_files(store, scope, count, **known):
    held = [Held() for _ in range(count)]
    tasks = [
        asyncio.create_task(store.artifacts.create(scope, f"t{uuid4()}", NEW, aiter(each), **known)) for each in held
    ]
    return held, tasks


async def end(held, tasks):
    for each in held:
        each.go_on.set()
    for task in tasks:
        with suppress(Exception):
            await task


async def test_slow_files_do_not_stop_saves_and_loads_of_large_states(store, scope):
    places = store.blob_writer.budget.bytes_max // SEALED_PART_BYTES
    held, tasks = await slow_files(store, scope, places)
    try:
        await asyncio.gather(*(each.begun.wait() for each in held))
        assert store.blob_writer.budget.take_now(SEALED_PART_BYTES) is None
        store.blob_reader.budget.take_now(store.blob_reader.budget.bytes_max)  # as readers that take nothing would
        async with asyncio.timeout(10):
            await save(store, scope, content=state(screen="A" * 200_000))
            assert contents(await load(store, scope)) == {"screen": "A" * 200_000}
    finally:
        store.blob_reader.budget.give(store.blob_reader.budget.bytes_max)
        await end(held, tasks)


async def test_a_short_file_takes_as_much_memory_as_it_is_long(store, scope):
    held, tasks = await slow_files(store, scope, 50, size_bytes=2_000)
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.begun.wait() for each in held))
        assert store.blob_writer.budget.held_bytes == 50 * object_bytes(2_000)
    finally:
        await end(held, tasks)
    assert store.blob_writer.budget.held_bytes == 0
