"""A socket as a supervisor has it (``NOTIFY_SOCKET``), and what processes say to it."""

import asyncio
import socket
from typing import Self


class NotifySocket:
    """Bound in the block to ``address``: a path or, with a leading ``@``, an abstract name."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}" if self.address.startswith("@") else self.address)
        self._socket.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away, as a supervisor that ended."""
        self._socket.close()

    async def next(self) -> str:
        """Wait for the next message."""
        async with asyncio.timeout(20):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    async def until(self, assignment: str) -> str:
        """Wait for a message with an assignment, such as ``READY=1``."""
        while assignment not in (message := await self.next()).split("\n"):
            pass
        return message

    def waiting(self) -> list[str]:
        """What came and was not waited for."""
        came = []
        while True:
            try:
                came.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return came
