"""Compaction: a list channel's newest elements, behind a summary that the caller supplies, as a new checkpoint.

The list neither leaves the gateway nor is it read whole. What is kept is read backwards from the list's end, in a
snapshot; then the new checkpoint is an ordinary save on top of the head that was read, whose other channels are
unchanged. So what a save promises holds for it, and of the kept elements only what is cut differently is stored again:
cutting finds the groups that were closed before (`storage.format.pieces`). Nothing is removed: older checkpoints hold
the whole list, and the artifacts it names stay referred to, until retention archives or thins them.

It makes no summary and knows nothing of what elements mean.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import RowSeals, check_absent
from storage.access.idempotency import replayed
from storage.access.save_rules import SaveRules, precondition_required
from storage.checkpoints.composing import elements_of, list_length
from storage.checkpoints.reading import one, read_pieces
from storage.checkpoints.states import States
from storage.errors import (
    ArtifactUnknown,
    CheckpointExists,
    CheckpointNotFound,
    HeadMoved,
    IntegrityFailure,
    InvalidState,
    LimitExceeded,
    PreconditionRequired,
    ThreadArchived,
    WritesPending,
)
from storage.format.chain import NO_WRITES
from storage.format.cold.segment import ColdSums
from storage.format.leaf_notes import decode as decode_notes
from storage.format.leaf_notes import with_notes
from storage.format.leaves import escaped
from storage.format.manifest import ChannelRecord
from storage.format.pieces import (
    COMPOSITE,
    INDEX,
    LEAF,
    Body,
    Leaf,
    Opened,
    element_bounds,
    holds_list,
    join_holed,
    list_bounds,
    list_header,
    piece_ids_of,
    read_composite,
)
from storage.format.record import OpenedCheckpoint, PieceReader, open_thread
from storage.model import (
    ChannelValue,
    ChannelVersion,
    Compaction,
    FullState,
    LargeLeaf,
    Load,
    Precondition,
    Save,
    Saved,
    Value,
)
from storage.schemas.checks import check_pair
from storage.schemas.versions import WantedVersions
from storage.scope import ClientShare, Scope, check_id
from storage.statements.threads import checkpoints as sql
from storage.tiers.rows import Rows
from storage.tiers.segments import refuse_cold_namespace
from storage.tiers.snapshots import Snapshot

SOURCE: Final = "compact"
# What the kept elements may take, without their large leaves: they are put together once.
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
# Elements of a summary that is stored over the quota of rows.
SUMMARY_OVER_QUOTA_BYTES_MAX: Final = 64 * 1024
# Closed groups that are read at a time, of about 32 elements and at most 64 KiB each.
_GROUPS_AT_ONCE = 32
_GROUP_ELEMENTS = 32
# Each round stands on a newer head than the one before: another writer made progress.
_ROUNDS_MAX = 8
_COUNTED = re.compile(r"(\d+)(\D.*)?", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Newest:
    """The newest elements of a list: how many, their bytes, and where placeholders stand in them.

    ``leaves`` is what is said of large leaves in them.
    """

    count: int
    data: bytes
    holes: tuple[int, ...] = ()
    leaves: tuple[LargeLeaf, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Base:
    """What a compaction stands on. ``sequence`` None: it was stored before, on top of this checkpoint.

    Attributes:
        checkpoint: The head, or the parent of what was stored before.
        sequence: The head's.
        newest: What is kept of the channel. None: all of it, unchanged.
        count: How many elements the channel has.
    """

    checkpoint: OpenedCheckpoint
    sequence: int | None
    newest: Newest | None
    count: int


class Compacting:
    """The verb that makes a list channel shorter."""

    def __init__(self, access: Access, states: States) -> None:
        self._access = access
        self._states = states

    async def compact(self, scope: Scope, compaction: Compaction, share: ClientShare | None = None) -> Saved:
        """Save a checkpoint whose list channel is the summary and the newest elements of the head's.

        Without a believed head it goes by the head it finds, and again if another writer is faster.

        Raises:
            CheckpointNotFound: the namespace has no head.
            HeadMoved: the head is not the one the caller named, or moved in every round.
            PreconditionRequired: the thread or a save policy is strict, and none was named.
            WritesPending: tasks have written to the head; the new checkpoint would leave their writes behind.
            InvalidState: the head has no such channel, it is no list, or a DeltaChannel.
            LimitExceeded: what is kept is larger than `KEPT_BYTES_MAX`.
            RowQuotaExceeded: the tenant may store no more rows, and half of the list or more would stay.
            StorageError: as `States.save`.
        """
        check_id(compaction.thread_id, "thread id")
        if compaction.checkpoint_id is not None:
            check_id(compaction.checkpoint_id, "checkpoint id")
        check_pair(compaction.state_schema, compaction.state_version)

        for is_last in [False] * (_ROUNDS_MAX - 1) + [True]:
            found = await self._access.with_existing_keys(
                scope,
                lambda sealer: self._read(scope, sealer, compaction),
                CheckpointNotFound(),
                share,
            )
            if isinstance(found, Saved):
                return dataclasses.replace(found, created=False)
            save = await self._save(scope, compaction, found, share)
            try:
                return await self._states.save(scope, save, share)
            except HeadMoved:
                if is_last:  # otherwise reading again says what became of the head
                    raise
            except (InvalidState, ArtifactUnknown) as error:
                error.pointer = _pointer(error.pointer, compaction)
                raise
        raise AssertionError  # the last round returns or raises

    async def _read(self, scope: Scope, sealer: Sealer, compaction: Compaction) -> Saved | _Base:
        """What the compaction stands on, or the answer to the same request before."""
        thread_id, namespace = compaction.thread_id, compaction.namespace
        reader = PieceReader(sealer, refs=True)
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            snapshot = Snapshot.hot(transaction, thread_id)
            await self._access.check_keys_in(transaction, scope, sealer)
            row = await snapshot.thread()
            thread = None if row is None else open_thread(sealer, thread_id, row.created_at, row.seal)
            if compaction.idempotency is not None:
                before = await replayed(transaction, sealer, compaction.idempotency, Saved)
                if before is not None:
                    return before
            if row is None or thread is None:
                await check_absent(snapshot, sealer, namespace)
                raise CheckpointNotFound
            if row.tier != "hot":
                raise ThreadArchived(thread_id)
            if row.cold is not None:
                sums = ColdSums.open(sealer, thread_id, row.created_at, thread.incarnation, row.cold)
                snapshot = msgspec.structs.replace(snapshot, sums=sums)
            policies = await transaction.fetch_only(sql.POLICIES_OF, agent_before=row.agent, agent=compaction.agent)
            rules = SaveRules.read(self._access.control, scope.tenant_id, policies)
            base, sequence = await _stand(snapshot, sealer, compaction, strict=row.strict, rules=rules)
            held, count = _list_of(base, compaction.channel)
            newest_count = min(compaction.keep_last, count)
            if newest_count == count and not compaction.summary:
                return _Base(base, sequence, None, count)
            parts = await _read_newest(snapshot.rows, reader, held.body, base.ids, newest_count)
            notes = await _read_notes(snapshot.rows, reader, held.leaves, base.ids, parts.leaves_max(reader))
            blobs = await self._access.offload.find(transaction, sealer, reader)
        await self._access.offload.fill(scope, sealer, reader, blobs)
        return _Base(base, sequence, _newest(parts, notes, reader, newest_count), count)

    async def _save(self, scope: Scope, compaction: Compaction, base: _Base, share: ClientShare | None) -> Save:
        columns, manifest = base.checkpoint.columns, base.checkpoint.manifest
        at = (columns.state_schema, columns.state_version)
        wanted = at if compaction.state_schema is None else (compaction.state_schema, compaction.state_version)
        delta_channels = manifest.delta_channels
        makes_room = False
        # A head without a version may have been adopted at one. It is saved whole, even if that is the wanted one.
        if at != wanted and (await self._states.adoptions.known(scope)).at(columns).state_schema is not None:
            channels, delta_channels = await self._converted(scope, compaction, columns.checkpoint_id, share)
        else:
            channels = {each.name: ChannelValue(each.version, None) for each in manifest.channels}
            if base.newest is not None:
                version = bumped(channels[compaction.channel].version)
                channels[compaction.channel] = ChannelValue(version, _compacted(compaction.summary, base.newest))
                makes_room = _makes_room(compaction.summary, base.newest, base.count)
        return Save(
            thread_id=compaction.thread_id,
            namespace=compaction.namespace,
            content=FullState(channels, root=""),
            checkpoint_id=compaction.checkpoint_id,
            precondition=Precondition(columns.checkpoint_id, sequence=base.sequence),
            known_token=compaction.known_token,
            status=compaction.status or columns.status,  # type: ignore[arg-type]
            source=SOURCE,
            agent=columns.agent if compaction.agent is None else compaction.agent,
            run_id=compaction.run_id,
            metadata=manifest.metadata if compaction.metadata is None else compaction.metadata,
            state_schema=wanted[0],
            state_version=wanted[1],
            delta_channels=delta_channels,
            idempotency=compaction.idempotency,
            makes_room=makes_room,
            fence=compaction.fence,
        )

    async def _converted(
        self, scope: Scope, compaction: Compaction, base_id: str, share: ClientShare | None
    ) -> tuple[dict[str, ChannelValue], tuple[str, ...]]:
        """The whole compacted state at another version than the head's, where the channel goes by its name there."""
        schema, number = compaction.state_schema, compaction.state_version
        assert schema is not None  # noqa: S101  for the type checker: it is another one than the head's
        assert number is not None  # noqa: S101  likewise: they go together
        versions = WantedVersions(by_schema={schema: number})
        place = (compaction.thread_id, compaction.namespace, base_id)
        shown = (await self._states.load(scope, versions, Load(*place, with_state=True), share)).checkpoint
        if shown.state_schema != schema:
            raise InvalidState("the head is of another state schema", "/state_schema")
        held = (shown.channels or {}).get(compaction.channel)
        bounds = list_bounds(held.value.data) if held is not None and held.value.encoding == "msgpack" else None
        if held is None or bounds is None or compaction.channel in shown.delta_channels:
            raise _no_list(compaction.channel)
        channels = {name: ChannelValue(each.version, each.value) for name, each in (shown.channels or {}).items()}
        newest_count = min(compaction.keep_last, len(bounds) - 1)
        start = bounds[len(bounds) - 1 - newest_count]
        newest = Newest(newest_count, held.value.data[start:], leaves=_from(start, held.value.leaves))
        channels[compaction.channel] = ChannelValue(bumped(held.version), _compacted(compaction.summary, newest))
        return channels, shown.delta_channels


async def _stand(
    snapshot: Snapshot,
    sealer: Sealer,
    compaction: Compaction,
    *,
    strict: bool,
    rules: SaveRules,
) -> tuple[OpenedCheckpoint, int | None]:
    """The head and its sequence; or, of a compaction that is stored under its id, what it was made of, and None."""
    namespace = compaction.namespace
    stored = await one(snapshot.rows, sealer, namespace, compaction.checkpoint_id)
    if stored is not None:
        base = await one(snapshot.rows, sealer, namespace, stored.columns.parent_id)
        if base is None:  # the stored one was no compaction, or its parent was pruned since
            raise CheckpointExists
        return base, None
    found = await snapshot.load(namespace, None, with_state=False)
    if found is None:
        if snapshot.sums is not None:
            await refuse_cold_namespace(snapshot.transaction, sealer, snapshot.thread_id, snapshot.sums, namespace)
        await check_absent(snapshot, sealer, namespace)
        raise CheckpointNotFound
    seals = RowSeals.open(sealer, compaction.thread_id, namespace, found)
    if found.checkpoint is None:
        raise IntegrityFailure("the head's checkpoint is missing")
    _check_believed(compaction, seals.head_id, rules, strict=strict)
    if seals.head.writes != NO_WRITES:
        raise WritesPending
    return seals.checkpoint(sealer, found.checkpoint), seals.head.sequence


def _check_believed(compaction: Compaction, head_id: str, rules: SaveRules, *, strict: bool) -> None:
    """Compare the head with what the caller believes, who must name one where a thread or a policy is strict."""
    believed = compaction.precondition
    if believed is None or believed.exists:
        if strict:
            raise PreconditionRequired
        if (who := rules.asked_by(compaction.agent)) is not None:
            raise precondition_required(who)
    elif not believed.holds(head_id):
        raise HeadMoved(head_id)


def _list_of(base: OpenedCheckpoint, name: str) -> tuple[ChannelRecord, int]:
    """The record of a channel that can be compacted, and how many elements it has."""
    if name in base.manifest.delta_channels:
        raise InvalidState(
            "the channel is a DeltaChannel: it is rebuilt from what tasks wrote, and its own snapshots keep it short",
            "/channel",
        )
    held = next((each for each in base.manifest.channels if each.name == name), None)
    if held is None:
        raise InvalidState("the head has no such channel", "/channel")
    count = list_length(held)
    if count is None:
        raise _no_list(name)
    return held, count


def _no_list(name: str) -> InvalidState:
    return InvalidState(f"channel {name!r} is not a list", "/channel")


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """The end of a list: a body without header, and the pieces it names."""

    leaves: list[Leaf]
    ids: list[bytes]

    def join(self, reader: PieceReader) -> tuple[bytes, tuple[int, ...]]:
        return join_holed((b"", self.leaves, 0), self.ids, reader.look_up)

    def leaves_max(self, reader: PieceReader) -> int:
        """How many large leaves there are, or more: what is in the object store was not fetched yet."""
        opened = [reader.look_up(self.ids[each]) for each in self.leaves if isinstance(each, int)]
        return sum(1 if each.kind == LEAF else len(each.children or ()) for each in opened)


async def _read_notes(
    rows: Rows, reader: PieceReader, notes: Body | None, ids: Sequence[bytes], wanted: int
) -> tuple[_Parts, int]:
    """Read what is said of so many of the last large leaves; returns of how many it is."""
    if notes is None or not holds_list(notes):
        return _Parts([], []), 0
    count = min(wanted, elements_of(notes) or 0)
    return await _read_newest(rows, reader, notes, ids, count), count


async def _read_newest(rows: Rows, reader: PieceReader, body: Body, ids: Sequence[bytes], wanted: int) -> _Parts:
    """Read pieces from a list's end until they hold ``wanted`` elements, or some more."""
    if not wanted:
        return _Parts([], [])
    if isinstance(body, bytes):
        bounds = list_bounds(body) or [0]
        return _Parts([body[bounds[0] :]], [])
    _, leaves, closed = body
    # The open tail is read as one: where a placeholder stands in it, its leaves do not end where elements do.
    tail_ids = piece_ids_of((b"", leaves[closed:], 0), ids)
    await read_pieces(rows, reader, tail_ids)
    opened = [reader.look_up(each) for each in tail_ids]
    numbers = iter(range(len(tail_ids)))
    tail = _Parts([each if isinstance(each, bytes) else next(numbers) for each in leaves[closed:]], tail_ids)
    known = all(each.data is not None or each.kind == LEAF for each in opened)
    # What is in the object store is fetched after the snapshot: until then it counts as one element.
    count = len(element_bounds(tail.join(reader)[0])) - 1 if known else 1
    size = sum(each.size for each in opened if each.kind != LEAF)
    before = piece_ids_of((b"", leaves[:closed], 0), ids)
    groups: list[bytes] = []
    while before and count < wanted:
        batch = before[-min(_GROUPS_AT_ONCE, (wanted - count) // _GROUP_ELEMENTS + 1) :]
        await _read_level(rows, reader, batch)
        for _ in batch:
            piece_id = before.pop()
            group = reader.look_up(piece_id)
            if group.kind == INDEX:
                before.extend(group.children or ())
                break
            groups.append(piece_id)
            count += _elements(group)
            size += group.size
            if size > KEPT_BYTES_MAX:
                raise LimitExceeded("KEPT_BYTES_MAX", KEPT_BYTES_MAX, pointer="/keep_last")
            if count >= wanted:
                break
    groups.reverse()
    moved = [each if isinstance(each, bytes) else each + len(groups) for each in tail.leaves]
    return _Parts([*range(len(groups)), *moved], [*groups, *tail_ids])


async def _read_level(rows: Rows, reader: PieceReader, ids: Sequence[bytes]) -> None:
    """Read pieces, but not what index pieces among them name."""
    wanted = reader.missing(ids)
    found = await rows.pieces(wanted) if wanted else []
    if len(found) != len(wanted):
        raise IntegrityFailure("a stored piece is missing")
    reader.add(found)


def _elements(group: Opened) -> int:
    """How many elements a closed group holds, at least."""
    if group.data is None:
        return 1
    content = read_composite(group.data)[0] if group.kind == COMPOSITE else group.data
    return len(element_bounds(content)) - 1


def _newest(parts: _Parts, notes: tuple[_Parts, int], reader: PieceReader, kept: int) -> Newest:
    data, holes = parts.join(reader)
    start = _start_of(data, kept)
    own_notes, count = notes
    packed, _ = own_notes.join(reader)
    elements = decode_notes(list_header(count) + packed[_start_of(packed, count) :])
    noted = with_notes([LargeLeaf(at=hole) for hole in holes], elements)
    return Newest(kept, data[start:], tuple(hole - start for hole in holes if hole >= start), _from(start, noted))


def _start_of(data: bytes, kept: int) -> int:
    """Where the last so many of these elements begin."""
    bounds = element_bounds(data)
    if len(bounds) - 1 < kept:
        raise IntegrityFailure("a list has fewer elements than its header says")
    return bounds[len(bounds) - 1 - kept]


def _from(start: int, leaves: Iterable[LargeLeaf]) -> tuple[LargeLeaf, ...]:
    """What is said of the leaves from an offset on, counted from there."""
    return tuple(
        dataclasses.replace(each, at=each.at - start) for each in leaves if each.at is not None and each.at >= start
    )


def _compacted(summary: Sequence[bytes], newest: Newest) -> Value:
    """The list: the summary, then what is kept."""
    before = list_header(len(summary) + newest.count) + b"".join(summary)
    holes = tuple(len(before) + hole for hole in newest.holes)
    leaves = tuple(dataclasses.replace(each, at=len(before) + (each.at or 0)) for each in newest.leaves)
    return Value("msgpack", before + newest.data, holes, leaves)


def _makes_room(summary: Sequence[bytes], newest: Newest, count: int) -> bool:
    """Whether a compaction may be stored over the quota of rows.

    Each leaves less than half of the list, so that there are few of them, and none brings much: they are no way
    around the quota.
    """
    return 2 * (len(summary) + newest.count) < count and sum(map(len, summary)) <= SUMMARY_OVER_QUOTA_BYTES_MAX


def bumped(version: ChannelVersion) -> ChannelVersion:
    """The version after an adapter's: the next number, or the text in whose first digits the next number stands.

    LangGraph compares versions of one kind, and counts on from the greatest: ``00000000000000000000000000000007.0342``.

    Raises:
        InvalidState: it begins with no number that has a successor as long as it is.
    """
    if version is None or isinstance(version, int):
        return None if version is None else version + 1
    if isinstance(version, float):
        return math.floor(version) + 1.0
    counted = _COUNTED.fullmatch(version)
    number = None if counted is None else str(int(counted[1]) + 1).zfill(len(counted[1]))
    if counted is None or number is None or len(number) != len(counted[1]):
        raise InvalidState("the channel's version is not one that can be counted on", "/channel")
    return number + (counted[2] or "")


def _pointer(found: str, compaction: Compaction) -> str:
    """Where in the request the fault is, by where it is in the new state."""
    place = f"/{escaped(compaction.channel)}/"
    number, slash, rest = found.removeprefix(place).partition("/")
    if not found.startswith(place) or not number.isdecimal():
        return found
    return f"/summary/{number}{slash}{rest}" if int(number) < len(compaction.summary) else "/channel"
