"""One embedded gateway's folder: its engines, its secrets, its database, made once and found again.

Owns the folder given as ``--data-dir``: a lock so that one process uses it, ``embedded.json`` (mode 0600)
with the secrets that must outlive a restart, the root key file, and the two engines of
`gateway.embedded`. Secrets are written before anything depends on them and every step may be repeated, so
a start after SIGKILL finishes what the killed one began. It promises neither replication nor backups: losing
the folder loses everything in it.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, Self
from uuid import UUID, uuid4

import msgspec
from sqlalchemy.engine import make_url

from gateway.authentication import api_keys
from gateway.cli.failure import Failure
from gateway.embedded.engine import EmbeddedEngineError
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from gateway.settings import Settings
from storage.keys.key_seals import FIRST_PEPPER_VERSION, Pepper, Peppers

if TYPE_CHECKING:
    from storage.service import Store

DATABASE = "stateroom"
NAME = "embedded"  # of the tenant and of its keys
# What a person may still choose for an embedded gateway; the rest follows from the folder.
PASSED_ON = (
    "STATEROOM_BACKUP_RETENTION_DAYS",
    "STATEROOM_DEFAULT_BLOB_QUOTA",
    "STATEROOM_DEFAULT_ROW_QUOTA",
    "STATEROOM_LOG_LEVEL",
    "STATEROOM_METRICS_LISTEN",
    "STATEROOM_REQUESTS_IN_FLIGHT_MAX",
    "STATEROOM_TRACEABLE",
)


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of an environment that count for an embedded gateway: of `PASSED_ON`, those that say something."""
    return {name: environ[name] for name in PASSED_ON if environ.get(name)}


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The secrets of a folder, made once.

    Attributes:
        format: Names the shape of the file.
        deployment_id: Part of every seal's context.
        tenant_id: The one tenant.
        api_key_pepper: 32 bytes in hex, mixed into stored API keys.
        owner_password: Password of the database role that owns the schema.
        app_password: Password of the database role that serves.
        operator_key: The operator's API key.
        api_key: A service key of the tenant.
        approver_key: A key of a person who decides what agents ask, and does nothing else; None: the folder is older.
    """

    format: Literal["stateroom-embedded/1"]
    deployment_id: UUID
    tenant_id: UUID
    api_key_pepper: str
    owner_password: str
    app_password: str
    operator_key: str
    api_key: str
    approver_key: str | None = None

    def __repr__(self) -> str:
        return f"Identity(deployment_id={self.deployment_id})"

    @property
    def peppers(self) -> Peppers:
        """The one pepper, as API keys are checked with it."""
        return Peppers(Pepper(FIRST_PEPPER_VERSION, bytes.fromhex(self.api_key_pepper)))

    @classmethod
    def generate(cls) -> Self:
        """Make new secrets."""
        pepper = secrets.token_bytes(32)
        peppers = Peppers(Pepper(FIRST_PEPPER_VERSION, pepper))
        return cls(
            format="stateroom-embedded/1",
            deployment_id=uuid4(),
            tenant_id=uuid4(),
            api_key_pepper=pepper.hex(),
            owner_password=secrets.token_hex(24),
            app_password=secrets.token_hex(24),
            operator_key=api_keys.generate(peppers).reveal(),
            api_key=api_keys.generate(peppers).reveal(),
            approver_key=api_keys.generate(peppers).reveal(),
        )


class InUse(Failure):
    """Another process runs a gateway on the folder."""


def _create_beside(path: Path) -> tuple[Path, int]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def probe_private(path: Path) -> None:
    """Find out, without writing it, that `write_private` will be able to write a file.

    Raises:
        Failure: It will not.
    """
    if not path.parent.is_dir():
        raise Failure(f"cannot write {path}", detail="Its folder does not exist.")
    try:
        temporary, descriptor = _create_beside(path)
        os.close(descriptor)
        temporary.unlink()
    except OSError as error:
        raise Failure(f"cannot write {path}", detail=str(error.strerror)) from None


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read; it appears whole, durably, or not at all.

    Raises:
        Failure: It cannot be written.
    """
    temporary = None
    try:
        temporary, descriptor = _create_beside(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            if temporary is not None:
                temporary.unlink(missing_ok=True)
        raise Failure(f"cannot write {path}", detail=str(error.strerror)) from None
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Instance:
    """An embedded gateway's folder while this process owns it.

    Args:
        data_dir: The folder; created when missing.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._lock: IO[str] | None = None
        self._postgres = EmbeddedPostgres(self.data_dir)
        self._s3 = EmbeddedS3(self.data_dir)
        self._starts: list[Future[None]] = []
        self._joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def own(self) -> None:
        """Take the folder.

        Raises:
            Failure: Another process has it, or it cannot be used.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.data_dir / "serve.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot use {self.data_dir}", detail=str(error.strerror)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read(20).strip()
            lock.close()
            raise InUse(
                f"a gateway already runs on {self.data_dir}",
                detail=f"It is process {owner}." if owner.isdecimal() else "",
                hint="Use that one, stop it, or give this one another --data-dir.",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def join(self) -> Identity:
        """Use the engines of the gateway that runs on the folder; where none does, start them for this process.

        Raises:
            Failure: No embedded gateway ever used the folder, or its engines do not answer or start.
        """
        if not (self.data_dir / "embedded.json").is_file():
            raise Failure(
                f"{self.data_dir} is not the folder of an embedded gateway",
                hint="--data-dir names what stateroom serve --embedded was given.",
            )
        try:
            self.own()
        except InUse:
            try:
                for engine in (self._postgres, self._s3):
                    engine.attach()
            except EmbeddedEngineError as error:
                raise Failure(
                    f"the gateway on {self.data_dir} starts or stops", detail=str(error), hint="Try again in a moment."
                ) from None
            self._joined = True
            return self.identity()
        identity = self.identity()
        self.begin_engines()
        self.engines_ready()
        return identity

    def begin_engines(self) -> None:
        """Begin to start PostgreSQL and the S3 server, side by side; `engines_ready` waits for them."""
        threads = ThreadPoolExecutor(2)
        self._starts = [threads.submit(engine.start) for engine in (self._postgres, self._s3)]
        threads.shutdown(wait=False)

    def engines_ready(self) -> None:
        """Return once both engines answer.

        Raises:
            Failure: One of them did not start.
        """
        try:
            for start in self._starts:
                start.result()
        except (EmbeddedEngineError, OSError) as error:
            raise Failure("an embedded engine did not start", detail=str(error)) from None

    def stop(self) -> None:
        """Stop what runs and give the folder free; may be repeated."""
        wait(self._starts)
        with ThreadPoolExecutor(2) as threads:
            stops = [threads.submit(engine.stop) for engine in (self._postgres, self._s3)]
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        for stop in stops:
            stop.result()

    def identity(self) -> Identity:
        """Return the folder's secrets, made on its first use.

        Raises:
            Failure: The file is damaged, or missing although there is a database.
        """
        path = self.data_dir / "embedded.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Identity)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            raise Failure(f"{path} cannot be read", hint="Restore it from a backup of the folder.") from None
        if (self.data_dir / "postgres").exists():
            raise Failure(
                f"{path} is missing, but the folder has a database",
                hint="Restore the file from a backup, or start with an empty folder.",
            )
        identity = Identity.generate()
        write_private(path, msgspec.json.encode(identity).decode())
        return identity

    def _make_root_key(self) -> None:
        """Create the folder's root key file on first use."""
        from crypto.roots.file import FileRootKey

        path = self._root_key_path()
        if not path.exists():
            # Created beside and renamed: a half-written file would look like a lost key.
            fresh = self.data_dir / "root.key.new"
            fresh.unlink(missing_ok=True)
            FileRootKey.create(fresh)
            fresh.rename(path)

    def _root_key_path(self) -> Path:
        return self.data_dir / "root.key"

    def app_url(self, identity: Identity) -> str:
        """Return the serving role's URL of the database, whose engine runs."""
        url = make_url(self._postgres.superuser_url(DATABASE))
        return url.set(username="gw_app", password=identity.app_password).render_as_string(hide_password=False)

    async def prepare(self, identity: Identity) -> str:
        """Bring the database up to this build's schema, make the root key, and return the serving role's URL.

        Where another process serves from it, that one has seen to both, and they are left as they are.

        Raises:
            StorageError: The database cannot be set up.
        """
        from storage.postgres import setup

        if not self._joined:
            await setup.prepare(
                self._postgres.superuser_url(),
                database=DATABASE,
                owner_password=identity.owner_password,
                app_password=identity.app_password,
            )
            self._make_root_key()
        return self.app_url(identity)

    def environ(self, identity: Identity, app_url: str, public_url: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment from which the gateway of this folder takes its settings.

        Args:
            identity: The folder's secrets.
            app_url: The serving role's database URL.
            public_url: The gateway's URL.
            environ: This process's; only what `PASSED_ON` names counts.
        """
        return {
            "STATEROOM_METRICS_LISTEN": "off",  # several instances live side by side
            "STATEROOM_LOG_LEVEL": "warning",  # a line for each request would hide what a person reads
            **chosen(environ),
            "STATEROOM_DATABASE_URL": app_url,
            "STATEROOM_DEPLOYMENT_ID": str(identity.deployment_id),
            "STATEROOM_API_KEY_PEPPER": identity.api_key_pepper,
            "STATEROOM_ROOT_KEY": f"file:{self._root_key_path()}",
            "STATEROOM_S3_URL": self._s3.url(),
            "STATEROOM_ARCHIVE_URL": self._s3.archive_url(),
            "STATEROOM_PUBLIC_URL": public_url,
            "STATEROOM_DRAIN_SECONDS": "0",  # load is not balanced over one process
        }

    def settings(self, identity: Identity, app_url: str, public_url: str, environ: Mapping[str, str]) -> Settings:
        """Return the settings the gateway of this folder runs with; arguments as for `environ`.

        Raises:
            SettingsError: One of those that a person may choose is wrong.
        """
        return Settings.from_environment(self.environ(identity, app_url, public_url, environ))


async def register_keys(store: "Store", identity: Identity) -> None:
    """Make the operator key, the tenant and its service key known to the database, unless they are.

    Raises:
        StorageError: The database cannot serve this now.
    """
    from storage.control.features import DECISIONS, EVENTS
    from storage.model import Tenant
    from storage.scope import OperatorScope, TenantScope

    peppers = identity.peppers
    now = datetime.now(UTC)
    operator, service = (_presented(text) for text in (identity.operator_key, identity.api_key))
    if await store.tenants.look_up_key(operator.key_id) is None:
        record, _ = api_keys.mint(
            peppers, api_keys.NewKey(kind="operator", permissions=("operator",), name=NAME, now=now), operator
        )
        await store.tenants.add_key(OperatorScope(), record)
        await store.upgrades.begin()
    if await store.tenants.look_up_key(service.key_id) is not None:
        return
    tenant = Tenant(tenant_id=identity.tenant_id, name=NAME, created_at=now)
    permissions = api_keys.tenant_permissions(
        may_export=await store.tenants.may_allow_exports(),
        may_hear=store.features.is_switched_on(EVENTS),
        may_decide=store.features.is_switched_on(DECISIONS),
    )
    record, _ = api_keys.mint(
        peppers,
        api_keys.NewKey(kind="service", permissions=permissions, name=NAME, now=now, tenant_id=tenant.tenant_id),
        service,
    )
    await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, record)
    if identity.approver_key is None or not store.features.is_switched_on(DECISIONS):
        return
    # Older than every question: a key younger than that does not decide about it.
    new = api_keys.NewKey(
        kind="service",
        permissions=api_keys.APPROVER,
        grants=(),
        now=now,
        name="approver",
        tenant_id=tenant.tenant_id,
    )
    approver, _ = api_keys.mint(peppers, new, _presented(identity.approver_key))
    await store.tenants.add_key(TenantScope(tenant.tenant_id), approver)


def _presented(text: str) -> api_keys.PresentedKey:
    presented = api_keys.parse(text)
    if presented is None:
        raise Failure("embedded.json holds a key that is not one", hint="Restore it from a backup of the folder.")
    return presented
