"""Verification: whether stored threads are whole and as the gateway wrote them."""

from http import HTTPMethod
from typing import Annotated

from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, SUBJECT, TENANT
from gateway.http.exchange import Answer
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Call, Operation, route
from gateway.wire.problems import Fault
from storage.encoding import encode_msgpack
from storage.errors import InvalidState
from storage.scope import OperatorScope, Scope, TenantScope, check_id


def _thread_id(text: str) -> str:
    try:
        return check_id(text, "an id")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/thread_id")) from None


@route(
    Operation(
        name="verify",
        method=HTTPMethod.POST,
        path="/v1/threads:verify",
        reach=SUBJECT,
        summary="Open every row of a thread, or of a stretch of the subject's threads, and report damage. Repeat with "
        "next_cursor until it is null.",
        permission="state:read",
        body=wire.verification.VerifyRequest,
        returns=wire.verification.VerifyReport,
        problems=("thread-not-found", "key-destroyed", "blob-store-unavailable"),
    )
)
async def verify(call: Call[Scope]) -> Answer:
    call.exchange.no_query()
    request, _, _ = await call.exchange.body(wire.verification.VerifyRequest)
    binding = encode_msgpack((call.exchange.route, call.scope.tenant_id, call.scope.subject_id))
    if request.thread_id is not None:
        if request.cursor is not None:
            raise InvalidRequest(Fault(detail="a thread is verified at once", pointer="/cursor"))
        report = await call.services.store.verification.thread(call.scope, _thread_id(request.thread_id))
    else:
        after = call.services.cursors.read(binding, request.cursor)
        report = await call.services.store.verification.subject(call.scope, after[0] if after else "")
    return call.exchange.reply(
        wire.verification.VerifyReport(
            threads=report.threads,
            threads_skipped=report.threads_skipped,
            threads_frozen=report.threads_frozen,
            checkpoints=report.checkpoints,
            pending_writes=report.pending_writes,
            pieces=report.pieces,
            findings=[
                wire.verification.VerifyFinding(
                    code=each.code,
                    detail=each.detail,
                    thread_id=each.thread_id,
                    namespace=each.namespace,
                    checkpoint_id=each.checkpoint_id,
                )
                for each in report.findings
            ],
            next_cursor=call.services.cursors.write(binding, None if report.after is None else (report.after,)),
        )
    )


class SubjectsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page of the list."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


@route(
    Operation(
        name="list_subjects",
        method=HTTPMethod.GET,
        path="/v1/subjects",
        reach=TENANT,
        summary="List the tenant's subjects that have keys, hence data, by id.",
        permission="tenant:admin",
        query=SubjectsQuery,
        returns=wire.tenants.SubjectPage,
    )
)
async def list_subjects(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(SubjectsQuery)
    binding = encode_msgpack((call.exchange.route, call.scope.tenant_id))
    page = await call.services.store.verification.subjects(
        call.scope, query.limit, call.services.cursors.read(binding, query.cursor)
    )
    return call.exchange.reply(
        wire.tenants.SubjectPage(
            subjects=[wire.tenants.Subject(subject_id=each) for each in page.items],
            next_cursor=call.services.cursors.write(binding, page.after),
        )
    )


@route(
    Operation(
        name="verify_tenant",
        method=HTTPMethod.POST,
        path="/v1/verify",
        reach=TENANT,
        summary="Verify all threads of all subjects, and that no subject is gone; a job does it. Its note, when it is "
        "done, is a JSON text: counts, and the first findings.",
        permission="tenant:admin",
        returns=wire.jobs.Job,
        statuses=(202,),
    )
)
async def verify_tenant(call: Call[TenantScope]) -> Answer:
    call.exchange.no_query()
    job_id = await call.services.commits.run(
        call.services.store.verifying.begin_tenant(call.scope, call.principal.actor)
    )
    return await begun(call, job_id)


@route(
    Operation(
        name="verify_deployment",
        method=HTTPMethod.POST,
        path="/v1/admin/verify",
        reach=OPERATORS,
        summary="Verify every tenant, each by a job of its own; this job's note has counts, and codes by tenant. It "
        "names neither subjects nor threads.",
        permission="operator",
        returns=wire.jobs.Job,
        statuses=(202,),
    )
)
async def verify_deployment(call: Call[OperatorScope]) -> Answer:
    call.exchange.no_query()
    job_id = await call.services.commits.run(call.services.store.verifying.begin_deployment(call.principal.actor))
    return await begun(call, job_id)


ROUTES = [verify, verify_tenant, verify_deployment, list_subjects]
