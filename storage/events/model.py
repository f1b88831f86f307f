"""What is read of events: the events of a tenant in the order in which they were numbered, page by page."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from storage.event_queue.model import EMITTED_TYPES, EVENT_TYPES, EventType, Stream, StreamKind

__all__ = [
    "EMITTED_TYPES", "EVENT_TYPES", "Event", "EventPage", "EventPosition", "EventQuery", "EventSettings", "EventType",
    "Stream", "StreamKind",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Whether a tenant has events.

    Attributes:
        on: Whether what happens is told.
        since: The time from which on nothing is left out, a moment after it was switched on; None: it is off.
        damaged: Whether the row was written or edited outside the gateway, so that it says nothing.
    """

    on: bool = False
    since: datetime | None = None
    damaged: bool = False


class Event(msgspec.Struct, frozen=True):
    """An event of a tenant. What is not of its type is None.

    Attributes:
        sequence: The number in its tenant, without gaps but for what is not shown to the reader.
        event_id: The id by which one that was delivered twice is known, a UUID of version 7.
        type: What happened; ``removed``: it was of a subject that was shredded since, and says nothing more.
        at: The time of the database when it was stored.
        stream: What it has an order with.
        stream_sequence: The number in its stream.
        subject_id: Whose it is; None: the tenant's.
        thread_id: The thread that it is about.
        namespace: The namespace that it is about.
        checkpoint_id: The checkpoint that it is about.
        run_id: The run that made the checkpoint.
        agent: The agent that wrote.
        status: The checkpoint's or the thread's status, or how the job ended.
        job_id: The job that ended, or shredded.
        key_id: The API key that was made or revoked.
        subject_tag: The keyed tag of a subject that was shredded.
    """

    sequence: int
    event_id: UUID
    type: EventType
    at: datetime
    stream: Stream
    stream_sequence: int
    subject_id: str | None = None
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    status: str | None = None
    job_id: UUID | None = None
    key_id: str | None = None
    subject_tag: str | None = None


class EventPosition(NamedTuple):
    """Where a reader is: behind the event of this number, which had this id; None: no event has it."""

    sequence: int
    event_id: UUID | None


@dataclass(frozen=True, slots=True)
class EventQuery:
    """What a reader asks for.

    Attributes:
        after: Where it goes on; None: it begins now.
        types: The types that it wants; empty: all of them.
        thread_id: The thread whose events it wants; None: whatever they are about.
        limit: The events of a page, at most.
    """

    after: EventPosition | None = None
    types: frozenset[str] = field(default_factory=frozenset)
    thread_id: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, and where to go on.

    Attributes:
        events: The events, in the order of their numbers.
        position: Where to go on, also when there are none or all were of other types.
        more: Whether there may be more right now.
    """

    events: list[Event]
    position: EventPosition
    more: bool
