"""Frozen values that storage takes and gives. No behaviour, no I/O."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID

from msgspec import Struct

Status = Literal["active", "waiting", "failed", "done"]
Strategy = Literal["keep_latest", "delete"]
Purpose = Literal["piece", "artifact", "archive"]
"""What a blob is: a value's piece, a file, or an archived thread."""
Bucket = Literal["blobs", "archive"]
"""Which bucket an object is in. The names of objects differ, too, so that one bucket may be both."""
EXPORT_PERMISSION: Final = "state:export"
"""What a key needs to export threads in clear, beside `state:read`."""
Tier = Literal["hot", "archive"]
"""Where a thread's rows are: in the database, or in an object."""
ChannelVersion = str | int | float | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeLeaf:
    """A large leaf of a value and what is said of it (`storage.format.leaf_notes`).

    To save: what a client says of the leaf ``at`` an offset or, without one, at a ``path``. Loaded: all that is known.

    Attributes:
        at: Where the leaf, or the placeholder in its place, begins in the value's bytes.
        path: Where it stands in the value: a JSON pointer (RFC 6901).
        media_type: What it is.
        preview: A thumbnail or a summary of it.
        piece_id: The piece that it is: its keyed digest.
        size_bytes: How long it is, with its MessagePack header.
    """

    at: int | None = None
    path: str | None = None
    media_type: str | None = None
    preview: bytes | None = None
    piece_id: bytes = b""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """A serialised value: ``data`` in ``encoding`` ("msgpack" is the one the gateway can read).

    ``holes`` are offsets in ``data`` at which a placeholder stands for a large leaf (`storage.format.leaves`).
    ``leaves`` are its large leaves that are stored apart; they describe it, and are no part of what it says.
    """

    encoding: str
    data: bytes
    holes: tuple[int, ...] = ()
    leaves: tuple[LargeLeaf, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ChannelValue:
    """A channel to save. ``value`` None: unchanged, the parent holds it at ``version``.

    ``append_to``: the parent holds it at that version, as a MessagePack list; ``value`` is a MessagePack list of the
    elements that follow.
    """

    version: ChannelVersion
    value: Value | None
    append_to: ChannelVersion = None


@dataclass(frozen=True, slots=True)
class FullState:
    """All channels of the new checkpoint (save forms ``state`` and ``channels``); ``root``: where errors point to."""

    channels: dict[str, ChannelValue]
    root: str = "/state"


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes to the head's state (save form ``changes``); elements of ``append`` are msgpack values.

    ``leaves``: what is said of large leaves among the elements, by channel, at paths into the list of them.
    """

    set: dict[str, Value]
    append: dict[str, list[bytes]]
    remove: list[str]
    leaves: dict[str, tuple[LargeLeaf, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Precondition:
    """What the caller believes of the head. Without any of these it is a belief that never holds.

    Attributes:
        head_id: It is this one (If-Match with its ETag).
        absent: There is none (If-None-Match: *).
        sequence: Also, nothing was written to it since, not even a pending write.
        or_one_of: Or it is one of these (If-Match with several ETags).
        exists: There is one, whichever that is (If-Match: *).
    """

    head_id: str | None = None
    absent: bool = False
    sequence: int | None = None
    or_one_of: tuple[str, ...] = ()
    exists: bool = False

    def holds(self, head_id: str | None) -> bool:
        """Whether ``head_id`` (None: there is none) is what is believed; the sequence is not asked here."""
        if head_id is None:
            return self.absent
        return self.exists or head_id == self.head_id or head_id in self.or_one_of


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent to record; as a type, because "the head", "none" and "this one" are three things."""

    checkpoint_id: str | None


@dataclass(slots=True)
class Replay:
    """Whether a request was answered with what an equal one had done before; set where its receipt is read."""

    happened: bool = False


@dataclass(frozen=True, slots=True)
class Idempotency:
    """An Idempotency-Key with the digest of its request (32 bytes)."""

    idempotency_key: str
    request_digest: bytes
    replay: Replay = field(default_factory=Replay, compare=False)


ApprovalKind = Literal["tool_call", "input", "confirmation"]
VerdictWord = Literal["approve", "reject", "edit", "respond"]


@dataclass(frozen=True, slots=True)
class NewAction:
    """Something that an agent wants to do, about which people are asked.

    Attributes:
        tool: The tool's name.
        args: Its arguments, a map in MessagePack, as the tool's schema leaves them, without what is injected.
        tool_digest: SHA-256 of what the tool takes, in hex.
        args_schema: The JSON schema of the arguments, in JSON.
        hide: JSON pointers into the arguments, to what nobody is shown.
        description: What the agent says of it.
    """

    tool: str
    args: bytes
    tool_digest: str | None = None
    args_schema: bytes | None = None
    hide: tuple[str, ...] = ()
    description: str | None = None


@dataclass(frozen=True, slots=True)
class NewApproval:
    """What people are asked, stored in the transaction that stores the state which waits for the answer.

    Attributes:
        external_id: The name of the question: the same with the same actions is the same approval, with others it
            supersedes the one before.
        actions: What is asked about, 1 to 32.
        kind: What sort of question it is.
        message: The question.
        display: What is shown without a client-held share; sealed without one.
        response_schema: The JSON schema of an answer, in JSON.
        expires_seconds: How long it waits; None: as long as the policy says.
        allowed: What may be said.
        agent: The agent that asks; None: the save's, or the thread's as it then is.
    """

    external_id: str
    actions: tuple[NewAction, ...]
    kind: ApprovalKind = "tool_call"
    message: str | None = None
    display: str | None = None
    response_schema: bytes | None = None
    expires_seconds: int | None = None
    allowed: frozenset[VerdictWord] = frozenset({"approve", "reject"})
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for approval: the API key, and its principal."""

    key_id: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint to save. ``checkpoint_id`` None: minted; ``parent`` None: the head; ``step`` None: parent's + 1.

    ``searchable``: the keys of ``metadata`` that its state version declares, by which it is found
    (`storage.schemas.tags`).
    ``makes_room``: with it a prune takes away far more than it stores, so that a quota of rows does not refuse it.
    ``fence``: that of the claim under which the caller goes on with the thread; None: it has none.
    ``between_claims``: it is a job's of an administrator, and no run's: it is stored though the thread asks for claims,
    and refused while anybody's is live.
    ``approvals``: what people are asked with it, by ``asker``; ``approval_refs``: external ids of what a namespace
    below asked, of which nothing is stored.
    """

    thread_id: str
    namespace: str = ""
    content: FullState | Patch
    checkpoint_id: str | None = None
    parent: Parent | None = None
    precondition: Precondition | None = None
    fork: bool = False
    known_token: str | None = None
    status: Status = "active"
    step: int | None = None
    source: str | None = None
    agent: str | None = None
    run_id: str | None = None
    model: dict[str, Any] | None = None
    usage: dict[str, int] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    state_schema: str | None = None
    state_version: int | None = None
    delta_channels: tuple[str, ...] = ()
    idempotency: Idempotency | None = None
    searchable: tuple[str, ...] = ()
    makes_room: bool = False
    fence: int | None = None
    between_claims: bool = False
    approvals: tuple[NewApproval, ...] = ()
    approval_refs: tuple[str, ...] = ()
    asker: Asker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A list channel to compact: ``summary`` (MessagePack elements), then the ``keep_last`` newest elements.

    What is None is as the head has it; ``checkpoint_id`` None: minted. ``fence`` as in `Save`.
    """

    thread_id: str
    namespace: str = ""
    channel: str
    keep_last: int
    summary: tuple[bytes, ...] = ()
    checkpoint_id: str | None = None
    precondition: Precondition | None = None
    known_token: str | None = None
    status: Status | None = None
    agent: str | None = None
    run_id: str | None = None
    metadata: dict[str, Any] | None = None
    state_schema: str | None = None
    state_version: int | None = None
    idempotency: Idempotency | None = None
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class SaveRule:
    """What one save policy says; None: nothing of that.

    Attributes:
        strict: Whether saves must name the head they follow.
        compact_elements: Lists with more elements need compaction.
        compact_bytes: Lists with more bytes do.
    """

    strict: bool | None = None
    compact_elements: int | None = None
    compact_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LongList:
    """A list channel that is longer than a save policy wants it; ``size`` None: its bytes were not all counted."""

    channel: str
    elements: int
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A durable checkpoint. ``created`` False: the same save had been stored before.

    ``token`` is what the client may keep to notice a rollback; empty in receipts of before it existed. Receipts do not
    have what ``needs_compaction``, either.
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
    head_id: str
    token: str = ""
    needs_compaction: tuple[LongList, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A loaded channel."""

    version: ChannelVersion
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """A stored write of a task against a checkpoint; without a version of its own it is at its checkpoint's."""

    task_id: str
    idx: int
    task_path: str
    channel: str
    value: Value
    state_schema: str | None = None
    state_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint. ``channels`` and ``writes`` are None where they were not asked for.

    ``withheld``: only its clear columns are here, and nothing vouches for them: its thread is under a client-held share
    that was not sent, a whole tenant is listed, or it is ``damaged``: it or what belongs to it does not authenticate.
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
    model: dict[str, Any] | None
    usage: dict[str, int] | None
    metadata: dict[str, Any]
    delta_channels: tuple[str, ...]
    channels: dict[str, Channel] | None
    writes: list[PendingWrite] | None
    withheld: bool = False
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """A checkpoint in a listing of a whole tenant, and whose it is."""

    subject_id: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint and its namespace's head, read at one moment; ``token`` as in `Saved`.

    ``histories``: those of the channels that `Load.history` names.
    """

    checkpoint: Checkpoint
    head_id: str
    token: str
    histories: "ChannelHistories | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Which checkpoints to list, newest first. ``namespace`` None: all; ``thread_id`` None: all of the subject.

    ``after`` continues a page: the (checkpoint id, thread id, namespace) of its last row, and what a listing that
    leaves nothing out has read. ``known_token``: what the caller has seen of the thread. ``refs``: placeholders
    stand for large leaves.
    """

    thread_id: str | None = None
    namespace: str | None = None
    before: str | None = None
    status: Status | None = None
    step: int | None = None
    run_id: str | None = None
    source: str | None = None
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    limit: int = 100
    with_state: bool = False
    after: tuple[str, ...] | None = None
    known_token: str | None = None
    refs: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items, and where the next page begins (None: nowhere)."""

    items: list[T]
    after: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWrite:
    """A write to store; ``idx`` >= 0 is kept as first written, < 0 is replaced by the newest."""

    idx: int
    channel: str
    value: Value


@dataclass(frozen=True, slots=True)
class Load:
    """Which checkpoint to load, and how much of it.

    ``checkpoint_id`` None: the namespace's head. ``known_token`` is what the caller has seen of the thread before.
    ``refs``: placeholders stand for large leaves (`Value.holes`), which `Pieces.get` gives one by one. ``history`` are
    channels whose histories come along; ``mark`` is as in `ChannelHistoryQuery`, of these channels.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None
    _: KW_ONLY
    with_state: bool
    known_token: str | None = None
    refs: bool = False
    history: Sequence[str] | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class TaskWritesQuery:
    """Which task's writes against a checkpoint to read; ``refs`` as in `Load`."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    task_id: str
    _: KW_ONLY
    refs: bool = False


@dataclass(frozen=True, slots=True)
class ChannelHistoryQuery:
    """Which channels' histories to read, of which checkpoint.

    ``mark`` is that of an earlier answer, which is gone on from where the rest of it still holds; the rest is as in
    `Load`.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None
    channels: Sequence[str]
    _: KW_ONLY
    known_token: str | None = None
    refs: bool = False
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class TaskWrites:
    """What a task wrote, to be stored against a checkpoint that may not exist yet.

    ``task_path`` is where the task stands in its graph. Each of ``writes`` has another ``idx``. ``status`` is the
    outcome of the checkpoint that the task makes; None: it makes none. ``state_schema`` None: they are at their
    checkpoint's version. ``fence``, ``approvals``, ``approval_refs`` and ``asker`` as in `Save`.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    writes: Sequence[NewWrite]
    status: Status | None = None
    known_token: str | None = None
    state_schema: str | None = None
    state_version: int | None = None
    fence: int | None = None
    approvals: tuple[NewApproval, ...] = ()
    approval_refs: tuple[str, ...] = ()
    asker: Asker | None = None

    @property
    def tells_status(self) -> bool:
        """Whether they say how their thread stands."""
        return self.status is not None and self.namespace == ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesReceipt:
    """How many writes were stored, and how many had been before.

    ``token`` as in `Saved`, where the checkpoint is its namespace's head.
    """

    stored: int
    unchanged: int
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHistory:
    """Writes to a channel since ``seed``, oldest first.

    ``seed_at``: the seed is what another version makes of this checkpoint's state, and is not here. ``continues``: what
    is here comes after what was given with the mark that the reader sent, the seed of which still is the seed.
    """

    writes: list[PendingWrite]
    seed: Channel | None
    seed_at: str | None = None
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHistories:
    """Histories by channel; ``mark``: what to send the next time, None where the next answer will be whole anyway."""

    channels: dict[str, ChannelHistory]
    mark: str | None


class ThreadLink(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a thread says it was begun from: a thread of the same subject, and a place in it.

    It is a name, whether or not anything has it. ``checkpoint_id`` None: no checkpoint in particular.
    """

    thread_id: str
    namespace: str = ""
    checkpoint_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread's clear record, and what it is linked to.

    ``segmented``: it has segments; ``damaged``: its seal does not vouch for it, nor for a link; ``parent_absent``: it
    is linked to a thread that is not there.
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
    segmented: bool = False
    damaged: bool = False
    link: ThreadLink | None = None
    parent_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed."""

    threads: int
    checkpoints: int
    pending_writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy holds."""

    thread_id: str
    checkpoints: int
    pending_writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant. ``suspended_at`` is since when its keys are refused, if they are."""

    tenant_id: UUID
    name: str
    created_at: datetime
    suspended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeySeal:
    """What a gateway vouches for of an API key's row (`storage.keys.key_seals`).

    Attributes:
        grants: What keys that this one makes may be allowed.
        mac: Over these and the row, its revocation included.
        pepper_version: Of the pepper that made ``mac``.
    """

    grants: tuple[str, ...]
    mac: bytes = field(repr=False)
    pepper_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRecord:
    """An API key as it is stored.

    Attributes:
        mac: An HMAC of the secret and of what the key may do, never the secret.
        pepper_version: Of the pepper that made ``mac``.
        seal: None where a gateway of the release before made the key, or the seal was taken away.
        suspended: Whether its tenant is suspended; said by the look-up of a presented key, and by nothing else.
    """

    key_id: str
    kind: Literal["subject", "service", "operator"]
    name: str
    tenant_id: UUID | None
    subject_id: str | None
    permissions: tuple[str, ...]
    mac: bytes = field(repr=False)
    pepper_version: int
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    seal: KeySeal | None = None
    suspended: bool = False

    @property
    def grants(self) -> tuple[str, ...]:
        """What keys that this one makes may be allowed; where nothing was said of it, what it may do itself."""
        return self.permissions if self.seal is None else self.seal.grants

    def is_active(self, now: datetime) -> bool:
        """Whether it is neither revoked nor at its end."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)
