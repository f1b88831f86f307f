"""What the planner does not know of a database decides neither how many items a request reads, nor how many vectors.

Counted are rows that statements looked at, in a subject of many, as in `tests.integration.storage.test_plans`.
"""

# ruff: noqa: S608  names of tables are constants of these tests

import pytest

from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.format.items.vectors import quantized
from storage.items.model import Batch, ItemGet, ItemName, ItemSearch, ItemWrite, ModelVectors, Near, PathSearch
from storage.model import Value
from storage.scope import Scope
from tests.support.features import switch_on
from tests.support.own_database import rows

MANY = 5_000
TABLES = ("items", "item_paths", "item_vectors")
NAMES = {
    "items": "path_id, key_id, revision, ttl_seconds, created_at, updated_at, expires_at, member, envelope, indexed",
    "item_vectors": "path_id, key_id, model_id, revision, sequence, member, envelope",
}
OTHERS = "('00000000-0000-4000-8000-' || lpad((n % 50)::text, 12, '0'))::uuid, 's' || n % 1000"
NEAR = Near("m", (1.0, 0.0), "cosine")


@pytest.fixture
def admin(own_database):
    return own_database.admin


def put(key, **more):
    vectors = (ModelVectors("m", (quantized((1.0, 0.0)),)),)
    return ItemWrite(ItemName(("p",), key), Value("msgpack", encode_msgpack({})), vectors=vectors, **more)


async def copied(admin, scope, owner, path):
    """Many rows of one path beside those of a subject: no key opens them, and nothing asks for them by name."""
    for table, names in NAMES.items():
        taken = names.replace("path_id", path).replace("key_id", "decode(md5(n::text), 'hex')")
        taken = taken.replace("updated_at", "updated_at - n * interval '1 second'")
        await admin.execute(
            f"INSERT INTO stateroom.{table} (tenant_id, subject_id, {names})"
            f" SELECT {owner}, {taken.replace('sequence', '1').replace('revision', '1')}"
            f" FROM (SELECT * FROM stateroom.{table} WHERE tenant_id = $1 LIMIT 1) i, generate_series(1, {MANY}) n",
            scope.tenant_id,
        )


@pytest.mark.parametrize("known", ["nothing", "many subjects of few items"])
async def test_what_one_request_looks_at_is_what_it_names_in_a_path_of_thousands(own_store, admin, scope, known):
    await switch_on(own_store, ITEMS)
    first = Scope(scope.tenant_id, "first")
    await own_store.items.run(first, Batch(writes=[put("a")]))
    if known != "nothing":
        await copied(admin, scope, OTHERS, "decode(md5((n % 1000)::text), 'hex')")
        await admin.execute("ANALYZE stateroom.items, stateroom.item_vectors")
    writes = [put(f"k{number}", ttl_seconds=60) for number in range(10)]
    await own_store.items.run(scope, Batch(writes=writes))
    await own_store.items.run(scope, Batch(searches=[ItemSearch(near=NEAR, refresh=False)]))  # opens the vectors
    await copied(admin, scope, f"'{scope.tenant_id}'::uuid, '{scope.subject_id}'", "path_id")
    batches = (
        Batch(writes=writes),
        Batch(gets=[ItemGet(each.name) for each in writes]),
        Batch(searches=[ItemSearch(near=NEAR, refresh=False)]),
        Batch(paths=[PathSearch()]),
        Batch(writes=[ItemWrite(each.name, None, vectors=each.vectors) for each in writes]),
        Batch(writes=[ItemWrite(each.name, None) for each in writes]),
    )
    for batch in batches:
        before = await rows(own_store, admin)
        await own_store.items.run(scope, batch)
        await own_store.items.keeping.flush()
        after = await rows(own_store, admin)
        looked = {table: sum(after[table][:2]) - sum(before[table][:2]) for table in TABLES}
        assert max(looked.values()) <= 10 * len(writes), (batch, looked)
