"""The audit log: a tenant's own, and the operators'. Both are read the same way; only who may differs."""

from typing import Annotated

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import Principal
from gateway.http.exchange import Exchange
from gateway.routing.operations import Operation, route
from gateway.services import Services
from storage.administration.anchors import Anchor
from storage.administration.audit import AuditRecord
from storage.encoding import encode_msgpack
from storage.scope import OperatorScope, TenantScope

AnyChain = TenantScope | OperatorScope
_ANCHOR_PROBLEMS = ("blob-store-unavailable", "integrity-failure", "key-unavailable", "not-found")


class AuditQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page; ``verify`` false gives the rows as they are, as evidence, where the log does not verify."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None
    verify: bool = True


def _event(record: AuditRecord) -> wire.audit.AuditEvent:
    entry, event = record.entry, record.event
    return wire.audit.AuditEvent(
        sequence=entry.sequence,
        at=event.at if event else None,
        actor=event.actor if event else None,
        action=event.action if event else None,
        target=event.target if event else None,
        detail=dict(event.detail) if event else None,
        body=entry.body.decode("ascii", "replace"),
        previous=entry.previous.hex(),
        hash=entry.hash.hex(),
    )


async def _page(exchange: Exchange, services: Services, principal: Principal, scope: AnyChain) -> Response[bytes]:
    query = exchange.query(AuditQuery)
    audit = services.store.audit
    origin = audit.origin(scope)
    binding = encode_msgpack((exchange.route, origin))
    after = services.cursors.read(binding, query.cursor)
    reading = audit.page(scope, principal.actor, int(after[0]) if after else 0, query.limit, verify=query.verify)
    page = await services.commits.run(reading)
    return exchange.reply(
        wire.audit.AuditPage(
            origin=origin,
            events=[_event(record) for record in page.items],
            next_cursor=services.cursors.write(binding, page.after),
        )
    )


def _anchor(anchor: Anchor) -> wire.audit.AuditAnchor:
    return wire.audit.AuditAnchor(
        origin=anchor.text.origin,
        sequence=anchor.text.sequence,
        hash=anchor.text.hash.hex(),
        note=anchor.note,
        stored=anchor.stored,
    )


async def _latest(exchange: Exchange, services: Services, scope: AnyChain) -> Response[bytes]:
    exchange.no_query()
    return exchange.reply(_anchor(await services.store.anchors.latest(scope)))


async def _now(exchange: Exchange, services: Services, scope: AnyChain) -> Response[bytes]:
    exchange.no_query()
    return exchange.reply(_anchor(await services.commits.run(services.store.anchors.anchor(scope))))


async def _public_key(exchange: Exchange, services: Services, scope: AnyChain) -> Response[bytes]:
    exchange.no_query()
    note_key = await services.store.anchors.public_key(scope)
    return exchange.reply(wire.audit.AuditKey(origin=note_key.name, public_key=str(note_key)))


@route(
    Operation(
        name="read_audit",
        method=HttpMethod.GET,
        path="/audit",
        summary="Events of the tenant's audit log, oldest first; the beginning of a reading is recorded itself.",
        permission="tenant:admin",
        query=AuditQuery,
        returns=wire.audit.AuditPage,
        problems=("integrity-failure",),
    )
)
async def read_audit(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Read the tenant's log."""
    return await _page(exchange, services, principal, tenant_scope)


@route(
    Operation(
        name="get_audit_anchor",
        method=HttpMethod.GET,
        path="/audit/anchor",
        summary="The newest anchor of the tenant's audit log in the object store.",
        permission="tenant:admin",
        returns=wire.audit.AuditAnchor,
        problems=_ANCHOR_PROBLEMS,
    )
)
async def get_audit_anchor(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Show the tenant's newest anchor."""
    return await _latest(exchange, services, tenant_scope)


@route(
    Operation(
        name="anchor_audit",
        method=HttpMethod.POST,
        path="/audit/anchor",
        summary="Anchor the tenant's audit log where it is now; safe to repeat.",
        permission="tenant:admin",
        returns=wire.audit.AuditAnchor,
        problems=_ANCHOR_PROBLEMS,
    )
)
async def anchor_audit(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Anchor the tenant's log."""
    return await _now(exchange, services, tenant_scope)


@route(
    Operation(
        name="get_audit_key",
        method=HttpMethod.GET,
        path="/audit/key",
        summary="The public key that the tenant's anchors are signed with.",
        permission="tenant:admin",
        returns=wire.audit.AuditKey,
        problems=("integrity-failure", "key-unavailable"),
    )
)
async def get_audit_key(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Show the key of the tenant's chain."""
    return await _public_key(exchange, services, tenant_scope)


@route(
    Operation(
        name="read_operator_audit",
        method=HttpMethod.GET,
        path="/admin/audit",
        summary="Events of the operators' audit log, oldest first; the beginning of a reading is recorded itself.",
        permission="operator",
        query=AuditQuery,
        returns=wire.audit.AuditPage,
        problems=("integrity-failure",),
    )
)
async def read_operator_audit(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Read the operators' log."""
    return await _page(exchange, services, principal, operator_scope)


@route(
    Operation(
        name="get_operator_audit_anchor",
        method=HttpMethod.GET,
        path="/admin/audit/anchor",
        summary="The newest anchor of the operators' audit log in the object store.",
        permission="operator",
        returns=wire.audit.AuditAnchor,
        problems=_ANCHOR_PROBLEMS,
    )
)
async def get_operator_audit_anchor(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Show the operators' newest anchor."""
    return await _latest(exchange, services, operator_scope)


@route(
    Operation(
        name="anchor_operator_audit",
        method=HttpMethod.POST,
        path="/admin/audit/anchor",
        summary="Anchor the operators' audit log where it is now; safe to repeat.",
        permission="operator",
        returns=wire.audit.AuditAnchor,
        problems=_ANCHOR_PROBLEMS,
    )
)
async def anchor_operator_audit(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Anchor the operators' log."""
    return await _now(exchange, services, operator_scope)


@route(
    Operation(
        name="get_operator_audit_key",
        method=HttpMethod.GET,
        path="/admin/audit/key",
        summary="The public key that the operators' anchors are signed with.",
        permission="operator",
        returns=wire.audit.AuditKey,
        problems=("integrity-failure", "key-unavailable"),
    )
)
async def get_operator_audit_key(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Show the key of the operators' chain."""
    return await _public_key(exchange, services, operator_scope)


ROUTES = [
    read_audit,
    get_audit_anchor,
    anchor_audit,
    get_audit_key,
    read_operator_audit,
    get_operator_audit_anchor,
    anchor_operator_audit,
    get_operator_audit_key,
]
