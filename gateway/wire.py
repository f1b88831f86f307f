"""The shapes of requests and responses of API v1, and nothing else.

Every body may be JSON or MessagePack, chosen by ``Content-Type`` and ``Accept``; the structs are the same.
``bytes`` are base64 in JSON and native in MessagePack. Values of an agent's state are carried as raw slices
of the body, so that MessagePack extension types pass through without being looked at.

This module does not validate meaning (limits, existence, permission) beyond what a type can say; it knows no
storage, no SQL and no cryptography.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Status = Literal["active", "waiting", "failed", "done"]
View = Literal["none", "state", "channels"]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # what MessagePack and PostgreSQL hold
Version = str | Integer | float

NAME_BYTES_MAX = 255
NAMESPACE_BYTES_MAX = 1024  # with four ids of 255 bytes it fits an entry of a B-tree (2,704 bytes)
WITHOUT_NUL = r"^[^\x00]*$"  # PostgreSQL's text holds every character but this one
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Title = Annotated[str, Meta(max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Namespace = Annotated[str, Meta(max_length=NAMESPACE_BYTES_MAX, pattern=WITHOUT_NUL)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
CheckpointIdText = Name


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
    """

    version: Version | None = None
    encoding: Annotated[str, Meta(max_length=64)] = "msgpack"
    data: bytes | UnsetType = UNSET


class Changes(Request):
    """A patch of the head's state: channels set, elements appended to list channels, channels removed."""

    set: dict[Name, Raw] = {}
    append: dict[Name, list[Raw]] = {}
    remove: list[Name] = []


class SaveRequest(Request):
    """Save a checkpoint: exactly one of ``state``, ``changes`` (needs If-Match) or ``channels``.

    ``parent_id`` absent: the namespace's head when the save is applied; ``null``: no parent. ``fork``
    declares that an older parent is meant. ``delta_channels`` names channels whose value is rebuilt from
    ancestors' pending writes.
    """

    state: dict[Name, Raw] | UnsetType = UNSET
    changes: Changes | UnsetType = UNSET
    channels: dict[Name, ChannelIn] | UnsetType = UNSET
    id: CheckpointIdText | UnsetType = UNSET
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
    state_version: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    delta_channels: list[Name] = []
    fork: bool = False


class SaveReceipt(Response):
    """A checkpoint is durable. ``created`` is false when the same save had been stored before."""

    thread_id: str
    namespace: str
    id: str
    parent_id: str | None
    step: int
    status: Status
    sequence: int
    created_at: datetime
    created: bool


class ChannelOut(Response):
    """One channel as it was serialised."""

    version: Version | None
    encoding: str
    data: bytes


class WriteOut(Response, omit_defaults=True):
    """A pending write: ``value`` in the ``state`` view, ``encoding`` and ``data`` in ``channels``."""

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    value: Raw | UnsetType = UNSET


class Checkpoint(Response):
    """A checkpoint as it is loaded.

    ``state`` (view ``state``) maps channels to plain values; ``channels`` (view ``channels``) gives the
    serialised bytes; view ``none`` gives neither. In JSON, bytes inside a state are ``{"$bytes": base64}``,
    MessagePack extension values ``{"$ext": [code, base64]}`` and values in a foreign encoding
    ``{"$encoded": [encoding, base64]}``.

    ``withheld`` (listings over threads only): clear columns, unverified; the rest needs a client-held share that was
    not sent, or another key. ``subject_id`` (a tenant's listing only): whose it is.
    """

    thread_id: str
    namespace: str
    id: str
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
    subject_id: str | UnsetType = UNSET


class CheckpointPage(Response):
    """Checkpoints, newest first. ``next_cursor`` is null on the last page."""

    checkpoints: list[Checkpoint]
    next_cursor: str | None


class WriteIn(Request):
    """One pending write. Either a plain ``value`` or ``encoding`` and ``data``.

    A write at ``idx >= 0`` is kept as first written; one at ``idx < 0`` is replaced by the newest.
    """

    channel: Name
    idx: Annotated[int, Meta(ge=-(2**15), lt=2**31)]
    encoding: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    value: Raw | UnsetType = UNSET


class WritesRequest(Request):
    """Pending writes of one task against a checkpoint, which need not exist yet."""

    writes: Annotated[list[WriteIn], Meta(max_length=1000)]
    namespace: Namespace = ""
    task_path: Annotated[str, Meta(max_length=2048, pattern=WITHOUT_NUL)] = ""
    status: Status | None = None


class WritesReceipt(Response):
    """How many writes were stored; the others had been stored before."""

    stored: int
    unchanged: int


class TaskWrites(Response):
    """The pending writes of one task, by ``idx``."""

    writes: list[WriteOut]


class ChannelHistory(Response, omit_defaults=True):
    """Writes to a channel, oldest first, since ``seed``: the nearest ancestor's value (absent: none)."""

    writes: list[WriteOut]
    seed: ChannelOut | UnsetType = UNSET


class ChannelHistories(Response):
    """Channel name to its history."""

    channels: dict[str, ChannelHistory]


class Thread(Response):
    """A thread: its settings and its root namespace's latest status."""

    thread_id: str
    agent: str | None
    status: Status
    tier: Literal["hot", "archive"]
    strict: bool
    client_share: bool
    created_at: datetime
    updated_at: datetime
    head_id: str | None


class ThreadPage(Response):
    """Threads, newest first."""

    threads: list[Thread]
    next_cursor: str | None


class ThreadSettings(Request):
    """Settings of a thread; what is absent stays. ``strict`` makes If-Match mandatory for saves."""

    strict: bool | UnsetType = UNSET
    agent: Name | UnsetType | None = UNSET


class CopyRequest(Request):
    """Copy a whole thread, history and pending writes included, to a thread that does not exist yet."""

    target_thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]


class CopyReceipt(Response):
    """What a copy holds."""

    thread_id: str
    checkpoints: int
    pending_writes: int


class PruneRequest(Request):
    """``keep_latest`` keeps each namespace's head and what it needs; ``delete`` removes everything."""

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


Permission = Literal["state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin", "operator"]


class WhoAmI(Response):
    """Who the credential is."""

    credential_id: str
    kind: Literal["subject", "service", "operator"]
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    expires_at: datetime | None


class ApiKeyRequest(Request):
    """A new API key. ``subject`` keys are bound to ``subject_id``; ``service`` keys to the tenant."""

    kind: Literal["subject", "service"]
    name: Title = ""
    subject_id: str | None = None
    permissions: tuple[Permission, ...] = ("state:read", "state:write", "state:delete")
    expires_at: datetime | None = None


class ApiKey(Response):
    """An API key without its secret."""

    key_id: str
    kind: Literal["subject", "service", "operator"]
    name: str
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewApiKey(ApiKey):
    """An API key with its secret, which is shown this once."""

    api_key: str


class ApiKeyPage(Response):
    """API keys, newest first."""

    api_keys: list[ApiKey]
    next_cursor: str | None


class TenantRequest(Request):
    """A new tenant; its first administration key comes back once."""

    name: Name


class Tenant(Response):
    """A tenant."""

    tenant_id: str
    name: str
    created_at: datetime


class NewTenant(Tenant):
    """A tenant with its first key (permissions: everything but ``operator``), shown this once."""

    api_key: str


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

    ``threads_skipped`` were not opened: only their client holds a share of their keys.
    """

    threads: int
    threads_skipped: int
    checkpoints: int
    pending_writes: int
    pieces: int
    findings: list[VerifyFinding]
    next_cursor: str | None


class Fault(Response, omit_defaults=True):
    """Where a request is at fault: a JSON pointer into the body, a query parameter, or a header."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    header: str | UnsetType = UNSET


class Problem(Response, omit_defaults=True):
    """RFC 9457 problem details. ``code`` is stable; ``retryable``: the same request may succeed later."""

    type: str
    title: str
    status: int
    code: str
    retryable: bool
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: list[Fault] = []
    limit: str | UnsetType = UNSET
    head_id: str | UnsetType | None = UNSET


def component_schemas(types: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """JSON Schemas of ``types`` for OpenAPI, with shared components under ``#/components/schemas/``."""
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return list(schemas), components


class RotateRequest(Request):
    """Which key to rotate: the tenant's, or a subject's data key (then name the subject)."""

    level: Literal["tenant", "subject"]
    subject_id: Name | None = None


class Rotation(Response):
    """A rotation that has begun: the version that is active now, and the job that does the rest."""

    level: Literal["tenant", "subject"]
    key_version: int
    job_id: str


class JobStarted(Response):
    """The job that does what was asked for."""

    job_id: str


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


class Shredded(Response):
    """The keys are destroyed: every gateway refuses from its next request on.

    ``shred_effective_at`` is when the last backup that holds the wrapped keys has expired; ``tombstone`` says whether
    the object store keeps a restored backup from bringing them back; ``job_id`` deletes the rows.
    """

    job_id: str
    shred_effective_at: datetime
    tombstone: bool


class Job(Response):
    """A long operation. ``total`` is an estimate, null before it is known; ``note`` says what was left out and why."""

    job_id: str
    kind: str
    target: str
    state: Literal["queued", "running", "done", "failed"]
    done: int
    total: int | None
    error: str | None
    note: str | None
    created_at: datetime
    updated_at: datetime


class JobPage(Response):
    """Jobs, newest first."""

    jobs: list[Job]
    next_cursor: str | None
