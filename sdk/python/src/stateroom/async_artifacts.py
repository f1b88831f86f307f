"""Artifacts for callers on an event loop: files that belong to threads, stored sealed.

This module owns how an artifact goes up in parts and comes down again. It promises bounded memory: a few parts,
whatever the size of the artifact; and that what it returns, or leaves in place, is what the digest says. What is read
through ``open`` is authenticated by the gateway range by range, not by the digest of the whole.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack, overload

from stateroom._artifacts import requests
from stateroom._artifacts.async_ranges import AsyncCarrier, receive_whole
from stateroom._artifacts.files import AsyncArtifactFile
from stateroom._artifacts.requests import PARTS_AT_ONCE, URL_TTL_SECONDS
from stateroom._artifacts.sources import PartialFile, Writable, write_all
from stateroom._artifacts.transfers import Progress, Reception, UploadPlan
from stateroom._io.on_loop import AsyncInFlight, AsyncSource, AsyncSourceReader, in_blocks, open_async_source
from stateroom._options import refuse_unknown
from stateroom._protocol.core import Pinned
from stateroom.errors import DigestMismatch, StateroomError, UploadNotFound
from stateroom.types import Artifact, ArtifactDescription, Disposition, SignedUrl, Upload

__all__ = ["AsyncArtifactFile", "AsyncArtifacts", "AsyncCarrier", "AsyncSource"]


class AsyncArtifacts:
    """The artifacts of a client's subject; ``client.artifacts``."""

    def __init__(self, client: AsyncCarrier) -> None:
        self._client = client

    async def upload(
        self,
        thread_id: str,
        source: AsyncSource,
        *,
        progress: Progress | None = None,
        resume: str | None = None,
        parallel: int = PARTS_AT_ONCE,
        **description: Unpack[ArtifactDescription],
    ) -> Artifact:
        """Store a file. Less than 8 MiB goes up in one request, more in parts that are sent again one by one.

        When the gateway stops answering on the way, the error's ``upload_id`` says what to ``resume``. To go on even
        after a crash, ``begin`` the upload, keep its ``upload_id``, and resume that.

        Args:
            thread_id: The thread it belongs to; need not exist yet.
            source: A path, content, a binary file from where it stands, or an iterable of pieces (on an event loop an
                asynchronous one, too). What cannot seek is held a part at a time.
            progress: Called where ``upload`` was called, with how many bytes the gateway has acknowledged, and of how
                many. If it raises, the upload is given up.
            resume: The ``upload_id`` of an upload to go on with; ``source`` is read from its beginning, and parts
                that have arrived unchanged are not sent again. Name and all that stay as they were begun.
            parallel: How many parts to send at once; each takes 8 MiB of memory, as does the one being read.
            description: What ``ArtifactDescription`` lists.

        Returns:
            The artifact; its ``pointer`` goes into the state.

        Raises:
            UploadNotFound: There is nothing to resume.
            QuotaExceeded: The tenant has no room.
            DigestMismatch: The gateway received other bytes.
            InvalidRequest: There is no name, or the source is none.
            OSError: The source cannot be read.
        """
        refuse_unknown("upload", description, ArtifactDescription)
        pinned = self._client.pin()
        async with open_async_source(source) as reader:
            if resume is None:
                described = requests.describe(source, **description)
                content = await reader.read(requests.PART_BYTES)
                if requests.goes_up_in_one(described, content):
                    artifact = await self._client.drive(requests.create(thread_id, described, content), pinned)
                    if progress is not None:
                        progress(len(content), len(content))
                    return artifact
                reader.unread(content)
                del content
                upload = await self._client.drive(requests.begin(thread_id, described, reader.size_bytes), pinned)
            else:
                upload = await self._client.drive(requests.show_upload(resume), pinned)
            plan = UploadPlan(upload, reader.size_bytes, progress)
            try:
                await self._send_parts(upload.upload_id, reader, plan, max(parallel, 1), pinned)
                return await self._client.drive(requests.complete(upload.upload_id, plan), pinned)
            except UploadNotFound:
                raise
            except StateroomError as error:
                error.upload_id = upload.upload_id
                raise
            except Exception:
                if resume is None:  # its id is not known
                    with contextlib.suppress(StateroomError):
                        await self._client.drive(requests.abort(upload.upload_id), pinned)
                raise

    async def _send_parts(
        self, upload_id: str, reader: AsyncSourceReader, plan: UploadPlan, parallel: int, pinned: Pinned
    ) -> None:
        async with AsyncInFlight(parallel, plan.is_there) as parts:
            while content := await reader.read(plan.part_bytes):
                part = await asyncio.to_thread(plan.take, content)
                if part is None:
                    plan.is_there(len(content))
                else:
                    await parts.begin(len(content), self._client.drive, requests.put_part(upload_id, part), pinned)
                await parts.settle()
            plan.finish()
            await parts.settle_all()

    async def begin(
        self,
        thread_id: str,
        *,
        name: str,
        media_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        preview: bytes | None = None,
        size_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> Upload:
        """Begin an upload whose ``upload_id`` can be kept before anything is sent.

        Args:
            thread_id: The thread it belongs to; need not exist yet.
            name: Its name.
            media_type: Its media type; guessed from the name when left out.
            metadata: A JSON object, at most 16 KiB.
            preview: A thumbnail or summary, at most 4 KiB, that comes with every listing.
            size_bytes: How large it will be, where it is known: no room for it is found out now.
            idempotency_key: A name for this upload: beginning it again, with the same description, gives the same
                upload for a day, so that its id need not be kept.

        Raises:
            QuotaExceeded: The tenant has no room.
            IdempotencyKeyReused: Another upload was begun under this key.
        """
        description = requests.describe(None, name=name, media_type=media_type, metadata=metadata, preview=preview)
        return await self._client.drive(requests.begin(thread_id, description, size_bytes, idempotency_key))

    async def show_upload(self, upload_id: str) -> Upload:
        """An upload, and what of it has arrived.

        Raises:
            UploadNotFound: There is none.
        """
        return await self._client.drive(requests.show_upload(upload_id))

    async def abort(self, upload_id: str) -> bool:
        """Give an upload up; there is no need to, since it ends by itself a day after its last part.

        Returns:
            Whether there was one.
        """
        return await self._client.drive(requests.abort(upload_id))

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
        described = await self._client.drive(requests.fetched(artifact), pinned)
        if isinstance(target, (str, os.PathLike)):
            await self._download_to_path(described, target, progress, pinned, resume=resume)
            return described
        reception = Reception(described, progress=progress)
        if target is not None:
            file = target
            async with in_blocks(lambda piece: write_all(file, piece)) as write:
                await self._client.receive(reception, write, pinned)
            reception.verify()
            return described
        return await receive_whole(self._client, reception, pinned)

    async def _download_to_path(
        self,
        artifact: Artifact,
        target: str | os.PathLike[str],
        progress: Progress | None,
        pinned: Pinned,
        *,
        resume: bool,
    ) -> None:
        partial = await asyncio.to_thread(PartialFile, artifact, target, resume=resume)
        with partial:
            while True:
                reception = Reception(artifact, progress=progress)
                was_resumed = await asyncio.to_thread(partial.feed, reception)
                async with in_blocks(partial.write) as write:
                    await self._client.receive(reception, write, pinned)
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
        return AsyncArtifactFile(self._client, await self._client.drive(requests.fetched(artifact), pinned), pinned)

    async def get(self, artifact: Artifact | str) -> Artifact:
        """An artifact without its content.

        Args:
            artifact: The artifact, its pointer or its id.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(requests.get(artifact))

    def list(self, thread_id: str, *, name: str | None = None, limit: int | None = None) -> AsyncIterator[Artifact]:
        """The artifacts of a thread, page by page.

        Args:
            thread_id: The id of the thread whose artifacts are listed.
            name: Only versions of this name.
            limit: At most so many.
        """
        return self._client.paged(lambda size, cursor: requests.list_page(thread_id, name, size, cursor), limit)

    async def delete(self, artifact: Artifact | str) -> bool:
        """Delete an artifact.

        Args:
            artifact: The artifact, its pointer or its id.

        Returns:
            Whether there was one.

        Raises:
            ArtifactReferenced: A stored state refers to it.
        """
        return await self._client.drive(requests.delete(artifact))

    async def copy(self, artifact: Artifact | str, thread_id: str, *, name: str | None = None) -> Artifact:
        """Give another thread the same content, without moving it.

        Args:
            artifact: The artifact, its pointer or its id.
            thread_id: The other thread.
            name: Its name there; the same when left out.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(requests.copy(artifact, thread_id, name))

    async def url(
        self,
        artifact: Artifact | str,
        *,
        ttl_seconds: int = URL_TTL_SECONDS,
        disposition: Disposition = "attachment",
    ) -> SignedUrl:
        """A URL that shows this one artifact to any client that has it, a browser for example.

        Args:
            artifact: The artifact, its pointer or its id.
            ttl_seconds: How long, at most 900.
            disposition: ``inline`` to be shown in a page, for media types that are safe there; else it is saved.

        Raises:
            ArtifactNotFound: There is none.
        """
        return await self._client.drive(requests.make_url(artifact, ttl_seconds, disposition))

    async def revoke_urls(self, artifact: Artifact | str) -> None:
        """End all URLs of an artifact made so far.

        Args:
            artifact: The artifact, its pointer or its id.

        Raises:
            ArtifactNotFound: There is none.
        """
        await self._client.drive(requests.revoke_urls(artifact))
