"""Save policies over HTTP, on the command line and with the SDK: who may set one, and what whoever forgets is told."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from operator import add
from types import SimpleNamespace
from typing import Annotated, TypedDict
from uuid import UUID, uuid4

import httpx
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from crypto.roots import create_root_key
from stateroom import AsyncClient, Client, HeadMoved, InvalidRequest, PreconditionRequired, Summary
from stateroom.langgraph import StateroomSaver
from storage.control.features import COMPACTION_POLICIES, SAVE_POLICIES
from storage.service import Store
from tests.support.features import switch_on
from tests.support.gateway import Tenant
from tests.support.operations import Tenancy, assert_problem
from tests.support.production import Deployment, Launcher, ProductionGateway, serving

POLICY = "/v1/save-policy"


@pytest.fixture(scope="module")
async def gateway(deployment: Deployment, launcher: Launcher) -> AsyncIterator[ProductionGateway]:
    store = await Store.open(
        deployment.environ["STATEROOM_DATABASE_URL"],
        root_key=create_root_key(deployment.environ["STATEROOM_ROOT_KEY"]),
        deployment_id=UUID(deployment.environ["STATEROOM_DEPLOYMENT_ID"]),
        connections_max=2,
    )
    for feature in (SAVE_POLICIES, COMPACTION_POLICIES):
        await switch_on(store, feature)
    await store.close()
    async with serving(launcher, deployment) as running:
        yield running


@pytest.fixture(scope="module")
def tenancy(gateway: ProductionGateway) -> Tenancy:
    deployment = gateway.deployment
    return Tenancy(Tenant(gateway.url, deployment.api_key, deployment.operator_key))


@pytest.fixture
def service_key(tenancy: Tenancy) -> str:
    return tenancy.tenant()


@pytest.fixture
def admin(tenancy: Tenancy, service_key: str) -> Iterator[httpx.Client]:
    with tenancy.client(service_key) as opened:
        yield opened


@pytest.fixture
def client(tenancy: Tenancy, service_key: str) -> Iterator[httpx.Client]:
    with tenancy.client(service_key, "user-1") as opened:
        yield opened


def saving(client, thread="t", agent="travel", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": 1}, "agent": agent}, headers=named)


def said(client, body, **query):
    answer = client.put(POLICY, json=body, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_save_without_a_precondition_is_refused_and_told_what_to_send(admin, client):
    first = saving(client)
    shown = said(admin, {"strict": True})
    assert (shown["policy"], shown["strict"], shown["agents"], shown["damaged"]) == ({"strict": True}, True, [], [])
    refused = saving(client)
    assert_problem(refused, 428, "precondition-required")
    assert "save policy of the tenant" in refused.json()["detail"]
    assert "If-Match" in refused.json()["detail"]
    assert saving(client, If_Match=first.headers["ETag"]).status_code == 201
    assert_problem(saving(client, If_Match=first.headers["ETag"]), 412, "head-moved")
    assert saving(client, "new").status_code == 201
    assert saving(client, "newer", If_None_Match="*").status_code == 201
    assert said(admin, {"strict": None})["strict"] is False
    assert saving(client).status_code == 201


def test_one_agent_is_asked_and_another_one_excepted(admin, client):
    for agent in ("travel", "billing"):
        saving(client, agent, agent=agent)
    said(admin, {"strict": True}, agent="travel")
    refused = saving(client, "travel")
    assert_problem(refused, 428, "precondition-required")
    assert "agent 'travel'" in refused.json()["detail"]
    assert saving(client, "billing", agent="billing").status_code == 201
    said(admin, {"strict": True})
    assert_problem(saving(client, "billing", agent="billing"), 428, "precondition-required")
    shown = said(admin, {"strict": False}, agent="billing")
    assert (shown["agent"], shown["strict"], shown["agents"]) == ("billing", False, ["billing", "travel"])
    assert saving(client, "billing", agent="billing").status_code == 201
    assert admin.get(POLICY).json()["strict"] is True


def test_only_who_administers_says_so_and_only_of_its_own_tenant(tenancy, admin, client, service_key):
    said(admin, {"strict": True})
    with tenancy.client(tenancy.key(service_key, "user-1", permissions=["state:read", "state:write"])) as limited:
        for answer in (limited.put(POLICY, json={"strict": False}), limited.get(POLICY)):
            assert_problem(answer, 403, "permission-denied")
    foreign_key = tenancy.tenant()
    with tenancy.client(foreign_key) as foreign, tenancy.client(foreign_key, "user-1") as neighbour:
        assert foreign.get(POLICY).json()["updated_at"] is None
        said(foreign, {"strict": False})
        for _ in range(2):
            assert saving(neighbour).status_code == 201
    assert admin.get(POLICY).json()["policy"] == {"strict": True}


def test_what_makes_no_sense_is_refused(admin):
    no_numbers = [{name: each} for name in ("compact_elements", "compact_bytes") for each in (0, -1, 2**60, 1.5, "9")]
    for body in ({"strict": "yes"}, {"unknown": True}, *no_numbers):
        assert_problem(admin.put(POLICY, json=body), 422, "invalid-request")
    assert_problem(admin.put(POLICY, json={"strict": True}, params={"agents": "x"}), 422, "invalid-request")
    assert said(admin, {})["policy"] == {}


def test_a_program_that_forgets_is_told_and_one_that_looks_or_is_strict_goes_on(gateway, admin, service_key):
    with Client(gateway.url, api_key=service_key, subject="user-1") as client:
        client.thread("notes").save({"n": 1})
        said(admin, {"strict": True})
        with pytest.raises(PreconditionRequired, match="strict=True"):
            client.thread("notes").save({"n": 2})
        notes = client.thread("notes")
        notes.load()
        notes.save({"n": 2})
        notes.save({"n": 3})
        new = client.thread("new")
        new.save({"n": 1})
        new.save({"n": 2})
    with Client(gateway.url, api_key=service_key, subject="user-1", strict=True) as strict:
        with pytest.raises(HeadMoved):
            strict.thread("notes").save({"n": 4})
        careful = strict.thread("notes")
        careful.load()
        careful.save({"n": 4})


class Chat(TypedDict):
    said: Annotated[list[str], add]


def test_a_saver_that_is_not_strict_goes_on_and_its_second_run_is_refused(gateway, admin, service_key):
    said(admin, {"strict": True})
    config = {"configurable": {"thread_id": "chat"}}
    place = {"api_key": service_key, "subject": "user-1"}

    def build(saver, meanwhile=None):
        def answer(state):
            if meanwhile is not None:
                meanwhile()
            return {"said": [f"answer to {state['said'][-1]}"]}

        builder = StateGraph(Chat)
        builder.add_node("answer", answer)
        builder.add_edge(START, "answer")
        return builder.compile(checkpointer=saver)

    with StateroomSaver(gateway.url, **place) as one, StateroomSaver(gateway.url, **place) as other:
        graph = build(one)
        for text in ("hello", "again"):
            graph.invoke({"said": [text]}, config)

        def beside():
            build(other).invoke({"said": ["beside"]}, config, durability="exit")

        with pytest.raises(HeadMoved):
            build(one, beside).invoke({"said": ["lost"]}, config, durability="exit")
        assert graph.get_state(config).values["said"][-2:] == ["beside", "answer to beside"]


# --- lists that are too long -----------------------------------------------------------------------------------------


def test_a_save_of_a_list_that_is_too_long_is_told_so(admin, client):
    shown = said(admin, {"compact_elements": 3, "compact_bytes": 100})
    assert (shown["strict"], shown["compact_elements"], shown["compact_bytes"]) == (False, 3, 100)

    def told(state):
        answer = client.post("/v1/threads/long/checkpoints", json={"state": state})
        assert answer.status_code == 201, answer.text
        return answer.json().get("needs_compaction", "nothing")

    assert told({"notes": [1, 2, 3], "more": ["x" * 90]}) == "nothing"
    assert told({"notes": [1, 2, 3, 4], "more": ["x" * 200]}) == [
        {"channel": "notes", "elements": 4, "bytes": 5},
        {"channel": "more", "elements": 1, "bytes": 203},
    ]
    compact = {"channel": "more", "keep_last": 0, "summary": ["y" * 300]}
    answer = client.post("/v1/threads/long/compact", json=compact)
    assert [each["channel"] for each in answer.json()["needs_compaction"]] == ["notes", "more"]


def summarising(keep_last, asked):
    """A janitor that notes what it was asked and keeps a few elements."""

    def janitor(long, elements):
        asked.append((long.channel, long.elements, len(elements)))
        return None if long.channel == "kept" else Summary([f"{len(elements) - keep_last} before"], keep_last)

    return janitor


@pytest.mark.parametrize("every", [None, 4])
def test_a_thread_object_compacts_what_it_was_told_or_at_every_so_many_steps(gateway, admin, service_key, every):
    said(admin, {"compact_elements": 5} if every is None else {})
    asked = []
    with Client(gateway.url, api_key=service_key, subject="user-1") as client:
        thread = client.thread("talk")
        state = {"notes": [], "kept": ["k"] * (9 if every is None else 1), "text": "t"}
        for number in range(8):
            state["notes"].append(number)
            thread.save(state)
            state = thread.compact_if_needed(state, summarising(2, asked), every=every)
        whole = [thread.at(each.parent_id).state["notes"] for each in thread.history(source="compact")]
        assert thread.load().state == state
    if every is None:  # the ninth element of what is kept is too many at each save, and stays
        assert [each for each in asked if each[0] == "notes"] == [("notes", 6, 6)]
        assert state["notes"] == ["4 before", 4, 5, 6, 7]
        assert whole == [[0, 1, 2, 3, 4, 5]]
    else:  # a compaction is a step, too
        assert [each for each in asked if each[0] == "notes"] == [("notes", 5, 5), ("notes", 6, 6)]
        assert state["notes"] == ["4 before", 6, 7]
        assert whole == [["3 before", 3, 4, 5, 6, 7], [0, 1, 2, 3, 4]]


async def test_a_janitor_may_be_a_coroutine_function(gateway, admin, service_key):
    said(admin, {"compact_elements": 2})

    async def janitor(long, elements):
        return Summary([sum(elements)], 1)

    async with AsyncClient(gateway.url, api_key=service_key, subject="user-1") as client:
        thread = client.thread("sums")
        state = {"numbers": [1, 2, 3, 4]}
        await thread.save(state)
        assert await thread.compact_if_needed(state, janitor) == {"numbers": [10, 4]}
        with pytest.raises(InvalidRequest, match="every so many steps"):
            await thread.compact_if_needed(state, janitor, every=0)


def test_a_state_that_somebody_changed_meanwhile_is_not_compacted(gateway, admin, service_key):
    said(admin, {"compact_elements": 2})
    with Client(gateway.url, api_key=service_key, subject="user-1") as client:
        thread = client.thread("raced")
        state = {"notes": [1, 2, 3]}
        thread.save(state)
        other = client.thread("raced")
        other.load()
        other.save({"notes": [1, 2, 3, 4]})
        with pytest.raises(HeadMoved):
            thread.compact_if_needed(state, summarising(1, []))
        assert other.load().state == {"notes": [1, 2, 3, 4]}


def test_a_graphs_messages_are_compacted_between_runs_and_it_goes_on(gateway, admin, service_key):
    said(admin, {"compact_elements": 4})
    config = {"configurable": {"thread_id": "chat"}}
    asked = []
    with StateroomSaver(gateway.url, api_key=service_key, subject="user-1") as saver:
        builder = StateGraph(Chat)
        builder.add_node("answer", lambda state: {"said": [f"answer to {state['said'][-1]}"]})
        builder.add_edge(START, "answer")
        graph = builder.compile(checkpointer=saver)
        for number in range(4):
            graph.invoke({"said": [f"question {number}"]}, config)
            saver.compact_if_needed(config, summarising(1, asked))
        assert asked == [("said", 6, 6)]
        summarised = ["5 before", "answer to question 2", "question 3", "answer to question 3"]
        assert graph.get_state(config).values["said"] == summarised
        assert saver.compact_if_needed(config, summarising(1, asked)) == config
        assert len(asked) == 1


async def test_a_graph_that_waits_is_left_alone_and_every_so_many_steps_counts_the_graphs(gateway, admin, service_key):
    said(admin, {})
    config = {"configurable": {"thread_id": "waits"}}
    asked = []
    async with StateroomSaver(gateway.url, api_key=service_key, subject="user-1") as saver:
        builder = StateGraph(Chat)
        builder.add_node("ask", lambda state: {"said": [interrupt("sure?")]})
        builder.add_edge(START, "ask")
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"said": ["one", "two"]}, config)
        assert await saver.acompact_if_needed(config, summarising(1, asked), every=1) == config
        assert asked == []
        await graph.ainvoke(Command(resume="yes"), config)
        compacted = await saver.acompact_if_needed(config, summarising(1, asked), every=1)
        assert compacted != config
        assert asked == [("said", 3, 3)]
        assert (await graph.aget_state(config)).values["said"] == ["2 before", "yes"]


async def test_the_command_line_says_and_shows(gateway, stateroom, service_key):
    deployment = gateway.deployment
    environ = deployment.environ | {"STATEROOM_API_KEY": service_key}
    here = SimpleNamespace(url=gateway.url, deployment=replace(deployment, api_key=service_key, environ=environ))

    async def run(*arguments):
        done = await stateroom(here, "save-policy", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    agent = f"agent-{uuid4()}"
    await run("set", "--strict")
    await run("set", "--agent", agent, "--no-strict")
    assert json.loads(await run("get", "--json"))["agents"] == [agent]
    assert json.loads(await run("get", "--agent", agent, "--json"))["strict"] is False
    assert b"strict: saves name the head" in await run("get")
    await run("set", "--agent", agent, "--compact-elements", "500")
    kept = json.loads(await run("get", "--agent", agent, "--json"))
    assert kept["policy"] == {"strict": False, "compact_elements": 500}
    await run("set", "--agent", agent, "--take-back")
    assert json.loads(await run("get", "--agent", agent, "--json"))["strict"] is True
