"""Checkpoints: save, load, history, pending writes, channel history."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import Work
from gateway.authentication.principals import LISTING, SUBJECT
from gateway.bodies.codec import decode_body, element_in, holed_in, holes_out, value_in, value_out
from gateway.bodies.scanning import Format, Values, scan
from gateway.http.artifact_headers import none_match
from gateway.http.exchange import Answer, Exchange, encode_id, path_id, place
from gateway.problems import InvalidRequest, MalformedBody, pointer
from gateway.routes.checkpoints.inlining import inlined, shown_values
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage import model
from storage.encoding import decode_json, encode_json, encode_msgpack
from storage.errors import InvalidState, LimitExceeded, PreconditionRequired
from storage.format.pieces import list_bounds
from storage.model import TaskWrites, Value
from storage.scope import Scope, TenantListing, is_plain_id

T = TypeVar("T")
R = TypeVar("R")

LATEST = "latest"  # so no checkpoint can have this id
_PRIVATE = wire.base.PRIVATE_PREFIX
_TIMES = Annotated[datetime, Meta(tz=True)]
_LIMIT = Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)]
# What is done in one slice of what takes longer: channels below `limits.SLICED_BYTES_MIN` each, and elements.
_SLICE_CHANNELS = 8
_SLICE_ELEMENTS = 1000
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


# --- in -------------------------------------------------------------------------------------------


def _check_name(name: str, *where: str | int) -> str:
    """A channel's name: `limits.NAME_BYTES_MAX` bytes; ``where`` are the steps of its pointer."""
    size = len(name.encode())
    if size > limits.NAME_BYTES_MAX:
        raise LimitExceeded("NAME_BYTES_MAX", limits.NAME_BYTES_MAX, size, pointer(*where))
    return name


def _check_optional_name(name: str | None, *where: str) -> str | None:
    return None if name is None else _check_name(name, *where)


def _check_public(name: str, *where: str | int) -> str:
    if name.startswith(_PRIVATE):
        detail = "names that begin with '~' belong to adapters; send them in channels"
        raise InvalidState(detail, pointer(*where))
    return _check_name(name, *where)


def _check_count(count: int, where: str) -> None:
    if count > limits.CHANNELS_MAX:
        raise LimitExceeded("CHANNELS_MAX", limits.CHANNELS_MAX, count, where)


def _check_checkpoint_id(checkpoint_id: str, where: str) -> str:
    if not is_plain_id(checkpoint_id) or checkpoint_id == LATEST:
        raise InvalidState("a checkpoint id matches [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}", where)
    return checkpoint_id


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata is plain JSON of at most `limits.METADATA_BYTES_MAX`: it is matched and shown in pages."""
    if not metadata:
        return metadata
    try:
        text = encode_json(metadata)
        encode_msgpack(metadata)  # as it is stored: integers have 64 bits
        plain = len(text) <= limits.METADATA_BYTES_MAX and decode_json(text) == metadata
    except (TypeError, ValueError, OverflowError, msgspec.DecodeError):
        raise InvalidState("metadata must be plain JSON", "/metadata") from None
    if len(text) > limits.METADATA_BYTES_MAX:
        raise LimitExceeded("METADATA_BYTES_MAX", limits.METADATA_BYTES_MAX, len(text), "/metadata")
    if not plain:
        raise InvalidState("metadata must be plain JSON: no binary, no extension types, no NaN", "/metadata")
    return metadata


def _content(
    request: wire.checkpoints.SaveRequest, name: Format, values: Values
) -> Work[model.FullState | model.Patch]:
    forms = [form for form in ("state", "changes", "channels") if getattr(request, form) is not UNSET]
    if len(forms) != 1:
        raise InvalidRequest(Fault(detail="send exactly one of state, changes and channels", pointer=""))
    for channel in request.state_holes:
        if request.state is UNSET or channel not in request.state:
            raise InvalidState("placeholders of a channel that is not in state", pointer("state_holes", channel))
    if request.state is not UNSET:
        _check_count(len(request.state), "/state")
        state: dict[str, model.ChannelValue] = {}
        for channel, raw in request.state.items():
            where = pointer("state", channel)
            holes = request.state_holes.get(channel, ())
            value = yield from holed_in(name, raw, holes, where)
            state[_check_public(channel, "state", channel)] = model.ChannelValue(None, value)
            if len(state) % _SLICE_CHANNELS == 0:
                yield
        return model.FullState(state)
    if request.channels is not UNSET:
        _check_count(len(request.channels), "/channels")
        channels: dict[str, model.ChannelValue] = {}
        for channel, sent in request.channels.items():
            channels[_check_name(channel, "channels", channel)] = _channel(sent, channel)
            yield from _counted(channels[channel].value, values)
        return model.FullState(channels, root="/channels")
    assert request.changes is not UNSET  # noqa: S101  for the type checker: one of the three is given
    return (yield from _patch(request.changes, name))


def _counted(value: Value | None, values: Values) -> Work[None]:
    """Count what is in a value that came as bytes with what is in the body around it.

    Raises:
        LimitExceeded: as `scan`.
    """
    if value is not None and values.can_be_too_many and value.encoding in {"msgpack", "json"}:
        yield from scan("json" if value.encoding == "json" else "msgpack", value.data, values, depth_max=None)


def _channel(sent: wire.checkpoints.ChannelIn, channel: str) -> model.ChannelValue:
    version = _check_version(sent.version, channel, "version")
    value = None if sent.data is UNSET else Value(sent.encoding, sent.data, tuple(sent.holes))
    if sent.append_to is UNSET:
        return model.ChannelValue(version, value)
    where = pointer("channels", channel, "append_to")
    if value is None or value.encoding != "msgpack" or value.holes:
        raise InvalidState("elements to append are data in MessagePack, without placeholders", where)
    return model.ChannelValue(version, value, _check_version(sent.append_to, channel, "append_to"))


def _check_version(version: wire.base.Version | None, channel: str, member: str) -> wire.base.Version | None:
    if isinstance(version, float) and not math.isfinite(version):
        raise InvalidState("a version must be a number or text", pointer("channels", channel, member))
    return version


def _patch(changes: wire.checkpoints.Changes, name: Format) -> Work[model.Patch]:
    _check_count(len(changes.set) + len(changes.append) + len(changes.remove), "/changes")
    patch = model.Patch(
        set={},
        append={_check_public(channel, "changes", "append", channel): [] for channel in changes.append},
        remove=[_check_public(channel, "changes", "remove", index) for index, channel in enumerate(changes.remove)],
    )
    for number, (channel, raw) in enumerate(changes.set.items()):
        _check_public(channel, "changes", "set", channel)
        patch.set[channel] = yield from value_in(name, raw, pointer("changes", "set", channel))
        if number % _SLICE_CHANNELS == 0:
            yield
    for channel, elements in changes.append.items():
        for index, raw in enumerate(elements):
            where = pointer("changes", "append", channel, index)
            patch.append[channel].append((yield from element_in(name, raw, where)))
            if index % _SLICE_ELEMENTS == 0:
                yield
    return patch


def _precondition(exchange: Exchange) -> model.Precondition | None:
    believed = exchange.if_match()
    absent = exchange.if_none_match_any()
    if believed is not None and absent:
        raise InvalidRequest(Fault(detail="send If-Match or If-None-Match, not both", header="If-None-Match"))
    return model.Precondition(absent=True) if absent else believed


def _save(
    exchange: Exchange, thread_id: str, request: wire.checkpoints.SaveRequest, name: Format, body: bytes
) -> Work[model.Save]:
    content = yield from _content(request, name, exchange.values)
    _check_count(len(request.delta_channels), "/delta_channels")
    for index, channel in enumerate(request.delta_channels):
        _check_name(channel, "delta_channels", index)
    precondition = _precondition(exchange)
    if isinstance(content, model.Patch):
        if precondition is None or precondition.absent or precondition.exists:
            raise PreconditionRequired("changes apply to a head: send If-Match with its ETag")
        if precondition.or_one_of:
            raise InvalidRequest(Fault(detail="changes apply to one head: name it alone", header="If-Match"))
    if request.checkpoint_id is not UNSET:
        _check_checkpoint_id(request.checkpoint_id, "/checkpoint_id")
    parent = None
    if request.parent_id is not UNSET:
        if request.parent_id is not None:
            _check_checkpoint_id(request.parent_id, "/parent_id")
        parent = model.Parent(request.parent_id)
    return model.Save(
        thread_id=thread_id,
        namespace=_check_namespace(request.namespace, pointer="/namespace"),
        content=content,
        checkpoint_id=None if request.checkpoint_id is UNSET else request.checkpoint_id,
        parent=parent,
        precondition=precondition,
        fork=request.fork,
        known_token=exchange.known_token(),
        status=request.status,
        step=None if request.step is UNSET else request.step,
        source=request.source,
        agent=_check_optional_name(request.agent, "agent"),
        run_id=_check_optional_name(request.run_id, "run_id"),
        model=None if request.model is None else _model(request.model),
        usage=None if request.usage is None else msgspec.to_builtins(request.usage),
        metadata=_check_metadata(request.metadata),
        state_schema=request.state_schema,
        state_version=request.state_version,
        delta_channels=tuple(request.delta_channels),
        idempotency=exchange.idempotency(thread_id, name, body),
    )


def _model(sent: wire.checkpoints.Model) -> dict[str, Any]:
    _check_name(sent.name, "model", "name")
    _check_optional_name(sent.hash, "model", "hash")
    for member in ("temperature", "top_p"):
        number = getattr(sent, member)
        if number is not None and not math.isfinite(number):
            raise InvalidState("must be a finite number", pointer("model", member))
    plain: dict[str, Any] = msgspec.to_builtins(sent)
    return plain


def _check_namespace(namespace: str, **where: str) -> str:
    """A namespace: `wire.base.NAMESPACE_BYTES_MAX` bytes; ``where`` is ``pointer=`` or ``parameter=``."""
    if len(namespace.encode()) > wire.base.NAMESPACE_BYTES_MAX:
        detail = f"a namespace has at most {wire.base.NAMESPACE_BYTES_MAX:,} bytes"
        raise InvalidRequest(Fault(detail=detail, **where), limit="NAMESPACE_BYTES_MAX")
    return namespace


def _moment(moment: datetime | None, parameter: str) -> datetime | None:
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError:  # the last hours of year 9999 in the far west, and the first of year 1 in the far east
        raise InvalidRequest(Fault(detail="must be a time of the years 1 to 9999", parameter=parameter)) from None


def _new_writes(request: wire.checkpoints.WritesRequest, name: Format, values: Values) -> Work[list[model.NewWrite]]:
    writes: list[model.NewWrite] = []
    for index, sent in enumerate(request.writes):
        writes.append((yield from _new_write(sent, index, name, values)))
        if len(writes) % _SLICE_CHANNELS == 0:
            yield
    return writes


def _new_write(sent: wire.checkpoints.WriteIn, index: int, name: Format, values: Values) -> Work[model.NewWrite]:
    where = pointer("writes", index)
    _check_name(sent.channel, "writes", index, "channel")
    if (sent.value is UNSET) == (sent.data is UNSET) or (sent.value is not UNSET and sent.encoding is not UNSET):
        raise InvalidState("send either value, or encoding and data", where)
    if sent.value is not UNSET:
        value = yield from value_in(name, sent.value, f"{where}/value")
    else:
        encoding = "msgpack" if sent.encoding is UNSET else sent.encoding
        value = Value(encoding, b"" if sent.data is UNSET else sent.data, tuple(sent.holes))
        yield from _counted(value, values)
    return model.NewWrite(idx=sent.idx, channel=sent.channel, value=value)


# --- out ------------------------------------------------------------------------------------------


def _write_out(write: model.PendingWrite, view: wire.base.View, name: Format) -> Work[wire.checkpoints.WriteOut]:
    shown = wire.checkpoints.WriteOut(
        task_id=write.task_id, idx=write.idx, channel=write.channel, task_path=write.task_path
    )
    if view == "state":
        raw = shown.value = yield from value_out(name, write.value)
        shown.holes = holes_out(write.value, raw) or UNSET
    elif view == "channels":
        shown.encoding = write.value.encoding
        shown.data = write.value.data
        shown.holes = list(write.value.holes) or UNSET
    if write.state_schema is not None and write.state_version is not None:
        shown.state_schema, shown.state_version = write.state_schema, write.state_version
    return shown


def _channel_out(channel: model.Channel) -> wire.checkpoints.ChannelOut:
    value = channel.value
    holes = list(value.holes) or UNSET
    return wire.checkpoints.ChannelOut(version=channel.version, encoding=value.encoding, data=value.data, holes=holes)


async def checkpoints_out(
    exchange: Exchange, checkpoints: Sequence[model.Checkpoint], view: wire.base.View
) -> list[wire.checkpoints.Checkpoint]:
    """Checkpoints as they are shown in ``view``, made in slices if they are large."""
    size_bytes = sum(len(value.data) for value in shown_values(checkpoints, view))
    return await exchange.reservation.run(
        _each(checkpoints, lambda checkpoint: _checkpoint_out(checkpoint, view, exchange.format)), size_bytes
    )


async def _writes_out(
    exchange: Exchange, writes: Sequence[model.PendingWrite], view: wire.base.View
) -> list[wire.checkpoints.WriteOut]:
    size_bytes = sum(len(write.value.data) for write in writes)
    return await exchange.reservation.run(
        _each(writes, lambda write: _write_out(write, view, exchange.format)), size_bytes
    )


async def _histories_out(exchange: Exchange, histories: model.ChannelHistories) -> wire.checkpoints.ChannelHistories:
    return wire.checkpoints.ChannelHistories(
        mark=histories.mark,
        channels={
            channel: wire.checkpoints.ChannelHistory(
                writes=await _writes_out(exchange, history.writes, "channels"),
                seed=UNSET if history.seed is None else _channel_out(history.seed),
                continues=history.continues,
            )
            for channel, history in histories.channels.items()
        },
    )


def _each(items: Iterable[T], show: Callable[[T], Work[R]]) -> Work[list[R]]:
    shown: list[R] = []
    for item in items:
        shown.append((yield from show(item)))
        if len(shown) % _SLICE_CHANNELS == 0:
            yield
    return shown


def _checkpoint_out(
    checkpoint: model.Checkpoint, view: wire.base.View, name: Format
) -> Work[wire.checkpoints.Checkpoint]:
    state: dict[str, Raw] | msgspec.UnsetType = UNSET
    state_holes: dict[str, list[int]] | msgspec.UnsetType = UNSET
    channels: dict[str, wire.checkpoints.ChannelOut] | msgspec.UnsetType = UNSET
    writes: list[wire.checkpoints.WriteOut] | msgspec.UnsetType = UNSET
    if view != "none" and not checkpoint.withheld:
        held = checkpoint.channels or {}
        if view == "state":
            state = {}
            for channel, stored in held.items():
                if not channel.startswith(_PRIVATE):
                    state[channel] = yield from value_out(name, stored.value)
                    if len(state) % _SLICE_CHANNELS == 0:
                        yield
            holed = {channel: holes_out(held[channel].value, raw) for channel, raw in state.items()}
            state_holes = {channel: holes for channel, holes in holed.items() if holes} or UNSET
        else:
            channels = {channel: _channel_out(stored) for channel, stored in held.items()}
        writes = yield from _each(checkpoint.writes or (), lambda write: _write_out(write, view, name))
    return wire.checkpoints.Checkpoint(
        thread_id=checkpoint.thread_id,
        namespace=checkpoint.namespace,
        checkpoint_id=checkpoint.checkpoint_id,
        parent_id=checkpoint.parent_id,
        step=checkpoint.step,
        status=checkpoint.status,
        source=checkpoint.source,
        agent=checkpoint.agent,
        run_id=checkpoint.run_id,
        created_at=checkpoint.created_at,
        state_schema=checkpoint.state_schema,
        state_version=checkpoint.state_version,
        model=None if checkpoint.model is None else wire.checkpoints.Model(**checkpoint.model),
        usage=None if checkpoint.usage is None else wire.checkpoints.Usage(**checkpoint.usage),
        metadata=checkpoint.metadata,
        delta_channels=list(checkpoint.delta_channels),
        state=state,
        channels=channels,
        pending_writes=writes,
        withheld=True if checkpoint.withheld else UNSET,
        damaged=True if checkpoint.damaged else UNSET,
        state_holes=state_holes,
    )


# --- operations -----------------------------------------------------------------------------------

_LOADING = ("state-too-large", "blob-store-unavailable", "blobs-not-configured")
_ARCHIVED = ("thread-archived", "restore-needed")  # of the thread that is read
_SAVE_PROBLEMS = (
    "checkpoint-exists", "channel-unchanged-unknown", "head-moved", "head-exists", "precondition-required",
    "idempotency-key-reused", "limit-exceeded", "thread-busy", "thread-archived", "commit-unknown",
    "parent-unknown", "integrity-failure", "rollback-detected", "artifact-unknown", "piece-unknown",
    "quota-exceeded", "blob-store-unavailable", "state-too-new", "state-upcast-failed", "state-version-required",
    "state-schema-mismatch", "too-costly", "tenant-too-costly",
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
        save = await call.exchange.reservation.run(_save(call.exchange, thread, request, name, body), len(body))
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    share = call.exchange.client_share()
    saved = await call.services.write(call.scope, thread, call.store.states.save(call.scope, save, share))
    return _saved_out(call.exchange, saved)


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


def _compaction(
    exchange: Exchange, thread_id: str, request: wire.checkpoints.CompactRequest, name: Format, body: bytes
) -> Work[model.Compaction]:
    summary: tuple[bytes, ...] = ()
    if request.summary is not UNSET:
        element = yield from element_in(name, request.summary, "/summary")
        bounds = list_bounds(element)
        summary = (element,) if bounds is None else tuple(element[start:end] for start, end in pairwise(bounds))
    if request.checkpoint_id is not UNSET:
        _check_checkpoint_id(request.checkpoint_id, "/checkpoint_id")
    return model.Compaction(
        thread_id=thread_id,
        namespace=_check_namespace(request.namespace, pointer="/namespace"),
        channel=_check_public(request.channel, "channel"),
        keep_last=request.keep_last,
        summary=summary,
        checkpoint_id=None if request.checkpoint_id is UNSET else request.checkpoint_id,
        precondition=exchange.if_match(),
        known_token=exchange.known_token(),
        status=request.status,
        agent=_check_optional_name(request.agent, "agent"),
        run_id=_check_optional_name(request.run_id, "run_id"),
        metadata=None if request.metadata is None else _check_metadata(request.metadata),
        state_schema=request.state_schema,
        state_version=request.state_version,
        idempotency=exchange.idempotency(thread_id, name, body),
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
            _compaction(call.exchange, thread, request, name, body), len(body)
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
        _check_namespace(query.namespace, parameter="namespace"),
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
    if query.resolve == "inline":
        named = shown_values([loaded.checkpoint], query.view)
        shown.artifacts = await inlined(call.store.artifacts, call.scope, named, call.exchange.client_share())
    if loaded.histories is not None:
        shown.history = await _histories_out(call.exchange, loaded.histories)
    return call.exchange.reply(shown, etag=loaded.head_id, token=loaded.token, compressed=True)


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
        return _check_checkpoint_id(path_id(text, "checkpoint_id"), "")
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
        namespace=None if query.namespace is None else _check_namespace(query.namespace, parameter="namespace"),
        before=query.before,
        status=query.status,
        step=query.step,
        run_id=query.run_id,
        source=query.source,
        agent=search.agent,
        since=_moment(search.since, "since"),
        until=_moment(search.until, "until"),
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
    if query.resolve == "inline":
        named = shown_values(page.items, query.view)
        shown.artifacts = await inlined(call.store.artifacts, call.scope, named, call.exchange.client_share())
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
            _check_namespace(query.namespace, parameter="namespace"),
            None if checkpoint_id == LATEST else path_id(checkpoint_id, "checkpoint_id"),
            query.channel,
            known_token=call.exchange.known_token(),
            refs=_refs(call.exchange, query.pieces, "channels"),
            mark=query.mark,
        ),
        call.exchange.client_share(),
    )
    return call.exchange.reply(await _histories_out(call.exchange, histories), compressed=True)


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
    ),
)
async def put_writes(call: Call[Scope], thread_id: str, checkpoint_id: str, task_id: str) -> Answer:
    request, name, body = await call.exchange.body(wire.checkpoints.WritesRequest)
    thread = path_id(thread_id, "thread_id")
    try:
        writes = await call.exchange.reservation.run(_new_writes(request, name, call.exchange.values), len(body))
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    receipt = await call.services.write(
        call.scope,
        thread,
        call.store.states.put_writes(
            call.scope,
            TaskWrites(
                thread,
                _check_namespace(request.namespace, pointer="/namespace"),
                _named_checkpoint(checkpoint_id),
                path_id(task_id, "task_id"),
                request.task_path,
                writes,
                request.status,
                call.exchange.known_token(),
                state_schema=request.state_schema,
                state_version=request.state_version,
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
            _check_namespace(query.namespace, parameter="namespace"),
            _named_checkpoint(checkpoint_id),
            path_id(task_id, "task_id"),
            refs=_refs(call.exchange, query.pieces, query.view),
        ),
        call.exchange.client_share(),
    )
    return call.exchange.reply(
        wire.checkpoints.TaskWrites(writes=await _writes_out(call.exchange, writes, query.view)), compressed=True
    )
