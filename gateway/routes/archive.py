"""Moving a thread to the archive and back, as jobs: asking for it, and what shows of it meanwhile."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway import wire
from gateway.authentication.principals import SUBJECT
from gateway.http.exchange import Answer, path_id
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Call, Operation
from gateway.wire.base import Status
from gateway.wire.problems import Fault
from storage import model
from storage.archive.moving import ArchiveStatus, KeepHot
from storage.errors import InvalidState
from storage.scope import Scope

_Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class RestoreQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What comes back: ``segment`` by its number in the thread, with what its volume got later; absent: all."""

    segment: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ArchiveQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What moves, and where to: ``storage_class`` is the objects'; absent: the bucket's own.

    Without any other member the whole thread is archived. With one it stays hot, and its older checkpoints move into
    segments: those made, and written to last, longer ago than ``older_than_seconds``, but not the newest ``keep_last``
    and the oldest ``keep_first`` of each namespace, those whose step is a multiple of ``keep_every``, those that had or
    came to ``keep_status``, and what any of these is rebuilt from.
    """

    storage_class: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    older_than_seconds: Annotated[int, Meta(ge=0, le=100 * 366 * 86_400)] | None = None
    keep_last: _Count | None = None
    keep_first: _Count | None = None
    keep_every: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    keep_status: Status | None = None

    def keep_hot(self) -> KeepHot | None:
        """What stays hot of a thread that stays hot; None: nothing does."""
        asked = (self.older_than_seconds, self.keep_last, self.keep_first, self.keep_every, self.keep_status)
        if all(each is None for each in asked):
            return None
        return KeepHot(
            seconds=self.older_than_seconds or 0,
            first=self.keep_first or 0,
            last=self.keep_last or 0,
            every=self.keep_every,
            statuses=() if self.keep_status is None else (self.keep_status,),
        )


def thread_out(thread: model.Thread) -> wire.threads.Thread:
    """A thread as lists show it."""
    link = thread.link
    parent = UNSET if link is None else wire.threads.ThreadParent.of(link, absent=thread.parent_absent)
    damaged = True if thread.damaged else UNSET
    return wire.threads.Thread.of(thread, parent=parent, archive=UNSET, segments=UNSET, damaged=damaged)


def described(status: ArchiveStatus) -> wire.threads.ThreadArchive | UnsetType:
    """What a thread shows of its archive; nothing of a hot one."""
    stub = status.stub
    if stub is None or status.state == "hot":
        return UNSET
    return wire.threads.ThreadArchive.of(
        stub,
        state=status.state,
        archived_at=stub.created_at,
        retry_after_seconds=status.retry_after_seconds,
        progress=status.progress,
        job_id=None if status.job_id is None else str(status.job_id),
    )


def segments_out(status: ArchiveStatus) -> wire.threads.ThreadSegments | UnsetType:
    """What a thread shows of its segments; nothing of one without."""
    if status.segments is None:
        return UNSET
    newest = sorted(status.ranges, key=lambda each: each.segment)[-wire.threads.SEGMENTS_SHOWN_MAX :]
    restoring: wire.threads.SegmentsRestoring | UnsetType = UNSET
    if status.tier == "hot" and status.state != "hot" and status.job_id is not None:
        restoring = wire.threads.SegmentsRestoring.of(status, job_id=str(status.job_id))
    ranges = [wire.threads.ThreadSegment.of(each) for each in newest]
    return wire.threads.ThreadSegments.of(status.segments, ranges=ranges, restoring=restoring)


@Operation(
    "POST /v1/threads/{thread_id}/archive",
    reach=SUBJECT,
    summary="Move a thread, or with older_than_seconds or a keep_ member its older checkpoints, to the archive; a job "
    "does it (202). 200: the thread is there. Repeating while it goes on names the same job.",
    permission="state:write",
    query=ArchiveQuery,
    returns=wire.jobs.Job,
    returns_otherwise=wire.threads.Thread,
    statuses=(202, 200),
    problems=("thread-not-found", "thread-busy", "archive-unavailable", "feature-off"),
)
async def archive_thread(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(ArchiveQuery)
    name = path_id(thread_id, "thread_id")
    thread = await call.store.threads.get(call.scope, name)
    if thread.tier == "archive":
        return call.exchange.reply(thread_out(thread))
    beginning = call.store.archives.begin_archive(call.scope, name, call.actor, query.storage_class, query.keep_hot())
    try:
        job_id = await call.services.write(call.scope, name, beginning)
    except InvalidState as error:  # it was not in a body
        raise InvalidRequest(Fault(detail=str(error), parameter="storage_class")) from None
    return await begun(call, job_id)


@Operation(
    "POST /v1/threads/{thread_id}/restore",
    reach=SUBJECT,
    summary="Bring a thread back from the archive with all of its segments, or one of them, thawing them first if "
    "need be; a job does it (202). 200: all of it is hot. Repeating while it goes on names the same job. How far it is "
    "shows in GET of the thread.",
    permission="state:write",
    query=RestoreQuery,
    returns=wire.jobs.Job,
    returns_otherwise=wire.threads.Thread,
    statuses=(202, 200),
    problems=("thread-not-found", "thread-busy", "thread-archived", "archive-unavailable"),
)
async def restore_thread(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(RestoreQuery)
    name = path_id(thread_id, "thread_id")
    thread = await call.store.threads.get(call.scope, name)
    if thread.tier == "hot" and not thread.segmented:
        return call.exchange.reply(thread_out(thread))
    beginning = call.store.archives.begin_restore(call.scope, name, call.actor, query.segment)
    try:
        job_id = await call.services.write(call.scope, name, beginning)
    except InvalidState as error:  # it was not in a body
        raise InvalidRequest(Fault(detail=str(error), parameter="segment")) from None
    return await begun(call, job_id)
