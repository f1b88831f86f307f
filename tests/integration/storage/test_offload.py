"""Large pieces live in the object store, once for each subject, and come back byte for byte."""

import asyncio
import os

import msgpack
import pytest

from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.errors import (
    ArtifactReferenced,
    ArtifactUnknown,
    HeadMoved,
    IntegrityFailure,
    InvalidState,
    PieceNotFound,
    PieceUnknown,
    StateTooLarge,
)
from storage.format.leaves import placeholder, read_placeholder
from storage.model import (
    ChannelValue,
    FullState,
    HistoryQuery,
    Load,
    NewWrite,
    Parent,
    Precondition,
    TaskWritesQuery,
    Value,
)
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.faulty_blobs import Fault, FaultyBlobStore
from tests.support.states import contents, load, packed, patch, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

SCREEN = "data:image/png;base64," + "A" * 150_000


@pytest.fixture
def bucket():
    return FaultyBlobStore(MemoryBlobStore())


@pytest.fixture
async def store(database, root_key, bucket):
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=8,
        durable=False,
        options=StoreOptions(blobs=bucket),
    )
    yield opened
    await opened.close()


def screen(number, size=150_000):
    return f"data:image/png;base64,{number:08}" + "A" * size


async def objects(bucket, scope):
    found = await bucket.inner.list_objects(f"v1/{scope.tenant_id.hex}/", limit=1000)
    return len(found)


async def rows(admin, scope, table):
    counting = f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1"  # noqa: S608  a name of this module
    return await admin.fetchval(counting, scope.tenant_id)


@pytest.mark.parametrize(
    "value",
    [
        packed([{"role": "user", "content": [{"type": "image", "url": SCREEN}]}]),
        packed({"image": SCREEN, "size": [1, 2]}),
        packed(SCREEN),
        packed(os.urandom(100_000)),
        packed([1, msgpack.ExtType(5, os.urandom(200_000)), {"a": [b"x" * 70_000]}]),
        packed([{str(number): number for number in range(20_000)}] * 2),
        Value("bytes", os.urandom(300_000)),
        Value("bytes", os.urandom(3_000_000)),
        Value("json", b'{"a":"' + b"x" * 200_000 + b'"}'),
        packed([screen(number) for number in range(90)]),
        packed({str(number): screen(number, 66_000) for number in range(90)}),
        Value("msgpack", b"\xdb\xff\xff\xff\xff" + os.urandom(70_000)),
        packed(os.urandom(9_000_000)),
    ],
    ids=lambda value: f"{value.encoding} {len(value.data)}",
)
async def test_any_large_value_comes_back_byte_for_byte(store, scope, bucket, admin, value):
    saved = await save(store, scope, content=FullState({"a": ChannelValue(None, value)}))
    await put(store, scope, saved.checkpoint_id, NewWrite(idx=0, channel="a", value=value))
    loaded = await load(store, scope)
    assert loaded.channels["a"].value == value
    assert [each.value for each in loaded.writes] == [value]
    page = await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", with_state=True))
    assert page.items[0].channels["a"].value == value
    stored = await admin.fetchval(
        "SELECT sum(length(envelope)) FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id
    )
    named = await rows(admin, scope, "blobs")
    assert named == await objects(bucket, scope)
    if value.encoding != "msgpack" or len(value.data) != 70_005:
        assert named
        assert stored < 64_000
    assert await rows(admin, scope, "blob_intents") == 0


async def test_references_stand_for_leaves_and_are_the_same_pieces_when_they_are_sent(store, scope, admin):
    value = packed([{"image": screen(1)}, "x" * 3000, {"image": screen(2)}])
    first = await save(store, scope, content=FullState({"a": ChannelValue("1", value)}))
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, refs=True))
    holed = loaded.checkpoint.channels["a"].value
    assert len(holed.data) < 4000
    assert [read_placeholder(holed.data, at)[1] for at in holed.holes] == [150_035] * 2
    before = await rows(admin, scope, "chunks")
    again = FullState({"a": ChannelValue("1", holed)})
    await save(store, scope, content=again, checkpoint_id=first.checkpoint_id)  # the same, so no conflict
    await save(store, scope, content=again)
    assert await rows(admin, scope, "chunks") == before
    assert (await load(store, scope)).channels["a"].value == value
    await put(store, scope, first.checkpoint_id, NewWrite(idx=0, channel="a", value=holed))
    written = await store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", first.checkpoint_id, "task"))
    assert [each.value for each in written] == [value]
    for other in ("t2", "t1"):
        unknown = FullState({"a": ChannelValue(None, Value("msgpack", placeholder(bytes(17), 9), (0,)))})
        with pytest.raises(PieceUnknown):
            await save(store, scope, other, content=unknown if other == "t1" else again)
    with pytest.raises(PieceUnknown):
        await put(store, scope, "1f0", NewWrite(idx=0, channel="a", value=unknown.channels["a"].value))


async def test_a_screenshot_is_stored_once_for_a_subject(store, scope, bucket, admin):
    first = await save(store, scope, content=state(messages=[{"image": SCREEN}]))
    for number in range(5):
        await save(store, scope, content=state(messages=[{"image": SCREEN}] + ["more"] * number))
    await save(store, scope, "t2", content=state(other={"image": SCREEN}))
    await put(store, scope, first.checkpoint_id, write(0, "messages", [SCREEN]))
    assert await objects(bucket, scope) == 1
    assert bucket.calls.count("put_if_absent") == 1
    assert await rows(admin, scope, "blob_refs") == 2
    await save(store, Scope(scope.tenant_id, "user-2"), content=state(messages=[{"image": SCREEN}]))
    assert await objects(bucket, scope) == 2


async def test_a_patch_that_appends_a_screenshot_uploads_it_and_nothing_else(store, scope, bucket):
    saved = await save(store, scope, content=state(items=[{"image": screen(0)}, "short"]))
    for number in range(1, 40):
        saved = await save(
            store,
            scope,
            content=patch(append={"items": [{"image": screen(number)}]}, put={"last": screen(number)}),
            precondition=Precondition(head_id=saved.checkpoint_id),
        )
        assert bucket.calls.count("put_if_absent") == number + 1
    assert "get_range" not in bucket.calls
    expected = [{"image": screen(0)}, "short", *({"image": screen(number)} for number in range(1, 40))]
    assert contents(await load(store, scope)) == {"items": expected, "last": screen(39)}


async def test_small_values_never_touch_the_object_store(store, scope, bucket, admin):
    saved = await save(store, scope, content=state(a="x" * 60_000, b=[["y" * 3000]] * 40))
    await put(store, scope, saved.checkpoint_id, write(0, "a", "z" * 60_000))
    await load(store, scope)
    assert not {"put_if_absent", "get_range", "begin_multipart"} & {*bucket.calls}
    assert await rows(admin, scope, "blobs") == 0


async def test_a_state_too_large_for_one_answer_says_so_and_comes_as_references(store, scope):
    items = [screen(number, 7_000_000) for number in range(10)]
    saved = await save(store, scope, content=state(items=items[:4]))
    for at in (4, 8):
        saved = await save(
            store,
            scope,
            content=patch(append={"items": items[at : at + 4]}),
            precondition=Precondition(head_id=saved.checkpoint_id),
        )
    with pytest.raises(StateTooLarge):
        await load(store, scope)
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, refs=True))
    assert len(loaded.checkpoint.channels["items"].value.holes) == 10


async def test_removing_and_copying_keep_the_references_true(store, scope, bucket, admin):
    for number in range(3):
        saved = await save(store, scope, content=state(now={"image": screen(number)}))
    assert await rows(admin, scope, "blob_refs") == 3
    await store.threads.copy(scope, "t1", "t2")
    assert await rows(admin, scope, "blob_refs") == 6
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await rows(admin, scope, "blob_refs") == 4
    assert contents(await load(store, scope)) == {"now": {"image": screen(2)}}
    await store.threads.delete(scope, "t1")
    assert await rows(admin, scope, "blob_refs") == 3
    assert contents(await load(store, scope, "t2")) == {"now": {"image": screen(2)}}
    await store.threads.delete(scope, "t2")
    assert await rows(admin, scope, "blob_refs") == 0
    unreferenced = "SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1 AND unreferenced_at IS NOT NULL"
    assert await admin.fetchval(unreferenced, scope.tenant_id) == 3
    assert saved.created


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.TIMEOUT_AFTER, Fault.LOST_RESPONSE])
async def test_a_save_whose_upload_fails_stores_nothing_and_can_be_repeated(store, scope, bucket, admin, fault):
    bucket.plan("put_if_absent", fault)
    content = state(a=screen(1), b=screen(2))
    try:
        await save(store, scope, content=content)
    except Exception:  # noqa: BLE001  whichever the store says; what counts is what is left
        assert await rows(admin, scope, "checkpoints") == 0
        assert await rows(admin, scope, "blobs") == 0
        open_intents = "SELECT count(*) FROM stateroom.blob_intents WHERE tenant_id = $1 AND state = 'open'"
        assert await admin.fetchval(open_intents, scope.tenant_id) == 0
        await save(store, scope, content=content)
    assert contents(await load(store, scope)) == {"a": screen(1), "b": screen(2)}


async def test_a_save_that_is_refused_gives_its_uploads_up(store, scope, admin):
    await save(store, scope)
    with pytest.raises(HeadMoved):
        await save(store, scope, content=state(a=screen(1)), precondition=Precondition(head_id="other"))
    assert await rows(admin, scope, "blobs") == 0
    open_intents = "SELECT count(*) FROM stateroom.blob_intents WHERE tenant_id = $1 AND state = 'open'"
    assert await admin.fetchval(open_intents, scope.tenant_id) == 0


async def test_saves_of_the_same_screenshot_at_once_keep_one_blob(store, scope, admin):
    await asyncio.gather(
        *(save(store, scope, f"t{number}", content=state(a=screen(1), b=screen(2))) for number in range(6))
    )
    live = "SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1 AND state = 'live'"
    assert await admin.fetchval(live, scope.tenant_id) == 2
    for number in range(6):
        assert contents(await load(store, scope, f"t{number}")) == {"a": screen(1), "b": screen(2)}


async def test_an_object_that_is_not_what_the_piece_says_is_refused(store, scope, bucket, admin):
    await save(store, scope, content=state(a=screen(1), b=screen(2)))
    bucket.plan("get_range", *[Fault.TRUNCATED] * 50)  # also when it is read once more
    with pytest.raises(IntegrityFailure):
        await load(store, scope)
    bucket.heal()
    named = await admin.fetch(
        "SELECT piece_id, named_ids FROM stateroom.chunks WHERE tenant_id = $1 ORDER BY piece_id", scope.tenant_id
    )
    other = named[1]["named_ids"]
    update = "UPDATE stateroom.chunks SET named_ids = $3 WHERE tenant_id = $1 AND piece_id = $2"
    for wrong in (other, None, other * 2):
        await admin.execute(update, scope.tenant_id, named[0]["piece_id"], wrong)
        with pytest.raises(IntegrityFailure):
            await load(store, scope)
    await admin.execute(update, scope.tenant_id, named[0]["piece_id"], named[0]["named_ids"])
    await load(store, scope)


async def test_a_state_that_names_a_missing_artifact_is_refused_with_its_path(store, scope):
    pointer = "stateroom:artifact:0190b5a2-0000-7000-8000-000000000001"
    saved = await save(store, scope)
    with pytest.raises(ArtifactUnknown) as refused:
        await save(store, scope, content=state(a={"b/c": [1, pointer]}))
    assert refused.value.pointer == "/state/a/b~1c/1"
    with pytest.raises(ArtifactUnknown) as refused:
        await save(
            store,
            scope,
            content=patch(append={"a": [1, {"x": pointer}]}),
            precondition=Precondition(head_id=saved.checkpoint_id),
        )
    assert refused.value.pointer == "/changes/append/a/1/x"
    with pytest.raises(ArtifactUnknown) as refused:
        await put(store, scope, saved.checkpoint_id, write(0, "a", 1), write(1, "a", [pointer]))
    assert refused.value.pointer == "/writes/1/value/0"
    assert writes_of(await load(store, scope)) == []


async def test_verifying_finds_a_blob_without_its_pointer(store, scope, admin):
    await save(store, scope, content=state(a=screen(1), b=screen(2)))
    assert (await store.verification.thread(scope, "t1")).findings == []
    await admin.execute(
        "UPDATE stateroom.blobs SET pointer = pointer || 'x'::bytea WHERE tenant_id = $1"
        " AND blob_id = (SELECT min(blob_id::text)::uuid FROM stateroom.blobs WHERE tenant_id = $1)",
        scope.tenant_id,
    )
    assert [each.code for each in (await store.verification.thread(scope, "t1")).findings] == ["piece"]


async def test_an_uploaded_piece_can_be_named_until_a_prune_takes_it(store, scope, bucket, admin):
    leaf = msgpack.packb(screen(1))
    first = await store.pieces.put(scope, "t1", leaf)
    again = await store.pieces.put(scope, "t1", leaf)
    assert (first.piece_id, first.created, again.created) == (again.piece_id, True, False)
    assert await store.pieces.get(scope, "t1", first.piece_id) == leaf
    value = Value("msgpack", b"\x91" + placeholder(first.piece_id, len(leaf)), (1,))
    content = FullState({"a": ChannelValue(None, value)})
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await rows(admin, scope, "blob_refs") == 0
    for missing in ("t1", "t2"):
        with pytest.raises(PieceNotFound):
            await store.pieces.get(scope, missing, first.piece_id)
    with pytest.raises(PieceUnknown):
        await save(store, scope, content=content)
    await store.pieces.put(scope, "t1", leaf)
    assert await objects(bucket, scope) == 1  # found again by its content
    await save(store, scope, content=content)
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert contents(await load(store, scope)) == {"a": [screen(1)]}
    lie = Value("msgpack", b"\x91" + placeholder(first.piece_id, len(leaf) - 1), (1,))
    await save(store, scope, "t1", content=FullState({"a": ChannelValue(None, lie)}))
    assert contents(await load(store, scope)) == {"a": [screen(1)]}  # the piece says how long it is


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x91\xa1x", b"\xd9\x20x"])
async def test_only_a_leaf_can_be_uploaded(store, scope, data):
    with pytest.raises(InvalidState):
        await store.pieces.put(scope, "t1", data)


async def test_a_piece_cannot_hide_an_artifact_and_only_leaves_can_be_fetched(store, scope, admin):
    pointer = "stateroom:artifact:0190b5a2-0000-7000-8000-000000000001"
    with pytest.raises(InvalidState):
        await store.pieces.put(scope, "t1", msgpack.packb("x" * 70_000 + pointer))
    await save(store, scope, content=state(a=["x" * 5000]))
    other = await admin.fetchval("SELECT piece_id FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(PieceNotFound):
        await store.pieces.get(scope, "t1", other)


async def test_an_artifact_that_a_state_names_stays_while_a_checkpoint_names_it(store, scope):
    await save(store, scope)

    async def body():
        yield b"picture"

    made = await store.artifacts.create(scope, "t1", NewArtifact(name="a.png", media_type="image/png"), body())
    saved = await save(store, scope, content=FullState({"a": ChannelValue("1", packed([made.pointer]))}))
    same = FullState({"a": ChannelValue("1", None), "b": ChannelValue("1", packed(1))})
    second = await save(store, scope, content=same, parent=Parent(saved.checkpoint_id))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    with pytest.raises(ArtifactReferenced):  # the unchanged channel still names it
        await store.artifacts.delete(scope, made.artifact_id)
    await save(
        store,
        scope,
        content=patch(append={"a": ["more"]}, remove=["b"]),
        precondition=Precondition(head_id=second.checkpoint_id),
    )
    await store.threads.prune(scope, ["t1"], "keep_latest")
    with pytest.raises(ArtifactReferenced):
        await store.artifacts.delete(scope, made.artifact_id)
    await save(store, scope, content=state(a=[]))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await store.artifacts.delete(scope, made.artifact_id)
