"""Room for the values of an answer: they are counted while they are put together.

Owns the way from a request to the readers that put values together for it, so that each verb need not hand it on: it
goes with the request's task, and with the threads and tasks that work for it. Where no request asked for it, nothing is
counted. What the room is and when it is given back is for the code that counts.
"""

from collections.abc import Callable
from contextvars import ContextVar

Take = Callable[[int], None]
"""Counts so many more bytes, or raises what the request is to be refused with."""


def _unlimited(_: int) -> None:
    """Count nothing."""


_take: ContextVar[Take] = ContextVar("storage_room_take", default=_unlimited)


def count_with(take: Take) -> None:
    """Count what is read for the request at hand, from now on, with ``take``."""
    _take.set(take)


def taking() -> Take:
    """The function that counts for the request at hand."""
    return _take.get()
