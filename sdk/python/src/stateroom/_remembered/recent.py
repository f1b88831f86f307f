"""A bounded memory of what was done lately, so that it need not be done again at once."""

import threading
from collections import OrderedDict
from collections.abc import Hashable

from stateroom._io.processes import PerProcess


class Recent:
    """The last things that were noted; the oldest go first. Threads may share it.

    Args:
        count_max: How many are remembered.
    """

    def __init__(self, count_max: int = 1024) -> None:
        self._lock = PerProcess(threading.Lock)
        self._noted: OrderedDict[Hashable, None] = OrderedDict()
        self._count_max = count_max

    def __contains__(self, thing: Hashable) -> bool:
        with self._lock.mine():
            return thing in self._noted

    def note(self, thing: Hashable) -> None:
        """Remember it."""
        with self._lock.mine():
            self._noted[thing] = None
            self._noted.move_to_end(thing)
            while len(self._noted) > self._count_max:
                self._noted.popitem(last=False)
