"""Moving a thread to the archive and back, as jobs: asking for it, and what shows of it meanwhile."""

from typing import Annotated

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway import wire
from gateway.authentication.principals import Principal
from gateway.http.exchange import Exchange, path_id
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Operation, route
from gateway.services import Services
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
    return wire.threads.Thread(
        thread_id=thread.thread_id,
        agent=thread.agent,
        status=thread.status,
        tier=thread.tier,
        strict=thread.strict,
        client_share=thread.client_share,
        created_at=thread.created_at,
        updated_at=thread.updated_at,
        head_id=thread.head_id,
        damaged=True if thread.damaged else UNSET,
    )


def described(status: ArchiveStatus) -> wire.threads.ThreadArchive | UnsetType:
    """What a thread shows of its archive; nothing of a hot one."""
    stub = status.stub
    if stub is None or status.state == "hot":
        return UNSET
    return wire.threads.ThreadArchive(
        state=status.state,
        storage_class=stub.storage_class,
        checkpoints=stub.checkpoints,
        pending_writes=stub.pending_writes,
        hot_bytes=stub.hot_bytes,
        size_bytes=stub.size_bytes,
        archived_at=stub.created_at,
        retry_after_seconds=status.retry_after_seconds,
        progress=status.progress,
        job_id=None if status.job_id is None else str(status.job_id),
    )


@route(
    Operation(
        name="archive_thread",
        method=HttpMethod.POST,
        path="/threads/{thread_id:str}/archive",
        summary="Move a thread to the archive; a job does it (202). 200: it is there. Repeating while it goes on names "
        "the same job.",
        permission="state:write",
        query=ArchiveQuery,
        returns=wire.jobs.Job,
        returns_otherwise=wire.threads.Thread,
        statuses=(202, 200),
        problems=("thread-not-found", "thread-busy", "archive-unavailable"),
        subject=True,
    )
)
async def archive_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Begin to archive."""
    query = exchange.query(ArchiveQuery)
    name = path_id(thread_id, "thread_id")
    thread = await services.store.threads.get(subject_scope, name)
    if thread.tier == "archive":
        return exchange.reply(thread_out(thread))
    beginning = services.store.archives.begin_archive(subject_scope, name, principal.actor, query.storage_class)
    try:
        job_id = await services.write(subject_scope, name, beginning)
    except InvalidState as error:  # it was not in a body
        raise InvalidRequest(Fault(detail=str(error), parameter="storage_class")) from None
    return await begun(exchange, services, subject_scope, job_id)


@route(
    Operation(
        name="restore_thread",
        method=HttpMethod.POST,
        path="/threads/{thread_id:str}/restore",
        summary="Bring a thread back from the archive, thawing it first if need be; a job does it (202). 200: it is "
        "hot. Repeating while it goes on names the same job. How far it is shows in GET of the thread.",
        permission="state:write",
        returns=wire.jobs.Job,
        returns_otherwise=wire.threads.Thread,
        statuses=(202, 200),
        problems=("thread-not-found", "thread-busy", "archive-unavailable"),
        subject=True,
    )
)
async def restore_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Begin to restore."""
    exchange.no_query()
    name = path_id(thread_id, "thread_id")
    thread = await services.store.threads.get(subject_scope, name)
    if thread.tier == "hot":
        return exchange.reply(thread_out(thread))
    beginning = services.store.archives.begin_restore(subject_scope, name, principal.actor)
    job_id = await services.write(subject_scope, name, beginning)
    return await begun(exchange, services, subject_scope, job_id)


ROUTES = [archive_thread, restore_thread]
