"""Portability: threads and tenants as files that one other deployment opens, and taking such files in.

Exporting hands state to another party, and importing makes state that was not saved here: both need ``tenant:admin``
beside the permission to read or to write state. A tenant's administrators print what others seal for, so that their
tenant takes it in and no other one. Operators answer for files of an earlier format, which name no tenant, and reach no
state.
"""

import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, TENANT, Principal
from gateway.http.content import stream
from gateway.http.exchange import Answer, path_id, path_uuid
from gateway.problems import InvalidRequest, PermissionDenied
from gateway.routing.operations import Call, Operation
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
    """What to do about threads and items that exist here: stop at the first, or pass over them."""

    skip_existing: bool = False


def _also(principal: Principal, permission: "Permission") -> None:
    if permission not in principal.permissions:
        raise PermissionDenied(f"this needs the permissions tenant:admin and {permission}")


def _recipient(request: wire.transfer.ExportRequest) -> Recipient:
    try:
        return recipient_of(request.recipient)
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/recipient")) from None


async def _file(export: Export, name: str, held: contextlib.ExitStack) -> Answer:
    headers = {
        "content-type": MEDIA_TYPE,
        "content-disposition": f'attachment; filename="{name}-{export.export_id}.srx"',
        "stateroom-export": str(export.export_id),
        "stateroom-job": str(export.job_id),
    }
    return await stream(export.content, status=200, headers=headers, size_bytes=None, held=held)


@Operation(
    "POST /v1/threads/{thread_id}/export",
    reach=TENANT,
    summary="A whole thread as a file that only the receiving tenant takes in. Needs state:read and "
    "subject:act_as, too.",
    permission="tenant:admin",
    body=wire.transfer.ThreadExportRequest,
    headers=_SHARE,
    problems=("thread-not-found", "thread-archived", "transfer-busy", *_STORES),
    content=True,
    extra_headers=("Content-Disposition",),
)
async def export_thread(call: Call[TenantScope], thread_id: str) -> Answer:
    _also(call.principal, "state:read")
    _also(call.principal, "subject:act_as")
    thread = path_id(thread_id, "thread_id")
    request, _, _ = await call.exchange.body(wire.transfer.ThreadExportRequest)
    recipient = _recipient(request)
    try:
        scope = Scope(call.scope.tenant_id, request.subject_id)
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/subject_id")) from None
    with contextlib.ExitStack() as admitted:
        admitted.enter_context(call.services.admission.transfer(scope.tenant_id))
        export = await call.store.exporting.thread(scope, thread, recipient, call.actor, call.exchange.client_share())
        return await _file(export, "thread", admitted.pop_all())


@Operation(
    "POST /v1/export",
    reach=TENANT,
    summary="All threads and items of the tenant, of all its subjects, as a file that only the receiving tenant "
    "takes in. Needs state:read and subject:act_as, too.",
    permission="tenant:admin",
    body=wire.transfer.ExportRequest,
    headers=_SHARE,
    problems=("transfer-busy", *_STORES),
    content=True,
    extra_headers=("Content-Disposition",),
)
async def export_tenant(call: Call[TenantScope]) -> Answer:
    _also(call.principal, "state:read")
    _also(call.principal, "subject:act_as")
    request, _, _ = await call.exchange.body(wire.transfer.ExportRequest)
    recipient = _recipient(request)
    with contextlib.ExitStack() as admitted:
        admitted.enter_context(call.services.admission.transfer(call.scope.tenant_id))
        export = await call.store.exporting.tenant(call.scope, recipient, call.actor, call.exchange.client_share())
        return await _file(export, "tenant", admitted.pop_all())


@Operation(
    "POST /v1/import",
    reach=TENANT,
    summary="Take an export in: threads and items keep their names, and threads become visible one by one, each whole. "
    "Running it again passes over what is there. Needs state:write and subject:act_as, too.",
    permission="tenant:admin",
    query=ImportQuery,
    raw_body=True,
    returns=wire.transfer.ImportReport,
    headers=_SHARE,
    problems=(
        "import-refused", "import-for-other", "import-unbound", "import-conflict", "thread-exists",
        "state-schema-exists", "adoption-exists", "feature-off", "job-cancelled",
        "transfer-busy", "quota-exceeded", "clear-vectors-unavailable", "item-paths-exceeded", "legal-hold", *_STORES,
    ),
)  # fmt: skip
async def import_threads(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(ImportQuery)
    _also(call.principal, "state:write")
    _also(call.principal, "subject:act_as")
    body = call.exchange.content(limits.EXPORT_BYTES_MAX, "EXPORT_BYTES_MAX")
    with call.services.admission.transfer(call.scope.tenant_id):
        try:
            # A thread that is here runs to COMMIT, even if the client hangs up.
            done = await call.commit(
                call.store.importing.run(
                    call.scope,
                    body,
                    call.actor,
                    skip_existing=query.skip_existing,
                    share=call.exchange.client_share(),
                )
            )
        except Exception:
            await call.exchange.drain(limits.REFUSED_SECONDS_MAX)
            raise
    return call.exchange.reply(
        wire.transfer.ImportReport.of(
            done,
            export_id=str(done.export_id),
            job_id=str(done.job_id),
            passed=[wire.transfer.PassedOver.of(each) for each in done.passed],
            passed_items=[
                wire.transfer.PassedItem.of(each, path=None if each.path is None else [*each.path])
                for each in done.passed_items
            ],
        )
    )


@Operation(
    "GET /v1/transfer-key",
    reach=TENANT,
    summary="The public key that exports for this tenant are sealed for; it is made if there is none.",
    permission="tenant:admin",
    returns=wire.transfer.TransferKey,
    problems=("commit-unknown",),
)
async def get_transfer_key(call: Call[TenantScope]) -> Answer:
    recipient = await call.store.transfer_keys.recipient(call.scope)
    return call.exchange.reply(
        wire.transfer.TransferKey(public_key=str(recipient), fingerprint=recipient.public_key.fingerprint)
    )


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/unbound-imports",
    reach=OPERATORS,
    summary="Let a tenant take in one export of an earlier format, which names a deployment and no tenant. Whoever "
    "accepts knows whose it is; the tenant's audit log says who did.",
    permission="operator",
    body=wire.transfer.UnboundImport,
    statuses=(204,),
    problems=("not-found", "commit-unknown"),
)
async def accept_unbound_import(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await call.exchange.body(wire.transfer.UnboundImport)
    await call.store.importing.unbound.accept(wanted, request.export_id, call.actor)
    return Answer(204, [])
