"""Events as a stream of server-sent events (the HTML standard, section 9.2).

Owns how a stream looks and when it ends: after some ten minutes, when the process drains, when its listener may not
listen any more, and broken off where its reader takes nothing. Ending is no failure: the client comes again with
Last-Event-ID, and is told then what is wrong, if anything is.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from secrets import SystemRandom
from typing import Final

import structlog

from crypto import CryptoError
from gateway.admission import limits
from gateway.bodies.codec import EVENTS_MEDIA_TYPE
from gateway.events.hub import BATCH_EVENTS, Hub
from gateway.events.listeners import Listener, Told
from gateway.events.positions import Place
from gateway.http.asgi import Receive, Send
from gateway.http.content import StreamBroken
from gateway.http.exchange import Answer, Exchange, Facts
from storage.concurrency.turns import loop_turn
from storage.errors import StorageError

COMMENT_SECONDS: Final = 15.0  # proxies and clients see by it that the connection lives
LIFE_SECONDS: Final = 600.0  # and half of it more or less
RETRY_MILLISECONDS: Final = 2000  # likewise
_JITTER: Final = SystemRandom()
_SLICE_BYTES: Final = 16 * 1024

_log = structlog.get_logger()


def _about(number: float) -> float:
    """A number between half of it and half as much again, so that not all clients come back at once."""
    return _JITTER.uniform(0.5, 1.5) * number


class EventStream(Answer):
    """An answer that goes on for as long as it may.

    Args:
        listener: Who listens; live, or about to be.
        first: What it has heard already.
        place: Makes its cursors.
        hub: Lets it hear.
        exchange: The request, whose places are given back when the waiting begins.
        held: Everything to let go of when it has ended.
    """

    def __init__(
        self,
        listener: Listener,
        first: Sequence[Told],
        *,
        place: Place,
        hub: Hub,
        exchange: Exchange,
        held: contextlib.ExitStack,
    ) -> None:
        headers = [(b"content-type", EVENTS_MEDIA_TYPE.encode()), (b"x-accel-buffering", b"no"), (b"vary", b"accept")]
        super().__init__(200, headers)
        self._listener = listener
        self._first = first
        self._place = place
        self._hub = hub
        self._exchange = exchange
        self._held = held

    async def give(self, facts: Facts, receive: Receive, send: Send) -> None:  # noqa: ARG002  the exchange has it
        """Tell what is heard until it is time to end, or the client hangs up.

        Raises:
            StreamBroken: the reader takes nothing.
        """
        with self._held:
            await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
            if facts.bodiless:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            self._exchange.leave()
            clock = asyncio.get_running_loop().time
            begun = clock()
            gone = asyncio.create_task(self._exchange.hung_up())
            gone.add_done_callback(lambda _: self._listener.end())
            try:
                await self._tell(send, begun + _about(LIFE_SECONDS))
                await self._send(send, b"", more=False)
            except TimeoutError:
                _log.info("events not read")
                raise StreamBroken from None
            finally:
                facts.waited_seconds += clock() - begun
                gone.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await gone

    async def _tell(self, send: Send, until: float) -> None:
        clock = asyncio.get_running_loop().time
        # The cursor goes first: who is cut off before anything happened goes on from here, and misses nothing.
        await self._send(send, b"retry: %d\n%b" % (_about(RETRY_MILLISECONDS), self._here(self._first)))
        heard = self._first
        while True:
            await self._send_all(send, heard)
            left = until - clock()
            if self._listener.is_ended or left <= 0:  # what it has not been told it is told when it comes again
                return
            try:
                heard = await self._hub.next(self._listener, BATCH_EVENTS, min(COMMENT_SECONDS, left))
            except (StorageError, CryptoError) as reason:  # whoever comes again is told
                _log.info("stream of events ended", error=type(reason).__name__)
                return
            if not heard and not self._listener.is_ended:
                await self._send(send, self._here([]))

    def _here(self, ahead: Sequence[Told]) -> bytes:
        """A comment, and the id of where the listener is, if nothing is ``ahead`` of it."""
        position = self._listener.position
        if ahead or position is None:
            return b":\n\n"
        return b":\nid: %b\n\n" % self._place.write(position).encode()

    async def _send_all(self, send: Send, heard: Sequence[Told]) -> None:
        lines: list[bytes] = []
        size = 0
        for each in heard:
            if self._listener.is_ended:
                return
            line = b"id: %b\ndata: %b\n\n" % (self._place.write(each.position).encode(), each.line)
            lines.append(line)
            size += len(line)
            if size >= _SLICE_BYTES:
                await self._send(send, b"".join(lines))
                await loop_turn().take()
                lines, size = [], 0
        if lines:
            await self._send(send, b"".join(lines))

    async def _send(self, send: Send, part: bytes, *, more: bool = True) -> None:
        """Send ``part`` when what went before was taken; nothing counts against a reader that has taken all.

        Raises:
            TimeoutError: it took nothing for too long, or too much waits for it.
        """
        async with asyncio.timeout(limits.STREAM_IDLE_SECONDS_MAX) as patience:
            self._listener.sending(patience)
            try:
                await send({"type": "http.response.body", "body": part, "more_body": more})
            finally:
                self._listener.sending(None)
