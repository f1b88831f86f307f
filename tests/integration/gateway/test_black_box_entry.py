"""`stateroom serve --embedded` as a person runs it: a process, real engines, real signals."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

STATEROOM = (str(Path(sys.executable).with_name("stateroom")),)
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 40.0


def stateroom(
    *arguments: str, environ: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STATEROOM_")}
    return subprocess.run(
        [*STATEROOM, *arguments],
        capture_output=True,
        text=True,
        env=clean | (environ or {}),
        timeout=60,
        check=False,
        cwd=cwd,
    )


class Serving:
    def __init__(self, data_dir: Path) -> None:
        self.env_file = data_dir.parent / f"{data_dir.name}.env"
        self.errors = data_dir.parent / f"{data_dir.name}.stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    *STATEROOM,
                    "serve",
                    "--embedded",
                    f"--data-dir={data_dir}",
                    "--port=0",
                    f"--write-env={self.env_file}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if not name.startswith("STATEROOM_")},
            )

    def ready(self, but_not: int | None = None) -> dict[str, str]:
        """Wait for the file, and that it is not the one of another run with this number."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.env_file.exists() or self.env_file.stat().st_ino == but_not:
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.02)  # another process: there is nothing to await
        return dict(line.replace("'", "").split("=", 1) for line in self.env_file.read_text().splitlines())

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS_MAX)


@contextmanager
def serving(data_dir: Path) -> Iterator[Serving]:
    found = Serving(data_dir)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
            found.process.wait(STOP_SECONDS_MAX)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own folder: its parents are closed to the unprivileged user PostgreSQL runs as.
    path = Path(tempfile.mkdtemp(prefix="stateroom-cli-"))
    yield path
    shutil.rmtree(path)


def test_the_whole_life_of_an_embedded_gateway(folder):
    data_dir = folder / "data"
    with serving(data_dir) as first:
        # It reads the file at the first moment there is one: it is whole, and the gateway is ready.
        environ = first.ready()
        keys = {"STATEROOM_API_KEY", "STATEROOM_APPROVER_KEY", "STATEROOM_OPERATOR_KEY"}
        assert set(environ) == {"STATEROOM_URL", *keys}
        with urllib.request.urlopen(f"{environ['STATEROOM_URL']}/readyz", timeout=10) as answer:  # noqa: S310 - its own
            assert json.load(answer)["ready"] is True
        assert sorted(path.name for path in folder.iterdir()) == ["data", "data.env", "data.stderr"]
        assert first.env_file.stat().st_mode & 0o777 == 0o600
        shown = first.errors.read_text()
        assert environ["STATEROOM_URL"] in shown
        assert environ["STATEROOM_API_KEY"] not in shown
        assert environ["STATEROOM_OPERATOR_KEY"] not in shown
        for name in ("embedded.json", "root.key"):
            assert (data_dir / name).stat().st_mode & 0o777 == 0o600

        tenants = stateroom("tenant", "list", "--json", environ=environ)
        assert [json.loads(line)["name"] for line in tenants.stdout.splitlines()] == ["embedded"]
        acting = environ | {"STATEROOM_SUBJECT": "user-42"}
        kept = stateroom("thread", "settings", "trip-7", "--agent", "travel", "--json", environ=acting)
        assert kept.returncode == 0, kept.stderr

        second = stateroom("serve", "--embedded", "--data-dir", str(data_dir), "--port", "0")
        assert second.returncode == 1
        assert f"process {first.process.pid}" in second.stderr
        assert first.env_file.exists()

        first.stop(signal.SIGKILL)
        killed = first.env_file.stat().st_ino

    with serving(data_dir) as again:
        # What a killed run left is gone as soon as another one has the folder, long before that one is ready.
        after = again.ready(but_not=killed)
        assert after["STATEROOM_API_KEY"] == environ["STATEROOM_API_KEY"]
        assert after["STATEROOM_OPERATOR_KEY"] == environ["STATEROOM_OPERATOR_KEY"]
        shown = stateroom("thread", "show", "trip-7", "--json", "--subject", "user-42", environ=after)
        assert json.loads(shown.stdout) == json.loads(kept.stdout)
        family = psutil.Process(again.process.pid).children(recursive=True)
        assert len(family) > 2
        assert again.stop(signal.SIGTERM) == 0
        assert not again.env_file.exists()  # nobody answers there any more
        assert [process for process in family if process.is_running()] == []
    for engine in ("postgres", "s3"):
        assert not (data_dir / f"{engine}.pid").exists()
    gone = stateroom("thread", "list", "--subject", "user-42", environ=after)
    assert gone.returncode == 5
    assert "Traceback" not in gone.stderr


def test_two_gateways_live_side_by_side_and_know_nothing_of_each_other(folder, running_gateway):
    second = dict(line.split("=", 1) for line in shlex.split(running_gateway.env_file.read_text()))
    with serving(folder / "a") as one:
        first = one.ready()
        assert len({first["STATEROOM_URL"], second["STATEROOM_URL"]}) == 2
        crossed = first | {"STATEROOM_API_KEY": second["STATEROOM_API_KEY"]}
        assert stateroom("api-key", "list", environ=crossed).returncode == 4
        assert one.stop(signal.SIGINT) == 0
        assert stateroom("api-key", "list", environ=second).returncode == 0


def test_a_stop_during_the_start_is_a_clean_one(folder):
    with serving(folder / "data") as starting:
        while not (folder / "data" / "serve.lock").exists():
            time.sleep(0.01)  # another process: there is nothing to await
        assert starting.stop(signal.SIGTERM) == 0
        assert not starting.env_file.exists()


def test_a_database_without_its_secrets_is_not_given_new_ones(folder):
    (folder / "data" / "postgres").mkdir(parents=True)
    refused = stateroom("serve", "--embedded", "--data-dir", str(folder / "data"), "--port", "0")
    assert refused.returncode == 1
    assert "embedded.json is missing" in refused.stderr
    assert not (folder / "data" / "embedded.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["serve", "--data-dir", "x"], 2, "need --embedded"),
        (["serve", "--embedded", "--port", "70000"], 2, "70000"),
        (["serve", "--embedded", "--listen", "nowhere"], 2, "HOST:PORT"),
        (["serve", "--embedded", "--write-env", "/no/such/folder/env"], 1, "does not exist"),
        (["serve", "--embedded", "--write-env", "e" * 250], 1, "File name too long"),
        (["serve"], 2, "STATEROOM_DATABASE_URL_FILE is not set"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_explained_and_starts_nothing(folder, arguments, code, says):
    refused = stateroom(*arguments, cwd=folder)
    assert refused.returncode == code, refused.stderr
    assert says in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    assert list(folder.iterdir()) == []


def test_the_installed_command_is_this_one(folder):
    command = Path(sys.executable).with_name("stateroom")
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=folder, check=True)
    assert shown.stdout.strip()
