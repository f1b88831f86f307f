"""What a read over segments holds: a volume is readable by itself, and a page that would hold too much ends early."""

import os
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from storage.access.access import Access
from storage.archive.choosing import SegmentBounds
from storage.blobs.memory import MemoryBlobStore
from storage.checkpoints.verbs import Checkpoints
from storage.clock import SystemClock
from storage.control.features import SEGMENTS
from storage.errors import RestoreNeeded
from storage.model import HistoryQuery, Load, TaskWrites
from storage.threads.thinning import ThinningRule
from storage.tiers.views import ArchiveViews, memory_bytes, pieces_bytes
from tests.support.archive_rows import opened, rows
from tests.support.features import switch_on
from tests.support.interleaving import parts_of
from tests.support.segments import move_within
from tests.support.states import document, save, state, write

OLD = ThinningRule(keep_last=1)
STEPS = 24
WRITES = 30


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, SEGMENTS)
        yield made


@pytest.fixture
async def ids(store, scope):
    """A list that grows, with many small pending writes to each step, and that is compacted then."""
    messages, ids = [], []
    for number in range(STEPS):
        messages.append(document(f"m{number}", 2000))
        saved = await save(store, scope, content=state(messages=messages), step=number)
        ids.append(saved.checkpoint_id)
        writes = [write(idx, "out", idx) for idx in range(WRITES)]
        await store.checkpoints.put_writes(scope, TaskWrites("t1", "", saved.checkpoint_id, "task", "", writes))
    await save(store, scope, content=state(messages=["summary"]), step=STEPS)
    return ids


class MovedMeanwhile(ArchiveViews):
    """Readers of which the first one finds another segment than there was when it took its memory."""

    def __init__(self, store, move):
        super().__init__(store.unit_of_work, store.archives.objects)
        self._moves = [move]

    @asynccontextmanager
    async def opened(self, *place):
        async with super().opened(*place) as view:
            if self._moves:
                await self._moves.pop()
            yield view


class Full(SegmentBounds):
    """Any volume is full; what the next one repeats decides."""

    def is_full(self, volume):
        return bool(volume.number)


async def sized(admin, scope):
    """The segments of the thread, with what is in them, in the order in which they were made."""
    found = [SimpleNamespace(**row) for row in await rows(admin, scope, "t1", "archives")]
    return sorted(found, key=lambda each: each.segment)


def holding(store, bytes_max):
    """Readers that hold so much."""
    views = ArchiveViews(store.unit_of_work, store.archives.objects, bytes_max=bytes_max)
    return Checkpoints(Access(parts_of(store, store.unit_of_work, SystemClock()), views=views))


async def loaded(checkpoints, scope, ids):
    found = [await checkpoints.load(scope, Load("t1", "", each, with_state=True)) for each in ids]
    return [each.checkpoint for each in found]


async def pages(checkpoints, scope, **query):
    """The pages of the whole history."""
    found, after = [], None
    while not found or after is not None:
        page = await checkpoints.history(scope, HistoryQuery(thread_id="t1", after=after, **query))
        found.append(page.items)
        after = page.after
    return found


async def test_of_other_segments_of_its_volume_a_load_holds_the_pieces(store, scope, admin, ids):
    hot = await loaded(store.checkpoints, scope, ids)
    await move_within(SegmentBounds(checkpoints_max=2), store, scope, OLD)
    segments = await sized(admin, scope)
    assert {each.volume for each in segments} == {1}
    needed = memory_bytes(segments[-1]) + sum(map(pieces_bytes, segments[:-1]))
    assert needed < sum(map(memory_bytes, segments)) / 3

    assert await loaded(holding(store, needed), scope, ids) == hot
    with pytest.raises(RestoreNeeded):
        await loaded(holding(store, needed // 2), scope, ids[-1:])


async def test_a_read_begins_again_for_a_segment_that_formed_after_it_took_its_memory(store, scope, ids):
    query = {"limit": len(ids) + 1, "with_state": True}
    hot = await pages(store.checkpoints, scope, **query)
    await move_within(SegmentBounds(checkpoints_max=2), store, scope, ThinningRule(keep_last=STEPS - 2))
    views = MovedMeanwhile(store, move_within(SegmentBounds(checkpoints_max=STEPS), store, scope, OLD))
    checkpoints = Checkpoints(Access(parts_of(store, store.unit_of_work, SystemClock()), views=views))
    assert await pages(checkpoints, scope, **query) == hot


@pytest.mark.parametrize(("grows", "volumes"), [(True, {1}), (False, {1, 2, 3})])
async def test_a_volume_goes_on_while_any_checkpoint_of_the_next_segment_names_much_of_it(
    store, scope, admin, grows, volumes
):
    messages = [os.urandom(5000) for _ in range(100)]
    for _ in range(3):
        for number in range(4):
            messages = [*messages, os.urandom(5000)] if grows else [os.urandom(5000)]
            # The first of each segment names nothing that was there before.
            await save(store, scope, content=state(n=os.urandom(2000)))
            await save(store, scope, content=state(messages=messages), namespace="sub", step=number)
        await move_within(Full(), store, scope, OLD)
    assert {each.volume for each in await sized(admin, scope)} == volumes


async def test_a_volume_closes_before_a_reader_could_not_hold_it(store, scope, admin, ids):
    hot = await loaded(store.checkpoints, scope, ids)
    bounds = SegmentBounds(checkpoints_max=2, volume_read_bytes_max=170_000)
    await move_within(bounds, store, scope, OLD)
    segments = await sized(admin, scope)
    assert len({each.volume for each in segments}) > 1
    for at in segments:
        own = [each for each in segments if each.volume == at.volume and each.segment < at.segment]
        assert memory_bytes(at) + sum(map(pieces_bytes, own)) <= bounds.volume_read_bytes_max
    assert await loaded(holding(store, bounds.volume_read_bytes_max), scope, ids) == hot
    report = await store.verification.thread(scope, "t1")
    assert report.findings == []


@pytest.mark.parametrize("with_state", [False, True])
async def test_a_page_that_would_hold_too_much_ends_early_and_the_next_goes_on(store, scope, admin, ids, with_state):
    query = {"limit": STEPS + 2, "with_state": with_state}
    (hot,) = await pages(store.checkpoints, scope, **query)
    await move_within(SegmentBounds(checkpoints_max=2), store, scope, OLD)
    segments = await sized(admin, scope)
    bytes_max = sum(map(pieces_bytes, segments)) + 3 * max(map(memory_bytes, segments))
    assert sum(map(memory_bytes, segments)) > 2 * bytes_max

    found = await pages(holding(store, bytes_max), scope, **query)

    assert len(found) > 2
    assert all(found)
    assert [item for page in found for item in page] == hot
    assert [item for page in await pages(store.checkpoints, scope, **query) for item in page] == hot
