"""What an event says: its type, its stream and clear columns, nothing that an audit record or a list would not show."""

from typing import Final, Literal, NamedTuple, get_args
from uuid import UUID

EventType = Literal[
    "thread.created",  # by its first checkpoint, by a copy or by an import
    "checkpoint.saved",
    "thread.status",  # a task's writes said how the run stands: it waits for somebody, or ended
    "thread.deleted",
    "thread.archived",
    "thread.restored",
    "thread.stuck",  # one worker after the other died with it and wrote nothing
    "approval.created",
    "approval.decided",  # approved, rejected, answered or cancelled, as its status says
    "approval.expired",
    "approval.superseded",
    "approval.consumed",
    "job.ended",
    "key.created",
    "key.revoked",
    "subject.shredded",
    "removed",  # of a subject that was shredded since
]
EVENT_TYPES: Final[tuple[str, ...]] = get_args(EventType)
# Of these an event is made; `removed` is what one becomes.
EMITTED_TYPES: Final = tuple(each for each in EVENT_TYPES if each != "removed")

StreamKind = Literal["thread", "approval", "job", "tenant"]


class Stream(NamedTuple):
    """What has an order of its own: events of one stream are numbered in the order in which they were committed.

    Attributes:
        kind: Whose events these are.
        id: The thread's, the approval's or the job's id; of the tenant itself the empty one.
        incarnation: Which thread of this id it was, so that one that was deleted and made again begins anew.
    """

    kind: StreamKind
    id: str = ""
    incarnation: str = ""


TENANT_STREAM: Final = Stream("tenant")


class Draft(NamedTuple):
    """An event that a transaction adds to the queue.

    Attributes:
        type: What happened.
        stream: Where it belongs.
        stream_sequence: The number in its stream; they rise, and are not gapless.
        subject_id: Whose it is; empty: the tenant's.
        thread_id: The thread that it is about.
        namespace: The namespace that it is about.
        checkpoint_id: The checkpoint that it is about.
        run_id: The run that made it.
        agent: The agent that made it.
        status: How it stands, or ended.
        job_id: The job that it is about.
        key_id: The API key that it is about.
        subject_tag: The keyed tag of a subject that was shredded, as the audit log has it.
    """

    type: EventType
    stream: Stream
    stream_sequence: int
    subject_id: str = ""
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    status: str | None = None
    job_id: UUID | None = None
    key_id: str | None = None
    subject_tag: str | None = None


class OfThread(NamedTuple):
    """What an event of a thread says of it.

    Attributes:
        thread_id: The thread that it is about.
        namespace: The namespace that it is about.
        checkpoint_id: The checkpoint that it is about.
        run_id: The run that made it.
        agent: The agent that made it; None: the thread's.
        status: The status; None: the thread's.
        step: How much greater its number is than the thread's activity: 1 for what ends the thread.
    """

    thread_id: str
    namespace: str | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    status: str | None = None
    step: int = 0
