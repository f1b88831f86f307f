"""A process that dies while it deletes a family leaves whole threads whose parents are there, and somebody ends it.

Death is what SIGKILL is to everybody else (`tests.crash.test_archive_dies_anywhere`): its points are the COMMITs, and
calls of the object store. Leaves go first, so that whatever is left is a family with the same thread at its head.
"""

from itertools import count
from uuid import uuid4

import pytest
from sqlalchemy import event

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import LINKS
from storage.errors import ThreadNotFound
from storage.model import ThreadLink
from storage.scope import Scope
from tests.support.archive_rows import fsck, opened
from tests.support.death import Death, Died
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.features import switch_on
from tests.support.states import document, load, save, state

# Each with its parent.
FAMILY = {"a": None, "b": "a", "c": "a", "d": "b", "e": "d"}
POINTS_MIN = 5


@pytest.fixture(scope="module")
async def stores(database, root_key):
    death, blobs = Death(), MemoryBlobStore()
    mortal = opened(database, root_key, blobs=FaultyBlobStore(blobs, death.call), observer=death)
    async with mortal as one, opened(database, root_key, blobs=blobs) as other:
        event.listen(one._engine.sync_engine, "checkout", death.connect)
        await switch_on(other, LINKS)
        await one.features.refresh()
        yield one, other, death
        death.at(0)


async def begin(store, scope):
    """The family, a thread that only has the same parent's name, and one that is linked to nobody."""
    for name, parent in {**FAMILY, "stranger": None}.items():
        await save(store, scope, name, content=state(large=document(name, 100_000), name=name))
        if parent is not None:
            await store.links.link(scope, name, ThreadLink(parent, "", None))


async def left(store, scope):
    """The threads there are, each of them whole, with its parent."""
    found = {}
    for each in (await store.threads.list(scope)).items:
        found[each.thread_id] = None if each.link is None else each.link.thread_id
        assert (await load(store, scope, each.thread_id)).checkpoint_id
        assert (await store.verification.thread(scope, each.thread_id)).findings == []
    assert (await fsck(store, scope)).faults == {}
    return found


async def test_who_dies_at_any_commit_leaves_a_family_that_is_deleted_to_its_end_by_somebody_else(stores):
    mortal, living, death = stores
    for point in count(1):
        scope = Scope(uuid4(), "user-1")
        await begin(living, scope)
        death.at(point)
        try:
            await mortal.links.delete_family(scope, "a")
        except Died:
            died = True
        else:
            died = False
        death.at(0)
        here = await left(living, scope)
        assert here.pop("stranger", "gone") is None
        assert all(here.get(name, "gone") == FAMILY[name] for name in here)
        assert all(parent is None or parent in here for parent in here.values())
        if here:
            await living.links.delete_family(scope, "a")
        else:
            with pytest.raises(ThreadNotFound):
                await living.links.delete_family(scope, "a")
        assert [*await left(living, scope)] == ["stranger"]
        if not died:
            break
    assert point > POINTS_MIN
