# Generated from async_workspace.py by `make generate`: change that, not this.
"""A folder that is stored with a thread, and comes back, for callers that block.

This module owns what is sent and fetched, in which order; the modules beside it own what of a folder is stored, how it
is laid out, and how it comes back. It promises bounded memory, whatever the folder has: 32 MiB of content, a few parts,
and the manifest. A file that changes while it is stored is stored as it was at some moment; nothing else is said of
others.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stateroom._artifacts.transfers import Progress, digest_field
from stateroom._workspaces.folders import Root
from stateroom._workspaces.manifest import (
    MANIFEST_BYTES_MAX,
    FileEntry,
    Manifest,
    WorkspaceRestored,
    WorkspaceSnapshot,
    decoded,
    encoded,
)
from stateroom._workspaces.packing import LargeFile, Pack, Packing, Source
from stateroom._workspaces.restoring import Restoring, Wanted
from stateroom._workspaces.scanning import BLOCK_BYTES, scan
from stateroom.artifacts import ArtifactFile, Artifacts
from stateroom.errors import ArtifactNotFound, DigestMismatch, InvalidRequest, UploadIncomplete, UploadNotFound
from stateroom.types import Artifact

_MANIFEST_TYPE = "application/vnd.stateroom.workspace"
_CONTENT_TYPE = "application/octet-stream"


class Workspace:
    """A folder of a thread's; ``thread.workspace``. For one thread at a time.

    Attributes:
        folder: What is stored and restored.
        name: What its snapshots are called among the thread's artifacts.
    """

    def __init__(self, artifacts: Artifacts, thread_id: str, folder: str | os.PathLike[str], name: str) -> None:
        self.folder = Path(folder)
        self.name = name
        self._artifacts = artifacts
        self._thread_id = thread_id
        self._last: str | None = None

    def store(
        self,
        *,
        base: WorkspaceSnapshot | Mapping[str, Any] | None = None,
        ignore: Iterable[str] = (),
        progress: Progress | None = None,
    ) -> WorkspaceSnapshot:
        """Store what is in the folder, except what its ``.gitignore`` files name.

        Put the snapshot's ``value`` into the state and save that: a snapshot lives as long as a checkpoint names it.
        What was stored before is referred to, not sent. A store that broke off is gone on with by asking again.

        Args:
            base: A snapshot whose content is referred to; when left out, the one that this object stored or restored
                last, or else the newest of this name in the thread. Of a copied thread, say the one in its state.
            ignore: More that is left out, as lines of a ``.gitignore``; ``!`` brings back what that names.
            progress: Called with how many bytes are there, and of how many.

        Raises:
            InvalidRequest: The base is no snapshot; a file got shorter while it was sent; there are too many entries.
            QuotaExceeded: The tenant has no room.
            OSError: The folder, or something in it, cannot be read.
        """
        root = Root(self.folder)
        with root:
            left_alone = list(ignore)
            found = scan(root, left_alone)
            before, there = self._base(base)
            packing = Packing(root, found, before, there, left_alone)
            sources = packing.sources()
            if progress is not None:
                progress(packing.settled_bytes, packing.size_bytes)
            while (source := next(sources, None)) is not None:
                self._store_content(packing, source, progress)
                if progress is not None:
                    progress(packing.settled_bytes, packing.size_bytes)
        manifest = packing.manifest()
        data = encoded(manifest)
        if len(data) > MANIFEST_BYTES_MAX:
            raise InvalidRequest(f"the names in a workspace take at most {MANIFEST_BYTES_MAX:,} bytes; ignore some")
        digest = hashlib.sha256(data).digest()
        stored = self._there(self.name, digest)
        if stored is None:
            stored = self._artifacts.upload(self._thread_id, data, name=self.name, media_type=_MANIFEST_TYPE)
        self._last = stored.pointer
        files = [each.size_bytes for each in manifest.entries if isinstance(each, FileEntry)]
        if progress is not None:
            progress(sum(files), sum(files))
        contents = [each.pointer for each in manifest.contents]
        return WorkspaceSnapshot(stored.pointer, contents, len(files), sum(files), packing.stored_bytes, found.left_out)

    def _base(self, base: WorkspaceSnapshot | Mapping[str, Any] | None) -> tuple[Manifest | None, set[str]]:
        """The snapshot that content is taken from, and those of its artifacts that are there."""
        pointer = self._last if base is None else _snapshot_of(base).manifest
        if pointer is None:
            for newest in self._artifacts.list(self._thread_id, name=self.name, limit=1):
                pointer = newest.pointer
        if pointer is None:
            return None, set()
        try:
            manifest = self._manifest(pointer)
        except (ArtifactNotFound, InvalidRequest):
            if base is not None:
                raise
            return None, set()  # it went, or another program has an artifact of this name
        there: set[str] = set()
        for each in manifest.contents:
            with contextlib.suppress(ArtifactNotFound):
                there.add((self._artifacts.get(each.pointer)).pointer)
        return manifest, there

    def _manifest(self, pointer: str) -> Manifest:
        artifact = self._artifacts.get(pointer)
        if artifact.size_bytes > MANIFEST_BYTES_MAX:
            raise InvalidRequest("the manifest of this workspace is larger than one can be")
        return decoded(self._artifacts.download(artifact))

    def _there(self, name: str, digest: bytes) -> Artifact | None:
        """The newest artifact of the thread with a name, if it has this content."""
        for newest in self._artifacts.list(self._thread_id, name=name, limit=1):
            if newest.digest == digest_field(digest):
                return newest
        return None

    def _store_content(self, packing: Packing, source: Source, progress: Progress | None) -> None:
        """Store one content, unless the thread has it: a store that broke off is gone on with."""
        there = self._there(source.name, source.digest)
        if there is not None:
            packing.settled(source, there, was_there=True)
            return
        before, total = packing.settled_bytes, packing.size_bytes

        def sent(size_bytes: int, _: int | None) -> None:
            if progress is not None:
                progress(before + size_bytes, total)

        if isinstance(source, Pack):
            stored = self._artifacts.upload(
                self._thread_id, source.data, progress=sent, name=source.name, media_type=_CONTENT_TYPE
            )
        else:
            try:
                stored = self._upload_file(source, sent)
            except FileNotFoundError:
                packing.gone(source)
                return
        packing.settled(source, stored, was_there=False)

    def _upload_file(self, source: LargeFile, progress: Progress) -> Artifact:
        """Upload a large file, going on with what an earlier store of it has sent."""
        name, size_bytes = source.name, source.size_bytes
        # A key is of all of a subject's threads, and an upload of one.
        key = hashlib.sha256(f"{self._thread_id}\0{name}".encode()).hexdigest()
        try:
            with source.open() as content:
                upload = self._artifacts.begin(
                    self._thread_id, name=name, media_type=_CONTENT_TYPE, size_bytes=size_bytes, idempotency_key=key
                )
                return self._artifacts.upload(self._thread_id, content, progress=progress, resume=upload.upload_id)
        except UploadIncomplete:
            path = source.files[0].path
            raise InvalidRequest(f"{path} got shorter while it was stored; store the workspace again") from None
        except UploadNotFound:  # it was completed, and deleted since; or given up
            with source.open() as content:
                return self._artifacts.upload(
                    self._thread_id, content, progress=progress, name=name, media_type=_CONTENT_TYPE
                )

    def restore(
        self,
        snapshot: WorkspaceSnapshot | Mapping[str, Any],
        *,
        remove_others: bool = False,
        ignore: Iterable[str] = (),
        progress: Progress | None = None,
    ) -> WorkspaceRestored:
        """Make the folder what it was: contents, permissions, and links that stay within it.

        Files that are there with their content are not fetched, so that a restore that broke off goes on when it is
        asked again. No file shows half of its content. Nothing is written through a link.

        Args:
            snapshot: What ``store`` returned, or its ``value`` from a state.
            remove_others: Whether to remove what the snapshot does not have. What ``.gitignore`` files name stays.
            ignore: More that stays, as lines of a ``.gitignore``.
            progress: Called with how many bytes are there, and of how many.

        Raises:
            InvalidRequest: It is no snapshot, or one that leads out of the folder; or a folder is where it has a
                file, and others may not be removed.
            ArtifactNotFound: Its artifacts are not there any more.
            DigestMismatch: What arrived is not what the snapshot says.
            OSError: The folder cannot be written to.
        """
        said = _snapshot_of(snapshot)
        manifest = self._manifest(said.manifest)
        stays = tuple(ignore)
        restoring = Restoring(self.folder, manifest, remove_others=remove_others, ignore=stays)
        try:
            wanted = restoring.begin()
            if progress is not None:
                progress(restoring.there_bytes, restoring.size_bytes)
            for each in wanted:
                self._fetch(restoring, each, progress)
            restored = restoring.finish()
        finally:
            restoring.close()
        self._last = said.manifest
        return restored

    def _fetch(self, restoring: Restoring, wanted: Wanted, progress: Progress | None) -> None:
        """Write the files of one artifact."""
        with self._artifacts.open(wanted.pointer) as content:
            before: FileEntry | None = None
            for file in wanted.files:
                copied = False
                if before is not None and before.digest == file.digest:
                    copied = restoring.copy(file, before)
                if not copied:
                    self._fetch_file(restoring, content, file)
                restoring.wrote(file)
                before = file
                if progress is not None:
                    progress(restoring.there_bytes, restoring.size_bytes)

    def _fetch_file(self, restoring: Restoring, content: ArtifactFile, file: FileEntry) -> None:
        content.seek(file.offset)
        with restoring.new(file) as target:
            digest, left = hashlib.sha256(), file.size_bytes
            while left and (block := content.read(min(left, BLOCK_BYTES))):
                digest.update(block)
                target.write(block)
                left -= len(block)
            if digest.digest() != file.digest:
                raise DigestMismatch(f"{file.path} is not what the snapshot says")
            target.finish()


def _snapshot_of(snapshot: WorkspaceSnapshot | Mapping[str, Any]) -> WorkspaceSnapshot:
    return snapshot if isinstance(snapshot, WorkspaceSnapshot) else WorkspaceSnapshot.of_value(snapshot)
