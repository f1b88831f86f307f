"""A list that grew is saved as its new elements: the same bytes and the same pieces as the whole list."""

import asyncio
from random import Random  # noqa: TID251  seeded
from uuid import uuid4

import msgpack
import msgspec
import pytest

from storage.access.remembered import BYTES_MAX, ENTRY_BYTES_MAX, RememberedHeads
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.errors import (
    ArtifactReferenced,
    ArtifactUnknown,
    ChannelUnchangedUnknown,
    CheckpointExists,
    InvalidState,
    ParentUnknown,
)
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.format.pieces import list_header
from storage.model import ChannelValue, FullState, Parent, Precondition, Save, Value
from storage.schemas.registry import Definition
from storage.scope import Scope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.costs import CountedGateway
from tests.support.states import contents, document, load, packed, patch, put, save, state, write
from tests.support.stores import DEPLOYMENT_ID

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"
LONG = [document(f"m{number}", 700) for number in range(60)]


@pytest.fixture
def gateway(store):
    return CountedGateway(store)


@pytest.fixture
def other(store):
    return CountedGateway(store)


def whole(elements, version, **others):
    return FullState({"m": ChannelValue(version, packed(elements)), **others}, root="/channels")


def more(elements, version, after, **others):
    return FullState({"m": ChannelValue(version, packed(elements), after), **others}, root="/channels")


async def raw(store, scope, thread_id="t1", **where):
    return (await load(store, scope, thread_id, **where)).channels["m"]


async def pieces_of(admin, scope):
    rows = await admin.fetch(
        "SELECT piece_ids FROM stateroom.checkpoints WHERE tenant_id = $1 ORDER BY checkpoint_id DESC LIMIT 1",
        scope.tenant_id,
    )
    return rows[0]["piece_ids"]


def elements_of(draws):
    """Messages of every size that the cutting tells apart."""
    sizes = [draws.choice([0, 5, 300, 1100, 5000, 20_000, OFFLOAD_BYTES_MIN + 10]) for _ in range(draws.randrange(9))]
    return [{"role": "user", "text": draws.randbytes(size), "n": [size, None]} for size in sizes]


def store_with(database, root_key, bucket, **options):
    """A process with an object store."""
    return Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(blobs=bucket, **options),
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("bytes_min", [20_000, OFFLOAD_BYTES_MIN, 2**30])
async def test_elements_make_the_bytes_and_the_pieces_of_the_whole_list(connections, root_key, admin, seed, bytes_min):
    draws = Random(seed)  # noqa: S311
    options = StoreOptions(blobs=MemoryBlobStore(), offload_bytes_min=bytes_min)
    gateway, opened = (
        Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options) for _ in range(2)
    )
    scope = Scope(uuid4(), "user-1")
    elements = elements_of(draws)
    await save(gateway, scope, content=whole(elements, 0))
    for turn in range(1, 9):
        added = elements_of(draws)
        elements = elements + added
        if draws.random() < 0.3:  # a process that remembers nothing
            gateway.checkpoints._access.remembered_heads.forget(scope)
        saved = await save(gateway, scope, content=more(added, turn, turn - 1))
        channel = await raw(opened, scope)
        assert channel.value.data == msgpack.packb(elements)
        assert channel.version == turn
        appended = await pieces_of(admin, scope)
        await save(gateway, scope, content=whole(elements, turn), parent=Parent(saved.parent_id), fork=True)
        assert appended == await pieces_of(admin, scope)
        await save(gateway, scope, content=whole(elements, turn))
    assert (await opened.verification.thread(scope, "t1")).findings == []


async def test_a_list_of_thousands_that_folds_is_put_together_again(store, scope, gateway):
    draws = Random(1)  # noqa: S311
    elements = [draws.randbytes(80) for _ in range(6000)]
    await save(gateway, scope, content=whole(elements, 0))
    for turn in range(1, 6):
        added = [draws.randbytes(80) for _ in range(700)]
        elements += added
        await save(gateway, scope, content=more(added, turn, turn - 1))
    assert (await raw(store, scope)).value.data == msgpack.packb(elements)
    await save(gateway, scope, content=whole(elements, 9))  # pieces that are known must be there
    assert (await raw(store, scope)).value.data == msgpack.packb(elements)
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_a_remembered_turn_reads_nothing(store, scope, gateway):
    await save(gateway, scope, content=whole(LONG, 1, note=ChannelValue(1, packed("n"))))
    gateway.counted()
    for turn in range(2, 30):
        unchanged = {"note": ChannelValue(1, None)}
        await save(gateway, scope, content=more([document(f"t{turn}", 900)], turn, turn - 1, **unchanged))
        await put(gateway, scope, (await load(store, scope)).checkpoint_id, write(0, "m", "x"))
    assert gateway.counted() == 0
    assert contents(await load(store, scope)) == {
        "m": LONG + [document(f"t{turn}", 900) for turn in range(2, 30)],
        "note": "n",
    }


async def test_an_open_tail_that_had_to_be_read_is_remembered(store, scope, gateway):
    await save(gateway, scope, content=whole(LONG, 1))
    for turn in range(2, 40, 2):  # whether there is a tail at all, the subject's key says
        gateway.checkpoints._access.remembered_heads.forget(scope)
        await save(gateway, scope, content=more([document(f"t{turn}", 900)], turn, turn - 1))
        assert gateway.counted() > 0
        await save(gateway, scope, content=more([document(f"t{turn + 1}", 900)], turn + 1, turn))
        assert gateway.counted() == 0
    assert contents(await load(store, scope))["m"] == LONG + [document(f"t{turn}", 900) for turn in range(2, 40)]


async def test_a_list_that_waited_unchanged_is_appended_to_from_memory(store, scope, gateway):
    await save(gateway, scope, content=whole(LONG, 1))
    gateway.counted()
    await save(gateway, scope, content=FullState({"m": ChannelValue(1, None), "n": ChannelValue(2, packed(2))}))
    await save(gateway, scope, content=more(["more"], 2, 1))
    assert gateway.counted() == 0
    assert contents(await load(store, scope))["m"] == [*LONG, "more"]


async def test_another_process_that_saved_meanwhile_is_appended_to_or_refused(store, scope, gateway, other):
    first = await save(gateway, scope, content=whole(LONG, 1))
    await save(other, scope, content=more(["theirs"], "2a", 1))
    with pytest.raises(ChannelUnchangedUnknown):
        await save(gateway, scope, content=more(["ours"], "2b", 1))
    await save(gateway, scope, content=more(["ours"], 3, "2a"))
    assert contents(await load(store, scope))["m"] == [*LONG, "theirs", "ours"]
    await save(gateway, scope, content=more(["fork"], "2c", 1), parent=Parent(first.checkpoint_id), fork=True)
    assert contents(await load(store, scope))["m"] == [*LONG, "fork"]


async def test_of_two_writers_at_once_each_appends_to_the_parent_it_names(store, scope, gateway, other):
    first = await save(gateway, scope, content=whole(LONG, 1))
    ours = [
        save(each, scope, content=more([number], f"v{number}", 1), parent=Parent(first.checkpoint_id), fork=True)
        for number, each in enumerate([gateway, other] * 5)
    ]
    saved = await asyncio.gather(*ours)
    for number, each in enumerate(saved):
        found = await load(store, scope, checkpoint_id=each.checkpoint_id)
        assert contents(found)["m"] == [*LONG, number]
    assert (await store.verification.thread(scope, "t1")).findings == []


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(
    ("held", "after"),
    [
        (Value("msgpack", msgpack.packb(LONG)), 2),
        (Value("msgpack", msgpack.packb(LONG)), "1"),
        (Value("msgpack", msgpack.packb({"a": document("a")})), 1),
        (Value("msgpack", msgpack.packb({"a": 1})), 1),
        (Value("msgpack", b"\xdd\xff\xff\xff\xff" + b"\x01" * 5000), 1),
        (Value("msgpack", b"\x93\x01"), 1),
        (Value("msgpack", b""), 1),
        (Value("json", b'["' + b"x" * 5000 + b'"]'), 1),
        (Value("bytes", msgpack.packb(LONG)), 1),
    ],
)
async def test_what_is_not_the_parents_list_at_that_version_is_refused(
    store, scope, gateway, other, remembered, held, after
):
    await save(gateway, scope, content=FullState({"m": ChannelValue(1, held)}))
    with pytest.raises(ChannelUnchangedUnknown) as refused:
        await save(gateway if remembered else other, scope, content=more([1], 3, after))
    assert refused.value.channel == "m"
    assert (await raw(store, scope)).value == held


async def test_without_a_parent_or_its_channel_there_is_nothing_to_append_to(scope, gateway):
    with pytest.raises(ChannelUnchangedUnknown):
        await save(gateway, scope, content=more([1], 2, 1))
    first = await save(gateway, scope, content=state(n=1))
    for parent in (None, Parent(None), Parent(first.checkpoint_id)):
        with pytest.raises(ChannelUnchangedUnknown):
            await save(gateway, scope, content=more([1], 2, 1), parent=parent)
    with pytest.raises(ParentUnknown):
        await save(gateway, scope, content=more([1], 2, 1), parent=Parent(ID_1))


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        Value("msgpack", b""),
        Value("msgpack", b"\x01"),
        Value("msgpack", b"\x92\x01"),
        Value("msgpack", b"\x91\x01\x02"),
        Value("msgpack", b"\xdd\xff\xff\xff\xff"),
        Value("msgpack", b"\xdc\xff\xff\x01"),
        Value("msgpack", b"\x91\xc1"),
        Value("msgpack", b"\x91" * 5000 + b"\x01"),
        Value("json", b"[1]"),
        Value("msgpack", b"\x91" + b"\xc7\x19\x68" + b"x" * 25, (1,)),
    ],
)
async def test_what_are_no_elements_is_refused(store, scope, gateway, other, remembered, sent):
    await save(gateway, scope, content=whole(LONG, 1))
    with pytest.raises(ChannelUnchangedUnknown):
        await save(gateway if remembered else other, scope, content=FullState({"m": ChannelValue(2, sent, 1)}))
    assert contents(await load(store, scope))["m"] == LONG


async def test_no_elements_change_the_version_only(store, scope, gateway):
    await save(gateway, scope, content=whole(LONG, 1))
    await save(gateway, scope, content=more([], 2, 1))
    found = await raw(store, scope)
    assert (found.version, found.value) == (2, packed(LONG))


async def test_a_short_list_grows_over_what_stands_in_the_record(store, scope, gateway):
    elements = []
    await save(gateway, scope, content=whole(elements, 0))
    for turn in range(1, 20):
        elements.append(document(f"{turn}", 400))
        await save(gateway, scope, content=more(elements[-1:], turn, turn - 1))
        assert (await raw(store, scope)).value.data == list_header(turn) + b"".join(map(msgpack.packb, elements))


@pytest.mark.parametrize("remembered", [True, False])
async def test_the_same_elements_again_are_a_no_op_and_others_a_conflict(scope, gateway, other, remembered):
    await save(gateway, scope, checkpoint_id=ID_1, content=whole(LONG, 1))
    await save(gateway, scope, checkpoint_id=ID_2, content=more(["x"], 2, 1), parent=Parent(ID_1))
    again = gateway if remembered else other
    for content in (more(["x"], 2, 1), whole([*LONG, "x"], 2)):
        repeated = await save(again, scope, checkpoint_id=ID_2, content=content, parent=Parent(ID_1))
        assert not repeated.created
    with pytest.raises(CheckpointExists):
        await save(again, scope, checkpoint_id=ID_2, content=more(["y"], 2, 1), parent=Parent(ID_1))


async def test_elements_whose_parent_is_gone_are_compared_as_the_whole_value(scope, gateway):
    await save(gateway, scope, checkpoint_id=ID_1, content=whole(LONG, 1))
    await save(gateway, scope, checkpoint_id=ID_2, content=more(["x"], 2, 1), parent=Parent(ID_1))
    await gateway.threads.prune(scope, ["t1"], "keep_latest")
    with pytest.raises(ChannelUnchangedUnknown):
        await save(gateway, scope, checkpoint_id=ID_2, content=more(["x"], 2, 1), parent=Parent(ID_1))
    same = await save(gateway, scope, checkpoint_id=ID_2, content=whole([*LONG, "x"], 2), parent=Parent(ID_1))
    assert not same.created


async def test_pieces_of_the_closed_part_outlive_the_checkpoint_they_came_from(store, scope, gateway):
    await save(gateway, scope, content=whole(LONG * 3, 1))
    await save(gateway, scope, content=more(["x"], 2, 1))
    await gateway.threads.prune(scope, ["t1"], "keep_latest")
    await save(gateway, scope, content=more(["y"], 3, 2))
    assert contents(await load(store, scope))["m"] == [*LONG * 3, "x", "y"]
    assert (await store.verification.thread(scope, "t1")).findings == []


async def test_a_patch_a_whole_list_and_elements_follow_each_other(store, scope, gateway):
    first = await save(gateway, scope, content=whole(LONG, 1))
    second = await save(gateway, scope, content=more(["a"], 2, 1), parent=Parent(first.checkpoint_id))
    await save(gateway, scope, content=patch(append={"m": ["b"]}), precondition=Precondition(second.checkpoint_id))
    with pytest.raises(ChannelUnchangedUnknown):  # a patch leaves a list without a version
        await save(gateway, scope, content=more(["c"], 3, 2))
    await save(gateway, scope, content=whole([*LONG, "a", "b", "c"], 3))
    await save(gateway, scope, content=more(["d"], 4, 3))
    assert contents(await load(store, scope))["m"] == [*LONG, "a", "b", "c", "d"]


async def test_a_tail_in_the_object_store_is_not_fetched_under_a_lock(database, root_key):
    bucket = MemoryBlobStore()
    remembering, reading = [await store_with(database, root_key, bucket, offload_bytes_min=16 * 1024) for _ in range(2)]
    scope = Scope(uuid4(), "user-1")
    refused = 0
    try:
        # By keys that differ in each run, one element in 32 ends the tail of all lists of a subject: `many` is in none
        # then, or what is added makes of it a large piece that is new, which has to be uploaded.
        for thread_id in ("t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"):
            # No leaf of its own, and a large piece.
            many = {f"{thread_id}-{number}": document(str(number), 100) for number in range(250)}
            added = f"a of {thread_id}"
            await save(remembering, scope, thread_id, content=whole([many], 1))
            try:
                await save(remembering, scope, thread_id, content=more([added], 2, 1))
            except ChannelUnchangedUnknown:
                continue
            expected = [many, added, "b"]
            try:
                await save(reading, scope, thread_id, content=more(["b"], 3, 2))
            except ChannelUnchangedUnknown:
                refused += 1
                await save(reading, scope, thread_id, content=whole(expected, 3))
            assert contents(await load(reading, scope, thread_id))["m"] == expected
    finally:
        await remembering.close()
        await reading.close()
    assert refused


async def test_artifacts_of_the_list_and_of_its_new_elements_are_named(database, root_key):
    async def body():
        yield b"content"

    opened = await store_with(database, root_key, MemoryBlobStore())
    scope = Scope(uuid4(), "user-1")
    try:
        made = [
            await opened.artifacts.create(scope, "t1", NewArtifact(name=name, media_type="image/png"), body())
            for name in ("a.png", "b.png")
        ]
        first, second = (f"stateroom:artifact:{each.artifact_id}" for each in made)
        missing = "stateroom:artifact:0190b5a2-0000-7000-8000-000000000001"
        await save(opened, scope, content=whole([*LONG, first], 1))
        with pytest.raises(ArtifactUnknown):
            await save(opened, scope, content=more([{"file": missing}], 2, 1))
        await save(opened, scope, content=more([{"file": second}], 2, 1))
        await save(opened, scope, content=more(["none"], 3, 2))
        await opened.threads.prune(scope, ["t1"], "keep_latest")
        for each in made:
            with pytest.raises(ArtifactReferenced):
                await opened.artifacts.delete(scope, each.artifact_id)
        assert contents(await load(opened, scope))["m"] == [*LONG, first, {"file": second}, "none"]
    finally:
        await opened.close()


async def test_elements_follow_a_list_of_the_same_state_version_only(store, scope):
    tenant = TenantScope(scope.tenant_id)
    rename = [{"op": "rename", "from": "/old", "to": "/new"}]
    await store.state_schemas.put(tenant, "chat", 1, Definition())
    await store.state_schemas.put(tenant, "chat", 2, Definition(up=rename))

    async def at(number, content):
        saved = Save(thread_id="t1", content=content, state_schema="chat", state_version=number)
        return await store.states.save(scope, saved)

    await at(1, whole(LONG, 1))
    with pytest.raises(ChannelUnchangedUnknown):
        await at(2, more(["x"], 2, 1))
    await at(1, more(["x"], 2, 1))
    assert contents(await load(store, scope))["m"] == [*LONG, "x"]


async def test_a_json_schema_is_shown_whole_lists_only(store, scope):
    short = {"type": "object", "properties": {"m": {"type": "array", "maxItems": len(LONG)}}}
    await store.state_schemas.put(TenantScope(scope.tenant_id), "chat", 1, Definition(json_schema=short))

    async def at(content):
        return await store.states.save(
            scope, Save(thread_id="t1", content=content, state_schema="chat", state_version=1)
        )

    await at(whole(LONG, 1))
    with pytest.raises(ChannelUnchangedUnknown):
        await at(more(["x"], 2, 1))
    with pytest.raises(InvalidState):
        await at(whole([*LONG, "x"], 2))


async def test_remembered_tails_are_bounded(store, scope, gateway):
    access = gateway.checkpoints._access
    sealer = await access._keys.sealer(scope)

    async def remembered(count):
        await save(gateway, scope, content=whole(LONG[:count], 1), precondition=None)
        return access.remembered_heads.take(scope, sealer, "t1", "")

    # The subject's key decides where a list is cut, and behind a cut there is no tail.
    taken = [await remembered(count) for count in range(len(LONG) - 8, len(LONG))]
    standing = next(each for each in taken if each.tails)
    assert all(sum(map(len, each.tails.values())) < 64 * 1024 for each in taken)

    def with_tail(size):
        return msgspec.structs.replace(standing, tails={b"p": b"x" * size})

    remembered_heads = RememberedHeads()
    remembered_heads.remember(scope, sealer, with_tail(ENTRY_BYTES_MAX + 1))
    assert remembered_heads.take(scope, sealer, "t1", "").tails == {}
    count = BYTES_MAX // ENTRY_BYTES_MAX
    scopes = [Scope(scope.tenant_id, f"user-{number}") for number in range(count + 10)]
    tail = with_tail(ENTRY_BYTES_MAX)
    for _ in range(3):  # what is replaced, forgotten or taken no longer counts
        for each in scopes:
            remembered_heads.remember(each, sealer, tail)
        remembered_heads.forget(scopes[-1])
        remembered_heads.remember(scopes[-1], sealer, tail)
        assert remembered_heads.take(scopes[-1], sealer, "t1", "") is not None
        remembered_heads.remember(scopes[-1], sealer, tail)
    kept = [number for number, each in enumerate(scopes) if remembered_heads.take(each, sealer, "t1", "")]
    assert kept[-1] == len(scopes) - 1
    assert count - 1 <= len(kept) <= count + 1
