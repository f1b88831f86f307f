"""Trajectories over a real gateway: by HTTP, SDK and command line, of plain and of LangGraph's threads."""

import base64
import json
import operator
import re
from pathlib import Path
from typing import Annotated, TypedDict

import httpx
import msgspec
import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, interrupt

import stateroom
from stateroom import chat_form
from stateroom.langgraph import StateroomSaver
from tests.support.gateway import new_tenant
from tests.support.operations import assert_problem

SUBJECT = "user-42"


@pytest.fixture
def tenant(running_gateway):
    return new_tenant(running_gateway)


@pytest.fixture
def client(tenant):
    with stateroom.Client(tenant.url, tenant.api_key, subject=SUBJECT) as client:
        yield client


@pytest.fixture
def http(tenant):
    headers = {"Authorization": f"Bearer {tenant.api_key}", "Stateroom-Subject": SUBJECT}
    with httpx.Client(base_url=tenant.url, headers=headers, timeout=30) as http:
        yield http


def talked(client: stateroom.Client, thread_id: str = "trip") -> list[str]:
    """A thread of three steps and a branch that was left."""
    thread = client.thread(thread_id, agent="travel")
    talk = [{"role": "user", "content": "Find a flight"}]
    ids = [thread.save({"messages": talk, "draft": "x"}).checkpoint_id]
    left = client.thread(thread_id).fork(ids[0])
    left.save({"messages": [*talk, {"role": "assistant", "content": "No."}]})
    again = client.thread(thread_id).fork(ids[0])
    model = stateroom.Model(name="m-1", temperature=0.5)
    talk = [*talk, {"role": "assistant", "content": "SK 4000"}]
    usage = stateroom.Usage(input_tokens=3, output_tokens=2)
    ids.append(again.save({"messages": talk}, model=model, usage=usage).checkpoint_id)
    ids.append(again.save({"messages": talk, "booked": True}, status="done").checkpoint_id)
    return ids


def test_lines_hold_what_each_step_changed_and_how_it_ended(client, http):
    ids = talked(client)
    answer = http.post("/v1/threads/trip/trajectory")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
    begin, *steps, end = map(json.loads, answer.text.splitlines())
    assert begin == {
        "type": "begin", "format": "stateroom-trajectory/1", "view": "state", "thread_id": "trip", "namespace": "",
        "checkpoint_id": ids[-1], "steps": 3,
    }  # fmt: skip
    assert [each["checkpoint_id"] for each in steps] == ids
    assert steps[1]["changes"] == {
        "messages": {"kind": "append", "value": [{"role": "assistant", "content": "SK 4000"}]},
        "draft": {"kind": "remove"},
    }
    assert (steps[1]["model"]["name"], steps[1]["usage"]["input_tokens"]) == ("m-1", 3)
    assert steps[2]["changes"] == {"booked": {"kind": "set", "value": True}}
    assert end == {"type": "end", "checkpoint_id": ids[-1], "status": "done", "steps": 3}


def test_it_leads_to_any_checkpoint_and_goes_on_after_any_step(client, http):
    ids = talked(client)
    thread = client.thread("trip")
    assert [each.checkpoint_id for each in thread.trajectory(checkpoint_id=ids[1])] == ids[:2]
    [last] = thread.trajectory(after=ids[1])
    assert (last.checkpoint_id, last.changes["booked"].value, last.messages) == (ids[2], True, [])
    assert list(thread.trajectory(after=ids[2])) == []
    branch = next(each.checkpoint_id for each in thread.history() if each.checkpoint_id not in ids)
    assert_problem(http.post("/v1/threads/trip/trajectory", params={"after": branch}), 404, "checkpoint-not-found")
    assert_problem(http.post("/v1/threads/nothing/trajectory"), 404, "thread-not-found")


def test_a_long_thread_comes_whole(client):
    thread = client.thread("long")
    ids = [thread.save({"n": list(range(number))}).checkpoint_id for number in range(70)]
    steps = list(thread.trajectory())
    assert [each.checkpoint_id for each in steps] == ids
    assert [each.changes["n"].value for each in steps[1:]] == [[number] for number in range(69)]
    assert len(list(thread.trajectory(after=ids[39]))) == 30


def test_it_begins_with_a_whole_state_where_what_was_before_is_pruned(client):
    ids = talked(client)
    client.prune(["trip"])
    [step] = client.thread("trip").trajectory()
    assert (step.checkpoint_id, step.parent_id) == (ids[-1], None)
    assert {name: change.kind for name, change in step.changes.items()} == {"messages": "set", "booked": "set"}


def test_an_archived_thread_is_told_as_it_was(client, http):
    talked(client)
    before = http.post("/v1/threads/trip/trajectory").text
    job = client.thread("trip").archive().job_id
    if job is None:
        pytest.fail("the embedded gateway has an archive")
    assert http.post("/v1/threads/trip/trajectory").text == before


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]


def test_a_langgraph_thread_is_readable(tenant, client):
    def ask(state):
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        call = {"name": "book", "args": {"flight": "SK 4000"}, "id": "call-1"}
        said = AIMessage("", tool_calls=[call], response_metadata={"model_name": "m-1"}, usage_metadata=usage)
        return {"messages": [said], "log": ["asked"]}

    def approve(state):
        return {"log": [interrupt("book it?")]}

    graph = StateGraph(Talk)
    graph.add_node("ask", ask)
    graph.add_node("approve", approve)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "approve")
    graph.add_edge("approve", END)
    config = {"configurable": {"thread_id": "graph"}}
    with StateroomSaver(tenant.url, tenant.api_key, subject=SUBJECT) as saver:
        agent = graph.compile(checkpointer=saver)
        agent.invoke({"messages": [("user", "Find a flight")], "log": []}, config)
        agent.invoke(Command(resume="yes"), config)
    steps = list(client.thread("graph").trajectory())
    messages = [message for step in steps for message in step.messages if message.channel == "messages"]
    assert [each.role for each in messages] == ["user", "assistant"]
    assert (messages[1].model, messages[1].usage["total_tokens"]) == ("m-1", 5)
    assert messages[1].tool_calls[0].arguments == {"flight": "SK 4000"}
    written = {write.channel: write.value for step in steps for write in step.writes}
    assert written["__interrupt__"][0]["value"] == "book it?"
    assert "yes" in json.dumps(written["__resume__"])
    assert not any(name.startswith("~") for step in steps for name in step.changes)


def test_the_command_prints_steps_or_a_chat(client, tenant, launcher):
    ids = talked(client)
    environ = {"STATEROOM_URL": tenant.url, "STATEROOM_API_KEY": tenant.api_key}
    arguments = ("thread", "trajectory", "trip", "--subject", SUBJECT)
    done = launcher.run(environ, *arguments)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["checkpoint_id"] for line in done.stdout.splitlines()] == ids
    done = launcher.run(environ, *arguments, "--form", "chat")
    assert json.loads(done.stdout) == chat_form(client.thread("trip").trajectory())
    assert [each["role"] for each in json.loads(done.stdout)["messages"]] == ["user", "assistant"]


def test_steps_say_what_their_large_values_are(client, http):
    thread = client.thread("trip")
    first, second, written = "a" * 70_000, b"b" * 80_000, "c" * 90_000
    thread.save({"pages": [1, {"text": first}]}, previews={"/pages/1/text": stateroom.Preview(b"first")})
    thread.save({"pages": [1, {"text": first}, 2, second], "of": 1})
    leaves = [{"path": "", "media_type": "text/html", "preview": base64.b64encode(b"written").decode()}]
    writes = {"writes": [{"channel": "page", "idx": 0, "value": written, "leaves": leaves}]}
    http.post(f"/v1/threads/trip/checkpoints/{thread.head_id}/writes/task", json=writes).raise_for_status()
    one, other = thread.trajectory()
    assert {path: (each.media_type, each.preview) for path, each in one.changes["pages"].large_values.items()} == {
        "/1/text": ("text/plain", b"first")
    }
    # Of what is appended, paths are those in the list of new elements, and what was said before is not said again.
    assert {path: each.media_type for path, each in other.changes["pages"].large_values.items()} == {
        "/1": "application/octet-stream"
    }
    assert other.changes["of"].large_values == {}
    [write] = other.writes
    assert {path: (each.media_type, each.preview) for path, each in write.large_values.items()} == {
        "": ("text/html", b"written")
    }
    lines = {
        view: [json.loads(line) for line in http.post(f"/v1/threads/trip/trajectory?view={view}").text.splitlines()]
        for view in ("state", "channels")
    }
    for view, (_, _, step, _) in lines.items():
        [leaf], [said] = step["changes"]["pages"]["leaves"], step["writes"][0]["leaves"]
        assert leaf.keys() - {"at"} == {"piece", "size_bytes", "path", "media_type"}
        assert (leaf["size_bytes"], said["size_bytes"]) == (len(second) + 5, len(written) + 5)
        assert ("at" in leaf, "at" in said) == ((False, False) if view == "state" else (True, True))
        assert "leaves" not in step["changes"]["of"]
    change = lines["channels"][2]["changes"]["pages"]
    data, at = base64.b64decode(change["data"]), change["leaves"][0]["at"]
    assert msgspec.msgpack.decode(data[at : at + len(second) + 5]) == second


def key_with(http: httpx.Client, **body: object) -> str:
    made = http.post("/v1/api-keys", json={"kind": "service", **body})
    assert made.status_code == 201, made.text
    return made.json()["api_key"]


@pytest.mark.parametrize("permission", ["state:export", "state:read"])
def test_neither_reading_nor_exporting_alone_is_enough(client, http, permission):
    talked(client)
    key = key_with(http, permissions=[permission, "subject:act_as"])
    answer = http.post("/v1/threads/trip/trajectory", headers={"Authorization": f"Bearer {key}"})
    assert_problem(answer, 403, "permission-denied")


def test_others_find_nothing(client, tenant, running_gateway):
    talked(client)
    stranger = new_tenant(running_gateway)
    for api_key, subject in ((stranger.api_key, SUBJECT), (tenant.api_key, "user-7")):
        with (
            stateroom.Client(tenant.url, api_key, subject=subject) as other,
            pytest.raises(stateroom.ThreadNotFound),
        ):
            list(other.thread("trip").trajectory())


def test_the_examples_of_the_page_do_what_it_says(client, tenant):
    ids = talked(client, "trip-7")
    page = (Path(__file__).parents[3] / "docs" / "trajectories.md").read_text()
    names = {"client": client}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)  # noqa: S102  it is our own page
    assert names["seen"] == ids
    assert [each["role"] for each in names["line"]["messages"]] == ["user", "assistant"]
    [step] = (json.loads(line) for line in re.findall(r"^\{\"type\":\"step\".*$", page, re.MULTILINE))
    answer = httpx.post(
        f"{tenant.url}/v1/threads/trip-7/trajectory",
        headers={"Authorization": f"Bearer {tenant.api_key}", "Stateroom-Subject": SUBJECT},
        params={"after": ids[0]},
    )
    told = json.loads(answer.text.splitlines()[1])
    assert step.keys() == told.keys()
    assert step["changes"] == told["changes"]


def test_the_audit_log_has_it_before_the_first_line_is_out(client, http):
    talked(client)
    http.post("/v1/threads/trip/trajectory", params={"checkpoint_id": "nothing"})
    http.post("/v1/threads/trip/trajectory")
    events = http.get("/v1/audit", params={"limit": 1000}).json()["events"]
    [event] = [each for each in events if each["action"] == "trajectory.export"]
    assert event["target"] == f"subject:{SUBJECT}/thread:trip"
    assert event["detail"]["steps"] == 3
