"""What events look like to a caller, and on the wire.

This module owns no behaviour. It promises that members and types of a newer gateway are passed over, or passed on.
"""

from collections.abc import Collection
from datetime import datetime

import msgspec


class EventStream(msgspec.Struct, frozen=True):
    """What an event has an order with: events of one stream come in the order in which they happened.

    Attributes:
        kind: ``thread``, ``approval``, ``job`` or ``tenant``.
        id: The thread's, approval's or job's id; of the tenant the empty text.
        incarnation: Tells a thread from an earlier one of the same id.
    """

    kind: str
    id: str
    incarnation: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. What is not of its type is ``None``.

    Attributes:
        event_id: Its id; the same event may come twice, and has the same one then.
        type: What happened, such as ``checkpoint.saved``; ``removed``: it was of a subject that was shredded since.
        at: When it was stored.
        stream: What it has an order with.
        stream_sequence: Its number in its stream; they rise, and not by one.
        subject_id: Whose it is; ``None``: the tenant's.
        thread_id: The thread it is about.
        namespace: The namespace it is about.
        checkpoint_id: The checkpoint it is about.
        run_id: The run that it happened in.
        agent: The program's name.
        status: How the thread stands, or how the job ended.
        job_id: The job it is about.
        key_id: The API key it is about.
        subject_tag: The keyed tag of a subject that was shredded.
        cursor: What ``events(since=...)`` goes on with behind this event.
    """

    event_id: str
    type: str
    at: datetime
    stream: EventStream
    stream_sequence: int
    cursor: str
    subject_id: str | None = None
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    status: str | None = None
    job_id: str | None = None
    key_id: str | None = None
    subject_tag: str | None = None


class EventPage(msgspec.Struct, frozen=True):
    """Events, and where to go on behind them."""

    events: list[Event]
    cursor: str
    more: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """What one listens to: these types (none: all), this thread (``None``: all), and whether also what is to come."""

    types: Collection[str] = ()
    thread: str | None = None
    follow: bool = True
