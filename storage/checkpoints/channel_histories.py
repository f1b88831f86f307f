"""Channels' histories: what was written to a channel since its nearest stored value, for LangGraph's DeltaChannel.

A history is read from a checkpoint back along its parents, and nearly all of it was given to the same reader a few
steps before. So an answer carries a *mark*: a MAC of the checkpoint and the channels it is of, and of everything else
that the thread's seals count. Who sends it along the next time is given only what came since, provided that the same
channels are asked for and nothing else has changed in the thread: what the seals count now, less what was found since,
must be what they counted then. A write that was added elsewhere, a checkpoint that was removed or a thread that was
made anew give another sum, and then the whole is given.

A mark opens nothing and grants nothing, and nothing is remembered here: the reader keeps what it was given. What is
asked for at another state version is given whole.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from crypto import Sealer
from storage.access.completeness import RowSeals, check_count, check_writes
from storage.checkpoints.piece_rows import open_writes, values_of
from storage.checkpoints.reading import ids_of, read_pieces
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet, Macs, write_mac
from storage.format.manifest import CheckpointColumns
from storage.format.record import (
    OpenedCheckpoint,
    OpenedWrite,
    PieceReader,
    WriteRow,
    open_checkpoint,
)
from storage.model import ChannelHistories, ChannelHistory, PendingWrite
from storage.schemas.versions import Versioned, WantedNames
from storage.tiers.rows import Rows, write_key

_CHANNELS_ROWS = 200  # histories that are put together at a time; most are empty
# Ancestors that are read at a time: all of a long history, or few where it is known up to some step ago.
_ANCESTORS_ROWS = 256
_NEAR_ROWS = 8
# Of a mark, in hexadecimal digits; the id of the checkpoint follows.
_MARK_DIGITS = 32


class Wanted(msgspec.Struct, frozen=True):
    """What to read, as `storage.model.ChannelHistoryQuery` says.

    ``names`` are those under which a reader knows channels; None: those that were stored.
    """

    namespace: str
    channels: Sequence[str]
    mark: str | None = None
    names: WantedNames | None = None


class At(msgspec.Struct, frozen=True):
    """The checkpoint that histories are of, and the seals that were found with it."""

    sealer: Sealer
    seals: RowSeals
    target: OpenedCheckpoint


class _Counted:
    """What the thread's seals count at this moment."""

    def __init__(self, sealer: Sealer, wanted: Wanted, seals: RowSeals) -> None:
        self.thread, self.head = seals.thread, seals.head
        self._macs: Macs = sealer
        self._namespace = wanted.namespace
        self._channels = sorted({*wanted.channels})

    def mark(self, checkpoint_id: str, newer: Iterable[OpenedCheckpoint], writes: LiveSet) -> str:
        """The mark of a history: of all that is counted but the checkpoints that came after it and these writes.

        ``newer`` are the checkpoints that came after it, ``writes`` the pending writes of it and of those.

        Raises:
            IntegrityFailure: There are more of them than are counted.
        """
        live = self.head.live
        for each in newer:
            live = live.subtract(each.member)
        counted = [f"{each.count}:{each.total:x}".encode() for each in (live, self.thread.writes.part(writes))]
        place = (self.thread.incarnation, self._namespace.encode(), checkpoint_id.encode())
        channels = (each.encode() for each in self._channels)
        return self._macs.mac(b"channel-history", *place, *channels, *counted).hex()[:_MARK_DIGITS] + checkpoint_id


# Puts histories together, once their large pieces are there.
Together = Callable[[], Awaitable[ChannelHistories]]


async def read(rows: Rows, reader: PieceReader, at: At, wanted: Wanted) -> Together:
    """Read what the histories of a checkpoint that was loaded are made of, at the moment of the load.

    ``reader`` takes their pieces; those that are in blobs have to be fetched before the histories are put together.

    Raises:
        IntegrityFailure: Something does not authenticate, or is missing that should be there.
    """
    sealer = at.sealer
    counted, line = _Counted(sealer, wanted, at.seals), _Line(rows, sealer, at.target, wanted)
    newer = None
    if wanted.mark is not None and wanted.names is None:
        newer = await _newer_writes(line, counted, wanted.mark)
    target_id, mark = line.target.columns.checkpoint_id, None
    if newer is not None:
        mark = counted.mark(target_id, (), _sum(sealer, [row for row in newer if row.checkpoint_id == target_id]))
        written = [row for row in newer if row.checkpoint_id != target_id]
    else:
        await line.walk(None)
        if not line.is_whole:
            await check_count(rows, wanted.namespace, counted.head)
        if line.ancestors:
            writes = await check_writes(sealer, await rows.members(), counted.thread, rows.cold_writes)
            if wanted.names is None:
                own = writes.of(wanted.namespace, target_id)
                if not own.count and rows.cold_writes.count:  # they may be in a segment, with their checkpoint
                    own = _sum(sealer, await line.writes([line.target]))
                mark = counted.mark(target_id, (), own)
        written = await line.writes(line.ancestors)
    by_channel = await _by_channel(line, wanted.channels, written)
    here = [each for each in line.seeds.values() if not line.is_elsewhere(each)]
    opened = (each for own in by_channel.values() for each in own)
    await read_pieces(rows, reader, ids_of([*opened, *here]))

    async def together() -> ChannelHistories:
        histories = {}
        pauses = Pauses()
        for number, (name, own) in enumerate(by_channel.items(), 1):
            continues = newer is not None and name not in line.seeds
            histories[name] = await line.history(name, own, reader, continues=continues)
            if number % _CHANNELS_ROWS == 0:
                await pauses.now()
        return ChannelHistories(channels=histories, mark=mark)

    return together


async def _by_channel(line: "_Line", channels: Iterable[str], rows: Iterable[WriteRow]) -> dict[str, list[OpenedWrite]]:
    """The writes to each of these channels.

    All are opened: which channel a write is to is only known then, and one that was renamed must not be passed over.
    """
    found: dict[str, list[OpenedWrite]] = {name: [] for name in channels}
    for each in await open_writes(line.sealer, rows):
        for name in found.keys() & line.names_of(each):
            found[name].append(each)
    return found


async def _newer_writes(line: "_Line", counted: _Counted, mark: str) -> list[WriteRow] | None:
    """Walk to the checkpoint that a mark is of: the rows of all writes to it and to what is newer, the target included.

    None: it is no ancestor, or what its reader was given may not hold any more.
    """
    since = mark[_MARK_DIGITS:]
    if not await line.walk(since):
        return None
    checkpoints = (line.target, *line.ancestors)
    rows = await line.writes(checkpoints)
    newer = [each for each in checkpoints if each.columns.checkpoint_id != since]
    with suppress(IntegrityFailure):  # more than is counted: if that is damage, a reader of everything finds it
        if counted.mark(since, newer, _sum(line.sealer, rows)) == mark:
            return rows
    return None


def _sum(macs: Macs, rows: Iterable[WriteRow]) -> LiveSet:
    """What a seal counts for pending writes, by their members and places."""
    total = LiveSet()
    for row in rows:
        total = total.add(write_mac(macs, *write_key(row), row.member))
    return total


class _Line:
    """A checkpoint's ancestors, nearest first, as far as the wanted channels need them; by the names of a reader.

    ``seeds`` has by channel the nearest ancestor that holds a value of it. ``is_whole`` False: an ancestor was removed,
    or is a parent that never was.
    """

    def __init__(self, rows: Rows, sealer: Sealer, target: OpenedCheckpoint, wanted: Wanted) -> None:
        self.sealer = sealer
        self.target = target
        self.ancestors: list[OpenedCheckpoint] = []
        self.seeds: dict[str, OpenedCheckpoint] = {}
        self.is_whole = True
        self._rows = rows
        self._namespace = wanted.namespace
        self._names = wanted.names
        self._next_id = target.columns.parent_id
        self._unseeded = dict.fromkeys(wanted.channels)
        self._depths: dict[str, int] = {}  # of the ancestors
        self._columns: dict[str, CheckpointColumns] = {}

    async def walk(self, until: str | None) -> bool:
        """Go on to the checkpoint ``until``, or else to the last seed; returns whether ``until`` was reached."""
        if until == self.target.columns.checkpoint_id:
            return True
        rows_max = _ANCESTORS_ROWS if until is None else _NEAR_ROWS
        pauses = Pauses()
        while self._next_id is not None and self._unseeded:
            rows = await self._rows.ancestors(self._namespace, self._next_id, rows_max)
            if not rows:
                self.is_whole = False
                self._next_id = None
            for row in rows:
                ancestor = open_checkpoint(self.sealer, row)
                ancestor.manifest.metadata.clear()  # it is not asked for here, and it may be most of what is kept
                await pauses.after(ancestor.opened_bytes)
                if ancestor.columns.checkpoint_id in self._columns:  # parents in a circle
                    self._next_id = None
                    break
                self._take(ancestor)
                if ancestor.columns.checkpoint_id == until:
                    return True
            rows_max = _ANCESTORS_ROWS
        return False

    def _take(self, ancestor: OpenedCheckpoint) -> None:
        columns = ancestor.columns
        self.ancestors.append(ancestor)
        self._columns[columns.checkpoint_id] = columns
        self._next_id = columns.parent_id
        held = {each.name for each in ancestor.manifest.channels}
        if self._names is not None:
            at = self._names.version_of(columns)
            held = {name for each in held for name in self._names.of(at, each)}
        self._depths[columns.checkpoint_id] = len(self._depths)
        for name in self._unseeded.keys() & held:
            self.seeds[name] = ancestor
            del self._unseeded[name]

    def is_elsewhere(self, seed: OpenedCheckpoint) -> bool:
        """Whether a channel's value is what another version makes of the whole state that holds it."""
        return self._names is not None and self._names.differs(self._names.version_of(seed.columns))

    async def writes(self, checkpoints: Iterable[OpenedCheckpoint]) -> list[WriteRow]:
        """Rows of all writes to these checkpoints."""
        ids = [each.columns.checkpoint_id for each in checkpoints]
        return await self._rows.writes_of(self._namespace, ids)

    async def history(
        self, name: str, writes: Iterable[OpenedWrite], reader: PieceReader, *, continues: bool
    ) -> ChannelHistory:
        """A channel's history, as far as it is here, of the writes to it."""
        depths, seed = self._depths, self.seeds.get(name)
        deepest = len(depths) if seed is None else depths[seed.columns.checkpoint_id]
        own = [each for each in writes if depths.get(each.columns.checkpoint_id, deepest + 1) <= deepest]
        own.sort(key=lambda each: -depths[each.columns.checkpoint_id])  # stable: order inside a checkpoint stays
        values = [self._versioned(each, value) for each, value in zip(own, await values_of(own, reader), strict=True)]
        if seed is not None and self.is_elsewhere(seed):
            return ChannelHistory(writes=values, seed=None, seed_at=seed.columns.checkpoint_id)
        value = None if seed is None else seed.channel(name, reader)
        return ChannelHistory(writes=values, seed=value, continues=continues)

    def _version(self, names: WantedNames, write: OpenedWrite) -> Versioned:
        own = write.columns
        return own if own.state_schema is not None else names.version_of(self._columns[own.checkpoint_id])

    def names_of(self, write: OpenedWrite) -> frozenset[str]:
        """The names of the channels that a write to one of the ancestors is to."""
        if self._names is None:
            return frozenset({write.columns.channel})
        return frozenset(self._names.of(self._version(self._names, write), write.columns.channel))

    def _versioned(self, write: OpenedWrite, value: PendingWrite) -> PendingWrite:
        """A write's value, and the version it is at, also where that is its checkpoint's."""
        if self._names is None:
            return value
        at = self._version(self._names, write)
        return replace(value, state_schema=at.state_schema, state_version=at.state_version)
