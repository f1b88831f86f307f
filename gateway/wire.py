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
Version = str | int | float

NAME_BYTES_MAX = 255
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Namespace = Annotated[str, Meta(max_length=2048)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
CheckpointIdText = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of request bodies: an unknown field is an error, not a silent loss."""


class Response(Struct, kw_only=True):
    """Base of response bodies."""


class Model(Request, omit_defaults=True):
    """Which model produced a step, so that a replay can be told from a re-run."""

    name: Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
    hash: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


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
    task_path: Annotated[str, Meta(max_length=2048)] = ""
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
    name: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] = ""
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

    name: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]


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
