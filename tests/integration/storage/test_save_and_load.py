import asyncio
from datetime import UTC, datetime, timedelta

import msgpack
import pytest

from storage.clock import ManualClock
from storage.errors import (
    ChannelUnchangedUnknown,
    CheckpointExists,
    CheckpointNotFound,
    HeadMoved,
    IdempotencyKeyReused,
    InvalidState,
    PreconditionRequired,
)
from storage.model import ChannelValue, FullState, Idempotency, Load, Parent, Precondition, Value
from storage.service import Store, StoreOptions
from storage.statements.threads import checkpoints as sql
from tests.support.interleaving import Gate, Steered, blocked
from tests.support.states import contents, document, history, load, packed, patch, save, state
from tests.support.stores import DEPLOYMENT_ID

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"


async def test_what_was_saved_is_loaded(store, scope):
    saved = await save(
        store,
        scope,
        content=state(todo=["a", "b"], text=document("long", 20_000), nothing=None),
        status="waiting",
        step=5,
        source="loop",
        agent="travel",
        run_id="run-1",
        model={"name": "m-1", "temperature": 0.5},
        usage={"input_tokens": 7, "cost_micros": 12},
        metadata={"user": {"plan": "pro"}},
        state_schema="trip",
        state_version=3,
        delta_channels=("d",),
    )
    loaded = await load(store, scope)
    assert contents(loaded) == {"todo": ["a", "b"], "text": document("long", 20_000), "nothing": None}
    assert (loaded.checkpoint_id, loaded.parent_id, loaded.created_at) == (saved.checkpoint_id, None, saved.created_at)
    assert (loaded.status, loaded.step, loaded.source, loaded.agent) == ("waiting", 5, "loop", "travel")
    assert (loaded.run_id, loaded.state_schema, loaded.state_version) == ("run-1", "trip", 3)
    assert loaded.model == {"name": "m-1", "temperature": 0.5}
    assert loaded.usage == {"input_tokens": 7, "cost_micros": 12}
    assert (loaded.metadata, loaded.delta_channels, loaded.writes) == ({"user": {"plan": "pro"}}, ("d",), [])


async def test_the_encodings_and_bytes_of_an_adapter_are_returned_exactly(store, scope):
    channels = {
        "empty": ChannelValue(None, Value("null", b"")),
        "empty-msgpack": ChannelValue(1, Value("msgpack", b"")),
        "opaque": ChannelValue("0001.5", Value("json", b'{"a" : 1}')),
        "odd": ChannelValue(2.5, Value("msgpack", b"\xdd\x00\x00\x00\x01\xc0")),
    }
    await save(store, scope, content=FullState(channels))
    loaded = (await load(store, scope)).channels
    assert {name: ChannelValue(each.version, each.value) for name, each in loaded.items()} == channels


async def test_a_load_without_state_has_no_channels_and_no_writes(store, scope):
    await save(store, scope)
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=False))
    assert (loaded.checkpoint.channels, loaded.checkpoint.writes) == (None, None)


async def test_the_defaults_continue_the_head(store, scope):
    first = await save(store, scope)
    second = await save(store, scope)
    assert (first.parent_id, first.step, first.sequence, first.created) == (None, 0, 1, True)
    assert (second.parent_id, second.step, second.sequence) == (first.checkpoint_id, 1, 2)
    assert second.head_id == second.checkpoint_id


async def test_what_is_not_there_is_not_found(store, scope):
    with pytest.raises(CheckpointNotFound):
        await load(store, scope)
    await save(store, scope)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=ID_1)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, namespace="other")


async def test_namespaces_have_heads_of_their_own(store, scope):
    outer = await save(store, scope, content=state(a=1))
    inner = await save(store, scope, namespace="sub", content=state(a=2), precondition=Precondition(absent=True))
    assert (inner.parent_id, inner.step, inner.sequence) == (None, 0, 1)
    assert (await load(store, scope)).checkpoint_id == outer.checkpoint_id
    assert contents(await load(store, scope, namespace="sub")) == {"a": 2}


async def test_an_unchanged_channel_keeps_the_value_of_the_parent(store, scope):
    value = packed(document("kept"))
    await save(store, scope, content=FullState({"a": ChannelValue("1", value), "b": ChannelValue("1", packed(1))}))
    await save(store, scope, content=FullState({"b": ChannelValue("2", packed(2)), "a": ChannelValue("1", None)}))
    loaded = await load(store, scope)
    assert contents(loaded) == {"a": document("kept"), "b": 2}
    assert loaded.channels["a"].version == "1"


@pytest.mark.parametrize("channel", ["a", "missing"])
async def test_an_unchanged_channel_the_parent_does_not_hold_is_refused(store, scope, channel):
    await save(store, scope, content=FullState({"a": ChannelValue("1", packed(1))}))
    with pytest.raises(ChannelUnchangedUnknown) as caught:
        await save(store, scope, content=FullState({channel: ChannelValue("2", None)}))
    assert caught.value.channel == channel


async def test_unchanged_on_a_parent_that_was_saved_while_the_save_waited_is_found(store, scope, admin):
    first = await save(store, scope, content=FullState({"a": ChannelValue("1", packed(1))}), checkpoint_id=ID_1)
    gate = Gate("COMMIT")
    slow = Steered(store, before=gate)
    parent = asyncio.create_task(
        save(slow, scope, content=FullState({"a": ChannelValue("2", packed(2))}), checkpoint_id=ID_2)
    )
    await gate.arrival()
    child = asyncio.create_task(
        save(store, scope, content=FullState({"a": ChannelValue("2", None)}), parent=Parent(ID_2))
    )
    await blocked(admin)
    gate.opened.set()
    assert (await parent).parent_id == first.checkpoint_id
    assert (await child).step == 2
    assert contents(await load(store, scope)) == {"a": 2}


async def test_a_patch_sets_appends_and_removes(store, scope):
    first = await save(store, scope, content=state(a=1, b=[1], gone=0, kept=document("kept")))
    await save(
        store,
        scope,
        content=patch(put={"a": 2, "new": {"x": 1}}, append={"b": [2, 3], "c": ["first"]}, remove=["gone"]),
        precondition=Precondition(head_id=first.checkpoint_id),
    )
    loaded = contents(await load(store, scope))
    assert loaded == {"a": 2, "b": [1, 2, 3], "kept": document("kept"), "new": {"x": 1}, "c": ["first"]}


async def test_a_patch_that_cannot_be_applied_is_refused_and_nothing_is_stored(store, scope):
    first = await save(store, scope, content=state(a=1, text=document("long")))
    precondition = Precondition(head_id=first.checkpoint_id)
    for changes in (patch(remove=["nothing"]), patch(append={"a": [1]}), patch(append={"text": [1]})):
        with pytest.raises(InvalidState):
            await save(store, scope, content=changes, precondition=precondition)
    assert (await load(store, scope)).checkpoint_id == first.checkpoint_id


async def test_appending_to_a_value_of_no_bytes_is_refused(store, scope):
    first = await save(store, scope, content=FullState({"a": ChannelValue(None, Value("msgpack", b""))}))
    with pytest.raises(InvalidState):
        await save(
            store,
            scope,
            content=patch(append={"a": [1]}),
            precondition=Precondition(head_id=first.checkpoint_id),
        )


async def test_a_patch_needs_a_precondition(store, scope):
    await save(store, scope)
    with pytest.raises(PreconditionRequired):
        await save(store, scope, content=patch(put={"a": 1}))


async def test_the_same_save_again_changes_nothing_even_after_the_head_moved_on(store, scope):
    parts = {"content": state(a=[1, document("long")]), "checkpoint_id": ID_1, "metadata": {"k": [1]}}
    first = await save(store, scope, **parts)
    at_once = await save(store, scope, **parts)
    later = await save(store, scope, content=state(a=2))
    again = await save(store, scope, **parts)
    named = await save(store, scope, **parts, parent=Parent(None), step=0)
    for each in (at_once, again, named):
        assert (each.created, each.checkpoint_id, each.parent_id, each.step) == (False, ID_1, None, 0)
        assert each.created_at == first.created_at
    assert (again.head_id, again.sequence) == (later.checkpoint_id, 2)
    assert len(await history(store, scope)) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"content": state(a=2)},
        {"content": state(a=1, b=1)},
        {"metadata": {"k": 1}},
        {"step": 1},
        {"parent": Parent(ID_2)},
        {"status": "done"},
        {"run_id": "r"},
        {"delta_channels": ("d",)},
        {"content": FullState({"a": ChannelValue("7", None)})},
        {"content": patch(put={"a": 2}), "precondition": Precondition(head_id=ID_1)},
    ],
    ids="-".join,
)
async def test_an_id_is_written_once(store, scope, other):
    parts = {"content": state(a=1), "checkpoint_id": ID_1}
    await save(store, scope, **parts)
    with pytest.raises(CheckpointExists):
        await save(store, scope, **{**parts, **other})
    assert contents(await load(store, scope)) == {"a": 1}


async def test_an_unchanged_channel_in_a_repeated_save_is_compared_with_what_was_stored(store, scope):
    long = FullState({"a": ChannelValue("1", packed(document("long"))), "b": ChannelValue("1", packed(1))})
    await save(store, scope, content=long, checkpoint_id=ID_1)
    parts = {
        "content": FullState({"b": ChannelValue("2", packed(2)), "a": ChannelValue("1", None)}),
        "checkpoint_id": ID_2,
        "parent": Parent(ID_1),
    }
    await save(store, scope, **parts)
    await save(store, scope)
    assert (await save(store, scope, **parts)).created is False


async def test_the_same_patch_again_changes_nothing(store, scope):
    on_nothing = {
        "content": patch(append={"a": [1]}),
        "precondition": Precondition(absent=True),
        "checkpoint_id": ID_1,
    }
    assert (await save(store, scope, **on_nothing)).created is True
    assert (await save(store, scope, **on_nothing)).created is False
    on_head = {
        "content": patch(append={"a": [2]}),
        "precondition": Precondition(head_id=ID_1),
        "checkpoint_id": ID_2,
    }
    assert (await save(store, scope, **on_head)).created is True
    assert (await save(store, scope, **on_head)).created is False
    assert contents(await load(store, scope)) == {"a": [1, 2]}


async def test_if_match_compares_the_head(store, scope):
    with pytest.raises(HeadMoved) as caught:
        await save(store, scope, precondition=Precondition(head_id=ID_1))
    assert caught.value.head_id is None
    first = await save(store, scope, precondition=Precondition(absent=True))
    with pytest.raises(HeadMoved) as caught:
        await save(store, scope, precondition=Precondition(absent=True))
    assert caught.value.head_id == first.checkpoint_id
    second = await save(store, scope, precondition=Precondition(head_id=first.checkpoint_id))
    with pytest.raises(HeadMoved) as caught:
        await save(store, scope, precondition=Precondition(head_id=first.checkpoint_id))
    assert caught.value.head_id == second.checkpoint_id
    assert len(await history(store, scope)) == 2


async def test_a_strict_thread_wants_a_precondition_or_the_head_as_parent_or_a_declared_fork(store, scope):
    await store.threads.put(scope, "t1", strict=True)
    with pytest.raises(PreconditionRequired):
        await save(store, scope)
    first = await save(store, scope, precondition=Precondition(absent=True))
    second = await save(store, scope, parent=Parent(first.checkpoint_id))
    with pytest.raises(HeadMoved) as caught:
        await save(store, scope, parent=Parent(first.checkpoint_id))
    assert caught.value.head_id == second.checkpoint_id
    with pytest.raises(PreconditionRequired):
        await save(store, scope)
    fork = await save(store, scope, parent=Parent(first.checkpoint_id), fork=True)
    assert (fork.parent_id, fork.step) == (first.checkpoint_id, 1)


async def test_a_fork_takes_any_old_checkpoint_as_its_parent(store, scope):
    first = await save(store, scope, content=FullState({"a": ChannelValue("1", packed(document("a")))}))
    await save(store, scope, content=state(a=2))
    fork = await save(
        store, scope, content=FullState({"a": ChannelValue("1", None)}), parent=Parent(first.checkpoint_id)
    )
    assert (fork.parent_id, fork.step, fork.head_id) == (first.checkpoint_id, 1, fork.checkpoint_id)
    assert contents(await load(store, scope)) == {"a": document("a")}


async def test_an_older_id_is_stored_behind_the_head(store, scope):
    await save(store, scope, checkpoint_id=ID_2, content=state(a=2))
    behind = await save(store, scope, checkpoint_id=ID_1, content=state(a=1))
    assert behind.head_id == ID_2
    assert contents(await load(store, scope)) == {"a": 2}
    assert contents(await load(store, scope, checkpoint_id=ID_1)) == {"a": 1}


async def test_a_minted_id_is_greater_than_the_head_though_the_clock_runs_behind(store, scope, database, root_key):
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    behind = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=1,
        durable=False,
        options=StoreOptions(clock=clock),
    )
    try:
        ids = []
        for _ in range(5):
            clock.set(clock.now() - timedelta(days=300))
            ids.append((await save(behind, scope)).checkpoint_id)
    finally:
        await behind.close()
    assert ids == sorted(set(ids))
    assert (await load(store, scope)).checkpoint_id == ids[-1]


@pytest.mark.parametrize(
    "head_id", ["not-a-uuid", "0198c0de-0000-7000-8000-000000000001", "ffffffff-ffff-6fff-bfff-ffffffffffff"]
)
async def test_behind_a_head_no_uuid6_follows_an_id_must_be_named(store, scope, head_id):
    await save(store, scope, checkpoint_id=head_id)
    with pytest.raises(InvalidState):
        await save(store, scope)
    named = await save(store, scope, checkpoint_id=head_id + "+")
    assert named.parent_id == head_id


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\0b", "\ud800"])
async def test_an_id_that_cannot_be_stored_is_refused(store, scope, bad):
    with pytest.raises(InvalidState):
        await save(store, scope, thread_id=bad)
    with pytest.raises(InvalidState):
        await save(store, scope, checkpoint_id=bad)


async def test_an_idempotency_key_replays_the_first_answer(store, scope):
    key = Idempotency("once", b"d" * 32)
    first = await save(store, scope, idempotency=key)
    await save(store, scope)
    again = await save(store, scope, idempotency=key)
    assert (again.checkpoint_id, again.sequence, again.created) == (first.checkpoint_id, 1, False)
    assert len(await history(store, scope)) == 2


async def test_an_idempotency_key_belongs_to_one_request(store, scope):
    await save(store, scope, idempotency=Idempotency("once", b"d" * 32))
    with pytest.raises(IdempotencyKeyReused):
        await save(store, scope, idempotency=Idempotency("once", b"e" * 32))


async def test_an_idempotency_key_of_a_refused_save_is_free_again(store, scope):
    key = Idempotency("once", b"d" * 32)
    with pytest.raises(HeadMoved):
        await save(store, scope, idempotency=key, precondition=Precondition(head_id=ID_1))
    assert (await save(store, scope, idempotency=key)).created is True


async def test_an_idempotency_key_on_a_save_stored_before_can_be_replayed_too(store, scope):
    key = Idempotency("once", b"d" * 32)
    await save(store, scope, checkpoint_id=ID_1)
    for _ in range(2):
        assert (await save(store, scope, checkpoint_id=ID_1, idempotency=key)).created is False
    with pytest.raises(IdempotencyKeyReused):
        await save(store, scope, idempotency=Idempotency("once", b"e" * 32))


async def test_two_requests_with_one_idempotency_key_at_the_same_moment_make_one_checkpoint(store, scope, admin):
    await store.keys.sealer(scope)
    key = Idempotency("once", b"d" * 32)
    gate = Gate(sql.WRITE)
    first = asyncio.create_task(save(Steered(store, before=gate), scope, idempotency=key))
    await gate.arrival()
    second = asyncio.create_task(save(store, scope, idempotency=key))
    await blocked(admin)
    gate.opened.set()
    answers = [await first, await second]
    assert [each.created for each in answers] == [True, False]
    assert len({each.checkpoint_id for each in answers}) == 1
    assert len(await history(store, scope)) == 1


async def test_values_survive_that_a_general_reader_could_not_hold(store, scope):
    deep = msgpack.packb(1)
    for _ in range(3000):
        deep = b"\x91" + deep
    listed = b"\xdc\x10\x00" + b"\xc7\x03\x55abc" * 0x1000
    channels = {
        "deep": ChannelValue(None, Value("msgpack", deep + deep)),
        "ext": ChannelValue(None, Value("msgpack", listed)),
    }
    await save(store, scope, content=FullState(channels))
    loaded = (await load(store, scope)).channels
    assert {name: each.value for name, each in loaded.items()} == {n: c.value for n, c in channels.items()}
