"""Items on their way in: a path waits in a spool until all of it is here, and is written in one transaction.

What exists here is never touched: an item that is the same is passed over, and another one of its name stops the
import, or is passed over where that was asked for. Values, times and times to live stay as they are. So do revisions
where the path is new; where it has had a history here, all of them are raised by one number, because no two states of
a key may have one revision. An item that is stored gets the vectors that it came with, under the names that their
models have for the subject here; one that is passed over keeps what it has.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, NoReturn, cast

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.administration.audit import Audit
from storage.clear_vectors import rows as clear_rows
from storage.clear_vectors.policies import VectorsNow, vectors_now
from storage.concurrency.turns import Pauses
from storage.control.features import ITEMS
from storage.errors import ImportConflict, IntegrityFailure, InvalidState, LegalHold, LimitExceeded
from storage.format.chain import LiveSet
from storage.format.export import ItemRecord, PathEnding, PathRecord, RunningDigest, VectorsRecord, digested, encode
from storage.format.items.item import ItemColumns, key_id, open_item, path_id, seal_item
from storage.format.items.item import ItemRecord as SealedRecord
from storage.format.items.seals import PathSeal, item_mac
from storage.format.items.vectors import (
    Vector,
    VectorColumns,
    is_finite,
    model_id,
    seal_vectors,
    unpack_vectors,
    vectors_mac,
)
from storage.items.model import (
    ITEM_DIMENSIONS_MAX,
    ITEM_MODELS_MAX,
    ITEM_TTL_SECONDS_MAX,
    ITEM_VALUE_BYTES_MAX,
    ITEM_VECTORS_MAX,
    Labels,
    check_key,
    check_labels,
)
from storage.items.paths import LockedPath, add_paths, lock_paths, raise_floor, store_paths
from storage.items.vector_writes import remove_vectors
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.items import items as sql
from storage.statements.items import vectors as vectors_sql
from storage.statements.rules.retention import BEGIN_ROUNDS, holds_lock
from storage.threads.holds import tenant_is_held
from storage.transfer.exporting import Progress
from storage.transfer.items_rows import StoredPath, reads_back
from storage.transfer.rows import refuse
from storage.transfer.spool import Spool
from storage.transfer.stream import Stream

# Items of one round trip; each may have a quarter of a mebibyte, and so may the one that is here.
_BATCH_ROWS: Final = 32
# Bytes of vectors that are stored at once, or one row of them.
_VECTORS_BYTES: Final = 2 * 1024 * 1024
# The least sequence that no path may have: one more than an export can say.
_SEQUENCE_END: Final = 2**62
# How many items of a path are named of those that were passed over.
NAMED_MAX: Final = 1_000

PassedReason = Literal["exists", "expired"]
_record = msgspec.msgpack.Decoder(ItemRecord)
_vectors = msgspec.msgpack.Decoder(VectorsRecord)


@dataclass(slots=True)
class StagedPath:
    """A path that is here but not visible.

    Attributes:
        scope: The tenant and subject that it will belong to.
        share: The client's share that it will take; None: none.
        beginning: What it begins with.
        items: Its items, in the order of their revisions.
        vectors: Their vectors, each with the number of its item.
        models: For each item by how many models it has vectors.
        ending: What it ends with, once it is whole.
    """

    scope: Scope
    share: ClientShare | None
    beginning: PathRecord
    items: Spool = field(default_factory=Spool)
    vectors: Spool = field(default_factory=Spool)
    models: bytearray = field(default_factory=bytearray)
    ending: PathEnding | None = None

    def add(self, item: ItemRecord) -> None:
        """Take the next item."""
        self.items.add(encode(item))
        self.models.append(0)

    def add_vectors(self, vectors: VectorsRecord) -> None:
        """Take vectors of the last item."""
        self.vectors.add(self.items.count - 1, encode(vectors))
        self.models[-1] += 1

    @property
    def labels(self) -> Labels:
        """The labels of the path."""
        return tuple(self.beginning.labels)

    def close(self) -> None:
        """Let everything go."""
        self.items.close()
        self.vectors.close()


@dataclass(slots=True)
class Arrived:
    """What became of a path's items.

    Attributes:
        items: How many were stored.
        there: How many are here already, the same.
        passed_over: How many were not stored for another reason.
        passed: The keys of the first of these, each with the reason.
        path: What reads back, if anything was stored.
    """

    items: int = 0
    there: int = 0
    passed_over: int = 0
    passed: list[tuple[str, PassedReason]] = field(default_factory=list)
    path: StoredPath | None = None

    def pass_over(self, key: str, reason: PassedReason) -> None:
        """Count an item that was not stored."""
        self.passed_over += 1
        if len(self.passed) < NAMED_MAX:
            self.passed.append((key, reason))


class ItemsIn:
    """The way in of items."""

    def __init__(self, access: Access, audit: Audit) -> None:
        self._access = access
        self._audit = audit

    async def stage(
        self, stream: Stream, scope: Scope, beginning: PathRecord, progress: Progress, share: ClientShare | None
    ) -> StagedPath | None:
        """Take a path to its end; None: it takes a share, and there is none.

        Raises:
            ImportRefused: It is not what it says, or cannot be a path.
            FeatureOff: An older build may run here, which knows no items.
            RowQuotaExceeded: The tenant may store no more rows.
        """
        _check_labels(beginning)
        stream.thread = RunningDigest()
        stream.thread.add(digested(beginning, encode(beginning), ""))
        staged = StagedPath(scope, share if beginning.client_share else None, beginning)
        try:
            is_closed = beginning.client_share and share is None
            if not is_closed:
                await self._access.control.features.require(ITEMS, "items are stored")
                self._access.row_quotas.require_room(scope)
            await _take(stream, staged, progress)
        except BaseException:
            staged.close()
            raise
        finally:
            stream.thread = None
        if is_closed:
            staged.close()
            return None
        return staged

    async def settle(self, staged: StagedPath, actor: str, *, skip_existing: bool) -> Arrived:
        """Store a path, whole, as far as it is not here.

        Raises:
            ImportConflict: An item exists here with another content.
            ItemPathsExceeded: The subject has as many paths as it may.
            LegalHold: An item that is over here would be replaced, and the tenant is held.
            CommitUnknown: Perhaps it is stored.
        """
        await self._access.control.ready()

        async def attempt(sealer: Sealer) -> Arrived:
            async with self._access.unit_of_work.begin(staged.scope) as transaction:
                settling = _Settling(self._access, transaction, sealer, staged, skip_existing=skip_existing)
                arrived = await settling.run()
                if arrived.items:
                    target, detail = f"subject:{staged.scope.subject_id}", {"items": arrived.items}
                    await self._audit.append(transaction, staged.scope.tenant_id, actor, "import.items", target, detail)
                return arrived

        try:
            return await self._access.with_keys(staged.scope, attempt, staged.share)
        finally:
            staged.close()

    async def read_back(self, staged: StagedPath, arrived: Arrived) -> bool:
        """Whether what was stored of a path was opened again and is what was exported; else somebody wrote there since.

        Raises:
            IntegrityFailure: It does not read back as it was exported.
        """
        if arrived.path is None:
            return False
        try:
            return await reads_back(self._access, staged.scope, staged.share, arrived.path)
        except IntegrityFailure:
            self._access.found_damage()
            raise IntegrityFailure(
                f"items of subject {staged.scope.subject_id!r} were imported, but do not read back as they were"
                " exported"
            ) from None

    async def raise_floor(self, scope: Scope, floor: int) -> None:
        """Let the paths that a subject makes later begin where they would have begun in the other deployment.

        Raises:
            FeatureOff: An older build may run here, which knows no items.
            RowQuotaExceeded: The tenant may store no more rows.
            CommitUnknown: Perhaps it is stored.
        """
        await self._access.control.features.require(ITEMS, "items are stored")
        self._access.row_quotas.require_room(scope)
        await self._access.control.ready()

        async def attempt(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                await raise_floor(transaction, sealer, floor)

        await self._access.with_keys(scope, attempt, None)


async def _take(stream: Stream, staged: StagedPath, progress: Progress) -> None:
    last, last_model = 0, ("", 0)
    pauses = Pauses()
    while staged.ending is None:
        record = await stream.next()
        await progress.moved()
        match record:
            case ItemRecord():
                _check_item(record, last, staged.beginning.sequence)
                last, last_model = record.revision, ("", 0)
                staged.add(record)
            case VectorsRecord() if staged.items.count:
                if (record.model, record.dimensions) <= last_model:
                    refuse("the vectors of an item of the export are not in order")
                if staged.models[-1] == ITEM_MODELS_MAX:
                    refuse("the export has an item with vectors by more models than any may have")
                last_model = record.model, record.dimensions
                await _check_vectors(record, pauses)
                staged.add_vectors(record)
            case PathEnding():
                if (record.items, record.vectors) != (staged.items.count, staged.vectors.count):
                    refuse("a path of the export has other items than its end says")
                if stream.thread is None or stream.thread.digest() != record.digest:
                    refuse("a path of the export is not what its digest says")
                staged.ending = record
            case _:
                refuse("the export has a record where it cannot be")


def _check_labels(beginning: PathRecord) -> None:
    try:
        check_labels(tuple(beginning.labels), "", least=1)
    except (InvalidState, LimitExceeded):
        _refuse_name()


def _check_item(record: ItemRecord, last: int, sequence: int) -> None:
    try:
        check_key(record.key, "")
    except InvalidState:
        _refuse_name()
    if not last < record.revision <= sequence:
        refuse("the items of a path of the export are not in order")
    if len(record.data) > ITEM_VALUE_BYTES_MAX or not _is_map(record):
        refuse("the export has an item whose value none can have")
    if (record.ttl_seconds is None) != (record.expires_at is None):
        refuse("the export has an item that says when it is over and not how long it lives, or the contrary")
    if record.ttl_seconds is not None and record.ttl_seconds > ITEM_TTL_SECONDS_MAX:
        refuse("the export has an item that lives longer than any may")


async def _check_vectors(record: VectorsRecord, pauses: Pauses) -> None:
    try:
        vectors = unpack_vectors(record.data, record.dimensions)
    except ValueError:
        vectors = []
    if not 1 <= len(vectors) <= ITEM_VECTORS_MAX or record.dimensions > ITEM_DIMENSIONS_MAX:
        refuse("the export has other vectors than an item can have")
    for each in vectors:
        await pauses.after(len(each.codes) + len(each.direction))
        if not _can_be(each):
            refuse("the export has other vectors than an item can have")


def _can_be(vector: Vector) -> bool:
    return is_finite(vector) and vector.scale >= 0 and vector.length >= 0


def _refuse_name() -> NoReturn:
    refuse("the export has a path or a key of items that cannot be")  # and no word of it


def _is_map(record: ItemRecord) -> bool:
    first = record.data[0]
    if record.encoding == "json":
        return first == ord("{")
    return record.encoding == "msgpack" and (first & 0xF0 == 0x80 or first in {0xDE, 0xDF})


class _Settling:
    """One path's items, in the transaction that stores them. It is rolled back if this raises."""

    def __init__(
        self, access: Access, transaction: Transaction, sealer: Sealer, staged: StagedPath, *, skip_existing: bool
    ) -> None:
        self._access = access
        self._transaction = transaction
        self._sealer = sealer
        self._staged = staged
        self._skip_existing = skip_existing
        self._path = LockedPath(path_id(sealer, staged.labels), None, 0, LiveSet())
        self._incoming = _Vectors(staged.vectors)
        self._stored_items, self._stored_vectors = LiveSet(), LiveSet()
        self._raised_by: int | None = None
        self._ends = False
        self._in_clear = VectorsNow()
        self._pauses = Pauses()
        self._arrived = Arrived()

    async def run(self) -> Arrived:
        """Store what is not here; a path of which nothing is stored does not come into being."""
        scope, named = self._staged.scope, self._path.path_id
        await self._access.check_keys_in(self._transaction, scope, self._sealer)
        if self._staged.vectors.count and not self._sealer.shared:
            self._in_clear = await vectors_now(self._transaction, self._access.control, scope.tenant_id)
        locked = await lock_paths(self._transaction, self._sealer, [named], holds_lock(scope.tenant_id))
        if named not in locked:
            locked = await add_paths(self._transaction, self._sealer, {named: self._staged.labels})
        path = self._path = locked[named]
        before = path.sequence
        for first, batch in _batches(self._staged.items):
            await self._batch(first, batch)
        if self._arrived.items:
            path.sequence = max(path.sequence, self._staged.beginning.sequence + (self._raised_by or 0))
            if path.sequence >= _SEQUENCE_END:
                refuse("the export has revisions that are too great for what is here")
            seal, stored = PathSeal(path.items, path.vectors), PathSeal(self._stored_items, self._stored_vectors)
            self._arrived.path = StoredPath(named, before, path.sequence, seal, stored)
        if self._arrived.items or not path.items.count:
            await store_paths(self._transaction, self._sealer, [path])
        if self._ends:  # last: whoever waits here has all of its locks
            await self._transaction.run(BEGIN_ROUNDS, owner=scope.tenant_id)
        return self._arrived

    async def _batch(self, first: int, records: Sequence[ItemRecord]) -> None:
        """Store some items with their vectors; the first of them has the number ``first``."""
        in_path = self._path.path_id
        named = {key_id(self._sealer, in_path, each.key): each for each in records}
        if len(named) != len(records):
            refuse("a path of the export has a key twice")
        rows = await self._transaction.fetch_all(sql.FOUND, path_ids=[in_path] * len(named), key_ids=[*named])
        found = {row.key_id: row for row in rows}
        living = [each for each in named if found[each].revision is not None and not found[each].over]
        same = await self._same(living, named)
        puts, indexed = [], []
        revisions: dict[int, tuple[bytes, int]] = {}
        for number, (key, record) in enumerate(named.items(), first):
            await self._pauses.after(len(record.data))
            row = found[key]
            if key in same:
                self._arrived.there += 1
            elif row.revision is not None and not row.over:
                self._exists(record)
            elif record.expires_at is not None and record.expires_at <= row.now:
                self._arrived.pass_over(record.key, "expired")
            else:
                puts.append(self._put(key, record, row) | {"indexed": bool(self._staged.models[number])})
                self._ends |= record.expires_at is not None
                revisions[number] = key, self._path.sequence
                if row.indexed:
                    indexed.append((in_path, key))
        await remove_vectors(self._transaction, self._sealer, indexed, {in_path: self._path})
        if puts:
            await self._transaction.run_many(sql.PUT, puts)
            await self._put_vectors(revisions)

    async def _put_vectors(self, revisions: Mapping[int, tuple[bytes, int]]) -> None:
        """Store the vectors of items that were stored: by the number of each its key in rows, and its revision."""
        puts: list[dict[str, object]] = []
        size = 0
        for number, (key, revision) in revisions.items():
            async for put in self._sealed_vectors(number, key, revision):
                puts.append(put)
                size += len(cast(bytes, put["envelope"]))
                if size >= _VECTORS_BYTES:
                    await self._transaction.run_many(vectors_sql.PUT_VECTORS, puts)
                    puts, size = [], 0
        if puts:
            await self._transaction.run_many(vectors_sql.PUT_VECTORS, puts)

    async def _sealed_vectors(self, number: int, key: bytes, revision: int) -> AsyncIterator[dict[str, object]]:
        """What is stored of an item's vectors, after the path counts it."""
        for record in self._incoming.of(number):
            await self._pauses.after(len(record.data))
            named = model_id(self._sealer, record.model, record.dimensions)
            columns = VectorColumns(self._path.path_id, key, named, revision, revision)
            vectors = unpack_vectors(record.data, record.dimensions)
            sealed = seal_vectors(self._sealer, columns, record.model, vectors)
            counted = vectors_mac(self._sealer, columns, sealed.member)
            self._path.vectors = self._path.vectors.add(counted)
            self._stored_vectors = self._stored_vectors.add(counted)
            if self._in_clear.clear:
                await clear_rows.put(self._transaction, self._in_clear.required(), [(columns, vectors)])
            yield msgspec.structs.asdict(columns) | msgspec.structs.asdict(sealed)

    async def _same(self, living: Sequence[bytes], named: dict[bytes, ItemRecord]) -> set[bytes]:
        """Those of some items that are here with the content that the export has."""
        if not living:
            return set()
        rows = await self._transaction.fetch_all(
            sql.NAMED, path_ids=[self._path.path_id] * len(living), key_ids=[*living]
        )
        same = set()
        for row in rows:
            await self._pauses.after(len(row.envelope))
            there = named[row.key_id]
            try:
                here = open_item(self._sealer, row.columns, row.envelope, row.member)
            except IntegrityFailure:
                self._access.found_damage()  # whatever it was, it is another one now
                continue
            if (here.encoding, here.data, row.ttl_seconds) == (there.encoding, there.data, there.ttl_seconds):
                same.add(row.key_id)
        return same

    def _exists(self, record: ItemRecord) -> None:
        if not self._skip_existing:
            raise ImportConflict(
                f"an item of subject {self._staged.scope.subject_id!r} exists here with another content; nothing of its"
                " path was changed. An import that passes over what exists names it"
            )
        self._arrived.pass_over(record.key, "exists")

    def _put(self, key: bytes, record: ItemRecord, row: sql.FoundRow) -> dict[str, object]:
        """What is stored of an item, after the path counts it."""
        path = self._path
        if row.member is not None:
            if tenant_is_held(self._access.control, self._staged.scope.tenant_id, row.tenant_policy):
                raise LegalHold
            path.items = path.items.subtract(item_mac(self._sealer, path.path_id, key, row.member))
        if self._raised_by is None:
            self._raised_by = max(0, path.sequence + 1 - record.revision)
        path.sequence = record.revision + self._raised_by
        columns = ItemColumns(
            path.path_id, key, path.sequence, record.ttl_seconds, record.created_at, record.updated_at
        )  # fmt: skip
        sealed = seal_item(self._sealer, columns, SealedRecord(record.key, record.encoding, record.data))
        counted = item_mac(self._sealer, path.path_id, key, sealed.member)
        path.items, self._stored_items = path.items.add(counted), self._stored_items.add(counted)
        self._arrived.items += 1
        return msgspec.structs.asdict(columns) | {
            "expires_at": _expires_at(record, row.now), "member": sealed.member, "envelope": sealed.envelope,
        }  # fmt: skip


def _expires_at(record: ItemRecord, now: datetime) -> datetime | None:
    """When an item is over; never later than if it were read now, by the clock here."""
    if record.expires_at is None or record.ttl_seconds is None:
        return None
    return min(record.expires_at, now + timedelta(seconds=record.ttl_seconds))


class _Vectors:
    """The vectors of a path's items, in the order of the items."""

    def __init__(self, vectors: Spool) -> None:
        self._rest = iter(vectors)
        self._next = next(self._rest, None)

    def of(self, number: int) -> Iterator[VectorsRecord]:
        """Those of an item; those of items before it are passed over."""
        while self._next is not None and self._next[0] <= number:
            if self._next[0] == number:
                yield _vectors.decode(self._next[1])
            self._next = next(self._rest, None)


def _batches(items: Spool) -> Iterator[tuple[int, list[ItemRecord]]]:
    """The items some at a time, and the number of the first of them."""
    first, batch = 0, list[ItemRecord]()
    for (encoded,) in items:
        batch.append(_record.decode(encoded))
        if len(batch) == _BATCH_ROWS:
            yield first, batch
            first, batch = first + len(batch), []
    if batch:
        yield first, batch
