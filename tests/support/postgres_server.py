"""PostgreSQL 18 as a server of its own: archived from, killed, restored, promoted."""

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypedDict

from gateway.embedded.postgres import EmbeddedPostgres, postgres_programs
from tests.support.metrics import free_port

SECONDS_MAX = 60.0
# What a machine of tests has less of than the one that the fragment is for.
SMALL = {"shared_buffers": "64MB", "max_wal_size": "256MB", "min_wal_size": "80MB"}


class Account(TypedDict, total=False):
    """The arguments of `subprocess` that become the user who may run PostgreSQL."""

    user: int
    group: int
    extra_groups: list[int]


class PostgresServer:
    """A server on a data folder, listening on 127.0.0.1; ``settings`` win over all files.

    Args:
        environ: What its commands see besides the search path.

    Attributes:
        fsync: As `EmbeddedPostgres` says it.
        data: Its data folder.
        port: Where it listens.
        password: Its superuser's, ``postgres``.
    """

    fsync = True

    def __init__(self, data: Path, password: str, environ: Mapping[str, str], **settings: str) -> None:
        self.data, self.password, self.port = data, password, free_port()
        self._environ, self._settings = environ, SMALL | settings
        self._process: subprocess.Popen[bytes] | None = None
        self.log_file = data.with_name(f"{data.name}.log")

    @classmethod
    def create(cls, folder: Path, environ: Mapping[str, str], **settings: str) -> Self:
        """A new cluster in a folder, not started."""
        with EmbeddedPostgres(folder):
            pass
        return cls(folder / "postgres", (folder / "postgres.password").read_text(), environ, **settings)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def account(self) -> Account:
        """Who runs it, where root runs this."""
        if os.geteuid():
            return {}
        found = self.data.stat()
        return {"user": found.st_uid, "group": found.st_gid, "extra_groups": []}

    @property
    def owner(self) -> str:
        return pwd.getpwuid(self.data.stat().st_uid).pw_name

    def superuser_url(self, database: str = "postgres") -> str:
        """As `EmbeddedPostgres` says it."""
        return f"postgresql+asyncpg://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def libpq(self, user: str = "postgres", password: str | None = None) -> dict[str, str]:
        """The environment in which libpq's programs find it."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": user,
            "PGPASSWORD": password or self.password,
        }

    def start(self) -> Self:
        """Start it, and return when it takes connections.

        Raises:
            AssertionError: It ended, or did not say so in time; with its log.
        """
        settings = {
            "listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "", **self._settings
        }  # fmt: skip
        options = [part for name, text in settings.items() for part in ("-c", f"{name}={text}")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [postgres_programs() / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                env={"PATH": os.environ["PATH"], **self._environ}, **self.account,
            )  # fmt: skip
        until = time.monotonic() + SECONDS_MAX
        ready = [postgres_programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.05)  # another program, which nothing can be awaited of
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it cleanly; one that is stopped stays so."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Let it die with all its processes, as with the machine."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            if number is signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
            self._process.wait(SECONDS_MAX)
