"""Making a database ready: roles, schema revisions, and the guard that refuses to serve from an unsafe one.

Runs with the schema owner's credentials (`upgrade`) or a superuser's (`prepare`), never with gw_app's. The guard runs
with gw_app's and changes nothing.
"""

import asyncio
import functools
import io
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import migrations
from storage.errors import DatabaseAway, SetupError
from storage.postgres import functions, policies, server
from storage.postgres.engine import for_asyncpg
from storage.postgres.session import Session
from storage.postgres.tables import SCHEMA

POSTGRES_VERSION_MIN = 160000
_CONNECT_SECONDS = 5
# Revisions that no release had, of which the baseline a34 is the sum; and the last commit that upgrades from them.
RETIRED = frozenset(f"a{number}" for number in range(1, 34))
LAST_WITH_RETIRED = "871834a"

# Alembic keeps the running migration in module globals, so one process runs one at a time.
_ALEMBIC = threading.Lock()
_ROLES = Path(__file__).with_name("roles.sql")
_SCRIPTS = Path(migrations.__file__).parent / "database"


# A server that starts, stops or is full, and not one that refuses this role.
_AWAY = (OSError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)


def _config(output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@functools.cache
def db_revision_required() -> str:
    """The newest revision this build knows; the database must have it or a newer one."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise SetupError("this build carries no database revision")
    return head


@functools.cache
def known_revisions() -> frozenset[str]:
    """Every revision this build knows, retired ones too; another one in the database is newer than this build."""
    return RETIRED | {each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()}


def _check_known(found: str | None) -> None:
    """Return if this build has a way from the revision ``found``.

    Raises:
        SetupError: the revision is retired, or newer than this build.
    """
    if found in RETIRED:
        raise SetupError(
            f"the schema is at revision {found}, which is retired; first run 'stateroom db upgrade' of commit"
            f" {LAST_WITH_RETIRED} of the repository, which brings it to a34, and then of this build"
        )
    if found is not None and found not in known_revisions():
        raise SetupError(f"the schema is at revision {found}, which is newer than this build")


async def upgrade(owner_url: str) -> None:
    """Bring the schema to this build's revision, and its functions to their owners, whom a restore may have lost.

    Safe to run from several places: one waits for the other.

    ``owner_url`` has the credentials of gw_migrate (or a superuser).

    Raises:
        DatabaseAway: the database cannot be reached.
        SetupError: it is too old, or lacks the roles.
    """

    def run() -> None:
        with _ALEMBIC:
            asyncio.run(_upgrade(owner_url))

    await asyncio.to_thread(run)


async def _upgrade(owner_url: str) -> None:
    url, tls = for_asyncpg(owner_url)
    engine = create_async_engine(url, connect_args=tls, poolclass=NullPool, hide_parameters=True)

    def run(connection: Connection) -> None:
        number = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
        if number < POSTGRES_VERSION_MIN:
            raise SetupError(f"{_too_old(number)}; nothing was changed")
        if connection.exec_driver_sql(f"SELECT to_regclass('{SCHEMA}.db_revision')").scalar_one() is not None:
            _check_known(
                connection.exec_driver_sql(f"SELECT version_num FROM {SCHEMA}.db_revision").scalar_one_or_none()
            )
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        for statement in functions.GIVE_BACK:
            connection.exec_driver_sql(statement)

    try:
        async with engine.begin() as connection:
            await connection.run_sync(run)
    except OSError as error:
        raise DatabaseAway(f"the database cannot be reached: {error}") from None
    except DBAPIError as error:
        raise SetupError(f"the schema was not upgraded: {error.orig}") from None
    finally:
        await engine.dispose()


async def script(owner_url: str) -> str:
    """What `upgrade` would do to the database, as SQL that an administrator may read and run with ``psql``.

    The database is read and not changed.

    Raises:
        DatabaseAway: The database cannot be reached.
        SetupError: It is too old, or of a later release than this build.
    """
    connection = await connect(owner_url)
    try:
        if (number := await Session(connection).fetch_only(server.VERSION)) < POSTGRES_VERSION_MIN:
            raise SetupError(_too_old(number))
        found = await _revision(connection)
    finally:
        await connection.close()
    _check_known(found)

    def run() -> str:
        written = io.StringIO()
        with _ALEMBIC:
            command.upgrade(_config(written), f"{found or 'base'}:head", sql=True)
        return written.getvalue()

    return "" if found == db_revision_required() else await asyncio.to_thread(run)


def _too_old(number: int) -> str:
    return (
        f"PostgreSQL {number // 10000}.{number % 10000} is older than {POSTGRES_VERSION_MIN // 10000};"
        " upgrade the server"
    )


async def current(url: str) -> str | None:
    """The database's revision, or None before the first upgrade."""
    connection = await connect(url)
    try:
        return await _revision(connection)
    finally:
        await connection.close()


async def _revision(connection: Any) -> str | None:
    try:
        return await Session(connection).fetch_one(server.REVISION)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None


async def obstacle(url: str, *, migrated: bool) -> str | None:
    """What is still in the way of using a database, in words that hold no secret; None: nothing.

    Args:
        url: As a gateway has it, a pooler's too, or as its owner.
        migrated: Whether a schema that is missing or older than this build is in the way.

    Raises:
        SetupError: The URL or the server can never be used.
    """
    address = make_url(url).set(drivername="postgresql").difference_update_query(["statement_cache_size"])
    try:
        connection = await asyncpg.connect(
            address.render_as_string(False),
            timeout=_CONNECT_SECONDS,
            command_timeout=_CONNECT_SECONDS,
            statement_cache_size=0,
        )
        try:
            if (number := await Session(connection).fetch_only(server.VERSION)) < POSTGRES_VERSION_MIN:
                raise SetupError(_too_old(number))
            found = await _revision(connection) if migrated else db_revision_required()
        finally:
            await connection.close(timeout=_CONNECT_SECONDS)
    # The class tells enough, as InvalidPasswordError does; a text may quote the URL.
    except ValueError as error:
        raise SetupError(f"the database URL cannot be used: {type(error).__name__}") from None
    except OSError as error:
        return f"it cannot be reached: {type(error).__name__}"
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return f"it answers with {type(error).__name__}"
    if found is None:
        return "its schema is missing"
    if found in known_revisions() and found != db_revision_required():
        return f"its schema is at revision {found}, and this build requires {db_revision_required()}"
    return None


async def connect(url: str) -> Any:
    """A connection as the owner of the schema, or whoever sets the database up.

    Raises:
        DatabaseAway: The database cannot be reached.
        SetupError: It refuses.
    """
    try:
        return await asyncpg.connect(
            make_url(url).set(drivername="postgresql").render_as_string(False), timeout=_CONNECT_SECONDS
        )
    except _AWAY as error:
        raise DatabaseAway(f"the database cannot be reached: {error}") from None
    except asyncpg.PostgresError as error:
        raise SetupError(f"the database cannot be reached: {error}") from None


def roles_script() -> str:
    """The SQL that creates the five roles, for an administrator; running it again changes nothing."""
    return _ROLES.read_text(encoding="utf-8")


async def create_roles(superuser_url: str) -> None:
    """Create the five roles of the cluster, where they are missing."""
    connection = await connect(superuser_url)
    try:
        await connection.execute(roles_script())
    finally:
        await connection.close()


async def prepare(superuser_url: str, *, database: str, owner_password: str, app_password: str) -> tuple[str, str]:
    """Make a cluster of our own ready: roles with passwords, a database, and its schema.

    For embedded engines and tests; in production an administrator runs ``roles.sql``.

    Returns:
        The URLs of gw_migrate and gw_app.
    """
    await create_roles(superuser_url)
    connection = await connect(superuser_url)
    try:
        session = Session(connection)
        for role, password in (("gw_migrate", owner_password), ("gw_app", app_password)):
            quoted = await session.fetch_only(server.QUOTED_TEXT, text=password)
            await connection.execute(f"ALTER ROLE {role} PASSWORD {quoted}")
        if await session.fetch_one(server.DATABASE, name=database) is None:
            quoted = await session.fetch_only(server.QUOTED_NAME, name=database)
            await connection.execute(f"CREATE DATABASE {quoted} OWNER gw_migrate")
        await connection.execute(roles_script())  # now for the rights on the database
    finally:
        await connection.close()
    base = make_url(superuser_url).set(database=database)
    owner_url = base.set(username="gw_migrate", password=owner_password).render_as_string(False)
    app_url = base.set(username="gw_app", password=app_password).render_as_string(False)
    await upgrade(owner_url)
    return owner_url, app_url


async def connections_allowed(connection: Any) -> int:
    """How many connections the database lets this connection's role have, of all processes together."""
    return await Session(connection).fetch_only(server.CONNECTIONS_ALLOWED)


async def guard(
    connection: Any,
    *,
    deployment_id: UUID,
    durable: bool,
    connections_max: int | None = None,
) -> list[str]:
    """Why this database must not be served from, with this connection's role; empty if it may.

    Args:
        connection: as the gateway will use it.
        deployment_id: this deployment; a database remembers the first one that served from it.
        durable: require ``fsync`` and ``synchronous_commit``.
        connections_max: how many connections this process may come to hold; None: they are a pooler's.
    """
    if (number := await Session(connection).fetch_only(server.VERSION)) < POSTGRES_VERSION_MIN:
        return [_too_old(number)]  # what follows asks for settings that such a server does not have
    faults = await _role_faults(connection)
    if connections_max is not None and connections_max > (allowed := await connections_allowed(connection)):
        faults.append(
            f"this process may hold {connections_max} connections, but the database lets its role have {allowed};"
            " lower DATABASE_CONNECTIONS_MAX, or raise the database's limit"
        )
    if durable:
        faults += await _durability_faults(connection)
    revision = await _revision(connection)
    if revision is None:
        return [*faults, "the schema is missing or unreadable; run 'stateroom db upgrade'"]
    faults += [
        f"table {table.name} is not protected by forced row-level security"
        for table in await Session(connection).fetch_all(server.TENANT_TABLES)
        if not table.forced
    ]
    if revision in known_revisions() and revision != db_revision_required():
        faults.append(f"the schema is at revision {revision}, older than this build; run 'stateroom db upgrade'")
        return faults
    faults += await policy_faults(connection)
    faults += await function_faults(connection)
    return faults or await _claim_deployment(connection, deployment_id)


async def policy_faults(connection: Any) -> list[str]:
    """What is wrong with the policies that hold for this connection's role, of this release's schema or a newer one."""
    if await _role_faults(connection):
        return []  # no policy binds such a role, or all of them do
    return policies.faults(
        await Session(connection).fetch_all(policies.OF_THIS_ROLE), newer=await _is_newer(connection)
    )


async def function_faults(connection: Any) -> list[str]:
    """What is wrong with the schema's functions: their owners, their rights, and what they do."""
    return functions.faults(
        await Session(connection).fetch_all(functions.OF_THE_SCHEMA), newer=await _is_newer(connection)
    )


async def _is_newer(connection: Any) -> bool:
    return await _revision(connection) not in known_revisions()


async def _role_faults(connection: Any) -> list[str]:
    role = await Session(connection).fetch_only(server.OWN_ROLE)
    found = (
        (role.superuser, "is a superuser"),
        (role.bypasses or role.bypass_member, "can bypass row-level security"),
        (role.owner, "owns tables"),
    )
    return [f"the gateway's role {what}; set DATABASE_URL to the role gw_app" for wrong, what in found if wrong]


async def _durability_faults(connection: Any) -> list[str]:
    settings = await Session(connection).fetch_all(server.SETTINGS, names=list(server.DURABILITY))
    off = [each.name for each in settings if each.setting == "off"]
    return [f"{each} is off: an acknowledged save could be lost; turn it on" for each in off]


async def _claim_deployment(connection: Any, deployment_id: UUID) -> list[str]:
    session = Session(connection)
    await session.run(server.CLAIM_DEPLOYMENT, deployment_id=deployment_id)
    found = await session.fetch_only(server.DEPLOYMENT)
    if found != deployment_id:
        return [f"the database belongs to deployment {found}; DEPLOYMENT_ID says {deployment_id}"]
    return []
