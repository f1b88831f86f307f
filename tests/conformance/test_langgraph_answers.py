"""Which model made a step of a graph, and for how many tokens, is stored with the step."""

from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import stateroom
from stateroom.langgraph import StateroomSaver


def said(text: str, tokens: int, name: str = "m-1", **more: Any) -> AIMessage:
    usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
    return AIMessage(text, id=text, response_metadata={"model_name": name, **more}, usage_metadata=usage)


def appended(held: list[AnyMessage], writes: list[list[AnyMessage]]) -> list[AnyMessage]:
    return [*held, *(each for write in writes for each in (write if isinstance(write, list) else [write]))]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaChat(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(appended, list)]


def graph_of(saver, kind, *answers):
    """A graph whose nodes answer one after another."""
    builder = StateGraph(kind)
    before = START
    for number, answer in enumerate(answers):
        builder.add_node(f"n{number}", lambda _, answer=answer: {"messages": answer})
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


@pytest.fixture
def saver_of(gateway_env, subject):
    def make():
        return StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject)

    return make


@pytest.fixture
def told(gateway_env, subject, thread_id):
    """Model and tokens of each step, oldest first."""

    def read() -> list[tuple[str | None, tuple[int, int] | None]]:
        with stateroom.Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
            found = [*client.thread(thread_id).history()][::-1]
        return [
            (each.model and each.model.name, each.usage and (each.usage.input_tokens, each.usage.output_tokens))
            for each in found
        ]

    return read


NOTHING = (None, None)


@pytest.mark.parametrize("kind", [Chat, DeltaChat])
def test_each_step_has_the_model_and_the_tokens_of_its_own_answers(saver_of, told, config, kind):
    with saver_of() as saver:
        agent = graph_of(saver, kind, [said("a", 10), said("b", 20)], [HumanMessage("-")], [said("c", 30, "m-2")])
        agent.invoke({"messages": [HumanMessage("hi")]}, config)
    steps = [NOTHING, NOTHING, ("m-1", (30, 2)), NOTHING, ("m-2", (30, 1))]
    assert told() == steps
    with saver_of() as saver:  # another process, which loads the thread
        graph_of(saver, kind, [said("d", 5)]).invoke({"messages": [HumanMessage("again")]}, config)
    assert told() == [*steps, NOTHING, NOTHING, ("m-1", (5, 1))]


async def test_it_is_the_same_on_an_event_loop(saver_of, told, config):
    async with saver_of() as saver:
        agent = graph_of(saver, DeltaChat, [said("a", 10)], [said("b", 7)])
        await agent.ainvoke({"messages": [HumanMessage("hi")]}, config)
    assert told() == [NOTHING, NOTHING, ("m-1", (10, 1)), ("m-1", (7, 1))]


@pytest.mark.parametrize("kind", [Chat, DeltaChat])
def test_what_a_caller_hands_in_or_corrects_was_answered_by_nobody_here(saver_of, told, config, kind):
    with saver_of() as saver:
        agent = graph_of(saver, kind, [HumanMessage("-")])
        agent.invoke({"messages": [HumanMessage("hi"), said("from elsewhere", 99)]}, config)
        agent.update_state(config, {"messages": [said("corrected", 77)]}, "n0")
        agent.invoke({"messages": [said("more", 55)]}, config)
    assert {*told()} == {NOTHING}


def test_a_list_that_was_rewritten_tells_nothing_and_what_comes_after_it_does(saver_of, told, config):
    with saver_of() as saver:
        trimmed = [RemoveMessage("a"), said("b", 20)]
        agent = graph_of(saver, Chat, [said("a", 10)], trimmed, [said("c", 30)])
        agent.invoke({"messages": [HumanMessage("hi")]}, config)
    assert told()[2:] == [("m-1", (10, 1)), NOTHING, ("m-1", (30, 1))]


def test_answers_of_several_models_name_none_and_are_counted(saver_of, told, config):
    with saver_of() as saver:
        agent = graph_of(saver, Chat, [said("a", 10), said("b", 20, "m-2")])
        agent.invoke({"messages": []}, config)
    assert told()[-1] == (None, (30, 2))


def test_parameters_are_those_that_messages_or_the_config_say(saver_of, gateway_env, subject, thread_id, config):
    metadata = {"ls_temperature": 0.25, "ls_top_p": True, "ls_seed": 3}
    with saver_of() as saver:
        agent = graph_of(saver, Chat, [said("a", 10, seed=7, system_fingerprint="fp")])
        agent.invoke({"messages": []}, config | {"metadata": metadata})
    with stateroom.Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        head = client.thread(thread_id).load()
    assert head.model == stateroom.Model(name="m-1", hash="fp", temperature=0.25, seed=7)


@pytest.mark.parametrize("name", ["x" * 256, "a\0b", "\ud800", "", 7, None])
def test_a_name_that_the_gateway_would_refuse_is_left_out(saver_of, told, config, name):
    with saver_of() as saver:
        graph_of(saver, Chat, [said("a", 10, name, temperature=float("nan"))]).invoke({"messages": []}, config)
    assert told()[-1] == (None, (10, 1))


def test_a_whole_run_in_one_checkpoint_is_counted_together(saver_of, told, config):
    with saver_of() as saver:
        agent = graph_of(saver, Chat, [said("a", 10)], [said("b", 20)])
        agent.invoke({"messages": [HumanMessage("hi")]}, config, durability="exit")
        agent = graph_of(saver, Chat, [said("c", 3)], [said("d", 4)])
        agent.invoke({"messages": [HumanMessage("hi")]}, config, durability="exit")
    assert told() == [("m-1", (30, 2)), ("m-1", (7, 2))]


def test_messages_that_functions_return_are_counted_once(saver_of, told, config):
    with saver_of() as saver:

        @entrypoint(checkpointer=saver)
        def answer(text: str, *, previous: list[AnyMessage] | None = None) -> list[AnyMessage]:
            return [*(previous or []), said(text, len(text))]

        answer.invoke("ab", config)
        answer.invoke("abcd", config)
    assert [each for each in told() if each != NOTHING] == [("m-1", (2, 1)), ("m-1", (4, 1))]
