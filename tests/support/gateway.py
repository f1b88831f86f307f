"""A real gateway in a process of its own, started as any user would: ``stateroom serve --embedded``."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support import tenants

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30


class GatewayProcess:
    """One gateway on one data folder. Starting again after `stop` or `kill` serves the same keys.

    ``environ`` holds what the process is told beside its command line (``STATEROOM_LOG_LEVEL``...).
    """

    def __init__(self, data_dir: Path, environ: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._environ = dict(environ or {})
        self.env_file = data_dir.with_name(data_dir.name + ".env")
        self.log_file = data_dir.with_name(data_dir.name + ".log")
        self.url = ""
        self.api_key = ""
        self.operator_key = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def database_dsn(self) -> str:
        """For asyncpg: the gateway's own database, as the superuser of its embedded PostgreSQL."""
        # Line 4 of the lock file is the port (PostgreSQL source, miscadmin.h, LOCK_FILE_LINE_PORT).
        port = (self.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[3]
        password = (self.data_dir / "postgres.password").read_text()
        return f"postgresql://postgres:{password}@127.0.0.1:{port}/stateroom"

    def start(self) -> Self:
        self.env_file.unlink(missing_ok=True)
        command = Path(sys.executable).with_name("stateroom")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(command, "serve", "--embedded", "--data-dir", self.data_dir),
                    *("--port", "0", "--write-env", self.env_file),
                ],
                stdout=log,
                stderr=log,
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("STATEROOM_")},
                    **self._environ,
                },
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.env_file.exists():
            try:
                code = self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill()
                raise AssertionError(f"the gateway was not ready in {START_SECONDS_MAX} s:\n{self.log}") from None
            raise AssertionError(f"the gateway ended with {code} before it was ready:\n{self.log}")
        text = self.env_file.read_text()
        values = dict(line.split("=", 1) for line in shlex.split(text))
        self.url = values["STATEROOM_URL"]
        self.api_key = values["STATEROOM_API_KEY"]
        self.operator_key = values["STATEROOM_OPERATOR_KEY"]
        return self

    def stop(self) -> int:
        """SIGTERM, and wait."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(how)
        return process.wait(STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Tenant(NamedTuple):
    """A tenant of its own at a gateway that others use too."""

    url: str
    api_key: str
    operator_key: str
    founding_key: str = ""


def new_tenant(gateway: GatewayProcess) -> Tenant:
    """A tenant that nobody else knows, with the key that may do everything in it."""
    made = tenants.new_tenant(gateway.url, gateway.operator_key)
    return Tenant(gateway.url, made["api_key"], gateway.operator_key, made["founding_key"])


@pytest.fixture(scope="session")
def running_gateway() -> Iterator[GatewayProcess]:
    folder = Path(tempfile.mkdtemp(prefix="stateroom-gateway-"))
    try:
        with GatewayProcess(folder / "data") as gateway:
            yield gateway
    finally:
        shutil.rmtree(folder, ignore_errors=True)
