"""Between bodies and the model: what a save, a compaction or a task's writes say, and what a load shows.

Owns the checks of a body that its shape cannot say, and the views of a checkpoint. It knows no operation, and does
not load or save.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import Work
from gateway.bodies.codec import element_in, holed_in, holes_out, value_in, value_out
from gateway.bodies.scanning import Format, Values, scan
from gateway.http.exchange import Exchange
from gateway.problems import InvalidRequest, pointer
from gateway.routes.checkpoints.inlining import shown_values
from gateway.routes.checkpoints.leaves import LeafReader, leaves_out
from gateway.routes.places import check_checkpoint_id, check_namespace
from gateway.wire.problems import Fault
from storage import model
from storage.encoding import decode_json, encode_json, encode_msgpack
from storage.errors import InvalidState, LimitExceeded, PreconditionRequired
from storage.format.pieces import list_bounds
from storage.model import Value

T = TypeVar("T")
R = TypeVar("R")

_PRIVATE = wire.base.PRIVATE_PREFIX
# What is done in one slice of what takes longer: channels below `limits.SLICED_BYTES_MIN` each, and elements.
_SLICE_CHANNELS = 8
_SLICE_ELEMENTS = 1000


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
    for member in ("state_holes", "state_leaves"):
        for channel in getattr(request, member):
            if request.state is UNSET or channel not in request.state:
                raise InvalidState("must name a channel that is in state", pointer(member, channel))
    reader = LeafReader()
    if request.state is not UNSET:
        return (yield from _state(request, request.state, name, reader))
    if request.channels is not UNSET:
        _check_count(len(request.channels), "/channels")
        channels: dict[str, model.ChannelValue] = {}
        for channel, sent in request.channels.items():
            leaves = yield from reader.read(sent.leaves, pointer("channels", channel, "leaves"), by_offset=True)
            channels[_check_name(channel, "channels", channel)] = _channel(sent, channel, leaves)
            yield from _counted(channels[channel].value, values)
        return model.FullState(channels, root="/channels")
    assert request.changes is not UNSET  # noqa: S101  for the type checker: one of the three is given
    return (yield from _patch(request.changes, name, reader))


def _state(
    request: wire.checkpoints.SaveRequest, sent: dict[str, Raw], name: Format, reader: LeafReader
) -> Work[model.FullState]:
    _check_count(len(sent), "/state")
    state: dict[str, model.ChannelValue] = {}
    for channel, raw in sent.items():
        value = yield from holed_in(name, raw, request.state_holes.get(channel, ()), pointer("state", channel))
        if leaves := request.state_leaves.get(channel):
            value = yield from _described(value, raw, leaves, name, reader, pointer("state_leaves", channel))
        state[_check_public(channel, "state", channel)] = model.ChannelValue(None, value)
        if len(state) % _SLICE_CHANNELS == 0:
            yield
    return model.FullState(state)


def _described(
    value: Value, raw: Raw, sent: Sequence[wire.checkpoints.LeafIn], name: Format, reader: LeafReader, where: str
) -> Work[Value]:
    """A value that came as ``raw``, with what is said of its large leaves at ``where``."""
    is_as_sent = name == "msgpack" and len(value.data) == len(raw)
    return replace(value, leaves=(yield from reader.read(sent, where, by_offset=is_as_sent)))


def _counted(value: Value | None, values: Values) -> Work[None]:
    """Count what is in a value that came as bytes with what is in the body around it.

    Raises:
        LimitExceeded: as `scan`.
    """
    if value is not None and values.can_be_too_many and value.encoding in {"msgpack", "json"}:
        yield from scan("json" if value.encoding == "json" else "msgpack", value.data, values, depth_max=None)


def _channel(sent: wire.checkpoints.ChannelIn, channel: str, leaves: tuple[model.LargeLeaf, ...]) -> model.ChannelValue:
    version = _check_version(sent.version, channel, "version")
    value = None if sent.data is UNSET else Value(sent.encoding, sent.data, tuple(sent.holes), leaves)
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


def _patch(changes: wire.checkpoints.Changes, name: Format, reader: LeafReader) -> Work[model.Patch]:
    _check_count(len(changes.set) + len(changes.append) + len(changes.remove), "/changes")
    patch = model.Patch(
        set={},
        append={_check_public(channel, "changes", "append", channel): [] for channel in changes.append},
        remove=[_check_public(channel, "changes", "remove", index) for index, channel in enumerate(changes.remove)],
    )
    for channel in changes.leaves:
        if channel not in changes.set and channel not in changes.append:
            raise InvalidState(
                "leaves of a channel that is not in set or append", pointer("changes", "leaves", channel)
            )
    for number, (channel, raw) in enumerate(changes.set.items()):
        _check_public(channel, "changes", "set", channel)
        value = yield from value_in(name, raw, pointer("changes", "set", channel))
        if channel in changes.leaves and channel not in changes.append:
            sent, where = changes.leaves[channel], pointer("changes", "leaves", channel)
            value = yield from _described(value, raw, sent, name, reader, where)
        patch.set[channel] = value
        if number % _SLICE_CHANNELS == 0:
            yield
    for channel, elements in changes.append.items():
        where = pointer("changes", "leaves", channel)
        leaves = yield from reader.read(changes.leaves.get(channel, ()), where, by_offset=False)
        if leaves:
            patch.leaves[channel] = leaves
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


def save_in(
    exchange: Exchange, thread_id: str, request: wire.checkpoints.SaveRequest, name: Format, body: bytes
) -> Work[model.Save]:
    """What a body asks to be saved, with the conditions of its headers."""
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
        check_checkpoint_id(request.checkpoint_id, "/checkpoint_id")
    parent = None
    if request.parent_id is not UNSET:
        if request.parent_id is not None:
            check_checkpoint_id(request.parent_id, "/parent_id")
        parent = model.Parent(request.parent_id)
    return model.Save(
        thread_id=thread_id,
        namespace=check_namespace(request.namespace, pointer="/namespace"),
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
        fence=request.fence,
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


def in_utc(moment: datetime | None, parameter: str) -> datetime | None:
    """A time of a query in UTC, where it is given."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError:  # the last hours of year 9999 in the far west, and the first of year 1 in the far east
        raise InvalidRequest(Fault(detail="must be a time of the years 1 to 9999", parameter=parameter)) from None


def writes_in(request: wire.checkpoints.WritesRequest, name: Format, values: Values) -> Work[list[model.NewWrite]]:
    """The pending writes of a body."""
    writes: list[model.NewWrite] = []
    reader = LeafReader()
    for index, sent in enumerate(request.writes):
        writes.append((yield from _new_write(sent, index, name, values, reader)))
        if len(writes) % _SLICE_CHANNELS == 0:
            yield
    return writes


def _new_write(
    sent: wire.checkpoints.WriteIn, index: int, name: Format, values: Values, reader: LeafReader
) -> Work[model.NewWrite]:
    where = pointer("writes", index)
    _check_name(sent.channel, "writes", index, "channel")
    if (sent.value is UNSET) == (sent.data is UNSET) or (sent.value is not UNSET and sent.encoding is not UNSET):
        raise InvalidState("send either value, or encoding and data", where)
    if sent.value is not UNSET:
        value = yield from value_in(name, sent.value, f"{where}/value")
        value = yield from _described(value, sent.value, sent.leaves, name, reader, f"{where}/leaves")
    else:
        encoding = "msgpack" if sent.encoding is UNSET else sent.encoding
        leaves = yield from reader.read(sent.leaves, f"{where}/leaves", by_offset=True)
        value = Value(encoding, b"" if sent.data is UNSET else sent.data, tuple(sent.holes), leaves)
        yield from _counted(value, values)
    return model.NewWrite(idx=sent.idx, channel=sent.channel, value=value)


def compaction_in(
    exchange: Exchange, thread_id: str, request: wire.checkpoints.CompactRequest, name: Format, body: bytes
) -> Work[model.Compaction]:
    """What a body asks to be compacted, with the conditions of its headers."""
    summary: tuple[bytes, ...] = ()
    if request.summary is not UNSET:
        element = yield from element_in(name, request.summary, "/summary")
        bounds = list_bounds(element)
        summary = (element,) if bounds is None else tuple(element[start:end] for start, end in pairwise(bounds))
    if request.checkpoint_id is not UNSET:
        check_checkpoint_id(request.checkpoint_id, "/checkpoint_id")
    return model.Compaction(
        thread_id=thread_id,
        namespace=check_namespace(request.namespace, pointer="/namespace"),
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
        fence=request.fence,
    )


# --- out ------------------------------------------------------------------------------------------


def write_out(write: model.PendingWrite, view: wire.base.View, name: Format) -> Work[wire.checkpoints.WriteOut]:
    """A pending write as it is shown in ``view``."""
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
    if view != "none":
        shown.leaves = yield from leaves_out(write.value, _before(write.value, shown.value, name))
    return shown


def _before(value: Value, raw: Raw | msgspec.UnsetType, name: Format) -> int | None:
    """How many bytes stand before a value's own in what is shown of it; None: it is not shown as its bytes."""
    if raw is UNSET:
        return 0
    return None if name == "json" else len(raw) - len(value.data)


def _channel_out(channel: model.Channel) -> Work[wire.checkpoints.ChannelOut]:
    value = channel.value
    holes = list(value.holes) or UNSET
    leaves = yield from leaves_out(value)
    return wire.checkpoints.ChannelOut(
        version=channel.version, encoding=value.encoding, data=value.data, holes=holes, leaves=leaves
    )


async def checkpoints_out(
    exchange: Exchange, checkpoints: Sequence[model.Checkpoint], view: wire.base.View
) -> list[wire.checkpoints.Checkpoint]:
    """Checkpoints as they are shown in ``view``, made in slices if they are large."""
    size_bytes = sum(len(value.data) for value in shown_values(checkpoints, view))
    return await exchange.reservation.run(
        _each(checkpoints, lambda checkpoint: _checkpoint_out(checkpoint, view, exchange.format)), size_bytes
    )


async def writes_out(
    exchange: Exchange, writes: Sequence[model.PendingWrite], view: wire.base.View
) -> list[wire.checkpoints.WriteOut]:
    """Pending writes as they are shown in ``view``, made in slices if they are large."""
    size_bytes = sum(len(write.value.data) for write in writes)
    return await exchange.reservation.run(
        _each(writes, lambda write: write_out(write, view, exchange.format)), size_bytes
    )


async def histories_out(exchange: Exchange, histories: model.ChannelHistories) -> wire.checkpoints.ChannelHistories:
    """Histories of channels as they are shown."""
    return wire.checkpoints.ChannelHistories(
        mark=histories.mark,
        channels={
            channel: wire.checkpoints.ChannelHistory(
                writes=await writes_out(exchange, history.writes, "channels"),
                seed=UNSET if history.seed is None else await _seed_out(exchange, history.seed),
                continues=history.continues,
            )
            for channel, history in histories.channels.items()
        },
    )


async def _seed_out(exchange: Exchange, seed: model.Channel) -> wire.checkpoints.ChannelOut:
    return await exchange.reservation.run(_channel_out(seed), len(seed.value.data))


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
    state_leaves: dict[str, list[wire.checkpoints.LeafOut]] | msgspec.UnsetType = UNSET
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
            leaves = {}
            for channel, raw in state.items():
                value = held[channel].value
                if (noted := (yield from leaves_out(value, _before(value, raw, name)))) is not UNSET:
                    leaves[channel] = noted
            state_leaves = leaves or UNSET
        else:
            channels = {}
            for channel, stored in held.items():
                channels[channel] = yield from _channel_out(stored)
        writes = yield from _each(checkpoint.writes or (), lambda write: write_out(write, view, name))
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
        state_leaves=state_leaves,
    )
