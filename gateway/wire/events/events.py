"""Bodies of events, as pages and as lines of a stream."""

from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from gateway.wire.base import Response

EventType = Literal[
    "thread.created",
    "checkpoint.saved",
    "thread.status",
    "thread.deleted",
    "thread.archived",
    "thread.restored",
    "thread.stuck",
    "approval.created",
    "approval.decided",
    "approval.expired",
    "approval.superseded",
    "approval.consumed",
    "job.ended",
    "key.created",
    "key.revoked",
    "subject.shredded",
    "removed",
]


class EventStream(Response):
    """What an event has an order with: those of one stream come in the order in which they happened.

    ``incarnation`` tells a thread from an earlier one of the same id.
    """

    kind: Literal["thread", "approval", "job", "tenant"]
    id: str
    incarnation: str


class Event(Response):
    """Something that happened. What is not of its type is null.

    ``removed``: it was of a subject that was shredded since, and says nothing more. ``cursor`` goes on behind it; in a
    stream of server-sent events it is the line's ``id``.
    """

    event_id: str
    type: EventType
    at: datetime
    stream: EventStream
    stream_sequence: int
    subject_id: str | None
    thread_id: str | None
    namespace: str | None
    checkpoint_id: str | None
    run_id: str | None
    agent: str | None
    status: str | None
    job_id: str | None
    key_id: str | None
    subject_tag: str | None
    cursor: str | UnsetType = UNSET


class EventPage(Response):
    """Events, the oldest first. ``cursor`` goes on behind them, also where there are none."""

    events: list[Event]
    cursor: str
    more: bool
