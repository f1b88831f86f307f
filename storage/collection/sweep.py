"""Sweeping: removing objects that nothing refers to, at once safe and never sooner than a backup needs them.

For each tenant whose time has come, subject by subject, in small batches that each commit:

1. Open intents that expired are marked swept, and only then their object or multipart upload is removed. The row stays
   as a tombstone for a day, because a PUT may still be under way; at its end the object is removed once more.
2. Now and then a walk finds live blobs that nobody refers to; the verbs that drop references mark most of them sooner.
   It also aborts uploads in parts that no intent knows: their process ended between beginning one and putting on record
   how the object store names it.
3. What has been unreferenced for the grace period is condemned: locked against whoever is about to refer to it, looked
   at again in the next statement, whose snapshot is newer than the lock, and then committed.
4. Condemned blobs are removed when the last backup that may name them has expired: the object, then the row, and with
   it the quota's bytes. Removing is repeatable at every point, so a crash costs nothing but time.

Several processes may sweep: `blob_usage.sweep_after` is a lease that spares them each other's work; safety does not
depend on it. It does not find objects that no row knows; `storage.collection.fsck` does.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from storage.blobs.keyspace import BlobLocation, Place, tenant_prefix
from storage.blobs.places import Places
from storage.blobs.store import BlobStore, BlobUnavailable
from storage.clock import Clock, SystemClock
from storage.concurrency.rounds import telling
from storage.control.clock_check import ClockCheck
from storage.errors import StorageError
from storage.ledger.ledger import INTENT_TOMBSTONE_SECONDS
from storage.postgres import blobs as sql
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope

# A blob that lost its last reference stays findable by content for so long, so that a save that just learned of it
# need not upload it again.
GRACE_SECONDS = 3600
# An upload in parts that no intent knows is aborted when it is so old: nobody can be about to put it on record.
STRAY_SECONDS = 24 * 3600
# How often a tenant is swept, and how often all of its blobs are walked over.
SWEEP_SECONDS = 60.0
WALK_SECONDS = 1800.0
# A tenant that has nothing in the object store, nor anything under way.
EMPTY_SWEEP_SECONDS = 600.0
# How often a process looks for tenants whose time has come.
POLL_SECONDS = 15.0
# A dead process's tenant is swept by another one after so long; renewed with every batch.
LEASE_SECONDS = 60.0
# What a process that stops takes at most to let another one go on.
GIVE_BACK_SECONDS_MAX = 5.0
# Rows of one batch: locks on them are held for a few milliseconds.
BATCH_ROWS = 100
WALK_ROWS = 1000
# Removals at a time: the object store is slower than one connection, and everybody's.
REMOVALS_AT_ONCE = 8
# So many removals in a row that failed: the object store is out of reach, and the next round tries again.
FAILURES_MAX = 8
# Of intents: `open`, `swept`. Of blobs: `live` and referred to, `unreferenced`, `condemned`.
STATES = ("open", "swept", "live", "unreferenced", "condemned")
_TENANTS_MAX = 50
_SUBJECTS_PAGE = 100
_NIL = UUID(int=0)
_SECONDS_PER_DAY = 86_400.0


@dataclass(slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        tenants: That were swept.
        expired: Intents that were given up.
        removed: Objects of swept intents that were removed for the first time.
        tombstones: That ended.
        marked: Blobs found to be unreferenced by a walk.
        strays: Uploads in parts that no intent knew, aborted by a walk.
        condemned: Blobs that never come back.
        deleted: Blobs whose object and row are gone.
        freed_bytes: That count for the quota no more.
        failed: Removals the object store refused; they are tried again.
    """

    tenants: int = 0
    expired: int = 0
    removed: int = 0
    tombstones: int = 0
    marked: int = 0
    strays: int = 0
    condemned: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    failed: int = 0

    def add(self, other: "Swept") -> None:
        """Count what another sweep did, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True)
class Census:
    """What a deployment keeps in the object store, and whether its sweeps keep up; of no tenant in particular.

    Attributes:
        used_bytes: What counts for the tenants' quotas now.
        blobs: How many there are of each of `STATES`, as each tenant's last walk found it.
        bytes: Their sizes; of uploads, what is reserved.
        age_seconds: Since the last whole sweep of the tenant that waits longest for one.
        due_seconds: How long the oldest thing that should be gone has been due, as the last sweeps left it; 0: none.
        tried: A tenant is taken again and again, and none of its sweeps comes to an end.
    """

    used_bytes: int
    blobs: Mapping[str, int]
    bytes: Mapping[str, int]
    age_seconds: float
    due_seconds: float
    tried: bool


class Sweep:
    """Sweeps tenants; several processes may."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        places: Places,
        backup_retention_days: float,
        *,
        grace_seconds: float = GRACE_SECONDS,
        tombstone_seconds: float = INTENT_TOMBSTONE_SECONDS,
        stray_seconds: float = STRAY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._places = places
        self._retention_seconds = backup_retention_days * _SECONDS_PER_DAY
        self._grace_seconds = grace_seconds
        self._tombstone_seconds = tombstone_seconds
        self._stray_seconds = stray_seconds
        self._clock_check = ClockCheck(unit_of_work, clock or SystemClock())

    async def run_due(self) -> Swept:
        """Sweep every tenant whose time has come and that nobody else is at.

        Raises:
            Unavailable: the database cannot be reached.
        """
        done = Swept()
        if not self._places.in_use:
            return done
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.TENANTS_DUE, _TENANTS_MAX)
        for row in rows:
            swept = await self.tenant(row["tenant_id"])
            if swept is not None:
                done.add(swept)
        return done

    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> Swept | None:
        """Sweep a tenant, or return None if its time has not come or somebody else is at it.

        Args:
            tenant_id: Which.
            now: Whatever the time and whoever else is at it, and walk over all of its blobs.

        Raises:
            Unavailable: the database cannot be reached; what was done is committed.
            ClockOff: this process's clock and the database's disagree; nothing was done.
        """
        if not self._places.in_use:
            return None
        await self._clock_check.require()
        place = TenantScope(tenant_id)
        async with self._unit_of_work.begin(place) as transaction:
            claim = await transaction.fetchrow(sql.CLAIM_TENANT, tenant_id, LEASE_SECONDS)
        if claim is None and not now:
            return None
        sweep = _TenantSweep(self._unit_of_work, self._places, tenant_id)
        walks = now or (claim is not None and claim["walk"])
        try:
            if walks:
                await sweep.walk(self._stray_seconds)
            await sweep.perform(self._grace_seconds, self._tombstone_seconds, self._retention_seconds)
        except asyncio.CancelledError:
            if claim is not None:
                await sweep.give_back()
            raise
        async with self._unit_of_work.begin(place) as transaction:
            await transaction.execute(
                sql.FINISH_SWEEP,
                tenant_id,
                SWEEP_SECONDS,
                self._grace_seconds,
                self._tombstone_seconds,
                self._retention_seconds,
                walks,
                EMPTY_SWEEP_SECONDS,
            )
        sweep.swept.tenants = 1
        return sweep.swept

    async def census(self) -> Census:
        """Count what there is and what waits, over all tenants, from what their sweeps left on record.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            total = await transaction.fetchrow(sql.CENSUS)
            rows = await transaction.fetch(sql.CENSUS_BY_STATE)
        blobs, size = dict.fromkeys(STATES, 0), dict.fromkeys(STATES, 0)
        for row in rows:
            blobs[row["state"]], size[row["state"]] = row["blobs"], row["bytes"]
        return Census(blobs=blobs, bytes=size, **dict(total))

    async def keep_running(
        self,
        swept: Callable[[Swept], None],
        failed: Callable[[Exception], None],
        counted: Callable[[Census], None],
    ) -> None:
        """Sweep what is due, again and again, until cancelled, which is safe at any moment.

        Args:
            swept: Told what a round did.
            failed: Told of a round that failed; the next one comes all the same.
            counted: Told what there is and what waits, after every round, also after one that failed.
        """
        while True:
            await telling(self.run_due, swept, failed)
            await telling(self.census, counted, failed)
            await asyncio.sleep(POLL_SECONDS)


class _OutOfReachError(Exception):
    """Too many removals failed in a row."""


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of it to its end, and then raise what the first one raised."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome


class _TenantSweep:
    """One sweep of one tenant."""

    def __init__(self, unit_of_work: UnitOfWork, places: Places, tenant_id: UUID) -> None:
        self._unit_of_work = unit_of_work
        self._places = places
        self._tenant_id = tenant_id
        self._failures = 0
        self.swept = Swept()

    async def _renew(self) -> None:
        async with self._unit_of_work.begin(TenantScope(self._tenant_id)) as transaction:
            await transaction.execute(sql.RENEW_SWEEP, self._tenant_id, LEASE_SECONDS)

    async def give_back(self) -> None:
        """Let another process go on at once; if that fails, it goes on when the lease has ended."""
        with suppress(StorageError, TimeoutError):
            async with (
                asyncio.timeout(GIVE_BACK_SECONDS_MAX),
                self._unit_of_work.begin(TenantScope(self._tenant_id)) as transaction,
            ):
                await transaction.execute(sql.RENEW_SWEEP, self._tenant_id, 0.0)

    async def _subjects(self, statement: str, *args: object) -> list[str]:
        async with self._unit_of_work.snapshot(TenantScope(self._tenant_id)) as transaction:
            rows = await transaction.fetch(statement, self._tenant_id, *args, _SUBJECTS_PAGE)
        return [row["subject_id"] for row in rows]

    # --- the walk --------------------------------------------------------------------------------------------------

    async def walk(self, stray_seconds: float) -> None:
        """Mark live blobs that nobody refers to, and abort uploads that no intent knows and that are so old."""
        async with self._unit_of_work.snapshot(TenantScope(self._tenant_id)) as transaction:
            before = await transaction.fetchval(sql.SO_LONG_AGO, stray_seconds)
        for place, store in self._places.in_use:
            await self._abort_strays(place, store, before)
        after = ""
        while subjects := await self._subjects(sql.SUBJECTS_TO_WALK, after):
            for after in subjects:
                await self._walk_subject(Scope(self._tenant_id, after))
        async with self._unit_of_work.begin(TenantScope(self._tenant_id)) as transaction:
            await transaction.execute(sql.WALKED, self._tenant_id, WALK_SECONDS)

    async def _abort_strays(self, place: Place, store: BlobStore, before: datetime) -> None:
        try:
            uploads = await store.list_multiparts(tenant_prefix(self._tenant_id, place))
            strays = []
            for each in uploads:
                with suppress(ValueError):  # a name that is none of ours is left to whoever made it
                    if each.begun_at < before:
                        strays.append((BlobLocation.parse(each.object_key), each.multipart_id))
            if not strays:
                return
            # After the listing: an intent was committed before its upload began, and goes after it was completed.
            async with self._unit_of_work.snapshot(TenantScope(self._tenant_id)) as transaction:
                wanted = [location.blob_id for location, _ in strays]
                rows = await transaction.fetch(sql.INTENTS_OF_OBJECTS, self._tenant_id, wanted, place)
            known = {row["blob_id"] for row in rows}
            for location, multipart_id in strays:
                if location.blob_id not in known:
                    await store.abort_multipart(location, multipart_id)
                    self.swept.strays += 1
        except BlobUnavailable:  # the next walk tries again
            self.swept.failed += 1

    async def _walk_subject(self, scope: Scope) -> None:
        after = _NIL
        place = (scope.tenant_id, scope.subject_id)
        while True:
            async with self._unit_of_work.begin(scope) as transaction:
                rows = await transaction.fetch(sql.WALK, *place, after, WALK_ROWS)
                found = [row["blob_id"] for row in rows]
                self.swept.marked += await transaction.execute(sql.MARK_UNREFERENCED, *place, found)
            if len(rows) < WALK_ROWS:
                return
            after = found[-1]
            await self._renew()

    # --- the sweep -------------------------------------------------------------------------------------------------

    async def perform(self, grace_seconds: float, tombstone_seconds: float, retention_seconds: float) -> None:
        """Do what is due for every subject."""
        after = ""
        try:
            while subjects := await self._subjects(sql.SUBJECTS_DUE, grace_seconds, retention_seconds, after):
                for after in subjects:
                    scope = Scope(self._tenant_id, after)
                    await self._expire(scope, tombstone_seconds)
                    await self._remove_swept(scope)
                    await self._condemn(scope, grace_seconds)
                    await self._delete(scope, retention_seconds)
        except _OutOfReachError:
            return

    async def _expire(self, scope: Scope, tombstone_seconds: float) -> None:
        place = (scope.tenant_id, scope.subject_id)
        while True:
            async with self._unit_of_work.begin(scope) as transaction:
                rows = await transaction.fetch(sql.EXPIRE_INTENTS, *place, tombstone_seconds, BATCH_ROWS)
                expired = [row["blob_id"] for row in rows]
                await transaction.execute(sql.DELETE_PARTS, *place, expired)
            self.swept.expired += len(expired)
            if len(expired) < BATCH_ROWS:
                return
            await self._renew()

    async def _remove_swept(self, scope: Scope) -> None:
        after = _NIL
        while True:
            async with self._unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch(sql.SWEPT_INTENTS, scope.tenant_id, scope.subject_id, after, BATCH_ROWS)
            for at in range(0, len(rows), REMOVALS_AT_ONCE):
                some = rows[at : at + REMOVALS_AT_ONCE]
                await _together(self._remove(scope, row) for row in some)
                await self._renew()
            if len(rows) < BATCH_ROWS:
                return
            after = rows[-1]["blob_id"]

    async def _remove(self, scope: Scope, row: Any) -> None:
        location = BlobLocation(scope.tenant_id, row["blob_id"], row["place"])
        if not await self._gone(location, row["multipart_id"]):
            return
        place = (scope.tenant_id, scope.subject_id, row["blob_id"])
        statement = sql.END_TOMBSTONE if row["ends"] else sql.REMOVED
        async with self._unit_of_work.begin(scope) as transaction:
            freed = await transaction.fetchval(statement, *place)
            if freed:
                await transaction.execute(sql.COUNT_BYTES, scope.tenant_id, -freed)
        if freed is None:  # another sweeper was here
            return
        self.swept.freed_bytes += freed
        if row["ends"]:
            self.swept.tombstones += 1
        else:
            self.swept.removed += 1

    async def _gone(self, location: BlobLocation, multipart_id: str | None) -> bool:
        """Remove an object and its unfinished upload; whether that is certain."""
        store = self._places.of(location.place)
        if store is None:  # the setting is gone, the object is not
            self.swept.failed += 1
            return False
        try:
            if multipart_id is not None:
                await store.abort_multipart(location, multipart_id)
            await store.delete(location)
        except BlobUnavailable:
            self.swept.failed += 1
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                raise _OutOfReachError from None
            return False
        self._failures = 0
        return True

    async def _condemn(self, scope: Scope, grace_seconds: float) -> None:
        place = (scope.tenant_id, scope.subject_id)
        while True:
            async with self._unit_of_work.begin(scope) as transaction:
                rows = await transaction.fetch(sql.LOCK_UNREFERENCED, *place, grace_seconds, BATCH_ROWS)
                locked = [row["blob_id"] for row in rows]
                condemned = {row["blob_id"] for row in await transaction.fetch(sql.CONDEMN, *place, locked)}
                referenced = [each for each in locked if each not in condemned]
                if referenced:  # somebody came back to them
                    await transaction.execute(sql.MARK_REFERENCED, *place, referenced)
            self.swept.condemned += len(condemned)
            if len(locked) < BATCH_ROWS:
                return
            await self._renew()

    async def _delete(self, scope: Scope, retention_seconds: float) -> None:
        after = _NIL
        place = (scope.tenant_id, scope.subject_id)
        while True:
            async with self._unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch(sql.CONDEMNED, *place, after, retention_seconds, BATCH_ROWS)
            for at in range(0, len(rows), REMOVALS_AT_ONCE):
                some = rows[at : at + REMOVALS_AT_ONCE]
                await _together(self._delete_blob(scope, row["blob_id"], row["place"]) for row in some)
                await self._renew()
            if len(rows) < BATCH_ROWS:
                return
            after = rows[-1]["blob_id"]

    async def _delete_blob(self, scope: Scope, blob_id: UUID, place: Place) -> None:
        if not await self._gone(BlobLocation(scope.tenant_id, blob_id, place), None):
            return
        async with self._unit_of_work.begin(scope) as transaction:
            freed = await transaction.fetchval(sql.FORGET_BLOB, scope.tenant_id, scope.subject_id, blob_id)
            if freed:
                await transaction.execute(sql.COUNT_BYTES, scope.tenant_id, -freed)
        if freed is not None:  # else another sweeper was here
            self.swept.freed_bytes += freed
            self.swept.deleted += 1
