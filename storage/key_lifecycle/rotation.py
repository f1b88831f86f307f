"""Rotation of keys at all three levels, without a request that fails and without a moment at which state is lost.

- **Root**: every tenant key, and the deployment's own, is wrapped again under the active root key. No payload changes.
- **Tenant**: a new tenant key; the tenant's subject keys are wrapped again under it; the old one is destroyed when no
  subject key needs it. No payload changes.
- **Subject**: a new data key seals from now on; `storage.key_lifecycle.reseal` re-seals what older versions sealed and
  then destroys them. The id key stays: content ids and the sums of the tamper evidence are made with it.

A version is stored as pending, read back and opened before it becomes active, so that nothing is ever sealed or
wrapped under a key that only memory held. A wrapping is replaced only by one that was opened and compared. What does
not authenticate is left as it is; the job then fails with the number of such keys, and the old version stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from crypto import CryptoError, KeyDestroyed, KeyUnavailable, SecretKey, WrappedKey, root_context
from storage.administration.audit import GATEWAY_ACTOR
from storage.administration.jobs import MORE, Lease, Slice, outlasting_refusals
from storage.control.deployment_keys import NO_TENANT, PURPOSES
from storage.encoding import decode_json, encode_json
from storage.errors import IdempotencyKeyReused, IntegrityFailure, LostRaceError, NotFound, SubjectNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.key_lifecycle.parts import Parts
from storage.key_lifecycle.reseal import COMPLETE_KIND, RESEAL_KIND
from storage.postgres.unit_of_work import Transaction
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.keys import deployment_keys as deployment_keys_sql
from storage.statements.keys import keys as keys_sql
from storage.statements.keys import rotation as sql
from storage.statements.keys.keys import SubjectKeyRow, TenantKeyRow, wrapping_columns

REWRAP_ROOT_KIND = "rewrap-tenant-keys"
REWRAP_TENANT_KIND = "rewrap-subject-keys"
WHOLE_TENANT = "tenant"
DEPLOYMENT = "deployment"
# Of a key version, and of what a job's id keeps free for one.
_KEY_VERSION_MAX = 2**32 - 1
# Rows of one batch, which is one transaction: a few milliseconds of unwrapping.
REWRAP_ROWS = 200
# Tenant keys are each a call or three to the root key's service.
ROOT_ROWS = 20


def _position(*parts: str | int) -> str:
    return encode_json(parts).decode()


_FIRST = _position(0, "", "", 0)


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotation that has begun: the version that is active now, and the job that does the rest.

    ``created`` is false when an equal request had begun it before.
    """

    key_version: int
    job_id: UUID
    created: bool = True


class Rotation:
    """Begins rotations, and performs the jobs that only rewrap."""

    def __init__(
        self,
        parts: Parts,
    ) -> None:
        deployment = parts.deployment
        self._unit_of_work = deployment.unit_of_work
        self._keys = parts.keys
        self._jobs = parts.jobs
        self._audit = parts.audit
        self._root_key = deployment.root_key
        self._deployment_id = deployment.deployment_id
        self._clock = deployment.clock

    # --- what shows ------------------------------------------------------------------------------------------------

    async def tenant_status(self, scope: TenantScope) -> list[sql.TenantKeyState]:
        """The versions of a tenant's key, oldest first."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await transaction.fetch_all(sql.TENANT_KEY_STATES)

    async def subject_status(self, scope: Scope) -> list[sql.SubjectKeyState]:
        """The versions of a subject's keys.

        Raises:
            SubjectNotFound: it never had any.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            states = await transaction.fetch_all(sql.SUBJECT_KEY_STATES)
        if not states:
            raise SubjectNotFound
        return states

    async def root_status(self) -> list[sql.RootKeyUse]:
        """Which root keys wrap how many tenant keys."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return await transaction.fetch_all(sql.ROOT_KEY_USES)

    # --- root ------------------------------------------------------------------------------------------------------

    async def rewrap_root(self, actor: str) -> UUID:
        """Begin to wrap every tenant key again under the active root key; returns the job."""
        await self._jobs.ready()
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            running = await self._jobs.open(transaction, OPERATOR_CHAIN, REWRAP_ROOT_KIND, DEPLOYMENT)
            if running is not None:
                return running
            total = await transaction.fetch_only(sql.COUNT_TENANT_KEYS)
            total += len(await transaction.fetch_all(deployment_keys_sql.EVERY_KEY))
            begin = _position(0, str(OPERATOR_CHAIN), 0)
            job_id = await self._jobs.add(transaction, OPERATOR_CHAIN, REWRAP_ROOT_KIND, DEPLOYMENT, begin, total)
            detail = {"job_id": str(job_id)}
            await self._audit.append(transaction, OPERATOR_CHAIN, actor, "key.rewrap", DEPLOYMENT, detail)
        return job_id

    @outlasting_refusals
    async def perform_root(self, lease: Lease) -> Slice:
        """A slice of a root rewrap. Position: failures so far, and the tenant key it is at; then only failures."""
        position = decode_json(lease.position)
        if len(position) > 1:
            failures, tenant, version = position
            return await self._rewrap_tenant_keys(lease, failures, UUID(tenant), version)
        failed = position[0] + await self._rewrap_deployment_keys(lease)
        if failed:
            return Slice(ended=True, error=f"{failed} keys were not rewrapped; their root key refused or is not listed")
        return Slice(ended=True)

    async def _rewrap_tenant_keys(self, lease: Lease, failures: int, after: UUID, version: int) -> Slice:
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(
                sql.TENANT_KEYS_AFTER, after_tenant=after, after_version=version, page_rows=ROOT_ROWS
            )
        for row in rows:
            context = self._keys.root_context(row.tenant_id, row.key_version)
            wrapped = await self._rewrapped(row, context, partial(_has_check_value, row.kcv))
            failures += wrapped is None
            async with self._unit_of_work.begin(OperatorScope(founding=row.tenant_id)) as transaction:
                if wrapped is not None:
                    await transaction.run(
                        sql.REWRAP_TENANT_KEY,
                        tenant_id=row.tenant_id,
                        key_version=row.key_version,
                        **wrapping_columns(wrapped),
                        wrapped_before=row.wrapped,
                    )
                position = _position(failures, str(row.tenant_id), row.key_version)
                await lease.advance(transaction, position, int(wrapped is not None))
        if len(rows) < ROOT_ROWS:
            async with self._unit_of_work.begin(OperatorScope()) as transaction:
                await lease.advance(transaction, _position(failures))
        return MORE

    async def _rewrap_deployment_keys(self, lease: Lease) -> int:
        failed = 0
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(deployment_keys_sql.EVERY_KEY)
        for row in rows:
            context = root_context(self._deployment_id, NO_TENANT, row.purpose, row.key_version)
            wrapped = await self._rewrapped(row, context, partial(_has_public_half, row))
            failed += wrapped is None
            async with self._unit_of_work.begin(OperatorScope()) as transaction:
                if wrapped is not None:
                    await transaction.run(
                        deployment_keys_sql.REWRAP_KEY,
                        purpose=row.purpose,
                        key_version=row.key_version,
                        **wrapping_columns(wrapped),
                        wrapped_before=row.wrapped,
                    )
                await lease.advance(transaction, lease.position, int(wrapped is not None))
        return failed

    async def _rewrapped(
        self,
        row: sql.TenantKeyToRewrap | deployment_keys_sql.DeploymentKeyRow,
        context: dict[str, str],
        is_same: Callable[[SecretKey], bool],
    ) -> WrappedKey | None:
        """The same key under the active root key, opened again to be sure; None if the root key refuses this one.

        Raises:
            KeyUnavailable: it cannot be reached; the job waits.
            KeyDenied: it refuses whatever it is asked, as with an expired token; the job waits.
            RootKeyInvalid: as before, for a file that is away.
        """
        old = WrappedKey(row.provider, row.root_key_id, row.root_key_version, row.wrapped)
        try:
            wrapped = await self._root_key.rewrap(old, context)
            return wrapped if is_same(await self._root_key.unwrap(wrapped, context)) else None
        except KeyUnavailable:
            raise
        except CryptoError:
            await self._root_key.health()
            return None

    # --- tenant ----------------------------------------------------------------------------------------------------

    async def rotate_tenant(self, scope: TenantScope, actor: str, repeated: UUID | None = None) -> Rotated:
        """Make a new tenant key active, and begin to wrap the subject keys again under it.

        ``repeated`` is the id that a request has which may come again; a rotation that had it is returned, and not made
        again.

        Raises:
            IdempotencyKeyReused: another key was rotated with it.
            NotFound: the tenant has no key yet.
            CryptoError: the root key does not wrap or open the new one; nothing changed.
            KeyDestroyed: the tenant was shredded.
        """
        return await self._unit_of_work.retrying(lambda: self._rotate_tenant(scope, actor, repeated))

    async def _rotate_tenant(self, scope: TenantScope, actor: str, repeated: UUID | None) -> Rotated:
        tenant_id = scope.tenant_id
        async with self._unit_of_work.snapshot(scope) as transaction:
            before = await _before(transaction, REWRAP_TENANT_KIND, WHOLE_TENANT, repeated)
            if before is not None:
                return before
            rows = await transaction.fetch_all(keys_sql.TENANT_KEYS)
        fresh = _next_version(rows, NotFound("the tenant has no key yet, hence nothing to rotate"))
        await self._keys.add_tenant_key(tenant_id, fresh, "pending")
        self._keys.evict_tenant(tenant_id)
        if fresh not in (await self._keys.tenant(tenant_id)).keys:
            raise LostRaceError
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.fetch_all(sql.LOCK_TENANT_KEYS)
            demoted = await transaction.run(sql.DEMOTE_TENANT_KEY)
            if not demoted or not await transaction.run(sql.PROMOTE_TENANT_KEY, key_version=fresh):
                raise LostRaceError  # shredded meanwhile, or another rotation took it
            total = await transaction.fetch_only(sql.COUNT_SUBJECT_KEYS_UNDER_OTHERS, tenant_key_version=fresh)
            job_id = await self._jobs.add(
                transaction, tenant_id, REWRAP_TENANT_KIND, WHOLE_TENANT, _FIRST, total, _job_id(repeated, fresh)
            )
            detail = {"job_id": str(job_id)}
            await self._audit.append(transaction, tenant_id, actor, "key.rotate", f"tenant-key:{fresh}", detail)
        self._keys.evict_tenant(tenant_id)
        return Rotated(fresh, job_id)

    async def rewrap_tenant(self, scope: TenantScope, actor: str) -> UUID:
        """Begin to wrap what is under older tenant keys again, where a rotation did not get to its end."""
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            running = await self._jobs.open(transaction, scope.tenant_id, REWRAP_TENANT_KIND, WHOLE_TENANT)
            if running is not None:
                return running
            job_id = await self._jobs.add(transaction, scope.tenant_id, REWRAP_TENANT_KIND, WHOLE_TENANT, _FIRST)
            detail = {"job_id": str(job_id)}
            await self._audit.append(transaction, scope.tenant_id, actor, "key.rewrap", WHOLE_TENANT, detail)
        return job_id

    @outlasting_refusals
    async def perform_tenant(self, lease: Lease) -> Slice:
        """A slice of a tenant's rewrap. Position: keys left behind in this pass, then the key it is at."""
        scope = TenantScope(lease.tenant_id)
        failures, after_subject, after_purpose, after_version = decode_json(lease.position)
        self._keys.evict_tenant(scope.tenant_id)
        active = (await self._keys.tenant(scope.tenant_id)).active_key_version
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.SUBJECT_KEYS_UNDER_OTHERS,
                tenant_key_version=active,
                after_subject=after_subject,
                after_purpose=after_purpose,
                after_version=after_version,
                page_rows=REWRAP_ROWS,
            )
        if not rows:
            return await self._end_tenant_pass(lease, scope, active, failures)
        failed, updates = failures, []
        for row in rows:
            try:
                wrapped = await self._keys.rewrapped(Scope(scope.tenant_id, row.subject_id), row, active)
            except (IntegrityFailure, KeyDestroyed):
                failed += 1
                continue
            updates.append((row, wrapped))
        last = rows[-1]
        async with self._unit_of_work.begin(scope) as transaction:
            # One that gives this version up meanwhile waits, or was first; then the next slice uses the newer one.
            if await transaction.fetch_one(keys_sql.HOLD_TENANT_KEY, key_version=active) != "active":
                raise LostRaceError
            done = 0
            for row, wrapped in updates:
                done += await transaction.run(
                    sql.REWRAP_SUBJECT_KEY,
                    subject_id=row.subject_id,
                    purpose=row.purpose,
                    key_version=row.key_version,
                    tenant_key_version=active,
                    wrapped=wrapped,
                    wrapped_before=row.wrapped,
                )
            position = _position(failed, last.subject_id, last.purpose, last.key_version)
            await lease.advance(transaction, position, done)
        return MORE

    async def _end_tenant_pass(self, lease: Lease, scope: TenantScope, active: int, failures: int) -> Slice:
        async with self._unit_of_work.begin(scope) as transaction:
            states = {row.key_version: row.state for row in await transaction.fetch_all(sql.LOCK_TENANT_KEYS)}
            if states.get(active) != "active":
                raise LostRaceError
            left = await transaction.fetch_only(sql.COUNT_SUBJECT_KEYS_UNDER_OTHERS, tenant_key_version=active)
            if left and left > failures:
                await lease.advance(transaction, _FIRST)  # made while this pass was under way
                return MORE
            if left:
                error = f"{left} subject keys do not authenticate; the older tenant keys stay"
                return Slice(ended=True, error=error)
            await transaction.run(sql.RETIRE_TENANT_KEYS, before_version=active)
            await self._destroy_tenant_keys(transaction, scope, active)
            await lease.advance(transaction, _FIRST)
        self._keys.evict_tenant(scope.tenant_id)
        return Slice(ended=True)

    async def _destroy_tenant_keys(self, transaction: Transaction, scope: TenantScope, active: int) -> None:
        destroyed = await transaction.fetch_all(sql.DESTROY_TENANT_KEYS, before_version=active, now=self._clock.now())
        for key_version in destroyed:
            target = f"tenant-key:{key_version}"
            await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "key.destroy", target)

    # --- subject ---------------------------------------------------------------------------------------------------

    async def rotate_subject(
        self, scope: Scope, actor: str, repeated: UUID | None = None, *, complete: bool = False
    ) -> Rotated:
        """Make a new data key active, and begin to re-seal what older versions sealed; ``repeated``: `rotate_tenant`'s.

        ``complete``: archives and segments are written again, too, so that the older versions can go.

        Raises:
            IdempotencyKeyReused: another key was rotated with it.
            SubjectNotFound: the subject has no key yet.
            CryptoError: the tenant key cannot be had; nothing changed.
            KeyDestroyed: the subject or tenant was shredded.
        """
        kind = COMPLETE_KIND if complete else RESEAL_KIND
        return await self._unit_of_work.retrying(lambda: self._rotate_subject(scope, actor, repeated, kind))

    async def _rotate_subject(self, scope: Scope, actor: str, repeated: UUID | None, kind: str) -> Rotated:
        async with self._unit_of_work.snapshot(scope) as transaction:
            before = await _before(transaction, kind, scope.subject_id, repeated)
            if before is not None:
                return before
            rows = await transaction.fetch_all(keys_sql.SUBJECT_KEYS)
        fresh = _next_version([row for row in rows if row.purpose == "data"], SubjectNotFound())
        await self._keys.add_subject_keys(scope, ("data",), fresh, "pending")
        self._keys.evict(scope)
        await self._keys.existing_sealer(scope)  # opens the new one, too, or raises
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.fetch_all(sql.LOCK_SUBJECT_KEYS)
            demoted = await transaction.run(sql.DEMOTE_SUBJECT_KEY)
            if not demoted or not await transaction.run(sql.PROMOTE_SUBJECT_KEY, key_version=fresh):
                raise LostRaceError
            job_id = await self._jobs.add(
                transaction, scope.tenant_id, kind, scope.subject_id, "", job_id=_job_id(repeated, fresh)
            )
            detail = {"job_id": str(job_id), "key_version": fresh}
            target = f"subject:{scope.subject_id}"
            await self._audit.append(transaction, scope.tenant_id, actor, "key.rotate", target, detail)
        self._keys.evict(scope)
        return Rotated(fresh, job_id)


def _has_check_value(kcv: bytes, key: SecretKey) -> bool:
    return key.kcv() == kcv


def _has_public_half(row: deployment_keys_sql.DeploymentKeyRow, key: SecretKey) -> bool:
    purpose = PURPOSES[row.purpose]
    return purpose.public_of(purpose.opened(key)) == row.public


async def _before(transaction: Transaction, kind: str, target: str, repeated: UUID | None) -> Rotated | None:
    """The rotation that was begun with ``repeated``, if there was one: its job says which.

    Raises:
        IdempotencyKeyReused: it was another key's.
    """
    if repeated is None:
        return None
    row = await transaction.fetch_one(
        sql.ROTATION_OF, first_id=_job_id(repeated, 0), last_id=_job_id(repeated, _KEY_VERSION_MAX)
    )
    if row is None:
        return None
    if (row.kind, row.target) != (kind, target):
        raise IdempotencyKeyReused
    return Rotated(row.job_id.int & _KEY_VERSION_MAX, row.job_id, created=False)


def _job_id(repeated: UUID | None, key_version: int) -> UUID | None:
    """The id of the job of a rotation that may be asked for again: it ends in the version that was made."""
    return None if repeated is None else UUID(int=repeated.int & ~_KEY_VERSION_MAX | key_version)


def _next_version(rows: Sequence[SubjectKeyRow | TenantKeyRow], otherwise: NotFound) -> int:
    """The version to make; one that is pending, left by a rotation that did not get further, is used.

    Raises:
        NotFound: there is none yet.
        KeyDestroyed: all were destroyed.
    """
    if not rows:
        raise otherwise
    if not any(row.state == "active" for row in rows):
        raise KeyDestroyed
    newest = rows[-1]
    return newest.key_version if newest.state == "pending" else newest.key_version + 1
