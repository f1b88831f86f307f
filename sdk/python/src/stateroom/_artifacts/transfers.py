"""What of an artifact's content has arrived, on either side, without I/O.

This module owns the parts of an upload, what a download accepts, and the window that a file object holds. It opens no
file and no socket. Content is held a part, or a window, at a time.
"""

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from stateroom._protocol.core import Call, path
from stateroom.errors import DigestMismatch, GatewayUnavailable, InvalidRequest
from stateroom.types import Artifact, Upload

PART_BYTES_MAX = 64 * 1024 * 1024  # a gateway that asks for more is none: a part is held in memory
WINDOW_BYTES_MIN = 256 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024

_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Progress = Callable[[int, int | None], object]
"""Called with the bytes that are safely there, and with how many there will be, or ``None`` when that is not known."""


def digest_field(digest: bytes) -> str:
    """A SHA-256 digest as ``Content-Digest`` says it (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(digest).decode('ascii')}:"


def digest_of_field(text: str | None) -> bytes | None:
    """The SHA-256 digest in a ``Content-Digest``, or ``None``."""
    match = _DIGEST.search(text or "")
    return base64.b64decode(match[1]) if match else None


class Part(msgspec.Struct, frozen=True):
    """A part that has to be sent.

    Attributes:
        number: Its place, from 0.
        content: Its bytes.
        digest: Their SHA-256.
    """

    number: int
    content: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"Part({self.number}, {len(self.content)} bytes)"


class UploadPlan:
    """Which parts of a source have to be sent, given those that have arrived.

    Args:
        upload: The upload as the gateway knows it.
        total_bytes: Size of the source, where it is known.
        progress: Told of every part that is there.

    Raises:
        GatewayUnavailable: The gateway asks for parts of an impossible size.
    """

    def __init__(self, upload: Upload, total_bytes: int | None, progress: Progress | None) -> None:
        if not 0 < upload.part_bytes <= PART_BYTES_MAX:
            raise GatewayUnavailable("the gateway asks for parts of an impossible size", code="unexpected-answer")
        self.part_bytes = upload.part_bytes
        self.total_bytes = total_bytes
        self.count = 0
        self.taken_bytes = 0
        self._arrived = {part.part_number: part for part in upload.parts}
        self._whole = hashlib.sha256()
        self._progress = progress
        self._there_bytes = 0

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything taken."""
        return self._whole.digest()

    def take(self, content: bytes) -> Part | None:
        """The source's next part; ``None`` when the gateway has exactly these bytes in this place.

        Args:
            content: ``part_bytes`` bytes, or fewer at the end of the source.
        """
        number = self.count
        self.count += 1
        self.taken_bytes += len(content)
        self._whole.update(content)
        digest = hashlib.sha256(content).digest()
        arrived = self._arrived.get(number)
        if arrived is not None and arrived.size_bytes == len(content) and digest_of_field(arrived.digest) == digest:
            return None
        return Part(number, content, digest)

    def is_there(self, size_bytes: int) -> None:
        """A part was found there, or has been acknowledged."""
        self._there_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._there_bytes, self.total_bytes)

    def finish(self) -> None:
        """The source has ended.

        Raises:
            InvalidRequest: Before or after the size it had.
        """
        if self.total_bytes is not None and self.taken_bytes != self.total_bytes:
            raise InvalidRequest("the source changed its size while it was uploaded")


class Reader(Protocol):
    """What a source is read through: as many bytes as asked for, fewer only at its end."""

    def read(self, size: int, /) -> bytes:
        """The next ``size`` bytes."""


def size_of(source: object) -> int | None:
    """How many bytes a source holds from where it stands; ``None`` when it cannot be told."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return memoryview(source).nbytes
    try:
        if not source.seekable():  # type: ignore[attr-defined]
            return None
        here: int = source.tell()  # type: ignore[attr-defined]
        end: int = source.seek(0, io.SEEK_END)  # type: ignore[attr-defined]
        source.seek(here)  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError):
        return None
    return max(end - here, 0)


def checked_piece(piece: object) -> bytes | bytearray | memoryview:
    """A piece of content as a source gave it.

    Raises:
        InvalidRequest: It is not bytes; a file opened as text, for example.
    """
    if isinstance(piece, (bytes, bytearray)):
        return piece
    if isinstance(piece, memoryview):
        return piece.cast("B")
    raise InvalidRequest(f"content must be bytes, not {type(piece).__name__}")


class PieceBuffer:
    """Pieces of any size in, parts of one size out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, piece: bytes | bytearray | memoryview) -> None:
        """Keep a piece."""
        self._held += piece

    def take(self, size: int) -> bytes:
        """The first ``size`` bytes, or what there is."""
        taken = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return taken


class Reception:
    """What has arrived of an artifact's content, whatever number of answers it takes.

    Args:
        artifact: The artifact whose content arrives.
        start: First byte wanted.
        stop: First byte not wanted; the end when left out.
        progress: Told after every piece.
        verify: Whether to compute the digest; only of everything from byte 0.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        start: int = 0,
        stop: int | None = None,
        progress: Progress | None = None,
        verify: bool = True,
    ) -> None:
        digest = digest_of_field(artifact.digest)
        if digest is None:
            raise GatewayUnavailable("the artifact has no digest that this client knows", code="unexpected-answer")
        self._artifact = artifact
        self._stop = artifact.size_bytes if stop is None else stop
        self._progress = progress
        self._digest = digest
        self._hash = hashlib.sha256() if verify else None
        self._skip = 0
        self._etag: str | None = None
        self.position = start

    @property
    def is_complete(self) -> bool:
        """Whether everything wanted has arrived."""
        return self.position >= self._stop

    def already(self, piece: bytes) -> None:
        """Bytes that an earlier attempt left at ``position``."""
        if self._hash is not None:
            self._hash.update(piece)
        self.position += len(piece)

    def call(self) -> Call:
        """The call for what is missing."""
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if self.position > 0 or self._stop < self._artifact.size_bytes:
            headers["Range"] = f"bytes={self.position}-{self._stop - 1}"
            if self._etag is not None:
                headers["If-Range"] = self._etag
        return Call(
            method="GET",
            path=path("artifacts", ":", self._artifact.artifact_id, "content"),
            headers=headers,
            repeatable=True,
        )

    def begins(self, status: int, headers: Mapping[str, str]) -> bool:
        """An answer begins; false when it is not content.

        Raises:
            DigestMismatch: It is the content of something else.
            GatewayUnavailable: It is another range than was asked for.
        """
        if status not in {200, 206}:
            return False
        tag = headers.get("etag")
        if self._etag is not None and tag is not None and tag != self._etag:
            raise DigestMismatch("the answer holds other content than the one before")
        self._etag = tag  # opaque: what the content is the digest says, at the end
        self._skip = self.position  # something on the way does not know ranges
        if status == 206:
            match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
            if match is None or int(match[1]) != self.position:
                raise GatewayUnavailable("the answer holds another range", code="unexpected-answer", status=status)
            self._skip = 0
        return True

    def accept(self, piece: bytes) -> bytes:
        """A piece of the answer.

        Returns:
            What of it is new and wanted, in order.
        """
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        new = piece[skipped : skipped + self._stop - self.position]
        if new:
            self.already(new)
            if self._progress is not None:
                self._progress(self.position, self._artifact.size_bytes)
        return new

    def verify(self) -> None:
        """Compare the digest.

        Raises:
            DigestMismatch: What arrived is not the artifact's content.
        """
        if self._hash is not None and self._hash.digest() != self._digest:
            raise DigestMismatch("what arrived is not the artifact's content")


class Window:
    """A position in an artifact, and the content around it that is held.

    A window grows while it is read on from its end, so that reading through takes few requests, and a jump fetches
    little.

    Args:
        size_bytes: The artifact's size.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.position = 0
        self._start = 0
        self._held = b""
        self._ahead_bytes = WINDOW_BYTES_MIN

    def seek(self, offset: int, whence: int) -> int:
        """Move the position, past the end if so asked.

        Raises:
            ValueError: It would be before the beginning, or ``whence`` is unknown.
        """
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size_bytes}
        if whence not in origins:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        target = origins[whence] + offset
        if target < 0:
            raise ValueError("a position must not be negative")
        self.position = target
        return target

    def take(self, size: int) -> memoryview:
        """What is held at the position, at most ``size`` bytes, and move behind it."""
        offset = self.position - self._start
        if not 0 <= offset < len(self._held):
            return memoryview(b"")
        taken = memoryview(self._held)[offset : offset + size]
        self.position += len(taken)
        return taken

    def missing(self, size: int) -> tuple[int, int] | None:
        """The range to fetch before ``size`` bytes can be taken; ``None`` at the end."""
        if size <= 0 or self.position >= self.size_bytes:
            return None
        reads_on = self.position == self._start + len(self._held)
        self._ahead_bytes = min(self._ahead_bytes * 2, WINDOW_BYTES_MAX) if reads_on else WINDOW_BYTES_MIN
        length = min(max(size, self._ahead_bytes), WINDOW_BYTES_MAX)
        return self.position, min(self.position + length, self.size_bytes)

    def fill(self, start: int, content: bytes) -> None:
        """Hold other content."""
        self._start, self._held = start, content


def partial_name(artifact: Artifact, target_name: str) -> str:
    """The file beside a target that holds what has arrived so far, for this artifact and this target alone."""
    return f".{artifact.artifact_id}-{hashlib.sha256(os.fsencode(target_name)).hexdigest()[:8]}.partial"
