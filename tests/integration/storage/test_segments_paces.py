"""Namespaces of different pace in one thread: what is kept of a slow one keeps no others, and leaves in the end."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random  # noqa: TID251  seeded

import pytest

from storage.archive.choosing import SegmentBounds
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.retention.examining import segment_rule_of
from storage.retention.planner import Policy, Thinning, resolve
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fsck, opened, rows
from tests.support.features import switch_on
from tests.support.segments import move_within
from tests.support.states import contents, load, save, state

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STUCK_MAX = 10
BOUNDS = SegmentBounds(stuck_max=STUCK_MAX)


@pytest.fixture
def clock():
    return ManualClock(BEGIN)


@pytest.fixture
async def store(database, root_key, clock):
    async with opened(database, root_key, archive=MemoryBlobStore(), clock=clock) as made:
        await switch_on(made, SEGMENTS)
        await switch_on(made, COLD_NAMESPACES)
        yield made


async def hot_rows(admin, scope):
    return Counter(row["namespace"] for row in await rows(admin, scope, "t1", "checkpoints"))


async def all_there(store, scope, saved):
    """Every checkpoint is where it can be read, and the thread is whole."""
    for namespace, checkpoint_id, number in saved:
        found = await load(store, scope, namespace=namespace, checkpoint_id=checkpoint_id)
        assert contents(found) == {"n": number}
    report = await store.verification.thread(scope, "t1")
    assert (report.findings, report.checkpoints) == ([], len(saved))
    assert (await fsck(store, scope)).faults == {}


async def test_what_is_kept_of_a_slow_namespace_leaves_when_it_is_free(store, scope, admin, clock):
    policy = resolve([Policy(checkpoints_idle_ttl_seconds=7 * 86400, keep_hot=Thinning(keep_last=20))])
    saved, most = [], Counter()
    for day in range(140):
        clock.set(BEGIN + timedelta(days=day))
        for number in range(11):  # the agent once, and its sub-agent with a memory ten times
            namespace = "memory" if number else ""
            done = await save(store, scope, content=state(n=number), namespace=namespace)
            saved.append((namespace, done.checkpoint_id, number))
            clock.set(clock.now() + timedelta(hours=1))
        if day % 7 == 6:
            await move_within(BOUNDS, store, scope, segment_rule_of(policy, clock.now()))
            most |= await hot_rows(admin, scope)
    assert most[""] <= 20 + STUCK_MAX
    assert most["memory"] <= 80 + STUCK_MAX
    assert len(await rows(admin, scope, "t1", "archives")) < 20  # made anew, weeks go together
    report = await store.verification.thread(scope, "t1")
    assert (report.findings, report.checkpoints) == ([], len(saved))


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 24))])
async def test_at_any_pace_what_stays_is_what_the_rule_keeps_and_a_few(store, scope, admin, clock, seed):
    random = Random(seed)  # noqa: S311  the same each time
    keep_last, age = random.randint(1, 8), timedelta(hours=random.randint(0, 60))
    paces = {name: random.choice([1, 2, 5, 20, 50]) for name in ("", "slow", "fast")}
    ends = {name: random.choice([40, 400]) if name else 400 for name in paces}  # one may be dead from then on
    saved: list[tuple[str, str, int]] = []
    made: dict[str, list[datetime]] = {name: [] for name in paces}
    for number in range(240):
        clock.set(BEGIN + timedelta(hours=number))
        names = [name for name in paces if number % paces[name] == 0 and number < ends[name]]
        for name in names:
            done = await save(store, scope, content=state(n=number), namespace=name)
            saved.append((name, done.checkpoint_id, number))
            made[name].append(clock.now())
        if random.random() < 0.1:
            since = clock.now() - age
            rule = ThinningRule(keep_last=keep_last, made_since=since, writes_since=since)
            await move_within(BOUNDS, store, scope, rule)
            hot = await hot_rows(admin, scope)
            kept = {
                name: max(min(keep_last, len(moments)), sum(each >= since for each in moments), 1)
                for name, moments in made.items()
                if moments
            }
            assert sum(hot.values()) <= sum(kept.values()) + STUCK_MAX
            assert all(hot[name] >= kept[name] for name in kept)
    await all_there(store, scope, saved)


async def test_what_is_frozen_stays_and_the_rest_moves_on(database, root_key, scope, admin):
    async with opened(database, root_key, archive=MemoryBlobStore(storage_class="GLACIER")) as store:
        await switch_on(store, SEGMENTS)
        bounds = SegmentBounds(stuck_max=2)
        for _ in range(8):
            for number in range(8):
                await save(store, scope, content=state(n=number), namespace="memory" if number % 4 else "")
            await move_within(bounds, store, scope, ThinningRule(keep_last=3))
        hot = await hot_rows(admin, scope)
        assert hot[""] > 3 + bounds.stuck_max
        assert hot["memory"] == 3
