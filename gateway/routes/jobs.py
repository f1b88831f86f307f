"""Jobs as the API shows them: one shape for each answer that begins one or shows one, and the place to ask again.

Owns how a job's row is read: what each kind is for, and what it found. It decides neither who may see a job nor what a
kind means beyond that; a kind that only a newer release knows is shown without a target.
"""

from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from gateway import wire
from gateway.http.exchange import Answer, place
from gateway.routing.operations import Call
from storage.administration.jobs import THREAD_KINDS, Job, thread_of
from storage.encoding import decode_json
from storage.key_lifecycle import shred
from storage.key_lifecycle.reseal import COMPLETE_KIND, RESEAL_KIND
from storage.migration import jobs as migrating
from storage.scope import OperatorScope, Scope, TenantScope
from storage.transfer import exporting
from storage.verification import jobs as verifying

_OF_A_SUBJECT = frozenset({RESEAL_KIND, COMPLETE_KIND, shred.SHRED_SUBJECT_KIND})
_OF_A_SCHEMA = frozenset(migrating.KINDS)
_VERIFYING = frozenset({verifying.VERIFY_TENANT_KIND, verifying.VERIFY_DEPLOYMENT_KIND})
AnyJob = TypeVar("AnyJob", bound=wire.jobs.Job)


def shown(job: Job) -> wire.jobs.Job:
    """A job as the API shows it."""
    return as_job(job, wire.jobs.Job)


def as_job(job: Job, shape: type[AnyJob], **more: Any) -> AnyJob:
    """A job as the ``shape``, which may say ``more`` than every job does."""
    migration = migrating.read_position(job.position) if job.kind in _OF_A_SCHEMA else None
    body = shape(
        job_id=str(job.job_id),
        kind=job.kind,
        state=job.state,
        target=_target(job, None if migration is None else migration[0]),
        progress=wire.jobs.JobProgress(done=job.done, total=job.total),
        error=job.error,
        note=None if job.kind in _VERIFYING else job.note,
        waits_for=job.waits_for,
        created_at=job.created_at,
        updated_at=job.updated_at,
        damaged=job.damaged,
        **more,
    )
    if migration is not None:
        body.migration = msgspec.convert(msgspec.to_builtins(migration[1]), wire.schemas.StateMigrationReport)
    if job.kind in _VERIFYING and job.note is not None:
        with suppress(msgspec.DecodeError):  # a newer release's
            body.verification = decode_json(job.note, wire.jobs.Verification)
    return body


def _target(job: Job, state_version: int | None) -> wire.jobs.JobTarget:
    if job.kind in THREAD_KINDS:
        subject_id, thread_id = thread_of(job.target)
        return wire.jobs.JobTarget(subject_id=subject_id, thread_id=thread_id)
    if job.kind == exporting.EXPORT_KIND and job.target.count("/") == 1:
        subject_id, thread_id = job.target.split("/")
        return wire.jobs.JobTarget(subject_id=subject_id, thread_id=thread_id)
    if job.kind in _OF_A_SUBJECT:
        return wire.jobs.JobTarget(subject_id=job.target)
    if job.kind in _OF_A_SCHEMA and state_version is not None:
        return wire.jobs.JobTarget(state_schema=job.target, state_version=state_version)
    return wire.jobs.JobTarget()


def job_place(scope: Scope | TenantScope | OperatorScope, job_id: UUID) -> str:
    """Where the caller who began a job asks how far it is."""
    return place(*(("admin",) if isinstance(scope, OperatorScope) else ()), "jobs", str(job_id))


async def begun(call: Call[Scope | TenantScope | OperatorScope], job_id: UUID) -> Answer:
    """The answer to the caller who began a job: 202, the job as it is now, and where to ask again."""
    job = await call.store.jobs.get(call.scope, job_id)
    return call.exchange.reply(shown(job), status=202, location=job_place(call.scope, job_id))
