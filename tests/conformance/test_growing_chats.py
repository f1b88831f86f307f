"""A chat of LangGraph through a real gateway: what a turn sends stays small, what is loaded is the whole chat."""

from typing import Annotated, TypedDict
from uuid import uuid4

import httpx2
import msgspec
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from stateroom.langgraph import StateroomSaver

TURNS = 60
TEXT = "What we said about the journey, at some length. " * 12


class Watched(httpx2.BaseTransport):
    """A network transport that keeps the bodies of saves and the status of their answers."""

    def __init__(self):
        self.inner = httpx2.HTTPTransport()
        self.saves = []

    def handle_request(self, request):
        answer = self.inner.handle_request(request)
        if request.method == "POST" and request.url.path.endswith("/checkpoints"):
            self.saves.append((request.read(), answer.status_code))
        return answer

    def close(self):
        self.inner.close()


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state):
    number = len(state["messages"])
    return {"messages": [AIMessage(f"{number} {TEXT}", id=f"ai-{number}")]}


def graph_of(saver):
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


@pytest.fixture
def saver_of(gateway_env, subject):
    savers = []

    def make():
        transport = Watched()
        options = {"subject": subject, "transport": lambda: transport}
        savers.append(StateroomSaver(gateway_env.url, gateway_env.api_key, **options))
        return savers[-1], transport

    yield make
    for saver in savers:
        saver.close()


def say(graph, config, turn):
    return graph.invoke({"messages": [HumanMessage(f"{turn} {TEXT}", id=f"h-{turn}")]}, config)["messages"]


def test_a_turn_of_a_growing_chat_sends_what_is_new(saver_of, config):
    saver, transport = saver_of()
    graph = graph_of(saver)
    by_turn = []
    for turn in range(TURNS):
        said = say(graph, config, turn)
        by_turn.append(sum(len(body) for body, _ in transport.saves))
        assert {status for _, status in transport.saves} == {201}
        transport.saves.clear()
    assert len(said) == 2 * TURNS
    whole = len(JsonPlusSerializer().dumps_typed(said)[1])
    assert whole > 2 * TURNS * len(TEXT)
    assert max(by_turn[10:]) < 8 * len(TEXT)  # its question twice (as input, and as message), its answer, and metadata
    assert sum(by_turn) < 6 * whole
    reader, _ = saver_of()
    assert graph_of(reader).get_state(config).values["messages"] == said
    history = [each.values.get("messages", []) for each in graph_of(reader).get_state_history(config, limit=12)]
    assert history[0] == said
    assert all(each == said[: len(each)] for each in history)


def test_edits_other_processes_and_forks_keep_the_chat_whole(saver_of, config):
    (ours, watched), (theirs, _) = saver_of(), saver_of()
    graph, other = graph_of(ours), graph_of(theirs)
    for turn in range(8):
        say(graph if turn % 3 else other, config, turn)
    graph.update_state(config, {"messages": [RemoveMessage("h-2"), HumanMessage("edited", id="h-4")]})
    expected = say(graph, config, 9)
    assert len(expected) == 17
    assert [each.content for each in expected if each.id in {"h-2", "h-4"}] == ["edited"]
    assert other.get_state(config).values["messages"] == expected
    past = next(
        each
        for each in graph.get_state_history(config)
        if len(each.values.get("messages", [])) == 12 and each.next == ()
    )
    forked = graph.invoke({"messages": [HumanMessage("fork", id="fork")]}, past.config)["messages"]
    assert forked[:12] == past.values["messages"]
    assert other.get_state(config).values["messages"] == forked
    assert {status for _, status in watched.saves} == {201}


async def test_the_loop_keeps_the_same_chat(gateway_env, subject, config):
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        graph = graph_of(saver)
        for turn in range(12):
            said = (await graph.ainvoke({"messages": [HumanMessage(TEXT, id=f"h-{turn}")]}, config))["messages"]
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as reader:
        assert (await graph_of(reader).aget_state(config)).values["messages"] == said


# --- the wire -------------------------------------------------------------------------------------------------------

LIST = msgspec.msgpack.encode([TEXT] * 20)


@pytest.fixture
def post(gateway_env, subject, thread_id):
    headers = {
        "Authorization": f"Bearer {gateway_env.api_key}",
        "Stateroom-Subject": subject,
        "Content-Type": "application/msgpack",
    }
    with httpx2.Client(base_url=gateway_env.url, headers=headers) as client:
        yield lambda **channel: client.post(
            f"/v1/threads/{thread_id}/checkpoints",
            content=msgspec.msgpack.encode({"channels": {"m": channel}, "checkpoint_id": str(uuid4())}),
        )


@pytest.mark.parametrize(
    ("channel", "status"),
    [
        ({"data": b"\x91\x01", "append_to": 1}, 201),
        ({"data": b"\x90", "append_to": 1}, 201),
        ({"data": b"\x91\x01", "append_to": 2}, 409),
        ({"data": b"\x91\x01", "append_to": "1"}, 409),
        ({"data": b"\x01", "append_to": 1}, 409),
        ({"data": b"", "append_to": 1}, 409),
        ({"data": b"\xdd\xff\xff\xff\xff", "append_to": 1}, 409),
        ({"data": b"\x91" * 100_000, "append_to": 1}, 409),
        ({"data": b"\x91\xc1", "append_to": 1}, 409),
        ({"append_to": 1}, 422),
        ({"data": b"\x91\x01", "append_to": 1, "encoding": "json"}, 422),
        ({"data": b"\x91\x01", "append_to": 1, "holes": [1]}, 422),
        ({"data": b"\x91\x01", "append_to": float("nan")}, 422),
        ({"data": b"\x91\x01", "append_to": None}, 422),
        ({"data": b"\x91\x01", "append_to": [1]}, 422),
        ({"data": b"\x91\x01", "append_to": 2**70 * 1.0}, 409),
    ],
)
def test_elements_that_cannot_be_appended_are_refused(post, channel, status):
    assert post(version=1, data=LIST).status_code == 201
    refused = post(version=2, **channel)
    assert refused.status_code == status, refused.text
    if status == 409:
        assert refused.json()["code"] == "channel-unchanged-unknown"
