import asyncio
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx2
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from stateroom import Client, HeadMoved, IntegrityFailure, SubjectRequired, acting_for
from stateroom.langgraph import StateroomSaver

DURABILITIES = ["sync", "async", "exit"]


class Count(TypedDict):
    total: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


def step(name, amount=1):
    def node(state: Count):
        return {"total": amount, "log": [name]}

    return node


def line(*names):
    builder = StateGraph(Count)
    for before, name in zip([START, *names], names, strict=False):
        builder.add_node(name, step(name))
        builder.add_edge(before, name)
    builder.add_edge(names[-1], END)
    return builder


def stripped(snapshots):
    """What two savers must agree on: everything but ids and times."""
    return [
        (snapshot.values, snapshot.next, snapshot.metadata["step"], snapshot.metadata.get("source"))
        for snapshot in snapshots
    ]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_graph_keeps_the_same_history_as_in_memory(saver, config, durability):
    builder = line("a", "b", "c")
    graph, reference = builder.compile(checkpointer=saver), builder.compile(checkpointer=InMemorySaver())
    for _ in range(2):
        ours = await graph.ainvoke({"total": 1, "log": []}, config, durability=durability)
        theirs = await reference.ainvoke({"total": 1, "log": []}, config, durability=durability)
        assert ours == theirs
    ours = [snapshot async for snapshot in graph.aget_state_history(config)]
    theirs = [snapshot async for snapshot in reference.aget_state_history(config)]
    assert stripped(ours) == stripped(theirs)
    for child, parent in pairwise(ours):
        assert child.parent_config == parent.config


@pytest.mark.parametrize("durability", DURABILITIES)
def test_blocking_graphs_work_the_same(saver, config, durability):
    graph = line("a", "b").compile(checkpointer=saver)
    assert graph.invoke({"total": 0, "log": []}, config, durability=durability)["log"] == ["a", "b"]
    assert graph.invoke({"total": 0, "log": []}, config, durability=durability)["total"] == 4
    assert graph.get_state(config).values["log"] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_an_interrupt_is_kept_and_answered_by_another_process(gateway_env, subject, saver, config, durability):
    ran = []

    async def ask(state: Count):
        ran.append("ask")
        return {"log": [interrupt({"question": "go?"})]}

    builder = StateGraph(Count)
    builder.add_node("before", step("before"))
    builder.add_node("ask", ask)
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    graph = builder.compile(checkpointer=saver)
    paused = await graph.ainvoke({"total": 0, "log": []}, config, durability=durability)
    assert paused["__interrupt__"][0].value == {"question": "go?"}

    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        thread_id = config["configurable"]["thread_id"]
        info = client.thread(thread_id).info()
        assert info is not None
        assert info.status == "waiting"
        assert [found.thread_id for found in client.threads(status="waiting")] == [thread_id]

    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as other:
        resumed = builder.compile(checkpointer=other)
        state = await resumed.aget_state(config)
        assert state.next == ("ask",)
        assert state.interrupts[0].value == {"question": "go?"}
        done = await resumed.ainvoke(Command(resume="yes"), config, durability=durability)
    assert done["log"] == ["before", "yes"]
    assert ran == ["ask", "ask"]


async def test_a_failed_step_is_marked_and_finished_tasks_are_not_repeated(gateway_env, subject, saver, config):
    ran = []
    good_began = asyncio.Event()

    async def good(state: Count):
        ran.append("good")
        good_began.set()
        return {"total": 1}

    async def bad(state: Count):
        ran.append("bad")
        if ran.count("bad") == 1:
            await good_began.wait()
            raise RuntimeError("no luck")
        return {"total": 10}

    builder = StateGraph(Count)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="no luck"):
        await graph.ainvoke({"total": 0, "log": []}, config, durability="sync")
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        info = client.thread(config["configurable"]["thread_id"]).info()
        assert info is not None
        assert info.status == "failed"
    assert (await graph.ainvoke(None, config))["total"] == 11
    assert ran.count("good") == 1


async def test_several_interrupts_of_parallel_tasks_are_answered_by_id(saver, config):
    async def ask(state: dict):
        return {"log": [f"{state['name']}={interrupt(state['name'])}"]}

    builder = StateGraph(Count)
    builder.add_node("ask", ask)
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"name": name}) for name in "abc"], ["ask"])
    graph = builder.compile(checkpointer=saver)
    paused = await graph.ainvoke({"total": 0, "log": []}, config)
    answers = {asked.id: asked.value.upper() for asked in paused["__interrupt__"]}
    assert len(answers) == 3
    done = await graph.ainvoke(Command(resume=answers), config)
    assert sorted(done["log"]) == ["a=A", "b=B", "c=C"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_subgraphs_keep_their_own_namespaces(saver, config, durability):
    def pause(state: Count):
        return {"log": [interrupt("inner?")]}

    inner = StateGraph(Count)
    inner.add_node("first", step("inner"))
    inner.add_node("pause", pause)
    inner.add_edge(START, "first")
    inner.add_edge("first", "pause")
    outer = StateGraph(Count)
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "sub")
    graph = outer.compile(checkpointer=saver)
    await graph.ainvoke({"total": 0, "log": []}, config, durability=durability)
    state = await graph.aget_state(config, subgraphs=True)
    assert state.tasks[0].state.values["log"] == ["inner"]
    assert state.tasks[0].state.config["configurable"]["checkpoint_ns"].startswith("sub:")
    done = await graph.ainvoke(Command(resume="yes"), config, durability=durability)
    assert done["log"][-2:] == ["inner", "yes"]


async def test_parallel_subgraphs_do_not_disturb_each_other(saver, config):
    inner = line("one", "two").compile()

    def named(name):
        async def run(state: Count):
            result = await inner.ainvoke({"total": 0, "log": [name]})
            return {"log": ["+".join(result["log"])], "total": result["total"]}

        return run

    outer = StateGraph(Count)
    for name in "abcd":
        outer.add_node(name, named(name))
        outer.add_edge(START, name)
    graph = outer.compile(checkpointer=saver)
    done = await graph.ainvoke({"total": 0, "log": []}, config)
    assert sorted(done["log"]) == [f"{name}+one+two" for name in "abcd"]
    assert done["total"] == 8


async def test_a_subgraph_with_memory_of_its_own_remembers_between_runs(saver, config):
    inner = line("note").compile(checkpointer=True)
    outer = StateGraph(Count)

    async def run(state: Count):
        result = await inner.ainvoke({"total": 1, "log": []})
        return {"total": result["total"]}

    outer.add_node("run", run)
    outer.add_edge(START, "run")
    graph = outer.compile(checkpointer=saver)
    assert (await graph.ainvoke({"total": 0, "log": []}, config))["total"] == 2
    assert (await graph.ainvoke({"total": 0, "log": []}, config))["total"] == 6


async def test_update_state_forks_and_time_travel_replays_from_an_id(saver, config):
    graph = line("a", "b", "c").compile(checkpointer=saver)
    await graph.ainvoke({"total": 0, "log": []}, config)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    after_a = next(snapshot for snapshot in history if snapshot.values.get("log") == ["a"])
    forked = await graph.aupdate_state(after_a.config, {"log": ["edited"]})
    assert (await graph.aget_state(forked)).values["log"] == ["a", "edited"]
    done = await graph.ainvoke(None, forked)
    assert done["log"] == ["a", "edited", "b", "c"]
    replayed = await graph.ainvoke(None, after_a.config)
    assert replayed["log"] == ["a", "b", "c"]
    # History is only ever added to.
    kept = {snapshot.config["configurable"]["checkpoint_id"] async for snapshot in graph.aget_state_history(config)}
    assert {snapshot.config["configurable"]["checkpoint_id"] for snapshot in history} < kept
    assert (await graph.aget_state(after_a.config)).values["log"] == ["a"]


async def namespaces(saver, config):
    return {
        each.config["configurable"]["checkpoint_ns"].partition(":")[0]
        for each in [e async for e in saver.alist(config)]
    }


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
async def test_pruning_after_every_turn_leaves_nothing_of_finished_calls_and_all_of_the_rest(saver, config, delta):
    """Calls of calls, beside a subgraph that remembers and, in one case, channels that are rebuilt from what stays."""
    words = DeltaChannel(lambda old, new: [*old, *(word for each in new for word in each)], list)
    lists = words if delta else operator.add

    class Kept(TypedDict):
        total: Annotated[int, operator.add]
        log: Annotated[list[str], lists]

    def say(word):
        return lambda state: {"total": 1, "log": [word]}

    def graph_of(**nodes):
        builder = StateGraph(Kept)
        for before, (name, node) in zip([START, *nodes], nodes.items(), strict=False):
            builder.add_node(name, node).add_edge(before, name)
        return builder

    memory = line("note").compile(checkpointer=True)

    async def remember(state):
        return {"log": [f"noted {(await memory.ainvoke({'total': 1, 'log': []}))['total']}"]}

    deep = graph_of(x=say("x")).compile()
    graph = graph_of(call=graph_of(deep=deep, y=say("y")).compile(), remember=remember).compile(checkpointer=saver)
    reference = graph_of(call=graph_of(deep=deep, y=say("y")).compile(), remember=remember).compile(
        checkpointer=InMemorySaver()
    )
    thread_id = config["configurable"]["thread_id"]
    for _ in range(4):
        done = await graph.ainvoke({"total": 0, "log": ["again"]}, config)
        assert await namespaces(saver, config) == {"", "call", "remember"}
        await saver.aprune([thread_id])
        assert await namespaces(saver, config) == {"", "remember"}
        assert done == await reference.ainvoke({"total": 0, "log": ["again"]}, config)
        assert (await graph.aget_state(config)).values == done


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
async def test_the_parent_of_what_pruning_left_is_none_and_every_other_one_is_there(saver, config, delta):
    lists = DeltaChannel(lambda old, new: [*old, *(word for each in new for word in each)], list)

    class Kept(TypedDict):
        log: Annotated[list[str], lists if delta else operator.add]

    builder = StateGraph(Kept).add_node("a", lambda state: {"log": ["a"]}).add_edge(START, "a")
    graph = builder.compile(checkpointer=saver)

    async def parents():
        found = [each async for each in saver.alist(config)]
        ids = {each.config["configurable"]["checkpoint_id"] for each in found}
        named = [each.parent_config and each.parent_config["configurable"]["checkpoint_id"] for each in found]
        assert set(named) <= {None, *ids}
        return named.count(None), len(found)

    for turn in range(3):
        await graph.ainvoke({"log": ["hello"]}, config)
        assert (await parents())[0] == 1
        await saver.aprune([config["configurable"]["thread_id"]])
        roots, kept = await parents()
        assert (roots, kept) == (1, kept if delta else 1)
        head = await saver.aget_tuple(config)
        assert (head.parent_config is None) == (kept == 1)
        assert (await graph.aget_state(config)).values["log"] == ["hello", "a"] * (turn + 1)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_pruning_leaves_a_call_that_waits_and_it_goes_on(saver, config, durability):
    def ask(state: Count):
        return {"log": [interrupt("go?")]}

    deep = StateGraph(Count).add_node("before", step("before")).add_node("ask", ask)
    deep.add_edge(START, "before").add_edge("before", "ask")
    middle = StateGraph(Count).add_node("deep", deep.compile()).add_edge(START, "deep")
    outer = StateGraph(Count).add_node("sub", middle.compile()).add_node("beside", line("quick").compile())
    outer.add_edge(START, "sub").add_edge(START, "beside")
    graph, reference = outer.compile(checkpointer=saver), outer.compile(checkpointer=InMemorySaver())
    for _ in range(2):
        for given in ({"total": 0, "log": []}, Command(resume="yes")):
            done = await graph.ainvoke(given, config, durability=durability)
            for _ in range(2):
                await saver.aprune([config["configurable"]["thread_id"]])
            expected = await reference.ainvoke(given, config, durability=durability)
            assert (done["total"], done["log"]) == (expected["total"], expected["log"])
            waiting = (await graph.aget_state(config, subgraphs=True)).interrupts
            assert [each.value for each in waiting] == (["go?"] if isinstance(given, dict) else [])


async def test_time_travel_into_a_graph_with_a_subgraph_works(saver, config):
    inner = line("one", "two").compile()
    outer = StateGraph(Count)
    outer.add_node("start", step("start"))
    outer.add_node("sub", inner)
    outer.add_edge(START, "start")
    outer.add_edge("start", "sub")
    graph = outer.compile(checkpointer=saver)
    first = await graph.ainvoke({"total": 0, "log": []}, config)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    before_sub = next(snapshot for snapshot in history if snapshot.next == ("sub",))
    assert await graph.ainvoke(None, before_sub.config) == first


async def test_history_can_be_filtered_limited_and_continued(saver, config):
    graph = line("a", "b", "c").compile(checkpointer=saver)
    tagged = {**config, "metadata": {"batch": "nightly"}}
    await graph.ainvoke({"total": 0, "log": []}, tagged)
    await graph.ainvoke({"total": 0, "log": []}, config)
    nightly = [found async for found in saver.alist(config, filter={"batch": "nightly"})]
    assert len(nightly) == 5
    assert {found.metadata["batch"] for found in nightly} == {"nightly"}
    everything = [found.checkpoint["id"] async for found in saver.alist(config)]
    newest = [found async for found in saver.alist(config, limit=2)]
    rest = [found.checkpoint["id"] async for found in saver.alist(config, before=newest[-1].config)]
    assert [found.checkpoint["id"] for found in newest] + rest == everything
    only = [found async for found in saver.alist(nightly[1].config)]
    assert [found.checkpoint["id"] for found in only] == [nightly[1].checkpoint["id"]]


async def test_messages_come_back_as_messages(saver, config):
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    def answer(state: Chat):
        return {"messages": [AIMessage(f"echo {state['messages'][-1].content}", id=str(uuid4()))]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    for text in ("one", "two \x00 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")):
        await graph.ainvoke({"messages": [HumanMessage(text, id=str(uuid4()))]}, config)
    kept = (await graph.aget_state(config)).values["messages"]
    assert [type(message) for message in kept] == [HumanMessage, AIMessage] * 2
    assert kept[3].content == "echo two \x00 \U0001f600"


def extend(state, writes):
    return [*state, *(element for write in writes for element in write)]


async def test_a_delta_channel_is_rebuilt_over_many_turns_forks_and_pruning(saver, config):
    class Log(TypedDict):
        lines: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=4)]

    def note(state: Log):
        return {"lines": [f"reply-{len(state['lines'])}"]}

    builder = StateGraph(Log)
    builder.add_node("note", note)
    builder.add_edge(START, "note")
    graph = builder.compile(checkpointer=saver)
    reference = builder.compile(checkpointer=InMemorySaver())
    for turn in range(7):
        ours = await graph.ainvoke({"lines": [f"turn-{turn}"]}, config)
        assert ours == await reference.ainvoke({"lines": [f"turn-{turn}"]}, config)
    history = [snapshot.values async for snapshot in graph.aget_state_history(config)]
    assert history == [snapshot.values async for snapshot in reference.aget_state_history(config)]
    await saver.aprune([config["configurable"]["thread_id"]])
    assert (await graph.aget_state(config)).values == history[0]
    assert len((await graph.ainvoke({"lines": ["more"]}, config))["lines"]) == 16


async def test_many_users_share_one_saver_and_see_only_their_own(shared_saver, config):
    graph = line("a", "b").compile(checkpointer=shared_saver)
    users = [f"user-{uuid4()}" for _ in range(6)]

    async def use(user, runs):
        with acting_for(user):
            for _ in range(runs):
                await graph.ainvoke({"total": 0, "log": [user]}, config)
            return await graph.aget_state(config)

    states = await asyncio.gather(*(use(user, runs) for runs, user in enumerate(users, 1)))
    for runs, (user, state) in enumerate(zip(users, states, strict=True), 1):
        assert state.values["log"] == [user, "a", "b"] * runs
    with acting_for(f"user-{uuid4()}"):
        assert (await graph.aget_state(config)).values == {}
    with pytest.raises(SubjectRequired):
        await graph.ainvoke({"total": 0, "log": []}, config)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_of_two_runs_at_once_on_a_strict_saver_one_is_refused_and_the_other_is_whole(
    gateway_env, subject, config, durability
):
    """Both have loaded the same head before either goes on."""
    together = threading.Barrier(2)

    def say(saver):
        both = StateGraph(Count).add_node("say", step("said")).add_edge(START, "say").compile(checkpointer=saver)
        try:
            return both.invoke({"total": 1, "log": []}, config, durability=durability)
        except HeadMoved as moved:
            return moved

    class Meeting(StateroomSaver):
        def get_tuple(self, config):
            found = super().get_tuple(config)
            together.wait(30)
            return found

    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject, strict=True) as saver:
        say(saver)
        meeting = Meeting(gateway_env.url, gateway_env.api_key, subject=subject, strict=True)
        with meeting, ThreadPoolExecutor(2) as pool:
            results = list(pool.map(say, [meeting] * 2))
        assert sorted(type(result) is HeadMoved for result in results) == [False, True]
        kept = saver.get_tuple(config)
        assert [result for result in results if not isinstance(result, HeadMoved)] == [
            {name: kept.checkpoint["channel_values"][name] for name in ("total", "log")}
        ]
        with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
            info = client.thread(config["configurable"]["thread_id"]).info()
            assert info is not None
            assert info.strict


def test_graphs_with_subgraphs_forks_and_replays_run_on_a_strict_saver(gateway_env, subject, config):
    inner = line("x", "y").compile()
    builder = StateGraph(Count).add_node("sub", inner).add_node("after", step("after"))
    builder.add_edge(START, "sub").add_edge("sub", "after")
    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject, strict=True) as saver:
        graph = builder.compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"total": 0, "log": []}, config)
        before = next(each for each in graph.get_state_history(config) if each.next == ("after",))
        graph.invoke(None, before.config)
        graph.invoke({"total": 0, "log": []}, graph.update_state(before.config, {"log": ["edited"]}))
        saver.delete_thread(config["configurable"]["thread_id"])
        graph.invoke({"total": 0, "log": []}, config)
        with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
            info = client.thread(config["configurable"]["thread_id"]).info()
            assert info is not None
            assert info.strict


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
async def test_one_text_is_no_list_of_threads_or_runs(saver, config, strategy):
    graph = line("a").compile(checkpointer=saver)
    for thread_id in "abc":
        await graph.ainvoke({"total": 0, "log": []}, {"configurable": {"thread_id": thread_id}, "run_id": uuid4()})
    before = [each async for each in saver.alist(None)]
    with pytest.raises(TypeError, match="sequence"):
        await saver.aprune("abc", strategy=strategy)
    with pytest.raises(TypeError, match="sequence"):
        await asyncio.to_thread(saver.prune, "abc", strategy=strategy)
    with pytest.raises(TypeError, match="sequence"):
        await saver.adelete_for_runs("abc")
    with pytest.raises(TypeError, match="sequence"):
        await asyncio.to_thread(saver.delete_for_runs, "abc")
    assert [each async for each in saver.alist(None)] == before


def test_worker_threads_share_one_saver(shared_saver):
    graph = line("a", "b", "c").compile(checkpointer=shared_saver)

    def use(number):
        with acting_for(f"worker-{number}-{uuid4()}"):
            config = {"configurable": {"thread_id": "same"}}
            graph.invoke({"total": 0, "log": [str(number)]}, config)
            return graph.get_state(config).values["log"]

    with ThreadPoolExecutor(6) as pool:
        logs = list(pool.map(use, range(12)))
    assert logs == [[str(number), "a", "b", "c"] for number in range(12)]


async def test_blocking_calls_work_in_a_worker_thread_while_the_loop_runs(saver, config):
    graph = line("a", "b").compile(checkpointer=saver)
    blocking = asyncio.to_thread(graph.invoke, {"total": 0, "log": ["x"]}, config)
    other = {"configurable": {"thread_id": str(uuid4())}}
    both = await asyncio.gather(blocking, graph.ainvoke({"total": 0, "log": ["y"]}, other))
    assert [result["log"] for result in both] == [["x", "a", "b"], ["y", "a", "b"]]


def test_one_saver_serves_event_loops_one_after_another_and_at_once(gateway_env, subject):
    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        graph = line("a").compile(checkpointer=saver)

        def run(number):
            config = {"configurable": {"thread_id": f"loop-{number}"}}
            return asyncio.run(graph.ainvoke({"total": number, "log": []}, config))["total"]

        assert [run(number) for number in range(3)] == [1, 2, 3]
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(copy_context().run, run, number) for number in range(3, 6)]
            assert [future.result() for future in runs] == [4, 5, 6]


async def test_a_copy_with_an_allow_list_shares_connections_and_rebuilds_the_types(gateway_env, subject, config):
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        builder = StateGraph(Owner)
        builder.add_node("keep", lambda state: {"pet": state.pet})
        builder.add_edge(START, "keep")
        await builder.compile(checkpointer=saver).ainvoke(Owner(pet=Pet(name="Rex")), config)
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["pet"] == {"name": "Rex"}
        allowed = saver.with_allowlist([(Pet.__module__, "Pet")])
        found = await allowed.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["pet"] == Pet(name="Rex")


class Pet(BaseModel):
    name: str


class Owner(BaseModel):
    pet: Pet


class Seat(Enum):
    WINDOW = "window"


@dataclass
class Stop:
    city: str
    seat: Seat


class Passenger(BaseModel):
    name: str


class Secret(BaseModel):
    key: str


class Journey(TypedDict):
    stops: Annotated[list[Stop], operator.add]
    passengers: dict[str, Passenger | None]
    other: Any


JOURNEY = {"stops": [Stop("Rome", Seat.WINDOW)], "passengers": {"a": Passenger(name="Ada")}, "other": Secret(key="k")}


def test_naming_a_states_class_restores_the_types_of_its_fields_and_no_others(gateway_env, subject, config, caplog):
    builder = StateGraph(Journey).add_node("go", lambda state: {}).add_edge(START, "go")
    with StateroomSaver(
        gateway_env.url, gateway_env.api_key, subject=subject, allowed_msgpack_modules=[Journey]
    ) as saver:
        builder.compile(checkpointer=saver).invoke(JOURNEY, config)
        found = builder.compile(checkpointer=saver).get_state(config).values
    assert found == {**JOURNEY, "other": {"key": "k"}}
    # What was in no field is told once, by name, with what to pass.
    (told,) = [record.getMessage() for record in caplog.records if "Secret" in record.getMessage()]
    assert f"allowed_msgpack_modules to allow: [({__name__!r}, 'Secret')]" in told


async def test_bytes_that_would_construct_objects_by_name_are_refused(gateway_env, subject, saver, config):
    checkpoint = b'{"lc":2,"type":"constructor","id":["os","system"],"args":["true"]}'
    thread_id = config["configurable"]["thread_id"]
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        client.request(
            "POST",
            f"/threads/{thread_id}/checkpoints",
            body={"channels": {"x": {"version": 1, "encoding": "json", "data": checkpoint}}},
            idempotency_key=str(uuid4()),
        )
    with pytest.raises(IntegrityFailure):
        await saver.aget_tuple(config)


async def test_credentials_in_a_config_do_not_become_metadata(saver, config):
    graph = line("a").compile(checkpointer=saver)
    config = {
        "configurable": {**config["configurable"], "openai_api_key": "sk-SECRET", "user_name": "Ann"},
        "metadata": {"access_token": "t-SECRET", "max_tokens": 5, "live": object()},
    }
    await graph.ainvoke({"total": 0, "log": []}, config)
    found = await saver.aget_tuple(config)
    assert found is not None
    assert "SECRET" not in repr(found.metadata)
    assert (found.metadata["user_name"], found.metadata["max_tokens"]) == ("Ann", 5)
    assert "live" not in found.metadata


class Counting(httpx2.AsyncBaseTransport):
    """Notes the method and the last segment of each request."""

    def __init__(self, requests):
        self.requests, self.inner = requests, httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request):
        self.requests.append((request.method, request.url.path.rsplit("/", 1)[-1]))
        return await self.inner.handle_async_request(request)

    async def aclose(self):
        await self.inner.aclose()


def counting(gateway_env, subject):
    """A saver, and the requests that it makes."""
    requests = []
    transport = partial(Counting, requests)
    return StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject, async_transport=transport), requests


async def test_a_put_a_write_and_a_load_are_one_request_each(gateway_env, subject, config):
    saver, requests = counting(gateway_env, subject)
    async with saver:
        await line("a", "b").compile(checkpointer=saver).ainvoke({"total": 0, "log": []}, config)
    assert sum(method == "GET" for method, _ in requests) == 1
    assert requests.count(("POST", "checkpoints")) == 4
    assert sum(method == "POST" for method, _ in requests) == 4 + 3  # and what three tasks wrote


async def test_a_turn_with_a_delta_channel_takes_as_many_requests_as_one_without(gateway_env, subject, config):
    class Log(TypedDict):
        lines: Annotated[list[str], DeltaChannel(extend, list)]

    builder = StateGraph(Log)
    builder.add_node("note", lambda state: {"lines": [f"reply-{len(state['lines'])}"]})
    builder.add_edge(START, "note")
    saver, requests = counting(gateway_env, subject)
    taken = []
    async with saver:
        graph, reference = (builder.compile(checkpointer=each) for each in (saver, InMemorySaver()))
        for turn in range(4):
            requests.clear()
            ours = await graph.ainvoke({"lines": [f"turn-{turn}"]}, config)
            assert ours == await reference.ainvoke({"lines": [f"turn-{turn}"]}, config)
            taken.append([path for method, path in requests if method == "GET"])
        assert len(requests) == 6
        assert (await graph.aget_state(config)).values == (await reference.aget_state(config)).values
    assert taken == [["latest"], ["latest", "channel-history"], ["latest"], ["latest"]]
