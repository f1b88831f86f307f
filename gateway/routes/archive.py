"""Moving a thread to the archive and back, as jobs: asking for it, and what shows of it meanwhile."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway import wire
from gateway.authentication.principals import SUBJECT
from gateway.http.exchange import Answer, path_id
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage import model
from storage.archive.moving import ArchiveStatus
from storage.errors import InvalidState
from storage.scope import Scope


class ArchiveQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to: the object's storage class; absent: the bucket's own."""

    storage_class: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


def thread_out(thread: model.Thread) -> wire.threads.Thread:
    """A thread as lists show it."""
    return wire.threads.Thread.of(thread, archive=UNSET, damaged=True if thread.damaged else UNSET)


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


@Operation(
    "POST /v1/threads/{thread_id}/archive",
    reach=SUBJECT,
    summary="Move a thread to the archive; a job does it (202). 200: it is there. Repeating while it goes on names "
    "the same job.",
    permission="state:write",
    query=ArchiveQuery,
    returns=wire.jobs.Job,
    returns_otherwise=wire.threads.Thread,
    statuses=(202, 200),
    problems=("thread-not-found", "thread-busy", "archive-unavailable"),
)
async def archive_thread(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(ArchiveQuery)
    name = path_id(thread_id, "thread_id")
    thread = await call.store.threads.get(call.scope, name)
    if thread.tier == "archive":
        return call.exchange.reply(thread_out(thread))
    beginning = call.store.archives.begin_archive(call.scope, name, call.actor, query.storage_class)
    try:
        job_id = await call.services.write(call.scope, name, beginning)
    except InvalidState as error:  # it was not in a body
        raise InvalidRequest(Fault(detail=str(error), parameter="storage_class")) from None
    return await begun(call, job_id)


@Operation(
    "POST /v1/threads/{thread_id}/restore",
    reach=SUBJECT,
    summary="Bring a thread back from the archive, thawing it first if need be; a job does it (202). 200: it is "
    "hot. Repeating while it goes on names the same job. How far it is shows in GET of the thread.",
    permission="state:write",
    returns=wire.jobs.Job,
    returns_otherwise=wire.threads.Thread,
    statuses=(202, 200),
    problems=("thread-not-found", "thread-busy", "archive-unavailable"),
)
async def restore_thread(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    thread = await call.store.threads.get(call.scope, name)
    if thread.tier == "hot":
        return call.exchange.reply(thread_out(thread))
    beginning = call.store.archives.begin_restore(call.scope, name, call.actor)
    job_id = await call.services.write(call.scope, name, beginning)
    return await begun(call, job_id)
