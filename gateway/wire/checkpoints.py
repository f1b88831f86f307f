"""Bodies of checkpoints, pending writes, histories of channels and pieces."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.wire.base import (
    WITHOUT_NUL,
    CheckpointIdText,
    Fence,
    Holes,
    Integer,
    MediaType,
    Name,
    Namespace,
    Reason,
    Request,
    Response,
    StateVersionNumber,
    Status,
    Title,
    Version,
    Word,
)
from gateway.wire.items.items import ItemWrite
from gateway.wire.thread_ledgers.approvals import ApprovalRefs, Approvals


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


class LeafIn(Request):
    """What is said of a large leaf of a value: a str, bin or ext that the gateway moves out, or a placeholder.

    Exactly one of ``at`` (its offset in the value's bytes, as in ``holes``) and ``path`` (a JSON pointer into the
    value, ``""`` for the value itself) says which. ``preview`` is at most 4,096 bytes: the first characters of a text,
    or a small picture. Of a value that stays in its row it is not kept.
    """

    at: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET
    path: str | UnsetType = UNSET
    media_type: MediaType | None = None
    preview: Annotated[bytes, Meta(max_length=4096)] | None = None


Leaves = Annotated[list[LeafIn], Meta(max_length=10_000)]


class LeafOut(Response, omit_defaults=True):
    """A large leaf that is stored beside its value: its keyed digest (``piece``), size, and what was said of it.

    ``at`` is where it, or its placeholder, begins in the bytes of the value; absent in the ``state`` view in JSON.
    ``path`` is where it stands; absent where that is not known. ``media_type`` is what was said when it was saved, else
    ``text/plain``, ``application/octet-stream`` or ``application/msgpack`` (an extension value), or absent of one that
    was uploaded before.
    """

    piece: bytes
    size_bytes: int
    at: int | UnsetType = UNSET
    path: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    preview: bytes | UnsetType = UNSET


class ChannelIn(Request):
    """One channel as an adapter serialised it.

    ``data`` absent means "unchanged": the parent checkpoint must hold this channel at the same ``version``.
    With ``append_to`` the parent must hold it at that version as a MessagePack list, and ``data`` is a MessagePack
    list (without ``holes``) of the elements that follow its own. Where either does not hold, send the whole value.
    ``leaves`` says of large leaves in ``data`` what they are.
    """

    version: Version | None = None
    encoding: Annotated[str, Meta(max_length=64)] = "msgpack"
    data: bytes | UnsetType = UNSET
    holes: Holes = []
    append_to: Version | UnsetType = UNSET
    leaves: Leaves = []


class Changes(Request):
    """A patch of the head's state: channels set, elements appended to list channels, channels removed.

    ``leaves`` says by channel what large leaves in ``set`` are, or in ``append``: there a path begins with the
    element's place among those that are appended.
    """

    set: dict[Name, Raw] = {}
    append: dict[Name, list[Raw]] = {}
    remove: list[Name] = []
    leaves: dict[Name, Leaves] = {}


class SaveRequest(Request):
    """Save a checkpoint: exactly one of ``state``, ``changes`` (needs If-Match) or ``channels``.

    ``parent_id`` absent: the namespace's head when the save is applied; ``null``: no parent. ``fork``
    declares that an older parent is meant. ``delta_channels`` names channels whose value is rebuilt from
    ancestors' pending writes. ``state_holes`` (MessagePack only): offsets of placeholders in members of ``state``;
    ``state_leaves`` says what large leaves in them are. ``items`` are put in the same transaction: all of them and the
    checkpoint, or nothing. ``fence`` is that of the claim under which the thread is gone on with.
    checkpoint, or nothing; and so is what people are asked, ``approvals``. ``approval_refs`` are names of questions of
    namespaces below, which are asked there.
    """

    state: dict[Name, Raw] | UnsetType = UNSET
    state_holes: dict[Name, Holes] = {}
    state_leaves: dict[Name, Leaves] = {}
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
    items: Annotated[list[ItemWrite], Meta(max_length=100)] = []
    fence: Fence | None = None
    approvals: Approvals = []
    approval_refs: ApprovalRefs = []


class LongList(Response):
    """A list channel of a new checkpoint that is longer than a save policy wants it.

    ``bytes`` are those of the list as MessagePack, large leaves included; null: an older release saved parts of it.
    """

    channel: str
    elements: int
    bytes: int | None


class SaveReceipt(Response, omit_defaults=True):
    """A checkpoint is durable. ``created`` is false when the same save had been stored before.

    ``needs_compaction`` is there when a save policy says of lists that they are long. A repeated answer is without.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    sequence: int
    created_at: datetime
    created: bool
    needs_compaction: list[LongList] = []


class ChannelOut(Response):
    """One channel as it was serialised; ``holes`` (with ``pieces=refs``) are offsets of placeholders in ``data``.

    ``leaves``: what is known of its large leaves, whether or not they are in ``data``.
    """

    version: Version | None
    encoding: str
    data: bytes
    holes: list[int] | UnsetType = UNSET
    leaves: list[LeafOut] | UnsetType = UNSET


class WriteOut(Response, omit_defaults=True):
    """A pending write: ``value`` in the ``state`` view, ``encoding`` and ``data`` in ``channels``.

    ``holes`` (with ``pieces=refs``) are offsets of placeholders in the bytes of ``data`` or ``value``; ``leaves`` says
    what is known of its large leaves, whether or not they are in it.
    ``state_version`` is there where the write has one of its own; without it, it is at its checkpoint's.
    """

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    holes: list[int] | UnsetType = UNSET
    leaves: list[LeafOut] | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    state_schema: str | UnsetType = UNSET
    state_version: int | UnsetType = UNSET


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


class InlinedArtifact(Response, omit_defaults=True):
    """An artifact that a state names, by ``resolve=previews`` or ``resolve=inline``.

    ``data`` (``resolve=inline`` only) is its content, of at most 1 MiB each and 8 MiB in an answer; ``too_large``: it
    is beyond that. ``preview`` is there where the artifact has one.
    ``missing``: the subject has no such artifact. ``withheld``: it needs a client-held share that was not sent, or
    another one. Of the last two nothing else is said.
    """

    name: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    preview: bytes | UnsetType = UNSET
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

    ``artifacts`` (a load with ``resolve=previews`` or ``resolve=inline`` only): those that the state and its pending
    writes name, by id.

    ``history`` (a load that names channels in ``history`` only): what their channel-history says, of the same moment if
    no version is asked for.

    ``state_holes`` (view ``state`` with ``pieces=refs``, MessagePack only): by channel, at which bytes of its member of
    ``state`` placeholders stand for large leaves.

    ``state_leaves`` (view ``state`` only): by channel, what is known of its large leaves, whether or not they are in
    ``state``.
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
    history: ChannelHistories | UnsetType = UNSET
    state_holes: dict[str, list[int]] | UnsetType = UNSET
    state_leaves: dict[str, list[LeafOut]] | UnsetType = UNSET


class CheckpointPage(Response):
    """Checkpoints, newest first. ``next_cursor`` is null on the last page.

    ``artifacts`` (``resolve=previews`` or ``resolve=inline`` only): those that the page's states and pending writes
    name, by id.
    """

    checkpoints: list[Checkpoint]
    next_cursor: str | None
    artifacts: dict[str, InlinedArtifact] | UnsetType = UNSET


class WriteIn(Request):
    """One pending write. Either a plain ``value`` or ``encoding`` and ``data``.

    A write at ``idx >= 0`` is kept as first written; one at ``idx < 0`` is replaced by the newest. ``leaves`` says what
    large leaves in its value are.
    """

    channel: Name
    idx: Annotated[int, Meta(ge=-(2**15), lt=2**31)]
    encoding: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    holes: Holes = []
    leaves: Leaves = []
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
    ``fence`` is that of the claim under which the thread is gone on with.
    ``approvals``: what people are asked, in the same transaction. ``approval_refs`` are names of questions of
    namespaces below, which are asked there.
    """

    writes: Annotated[list[WriteIn], Meta(max_length=1000)]
    namespace: Namespace = ""
    task_path: Annotated[str, Meta(max_length=2048, pattern=WITHOUT_NUL)] = ""
    status: Status | None = None
    state_schema: Word | None = None
    state_version: StateVersionNumber | None = None
    fence: Fence | None = None
    approvals: Approvals = []
    approval_refs: ApprovalRefs = []


class WritesReceipt(Response):
    """How many writes were stored; the others had been stored before."""

    stored: int
    unchanged: int


class TaskWrites(Response):
    """The pending writes of one task, by ``idx``."""

    writes: list[WriteOut]


class CompactRequest(Request):
    """Make a list channel of the head shorter: ``summary``, then its ``keep_last`` newest elements.

    ``summary`` is an element, or a list of them. What is left out of ``status``, ``agent``, ``metadata`` and the state
    version is as the head has it. ``fence`` is that of the claim under which the thread is gone on with.
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
    fence: Fence | None = None


class DecryptRequest(Request):
    """An operator's break-glass reading: whose checkpoint, which one (absent: the namespace's latest), and why.

    Ids are as they are, not encoded. ``reason`` is recorded in the tenant's audit log, where the tenant reads it.
    """

    subject_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    reason: Reason
    namespace: Namespace = ""
    checkpoint_id: CheckpointIdText | None = None
