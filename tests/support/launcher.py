"""Starts real gateways and commands quickly: imports what they need once, then forks for each of them.

A line on stdin is `{"serve": {environment}, "log": path}`, perhaps with the command line as `command` and a file for
its standard output alone as `output`, the same with `sweep` (see `tests.support.sweeping`), or `{"wait": pid}`; each
gets one line back. When stdin ends, every gateway that is left is killed. The code that serves is the command line's
own.
"""

import contextlib
import gc
import json
import os
import signal
import sys
from importlib import import_module

from gateway.app import documentation_page
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location

# What `serve` imports on its way; none of them starts a thread, so that forking is sound.
CLI = (
    "gateway.cli.commands",
    "gateway.cli.connection",
    "gateway.cli.local.running",
    "gateway.cli.main",
    "gateway.cli.local.serving",
)
for name in ("gateway.app", *CLI, "gateway.telemetry"):
    import_module(name)
for name in ("asyncpg", "sqlalchemy.dialects.postgresql.asyncpg", "uvicorn.protocols.http.httptools_impl", "uvloop"):
    import_module(name)
S3BlobStore(S3Location.parse("s3://nobody:nothing@localhost:1/nowhere"))  # the first one reads what S3 can do
documentation_page()  # and with it the document of all operations


def run(what: str, environ: dict[str, str], log: str, output: str, command: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    with open(output, "ab") as said, open(log, "ab") as logged, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - descriptors
        for descriptor, file in ((0, nothing), (1, said), (2, logged)):
            os.dup2(file.fileno(), descriptor)
    module, argument = ("tests.support.sweeping", environ) if what == "sweep" else ("gateway.cli.main", command)
    code = import_module(module).run(argument)
    sys.stdout.flush()  # the interpreter would, but does not end here
    os._exit(code)


def main() -> None:
    gc.freeze()
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if what := {"serve", "sweep"} & order.keys():
            answer = os.fork()
            if not answer:
                (name,) = what
                log = order["log"]
                run(name, order[name], log, order.get("output", log), order.get("command", ["serve"]))
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
