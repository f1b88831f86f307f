"""Forks workers of `tests.support.decisions.worker` quickly: the SDK is imported once.

A line on stdin is `{"work": settings, "log": path}` or `{"wait": pid}`; each gets a number back. When stdin ends,
every worker that is left is killed.
"""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support.decisions import worker


class Nursery:
    """The process that forks workers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.decisions.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def _order(self, **what: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def begin(self, settings: dict[str, Any], log: Path) -> int:
        """Begin a worker; returns its process id."""
        return self._order(work=settings, log=str(log))

    def kill(self, pid: int) -> int:
        """SIGKILL; returns how it ended, which is by that unless it ended before."""
        os.kill(pid, signal.SIGKILL)
        return self._order(wait=pid)

    def close(self) -> None:
        """Kill who is left."""
        self._process.communicate(timeout=30)


def _work(settings: dict[str, Any], log: str) -> None:
    with open(log, "ab") as logged, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - descriptors
        for descriptor, file in ((0, nothing), (1, logged), (2, logged)):
            os.dup2(file.fileno(), descriptor)
    try:
        worker.run(settings)
    except BaseException:  # noqa: BLE001 - it is written down, and ends the worker
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    gc.freeze()
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "work" in order:
            answer = os.fork()
            if not answer:
                _work(order["work"], order["log"])
            children.add(answer)
        else:
            _, status = os.waitpid(order["wait"], 0)
            children.discard(order["wait"])
            answer = os.waitstatus_to_exitcode(status)
        print(answer, flush=True)  # noqa: T201 - the answer
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
