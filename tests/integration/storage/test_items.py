"""Items: what is put is read, found, listed and deleted; conditions, times to live, and what one request may do."""

import asyncio

import pytest

from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import FeatureOff, IdempotencyKeyReused, ItemExists, ItemMoved, LegalHold
from storage.items import filters, model
from storage.items.model import Batch, ItemGet, ItemName, ItemSearch, ItemWrite, PathSearch
from storage.model import Idempotency, Value
from storage.retention.planner import Policy
from storage.scope import ClientShare, Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on

PATH = ("memories", "ada")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


def put(key, value, path=PATH, **condition):
    return ItemWrite(ItemName(path, key), Value("msgpack", encode_msgpack(value)), **condition)


def delete(key, path=PATH, **condition):
    return ItemWrite(ItemName(path, key), None, **condition)


async def write(store, scope, *writes, **options):
    atomic = options.pop("atomic", False)
    return (await store.items.run(scope, Batch(writes=[*writes], atomic=atomic), **options)).writes


async def get(store, scope, *keys, path=PATH, **options):
    gets = [ItemGet(ItemName(path, key)) for key in keys]
    return (await store.items.run(scope, Batch(gets=gets), **options)).gets


async def search(store, scope, prefix=PATH, filter=None, **options):  # noqa: A002
    share = options.pop("share", None)
    wanted = ItemSearch(prefix=prefix, filter=None if filter is None else filters.parse(filter, ""), **options)
    return (await store.items.run(scope, Batch(searches=[wanted]), share=share)).searches[0]


async def keys(store, scope, *arguments, **options):
    return [each.name.key for each in (await search(store, scope, *arguments, **options)).items]


async def paths(store, scope, share=None, **wanted):
    return (await store.items.run(scope, Batch(paths=[PathSearch(**wanted)]), share=share)).paths[0].items


def values(found):
    return [None if each is None else each.value.data for each in found]


async def test_what_is_put_is_read_by_its_path_and_key(store, scope):
    (made,) = await write(store, scope, put("a", {"likes": "tea"}))
    assert (made.status, made.revision) == ("created", 1)
    (found, other) = await get(store, scope, "a", "b")
    assert found.value.data == encode_msgpack({"likes": "tea"})
    assert (found.revision, found.created_at, found.ttl_seconds) == (1, made.created_at, None)
    assert other is None
    assert await get(store, scope, "a", path=("memories", "bob")) == [None]


async def test_a_put_replaces_and_keeps_when_it_was_created(store, scope):
    (first,) = await write(store, scope, put("a", {"n": 1}))
    (second,) = await write(store, scope, put("a", {"n": 2}))
    assert (second.status, second.created_at) == ("replaced", first.created_at)
    assert second.revision > first.revision
    assert values(await get(store, scope, "a")) == [encode_msgpack({"n": 2})]


async def test_a_deleted_item_is_gone_and_its_revision_never_comes_back(store, scope):
    (first,) = await write(store, scope, put("a", {}))
    assert [each.status for each in await write(store, scope, delete("a"), delete("a"))] == ["deleted", "absent"]
    assert await get(store, scope, "a") == [None]
    assert await paths(store, scope) == []
    (again,) = await write(store, scope, put("a", {}))
    assert (again.status, again.revision > first.revision) == ("created", True)


async def test_conditions_are_compared_and_fail_alone(store, scope):
    (made,) = await write(store, scope, put("a", {"n": 1}))
    outcomes = await write(
        store, scope,
        put("a", {"n": 2}, if_revision=made.revision + 7),
        put("a", {"n": 3}, if_absent=True),
        put("b", {"n": 4}, if_absent=True),
        put("c", {"n": 5}, if_revision=1),
        put("a", {"n": 6}, if_revision=made.revision),
        delete("a", if_revision=made.revision),
    )  # fmt: skip
    assert [type(each) for each in outcomes] == [
        ItemMoved, ItemExists, model.Written, ItemMoved, model.Written, ItemMoved,
    ]  # fmt: skip
    assert outcomes[0].revision == outcomes[1].revision == made.revision
    assert outcomes[3].revision is None
    assert values(await get(store, scope, "a", "b", "c")) == [encode_msgpack({"n": 6}), encode_msgpack({"n": 4}), None]


async def test_all_or_nothing_writes_nothing_when_one_is_refused(store, scope):
    outcomes = await write(store, scope, put("a", {}), put("b", {}, if_revision=1), atomic=True)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ItemMoved)
    assert await get(store, scope, "a", "b") == [None, None]
    both = await write(store, scope, put("a", {}), put("b", {}), atomic=True)
    assert [each.status for each in both] == ["created", "created"]


async def test_reads_of_a_batch_see_what_was_there_before_its_writes_and_the_last_write_wins(store, scope):
    await write(store, scope, put("a", {"n": 0}))
    batch = Batch(gets=[ItemGet(ItemName(PATH, "a"))], writes=[put("a", {"n": 1}), delete("a"), put("a", {"n": 2})])
    results = await store.items.run(scope, batch)
    assert values(results.gets) == [encode_msgpack({"n": 0})]
    assert [each.status for each in results.writes] == ["replaced", "deleted", "created"]
    assert values(await get(store, scope, "a")) == [encode_msgpack({"n": 2})]
    assert await keys(store, scope) == ["a"]


async def test_a_search_shows_the_last_changed_first_page_by_page(store, scope):
    for number in range(7):
        await write(store, scope, put(f"k{number}", {"n": number}))
    await write(store, scope, put("k3", {"n": 3}))
    everything = ["k3", "k6", "k5", "k4", "k2", "k1", "k0"]
    assert await keys(store, scope) == everything
    assert await keys(store, scope, limit=3, offset=2) == everything[2:5]
    shown, after = [], None
    while True:
        page = await search(store, scope, limit=3, after=after)
        shown += [each.name.key for each in page.items]
        after = page.after
        if after is None:
            break
    assert shown == everything


async def test_filters_and_prefixes_choose(store, scope):
    await write(
        store, scope,
        put("a", {"kind": "fact", "age": 9}), put("b", {"kind": "plan", "age": 10}),
        put("c", {"kind": "fact", "age": "old"}, path=("memories", "bob")), put("d", {"kind": "fact"}, path=("rules",)),
    )  # fmt: skip
    assert {*await keys(store, scope, ())} == {"a", "b", "c", "d"}
    assert {*await keys(store, scope, ("memories",))} == {"a", "b", "c"}
    assert {*await keys(store, scope, (), {"kind": "fact"})} == {"a", "c", "d"}
    assert await keys(store, scope, (), {"age": {"$gt": 9}}) == ["b"]
    assert await keys(store, scope, (), {"age": {"$gte": 9}, "kind": "fact"}) == ["a"]
    assert await keys(store, scope, ("memo",)) == []


async def test_paths_are_listed_by_prefix_suffix_and_depth(store, scope):
    for path in [("a", "x", "1"), ("a", "y", "1"), ("a", "y", "2"), ("b",)]:
        await write(store, scope, put("k", {}, path=path))
    assert await paths(store, scope) == [("a", "x", "1"), ("a", "y", "1"), ("a", "y", "2"), ("b",)]
    assert await paths(store, scope, prefix=("a",), suffix=("1",)) == [("a", "x", "1"), ("a", "y", "1")]
    assert await paths(store, scope, prefix=("*", "y")) == [("a", "y", "1"), ("a", "y", "2")]
    assert await paths(store, scope, max_depth=1) == [("a",), ("b",)]
    assert await paths(store, scope, max_depth=2, limit=1, offset=1) == [("a", "y")]
    assert await paths(store, scope, after=("a", "y", "1")) == [("a", "y", "2"), ("b",)]


async def test_subjects_and_shares_do_not_see_each_others_items(store, scope):
    share = ClientShare(b"s" * 32)
    await write(store, scope, put("a", {"n": 1}))
    await write(store, scope, put("a", {"n": 2}), share=share)
    other = Scope(scope.tenant_id, "somebody-else")
    assert await get(store, other, "a") == [None]
    assert await keys(store, other, ()) == await paths(store, other) == []
    assert values(await get(store, scope, "a")) == [encode_msgpack({"n": 1})]
    assert values(await get(store, scope, "a", share=share)) == [encode_msgpack({"n": 2})]
    assert await keys(store, scope, (), share=share) == ["a"]
    assert await get(store, scope, "a", share=ClientShare(b"t" * 32)) == [None]


async def test_a_repeated_request_gets_its_receipt_and_writes_nothing(store, scope):
    await write(store, scope, put("b", {}))
    writes = [put("a", {"n": 1}), put("b", {}, if_absent=True), delete("c")]
    key = Idempotency("k-1", b"1" * 32)
    first = await write(store, scope, *writes, idempotency=key)
    await write(store, scope, put("a", {"n": 2}))
    again = Idempotency("k-1", b"1" * 32)
    repeated = await write(store, scope, *writes, idempotency=again)
    assert again.replay.happened
    assert [(type(each), vars(each) if isinstance(each, Exception) else each) for each in repeated] == [
        (type(each), vars(each) if isinstance(each, Exception) else each) for each in first
    ]
    assert values(await get(store, scope, "a")) == [encode_msgpack({"n": 2})]
    with pytest.raises(IdempotencyKeyReused):
        await write(store, scope, put("z", {}), idempotency=Idempotency("k-1", b"2" * 32))


async def test_writers_of_one_path_at_once_lose_nothing(store, scope):
    await asyncio.gather(*(write(store, scope, put(f"k{number}", {})) for number in range(20)))
    assert len(await keys(store, scope)) == 20
    outcomes = await asyncio.gather(*(write(store, scope, put("one", {"n": n}, if_absent=True)) for n in range(8)))
    assert sum(isinstance(each, model.Written) for (each,) in outcomes) == 1


async def test_no_item_is_stored_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as new:
        with pytest.raises(FeatureOff, match="finish-upgrade"):
            await write(new, scope, put("a", {}))
        assert await get(new, scope, "a") == [None]
        assert await keys(new, scope) == await paths(new, scope) == []
        await switch_on(new, ITEMS)
        assert [each.status for each in await write(new, scope, put("a", {}))] == ["created"]


async def test_a_held_tenants_items_are_neither_replaced_nor_deleted(store, scope):
    tenant = TenantScope(scope.tenant_id)
    (kept,) = await write(store, scope, put("a", {"n": 1}))
    await store.retention_policies.put(tenant, None, Policy(legal_hold=True))
    replaced, deleted, made, twice = await write(
        store, scope, put("a", {"n": 2}), delete("a"), put("b", {"n": 3}), put("b", {"n": 4})
    )
    assert [type(replaced), type(deleted)] == [LegalHold, LegalHold]
    assert [made.status, twice.status] == ["created", "replaced"]
    assert [each.revision for each in await get(store, scope, "a")] == [kept.revision]
    await store.retention_policies.put(tenant, None, Policy(legal_hold=False))
    assert [each.status for each in await write(store, scope, delete("a"))] == ["deleted"]


async def test_requests_with_one_key_at_the_same_moment_write_once(store, scope):
    async def repeat():
        key = Idempotency("at-once", b"1" * 32)
        (written,) = await write(store, scope, put("a", {}), idempotency=key)
        return written.revision, key.replay.happened

    outcomes = await asyncio.gather(*(repeat() for _ in range(6)))
    assert len({revision for revision, _ in outcomes}) == 1
    assert sorted(replayed for _, replayed in outcomes) == [False] + [True] * 5


async def test_paths_of_adapters_are_found_by_who_names_them_only(store, scope):
    await write(store, scope, put("a", {}, path=("~cache", "1")), put("b", {}, path=("memories",)))
    assert await keys(store, scope, ()) == ["b"]
    assert await keys(store, scope, ("~cache",)) == ["a"]
    assert await paths(store, scope) == await paths(store, scope, prefix=("*",)) == [("memories",)]
    assert await paths(store, scope, suffix=("1",)) == []
    assert await paths(store, scope, prefix=("~cache",), suffix=("1",)) == [("~cache", "1")]
