"""Both builds on one database and one object store: each serves, has its SDK, and may work in the background."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import asyncpg
import httpx
import pytest

from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from tests.previous.earlier_words import EarlierWords
from tests.support.gateway import Tenant
from tests.support.operations import SUBJECT, Tenancy, encoded
from tests.support.previous_build import environment, recorded
from tests.support.production import Deployment

OLD, NEW = "old", "new"
_READY = re.compile(r"is ready on ([^\s;]+)|\"listen\":\"([^\"]+)\"|works in the background|\"event\":\"working\"")
_START_SECONDS_MAX = 60.0
_DRIVER = Path(__file__).with_name("sdk_driver.py")
# Sessions have the name of their build. Nothing is unique here: writers of one table must not wait for each other.
_OBSERVE = """
CREATE SCHEMA observed;
CREATE TABLE observed.writes (name text, application text);
CREATE FUNCTION observed.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $function$
BEGIN
    INSERT INTO observed.writes VALUES (TG_TABLE_NAME, current_setting('application_name'));
    RETURN NULL;
END
$function$;
GRANT USAGE ON SCHEMA observed TO PUBLIC;
DO $block$
DECLARE
    each text;
BEGIN
    FOR each IN SELECT tablename FROM pg_tables WHERE schemaname = 'stateroom' LOOP
        EXECUTE format('CREATE TRIGGER observed AFTER INSERT OR UPDATE OR DELETE ON stateroom.%I'
                       ' FOR EACH ROW EXECUTE FUNCTION observed.note()', each);
    END LOOP;
END
$block$
"""
_WRITERS = """
SELECT t.tablename AS name,
    array(SELECT DISTINCT w.application FROM observed.writes w WHERE w.name = t.tablename
          AND w.application ~ '^stateroom') AS applications
FROM pg_tables t WHERE t.schemaname = 'stateroom'
"""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Process:
    """A `stateroom serve` or `stateroom worker` of one of the builds."""

    def __init__(self, venv: Path, log: Path, environ: dict[str, str], *command: str) -> None:
        self.metrics_port = _free_port()
        self._log = log
        settings = {"STATEROOM_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}", "STATEROOM_LOG_LEVEL": "info"}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [venv / "bin" / "stateroom", *command],
                env={"PATH": os.environ["PATH"], **environ, **settings},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.address = ""

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ready(self) -> Self:
        until = time.monotonic() + _START_SECONDS_MAX
        while not (found := _READY.search(self.log)):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.05)
        self.address = found[1] or found[2] or ""
        return self

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(60) == 0, self.log

    def requests(self) -> list[dict[str, Any]]:
        """What was answered, as the access log has it."""
        lines = (json.loads(line) for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == "request"]

    def integrity_failures(self) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text
        (found,) = re.findall(r"^stateroom_integrity_failures_total (\S+)$", text, re.MULTILINE)
        return float(found)


class Sdk:
    """The SDK of a build, in a process of its environment."""

    def __init__(self, python: Path, url: str, api_key: str, subject: str) -> None:
        self._process = subprocess.Popen(
            [python, "-I", _DRIVER, url, api_key, subject], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([name, arguments]) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["result"]

        return call

    def close(self) -> None:
        self._process.communicate(timeout=30)


class EarlierTenancy(Tenancy):
    """A tenancy of the recorded build, spoken to in its words."""

    @contextlib.contextmanager
    def client(self, api_key: str | None, subject: str | None = None, **headers: str) -> Iterator[httpx.Client]:
        """As `Tenancy.client`."""
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        if subject is not None:
            headers[SUBJECT] = encoded(subject)
        base_url, words = self.gateway.url, EarlierWords()
        with httpx.Client(base_url=base_url, headers=headers, timeout=30, transport=words) as client:
            yield client

    def recipient(self, service_key: str) -> str:
        """As `Tenancy.recipient`: then it was the deployment's, and operators showed it."""
        return super().recipient(self.gateway.operator_key)


class Build:
    """One of the builds as it serves the deployment.

    Attributes:
        statuses: What each of its operations answers when it succeeds, as its own document says.
    """

    def __init__(self, name: str, venv: Path, deployment: Deployment, folder: Path) -> None:
        self.name = name
        self.venv = venv
        self.deployment = deployment
        self._folder = folder
        self._number = 0
        self.serving = self._start("serve", "--no-background")
        self.url = f"http://{self.serving.address}"
        tenancy = EarlierTenancy if name == OLD else Tenancy
        self.tenancy = tenancy(Tenant(self.url, deployment.api_key, deployment.operator_key))
        self.statuses: dict[str, frozenset[int]] = {
            each["operationId"]: frozenset(int(status) for status in each["responses"] if status < "4")
            for methods in httpx.get(f"{self.url}/openapi.json").raise_for_status().json()["paths"].values()
            for each in methods.values()
            if isinstance(each, dict) and "operationId" in each
        }

    def _start(self, *command: str) -> Process:
        self._number += 1
        log = self._folder / f"{self.deployment.database}-{self.name}-{self._number}.log"
        return Process(self.venv, log, self.deployment.environ, *command).ready()

    @contextlib.contextmanager
    def working(self) -> Iterator[Process]:
        """While this build does what is to be done in the background."""
        process = self._start("worker")
        try:
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def sdk(self, subject: str) -> Iterator[Sdk]:
        driver = Sdk(self.venv / "bin" / "python", self.url, self.deployment.api_key, subject)
        try:
            yield driver
        finally:
            driver.close()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of this build on the deployment."""
        own = {
            "PATH": os.environ["PATH"],
            **self.deployment.environ,
            "STATEROOM_URL": self.url,
            "STATEROOM_API_KEY": self.deployment.api_key,
            "STATEROOM_OPERATOR_KEY": self.deployment.operator_key,
        }
        command = [self.venv / "bin" / "stateroom", *arguments]
        return subprocess.run(command, check=False, env=own, capture_output=True, text=True, timeout=120)

    def stop(self) -> None:
        self.serving.stop()


@pytest.fixture(scope="session")
def previous_environment() -> Path:
    return environment(recorded())


@pytest.fixture(scope="module")
async def admin(deployment: Deployment, durable_postgres: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    """The deployment's database, as its superuser; what either build writes there is noted from now on."""
    url = durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "")
    connection = await asyncpg.connect(url)
    await connection.execute(_OBSERVE)
    yield connection
    await connection.close()


async def writers(admin: asyncpg.Connection) -> dict[str, set[str]]:
    """Which of the builds wrote rows, by table."""
    rows = await admin.fetch(_WRITERS)
    return {row["name"]: {OLD if each == "stateroom" else NEW for each in row["applications"]} for row in rows}


@pytest.fixture(scope="module")
async def both(
    deployment: Deployment,
    previous_environment: Path,
    production_dir: Path,
    s3_server: EmbeddedS3,
    admin: asyncpg.Connection,
) -> AsyncIterator[dict[str, Build]]:
    with_store = deployment.with_buckets(s3_server.url(), s3_server.archive_url())
    venvs = {OLD: previous_environment, NEW: Path(sys.prefix)}
    made: dict[str, Build] = {}
    try:
        for name, venv in venvs.items():
            made[name] = await asyncio.to_thread(Build, name, venv, with_store, production_dir)
        yield made
    finally:
        for each in made.values():
            each.stop()
