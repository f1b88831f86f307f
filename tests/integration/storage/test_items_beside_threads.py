"""What is done to threads of a subject leaves its items as they are, and no clear column says what is in them."""

# ruff: noqa: S608  table and column names are constants of these tests

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import ITEMS, SEGMENTS
from storage.scope import Scope, TenantScope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fill, fsck, opened
from tests.support.features import switch_on
from tests.support.item_rows import SHARE, TABLES, VECTORS, found, put, rows, write
from tests.support.states import save
from tests.support.transfers import deployment, exported, imported


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, ITEMS)
        await switch_on(made, SEGMENTS)
        yield made


async def _archived(store, scope):
    await store.archives.archive(scope, "t1")
    assert (await store.verification.subject(scope)).items_opened == 2
    await store.archives.restore(scope, "t1")


async def _segmented(store, scope):
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")


async def _pruned(store, scope):
    await store.threads.prune(scope, ["t1"], "keep_latest")


async def _runs_deleted(store, scope):
    await store.threads.delete_runs(scope, ["run-1"])


async def _thinned(store, scope):
    await store.pruning.thin(scope, "t1", ThinningRule(keep_last=1))


async def _copied(store, scope):
    await store.threads.copy(scope, "t1", "copy")


async def _deleted(store, scope):
    await store.threads.delete(scope, "t1")


async def _swept(store, scope):
    await store.sweep.tenant(scope.tenant_id, now=True)
    assert (await fsck(store, scope)).faults == {}


async def _retained(store, scope):
    await store.retaining.begin(TenantScope(scope.tenant_id))
    await store.retaining.run_due()


@pytest.mark.parametrize(
    "verb",
    [_archived, _segmented, _pruned, _runs_deleted, _thinned, _copied, _deleted, _swept, _retained],
    ids=lambda verb: verb.__name__[1:],
)
async def test_a_verb_leaves_items_as_they_are(store, scope, admin, verb):
    await fill(store, scope)
    await write(store, scope, put("a", {"n": 1}, vectors=VECTORS), put("b", {}, path=("b",), ttl_seconds=60))
    await write(store, scope, put("a", {"n": 3}, vectors=VECTORS), share=SHARE)
    before = {table: await rows(admin, scope, table) for table in TABLES}
    await verb(store, scope)
    assert {table: await rows(admin, scope, table) for table in TABLES} == before
    assert len(await found(store, scope)) == 2
    assert (await store.verification.subject(scope)).findings == []


async def test_a_thread_alone_takes_no_items_along(store, scope, postgres, migrated_template):
    await save(store, scope, "t1")
    await write(store, scope, put("a", {"n": 1}))
    async with deployment(postgres, migrated_template) as there:
        target = Scope(scope.tenant_id, scope.subject_id)
        await imported(there, target.tenant_id, await exported(store, there, scope, target.tenant_id, "t1"))
        assert await found(there, target) == []
        assert await there.threads.get(target, "t1")


async def test_no_label_key_or_value_is_in_a_column_that_is_clear_or_short_of_sealed(store, scope, admin):
    words = ("label-of-a-secret", "key-of-a-secret", "value-of-a-secret")
    for share in (None, SHARE):
        await write(store, scope, put(words[1], {"text": words[2]}, path=(words[0],)), share=share)
    dump = [str(row) for table in TABLES for row in await admin.fetch(f"SELECT t::text FROM stateroom.{table} t")]
    assert len(dump) >= 5
    for word in words:
        for form in (word, word.encode().hex()):
            assert not any(form in row for row in dump)
    # The same label, key and value of another subject, or under a share, has no name in common.
    other = Scope(scope.tenant_id, "somebody-else")
    await write(store, other, put(words[1], {"text": words[2]}, path=(words[0],)))
    names = [
        name for each in (scope, other) for row in await rows(admin, each, "items")
        for name in (row["path_id"], row["key_id"], row["member"])
    ]  # fmt: skip
    assert len(names) == len({*names}) == 9
