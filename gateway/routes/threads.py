"""Threads: list, show, settings, delete, copy, prune, and removal of runs."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import SUBJECT
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, path_id, place
from gateway.problems import InvalidRequest, pointer
from gateway.routes.archive import described, segments_out, thread_out
from gateway.routes.places import check_namespace
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.errors import InvalidState
from storage.model import ThreadLink
from storage.scope import Scope, check_id


class ThreadsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Filters of the list of threads."""

    status: wire.base.Status | None = None
    agent: wire.base.Name | None = None
    tier: Literal["hot", "archive"] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


class DeleteQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How much is deleted."""

    family: bool = False


def _id(text: str, *where: str | int) -> str:
    """An id from a body, where it is plain text."""
    try:
        return check_id(text, "an id")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer=pointer(*where))) from None


@Operation(
    "GET /v1/threads",
    reach=SUBJECT,
    summary="List the subject's threads, newest first; archived ones as well, with all that is shown here.",
    permission="state:read",
    query=ThreadsQuery,
    returns=wire.threads.ThreadPage,
)
async def list_threads(call: Call[Scope]) -> Answer:
    query = call.exchange.query(ThreadsQuery)
    filters = (query.status, query.agent, query.tier)
    cursor = call.cursor(query.cursor, call.scope.tenant_id, call.scope.subject_id, *filters)
    page = await call.store.threads.list(
        call.scope,
        status=query.status,
        agent=query.agent,
        tier=query.tier,
        limit=query.limit,
        after=cursor.after,
    )
    threads = [thread_out(thread) for thread in page.items]
    return call.exchange.reply(wire.threads.ThreadPage(threads=threads, next_cursor=cursor.next(page.after)))


@Operation(
    "GET /v1/threads/{thread_id}",
    reach=SUBJECT,
    summary="Show a thread; of an archived one also what its archive is and how far away, and what is in segments.",
    permission="state:read",
    returns=wire.threads.Thread,
    problems=("thread-not-found",),
)
async def get_thread(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    thread = await call.store.threads.get(call.scope, name)
    shown = thread_out(thread)
    if thread.tier == "archive" or thread.segmented:
        status = await call.store.archives.status(call.scope, name)
        shown.archive, shown.segments = described(status), segments_out(status)
    return call.exchange.reply(shown)


@Operation(
    "PATCH /v1/threads/{thread_id}",
    reach=SUBJECT,
    summary="Change some of a thread's settings; 201: there was no such thread, and it was made with them.",
    permission="state:write",
    body=wire.threads.ThreadSettings,
    returns=wire.threads.Thread,
    statuses=(200, 201),
    headers=("Stateroom-Client-Share",),
    problems=("thread-busy", "thread-archived"),
)
async def update_thread(call: Call[Scope], thread_id: str) -> Answer:
    settings, _, _ = await call.exchange.body(wire.threads.ThreadSettings)
    if settings.agent is not UNSET and settings.agent is not None:
        _id(settings.agent, "agent")
    name = path_id(thread_id, "thread_id")
    thread, created = await call.services.write(
        call.scope,
        name,
        call.store.threads.put(
            call.scope,
            name,
            strict=None if settings.strict is UNSET else settings.strict,
            agent=None if settings.agent is UNSET else settings.agent,
            agent_given=settings.agent is not UNSET,
            share=call.exchange.client_share(),
        ),
    )
    return call.exchange.reply(thread_out(thread), status=201 if created else 200, location=place("threads", name))


@Operation(
    "DELETE /v1/threads/{thread_id}",
    reach=SUBJECT,
    summary="Delete a thread with all it holds; with family=true its descendants, too, unless one of them is held.",
    permission="state:delete",
    query=DeleteQuery,
    statuses=(204,),
    problems=("thread-not-found", "thread-busy", "legal-hold", "limit-exceeded"),
)
async def delete_thread(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    if call.exchange.query(DeleteQuery).family:
        await call.commit(call.store.links.delete_family(call.scope, name))
    else:
        await call.services.write(call.scope, name, call.store.threads.delete(call.scope, name))
    return Answer(204, [])


@Operation(
    "PUT /v1/threads/{thread_id}/parent",
    reach=SUBJECT,
    summary="Say which thread this one was begun from, and where in it; it need not be there. 201: there was no thread "
    "of this id, and it was made with this parent.",
    permission="state:write",
    body=wire.threads.ParentRequest,
    returns=wire.threads.Thread,
    statuses=(200, 201),
    headers=("Stateroom-Client-Share",),
    problems=("thread-busy", "link-circular", "legal-hold", "limit-exceeded", "feature-off"),
)
async def link_thread(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.threads.ParentRequest)
    name = path_id(thread_id, "thread_id")
    checkpoint_id = request.checkpoint_id
    link = ThreadLink(
        _id(request.thread_id, "thread_id"),
        check_namespace(request.namespace, pointer="/namespace"),
        None if checkpoint_id is None else _id(checkpoint_id, "checkpoint_id"),
    )
    linking = call.store.links.link(call.scope, name, link, call.exchange.client_share())
    thread, created = await call.services.write(call.scope, name, linking)
    return call.exchange.reply(thread_out(thread), status=201 if created else 200, location=place("threads", name))


@Operation(
    "DELETE /v1/threads/{thread_id}/parent",
    reach=SUBJECT,
    summary="Say that a thread was begun from no other; both stay.",
    permission="state:write",
    statuses=(204,),
    headers=("Stateroom-Client-Share",),
    problems=("thread-not-found", "thread-busy", "legal-hold"),
)
async def unlink_thread(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    unlinking = call.store.links.unlink(call.scope, name, call.exchange.client_share())
    await call.services.write(call.scope, name, unlinking)
    return Answer(204, [])


@Operation(
    "GET /v1/threads/{thread_id}/children",
    reach=SUBJECT,
    summary="List the threads that name this one as their parent, newest first; it need not be there itself.",
    permission="state:read",
    query=PageQuery,
    returns=wire.threads.ThreadPage,
)
async def list_children(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(PageQuery)
    name = path_id(thread_id, "thread_id")
    cursor = call.cursor(query.cursor, call.scope.tenant_id, call.scope.subject_id, name)
    page = await call.store.links.children(call.scope, name, limit=query.limit, after=cursor.after)
    threads = [thread_out(thread) for thread in page.items]
    return call.exchange.reply(wire.threads.ThreadPage(threads=threads, next_cursor=cursor.next(page.after)))


@Operation(
    "POST /v1/threads/{thread_id}/copy",
    reach=SUBJECT,
    summary="Copy a thread, history and pending writes included, to a new id.",
    permission="state:write",
    body=wire.threads.CopyRequest,
    returns=wire.threads.CopyReceipt,
    statuses=(201, 200),
    headers=("Idempotency-Key", "Stateroom-Client-Share"),
    problems=("thread-not-found", "thread-exists", "thread-busy", "thread-archived", "idempotency-key-reused"),
)
async def copy_thread(call: Call[Scope], thread_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.threads.CopyRequest)
    source = path_id(thread_id, "thread_id")
    target = _id(request.target_thread_id, "target_thread_id")
    copying = call.store.threads.copy(
        call.scope,
        source,
        target,
        idempotency=call.exchange.idempotency(source, name, body),
        share=call.exchange.client_share(),
    )
    copied = await call.services.write(call.scope, source, copying)
    location = place("threads", copied.thread_id)
    return call.exchange.reply(wire.threads.CopyReceipt.of(copied), status=201, location=location)


@Operation(
    "POST /v1/threads:prune",
    reach=SUBJECT,
    summary="Remove history: keep each namespace's head, or delete whole threads.",
    permission="state:delete",
    body=wire.threads.PruneRequest,
    returns=wire.threads.RemovalReceipt,
    headers=("Stateroom-Client-Share",),
    problems=("legal-hold",),
)
async def prune(call: Call[Scope]) -> Answer:
    request, _, _ = await call.exchange.body(wire.threads.PruneRequest)
    thread_ids = [_id(thread_id, "thread_ids", index) for index, thread_id in enumerate(request.thread_ids)]
    share = call.exchange.client_share()
    removal = await call.commit(call.store.threads.prune(call.scope, thread_ids, request.strategy, share))
    return call.exchange.reply(wire.threads.RemovalReceipt.of(removal))


@Operation(
    "POST /v1/runs:delete",
    reach=SUBJECT,
    summary="Remove all checkpoints, and their pending writes, of some runs.",
    permission="state:delete",
    body=wire.threads.RunsDeleteRequest,
    returns=wire.threads.RemovalReceipt,
    headers=("Stateroom-Client-Share",),
    problems=("delta-chain-needed", "legal-hold"),
)
async def delete_runs(call: Call[Scope]) -> Answer:
    request, _, _ = await call.exchange.body(wire.threads.RunsDeleteRequest)
    run_ids = [_id(run_id, "run_ids", index) for index, run_id in enumerate(request.run_ids)]
    share = call.exchange.client_share()
    removal = await call.commit(call.store.threads.delete_runs(call.scope, run_ids, share))
    return call.exchange.reply(wire.threads.RemovalReceipt.of(removal))
