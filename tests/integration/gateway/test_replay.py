"""Steps of a LangGraph thread, recorded through a gateway and run again by the graph as it is now."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt

import stateroom
from gateway.cli.main import run
from stateroom.langgraph import StateroomSaver
from stateroom.testing import Fixture, Report
from stateroom.testing.graphs import check_graph
from tests.support.gateway import new_tenant

SUBJECT = "user-42"
CONFIG = {"configurable": {"thread_id": "trip"}}


@pytest.fixture
def tenant(running_gateway):
    return new_tenant(running_gateway)


def extended(held: list[str], writes: list[list[str]]) -> list[str]:
    return [*held, *(each for write in writes for each in write)]


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[str], DeltaChannel(extended, list)]


class Nodes:
    """The nodes of a program, which counts how often each ran."""

    def __init__(self, *, name="m-1", prompt="Be brief", text="SK 4000", seen="asked", fails=False):
        self.name, self.prompt, self.text, self.seen, self.fails = name, prompt, text, seen, fails
        self.ran: list[str] = []

    def ask(self, state: Talk) -> dict[str, Any]:
        self.ran.append("ask")
        if self.fails:
            raise ConnectionError("no model")
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        said = AIMessage(self.text, response_metadata={"model_name": self.name}, usage_metadata=usage)
        answer = GenericFakeChatModel(messages=iter([said])).invoke([("system", self.prompt), *state["messages"]])
        return {"messages": [answer], "seen": [self.seen]}

    def approve(self, state: Talk) -> dict[str, Any]:
        self.ran.append("approve")
        return {"seen": [interrupt("book?"), interrupt("sure?")]}

    def book(self, state: Talk) -> dict[str, Any]:
        self.ran.append("book")
        return {"messages": [AIMessage(f"booked: {state['seen']}")]}

    def graph(self, checkpointer=None):
        graph = StateGraph(Talk)
        for name in ("ask", "approve", "book"):
            graph.add_node(name, getattr(self, name))
        graph.add_edge(START, "ask")
        graph.add_edge("ask", "approve")
        graph.add_edge("approve", "book")
        graph.add_edge("book", END)
        return graph.compile(checkpointer=checkpointer)


@pytest.fixture
def fixture(tenant) -> Fixture:
    """A run with two interrupts in one step."""
    with StateroomSaver(tenant.url, tenant.api_key, subject=SUBJECT) as saver:
        agent = Nodes().graph(saver)
        agent.invoke({"messages": [HumanMessage("hi")], "seen": []}, CONFIG)
        agent.invoke(Command(resume="yes"), CONFIG)
        agent.invoke(Command(resume="very"), CONFIG)
    with stateroom.Client(tenant.url, tenant.api_key, subject=SUBJECT) as client:
        return client.thread("trip").fixture()


def drift(report: Report) -> dict[str, tuple]:
    return {
        one.what: (one.recorded, one.now) for each in report.steps for one in each.comparisons if one.outcome == "drift"
    }


def test_a_graph_that_did_not_change_does_not_drift_and_runs_each_node_once(fixture):
    nodes = Nodes()
    report = check_graph(fixture, nodes.graph())
    assert [each.outcome for each in report.steps] == ["skipped", "same", "same", "same", "same"], report
    assert nodes.ran == ["ask", "approve", "book"]
    assert report.outcome == "same"
    asked = {one.what: one for one in report.steps[2].comparisons}
    assert (asked["model.name"].outcome, asked["model.name"].now) == ("same", "m-1")
    assert asked["prompt_hash"].outcome == "not recorded"
    assert len(asked["prompt_hash"].now) == 64


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"name": "m-2"}, {"model.name": ("m-1", "m-2")}),
        ({"seen": "other"}, {"result.seen (writes)": ([["asked"]], [["other"]])}),
    ],
)
def test_what_changed_is_named(fixture, changed, what):
    assert drift(check_graph(fixture, Nodes(**changed).graph())) == what


def test_another_answer_is_a_drift_of_the_messages(fixture):
    found = drift(check_graph(fixture, Nodes(text="LH 1").graph()))
    [(recorded, now)] = [pair for what, pair in found.items() if what == "result.messages"]
    assert recorded[:-1] == now[:-1] == [{"role": "user", "content": "hi"}]
    assert (recorded[-1]["content"], now[-1]["content"]) == ("SK 4000", "LH 1")


def test_another_prompt_is_a_drift_where_it_was_recorded(fixture):
    nodes, asked = Nodes(), fixture.steps[2]
    report = check_graph(fixture, nodes.graph(), [asked.checkpoint_id])
    [now] = [one.now for one in report.steps[0].comparisons if one.what == "prompt_hash"]
    asked.metadata["prompt_hash"] = now
    assert check_graph(fixture, nodes.graph(), [asked.checkpoint_id]).outcome == "same"
    assert [*drift(check_graph(fixture, Nodes(prompt="Be long").graph()))] == ["prompt_hash"]


def test_a_step_that_asks_more_than_was_answered_does_not_end(fixture):
    class Asking(Nodes):
        def approve(self, state):
            return {"seen": [*super().approve(state)["seen"], interrupt("really?")]}

    report = check_graph(fixture, Asking().graph())
    assert [each.outcome for each in report.steps] == ["skipped", "same", "same", "drift", "same"]
    assert "waits for an answer" in report.steps[3].detail


def test_a_node_that_raises_is_reported(fixture):
    report = check_graph(fixture, Nodes(fails=True).graph())
    assert [each.outcome for each in report.steps] == ["skipped", "same", "failed", "same", "same"]
    assert report.steps[2].detail == "ConnectionError: no model"
    assert report.outcome == "failed"


def test_tasks_side_by_side_and_corrections_by_a_caller_are_run_as_they_were(tenant):
    class Sum(TypedDict):
        total: Annotated[list[int], extended_numbers]

    def graph_on(saver, more=0):
        graph = StateGraph(Sum)
        graph.add_node("spread", lambda state: {})
        graph.add_node("double", lambda state: {"total": [2 * state["n"] + more]})
        graph.add_node("end", lambda state: {"total": [sum(state["total"])]})
        graph.add_edge(START, "spread")
        graph.add_conditional_edges("spread", lambda state: [Send("double", {"n": n}) for n in (1, 2, 3)], ["double"])
        graph.add_edge("double", "end")
        return graph.compile(checkpointer=saver)

    with StateroomSaver(tenant.url, tenant.api_key, subject=SUBJECT) as saver:
        agent = graph_on(saver)
        agent.invoke({"total": []}, CONFIG, interrupt_before=["end"])
        agent.update_state(CONFIG, {"total": [100]}, "double")
        agent.invoke(None, CONFIG)
    with stateroom.Client(tenant.url, tenant.api_key, subject=SUBJECT) as client:
        fixture = client.thread("trip").fixture()
    report = check_graph(fixture, graph_on(None))
    assert [each.outcome for each in report.steps] == ["skipped", "same", "same", "same", "skipped", "same"], report
    assert drift(check_graph(fixture, graph_on(None, more=1))).keys() == {"result.total"}


@dataclass
class Place:
    city: str


class Trip(TypedDict):
    place: Place


def test_types_of_the_graphs_state_are_rebuilt_and_no_other_that_a_file_names(tenant, fixture, tmp_path):
    def graph_on(saver, seen):
        graph = StateGraph(Trip)
        graph.add_node("note", lambda state: seen.append(state["place"]) or {"place": Place(state["place"].city + "!")})
        graph.add_edge(START, "note")
        return graph.compile(checkpointer=saver)

    with StateroomSaver(tenant.url, tenant.api_key, subject=SUBJECT, allowed_msgpack_modules=[Place]) as saver:
        graph_on(saver, []).invoke({"place": Place("Oslo")}, {"configurable": {"thread_id": "typed"}})
    with stateroom.Client(tenant.url, tenant.api_key, subject=SUBJECT) as client:
        typed = client.thread("typed").fixture()
    for saver in (None, InMemorySaver()):
        seen = []
        assert check_graph(typed, graph_on(saver, seen)).outcome == "same"
        assert seen == [Place("Oslo")]
    made = tmp_path / "made"
    harmful = msgspec.msgpack.encode([msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["os", "mkdir", [str(made)]]))])
    fixture.steps[1].changes["messages"].data = harmful
    check_graph(fixture, Nodes().graph(InMemorySaver()))
    assert not made.exists()


def extended_numbers(held: list[int], more: list[int]) -> list[int]:
    return [*(held or []), *more]


PROGRAM = """
import os
from typing import Annotated, TypedDict
from langgraph.graph import END, START, StateGraph
from stateroom.testing import Made

def joined(held: list, more: list) -> list:
    return [*(held or []), *more]

class State(TypedDict):
    log: Annotated[list, joined]

def work(state):
    print("at work")
    if os.environ.get("FAIL"):
        raise RuntimeError("it broke")
    return {"log": [os.environ.get("SAY", "done")]}

builder = StateGraph(State)
builder.add_node("work", work)
builder.add_edge(START, "work")
builder.add_edge("work", END)
graph = builder.compile()

def step(state):
    return Made(state={**state, "log": joined(state["log"], work(state)["log"])})
"""


@pytest.fixture
def program(tenant, tmp_path, monkeypatch) -> Path:
    """A folder with a program, and a fixture of it; plain steps, which a graph and a function make alike."""
    monkeypatch.chdir(tmp_path)
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    with StateroomSaver(tenant.url, tenant.api_key, subject=SUBJECT) as saver:
        module.graph.copy({"checkpointer": saver}).invoke({"log": []}, CONFIG)
    with stateroom.Client(tenant.url, tenant.api_key, subject=SUBJECT) as client:
        client.thread("trip").fixture().write("graph.jsonl")
        thread = client.thread("plain")
        thread.save({"log": []})
        thread.save({"log": ["done"]})
        client.thread("plain").fixture().write("plain.jsonl")
    return Path(name)


@pytest.mark.parametrize(("file", "how"), [("graph.jsonl", ("--graph", "graph")), ("plain.jsonl", ("--run", "step"))])
def test_the_command_says_what_drifted_by_its_exit_code(program, monkeypatch, capsys, file, how):
    command = ["replay", "check", file, how[0], f"{program}:{how[1]}"]
    assert run(command) == 0
    told = capsys.readouterr()
    assert "result.log" in told.out
    assert "at work" not in told.out
    assert "at work" in told.err
    monkeypatch.setenv("SAY", "other")
    assert run([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["outcome"] == "drift"
    assert '["other"]' in json.dumps(report["steps"][-1]["comparisons"])
    monkeypatch.setenv("FAIL", "1")
    assert run(command) == 2
    assert "RuntimeError: it broke" in " ".join(capsys.readouterr().out.split())
    step = report["steps"][-1]["checkpoint_id"]
    assert run([*command, "--step", step, "--json"]) == 2
    assert [each["outcome"] for each in json.loads(capsys.readouterr().out)["steps"]] == ["failed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run", "nothing_there:f"], "cannot be imported"),
        (["--run", "json:nothing"], "cannot be imported"),
        (["--run", "json"], "is not MODULE:NAME"),
        (["--graph", "json:dumps"], "is no compiled graph"),
        ([], "--graph or --run"),
        (["--run", "json:dumps", "--graph", "json:dumps"], "--graph or --run"),
        (["--run", "json:dumps", "--step", "c9"], "cannot be used"),
    ],
)
def test_what_cannot_be_run_is_said_without_a_traceback(program, capsys, arguments, said):
    assert run(["replay", "check", "plain.jsonl", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_fixture_is_said_so(program, capsys):
    Path("other.jsonl").write_text("{}\n")
    assert run(["replay", "check", "other.jsonl", "--run", "json:dumps"]) == 2
    assert "line 1" in capsys.readouterr().err
