"""The requests about artifacts, as steps without I/O.

This module owns paths, bodies and descriptions; ``transfers`` owns what of a content has arrived, and
``async_artifacts`` decides how much runs at once.
"""

import base64
import hashlib
import mimetypes
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import msgspec

from stateroom._artifacts.transfers import Part, UploadPlan, digest_field, digest_of_field
from stateroom._protocol.core import Call, Steps, asked, asked_or, encode_body, path
from stateroom._protocol.wire import (
    ArtifactCopyRequest,
    ArtifactPage,
    CompleteRequest,
    UploadRequest,
    UrlRequest,
    unset_if_none,
)
from stateroom.errors import (
    ArtifactNotFound,
    DigestMismatch,
    InvalidRequest,
    UploadNotFound,
)
from stateroom.types import Artifact, Disposition, SignedUrl, Upload

POINTER_PREFIX = "stateroom:artifact:"
PART_BYTES = 8 * 1024 * 1024  # less goes up in one request
PARTS_AT_ONCE = 4
URL_TTL_SECONDS = 300
HEADERS_CHARACTERS_MAX = 4096  # what every proxy passes on; a description that is longer travels in a body
TRANSFER_SECONDS = 30.0  # the gateway answers a part after it stored it
READ_BACK_BYTES_PER_SECOND = 20 * 1024 * 1024  # what a gateway reads parts back with, at the least

_NAME_SAFE = "!#$&+^`|"  # with what quote never touches: attr-char of RFC 8187, 3.2.1
_MEDIA_TYPE = re.compile(r"[!#$&^_.+A-Za-z0-9-]+/[!#$&^_.+A-Za-z0-9-]+(?:[ \t]*;[\x20-\x7e]*)?")


def artifact_id_of(artifact: Artifact | str) -> str:
    """The id of an artifact, of its pointer, or the id itself.

    Raises:
        InvalidRequest: It is neither.
    """
    text = artifact.artifact_id if isinstance(artifact, Artifact) else artifact.removeprefix(POINTER_PREFIX)
    try:
        is_canonical = str(UUID(text)) == text
    except ValueError:
        is_canonical = False
    if not is_canonical:
        raise InvalidRequest(f"an artifact is named by its id, or by {POINTER_PREFIX} and its id")
    return text


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says about an artifact.

    Attributes:
        name: Its name; versions of a name are numbered within a thread.
        media_type: Its media type.
        metadata: A JSON object.
        preview: A thumbnail or summary.
    """

    name: str
    media_type: str
    metadata: Mapping[str, Any] = {}
    preview: bytes | None = None

    def headers(self) -> dict[str, str]:
        """The headers that say it beside a raw body.

        Raises:
            InvalidRequest: The metadata has no JSON form.
        """
        headers = {
            "Content-Type": self.media_type,
            "Stateroom-Artifact-Name": "UTF-8''" + quote(self.name, safe=_NAME_SAFE),
        }
        if self.metadata:
            headers["Stateroom-Artifact-Metadata"] = _base64url(_json(self.metadata))
        if self.preview is not None:
            headers["Stateroom-Artifact-Preview"] = _base64url(self.preview)
        return headers


def goes_up_in_one(description: Description, content: bytes) -> bool:
    """Whether one request is enough: less than a part, described in headers of ordinary length."""
    return (
        len(content) < PART_BYTES
        and sum(len(name) + len(text) for name, text in description.headers().items()) <= HEADERS_CHARACTERS_MAX
    )


def describe(
    source: object,
    *,
    name: str | None = None,
    media_type: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    preview: bytes | None = None,
) -> Description:
    """Fill in what a source says about itself.

    Args:
        source: A path, a file or anything else; a path or a named file gives the name.
        name: The name, when it is not the file's.
        media_type: The media type; guessed from the name when left out.
        metadata: A JSON object.
        preview: A thumbnail or summary.

    Raises:
        InvalidRequest: There is no name, or something cannot be said in a header.
    """
    if name is None:
        path_or_name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", None)
        if isinstance(path_or_name, (str, os.PathLike)):
            name = os.path.basename(os.fspath(path_or_name))  # noqa: PTH119 - a path of bytes has no Path
    if not name or not isinstance(name, str):
        raise InvalidRequest("an artifact needs a name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("an artifact's name must be valid Unicode text") from None
    if media_type is None:
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise InvalidRequest("the media type is not one")
    return Description(name=name, media_type=media_type, metadata=dict(metadata or {}), preview=preview)


def _json(metadata: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(metadata)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"the metadata has no JSON form: {type(error).__name__}") from None


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def create(thread_id: str, description: Description, content: bytes) -> Steps[Artifact]:
    """Store an artifact in one request."""
    digest = hashlib.sha256(content).digest()
    answer = yield Call(
        method="POST",
        path=path("threads", ":", thread_id, "artifacts"),
        body=content,
        headers={
            **description.headers(),
            "Content-Digest": digest_field(digest),
            "Idempotency-Key": str(uuid4()),
        },
        repeatable=True,
        extra_seconds=TRANSFER_SECONDS,
    )
    return _stored(answer.decode(Artifact), digest)


def begin(
    thread_id: str, description: Description, size_bytes: int | None, idempotency_key: str | None = None
) -> Steps[Upload]:
    """Begin a resumable upload, or say which one was begun under a key."""
    _json(description.metadata)
    body = UploadRequest(
        name=description.name,
        media_type=description.media_type,
        metadata=dict(description.metadata),
        preview=description.preview,
        size_bytes=unset_if_none(size_bytes),
    )
    call = Call(
        method="POST",
        path=path("threads", ":", thread_id, "uploads"),
        body=encode_body(body),
        headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        repeatable=True,
    )
    return asked(call, Upload)


def show_upload(upload_id: str) -> Steps[Upload]:
    """An upload and the parts that have arrived."""
    return asked(Call(method="GET", path=path("uploads", ":", upload_id), repeatable=True), Upload)


def put_part(upload_id: str, part: Part) -> Steps[None]:
    """Store a part; the same part again changes nothing."""
    yield Call(
        method="PUT",
        path=path("uploads", ":", upload_id, "parts", ":", str(part.number)),
        body=part.content,
        headers={"Content-Type": "application/octet-stream", "Content-Digest": digest_field(part.digest)},
        repeatable=True,
        extra_seconds=TRANSFER_SECONDS,
    )


def complete(upload_id: str, plan: UploadPlan) -> Steps[Artifact]:
    """Make an artifact of the parts; may be repeated, with the same artifact for an answer."""
    answer = yield Call(
        method="POST",
        path=path("uploads", ":", upload_id, "complete"),
        body=encode_body(CompleteRequest(parts=plan.count, digest=digest_field(plan.digest))),
        repeatable=True,
        extra_seconds=TRANSFER_SECONDS + plan.taken_bytes / READ_BACK_BYTES_PER_SECOND,
    )
    return _stored(answer.decode(Artifact), plan.digest)


def _stored(artifact: Artifact, digest: bytes) -> Artifact:
    if digest_of_field(artifact.digest) != digest:
        raise DigestMismatch("the gateway stored other bytes than were sent")
    return artifact


def abort(upload_id: str) -> Steps[bool]:
    """Give an upload up; false when there is none (which is also what a repeated attempt finds)."""
    call = Call(method="DELETE", path=path("uploads", ":", upload_id), repeatable=True)
    try:
        yield call
    except UploadNotFound:
        return False
    return True


def get(artifact: Artifact | str) -> Steps[Artifact]:
    """An artifact without its content."""
    return asked(Call(method="GET", path=path("artifacts", ":", artifact_id_of(artifact)), repeatable=True), Artifact)


def fetched(artifact: Artifact | str) -> Steps[Artifact]:
    """An artifact, asked for only when it is not known."""
    if isinstance(artifact, Artifact):
        return artifact
    return (yield from get(artifact))


def list_page(thread_id: str, name: str | None, limit: int, cursor: str | None) -> Steps[ArtifactPage]:
    """A page of a thread's artifacts; an unknown thread has none."""
    call = Call(
        method="GET",
        path=path("threads", ":", thread_id, "artifacts"),
        query=(("name", name), ("limit", limit), ("cursor", cursor)),
        repeatable=True,
    )
    return asked_or(call, ArtifactPage, ArtifactPage(items=[]))


def delete(artifact: Artifact | str) -> Steps[bool]:
    """Delete an artifact; false when there was none (which is also what a repeated attempt finds)."""
    call = Call(method="DELETE", path=path("artifacts", ":", artifact_id_of(artifact)), repeatable=True)
    try:
        yield call
    except ArtifactNotFound:
        return False
    return True


def copy(artifact: Artifact | str, thread_id: str, name: str | None) -> Steps[Artifact]:
    """Name the same content in another thread."""
    call = Call(
        method="POST",
        path=path("artifacts", ":", artifact_id_of(artifact), "copy"),
        body=encode_body(ArtifactCopyRequest(thread_id=thread_id, name=unset_if_none(name))),
        headers={"Idempotency-Key": str(uuid4())},
        repeatable=True,
    )
    return asked(call, Artifact)


def make_url(artifact: Artifact | str, ttl_seconds: int, disposition: Disposition) -> Steps[SignedUrl]:
    """Make a signed URL; one too many, after a lost answer, ends by itself."""
    call = Call(
        method="POST",
        path=path("artifacts", ":", artifact_id_of(artifact), "urls"),
        body=encode_body(UrlRequest(ttl_seconds=ttl_seconds, disposition=disposition)),
        repeatable=True,
    )
    return asked(call, SignedUrl)


def revoke_urls(artifact: Artifact | str) -> Steps[None]:
    """End all URLs made so far."""
    yield Call(method="DELETE", path=path("artifacts", ":", artifact_id_of(artifact), "urls"), repeatable=True)
