"""Reading an archived thread from its object: the same answers, and nothing changes."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import asyncpg
import msgpack
import pytest

from crypto import KeyDestroyed
from storage.access.access import Access
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable
from storage.checkpoints.verbs import Checkpoints
from storage.clock import ManualClock
from storage.control.features import SEGMENTS
from storage.errors import (
    CheckpointNotFound,
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    IntegrityFailure,
    PieceNotFound,
    RestoreNeeded,
    RollbackDetected,
    StorageError,
    ThreadArchived,
    ThreadNotFound,
)
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    FullState,
    HistoryQuery,
    Load,
    Parent,
    Precondition,
    Save,
    TaskWrites,
    TaskWritesQuery,
    Value,
)
from storage.schemas.registry import Definition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.scope import ClientShare, Scope, TenantListing, TenantScope
from storage.service import Store, StoreOptions
from storage.threads.thinning import ThinningRule
from storage.tiers.views import ArchiveViews
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.features import switch_on
from tests.support.interleaving import parts_of
from tests.support.states import contents, document, history, load, packed, patch, put, save, state, write
from tests.support.stores import DEPLOYMENT_ID

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
UNKNOWN_ID = "1f0c0000-0000-6000-8000-000000000001"
TABLES = ("threads", "heads", "checkpoints", "chunks", "pending_writes", "archives", "blobs", "blob_refs", "jobs")
SHARE, WRONG = ClientShare(b"s" * 32), ClientShare(b"w" * 32)


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def bucket(clock):
    return FaultyBlobStore(MemoryBlobStore(clock=clock))


@pytest.fixture
async def store(connections, root_key, clock, bucket):
    blobs = MemoryBlobStore(clock=clock)
    options = StoreOptions(clock=clock, blobs=blobs, archive=bucket, offload_bytes_min=4096)
    opened = Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options)
    yield opened
    await opened.workers.close()


@pytest.fixture
async def admin(database):
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    yield connection
    await connection.close()


async def rows(admin, scope):
    """Every row of the tenant, as it is stored, and who stored it when."""
    found = {}
    for table in TABLES:
        every = f"SELECT ctid, xmin, t.* FROM stateroom.{table} t WHERE tenant_id = $1"  # noqa: S608  constants
        found[table] = sorted(tuple(row) for row in await admin.fetch(every, scope.tenant_id))
    return found


async def fill(store, scope, thread_id="t1", share=None):
    """A thread with forks, patches, two namespaces, delta channels, large values and writes, some of them early."""
    checkpoints = store.checkpoints

    async def saved(**parts):
        return (await checkpoints.save(scope, Save(thread_id=thread_id, **parts), share)).checkpoint_id

    async def written(checkpoint_id, *writes, namespace="", task_id="task", task_path="", status=None):
        await checkpoints.put_writes(
            scope, TaskWrites(thread_id, namespace, checkpoint_id, task_id, task_path, writes, status), share
        )

    ids = [await saved(content=state(log=["a", "b"], note=document("n1"), big=document("big", 70_000)), agent="x")]
    await written(ids[0], write(0, "delta", "w1"), write(1, "log", document("w2")), task_path="~2")
    await written(ids[0], write(-1, "delta", document("big write", 9_000)), task_id="é", task_path="~1")
    ids.append(await saved(content=state(x=1), delta_channels=("log",), run_id="r1", metadata={"k": {"n": 1}}))
    await written(ids[1], write(0, "log", "w3"), status="waiting")
    ids.append(
        await saved(content=state(x=2), delta_channels=("log",), source="fork", parent=Parent(ids[0]), status="failed")
    )
    changes = patch(put={"y": document("n1")}, append={"log": [1, 2]})
    ids.append(await saved(content=changes, agent="y", precondition=Precondition(head_id=ids[-1])))
    for number in range(3):
        ids.append(await saved(namespace="sub", content=state(n=number, log=[document(f"s{number}")])))  # noqa: PERF401
    await written(ids[-1], write(0, "n", 7), write(-3, "__interrupt__", "?"), namespace="sub")
    await written(UNKNOWN_ID, write(0, "early", document("early")))
    return ids


async def answered(work):
    """What it answers, or how it refuses."""
    try:
        return await work
    except StorageError as error:
        return (type(error), str(error))


async def pages(store, scope, query, share):
    """All pages of a listing, up to one that is refused."""
    found = []
    while True:
        page = await answered(store.checkpoints.history(scope, query, share))
        found.append(page)
        if isinstance(page, tuple) or page.after is None:
            return found
        query = replace(query, after=page.after)


async def asked(store, scope, ids, thread_id="t1", share=None, *, crossed=False):
    """What every verb that reads one thread answers, or how it refuses.

    Every place is asked for, with every filter and every way to read, and, if they are ``crossed``, each with each.
    """
    checkpoints = store.checkpoints
    token = (await checkpoints.load(scope, Load(thread_id, "", None, with_state=False), share)).token
    read = []
    # Of checkpoints that are elsewhere one each is enough.
    places = [
        *product([""], (None, *ids[:4], ids[-1], UNKNOWN_ID, "zzz")),
        *product(["sub"], (None, ids[0], *ids[4:], UNKNOWN_ID)),
        *product(["none"], (None, ids[0])),
    ]
    if crossed:
        places = [*product(("", "sub", "none"), (None, *ids, UNKNOWN_ID, "zzz"))]
    for namespace, checkpoint_id in places:
        place = (thread_id, namespace, checkpoint_id)
        wanted = ["log", "delta", "x", "never"]
        with_history = {"with_state": True, "history": wanted}
        for options in ({"with_state": True}, {"with_state": False}, {"with_state": True, "refs": True}, with_history):
            work = checkpoints.load(scope, Load(*place, known_token=token, **options), share)
            read.append(await answered(work))
        read.append(await answered(checkpoints.channel_history(scope, ChannelHistoryQuery(*place, wanted), share)))
        read.append(
            await answered(
                checkpoints.task_writes(
                    scope, TaskWritesQuery(thread_id, namespace, checkpoint_id or "", "task", refs=True), share
                )
            )
        )
    moment = NOW + timedelta(seconds=1)
    filters = (
        {}, {"namespace": "sub"}, {"status": "waiting"}, {"status": "failed"}, {"step": 1}, {"run_id": "r1"},
        {"source": "fork"}, {"agent": "x"}, {"agent": "nobody"}, {"since": moment}, {"until": moment},
        {"before": ids[2]}, {"metadata": {"k": {"n": 1}}}, {"known_token": token}, {"known_token": "no token"},
    )  # fmt: skip
    ways = ({}, {"with_state": True}, {"with_state": True, "refs": True})
    in_turn = [({}, way) for way in ways] + [(each, ways[at % 3]) for at, each in enumerate(filters[1:], 1)]
    for wanted, options in product(filters, ways) if crossed else in_turn:
        read += await pages(
            store, scope, HistoryQuery(**{"thread_id": thread_id, "limit": 2, **wanted, **options}), share
        )
    shown = await checkpoints.load(scope, Load(thread_id, "", ids[0], with_state=True, refs=True), share)
    value = shown.checkpoint.channels["big"].value
    pieces = [value.data[at + 3 : at + 20] for at in value.holes]  # what a placeholder says
    for piece_id in (*pieces, b"\x01" * 17):
        read.append(await answered(store.pieces.get(scope, thread_id, piece_id, share)))
    return read


@pytest.mark.parametrize("crossed", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["in turn", "crossed"])
@pytest.mark.parametrize("share", [None, SHARE], ids=["plain", "client share"])
async def test_every_read_is_the_same_before_from_the_archive_and_after(store, scope, admin, share, crossed):
    ids = await fill(store, scope, share=share)
    hot = await asked(store, scope, ids, share=share, crossed=crossed)
    assert (await store.archives.archive(scope, "t1")).created
    left = await admin.fetchval("SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    assert left == 0
    assert await asked(store, scope, ids, share=share, crossed=crossed) == hot
    assert await store.archives.restore(scope, "t1")
    assert await asked(store, scope, ids, share=share, crossed=crossed) == hot
    answers = [each for each in hot if not isinstance(each, tuple)]
    assert len(answers) > len(hot) // 2
    assert sum(isinstance(each, bytes) for each in answers) == 1


async def test_reading_an_archive_writes_nothing_and_leaves_it_where_it_is(store, scope, admin, bucket):
    ids = await fill(store, scope)
    await store.archives.archive(scope, "t1")
    before = await rows(admin, scope)
    bucket.calls.clear()
    await asked(store, scope, ids)
    assert await rows(admin, scope) == before
    assert {*bucket.calls} <= {"get", "get_range", "head"}
    assert (await store.threads.get(scope, "t1")).tier == "archive"


# --- whose it is ---------------------------------------------------------------------------------------------------


async def test_nobody_else_reads_it_and_its_object_is_not_even_fetched(store, scope, bucket):
    await save(store, scope)
    await store.archives.archive(scope, "t1")
    bucket.calls.clear()
    other = Scope(scope.tenant_id, "user-2")
    await save(store, other, "t2")
    for stranger in (other, Scope(scope.tenant_id, "user-3")):
        with pytest.raises(CheckpointNotFound):
            await load(store, stranger)
        with pytest.raises(ThreadNotFound):
            await history(store, stranger, thread_id="t1")
        with pytest.raises(PieceNotFound):
            await store.pieces.get(stranger, "t1", b"\x01" * 17)
    assert bucket.calls == []


async def test_the_share_is_compared_before_the_object_is_fetched(store, scope, bucket):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(x=1)), SHARE)
    await save(store, scope, "t2")
    for thread_id in ("t1", "t2"):
        await store.archives.archive(scope, thread_id)
    bucket.calls.clear()
    cases = (("t1", None, ClientShareRequired), ("t1", WRONG, ClientShareWrong), ("t2", SHARE, ClientShareUnexpected))
    for thread_id, share, error in cases:
        with pytest.raises(error):
            await store.checkpoints.load(scope, Load(thread_id, "", None, with_state=True), share)
        with pytest.raises(error):
            await store.checkpoints.history(scope, HistoryQuery(thread_id=thread_id), share)
        with pytest.raises(error):
            await store.checkpoints.channel_history(scope, ChannelHistoryQuery(thread_id, "", None, ["x"]), share)
        with pytest.raises(error):
            await store.checkpoints.task_writes(scope, TaskWritesQuery(thread_id, "", UNKNOWN_ID, "task"), share)
    assert bucket.calls == []


async def test_a_shredded_subject_cannot_read_its_archives(store, scope):
    await save(store, scope)
    await store.archives.archive(scope, "t1")
    await load(store, scope)
    await store.shred.subject(scope, scope.subject_id, "somebody")
    with pytest.raises(KeyDestroyed):
        await load(store, scope)


async def test_a_token_of_a_newer_life_is_refused_from_the_archive(store, scope, admin):
    await save(store, scope)
    old = await admin.fetch("SELECT * FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id)
    await save(store, scope)
    token = (await store.checkpoints.load(scope, Load("t1", "", None, with_state=False))).token
    await store.archives.archive(scope, "t1")
    await admin.execute(
        "UPDATE stateroom.heads SET head_id = $2, sequence = $3, seal = $4 WHERE tenant_id = $1",
        scope.tenant_id, old[0]["head_id"], old[0]["sequence"], old[0]["seal"],
    )  # fmt: skip
    with pytest.raises(RollbackDetected):
        await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, known_token=token))
    # And without a token: the archive has more than the older head knows of.
    with pytest.raises(IntegrityFailure):
        await store.checkpoints.history(scope, HistoryQuery(thread_id="t1"))


# --- frozen --------------------------------------------------------------------------------------------------------


async def test_a_frozen_archive_says_so_and_is_not_thawed_by_reading(store, scope, admin, bucket, clock):
    ids = await fill(store, scope)
    hot = await asked(store, scope, ids)
    await store.archives.archive(scope, "t1", storage_class="DEEP_ARCHIVE")
    before = await rows(admin, scope)
    bucket.calls.clear()
    reads = (
        lambda: load(store, scope),
        lambda: load(store, scope, checkpoint_id=ids[0]),
        lambda: store.checkpoints.load(scope, Load("t1", "", ids[1], with_state=False)),
        lambda: history(store, scope, thread_id="t1"),
        lambda: store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["log"])),
        lambda: store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", ids[0], "task")),
        lambda: store.pieces.get(scope, "t1", b"\x01" * 17),
        lambda: store.states.load(scope, AS_SAVED, Load("t1", "", None, with_state=True)),
    )
    for read in reads:
        with pytest.raises(ThreadArchived) as refused:
            await read()
        assert (refused.value.thread_id, refused.value.state) == ("t1", "frozen")
        assert refused.value.retry_after_seconds > 3600
    assert "thaw" not in bucket.calls
    assert await rows(admin, scope) == before
    async with store.unit_of_work.snapshot(scope) as transaction:
        stub = await store.archives.objects.stub(transaction, "t1")
    await store.archives.objects.thaw(scope, stub)
    with pytest.raises(ThreadArchived) as refused:
        await load(store, scope)
    assert refused.value.state == "thawing"
    assert refused.value.retry_after_seconds > 0
    clock.set(NOW + timedelta(hours=49))
    assert await asked(store, scope, ids) == hot


# --- meanwhile -----------------------------------------------------------------------------------------------------


async def restore(store, scope):
    await store.archives.restore(scope, "t1")


async def delete(store, scope):
    await store.threads.delete(scope, "t1")


async def archive_anew(store, scope):
    await save(store, scope, content=state(x="newer"))
    await store.archives.archive(scope, "t1")


@pytest.mark.parametrize("change", [restore, delete, archive_anew], ids=lambda each: each.__name__)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_what_happens_while_the_object_is_fetched_is_seen_whole(store, scope, bucket, change, moment):
    await save(store, scope, content=state(x="old"))
    await store.archives.archive(scope, "t1")
    changed = False

    async def meanwhile(now, operation):
        nonlocal changed
        if not changed and (now, operation) == (moment, "get_range" if "get_range" in bucket.calls else "get"):
            changed = True
            await change(store, scope)

    bucket.calls.clear()
    bucket.hook = meanwhile
    if change is delete:
        with pytest.raises(CheckpointNotFound):
            await load(store, scope)
    else:
        assert contents(await load(store, scope)) == {"x": "newer" if change is archive_anew else "old"}
    assert changed


# --- damage --------------------------------------------------------------------------------------------------------


MOVED = "UPDATE stateroom.archives SET thread_id = 't1' WHERE tenant_id = $1"
EXCHANGED = """
UPDATE stateroom.archives a SET blob_id = b.blob_id, sealed = b.sealed FROM stateroom.archives b
WHERE a.tenant_id = $1 AND b.tenant_id = $1 AND a.thread_id = 't1' AND b.thread_id = 't2'
"""
REMOVED = "DELETE FROM stateroom.archives WHERE tenant_id = $1 AND thread_id = 't1'"
EMPTIED = "UPDATE stateroom.archives SET checkpoints = 0 WHERE tenant_id = $1 AND thread_id = 't1'"


@pytest.mark.parametrize(
    "damage", [[REMOVED], [EMPTIED], [EXCHANGED], [REMOVED, MOVED]], ids=["removed", "emptied", "exchanged", "moved"]
)
async def test_a_stub_that_was_edited_opens_nothing(store, scope, admin, damage):
    for thread_id in ("t1", "t2"):
        await save(store, scope, thread_id)
        await store.archives.archive(scope, thread_id)
    for statement in damage:
        await admin.execute(statement, scope.tenant_id)
    for read in (lambda: load(store, scope), lambda: history(store, scope, thread_id="t1")):
        with pytest.raises(IntegrityFailure):
            await read()


async def put_back(admin, row):
    """Store a row of checkpoints again, as whoever writes to the database can."""
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    insert = f"INSERT INTO stateroom.checkpoints ({', '.join(row.keys())}) VALUES ({places})"  # noqa: S608  its columns
    await admin.execute(insert, *row.values())


async def test_a_removed_checkpoint_that_is_put_beside_an_archive_stays_removed(store, scope, admin):
    first = await save(store, scope, content=state(x="old"))
    row = await admin.fetchrow("SELECT * FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    await save(store, scope, content=state(x="new"))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await store.archives.archive(scope, "t1")
    await put_back(admin, row)
    for with_state in (True, False):
        with pytest.raises(CheckpointNotFound):
            await store.checkpoints.load(scope, Load("t1", "", first.checkpoint_id, with_state=with_state))


async def test_rows_that_are_put_beside_an_archive_are_not_believed(store, scope, admin):
    first = await save(store, scope, content=state(x="old"))
    row = await admin.fetchrow("SELECT * FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    await save(store, scope, content=state(x="new"))
    await store.archives.archive(scope, "t1")
    await put_back(admin, row)
    assert contents(await load(store, scope)) == {"x": "new"}
    assert [contents(each)["x"] for each in await history(store, scope, thread_id="t1", with_state=True)] == [
        "new",
        "old",
    ]
    assert contents(await load(store, scope, checkpoint_id=first.checkpoint_id)) == {"x": "old"}


# --- how much ------------------------------------------------------------------------------------------------------


async def statements(store, work):
    """The statements that some work runs on the pool's only connection."""
    seen = []

    def log(record):
        seen.append(record.query)

    async with store.unit_of_work.connection() as connection:
        connection.add_query_logger(log)
    await work()
    async with store.unit_of_work.connection() as connection:
        await asyncio.sleep(0)  # what was logged last is on its way
        connection.remove_query_logger(log)
    return seen


async def test_a_hot_read_costs_what_it_did(database, root_key, scope, clock, bucket):
    store = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=1,
        durable=False,
        options=StoreOptions(clock=clock, archive=bucket),
    )
    try:
        first = await save(store, scope)
        await save(store, scope)
        for read, count in (
            (lambda: load(store, scope), 1),
            (lambda: store.checkpoints.load(scope, Load("t1", "", None, with_state=False)), 1),
            (lambda: load(store, scope, checkpoint_id=first.checkpoint_id), 1),
            (lambda: history(store, scope, thread_id="t1", limit=1), 7),  # with BEGIN and COMMIT; the parent
            (lambda: history(store, scope), 5),
        ):
            await read()
            seen = await statements(store, read)
            assert len(seen) == count, seen
        assert bucket.calls == []
    finally:
        await store.close()


def reading_through(store, clock, views):
    return Checkpoints(Access(parts_of(store, store.unit_of_work, clock), views=views))


async def test_an_archive_larger_than_a_read_may_hold_is_restored_first(store, scope, bucket, clock):
    await save(store, scope, content=state(x=document("x", 3000)))
    await store.archives.archive(scope, "t1")
    bucket.calls.clear()
    views = ArchiveViews(store.unit_of_work, store.archives.objects, bytes_max=2000)
    checkpoints = reading_through(store, clock, views)
    with pytest.raises(RestoreNeeded, match="restore the thread"):
        await checkpoints.load(scope, Load("t1", "", None, with_state=True))
    assert bucket.calls == []
    await store.archives.restore(scope, "t1")
    loaded = await checkpoints.load(scope, Load("t1", "", None, with_state=True))
    assert contents(loaded.checkpoint) == {"x": document("x", 3000)}


async def test_readers_share_their_memory_and_give_it_back(store, scope, bucket, clock):
    for number in range(6):
        await save(store, scope, f"t{number}", content=state(x=document("x", 3000)))
        await store.archives.archive(scope, f"t{number}")
    views = ArchiveViews(store.unit_of_work, store.archives.objects, bytes_max=9000, all_bytes_max=9000)
    checkpoints = reading_through(store, clock, views)
    most = 0

    async def look(moment, operation):
        nonlocal most
        most = max(most, views.budget.held_bytes)

    bucket.hook = look
    loaded = await asyncio.gather(
        *(checkpoints.load(scope, Load(f"t{number}", "", None, with_state=True)) for number in range(6))
    )
    assert [contents(each.checkpoint) for each in loaded] == [{"x": document("x", 3000)}] * 6
    assert 0 < most <= 9000
    assert views.budget.held_bytes == 0
    bucket.hook = None
    bucket.inner.available = False
    with pytest.raises(BlobUnavailable):
        await checkpoints.load(scope, Load("t1", "", None, with_state=True))
    assert views.budget.held_bytes == 0


# --- what is around it ---------------------------------------------------------------------------------------------


async def test_listings_show_the_thread_and_not_its_checkpoints(store, scope):
    await save(store, scope, "t1", agent="x", status="failed")
    kept = await store.threads.get(scope, "t1")
    await save(store, scope, "t2")
    await store.archives.archive(scope, "t1")
    shown = (await store.threads.list(scope, tier="archive")).items
    assert [(each.thread_id, each.tier) for each in shown] == [("t1", "archive")]
    assert (shown[0].agent, shown[0].status, shown[0].head_id, shown[0].created_at, shown[0].updated_at) == (
        kept.agent, kept.status, kept.head_id, kept.created_at, kept.updated_at,
    )  # fmt: skip
    assert [each.thread_id for each in (await store.threads.list(scope, tier="hot")).items] == ["t2"]
    assert {each.thread_id for each in (await store.threads.list(scope, agent="x")).items} == {"t1"}
    assert [each.thread_id for each in await history(store, scope)] == ["t2"]
    listed = await store.checkpoints.tenant_listing(TenantListing(scope.tenant_id), HistoryQuery())
    assert [each.checkpoint.thread_id for each in listed.items] == ["t2"]
    failed = await store.checkpoints.tenant_listing(TenantListing(scope.tenant_id), HistoryQuery(status="failed"))
    assert failed.items == []


async def test_artifacts_that_an_archived_checkpoint_names_are_there(store, scope):
    async def body():
        yield b"a report"

    artifact = await store.artifacts.create(scope, "t1", NewArtifact(name="report.txt"), body())
    named = msgpack.packb({"file": f"stateroom:artifact:{artifact.artifact_id}"})
    await save(store, scope, content=FullState({"doc": ChannelValue(None, Value("msgpack", named))}))
    await store.archives.archive(scope, "t1")
    shown = await load(store, scope)
    assert shown.channels["doc"].value.data == named
    opened = await store.artifacts.open_named(scope, [artifact.artifact_id])
    content = opened[artifact.artifact_id]
    assert b"".join([part async for part in content.read(0, 8)]) == b"a report"
    assert [each.artifact_id for each in (await store.artifacts.list(scope, "t1")).items] == [artifact.artifact_id]
    assert (await store.threads.get(scope, "t1")).tier == "archive"


@pytest.mark.parametrize("where", ["archive", "segment"])
async def test_state_of_an_older_version_is_converted_out_of_the_archive(store, scope, where):
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    rename = [{"op": "rename", "from": "/pref", "to": "/profile"}]
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=rename))
    versioned = {"state_schema": "travel", "state_version": 1}
    first = await store.states.save(scope, Save(thread_id="t1", content=state(pref=["aisle"]), **versioned))
    await put(store, scope, first.checkpoint_id, write(0, "pref", ["window"]), **versioned)
    await store.states.save(scope, Save(thread_id="t1", content=state(other=1), delta_channels=("pref",), **versioned))
    if where == "segment":
        await switch_on(store, SEGMENTS)
        last = Save(thread_id="t1", content=state(pref=["any"]), **versioned)
        await store.states.save(scope, last)

    async def read():
        return [
            await store.states.load(
                scope, WantedVersions(any_schema=2), Load("t1", "", first.checkpoint_id, with_state=True)
            ),
            await store.states.history(
                scope, WantedVersions(any_schema=2), HistoryQuery(thread_id="t1", with_state=True, refs=True)
            ),
            await store.states.channel_history(
                scope, WantedVersions(any_schema=2), ChannelHistoryQuery("t1", "", None, ["profile"])
            ),
            await store.states.task_writes(
                scope, WantedVersions(any_schema=2), TaskWritesQuery("t1", "", first.checkpoint_id, "task")
            ),
        ]

    hot = await read()
    assert contents(hot[0].checkpoint) == {"profile": ["aisle"]}
    if where == "segment":
        moved = await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
        assert moved.checkpoints == 2
    else:
        assert hot[2].channels["profile"].writes[0].value == packed(["window"])
        await store.archives.archive(scope, "t1")
    assert await read() == hot
    assert (await store.threads.get(scope, "t1")).segmented == (where == "segment")
    await store.archives.restore(scope, "t1")
    assert await read() == hot
