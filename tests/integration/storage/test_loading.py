"""A load is one round trip wherever the database can tell all of it at once, and what it finds is believed no more."""

import asyncio

import pytest
from sqlalchemy import event

from storage.errors import (
    CheckpointNotFound,
    ClientShareRequired,
    ClientShareWrong,
    IntegrityFailure,
    RollbackDetected,
)
from storage.format.pieces import unpack_ids
from storage.model import Load, Save
from storage.postgres.engine import create_engine
from storage.postgres.unit_of_work import Silent
from storage.scope import ClientShare, Scope
from storage.service import Store, StoreOptions
from tests.support.states import contents, document, list_with_indexes, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"


class Counted:
    """A pool of one connection whose round trips are counted, once their statements are prepared."""

    def __init__(self, url):
        self.asked = []
        self.engine = create_engine(url, connections_max=1)
        event.listen(self.engine.sync_engine, "connect", self._connected)

    def _connected(self, connection, _record):
        connection.driver_connection.add_query_logger(self._asked)

    def _asked(self, query):
        self.asked.append(query.query)


class Damage(Silent):
    count = 0

    def integrity_failure(self):
        self.count += 1


@pytest.fixture
def pool(database):
    return Counted(database.app_url)


@pytest.fixture
def damage():
    return Damage()


@pytest.fixture
async def counted(pool, damage, root_key):
    made = Store(pool.engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(observer=damage))
    yield made
    await made.close()


async def round_trips(pool, work):
    """How many the work takes; a load must have run before, so that the driver knows the statement and its types."""
    await asyncio.sleep(0)  # the driver tells afterwards
    pool.asked.clear()
    found = await work
    await asyncio.sleep(0)
    return len(pool.asked), found


def loading(store, scope, checkpoint_id=None, namespace="", share=None, **how):
    return store.checkpoints.load(scope, Load("t1", namespace, checkpoint_id, **{"with_state": True, **how}), share)


async def two_checkpoints(store, scope):
    """The first one has a pending write, and so has the head."""
    await save(store, scope, checkpoint_id=ID_1, content=state(a=document("a"), n=1))
    await put(store, scope, ID_1, write(0, "m", document("written")))
    second = await save(store, scope, checkpoint_id=ID_2, content=state(a=document("a"), n=2))
    await put(store, scope, ID_2, write(0, "m", "also"))
    return second


async def test_loads_are_one_round_trip(counted, scope, pool):
    await two_checkpoints(counted, scope)
    await loading(counted, scope)
    trips, latest = await round_trips(pool, loading(counted, scope))
    assert (trips, contents(latest.checkpoint)) == (1, {"a": document("a"), "n": 2})
    assert writes_of(latest.checkpoint) == [("task", 0, "m", "also")]
    trips, head = await round_trips(pool, loading(counted, scope, ID_2, known_token=latest.token))
    assert (trips, head) == (1, latest)
    trips, first = await round_trips(pool, loading(counted, scope, ID_1))
    assert (trips, contents(first.checkpoint)) == (1, {"a": document("a"), "n": 1})
    assert writes_of(first.checkpoint) == [("task", 0, "m", document("written"))]
    assert (first.head_id, first.token) == (latest.head_id, latest.token)
    trips, clear = await round_trips(pool, loading(counted, scope, with_state=False))
    assert (trips, clear.checkpoint.channels, clear.token) == (1, None, latest.token)


async def test_a_load_in_a_transaction_of_several_statements_says_the_same(counted, scope, pool):
    await two_checkpoints(counted, scope)
    elsewhere = await save(counted, scope, namespace="n")
    for checkpoint_id in (None, ID_1):
        at_once = await loading(counted, scope, checkpoint_id)
        trips, found = await round_trips(pool, loading(counted, scope, checkpoint_id, known_token=elsewhere.token))
        assert trips > 3
        assert found == at_once


async def levels_below_indexes(admin, scope):
    """How many pieces lie one below another at most; the subject's key decides where a list is cut."""
    rows = await admin.fetch("SELECT piece_id, children FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)
    children = {row["piece_id"]: unpack_ids(row["children"] or b"") for row in rows}

    def height(piece_id):
        return max((1 + height(each) for each in children[piece_id]), default=0)

    return max(map(height, children))


async def test_pieces_below_an_index_take_one_more_transaction(counted, scope, pool, admin):
    items = list_with_indexes()
    await save(counted, scope, content=state(items=items))
    await loading(counted, scope)
    trips, loaded = await round_trips(pool, loading(counted, scope))
    levels = await levels_below_indexes(admin, scope)
    assert levels > 0
    assert trips == 1 + len(["BEGIN"]) + levels + len(["COMMIT"]), pool.asked
    assert contents(loaded.checkpoint) == {"items": items}


async def test_what_is_not_there_is_not_found(counted, scope, damage):
    with pytest.raises(CheckpointNotFound):
        await loading(counted, scope)
    await save(counted, scope, checkpoint_id=ID_1)
    for absent in (loading(counted, scope, ID_2), loading(counted, scope, namespace="n")):
        with pytest.raises(CheckpointNotFound):
            await absent
    assert damage.count == 0


@pytest.mark.parametrize(
    "damaging",
    [
        "DELETE FROM stateroom.chunks WHERE tenant_id = $1",
        "DELETE FROM stateroom.threads WHERE tenant_id = $1",
        "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1",
        "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND parent_id IS NOT NULL",
        "UPDATE stateroom.heads SET head_id = overlay(head_id PLACING '1' FROM length(head_id)) WHERE tenant_id = $1",
        "UPDATE stateroom.heads SET sequence = sequence + 1 WHERE tenant_id = $1",
        "UPDATE stateroom.checkpoints SET step = step + 1 WHERE tenant_id = $1",
        "UPDATE stateroom.chunks SET envelope = set_byte(envelope, 80, 1 - get_byte(envelope, 80)) WHERE tenant_id=$1",
    ],
)
@pytest.mark.parametrize("checkpoint_id", [None, ID_1])
async def test_damage_is_found_and_counted(counted, scope, admin, damage, damaging, checkpoint_id):
    await two_checkpoints(counted, scope)
    await admin.execute(damaging, scope.tenant_id)
    if checkpoint_id == ID_1 and "DELETE FROM stateroom.checkpoints" in damaging:
        assert contents((await loading(counted, scope, ID_1)).checkpoint)["n"] == 1  # it is whole; the head is not
        return
    with pytest.raises(IntegrityFailure):
        await loading(counted, scope, checkpoint_id)
    assert damage.count == 1


async def test_a_write_taken_from_another_checkpoint_is_missed_by_the_load_of_any(counted, scope, admin):
    await two_checkpoints(counted, scope)
    await admin.execute(
        "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND checkpoint_id = $2", scope.tenant_id, ID_2
    )
    with pytest.raises(IntegrityFailure):
        await loading(counted, scope, ID_1)


async def test_a_missing_piece_below_an_index_is_damage(counted, scope, admin, damage):
    await save(counted, scope, content=state(items=list_with_indexes()))
    assert (
        await admin.execute(
            "DELETE FROM stateroom.chunks WHERE tenant_id = $1 AND piece_id = (SELECT substring(children FOR 17)"
            " FROM stateroom.chunks WHERE tenant_id = $1 AND children IS NOT NULL LIMIT 1)",
            scope.tenant_id,
        )
        == "DELETE 1"
    )
    with pytest.raises(IntegrityFailure):
        await loading(counted, scope)
    assert damage.count == 1


async def test_a_thread_that_is_older_than_the_callers_token_is_refused(counted, scope, admin):
    await save(counted, scope, checkpoint_id=ID_1)
    before = await admin.fetchrow(
        "SELECT head_id, sequence, seal FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id
    )
    second = await save(counted, scope, checkpoint_id=ID_2)
    assert (await loading(counted, scope, known_token=second.token)).head_id == ID_2
    await admin.execute(
        "UPDATE stateroom.heads SET head_id = $2, sequence = $3, seal = $4 WHERE tenant_id = $1",
        scope.tenant_id,
        *before,
    )
    with pytest.raises(RollbackDetected):
        await loading(counted, scope, known_token=second.token)
    with pytest.raises(RollbackDetected):
        await counted.checkpoints.load(scope, Load("t1", "", ID_1, with_state=False, known_token=second.token))


async def test_another_scope_finds_nothing_under_the_same_names(counted, scope):
    await two_checkpoints(counted, scope)
    neighbour = Scope(scope.tenant_id, "user-2")
    await save(counted, neighbour, thread_id="t2")
    with pytest.raises(CheckpointNotFound):
        await loading(counted, neighbour)


async def test_the_share_of_a_thread_is_needed_before_anything_is_opened(counted, scope):
    share = ClientShare(bytes(range(32)))
    await counted.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share)
    assert (await loading(counted, scope, share=share)).checkpoint.step == 0
    with pytest.raises(ClientShareRequired):
        await loading(counted, scope)
    with pytest.raises(ClientShareWrong):
        await loading(counted, scope, share=ClientShare(bytes(32)))


async def test_nothing_stays_bound_after_a_load(counted, scope, pool):
    await two_checkpoints(counted, scope)
    await loading(counted, scope)
    async with counted.unit_of_work.connection() as connection:
        assert await connection.fetchval("SELECT coalesce(current_setting('app.tenant_id', true), '')") == ""
        assert await connection.fetchval("SELECT current_setting('transaction_read_only')") == "off"
        assert await connection.fetchval("SELECT count(*) FROM stateroom.checkpoints") == 0
