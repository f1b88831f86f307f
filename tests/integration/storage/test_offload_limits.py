"""Large pieces where something is in the way: another threshold, a quota, a slow or absent bucket, a foreign name."""

import asyncio
from uuid import UUID, uuid4

import msgpack
import pytest

from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable
from storage.errors import ArtifactUnknown, HeadMoved, IntegrityFailure, PieceNotFound, QuotaExceeded
from storage.model import HistoryQuery, Load, NewWrite, Precondition, TaskWritesQuery
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.blob_rows import Blobs
from tests.support.faulty_blobs import Fault, FaultyBlobStore
from tests.support.states import contents, load, packed, patch, put, save, state
from tests.support.stores import DEPLOYMENT_ID


@pytest.fixture
def bucket():
    return FaultyBlobStore(MemoryBlobStore())


@pytest.fixture
async def opened(database, root_key, bucket):
    """Opens stores on one database and bucket."""
    stores = []

    async def make(connections_max=8, **options):
        stores.append(
            await Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=connections_max,
                durable=False,
                options=StoreOptions(blobs=bucket, **options),
            )
        )
        return stores[-1]

    yield make
    for each in stores:
        await each.close()


@pytest.fixture
async def store(opened):
    return await opened()


def screen(number, size=150_000):
    return f"data:image/png;base64,{number:08}" + "A" * size


async def objects(bucket, scope):
    return len(await bucket.inner.list_objects(f"v1/{scope.tenant_id.hex}/", limit=1000))


async def counts(admin, scope, *tables):
    counting = "SELECT count(*) FROM stateroom.{} WHERE tenant_id = $1"
    return [await admin.fetchval(counting.format(table), scope.tenant_id) for table in tables]


async def used_bytes(admin, scope):
    return await admin.fetchval("SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1", scope.tenant_id)


# --- the threshold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bytes_min", "expected"), [(16_384, 3), (65_536, 2), (1_048_576, 1), (16_777_216, 0)])
async def test_pieces_of_the_configured_size_live_in_the_bucket(opened, scope, bucket, admin, bytes_min, expected):
    store = await opened(offload_bytes_min=bytes_min)
    value = [{"image": screen(number, size)} for number, size in enumerate((3_000, 20_000, 100_000, 1_500_000))]
    await save(store, scope, content=state(screens=value))
    assert await objects(bucket, scope) == expected
    assert await counts(admin, scope, "blobs") == [expected]
    assert contents(await load(store, scope)) == {"screens": value}


async def test_another_threshold_later_leaves_everything_readable_and_every_reference_true(opened, scope, bucket):
    values = {f"c{size}": [{"image": screen(size, size)}, "tail"] for size in (20_000, 100_000, 1_500_000)}
    saved = await save(await opened(offload_bytes_min=1 << 20), scope, content=state(**values))
    for bytes_min in (16_384, 65_536, 16_777_216, 16_384):
        store = await opened(offload_bytes_min=bytes_min)
        assert contents(await load(store, scope)) == values
        values = {**values, "at": bytes_min}
        saved = await save(store, scope, content=state(**values))
        await save(store, scope, f"other-{bytes_min}", content=state(**values))
        saved = await save(
            store,
            scope,
            content=patch(append={"c20000": [{"image": screen(bytes_min, 30_000)}]}),
            precondition=Precondition(head_id=saved.checkpoint_id),
        )
        values = {**values, "c20000": [*values["c20000"], {"image": screen(bytes_min, 30_000)}]}
        assert contents(await load(store, scope)) == values
        assert (await Blobs(store, bucket).fsck(scope)).clean
        assert (await store.verification.thread(scope, "t1")).findings == []
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert contents(await load(store, scope)) == values
    assert (await Blobs(store, bucket).fsck(scope)).clean


# --- a bucket that does not answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LOST_RESPONSE])
async def test_whatever_reads_a_piece_says_that_the_bucket_is_away_and_can_be_repeated(store, scope, bucket, fault):
    leaf = msgpack.packb(screen(3))
    saved = await save(store, scope, content=state(a=screen(1), b=[screen(2)]))
    await put(store, scope, saved.checkpoint_id, NewWrite(idx=0, channel="a", value=packed(screen(2))))
    piece_id = (await store.pieces.put(scope, "t1", leaf)).piece_id
    reads = {
        "load": lambda: load(store, scope),
        "history": lambda: store.checkpoints.history(scope, HistoryQuery(thread_id="t1", with_state=True)),
        "writes": lambda: store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", saved.checkpoint_id, "task")),
        "piece": lambda: store.pieces.get(scope, "t1", piece_id),
    }
    for name, read in reads.items():
        bucket.plan("get_range", fault)
        with pytest.raises(BlobUnavailable):
            await read()
        assert bucket.planned == 0, name
        await read()
    # References need no bucket at all.
    bucket.plan("get_range", fault)
    await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, refs=True))
    assert bucket.planned == 1


async def test_a_slow_read_of_a_piece_holds_no_connection(opened, scope, bucket):
    store = await opened(connections_max=1)
    await save(store, scope, content=state(a=screen(1)))
    bucket.plan("get_range", Fault.SLOW)
    loading = asyncio.create_task(load(store, scope))
    await bucket.waiting.wait()
    await save(store, scope, "t2", content=state(a=1))  # the pool has one connection, and it is free
    await store.threads.delete(scope, "t1")  # the blob outlives its thread: the object is still what was read
    bucket.release.set()
    assert contents(await loading) == {"a": screen(1)}


async def test_a_slow_upload_of_a_piece_holds_no_connection_and_no_lock(opened, scope, bucket):
    store = await opened(connections_max=1)
    first = await save(store, scope, content=state(a=1))
    bucket.plan("put_if_absent", Fault.SLOW)
    saving = asyncio.create_task(save(store, scope, content=state(a=screen(1))))
    await bucket.waiting.wait()
    between = await save(store, scope, content=state(a=2))
    bucket.release.set()
    saved = await saving
    assert first.checkpoint_id < between.checkpoint_id < saved.checkpoint_id
    assert saved.parent_id == between.checkpoint_id


# --- quota ---------------------------------------------------------------------------------------------------------


async def test_a_piece_over_the_quota_stores_nothing(store, scope, bucket, admin):
    await save(store, scope, content=state(a=screen(1)))
    before = await used_bytes(admin, scope)
    kept = await counts(admin, scope, "checkpoints", "chunks", "blobs", "blob_intents", "blob_refs", "pending_writes")
    await admin.execute(
        "UPDATE stateroom.blob_usage SET quota_bytes = $2 WHERE tenant_id = $1", scope.tenant_id, before + 200_000
    )
    head = (await load(store, scope)).checkpoint_id
    for refused in (
        lambda: save(store, scope, content=state(a=screen(2), b=screen(3))),  # either would fit, not both
        lambda: save(store, scope, "t2", content=state(a=screen(2), b=screen(3))),
        lambda: put(store, scope, head, NewWrite(idx=0, channel="a", value=packed([screen(2), screen(3)]))),
        lambda: store.pieces.put(scope, "t1", msgpack.packb(screen(2, 250_000))),
    ):
        with pytest.raises(QuotaExceeded):
            await refused()
        now = await counts(
            admin, scope, "checkpoints", "chunks", "blobs", "blob_intents", "blob_refs", "pending_writes"
        )
        assert now == kept
        assert await objects(bucket, scope) == 1
        assert await used_bytes(admin, scope) == before
    assert contents(await load(store, scope)) == {"a": screen(1)}
    await save(store, scope, content=state(a=screen(1), small="x" * 50_000))  # what needs no new room goes on
    await save(store, scope, content=state(a=screen(1), b=screen(2)))


async def test_what_was_uploaded_for_nothing_is_swept_and_its_room_given_back(store, scope, bucket, admin):
    for number in range(3):
        saved = await save(store, scope, content=state(a=number))
        bucket.waiting.clear()
        bucket.release.clear()
        bucket.plan("put_if_absent", Fault.SLOW)
        condition = Precondition(head_id=saved.checkpoint_id)
        overtaken = asyncio.create_task(save(store, scope, content=state(a=screen(number)), precondition=condition))
        await bucket.waiting.wait()
        await save(store, scope, content=state(a=number))
        bucket.release.set()
        with pytest.raises(HeadMoved):
            await overtaken
    assert await objects(bucket, scope) == 3
    assert await counts(admin, scope, "blobs", "blob_refs") == [0, 0]
    rows = Blobs(store, bucket)
    await rows.sweeper().tenant(scope.tenant_id, now=True)
    assert await objects(bucket, scope) == 0
    assert await used_bytes(admin, scope) == 0
    later = "UPDATE stateroom.blob_intents SET expires_at = expires_at - interval '1 day' WHERE tenant_id = $1"
    await admin.execute(later, scope.tenant_id)  # as long as tombstones stay
    await rows.sweeper().tenant(scope.tenant_id, now=True)
    assert await counts(admin, scope, "blobs", "blob_intents", "blob_refs") == [0, 0, 0]
    assert await used_bytes(admin, scope) == 0
    assert (await rows.fsck(scope)).clean


# --- whose ---------------------------------------------------------------------------------------------------------


async def test_equal_pieces_are_one_object_for_a_subject_and_for_nobody_else(store, scope, bucket, admin):
    content = state(a={"image": screen(1)})
    other_subject, other_tenant = Scope(scope.tenant_id, "user-2"), Scope(uuid4(), scope.subject_id)
    for thread_id in ("t1", "t2"):
        await save(store, scope, thread_id, content=content)
    leaf = msgpack.packb(screen(1))
    uploaded = await store.pieces.put(scope, "t3", leaf)
    assert await objects(bucket, scope) == 1
    assert await counts(admin, scope, "blobs", "blob_refs") == [1, 3]
    for number, other in enumerate((other_subject, other_tenant), 1):
        with pytest.raises(PieceNotFound):  # not even with the id
            await store.pieces.get(other, "t1", uploaded.piece_id)
        await save(store, other, content=content)
        with pytest.raises(PieceNotFound):
            await store.pieces.get(other, "t1", uploaded.piece_id)
        assert bucket.calls.count("put_if_absent") == 1 + number
    content_ids = await admin.fetch(
        "SELECT DISTINCT content_id FROM stateroom.blobs WHERE tenant_id = ANY($1)",
        [scope.tenant_id, other_tenant.tenant_id],
    )
    assert len(content_ids) == 3  # so that nobody can tell from the database that the contents are equal
    for other in (scope, other_subject, other_tenant):
        assert contents(await load(store, other)) == {"a": {"image": screen(1)}}


async def made(store, scope, thread_id="t1"):
    async def body():
        yield b"picture"

    await save(store, scope, thread_id)
    artifact = await store.artifacts.create(scope, thread_id, NewArtifact(name="a", media_type="image/png"), body())
    return artifact.pointer


async def test_a_state_can_name_artifacts_of_its_own_subject_only(store, scope):
    own = await made(store, scope, "t9")
    assert (await save(store, scope, content=state(a=own))).created
    for other in (Scope(scope.tenant_id, "user-2"), Scope(uuid4(), scope.subject_id)):
        foreign = await made(store, other)
        saved = await save(store, scope)
        for content in (
            state(a=[foreign]),
            state(a={foreign: 1}),
            state(**{foreign: 1}),
            patch(put={foreign: 1}),
            patch(append={"items": [foreign]}),
        ):
            condition = Precondition(head_id=saved.checkpoint_id)
            with pytest.raises(ArtifactUnknown):
                await save(store, scope, content=content, precondition=condition)
        with pytest.raises(ArtifactUnknown):
            await put(store, scope, saved.checkpoint_id, NewWrite(idx=0, channel="a", value=packed(foreign)))
        large = msgpack.ExtType(5, b"x" * 100_000 + foreign.encode())  # in a leaf that would be taken out
        with pytest.raises(ArtifactUnknown):
            await save(store, scope, content=state(a=large))


@pytest.mark.parametrize("table", ["checkpoints", "pending_writes"])
async def test_the_artifacts_that_a_row_names_are_bound_to_it(store, scope, admin, table):
    """They are what keeps an artifact from being deleted, so nobody may take them out of the row."""
    pointers = [await made(store, scope) for _ in range(2)]
    saved = await save(store, scope, content=state(a=pointers[0]))
    await put(store, scope, saved.checkpoint_id, NewWrite(idx=0, channel="a", value=packed(pointers[0])))
    named = UUID(pointers[0].rpartition(":")[2]).bytes
    other = UUID(pointers[1].rpartition(":")[2]).bytes
    update = f"UPDATE stateroom.{table} SET named_ids = $3 WHERE tenant_id = $1 AND named_ids = $2"  # noqa: S608  of two
    for wrong in (other, None, named + other):
        assert await admin.execute(update, scope.tenant_id, named, wrong) == "UPDATE 1"
        with pytest.raises(IntegrityFailure):
            await load(store, scope)
        assert (await store.verification.thread(scope, "t1")).findings
        if wrong is None:
            put_back = f"UPDATE stateroom.{table} SET named_ids = $2 WHERE tenant_id = $1 AND checkpoint_id = $3"  # noqa: S608
            await admin.execute(put_back, scope.tenant_id, named, saved.checkpoint_id)
        else:
            await admin.execute(update, scope.tenant_id, wrong, named)
    assert contents(await load(store, scope)) == {"a": pointers[0]}


async def test_the_blobs_that_a_chunk_names_are_bound_to_it(store, scope, admin):
    """A whole chunk in the place of another one is no content of its id; a part of one does not authenticate."""
    await save(store, scope, content=state(a=screen(1), b=screen(2)))
    first, second = await admin.fetch(
        "SELECT piece_id, named_ids, envelope FROM stateroom.chunks WHERE tenant_id = $1 ORDER BY piece_id",
        scope.tenant_id,
    )
    update = "UPDATE stateroom.chunks SET named_ids = $3, envelope = $4 WHERE tenant_id = $1 AND piece_id = $2"
    place = (scope.tenant_id, first["piece_id"])
    for named_ids, envelope in (
        (second["named_ids"], first["envelope"]),
        (None, first["envelope"]),
        (first["named_ids"] + second["named_ids"], first["envelope"]),
        (second["named_ids"], second["envelope"]),
        (first["named_ids"], second["envelope"]),
    ):
        await admin.execute(update, *place, named_ids, envelope)
        for refs in (False, True):
            with pytest.raises(IntegrityFailure):
                await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, refs=refs))
        assert [each.code for each in (await store.verification.thread(scope, "t1")).findings]
    await admin.execute(update, *place, first["named_ids"], first["envelope"])
    assert contents(await load(store, scope)) == {"a": screen(1), "b": screen(2)}


async def test_the_objects_of_two_pieces_cannot_be_exchanged(store, scope, bucket, admin):
    await save(store, scope, content=state(a=screen(1), b=screen(2)))
    ids = await admin.fetch("SELECT blob_id, pointer FROM stateroom.blobs WHERE tenant_id = $1", scope.tenant_id)
    update = "UPDATE stateroom.blobs SET pointer = $3 WHERE tenant_id = $1 AND blob_id = $2"
    await admin.execute(update, scope.tenant_id, ids[0]["blob_id"], ids[1]["pointer"])
    with pytest.raises(IntegrityFailure):
        await load(store, scope)
