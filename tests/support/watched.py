"""A deployment that a real Prometheus looks at with the rules of `deploy/`: engines of its own, two gateways, a worker.

What is scraped and how often is the tests'; rules, jobs and Alertmanager's routes are the shipped ones, unchanged.
"""

import asyncio
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import yaml
from sqlalchemy.engine import make_url

from gateway.embedded.postgres import EmbeddedPostgres, postgres_programs
from gateway.embedded.s3 import EmbeddedS3
from tests.support.metrics import free_port
from tests.support.production import (
    OWNER_PASSWORD,
    Deployment,
    Launcher,
    ProductionGateway,
    ProductionWorker,
    deploy,
    migrated,
)
from tests.support.promql import PROMETHEUS

SCRAPE_SECONDS = 1
PATIENCE_SECONDS = 60.0
OPS_PASSWORD = "p" * 20


class Server:
    """A program with an address of its own, told to stop when it is not needed any more."""

    def __init__(self, command: list[str], port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log_file = folder / f"{Path(command[0]).name}.log"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    async def ready(self, path: str = "/-/ready") -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as client:
            while True:
                assert self._process.poll() is None, self.log_file.read_text()
                try:
                    if (await client.get(self.url + path)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Prometheus(Server):
    """A Prometheus with the shipped rules, and targets by job.

    Args:
        program: Where it is.
        folder: For its data and its configuration.
        targets: Addresses by job.
        alertmanager: The address of an Alertmanager, or None.
    """

    def __init__(
        self, program: str, folder: Path, targets: Mapping[str, list[str]], alertmanager: str | None = None
    ) -> None:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
        config["rule_files"] = [str(PROMETHEUS / each) for each in config["rule_files"]]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets.get(job["job_name"], [])}]
        found = [] if alertmanager is None else [alertmanager]
        config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": found}]}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        port = free_port()
        super().__init__(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            port,
            folder,
        )

    async def ask(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now.

        Raises:
            AssertionError: Prometheus refuses the expression.
        """
        async with httpx.AsyncClient() as client:
            answer = (await client.get(f"{self.url}/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def until(self, expression: str, *, seconds: float = PATIENCE_SECONDS) -> list[dict[str, Any]]:
        """What an expression has as soon as it has something."""
        async with asyncio.timeout(seconds):
            while True:
                if found := await self.ask(expression):
                    return found
                await asyncio.sleep(0.2)


class Alertmanager(Server):
    """An Alertmanager with the shipped routes and inhibitions, that tells each receiver's alerts at once to an address.

    Args:
        program: Where it is.
        folder: For its data and its configuration.
        told: An address of HTTP; the receiver's name is the path.
    """

    def __init__(self, program: str, folder: Path, told: str) -> None:
        config = yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text())
        at_once = {"group_wait": "0s", "group_interval": "1s"}
        config["route"] |= at_once
        config["route"]["routes"] = [route | at_once for route in config["route"]["routes"]]
        config["receivers"] = [
            {"name": each["name"], "webhook_configs": [{"url": f"{told}/{each['name']}"}]}
            for each in config["receivers"]
        ]
        file = folder / "alertmanager.yml"
        file.write_text(yaml.safe_dump(config))
        port = free_port()
        super().__init__(
            [
                program,
                f"--config.file={file}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ],
            port,
            folder,
        )

    async def alerts(self) -> dict[str, str]:
        """The state, ``active`` or ``suppressed``, of each alert by its name."""
        async with httpx.AsyncClient() as client:
            answer = (await client.get(f"{self.url}/api/v2/alerts")).json()
        return {each["labels"]["alertname"]: each["status"]["state"] for each in answer}


@dataclass
class Watched:
    """A deployment with its processes; `environ` is what runbooks say that their commands take."""

    folder: Path
    postgres: EmbeddedPostgres
    s3: EmbeddedS3
    deployment: Deployment
    gateways: list[ProductionGateway]
    worker: ProductionWorker
    metrics: dict[str, list[str]]
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> list[ProductionGateway]:
        """Gateways and worker."""
        return [*self.gateways, self.worker]

    async def stop(self) -> None:
        """Stop all of them."""
        for process in self.processes:
            await process.stop()

    async def start(self) -> None:
        """Start them again, where they were."""
        for process in self.processes:
            await process.start()

    async def shell(self, script: str, *, stops: bool = True) -> tuple[int, str]:
        """What a script of a page said, and its exit code; the first command that fails ends it if ``stops``."""
        process = await asyncio.create_subprocess_exec(
            "bash", *(("-e",) if stops else ()), "-uo", "pipefail", "-c", script, env=self.environ, cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()


@asynccontextmanager
async def watched_deployment(
    launcher: Launcher, tool: Callable[[str], str], disk: Path | None = None
) -> AsyncIterator[Watched]:
    """Engines, processes and what they are known by, while the block runs; the database is on ``disk``, if given."""
    # Not pytest's own folder: its parents are closed to the unprivileged user PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="stateroom-watched-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        postgres = stack.enter_context(EmbeddedPostgres(disk or folder))
        s3 = stack.enter_context(EmbeddedS3(folder))
        deployment = (await deploy(postgres, folder, await migrated(postgres))).with_buckets(s3.url(), s3.archive_url())
        gateways, metrics = [], {}
        for kind, count in ((ProductionGateway, 2), (ProductionWorker, 1)):
            addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
            metrics["stateroom-worker" if kind is ProductionWorker else "stateroom-gateway"] = addresses
            for address in addresses:
                options = () if kind is ProductionWorker else ("--no-background",)
                settings = {"listen": f"127.0.0.1:{free_port()}", "metrics_listen": address, "log_level": "info"}
                made = await kind(launcher, deployment, *options, **settings).start()
                stack.push_async_callback(_ended, made)
                gateways.append(made)
        *serving, worker = gateways
        assert isinstance(worker, ProductionWorker)
        found = Watched(folder, postgres, s3, deployment, serving, worker, metrics)
        found.environ = await _environ(found, tool)
        yield found


async def used(watched: Watched) -> None:
    """Let clients do a little of everything that a metric counts, well and badly."""
    gateway = watched.gateways[0]
    async with gateway.client() as client, watched.gateways[1].client() as other:
        for number in range(5):
            for thread in ("trip-1", "trip-2"):
                saved = await client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": number}})
                assert saved.status_code == 201, saved.text
                assert (await other.get(f"/v1/threads/{thread}/checkpoints/latest")).status_code == 200
        assert (await client.get("/v1/threads/none/checkpoints/latest")).status_code == 404
        assert (await client.get("/v1/admin/tenants")).status_code == 403
        assert (await client.get("/v1/whoami", headers={"Authorization": "Bearer wrong"})).status_code == 401
        headers = {"Content-Type": "image/png", "Stateroom-Artifact-Name": "seen.png"}
        made = await client.post("/v1/threads/trip-1/artifacts", content=b"x" * 1000, headers=headers)
        assert made.status_code == 201, made.text
        asked = await client.put("/v1/retention", json={"idle_ttl_seconds": 86_400})
        assert asked.status_code in (200, 201, 204), asked.text
        archived = await client.post("/v1/threads/trip-2/archive")
        assert archived.status_code in (200, 202), archived.text
        assert (await client.get("/readyz")).status_code == 200


@asynccontextmanager
async def job_that_waits(watched: Watched) -> AsyncIterator[str]:
    """The id of a rotation that cannot end while the block runs: a transaction from before it is still open."""
    connection = await asyncpg.connect(watched.environ["STATEROOM_DATABASE_URL"])
    try:
        await connection.execute("BEGIN; SELECT 1")
        async with watched.gateways[0].client() as client:
            rotated = await client.post("/v1/keys:rotate", json={"level": "subject", "subject_id": "user-1"})
        assert rotated.status_code in (200, 202), rotated.text
        yield rotated.json()["job_id"]
    finally:
        await connection.close()


async def _ended(process: ProductionGateway) -> None:
    if process.pid:
        await process.stop()


async def _environ(found: Watched, tool: Callable[[str], str]) -> dict[str, str]:
    deployment, postgres = found.deployment, found.postgres
    admin = make_url(postgres.superuser_url(deployment.database)).set(drivername="postgresql")
    connection = await asyncpg.connect(admin.render_as_string(False))
    await connection.execute(f"ALTER ROLE gw_ops PASSWORD '{OPS_PASSWORD}'")
    await connection.close()
    logs = found.folder / "logs"
    files = [shlex.quote(str(each.log_file)) for each in found.processes]
    logs.write_text(f"#!/bin/sh\ncat {' '.join(files)}\n")
    logs.chmod(0o755)
    programs = [found.folder, postgres_programs(), Path(sys.executable).parent, Path(tool("promtool")).parent]
    gateway = found.gateways[0]
    async with gateway.client() as client:
        tenant_id = (await client.get("/v1/whoami")).json()["tenant_id"]

    def url(role: str, password: str) -> str:
        return admin.set(username=role, password=password).render_as_string(False)

    return {
        **deployment.environ,
        "PATH": ":".join([*map(str, programs), "/usr/bin", "/bin", "/usr/sbin"]),
        "STATEROOM_DATABASE_URL": url("gw_app", make_url(deployment.environ["STATEROOM_DATABASE_URL"]).password or ""),
        "STATEROOM_DATABASE_OWNER_URL": url("gw_migrate", OWNER_PASSWORD),
        "STATEROOM_URL": gateway.url,
        "STATEROOM_OPERATOR_KEY": deployment.operator_key,
        "STATEROOM_API_KEY": deployment.api_key,
        "OPS_URL": url("gw_ops", OPS_PASSWORD),
        "ADMIN_URL": admin.render_as_string(False),
        "METRICS": f"http://{found.metrics['stateroom-gateway'][0]}",
        "TENANT_ID": tenant_id,
        "SUBJECT": "user-1",
    }
