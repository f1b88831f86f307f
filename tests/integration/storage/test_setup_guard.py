from uuid import UUID

import pytest

from crypto import MemoryRootKey
from storage.errors import SetupError, Unavailable
from storage.postgres.setup import db_revision_required, known_revisions
from storage.service import Store
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID, OWNER_PASSWORD

OLDER = [None, *sorted(known_revisions() - {db_revision_required()})]


async def refusal(url, **parts):
    parts = {"root_key": MemoryRootKey(), "deployment_id": DEPLOYMENT_ID, "durable": False, **parts}
    with pytest.raises(SetupError) as caught:
        await Store.open(url, connections_max=1, **parts)
    message = str(caught.value)
    assert APP_PASSWORD not in message.split()
    assert OWNER_PASSWORD not in [word for word in message.split() if word.endswith("=")]
    return message


async def accepted(url, **parts):
    parts = {"root_key": MemoryRootKey(), "deployment_id": DEPLOYMENT_ID, "durable": False, **parts}
    store = await Store.open(url, connections_max=1, **parts)
    health = await store.health()
    await store.close()
    return health


@pytest.fixture
async def revision(admin):
    """Sets the database's revision; puts it back."""

    async def change(to):
        await admin.execute("DELETE FROM stateroom.db_revision")
        if to is not None:
            await admin.execute("INSERT INTO stateroom.db_revision VALUES ($1)", to)

    yield change
    await change(db_revision_required())


async def test_the_serving_role_is_accepted_and_healthy(database):
    health = await accepted(database.app_url)
    assert (health.writable, health.db_revision, health.revision_ok) == (True, db_revision_required(), True)


async def test_a_superuser_is_refused(database):
    assert "is a superuser" in await refusal(database.superuser_url)


async def test_the_owner_who_bypasses_row_security_is_refused(database):
    message = await refusal(database.owner_url)
    assert "can bypass row-level security" in message
    assert "owns tables" in message


async def test_a_member_of_a_role_that_owns_tables_or_bypasses_row_security_is_refused(database, admin):
    await admin.execute("GRANT gw_migrate TO gw_app")
    try:
        message = await refusal(database.app_url)
    finally:
        await admin.execute("REVOKE gw_migrate FROM gw_app")
    assert "can bypass row-level security" in message
    assert "owns tables" in message
    await accepted(database.app_url)


@pytest.mark.parametrize("fault", ["NO FORCE ROW LEVEL SECURITY", "DISABLE ROW LEVEL SECURITY"])
@pytest.mark.parametrize("table", ["checkpoints", "tenant_keys", "idempotency"])
async def test_a_table_without_forced_row_security_is_refused_by_name(database, admin, table, fault):
    await admin.execute(f"ALTER TABLE stateroom.{table} {fault}")
    try:
        assert f"table {table} is not protected" in await refusal(database.app_url)
    finally:
        await admin.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    await accepted(database.app_url)


async def test_a_new_table_with_a_tenant_column_must_be_protected_too(database, admin):
    await admin.execute("CREATE TABLE stateroom.extra (tenant_id uuid)")
    try:
        assert "table extra is not protected" in await refusal(database.app_url)
    finally:
        await admin.execute("DROP TABLE stateroom.extra")


async def test_the_database_belongs_to_the_deployment_that_first_served_from_it(database):
    await accepted(database.app_url)
    message = await refusal(database.app_url, deployment_id=UUID(int=9))
    assert str(DEPLOYMENT_ID) in message
    assert str(UUID(int=9)) in message
    await accepted(database.app_url)


async def test_fsync_off_is_refused_where_saves_must_be_durable(database):
    assert "fsync is off" in await refusal(database.app_url, durable=True)


@pytest.mark.parametrize("older", OLDER)
async def test_an_older_or_missing_revision_is_refused(database, revision, older):
    await revision(older)
    message = await refusal(database.app_url)
    assert "stateroom db upgrade" in message


async def test_a_newer_revision_is_accepted(database, revision):
    await revision("zz99")
    health = await accepted(database.app_url)
    assert (health.db_revision, health.revision_ok) == ("zz99", True)


async def test_a_database_without_the_schema_is_refused(postgres, empty_database):
    # Its owner is a superuser, so that the role is refused as well; every fault is named at once.
    message = await refusal(empty_database.superuser_url)
    assert "the schema is missing" in message
    assert "is a superuser" in message


async def test_an_unreachable_database_is_unavailable():
    with pytest.raises(Unavailable):
        await accepted("postgresql://nobody:nothing@127.0.0.1:1/none")


async def opened(url, connections_max):
    store = await Store.open(
        url,
        root_key=MemoryRootKey(),
        deployment_id=DEPLOYMENT_ID,
        durable=False,
        connections_max=connections_max,
    )
    await store.close()


async def test_a_pool_that_the_servers_limit_can_never_hold_is_refused_with_both_numbers(database, admin):
    names = ("max_connections", "superuser_reserved_connections", "reserved_connections")
    most, *reserved = [int(await admin.fetchval(f"SHOW {name}")) for name in names]
    allowed = most - sum(reserved)
    await opened(database.app_url, allowed)
    with pytest.raises(SetupError, match=rf"may hold {allowed + 1} connections.*lets its role have {allowed};"):
        await opened(database.app_url, allowed + 1)


@pytest.mark.parametrize("whose", ["ROLE gw_app", "DATABASE"])
async def test_so_is_one_that_the_role_or_the_database_may_not_have(database, admin, whose):
    target = whose if whose != "DATABASE" else f"DATABASE {await admin.fetchval('SELECT current_database()')}"
    await admin.execute(f"ALTER {target} CONNECTION LIMIT 30")
    try:
        await opened(database.app_url, 30)
        with pytest.raises(SetupError, match=r"may hold 31 connections.*have 30;"):
            await opened(database.app_url, 31)
        # Behind a pooler they are not PostgreSQL's, and it may well open more than the database would give.
        await opened(f"{database.app_url}?statement_cache_size=0", 31)
    finally:
        await admin.execute(f"ALTER {target} CONNECTION LIMIT -1")
