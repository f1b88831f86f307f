"""The processes of a run: one real gateway with its embedded PostgreSQL, and meters of what they use.

All contenders use this one PostgreSQL: the gateway's database belongs to the gateway, LangGraph's saver and
the raw inserts have databases of their own beside it. Everything is started and stopped by `running`.
"""

import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import psutil

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 60.0
GATEWAY_DATABASE = "stateroom"
PEER_DATABASE = "langgraph"
SEALED_PEER_DATABASE = "langgraph_sealed"
FLOOR_DATABASE = "floor"

_TABLES_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


def python_build() -> str:
    """The interpreter, and which of the options it was built with make it faster."""
    asked = sysconfig.get_config_var("CONFIG_ARGS") or ""
    fast = [name for name, option in (("PGO", "--enable-optimizations"), ("LTO", "--with-lto")) if option in asked]
    return f"{platform.python_version()}, built with {' and '.join(fast) or 'neither PGO nor LTO'}"


class Cpu(NamedTuple):
    """Processor seconds used so far by the client (this process), the gateways, and all of PostgreSQL."""

    client: float
    gateway: float
    postgres: float

    def since(self, earlier: "Cpu") -> "Cpu":
        """What was used after ``earlier``."""
        return Cpu(*(now - before for now, before in zip(self, earlier, strict=True)))


class Memory(NamedTuple):
    """Resident bytes of the client (this process) and of the gateway."""

    client: int
    gateway: int


class Engines:
    """A running gateway and its PostgreSQL.

    Attributes:
        url: Where the gateway answers.
        api_key: A service key of its tenant.
        operator_key: Makes tenants.
        folder: Where the data is.
        gateways: All gateway processes, the first one with the embedded engines.
    """

    def __init__(self, data_dir: Path, environ: dict[str, str], gateway: psutil.Process) -> None:
        self.url = environ["STATEROOM_URL"]
        self.api_key = environ["STATEROOM_API_KEY"]
        self.operator_key = environ["STATEROOM_OPERATOR_KEY"]
        self.folder = data_dir
        # postmaster.pid, by line: process id, folder, start time, port.
        lines = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        self._port = int(lines[3])
        self._password = (data_dir / "postgres.password").read_text()
        self.gateways = [gateway]
        self._postmaster = psutil.Process(int(lines[0]))

    def dsn(self, database: str) -> str:
        """A database's URL as superuser."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{database}"

    def cpu(self) -> Cpu:
        """Processor time so far; the client's is exact, the others' in ticks of 10 ms."""
        return Cpu(
            time.process_time(),
            sum(map(_seconds, self.gateways)),
            _seconds(self._postmaster) + sum(_seconds(child) for child in self._postmaster.children(recursive=True)),
        )

    def memory(self) -> Memory:
        """Resident memory now."""
        return Memory(psutil.Process().memory_info().rss, self.gateways[0].memory_info().rss)

    async def wal_bytes(self) -> int:
        """Bytes of write-ahead log since the cluster was made, whoever wrote them."""
        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            return int(await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
        finally:
            await connection.close()

    async def create_database(self, name: str) -> None:
        """Create an empty database for a contender."""
        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        finally:
            await connection.close()

    async def tables_size(self, database: str) -> int:
        """Bytes of all tables with their indexes and TOAST, as they are: nothing is vacuumed for this."""
        connection = await asyncpg.connect(self.dsn(database))
        try:
            return int(await connection.fetchval(_TABLES_SIZE))
        finally:
            await connection.close()

    def s3_size(self) -> int:
        """Bytes the embedded S3 server occupies, so that nothing is saved by moving it there."""
        folder = self.folder / "s3"
        return sum(found.stat().st_blocks * 512 for found in folder.rglob("*") if found.is_file())

    async def prepare(self) -> dict[str, str]:
        """Create the other contenders' databases.

        Returns:
            Settings of PostgreSQL that decide about durability and speed.

        Raises:
            RuntimeError: Commits are not durable, so that nothing measured would count.
        """
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            found = {name: str(await connection.fetchval(f"SHOW {name}")) for name in names}
        finally:
            await connection.close()
        for database in (PEER_DATABASE, SEALED_PEER_DATABASE, FLOOR_DATABASE):
            await self.create_database(database)
        if (found["fsync"], found["synchronous_commit"]) != ("on", "on"):
            raise RuntimeError("PostgreSQL does not commit durably")
        return found


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@contextmanager
def running(parent: Path | None = None) -> Iterator[Engines]:
    """Start a gateway as a person would, in a temporary folder, and stop and remove all of it.

    Args:
        parent: Where the temporary folder is made; decides which disk is measured.

    Raises:
        RuntimeError: The gateway did not become ready; the message has its last words.
    """
    folder = Path(tempfile.mkdtemp(prefix="stateroom-bench-", dir=parent))
    try:
        with (folder / "gateway.log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from gateway.cli.main import main; main()", "serve", "--embedded"),
                    *("--data-dir", str(folder / "data"), "--write-env", str(folder / "env"), "--port", "0"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            environ = _ready(process, folder)
            yield Engines(folder / "data", environ, psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()  # the engines stop when it is gone
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ready(process: subprocess.Popen[bytes], folder: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not (folder / "env").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the gateway did not start:\n{(folder / 'gateway.log').read_text()[-4000:]}")
        time.sleep(0.05)
    lines = (folder / "env").read_text().splitlines()
    return {name: text.strip("'") for name, _, text in (line.partition("=") for line in lines)}
