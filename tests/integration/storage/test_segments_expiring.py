"""Volumes of segments that are old enough go: as thinning of the same checkpoints, and without reading an object."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from random import Random  # noqa: TID251  seeded

import msgpack
import pytest

from storage.archive.choosing import SegmentBounds
from storage.archive.expiring import Expiring
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import Sweep
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import CheckpointNotFound, IntegrityFailure, LegalHold, ThreadArchived, ThreadNotFound, Unavailable
from storage.format.cold.segment import SegmentList
from storage.model import ChannelHistoryQuery, Parent, Precondition
from storage.retention.planner import Policy
from storage.scope import Scope, TenantScope
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import threads as threads_sql
from storage.threads.pruning import _Request
from storage.threads.thinning import ThinningRule
from storage.tiers.segments import open_list
from tests.support.archive_rows import fsck, opened, rows
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.features import switch_on
from tests.support.interleaving import WAIT_SECONDS, Gate, Steered
from tests.support.segments import ChosenBounds, Volumes, move_within
from tests.support.states import contents, document, history, load, put, save, state, write

OLD = ThinningRule(keep_last=1)
ALWAYS = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = 3600


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=FaultyBlobStore(MemoryBlobStore())) as made:
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(made, each)
        yield made


@pytest.fixture
def volumes():
    """How many segments the next volumes have."""
    return Volumes()


async def move(store, scope, rule=OLD, thread_id="t1", checkpoints_max=1000, volumes=None):
    bounds = SegmentBounds(checkpoints_max) if volumes is None else ChosenBounds(checkpoints_max, volumes=volumes)
    return await move_within(bounds, store, scope, rule, thread_id=thread_id)


async def expire(store, scope, before=ALWAYS, thread_id="t1", **options):
    return await store.archives.expiring.expire(scope, thread_id, before, actor="test", **options)


async def chat(store, scope, turns, thread_id="t1", **parts):
    """Turns of a chat, each with a pending write; returns the ids."""
    ids = []
    for number in range(turns):
        content = state(messages=[document(f"{thread_id}-{each}", 700) for each in range(number)], note=number)
        saved = await save(store, scope, thread_id, content=content, **parts)
        await put(store, scope, saved.checkpoint_id, write(0, "messages", f"w{number}"), thread_id=thread_id)
        ids.append(saved.checkpoint_id)
    return ids


async def clean(store, scope, thread_id="t1"):
    report = await store.verification.thread(scope, thread_id)
    assert report.findings == []
    assert (await fsck(store, scope)).faults == {}
    return report


async def ids_of(store, scope, thread_id="t1", **query):
    return [each.checkpoint_id for each in await history(store, scope, thread_id=thread_id, limit=1000, **query)]


async def numbers(admin, scope, thread_id="t1"):
    return sorted((row["volume"], row["segment"]) for row in await rows(admin, scope, thread_id, "archives"))


async def aged(admin, scope, *segments):
    """Let these segments have been made an hour ago; returns the moment before which they were."""
    await admin.execute(
        "UPDATE stateroom.archives SET stored_at = stored_at - interval '1 hour'"
        " WHERE tenant_id = $1 AND segment = ANY($2::integer[])",
        scope.tenant_id, list(segments),
    )  # fmt: skip
    return await admin.fetchval("SELECT now() - interval '30 minutes'")


async def delta(store, scope, checkpoint_id, thread_id="t1", namespace=""):
    query = ChannelHistoryQuery(thread_id, namespace, checkpoint_id, ["d"])
    found = (await store.checkpoints.channel_history(scope, query)).channels["d"]
    seed = None if found.seed is None else msgpack.unpackb(found.seed.value.data)
    return seed, [msgpack.unpackb(each.value.data) for each in found.writes]


async def test_what_has_been_in_segments_for_long_enough_goes_and_the_thread_goes_on(store, scope, admin):
    ids = await chat(store, scope, 12)
    await move(store, scope, checkpoints_max=4)
    [before] = await rows(admin, scope, "t1", "threads")
    token = (await load(store, scope)).checkpoint_id
    store.archive.calls.clear()

    done = await expire(store, scope)

    assert (done.segments, done.checkpoints, done.pending_writes) == (3, 11, 11)
    assert done.size_bytes > 0
    assert store.archive.calls == []
    [after] = await rows(admin, scope, "t1", "threads")
    assert after["cold"] is None
    assert {name for name in after if after[name] != before[name]} == {"cold", "seal"}
    assert await rows(admin, scope, "t1", "archives") == []
    assert await ids_of(store, scope) == ids[-1:]
    assert (await load(store, scope)).checkpoint_id == token
    for each in ids[:-1]:
        with pytest.raises(CheckpointNotFound):
            await load(store, scope, checkpoint_id=each)
    assert (await clean(store, scope)).pending_writes == 1
    saved = await save(store, scope, content=state(on=1))
    assert (saved.parent_id, saved.sequence) == (ids[-1], 12 + 12 + 1 + 1)
    assert (await expire(store, scope)).segments == 0
    assert not await store.archives.restore(scope, "t1")
    await Sweep(store.unit_of_work, store.buckets, 0, grace_seconds=0).tenant(scope.tenant_id, now=True)
    assert await store.archive.list_keys(tenant_prefix(scope.tenant_id, "archive")) == []
    await clean(store, scope)


async def test_it_is_in_the_audit_log_and_a_preview_says_it_before(store, scope, volumes):
    volumes.counts += [2, 1]
    await chat(store, scope, 7)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    foreseen = await store.archives.expiring.preview(scope, "t1", ALWAYS)
    assert await expire(store, scope) == foreseen
    page = await store.audit.page(TenantScope(scope.tenant_id), "tester", limit=100)
    told = [each.event for each in page.items if each.event.action == "segment.expire"]
    assert sorted((each.detail["volume"], each.detail["segments"]) for each in told) == [(1, [1, 2]), (3, [3])]
    assert sum(each.detail["checkpoints"] for each in told) == foreseen.checkpoints == 6
    assert {each.target for each in told} == {f'thread:["{scope.subject_id}","t1"]'}


async def test_a_volume_goes_as_a_whole_when_its_newest_segment_is_old_enough(store, scope, admin, volumes):
    volumes.counts += [2, 2]
    ids = await chat(store, scope, 9)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    assert await numbers(admin, scope) == [(1, 1), (1, 2), (3, 3), (3, 4)]
    before = await aged(admin, scope, 1, 2, 3)
    assert (await expire(store, scope, before)).segments == 2
    assert await numbers(admin, scope) == [(3, 3), (3, 4)]
    assert await ids_of(store, scope) == ids[:3:-1]
    await clean(store, scope)
    await aged(admin, scope, 4)
    assert (await expire(store, scope, before)).segments == 2
    assert await ids_of(store, scope) == ids[-1:]


async def test_an_object_that_was_exchanged_is_as_old_as_the_one_before_and_says_what_it_did(
    store, scope, admin, volumes
):
    await chat(store, scope, 5)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    before = await aged(admin, scope, 1)
    made = [(row["segment"], row["stored_at"]) for row in await rows(admin, scope, "t1", "archives")]
    objects = {row["blob_id"] for row in await rows(admin, scope, "t1", "archives")}
    await finished(store, scope, (await store.rotation.rotate_subject(scope, "tester", complete=True)).job_id)
    assert objects.isdisjoint(row["blob_id"] for row in await rows(admin, scope, "t1", "archives"))
    assert sorted((row["segment"], row["stored_at"]) for row in await rows(admin, scope, "t1", "archives")) == sorted(
        made
    )
    assert (await expire(store, scope, before)).segments == 1
    await clean(store, scope)


async def test_what_was_pruned_to_one_checkpoint_moves_and_expires_on(store, scope, admin):
    for _ in range(3):
        await chat(store, scope, 4)
        await move(store, scope)
        assert (await expire(store, scope)).segments == 1
        assert len(await ids_of(store, scope)) == 1
    await clean(store, scope)


# --- cold namespaces -------------------------------------------------------------------------------------------------


async def agent(store, scope, turns):
    names = []
    for number in range(turns):
        at = (await save(store, scope, content=state(turn=number))).checkpoint_id
        names.append(f"work:{number}")
        for step in range(2):
            content = state(step=step, text=document(f"{number}-{step}", 900))
            saved = await save(store, scope, namespace=names[-1], content=content, metadata={"parents": {"": at}})
        await put(store, scope, saved.checkpoint_id, write(0, "c", number), namespace=names[-1])
    await save(store, scope, content=state(turn=turns))
    return names


async def test_namespaces_that_are_in_segments_whole_are_gone_and_can_be_begun_anew(store, scope, admin, volumes):
    volumes.counts += [2, 1]
    names = await agent(store, scope, 3)
    await move(store, scope, checkpoints_max=3, volumes=volumes)
    before = await aged(admin, scope, 1, 2)
    assert (await expire(store, scope, before)).checkpoints == 6
    assert await history(store, scope, thread_id="t1", namespace=names[0]) == []
    assert len(await history(store, scope, thread_id="t1", namespace=names[2])) == 2
    await clean(store, scope)
    saved = await save(store, scope, namespace=names[0], precondition=Precondition(absent=True))
    assert saved.sequence > 3, "no sequence returns"
    await clean(store, scope)
    assert (await expire(store, scope)).checkpoints == 3
    [thread] = await rows(admin, scope, "t1", "threads")
    assert (thread["cold"], thread["cold_namespaces"]) == (None, None)
    assert {each.namespace for each in await history(store, scope, thread_id="t1")} == {"", names[0]}
    await clean(store, scope)


async def test_anchored_heads_that_went_are_accounted_for(store, scope, admin):
    await agent(store, scope, 3)
    await store.head_anchors.flush()
    await move(store, scope)
    assert (await expire(store, scope)).checkpoints == 9
    assert (await store.verification.subject(scope)).findings == []
    await store.head_anchors.flush()
    assert (await store.verification.subject(scope)).findings == []
    assert await ids_of(store, scope, namespace="work:0") == []


async def parted(store, scope, admin, **parts):
    """A namespace with its head in the second volume and a checkpoint in the first, where the root has one in each."""
    ids = []
    for number in range(3):
        await save(store, scope, content=state(n=number))
        ids.append((await save(store, scope, namespace="sub", content=state(n=number), **parts)).checkpoint_id)
        await put(store, scope, ids[-1], write(0, "d", number), namespace="sub")
        if number == 1:
            await move(store, scope, volumes=Volumes())
    await save(store, scope, content=state(n=3))
    await move(store, scope, ThinningRule(made_since=ALWAYS), volumes=Volumes())
    assert await numbers(admin, scope) == [(1, 1), (2, 2)]
    assert {row["namespace"] for row in await rows(admin, scope, "t1", "heads")} == {""}
    return ids


async def test_a_head_in_a_segment_goes_on_without_what_is_gone(store, scope, admin, volumes):
    ids = await parted(store, scope, admin)
    before = await aged(admin, scope, 1)
    left = await ids_of(store, scope, namespace="sub")
    assert (await expire(store, scope, before)).segments == 1
    assert await ids_of(store, scope, namespace="sub") == left[:2]
    await clean(store, scope)
    saved = await save(store, scope, namespace="sub", content=state(n=9))
    assert (saved.parent_id, saved.sequence) == (ids[-1], 3 + 3 + 1 + 1)
    await clean(store, scope)


async def test_a_head_in_a_segment_stays_for_what_its_namespace_has_in_others(store, scope, admin, volumes):
    await parted(store, scope, admin)
    before = await aged(admin, scope, 2)
    assert (await expire(store, scope, before)).segments == 0
    await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 2
    assert await ids_of(store, scope, namespace="sub") == []
    await clean(store, scope)


async def finished(store, scope, job_id):
    async with asyncio.timeout(60):
        while (await store.jobs.get(TenantScope(scope.tenant_id), job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()


async def test_a_list_that_is_sealed_again_keeps_the_key_versions_it_needs(store, scope, admin, volumes):
    await parted(store, scope, admin)
    job = await store.rotation.rotate_subject(scope, "tester")
    await finished(store, scope, job.job_id)
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 1
    [stub] = await rows(admin, scope, "t1", "archives")
    assert stub["key_versions"] == [1, 2]
    await clean(store, scope)
    job = await store.rotation.rotate_subject(scope, "tester", complete=True)
    await finished(store, scope, job.job_id)
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    await clean(store, scope)


# --- what is rebuilt from what ---------------------------------------------------------------------------------------


async def logged(store, scope, turns, value_every, namespace=""):
    """Checkpoints with a delta channel that holds its value in every so many of them."""
    ids = []
    for number in range(turns):
        channels = {"n": number} | ({"d": [f"v{number}"]} if number % value_every == 0 else {})
        saved = await save(store, scope, namespace=namespace, content=state(**channels), delta_channels=("d",))
        await put(store, scope, saved.checkpoint_id, write(0, "d", number), namespace=namespace)
        ids.append(saved.checkpoint_id)
    return ids


async def test_a_volume_stays_while_a_newer_one_is_rebuilt_from_it(store, scope, admin, volumes):
    ids = await logged(store, scope, 9, 4)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    assert await numbers(admin, scope) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    told = {each: await delta(store, scope, each) for each in ids}
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 0
    await aged(admin, scope, 3)
    assert (await expire(store, scope, before)).segments == 0
    await aged(admin, scope, 2)
    assert (await expire(store, scope, before)).segments == 2
    assert {each: await delta(store, scope, each) for each in ids[5:]} == {each: told[each] for each in ids[5:]}
    await clean(store, scope)


async def test_a_volume_stays_while_what_came_back_is_rebuilt_from_it(store, scope, admin, volumes):
    ids = await logged(store, scope, 9, 8)
    await move(store, scope, checkpoints_max=4, volumes=volumes)
    await put(store, scope, ids[5], write(1, "d", "late"))
    assert await numbers(admin, scope) == [(1, 1)]
    told = {each: await delta(store, scope, each) for each in ids}
    assert (await expire(store, scope)).segments == 0
    await move(store, scope, checkpoints_max=4, volumes=volumes)
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 0
    assert {each: await delta(store, scope, each) for each in ids} == told
    assert (await expire(store, scope)).segments == 2
    assert await ids_of(store, scope) == ids[-1:]
    await clean(store, scope)


async def test_of_lists_that_do_not_say_it_every_other_volume_stays(store, scope, admin, volumes):
    await chat(store, scope, 4)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    sealer = await store.keys.sealer(scope)
    async with store.unit_of_work.snapshot(scope) as transaction:
        for stub in await transaction.fetch_all(archives_sql.SEGMENT_STUBS, thread_id="t1"):
            listed = await open_list(transaction, sealer, stub)
            older = SegmentList(listed.checkpoints, listed.piece_ids, listed.heads).seal(sealer, stub)
            await admin.execute("UPDATE stateroom.archives SET listed = $1 WHERE blob_id = $2", older, stub.blob_id)
    await clean(store, scope)
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 0
    assert (await expire(store, scope)).segments == 2
    await clean(store, scope)


# --- what keeps it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["tenant", "agent", "thread"])
async def test_under_a_hold_nothing_goes(store, scope, admin, level):
    await chat(store, scope, 4, agent="travel")
    await move(store, scope)
    tenant, held = TenantScope(scope.tenant_id), Policy(legal_hold=True)
    if level == "thread":
        await store.retention_policies.put_thread(scope, "t1", held)
    else:
        await store.retention_policies.put(tenant, "travel" if level == "agent" else None, held)
    with pytest.raises(LegalHold):
        await expire(store, scope)
    assert len(await ids_of(store, scope)) == 4


async def test_an_archived_thread_keeps_its_segments_and_no_thread_has_none(store, scope):
    await chat(store, scope, 4)
    await move(store, scope)
    await store.archives.archive(scope, "t1")
    with pytest.raises(ThreadArchived):
        await expire(store, scope)
    with pytest.raises(ThreadNotFound):
        await expire(store, scope, thread_id="t2")
    with pytest.raises(ThreadNotFound):
        await expire(store, Scope(scope.tenant_id, "nobody"))


async def test_frozen_segments_go_without_being_thawed(database, root_key, scope, admin):
    archive = FaultyBlobStore(MemoryBlobStore(storage_class="GLACIER"))
    async with opened(database, root_key, archive=archive) as store:
        await switch_on(store, SEGMENTS)
        ids = await chat(store, scope, 4)
        await move(store, scope)
        archive.calls.clear()
        assert (await expire(store, scope)).checkpoints == 3
        assert archive.calls == []
        assert await ids_of(store, scope) == ids[-1:]
        await clean(store, scope)


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM stateroom.archives WHERE tenant_id = $1 AND segment = 2",
        "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1",
        "UPDATE stateroom.archives SET listed = NULL WHERE tenant_id = $1",
    ],
    ids=["stub", "hot", "list"],
)
async def test_nothing_goes_of_a_thread_that_is_damaged(store, scope, admin, attack):
    await chat(store, scope, 5)
    await move(store, scope, checkpoints_max=2)
    await admin.execute(attack, scope.tenant_id)
    found = await rows(admin, scope, "t1", "archives")
    with pytest.raises(IntegrityFailure):
        await expire(store, scope)
    assert await rows(admin, scope, "t1", "archives") == found


# --- others at the same moment ---------------------------------------------------------------------------------------


async def test_savers_and_writers_and_moves_at_the_same_moment_lose_nothing(database, root_key, store, scope, admin):
    async with opened(database, root_key, blobs=store.blobs, archive=store.archive) as another:
        ids, number = await chat(store, scope, 3), count()

        async def writing(which):
            for each in range(12):
                saved = await save(which, scope, content=state(n=next(number)))
                ids.append(saved.checkpoint_id)
                await put(which, scope, saved.checkpoint_id, write(0, "c", each))

        async def moving(which):
            for _ in range(6):
                with suppress(Unavailable):  # the others moved and let go of the same, again and again
                    await move(which, scope)
                    await expire(which, scope)

        await asyncio.gather(writing(store), moving(another), writing(another), moving(store))
        await clean(another, scope)
        await move(store, scope)
        await expire(store, scope)
        assert await ids_of(another, scope) == [max(ids)]
        await clean(store, scope)


class AtNth(Gate):
    """Holds whoever arrives at a statement for the n-th time."""

    def __init__(self, statement, number):
        super().__init__(statement)
        self._left = number

    async def __call__(self, statement):
        self._left -= statement == self.statement
        if not self._left:
            await super().__call__(statement)


async def between(store, scope, *works, gate=None):
    """Let segments go, held before the thread is locked while others work."""
    gate = gate or Gate(threads_sql.LOCK)
    expiring = Expiring(Steered(store, before=gate).pruning._access, store.audit)
    task = asyncio.create_task(expiring.expire(scope, "t1", ALWAYS, actor="test"))
    await gate.arrival()
    for work in works:
        await work
    gate.opened.set()
    async with asyncio.timeout(WAIT_SECONDS):
        return await task


async def test_what_is_saved_before_the_lock_stays_and_what_came_back_does(store, scope, volumes):
    ids = await chat(store, scope, 5)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    done = await between(
        store, scope, save(store, scope, content=state(on=1)), put(store, scope, ids[3], write(1, "c", "late"))
    )
    assert done.checkpoints == 2
    found = await ids_of(store, scope)
    assert (len(found), found[1:]) == (4, ids[:1:-1])
    await clean(store, scope)


async def test_what_came_back_before_its_list_is_read_stays(store, scope, volumes):
    ids = await chat(store, scope, 5)
    await move(store, scope, checkpoints_max=2, volumes=volumes)
    late = put(store, scope, ids[1], write(1, "c", "late"))
    done = await between(store, scope, late, gate=AtNth(threads_sql.READ, 2))
    assert done.checkpoints == 2
    assert await ids_of(store, scope) == [ids[4], ids[1], ids[0]]
    await clean(store, scope)


async def test_a_hold_that_is_set_before_the_lock_keeps_everything(store, scope):
    await chat(store, scope, 4)
    await move(store, scope)
    with pytest.raises(LegalHold):
        await between(store, scope, store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True)))
    assert len(await ids_of(store, scope)) == 4
    await clean(store, scope)


async def test_of_a_thread_that_is_deleted_before_the_lock_nothing_is_left_to_go(store, scope):
    await chat(store, scope, 4)
    await move(store, scope)
    with pytest.raises(ThreadNotFound):
        await between(store, scope, store.threads.delete(scope, "t1"))
    await chat(store, scope, 4)
    await move(store, scope)
    done = await between(store, scope, store.threads.delete(scope, "t1"), chat(store, scope, 2))
    assert done.segments == 0, "it is another life of the thread"
    assert len(await ids_of(store, scope)) == 2


async def test_what_came_to_be_rebuilt_from_a_segment_before_the_lock_keeps_it(store, scope):
    ids = await logged(store, scope, 4, 2)
    last = (await save(store, scope, content=state(n=9))).checkpoint_id
    await move(store, scope)
    assert await ids_of(store, scope) == [last, *ids[::-1]]
    assert (await store.archives.expiring.preview(scope, "t1", ALWAYS)).checkpoints == 4
    done = await between(store, scope, save(store, scope, content=state(n=10), delta_channels=("d",)))
    assert done.segments == 0
    [head, *_] = await ids_of(store, scope)
    assert await delta(store, scope, head) == (["v2"], [2, 3])
    await clean(store, scope)


async def test_a_namespace_that_needs_what_another_volume_has_of_it_goes_with_that(store, scope, admin, volumes):
    """Neither could go first: one has the head, and the other what it is rebuilt from."""
    for number in range(4):
        channels = {"n": number} | ({"d": ["v"]} if number == 0 else {})
        await save(store, scope, namespace="sub", content=state(**channels), delta_channels=("d",))
    await save(store, scope, content=state(n=1))
    await move(store, scope, ThinningRule(made_since=ALWAYS), checkpoints_max=2, volumes=volumes)
    assert await numbers(admin, scope) == [(1, 1), (2, 2)]
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 0
    await aged(admin, scope, 2)
    assert (await expire(store, scope, before)).segments == 2
    assert await ids_of(store, scope, namespace="sub") == []
    await clean(store, scope)


async def test_a_list_is_sealed_again_with_the_heads_that_stay_as_they_are(store, scope, admin, volumes):
    for number, names in enumerate([("", "sub"), ("", "sub"), ("apart", "sub", "")]):
        for name in names:
            await save(store, scope, namespace=name, content=state(n=number))
        if number == 1:
            await move(store, scope, volumes=volumes)
    await move(store, scope, ThinningRule(made_since=ALWAYS), volumes=volumes)
    assert await numbers(admin, scope) == [(1, 1), (2, 2)]
    assert {row["namespace"] for row in await rows(admin, scope, "t1", "heads")} == {""}
    before = await aged(admin, scope, 1)
    assert (await expire(store, scope, before)).segments == 1
    assert len(await ids_of(store, scope, namespace="apart")) == 1
    await clean(store, scope)
    assert await store.archives.restore(scope, "t1")
    await clean(store, scope)


# --- as thinning -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exactly:
    """A choice of these checkpoints, whatever they are."""

    refs: frozenset
    takes_all = True

    def doomed(self, thread, written):
        found = {name: {each for at, each in self.refs if at == name} for name in thread}
        return {name: some for name, some in found.items() if some}

    def ended(self, thread):
        return set()

    def spared(self, entries, doomed, fresh):
        return set()


async def read(store, scope, thread_id, rebuilt):
    """What a reader sees of a thread, and of what those among ``rebuilt`` are rebuilt from, whatever it is called."""
    plain = {"thread_id": "", "created_at": ALWAYS}
    page = await history(store, scope, thread_id=thread_id, with_state=True, limit=1000)
    found = {}
    for each in page:
        loaded = await load(store, scope, thread_id, each.checkpoint_id, each.namespace)
        line = None
        if each.checkpoint_id in rebuilt:
            line = await delta(store, scope, each.checkpoint_id, thread_id, each.namespace)
        writes = sorted((one.task_id, one.idx, one.value.data) for one in loaded.writes or ())
        place = (each.namespace, each.checkpoint_id)
        found[place] = (replace(each, writes=None, **plain), contents(loaded), writes, line)
    return found


class Twins:
    """Two threads that are saved to alike; t1 has segments."""

    def __init__(self, store, scope, random):
        self.store, self.scope, self.random = store, scope, random
        self.saved: dict[str, list[str]] = {"": []}
        self.rebuilt: set[str] = set()
        self._numbers = count()

    async def step(self):
        random, checkpoint_id = self.random, f"{next(self._numbers):08}"
        name = random.choice(["", "sub", "work:1", "work:2"])
        own = self.saved.setdefault(name, [])
        channels = {"n": checkpoint_id, "text": document(random.choice("abc"), 2000)}
        if random.random() < 0.3:
            channels["d"] = [checkpoint_id]
        parts = {"content": state(**channels), "metadata": {}}
        if random.random() < 0.7:
            parts["delta_channels"] = ("d",)
            self.rebuilt.update(() if "d" in channels else (checkpoint_id,))
        if own and random.random() < 0.15:
            parts |= {"parent": Parent(random.choice(own)), "fork": True, "source": "fork"}
        if name:
            parts["metadata"] = {"parents": {"": self.saved[""][-1] if self.saved[""] else "gone"}}
        own.append(checkpoint_id)
        for thread_id in ("t1", "t2"):
            await save(self.store, self.scope, thread_id, namespace=name, checkpoint_id=checkpoint_id, **parts)
        for each in range(random.choice([0, 0, 1, 2])):
            at = random.choice(own) if random.random() < 0.1 else checkpoint_id
            written = write(each, "d", f"{checkpoint_id}-{each}")
            for thread_id in ("t1", "t2"):
                place = {"namespace": name, "thread_id": thread_id, "task_id": checkpoint_id}
                await put(self.store, self.scope, at, written, **place)

    async def read(self, thread_id):
        return await read(self.store, self.scope, thread_id, self.rebuilt)

    async def thin(self, gone):
        request = _Request(self.scope, "t2", None, restores=True, touches=False)
        await self.store.pruning._remove(request, Exactly(gone), None)
        for name in {name for name, _ in gone}:
            self.saved[name] = [each for each in self.saved[name] if (name, each) not in gone]


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 32))])
async def test_of_any_thread_what_expires_is_what_thinning_of_the_same_checkpoints_leaves(
    store, scope, admin, volumes, seed
):
    random = Random(seed)  # noqa: S311
    twins = Twins(store, scope, random)
    for _ in range(3):
        for _ in range(random.randint(5, 12)):
            await twins.step()
        volumes.counts += [random.randint(1, 3) for _ in range(4)]
        rule = random.choice([OLD, ThinningRule(made_since=ALWAYS), ThinningRule(every=3)])
        await move(store, scope, rule, checkpoints_max=random.choice([1, 2, 4]), volumes=volumes)
        stubs = await rows(admin, scope, "t1", "archives")
        old = random.sample(stubs, random.randint(0, len(stubs)))
        before = await aged(admin, scope, *(row["segment"] for row in old))
        was = await twins.read("t1")
        assert was == await twins.read("t2")

        done = await expire(store, scope, before)

        now = await twins.read("t1")
        assert {place: was[place][1:] for place in now} == {place: each[1:] for place, each in now.items()}
        gone = frozenset(was.keys() - now.keys())
        assert len(gone) == done.checkpoints
        young = {row["volume"] for row in stubs if row not in old}
        assert young <= {row["volume"] for row in await rows(admin, scope, "t1", "archives")}
        await clean(store, scope)
        await twins.thin(gone)
        assert now == await twins.read("t2")
        await clean(store, scope, "t2")
    await store.archives.restore(scope, "t1")
    assert await twins.read("t1") == await twins.read("t2")
    await clean(store, scope)
