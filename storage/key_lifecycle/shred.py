"""Crypto-shredding: destroying the keys of a subject or a tenant, so that what they sealed can never be opened again.

In this order:

1. The intent: a job row, unless a legal hold keeps anything of it. From here the shred is carried on, whoever crashes;
   no job that a gateway did not write begins one (`storage.control.rows`).
2. Unless something is held by now, the **tombstone**, an object outside the database, where a restored backup does not
   reach. From here it is carried to its end, whatever is held from now on. It names no subject: it holds a keyed digest
   of the subject's id, under a key that only the root key opens, and is authenticated with it.
3. One transaction: keys destroyed, `shred_effective_at` set, the audit log written. Every gateway refuses from its
   next request on, because each load and save reads its key's state in its own statement.
4. In the background, when no request is at work that began before: the rows are deleted, and the blobs condemned, whose
   objects nobody can open any more and the sweeper removes when the last backup has expired.

Honest limits: backups, replicas and write-ahead logs hold the wrapped keys until they expire, which is what
`shred_effective_at` says; a holder of such a backup *and* the root key can open it until then. Identifiers stay: the
subject's id in the tombstone rows of its keys and in the audit log. A database restored from before a shred does not
know the tombstone, and is not served from until `accept` applied it again. An operator who opens one finishes first
what has a tombstone and still has its keys (`unapplied`), and who serves from it looks again from time to time
(`uphold`).
"""

import hmac
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec

from crypto import CryptoError, SecretKey
from storage.access.head_anchors import subject_tag
from storage.administration.audit import GATEWAY_ACTOR, LOCAL_ACTOR
from storage.administration.jobs import MORE, Lease, Slice, outlasting_refusals
from storage.blobs.keyspace import TombstoneLocation
from storage.control.rows import ControlRows, JobDraft, job_row
from storage.encoding import decode_json, encode_json
from storage.errors import IntegrityFailure, InvalidState, SubjectNotFound, TenantNotFound
from storage.event_queue.emitting import Emitting
from storage.events.keeping import EventKeeping
from storage.format.audit import OPERATOR_CHAIN
from storage.key_lifecycle.parts import Parts
from storage.key_lifecycle.tombstones import Level, Tombstone, Tombstones, subject_digest
from storage.ledger.ledger import BlobLedger
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Transaction
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.deployment import jobs as jobs_sql
from storage.statements.deployment import tenants as tenants_sql
from storage.statements.deployment.jobs import JobRow
from storage.statements.items import clear_vectors
from storage.statements.keys import shred as sql
from storage.statements.rules.vector_policies import EXTENSION_SCHEMA
from storage.statements.threads.completeness import TRACES
from storage.statements.threads.threads import DELETE_ALL
from storage.threads.holds import refuse_held_subject, refuse_held_tenant

P = TypeVar("P", bound=sql.PurgedItem)

SHRED_SUBJECT_KIND = "shred-subject"
SHRED_TENANT_KIND = "shred-tenant"
WHOLE_TENANT = "tenant"
# Of a tombstone whose subject the restored database does not have; no subject's id begins like this.
NOBODY = "~nobody"
SETTLE_SECONDS = 0.2
SLICE_SECONDS = 2.0
# How often a process that serves asks the tombstones whether keys were put back: about as long as keys are cached.
UPHOLD_SECONDS = 300.0
_KEYS_PAGE = 1000
_PAGE = 100
_ITEMS_PAGE = 1000


def _position(*parts: str) -> str:
    return encode_json(parts).decode()


INTENDED = _position("intended")


@dataclass(frozen=True, slots=True)
class Shredded:
    """A shred: the keys are destroyed in this database.

    Attributes:
        job_id: The job that deletes the rows, and the name of the tombstone.
        shred_effective_at: The moment at which the last backup that holds the wrapped keys has expired.
        tombstone: Whether a tombstone is kept outside the database; False where there is no object store.
    """

    job_id: UUID
    shred_effective_at: datetime
    tombstone: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """What `Shred.accept` did with one tombstone."""

    tenant_id: UUID
    shred_id: UUID
    level: Level
    keys_destroyed: int


@dataclass(frozen=True, slots=True)
class _WithKeys:
    """A tombstone that this database contradicts, and its job where that has not yet come to the keys."""

    location: TombstoneLocation
    begun: JobRow | None


@dataclass(frozen=True, slots=True)
class EventParts:
    """What a shred needs of events: to tell that it is done, and to leave nothing of the subject in them."""

    emitting: Emitting
    keeping: EventKeeping


class Shred:
    """Shreds, and keeps what was shredded from coming back."""

    def __init__(
        self,
        parts: Parts,
        control: ControlRows,
        ledger: BlobLedger,
        tombstones: Tombstones,
        events: "EventParts",
        backup_retention_days: int,
    ) -> None:
        self._unit_of_work = parts.deployment.unit_of_work
        self._clock = parts.deployment.clock
        self._keys = parts.keys
        self._jobs = parts.jobs
        self._audit = parts.audit
        self._older_transactions = parts.older_transactions
        self._control = control
        self._ledger = ledger
        self.tombstones = tombstones
        self._emitting = events.emitting
        self._event_keeping = events.keeping
        self._retention = timedelta(days=backup_retention_days)

    # --- shredding -------------------------------------------------------------------------------------------------

    async def subject(self, scope: Scope, confirm: str, actor: str) -> Shredded:
        """Shred a subject; again, it gives the same answer. An error after the intent is no way back: repeat it.

        ``confirm`` is the subject's id once more.

        Raises:
            InvalidState: not confirmed; nothing happened.
            LegalHold: one of its threads must be kept; nothing happened.
            SubjectNotFound: it never had a key.
            BlobUnavailable: the tombstone could not be kept yet; the keys are still there.
            KeyUnavailable: as before, for the root key, which seals the tombstone.
        """
        _check_confirmed(confirm, scope.subject_id, "the subject's id")
        await self._control.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            before = await transaction.fetch_only(sql.SUBJECT_KEYS_LEFT)
            if not before.keys:
                raise SubjectNotFound
            job_id = await self._intend(
                transaction, scope.tenant_id, SHRED_SUBJECT_KIND, scope.subject_id, actor, keyed=before.active > 0
            )
        await self._destroy_subject(scope, job_id, actor)
        async with self._unit_of_work.snapshot(scope) as transaction:
            after = await transaction.fetch_only(sql.SUBJECT_KEYS_LEFT)
        assert after.shred_effective_at is not None  # noqa: S101  they were destroyed
        return Shredded(job_id, after.shred_effective_at, self.tombstones.are_kept)

    async def tenant(self, tenant_id: UUID, confirm: str, actor: str) -> Shredded:
        """Shred a tenant with all of its subjects; as `subject`.

        Raises:
            InvalidState: not confirmed; nothing happened.
            LegalHold: something of it must be kept; nothing happened.
            TenantNotFound: there is no such tenant.
            BlobUnavailable: the tombstone could not be kept yet; the keys are still there.
            KeyUnavailable: as before, for the root key.
        """
        _check_confirmed(confirm, str(tenant_id), "the tenant's id")
        await self._control.ready()
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(tenants_sql.ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            before = await transaction.fetch_only(sql.TENANT_KEYS_LEFT, tenant_id=tenant_id)
            job_id = await self._intend(
                transaction, tenant_id, SHRED_TENANT_KIND, WHOLE_TENANT, actor, keyed=before.active > 0
            )
        await self._destroy_tenant(tenant_id, job_id, actor)
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            after = await transaction.fetch_only(sql.TENANT_KEYS_LEFT, tenant_id=tenant_id)
        assert after.destroyed_at is not None  # noqa: S101  they were destroyed
        return Shredded(job_id, after.destroyed_at + self._retention, self.tombstones.are_kept)

    async def _intend(
        self, transaction: Transaction, tenant_id: UUID, kind: str, target: str, actor: str, *, keyed: bool
    ) -> UUID:
        known = await transaction.fetch_one(sql.LAST_JOB, owner=tenant_id, kind=kind, target=target)
        if known is not None and self._jobs.is_sound(known):
            if keyed:
                await self._refuse_held(transaction, tenant_id, kind, target)
            # One that failed left rows; what has its keys again, after it was done, has rows again.
            if known.state == "failed" or (known.state == "done" and keyed):
                await self._requeue(transaction, tenant_id, known.job_id, kind, target)
            return known.job_id
        await self._refuse_held(transaction, tenant_id, kind, target)
        job_id = await self._jobs.add(transaction, tenant_id, kind, target, INTENDED)
        detail = {"job_id": str(job_id)}
        named = f"subject:{target}" if kind == SHRED_SUBJECT_KIND else f"tenant:{tenant_id}"
        await self._audit.append(transaction, tenant_id, actor, "shred.begin", named, detail)
        return job_id

    async def _refuse_held(self, transaction: Transaction, tenant_id: UUID, kind: str, target: str) -> None:
        if kind == SHRED_SUBJECT_KIND:
            await refuse_held_subject(transaction, self._control, Scope(tenant_id, target))
        else:
            await refuse_held_tenant(transaction, self._control, tenant_id)

    async def _requeue(self, transaction: Transaction, tenant_id: UUID, shred_id: UUID, kind: str, target: str) -> None:
        row = job_row(JobDraft(tenant_id, shred_id, kind, target, position=INTENDED))
        await transaction.run(
            sql.BEGIN_AGAIN,
            owner=tenant_id,
            job_id=shred_id,
            kind=kind,
            target=target,
            position=INTENDED,
            **self._control.proof(row)._asdict(),
        )
        transaction.when_committed(self._jobs.added.set)

    async def _destroy_subject(self, scope: Scope, shred_id: UUID, actor: str) -> int:
        await self.tombstones.bury(
            scope.tenant_id, shred_id, "subject", scope.subject_id, await self._anchor_tag(scope)
        )
        now = self._clock.now()
        async with self._unit_of_work.begin(scope) as transaction:
            destroyed = await transaction.run(sql.DESTROY_SUBJECT, now=now, effective_at=now + self._retention)
            if destroyed:
                await self._record(transaction, scope.tenant_id, actor, f"subject:{scope.subject_id}", shred_id, now)
        self._keys.evict(scope)
        return destroyed

    async def _destroy_tenant(self, tenant_id: UUID, shred_id: UUID, actor: str) -> int:
        await self.tombstones.bury(tenant_id, shred_id, "tenant", None)
        now = self._clock.now()
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            destroyed = await transaction.run(sql.REFUSE_KEYS, tenant_id=tenant_id, now=now)
            destroyed += await transaction.run(sql.DESTROY_TENANT, tenant_id=tenant_id, now=now)
            subjects = await transaction.run(
                sql.DESTROY_SUBJECTS, tenant_id=tenant_id, now=now, effective_at=now + self._retention
            )
            if destroyed or subjects:
                target = f"tenant:{tenant_id}"
                await self._record(transaction, tenant_id, actor, target, shred_id, now)
                await self._record(transaction, OPERATOR_CHAIN, actor, target, shred_id, now)
        self._keys.evict_tenant(tenant_id)
        return destroyed + subjects

    async def _record(
        self, transaction: Transaction, chain: UUID, actor: str, target: str, shred_id: UUID, now: datetime
    ) -> None:
        detail = {
            "job_id": str(shred_id),
            "shred_effective_at": (now + self._retention).isoformat(),
            "tombstone": self.tombstones.are_kept,
        }
        await self._audit.append(transaction, chain, actor, "key.shred", target, detail)

    # --- deleting the rows -----------------------------------------------------------------------------------------

    @outlasting_refusals
    async def perform(self, lease: Lease) -> Slice:
        """A slice of a shred. Position: the step, then what the step needs."""
        step, *at = decode_json(lease.position)
        if lease.target == NOBODY:
            return Slice(ended=True)
        if step == "intended":
            await self._refuse_held_now(lease)
            if lease.kind == SHRED_SUBJECT_KIND:
                await self._destroy_subject(Scope(lease.tenant_id, lease.target), lease.job_id, GATEWAY_ACTOR)
            else:
                await self._destroy_tenant(lease.tenant_id, lease.job_id, GATEWAY_ACTOR)
            moment = await self._older_transactions.moment()
            await self._move(lease, "settle", moment.isoformat())
            return MORE
        if step == "settle":
            if not await self._older_transactions.have_ended(datetime.fromisoformat(at[0])):
                return Slice(ended=False, again_seconds=SETTLE_SECONDS, waits_for="older-transactions")
            await self._move(lease, "purge", "")
            return MORE
        return await self._purge(lease, at[0])

    async def _refuse_held_now(self, lease: Lease) -> None:
        """Refuse to go on with what came to be held after the intent, while nothing of it happened yet.

        Raises:
            LegalHold: there is neither a tombstone nor a key destroyed.
        """
        if await self.tombstones.is_kept(lease.tenant_id, lease.job_id):
            return
        if lease.kind == SHRED_SUBJECT_KIND:
            async with self._unit_of_work.begin(Scope(lease.tenant_id, lease.target)) as transaction:
                if (await transaction.fetch_only(sql.SUBJECT_KEYS_LEFT)).active:
                    await self._refuse_held(transaction, lease.tenant_id, lease.kind, lease.target)
            return
        async with self._unit_of_work.begin(OperatorScope(founding=lease.tenant_id)) as transaction:
            if (await transaction.fetch_only(sql.TENANT_KEYS_LEFT, tenant_id=lease.tenant_id)).active:
                await self._refuse_held(transaction, lease.tenant_id, lease.kind, lease.target)

    async def _move(self, lease: Lease, *position: str) -> None:
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            await lease.advance(transaction, _position(*position))

    async def _purge(self, lease: Lease, after: str) -> Slice:
        until = time.monotonic() + SLICE_SECONDS
        if lease.kind == SHRED_SUBJECT_KIND:
            scope = Scope(lease.tenant_id, lease.target)
            if not await self._purge_subject(lease, scope, after, until):
                return MORE
            if not await self._forget_events(lease, scope, after):
                return Slice(ended=False, again_seconds=SETTLE_SECONDS)
            return Slice(ended=True)
        async for subject_id in self._unit_of_work.each(TenantScope(lease.tenant_id), sql.SUBJECTS_AFTER, after, _PAGE):
            if not await self._purge_subject(lease, Scope(lease.tenant_id, subject_id), after, until):
                return MORE
            after = subject_id
            await self._move(lease, "purge", after)
        async for _ in self._event_keeping.forget_all(lease.tenant_id):
            await self._move(lease, "purge", after)
        async with self._unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
            for statement in sql.PURGE_TENANT:
                await transaction.run(statement)
        self._emitting.learn(lease.tenant_id, is_on=False)
        return Slice(ended=True)

    async def _forget_events(self, lease: Lease, scope: Scope, after: str) -> bool:
        """Leave nothing of a subject in events, and tell of it, last of all; returns whether that is done."""
        done = False
        async for finished in self._event_keeping.forget(scope.tenant_id, scope.subject_id):
            done = finished
            await self._move(lease, "purge", after)
        if done:
            await self._emitting.ready(scope.tenant_id)
            async with self._unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:
                tag = self._control.subject_tag(scope.tenant_id, scope.subject_id)
                await self._emitting.of_shred(transaction, scope.tenant_id, lease.job_id, tag)
        return done

    async def _purge_subject(self, lease: Lease, scope: Scope, after: str, until: float) -> bool:
        while True:
            async with self._unit_of_work.snapshot(scope) as transaction:
                thread_ids = await transaction.fetch_all(TRACES, after="", limit=_PAGE)
            for thread_id in thread_ids:
                async with self._unit_of_work.begin(scope) as transaction:
                    for statement in DELETE_ALL:
                        await transaction.run(statement, thread_id=thread_id)
                    await lease.advance(transaction, _position("purge", after), 1)
                if time.monotonic() > until:
                    return False
            if not thread_ids:
                break
        if not await self._purge_clear_vectors(lease, scope, after, until):
            return False
        if not await self._purge_pages(lease, scope, after, until, sql.PURGE_VECTORS, sql.PurgedVectors()):
            return False
        if not await self._purge_pages(lease, scope, after, until, sql.PURGE_ITEMS, sql.PurgedItem()):
            return False
        async with self._unit_of_work.begin(scope) as transaction:
            await self._ledger.condemn_subject(transaction)
            for purge in sql.PURGE_REST:
                await transaction.run(purge)
            await lease.advance(transaction, _position("purge", after))
        return True

    async def _purge_pages(
        self, lease: Lease, scope: Scope, after: str, until: float, purge: Statement[P], last: P
    ) -> bool:
        """Delete a subject's items, or their vectors, page by page; returns whether nothing is left."""
        while True:
            async with self._unit_of_work.begin(scope) as transaction:
                gone = await transaction.fetch_all(purge, page_rows=_ITEMS_PAGE, **msgspec.structs.asdict(last))
                await lease.advance(transaction, _position("purge", after), len(gone))
            if len(gone) < _ITEMS_PAGE:
                return True
            if time.monotonic() > until:
                return False
            last = max(gone)

    async def _purge_clear_vectors(self, lease: Lease, scope: Scope, after: str, until: float) -> bool:
        """Delete what a subject has in clear, whatever its tenant's policy says; returns whether nothing is left."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            schema = await transaction.fetch_one(EXTENSION_SCHEMA)
        gone = 0 if schema is None else _ITEMS_PAGE
        while schema is not None and gone == _ITEMS_PAGE:
            if time.monotonic() > until:
                return False
            async with self._unit_of_work.begin(scope) as transaction:
                gone = await transaction.run(clear_vectors.of(schema).purge, page_rows=_ITEMS_PAGE)
                await lease.advance(transaction, _position("purge", after), gone)
        return True

    # --- tombstones ------------------------------------------------------------------------------------------------

    async def _anchor_tag(self, scope: Scope) -> bytes | None:
        try:
            sealer = await self._keys.existing_sealer(scope)
        except (CryptoError, IntegrityFailure):
            return None  # it is to be shredded all the same
        return None if sealer is None else subject_tag(sealer)

    async def unapplied(self) -> list[TombstoneLocation]:
        """Tombstones whose shred this database does not know, or whose keys are there again.

        A shred that has its tombstone and did not come to destroying the keys is brought that far first: another
        gateway may be at it just now, or it was in a backup while it was.

        Raises:
            BlobUnavailable: the object store does not answer.
            CryptoError: the root key does not open what is needed for that.
        """
        return [each.location for each in await self._with_keys() if not await self._carried_on(each.begun)]

    async def _carried_on(self, begun: JobRow | None) -> bool:
        """Destroy the keys of a shred that was begun; returns whether its tombstone is authentic.

        No lease is asked for: who has one may do the same at the same moment, and one of both changes nothing.
        """
        if begun is None:
            return False
        if begun.state == "failed":
            async with self._unit_of_work.begin(TenantScope(begun.tenant_id)) as transaction:
                await self._requeue(transaction, begun.tenant_id, begun.job_id, begun.kind, begun.target)
        try:
            if begun.kind == SHRED_SUBJECT_KIND:
                await self._destroy_subject(Scope(begun.tenant_id, begun.target), begun.job_id, GATEWAY_ACTOR)
            else:
                await self._destroy_tenant(begun.tenant_id, begun.job_id, GATEWAY_ACTOR)
        except IntegrityFailure:
            return False
        return True

    async def _with_keys(self) -> "list[_WithKeys]":
        """Tombstones whose shred this database does not know, or whose keys it has."""
        tenants: dict[UUID, dict[UUID, TombstoneLocation]] = {}
        async for location in self.tombstones.locations():
            tenants.setdefault(location.tenant_id, {})[location.shred_id] = location
        found = []
        for tenant_id, locations in tenants.items():
            async with self._unit_of_work.snapshot(TenantScope(tenant_id)) as transaction:
                unapplied = await transaction.fetch_all(
                    sql.UNAPPLIED,
                    shred_ids=list(locations),
                    subject_kind=SHRED_SUBJECT_KIND,
                    tenant_kind=SHRED_TENANT_KIND,
                )
                jobs = {
                    shred_id: await transaction.fetch_one(jobs_sql.ONE, owner=tenant_id, job_id=shred_id)
                    for shred_id in unapplied
                }
            for shred_id, job in jobs.items():
                found.append(_WithKeys(locations[shred_id], job if await self._is_begun(job) else None))
        return found

    async def _is_begun(self, job: JobRow | None) -> bool:
        """Whether a shred was on its way to destroying the keys, or is in a backup that was made while it was."""
        if job is None or job.position != INTENDED or job.state == "done":
            return False
        await self._control.ready()
        return self._jobs.is_sound(job)

    async def accept(self) -> list[Accepted]:
        """Apply again every shred that a restored database does not know. Repeating it changes nothing.

        Raises:
            IntegrityFailure: a tombstone is not authentic: no gateway wrote it; nothing was done with it.
            BlobUnavailable: the object store does not answer.
            KeyUnavailable: the root key cannot be reached.
        """
        if not self.tombstones.are_kept:
            return []
        await self._control.ready()
        return [await self._apply(each.location, LOCAL_ACTOR) for each in await self._with_keys()]

    async def uphold(self) -> int:
        """Shred again, while this database is served from, what was put back into it; returns how many shreds.

        At a start `unapplied` finds the same, and the gateway refuses: a restored database is for a person to look at.
        Here it is too late for that, and a shred cannot be undone.

        Raises:
            IntegrityFailure: a tombstone is not authentic: no gateway wrote it. All others were looked at.
            BlobUnavailable: the object store does not answer.
            CryptoError: the root key does not open what is needed.
        """
        if not self.tombstones.are_kept:
            return 0
        await self._control.ready()
        applied, refused = 0, None
        for each in await self._with_keys():
            try:
                if not await self._carried_on(each.begun):
                    await self._apply(each.location, GATEWAY_ACTOR)
                    applied += 1
            except IntegrityFailure as failure:
                refused = failure
        if refused is not None:
            raise refused
        return applied

    async def _apply(self, location: TombstoneLocation, actor: str) -> Accepted:
        tombstone, tombstone_key = await self.tombstones.open(location)
        tenant_id, shred_id = location.tenant_id, location.shred_id
        if tombstone.level == "tenant":
            await self._begin_again(tenant_id, shred_id, SHRED_TENANT_KIND, WHOLE_TENANT, actor)
            destroyed = await self._destroy_tenant(tenant_id, shred_id, actor)
        else:
            subject_id = await self._subject_of(tenant_id, tombstone, tombstone_key)
            # A backup from before the subject existed: there is nothing to destroy, but the shred is known again.
            await self._begin_again(tenant_id, shred_id, SHRED_SUBJECT_KIND, subject_id or NOBODY, actor)
            scope = None if subject_id is None else Scope(tenant_id, subject_id)
            destroyed = 0 if scope is None else await self._destroy_subject(scope, shred_id, actor)
        return Accepted(tenant_id, shred_id, tombstone.level, destroyed)

    async def _begin_again(self, tenant_id: UUID, shred_id: UUID, kind: str, target: str, actor: str) -> None:
        async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            await self._requeue(transaction, tenant_id, shred_id, kind, target)
            detail = {"job_id": str(shred_id)}
            await self._audit.append(transaction, tenant_id, actor, "shred.restore", f"job:{shred_id}", detail)

    async def _subject_of(self, tenant_id: UUID, tombstone: Tombstone, tombstone_key: SecretKey) -> str | None:
        async for subject_id in self._unit_of_work.each(TenantScope(tenant_id), sql.SUBJECTS_AFTER, "", _KEYS_PAGE):
            if hmac.compare_digest(subject_digest(tombstone_key, subject_id), tombstone.subject or b""):
                return subject_id
        return None


def _check_confirmed(confirm: str, expected: str, what: str) -> None:
    if confirm != expected:
        raise InvalidState(f"confirm must repeat {what}", "/confirm")
