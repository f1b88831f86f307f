"""Bodies of API v1 as the client writes and reads them.

This module owns the shapes that never leave the package. It does not validate; the gateway does.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stateroom.types import CheckpointInfo, Model, PendingWrite, Status, ThreadInfo, Usage

Version = str | int | float


class ChannelIn(Struct, omit_defaults=True):
    """A channel to save; without ``data`` it is declared unchanged since the parent."""

    version: Version | None = None
    encoding: str = "msgpack"
    data: bytes | UnsetType = UNSET


class Changes(Struct):
    """A patch of the head's state."""

    set: dict[str, Any]
    append: dict[str, list[Any]]
    remove: list[str]


class SaveRequest(Struct, kw_only=True, omit_defaults=True):
    """A checkpoint to save."""

    state: dict[str, Any] | UnsetType = UNSET
    changes: Changes | UnsetType = UNSET
    channels: dict[str, ChannelIn] | UnsetType = UNSET
    id: str | UnsetType = UNSET
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


class WriteIn(Struct, kw_only=True, omit_defaults=True):
    """A pending write to store: a plain value, or an encoding and its bytes."""

    channel: str
    # Never left out, although 0 would be a natural default: the gateway requires it.
    idx: int
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    value: Any = UNSET


class WritesRequest(Struct, kw_only=True, omit_defaults=True):
    """Pending writes of one task."""

    writes: list[WriteIn]
    namespace: str = ""
    task_path: str = ""
    status: Status | None = None


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


class SerialisedWrite(Struct, kw_only=True):
    """A pending write as it was serialised."""

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    encoding: str
    data: bytes


class CheckpointWithState(CheckpointInfo, kw_only=True):
    """A checkpoint in the ``state`` view."""

    state: dict[str, Any] = msgspec.field(default_factory=dict)
    pending_writes: list[PendingWrite] = msgspec.field(default_factory=list)


class CheckpointWithChannels(CheckpointInfo, kw_only=True):
    """A checkpoint in the ``channels`` view."""

    channels: dict[str, ChannelOut] = msgspec.field(default_factory=dict)
    pending_writes: list[SerialisedWrite] = msgspec.field(default_factory=list)


class CheckpointPage(Struct, kw_only=True):
    """Checkpoints in the ``none`` view, newest first."""

    checkpoints: list[CheckpointInfo]
    next_cursor: str | None = None


class ChannelsPage(Struct, kw_only=True):
    """Checkpoints in the ``channels`` view, newest first."""

    checkpoints: list[CheckpointWithChannels]
    next_cursor: str | None = None


class ChannelHistory(Struct, kw_only=True):
    """Writes to a channel, oldest first, since ``seed``."""

    writes: list[SerialisedWrite]
    seed: ChannelOut | UnsetType = UNSET


class ChannelHistories(Struct, kw_only=True):
    """Histories by channel."""

    channels: dict[str, ChannelHistory]


class ThreadPage(Struct, kw_only=True):
    """Threads, newest first."""

    threads: list[ThreadInfo]
    next_cursor: str | None = None


class ThreadSettings(Struct, kw_only=True, omit_defaults=True):
    """Settings of a thread; what is left out stays."""

    strict: bool | UnsetType = UNSET
    agent: str | UnsetType | None = UNSET


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


def unset_if_none(value: Any) -> Any:
    """``UNSET`` for ``None``, so that the field is left out of the body."""
    return msgspec.UNSET if value is None else value
