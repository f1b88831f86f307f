"""The commands that run or set up a gateway on this machine: `serve`, `worker`, `init`, `doctor`, `db`, `root-key`.

They read the same settings as the gateway (`gateway.settings`) and open the same storage. `init` and
`root-key` create secrets; each is shown once or written once, never logged.
"""

import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import Moment, data_dir_option, json_option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AsyncExitStack
    from socket import socket

    from gateway.app import Gateway
    from gateway.cli.local.checks import Finding
    from gateway.cli.local.instance import Identity
    from gateway.cli.local.serving import StopRequest
    from gateway.settings import Address, Settings
    from gateway.telemetry import Metrics, MetricsServer
    from storage.service import Store

T = TypeVar("T")

DATA_DIR = Path(".stateroom")
EMBEDDED_PORT = 8080
OPERATOR_KEY_DAYS = 90  # of a key that was given no end; it must be made again before, so that it is not forgotten


def settings_from_environment() -> "Settings":
    """The gateway's settings.

    Raises:
        Failure: they are not complete.
    """
    from gateway.settings import Settings, SettingsError

    try:
        return Settings.from_environment(os.environ)
    except SettingsError as error:
        raise Failure(
            "the settings cannot be used",
            detail=str(error),
            hint="stateroom doctor checks all.",
            exit_code=ExitCode.USAGE,
        ) from None


def _owner_url() -> str:
    from gateway.settings import SettingsError, owner_url

    try:
        url = owner_url(os.environ)
    except SettingsError as error:
        raise Failure(str(error), exit_code=ExitCode.USAGE) from None
    if url is None:
        raise Failure(
            "STATEROOM_DATABASE_OWNER_URL is not set",
            hint="Set it to postgresql://gw_migrate:password@host/database, the role that owns the schema.",
            exit_code=ExitCode.USAGE,
        )
    return url


def run_local(coroutine: "Coroutine[Any, Any, Any]") -> Any:
    """Run ``coroutine`` on uvloop; refusals of crypto and storage become failures to act on."""
    import uvloop

    from crypto.errors import CryptoError, KeyUnavailable
    from gateway.settings import SettingsError
    from storage.blobs.store import BlobUnavailable
    from storage.errors import SetupError, StorageError, Unavailable

    try:
        return uvloop.run(coroutine)
    except (Unavailable, KeyUnavailable) as error:
        kinds = {BlobUnavailable: "object store", KeyUnavailable: "root key", Unavailable: "database"}
        what = next(what for kind, what in kinds.items() if isinstance(error, kind))
        raise Failure(
            f"the {what} is not available",
            detail=str(error),
            hint="stateroom doctor tells why.",
            exit_code=ExitCode.UNAVAILABLE,
        ) from None
    except SetupError as error:
        raise Failure(
            "the database is not set up as the gateway requires",
            detail=str(error),
            hint="stateroom doctor checks everything and says what to do.",
        ) from None
    except (StorageError, CryptoError, SettingsError) as error:
        raise Failure("the gateway refuses to start", detail=str(error), hint="stateroom doctor tells more.") from None


class _Listen(click.ParamType[Any]):
    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from urllib.parse import urlsplit

        from gateway.settings import Address

        if isinstance(value, Address):
            return value
        try:
            parts = urlsplit(f"//{value}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None or parts.path or parts.username:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080", param, ctx)
        return Address(host, port)


state_schemas_option = click.option(
    "--state-schemas",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of state schemas with steps in Python. They are run: only root and this user may write there.",
)


background_option = click.option(
    "--background/--no-background",
    default=True,
    help="Whether to do jobs, sweeps and rounds of retention beside serving; without, `stateroom worker` does.",
)


@click.command("serve")
@click.option("--embedded", is_flag=True, help="Bring PostgreSQL and S3 along, in one folder; for one machine.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of the embedded gateway.  [default: {DATA_DIR}]",
)
@click.option(
    "--write-env",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Once ready, write STATEROOM_URL and the keys to FILE.  [default: DATA_DIR/env]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.")
@click.option("--listen", type=_Listen(), metavar="HOST:PORT", help="Where to listen.  [env var: STATEROOM_LISTEN]")
@background_option
@state_schemas_option
def serve(
    *,
    embedded: bool,
    data_dir: Path | None,
    write_env: Path | None,
    port: int | None,
    listen: "Address | None",
    background: bool,
    state_schemas: Path | None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    Without --embedded all settings come from the environment (STATEROOM_...); `stateroom doctor` checks them.
    """
    from gateway.settings import Address

    if not embedded:
        if data_dir or write_env:
            raise click.UsageError("--data-dir and --write-env need --embedded.")
        _serve_configured(port, listen, state_schemas, background=background)
        return
    if not background:
        raise click.UsageError("--no-background needs a worker beside it, which an embedded gateway has not.")
    address = listen or _listen_from_environment() or Address("127.0.0.1", EMBEDDED_PORT)
    if port is not None:
        address = Address(address.host, port)
    _serve_embedded(data_dir or DATA_DIR, address, write_env, state_schemas)


def _listen_from_environment() -> "Address | None":
    """Where the environment says that an embedded gateway listens, too."""
    text = os.environ.get("STATEROOM_LISTEN")
    return None if not text else _Listen().convert(text, None, None)


def _serve_configured(
    port: int | None, listen: "Address | None", state_schemas: Path | None, *, background: bool
) -> None:
    from gateway.cli.local import serving
    from gateway.settings import Address
    from gateway.telemetry import announce

    settings = settings_from_environment()
    address = listen or settings.listen
    if port is not None:
        address = Address(address.host, port)
    with serving.StopRequest() as stop, serving.bind(address.host, address.port) as listener:
        bound = Address(address.host, listener.getsockname()[1])
        settings = settings.listening_on(bound)

        def on_ready() -> None:
            announce("ready", listen=str(bound), public_url=settings.public_url)

        run_local(_serve(settings, listener, stop, on_ready, state_schemas=state_schemas, background=background))


def _serve_embedded(folder: Path, address: "Address", write_env: Path | None, state_schemas: Path | None) -> None:
    from gateway.cli.local import instance, serving
    from gateway.settings import Address
    from gateway.telemetry import build

    env_file = (write_env or folder / "env").absolute()
    if write_env is not None:
        instance.probe_private(env_file)
    with (
        serving.StopRequest() as stop,
        serving.bind(address.host, address.port) as listener,
        instance.Instance(folder) as owned,
    ):
        owned.own()
        env_file.unlink(missing_ok=True)  # a waiting script must not find that of a run that was killed
        bound = Address(address.host, listener.getsockname()[1])
        url = f"http://{bound}"
        identity = owned.identity()
        owned.begin_engines()
        import gateway.app  # noqa: F401 - its second of imports passes while the engines start

        owned.engines_ready()
        if stop.count:
            return

        def on_ready() -> None:
            render.say(
                f"Stateroom {build()} is ready.\n"
                f"  URL   {url}\n"
                f"  Docs  {url}/docs\n"
                f"  Data  {owned.data_dir}\n"
                f"  Keys  set -a; . {env_file}; set +a\n"
                f"  Stop  Ctrl-C"
            )
            # Last: a script that waits for the file finds everything else said and done.
            instance.write_private(
                env_file,
                f"STATEROOM_URL='{url}'\n"
                f"STATEROOM_API_KEY='{identity.api_key}'\n"
                f"STATEROOM_OPERATOR_KEY='{identity.operator_key}'\n"
                + ("" if identity.approver_key is None else f"STATEROOM_APPROVER_KEY='{identity.approver_key}'\n"),
            )

        async def run() -> None:
            app_url = await owned.prepare(identity)
            settings = owned.settings(identity, app_url, url, os.environ)
            if not stop.count:
                await _serve(settings, listener, stop, on_ready, identity=identity, state_schemas=state_schemas)

        try:
            run_local(run())
        finally:
            env_file.unlink(missing_ok=True)  # no server answers there any more


def _migrating(work: "Coroutine[Any, Any, T]") -> "T":
    """Run ``work`` on the database as its owner; the driver's errors become a failure without the URL."""
    import asyncio

    from asyncpg import InterfaceError, PostgresError
    from sqlalchemy.exc import SQLAlchemyError

    from storage.errors import StorageError, Unavailable

    hint = "Check STATEROOM_DATABASE_OWNER_URL, and that its role owns the schema (gw_migrate)."
    try:
        return asyncio.run(work)
    except Unavailable as error:
        raise Failure(
            "the database is not available", detail=str(error), hint=hint, exit_code=ExitCode.UNAVAILABLE
        ) from None
    except StorageError as error:
        raise Failure("the database refused", detail=str(error)) from None
    except (OSError, SQLAlchemyError, PostgresError, InterfaceError) as error:
        cause = getattr(error, "orig", None) or error
        raise Failure("the database refused", detail=type(cause).__name__, hint=hint) from None


async def _serve(
    settings: "Settings",
    listener: "socket",
    stop: "StopRequest",
    on_ready: "Callable[[], None]",
    *,
    identity: "Identity | None" = None,
    state_schemas: Path | None = None,
    background: bool = True,
) -> None:
    """Serve until a stop is asked for, after making the keys of an embedded gateway's ``identity`` known."""
    from gateway.cli.local import serving
    from gateway.cli.local.supervisor import Supervisor
    from gateway.http.connections import Connections

    supervisor = Supervisor.of_environment(os.environ)
    supervisor.status("starting")
    async with _open_app(settings, identity, state_schemas, background=background) as app:
        connections = Connections(app.services.metrics, settings.public_url)
        await serving.serve(
            app,
            listener,
            stop=stop,
            drain=app.services.drain,
            connections=connections,
            on_ready=on_ready,
            supervisor=supervisor,
        )


@asynccontextmanager
async def _open_app(
    settings: "Settings", identity: "Identity | None", state_schemas: Path | None, *, background: bool
) -> "AsyncIterator[Gateway]":
    """The application of this process, which logs, shows its metrics, and answers probes once it is open."""
    from contextlib import AsyncExitStack

    from gateway.app import open_app
    from gateway.telemetry import Metrics, configure_logging
    from migrations.state.worker.confinement import make_undumpable

    configure_logging(settings.log_level)
    if not settings.traceable:
        make_undumpable()
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        listener = _show_metrics(stack, settings, metrics)
        opening = open_app(settings, metrics=metrics, state_schemas=state_schemas, background=background)
        app = await stack.enter_async_context(opening)
        await _check_root_key(settings, app.services.store)
        if identity is not None:
            from gateway.cli.local.instance import register_keys

            await register_keys(app.services.store, identity)
        if listener is not None:
            listener.answer_probes(app.services.readiness.probe)
        yield app


async def _check_root_key(settings: "Settings", store: "Store") -> None:
    """Refuse to start with a root key that wrapped nothing of what is stored.

    Raises:
        SetupError: what it does not open, and what to do.
    """
    from contextlib import aclosing

    from crypto.roots import create_root_key
    from storage.statements.keys import wrappings

    async with aclosing(create_root_key(settings.root_key)) as root_key, store.unit_of_work.connection() as connection:
        await wrappings.guard(connection, root_key, settings.deployment_id)


def _show_metrics(stack: "AsyncExitStack", settings: "Settings", metrics: "Metrics") -> "MetricsServer | None":
    """Listen for Prometheus and for probes, where the settings say so."""
    from gateway.telemetry import MetricsServer

    if settings.metrics_listen is None:
        return None
    try:
        listener = MetricsServer(metrics, settings.metrics_listen)
    except OSError as error:
        raise Failure(
            f"cannot listen for metrics on {settings.metrics_listen}",
            detail=str(error.strerror),
            hint="Set STATEROOM_METRICS_LISTEN to another address, or to off.",
        ) from None
    stack.callback(listener.close)
    return listener


@click.command("worker")
@state_schemas_option
def worker(*, state_schemas: Path | None) -> None:
    """Do what any process may do for all of them, until SIGTERM or Ctrl-C: jobs, sweeps, rounds of retention, anchors.

    Takes the settings of the gateways (STATEROOM_...), and serves nothing but /metrics, /livez and /readyz, on
    STATEROOM_METRICS_LISTEN. Any number of workers may run; each piece of work has one owner at a time. Killing one is
    safe: another goes on.
    """
    from gateway.cli.local import serving

    settings = settings_from_environment()
    with serving.StopRequest() as stop:
        run_local(_work(settings, stop, state_schemas))


async def _work(settings: "Settings", stop: "StopRequest", state_schemas: Path | None) -> None:
    import asyncio

    from gateway.cli.local.supervisor import Supervisor
    from gateway.telemetry import announce

    supervisor = Supervisor.of_environment(os.environ)
    supervisor.status("starting")
    stopped = asyncio.Event()
    async with _open_app(settings, None, state_schemas, background=True) as app:

        def note() -> None:
            app.services.drain.begin()  # from here on /readyz says no
            supervisor.stopping("finishing what was begun")
            stopped.set()

        with stop.notifying(note):
            async with app.lifespan():
                announce("working")
                supervisor.ready("working")
                await stopped.wait()


def run_with_settings(work: "Callable[[Settings], Coroutine[Any, Any, T]]", data_dir: Path | None) -> T:
    """Run ``work`` with the settings of the environment, or with those of an embedded gateway's folder.

    An embedded gateway's engines are used while it runs, and started where it does not.

    Raises:
        Failure: there are none, or ``work`` was refused.
    """
    if data_dir is None:
        return cast("T", run_local(work(settings_from_environment())))
    from gateway.cli.local.instance import Instance

    with Instance(data_dir) as folder:
        identity = folder.join()

        async def run() -> T:
            app_url = await folder.prepare(identity)
            # Nobody is served here: the public URL is only one that a setting must have.
            return await work(folder.settings(identity, app_url, "http://localhost", os.environ))

        return cast("T", run_local(run()))


@click.command("init")
@click.option("--another", is_flag=True, help="Create one more operator key although there is one.")
@click.option("--name", default="operator", show_default=True, help="What the key is for.")
@click.option(
    "--decrypt-any",
    is_flag=True,
    help="The key may also read any subject's state, each time on the record: break-glass.",
)
@click.option(
    "--expires",
    type=Moment("ahead", never=True),
    default=f"{OPERATOR_KEY_DAYS}d",
    show_default=True,
    help="When the key ends: 8h, an RFC 3339 time, or never.",
)
@data_dir_option
@json_option
def init(
    *,
    another: bool,
    name: str,
    decrypt_any: bool,
    expires: datetime | Literal["never"],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Check the settings and create the first operator key, which is printed this once.

    Run it once per deployment, after `stateroom db upgrade`. An embedded gateway has one; --another makes
    more.
    """
    if data_dir is None and not os.environ.get("STATEROOM_DEPLOYMENT_ID"):
        from uuid import uuid4

        raise Failure(
            "STATEROOM_DEPLOYMENT_ID is not set",
            detail=f"A new deployment may use STATEROOM_DEPLOYMENT_ID={uuid4()}",
            hint="Keep it with the settings for good: every sealed record is bound to it.",
            exit_code=ExitCode.USAGE,
        )
    permissions = ("decrypt-any", "operator") if decrypt_any else ("operator",)
    expires_at = None if expires == "never" else expires

    def making(settings: "Settings") -> "Coroutine[Any, Any, tuple[str, str]]":
        return _create_operator_key(settings, name, another=another, permissions=permissions, expires_at=expires_at)

    api_key, key_id = run_with_settings(making, data_dir)
    if as_json:
        ends = None if expires_at is None else expires_at.isoformat()
        render.emit_json({"key_id": key_id, "kind": "operator", "name": name, "expires_at": ends, "api_key": api_key})
        return
    ends = "never" if expires_at is None else render.moment(expires_at.isoformat())
    render.record({"key_id": key_id, "expires_at": ends, "api_key": api_key})
    render.say("The operator key is shown only now: keep it as STATEROOM_OPERATOR_KEY where your secrets are.")
    if data_dir is None and not another:
        render.say(
            "Next:\n"
            "  stateroom doctor              checks the whole set-up\n"
            "  stateroom serve               a gateway; its background work too, unless --no-background and a worker\n"
            "  stateroom tenant create NAME  the first tenant and the key that administers it, with STATEROOM_URL set"
        )


async def _create_operator_key(
    settings: "Settings",
    name: str,
    *,
    another: bool,
    permissions: tuple[str, ...],
    expires_at: datetime | None,
) -> tuple[str, str]:
    from crypto.roots import create_root_key
    from gateway.authentication import api_keys
    from storage.scope import OperatorScope
    from storage.service import Store

    root_key = create_root_key(settings.root_key)
    store = await Store.open(
        settings.database_url,
        root_key=root_key,
        deployment_id=settings.deployment_id,
        connections_max=1,
    )
    try:
        await _check_root_key(settings, store)
        if not another and await _has_operator_key(store):
            raise Failure(
                "there is an operator key already",
                hint="Use that one, or create one more with --another; stateroom operator-key revoke ends a lost one.",
                exit_code=ExitCode.CONFLICT,
            )
        record, text = api_keys.mint(
            settings.peppers,
            api_keys.NewKey(
                kind="operator", permissions=permissions, now=datetime.now(UTC), name=name, expires_at=expires_at
            ),
        )
        await store.tenants.add_key(OperatorScope(), record)
        if not another:
            await store.upgrades.begin()
    finally:
        await store.close()
        await root_key.aclose()
    return text, record.key_id


async def _has_operator_key(store: "Store") -> bool:
    from storage.scope import OperatorScope

    now = datetime.now(UTC)
    after = None
    while True:
        page = await store.tenants.list_keys(OperatorScope(), limit=100, after=after)
        for record in page.items:
            if record.is_active(now):
                return True
        if page.after is None:
            return False
        after = page.after


@click.group("db")
def database_group() -> None:
    """The database schema, as its owner (STATEROOM_DATABASE_OWNER_URL)."""


@database_group.command("upgrade")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; the database is only read.")
def database_upgrade(*, as_sql: bool) -> None:
    """Bring the schema up to this build's revision; running it again changes nothing."""
    url = _owner_url()
    from storage.postgres import setup

    if as_sql:
        if script := _migrating(setup.script(url)):
            click.echo(script, nl=False)
        else:
            render.say(f"The database is at db_revision {setup.db_revision_required()}; there is nothing to run.")
        return
    _migrating(setup.upgrade(url))
    render.say(f"The database is at db_revision {_migrating(setup.current(url))}.")


@database_group.command("roles")
def database_roles() -> None:
    """Print the SQL that creates the five roles: psql "$SUPERUSER_URL" -f <(stateroom db roles)."""
    from storage.postgres import setup

    click.echo(setup.roles_script(), nl=False)


@database_group.command("enable-pgvector")
@click.option(
    "--index-dimensions",
    type=click.IntRange(1, 4000),
    multiple=True,
    metavar="N",
    help="Also an HNSW index for vectors of so many dimensions, for subjects with 20,000 and more; repeatable.",
)
@click.option("--remove", "removes", is_flag=True, help="Remove the table, if no tenant uses it.")
def database_enable_pgvector(*, index_dimensions: tuple[int, ...], removes: bool) -> None:
    """Make the table in which tenants that accept what leaks may have vectors of items in clear; again changes nothing.

    It needs the extension vector (pgvector 0.8), which it makes where the role may.
    """
    if removes and index_dimensions:
        raise click.UsageError("Name --index-dimensions or --remove, not both.")
    url = _owner_url()
    from storage.postgres import pgvector

    if removes:
        gone = _migrating(pgvector.remove(url))
        render.say("The table for clear vectors is gone." if gone else "There is no table for clear vectors.")
        return
    enabled = _migrating(pgvector.enable(url, index_dimensions))
    for each in enabled.done:
        render.say(f"Done: {each}.")
    render.say(
        f"Tenants may have vectors in clear (pgvector {enabled.version}, schema {enabled.schema})."
        " Texts can be got back from them: backups of this database hold them from now on."
    )


@database_group.command("current")
@json_option
def database_current(*, as_json: bool) -> None:
    """Print the schema's revision and the one this build requires; exit with 1 when an upgrade is due."""
    url = _owner_url()
    from storage.postgres import setup

    current, required = _migrating(setup.current(url)), setup.db_revision_required()
    due = current is None or (current != required and current in setup.known_revisions())
    if as_json:
        render.emit_json({"db_revision": current, "db_revision_required": required, "upgrade_due": due})
    else:
        render.record({"db_revision": current or "none", "required": required})
    if due:
        raise Failure("the schema is older than this build requires", hint="stateroom db upgrade")


@click.group("root-key")
def root_key_group() -> None:
    """The root key, which wraps every tenant's key."""


@root_key_group.command("create")
@click.argument("path", type=click.Path(path_type=Path))
def root_key_create(*, path: Path) -> None:
    """Create a root key file that only you can read; an existing file is never overwritten."""
    from crypto.errors import CryptoError
    from crypto.roots import FileRootKey

    try:
        FileRootKey.create(path)
    except CryptoError as error:
        raise Failure("no root key was created", detail=str(error)) from None
    render.line(f"STATEROOM_ROOT_KEY=file:{path.absolute()}")
    render.say("Back the file up apart from the database: without it nothing stored can ever be opened.")


@click.command("doctor")
@data_dir_option
@json_option
@click.pass_context
def doctor(context: click.Context, *, data_dir: Path | None, as_json: bool) -> None:
    """Check the whole set-up of a gateway with these settings; exit with 1 when something is wrong."""
    from gateway.cli.local import checks

    findings = run_local(checks.examine(os.environ)) if data_dir is None else _examine_folder(data_dir)
    healthy = all(finding.outcome != "failed" for finding in findings)
    if as_json:
        render.emit_json({"ok": healthy, "checks": [finding.as_json() for finding in findings]})
    else:
        for finding in findings:
            _print_finding(finding)
    if not healthy:
        context.exit(ExitCode.FAILURE)


def _print_finding(finding: "Finding") -> None:
    """Print one check of `stateroom doctor`, a line for each line of its detail, and what to do."""
    from rich.text import Text

    output = render.console(render.results())
    words = {"ok": "green", "warning": "bold yellow", "FAILED": "bold red", "skipped": "yellow"}
    word = "FAILED" if finding.outcome == "failed" else finding.outcome
    style = words[word]
    first, *more = finding.detail.split("\n")
    output.print(Text.assemble((f"{word:<8}", style), f"{finding.check:<20}{render.safe(first)}"), soft_wrap=True)
    for text in more:
        output.print(Text(f"{'':<8}{'':<20}{render.safe(text)}"), soft_wrap=True)
    if finding.fix:
        output.print(Text(f"{'':<8}{'':<20}{render.safe(finding.fix)}", style="green"), soft_wrap=True)


def _examine_folder(data_dir: Path) -> "list[Finding]":
    from gateway.cli.local import checks
    from gateway.cli.local.instance import Instance

    with Instance(data_dir) as folder:
        identity = folder.join()
        # Nobody is served here: the public URL is only one that a setting must have.
        environ = folder.environ(identity, folder.app_url(identity), "http://localhost", os.environ)
        findings: list[Finding] = run_local(checks.examine(environ | {"STATEROOM_OPERATOR_KEY": identity.operator_key}))
        return findings


COMMANDS = (serve, worker, init, doctor, database_group, root_key_group)
