"""A process that dies at any point of archiving or restoring leaves a thread that is whole, readable and in one place.

So does one that moves old checkpoints into segments, heads of finished calls among them, or brings them back, while
others go on with the thread.

Death is what SIGKILL is to everybody else: from one moment on nothing of the process reaches the database or a bucket
any more, its handlers included. What lasts is a COMMIT and what an object store did, so the points are after each
COMMIT and before and after each call of an object store. The default suite tries every third of them, the long one
all. Besides, the object store fails in every way at every call, and the work is cancelled at every await.

Meanwhile another process reads the thread again and again, which must never fail. In half of the rounds it also saves
to the thread, puts pending writes and removes other checkpoints: every one that was acknowledged, and not removed, is
there in the end.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import event

from crypto import Sealer
from crypto.blob import PART_BYTES
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import Sweep
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import IntegrityFailure, NotFound, StorageError, ThreadActive, ThreadArchived, Unavailable
from storage.key_lifecycle.rewriting import Rewritten
from storage.model import Checkpoint, HistoryQuery
from storage.scope import Scope
from storage.service import Store
from storage.statements.threads import archives as archives_sql
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import MOVED, fsck, opened, rows
from tests.support.death import Death
from tests.support.faulty_blobs import Fault, FaultyBlobStore
from tests.support.features import switch_on
from tests.support.interleaving import CancelAtAwait
from tests.support.states import document, put, save, state, write

SECONDS_MAX = 30
CALLS = ("put_if_absent", "get_range", "change_class", "begin_multipart", "put_part", "complete_multipart")
# Between two writes of the other process: about as long as archiving takes, so that each of them wins now and then.
PAUSES = (0.0, 0.03, 0.06, 0.1)


BUSY_POINTS_MIN = 12
# Of what is saved beside, and removed again: everything but what the tests ask for, which is done.
THINNED = "beside"
UNWANTED = ThinningRule(keep_statuses=frozenset({"done"}))


class Stores:
    """A process that may die, and another one that lives, on one database and two buckets."""

    def __init__(self, mortal: Store, living: Store, death: Death, faulty: FaultyBlobStore) -> None:
        self.mortal, self.living, self.death, self.faulty = mortal, living, death, faulty


@pytest.fixture(scope="module")
async def stores(database, root_key) -> AsyncIterator[Stores]:
    death, blobs, archive = Death(), MemoryBlobStore(), MemoryBlobStore(storage_class="STANDARD_IA", thaw_seconds=0)
    faulty = FaultyBlobStore(archive, death.call)
    mortal = opened(database, root_key, blobs=FaultyBlobStore(blobs, death.call), archive=faulty, observer=death)
    async with mortal as one, opened(database, root_key, blobs=blobs, archive=archive) as other:
        event.listen(one._engine.sync_engine, "checkout", death.connect)
        for each in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(other, each)
        await one.features.refresh()
        yield Stores(one, other, death, faulty)
        death.at(0)


class World:
    """A thread of a tenant of its own, and what was acknowledged of it."""

    def __init__(self, stores: Stores, admin: asyncpg.Connection) -> None:
        self.mortal, self.living, self.death = stores.mortal, stores.living, stores.death
        self.scope = Scope(uuid4(), "user-1")
        self.acknowledged: dict[str, int] = {}
        self.of_calls: dict[str, int] = {}
        self.reads = self.written = 0
        self._numbers = count()
        self._admin = admin

    async def begin(self) -> None:
        for _ in range(2):
            await self.save()
        await self.put()

    async def save(self, channels: int = 0) -> None:
        """Save; with ``channels`` of 60 KB each that nothing makes shorter."""
        number = next(self._numbers)
        large = {f"c{each}": os.urandom(60_000) for each in range(channels)}
        content = state(n=number, text=document(f"n{number}", 5000), **large)
        saved = await save(self.living, self.scope, content=content, status="done")
        self.acknowledged[saved.checkpoint_id] = 0
        self.written += 1

    async def put(self) -> None:
        last = [each for each in self.acknowledged if each not in self.of_calls][-1]
        task_id = f"task-{self.acknowledged[last]}"
        await put(self.living, self.scope, last, write(0, "c", document("written", 3000)), task_id=task_id)
        self.acknowledged[last] += 1
        self.written += 1

    async def call(self, store: Store | None = None) -> None:
        """A step of a call of a sub-agent that is over: its namespace leaves with its head, and this brings it back."""
        number = next(self._numbers)
        parents = {"parents": {"": "gone on"}}
        content = state(n=number, text=document(f"call{number}", 5000))
        place = {"namespace": CALL, "metadata": parents, "status": "done"}
        saved = await save(store or self.living, self.scope, content=content, **place)
        self.acknowledged[saved.checkpoint_id] = 0
        self.of_calls[saved.checkpoint_id] = saved.sequence
        assert len({*self.of_calls.values()}) == len(self.of_calls)
        self.written += 1

    async def look(self) -> None:
        """Read the thread: all that was acknowledged before is there."""
        known = dict(self.acknowledged)
        items: list[Checkpoint] = []
        query: HistoryQuery | None = HistoryQuery(thread_id="t1", with_state=True, limit=1000)
        while query is not None:  # a page ends where its states take too much
            try:
                page = await self.living.checkpoints.history(self.scope, query)
            except ThreadArchived:
                await self._thaw()
                continue
            items += page.items
            query = None if page.after is None else replace(query, after=page.after)
        found = {each.checkpoint_id: len(each.writes or ()) for each in items}
        assert len(found) == len(items)
        assert {each: found[each] >= writes for each, writes in known.items()} == dict.fromkeys(known, True)
        self.reads += 1

    async def _thaw(self) -> None:
        objects = self.living.archives.objects
        async with self.living.unit_of_work.snapshot(self.scope) as transaction:
            stub = await objects.stub(transaction, "t1")
            stubs = await transaction.fetch_all(archives_sql.SEGMENT_STUBS, thread_id="t1")
        for each in stubs if stub is None else [stub, *stubs]:
            with suppress(IntegrityFailure):  # restored, and swept, meanwhile
                await objects.thaw(self.scope, each)

    async def _read_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0)

    async def _write_on(self) -> None:
        for number in count():
            await asyncio.sleep(PAUSES[number % len(PAUSES)])
            try:
                if number % 3 == 2 and self.of_calls:
                    await self.call()
                await (self.save() if number % 3 else self.put())
            except ThreadArchived:  # frozen, and refused: nothing was acknowledged
                await self._thaw()

    async def _thin_on(self) -> None:
        """Save checkpoints that nobody asks for again, and remove them."""
        for number in count():
            await asyncio.sleep(PAUSES[number % len(PAUSES)])
            with suppress(ThreadArchived, Unavailable):
                await save(self.living, self.scope, content=state(n=-number), namespace=THINNED, status="active")
                await self.living.pruning.thin(self.scope, "t1", UNWANTED)

    async def _sweep_on(self) -> None:
        sweep = Sweep(self.living.unit_of_work, self.living.buckets, 1, grace_seconds=0)
        while True:
            await sweep.tenant(self.scope.tenant_id, now=True)
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def crowd(self, *, busy: bool) -> AsyncIterator[None]:
        works = [self._read_on, self._sweep_on, *([self._write_on, self._thin_on] if busy else [])]
        tasks = [asyncio.create_task(each()) for each in works]
        try:
            yield
            reads = self.reads
            while self.reads < reads + 2 and not any(each.done() for each in tasks):  # noqa: ASYNC110
                await asyncio.sleep(0)
        finally:
            for each in tasks:
                each.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, asyncio.CancelledError):
                    raise outcome

    async def check(self) -> None:
        """The thread is whole, in one place, and nothing is left over once it was swept."""
        await self.look()
        tier = (await self.living.threads.get(self.scope, "t1")).tier
        hot = [table for table in MOVED if await rows(self._admin, self.scope, "t1", table)]
        stubs = await rows(self._admin, self.scope, "t1", "archives")
        if tier == "hot":  # what is in the database of a namespace is there with its head
            heads = {row["namespace"] for row in await rows(self._admin, self.scope, "t1", "heads")}
            assert heads == {row["namespace"] for row in await rows(self._admin, self.scope, "t1", "checkpoints")}
        assert (bool(hot), [row["segment"] for row in stubs].count(0)) == ((True, 0) if tier == "hot" else (False, 1))
        assert (await self.living.verification.subject(self.scope)).findings == []
        for _ in range(3):
            await self._admin.execute(
                "UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second' WHERE tenant_id = $1",
                self.scope.tenant_id,
            )
            sweep = Sweep(self.living.unit_of_work, self.living.buckets, 0, grace_seconds=0, stray_seconds=-60)
            await sweep.tenant(self.scope.tenant_id, now=True)
        report = await fsck(self.living, self.scope)
        assert (report.faults, report.young) == ({}, 0), report.findings
        assert self.living.archive is not None
        objects = await self.living.archive.list_keys(tenant_prefix(self.scope.tenant_id, "archive"))
        assert len(objects) == len(stubs)
        await self.look()

    async def check_that_work_goes_on(self) -> None:
        """Whoever comes next can do all of it."""
        await self._thaw()
        await self.living.archives.restore(self.scope, "t1")
        assert (await self.living.archives.archive(self.scope, "t1")).created
        await self.save()
        await self.put()
        await self.check()


Verb = Callable[[World], Awaitable[Any]]


async def archiving(world: World) -> None:
    await world.mortal.archives.archive(world.scope, "t1")


async def archiving_to_a_frozen_class(world: World) -> None:
    await world.mortal.archives.archive(world.scope, "t1", storage_class="GLACIER")


async def restoring(world: World) -> None:
    await world.mortal.archives.restore(world.scope, "t1")


async def saving_to_the_archive(world: World) -> None:
    """A save that restores first; what it saves is acknowledged only if it returns."""
    saved = await save(world.mortal, world.scope, content=state(text="back"), status="done")
    world.acknowledged[saved.checkpoint_id] = 0


async def rewriting(world: World) -> None:
    """Write the objects again under a new key: of segments, and of an archive."""
    store, after = world.mortal, ("", 0)
    while after is not None:
        place = after

        async def work(sealer: Sealer) -> Rewritten:
            return await store.rewriting.next(world.scope, sealer, place)  # noqa: B023  it is awaited at once

        after = (await store.rewriting._access.without_restore(world.scope, work, NotFound())).after


async def rewriting_an_archive(world: World) -> None:
    await rewriting(world)


OLD = ThinningRule(keep_last=1)
CALL = "work:1"


async def moving_a_call(world: World) -> None:
    await segmenting(world)


async def segmenting(world: World) -> None:
    await world.mortal.archives.segmenting.move(world.scope, "t1", OLD, actor="test")


async def segmenting_in_parts(world: World) -> None:
    """As `segmenting`, of an object that is uploaded in parts."""
    await segmenting(world)


async def segmenting_to_a_frozen_class(world: World) -> None:
    await world.mortal.archives.segmenting.move(world.scope, "t1", OLD, actor="test", storage_class="GLACIER")


async def bringing_back(world: World) -> None:
    await world.mortal.archives.restore(world.scope, "t1")


async def writing_to_a_segment(world: World) -> None:
    """A pending write that brings back first; it is acknowledged only if it returns."""
    oldest = next(iter(world.acknowledged))
    await put(world.mortal, world.scope, oldest, write(0, "c", "late"), task_id="late")
    world.acknowledged[oldest] += 1


async def saving_to_a_call_that_left(world: World) -> None:
    """A save that brings a namespace back with its head first; it is acknowledged only if it returns."""
    await world.call(world.mortal)


REWRITING = (rewriting, rewriting_an_archive)
CALLED = (moving_a_call, saving_to_a_call_that_left)
SEGMENTED = (bringing_back, writing_to_a_segment, saving_to_a_call_that_left)


async def prepared(stores: Stores, admin: asyncpg.Connection, verb: Verb) -> World:
    world = World(stores, admin)
    await world.begin()
    if verb is segmenting_in_parts:
        await world.save(channels=PART_BYTES // 60_000 + 10)
        await world.save()
    if verb in CALLED:
        await world.call()
        await world.save()
    if verb in {*SEGMENTED, *REWRITING}:
        for _ in range(2):  # two segments of one volume
            await world.save()
            await world.living.archives.segmenting.move(world.scope, "t1", OLD, actor="test")
    if verb in {restoring, saving_to_the_archive, rewriting_an_archive}:
        await world.living.archives.archive(world.scope, "t1")
    if verb in REWRITING:
        await world.living.rotation.rotate_subject(world.scope, "test")
    return world


VERBS = (
    archiving, archiving_to_a_frozen_class, restoring, saving_to_the_archive,
    segmenting, segmenting_in_parts, segmenting_to_a_frozen_class, *SEGMENTED, *REWRITING, moving_a_call,
)  # fmt: skip
POINTS = {1: "every point", 3: "every third"}
EVERY_THIRD = (
    (archiving_to_a_frozen_class, False), (rewriting_an_archive, False), (archiving, True), (restoring, True),
    (segmenting, True), (bringing_back, True), (moving_a_call, True), (saving_to_a_call_that_left, True),
    (rewriting, True),
)  # fmt: skip


def _deaths(verbs: Iterable[tuple[Verb, bool]], step: int, *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(verb, busy, step, marks=marks, id=f"{verb.__name__}-{'busy' if busy else 'quiet'}-{POINTS[step]}")
        for verb, busy in verbs
    ]


@pytest.mark.parametrize(
    ("verb", "busy", "step"),
    [
        *_deaths(EVERY_THIRD, 3),
        *_deaths([(verb, False) for verb in VERBS], 1, pytest.mark.soak),
        *_deaths([(verb, True) for verb in VERBS if verb is not segmenting_in_parts], 1, pytest.mark.soak),
    ],
)
async def test_a_death_at_any_point_leaves_the_thread_whole_and_in_one_place(stores, admin, verb: Verb, busy, step):
    finished = 0
    for point in count(1, step):
        world = await prepared(stores, admin, verb)
        async with asyncio.timeout(SECONDS_MAX), world.crowd(busy=busy):
            stores.death.at(point)
            try:
                await verb(world)
            except ThreadActive:
                assert busy
            except BaseException:
                if not stores.death.dead:
                    raise
            else:
                finished += not stores.death.dead
        died = stores.death.dead
        stores.death.at(0)
        await world.check()
        # Where somebody else was faster, there was less to die in.
        if not died and (not busy or point >= BUSY_POINTS_MIN):
            break
    await world.check_that_work_goes_on()
    assert point > 5
    assert finished == 1 or busy


FAULTS = [each for each in Fault if each is not Fault.SLOW]


async def test_a_lost_response_of_the_object_store_leaves_the_thread_whole(stores, admin):
    await _faulty(stores, admin, archiving_to_a_frozen_class, Fault.LOST_RESPONSE, busy=False)


async def test_an_object_of_which_half_is_read_back_moves_nothing_and_brings_nothing_back(stores, admin):
    for verb in (segmenting, bringing_back):
        await _faulty(stores, admin, verb, Fault.TRUNCATED, busy=False)


@pytest.mark.soak
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
async def test_a_fault_at_any_call_of_the_object_store_leaves_the_thread_whole(stores, admin, verb: Verb, fault, busy):
    await _faulty(stores, admin, verb, fault, busy=busy)


async def _faulty(stores: Stores, admin: asyncpg.Connection, verb: Verb, fault: Fault, *, busy: bool) -> None:
    stores.death.at(0)
    met = 0
    for operation in CALLS if fault is not Fault.TRUNCATED else ("get_range",):  # what arrives is an answer
        for before in range(2):
            world = await prepared(stores, admin, verb)
            stores.faulty.plan(operation, *[None] * before, fault)
            async with asyncio.timeout(SECONDS_MAX), world.crowd(busy=busy):
                with suppress(StorageError):
                    await verb(world)
            met += not stores.faulty.planned
            stores.faulty._plans.clear()
            await world.check()
    await world.check_that_work_goes_on()
    assert met


@pytest.mark.parametrize(
    "verb", [archiving, restoring, moving_a_call, saving_to_a_call_that_left], ids=lambda verb: verb.__name__
)
async def test_a_cancellation_at_some_awaits_leaves_the_thread_whole(stores, admin, verb: Verb):
    await _cancelled(stores, admin, verb, step=19)


@pytest.mark.soak
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
async def test_a_cancellation_at_any_await_leaves_the_thread_whole(stores, admin, verb: Verb, busy):
    # What is uploaded in parts is read in many more awaits, and takes longer to prepare.
    await _cancelled(stores, admin, verb, step=29 if verb is segmenting_in_parts else 1, busy=busy)


async def _cancelled(stores: Stores, admin: asyncpg.Connection, verb: Verb, *, step: int, busy: bool = False) -> None:
    stores.death.at(0)
    for number in count(1, step):
        world = await prepared(stores, admin, verb)
        async with asyncio.timeout(SECONDS_MAX), world.crowd(busy=busy):
            work = CancelAtAwait(verb(world), number)
            with suppress(ThreadActive):
                await work.run()
        await world.check()
        if not work.cancelled:
            break
    assert number > 10
    await world.check_that_work_goes_on()
