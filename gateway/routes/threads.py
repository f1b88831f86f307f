"""Threads: list, show, settings, delete, copy, prune, and removal of runs."""

from typing import Annotated, Literal

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.http.exchange import Exchange, path_id, place
from gateway.problems import InvalidRequest, pointer
from gateway.routes.archive import described, thread_out
from gateway.routing.operations import Operation, route
from gateway.services import Services
from gateway.wire.problems import Fault
from storage import model
from storage.encoding import encode_msgpack
from storage.errors import InvalidState
from storage.scope import Scope, check_id


class ThreadsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Filters of the list of threads."""

    status: wire.base.Status | None = None
    agent: wire.base.Name | None = None
    tier: Literal["hot", "archive"] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


def _id(text: str, *where: str | int) -> str:
    """An id from a body, where it is plain text."""
    try:
        return check_id(text, "an id")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer=pointer(*where))) from None


def _removal(removal: model.Removal) -> wire.threads.RemovalReceipt:
    return wire.threads.RemovalReceipt(
        threads=removal.threads, checkpoints=removal.checkpoints, pending_writes=removal.pending_writes
    )


@route(
    Operation(
        name="list_threads",
        method=HttpMethod.GET,
        path="/threads",
        summary="List the subject's threads, newest first; archived ones as well, with all that is shown here.",
        permission="state:read",
        query=ThreadsQuery,
        returns=wire.threads.ThreadPage,
        subject=True,
    )
)
async def list_threads(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], subject_scope: NamedDependency[Scope]
) -> Response[bytes]:
    """List threads."""
    query = exchange.query(ThreadsQuery)
    binding = encode_msgpack(
        (
            exchange.route,
            subject_scope.tenant_id,
            subject_scope.subject_id,
            query.status,
            query.agent,
            query.tier,
        )
    )
    page = await services.store.threads.list(
        subject_scope,
        status=query.status,
        agent=query.agent,
        tier=query.tier,
        limit=query.limit,
        after=services.cursors.read(binding, query.cursor),
    )
    return exchange.reply(
        wire.threads.ThreadPage(
            threads=[thread_out(thread) for thread in page.items],
            next_cursor=services.cursors.write(binding, page.after),
        )
    )


@route(
    Operation(
        name="get_thread",
        method=HttpMethod.GET,
        path="/threads/{thread_id:str}",
        summary="Show a thread; of an archived one also what its archive is and how far away.",
        permission="state:read",
        returns=wire.threads.Thread,
        problems=("thread-not-found",),
        subject=True,
    )
)
async def get_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Show a thread."""
    exchange.no_query()
    name = path_id(thread_id, "thread_id")
    shown = thread_out(await services.store.threads.get(subject_scope, name))
    if shown.tier == "archive":
        shown.archive = described(await services.store.archives.status(subject_scope, name))
    return exchange.reply(shown)


@route(
    Operation(
        name="update_thread",
        method=HttpMethod.PATCH,
        path="/threads/{thread_id:str}",
        summary="Change some of a thread's settings; 201: there was no such thread, and it was made with them.",
        permission="state:write",
        body=wire.threads.ThreadSettings,
        returns=wire.threads.Thread,
        statuses=(200, 201),
        headers=("Stateroom-Client-Share",),
        problems=("thread-busy", "thread-archived"),
        subject=True,
    )
)
async def update_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Change settings."""
    exchange.no_query()
    settings, _, _ = await exchange.body(wire.threads.ThreadSettings)
    if settings.agent is not UNSET and settings.agent is not None:
        _id(settings.agent, "agent")
    name = path_id(thread_id, "thread_id")
    thread, created = await services.write(
        subject_scope,
        name,
        services.store.threads.put(
            subject_scope,
            name,
            strict=None if settings.strict is UNSET else settings.strict,
            agent=None if settings.agent is UNSET else settings.agent,
            agent_given=settings.agent is not UNSET,
            share=exchange.client_share(),
        ),
    )
    return exchange.reply(thread_out(thread), status=201 if created else 200, location=place("threads", name))


@route(
    Operation(
        name="delete_thread",
        method=HttpMethod.DELETE,
        path="/threads/{thread_id:str}",
        summary="Delete a thread with all it holds.",
        permission="state:delete",
        statuses=(204,),
        problems=("thread-not-found", "thread-busy", "legal-hold"),
        subject=True,
    )
)
async def delete_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[None]:
    """Delete a thread."""
    exchange.no_query()
    name = path_id(thread_id, "thread_id")
    await services.write(subject_scope, name, services.store.threads.delete(subject_scope, name))
    return Response(None, status_code=204)


@route(
    Operation(
        name="copy_thread",
        method=HttpMethod.POST,
        path="/threads/{thread_id:str}/copy",
        summary="Copy a thread, history and pending writes included, to a new id.",
        permission="state:write",
        body=wire.threads.CopyRequest,
        returns=wire.threads.CopyReceipt,
        statuses=(201, 200),
        headers=("Idempotency-Key", "Stateroom-Client-Share"),
        problems=("thread-not-found", "thread-exists", "thread-busy", "thread-archived", "idempotency-key-reused"),
        subject=True,
    )
)
async def copy_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Copy a thread."""
    exchange.no_query()
    request, name, body = await exchange.body(wire.threads.CopyRequest)
    source = path_id(thread_id, "thread_id")
    target = _id(request.target_thread_id, "target_thread_id")
    copying = services.store.threads.copy(
        subject_scope,
        source,
        target,
        idempotency=exchange.idempotency(source, name, body),
        share=exchange.client_share(),
    )
    copied = await services.write(subject_scope, source, copying)
    receipt = wire.threads.CopyReceipt(
        thread_id=copied.thread_id, checkpoints=copied.checkpoints, pending_writes=copied.pending_writes
    )
    return exchange.reply(receipt, status=201, location=place("threads", copied.thread_id))


@route(
    Operation(
        name="prune",
        method=HttpMethod.POST,
        path="/threads:prune",
        summary="Remove history: keep each namespace's head, or delete whole threads.",
        permission="state:delete",
        body=wire.threads.PruneRequest,
        returns=wire.threads.RemovalReceipt,
        headers=("Stateroom-Client-Share",),
        subject=True,
        problems=("legal-hold",),
    )
)
async def prune(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], subject_scope: NamedDependency[Scope]
) -> Response[bytes]:
    """Prune threads."""
    exchange.no_query()
    request, _, _ = await exchange.body(wire.threads.PruneRequest)
    thread_ids = [_id(thread_id, "thread_ids", index) for index, thread_id in enumerate(request.thread_ids)]
    share = exchange.client_share()
    removal = await services.commits.run(
        services.store.threads.prune(subject_scope, thread_ids, request.strategy, share)
    )
    return exchange.reply(_removal(removal))


@route(
    Operation(
        name="delete_runs",
        method=HttpMethod.POST,
        path="/runs:delete",
        summary="Remove all checkpoints, and their pending writes, of some runs.",
        permission="state:delete",
        body=wire.threads.RunsDeleteRequest,
        returns=wire.threads.RemovalReceipt,
        headers=("Stateroom-Client-Share",),
        problems=("delta-chain-needed", "legal-hold"),
        subject=True,
    )
)
async def delete_runs(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], subject_scope: NamedDependency[Scope]
) -> Response[bytes]:
    """Remove runs."""
    exchange.no_query()
    request, _, _ = await exchange.body(wire.threads.RunsDeleteRequest)
    run_ids = [_id(run_id, "run_ids", index) for index, run_id in enumerate(request.run_ids)]
    share = exchange.client_share()
    removal = await services.commits.run(services.store.threads.delete_runs(subject_scope, run_ids, share))
    return exchange.reply(_removal(removal))


ROUTES = [list_threads, get_thread, update_thread, delete_thread, copy_thread, prune, delete_runs]
