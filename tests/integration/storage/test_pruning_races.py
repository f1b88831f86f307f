"""What may happen between the plan of a removal and each of its batches: absent with its re-check, shown without.

Where the re-check is Python, the variant is `Pruning` or `Plans` with that one method empty; where it is a clause, the
statement without it. What comes between is done while the removal is held before a lock of the thread, never by time.
"""

import asyncio

import msgpack
import pytest

from storage.errors import CheckpointNotFound, DeltaChainNeeded, IntegrityFailure, LegalHold, ThreadArchived
from storage.model import ChannelHistoryQuery, Parent, TaskWritesQuery
from storage.statements.threads import pruning as sql
from storage.statements.threads import threads as threads_sql
from storage.threads.plans import Plans
from storage.threads.pruning import Pruning
from storage.threads.thinning import ThinningRule
from tests.support.interleaving import WAIT_SECONDS, CommitAfter, Gate, Steered, blocked, without
from tests.support.states import (
    contents,
    document,
    history,
    list_with_indexes,
    load,
    put,
    save,
    state,
    write,
    writes_of,
)

NEWEST_ONLY = ThinningRule(keep_last=1)
C = "1f0c0000-0000-6000-8000-00000000000{}"


class BeforeLock(Gate):
    """Holds a removal before its n-th lock of the thread."""

    def __init__(self, number):
        super().__init__(threads_sql.LOCK)
        self._left = number

    async def __call__(self, statement):
        self._left -= statement == self.statement
        if not self._left:
            await super().__call__(statement)


def pruning(store, gate, kind=Pruning, variants=None, **sizes):
    access = Steered(store, variants=variants, before=gate).pruning._access
    return kind(access, **sizes) if issubclass(kind, Pruning) else Pruning(access, kind(access), **sizes)


async def between(removal, gate, *works):
    """Run ``works`` while ``removal`` is held at ``gate``; returns what it removed."""
    task = asyncio.create_task(removal)
    await gate.arrival()
    for work in works:
        await work
    gate.opened.set()
    async with asyncio.timeout(WAIT_SECONDS):
        return await task


async def whole(store, scope):
    assert (await store.verification.thread(scope, "t1")).findings == []


async def ids(store, scope):
    return {each.checkpoint_id for each in await history(store, scope, limit=1000)}


async def delta(store, scope, checkpoint_id=None):
    found = (
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", checkpoint_id, ["d"]))
    ).channels["d"]
    seed = None if found.seed is None else msgpack.unpackb(found.seed.value.data)
    return seed, [msgpack.unpackb(each.value.data) for each in found.writes]


class Blind(Plans):
    """Spares nothing for what came since the plan."""

    def spared(self, locked, choice):
        return set()


# A save whose delta channel is rebuilt from what is doomed.


async def a_delta_child_comes(store, scope, kind):
    seed = await save(store, scope, content=state(d="seed"))
    await put(store, scope, seed.checkpoint_id, write(0, "d", "w"))
    middle = await save(store, scope, content=state(x=1), delta_channels=("d",))
    await save(store, scope, content=state(x=2))
    gate = BeforeLock(1)
    fork = save(store, scope, content=state(x=3), delta_channels=("d",), parent=Parent(middle.checkpoint_id))
    removal = await between(pruning(store, gate, kind).keep_latest(scope, "t1"), gate, fork)
    return removal, await delta(store, scope)


async def test_what_a_checkpoint_saved_meanwhile_is_rebuilt_from_stays(store, scope):
    removal, found = await a_delta_child_comes(store, scope, Pruning)
    assert (removal.checkpoints, found) == (0, ("seed", ["w"]))
    await whole(store, scope)


async def test_without_looking_at_what_came_its_delta_channel_is_lost(store, scope):
    _, found = await a_delta_child_comes(store, scope, Blind)
    assert found == (None, [])


async def test_a_run_that_came_to_be_needed_meanwhile_stays(store, scope):
    seed = await save(store, scope, content=state(d="seed"), run_id="r1")
    await save(store, scope, run_id="r2")
    gate = BeforeLock(1)
    fork = save(store, scope, delta_channels=("d",), parent=Parent(seed.checkpoint_id), run_id="r2")
    with pytest.raises(DeltaChainNeeded):
        await between(pruning(store, gate).delete_runs(scope, ["r1"]), gate, fork)
    assert await delta(store, scope) == ("seed", [])


async def test_a_run_that_goes_on_while_it_is_deleted_is_deleted_whole(store, scope):
    seed = await save(store, scope, content=state(d="seed"), run_id="r1")
    await save(store, scope, run_id="r2", parent=Parent(None))
    gate = BeforeLock(1)
    more = save(store, scope, delta_channels=("d",), parent=Parent(seed.checkpoint_id), run_id="r1")
    removal = await between(pruning(store, gate).delete_runs(scope, ["r1"]), gate, more)
    assert (removal.threads, removal.checkpoints) == (1, 2)
    await whole(store, scope)


# A fork of what is doomed.


async def a_fork_comes(store, scope, kind):
    old = await save(store, scope, content=state(a=document("old")))
    await save(store, scope)
    gate = BeforeLock(1)
    fork = save(store, scope, parent=Parent(old.checkpoint_id), source="fork")
    await between(pruning(store, gate, kind).thin(scope, "t1", NEWEST_ONLY), gate, fork)
    return old.checkpoint_id


async def test_the_parent_of_a_fork_made_meanwhile_stays(store, scope):
    old = await a_fork_comes(store, scope, Pruning)
    assert contents(await load(store, scope, checkpoint_id=old)) == {"a": document("old")}
    await whole(store, scope)


async def test_without_looking_at_what_came_a_fork_loses_its_parent(store, scope):
    old = await a_fork_comes(store, scope, Blind)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope, checkpoint_id=old)


# The head of before is removed by somebody else, so that a doomed one becomes the head.


async def the_head_goes(store, scope, kind):
    await save(store, scope, content=state(a=1))
    await save(store, scope, content=state(a=2))
    await save(store, scope, content=state(a=3), run_id="r")
    gate = BeforeLock(1)
    await between(
        pruning(store, gate, kind).thin(scope, "t1", NEWEST_ONLY), gate, store.threads.delete_runs(scope, ["r"])
    )


async def test_what_became_the_head_meanwhile_stays(store, scope):
    await the_head_goes(store, scope, Pruning)
    assert contents(await load(store, scope)) == {"a": 2}
    await whole(store, scope)


async def test_without_looking_at_the_head_of_now_the_whole_namespace_goes(store, scope):
    await the_head_goes(store, scope, Blind)
    with pytest.raises(CheckpointNotFound):
        await load(store, scope)


# A write to what is doomed.


class Unaware(Plans):
    """Removes whatever writes there are."""

    def compare_with_plan(self, plan, batch, found):
        return


async def a_write_comes(store, scope, kind, remove):
    old = await save(store, scope)
    await put(store, scope, old.checkpoint_id, write(0, "a", "before"))
    await save(store, scope)
    gate = BeforeLock(1)
    late = put(store, scope, old.checkpoint_id, write(1, "a", document("late")))
    await between(remove(pruning(store, gate, kind)), gate, late)
    return await store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", old.checkpoint_id, "task"))


REMOVALS = {
    "thin": lambda scope: lambda verbs: verbs.thin(scope, "t1", NEWEST_ONLY),
    "keep_latest": lambda scope: lambda verbs: verbs.keep_latest(scope, "t1"),
}


@pytest.mark.parametrize("verb", REMOVALS)
async def test_a_write_acknowledged_meanwhile_is_kept_with_its_checkpoint(store, scope, verb):
    assert len(await a_write_comes(store, scope, Pruning, REMOVALS[verb](scope))) == 2
    assert len(await ids(store, scope)) == 2
    await whole(store, scope)


@pytest.mark.parametrize("verb", REMOVALS)
async def test_without_comparing_an_acknowledged_write_vanishes(store, scope, verb):
    assert await a_write_comes(store, scope, Unaware, REMOVALS[verb](scope)) == []


async def test_what_was_interrupted_meanwhile_stays(store, scope):
    old = await save(store, scope)
    await put(store, scope, old.checkpoint_id, write(0, "a", 1))
    await save(store, scope, parent=Parent(None))
    gate = BeforeLock(1)
    late = put(store, scope, old.checkpoint_id, write(1, "a", 2), status="waiting")
    await between(pruning(store, gate).thin(scope, "t1", NEWEST_ONLY), gate, late)
    assert old.checkpoint_id in await ids(store, scope)
    await whole(store, scope)


# Chunks that somebody refers to again.


class Careless(Plans):
    """Collects what was garbage once."""

    async def _follow(self, locked):
        locked.plan.new_pieces.clear()


class DeafToWrites(Plans):
    async def _learn_of_writes(self, locked):
        return


async def a_piece_is_named_again(store, scope, kind, work, variants=None, content="again"):
    first = await save(store, scope)
    await put(store, scope, first.checkpoint_id, write(-1, "a", content))
    await put(store, scope, first.checkpoint_id, write(-1, "a", "small"))  # what was replaced is garbage now
    gate = BeforeLock(1)
    await between(pruning(store, gate, kind, variants).keep_latest(scope, "t1"), gate, work(first.checkpoint_id))


@pytest.mark.parametrize("kind", [Pruning, Careless])
async def test_a_piece_that_a_save_names_again_stays_only_if_somebody_looks(store, scope, kind):
    again = document("again")
    await a_piece_is_named_again(
        store, scope, kind, lambda _: save(store, scope, content=state(a=again)), content=again
    )
    if kind is Pruning:
        assert contents(await load(store, scope)) == {"a": again}
        await whole(store, scope)
    else:
        with pytest.raises(IntegrityFailure):
            await load(store, scope)


@pytest.mark.parametrize("kind", [Pruning, DeafToWrites])
async def test_a_piece_that_a_write_names_again_stays_only_if_somebody_looks(store, scope, kind):
    again = document("again")

    def work(checkpoint_id):
        return put(store, scope, checkpoint_id, write(3, "a", again))

    await a_piece_is_named_again(store, scope, kind, work, content=again)
    if kind is Pruning:
        assert writes_of(await load(store, scope))[-1] == ("task", 3, "a", again)
        await whole(store, scope)
    else:
        with pytest.raises(IntegrityFailure):
            await load(store, scope)


class Flat(Plans):
    """Takes what is named directly for all that is named."""

    async def _follow(self, locked):
        return


@pytest.mark.parametrize("kind", [Pruning, Flat])
async def test_pieces_below_an_index_piece_stay_only_if_somebody_follows_it(store, scope, kind):
    items = list_with_indexes()
    await a_piece_is_named_again(
        store, scope, kind, lambda _: save(store, scope, content=state(a=items)), content=items
    )
    if kind is Pruning:
        assert contents(await load(store, scope)) == {"a": items}
    else:
        with pytest.raises(IntegrityFailure):
            await load(store, scope)


# The lock itself.


async def saved_during_a_batch(store, scope, admin, variants):
    """A save that begins after a batch has read the head and before it moves it."""
    await save(store, scope, checkpoint_id=C.format(1))
    await save(store, scope, checkpoint_id=C.format(2))
    gate = Gate(sql.MOVE_HEADS)
    task = asyncio.create_task(pruning(store, gate, variants=variants).keep_latest(scope, "t1"))
    await gate.arrival()
    saving = asyncio.create_task(save(store, scope, checkpoint_id=C.format(3)))
    if variants:
        await saving
    else:
        await blocked(admin)
    gate.opened.set()
    await asyncio.gather(task, saving)


async def test_a_save_waits_for_the_batch_and_stands_on_it(store, scope, admin):
    await saved_during_a_batch(store, scope, admin, {})
    assert (await load(store, scope)).checkpoint_id == C.format(3)
    await whole(store, scope)


async def test_without_the_lock_an_acknowledged_save_is_no_longer_the_head(store, scope, admin):
    await saved_during_a_batch(store, scope, admin, without(threads_sql.LOCK, "FOR UPDATE"))
    with pytest.raises(IntegrityFailure):  # the head is the one before it
        await load(store, scope)


async def collected_while_saving(store, scope, admin, variants):
    """A save refers to a piece that is garbage, and has not committed when the collector asks for the lock."""
    first = await save(store, scope)
    await put(store, scope, first.checkpoint_id, write(-1, "a", document("again")))
    await put(store, scope, first.checkpoint_id, write(-1, "a", "small"))
    gate = BeforeLock(1)
    collecting = asyncio.create_task(pruning(store, gate, variants=variants).keep_latest(scope, "t1"))
    await gate.arrival()
    written = CommitAfter(threads_sql.LOCK)
    written.seen = True
    saving = asyncio.create_task(save(Steered(store, before=written), scope, content=state(a=document("again"))))
    await written.arrival()
    gate.opened.set()
    await blocked(admin)
    written.opened.set()
    await asyncio.gather(collecting, saving)


async def test_a_collection_that_waited_for_a_save_keeps_the_pieces_it_refers_to(store, scope, admin):
    await collected_while_saving(store, scope, admin, {})
    assert contents(await load(store, scope)) == {"a": document("again")}
    await whole(store, scope)


async def test_a_collector_that_does_not_lock_the_thread_dangles(store, scope, admin):
    # It waits for the chunk's KEY SHARE instead, and removes it as soon as the save has committed.
    await collected_while_saving(store, scope, admin, without(threads_sql.LOCK, "FOR UPDATE"))
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


# The thread goes to the archive, or is another one of its name.


@pytest.mark.parametrize("verb", REMOVALS)
async def test_a_thread_archived_between_two_batches_is_left_as_it_is(store, scope, admin, verb):
    for number in range(4):
        await save(store, scope, content=state(a=document(str(number))))
    gate = BeforeLock(2)
    verbs = pruning(store, gate, batch_rows=1)
    archived = admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    with pytest.raises(ThreadArchived):
        await between(REMOVALS[verb](scope)(verbs), gate, archived)
    left = await admin.fetchval("SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    assert left == 3


async def test_a_tier_that_is_not_read_under_the_lock_lets_rows_of_an_archived_thread_vanish(store, scope, admin):
    for _ in range(4):
        await save(store, scope)
    gate = BeforeLock(2)
    trusting = pruning(store, gate, variants=without(threads_sql.LOCK, " tier,", " 'hot' AS tier,"), batch_rows=1)
    archived = admin.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
    await between(trusting.keep_latest(scope, "t1"), gate, archived)
    assert await admin.fetchval("SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id) == 1


class AnyLife(Plans):
    def _check_life(self, plan, thread):
        return


async def begun_again(store, scope):
    await store.threads.delete(scope, "t1")
    for number in (1, 2):
        await save(store, scope, checkpoint_id=C.format(number), content=state(life=2))


@pytest.mark.parametrize("kind", [Pruning, AnyLife])
async def test_a_thread_of_the_same_name_is_not_pruned_for_the_one_that_was(store, scope, kind):
    for number in (1, 2):
        await save(store, scope, checkpoint_id=C.format(number), content=state(life=1))
    gate = BeforeLock(1)
    removal = await between(pruning(store, gate, kind).keep_latest(scope, "t1"), gate, begun_again(store, scope))
    assert removal.checkpoints == (0 if kind is Pruning else 1)
    assert len(await ids(store, scope)) == (2 if kind is Pruning else 1)


# Another removal at the same time; a hold.


async def test_two_removals_at_once_remove_each_checkpoint_once(store, scope):
    for number in range(8):
        await save(store, scope, content=state(a=document(str(number))), run_id=f"r{number % 2}")
    gate = BeforeLock(2)
    other = store.pruning.delete_runs(scope, ["r0"])
    await between(pruning(store, gate, batch_rows=1).keep_latest(scope, "t1"), gate, other)
    assert len(await ids(store, scope)) == 1
    await whole(store, scope)


async def test_checkpoints_saved_out_of_order_are_noticed(store, scope):
    for number in (3, 6, 9):
        await save(store, scope, checkpoint_id=C.format(number))
    gate = BeforeLock(1)
    old = save(store, scope, checkpoint_id=C.format(1), delta_channels=("d",), parent=Parent(C.format(3)))
    await between(pruning(store, gate, batch_rows=1).keep_latest(scope, "t1"), gate, old)
    assert await ids(store, scope) == {C.format(1), C.format(3), C.format(9)}
    await whole(store, scope)


async def test_a_guard_is_asked_in_every_batch_and_stops_the_next(store, scope):
    for _ in range(5):
        await save(store, scope)
    asked = 0

    async def guard(_transaction):
        nonlocal asked
        asked += 1
        if asked == 3:
            raise LegalHold

    verbs = Pruning(store.pruning._access, batch_rows=1)
    with pytest.raises(LegalHold):
        await verbs.thin(scope, "t1", NEWEST_ONLY, guard=guard)
    assert len(await ids(store, scope)) == 3
    await whole(store, scope)


# Death between two batches.


class Unordered(Pruning):
    def _queue(self, plan):
        return sorted((name, each) for name, some in plan.doomed.items() for each in some)


async def killed_half_way(store, scope, kind):
    """A line of deltas, all of them doomed, of which two were removed; what each of those left says then."""
    await save(store, scope, checkpoint_id=C.format(1), content=state(d="seed"))
    for number in range(2, 6):
        await save(store, scope, checkpoint_id=C.format(number), content=state(x=number), delta_channels=("d",))
        await put(store, scope, C.format(number), write(0, "d", number))
    await save(store, scope, checkpoint_id=C.format(9), content=state(x=9))
    before = {each: await delta(store, scope, each) for each in await ids(store, scope)}
    gate = BeforeLock(3)
    task = asyncio.create_task(pruning(store, gate, kind, batch_rows=1).keep_latest(scope, "t1"))
    await gate.arrival()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = await ids(store, scope)
    assert len(left) == 4
    await whole(store, scope)
    # The head says of no channel that it is rebuilt from what was before it.
    return {each for each in left - {C.format(9)} if await delta(store, scope, each) != before[each]}


async def test_whoever_dies_between_two_batches_leaves_a_thread_whose_every_checkpoint_loads(store, scope):
    assert await killed_half_way(store, scope, Pruning) == set()
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 3
    await whole(store, scope)


async def test_in_another_order_what_is_left_half_way_is_rebuilt_wrongly(store, scope):
    assert await killed_half_way(store, scope, Unordered)


# All at once.


async def test_a_thread_in_full_use_is_thinned_without_a_false_alarm(store, scope):
    rule = ThinningRule(every=3, keep_last=2, checkpoints_max=12)
    ended = asyncio.Event()
    access = store.pruning._access
    verbs = Pruning(access, Plans(access, batch_chunks=2), batch_rows=2)

    async def write_on(name):
        for number in range(25):
            saved = await save(store, scope, content=state(a=document(f"{name}{number % 4}"), b=number))
            await put(store, scope, saved.checkpoint_id, write(0, "a", document(f"w{number % 3}")), task_id=name)

    async def read():
        while not ended.is_set():
            assert contents(await load(store, scope))["a"]
            await history(store, scope, with_state=True)
            await whole(store, scope)

    async def thin():
        while not ended.is_set():
            await verbs.thin(scope, "t1", rule)
            await verbs.keep_latest(scope, "t1")

    async def work():
        await asyncio.gather(write_on("one"), write_on("two"))
        ended.set()

    await save(store, scope, content=state(a=document("first")))
    await asyncio.gather(work(), read(), thin())
    await verbs.keep_latest(scope, "t1")
    await whole(store, scope)


@pytest.mark.parametrize("checkpoints", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_thousands_of_checkpoints_are_pruned_while_a_writer_saves(store, scope, checkpoints):
    for number in range(checkpoints):
        head = await save(store, scope, step=number, content=state(a=number))
    saved = [head.checkpoint_id]
    task = asyncio.create_task(store.pruning.keep_latest(scope, "t1"))
    while not task.done() and len(saved) < 1000:  # a page of history
        saved.append((await save(store, scope, content=state(a=-1))).checkpoint_id)
    removal = await task
    left = sorted(await ids(store, scope))
    # The plan's head and all that came after it; what was saved before the plan may have gone.
    assert left == saved[-len(left) :]
    assert removal.checkpoints == checkpoints + len(saved) - 1 - len(left) < checkpoints + 50
    assert len(left) > 10  # the writer went on
    await whole(store, scope)
