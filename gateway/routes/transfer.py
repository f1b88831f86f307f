"""Portability: threads and tenants as files that one other deployment opens, and taking such files in.

Exporting hands state to somebody else, and importing makes state that nobody saved here: both need ``tenant:admin``
beside the permission to read or to write state. A tenant's administrators print what others seal for, so that their
tenant takes it in and no other one. Operators answer for files of an earlier format, which name no tenant, and reach no
state.
"""

import contextlib
from typing import TYPE_CHECKING

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from msgspec import Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import Principal
from gateway.http.content import stream
from gateway.http.exchange import Exchange, path_id, path_uuid
from gateway.problems import InvalidRequest, PermissionDenied
from gateway.routing.operations import Operation, route
from gateway.services import Services
from gateway.wire.problems import Fault
from storage.errors import InvalidState, TenantNotFound
from storage.scope import OperatorScope, Scope, TenantScope
from storage.transfer.exporting import Export, Recipient, recipient_of

if TYPE_CHECKING:
    from gateway.wire.administration.api_keys import Permission

MEDIA_TYPE = "application/vnd.stateroom.export"
_SHARE = ("Stateroom-Client-Share",)
_STORES = ("blob-store-unavailable", "blobs-not-configured", "integrity-failure", "key-destroyed", "commit-unknown")


class ImportQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to do about threads that exist here: stop at the first, or pass over them."""

    skip_existing: bool = False


def _also(principal: Principal, permission: "Permission") -> None:
    if permission not in principal.permissions:
        raise PermissionDenied(f"this needs the permissions tenant:admin and {permission}")


def _recipient(request: wire.transfer.ExportRequest) -> Recipient:
    try:
        return recipient_of(request.recipient)
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/recipient")) from None


async def _file(export: Export, name: str, held: contextlib.ExitStack) -> Response[bytes]:
    headers = {
        "content-type": MEDIA_TYPE,
        "content-disposition": f'attachment; filename="{name}-{export.export_id}.srx"',
        "stateroom-export": str(export.export_id),
        "stateroom-job": str(export.job_id),
    }
    return await stream(export.content, status=200, headers=headers, size_bytes=None, held=held)


@route(
    Operation(
        name="export_thread",
        method=HttpMethod.POST,
        path="/threads/{thread_id:str}/export",
        summary="A whole thread as a file that only the receiving tenant takes in. Needs state:read and "
        "subject:act_as, too.",
        permission="tenant:admin",
        body=wire.transfer.ThreadExportRequest,
        headers=_SHARE,
        problems=("thread-not-found", "thread-archived", "transfer-busy", *_STORES),
        content=True,
        extra_headers=("Content-Disposition",),
    )
)
async def export_thread(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Export a thread."""
    exchange.no_query()
    _also(principal, "state:read")
    _also(principal, "subject:act_as")
    thread = path_id(thread_id, "thread_id")
    request, _, _ = await exchange.body(wire.transfer.ThreadExportRequest)
    recipient = _recipient(request)
    try:
        scope = Scope(tenant_scope.tenant_id, request.subject_id)
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/subject_id")) from None
    with contextlib.ExitStack() as admitted:
        admitted.enter_context(services.admission.transfer(scope.tenant_id))
        export = await services.store.exporting.thread(
            scope, thread, recipient, principal.actor, exchange.client_share()
        )
        return await _file(export, "thread", admitted.pop_all())


@route(
    Operation(
        name="export_tenant",
        method=HttpMethod.POST,
        path="/export",
        summary="All threads of the tenant, of all its subjects, as a file that only the receiving tenant takes in. "
        "Needs state:read and subject:act_as, too.",
        permission="tenant:admin",
        body=wire.transfer.ExportRequest,
        headers=_SHARE,
        problems=("transfer-busy", *_STORES),
        content=True,
        extra_headers=("Content-Disposition",),
    )
)
async def export_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Export a tenant."""
    exchange.no_query()
    _also(principal, "state:read")
    _also(principal, "subject:act_as")
    request, _, _ = await exchange.body(wire.transfer.ExportRequest)
    recipient = _recipient(request)
    with contextlib.ExitStack() as admitted:
        admitted.enter_context(services.admission.transfer(tenant_scope.tenant_id))
        export = await services.store.exporting.tenant(
            tenant_scope, recipient, principal.actor, exchange.client_share()
        )
        return await _file(export, "tenant", admitted.pop_all())


@route(
    Operation(
        name="import_threads",
        method=HttpMethod.POST,
        path="/import",
        summary="Take an export in: threads keep their ids, and become visible one by one, each whole. Running it "
        "again passes over what is there. Needs state:write and subject:act_as, too.",
        permission="tenant:admin",
        query=ImportQuery,
        raw_body=True,
        returns=wire.transfer.ImportReport,
        headers=_SHARE,
        problems=(
            "import-refused", "import-for-other", "import-unbound", "import-conflict", "thread-exists",
            "state-schema-exists", "adoption-exists", "feature-off", "job-cancelled",
            "transfer-busy", "quota-exceeded", *_STORES,
        ),
    )
)  # fmt: skip
async def import_threads(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Import."""
    query = exchange.query(ImportQuery)
    _also(principal, "state:write")
    _also(principal, "subject:act_as")
    body = exchange.content(limits.EXPORT_BYTES_MAX, "EXPORT_BYTES_MAX")
    with services.admission.transfer(tenant_scope.tenant_id):
        try:
            # A thread that is here runs to COMMIT, even if the client hangs up.
            done = await services.commits.run(
                services.store.importing.run(
                    tenant_scope,
                    body,
                    principal.actor,
                    skip_existing=query.skip_existing,
                    share=exchange.client_share(),
                )
            )
        except Exception:
            await exchange.drain(limits.REFUSED_SECONDS_MAX)
            raise
    return exchange.reply(
        wire.transfer.ImportReport(
            export_id=str(done.export_id),
            job_id=str(done.job_id),
            threads=done.threads,
            checkpoints=done.checkpoints,
            pending_writes=done.pending_writes,
            artifacts=done.artifacts,
            state_schemas=done.state_schemas,
            verified=done.verified,
            passed_over=done.passed_over,
            passed=[
                wire.transfer.PassedOver(subject_id=each.subject_id, thread_id=each.thread_id, reason=each.reason)
                for each in done.passed
            ],
        )
    )


@route(
    Operation(
        name="get_transfer_key",
        method=HttpMethod.GET,
        path="/transfer-key",
        summary="The public key that exports for this tenant are sealed for; it is made if there is none.",
        permission="tenant:admin",
        returns=wire.transfer.TransferKey,
        problems=("commit-unknown",),
    )
)
async def get_transfer_key(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Show the transfer key."""
    exchange.no_query()
    recipient = await services.store.transfer_keys.recipient(tenant_scope)
    return exchange.reply(
        wire.transfer.TransferKey(public_key=str(recipient), fingerprint=recipient.public_key.fingerprint)
    )


@route(
    Operation(
        name="accept_unbound_import",
        method=HttpMethod.POST,
        path="/admin/tenants/{tenant_id:str}/unbound-imports",
        summary="Let a tenant take in one export of an earlier format, which names a deployment and no tenant. Whoever "
        "accepts knows whose it is; the tenant's audit log says who did.",
        permission="operator",
        body=wire.transfer.UnboundImport,
        statuses=(204,),
        problems=("not-found", "commit-unknown"),
    )
)
async def accept_unbound_import(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  who asks is an operator
    tenant_id: FromPath[str],
) -> Response[None]:
    """Accept it."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await exchange.body(wire.transfer.UnboundImport)
    await services.store.importing.unbound.accept(wanted, request.export_id, principal.actor)
    return Response(None, status_code=204)


ROUTES = [export_thread, export_tenant, import_threads, get_transfer_key, accept_unbound_import]
