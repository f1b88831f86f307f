"""Worker processes: what they hold, what ends them, and that nobody waits for another tenant's work but in turn."""

import asyncio
import contextlib
import os
import signal
from uuid import UUID, uuid4

import msgpack
import msgspec
import psutil
import pytest

from migrations.state.errors import ChainInvalid
from migrations.state.tasks import Convert, Converted, Failed, Program, StepsText, StepText
from storage.errors import TenantTooCostly, TooCostly, WorkersBusy
from storage.postgres.unit_of_work import Silent
from storage.schemas.workers import KILLS_MAX, REFUSED_SECONDS, SPARES, Workers

STEPS = {
    "look": '''
import ctypes, os, resource, sys


def upcast(state):
    """What a worker finds when it looks around."""
    return {
        "environ": dict(os.environ),
        "descriptors": [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.islink(each.path)],
        "modules": [each for each in sys.modules if each.split(".")[0] in
                    ("gateway", "storage", "crypto", "stateroom", "sqlalchemy", "asyncpg", "boto3", "cryptography",
                     "typer", "rich", "prompt_toolkit")],
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "nice": os.nice(0),
        "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
        "memory": resource.getrlimit(resource.RLIMIT_AS)[1],
    }
''',
    "spin": "def upcast(state):\n    while True:\n        pass\n",
    "eat": "def upcast(state):\n    return {'x': bytes(2**30)}\n",
    "rest": "import time\n\n\ndef upcast(state):\n    time.sleep(60)\n",
    "leave": "import os\n\n\ndef upcast(state):\n    os._exit(3)\n",
    "fail": "def upcast(state):\n    raise KeyError('s3cr3t')\n",
    "say": "def upcast(state):\n    print('x' * 1000000)\n    return {'said': True}\n",
}


class Watch(Silent):
    def __init__(self):
        self.lost, self.most, self.working = [], 0, asyncio.Event()

    def worker_lost(self, cause):
        self.lost.append(cause)

    def workers_busy(self, count):
        self.most = max(self.most, count)
        self.working.set() if count else self.working.clear()


class Time:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def program(deployment=None, up=None):
    steps = {1: StepText(), 2: StepText(up, None, deployment)}
    return Program(StepsText("s", {number: msgspec.json.encode(each) for number, each in steps.items()}))


async def run(workers: Workers, tenant_id: UUID, what: Program, state=None):
    state = {"a": 1} if state is None else state
    request = Convert(what.digest, 1, 2, [(name, "msgpack") for name in state])
    answer, made = await workers.ask(tenant_id, what, request, [msgpack.packb(each) for each in state.values()])
    if not isinstance(answer, Converted):
        return answer
    values = iter(made)
    return {name: msgpack.unpackb(next(values)) if kept is None else kept for name, _, kept in answer.channels}


RENAME = program(up=[{"op": "rename", "from": "/a", "to": "/b"}])


@pytest.fixture
def folder(tmp_path):
    for name, text in STEPS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "v1_to_v2.py").write_text(text)
    return tmp_path


@pytest.fixture
async def watched(folder):
    watch, clock = Watch(), Time()
    workers = Workers(watch, steps_folder=folder, active_max=1, monotonic=clock)
    workers.watch, workers.clock = watch, clock
    yield workers
    await workers.close()


async def test_a_worker_has_no_environment_no_key_and_no_descriptor_but_its_socket(watched, monkeypatch):
    monkeypatch.setenv("STATEROOM_ROOT_KEY", "file:/secret")
    inherited = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        found = await run(watched, uuid4(), program("look"))
    finally:
        os.close(inherited)
    assert found["environ"].keys() <= {"LC_CTYPE"}, "Python itself sets that one"
    kinds = sorted(each.split(":")[0] for each in found["descriptors"] if not each.startswith("/proc/"))
    assert kinds == ["/dev/null"] * 3 + ["socket"]
    assert found["modules"] == []
    assert (found["dumpable"], found["nice"], found["core"]) == (0, min(os.nice(0) + 10, 19), [0, 0])
    assert 0 < found["memory"] < 400 << 20


async def test_a_worker_without_steps_in_python_opens_nothing_more():
    workers = Workers(Silent(), active_max=1)
    try:
        deeper = program(up=[{"op": "set_default", "path": "/a/added", "value": 1}])
        request = Convert(deeper.digest, 1, 2, [("a", "json")])
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-32-be"):
            answer, made = await workers.ask(uuid4(), deeper, request, ['{"k": "é"}'.encode(encoding)])
            assert isinstance(answer, Converted)
            assert [msgpack.unpackb(each) for each in made] == [{"k": "é", "added": 1}]
        assert [psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) for pid in workers.pids()][:1] == [(0, 0)]
    finally:
        await workers.close()


@pytest.mark.parametrize(("step", "cause"), [("spin", "cpu"), ("eat", "failed"), ("leave", "failed")])
async def test_what_takes_too_much_loses_its_worker_and_is_told_so(watched, step, cause):
    with pytest.raises(TooCostly):
        await run(watched, uuid4(), program(step))
    assert watched.watch.lost == [cause]
    assert await run(watched, uuid4(), RENAME) == {"b": "a"}


async def test_a_step_that_raises_or_prints_is_answered_without_its_words(watched):
    failed = await run(watched, uuid4(), program("fail"))
    assert isinstance(failed, Failed)
    assert "s3cr3t" not in failed.why
    assert await run(watched, uuid4(), program("say")) == {"said": True}
    assert watched.watch.lost == []


async def test_a_tenant_that_overruns_often_is_refused_for_a_while_and_no_other_is(watched):
    hostile, other = uuid4(), uuid4()
    for _ in range(KILLS_MAX):
        with pytest.raises(TooCostly):
            await run(watched, hostile, program("spin"))
    with pytest.raises(TenantTooCostly) as refused:
        await run(watched, hostile, RENAME)
    assert 0 < refused.value.retry_after_seconds <= REFUSED_SECONDS
    assert await run(watched, other, RENAME) == {"b": "a"}
    assert watched.watch.lost == ["cpu"] * KILLS_MAX
    watched.clock.now += REFUSED_SECONDS + 1
    assert await run(watched, hostile, RENAME) == {"b": "a"}


async def test_overruns_that_are_far_apart_are_no_reason_to_refuse(watched):
    for _ in range(KILLS_MAX + 1):
        with pytest.raises(TooCostly):
            await run(watched, UUID(int=7), program("spin"))
        watched.clock.now += REFUSED_SECONDS
    assert await run(watched, UUID(int=7), RENAME) == {"b": "a"}


async def test_tenants_take_turns_and_have_one_worker_each(folder):
    watch = Watch()
    workers = Workers(watch, steps_folder=folder, active_max=2)
    ended = []

    async def ask(tenant_id, what):
        with contextlib.suppress(TooCostly, TenantTooCostly):
            await run(workers, tenant_id, what)
        ended.append(tenant_id)

    try:
        crowd, other = UUID(int=1), UUID(int=2)
        asked = [asyncio.create_task(ask(crowd, program("spin"))) for _ in range(6)]
        await asyncio.sleep(0)
        await ask(other, RENAME)
        assert ended.count(crowd) <= 1, "another tenant waited for more than one task of the crowd's"
        await asyncio.gather(*asked)
        assert watch.lost == ["cpu"] * KILLS_MAX, "the rest was refused"
        assert watch.most <= 2
    finally:
        await workers.close()


async def test_a_worker_that_somebody_else_ends_is_replaced_and_not_held_against_the_tenant(watched):
    tenant_id = uuid4()
    assert await run(watched, tenant_id, RENAME) == {"b": "a"}
    busy = asyncio.create_task(run(watched, tenant_id, program("rest")))
    await watched.watch.working.wait()
    for pid in watched.pids():  # those that wait for work, too
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkersBusy):
        await busy
    assert watched.watch.lost == ["gone"]
    assert await run(watched, tenant_id, RENAME) == {"b": "a"}


async def test_two_tenants_that_find_the_same_workers_dead_get_others(folder):
    workers = Workers(Silent(), steps_folder=folder, active_max=2)
    try:
        await run(workers, uuid4(), RENAME)
        if workers._starting is not None:
            await asyncio.wait({workers._starting})
        assert len(workers.pids()) == 2 + SPARES
        for pid in workers.pids():
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        found = await asyncio.gather(*(run(workers, uuid4(), RENAME) for _ in range(2)))
        assert found == [{"b": "a"}] * 2
    finally:
        await workers.close()


async def test_a_task_that_does_not_run_at_all_ends_and_is_not_held_against_the_tenant(watched):
    with pytest.raises(WorkersBusy):
        await run(watched, uuid4(), program("rest"))
    assert watched.watch.lost == ["wall"]


async def test_who_stops_waiting_frees_no_worker_that_is_still_at_work(watched):
    tenant_id = uuid4()
    await run(watched, tenant_id, RENAME)
    left = asyncio.create_task(run(watched, tenant_id, program("spin")))
    await watched.watch.working.wait()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert watched._busy == 1
    assert await run(watched, tenant_id, RENAME) == {"b": "a"}
    assert watched.watch.lost == ["cpu"]
    assert watched.watch.most == 1


async def test_closing_ends_every_worker(folder):
    workers = Workers(Silent(), steps_folder=folder, active_max=1)
    await run(workers, uuid4(), RENAME)
    started = [psutil.Process(pid) for pid in workers.pids()]
    assert 1 <= len(started) <= 1 + SPARES
    await workers.close()
    assert [each for each in started if each.is_running()] == []


async def test_steps_that_are_no_chain_are_named_before_anything_is_served(folder):
    (folder / "spin" / "v1_to_v3.py").write_text("def upcast(state):\n    return state\n")
    workers = Workers(Silent(), steps_folder=folder)
    with pytest.raises(ChainInvalid, match="fork"):
        await workers.start()
    await workers.close()
