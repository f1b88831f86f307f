"""Tells what supervises this process how it fares, in the protocol of systemd (``sd_notify(3)``).

Owns the datagrams to ``NOTIFY_SOCKET`` and the beat of the watchdog, which says that the event loop turns and no more.
Does nothing where no supervisor asked to be told, and never fails or waits: a supervisor that went away must not take a
gateway along. It promises no delivery. The packages for this on the index wait or raise when the socket is full or
gone, or are compiled against libsystemd.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self

BEATS = 2  # in the time after which the supervisor takes a process that says nothing for hung


class Supervisor:
    """The program that started this process and wants to know how it fares: systemd, or a container engine.

    Args:
        address: Its socket, a path or with a leading ``@`` an abstract name; empty: none is told.
        watchdog_seconds: How long it waits for a sign of life; 0: it does not.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._beat_seconds = watchdog_seconds / BEATS

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Self:
        """The supervisor that ``environ`` names, which may be none."""
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_watched = microseconds.isdecimal() and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(environ.get("NOTIFY_SOCKET", ""), int(microseconds) / 1e6 if is_watched else 0.0)

    def status(self, text: str) -> None:
        """Say in a line for people how it stands."""
        self._tell(f"STATUS={text}")

    def ready(self, text: str) -> None:
        """Say that the process does its work, and from now on that the running event loop turns."""
        self._tell("READY=1", f"STATUS={text}")
        if self._beat_seconds:
            self._beat()

    def stopping(self, text: str) -> None:
        """Say that the process is on its way out; the beat goes on as long as the loop."""
        self._tell("STOPPING=1", f"STATUS={text}")

    def _beat(self) -> None:
        self._tell("WATCHDOG=1")
        asyncio.get_running_loop().call_later(self._beat_seconds, self._beat)

    def _tell(self, *assignments: str) -> None:
        if not self._address:
            return
        message = "\n".join(each.replace("\n", " ") for each in assignments)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # its queue may be full: a beat that is lost is worth less than a loop that hangs
            sender.sendto(message.encode(), self._address)
