"""Answers that are the content of an artifact, sent slice by slice as they are opened.

Owns how a stream ends: with all the bytes that Content-Length announced, or with a broken connection. What fails when
the first bytes are out already is logged here and ends the answer short, so that no client mistakes it for the whole.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from gateway.admission import limits
from gateway.http.asgi import Receive, Send
from gateway.http.exchange import Answer, Facts, Reader, header_lines

_log = structlog.get_logger()


class StreamBroken(Exception):
    """An answer ended before its end; the server cuts the connection."""


class ContentAnswer(Answer):
    """An answer that streams; made by `stream`."""

    def __init__(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        slices: AsyncIterator[bytes],
        held: contextlib.ExitStack,
    ) -> None:
        super().__init__(status, headers)
        self._slices = slices
        self._held = held

    async def give(self, facts: Facts, receive: Receive, send: Send) -> None:  # noqa: ARG002  a HEAD gets no content
        """Send the slices until they end, or the client hangs up.

        Raises:
            StreamBroken: a slice could not be opened, or was not taken in time.
        """
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        gone = asyncio.create_task(_hung_up(receive))
        reader = Reader(
            send, seconds_max=limits.BODY_SECONDS_MAX, bytes_per_second_min=limits.STREAM_BYTES_PER_SECOND_MIN
        )
        try:
            async for each in self._slices:
                if gone.done():
                    return
                await reader.give(each)
            self._held.close()  # before the client can know that this has ended, and begin what waits for it
            await reader.give(b"", more=False)
        except Exception as reason:  # noqa: BLE001  whatever it is, half an answer must not look whole
            # The class only, and no cause: what is known of the content must not reach the server's log.
            _log.warning("content broken off", error=type(reason).__name__)
            raise StreamBroken from None
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await _close(self._slices)
            self._held.close()


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close(slices: AsyncIterator[bytes]) -> None:
    aclose = getattr(slices, "aclose", None)
    if aclose is not None:
        await aclose()


async def stream(
    slices: AsyncIterator[bytes],
    *,
    status: int,
    headers: dict[str, str],
    size_bytes: int | None,
    held: contextlib.ExitStack | None = None,
) -> Answer:
    """An answer of ``size_bytes``, whose first slice is opened before anything is said.

    Args:
        slices: The content.
        status: 200 or 206.
        headers: The headers but Content-Length.
        size_bytes: How many bytes the slices have together; None: it is not known, and only an answer that ends as HTTP
            says (not by a closed connection) is whole.
        held: Everything to let go of when the answer has ended.

    Raises:
        Exception: what opening the first slice raised; then nothing was sent.
    """
    held = held or contextlib.ExitStack()
    try:
        first = await anext(slices, None)
    except BaseException:
        held.close()
        await _close(slices)
        raise
    length = {} if size_bytes is None else {"content-length": str(size_bytes)}
    return ContentAnswer(status, header_lines({**headers, **length}), _with_first(first, slices), held)


async def _with_first(first: bytes | None, slices: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield first
            async for each in slices:
                yield each
    finally:
        await _close(slices)
