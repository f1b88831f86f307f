"""What a process gives up for the rest of its life, so that a fault in it is worth less. Linux; elsewhere nothing.

`make_undumpable` is for every process that holds keys or plaintext, `confine` for workers, which hold no keys and run
what tenants registered. Neither survives ``exec``: each process does it for itself, at its start.
"""

import contextlib
import ctypes
import os
import resource
import sys
from typing import Final

NICE: Final = 10  # whatever a tenant makes it do, the gateway comes first
# Beside what a worker takes once it has started, some 70 MiB: in all about 256 MiB. The worst legal request is a state
# of 32 MiB whose every text a step changes.
MEMORY_BYTES_MAX: Final = 192 * 1024 * 1024
_PR_SET_DUMPABLE: Final = 4


class Memory:
    """What this process takes of memory, asked through a descriptor that stays open; 0 where that is not known."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY) if sys.platform == "linux" else None

    def address_space_bytes(self) -> int:
        """How much address space it takes."""
        return self._bytes(0)

    def resident_bytes(self) -> int:
        """How much memory it has."""
        return self._bytes(1)

    def _bytes(self, column: int) -> int:
        pages = 0 if self._statm is None else int(os.pread(self._statm, 256, 0).split()[column])
        return pages * resource.getpagesize()


def make_undumpable() -> None:
    """Write no core files, and be no process that others of the same user may trace or read the memory of.

    ``py-spy`` and debuggers are others, too: a developer who wants them does not call this.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def confine(memory: Memory) -> None:
    """Be nice, and take no more than `MEMORY_BYTES_MAX` beside what this process has taken already."""
    os.nice(NICE)
    if sys.platform == "linux":
        limit = memory.address_space_bytes() + MEMORY_BYTES_MAX
        with contextlib.suppress(ValueError):  # a lower limit holds already
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def open_nothing_more() -> None:  # pragma: no cover  what can open no file writes no coverage
    """Open no file and no connection from now on; those that are open stay."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
