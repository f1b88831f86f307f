"""Frozen values of artifacts: what is asked for and what is given. No behaviour, no I/O."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

POINTER_PREFIX = "stateroom:artifact:"
# A size that a person still uploads; well within the 10,000 parts of an object.
ARTIFACT_BYTES_MAX = 50 * 1024**3
PREVIEW_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArtifact:
    """What a user says of a file beside its content; all of it is sealed.

    ``metadata`` is plain JSON; ``preview`` is at most `PREVIEW_BYTES_MAX` bytes of whatever the user likes.
    """

    name: str
    media_type: str = "application/octet-stream"
    metadata: dict[str, Any] = field(default_factory=dict)
    preview: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What is said of a content before it is sent.

    Attributes:
        size_bytes: Its size; so much is reserved before it is read, and a longer one is refused.
        digest: The SHA-256 that it must have.
    """

    size_bytes: int | None = None
    digest: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A version of a file that is about to get its row.

    ``number`` and ``created_at`` are of a version that another deployment made; None: the next of its name, and now.
    """

    artifact_id: UUID
    thread_id: str
    new: NewArtifact
    blob_id: UUID
    size_bytes: int
    digest: bytes
    number: int | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A stored file. ``number`` counts the versions of ``name`` in its thread; ``digest`` is the content's SHA-256.

    ``tag`` names the content to who may not learn its digest: a MAC under the subject's keys, the same for as long as
    the artifact is there. ``opened_bytes``: how long its metadata and preview are.
    """

    artifact_id: UUID
    thread_id: str
    name: str
    number: int
    media_type: str
    size_bytes: int
    digest: bytes
    tag: bytes
    metadata: dict[str, Any]
    preview: bytes | None
    created_at: datetime
    url_epoch: int
    client_share: bool
    opened_bytes: int = field(default=0, compare=False)

    @property
    def pointer(self) -> str:
        """How a state names it."""
        return f"{POINTER_PREFIX}{self.artifact_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an upload that arrived; numbers begin at 1. ``digest`` None: not known any more, send it again."""

    number: int
    size_bytes: int
    digest: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that arrives in parts of ``part_bytes``; the last may be shorter."""

    upload_id: UUID
    thread_id: str
    name: str
    part_bytes: int
    expires_at: datetime
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class ArtifactContent:
    """An artifact that is open for reading. ``read(start, length)`` gives authenticated slices of at most 1 MiB."""

    artifact: Artifact
    read: Callable[[int, int], AsyncIterator[bytes]]
