"""Two gateways, each with its own engines and keys: a thread leaves one as a file and goes on in the other."""

import contextlib
import json
import os
from typing import TypedDict

import httpx2
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import stateroom
from stateroom.langgraph import StateroomSaver
from tests.support.gateway import Tenant, new_tenant
from tests.support.production import serving


@pytest.fixture(scope="module")
async def gateways(running_gateway, launcher, deployment, s3_server):
    async with serving(launcher, deployment.with_buckets(s3_server.url())) as other:
        yield new_tenant(running_gateway), Tenant(other.url, deployment.api_key, deployment.operator_key)


@pytest.fixture
def run(launcher):
    def execute(gateway, *arguments, code=0):
        environ = {
            "STATEROOM_URL": gateway.url,
            "STATEROOM_API_KEY": gateway.api_key,
            "STATEROOM_OPERATOR_KEY": gateway.operator_key,
        }
        done = launcher.run(environ, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return execute


@pytest.fixture
def key_of(run):
    return lambda gateway: json.loads(run(gateway, "transfer-key", "show", "--json").stdout)


class Trip(TypedDict):
    plan: list[str]
    approved: str


def agent(saver):
    def plan(state):
        return {"plan": [*state["plan"], "flight " + "x" * 5000]}

    def ask(state):
        return {"approved": interrupt({"question": state["plan"]})}

    def book(state):
        return {"plan": [*state["plan"], "booked by " + state["approved"]]}

    graph = StateGraph(Trip)
    for name, node in (("plan_", plan), ("ask", ask), ("book", book)):
        graph.add_node(name, node)
    graph.add_edge(START, "plan_")
    graph.add_edge("plan_", "ask")
    graph.add_edge("ask", "book")
    graph.add_edge("book", END)
    return graph.compile(checkpointer=saver)


@contextlib.contextmanager
def saver_of(gateway):
    with StateroomSaver(gateway.url, gateway.api_key, subject="user-42") as saver:
        yield saver


def test_an_agent_that_was_interrupted_in_one_deployment_goes_on_in_the_other(gateways, run, key_of, tmp_path):
    here, there = gateways
    config = {"configurable": {"thread_id": "trip-7"}}
    with saver_of(here) as saver:
        stopped = agent(saver).invoke({"plan": [], "approved": ""}, config)
        assert "__interrupt__" in stopped
        history = list(saver.list(config))
    shown = key_of(there)
    file = tmp_path / "trip.srx"
    run(here, "export", "thread", "trip-7", "--to", shown["public_key"], "-o", file, "--subject", "user-42")
    assert b"flight" not in file.read_bytes()
    report = json.loads(run(there, "import", file, "--json").stdout)
    assert (report["threads"], report["verified"], report["passed_over"]) == (1, 1, 0)
    with saver_of(there) as saver:
        assert list(saver.list(config)) == history
        done = agent(saver).invoke(Command(resume="Ada"), config)
    assert done["plan"][-1] == "booked by Ada"
    with saver_of(here) as saver:
        assert agent(saver).get_state(config).next == ("ask",)
    again = json.loads(run(there, "import", file, "--json").stdout)
    assert (again["threads"], [each["reason"] for each in again["passed"]]) == (0, ["there"])


def test_a_tenant_goes_over_and_a_file_that_exists_is_not_overwritten(gateways, run, key_of, tmp_path):
    here, there = gateways
    for subject in ("ada", "bob"):
        with stateroom.Client(here.url, here.api_key, subject=subject) as client:
            client.thread(f"t-{subject}").save({"n": 1})
            client.artifacts.upload(f"t-{subject}", os.urandom(200_000), name="shot.png")
    file = tmp_path / "tenant.srx"
    key = key_of(there)["public_key"]
    run(here, "export", "tenant", "--to", key, "-o", file)
    before = file.read_bytes()
    run(here, "export", "tenant", "--to", key, "-o", file, code=6)
    assert file.read_bytes() == before
    done = run(there, "import", file)
    assert b"2" in done.stdout
    with stateroom.Client(there.url, there.api_key, subject="ada") as client:
        assert client.thread("t-ada").load().state == {"n": 1}
        assert len(list(client.artifacts.list("t-ada"))) == 1


@pytest.mark.parametrize("fault", ["flipped", "cut", "longer", "other"])
def test_a_file_that_is_not_whole_is_refused_and_says_so(gateways, run, key_of, tmp_path, fault):
    here, there = gateways
    with stateroom.Client(here.url, here.api_key, subject="eve") as client:
        client.thread(f"bad-{fault}").save({"n": "x" * 100_000})
    file = tmp_path / "bad.srx"
    key = key_of(here if fault == "other" else there)["public_key"]
    run(here, "export", "thread", f"bad-{fault}", "--to", key, "-o", file, "--subject", "eve")
    content = bytearray(file.read_bytes())
    if fault == "flipped":
        content[len(content) // 2] ^= 1
    file.write_bytes({"cut": content[:-1], "longer": content + b"x"}.get(fault, content))
    done = run(there, "import", file, code=1)
    assert ("import-for-other" if fault == "other" else "import-refused") in done.stderr.decode()
    with stateroom.Client(there.url, there.api_key, subject="eve") as client:
        assert client.thread(f"bad-{fault}").load() is None


def test_exporting_needs_reading_and_importing_needs_writing(gateways, key_of):
    here, _ = gateways
    recipient = {"recipient": key_of(here)["public_key"]}
    made = {}
    with httpx2.Client(base_url=here.url + "/v1", headers={"Authorization": f"Bearer {here.api_key}"}) as client:
        for permissions in (["tenant:admin"], ["state:read", "subject:act_as"], ["tenant:admin", "state:read"]):
            body = {"kind": "service", "name": "k", "permissions": permissions}
            made[tuple(permissions)] = client.post("/api-keys", json=body).json()["api_key"]
    for permissions, key in made.items():
        headers = {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=here.url + "/v1", headers=headers) as client:
            for path, named in (("/export", {}), ("/threads/t/export", {"subject_id": "ada"})):
                answer = client.post(path, json=recipient | named)
                assert (answer.status_code, answer.json()["code"]) == (403, "permission-denied"), (permissions, path)
            answer = client.post("/import", content=b"x")
            assert (answer.status_code, answer.json()["code"]) == (403, "permission-denied"), permissions


def test_a_recipient_that_is_no_key_is_named(gateways):
    here, _ = gateways
    with httpx2.Client(base_url=here.url + "/v1", headers={"Authorization": f"Bearer {here.api_key}"}) as client:
        answer = client.post("/export", json={"recipient": "stateroom-transfer-1:x"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/recipient"


def test_a_large_file_for_another_deployment_is_refused_in_words(gateways, run, key_of, tmp_path):
    here, there = gateways
    with stateroom.Client(here.url, here.api_key, subject="large") as client:
        client.artifacts.upload("large", os.urandom(40_000_000), name="film")
    file = tmp_path / "large.srx"
    run(here, "export", "thread", "large", "--to", key_of(here)["public_key"], "-o", file, "--subject", "large")
    done = run(there, "import", file, code=1)
    assert "import-for-other" in done.stderr.decode()


def test_a_tenant_transfers_one_thing_at_a_time(gateways, key_of):
    here, _ = gateways
    recipient = {"recipient": key_of(here)["public_key"]}
    with stateroom.Client(here.url, here.api_key, subject="slow") as client:
        client.artifacts.upload("slow", os.urandom(40_000_000), name="film")
    headers = {"Authorization": f"Bearer {here.api_key}"}
    slow = recipient | {"subject_id": "slow"}
    with httpx2.Client(base_url=here.url + "/v1", headers=headers) as client:
        with client.stream("POST", "/threads/slow/export", json=slow) as first:
            assert first.status_code == 200
            second = client.post("/export", json=recipient)
            assert (second.status_code, second.json()["code"]) == (429, "transfer-busy")
            for _ in first.iter_bytes():
                pass
        assert client.post("/threads/slow/export", json=slow).status_code == 200
