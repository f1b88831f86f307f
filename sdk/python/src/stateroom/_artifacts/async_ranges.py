"""Ranges of an artifact, and what artifacts need of a client, for callers on an event loop.

This module owns the fetching of what a file object reads; ``transfers.Window`` owns which range that is.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from stateroom._artifacts.transfers import Reception, Window
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import Page
from stateroom.types import Artifact

R = TypeVar("R")


class AsyncCarrier(Protocol):
    """What artifacts need of a client."""

    def pin(self) -> Pinned:
        """Decide the subject."""

    async def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure."""

    def paged(self, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None) -> AsyncIterator[R]:
        """The items of a list, page by page."""

    async def receive(
        self, reception: Reception, write: Callable[[bytes], Awaitable[object]], pinned: Pinned | None = None
    ) -> None:
        """Bring content home."""


async def receive_whole(client: AsyncCarrier, reception: Reception, pinned: Pinned) -> bytes:
    """Everything that a reception wants, verified.

    Raises:
        DigestMismatch: It is not the artifact's content.
        StateroomError: The gateway refused, or nothing more arrived within the time budget.
    """
    held = bytearray()

    async def hold(piece: bytes) -> None:
        held.extend(piece)

    await client.receive(reception, hold, pinned)
    reception.verify()
    return bytes(held)


class AsyncRanges:
    """Reads an artifact range by range, from a position that moves."""

    def __init__(self, client: AsyncCarrier, artifact: Artifact, pinned: Pinned) -> None:
        self._client = client
        self._artifact = artifact
        self._pinned = pinned
        self.window = Window(artifact.size_bytes)

    async def read_into(self, view: memoryview) -> int:
        """Fill a buffer from the position on, and return how many bytes there were."""
        filled = 0
        while filled < len(view):
            taken = self.window.take(len(view) - filled)
            if taken:
                view[filled : filled + len(taken)] = taken
                filled += len(taken)
                continue
            missing = self.window.missing(len(view) - filled)
            if missing is None:
                break
            self.window.fill(missing[0], await self._fetch(*missing))
        return filled

    async def _fetch(self, start: int, stop: int) -> bytes:
        is_whole = (start, stop) == (0, self._artifact.size_bytes)
        reception = Reception(self._artifact, start=start, stop=stop, verify=is_whole)
        return await receive_whole(self._client, reception, self._pinned)
