"""Checkpoints: save, load, history, pending writes, channel history."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import LISTING, SUBJECT, Principal
from gateway.bodies.codec import decode_body
from gateway.http.artifact_headers import none_match
from gateway.http.exchange import Answer, Exchange, encode_id, path_id, place
from gateway.problems import InvalidRequest, MalformedBody
from gateway.routes.checkpoints.conversion import (
    checkpoints_out,
    compaction_in,
    histories_out,
    in_utc,
    save_in,
    writes_in,
    writes_out,
)
from gateway.routes.checkpoints.inlining import inlined, shown_values
from gateway.routes.items.conversion import puts_in
from gateway.routes.places import LATEST, check_checkpoint_id, check_namespace
from gateway.routes.thread_ledgers.conversion import asked_in
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage import model
from storage.errors import InvalidState, LimitExceeded
from storage.model import TaskWrites
from storage.scope import Scope, TenantListing

_TIMES = Annotated[datetime, Meta(tz=True)]
_LIMIT = Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)]
_CHANNELS = Annotated[list[wire.base.Name], Meta(max_length=limits.CHANNELS_MAX)]
_MARK = Annotated[str, Meta(max_length=512)]  # a digest and a checkpoint's id


class WritesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which namespace, and how its values come."""

    namespace: wire.base.Namespace = ""
    view: wire.base.View = "state"
    pieces: wire.base.Pieces = "resolved"


class LoadQuery(WritesQuery, kw_only=True, forbid_unknown_fields=True):
    """Which namespace, how its values come, and what comes along: the artifacts they name, and histories of channels.

    ``history`` may repeat. ``mark``: an earlier answer's for the same channels.
    """

    resolve: wire.base.Resolve = "pointers"
    history: _CHANNELS = []
    mark: _MARK | None = None


class HistoryFilter(Struct, kw_only=True, forbid_unknown_fields=True):
    """Filters of a thread's history. ``namespace`` absent: all; ``filter``: a JSON object of metadata."""

    namespace: wire.base.Namespace | None = None
    before: wire.base.CheckpointIdText | None = None
    status: wire.base.Status | None = None
    step: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    run_id: wire.base.Name | None = None
    source: wire.base.Word | None = None
    filter: str | None = None
    view: wire.base.View = "none"
    pieces: wire.base.Pieces = "resolved"
    resolve: wire.base.Resolve = "pointers"
    limit: _LIMIT = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


class SearchFilter(HistoryFilter, kw_only=True, forbid_unknown_fields=True):
    """Filters of a search over all threads; ``since`` and ``until`` bound ``created_at``."""

    agent: wire.base.Name | None = None
    since: _TIMES | None = None
    until: _TIMES | None = None


class ChannelHistoryQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which channels of which namespace; ``channel`` may repeat. ``mark``: an earlier answer's for the same ones."""

    channel: Annotated[_CHANNELS, Meta(min_length=1)]
    namespace: wire.base.Namespace = ""
    pieces: wire.base.Pieces = "resolved"
    mark: _MARK | None = None


_LOADING = ("state-too-large", "blob-store-unavailable", "blobs-not-configured")
_ARCHIVED = ("thread-archived", "restore-needed")  # of the thread that is read
_SAVE_PROBLEMS = (
    "checkpoint-exists", "channel-unchanged-unknown", "head-moved", "head-exists", "precondition-required",
    "idempotency-key-reused", "limit-exceeded", "thread-busy", "thread-archived", "commit-unknown",
    "parent-unknown", "integrity-failure", "rollback-detected", "artifact-unknown", "piece-unknown",
    "quota-exceeded", "blob-store-unavailable", "state-too-new", "state-upcast-failed", "state-version-required",
    "state-schema-mismatch", "too-costly", "tenant-too-costly", "feature-off", "item-moved", "item-exists",
    "clear-vectors-unavailable", "item-not-found", "item-paths-exceeded", "legal-hold", "claim-lost", "thread-claimed",
    "approvals-exceeded",
)  # fmt: skip


@Operation(
    "POST /v1/threads/{thread_id}/checkpoints",
    reach=SUBJECT,
    summary="Save a checkpoint; the first save creates the thread. 200: it had been stored before.",
    permission="state:write",
    body=wire.checkpoints.SaveRequest,
    returns=wire.checkpoints.SaveReceipt,
    statuses=(201, 200),
    headers=("If-Match", "If-None-Match", "Idempotency-Key", "Stateroom-Known-Token", "Stateroom-Client-Share"),
    etag=True,
    token=True,
    problems=_SAVE_PROBLEMS,
)
async def save_checkpoint(call: Call[Scope], thread_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.checkpoints.SaveRequest)
    thread = path_id(thread_id, "thread_id")
    try:
        save = await call.exchange.reservation.run(save_in(call.exchange, thread, request, name, body), len(body))
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    if request.approvals or request.approval_refs:
        asked = await call.exchange.reservation.run(asked_in(request.approvals, name), len(body))
        refs = tuple(request.approval_refs)
        save = replace(save, approvals=asked, approval_refs=refs, asker=_asker(call.principal))
    share = call.exchange.client_share()
    beside = None
    if request.items:
        writes = await call.exchange.reservation.run(puts_in(request.items, name), len(body))
        beside = await call.store.items.beside(call.scope, writes)
    saved = await call.services.write(call.scope, thread, call.store.states.save(call.scope, save, share, beside))
    return _saved_out(call.exchange, saved)


def _asker(principal: Principal) -> model.Asker:
    """Who asks people, which is who does not approve."""
    return model.Asker(principal.key_id, principal.principal)


def _saved_out(exchange: Exchange, saved: model.Saved) -> Answer:
    receipt = wire.checkpoints.SaveReceipt(
        thread_id=saved.thread_id,
        namespace=saved.namespace,
        checkpoint_id=saved.checkpoint_id,
        parent_id=saved.parent_id,
        step=saved.step,
        status=saved.status,
        sequence=saved.sequence,
        created_at=saved.created_at,
        created=saved.created,
        needs_compaction=[
            wire.checkpoints.LongList(channel=each.channel, elements=each.elements, bytes=each.size)
            for each in saved.needs_compaction
        ],
    )
    return exchange.reply(
        receipt,
        status=201,
        # The saved id, not the head's: who repeats a save after another writer moved on has not seen that head.
        etag=saved.checkpoint_id,
        token=saved.token,
        location=place("threads", saved.thread_id, "checkpoints", saved.checkpoint_id, namespace=saved.namespace),
        replayed=not saved.created,
    )


@Operation(
    "POST /v1/threads/{thread_id}/compact",
    reach=SUBJECT,
    summary="Save a checkpoint whose list channel is a summary and the newest elements of the head's; history "
    "keeps the whole list. 200: it had been stored before.",
    permission="state:write",
    body=wire.checkpoints.CompactRequest,
    returns=wire.checkpoints.SaveReceipt,
    statuses=(201, 200),
    headers=("If-Match", "Idempotency-Key", "Stateroom-Known-Token", "Stateroom-Client-Share"),
    etag=True,
    token=True,
    problems=(
        "checkpoint-not-found",
        *_SAVE_PROBLEMS,
        "writes-pending",
        "state-too-large",
        "blobs-not-configured",
        "key-destroyed",
    ),
)
async def compact_thread(call: Call[Scope], thread_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.checkpoints.CompactRequest)
    thread = path_id(thread_id, "thread_id")
    try:
        compaction = await call.exchange.reservation.run(
            compaction_in(call.exchange, thread, request, name, body), len(body)
        )
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    compacting = call.store.compacting.compact(call.scope, compaction, call.exchange.client_share())
    return _saved_out(call.exchange, await call.services.write(call.scope, thread, compacting))


@Operation(
    "GET /v1/threads/{thread_id}/checkpoints/{checkpoint_id}",
    reach=SUBJECT,
    summary="Load a checkpoint, or latest: state and pending writes, and histories of the channels in history. "
    "The ETag is its namespace's head.",
    permission="state:read",
    query=LoadQuery,
    returns=wire.checkpoints.Checkpoint,
    statuses=(200, 304),
    headers=("Accept-State-Version", "If-None-Match-Head", "Stateroom-Known-Token", "Stateroom-Client-Share"),
    etag=True,
    token=True,
    problems=(
        "checkpoint-not-found",
        "integrity-failure",
        "rollback-detected",
        "key-destroyed",
        *_LOADING,
        *_ARCHIVED,
    ),
)
async def load_checkpoint(call: Call[Scope], thread_id: str, checkpoint_id: str) -> Answer:
    query = call.exchange.query(LoadQuery)
    known_token = call.exchange.known_token()
    load = model.Load(
        path_id(thread_id, "thread_id"),
        check_namespace(query.namespace, parameter="namespace"),
        # Not a route of its own: the router would not look for latest/channel-history elsewhere then.
        None if checkpoint_id == LATEST else path_id(checkpoint_id, "checkpoint_id"),
        with_state=query.view != "none",
        known_token=known_token,
        refs=_refs(call.exchange, query.pieces, "channels" if query.history else query.view),
        history=query.history or None,
        mark=query.mark,
    )
    loading = partial(
        call.store.states.load, call.scope, call.exchange.state_versions(), share=call.exchange.client_share()
    )
    is_alone = query.resolve == "pointers" and not query.history
    conditional = is_alone and call.exchange.header("if-none-match") is not None
    if conditional and known_token is not None:
        standing = await loading(replace(load, with_state=False, refs=False))  # opens no state
        if standing.token == known_token and _is_known(call.exchange, standing):
            return call.exchange.not_modified(etag=standing.head_id, token=standing.token)
    loaded = await loading(load)
    if conditional and loaded.checkpoint.writes == [] and _is_known(call.exchange, loaded):
        return call.exchange.not_modified(etag=loaded.head_id, token=loaded.token)
    [shown] = await checkpoints_out(call.exchange, [loaded.checkpoint], query.view)
    if query.resolve != "pointers":
        shown.artifacts = await _resolved(call, query.resolve, shown_values([loaded.checkpoint], query.view))
    if loaded.histories is not None:
        shown.history = await histories_out(call.exchange, loaded.histories)
    return call.exchange.reply(shown, etag=loaded.head_id, token=loaded.token, compressed=True)


async def _resolved(
    call: Call[Scope], resolve: wire.base.Resolve, values: Iterable[model.Value]
) -> dict[str, wire.checkpoints.InlinedArtifact]:
    share = call.exchange.client_share()
    return await inlined(call.store.artifacts, call.scope, values, share, with_content=resolve == "inline")


def _is_known(exchange: Exchange, loaded: model.Loaded) -> bool:
    """Whether If-None-Match names the head, and the checkpoint is it.

    A head's pending writes come without another head. Where there are none, there were none before; where there are, or
    it was not looked, the thread's token tells.
    """
    is_head = loaded.checkpoint.checkpoint_id == loaded.head_id
    return is_head and none_match(exchange.header("if-none-match"), f'"{encode_id(loaded.head_id)}"')


def _named_checkpoint(text: str) -> str:
    """A checkpoint's id in the path, where ``latest`` says too little."""
    try:
        return check_checkpoint_id(path_id(text, "checkpoint_id"), "")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), parameter="checkpoint_id")) from None


def _metadata_filter(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return decode_body("json", text.encode(), dict[str, Any])
    except MalformedBody:
        raise InvalidRequest(Fault(detail="must be a JSON object", parameter="filter")) from None
    except LimitExceeded as error:
        raise InvalidRequest(Fault(detail=str(error), parameter="filter"), limit=error.limit) from None
    except InvalidRequest as error:
        raise InvalidRequest(*(Fault(detail=each.detail, parameter="filter") for each in error.faults)) from None


def _filters(query: HistoryFilter) -> Any:
    """What of a query a cursor of its listing depends on."""
    filters = msgspec.structs.replace(query, cursor=None, limit=1, view="none", pieces="resolved", resolve="pointers")
    return msgspec.to_builtins(filters)


def _refs(exchange: Exchange, pieces: wire.base.Pieces, view: wire.base.View) -> bool:
    """Whether placeholders may stand for large leaves: they are MessagePack, and JSON has nothing like them."""
    return pieces == "refs" and view != "none" and exchange.format == "msgpack"


def _query(
    query: HistoryFilter,
    thread_id: str | None,
    after: tuple[str, ...] | None,
    known_token: str | None,
    *,
    refs: bool = False,
) -> model.HistoryQuery:
    search = query if isinstance(query, SearchFilter) else SearchFilter()
    return model.HistoryQuery(
        thread_id=thread_id,
        namespace=None if query.namespace is None else check_namespace(query.namespace, parameter="namespace"),
        before=query.before,
        status=query.status,
        step=query.step,
        run_id=query.run_id,
        source=query.source,
        agent=search.agent,
        since=in_utc(search.since, "since"),
        until=in_utc(search.until, "until"),
        metadata=_metadata_filter(query.filter),
        limit=query.limit,
        with_state=query.view != "none",
        after=after,
        known_token=known_token,
        refs=refs,
    )


async def _history(call: Call[Scope], thread_id: str | None, query: HistoryFilter) -> Answer:
    scope = call.scope
    cursor = call.cursor(query.cursor, scope.tenant_id, scope.subject_id, thread_id, _filters(query))
    known_token = None if thread_id is None else call.exchange.known_token()
    page = await call.store.states.history(
        call.scope,
        call.exchange.state_versions(),
        _query(query, thread_id, cursor.after, known_token, refs=_refs(call.exchange, query.pieces, query.view)),
        call.exchange.client_share(),
    )
    shown = wire.checkpoints.CheckpointPage(
        checkpoints=await checkpoints_out(call.exchange, page.items, query.view),
        next_cursor=cursor.next(page.after),
    )
    if query.resolve != "pointers":
        shown.artifacts = await _resolved(call, query.resolve, shown_values(page.items, query.view))
    return call.exchange.reply(shown, compressed=True)


@Operation(
    "GET /v1/threads/{thread_id}/checkpoints",
    reach=SUBJECT,
    summary="A thread's history, newest first. Go on until next_cursor is null; pages may be short.",
    permission="state:read",
    query=HistoryFilter,
    returns=wire.checkpoints.CheckpointPage,
    headers=("Accept-State-Version", "Stateroom-Known-Token", "Stateroom-Client-Share"),
    problems=("thread-not-found", "integrity-failure", "rollback-detected", "key-destroyed", *_LOADING, *_ARCHIVED),
)
async def list_checkpoints(call: Call[Scope], thread_id: str) -> Answer:
    thread = path_id(thread_id, "thread_id")
    return await _history(call, thread, call.exchange.query(HistoryFilter))


@Operation(
    "GET /v1/checkpoints",
    reach=LISTING,
    summary="Checkpoints over all threads of the subject, or of the tenant, newest first; not of archived ones.",
    permission="state:read",
    query=SearchFilter,
    returns=wire.checkpoints.CheckpointPage,
    headers=("Accept-State-Version", "Stateroom-Client-Share"),
    problems=("integrity-failure", "key-destroyed", *_LOADING),
)
async def search_checkpoints(call: Call[Scope | TenantListing]) -> Answer:
    query = call.exchange.query(SearchFilter)
    if isinstance(call.scope, TenantListing):
        return await _tenant_listing(call.on(call.scope), query)
    return await _history(call.on(call.scope), None, query)


async def _tenant_listing(call: Call[TenantListing], query: SearchFilter) -> Answer:
    """What operators ask: which agents failed at step 5 since yesterday. Opens nothing."""
    needs_subject = "name a subject in Stateroom-Subject: over a whole tenant there are clear columns only"
    if query.view != "none":
        raise InvalidRequest(Fault(detail=needs_subject, parameter="view"))
    if query.filter is not None:
        raise InvalidRequest(Fault(detail=needs_subject, parameter="filter"))
    cursor = call.cursor(query.cursor, call.scope.tenant_id, None, None, _filters(query))
    page = await call.store.checkpoints.tenant_listing(call.scope, _query(query, None, cursor.after, None))
    shown = await checkpoints_out(call.exchange, [item.checkpoint for item in page.items], "none")
    for checkpoint, item in zip(shown, page.items, strict=True):
        checkpoint.subject_id = item.subject_id
    return call.exchange.reply(wire.checkpoints.CheckpointPage(checkpoints=shown, next_cursor=cursor.next(page.after)))


@Operation(
    "GET /v1/threads/{thread_id}/checkpoints/{checkpoint_id}/channel-history",
    reach=SUBJECT,
    summary="Writes to channels since their nearest stored value, oldest first; the id may be latest.",
    permission="state:read",
    query=ChannelHistoryQuery,
    returns=wire.checkpoints.ChannelHistories,
    headers=("Accept-State-Version", "Stateroom-Known-Token", "Stateroom-Client-Share"),
    problems=(
        "checkpoint-not-found",
        "integrity-failure",
        "rollback-detected",
        "key-destroyed",
        *_LOADING,
        *_ARCHIVED,
    ),
)
async def channel_history(call: Call[Scope], thread_id: str, checkpoint_id: str) -> Answer:
    query = call.exchange.query(ChannelHistoryQuery)
    histories = await call.store.states.channel_history(
        call.scope,
        call.exchange.state_versions(),
        model.ChannelHistoryQuery(
            path_id(thread_id, "thread_id"),
            check_namespace(query.namespace, parameter="namespace"),
            None if checkpoint_id == LATEST else path_id(checkpoint_id, "checkpoint_id"),
            query.channel,
            known_token=call.exchange.known_token(),
            refs=_refs(call.exchange, query.pieces, "channels"),
            mark=query.mark,
        ),
        call.exchange.client_share(),
    )
    return call.exchange.reply(await histories_out(call.exchange, histories), compressed=True)


_WRITES_PATH = "/v1/threads/{thread_id}/checkpoints/{checkpoint_id}/writes/{task_id}"


@Operation(
    f"POST {_WRITES_PATH}",
    reach=SUBJECT,
    summary="Store a task's pending writes; at idx >= 0 the first counts, at idx < 0 the last.",
    permission="state:write",
    body=wire.checkpoints.WritesRequest,
    returns=wire.checkpoints.WritesReceipt,
    headers=("Stateroom-Known-Token", "Stateroom-Client-Share"),
    token=True,
    problems=(
        "state-too-new",
        "state-version-required",
        "limit-exceeded",
        "thread-busy",
        "thread-archived",
        "commit-unknown",
        "artifact-unknown",
        "piece-unknown",
        "quota-exceeded",
        "blob-store-unavailable",
        "integrity-failure",
        "rollback-detected",
        "key-destroyed",
        "claim-lost",
        "thread-claimed",
        "feature-off",
        "approvals-exceeded",
    ),
)
async def put_writes(call: Call[Scope], thread_id: str, checkpoint_id: str, task_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.checkpoints.WritesRequest)
    thread = path_id(thread_id, "thread_id")
    try:
        writes = await call.exchange.reservation.run(writes_in(request, name, call.exchange.values), len(body))
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    asked: tuple[model.NewApproval, ...] = ()
    if request.approvals:
        asked = await call.exchange.reservation.run(asked_in(request.approvals, name), len(body))
    receipt = await call.services.write(
        call.scope,
        thread,
        call.store.states.put_writes(
            call.scope,
            TaskWrites(
                thread,
                check_namespace(request.namespace, pointer="/namespace"),
                _named_checkpoint(checkpoint_id),
                path_id(task_id, "task_id"),
                request.task_path,
                writes,
                request.status,
                call.exchange.known_token(),
                state_schema=request.state_schema,
                state_version=request.state_version,
                fence=request.fence,
                approvals=asked,
                approval_refs=tuple(request.approval_refs),
                asker=_asker(call.principal),
            ),
            call.exchange.client_share(),
        ),
    )
    return call.exchange.reply(
        wire.checkpoints.WritesReceipt(stored=receipt.stored, unchanged=receipt.unchanged), token=receipt.token
    )


@Operation(
    f"GET {_WRITES_PATH}",
    reach=SUBJECT,
    summary="A task's pending writes.",
    permission="state:read",
    query=WritesQuery,
    returns=wire.checkpoints.TaskWrites,
    headers=("Accept-State-Version", "Stateroom-Client-Share"),
    problems=("thread-not-found", "integrity-failure", "key-destroyed", *_LOADING, *_ARCHIVED),
)
async def get_writes(call: Call[Scope], thread_id: str, checkpoint_id: str, task_id: str) -> Answer:
    query = call.exchange.query(WritesQuery)
    writes = await call.store.states.task_writes(
        call.scope,
        call.exchange.state_versions(),
        model.TaskWritesQuery(
            path_id(thread_id, "thread_id"),
            check_namespace(query.namespace, parameter="namespace"),
            _named_checkpoint(checkpoint_id),
            path_id(task_id, "task_id"),
            refs=_refs(call.exchange, query.pieces, query.view),
        ),
        call.exchange.client_share(),
    )
    return call.exchange.reply(
        wire.checkpoints.TaskWrites(writes=await writes_out(call.exchange, writes, query.view)), compressed=True
    )
