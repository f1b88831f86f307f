"""What the tests of ``deploy/`` share: its files, and the tools that run them (``make deployed``).

A tool that is missing is a failure that names its package, not a skip: whoever runs this target wants to know that
everything ran. What needs no tool besides the locked environment has no mark, and belongs to the default suite.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

# Debian's package of each program.
PACKAGES = {
    "amtool": "prometheus-alertmanager",
    "alertmanager": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "buildah": "buildah",
    "haproxy": "haproxy",
    "kubectl": "kubectl",
    "nginx": "nginx",
    "pgbouncer": "pgbouncer",
    "podman": "podman",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "shellcheck": "shellcheck",
    "systemd-analyze": "systemd",
}


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """The path of a program by its name; what is missing fails the test with the name of its package."""
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))

    def find(name: str) -> str:
        found = shutil.which(name, path=path)
        if found is None:
            pytest.fail(f"{name} is missing: apt-get install {PACKAGES.get(name, name)}", pytrace=False)
        return found

    return find
