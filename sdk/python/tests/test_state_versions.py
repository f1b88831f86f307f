"""What a client says about state versions: on every save and write what it writes, on every read what it knows."""

import msgspec
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, checkpoint, packed, problem, receipt
from stateroom import (
    AsyncClient,
    Client,
    NotConfigured,
    NotFound,
    StateSchemaExists,
    StateSchemaMismatch,
    StateSchemaNotFound,
    StateTooNew,
    StateUpcastFailed,
    StateVersion,
)
from stateroom.langgraph import SKELETON, StateroomSaver

THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
PARENT = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "parent"}}
VERSION = "00000000000000000000000000000007.0000000000000001"
OLDER = "00000000000000000000000000000002.0000000000000009"


class Both:
    """One script for both kinds of clients, so that a test of one is a test of the other."""

    def __init__(self, kind, *answers, **options):
        self.script = Script(*answers)
        self.kind = kind
        clock = FakeClock() if kind is Client else FakeAsyncClock()
        self.client = kind(URL, API_KEY, subject="u", transport=self.script.transport, clock=clock, **options)

    async def __call__(self, result):
        return result if self.kind is Client else await result

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self(self.client.close())


def sent(request):
    return msgspec.msgpack.decode(request.content)


def accepted(script):
    return [request.headers.get("accept-state-version") for request in script.requests]


def saver_of(*answers, **options):
    script = Script(*answers)
    return StateroomSaver(URL, API_KEY, subject="u", transport=lambda: script.transport, **options), script


def langgraph_checkpoint(values):
    return {
        "v": 4,
        "id": "child",
        "ts": "2026-11-22T10:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, VERSION),
        "versions_seen": {},
        "updated_channels": None,
    }


def channel(value, version=VERSION):
    encoding, data = JsonPlusSerializer().dumps_typed(value)
    return {"version": version, "encoding": encoding, "data": data}


def test_a_state_version_is_its_schema_and_a_number():
    assert StateVersion.of("travel@2") == StateVersion.of(StateVersion("travel", 2)) == StateVersion("travel", 2)
    assert str(StateVersion("my.travel:eu-1", 12)) == "my.travel:eu-1@12"


@pytest.mark.parametrize(
    "written", ["", "travel", "travel@", "@2", "travel@0", "travel@-1", "travel@02", "tra vel@2", "travel@2 ",
                "travel@2147483648", "travel@1.0", "travel@٢", "a=b@1", "a,b@1", "a@b@1", 2,
                ("travel", 2), "x" * 65 + "@1", StateVersion("travel", 0), StateVersion("", 1)]
)  # fmt: skip
@pytest.mark.parametrize(
    "make",
    [
        lambda written: Client(URL, API_KEY, state_version=written),
        lambda written: AsyncClient(URL, API_KEY, state_version=written),
        lambda written: Client(URL, API_KEY).thread("t", state_version=written),
        lambda written: AsyncClient(URL, API_KEY).thread("t", state_version=written),
        lambda written: StateroomSaver(URL, API_KEY, state_version=written),
        lambda written: StateroomSaver(URL, API_KEY, state_version={"": written}),
    ],
)
def test_what_is_no_state_version_is_refused_before_any_request(make, written):
    with pytest.raises(NotConfigured):
        make(written)


def test_a_saver_knows_one_version_of_a_schema():
    with pytest.raises(NotConfigured, match="one version of travel"):
        StateroomSaver(URL, API_KEY, state_version={"": "travel@2", "inner": "travel@1"})


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_thread_says_its_version_on_every_save_and_every_read_of_state(kind):
    async with Both(kind, checkpoint(state={}), state_version="travel@2") as both:
        thread = both.client.thread("t")
        await both(thread.load())
        await both(thread.at("c1"))
        await both(thread.fork("c1"))
        both.script.answers = [receipt()]
        await both(thread.save({"a": 1}))
        await both(thread.patch(set={"a": 2}))
        assert accepted(both.script) == ["travel=2"] * 3 + [None] * 2
        for request in both.script.requests[3:]:
            body = sent(request)
            assert (body["state_schema"], body["state_version"]) == ("travel", 2)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_fork_goes_on_at_the_version_of_its_thread(kind):
    async with Both(kind, checkpoint(state={})) as both:
        forked = await both(both.client.thread("t", state_version="travel@3").fork("c1"))
        both.script.answers = [receipt()]
        await both(forked.save({}))
        body = sent(both.script.requests[-1])
        assert (body["state_schema"], body["state_version"]) == ("travel", 3)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_thread_and_a_save_may_say_another_version_than_the_client(kind):
    async with Both(kind, checkpoint(state={}), state_version="travel@2") as both:
        thread = both.client.thread("t", state_version="billing@5")
        await both(thread.load())
        assert accepted(both.script) == ["billing=5"]
        both.script.answers = [receipt()]
        await both(thread.save({}))
        await both(thread.save({}, state_schema="other", state_version=1))
        bodies = [sent(request) for request in both.script.requests[1:]]
        assert [(body["state_schema"], body["state_version"]) for body in bodies] == [("billing", 5), ("other", 1)]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_without_a_version_nothing_is_said(kind):
    async with Both(kind, checkpoint(state={})) as both:
        thread = both.client.thread("t")
        await both(thread.load())
        both.script.answers = [receipt()]
        await both(thread.save({}))
        assert accepted(both.script) == [None, None]
        assert "state_schema" not in sent(both.script.requests[1])


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_once_result_is_no_state_and_has_no_version(kind):
    stored = packed({"stored": 2, "unchanged": 0})
    older = problem(404, "not-found")
    async with Both(kind, older, packed({"writes": []}), stored, state_version="travel@2") as both:
        await both(both.client.thread("t").once("book", lambda: "booked"))
        assert accepted(both.script) == [None, None, None]
        assert "state_schema" not in sent(both.script.requests[0]) | sent(both.script.requests[2])


def test_a_saver_says_its_version_on_every_save_write_and_read():
    saver, script = saver_of(receipt("child"), state_version="travel@2")
    with saver:
        saver.put(PARENT, langgraph_checkpoint({"a": 1}), {}, {"a": VERSION})
        script.answers = [packed({"stored": 1, "unchanged": 0})]
        saver.put_writes(PARENT, [("a", 1)], "task")
        for request in script.requests:
            body = sent(request)
            assert (body["state_schema"], body["state_version"]) == ("travel", 2)
        script.requests.clear()
        script.answers = [checkpoint(channels={}, pending_writes=[])]
        saver.get_tuple(THREAD)
        script.answers = [packed({"checkpoints": [], "next_cursor": None})]
        list(saver.list(THREAD))
        script.answers = [packed({"channels": {}})]
        saver.get_delta_channel_history(config=THREAD, channels=["a"])
        assert accepted(script) == ["travel=2"] * 3


async def test_the_async_saver_says_the_same():
    script = Script(checkpoint(channels={}, pending_writes=[]))
    saver = StateroomSaver(
        URL, API_KEY, subject="u", async_transport=lambda: script.transport, state_version=StateVersion("travel", 2)
    )
    async with saver:
        await saver.aget_tuple(THREAD)
        script.answers = [packed({"checkpoints": [], "next_cursor": None})]
        assert [found async for found in saver.alist(None)] == []
        script.answers = [packed({"channels": {}})]
        await saver.aget_delta_channel_history(config=THREAD, channels=["a"])
        assert accepted(script) == ["travel=2"] * 3
        script.answers = [receipt("child")]
        await saver.aput(PARENT, langgraph_checkpoint({"a": 1}), {}, {"a": VERSION})
        script.answers = [packed({"stored": 1, "unchanged": 0})]
        await saver.aput_writes(PARENT, [("a", 1)], "task")
        for request in script.requests[-2:]:
            assert (sent(request)["state_schema"], sent(request)["state_version"]) == ("travel", 2)


def test_a_save_that_is_repeated_with_all_data_says_its_version_again():
    saver, script = saver_of(problem(409, "channel-unchanged-unknown"), receipt("child"), state_version="travel@2")
    with saver:
        saver.put(PARENT, langgraph_checkpoint({"user_profile": 1}), {}, {})
    bodies = [sent(request) for request in script.requests]
    assert [body["state_version"] for body in bodies] == [2, 2]
    assert ["data" in body["channels"]["user_profile"] for body in bodies] == [False, True]


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        ("", ("travel", 2)),
        ("billing:0c1e", ("billing", 1)),
        ("billing:0c1e|1", ("billing", 1)),
        ("billing:0c1e|tax:9d", ("tax", 4)),
        ("hotel:0c1e", (None, None)),
    ],
)
def test_a_subgraph_has_a_schema_of_its_own_or_none(namespace, said):
    saver, script = saver_of(
        receipt("child"), state_version={"": "travel@2", "billing": "billing@1", "billing|tax": "tax@4"}
    )
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": namespace, "checkpoint_id": "parent"}}
    with saver:
        saver.put(config, langgraph_checkpoint({"a": 1}), {}, {"a": VERSION})
        script.answers = [packed({"stored": 1, "unchanged": 0})]
        saver.put_writes(config, [("a", 1)], "task")
        script.answers = [checkpoint(channels={}, pending_writes=[])]
        saver.get_tuple(config)
    bodies = [sent(request) for request in script.requests[:2]]
    assert [(body.get("state_schema"), body.get("state_version")) for body in bodies] == [said, said]
    assert accepted(script)[2] == "billing=1, tax=4, travel=2"


def loaded(**fields):
    skeleton = {"channel_versions": {"msgs": VERSION, "gone": OLDER}, "versions_seen": {}}
    saver, _ = saver_of(
        checkpoint(pending_writes=[], channels={SKELETON: channel(skeleton, None), "name": channel("Ada")}, **fields),
        state_version="travel@2",
    )
    with saver:
        return saver.get_tuple(THREAD)


def test_a_renamed_delta_channel_keeps_its_version_and_its_counters():
    found = loaded(delta_channels=["messages"], metadata={"step": 3, "counters_since_delta_snapshot": {"msgs": [2, 3]}})
    assert found.checkpoint["channel_versions"] == {"messages": VERSION, "gone": OLDER, "name": VERSION}
    assert found.metadata == {"step": 3, "counters_since_delta_snapshot": {"messages": [2, 3]}}


def test_a_delta_channel_whose_origin_is_not_known_still_has_a_version():
    found = loaded(delta_channels=["left", "right"], metadata={"counters_since_delta_snapshot": {"msgs": [2, 3]}})
    versions = found.checkpoint["channel_versions"]
    assert versions["left"] == versions["right"] == VERSION


def test_a_delta_channel_that_was_not_renamed_is_left_alone():
    metadata = {"counters_since_delta_snapshot": {"msgs": [2, 3]}}
    found = loaded(delta_channels=["msgs"], metadata=metadata)
    assert found.checkpoint["channel_versions"] == {"msgs": VERSION, "gone": OLDER, "name": VERSION}
    assert found.metadata == metadata


def test_a_renamed_delta_channel_that_nobody_wrote_gets_no_version():
    counters = {"counters_since_delta_snapshot": {"msgs": [2, 3], "notes": [0, 3], "ticks": [0, 3]}}
    found = loaded(delta_channels=["messages", "remarks", "ticks"], metadata=counters)
    assert found.checkpoint["channel_versions"] == {"messages": VERSION, "gone": OLDER, "name": VERSION}
    renamed = {"messages": [2, 3], "remarks": [0, 3], "ticks": [0, 3]}
    assert found.metadata["counters_since_delta_snapshot"] == renamed


def test_a_delta_channel_that_nobody_wrote_gets_no_version():
    metadata = {"counters_since_delta_snapshot": {"msgs": [2, 3], "notes": [0, 3]}}
    found = loaded(delta_channels=["msgs", "notes"], metadata=metadata)
    assert found.checkpoint["channel_versions"] == {"msgs": VERSION, "gone": OLDER, "name": VERSION}
    assert found.metadata == metadata


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "state-too-new", StateTooNew),
        (409, "state-schema-mismatch", StateSchemaMismatch),
        (422, "state-upcast-failed", StateUpcastFailed),
        (404, "state-schema-not-found", StateSchemaNotFound),
        (409, "state-schema-exists", StateSchemaExists),
    ],
)
def test_problems_of_versions_are_exceptions_of_their_own_and_not_tried_again(status, code, kind):
    script = Script(problem(status, code))
    with Client(URL, API_KEY, subject="u", transport=script.transport) as client, pytest.raises(kind):
        client.thread("t", state_version="travel@2").load()
    assert len(script.requests) == 1


def test_an_unregistered_schema_is_not_taken_for_a_missing_thread():
    assert issubclass(StateSchemaNotFound, NotFound)
    script = Script(problem(404, "state-schema-not-found"))
    with Client(URL, API_KEY, subject="u", transport=script.transport) as client, pytest.raises(StateSchemaNotFound):
        client.thread("t").load()
