"""What a process made before it forked, used by both."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sdk.python.tests.fakes import checkpoint
from sdk.python.tests.test_transports import Server

PROGRAM = Path(__file__).with_name("forking_program.py")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")]


def run(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


@pytest.fixture
def gateway():
    """Says to each request whose it was, and notes on which connection it came."""
    connections = {}

    def serve(connection):
        while head := connection.read():
            (subject,) = [line.split()[1] for line in head if line.lower().startswith("stateroom-subject:")]
            connections.setdefault(subject, set()).add(connection.number)
            if "/whoami " in head[0]:
                connection.answer(msgspec.msgpack.encode({"key_id": "c", "kind": "service", "subject_id": subject}))
            else:
                connection.answer(checkpoint(channels={}, pending_writes=[], metadata={"whose": subject}).content)

    server = Server(serve)
    server.by_subject = connections
    yield server
    server.close()


@pytest.mark.parametrize(
    "kind", ["client", "proxied_client", "saver", "async_client", "proxied_async_client", "saver_on_loop"]
)
def test_a_fork_takes_connections_of_its_own_and_leaves_its_parents_whole(gateway, kind):
    run(PROGRAM, kind, gateway.url)
    warm, parent, child = (gateway.by_subject[subject] for subject in ("before", "parent", "child"))
    assert len(warm) == len(child) == 1
    assert parent == warm
    assert not parent & child


HELD = """
import os, threading
from stateroom._io.httpcore_transport import HttpcoreTransport
from stateroom._io.processes import PerProcess
from stateroom._remembered.histories import Histories

lock, histories = PerProcess(threading.Lock), Histories()
pool = HttpcoreTransport("http://127.0.0.1:1", connections_max=1)._pool
with lock.mine(), histories._lock.mine(), pool.mine()._optional_thread_lock:
    child = os.fork()
    if child == 0:
        assert lock.mine().acquire(timeout=30)
        assert histories._lock.mine().acquire(timeout=30)
        assert pool.mine()._optional_thread_lock._lock.acquire(timeout=30)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert lock.mine() is lock.mine()
"""


def test_a_lock_that_was_held_when_the_process_forked_is_free_in_the_fork():
    run("-c", HELD)


LEFT = """
import os
from stateroom._io.processes import PerProcess

left = []
numbers = PerProcess(lambda: [os.getpid()], left.append)
first = numbers.mine()
child = os.fork()
if child == 0:
    assert numbers.mine() == numbers.mine() == [os.getpid()]
    assert left == [first]
    grandchild = os.fork()
    if grandchild == 0:
        assert numbers.mine() == [os.getpid()]
        assert left == [first, [os.getppid()]]
        os._exit(0)
    os._exit(os.waitpid(grandchild, 0)[1])
assert os.waitpid(child, 0)[1] == 0
assert (numbers.mine(), left) == (first, [])
"""


def test_each_process_has_its_own_and_leaves_what_it_inherited_once():
    run("-c", LEFT)
