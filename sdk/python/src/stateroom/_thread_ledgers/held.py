"""The claim that a thread object holds, which its writes name; shared by the forks that were made of it."""

import os
import socket


class Held:
    """The fence and the run of a claim while it is held.

    Attributes:
        fence: The fence; ``None``: nothing is held.
        run_id: The id of the run that holds it.
    """

    __slots__ = ("fence", "run_id")

    def __init__(self) -> None:
        self.fence: int | None = None
        self.run_id: str | None = None


def this_worker() -> str:
    """A name of this process: of the machine, and its number there."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}"
