"""Who listens is on record: each caller once for what it listens to, and none of the questions by which it goes on.

Owns what this process has written lately. Another process writes it once more, as this one does after a while.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

ANEW_SECONDS: Final = 3600.0
_KEPT_MAX: Final = 10_000


class OnRecord:
    """What was written of listeners lately.

    Args:
        monotonic: Seconds that only go forward.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._written: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def is_due(self, actor: str, heard: bytes) -> bool:
        """Whether it is to be written that somebody listens, which it is then.

        Args:
            actor: Who listens, as the audit log names it.
            heard: All that decides what it hears.
        """
        now = self._monotonic()
        written = self._written.get((actor, heard))
        if written is not None and now - written < ANEW_SECONDS:
            return False
        self._written[actor, heard] = now
        self._written.move_to_end((actor, heard))
        if len(self._written) > _KEPT_MAX:
            self._written.popitem(last=False)
        return True
