"""A folder of many small files, stored and brought back as a workspace, against one artifact with a tar of it.

``python -m benchmarks.workspaces [FILES]`` makes a folder of so many files of 1 to 30 KB (5,000), and of one of 64 MiB,
and does the same with both, over HTTP to one gateway: store it; store it again, unchanged; store it after one file in
a hundred changed; bring it back into an empty folder, and into one where one file in a hundred differs. The tar is
what a program does without workspaces: it is written, uploaded, downloaded and extracted whole each time.
"""

import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks import engines
from stateroom import Artifact, Client, WorkspaceSnapshot

T = TypeVar("T")
W = TypeVar("W")

FILES = 5_000
_LARGE_BYTES = 64 * 1024 * 1024
_A_FOLDER = 50


def make(folder: Path, files: int, rng: random.Random) -> None:
    """Write the files."""
    for number in range(files):
        path = folder / f"d{number // _A_FOLDER}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.randrange(1_000, 30_000)))
    (folder / "large").write_bytes(rng.randbytes(_LARGE_BYTES))


def change(folder: Path, files: int, rng: random.Random) -> None:
    """Change one file in a hundred."""
    for number in range(0, files, 100):
        (folder / f"d{number // _A_FOLDER}" / f"f{number}").write_bytes(rng.randbytes(10_000))


class Tars:
    """What a program does without workspaces."""

    def __init__(self, client: Client, thread_id: str, scratch: Path) -> None:
        self._client, self._thread_id, self._tar = client, thread_id, scratch / "tar"

    def store(self, folder: Path) -> Artifact:
        """Write a tar and upload it."""
        with tarfile.open(self._tar, "w") as tar:
            tar.add(folder, ".")
        return self._client.artifacts.upload(self._thread_id, self._tar)

    def restore(self, stored: Artifact, folder: Path) -> None:
        """Download a tar and extract it."""
        self._client.artifacts.download(stored, self._tar)
        with tarfile.open(self._tar) as tar:
            tar.extractall(folder, filter="data")


class Workspaces:
    """The same with workspaces; each time by an object of its own, as another process does."""

    def __init__(self, client: Client, thread_id: str) -> None:
        self._client, self._thread_id = client, thread_id

    def store(self, folder: Path) -> WorkspaceSnapshot:
        """Store a snapshot."""
        return self._client.thread(self._thread_id).workspace(folder).store()

    def restore(self, stored: WorkspaceSnapshot, folder: Path) -> None:
        """Restore one."""
        self._client.thread(self._thread_id).workspace(folder).restore(stored)


def look(files: int) -> None:
    """Print all of it."""
    rng = random.Random(7)  # noqa: S311 - the same files in every run
    scratch = Path(tempfile.mkdtemp(prefix="stateroom-bench-"))
    try:
        with engines.running() as running, Client(running.url, running.api_key, subject="user") as client:
            folder = scratch / "folder"
            make(folder, files, rng)
            tars, workspaces = Tars(client, "tars", scratch), Workspaces(client, "workspaces")
            size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
            print(f"{files + 1:,} files, {size / 1e6:.0f} MB", flush=True)
            _compare("store", lambda: tars.store(folder), lambda: workspaces.store(folder))
            tar, snapshot = _compare("store unchanged", lambda: tars.store(folder), lambda: workspaces.store(folder))
            change(folder, files, rng)
            _compare("store, 1 % changed", lambda: tars.store(folder), lambda: workspaces.store(folder))
            places = scratch / "a", scratch / "b"
            for what in ("restore into an empty folder", "restore, 1 % changed"):
                _compare(
                    what,
                    lambda: tars.restore(tar, places[0]),
                    lambda: workspaces.restore(snapshot, places[1]),
                )
                for place in places:
                    change(place, files, rng)
    finally:
        shutil.rmtree(scratch)


def _compare(what: str, tar: Callable[[], T], workspace: Callable[[], W]) -> tuple[T, W]:
    began = time.perf_counter()
    with_tar = tar()
    between = time.perf_counter()
    with_workspace = workspace()
    lasted, theirs = time.perf_counter() - between, between - began
    print(f"{what}: tar {theirs:.2f} s, workspace {lasted:.2f} s, {lasted / theirs:.2f} of it", flush=True)
    return with_tar, with_workspace


if __name__ == "__main__":
    look(int(sys.argv[1]) if len(sys.argv) > 1 else FILES)
