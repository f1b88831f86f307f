"""Whole threads over a real gateway: all namespaces of one as a trajectory, as a fixture, and made again from that."""

import asyncio
import json
import operator
import tracemalloc
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, StateSnapshot, interrupt

import stateroom
from stateroom.langgraph import StateroomSaver
from stateroom.testing import Fixture, check_run
from tests.support.gateway import new_tenant
from tests.support.operations import assert_problem

SUBJECT, OTHER = "user-42", "tester"
CONFIG = {"configurable": {"thread_id": "trip"}}
ALL = {"namespaces": "all"}


@pytest.fixture
def production(running_gateway):
    return new_tenant(running_gateway)


@pytest.fixture
def tests(running_gateway):
    return new_tenant(running_gateway)


@pytest.fixture
def client(production):
    with stateroom.Client(production.url, production.api_key, subject=SUBJECT) as client:
        yield client


@pytest.fixture
def target(tests):
    with stateroom.Client(tests.url, tests.api_key, subject=OTHER) as target:
        yield target


@pytest.fixture
def http(production):
    headers = {"Authorization": f"Bearer {production.api_key}", "Stateroom-Subject": SUBJECT}
    with httpx.Client(base_url=production.url, headers=headers, timeout=60) as http:
        yield http


class Trip(TypedDict):
    log: Annotated[list[str], operator.add]


def plan(state: Trip) -> dict[str, Any]:
    return {"log": ["planned"]}


def search(state: Trip) -> dict[str, Any]:
    return {"log": ["searched"]}


def approve(state: Trip) -> dict[str, Any]:
    return {"log": [f"answered {interrupt('book it?')}"]}


def book(state: Trip) -> dict[str, Any]:
    return {"log": [f"booked behind {len(state['log'])}"]}


def line_of(*nodes):
    graph = StateGraph(Trip)
    for one, other in zip((START, *(name for name, _ in nodes)), (*(name for name, _ in nodes), END), strict=True):
        graph.add_edge(one, other)
    for name, node in nodes:
        graph.add_node(name, node)
    return graph


def agent_on(saver):
    """An agent whose question is asked two graphs below it, after a graph that ended."""
    asks = line_of(("search", search), ("approve", approve)).compile()
    travels = line_of(("plan", plan), ("asks", asks)).compile()
    ends = line_of(("search", search)).compile()
    return line_of(("ends", ends), ("travels", travels), ("book", book)).compile(checkpointer=saver)


def saver_of(tenant, subject):
    return StateroomSaver(tenant.url, tenant.api_key, subject=subject)


def asked(tenant) -> None:
    with saver_of(tenant, SUBJECT) as saver:
        agent_on(saver).invoke({"log": []}, CONFIG)


def shown(state) -> tuple:
    """All that LangGraph shows of a state, with those of graphs that wait inside of it."""
    return (
        state.values,
        state.next,
        state.config["configurable"]["checkpoint_ns"],
        state.config["configurable"]["checkpoint_id"],
        state.parent_config and state.parent_config["configurable"]["checkpoint_id"],
        state.metadata,
        state.created_at,
        [(each.id, each.name, each.path, each.error, each.interrupts, each.result) for each in state.tasks],
        [shown(each.state) if isinstance(each.state, StateSnapshot) else each.state for each in state.tasks],
    )


def history(tenant, subject) -> list[tuple]:
    with saver_of(tenant, subject) as saver:
        agent = agent_on(saver)
        states = [agent.get_state(CONFIG, subgraphs=True), *agent.get_state_history(CONFIG)]
        return [shown(each) for each in states]


def without_times(fixture: Fixture) -> list[bytes]:
    for step in fixture.steps:
        step.created_at = datetime(2026, 1, 1, tzinfo=UTC)
    return list(fixture.lines())


def test_a_run_that_waits_inside_of_a_graph_goes_on_where_it_was_loaded(production, tests, client, target, tmp_path):
    asked(production)
    path = tmp_path / "trip.jsonl"
    client.thread("trip").fixture(all_namespaces=True).write(path)
    fixture = Fixture.read(path)
    assert (len(fixture.namespaces), fixture.is_whole) == (4, True)
    assert {""} | {each.split(":")[0] for each in fixture.namespaces} == {"", "ends", "travels"}
    assert fixture.load_into(target.thread("trip")) == len(fixture.steps)

    def places(each):
        return {(info.namespace, info.checkpoint_id, info.parent_id) for info in each.thread("trip").history()}

    assert places(target) == places(client)
    assert history(tests, OTHER) == history(production, SUBJECT)
    assert without_times(target.thread("trip").fixture(all_namespaces=True)) == without_times(fixture)
    results = []
    for tenant, subject in ((production, SUBJECT), (tests, OTHER)):
        with saver_of(tenant, subject) as saver:
            results.append(agent_on(saver).invoke(Command(resume="yes"), CONFIG))
    assert results[0] == results[1]
    # What a graph gives back holds what it was given: LangGraph adds it to the list again.
    assert results[1]["log"][-1].startswith("booked behind")
    assert "answered yes" in results[1]["log"]
    assert target.request("POST", "/threads:verify", body={"thread_id": "trip"}).decode()["findings"] == []


def test_loading_again_changes_nothing_and_goes_on_where_it_broke_off(production, tests, client, target):
    asked(production)
    content = b"".join(client.thread("trip").fixture(all_namespaces=True).lines())
    fixture, part = Fixture.parse(content), Fixture.parse(content)
    del part.steps[5:]
    assert part.load_into(target.thread("trip")) == 5
    assert fixture.load_into(target.thread("trip")) == len(fixture.steps) - 5
    assert fixture.load_into(target.thread("trip")) == 0
    assert history(tests, OTHER) == history(production, SUBJECT)
    with pytest.raises(stateroom.InvalidRequest, match="root"):
        fixture.load_into(target.thread("other", namespace="research"))
    for number, namespace in enumerate(("", fixture.namespaces[-1], "research")):
        other = target.thread(f"other-{number}", namespace=namespace)
        other.save({"n": 1})
        with pytest.raises(stateroom.ThreadExists):
            fixture.load_into(target.thread(f"other-{number}"))
        assert len(list(other.history())) == 1


def test_an_async_client_makes_and_loads_one(production, tests, client):
    asked(production)

    async def moved() -> tuple[Fixture, int]:
        async with (
            stateroom.AsyncClient(production.url, production.api_key, subject=SUBJECT) as source,
            stateroom.AsyncClient(tests.url, tests.api_key, subject=OTHER) as other,
        ):
            fixture = await source.thread("trip", namespace="any").fixture(all_namespaces=True)
            return fixture, await fixture.load_into(other.thread("trip"))

    fixture, created = asyncio.run(moved())
    assert list(fixture.lines()) == list(client.thread("trip").fixture(all_namespaces=True).lines())
    assert created == len(fixture.steps)


def test_it_may_lead_to_what_a_run_waited_at_before_it_went_on(production, client):
    asked(production)
    waited = client.thread("trip").fixture(all_namespaces=True)
    with saver_of(production, SUBJECT) as saver:
        agent_on(saver).invoke(Command(resume="yes"), CONFIG)
    last = waited.steps[-1]
    again = client.thread("trip", namespace=last.namespace).fixture(
        checkpoint_id=last.checkpoint_id, all_namespaces=True
    )
    assert [(each.namespace, each.checkpoint_id, each.changes) for each in again.steps] == [
        (each.namespace, each.checkpoint_id, each.changes) for each in waited.steps
    ]
    assert len(client.thread("trip").fixture(all_namespaces=True).steps) > len(waited.steps)


def two_agents(client: stateroom.Client, thread_id: str = "trip") -> dict[str, list[str]]:
    """A thread whose root works before and after a sub-agent, which left a branch."""
    root, sub = client.thread(thread_id), client.thread(thread_id, namespace="research")
    ids: dict[str, list[str]] = {"": [], "research": []}
    ids[""].append(root.save({"n": [1]}).checkpoint_id)
    ids["research"].append(sub.save({"n": [7]}).checkpoint_id)
    left = client.thread(thread_id, namespace="research").fork(ids["research"][0])
    left.save({"n": [0]})
    sub = client.thread(thread_id, namespace="research").fork(ids["research"][0])
    ids["research"].append(sub.save({"n": [7, 8]}, status="done").checkpoint_id)
    ids[""].append(root.save({"n": [1, 2]}, status="waiting").checkpoint_id)
    return ids


def told(http: httpx.Client, **params: str) -> list[dict[str, Any]]:
    answer = http.post("/v1/threads/trip/trajectory", params=ALL | params)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def places_of(lines) -> list[tuple[str, str]]:
    return [(each["namespace"], each["checkpoint_id"]) for each in lines]


def test_namespaces_are_told_one_after_the_other_the_newest_last(client, http):
    ids = two_agents(client)
    begin, *steps, end = told(http)
    assert begin == {
        "type": "begin", "format": "stateroom-trajectory/2", "view": "state", "thread_id": "trip", "namespace": "",
        "checkpoint_id": ids[""][-1], "steps": 4, "namespaces": 2,
    }  # fmt: skip
    assert places_of(steps) == [(name, each) for name in ("research", "") for each in ids[name]]
    assert [each["changes"]["n"] for each in steps] == [
        {"kind": "set", "value": [7]}, {"kind": "append", "value": [8]},
        {"kind": "set", "value": [1]}, {"kind": "append", "value": [2]},
    ]  # fmt: skip
    assert end == {"type": "end", "checkpoint_id": ids[""][-1], "status": "waiting", "steps": 4}
    found = list(client.thread("trip").trajectory(all_namespaces=True))
    assert [(each.namespace, each.checkpoint_id) for each in found] == places_of(steps)
    assert [each.namespace for each in client.thread("trip", namespace="research").trajectory()] == ["research"] * 2


def test_it_goes_on_after_any_step(client, http):
    ids = two_agents(client)
    steps = told(http)[1:-1]
    for number, step in enumerate(steps):
        after = {"after": step["checkpoint_id"], "after_namespace": step["namespace"]}
        begin, *more, end = told(http, checkpoint_id=ids[""][-1], **after)
        assert more == steps[number + 1 :]
        assert (begin["steps"], end["steps"]) == (len(more), len(more))
        assert begin["namespaces"] == (2 if step["namespace"] else 1)
    client.thread("trip", namespace="later").save({"n": 1})  # what came since is no part of it
    assert told(http, checkpoint_id=ids[""][-1])[1:-1] == steps
    client.thread("trip").load()


def test_checkpoints_of_one_id_in_two_namespaces_are_told_apart(client, http):
    for namespace, value in (("", 1), ("a", 2), ("b", 3)):
        body = {"checkpoint_id": "same", "namespace": namespace, "channels": {"n": {"data": msgpack(value)}}}
        client.request("POST", "/threads/trip/checkpoints", body=body)
    begin, *steps, _ = told(http)
    assert (begin["namespace"], [each["namespace"] for each in steps]) == ("", ["a", "b", ""])
    begin, *steps, _ = told(http, namespace="a", checkpoint_id="same")
    assert (begin["namespace"], [each["namespace"] for each in steps]) == ("a", ["", "b", "a"])
    _, *steps, _ = told(http, namespace="a", checkpoint_id="same", after="same", after_namespace="b")
    assert [each["changes"]["n"]["value"] for each in steps] == [2]
    fixture = client.thread("trip").fixture(all_namespaces=True)
    assert Fixture.parse(b"".join(fixture.lines())).namespaces == ["a", "b", ""]


def msgpack(value: int) -> bytes:
    return bytes([value])


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"namespaces": "some"}, "namespaces"),
        ({"namespaces": ""}, "namespaces"),
        (ALL | {"namespace": "research"}, "namespace"),
        (ALL | {"after": "x"}, "after"),
        ({"after": "x", "after_namespace": "research"}, "after_namespace"),
        (ALL | {"after_namespace": "research"}, "after_namespace"),
        (ALL | {"checkpoint_id": "x", "after": "x", "after_namespace": "n" * 5000}, "after_namespace"),
        ({"all_namespaces": "true"}, "all_namespaces"),
    ],
)
def test_parameters_that_say_nothing_are_refused(client, http, params, parameter):
    two_agents(client)
    answer = http.post("/v1/threads/trip/trajectory", params=params)
    assert_problem(answer, 422, "invalid-request")
    assert parameter in answer.text


def test_what_is_not_there_is_not_found(client, http):
    ids = two_agents(client)
    newest = ids[""][-1]
    assert_problem(http.post("/v1/threads/nothing/trajectory", params=ALL), 404, "thread-not-found")
    for params in (
        {"checkpoint_id": "nothing"},
        {"checkpoint_id": newest, "namespace": "research"},
        {"checkpoint_id": newest, "namespace": "elsewhere"},
        {"checkpoint_id": newest, "after": "nothing"},
        {"checkpoint_id": newest, "after": ids["research"][0]},
    ):
        answer = http.post("/v1/threads/trip/trajectory", params=ALL | params)
        assert_problem(answer, 404, "checkpoint-not-found")
    with pytest.raises(stateroom.InvalidRequest, match="after"):
        client.thread("trip").trajectory(after=newest, all_namespaces=True)


def test_others_find_nothing(client, production, running_gateway):
    two_agents(client)
    stranger = new_tenant(running_gateway)
    for api_key, subject in ((stranger.api_key, SUBJECT), (production.api_key, "user-7")):
        with stateroom.Client(production.url, api_key, subject=subject) as other:
            with pytest.raises(stateroom.ThreadNotFound):
                other.thread("trip").fixture(all_namespaces=True)
            other.thread("trip", namespace="mine").save({"n": 1})
            assert other.thread("trip").fixture(all_namespaces=True).namespaces == ["mine"]


def test_the_audit_log_says_how_many_namespaces_left(client, http):
    ids = two_agents(client)
    told(http)
    events = http.get("/v1/audit", params={"limit": 1000}).json()["events"]
    [event] = [each for each in events if each["action"] == "trajectory.export"]
    assert event["detail"] == {"namespace": "", "namespaces": 2, "checkpoint_id": ids[""][-1], "steps": 4}


def test_each_namespace_begins_with_a_whole_state_where_what_was_before_is_pruned(client):
    ids = two_agents(client)
    client.prune(["trip"])
    steps = client.thread("trip").fixture(all_namespaces=True).steps
    assert [(each.namespace, each.checkpoint_id, each.parent_id) for each in steps] == [
        ("research", ids["research"][-1], None),
        ("", ids[""][-1], None),
    ]


def test_steps_of_the_root_are_run_again_and_those_of_others_skipped(client):
    two_agents(client)
    report = check_run(
        client.thread("trip").fixture(all_namespaces=True), lambda state: {"state": {"n": [*state["n"], 2]}}
    )
    assert (report.outcome, [each.outcome for each in report.steps]) == ("same", ["skipped"] * 3 + ["same"])


def test_commands_print_a_whole_thread_and_load_it(production, tests, client, launcher, tmp_path):
    asked(production)
    path = tmp_path / "trip.jsonl"
    environ = {"STATEROOM_URL": production.url, "STATEROOM_API_KEY": production.api_key}
    whole = ("thread", "trajectory", "trip", "--subject", SUBJECT, "--all-namespaces")
    done = launcher.run(environ, *whole)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({each["namespace"] for each in steps}) == 4
    done = launcher.run(environ, *whole, "--form", "chat")
    assert (done.returncode, b"--all-namespaces" in done.stderr) == (2, True)
    done = launcher.run(environ, *whole, "--form", "fixture")
    path.write_bytes(done.stdout)
    assert list(Fixture.read(path).lines()) == list(client.thread("trip").fixture(all_namespaces=True).lines())
    environ["STATEROOM_API_KEY"] = tests.api_key
    done = launcher.run(environ, "thread", "load-fixture", str(path), "trip", "--subject", OTHER, "--json")
    assert json.loads(done.stdout) == {"thread_id": "trip", "steps": len(steps), "created": len(steps)}
    assert history(tests, OTHER) == history(production, SUBJECT)


def test_many_namespaces_come_as_they_are_read(client, production):
    """The reader holds a step at a time, however many sub-agents a thread had."""
    content = "x" * 50_000
    for number in range(150):
        thread = client.thread("trip", namespace=f"agent-{number}")
        thread.save({"n": number, "content": f"{number} {content}"})
        thread.save({"n": number, "content": f"{number} {content}!"})
    tracemalloc.start()
    try:
        count = sum(1 for _ in client.thread("trip").trajectory(all_namespaces=True))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 300
    assert most < 5_000_000  # of 15 MB
