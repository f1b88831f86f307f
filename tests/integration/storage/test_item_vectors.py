"""Items by what they mean: their vectors are sealed, searched exactly, and only as good as the items they are of."""

import math
from array import array

import asyncpg
import pytest

from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure, ItemIndexTooLarge, ItemModelsExceeded, ItemMoved, ItemNotFound, NotFound
from storage.format.items.vectors import quantized
from storage.items import filters
from storage.items.finding.index import INDEX_SECONDS, Indexes
from storage.items.finding.nearest import BESIDE_BYTES_MIN, nearest
from storage.items.finding.searching import Budget
from storage.items.model import Batch, ItemName, ItemSearch, ItemWrite, ModelVectors, Near, Written
from storage.items.reading import Reading
from storage.model import Idempotency, Value
from storage.scope import ClientShare, Scope
from tests.support.archive_rows import opened
from tests.support.features import switch_on

PATH = ("memories", "ada")
MODEL = "example-embed"


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


def unit(angle):
    return (math.cos(angle), math.sin(angle), 0.0)


def of(*vectors, model=MODEL):
    return (ModelVectors(model, tuple(map(quantized, vectors))),)


def put(key, *vectors, value=None, path=PATH, model=MODEL, **condition):
    content = Value("msgpack", encode_msgpack(value or {"k": key}))
    return ItemWrite(ItemName(path, key), content, vectors=of(*vectors, model=model) if vectors else (), **condition)


def give(key, *vectors, path=PATH, model=MODEL, **condition):
    return ItemWrite(ItemName(path, key), None, vectors=of(*vectors, model=model), **condition)


def delete(key, path=PATH):
    return ItemWrite(ItemName(path, key), None)


async def write(store, scope, *writes, share=None):
    return (await store.items.run(scope, Batch(writes=[*writes]), share=share)).writes


async def find(store, scope, values, *, model=MODEL, metric="cosine", share=None, **wanted):
    filter_ = wanted.pop("filter", None)
    search = ItemSearch(
        near=Near(model, tuple(values), metric), filter=filter_ and filters.parse(filter_, ""), **wanted
    )
    return (await store.items.run(scope, Batch(searches=[search]), share=share)).searches[0]


async def found(store, scope, values, **wanted):
    return [each.name.key for each in (await find(store, scope, values, **wanted)).items]


async def test_the_nearest_come_first_with_their_scores(store, scope):
    await write(store, scope, *(put(f"k{n}", unit(n / 10)) for n in range(8)), put("none"))
    page = await find(store, scope, unit(0.32), prefix=PATH, limit=4)
    assert [each.name.key for each in page.items] == ["k3", "k4", "k2", "k5"]
    assert [each.score for each in page.items] == pytest.approx(
        [math.cos(0.02), math.cos(0.08), math.cos(0.12), math.cos(0.18)], abs=0.001
    )
    assert "none" not in await found(store, scope, unit(0), limit=100)


async def test_scores_are_of_the_metric_that_is_asked_for(store, scope):
    await write(store, scope, put("near", (2.0, 0.0)), put("far", (0.0, 5.0)))
    by = {metric: (await find(store, scope, (1.0, 1.0), metric=metric)).items for metric in ("cosine", "dot", "l2")}
    assert [each.name.key for each in by["dot"]] == ["far", "near"]
    assert [each.score for each in by["dot"]] == pytest.approx([5.0, 2.0], rel=0.001)
    assert [each.name.key for each in by["l2"]] == ["near", "far"]
    assert [each.score for each in by["l2"]] == pytest.approx([-math.sqrt(2), -math.sqrt(17)], rel=0.01)


async def test_an_item_has_the_score_of_its_best_vector_and_comes_once(store, scope):
    await write(store, scope, put("two", unit(0.0), unit(1.5)), put("one", unit(0.7)))
    page = await find(store, scope, unit(1.5))
    assert [each.name.key for each in page.items] == ["two", "one"]
    assert page.items[0].score == pytest.approx(1.0, abs=0.01)


async def test_a_put_replaces_all_vectors_and_a_deleted_item_is_no_hit(store, scope):
    await write(store, scope, put("a", unit(0.0)), put("b", unit(0.1)), put("c", unit(0.2)))
    assert await found(store, scope, unit(0.0)) == ["a", "b", "c"]
    await write(store, scope, put("a", unit(1.5)), put("b"), delete("c"))
    assert await found(store, scope, unit(0.0)) == ["a"]
    await write(store, scope, put("c", unit(0.0)))
    assert await found(store, scope, unit(0.0)) == ["c", "a"]


async def test_a_search_of_an_earlier_moment_takes_nothing_from_later_ones(store, scope):
    await write(store, scope, put("old", unit(0.1)))

    async def of_before(sealer):
        async with store.unit_of_work.snapshot(scope) as transaction:
            reading = Reading(transaction, scope, sealer, store.items.lists, store.items.keeping)
            assert len(await reading.paths_like(lambda _: True)) == 1  # it sees what is there now
            await write(store, scope, put("new", unit(0.0)))
            assert await found(store, scope, unit(0.0)) == ["new", "old"]
            wanted = ItemSearch(near=Near(MODEL, unit(0.0), "cosine"))
            return await nearest(reading, scope, store.items.indexes, Budget(), wanted)

    page = await store.items._access.with_existing_keys(scope, of_before, NotFound())
    assert [each.name.key for each in page.items] == ["old"]
    assert await found(store, scope, unit(0.0)) == ["new", "old"]


async def test_pages_are_full_whatever_is_filtered_and_gone(store, scope):
    await write(store, scope, *(put(f"k{n}", unit(n / 1000), value={"even": n % 2 == 0}) for n in range(90)))
    await find(store, scope, unit(0))  # opened now, so that what is deleted next is in the index
    await write(store, scope, *(delete(f"k{n}") for n in range(0, 90, 4)))
    wanted = [f"k{n}" for n in range(90) if n % 2 == 0 and n % 4]
    shown, after = [], None
    while True:
        page = await find(store, scope, unit(0), filter={"even": True}, limit=5, after=after)
        shown += [each.name.key for each in page.items]
        assert len(page.items) == 5 or page.after is None
        after = page.after
        if after is None:
            break
    assert shown == wanted
    assert await found(store, scope, unit(0), filter={"even": True}, limit=5, offset=10) == wanted[10:15]


async def test_vectors_are_given_to_an_item_that_is_there_and_leave_it_as_it_is(store, scope):
    (made,) = await write(store, scope, put("a", unit(0.0)))
    (given,) = await write(store, scope, give("a", unit(1.0), model="another", if_revision=made.revision))
    assert (given.status, given.revision) == ("indexed", made.revision)
    assert await found(store, scope, unit(0.0)) == ["a"]
    assert await found(store, scope, unit(0.0), model="another") == ["a"]
    (again,) = await write(store, scope, give("a", unit(1.5)))
    assert again.status == "indexed"
    assert (await find(store, scope, unit(1.5))).items[0].score == pytest.approx(1.0, abs=0.01)
    refused = await write(store, scope, give("a", unit(0), if_revision=99), give("b", unit(0)))
    assert [type(each) for each in refused] == [ItemMoved, ItemNotFound]


async def test_subjects_shares_and_models_have_indexes_of_their_own(store, scope):
    share = ClientShare(b"s" * 32)
    await write(store, scope, put("open", unit(0.0)))
    await write(store, scope, put("shared", unit(0.0)), share=share)
    assert await found(store, scope, unit(0.0)) == ["open"]
    assert await found(store, scope, unit(0.0), share=share) == ["shared"]
    assert await found(store, Scope(scope.tenant_id, "somebody-else"), unit(0.0)) == []
    assert await found(store, scope, unit(0.0), model="another") == []
    assert await found(store, scope, (1.0, 0.0)) == []  # of other dimensions


async def test_what_is_found_is_what_an_exact_search_over_the_numbers_finds(store, scope):
    vectors = {f"k{n}": [math.sin((n + 1) * (i + 1) * 1.7) for i in range(64)] for n in range(400)}
    for start in range(0, 400, 100):
        names = list(vectors)[start : start + 100]
        await write(store, scope, *(put(name, vectors[name]) for name in names))
    hits = 0
    for n in range(20):
        query = [math.cos((n + 3) * (i + 2) * 0.9) for i in range(64)]

        def cosine(name, query=query):
            own = vectors[name]
            return sum(a * b for a, b in zip(own, query, strict=True)) / math.dist(own, [0] * 64)

        exact = sorted(vectors, key=cosine, reverse=True)[:10]
        hits += len({*exact} & {*await found(store, scope, query, limit=10)})
    assert hits >= 190


async def test_swapped_rows_of_vectors_are_noticed_by_who_searches(store, scope, database):
    await write(store, scope, put("a", unit(0.0)), put("b", unit(0.5)))
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        await connection.execute(
            "UPDATE stateroom.item_vectors v SET envelope = o.envelope FROM stateroom.item_vectors o"
            " WHERE v.tenant_id = $1 AND o.tenant_id = $1 AND v.key_id <> o.key_id",
            scope.tenant_id,
        )
    finally:
        await connection.close()
    with pytest.raises(IntegrityFailure):
        await find(store, scope, unit(0.0))


async def test_more_vectors_than_one_subject_may_have_are_refused_by_name(database, root_key, scope):
    async with opened(database, root_key) as store:
        await switch_on(store, ITEMS)
        store.items.indexes = Indexes(index_bytes_max=500)
        await write(store, scope, *(put(f"k{n}", [1.0] * 32) for n in range(3)))
        with pytest.raises(ItemIndexTooLarge):
            await find(store, scope, [1.0] * 32)


async def test_what_is_large_is_compared_beside_the_event_loop(store, scope):
    many = [[math.cos(n), math.sin(n), *[0.0] * 4094] for n in range(80)]
    assert len(many) * len(many[0]) > BESIDE_BYTES_MIN
    await write(store, scope, *(put(f"k{n}", each) for n, each in enumerate(many)))
    assert await found(store, scope, many[7], limit=1) == ["k7"]


async def test_all_of_several_paths_are_opened_in_as_many_pages_as_they_take(store, scope):
    one, other = (quantized([sign, 1.0, *[0.0] * 4094]) for sign in (1.0, -1.0))
    few, many = (ModelVectors(MODEL, (one,)),), (ModelVectors(MODEL, (one, *(other,) * 63)),)
    content = Value("msgpack", encode_msgpack({}))
    names = [ItemName(("p", str(n % 5)), f"k{n}") for n in range(400)]
    for start in range(0, 400, 100):
        puts = [ItemWrite(name, content, vectors=few) for name in names[start : start + 100]]
        await write(store, scope, *puts)
    for name in names[::100]:
        await write(store, scope, ItemWrite(name, content, vectors=many))
    page = await find(store, scope, [1.0, 1.0, *[0.0] * 4094], limit=1000)
    assert {each.name for each in page.items} == {*names}
    assert {round(each.score or 0, 2) for each in page.items} == {1.0}
    await write(store, scope, *(ItemWrite(name, content, vectors=few) for name in names[:50]))
    assert len((await find(store, scope, [1.0, 1.0, *[0.0] * 4094], limit=1000)).items) == 400


def test_a_vector_of_zeros_is_like_nothing():
    assert quantized([0.0, 0.0]).codes == bytes(2)
    assert array("b", quantized([1.0, -1.0, 0.25]).codes).tolist() == [127, -127, 32]


async def test_opened_vectors_are_forgotten_when_nobody_uses_them_and_not_kept_under_a_share(database, root_key, scope):
    now = [0.0]
    async with opened(database, root_key) as store:
        await switch_on(store, ITEMS)
        store.items.indexes = Indexes(monotonic=lambda: now[0])
        await write(store, scope, put("a", unit(0.0)), share=(share := ClientShare(b"s" * 32)))
        assert await found(store, scope, unit(0.0), share=share) == ["a"]
        assert store.items.indexes.size_bytes == 0
        await write(store, scope, put("a", unit(0.0)))
        await found(store, scope, unit(0.0))
        assert store.items.indexes.size_bytes > 0
        now[0] += INDEX_SECONDS - 1
        await store.items.flush()
        await found(store, scope, unit(0.0))
        now[0] += INDEX_SECONDS - 1
        await store.items.flush()
        assert store.items.indexes.size_bytes > 0
        now[0] += 1
        await store.items.flush()
        assert store.items.indexes.size_bytes == 0


async def test_indexes_give_way_when_all_together_are_too_large(database, root_key, scope):
    async with opened(database, root_key) as store:
        await switch_on(store, ITEMS)
        store.items.indexes = Indexes(bytes_max=3_000)
        for number in range(4):
            subject = Scope(scope.tenant_id, f"subject-{number}")
            await write(store, subject, *(put(f"k{n}", [1.0] * 100) for n in range(4)))
            assert len(await found(store, subject, [1.0] * 100)) == 4
            assert store.items.indexes.size_bytes <= 3_000


async def test_an_item_has_vectors_by_so_many_models_and_one_more_fails_alone(store, scope):
    await write(store, scope, put("a", unit(0.0), model="m0"), put("b"))
    outcomes = await write(store, scope, *(give("a", unit(0.1), model=f"m{number}") for number in range(1, 10)))
    assert [type(each) is ItemModelsExceeded for each in outcomes] == [False] * 7 + [True] * 2
    assert await write(store, scope, give("a", unit(0.2), model="m3")) == [Written("indexed", 1)]
    assert await found(store, scope, unit(0.0), model="m7") == ["a"]
    assert await found(store, scope, unit(0.0), model="m8") == []
    # What a put takes away makes room, in the same request as well.
    (*_, last) = await write(store, scope, put("a", unit(0.0), model="new"), give("a", unit(0.1), model="m8"))
    assert last.status == "indexed"
    assert await found(store, scope, unit(0.0), model="m7") == []
    assert await found(store, scope, unit(0.0), model="m8") == ["a"]
    assert (await store.verification.subject(scope)).findings == []


async def test_models_that_nobody_has_vectors_by_take_no_more_memory_than_there_is_for_all(database, root_key, scope):
    async with opened(database, root_key) as store:
        await switch_on(store, ITEMS)
        store.items.indexes = Indexes(bytes_max=100_000)
        await write(store, scope, put("a", unit(0.0)), *(put("a", path=("p", str(n))) for n in range(20)))
        for number in range(60):
            assert await found(store, scope, unit(0.0), model=f"model-{number}") == []
        assert 0 < store.items.indexes.size_bytes <= 100_000
        assert len(store.items.indexes._indexes) < 10
        assert await found(store, scope, unit(0.0)) == ["a"]
        store.items.indexes.forget(scope)
        assert store.items.indexes.size_bytes == 0


async def test_what_a_search_by_meaning_opens_is_bounded_as_that_of_any(store, scope):
    large = {"text": "x" * 200_000}
    await write(store, scope, *(put(f"k{n}", unit(n / 1000), value=large) for n in range(100)))
    pages, shown, after = 0, [], None
    while pages == 0 or after is not None:
        page = await find(store, scope, unit(0), limit=1000, after=after)
        pages, after = pages + 1, page.after
        shown += [each.name.key for each in page.items]
    assert shown == [f"k{n}" for n in range(100)]
    assert pages == 2
    pages, after = 0, None
    while pages == 0 or after is not None:  # what its filter turns away was opened, too
        page = await find(store, scope, unit(0), limit=1000, after=after, filter={"text": "y"})
        pages, after = pages + 1, page.after
        assert page.items == []
    assert pages == 2


async def test_a_repeated_request_tells_again_that_an_item_has_too_many_models(store, scope):
    await write(store, scope, put("a", unit(0.0), model="m0"))
    batch = Batch(writes=[give("a", unit(0.1), model=f"m{number}") for number in range(1, 10)])
    told = [await store.items.run(scope, batch, idempotency=Idempotency("k", b"d" * 32)) for _ in range(2)]
    for results in told:
        assert [type(each) for each in results.writes] == [Written] * 7 + [ItemModelsExceeded] * 2


async def test_vectors_for_an_item_of_a_subject_without_any_are_refused_as_anywhere(store, scope):
    assert [type(each) for each in await write(store, scope, give("a", unit(0.0)))] == [ItemNotFound]
    atomic = Batch(writes=[give("a", unit(0.0)), delete("b")], atomic=True)
    assert [type(each) for each in (await store.items.run(scope, atomic)).writes] == [ItemNotFound, type(None)]
