"""Three releases of one LangGraph agent, deployed in turn over the same threads: the example's, against a gateway."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict
from uuid import uuid4

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from examples.state_upgrade_agent import RELEASES, begin, build, register
from stateroom import AsyncClient, Client, StateTooNew, StateUpcastFailed
from stateroom.langgraph import SKELETON, StateroomSaver

NAME, CITY = "Ada Lovelace", "Lisbon"
ASKED = "Shall I book Lisbon for Ada Lovelace?"
BEFORE = ["asked: a trip to Lisbon", "learned: a window seat"]
AFTER = [
    "asked: a trip to Lisbon",
    "answered: yes",
    "learned: a window seat",
    "booked: Lisbon, window seat, for Ada Lovelace",
]
NAMES = {
    1: {"user_pref", "name", "city", "msgs"},
    2: {"user_profile", "first_name", "last_name", "city", "msgs"},
    3: {"user_profile", "first_name", "last_name", "trip", "messages"},
}


def shape(number, lines):
    """The state of a trip, as a release has it."""
    profile = {"language": "pt", "seat": "window"}
    first, last = NAME.split()
    return {
        1: {"user_pref": profile, "name": NAME, "city": CITY, "msgs": lines},
        2: {"user_profile": profile, "first_name": first, "last_name": last, "city": CITY, "msgs": lines},
        3: {"user_profile": profile, "first_name": first, "last_name": last, "trip": {"city": CITY}, "messages": lines},
    }[number]


class Deployment:
    """One tenant's agents: a schema of its own, and a saver and a graph of each release."""

    def __init__(self, gateway):
        self.url, self.api_key = gateway.url, gateway.api_key
        self.subject, self.schema = f"user-{uuid4()}", f"travel_{uuid4().hex[:12]}"
        self.acted = {}
        self._savers = {}

    def release(self, *numbers):
        with Client(self.url, self.api_key) as client:
            register(client, self.schema, numbers)

    def saver(self, number):
        if number not in self._savers:
            known = None if number is None else f"{self.schema}@{number}"
            self._savers[number] = StateroomSaver(self.url, self.api_key, subject=self.subject, state_version=known)
        return self._savers[number]

    def graph(self, number, thread_id=""):
        return build(number, self.saver(number), lambda node: self.acted.setdefault(thread_id, []).append(node))

    def begin(self, number, thread_id):
        self.graph(number, thread_id).invoke(begin(number, NAME, CITY), at(thread_id), durability="sync")

    def answer(self, number, thread_id):
        return self.graph(number, thread_id).invoke(Command(resume="yes"), at(thread_id), durability="sync")

    def stored(self, thread_id):
        """The head as it was saved: channel names, schema version, and the names of what is pending."""
        with Client(self.url, self.api_key, subject=self.subject) as client:
            head = client.request(
                "GET", f"/threads/{thread_id}/checkpoints/latest", params={"view": "channels"}
            ).decode()
            state = {name for name in head["channels"] if name != SKELETON and ":" not in name and name[:2] != "__"}
            pending = [write["channel"] for write in head["pending_writes"]]
            return (
                state,
                head["state_version"],
                sorted(name for name in pending if ":" not in name and name[:2] != "__"),
            )

    def close(self):
        for saver in self._savers.values():
            saver.close()


def at(thread_id, checkpoint_id=None):
    place = {"thread_id": thread_id}
    return {"configurable": place if checkpoint_id is None else {**place, "checkpoint_id": checkpoint_id}}


@pytest.fixture
def deployment(running_gateway):
    made = Deployment(running_gateway)
    yield made
    made.close()


def test_three_releases_in_turn_go_on_with_every_thread_and_lose_nothing(deployment):
    run = deployment
    run.release(1)
    for thread_id in ("done-1", "waits-1-2", "waits-1-3"):
        run.begin(1, thread_id)
    assert run.answer(1, "done-1") == shape(1, AFTER)

    run.release(2)
    assert run.graph(2).get_state(at("done-1")).values == shape(2, AFTER)
    waiting = run.graph(2).get_state(at("waits-1-2"))
    assert [each.value for each in waiting.interrupts] == [ASKED]
    # What the finished task wrote under its old name is shown, and applied, under the new one.
    assert waiting.values == shape(2, BEFORE)
    assert run.answer(2, "waits-1-2") == shape(2, AFTER)
    run.begin(2, "waits-2-3")

    run.release(3)
    for thread_id in ("done-1", "waits-1-2"):
        assert run.graph(3).get_state(at(thread_id)).values == shape(3, AFTER)
    for thread_id in ("waits-1-3", "waits-2-3"):
        standing = run.graph(3).get_state(at(thread_id))
        assert [each.value for each in standing.interrupts] == [ASKED]
        assert standing.values == shape(3, BEFORE)
        assert run.answer(3, thread_id) == shape(3, AFTER)
    # No task that had finished ran again, in whatever release the thread went on.
    assert set(run.acted) == {"done-1", "waits-1-2", "waits-1-3", "waits-2-3"}
    assert all(acted == ["learn", "ask", "book"] for acted in run.acted.values())


@pytest.mark.parametrize("released", [1, 2, 3])
def test_history_reads_the_same_at_every_version(deployment, released):
    run = deployment
    run.release(1, 2, 3)
    run.begin(1, "t")
    run.answer(released, "t")
    told = {}
    for number, names in NAMES.items():
        history = list(run.graph(number).get_state_history(at("t")))
        assert all(set(each.values) <= names for each in history)
        told[number] = [
            (each.config["configurable"]["checkpoint_id"], each.values.get(RELEASES[number].lines)) for each in history
        ]
        assert history[0].values == shape(number, AFTER)
        for each in history:
            assert run.graph(number).get_state(each.config).values == each.values
    assert told[1] == told[2] == told[3]


def test_a_read_leaves_what_is_stored_as_it_is(deployment):
    run = deployment
    run.release(1, 2, 3)
    run.begin(1, "t")
    before = run.stored("t")
    assert before == ({"name", "city", "user_pref"}, 1, ["msgs", "user_pref"])
    for number in (3, 2, 1):
        run.graph(number).get_state(at("t"))
        list(run.graph(number).get_state_history(at("t")))
    assert run.stored("t") == before


def test_a_renamed_delta_channel_goes_on_growing_over_all_releases(deployment):
    run = deployment
    run.release(1, 2, 3)
    lines = []
    for turn, number in enumerate([1, 1, 2, 3, 2, 1, 3]):
        graph = run.graph(number, "t")
        name = RELEASES[number].lines
        graph.update_state(at("t"), {name: [f"turn {turn}"]}, as_node="learn")
        lines.append(f"turn {turn}")
        assert [run.graph(each).get_state(at("t")).values.get(RELEASES[each].lines) for each in NAMES] == [lines] * 3


def test_old_and_new_agents_work_on_one_thread_at_once(deployment):
    run = deployment
    run.release(1, 2)
    run.begin(1, "t")
    # The new release answers what the old one asked; the old one reads that, and begins again; the new one answers.
    assert run.answer(2, "t") == shape(2, AFTER)
    assert run.graph(1).get_state(at("t")).values == shape(1, AFTER)
    run.graph(1, "t").invoke({"msgs": ["once more"]}, at("t"), durability="sync")
    assert run.graph(2).get_state(at("t")).values["msgs"][:5] == [*AFTER, "once more"]
    run.answer(2, "t")
    assert run.graph(1).get_state(at("t")).values["msgs"] == run.graph(2).get_state(at("t")).values["msgs"]
    assert run.acted["t"].count("learn") == 2


def test_a_task_of_the_new_release_can_write_to_a_checkpoint_of_the_old_one(deployment):
    run = deployment
    run.release(1, 2, 3)
    run.begin(1, "t")
    head = run.saver(3).get_tuple(at("t"))
    run.saver(3).put_writes(head.config, [("messages", ["from 3"]), ("trip", {"city": "Porto"})], "task-of-3")
    writes = {
        number: [
            (channel, value)
            for task_id, channel, value in run.saver(number).get_tuple(at("t")).pending_writes
            if task_id == "task-of-3"
        ]
        for number in NAMES
    }
    assert writes[3] == [("messages", ["from 3"]), ("trip", {"city": "Porto"})]
    assert writes[2] == writes[1] == [("msgs", ["from 3"]), ("city", "Porto")]


def test_forks_and_copies_of_old_threads_are_upcast_too(deployment):
    run = deployment
    run.release(1, 2, 3)
    run.begin(1, "t")
    waiting = run.graph(1).get_state(at("t")).config
    run.answer(1, "t")
    run.saver(3).copy_thread("t", "copy")
    assert run.graph(3).get_state(at("copy")).values == shape(3, AFTER)
    forked = run.graph(3, "fork").update_state(waiting, {"trip": {"city": "Porto"}}, as_node="learn")
    assert run.graph(3).get_state(forked).values["trip"] == {"city": "Porto"}
    assert run.graph(1).get_state(forked).values["city"] == "Porto"
    assert "asked: a trip to Lisbon" in run.graph(1).get_state(forked).values["msgs"]


async def test_the_asynchronous_saver_reads_and_goes_on_the_same(deployment):
    run = deployment
    run.release(1, 2, 3)
    run.begin(1, "t")
    async with StateroomSaver(run.url, run.api_key, subject=run.subject, state_version=f"{run.schema}@3") as saver:
        graph = build(3, saver)
        assert (await graph.aget_state(at("t"))).values == shape(3, BEFORE)
        assert await graph.ainvoke(Command(resume="yes"), at("t"), durability="sync") == shape(3, AFTER)
        history = [each.values.get("messages") async for each in graph.aget_state_history(at("t"))]
    assert history == [each.values.get("messages") for each in run.graph(3).get_state_history(at("t"))]


def test_an_agent_newer_than_what_is_registered_is_refused_and_stores_nothing(deployment):
    run = deployment
    run.release(1)
    with pytest.raises(StateTooNew):
        run.begin(2, "t")
    run.begin(1, "t")
    with pytest.raises(StateTooNew):
        run.graph(2).get_state(at("t"))
    assert run.graph(1).get_state(at("t")).values == shape(1, BEFORE)


def test_state_that_a_step_cannot_take_is_refused_by_name_and_stays(deployment):
    run = deployment
    run.release(1, 2)
    with Client(run.url, run.api_key, subject=run.subject) as client:
        client.thread("t", state_version=f"{run.schema}@1").save({"name": 7})
        with pytest.raises(StateUpcastFailed) as refused:
            client.thread("t", state_version=f"{run.schema}@2").load()
        assert (refused.value.retryable, "v1_to_v2" in str(refused.value), "/name" in str(refused.value)) == (
            False,
            True,
            True,
        )
        assert client.thread("t", state_version=f"{run.schema}@1").load().state == {"name": 7}


def test_a_plain_agent_loads_patches_and_forks_across_versions(deployment):
    run = deployment
    run.release(1, 2, 3)
    with Client(run.url, run.api_key, subject=run.subject) as client:
        threads = {number: client.thread("t", state_version=f"{run.schema}@{number}") for number in NAMES}
        first = threads[1].save({"user_pref": {"seat": "aisle"}, "name": NAME, "city": CITY})
        assert threads[3].load().state == {
            "user_profile": {"seat": "aisle"}, "first_name": "Ada", "last_name": "Lovelace", "trip": {"city": CITY}
        }  # fmt: skip
        threads[3].patch(set={"first_name": "Augusta"})
        head = threads[1].load()
        assert (head.state["name"], head.state["city"], head.state_version) == ("Augusta Lovelace", CITY, 1)
        assert threads[2].at(first.checkpoint_id).state["first_name"] == "Ada"
        forked = threads[2].fork(first.checkpoint_id)
        forked.save({"city": "Porto"})
        assert threads[3].load().state == {"trip": {"city": "Porto"}}


async def test_the_asynchronous_client_says_its_version_too(deployment):
    run = deployment
    run.release(1, 2)
    async with AsyncClient(run.url, run.api_key, subject=run.subject) as client:
        await client.thread("t", state_version=f"{run.schema}@1").save({"name": NAME})
        head = await client.thread("t", state_version=f"{run.schema}@2").load()
        assert (head.state, head.state_version) == ({"first_name": "Ada", "last_name": "Lovelace"}, 2)


def test_operators_plan_migrate_and_roll_back_with_the_command_line(deployment):
    run = deployment
    run.release(1, 2, 3)
    for thread_id in ("done", "waits", "back"):
        run.begin(1, thread_id)
    for thread_id in ("done", "back"):
        run.answer(1, thread_id)

    def command(*arguments):
        environ = os.environ | {"STATEROOM_URL": run.url, "STATEROOM_API_KEY": run.api_key}
        stateroom = Path(sys.executable).with_name("stateroom")
        done = subprocess.run(
            [stateroom, "state", *arguments, run.schema], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)

    planned = command("plan", "--idle-seconds", "0")
    assert (planned["heads"], planned["changed"], planned["waiting"]) == ("3", "2", "1")
    assert run.stored("done")[1] == 1
    migrated = command("migrate", "--idle-seconds", "0")
    assert (migrated["changed"], migrated["waiting"]) == ("2", "1")
    assert [run.stored(thread_id)[1] for thread_id in ("done", "waits", "back")] == [3, 1, 3]
    for thread_id in ("done", "back"):
        assert run.graph(3).get_state(at(thread_id)).values == shape(3, AFTER)
        assert run.graph(1).get_state(at(thread_id)).values == shape(1, AFTER)
    assert run.answer(3, "waits") == shape(3, AFTER)
    # An agent goes on with one of them; only the other goes back.
    run.graph(3, "done").update_state(at("done"), {"messages": ["later"]}, as_node="learn")
    assert command("rollback")["changed"] == "1"
    assert [run.stored(thread_id)[1] for thread_id in ("done", "back")] == [3, 1]
    assert run.graph(3).get_state(at("done")).values["messages"] == [*AFTER, "later"]
    assert run.graph(1).get_state(at("back")).values == shape(1, AFTER)


@pytest.mark.parametrize("durability", ["exit", "async"])
def test_it_does_not_matter_when_the_old_release_saved(deployment, durability):
    run = deployment
    run.release(1, 2, 3)
    run.graph(1, "t").invoke(begin(1, NAME, CITY), at("t"), durability=durability)
    assert run.graph(3).get_state(at("t")).values == shape(3, BEFORE)
    assert run.graph(3, "t").invoke(Command(resume="yes"), at("t"), durability=durability) == shape(3, AFTER)
    assert run.graph(1).get_state(at("t")).values == shape(1, AFTER)
    assert run.acted["t"] == ["learn", "ask", "book"]


class Bill1(TypedDict, total=False):
    name: str
    sum_total: int
    paid: str


class Bill2(TypedDict, total=False):
    name: str
    amount: int
    paid: str


class Order(TypedDict, total=False):
    name: str
    paid: str


def shop(saver, bill, amount):
    """A graph with a subgraph whose state has a schema of its own; it stops inside, beside a finished task."""

    def count(_state):
        return {amount: 42}

    def confirm(state):
        return {"paid": f"{interrupt('Pay?')} by {state['name']}"}

    def pay(state):
        return {"paid": f"{state['paid']}: {state[amount]}"}

    billing = StateGraph(bill)
    for node in (count, confirm, pay):
        billing.add_node(node.__name__, node)
    billing.add_edge(START, "count")
    billing.add_edge(START, "confirm")
    billing.add_edge(["count", "confirm"], "pay")
    graph = StateGraph(Order)
    graph.add_node("billing", billing.compile())
    graph.add_edge(START, "billing")
    graph.add_edge("billing", END)
    return graph.compile(checkpointer=saver)


def test_a_subgraph_that_waits_is_upcast_by_its_own_schema(deployment):
    run = deployment
    outer, inner = f"{run.schema}_outer", f"{run.schema}_inner"
    # The root's `name` is split, and required to be; the subgraph's `name` is another matter.
    split = {"op": "split", "from": "/name", "separator": " ", "to": ["/first", "/last"], "required": True}
    rename = {"op": "rename", "from": "/sum_total", "to": "/amount"}
    with Client(run.url, run.api_key) as client:
        for schema, step in ((outer, split), (inner, rename)):
            client.request("PUT", f"/state-schemas/{schema}/versions/1", body={})
            client.request("PUT", f"/state-schemas/{schema}/versions/2", body={"up": [step]})
    options = {"subject": run.subject}
    with StateroomSaver(
        run.url, run.api_key, **options, state_version={"": f"{outer}@1", "billing": f"{inner}@1"}
    ) as old:
        shop(old, Bill1, "sum_total").invoke({"name": NAME}, at("t"), durability="sync")
    with StateroomSaver(
        run.url, run.api_key, **options, state_version={"": f"{outer}@1", "billing": f"{inner}@2"}
    ) as new:
        done = shop(new, Bill2, "amount").invoke(Command(resume="yes"), at("t"), durability="sync")
    assert done == {"name": NAME, "paid": f"yes by {NAME}: 42"}
    with StateroomSaver(run.url, run.api_key, **options, state_version=f"{outer}@2") as newest:
        values = newest.get_tuple(at("t")).checkpoint["channel_values"]
    assert (values["first"], values["last"]) == ("Ada", "Lovelace")


def test_the_example_goes_on_between_releases_as_its_own_text_says(running_gateway):
    environ = os.environ | {"STATEROOM_URL": running_gateway.url, "STATEROOM_API_KEY": running_gateway.api_key}

    def run(*arguments):
        script = Path(__file__).parents[2] / "examples" / "state_upgrade_agent.py"
        command = [sys.executable, str(script), "--subject", subject, *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    subject = f"user-{uuid4()}"
    assert run("register") == run("register") == []
    ran, standing = run("--release", "1", "start", "trip-7", NAME, CITY)
    assert ran == "learn runs in release 1"
    assert json.loads(standing)["asks"] == [ASKED]
    *ran, standing = run("--release", "3", "answer", "trip-7", "yes")
    assert ran == ["ask runs in release 3", "book runs in release 3"]
    assert json.loads(standing) == {"state": shape(3, AFTER), "asks": []}
    assert json.loads(run("--release", "1", "show", "trip-7")[0])["state"] == shape(1, AFTER)
