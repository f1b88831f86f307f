"""One tenant's requests use some of a process's connections at once, never all; the others wait among themselves."""

import asyncio
from uuid import uuid4

import pytest

from storage.errors import Unavailable
from storage.postgres.engine import create_engine
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import (
    TENANT_CONNECTIONS_IN_COMPANY_MAX,
    TENANT_CONNECTIONS_MAX,
    Silent,
    UnitOfWork,
)
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope

REQUESTS = 60
ONE = Statement("SELECT 1", int)


class Held:
    """Transactions that begin and wait until they are let go."""

    def __init__(self, unit_of_work):
        self._unit_of_work = unit_of_work
        self._over = asyncio.Event()
        self.order = []
        self.most = self._now = 0

    async def hold(self, scope, number):
        async with self._unit_of_work.begin(scope) as transaction:
            self.order.append(number)
            self._now += 1
            self.most = max(self.most, self._now)
            await self._over.wait()
            self._now -= 1
            assert await transaction.fetch_only(ONE) == 1

    async def until(self, count):
        async with asyncio.timeout(30):
            while self._now < count:  # noqa: ASYNC110 - a count, on this loop
                await asyncio.sleep(0)

    def let_go(self):
        self._over.set()


@pytest.fixture
async def engine(database):
    made = create_engine(database.app_url, connections_max=TENANT_CONNECTIONS_MAX + 2)
    yield made
    await made.dispose()


async def test_a_tenant_with_many_requests_leaves_connections_for_another_ones(engine):
    unit_of_work = UnitOfWork(engine, Silent())
    crowded, quiet = uuid4(), uuid4()
    # Whose of the tenant they are makes no difference, nor what for.
    scopes = (Scope(crowded, "ann"), Scope(crowded, "bob"), TenantScope(crowded), TenantListing(crowded))
    held = Held(unit_of_work)
    tasks = [asyncio.create_task(held.hold(scopes[n % len(scopes)], n)) for n in range(REQUESTS)]
    await held.until(TENANT_CONNECTIONS_MAX)
    for scope in (Scope(quiet, "ann"), TenantScope(quiet), OperatorScope()):
        async with unit_of_work.begin(scope) as transaction:  # all of the crowd is still there
            assert await transaction.fetch_only(ONE) == 1
        assert held.most == TENANT_CONNECTIONS_MAX
    async with unit_of_work.connection() as connection:  # an API key is looked up
        assert await connection.fetchval("SELECT 1") == 1
    held.let_go()
    await asyncio.gather(*tasks)
    assert held.most == TENANT_CONNECTIONS_MAX
    assert sorted(held.order) == list(range(REQUESTS))
    assert len(unit_of_work._queue) == 0


async def test_a_crowd_beside_another_tenant_goes_on_with_few_connections(engine):
    unit_of_work = UnitOfWork(engine, Silent())
    crowd, quiet = Scope(uuid4(), "ann"), Scope(uuid4(), "ann")
    for scope in (crowd, quiet):
        async with unit_of_work.begin(scope):
            pass
    held = Held(unit_of_work)
    tasks = [asyncio.create_task(held.hold(crowd, number)) for number in range(REQUESTS)]
    await held.until(TENANT_CONNECTIONS_IN_COMPANY_MAX)
    async with unit_of_work.begin(quiet) as transaction:
        assert await transaction.fetch_only(ONE) == 1
        assert held.most == TENANT_CONNECTIONS_IN_COMPANY_MAX
    held.let_go()
    await asyncio.gather(*tasks)
    assert sorted(held.order) == list(range(REQUESTS))


async def test_who_waits_in_vain_for_the_tenants_share_is_told_to_come_again(engine):
    unit_of_work = UnitOfWork(engine, Silent())
    scope = Scope(uuid4(), "ann")
    held = Held(unit_of_work)
    tasks = [asyncio.create_task(held.hold(scope, number)) for number in range(TENANT_CONNECTIONS_MAX)]
    await held.until(TENANT_CONNECTIONS_MAX)
    late = await asyncio.gather(*(held.hold(scope, -1) for _ in range(REQUESTS)), return_exceptions=True)
    assert {type(each) for each in late} == {Unavailable}
    assert held.most == TENANT_CONNECTIONS_MAX
    held.let_go()
    await asyncio.gather(*tasks)
    async with unit_of_work.begin(scope) as transaction:
        assert await transaction.fetch_only(ONE) == 1


async def test_who_is_cancelled_while_waiting_leaves_the_line_as_it_was(engine):
    unit_of_work = UnitOfWork(engine, Silent())
    scope = Scope(uuid4(), "ann")
    held = Held(unit_of_work)
    tasks = [asyncio.create_task(held.hold(scope, number)) for number in range(REQUESTS)]
    await held.until(TENANT_CONNECTIONS_MAX)
    gone = [task for number, task in enumerate(tasks) if number >= TENANT_CONNECTIONS_MAX and number % 3 == 0]
    held.let_go()  # turns are passed on at the same moment
    for task in gone:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} == {type(None), asyncio.CancelledError}
    assert len(held.order) == REQUESTS - len(gone)
    assert len(unit_of_work._queue) == 0


@pytest.mark.parametrize(("connections", "share"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (20, 8)])
async def test_the_share_of_a_small_pool(database, connections, share):
    engine = create_engine(database.app_url, connections_max=connections)
    held, scope = Held(UnitOfWork(engine, Silent())), Scope(uuid4(), "ann")
    tasks = [asyncio.create_task(held.hold(scope, number)) for number in range(share + 2)]
    await held.until(share)
    held.let_go()
    await asyncio.gather(*tasks)
    assert held.most == share
    await engine.dispose()
