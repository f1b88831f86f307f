"""Items follow a rotation of their subject's key: sealed again at their places, saying the same, while others write."""

import asyncio

import pytest

from crypto import peek_header
from storage.access.access import Access
from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import NotFound
from storage.items.resealing import BATCH_BYTES_MAX, BATCH_ROWS, ItemPosition, reseal_items
from storage.scope import TenantScope
from storage.statements.items import paths as paths_sql
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.interleaving import Gate, SteeredUnitOfWork, parts_of
from tests.support.item_rows import SEALED, SHARE, TABLES, VECTORS, delete, found, put, restore, rows, values, write

ACTOR = "api-key:test"
OTHER = ("memories", "bob")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


async def rotated(store, scope, meanwhile=None):
    """Rotate the subject's key; returns the job that sealed again, when it has ended."""
    started = await store.rotation.rotate_subject(scope, ACTOR)
    tenant = TenantScope(scope.tenant_id)
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(tenant, started.job_id)).state in {"queued", "running"}:
            if meanwhile is not None:
                await meanwhile()
            await store.runner.run_due()
            await asyncio.sleep(0)
    return job


async def versions(admin, scope):
    """The key versions that the envelopes of items, labels and seals name, by table and column."""
    return {
        (table, column): {peek_header(row[column]).key_version for row in await rows(admin, scope, table)}
        for table, column in SEALED
    }


async def key_states(admin, scope):
    return await admin.fetchval(
        "SELECT array_agg(state ORDER BY key_version) FROM stateroom.subject_keys"
        " WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data'",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip


def unsealed(stored, *columns):
    return [{name: row[name] for name in row if name not in columns} for row in stored]


async def test_items_are_sealed_again_and_say_the_same(store, scope, admin):
    many = [put(f"k{number:03}", {"n": number}) for number in range(BATCH_ROWS)]
    many[7] = put("k007", {"n": 7}, vectors=VECTORS)
    await write(store, scope, *many)
    large = {"text": "x" * 200_000, "n": 1}
    await write(
        store,
        scope,
        *(put(f"large-{number}", large, path=OTHER, ttl_seconds=600, vectors=VECTORS) for number in range(12)),
    )
    for number in range(BATCH_ROWS + 3):
        await write(store, scope, put("only", {}, path=("paths", str(number))))
    assert BATCH_BYTES_MAX < 12 * 200_000
    before = {table: await rows(admin, scope, table) for table in TABLES}
    seen = await found(store, scope)
    job = await rotated(store, scope)
    assert (job.state, job.error, job.note) == ("done", None, None)
    assert all(each == {2} for each in (await versions(admin, scope)).values())
    assert await key_states(admin, scope) == ["destroyed", "active"]
    for table in TABLES:
        columns = [column for each, column in SEALED if each == table]
        assert unsealed(await rows(admin, scope, table), *columns) == unsealed(before[table], *columns)
    assert await found(store, scope) == seen
    report = await store.verification.subject(scope)
    assert (report.findings, report.items_opened) == ([], len(before["items"]))


async def test_items_under_a_share_keep_the_older_version_and_their_seals_follow(store, scope, admin):
    await write(store, scope, put("a", {"n": 1}))
    await write(store, scope, put("a", {"n": 2}, vectors=VECTORS), put("b", {"n": 3}), share=SHARE)
    job = await rotated(store, scope)
    assert job.state == "done"
    assert job.note.startswith("4 envelopes of threads and items under a client-held share")
    assert await key_states(admin, scope) == ["decrypt_only", "active"]
    assert await versions(admin, scope) == {
        ("items", "envelope"): {1, 2}, ("item_vectors", "envelope"): {1}, ("item_paths", "labels"): {1, 2},
        ("item_paths", "seal"): {2}, ("item_scopes", "seal"): {2},
    }  # fmt: skip
    assert len(await found(store, scope, SHARE)) == 2
    assert len(await found(store, scope)) == 1
    # Its client puts anew what it has, and the next rotation gives both older versions up.
    await write(store, scope, delete("a"), delete("b"), share=SHARE)
    assert (await rotated(store, scope)).note is None
    assert await key_states(admin, scope) == ["destroyed", "destroyed", "active"]


@pytest.mark.parametrize(("table", "column"), [*SEALED])
async def test_what_is_damaged_keeps_the_older_version_and_the_rotation_says_so(store, scope, admin, table, column):
    await write(store, scope, put("a", {"n": 1}, vectors=VECTORS), put("b", {"n": 2}, path=OTHER))
    stored = await rows(admin, scope, table)
    sound = stored[0][column]
    stored[0][column] = sound[:-1] + bytes([sound[-1] ^ 1])
    await restore(admin, scope, table, stored)
    job = await rotated(store, scope)
    assert (job.state, job.error) == ("failed", "1 sealed rows are damaged; the older key versions stay")
    assert await key_states(admin, scope) == ["decrypt_only", "active"]
    assert stored[0][column] in {row[column] for row in await rows(admin, scope, table)}


async def test_a_rotation_goes_on_while_items_are_put_and_deleted(store, scope, admin):
    await write(store, scope, *(put(f"k{number}", {"n": 0}) for number in range(100)))
    number = 0

    async def meanwhile():
        nonlocal number
        number += 1
        await write(
            store, scope, put(f"k{number % 50}", {"n": number}), put("new", {}, path=(f"p{number}",), vectors=VECTORS)
        )
        await write(store, scope, delete("new", path=(f"p{number - 1}",)))

    job = await rotated(store, scope, meanwhile)
    assert (job.state, job.error, number > 5) == ("done", None, True)
    assert all(each == {2} for each in (await versions(admin, scope)).values())
    assert await key_states(admin, scope) == ["destroyed", "active"]
    assert (await store.verification.subject(scope)).findings == []


async def test_a_put_at_the_same_moment_wins_over_sealing_again(store, scope, admin):
    await write(store, scope, put("a", {"n": 1}))
    old = await rows(admin, scope, "items")
    await store.rotation.rotate_subject(scope, ACTOR)
    gate = Gate(paths_sql.LOCK_PATHS)
    access = Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, gate)))

    async def attempt(sealer):
        async with access.unit_of_work.begin(scope) as transaction:
            return await reseal_items(transaction, sealer, ItemPosition())

    sealing = asyncio.create_task(access.with_existing_keys(scope, attempt, NotFound()))
    await gate.arrival()  # it has read the item, and sealed it again
    await write(store, scope, put("a", {"n": 2}))
    gate.opened.set()
    batch = await sealing
    assert (batch.done, batch.position) == (1, ItemPosition("vectors"))
    assert await values(store, scope, "a") == [encode_msgpack({"n": 2})]
    assert (await rows(admin, scope, "items"))[0]["revision"] > old[0]["revision"]
    assert (await store.verification.subject(scope)).findings == []
