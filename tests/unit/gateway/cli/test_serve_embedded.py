"""`stateroom serve --embedded` as a person runs it: a process, real engines, real signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STATEROOM = (sys.executable, "-c", "from gateway.cli.main import main; main()")
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 40.0


def stateroom(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STATEROOM_")}
    return subprocess.run(
        [*STATEROOM, *arguments],
        capture_output=True,
        text=True,
        env=clean | (environ or {}),
        timeout=60,
        check=False,
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
            )

    def ready(self) -> dict[str, str]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.env_file.exists():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.02)  # another process: there is nothing to await
        return dict(line.replace("'", "").split("=", 1) for line in self.env_file.read_text().splitlines())

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(STOP_SECONDS_MAX)
        self.env_file.unlink(missing_ok=True)
        return code


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
        environ = first.ready()
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

    with serving(data_dir) as again:
        after = again.ready()
        assert after["STATEROOM_API_KEY"] == environ["STATEROOM_API_KEY"]
        assert after["STATEROOM_OPERATOR_KEY"] == environ["STATEROOM_OPERATOR_KEY"]
        shown = stateroom("thread", "show", "trip-7", "--json", "--subject", "user-42", environ=after)
        assert json.loads(shown.stdout) == json.loads(kept.stdout)
        assert again.stop(signal.SIGTERM) == 0
    for engine in ("postgres", "s3"):
        assert not (data_dir / f"{engine}.pid").exists()
    gone = stateroom("thread", "list", "--subject", "user-42", environ=after)
    assert gone.returncode == 5
    assert "Traceback" not in gone.stderr


def test_two_gateways_live_side_by_side_and_know_nothing_of_each_other(folder):
    with serving(folder / "a") as one, serving(folder / "b") as two:
        first, second = one.ready(), two.ready()
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
