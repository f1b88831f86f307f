"""Every way to cut, move, swap or alter the parts of a blob is refused (threats 3, 4 and 9 of the threat model)."""

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from uuid import UUID, uuid4

import pytest

from crypto.blob import PART_BYTES, SEALED_PART_BYTES, BlobCipher, object_bytes
from crypto.ciphers.cobblestone import CHUNK_BYTES, COMMITMENT_BYTES, PREFIX_BYTES, SALT_BYTES, SEALED_CHUNK_BYTES
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer
from storage.blobs.keyspace import BlobLocation
from storage.blobs.memory import MemoryBlobStore
from storage.ledger.streams import BlobDamaged, BlobReader

DEPLOYMENT, TENANT, BLOB = UUID(int=1), UUID(int=2), UUID(int=3)
WHERE = BlobLocation(TENANT, BLOB)
DATA_KEY, ID_KEY, BLOB_KEY = SecretKey.generate(), SecretKey.generate(), Sealer.new_blob_key()


def cipher(
    *,
    deployment: UUID = DEPLOYMENT,
    tenant: UUID = TENANT,
    subject: str = "user-42",
    blob_id: UUID = BLOB,
    blob_key: SecretKey = BLOB_KEY,
) -> BlobCipher:
    return Sealer(deployment, tenant, subject, SubjectKeys({1: DATA_KEY}, 1, ID_KEY)).blob_cipher(blob_id, blob_key)


def seal(plaintext: bytes, by: BlobCipher | None = None) -> bytes:
    by = by or cipher()
    last = len(plaintext) // PART_BYTES
    return b"".join(
        by.seal_part(number, plaintext[number * PART_BYTES : (number + 1) * PART_BYTES], last=number == last)
        for number in range(last + 1)
    )


SOURCE = os.urandom(2 * PART_BYTES + 40_000)
SEALED = seal(SOURCE)
FULL_SOURCE = SOURCE[:PART_BYTES]
FULL_SEALED = seal(FULL_SOURCE)
FIRST, SECOND, LAST = (SEALED[n * SEALED_PART_BYTES : (n + 1) * SEALED_PART_BYTES] for n in range(3))


async def read(sealed: bytes, size_bytes: int, by: BlobCipher | None = None, start: int = 0, length: int | None = None):
    store = MemoryBlobStore()
    await store.put_if_absent(WHERE, sealed)
    given = bytearray()
    reader = BlobReader(store)
    before = asyncio.all_tasks()
    try:
        async with aclosing(reader.read(WHERE, by or cipher(), size_bytes, start, length)) as pieces:
            async for piece in pieces:
                given += piece
    finally:
        # Whatever was given before the failure is the truth.
        wanted = SOURCE[:size_bytes][start:] if length is None else SOURCE[start : start + length]
        assert wanted.startswith(given) or (by is not None and not given)
        others = asyncio.all_tasks() - {asyncio.current_task(), *before}
        await asyncio.gather(*others, return_exceptions=True)  # what was fetched ahead ends
        assert reader.budget.held_bytes == 0
    return bytes(given)


async def test_what_was_sealed_is_read() -> None:
    assert await read(SEALED, len(SOURCE)) == SOURCE
    assert await read(FULL_SEALED, PART_BYTES) == FULL_SOURCE
    assert await read(seal(b""), 0) == b""
    assert len(SEALED) == object_bytes(len(SOURCE))
    assert len(FULL_SEALED) == object_bytes(PART_BYTES) == SEALED_PART_BYTES + 72


def flipped(offset: int) -> Callable[[], bytes]:
    def flip() -> bytes:
        damaged = bytearray(SEALED)
        damaged[offset] ^= 0x10
        return bytes(damaged)

    return flip


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda: FIRST + SECOND, id="dropped last part"),
        pytest.param(lambda: SECOND + FIRST + LAST, id="swapped parts"),
        pytest.param(lambda: FIRST + FIRST + LAST, id="duplicated part in another's place"),
        pytest.param(lambda: FIRST + FIRST + SECOND + LAST, id="duplicated part"),
        pytest.param(lambda: FIRST + LAST, id="dropped middle part"),
        pytest.param(lambda: SEALED[:-1], id="cut by one byte"),
        pytest.param(lambda: SEALED[: 2 * SEALED_PART_BYTES + PREFIX_BYTES + SEALED_CHUNK_BYTES], id="cut at a chunk"),
        pytest.param(lambda: SEALED[: 2 * SEALED_PART_BYTES], id="cut at a part"),
        pytest.param(lambda: SEALED[: 2 * SEALED_PART_BYTES + PREFIX_BYTES], id="cut after a prefix"),
        pytest.param(lambda: SEALED + b"\0", id="appended byte"),
        pytest.param(lambda: SEALED + os.urandom(100_000), id="appended garbage"),
        pytest.param(lambda: SEALED + LAST, id="appended last part"),
        pytest.param(lambda: b"", id="empty object"),
        pytest.param(flipped(0), id="flipped salt"),
        pytest.param(flipped(SALT_BYTES), id="flipped commitment"),
        pytest.param(flipped(PREFIX_BYTES - 1), id="flipped end of the commitment"),
        pytest.param(flipped(SEALED_PART_BYTES + PREFIX_BYTES + 5 * SEALED_CHUNK_BYTES + 7), id="flipped body"),
        pytest.param(flipped(SEALED_PART_BYTES - 1), id="flipped tag of the empty chunk that ends a part"),
        pytest.param(flipped(2 * SEALED_PART_BYTES + SALT_BYTES + COMMITMENT_BYTES - 1), id="flipped later commitment"),
        pytest.param(flipped(-1), id="flipped tail"),
    ],
)
async def test_a_damaged_object_is_refused(damaged: Callable[[], bytes]) -> None:
    with pytest.raises(BlobDamaged):
        await read(damaged(), len(SOURCE))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"tenant": UUID(int=9)}, id="another tenant"),
        pytest.param({"subject": "user-43"}, id="another user"),
        pytest.param({"blob_id": UUID(int=9)}, id="another blob id"),
        pytest.param({"deployment": UUID(int=9)}, id="another deployment"),
        pytest.param({"blob_key": SecretKey.generate()}, id="another key"),
    ],
)
async def test_a_blob_of_someone_else_is_refused(other) -> None:
    with pytest.raises(BlobDamaged):
        await read(SEALED, len(SOURCE), cipher(**other))
    with pytest.raises(BlobDamaged):
        await read(seal(b"small", cipher(**other)), 5)


async def test_an_object_that_ends_on_a_full_part_is_refused() -> None:
    with pytest.raises(BlobDamaged):
        await read(FULL_SEALED[:SEALED_PART_BYTES], PART_BYTES)
    with pytest.raises(BlobDamaged):
        await read(FIRST + seal(b"", cipher(blob_id=uuid4())), PART_BYTES)
    # A part of a longer blob looks the same and says nothing about the end; the pointer and the last part do.
    with pytest.raises(BlobDamaged):
        await read(SEALED, PART_BYTES)


async def test_an_empty_blob_is_one_sealed_part_and_nothing_else() -> None:
    for damaged in (b"", seal(b"")[:-1], seal(b"") + b"\0", seal(b"x")):
        with pytest.raises(BlobDamaged):
            await read(damaged, 0)


@pytest.mark.parametrize("claimed", [len(SOURCE) - 1, len(SOURCE) + 1, len(SOURCE) + CHUNK_BYTES, 3 * PART_BYTES])
async def test_an_object_of_another_size_than_its_pointer_says_is_refused(claimed: int) -> None:
    with pytest.raises(BlobDamaged):
        await read(SEALED, claimed)


async def test_a_missing_object_is_refused() -> None:
    with pytest.raises(BlobDamaged):
        await BlobReader(MemoryBlobStore()).read_bytes(WHERE, cipher(), 10)


async def test_a_chunk_of_another_version_of_a_part_is_refused() -> None:
    # The same bytes sealed again, as a resumed upload does: no chunk fits into the other.
    again = cipher().seal_part(0, FULL_SOURCE, last=False)
    mixed = FIRST[: PREFIX_BYTES + SEALED_CHUNK_BYTES] + again[PREFIX_BYTES + SEALED_CHUNK_BYTES :]
    with pytest.raises(BlobDamaged):
        await read(mixed + SECOND + LAST, len(SOURCE))


async def test_a_range_is_refused_when_its_own_bytes_are_damaged_and_given_when_they_are_not() -> None:
    start = PART_BYTES + 5 * CHUNK_BYTES
    damaged = flipped(SEALED_PART_BYTES + PREFIX_BYTES + 5 * SEALED_CHUNK_BYTES + 7)()
    with pytest.raises(BlobDamaged):
        await read(damaged, len(SOURCE), start=start, length=10)
    assert await read(damaged, len(SOURCE), start=start - 10, length=10) == SOURCE[start - 10 : start]


async def test_late_damage_ends_a_read_with_an_error_after_the_bytes_before_it() -> None:
    store = MemoryBlobStore()
    await store.put_if_absent(WHERE, flipped(-1)())
    given = bytearray()

    async def pass_on() -> None:
        async for piece in BlobReader(store).read(WHERE, cipher(), len(SOURCE)):
            assert len(piece) <= 1 << 20
            given.extend(piece)

    with pytest.raises(BlobDamaged):
        await pass_on()
    assert given == SOURCE[: 2 * PART_BYTES]
