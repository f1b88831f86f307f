"""Credentials and tenants: who am I, API keys of a tenant, tenants of the deployment."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from msgspec import Meta, Struct
from uuid_utils import uuid7

from gateway import api_keys, limits, wire
from gateway.auth import Principal
from gateway.codec import Format
from gateway.exchange import Exchange, path_id, path_uuid
from gateway.operations import Operation, route
from gateway.repeats import Repeated
from gateway.services import Services
from storage import model
from storage.errors import InvalidState, TenantNotFound
from storage.scope import SHARED_SUBJECT, OperatorScope, TenantScope, check_subject

OPERATOR_PERMISSIONS = frozenset({"operator", "decrypt-any"})
SUBJECT_PERMISSIONS = frozenset({"state:read", "state:write", "state:delete"})
FIRST_KEY_PERMISSIONS: tuple[wire.Permission, ...] = (
    "state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin",
)  # fmt: skip


class PageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page of a list."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


def _permissions(names: frozenset[str] | tuple[str, ...]) -> list[wire.Permission]:
    return msgspec.convert(sorted(names), list[wire.Permission])


def _tenant_text(tenant_id: UUID | None) -> str | None:
    return None if tenant_id is None else str(tenant_id)


@route(
    Operation(
        name="whoami",
        method=HttpMethod.GET,
        path="/whoami",
        summary="What the credential is and may do.",
        returns=wire.WhoAmI,
    )
)
async def whoami(exchange: NamedDependency[Exchange], principal: NamedDependency[Principal]) -> Response[bytes]:
    """Show the caller."""
    exchange.no_query()
    return exchange.reply(
        wire.WhoAmI(
            credential_id=principal.credential_id,
            kind=principal.kind,
            tenant_id=_tenant_text(principal.tenant_id),
            subject_id=principal.subject_id,
            permissions=_permissions(principal.permissions),
            expires_at=principal.expires_at,
        )
    )


def repeated_as(
    exchange: Exchange, services: Services, tenant_id: UUID | None, name: Format, body: bytes
) -> Repeated | None:
    """What the request's Idempotency-Key names, if it has one."""
    given = exchange.idempotency("", name, body)
    if given is None:
        return None
    return Repeated(services.settings.api_key_pepper, tenant_id, exchange.route, given.idempotency_key)


def _api_key(record: model.ApiKeyRecord) -> wire.ApiKey:
    return wire.ApiKey(
        key_id=record.key_id,
        kind=record.kind,
        name=record.name,
        tenant_id=_tenant_text(record.tenant_id),
        subject_id=record.subject_id,
        permissions=_permissions(record.permissions),
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
    )


def _check_subject_id(subject_id: str | None) -> None:
    if subject_id is None:
        raise InvalidState("a subject key needs subject_id", "/subject_id")
    try:
        check_subject(subject_id)
    except InvalidState as error:
        raise InvalidState(str(error), "/subject_id") from None
    if subject_id == SHARED_SUBJECT:
        raise InvalidState("~shared is reached with a service key", "/subject_id")


def _check_expiry(expires_at: datetime, now: datetime) -> None:
    if expires_at.tzinfo is None:
        raise InvalidState("the time needs a time zone", "/expires_at")
    if expires_at <= now:
        raise InvalidState("the time is past", "/expires_at")
    try:
        expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidState("the time is after the year 9999", "/expires_at") from None


def _check_request(request: wire.ApiKeyRequest, services: Services) -> None:
    """A key does no more than its kind: nobody hands out what is the operators', a subject's key stays its own."""
    if OPERATOR_PERMISSIONS.intersection(request.permissions):
        raise InvalidState("operator keys are made with the CLI on the server", "/permissions")
    if request.kind == "subject":
        _check_subject_id(request.subject_id)
        if not SUBJECT_PERMISSIONS.issuperset(request.permissions):
            raise InvalidState("a subject key has state permissions only", "/permissions")
    elif request.subject_id is not None:
        raise InvalidState("a service key has no subject", "/subject_id")
    if request.expires_at is not None:
        _check_expiry(request.expires_at, services.clock.now())


@route(
    Operation(
        name="create_api_key",
        method=HttpMethod.POST,
        path="/api-keys",
        summary="Make an API key. Its secret is in this answer and nowhere else. 200: it was made before, without it.",
        permission="tenant:admin",
        body=wire.ApiKeyRequest,
        returns=wire.NewApiKey,
        statuses=(201, 200),
        headers=("Idempotency-Key",),
        problems=("idempotency-key-reused",),
    )
)
async def create_api_key(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Make a key."""
    exchange.no_query()
    request, name, body = await exchange.body(wire.ApiKeyRequest)
    _check_request(request, services)
    repeated = repeated_as(exchange, services, tenant_scope.tenant_id, name, body)
    record, text = api_keys.mint(
        services.settings.api_key_pepper,
        kind=request.kind,
        permissions=tuple(sorted(set(request.permissions))),
        now=services.clock.now(),
        name=request.name,
        tenant_id=tenant_scope.tenant_id,
        subject_id=request.subject_id,
        expires_at=request.expires_at,
        key_id=None if repeated is None else repeated.key_id(),
    )
    stored = await services.commits.run(services.store.tenants.add_key(tenant_scope, record, principal.actor))
    made = stored is record
    shown = wire.NewApiKey(**msgspec.structs.asdict(_api_key(stored)), api_key=text if made else None)
    return exchange.reply(shown, status=201 if made else 200)


@route(
    Operation(
        name="list_api_keys",
        method=HttpMethod.GET,
        path="/api-keys",
        summary="List the tenant's API keys, newest first, without secrets.",
        permission="tenant:admin",
        query=PageQuery,
        returns=wire.ApiKeyPage,
    )
)
async def list_api_keys(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """List keys."""
    query = exchange.query(PageQuery)
    binding = msgspec.msgpack.encode((exchange.route, tenant_scope.tenant_id))
    page = await services.store.tenants.list_keys(
        tenant_scope, query.limit, services.cursors.read(binding, query.cursor)
    )
    return exchange.reply(
        wire.ApiKeyPage(
            api_keys=[_api_key(record) for record in page.items],
            next_cursor=services.cursors.write(binding, page.after),
        )
    )


@route(
    Operation(
        name="revoke_api_key",
        method=HttpMethod.DELETE,
        path="/api-keys/{key_id:str}",
        summary="Revoke an API key: at once here, within seconds in other processes.",
        permission="tenant:admin",
        statuses=(204,),
        problems=("not-found",),
    )
)
async def revoke_api_key(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
    key_id: FromPath[str],
) -> Response[None]:
    """Revoke a key."""
    exchange.no_query()
    name = path_id(key_id, "key_id")
    await services.commits.run(services.store.tenants.revoke_key(tenant_scope, name, principal.actor))
    services.authenticator.forget(name)
    return Response(None, status_code=204)


def _tenant(tenant: model.Tenant) -> wire.Tenant:
    return wire.Tenant(tenant_id=str(tenant.tenant_id), name=tenant.name, created_at=tenant.created_at)


@route(
    Operation(
        name="create_tenant",
        method=HttpMethod.POST,
        path="/admin/tenants",
        summary="Make a tenant and its first administration key, which is in this answer and nowhere else. 200: it was "
        "made before, and comes without the key.",
        permission="operator",
        body=wire.TenantRequest,
        returns=wire.NewTenant,
        statuses=(201, 200),
        headers=("Idempotency-Key",),
        problems=("idempotency-key-reused",),
    )
)
async def create_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Make a tenant."""
    exchange.no_query()
    request, name, body = await exchange.body(wire.TenantRequest)
    repeated = repeated_as(exchange, services, None, name, body)
    tenant_id = UUID(str(uuid7())) if repeated is None else repeated.uuid()
    tenant = model.Tenant(tenant_id=tenant_id, name=request.name, created_at=services.clock.now())
    record, text = api_keys.mint(
        services.settings.api_key_pepper,
        kind="service",
        permissions=FIRST_KEY_PERMISSIONS,
        now=tenant.created_at,
        name="first key",
        tenant_id=tenant.tenant_id,
    )
    founding = replace(operator_scope, founding=tenant.tenant_id)
    stored = await services.commits.run(services.store.tenants.create(founding, tenant, record, principal.actor))
    made = stored is tenant
    shown = wire.NewTenant(**msgspec.structs.asdict(_tenant(stored)), api_key=text if made else None)
    return exchange.reply(shown, status=201 if made else 200)


@route(
    Operation(
        name="list_tenants",
        method=HttpMethod.GET,
        path="/admin/tenants",
        summary="List tenants, newest first.",
        permission="operator",
        query=PageQuery,
        returns=wire.TenantPage,
    )
)
async def list_tenants(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """List tenants."""
    query = exchange.query(PageQuery)
    binding = msgspec.msgpack.encode((exchange.route,))
    page = await services.store.tenants.list(operator_scope, query.limit, services.cursors.read(binding, query.cursor))
    return exchange.reply(
        wire.TenantPage(
            tenants=[_tenant(tenant) for tenant in page.items],
            next_cursor=services.cursors.write(binding, page.after),
        )
    )


@route(
    Operation(
        name="get_tenant",
        method=HttpMethod.GET,
        path="/admin/tenants/{tenant_id:str}",
        summary="Show a tenant.",
        permission="operator",
        returns=wire.Tenant,
        problems=("not-found",),
    )
)
async def get_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Show a tenant."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    return exchange.reply(_tenant(await services.store.tenants.get(operator_scope, wanted)))


ROUTES = [
    whoami,
    create_api_key,
    list_api_keys,
    revoke_api_key,
    create_tenant,
    list_tenants,
    get_tenant,
]
