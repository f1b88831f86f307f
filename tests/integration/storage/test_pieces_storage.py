import msgpack
import pytest

from storage.format.pieces import GROUP_ELEMENTS_AVERAGE
from storage.model import ChannelValue, FullState, Precondition, Value
from tests.support.states import contents, document, load, packed, patch, put, save, state, write, writes_of


async def piece_ids(admin, scope):
    rows = await admin.fetch("SELECT piece_id, children FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)
    return {row["piece_id"]: row["children"] for row in rows}


def message(number, size=1500):
    return {"role": "user", "content": f"{number}:" + "w" * size}


async def test_a_long_list_folds_into_index_pieces_and_comes_back(store, scope, admin):
    items = [message(number) for number in range(6000)]
    saved = await save(store, scope, content=state(items=items))
    stored = await piece_ids(admin, scope)
    indexes = [children for children in stored.values() if children is not None]
    named = await admin.fetchval(
        "SELECT length(piece_ids) / 17 FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id
    )
    assert indexes  # more groups than one has children, wherever the key cuts
    assert all(
        child in stored
        for packed_ids in indexes
        for child in (packed_ids[at : at + 17] for at in range(0, len(packed_ids), 17))
    )
    assert named < len(stored)
    assert contents(await load(store, scope)) == {"items": items}
    await save(
        store,
        scope,
        content=patch(append={"items": [message(-1)]}),
        precondition=Precondition(head_id=saved.checkpoint_id),
    )
    assert contents(await load(store, scope)) == {"items": [*items, message(-1)]}
    added = len(await piece_ids(admin, scope)) - len(stored)
    assert added <= 3


@pytest.mark.parametrize("whole", [False, True], ids=["patch", "whole value"])
async def test_appending_writes_the_tail_whatever_the_length(store, scope, admin, whole):
    items, added = [], []
    saved = await save(store, scope, content=state(items=items))
    before = set(await piece_ids(admin, scope))
    for turn in range(300):
        items.append(message(turn))
        if whole:
            saved = await save(store, scope, content=state(items=items))
        else:
            saved = await save(
                store,
                scope,
                content=patch(append={"items": [items[-1]]}),
                precondition=Precondition(head_id=saved.checkpoint_id),
            )
        now = set(await piece_ids(admin, scope))
        added.append(len(now - before))
        before = now
    # The new element, and once in about 32 turns its group; an index piece now and then.
    assert max(added) <= 4
    assert sum(added) <= len(items) * (1 + 3 / GROUP_ELEMENTS_AVERAGE)
    assert contents(await load(store, scope)) == {"items": items}


async def test_a_message_a_task_wrote_and_a_channel_then_holds_is_stored_once(store, scope, admin):
    sealer = await store.keys.sealer(scope)
    # Elements that end no group under this subject's key, so that all three stay in the open tail.
    candidates = (message(number, 5000) for number in range(1000))
    inner = [each for each in candidates if sealer.boundary(msgpack.packb(each)) % GROUP_ELEMENTS_AVERAGE]
    elements = inner[:3]
    saved = await save(store, scope, content=state(items=elements[:2]))
    await put(store, scope, saved.checkpoint_id, write(0, "items", elements[2:]))
    before = await piece_ids(admin, scope)
    assert len(before) == 3
    await save(store, scope, content=state(items=elements))
    assert await piece_ids(admin, scope) == before
    assert contents(await load(store, scope)) == {"items": elements}


async def test_equal_values_in_channels_and_writes_share_their_pieces(store, scope, admin):
    saved = await save(store, scope, content=state(a=document("same"), b=document("same")))
    await put(store, scope, saved.checkpoint_id, write(0, "a", document("same")), write(1, "b", document("same")))
    assert len(await piece_ids(admin, scope)) == 1
    loaded = await load(store, scope)
    assert contents(loaded) == {"a": document("same"), "b": document("same")}
    assert [content for *_, content in writes_of(loaded)] == [document("same")] * 2


async def test_small_values_make_no_pieces(store, scope, admin):
    await save(store, scope, content=state(a="x" * 4000, b=[1, 2]))
    assert await piece_ids(admin, scope) == {}


async def test_an_edit_in_the_middle_of_opaque_bytes_writes_little(store, scope, admin):
    blob = b"".join(msgpack.packb(number * 2_654_435_761 % (1 << 32)) for number in range(200_000))
    await save(store, scope, content=FullState({"b": ChannelValue(None, Value("raw", blob))}))
    before = await piece_ids(admin, scope)
    edited = blob[:500_000] + b"inserted" + blob[500_000:]
    await save(store, scope, content=FullState({"b": ChannelValue(None, Value("raw", edited))}))
    after = await piece_ids(admin, scope)
    assert len(before) > 20
    assert len(after.keys() - before.keys()) <= 4
    assert (await load(store, scope)).channels["b"].value.data == edited


async def test_a_value_of_another_subject_is_stored_under_other_ids(store, scope, admin):
    other = type(scope)(scope.tenant_id, "user-2")
    for each in (scope, other):
        await save(store, each, content=FullState({"a": ChannelValue(None, packed(document("same")))}))
    assert len(await piece_ids(admin, scope)) == 2
