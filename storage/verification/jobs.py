"""Verification of a whole tenant, and of all tenants, as jobs: they survive the process and show how far they are.

A tenant's job verifies one subject after another, a stretch of threads at a time, and in the end compares the subjects
there are with those that were anchored: a database restored from before a subject came to be, or from which one was
taken with its keys, has anchored heads that no subject present can have made. Those of a shredded subject are explained
by its tombstone. Without an object store there are neither, and a subject that is gone altogether is not missed.

What was found is kept in the job's position, and in the end in its note, up to `FINDINGS_MAX` findings; all are
counted. The deployment's job starts the jobs of the tenants and keeps of theirs what an operator may see: codes and
numbers, neither subjects nor threads. Cancelled, it takes those that it began along, each when it next moves on; one
that a tenant had begun before goes on. At its end it names the tenants of which audit events were anchored and of which
the database knows nothing: a tenant is never deleted, so only a shred explains one. It promises nothing about what
changes behind it while it goes on.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from crypto import KeyDenied, KeyDestroyed, Sealer
from storage.access.access import Access
from storage.access.head_anchors import AnchoredHeads, subject_tag
from storage.administration.anchors import Anchors
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.administration.jobs import CANCELLED, LEASE_SECONDS, MORE, OPEN_STATES, Job, Jobs, Lease, Slice, job_scope
from storage.collection.accepted_losses import AcceptedLosses
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof
from storage.encoding import decode_json, encode_json
from storage.errors import IntegrityFailure, JobNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.key_lifecycle.shred import SHRED_SUBJECT_KIND, SHRED_TENANT_KIND
from storage.key_lifecycle.tombstones import Explained, Tombstones
from storage.keys.keys import Keys
from storage.postgres.unit_of_work import Transaction
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.deployment import jobs as jobs_sql
from storage.statements.threads import verifying as sql
from storage.verification.report import Finding, Report
from storage.verification.threads import Verification

T = TypeVar("T")

VERIFY_TENANT_KIND = "verify-tenant"
VERIFY_DEPLOYMENT_KIND = "verify-deployment"
WHOLE_TENANT = "tenant"
DEPLOYMENT = "deployment"
SLICE_SECONDS = 2.0
# A long thread takes longer than a lease; the job is kept meanwhile.
RENEW_SECONDS = LEASE_SECONDS / 3
# Findings a job keeps, a few dozen kilobytes; where there are more, the numbers say enough.
FINDINGS_MAX = 100
# Tenants that are verified at once, and how often it is looked whether one has ended.
TENANTS_OPEN_MAX = 8
LOOK_SECONDS = 0.5
# Anchored heads are read again after so long; older ones only find less.
ANCHORS_SECONDS = 300.0
_SUBJECTS_PAGE = 1000


class FoundDamage(Struct, omit_defaults=True):
    """A finding of a tenant's job."""

    code: str
    detail: str
    subject_id: str | None = None
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None


class TenantDamage(Struct):
    """How often a tenant's job found one kind of damage."""

    tenant_id: UUID
    job_id: UUID
    code: str
    count: int


class Counts(Struct, kw_only=True):
    """The counts of what was verified so far, and of what was found, by code."""

    threads: int = 0
    threads_skipped: int = 0
    threads_frozen: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    pieces: int = 0
    items_opened: int = 0
    items_skipped: int = 0
    found: dict[str, int] = {}


class TenantReport(Counts, kw_only=True):
    """The note of a tenant's job. ``known_losses``: anchored heads that an accepted restore lost; no damage."""

    findings: list[FoundDamage] = []
    known_losses: int = 0


class DeploymentReport(Counts, kw_only=True):
    """The note of the deployment's job; ``known_losses`` as each tenant's, and tenants that are known to be missing."""

    findings: list[TenantDamage] = []
    known_losses: int = 0


class _TenantPosition(TenantReport, kw_only=True):
    """Where a tenant's job is.

    ``thread_id`` None: ``subject_id`` is finished. ``items_after``: its threads are, and its items up to this path.
    ``begun_by``: the deployment's job that began this one.
    """

    subject_id: str = ""
    thread_id: str | None = None
    items_after: str | None = None
    begun_by: UUID | None = None


class _DeploymentPosition(DeploymentReport, kw_only=True):
    """Where the deployment's job is: after ``tenant_id``, with these jobs not yet ended."""

    tenant_id: UUID = UUID(int=0)
    open: list[tuple[UUID, UUID]] = []


_DEPLOYMENT_START = encode_json(_DeploymentPosition()).decode()
_TENANTS_PAGE = 100
_COUNTED = (
    "threads", "threads_skipped", "threads_frozen", "checkpoints", "pending_writes", "pieces", "items_opened",
    "items_skipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The sources that say which subjects and tenants must be there."""

    keys: Keys
    losses: AcceptedLosses
    tombstones: Tombstones
    logs: Anchors


@dataclass(frozen=True, slots=True)
class SteeringRows:
    """The rows that steer the gateway, and what proves that a gateway wrote them.

    ``sources`` give the rows of one kind of a tenant each, with their proofs.
    """

    control: ControlRows
    sources: Sequence[Callable[[Transaction, UUID], AsyncIterator[tuple[Row, Proof]]]]


class Verifying:
    """Starts and performs the jobs."""

    def __init__(
        self,
        access: Access,
        jobs: Jobs,
        audit: Audit,
        verification: Verification,
        witnesses: Witnesses,
        steering: SteeringRows,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._unit_of_work = access.unit_of_work
        self._keys = witnesses.keys
        self._jobs = jobs
        self._audit = audit
        self._verification = verification
        self._losses = witnesses.losses
        self._tombstones = witnesses.tombstones
        self._logs = witnesses.logs
        self._steering = steering
        self._renew_seconds = renew_seconds
        self._known: tuple[UUID, float, AnchoredHeads] | None = None

    async def begin_tenant(self, scope: TenantScope, actor: str, begun_by: UUID | None = None) -> UUID:
        """Begin to verify a tenant; while that goes on, this is the same job.

        ``begun_by`` is a job of the deployment: when it is cancelled, what it began ends, too.
        """
        position = encode_json(_TenantPosition(begun_by=begun_by)).decode()
        return await self._begin(scope, scope.tenant_id, (VERIFY_TENANT_KIND, WHOLE_TENANT, position), actor)

    async def begin_deployment(self, actor: str) -> UUID:
        """Begin to verify every tenant; as `begin_tenant`."""
        job = (VERIFY_DEPLOYMENT_KIND, DEPLOYMENT, _DEPLOYMENT_START)
        return await self._begin(OperatorScope(), OPERATOR_CHAIN, job, actor)

    async def _begin(
        self, scope: TenantScope | OperatorScope, tenant_id: UUID, job: tuple[str, str, str], actor: str
    ) -> UUID:
        kind, target, position = job
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            running = await self._jobs.open(transaction, tenant_id, kind, target)
            if running is not None:
                return running
            job_id = await self._jobs.add(transaction, tenant_id, kind, target, position)
            await self._audit.append(transaction, tenant_id, actor, "verify.begin", target, {"job_id": str(job_id)})
        return job_id

    # --- a tenant ------------------------------------------------------------------------------------------------

    async def perform_tenant(self, lease: Lease) -> Slice:
        """A slice of a tenant's verification: stretches of subjects, for about two seconds."""
        at = decode_json(lease.position, _TenantPosition)
        scope = TenantScope(lease.tenant_id)
        if at.begun_by is not None and await self._has_ended_with(lease, scope, at.begun_by):
            return MORE
        until = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < until:
            subject_id, after = at.subject_id, at.thread_id
            if after is None:
                page = await self._verification.subjects(scope, 1, (subject_id,))
                if not page.items:
                    await self._renewing(lease, self._check_control_rows(scope, at))
                    await self._renewing(lease, self._compare_subjects(scope, at))
                    note = encode_json(msgspec.convert(msgspec.to_builtins(at), TenantReport)).decode()
                    return Slice(ended=True, note=note)
                subject_id, after = page.items[0], ""
            report = await self._renewing(lease, self._stretch(lease, Scope(scope.tenant_id, subject_id), after, at))
            for name in _COUNTED:
                setattr(at, name, getattr(at, name) + getattr(report, name))
            _take(at, subject_id, report.findings)
            at.subject_id, at.thread_id, at.items_after = subject_id, report.after, report.items_after
            async with self._unit_of_work.begin(scope) as transaction:
                total = await transaction.fetch_only(sql.COUNT_SUBJECTS)
                await lease.advance(transaction, encode_json(at).decode(), int(report.after is None), total)
        return MORE

    async def _has_ended_with(self, lease: Lease, scope: TenantScope, begun_by: UUID) -> bool:
        """Cancel this job if the deployment's job that began it was cancelled; returns whether it was."""
        try:
            parent = await self._jobs.get(OperatorScope(), begun_by)
        except JobNotFound:
            return False
        if parent.error != CANCELLED:
            return False
        async with self._unit_of_work.begin(scope) as transaction:
            job = self._jobs.read(
                await transaction.fetch_only(jobs_sql.LOCK, owner=scope.tenant_id, job_id=lease.job_id)
            )
            if job.state in OPEN_STATES:
                await self._jobs.cancel(transaction, job)
                detail = {"kind": job.kind, "begun_by": str(begun_by)}
                target = f"job:{job.job_id}"
                await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "job.cancel", target, detail)
        return True

    async def _renewing(self, lease: Lease, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work``, and keep the lease for as long as it takes."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=self._renew_seconds))[0]:
                async with self._unit_of_work.begin(job_scope(lease.tenant_id)) as transaction:
                    await lease.advance(transaction, lease.position)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _stretch(self, lease: Lease, scope: Scope, after: str, at: _TenantPosition) -> Report:
        known = self._known
        if known is None or known[0] != lease.job_id or time.monotonic() - known[1] > ANCHORS_SECONDS:
            anchored = await self._losses.anchored(scope.tenant_id)
            known = self._known = (lease.job_id, time.monotonic(), anchored)
        try:
            return await self._verification.subject(scope, after, known[2], at.items_after)
        except KeyDestroyed:
            return Report()  # shredded meanwhile; whether it was is seen when the subjects are compared
        except KeyDenied:
            return Report(findings=[Finding(code="keys", detail="the root key refuses to open the tenant's key")])
        except IntegrityFailure as error:
            return Report(findings=[Finding(code="keys", detail=str(error))])

    async def _check_control_rows(self, scope: TenantScope, at: _TenantPosition) -> None:
        """Find rows that steer the gateway and that no gateway wrote."""
        tenant_id = scope.tenant_id
        async with self._unit_of_work.snapshot(scope) as transaction:
            for source in self._steering.sources:
                async for row, proof in source(transaction, tenant_id):
                    if not self._steering.control.is_authentic(row, proof):
                        detail = f"{row} was written or edited outside the gateway"
                        _take(at, None, [Finding(code="control-row", detail=detail)])
                        self._verification.count_damage()

    async def _compare_subjects(self, scope: TenantScope, at: _TenantPosition) -> None:
        """Find subjects that have data and no keys, and those that were anchored and are not there.

        Heads of a subject carry a tag under its keys. A tag that no subject present makes is of one that is gone: of
        a shredded one where a tombstone names it. Tombstones without a tag, and subjects whose keys do not open (which
        is a finding of its own), may each account for one more, so that no shred looks like damage.
        """
        # Before the subjects, which therefore are never behind.
        self._known = None
        await self._compare_keys(scope, at)
        anchored = await self._losses.anchored(scope.tenant_id)
        at.known_losses = anchored.left_out
        unknown = set(anchored.tags)
        allowance = 0
        if unknown:
            async for _, sealer in self._sealers(scope):
                if sealer is None:
                    allowance += 1
                else:
                    unknown.discard(subject_tag(sealer))
        try:
            explained = await self._tombstones.explained(scope.tenant_id)  # after the subjects: one may go meanwhile
        except IntegrityFailure as error:
            _take(at, None, [Finding(code="tombstone", detail=str(error))])
            return
        missing = len(unknown - explained.tags) - explained.untagged - allowance
        if missing > 0 and not (explained.whole_tenant or explained.whole_tenant_unproven):
            detail = f"{missing} or more subjects that were anchored are not there, and no request shredded them"
            _take(at, None, [Finding(code="subject-missing", detail=detail)])
            self._verification.count_damage()
        if explained.tags - unknown or explained.whole_tenant:
            await self._compare_shreds(scope, at, explained)

    async def _compare_keys(self, scope: TenantScope, at: _TenantPosition) -> None:
        """Find subjects that have data and no key that opens it; a shred that is under way is no damage."""
        without = await self._verification.subjects_without_keys(scope)
        shredding = {subject_id for subject_id in without if await self._is_being_shredded(scope, subject_id)}
        still = await self._verification.subjects_without_keys(scope) if without else {}  # a shred may have ended
        for subject_id in [each for each in without if each in still and each not in shredding]:
            how = "destroyed, and no shred is under way" if still[subject_id] else "removed"
            detail = f"the subject's keys were {how} outside the gateway, but not its data"
            _take(at, subject_id, [Finding(code="keys", detail=detail)])
            self._verification.count_damage()

    async def _is_being_shredded(self, scope: TenantScope, subject_id: str) -> bool:
        with contextlib.suppress(IntegrityFailure):  # a job that no gateway wrote explains nothing
            async with self._unit_of_work.begin(scope) as transaction:
                for job in ((SHRED_SUBJECT_KIND, subject_id), (SHRED_TENANT_KIND, WHOLE_TENANT)):
                    if await self._jobs.open(transaction, scope.tenant_id, *job) is not None:
                        return True
        return False

    async def _compare_shreds(self, scope: TenantScope, at: _TenantPosition, explained: Explained) -> None:
        """Find subjects that were shredded and have those keys again. A start looks, too, but believes jobs."""
        async for subject_id, cached in self._sealers(scope):
            if cached is None or not (explained.whole_tenant or subject_tag(cached) in explained.tags):
                continue
            shredding = await self._is_being_shredded(scope, subject_id)
            place = Scope(scope.tenant_id, subject_id)
            self._keys.evict(place)
            with contextlib.suppress(KeyDestroyed):  # it was in this process's cache only
                if not shredding and await self._keys.existing_sealer(place) is not None:
                    detail = "the subject was shredded, but somebody put its keys back"
                    _take(at, subject_id, [Finding(code="shred-undone", detail=detail)])
                    self._verification.count_damage()

    async def _sealers(self, scope: TenantScope) -> AsyncIterator[tuple[str, Sealer | None]]:
        """The tenant's subjects that have keys; None where they do not open, which is a finding of its own."""
        after = ""
        while True:
            page = await self._verification.subjects(scope, _SUBJECTS_PAGE, (after,))
            for subject_id in page.items:
                after = subject_id
                try:
                    sealer = await self._keys.existing_sealer(Scope(scope.tenant_id, subject_id))
                except KeyDestroyed:
                    continue
                except (IntegrityFailure, KeyDenied):
                    yield subject_id, None
                    continue
                if sealer is not None:
                    yield subject_id, sealer
            if page.after is None:
                return

    # --- all tenants ---------------------------------------------------------------------------------------------

    async def perform_deployment(self, lease: Lease) -> Slice:
        """A slice of the verification of all tenants: take what has ended, begin what is next."""
        at = decode_json(lease.position, _DeploymentPosition)
        waiting, ended = [], 0
        for tenant_id, job_id in at.open:
            try:
                job = await self._jobs.get(TenantScope(tenant_id), job_id)
            except JobNotFound:
                ended += 1
                continue
            except IntegrityFailure:
                _take_damage(at, TenantDamage(tenant_id, job_id, "control-row", 1))
                ended += 1
                continue
            if job.state in {"queued", "running"}:
                waiting.append((tenant_id, job_id))
            else:
                _take_job(at, job)
                ended += 1
        at.open = waiting
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            total = await transaction.fetch_only(sql.COUNT_TENANTS)
            following = await transaction.fetch_all(
                sql.TENANTS_AFTER, after=at.tenant_id, limit=TENANTS_OPEN_MAX - len(waiting)
            )
        for tenant_id in following:
            at.tenant_id = tenant_id
            job_id = await self.begin_tenant(TenantScope(at.tenant_id), GATEWAY_ACTOR, lease.job_id)
            at.open.append((at.tenant_id, job_id))
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await lease.advance(transaction, encode_json(at).decode(), ended, total)
        if at.open:
            return Slice(ended=False, again_seconds=LOOK_SECONDS, waits_for="other-jobs")
        known = await self._losses.missing_tenants()
        at.known_losses += len(known)
        for tenant_id in await self._renewing(lease, self._missing_tenants(known)):
            _take_damage(at, TenantDamage(tenant_id, lease.job_id, "tenant-missing", 1))
            self._verification.count_damage()
        return Slice(ended=True, note=encode_json(msgspec.convert(msgspec.to_builtins(at), DeploymentReport)).decode())

    async def accept_losses(self) -> None:
        """Put on record what a restored database lacks of what is anchored, so that it is no damage from then on.

        Call it only on a database that no gateway serves, and that was restored: whatever is missing then is accepted.

        Raises:
            BlobUnavailable: the object store does not answer.
            IntegrityFailure: a tombstone is not authentic.
            CryptoError: the root key cannot open what is needed now.
        """
        tenants = self._unit_of_work.each(OperatorScope(), sql.TENANTS_AFTER, UUID(int=0), _TENANTS_PAGE)
        async for tenant_id in tenants:
            await self._losses.accept_heads(tenant_id, await self._lost_heads(TenantScope(tenant_id)))
        await self._losses.accept_tenants(await self._missing_tenants(await self._losses.missing_tenants()))

    async def _lost_heads(self, scope: TenantScope) -> list[bytes]:
        anchored = await self._losses.anchored(scope.tenant_id)
        lost: list[bytes] = []
        unknown = set(anchored.tags)
        if not unknown:
            return lost
        async for subject_id, sealer in self._sealers(scope):
            if sealer is not None:
                unknown.discard(subject_tag(sealer))
                place = Scope(scope.tenant_id, subject_id)
                lost += (head.entry for head in await self._verification.lost_heads(place, anchored))
        explained = await self._tombstones.explained(scope.tenant_id)
        for tag in unknown - explained.tags:
            lost += anchored.newest_of(tag)
        return lost

    async def _missing_tenants(self, known: set[UUID]) -> list[UUID]:
        missing = []
        for tenant_id in await self._logs.missing_tenants():
            if tenant_id in known:
                continue
            explained = await self._tombstones.explained(tenant_id)
            if not (explained.whole_tenant or explained.whole_tenant_unproven):
                missing.append(tenant_id)
        return missing


def _take(at: TenantReport, subject_id: str | None, findings: list[Finding]) -> None:
    for each in findings:
        at.found[each.code] = at.found.get(each.code, 0) + 1
        if len(at.findings) < FINDINGS_MAX:
            at.findings.append(
                FoundDamage(each.code, each.detail, subject_id, each.thread_id, each.namespace, each.checkpoint_id)
            )


def _take_job(at: DeploymentReport, job: Job) -> None:
    """Add what a tenant's job found. One that failed verified nothing: that is a finding, too."""
    try:
        report = decode_json(job.note or "", TenantReport)
    except msgspec.DecodeError:
        report = TenantReport()
    for name in _COUNTED:
        setattr(at, name, getattr(at, name) + getattr(report, name))
    at.known_losses += report.known_losses
    found = report.found if job.state == "done" and job.note else {"job-failed": 1}
    for code, count in found.items():
        _take_damage(at, TenantDamage(job.tenant_id, job.job_id, code, count))


def _take_damage(at: DeploymentReport, damage: TenantDamage) -> None:
    at.found[damage.code] = at.found.get(damage.code, 0) + damage.count
    if len(at.findings) < FINDINGS_MAX:
        at.findings.append(damage)
