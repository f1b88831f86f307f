"""Tenants of the deployment, for operators: made, named, suspended, resumed, and given a key when they lost theirs.

What an operator does to a tenant stands in the tenant's audit log as well as in the operators'.
"""

from dataclasses import replace
from uuid import UUID

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from uuid_utils import uuid7

from gateway import wire
from gateway.authentication import api_keys
from gateway.authentication.principals import Principal
from gateway.http.exchange import Exchange, path_uuid, place
from gateway.routes.administration.credentials import PageQuery, check_expiry, new_api_key, repeated_as
from gateway.routing.operations import Operation, route
from gateway.services import Services
from storage import model
from storage.encoding import encode_msgpack
from storage.errors import TenantNotFound
from storage.scope import OperatorScope


def _tenant(tenant: model.Tenant) -> wire.tenants.Tenant:
    return wire.tenants.Tenant(
        tenant_id=str(tenant.tenant_id),
        name=tenant.name,
        created_at=tenant.created_at,
        suspended_at=tenant.suspended_at,
    )


@route(
    Operation(
        name="create_tenant",
        method=HttpMethod.POST,
        path="/admin/tenants",
        summary="Make a tenant and its first administration key, which is in this answer and nowhere else. 200: it was "
        "made before, and comes without the key.",
        permission="operator",
        body=wire.tenants.TenantRequest,
        returns=wire.tenants.TenantCreated,
        statuses=(201, 200),
        headers=("Idempotency-Key",),
        problems=("idempotency-key-reused", "tenant-name-taken"),
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
    request, name, body = await exchange.body(wire.tenants.TenantRequest)
    repeated = repeated_as(exchange, services, None, name, body)
    tenant_id = UUID(str(uuid7())) if repeated is None else repeated.uuid()
    tenant = model.Tenant(tenant_id=tenant_id, name=request.name, created_at=services.clock.now())
    record, text = api_keys.mint(
        services.settings.peppers,
        kind="service",
        permissions=api_keys.ADMINISTRATION,
        grants=api_keys.TENANT_PERMISSIONS,
        now=tenant.created_at,
        name="first key",
        tenant_id=tenant.tenant_id,
    )
    founding = replace(operator_scope, founding=tenant.tenant_id)
    stored = await services.commits.run(services.store.tenants.create(founding, tenant, record, principal.actor))
    made = stored is tenant
    shown = wire.tenants.TenantCreated(**msgspec.structs.asdict(_tenant(stored)), api_key=text if made else None)
    location = place("admin", "tenants", str(stored.tenant_id))
    return exchange.reply(shown, status=201, location=location, replayed=not made)


@route(
    Operation(
        name="list_tenants",
        method=HttpMethod.GET,
        path="/admin/tenants",
        summary="List tenants, newest first.",
        permission="operator",
        query=PageQuery,
        returns=wire.tenants.TenantPage,
    )
)
async def list_tenants(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """List tenants."""
    query = exchange.query(PageQuery)
    binding = encode_msgpack((exchange.route,))
    page = await services.store.tenants.list(operator_scope, query.limit, services.cursors.read(binding, query.cursor))
    return exchange.reply(
        wire.tenants.TenantPage(
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
        returns=wire.tenants.Tenant,
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


@route(
    Operation(
        name="rename_tenant",
        method=HttpMethod.PATCH,
        path="/admin/tenants/{tenant_id:str}",
        summary="Give a tenant another name, which no other tenant has.",
        permission="operator",
        body=wire.tenants.TenantRequest,
        returns=wire.tenants.Tenant,
        problems=("not-found", "tenant-name-taken"),
    )
)
async def rename_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  the guard of the scope
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Rename a tenant."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await exchange.body(wire.tenants.TenantRequest)
    return exchange.reply(
        _tenant(await services.commits.run(services.store.tenants.rename(wanted, request.name, principal.actor)))
    )


@route(
    Operation(
        name="suspend_tenant",
        method=HttpMethod.POST,
        path="/admin/tenants/{tenant_id:str}/suspend",
        summary="Refuse all keys of a tenant: at once here, within seconds in other processes. What it stored is kept.",
        permission="operator",
        body=wire.tenants.TenantSuspension,
        returns=wire.tenants.Tenant,
        problems=("not-found",),
    )
)
async def suspend_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  the guard of the scope
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Suspend a tenant."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await exchange.body(wire.tenants.TenantSuspension)
    found = await services.commits.run(services.store.tenants.suspend(wanted, request.reason, principal.actor))
    services.authenticator.forget_tenant(wanted)
    return exchange.reply(_tenant(found))


@route(
    Operation(
        name="resume_tenant",
        method=HttpMethod.POST,
        path="/admin/tenants/{tenant_id:str}/resume",
        summary="Take the keys of a suspended tenant again.",
        permission="operator",
        returns=wire.tenants.Tenant,
        problems=("not-found",),
    )
)
async def resume_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  the guard of the scope
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Resume a tenant."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    found = await services.commits.run(services.store.tenants.resume(wanted, principal.actor))
    services.authenticator.forget_tenant(wanted)
    return exchange.reply(_tenant(found))


@route(
    Operation(
        name="recover_tenant",
        method=HttpMethod.POST,
        path="/admin/tenants/{tenant_id:str}/recover",
        summary="Make an administration key for a tenant that lost its own; its audit log says so. 200: it was made "
        "before, and comes without its secret.",
        permission="operator",
        body=wire.tenants.TenantRecovery,
        returns=wire.api_keys.ApiKeyCreated,
        statuses=(201, 200),
        headers=("Idempotency-Key",),
        problems=("idempotency-key-reused", "not-found"),
    )
)
async def recover_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  the guard of the scope
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Recover a tenant."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, name, body = await exchange.body(wire.tenants.TenantRecovery)
    if request.expires_at is not None:
        check_expiry(request.expires_at, services.clock.now())
    repeated = repeated_as(exchange, services, wanted, name, body)
    record, text = api_keys.mint(
        services.settings.peppers,
        kind="service",
        permissions=api_keys.ADMINISTRATION,
        grants=api_keys.TENANT_PERMISSIONS,
        now=services.clock.now(),
        name="recovery key",
        tenant_id=wanted,
        expires_at=request.expires_at,
        key=None if repeated is None else api_keys.generate(services.settings.peppers, repeated.key_id()),
    )
    stored = await services.commits.run(services.store.tenants.recover(record, request.reason, principal.actor))
    made = stored is record
    shown = new_api_key(stored, services, text if made else None)
    return exchange.reply(shown, status=201, location=place("api-keys", stored.key_id), replayed=not made)


ROUTES = [
    create_tenant,
    list_tenants,
    get_tenant,
    rename_tenant,
    suspend_tenant,
    resume_tenant,
    recover_tenant,
]
