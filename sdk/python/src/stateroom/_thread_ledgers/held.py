"""The claims that this process holds: what the writes of a thread object name, and who ends a claim last.

A run that claims its thread again, such as a graph within a graph, is given the claim that it has. So the gateway knows
of one claim where this process has several blocks, and only the last one to end may release it. This module counts
them, and makes no calls.
"""

import os
import socket
import threading
from collections import Counter
from typing import NamedTuple
from uuid import uuid4

_UNNAMED = "unnamed-"


class _Claimed(NamedTuple):
    fence: int
    run_id: str | None


class Held:
    """The claims that a thread object holds; shared by the forks that were made of it.

    Its writes name the one that was made last. One below that, which is another run's, was taken over on purpose: it
    stays after the one above has ended, so that what is written then is refused, and does not pass without a claim.
    """

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: list[_Claimed] = []

    @property
    def fence(self) -> int | None:
        """The fence; ``None``: nothing is held."""
        return self._claims[-1].fence if self._claims else None

    @property
    def run_id(self) -> str | None:
        """The id of the run that holds it, if its caller named one."""
        return self._claims[-1].run_id if self._claims else None

    def add(self, fence: int, run_id: str | None) -> None:
        """Hold a claim, beside what is held.

        Args:
            fence: Its fence.
            run_id: The id of its run; one that nobody named is not that of checkpoints.
        """
        named = run_id is not None and not run_id.startswith(_UNNAMED)
        self._claims.append(_Claimed(fence, run_id if named else None))

    def remove(self, fence: int) -> None:
        """Hold a claim once less.

        Args:
            fence: Its fence.
        """
        last = max((n for n, each in enumerate(self._claims) if each.fence == fence), default=None)
        if last is not None:
            del self._claims[last]


class ClaimKey(NamedTuple):
    """What tells the claims that one process holds apart.

    Attributes:
        subject: Whose thread it is; ``None``: the credential's own.
        thread_id: Which of the subject's threads.
        fence: The number of the claim.
        run_id: The id of the run that holds it.
    """

    subject: str | None
    thread_id: str
    fence: int
    run_id: str | None


_LOCK = threading.Lock()
_BLOCKS: Counter[ClaimKey] = Counter()


def join(claim: ClaimKey) -> None:
    """Count a block that goes on under a claim.

    Args:
        claim: What it goes on under.
    """
    with _LOCK:
        _BLOCKS[claim] += 1


def leave(claim: ClaimKey) -> bool:
    """Count a block less; whether it was the last one, which releases the claim.

    Args:
        claim: What it went on under.
    """
    with _LOCK:
        _BLOCKS[claim] -= 1
        if _BLOCKS[claim] > 0:
            return False
        del _BLOCKS[claim]
        return True


def this_worker() -> str:
    """A name of this process: of the machine, and its number there."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}"


def unnamed_run() -> str:
    """The id of a run that its caller gave none: two of one process are two."""
    return f"{_UNNAMED}{uuid4()}"
