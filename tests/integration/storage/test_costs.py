"""What a step costs, in counts that a machine's speed does not change: statements, rows and bytes.

A change that makes one of these numbers larger makes the product slower or its database larger, and is to be seen here
before it is seen in a benchmark.
"""

from random import Random  # noqa: TID251  seeded

import msgpack
import pytest

from storage.control.features import EVENTS
from storage.model import ChannelValue, FullState
from tests.support.costs import CountedGateway
from tests.support.events import all_events, events_on
from tests.support.features import switch_on
from tests.support.states import document, load, packed, put, save, state, write

TURNS = 200
TURN_BYTES = 2000
ID_1 = "1f0c0000-0000-6000-8000-000000000001"


@pytest.fixture
def gateway(store):
    return CountedGateway(store)


async def stored(admin, scope):
    """Rows and envelope bytes of a subject, by table."""
    counted = {}
    for table, column in (("checkpoints", "manifest"), ("chunks", "envelope"), ("pending_writes", "value")):
        row = await admin.fetchrow(
            f"SELECT count(*) AS rows, coalesce(sum(length({column})), 0) AS bytes FROM stateroom.{table}"  # noqa: S608
            " WHERE tenant_id = $1",
            scope.tenant_id,
        )
        counted[table] = (row["rows"], row["bytes"])
    return counted


async def test_statements_of_a_first_save_a_next_one_and_a_load(store, scope, gateway):
    await save(gateway, scope, content=state(a=document("a")))
    assert gateway.counted() == 4  # after BEGIN: open, write, the new namespace's seal, COMMIT
    await save(gateway, scope, content=state(a=document("b")))
    assert gateway.counted() == 0  # one function is the whole transaction
    await load(gateway, scope)
    assert gateway.counted() == 0  # likewise
    await save(CountedGateway(store), scope)  # another process
    await save(gateway, scope, content=state(a=document("c")))
    assert gateway.counted() == 3  # the function failed; open, write, COMMIT


async def test_statements_of_pending_writes(scope, gateway):
    await put(gateway, scope, ID_1, write(0, "m", "x"))
    assert gateway.counted() == 3
    await save(gateway, scope, checkpoint_id=ID_1)
    assert gateway.counted() == 4
    await put(gateway, scope, ID_1, write(0, "m", "x"), task_id="a")
    await put(gateway, scope, ID_1, write(0, "m", document("x")), task_id="b")
    assert gateway.counted() == 0


async def test_events_cost_no_statement_of_a_tenant_without_and_none_more_on_what_is_remembered(store, scope, gateway):
    await switch_on(store, EVENTS)
    store.emitting.learn(scope.tenant_id, is_on=False)  # as every look-up of a key says
    gateway.counted()
    await save(gateway, scope)
    assert gateway.counted() == 4  # as before there were events
    saved = await save(gateway, scope)
    await put(gateway, scope, saved.checkpoint_id, write(0, "m", "x"), status="waiting")
    assert gateway.counted() == 0
    await events_on(store, scope.tenant_id)
    store.emitting.learn(scope.tenant_id, is_on=True)
    saved = await save(gateway, scope)
    await put(gateway, scope, saved.checkpoint_id, write(0, "m", "x"), status="waiting")
    assert gateway.counted() == 0  # the functions add the events
    await save(gateway, scope, "another")
    assert gateway.counted() == 6  # that the thread is there, and its checkpoint
    assert len(await all_events(store, scope)) == 4


async def test_a_step_of_ten_kilobytes_stores_its_own_rows_and_little_more(scope, gateway, admin):
    text = Random(7)  # noqa: S311  incompressible text, so that bytes are bytes
    size = 0
    for step in range(10):
        content = {name: text.randbytes(2500).hex() for name in ("messages", "documents")}
        size += sum(map(len, content.values()))
        await save(gateway, scope, content=state(step=step, **content))
    counted = await stored(admin, scope)
    assert counted["checkpoints"][0] == 10
    assert 20 <= counted["chunks"][0] <= 30  # one for each value that is not small, rarely two
    assert sum(each[1] for each in counted.values()) < 0.65 * size  # hexadecimal halves, plus seals


async def test_a_growing_chat_stores_what_is_new(scope, gateway, admin):
    text = Random(7)  # noqa: S311  as above
    messages = []
    for turn in range(TURNS):
        messages += [{"id": f"{turn}-{role}", "text": text.randbytes(TURN_BYTES // 4).hex()} for role in "ab"]
        value = ChannelValue(turn, packed(messages))
        await save(gateway, scope, content=FullState({"messages": value}))
    total = len(msgpack.packb(messages))
    counted = await stored(admin, scope)
    # A turn stores its checkpoint and its new messages, and what closed a group once more: about three pieces.
    assert counted["chunks"][0] <= 4 * TURNS
    # Of incompressible text (half of its hexadecimal), twice in its life, and manifests.
    assert sum(each[1] for each in counted.values()) < 2.5 * total
    assert gateway.counted() <= 4 + TURNS // 50


async def test_a_turn_of_a_long_chat_that_sends_its_new_elements_writes_few_rows(store, scope, gateway, admin):
    text = Random(7)  # noqa: S311  as above
    messages = [{"id": f"0-{number}", "text": text.randbytes(TURN_BYTES // 4).hex()} for number in range(2)]
    await save(gateway, scope, content=FullState({"messages": ChannelValue(0, packed(messages))}))
    gateway.counted()
    chunks, turns = 0, []
    for turn in range(1, TURNS):
        added = [{"id": f"{turn}-{role}", "text": text.randbytes(TURN_BYTES // 4).hex()} for role in "ab"]
        messages += added
        await save(gateway, scope, content=FullState({"messages": ChannelValue(turn, packed(added), turn - 1)}))
        counted = (await stored(admin, scope))["chunks"][0]
        turns.append(counted - chunks)
        chunks = counted
    assert gateway.counted() == 0  # one function a turn: neither the list nor its tail is read
    assert max(turns) <= 6
    assert chunks <= 4 * TURNS
    loaded = await load(store, scope)
    assert loaded.channels["messages"].value == packed(messages)
