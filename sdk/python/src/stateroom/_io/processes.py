"""What a process that was forked must not share with the one it comes from.

A fork copies everything and duplicates what is open: connections that both processes would speak on, each reading the
other's answers; locks that another thread holds forever, because threads are not copied; event loops that one selector
serves. This module owns how each process gets things of its own. It watches process ids only, so it holds as well
where a server forks without telling Python; and it copies nothing: what is made anew begins empty.
"""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Something that each process has one of its own of, made when the process first asks.

    Args:
        make: Makes one; of two that threads make at the same time, one is dropped.
        leave: Told, once, what came from a parent process. It must take none of its locks, and send nothing. Left out:
            that is kept, untouched, so that nothing ends it either.
    """

    def __init__(self, make: Callable[[], T], leave: Callable[[T], object] | None = None) -> None:
        self._make = make
        self._by_process: dict[int, T] = {}
        self._inherited: list[T] = []
        self._leave = leave or self._inherited.append

    def mine(self) -> T:
        """This process's own."""
        process = os.getpid()
        own = self._by_process.get(process)
        return self._begin(process) if own is None else own

    def made(self) -> T | None:
        """This process's own, if it asked for it before."""
        return self._by_process.get(os.getpid())

    def _begin(self, process: int) -> T:
        # No lock: a thread that is no more may hold it. Each of these steps is one to other threads.
        mine = self._by_process.setdefault(process, self._make())
        for other in list(self._by_process):
            inherited = None if other == process else self._by_process.pop(other, None)
            if inherited is not None:
                self._leave(inherited)
        return mine
