"""Verification: whether stored threads are whole and as the gateway wrote them."""

from typing import Annotated

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import Principal
from gateway.http.exchange import Exchange
from gateway.problems import InvalidRequest
from gateway.routes.jobs import begun
from gateway.routing.operations import Operation, route
from gateway.services import Services
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
        method=HttpMethod.POST,
        path="/threads:verify",
        summary="Open every row of a thread, or of a stretch of the subject's threads, and report damage. Repeat with "
        "next_cursor until it is null.",
        permission="state:read",
        body=wire.verification.VerifyRequest,
        returns=wire.verification.VerifyReport,
        problems=("thread-not-found", "key-destroyed", "blob-store-unavailable"),
        subject=True,
    )
)
async def verify(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], subject_scope: NamedDependency[Scope]
) -> Response[bytes]:
    """Verify."""
    exchange.no_query()
    request, _, _ = await exchange.body(wire.verification.VerifyRequest)
    binding = encode_msgpack((exchange.route, subject_scope.tenant_id, subject_scope.subject_id))
    if request.thread_id is not None:
        if request.cursor is not None:
            raise InvalidRequest(Fault(detail="a thread is verified at once", pointer="/cursor"))
        report = await services.store.verification.thread(subject_scope, _thread_id(request.thread_id))
    else:
        after = services.cursors.read(binding, request.cursor)
        report = await services.store.verification.subject(subject_scope, after[0] if after else "")
    return exchange.reply(
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
            next_cursor=services.cursors.write(binding, None if report.after is None else (report.after,)),
        )
    )


class SubjectsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page of the list."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None


@route(
    Operation(
        name="list_subjects",
        method=HttpMethod.GET,
        path="/subjects",
        summary="List the tenant's subjects that have keys, hence data, by id.",
        permission="tenant:admin",
        query=SubjectsQuery,
        returns=wire.tenants.SubjectPage,
    )
)
async def list_subjects(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """List subjects."""
    query = exchange.query(SubjectsQuery)
    binding = encode_msgpack((exchange.route, tenant_scope.tenant_id))
    page = await services.store.verification.subjects(
        tenant_scope, query.limit, services.cursors.read(binding, query.cursor)
    )
    return exchange.reply(
        wire.tenants.SubjectPage(
            subjects=[wire.tenants.Subject(subject_id=each) for each in page.items],
            next_cursor=services.cursors.write(binding, page.after),
        )
    )


@route(
    Operation(
        name="verify_tenant",
        method=HttpMethod.POST,
        path="/verify",
        summary="Verify all threads of all subjects, and that no subject is gone; a job does it. Its note, when it is "
        "done, is a JSON text: counts, and the first findings.",
        permission="tenant:admin",
        returns=wire.jobs.Job,
        statuses=(202,),
    )
)
async def verify_tenant(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Verify the tenant."""
    exchange.no_query()
    job_id = await services.commits.run(services.store.verifying.begin_tenant(tenant_scope, principal.actor))
    return await begun(exchange, services, tenant_scope, job_id)


@route(
    Operation(
        name="verify_deployment",
        method=HttpMethod.POST,
        path="/admin/verify",
        summary="Verify every tenant, each by a job of its own; this job's note has counts, and codes by tenant. It "
        "names neither subjects nor threads.",
        permission="operator",
        returns=wire.jobs.Job,
        statuses=(202,),
    )
)
async def verify_deployment(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],
) -> Response[bytes]:
    """Verify all tenants."""
    exchange.no_query()
    job_id = await services.commits.run(services.store.verifying.begin_deployment(principal.actor))
    return await begun(exchange, services, operator_scope, job_id)


ROUTES = [verify, verify_tenant, verify_deployment, list_subjects]
