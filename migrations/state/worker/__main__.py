"""A worker process: it does what `tasks` says for the other end of its socket, until that is closed.

It is started by ``exec`` with an empty environment and one socket as its standard input, and imports neither gateway
nor storage nor crypto: it sees plaintext of the task at hand, and has no key, no credential and no other descriptor.

1. A task that takes more than `CPU_SECONDS_MAX` of processor time ends the process (SIGPROF, whose default action no
   C code can put off): not the time of a clock on the wall, which a loaded machine takes from honest work.
2. A task that needs more memory than `confinement` leaves it ends the process, too, and so does every error that
   `tasks` does not answer: what comes next finds a process as it was started.
3. Where the deployment ships no steps in Python, it opens no file and no connection once it has started.
4. It outlives nobody: when the other end is gone, it ends.
"""

import codecs
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from migrations.state.chain import Chain
from migrations.state.errors import ChainInvalid
from migrations.state.loading import shipped_chains
from migrations.state.tasks import Tasks
from migrations.state.worker.confinement import Memory, confine, make_undumpable, open_nothing_more
from migrations.state.worker.messages import CPU_SECONDS_MAX, Answered, Asked, Begin, Ready, framed, read_head

# A worker that has grown beyond this forgets its programs, and if that does not help, asks to be replaced.
RESIDENT_BYTES_MAX: Final = 128 * 1024 * 1024
# Files that Python opens when it first needs them: encodings that JSON may be in.
_LATER_OPENED: Final = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def main() -> None:
    """Work until the other end of standard input is gone."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # what a step prints goes nowhere
        os.dup2(nothing, standard)
    os.close(nothing)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with connection, connection.makefile("rb") as incoming:
        head = read_head(incoming)
        if head is None:
            return
        begin = msgspec.msgpack.decode(head, type=Begin)
        if not begin.traceable:
            make_undumpable()
        sys.path += [each for each in begin.path if each not in sys.path]
        try:
            shipped = shipped_chains(None if begin.steps_folder is None else Path(begin.steps_folder))
        except ChainInvalid as fault:
            connection.sendall(framed(Ready(fault.step, str(fault))))
            return
        connection.sendall(framed(Ready()))
        gc.collect()
        gc.freeze()
        memory = Memory()
        confine(memory)
        # Steps in Python may import something when they run.
        if not shipped:  # pragma: no cover  what can open no file writes no coverage
            for each in _LATER_OPENED:
                codecs.lookup(each)
            open_nothing_more()
        _work(connection, incoming, shipped, memory)


def _work(connection: socket.socket, incoming: BinaryIO, shipped: dict[str, Chain], memory: Memory) -> None:
    tasks = Tasks(shipped)
    asked = msgspec.msgpack.Decoder(Asked)
    while (head := read_head(incoming)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
        message = asked.decode(head)
        values = [incoming.read(size) for size in message.sizes]
        answer, made = tasks.perform(message.request, values)
        values.clear()
        is_full = False
        if memory.resident_bytes() > RESIDENT_BYTES_MAX:
            tasks.forget()
            gc.collect()
            is_full = memory.resident_bytes() > RESIDENT_BYTES_MAX + sum(map(len, made))
        reply = framed(Answered(answer, [len(each) for each in made], is_full))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(connection, reply, made)
        made.clear()


def _send(connection: socket.socket, head: bytes, values: Sequence[bytes]) -> None:
    connection.sendall(head)
    for each in values:
        connection.sendall(each)


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001  its text may hold state, and what it would be written to is not read
        os._exit(70)
    os._exit(0)
