"""Keys and jobs: rotation, crypto-shredding, and how far the work behind them is."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct, structs

from gateway import wire
from gateway.authentication.principals import LISTING, OPERATORS, TENANT
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, Exchange, path_id, path_uuid, place
from gateway.problems import InvalidRequest
from gateway.routes.administration.credentials import derived_ids
from gateway.routes.jobs import as_job, begun, job_place, shown
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.administration.jobs import Job
from storage.errors import InvalidState, JobNotFound, TenantNotFound
from storage.key_lifecycle.shred import SHRED_TENANT_KIND, Shredded
from storage.scope import SHARED_SUBJECT, OperatorScope, Scope, TenantListing, TenantScope, check_subject

_KEY_PROBLEMS = ("key-destroyed", "key-unavailable", "not-found")
_BY_OPERATORS = frozenset({SHRED_TENANT_KIND})
_SHRED_PROBLEMS = ("blob-store-unavailable", "key-unavailable", "not-found")


class KeysQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose keys to show besides the tenant's."""

    subject_id: Annotated[str, Meta(min_length=1, max_length=wire.base.NAME_BYTES_MAX)] | None = None


def _subject(tenant_id: UUID, text: str, fault: Fault) -> Scope:
    try:
        return Scope(tenant_id, check_subject(text))
    except InvalidState as error:
        raise InvalidRequest(structs.replace(fault, detail=str(error))) from None


# --- rotation --------------------------------------------------------------------------------------------------------


@Operation(
    "POST /v1/keys:rotate",
    reach=TENANT,
    summary="Make a new tenant key, or a new data key of a subject, active now; a job does the rest.",
    permission="tenant:admin",
    body=wire.keys.RotateRequest,
    returns=wire.keys.Rotation,
    statuses=(202,),
    headers=("Idempotency-Key",),
    problems=(*_KEY_PROBLEMS, "idempotency-key-reused"),
)
async def rotate_key(call: Call[TenantScope]) -> Answer:
    request, name, body = await call.exchange.body(wire.keys.RotateRequest)
    ids = derived_ids(call, call.scope.tenant_id, name, body)
    wanted = None if ids is None else ids.uuid()
    rotation = call.store.rotation
    if request.level == "tenant":
        if request.subject_id is not None:
            raise InvalidRequest(Fault(detail="the tenant key is no subject's", pointer="/subject_id"))
        if request.complete:
            raise InvalidRequest(Fault(detail="only a subject's rotation can be complete", pointer="/complete"))
        rotated = await call.commit(rotation.rotate_tenant(call.scope, call.actor, wanted))
    else:
        if request.subject_id is None:
            raise InvalidRequest(Fault(detail="name the subject whose key to rotate", pointer="/subject_id"))
        scope = _subject(call.scope.tenant_id, request.subject_id, Fault(detail="", pointer="/subject_id"))
        work = rotation.rotate_subject(scope, call.actor, wanted, complete=request.complete)
        rotated = await call.commit(work)
    job = await call.store.jobs.get(call.scope, rotated.job_id)
    answer = as_job(job, wire.keys.Rotation, level=request.level, key_version=rotated.key_version)
    location = job_place(call.scope, rotated.job_id)
    return call.exchange.reply(answer, status=202, location=location, replayed=not rotated.created)


@Operation(
    "POST /v1/keys:rewrap",
    reach=TENANT,
    summary="Wrap every subject key that is under an older tenant key again; a job does it.",
    permission="tenant:admin",
    returns=wire.jobs.Job,
    statuses=(202,),
)
async def rewrap_subject_keys(call: Call[TenantScope]) -> Answer:
    job_id = await call.commit(call.store.rotation.rewrap_tenant(call.scope, call.actor))
    return await begun(call, job_id)


@Operation(
    "GET /v1/keys",
    reach=TENANT,
    summary="The versions of the tenant's key and, when named, of a subject's keys; never a key.",
    permission="tenant:admin",
    query=KeysQuery,
    returns=wire.keys.KeyStatus,
    problems=("not-found",),
)
async def get_keys(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(KeysQuery)
    rotation = call.store.rotation
    subject_keys = None
    if query.subject_id is not None:
        scope = _subject(call.scope.tenant_id, query.subject_id, Fault(detail="", parameter="subject_id"))
        subject_keys = [wire.keys.SubjectKey.of(each) for each in await rotation.subject_status(scope)]
    tenant_keys = [wire.keys.TenantKey.of(each) for each in await rotation.tenant_status(call.scope)]
    return call.exchange.reply(wire.keys.KeyStatus(tenant_keys=tenant_keys, subject_keys=subject_keys))


@Operation(
    "POST /v1/admin/keys:rewrap",
    reach=OPERATORS,
    summary="Wrap every tenant key again under the active root key; a job does it. No payload is touched.",
    permission="operator",
    returns=wire.jobs.Job,
    statuses=(202,),
)
async def rewrap_tenant_keys(call: Call[OperatorScope]) -> Answer:
    job_id = await call.commit(call.store.rotation.rewrap_root(call.actor))
    return await begun(call, job_id)


@Operation(
    "GET /v1/admin/keys",
    reach=OPERATORS,
    summary="Which versions of which root keys wrap how many tenant keys.",
    permission="operator",
    returns=wire.keys.RootKeyStatus,
)
async def get_root_keys(
    call: Call[OperatorScope],
) -> Answer:
    uses = [wire.keys.RootKeyUse.of(each) for each in await call.store.rotation.root_status()]
    return call.exchange.reply(wire.keys.RootKeyStatus(root_keys=uses))


# --- shredding -------------------------------------------------------------------------------------------------------


@Operation(
    "POST /v1/subjects/{subject_id}/shred",
    reach=TENANT,
    summary="Destroy a subject's keys, for ever: nothing it stored can be opened again. The body repeats its id.",
    permission="tenant:admin",
    body=wire.keys.ShredRequest,
    returns=wire.keys.Shredded,
    statuses=(202,),
    problems=(*_SHRED_PROBLEMS, "legal-hold"),
)
async def shred_subject(call: Call[TenantScope], subject_id: str) -> Answer:
    text = subject_id if subject_id == SHARED_SUBJECT else path_id(subject_id, "subject_id")
    scope = _subject(call.scope.tenant_id, text, Fault(detail="", parameter="subject_id"))
    request, _, _ = await call.exchange.body(wire.keys.ShredRequest)
    done = await call.commit(call.store.shred.subject(scope, request.confirm, call.actor))
    job = await call.store.jobs.get(call.scope, done.job_id)
    return _shredded(call.exchange, done, job, job_place(call.scope, done.job_id))


@Operation(
    "POST /v1/admin/tenants/{tenant_id}/shred",
    reach=OPERATORS,
    summary="Destroy all keys of a tenant and of its subjects, for ever. The body repeats the tenant's id.",
    permission="operator",
    body=wire.keys.ShredRequest,
    returns=wire.keys.Shredded,
    statuses=(202,),
    problems=(*_SHRED_PROBLEMS, "legal-hold"),
)
async def shred_tenant(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    request, _, _ = await call.exchange.body(wire.keys.ShredRequest)
    done = await call.commit(call.store.shred.tenant(wanted, request.confirm, call.actor))
    job = await call.store.jobs.of_tenant(call.scope, wanted, done.job_id, _BY_OPERATORS)
    return _shredded(call.exchange, done, job, place("admin", "tenants", tenant_id, "jobs", str(done.job_id)))


def _shredded(exchange: Exchange, done: Shredded, job: Job, location: str) -> Answer:
    answer = as_job(job, wire.keys.Shredded, shred_effective_at=done.shred_effective_at, tombstone=done.tombstone)
    return exchange.reply(answer, status=202, location=location)


# --- jobs ------------------------------------------------------------------------------------------------------------


async def _jobs(call: Call[TenantScope | OperatorScope]) -> Answer:
    query = call.exchange.query(PageQuery)
    tenant = call.scope.tenant_id if isinstance(call.scope, TenantScope) else None
    cursor = call.cursor(query.cursor, tenant)
    page = await call.store.jobs.list(call.scope, query.limit, cursor.after)
    jobs = [shown(job) for job in page.items]
    return call.exchange.reply(wire.jobs.JobPage(jobs=jobs, next_cursor=cursor.next(page.after)))


async def _one_job(call: Call[Scope | TenantScope | OperatorScope], job_id: str) -> Answer:
    return call.exchange.reply(shown(await call.store.jobs.get(call.scope, path_uuid(job_id, JobNotFound))))


async def _cancel(call: Call[Scope | TenantScope | OperatorScope], job_id: str) -> Answer:
    work = call.store.job_cancelling.cancel(call.scope, path_uuid(job_id, JobNotFound), call.actor)
    return call.exchange.reply(shown(await call.commit(work)))


async def _supersede(call: Call[TenantScope | OperatorScope], job_id: str) -> Answer:
    work = call.store.control_repair.supersede_job(call.scope, path_uuid(job_id, JobNotFound), call.actor)
    return call.exchange.reply(shown(await call.commit(work)))


@Operation(
    "GET /v1/jobs",
    reach=TENANT,
    summary="The tenant's jobs, newest first.",
    permission="tenant:admin",
    query=PageQuery,
    returns=wire.jobs.JobPage,
)
async def list_jobs(call: Call[TenantScope]) -> Answer:
    return await _jobs(call)


@Operation(
    "GET /v1/jobs/{job_id}",
    reach=LISTING,
    summary="A job on a thread of the subject, and how far it is; tenant:admin without a subject sees any.",
    permission="state:write",
    returns=wire.jobs.Job,
    problems=("not-found",),
)
async def get_job(call: Call[Scope | TenantListing], job_id: str) -> Answer:
    scope = call.scope
    whose = TenantScope(scope.tenant_id) if isinstance(scope, TenantListing) else scope
    return await _one_job(call.on(whose), job_id)


@Operation(
    "GET /v1/admin/jobs",
    reach=OPERATORS,
    summary="The deployment's own jobs, newest first.",
    permission="operator",
    query=PageQuery,
    returns=wire.jobs.JobPage,
)
async def list_deployment_jobs(call: Call[OperatorScope]) -> Answer:
    return await _jobs(call)


@Operation(
    "GET /v1/admin/jobs/{job_id}",
    reach=OPERATORS,
    summary="A job of the deployment, and how far it is.",
    permission="operator",
    returns=wire.jobs.Job,
    problems=("not-found",),
)
async def get_deployment_job(call: Call[OperatorScope], job_id: str) -> Answer:
    return await _one_job(call, job_id)


@Operation(
    "POST /v1/jobs/{job_id}/cancel",
    reach=LISTING,
    summary="End a job before its time: one on a thread of the subject; tenant:admin without a subject ends any "
    "that may be ended so: archiving, restoring, verifying, migrating, exporting, importing.",
    permission="state:write",
    returns=wire.jobs.Job,
    problems=("not-found", "job-not-cancellable", "commit-unknown"),
)
async def cancel_job(call: Call[Scope | TenantListing], job_id: str) -> Answer:
    scope = call.scope
    whose = TenantScope(scope.tenant_id) if isinstance(scope, TenantListing) else scope
    return await _cancel(call.on(whose), job_id)


@Operation(
    "POST /v1/admin/jobs/{job_id}/cancel",
    reach=OPERATORS,
    summary="End a job of the deployment before its time: a verification.",
    permission="operator",
    returns=wire.jobs.Job,
    problems=("not-found", "job-not-cancellable", "commit-unknown"),
)
async def cancel_deployment_job(call: Call[OperatorScope], job_id: str) -> Answer:
    return await _cancel(call, job_id)


@Operation(
    "POST /v1/jobs/{job_id}/supersede",
    reach=TENANT,
    summary="Put a damaged job of the tenant aside for good, on the record.",
    permission="tenant:admin",
    returns=wire.jobs.Job,
    problems=("not-found", "job-not-damaged", "commit-unknown"),
)
async def supersede_job(call: Call[TenantScope], job_id: str) -> Answer:
    return await _supersede(call, job_id)


@Operation(
    "POST /v1/admin/jobs/{job_id}/supersede",
    reach=OPERATORS,
    summary="Put a damaged job of the deployment aside for good, on the record.",
    permission="operator",
    returns=wire.jobs.Job,
    problems=("not-found", "job-not-damaged", "commit-unknown"),
)
async def supersede_deployment_job(call: Call[OperatorScope], job_id: str) -> Answer:
    return await _supersede(call, job_id)


@Operation(
    "GET /v1/admin/tenants/{tenant_id}/jobs/{job_id}",
    reach=OPERATORS,
    summary="A job that operators began at a tenant (its shredding), and how far it is.",
    permission="operator",
    returns=wire.jobs.Job,
    problems=("not-found",),
)
async def get_tenant_job(call: Call[OperatorScope], tenant_id: str, job_id: str) -> Answer:
    tenant, job = path_uuid(tenant_id, JobNotFound), path_uuid(job_id, JobNotFound)
    return call.exchange.reply(shown(await call.store.jobs.of_tenant(call.scope, tenant, job, _BY_OPERATORS)))
