"""A run of a graph acts for the subject that it began with, in whatever thread or context LangGraph calls back."""

import asyncio
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Context
from typing import Annotated, TypedDict
from uuid import uuid4

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

from stateroom import Client, SubjectRequired, acting_for
from stateroom.errors import ParentUnknown
from stateroom.langgraph import StateroomSaver


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def says(word):
    return lambda state: {"log": [word]}


def two_nodes():
    builder = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, says(name))
        builder.add_edge(START, name)
    return builder.compile, {"log": []}


def sends():
    builder = StateGraph(Log)
    builder.add_node("each", lambda word: {"log": [word]})
    builder.add_conditional_edges(START, lambda state: [Send("each", word) for word in ("one", "two", "three")])
    return builder.compile, {"log": []}


def two_tool_calls():
    @tool
    def look_up(name: str) -> str:
        """Look something up."""
        return f"found {name}"

    calls = [ToolCall(name="look_up", args={"name": name}, id=name) for name in ("hotel", "flight")]
    model = GenericFakeChatModel(messages=iter([AIMessage("", id="ask", tool_calls=calls)] * 100))
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([look_up]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
    )
    return builder.compile, {"messages": [("user", "go")]}


def parallel_subgraphs():
    inner = StateGraph(Log)
    for name in ("a", "b"):
        inner.add_node(name, says(name))
        inner.add_edge(START, name)
    builder = StateGraph(Log)
    for name in ("first", "second"):
        builder.add_node(name, inner.compile())
        builder.add_edge(START, name)
    return builder.compile, {"log": []}


def parallel_tasks():
    @task
    def double(number: int) -> int:
        return 2 * number

    def compile(checkpointer):  # noqa: A001 - LangGraph's word
        @entrypoint(checkpointer=checkpointer)
        def flow(numbers: list[int]) -> list[int]:
            return [each.result() for each in [double(number) for number in numbers]]

        return flow

    return compile, [1, 2, 3]


SHAPES = [two_nodes, sends, two_tool_calls, parallel_subgraphs, parallel_tasks]
NAMINGS = ["acting_for", "text", "callable", "bound_key"]
DURABILITIES = ["sync", "async", "exit"]


class Whose:
    """One way of naming a subject: how a saver is made, and what a run is wrapped in."""

    def __init__(self, gateway, naming, subject):
        self.subject, self._gateway, self._naming = subject, gateway, naming
        self._key = gateway.api_key if naming != "bound_key" else _bound_key(gateway, subject)

    def saver(self):
        options = {"text": self.subject, "callable": lambda: self.subject, "bound_key": None}
        named = {} if self._naming == "acting_for" else {"subject": options[self._naming]}
        return StateroomSaver(self._gateway.url, self._key, **named)

    def acting(self):
        return acting_for(self.subject) if self._naming == "acting_for" else nullcontext()


def _bound_key(gateway, subject):
    with Client(gateway.url, gateway.api_key) as client:
        made = client.request(
            "POST",
            "/api-keys",
            body={"kind": "subject", "subject_id": subject, "permissions": ["state:read", "state:write"]},
            idempotency_key=str(uuid4()),
        )
    return made.decode()["api_key"]


def plain(values):
    """A result without what differs from run to run."""
    if isinstance(values, dict) and "messages" in values:
        return [(message.type, message.content) for message in values["messages"]]
    return values


def in_thread(thread_id):
    return {"configurable": {"thread_id": thread_id}}


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_parallel_tasks_of_blocking_runs_are_stored_for_the_subject(gateway_env, subject, shape, naming):
    compile_graph, given = shape()
    expected = plain(compile_graph(checkpointer=InMemorySaver()).invoke(given, in_thread("t")))
    whose = Whose(gateway_env, naming, subject)
    with whose.saver() as saver:
        graph = compile_graph(checkpointer=saver)
        for durability in DURABILITIES:
            config = in_thread(f"blocking-{durability}")
            with whose.acting():
                assert plain(graph.invoke(given, config, durability=durability)) == expected
                assert plain(graph.get_state(config).values) == expected
        config = in_thread("streamed")
        with whose.acting():
            *_, last = graph.stream(given, config, stream_mode="values")
            assert plain(last) == expected
            replayed = [each for each in graph.get_state_history(config) if each.next][-1]
            assert plain(graph.invoke(None, replayed.config)) == expected


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_parallel_tasks_on_event_loops_are_stored_for_the_subject(gateway_env, subject, shape, naming):
    compile_graph, given = shape()
    expected = plain(await compile_graph(checkpointer=InMemorySaver()).ainvoke(given, in_thread("t")))
    whose = Whose(gateway_env, naming, subject)
    async with whose.saver() as saver:
        graph = compile_graph(checkpointer=saver)
        for durability in DURABILITIES:
            config = in_thread(f"loop-{durability}")
            with whose.acting():
                assert plain(await graph.ainvoke(given, config, durability=durability)) == expected
                assert plain((await graph.aget_state(config)).values) == expected
        config = in_thread("streamed")
        with whose.acting():
            history = [each async for each in graph.astream(given, config, stream_mode="values")]
            assert plain(history[-1]) == expected
            replayed = [each async for each in graph.aget_state_history(config) if each.next][-1]
            assert plain(await graph.ainvoke(None, replayed.config)) == expected


# Nobody else's


def nested(user, meet):
    """A node, a subgraph beside it and a node after both. Each waits until the other subject's run is there, too."""

    def node(name):
        def run(state: Log):
            meet(name)
            return {"log": [f"{user} {name}"]}

        return run

    inner = StateGraph(Log).add_node("deep", node("deep")).add_edge(START, "deep")
    builder = StateGraph(Log).add_node("flat", node("flat")).add_node("sub", inner.compile())
    builder.add_edge(START, "flat").add_edge(START, "sub")
    return builder.add_node("last", node("last")).add_edge(["flat", "sub"], "last")


NODES = ("flat", "deep", "last")


def alone(name):
    """Wait for nobody."""


def kept_by(saver, user, thread_id="same"):
    """Every word in a subject's thread, in values and pending writes of all namespaces, and its checkpoints' ids."""
    with acting_for(user):
        found = list(saver.list(in_thread(thread_id)))
    words = {word for each in found for word in each.checkpoint["channel_values"].get("log", [])}
    for each in found:
        words.update(word for _, channel, value in each.pending_writes if channel == "log" for word in value)
    return (
        words,
        {each.checkpoint["id"] for each in found},
        {each.config["configurable"]["checkpoint_ns"] for each in found},
    )


def assert_apart(saver, users, durability="async"):
    seen = set()
    for user in users:
        words, ids, namespaces = kept_by(saver, user)
        assert words == {f"{user} {name}" for name in NODES}
        # The subgraph has a namespace of its own, unless only what is left at the end is stored.
        assert len(namespaces) == (1 if durability == "exit" else 2)
        assert seen.isdisjoint(ids)
        seen |= ids


@pytest.fixture
def users():
    return [f"user-{uuid4()}" for _ in range(2)]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_blocking_runs_of_two_subjects_under_one_thread_id_never_mix(shared_saver, users, durability):
    barriers = {name: threading.Barrier(2, timeout=30) for name in NODES}

    def run(user):
        graph = nested(user, lambda name: barriers[name].wait()).compile(checkpointer=shared_saver)
        with acting_for(user):
            graph.invoke({"log": []}, in_thread("same"), durability=durability)

    with ThreadPoolExecutor(2) as pool:
        for ran in [pool.submit(run, user) for user in users]:
            ran.result(60)
    assert_apart(shared_saver, users, durability)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_runs_of_two_subjects_on_one_loop_under_one_thread_id_never_mix(shared_saver, users, durability):
    barriers = {name: threading.Barrier(2, timeout=30) for name in NODES}

    async def run(user):
        # The nodes block, so LangGraph runs them in threads of its loop.
        graph = nested(user, lambda name: barriers[name].wait()).compile(checkpointer=shared_saver)
        with acting_for(user):
            await graph.ainvoke({"log": []}, in_thread("same"), durability=durability)

    await asyncio.wait_for(asyncio.gather(*map(run, users)), 60)
    await asyncio.to_thread(assert_apart, shared_saver, users, durability)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_streams_of_two_subjects_that_are_read_in_turns_never_mix(shared_saver, users, durability):
    """Between two steps of a generator, its caller has whatever subject the generator left behind."""

    def stream(user):
        graph = nested(user, alone).compile(checkpointer=shared_saver)
        with acting_for(user):
            yield from graph.stream({"log": []}, in_thread("same"), durability=durability)

    # What they leave behind at last shall not reach the next test.
    Context().run(lambda: list(zip(*map(stream, users), strict=True)))
    assert_apart(shared_saver, users, durability)


def test_a_stream_whose_every_step_is_read_in_another_context_stays_the_subjects_own(shared_saver, users):
    def stream(user):
        graph = nested(user, alone).compile(checkpointer=shared_saver)
        with acting_for(user):
            yield from graph.stream({"log": []}, in_thread("same"))

    for user in users:
        steps = stream(user)
        while Context().run(next, steps, None) is not None:
            pass
    assert_apart(shared_saver, users)


def test_a_run_that_a_node_starts_in_another_thread_acts_for_whom_the_node_says(shared_saver, users):
    outer, inner = users
    report = StateGraph(Log).add_node("flat", says("for one user")).add_edge(START, "flat")
    report = report.compile(checkpointer=shared_saver)

    def each_user(state: Log):
        with acting_for(inner):
            report.invoke({"log": []}, in_thread("report"))
        return {"log": ["all done"]}

    nightly = StateGraph(Log).add_node("each_user", each_user).add_edge(START, "each_user")
    with acting_for(outer):
        nightly.compile(checkpointer=shared_saver).invoke({"log": []}, in_thread("nightly"))
    assert kept_by(shared_saver, inner, "report")[0] == {"for one user"}
    assert kept_by(shared_saver, outer, "nightly")[0] == {"all done"}
    assert kept_by(shared_saver, outer, "report")[0] == kept_by(shared_saver, inner, "nightly")[0] == set()


def test_a_run_that_begins_at_somebody_elses_checkpoint_neither_reads_nor_joins_it(shared_saver, users):
    graph = nested(users[0], alone).compile(checkpointer=shared_saver)
    with acting_for(users[0]):
        graph.invoke({"log": []}, in_thread("same"))
        theirs = graph.get_state(in_thread("same")).config
    with acting_for(users[1]), pytest.raises(ParentUnknown):
        nested(users[1], alone).compile(checkpointer=shared_saver).invoke({"log": []}, theirs)
    # What his own subgraph said before the refusal arrived is his; of the other's run there is nothing.
    assert kept_by(shared_saver, users[1], "same")[0] <= {f"{users[1]} deep"}


def test_a_config_that_a_caller_made_is_left_as_it_was_and_names_nobody(shared_saver, users):
    config = in_thread("same")
    graph = nested(users[0], alone).compile(checkpointer=shared_saver)
    with acting_for(users[0]):
        chunks = list(graph.stream({"log": []}, config, stream_mode="debug"))
        assert shared_saver.get_tuple(config) is not None
    assert config == in_thread("same")
    assert "stateroom" not in repr(chunks)
    with acting_for(users[1]):
        assert shared_saver.get_tuple(config) is None
    with pytest.raises(SubjectRequired):
        shared_saver.get_tuple(config)
