"""Work on what clients sent or get, done a slice at a time, so that no other request waits for the whole of it.

Owns what such work is (a generator that yields after each slice and returns its result) and whose slice is next: of one
tenant one piece of work at a time, of all tenants one slice in each turn of the event loop. What others wait for is
then one slice, however many requests a tenant sends and however large they are. How long a slice takes is for the work
to keep short; one call that takes long and lets go of the interpreter, as copying megabytes does, it yields, and gets
what that returned. It does not bound memory.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from storage.concurrency.turns import loop_turn

T = TypeVar("T")

Work: TypeAlias = Generator[Any, Any, T]  # yields None, or a call that is made for it

JOINED_BESIDE_BYTES_MIN: Final = 2 * 1024 * 1024  # as much is copied beside the event loop, which takes a millisecond


def finish(work: Work[T]) -> T:
    """Do all slices of ``work`` at once, and return its result: for what is small, and where no other request waits."""
    answer: Any = None
    call: Callable[[], Any] | None
    while True:
        try:
            call = work.send(answer)
        except StopIteration as ended:
            result: T = ended.value
            return result
        answer = None if call is None else call()


def joined(parts: Sequence[bytes]) -> Work[bytes]:
    """All parts as one."""
    if sum(map(len, parts)) < JOINED_BESIDE_BYTES_MIN:
        return b"".join(parts)
    whole: bytes = yield partial(b"".join, parts)
    return whole


class Slices:
    """The order of slices: one of a tenant at a time, and all that take turns on the event loop one after another."""

    def __init__(self) -> None:
        self._own = asyncio.Lock()

    async def run(self, work: Work[T]) -> T:
        """Do ``work`` after what was asked for before it, and return its result.

        Raises:
            Exception: what the work raised.
        """
        async with self._own:
            turn = loop_turn()
            answer: Any = None
            while True:
                await turn.take()
                try:
                    call = work.send(answer)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                if call is None:
                    answer = None
                    await asyncio.sleep(0)
                else:
                    answer = await asyncio.to_thread(call)
