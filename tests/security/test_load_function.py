"""The function that is a whole load shows its caller's scope only, also without any predicate of its own (threat 1)."""

import re
from uuid import uuid4

import asyncpg
import pytest

from storage.scope import Scope
from storage.statements.threads.checkpoints import LOAD
from tests.support.states import document, put, save, state, write

FUNCTION = "stateroom.load_checkpoint_5("
# More than one row where the function knows of one, in whatever form.
MANY = (
    ("\n            LIMIT 1)", ")"),
    ("= (SELECT checkpoint_id FROM target)", "= ANY(SELECT checkpoint_id FROM target)"),
)
# The last table, of the tenant's keys, has no subject.
PREDICATES = (
    (r"(\w+\.)?tenant_id = \$1", "$1 IS NOT NULL", 10), (r"(\w+\.)?subject_id = \$2", "$2 IS NOT NULL", 9),
)  # fmt: skip
COUNTED = """count(*) AS checkpoints, sum(cardinality(p_piece_id)) AS pieces, sum(cardinality(w_member)) AS writes,
    sum(cardinality(m_member)) AS members"""


@pytest.fixture(scope="module")
async def scopes(store):
    """Three scopes with the same names and other content: two subjects of a tenant, and another tenant."""
    tenant_id = uuid4()
    made = [Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2"), Scope(uuid4(), "user-1")]
    for number, scope in enumerate(made):
        for checkpoint_id in ("c1", "c2"):
            await save(store, scope, checkpoint_id=checkpoint_id, content=state(a=document(f"{number}{checkpoint_id}")))
            await put(store, scope, checkpoint_id, write(0, "a", number))
    return made


@pytest.fixture
async def app(database):
    """As gw_app; whatever it does is rolled back."""
    connection = await asyncpg.connect(database.dsn(database.app_url))
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


@pytest.fixture
async def stripped(admin, app):
    """The function without its predicates, under another name."""
    text = await admin.fetchval("SELECT pg_get_functiondef('stateroom.load_checkpoint_5'::regproc)")
    for predicate, instead, number in PREDICATES:
        text, count = re.subn(predicate, instead, text)
        assert count == number, predicate  # each table, the pending writes twice and the checkpoints three times
    name = f"stateroom.load_{uuid4().hex}("
    for one, many in MANY:
        assert one in text
        text = text.replace(one, many)
    await admin.execute(text.replace(FUNCTION, name))
    await admin.execute(f"GRANT EXECUTE ON FUNCTION {name[:-1]} TO gw_app, gw_migrate")
    yield name
    await admin.execute(f"DROP FUNCTION {name[:-1]}")


async def counted(connection, function, scope, checkpoint_id):
    _, _, call = LOAD.text.partition("FROM ")
    text = f"SELECT {COUNTED} FROM {call}".replace(FUNCTION, function)  # noqa: S608  texts of ours
    arguments = (scope.tenant_id, scope.subject_id, "t1", "", checkpoint_id, True)
    return tuple(await connection.fetchrow(text, *arguments))


@pytest.mark.parametrize(("checkpoint_id", "members"), [(None, None), ("c1", 2)])
async def test_the_database_shows_a_load_its_own_scope_without_the_functions_predicates(
    app, stripped, scopes, checkpoint_id, members
):
    for scope in scopes:
        assert await counted(app, FUNCTION, scope, checkpoint_id) == (1, 1, 1, members)
        assert await counted(app, stripped, scope, checkpoint_id) == (1, 1, 1, members)


async def test_without_row_level_security_the_same_function_shows_everybodys(database, stripped, scopes):
    """Or the test above would look at nothing."""
    owner = await asyncpg.connect(database.dsn(database.owner_url))
    try:
        assert (await counted(owner, stripped, scopes[0], "c1"))[0] > 1
    finally:
        await owner.close()


async def test_ids_of_nobody_and_of_a_mixture_find_nothing(app, scopes):
    first, second, other = scopes
    for scope in (Scope(uuid4(), first.subject_id), Scope(other.tenant_id, second.subject_id)):
        assert await counted(app, FUNCTION, scope, None) == (0, None, None, None)


async def test_a_subject_that_would_end_the_binding_is_only_a_name(app, scopes):
    scope = Scope(scopes[0].tenant_id, f"x'; SET LOCAL app.subject_id = '{scopes[0].subject_id}")
    assert await counted(app, FUNCTION, scope, None) == (0, None, None, None)
    assert await app.fetchval("SELECT current_setting('app.subject_id')") == scope.subject_id


async def test_a_transaction_that_loaded_cannot_write(app, scopes):
    await counted(app, FUNCTION, scopes[0], None)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await app.execute("UPDATE stateroom.threads SET strict = true")


@pytest.mark.parametrize("role", ["gw_auth", "gw_ops", "gw_worker"])
async def test_other_roles_may_not_call_it(admin, role):
    signature = "stateroom.load_checkpoint_5(uuid, text, text, text, text, boolean)"
    assert not await admin.fetchval("SELECT has_function_privilege($1, $2, 'EXECUTE')", role, signature)
