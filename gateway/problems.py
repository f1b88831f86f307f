"""What the gateway says when it refuses: one table from exception to problem (RFC 9457).

Owns the gateway's own exceptions and the codes, which are stable. A problem names what was wrong and where;
it never carries state, keys, SQL or the text of an error that is not ours. ``python -m gateway.problems``
prints the page ``docs/problems.md``.
"""

import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType, inspect

from crypto import errors as crypto_errors
from gateway.admission import limits
from gateway.wire.base import NOT_BLANK, WITHOUT_NUL, alternatives
from gateway.wire.problems import Fault, Problem
from migrations.state import errors as state_errors
from storage import errors as storage_errors
from storage.access.strictness import AgentUnsure
from storage.blobs.store import (
    BlobExists,
    BlobFrozen,
    BlobNotFound,
    BlobUnavailable,
    BucketElsewhere,
    MultipartNotFound,
    PartMismatch,
)
from storage.ledger.streams import BlobDamaged, BlobTooLarge

# What the bounds of shapes in `gateway.wire` are called: by type and member, or else by type and bound.
_LIMITS = {
    ("int", "limit"): "PAGE_ITEMS_MAX",
    ("str", "namespace"): "NAMESPACE_BYTES_MAX",
    ("array", "channel"): "CHANNELS_MAX",
    ("array", "history"): "CHANNELS_MAX",
    ("array", "writes"): "WRITES_MAX",
    ("array", "thread_ids"): "BULK_ITEMS_MAX",
    ("array", "run_ids"): "BULK_ITEMS_MAX",
    ("array", "10000"): "HOLES_MAX",
    ("str", "255"): "NAME_BYTES_MAX",
    ("str", "1024"): "ID_CHARACTERS_MAX",
    ("str", "2048"): "TASK_PATH_CHARACTERS_MAX",
    ("str", "64"): "WORD_CHARACTERS_MAX",
    ("bytes", "4096"): "PREVIEW_BYTES_MAX",
}


class GatewayError(Exception):
    """The gateway refused the request before storage saw it; the message is for the client."""


class InvalidRequest(GatewayError):
    """The request is readable but wrong; `faults` say where, and `limit` names the limit it exceeds, if it does.

    No more than `limits.FAULTS_MAX` of the faults are told; whoever finds them can stop at one more.
    """

    def __init__(self, *faults: Fault, limit: str | None = None) -> None:
        detail = faults[0].detail if faults else "the request is wrong"
        if len(faults) > limits.FAULTS_MAX:
            detail += f"; errors has the first {limits.FAULTS_MAX} faults, and there are more"
        elif len(faults) > 1:
            detail += f"; errors has all {len(faults)} faults"
        super().__init__(detail)
        self.faults = list(faults[: limits.FAULTS_MAX])
        self.limit = limit


class OperationUnknown(GatewayError):
    """No operation has this path."""

    def __init__(self) -> None:
        super().__init__(NOT_FOUND.advice)


class MethodUnknown(GatewayError):
    """No operation of the path has this method; those of ``allowed`` there are."""

    def __init__(self, allowed: str) -> None:
        super().__init__(_METHOD_UNKNOWN.advice)
        self.allowed = allowed


class HttpMalformed(GatewayError):
    """What came is no request of HTTP, or one that nobody reads alike."""

    def __init__(self) -> None:
        super().__init__(_BAD_REQUEST.advice)


class PathUnknown(GatewayError):
    """No operation has this path, or it is not the path's one spelling."""

    def __init__(self) -> None:
        super().__init__(
            "nothing has this path: no slash at the end or twice, nothing encoded that need not be; an id with a slash "
            "or any other character but A-Z a-z 0-9 . _ : @ | + -, travels as ~ and its base64url"
        )


class HostInvalid(GatewayError):
    """The request says no host, or several."""

    def __init__(self) -> None:
        super().__init__("send the header Host, once")


class HttpVersionUnsupported(GatewayError):
    """The request line says another version of HTTP than those that are served here."""

    def __init__(self) -> None:
        super().__init__("the request line must end in HTTP/1.1 or HTTP/1.0")


class MalformedBody(GatewayError):
    """The body is empty, does not parse, or names a member twice."""


class BodyTimeout(GatewayError):
    """The body did not arrive in time."""


class BodyTooLarge(GatewayError):
    """The body is larger than allowed."""

    def __init__(self, limit: str = "BODY_BYTES_MAX", allowed: int = limits.BODY_BYTES_MAX) -> None:
        super().__init__(f"a body may have {allowed:,} bytes ({limit})")
        self.limit = limit


class RangeNotSatisfiable(GatewayError):
    """None of the content is in the range that was asked for."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"the content has {size_bytes:,} bytes, and none of them is in that range")
        self.size_bytes = size_bytes


class ContentChanged(GatewayError):
    """The content has none of the entity tags that If-Match names."""

    def __init__(self) -> None:
        super().__init__("the content is another than the one If-Match names")


class ArtifactUrlInvalid(GatewayError):
    """The URL is not valid, or not valid any more; deliberately does not say which."""

    def __init__(self) -> None:
        super().__init__("the URL was never given like this, has expired, or was revoked")


class UnsupportedMediaType(GatewayError):
    """The Content-Type, or its Content-Encoding, is not one the gateway reads."""


class NotAcceptable(GatewayError):
    """The Accept header admits nothing the gateway writes."""


class Unauthenticated(GatewayError):
    """The credential is missing or not valid; deliberately does not say which."""

    def __init__(self) -> None:
        super().__init__("send Authorization: Bearer <API key> with a key that is valid now")


class TenantSuspended(GatewayError):
    """An operator suspended the tenant of this credential."""

    def __init__(self) -> None:
        super().__init__("an operator suspended this tenant; what it stored is kept")


class PermissionDenied(GatewayError):
    """The credential is valid but may not do this."""


class SubjectRequired(GatewayError):
    """A service key has to say for which subject it acts."""

    def __init__(self) -> None:
        super().__init__("a service key names the subject it acts for in the header Stateroom-Subject")


class SubjectMismatch(GatewayError):
    """A subject's key named another subject."""

    def __init__(self) -> None:
        super().__init__("this key belongs to another subject than Stateroom-Subject names")


@dataclass(frozen=True, slots=True)
class Kind:
    """One code: what it means and what to do about it. ``retry_after_seconds`` None: no Retry-After."""

    status: int
    code: str
    title: str
    retryable: bool
    advice: str
    retry_after_seconds: float | None = None


INTERNAL = Kind(500, "internal", "Internal error", False, "Report the request_id to the operator.")
NOT_FOUND = Kind(404, "not-found", "Not found", False, "Check the path and the identifiers in it.")
_METHOD_UNKNOWN = Kind(
    405, "method-not-allowed", "Method not allowed", False, "Use a method the Allow header lists."
)  # fmt: skip
_BAD_REQUEST = Kind(400, "bad-request", "Bad request", False, "The HTTP request itself is wrong.")
_INVALID = Kind(
    422, "invalid-request", "Invalid request", False,
    "Each entry of errors[] names a JSON pointer, a query parameter or a header; mend all of them, then send it again.",
)  # fmt: skip
_INTEGRITY = Kind(
    500, "integrity-failure", "Integrity failure", False,
    "Stored state was altered or lost outside the gateway. Tell the operator; do not retry.",
)  # fmt: skip
_KEY_UNAVAILABLE = Kind(
    503, "key-unavailable", "Key unavailable", True,
    "The root key service did not serve the tenant's key. Retry after Retry-After.", 5.0,
)  # fmt: skip
_PERMISSION = Kind(
    403,
    "permission-denied",
    "Permission denied",
    False,
    "Use a key that has the permission the detail names.",
)
_TOO_NEW = Kind(
    409, "state-too-new", "State too new", False,
    "Register the version that the detail names, upgrade the reader, or give the step a way back.",
)  # fmt: skip
_CONFLICT = Kind(409, "conflict", "Conflict", False, "Load the current state and decide again.")

_BLOBS_UNAVAILABLE = Kind(
    503, "blob-store-unavailable", "Blob store unavailable", True,
    "The object store did not answer; retry after Retry-After.", 1.0,
)  # fmt: skip
_DATABASE_UNAVAILABLE = Kind(
    503,
    "database-unavailable",
    "Database unavailable",
    True,
    "Nothing was changed; retry after Retry-After.",
    1.0,
)

# The one table. An exception without a row of its own class takes its nearest ancestor's.
OVERLOADED = Kind(503, "overloaded", "Overloaded", True, "Retry after Retry-After; send fewer requests at once.", 1.0)
_STATE_TOO_LARGE = Kind(
    413,
    "state-too-large",
    "State too large",
    False,
    "Its values do not fit one answer. Ask for MessagePack with pieces=refs and fetch large parts one by one; read "
    "pending writes task by task, and channels one by one where they can be named. What to do where that is not "
    "enough is in the documentation of large values.",
)
_QUOTA_EXCEEDED = Kind(
    403,
    "quota-exceeded",
    "Quota exceeded",
    False,
    "The member limit says which. quota_bytes: delete artifacts or threads; space comes back when the sweeper has "
    "removed the objects. rows_quota_bytes: prune, delete or archive threads; space comes back with the next "
    "count. Or ask the operator for a larger quota.",
)
_NO_THREAD = "can't start new thread"  # CPython's words for memory that a thread's stack does not get

TABLE: dict[type[Exception], Kind] = {
    Exception: INTERNAL,
    GatewayError: INTERNAL,
    limits.Refused: OVERLOADED,
    limits.Overloaded: OVERLOADED,
    limits.HeadersTooLarge: Kind(
        431, "headers-too-large", "Headers too large", False,
        f"The target and headers of a request have at most {limits.HEADER_BYTES_MAX:,} bytes and {limits.HEADERS_MAX} "
        "fields; the member limit says which it was.",
    ),
    limits.Draining: Kind(503, "draining", "Draining", True, "Retry: another process answers.", 1.0),
    limits.TenantBusy: Kind(
        429, "tenant-busy", "Tenant busy", True, "The tenant sends too many at once; retry later.", 1.0
    ),
    limits.TooManyFailures: Kind(
        429, "too-many-failures", "Too many failures", True,
        "Retry after Retry-After. A key made by this release is never refused for other callers' failures: replace an "
        "older one.", 1.0,
    ),
    limits.ThreadBusy: Kind(
        429, "thread-busy", "Thread busy", True, "Too many writes wait for this thread; retry later.", 1.0
    ),
    limits.TransferBusy: Kind(
        429, "transfer-busy", "Transfers busy", True, "Wait until the transfer that is under way has ended.", 30.0
    ),
    Unauthenticated: Kind(
        401, "unauthenticated", "Not authenticated", False,
        "Send a valid API key; unknown, expired and revoked look alike.",
    ),
    TenantSuspended: Kind(
        403, "tenant-suspended", "Tenant suspended", False,
        "Ask the operator: all keys of the tenant are refused until it is resumed.",
    ),
    PermissionDenied: _PERMISSION,
    SubjectRequired: Kind(
        400, "subject-required", "Subject required", False, "Send Stateroom-Subject with a service key."
    ),
    SubjectMismatch: Kind(
        403, "subject-mismatch", "Subject mismatch", False,
        "Drop Stateroom-Subject, or use that subject's key.",
    ),
    InvalidRequest: _INVALID,
    MalformedBody: Kind(
        400, "malformed-body", "Malformed body", False,
        "Send valid UTF-8 JSON or MessagePack in which no object names a member twice.",
    ),
    BodyTimeout: Kind(408, "body-timeout", "Body timeout", True, "Send the body without long pauses.", 1.0),
    BodyTooLarge: Kind(
        413, "body-too-large", "Body too large", False,
        f"A body has at most {limits.BODY_BYTES_MAX:,} bytes; store large files as artifacts.",
    ),
    RangeNotSatisfiable: Kind(
        416, "range-not-satisfiable", "Range not satisfiable", False, "Content-Range says how long the content is."
    ),
    ContentChanged: Kind(
        412, "content-changed", "Content changed", False, "Load the artifact again: its ETag is of other content."
    ),
    ArtifactUrlInvalid: Kind(
        403, "artifact-url-invalid", "Artifact URL invalid", False,
        "URLs are valid for minutes and can be revoked: ask for a new one.",
    ),
    UnsupportedMediaType: Kind(
        415, "unsupported-media-type", "Unsupported media type", False,
        "Send Content-Type: application/json or application/msgpack, uncompressed.",
    ),
    NotAcceptable: Kind(
        406, "not-acceptable", "Not acceptable", False, "Accept application/json or application/msgpack."
    ),
    OperationUnknown: NOT_FOUND,
    MethodUnknown: _METHOD_UNKNOWN,
    PathUnknown: NOT_FOUND,
    HostInvalid: _BAD_REQUEST,
    HttpVersionUnsupported: Kind(
        505, "http-version-unsupported", "HTTP version not supported", False,
        "Speak HTTP/1.1. HTTP/2 ends at a proxy before the gateway.",
    ),
    HttpMalformed: _BAD_REQUEST,
    storage_errors.StorageError: INTERNAL,
    storage_errors.NotFound: NOT_FOUND,
    storage_errors.ThreadNotFound: Kind(
        404, "thread-not-found", "Thread not found", False, "The subject has no such thread."
    ),
    storage_errors.CheckpointNotFound: Kind(
        404, "checkpoint-not-found", "Checkpoint not found", False,
        "The thread and namespace have no such checkpoint.",
    ),
    storage_errors.ArtifactNotFound: Kind(
        404, "artifact-not-found", "Artifact not found", False, "The subject has no such artifact."
    ),
    storage_errors.UploadNotFound: Kind(
        404, "upload-not-found", "Upload not found", False,
        "The subject has no such upload: it was completed, removed, or has expired. Begin another one.",
    ),
    storage_errors.TenantNotFound: NOT_FOUND,
    storage_errors.ApiKeyNotFound: NOT_FOUND,
    storage_errors.AnchorNotFound: NOT_FOUND,
    storage_errors.SubjectNotFound: NOT_FOUND,
    storage_errors.JobNotFound: NOT_FOUND,
    storage_errors.Conflict: _CONFLICT,
    storage_errors.CheckpointExists: Kind(
        409, "checkpoint-exists", "Checkpoint exists", False,
        "Checkpoints are written once: choose another id, or load the one that is stored.",
    ),
    storage_errors.ThreadExists: Kind(
        409, "thread-exists", "Thread exists", False, "Copy to a free id, or delete that thread."
    ),
    storage_errors.ThreadArchived: Kind(
        409, "thread-archived", "Thread archived", True,
        "Its object must be thawed before the thread can be read or written to. Begin to restore it, unless `state` "
        "says that it is thawing, and ask again after Retry-After. Reading begins nothing.",
        60.0,
    ),
    storage_errors.ArchiveUnavailable: Kind(
        409, "archive-unavailable", "No archive", False,
        "This deployment has no bucket of archives; the operator sets STATEROOM_ARCHIVE_URL.",
    ),
    storage_errors.ArchiveTooLarge: Kind(
        409, "archive-too-large", "Archive too large", False,
        "The thread is larger than one archive, or than this process restores. Prune or thin it first.",
    ),
    storage_errors.ThreadActive: Kind(
        409, "thread-active", "Thread active", True,
        "The thread was written to while it was archived; it stays hot. Archive it when it rests.", 5.0,
    ),
    storage_errors.RestoreNeeded: Kind(
        409, "restore-needed", "Restore needed", False,
        "The thread's archive is too large to be read where it is: restore the thread, then read it.",
    ),
    storage_errors.ChannelUnchangedUnknown: Kind(
        409, "channel-unchanged-unknown", "Unchanged channel unknown", False,
        "The parent does not hold the channel at that version: send every channel with its data.",
    ),
    storage_errors.DeltaChainNeeded: Kind(
        409, "delta-chain-needed", "Delta chain needed", False,
        "A checkpoint that stays is rebuilt from this run's writes; delete the later runs too.",
    ),
    storage_errors.WritesPending: Kind(
        409, "writes-pending", "Writes pending", False,
        "Tasks have written to the head: compact after the save that takes up what they wrote.",
    ),
    storage_errors.TenantNameTaken: Kind(
        409, "tenant-name-taken", "Tenant name taken", False, "Another tenant has this name: choose another one."
    ),
    storage_errors.LastAdminKey: Kind(
        409, "last-admin-key", "Last administration key", False,
        "Make another key that administers first, or repeat with force=true: an operator can recover a tenant, and"
        " stateroom init --another makes an operator's key.",
    ),
    storage_errors.LegalHold: Kind(
        409, "legal-hold", "Legal hold", False,
        "A hold keeps the thread, its agent or the tenant: nothing can be removed before a tenant:admin lifts it.",
    ),
    storage_errors.RetentionPoliciesExceeded: _CONFLICT,
    storage_errors.SavePoliciesExceeded: _CONFLICT,
    storage_errors.ArtifactReferenced: Kind(
        409, "artifact-referenced", "Artifact referenced", False,
        "A checkpoint names it. Prune or delete what does, then delete the artifact.",
    ),
    storage_errors.ArtifactShared: Kind(
        409, "artifact-shared", "Artifact takes a share", False,
        "Its content opens only with the client-held share, which a URL cannot carry: download it with the share.",
    ),
    storage_errors.UploadIncomplete: Kind(
        409, "upload-incomplete", "Upload incomplete", False,
        "GET the upload to see which parts arrived, send the others, then complete it.",
    ),
    storage_errors.ArtifactUnknown: Kind(
        422, "artifact-unknown", "Artifact unknown", False,
        "errors[] says where the state names an artifact that the subject does not have. Upload it first.",
    ),
    storage_errors.ParentUnknown: Kind(
        422, "parent-unknown", "Parent unknown", False,
        "The namespace has no checkpoint of that id: it was removed, lost with an older backup, or never was. Load the "
        "thread and save on what is there, or send parent_id null for a checkpoint without a parent.",
    ),
    storage_errors.PieceUnknown: Kind(
        409, "piece-unknown", "Piece unknown", False,
        "A placeholder names a piece that the thread does not have (any more). Upload it again and repeat the request.",
    ),
    storage_errors.PieceNotFound: Kind(
        404, "piece-not-found", "Piece not found", False,
        "The thread has no such piece: it was never uploaded, or removed because nothing named it.",
    ),
    storage_errors.StateTooLarge: _STATE_TOO_LARGE,
    limits.AnswerTooLarge: _STATE_TOO_LARGE,
    storage_errors.DigestMismatch: Kind(
        400, "digest-mismatch", "Digest mismatch", False,
        "What arrived is not what the digest was made of; send it again. Nothing was stored.",
    ),
    storage_errors.PartInvalid: Kind(
        422, "part-invalid", "Part invalid", False,
        "Parts are numbered from 0 and have part_bytes bytes each; only the last may be shorter.",
    ),
    storage_errors.QuotaExceeded: _QUOTA_EXCEEDED,
    storage_errors.RowQuotaExceeded: _QUOTA_EXCEEDED,
    storage_errors.BlobsNotConfigured: Kind(
        501, "blobs-not-configured", "No object store", False,
        "This deployment has no object store; the operator sets STATEROOM_S3_URL.",
    ),
    storage_errors.StateSchemaNotFound: Kind(
        404, "state-schema-not-found", "State schema not found", False, "Register it: PUT its version 1."
    ),
    storage_errors.StateSchemaExists: Kind(
        409, "state-schema-exists", "State schema version exists", False,
        "A registered version never changes: register the next one.",
    ),
    storage_errors.JobNotDamaged: Kind(
        409, "job-not-damaged", "Job not damaged", False,
        "A gateway wrote this job; only one whose row was written or edited outside the gateway is put aside.",
    ),
    storage_errors.JobNotCancellable: Kind(
        409, "job-not-cancellable", "Job not cancellable", False,
        "Shreds, rotations and re-seals go on to their end: what they left behind half done could not stay so.",
    ),
    storage_errors.JobCancelled: Kind(
        409, "job-cancelled", "Job cancelled", False,
        "Somebody cancelled the job of this transfer. Threads that came before are whole and stay.",
    ),
    storage_errors.StateSchemaInvalid: _INVALID,
    storage_errors.StateTooNewToSave: _TOO_NEW,
    storage_errors.StateVersionRequired: Kind(
        422, "state-version-required", "State version required", False,
        "Name state_schema and state_version: unversioned state of this agent was adopted, and what is saved since has "
        "to say what it is.",
    ),
    storage_errors.AdoptionExists: Kind(
        409, "adoption-exists", "Adoption exists", False,
        "Unversioned state is adopted once. To correct that, send supersede: true, before anything is saved on top.",
    ),
    storage_errors.AdoptionBuiltOn: Kind(
        409, "adoption-built-on", "Adoption built on", False,
        "State was saved at a version on top of what was adopted, and was made of it as it was taken for: register a "
        "next version whose step mends it.",
    ),
    storage_errors.FeatureOff: Kind(
        409, "feature-off", "Feature off", False,
        "The operator runs 'stateroom db finish-upgrade' once every process is of this release; it holds soon after.",
    ),
    storage_errors.StateSchemaMismatch: Kind(
        409, "state-schema-mismatch", "State of another schema", False,
        "Read it with a program of its schema, name that schema in Accept-State-Version as well, or leave the header "
        "out to get it as it was saved.",
    ),
    state_errors.StateMigrationError: INTERNAL,
    state_errors.StepInvalid: _INVALID,
    state_errors.ChainInvalid: _INVALID,
    state_errors.StateTooNew: _TOO_NEW,
    state_errors.PathFault: INTERNAL,  # a chain turns it into UpcastFailed
    state_errors.UpcastFailed: Kind(
        422, "state-upcast-failed", "State upcast failed", False,
        "The step that the detail names cannot be applied to this state; what is stored is untouched. Read it at the "
        "version it was saved at, or register a step that can.",
    ),
    storage_errors.ImportRefused: Kind(
        422, "import-refused", "Import refused", False,
        "The detail says why: the file was cut or altered, then fetch the export again; or it needs what this "
        "deployment lacks, such as a newer release or a step in Python, then bring that here first. Threads that came "
        "before are imported, none in part; the same import again passes over them.",
    ),
    storage_errors.ImportForOther: Kind(
        422, "import-for-other", "Import for another deployment or tenant", False,
        "Export again, for the key that 'stateroom transfer-key show' prints with a key of this tenant.",
    ),
    storage_errors.ImportUnbound: Kind(
        422, "import-unbound", "Import that names no tenant", False,
        "An earlier release made it. Export again with a release that names the receiving tenant, or ask an operator "
        "here to accept this one export for this tenant.",
    ),
    storage_errors.ImportConflict: Kind(
        409, "import-conflict", "Import conflict", False,
        "Something with the same id exists here with another content: delete it, or import into another tenant.",
    ),
    storage_errors.IdempotencyKeyReused: Kind(
        422, "idempotency-key-reused", "Idempotency-Key reused", False,
        "Use a new Idempotency-Key for a request that differs.",
    ),
    storage_errors.HeadMoved: Kind(
        412, "head-moved", "Head moved", False, "Load the head (head_id), apply your change again, save."
    ),
    storage_errors.HeadExists: Kind(
        412, "head-exists", "Head exists", False,
        "If-None-Match: * is for a namespace without checkpoints. Load the head (head_id) and save on top of it.",
    ),
    storage_errors.PreconditionRequired: Kind(
        428, "precondition-required", "Precondition required", False,
        "Send If-Match with the head's ETag, or parent_id with its id; in Python load first, or use strict=True.",
    ),
    storage_errors.InvalidState: _INVALID,
    storage_errors.LimitExceeded: Kind(
        422, "limit-exceeded", "Limit exceeded", False, "The member limit names the limit; send less."
    ),
    storage_errors.ClientShareRequired: Kind(
        400, "client-share-required", "Client share required", False,
        "The thread was made with a client-held share: send it in Stateroom-Client-Share. Nobody else has it.",
    ),
    storage_errors.ClientShareWrong: Kind(
        403, "client-share-wrong", "Client share wrong", False,
        "Send the share the thread was made with. If it is lost, so is what the thread holds; it can be deleted.",
    ),
    storage_errors.ClientShareUnexpected: Kind(
        409, "client-share-unexpected", "Client share unexpected", False,
        "The thread was made without a share: leave Stateroom-Client-Share out, or use a new thread.",
    ),
    storage_errors.IntegrityFailure: _INTEGRITY,
    storage_errors.RollbackDetected: Kind(
        409, "rollback-detected", "Rollback detected", False,
        "The thread is older than what this client has seen, or was replaced. Tell the operator; do not retry.",
    ),
    storage_errors.TooCostly: Kind(
        422, "too-costly", "Too costly", False,
        "The JSON Schema, condition or step that this tenant registered takes too much time or memory on this state. "
        "Simplify what is registered, or send less.",
    ),
    storage_errors.TenantTooCostly: Kind(
        429, "tenant-too-costly", "Tenant too costly", True,
        "Requests of this tenant were too-costly several times within a minute. Those that need its JSON Schemas or "
        "steps are refused until Retry-After.", 60.0,
    ),
    storage_errors.WorkersBusy: Kind(
        503, "overloaded", "Overloaded", True, "Retry after Retry-After; send fewer requests at once.", 1.0
    ),
    storage_errors.PlaceInLineRefused: Kind(
        429, "tenant-busy", "Tenant busy", True, "The tenant sends too many at once; retry later.", 1.0
    ),
    storage_errors.Unavailable: _DATABASE_UNAVAILABLE,
    storage_errors.DatabaseAway: _DATABASE_UNAVAILABLE,
    storage_errors.LostRaceError: _DATABASE_UNAVAILABLE,
    AgentUnsure: _DATABASE_UNAVAILABLE,
    storage_errors.ClockOff: _DATABASE_UNAVAILABLE,
    storage_errors.UploadExpired: _DATABASE_UNAVAILABLE,
    MultipartNotFound: INTERNAL,  # a verb says which upload it was
    PartMismatch: INTERNAL,  # likewise
    BlobExists: INTERNAL,  # uploads name fresh uuids
    BlobFrozen: INTERNAL,  # whoever reads an archive says which thread it is: ThreadArchived
    BlobDamaged: _INTEGRITY,
    BlobTooLarge: Kind(
        413, "body-too-large", "Body too large", False,
        f"A body has at most {limits.BODY_BYTES_MAX:,} bytes; store large files as artifacts.",
    ),
    BlobNotFound: _INTEGRITY,  # a pointer was stored, so the blob was
    BlobUnavailable: _BLOBS_UNAVAILABLE,
    BucketElsewhere: _BLOBS_UNAVAILABLE,
    storage_errors.DatabaseReadOnly: Kind(
        503, "database-read-only", "Database read-only", True,
        "The database takes no writes now: a standby, set read-only, or without room. Nothing was stored; retry later.",
        5.0,
    ),
    storage_errors.CommitUnknown: Kind(
        503, "commit-unknown", "Outcome of the commit unknown", True,
        "Repeat the request with the same id (or Idempotency-Key) to learn what happened.", 1.0,
    ),
    storage_errors.BuildTooOld: Kind(
        503, "build-too-old", "Build too old", True,
        "A newer build wrote this, and this process does not know it: retry, so that a newer one answers.", 1.0,
    ),
    storage_errors.OlderProcess: INTERNAL,  # no request finishes an upgrade
    storage_errors.SetupError: INTERNAL,
    crypto_errors.CryptoError: INTERNAL,
    crypto_errors.OpenError: _INTEGRITY,
    crypto_errors.KeyUnavailable: _KEY_UNAVAILABLE,
    crypto_errors.KeyDenied: _KEY_UNAVAILABLE,
    crypto_errors.KeyDestroyed: Kind(
        410, "key-destroyed", "Key destroyed", False, "The state was crypto-shredded; it cannot come back."
    ),
    crypto_errors.RootKeyInvalid: _KEY_UNAVAILABLE,  # its file is away, or not safe to read any more
    crypto_errors.SelfTestFailed: INTERNAL,
    crypto_errors.NoteInvalid: INTERNAL,
    crypto_errors.TransferKeyInvalid: _INVALID,
    crypto_errors.ExportForOther: INTERNAL,  # storage names both keys: ImportForOther
    crypto_errors.ExportForOtherTenant: INTERNAL,  # likewise
    crypto_errors.ExportUnbound: INTERNAL,  # storage's ImportUnbound
}  # fmt: skip

KINDS: dict[str, Kind] = {kind.code: kind for kind in TABLE.values()}


def kind_of(error: Exception) -> Kind:
    """The row of ``error``'s class or of its nearest ancestor."""
    kind = next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)
    return OVERLOADED if kind is INTERNAL and _out_of_memory(error) else kind


def _out_of_memory(error: BaseException) -> bool:
    """Whether the process had no memory for what it was doing, whatever that became on its way here."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, MemoryError) or (isinstance(each, RuntimeError) and str(each) == _NO_THREAD):
            return True
        seen.add(id(each))
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        waiting += [
            why for why in (each.__cause__, each.__context__, *inner) if why is not None and id(why) not in seen
        ]
    return False


def type_uri(public_url: str, code: str) -> str:
    """Where a code is explained: the offline documentation page of the deployment."""
    return f"{public_url}/docs#{code}"


def _fault(error: storage_errors.InvalidState) -> Fault:
    if isinstance(error, storage_errors.StateSchemaInvalid) and error.parameter is not None:
        return Fault(detail=str(error), parameter=error.parameter)
    return Fault(detail=str(error), pointer=error.pointer)


def describe(error: Exception, *, public_url: str, request_id: str) -> tuple[Problem, dict[str, str]]:
    """The problem to answer ``error`` with, and its headers."""
    kind = kind_of(error)
    ours = isinstance(
        error, (GatewayError, limits.Refused, storage_errors.StorageError, state_errors.StateMigrationError)
    )
    problem = Problem(
        type=type_uri(public_url, kind.code),
        title=kind.title,
        status=kind.status,
        code=kind.code,
        retryable=kind.retryable,
        detail=str(error) if ours and kind is not INTERNAL else kind.advice,
        request_id=request_id,
        limit=_limit(error),
    )
    match error:
        case InvalidRequest():
            problem.errors = error.faults
        case storage_errors.InvalidState():
            problem.errors = [_fault(error)]
        case storage_errors.LimitExceeded() if error.pointer:
            problem.errors = [Fault(detail=str(error), pointer=error.pointer)]
        case storage_errors.ArtifactUnknown() | storage_errors.ParentUnknown() | state_errors.UpcastFailed():
            problem.errors = [Fault(detail=str(error), pointer=error.pointer)]
        case storage_errors.HeadMoved():
            problem.head_id = error.head_id
        case storage_errors.ThreadArchived():
            problem.state = error.state
            problem.progress = UNSET if error.progress is None else error.progress
        case storage_errors.ChannelUnchangedUnknown():
            problem.errors = [Fault(detail=str(error), pointer=pointer("channels", error.channel))]
        case _:
            pass
    return problem, _headers(error, kind)


def _limit(error: Exception) -> str | UnsetType:
    match error:
        case (
            BodyTooLarge()
            | limits.HeadersTooLarge()
            | storage_errors.LimitExceeded()
            | storage_errors.StateTooLarge()
            | storage_errors.QuotaExceeded()
        ):
            return error.limit
        case InvalidRequest(limit=str(name)):
            return name
        case BlobTooLarge():  # storage streams nothing else
            return "ARTIFACT_BYTES_MAX"
        case _:
            return UNSET


def _headers(error: Exception, kind: Kind) -> dict[str, str]:
    headers = {"content-type": "application/problem+json"}
    if kind.retry_after_seconds is not None:
        seconds = getattr(error, "retry_after_seconds", None) or kind.retry_after_seconds
        headers["retry-after"] = str(max(1, round(seconds)))
    if kind.status == 401:
        headers["www-authenticate"] = 'Bearer realm="stateroom"'
    elif kind.status in {408, 413}:
        headers["connection"] = "close"  # the rest of the body is not worth reading
    elif isinstance(error, RangeNotSatisfiable):
        headers["content-range"] = f"bytes */{error.size_bytes}"
    elif isinstance(error, MethodUnknown):
        headers["allow"] = error.allowed
    return headers


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901) to ``parts``."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


_WHERE = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_ERROR_ENDS = 500  # characters at either end of an error that are read: what is wrong, and where
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_NAMED = re.compile(r"Object (?:(?P<missing>missing required)|contains unknown) field `(?P<name>.*)`\Z", re.DOTALL)
_TYPES = re.compile(r"Expected `(?P<wanted>[a-z |]+)`, got `(?P<got>[A-Za-z]+)`\Z")
_REGEX = re.compile(r"Expected `str` matching regex '(?P<regex>.*)'\Z", re.DOTALL)
_BOUND = re.compile(r"Expected `(?P<type>\w+)` (?:of length )?(?P<sign>[<>]=) (?P<bound>-?\d+)\Z")
_WORDS = {
    "int": "an integer", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "bytes": "base64", "datetime": "a time", "null": "null", "None": "null",
}  # fmt: skip
A_TIME = "must be a time as RFC 3339 has it, with a zone, such as 2026-03-01T09:00:00Z"
_FORMS = {
    "Invalid RFC3339 encoded datetime": A_TIME,
    "Expected `datetime` with a timezone component": A_TIME,
    "Invalid UUID": "must be a UUID, such as 01988d2e-7c31-7f60-9a3b-0d4c5e6f7081",
    "Invalid base64 encoded string": "must be base64",
    "Number out of range": "must be within the range of a 64-bit float",
}
_PATTERNS = {WITHOUT_NUL: "must not hold the character NUL (U+0000)", NOT_BLANK: "must not be blank"}
# What lengths are counted in, by type, and numbers, by how their name ends.
_UNITS = {"str": "characters", "bytes": "bytes", "array": "elements", "object": "members"}
_ENDINGS = {"_per_second": "a second", "_seconds": "seconds", "_bytes": "bytes"}
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")


class ClientName(str):
    """A step of a path that is a word of the client's: what a map has at that name. It is in pointers only."""

    __slots__ = ()


Steps: TypeAlias = Sequence[str | int]


class Difference(NamedTuple):
    """How a body or a query differs from what was wanted: what to say, the steps to it, the limit that it exceeds."""

    what: str
    steps: Steps
    limit: str | None = None


def explain(error: msgspec.ValidationError, shape: Any = None, at: Steps = ()) -> Difference:
    """What is wrong and where, without the value that is wrong.

    Below a map whose keys are the client's, the path ends at the map.

    Args:
        error: What the validator said.
        shape: What was wanted: with it, it is also said which words and numbers a place may have.
        at: The steps to what has this shape.
    """
    text = str(error)
    if len(text) > 2 * _ERROR_ENDS:  # it repeats a name or a word of the client's, which can be as long as a body
        text = text[:_ERROR_ENDS] + text[-_ERROR_ENDS:]
    found = _WHERE.match(text)
    what, path = (found["what"], found["path"] or "") if found else ("invalid", "")
    below: list[str | int] = []
    is_inside = False
    for name, index, wild in _STEP.findall(path):
        is_inside = bool(wild)
        if wild:
            break
        below.append(name or int(index))
    steps = (*at, *below)
    if named := _NAMED.match(what):
        return missing_member(named["name"], steps) if named["missing"] else unknown_member(named["name"], steps)
    is_key = found is not None and found["key"] is not None
    label, in_map = _called(steps)
    kinds = [] if is_inside else _kinds(shape, below)
    if is_key:
        kinds = [key for each in kinds if isinstance(each, inspect.DictType) for key in alternatives(each.key_type)]
    told, limit = _in_words(what, kinds, label), _exceeded(what, "" if in_map else label)
    if told.startswith("must "):
        if is_key:
            label = f"a name in {label or 'the body'}"
        elif label and (in_map or is_inside):
            label = f"what is in {label}"
        told = f"{label} {told}".lstrip()
    return Difference(told, steps, limit)


def unknown_member(name: str, at: Steps) -> Difference:
    """A member that is not one of those that a place has.

    A name that cannot be one of the API's is in no pointer either: it may be content that slipped a level.
    """
    return Difference("unknown member", (*at, name) if _PLAIN_NAME.match(name) else at)


def missing_member(name: str, at: Steps) -> Difference:
    """A member that a place must have, and has not."""
    return Difference(f"{name} is required", (*at, name))


def _called(steps: Steps) -> tuple[str, bool]:
    """What the API calls a place, the last member's name with the places in its lists; whether it is in a map below."""
    label, in_map = "", False
    for step in steps:
        if isinstance(step, ClientName):
            in_map = True
        elif isinstance(step, str):
            label, in_map = step, False
        elif not in_map:
            label += f"[{step}]"
    return label, in_map


def _in_words(what: str, kinds: Sequence[inspect.Type], label: str) -> str:
    """What the validator says, without its types."""
    if found := _TYPES.match(what):
        wanted, got = ([_WORDS.get(each, each) for each in found[group].split(" | ")] for group in ("wanted", "got"))
        if "an integer" in wanted and got == ["a number"]:
            got = ["a float; in JSON, a whole number up to 2^53 may have a point or an exponent"]
        return f"must be {' or '.join(wanted)}, not {got[0]}"
    if what.startswith("Invalid enum value"):
        allowed = [str(value) for each in kinds if isinstance(each, inspect.LiteralType) for value in each.values]
        return f"must be one of {', '.join(allowed) or 'the allowed values'}"
    if found := _REGEX.match(what):
        pattern = found["regex"].replace(r"\\", "\\")
        return _PATTERNS.get(pattern) or f"must match {pattern}".removesuffix(r"\Z")
    if found := _BOUND.match(what):
        return _bounds(found, kinds, label)
    return _FORMS.get(what, what)


def _bounds(found: re.Match[str], kinds: Sequence[inspect.Type], label: str) -> str:
    """Both bounds of a place, where its shape has two, and what they count."""
    bound = int(found["bound"])
    low, high = (bound, None) if found["sign"] == ">=" else (None, bound)
    for each in kinds:
        match each:
            case inspect.IntType() if found["type"] == "int":
                low = each.ge if each.gt is None else each.gt + 1
                high = each.le if each.lt is None else each.lt - 1
            case inspect.StrType() | inspect.BytesType() | inspect.ListType() if found["type"] == _LENGTHS[type(each)]:
                low, high = each.min_length, each.max_length
    is_number = found["type"] == "int"
    unit = _UNITS.get(found["type"]) or next((unit for end, unit in _ENDINGS.items() if label.endswith(end)), "")
    if low is None or high is None:
        numbers = f"at least {low:,}" if high is None else f"at most {high:,}"
    else:
        numbers = f"{low:,} to {high:,}"
    unit = unit.removesuffix("s") if numbers.endswith(" 1") else unit
    return f"must {'be' if is_number else 'have'} {numbers} {unit}".rstrip()


_LENGTHS = {inspect.StrType: "str", inspect.BytesType: "bytes", inspect.ListType: "array"}


def _exceeded(what: str, label: str) -> str | None:
    """The name of the limit that is exceeded."""
    found = _BOUND.match(what)
    if found is None or found["sign"] != "<=":
        return None
    return _LIMITS.get((found["type"], label)) or _LIMITS.get((found["type"], found["bound"]))


def _kinds(shape: Any, steps: Steps) -> list[inspect.Type]:
    """The types that a place of a shape may have; none, if there is no shape."""
    types = alternatives(inspect.type_info(Any if shape is None else shape))
    for step in steps:
        below: list[inspect.Type] = []
        for each in types:
            match each:
                case inspect.StructType(fields=fields):
                    below += [field.type for field in fields if field.encode_name == step]
                case inspect.CollectionType(item_type=item):
                    below.append(item)
        types = [found for each in below for found in alternatives(each)]
    return types


def frames(error: BaseException) -> list[str]:
    """Where ``error`` was raised, as ``file:line function``: a traceback without any value."""
    stack = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]


def page() -> str:
    """``docs/problems.md``."""
    yes = {True: "yes", False: "no"}
    rows = "\n".join(
        f"| `{kind.code}` | {kind.status} | {yes[kind.retryable]} | {kind.title}. {kind.advice} |"
        for kind in sorted(KINDS.values(), key=lambda kind: (kind.status, kind.code))
    )
    return f"""# Problems

Every error is `application/problem+json` (RFC 9457), whatever the request accepted. `code` is stable,
`retryable` says whether the same request may succeed later, `request_id` finds the request in the log, and
`errors[]` names the JSON pointer, query parameter or header at fault. Retryable problems carry `Retry-After`
in seconds. The `type` is the deployment's `/docs#<code>`.

| code | status | retryable | meaning and advice |
|---|---|---|---|
{rows}

`head-moved` and `head-exists` carry `head_id`, the head there is now (null: none). `limit-exceeded`, `body-too-large`,
`state-too-large` and an `invalid-request` that is too long or too much carry `limit`, the name of the limit, and
`quota-exceeded` the name of the quota.
`invalid-request` names everything at once that is wrong with the form of a body, or with a query: members that are
unknown or missing, types, bounds, patterns. At most {limits.FAULTS_MAX} are told (`FAULTS_MAX`); `detail` says if there
are more. What depends on other members, or on what is stored, is looked at when the form is right, and told one by one.
`range-not-satisfiable` carries the content's length in `Content-Range`.
`thread-archived` carries `state` (`archived`, `frozen` or `thawing`) and, while a restore waits for a thaw, `progress`
from 0 to 1.
Problems never carry state.

Generated by `python -m gateway.problems`.
"""


if __name__ == "__main__":
    sys.stdout.write(page())
