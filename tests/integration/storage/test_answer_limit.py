"""An answer has a limit, whatever its values are made of; every state can be read in some way that stays below it."""

import asyncio

import pytest

from storage.access.offload import RESOLVED_BYTES_MAX
from storage.blobs.memory import MemoryBlobStore
from storage.concurrency.room import count_with
from storage.errors import StateTooLarge
from storage.model import ChannelHistoryQuery, HistoryQuery, Load, Precondition, TaskWritesQuery
from storage.service import Store, StoreOptions
from tests.support.states import contents, load, patch, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

# Text that is neither a large leaf nor a list, so that no placeholder stands for it and nothing of it is shared.
LINES = 8_000


def lines(number):
    return {f"{number}-{line}": "x" * 990 for line in range(LINES)}


@pytest.fixture(params=[True, False], ids=["object store", "database only"])
async def store(request, database, root_key):
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=8,
        durable=False,
        options=StoreOptions(blobs=MemoryBlobStore() if request.param else None),
    )
    yield opened
    await opened.close()


async def writes_beyond_the_limit(store, scope):
    saved = await save(store, scope, content=state(note="x"))
    for number in range(11):
        await put(store, scope, saved.checkpoint_id, write(0, "out", lines(number)), task_id=f"task-{number}")
    return saved


@pytest.mark.parametrize("refs", [False, True])
async def test_pending_writes_beyond_the_limit_are_refused_and_come_task_by_task(store, scope, refs):
    saved = await writes_beyond_the_limit(store, scope)
    with pytest.raises(StateTooLarge, match="RESOLVED_BYTES_MAX"):
        await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, refs=refs))
    with pytest.raises(StateTooLarge):
        await store.checkpoints.load(scope, Load("t1", "", saved.checkpoint_id, with_state=True, refs=refs))
    query = HistoryQuery(thread_id="t1", with_state=True, refs=refs)
    with pytest.raises(StateTooLarge):
        await store.checkpoints.history(scope, query)
    await save(store, scope, parent=None)
    with pytest.raises(StateTooLarge):
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["out"], refs=refs))
    [own] = await store.checkpoints.task_writes(
        scope, TaskWritesQuery("t1", "", saved.checkpoint_id, "task-3", refs=refs)
    )
    assert len(own.value.data) > 7_900_000


async def test_a_patch_that_changes_nothing_leaves_too_many_pending_writes_behind(store, scope):
    saved = await writes_beyond_the_limit(store, scope)
    precondition = Precondition(head_id=saved.checkpoint_id)
    await save(store, scope, content=patch(), precondition=precondition)
    loaded = await load(store, scope)
    assert contents(loaded) == {"note": "x"}
    assert writes_of(loaded) == []


async def test_a_value_that_is_named_again_counts_again(store, scope):
    saved = await save(store, scope, content=state(a=lines(0)))
    for number in range(8):
        precondition = Precondition(head_id=saved.checkpoint_id)
        saved = await save(store, scope, content=patch(put={f"a{number}": lines(0)}), precondition=precondition)
    with pytest.raises(StateTooLarge):
        await load(store, scope)
    await store.threads.copy(scope, "t1", "t2")
    content = patch(remove=["a0", "a1"])
    await save(store, scope, "t2", content=content, precondition=Precondition(head_id=saved.checkpoint_id))
    held = await load(store, scope, "t2")
    assert sum(len(each.value.data) for each in held.channels.values()) <= RESOLVED_BYTES_MAX
    assert contents(held)["a7"] == lines(0)


async def test_what_is_just_below_the_limit_is_loaded(store, scope):
    saved = await save(store, scope, content=state(a=lines(0)))
    for number in range(7):
        precondition = Precondition(head_id=saved.checkpoint_id)
        saved = await save(store, scope, content=patch(put={f"a{number}": lines(number)}), precondition=precondition)
    held = await load(store, scope)
    assert sum(len(each.value.data) for each in held.channels.values()) > RESOLVED_BYTES_MAX * 9 // 10


async def test_a_state_and_the_histories_with_it_are_one_answer(store, scope):
    many = [f"a{number}" for number in range(5)]
    saved = await save(store, scope, content=state(**dict.fromkeys(many, lines(0))))
    await save(store, scope, content=patch(put={"x": 1}), precondition=Precondition(head_id=saved.checkpoint_id))
    place = ("t1", "", None)
    for part in (Load(*place, with_state=True), Load(*place, with_state=False, history=many)):
        await store.checkpoints.load(scope, part)
    with pytest.raises(StateTooLarge):
        await store.checkpoints.load(scope, Load(*place, with_state=True, history=many))


class NoRoom(Exception):
    """Whoever counts has no room."""


async def test_what_an_answer_takes_is_counted_before_it_is_put_together(store, scope):
    await save(store, scope, content=state(a=lines(0)))
    taken: list[int] = []

    def take(size: int) -> None:
        taken.append(size)
        if sum(taken) > 1_000_000:
            raise NoRoom

    async def counted() -> None:
        count_with(take)
        await load(store, scope)

    with pytest.raises(NoRoom):
        await asyncio.create_task(counted())  # a request's context ends with its task
    assert len(taken) == 1 or sum(taken) < 2_000_000  # all before anything is fetched, or piece by piece
    assert contents(await load(store, scope)).keys() == {"a"}
