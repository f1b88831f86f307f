"""Artifacts for callers on an event loop: files that belong to threads, stored sealed.

This module owns the tasks that send parts, and the file object that reads ranges; files are read and written, and
digests computed, in worker threads. It promises bounded memory: a few
parts, whatever the size of the artifact; and that what it returns, or leaves in place, is what the digest says. What
is read through ``open`` is authenticated by the gateway range by range, not by the digest of the whole.
"""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast, overload

from stateroom import _artifacts, _calls
from stateroom._artifacts import (
    PARTS_AT_ONCE,
    URL_TTL_SECONDS,
    PieceBuffer,
    Progress,
    Reception,
    UploadPlan,
    Window,
    checked_piece,
)
from stateroom._core import Pinned, Steps
from stateroom._sources import (
    BLOCK_BYTES,
    LocalSource,
    PartialFile,
    SourceReader,
    Writable,
    open_source,
    write_all,
)
from stateroom.errors import DigestMismatch, StateroomError, UploadNotFound
from stateroom.types import Artifact, Disposition, SignedUrl, Upload

R = TypeVar("R")

AsyncSource = LocalSource | AsyncIterable[bytes]
"""A path, content, a binary file from where it stands, or pieces of content, asynchronous ones included."""


class AsyncCarrier(Protocol):
    """What artifacts need of a client."""

    def pin(self) -> Pinned:
        """Decide the subject."""

    async def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure."""

    async def receive(
        self, reception: Reception, write: Callable[[bytes], Awaitable[object]], pinned: Pinned | None = None
    ) -> None:
        """Bring content home."""


class AsyncArtifacts:
    """The artifacts of a client's subject; ``client.artifacts``."""

    def __init__(self, client: AsyncCarrier) -> None:
        self._client = client

    async def upload(
        self,
        thread_id: str,
        source: AsyncSource,
        *,
        name: str | None = None,
        media_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        preview: bytes | None = None,
        progress: Progress | None = None,
        resume: str | None = None,
        parallel: int = PARTS_AT_ONCE,
    ) -> Artifact:
        """Store a file. Less than 8 MiB goes up in one request, more in parts that are sent again one by one.

        When the gateway stops answering on the way, the error's ``upload_id`` says what to ``resume``. To go on even
        after a crash, ``begin`` the upload, keep its ``upload_id``, and resume that.

        Args:
            thread_id: The thread it belongs to; need not exist yet.
            source: A path, content, a binary file from where it stands, or an iterable or asynchronous iterable of
                pieces. What cannot seek is held a part at a time.
            name: Its name; a file's own when left out.
            media_type: Its media type; guessed from the name when left out.
            metadata: A JSON object, at most 16 KiB.
            preview: A thumbnail or summary, at most 4 KiB, that comes with every listing.
            progress: Told, on the event loop, how many bytes the gateway has acknowledged, and of how many. If it
                raises, the upload is given up.
            resume: The ``upload_id`` of an upload to go on with; ``source`` is read from its beginning, and parts
                that have arrived unchanged are not sent again. Name and all that stay as they were begun.
            parallel: How many parts to send at once; each takes 8 MiB of memory, as does the one being read.

        Returns:
            The artifact; its ``pointer`` goes into the state.

        Raises:
            UploadNotFound: There is nothing to resume.
            QuotaExceeded: The tenant has no room.
            DigestMismatch: The gateway received other bytes.
            InvalidRequest: There is no name, or the source is none.
            OSError: The source cannot be read.
        """
        pinned = self._client.pin()
        with contextlib.ExitStack() as opened:
            reader = await _open_async_source(source, opened)
            if resume is None:
                description = _artifacts.describe(
                    source, name=name, media_type=media_type, metadata=metadata, preview=preview
                )
                content = await reader.read(_artifacts.PART_BYTES)
                if _artifacts.goes_up_in_one(description, content):
                    artifact = await self._client.drive(_artifacts.create(thread_id, description, content), pinned)
                    if progress is not None:
                        progress(len(content), len(content))
                    return artifact
                reader.unread(content)
                del content
                upload = await self._client.drive(_artifacts.begin(thread_id, description, reader.size_bytes), pinned)
            else:
                upload = await self._client.drive(_artifacts.show_upload(resume), pinned)
            plan = UploadPlan(upload, reader.size_bytes, progress)
            try:
                await self._send_parts(upload.upload_id, reader, plan, max(parallel, 1), pinned)
                return await self._client.drive(_artifacts.complete(upload.upload_id, plan), pinned)
            except UploadNotFound:
                raise
            except StateroomError as error:
                error.upload_id = upload.upload_id
                raise
            except Exception:
                if resume is None:  # nobody knows its id
                    with contextlib.suppress(StateroomError):
                        await self._client.drive(_artifacts.abort(upload.upload_id), pinned)
                raise

    async def _send_parts(
        self, upload_id: str, reader: "_AsyncReader", plan: UploadPlan, parallel: int, pinned: Pinned
    ) -> None:
        running: dict[asyncio.Task[None], int] = {}

        async def settle(seconds: float | None) -> None:
            if not running:
                return
            done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                size_bytes = running.pop(task)
                task.result()
                plan.is_there(size_bytes)

        try:
            while content := await reader.read(plan.part_bytes):
                part = await asyncio.to_thread(plan.take, content)
                if part is None:
                    plan.is_there(len(content))
                else:
                    if len(running) >= parallel:
                        await settle(None)
                    sending = self._client.drive(_artifacts.put_part(upload_id, part), pinned)
                    running[asyncio.create_task(sending)] = len(content)
                await settle(0)
            plan.finish()
            while running:
                await settle(None)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def begin(
        self,
        thread_id: str,
        *,
        name: str,
        media_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        preview: bytes | None = None,
        size_bytes: int | None = None,
    ) -> Upload:
        """Begin an upload whose ``upload_id`` can be kept before anything is sent.

        Args:
            thread_id: As for ``upload``.
            name: Its name.
            media_type: As for ``upload``.
            metadata: As for ``upload``.
            preview: As for ``upload``.
            size_bytes: How large it will be, where it is known: no room for it is found out now.

        Raises:
            QuotaExceeded: The tenant has no room.
        """
        description = _artifacts.describe(None, name=name, media_type=media_type, metadata=metadata, preview=preview)
        return await self._client.drive(_artifacts.begin(thread_id, description, size_bytes))

    async def show_upload(self, upload_id: str) -> Upload:
        """An upload, and what of it has arrived.

        Raises:
            UploadNotFound: There is none.
        """
        return await self._client.drive(_artifacts.show_upload(upload_id))

    async def abort(self, upload_id: str) -> bool:
        """Give an upload up; nobody has to, since it ends by itself a day after its last part.

        Returns:
            Whether there was one.
        """
        return await self._client.drive(_artifacts.abort(upload_id))

    @overload
    async def download(
        self, artifact: Artifact | str, target: None = ..., *, progress: Progress | None = ..., resume: bool = ...
    ) -> bytes: ...

    @overload
    async def download(
        self,
        artifact: Artifact | str,
        target: str | os.PathLike[str] | Writable,
        *,
        progress: Progress | None = ...,
        resume: bool = ...,
    ) -> Artifact: ...

    async def download(
        self,
        artifact: Artifact | str,
        target: str | os.PathLike[str] | Writable | None = None,
        *,
        progress: Progress | None = None,
        resume: bool = True,
    ) -> bytes | Artifact:
        """Bring an artifact's content home, going on where a connection broke, and check its digest.

        Args:
            artifact: The artifact, its pointer or its id.
            target: A path, a binary file to write to, or ``None`` to have the content returned. A path has the whole
                content or what it had before; what has arrived so far waits in a hidden file beside it.
            progress: Told how many bytes have arrived, and of how many.
            resume: Whether to go on with what an interrupted download left beside the path.

        Returns:
            The content, or the artifact when there is a target.

        Raises:
            ArtifactNotFound: There is none.
            DigestMismatch: What arrived is not what was stored. A path is left as it was; what was written to a file
                is not to be trusted.
            OSError: The target cannot be written.
        """
        pinned = self._client.pin()
        known = await self._client.drive(_artifacts.fetched(artifact), pinned)
        if isinstance(target, (str, os.PathLike)):
            await self._download_to_path(known, target, progress, pinned, resume=resume)
            return known
        reception = Reception(known, progress=progress)
        if target is not None:
            file = target
            async with _blocks(lambda piece: write_all(file, piece)) as blocks:
                await self._client.receive(reception, blocks.write, pinned)
            reception.verify()
            return known
        held = bytearray()

        async def hold(piece: bytes) -> None:
            held.extend(piece)

        await self._client.receive(reception, hold, pinned)
        reception.verify()
        return bytes(held)

    async def _download_to_path(
        self,
        artifact: Artifact,
        target: str | os.PathLike[str],
        progress: Progress | None,
        pinned: Pinned,
        *,
        resume: bool,
    ) -> None:
        with contextlib.ExitStack() as opened:
            partial = await asyncio.to_thread(PartialFile, artifact, target, resume=resume)
            opened.enter_context(partial)
            while True:
                reception = Reception(artifact, progress=progress)
                was_resumed = await asyncio.to_thread(partial.feed, reception)
                async with _blocks(partial.write) as blocks:
                    await self._client.receive(reception, blocks.write, pinned)
                try:
                    reception.verify()
                except DigestMismatch:
                    if not was_resumed:
                        partial.discard()
                        raise
                    partial.restart()  # what an earlier attempt left may be what is wrong
                else:
                    return await asyncio.to_thread(partial.finish)

    async def open(self, artifact: Artifact | str) -> "AsyncArtifactFile":
        """Read an artifact as a seekable binary file, fetching only what is read.

        Args:
            artifact: The artifact, its pointer or its id.

        Raises:
            ArtifactNotFound: There is none.
        """
        pinned = self._client.pin()
        return AsyncArtifactFile(self._client, await self._client.drive(_artifacts.fetched(artifact), pinned), pinned)

    async def get(self, artifact: Artifact | str) -> Artifact:
        """An artifact without its content.

        Args:
            artifact: The artifact, its pointer or its id.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(_artifacts.get(artifact))

    def list(self, thread_id: str, *, name: str | None = None, limit: int | None = None) -> AsyncIterator[Artifact]:
        """The artifacts of a thread, page by page.

        Args:
            thread_id: The thread.
            name: Only versions of this name.
            limit: At most so many.
        """
        return self._list(self._client.pin(), thread_id, name, limit)

    async def _list(
        self, pinned: Pinned, thread_id: str, name: str | None, limit: int | None
    ) -> AsyncIterator[Artifact]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = _calls.PAGE_DEFAULT if left is None else min(left, _calls.PAGE_MAX)
            page = await self._client.drive(_artifacts.list_page(thread_id, name, size, cursor), pinned)
            for found in page.artifacts[:left]:
                yield found
            left = None if left is None else left - len(page.artifacts)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete(self, artifact: Artifact | str) -> bool:
        """Delete an artifact.

        Args:
            artifact: The artifact, its pointer or its id.

        Returns:
            Whether there was one.

        Raises:
            ArtifactReferenced: A stored state refers to it.
        """
        return await self._client.drive(_artifacts.delete(artifact))

    async def copy(self, artifact: Artifact | str, thread_id: str, *, name: str | None = None) -> Artifact:
        """Give another thread the same content, without moving it.

        Args:
            artifact: The artifact, its pointer or its id.
            thread_id: The other thread.
            name: Its name there; the same when left out.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(_artifacts.copy(artifact, thread_id, name))

    async def url(
        self,
        artifact: Artifact | str,
        *,
        ttl_seconds: int = URL_TTL_SECONDS,
        disposition: Disposition = "attachment",
    ) -> SignedUrl:
        """A URL that shows this one artifact to whoever has it, a browser for example.

        Args:
            artifact: The artifact, its pointer or its id.
            ttl_seconds: How long, at most 900.
            disposition: ``inline`` to be shown in a page, for media types that are safe there; else it is saved.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(_artifacts.make_url(artifact, ttl_seconds, disposition))

    async def revoke_urls(self, artifact: Artifact | str) -> None:
        """End all URLs of an artifact made so far.

        Args:
            artifact: The artifact, its pointer or its id.

        Raises:
            ArtifactNotFound: There is none.
        """
        await self._client.drive(_artifacts.revoke_urls(artifact))


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
        self._client = client
        self._pinned = pinned
        self._window = Window(artifact.size_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of what is held. Nothing can be read afterwards."""
        self.closed = True
        self._window = Window(self.artifact.size_bytes)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    async def tell(self) -> int:
        """The position."""
        self._check_open()
        return self._window.position

    async def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, and return it; makes no request.

        Raises:
            ValueError: It would be before the beginning.
        """
        self._check_open()
        return self._window.seek(offset, whence)

    async def read(self, size: int = -1, /) -> bytes:
        """Read from the position on.

        Args:
            size: How many bytes; everything to the end when negative.

        Raises:
            ArtifactNotFound: It was deleted meanwhile.
            GatewayUnavailable: Nothing more arrived within the time budget.
        """
        self._check_open()
        left = max(self.artifact.size_bytes - self._window.position, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        read = bytearray()
        while len(read) < wanted:
            taken = self._window.take(wanted - len(read))
            if taken:
                read += taken
                continue
            missing = self._window.missing(wanted - len(read))
            if missing is None:
                break
            self._window.fill(missing[0], await self._fetch(*missing))
        return bytes(read)

    async def _fetch(self, start: int, stop: int) -> bytes:
        is_whole = (start, stop) == (0, self.artifact.size_bytes)
        reception = Reception(self.artifact, start=start, stop=stop, verify=is_whole)
        held = bytearray()

        async def hold(piece: bytes) -> None:
            held.extend(piece)

        await self._client.receive(reception, hold, self._pinned)
        reception.verify()
        return bytes(held)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class _AsyncReader:
    """Reads a source in parts of one size: a local one in a worker thread, or an asynchronous one."""

    def __init__(self, local: SourceReader | None, pieces: AsyncIterable[bytes] | None) -> None:
        self._local = local
        self._pieces = None if pieces is None else aiter(pieces)
        self._held = PieceBuffer()
        self.size_bytes = None if local is None else local.size_bytes

    async def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""
        if self._local is not None:
            return await asyncio.to_thread(self._local.read, size)
        while self._pieces is not None and len(self._held) < size:
            try:
                self._held.add(checked_piece(await anext(self._pieces)))
            except StopAsyncIteration:
                self._pieces = None
        return self._held.take(size)

    def unread(self, content: bytes) -> None:
        """Give back what was read last."""
        if self._local is not None:
            self._local.unread(content)
        else:
            rest = self._held.take(len(self._held))
            self._held.add(content)
            self._held.add(rest)


async def _open_async_source(source: AsyncSource, opened: contextlib.ExitStack) -> _AsyncReader:
    if isinstance(source, AsyncIterable) and not isinstance(source, Iterable):
        return _AsyncReader(None, source)
    return _AsyncReader(await asyncio.to_thread(opened.enter_context, open_source(cast(LocalSource, source))), None)


class _Blocks:
    """Gathers small pieces, so that not each one takes a trip to a worker thread."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._held = PieceBuffer()

    async def write(self, piece: bytes) -> None:
        """Write a piece, sooner or later."""
        self._held.add(piece)
        if len(self._held) >= BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what is held."""
        if len(self._held):
            await asyncio.to_thread(self._write, self._held.take(len(self._held)))


@contextlib.asynccontextmanager
async def _blocks(write: Callable[[bytes], object]) -> AsyncIterator[_Blocks]:
    blocks = _Blocks(write)
    try:
        yield blocks
    except StateroomError:
        await blocks.flush()  # what has arrived is of use to whoever goes on
        raise
    await blocks.flush()
