"""Writing items: one transaction for all writes of a request, under the locks of their paths.

Each write is decided on its own by what is stored and by what the writes before it in the request did: one whose
condition does not hold is refused, and the others happen, unless the request is all or nothing. Nothing that a client
can cause fails in a statement. Of several writes to one name only the last one's row is stored.

A write that replaces or deletes takes something away, so a legal hold on the tenant refuses it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from crypto import Sealer
from storage.access.sealing import Sealing
from storage.concurrency.turns import Pauses
from storage.errors import (
    IntegrityFailure,
    ItemExists,
    ItemModelsExceeded,
    ItemMoved,
    ItemNotFound,
    ItemPathsExceeded,
    LegalHold,
    LostRaceError,
    RowQuotaExceeded,
    StorageError,
)
from storage.format.items.item import ItemColumns, ItemRecord, SealedItem, key_id, open_item, path_id, seal_item
from storage.format.items.seals import item_mac
from storage.items.model import ItemWrite, Labels, Written
from storage.items.paths import LockedPath, add_paths, lock_paths, store_paths
from storage.items.vector_writes import VectorWrites
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import items as sql
from storage.statements.items import paths as paths_sql
from storage.statements.rules.retention import BEGIN_ROUNDS, holds_lock
from storage.threads.holds import tenant_is_held

_CHECKED_AT_ONCE: Final = 16  # items of 256 KiB
Place = tuple[bytes, bytes]
Outcome = Written | StorageError


@dataclass(frozen=True, slots=True)
class _Living:
    """What lives under a name, as the writes of the request find it one after the other."""

    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class _Put:
    columns: ItemColumns
    expires_at: datetime | None
    record: ItemRecord


class Writing:
    """The writes of one request, in its transaction.

    Args:
        access: The way to the subject's keys, and what holds and quotas are asked.
        transaction: It is rolled back if this raises.
        scope: The tenant and subject.
        sealer: The scope's.
    """

    def __init__(self, access: Sealing, transaction: Transaction, scope: Scope, sealer: Sealer) -> None:
        self._access = access
        self._transaction = transaction
        self._scope = scope
        self._sealer = sealer
        self._paths: dict[bytes, LockedPath] = {}
        self._rows: dict[Place, sql.FoundRow] = {}
        self._living: dict[Place, _Living | None] = {}
        self._final: dict[Place, _Put | None] = {}
        self._vectors = VectorWrites(transaction, sealer, access.control, scope)
        self._held: bool | None = None
        self._pauses = Pauses()

    async def run(self, writes: Sequence[ItemWrite]) -> list[Outcome]:
        """Decide on each write in turn, and store what comes of all of them.

        Raises:
            ClearVectorsUnavailable: The tenant's vectors are to be in clear, and there is no table for them.
            IntegrityFailure: A path, or what could hold the tenant's items, was edited outside the gateway.
            KeyDestroyed: The sealer's keys are not the stored ones.
            LostRaceError: Another transaction made one of the paths at this moment.
        """
        places = [self._place(each) for each in writes]
        names = sorted({*places})
        lock = holds_lock(self._scope.tenant_id)
        self._paths = await lock_paths(self._transaction, self._sealer, {place[0] for place in places}, lock)
        path_ids, key_ids = zip(*names, strict=True)
        rows = await self._transaction.fetch_all(sql.FOUND, path_ids=list(path_ids), key_ids=list(key_ids))
        self._access.check_keys(self._scope, self._sealer, rows[0].keys_hash)
        self._rows = {(row.path_id, row.key_id): row for row in rows}
        self._living = {place: _living_in(row) for place, row in self._rows.items()}
        await self._refuse_strays()
        await self._vectors.look(place for place, row in self._rows.items() if row.indexed)
        await self._check_revisions(
            dict.fromkeys(p for p, w in zip(places, writes, strict=True) if w.if_revision is not None)
        )
        room = self._access.row_quotas.has_room(self._scope)
        refused = await self._add_paths(zip(places, writes, strict=True)) if room else {}
        outcomes: list[Outcome] = []
        for place, write in zip(places, writes, strict=True):
            if write.value is None and not write.vectors:
                outcomes.append(self._deleted(place, write))
            elif not room:
                outcomes.append(RowQuotaExceeded())
            elif write.value is None:
                outcomes.append(self._indexed(place, write))
            else:
                outcomes.append(refused.get(place[0]) or self._put(place, write, rows[0].now))
        await self._store()
        return outcomes

    def _place(self, write: ItemWrite) -> Place:
        in_path = path_id(self._sealer, write.name.path)
        return in_path, key_id(self._sealer, in_path, write.name.key)

    async def _refuse_strays(self) -> None:
        """Refuse items that are in no path that is locked.

        Raises:
            LostRaceError: Another transaction made their path at this moment.
            IntegrityFailure: Their path was removed outside the gateway.
        """
        strays = [
            place for place, row in self._rows.items() if row.revision is not None and place[0] not in self._paths
        ]
        if not strays:
            return
        wanted = {place[0] for place in strays}
        there = await self._transaction.fetch_all(paths_sql.PATHS, path_ids=list(wanted))
        if len(there) < len(wanted) and await self._named(strays):
            raise IntegrityFailure("a path of items was removed outside the gateway")
        raise LostRaceError

    async def _check_revisions(self, places: Iterable[Place]) -> None:
        """Check that what is stored was put at the revision that its row says, where that decides.

        Raises:
            IntegrityFailure: A column was edited outside the gateway.
        """
        stored = [each for each in places if self._rows[each].revision is not None]
        for start in range(0, len(stored), _CHECKED_AT_ONCE):
            for row in await self._named(stored[start : start + _CHECKED_AT_ONCE]):
                await self._pauses.after(len(row.envelope))
                open_item(self._sealer, row.columns, row.envelope, row.member)

    async def _named(self, places: Sequence[Place]) -> list[sql.ItemRow]:
        if not places:
            return []
        path_ids, key_ids = zip(*places, strict=True)
        return await self._transaction.fetch_all(sql.NAMED, path_ids=list(path_ids), key_ids=list(key_ids))

    async def _add_paths(self, writes: Iterable[tuple[Place, ItemWrite]]) -> dict[bytes, StorageError]:
        """Make the paths that something is to be put into; returns those that cannot be made."""
        missing: dict[bytes, Labels] = {
            in_path: write.name.path
            for (in_path, _), write in writes
            if in_path not in self._paths and write.value is not None and write.if_revision is None
        }
        if not missing:
            return {}
        try:
            self._paths |= await add_paths(self._transaction, self._sealer, missing)
        except ItemPathsExceeded as exceeded:
            return dict.fromkeys(missing, exceeded)
        return {}

    # --- one write ---------------------------------------------------------------------------------------------------

    def _put(self, place: Place, write: ItemWrite, now: datetime) -> Outcome:
        living = self._living[place]
        refusal = _refusal(write, living) or (self._hold() if self._rows[place].revision is not None else None)
        if refusal is not None:
            return refusal
        assert write.value is not None  # noqa: S101  for the type checker: the caller looked
        path = self._paths[place[0]]
        path.sequence += 1
        created_at = now if living is None else living.created_at
        columns = ItemColumns(*place, path.sequence, write.ttl_seconds, created_at, now)
        expires_at = None if write.ttl_seconds is None else now + timedelta(seconds=write.ttl_seconds)
        record = ItemRecord(write.name.key, write.value.encoding, write.value.data)
        self._final[place] = _Put(columns, expires_at, record)
        self._vectors.put(place, path.sequence, path.sequence, write.vectors)
        self._living[place] = _Living(path.sequence, created_at)
        return Written("created" if living is None else "replaced", path.sequence, created_at, now, expires_at)

    def _deleted(self, place: Place, write: ItemWrite) -> Outcome:
        living = self._living[place]
        refusal = _refusal(write, living)
        if refusal is not None:
            return refusal
        if living is None:
            return Written("absent")
        if self._rows[place].revision is not None and (held := self._hold()) is not None:
            return held
        self._paths[place[0]].sequence += 1
        self._final[place] = None
        self._vectors.delete(place)
        self._living[place] = None
        return Written("deleted")

    def _indexed(self, place: Place, write: ItemWrite) -> Outcome:
        living = self._living[place]
        refusal = _refusal(write, living)
        if refusal is not None:
            return refusal
        if living is None:
            return ItemNotFound()
        path = self._paths[place[0]]
        try:
            self._vectors.add(place, living.revision, path.sequence + 1, write.vectors)
        except ItemModelsExceeded as exceeded:
            return exceeded
        path.sequence += 1
        return Written("indexed", living.revision)

    def _hold(self) -> StorageError | None:
        """What refuses to take away anything that is stored, if something does.

        Raises:
            IntegrityFailure: It was edited outside the gateway.
        """
        if self._held is None:
            row = next(iter(self._rows.values()))
            self._held = tenant_is_held(self._access.control, self._scope.tenant_id, row.tenant_policy)
        return LegalHold() if self._held else None

    # --- what comes of all -------------------------------------------------------------------------------------------

    async def _store(self) -> None:
        puts, deletes = [], []
        changed: dict[bytes, LockedPath] = {}
        for place, put in sorted(self._final.items()):
            path = changed[place[0]] = self._paths[place[0]]
            before = self._rows[place].member
            if before is not None:
                path.items = path.items.subtract(item_mac(self._sealer, *place, before))
            if put is not None:
                await self._pauses.after(len(put.record.data))
                sealed = seal_item(self._sealer, put.columns, put.record)
                path.items = path.items.add(item_mac(self._sealer, *place, sealed.member))
                puts.append(_columns(put, sealed, indexed=self._vectors.has(place)))
            elif before is not None:
                deletes.append({"path_id": place[0], "key_id": place[1]})
        if puts:
            await self._transaction.run_many(sql.PUT, puts)
        if deletes:
            await self._transaction.run_many(sql.DELETE, deletes)
        changed |= await self._vectors.store(self._rows, self._paths)
        await store_paths(self._transaction, self._sealer, [path for _, path in sorted(changed.items())])
        if any(put["expires_at"] is not None for put in puts):  # last: whoever waits here has all of its locks
            await self._transaction.run(BEGIN_ROUNDS, owner=self._scope.tenant_id)


def _living_in(row: sql.FoundRow) -> _Living | None:
    if row.revision is None or row.created_at is None or row.over:
        return None
    return _Living(row.revision, row.created_at)


def _refusal(write: ItemWrite, living: _Living | None) -> StorageError | None:
    """Why a write does not happen, as far as its condition says."""
    if write.if_absent and living is not None:
        return ItemExists(living.revision)
    if write.if_revision is not None and (living is None or living.revision != write.if_revision):
        return ItemMoved(None if living is None else living.revision)
    return None


def _columns(put: _Put, sealed: SealedItem, *, indexed: bool) -> dict[str, object]:
    columns = {name: getattr(put.columns, name) for name in put.columns.__struct_fields__}
    return columns | {"expires_at": put.expires_at, **sealed._asdict(), "indexed": indexed}
