"""With every predicate of ours gone, each binding sees of events what it is for, and no other tenant's or subject's."""

# ruff: noqa: S608  table names are constants of these tests

from uuid import uuid4

import asyncpg
import pytest

from storage.postgres.unit_of_work import bindings
from storage.scope import OperatorScope, Scope, TenantListing, TenantRelay, TenantScope
from tests.support.events import all_events, events_on
from tests.support.states import save

TABLES = ("event_settings", "event_queue", "events", "event_counters", "event_relays", "tenant_streams")
OF_SUBJECTS = {"event_queue", "events"}
SETTINGS = ("app.tenant_id", "app.subject_id", "app.operator", "app.tenant_listing", "app.relay")


@pytest.fixture(scope="module")
async def scopes(store, database):
    """Two subjects of a tenant and one of another, each with events that are numbered and one that is not."""
    tenant_id = uuid4()
    made = [Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2"), Scope(uuid4(), "user-1")]
    for each in made:
        await events_on(store, each.tenant_id)
        await save(store, each)
        async with store.unit_of_work.begin(TenantScope(each.tenant_id)) as transaction:
            await store.emitting.of_key(transaction, each.tenant_id, "key.created", "k")
        assert await all_events(store, each)
    for each in made:
        await save(store, each)
    return made


@pytest.fixture
async def app(database):
    """A connection as gw_app; whatever it does is rolled back."""
    connection = await asyncpg.connect(database.dsn(database.app_url))
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


async def seen(app, table):
    subject = "subject_id" if table in OF_SUBJECTS else "''"
    rows = await app.fetch(f"SELECT DISTINCT tenant_id, {subject} AS subject_id FROM stateroom.{table}")
    return {tuple(each) for each in rows}


def expected(scope, table, scopes):
    """Whose rows a binding sees."""
    tenant = getattr(scope, "tenant_id", None)
    of_tenant = {(tenant, "")}
    subjects = {(each.tenant_id, each.subject_id) for each in scopes if each.tenant_id == tenant}
    match scope, table:
        case Scope(), "events":
            return {(tenant, scope.subject_id)}
        case TenantListing(), "events":
            return subjects | of_tenant
        case TenantRelay(), "events":
            return subjects | of_tenant
        case TenantRelay(), "event_queue":
            return subjects
        case TenantRelay(), "event_counters":
            return of_tenant
        case OperatorScope(), "event_relays":
            return {(each.tenant_id, "") for each in scopes}
        case (
            (Scope() | TenantScope() | TenantListing() | TenantRelay()),
            ("event_settings" | "event_relays" | "tenant_streams"),
        ):
            return of_tenant
        case _:
            return set()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("bound", ["subject", "tenant", "listing", "relay", "operator", "founding"])
async def test_each_binding_sees_what_it_is_for_and_nothing_else(app, scopes, table, bound):
    tenant = scopes[0].tenant_id
    scope = {
        "subject": scopes[0], "tenant": TenantScope(tenant), "listing": TenantListing(tenant),
        "relay": TenantRelay(tenant), "operator": OperatorScope(), "founding": OperatorScope(founding=tenant),
    }[bound]  # fmt: skip
    await app.execute(bindings(scope))
    found = await seen(app, table)
    if bound == "founding" and table in {"event_settings", "tenant_streams"}:
        assert found == {(tenant, "")}
    elif isinstance(scope, OperatorScope):
        assert found >= expected(scope, table, scopes)
        assert bool(found) == (table == "event_relays")
    else:
        assert found == expected(scope, table, scopes)


@pytest.mark.parametrize("table", TABLES)
async def test_who_is_not_bound_sees_nothing_whatever_else_is_set(app, scopes, table):
    assert await seen(app, table) == set()
    for name in SETTINGS[1:]:
        await app.execute("SAVEPOINT before")
        await app.execute(f"SET LOCAL {name} = 'on'")
        if (name, table) != ("app.operator", "event_relays"):
            assert await seen(app, table) == set()
        await app.execute("ROLLBACK TO before")


async def add(app, tenant_id, subject_id):
    await app.execute(
        "INSERT INTO stateroom.event_queue (tenant_id, subject_id, event_id, type, stream_kind, stream_id, incarnation,"
        " stream_sequence) VALUES ($1, $2, gen_random_uuid(), 'thread.created', 'thread', 't', '1', 1)",
        tenant_id, subject_id,
    )  # fmt: skip


async def test_a_subject_adds_events_of_its_own_and_of_its_tenant_and_nobody_elses(app, scopes):
    me, other, elsewhere = scopes
    await app.execute(bindings(me))
    await add(app, me.tenant_id, me.subject_id)
    await add(app, me.tenant_id, "")
    for tenant_id, subject_id in ((me.tenant_id, other.subject_id), (elsewhere.tenant_id, me.subject_id)):
        await app.execute("SAVEPOINT before")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await add(app, tenant_id, subject_id)
        await app.execute("ROLLBACK TO before")
    assert await app.execute("DELETE FROM stateroom.event_queue") == "DELETE 0"


@pytest.mark.parametrize("bound", ["subject", "tenant", "listing"])
async def test_who_is_no_relay_neither_numbers_nor_changes_nor_removes_events(app, scopes, bound):
    tenant = scopes[0].tenant_id
    scope = {"subject": scopes[0], "tenant": TenantScope(tenant), "listing": TenantListing(tenant)}[bound]
    await app.execute(bindings(scope))
    assert await app.execute("DELETE FROM stateroom.event_queue") == "DELETE 0"
    assert await app.execute("DELETE FROM stateroom.events") == "DELETE 0"
    assert await app.execute("UPDATE stateroom.events SET type = 'removed'") == "UPDATE 0"
    assert await app.execute("UPDATE stateroom.event_counters SET next_sequence = 1") == "UPDATE 0"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await app.execute(
            "INSERT INTO stateroom.events (tenant_id, sequence, subject_id, event_id, type, stream_kind, stream_id,"
            " incarnation, stream_sequence) VALUES ($1, 99, $2, gen_random_uuid(), 'x', 'thread', 't', '1', 1)",
            tenant, scopes[0].subject_id,
        )  # fmt: skip


async def test_nobody_changes_what_waits_in_a_queue(app, scopes):
    await app.execute(bindings(TenantRelay(scopes[0].tenant_id)))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
        await app.execute("UPDATE stateroom.event_queue SET subject_id = ''")


@pytest.mark.parametrize("table", TABLES)
async def test_a_relay_touches_its_own_tenants_rows_only(app, admin, scopes, table):
    await app.execute(bindings(TenantRelay(scopes[0].tenant_id)))
    mine = await app.fetchval(f"SELECT count(*) FROM stateroom.{table}")
    assert await app.execute(f"DELETE FROM stateroom.{table}") == f"DELETE {mine}"
    assert mine < await admin.fetchval(f"SELECT count(*) FROM stateroom.{table}")


@pytest.mark.parametrize("function", ["read_events", "relay_events", "newest_event"])
async def test_what_a_function_bound_for_itself_is_no_right_of_the_next_transaction(database, scopes, function):
    tenant = scopes[0].tenant_id
    calls = {
        "read_events": "SELECT FROM stateroom.read_events($1, '', 0, '{}', NULL, 10, 100)",
        "relay_events": "SELECT FROM stateroom.relay_events($1, '', '', '', 10, 1, NULL, false)",
        "newest_event": "SELECT FROM stateroom.newest_event($1)",
    }
    connection = await asyncpg.connect(database.dsn(database.app_url))
    await connection.execute(calls[function], tenant)
    for table in TABLES:
        assert await seen(connection, table) == set()
    await connection.close()


async def test_a_subject_that_reads_learns_no_number_of_others_events(store, scopes):
    await store.event_relay.drain(scopes[0].tenant_id)
    mine = await all_events(store, scopes[0])
    assert {each.subject_id for each in mine} == {"user-1"}
    assert all(each.type != "key.created" for each in mine)
