"""A model is exchanged: items get vectors of the new one beside the old, and both are searched meanwhile."""

import pytest

from stateroom import AsyncClient, Client, GatewayUnavailable, Item, ItemVectors, Near, Reindexed

PATH = ("memories",)
ITEMS = 230


@pytest.fixture
async def client(gateway_env, subject):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


def vectors(model: str, number: int) -> ItemVectors:
    return ItemVectors.of(model, [[1.0, number / 100]])


def new(items: list[Item]) -> list[ItemVectors | None]:
    return [vectors("new", each.value["n"]) if "n" in each.value else None for each in items]


async def filled(client, count=ITEMS):
    for number in range(count):
        await client.items.put(PATH, f"k{number}", {"n": number}, vectors=[vectors("old", number)])
    await client.items.put(PATH, "plain", {"text": "nothing to embed"})


async def nearest(client, model):
    found = client.items.search(PATH, near=Near.of(model, [1.0, 0.0]), limit=3)
    return [each.key async for each in found]


async def test_all_items_get_vectors_of_the_new_model_and_keep_those_of_the_old(client):
    await filled(client)
    before = await client.items.get(PATH, "k7")
    told: list[Reindexed] = []
    done = await client.items.reindex(new, progress=told.append)
    assert (done.items, done.indexed, done.moved, done.cursor) == (ITEMS + 1, ITEMS, 0, None)
    assert [each.items for each in told] == [100, 200, ITEMS + 1]
    assert await nearest(client, "old") == await nearest(client, "new") == ["k0", "k1", "k2"]
    after = await client.items.get(PATH, "k7")
    assert (after.revision, after.updated_at, after.value) == (before.revision, before.updated_at, before.value)


async def test_it_goes_on_where_it_stopped(client):
    await filled(client)
    told: list[Reindexed] = []

    def failing(items):
        if told:
            raise GatewayUnavailable("the model is away")
        return new(items)

    with pytest.raises(GatewayUnavailable):
        await client.items.reindex(failing, progress=told.append)
    done = await client.items.reindex(new, cursor=told[-1].cursor)
    assert (done.items, done.indexed) == (ITEMS + 1 - 100, ITEMS - 99)
    assert await nearest(client, "new") == ["k0", "k1", "k2"]


async def test_an_item_that_is_changed_meanwhile_is_left_alone(client):
    await filled(client, 3)

    async def slowly(items):
        await client.items.put(PATH, "k1", {"n": 1, "changed": True})
        return new(items)

    done = await client.items.reindex(slowly)
    assert (done.indexed, done.moved) == (2, 1)
    assert await nearest(client, "new") == ["k0", "k2"]


def test_the_blocking_client_does_the_same(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        client.items.put(PATH, "k0", {"n": 0})
        assert client.items.reindex(new, PATH).indexed == 1
        assert [each.key for each in client.items.search(PATH, near=Near.of("new", [1.0, 0.0]))] == ["k0"]
