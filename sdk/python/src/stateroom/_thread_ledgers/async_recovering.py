"""Handing threads whose run died to this worker, for callers on an event loop.

This module owns the loop: which threads are asked for, and how long it waits when there are none. It promises that a
thread is handed to one worker at a time, and that it waits longer and longer while there is nothing to do.
"""

from collections.abc import AsyncIterator, Callable
from secrets import SystemRandom
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import msgspec

from stateroom._protocol.core import Pinned
from stateroom._thread_ledgers import requests
from stateroom._thread_ledgers.async_claims import AsyncClaim, AsyncDriver
from stateroom._thread_ledgers.shapes import RecoverOptions, SilentThread
from stateroom.errors import (
    ClaimHeld,
    ClaimSuperseded,
    StateroomError,
    ThreadArchived,
    ThreadBusy,
    ThreadNotFound,
    ThreadStuck,
)

PAGE = 100
FIRST_SECONDS = 1.0
_JITTER = SystemRandom()
# Why this worker does not get a thread: another one did, maybe to its end, or nobody does for now.
_TAKEN = (ClaimHeld, ClaimSuperseded, ThreadStuck, ThreadNotFound, ThreadArchived, ThreadBusy)


class AsyncClaimable(Protocol):
    """A thread object."""

    thread_id: str


ThreadT = TypeVar("ThreadT", bound=AsyncClaimable)


class Recovering(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads are recovered, and how long one waits for them.

    Attributes:
        silent_seconds: Only threads whose claim is over for so long.
        agent: Only threads of this agent.
        follow: Whether to wait for more, when there are none.
        idle_seconds_max: The longest wait.
    """

    silent_seconds: int = 0
    agent: str | None = None
    follow: bool = True
    idle_seconds_max: float = 30.0

    @classmethod
    def of(cls, options: RecoverOptions) -> "Recovering":
        """What a caller's options say of it."""
        return cls(
            silent_seconds=options.get("silent_seconds", 0),
            agent=options.get("agent"),
            follow=options.get("follow", True),
            idle_seconds_max=options.get("idle_seconds_max", 30.0),
        )


class AsyncRecovered(Generic[ThreadT]):
    """A thread whose run died, claimed for this worker: ``async with`` gives the thread to go on with.

    Leaving the block releases the claim. A run that fails does not: it counts as dead, and the thread is handed out
    again, later each time, until it is ``stuck``.

    Attributes:
        silent: What was known of the thread before it was claimed.
        thread: The thread; its writes name the claim.
        claim: The claim under which the thread is handed out.
    """

    def __init__(self, silent: SilentThread, thread: ThreadT, claim: AsyncClaim) -> None:
        self.silent, self.thread, self.claim = silent, thread, claim
        claim.releases_on_error = False

    async def __aenter__(self) -> ThreadT:
        await self.claim.__aenter__()
        return self.thread

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.claim.__aexit__(kind, error, trace)


async def async_recover(
    client: AsyncDriver,
    pinned: Pinned,
    wanted: Recovering,
    recovered_of: Callable[[SilentThread], AsyncRecovered[ThreadT]],
) -> AsyncIterator[AsyncRecovered[ThreadT]]:
    """Threads whose run died, claimed one by one, for as long as the caller takes them.

    Args:
        client: Makes the calls.
        pinned: Whose threads.
        wanted: Which of them.
        recovered_of: Makes what is handed out; it is claimed here.

    Raises:
        StateroomError: What no other attempt can mend.
    """
    idle, pause = 0, 0.0
    while True:
        count = 0
        cursor: str | None = None
        while True:
            try:
                page = await client.drive(
                    requests.silent_threads(
                        PAGE,
                        cursor,
                        silent_seconds=wanted.silent_seconds,
                        agent=wanted.agent,
                        after_seconds=pause,
                    ),
                    pinned,
                )
            except StateroomError as error:
                if not (error.retryable and wanted.follow):
                    raise
                break
            pause = 0.0
            # In an order of its own, so that workers that ask at the same time do not ask for the same.
            for silent in _JITTER.sample(page.items, len(page.items)):
                if silent.stuck:
                    continue
                recovered = recovered_of(silent)
                try:
                    await recovered.claim.begin()
                except _TAKEN:
                    continue
                count += 1
                is_done = False
                try:
                    yield recovered
                    is_done = True
                finally:
                    await recovered.claim.end(release=is_done)
            cursor = page.next_cursor
            if cursor is None:
                break
        if not wanted.follow:
            return
        idle = 0 if count else idle + 1
        ceiling = min(wanted.idle_seconds_max, FIRST_SECONDS * 2.0 ** min(idle, 16))
        pause = _JITTER.uniform(ceiling / 2, ceiling)
