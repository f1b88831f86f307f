"""Tenants of the deployment, for operators: made, named, suspended, resumed, and given a key when they lost theirs.

What an operator does to a tenant stands in the tenant's audit log as well as in the operators'.
"""

from dataclasses import replace
from uuid import UUID

import msgspec
from uuid_utils import uuid7

from gateway import wire
from gateway.authentication import api_keys
from gateway.authentication.principals import OPERATORS
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, path_uuid, place
from gateway.routes.administration.credentials import check_expiry, derived_ids, new_api_key
from gateway.routing.operations import Call, Operation
from storage import model
from storage.control.features import DECISIONS, EVENTS
from storage.errors import TenantNotFound
from storage.scope import OperatorScope


def _tenant(tenant: model.Tenant) -> wire.tenants.Tenant:
    return wire.tenants.Tenant.of(tenant, tenant_id=str(tenant.tenant_id))


async def _grants(call: Call[OperatorScope]) -> tuple[str, ...]:
    """What keys may be allowed that a tenant's first key, or a recovered one, makes."""
    features = call.store.features
    return api_keys.tenant_permissions(
        may_export=await call.store.tenants.may_allow_exports(),
        may_hear=features.is_switched_on(EVENTS),
        may_decide=features.is_switched_on(DECISIONS),
    )


@Operation(
    "POST /v1/admin/tenants",
    reach=OPERATORS,
    summary="Make a tenant and its first administration key, which is in this answer and nowhere else. 200: it was "
    "made before, and comes without the key.",
    permission="operator",
    body=wire.tenants.TenantRequest,
    returns=wire.tenants.TenantCreated,
    statuses=(201, 200),
    headers=("Idempotency-Key",),
    problems=("idempotency-key-reused", "tenant-name-taken"),
)
async def create_tenant(call: Call[OperatorScope]) -> Answer:
    request, name, body = await call.exchange.body(wire.tenants.TenantRequest)
    ids = derived_ids(call, None, name, body)
    tenant_id = UUID(str(uuid7())) if ids is None else ids.uuid()
    tenant = model.Tenant(tenant_id=tenant_id, name=request.name, created_at=call.services.clock.now())
    record, text = api_keys.mint(
        call.services.settings.peppers,
        api_keys.NewKey(
            kind="service",
            permissions=api_keys.ADMINISTRATION,
            grants=await _grants(call),
            now=tenant.created_at,
            name="first key",
            tenant_id=tenant.tenant_id,
        ),
    )
    founding = replace(call.scope, founding=tenant.tenant_id)
    stored = await call.commit(call.store.tenants.create(founding, tenant, record, call.actor))
    made = stored is tenant
    shown = wire.tenants.TenantCreated(**msgspec.structs.asdict(_tenant(stored)), api_key=text if made else None)
    location = place("admin", "tenants", str(stored.tenant_id))
    return call.exchange.reply(shown, status=201, location=location, replayed=not made)


@Operation(
    "GET /v1/admin/tenants",
    reach=OPERATORS,
    summary="List tenants, newest first.",
    permission="operator",
    query=PageQuery,
    returns=wire.tenants.TenantPage,
)
async def list_tenants(call: Call[OperatorScope]) -> Answer:
    query = call.exchange.query(PageQuery)
    cursor = call.cursor(query.cursor)
    page = await call.store.tenants.list(call.scope, query.limit, cursor.after)
    tenants = [_tenant(tenant) for tenant in page.items]
    return call.exchange.reply(wire.tenants.TenantPage(tenants=tenants, next_cursor=cursor.next(page.after)))


@Operation(
    "GET /v1/admin/tenants/{tenant_id}",
    reach=OPERATORS,
    summary="Show a tenant.",
    permission="operator",
    returns=wire.tenants.Tenant,
    problems=("not-found",),
)
async def get_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    return call.exchange.reply(_tenant(await call.store.tenants.get(call.scope, wanted)))


@Operation(
    "PATCH /v1/admin/tenants/{tenant_id}",
    reach=OPERATORS,
    summary="Give a tenant another name, which no other tenant has.",
    permission="operator",
    body=wire.tenants.TenantRequest,
    returns=wire.tenants.Tenant,
    problems=("not-found", "tenant-name-taken"),
)
async def rename_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await call.exchange.body(wire.tenants.TenantRequest)
    return call.exchange.reply(_tenant(await call.commit(call.store.tenants.rename(wanted, request.name, call.actor))))


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/suspend",
    reach=OPERATORS,
    summary="Refuse all keys of a tenant: at once here, within seconds in other processes. What it stored is kept.",
    permission="operator",
    body=wire.tenants.TenantSuspension,
    returns=wire.tenants.Tenant,
    problems=("not-found",),
)
async def suspend_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await call.exchange.body(wire.tenants.TenantSuspension)
    tenant = await call.commit(call.store.tenants.suspend(wanted, request.reason, call.actor))
    call.services.authenticator.forget_tenant(wanted)
    return call.exchange.reply(_tenant(tenant))


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/resume",
    reach=OPERATORS,
    summary="Take the keys of a suspended tenant again.",
    permission="operator",
    returns=wire.tenants.Tenant,
    problems=("not-found",),
)
async def resume_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    tenant = await call.commit(call.store.tenants.resume(wanted, call.actor))
    call.services.authenticator.forget_tenant(wanted)
    return call.exchange.reply(_tenant(tenant))


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/recover",
    reach=OPERATORS,
    summary="Make an administration key for a tenant that lost its own; its audit log says so. 200: it was made "
    "before, and comes without its secret.",
    permission="operator",
    body=wire.tenants.TenantRecovery,
    returns=wire.api_keys.ApiKeyCreated,
    statuses=(201, 200),
    headers=("Idempotency-Key",),
    problems=("idempotency-key-reused", "not-found"),
)
async def recover_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, name, body = await call.exchange.body(wire.tenants.TenantRecovery)
    if request.expires_at is not None:
        check_expiry(request.expires_at, call.services.clock.now())
    ids = derived_ids(call, wanted, name, body)
    record, text = api_keys.mint(
        call.services.settings.peppers,
        api_keys.NewKey(
            kind="service",
            permissions=api_keys.ADMINISTRATION,
            grants=await _grants(call),
            now=call.services.clock.now(),
            name="recovery key",
            tenant_id=wanted,
            expires_at=request.expires_at,
        ),
        None if ids is None else api_keys.generate(call.services.settings.peppers, ids.key_id()),
    )
    stored = await call.commit(call.store.tenants.recover(record, request.reason, call.actor))
    made = stored is record
    shown = new_api_key(stored, call.services, text if made else None)
    return call.exchange.reply(shown, status=201, location=place("api-keys", stored.key_id), replayed=not made)
