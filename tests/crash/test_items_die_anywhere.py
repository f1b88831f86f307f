"""A process that dies in the middle of writing, removing or keeping items leaves all of it or nothing.

Death is what SIGKILL is to everybody else (`tests.crash.test_archive_dies_anywhere`): its points are the statements and
the COMMITs of a batch.
"""

from itertools import count
from uuid import uuid4

import pytest

from storage.access.access import Access
from storage.control.features import ITEMS
from storage.items.verbs import Items
from storage.model import Idempotency
from storage.scope import ClientShare, Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.death import Death, Died
from tests.support.features import switch_on
from tests.support.interleaving import SteeredUnitOfWork, parts_of
from tests.support.items import delete, get, paths, put, search, write

SHARE = ClientShare(b"s" * 32)
POINTS_MIN = 8


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
def death():
    return Death()


@pytest.fixture
def mortal(store, death):
    async def before(_statement):
        death.pass_by()

    return Items(Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, before))), store.features)


async def whole(items, scope):
    """What there is, by who reads everything to its end, with a share and without."""
    found = {}
    for share in (None, SHARE):
        page = await search(items, scope, (), share=share, limit=1000, refresh=False)
        for each in page.items:
            found[share is not None, each.name] = (each.value.data, each.revision)
        listed = await paths(items, scope, share)
        assert {*listed} == {name.path for shared, name in found if shared == (share is not None)}
    return found


async def begin(items, scope):
    await write(items, scope, put("a", {"n": 1}), put("b", {"n": 1}), put("gone", {}, path=("gone",)))
    await write(items, scope, put("a", {"n": "shared"}), share=SHARE)


BATCH = (
    put("a", {"n": 2}), delete("b"), put("new", {"n": 2}), delete("gone", path=("gone",)),
    put("x", {"n": 2}, path=("other",)), put("y", {}, path=("another",)), delete("nothing"),
)  # fmt: skip


@pytest.mark.parametrize("share", [None, SHARE], ids=["plain", "under a share"])
async def test_who_dies_at_any_statement_of_a_batch_has_written_all_of_it_or_nothing(store, mortal, death, share):
    for point in count(1):
        scope = Scope(uuid4(), "user-1")
        await begin(store.items, scope)
        before = await whole(store.items, scope)
        key = Idempotency("batch", b"d" * 32)
        death.at(point)
        try:
            done = await write(mortal, scope, *BATCH, idempotency=key, share=share)
            died = False
        except Died:
            died = True
        death.at(0)
        after = await whole(store.items, scope)
        if died:
            assert after == before
            done = await write(store.items, scope, *BATCH, idempotency=Idempotency("batch", b"d" * 32), share=share)
            after = await whole(store.items, scope)
        again = await write(store.items, scope, *BATCH, idempotency=Idempotency("batch", b"d" * 32), share=share)
        assert [each.status for each in again] == [each.status for each in done]
        assert await whole(store.items, scope) == after != before
        if not died:
            break
    assert point > POINTS_MIN


async def test_who_dies_while_items_that_are_over_are_removed_leaves_whole_paths(store, mortal, death, admin):
    for point in count(1):
        scope = Scope(uuid4(), "user-1")
        await begin(store.items, scope)
        await write(store.items, scope, put("b", {}, ttl_seconds=60), put("z", {}, path=("over",), ttl_seconds=60))
        await admin.execute(
            "UPDATE stateroom.items SET expires_at = now() - interval '1 s'"
            " WHERE tenant_id = $1 AND ttl_seconds IS NOT NULL", scope.tenant_id,
        )  # fmt: skip
        before = await whole(store.items, scope)
        death.at(point)
        try:
            async for _ in mortal.expiring.run(TenantScope(scope.tenant_id)):
                pass
            died = False
        except Died:
            died = True
        death.at(0)
        assert await whole(store.items, scope) == before
        async for _ in store.items.expiring.run(TenantScope(scope.tenant_id)):
            pass
        assert await whole(store.items, scope) == before
        over = "SELECT count(*) FROM stateroom.items WHERE tenant_id = $1 AND ttl_seconds IS NOT NULL"
        assert await admin.fetchval(over, scope.tenant_id) == 0
        if not died:
            break
    assert point > POINTS_MIN


async def test_who_dies_while_it_notes_what_was_read_loses_the_note_only(store, mortal, death, admin):
    for point in count(1):
        scope = Scope(uuid4(), "user-1")
        await write(store.items, scope, put("a", {"n": 1}, ttl_seconds=3600))
        await admin.execute(
            "UPDATE stateroom.items SET expires_at = now() + interval '60 s' WHERE tenant_id = $1", scope.tenant_id
        )
        before = await whole(store.items, scope)
        (read,) = await get(mortal, scope, "a")
        death.at(point)
        try:
            await mortal.keeping.flush()
            died = False
        except Died:
            died = True
        death.at(0)
        assert await whole(store.items, scope) == before
        (after,) = await get(store.items, scope, "a", refresh=False)
        assert (after.expires_at > read.expires_at) == (not died)
        if not died:
            break
    assert point > 1
