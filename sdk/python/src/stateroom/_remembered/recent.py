"""A bounded memory of what was done lately, so that it need not be done again at once."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from stateroom._io.processes import PerProcess

V = TypeVar("V")


class Recent(Generic[V]):
    """The last things that were noted, each with a value; the oldest go first. Threads may share it.

    Args:
        count_max: How many are remembered.
    """

    def __init__(self, count_max: int = 1024) -> None:
        self._lock = PerProcess(threading.Lock)
        self._noted: OrderedDict[Hashable, V] = OrderedDict()
        self._count_max = count_max

    def __contains__(self, thing: Hashable) -> bool:
        with self._lock.mine():
            return thing in self._noted

    def get(self, thing: Hashable) -> V | None:
        """What was noted of it; ``None``: nothing lately."""
        with self._lock.mine():
            return self._noted.get(thing)

    def forget(self, thing: Hashable) -> None:
        """Remember nothing of it."""
        with self._lock.mine():
            self._noted.pop(thing, None)

    def note(self, thing: Hashable, value: V) -> None:
        """Remember a thing with its value, as the newest."""
        with self._lock.mine():
            self._noted[thing] = value
            self._noted.move_to_end(thing)
            while len(self._noted) > self._count_max:
                self._noted.popitem(last=False)
