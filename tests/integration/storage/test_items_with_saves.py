"""Items that are put with a checkpoint: all of them and the checkpoint, or nothing."""

import pytest

from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import CheckpointNotFound, ClientShareRequired, FeatureOff, ItemExists, ItemMoved
from storage.items.model import Batch, ItemGet, ItemName, ItemWrite
from storage.model import Idempotency, Load, Save, Value
from storage.scope import ClientShare
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.states import state

PATH = ("facts", "travel")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


def put(key, value=None, **condition):
    return ItemWrite(ItemName(PATH, key), Value("msgpack", encode_msgpack(value or {"k": key})), **condition)


async def save(store, scope, *writes, share=None, **options):
    beside = await store.items.beside(scope, writes) if writes else None
    return await store.states.save(scope, Save(thread_id="trip", content=state(step=1), **options), share, beside)


async def keys(store, scope, *names, share=None):
    gets = [ItemGet(ItemName(PATH, each)) for each in names]
    found = (await store.items.run(scope, Batch(gets=gets), share=share)).gets
    return [None if each is None else each.name.key for each in found]


async def test_a_save_puts_its_items_with_the_checkpoint(store, scope):
    saved = await save(store, scope, put("a"), put("b"))
    assert saved.created
    assert await keys(store, scope, "a", "b") == ["a", "b"]
    await save(store, scope)  # on what is remembered
    await save(store, scope, put("c"))
    assert await keys(store, scope, "c") == ["c"]


async def test_an_item_that_is_refused_refuses_the_save(store, scope):
    await save(store, scope, put("a"))
    for refused, error in ((put("a", if_absent=True), ItemExists), (put("b", if_revision=9), ItemMoved)):
        with pytest.raises(error):
            await save(store, scope, put("new"), refused, checkpoint_id="zz")
    assert await keys(store, scope, "new") == [None]
    with pytest.raises(CheckpointNotFound):
        await store.checkpoints.load(scope, Load("trip", "", "zz", with_state=False))


async def test_a_save_that_is_repeated_writes_its_items_once(store, scope):
    key = Idempotency("once", b"1" * 32)
    await save(store, scope, put("a", {"n": 1}), idempotency=key)
    await store.items.run(scope, Batch(writes=[put("a", {"n": 2})]))
    again = await save(store, scope, put("a", {"n": 1}), idempotency=Idempotency("once", b"1" * 32))
    assert not again.created
    (found,) = (await store.items.run(scope, Batch(gets=[ItemGet(ItemName(PATH, "a"))]))).gets
    assert found.value.data == encode_msgpack({"n": 2})


async def test_items_of_a_thread_under_a_share_take_it(store, scope):
    share = ClientShare(b"s" * 32)
    await save(store, scope, put("a"), share=share)
    assert await keys(store, scope, "a") == [None]
    assert await keys(store, scope, "a", share=share) == ["a"]
    with pytest.raises(ClientShareRequired):
        await save(store, scope, put("b"))
    assert await keys(store, scope, "b") == [None]


async def test_no_item_comes_with_a_save_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as store:
        with pytest.raises(FeatureOff):
            await store.items.beside(scope, [put("a")])
