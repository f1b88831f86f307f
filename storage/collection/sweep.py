"""Sweeping: removing objects that nothing refers to, at once safe and never sooner than a backup needs them.

For each tenant whose time has come, subject by subject, in small batches that each commit:

1. Open intents that expired are marked swept, and only then their object or multipart upload is removed. The row stays
   as a tombstone for a day, because a PUT may still be under way; at its end the object is removed once more.
2. Now and then a walk finds live blobs that nothing refers to; the verbs that drop references mark most of them sooner.
   It also aborts uploads in parts that no intent knows: their process ended between beginning one and putting on record
   how the object store names it.
3. What has been unreferenced for the grace period is condemned: locked against requests that are about to refer to it,
   looked at again in the next statement, whose snapshot is newer than the lock, and then committed.
4. Condemned blobs are removed when the last backup that may name them has expired: the object, then the row, and with
   it the quota's bytes. Removing is repeatable at every point, so a crash costs nothing but time.

Several processes may sweep: `blob_usage.sweep_after` is a lease that spares them each other's work; safety does not
depend on it. It does not find objects that no row knows; `storage.collection.fsck` does.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import structs

from storage.administration.rounds import Rounds, Tally, given_back
from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.store import BlobStore, BlobUnavailable
from storage.clock import Clock, SystemClock
from storage.control.clock_check import ClockCheck
from storage.ledger.ledger import INTENT_TOMBSTONE_SECONDS
from storage.model import Bucket
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.objects import blobs as sql
from storage.statements.objects.blobs import SweepClaim, SweptIntent

# A blob that lost its last reference stays findable by content for so long, so that a save that just learned of it
# need not upload it again.
GRACE_SECONDS = 3600
# An upload in parts that no intent knows is aborted when it is so old: no process can be about to put it on record.
STRAY_SECONDS = 24 * 3600
# How often a tenant is swept, and how often all of its blobs are walked over.
SWEEP_SECONDS = 60.0
WALK_SECONDS = 1800.0
# A tenant that has nothing in the object store, nor anything under way.
EMPTY_SWEEP_SECONDS = 600.0
# A dead process's tenant is swept by another one after so long; renewed with every batch.
LEASE_SECONDS = 60.0
# Rows of one batch: locks on them are held for a few milliseconds.
BATCH_ROWS = 100
WALK_ROWS = 1000
# Removals at a time: the object store is slower than one connection, and everybody's.
REMOVALS_AT_ONCE = 8
# So many removals in a row that failed: the object store is out of reach, and the next round tries again.
FAILURES_MAX = 8
# Of intents: `open`, `swept`. Of blobs: `live` and referred to, `unreferenced`, `condemned`.
STATES = ("open", "swept", "live", "unreferenced", "condemned")
_SUBJECTS_PAGE = 100
_NIL = UUID(int=0)
_SECONDS_PER_DAY = 86_400.0


@dataclass(slots=True)
class Swept(Tally):
    """What a sweep did.

    ``expired`` intents were given up, ``removed`` objects of such intents removed for the first time, and
    ``tombstones`` ended. ``marked`` blobs were found to be unreferenced and ``strays`` aborted by a walk. ``condemned``
    blobs never come back; ``deleted`` ones have lost object and row. ``failed`` removals were refused by the object
    store, and are tried again.
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


@dataclass(frozen=True, slots=True)
class Census:
    """What a deployment keeps in the object store, and whether its sweeps keep up; of no tenant in particular.

    Attributes:
        used_bytes: The bytes that count for the tenants' quotas now.
        blobs: The number of blobs in each of `STATES`, as each tenant's last walk found it.
        bytes: Their sizes; of uploads, the bytes that are reserved.
        age_seconds: The time since the last whole sweep of the tenant that waits longest for one.
        due_seconds: How long the oldest object that should be gone has been due, as the last sweeps left it; 0: none.
        tried: Whether a tenant is taken again and again, and none of its sweeps comes to an end.
    """

    used_bytes: int
    blobs: Mapping[str, int]
    bytes: Mapping[str, int]
    age_seconds: float
    due_seconds: float
    tried: bool


class Sweep(Rounds[Swept, Census]):
    """Sweeps tenants; several processes may."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        buckets: Buckets,
        backup_retention_days: float,
        *,
        grace_seconds: float = GRACE_SECONDS,
        tombstone_seconds: float = INTENT_TOMBSTONE_SECONDS,
        stray_seconds: float = STRAY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(unit_of_work, sql.TENANTS_DUE, Swept)
        self._buckets = buckets
        self._retention_seconds = backup_retention_days * _SECONDS_PER_DAY
        self._grace_seconds = grace_seconds
        self._tombstone_seconds = tombstone_seconds
        self._stray_seconds = stray_seconds
        self._clock_check = ClockCheck(unit_of_work, clock or SystemClock())

    async def run_due(self) -> Swept:
        """Sweep every tenant whose time has come; without an object store there is nothing to sweep."""
        return await super().run_due() if self._buckets.in_use else Swept()

    async def tenant(self, tenant_id: UUID, *, now: bool = False) -> Swept | None:
        """Sweep a tenant; None if its time has not come or another process is at it.

        Args:
            tenant_id: The id of the tenant to sweep.
            now: Sweep at any time, even beside another process, and walk over all of its blobs.

        Raises:
            Unavailable: the database cannot be reached; what was done is committed.
            ClockOff: this process's clock and the database's disagree; nothing was done.
        """
        if not self._buckets.in_use:
            return None
        await self._clock_check.require()
        scope = TenantScope(tenant_id)
        async with self._unit_of_work.begin(scope) as transaction:
            claim = await transaction.fetch_one(sql.CLAIM_TENANT, lease_seconds=LEASE_SECONDS)
        if claim is None and not now:
            return None
        sweep = _TenantSweep(self._unit_of_work, self._buckets, tenant_id)
        walks = now or (claim is not None and _walk_is_due(claim))
        async with given_back(sweep.release) if claim is not None else nullcontext():
            if walks:
                await sweep.walk(self._stray_seconds)
            await sweep.perform(self._grace_seconds, self._tombstone_seconds, self._retention_seconds)
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(
                sql.FINISH_SWEEP,
                sweep_seconds=SWEEP_SECONDS,
                empty_sweep_seconds=EMPTY_SWEEP_SECONDS,
                grace_seconds=self._grace_seconds,
                tombstone_seconds=self._tombstone_seconds,
                retention_seconds=self._retention_seconds,
                walked=walks,
            )
        sweep.swept.tenants = 1
        return sweep.swept

    async def census(self) -> Census:
        """Count what there is and what waits; as `Rounds.census`."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            census = await transaction.fetch_only(sql.CENSUS)
            totals = await transaction.fetch_all(sql.CENSUS_BY_STATE)
        blobs, size = dict.fromkeys(STATES, 0), dict.fromkeys(STATES, 0)
        for each in totals:
            blobs[each.state], size[each.state] = each.blobs, each.bytes
        return Census(blobs=blobs, bytes=size, **structs.asdict(census))


def _walk_is_due(claim: SweepClaim) -> bool:
    """Compares by the database's clock: the claim was made `LEASE_SECONDS` before its lease ends."""
    return claim.walk_after is None or claim.walk_after < claim.sweep_after - timedelta(seconds=LEASE_SECONDS)


class _OutOfReachError(Exception):
    """Too many removals failed in a row."""


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of it to its end, and then raise what the first one raised."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome


@dataclass(slots=True, eq=False)
class _TenantSweep:
    """One sweep of one tenant."""

    unit_of_work: UnitOfWork
    buckets: Buckets
    tenant_id: UUID
    failures: int = 0
    swept: Swept = field(default_factory=Swept)

    async def _renew(self) -> None:
        async with self.unit_of_work.begin(TenantScope(self.tenant_id)) as transaction:
            await transaction.run(sql.RENEW_SWEEP, lease_seconds=LEASE_SECONDS)

    async def release(self) -> None:
        """Let another process go on at once."""
        async with self.unit_of_work.begin(TenantScope(self.tenant_id)) as transaction:
            await transaction.run(sql.RENEW_SWEEP, lease_seconds=0.0)

    async def _subjects(self, statement: Statement[str], **values: object) -> list[str]:
        async with self.unit_of_work.snapshot(TenantScope(self.tenant_id)) as transaction:
            return await transaction.fetch_all(statement, **values, limit=_SUBJECTS_PAGE)

    # --- the walk --------------------------------------------------------------------------------------------------

    async def walk(self, stray_seconds: float) -> None:
        """Mark live blobs that nothing refers to, and abort uploads that no intent knows and that are so old."""
        async with self.unit_of_work.snapshot(TenantScope(self.tenant_id)) as transaction:
            before = await transaction.fetch_only(sql.SO_LONG_AGO, seconds=stray_seconds)
        for bucket, store in self.buckets.in_use:
            await self._abort_strays(bucket, store, before)
        after = ""
        while subjects := await self._subjects(sql.SUBJECTS_TO_WALK, after=after):
            for after in subjects:
                await self._walk_subject(Scope(self.tenant_id, after))
        async with self.unit_of_work.begin(TenantScope(self.tenant_id)) as transaction:
            await transaction.run(sql.WALKED, walk_seconds=WALK_SECONDS)

    async def _abort_strays(self, bucket: Bucket, store: BlobStore, before: datetime) -> None:
        try:
            uploads = await store.list_multiparts(tenant_prefix(self.tenant_id, bucket))
            strays = []
            for each in uploads:
                with suppress(ValueError):  # a name that is none of ours is left to its maker
                    if each.begun_at < before:
                        strays.append((BlobLocation.parse(each.object_key), each.multipart_id))
            if not strays:
                return
            # After the listing: an intent was committed before its upload began, and goes after it was completed.
            async with self.unit_of_work.snapshot(TenantScope(self.tenant_id)) as transaction:
                wanted = [location.blob_id for location, _ in strays]
                known = await transaction.fetch_all(sql.INTENTS_OF_OBJECTS, blob_ids=wanted, place=bucket)
            for location, multipart_id in strays:
                if location.blob_id not in known:
                    await store.abort_multipart(location, multipart_id)
                    self.swept.strays += 1
        except BlobUnavailable:  # the next walk tries again
            self.swept.failed += 1

    async def _walk_subject(self, scope: Scope) -> None:
        after = _NIL
        while True:
            async with self.unit_of_work.begin(scope) as transaction:
                blob_ids = await transaction.fetch_all(sql.WALK, after=after, limit=WALK_ROWS)
                self.swept.marked += await transaction.run(sql.MARK_UNREFERENCED, blob_ids=blob_ids)
            if len(blob_ids) < WALK_ROWS:
                return
            after = blob_ids[-1]
            await self._renew()

    # --- the sweep -------------------------------------------------------------------------------------------------

    async def perform(self, grace_seconds: float, tombstone_seconds: float, retention_seconds: float) -> None:
        """Do what is due for every subject."""
        after = ""
        try:
            while subjects := await self._subjects(
                sql.SUBJECTS_DUE, grace_seconds=grace_seconds, retention_seconds=retention_seconds, after=after
            ):
                for after in subjects:
                    scope = Scope(self.tenant_id, after)
                    await self._expire(scope, tombstone_seconds)
                    await self._remove_swept(scope)
                    await self._condemn(scope, grace_seconds)
                    await self._delete(scope, retention_seconds)
        except _OutOfReachError:
            return

    async def _expire(self, scope: Scope, tombstone_seconds: float) -> None:
        while True:
            async with self.unit_of_work.begin(scope) as transaction:
                expired = await transaction.fetch_all(
                    sql.EXPIRE_INTENTS, tombstone_seconds=tombstone_seconds, limit=BATCH_ROWS
                )
                await transaction.run(sql.DELETE_PARTS, blob_ids=expired)
            self.swept.expired += len(expired)
            if len(expired) < BATCH_ROWS:
                return
            await self._renew()

    async def _remove_swept(self, scope: Scope) -> None:
        after = _NIL
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(sql.SWEPT_INTENTS, after=after, limit=BATCH_ROWS)
            for at in range(0, len(rows), REMOVALS_AT_ONCE):
                some = rows[at : at + REMOVALS_AT_ONCE]
                await _together(self._remove(scope, row) for row in some)
                await self._renew()
            if len(rows) < BATCH_ROWS:
                return
            after = rows[-1].blob_id

    async def _remove(self, scope: Scope, intent: SweptIntent) -> None:
        location = BlobLocation(scope.tenant_id, intent.blob_id, intent.place)
        if not await self._gone(location, intent.multipart_id):
            return
        statement = sql.END_TOMBSTONE if intent.ends else sql.REMOVED
        async with self.unit_of_work.begin(scope) as transaction:
            freed = await transaction.fetch_one(statement, blob_id=intent.blob_id)
            if freed:
                await transaction.run(sql.COUNT_BYTES, amount=-freed)
        if freed is None:  # another sweeper was here
            return
        self.swept.freed_bytes += freed
        if intent.ends:
            self.swept.tombstones += 1
        else:
            self.swept.removed += 1

    async def _gone(self, location: BlobLocation, multipart_id: str | None) -> bool:
        """Remove an object and its unfinished upload; whether that is certain."""
        store = self.buckets.of(location.place)
        if store is None:  # the setting is gone, the object is not
            self.swept.failed += 1
            return False
        try:
            if multipart_id is not None:
                await store.abort_multipart(location, multipart_id)
            await store.delete(location)
        except BlobUnavailable:
            self.swept.failed += 1
            self.failures += 1
            if self.failures >= FAILURES_MAX:
                raise _OutOfReachError from None
            return False
        self.failures = 0
        return True

    async def _condemn(self, scope: Scope, grace_seconds: float) -> None:
        while True:
            async with self.unit_of_work.begin(scope) as transaction:
                locked = await transaction.fetch_all(
                    sql.LOCK_UNREFERENCED, grace_seconds=grace_seconds, limit=BATCH_ROWS
                )
                condemned = {*await transaction.fetch_all(sql.CONDEMN, blob_ids=locked)}
                referenced = [each for each in locked if each not in condemned]
                if referenced:  # a save came back to them
                    await transaction.run(sql.MARK_REFERENCED, blob_ids=referenced)
            self.swept.condemned += len(condemned)
            if len(locked) < BATCH_ROWS:
                return
            await self._renew()

    async def _delete(self, scope: Scope, retention_seconds: float) -> None:
        after = _NIL
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(
                    sql.CONDEMNED, after=after, retention_seconds=retention_seconds, limit=BATCH_ROWS
                )
            for at in range(0, len(rows), REMOVALS_AT_ONCE):
                some = rows[at : at + REMOVALS_AT_ONCE]
                await _together(self._delete_blob(scope, row.blob_id, row.place) for row in some)
                await self._renew()
            if len(rows) < BATCH_ROWS:
                return
            after = rows[-1].blob_id

    async def _delete_blob(self, scope: Scope, blob_id: UUID, bucket: Bucket) -> None:
        if not await self._gone(BlobLocation(scope.tenant_id, blob_id, bucket), None):
            return
        async with self.unit_of_work.begin(scope) as transaction:
            freed = await transaction.fetch_one(sql.FORGET_BLOB, blob_id=blob_id)
            if freed:
                await transaction.run(sql.COUNT_BYTES, amount=-freed)
        if freed is not None:  # else another sweeper was here
            self.swept.freed_bytes += freed
            self.swept.deleted += 1
