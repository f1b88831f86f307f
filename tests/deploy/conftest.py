"""What the tests of ``deploy/`` share: its files, and the tools that run them (``make deployed``).

A tool that is missing is a failure that names its package, not a skip: whoever runs this target wants to know that
everything ran. What needs no tool besides the locked environment has no mark, and belongs to the default suite.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.support import containers
from tests.support.production import Launcher
from tests.support.watched import Prometheus, Watched, watched_deployment

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

# Debian's package of each program.
PACKAGES = {
    "amtool": "prometheus-alertmanager",
    "alertmanager": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "buildah": "buildah",
    "curl": "curl",
    "haproxy": "haproxy",
    "iptables": "iptables",
    "kubectl": "kubectl",
    "mmdebstrap": "mmdebstrap",
    "nginx": "nginx",
    "openssl": "openssl",
    "pgbouncer": "pgbouncer",
    "podman": "podman",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "runc": "runc",
    "ssh-keygen": "openssh-client",
    "shellcheck": "shellcheck",
    "systemd-analyze": "systemd",
}


def installed(name: str) -> Path:
    """A folder with the packages of ``tests/deploy/NAME.txt``, which the project's own environment does without.

    They are installed when first asked for, by uv, as locked by their digests.
    """
    folder, listed = ROOT / ".cache" / "deployed" / name, Path(__file__).with_name(f"{name}.txt")
    done = folder / "installed.txt"
    if not done.exists() or done.read_text() != listed.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        uv = os.environ.get("UV") or shutil.which("uv") or ROOT / ".tools" / "bin" / "uv"
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable]
        # With the system's certificates, which the tests' own clients do without.
        environ = {name: text for name, text in os.environ.items() if name != "SSL_CERT_FILE"}
        environ["UV_NATIVE_TLS"] = "true"
        subprocess.run([*command, "--target", folder, "--requirements", listed], check=True, cwd=ROOT, env=environ)
        done.write_text(listed.read_text())
    return folder


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """The path of a program by its name; what is missing fails the test with the name of its package."""
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin", "/usr/lib/podman"))

    def find(name: str) -> str:
        found = shutil.which(name, path=path)
        if found is None:
            pytest.fail(f"{name} is missing: apt-get install {PACKAGES.get(name, name)}", pytrace=False)
        return found

    return find


@pytest.fixture(scope="module")
async def watched(launcher: Launcher, tool: Callable[[str], str]) -> AsyncIterator[Watched]:
    """A deployment of two gateways and a worker on engines of its own, and what runbooks take."""
    async with watched_deployment(launcher, tool) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(watched: Watched, tool: Callable[[str], str]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes it every second, with the shipped rules."""
    made = Prometheus(tool("prometheus"), watched.folder, watched.metrics)
    watched.environ["PROMETHEUS"] = made.url
    yield made
    made.stop()


@pytest.fixture(scope="session")
def podman(tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> containers.Podman:
    """Podman, and what it needs here."""
    for name in ("runc", "iptables", "mmdebstrap", "netavark", "aardvark-dns"):
        tool(name)
    return containers.Podman(tool("podman"), tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of this tree."""
    return containers.release(tmp_path_factory.mktemp("release") / "dist")


@pytest.fixture(scope="session")
def gateway_image(podman: containers.Podman, dist: Path) -> str:
    """The image of that release."""
    return containers.gateway_image(podman, dist)
