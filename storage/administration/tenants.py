"""Tenants and their credentials as rows. Neither tenants nor operators are state: nothing here can open any.

`look_up_key` is the one read without a scope, because a credential is read before anybody is authenticated; it goes
through a database function that returns one key's row and is owned by a role that can do nothing else.

Every change is recorded in the audit log in its own transaction: without the record it does not happen.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from storage.access.row_quotas import RowQuotas
from storage.administration.audit import LOCAL_ACTOR, Audit, chain_of
from storage.clock import Clock
from storage.concurrency.turns import Pauses
from storage.control.features import READABLE_EXPORTS, SEALED_API_KEYS, Features
from storage.errors import (
    ApiKeyNotFound,
    FeatureOff,
    IdempotencyKeyReused,
    IntegrityFailure,
    InvalidState,
    LastAdminKey,
    StorageError,
    TenantNameTaken,
    TenantNotFound,
)
from storage.event_queue.emitting import Emitting
from storage.format.audit import OPERATOR_CHAIN, Detail
from storage.keys.key_seals import Peppers
from storage.model import EXPORT_PERMISSION, ApiKeyRecord, KeySeal, Page, Tenant
from storage.postgres.session import Session
from storage.postgres.unit_of_work import FIRST_ANSWER_SECONDS_MAX, Transaction, UnitOfWork
from storage.scope import OperatorScope, TenantScope
from storage.statements.deployment import tenants as sql
from storage.statements.objects import blobs as blobs_sql
from storage.statements.threads import row_usage as rows_sql

_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
_BYTES_MAX = 2**63 - 1
_STRUCK_MAC = bytes(32)  # of no secret


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant keeps and what it may; a quota of None: as much as it likes.

    ``bytes`` are those in the object store, what is reserved included; ``rows_bytes`` those of rows in the database
    when they were last counted, at ``rows_counted_at``; None: they never were.
    """

    bytes: int = 0
    quota_bytes: int | None = None
    rows_bytes: int | None = None
    rows_quota_bytes: int | None = None
    rows_counted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DefaultQuotas:
    """The quotas a new tenant begins with, until an operator says otherwise; None: as much as it likes.

    ``bytes`` are those in the object store, ``rows_bytes`` those of rows in the database.
    """

    bytes: int | None = None
    rows_bytes: int | None = None


UNLIMITED = DefaultQuotas()


class Tenants:
    """The verbs on tenants and API keys."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        features: Features,
        clock: Clock,
        row_quotas: RowQuotas,
        emitting: Emitting,
        default_quotas: DefaultQuotas = UNLIMITED,
    ) -> None:
        self._unit_of_work = unit_of_work
        self.row_quotas = row_quotas
        self._default_quotas = default_quotas
        self._audit = audit
        self._features = features
        self._clock = clock
        self._emitting = emitting

    async def create(
        self, scope: OperatorScope, tenant: Tenant, first_key: ApiKeyRecord, actor: str = LOCAL_ACTOR
    ) -> Tenant:
        """Create a tenant with its first credential and the default quotas; ``scope.founding`` must name it.

        Returns:
            ``tenant`` itself; or, if there is one with its id and name, that one, and nothing changed.

        Raises:
            IdempotencyKeyReused: there is one with its id and another name.
            TenantNameTaken: another tenant has its name.
            FeatureOff: As `add_key`.
        """
        await self._check_permissions(first_key)
        async with self._unit_of_work.begin(scope) as transaction:
            await _claim_name(transaction, tenant.tenant_id, tenant.name)
            if not await transaction.run(
                sql.ADD_TENANT, wanted=tenant.tenant_id, name=tenant.name, created_at=tenant.created_at
            ):
                before = _tenant(await transaction.fetch_only(sql.ONE_TENANT, wanted=tenant.tenant_id))
                if before.name != tenant.name:
                    raise IdempotencyKeyReused
                return before
            await _add_key(transaction, first_key)
            await self._begin_quotas(transaction, tenant.tenant_id)
            target = f"tenant:{tenant.tenant_id}"
            await self._audit.append(transaction, tenant.tenant_id, actor, "tenant.create", target)
            await self._record_key(transaction, tenant.tenant_id, actor, first_key)
            await self._audit.append(transaction, OPERATOR_CHAIN, actor, "tenant.create", target)
        return tenant

    async def _begin_quotas(self, transaction: Transaction, tenant_id: UUID) -> None:
        defaults = self._default_quotas
        if defaults.bytes is not None:
            await transaction.run(blobs_sql.SET_QUOTA, tenant_id=tenant_id, quota_bytes=defaults.bytes)
        await transaction.run(rows_sql.SET_QUOTA, wanted=tenant_id, quota_bytes=defaults.rows_bytes)

    async def get(self, scope: OperatorScope, tenant_id: UUID) -> Tenant:
        """One tenant.

        Raises:
            TenantNotFound: there is none.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.ONE_TENANT, wanted=tenant_id)
        if row is None:
            raise TenantNotFound
        return _tenant(row)

    async def list(self, scope: OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None) -> Page[Tenant]:
        """Tenants, newest first."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.TENANTS,
                after_at=datetime.fromisoformat(after[0]) if after else _END_OF_TIME,
                after_id=UUID(after[1]) if after else UUID(int=0),
                page_rows=limit,
            )
        tenants = [_tenant(row) for row in rows]
        last = tenants[-1] if len(tenants) == limit else None
        return Page(tenants, (last.created_at.isoformat(), str(last.tenant_id)) if last else None)

    async def usage(self, scope: TenantScope | OperatorScope, tenant_id: UUID) -> Usage:
        """How many bytes a tenant keeps in the object store and in the database, and how many it may.

        Raises:
            TenantNotFound: there is no such tenant.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            if await transaction.fetch_one(sql.ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            return await _usage(transaction, tenant_id)

    async def set_quota(
        self,
        tenant_id: UUID,
        quota_bytes: int | UnsetType | None = UNSET,
        actor: str = LOCAL_ACTOR,
        *,
        rows_quota_bytes: int | UnsetType | None = UNSET,
    ) -> Usage:
        """Say how many bytes a tenant may keep. Less than it keeps only refuses more.

        Both quotas are in bytes: of the object store, and of rows in the database. None: as many as it likes; UNSET: as
        before.

        Raises:
            InvalidState: negative, or more than 2^63 - 1; or neither is given.
            TenantNotFound: there is no such tenant.
        """
        quotas = {"quota_bytes": quota_bytes, "rows_quota_bytes": rows_quota_bytes}
        detail: dict[str, int | None] = {}
        for name, each in quotas.items():
            if isinstance(each, UnsetType):
                continue
            if each is not None and not 0 <= each <= _BYTES_MAX:
                raise InvalidState("a quota is a number of bytes from 0 to 2^63 - 1", f"/{name}")
            detail[name] = each
        if not detail:
            raise InvalidState("say quota_bytes, rows_quota_bytes, or both")
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(sql.ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            target = f"tenant:{tenant_id}"
            await self._audit.append(transaction, tenant_id, actor, "tenant.quota", target, detail)
            await self._audit.append(transaction, OPERATOR_CHAIN, actor, "tenant.quota", target, detail)
            if "quota_bytes" in detail:
                await transaction.run(blobs_sql.SET_QUOTA, tenant_id=tenant_id, quota_bytes=detail["quota_bytes"])
            if "rows_quota_bytes" in detail:
                await transaction.run(rows_sql.SET_QUOTA, wanted=tenant_id, quota_bytes=detail["rows_quota_bytes"])
            usage = await _usage(transaction, tenant_id)
        if "rows_quota_bytes" in detail:
            with suppress(StorageError):  # it is said; this process learns of it within a minute, as the others do
                await self.row_quotas.refresh()
        return usage

    async def rename(self, tenant_id: UUID, name: str, actor: str = LOCAL_ACTOR) -> Tenant:
        """Give a tenant another name.

        Raises:
            TenantNameTaken: another tenant has it.
            TenantNotFound: there is no such tenant.
        """
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            await _claim_name(transaction, tenant_id, name)
            if not await transaction.run(sql.RENAME, wanted=tenant_id, name=name):
                raise TenantNotFound
            return await self._record_tenant(transaction, tenant_id, actor, "tenant.rename", {"name": name})

    async def suspend(self, tenant_id: UUID, reason: str, actor: str = LOCAL_ACTOR) -> Tenant:
        """Refuse a tenant's keys from now on; what it stored stays as it is, and nothing of it is removed for its age.

        Doing it again keeps the time and records the new reason.

        Raises:
            TenantNotFound: there is no such tenant.
        """
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if not await transaction.run(sql.SUSPEND, wanted=tenant_id, now=self._clock.now()):
                raise TenantNotFound
            return await self._record_tenant(transaction, tenant_id, actor, "tenant.suspend", {"reason": reason})

    async def resume(self, tenant_id: UUID, actor: str = LOCAL_ACTOR) -> Tenant:
        """Take a suspended tenant's keys again; of another one nothing changes.

        Raises:
            TenantNotFound: there is no such tenant.
        """
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if not await transaction.run(sql.RESUME, wanted=tenant_id):
                raise TenantNotFound
            return await self._record_tenant(transaction, tenant_id, actor, "tenant.resume", {})

    async def is_suspended(self, tenant_id: UUID) -> bool:
        """Whether a tenant's keys are refused for now."""
        async with self._unit_of_work.snapshot(TenantScope(tenant_id)) as transaction:
            return bool(await transaction.fetch_one(sql.IS_SUSPENDED, wanted=tenant_id))

    async def recover(self, record: ApiKeyRecord, reason: str, actor: str = LOCAL_ACTOR) -> ApiKeyRecord:
        """Store a key that an operator made for a tenant that no key can administer any more; both logs say so.

        Returns:
            ``record`` itself; or, if one of its id may do the same, that one, and nothing changed.

        Raises:
            IdempotencyKeyReused: one of its id may do something else.
            TenantNotFound: there is no such tenant.
            FeatureOff: As `add_key`.
        """
        tenant_id = record.tenant_id
        if tenant_id is None:
            raise TenantNotFound
        await self._check_permissions(record)
        await self._emitting.ready(tenant_id)
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(sql.ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            before = await _add_key(transaction, record)
            if before is not None:
                return before
            await self._record_key(transaction, tenant_id, actor, record)
            detail = {"reason": reason, "key_id": record.key_id}
            await self._record_tenant(transaction, tenant_id, actor, "tenant.recover", detail)
            await self._emitting.of_key(transaction, tenant_id, "key.created", record.key_id)
        return record

    async def _record_tenant(
        self, transaction: Transaction, tenant_id: UUID, actor: str, action: str, detail: Detail
    ) -> Tenant:
        """Record in both logs what an operator did to a tenant, and return it as it is now."""
        found = _tenant(await transaction.fetch_only(sql.ONE_TENANT, wanted=tenant_id))
        for chain in (tenant_id, OPERATOR_CHAIN):
            await self._audit.append(transaction, chain, actor, action, f"tenant:{tenant_id}", detail)
        return found

    async def look_up_key(self, key_id: str) -> ApiKeyRecord | None:
        """The stored record of a credential, or None."""
        async with self._unit_of_work.connection() as connection:
            session = Session(connection, timeout_seconds=FIRST_ANSWER_SECONDS_MAX)
            row = await session.fetch_one(sql.LOOK_UP, key_id=key_id)
        if row is None:
            return None
        record = record_of(row)
        if record.tenant_id is not None:
            self._emitting.learn(record.tenant_id, is_on=row.events)
        return record

    async def seals_needed(self) -> bool:
        """Whether every gateway seals credentials by now, so that one without a seal is damaged.

        Raises:
            CryptoError: the root key cannot be asked whether a gateway said so.
            IntegrityFailure: something other than a gateway said so, or took it back.
            Unavailable: the database cannot be reached.
        """
        await self._features.ready()
        return self._features.is_on(SEALED_API_KEYS)

    async def may_allow_exports(self) -> bool:
        """Whether credentials may name `EXPORT_PERMISSION`, which older builds cannot list.

        Raises:
            CryptoError, IntegrityFailure, Unavailable: As `seals_needed`.
        """
        await self._features.ready()
        return self._features.is_switched_on(READABLE_EXPORTS)

    async def _check_permissions(self, record: ApiKeyRecord) -> None:
        if EXPORT_PERMISSION in {*record.permissions, *record.grants} and not await self.may_allow_exports():
            raise FeatureOff(
                f"keys may name {EXPORT_PERMISSION} once no older gateway or worker runs: stateroom db finish-upgrade"
            )

    async def add_key(
        self, scope: TenantScope | OperatorScope, record: ApiKeyRecord, actor: str = LOCAL_ACTOR
    ) -> ApiKeyRecord:
        """Store a credential of this tenant, or of the operators.

        Returns:
            ``record`` itself; or, if one of its id may do the same, that one, and nothing changed.

        Raises:
            IdempotencyKeyReused: one of its id may do something else.
            FeatureOff: It names `EXPORT_PERMISSION`, and an older build may run.
        """
        await self._check_permissions(record)
        async with self._unit_of_work.begin(scope) as transaction:
            before = await _add_key(transaction, record)
            if before is not None:
                return before
            await self._record_key(transaction, chain_of(scope), actor, record)
            await self._emitting.of_key(transaction, record.tenant_id, "key.created", record.key_id)
        return record

    async def _record_key(self, transaction: Transaction, chain: UUID, actor: str, record: ApiKeyRecord) -> None:
        detail = {
            "kind": record.kind,
            "subject_id": record.subject_id,
            "permissions": list(record.permissions),
            "grants": list(record.grants),
            "expires_at": None if record.expires_at is None else record.expires_at.isoformat(),
            "principal": record.principal,
        }
        await self._audit.append(transaction, chain, actor, "api-key.create", f"api-key:{record.key_id}", detail)

    async def principal_of(self, scope: TenantScope, key_id: str, peppers: Peppers) -> str | None:
        """Who stands behind a credential of a tenant, whether it works or not; None: the tenant has none of this id.

        Raises:
            IntegrityFailure: Its row was edited outside the gateway.
        """
        record = await self._vouched(scope, key_id, peppers)
        return None if record is None else record.principal

    async def maker_of(self, scope: TenantScope, key_id: str, peppers: Peppers) -> str | None:
        """Who stands behind the credential that made one of a tenant; None: nobody knows.

        Raises:
            IntegrityFailure: A row was edited outside the gateway.
        """
        record = await self._vouched(scope, key_id, peppers)
        if record is None or record.made_by is None:
            return None
        return await self.principal_of(scope, record.made_by, peppers)

    async def _vouched(self, scope: TenantScope, key_id: str, peppers: Peppers) -> ApiKeyRecord | None:
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.ONE_KEY, key_id=key_id)
        if row is None:
            return None
        record = record_of(row)
        whole = (record, replace(record, revoked_at=None))  # a release before revoked without a seal
        if record.seal is not None and not any(map(peppers.is_authentic, whole)):
            raise IntegrityFailure("an API key was altered outside the gateway")
        return record

    async def list_keys(
        self, scope: TenantScope | OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[ApiKeyRecord]:
        """Credentials, newest first."""
        page: dict[str, object] = {
            "after_at": datetime.fromisoformat(after[0]) if after else _END_OF_TIME,
            "after_id": after[1] if after else "",
            "page_rows": limit,
        }
        async with self._unit_of_work.snapshot(scope) as transaction:
            if isinstance(scope, TenantScope):
                rows = await transaction.fetch_all(sql.KEYS, wanted=scope.tenant_id, **page)
            else:
                rows = await transaction.fetch_all(sql.OPERATOR_KEYS, **page)
        records = []
        pauses = Pauses()
        for row in rows:
            records.append(record_of(row))
            await pauses.after(0)
        last = records[-1] if len(records) == limit else None
        return Page(records, (last.created_at.isoformat(), last.key_id) if last else None)

    async def revoke_key(
        self,
        scope: TenantScope | OperatorScope,
        key_id: str,
        peppers: Peppers,
        actor: str = LOCAL_ACTOR,
        *,
        force: bool = False,
    ) -> None:
        """Revoke a credential for good; doing it again changes nothing.

        What its secret was compared with is struck out, and the seal says that it was revoked: taking ``revoked_at``
        back in the database revives nothing.

        ``force``: revoke also the last key that administers the tenant, or the deployment.

        Raises:
            ApiKeyNotFound: this scope has none of this id.
            LastAdminKey: it is the last one, and this was not forced.
        """
        tenant_id = scope.tenant_id if isinstance(scope, TenantScope) else None
        now = self._clock.now()
        async with self._unit_of_work.begin(scope) as transaction:
            administering = "operator" if tenant_id is None else "tenant:admin"
            allowed = await transaction.fetch_all(sql.LOCK_ALLOWED, wanted=tenant_id, permission=administering)
            if await transaction.fetch_one(sql.LOCK_KEY, wanted=tenant_id, key_id=key_id) is None:
                raise ApiKeyNotFound
            known = await _some_keys(transaction, [key_id, *allowed])
            wanted = known.pop(key_id)
            if not force and administering in wanted.permissions and _serves(wanted, peppers, now):
                others = (each for each in known.values() if _serves(each, peppers, now))
                if next(others, None) is None:
                    raise LastAdminKey
            revoked = replace(wanted, revoked_at=wanted.revoked_at or now)
            await _strike(transaction, revoked)
            await _seal_key(transaction, peppers.seal(revoked))
            await self._audit.append(transaction, chain_of(scope), actor, "api-key.revoke", f"api-key:{key_id}")
            if wanted.revoked_at is None:
                await self._emitting.of_key(transaction, tenant_id, "key.revoked", key_id)

    async def restamp_keys(self, stamped: Iterable[tuple[ApiKeyRecord, ApiKeyRecord]]) -> None:
        """Store credentials' MACs under the active pepper, where the row was not changed meanwhile.

        ``stamped`` has each credential as it was looked up, and as it is to be.
        """
        for before, fresh in stamped:
            scope = OperatorScope() if fresh.tenant_id is None else TenantScope(fresh.tenant_id)
            async with self._unit_of_work.begin(scope) as transaction:
                await transaction.fetch_one(sql.LOCK_KEY, wanted=fresh.tenant_id, key_id=fresh.key_id)
                now = (await _some_keys(transaction, [fresh.key_id])).get(fresh.key_id)
                if now is None or (now.mac, now.revoked_at, now.seal) != (before.mac, None, before.seal):
                    continue
                await transaction.run(
                    sql.RESTAMP, key_id=fresh.key_id, mac=fresh.mac, pepper_version=fresh.pepper_version
                )
                await _seal_key(transaction, fresh)

    async def adopt_keys(self, peppers: Peppers) -> int:
        """Seal the credentials that have no seal, as a build without seals left them; returns how many there were.

        Once seals are needed, what has none is damaged: this is for a caller that is about to say so, and not after it.
        """
        count = await self._adopt(OperatorScope(), peppers)
        after = None
        while True:
            page = await self.list(OperatorScope(), after=after)
            for tenant in page.items:
                count += await self._adopt(TenantScope(tenant.tenant_id), peppers)
            if (after := page.after) is None:
                return count

    async def _adopt(self, scope: TenantScope | OperatorScope, peppers: Peppers) -> int:
        tenant_id = scope.tenant_id if isinstance(scope, TenantScope) else None
        async with self._unit_of_work.begin(scope) as transaction:
            known = await _some_keys(transaction, await transaction.fetch_all(sql.LOCK_UNSEALED, wanted=tenant_id))
            for record in known.values():
                if record.revoked_at is not None:
                    await _strike(transaction, record)
                await _seal_key(transaction, peppers.seal(record))
        return len(known)

    async def touch_keys(self, used: Mapping[tuple[UUID | None, str], datetime]) -> None:
        """Record when credentials were last used; called in batches, because a row for each request costs too much."""
        by_tenant: dict[UUID | None, list[dict[str, object]]] = {}
        for (tenant_id, key_id), moment in used.items():
            by_tenant.setdefault(tenant_id, []).append({"key_id": key_id, "used_at": moment})
        for tenant_id, rows in by_tenant.items():
            scope = OperatorScope() if tenant_id is None else TenantScope(tenant_id)
            async with self._unit_of_work.begin(scope) as transaction:
                await transaction.run_many(sql.TOUCH, rows)


async def _usage(transaction: Transaction, tenant_id: UUID) -> Usage:
    blobs = await transaction.fetch_one(blobs_sql.USAGE, owner=tenant_id)
    rows = await transaction.fetch_one(rows_sql.USAGE, wanted=tenant_id)
    usage = Usage() if blobs is None else Usage(blobs.bytes, blobs.quota_bytes)
    if rows is None:
        return usage
    return replace(
        usage,
        rows_bytes=rows.bytes,
        rows_quota_bytes=rows.quota_bytes,
        rows_counted_at=rows.counted_at,
    )


async def _claim_name(transaction: Transaction, tenant_id: UUID, name: str) -> None:
    """Let no other transaction take a name until this one ends.

    Raises:
        TenantNameTaken: another tenant has it.
    """
    await transaction.run(sql.LOCK_NAMES)
    if await transaction.fetch_only(sql.NAME_TAKEN, wanted=tenant_id, name=name):
        raise TenantNameTaken


async def _add_key(transaction: Transaction, record: ApiKeyRecord) -> ApiKeyRecord | None:
    """Add a credential, or return the one that has its id.

    Raises:
        IdempotencyKeyReused: that one may do something else.
    """
    if await transaction.run(
        sql.ADD_KEY,
        key_id=record.key_id,
        kind=record.kind,
        name=record.name,
        owner=record.tenant_id,
        owner_subject=record.subject_id,
        permissions=list(record.permissions),
        mac=record.mac,
        pepper_version=record.pepper_version,
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
    ):
        await _seal_key(transaction, record)
        return None
    before = record_of(await transaction.fetch_only(sql.ONE_KEY, key_id=record.key_id))
    if _asked_for(before) != _asked_for(record):
        raise IdempotencyKeyReused
    return before


async def _seal_key(transaction: Transaction, record: ApiKeyRecord) -> None:
    if (seal := record.seal) is not None:
        await transaction.run(
            sql.SEAL_KEY,
            key_id=record.key_id,
            owner=record.tenant_id,
            grants=list(seal.grants),
            mac=seal.mac,
            pepper_version=seal.pepper_version,
            principal=seal.principal,
            made_by=seal.made_by,
        )


async def _strike(transaction: Transaction, revoked: ApiKeyRecord) -> None:
    """Say that a credential is revoked, and keep nothing that its secret could be compared with."""
    await transaction.run(sql.REVOKE, key_id=revoked.key_id, now=revoked.revoked_at, mac=_STRUCK_MAC)


async def _some_keys(transaction: Transaction, key_ids: Sequence[str]) -> dict[str, ApiKeyRecord]:
    rows = await transaction.fetch_all(sql.SOME_KEYS, key_ids=list(key_ids))
    return {record.key_id: record for record in map(record_of, rows)}


def _serves(record: ApiKeyRecord, peppers: Peppers, now: datetime) -> bool:
    """Whether a key works now, as far as that can be told without its secret."""
    return record.is_active(now) and (record.seal is None or peppers.is_authentic(record))


def _asked_for(record: ApiKeyRecord) -> tuple[object, ...]:
    """What the maker of a credential says of it."""
    named = (record.tenant_id, record.kind, record.name, record.subject_id, record.expires_at)
    return *named, record.permissions, record.grants, record.principal


def _tenant(row: sql.TenantRow) -> Tenant:
    return Tenant(**asdict(row))


def record_of(row: sql.ApiKeyRow) -> ApiKeyRecord:
    """The credential of a row."""
    columns = asdict(row)
    seal = tuple(columns.pop(name) for name in ("grants", "seal_mac", "seal_pepper_version", "principal", "made_by"))
    grants, mac, version, principal, made_by = seal
    columns["permissions"] = tuple(row.permissions)
    columns.pop("events", None)  # of its tenant
    return ApiKeyRecord(
        **columns, seal=None if mac is None else KeySeal(tuple(grants), mac, version, principal, made_by)
    )
