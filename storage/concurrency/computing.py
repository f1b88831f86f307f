"""Work that keeps the interpreter busy and cannot be interrupted, done beside the event loop.

Owns one thread for all of it, and whose work is next: of one name one piece at a time, names in turn. Several threads
would not be faster, because they share the interpreter; each of them would make the loop wait once more. What is
done there must not hold the interpreter in one long call: a thread lets others go first only between its own steps.
"""

import asyncio
import contextvars
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from storage.concurrency.queues import FairQueue

T = TypeVar("T")

_thread = ThreadPoolExecutor(1, thread_name_prefix="computing")


def _never() -> Exception:
    """The refusal that never comes: requests have been counted before."""
    return AssertionError("the line of work beside the loop has no end")


_queue = FairQueue(1, None, None, _never)


async def compute(name: Hashable, work: Callable[[], T]) -> T:
    """Do ``work`` beside the event loop, after what was asked for before it under this ``name``.

    Args:
        name: The tenant's id, which the work counts for.
        work: The work, which touches nothing that others use meanwhile.

    Raises:
        Exception: What the work raised.
    """
    async with _queue.turn(name):
        return await asyncio.get_running_loop().run_in_executor(_thread, contextvars.copy_context().run, work)
