"""The shapes of requests and responses of API v1, and nothing else.

Every body may be JSON or MessagePack, chosen by ``Content-Type`` and ``Accept``; the structs are the same.
``bytes`` are base64 in JSON and native in MessagePack. Values of an agent's state are carried as raw slices
of the body, so that MessagePack extension types pass through without being looked at.

This module does not validate meaning (limits, existence, permission) beyond what a type can say; it knows no
storage, no SQL and no cryptography.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Status = Literal["active", "waiting", "failed", "done"]
View = Literal["none", "state", "channels"]
# Whether large leaves of serialised values come in place, or as placeholders; JSON has no placeholders.
Pieces = Literal["resolved", "refs"]
# Whether the artifacts that a state names come along.
Resolve = Literal["pointers", "inline"]
# Offsets in `data` where 28 bytes stand for a large leaf that was uploaded as a piece of the thread before.
Holes = Annotated[list[Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=10_000)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # what MessagePack and PostgreSQL hold
Version = str | Integer | float

PRIVATE_PREFIX = "~"  # channels of adapters begin with it; they are in the channels view only
NAME_BYTES_MAX = 255
NAMESPACE_BYTES_MAX = 1024  # with four ids of 255 bytes it fits an entry of a B-tree (2,704 bytes)
WITHOUT_NUL = r"^[^\x00]*$"  # PostgreSQL's text holds every character but this one
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Title = Annotated[str, Meta(max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Namespace = Annotated[str, Meta(max_length=NAMESPACE_BYTES_MAX, pattern=WITHOUT_NUL)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
CheckpointIdText = Name
StateVersionNumber = Annotated[int, Meta(ge=1, lt=2**31)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of request bodies: an unknown field is an error, not a silent loss."""


class Response(Struct, kw_only=True):
    """Base of response bodies."""


class Model(Request, omit_defaults=True):
    """Which model produced a step, so that a replay can be told from a re-run."""

    name: Title
    hash: Title | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Integer | None = None


class Usage(Request, omit_defaults=True):
    """What a step consumed; counts of tokens and money in micro-units of the tenant's currency."""

    input_tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0
    cost_micros: Annotated[int, Meta(ge=0, le=2**53)] = 0


class ChannelIn(Request):
    """One channel as an adapter serialised it.

    ``data`` absent means "unchanged": the parent checkpoint must hold this channel at the same ``version``.
    With ``append_to`` the parent must hold it at that version as a MessagePack list, and ``data`` is a MessagePack
    list (without ``holes``) of the elements that follow its own. Where either does not hold, send the whole value.
    """

    version: Version | None = None
    encoding: Annotated[str, Meta(max_length=64)] = "msgpack"
    data: bytes | UnsetType = UNSET
    holes: Holes = []
    append_to: Version | UnsetType = UNSET


class Changes(Request):
    """A patch of the head's state: channels set, elements appended to list channels, channels removed."""

    set: dict[Name, Raw] = {}
    append: dict[Name, list[Raw]] = {}
    remove: list[Name] = []


class SaveRequest(Request):
    """Save a checkpoint: exactly one of ``state``, ``changes`` (needs If-Match) or ``channels``.

    ``parent_id`` absent: the namespace's head when the save is applied; ``null``: no parent. ``fork``
    declares that an older parent is meant. ``delta_channels`` names channels whose value is rebuilt from
    ancestors' pending writes. ``state_holes`` (MessagePack only): offsets of placeholders in members of ``state``.
    """

    state: dict[Name, Raw] | UnsetType = UNSET
    state_holes: dict[Name, Holes] = {}
    changes: Changes | UnsetType = UNSET
    channels: dict[Name, ChannelIn] | UnsetType = UNSET
    checkpoint_id: CheckpointIdText | UnsetType = UNSET
    parent_id: CheckpointIdText | UnsetType | None = UNSET
    namespace: Namespace = ""
    status: Status = "active"
    step: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | UnsetType = UNSET
    source: Word | None = None
    agent: Name | None = None
    run_id: Name | None = None
    model: Model | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = {}
    state_schema: Word | None = None
    state_version: StateVersionNumber | None = None
    delta_channels: list[Name] = []
    fork: bool = False


class SaveReceipt(Response):
    """A checkpoint is durable. ``created`` is false when the same save had been stored before."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    sequence: int
    created_at: datetime
    created: bool


class ChannelOut(Response):
    """One channel as it was serialised; ``holes`` (with ``pieces=refs``) are offsets of placeholders in ``data``."""

    version: Version | None
    encoding: str
    data: bytes
    holes: list[int] | UnsetType = UNSET


class WriteOut(Response, omit_defaults=True):
    """A pending write: ``value`` in the ``state`` view, ``encoding`` and ``data`` in ``channels``.

    ``holes`` (with ``pieces=refs``) are offsets of placeholders in the bytes of ``data`` or ``value``.
    ``state_version`` is there where the write has one of its own; without it, it is at its checkpoint's.
    """

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    holes: list[int] | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    state_schema: str | UnsetType = UNSET
    state_version: int | UnsetType = UNSET


class InlinedArtifact(Response, omit_defaults=True):
    """An artifact that a state names, by ``resolve=inline``.

    ``data`` is its content, of at most 1 MiB each and 8 MiB in an answer; ``too_large``: it is beyond that.
    ``missing``: the subject has no such artifact. ``withheld``: it needs a client-held share that was not sent, or
    another one. Of the last two nothing else is said.
    """

    name: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    too_large: bool = False
    missing: bool = False
    withheld: bool = False


class Checkpoint(Response):
    """A checkpoint as it is loaded.

    With state, ``state_version`` is the version it is shown at (Accept-State-Version); without, as it was saved.

    ``state`` (view ``state``) maps channels to plain values; ``channels`` (view ``channels``) gives the
    serialised bytes; view ``none`` gives neither. In JSON, bytes inside a state are ``{"$bytes": base64}``,
    MessagePack extension values ``{"$ext": [code, base64]}`` and values in a foreign encoding
    ``{"$encoded": [encoding, base64]}``.

    ``withheld`` (listings over threads only): clear columns, unverified; the rest needs a client-held share that was
    not sent, or another key, or it is ``damaged``: it, or what belongs to it, does not authenticate.

    ``subject_id`` (a tenant's listing only): whose it is.

    ``artifacts`` (a load with ``resolve=inline`` only): those that the state and its pending writes name, by id.

    ``state_holes`` (view ``state`` with ``pieces=refs``, MessagePack only): by channel, at which bytes of its member of
    ``state`` placeholders stand for large leaves.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    source: str | None
    agent: str | None
    run_id: str | None
    created_at: datetime
    state_schema: str | None
    state_version: int | None
    model: Model | None
    usage: Usage | None
    metadata: dict[str, Any]
    delta_channels: list[str]
    state: dict[str, Raw] | UnsetType = UNSET
    channels: dict[str, ChannelOut] | UnsetType = UNSET
    pending_writes: list[WriteOut] | UnsetType = UNSET
    withheld: bool | UnsetType = UNSET
    damaged: bool | UnsetType = UNSET
    subject_id: str | UnsetType = UNSET
    artifacts: dict[str, InlinedArtifact] | UnsetType = UNSET
    state_holes: dict[str, list[int]] | UnsetType = UNSET


class CheckpointPage(Response):
    """Checkpoints, newest first. ``next_cursor`` is null on the last page.

    ``artifacts`` (``resolve=inline`` only): those that the page's states and pending writes name, by id.
    """

    checkpoints: list[Checkpoint]
    next_cursor: str | None
    artifacts: dict[str, InlinedArtifact] | UnsetType = UNSET


class WriteIn(Request):
    """One pending write. Either a plain ``value`` or ``encoding`` and ``data``.

    A write at ``idx >= 0`` is kept as first written; one at ``idx < 0`` is replaced by the newest.
    """

    channel: Name
    idx: Annotated[int, Meta(ge=-(2**15), lt=2**31)]
    encoding: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    holes: Holes = []
    value: Raw | UnsetType = UNSET


class PieceRequest(Request):
    """A large leaf of a value: exactly one MessagePack str, bin or ext with a length of 8, 16 or 32 bits."""

    data: bytes


class PieceReceipt(Response):
    """A stored piece: what a placeholder names. A placeholder is ``c7 19 68``, the piece, its size (8 bytes, big)."""

    piece: bytes
    size_bytes: int


class PieceContent(Response):
    """A leaf, as it was uploaded or saved."""

    data: bytes


class WritesRequest(Request):
    """Pending writes of one task against a checkpoint, which need not exist yet.

    ``state_schema`` and ``state_version`` say what they are written at; absent: at their checkpoint's version.
    """

    writes: Annotated[list[WriteIn], Meta(max_length=1000)]
    namespace: Namespace = ""
    task_path: Annotated[str, Meta(max_length=2048, pattern=WITHOUT_NUL)] = ""
    status: Status | None = None
    state_schema: Word | None = None
    state_version: StateVersionNumber | None = None


class WritesReceipt(Response):
    """How many writes were stored; the others had been stored before."""

    stored: int
    unchanged: int


class TaskWrites(Response):
    """The pending writes of one task, by ``idx``."""

    writes: list[WriteOut]


class ChannelHistory(Response, omit_defaults=True):
    """Writes to a channel, oldest first, since ``seed``: the nearest ancestor's value (absent: none).

    ``continues``: they come after those that were given together with the ``mark`` of the request, and the seed is the
    one given then.
    """

    writes: list[WriteOut]
    seed: ChannelOut | UnsetType = UNSET
    continues: bool = False


class ChannelHistories(Response):
    """Channel name to its history.

    With ``mark`` as the next request's, for the same channels, only what came since is given, as long as the rest of
    this answer still holds; null where the next answer will be whole in any case.
    """

    channels: dict[str, ChannelHistory]
    mark: str | None = None


class ThreadArchive(Response):
    """Where an archived thread's rows are: in one object, and how far away that is.

    ``state``: ``ready``, the thread can be read where it is, and a write brings it back; ``frozen``, it must be thawed,
    which a restore asks for; ``thawing``, that was asked for; ``unknown``, the object store does not answer, or this
    deployment has none. ``hot_bytes`` are what its rows take in the database, ``size_bytes`` the object.
    ``job_id`` is the restore that is under way, ``progress`` how far its thaw is, from 0 to 1.
    """

    state: Literal["ready", "frozen", "thawing", "unknown"]
    storage_class: str
    checkpoints: int
    pending_writes: int
    hot_bytes: int
    size_bytes: int
    archived_at: datetime
    retry_after_seconds: float
    progress: float | None
    job_id: str | None


class Thread(Response):
    """A thread: its settings and its root namespace's latest status.

    ``archive`` is there when one thread is shown and it is in the archive tier; lists leave it out. ``damaged`` is in
    lists: the thread was made or altered outside the gateway; its verification tells more.
    """

    thread_id: str
    agent: str | None
    status: Status
    tier: Literal["hot", "archive"]
    strict: bool
    client_share: bool
    created_at: datetime
    updated_at: datetime
    head_id: str | None
    archive: ThreadArchive | UnsetType = UNSET
    damaged: bool | UnsetType = UNSET


class ThreadPage(Response):
    """Threads, newest first."""

    threads: list[Thread]
    next_cursor: str | None


class ThreadSettings(Request):
    """Settings of a thread; what is absent stays. ``strict`` makes If-Match mandatory for saves."""

    strict: bool | UnsetType = UNSET
    agent: Name | UnsetType | None = UNSET


class CompactRequest(Request):
    """Make a list channel of the head shorter: ``summary``, then its ``keep_last`` newest elements.

    ``summary`` is an element, or a list of them. What is left out of ``status``, ``agent``, ``metadata`` and the state
    version is as the head has it.
    """

    channel: Name
    keep_last: Annotated[int, Meta(ge=0, lt=2**31)]
    summary: Raw | UnsetType = UNSET
    namespace: Namespace = ""
    checkpoint_id: CheckpointIdText | UnsetType = UNSET
    status: Status | None = None
    agent: Name | None = None
    run_id: Name | None = None
    metadata: dict[str, Any] | None = None
    state_schema: Word | None = None
    state_version: StateVersionNumber | None = None


class CopyRequest(Request):
    """Copy a whole thread, history and pending writes included, to a thread that does not exist yet."""

    target_thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]


class CopyReceipt(Response):
    """What a copy holds."""

    thread_id: str
    checkpoints: int
    pending_writes: int


class PruneRequest(Request):
    """``keep_latest`` keeps the heads and what they need, but no finished calls; ``delete`` removes everything."""

    thread_ids: Annotated[list[str], Meta(max_length=1000)]
    strategy: Literal["keep_latest", "delete"] = "keep_latest"


class RunsDeleteRequest(Request):
    """Remove all checkpoints, and their pending writes, of these runs."""

    run_ids: Annotated[list[Name], Meta(max_length=1000)]


class RemovalReceipt(Response):
    """How much was removed."""

    threads: int
    checkpoints: int
    pending_writes: int


Permission = Literal[
    "state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin", "operator", "decrypt-any"
]


class WhoAmI(Response):
    """Who the credential is. ``grants``: what keys that it makes may be allowed, where it has ``tenant:admin``."""

    key_id: str
    kind: Literal["subject", "service", "operator"]
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    grants: list[Permission]
    expires_at: datetime | None


class ApiKeyRequest(Request):
    """A new API key. ``subject`` keys are bound to ``subject_id``; ``service`` keys to the tenant.

    Neither ``permissions`` nor ``grants`` can exceed what the key that asks grants. ``grants`` is what keys that the
    new one makes may be allowed; absent: its permissions.
    """

    kind: Literal["subject", "service"]
    name: Title = ""
    subject_id: str | None = None
    permissions: tuple[Permission, ...] = ("state:read", "state:write", "state:delete")
    grants: tuple[Permission, ...] | None = None
    expires_at: datetime | None = None


class ApiKey(Response):
    """An API key without its secret.

    ``damaged``: somebody edited its row in the database, or sealed it under a pepper that this gateway was not given;
    it opens nothing.
    """

    key_id: str
    kind: Literal["subject", "service", "operator"]
    name: str
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    grants: list[Permission]
    status: Literal["active", "revoked", "expired", "damaged"]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class ApiKeyCreated(ApiKey):
    """An API key with its secret, which is shown this once: null where an Idempotency-Key says that it is a repeat."""

    api_key: str | None


class ApiKeyPage(Response):
    """API keys, newest first."""

    api_keys: list[ApiKey]
    next_cursor: str | None


class TenantRequest(Request):
    """A tenant's name, which no other tenant has."""

    name: Name


NOT_BLANK = r"[^\s\x00]"
Reason = Annotated[str, Meta(min_length=1, max_length=500, pattern=NOT_BLANK)]


class TenantSuspension(Request):
    """Why a tenant is suspended: recorded in its audit log, where it reads it once it is resumed."""

    reason: Reason


class TenantRecovery(Request):
    """Why an operator makes a key for a tenant: recorded in its audit log, where the tenant reads it."""

    reason: Reason
    expires_at: datetime | None = None


class Tenant(Response):
    """A tenant. ``suspended_at``: since when its keys are refused; null: they are not."""

    tenant_id: str
    name: str
    created_at: datetime
    suspended_at: datetime | None


class TenantCreated(Tenant):
    """A tenant with its first key, shown this once: it has ``tenant:admin``, and grants all that a tenant's key may do.

    It is null where an Idempotency-Key says that it is a repeat.
    """

    api_key: str | None


class DecryptRequest(Request):
    """An operator's break-glass reading: whose checkpoint, which one (absent: the namespace's latest), and why.

    Ids are as they are, not encoded. ``reason`` is recorded in the tenant's audit log, where the tenant reads it.
    """

    subject_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    reason: Reason
    namespace: Namespace = ""
    checkpoint_id: CheckpointIdText | None = None


class TenantPage(Response):
    """Tenants, newest first."""

    tenants: list[Tenant]
    next_cursor: str | None


class AuditEvent(Response):
    """An event of the audit log. ``hash`` covers ``previous``, ``sequence`` and ``body``; both are in hex.

    ``body`` is the canonical text that was hashed; the other members repeat what it says, and are null where it cannot
    be read.
    """

    sequence: int
    at: datetime | None
    actor: str | None
    action: str | None
    target: str | None
    detail: dict[str, Any] | None
    body: str
    previous: str
    hash: str


class AuditPage(Response):
    """Events, oldest first. ``origin`` names the chain; ``next_cursor`` is null on the last page."""

    origin: str
    events: list[AuditEvent]
    next_cursor: str | None


class AuditAnchor(Response):
    """A signed anchor: the chain ``origin`` had ``sequence`` events, the last with this ``hash`` (hex).

    ``note`` is the signed text (https://c2sp.org/signed-note); ``stored`` says whether the object store holds it.
    """

    origin: str
    sequence: int
    hash: str
    note: str
    stored: bool


class AuditKey(Response):
    """The public key that anchors of ``origin`` are signed with, as ``name+key id+base64``."""

    origin: str
    public_key: str


class Subject(Response):
    """A subject that has data."""

    subject_id: str


class SubjectPage(Response):
    """Subjects, by id."""

    subjects: list[Subject]
    next_cursor: str | None


class VerifyRequest(Request):
    """What to verify: one thread, or all of the subject's, a stretch at a time from ``cursor`` on."""

    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    cursor: str | None = None


class VerifyFinding(Response):
    """Damage, by place; never what is stored there. ``code`` is stable."""

    code: str
    detail: str
    thread_id: str | None
    namespace: str | None
    checkpoint_id: str | None


class VerifyReport(Response):
    """How many rows were opened, and what was found.

    ``threads_skipped`` were not opened: only their client holds a share of their keys. Nor were ``threads_frozen``:
    they are archived, and have to be thawed first.
    """

    threads: int
    threads_skipped: int
    threads_frozen: int
    checkpoints: int
    pending_writes: int
    pieces: int
    findings: list[VerifyFinding]
    next_cursor: str | None


MediaType = Annotated[str, Meta(min_length=3, max_length=255)]


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


QuotaBytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Quota(Request):
    """How many bytes a tenant may keep, at least one of both; null: as many as it likes, left out: as before."""

    quota_bytes: QuotaBytes | UnsetType | None = UNSET
    rows_quota_bytes: QuotaBytes | UnsetType | None = UNSET


class TenantUsage(Response):
    """What a tenant keeps, and what it may keep: in the object store, and as rows in the database.

    In the object store objects count sealed, with what is reserved for uploads; what was deleted counts until its
    object is gone, which is when the last backup that names it has expired. Rows are counted now and then: at
    ``rows_counted_at``, null before the first time. A null quota means as much as it likes.
    """

    tenant_id: str
    used_bytes: int
    quota_bytes: int | None
    rows_bytes: int | None
    rows_quota_bytes: int | None
    rows_counted_at: datetime | None


class Fault(Response, omit_defaults=True):
    """Where a request is at fault: a JSON pointer into the body, a query parameter, or a header."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    header: str | UnsetType = UNSET


class Problem(Response, omit_defaults=True):
    """RFC 9457 problem details. ``code`` is stable; ``retryable``: the same request may succeed later.

    Of ``thread-archived``, ``state`` says how far away the thread is, and ``progress`` (0 to 1) how far its thaw, if a
    restore waits for it.
    """

    type: str
    title: str
    status: int
    code: str
    retryable: bool
    detail: str = ""
    request_id: str = ""
    errors: list[Fault] = []
    limit: str | UnsetType = UNSET
    head_id: str | UnsetType | None = UNSET
    state: Literal["archived", "frozen", "thawing"] | UnsetType = UNSET
    progress: float | UnsetType = UNSET


def component_schemas(types: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """JSON Schemas of ``types`` for OpenAPI, with shared components under ``#/components/schemas/``."""
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return list(schemas), components


class RotateRequest(Request):
    """Which key to rotate: the tenant's, or a subject's data key (then name the subject)."""

    level: Literal["tenant", "subject"]
    subject_id: Name | None = None


class TenantKey(Response):
    """One version of the tenant's key. ``subject_keys`` counts what it wraps."""

    key_version: int
    state: str
    provider: str
    root_key_version: str
    created_at: datetime
    destroyed_at: datetime | None
    subject_keys: int


class SubjectKey(Response):
    """One version of a subject's data or id key.

    ``shred_effective_at`` is when the last backup that holds a shredded key has expired.
    """

    purpose: str
    key_version: int
    tenant_key_version: int
    state: str
    created_at: datetime
    destroyed_at: datetime | None
    shred_effective_at: datetime | None


class KeyStatus(Response):
    """Key versions, oldest first; ``subject_keys`` is null when no subject was named."""

    tenant_keys: list[TenantKey]
    subject_keys: list[SubjectKey] | None


class RootKeyUse(Response):
    """How many tenant keys a version of a root key wraps."""

    provider: str
    root_key_id: str
    root_key_version: str
    tenant_keys: int


class RootKeyStatus(Response):
    """Every version of a root key that is still needed."""

    root_keys: list[RootKeyUse]


class ShredRequest(Request):
    """The confirmation: the id of what is to be shredded, once more."""

    confirm: Name


class StateSchemaDefinition(Request):
    """A version of a state schema; the first has no step, every other one either ``up`` or ``deployment``.

    ``label`` is the version as people call it, ``json_schema`` (draft 2020-12) what saves are checked against,
    ``ephemeral`` channels that are never stored, ``searchable`` keys of metadata (at most 16, of at most 128 bytes) by
    which a filter finds checkpoints without opening others, ``up`` and ``down`` declarative operations from the version
    before and back, ``deployment`` a schema that the deployment ships steps for.
    """

    label: Title | None = None
    json_schema: dict[str, Any] | None = None
    ephemeral: Annotated[list[Name], Meta(max_length=1000)] = []
    searchable: Annotated[list[Name], Meta(max_length=16)] = []
    up: Annotated[list[dict[str, Any]], Meta(max_length=200)] | None = None
    down: Annotated[list[dict[str, Any]], Meta(max_length=200)] | None = None
    deployment: Name | None = None


class StateSchemaVersion(Response):
    """A registered version. It never changes.

    ``damaged``: it was registered or edited outside the gateway, and so says nothing here. It and those after it are
    not used until it is registered again, as it was.
    """

    state_schema: str
    state_version: int
    label: str | None
    json_schema: dict[str, Any] | None
    ephemeral: list[str]
    searchable: list[str]
    up: list[dict[str, Any]] | None
    down: list[dict[str, Any]] | None
    deployment: str | None
    created_at: datetime
    damaged: bool


class StateSchemaName(Response):
    """A state schema and its newest version."""

    state_schema: str
    newest_version: int


class StateSchemaPage(Response):
    """The tenant's state schemas, by name."""

    state_schemas: list[StateSchemaName]
    next_cursor: str | None


class StateSchema(Response):
    """A state schema with all its versions, oldest first."""

    state_schema: str
    newest_version: int
    versions: list[StateSchemaVersion]


class StateAdoptionRequest(Request):
    """At which version the unversioned state of an agent is that was saved until now.

    ``agent`` null: the state of programs that name no agent. ``namespace`` is one namespace, the root's by default, or
    the beginning of some with a star. ``supersede`` corrects what was said before.
    """

    agent: Name | None
    state_version: StateVersionNumber
    namespace: Namespace = ""
    supersede: bool = False


class StateAdoption(Response):
    """What unversioned state is that was saved before ``adopted_at``; ``damaged``: no gateway wrote this row."""

    state_schema: str
    state_version: int
    agent: str | None
    namespace: str
    adopted_at: datetime
    damaged: bool


class StateAdoptionList(Response):
    """What was adopted under a schema and holds, by agent and namespace."""

    adoptions: list[StateAdoption]


class StateMigrationRequest(Request):
    """What to bring a schema's heads to, and how gently; ``target_version`` absent: the newest.

    ``threads_per_second`` bounds how many are looked at; heads that an agent saved less than ``idle_seconds`` ago are
    left alone, because it is probably at work on them.
    """

    target_version: StateVersionNumber | None = None
    threads_per_second: Annotated[int, Meta(ge=1, le=1000)] = 50
    idle_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 60


class StateRollbackRequest(Request):
    """How gently to undo a migration; ``threads_per_second`` bounds how many heads are looked at."""

    threads_per_second: Annotated[int, Meta(ge=1, le=1000)] = 50


class StateHeads(Response):
    """How many heads are at a version."""

    state_version: int
    heads: int


class UnversionedThreads(Response):
    """How many threads of an agent have a root that was saved without a version and that nobody adopted."""

    agent: str | None
    threads: int


class StateMigrationFailure(Response):
    """Heads that cannot be converted, alike. Names below a channel that nobody registered are ``*``."""

    step: str
    pointer: str
    detail: str
    heads: int


class StateChange(Response):
    """What changes at one place, by type, never by value; null: nothing is there."""

    pointer: str
    before: str | None
    after: str | None


class StateMigrationSample(Response):
    """What would become of one head."""

    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str
    from_version: int
    changes: list[StateChange]


class StateMigrationReport(Response):
    """What a job found and did; ``changed`` is what a plan would change.

    Left alone were: ``current`` (nothing to do), ``waiting`` (for somebody, or with pending writes) and ``recent``
    heads, which are converted when they are loaded; ``shared`` threads, which only their client opens; ``archived``
    ones; heads that ``moved`` whenever they were visited; and what was ``gone`` meanwhile.
    """

    heads: int
    current: int
    changed: int
    waiting: int
    recent: int
    shared: int
    archived: int
    moved: int
    gone: int
    failed: int
    failures: list[StateMigrationFailure]
    samples: list[StateMigrationSample]


class JobTarget(Response, omit_defaults=True):
    """What a job works on: only the members that narrow it are there; with none, all of the tenant or deployment."""

    subject_id: str | UnsetType = UNSET
    thread_id: str | UnsetType = UNSET
    state_schema: str | UnsetType = UNSET
    state_version: int | UnsetType = UNSET


class JobProgress(Response):
    """How much is done; ``total`` is an estimate, null before it is known."""

    done: int
    total: int | None


class VerificationFinding(Response, omit_defaults=True):
    """Damage that a job found, by place; of a deployment's job, how often a tenant's job found it."""

    code: str
    detail: str | UnsetType = UNSET
    subject_id: str | None = None
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    tenant_id: str | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Verification(Response):
    """What a job verified, how often it found each code, and where, up to a hundred places.

    ``known_losses``: anchored heads, and of the deployment's job tenants, that an accepted restore lost; no damage.
    """

    threads: int = 0
    threads_skipped: int = 0
    threads_frozen: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    pieces: int = 0
    found: dict[str, int] = {}
    findings: list[VerificationFinding] = []
    known_losses: int = 0


class Job(Response):
    """A long operation, as every answer that begins or shows one has it.

    ``error`` says why it failed, ``note`` what was left out and why. ``migration`` is there of ``state-plan``,
    ``state-migrate`` and ``state-rollback``, ``verification`` when ``verify-tenant`` or ``verify-deployment`` ended.
    ``waits_for`` is why an open one does not go on, as a code such as ``root-key-refused``; null: it goes on, or has
    not begun. ``damaged``: its row was edited outside the gateway; what it said is not shown, and nothing is done by
    it.
    """

    job_id: str
    kind: str
    state: Literal["queued", "running", "done", "failed"]
    target: JobTarget
    progress: JobProgress
    error: str | None
    note: str | None
    waits_for: str | None
    created_at: datetime
    updated_at: datetime
    damaged: bool
    migration: StateMigrationReport | UnsetType = UNSET
    verification: Verification | UnsetType = UNSET


class Rotation(Job, kw_only=True):
    """The job that does the rest of a rotation; ``key_version`` is active now."""

    level: Literal["tenant", "subject"]
    key_version: int


class Shredded(Job, kw_only=True):
    """The keys are destroyed: every gateway refuses from its next request on. The job deletes the rows.

    ``shred_effective_at`` is when the last backup that holds the wrapped keys has expired; ``tombstone`` says whether
    the object store keeps a restored backup from bringing them back.
    """

    shred_effective_at: datetime
    tombstone: bool


class StateMigrationStatus(Response):
    """Heads of a schema by version, as they are now, and the last job of each kind, newest first.

    ``unversioned`` are the tenant's threads that belong to no schema, by agent, the most first: adopt what is state of
    this one. A thread in the archive is not among them.
    """

    state_schema: str
    newest_version: int
    heads: list[StateHeads]
    unversioned: list[UnversionedThreads]
    jobs: list[Job]


class JobPage(Response):
    """Jobs, newest first."""

    jobs: list[Job]
    next_cursor: str | None


class RetentionRound(Response):
    """How far the tenant's round of retention is; one process has it at a time.

    ``state``: ``running``, a process has its lease, until ``lease_until`` if it does not renew it; ``waiting``, for
    ``due_at`` or, after that, for a process; ``none``, nobody said how long threads are kept. ``looked_at`` are the
    threads that the round under way has looked at. ``done`` and ``due`` count acts of the round under way, or of the
    last one: what was done, and what was left, the oldest of which has been due since ``late_since``.
    """

    state: Literal["running", "waiting", "none"]
    lease_until: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    looked_at: int = 0
    hot: int = 0
    archive: int = 0
    held: int = 0
    done: dict[str, int] = {}
    due: dict[str, int] = {}
    late_since: datetime | None = None


class TransferKey(Response):
    """What exports for this tenant are sealed for; compare the fingerprint, the deployment's, over another way."""

    public_key: str
    fingerprint: str


class ExportRequest(Request):
    """Who shall be able to open the export: the transfer key that the receiving tenant is shown."""

    recipient: Annotated[str, Meta(max_length=200)]


class UnboundImport(Request):
    """An export of an earlier format: the id in its file's name, and in the audit log of who exported it."""

    export_id: UUID


class ThreadExportRequest(ExportRequest):
    """Whose thread it is, and who shall be able to open its export."""

    subject_id: Name


class PassedOver(Response):
    """A thread that was not imported, and why.

    ``there``: an earlier run brought it; ``exists``: it was here before; ``client-share``: its share was not sent, here
    or at the export; ``archived``, ``damaged``: it could not be read there.
    """

    subject_id: str
    thread_id: str
    reason: str


class ImportReport(Response):
    """What was imported; ``verified`` threads were read back and are what was exported.

    The others were written to before they could be compared. ``passed`` names the first 1,000 of ``passed_over``.
    """

    export_id: str
    job_id: str
    threads: int
    checkpoints: int
    pending_writes: int
    artifacts: int
    state_schemas: int
    verified: int
    passed_over: int
    passed: list[PassedOver]


_RetentionSeconds = Annotated[int, Meta(ge=1, le=100 * 366 * 86_400)]
_RetentionCount = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RetentionThinning(Request, omit_defaults=True):
    """Which checkpoints stay when a thread is thinned; what none of these names goes. Name at least one.

    ``every``: those whose step is a multiple of it; ``keep_first`` and ``keep_last``: so many of the oldest and newest
    of each namespace; ``keep_statuses``: those with one of these statuses.
    """

    every: _RetentionCount | None = None
    keep_first: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    keep_last: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    keep_statuses: Annotated[list[Status], Meta(max_length=4)] = []


class RetentionPolicy(Request, omit_defaults=True):
    """What one level says of its threads; absent or null: nothing, and a more general level decides.

    A thread ends when it was idle for ``idle_ttl_seconds`` (reads do not count), is ``absolute_ttl_seconds`` old, or
    has been ``done`` for ``done_ttl_seconds``: then it is archived, or with ``on_expiry`` ``delete`` deleted. An
    archive is deleted after ``archive_ttl_seconds``. A thread with a quarter more checkpoints than ``checkpoints_max``
    is thinned down to it; ``thinning`` says what else goes; pending writes that nobody resumes from go after
    ``pending_writes_seconds``. ``legal_hold`` keeps everything, whatever else is said; absent, it stays as it is.
    """

    idle_ttl_seconds: _RetentionSeconds | None = None
    absolute_ttl_seconds: _RetentionSeconds | None = None
    done_ttl_seconds: _RetentionSeconds | None = None
    on_expiry: Literal["archive", "delete"] | None = None
    checkpoints_max: _RetentionCount | None = None
    thinning: RetentionThinning | None = None
    pending_writes_seconds: _RetentionSeconds | None = None
    archive_storage_class: Word | None = None
    archive_ttl_seconds: _RetentionSeconds | None = None
    legal_hold: bool | None = None


class RetentionCeilings(Request, omit_defaults=True):
    """What an operator allows a tenant at most, also where no policy says anything; absent or null: as it likes."""

    idle_ttl_seconds: _RetentionSeconds | None = None
    absolute_ttl_seconds: _RetentionSeconds | None = None
    done_ttl_seconds: _RetentionSeconds | None = None
    checkpoints_max: _RetentionCount | None = None
    pending_writes_seconds: _RetentionSeconds | None = None
    archive_ttl_seconds: _RetentionSeconds | None = None


class EffectiveRetention(Response):
    """What holds after all levels were merged, the most specific first, and capped; null: never, or without bound."""

    idle_ttl_seconds: int | None
    absolute_ttl_seconds: int | None
    done_ttl_seconds: int | None
    on_expiry: Literal["archive", "delete"]
    checkpoints_max: int | None
    thinning: RetentionThinning | None
    pending_writes_seconds: int | None
    archive_storage_class: str | None
    archive_ttl_seconds: int | None
    legal_hold: bool


class DamagedRetention(Response):
    """What was said at a level and is damaged; ``agent`` at the level of agents."""

    level: Literal["tenant", "agent", "ceilings"]
    agent: str | None


class Retention(Response):
    """What is said for all threads of the tenant, or for those of ``agent``, and what that comes to.

    ``agents`` are those that have a policy of their own. ``updated_at`` null: nothing was ever said here. ``damaged``
    are those that were written or edited outside the gateway: nothing is removed that they could apply to, and
    ``effective`` is null where one of them applies. A PUT that says ``legal_hold`` supersedes one; of the ceilings, the
    operator's.
    """

    agent: str | None
    policy: RetentionPolicy
    effective: EffectiveRetention | None
    ceilings: RetentionCeilings
    agents: list[str]
    damaged: list[DamagedRetention]
    updated_at: datetime | None


class SavePolicy(Request, omit_defaults=True):
    """Whether a save must name the head it follows; absent or null: nothing is said here."""

    strict: bool | None = None


class SavePolicies(Response):
    """What is said for all saves of the tenant, or for those of ``agent``, and what that comes to.

    ``strict`` is what holds: an agent's policy counts before the tenant's; null: something damaged decides, and a save
    that names no head is refused as ``integrity-failure``. ``agents`` are those that have a policy of their own;
    ``updated_at`` null: nothing is said here. ``damaged`` are those whose policy was written or edited outside
    the gateway; null among them is the tenant. A PUT supersedes one.
    """

    agent: str | None
    policy: SavePolicy
    strict: bool | None
    agents: list[str]
    damaged: list[str | None]
    updated_at: datetime | None


class RetentionStep(Response):
    """What becomes of a thread next: at ``at``, or as soon as a round comes by if that is past."""

    action: Literal["archive", "delete", "expire", "thin"]
    reason: Literal[
        "idle_ttl", "absolute_ttl", "done_ttl", "archive_ttl", "checkpoints_max", "thinning", "pending_writes"
    ]
    at: datetime


class ThreadRetention(Response):
    """What a thread's own policy says, what holds for it, and what becomes of it next if nobody writes to it.

    ``damaged``: its own policy was written or edited outside the gateway; a PUT by tenant:admin that says
    ``legal_hold`` supersedes it. ``effective`` null: something damaged applies to it, and nothing of it is removed.
    """

    thread_id: str
    policy: RetentionPolicy
    effective: EffectiveRetention | None
    damaged: bool
    next: RetentionStep | None
    updated_at: datetime | None


class RetentionForeseen(Response):
    """What a round would do of one sort.

    ``bytes``: what leaves the database sealed, or of ``expire`` the archives' sizes. Of ``thin`` it is an estimate, and
    ``checkpoints`` and ``pending_writes`` say how many would go.
    """

    action: Literal["archive", "delete", "expire", "thin"]
    threads: int
    bytes: int
    checkpoints: int
    pending_writes: int


class RetentionPreview(Response):
    """What a round would do at ``at`` to a stretch of the tenant's threads: add up the pages.

    ``held`` threads would be acted on but for a legal hold; ``damaged`` ones are left alone because a policy that could
    apply to them was written or edited outside the gateway.
    """

    at: datetime
    threads: int
    held: int
    damaged: int
    actions: list[RetentionForeseen]
    next_cursor: str | None


class TenantRetentionCeilings(Response):
    """The operator's ceilings for a tenant. ``updated_at`` null: there never were any."""

    tenant_id: str
    ceilings: RetentionCeilings
    updated_at: datetime | None
