"""Gateways as in production: durable PostgreSQL, settings from the environment, any number of processes.

`Deployment` is one database with its secrets and a tenant; `ProductionGateway` is a `stateroom serve` on it. Processes,
those of single commands too, are forked from `tests.support.launcher`, so that one is up in a fraction of a second.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.engine import make_url

from crypto.roots import create_root_key
from crypto.roots.file import FileRootKey
from gateway.authentication import api_keys
from gateway.embedded.postgres import EmbeddedPostgres
from storage.keys.key_seals import Pepper, Peppers
from storage.model import Tenant
from storage.postgres.setup import prepare
from storage.scope import OperatorScope
from storage.service import Store
from tests.support.engines import create_database, drop_database

Command = Callable[..., Awaitable[subprocess.CompletedProcess[bytes]]]

START_SECONDS_MAX = 30.0
PERMISSIONS = ("state:delete", "state:read", "state:write", "subject:act_as", "tenant:admin")
OWNER_PASSWORD, APP_PASSWORD = "o" * 20, "a" * 20  # of the cluster's roles, so the same for every database
_READY = re.compile(r'"listen":"([^"]+)"')
_WORKING = re.compile(r'"event":"working"')


@dataclass
class Deployment:
    """A migrated database and everything `stateroom serve` must be told; `api_key` acts for any subject."""

    database: str
    environ: dict[str, str]
    operator_key: str = field(repr=False)
    api_key: str = field(repr=False)

    def with_buckets(self, s3_url: str, archive_url: str | None = None) -> "Deployment":
        """The same, with an object store, and perhaps one for archives."""
        urls = {"STATEROOM_S3_URL": s3_url} | ({} if archive_url is None else {"STATEROOM_ARCHIVE_URL": archive_url})
        return Deployment(self.database, self.environ | urls, self.operator_key, self.api_key)

    def at_port(self, port: int) -> "Deployment":
        """The same, its database reached through another port."""
        url = make_url(self.environ["STATEROOM_DATABASE_URL"]).set(port=port).render_as_string(False)
        return Deployment(
            self.database, self.environ | {"STATEROOM_DATABASE_URL": url}, self.operator_key, self.api_key
        )


async def migrated(postgres: EmbeddedPostgres) -> str:
    """The name of a new database with the schema; the cluster's roles come with it."""
    database = f"t_{uuid4().hex}"
    await prepare(postgres.superuser_url(), database=database, owner_password=OWNER_PASSWORD, app_password=APP_PASSWORD)
    return database


async def deploy(postgres: EmbeddedPostgres, folder: Path, template: str) -> Deployment:
    """A deployment on a copy of `template`, which `migrated` made and nobody is connected to."""
    database, superuser_url = await create_database(postgres, template, owner="gw_migrate")
    app_url = make_url(superuser_url).set(username="gw_app", password=APP_PASSWORD).render_as_string(False)
    root_key_file = folder / f"{database}.key"
    FileRootKey.create(root_key_file)
    pepper, deployment_id = secrets.token_bytes(32), uuid4()
    peppers = Peppers(Pepper(1, pepper))
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    store = await Store.open(
        app_url, root_key=create_root_key(f"file:{root_key_file}"), deployment_id=deployment_id, connections_max=1
    )
    try:
        operator, operator_key = api_keys.mint(
            peppers, api_keys.NewKey(kind="operator", permissions=("operator",), now=now)
        )
        await store.tenants.add_key(OperatorScope(), operator)
        service, api_key = api_keys.mint(
            peppers, api_keys.NewKey(kind="service", permissions=PERMISSIONS, now=now, tenant_id=tenant.tenant_id)
        )
        await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
    finally:
        await store.close()
    environ = {
        "STATEROOM_DATABASE_URL": app_url,
        "STATEROOM_ROOT_KEY": f"file:{root_key_file}",
        "STATEROOM_API_KEY_PEPPER": pepper.hex(),
        "STATEROOM_DEPLOYMENT_ID": str(deployment_id),
        "STATEROOM_LISTEN": "127.0.0.1:0",
        "STATEROOM_METRICS_LISTEN": "off",
        "STATEROOM_DRAIN_SECONDS": "0",
        "STATEROOM_LOG_LEVEL": "warning",
    }
    return Deployment(database, environ, operator_key, api_key)


class Launcher:
    """The process that forks gateways; see `tests.support.launcher`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def order(self, **what: object) -> int:
        with self._turn:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def run(self, environ: Mapping[str, str], *arguments: object) -> subprocess.CompletedProcess[bytes]:
        """Run one command line of `stateroom` to its end, in a process that knows only ``environ``."""
        place = self.folder / uuid4().hex
        files = {"output": place.with_suffix(".out"), "log": place.with_suffix(".err")}
        command = [str(each) for each in arguments]
        pid = self.order(serve=dict(environ), command=command, **{name: str(file) for name, file in files.items()})
        code = self.order(wait=pid)
        said, logged = (file.read_bytes() for file in files.values())
        return subprocess.CompletedProcess(command, code, said, logged)

    def close(self) -> None:
        self._process.communicate(timeout=30)


class ProductionGateway:
    """One `stateroom serve` process on a deployment, at `url`."""

    _command = ("serve",)
    _begun = _READY

    def __init__(self, launcher: Launcher, deployment: Deployment, *options: str, **settings: str) -> None:
        self.deployment = deployment
        self._options = options
        self.url = ""
        self.pid = 0
        self.log_file = launcher.folder / f"{uuid4().hex}.log"
        self._launcher = launcher
        self._environ = {"PATH": os.environ["PATH"], **deployment.environ} | {
            f"STATEROOM_{name.upper()}": text for name, text in settings.items()
        }

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    async def start(self) -> Self:
        self.log_file.unlink(missing_ok=True)
        command = [*self._command, *self._options]
        self.pid = await asyncio.to_thread(
            self._launcher.order, serve=self._environ, log=str(self.log_file), command=command
        )
        async with asyncio.timeout(START_SECONDS_MAX):
            while not (ready := self._begun.search(self.log if self.log_file.exists() else "")):
                # Another process, whose word is a line in a file: there is nothing to await.
                await asyncio.sleep(0.005)
                assert not self._is_over(), self.log
        self.url = f"http://{ready[1]}" if ready.groups() else ""
        return self

    def _is_over(self) -> bool:
        """Whether it ended, its exit code not yet asked for."""
        stat = Path(f"/proc/{self.pid}/stat")
        return stat.parent.parent.exists() and stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def wait(self) -> int:
        """Its exit code; negative: the signal that ended it."""
        pid, self.pid = self.pid, 0
        return await asyncio.to_thread(self._launcher.order, wait=pid)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        self.send(signal.SIGTERM)
        return await self.wait()

    def client(self, subject: str = "user-1", api_key: str | None = None) -> httpx.AsyncClient:
        """A plain HTTP client that speaks as a subject of the deployment's tenant."""
        headers = {"Authorization": f"Bearer {api_key or self.deployment.api_key}", "Stateroom-Subject": subject}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, limits=limits)


class ProductionWorker(ProductionGateway):
    """One `stateroom worker` process on a deployment; it has no `url`."""

    _command = ("worker",)
    _begun = _WORKING


class EmbeddedGateway(ProductionGateway):
    """One `stateroom serve --embedded` on a folder, which holds its keys."""

    _command = ("serve", "--embedded", "--port", "0")
    _begun = re.compile(r"URL +http://(\S+)")

    def __init__(self, launcher: Launcher, data_dir: Path) -> None:
        super().__init__(launcher, Deployment("", {}, "", ""), "--data-dir", str(data_dir))
        self._identity = data_dir / "embedded.json"

    async def start(self) -> Self:
        await super().start()
        keys = json.loads(self._identity.read_text())
        self.deployment = Deployment("", {}, keys["operator_key"], keys["api_key"])
        return self


@asynccontextmanager
async def serving(
    launcher: Launcher, deployment: Deployment, *options: str, **settings: str
) -> AsyncIterator[ProductionGateway]:
    gateway = await ProductionGateway(launcher, deployment, *options, **settings).start()
    try:
        yield gateway
    finally:
        if gateway.pid:
            await gateway.stop()


@pytest.fixture(scope="session")
def production_dir() -> Iterator[Path]:
    # Not pytest's own folder: its parents are closed to the unprivileged user PostgreSQL runs as.
    path = Path(tempfile.mkdtemp(prefix="stateroom-production-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def durable_postgres(production_dir: Path) -> Iterator[EmbeddedPostgres]:
    """PostgreSQL with fsync on: a gateway serves from no other outside `--embedded`."""
    with EmbeddedPostgres(production_dir) as engine:
        yield engine


@pytest.fixture(scope="session")
def launcher(production_dir: Path) -> Iterator[Launcher]:
    made = Launcher(production_dir)
    yield made
    made.close()


@pytest.fixture
def stateroom(launcher: Launcher) -> Command:
    """Runs a command of the command line against a gateway."""

    async def execute(gateway: ProductionGateway, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        environ = {
            "PATH": os.environ["PATH"],
            **gateway.deployment.environ,
            "STATEROOM_URL": gateway.url,
            "STATEROOM_API_KEY": gateway.deployment.api_key,
            "STATEROOM_SUBJECT": "user-1",
        }
        return await asyncio.to_thread(launcher.run, environ, *arguments)

    return execute


@pytest.fixture(scope="session")
async def durable_template(durable_postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of a database with the schema, to deploy copies of."""
    name = await migrated(durable_postgres)
    yield name
    await drop_database(durable_postgres, name)


@pytest.fixture(scope="module")
async def deployment(
    durable_postgres: EmbeddedPostgres, durable_template: str, production_dir: Path
) -> AsyncIterator[Deployment]:
    made = await deploy(durable_postgres, production_dir, durable_template)
    yield made
    await drop_database(durable_postgres, made.database)
