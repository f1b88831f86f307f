"""Worker processes end with the process that started them, however that ends."""

import json
import subprocess
import sys

import psutil

OWNER = """
import asyncio, json, sys
from uuid import uuid4
import msgspec
from migrations.state.tasks import Convert, Program, StepsText, StepText
from storage.postgres.unit_of_work import Silent
from storage.schemas.workers import SPARES, Workers


async def main():
    workers = Workers(Silent(), active_max=1)
    steps = {1: StepText(), 2: StepText([{"op": "remove", "path": "/a"}])}
    program = Program(StepsText("s", {number: msgspec.json.encode(each) for number, each in steps.items()}))
    while len(workers.pids()) <= SPARES:
        await workers.ask(uuid4(), program, Convert(program.digest, 1, 2, [("a", "null")]), [b""])
    print(json.dumps(workers.pids()), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
"""


def test_workers_end_when_their_gateway_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        started = [psutil.Process(pid) for pid in json.loads(owner.stdout.readline())]
    assert len(started) == 3
    assert all(each.is_running() for each in started)
    owner.kill()
    owner.wait()
    _, left = psutil.wait_procs(started, timeout=20)
    assert left == []
