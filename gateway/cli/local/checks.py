"""What `stateroom doctor` looks at: one check after another, each with what to do when it fails.

It connects as the serving role, changes nothing, and reports identifiers and settings, never secrets. A check
whose ground failed is skipped and says so; everything else is checked, so that all faults show at once. It does not
prove that the gateway will keep working; it proves that it is set up as it requires.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

import asyncpg
from sqlalchemy.engine import make_url

from crypto import selftest
from crypto.errors import CryptoError
from crypto.roots import RootKey, create_root_key
from gateway.authentication import api_keys
from gateway.cli.local import credentials
from gateway.cli.render import byte_count
from gateway.settings import CONNECTIONS_MAX, SettingsError, parse, read_secret
from storage.administration.tenants import record_of
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import FROZEN_CLASSES
from storage.clock import SystemClock
from storage.control.clock_check import measure_offset
from storage.control.features import KNOWN_NAMES, SEALED_API_KEYS, unknown_to_this_build
from storage.control.processes import GONE_SECONDS
from storage.errors import SetupError, StorageError
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.keys.key_seals import FIRST_PEPPER_VERSION, Pepper, Peppers
from storage.model import ApiKeyRecord
from storage.postgres import server, setup
from storage.postgres.engine import (
    IDLE_IN_TRANSACTION_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    STATEMENT_TIMEOUT_MS,
    speaks_to_a_pooler,
)
from storage.postgres.session import Session
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import bindings, bound
from storage.scope import AnyScope, OperatorScope, TenantScope
from storage.service import Store, StoreOptions
from storage.statements.deployment import bloat, processes, tenants
from storage.statements.deployment.features import FEATURES
from storage.statements.keys import wrappings
from storage.statements.objects import blobs

R = TypeVar("R")

CONNECT_SECONDS_MAX = 5.0
CONNECTIONS_TAKEN_MAX = 0.9  # of those the database allows
TIME_OUTS = {
    "lock_timeout": LOCK_TIMEOUT_MS,
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_MS,
}
# A tenant is swept every minute by whichever gateway is first.
SWEEP_AGE_SECONDS_MAX = 900.0
SWEEP_DUE_SECONDS_MAX = 3600.0
KEY_VARIABLES = ("STATEROOM_OPERATOR_KEY", "STATEROOM_API_KEY")
ROLES = {
    "gw_migrate": True,
    "gw_app": False,
    "gw_auth": False,
    "gw_worker": False,
    "gw_ops": False,
}  # BYPASSRLS


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``fix`` says what to do when it is not ``ok``."""

    check: str
    outcome: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON members."""
        return asdict(self)


def ok(check: str, detail: str) -> Finding:
    """A check that passed."""
    return Finding(check, "ok", detail)


def failed(check: str, detail: str, fix: str) -> Finding:
    """A check that did not."""
    return Finding(check, "failed", detail, fix)


def warning(check: str, detail: str, fix: str) -> Finding:
    """A check that passed, and found what the operator should do."""
    return Finding(check, "warning", detail, fix)


def skipped(check: str, why: str) -> Finding:
    """A check that could not be made."""
    return Finding(check, "skipped", why)


async def examine(environ: Mapping[str, str]) -> list[Finding]:
    """Check the whole set-up that ``environ`` describes.

    Args:
        environ: The environment the gateway would start with.

    Returns:
        The findings, in the order of a start.
    """
    values, faults = parse(environ)
    findings = [_check_selftest()]
    if faults:
        findings.append(failed("settings", "\n".join(faults), "See README.md for all settings."))
    else:
        findings.append(ok("settings", f"deployment {values['deployment_id']}"))
    root_key = None
    async with AsyncExitStack() as stack:
        if "root_key" not in values:
            findings.append(skipped("root key", "needs STATEROOM_ROOT_KEY"))
        else:
            finding, root_key = await _check_root_key(values["root_key"])
            findings.append(finding)
        if root_key is not None:
            stack.push_async_callback(root_key.aclose)
        if "database_url" in values:
            findings += await _check_database(values, root_key, environ)
        else:
            findings.append(skipped("database", "needs STATEROOM_DATABASE_URL"))
        findings.append(await _check_s3("object storage", "STATEROOM_S3_URL", values.get("s3_url")))
        findings.append(await _check_history(values, root_key, findings))
    if "archive_url" in values:
        findings.append(await _check_s3("archive", "STATEROOM_ARCHIVE_URL", values["archive_url"]))
    return findings


def _check_selftest() -> Finding:
    try:
        selftest.run()
    except CryptoError as error:
        return failed("cryptography", str(error), "Reinstall the package `cryptography`; do not serve with this one.")
    return ok("cryptography", "known answers match")


# What `RootKey.health` of each provider has found out when it raises nothing.
_HEALTHY = {
    "file": "readable by this user only",
    "aws-kms": "a dry run says it would encrypt; nothing was",
    "vault": "the transit key is there and derived",
}


async def _check_root_key(spec: str) -> tuple[Finding, RootKey | None]:
    """Whether it can be used now, and the root key itself where the setting names one."""
    root_key = None
    try:
        root_key = create_root_key(spec)
        await root_key.health()
    except CryptoError as error:
        fix = "New deployment: stateroom root-key create PATH. Existing one: restore the key from its backup."
        if not spec.startswith("file:"):
            fix = (
                "Check STATEROOM_ROOT_KEY, the network, the service's health and what its policy lets this process do."
            )
        return failed("root key", str(error) or type(error).__name__, fix), root_key
    detail = f"provider {root_key.provider}: {_HEALTHY.get(root_key.provider, 'it answers')}"
    return ok("root key", detail), root_key


async def _check_s3(check: str, variable: str, url: str | None) -> Finding:
    if url is None:
        return skipped(check, f"{variable} is not set")
    try:
        location = S3Location.parse(url)
        store = S3BlobStore(location, threads=1)
    except ValueError as error:
        return failed(check, str(error), f"Correct {variable}.")
    try:
        await store.health()
    except StorageError as error:
        return failed(check, str(error), f"Check {variable}, the network, the credentials and that the bucket exists.")
    finally:
        await store.aclose()
    detail = f"bucket {location.bucket} answers"
    if store.storage_class != "STANDARD":
        detail += f", objects are stored in {store.storage_class}"
    if variable == "STATEROOM_S3_URL":
        if store.storage_class in FROZEN_CLASSES:
            fix = f"Take storage_class out of {variable}; it belongs to STATEROOM_ARCHIVE_URL."
            return failed(check, f"what is stored in {store.storage_class} cannot be read again at once", fix)
        detail += f"; pieces of {location.offload_bytes_min or OFFLOAD_BYTES_MIN:,} bytes or more go there"
    return ok(check, detail)


async def _check_history(settings: Mapping[str, Any], root_key: RootKey | None, before: list[Finding]) -> Finding:
    """Whether the database has what the object store knows of it: shreds, and events that were anchored."""
    check = "history"
    needs = {"database": "a database that answers", "PostgreSQL version": "a server that is new enough"}
    for name, needed in needs.items():
        if any(each.check == name and each.outcome == "failed" for each in before):
            return skipped(check, f"needs {needed}")
    if root_key is None or not {"database_url", "deployment_id", "s3_url"} <= settings.keys():
        return skipped(check, "needs the database, STATEROOM_S3_URL, the root key and STATEROOM_DEPLOYMENT_ID")
    fix = "See docs/operations/backup.md on restores and fail-over before serving from it."
    try:
        blobs = S3BlobStore(S3Location.parse(settings["s3_url"]), threads=1)
    except ValueError as error:
        return failed(check, str(error), "Correct STATEROOM_S3_URL.")
    try:
        store = await Store.open(
            settings["database_url"],
            root_key=root_key,
            deployment_id=settings["deployment_id"],
            connections_max=2,
            durable=False,
            restored=True,
            options=StoreOptions(blobs=blobs),
        )
        try:
            await store.check_restored()
        finally:
            await store.close()
    except CryptoError as error:
        return skipped(check, f"the root key is needed to tell: {error}")
    except StorageError as error:
        return failed(check, str(error), fix)
    finally:
        await blobs.aclose()
    return ok(check, "the database has every event that was anchored, and every shred")


def _reach_fix(error: Exception, host: str | None) -> str:
    if isinstance(error, PermissionError) and host:  # a local socket may be closed itself
        return "The driver looks into ~/.postgresql: give this user a HOME it may read (in a unit, ProtectHome=tmpfs)."
    return "Check STATEROOM_DATABASE_URL, the network, the password, and that the server runs."


async def _check_database(
    settings: Mapping[str, Any], root_key: RootKey | None, environ: Mapping[str, str]
) -> list[Finding]:
    url = make_url(settings["database_url"]).set(drivername="postgresql")
    # Of our own query parameters asyncpg knows nothing; without prepared statements, a pooler is no obstacle.
    dsn = url.difference_update_query(["statement_cache_size"]).render_as_string(hide_password=False)
    place = f"{url.host or 'local socket'}{f':{url.port}' if url.port else ''}/{url.database or ''}"
    try:
        connection = await asyncpg.connect(
            dsn, timeout=CONNECT_SECONDS_MAX, command_timeout=CONNECT_SECONDS_MAX, statement_cache_size=0
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        # The class tells enough (InvalidPasswordError, ConnectionRefusedError); the text may quote the URL.
        return [failed("database", f"{place} does not answer: {type(error).__name__}", _reach_fix(error, url.host))]

    deployment_id = settings.get("deployment_id")
    connections = partial(_check_connections, own=settings.get("database_connections_max", CONNECTIONS_MAX))
    try:
        room = _check_pooler if speaks_to_a_pooler(settings["database_url"]) else connections
    except StorageError as error:
        findings = [failed("database", str(error), "Correct STATEROOM_DATABASE_URL.")]
        room = connections
    else:
        findings = [ok("database", f"{place} answers")]
    checks = _DATABASE_CHECKS | {
        "connections": room,
        "deployment id": partial(_check_deployment, deployment_id=deployment_id),
        "wrapped keys": partial(_check_wrapped, root_key=root_key, deployment_id=deployment_id),
        "API key pepper": partial(_check_pepper, settings=settings, environ=environ),
        "API keys": partial(_check_api_keys, peppers=_peppers(settings)),
        "tenants": _check_tenants,
    }
    try:
        version = await _guarded("PostgreSQL version", _check_server_version, connection)
        findings.append(version)
        for check, examine_one in checks.items():
            findings.append(
                await _guarded(check, examine_one, connection)
                if version.outcome == "ok"
                else skipped(check, "needs a server that is new enough")
            )
    finally:
        await connection.close()
    return findings


async def _guarded(check: str, examine_one: Callable[[Any], Awaitable[Finding]], connection: Any) -> Finding:
    try:
        return await examine_one(connection)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, SetupError, OSError, TimeoutError) as error:
        fix = "Run stateroom db upgrade; then see that STATEROOM_DATABASE_URL names the role gw_app."
        return failed(check, f"the database refused: {type(error).__name__}", fix)


async def _check_server_version(connection: Any) -> Finding:
    number = await Session(connection).fetch_only(server.VERSION)
    shown, required = f"{number // 10000}.{number % 10000}", setup.POSTGRES_VERSION_MIN // 10000
    if number < setup.POSTGRES_VERSION_MIN:
        return failed("PostgreSQL version", shown, f"Upgrade the server to PostgreSQL {required} or newer.")
    return ok("PostgreSQL version", shown)


async def _check_durability(connection: Any) -> Finding:
    settings = await Session(connection).fetch_all(server.SETTINGS, names=list(server.DURABILITY))
    values = {each.name: each.setting for each in settings}
    shown = ", ".join(f"{name}={values[name]}" for name in server.DURABILITY)
    if off := [name for name, value in values.items() if value == "off"]:
        fix = f"Set {' and '.join(off)} to on: an acknowledged save must survive a power cut."
        return failed("durability", shown, fix)
    return ok("durability", shown)


async def _check_own_role(connection: Any) -> Finding:
    role = await Session(connection).fetch_only(server.OWN_ROLE)
    powers = {"a superuser": role.superuser, "BYPASSRLS": role.bypasses, "owner of tables": role.owner}
    if too_much := [power for power, held in powers.items() if held]:
        fix = "Serve as gw_app: a role with these powers would see every tenant's rows."
        return failed("serving role", f"{role.name} is {', '.join(too_much)}", fix)
    if await Session(connection).fetch_only(server.MAKES_TEMPORARY_TABLES):
        fix = "Run what `stateroom db roles` prints again, as a superuser: nothing here makes temporary tables."
        return warning("serving role", f"{role.name} may make temporary tables", fix)
    return ok("serving role", f"{role.name} is bound by row-level security")


async def _check_roles(connection: Any) -> Finding:
    by_name = {role.name: role for role in await Session(connection).fetch_all(server.ROLES, names=list(ROLES))}
    wrong = [f"{name} is missing" for name in ROLES if name not in by_name]
    for name, role in by_name.items():
        if role.superuser:
            wrong.append(f"{name} is a superuser")
        elif role.bypasses != ROLES[name]:
            wrong.append(f"{name} must {'' if ROLES[name] else 'not '}have BYPASSRLS")
    if wrong:
        fix = "Run what `stateroom db roles` prints as a superuser, or correct the roles with ALTER ROLE."
        return failed("roles", "; ".join(wrong), fix)
    return ok("roles", ", ".join(ROLES))


async def _check_row_level_security(connection: Any) -> Finding:
    tables = await Session(connection).fetch_all(server.TENANT_TABLES)
    if not tables:
        return failed("row-level security", "there are no tables yet", "Run stateroom db upgrade.")
    if bare := [table.name for table in tables if not table.forced]:
        fix = "ALTER TABLE ... FORCE ROW LEVEL SECURITY; then find out who changed it."
        return failed("row-level security", f"not forced on {', '.join(bare)}", fix)
    if faults := await setup.policy_faults(connection):
        fix = "Another policy may show the serving role what its transaction is not bound to: docs/operations/roles.md."
        return failed("row-level security", "; ".join(faults), fix)
    return ok("row-level security", f"forced on all {len(tables)} tables of tenants")


async def _check_functions(connection: Any) -> Finding:
    if faults := await setup.function_faults(connection):
        fix = (
            "stateroom db upgrade gives owners back, and not what a function does; then see who changed them:"
            " docs/operations/backup.md."
        )
        return failed("functions", "; ".join(faults), fix)
    return ok("functions", "each does what it was made to do, with the rights it was made with")


async def _check_writable(connection: Any) -> Finding:
    if await Session(connection).fetch_only(server.READ_ONLY):
        fix = "Point STATEROOM_DATABASE_URL at the primary."
        return failed("writable", "the server is a standby or read-only", fix)
    return ok("writable", "the server accepts writes")


async def _check_clock(connection: Any) -> Finding:
    offset = await measure_offset(connection, SystemClock())
    if not offset.agrees:
        return failed("clock", f"the database is {offset.seconds:+.1f} s away", "Run NTP (chrony) on both machines.")
    return ok("clock", f"the database is {offset.seconds:+.3f} s away")


async def _check_revision(connection: Any) -> Finding:
    revision = await Session(connection).fetch_one(server.REVISION)
    required = setup.db_revision_required()
    if revision == required:
        return ok("database schema", f"db_revision {revision}")
    if revision is None or revision in setup.known_revisions():
        detail = f"db_revision {revision or 'none'}, this build requires {required}"
        return failed("database schema", detail, "Run stateroom db upgrade.")
    return ok("database schema", f"db_revision {revision}, newer than this build's {required}")


async def _check_processes(connection: Any) -> Finding:
    """Report the processes that run, and whether an upgrade can or must still be finished."""
    session = Session(connection)
    rows = await session.fetch_all(FEATURES)
    if unknown := unknown_to_this_build(rows):
        fix = "Serve from this database with the newer build that finished the upgrade."
        return failed("processes", f"this build does not know {', '.join(unknown)}, which is on", fix)
    on = {row.feature for row in rows}
    running = [each for each in await session.fetch_all(processes.SEEN) if each.age_seconds < GONE_SECONDS]
    older = [f"{each.place} (build {each.build})" for each in running if on - set(each.features)]
    if on:
        hosts = await session.fetch_all(processes.UNREGISTERED_HOSTS)
        older += [f"one that enters no registry ({each.sessions} sessions from {each.host})" for each in hosts]
    if older:
        fix = "Stop it at once: the upgrade was finished, and it misreads what is stored since."
        return failed("processes", f"an older build runs: {', '.join(older)}", fix)
    shown = f"{len(running)} seen in the last {GONE_SECONDS:.0f} s"
    if pending := [name for name in KNOWN_NAMES if name not in on]:
        shown += f"; stateroom db finish-upgrade would switch on {', '.join(pending)}"
    return ok("processes", shown)


async def _check_deployment(connection: Any, deployment_id: UUID | None) -> Finding:
    stored = await Session(connection).fetch_one(server.DEPLOYMENT)
    if stored is None:
        return skipped("deployment id", "the database belongs to no deployment yet: stateroom init")
    if deployment_id is None:
        return skipped("deployment id", f"needs STATEROOM_DEPLOYMENT_ID; the database says {stored}")
    if stored != deployment_id:
        fix = f"Set STATEROOM_DEPLOYMENT_ID to {stored}, or STATEROOM_DATABASE_URL to the right database."
        return failed("deployment id", "the database belongs to another deployment", fix)
    return ok("deployment id", "the database belongs to this deployment")


async def _check_wrapped(connection: Any, root_key: RootKey | None, deployment_id: UUID | None) -> Finding:
    """Whether the root key is the one that wrapped what is stored."""
    if root_key is None or deployment_id is None:
        return skipped("wrapped keys", "needs the root key and STATEROOM_DEPLOYMENT_ID")
    uses = await wrappings.uses(connection, root_key, deployment_id)
    if foreign := [use for use in uses if use.opens is False]:
        fix = (
            "Set STATEROOM_ROOT_KEY to the root key that wrapped them (a file: from its backup), or list that one after"
            " the new one until `stateroom key rewrap --operator` is done: docs/operations/root-keys.md."
        )
        return failed("wrapped keys", f"the root key does not open {'; '.join(map(str, foreign))}", fix)
    if unknown := [use for use in uses if use.opens is None]:
        return skipped("wrapped keys", f"the root key cannot be asked now about {'; '.join(map(str, unknown))}")
    count = sum(use.keys for use in uses)
    return ok("wrapped keys", f"the root key opens what wraps all {count}" if count else "there are none yet")


def _peppers(settings: Mapping[str, Any]) -> Peppers | None:
    """The peppers that the environment gives, where it gives one."""
    if (secret := settings.get("api_key_pepper")) is None:
        return None
    version = settings.get("api_key_pepper_version", FIRST_PEPPER_VERSION)
    return Peppers(Pepper(version, secret), settings.get("api_key_peppers_accepted", ()))


async def _check_pepper(connection: Any, settings: Mapping[str, Any], environ: Mapping[str, str]) -> Finding:
    """Whether API keys verify: a stored MAC covers a secret that is not stored, so it takes a key to tell."""
    check = "API key pepper"
    peppers, pepper = _peppers(settings), settings.get("api_key_pepper")
    if peppers is None or pepper is None:
        return skipped(check, "needs STATEROOM_API_KEY_PEPPER")
    for variable in KEY_VARIABLES:
        try:
            text = read_secret(environ, variable)
        except SettingsError as error:
            return failed(check, str(error), f"Correct {variable}, or unset it.")
        presented = api_keys.parse(text) if text else None
        row = await Session(connection).fetch_one(tenants.LOOK_UP, key_id=presented.key_id) if presented else None
        if presented is None or row is None:
            continue
        if api_keys.matches(peppers, presented, record_of(row)):
            return ok(check, f"{len(pepper)} bytes; the key in {variable} verifies")
        fix = "Set STATEROOM_API_KEY_PEPPER to what it was when keys were made; with another one no key verifies."
        return failed(check, f"the key in {variable} is stored and does not verify", fix)
    return ok(check, f"{len(pepper)} bytes; whether keys verify shows with one in {' or '.join(KEY_VARIABLES)}")


async def _check_api_keys(connection: Any, peppers: Peppers | None) -> Finding:
    """Whether a key was edited, and whether every tenant can be administered."""
    check = "API keys"
    if peppers is None:
        return skipped(check, "needs STATEROOM_API_KEY_PEPPER")
    operators = await _keys_in_force(connection, OperatorScope())
    living = await _bound(connection, OperatorScope(), tenants.LIVING_TENANTS)
    of_tenants = {each.tenant_id: await _keys_in_force(connection, TenantScope(each.tenant_id)) for each in living}
    now = datetime.now(UTC)
    features = {row.feature: row.since for row in await Session(connection).fetch_all(FEATURES)}
    needed = SEALED_API_KEYS.name in features and features[SEALED_API_KEYS.name] <= now
    census = credentials.examine_keys(operators, of_tenants, peppers, now, seals_needed=needed)
    if census.damaged:
        fix = "They open nothing. Revoke them, make others, and find out who wrote to the database."
        return failed(check, credentials.shown(census.damaged), fix)
    if census.notes:
        fix = "stateroom tenant recover, or stateroom init --another for an operator: docs/operations/api-keys.md."
        return warning(check, credentials.shown(census.notes), fix)
    older = f", {census.older_pepper:,} under an older pepper" if census.older_pepper else ""
    return ok(check, f"{census.keys:,} that are not revoked{older}; every tenant can be administered")


async def _check_tenants(connection: Any) -> Finding:
    """Whether tenants can be told apart by their names, as new ones can."""
    rows = await _bound(connection, OperatorScope(), tenants.LIVING_TENANTS)
    if shared := credentials.shared_names(row.name for row in rows):
        named = credentials.shown([f"more than one tenant is called {name!r}" for name in shared])
        return warning("tenants", named, "stateroom tenant rename TENANT_ID NAME")
    suspended = sum(row.suspended_at is not None for row in rows)
    return ok("tenants", f"{len(rows):,}, of which {suspended:,} are suspended; each has a name of its own")


async def _bound(connection: Any, scope: AnyScope, statement: Statement[R], **values: object) -> list[R]:
    """The rows of a statement in a transaction that is bound to a scope."""
    async with connection.transaction(readonly=True):
        await connection.execute(bindings(scope))
        return await Session(connection, bound(scope)).fetch_all(statement, **values)


async def _keys_in_force(connection: Any, scope: OperatorScope | TenantScope) -> list[ApiKeyRecord]:
    wanted = scope.tenant_id if isinstance(scope, TenantScope) else None
    return [record_of(row) for row in await _bound(connection, scope, tenants.KEYS_IN_FORCE, wanted=wanted)]


async def _check_connections(connection: Any, own: int) -> Finding:
    """Whether the database can hold this process, and still has room for what all of them may ask for."""
    allowed = await setup.connections_allowed(connection)
    taken = await Session(connection).fetch_only(server.CONNECTIONS_TAKEN)
    shown = f"{own} for each process, {allowed} for all: enough for {allowed // own}; {taken} are open"
    if own > allowed:
        fix = "Lower STATEROOM_DATABASE_CONNECTIONS_MAX, or raise max_connections or the role's CONNECTION LIMIT."
        return failed("connections", shown, fix)
    if taken > CONNECTIONS_TAKEN_MAX * allowed:
        fix = "Run fewer processes, give each fewer connections, or raise the limit: docs/operations/install.md."
        return failed("connections", shown, fix)
    return ok("connections", shown)


async def _check_pooler(connection: Any) -> Finding:
    """Whether the role has the time-outs that a pooler in transaction mode drops when a gateway connects."""
    settings = await Session(connection).fetch_all(server.SETTINGS, names=list(TIME_OUTS))
    values = {each.name: each.setting for each in settings}
    if wrong := [name for name, expected in TIME_OUTS.items() if values[name] != str(expected)]:
        fix = "ALTER ROLE gw_app IN DATABASE ... SET them, then RECONNECT: docs/operations/pooler.md."
        return failed("connections", f"through a pooler, and the role's {', '.join(wrong)} are not a gateway's", fix)
    return ok("connections", "through a pooler; the role has a gateway's time-outs")


async def _check_sweeper(connection: Any) -> Finding:
    async with connection.transaction(readonly=True):
        await connection.execute(bindings(OperatorScope()))
        session = Session(connection)
        census = await session.fetch_only(blobs.CENSUS)
        totals = await session.fetch_all(blobs.CENSUS_BY_STATE)
    shown = f"{byte_count(census.used_bytes)} count for quotas"
    shown += "".join(
        f", {state} {byte_count(size)}" for state, size in sorted((each.state, each.bytes) for each in totals)
    )
    fix = "See `sweep failed` in the gateways' logs, and whether they may delete objects; then stateroom sweep --all."
    if census.due_seconds > SWEEP_DUE_SECONDS_MAX:
        return failed("sweeper", f"what should be gone has been due for {census.due_seconds / 60:.0f} minutes", fix)
    if census.age_seconds > SWEEP_AGE_SECONDS_MAX:
        detail = f"a tenant was not swept for {census.age_seconds / 60:.0f} minutes"
        if census.tried:
            return failed("sweeper", f"{detail}, though gateways try", fix)
        return skipped("sweeper", f"{detail}: does no gateway with STATEROOM_S3_URL run?")
    return ok("sweeper", shown)


async def _check_dead_rows(connection: Any) -> Finding:
    tables = await Session(connection).fetch_all(bloat.DEAD_ROWS)
    worst = sorted(tables, key=lambda table: table.dead, reverse=True)[:3]
    shown = ", ".join(
        f"{table.name} {table.dead:,} of {table.dead + table.live:,} (vacuumed {table.vacuumed_at:%Y-%m-%d %H:%M})"
        if table.vacuumed_at
        else f"{table.name} {table.dead:,} of {table.dead + table.live:,} (not vacuumed yet)"
        for table in worst
    )
    late = [table.name for table in tables if bloat.is_late(table.live, table.dead)]
    if late:
        fix = "See that autovacuum is on and no transaction stays open; then raise autovacuum_vacuum_cost_limit."
        return failed("dead rows", f"autovacuum does not keep up with {', '.join(late)}: {shown}", fix)
    return ok("dead rows", shown)


_DATABASE_CHECKS: dict[str, Callable[[Any], Awaitable[Finding]]] = {
    "writable": _check_writable,
    "durability": _check_durability,
    "clock": _check_clock,
    "roles": _check_roles,
    "serving role": _check_own_role,
    "row-level security": _check_row_level_security,
    "functions": _check_functions,
    "database schema": _check_revision,
    "processes": _check_processes,
    "sweeper": _check_sweeper,
    "dead rows": _check_dead_rows,
}
