"""From a scope to its `Sealer`: loading, creating and caching wrapped keys.

A key is created in its own committed transaction, read back, and only then used or cached: otherwise a
rollback would leave data sealed under a key that was never stored, and two gateways that create the same subject's key
at the same moment would seal under different ones. No connection is held while the root key is asked.

Holding a `Sealer` is the capability to open one subject's state; this module is the only maker. It does not check
that the stored keys are still the same when a cached sealer is used: every load and save reads what they make now
(`storage.statements.keys.keys.KEYS_HASH`) in its own statement, compares it with the sealer's, and calls `evict`.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from crypto import (
    KeyCache,
    KeyDenied,
    KeyDestroyed,
    OpenError,
    RootKey,
    Sealer,
    SecretKey,
    SubjectKeyPlace,
    SubjectKeys,
    WrappedKey,
    WrappingKey,
    root_context,
    unwrap_subject_key,
    wrap_subject_key,
)
from crypto.keyring import SubjectKeyPurpose
from storage.clock import Clock
from storage.errors import IntegrityFailure, LostRaceError
from storage.postgres.unit_of_work import Observer, UnitOfWork
from storage.scope import Scope, TenantScope
from storage.statements.keys import keys as sql
from storage.statements.keys.keys import StoredSubjectKey, SubjectKeyRow, TenantKeyRow, wrapping_columns

# A sealer holds a handful of 32-byte keys; this many fit in a few tens of megabytes.
CACHED_SUBJECTS_MAX = 10_000
CACHED_TENANTS_MAX = 1_000
SOFT_TTL_SECONDS = 300.0
# How long a cached key still serves while the root key cannot be reached.
HARD_TTL_SECONDS = 3600.0

# Spreads the next attempts of many processes after an outage over a second.
_JITTER = secrets.SystemRandom().random

# Who makes keys may join the load of a reader, who makes none, and then begins again; not that often.
_JOINS_MAX = 16
# A subject key may be rewrapped, and the tenant's keys be rotated, between two reads of one load.
_READS_MAX = 8
# A rotation ends after it wrapped every subject key again, so that only for a moment a reader sees one that is gone.
_UNDER_NO_KEY = "a stored subject key names a tenant key that does not exist"

_PURPOSES = {"data", "id"}
_OPENABLE = {"active", "decrypt_only", "retired", "pending"}


@dataclass(frozen=True, slots=True)
class TenantKeyring:
    """A tenant's opened keys by version, and which of them wraps new subject keys.

    Attributes:
        keys: By version.
        active_key_version: The one that wraps.
        stored_hash: What the rows made that they were opened from.
        asked_at: When the root key was asked for them, in seconds of a monotonic clock.
    """

    keys: Mapping[int, SecretKey]
    active_key_version: int
    stored_hash: int
    asked_at: float


@dataclass(frozen=True, slots=True)
class _Opened:
    """A subject's sealer, and when the root key was asked for what opened its keys."""

    sealer: Sealer
    asked_at: float


class Keys:
    """Gets or creates the keys of a scope."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        root_key: RootKey,
        deployment_id: UUID,
        clock: Clock,
        observer: Observer,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._root_key = root_key
        self._deployment_id = deployment_id
        self._clock = clock
        self._observer = observer
        self._monotonic = monotonic
        self._tenants: KeyCache[UUID, TenantKeyring] = KeyCache(
            CACHED_TENANTS_MAX, SOFT_TTL_SECONDS, HARD_TTL_SECONDS, monotonic, jitter=_JITTER, since=_asked_at
        )
        # As old as the tenant's keys, not as their own load: that asks no service while those are cached.
        self._subjects: KeyCache[Scope, _Opened] = KeyCache(
            CACHED_SUBJECTS_MAX, SOFT_TTL_SECONDS, HARD_TTL_SECONDS, monotonic, jitter=_JITTER, since=_asked_at
        )

    async def sealer(self, scope: Scope) -> Sealer:
        """The sealer of a scope, whose keys are created if it has none.

        Raises:
            KeyUnavailable: the root key cannot be reached and nothing is cached.
            KeyDenied: the root key refuses.
            KeyDestroyed: the subject or tenant was shredded.
            IntegrityFailure: what is stored of its keys contradicts itself.
        """
        for _ in range(_JOINS_MAX):
            with suppress(_NoKeysError):  # joined the load of a reader, who creates nothing
                return (await self._subjects.get_or_load(scope, lambda: self._load_or_create(scope))).sealer
        raise self._damage("a subject's keys are not there although they were just stored")

    async def existing_sealer(self, scope: Scope) -> Sealer | None:
        """The sealer of a scope, or None if it has no keys, hence no data. Creates nothing: for reads.

        Raises:
            KeyUnavailable: the root key cannot be reached and nothing is cached.
            KeyDenied: the root key refuses.
            KeyDestroyed: the subject or tenant was shredded.
            IntegrityFailure: what is stored of its keys contradicts itself.
        """
        try:
            return (await self._subjects.get_or_load(scope, lambda: self._load_or_fail(scope))).sealer
        except _NoKeysError:
            return None

    async def check_stored(self, scope: Scope) -> None:
        """Look whether the stored keys of a scope contradict each other, whatever is cached. Opens none.

        Raises:
            KeyDestroyed: the subject was shredded.
            IntegrityFailure: they do.
        """
        rows = await self._rows(scope)
        if rows:
            self._check_subject(rows)

    def evict(self, scope: Scope) -> None:
        """Forget a subject's keys in this process; the next use reads them again."""
        self._subjects.evict(scope)

    def evict_tenant(self, tenant_id: UUID) -> None:
        """Forget a tenant's keys in this process; subjects' keys that are open stay so."""
        self._tenants.evict(tenant_id)

    async def tenant(self, tenant_id: UUID) -> TenantKeyring:
        """A tenant's opened keys, which are made if it has none.

        Raises:
            CryptoError: as `sealer`.
        """
        return await self._tenants.get_or_load(tenant_id, lambda: self._load_or_create_tenant(tenant_id))

    async def add_tenant_key(
        self, tenant_id: UUID, key_version: int, state: Literal["active", "pending"]
    ) -> tuple[WrappedKey, SecretKey]:
        """Store a new tenant key, unless one of this version is stored; it is to be read before it is used.

        Returns:
            What was to be stored, and the key in it: good for use only where exactly this is read back.

        Raises:
            CryptoError: the root key does not wrap it.
        """
        fresh = SecretKey.generate()
        wrapped = await self._root_key.wrap(fresh, self.root_context(tenant_id, key_version))
        async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            await transaction.run(
                sql.ADD_TENANT_KEY,
                key_version=key_version,
                state=state,
                **wrapping_columns(wrapped),
                kcv=fresh.kcv(),
                now=self._clock.now(),
            )
        return wrapped, fresh

    async def add_subject_keys(
        self, scope: Scope, purposes: Sequence[SubjectKeyPurpose], key_version: int, state: Literal["active", "pending"]
    ) -> None:
        """Store new keys of a subject, unless there are some; they are to be read before they are used.

        Raises:
            CryptoError: as `sealer`.
            LostRaceError: the tenant key was rotated at this moment.
        """
        tenant = await self.tenant(scope.tenant_id)
        wrapping_version = tenant.active_key_version
        wrapping = WrappingKey(tenant.keys[wrapping_version], wrapping_version)
        fresh = {purpose: SecretKey.generate() for purpose in purposes}
        now = self._clock.now()
        rows = [
            {
                "purpose": purpose,
                "key_version": key_version,
                "tenant_key_version": wrapping_version,
                "state": state,
                "wrapped": wrap_subject_key(wrapping, self._place(scope, purpose, key_version), key),
                "kcv": key.kcv(),
                "now": now,
            }
            for purpose, key in fresh.items()
        ]
        async with self._unit_of_work.begin(scope) as transaction:
            if await transaction.fetch_one(sql.HOLD_TENANT_KEY, key_version=wrapping_version) != "active":
                self._tenants.evict(scope.tenant_id)
                raise LostRaceError
            for row in rows:
                await transaction.run(sql.ADD_SUBJECT_KEY, **row)

    async def _load_or_fail(self, scope: Scope) -> _Opened:
        opened = await self._load(scope)
        if opened is None:
            raise _NoKeysError
        return opened

    async def _load_or_create(self, scope: Scope) -> _Opened:
        opened = await self._load(scope)
        if opened is None:
            await self._unit_of_work.retrying(lambda: self.add_subject_keys(scope, ("data", "id"), 1, "active"))
            opened = await self._load_or_fail(scope)
        return opened

    async def _load(self, scope: Scope) -> _Opened | None:
        for _ in range(_READS_MAX):
            rows = await self._rows(scope)
            if not rows:
                return None
            self._check_subject(rows)
            try:
                if await self._has_tenant_as_stored(scope.tenant_id, rows[0].tenant_hash):
                    return await self._opened(scope, rows)
            except _TenantKeyGoneError:
                continue
        raise self._damage(_UNDER_NO_KEY)

    async def _rows(self, scope: Scope) -> Sequence[SubjectKeyRow]:
        """The stored keys of a scope; of one that has no data there may be none.

        Raises:
            IntegrityFailure: there are none, but data: keys are stored before what they seal, and a shred keeps their
                rows.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.SUBJECT_KEYS)
            if not rows and await transaction.fetch_only(sql.HAS_ANYTHING):
                raise self._damage("the subject's keys were removed outside the gateway, but not its data")
        return rows

    def _check_subject(self, rows: Sequence[SubjectKeyRow]) -> None:
        self._check_whole("subject", rows, {row.purpose for row in rows if row.state == "active"}, _PURPOSES)

    def _check_whole(
        self, whose: str, rows: Sequence[SubjectKeyRow | TenantKeyRow], active: set[str], wanted: set[str]
    ) -> None:
        """Refuse keys of which some are destroyed, or gone, and others are in use: no verb leaves them so.

        Raises:
            KeyDestroyed: all of them are.
            IntegrityFailure: some were edited or removed.
        """
        if all(row.state == "destroyed" for row in rows):
            raise KeyDestroyed
        if active != wanted:
            raise self._damage(
                f"some keys of the {whose} were destroyed or removed outside the gateway, others were not"
            )

    def _damage(self, what: str) -> IntegrityFailure:
        self._observer.integrity_failure()
        return IntegrityFailure(what)

    async def _opened(self, scope: Scope, rows: Sequence[SubjectKeyRow]) -> _Opened:
        opened: dict[str, dict[int, SecretKey]] = {"data": {}, "id": {}}
        active: dict[str, int] = {}
        asked_at = self._monotonic()
        for row in rows:
            if row.state not in _OPENABLE:
                continue
            tenant = await self._wrapping(scope.tenant_id, row.tenant_key_version)
            asked_at = min(asked_at, tenant.asked_at)
            opened[row.purpose][row.key_version] = self._unwrapped(tenant, scope, row)
            if row.state == "active":
                active[row.purpose] = row.key_version
        keys = SubjectKeys(opened["data"], active["data"], opened["id"][active["id"]], rows[0].keys_hash)
        return _Opened(Sealer(self._deployment_id, scope.tenant_id, scope.subject_id, keys), asked_at)

    async def _has_tenant_as_stored(self, tenant_id: UUID, stored_hash: int) -> bool:
        """Whether a tenant's keys are the stored ones; those that are cached are read again if they are not."""
        if (await self.tenant(tenant_id)).stored_hash != stored_hash:
            self._tenants.evict(tenant_id)
        return (await self.tenant(tenant_id)).stored_hash == stored_hash

    async def _wrapping(self, tenant_id: UUID, key_version: int) -> TenantKeyring:
        """A tenant's keys, with a version that wraps a subject key among them."""
        tenant = await self.tenant(tenant_id)
        if key_version not in tenant.keys:
            # A gateway with a warm cache meets a tenant key that was made after it looked.
            self._tenants.evict(tenant_id)
            tenant = await self.tenant(tenant_id)
        if key_version not in tenant.keys:
            raise _TenantKeyGoneError
        return tenant

    def _place(self, scope: Scope, purpose: SubjectKeyPurpose, key_version: int) -> SubjectKeyPlace:
        return SubjectKeyPlace(self._deployment_id, scope.tenant_id, scope.subject_id, purpose, key_version)

    def _unwrapped(self, tenant: TenantKeyring, scope: Scope, row: StoredSubjectKey) -> SecretKey:
        wrapping = WrappingKey(tenant.keys[row.tenant_key_version], row.tenant_key_version)
        place = self._place(scope, row.purpose, row.key_version)
        try:
            return unwrap_subject_key(wrapping, place, row.wrapped or b"", row.kcv)
        except OpenError:
            raise self._damage("a stored subject key does not authenticate") from None

    async def rewrapped(self, scope: Scope, row: StoredSubjectKey, tenant_key_version: int) -> bytes:
        """A stored subject key, wrapped under another version of the tenant key instead.

        Raises:
            CryptoError: as `sealer`.
            IntegrityFailure: what is stored does not authenticate.
        """
        try:
            opened = self._unwrapped(await self._wrapping(scope.tenant_id, row.tenant_key_version), scope, row)
        except _TenantKeyGoneError:
            raise self._damage(_UNDER_NO_KEY) from None
        tenant = await self.tenant(scope.tenant_id)
        wrapping = WrappingKey(tenant.keys[tenant_key_version], tenant_key_version)
        return wrap_subject_key(wrapping, self._place(scope, row.purpose, row.key_version), opened)

    async def _load_or_create_tenant(self, tenant_id: UUID) -> TenantKeyring:
        keyring = await self._load_tenant(tenant_id)
        if keyring is None:
            # A process that stored the row need not ask the root key to open what it just wrapped: one call in all.
            keyring = await self._load_tenant(tenant_id, await self.add_tenant_key(tenant_id, 1, "active"))
        if keyring is None:
            raise KeyDenied
        return keyring

    async def _load_tenant(
        self, tenant_id: UUID, made: tuple[WrappedKey, SecretKey] | None = None
    ) -> TenantKeyring | None:
        """The tenant's keys as they are stored; the root key opens each, but the one that this process ``made``."""
        asked_at = self._monotonic()
        async with self._unit_of_work.snapshot(TenantScope(tenant_id)) as transaction:
            rows = await transaction.fetch_all(sql.TENANT_KEYS)
        if not rows:
            return None
        self._check_whole("tenant", rows, {row.state for row in rows} & {"active"}, {"active"})
        opened: dict[int, SecretKey] = {}
        active: int | None = None
        for row in rows:
            if row.state not in _OPENABLE:
                continue
            wrapped = WrappedKey(row.provider, row.root_key_id, row.root_key_version, row.wrapped or b"")
            if made is not None and wrapped == made[0]:
                fresh = made[1]
            else:
                try:
                    fresh = await self._root_key.unwrap(wrapped, self.root_context(tenant_id, row.key_version))
                except OpenError:
                    raise self._damage("a stored tenant key does not authenticate") from None
            if fresh.kcv() != row.kcv:
                raise self._damage("a stored tenant key does not match its check value")
            opened[row.key_version] = fresh
            if row.state == "active":
                active = row.key_version
        return None if active is None else TenantKeyring(opened, active, rows[0].tenant_hash, asked_at)

    def root_context(self, tenant_id: UUID, key_version: int) -> dict[str, str]:
        """What the wrapping of a tenant key under the root key is bound to."""
        return root_context(self._deployment_id, tenant_id, "tenant", key_version)


def _asked_at(value: TenantKeyring | _Opened) -> float:
    return value.asked_at


class _NoKeysError(Exception):
    """The subject has no keys."""


class _TenantKeyGoneError(Exception):
    """The tenant key that a subject key names is not there: it was destroyed, after the subject key was rewrapped."""
