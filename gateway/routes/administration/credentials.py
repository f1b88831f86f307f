"""Credentials: who am I, the API keys of a tenant, and those of the operators."""

from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

import msgspec
from msgspec import Struct

from gateway import wire
from gateway.authentication import api_keys
from gateway.authentication.principals import CALLER, OPERATORS, TENANT
from gateway.bodies.scanning import Format
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, path_id, place
from gateway.problems import PermissionDenied
from gateway.routes.administration.derived_ids import DerivedIds
from gateway.routing.operations import Call, Operation
from gateway.services import Services
from storage import model
from storage.control.features import DECISIONS
from storage.errors import FeatureOff, InvalidState
from storage.scope import SHARED_SUBJECT, OperatorScope, TenantScope, check_subject


class RevokeQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the last key that administers may be revoked, too."""

    force: bool = False


_KNOWN = frozenset(get_args(wire.api_keys.Permission))


def _permissions(names: frozenset[str] | tuple[str, ...]) -> list[wire.api_keys.Permission]:
    """Those that this build knows: one that only a newer build knows is not granted here, and not shown."""
    return msgspec.convert(sorted(_KNOWN.intersection(names)), list[wire.api_keys.Permission])


def _tenant_text(tenant_id: UUID | None) -> str | None:
    return None if tenant_id is None else str(tenant_id)


@Operation(
    "GET /v1/whoami",
    reach=CALLER,
    summary="What the credential is and may do.",
    returns=wire.api_keys.WhoAmI,
)
async def whoami(call: Call[None]) -> Answer:
    return call.exchange.reply(
        wire.api_keys.WhoAmI.of(
            call.principal,
            tenant_id=_tenant_text(call.principal.tenant_id),
            permissions=_permissions(call.principal.permissions),
            grants=_permissions(call.principal.grants),
        )
    )


def derived_ids(call: Call[object], tenant_id: UUID | None, name: Format, body: bytes) -> DerivedIds | None:
    """What the request's Idempotency-Key names, if it has one."""
    idempotency = call.exchange.idempotency("", name, body)
    if idempotency is None:
        return None
    return DerivedIds(
        call.services.settings.api_key_pepper, tenant_id, call.exchange.route, idempotency.idempotency_key
    )


def api_key_out(record: model.ApiKeyRecord, services: Services) -> wire.api_keys.ApiKey:
    """An API key as the API shows it."""
    return wire.api_keys.ApiKey.of(
        record,
        tenant_id=_tenant_text(record.tenant_id),
        permissions=_permissions(record.permissions),
        grants=_permissions(record.grants),
        status=api_keys.status_of(record, services.settings.peppers, services.clock.now()),
    )


def new_api_key(record: model.ApiKeyRecord, services: Services, text: str | None) -> wire.api_keys.ApiKeyCreated:
    """An API key with its secret, where that can be shown."""
    return wire.api_keys.ApiKeyCreated(**msgspec.structs.asdict(api_key_out(record, services)), api_key=text)


def _check_subject_id(subject_id: str | None) -> None:
    if subject_id is None:
        raise InvalidState("a subject key needs subject_id", "/subject_id")
    try:
        check_subject(subject_id)
    except InvalidState as error:
        raise InvalidState(str(error), "/subject_id") from None
    if subject_id == SHARED_SUBJECT:
        raise InvalidState("~shared is reached with a service key", "/subject_id")


def check_expiry(expires_at: datetime, now: datetime) -> None:
    """Refuse an end that is past, or no moment.

    Raises:
        InvalidState: it is one of those.
    """
    if expires_at.tzinfo is None:
        raise InvalidState("the time needs a time zone", "/expires_at")
    if expires_at <= now:
        raise InvalidState("the time is past", "/expires_at")
    try:
        expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidState("the time is after the year 9999", "/expires_at") from None


def _check_request(request: wire.api_keys.ApiKeyRequest, grants: frozenset[str], services: Services) -> None:
    """A key does no more than its kind, a subject's key stays its own, and nobody hands out what they may not grant.

    Args:
        request: The key that is asked for.
        grants: The grants of the key that asks.
        services: The parts of the process.

    Raises:
        InvalidState: it is no key of its kind.
        PermissionDenied: it would exceed ``grants``.
    """
    wanted = {"permissions": request.permissions, "grants": request.grants or ()}
    for member, names in wanted.items():
        if api_keys.OPERATOR_PERMISSIONS.intersection(names):
            raise InvalidState("operator keys are made with the CLI on the server", f"/{member}")
        if request.kind == "subject" and not api_keys.SUBJECT_PERMISSIONS.issuperset(names):
            raise InvalidState("a subject key has state permissions only", f"/{member}")
    if request.kind == "subject":
        _check_subject_id(request.subject_id)
    elif request.subject_id is not None:
        raise InvalidState("a service key has no subject", "/subject_id")
    if request.expires_at is not None:
        check_expiry(request.expires_at, services.clock.now())
    if beyond := sorted({*request.permissions, *(request.grants or ())} - grants):
        raise PermissionDenied(
            f"this key does not grant {', '.join(beyond)}; use one that does, or ask the operator to recover the tenant"
        )


async def _principal_of(call: Call[TenantScope], request: wire.api_keys.ApiKeyRequest, key_id: str) -> str | None:
    """Who stands behind a new key; None: an older build may run, which knows of no principals.

    A key that decides about approvals makes none of another principal: else one person could vote twice.

    Raises:
        FeatureOff: One is named, and an older build may run.
        PermissionDenied: The key that asks decides, and another principal than its own is named.
    """
    await call.store.features.ready()
    if not call.store.features.is_switched_on(DECISIONS):
        if request.principal is not None:
            raise FeatureOff("keys have principals once no older gateway or worker runs: stateroom db finish-upgrade")
        return None
    if "approval:decide" not in call.principal.permissions:
        return request.principal or key_id
    if request.principal not in {None, call.principal.principal}:
        raise PermissionDenied("a key that decides makes keys of its own principal; use one without approval:decide")
    return call.principal.principal


@Operation(
    "POST /v1/api-keys",
    reach=TENANT,
    summary="Make an API key. Its secret is in this answer and nowhere else. 200: it was made before, without it.",
    permission="tenant:admin",
    body=wire.api_keys.ApiKeyRequest,
    returns=wire.api_keys.ApiKeyCreated,
    statuses=(201, 200),
    headers=("Idempotency-Key",),
    problems=("idempotency-key-reused", "feature-off"),
)
async def create_api_key(call: Call[TenantScope]) -> Answer:
    request, name, body = await call.exchange.body(wire.api_keys.ApiKeyRequest)
    _check_request(request, call.principal.grants, call.services)
    ids = derived_ids(call, call.scope.tenant_id, name, body)
    peppers = call.services.settings.peppers
    made = api_keys.generate(peppers, None if ids is None else ids.key_id())
    stands = await _principal_of(call, request, made.key_id)
    record, text = api_keys.mint(
        peppers,
        api_keys.NewKey(
            kind=request.kind,
            permissions=tuple(sorted(set(request.permissions))),
            grants=None if request.grants is None else tuple(sorted(set(request.grants))),
            now=call.services.clock.now(),
            name=request.name,
            tenant_id=call.scope.tenant_id,
            subject_id=request.subject_id,
            expires_at=request.expires_at,
            principal=stands,
            made_by=None if stands is None else call.principal.key_id,
        ),
        made,
    )
    stored = await call.commit(call.store.tenants.add_key(call.scope, record, call.actor))
    is_new = stored is record
    shown = new_api_key(stored, call.services, text if is_new else None)
    return call.exchange.reply(shown, status=201, location=place("api-keys", stored.key_id), replayed=not is_new)


@Operation(
    "GET /v1/api-keys",
    reach=TENANT,
    summary="List the tenant's API keys, newest first, without secrets.",
    permission="tenant:admin",
    query=PageQuery,
    returns=wire.api_keys.ApiKeyPage,
)
async def list_api_keys(call: Call[TenantScope]) -> Answer:
    return await _list(call)


async def _list(call: Call[TenantScope | OperatorScope]) -> Answer:
    query = call.exchange.query(PageQuery)
    tenant = call.scope.tenant_id if isinstance(call.scope, TenantScope) else None
    cursor = call.cursor(query.cursor, tenant)
    page = await call.store.tenants.list_keys(call.scope, query.limit, cursor.after)
    keys = [api_key_out(record, call.services) for record in page.items]
    return call.exchange.reply(wire.api_keys.ApiKeyPage(api_keys=keys, next_cursor=cursor.next(page.after)))


@Operation(
    "DELETE /v1/api-keys/{key_id}",
    reach=TENANT,
    summary="Revoke an API key: at once here, within seconds in other processes. The last one with tenant:admin "
    "takes force=true.",
    permission="tenant:admin",
    query=RevokeQuery,
    statuses=(204,),
    problems=("last-admin-key", "not-found"),
)
async def revoke_api_key(call: Call[TenantScope], key_id: str) -> Answer:
    return await _revoke(call, key_id)


async def _revoke(call: Call[TenantScope | OperatorScope], key_id: str) -> Answer:
    force = call.exchange.query(RevokeQuery).force
    name = path_id(key_id, "key_id")
    peppers = call.services.settings.peppers
    await call.commit(call.store.tenants.revoke_key(call.scope, name, peppers, call.actor, force=force))
    call.services.authenticator.forget(name)
    return Answer(204, [])


@Operation(
    "GET /v1/admin/api-keys",
    reach=OPERATORS,
    summary="List the operators' API keys, newest first, without secrets.",
    permission="operator",
    query=PageQuery,
    returns=wire.api_keys.ApiKeyPage,
)
async def list_operator_keys(call: Call[OperatorScope]) -> Answer:
    return await _list(call)


@Operation(
    "DELETE /v1/admin/api-keys/{key_id}",
    reach=OPERATORS,
    summary="Revoke an operator's API key: at once here, within seconds in other processes. The last one takes "
    "force=true.",
    permission="operator",
    query=RevokeQuery,
    statuses=(204,),
    problems=("last-admin-key", "not-found"),
)
async def revoke_operator_key(call: Call[OperatorScope], key_id: str) -> Answer:
    return await _revoke(call, key_id)
