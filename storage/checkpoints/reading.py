"""Reading inside an open transaction: rows and pieces into opened records.

Every function sees one snapshot and either returns what authenticates or raises. Nothing here begins or ends a
transaction, and nothing is written.
"""

from collections.abc import Awaitable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from crypto import Sealer
from storage.access.completeness import check_writes
from storage.access.offload import RESOLVED_BYTES_MAX, Offload
from storage.checkpoints.piece_rows import open_pieces, open_writes, put_together, values_of
from storage.concurrency.room import taking
from storage.concurrency.turns import Pauses
from storage.errors import ClientShareRequired, ClientShareWrong, IntegrityFailure
from storage.format.chain import NO_WRITES, LiveSet, ThreadSeal
from storage.format.cold.segment import ColdSums
from storage.format.record import (
    CheckpointRow,
    OpenedCheckpoint,
    OpenedWrite,
    PieceReader,
    check_share,
    clear_checkpoint,
    open_checkpoint,
    open_thread_seal,
)
from storage.ledger.ledger import LiveBlob
from storage.model import Checkpoint, HistoryQuery, Page
from storage.postgres.unit_of_work import Transaction
from storage.schemas.tags import search_for
from storage.scope import Scope
from storage.statements.threads import checkpoints as sql
from storage.tiers.rows import Listing, PageEnds, Reference, Rows, history_order
from storage.tiers.snapshots import Snapshot, SubjectSnapshot

# How many rows a request may open to match metadata that tags do not find, before it answers with a cursor instead.
HISTORY_SCAN_ROWS_MAX = 10_000
# Opened state on one page of history; a page that reaches it ends early, with a cursor.
HISTORY_BYTES_MAX = 16 * 1024 * 1024
# Opened manifests on one page, likewise: a byte of metadata may become a list of 56 bytes when it is decoded.
HISTORY_MANIFESTS_BYTES_MAX = 1024 * 1024
_SCAN_ROWS = 500
_STATE_ROWS = 16
_ANCESTORS_ROWS = 256


async def one(rows: Rows, sealer: Sealer, namespace: str, checkpoint_id: str | None) -> OpenedCheckpoint | None:
    """One checkpoint, or None."""
    row = await rows.checkpoint(namespace, checkpoint_id)
    return None if row is None else open_checkpoint(sealer, row)


async def read_pieces(rows: Rows, reader: PieceReader, ids: Iterable[bytes]) -> None:
    """Read pieces, and whatever index pieces among them name, until nothing is missing that exists."""
    wanted = reader.missing(ids)
    while wanted:
        found = await rows.pieces(wanted)
        if len(found) != len(wanted):
            raise IntegrityFailure("a stored piece is missing")
        wanted = reader.add(found)
    await open_pieces(reader)


def statuses_of(writes: Iterable[OpenedWrite]) -> set[str]:
    """What tasks said that their outcome makes of the checkpoint they wrote against."""
    return {each.columns.status for each in writes if each.columns.status is not None}


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
    share opens what was made under it, and no share what was made without one; a damaged thread hides no other. The
    caller's sealer is ``own``.
    """

    def __init__(
        self,
        transaction: Transaction,
        sealer: Sealer,
        thread_id: str | None,
        thread: ThreadSeal | None,
    ) -> None:
        self._transaction = transaction
        self.own = sealer
        self._known: dict[str, Sealer | None] = {} if thread_id is None else {thread_id: sealer}
        self._seals: dict[str, ThreadSeal] = {} if thread_id is None or thread is None else {thread_id: thread}
        self._cold: dict[str, LiveSet] = {}
        self._damaged: set[str] = set()
        self.over_threads = thread_id is None

    async def learn(self, thread_ids: Iterable[str]) -> None:
        """Read the seals of threads that were not asked about before."""
        unknown = list({*thread_ids} - self._known.keys())
        if not unknown:
            return
        # A thread whose own row was taken away: what is left of it opens, or is found to be damaged.
        self._known.update(dict.fromkeys(unknown, self.own.without_share))
        for row in await self._transaction.fetch_all(sql.THREAD_SEALS, thread_ids=unknown):
            thread_id = row.thread_id
            try:
                thread = open_thread_seal(self.own, thread_id, row.created_at, row.seal)
                sums = ColdSums.open(self.own, thread_id, row.created_at, thread.incarnation, row.cold)
            except IntegrityFailure:
                self._known[thread_id] = None
                self._damaged.add(thread_id)
                continue
            self._seals[thread_id] = thread
            self._cold[thread_id] = sums.writes
            if thread.share_check is not None:
                self._known[thread_id] = None
                with suppress(ClientShareRequired, ClientShareWrong):
                    check_share(self.own, thread_id, thread)
                    self._known[thread_id] = self.own

    def of(self, thread_id: str) -> Sealer | None:
        """The sealer of a thread that was learned; None: its share is not here, or it is damaged."""
        return self._known[thread_id]

    def seal_of(self, thread_id: str) -> ThreadSeal | None:
        """The seal of a thread that was learned; None: it has no row."""
        return self._seals.get(thread_id)

    def cold_writes_of(self, thread_id: str) -> LiveSet:
        """The sum of the pending writes of a thread that was learned which are in segments."""
        return self._cold.get(thread_id, NO_WRITES)

    def opened(self, row: CheckpointRow) -> "Match":
        """A checkpoint row of a thread that was learned; over all threads, one that does not open is damaged.

        Raises:
            IntegrityFailure: it does not open, and its thread was asked for.
        """
        thread_id = row.thread_id
        sealer = self._known[thread_id]
        if sealer is None:
            return WithheldCheckpoint(row, is_damaged=thread_id in self._damaged)
        try:
            return open_checkpoint(sealer, row)
        except IntegrityFailure:
            if not self.over_threads:
                raise
            return WithheldCheckpoint(row, is_damaged=True)


@dataclass(frozen=True, slots=True)
class WithheldCheckpoint:
    """A checkpoint row whose thread is under a share that was not sent, or that is damaged."""

    row: CheckpointRow
    is_damaged: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """Where history has it: its id, thread and namespace."""
        return self.row.checkpoint_id, self.row.thread_id, self.row.namespace

    @property
    def parent_id(self) -> str | None:
        """The id of its parent; None: it has none."""
        return self.row.parent_id

    def value(self, reader: None, writes: None) -> Checkpoint:  # noqa: ARG002  as `OpenedCheckpoint.value`
        """Its clear columns."""
        return replace(clear_checkpoint(self.row, self.row.outcome), damaged=self.is_damaged)


Match = OpenedCheckpoint | WithheldCheckpoint


async def scan(rows: Listing, sealers: ThreadSealers, query: HistoryQuery) -> Page[Match]:
    """The rows of a page, and where the next one begins."""
    matches: list[Match] = []
    after = query.after
    looked_at = matched_bytes = 0
    pauses = Pauses()
    search = await search_for(rows, sealers.own, query)
    while True:
        size = min(_SCAN_ROWS, query.limit if not query.metadata else _SCAN_ROWS)
        found, ends_at = await _stretch(rows.history(query, search, after and after[:3], size))
        await sealers.learn(row.thread_id for row in found)
        for row in found:
            after = history_order(row)
            opened = sealers.opened(row)
            if isinstance(opened, WithheldCheckpoint):
                # What is damaged might have matched: there is no telling.
                if query.metadata and not opened.is_damaged:
                    continue
                matches.append(opened)
            else:
                await pauses.after(opened.opened_bytes)
                if not _contains(opened.manifest.metadata, query.metadata):
                    continue
                matches.append(opened)
                matched_bytes += opened.opened_bytes
            if len(matches) == query.limit or matched_bytes >= HISTORY_MANIFESTS_BYTES_MAX:
                return Page(matches, after)
        looked_at += len(found)
        if ends_at is not None or len(found) < size:
            return Page(matches, ends_at)
        if looked_at >= HISTORY_SCAN_ROWS_MAX:
            return Page(matches, after)


async def _stretch(history: Awaitable[list[CheckpointRow]]) -> tuple[Sequence[CheckpointRow], Reference | None]:
    """Rows of a page, and where it has to end for now."""
    try:
        return await history, None
    except PageEnds as ends:
        return ends.rows, ends.after


async def removed_parents(rows: Listing, page: Iterable[Match]) -> frozenset[Reference]:
    """Parents of a page's checkpoints that a prune removed: thread, namespace and id.

    Where the page has them all, nothing is asked.
    """
    own: set[Reference] = set()
    named: set[Reference] = set()
    for each in page:
        checkpoint_id, thread_id, namespace = each.place
        own.add((thread_id, namespace, checkpoint_id))
        if each.parent_id is not None:
            named.add((thread_id, namespace, each.parent_id))
    elsewhere = named - own
    return frozenset(elsewhere - await rows.stored(elsewhere)) if elsewhere else frozenset()


@dataclass(frozen=True, slots=True)
class Unjoined:
    """A checkpoint that was read, and what its values are put together from once the snapshot has ended.

    Attributes:
        matched: The checkpoint.
        writes: Its pending writes.
        reader: Has the pieces of both; None: the state was not read.
        is_damaged: Whether the checkpoint opened, and what belongs to it did not.
        is_parent_removed: Whether its parent is not there any more.
    """

    matched: Match
    writes: list[OpenedWrite]
    reader: PieceReader | None
    is_damaged: bool = False
    is_parent_removed: bool = False

    def without_parent_in(self, removed: Collection[Reference]) -> "Unjoined":
        """The same, whose parent may be one of those that were removed."""
        _, thread_id, namespace = self.matched.place
        if self.matched.parent_id is None or (thread_id, namespace, self.matched.parent_id) not in removed:
            return self
        return replace(self, is_parent_removed=True)

    def size(self) -> int:
        """What its values take on a page, in bytes."""
        reader, matched = self.reader, self.matched
        if reader is None or isinstance(matched, WithheldCheckpoint):
            return 0
        channels = sum(reader.size_of(each.body, matched.ids, each.leaves) for each in matched.manifest.channels)
        records = ((each.record, each.ids) for each in self.writes)
        return channels + sum(reader.size_of(each.body, ids, each.leaves) for each, ids in records)

    async def value(self, tenant_id: UUID) -> Checkpoint:
        """The checkpoint as callers see it."""
        shown = await self._value(tenant_id)
        return replace(shown, parent_id=None) if self.is_parent_removed else shown

    async def _value(self, tenant_id: UUID) -> Checkpoint:
        reader, matched = self.reader, self.matched
        if self.is_damaged:
            return replace(matched.value(None, None), withheld=True, damaged=True)
        if reader is None or isinstance(matched, WithheldCheckpoint):
            return matched.value(None, None)
        writes = await values_of(self.writes, reader)
        return await put_together(tenant_id, reader, matched, lambda: matched.value(reader, writes))


@dataclass(frozen=True, slots=True)
class Fetching:
    """The large pieces of one read that are still in the object store."""

    sealer: Sealer
    reader: PieceReader
    blobs: dict[UUID, LiveBlob]

    async def fill(self, offload: Offload, scope: Scope) -> None:
        """Fetch them, after the snapshot has ended; as `Offload.fill`."""
        await offload.fill(scope, self.sealer, self.reader, self.blobs)


async def filled(
    page: Page[Unjoined], fetching: Sequence[Fetching], offload: Offload, scope: Scope, *, one_thread: bool
) -> Page[Unjoined]:
    """A page with its large pieces, which are fetched here; what needs a damaged one is damaged.

    Raises:
        IntegrityFailure: an object is damaged, and it is a page of one thread.
        StorageError: as `Offload.fill`.
    """
    damaged: list[PieceReader] = []
    for each in fetching:
        try:
            await each.fill(offload, scope)
        except IntegrityFailure:
            if one_thread:
                raise
            damaged.append(each.reader)
    if not damaged:
        return page
    return Page(
        [
            replace(each, is_damaged=True) if any(each.reader is reader for reader in damaged) else each
            for each in page.items
        ],
        page.after,
    )


async def with_state(
    snapshot: Snapshot | SubjectSnapshot,
    offload: Offload,
    sealers: ThreadSealers,
    found: Page[Match],
    *,
    refs: bool,
) -> tuple[Page[Unjoined], list[Fetching]]:
    """Read writes and pieces for a page, a few checkpoints at a time, until the byte budget is spent."""
    matches, page = found.items, list[Unjoined]()
    readers: dict[str, PieceReader] = {}

    async def fetching() -> list[Fetching]:
        return [
            Fetching(sealer, reader, await offload.find(snapshot.transaction, sealer, reader))
            for thread_id, reader in readers.items()
            if (sealer := sealers.of(thread_id)) is not None
        ]

    spent = 0
    for start in range(0, len(matches), _STATE_ROWS):
        for place, matched in _by_place(matches[start : start + _STATE_ROWS]):
            thread_id = place[0]
            try:
                joined = await _joined(snapshot.rows_of(thread_id), sealers, readers, thread_id, matched, refs=refs)
            except IntegrityFailure:
                if not sealers.over_threads:
                    raise
                joined = [Unjoined(each, [], None, is_damaged=True) for each in matched]
            for each in joined:
                page.append(each)
                spent += each.size()
                checkpoint_id, _, namespace = each.matched.place
                if spent >= HISTORY_BYTES_MAX and len(page) < len(matches):
                    return Page(page, (checkpoint_id, thread_id, namespace)), await fetching()
    return Page(page, found.after), await fetching()


async def _joined(
    rows: Rows,
    sealers: ThreadSealers,
    readers: dict[str, PieceReader],
    thread_id: str,
    matched: Sequence[Match],
    *,
    refs: bool,
) -> list[Unjoined]:
    """Checkpoints of one thread and namespace, with their pending writes, and the reader that has their pieces."""
    sealer = sealers.of(thread_id)
    if sealer is None:
        return [Unjoined(each, [], None) for each in matched]
    if thread_id not in readers:
        cold = rows.cold_writes.join(sealers.cold_writes_of(thread_id))
        await check_writes(sealer, await rows.members(), sealers.seal_of(thread_id), cold)
        # A page that has reached its size ends with the checkpoint that did: that one must fit, too.
        page_bytes_max = HISTORY_BYTES_MAX + RESOLVED_BYTES_MAX
        readers[thread_id] = PieceReader(sealer, refs=refs, bytes_max=page_bytes_max, take=taking())
    reader = readers[thread_id]
    group = [each for each in matched if isinstance(each, OpenedCheckpoint)]
    writes = await _read_group(rows, sealer, reader, group)
    return [
        Unjoined(each, writes.get(each.columns.checkpoint_id, []), reader)
        if isinstance(each, OpenedCheckpoint)
        else Unjoined(each, [], None)
        for each in matched
    ]


async def _read_group(
    rows: Rows, sealer: Sealer, reader: PieceReader, group: Sequence[OpenedCheckpoint]
) -> dict[str, list[OpenedWrite]]:
    """Read the pending writes of checkpoints of one namespace, by checkpoint, and the pieces of both."""
    if not group:
        return {}
    ids = [each.columns.checkpoint_id for each in group]
    writes: dict[str, list[OpenedWrite]] = {}
    for each in await open_writes(sealer, await rows.writes_of(group[0].columns.namespace, ids)):
        writes.setdefault(each.columns.checkpoint_id, []).append(each)
    for opened in group:
        opened.check_outcome(statuses_of(writes.get(opened.columns.checkpoint_id, ())))
    await read_pieces(rows, reader, ids_of(group) + ids_of(each for some in writes.values() for each in some))
    return writes


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
