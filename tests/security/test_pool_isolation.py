"""Two tenants on one connection, ten thousand operations, many cancelled in the middle: neither sees the other's."""

import asyncio
from random import Random  # noqa: TID251  seeded: the same interleaving every time
from uuid import UUID, uuid4

import msgspec
import pytest

from storage.postgres.statement import Statement
from storage.scope import Scope
from storage.service import Store
from tests.support.interleaving import CancelAtAwait
from tests.support.states import history, load, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

OPERATIONS, SEED = 10_000, 20261121
CANCELLED_IN_A_HUNDRED = 6


class _Binding(msgspec.Struct, frozen=True):
    tenant_id: str
    read_only: str
    isolation: str
    tenants: list[UUID]


_BINDING = Statement(
    """
SELECT current_setting('app.tenant_id'), current_setting('transaction_read_only'),
    current_setting('transaction_isolation'), array(SELECT DISTINCT tenant_id FROM stateroom.threads)
""",
    _Binding,
)


class Tenant:
    """One caller, who knows exactly what it may see."""

    def __init__(self, store, name, seed):
        self.scope = Scope(uuid4(), "same-user")
        self.seen = 0
        self.cancelled = 0
        self._store = store
        self._name = name
        self._random = Random(seed)  # noqa: S311

    async def begin(self):
        first = await save(self._store, self.scope, content=state(owner=self._name), metadata=self._own())
        await put(self._store, self.scope, first.checkpoint_id, write(0, "owner", self._name))

    def _own(self):
        return {"owner": self._name}

    async def _load(self):
        loaded = await load(self._store, self.scope)
        assert loaded.metadata == self._own()
        assert {content for *_, content in writes_of(loaded)} <= {self._name}

    async def _binding(self):
        async with self._store.unit_of_work.snapshot(self.scope) as transaction:
            found = await transaction.fetch_only(_BINDING)
        assert found == _Binding(str(self.scope.tenant_id), "on", "repeatable read", [self.scope.tenant_id])

    async def _unbound(self):
        async with self._store.unit_of_work.connection() as connection:
            assert not await connection.fetchval("SELECT count(*) FROM stateroom.threads")
            assert not connection.is_in_transaction()

    async def _save(self):
        await save(self._store, self.scope, content=state(owner=self._name), metadata=self._own())

    async def _write(self):
        await put(self._store, self.scope, f"c{self._random.random()}", write(0, "owner", self._name))

    async def _history(self):
        found = await history(self._store, self.scope, limit=3)
        assert {each.metadata["owner"] for each in found} == {self._name}

    async def run(self, operations):
        verbs = [self._binding] * 6 + [self._unbound] * 4 + [self._load, self._save, self._write, self._history]
        for _ in range(operations):
            verb = self._random.choice(verbs)
            if self._random.randrange(100) < CANCELLED_IN_A_HUNDRED:
                cancelling = CancelAtAwait(verb(), self._random.randrange(1, 8))
                await cancelling.run()
                self.cancelled += cancelling.cancelled
            else:
                await verb()
            self.seen += 1


@pytest.mark.parametrize("operations", [OPERATIONS // 4, pytest.param(OPERATIONS, marks=pytest.mark.soak)])
async def test_two_tenants_on_one_connection_never_see_each_other(database, root_key, operations):
    store = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=1, durable=False
    )
    try:
        tenants = [Tenant(store, name, SEED + number) for number, name in enumerate(("one", "two"))]
        for each in tenants:
            await each.begin()
        await asyncio.gather(*(each.run(operations // 2) for each in tenants))
        assert sum(each.seen for each in tenants) == operations
        assert all(each.cancelled > operations // 100 for each in tenants)
    finally:
        await store.close()
