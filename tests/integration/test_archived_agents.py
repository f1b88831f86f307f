"""Real LangGraph agents whose threads are archived: what is read is the same, to the byte, and they go on.

Also the vocabulary of LangGraph Server's TTL, said through the saver about hot and archived threads.
"""

import json
import operator
import time
from typing import Annotated, TypedDict
from uuid import uuid4

import httpx
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from examples.state_upgrade_agent import begin, build, register
from stateroom import Client
from stateroom.langgraph import StateroomSaver

NAME, CITY = "Ada Lovelace", "Lisbon"
JSON, PACKED = "application/json", "application/msgpack"
WAIT_SECONDS = 60.0


class Tenant:
    """A subject's agents on a gateway, and what a plain HTTP client sees of their threads."""

    def __init__(self, gateway):
        self.subject, self.schema = f"user-{uuid4()}", f"travel_{uuid4().hex[:12]}"
        self.gateway = gateway
        headers = {"Authorization": f"Bearer {gateway.api_key}", "Stateroom-Subject": self.subject}
        self.http = httpx.Client(base_url=f"{gateway.url}/v1", headers=headers, timeout=30)
        self.client = Client(gateway.url, gateway.api_key, subject=self.subject)
        self.savers = {}
        register(self.client, self.schema, (1, 2, 3))

    def saver(self, number):
        if number not in self.savers:
            version = f"{self.schema}@{number}" if number else None
            self.savers[number] = StateroomSaver(
                self.gateway.url, self.gateway.api_key, subject=self.subject, state_version=version
            )
        return self.savers[number]

    def graph(self, number):
        return build(number, self.saver(number))

    def archive(self, thread_id):
        self.client.thread(thread_id).archive()
        deadline = time.monotonic() + WAIT_SECONDS
        while self.tier(thread_id) != "archive":
            assert time.monotonic() < deadline
            time.sleep(0.05)  # a job of another process

    def tier(self, thread_id):
        return self.client.thread(thread_id).info().tier

    def ids(self, thread_id):
        found = self.http.get(f"/threads/{thread_id}/checkpoints").raise_for_status().json()["checkpoints"]
        return [each["checkpoint_id"] for each in found]

    def bodies(self, thread_id, ids):
        """What reading answers, at the version it was saved at and at every other one."""
        path = f"/threads/{thread_id}/checkpoints"
        urls = [
            *(f"{path}/{each}?view={view}" for each in ("latest", *ids) for view in ("state", "channels", "none")),
            f"{path}?view=channels", f"{path}?view=state&limit=2", f"{path}?status=waiting",
            *(f"{path}/{each}/channel-history?channel=msgs&channel=messages" for each in ("latest", *ids)),
        ]  # fmt: skip
        found = {}
        for url in urls:
            for accept in (JSON, PACKED):
                for number in (None, 1, 2, 3):
                    headers = {"Accept": accept}
                    if number is not None:
                        headers["Accept-State-Version"] = f"{self.schema}={number}"
                    answer = self.http.get(url, headers=headers)
                    content = answer.content
                    if answer.status_code >= 400:
                        content = json.loads(content)["code"]
                    told = {name: answer.headers.get(name) for name in ("etag", "stateroom-token", "content-type")}
                    found[url, accept, number] = (answer.status_code, told, content)
        return found

    def close(self):
        self.http.close()
        self.client.close()
        for saver in self.savers.values():
            saver.close()


@pytest.fixture
def tenant(running_gateway):
    made = Tenant(running_gateway)
    yield made
    made.close()


def at(thread_id):
    return {"configurable": {"thread_id": thread_id}}


def test_an_agent_with_a_delta_channel_reads_the_same_at_every_version_and_goes_on(tenant):
    thread = "trip"
    tenant.graph(1).invoke(begin(1, NAME, CITY), at(thread), durability="sync")
    ids = tenant.ids(thread)
    hot = tenant.bodies(thread, ids)
    refused = {where: content for where, (status, _, content) in hot.items() if status != 200}
    assert refused == {}
    history = [each.values for each in tenant.graph(3).get_state_history(at(thread))]

    tenant.archive(thread)
    assert tenant.bodies(thread, ids) == hot
    waiting = tenant.graph(3).get_state(at(thread))
    assert [each.value for each in waiting.interrupts] == [f"Shall I book {CITY} for {NAME}?"]
    assert [each.values for each in tenant.graph(3).get_state_history(at(thread))] == history
    assert tenant.tier(thread) == "archive"  # nothing that was read brought it back

    assert tenant.client.thread(thread).restore(wait_seconds=WAIT_SECONDS).tier == "hot"
    assert tenant.bodies(thread, ids) == hot

    # Archived once more: the answer of a person, weeks later, is a write, which brings it back by itself.
    tenant.archive(thread)
    done = tenant.graph(3).invoke(Command(resume="yes"), at(thread), durability="sync")
    assert done["messages"][-1] == f"booked: {CITY}, window seat, for {NAME}"
    assert done["messages"][0] == f"asked: a trip to {CITY}"
    assert tenant.tier(thread) == "hot"


# --- LangGraph Server's words ---------------------------------------------------------------------------------------


class Count(TypedDict):
    total: Annotated[int, operator.add]


def counter(saver):
    builder = StateGraph(Count)
    for before, name in zip((START, "a", "b"), ("a", "b", "c"), strict=True):
        builder.add_node(name, lambda _: {"total": 1})
        builder.add_edge(before, name)
    builder.add_edge("c", END)
    return builder.compile(checkpointer=saver)


@pytest.fixture
def three(tenant):
    """A saver, and three threads with a history; the second and the third are archived."""
    saver = tenant.saver(None)
    for name in ("hot", "cold", "other"):
        counter(saver).invoke({"total": 0}, at(name), durability="sync")
    tenant.archive("cold")
    tenant.archive("other")
    return saver


def count(saver, thread_id):
    return len(list(saver.list(at(thread_id))))


async def test_keep_latest_prunes_hot_and_archived_threads_to_their_heads(tenant, three):
    try:
        assert count(three, "hot") == count(three, "cold") == 5
        await three.aprune(["hot", "cold", "unknown"], strategy="keep_latest")
    finally:
        await three.aclose()
    assert count(three, "hot") == count(three, "cold") == 1
    for thread_id in ("hot", "cold"):
        assert counter(three).get_state(at(thread_id)).values == {"total": 3}
    assert (count(three, "other"), tenant.tier("other")) == (5, "archive")
    # What is left goes on.
    assert counter(three).invoke({"total": 1}, at("cold"), durability="sync") == {"total": 7}


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
async def test_deleting_takes_hot_and_archived_threads_and_restores_none(tenant, three, strategy):
    try:
        await three.aprune(["hot", "cold", "unknown"], strategy=strategy)
    finally:
        await three.aclose()
    for thread_id in ("hot", "cold"):
        assert tenant.client.thread(thread_id).info() is None
        assert three.get_tuple(at(thread_id)) is None
    assert tenant.tier("other") == "archive"
    assert counter(three).get_state(at("other")).values == {"total": 3}
    if strategy == "delete":  # the name is free
        assert counter(three).invoke({"total": 0}, at("cold"), durability="sync") == {"total": 3}
        assert count(three, "cold") == 5


async def test_a_thread_of_langgraph_servers_words_deleted_or_copied_from_the_archive(tenant, three):
    try:
        await three.acopy_thread("cold", "copied")
        await three.adelete_thread("other")
    finally:
        await three.aclose()
    assert count(three, "copied") == count(three, "cold") == 5
    assert tenant.client.thread("other").info() is None
