"""What slow or endless files may take from everybody else: no quota that is not there, and no memory of saves."""

import asyncio
import os
from contextlib import suppress
from uuid import uuid4

import pytest

from crypto.blob import PART_BYTES, SEALED_PART_BYTES, object_bytes
from storage.artifacts.model import Announced, NewArtifact
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.errors import PartInvalid, QuotaExceeded
from storage.ledger.streams import BlobTooLarge
from storage.scope import Scope
from storage.service import Store, StoreOptions
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
def store(connections, root_key, bucket):
    return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=bucket))


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
        await store.artifacts.create(scope, "t", NEW, aiter(Body(100_000)), announced=Announced(size_bytes=99_999))
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


async def slow_files(store, scopes, **known):
    held = [Held() for _ in scopes]
    tasks = [
        asyncio.create_task(store.artifacts.create(scope, f"t{uuid4()}", NEW, aiter(each), **known))
        for scope, each in zip(scopes, held, strict=True)
    ]
    return held, tasks


async def full(budget):
    """Wait until one tenant holds what it may."""
    while budget.held_bytes < 3 * SEALED_PART_BYTES:  # noqa: ASYNC110  a budget tells nobody
        await asyncio.sleep(0)


def others(count):
    """Subjects of so many tenants."""
    return [Scope(uuid4(), "user-1") for _ in range(count)]


async def end(held, tasks):
    for each in held:
        each.go_on.set()
    for task in tasks:
        with suppress(Exception):
            await task


async def test_slow_files_do_not_stop_saves_and_loads_of_large_states(store, scope):
    places = store.blob_writer.budget.bytes_max // SEALED_PART_BYTES
    held, tasks = await slow_files(store, others(places))
    readers = uuid4()
    try:
        await asyncio.gather(*(each.begun.wait() for each in held))
        assert store.blob_writer.budget.take_now(SEALED_PART_BYTES, uuid4()) is None
        # As readers that take nothing would.
        assert store.blob_reader.budget.take_now(store.blob_reader.budget.bytes_max, readers) is not None
        async with asyncio.timeout(10):
            await save(store, scope, content=state(screen="A" * 200_000))
            assert contents(await load(store, scope)) == {"screen": "A" * 200_000}
    finally:
        store.blob_reader.budget.give(store.blob_reader.budget.bytes_max, readers)
        await end(held, tasks)


async def test_a_short_file_takes_as_much_memory_as_it_is_long(store, scope):
    held, tasks = await slow_files(store, [scope] * 50, announced=Announced(size_bytes=2_000))
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.begun.wait() for each in held))
        assert store.blob_writer.budget.held_bytes == 50 * object_bytes(2_000)
    finally:
        await end(held, tasks)
    assert store.blob_writer.budget.held_bytes == 0


@pytest.mark.parametrize(("whole", "announced"), [(None, 2_000), (2_000, None), (2_500, 2_000)])
async def test_a_short_part_takes_as_much_memory_as_it_is_long(store, scope, whole, announced):
    held = [Held() for _ in range(50)]
    tasks = []
    for each in held:
        upload = await store.artifacts.begin(scope, "t1", NEW, size_bytes=whole)
        putting = store.artifacts.put_part(scope, upload.upload_id, 0, aiter(each), size_bytes=announced)
        tasks.append(asyncio.create_task(putting))
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.begun.wait() for each in held))
        assert store.blob_writer.budget.held_bytes == 50 * object_bytes(2_000)
    finally:
        await end(held, tasks)
    assert store.blob_writer.budget.held_bytes == 0


async def test_a_part_that_is_longer_than_announced_is_refused(store, scope):
    upload = await store.artifacts.begin(scope, "t1", NEW)

    async def body():
        yield b"x" * 2_000
        yield b"y"

    with pytest.raises(PartInvalid):
        await store.artifacts.put_part(scope, upload.upload_id, 0, body(), size_bytes=2_000)
    assert store.blob_writer.budget.held_bytes == 0
    part = await store.artifacts.put_part(scope, upload.upload_id, 0, body(), size_bytes=2_001)
    assert part.size_bytes == 2_001


async def test_a_tenant_whose_readers_take_nothing_does_not_stop_anothers(store, scope):
    content = os.urandom(3 * PART_BYTES)

    async def stored(owner):
        async def body():
            for at in range(0, len(content), MIB):
                yield content[at : at + MIB]

        return (await store.artifacts.create(owner, "t1", NEW, body())).artifact_id

    (other,) = others(1)
    theirs, ours = await stored(other), await stored(scope)
    slow = []
    waiting = []
    try:
        for _ in range(8):  # more than there is room for
            opened = await store.artifacts.open(other, theirs)
            pieces = opened.read(0, len(content))
            slow.append(pieces)
            waiting.append(asyncio.ensure_future(anext(pieces)))
        await full(store.blob_reader.budget)
        async with asyncio.timeout(10):  # less than anybody waits for memory
            opened = await store.artifacts.open(scope, ours)
            assert b"".join([piece async for piece in opened.read(0, len(content))]) == content
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for pieces in slow:
            await pieces.aclose()


async def test_a_tenant_whose_writers_send_nothing_does_not_stop_anothers(store, scope):
    (other,) = others(1)
    held, tasks = await slow_files(store, [other] * 8)
    try:
        await full(store.blob_writer.budget)

        async def body():
            yield b"ours"

        async with asyncio.timeout(10):
            made = await store.artifacts.create(scope, "t1", NEW, body())
        assert made.size_bytes == 4
    finally:
        await end(held, tasks)
