"""Ending a job before its time, on the record.

Owns which kinds may be ended so. What a job did before it was cancelled stays done: a migrated head, a verified
thread. The process that works on it notices when it next moves on, so that what it is at may still be done. Only the
verification of all tenants begins other jobs; those end with it by themselves (`storage.verification.jobs`).
"""

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from storage.administration.audit import Audit
from storage.administration.jobs import OPEN_STATES, THREAD_KINDS, Job, Jobs, is_on_thread_of, job_tenant
from storage.control.rows import ControlRows
from storage.errors import JobNotCancellable, JobNotFound
from storage.migration.jobs import KINDS as MIGRATION_KINDS
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.deployment import jobs as sql
from storage.transfer.exporting import EXPORT_KIND, IMPORT_KIND
from storage.verification.jobs import VERIFY_DEPLOYMENT_KIND, VERIFY_TENANT_KIND

# Each leaves whole what it was at, and can be begun again.
CANCELLABLE: Final[Collection[str]] = frozenset(
    {*THREAD_KINDS, *MIGRATION_KINDS, VERIFY_TENANT_KIND, VERIFY_DEPLOYMENT_KIND, EXPORT_KIND, IMPORT_KIND}
)
# What the others would leave behind: the reason, by what their kinds begin with.
_MUST_END: Final[Mapping[str, str]] = {
    "shred": "keys are destroyed, and its rows have to go",
    "rewrap": "keys would stay under an older key, which could not be destroyed",
    "reseal": "state would stay under an older key, which could not be destroyed",
}


class JobCancelling:
    """Cancels jobs, other than those that have to end."""

    def __init__(self, unit_of_work: UnitOfWork, control: ControlRows, jobs: Jobs, audit: Audit) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self._jobs = jobs
        self._audit = audit

    async def cancel(self, scope: Scope | TenantScope | OperatorScope, job_id: UUID, actor: str) -> Job:
        """End a job as failed, by the error `CANCELLED`; one that has ended stays as it ended.

        Raises:
            JobNotFound: this scope has none of this id.
            JobNotCancellable: it is of a kind that has to end.
            CryptoError: the root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready()
        tenant_id = job_tenant(scope)
        async with self._unit_of_work.begin(scope) as transaction:
            row = await transaction.fetch_one(sql.LOCK, owner=tenant_id, job_id=job_id)
            if row is None or (isinstance(scope, Scope) and not is_on_thread_of(scope, row.kind, row.target)):
                raise JobNotFound
            job = self._jobs.read(row)
            if job.state in OPEN_STATES:
                if job.kind not in CANCELLABLE:
                    why = next((why for begin, why in _MUST_END.items() if job.kind.startswith(begin)), "it has to end")
                    raise JobNotCancellable(f"a job of the kind {job.kind} goes on to its end: {why}")
                await self._jobs.cancel(transaction, job)
                await self._audit.append(
                    transaction, tenant_id, actor, "job.cancel", f"job:{job_id}", {"kind": job.kind}
                )
        return await self._jobs.get(scope, job_id)
