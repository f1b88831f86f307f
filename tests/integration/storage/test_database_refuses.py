"""What callers are told when the database takes no writes, or does not answer."""

import asyncio
from typing import Any

import pytest

from storage.errors import DatabaseReadOnly, Unavailable
from storage.service import Store
from tests.support.interruption import Interruption
from tests.support.states import load, save, state
from tests.support.stores import DEPLOYMENT_ID

CLIENTS_WAIT_SECONDS = 10


async def test_a_database_that_takes_no_writes_is_named_and_nothing_is_of_unknown_outcome(own_store, scope):
    await save(own_store, scope, content=state(a=1))
    async with own_store.unit_of_work.connection() as connection:
        await connection.execute("SET default_transaction_read_only = on")
    for _ in range(2):  # one goes on from what is remembered, in one call; the other reads first
        with pytest.raises(DatabaseReadOnly):
            await save(own_store, scope, content=state(a=2))
    assert (await load(own_store, scope)).checkpoint_id
    async with own_store.unit_of_work.connection() as connection:
        await connection.execute("SET default_transaction_read_only = off")
    await save(own_store, scope, content=state(a=2))


async def test_a_database_that_does_not_answer_is_unavailable_in_time(own_database, root_key, scope):
    async with Interruption(own_database.port) as wire:
        store = await Store.open(
            own_database.url(wire.port), root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=4,
            durable=False,
        )  # fmt: skip
        await save(store, scope, content=state(a=1))

        def verbs() -> list[Any]:
            save_another = save(store, scope, content=state(a=2))
            return [load(store, scope), save_another, store.threads.list(scope), store.tenants.look_up_key("unknown")]

        await asyncio.gather(*verbs())  # from now on each finds a connection that is open
        wire.flowing.clear()
        async with asyncio.timeout(CLIENTS_WAIT_SECONDS):
            outcomes = await asyncio.gather(*verbs(), return_exceptions=True)
        assert [isinstance(each, Unavailable) for each in outcomes] == [True] * 4
        wire.flowing.set()
        assert (await load(store, scope)).checkpoint_id
        await store.close()
