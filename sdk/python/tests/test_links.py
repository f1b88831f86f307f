"""Links of threads: both clients say them, take them away, and list and delete families."""

import asyncio
import inspect

import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, packed, problem
from stateroom import AsyncClient, Client, Conflict, ThreadParent

WHEN = "2026-11-21T10:00:00Z"
PARENT = {"thread_id": "trip", "namespace": "sub", "checkpoint_id": "c1", "absent": True}


def thread(name="t", **more):
    return {
        "thread_id": name, "agent": None, "status": "active", "tier": "hot", "strict": False, "client_share": False,
        "created_at": WHEN, "updated_at": WHEN, "head_id": None, **more,
    }  # fmt: skip


@pytest.fixture(params=[Client, AsyncClient])
def run(request):
    """Makes a client of either kind that gets these answers; gives the script and what drives a method."""

    def make(*answers):
        script = Script(*answers)
        clock = FakeAsyncClock() if request.param is AsyncClient else FakeClock()
        made = request.param(URL, API_KEY, transport=script.transport, clock=clock).thread("t")

        def call(name, *args, **kwargs):
            found = getattr(made, name)(*args, **kwargs)
            if inspect.iscoroutine(found):
                return asyncio.run(found)
            return asyncio.run(_all(found)) if hasattr(found, "__aiter__") else found

        return script, call

    return make


async def _all(found):
    return [each async for each in found]


def test_a_thread_says_what_it_was_begun_from(run):
    script, call = run(packed(thread(parent=PARENT), 201))
    made = call("link", "trip", namespace="sub", checkpoint_id="c1")
    assert made.parent == ThreadParent(thread_id="trip", namespace="sub", checkpoint_id="c1", absent=True)
    [request] = script.requests
    assert (request.method, request.url.path) == ("PUT", "/v1/threads/t/parent")
    assert msgspec.msgpack.decode(request.content) == {
        "thread_id": "trip", "namespace": "sub", "checkpoint_id": "c1",
    }  # fmt: skip


def test_a_thread_without_a_parent_shows_none(run):
    _, call = run(packed(thread()))
    assert call("info").parent is None


def test_a_circle_is_a_conflict(run):
    _, call = run(problem(409, "link-circular"))
    with pytest.raises(Conflict) as caught:
        call("link", "t")
    assert caught.value.code == "link-circular"


def test_a_link_is_taken_away(run):
    script, call = run(packed(None, 204))
    assert call("unlink") is None
    assert [(each.method, each.url.path) for each in script.requests] == [("DELETE", "/v1/threads/t/parent")]


def test_children_come_page_by_page(run):
    script, call = run(
        packed({"threads": [thread("b", parent=PARENT), thread("c")], "next_cursor": "more"}),
        packed({"threads": [thread("d")], "next_cursor": None}),
    )
    assert [each.thread_id for each in call("children")] == ["b", "c", "d"]
    assert [(each.url.path, dict(each.url.params).get("cursor")) for each in script.requests] == [
        ("/v1/threads/t/children", None),
        ("/v1/threads/t/children", "more"),
    ]


def test_a_family_is_deleted_when_one_says_so(run):
    script, call = run(packed(None, 204), packed(None, 204))
    assert call("delete")
    script, call = run(packed(None, 204))
    assert call("delete", family=True)
    assert [(each.method, each.url.path, each.url.query) for each in script.requests] == [
        ("DELETE", "/v1/threads/t", b"family=true")
    ]
