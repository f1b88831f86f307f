from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgpack
import pytest

from storage.artifacts.model import NewArtifact
from storage.errors import ArtifactReferenced, CheckpointNotFound, ClientShareRequired, LegalHold, ThreadArchived
from storage.model import ChannelHistoryQuery, ChannelValue, FullState, Load, Parent, Removal, Save, TaskWritesQuery
from storage.scope import ClientShare, Scope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import opened
from tests.support.passing_time import PassingTime
from tests.support.states import contents, document, history, load, packed, put, save, state, write, writes_of

NOTHING = Removal(threads=0, checkpoints=0, pending_writes=0)
LATEST = ThinningRule(keep_last=1)
WINDOW = timedelta(days=7)
DAY = 86_400


@pytest.fixture
def clock(admin, scope):
    return PassingTime(admin, scope.tenant_id)


@pytest.fixture
async def store(database, root_key, clock):
    async with opened(database, root_key, clock=clock) as made:
        yield made


async def whole(store, scope):
    assert (await store.verification.thread(scope, "t1")).findings == []


async def steps(store, scope, namespace=""):
    return sorted(each.step for each in await history(store, scope, namespace=namespace, limit=1000))


async def pieces(admin, scope):
    return await admin.fetchval("SELECT count(*) FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)


async def test_a_rule_thins_every_namespace_and_what_stays_loads_as_before(store, scope, admin):
    for number in range(10):
        saved = await save(store, scope, step=number, content=state(a=document(str(number)), b=document("same")))
        await put(store, scope, saved.checkpoint_id, write(0, "a", document(f"w{number}")))
        await save(store, scope, namespace="sub", step=number)
    before = {each.checkpoint_id: each for each in await history(store, scope, with_state=True, limit=100)}
    rule = ThinningRule(every=4, keep_first=2)
    told = await store.pruning.preview(scope, "t1", rule)
    removal = await store.pruning.thin(scope, "t1", rule)
    assert told == removal == Removal(threads=1, checkpoints=10, pending_writes=5)
    assert await steps(store, scope) == await steps(store, scope, "sub") == [0, 1, 4, 8, 9]
    left = await history(store, scope, with_state=True, limit=100)
    ids = {each.checkpoint_id for each in left}
    for each in left:
        old = before[each.checkpoint_id]
        assert each == (old if old.parent_id in ids else replace(old, parent_id=None))
    assert await pieces(admin, scope) == 11
    assert await store.pruning.thin(scope, "t1", rule) == NOTHING
    await whole(store, scope)


async def test_a_preview_changes_nothing(store, scope):
    for _ in range(3):
        await save(store, scope)
    assert (await store.pruning.preview(scope, "t1", LATEST)).checkpoints == 2
    assert len(await history(store, scope)) == 3


async def test_the_maximum_leaves_the_newest_and_is_not_reached_for_at_every_save(store, scope):
    rule = ThinningRule(checkpoints_max=8)
    removed = []
    for number in range(20):
        await save(store, scope, step=number)
        removed.append((await store.pruning.thin(scope, "t1", rule)).checkpoints)
    assert [each for each in removed if each] == [3, 3, 3, 3]
    assert await steps(store, scope) == list(range(12, 20))
    await whole(store, scope)


async def test_what_was_written_to_inside_the_window_stays(store, scope, clock):
    old, lately = await save(store, scope), await save(store, scope)
    await put(store, scope, old.checkpoint_id, write(0, "a", 1))
    await clock.go_on(8 * DAY)
    await put(store, scope, lately.checkpoint_id, write(0, "a", 1))
    await save(store, scope)
    rule = ThinningRule(keep_last=1, writes_since=clock.now() - WINDOW)
    assert await store.pruning.thin(scope, "t1", rule) == Removal(threads=1, checkpoints=1, pending_writes=1)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=old.checkpoint_id)
    assert writes_of(await load(store, scope, checkpoint_id=lately.checkpoint_id))


async def test_an_interrupt_without_an_answer_keeps_its_writes_and_its_checkpoint(store, scope, clock):
    asked = await save(store, scope)
    await put(store, scope, asked.checkpoint_id, write(-3, "__interrupt__", "may I?"), status="waiting")
    aside = await save(store, scope, parent=Parent(None))
    await clock.go_on(30 * DAY)
    assert await store.pruning.thin(scope, "t1", LATEST) == NOTHING
    assert await store.pruning.drop_writes(scope, "t1", clock.now()) == NOTHING
    assert writes_of(await load(store, scope, checkpoint_id=asked.checkpoint_id))
    await save(store, scope, parent=Parent(asked.checkpoint_id))
    assert (await store.pruning.thin(scope, "t1", LATEST)).checkpoints == 2
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=aside.checkpoint_id)
    await whole(store, scope)


async def test_thinning_is_no_use_of_a_thread_but_changes_it(store, scope, clock, admin):
    for _ in range(3):
        await save(store, scope)
    activity = "SELECT activity FROM stateroom.threads WHERE tenant_id = $1"
    await clock.go_on(DAY)
    before, changes = (await store.threads.get(scope, "t1")).updated_at, await admin.fetchval(activity, scope.tenant_id)
    await store.pruning.thin(scope, "t1", LATEST)
    assert (await store.threads.get(scope, "t1")).updated_at == before
    assert await admin.fetchval(activity, scope.tenant_id) > changes


async def test_old_writes_go_where_nothing_is_rebuilt_from_them(store, scope, clock, admin):
    seed = await save(store, scope, content=state(d="seed"))
    await put(store, scope, seed.checkpoint_id, write(0, "d", document("delta")))
    plain = await save(store, scope, delta_channels=("d",))
    await put(store, scope, plain.checkpoint_id, write(0, "a", document("old")))
    head = await save(store, scope, content=state(d="all"))
    await put(store, scope, head.checkpoint_id, write(0, "a", document("head")))
    early = "ffffffff-ffff-6fff-bfff-ffffffffffff"
    await put(store, scope, early, write(0, "a", document("early")))
    await clock.go_on(8 * DAY)
    await put(store, scope, plain.checkpoint_id, write(1, "a", "new"), task_id="other")
    assert await store.pruning.drop_writes(scope, "t1", clock.now() - WINDOW) == NOTHING  # somebody is at work there
    await clock.go_on(8 * DAY)
    assert await store.pruning.drop_writes(scope, "t1", clock.now() - WINDOW) == Removal(
        threads=1, checkpoints=0, pending_writes=2
    )
    assert writes_of(await load(store, scope, checkpoint_id=plain.checkpoint_id)) == []
    assert writes_of(await load(store, scope)) == [("task", 0, "a", document("head"))]
    assert len(await store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", early, "task"))) == 1
    found = (
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", plain.checkpoint_id, ["d"]))
    ).channels["d"]
    assert [msgpack.unpackb(each.value.data) for each in found.writes] == [document("delta")]
    assert await pieces(admin, scope) == 3
    await whole(store, scope)


async def test_artifacts_and_blobs_stay_as_long_as_something_that_stays_names_them(store, scope, admin):
    await save(store, scope)

    async def body():
        yield b"picture"

    made = await store.artifacts.create(scope, "t1", NewArtifact(name="a.png", media_type="image/png"), body())
    image = "data:image/png;base64," + "A" * 150_000
    for number in range(4):
        parts = {"keep": packed([made.pointer, image])} if number == 1 else {}
        content = {name: ChannelValue("1", value) for name, value in {"n": packed(number), **parts}.items()}
        await save(store, scope, step=number, content=FullState(content))
    await store.pruning.thin(scope, "t1", ThinningRule(keep_first=3))
    unreferenced = "SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1 AND unreferenced_at IS NOT NULL"
    with pytest.raises(ArtifactReferenced):
        await store.artifacts.delete(scope, made.artifact_id)
    assert await admin.fetchval(unreferenced, scope.tenant_id) == 0
    await store.pruning.thin(scope, "t1", LATEST)
    assert await admin.fetchval(unreferenced, scope.tenant_id) == 1
    await store.artifacts.delete(scope, made.artifact_id)
    await whole(store, scope)


async def test_a_thread_under_a_share_is_thinned_with_it_and_left_alone_without(store, scope):
    share = ClientShare(b"s" * 32)
    for number in range(3):
        await store.checkpoints.save(scope, Save(thread_id="t1", content=state(a=number)), share)
    with pytest.raises(ClientShareRequired):
        await store.pruning.thin(scope, "t1", LATEST)
    assert (await store.pruning.thin(scope, "t1", LATEST, share=share)).checkpoints == 2
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True), share)
    assert contents(loaded.checkpoint) == {"a": 2}


async def test_an_archived_thread_and_an_unknown_one_are_passed_over(store, scope, admin):
    await save(store, scope)
    assert await store.pruning.thin(scope, "t2", LATEST) == NOTHING
    assert await store.pruning.thin(Scope(scope.tenant_id, "nobody"), "t1", LATEST) == NOTHING
    await admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    for work in (
        store.pruning.thin(scope, "t1", LATEST),
        store.pruning.preview(scope, "t1", LATEST),
        store.pruning.drop_writes(scope, "t1", datetime.now(UTC)),
    ):
        with pytest.raises(ThreadArchived) as told:
            await work
        assert told.value.thread_id is None  # so that nobody restores it for that


async def test_a_guard_forbids(store, scope):
    for _ in range(2):
        saved = await save(store, scope)
        await put(store, scope, saved.checkpoint_id, write(0, "a", 1))

    async def guard(_transaction):
        raise LegalHold

    for work in (
        store.pruning.thin(scope, "t1", LATEST, guard=guard),
        store.pruning.keep_latest(scope, "t1", guard=guard),
        store.pruning.drop_writes(scope, "t1", datetime(2100, 1, 1, tzinfo=UTC), guard=guard),
        store.threads.prune(scope, ["t1"], "keep_latest", guard=guard),
    ):
        with pytest.raises(LegalHold):
            await work
    assert len(await history(store, scope)) == 2
