import msgpack
import pytest

from storage.errors import CheckpointNotFound
from storage.model import ChannelHistoryQuery, ChannelValue, FullState, Load, Parent
from tests.support.states import document, packed, put, save, state, write


def values(found):
    return [(each.task_id, msgpack.unpackb(each.value.data)) for each in found.writes]


def seed(found):
    return None if found.seed is None else msgpack.unpackb(found.seed.value.data)


async def test_writes_since_the_nearest_value_come_oldest_first(store, scope):
    base = await save(store, scope, content=FullState({"d": ChannelValue("7", packed(document("seed")))}))
    await put(store, scope, base.checkpoint_id, write(0, "d", "w1"), write(1, "other", "no"))
    middle = await save(store, scope, content=state(x=1), delta_channels=("d",))
    await put(store, scope, middle.checkpoint_id, write(0, "d", "w2"), task_id="b", task_path="~2")
    await put(store, scope, middle.checkpoint_id, write(0, "d", document("w3")), task_id="c", task_path="~1")
    last = await save(store, scope, content=state(x=2), delta_channels=("d",))
    await put(store, scope, last.checkpoint_id, write(0, "d", "own"))
    found = (
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d", "x", "never"]))
    ).channels
    assert seed(found["d"]) == document("seed")
    assert found["d"].seed.version == "7"
    assert values(found["d"]) == [("task", "w1"), ("c", document("w3")), ("b", "w2")]
    assert (seed(found["x"]), values(found["x"])) == (1, [])
    assert (seed(found["never"]), values(found["never"])) == (None, [])


async def test_history_follows_parents_not_ages(store, scope):
    base = await save(store, scope, content=state(d="base"))
    left = await save(store, scope, content=state(x=1))
    await put(store, scope, left.checkpoint_id, write(0, "d", "left"))
    right = await save(store, scope, content=state(x=2), parent=Parent(base.checkpoint_id))
    await put(store, scope, right.checkpoint_id, write(0, "d", "right"))
    await save(store, scope, content=state(x=3), parent=Parent(left.checkpoint_id))
    found = (await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"]))).channels
    assert (seed(found["d"]), values(found["d"])) == ("base", [("task", "left")])


async def test_a_long_line_is_walked_to_its_beginning(store, scope):
    first = await save(store, scope, content=state(d="seed"))
    for number in range(300):
        await save(store, scope, content=state(x=number), step=number)
    await put(store, scope, first.checkpoint_id, write(0, "d", "w"))
    found = (await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"]))).channels
    assert (seed(found["d"]), values(found["d"])) == ("seed", [("task", "w")])


async def test_a_line_whose_beginning_was_removed_has_no_seed(store, scope):
    await save(store, scope, content=state(d="seed"))
    await save(store, scope, content=state(x=1))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    found = (await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"]))).channels
    assert (seed(found["d"]), values(found["d"])) == (None, [])


async def test_checkpoints_that_name_each_other_as_parents_end_the_walk(store, scope):
    one, two = "1f0c0000-0000-6000-8000-000000000001", "1f0c0000-0000-6000-8000-000000000002"
    await save(store, scope, content=state(x=1), checkpoint_id=one, step=1)
    await save(store, scope, content=state(x=2), checkpoint_id=two, step=2)
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await save(store, scope, content=state(x=1), checkpoint_id=one, parent=Parent(two), step=1, fork=True)
    found = (await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", one, ["d"]))).channels
    assert found["d"].seed is None


async def test_an_unknown_checkpoint_is_not_found(store, scope):
    for checkpoint_id in (None, "1f0c0000-0000-6000-8000-000000000001"):
        with pytest.raises(CheckpointNotFound):
            await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", checkpoint_id, ["d"]))
    await save(store, scope)
    with pytest.raises(CheckpointNotFound):
        await store.checkpoints.channel_history(
            scope, ChannelHistoryQuery("t1", "", "1f0c0000-0000-6000-8000-000000000001", ["d"])
        )
    with pytest.raises(CheckpointNotFound):
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "other", None, ["d"]))


async def test_a_load_gives_what_the_load_and_the_history_give_apart(store, scope):
    base = await save(store, scope, content=state(d=document("seed")))
    await put(store, scope, base.checkpoint_id, write(0, "d", document("w1")), write(1, "other", "no"))
    middle = await save(store, scope, content=state(x=1, note=document("n")), delta_channels=("d",))
    await put(store, scope, middle.checkpoint_id, write(0, "d", "w2"), task_id="b")
    last = await save(store, scope, content=state(x=2), delta_channels=("d",))
    await put(store, scope, last.checkpoint_id, write(0, "d", "own"))
    before = await store.checkpoints.channel_history(
        scope, ChannelHistoryQuery("t1", "", middle.checkpoint_id, ["d", "never"])
    )
    for checkpoint_id in (None, middle.checkpoint_id, base.checkpoint_id):
        for mark in (None, before.mark, "no mark"):
            place = ("t1", "", checkpoint_id)
            query = ChannelHistoryQuery(*place, ["d", "never"], mark=mark, refs=True)
            apart = await store.checkpoints.channel_history(scope, query)
            for with_state in (True, False):
                alone = await store.checkpoints.load(scope, Load(*place, with_state=with_state, refs=True))
                load = Load(*place, with_state=with_state, refs=True, history=["d", "never"], mark=mark)
                loaded = await store.checkpoints.load(scope, load)
                assert loaded.histories == apart
                assert loaded.checkpoint == alone.checkpoint
                assert (loaded.head_id, loaded.token, alone.histories) == (alone.head_id, alone.token, None)
