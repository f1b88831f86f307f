"""Bodies of artifacts and uploads."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.wire.base import MediaType, Name, Request, Response


class Artifact(Response, omit_defaults=True):
    """A file that a user named. ``version`` counts the versions of ``name`` in the thread.

    A version is a label, and used again when the newest one was deleted; an ``artifact_id`` never is. ``pointer`` is
    what a state holds to name it; ``digest`` is ``sha-256=:<base64>:`` of the content (RFC 9530).
    """

    artifact_id: str
    pointer: str
    thread_id: str
    name: str
    version: int
    media_type: str
    size_bytes: int
    digest: str
    metadata: dict[str, Any]
    created_at: datetime
    preview: bytes | UnsetType = UNSET


class ArtifactPage(Response):
    """A thread's artifacts, newest first."""

    artifacts: list[Artifact]
    next_cursor: str | None


class UploadRequest(Request):
    """A file that will come in parts. ``size_bytes``, where it is known, is reserved at once.

    ``metadata`` is a JSON object of at most 16 KiB, ``preview`` at most 4,096 bytes.
    """

    name: Name
    media_type: MediaType = "application/octet-stream"
    metadata: dict[str, Any] = {}
    preview: Annotated[bytes, Meta(max_length=4096)] | None = None
    size_bytes: Annotated[int, Meta(ge=0, le=50 * 1024**3)] | None = None


class UploadPart(Response):
    """A part that arrived. ``digest`` null: not known any more, send the part again."""

    part_number: int
    size_bytes: int
    digest: str | None


class Upload(Response):
    """An upload: every part but the last has ``part_bytes``. Each part that arrives moves ``expires_at``."""

    upload_id: str
    thread_id: str
    name: str
    part_bytes: int
    expires_at: datetime
    parts: list[UploadPart]


class UploadCompletion(Request):
    """How many parts there are (numbered from 0), and, if it is to be verified, the digest of the whole content."""

    parts: Annotated[int, Meta(ge=0, le=10_000)]
    digest: Annotated[str, Meta(max_length=64)] | None = None


class ArtifactCopyRequest(Request):
    """The same content in another thread, perhaps under another name. No byte is copied."""

    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    name: Name | None = None


class ArtifactUrlRequest(Request):
    """A URL for a browser. ``inline`` is for pictures (not SVG), sound, video, PDF and plain text only."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=900)] = 300
    disposition: Literal["attachment", "inline"] = "attachment"


class ArtifactUrl(Response):
    """A URL that reads one artifact until ``expires_at``, for whoever has it."""

    url: str
    expires_at: datetime
