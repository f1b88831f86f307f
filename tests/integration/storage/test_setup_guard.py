from uuid import UUID, uuid4

import asyncpg
import pytest

from crypto import KeyUnavailable, MemoryRootKey, RootKeys, SecretKey
from storage.errors import SetupError, Unavailable
from storage.postgres import server
from storage.postgres.setup import db_revision_required, guard, known_revisions
from storage.service import Store
from storage.statements.keys import wrappings
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID, OWNER_PASSWORD

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
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


async def faults(url, root_key=None):
    """What the serving role is told; with a root key, what of that."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        if root_key is None:
            return await guard(connection, deployment_id=DEPLOYMENT_ID, durable=False)
        await wrappings.guard(connection, root_key, DEPLOYMENT_ID)
    except SetupError as fault:
        return [str(fault)]
    finally:
        await connection.close()
    return []


@pytest.mark.parametrize(
    ("damage", "repair", "says"),
    [
        (
            "CREATE POLICY oops ON stateroom.chunks USING (true)",
            "DROP POLICY oops ON stateroom.chunks",
            "policy oops on table chunks",
        ),
        (
            "CREATE POLICY subject_rows ON stateroom.tenants TO gw_app USING (true)",
            "DROP POLICY subject_rows ON stateroom.tenants",
            "policy subject_rows on table tenants",
        ),
        (
            "ALTER POLICY tenant_rows ON stateroom.tenant_keys TO public USING (true)",
            f"ALTER POLICY tenant_rows ON stateroom.tenant_keys TO gw_app USING ({TENANT})",
            "policy tenant_rows on table tenant_keys",
        ),
        (
            "ALTER POLICY subject_rows ON stateroom.heads WITH CHECK (true)",
            f"ALTER POLICY subject_rows ON stateroom.heads WITH CHECK ({SUBJECT})",
            "policy subject_rows on table heads",
        ),
        ("GRANT gw_ops TO gw_app", "REVOKE gw_ops FROM gw_app", "policy clear_columns on table checkpoints"),
        (
            "DROP POLICY own_row ON stateroom.tenants",
            f"CREATE POLICY own_row ON stateroom.tenants FOR SELECT TO gw_app USING ({TENANT})",
            "table tenants has lost its policy own_row",
        ),
    ],
    ids=lambda value: value[:60],
)
async def test_a_policy_that_is_not_the_schemas_own_is_refused_by_name(database, admin, damage, repair, says):
    assert await faults(database.app_url) == []
    await admin.execute(damage)
    try:
        assert says in await refusal(database.app_url)
    finally:
        await admin.execute(repair)
    assert await faults(database.app_url) == []


async def test_a_policy_that_only_takes_away_is_nobodys_business(database, admin):
    await admin.execute("CREATE POLICY less ON stateroom.chunks AS RESTRICTIVE USING (true)")
    try:
        assert await faults(database.app_url) == []
    finally:
        await admin.execute("DROP POLICY less ON stateroom.chunks")


async def test_a_newer_schema_may_have_policies_of_its_own_but_none_for_everybody(database, admin, revision):
    await revision("zz99")
    await admin.execute(f"CREATE POLICY later ON stateroom.chunks TO gw_app USING ({SUBJECT} AND key_version > 0)")
    try:
        assert await faults(database.app_url) == []
        await admin.execute("CREATE POLICY oops ON stateroom.chunks TO gw_app USING (true)")
        assert ["policy oops on table chunks" in fault for fault in await faults(database.app_url)] == [True]
    finally:
        await admin.execute("DROP POLICY later ON stateroom.chunks")
        await admin.execute("DROP POLICY IF EXISTS oops ON stateroom.chunks")


class Away(MemoryRootKey):
    """A root key whose service does not answer, and which knows its wrappings under another name."""

    def recognises(self, wrapped):
        return False

    async def unwrap(self, wrapped, context):
        raise KeyUnavailable(1.0)


@pytest.fixture
async def wrapped_key(admin):
    """Stores a key as a root key wraps it: a tenant's, or of the deployment; all are gone afterwards."""
    made = [DEPLOYMENT_ID]

    async def store(root_key, tenant_id=None):
        secret = SecretKey.generate()
        purpose = "audit" if tenant_id is None else "tenant"
        named = {"deployment": str(DEPLOYMENT_ID), "purpose": purpose, "version": "1"}
        by = await root_key.wrap(secret, named | {"tenant": str(tenant_id or UUID(int=0))})
        columns = (by.provider, by.root_key_id, by.root_key_version, by.ciphertext)
        if tenant_id is None:
            await admin.execute(
                "INSERT INTO stateroom.deployment_keys (purpose, key_version, provider, root_key_id, root_key_version,"
                " wrapped, public, created_at) VALUES ('audit', 1, $1, $2, $3, $4, '', now())",
                *columns,
            )
        else:
            made.append(tenant_id)
            await admin.execute(
                "INSERT INTO stateroom.tenant_keys (tenant_id, key_version, state, provider, root_key_id,"
                " root_key_version, wrapped, kcv, created_at) VALUES ($1, 1, 'active', $2, $3, $4, $5, $6, now())",
                tenant_id,
                *columns,
                secret.kcv(),
            )

    assert await admin.fetchval("SELECT count(*) FROM stateroom.tenant_keys") == 0
    yield store
    await admin.execute("DELETE FROM stateroom.tenant_keys WHERE tenant_id = ANY($1)", made)
    await admin.execute("DELETE FROM stateroom.deployment_keys")


async def test_a_root_key_that_wrapped_nothing_of_what_is_stored_is_refused(database, wrapped_key):
    right, wrong = MemoryRootKey(), MemoryRootKey()
    assert await faults(database.app_url, wrong) == []
    await wrapped_key(right, uuid4())
    assert await faults(database.app_url, right) == []
    (fault,) = await faults(database.app_url, wrong)
    assert fault.startswith("the root key does not open 1 tenant keys under memory ")
    assert "ROOT_KEY" in fault


async def test_a_rotation_of_the_root_key_is_not_taken_for_a_wrong_one(database, wrapped_key):
    old, new = MemoryRootKey(), MemoryRootKey()
    await wrapped_key(old, uuid4())
    await wrapped_key(old)
    assert await faults(database.app_url, RootKeys([new, old], {})) == []
    assert len(await faults(database.app_url, RootKeys([new], {}))) == 1


async def test_a_tenant_that_took_its_own_root_key_away_does_not_keep_the_others_from_being_served(
    database, wrapped_key
):
    deployments, tenants = MemoryRootKey(), MemoryRootKey()
    tenant_id = uuid4()
    await wrapped_key(deployments)
    await wrapped_key(tenants, tenant_id)
    assert await faults(database.app_url, RootKeys([deployments], {tenant_id: [tenants]})) == []
    assert await faults(database.app_url, deployments) == []
    (fault,) = await faults(database.app_url, RootKeys([MemoryRootKey()], {tenant_id: [tenants]}))
    assert "1 keys of the deployment" in fault


async def test_a_root_key_whose_service_is_away_is_not_taken_for_a_wrong_one(database, wrapped_key):
    await wrapped_key(MemoryRootKey(), uuid4())
    assert await faults(database.app_url, Away()) == []


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


# Replaces some text in the body of the function that says when a thread was written to.
EDIT = """DO $$ BEGIN EXECUTE
    replace(pg_get_functiondef('stateroom.touch_thread_2()'::regprocedure), '{}', '{}'); END $$"""


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        (
            "ALTER FUNCTION stateroom.look_up_api_key(text) OWNER TO gw_migrate",
            "ALTER FUNCTION stateroom.look_up_api_key(text) OWNER TO gw_auth",
            "function look_up_api_key belongs to gw_migrate instead of gw_auth",
        ),
        (
            "ALTER FUNCTION stateroom.look_up_api_key(text) RESET search_path",
            "ALTER FUNCTION stateroom.look_up_api_key(text) SET search_path = pg_catalog",
            "function look_up_api_key runs as gw_auth without search_path",
        ),
        (
            "CREATE FUNCTION stateroom.everything() RETURNS int SECURITY DEFINER LANGUAGE sql RETURN 1",
            "DROP FUNCTION stateroom.everything()",
            "function everything belongs to postgres instead of gw_auth",
        ),
        (
            "ALTER FUNCTION stateroom.save_on_6 RENAME TO save_on_0",
            "ALTER FUNCTION stateroom.save_on_0 RENAME TO save_on_6",
            "function save_on_6 is missing",
        ),
        (
            EDIT.format("RETURN NEW;", "NEW.updated_at = -infinity; RETURN NEW;"),
            EDIT.format("NEW.updated_at = -infinity; RETURN NEW;", "RETURN NEW;"),
            "function touch_thread_2 does something else",
        ),
    ],
)
async def test_a_function_that_is_not_as_it_was_made_is_refused(database, admin, change, back, said):
    await admin.execute(change)
    try:
        assert said in await refusal(database.app_url)
    finally:
        await admin.execute(back)
    await accepted(database.app_url)


class OldServer:
    """A connection to a server that knows neither what newer ones know, nor this gateway."""

    async def fetchrow(self, query, *_arguments, **_options):
        if query != server.VERSION.text:
            raise asyncpg.UndefinedObjectError("unrecognized configuration parameter")
        return (150018,)


async def test_a_server_that_is_too_old_is_named_and_asked_nothing_more():
    faults = await guard(OldServer(), deployment_id=DEPLOYMENT_ID, durable=True, connections_max=1)
    assert faults == ["PostgreSQL 15.18 is older than 16; upgrade the server"]
