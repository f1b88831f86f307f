"""Vectors in clear, where a tenant accepted it: found as the sealed ones are, written with them, and gone with them."""

# ruff: noqa: S608  the texts of these statements are constants

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from storage.clear_vectors.rows import Nearest
from storage.control.features import CLEAR_VECTORS, ITEMS
from storage.encoding import encode_msgpack
from storage.errors import ClearVectorsUnavailable, FeatureOff, IntegrityFailure, LeakageNotAccepted, SetupError
from storage.format.items.vectors import model_id, quantized
from storage.items import filters
from storage.items.model import Batch, ItemName, ItemSearch, ItemWrite, ModelVectors, Near
from storage.model import Value
from storage.postgres.pgvector import enable, remove
from storage.postgres.setup import guard, policy_faults
from storage.postgres.statement import Statement
from storage.scope import Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.item_rows import SHARE, rows
from tests.support.stores import DEPLOYMENT_ID
from tests.support.transfers import deployment, exported_tenant, imported

_PATHS = Statement(
    "SELECT path_id FROM stateroom.item_paths WHERE tenant_id = :tenant_id AND subject_id = :subject_id", bytes
)
MODEL = "example-embed"
ACTOR = "api-key:test"
DIMENSIONS = 12
TABLE = "item_clear_vectors"


@pytest.fixture(scope="module")
async def enabled(database):
    """A database of which an operator made the table, as a superuser, who may make the extension."""
    done = await enable(database.superuser_url, (DIMENSIONS,))
    assert len(done.done) == 3
    return database


@pytest.fixture(scope="module")
async def store(enabled, root_key):
    async with opened(enabled, root_key) as made:
        await switch_on(made, ITEMS)
        await switch_on(made, CLEAR_VECTORS)
        yield made


def vector(seed):
    return tuple(math.sin((seed + 1) * (n + 1) * 1.7 + n * n) * (1 + seed % 3) for n in range(DIMENSIONS))


def put(key, *seeds, path=("m",), value=None, **how):
    vectors = (ModelVectors(MODEL, tuple(quantized(vector(each)) for each in seeds)),) if seeds else ()
    return ItemWrite(ItemName(path, key), Value("msgpack", encode_msgpack(value or {"k": key})), vectors=vectors, **how)


def give(key, *seeds, path=("m",)):
    return replace(put(key, *seeds, path=path), value=None)


def delete(key, path=("m",)):
    return ItemWrite(ItemName(path, key), None)


async def write(store, scope, *writes, share=None):
    return (await store.items.run(scope, Batch(writes=[*writes]), share=share)).writes


async def find(store, scope, seed=1, *, metric="cosine", share=None, **wanted):
    search = ItemSearch(near=Near(MODEL, vector(seed), metric), **wanted)
    return (await store.items.run(scope, Batch(searches=[search]), share=share)).searches[0]


async def shown(store, scope, seed=1, **wanted):
    found = await find(store, scope, seed, **wanted)
    return [(each.name.path, each.name.key, round(each.score, 2)) for each in found.items]


async def done(store, scope):
    """The jobs of a tenant have ended."""
    tenant = TenantScope(scope.tenant_id)
    async with asyncio.timeout(60):
        while any(each.state in {"queued", "running"} for each in (await store.jobs.list(tenant)).items):
            await store.runner.run_due()
            await asyncio.sleep(0)
    return (await store.jobs.list(tenant)).items


async def clear(store, scope):
    said = await store.vector_policies.put(TenantScope(scope.tenant_id), "clear", "content", ACTOR)
    await done(store, scope)
    return said


async def sealed(store, scope):
    await store.vector_policies.put(TenantScope(scope.tenant_id), "sealed", actor=ACTOR)
    await done(store, scope)


async def of(admin, scope):
    """What the table says, without the vectors."""
    return sorted((row["key_id"], row["number"], row["revision"]) for row in await rows(admin, scope, TABLE))


@asynccontextmanager
async def edited(admin, scope):
    """What is done to the table in here is undone afterwards."""
    await admin.execute(f"CREATE TEMPORARY TABLE kept AS SELECT * FROM stateroom.{TABLE} WHERE false")
    columns = "tenant_id, subject_id, path_id, key_id, model_id, number, revision, sequence, length, embedding"
    await admin.execute(f"INSERT INTO kept SELECT * FROM stateroom.{TABLE} WHERE tenant_id = $1", scope.tenant_id)
    yield
    await admin.execute(f"DELETE FROM stateroom.{TABLE} WHERE tenant_id = $1", scope.tenant_id)
    await admin.execute(f"INSERT INTO stateroom.{TABLE} ({columns}) SELECT {columns} FROM kept; DROP TABLE kept")


async def codes(store, scope):
    return [each.code for each in (await store.verification.subject(scope)).findings]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
async def test_the_answer_is_that_of_the_sealed_way_before_and_after_whatever_is_written(store, scope, admin, metric):
    await write(store, scope, *(put(f"a{n}", n, value={"odd": n % 2}) for n in range(60)))
    await write(store, scope, *(put(f"b{n}", n, n + 100, path=("m", "deep")) for n in range(200, 220)))
    await write(store, scope, *(delete(f"a{n}") for n in range(0, 60, 7)), *(put(f"a{n}", n + 500) for n in (3, 4)))
    questions = [
        {"limit": 1000},
        {"limit": 30, "prefix": ("m", "deep")},
        {"limit": 100, "filter": filters.parse({"odd": 1}, "")},
    ]
    before = [await shown(store, scope, seed, metric=metric, **each) for seed in (1, 2) for each in questions]
    await clear(store, scope)
    assert await rows(admin, scope, TABLE)
    store.items.indexes.forget(scope)
    assert [await shown(store, scope, seed, metric=metric, **each) for seed in (1, 2) for each in questions] == before
    assert all(key[0] != scope for key in store.items.indexes._indexes)  # nothing was opened to be searched
    whole = before[0]
    assert await shown(store, scope, metric=metric, limit=7) == whole[:7]
    assert await shown(store, scope, metric=metric, limit=5, offset=11) == whole[11:16]
    await write(store, scope, put("a1", 900), give("a2", 901), delete("a3"), put("a5"), put("new", 902))
    after = [await shown(store, scope, 2, metric=metric, **each) for each in questions]
    assert await codes(store, scope) == []
    await sealed(store, scope)
    assert await rows(admin, scope, TABLE) == []
    assert [await shown(store, scope, 2, metric=metric, **each) for each in questions] == after


async def test_pages_are_full_whatever_is_filtered_and_gone(store, scope):
    await clear(store, scope)
    await write(store, scope, *(put(f"k{n}", n, value={"even": n % 2 == 0}) for n in range(90)))
    await write(store, scope, *(delete(f"k{n}") for n in range(0, 90, 4)))
    wanted, after = filters.parse({"even": True}, ""), None
    whole, pages = await shown(store, scope, filter=wanted, limit=100), []
    while True:
        page = await find(store, scope, filter=wanted, limit=5, after=after)
        pages += [(each.name.path, each.name.key, round(each.score, 2)) for each in page.items]
        after = page.after
        if after is None:
            break
        assert len(page.items) == 5
    assert (pages, len(pages)) == (whole, 22)


async def test_large_subjects_are_searched_along_the_index_and_get_as_many(store, scope, enabled):
    await clear(store, scope)
    other = Scope(scope.tenant_id, "other")
    for each in (scope, other):
        await write(store, each, *(put(f"k{n}", n) for n in range(100)))
        await write(store, each, *(put(f"l{n}", n + 100) for n in range(100)))
    sealer = await store.keys.existing_sealer(scope)
    named = model_id(sealer, MODEL, DIMENSIONS)
    async with store.unit_of_work.snapshot(scope) as transaction:
        paths = await transaction.fetch_all(_PATHS)
        place = (transaction, "stateroom_pgvector", named, paths, vector(7), "cosine")
        exact, indexed = Nearest(*place), Nearest(*place, exact_max=0)
        for count in (10, 64, 1000):
            assert await indexed.best(count) == await exact.best(count)
        assert len(await indexed.best(1000)) == 200
        statement = indexed._statements.by_index(DIMENSIONS)
        values = [scope.tenant_id, scope.subject_id, named, paths, str([*vector(7)]), 10]
        plan = await transaction._connection.fetch(f"EXPLAIN {statement.text}", *values)
    assert f"item_clear_vectors_{DIMENSIONS}" in "\n".join(row[0] for row in plan)


async def test_what_leaks_must_be_accepted_by_name_and_is_on_record(store, scope):
    tenant = TenantScope(scope.tenant_id)
    for accepted in ("", "everything"):
        with pytest.raises(LeakageNotAccepted):
            await store.vector_policies.put(tenant, "clear", accepted)
    assert (await store.vector_policies.get(tenant)).vectors == "sealed"
    said = await clear(store, scope)
    assert await store.vector_policies.get(tenant) == replace(said, complete=True)
    assert await store.vector_policies.put(tenant, "clear", "content", ACTOR) == replace(said, complete=True)
    await sealed(store, scope)
    assert (await store.vector_policies.get(tenant)).updated_at is None
    page = await store.audit.page(tenant, "tester", limit=1000)
    told = [(e.event.actor, e.event.detail) for e in page.items if e.event.action == "vector-policy.set"]
    assert sorted(told, key=lambda each: each[1]["after"]) == [
        (ACTOR, {"before": "sealed", "after": "clear", "accepted": "content"}),
        (ACTOR, {"before": "clear", "after": "sealed", "accepted": None}),
    ]


async def test_a_damaged_policy_puts_nothing_in_clear_and_is_superseded(store, scope, admin):
    tenant = TenantScope(scope.tenant_id)
    await write(store, scope, put("a", 1))
    await admin.execute(
        "INSERT INTO stateroom.vector_policies VALUES ($1, 'clear', 'content', true, now(), $2, NULL)",
        scope.tenant_id, bytes(32),
    )  # fmt: skip
    assert (await store.vector_policies.get(tenant)).damaged
    await write(store, scope, put("b", 2))
    assert await rows(admin, scope, TABLE) == []
    assert {key for _, key, _ in await shown(store, scope)} == {"a", "b"}
    await clear(store, scope)
    assert len(await rows(admin, scope, TABLE)) == 2
    await admin.execute("UPDATE stateroom.vector_policies SET accepted = '' WHERE tenant_id = $1", scope.tenant_id)
    assert (await store.vector_policies.get(tenant)).damaged
    await write(store, scope, give("a", 3), put("c", 4), delete("b"))
    await sealed(store, scope)
    assert await rows(admin, scope, TABLE) == []


async def test_what_was_there_is_put_in_clear_in_slices_and_searched_when_it_is_done(store, scope, admin):
    subjects = [Scope(scope.tenant_id, f"s{n}") for n in range(3)]
    for each in subjects:
        await write(store, each, *(put(f"k{n}", n) for n in range(70)))
    await write(store, subjects[0], put("mine", 1), share=SHARE)
    said = await store.vector_policies.put(TenantScope(scope.tenant_id), "clear", "content", ACTOR)
    await write(store, subjects[1], put("meanwhile", 99), put("k1"), give("k2", 98))
    assert (await store.vector_policies.get(TenantScope(scope.tenant_id))).complete is False
    (job,) = await done(store, scope)
    assert (job.kind, job.state, job.done) == ("clear-vectors", "done", 210)
    assert [len(await rows(admin, each, TABLE)) for each in subjects] == [70, 70, 70]
    for each in subjects:
        assert await codes(store, each) == []
    assert said.complete is False
    assert await shown(store, subjects[0], share=SHARE) == [(("m",), "mine", 1.0)]  # sealed, as ever
    assert (await store.vector_policies.get(TenantScope(scope.tenant_id))).complete


async def test_a_job_ends_when_something_else_is_said(store, scope, admin):
    tenant = TenantScope(scope.tenant_id)
    await write(store, scope, put("a", 1))
    await store.vector_policies.put(tenant, "clear", "content", ACTOR)
    await store.vector_policies.put(tenant, "sealed", actor=ACTOR)
    jobs = await done(store, scope)
    assert {(each.kind, each.state, each.note is None) for each in jobs} == {
        ("clear-vectors", "done", False), ("seal-vectors", "done", True),
    }  # fmt: skip
    assert await rows(admin, scope, TABLE) == []


async def test_vectors_in_clear_go_with_what_is_over(store, scope, admin):
    await clear(store, scope)
    await write(store, scope, put("a", 1, 2, ttl_seconds=60), put("b", 3))
    assert len(await rows(admin, scope, TABLE)) == 3
    await admin.execute(
        "UPDATE stateroom.items SET expires_at = now() - interval '1 s' WHERE tenant_id = $1 AND ttl_seconds = 60",
        scope.tenant_id,
    )
    assert [key for _, key, _ in await shown(store, scope)] == ["b"]
    assert [each.items async for each in store.items.expiring.run(TenantScope(scope.tenant_id))] == [1]
    assert len(await rows(admin, scope, TABLE)) == 1


async def test_a_shred_leaves_no_vector_in_clear(store, scope, admin):
    await clear(store, scope)
    stays = Scope(scope.tenant_id, "stays")
    many = tuple(range(60))
    for each in (scope, stays):
        await write(store, each, *(put(f"k{n}", *many) for n in range(20)))
    await store.shred.subject(scope, scope.subject_id, ACTOR)
    await done(store, scope)
    assert await rows(admin, scope, TABLE) == []
    assert len(await rows(admin, stays, TABLE)) == 1200
    await sealed(store, stays)  # the job passes over who has no keys any more
    assert await rows(admin, stays, TABLE) == []


async def test_what_is_edited_in_clear_is_found_and_shows_nothing_that_is_not_sealed(store, scope, admin):
    await clear(store, scope)
    await write(store, scope, put("a", 1), put("b", 2), put("c"))
    before = await rows(admin, scope, TABLE)
    ours = "tenant_id = $1"
    edits = {
        f"UPDATE stateroom.{TABLE} SET revision = revision + 1 WHERE {ours}": ["item-clear-vectors"],
        f"UPDATE stateroom.{TABLE} SET number = 7 WHERE {ours}": ["item-clear-vectors"],
        f"UPDATE stateroom.{TABLE} SET path_id = '\\xabab' WHERE {ours}": ["item-clear-vectors"] * 2,
        f"DELETE FROM stateroom.{TABLE} WHERE {ours}": ["item-clear-vectors"],
        f"UPDATE stateroom.{TABLE} SET key_id = '\\xffff' WHERE {ours} AND revision = 1": ["item-clear-vectors"],
    }
    for edit, expected in edits.items():
        async with edited(admin, scope):
            await admin.execute(edit, scope.tenant_id)
            assert await codes(store, scope) == expected, edit
    bare = await admin.fetchrow("SELECT * FROM stateroom.items WHERE tenant_id = $1 AND NOT indexed", scope.tenant_id)
    forged = f"UPDATE stateroom.{TABLE} SET key_id = $2, revision = $3 WHERE {ours} AND key_id = $4"
    await admin.execute(forged, scope.tenant_id, bare["key_id"], bare["revision"], before[0]["key_id"])
    with pytest.raises(IntegrityFailure):
        await find(store, scope)


async def test_vectors_in_clear_of_nobody_who_said_so_are_found(store, scope, admin):
    await clear(store, scope)
    await write(store, scope, put("a", 1))
    await admin.execute("DELETE FROM stateroom.vector_policies WHERE tenant_id = $1", scope.tenant_id)
    assert await codes(store, scope) == ["item-clear-vectors"]


async def test_an_import_puts_in_clear_what_came_sealed(store, scope, admin, postgres, migrated_template):
    target = Scope(uuid4(), scope.subject_id)
    async with deployment(postgres, migrated_template) as source:
        await switch_on(source, ITEMS)
        await write(source, scope, *(put(f"k{n}", n, n + 100) for n in range(9)))
        file = await exported_tenant(source, store, scope.tenant_id, target.tenant_id)
    await clear(store, target)
    assert (await imported(store, target.tenant_id, file)).items == 9
    assert len(await rows(admin, target, TABLE)) == 18
    assert await codes(store, target) == []
    again = await exported_tenant(store, store, target.tenant_id, uuid4())
    assert abs(len(again) - len(file)) < 500  # the sealed vectors travel, and nothing beside


async def test_row_quotas_count_them(store, scope):
    await write(store, scope, *(put(f"k{n}", n) for n in range(20)))
    before = await store.row_counting.tenant(scope.tenant_id, now=True)
    await clear(store, scope)
    after = await store.row_counting.tenant(scope.tenant_id, now=True)
    assert after - before >= 20 * 2 * DIMENSIONS


async def test_only_the_subject_sees_its_vectors_and_the_database_is_served_from(store, scope, enabled):
    await clear(store, scope)
    await write(store, scope, put("a", 1))
    for each, expected in ((scope, 1), (Scope(scope.tenant_id, "b"), 0), (Scope(uuid4(), scope.subject_id), 0)):
        async with store.unit_of_work.snapshot(each) as transaction:
            assert await transaction._connection.fetchval(f"SELECT count(*) FROM stateroom.{TABLE}") == expected
    connection = await asyncpg.connect(enabled.dsn(enabled.app_url))
    try:
        assert await guard(connection, deployment_id=DEPLOYMENT_ID, durable=False) == []
    finally:
        await connection.close()


async def test_the_table_is_made_once_and_removed_when_nobody_uses_it(migrated_database, root_key, scope):
    owner = migrated_database.owner_url
    with pytest.raises(SetupError, match=r"superuser run.*CREATE EXTENSION vector SCHEMA stateroom_pgvector"):
        await enable(owner)
    async with opened(migrated_database, root_key) as store:
        await switch_on(store, ITEMS)
        with pytest.raises(FeatureOff):
            await clear(store, scope)
        await switch_on(store, CLEAR_VECTORS)
        with pytest.raises(ClearVectorsUnavailable):
            await clear(store, scope)
        assert await remove(owner) is False
        assert (await enable(migrated_database.superuser_url)).done
        assert (await enable(owner)).done == ()
        assert (await enable(owner, (3,))).done == ("made an index for vectors of 3 dimensions",)
        await clear(store, scope)
        with pytest.raises(SetupError, match="vector policies to sealed"):
            await remove(owner)
        await write(store, scope, put("a", 1))
        admin = await asyncpg.connect(migrated_database.dsn(migrated_database.superuser_url))
        try:
            await admin.execute(f"ALTER TABLE stateroom.{TABLE} RENAME TO away")
            for refused in (write(store, scope, put("b", 1)), find(store, scope)):
                with pytest.raises(ClearVectorsUnavailable):
                    await refused
            await write(store, scope, put("c"), delete("a"))
            await admin.execute(f"ALTER TABLE stateroom.away RENAME TO {TABLE}")
            await admin.execute(f"CREATE POLICY more ON stateroom.{TABLE} TO gw_app USING (true)")
            app = await asyncpg.connect(migrated_database.dsn(migrated_database.app_url))
            (fault,) = await policy_faults(app)
            assert "policy more" in fault
            await app.close()
        finally:
            await admin.close()
        await sealed(store, scope)
        assert await remove(owner) is True
        assert await shown(store, scope) == []
