"""Checking that the database and the object store agree, and mending what can be mended.

Every live blob's object is there and has its size; every blob and artifact that a row names is live and referred to;
nothing is referred to that no row names; every object under the tenant's prefix has a row; no upload in parts is open
that no intent knows; the quota counts what there is. All of it for both buckets: archived threads are blobs, and what
the rows in an archived thread's object name counts as named. An object that is frozen is there all the same.

Beside a gateway at work it finds nothing that is only under way: an object is written after its intent was committed,
and each finding is looked at again before it is reported. Objects younger than the grace period are left alone.

Mending registers an object that no row knows as a condemned blob of the tenant's own subject: a backup may still name
it, so it goes when the last such backup has expired. References are made to match the rows, under the thread's lock.
What is missing from the object store stays missing: nothing can bring it back. It opens nothing and needs no key; that
what is there authenticates is checked by `storage.verification.threads`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import BUCKETS, BlobLocation, tenant_prefix
from storage.blobs.store import BlobNotFound, BlobStore, ObjectInfo
from storage.clock import Clock
from storage.control.clock_check import ClockCheck
from storage.errors import BlobsNotConfigured, LostRaceError
from storage.ledger.ledger import BlobLedger
from storage.model import Bucket
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import SHARED_SUBJECT, OperatorScope, Scope, TenantScope
from storage.statements.objects import artifacts as artifacts_sql
from storage.statements.objects import blobs as sql
from storage.statements.objects.blobs import NamedId
from storage.statements.threads import threads as threads_sql

# As the sweeper's: what is younger may belong to something whose rows are about to be committed.
GRACE_SECONDS = 3600
# Findings that a report keeps word for word; the others are only counted.
FINDINGS_MAX = 1000
HEADS_AT_ONCE = 16
_PAGE = 500
_OBJECTS_PAGE = 1000
_NIL = UUID(int=0)

Fault = Literal["dangling", "unreferred", "superfluous", "orphan", "stray-upload", "miscounted"]
Stage = Literal["blobs", "names", "objects", "quota"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A row, reference or object that is not as it should be.

    Attributes:
        fault: `dangling`: named or live, but the object is missing or has another size, or the row is missing.
            `unreferred`: named, but the reference is missing, so that the sweeper could take it. `superfluous`:
            referred to, but not named, so that it would never be removed. `orphan`: an object without a row.
            `stray-upload`: an upload in parts without an intent. `miscounted`: the quota's count is wrong.
        what: A blob's or artifact's id, or an object's key where it is none of ours.
        subject_id: The subject that has it; None where that is not known.
        thread_id: The thread that names it, if one does.
        mended: Whether it was put right.
        detail: In words and numbers.
    """

    fault: Fault
    what: str
    subject_id: str | None
    thread_id: str | None
    mended: bool
    detail: str


@dataclass(slots=True)
class FsckReport:
    """The report of one tenant's check, and its progress while it runs.

    ``blobs`` and ``threads`` were compared, ``objects`` listed; ``young`` counts objects without a row that are too
    young to be judged. ``position`` is the key of the object from which listing may be resumed. ``faults`` counts each
    sort; ``findings`` has the first `FINDINGS_MAX`.
    """

    tenant_id: UUID
    stage: Stage = "blobs"
    blobs: int = 0
    threads: int = 0
    objects: int = 0
    young: int = 0
    position: str = ""
    faults: dict[Fault, int] = field(default_factory=dict)
    mended: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found, or all of it was mended."""
        return sum(self.faults.values()) == self.mended

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there is room."""
        self.faults[finding.fault] = self.faults.get(finding.fault, 0) + 1
        self.mended += finding.mended
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


Progress = Callable[[FsckReport], Awaitable[None]]


async def _silent(_report: FsckReport) -> None:
    return


class Fsck:
    """Compares tenants' rows with their objects, and mends what can be mended."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        ledger: BlobLedger,
        buckets: Buckets,
        clock: Clock,
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._ledger = ledger
        self._buckets = buckets
        self._clock_check = ClockCheck(unit_of_work, clock)
        self._grace_seconds = grace_seconds

    def tenants(self) -> AsyncIterator[UUID]:
        """Every tenant of the deployment that may have objects, by id."""
        return self._unit_of_work.each(OperatorScope(), sql.TENANTS_AFTER, _NIL, _PAGE)

    async def run(
        self, tenant_id: UUID, *, repair: bool = False, progress: Progress = _silent, after: str = ""
    ) -> FsckReport:
        """Check a tenant.

        ``repair``: mend what can be mended. ``progress`` is told after each page, and cancelling there is safe.
        ``after`` is an earlier report's ``position``: list objects from there, and skip what comes before listing.

        Raises:
            BlobsNotConfigured: there is no object store.
            BlobUnavailable: it does not answer; begin again, or from the last ``position``.
            Unavailable: as before, for the database.
            ClockOff: this process's clock and the database's disagree, and something was to be mended; nothing was.
        """
        if not self._buckets.in_use:
            raise BlobsNotConfigured
        if repair:
            await self._clock_check.require()
        check = _Check(self._unit_of_work, self._ledger, self._buckets, FsckReport(tenant_id), repair, progress)
        if not after:
            async for subject_id in check.subjects():
                await check.blobs(Scope(tenant_id, subject_id))
            check.report.stage = "names"
            async for subject_id in check.subjects():
                await check.names(Scope(tenant_id, subject_id))
        check.report.stage = "objects"
        async with self._unit_of_work.snapshot(TenantScope(tenant_id)) as transaction:
            before = await transaction.fetch_only(sql.SO_LONG_AGO, seconds=self._grace_seconds)
        for bucket, store in self._buckets.in_use:
            later = BUCKETS[BUCKETS.index(bucket) + 1 :]
            if any(after.startswith(tenant_prefix(tenant_id, other)) for other in later):
                continue  # this bucket was listed to its end before
            await check.objects(bucket, store, before, after)
            after = ""
        check.report.stage = "quota"
        await check.quota()
        await progress(check.report)
        return check.report


@dataclass(slots=True, eq=False)
class _Check:
    """One check of one tenant."""

    unit_of_work: UnitOfWork
    ledger: BlobLedger
    buckets: Buckets
    report: FsckReport
    repair: bool
    progress: Progress
    heads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HEADS_AT_ONCE))

    def subjects(self) -> AsyncIterator[str]:
        """Every subject of the tenant that may have blobs, by id."""
        return self.unit_of_work.each(TenantScope(self.report.tenant_id), sql.SUBJECTS_AFTER, "", _PAGE)

    def _record(
        self,
        fault: Fault,
        what: object,
        detail: str,
        *,
        subject_id: str | None = None,
        thread_id: str | None = None,
        mended: bool = False,
    ) -> None:
        self.report.add(Finding(fault, str(what), subject_id, thread_id, mended, detail))

    # --- live blobs ------------------------------------------------------------------------------------------------

    async def blobs(self, scope: Scope) -> None:
        """Check that every live blob's object is there and has its size."""
        after = _NIL
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(sql.LIVE_AFTER, after=after, limit=_PAGE)
            async with asyncio.TaskGroup() as group:
                for row in rows:
                    location = BlobLocation(scope.tenant_id, row.blob_id, row.place)
                    group.create_task(self._blob(scope, location, row.size_bytes))
            self.report.blobs += len(rows)
            await self.progress(self.report)
            if len(rows) < _PAGE:
                return
            after = rows[-1].blob_id

    async def _blob(self, scope: Scope, location: BlobLocation, size_bytes: int) -> None:
        store = self.buckets.of(location.place)
        if store is None:
            what = "nobody can look for the object, because its bucket is not configured (STATEROOM_"
            what += "ARCHIVE_URL)" if location.place == "archive" else "S3_URL)"
            self._record("dangling", location.blob_id, what, subject_id=scope.subject_id)
            return
        async with self.heads:
            found = await _size(store, location)
        if found == size_bytes:
            return
        async with self.unit_of_work.snapshot(scope) as transaction:
            live = await transaction.fetch_one(sql.IS_LIVE, blob_id=location.blob_id)
        if live is not None:  # else it was condemned and removed meanwhile
            what = "is missing" if found is None else f"has {found} bytes"
            detail = f"the object {what}, and should have {size_bytes} bytes"
            self._record("dangling", location.blob_id, detail, subject_id=scope.subject_id)

    # --- names and references --------------------------------------------------------------------------------------

    async def names(self, scope: Scope) -> None:
        """Check that what rows name is there and referred to, and that nothing else is."""
        after = ""
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                threads = await transaction.fetch_all(sql.THREADS_NAMING, after=after, limit=_PAGE)
            for after in threads:
                await self._thread(scope, after)
            self.report.threads += len(threads)
            await self.progress(self.report)
            if len(threads) < _PAGE:
                break
        artifact_id = _NIL
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(artifacts_sql.DANGLING, after=artifact_id, limit=_PAGE)
            for row in rows:
                artifact_id = row.artifact_id
                detail = f"its blob {row.blob_id} has no live row"
                self._record("dangling", artifact_id, detail, subject_id=scope.subject_id)
            if len(rows) < _PAGE:
                return

    async def _thread(self, scope: Scope, thread_id: str) -> None:
        after = _NIL
        while True:
            async with self.unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(sql.NAMES_AT_FAULT, thread_id=thread_id, after=after, limit=_PAGE)
            if not rows:
                return
            faults = [(row.id, *_judged(row)) for row in rows]
            mended = self.repair and await self._mend(scope, thread_id, faults)
            for each, fault, detail in faults:
                self._record(
                    fault,
                    each,
                    detail,
                    subject_id=scope.subject_id,
                    thread_id=thread_id,
                    mended=mended and fault != "dangling",
                )
            after = rows[-1].id
            if len(rows) < _PAGE:
                return

    async def _mend(self, scope: Scope, thread_id: str, faults: list[tuple[UUID, Fault, str]]) -> bool:
        """Add the references that are missing and drop those that nothing names, under the thread's lock."""
        missing = {each for each, fault, _ in faults if fault == "unreferred"}
        try:
            async with self.unit_of_work.begin(scope) as transaction:
                await transaction.fetch_one(threads_sql.LOCK, thread_id=thread_id)
                strangers = await self.ledger.refer_artifacts(transaction, thread_id, missing)
                await self.ledger.refer(transaction, thread_id, strangers)
                await self.ledger.keep(transaction, thread_id)
        except LostRaceError:  # another request is at it; the next check will tell
            return False
        return True

    # --- objects ---------------------------------------------------------------------------------------------------

    async def objects(self, bucket: Bucket, store: BlobStore, before: datetime, after: str) -> None:
        """Check that every object and upload in parts of a bucket that is older than ``before`` has a row there."""
        prefix = tenant_prefix(self.report.tenant_id, bucket)
        self.report.position = after
        while True:
            page = await store.list_objects(prefix, after=self.report.position, limit=_OBJECTS_PAGE)
            await self._page(bucket, store, page, before)
            self.report.objects += len(page)
            if page:
                self.report.position = page[-1].object_key
            await self.progress(self.report)
            if len(page) < _OBJECTS_PAGE:
                break
        uploads = {}
        for upload in await store.list_multiparts(prefix):
            try:
                location = BlobLocation.parse(upload.object_key)
            except ValueError:
                self._record("stray-upload", upload.object_key, "its name is none of ours")
                continue
            if upload.begun_at < before:
                uploads[upload.multipart_id] = location
        unknown = await self._without_row(bucket, {each.blob_id for each in uploads.values()}, sql.INTENTS_OF_OBJECTS)
        for multipart_id, location in uploads.items():
            if location.blob_id in unknown:
                if self.repair:
                    await store.abort_multipart(location, multipart_id)
                self._record("stray-upload", location.blob_id, "no intent knows this upload", mended=self.repair)

    async def _page(self, bucket: Bucket, store: BlobStore, page: list[ObjectInfo], before: datetime) -> None:
        found: dict[UUID, ObjectInfo] = {}
        for each in page:
            try:
                found[BlobLocation.parse(each.object_key).blob_id] = each
            except ValueError:
                self._record("orphan", each.object_key, f"its name is none of ours; it has {each.size_bytes} bytes")
        for blob_id in await self._without_row(bucket, set(found)):
            info = found[blob_id]
            if info.modified_at > before:
                self.report.young += 1
                continue
            size_bytes = await _size(store, BlobLocation(self.report.tenant_id, blob_id, bucket))
            if size_bytes is None:  # removed by a sweeper between the listing and our look at the rows
                continue
            mended = self.repair and await self._register(bucket, blob_id, size_bytes)
            self._record("orphan", blob_id, f"no row knows this object of {size_bytes} bytes", mended=mended)

    async def _without_row(
        self, bucket: Bucket, blob_ids: set[UUID], statement: Statement[UUID] = sql.KNOWN_OBJECTS
    ) -> set[UUID]:
        if not blob_ids:
            return set()
        async with self.unit_of_work.snapshot(TenantScope(self.report.tenant_id)) as transaction:
            known = await transaction.fetch_all(statement, blob_ids=list(blob_ids), place=bucket)
        return blob_ids - {*known}

    async def _register(self, bucket: Bucket, blob_id: UUID, size_bytes: int) -> bool:
        scope = Scope(self.report.tenant_id, SHARED_SUBJECT)
        async with self.unit_of_work.begin(scope) as transaction:
            added = await transaction.fetch_one(sql.ADD_ORPHAN, blob_id=blob_id, size_bytes=size_bytes, place=bucket)
            if added is not None:
                await transaction.run(sql.COUNT_BYTES, amount=size_bytes)
        return added is not None

    # --- quota -----------------------------------------------------------------------------------------------------

    async def quota(self) -> None:
        """Check that the quota counts what there is."""
        scope = TenantScope(self.report.tenant_id)
        async with self.unit_of_work.snapshot(scope) as transaction:
            usage = await transaction.fetch_one(sql.USAGE, owner=self.report.tenant_id)
            counted = await transaction.fetch_only(sql.COUNTED)
        counts = 0 if usage is None else usage.bytes
        if counts == counted:
            return
        if self.repair:
            async with self.unit_of_work.begin(scope) as transaction:
                # Every change of a size ends with this row, so that under its lock the next statement sees all of
                # what was counted, and nothing that was not.
                await transaction.run(sql.COUNT_BYTES, amount=0)
                await transaction.run(sql.RECOUNT)
        self._record(
            "miscounted", self.report.tenant_id, f"{counts} bytes count, {counted} are kept", mended=self.repair
        )


async def _size(store: BlobStore, location: BlobLocation) -> int | None:
    try:
        return (await store.head(location)).size_bytes
    except BlobNotFound:
        return None


def _judged(row: NamedId) -> tuple[Fault, str]:
    """What is wrong with an id of a thread."""
    if not row.named:
        return "superfluous", "referred to, but no row names it"
    if row.blob_state == "live" or (row.artifact and not row.artifact_ref):
        return "unreferred", "named, but the reference is missing"
    if row.blob_state == "condemned":
        return "dangling", "named, but the blob was condemned"
    return "dangling", "named, but there is no row of it"
