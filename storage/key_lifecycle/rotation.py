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
from datetime import datetime
from typing import Any
from uuid import UUID

from crypto import CryptoError, KeyDestroyed, KeyUnavailable, RootKey, SecretKey, SigningKey, TransferKey, WrappedKey
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.administration.jobs import MORE, Jobs, Lease, Slice, outlasting_refusals
from storage.clock import Clock
from storage.encoding import decode_json, encode_json
from storage.errors import IdempotencyKeyReused, IntegrityFailure, LostRaceError, NotFound, SubjectNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.key_lifecycle.reseal import RESEAL_KIND
from storage.keys.keys import Keys
from storage.postgres import keys as keys_sql
from storage.postgres import rotation as sql
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope

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
# The public half of each of the deployment's own keys, by purpose.
_PUBLIC_OF: dict[str, Callable[[SecretKey], bytes]] = {
    "audit": lambda secret: SigningKey(secret).public_key,
    "transfer": lambda secret: TransferKey(secret).public_key.raw,
    "control": lambda secret: secret.kcv(),
}


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


@dataclass(frozen=True, slots=True)
class TenantKeyState:
    """One version of a tenant key; ``subject_keys`` counts those it wraps."""

    key_version: int
    state: str
    provider: str
    root_key_id: str
    root_key_version: str
    created_at: datetime
    destroyed_at: datetime | None
    subject_keys: int


@dataclass(frozen=True, slots=True)
class SubjectKeyState:
    """One version of a subject's data or id key."""

    purpose: str
    key_version: int
    tenant_key_version: int
    state: str
    created_at: datetime
    destroyed_at: datetime | None
    shred_effective_at: datetime | None


@dataclass(frozen=True, slots=True)
class RootKeyUse:
    """How many tenant keys a version of a root key wraps."""

    provider: str
    root_key_id: str
    root_key_version: str
    tenant_keys: int


class Rotation:
    """Begins rotations, and performs the jobs that only rewrap."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        keys: Keys,
        jobs: Jobs,
        audit: Audit,
        root_key: RootKey,
        deployment_id: UUID,
        clock: Clock,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._keys = keys
        self._jobs = jobs
        self._audit = audit
        self._root_key = root_key
        self._deployment_id = deployment_id
        self._clock = clock

    # --- what shows ------------------------------------------------------------------------------------------------

    async def tenant_status(self, scope: TenantScope) -> list[TenantKeyState]:
        """The versions of a tenant's key, oldest first."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.TENANT_KEY_STATES, scope.tenant_id)
        return [TenantKeyState(**dict(row)) for row in rows]

    async def subject_status(self, scope: Scope) -> list[SubjectKeyState]:
        """The versions of a subject's keys.

        Raises:
            SubjectNotFound: it never had any.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.SUBJECT_KEY_STATES, scope.tenant_id, scope.subject_id)
        if not rows:
            raise SubjectNotFound
        return [SubjectKeyState(**dict(row)) for row in rows]

    async def root_status(self) -> list[RootKeyUse]:
        """Which root keys wrap how many tenant keys."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.ROOT_KEY_USES)
        return [RootKeyUse(**dict(row)) for row in rows]

    # --- root ------------------------------------------------------------------------------------------------------

    async def rewrap_root(self, actor: str) -> UUID:
        """Begin to wrap every tenant key again under the active root key; returns the job."""
        await self._jobs.ready()
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            running = await self._jobs.open(transaction, OPERATOR_CHAIN, REWRAP_ROOT_KIND, DEPLOYMENT)
            if running is not None:
                return running
            total = await transaction.fetchval(sql.COUNT_TENANT_KEYS)
            total += len(await transaction.fetch(sql.DEPLOYMENT_KEYS))
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
            rows = await transaction.fetch(sql.TENANT_KEYS_AFTER, after, version, ROOT_ROWS)
        for row in rows:
            tenant_id, key_version = row["tenant_id"], row["key_version"]
            kcv: bytes = row["kcv"]
            context = self._keys.root_context(tenant_id, key_version)
            wrapped = await self._rewrapped(row, context, lambda key, kcv=kcv: key.kcv() == kcv)  # type: ignore[misc]
            failures += wrapped is None
            async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
                if wrapped is not None:
                    await transaction.execute(
                        sql.REWRAP_TENANT_KEY, tenant_id, key_version, *_columns(wrapped), row["wrapped"]
                    )
                position = _position(failures, str(tenant_id), key_version)
                await lease.advance(transaction, position, int(wrapped is not None))
        if len(rows) < ROOT_ROWS:
            async with self._unit_of_work.begin(OperatorScope()) as transaction:
                await lease.advance(transaction, _position(failures))
        return MORE

    async def _rewrap_deployment_keys(self, lease: Lease) -> int:
        failed = 0
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.DEPLOYMENT_KEYS)
        for row in rows:
            context = {
                "deployment": str(self._deployment_id),
                "tenant": str(OPERATOR_CHAIN),
                "purpose": row["purpose"],
                "version": str(row["key_version"]),
            }
            public: bytes = row["public"]
            public_of = _PUBLIC_OF[row["purpose"]]
            wrapped = await self._rewrapped(
                row,
                context,
                lambda key, public=public, public_of=public_of: public_of(key) == public,  # type: ignore[misc]
            )
            failed += wrapped is None
            async with self._unit_of_work.begin(OperatorScope()) as transaction:
                if wrapped is not None:
                    await transaction.execute(
                        sql.REWRAP_DEPLOYMENT_KEY,
                        row["purpose"],
                        row["key_version"],
                        *_columns(wrapped),
                        row["wrapped"],
                    )
                await lease.advance(transaction, lease.position, int(wrapped is not None))
        return failed

    async def _rewrapped(
        self, row: Any, context: dict[str, str], is_same: Callable[[SecretKey], bool]
    ) -> WrappedKey | None:
        """The same key under the active root key, opened again to be sure; None if the root key refuses this one.

        Raises:
            KeyUnavailable: it cannot be reached; the job waits.
            KeyDenied: it refuses whatever it is asked, as with an expired token; the job waits.
            RootKeyInvalid: as before, for a file that is away.
        """
        old = WrappedKey(
            provider=row["provider"],
            root_key_id=row["root_key_id"],
            root_key_version=row["root_key_version"],
            ciphertext=row["wrapped"],
        )
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

        Args:
            scope: Whose key.
            actor: Who asks.
            repeated: What a request that may come again has; a rotation that had it is returned, and not made again.

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
            before = await _before(transaction, tenant_id, REWRAP_TENANT_KIND, WHOLE_TENANT, repeated)
            if before is not None:
                return before
            rows = await transaction.fetch(keys_sql.TENANT_KEYS, tenant_id)
        fresh = _next_version(rows, NotFound("the tenant has no key yet, hence nothing to rotate"))
        await self._keys.add_tenant_key(tenant_id, fresh, "pending")
        self._keys.evict_tenant(tenant_id)
        if fresh not in (await self._keys.tenant(tenant_id)).keys:
            raise LostRaceError
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.fetch(sql.LOCK_TENANT_KEYS, tenant_id)
            demoted = await transaction.execute(sql.DEMOTE_TENANT_KEY, tenant_id)
            if not demoted or not await transaction.execute(sql.PROMOTE_TENANT_KEY, tenant_id, fresh):
                raise LostRaceError  # shredded meanwhile, or somebody else's rotation took it
            total = await transaction.fetchval(sql.COUNT_SUBJECT_KEYS_UNDER_OTHERS, tenant_id, fresh)
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
        failures, *at = decode_json(lease.position)
        self._keys.evict_tenant(scope.tenant_id)
        active = (await self._keys.tenant(scope.tenant_id)).active_key_version
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.SUBJECT_KEYS_UNDER_OTHERS, scope.tenant_id, active, *at, REWRAP_ROWS)
        if not rows:
            return await self._end_tenant_pass(lease, scope, active, failures)
        failed, updates = failures, []
        for row in rows:
            try:
                wrapped = await self._keys.rewrapped(Scope(scope.tenant_id, row["subject_id"]), row, active)
            except (IntegrityFailure, KeyDestroyed):
                failed += 1
                continue
            updates.append((row["subject_id"], row["purpose"], row["key_version"], active, wrapped, row["wrapped"]))
        last = rows[-1]
        async with self._unit_of_work.begin(scope) as transaction:
            # Whoever gives this version up meanwhile waits, or was first; then the next slice uses the newer one.
            if await transaction.fetchval(keys_sql.HOLD_TENANT_KEY, scope.tenant_id, active) != "active":
                raise LostRaceError
            done = 0
            for update in updates:
                done += await transaction.execute(sql.REWRAP_SUBJECT_KEY, scope.tenant_id, *update)
            position = _position(failed, last["subject_id"], last["purpose"], last["key_version"])
            await lease.advance(transaction, position, done)
        return MORE

    async def _end_tenant_pass(self, lease: Lease, scope: TenantScope, active: int, failures: int) -> Slice:
        async with self._unit_of_work.begin(scope) as transaction:
            states = {
                row["key_version"]: row["state"]
                for row in await transaction.fetch(sql.LOCK_TENANT_KEYS, scope.tenant_id)
            }
            if states.get(active) != "active":
                raise LostRaceError
            left = await transaction.fetchval(sql.COUNT_SUBJECT_KEYS_UNDER_OTHERS, scope.tenant_id, active)
            if left and left > failures:
                await lease.advance(transaction, _FIRST)  # made while this pass was under way
                return MORE
            if left:
                error = f"{left} subject keys do not authenticate; the older tenant keys stay"
                return Slice(ended=True, error=error)
            await transaction.execute(sql.RETIRE_TENANT_KEYS, scope.tenant_id, active)
            await self._destroy_tenant_keys(transaction, scope, active)
            await lease.advance(transaction, _FIRST)
        self._keys.evict_tenant(scope.tenant_id)
        return Slice(ended=True)

    async def _destroy_tenant_keys(self, transaction: Transaction, scope: TenantScope, active: int) -> None:
        destroyed = await transaction.fetch(sql.DESTROY_TENANT_KEYS, scope.tenant_id, active, self._clock.now())
        for row in destroyed:
            target = f"tenant-key:{row['key_version']}"
            await self._audit.append(transaction, scope.tenant_id, GATEWAY_ACTOR, "key.destroy", target)

    # --- subject ---------------------------------------------------------------------------------------------------

    async def rotate_subject(self, scope: Scope, actor: str, repeated: UUID | None = None) -> Rotated:
        """Make a new data key active, and begin to re-seal what older versions sealed; ``repeated``: `rotate_tenant`'s.

        Raises:
            IdempotencyKeyReused: another key was rotated with it.
            SubjectNotFound: the subject has no key yet.
            CryptoError: the tenant key cannot be had; nothing changed.
            KeyDestroyed: the subject or tenant was shredded.
        """
        return await self._unit_of_work.retrying(lambda: self._rotate_subject(scope, actor, repeated))

    async def _rotate_subject(self, scope: Scope, actor: str, repeated: UUID | None) -> Rotated:
        async with self._unit_of_work.snapshot(scope) as transaction:
            before = await _before(transaction, scope.tenant_id, RESEAL_KIND, scope.subject_id, repeated)
            if before is not None:
                return before
            rows = await transaction.fetch(keys_sql.SUBJECT_KEYS, scope.tenant_id, scope.subject_id)
        fresh = _next_version([row for row in rows if row["purpose"] == "data"], SubjectNotFound())
        await self._keys.add_subject_keys(scope, ("data",), fresh, "pending")
        self._keys.evict(scope)
        await self._keys.existing_sealer(scope)  # opens the new one, too, or raises
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            place = (scope.tenant_id, scope.subject_id)
            await transaction.fetch(sql.LOCK_SUBJECT_KEYS, *place)
            demoted = await transaction.execute(sql.DEMOTE_SUBJECT_KEY, *place)
            if not demoted or not await transaction.execute(sql.PROMOTE_SUBJECT_KEY, *place, fresh):
                raise LostRaceError
            job_id = await self._jobs.add(
                transaction, scope.tenant_id, RESEAL_KIND, scope.subject_id, "", job_id=_job_id(repeated, fresh)
            )
            detail = {"job_id": str(job_id), "key_version": fresh}
            target = f"subject:{scope.subject_id}"
            await self._audit.append(transaction, scope.tenant_id, actor, "key.rotate", target, detail)
        self._keys.evict(scope)
        return Rotated(fresh, job_id)


async def _before(
    transaction: Transaction, tenant_id: UUID, kind: str, target: str, repeated: UUID | None
) -> Rotated | None:
    """The rotation that was begun with ``repeated``, if there was one: its job says which.

    Raises:
        IdempotencyKeyReused: it was another key's.
    """
    if repeated is None:
        return None
    row = await transaction.fetchrow(
        sql.ROTATION_OF, tenant_id, _job_id(repeated, 0), _job_id(repeated, _KEY_VERSION_MAX)
    )
    if row is None:
        return None
    if (row["kind"], row["target"]) != (kind, target):
        raise IdempotencyKeyReused
    return Rotated(row["job_id"].int & _KEY_VERSION_MAX, row["job_id"], created=False)


def _job_id(repeated: UUID | None, key_version: int) -> UUID | None:
    """The id of the job of a rotation that may be asked for again: it ends in the version that was made."""
    return None if repeated is None else UUID(int=repeated.int & ~_KEY_VERSION_MAX | key_version)


def _next_version(rows: Sequence[Any], otherwise: NotFound) -> int:
    """The version to make; one that is pending, left by a rotation that did not get further, is used.

    Raises:
        NotFound: there is none yet.
        KeyDestroyed: all were destroyed.
    """
    if not rows:
        raise otherwise
    if not any(row["state"] == "active" for row in rows):
        raise KeyDestroyed
    newest: int = rows[-1]["key_version"]
    return newest if rows[-1]["state"] == "pending" else newest + 1


def _columns(wrapped: WrappedKey) -> tuple[object, ...]:
    return wrapped.provider, wrapped.root_key_id, wrapped.root_key_version, wrapped.ciphertext
