"""A machine with systemd, as an operator has it: Debian in a container of podman's, with a venv in ``/opt/stateroom``.

It shares this machine's network, so that what listens on loopback here is reached from there. Its image is made once
for a set of locked requirements and kept by podman; the wheels of this checkout are for each container to install.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = "systemd,systemd-sysv,dbus,python3-venv"
SUITE: Final = "bookworm"
# What systemd does for a machine of its own, and must not do for one that shares a kernel.
MASKED: Final = (
    "systemd-sysctl.service", "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-modules-load.service",
    "systemd-timesyncd.service", "systemd-networkd.service", "systemd-logind.service", "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount",
    "sys-fs-fuse-connections.mount", "getty.target", "console-getty.service", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
)  # fmt: skip
# On a machine of its own it makes mounts shared, too; units get their credentials by a mount.
INIT: Final = f"mount --make-rshared / && systemctl mask --quiet {' '.join(MASKED)} && exec /sbin/init"
BOOT_SECONDS_MAX: Final = 60.0


class Podman:
    """Podman as root with runc, whose containers get limits that need no privilege.

    Args:
        tool: Finds programs, or fails.
        folder: Where its settings go.
    """

    def __init__(self, tool: Callable[[str], str], folder: Path) -> None:
        self._podman = tool("podman")
        for needed in ("runc", "iptables", "mmdebstrap"):
            tool(needed)
        files = 4096 + 1024
        settings = folder / "containers.conf"
        settings.write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=16384:16384"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        self._environ = os.environ | {"CONTAINERS_CONF": str(settings)}
        self._mmdebstrap = tool("mmdebstrap")

    def __call__(
        self, *arguments: str, given: bytes = b"", check: bool = True, seconds_max: float = 600.0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [self._podman, *arguments],
            env=self._environ,
            input=given,
            capture_output=True,
            timeout=seconds_max,
            check=False,
        )
        assert not check or done.returncode == 0, (arguments, done.stdout.decode(), done.stderr.decode())
        return done

    def machine_image(self, requirements: str) -> str:
        """The name of an image with systemd and the requirements of the program, made where it is not there yet."""
        recipe = f"{SUITE}\n{PACKAGES}\n{requirements}"
        image = f"localhost/stateroom-test-machine:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
        if self("image", "exists", image, check=False).returncode == 0:
            return image
        with tempfile.TemporaryDirectory(prefix="stateroom-machine-") as text:
            folder = Path(text)
            (folder / "requirements.txt").write_text(requirements)
            base = folder / "base.tar"
            command = [self._mmdebstrap, "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(base)]
            subprocess.run(command, check=True, timeout=600)
            self("import", "--quiet", str(base), f"{image}-base")
            name = f"stateroom-making-{uuid4().hex[:8]}"
            install = (
                "python3 -m venv /opt/stateroom"
                " && /opt/stateroom/bin/pip install --quiet --no-cache-dir --require-hashes -r /in/requirements.txt"
            )
            # The certificates of whoever stands between here and the index.
            volumes = (f"--volume={folder}:/in:ro", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro")
            try:
                self("run", "--name", name, "--network=host", *volumes, f"{image}-base", "sh", "-euc", install)
                self("commit", "--quiet", name, image)
            finally:
                self("rm", "--force", "--ignore", name)
        return image


def wheels(folder: Path) -> str:
    """Build the wheels of this checkout into ``folder``, and return what they require, in pip's words."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    build = [uv, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder)]
    # The certificates that tests set vouch for nobody.
    environ = {name: text for name, text in os.environ.items() if name != "SSL_CERT_FILE"} | {"UV_NATIVE_TLS": "true"}
    subprocess.run(build, cwd=ROOT, env=environ, check=True, timeout=300)
    export = [uv, "export", "--quiet", "--frozen", "--no-dev", "--no-emit-workspace", "--no-header"]
    return subprocess.run(export, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


class Machine:
    """A container whose first process is systemd, in the block.

    Args:
        podman: What runs it.
        image: Its image.
        folders: Folders of this machine that are shown there, by their paths there.
    """

    def __init__(self, podman: Podman, image: str, folders: dict[str, Path]) -> None:
        self._podman = podman
        self._image = image
        self._folders = folders
        self.name = f"stateroom-machine-{uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        shown = [f"--volume={here}:{there}:ro" for there, here in self._folders.items()]
        self._podman(
            "run", "--detach", "--name", self.name, "--hostname", "machine", "--systemd=always", "--privileged",
            "--network", "host", *shown, self._image, "sh", "-c", INIT,
        )  # fmt: skip
        try:
            until = time.monotonic() + BOOT_SECONDS_MAX
            while self.run("systemctl is-system-running", check=False).strip() not in {"running", "degraded"}:
                assert time.monotonic() < until, self.run("systemctl list-jobs", check=False)
                time.sleep(0.2)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._podman("rm", "--force", "--ignore", "--time", "2", self.name)

    def run(self, script: str, given: str = "", *, check: bool = True) -> str:
        """Run a script there as root, and return what it said."""
        command = ("exec", "--interactive", self.name, "bash", "-euo", "pipefail", "-c", script)
        done = self._podman(*command, given=given.encode(), check=False)
        said = done.stdout.decode()
        if check and done.returncode != 0:
            journal = self.run("journalctl --no-pager --output=cat --lines=40", check=False)
            pytest.fail(f"{script}\n-> {done.returncode}\n{said}\n{done.stderr.decode()}\n{journal}", pytrace=False)
        return said
