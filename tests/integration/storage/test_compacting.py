"""Compaction: what the new checkpoint holds, what stays, what it costs, and who wins a race."""

import asyncio
from random import Random  # noqa: TID251  seeded
from uuid import uuid4

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.checkpoints.compacting import Compacting, bumped
from storage.errors import (
    ArtifactUnknown,
    CheckpointExists,
    CheckpointNotFound,
    HeadMoved,
    IdempotencyKeyReused,
    InvalidState,
    PreconditionRequired,
    WritesPending,
)
from storage.format.pieces import GROUP_ELEMENTS_AVERAGE
from storage.model import ChannelValue, Compaction, FullState, Idempotency, Load, Precondition, Value
from storage.scope import Scope
from tests.support.archive_rows import opened
from tests.support.states import contents, history, load, packed, patch, put, save, state, write

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"
MESSAGES = 1000


def message(number, size=120):
    return {"id": f"m-{number}", "role": "user", "content": f"{number}." * (size // (len(str(number)) + 1))}


def plain(*elements):
    return tuple(msgpack.packb(each) for each in elements)


async def compact(store, scope, keep_last, *summary, thread_id="t1", channel="messages", **parts):
    wanted = Compaction(thread_id=thread_id, channel=channel, keep_last=keep_last, summary=plain(*summary), **parts)
    return await store.compacting.compact(scope, wanted)


@pytest.mark.parametrize("count", [3, 40, 1000, 5000])  # inline, an open tail, closed groups, index pieces
@pytest.mark.parametrize("keep_last", [0, 1, 2, 30, 400, 10_000])
async def test_the_summary_and_the_newest_elements_are_the_new_list(store, scope, count, keep_last):
    messages = [message(number) for number in range(count)]
    before = await save(store, scope, content=state(messages=messages, note="kept"), step=4)
    after = await compact(store, scope, keep_last, "so far", {"and": "more"})
    loaded = await load(store, scope)
    newest = messages[-keep_last:] if keep_last else []
    assert contents(loaded) == {"messages": ["so far", {"and": "more"}, *newest], "note": "kept"}
    assert (loaded.parent_id, loaded.step, loaded.source) == (before.checkpoint_id, 5, "compact")
    assert (after.created, after.checkpoint_id) == (True, loaded.checkpoint_id)
    assert contents(await load(store, scope, checkpoint_id=before.checkpoint_id))["messages"] == messages


async def test_without_a_summary_only_the_newest_stay_and_a_short_list_stays_whole(store, scope):
    await save(store, scope, content=state(messages=[1, 2, 3]))
    await compact(store, scope, 2)
    assert contents(await load(store, scope))["messages"] == [2, 3]
    await compact(store, scope, 2)
    assert contents(await load(store, scope))["messages"] == [2, 3]
    assert len(await history(store, scope, thread_id="t1")) == 3


async def test_what_is_left_out_is_as_the_head_has_it(store, scope):
    await save(
        store, scope, content=state(messages=[1]), status="done", agent="travel", run_id="run-1", metadata={"plan": "p"}
    )
    await compact(store, scope, 0)
    loaded = await load(store, scope)
    assert (loaded.status, loaded.agent, loaded.run_id, loaded.metadata) == ("done", "travel", None, {"plan": "p"})
    assert (await store.threads.get(scope, "t1")).status == "done"
    await compact(store, scope, 0, status="waiting", agent="other", run_id="run-2", metadata={})
    loaded = await load(store, scope)
    assert (loaded.status, loaded.agent, loaded.run_id, loaded.metadata) == ("waiting", "other", "run-2", {})


async def test_a_list_grows_on_after_a_compaction(store, scope):
    await save(store, scope, content=state(messages=[message(number) for number in range(300)]))
    saved = await compact(store, scope, 100, "so far")
    for number in range(300, 320):
        saved = await save(
            store,
            scope,
            content=patch(append={"messages": [message(number)]}),
            precondition=Precondition(saved.checkpoint_id),
        )
    expected = ["so far", *(message(number) for number in range(200, 320))]
    assert contents(await load(store, scope))["messages"] == expected


# --- costs -----------------------------------------------------------------------------------------------------------


async def stored(admin, scope):
    row = await admin.fetchrow(
        "SELECT (SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1) AS checkpoints, count(*) AS chunks,"
        " coalesce(sum(length(envelope)), 0) + (SELECT sum(length(manifest)) FROM stateroom.checkpoints"
        "  WHERE tenant_id = $1) AS bytes FROM stateroom.chunks WHERE tenant_id = $1",
        scope.tenant_id,
    )
    return row["checkpoints"], row["chunks"], row["bytes"]


def incompressible(count, size=1100):
    """Each more than a group must have at least, so that a group ends wherever an element says so."""
    random = Random(7)  # noqa: S311
    return [random.randbytes(size) for _ in range(count)]


@pytest.mark.parametrize("keep_last", [0, 10, 500, 990])
async def test_a_compaction_of_a_thousand_messages_writes_a_row_and_some_groups(store, scope, admin, keep_last):
    messages = incompressible(MESSAGES)
    sealer = await store.keys.sealer(scope)
    ends_a_group = [sealer.boundary(msgpack.packb(each)) % GROUP_ELEMENTS_AVERAGE == 0 for each in messages]
    kept = messages[-keep_last:] if keep_last else []
    # The first group that is kept begins elsewhere now. From where an element ends it, all groups are those of before;
    # if none does, nor are those that 64 KiB end, and the open tail is cut two by two.
    moved = next((n for n, ends in enumerate(ends_a_group[MESSAGES - keep_last :], 1) if ends), None)
    await save(store, scope, content=state(messages=messages))
    before = await stored(admin, scope)
    assert before[2] > MESSAGES * 1000
    await compact(store, scope, keep_last, "so far")
    after = await stored(admin, scope)
    assert contents(await load(store, scope))["messages"] == ["so far", *kept]
    assert after[0] - before[0] == 1
    assert after[1] - before[1] <= 1 + (moved // 50 if moved else keep_last // 50 + min(keep_last, 64) // 2)
    assert after[2] - before[2] < 1200 * (keep_last if moved is None else moved) + 4096


async def test_groups_that_are_dropped_are_not_read(store, scope, admin):
    await save(store, scope, content=state(messages=incompressible(MESSAGES)))
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=False))
    oldest = await admin.fetchval(
        "SELECT substring(piece_ids FOR 17) FROM stateroom.checkpoints WHERE tenant_id = $1 AND checkpoint_id = $2",
        scope.tenant_id,
        loaded.checkpoint.checkpoint_id,
    )
    await admin.execute("DELETE FROM stateroom.chunks WHERE tenant_id = $1 AND piece_id = $2", scope.tenant_id, oldest)
    await compact(store, scope, 400)
    assert len(contents(await load(store, scope))["messages"]) == 400


# --- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "after"),
    [
        (None, None),
        (7, 8),
        (2.5, 3.0),
        ("7", "8"),
        (f"{9:032}.{1234:016}", f"{10:032}.{1234:016}"),
    ],
)
def test_a_version_is_counted_on(version, after):
    assert bumped(version) == after


@pytest.mark.parametrize("version", ["", "v1", "9", "99.5"])
def test_a_version_that_cannot_be_counted_on_is_refused(version):
    with pytest.raises(InvalidState) as refused:
        bumped(version)
    assert refused.value.pointer == "/channel"


async def test_an_adapters_list_gets_a_newer_version_and_the_others_keep_theirs(store, scope):
    ext = msgpack.packb([msgpack.ExtType(5, b"one"), msgpack.ExtType(5, b"two")])
    channels = {
        "~langgraph": ChannelValue(None, packed({"v": 4})),
        "messages": ChannelValue(f"{7:032}.5", Value("msgpack", ext)),
        "other": ChannelValue(f"{3:032}.5", Value("json", b"1")),
    }
    await save(store, scope, content=FullState(channels), metadata={"step": 3}, delta_channels=("log",))
    await compact(store, scope, 1, msgpack.ExtType(5, b"summary"))
    loaded = await load(store, scope)
    assert loaded.channels["messages"].version == f"{8:032}.5"
    assert msgpack.unpackb(loaded.channels["messages"].value.data) == [
        msgpack.ExtType(5, b"summary"),
        msgpack.ExtType(5, b"two"),
    ]
    assert (loaded.channels["other"].version, loaded.channels["other"].value) == (f"{3:032}.5", Value("json", b"1"))
    assert (loaded.delta_channels, loaded.metadata) == (("log",), {"step": 3})


async def test_what_is_no_list_is_refused(store, scope):
    channels = {
        "text": ChannelValue(None, packed("x")),
        "long": ChannelValue(None, packed({"x": "y" * 9000})),
        "json": ChannelValue(None, Value("json", b"[1]")),
        "delta": ChannelValue(None, packed([1])),
    }
    await save(store, scope, content=FullState(channels), delta_channels=("delta",))
    for channel in (*channels, "absent"):
        with pytest.raises(InvalidState) as refused:
            await compact(store, scope, 1, channel=channel)
        assert refused.value.pointer == "/channel"
    assert len(await history(store, scope, thread_id="t1")) == 1


# --- who wins --------------------------------------------------------------------------------------------------------


async def test_a_named_head_is_compared_and_a_strict_thread_needs_one(store, scope):
    first = await save(store, scope, content=state(messages=[1, 2, 3]))
    second = await save(store, scope, content=state(messages=[1, 2, 3, 4]))
    with pytest.raises(HeadMoved) as moved:
        await compact(store, scope, 1, precondition=Precondition(first.checkpoint_id))
    assert moved.value.head_id == second.checkpoint_id
    await store.threads.put(scope, "t1", strict=True, agent=None, agent_given=False)
    with pytest.raises(PreconditionRequired):
        await compact(store, scope, 1)
    await compact(store, scope, 1, precondition=Precondition(second.checkpoint_id))
    assert contents(await load(store, scope))["messages"] == [4]


class Interrupting:
    """Does something between what a compaction reads and what it saves, as often as it has something to do."""

    def __init__(self, store, works):
        self._states = store.states
        self._works = list(works)

    async def save(self, scope, save, share=None):
        if self._works:
            await self._works.pop(0)()
        return await self._states.save(scope, save, share)


def interrupted(store, *works):
    return Compacting(store.compacting._access, Interrupting(store, works))


async def test_a_save_in_between_is_compacted_too_unless_the_head_was_named(store, scope):
    first = await save(store, scope, content=state(messages=[1, 2, 3]))

    async def other():
        await save(store, scope, content=state(messages=[1, 2, 3, 4]))

    named = Compaction(thread_id="t1", channel="messages", keep_last=2, precondition=Precondition(first.checkpoint_id))
    with pytest.raises(HeadMoved):
        await interrupted(store, other).compact(scope, named)
    assert contents(await load(store, scope))["messages"] == [1, 2, 3, 4]

    async def another():
        await save(store, scope, content=state(messages=[1, 2, 3, 4, 5]))

    await interrupted(store, another).compact(scope, Compaction(thread_id="t1", channel="messages", keep_last=2))
    assert contents(await load(store, scope))["messages"] == [4, 5]


async def test_writes_of_tasks_are_not_left_behind(store, scope):
    first = await save(store, scope, content=state(messages=[1, 2, 3]))

    async def other():
        await put(store, scope, first.checkpoint_id, write(0, "messages", 4))

    wanted = Compaction(thread_id="t1", channel="messages", keep_last=2)
    with pytest.raises(WritesPending):
        await interrupted(store, other).compact(scope, wanted)
    with pytest.raises(WritesPending):
        await store.compacting.compact(scope, wanted)
    await save(store, scope, content=state(messages=[1, 2, 3, 4]))
    await store.compacting.compact(scope, wanted)
    assert contents(await load(store, scope))["messages"] == [3, 4]


async def test_two_compactions_at_once_make_one_line(store, scope):
    await save(store, scope, content=state(messages=list(range(10))))
    await asyncio.gather(*(compact(store, scope, 5 - number, f"s{number}") for number in range(4)))
    line = await history(store, scope, thread_id="t1")
    assert [each.parent_id for each in line[:-1]] == [each.checkpoint_id for each in line[1:]]
    assert len(line) == 5


async def test_the_same_request_again_is_answered_and_not_done_again(store, scope):
    await save(store, scope, content=state(messages=[1, 2, 3, 4]))
    key = Idempotency("k-1", b"d" * 32)
    first = await compact(store, scope, 2, "so far", idempotency=key)
    again = await compact(store, scope, 2, "so far", idempotency=key)
    assert (again.checkpoint_id, first.created, again.created) == (first.checkpoint_id, True, False)
    # Also when what it would have to stand on now would refuse it.
    await put(store, scope, first.checkpoint_id, write(0, "messages", 4))
    assert (await compact(store, scope, 2, "so far", idempotency=key)).checkpoint_id == first.checkpoint_id
    with pytest.raises(IdempotencyKeyReused):
        await compact(store, scope, 1, idempotency=Idempotency("k-1", b"e" * 32))
    assert contents(await load(store, scope))["messages"] == ["so far", 3, 4]


async def test_an_id_of_the_callers_own_makes_it_repeatable_too(store, scope):
    await save(store, scope, content=state(messages=[1, 2, 3, 4]), checkpoint_id=ID_1)
    first = await compact(store, scope, 2, "so far", checkpoint_id=ID_2)
    again = await compact(store, scope, 2, "so far", checkpoint_id=ID_2)
    assert (first.created, again.created, again.checkpoint_id) == (True, False, ID_2)
    with pytest.raises(CheckpointExists):
        await compact(store, scope, 1, "so far", checkpoint_id=ID_2)
    with pytest.raises(CheckpointExists):
        await compact(store, scope, 1, checkpoint_id=ID_1)


async def test_there_must_be_a_head(store, scope):
    with pytest.raises(CheckpointNotFound):
        await compact(store, scope, 1)
    await save(store, scope)
    for place in ({"thread_id": "t2"}, {"namespace": "other"}):
        with pytest.raises(CheckpointNotFound):
            await compact(store, scope, 1, **place)
    assert [each.thread_id for each in (await store.threads.list(scope)).items] == ["t1"]


async def test_a_summary_cannot_name_an_artifact_that_is_not_there(store, scope):
    await save(store, scope, content=state(messages=[1]))
    with pytest.raises(ArtifactUnknown) as refused:
        await compact(store, scope, 1, "a", {"file": [f"stateroom:artifact:{uuid4()}"]})
    assert refused.value.pointer == "/summary/1/file/0"


# --- large leaves ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def offloading(database, root_key):
    async with opened(database, root_key) as made:
        yield made


@pytest.mark.parametrize("keep_last", [1, 2, 7, 40, 90])
async def test_large_leaves_stay_where_they_are(offloading, scope, admin, keep_last):
    random = Random(3)  # noqa: S311
    messages = [
        {"id": number, "screenshot": random.randbytes(70_000), "tags": ["x" * 500] * 3}
        if number % 9 == 0
        else ["y" * 300] * 300  # an element that is large as a whole, without a large leaf
        if number % 10 == 1
        else {"id": number, "text": "z" * 700}
        for number in range(100)
    ]
    await save(offloading, scope, content=state(messages=messages))
    blobs = await admin.fetchval("SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1", scope.tenant_id)
    await compact(offloading, scope, keep_last, "so far")
    assert contents(await load(offloading, scope))["messages"] == ["so far", *messages[-keep_last:]]
    assert blobs > 10
    # What is new is at most the group at the cut.
    now = await admin.fetchval("SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1", scope.tenant_id)
    assert now - blobs <= 1


# --- a model ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([0, 5, 300, 1100, 5000, 70_000]), max_size=60),
    rounds=st.lists(
        st.tuples(st.integers(0, 70), st.lists(st.sampled_from([3, 900, 66_000]), max_size=3), st.integers(0, 20)),
        min_size=1,
        max_size=4,
    ),
)
async def test_any_compactions_and_appends_are_those_of_a_list(store, sizes, rounds):
    scope = Scope(uuid4(), "user-1")
    model = [f"{number}:" + "x" * size for number, size in enumerate(sizes)]
    saved = await save(store, scope, content=state(messages=model))
    for at, (keep_last, summary, more) in enumerate(rounds):
        short = [f"s{at}:" + "y" * size for size in summary]
        model = short + (model[-keep_last:] if keep_last else [])
        saved = await compact(store, scope, keep_last, *short)
        assert contents(await load(store, scope))["messages"] == model
        added = [f"a{at}.{number}:" + "z" * 700 for number in range(more)]
        model = model + added
        saved = await save(
            store,
            scope,
            content=patch(append={"messages": added}),
            precondition=Precondition(saved.checkpoint_id),
        )
    assert contents(await load(store, scope))["messages"] == model
