"""Answers that are the content of an artifact, sent slice by slice as they are opened.

Owns how a stream ends: with all the bytes that Content-Length announced, or with a broken connection. What fails when
the first bytes are out already is logged here and ends the answer short, so that no client mistakes it for the whole.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from gateway.admission import limits
from gateway.http.exchange import Reader

_log = structlog.get_logger()


class StreamBroken(Exception):
    """An answer ended before its end; the server cuts the connection."""


class _Streaming(ASGIResponse):
    _should_set_content_length = False

    def __init__(self, slices: AsyncIterator[bytes], held: contextlib.ExitStack, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._slices = slices
        self._held = held

    async def send_body(self, send: Send, receive: Receive) -> None:
        gone = asyncio.create_task(_hung_up(receive))
        reader = Reader(
            send, seconds_max=limits.BODY_SECONDS_MAX, bytes_per_second_min=limits.STREAM_BYTES_PER_SECOND_MIN
        )
        try:
            async for each in self._slices:
                if gone.done():
                    return
                await reader.give(each)
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


class ContentResponse(Response[bytes]):
    """An answer that streams; made by `stream`."""

    def __init__(self, slices: AsyncIterator[bytes], held: contextlib.ExitStack, **arguments: Any) -> None:
        super().__init__(b"", **arguments)
        self._slices = slices
        self._held = held

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        """The ASGI form; headers are complete already."""
        return _Streaming(self._slices, self._held, headers=self.headers, status_code=self.status_code)


async def stream(
    slices: AsyncIterator[bytes],
    *,
    status: int,
    headers: dict[str, str],
    size_bytes: int | None,
    held: contextlib.ExitStack | None = None,
) -> Response[bytes]:
    """An answer of ``size_bytes``, whose first slice is opened before anything is said.

    Args:
        slices: The content.
        status: 200 or 206.
        headers: Its headers but Content-Length.
        size_bytes: How many bytes the slices have together; None: nobody knows, and only an answer that ends as HTTP
            says (not by a closed connection) is whole.
        held: What to let go of when the answer has ended.

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
    return ContentResponse(_with_first(first, slices), held, status_code=status, headers={**headers, **length})


async def _with_first(first: bytes | None, slices: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield first
            async for each in slices:
                yield each
    finally:
        await _close(slices)
