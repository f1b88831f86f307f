"""Bodies of threads."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.wire.base import Name, Namespace, Request, Response, Status


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


SEGMENTS_SHOWN_MAX = 1_000


class ThreadSegment(Response):
    """One segment of a thread: its number, and from which id to which its checkpoints are.

    Segments of the same ``volume`` need each other's objects: those with greater numbers come back along with one.
    """

    segment: int
    volume: int
    first_id: str
    last_id: str
    checkpoints: int


class SegmentsRestoring(Response):
    """The restore that brings segments back: whether the next object can be read, and how far its thaw is."""

    job_id: str
    state: Literal["ready", "frozen", "thawing", "unknown"]
    retry_after_seconds: float
    progress: float | None


class ThreadSegments(Response):
    """What a thread has in segments: old checkpoints that are read where they are, and come back when written to.

    ``hot_bytes`` are what their rows took in the database, ``size_bytes`` the objects. ``ranges`` are the segments by
    number, of more than 1,000 those with the greatest; ``restoring`` is there while a job brings some back.
    """

    segments: int
    checkpoints: int
    pending_writes: int
    hot_bytes: int
    size_bytes: int
    ranges: list[ThreadSegment]
    restoring: SegmentsRestoring | UnsetType = UNSET


class ThreadParent(Response):
    """The thread that another one was begun from, and where in it; ``absent``: there is no such thread now.

    Whether the checkpoint is there is not looked at; without one it is the whole thread that was begun from.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None
    absent: bool


class Thread(Response):
    """A thread: its settings and its root namespace's latest status.

    ``parent`` is there when it was begun from another one. ``archive`` is there when one thread is shown and it is in
    the archive tier, ``segments`` when it has some; lists leave both out. ``damaged`` is in lists: the thread was made
    or altered outside the gateway; its verification tells more.
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
    parent: ThreadParent | UnsetType = UNSET
    archive: ThreadArchive | UnsetType = UNSET
    segments: ThreadSegments | UnsetType = UNSET
    damaged: bool | UnsetType = UNSET


class ThreadPage(Response):
    """Threads, newest first."""

    threads: list[Thread]
    next_cursor: str | None


class ThreadSettings(Request):
    """Settings of a thread; what is absent stays. ``strict`` makes If-Match mandatory for saves."""

    strict: bool | UnsetType = UNSET
    agent: Name | UnsetType | None = UNSET


class ParentRequest(Request):
    """The thread that another one was begun from; its root namespace and no checkpoint in particular by default."""

    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    namespace: Namespace = ""
    checkpoint_id: Name | None = None


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
