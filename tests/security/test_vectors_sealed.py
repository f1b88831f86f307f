"""Embeddings are plaintext by another name: whoever reads the database finds no number of one, nor two that are equal.

What is looked for are canaries: vectors of 96 dimensions, of which any 12 in a row give them away in any form that
numbers have: as floats of 32 or 16 bits in either order of bytes, at their length or at length 1, or as signed bytes.
"""

import asyncio
import math
import struct
import zlib
from itertools import combinations
from random import Random  # noqa: TID251  seeded: the same vectors every time
from uuid import uuid4

import pytest

from crypto import KeyDestroyed
from crypto.context import HEADER_BYTES
from storage.control.features import ITEMS
from storage.errors import IntegrityFailure
from storage.format.items.vectors import VectorColumns, open_vectors, quantized
from storage.items.model import Batch, ItemSearch, ModelVectors, Near
from storage.scope import Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.item_rows import PATH, SHARE, TABLES, put, restore, rows, write

MODEL = "example-embed"
DIMENSIONS, GIVEN_AWAY_BY = 96, 12
WINDOW_BYTES = 12  # of ciphertext: so many that are equal are no chance


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


def canary(seed, dimensions=DIMENSIONS):
    random = Random(f"canary {seed}")  # noqa: S311  a vector, no secret
    return [random.uniform(-1, 1) for _ in range(dimensions)]


def with_vector(key, *vectors, path=PATH):
    return put(key, {"text": key}, path=path, vectors=(ModelVectors(MODEL, tuple(map(quantized, vectors))),))


async def search(store, scope, vector, share=None):
    wanted = ItemSearch(near=Near(MODEL, tuple(vector)))
    return (await store.items.run(scope, Batch(searches=[wanted]), share=share)).searches[0].items


def forms(vector):
    """Every part of a vector that gives it away, in each form that numbers have."""
    length, stored = math.hypot(*vector), quantized(vector)
    numbers = [vector, [each / length for each in vector]]
    whole = [(struct.pack(f"{order}{len(vector)}{kind}", *each), size)
             for each in numbers for order in "<>" for kind, size in (("f", 4), ("e", 2))]  # fmt: skip
    whole += [(stored.codes, 1), (bytes(each ^ 0x80 for each in stored.codes), 1), (stored.direction, 2)]
    return {
        data[at : at + GIVEN_AWAY_BY * size]
        for data, size in whole
        for at in range(0, len(data) - GIVEN_AWAY_BY * size + 1, size)
    }


def given_away(data, wanted):
    """The forms that stand in some bytes, wherever they begin."""
    lengths = {len(each) for each in wanted}
    return {data[at : at + size] for size in lengths for at in range(len(data) - size + 1)} & wanted


def bytes_of(row):
    return b"\xff".join(each if isinstance(each, bytes) else str(each).encode() for each in row.values())


def body(row):
    return row["envelope"][HEADER_BYTES:]


def windows(data):
    return {data[at : at + WINDOW_BYTES] for at in range(len(data) - WINDOW_BYTES + 1)}


def columns(row):
    return VectorColumns(row["path_id"], row["key_id"], row["model_id"], row["revision"], row["sequence"])


@pytest.mark.parametrize("share", [None, SHARE], ids=["without a share", "with a share"])
async def test_no_stored_bytes_are_a_vectors_numbers_in_any_form(store, scope, admin, share):
    vectors = [canary(number) for number in range(6)]
    await write(store, scope, with_vector("one", vectors[0]), with_vector("five", *vectors[1:]), share=share)
    await write(store, scope, with_vector("one", vectors[0]), share=share)  # in the place of itself
    wanted = set().union(*map(forms, vectors))
    stored = {table: await rows(admin, scope, table) for table in TABLES}
    assert len(stored["item_vectors"]) == 2
    for table, of_table in stored.items():
        assert of_table, table
        for row in of_table:
            assert given_away(bytes_of(row), wanted) == set(), table
            assert MODEL.encode() not in bytes_of(row)
    found = await search(store, scope, vectors[3], share)  # and they are there for whoever has the keys
    assert (found[0].name.key, found[0].score) == ("five", pytest.approx(1.0, abs=0.001))


async def test_the_canaries_are_found_where_they_are_not_sealed(store, scope, admin):
    vector = canary("control")
    await write(store, scope, with_vector("a", vector))
    (row,) = await rows(admin, scope, "item_vectors")
    sealer = await store.keys.sealer(scope)
    (unsealed,) = open_vectors(sealer, columns(row), row["envelope"], row["member"]).vectors
    clear = [unsealed.codes, unsealed.direction, struct.pack(f"<{DIMENSIONS}f", *vector)]
    for each in clear:
        leaking = row | {"envelope": row["envelope"][:40] + each + row["envelope"][40:]}
        assert len(given_away(bytes_of(leaking), forms(vector))) >= DIMENSIONS - GIVEN_AWAY_BY + 1
    assert given_away(bytes_of(row), forms(vector)) == set()


async def test_equal_vectors_cannot_be_matched_across_subjects_items_or_time(store, scope, admin):
    vector = canary("equal")
    tenant = Scope(scope.tenant_id, "user-2"), Scope(uuid4(), scope.subject_id)
    stored = []
    for each in (scope, *tenant):
        await write(store, each, with_vector("a", vector), with_vector("b", vector))
        await write(store, each, with_vector("a", vector, path=("elsewhere",)))
        stored += await rows(admin, each, "item_vectors")
    await write(store, scope, with_vector("a", vector))
    stored += [row for row in await rows(admin, scope, "item_vectors") if row["revision"] == 3]
    await write(store, scope, with_vector("a", vector), share=SHARE)
    stored += [row for row in await rows(admin, scope, "item_vectors") if row["path_id"] not in _paths(stored)]
    assert len(stored) == 11
    for one, other in combinations(stored, 2):
        assert windows(body(one)) & windows(body(other)) == set()
        assert one["member"] != other["member"]
        assert windows(one["member"]) & windows(other["member"]) == set()
    models = {(row["tenant_id"], row["subject_id"]): row["model_id"] for row in stored[:9]}
    assert len({*models.values()}) == 3  # not even that two subjects use one model is seen


def _paths(stored):
    return {row["path_id"] for row in stored}


async def test_the_size_of_a_row_tells_how_many_numbers_there_are_and_nothing_of_them(store, scope, admin):
    vectors = [canary("size"), [0.0] * DIMENSIONS, [1.0] * DIMENSIONS, [1.0, *[0.0] * (DIMENSIONS - 1)]]
    await write(store, scope, *(with_vector(f"k{number}", each) for number, each in enumerate(vectors)))
    stored = await rows(admin, scope, "item_vectors")
    assert len({len(row["envelope"]) for row in stored}) == 1
    assert all(len(zlib.compress(body(row))) >= len(body(row)) for row in stored)


async def test_a_row_put_in_the_place_of_an_equal_vectors_row_is_noticed(store, scope, admin):
    vector = canary("moved")
    await write(store, scope, with_vector("a", vector), with_vector("b", vector))
    before = await rows(admin, scope, "item_vectors")
    one, other = before
    for moved in (("envelope",), ("envelope", "member")):
        edited = one | {name: other[name] for name in moved}
        await restore(admin, scope, "item_vectors", [edited, other])
        with pytest.raises(IntegrityFailure):
            await search(store, scope, vector)
    await restore(admin, scope, "item_vectors", before)
    assert len(await search(store, scope, vector)) == 2


async def test_no_other_subjects_key_opens_a_vector(store, scope, admin):
    await write(store, scope, with_vector("a", canary("own")))
    (row,) = await rows(admin, scope, "item_vectors")
    for other in (Scope(scope.tenant_id, "user-2"), Scope(uuid4(), scope.subject_id)):
        await write(store, other, with_vector("a", canary("own")))
        sealer = await store.keys.sealer(other)
        with pytest.raises(IntegrityFailure):
            open_vectors(sealer, columns(row), row["envelope"], row["member"])


@pytest.mark.parametrize("is_warm", [True, False], ids=["a gateway that had them open", "another gateway"])
async def test_after_a_shred_no_vector_opens_wherever_its_row_is_kept(store, scope, admin, database, root_key, is_warm):
    vector = canary("shredded")
    await write(store, scope, with_vector("a", vector), with_vector("b", vector))
    assert len(await search(store, scope, vector)) == 2
    backup = {table: await rows(admin, scope, table) for table in TABLES}
    begun = await store.shred.subject(scope, scope.subject_id, "api-key:test")
    async with asyncio.timeout(60):
        while (await store.jobs.get(TenantScope(scope.tenant_id), begun.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    assert await rows(admin, scope, "item_vectors") == []
    for table, kept in backup.items():
        await restore(admin, scope, table, kept)
    assert {row["wrapped"] for row in await rows(admin, scope, "subject_keys")} == {None}
    async with opened(database, root_key) as another:
        with pytest.raises(KeyDestroyed):
            await search(store if is_warm else another, scope, vector)
        # Keys that are made anew are others.
        again = Scope(scope.tenant_id, "user-2")
        await write(another, again, with_vector("a", vector))
        sealer = await another.keys.sealer(again)
        for row in backup["item_vectors"]:
            with pytest.raises(IntegrityFailure):
                open_vectors(sealer, columns(row), row["envelope"], row["member"])
