"""Compaction through a real gateway: over HTTP, by both clients and in LangGraph."""

from typing import Annotated, TypedDict
from uuid import uuid4

import httpx2
import msgpack
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from stateroom import AsyncClient, CheckpointNotFound, Client, HeadMoved, InvalidRequest, WritesPending
from stateroom.langgraph import StateroomSaver


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
def http(gateway_env, subject):
    headers = {"Authorization": f"Bearer {gateway_env.api_key}", "Stateroom-Subject": subject}
    with httpx2.Client(base_url=gateway_env.url, headers=headers, timeout=30) as opened:
        yield opened


def saved(http, thread_id, **body):
    answer = http.post(f"/v1/threads/{thread_id}/checkpoints", json=body)
    assert answer.status_code == 201, answer.text
    return answer


def latest(http, thread_id):
    return http.get(f"/v1/threads/{thread_id}/checkpoints/latest").json()


def test_a_summary_is_an_element_or_a_list_of_them_in_either_format(http, thread_id):
    path = f"/v1/threads/{thread_id}/compact"
    first = saved(http, thread_id, state={"messages": [1, 2, 3, 4], "note": "x"}, metadata={"plan": "p"})
    one = http.post(path, json={"channel": "messages", "keep_last": 3, "summary": {"text": "so far"}})
    assert one.status_code == 201, one.text
    assert one.json()["parent_id"] == first.json()["checkpoint_id"]
    assert one.headers["etag"] == f'"{one.json()["checkpoint_id"]}"'
    assert one.headers["stateroom-thread-token"]
    shown = latest(http, thread_id)
    assert shown["state"] == {"messages": [{"text": "so far"}, 2, 3, 4], "note": "x"}
    assert (shown["source"], shown["metadata"]) == ("compact", {"plan": "p"})
    body = msgpack.packb({"channel": "messages", "keep_last": 1, "summary": ["a", ["b"]]})
    several = http.post(path, content=body, headers={"Content-Type": "application/msgpack"})
    assert several.status_code == 201, several.text
    assert latest(http, thread_id)["state"]["messages"] == ["a", ["b"], 4]


def test_the_raw_elements_stay_in_history(http, thread_id):
    first = saved(http, thread_id, state={"messages": [1, 2, 3]}).json()["checkpoint_id"]
    http.post(f"/v1/threads/{thread_id}/compact", json={"channel": "messages", "keep_last": 0})
    before = http.get(f"/v1/threads/{thread_id}/checkpoints/{first}").json()
    assert (before["state"], latest(http, thread_id)["state"]) == ({"messages": [1, 2, 3]}, {"messages": []})


def test_a_repeated_request_is_answered_again_and_another_one_is_refused(http, thread_id):
    path = f"/v1/threads/{thread_id}/compact"
    saved(http, thread_id, state={"messages": [1, 2, 3]})
    headers = {"Idempotency-Key": str(uuid4())}
    body = {"channel": "messages", "keep_last": 1, "summary": "so far"}
    first, again = http.post(path, json=body, headers=headers), http.post(path, json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["checkpoint_id"] == again.json()["checkpoint_id"]
    assert latest(http, thread_id)["state"]["messages"] == ["so far", 3]
    other = http.post(path, json={**body, "keep_last": 2}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")


def test_of_two_writers_that_name_the_head_one_loses(http, thread_id):
    path = f"/v1/threads/{thread_id}/compact"
    head = saved(http, thread_id, state={"messages": [1, 2, 3]}).headers["etag"]
    body = {"channel": "messages", "keep_last": 1}
    assert http.post(path, json=body, headers={"If-Match": head}).status_code == 201
    lost = http.post(path, json=body, headers={"If-Match": head})
    assert (lost.status_code, lost.json()["code"]) == (412, "head-moved")
    assert lost.json()["head_id"] == latest(http, thread_id)["checkpoint_id"]
    http.patch(f"/v1/threads/{thread_id}", json={"strict": True})
    unnamed = http.post(path, json=body)
    assert (unnamed.status_code, unnamed.json()["code"]) == (428, "precondition-required")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"channel": "note", "keep_last": 1}, "/channel"),
        ({"channel": "absent", "keep_last": 1}, "/channel"),
        ({"channel": "~private", "keep_last": 1}, "/channel"),
        ({"channel": "messages", "keep_last": -1}, "/keep_last"),
        ({"channel": "messages", "keep_last": 1, "summary": 2**70}, "/summary"),
        ({"channel": "messages", "keep_last": 1, "state_schema": "s"}, "/state_version"),
        ({"channel": "messages", "keep_last": 1, "summary": [f"stateroom:artifact:{uuid4()}"]}, "/summary/0"),
    ],
)
def test_what_cannot_be_compacted_is_refused_with_its_place(http, thread_id, body, pointer):
    before = saved(http, thread_id, state={"messages": [1, 2, 3], "note": "x"}).json()["checkpoint_id"]
    refused = http.post(f"/v1/threads/{thread_id}/compact", json=body)
    assert refused.status_code in {400, 422}, refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert latest(http, thread_id)["checkpoint_id"] == before


def test_a_thread_object_goes_on_from_its_compaction(client, thread_id):
    thread = client.thread(thread_id, agent="travel")
    with pytest.raises(CheckpointNotFound):
        thread.compact("messages", keep_last=1)
    messages = [{"id": f"m{number}"} for number in range(200)]
    thread.save({"messages": messages, "note": "x"})
    rival = client.thread(thread_id)
    rival.load()
    receipt = thread.compact("messages", keep_last=20, summary=["so far"], metadata={"why": "long"})
    assert (thread.head_id, receipt.step) == (receipt.checkpoint_id, 1)
    head = thread.load()
    assert head is not None
    assert head.state == {"messages": ["so far", *messages[-20:]], "note": "x"}
    assert (head.source, head.agent, head.metadata) == ("compact", "travel", {"why": "long"})
    thread.patch(append={"messages": ["more"]})
    with pytest.raises(HeadMoved):
        rival.compact("messages", keep_last=1)
    with pytest.raises(InvalidRequest):
        thread.compact("note", keep_last=1)


async def test_the_async_client_compacts_too(gateway_env, subject, thread_id):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        thread = client.thread(thread_id)
        await thread.save({"messages": [1, 2, 3]})
        await thread.compact("messages", keep_last=1, summary=["so far"])
        head = await thread.load()
        assert head is not None
        assert head.state == {"messages": ["so far", 3]}


# --- LangGraph -------------------------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


def echo(state: Chat):
    spoken = state["messages"][-1].content
    return {"messages": [AIMessage(f"echo {spoken}", id=str(uuid4()))], "turns": state.get("turns", 0) + 1}


def chat(saver):
    builder = StateGraph(Chat)
    builder.add_node("echo", echo)
    builder.add_edge(START, "echo")
    return builder.compile(checkpointer=saver)


async def test_a_graph_goes_on_from_a_compacted_channel(gateway_env, subject, saver, config):
    graph = chat(saver)
    for turn in range(6):
        await graph.ainvoke({"messages": [HumanMessage(f"turn {turn}", id=f"h{turn}")]}, config)
    before = await graph.aget_state(config)
    summary = SystemMessage("so far", id="summary")
    made = await saver.acompact(config, "messages", keep_last=2, summary=[summary])
    after = await graph.aget_state(config)
    assert after.config["configurable"] == made["configurable"]
    assert after.values == {**before.values, "messages": [summary, *before.values["messages"][-2:]]}
    assert (after.next, after.parent_config) == (before.next, before.config)
    assert after.metadata["step"] == before.metadata["step"] + 1
    assert (await graph.aget_state(before.config)).values == before.values
    # Another process goes on: the reducer finds the summary, and what did not change is still there.
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as other:
        done = await chat(other).ainvoke({"messages": [HumanMessage("more", id="h9")]}, config)
    contents = [each.content for each in done["messages"]]
    assert contents == ["so far", "turn 5", "echo turn 5", "more", "echo more"]
    assert done["turns"] == 7
    steps = [each.metadata["step"] async for each in graph.aget_state_history(config)]
    assert steps == sorted(steps, reverse=True)


async def test_an_interrupted_run_is_not_compacted_away(saver, config):
    def ask(state: Chat):
        return {"messages": [AIMessage(interrupt("go?"), id=str(uuid4()))]}

    builder = StateGraph(Chat)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke({"messages": [HumanMessage("hello", id="h")]}, config)
    with pytest.raises(WritesPending):
        await saver.acompact(config, "messages", keep_last=0)
    done = await graph.ainvoke(Command(resume="yes"), config)
    assert [each.content for each in done["messages"]] == ["hello", "yes"]
    await saver.acompact(config, "messages", keep_last=1)
    assert [each.content for each in (await graph.aget_state(config)).values["messages"]] == ["yes"]


async def test_a_delta_channel_is_refused_and_stays_whole_beside_a_compacted_one(saver, config):
    def extend(state, writes):
        return [*state, *(element for write in writes for element in write)]

    class Log(TypedDict):
        lines: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=4)]
        notes: list[str]

    def note(state: Log):
        return {"lines": [f"line {len(state['lines'])}"], "notes": [*state["notes"], "n"]}

    builder = StateGraph(Log)
    builder.add_node("note", note)
    builder.add_edge(START, "note")
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke({"lines": ["asked"], "notes": []}, config)
    for _ in range(5):
        await graph.ainvoke({"lines": ["asked"]}, config)
    lines = (await graph.aget_state(config)).values["lines"]
    with pytest.raises(InvalidRequest):
        await saver.acompact(config, "lines", keep_last=1)
    for kept in (3, 1):
        await saver.acompact(config, "notes", keep_last=kept)
        found = (await graph.aget_state(config)).values
        assert (found["lines"], len(found["notes"])) == (lines, kept)
    done = await graph.ainvoke({"lines": ["asked"]}, config)
    assert done["lines"] == [*lines, "asked", f"line {len(lines) + 1}"]


def test_the_blocking_saver_compacts_too(gateway_env, subject, config):
    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        graph = chat(saver)
        with pytest.raises(CheckpointNotFound):
            saver.compact(config, "messages", keep_last=1)
        graph.invoke({"messages": [HumanMessage("hello", id="h")]}, config)
        older = graph.get_state(config).config
        graph.invoke({"messages": [HumanMessage("again", id="h2")]}, config)
        with pytest.raises(HeadMoved):
            saver.compact(older, "messages", keep_last=1)
        saver.compact(config, "messages", keep_last=1)
        assert [each.content for each in graph.get_state(config).values["messages"]] == ["echo again"]
