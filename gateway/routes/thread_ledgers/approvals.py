"""Approvals: what people are asked, what exactly would be done, and what they decide.

Who waits for a decision gives back its places among requests, as it does nothing, and counts among waiters instead. A
service's key that names no subject reaches those of all of its tenant; storage finds out whose one is.
"""

import asyncio
import contextlib
from dataclasses import replace
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from gateway.admission import limits
from gateway.admission.limits import Draining
from gateway.authentication.principals import INBOX, SUBJECT, Principal, asserted_principal
from gateway.http.cursors import PageQuery
from gateway.http.exchange import PRINCIPAL_HEADER, Answer, path_uuid
from gateway.problems import InvalidRequest
from gateway.routes.thread_ledgers.conversion import approval_out, approvals_out, content_out, verdicts_in
from gateway.routing.operations import Call, Operation
from gateway.wire import base
from gateway.wire.problems import Fault
from gateway.wire.thread_ledgers import approvals as wire
from storage.approvals import model
from storage.errors import ApprovalNotFound
from storage.scope import Scope, TenantListing, TenantScope

_PAGE_APPROVALS = 100  # each has up to 32 actions
_ROW_BYTES = 64  # what an approval, and each of its actions, counts for where they are shown


class ApprovalsQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Which approvals, and which page of them."""

    status: wire.ApprovalStatus | None = None
    agent: base.Name | None = None
    thread: base.Name | None = None


class ApprovalWaitQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How long the answer may take until the approval is decided."""

    wait_seconds: Annotated[int, Meta(ge=0, le=limits.WAIT_SECONDS_MAX)] = 0


def voter_of(principal: Principal, asserted: str | None = None) -> model.Voter:
    """Who decides, or looks."""
    return model.Voter(
        key_id=principal.key_id,
        principal=principal.principal,
        created_at=principal.created_at,
        asserted_principal=asserted,
        made_by=principal.made_by,
        break_glass=principal.kind == "operator",
    )


def _wanted(text: str) -> UUID:
    return path_uuid(text, ApprovalNotFound)


@Operation(
    "GET /v1/approvals",
    reach=INBOX,
    summary="Approvals of the subject, or of a service key that names none of the tenant, newest first: how they "
    "stand, and nothing of what they are about. Go on until next_cursor is null; pages may be short.",
    permission="approval:read",
    query=ApprovalsQuery,
    returns=wire.ApprovalPage,
)
async def list_approvals(call: Call[Scope | TenantListing]) -> Answer:
    query = call.exchange.query(ApprovalsQuery)
    subject_id = call.scope.subject_id if isinstance(call.scope, Scope) else None
    filters = (query.status, query.agent, query.thread)
    cursor = call.cursor(query.cursor, call.scope.tenant_id, subject_id, *filters)
    before = None if cursor.after is None else UUID(cursor.after[0])
    page = await call.store.approvals.list(
        call.scope, model.ApprovalQuery(*filters, before, min(query.limit, _PAGE_APPROVALS))
    )
    after = None if page.next_before is None else (str(page.next_before),)
    rows = sum(1 + len(each.actions) for each in page.approvals)
    shown = await call.exchange.reservation.run(approvals_out(page.approvals), rows * _ROW_BYTES)
    page_out = wire.ApprovalPage(approvals=shown, next_cursor=cursor.next(after))
    return call.exchange.reply(page_out, compressed=True)


@Operation(
    "GET /v1/approvals/{approval_id}",
    reach=INBOX,
    summary="How an approval stands; with wait_seconds as soon as it is decided.",
    permission="approval:read",
    query=ApprovalWaitQuery,
    returns=wire.Approval,
    problems=("approval-not-found", "too-many-waiters"),
)
async def get_approval(call: Call[Scope | TenantListing], approval_id: str) -> Answer:
    wait_seconds = call.exchange.query(ApprovalWaitQuery).wait_seconds
    wanted = _wanted(approval_id)
    if not wait_seconds:
        return call.exchange.reply(approval_out(await call.store.approvals.get(call.scope, wanted)))
    if call.services.drain.draining:  # another process is to be asked, and not this one again and again
        raise Draining
    with call.services.waiters.enter(call.scope.tenant_id):
        approval = await call.store.approvals.get(call.scope, wanted)
        if approval.status == "pending" and not call.exchange.facts.bodiless:
            await _wait(call, wanted, wait_seconds)
            approval = await call.store.approvals.get(call.scope, wanted)
        return call.exchange.reply(approval_out(approval))


async def _wait(call: Call[Scope | TenantListing], approval_id: UUID, seconds: float) -> None:
    """Wait until an approval is to be read again, or the client has gone; who may not any more is told nothing.

    Raises:
        Unauthenticated: The key was revoked meanwhile.
        TenantSuspended: Its tenant was suspended.
        KeyDestroyed: Its subject was shredded.
    """
    exchange, clock = call.exchange, asyncio.get_running_loop().time
    exchange.leave()
    begun = clock()
    gone = asyncio.create_task(exchange.hung_up())
    waiting = asyncio.create_task(call.services.undecided.wait(call.scope.tenant_id, approval_id, seconds))
    try:
        await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        exchange.facts.waited_seconds += clock() - begun
        for task in (gone, waiting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    await call.services.authenticator.verify(exchange.facts.headers[b"authorization"], anew=True)
    if isinstance(call.scope, Scope):
        await call.store.keys.check_stored(call.scope)


@Operation(
    "GET /v1/approvals/{approval_id}/content",
    reach=INBOX,
    summary="What exactly is asked, and what was answered: opens this approval and nothing else, on the tenant's "
    "record. approval:decide is enough, too.",
    permission="approval:open",
    returns=wire.ApprovalContent,
    headers=("Stateroom-Client-Share",),
    problems=("approval-not-found", "integrity-failure", "key-destroyed"),
)
async def open_approval(call: Call[Scope | TenantListing], approval_id: str) -> Answer:
    share = call.exchange.client_share()
    content = await call.store.approvals.open(call.scope, _wanted(approval_id), voter_of(call.principal), share)
    size = sum(len(each.args) + len(each.edited_args or b"") + len(each.response or b"") for each in content.actions)
    shown = await call.exchange.reservation.run(content_out(content, call.exchange.format), size)
    return call.exchange.reply(shown)


async def _asker_made_by(call: Call[Scope | TenantListing], approval_id: UUID) -> str | None:
    """Who stands behind the key that made the one that asks."""
    approval = await call.store.approvals.get(call.scope, approval_id)
    tenant, peppers = TenantScope(call.scope.tenant_id), call.services.settings.peppers
    return await call.store.tenants.maker_of(tenant, approval.requested_by, peppers)


@Operation(
    "POST /v1/approvals/{approval_id}/decisions",
    reach=INBOX,
    summary="Decide about what was shown, whose hash is repeated. The same decision by the same principal again changes"
    " nothing.",
    permission="approval:decide",
    body=wire.DecisionRequest,
    returns=wire.Approval,
    headers=(PRINCIPAL_HEADER, "Stateroom-Client-Share"),
    problems=("approval-not-found", "approval-decided", "action-changed", "approval-expired", "approval-not-yours",
              "edit-invalid", "integrity-failure", "key-destroyed", "too-costly", "tenant-too-costly",
              "commit-unknown"),
)  # fmt: skip
async def decide_approval(call: Call[Scope | TenantListing], approval_id: str) -> Answer:
    wanted = _wanted(approval_id)
    asserted = asserted_principal(call.principal, call.exchange.facts)
    if asserted is not None and call.principal.kind != "service":
        raise InvalidRequest(Fault(detail="a subject's key speaks for itself", header=PRINCIPAL_HEADER))
    request, name, body = await call.exchange.body(wire.DecisionRequest)
    verdicts = await call.exchange.reservation.run(verdicts_in(request.verdicts, name), len(body))
    decision = model.Decision(wanted, request.action_hash, verdicts)
    voter = replace(voter_of(call.principal, asserted), asker_made_by=await _asker_made_by(call, wanted))
    work = call.store.approvals.decide(call.scope, decision, voter, call.exchange.client_share())
    approval = await call.commit(work)
    call.services.undecided.wake(call.scope.tenant_id, wanted)
    return call.exchange.reply(approval_out(approval))


@Operation(
    "POST /v1/approvals/{approval_id}/cancel",
    reach=SUBJECT,
    summary="Take a question back that waits. 200 also if it was cancelled before.",
    permission="state:write",
    returns=wire.Approval,
    problems=("approval-not-found", "approval-decided", "integrity-failure", "key-destroyed", "commit-unknown"),
)
async def cancel_approval(call: Call[Scope], approval_id: str) -> Answer:
    wanted = _wanted(approval_id)
    approval = await call.commit(call.store.approvals.cancel(call.scope, wanted, voter_of(call.principal)))
    call.services.undecided.wake(call.scope.tenant_id, wanted)
    return call.exchange.reply(approval_out(approval))
