"""Further gateway processes on the embedded PostgreSQL of a run, as a deployment with several would start them.

They get the settings of the embedded gateway's folder through the environment and do nothing in the background. On
the same database they serve the same state with the same keys; a database of another name is made for them, and has
no object store: values stay in PostgreSQL.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import psutil

from benchmarks.engines import GATEWAY_DATABASE, START_SECONDS_MAX, STOP_SECONDS_MAX, Engines
from gateway.app import open_app
from gateway.cli.local.instance import Instance, register_keys
from gateway.settings import Settings
from gateway.telemetry import configure_logging
from storage.postgres.setup import prepare

_READY = re.compile(r'"listen":"([^"]+)"[^\n]*"event":"ready"')


async def _settings(engines: Engines, database: str, connections_max: int) -> Settings:
    """The embedded gateway's settings for ``database``, which gets its schema and the keys of the run."""
    owned = Instance(engines.folder)
    identity = owned.join()
    try:
        app_url = await owned.prepare(identity)
        if database != GATEWAY_DATABASE:
            _, app_url = await prepare(
                engines.dsn("postgres").replace("postgresql://", "postgresql+asyncpg://", 1),
                database=database,
                owner_password=identity.owner_password,
                app_password=identity.app_password,
            )
        settings = owned.settings(identity, app_url, engines.url, {})
    finally:
        owned.stop()  # which leaves alone what another process started
    settings = msgspec.structs.replace(settings, database_connections_max=connections_max)
    if database != GATEWAY_DATABASE:
        # The buckets belong to the other database: what is anchored there is missing in this one.
        settings = msgspec.structs.replace(settings, s3_url=None, archive_url=None)
        configure_logging(settings.log_level)
        async with open_app(settings, background=False) as app:
            await register_keys(app.services.store, identity)
    return settings


def _environ(settings: Settings) -> dict[str, str]:
    given = {
        "DATABASE_URL": settings.database_url,
        "DATABASE_CONNECTIONS_MAX": str(settings.database_connections_max),
        "DEPLOYMENT_ID": str(settings.deployment_id),
        "API_KEY_PEPPER": settings.api_key_pepper.hex(),
        "ROOT_KEY": settings.root_key,
        "S3_URL": settings.s3_url or "",
        "ARCHIVE_URL": settings.archive_url or "",
        "METRICS_LISTEN": "off",
        "LOG_LEVEL": settings.log_level,
        "DRAIN_SECONDS": "0",
    }
    return {f"STATEROOM_{name}": text for name, text in given.items()}


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS_MAX
    while (ready := _READY.search(log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a further gateway did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)
    return ready[1]


@contextmanager
def _process(engines: Engines, settings: Settings, log: Path) -> Iterator[str]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from gateway.cli.main import main; main()"),
                *("serve", "--port", "0", "--no-background"),
            ],
            env=_environ(settings),
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://{_address(process, log)}"
        engines.gateways.append(known := psutil.Process(process.pid))
        yield url
        engines.gateways.remove(known)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def serving(
    engines: Engines, count: int, *, database: str = GATEWAY_DATABASE, connections_max: int = 16
) -> AsyncIterator[list[str]]:
    """Start ``count`` gateways on ``database`` of the run's PostgreSQL; give their URLs, and stop them at the end.

    Raises:
        RuntimeError: One did not become ready; the message has its last words.
    """
    settings = await _settings(engines, database, connections_max)
    with ExitStack() as stack:
        urls = [
            await asyncio.to_thread(
                stack.enter_context,
                _process(engines, settings, engines.folder.parent / f"gateway-{database}-{number}.log"),
            )
            for number in range(count)
        ]
        yield urls
