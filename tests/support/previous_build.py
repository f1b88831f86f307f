"""The recorded earlier build as an environment of its own: built from this clone's history, kept in `.cache`.

Nothing is fetched from anywhere but uv's cache and, where that lacks something, the registries that the lock names.
What cannot be made is a failure that says how to make it, never a skip: without it nothing is shown about a roll.
"""

import hashlib
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "previous" / "build.toml"


_SYNC = ("sync", "--frozen", "--no-dev", "--no-editable", "--all-packages", "--all-extras")


class PreviousBuildError(Exception):
    """The recorded build cannot be made; the message says what to do."""


class Recorded(NamedTuple):
    """Which build, and the digest of its lock."""

    commit: str
    lock_sha256: str


def recorded() -> Recorded:
    """Read the record."""
    return Recorded(**tomllib.loads(RECORD.read_text()))


def _uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv")
    own = ROOT / ".tools" / "bin" / "uv"
    if found is None and own.exists():
        found = str(own)
    if found is None:
        raise PreviousBuildError("uv is not there: run it as `make mixed`, which installs one in .tools/")
    return str(ROOT / found) if "/" in found else found  # make says where it is from there; it runs elsewhere


def environment(build: Recorded, cache: Path = ROOT / ".cache") -> Path:
    """The folder of a build's virtual environment, made if it is not there.

    Raises:
        PreviousBuildError: It cannot be made.
    """
    folder = cache / f"previous-{build.commit[:12]}"
    done, venv, made = folder / "ready", folder / "venv", " ".join([build.lock_sha256, *_SYNC])
    if done.exists() and done.read_text() == made:
        return venv
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"
    source.mkdir(parents=True)
    _unpack(build, source)
    install(source, venv)
    done.write_text(made)
    return venv


def _unpack(build: Recorded, source: Path) -> None:
    look = ["git", "cat-file", "-e", f"{build.commit}^{{commit}}"]
    known = subprocess.run(look, check=False, cwd=ROOT, capture_output=True)
    if known.returncode:
        raise PreviousBuildError(
            f"commit {build.commit} is not in this clone; run `git fetch --unshallow origin` (or `git fetch origin"
            f" {build.commit}`) in {ROOT}"
        )
    archive = subprocess.run(["git", "archive", build.commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    found = hashlib.sha256((source / "uv.lock").read_bytes()).hexdigest()
    if found != build.lock_sha256:
        raise PreviousBuildError(f"uv.lock of {build.commit} has SHA-256 {found}, and {RECORD} says another one")


def install(source: Path, venv: Path) -> None:
    """Install a build's source and what its lock names.

    Raises:
        PreviousBuildError: That failed.
    """
    command = [_uv(), *_SYNC]
    # The certificates that tests set vouch for nobody.
    plain = {name: text for name, text in os.environ.items() if name not in {"SSL_CERT_FILE", "VIRTUAL_ENV"}}
    environ = plain | {"UV_NATIVE_TLS": "true", "UV_PROJECT_ENVIRONMENT": str(venv)}
    for how in (["--offline"], []):
        made = subprocess.run([*command, *how], check=False, cwd=source, env=environ, capture_output=True, text=True)
        if made.returncode == 0:
            return
    shown = f"UV_PROJECT_ENVIRONMENT={venv} {' '.join(command)}"
    raise PreviousBuildError(f"the build cannot be installed; in {source}, `{shown}` says:\n{made.stderr[-2000:]}")
