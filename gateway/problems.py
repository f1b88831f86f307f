"""What the gateway says when it refuses: one table from exception to problem (RFC 9457).

Owns the gateway's own exceptions and the codes, which are stable. A problem names what was wrong and where;
it never carries state, keys, SQL or the text of an error that is not ours. ``python -m gateway.problems``
prints the page ``docs/problems.md``.
"""

import sys
import traceback
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from crypto import errors as crypto_errors
from gateway.admission import limits, waiting
from gateway.wire.problems import Fault, Problem
from migrations.state import errors as state_errors
from storage import errors as storage_errors
from storage.access.save_rules import AgentUnsure
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


class GatewayError(Exception):
    """The gateway refused the request before storage saw it; the message is for the client.

    Attributes:
        detail: The message of a class that always has the same one; without any, the problem's advice is told.
    """

    detail = ""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.detail)


class InvalidRequest(GatewayError):
    """The request is readable but wrong; `faults` say where, and `limit` names the limit it exceeds, if it does.

    No more than `limits.FAULTS_MAX` of the faults are told; a check that finds them can stop at one more.
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


class MethodUnknown(GatewayError):
    """No operation of the path has this method; those of ``allowed`` there are."""

    def __init__(self, allowed: str) -> None:
        super().__init__()
        self.allowed = allowed


class HttpMalformed(GatewayError):
    """What came is no request of HTTP, or one that servers read differently."""


class PathUnknown(GatewayError):
    """No operation has this path, or it is not the path's one spelling."""

    detail = (
        "nothing has this path: no slash at the end or twice, nothing encoded that need not be; an id with a slash "
        "or any other character but A-Z a-z 0-9 . _ : @ | + -, travels as ~ and its base64url"
    )


class HostInvalid(GatewayError):
    """The request says no host, or several."""

    detail = "send the header Host, once"


class HttpVersionUnsupported(GatewayError):
    """The request line says another version of HTTP than those that are served here."""

    detail = "the request line must end in HTTP/1.1 or HTTP/1.0"


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

    detail = "the content is another than the one If-Match names"


class ArtifactUrlInvalid(GatewayError):
    """The URL is not valid, or not valid any more; deliberately does not say which."""

    detail = "the URL was never given like this, has expired, or was revoked"


class UnsupportedMediaType(GatewayError):
    """The Content-Type, or its Content-Encoding, is not one the gateway reads."""


class NotAcceptable(GatewayError):
    """The Accept header admits nothing the gateway writes."""


class Unauthenticated(GatewayError):
    """The credential is missing or not valid; deliberately does not say which."""

    detail = "send Authorization: Bearer <API key> with a key that is valid now"


class TenantSuspended(GatewayError):
    """An operator suspended the tenant of this credential."""

    detail = "an operator suspended this tenant; what it stored is kept"


class PermissionDenied(GatewayError):
    """The credential is valid but may not do this."""


class SubjectRequired(GatewayError):
    """A service key has to say for which subject it acts."""

    detail = "a service key names the subject it acts for in the header Stateroom-Subject"


class SubjectMismatch(GatewayError):
    """A subject's key named another subject."""

    detail = "this key belongs to another subject than Stateroom-Subject names"


@dataclass(frozen=True, slots=True)
class Kind:
    """One code: what it means and what to do about it.

    Attributes:
        status: The status of the answer.
        code: The stable name.
        advice: A sentence on what the client can do.
        retry_after_seconds: When the same request may succeed; None: never as it is.
        title: The name for people; without one, the code in words.
    """

    status: int
    code: str
    advice: str
    retry_after_seconds: float | None = None
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.code.replace("-", " ").capitalize())

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.retry_after_seconds is not None


INTERNAL = Kind(500, "internal", "Report the request_id to the operator.", title="Internal error")
NOT_FOUND = Kind(404, "not-found", "Check the path and the identifiers in it.")
_METHOD_UNKNOWN = Kind(405, "method-not-allowed", "Use a method the Allow header lists.")  # fmt: skip
_BAD_REQUEST = Kind(400, "bad-request", "The HTTP request itself is wrong.")
_INVALID = Kind(
    422, "invalid-request",
    "Each entry of errors[] names a JSON pointer, a query parameter or a header; mend all of them, then send it "
    "again.",
)  # fmt: skip
_INTEGRITY = Kind(
    500, "integrity-failure", "Stored state was altered or lost outside the gateway. Tell the operator; do not retry."
)  # fmt: skip
_KEY_UNAVAILABLE = Kind(
    503, "key-unavailable", "The root key service did not serve the tenant's key. Retry after Retry-After.", 5.0
)  # fmt: skip
_PERMISSION = Kind(403, "permission-denied", "Use a key that has the permission the detail names.")
_TOO_NEW = Kind(
    409, "state-too-new",
    "Register the version that the detail names, upgrade the reader, or give the step a way back.",
)  # fmt: skip
_CONFLICT = Kind(409, "conflict", "Load the current state and decide again.")

_BLOBS_UNAVAILABLE = Kind(
    503, "blob-store-unavailable", "The object store did not answer; retry after Retry-After.", 1.0
)  # fmt: skip
_DATABASE_UNAVAILABLE = Kind(503, "database-unavailable", "Nothing was changed; retry after Retry-After.", 1.0)

# The one table. An exception without a row of its own class takes its nearest ancestor's.
OVERLOADED = Kind(503, "overloaded", "Retry after Retry-After; send fewer requests at once.", 1.0)
_STATE_TOO_LARGE = Kind(
    413,
    "state-too-large",
    "Its values do not fit one answer. Ask for MessagePack with pieces=refs and fetch large parts one by one; read "
    "pending writes task by task, and channels one by one where they can be named. What to do where that is not "
    "enough is in the documentation of large values.",
)
_QUOTA_EXCEEDED = Kind(
    403,
    "quota-exceeded",
    "The member limit says which. quota_bytes: delete artifacts or threads; space comes back when the sweeper has "
    "removed the objects. rows_quota_bytes: prune, delete or archive threads; space comes back with the next count. "
    "Or ask the operator for a larger quota.",
)
_NO_THREAD = "can't start new thread"  # CPython's words for memory that a thread's stack does not get

TABLE: dict[type[Exception], Kind] = {
    Exception: INTERNAL,
    GatewayError: INTERNAL,
    limits.Refused: OVERLOADED,
    limits.Overloaded: OVERLOADED,
    limits.HeadersTooLarge: Kind(
        431, "headers-too-large",
        f"The target and headers of a request have at most {limits.HEADER_BYTES_MAX:,} bytes and {limits.HEADERS_MAX} "
        "fields; the member limit says which it was.",
    ),
    limits.Draining: Kind(503, "draining", "Retry: another process answers.", 1.0),
    limits.TenantBusy: Kind(429, "tenant-busy", "The tenant sends too many at once; retry later.", 1.0),
    limits.TooManyFailures: Kind(
        429, "too-many-failures",
        "Retry after Retry-After. A key made by this release is never refused for other callers' failures: replace "
        "an older one.", 1.0,
    ),
    limits.ThreadBusy: Kind(429, "thread-busy", "Too many writes wait for this thread; retry later.", 1.0),
    waiting.TooManyWaiters: Kind(
        429, "too-many-waiters",
        "Listen with fewer requests at once, or ask without wait_seconds; retry after Retry-After.", 5.0,
    ),
    limits.TransferBusy: Kind(
        429, "transfer-busy", "Wait until the transfer that is under way has ended.", 30.0, title="Transfers busy"
    ),
    Unauthenticated: Kind(
        401, "unauthenticated",
        "Send a valid API key; unknown, expired and revoked look alike.", title="Not authenticated",
    ),
    TenantSuspended: Kind(
        403, "tenant-suspended", "Ask the operator: all keys of the tenant are refused until it is resumed."
    ),
    PermissionDenied: _PERMISSION,
    SubjectRequired: Kind(400, "subject-required", "Send Stateroom-Subject with a service key."),
    SubjectMismatch: Kind(403, "subject-mismatch", "Drop Stateroom-Subject, or use that subject's key."),
    InvalidRequest: _INVALID,
    MalformedBody: Kind(
        400, "malformed-body", "Send valid UTF-8 JSON or MessagePack in which no object names a member twice."
    ),
    BodyTimeout: Kind(408, "body-timeout", "Send the body without long pauses.", 1.0),
    BodyTooLarge: Kind(
        413, "body-too-large", f"A body has at most {limits.BODY_BYTES_MAX:,} bytes; store large files as artifacts."
    ),
    RangeNotSatisfiable: Kind(416, "range-not-satisfiable", "Content-Range says how long the content is."),
    ContentChanged: Kind(412, "content-changed", "Load the artifact again: its ETag is of other content."),
    ArtifactUrlInvalid: Kind(
        403, "artifact-url-invalid",
        "URLs are valid for minutes and can be revoked: ask for a new one.", title="Artifact URL invalid",
    ),
    UnsupportedMediaType: Kind(
        415, "unsupported-media-type", "Send Content-Type: application/json or application/msgpack, uncompressed."
    ),
    NotAcceptable: Kind(406, "not-acceptable", "Accept application/json or application/msgpack."),
    OperationUnknown: NOT_FOUND,
    MethodUnknown: _METHOD_UNKNOWN,
    PathUnknown: NOT_FOUND,
    HostInvalid: _BAD_REQUEST,
    HttpVersionUnsupported: Kind(
        505, "http-version-unsupported",
        "Speak HTTP/1.1. HTTP/2 ends at a proxy before the gateway.", title="HTTP version not supported",
    ),
    HttpMalformed: _BAD_REQUEST,
    storage_errors.StorageError: INTERNAL,
    storage_errors.NotFound: NOT_FOUND,
    storage_errors.ThreadNotFound: Kind(404, "thread-not-found", "The subject has no such thread."),
    storage_errors.CheckpointNotFound: Kind(
        404, "checkpoint-not-found", "The thread and namespace have no such checkpoint."
    ),
    storage_errors.ItemNotFound: Kind(404, "item-not-found", "The subject has no such item, or its time is over."),
    storage_errors.ApprovalNotFound: Kind(404, "approval-not-found", "There is no such approval that the key may see."),
    storage_errors.ApprovalDecided: Kind(
        409, "approval-decided",
        "It was decided otherwise, cancelled or superseded: GET the approval. To be asked again is the agent's affair.",
    ),
    storage_errors.ActionChanged: Kind(
        409, "action-changed",
        "Something else is asked, or about to be done, than what was decided about: open the approval and decide about "
        "that, or ask anew.",
    ),
    storage_errors.ApprovalUndecided: Kind(409, "approval-undecided", "Wait until somebody has decided."),
    storage_errors.ApprovalRejected: Kind(409, "approval-rejected", "A person said no. Do something else, or ask."),
    storage_errors.ApprovalConsumed: Kind(
        409, "approval-consumed", "It was begun before; to do it another time takes another approval."
    ),
    storage_errors.ApprovalRequired: Kind(
        409, "approval-required", "The tenant's policy asks for an approval of this tool: ask, and name the approval."
    ),
    storage_errors.ApprovalsExceeded: Kind(
        409, "approvals-exceeded", "64 approvals of the thread wait: have some decided, or cancel them."
    ),
    storage_errors.ApprovalPoliciesExceeded: _CONFLICT,
    storage_errors.ApprovalExpired: Kind(410, "approval-expired", "Nobody decided in time: the agent has to ask anew."),
    storage_errors.ApprovalLapsed: Kind(
        410, "approval-lapsed", "It was approved, and not begun in time: the agent has to ask anew."
    ),
    storage_errors.ApprovalNotYours: Kind(
        403, "approval-not-yours",
        "Somebody else approves: neither who asked, nor who approved already, nor a key that is younger than the "
        "question. Everybody who may decide may say no.", title="Approval of somebody else",
    ),
    storage_errors.EditInvalid: Kind(
        422, "edit-invalid", "Edited arguments must fit args_schema, and leave what is hidden as it is."
    ),
    storage_errors.ArtifactNotFound: Kind(404, "artifact-not-found", "The subject has no such artifact."),
    storage_errors.UploadNotFound: Kind(
        404, "upload-not-found",
        "The subject has no such upload: it was completed, removed, or has expired. Begin another one.",
    ),
    storage_errors.TenantNotFound: NOT_FOUND,
    storage_errors.ApiKeyNotFound: NOT_FOUND,
    storage_errors.AnchorNotFound: NOT_FOUND,
    storage_errors.SubjectNotFound: NOT_FOUND,
    storage_errors.JobNotFound: NOT_FOUND,
    storage_errors.Conflict: _CONFLICT,
    storage_errors.CheckpointExists: Kind(
        409, "checkpoint-exists", "Checkpoints are written once: choose another id, or load the one that is stored."
    ),
    storage_errors.ThreadExists: Kind(409, "thread-exists", "Copy to a free id, or delete that thread."),
    storage_errors.ThreadArchived: Kind(
        409, "thread-archived",
        "Its object must be thawed before the thread can be read or written to. Begin to restore it, unless `state` "
        "says that it is thawing, and ask again after Retry-After. Reading begins nothing.", 60.0,
    ),
    storage_errors.ArchiveUnavailable: Kind(
        409, "archive-unavailable",
        "This deployment has no bucket of archives; the operator sets STATEROOM_ARCHIVE_URL.", title="No archive",
    ),
    storage_errors.ArchiveTooLarge: Kind(
        409, "archive-too-large",
        "The thread is larger than one archive, or than this process restores. Prune or thin it first.",
    ),
    storage_errors.ThreadActive: Kind(
        409, "thread-active",
        "The thread was written to while it was archived; it stays hot. Archive it when it rests.", 5.0,
    ),
    storage_errors.RestoreNeeded: Kind(
        409, "restore-needed",
        "What is needed of the thread's archive is too large to be read where it is: restore the thread, then read it.",
    ),
    storage_errors.ChannelUnchangedUnknown: Kind(
        409, "channel-unchanged-unknown",
        "The parent does not hold the channel at that version: send every channel with its data.",
        title="Unchanged channel unknown",
    ),
    storage_errors.DeltaChainNeeded: Kind(
        409, "delta-chain-needed",
        "A checkpoint that stays is rebuilt from this run's writes; delete the later runs too.",
    ),
    storage_errors.WritesPending: Kind(
        409, "writes-pending", "Tasks have written to the head: compact after the save that takes up what they wrote."
    ),
    storage_errors.TenantNameTaken: Kind(409, "tenant-name-taken", "Another tenant has this name: choose another one."),
    storage_errors.LastAdminKey: Kind(
        409, "last-admin-key",
        "Make another key that administers first, or repeat with force=true: an operator can recover a tenant, and "
        "stateroom init --another makes an operator's key.", title="Last administration key",
    ),
    storage_errors.LegalHold: Kind(
        409, "legal-hold",
        "A hold keeps the thread, its agent or the tenant: nothing can be removed before a tenant:admin lifts it.",
    ),
    storage_errors.ClearVectorsUnavailable: Kind(
        409, "clear-vectors-unavailable",
        "The tenant's vectors are to be in clear, and the database has no table for them: an operator runs 'stateroom "
        "db enable-pgvector', or set the vector policy to sealed.",
    ),
    storage_errors.LeakageNotAccepted: Kind(
        422, "leakage-not-accepted",
        "Read what leaks in the detail; to accept it send accept_leakage: content, or leave vectors sealed.",
    ),
    storage_errors.ItemIndexTooLarge: Kind(
        409, "item-index-too-large",
        "The subject's vectors by this model take more than is searched: delete items, or use fewer dimensions.",
    ),
    storage_errors.ItemModelsExceeded: Kind(
        409, "item-models-exceeded",
        "The item has vectors by 8 models: put it again with those that you need, then give it others.",
    ),
    storage_errors.ItemPathsExceeded: Kind(
        409, "item-paths-exceeded",
        "The subject has 10,000 paths of items: delete what is in some, or tell things apart by keys instead of paths.",
    ),
    storage_errors.RetentionPoliciesExceeded: _CONFLICT,
    storage_errors.SavePoliciesExceeded: _CONFLICT,
    storage_errors.ArtifactReferenced: Kind(
        409, "artifact-referenced", "A checkpoint names it. Prune or delete what does, then delete the artifact."
    ),
    storage_errors.ArtifactShared: Kind(
        409, "artifact-shared",
        "Its content opens only with the client-held share, which a URL cannot carry: download it with the share.",
        title="Artifact takes a share",
    ),
    storage_errors.UploadIncomplete: Kind(
        409, "upload-incomplete", "GET the upload to see which parts arrived, send the others, then complete it."
    ),
    storage_errors.ArtifactUnknown: Kind(
        422, "artifact-unknown",
        "errors[] says where the state names an artifact that the subject does not have. Upload it first.",
    ),
    storage_errors.ParentUnknown: Kind(
        422, "parent-unknown",
        "The namespace has no checkpoint of that id: it was removed, lost with an older backup, or never was. Load "
        "the thread and save on what is there, or send parent_id null for a checkpoint without a parent.",
    ),
    storage_errors.PieceUnknown: Kind(
        409, "piece-unknown",
        "A placeholder names a piece that the thread does not have (any more). Upload it again and repeat the "
        "request.",
    ),
    storage_errors.PieceNotFound: Kind(
        404, "piece-not-found",
        "The thread has no such piece: it was never uploaded, or removed because nothing named it.",
    ),
    storage_errors.StateTooLarge: _STATE_TOO_LARGE,
    limits.AnswerTooLarge: _STATE_TOO_LARGE,
    storage_errors.DigestMismatch: Kind(
        400, "digest-mismatch", "What arrived is not what the digest was made of; send it again. Nothing was stored."
    ),
    storage_errors.PartInvalid: Kind(
        422, "part-invalid", "Parts are numbered from 0 and have part_bytes bytes each; only the last may be shorter."
    ),
    storage_errors.QuotaExceeded: _QUOTA_EXCEEDED,
    storage_errors.RowQuotaExceeded: _QUOTA_EXCEEDED,
    storage_errors.BlobsNotConfigured: Kind(
        501, "blobs-not-configured",
        "This deployment has no object store; the operator sets STATEROOM_S3_URL.", title="No object store",
    ),
    storage_errors.StateSchemaNotFound: Kind(404, "state-schema-not-found", "Register it: PUT its version 1."),
    storage_errors.StateSchemaExists: Kind(
        409, "state-schema-exists",
        "A registered version never changes: register the next one.", title="State schema version exists",
    ),
    storage_errors.JobNotDamaged: Kind(
        409, "job-not-damaged",
        "A gateway wrote this job; only one whose row was written or edited outside the gateway is put aside.",
    ),
    storage_errors.JobNotCancellable: Kind(
        409, "job-not-cancellable",
        "Shreds, rotations and re-seals go on to their end: what they left behind half done could not stay so.",
    ),
    storage_errors.JobCancelled: Kind(
        409, "job-cancelled",
        "Somebody cancelled the job of this transfer. Threads that came before are whole and stay.",
    ),
    storage_errors.StateSchemaInvalid: _INVALID,
    storage_errors.StateTooNewToSave: _TOO_NEW,
    storage_errors.StateVersionRequired: Kind(
        422, "state-version-required",
        "Name state_schema and state_version: unversioned state of this agent was adopted, and what is saved since "
        "has to say what it is.",
    ),
    storage_errors.AdoptionExists: Kind(
        409, "adoption-exists",
        "Unversioned state is adopted once. To correct that, send supersede: true, before anything is saved on top.",
    ),
    storage_errors.AdoptionBuiltOn: Kind(
        409, "adoption-built-on",
        "State was saved at a version on top of what was adopted, and was made of it as it was taken for: register a "
        "next version whose step mends it.",
    ),
    storage_errors.FeatureOff: Kind(
        409, "feature-off",
        "The operator runs 'stateroom db finish-upgrade' once every process is of this release; it holds soon after.",
    ),
    storage_errors.EventsOff: Kind(
        409, "events-off",
        "The tenant has no events: a tenant:admin switches them on (PUT /v1/events/settings), "
        "and they begin seconds later.",
    ),
    storage_errors.EventsExpired: Kind(
        410, "events-expired",
        "Events behind the cursor are not kept any more. Begin again with since=now, and list what there is "
        "then: threads, jobs, keys.",
    ),
    storage_errors.EventsRewound: Kind(
        410, "events-rewound",
        "The cursor is of a history that is no more: the database was restored or failed over. Begin again with "
        "since=now, and list what there is then: threads, jobs, keys.",
    ),
    storage_errors.LinkCircular: Kind(
        409, "link-circular", "Name a parent that does not descend from the thread, or unlink one between them first.",
        title="Link that makes a circle",
    ),
    storage_errors.StateSchemaMismatch: Kind(
        409, "state-schema-mismatch",
        "Read it with a program of its schema, name that schema in Accept-State-Version as well, or leave the header "
        "out to get it as it was saved.", title="State of another schema",
    ),
    state_errors.StateMigrationError: INTERNAL,
    state_errors.StepInvalid: _INVALID,
    state_errors.ChainInvalid: _INVALID,
    state_errors.StateTooNew: _TOO_NEW,
    state_errors.PathFault: INTERNAL,  # a chain turns it into UpcastFailed
    state_errors.UpcastFailed: Kind(
        422, "state-upcast-failed",
        "The step that the detail names cannot be applied to this state; what is stored is untouched. Read it at the "
        "version it was saved at, or register a step that can.",
    ),
    storage_errors.ImportRefused: Kind(
        422, "import-refused",
        "The detail says why: the file was cut or altered, then fetch the export again; or it needs what this "
        "deployment lacks, such as a newer release or a step in Python, then bring that here first. Threads that "
        "came before are imported, none in part; the same import again passes over them.",
    ),
    storage_errors.ImportForOther: Kind(
        422, "import-for-other",
        "Export again, for the key that 'stateroom transfer-key show' prints with a key of this tenant.",
        title="Import for another deployment or tenant",
    ),
    storage_errors.ImportUnbound: Kind(
        422, "import-unbound",
        "An earlier release made it. Export again with a release that names the receiving tenant, or ask an operator "
        "here to accept this one export for this tenant.", title="Import that names no tenant",
    ),
    storage_errors.ImportConflict: Kind(
        409, "import-conflict",
        "Something with the same id exists here with another content: delete it, or import into another tenant.",
    ),
    storage_errors.IdempotencyKeyReused: Kind(
        422, "idempotency-key-reused",
        "Use a new Idempotency-Key for a request that differs.", title="Idempotency-Key reused",
    ),
    storage_errors.HeadMoved: Kind(412, "head-moved", "Load the head (head_id), apply your change again, save."),
    storage_errors.HeadExists: Kind(
        412, "head-exists",
        "If-None-Match: * is for a namespace without checkpoints. Load the head (head_id) and save on top of it.",
    ),
    storage_errors.ClaimLost: Kind(
        412, "claim-lost",
        "The claim was released, or another run went on with this thread. Stop this one; to go on, claim the thread "
        "again and load it.",
    ),
    storage_errors.ThreadClaimed: Kind(
        409, "thread-claimed",
        "Claim the thread (POST resume-claim), and name the fence that this gives with each write.",
    ),
    storage_errors.ClaimNotFound: Kind(404, "claim-not-found", "Nobody ever claimed this thread."),
    storage_errors.ClaimHeld: Kind(
        409, "claim-held",
        "Another run goes on with this thread. Wait until claimed_until, which it may put off, or take it over on "
        "purpose (take_over): then it is the other one that may not go on.", 1.0,
    ),
    storage_errors.ClaimSuperseded: Kind(
        409, "claim-superseded",
        "The claim that if_fence names was released, or another run has the thread. There is nothing to take the place "
        "of: look at the thread again.",
    ),
    storage_errors.ThreadStuck: Kind(
        409, "thread-stuck",
        "One run after the other died with this thread, and none got on. Look into why, then claim it with take_over.",
    ),
    storage_errors.EffectNotFound: Kind(404, "effect-not-found", "The thread has no effect of this name."),
    storage_errors.EffectMismatch: Kind(
        422, "effect-mismatch", "The name was used for another intent: give each call a name of its own.",
    ),
    storage_errors.EffectInProgress: Kind(
        409, "effect-in-progress",
        "Somebody does it now. Ask again later; after Retry-After, whoever does it is taken for dead.", 1.0,
    ),
    storage_errors.EffectUnknown: Kind(
        409, "effect-unknown",
        "It may have happened. Look whether it did, then resolve its execution and attempt (POST resolve); it is not "
        "done again before that.",
    ),
    storage_errors.EffectRepeats: Kind(
        409, "effect-repeats",
        "The same was done before, as effect_name and execution say (null: in a thread that was deleted). If it is "
        "meant to happen once more, say repeat.",
    ),
    storage_errors.EffectSuperseded: Kind(
        409, "effect-superseded",
        "Another attempt was begun since, or this one ended otherwise. Start the effect again to learn what it did.",
    ),
    storage_errors.EffectNotUnknown: Kind(
        409, "effect-not-unknown", "It is known whether it happened: show the effect. Only what is not is resolved.",
    ),
    storage_errors.EffectResolverStarted: Kind(
        403, "effect-own-key",
        "Resolve it with another key than the one that started it; a program that asked the service says by_check.",
        title="Effect of one's own",
    ),
    storage_errors.EffectsExceeded: Kind(
        409, "effects-exceeded", "The thread has as many effects as it may: go on in a new one.",
    ),
    storage_errors.ItemMoved: Kind(
        412, "item-moved", "Read the item (it is at revision; null: there is none), apply your change again, put it."
    ),
    storage_errors.ItemExists: Kind(
        412, "item-exists", "There is an item of this path and key (at revision): read it, or put it without condition."
    ),
    storage_errors.PreconditionRequired: Kind(
        428, "precondition-required",
        "Send If-Match with the head's ETag, or parent_id with its id; in Python load first, or use strict=True.",
    ),
    storage_errors.InvalidState: _INVALID,
    storage_errors.LimitExceeded: Kind(422, "limit-exceeded", "The member limit names the limit; send less."),
    storage_errors.ClientShareRequired: Kind(
        400, "client-share-required",
        "The thread was made with a client-held share: send it in Stateroom-Client-Share. Nobody else has it.",
    ),
    storage_errors.ClientShareWrong: Kind(
        403, "client-share-wrong",
        "Send the share the thread was made with. If it is lost, so is what the thread holds; it can be deleted.",
    ),
    storage_errors.ClientShareUnexpected: Kind(
        409, "client-share-unexpected",
        "The thread was made without a share: leave Stateroom-Client-Share out, or use a new thread.",
    ),
    storage_errors.IntegrityFailure: _INTEGRITY,
    storage_errors.RollbackDetected: Kind(
        409, "rollback-detected",
        "The thread is older than what this client has seen, or was replaced. Tell the operator; do not retry.",
    ),
    storage_errors.TooCostly: Kind(
        422, "too-costly",
        "The JSON Schema, condition or step that this tenant registered takes too much time or memory on this state. "
        "Simplify what is registered, or send less.",
    ),
    storage_errors.TenantTooCostly: Kind(
        429, "tenant-too-costly",
        "Requests of this tenant were too-costly several times within a minute. Those that need its JSON Schemas or "
        "steps are refused until Retry-After.", 60.0,
    ),
    storage_errors.WorkersBusy: Kind(503, "overloaded", "Retry after Retry-After; send fewer requests at once.", 1.0),
    storage_errors.PlaceInLineRefused: Kind(429, "tenant-busy", "The tenant sends too many at once; retry later.", 1.0),
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
        413, "body-too-large", f"A body has at most {limits.BODY_BYTES_MAX:,} bytes; store large files as artifacts."
    ),
    BlobNotFound: _INTEGRITY,  # a pointer was stored, so the blob was
    BlobUnavailable: _BLOBS_UNAVAILABLE,
    BucketElsewhere: _BLOBS_UNAVAILABLE,
    storage_errors.DatabaseReadOnly: Kind(
        503, "database-read-only",
        "The database takes no writes now: a standby, set read-only, or without room. Nothing was stored; retry "
        "later.", 5.0, title="Database read-only",
    ),
    storage_errors.CommitUnknown: Kind(
        503, "commit-unknown",
        "Repeat the request with the same id (or Idempotency-Key) to learn what happened.",
        1.0, title="Outcome of the commit unknown",
    ),
    storage_errors.BuildTooOld: Kind(
        503, "build-too-old",
        "A newer build wrote this, and this process does not know it: retry, so that a newer one answers.", 1.0,
    ),
    storage_errors.OlderProcess: INTERNAL,  # no request finishes an upgrade
    storage_errors.SetupError: INTERNAL,
    crypto_errors.CryptoError: INTERNAL,
    crypto_errors.OpenError: _INTEGRITY,
    crypto_errors.KeyUnavailable: _KEY_UNAVAILABLE,
    crypto_errors.KeyDenied: _KEY_UNAVAILABLE,
    crypto_errors.KeyDestroyed: Kind(410, "key-destroyed", "The state was crypto-shredded; it cannot come back."),
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
        detail=(str(error) if ours and kind is not INTERNAL else "") or kind.advice,
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
        case storage_errors.ItemMoved():
            problem.revision = error.revision
        case storage_errors.ClaimHeld() | storage_errors.EffectUnknown() | storage_errors.EffectRepeats():
            _tell_of_ledger(problem, error)
        case storage_errors.ThreadArchived():
            problem.state = error.state
            problem.progress = UNSET if error.progress is None else error.progress
        case storage_errors.ChannelUnchangedUnknown():
            problem.errors = [Fault(detail=str(error), pointer=pointer("channels", error.channel))]
        case _:
            pass
    return problem, _headers(error, kind)


def _tell_of_ledger(
    problem: Problem, error: storage_errors.ClaimHeld | storage_errors.EffectUnknown | storage_errors.EffectRepeats
) -> None:
    """Say until when a thread is claimed, or which effect it is about."""
    if isinstance(error, storage_errors.ClaimHeld):
        problem.claimed_until = error.claimed_until
        return
    problem.execution = error.execution
    if isinstance(error, storage_errors.EffectUnknown):
        problem.attempt = error.attempt
    if isinstance(error, storage_errors.EffectRepeats):
        problem.effect_name = error.name


def _limit(error: Exception) -> str | UnsetType:
    match error:
        case (
            BodyTooLarge()
            | limits.HeadersTooLarge()
            | storage_errors.LimitExceeded()
            | storage_errors.StateTooLarge()
            | storage_errors.QuotaExceeded()
            | storage_errors.ItemIndexTooLarge()
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


def frames(error: BaseException) -> list[str]:
    """Where ``error`` was raised, as ``file:line function``: a traceback without any value."""
    stack = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]


def page() -> str:
    """The text of ``docs/problems.md``."""
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

`head-moved` and `head-exists` carry `head_id`, the head there is now (null: none), `item-moved` and `item-exists`
carry `revision`, that of the item (null: there is none). `claim-held` carries `claimed_until`, when the claim is over
unless it is renewed. `effect-unknown` carries `execution` and `attempt`, those to resolve, and `effect-repeats` carries
`effect_name`, that of what was done before, and its `execution`. `limit-exceeded`, `body-too-large`,
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
