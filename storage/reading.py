"""Reading inside an open transaction: rows and pieces into opened records.

Every function sees one snapshot and either returns what authenticates or raises. Nothing here begins or ends a
transaction, and nothing is written.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from crypto import Sealer
from storage.blob_ledger import LiveBlob
from storage.completeness import admit_reader, check_absent, check_count, check_token, check_writes
from storage.errors import CheckpointNotFound, ClientShareRequired, ClientShareWrong, IntegrityFailure
from storage.format.chain import NO_WRITES, LiveSet, ThreadSeal
from storage.format.manifest import CheckpointColumns, WriteColumns
from storage.format.record import (
    OpenedCheckpoint,
    OpenedWrite,
    PieceReader,
    check_share,
    clear_checkpoint,
    open_checkpoint,
    open_head,
    open_thread_seal,
    open_write,
)
from storage.model import ChannelHistory, Checkpoint, HistoryQuery, Page, PendingWrite
from storage.offload import Offload
from storage.postgres import checkpoints as sql
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.tags import search_for
from storage.versions import WantedNames

# How many rows a request may open to match metadata that tags do not find, before it answers with a cursor instead.
HISTORY_SCAN_ROWS_MAX = 10_000
# Opened state on one page of history; a page that reaches it ends early, with a cursor.
HISTORY_BYTES_MAX = 16 * 1024 * 1024
_SCAN_ROWS = 500
_STATE_ROWS = 16
_ANCESTORS_ROWS = 256


async def one(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
) -> OpenedCheckpoint | None:
    """One checkpoint, or None."""
    row = await transaction.fetchrow(sql.ONE, scope.tenant_id, scope.subject_id, thread_id, namespace, checkpoint_id)
    return None if row is None else open_checkpoint(sealer, row)


async def read_chunks(
    transaction: Transaction, scope: Scope, reader: PieceReader, thread_id: str, ids: Iterable[bytes]
) -> None:
    """Read pieces, and whatever index pieces among them name, until nothing is missing that exists."""
    wanted = reader.missing(ids)
    while wanted:
        rows = await transaction.fetch(sql.CHUNKS, scope.tenant_id, scope.subject_id, thread_id, wanted)
        found = [(row["piece_id"], row["children"], row["named_ids"], row["envelope"]) for row in rows]
        if len(found) != len(wanted):
            raise IntegrityFailure("a stored piece is missing")
        wanted = reader.add(found)


def open_write_arrays(sealer: Sealer, row: Any) -> list[OpenedWrite]:
    """Pending writes that came as parallel arrays in the row of a load."""
    names = [*WriteColumns.__struct_fields__, "value", "member"]
    arrays = [row[f"w_{name}"] for name in names]
    if arrays[0] is None:
        return []
    return [open_write(sealer, dict(zip(names, values, strict=True))) for values in zip(*arrays, strict=True)]


def sum_of(writes: Iterable[OpenedWrite]) -> LiveSet:
    """What a seal must say of these writes."""
    total = NO_WRITES
    for each in writes:
        total = total.add(each.mac)
    return total


def ids_of(records: Iterable[OpenedCheckpoint | OpenedWrite]) -> list[bytes]:
    """The pieces these records name directly."""
    return [piece_id for each in records for piece_id in each.ids]


def _contains(found: Any, wanted: Any) -> bool:
    """Whether ``found`` has everything ``wanted`` has; objects recursively, everything else by equality."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            name in found and _contains(found[name], value) for name, value in wanted.items()
        )
    return bool(found == wanted)


class ThreadSealers:
    """Which sealer opens the rows of which thread on a page of history, and what the thread's seal says.

    Where one thread is asked for it is the caller's, who has admitted it as ``thread``. Over all threads the caller's
    share opens what was made under it, and no share what was made without one.
    """

    def __init__(
        self,
        transaction: Transaction,
        scope: Scope,
        sealer: Sealer,
        thread_id: str | None,
        thread: ThreadSeal | None,
    ) -> None:
        self._transaction = transaction
        self._scope = scope
        self._sealer = sealer
        self._known: dict[str, Sealer | None] = {} if thread_id is None else {thread_id: sealer}
        self._seals: dict[str, ThreadSeal] = {} if thread_id is None or thread is None else {thread_id: thread}

    @property
    def own(self) -> Sealer:
        """The caller's."""
        return self._sealer

    async def learn(self, thread_ids: Iterable[str]) -> None:
        """Read the seals of threads that were not asked about before."""
        unknown = list({*thread_ids} - self._known.keys())
        if not unknown:
            return
        # A thread whose own row was taken away: what is left of it opens, or is found to be damaged.
        self._known.update(dict.fromkeys(unknown, self._sealer.without_share))
        rows = await self._transaction.fetch(sql.THREAD_SEALS, self._scope.tenant_id, self._scope.subject_id, unknown)
        for row in rows:
            thread_id = row["thread_id"]
            thread = open_thread_seal(self._sealer, thread_id, row["created_at"], row["seal"])
            self._seals[thread_id] = thread
            if thread.share_check is not None:
                self._known[thread_id] = None
                with suppress(ClientShareRequired, ClientShareWrong):
                    check_share(self._sealer, thread_id, thread)
                    self._known[thread_id] = self._sealer

    def of(self, thread_id: str) -> Sealer | None:
        """The sealer of a thread that was learned; None: its share is not here."""
        return self._known[thread_id]

    def seal_of(self, thread_id: str) -> ThreadSeal | None:
        """The seal of a thread that was learned; None: it has no row."""
        return self._seals.get(thread_id)


@dataclass(frozen=True, slots=True)
class WithheldCheckpoint:
    """A checkpoint row whose thread is under a share that was not sent."""

    row: Any

    @property
    def place(self) -> tuple[str, str, str]:
        """As `OpenedCheckpoint.place`."""
        return self.row["checkpoint_id"], self.row["thread_id"], self.row["namespace"]

    def value(self, reader: None, writes: None) -> Checkpoint:  # noqa: ARG002  as `OpenedCheckpoint.value`
        """Its clear columns."""
        return clear_checkpoint(self.row)


Match = OpenedCheckpoint | WithheldCheckpoint


async def scan(
    transaction: Transaction, scope: Scope, sealers: ThreadSealers, query: HistoryQuery
) -> tuple[list[Match], tuple[str, ...] | None]:
    """The rows of a page, and where the next one begins."""
    matches: list[Match] = []
    after = query.after
    looked_at = 0
    search = await search_for(transaction, scope, sealers.own, query)
    while True:
        size = min(_SCAN_ROWS, query.limit if not query.metadata else _SCAN_ROWS)
        rows = await transaction.fetch(
            search.statement,
            scope.tenant_id,
            scope.subject_id,
            query.thread_id,
            query.namespace,
            query.before,
            query.status,
            query.step,
            query.run_id,
            query.source,
            query.agent,
            query.since,
            query.until,
            *(after[:3] if after else (None, None, None)),
            size,
            *search.arguments,
        )
        await sealers.learn(row["thread_id"] for row in rows)
        for row in rows:
            after = (row["checkpoint_id"], row["thread_id"], row["namespace"])
            sealer = sealers.of(row["thread_id"])
            if sealer is None:
                if query.metadata:
                    continue
                matches.append(WithheldCheckpoint(row))
            else:
                opened = open_checkpoint(sealer, row)
                if not _contains(opened.manifest.metadata, query.metadata):
                    continue
                matches.append(opened)
            if len(matches) == query.limit:
                return matches, after
        looked_at += len(rows)
        if len(rows) < size:
            return matches, None
        if looked_at >= HISTORY_SCAN_ROWS_MAX:
            return matches, after


@dataclass(frozen=True, slots=True)
class Unjoined:
    """A checkpoint that was read, and what its values are put together from once the snapshot has ended."""

    matched: Match
    writes: list[OpenedWrite]
    reader: PieceReader | None

    def value(self) -> Checkpoint:
        """The checkpoint as callers see it."""
        if self.reader is None or isinstance(self.matched, WithheldCheckpoint):
            return self.matched.value(None, None)
        return self.matched.value(self.reader, [each.value(self.reader) for each in self.writes])


@dataclass(frozen=True, slots=True)
class Fetching:
    """The large pieces of one read that are still in the object store."""

    sealer: Sealer
    reader: PieceReader
    blobs: dict[UUID, LiveBlob]

    async def fill(self, offload: Offload, scope: Scope) -> None:
        """Fetch them, after the snapshot has ended; as `Offload.fill`."""
        await offload.fill(scope, self.sealer, self.reader, self.blobs)


async def with_state(  # noqa: C901  two early ends of one walk
    transaction: Transaction,
    scope: Scope,
    offload: Offload,
    sealers: ThreadSealers,
    matches: list[Match],
    after: tuple[str, ...] | None,
    *,
    refs: bool,
) -> tuple[Page[Unjoined], list[Fetching]]:
    """Read writes and pieces for a page, a few checkpoints at a time, until the byte budget is spent."""
    page: list[Unjoined] = []
    readers: dict[str, PieceReader] = {}

    async def fetching() -> list[Fetching]:
        found = []
        for thread_id, reader in readers.items():
            sealer = sealers.of(thread_id)
            if sealer is not None:
                found.append(Fetching(sealer, reader, await offload.find(transaction, scope, sealer, reader)))
        return found

    spent = 0
    for start in range(0, len(matches), _STATE_ROWS):
        for place, matched in _by_place(matches[start : start + _STATE_ROWS]):
            thread_id, namespace = place
            sealer = sealers.of(thread_id)
            group = [each for each in matched if isinstance(each, OpenedCheckpoint)]
            if sealer is None:
                page.extend(Unjoined(each, [], None) for each in matched)
                continue
            rows = await transaction.fetch(
                sql.WRITES_OF,
                scope.tenant_id,
                scope.subject_id,
                thread_id,
                namespace,
                [each.columns.checkpoint_id for each in group],
                None,
                None,
            )
            writes: dict[str, list[OpenedWrite]] = {}
            for row in rows:
                writes.setdefault(row["checkpoint_id"], []).append(open_write(sealer, row))
            if thread_id not in readers:
                await check_writes(transaction, scope, sealer, thread_id, sealers.seal_of(thread_id))
                readers[thread_id] = PieceReader(sealer, refs=refs)
            reader = readers[thread_id]
            ids = ids_of(group) + ids_of(each for some in writes.values() for each in some)
            await read_chunks(transaction, scope, reader, thread_id, ids)
            for opened in group:
                own = writes.get(opened.columns.checkpoint_id, [])
                page.append(Unjoined(opened, own, reader))
                spent += sum(reader.size_of(each.body, opened.ids) for each in opened.manifest.channels)
                spent += sum(reader.size_of(each.record.body, each.ids) for each in own)
                last = (opened.columns.checkpoint_id, thread_id, namespace)
                if spent >= HISTORY_BYTES_MAX and len(page) < len(matches):
                    return Page(page, last), await fetching()
    return Page(page, after), await fetching()


def _by_place(rows: Sequence[Match]) -> list[tuple[tuple[str, str], list[Match]]]:
    """Neighbouring checkpoints of the same thread and namespace, in order."""
    groups: list[tuple[tuple[str, str], list[Match]]] = []
    for each in rows:
        place = each.place[1:]
        if groups and groups[-1][0] == place:
            groups[-1][1].append(each)
        else:
            groups.append((place, [each]))
    return groups


async def channel_history(
    transaction: Transaction,
    scope: Scope,
    sealer: Sealer,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    channels: Sequence[str],
    known_token: str | None,
    offload: Offload,
    *,
    refs: bool,
    names: WantedNames | None,
) -> tuple[Callable[[], dict[str, ChannelHistory]], Fetching]:
    """What `Checkpoints.channel_history` promises, in an open snapshot: how to put it together, and what to fetch."""
    place = (scope.tenant_id, scope.subject_id, thread_id, namespace)
    if known_token is not None:
        await check_token(transaction, scope, sealer, thread_id, known_token)
    thread = await admit_reader(transaction, scope, sealer, thread_id)
    row = await transaction.fetchrow(sql.HEAD, *place)
    if row is None:
        await check_absent(transaction, scope, sealer, thread_id, namespace)
        raise CheckpointNotFound
    head = open_head(sealer, thread_id, namespace, row["head_id"], row["sequence"], row["seal"])
    target = await one(transaction, scope, sealer, thread_id, namespace, checkpoint_id or row["head_id"])
    if target is None:
        await check_count(transaction, scope, thread_id, namespace, head)
        raise CheckpointNotFound
    ancestry = Ancestry(names)
    lines, seeds, found_all = await _walk(transaction, sealer, place, target.columns.parent_id, channels, ancestry)
    if not found_all:
        await check_count(transaction, scope, thread_id, namespace, head)
    ancestors = max((len(line) for line in lines.values()), default=0)
    longest = next((line for line in lines.values() if len(line) == ancestors), [])
    if longest:
        await check_writes(transaction, scope, sealer, thread_id, thread)
    rows = await ancestry.writes(transaction, place, longest, channels, target)
    known_as = [(each, ancestry.names_of(each)) for each in (open_write(sealer, row) for row in rows)]
    opened = [each for each, own_names in known_as if not own_names.isdisjoint(channels)]
    reader = PieceReader(sealer, refs=refs)
    here = [each for each in seeds.values() if not ancestry.is_elsewhere(each)]
    await read_chunks(transaction, scope, reader, thread_id, ids_of([*opened, *here]))

    def together() -> dict[str, ChannelHistory]:
        result: dict[str, ChannelHistory] = {}
        for name in channels:
            depth = {each: at for at, each in enumerate(lines[name])}
            own = [each for each, as_ in known_as if name in as_ and each.columns.checkpoint_id in depth]
            own.sort(key=lambda each: -depth[each.columns.checkpoint_id])  # stable: order inside a checkpoint stays
            writes = [ancestry.versioned(each, each.value(reader)) for each in own]
            result[name] = ancestry.history(name, writes, seeds.get(name), reader)
        return result

    return together, Fetching(sealer, reader, await offload.find(transaction, scope, sealer, reader))


class Ancestry:
    """Ancestors' channels and writes by the names of a reader, who may be at another version than they are."""

    def __init__(self, names: WantedNames | None) -> None:
        self._names = names
        self._columns: dict[str, CheckpointColumns] = {}
        self.differs = False

    def held(self, ancestor: OpenedCheckpoint) -> set[str]:
        """Take an ancestor; returns the names of the channels that it holds."""
        stored = [each.name for each in ancestor.manifest.channels]
        columns = ancestor.columns
        if self._names is None:
            return set(stored)
        self._columns[columns.checkpoint_id] = columns
        self.differs = self.differs or self._names.differs(columns)
        return {name for each in stored for name in self._names.of(columns, each)}

    def is_elsewhere(self, seed: OpenedCheckpoint) -> bool:
        """Whether a channel's value is what another version makes of the whole state that holds it."""
        return self._names is not None and self._names.differs(seed.columns)

    async def writes(
        self,
        transaction: Transaction,
        place: tuple[Any, ...],
        ancestors: Sequence[str],
        channels: Sequence[str],
        target: OpenedCheckpoint,
    ) -> list[Any]:
        """Rows of all writes to the ancestors that may be to these channels."""
        if self._names is None:
            return await transaction.fetch(sql.WRITES_OF, *place, ancestors, list(channels), None)
        at = self._names.version_of(target.columns)
        return await transaction.fetch(sql.WRITES_BY_VERSION, *place, ancestors, list(channels), self.differs, at)

    def history(
        self, name: str, writes: list[PendingWrite], seed: OpenedCheckpoint | None, reader: PieceReader
    ) -> ChannelHistory:
        """A channel's history, as far as it is here."""
        if seed is not None and self.is_elsewhere(seed):
            return ChannelHistory(writes=writes, seed=None, seed_at=seed.columns.checkpoint_id)
        return ChannelHistory(writes=writes, seed=None if seed is None else seed.channel(name, reader))

    def _version(self, write: OpenedWrite) -> WriteColumns | CheckpointColumns:
        return write.columns if write.columns.state_schema is not None else self._columns[write.columns.checkpoint_id]

    def names_of(self, write: OpenedWrite) -> frozenset[str]:
        """The names of the channels that a write to one of the ancestors is to."""
        if self._names is None:
            return frozenset({write.columns.channel})
        return frozenset(self._names.of(self._version(write), write.columns.channel))

    def versioned(self, write: OpenedWrite, value: PendingWrite) -> PendingWrite:
        """A write's value, and the version it is at, also where that is its checkpoint's."""
        if self._names is None:
            return value
        at = self._version(write)
        return replace(value, state_schema=at.state_schema, state_version=at.state_version)


async def _walk(
    transaction: Transaction,
    sealer: Sealer,
    place: tuple[Any, ...],
    parent_id: str | None,
    channels: Sequence[str],
    ancestry: Ancestry,
) -> tuple[dict[str, list[str]], dict[str, OpenedCheckpoint], bool]:
    """For each channel its ancestors, nearest first, up to and with the one that holds a value, if any.

    The third result is false when an ancestor was not there: it was removed, or is a parent that never was.
    """
    lines: dict[str, list[str]] = {name: [] for name in channels}
    seeds: dict[str, OpenedCheckpoint] = {}
    seen: set[str] = set()
    while parent_id is not None and parent_id not in seen and len(seeds) < len(lines):
        rows = await transaction.fetch(sql.ANCESTORS, *place, parent_id, _ANCESTORS_ROWS)
        if not rows:
            return lines, seeds, False
        for row in rows:
            ancestor = open_checkpoint(sealer, row)
            if ancestor.columns.checkpoint_id in seen:
                return lines, seeds, True
            seen.add(ancestor.columns.checkpoint_id)
            held = ancestry.held(ancestor)
            for name in channels:
                if name not in seeds:
                    lines[name].append(ancestor.columns.checkpoint_id)
                    if name in held:
                        seeds[name] = ancestor
            parent_id = ancestor.columns.parent_id
    return lines, seeds, True
