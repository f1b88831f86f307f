# ruff: noqa: S608  table and column names are constants of these tests

import asyncio

import pytest

from storage.errors import IntegrityFailure, InvalidState, ThreadNotFound
from storage.model import TaskWritesQuery
from tests.support.interleaving import Gate, Steered, blocked
from tests.support.states import document, load, put, save, write, writes_of

CHECKPOINT = "1f0c0000-0000-6000-8000-000000000001"


async def stored_rows(admin, scope, table="pending_writes"):
    return await admin.fetchval(f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)


async def test_writes_come_with_the_checkpoint_they_belong_to(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    receipt = await put(store, scope, CHECKPOINT, write(0, "a", {"x": 1}), write(1, "b", document("long")))
    assert (receipt.stored, receipt.unchanged) == (2, 0)
    loaded = await load(store, scope)
    assert writes_of(loaded) == [("task", 0, "a", {"x": 1}), ("task", 1, "b", document("long"))]
    await save(store, scope)
    assert writes_of(await load(store, scope)) == []


async def test_a_write_that_counts_upwards_is_kept_as_first_written(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await put(store, scope, CHECKPOINT, write(0, "a", "first"))
    receipt = await put(store, scope, CHECKPOINT, write(0, "a", "second"), write(1, "a", "new"))
    assert (receipt.stored, receipt.unchanged) == (1, 1)
    assert writes_of(await load(store, scope)) == [("task", 0, "a", "first"), ("task", 1, "a", "new")]


async def test_a_special_write_is_replaced_by_the_last_one(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await put(store, scope, CHECKPOINT, write(-1, "__error__", "first"), task_path="p1")
    receipt = await put(store, scope, CHECKPOINT, write(-1, "__interrupt__", document("last")), task_path="p2")
    assert (receipt.stored, receipt.unchanged) == (1, 0)
    loaded = await load(store, scope)
    assert writes_of(loaded) == [("task", -1, "__interrupt__", document("last"))]
    assert loaded.writes[0].task_path == "p2"


async def test_writes_may_arrive_before_their_checkpoint_and_its_thread(store, scope):
    await put(store, scope, CHECKPOINT, write(0, "a", document("early")))
    assert (await store.threads.get(scope, "t1")).head_id is None
    await save(store, scope, checkpoint_id=CHECKPOINT)
    assert writes_of(await load(store, scope)) == [("task", 0, "a", document("early"))]


async def test_writes_are_ordered_by_path_then_task_then_number(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await put(store, scope, CHECKPOINT, write(1, "c", 1), write(0, "c", 0), write(-1, "c", -1), task_id="z")
    await put(store, scope, CHECKPOINT, write(0, "c", 2), task_id="b", task_path="~2")
    await put(store, scope, CHECKPOINT, write(0, "c", 3), task_id="a", task_path="~2")
    await put(store, scope, CHECKPOINT, write(0, "c", 4), task_id="y", task_path="~1")
    assert [(task, idx) for task, idx, _, _ in writes_of(await load(store, scope))] == [
        ("z", -1),
        ("z", 0),
        ("z", 1),
        ("y", 0),
        ("a", 0),
        ("b", 0),
    ]


async def test_a_number_occurs_once_in_a_request(store, scope):
    with pytest.raises(InvalidState):
        await put(store, scope, CHECKPOINT, write(0, "a", 1), write(0, "b", 2))


async def test_task_writes_are_those_of_one_task(store, scope):
    verbs = store.checkpoints
    with pytest.raises(ThreadNotFound):
        await verbs.task_writes(scope, TaskWritesQuery("t1", "", CHECKPOINT, "task"))
    await put(store, scope, CHECKPOINT, write(0, "a", document("mine")))
    await put(store, scope, CHECKPOINT, write(0, "a", 2), task_id="other")
    found = await verbs.task_writes(scope, TaskWritesQuery("t1", "", CHECKPOINT, "task"))
    assert [(each.task_id, each.channel) for each in found] == [("task", "a")]
    assert document("mine").encode() in found[0].value.data
    assert await verbs.task_writes(scope, TaskWritesQuery("t1", "", CHECKPOINT, "nobody")) == []
    with pytest.raises(ThreadNotFound):
        await verbs.task_writes(scope, TaskWritesQuery("t2", "", CHECKPOINT, "task"))


async def test_a_tasks_outcome_is_the_status_of_its_checkpoint_and_thread(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await put(store, scope, CHECKPOINT, write(-1, "__error__", "boom"), status="failed")
    assert (await load(store, scope)).status == "failed"
    assert (await store.threads.get(scope, "t1")).status == "failed"


async def test_an_outcome_in_a_namespace_is_not_the_threads_status(store, scope):
    await save(store, scope)
    await put(store, scope, CHECKPOINT, write(-1, "__error__", "boom"), status="failed", namespace="sub")
    assert (await store.threads.get(scope, "t1")).status == "active"


async def test_an_outcome_that_arrived_first_is_the_status_of_the_checkpoint(store, scope):
    await put(store, scope, CHECKPOINT, write(-1, "__error__", "boom"), status="failed")
    await save(store, scope, checkpoint_id=CHECKPOINT)
    assert (await load(store, scope)).status == "failed"


async def test_an_outcome_is_kept_when_its_checkpoint_is_being_saved(store, scope, admin):
    await save(store, scope)
    gate = Gate("COMMIT")
    saving = asyncio.create_task(save(Steered(store, before=gate), scope, checkpoint_id=CHECKPOINT))
    await gate.arrival()
    writing = asyncio.create_task(put(store, scope, CHECKPOINT, write(-1, "__error__", "boom"), status="failed"))
    await blocked(admin)
    gate.opened.set()
    await asyncio.gather(saving, writing)
    assert (await load(store, scope, checkpoint_id=CHECKPOINT)).status == "failed"


async def test_an_outcome_is_kept_when_its_checkpoint_waits_for_it(store, scope, admin):
    await save(store, scope)
    gate = Gate("COMMIT")
    steered = Steered(store, before=gate)
    writing = asyncio.create_task(put(steered, scope, CHECKPOINT, write(-1, "__error__", "boom"), status="failed"))
    await gate.arrival()
    saving = asyncio.create_task(save(store, scope, checkpoint_id=CHECKPOINT))
    await blocked(admin)
    gate.opened.set()
    await asyncio.gather(saving, writing)
    assert (await load(store, scope, checkpoint_id=CHECKPOINT)).status == "failed"


async def test_two_tasks_write_at_the_same_moment(store, scope, admin):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    gate = Gate("COMMIT")
    first = asyncio.create_task(put(Steered(store, before=gate), scope, CHECKPOINT, write(0, "a", document("same"))))
    await gate.arrival()
    second = asyncio.create_task(put(store, scope, CHECKPOINT, write(0, "a", document("same")), task_id="two"))
    await blocked(admin)
    gate.opened.set()
    assert [each.stored for each in await asyncio.gather(first, second)] == [1, 1]
    assert len(writes_of(await load(store, scope))) == 2
    assert await stored_rows(admin, scope, "chunks") == 1


async def test_a_repeated_request_stores_nothing_again(store, scope, admin):
    await put(store, scope, CHECKPOINT, write(0, "a", 1))
    receipt = await put(store, scope, CHECKPOINT, write(0, "a", 1))
    assert (receipt.stored, receipt.unchanged) == (0, 1)
    assert await stored_rows(admin, scope) == 1


async def test_more_writes_than_are_summed_at_a_time_are_compared(store, scope, admin):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await save(store, scope)
    for task_id in ("one", "two"):
        await put(store, scope, CHECKPOINT, *(write(idx, "a", idx) for idx in range(600)), task_id=task_id)
    assert len(writes_of(await load(store, scope, checkpoint_id=CHECKPOINT))) == 1200
    await admin.execute(
        "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND task_id = 'two' AND idx = 599", scope.tenant_id
    )
    with pytest.raises(IntegrityFailure):
        await load(store, scope, checkpoint_id=CHECKPOINT)
