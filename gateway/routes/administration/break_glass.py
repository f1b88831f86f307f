"""Break-glass: an operator reads one checkpoint of one subject, after both audit logs say so.

Owns the order of things: the operator's permission, the durable record, then the scope that only the record's receipt
gives. It opens what any load opens, so a thread under a client-held share stays closed. See
``docs/operations/break-glass.md``.
"""

from typing import Any

from gateway import wire
from gateway.authentication import principals
from gateway.authentication.principals import OPERATORS
from gateway.http.exchange import Answer, path_uuid
from gateway.problems import InvalidRequest
from gateway.routes.checkpoints.conversion import checkpoints_out
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.administration.audit import Opening
from storage.errors import InvalidState, TenantNotFound
from storage.model import Load
from storage.scope import OperatorScope, check_id, check_subject


def _opening(tenant_id: str, request: wire.checkpoints.DecryptRequest) -> Opening:
    tenant = path_uuid(tenant_id, TenantNotFound)
    checks: list[tuple[str, Any]] = [
        ("subject_id", lambda: check_subject(request.subject_id)),
        ("thread_id", lambda: check_id(request.thread_id, "an id")),
        ("checkpoint_id", lambda: request.checkpoint_id is None or check_id(request.checkpoint_id, "an id")),
    ]
    for member, check in checks:
        try:
            check()
        except InvalidState as error:
            raise InvalidRequest(Fault(detail=str(error), pointer=f"/{member}")) from None
    if len(request.namespace.encode()) > wire.base.NAMESPACE_BYTES_MAX:
        detail = f"a namespace has at most {wire.base.NAMESPACE_BYTES_MAX:,} bytes"
        raise InvalidRequest(Fault(detail=detail, pointer="/namespace"), limit="NAMESPACE_BYTES_MAX")
    return Opening(
        tenant_id=tenant,
        subject_id=request.subject_id,
        thread_id=request.thread_id,
        namespace=request.namespace,
        checkpoint_id=request.checkpoint_id,
        reason=request.reason,
    )


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/decrypt",
    reach=OPERATORS,
    summary="Break-glass: read one checkpoint of a subject; the tenant's audit log says so before it is opened.",
    permission="decrypt-any",
    body=wire.checkpoints.DecryptRequest,
    returns=wire.checkpoints.Checkpoint,
    headers=("Accept-State-Version",),
    problems=(
        "not-found", "checkpoint-not-found", "client-share-required", "integrity-failure", "key-destroyed",
        "key-unavailable", "commit-unknown",
    ),
)  # fmt: skip
async def decrypt(call: Call[OperatorScope], tenant_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.checkpoints.DecryptRequest)
    opening = _opening(tenant_id, request)
    receipt = await call.commit(call.store.audit.break_glass(call.actor, opening))
    scope = principals.break_glass_scope(call.principal, receipt)
    opened = receipt.opening
    loaded = await call.store.states.load(
        scope,
        call.exchange.state_versions(),
        Load(opened.thread_id, opened.namespace, opened.checkpoint_id, with_state=True),
    )
    [shown] = await checkpoints_out(call.exchange, [loaded.checkpoint], "state")
    return call.exchange.reply(shown)
