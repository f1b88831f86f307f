"""Archiving, restoring, and waiting for a thaw: both clients, and the LangGraph saver's four ways in."""

import asyncio
import copy

import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, checkpoint, packed, problem, receipt
from stateroom import ArchiveUnavailable, AsyncClient, Client, ThreadArchived
from stateroom.langgraph import StateroomSaver

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}}


class Run:
    """A client of either kind, driven in the same way."""

    def __init__(self, kind, *answers):
        self.clock = FakeAsyncClock() if kind == "async" else FakeClock()
        self.script = Script(*answers)
        made = AsyncClient if kind == "async" else Client
        self.thread = made(URL, API_KEY, transport=self.script.transport, clock=self.clock).thread("t")

    def __call__(self, name, *args, **kwargs):
        found = getattr(self.thread, name)(*args, **kwargs)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    @property
    def asked(self):
        return [(request.method, request.url.path) for request in self.script.requests]


@pytest.fixture(params=["blocking", "async"])
def kind(request):
    return request.param


def move(tier, job_id=None):
    if job_id is not None:
        return packed({"job_id": job_id}, 202)
    return info(archive("ready") if tier == "archive" else None)


def archive(state, job_id="j", *, retry_after_seconds=0.0, progress=None):
    return {
        "state": state, "storage_class": "GLACIER", "checkpoints": 3, "pending_writes": 0, "hot_bytes": 10,
        "size_bytes": 9, "archived_at": "2026-11-21T10:00:00Z", "retry_after_seconds": retry_after_seconds,
        "progress": progress, "job_id": job_id,
    }  # fmt: skip


def info(found=None, **more):
    when = "2026-11-21T10:00:00Z"
    body = {
        "thread_id": "t", "agent": None, "status": "active", "tier": "archive" if found else "hot", "strict": False,
        "client_share": False, "created_at": when, "updated_at": when, "head_id": "c",
    }  # fmt: skip
    return packed(body | ({"archive": found} if found else {}) | more)


def frozen(state="frozen", seconds="18000", **extra):
    return problem(409, "thread-archived", retryable=True, headers={"retry-after": seconds}, state=state, **extra)


def test_a_refusal_says_how_far_the_thread_is_and_so_does_its_copy(kind):
    run = Run(kind, frozen("thawing", "3600", progress=0.25))
    with pytest.raises(ThreadArchived) as caught:
        run("load")
    for error in (caught.value, copy.copy(caught.value)):
        assert (error.state, error.progress, error.retry_after_seconds) == ("thawing", 0.25, 3600)
    assert run.clock.slept == []  # an hour is beyond the budget of a call
    assert len(run.asked) == 1


def test_archiving_is_asked_for(kind):
    run = Run(kind, move("hot", "j"))
    assert run("archive", storage_class="GLACIER").job_id == "j"
    [request] = run.script.requests
    assert (request.method, request.url.path, request.url.query) == (
        "POST", "/v1/threads/t/archive", b"storage_class=GLACIER",
    )  # fmt: skip
    with pytest.raises(ArchiveUnavailable):
        Run(kind, problem(409, "archive-unavailable"))("archive")


def test_restoring_does_not_wait_unless_it_is_told_to(kind):
    run = Run(kind, move("archive", "j"))
    assert (run("restore").tier, run.asked) == ("archive", [("POST", "/v1/threads/t/restore")])
    run = Run(kind, move("hot"))
    assert run("restore", wait_seconds=10).tier == "hot"
    assert run.clock.slept == []


def test_restoring_looks_as_often_as_the_thaw_says(kind):
    thawing = archive("thawing", retry_after_seconds=40.0, progress=0.5)
    run = Run(kind, move("archive", "j"), info(archive("frozen")), info(thawing), info(archive("ready")), info())
    assert run("restore", wait_seconds=3600).tier == "hot"
    assert run.clock.slept == [0.25, 0.5, 40.0, 60.0]


def test_restoring_waits_no_longer_than_it_may(kind):
    run = Run(kind, move("archive", "j"), info(archive("thawing", retry_after_seconds=40.0)))
    with pytest.raises(ThreadArchived):
        run("restore", wait_seconds=100)
    assert sum(run.clock.slept) == 100


def test_a_restore_that_ended_in_vain_is_told(kind):
    run = Run(kind, move("archive", "j"), info(archive("ready", None)))
    with pytest.raises(ThreadArchived, match="restore ended"):
        run("restore", wait_seconds=100)
    assert len(run.clock.slept) == 1


# --- the saver: what is written and read waits for the thaw, if it may


VALUES = {
    "id": "c2", "v": 4, "ts": "2026-11-21T10:00:00Z", "channel_values": {"a": 1}, "channel_versions": {"a": "1"},
    "versions_seen": {}, "updated_channels": None,
}  # fmt: skip
ACTS = {
    "get_tuple": lambda saver: saver.get_tuple(CONFIG),
    "aget_tuple": lambda saver: saver.aget_tuple(CONFIG),
    "list": lambda saver: list(saver.list(CONFIG)),
    "alist": lambda saver: _all(saver.alist(CONFIG)),
    "put": lambda saver: saver.put(CONFIG, VALUES, {"step": 1}, {"a": "1"}),
    "aput": lambda saver: saver.aput(CONFIG, VALUES, {"step": 1}, {"a": "1"}),
    "put_writes": lambda saver: saver.put_writes(CONFIG, [("a", 1)], "task"),
    "aput_writes": lambda saver: saver.aput_writes(CONFIG, [("a", 1)], "task"),
    "copy_thread": lambda saver: saver.copy_thread("t", "u"),
    "acopy_thread": lambda saver: saver.acopy_thread("t", "u"),
    "prune": lambda saver: saver.prune(["t"]),
    "aprune": lambda saver: saver.aprune(["t"]),
    "get_delta_channel_history": lambda saver: saver.get_delta_channel_history(config=CONFIG, channels=["a"]),
    "aget_delta_channel_history": lambda saver: saver.aget_delta_channel_history(config=CONFIG, channels=["a"]),
}


async def _all(found):
    return [each async for each in found]


class Frozen:
    """A gateway with one frozen thread, which is back as soon as it was asked for twice how far it is."""

    def __init__(self):
        self.asked = []
        self.looks = 0

    def __call__(self, request):
        verb = (request.method, request.url.path.removeprefix("/v1"))
        self.asked.append(verb)
        if verb == ("POST", "/threads/t/restore"):
            return move("archive", "j")
        if verb == ("GET", "/threads/t"):
            self.looks += 1
            return info() if self.looks > 1 else info(archive("ready"))
        pruned = verb[1] == "/threads:prune"
        named = msgspec.msgpack.decode(request.content).get("thread_ids", ["t"]) if pruned else ["t"]
        if self.looks < 2 and "t" in named:
            return frozen()
        return self.answer(verb)

    def answer(self, verb):
        method, path = verb
        if path.endswith("/channel-history"):
            return packed({"channels": {}})
        if path.endswith("/copy"):
            return packed({"thread_id": "u", "checkpoints": 1, "pending_writes": 0}, 201)
        if path == "/threads:prune":
            return packed({"threads": 1, "checkpoints": 0, "pending_writes": 0})
        if "/writes/" in path and method == "POST":
            return packed({"stored": 1, "unchanged": 0})
        if method == "POST":
            return receipt("c2")
        if path.endswith("/checkpoints"):
            return packed({"checkpoints": [], "next_cursor": None})
        body = msgspec.msgpack.decode(checkpoint("c", channels={}, pending_writes=[]).content)
        return packed(body)


def act(name, **options):
    script = Script(Frozen())
    gateway = script.answers[0]
    saver = StateroomSaver(
        URL, API_KEY, subject="u", transport=lambda: script.transport, async_transport=lambda: script.transport,
        **options,
    )  # fmt: skip

    async def run():
        try:
            found = ACTS[name](saver)
            return await found if asyncio.iscoroutine(found) else found
        finally:
            await saver.aclose()

    return gateway, run


@pytest.mark.parametrize("name", ACTS)
async def test_the_saver_brings_a_frozen_thread_back_and_goes_on(name):
    gateway, run = act(name, restore_seconds_max=5.0)
    await run()
    restored = gateway.asked.index(("POST", "/threads/t/restore"))
    assert gateway.asked[-1] == gateway.asked[0]
    assert gateway.asked[restored + 1 :].count(("GET", "/threads/t")) == 2


@pytest.mark.parametrize("name", ACTS)
async def test_a_saver_that_may_not_wait_asks_for_nothing(name):
    gateway, run = act(name)
    with pytest.raises(ThreadArchived):
        await run()
    assert len(gateway.asked) == 1


async def test_every_thread_of_a_prune_is_pruned_when_one_of_them_is_frozen():
    gateway, _ = act("aprune")
    script = Script(gateway)
    async with StateroomSaver(
        URL, API_KEY, subject="u", async_transport=lambda: script.transport, restore_seconds_max=5.0
    ) as saver:
        await saver.aprune(["s", "t"])
    bodies = [msgspec.msgpack.decode(each.content) for each in script.requests if each.url.path == "/v1/threads:prune"]
    assert [body["thread_ids"] for body in bodies] == [["s", "t"], ["s"], ["t"], ["t"]]


SEGMENTS = {"segments": 2, "checkpoints": 9, "pending_writes": 1, "hot_bytes": 5, "size_bytes": 4}


def test_old_checkpoints_are_asked_to_be_moved(kind):
    run = Run(kind, move("hot", "j"))
    assert run("archive_old", 2_592_000.5, keep_last=20).job_id == "j"
    [request] = run.script.requests
    assert (request.method, request.url.path, request.url.query) == (
        "POST", "/v1/threads/t/archive", b"older_than_seconds=2592000&keep_last=20",
    )  # fmt: skip


def test_a_thread_says_what_is_in_segments(kind):
    shown = Run(kind, info(segments=SEGMENTS))("info").segments
    assert (shown.segments, shown.checkpoints) == (2, 9)
    assert Run(kind, info())("info").segments is None


def ranged(*numbers, **restoring):
    """What a thread shows of segments of these numbers."""
    each = {"volume": 1, "first_id": "a", "last_id": "b", "checkpoints": 3}
    return {**SEGMENTS, "ranges": [{"segment": number, **each} for number in numbers], **restoring}


def test_restoring_one_segment_waits_for_that_one(kind):
    thawing = {"job_id": "j", "state": "thawing", "retry_after_seconds": 20.0, "progress": 0.5}
    run = Run(
        kind, move("archive", "j"), info(segments=ranged(1, 2, restoring=thawing)), info(segments=ranged(1, 2)),
        info(segments=ranged(1)),
    )  # fmt: skip
    assert run("restore", wait_seconds=600, segment=2).tier == "hot"
    assert run.script.requests[0].url.query == b"segment=2"
    assert run.clock.slept == [0.25, 20.0, 40.0]


def test_restoring_waits_until_nothing_is_in_segments(kind):
    run = Run(kind, move("archive", "j"), info(segments=SEGMENTS), info(segments=SEGMENTS), info())
    assert run("restore", wait_seconds=60).tier == "hot"
    assert run.clock.slept == [0.25, 0.5, 1.0]
