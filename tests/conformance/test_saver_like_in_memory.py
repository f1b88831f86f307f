"""What graphs see of the saver, held against LangGraph's own saver in memory."""

import copy
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypedDict
from uuid import UUID

import pytest
from langgraph.channels import LastValue
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.graph import START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel

from stateroom import Client, InvalidRequest
from stateroom.langgraph import StateroomSaver


@pytest.fixture
def blocking(gateway_env, subject):
    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        yield saver


def appended(state, writes):
    return state + [each for write in writes for each in write]


def bill(saver, ran):
    """A node that also waits for a delta channel, and one that follows it."""

    def charge(_):
        ran.append("charge")
        return "done"

    def thank(_):
        ran.append("thank")
        return "ok"

    return Pregel(
        nodes={
            "charge": NodeBuilder().subscribe_to("x", "notes").do(charge).write_to("mid"),
            "thank": NodeBuilder().subscribe_only("mid").do(thank).write_to("out"),
        },
        channels={
            "x": LastValue(str),
            "mid": LastValue(str),
            "notes": DeltaChannel(appended, list),
            "out": LastValue(str),
        },
        input_channels=["x", "notes"],
        output_channels=["out"],
        checkpointer=saver,
    )


def nothing_more(graph, config):
    pass


def correct(graph, config):
    graph.update_state(config, "corrected", as_node="thank")


def copy_state(graph, config):
    graph.update_state(config, None, as_node="__copy__")


@pytest.mark.parametrize("then", [nothing_more, correct, copy_state])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("given", [{"x": "1"}, {"x": "1", "notes": ["a"]}], ids=["unwritten", "written"])
def test_a_node_with_a_delta_channel_runs_again_only_where_it_would_in_memory(
    blocking, config, given, durability, then
):
    seen = []
    for saver in (InMemorySaver(), blocking):
        ran = []
        graph = bill(saver, ran)
        graph.invoke(given, config, durability=durability)
        then(graph, config)
        state = graph.get_state(config)
        versions = saver.get_tuple(config).checkpoint["channel_versions"]
        try:
            graph.invoke(None, config, durability=durability)
        except EmptyInputError:
            ran.append(EmptyInputError)
        seen.append(
            (state.next, state.values, {name: int(str(each).split(".")[0]) for name, each in versions.items()}, ran)
        )
    assert seen[1] == seen[0]


METADATA = {
    "source": "update",
    "step": 3,
    "when": datetime(2026, 11, 22, 10, tzinfo=UTC),
    "cost": Decimal("1.10"),
    "raw": b"\x00\xff",
    "tags": {"a"},
    "id": UUID(int=7),
    "ratios": {"inner": [float("inf"), 1.5]},
    "by_number": {1: "one"},
    "plain": {"a": [1, None, "é"]},
}


def test_metadata_of_any_type_the_serialiser_writes_comes_back(blocking, config):
    config["configurable"]["checkpoint_ns"] = ""
    kept = []
    for saver in (InMemorySaver(), blocking):
        stored = saver.put(config, empty_checkpoint(), METADATA, {})
        kept.append(saver.get_tuple(stored))
        assert [each.metadata for each in saver.list(config)] == [kept[-1].metadata]
    assert kept[1].metadata == kept[0].metadata == METADATA
    assert kept[1].checkpoint.keys() == kept[0].checkpoint.keys()
    assert [each.metadata for each in blocking.list(config, filter={"plain": {"a": [1, None, "é"]}})] == [METADATA]


async def test_a_listing_whose_config_names_no_thread_never_gives_every_thread(saver, config):
    config["configurable"]["checkpoint_ns"] = ""
    await saver.aput(config, empty_checkpoint(), {"step": 1}, {})
    for unnamed in ({}, {"configurable": {}}, {"configurable": {"checkpoint_ns": ""}}):
        with pytest.raises(KeyError):
            list(saver.list(unnamed))
        with pytest.raises(KeyError):
            [each async for each in saver.alist(unnamed)]
    nobody = {"configurable": {"thread_id": None}}
    assert list(InMemorySaver().list(nobody)) == [each async for each in saver.alist(nobody)] == []
    assert len([each async for each in saver.alist(None)]) == 1


class Trip(TypedDict, total=False):
    who: str
    legs: int


def count(state):
    return {"legs": state.get("legs", 0) + 1}


def test_a_graph_runs_on_a_thread_that_a_plain_client_saved(gateway_env, subject, blocking, config):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        client.thread(config["configurable"]["thread_id"]).save({"who": "Ada", "legs": 2}, step=4)
    builder = StateGraph(Trip)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    graph = builder.compile(checkpointer=blocking)
    assert graph.get_state(config).values == {"who": "Ada", "legs": 2}
    assert graph.invoke({"who": "Bea"}, config) == {"who": "Bea", "legs": 3}
    assert [each.metadata["step"] for each in graph.get_state_history(config)] == [7, 6, 5, 4]


def test_a_deep_copy_is_a_saver_on_the_same_connections(blocking, config):
    config["configurable"]["checkpoint_ns"] = ""
    twin = copy.deepcopy({"saver": blocking})["saver"]
    stored = twin.put(config, empty_checkpoint(), {"step": 1}, {})
    assert blocking.get_tuple(stored).metadata == {"step": 1}
    assert twin._connections is blocking._connections


def test_a_thread_id_that_is_too_long_is_refused_by_its_limit(blocking):
    config = {"configurable": {"thread_id": "t" * 256, "checkpoint_ns": ""}}
    with pytest.raises(InvalidRequest, match="at most 255 bytes"):
        blocking.put(config, empty_checkpoint(), {"step": 1}, {})
    with pytest.raises(InvalidRequest, match="at most 255 bytes"):
        blocking.get_tuple({"configurable": {"thread_id": "é" * 128}})
    longest = {"configurable": {"thread_id": "t" * 255, "checkpoint_ns": ""}}
    assert blocking.get_tuple(blocking.put(longest, empty_checkpoint(), {"step": 1}, {})).metadata == {"step": 1}
