"""Claims: claim a thread, renew, release, look; and the threads whose claim nobody renews any more."""

from typing import Annotated

from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import LISTING, SUBJECT
from gateway.http.exchange import Answer, path_id
from gateway.routing.operations import Call, Operation
from gateway.wire.thread_ledgers import claims as bodies
from storage.claims.model import SILENT_SECONDS_MAX, Claim, ClaimRequest
from storage.scope import Scope, TenantListing

_CLAIM = "/v1/threads/{thread_id}/resume-claim"
_CHANGING = (
    "thread-not-found",
    "thread-busy",
    "thread-archived",
    "integrity-failure",
    "key-destroyed",
    "commit-unknown",
)


class SilentQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """For how long nobody has renewed the claim, and whose threads."""

    silent_seconds: Annotated[int, Meta(ge=0, le=SILENT_SECONDS_MAX)] = 0
    agent: wire.base.Name | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


def _out(claim: Claim) -> bodies.Claim:
    return bodies.Claim.of(claim)


@Operation(
    f"POST {_CLAIM}",
    reach=SUBJECT,
    summary="Claim a thread: who goes on with it names the fence that this gives. The same holder and run may ask "
    "again and keeps its fence.",
    permission="state:write",
    body=bodies.ClaimRequest,
    returns=bodies.Claim,
    headers=("Stateroom-Client-Share",),
    problems=(
        *_CHANGING,
        "claim-held",
        "claim-superseded",
        "thread-stuck",
        "feature-off",
        "quota-exceeded",
        "limit-exceeded",
    ),
)
async def claim_thread(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(bodies.ClaimRequest)
    name = path_id(thread_id, "thread_id")
    wanted = ClaimRequest(
        thread_id=name,
        holder=request.holder,
        run_id=request.run_id,
        lease_seconds=request.lease_seconds,
        exclusive=request.exclusive,
        take_over=request.take_over,
        note=request.note,
        if_fence=request.if_fence,
    )
    claiming = call.store.claims.claim(call.scope, wanted, actor=call.actor, share=call.exchange.client_share())
    return call.exchange.reply(_out(await call.services.write(call.scope, name, claiming)))


@Operation(
    f"POST {_CLAIM}/renew",
    reach=SUBJECT,
    summary="Renew a claim for its lease, or for another one, and note how far the run is.",
    permission="state:write",
    body=bodies.ClaimRenewal,
    returns=bodies.Claim,
    headers=("Stateroom-Client-Share",),
    problems=(*_CHANGING, "claim-lost", "limit-exceeded"),
)
async def renew_claim(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(bodies.ClaimRenewal)
    name = path_id(thread_id, "thread_id")
    renewing = call.store.claims.renew(
        call.scope,
        name,
        request.fence,
        lease_seconds=request.lease_seconds,
        note=request.note,
        share=call.exchange.client_share(),
    )
    return call.exchange.reply(_out(await call.services.write(call.scope, name, renewing)))


@Operation(
    f"POST {_CLAIM}/release",
    reach=SUBJECT,
    summary="Release a claim; one that is released already stays so.",
    permission="state:write",
    body=bodies.ClaimRelease,
    returns=bodies.Claim,
    problems=(*_CHANGING, "claim-lost"),
)
async def release_claim(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(bodies.ClaimRelease)
    name = path_id(thread_id, "thread_id")
    releasing = call.store.claims.release(call.scope, name, request.fence)
    return call.exchange.reply(_out(await call.services.write(call.scope, name, releasing)))


@Operation(
    f"GET {_CLAIM}",
    reach=SUBJECT,
    summary="Show the newest claim of a thread: who holds it, until when, and what was noted.",
    permission="state:read",
    returns=bodies.Claim,
    headers=("Stateroom-Client-Share",),
    problems=("thread-not-found", "claim-not-found", "integrity-failure", "key-destroyed"),
)
async def get_claim(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    return call.exchange.reply(_out(await call.store.claims.get(call.scope, name, share=call.exchange.client_share())))


@Operation(
    f"PUT {_CLAIM}/required",
    reach=SUBJECT,
    summary="Say whether the thread takes no write without a claim.",
    permission="state:write",
    body=bodies.ClaimsRequired,
    statuses=(204,),
    problems=(*_CHANGING, "feature-off"),
)
async def require_claims(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(bodies.ClaimsRequired)
    name = path_id(thread_id, "thread_id")
    setting = call.store.claims.set_required(call.scope, name, required=request.required, actor=call.actor)
    await call.services.write(call.scope, name, setting)
    return Answer(204, [])


@Operation(
    "GET /v1/silent-threads",
    reach=LISTING,
    summary="Threads whose claim was neither renewed nor released: of the subject, or of the tenant; clear columns "
    "only, nothing is opened.",
    permission="state:read",
    query=SilentQuery,
    returns=bodies.SilentThreadPage,
)
async def list_silent_threads(call: Call[Scope | TenantListing]) -> Answer:
    query = call.exchange.query(SilentQuery)
    whose = call.scope.subject_id if isinstance(call.scope, Scope) else None
    cursor = call.cursor(query.cursor, call.scope.tenant_id, whose, query.silent_seconds, query.agent)
    page = await call.store.claims.silent(
        call.scope, silent_seconds=query.silent_seconds, agent=query.agent, limit=query.limit, after=cursor.after
    )
    threads = [bodies.SilentThread.of(each) for each in page.items]
    return call.exchange.reply(bodies.SilentThreadPage(threads=threads, next_cursor=cursor.next(page.after)))
