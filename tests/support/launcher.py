"""Starts real gateways quickly: imports what `stateroom serve` needs once, then forks for each of them.

A line on stdin is `{"serve": {environment}, "log": path}`, perhaps with the command line as `command`, the same with
`sweep` (see `tests.support.sweeping`), or
`{"wait": pid}`; each gets one line back. When
stdin ends, every gateway that is left is killed. The code that serves is the command line's own.
"""

import contextlib
import gc
import json
import os
import signal
import sys
from importlib import import_module

from litestar import Litestar

# What `serve` imports on its way; none of them starts a thread, so that forking is sound.
for name in ("gateway.app", "gateway.cli.local", "gateway.cli.main", "gateway.cli.serving", "gateway.telemetry"):
    import_module(name)
for name in ("storage.blobs.opening", "boto3.session"):  # with an object store
    import_module(name)
for name in ("asyncpg", "sqlalchemy.dialects.postgresql.asyncpg", "uvicorn.protocols.http.httptools_impl", "uvloop"):
    import_module(name)
Litestar()  # the first one imports a second's worth of plugins


def run(what: str, environ: dict[str, str], log: str, command: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    with open(log, "ab") as output, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - descriptors, not text
        for descriptor, file in ((0, nothing), (1, output), (2, output)):
            os.dup2(file.fileno(), descriptor)
    if what == "sweep":
        os._exit(import_module("tests.support.sweeping").run(environ))
    os._exit(import_module("gateway.cli.main").run(command))


def main() -> None:
    gc.freeze()
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if what := {"serve", "sweep"} & order.keys():
            answer = os.fork()
            if not answer:
                (name,) = what
                run(name, order[name], order["log"], order.get("command", ["serve"]))
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
