"""The rules of ``get_delta_channel_history``, checked against LangGraph's own walk over ``get_tuple``."""

from uuid import uuid4

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from stateroom import DeltaChainNeeded
from stateroom.langgraph import StateroomSaver


class Chain:
    """A line of checkpoints; each step may store a value and receives writes."""

    def __init__(self, saver, thread_id):
        self.saver = saver
        self.thread_id = thread_id
        self.tip = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.step = 0
        self.versions = {}

    async def put(self, values=None, *, run_id=None, parent=None, bumped=()):
        values = values or {}
        parent = parent or self.tip
        changed = {}
        for name in [*values, *bumped]:
            self.versions[name] = changed[name] = self.saver.get_next_version(self.versions.get(name), None)
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=self.step)),
            "ts": "2026-11-21T10:00:00+00:00",
            "channel_values": values,
            "channel_versions": dict(self.versions),
            "versions_seen": {},
            "updated_channels": None,
        }
        metadata = {"source": "loop", "step": self.step, "parents": {}}
        metadata["counters_since_delta_snapshot"] = {"items": (self.step, self.step), "log": (self.step, 1)}
        if run_id:
            metadata["run_id"] = run_id
        self.tip = await self.saver.aput(parent, checkpoint, metadata, changed)
        self.step += 1
        return self.tip

    async def write(self, *pairs, task_id=None, task_path=""):
        await self.saver.aput_writes(self.tip, list(pairs), task_id or str(uuid4()), task_path)


@pytest.fixture
def chain(saver, thread_id):
    return Chain(saver, thread_id)


async def both(saver, config, channels):
    """The saver's one-request answer, after checking that LangGraph's own walk agrees."""
    fast = await saver.aget_delta_channel_history(config=config, channels=channels)
    walked = await BaseCheckpointSaver.aget_delta_channel_history(saver, config=config, channels=channels)
    assert fast == walked
    return fast


def values(history):
    return [value for _, _, value in history["writes"]]


async def test_writes_come_oldest_first_and_the_targets_own_are_left_out(saver, chain):
    for number in range(4):
        await chain.put()
        await chain.write(("items", number))
    history = await both(saver, chain.tip, ["items"])
    assert values(history["items"]) == [0, 1, 2]
    assert "seed" not in history["items"]


async def test_the_seed_is_the_nearest_ancestors_snapshot_and_its_own_writes_are_replayed(saver, chain):
    await chain.put({"items": _DeltaSnapshot(["old"])})
    await chain.write(("items", "under-old"))
    await chain.put({"items": _DeltaSnapshot(["new"])})
    await chain.write(("items", "under-new"))
    await chain.put()
    await chain.write(("items", "later"))
    await chain.put()
    history = await both(saver, chain.tip, ["items"])
    assert history["items"]["seed"] == _DeltaSnapshot(["new"])
    assert values(history["items"]) == ["under-new", "later"]


async def test_a_value_stored_at_the_target_itself_is_no_seed(saver, chain):
    await chain.put()
    await chain.write(("items", 1))
    await chain.put({"items": _DeltaSnapshot([1])})
    history = await both(saver, chain.tip, ["items"])
    assert "seed" not in history["items"]
    assert values(history["items"]) == [1]


@pytest.mark.parametrize("plain", [["a", "b"], None, 0, ""])
async def test_a_plain_value_from_before_the_migration_is_a_seed_even_if_falsy(saver, chain, plain):
    await chain.put({"items": plain})
    await chain.write(("items", "c"))
    await chain.put()
    history = await both(saver, chain.tip, ["items"])
    assert history["items"] == {"writes": history["items"]["writes"], "seed": plain}
    assert values(history["items"]) == ["c"]


async def test_each_channel_ends_at_its_own_seed(saver, chain):
    await chain.put({"log": _DeltaSnapshot(["l"])})
    await chain.write(("items", 1), ("log", "x"), ("unrelated", 9))
    await chain.put({"items": _DeltaSnapshot([1])}, bumped=["log"])
    await chain.write(("items", 2), ("log", "y"))
    await chain.put(bumped=["items"])
    history = await both(saver, chain.tip, ["items", "log", "absent"])
    assert (history["items"]["seed"], values(history["items"])) == (_DeltaSnapshot([1]), [2])
    assert (history["log"]["seed"], values(history["log"])) == (_DeltaSnapshot(["l"]), ["x", "y"])
    assert history["absent"] == {"writes": []}


async def test_only_ancestors_on_the_path_contribute(saver, chain):
    root = await chain.put()
    await chain.write(("items", "root"))
    await chain.put()
    await chain.write(("items", "abandoned"))
    await chain.put()
    await chain.put(parent=root)
    await chain.write(("items", "own"))
    await chain.put()
    history = await both(saver, chain.tip, ["items"])
    assert values(history["items"]) == ["root", "own"]


async def test_writes_of_one_step_are_in_task_path_order_then_task_then_index(saver, chain):
    await chain.put()
    await chain.write(("items", "path-b"), task_id="a", task_path="~b")
    await chain.write(("items", "path-a-task-z"), task_id="z", task_path="~a")
    await chain.write(("items", "path-a-task-b-0"), ("items", "path-a-task-b-1"), task_id="b", task_path="~a")
    await chain.write(("items", "no-path"), task_id="y")
    await chain.put()
    history = await both(saver, chain.tip, ["items"])
    assert values(history["items"]) == [
        "no-path",
        "path-a-task-b-0",
        "path-a-task-b-1",
        "path-a-task-z",
        "path-b",
    ]


async def test_no_channel_no_history_and_no_checkpoint_no_writes(saver, chain, config):
    assert await saver.aget_delta_channel_history(config=config, channels=[]) == {}
    missing = await both(saver, config, ["items"])
    assert missing == {"items": {"writes": []}}


async def test_without_an_id_the_newest_checkpoint_is_meant(saver, chain, config):
    await chain.put()
    await chain.write(("items", 1))
    await chain.put()
    assert await both(saver, config, ["items"]) == await both(saver, chain.tip, ["items"])


async def test_two_processes_that_write_one_thread_in_turns_rebuild_the_same(gateway_env, subject, thread_id, config):
    def process():
        return StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject)

    async with process() as one, process() as other:
        chain = Chain(one, thread_id)
        await chain.put({"items": _DeltaSnapshot(["s"])})
        for number in range(12):
            chain.saver = (one, one, other, one, other)[number % 5]
            assert values((await both(chain.saver, chain.tip, ["items"]))["items"]) == list(range(number))
            await chain.write(("items", number), task_id="a")
            await chain.put()
        previous = values((await both(one, chain.tip, ["items"]))["items"])
        earlier = [found.config async for found in other.alist(config, limit=4)][-1]
        await other.aput_writes(earlier, [("items", "late")], "b")
        assert values((await both(one, chain.tip, ["items"]))["items"]) == [*previous[:-2], "late", *previous[-2:]]
        forked = await other.aget_delta_channel_history(config=earlier, channels=["items"])
        assert forked == await one.aget_delta_channel_history(config=earlier, channels=["items"])


async def test_the_walk_is_longer_than_a_page(saver, chain):
    await chain.put({"items": _DeltaSnapshot([])})
    for number in range(130):
        await chain.write(("items", number))
        await chain.put()
    history = await saver.aget_delta_channel_history(config=chain.tip, channels=["items"])
    assert values(history["items"]) == list(range(130))
    assert history["items"]["seed"] == _DeltaSnapshot([])


async def test_pruning_keeps_what_the_newest_checkpoint_is_rebuilt_from(saver, chain, config):
    await chain.put({"items": _DeltaSnapshot(["s"])})
    for number in range(3):
        await chain.write(("items", number))
        await chain.put()
    before = await both(saver, config, ["items"])
    await saver.aprune([chain.thread_id], strategy="keep_latest")
    assert await both(saver, config, ["items"]) == before
    assert values(before["items"]) == [0, 1, 2]


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
async def test_langgraph_servers_words_for_deleting_a_thread_are_understood(saver, chain, config, strategy):
    await chain.put({"items": _DeltaSnapshot(["s"])})
    await saver.aprune([], strategy=strategy)
    assert await saver.aget_tuple(config) is not None
    await saver.aprune([chain.thread_id], strategy=strategy)
    assert await saver.aget_tuple(config) is None


async def test_a_run_that_a_surviving_checkpoint_is_rebuilt_from_is_not_deleted(saver, chain):
    first, second = str(uuid4()), str(uuid4())
    await chain.put(run_id=first)
    await chain.write(("items", 1))
    await chain.put(run_id=second)
    with pytest.raises(DeltaChainNeeded):
        await saver.adelete_for_runs([first])
    assert values((await both(saver, chain.tip, ["items"]))["items"]) == [1]


async def test_a_copied_thread_has_the_same_history(saver, chain):
    await chain.put({"items": _DeltaSnapshot(["s"])})
    await chain.write(("items", 1))
    await chain.put()
    target = str(uuid4())
    await saver.acopy_thread(chain.thread_id, target)
    copied = await both(saver, {"configurable": {"thread_id": target}}, ["items"])
    assert copied == await both(saver, chain.tip, ["items"])


async def test_the_blocking_method_agrees(saver, chain):
    await chain.put({"items": ["s"]})
    await chain.write(("items", 1))
    await chain.put()
    assert saver.get_delta_channel_history(config=chain.tip, channels=["items"]) == await both(
        saver, chain.tip, ["items"]
    )
