"""The S3 client over a connection that breaks: what was done is found out, and short or late bytes never count."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from storage.blobs.keyspace import BlobLocation
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.s3_objects import ATTEMPTS_MAX
from storage.blobs.store import BlobExists, BlobNotFound, BlobStore, BlobUnavailable, MultipartNotFound
from tests.support.s3_faults import S3Fault, S3Faults

DATA = os.urandom(300_000)
PART = os.urandom(5 << 20)
LOST = (S3Fault.LOST_REQUEST, S3Fault.LOST_ANSWER)


def somewhere() -> BlobLocation:
    return BlobLocation(uuid4(), uuid4())


@pytest.fixture
async def faults(s3_server) -> AsyncIterator[S3Faults]:
    async with S3Faults(s3_server) as proxy:
        yield proxy


@pytest.fixture
async def straight(s3_server) -> AsyncIterator[BlobStore]:
    """What the server really holds."""
    made = S3BlobStore(S3Location.parse(s3_server.url()), threads=1)
    yield made
    await made.aclose()


@pytest.fixture
async def store(faults: S3Faults) -> AsyncIterator[BlobStore]:
    made = S3BlobStore(S3Location.parse(faults.url()), threads=1)
    yield made
    await made.aclose()


@pytest.mark.parametrize("fault", [*LOST, S3Fault.SLOW_DOWN])
async def test_a_put_that_failed_or_whose_answer_was_lost_ends_well(store, faults, straight, fault) -> None:
    where = somewhere()
    faults.plan("put_object", fault)
    await store.put_if_absent(where, DATA)
    assert faults.planned == 0
    assert faults.requests.count("put_object") == 2
    # Only bytes that may be another's are read back.
    assert faults.requests.count("get_object") == (1 if fault is S3Fault.LOST_ANSWER else 0)
    assert await straight.get(where) == DATA


async def test_a_put_whose_answer_was_lost_does_not_take_anothers_blob_for_its_own(store, faults, straight) -> None:
    where = somewhere()
    await straight.put_if_absent(where, DATA[::-1])
    faults.plan("put_object", S3Fault.LOST_ANSWER)
    with pytest.raises(BlobExists):
        await store.put_if_absent(where, DATA)
    assert await straight.get(where) == DATA[::-1]


async def test_bytes_read_back_after_a_lost_answer_are_never_half_of_them(store, faults, straight) -> None:
    where = somewhere()
    faults.plan("put_object", S3Fault.LOST_ANSWER)
    faults.plan("get_object", S3Fault.TRUNCATED)
    await store.put_if_absent(where, DATA)
    assert faults.planned == 0
    assert faults.requests.count("get_object") == 2


@pytest.mark.parametrize("fault", [*LOST, S3Fault.SLOW_DOWN])
async def test_a_put_is_given_up_after_three_attempts_and_may_be_repeated_later(store, faults, straight, fault) -> None:
    where = somewhere()
    faults.always("put_object", fault)
    with pytest.raises(BlobUnavailable) as caught:
        await store.put_if_absent(where, DATA)
    assert "SlowDown" not in str(caught.value)
    assert faults.requests == ["put_object"] * ATTEMPTS_MAX
    faults.heal()
    await store.put_if_absent(where, DATA)
    assert await straight.get(where) == DATA


async def test_connections_that_are_closed_at_once_are_tried_three_times(store, faults, straight) -> None:
    where = somewhere()
    await straight.put_if_absent(where, DATA)
    faults.connections_refused = ATTEMPTS_MAX - 1
    assert await store.get(where) == DATA
    assert faults.connections == ATTEMPTS_MAX
    faults.connections_refused = -1
    for call in (store.get(where), store.head(where), store.put_if_absent(somewhere(), DATA)):
        faults.connections = 0
        with pytest.raises(BlobUnavailable):
            await call
        assert faults.connections == ATTEMPTS_MAX


async def test_a_bucket_in_another_region_is_found_and_asked_there_from_then_on(store, faults, straight) -> None:
    faults.region = "eu-central-1"
    where = somewhere()
    await store.put_if_absent(where, DATA)
    assert await straight.get(where) == DATA
    faults.requests.clear()
    assert await store.get(where) == DATA
    assert await store.get_range(where, 1, 2) == DATA[1:3]
    assert faults.requests == ["get_object"] * 2


async def read_all(store: BlobStore, where: BlobLocation) -> bytes:
    return await store.get(where)


async def read_range(store: BlobStore, where: BlobLocation) -> bytes:
    return await store.get_range(where, 0, len(DATA) - 1) + DATA[-1:]


@pytest.mark.parametrize("read", [read_all, read_range])
@pytest.mark.parametrize("fault", [S3Fault.TRUNCATED, S3Fault.SLOW_DOWN, *LOST])
async def test_a_read_that_breaks_off_is_repeated_and_never_short(store, faults, straight, read, fault) -> None:
    where = somewhere()
    await straight.put_if_absent(where, DATA)
    faults.plan("get_object", fault)
    assert await read(store, where) == DATA
    assert faults.planned == 0
    faults.requests.clear()
    faults.always("get_object", fault)
    with pytest.raises(BlobUnavailable):
        await read(store, where)
    assert faults.requests == ["get_object"] * ATTEMPTS_MAX


@pytest.mark.parametrize("read", [read_all, read_range])
async def test_a_body_that_drips_ends_at_the_deadline_and_blocks_nobody(faults, straight, read) -> None:
    where = somewhere()
    await straight.put_if_absent(where, DATA)
    store = S3BlobStore(S3Location.parse(faults.url()), threads=1, body_seconds_max=0.5)
    try:
        faults.plan("get_object", S3Fault.DRIP)
        began = time.monotonic()
        async with asyncio.timeout(20):  # at 50 bytes a second the whole takes a hundred minutes
            with pytest.raises(BlobUnavailable, match="too slowly"):
                await read(store, where)
        assert 0.5 <= time.monotonic() - began < 5
        async with asyncio.timeout(5):  # the only thread is free again
            assert await read(store, where) == DATA
            await store.health()
    finally:
        await store.aclose()


@pytest.mark.parametrize("fault", [*LOST, S3Fault.SLOW_DOWN, S3Fault.ERROR_IN_OK])
async def test_completing_an_upload_whose_answer_was_lost_ends_well(store, faults, straight, fault) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    parts = [
        (0, await store.put_part(where, multipart_id, 0, PART)),
        (1, await store.put_part(where, multipart_id, 1, b"end")),
    ]
    faults.plan("complete_multipart_upload", fault)
    await store.complete_multipart(where, multipart_id, parts, size_bytes=len(PART) + 3)
    assert faults.planned == 0
    assert faults.requests.count("complete_multipart_upload") == 2
    assert await straight.get(where) == PART + b"end"
    assert await straight.list_multiparts(where.object_key()) == []


@pytest.mark.parametrize("fault", [*LOST, S3Fault.SLOW_DOWN])
async def test_completing_is_given_up_after_three_attempts_and_may_be_repeated_later(
    store, faults, straight, fault
) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    parts = [(0, await store.put_part(where, multipart_id, 0, DATA))]
    faults.requests.clear()
    faults.always("complete_multipart_upload", fault)
    with pytest.raises(BlobUnavailable):
        await store.complete_multipart(where, multipart_id, parts, size_bytes=len(DATA))
    assert faults.requests.count("complete_multipart_upload") == ATTEMPTS_MAX
    faults.heal()
    await store.complete_multipart(where, multipart_id, parts, size_bytes=len(DATA))
    assert await straight.get(where) == DATA


async def test_a_lost_completion_does_not_take_anothers_object_for_its_own(store, faults, straight) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    parts = [(0, await store.put_part(where, multipart_id, 0, DATA))]
    await straight.put_if_absent(where, b"another's")
    faults.plan("complete_multipart_upload", S3Fault.LOST_ANSWER)
    with pytest.raises(BlobExists):
        await store.complete_multipart(where, multipart_id, parts, size_bytes=len(DATA))
    assert await straight.get(where) == b"another's"


async def test_an_upload_aborted_while_it_was_completed_is_not_taken_for_done(store, faults, straight) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    parts = [(0, await store.put_part(where, multipart_id, 0, DATA))]
    faults.plan("complete_multipart_upload", S3Fault.LOST_REQUEST)
    await straight.abort_multipart(where, multipart_id)
    with pytest.raises(MultipartNotFound):
        await store.complete_multipart(where, multipart_id, parts, size_bytes=len(DATA))
    with pytest.raises(BlobNotFound):
        await straight.head(where)


@pytest.mark.parametrize("fault", [*LOST, S3Fault.SLOW_DOWN])
async def test_a_part_whose_answer_was_lost_is_stored_again(store, faults, straight, fault) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    faults.plan("upload_part", fault)
    parts = [(0, await store.put_part(where, multipart_id, 0, DATA))]
    assert faults.requests.count("upload_part") == 2
    await store.complete_multipart(where, multipart_id, parts, size_bytes=len(DATA))
    assert await straight.get(where) == DATA


async def test_an_upload_begun_by_a_lost_answer_is_found_by_the_listing(store, faults, straight) -> None:
    where = somewhere()
    faults.plan("create_multipart_upload", S3Fault.LOST_ANSWER)
    multipart_id = await store.begin_multipart(where)
    open_uploads = {each.multipart_id for each in await straight.list_multiparts(where.object_key())}
    assert len(open_uploads) == 2
    assert multipart_id in open_uploads


async def test_aborting_and_deleting_survive_a_lost_answer(store, faults, straight) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    faults.plan("abort_multipart_upload", S3Fault.LOST_ANSWER)
    await store.abort_multipart(where, multipart_id)
    assert await straight.list_multiparts(where.object_key()) == []
    await straight.put_if_absent(where, DATA)
    faults.plan("delete_object", S3Fault.LOST_ANSWER)
    await store.delete(where)
    assert faults.planned == 0
    with pytest.raises(BlobNotFound):
        await straight.head(where)
