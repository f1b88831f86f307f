"""Runs of real graphs under a claim, and tools of theirs that act once however often a step is run."""

import asyncio
import contextlib
import operator
from typing import Annotated, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt

from stateroom import (
    ClaimHeld,
    ClaimLost,
    Client,
    EffectRepeats,
    EffectUnknown,
    InvalidRequest,
    Summary,
    ThreadClaimed,
)
from stateroom._langgraph.runs import claimed as claimed_config
from stateroom._thread_ledgers.held import Held
from stateroom.langgraph import effect_tool, retry_on, run


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


class Lost(Exception):
    """The connection broke: nobody knows."""


@pytest.fixture
def thread(gateway_env, subject, thread_id):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        yield client.thread(thread_id)


def graph_of(node, saver, **options):
    builder = StateGraph(Log)
    builder.add_node("act", node, **options)
    builder.add_edge(START, "act")
    builder.add_edge("act", END)
    return builder.compile(checkpointer=saver)


def effects(thread):
    return [(each.tool, each.status, each.attempt) for each in thread.effects()]


# --- claims -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_claims_its_thread_and_its_saver_writes_under_the_claim(saver, config, thread, durability):
    seen = []

    def node(state: Log):
        seen.append(thread.claim_info().status)
        return {"log": ["a"]}

    claimed = run(graph_of(node, saver), holder="w1", exclusive=True)
    assert claimed.invoke({"log": ["begin"]}, config, durability=durability) == {"log": ["begin", "a"]}
    assert (seen, thread.claim_info().status, thread.claim_info().holder) == (["live"], "released", "w1")
    with pytest.raises(ThreadClaimed):
        graph_of(node, saver).invoke({"log": []}, config)
    assert [*claimed.stream({"log": []}, config)] == [{"act": {"log": ["a"]}}]
    claimed.update_state(config, {"log": ["by hand"]})
    assert graph_of(node, saver).get_state(config).values["log"][-1] == "by hand"


async def test_a_second_run_of_the_thread_is_refused_until_the_first_ends(saver, config, thread):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def node(state: Log):
        begun.set()
        await go_on.wait()
        return {"log": ["a"]}

    claimed = run(graph_of(node, saver))
    first = asyncio.create_task(claimed.ainvoke({"log": []}, config))
    await begun.wait()
    with pytest.raises(ClaimHeld):
        await claimed.ainvoke({"log": []}, config)
    with pytest.raises(ClaimHeld):
        await claimed.aupdate_state(config, {"log": ["x"]})
    go_on.set()
    assert await first == {"log": ["a"]}
    assert [part async for part in claimed.astream({"log": []}, config)] == [{"act": {"log": ["a"]}}]


async def test_a_run_that_is_taken_over_writes_nothing_more(saver, config, thread):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def node(state: Log):
        if not begun.is_set():
            begun.set()
            await go_on.wait()
            return {"log": ["first"]}
        return {"log": ["second"]}

    graph = graph_of(node, saver)
    first = asyncio.create_task(run(graph).ainvoke({"log": []}, config))
    await begun.wait()
    assert await run(graph, take_over=True).ainvoke(None, config) == {"log": ["second"]}
    go_on.set()
    with pytest.raises(ClaimLost):
        await first
    assert (await graph.aget_state(config)).values == {"log": ["second"]}


def test_a_run_within_a_run_of_its_id_leaves_the_claim_to_it(saver, config, thread):
    seen = []

    def inner(state: Log):
        return {"log": ["inner"]}

    def outer(state: Log):
        if len(seen) < 1:
            run(graph_of(inner, saver), holder="w1").update_state(named, {"log": ["by the inner run"]}, as_node="act")
            seen.append(thread.claim_info().status)
        return {"log": ["outer"]}

    named = {**config, "run_id": uuid4()}
    claimed = run(graph_of(outer, saver), holder="w1", exclusive=True)
    claimed.invoke({"log": []}, named, durability="exit")
    assert (seen, thread.claim_info().status) == (["live"], "released")


def under(claim, saver, config):
    """The config of a run that writes under a claim."""
    held = Held()
    held.add(claim.fence, None)
    return claimed_config(saver.endpoint, config, held)


def test_lists_are_compacted_under_the_claim_of_the_config(saver, config, thread):
    graph = graph_of(lambda _: {"log": ["b"]}, saver)
    with thread.claim(exclusive=True) as claim:
        graph.invoke({"log": ["a"]}, under(claim, saver, config))
        with pytest.raises(ThreadClaimed):
            saver.compact(config, "log", keep_last=0)
        saver.compact_if_needed(under(claim, saver, config), lambda *_: Summary(["all"], keep_last=1), every=1)
        assert graph.get_state(config).values["log"] == ["all", "b"]


async def test_lists_are_compacted_under_the_claim_of_the_config_on_an_event_loop(saver, config, thread):
    graph = graph_of(lambda _: {"log": ["b"]}, saver)
    with thread.claim(exclusive=True) as claim:
        await graph.ainvoke({"log": ["a"]}, under(claim, saver, config))
        with pytest.raises(ThreadClaimed):
            await saver.acompact(config, "log", keep_last=0)
        await saver.acompact_if_needed(under(claim, saver, config), lambda *_: Summary(["all"], keep_last=1), every=1)
        assert (await graph.aget_state(config)).values["log"] == ["all", "b"]


def test_a_run_that_waits_for_somebody_holds_nothing_meanwhile(saver, config, thread):
    def node(state: Log):
        return {"log": [interrupt("go on?")]}

    claimed = run(graph_of(node, saver))
    assert "__interrupt__" in claimed.invoke({"log": []}, config)
    assert thread.claim_info().status == "released"
    assert claimed.invoke(Command(resume="yes"), config) == {"log": ["yes"]}


def test_only_a_graph_with_this_saver_is_claimed():
    builder = StateGraph(Log)
    builder.add_node("act", lambda state: state)
    builder.add_edge(START, "act")
    with pytest.raises(InvalidRequest):
        run(builder.compile())


# --- effects ------------------------------------------------------------------------------------------------------


def agent(saver, acts, **node_options):
    """A graph that asks a tool to pay, and the tool."""

    def ask(state: Chat):
        call = {"name": "pay", "args": {"to": "bob", "amount": 5}, "id": f"call-{uuid4()}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def approve(state: Chat):
        interrupt("pay?")
        return {}

    @tool
    @effect_tool(mode="once")
    def pay(to: str, amount: int, provider_key: str = "") -> str:
        """Pay somebody."""
        acts.append((to, amount, provider_key))
        return "paid"

    builder = StateGraph(Chat)
    builder.add_node("ask", ask)
    builder.add_node("approve", approve)
    builder.add_node("tools", ToolNode([pay]), **node_options)
    for before, after in [(START, "ask"), ("ask", "approve"), ("approve", "tools"), ("tools", END)]:
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver), pay


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_two_resumes_of_one_interrupt_pay_once(saver, config, thread, durability):
    acts = []
    graph, pay = agent(saver, acts)
    assert "provider_key" not in pay.tool_call_schema.model_json_schema()["properties"]
    graph.invoke({"messages": []}, config, durability=durability)
    waiting = graph.get_state(config).config
    done = graph.invoke(Command(resume=True), waiting, durability=durability)
    assert done["messages"][-1].content == "paid"
    # Where no checkpoint says that it is another line, or none does yet, what was done is told.
    if durability == "exit":
        assert graph.invoke(Command(resume=True), waiting, durability=durability)["messages"][-1].content == "paid"
    elif durability == "sync":
        with pytest.raises(EffectRepeats) as refused:
            graph.invoke(Command(resume=True), waiting, durability=durability)
        assert refused.value.effect_name == next(thread.effects()).name
    else:
        with contextlib.suppress(EffectRepeats):
            graph.invoke(Command(resume=True), waiting, durability=durability)
    assert [each[:2] for each in acts] == [("bob", 5)]
    assert acts[0][2] == next(thread.effects()).provider_key
    assert effects(thread) == [("pay", "done", 1)]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_the_next_turn_pays_anew_though_no_checkpoint_of_the_turn_before_was_stored(saver, config, durability):
    keys = []

    @effect_tool(mode="idempotent", name=lambda turn, to: f"{to}-{turn}", identity=["to"])
    def pay(turn: int, to: str, provider_key: str = "") -> str:
        keys.append(provider_key)
        return "paid"

    def node(state: Log):
        return {"log": [pay(len(state["log"]), "bob")]}

    graph = graph_of(node, saver)
    graph.invoke({"log": ["pay bob"]}, config, durability="exit")
    for _ in range(2):
        graph.invoke({"log": ["pay bob once more"]}, config, durability=durability)
    assert len(keys) == len({*keys}) == 3


async def test_two_resumes_at_once_pay_once(saver, config, thread):
    acts = []
    graph, _ = agent(saver, acts)
    await graph.ainvoke({"messages": []}, config)
    waiting = (await graph.aget_state(config)).config
    both = [graph.ainvoke(Command(resume=True), waiting) for _ in range(2)]
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert any(not isinstance(each, BaseException) for each in answers)
    assert len(acts) == 1


def test_a_run_that_failed_behind_its_effect_goes_on_without_it(saver, config, thread):
    acts, bodies = [], []

    @effect_tool()
    def act(n: int) -> str:
        acts.append(n)
        return f"acted {n}"

    def node(state: Log):
        bodies.append(act(len(acts) or 1))
        if len(bodies) == 1:
            raise Lost
        return {"log": bodies[-1:]}

    graph = graph_of(node, saver)
    with pytest.raises(Lost):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config) == {"log": ["acted 1"]}
    assert (acts, len(bodies)) == ([1], 2)


def test_a_retry_policy_runs_the_body_again_and_the_tool_not(saver, config, thread):
    acts, bodies = [], []

    @effect_tool()
    def act(n: int) -> str:
        acts.append(n)
        return f"acted {n}"

    def node(state: Log):
        bodies.append(1)
        done = [act(1), act(2)]
        if len(bodies) < 3:
            raise ConnectionError
        return {"log": done}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=retry_on)
    graph = graph_of(node, saver, retry_policy=policy)
    assert graph.invoke({"log": []}, config) == {"log": ["acted 1", "acted 2"]}
    assert (acts, len(bodies)) == ([1, 2], 3)
    assert effects(thread) == [("act", "done", 1)] * 2


def test_what_may_have_happened_is_neither_retried_nor_done_by_the_next_run(saver, config, thread):
    acts = []

    @effect_tool(name="pay")
    def act(n: int) -> str:
        acts.append(n)
        raise Lost

    def node(state: Log):
        return {"log": [act(1)]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=retry_on)
    graph = graph_of(node, saver, retry_policy=policy)
    with pytest.raises(EffectUnknown):
        graph.invoke({"log": []}, config)
    with pytest.raises(EffectUnknown):
        graph.invoke(None, config)
    assert acts == [1]
    assert effects(thread) == [("act", "unknown", 1)]


async def test_a_sibling_that_is_cancelled_in_the_middle_may_have_acted(saver, config, thread):
    begun = asyncio.Event()
    acts = []

    @effect_tool(name="slow")
    async def slow(n: int) -> str:
        acts.append(n)
        begun.set()
        await asyncio.Event().wait()
        return "done"

    async def work(state):
        if state["n"] == 0:
            await begun.wait()
            raise Lost
        return {"log": [await slow(1)]}

    builder = StateGraph(Log)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": 0}), Send("work", {"n": 1})], ["work"])
    builder.add_edge("work", END)
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(Lost):
        await graph.ainvoke({"log": []}, config)
    assert acts == [1]
    [shown] = thread.effects()
    assert (shown.name, shown.status, shown.error) == ("slow", "unknown", "CancelledError")


def test_effects_of_a_claimed_run_are_under_its_claim(saver, config, thread):
    acts = []
    graph, _ = agent(saver, acts)
    claimed = run(graph, exclusive=True)
    claimed.invoke({"messages": []}, config)
    claimed.invoke(Command(resume=True), {**config, "run_id": uuid4()})
    assert len(acts) == 1
    assert effects(thread) == [("pay", "done", 1)]


def test_a_tool_outside_of_a_graph_with_this_saver_says_so():
    @effect_tool()
    def act(n: int) -> int:
        return n

    def node(state: Log):
        with pytest.raises(InvalidRequest):
            act(1)
        return {"log": ["refused"]}

    assert graph_of(node, None).invoke({"log": []}) == {"log": ["refused"]}
