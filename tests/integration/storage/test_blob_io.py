"""Streams of plaintext through sealed blobs, over the in-memory store with faults and over a real S3."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from random import Random  # noqa: TID251  seeded: the same ranges every time
from uuid import UUID, uuid4

import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from crypto.blob import PART_BYTES, SEALED_PART_BYTES, BlobCipher, object_bytes
from crypto.ciphers.cobblestone import SALT_BYTES
from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobExists, BlobNotFound, BlobStore, BlobUnavailable, MultipartNotFound
from storage.ledger.streams import SLICE_BYTES, BlobDamaged, BlobReader, BlobTooLarge, BlobWriter, Budget
from tests.support.faulty_blobs import Fault, FaultyBlobStore

SOURCE = os.urandom(3 * PART_BYTES + 77_777)
BOUNDARIES = [0, 1, 100_000, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(SOURCE)]


def fresh() -> tuple[BlobLocation, BlobCipher]:
    tenant, blob = uuid4(), uuid4()
    sealer = Sealer(uuid4(), tenant, "user-1", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate()))
    return BlobLocation(tenant, blob), sealer.blob_cipher(blob, sealer.new_blob_key())


async def body(data: bytes, chunk_bytes: int = 65_536) -> AsyncIterator[bytes]:
    for offset in range(0, len(data), chunk_bytes):
        yield data[offset : offset + chunk_bytes]


async def collected(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def quiet(*budgets: Budget) -> None:
    """Wait until nothing that was begun here is under way, and nothing is held."""
    while any(budget.held_bytes for budget in budgets):
        others = [task for task in asyncio.all_tasks() if "_fetch" in repr(task) or "_put" in repr(task)]
        assert others, "memory is held for nobody"
        await asyncio.wait(others)


@pytest.fixture
def faults() -> FaultyBlobStore:
    return FaultyBlobStore(MemoryBlobStore())


@pytest.fixture(params=["memory", "real"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BlobStore]:
    made: BlobStore
    if request.param == "memory":
        made = MemoryBlobStore()
    else:
        made = S3BlobStore(S3Location.parse(request.getfixturevalue("s3_server").url()), threads=4)
    yield made
    await made.aclose()


@pytest.mark.parametrize("size", BOUNDARIES)
async def test_a_stream_of_any_size_comes_back(store: BlobStore, size: int) -> None:
    where, cipher = fresh()
    writer, reader = BlobWriter(store), BlobReader(store)
    written = await writer.write(where, cipher, body(SOURCE[:size]))
    assert written.size_bytes == size
    assert written.object_bytes == object_bytes(size) == (await store.head(where)).size_bytes
    assert await reader.read_bytes(where, cipher, size) == SOURCE[:size]
    assert await store.list_multiparts(tenant_prefix(where.tenant_id)) == []
    assert (writer.budget.held_bytes, reader.budget.held_bytes) == (0, 0)


@pytest.mark.parametrize("chunk_bytes", [1000, PART_BYTES, 2 * PART_BYTES + 1, len(SOURCE)])
async def test_how_a_stream_is_cut_makes_no_difference(chunk_bytes: int) -> None:
    where, cipher = fresh()
    store = MemoryBlobStore()
    await BlobWriter(store).write(where, cipher, body(SOURCE, chunk_bytes))
    assert await BlobReader(store).read_bytes(where, cipher, len(SOURCE)) == SOURCE


async def test_random_ranges_over_a_real_store_equal_the_slices_of_the_source(s3_server) -> None:
    store = S3BlobStore(S3Location.parse(s3_server.url()), threads=4)
    where, cipher = fresh()
    reader = BlobReader(store)
    await BlobWriter(store).write(where, cipher, body(SOURCE))
    random = Random(4)  # noqa: S311
    for _ in range(100):
        length = min(int(2 ** random.uniform(0, 23)), len(SOURCE))
        start = random.randrange(len(SOURCE) - length + 1)
        pieces = [piece async for piece in reader.read(where, cipher, len(SOURCE), start, length)]
        assert b"".join(pieces) == SOURCE[start : start + length]
        assert all(0 < len(piece) <= SLICE_BYTES for piece in pieces)
    assert await collected(reader.read(where, cipher, len(SOURCE), 5, 0)) == b""
    await store.aclose()


async def test_a_small_range_costs_one_request_at_the_front_of_a_part_and_two_behind(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    await BlobWriter(faults).write(where, cipher, body(SOURCE))
    for start, requests in ((PART_BYTES + 10, 1), (PART_BYTES + 4_000_000, 2)):
        faults.calls.clear()
        await collected(BlobReader(faults).read(where, cipher, len(SOURCE), start, 100))
        assert faults.calls == ["get_range"] * requests


async def test_bytes_in_hand_are_written_as_a_stream_is(store: BlobStore) -> None:
    for size in (0, 100_000, PART_BYTES):
        where, cipher = fresh()
        written = await BlobWriter(store).write_bytes(where, cipher, SOURCE[:size])
        assert written.object_bytes == object_bytes(size)
        assert await BlobReader(store).read_bytes(where, cipher, size) == SOURCE[:size]


async def test_the_id_of_an_upload_is_known_before_its_first_part(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    known: list[tuple[str, list[str]]] = []

    async def remember(multipart_id: str) -> None:
        known.append((multipart_id, list(faults.calls)))

    await BlobWriter(faults).write(where, cipher, body(SOURCE[:1000]), on_multipart=remember)
    assert known == []
    where, cipher = fresh()
    faults.calls.clear()
    await BlobWriter(faults).write(where, cipher, body(SOURCE), on_multipart=remember)
    assert [calls for _, calls in known] == [["begin_multipart"]]


async def test_a_stream_longer_than_allowed_is_refused_and_leaves_nothing(faults: FaultyBlobStore) -> None:
    for limit in (1000, 2 * PART_BYTES):
        where, cipher = fresh()
        writer = BlobWriter(faults)
        with pytest.raises(BlobTooLarge):
            await writer.write(where, cipher, body(SOURCE), size_bytes_max=limit)
        await leaves_nothing(faults, where, writer)


async def leaves_nothing(store: BlobStore, where: BlobLocation, writer: BlobWriter) -> None:
    await quiet(writer.budget)
    assert await store.list_objects(tenant_prefix(where.tenant_id)) == []
    assert await store.list_multiparts(tenant_prefix(where.tenant_id)) == []


async def test_a_stream_that_breaks_off_leaves_nothing(faults: FaultyBlobStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield SOURCE[: 2 * PART_BYTES + 5]
        raise ConnectionError

    where, cipher = fresh()
    writer = BlobWriter(faults)
    with pytest.raises(ConnectionError):
        await writer.write(where, cipher, broken())
    await leaves_nothing(faults, where, writer)


@pytest.mark.parametrize("operation", ["begin_multipart", "put_part"])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.TIMEOUT_BEFORE])
async def test_a_store_that_fails_fails_the_upload_and_leaves_nothing(
    faults: FaultyBlobStore, operation: str, fault: Fault
) -> None:
    where, cipher = fresh()
    writer = BlobWriter(faults)
    faults.plan(operation, fault)
    with pytest.raises(BlobUnavailable):
        await writer.write(where, cipher, body(SOURCE))
    await leaves_nothing(faults, where, writer)
    assert faults.planned == 0


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.LOST_RESPONSE])
async def test_an_upload_whose_last_answer_is_lost_may_have_made_the_object_whole(
    faults: FaultyBlobStore, fault: Fault
) -> None:
    where, cipher = fresh()
    writer = BlobWriter(faults)
    faults.plan("complete_multipart", fault)
    with pytest.raises(BlobUnavailable):
        await writer.write(where, cipher, body(SOURCE))
    assert await BlobReader(faults).read_bytes(where, cipher, len(SOURCE)) == SOURCE
    assert writer.budget.held_bytes == 0


async def test_a_cancelled_upload_leaves_nothing_and_holds_nothing(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    writer = BlobWriter(faults)
    faults.plan("put_part", None, Fault.SLOW)
    upload = asyncio.create_task(writer.write(where, cipher, body(SOURCE)))
    await faults.waiting.wait()
    upload.cancel()
    faults.release.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    await leaves_nothing(faults, where, writer)


async def test_a_location_that_is_taken_is_never_overwritten(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    await faults.put_if_absent(where, b"first")
    for size in (100, PART_BYTES + 1):
        with pytest.raises(BlobExists):
            await BlobWriter(faults).write(where, cipher, body(SOURCE[:size]))
        assert await faults.get(where) == b"first"


@pytest.mark.parametrize(
    ("fault", "refusal"), [(Fault.TRUNCATED, BlobDamaged), (Fault.UNAVAILABLE, BlobUnavailable)], ids=str
)
@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_download_that_fails_raises_after_true_bytes_only(
    faults: FaultyBlobStore, before: int, fault: Fault, refusal: type[Exception]
) -> None:
    where, cipher = fresh()
    await BlobWriter(faults).write(where, cipher, body(SOURCE))
    reader = BlobReader(faults)
    faults.plan("get_range", *[None] * before, *[fault] * 50)
    given = bytearray()

    async def pass_on() -> None:
        async with aclosing(reader.read(where, cipher, len(SOURCE))) as pieces:
            async for piece in pieces:
                given.extend(piece)

    with pytest.raises(refusal):
        await pass_on()
    assert len(given) < len(SOURCE)
    assert SOURCE.startswith(given)
    await quiet(reader.budget)


async def test_a_download_that_is_closed_early_gives_its_memory_back(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    await BlobWriter(faults).write(where, cipher, body(SOURCE))
    reader = BlobReader(faults)
    async with aclosing(reader.read(where, cipher, len(SOURCE))) as pieces:
        assert await anext(pieces) == SOURCE[:SLICE_BYTES]
        assert 0 < reader.budget.held_bytes <= reader.budget.bytes_max
    await quiet(reader.budget)


async def test_nothing_is_fetched_ahead_when_no_memory_is_free(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    await BlobWriter(faults).write(where, cipher, body(SOURCE))
    for bytes_max, requests in ((5 << 20, 1), (3 * SEALED_PART_BYTES, 2), (5 * SEALED_PART_BYTES, 3)):
        reader = BlobReader(faults, bytes_max=bytes_max)
        faults.calls.clear()
        async with aclosing(reader.read(where, cipher, len(SOURCE))) as pieces:
            await anext(pieces)
            await anext(pieces)
            assert faults.calls == ["get_range"] * requests
        await quiet(reader.budget)


async def test_downloads_share_their_memory_and_none_waits_for_ever(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    await BlobWriter(faults).write(where, cipher, body(SOURCE))
    reader = BlobReader(faults, bytes_max=SEALED_PART_BYTES)
    for given in await asyncio.gather(*(reader.read_bytes(where, cipher, len(SOURCE)) for _ in range(6))):
        assert given == SOURCE
    assert reader.budget.held_bytes == 0


async def test_uploads_share_their_memory(faults: FaultyBlobStore) -> None:
    held: list[int] = []
    writer = BlobWriter(faults, bytes_max=2 * SEALED_PART_BYTES)

    async def watch(*_: str) -> None:
        held.append(writer.budget.held_bytes)

    faults.hook = watch
    made = [fresh() for _ in range(4)]
    await asyncio.gather(*(writer.write(*each, body(SOURCE)) for each in made))
    assert max(held) <= 2 * SEALED_PART_BYTES
    assert writer.budget.held_bytes == 0
    for where, cipher in made:
        assert await BlobReader(faults).read_bytes(where, cipher, len(SOURCE)) == SOURCE


ONE, TWO, THREE = uuid4(), uuid4(), uuid4()


async def test_who_waits_too_long_for_memory_is_refused_and_the_next_one_is_not() -> None:
    budget = Budget(10, wait_seconds_max=0.01)
    taken = await budget.take(8, ONE)
    with pytest.raises(BlobUnavailable):
        await budget.take(5, TWO)
    assert await budget.take(2, TWO) == 2
    budget.give(taken, ONE)
    budget.give(2, TWO)
    assert await budget.take(99, TWO) == 10  # more than there is counts as all
    budget.give(10, TWO)
    assert budget.held_bytes == 0


async def test_memory_is_given_out_in_the_order_it_was_asked_for() -> None:
    budget = Budget(10)
    await budget.take(6, ONE)
    order: list[str] = []

    async def ask(name: str, size: int, tenant_id: UUID) -> None:
        await budget.take(size, tenant_id)
        order.append(name)

    large, small = asyncio.create_task(ask("large", 10, TWO)), asyncio.create_task(ask("small", 1, THREE))
    gone = asyncio.create_task(ask("gone", 3, THREE))
    await asyncio.sleep(0)
    gone.cancel()
    budget.give(6, ONE)
    await large
    assert order == ["large"]
    budget.give(10, TWO)
    await small
    assert order == ["large", "small"]
    budget.give(1, THREE)
    assert budget.held_bytes == 0


async def test_a_tenant_never_holds_so_much_that_another_finds_nothing() -> None:
    budget = Budget(10)
    assert [budget.take_now(2, ONE) for _ in range(5)] == [2, 2, 2, None, None]
    assert [budget.take_now(2, TWO) for _ in range(2)] == [2, None]
    assert budget.take_now(2, THREE) == 2


async def test_a_tenant_that_waits_for_its_own_streams_stands_in_nobodys_way() -> None:
    budget = Budget(10)
    for _ in range(3):
        await budget.take(2, ONE)
    more = [asyncio.create_task(budget.take(2, ONE)) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in more)
    assert await budget.take(2, TWO) == 2
    assert budget.take_now(2, THREE) == 2
    for _ in range(3):
        budget.give(2, ONE)
    assert await more[0] == 2
    for each in more[1:]:
        each.cancel()


async def test_of_those_who_wait_the_tenant_that_holds_least_is_served_first() -> None:
    budget = Budget(10)
    await budget.take(8, THREE)
    await budget.take(2, ONE)
    first = asyncio.create_task(budget.take(2, ONE))
    await asyncio.sleep(0)
    second = asyncio.create_task(budget.take(4, TWO))
    await asyncio.sleep(0)
    budget.give(4, THREE)
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, True)
    budget.give(4, THREE)
    assert await first == 2


def salts(sealed: bytes) -> Iterable[bytes]:
    return (sealed[at : at + SALT_BYTES] for at in range(0, len(sealed), SEALED_PART_BYTES))


async def test_a_part_that_is_sent_again_has_another_salt(faults: FaultyBlobStore) -> None:
    where, cipher = fresh()
    writer = BlobWriter(faults)
    multipart_id = await faults.begin_multipart(where)
    etags = [await writer.put_part(where, cipher, multipart_id, 0, SOURCE[:PART_BYTES], last=False) for _ in range(3)]
    assert len(set(etags)) == 3
    last = await writer.put_part(where, cipher, multipart_id, 1, SOURCE[PART_BYTES : PART_BYTES + 9], last=True)
    size = PART_BYTES + 9
    await faults.complete_multipart(where, multipart_id, [(0, etags[-1]), (1, last)], size_bytes=object_bytes(size))
    assert await BlobReader(faults).read_bytes(where, cipher, size) == SOURCE[:size]
    assert len(set(salts(await faults.get(where)))) == 2
    with pytest.raises(MultipartNotFound):
        await writer.put_part(where, cipher, multipart_id, 2, b"late", last=True)
    assert writer.budget.held_bytes == 0


async def test_a_deleted_blob_is_damage_to_whoever_reads_it(store: BlobStore) -> None:
    where, cipher = fresh()
    await BlobWriter(store).write(where, cipher, body(b"x"))
    await store.delete(where)
    with pytest.raises(BlobDamaged):
        await BlobReader(store).read_bytes(where, cipher, 1)
    with pytest.raises(BlobNotFound):
        await store.get(where)


class SpoiledOnTheWay(MemoryBlobStore):
    """Answers to ranges arrive with another byte, so many times."""

    spoiled = 0

    async def get_range(self, *where, **named):
        data = bytearray(await super().get_range(*where, **named))
        if self.spoiled > 0:
            self.spoiled -= 1
            data[-1] ^= 1
        return bytes(data)


@pytest.mark.parametrize("size", [1, PART_BYTES - 1, 2 * PART_BYTES])
async def test_what_was_spoiled_on_the_way_is_read_once_more(size: int) -> None:
    store = SpoiledOnTheWay()
    where, cipher = fresh()
    await BlobWriter(store).write(where, cipher, body(SOURCE[:size]))
    reader = BlobReader(store)
    store.spoiled = 1
    assert await reader.read_bytes(where, cipher, size) == SOURCE[:size]
    store.spoiled = 1_000
    with pytest.raises(BlobDamaged):
        await reader.read_bytes(where, cipher, size)
    await quiet(reader.budget)
