"""What is exported of a thread is the same wherever its rows are, and however much of it is in objects."""

from datetime import UTC, datetime

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobNotFound
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import IntegrityFailure
from storage.statements.threads import threads as threads_sql
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fill, opened
from tests.support.features import switch_on
from tests.support.states import document, load, put, save, state, write

ALL = ThinningRule(made_since=datetime(2100, 1, 1, tzinfo=UTC))
# A restore counts as a write.
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACES = ("", "planner:1", "Z", "ä", "\U0001f600")


class Bucket(MemoryBlobStore):
    """A bucket that loses an object as soon as somebody reads one, once; ``loses`` is called before."""

    loses = None

    async def get(self, location, *parts, **named):
        if self.loses is not None:
            loses, self.loses = self.loses, None
            await loses()
            await self.delete(location)
            raise BlobNotFound
        return await super().get(location, *parts, **named)


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
async def store(database, root_key, bucket):
    async with opened(database, root_key, archive=bucket) as made:
        for feature in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(made, feature)
        yield made


async def talk(store, scope, turns=12):
    """A thread with several namespaces, shared pieces, and writes to checkpoints of each."""
    messages = []
    for number in range(turns):
        messages.append(document(f"message-{number}", 900))
        for namespace in NAMESPACES:
            content = state(messages=messages, own=f"{namespace}-{number}")
            saved = await save(store, scope, content=content, namespace=namespace, step=number)
            await put(store, scope, saved.checkpoint_id, write(0, "c", number), namespace=namespace)
    await save(store, scope, content=state(messages=messages, own="last"), step=turns)


async def digest_of(store, scope):
    return (await store.exporting.content_digest(scope, "t1", updated_at=WRITTEN)).digest


async def heads_in_database(store, scope):
    async with store.unit_of_work.snapshot(scope) as transaction:
        return await transaction.fetch_all(threads_sql.HEADS, thread_id="t1")


async def moved_in_three(store, scope):
    """Several segments; all namespaces but the root leave whole with the last one."""
    for rule in (ThinningRule(keep_last=9), ThinningRule(keep_last=6), ALL):
        await store.archives.segmenting.move(scope, "t1", rule, actor="test")


async def test_what_is_exported_does_not_depend_on_where_the_rows_are(store, scope):
    await talk(store, scope)
    await fill(store, scope, "t2")
    hot = await digest_of(store, scope)
    await moved_in_three(store, scope)
    assert (await store.archives.status(scope, "t1")).segments.segments == 3
    assert [each.namespace for each in await heads_in_database(store, scope)] == [""]
    assert await digest_of(store, scope) == hot
    await store.archives.archive(scope, "t1")
    archived = await digest_of(store, scope)
    assert (await store.archives.status(scope, "t1")).tier == "archive"
    assert archived == hot


@pytest.mark.parametrize("part", ["segment", "archive"])
async def test_an_object_that_was_given_up_meanwhile_is_read_where_its_rows_are(store, scope, bucket, part):
    await talk(store, scope, 4)
    hot = await digest_of(store, scope)
    if part == "segment":
        await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
    else:
        await store.archives.archive(scope, "t1")

    async def restore():
        assert await store.archives.restore(scope, "t1")

    bucket.loses = restore
    assert await digest_of(store, scope) == hot
    assert bucket.loses is None


async def test_an_object_that_is_lost_is_damage(store, scope, bucket):
    await talk(store, scope, 4)
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")

    async def nothing():
        pass

    bucket.loses = nothing
    with pytest.raises(IntegrityFailure):
        await digest_of(store, scope)
    assert (await load(store, scope)).checkpoint_id
