"""A process that dies at any point of an upload, a save or a sweep leaves nothing dangling and nothing forgotten.

Death is what SIGKILL is to everybody else: from one moment on nothing of the process reaches the database or the object
store any more, its handlers included. What lasts is a COMMIT and what the object store did, so the points are after
each COMMIT and before and after each call of the object store; every one of them is tried. Meanwhile two sweepers that
know no grace work on the same tenant, another process saves and deletes the same content, and in half of the rounds
uploads expire under whoever writes them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import event

from crypto.blob import PART_BYTES
from storage.artifacts.model import NewArtifact
from storage.blobs.keyspace import BUCKETS, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import ObjectInfo
from storage.collection.sweep import Sweep
from storage.errors import StorageError, ThreadNotFound
from storage.postgres.unit_of_work import Silent
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.blob_rows import Blobs, Upload
from tests.support.death import Death
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.states import contents, load, save, state
from tests.support.stores import DEPLOYMENT_ID

SCREENS = {f"screen-{number}": f"data:image/png;base64,{number}" + "A" * 70_000 for number in range(2)}
NEW = NewArtifact(name="file", media_type="image/png")
SECONDS_MAX = 60


class World:
    """A tenant of a database and a bucket, a process that may die, and another one that lives."""

    def __init__(self, mortal: Store, living: Store, death: Death, admin: asyncpg.Connection) -> None:
        self.mortal = mortal
        self.living = living
        self.death = death
        self.scope = Scope(uuid4(), "user-1")
        self.swept = 0
        self._rounds = 0
        self._round_ended = asyncio.Event()
        assert isinstance(living.blobs, MemoryBlobStore)
        self.bucket = living.blobs
        self._admin = admin
        self._one_at_a_time = asyncio.Lock()

    def sweeper(self, store: Store, days: float = 0) -> Sweep:
        return Sweep(store.unit_of_work, store.buckets, days, grace_seconds=0, stray_seconds=-60)

    async def expire(self, state: str) -> None:
        """Let uploads under way expire, or tombstones end."""
        async with self._one_at_a_time:
            await self._admin.execute(
                "UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second'"
                " WHERE tenant_id = $1 AND state = $2",
                self.scope.tenant_id,
                state,
            )

    async def _sweep_again_and_again(self) -> None:
        while True:
            done = await self.sweeper(self.living).tenant(self.scope.tenant_id, now=True)
            assert done is not None
            self.swept += done.expired + done.condemned + done.deleted
            self._rounds += 1
            self._round_ended.set()
            await asyncio.sleep(0)

    async def _rounds_more(self, rounds: int) -> None:
        until = self._rounds + rounds
        while self._rounds < until:
            self._round_ended.clear()
            await self._round_ended.wait()

    async def _save_the_same(self) -> None:
        while True:
            with suppress(StorageError):
                await save(self.living, self.scope, "rival", content=state(**SCREENS))
                assert contents(await load(self.living, self.scope, "rival")) == SCREENS
                await self.living.threads.delete(self.scope, "rival")
            await asyncio.sleep(0)

    async def _expire_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            await self.expire("open")

    @asynccontextmanager
    async def crowd(self, *, expiring: bool) -> AsyncIterator[None]:
        """Two sweepers, a rival, and perhaps time that flies: at work before, meanwhile and for a while after."""
        works = [self._sweep_again_and_again, self._sweep_again_and_again, self._save_the_same]
        if expiring:
            works.append(self._expire_again_and_again)
        tasks = [asyncio.create_task(each()) for each in works]
        try:
            await self._rounds_more(2)
            while not self.swept:  # the rival's first deletion leaves something to sweep
                await self._rounds_more(1)
            yield
            await self._rounds_more(2)
        finally:
            for each in tasks:
                each.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, asyncio.CancelledError):
                    raise outcome

    async def check(self) -> None:
        """When whoever is left has swept, everything agrees and nothing waits."""
        for _ in range(
            3
        ):  # an upload that was given up goes first, then its tombstone, then what only the bucket knows
            await self.expire("open")
            await self.expire("swept")
            done = await self.sweeper(self.living).tenant(self.scope.tenant_id, now=True)
            assert done is not None
        report = await Blobs(self.living, self.bucket, archive=self.bucket).fsck(self.scope)
        assert (report.faults, report.young) == ({}, 0), report.findings
        place = self.scope.tenant_id
        rows = "SELECT count(*) FROM stateroom.blob_intents WHERE tenant_id = $1"
        assert await self._admin.fetchval(rows, place) == 0
        rows = "SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1 AND state = 'condemned'"
        assert await self._admin.fetchval(rows, place) == 0
        objects = await self.objects()
        used = await self._admin.fetchval("SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1", place)
        assert (used or 0) == sum(each.size_bytes for each in objects)
        for each in BUCKETS:
            assert await self.bucket.list_multiparts(tenant_prefix(place, each)) == []

    async def objects(self) -> list[ObjectInfo]:
        """Of both places: they share the bucket."""
        prefixes = [tenant_prefix(self.scope.tenant_id, each) for each in BUCKETS]
        return [found for each in prefixes for found in await self.bucket.list_objects(each)]

    async def check_that_all_can_go(self) -> None:
        for thread_id in ("mine", "rival"):
            with suppress(ThreadNotFound):
                await self.living.threads.delete(self.scope, thread_id)
        await self.check()
        assert await self.objects() == []


@pytest.fixture(scope="module")
async def stores(database, root_key) -> AsyncIterator[tuple[Store, Store, Death]]:
    death, bucket, opened = Death(), MemoryBlobStore(), []
    for blobs, observer in ((FaultyBlobStore(bucket, death.call), death), (bucket, Silent())):
        opened.append(
            await Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=8,
                durable=False,
                options=StoreOptions(blobs=blobs, archive=blobs, observer=observer),
            )
        )
    event.listen(opened[0]._engine.sync_engine, "checkout", death.connect)
    yield opened[0], opened[1], death
    death.at(0)
    for each in opened:
        await each.close()


async def in_slices(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 1 << 20):
        yield content[at : at + (1 << 20)]


Verb = Callable[[World], Awaitable[Callable[[], Awaitable[None]]]]  # returns how to see that it is done


async def saving(world: World) -> Callable[[], Awaitable[None]]:
    saved = await save(world.mortal, world.scope, "mine", content=state(**SCREENS, own="x" * 80_000))

    async def look() -> None:
        found = await load(world.living, world.scope, "mine")
        assert found.checkpoint_id == saved.checkpoint_id
        assert contents(found) == {**SCREENS, "own": "x" * 80_000}

    return look


async def looking(world: World, artifact_id: Any, content: bytes) -> None:
    opened = await world.living.artifacts.open(world.scope, artifact_id)
    assert b"".join([each async for each in opened.read(0, len(content))]) == content


async def _uploading(world: World, size_bytes: int) -> Callable[[], Awaitable[None]]:
    content = os.urandom(size_bytes)
    made = await world.mortal.artifacts.create(world.scope, "mine", NEW, in_slices(content))
    return lambda: looking(world, made.artifact_id, content)


async def uploading(world: World) -> Callable[[], Awaitable[None]]:
    return await _uploading(world, 10_000)


async def uploading_much(world: World) -> Callable[[], Awaitable[None]]:
    return await _uploading(world, PART_BYTES + 10_000)


async def uploading_in_parts(world: World) -> Callable[[], Awaitable[None]]:
    content, artifacts = os.urandom(PART_BYTES + 10_000), world.mortal.artifacts
    begun = await artifacts.begin(world.scope, "mine", NEW)
    upload_id = begun.upload_id
    await artifacts.put_part(world.scope, upload_id, 0, in_slices(content[:PART_BYTES]))
    await artifacts.put_part(world.scope, upload_id, 1, in_slices(b"other"))
    await artifacts.put_part(world.scope, upload_id, 1, in_slices(content[PART_BYTES:]))
    made, _ = await artifacts.complete(world.scope, upload_id, 2)
    return lambda: looking(world, made.artifact_id, content)


async def removing(world: World) -> Callable[[], Awaitable[None]]:
    await save(world.living, world.scope, "mine", content=state(**SCREENS))
    made = await world.living.artifacts.create(world.scope, "mine", NEW, in_slices(b"file"))
    await world.mortal.artifacts.delete(world.scope, made.artifact_id)
    await world.mortal.threads.prune(world.scope, ["mine"], "keep_latest")
    await world.mortal.threads.delete(world.scope, "mine")

    async def look() -> None:
        with pytest.raises(ThreadNotFound):
            await world.living.artifacts.list(world.scope, "mine")

    return look


async def sweeping(world: World) -> Callable[[], Awaitable[None]]:
    """Something for every step: given up, ended, loose and condemned; and something that must stay."""
    other = Blobs(world.living, world.bucket, archive=world.bucket, intent_seconds=-1)
    await save(world.living, world.scope, "mine", content=state(own="y" * 80_000))
    for name in ("loose", "condemned"):
        await save(world.living, world.scope, name, content=state(**SCREENS, own=name * 20_000))
        await world.living.threads.delete(world.scope, name)
        if name == "loose":
            await world.sweeper(world.living, days=1).tenant(world.scope.tenant_id, now=True)
    await _given_up(other, world)
    await world.expire("swept")
    await _given_up(other, world)
    await world.sweeper(world.mortal).tenant(world.scope.tenant_id, now=True)

    async def look() -> None:
        assert contents(await load(world.living, world.scope, "mine")) == {"own": "y" * 80_000}

    return look


async def _given_up(other: Blobs, world: World) -> None:
    await other.put(world.scope, Upload(data=os.urandom(100)))
    await other.put(world.scope, Upload(data=os.urandom(100), purpose="archive", place="archive"))


POINTS = {1: "every point", 3: "every third"}  # the default suite tries the latter, the long one all
VERBS = (saving, uploading, uploading_much, uploading_in_parts, removing, sweeping)


def _deaths(verbs: Iterable[tuple[Verb, bool]], step: int, *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(
            verb,
            expiring,
            step,
            marks=marks,
            id=f"{verb.__name__}-{'expiring' if expiring else 'in time'}-{POINTS[step]}",
        )
        for verb, expiring in verbs
    ]


@pytest.mark.parametrize(
    ("verb", "expiring", "step"),
    [
        *_deaths([(verb, False) for verb in (saving, uploading, uploading_in_parts, sweeping)], 3),
        *_deaths([(verb, expiring) for verb in VERBS for expiring in (False, True)], 1, pytest.mark.soak),
    ],
)
async def test_a_death_at_any_point_leaves_nothing_dangling_and_nothing_forgotten(
    stores, admin, verb: Verb, expiring, step
):
    mortal, living, death = stores
    finished = refused = swept = 0
    for point in count(1, step):
        world = World(mortal, living, death, admin)
        await save(living, world.scope, "rival", content=state(**SCREENS))
        async with asyncio.timeout(SECONDS_MAX), world.crowd(expiring=expiring):
            death.at(point)
            try:
                look = await verb(world)
            except StorageError:
                refused += 1
                assert expiring or death.dead
            except BaseException:
                if not death.dead:
                    raise
            else:
                if not death.dead:
                    finished += 1
                    await look()
        died = death.dead
        swept += world.swept
        death.at(0)
        await world.check()
        await world.check_that_all_can_go()
        if not died:
            break
    assert point > 3
    assert swept > 0
    assert finished == 1 or expiring
