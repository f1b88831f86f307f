"""Bodies of API v1 as the client writes and reads them.

This module owns the shapes that never leave the package. It does not validate; the gateway does.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from stateroom.types import (
    Artifact,
    CheckpointInfo,
    Disposition,
    InlinedArtifact,
    Model,
    PendingWrite,
    Status,
    ThreadInfo,
    Usage,
)

Item_co = TypeVar("Item_co", covariant=True)

Version = str | int | float


class Leaf(Struct, kw_only=True, omit_defaults=True):
    """What is said of a large leaf, at an offset in the value's bytes or at a path in it."""

    at: int | UnsetType = UNSET
    path: str | UnsetType = UNSET
    media_type: str | None = None
    preview: bytes | None = None


class LeafOut(Struct, kw_only=True):
    """What is known of a large leaf."""

    piece: bytes
    size_bytes: int
    at: int | None = None
    path: str | None = None
    media_type: str | None = None
    preview: bytes | None = None


class ChannelIn(Struct, omit_defaults=True):
    """A channel to save; without ``data`` it is declared unchanged since the parent.

    With ``append_to``, ``data`` has the elements that follow those of the parent's list at that version.
    """

    version: Version | None = None
    encoding: str = "msgpack"
    data: bytes | UnsetType = UNSET
    holes: list[int] = []
    append_to: Version | UnsetType = UNSET
    leaves: list[Leaf] = []


class Changes(Struct, omit_defaults=True):
    """A patch of the head's state."""

    set: dict[str, Any]
    append: dict[str, list[Any]]
    remove: list[str]
    leaves: dict[str, list[Leaf]] = {}


class SaveRequest(Struct, kw_only=True, omit_defaults=True):
    """A checkpoint to save."""

    state: dict[str, Any] | UnsetType = UNSET
    changes: Changes | UnsetType = UNSET
    channels: dict[str, ChannelIn] | UnsetType = UNSET
    checkpoint_id: str | UnsetType = UNSET
    parent_id: str | UnsetType | None = UNSET
    namespace: str = ""
    status: Status = "active"
    step: int | UnsetType = UNSET
    source: str | None = None
    agent: str | None = None
    run_id: str | None = None
    model: Model | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = {}
    state_schema: str | None = None
    state_version: int | None = None
    delta_channels: list[str] = []
    fork: bool = False
    state_holes: dict[str, list[int]] = {}
    state_leaves: dict[str, list[Leaf]] = {}
    items: list[Any] = []
    fence: int | None = None
    approvals: list[Any] = []


class WriteIn(Struct, kw_only=True, omit_defaults=True):
    """A pending write to store: a plain value, or an encoding and its bytes."""

    channel: str
    # Never left out, although 0 would be a natural default: the gateway requires it.
    idx: int
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    holes: list[int] = []
    value: Any = UNSET
    leaves: list[Leaf] = []


class WritesRequest(Struct, kw_only=True, omit_defaults=True):
    """Pending writes of one task."""

    writes: list[WriteIn]
    namespace: str = ""
    task_path: str = ""
    status: Status | None = None
    state_schema: str | None = None
    state_version: int | None = None
    fence: int | None = None
    approvals: list[Any] = []
    # Questions that another write of this run asks, or has asked.
    approval_refs: list[str] = []


class WritesReceipt(Struct, kw_only=True):
    """How many writes were stored and how many had been."""

    stored: int
    unchanged: int


class WritesPage(Struct, kw_only=True):
    """Pending writes as plain values."""

    writes: list[PendingWrite]


class ChannelOut(Struct, kw_only=True):
    """A channel as it was serialised."""

    version: Version | None = None
    encoding: str
    data: bytes
    holes: list[int] = []
    leaves: list[LeafOut] = []


class _Write(Struct, kw_only=True):
    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    holes: list[int] = []
    leaves: list[LeafOut] = []


class SerialisedWrite(_Write, kw_only=True):
    """A pending write as it was serialised."""

    encoding: str
    data: bytes


class PieceRequest(Struct, kw_only=True):
    """A large leaf to upload."""

    data: memoryview


class PieceReceipt(Struct, kw_only=True):
    """What stands for an uploaded leaf."""

    piece: bytes
    size_bytes: int


class PieceContent(Struct, kw_only=True):
    """The bytes of a leaf that was asked for."""

    data: bytes


class CheckpointWithState(CheckpointInfo, kw_only=True):
    """A checkpoint in the ``state`` view."""

    state: dict[str, Any] = msgspec.field(default_factory=dict)
    pending_writes: list[PendingWrite] = msgspec.field(default_factory=list)
    artifacts: dict[str, InlinedArtifact] = msgspec.field(default_factory=dict)
    state_leaves: dict[str, list[LeafOut]] = msgspec.field(default_factory=dict)


class HoledWrite(_Write, kw_only=True):
    """A pending write in the ``state`` view, its value undecoded because it may have placeholders."""

    value: Raw


class HoledCheckpoint(CheckpointInfo, kw_only=True):
    """A checkpoint in the ``state`` view, its values undecoded because some have placeholders."""

    state: dict[str, Raw] = msgspec.field(default_factory=dict)
    state_holes: dict[str, list[int]] = msgspec.field(default_factory=dict)
    state_leaves: dict[str, list[LeafOut]] = msgspec.field(default_factory=dict)
    pending_writes: list[HoledWrite] = msgspec.field(default_factory=list)


class _WriteHoles(Struct):
    holes: list[int] = []


class Holes(Struct):
    """A checkpoint in the ``state`` view, as far as placeholders go."""

    state_holes: dict[str, list[int]] = {}
    pending_writes: list[_WriteHoles] = []

    def __bool__(self) -> bool:
        return bool(self.state_holes) or any(each.holes for each in self.pending_writes)


class ChannelHistory(Struct, kw_only=True):
    """Writes to a channel, oldest first, since ``seed``; ``continues``: behind those that came with the mark."""

    writes: list[SerialisedWrite]
    seed: ChannelOut | UnsetType = UNSET
    continues: bool = False


class ChannelHistories(Struct, kw_only=True):
    """Histories by channel; with ``mark`` the next time, only what came since is given."""

    channels: dict[str, ChannelHistory]
    mark: str | None = None


class CheckpointWithChannels(CheckpointInfo, kw_only=True):
    """A checkpoint in the ``channels`` view, with the histories that its load asked for."""

    channels: dict[str, ChannelOut] = msgspec.field(default_factory=dict)
    pending_writes: list[SerialisedWrite] = msgspec.field(default_factory=list)
    history: ChannelHistories | UnsetType = UNSET


class Page(Protocol[Item_co]):
    """Some items of a list, and where the next ones begin."""

    @property
    def items(self) -> Sequence[Item_co]: ...

    @property
    def next_cursor(self) -> str | None: ...


class CheckpointPage(Struct, kw_only=True):
    """Checkpoints in the ``none`` view, newest first."""

    items: list[CheckpointInfo] = field(name="checkpoints")
    next_cursor: str | None = None


class ChannelsPage(Struct, kw_only=True):
    """Checkpoints in the ``channels`` view, newest first."""

    checkpoints: list[CheckpointWithChannels]
    next_cursor: str | None = None


class ThreadPage(Struct, kw_only=True):
    """Threads, newest first."""

    items: list[ThreadInfo] = field(name="threads")
    next_cursor: str | None = None


class JobInfo(Struct, kw_only=True):
    """A job that was begun."""

    job_id: str


class ThreadSettings(Struct, kw_only=True, omit_defaults=True):
    """Settings of a thread; what is left out stays."""

    strict: bool | UnsetType = UNSET
    agent: str | UnsetType | None = UNSET


class CompactRequest(Struct, kw_only=True, omit_defaults=True):
    """A list channel to compact."""

    channel: str
    keep_last: int
    summary: list[Any] | Raw | UnsetType = UNSET
    namespace: str = ""
    checkpoint_id: str | UnsetType = UNSET
    status: Status | None = None
    agent: str | None = None
    run_id: str | None = None
    metadata: dict[str, Any] | None = None
    state_schema: str | None = None
    state_version: int | None = None
    fence: int | None = None


class ParentRequest(Struct, kw_only=True, omit_defaults=True):
    """What a thread was begun from."""

    thread_id: str
    namespace: str = ""
    checkpoint_id: str | None = None


class CopyRequest(Struct, kw_only=True):
    """Where to copy a thread to."""

    target_thread_id: str


class PruneRequest(Struct, kw_only=True):
    """What to prune."""

    thread_ids: list[str]
    strategy: str


class RunsDeleteRequest(Struct, kw_only=True):
    """Which runs to remove."""

    run_ids: list[str]


class ArtifactPage(Struct, kw_only=True):
    """Artifacts of a thread."""

    items: list[Artifact] = field(name="artifacts")
    next_cursor: str | None = None


class UploadRequest(Struct, kw_only=True, omit_defaults=True):
    """What a resumable upload will be."""

    name: str
    media_type: str
    metadata: dict[str, Any] = {}
    preview: bytes | None = None
    size_bytes: int | UnsetType = UNSET


class CompleteRequest(Struct, kw_only=True):
    """How many parts there are, and what they are together."""

    parts: int
    digest: str


class ArtifactCopyRequest(Struct, kw_only=True, omit_defaults=True):
    """Where to copy an artifact to."""

    thread_id: str
    name: str | UnsetType = UNSET


class UrlRequest(Struct, kw_only=True):
    """What a signed URL may do."""

    ttl_seconds: int
    disposition: Disposition


def unset_if_none(value: Any) -> Any:
    """``UNSET`` for ``None``, so that the field is left out of the body."""
    return msgspec.UNSET if value is None else value
