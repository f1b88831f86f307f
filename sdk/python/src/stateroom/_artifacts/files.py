"""Artifacts as seekable binary files: the standard library's kind for callers that block, its like for an event loop.

This module owns what of a file a program sees; ``async_ranges`` owns what is fetched for it.
"""

import io
from types import TracebackType
from typing import Any, Self

from stateroom._artifacts.async_ranges import AsyncCarrier, AsyncRanges
from stateroom._artifacts.ranges import Carrier, Ranges
from stateroom._artifacts.transfers import Window
from stateroom._protocol.core import Pinned
from stateroom.types import Artifact


class ArtifactFile(io.RawIOBase):
    """An artifact as a seekable binary file. Not to be shared between threads.

    Each read gives as much as was asked for, as long as there is so much. A window around the position is held, 256
    KiB after a jump and up to 8 MiB while reading on.

    Attributes:
        artifact: What is read.
    """

    def __init__(self, client: Carrier, artifact: Artifact, pinned: Pinned) -> None:
        super().__init__()
        self.artifact = artifact
        self._ranges = Ranges(client, artifact, pinned)

    def readable(self) -> bool:
        """True, as every artifact can be."""
        return True

    def seekable(self) -> bool:
        """True, as every artifact can be."""
        return True

    def tell(self) -> int:
        """The position: how many bytes are before what is read next."""
        self._check_open()
        return self._ranges.window.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, and return it; makes no request.

        Raises:
            ValueError: It would be before the beginning.
        """
        self._check_open()
        return self._ranges.window.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer from the position on, and return how much there was.

        Raises:
            ArtifactNotFound: It was deleted meanwhile.
            GatewayUnavailable: Nothing more arrived within the time budget.
        """
        self._check_open()
        return self._ranges.read_into(memoryview(buffer).cast("B"))

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class AsyncArtifactFile:
    """An artifact as a seekable binary file. For one task at a time.

    Each read gives as much as was asked for, as long as there is so much. A window around the position is held, 256
    KiB after a jump and up to 8 MiB while reading on.

    Attributes:
        artifact: What is read.
    """

    def __init__(self, client: AsyncCarrier, artifact: Artifact, pinned: Pinned) -> None:
        self.artifact = artifact
        self.closed = False
        self._ranges = AsyncRanges(client, artifact, pinned)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of what is held. Nothing can be read afterwards."""
        self.closed = True
        self._ranges.window = Window(self.artifact.size_bytes)

    def readable(self) -> bool:
        """True, as every artifact can be."""
        return True

    def seekable(self) -> bool:
        """True, as every artifact can be."""
        return True

    async def tell(self) -> int:
        """The position: how many bytes are before what is read next."""
        self._check_open()
        return self._ranges.window.position

    async def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, and return it; makes no request.

        Raises:
            ValueError: It would be before the beginning.
        """
        self._check_open()
        return self._ranges.window.seek(offset, whence)

    async def read(self, size: int = -1, /) -> bytes:
        """Read from the position on.

        Args:
            size: How many bytes; everything to the end when negative.

        Raises:
            ArtifactNotFound: It was deleted meanwhile.
            GatewayUnavailable: Nothing more arrived within the time budget.
        """
        self._check_open()
        left = max(self.artifact.size_bytes - self._ranges.window.position, 0)
        read = bytearray(left if size is None or size < 0 else min(size, left))
        await self._ranges.read_into(memoryview(read))
        return bytes(read)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")
