import asyncio
import gzip
import os
import subprocess
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from gateway.embedded.postgres import postgres_programs
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COLD_NAMESPACES, DECISIONS, ITEMS, LINKS, SEGMENTS
from storage.encoding import encode_msgpack
from storage.errors import SetupError
from storage.items.model import Batch, ItemName, ItemWrite
from storage.model import ThreadLink, Value
from storage.postgres.setup import _config, current, db_revision_required, script, upgrade
from storage.postgres.tables import SCHEMA, metadata
from storage.scope import Scope
from storage.service import Store, StoreOptions
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fill, seen
from tests.support.engines import create_database, drop_database
from tests.support.features import switch_on
from tests.support.interleaving import blocked
from tests.support.ledgers import claim, start
from tests.support.states import save, state
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID, OWNER_PASSWORD

ADVISORY_LOCK = 5_370_001
# What `pg_dump --schema-only` said of the schema that the 34 revisions made which the baseline a34 is the sum of.
RETIRED_WAY = Path(__file__).parents[2] / "golden" / "schema-a34.sql.gz"


@pytest.fixture
async def own_database(postgres, migrated_template):
    """URLs of gw_migrate and gw_app on a database that gw_migrate owns, as the migrations made it."""
    made = await create_database(postgres, migrated_template, owner="gw_migrate")
    roles = {"gw_migrate": OWNER_PASSWORD, "gw_app": APP_PASSWORD}
    yield tuple(
        make_url(made.superuser_url).set(username=role, password=password).render_as_string(False)
        for role, password in roles.items()
    )
    await drop_database(postgres, made.name)


def psql(postgres, owner_url, text):
    """Run a script as a superuser."""
    url = postgres.superuser_url(make_url(owner_url).database).replace("+asyncpg", "", 1)
    subprocess.run(
        [postgres_programs() / "psql", "-qX", "-v", "ON_ERROR_STOP=1", url], input=text, text=True, check=True
    )


async def on(url, work):
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


async def migrate(url, step, revision):
    def run(connection):
        config = _config()
        config.attributes["connection"] = connection
        step(config, revision)

    # Alembic runs the environment synchronously, as `upgrade` does: in a thread with a loop of its own.
    await asyncio.to_thread(asyncio.run, on(url, run))


def shape(connection):
    """Everything the catalog says of the schema: columns, constraints, indexes, policies, grants, functions."""
    queries = (
        (
            "SELECT table_name, column_name, data_type, is_nullable, collation_name, column_default,"
            " generation_expression FROM information_schema.columns WHERE table_schema = 'stateroom'"
        ),
        (
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'stateroom'::regnamespace"
        ),
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'stateroom'",
        (
            "SELECT tablename, policyname, roles::text, cmd, qual, with_check FROM pg_policies"
            " WHERE schemaname = 'stateroom'"
        ),
        (
            "SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity, reloptions::text FROM pg_class"
            " WHERE relnamespace = 'stateroom'::regnamespace"
        ),
        (
            "SELECT attrelid::regclass::text, attname, attstorage, attacl::text FROM pg_attribute a"
            " JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'stateroom'::regnamespace AND attnum > 0"
        ),
        (
            "SELECT pg_get_functiondef(oid), proacl::text, proowner::regrole::text FROM pg_proc"
            " WHERE pronamespace = 'stateroom'::regnamespace"
        ),
        (
            "SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN pg_class c ON c.oid = tgrelid"
            " WHERE relnamespace = 'stateroom'::regnamespace AND NOT tgisinternal"
        ),
    )
    return [sorted(map(repr, connection.exec_driver_sql(query).fetchall())) for query in queries]


async def test_the_metadata_is_what_the_migrations_make(own_database):
    def differences(connection):
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_schemas": True,
                "version_table": "db_revision",
                "version_table_schema": SCHEMA,
                "include_name": lambda name, kind, _parents: name == SCHEMA if kind == "schema" else True,
            },
        )
        return compare_metadata(context, metadata)

    owner_url, _ = own_database
    assert await on(owner_url, differences) == []


async def test_collations_in_the_metadata_are_those_of_the_database(own_database):
    def collations(connection):
        return {
            (row.table_name, row.column_name): row.collation_name
            for row in connection.exec_driver_sql(
                "SELECT table_name, column_name, collation_name FROM information_schema.columns"
                " WHERE table_schema = 'stateroom' AND table_name <> 'db_revision'"
            )
        }

    found = await on(own_database[0], collations)
    wanted = {
        (table.name, column.name): getattr(getattr(column.type, "item_type", column.type), "collation", None)
        for table in metadata.tables.values()
        for column in table.columns
    }
    assert found == wanted


async def test_upgrading_again_changes_nothing(own_database):
    owner_url, _ = own_database
    before = await on(owner_url, shape)
    await upgrade(owner_url)
    assert await on(owner_url, shape) == before
    assert await current(owner_url) == db_revision_required()


async def test_the_script_of_an_upgrade_makes_what_the_upgrade_makes(own_database):
    owner_url, _ = own_database
    assert await script(owner_url) == ""
    before = await on(owner_url, shape)
    await migrate(owner_url, command.downgrade, "a34")
    rest = await script(owner_url)
    connection = await asyncpg.connect(owner_url.replace("+asyncpg", "", 1))
    try:
        await connection.execute("DROP SCHEMA stateroom CASCADE")
        await connection.execute(await script(owner_url))
        assert await on(owner_url, shape) == before
        await migrate(owner_url, command.downgrade, "a34")
        await connection.execute(rest)
    finally:
        await connection.close()
    assert await current(owner_url) == db_revision_required()


async def test_down_and_up_again_makes_the_same_schema(own_database):
    owner_url, _ = own_database
    before = await on(owner_url, shape)
    await migrate(owner_url, command.downgrade, "base")
    assert await current(owner_url) is None
    await upgrade(owner_url)
    assert await on(owner_url, shape) == before


@pytest.fixture
async def archiving(own_database, root_key):
    """How to open a store with a bucket of archives on the database, as often as it is migrated."""
    bucket = MemoryBlobStore()

    def opened():
        options = StoreOptions(archive=bucket)
        return Store.open(
            own_database[1], root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False,
            options=options,
        )  # fmt: skip

    return opened


async def test_a_thread_that_was_archived_before_there_were_segments_is_read_and_comes_back(own_database, archiving):
    owner_url, _ = own_database
    scope = Scope(uuid4(), "user-1")
    store = await archiving()
    await fill(store, scope)
    before = await seen(store, scope)
    assert (await store.archives.archive(scope, "t1")).created
    await store.close()
    await migrate(owner_url, command.downgrade, "a37")
    await upgrade(owner_url)
    store = await archiving()
    try:
        assert await seen(store, scope) == before
        assert (await store.verification.thread(scope, "t1")).findings == []
        assert await store.archives.restore(scope, "t1")
        assert await seen(store, scope) == before
    finally:
        await store.close()


async def test_segments_are_not_migrated_away(own_database, archiving):
    owner_url, _ = own_database
    scope = Scope(uuid4(), "user-1")
    store = await archiving()
    await switch_on(store, SEGMENTS)
    for number in range(3):
        await save(store, scope, content=state(n=number))
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
    await store.close()
    with pytest.raises(DBAPIError, match="restore them before"):
        await migrate(owner_url, command.downgrade, "a37")
    assert await current(owner_url) == db_revision_required()


async def test_heads_in_segments_are_not_migrated_away(own_database, archiving):
    owner_url, _ = own_database
    scope = Scope(uuid4(), "user-1")
    store = await archiving()
    for each in (SEGMENTS, COLD_NAMESPACES):
        await switch_on(store, each)
    await save(store, scope, namespace="work:1", content=state(n=1), metadata={"parents": {"": "gone"}})
    await save(store, scope, content=state(n=2))
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")
    with pytest.raises(DBAPIError, match="restore them before"):
        await migrate(owner_url, command.downgrade, "a40")
    assert await current(owner_url) == db_revision_required()
    assert await store.archives.restore(scope, "t1")
    await store.close()
    await migrate(owner_url, command.downgrade, "a40")


async def test_links_are_not_migrated_away(own_database, archiving):
    owner_url, _ = own_database
    scope = Scope(uuid4(), "user-1")
    store = await archiving()
    await switch_on(store, LINKS)
    await store.links.link(scope, "child", ThreadLink("parent"))
    with pytest.raises(DBAPIError, match="unlink them before"):
        await migrate(owner_url, command.downgrade, "a39")
    assert await current(owner_url) == db_revision_required()
    await store.links.unlink(scope, "child")
    await store.close()
    await migrate(owner_url, command.downgrade, "a39")


async def test_items_are_not_migrated_away(own_database, archiving):
    owner_url, _ = own_database
    scope, name = Scope(uuid4(), "user-1"), ItemName(("memories", "ada"), "seat")
    store = await archiving()
    await switch_on(store, ITEMS)
    await store.items.run(scope, Batch(writes=[ItemWrite(name, Value("msgpack", encode_msgpack({"n": 1})))]))
    with pytest.raises(DBAPIError, match="items are stored: delete them before"):
        await migrate(owner_url, command.downgrade, "a42")
    assert await current(owner_url) == db_revision_required()
    await store.items.run(scope, Batch(writes=[ItemWrite(name, None)]))
    await store.close()
    await migrate(owner_url, command.downgrade, "a42")
    assert await current(owner_url) == "a42"


@pytest.mark.parametrize("what", ["claim", "effect"])
async def test_claims_and_effects_are_not_migrated_away(own_database, archiving, what):
    owner_url, _ = own_database
    scope = Scope(uuid4(), "user-1")
    store = await archiving()
    await switch_on(store, DECISIONS)
    await save(store, scope, content=state(n=1))
    await (claim if what == "claim" else start)(store, scope)
    with pytest.raises(DBAPIError, match="threads have claims or effects: delete these threads before"):
        await migrate(owner_url, command.downgrade, "a47")
    assert await current(owner_url) == db_revision_required()
    await store.threads.delete(scope, "t1")
    await store.close()
    if what == "effect":
        with pytest.raises(DBAPIError, match=r"remembered for 30 days.* empty stateroom\.effect_tombstones"):
            await migrate(owner_url, command.downgrade, "a47")
        assert await current(owner_url) == db_revision_required()
        owner = await asyncpg.connect(owner_url.replace("+asyncpg", "", 1))
        await owner.execute("UPDATE stateroom.effect_tombstones SET removed_at = removed_at - interval '30 days'")
        await owner.close()
    await migrate(owner_url, command.downgrade, "a46")
    assert await current(owner_url) == "a46"
    await upgrade(owner_url)
    store = await archiving()
    await save(store, scope, content=state(n=1))
    await (claim if what == "claim" else start)(store, scope)
    await store.close()


async def test_two_upgrades_at_the_same_moment_both_succeed(own_database, launcher, tmp_path):
    owner_url, _ = own_database
    dsn = owner_url.replace("+asyncpg", "", 1)
    connection = await asyncpg.connect(dsn)
    watcher = await asyncpg.connect(dsn)
    try:
        await connection.execute("DROP SCHEMA stateroom CASCADE")
        await connection.execute("BEGIN")
        await connection.execute(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        # Processes, as at a deployment: Alembic's environment is one for each process.
        environ = {"PATH": os.environ["PATH"], "STATEROOM_DATABASE_OWNER_URL": owner_url}
        log = str(tmp_path / "log")
        upgrades = [launcher.order(serve=environ, command=["db", "upgrade"], log=log) for _ in range(2)]
        await blocked(watcher, 2)
        await connection.execute("COMMIT")
        assert [await asyncio.to_thread(launcher.order, wait=each) for each in upgrades] == [0, 0]
        assert await current(owner_url) == db_revision_required()
    finally:
        await connection.close()
        await watcher.close()


async def test_an_upgrade_that_cannot_get_its_lock_gives_up_and_changes_nothing(own_database):
    owner_url, _ = own_database
    dsn = owner_url.replace("+asyncpg", "", 1)
    await migrate(owner_url, command.downgrade, "base")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
        with pytest.raises(SetupError, match="lock timeout"):
            await upgrade(owner_url)
        assert await current(owner_url) is None
    finally:
        await connection.close()
    await upgrade(owner_url)


async def test_an_unreachable_database_is_named_as_such():
    with pytest.raises(SetupError, match="cannot be reached"):
        await upgrade("postgresql://nobody:secret-word@127.0.0.1:1/none")
    with pytest.raises(SetupError, match="cannot be reached") as caught:
        await current("postgresql://nobody:secret-word@127.0.0.1:1/none")
    assert "secret-word" not in str(caught.value)


@pytest.fixture
async def retired_way(own_database, postgres):
    """The owner's URL of a database that the retired revisions made, at a34."""
    owner_url, _ = own_database
    await asyncio.to_thread(psql, postgres, owner_url, "DROP SCHEMA stateroom CASCADE")
    await asyncio.to_thread(psql, postgres, owner_url, gzip.decompress(RETIRED_WAY.read_bytes()).decode())
    await asyncio.to_thread(psql, postgres, owner_url, "INSERT INTO stateroom.db_revision VALUES ('a34')")
    return owner_url


async def test_a_database_that_the_retired_revisions_made_becomes_what_a_new_one_is(retired_way, own_database):
    assert await current(retired_way) == "a34"
    assert any("save_on_5" in each for each in (await on(retired_way, shape))[-2])
    await upgrade(retired_way)
    found = await on(retired_way, shape)
    await migrate(retired_way, command.downgrade, "base")
    await upgrade(retired_way)
    assert found == await on(retired_way, shape)


async def test_a_revision_that_is_retired_is_refused_by_name_and_changed_by_nobody(retired_way):
    connection = await asyncpg.connect(retired_way.replace("+asyncpg", "", 1))
    try:
        await connection.execute("UPDATE stateroom.db_revision SET version_num = 'a21'")
        for way in (upgrade, script):
            with pytest.raises(SetupError, match=r"a21, which is retired; first run .* of commit 871834a"):
                await way(retired_way)
        assert await current(retired_way) == "a21"
        await connection.execute("UPDATE stateroom.db_revision SET version_num = 'b1'")
        for way in (upgrade, script):
            with pytest.raises(SetupError, match="b1, which is newer than this build"):
                await way(retired_way)
    finally:
        await connection.close()
