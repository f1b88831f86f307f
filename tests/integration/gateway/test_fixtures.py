"""Fixtures over a real gateway: a thread of one tenant as a file, and from the file a thread of another one."""

import json
import operator
import re
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import stateroom
from stateroom.langgraph import StateroomSaver
from stateroom.testing import Fixture
from tests.support.gateway import new_tenant

SUBJECT, OTHER = "user-42", "tester"


@pytest.fixture
def production(running_gateway):
    return new_tenant(running_gateway)


@pytest.fixture
def tests(running_gateway):
    return new_tenant(running_gateway)


def client_of(tenant, subject):
    return stateroom.Client(tenant.url, tenant.api_key, subject=subject)


def saver_of(tenant, subject):
    return StateroomSaver(tenant.url, tenant.api_key, subject=subject)


def extended(held: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(held or []), *(each for write in writes for each in write)]


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    seen: Annotated[list[str], DeltaChannel(extended)]


@tool
def search(to: str) -> str:
    """Find a flight."""
    return f"SK 4000 to {to}"


def ask(state: Talk) -> dict[str, Any]:
    call = {"name": "search", "args": {"to": "Oslo"}, "id": "call-1"}
    return {"messages": [AIMessage("", tool_calls=[call], id="ai-1")], "log": ["asked"], "seen": ["a"]}


def approve(state: Talk) -> dict[str, Any]:
    return {"log": [f"answered {interrupt('book it?')}"], "seen": ["b"]}


def book(state: Talk) -> dict[str, Any]:
    return {"messages": [AIMessage(f"booked after {state['log'][-1]}", id="ai-2")], "seen": [str(len(state["seen"]))]}


def agent_on(saver):
    graph = StateGraph(Talk)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([search]))
    graph.add_node("approve", approve)
    graph.add_node("book", book)
    for one, other in ((START, "ask"), ("ask", "tools"), ("tools", "approve"), ("approve", "book"), ("book", END)):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=saver)


def asked(tenant, thread_id="trip") -> None:
    """A thread that waits for an answer, behind a tool and five steps."""
    config = {"configurable": {"thread_id": thread_id}}
    with saver_of(tenant, SUBJECT) as saver:
        agent_on(saver).invoke({"messages": [HumanMessage("Find a flight", id="h-1")], "log": [], "seen": []}, config)


def history(tenant, subject, thread_id) -> list[tuple]:
    """All that LangGraph shows of a thread, but for its name."""
    with saver_of(tenant, subject) as saver:
        states = agent_on(saver).get_state_history({"configurable": {"thread_id": thread_id}})
        return [
            (
                each.values,
                each.next,
                each.config["configurable"]["checkpoint_id"],
                each.parent_config and each.parent_config["configurable"]["checkpoint_id"],
                {name: value for name, value in each.metadata.items() if name != "thread_id"},
                each.created_at,
                each.tasks,
                each.interrupts,
            )
            for each in states
        ]


def moved(production, tests, path, *, thread_id="trip", target="case") -> Fixture:
    """The fixture of a thread, written, read and loaded into another tenant's thread."""
    with client_of(production, SUBJECT) as client:
        client.thread(thread_id).fixture().write(path)
    fixture = Fixture.read(path)
    with client_of(tests, OTHER) as client:
        assert fixture.load_into(client.thread(target)) == len(fixture.steps)
    return fixture


def test_a_langgraph_thread_is_the_same_in_another_tenant(production, tests, tmp_path):
    asked(production)
    with saver_of(production, SUBJECT) as saver:
        agent_on(saver).invoke(Command(resume="yes"), {"configurable": {"thread_id": "trip"}})
    moved(production, tests, tmp_path / "trip.jsonl")
    found = history(tests, OTHER, "case")
    assert found == history(production, SUBJECT, "trip")
    assert len(found) == 6
    assert found[0][0]["seen"] == ["a", "b", "2"]
    with client_of(tests, OTHER) as client:
        assert client.request("POST", "/threads:verify", body={"thread_id": "case"}).decode()["findings"] == []


def test_an_interrupt_is_answered_where_it_was_loaded(production, tests, tmp_path):
    asked(production)
    moved(production, tests, tmp_path / "trip.jsonl")
    assert history(tests, OTHER, "case") == history(production, SUBJECT, "trip")
    results = []
    for tenant, subject, thread_id in ((production, SUBJECT, "trip"), (tests, OTHER, "case")):
        with saver_of(tenant, subject) as saver:
            agent, config = agent_on(saver), {"configurable": {"thread_id": thread_id}}
            assert agent.get_state(config).interrupts[0].value == "book it?"
            results.append(agent.invoke(Command(resume="yes"), config))
    assert results[0] == results[1]
    assert results[1]["messages"][-1].content == "booked after answered yes"


def test_an_old_step_is_forked_where_it_was_loaded(production, tests, tmp_path):
    asked(production)
    fixture = moved(production, tests, tmp_path / "trip.jsonl")
    with saver_of(tests, OTHER) as saver:
        agent, config = agent_on(saver), {"configurable": {"thread_id": "case"}}
        agent.invoke(Command(resume="yes"), config)
        old = {"configurable": {"thread_id": "case", "checkpoint_id": fixture.steps[-2].checkpoint_id}}
        forked = agent.update_state(old, {"messages": [ToolMessage("LH 1", tool_call_id="call-1", id="t-1")]}, "tools")
        assert agent.get_state(forked).next == ("approve",)
        agent.invoke(None, forked)
        answer = agent.invoke(Command(resume="no"), config)
    assert [each.content for each in answer["messages"]] == ["Find a flight", "", "LH 1", "booked after answered no"]


def test_a_subgraphs_namespace_is_a_fixture_of_its_own(production, tests, tmp_path):
    def parent_on(saver):
        child = StateGraph(Talk)
        child.add_node("approve", approve)
        child.add_edge(START, "approve")
        parent = StateGraph(Talk)
        parent.add_node("child", child.compile())
        parent.add_edge(START, "child")
        return parent.compile(checkpointer=saver)

    config = {"configurable": {"thread_id": "trip"}}
    with saver_of(production, SUBJECT) as saver:
        parent_on(saver).invoke({"messages": [], "log": [], "seen": []}, config)
    with client_of(production, SUBJECT) as source, client_of(tests, OTHER) as target:
        namespaces = {each.namespace for each in source.checkpoints()}
        assert len(namespaces) == 2
        for namespace in namespaces:
            fixture = source.thread("trip", namespace=namespace).fixture()
            assert fixture.namespace == namespace
            fixture.load_into(target.thread("trip", namespace=namespace))
    with saver_of(tests, OTHER) as saver:
        assert parent_on(saver).invoke(Command(resume="yes"), config)["log"] == ["answered yes"]


def test_loading_again_changes_nothing_and_goes_on_where_it_broke_off(production, tests, tmp_path):
    asked(production)
    path = tmp_path / "trip.jsonl"
    fixture = moved(production, tests, path)
    before = history(tests, OTHER, "case")
    with client_of(tests, OTHER) as client:
        assert fixture.load_into(client.thread("case")) == 0
        assert history(tests, OTHER, "case") == before
        parts = Fixture.read(path)
        del parts.steps[3:]
        assert parts.load_into(client.thread("part")) == 3
        assert fixture.load_into(client.thread("part")) == len(fixture.steps) - 3
    assert [each[0] for each in history(tests, OTHER, "part")] == [each[0] for each in before]


def test_a_thread_with_other_checkpoints_is_left_as_it_is(production, tests, tmp_path):
    asked(production)
    fixture = moved(production, tests, tmp_path / "trip.jsonl")
    with client_of(tests, OTHER) as client:
        saved = client.thread("other").save({"n": 1})
        with pytest.raises(stateroom.ThreadExists):
            fixture.load_into(client.thread("other"))
        assert client.thread("other").load().checkpoint_id == saved.checkpoint_id
        fixture.steps[2].metadata["changed"] = True
        with pytest.raises(stateroom.CheckpointExists):
            fixture.load_into(client.thread("case"))


async def test_everything_a_plain_thread_holds_is_there_again(production, tests):
    model = stateroom.Model(name="m-1", hash="h", temperature=0.5, top_p=0.9, seed=7)
    usage = stateroom.Usage(input_tokens=3, output_tokens=2, cost_micros=4)
    with client_of(production, SUBJECT) as client:
        thread = client.thread("plain", agent="travel")
        thread.save({"list": [1], "draft": b"x", "large": "y" * 200_000}, run_id="run-1", source="input")
        thread.save(
            {"list": [1, {"a": None}], "large": "y" * 200_000},
            model=model, usage=usage, status="waiting", metadata={"prompt_hash": "p"}, step=12,
        )  # fmt: skip
        writes = {"writes": [{"channel": "list", "idx": 0, "value": 3}]}
        client.request("POST", f"/threads/plain/checkpoints/{thread.head_id}/writes/task", body=writes)
        fixture = client.thread("plain").fixture()
        there = [(client.thread("plain").at(each.checkpoint_id)) for each in client.thread("plain").history()]
    assert [state for _, state in fixture.states()][1] == {"list": [1, {"a": None}], "large": "y" * 200_000}
    async with stateroom.AsyncClient(tests.url, tests.api_key, subject=OTHER) as other:
        assert await fixture.load_into(other.thread("plain")) == 2
        again = await other.thread("plain").fixture()
        here = [await other.thread("plain").at(each.checkpoint_id) async for each in other.thread("plain").history()]
    for one, loaded in zip(there, here, strict=True):
        one.created_at = loaded.created_at
        for value in (*one.large_values.values(), *loaded.large_values.values()):
            value.piece = b""  # under the keys of either subject
        assert one == loaded
    assert (here[0].model, here[0].usage, here[0].pending_writes[0].value) == (model, usage, 3)
    for one, loaded in zip(fixture.steps, again.steps, strict=True):
        one.created_at = loaded.created_at
        for leaf in [leaf for step in (one, loaded) for change in step.changes.values() for leaf in change.leaves]:
            leaf.piece = b""
    assert [*again.lines()] == [*fixture.lines()]


def test_what_was_said_of_large_values_is_said_again(production, tests, tmp_path):
    picture, text = b"\x89PNG\r\n\x1a\n" + b"p" * 80_000, "t" * 70_000
    with client_of(production, SUBJECT) as client:
        thread = client.thread("plain")
        said = {"/list/1": stateroom.Preview(b"small", media_type="image/png")}
        thread.save({"list": [1, picture]}, previews=said)
        said = {"/list/17": stateroom.Preview(b"long")}
        thread.save({"list": [1, picture, *range(15), text]}, previews=said)
        with saver_of(production, SUBJECT) as saver:
            agent = agent_on(saver)
            agent.invoke({"messages": [HumanMessage(text, id="h-1")], "log": [], "seen": [text]}, config_of("graph"))
        client.thread("plain").fixture().write(tmp_path / "plain.jsonl")
        client.thread("graph").fixture().write(tmp_path / "graph.jsonl")
    content = (tmp_path / "plain.jsonl").read_bytes()
    assert b"".join(Fixture.parse(content).lines()) == content
    for name in ("plain", "graph"):
        fixture = Fixture.read(tmp_path / f"{name}.jsonl")
        with client_of(tests, OTHER) as other:
            fixture.load_into(other.thread(name))
            again = other.thread(name).fixture()
        assert [*map(said_in, again.steps)] == [*map(said_in, fixture.steps)]
        assert any(said_in(each) for each in fixture.steps)
    with client_of(tests, OTHER) as other:
        large = other.thread("plain").load().large_values
    assert {path: (each.media_type, each.preview) for path, each in large.items()} == {
        "/list/1": ("image/png", b"small"),
        "/list/17": ("text/plain", b"long"),
    }


def config_of(thread_id):
    return {"configurable": {"thread_id": thread_id}}


def said_in(step) -> list[tuple]:
    """What a step says of its large values, but for their names, which are of another subject's keys."""
    values = [*sorted(step.changes.items()), *((each.channel, each) for each in step.writes)]
    return [
        (name, each.at, each.path, each.size_bytes, each.media_type, each.preview)
        for name, value in values
        for each in value.leaves
    ]


def test_commands_print_a_fixture_and_load_it(production, tests, launcher, tmp_path):
    asked(production)
    path = tmp_path / "trip.jsonl"
    environ = {"STATEROOM_URL": production.url, "STATEROOM_API_KEY": production.api_key}
    done = launcher.run(environ, "thread", "trajectory", "trip", "--subject", SUBJECT, "--form", "fixture")
    assert done.returncode == 0, done.stderr
    path.write_bytes(done.stdout)
    with client_of(production, SUBJECT) as client:
        assert [*Fixture.read(path).lines()] == [*client.thread("trip").fixture().lines()]
    environ["STATEROOM_API_KEY"] = tests.api_key
    load = ("thread", "load-fixture", str(path), "case", "--subject", OTHER, "--json")
    done = launcher.run(environ, *load)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"thread_id": "case", "steps": 4, "created": 4}
    assert history(tests, OTHER, "case") == history(production, SUBJECT, "trip")
    path.write_bytes(path.read_bytes()[:-100])
    done = launcher.run(environ, *load)
    assert (done.returncode, b"Fixture unreadable" in done.stderr) == (1, True), done.stderr


def test_the_examples_of_the_page_do_what_it_says(production, tests, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked(production, "trip-7")
    page = (Path(__file__).parents[3] / "docs" / "fixtures.md").read_text()
    with client_of(production, SUBJECT) as client, client_of(tests, OTHER) as other:
        names = {"client": client, "tests": other}
        for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(example, names)  # noqa: S102  it is our own page
    assert history(tests, OTHER, "case-7") == history(production, SUBJECT, "trip-7")
