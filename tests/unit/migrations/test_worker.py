"""A worker process by itself: what it says, what it gives up, and how it ends."""

import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import msgpack
import msgspec
import pytest

from migrations.state.tasks import Convert, Converted, Invalid, Learn, Learned, Program, StepsText, StepText
from migrations.state.worker import confinement
from migrations.state.worker.messages import Answered, Asked, Begin, Ready, framed, read_head

ROOT = Path(__file__).parents[3]
COUNTING = """
def upcast(state):
    print("what a step prints goes nowhere")
    return {**state, "n": state["n"] + 1}
"""
PROGRAM = Program(
    StepsText("own", {1: msgspec.json.encode(StepText()), 2: msgspec.json.encode(StepText(deployment="own"))})
)
LEARN = Learn(PROGRAM.digest, PROGRAM.text, new=True)
CONVERT = Convert(PROGRAM.digest, 1, 2, [("n", "msgpack")])

pytestmark = pytest.mark.slow  # each starts an interpreter
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker gives up less")


class Worker:
    """The other end of a worker's socket. It is started as a gateway starts it, but measured where this process is."""

    def __init__(self, process, near, incoming):
        self.process = process
        self._near = near
        self._incoming = incoming

    def send(self, data):
        self._near.sendall(data)

    def receive(self, kind):
        return msgspec.msgpack.decode(read_head(self._incoming), type=kind)

    def begin(self, steps_folder=None, *, traceable=False):
        self.send(framed(Begin([str(ROOT)], steps_folder and str(steps_folder), traceable)))
        return self.receive(Ready)

    def ask(self, request, *values):
        self.send(framed(Asked(request, [len(each) for each in values])) + b"".join(values))
        answered = self.receive(Answered)
        return answered, [self._incoming.read(size) for size in answered.sizes]

    def hang_up(self):
        self._incoming.close()
        self._near.close()
        return self.process.wait(20)


@contextmanager
def worker():
    near, far = socket.socketpair()
    with far:
        process = subprocess.Popen([sys.executable, "-m", "migrations.state.worker"], stdin=far, cwd=ROOT)
    with near, near.makefile("rb") as incoming:
        try:
            yield Worker(process, near, incoming)
        finally:
            process.kill()
            process.wait()


def steps_folder(tmp_path, source):
    schema = tmp_path / "schemas" / "own"
    schema.mkdir(parents=True)
    (schema / "v1_to_v2.py").write_text(dedent(source))
    return schema.parent


def test_it_does_what_it_is_asked_until_the_other_end_is_gone(tmp_path, capfd):
    with worker() as one:
        assert one.begin(steps_folder(tmp_path, COUNTING), traceable=True) == Ready()
        assert one.ask(LEARN) == (Answered(Learned()), [])
        answered, made = one.ask(CONVERT, msgpack.packb(6))
        assert isinstance(answered.answer, Converted)
        assert (made, answered.is_full) == ([msgpack.packb(7)], False)
        assert one.hang_up() == 0
    assert capfd.readouterr() == ("", "")


@linux
def test_it_has_given_up_memory_core_files_and_its_place_in_line_when_it_begins_its_first_task(tmp_path):
    with worker() as one:
        one.begin(steps_folder(tmp_path, COUNTING))
        one.ask(LEARN)
        pid = one.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        assert confinement.MEMORY_BYTES_MAX < soft == hard != resource.RLIM_INFINITY
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(mine + confinement.NICE, 19)


@linux
@pytest.mark.parametrize("traceable", [False, True])
def test_without_steps_in_python_it_opens_nothing_more_and_is_traced_only_if_it_may(traceable):
    with worker() as one:
        assert one.begin(traceable=traceable) == Ready()
        answered, _ = one.ask(LEARN)
        assert isinstance(answered.answer, Invalid)  # it ships no such step
        pid = one.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (0, 0)
        inherited = resource.getrlimit(resource.RLIMIT_CORE)  # nothing where a test made this process undumpable
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (inherited if traceable else (0, 0))
        assert one.hang_up() == 0


def test_steps_that_are_no_chain_are_told_at_the_start(tmp_path):
    with worker() as one:
        told = one.begin(steps_folder(tmp_path, "no step"))
        assert told.step
        assert told.fault
        assert one.process.wait(20) == 0


def test_it_ends_when_nobody_tells_it_what_to_do():
    with worker() as one:
        assert one.hang_up() == 0


def test_what_is_no_request_ends_it(tmp_path):
    with worker() as one:
        one.begin(steps_folder(tmp_path, COUNTING))
        one.send(framed(Ready()))
        assert one.process.wait(20) == 70


def test_a_task_that_takes_too_much_processor_time_ends_it(tmp_path):
    with worker() as one:
        one.begin(steps_folder(tmp_path, "def upcast(state):\n    while True:\n        pass\n"))
        one.ask(LEARN)
        one.send(framed(Asked(CONVERT, [1])) + msgpack.packb(6))
        assert one.process.wait(20) == -signal.SIGPROF


def test_one_that_has_grown_too_large_asks_to_be_replaced(tmp_path):
    held = "HELD = b'x' * (150 << 20)\ndef upcast(state):\n    return state\n"
    with worker() as one:
        one.begin(steps_folder(tmp_path, held))
        assert one.ask(LEARN) == (Answered(Learned(), is_full=True), [])
        assert one.hang_up() == 0


@linux
def test_what_the_kernel_refuses_is_an_error():
    with pytest.raises(OSError, match="prctl"):
        confinement._prctl(confinement._PR_SET_DUMPABLE, 7)
