"""Verification: whether stored threads are whole and as the gateway wrote them."""

from gateway import wire
from gateway.authentication.principals import OPERATORS, SUBJECT, TENANT
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.errors import InvalidState
from storage.scope import OperatorScope, Scope, TenantScope, check_id
from storage.verification.report import Report


def _thread_id(text: str) -> str:
    try:
        return check_id(text, "an id")
    except InvalidState as error:
        raise InvalidRequest(Fault(detail=str(error), pointer="/thread_id")) from None


def _next_of(report: Report) -> tuple[str, ...] | None:
    if report.after is None:
        return None
    return (report.after,) if report.items_after is None else (report.after, report.items_after)


@Operation(
    "POST /v1/threads:verify",
    reach=SUBJECT,
    summary="Open every row of a thread, or of a stretch of the subject's threads and then items, and report damage. "
    "Repeat with next_cursor until it is null.",
    permission="state:read",
    body=wire.verification.VerifyRequest,
    returns=wire.verification.VerifyReport,
    problems=("thread-not-found", "key-destroyed", "blob-store-unavailable"),
)
async def verify(call: Call[Scope]) -> Answer:
    request, _, _ = await call.exchange.body(wire.verification.VerifyRequest)
    if request.thread_id is not None and request.cursor is not None:
        raise InvalidRequest(Fault(detail="a thread is verified at once", pointer="/cursor"))
    cursor = call.cursor(request.cursor, call.scope.tenant_id, call.scope.subject_id)
    if request.thread_id is not None:
        report = await call.store.verification.thread(call.scope, _thread_id(request.thread_id))
    else:
        after, items_after = (*(cursor.after or ("",)), None)[:2]
        report = await call.store.verification.subject(call.scope, after or "", items_after=items_after)
    return call.exchange.reply(
        wire.verification.VerifyReport.of(
            report,
            findings=[wire.verification.VerifyFinding.of(each) for each in report.findings],
            next_cursor=cursor.next(_next_of(report)),
        )
    )


@Operation(
    "GET /v1/subjects",
    reach=TENANT,
    summary="List the tenant's subjects that have keys, hence data, by id.",
    permission="tenant:admin",
    query=PageQuery,
    returns=wire.tenants.SubjectPage,
)
async def list_subjects(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(PageQuery)
    cursor = call.cursor(query.cursor, call.scope.tenant_id)
    page = await call.store.verification.subjects(call.scope, query.limit, cursor.after)
    subjects = [wire.tenants.Subject(subject_id=each) for each in page.items]
    return call.exchange.reply(wire.tenants.SubjectPage(subjects=subjects, next_cursor=cursor.next(page.after)))


@Operation(
    "POST /v1/verify",
    reach=TENANT,
    summary="Verify all threads and items of all subjects, and that no subject is gone; a job does it. Its note, when "
    "it is done, is a JSON text: counts, and the first findings.",
    permission="tenant:admin",
    returns=wire.jobs.Job,
    statuses=(202,),
)
async def verify_tenant(call: Call[TenantScope]) -> Answer:
    job_id = await call.commit(call.store.verifying.begin_tenant(call.scope, call.actor))
    return await begun(call, job_id)


@Operation(
    "POST /v1/admin/verify",
    reach=OPERATORS,
    summary="Verify every tenant, each by a job of its own; this job's note has counts, and codes by tenant. It "
    "names neither subjects nor threads.",
    permission="operator",
    returns=wire.jobs.Job,
    statuses=(202,),
)
async def verify_deployment(call: Call[OperatorScope]) -> Answer:
    job_id = await call.commit(call.store.verifying.begin_deployment(call.actor))
    return await begun(call, job_id)
