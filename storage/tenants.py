"""Tenants and their credentials as rows. Neither tenants nor operators are state: nothing here can open any.

`look_up_key` is the one read without a scope, because a credential is read before anybody is authenticated; it goes
through a database function that returns one key's row and is owned by a role that can do nothing else.

Every change is recorded in the audit log in its own transaction: without the record it does not happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from storage.audit import LOCAL_ACTOR, Audit, chain_of
from storage.clock import Clock
from storage.errors import ApiKeyNotFound, IdempotencyKeyReused, InvalidState, TenantNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.model import ApiKeyRecord, Page, Tenant
from storage.postgres import blobs as blobs_sql
from storage.postgres import tenants as sql
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import OperatorScope, TenantScope

_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
_BYTES_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BlobUsage:
    """What a tenant keeps in the object store, reserved bytes included; ``quota_bytes`` None: as much as it likes."""

    bytes: int
    quota_bytes: int | None


class Tenants:
    """The verbs on tenants and API keys."""

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, clock: Clock) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._clock = clock

    async def create(
        self, scope: OperatorScope, tenant: Tenant, first_key: ApiKeyRecord, actor: str = LOCAL_ACTOR
    ) -> Tenant:
        """Create a tenant together with its first credential; ``scope.founding`` must name it.

        Returns:
            ``tenant`` itself; or, if there is one with its id and name, that one, and nothing changed.

        Raises:
            IdempotencyKeyReused: there is one with its id and another name.
        """
        arguments = {"tenant_id": tenant.tenant_id, "name": tenant.name, "created_at": tenant.created_at}
        async with self._unit_of_work.begin(scope) as transaction:
            if not await transaction.fetchval(sql.ADD_TENANT.text, *sql.ADD_TENANT.arguments(**arguments)):
                before = _tenant(await transaction.fetchrow(sql.ONE_TENANT.text, tenant.tenant_id))
                if before.name != tenant.name:
                    raise IdempotencyKeyReused
                return before
            await _add_key(transaction, first_key)
            target = f"tenant:{tenant.tenant_id}"
            await self._audit.append(transaction, tenant.tenant_id, actor, "tenant.create", target)
            await self._record_key(transaction, tenant.tenant_id, actor, first_key)
            await self._audit.append(transaction, OPERATOR_CHAIN, actor, "tenant.create", target)
        return tenant

    async def get(self, scope: OperatorScope, tenant_id: UUID) -> Tenant:
        """One tenant.

        Raises:
            TenantNotFound: there is none.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetchrow(sql.ONE_TENANT.text, tenant_id)
        if row is None:
            raise TenantNotFound
        return _tenant(row)

    async def list(self, scope: OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None) -> Page[Tenant]:
        """Tenants, newest first."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(
                sql.TENANTS.text,
                *sql.TENANTS.arguments(
                    after_at=datetime.fromisoformat(after[0]) if after else _END_OF_TIME,
                    after_id=UUID(after[1]) if after else UUID(int=0),
                    page_rows=limit,
                ),
            )
        tenants = [_tenant(row) for row in rows]
        last = tenants[-1] if len(tenants) == limit else None
        return Page(tenants, (last.created_at.isoformat(), str(last.tenant_id)) if last else None)

    async def usage(self, scope: TenantScope | OperatorScope, tenant_id: UUID) -> BlobUsage:
        """How many bytes a tenant keeps in the object store, and how many it may.

        Raises:
            TenantNotFound: there is no such tenant.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            if await transaction.fetchrow(sql.ONE_TENANT.text, tenant_id) is None:
                raise TenantNotFound
            row = await transaction.fetchrow(blobs_sql.USAGE, tenant_id)
        return BlobUsage(0, None) if row is None else BlobUsage(row["bytes"], row["quota_bytes"])

    async def set_quota(self, tenant_id: UUID, quota_bytes: int | None, actor: str = LOCAL_ACTOR) -> BlobUsage:
        """Say how many bytes a tenant may keep in the object store. Less than it keeps only refuses more.

        Args:
            tenant_id: Which.
            quota_bytes: None: as many as it likes.
            actor: The operator who says so.

        Raises:
            InvalidState: negative, or more than 2^63 - 1.
            TenantNotFound: there is no such tenant.
        """
        if quota_bytes is not None and not 0 <= quota_bytes <= _BYTES_MAX:
            raise InvalidState("a quota is a number of bytes from 0 to 2^63 - 1", "/quota_bytes")
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetchrow(sql.ONE_TENANT.text, tenant_id) is None:
                raise TenantNotFound
            target, detail = f"tenant:{tenant_id}", {"quota_bytes": quota_bytes}
            await self._audit.append(transaction, tenant_id, actor, "tenant.quota", target, detail)
            await self._audit.append(transaction, OPERATOR_CHAIN, actor, "tenant.quota", target, detail)
            row = await transaction.fetchrow(blobs_sql.SET_QUOTA, tenant_id, quota_bytes)
        return BlobUsage(row["bytes"], row["quota_bytes"])

    async def look_up_key(self, key_id: str) -> ApiKeyRecord | None:
        """The stored record of a credential, or None."""
        async with self._unit_of_work.connection() as connection:
            row = await connection.fetchrow(sql.LOOK_UP, key_id)
        return None if row is None else _record(row)

    async def add_key(
        self, scope: TenantScope | OperatorScope, record: ApiKeyRecord, actor: str = LOCAL_ACTOR
    ) -> ApiKeyRecord:
        """Store a credential of this tenant, or of the operators.

        Returns:
            ``record`` itself; or, if one of its id may do the same, that one, and nothing changed.

        Raises:
            IdempotencyKeyReused: one of its id may do something else.
        """
        async with self._unit_of_work.begin(scope) as transaction:
            before = await _add_key(transaction, record)
            if before is not None:
                if _asked_for(before) != _asked_for(record):
                    raise IdempotencyKeyReused
                return before
            await self._record_key(transaction, chain_of(scope), actor, record)
        return record

    async def _record_key(self, transaction: Transaction, chain: UUID, actor: str, record: ApiKeyRecord) -> None:
        detail = {
            "kind": record.kind,
            "subject_id": record.subject_id,
            "permissions": list(record.permissions),
            "expires_at": None if record.expires_at is None else record.expires_at.isoformat(),
        }
        await self._audit.append(transaction, chain, actor, "api-key.create", f"api-key:{record.key_id}", detail)

    async def list_keys(
        self, scope: TenantScope | OperatorScope, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[ApiKeyRecord]:
        """Credentials, newest first."""
        statement = sql.KEYS if isinstance(scope, TenantScope) else sql.OPERATOR_KEYS
        values: dict[str, object] = {
            "after_at": datetime.fromisoformat(after[0]) if after else _END_OF_TIME,
            "after_id": after[1] if after else "",
            "page_rows": limit,
        }
        if isinstance(scope, TenantScope):
            values["wanted"] = scope.tenant_id
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(statement.text, *statement.arguments(**values))
        records = [_record(row) for row in rows]
        last = records[-1] if len(records) == limit else None
        return Page(records, (last.created_at.isoformat(), last.key_id) if last else None)

    async def revoke_key(self, scope: TenantScope | OperatorScope, key_id: str, actor: str = LOCAL_ACTOR) -> None:
        """Revoke a credential; doing it again changes nothing.

        Raises:
            ApiKeyNotFound: this scope has none of this id.
        """
        arguments = sql.REVOKE.arguments(wanted=key_id, moment=self._clock.now())
        async with self._unit_of_work.begin(scope) as transaction:
            if not await transaction.fetchval(sql.REVOKE.text, *arguments):
                raise ApiKeyNotFound
            await self._audit.append(transaction, chain_of(scope), actor, "api-key.revoke", f"api-key:{key_id}")

    async def touch_keys(self, used: Mapping[tuple[UUID | None, str], datetime]) -> None:
        """Record when credentials were last used; called in batches, because a row for each request costs too much."""
        by_tenant: dict[UUID | None, list[tuple[object, ...]]] = {}
        for (tenant_id, key_id), moment in used.items():
            row = tuple(sql.TOUCH.arguments(wanted=key_id, moment=moment))
            by_tenant.setdefault(tenant_id, []).append(row)
        for tenant_id, rows in by_tenant.items():
            scope = OperatorScope() if tenant_id is None else TenantScope(tenant_id)
            async with self._unit_of_work.begin(scope) as transaction:
                await transaction.executemany(sql.TOUCH.text, rows)


async def _add_key(transaction: Transaction, record: ApiKeyRecord) -> ApiKeyRecord | None:
    """Add a credential, or return the one that has its id."""
    values = {name: getattr(record, name) for name in ApiKeyRecord.__slots__}
    values["permissions"] = list(record.permissions)
    if await transaction.fetchval(sql.ADD_KEY.text, *sql.ADD_KEY.arguments(**values)):
        return None
    return _record(await transaction.fetchrow(sql.ONE_KEY.text, record.key_id))


def _asked_for(record: ApiKeyRecord) -> tuple[object, ...]:
    """What whoever makes a credential says of it."""
    return record.tenant_id, record.kind, record.name, record.subject_id, record.permissions, record.expires_at


def _tenant(row: Any) -> Tenant:
    return Tenant(tenant_id=row["tenant_id"], name=row["name"], created_at=row["created_at"])


def _record(row: Any) -> ApiKeyRecord:
    values = dict(row)
    values["permissions"] = tuple(values["permissions"])
    return ApiKeyRecord(**values)
