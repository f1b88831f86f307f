# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from crypto import CryptoError, KeyDenied, KeyDestroyed, KeyUnavailable, MemoryRootKey, OpenError
from storage.clock import SystemClock
from storage.errors import IntegrityFailure
from storage.keys.keys import HARD_TTL_SECONDS, SOFT_TTL_SECONDS, Keys
from storage.model import ChannelHistoryQuery, TaskWrites, TaskWritesQuery
from storage.postgres.unit_of_work import Silent
from storage.scope import Scope
from storage.service import Store
from tests.support.root_keys import UnsteadyRootKey
from tests.support.states import contents, history, load, save, state
from tests.support.stores import DEPLOYMENT_ID


async def opened(database, root_key, deployment_id=DEPLOYMENT_ID):
    return await Store.open(
        database.app_url, root_key=root_key, deployment_id=deployment_id, connections_max=2, durable=False
    )


@asynccontextmanager
async def alone(own_database, root_key):
    """A store on a database for which no other root key wrapped anything, that has asked for what it asks for once."""
    url = own_database.url(own_database.port)
    store = await Store.open(url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False)
    try:
        await save(store, Scope(uuid4(), "user-0"))
        yield store
    finally:
        await store.close()


async def test_reading_creates_no_keys(store, scope, admin):
    assert await store.keys.existing_sealer(scope) is None
    assert await history(store, scope) == []
    for table in ("subject_keys", "tenant_keys"):
        assert not await admin.fetchval(f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)


async def test_a_subject_gets_one_data_key_and_one_id_key_and_its_tenant_one(store, scope, admin):
    await asyncio.gather(*(save(store, scope, f"t{number}") for number in range(4)))
    rows = await admin.fetch(
        "SELECT purpose, key_version, state FROM stateroom.subject_keys WHERE tenant_id = $1 ORDER BY 1",
        scope.tenant_id,
    )
    assert [tuple(row) for row in rows] == [("data", 1, "active"), ("id", 1, "active")]
    assert await admin.fetchval("SELECT count(*) FROM stateroom.tenant_keys WHERE tenant_id = $1", scope.tenant_id) == 1


async def test_five_hundred_first_uses_of_a_new_tenant_ask_the_root_key_once(own_database, scope):
    root_key = UnsteadyRootKey()
    async with alone(own_database, root_key) as store:
        asked = root_key.calls
        scopes = [Scope(scope.tenant_id, f"user-{number % 25}") for number in range(500)]
        sealers = await asyncio.gather(*(store.keys.sealer(each) for each in scopes))
        assert root_key.calls == asked + 1
        assert len({sealer.subject_id for sealer in sealers}) == 25
        await save(store, scopes[0], content=state(a=1))
        store.keys.evict_tenant(scope.tenant_id)
        store.keys.evict(scopes[0])
        assert contents(await load(store, scopes[0])) == {"a": 1}  # what was stored is the key that was used
        assert root_key.calls == asked + 2


class MeetingRootKey(UnsteadyRootKey):
    """A root key whose wraps answer only when several are under way, so that nobody stored one before."""

    def __init__(self, together):
        super().__init__()
        self._barrier = asyncio.Barrier(together)

    async def wrap(self, key, context):
        wrapped = await super().wrap(key, context)
        await self._barrier.wait()
        return wrapped


async def test_a_gateway_that_lost_the_race_for_a_tenants_key_uses_the_stored_one(database, scope):
    root_key = MeetingRootKey(3)
    stores = [await opened(database, root_key) for _ in range(3)]
    try:
        keyrings = await asyncio.gather(*(each.keys.tenant(scope.tenant_id) for each in stores))
        assert root_key.calls == 3 + 2  # three wraps, and an unwrap by each of the two that lost
        assert len({each.keys[1].kcv() for each in keyrings}) == 1
    finally:
        for each in stores:
            await each.close()


async def test_another_gateway_with_the_same_root_key_opens_what_was_saved(store, scope, database, root_key):
    await save(store, scope, content=state(a=1))
    other = await opened(database, root_key)
    try:
        assert contents(await load(other, scope)) == {"a": 1}
    finally:
        await other.close()


async def test_another_root_key_opens_nothing(store, scope, database):
    await save(store, scope)
    other = await opened(database, MemoryRootKey())
    try:
        for verb in (load, save):
            with pytest.raises(CryptoError):
                await verb(other, scope)
    finally:
        await other.close()


async def test_keys_of_another_deployment_do_not_open(store, scope, root_key):
    await save(store, scope)
    foreign = Store(store._engine, root_key=root_key, deployment_id=UUID(int=7))
    with pytest.raises((IntegrityFailure, OpenError, KeyDestroyed)):
        await load(foreign, scope)


async def test_subjects_and_tenants_have_keys_of_their_own(store, scope, admin):
    scopes = [scope, Scope(scope.tenant_id, "user-2"), Scope(uuid4(), "user-1")]
    sealers = [await store.keys.sealer(each) for each in scopes]
    assert len({sealer.content_id("elements", "", b"same") for sealer in sealers}) == 3


async def test_a_cached_subject_is_served_while_the_root_key_cannot_be_reached(own_database, scope):
    root_key = UnsteadyRootKey()
    async with alone(own_database, root_key) as store:
        await save(store, scope)
        asked = root_key.calls
        root_key.reachable = False
        await save(store, scope)
        await save(store, Scope(scope.tenant_id, "user-2"))  # its tenant's key is cached
        assert root_key.calls == asked
        with pytest.raises(KeyUnavailable):
            await save(store, Scope(uuid4(), "user-1"))
        root_key.reachable = True
        await save(store, Scope(uuid4(), "user-1"))


async def test_a_tenant_whose_root_key_failed_left_no_half_made_key(database, admin, scope):
    root_key = UnsteadyRootKey()
    root_key.reachable = False
    store = await opened(database, root_key)
    try:
        with pytest.raises(KeyUnavailable):
            await save(store, scope)
        assert not await admin.fetchval(
            "SELECT count(*) FROM stateroom.tenant_keys WHERE tenant_id = $1", scope.tenant_id
        )
    finally:
        await store.close()


async def destroy(admin, scope):
    await admin.execute(
        "UPDATE stateroom.subject_keys SET state = 'destroyed', wrapped = NULL"
        " WHERE tenant_id = $1 AND subject_id = $2",
        scope.tenant_id,
        scope.subject_id,
    )


async def test_a_destroyed_key_refuses_at_once_though_it_is_cached(store, scope, admin):
    await save(store, scope)
    await destroy(admin, scope)
    verbs = [
        lambda: load(store, scope),
        lambda: save(store, scope),
        lambda: history(store, scope),
        lambda: store.checkpoints.put_writes(scope, TaskWrites("t1", "", "c", "task", "", [], None)),
        lambda: store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", "c", "task")),
    ]
    for verb in verbs:
        store.keys.evict(scope)
        with pytest.raises(KeyDestroyed):
            await verb()
    assert await admin.fetchval("SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id) == 1


@pytest.mark.parametrize(
    "verb", ["load", "save", "history", "put_writes", "task_writes", "channel_history", "copy", "prune", "put"]
)
async def test_a_warm_cache_does_not_outlive_its_key(store, scope, admin, verb):
    await save(store, scope)
    await destroy(admin, scope)
    calls = {
        "load": lambda: load(store, scope),
        "save": lambda: save(store, scope),
        "history": lambda: history(store, scope),
        "put_writes": lambda: store.checkpoints.put_writes(scope, TaskWrites("t1", "", "c", "task", "", [], None)),
        "task_writes": lambda: store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", "c", "task")),
        "channel_history": lambda: store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["a"])),
        "prune": lambda: store.threads.prune(scope, ["t1"], "keep_latest"),
        "put": lambda: store.threads.put(scope, "t2", strict=True),
        "copy": lambda: store.threads.copy(scope, "t1", "t2"),
    }
    with pytest.raises(KeyDestroyed):
        await calls[verb]()


async def test_an_edited_key_does_not_authenticate(store, scope, admin):
    await save(store, scope)
    await admin.execute(
        "UPDATE stateroom.subject_keys SET wrapped = set_byte(wrapped, 40, get_byte(wrapped, 40) # 1)"
        " WHERE tenant_id = $1",
        scope.tenant_id,
    )
    store.keys.evict(scope)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


class Seconds:
    """A monotonic clock that is put forward by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def root_key_at_a_time(store):
    """A root key, a clock, and the keys of a gateway that goes by both."""
    root_key, seconds = UnsteadyRootKey(), Seconds()
    return root_key, seconds, Keys(store.unit_of_work, root_key, DEPLOYMENT_ID, SystemClock(), Silent(), seconds)


async def test_no_subject_is_served_longer_than_an_hour_after_the_root_key_was_asked(root_key_at_a_time, scope):
    root_key, seconds, keys = root_key_at_a_time
    await keys.sealer(scope)
    root_key.reachable = False
    late = Scope(scope.tenant_id, "user-2")
    seconds.now += HARD_TTL_SECONDS - 60
    for each in (scope, late):
        await keys.sealer(each)
    seconds.now += 61
    for each in (scope, late):
        with pytest.raises(KeyUnavailable):
            await keys.sealer(each)
    root_key.reachable = True
    seconds.now += 10
    for each in (scope, late):
        await keys.sealer(each)


async def test_a_root_key_that_was_withdrawn_stops_every_subject_at_the_tenants_soft_age(root_key_at_a_time, scope):
    root_key, seconds, keys = root_key_at_a_time
    await keys.sealer(scope)
    late = Scope(scope.tenant_id, "user-2")
    seconds.now += SOFT_TTL_SECONDS * 0.8
    await keys.sealer(late)
    root_key.refusal = KeyDenied()
    seconds.now += SOFT_TTL_SECONDS * 0.3
    for each in (scope, late):
        with pytest.raises(KeyDenied):
            await keys.sealer(each)


async def test_in_an_outage_a_subject_is_not_read_again_at_each_use(root_key_at_a_time, scope):
    root_key, seconds, keys = root_key_at_a_time
    await keys.sealer(scope)
    root_key.reachable = False
    seconds.now += HARD_TTL_SECONDS / 2
    sealers = [await keys.sealer(scope) for _ in range(5)]
    assert len({id(each) for each in sealers}) == 1
