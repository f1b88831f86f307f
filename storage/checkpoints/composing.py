"""Composing a checkpoint: what a save makes of its values, and of what they stand on.

All of it is computation on what is given: nothing is read or written here, and it is the same whether what a save
stands on was read or is remembered. Values stay bytes; only lists are cut.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from crypto import Sealer
from storage.access.offload import artifacts_in, pack_artifacts
from storage.errors import ChannelUnchangedUnknown, InvalidState
from storage.format.leaf_notes import moved
from storage.format.leaves import (
    PLACEHOLDER_BYTES,
    Pointer,
    escaped,
    find_pointer,
    may_name,
    may_point,
    read_placeholder,
)
from storage.format.manifest import FORMAT, ChannelRecord, CheckpointColumns, Manifest
from storage.format.pieces import (
    Body,
    Cutter,
    Grown,
    Opened,
    holds_list,
    list_bounds,
    list_count,
    list_header,
    tail_ids,
    to_cut,
)
from storage.format.record import OpenedCheckpoint
from storage.ledger.ledger import pack_named_ids, unpack_named_ids
from storage.model import ChannelValue, FullState, LargeLeaf, LongList, Patch, Save, Value
from storage.schemas.tags import Tagging, tagging_of
from storage.schemas.versions import OtherVersionError


class Draft(msgspec.Struct, frozen=True):
    """What a save makes of its values before it knows what it stands on.

    Attributes:
        now: The moment of the save.
        cutter: Has the pieces that the values were cut into.
        cut: The channels that came with a whole value, and what is said of their large leaves.
        named: The artifacts that values name, by channel.
        tagging: What the checkpoint is found by, if its schema declares anything.
    """

    now: datetime
    cutter: Cutter
    cut: dict[str, tuple[Body, Body | None]]
    named: dict[str, list[Pointer]]
    tagging: Tagging | None

    @classmethod
    def of(cls, sealer: Sealer, save: Save, now: datetime, offload_bytes_min: int | None) -> "Draft":
        """Cut the values of a save.

        Raises:
            InvalidState: a placeholder stands where none can, or names nothing.
        """
        cutter = Cutter(sealer, offload_bytes_min=offload_bytes_min)
        values = save.content.channels if isinstance(save.content, FullState) else {}
        named = _named(save.content)
        cut = {
            name: _cut(cutter, save.content, name, each.value)
            for name, each in values.items()
            if each.value is not None and each.append_to is None
        }
        return cls(now, cutter, cut, named, tagging_of(sealer, save))

    def needs_parent(self, save: Save) -> bool:
        """Whether the save cannot be composed without the checkpoint that it follows."""
        full = save.content if isinstance(save.content, FullState) else None
        return full is None or len(self.cut) < len(full.channels) or save.step is None


class Stored(msgspec.Struct, frozen=True):
    """What is stored already that a save refers to.

    Attributes:
        base: The checkpoint whose channels are unchanged, or changed by a patch.
        parent: The checkpoint whose lists get elements: mostly the same.
        look_up: What gives the pieces in the open tails of those lists.
    """

    base: OpenedCheckpoint | None
    parent: OpenedCheckpoint | None
    look_up: Callable[[bytes], Opened]


def at_version(save: Save, base: OpenedCheckpoint | None) -> None:
    """Return if the version of a save is its parent's where it has to be.

    Raises:
        ChannelUnchangedUnknown: an unchanged or appended channel is at another version, or its parent at none.
        OtherVersionError: a patch is, or its parent; or it names none, and so has not been checked by its parent's.
    """
    if base is None:
        return
    at = (base.columns.state_schema, base.columns.state_version)
    if isinstance(save.content, Patch):
        if (save.state_schema, save.state_version) != at:
            raise OtherVersionError(base.columns.checkpoint_id, *at)
    elif save.state_schema is not None and (save.state_schema, save.state_version) != at:
        for name, each in save.content.channels.items():
            if each.value is None or each.append_to is not None:
                raise ChannelUnchangedUnknown(name)


def compose(content: FullState | Patch, draft: Draft, stored: Stored) -> list[ChannelRecord]:
    """The channels of the new checkpoint. What is long to cut takes long here, too.

    Raises:
        ChannelUnchangedUnknown: what a channel refers to is not stored: whole values say what is meant.
        InvalidState: a change cannot be applied.
    """
    if isinstance(content, FullState):
        return _composed(content, draft, stored)
    return _patched(content, draft, stored)


def tails_of(content: FullState | Patch, stored: OpenedCheckpoint | None) -> list[bytes] | None:
    """The pieces that composing looks at: the open tails of the lists that get elements.

    None: a list that a complete state appends to is not stored.
    """
    if isinstance(content, FullState):
        return _appended_to(content, stored)
    ids = stored.ids if stored else []
    held = {each.name: each for each in (stored.manifest.channels if stored else [])}
    return [each for name in content.append if name in held for each in tails_of_record(held[name], ids)]


def tails_of_record(record: ChannelRecord, ids: Sequence[bytes]) -> list[bytes]:
    """The pieces in the open tails of a channel's list, and of what is said of its large leaves."""
    noted = [] if record.leaves is None else tail_ids(record.leaves, ids)
    return tail_ids(record.body, ids) + noted


def check_removals(patch: Patch, base: OpenedCheckpoint | None) -> None:
    """Return if a patch removes what is there.

    Raises:
        InvalidState: it does not.
    """
    held = {each.name for each in (base.manifest.channels if base else [])}
    for position, name in enumerate(patch.remove):
        if name not in held:
            raise InvalidState(f"there is no channel {name!r} to remove", f"/changes/remove/{position}")


def data_of(content: FullState | Patch) -> Iterator[bytes]:
    """What is cut of a save, to know whether that takes long."""
    if isinstance(content, FullState):
        for each in content.channels.values():
            if each.value is not None:
                yield from to_cut(each.value)
        return
    yield from (value.data for value in content.set.values())
    for elements in content.append.values():
        yield list_header(len(elements))
        yield from elements


def columns_of(
    save: Save,
    channels: Sequence[ChannelRecord],
    cutter: Cutter,
    *,
    checkpoint_id: str,
    parent_id: str | None,
    step: int,
    created_at: datetime,
) -> CheckpointColumns:
    """The clear columns of a save's checkpoint, whose channels were composed with ``cutter``."""
    usage = save.usage or {}
    return CheckpointColumns(
        thread_id=save.thread_id,
        namespace=save.namespace,
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        step=step,
        status=save.status,
        source=save.source,
        agent=save.agent,
        run_id=save.run_id,
        model=save.model["name"] if save.model else None,
        state_schema=save.state_schema,
        state_version=save.state_version,
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cost_micros=usage.get("cost_micros"),
        created_at=created_at,
        piece_ids=cutter.listed.pack(),
        named_ids=_union(each.artifacts for each in channels),
    )


def manifest_of(save: Save, channels: list[ChannelRecord]) -> Manifest:
    """The sealed part of a save's checkpoint."""
    return Manifest(FORMAT, channels, save.metadata, save.model, save.delta_channels)


def list_length(held: ChannelRecord) -> int | None:
    """How many elements a channel's list has; None: it is no list that the gateway can read."""
    return elements_of(held.body) if held.encoding == "msgpack" else None


def elements_of(body: Body) -> int | None:
    """How many elements a list has that was cut; None: it is no list."""
    if isinstance(body, bytes):
        bounds = list_bounds(body)
        return None if bounds is None else len(bounds) - 1
    return list_count(body[0]) if body[0] else None


def long_lists(manifest: Manifest, elements_max: int | None, size_max: int | None) -> tuple[LongList, ...]:
    """The lists of a checkpoint that have more elements, or bytes, and could be compacted; None: any number will do."""
    if elements_max is None and size_max is None:
        return ()
    found = []
    for each in manifest.channels:
        if each.name.startswith("~") or each.name in manifest.delta_channels:
            continue
        elements = list_length(each)
        is_long = elements is not None and elements_max is not None and elements > elements_max
        is_large = each.size is not None and size_max is not None and each.size > size_max
        if elements and (is_long or is_large):
            found.append(LongList(each.name, elements, each.size))
    return tuple(found)


def size_of(value: Value) -> int:
    """Bytes of a value, large leaves in the place of their placeholders."""
    found = (read_placeholder(value.data, at) for at in value.holes)
    return len(value.data) + sum(each[1] - PLACEHOLDER_BYTES for each in found if each is not None)


def _cut(cutter: Cutter, content: FullState | Patch, name: str, value: Value) -> tuple[Body, Body | None]:
    """Cut a channel's value; a fault of its placeholders is said where the client named them."""
    try:
        return cutter.cut_noted(value)
    except InvalidState as error:
        plain = isinstance(content, FullState) and content.root == "/state"
        where = f"/state_holes/{escaped(name)}" if plain else f"/channels/{escaped(name)}{error.pointer}"
        raise InvalidState(str(error), where) from None


def _named(content: FullState | Patch) -> dict[str, list[Pointer]]:
    """The artifacts that the values of a save name, by channel, and where."""
    if isinstance(content, FullState):
        return _named_in_state(content)
    named: dict[str, list[Pointer]] = {}
    for name, value in content.set.items():
        where = f"/changes/set/{escaped(name)}"
        if found := find_pointer(name, where) + artifacts_in(value, where):
            named[name] = found
    for name, elements in content.append.items():
        for position, element in enumerate(elements):
            where = f"/changes/append/{escaped(name)}/{position}"
            if found := artifacts_in(Value("msgpack", element), where):
                named.setdefault(name, []).extend(found)
    return named


def _named_in_state(content: FullState) -> dict[str, list[Pointer]]:
    named: dict[str, list[Pointer]] = {}
    for name, each in content.channels.items():
        # A channel's name is part of the state, too.
        if may_point(name) or (each.value is not None and may_name(each.value.encoding, each.value.data)):
            where = f"{content.root}/{escaped(name)}"
            found = find_pointer(name, where)
            if each.value is not None:
                found += artifacts_in(each.value, where)
            if found:
                named[name] = found
    return named


def _union(packed: Iterable[bytes | None]) -> bytes | None:
    lists = [each for each in packed if each is not None]
    return pack_named_ids(each for some in lists for each in unpack_named_ids(some)) if lists else None


def _appended_to(content: FullState, base: OpenedCheckpoint | None) -> list[bytes] | None:
    """The pieces that appending looks at: the open tails of the parent's lists. None: it has not all of these lists."""
    ids = base.ids if base else []
    tails: list[bytes] = []
    for name, each in content.channels.items():
        if each.append_to is not None:
            held = _held(base, name)
            if held is None or held.version != each.append_to:
                return None
            tails += tails_of_record(held, ids)
    return tails


def _composed(content: FullState, draft: Draft, stored: Stored) -> list[ChannelRecord]:
    """The channels of a complete state."""
    base, named = stored.base, draft.named
    channels = []
    for name, each in content.channels.items():
        if each.append_to is not None:
            channels.append(_with_elements(name, each, draft, stored))
            continue
        if each.value is not None:
            artifacts = pack_artifacts(named.get(name, ()))
            (body, leaves), size = draft.cut[name], size_of(each.value)
            channels.append(ChannelRecord(name, each.version, each.value.encoding, body, artifacts, size, leaves))
            continue
        held = _held(base, name)
        if base is None or held is None or held.version != each.version:
            raise ChannelUnchangedUnknown(name)
        channels.append(_carried(held, base.ids, draft.cutter))
    return channels


def _with_elements(name: str, sent: ChannelValue, draft: Draft, stored: Stored) -> ChannelRecord:
    """A list of the parent with the elements that were sent after its own.

    Raises:
        ChannelUnchangedUnknown: there is no such list, or these are no elements: the whole value says what is meant.
    """
    parent = stored.parent
    held = _held(parent, name)
    bounds = None
    if sent.value is not None and sent.value.encoding == "msgpack" and not sent.value.holes:
        bounds = list_bounds(sent.value.data)
    if parent is None or held is None or held.version != sent.append_to or sent.value is None or bounds is None:
        raise ChannelUnchangedUnknown(name)
    client_notes = moved(sent.value.leaves, 0, -bounds[0])
    added = _Added(len(bounds) - 1, sent.value.data[bounds[0] :], client_notes)
    try:
        body, size, leaves = _appended(name, held, parent.ids, added, draft.cutter, stored.look_up)
    except InvalidState:
        raise ChannelUnchangedUnknown(name) from None
    artifacts = _union((held.artifacts, pack_artifacts(draft.named.get(name, ()))))
    return ChannelRecord(name, sent.version, "msgpack", body, artifacts, size, leaves)


def _held(base: OpenedCheckpoint | None, name: str) -> ChannelRecord | None:
    channels = base.manifest.channels if base else []
    return next((each for each in channels if each.name == name), None)


def _carried(held: ChannelRecord, ids: Sequence[bytes], cutter: Cutter) -> ChannelRecord:
    """A channel of another record, unchanged."""
    leaves = None if held.leaves is None else _adopt(held.leaves, ids, cutter)
    return msgspec.structs.replace(held, body=_adopt(held.body, ids, cutter), leaves=leaves)


def _adopt(body: Body, ids: Sequence[bytes], cutter: Cutter) -> Body:
    """A body of another record, renumbered for this one; its pieces are alive as long as that record is."""
    if isinstance(body, bytes):
        return body
    prefix, leaves, closed = body
    return (
        prefix,
        [leaf if isinstance(leaf, bytes) else cutter.listed.number(ids[leaf]) for leaf in leaves],
        closed,
    )


def _patched(patch: Patch, draft: Draft, stored: Stored) -> list[ChannelRecord]:
    """The channels of a state with the changes; what they name is there."""
    base, cutter, named = stored.base, draft.cutter, draft.named
    held = {each.name: each for each in (base.manifest.channels if base else [])}
    ids = base.ids if base else []
    channels: dict[str, ChannelRecord] = {}
    for name, each in held.items():
        if name not in patch.remove and name not in patch.set and name not in patch.append:
            channels[name] = _carried(each, ids, cutter)
    for name, value in patch.set.items():
        if value.holes:
            raise InvalidState("placeholders come in channels", f"/changes/set/{escaped(name)}")
        artifacts = pack_artifacts(named.get(name, ()))
        body, leaves = cutter.cut_noted(value)
        channels[name] = ChannelRecord(name, None, value.encoding, body, artifacts, size_of(value), leaves)
    for name, elements in patch.append.items():
        added = _Added(len(elements), b"".join(elements), patch.leaves.get(name, ()))
        grown, size, leaves = _appended(name, held.get(name), ids, added, cutter, stored.look_up)
        before = held[name].artifacts if name in held else None
        artifacts = _union((before, pack_artifacts(named.get(name, ()))))
        channels[name] = ChannelRecord(name, None, "msgpack", grown, artifacts, size, leaves)
    order = [*held, *(name for name in channels if name not in held)]
    return [channels[name] for name in order if name in channels]


class _Added(msgspec.Struct, frozen=True):
    """Elements for a list: how many, their bytes, and what is said of large leaves, at places in these."""

    count: int
    data: bytes
    client_notes: tuple[LargeLeaf, ...] = ()


def _appended(
    name: str,
    held: ChannelRecord | None,
    ids: Sequence[bytes],
    added: _Added,
    cutter: Cutter,
    look_up: Callable[[bytes], Opened],
) -> tuple[Body, int | None, Body | None]:
    """A list with elements after its own, its size, and what is said of its large leaves."""
    if held is None:
        return _whole(cutter, 0, b"", added)
    if held.encoding == "msgpack" and isinstance(held.body, bytes):
        bounds = list_bounds(held.body)
        if bounds is not None:
            return _whole(cutter, len(bounds) - 1, held.body[bounds[0] :], added)
    if held.encoding == "msgpack" and not isinstance(held.body, bytes) and held.body[0]:
        count = list_count(held.body[0])
        header = list_header(count + added.count)
        size = None if held.size is None else held.size + len(header) - len(held.body[0]) + len(added.data)
        client_notes = moved(added.client_notes, count, 0)
        body, grown = cutter.append_noted(header, held.body, ids, look_up, added.data, client_notes)
        return body, size, _noted(held.leaves, ids, grown, cutter, look_up)
    raise InvalidState(f"channel {name!r} is not a list", f"/changes/append/{name}")


def _whole(cutter: Cutter, count: int, before: bytes, added: _Added) -> tuple[Body, int | None, Body | None]:
    """A list that is cut anew, of as many elements, which are these bytes, and others after them."""
    header = list_header(count + added.count)
    client_notes = moved(added.client_notes, count, len(header) + len(before))
    value = Value("msgpack", header + before + added.data, leaves=client_notes)
    body, leaves = cutter.cut_noted(value)
    return body, size_of(value), leaves


def _noted(
    before: Body | None, ids: Sequence[bytes], grown: Grown, cutter: Cutter, look_up: Callable[[bytes], Opened]
) -> Body | None:
    """What is said of the large leaves of a list that got elements."""
    if before is None or not grown.follows or not holds_list(before):
        return cutter.cut_list(grown.notes) if grown.notes else None
    if not grown.notes:
        return _adopt(before, ids, cutter)
    added = b"".join(grown.notes)
    if not isinstance(before, bytes):
        return cutter.append(list_header(list_count(before[0]) + len(grown.notes)), before, ids, look_up, added)
    bounds = list_bounds(before) or [0]
    return cutter.cut(Value("msgpack", list_header(len(bounds) - 1 + len(grown.notes)) + before[bounds[0] :] + added))
