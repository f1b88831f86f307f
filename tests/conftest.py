"""Registers the shared engines and the property-test profiles for every suite."""

import gc
import importlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.engines",
    "tests.support.stores",
    "tests.support.interleaving",
    "tests.support.own_database",
    "tests.support.gateway",
    "tests.support.production",
]

# Each HTTP client reads all certificates that it trusts, for some 30 ms, even where it speaks plain HTTP. No test meets
# a server that the system's vouch for: here, and in processes that tests start, it trusts one whose key was thrown
# away. None at all would do for Python, but not for the client in Rust.
os.environ.pop("SSL_CERT_DIR", None)
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "nobody.pem")

# The files of engines live in memory where there is room for those of three workers (3 GiB). A run makes and drops
# thousands of databases, and ext4 looks at every inode that was freed a moment ago before it gives out another: where
# files are on disk, this took up to a quarter of the processor time.
_MEMORY, _FREE_MIN = Path("/dev/shm"), 6 * 2**30


def _has_room(folder: Path) -> bool:
    executable = folder.is_dir() and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return executable and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _FREE_MIN


if "TMPDIR" not in os.environ and _has_room(_MEMORY):
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # it is looked up again

# What imports and collection make stays for the whole run: going over it again and again took a third of a collection.
gc.set_threshold(10_000)

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Keep the collector from going over modules and tests, in the run and at its end."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    """Let each worker of a whole run begin to import elsewhere: what one compiles in a fresh clone, the others read."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    root = session.config.rootpath
    places = session.config.getini("testpaths")
    files = sorted(path for place in places for path in (root / place).rglob("test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in files[begin:] + files[:begin]:
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


@pytest.fixture(autouse=True)
def _logging_as_found():
    """Put back what a test configured in this process: what is left behind writes into the next test's stderr."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
