"""Artifacts: upload whole or in parts, list, show, download, copy, delete, and signed URLs for browsers."""

import contextlib
import re
from datetime import timedelta
from hashlib import sha256
from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from msgspec import UNSET, Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, SUBJECT, TENANT
from gateway.http import artifact_headers as headers
from gateway.http.content import stream
from gateway.http.exchange import NO_FORM, Answer, Exchange, encode_id, header_lines, path_id, path_uuid, place
from gateway.problems import ArtifactUrlInvalid, BodyTooLarge, ContentChanged, InvalidRequest, UnsupportedMediaType
from gateway.routing.operations import Call, Operation, PublicCall
from gateway.wire.problems import Fault
from storage.administration.tenants import Usage
from storage.artifacts import model
from storage.encoding import encode_msgpack
from storage.errors import ArtifactNotFound, ArtifactShared, InvalidState, TenantNotFound, UploadNotFound
from storage.scope import OperatorScope, Scope, TenantScope, check_id

_SHARE = ("Stateroom-Client-Share",)
_DESCRIPTION = (headers.NAME_HEADER, headers.METADATA_HEADER, headers.PREVIEW_HEADER, headers.DIGEST_HEADER)
_WANTING = ("Want-Repr-Digest", "Want-Content-Digest")
_READING = (
    "Range", "If-Range", "If-Match-Tag", "If-None-Match-Tag", "If-Unmodified-Since", "If-Modified-Since",
)  # fmt: skip
_STORING = ("quota-exceeded", "blob-store-unavailable", "blobs-not-configured", "commit-unknown", "key-destroyed")
_CONTENT_PROBLEMS = (
    "artifact-not-found", "content-changed", "range-not-satisfiable", "blob-store-unavailable", "blobs-not-configured",
    "integrity-failure", "key-destroyed",
)  # fmt: skip
_CONTENT_HEADERS = ("ETag", "Last-Modified", "Content-Digest", "Content-Range", "Accept-Ranges", "Content-Disposition")
_PART_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_NAME = Fault(detail="must be 1 to 255 bytes of UTF-8 without control characters", pointer="/name")


class ArtifactsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of a thread's artifacts; ``name``: all versions of one name."""

    name: wire.base.Name | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


def _artifact_id(text: str) -> UUID:
    return path_uuid(text, ArtifactNotFound)


def _artifact(artifact: model.Artifact) -> wire.artifacts.Artifact:
    return wire.artifacts.Artifact.of(
        artifact,
        artifact_id=str(artifact.artifact_id),
        version=artifact.number,
        digest=headers.format_digest(artifact.digest),
        preview=UNSET if artifact.preview is None else artifact.preview,
    )


def _upload(upload: model.Upload) -> wire.artifacts.Upload:
    parts = [_part(each) for each in upload.parts]
    return wire.artifacts.Upload.of(upload, upload_id=str(upload.upload_id), parts=parts)


def _part(part: model.Part) -> wire.artifacts.UploadPart:
    digest = None if part.digest is None else headers.format_digest(part.digest)
    return wire.artifacts.UploadPart.of(part, part_number=part.number, digest=digest)


def _described(exchange: Exchange) -> model.NewArtifact:
    """What the headers of a whole upload say of it."""
    metadata = headers.parse_metadata(exchange.header(headers.METADATA_HEADER))
    wrong_type = Fault(detail="must be a media type, such as image/png", header="Content-Type")
    media_type = exchange.header("content-type") or headers.MEDIA_TYPE_DEFAULT
    if headers.is_form(media_type):
        raise UnsupportedMediaType(NO_FORM)
    return model.NewArtifact(
        name=headers.parse_name(exchange.header(headers.NAME_HEADER)),
        media_type=headers.check_media_type(media_type, wrong_type),
        metadata=headers.check_metadata(
            metadata,
            Fault(
                detail=f"must be plain JSON of at most {limits.METADATA_BYTES_MAX:,} bytes",
                header=headers.METADATA_HEADER,
            ),
        ),
        preview=headers.parse_preview(exchange.header(headers.PREVIEW_HEADER)),
    )


# --- uploading -------------------------------------------------------------------------------------------------------


@Operation(
    "POST /v1/threads/{thread_id}/artifacts",
    reach=SUBJECT,
    summary="Store a file in one request; the thread is made if there is none.",
    permission="state:write",
    raw_body=True,
    returns=wire.artifacts.Artifact,
    statuses=(201, 200),
    headers=(*_DESCRIPTION, "Idempotency-Key", *_SHARE),
    problems=("digest-mismatch", "thread-archived", "idempotency-key-reused", *_STORING),
)
async def create_artifact(call: Call[Scope], thread_id: str) -> Answer:
    thread = path_id(thread_id, "thread_id")
    description = _described(call.exchange)
    digest = headers.parse_digest(call.exchange.header(headers.DIGEST_HEADER))
    digested = encode_msgpack((description.name, description.media_type, description.metadata, description.preview))
    # Storing runs to its end once the content is there, even if the client hangs up.
    artifact = await call.commit(
        call.store.artifacts.create(
            call.scope,
            thread,
            description,
            call.exchange.content(limits.ARTIFACT_BYTES_MAX, "ARTIFACT_BYTES_MAX"),
            announced=model.Announced(size_bytes=call.exchange.announced_bytes(), digest=digest),
            idempotency=call.exchange.idempotency(thread, "msgpack", digested),
            share=call.exchange.client_share(),
        )
    )
    return call.exchange.reply(_artifact(artifact), status=201, location=place("artifacts", str(artifact.artifact_id)))


@Operation(
    "POST /v1/threads/{thread_id}/uploads",
    reach=SUBJECT,
    summary="Begin to upload a file in parts, so that it can go on after a crash.",
    permission="state:write",
    body=wire.artifacts.UploadRequest,
    returns=wire.artifacts.Upload,
    statuses=(201, 200),
    headers=("Idempotency-Key", *_SHARE),
    problems=("thread-archived", "idempotency-key-reused", *_STORING),
)
async def begin_upload(call: Call[Scope], thread_id: str) -> Answer:
    thread = path_id(thread_id, "thread_id")
    request, name, body = await call.exchange.body(wire.artifacts.UploadRequest)
    wrong = Fault(detail=f"must be plain JSON of at most {limits.METADATA_BYTES_MAX:,} bytes", pointer="/metadata")
    if headers.is_form(request.media_type):
        of_form = "must be what the file is, such as image/png; a form is how a file is sent, and not what it is"
        raise InvalidRequest(Fault(detail=of_form, pointer="/media_type"))
    description = model.NewArtifact(
        name=headers.check_name(request.name, _NAME),
        media_type=headers.check_media_type(
            request.media_type, Fault(detail="must be a media type, such as image/png", pointer="/media_type")
        ),
        metadata=headers.check_metadata(request.metadata, wrong),
        preview=request.preview,
    )
    upload = await call.commit(
        call.store.artifacts.begin(
            call.scope,
            thread,
            description,
            size_bytes=request.size_bytes,
            idempotency=call.exchange.idempotency(thread, name, body),
            share=call.exchange.client_share(),
        )
    )
    return call.exchange.reply(_upload(upload), status=201, location=place("uploads", str(upload.upload_id)))


@Operation(
    "GET /v1/uploads/{upload_id}",
    reach=SUBJECT,
    summary="Show an upload and the parts that arrived.",
    permission="state:write",
    returns=wire.artifacts.Upload,
    headers=_SHARE,
    problems=("upload-not-found", "blobs-not-configured", "integrity-failure", "key-destroyed"),
)
async def get_upload(call: Call[Scope], upload_id: str) -> Answer:
    wanted = path_uuid(upload_id, UploadNotFound)
    return call.exchange.reply(
        _upload(await call.store.artifacts.upload(call.scope, wanted, share=call.exchange.client_share()))
    )


@Operation(
    "PUT /v1/uploads/{upload_id}/parts/{part_number}",
    reach=SUBJECT,
    summary="Send one part, numbered from 0; the same bytes again change nothing, other bytes replace it.",
    permission="state:write",
    raw_body=True,
    returns=wire.artifacts.UploadPart,
    headers=(headers.DIGEST_HEADER, *_SHARE),
    problems=("upload-not-found", "part-invalid", "digest-mismatch", *_STORING),
)
async def put_upload_part(call: Call[Scope], upload_id: str, part_number: str) -> Answer:
    wanted = path_uuid(upload_id, UploadNotFound)
    if not _PART_NUMBER.fullmatch(part_number):
        raise InvalidRequest(Fault(detail="must be a number from 0 on", parameter="part_number"))
    artifacts = call.store.artifacts
    announced = call.exchange.announced_bytes()
    if announced is not None and announced > artifacts.part_bytes:
        raise BodyTooLarge("PART_BYTES_MAX", artifacts.part_bytes)
    part = await call.commit(
        artifacts.put_part(
            call.scope,
            wanted,
            int(part_number),
            call.exchange.content(artifacts.part_bytes, "PART_BYTES_MAX"),
            size_bytes=announced,
            digest=headers.parse_digest(call.exchange.header(headers.DIGEST_HEADER)),
            share=call.exchange.client_share(),
        )
    )
    return call.exchange.reply(_part(part))


@Operation(
    "POST /v1/uploads/{upload_id}/complete",
    reach=SUBJECT,
    summary="Make an artifact of all parts. Repeating it gives the same artifact.",
    permission="state:write",
    body=wire.artifacts.UploadCompletion,
    returns=wire.artifacts.Artifact,
    statuses=(201, 200),
    headers=_SHARE,
    problems=("upload-not-found", "upload-incomplete", "digest-mismatch", "thread-archived", *_STORING),
)
async def complete_upload(call: Call[Scope], upload_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.artifacts.UploadCompletion)
    wrong = Fault(detail="must be sha-256=:<base64 of 32 bytes>: (RFC 9530)", pointer="/digest")
    artifact, created = await call.commit(
        call.store.artifacts.complete(
            call.scope,
            path_uuid(upload_id, UploadNotFound),
            request.parts,
            digest=headers.parse_digest(request.digest, wrong),
            share=call.exchange.client_share(),
        )
    )
    location = place("artifacts", str(artifact.artifact_id))
    return call.exchange.reply(_artifact(artifact), status=201, location=location, replayed=not created)


@Operation(
    "DELETE /v1/uploads/{upload_id}",
    reach=SUBJECT,
    summary="Give an upload up; its parts are removed.",
    permission="state:write",
    statuses=(204,),
    problems=("upload-not-found", "blobs-not-configured"),
)
async def abort_upload(call: Call[Scope], upload_id: str) -> Answer:
    wanted = path_uuid(upload_id, UploadNotFound)
    await call.commit(call.store.artifacts.abort(call.scope, wanted))
    return Answer(204, [])


# --- artifacts -------------------------------------------------------------------------------------------------------


@Operation(
    "GET /v1/threads/{thread_id}/artifacts",
    reach=SUBJECT,
    summary="List a thread's artifacts, newest first.",
    permission="state:read",
    query=ArtifactsQuery,
    returns=wire.artifacts.ArtifactPage,
    headers=_SHARE,
    problems=("thread-not-found", "blobs-not-configured", "integrity-failure", "key-destroyed"),
)
async def list_artifacts(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(ArtifactsQuery)
    thread = path_id(thread_id, "thread_id")
    cursor = call.cursor(query.cursor, call.scope.tenant_id, call.scope.subject_id, thread, query.name)
    share = call.exchange.client_share()
    page = await call.store.artifacts.list(call.scope, thread, query.name, query.limit, cursor.after, share=share)
    artifacts = [_artifact(each) for each in page.items]
    return call.exchange.reply(wire.artifacts.ArtifactPage(artifacts=artifacts, next_cursor=cursor.next(page.after)))


@Operation(
    "GET /v1/artifacts/{artifact_id}",
    reach=SUBJECT,
    summary="Show an artifact without its content.",
    permission="state:read",
    returns=wire.artifacts.Artifact,
    headers=_SHARE,
    problems=("artifact-not-found", "blobs-not-configured", "integrity-failure", "key-destroyed"),
)
async def get_artifact(call: Call[Scope], artifact_id: str) -> Answer:
    wanted = _artifact_id(artifact_id)
    artifact = await call.store.artifacts.get(call.scope, wanted, share=call.exchange.client_share())
    return call.exchange.reply(_artifact(artifact))


@Operation(
    "DELETE /v1/artifacts/{artifact_id}",
    reach=SUBJECT,
    summary="Delete an artifact that no checkpoint names.",
    permission="state:delete",
    statuses=(204,),
    problems=("artifact-not-found", "artifact-referenced", "blobs-not-configured", "commit-unknown", "legal-hold"),
)
async def delete_artifact(call: Call[Scope], artifact_id: str) -> Answer:
    wanted = _artifact_id(artifact_id)
    await call.commit(call.store.artifacts.delete(call.scope, wanted))
    return Answer(204, [])


@Operation(
    "POST /v1/artifacts/{artifact_id}/copy",
    reach=SUBJECT,
    summary="Give the same content to another thread; no byte is copied.",
    permission="state:write",
    body=wire.artifacts.ArtifactCopyRequest,
    returns=wire.artifacts.Artifact,
    statuses=(201, 200),
    headers=("Idempotency-Key", *_SHARE),
    problems=(
        "artifact-not-found", "thread-archived", "idempotency-key-reused", "blobs-not-configured",
        "commit-unknown", "integrity-failure", "key-destroyed",
    ),
)  # fmt: skip
async def copy_artifact(call: Call[Scope], artifact_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.artifacts.ArtifactCopyRequest)
    wanted = _artifact_id(artifact_id)
    try:
        target = check_id(request.thread_id, "an id")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/thread_id")) from None
    artifact = await call.commit(
        call.store.artifacts.copy(
            call.scope,
            wanted,
            target,
            None if request.name is None else headers.check_name(request.name, _NAME),
            idempotency=call.exchange.idempotency(artifact_id, name, body),
            share=call.exchange.client_share(),
        )
    )
    return call.exchange.reply(_artifact(artifact), status=201, location=place("artifacts", str(artifact.artifact_id)))


# --- content ---------------------------------------------------------------------------------------------------------


def _allowed(exchange: Exchange, artifact: model.Artifact, tag: str) -> bool:
    """Whether the first two conditions of RFC 9110 section 13.2.2 hold; the date counts where no tag is named."""
    match = exchange.header("if-match")
    if match is not None:
        return headers.match(match, tag)
    return headers.unmodified_since(exchange.header("if-unmodified-since"), artifact.created_at)


def _known(exchange: Exchange, artifact: model.Artifact, tag: str) -> bool:
    """Whether the client has the content, by the next two."""
    none_match = exchange.header("if-none-match")
    if none_match is not None:
        return headers.none_match(none_match, tag)
    return not headers.modified_since(exchange.header("if-modified-since"), artifact.created_at)


async def _content(
    exchange: Exchange,
    content: model.ArtifactContent,
    disposition: str,
    held: contextlib.ExitStack | None = None,
    *,
    tells_digests: bool,
) -> Answer:
    """The content, or what the conditions ask for instead of it (RFC 9110, section 13.2.2).

    The digest of the plaintext is in no header, which proxies log, unless a reader who is known asks for it.
    """
    artifact = content.artifact
    fields = headers.content_headers(
        artifact.name,
        artifact.media_type,
        artifact.tag,
        artifact.created_at,
        "inline" if disposition == "inline" else "attachment",
    )
    tag = fields["etag"]
    held = held or contextlib.ExitStack()
    with contextlib.ExitStack() as letting_go:
        letting_go.push(held)
        if not _allowed(exchange, artifact, tag):
            raise ContentChanged
        if _known(exchange, artifact, tag):
            return Answer(304, header_lines({"etag": tag}))
        wanted = None
        if headers.range_condition(exchange.header("if-range"), tag):
            wanted = headers.parse_range(exchange.header("range"), artifact.size_bytes)
        digest = headers.format_digest(artifact.digest)
        if wanted is None:
            if tells_digests and headers.wants_digest(exchange.header("want-content-digest")):
                fields["content-digest"] = digest
            status, start, length = 200, 0, artifact.size_bytes
        else:
            fields["content-range"] = wanted.content_range(artifact.size_bytes)
            status, start, length = 206, wanted.start, wanted.length
        if tells_digests and headers.wants_digest(exchange.header("want-repr-digest")):
            fields["repr-digest"] = digest
        if exchange.facts.bodiless:
            return Answer(status, header_lines(fields), size_bytes=length)
        letting_go.pop_all()
        return await stream(content.read(start, length), status=status, headers=fields, size_bytes=length, held=held)


@Operation(
    "GET /v1/artifacts/{artifact_id}/content",
    reach=SUBJECT,
    summary="Download an artifact's content, or one range of it.",
    permission="state:read",
    statuses=(200, 206, 304),
    headers=(*_READING, *_WANTING, *_SHARE),
    problems=_CONTENT_PROBLEMS,
    content=True,
    extra_headers=_CONTENT_HEADERS,
)
async def get_artifact_content(call: Call[Scope], artifact_id: str) -> Answer:
    wanted = _artifact_id(artifact_id)
    content = await call.store.artifacts.open(call.scope, wanted, share=call.exchange.client_share())
    return await _content(call.exchange, content, "attachment", tells_digests=True)


@Operation(
    "POST /v1/artifacts/{artifact_id}/urls",
    reach=SUBJECT,
    summary="Make a URL that reads the artifact for a few minutes without a credential, for a browser.",
    permission="state:read",
    body=wire.artifacts.ArtifactUrlRequest,
    returns=wire.artifacts.ArtifactUrl,
    headers=_SHARE,
    problems=(
        "artifact-not-found", "artifact-shared", "blobs-not-configured", "integrity-failure", "key-destroyed",
    ),
)  # fmt: skip
async def create_artifact_url(call: Call[Scope], artifact_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.artifacts.ArtifactUrlRequest)
    wanted = _artifact_id(artifact_id)
    artifact = await call.store.artifacts.get(call.scope, wanted, share=call.exchange.client_share())
    if artifact.client_share:
        raise ArtifactShared
    if request.disposition == "inline" and not headers.may_show(artifact.media_type):
        detail = "inline is for pictures (not SVG), sound, video, PDF and plain text; others are attachments"
        raise InvalidRequest(Fault(detail=detail, pointer="/disposition"))
    expires_at = (call.services.clock.now() + timedelta(seconds=request.ttl_seconds)).replace(microsecond=0)
    token = call.services.artifact_urls.write(
        tenant_id=call.scope.tenant_id,
        subject_id=call.scope.subject_id,
        artifact_id=wanted,
        epoch=artifact.url_epoch,
        expires_at=expires_at,
        disposition=request.disposition,
    )
    url = f"{call.services.settings.public_url}/v1/artifact-urls/{quote(token, safe='')}"
    return call.exchange.reply(wire.artifacts.ArtifactUrl(url=url, expires_at=expires_at))


@Operation(
    "DELETE /v1/artifacts/{artifact_id}/urls",
    reach=SUBJECT,
    summary="Revoke every URL of the artifact made so far.",
    permission="state:write",
    statuses=(204,),
    problems=("artifact-not-found", "blobs-not-configured", "commit-unknown", "integrity-failure", "key-destroyed"),
)
async def revoke_artifact_urls(call: Call[Scope], artifact_id: str) -> Answer:
    wanted = _artifact_id(artifact_id)
    await call.commit(call.store.artifacts.revoke_urls(call.scope, wanted))
    return Answer(204, [])


@Operation(
    "GET /v1/artifact-urls/{token}",
    summary="The content a signed URL was made for, or one range of it.",
    statuses=(200, 206, 304),
    headers=_READING,
    problems=(
        "artifact-url-invalid", "not-found", "invalid-request", "overloaded", "draining", "tenant-busy",
        "database-unavailable", "key-unavailable", *_CONTENT_PROBLEMS,
    ),
    content=True,
    extra_headers=_CONTENT_HEADERS,
)  # fmt: skip
async def read_artifact_url(call: PublicCall, token: str) -> Answer:
    grant = call.services.artifact_urls.read(token, method="GET", now=call.services.clock.now())
    try:
        scope = Scope(grant.tenant_id, grant.subject_id)
    except InvalidState:
        raise ArtifactUrlInvalid from None
    call.exchange.facts.access = (
        grant.tenant_id,
        f"artifact-url:{sha256(token.encode()).hexdigest()[:16]}",
        f"subject/{encode_id(grant.subject_id)}/artifact/{grant.artifact_id}",
    )
    with contextlib.ExitStack() as admitted:
        admitted.enter_context(call.services.admission.tenant(grant.tenant_id))
        try:
            content = await call.store.artifacts.open(scope, grant.artifact_id)
        except ArtifactNotFound:
            raise ArtifactUrlInvalid from None  # a URL must not tell whether its artifact is still there
        if content.artifact.url_epoch != grant.epoch or await call.store.tenants.is_suspended(grant.tenant_id):
            raise ArtifactUrlInvalid
        return await _content(call.exchange, content, grant.disposition, admitted.pop_all(), tells_digests=False)


# --- quota -----------------------------------------------------------------------------------------------------------


def _usage(tenant_id: UUID, usage: Usage) -> wire.tenants.TenantUsage:
    return wire.tenants.TenantUsage.of(usage, tenant_id=str(tenant_id), used_bytes=usage.bytes)


@Operation(
    "GET /v1/usage",
    reach=TENANT,
    summary="How many bytes the tenant keeps in the object store and in the database, and how many it may.",
    permission="tenant:admin",
    returns=wire.tenants.TenantUsage,
)
async def get_usage(call: Call[TenantScope]) -> Answer:
    tenant_id = call.scope.tenant_id
    return call.exchange.reply(_usage(tenant_id, await call.store.tenants.usage(call.scope, tenant_id)))


@Operation(
    "GET /v1/admin/tenants/{tenant_id}/usage",
    reach=OPERATORS,
    summary="How many bytes a tenant keeps in the object store and in the database, and how many it may.",
    permission="operator",
    returns=wire.tenants.TenantUsage,
    problems=("not-found",),
)
async def get_tenant_usage(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    return call.exchange.reply(_usage(wanted, await call.store.tenants.usage(call.scope, wanted)))


@Operation(
    "PATCH /v1/admin/tenants/{tenant_id}/usage",
    reach=OPERATORS,
    summary="Say how many bytes a tenant may keep. Less than it keeps removes nothing, and refuses more.",
    permission="operator",
    body=wire.tenants.Quota,
    returns=wire.tenants.TenantUsage,
    problems=("not-found", "commit-unknown"),
)
async def set_tenant_quota(call: Call[OperatorScope], tenant_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.tenants.Quota)
    wanted = path_uuid(tenant_id, TenantNotFound)
    setting = call.store.tenants.set_quota(
        wanted, request.quota_bytes, call.actor, rows_quota_bytes=request.rows_quota_bytes
    )
    usage = await call.commit(setting)
    return call.exchange.reply(_usage(wanted, usage))
