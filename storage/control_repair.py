"""Repairing control rows, on the record: adopting those from before MACs, and putting damaged jobs aside.

Damaged schemas, policies and holds are superseded once they are said again (`storage.schemas.registry`,
`storage.retention.policies`); a job is never said again. Adopting believes what the rows say: it is for rows that were
there before revision a21, and the operator looks at the list first. A row whose MAC is wrong is never adopted.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.administration.jobs import UNPROVED, Job, Jobs, job_scope, job_tenant
from storage.control.key import Row
from storage.control.rows import ControlRows, JobDraft, Proof, job_row, proof_of
from storage.errors import JobNotDamaged, JobNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.schemas.registry import StateSchemas
from storage.scope import AnyScope, OperatorScope, Scope, TenantScope
from storage.statements.deployment import control as sql
from storage.statements.deployment import jobs as jobs_sql
from storage.statements.deployment.tenants import EVERY_TENANT
from storage.threads.holds import THREAD_LEVEL, every_policy

# What a job is that was put aside because no gateway wrote it.
SUPERSEDED_KIND = "superseded"
_SHOWN_MAX = 255
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Adopted:
    """A row without a MAC: whose, and what it is."""

    tenant_id: UUID
    row: Row


class ControlRepair:
    """The verbs on control rows that no gateway wrote as they are."""

    def __init__(
        self, unit_of_work: UnitOfWork, control: ControlRows, jobs: Jobs, schemas: StateSchemas, audit: Audit
    ) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self._jobs = jobs
        self._schemas = schemas
        self._audit = audit

    async def supersede_job(self, scope: TenantScope | OperatorScope, job_id: UUID, actor: str) -> Job:
        """Put a damaged job aside for good: its row says from now on that it was, and the audit log what it said.

        Raises:
            JobNotFound: this scope has none of this id.
            JobNotDamaged: a gateway wrote it.
            CryptoError: the root key cannot be asked whether one did.
        """
        await self._control.ready()
        tenant_id = job_tenant(scope)
        async with self._unit_of_work.begin(scope) as transaction:
            row = await transaction.fetch_one(jobs_sql.LOCK, owner=tenant_id, job_id=job_id)
            if row is None:
                raise JobNotFound
            if self._control.is_authentic(job_row(row), proof_of(row)):
                raise JobNotDamaged
            ended = job_row(JobDraft(tenant_id, job_id, SUPERSEDED_KIND, "", "failed", error=UNPROVED))
            await transaction.run(
                jobs_sql.SUPERSEDE,
                owner=tenant_id,
                job_id=job_id,
                kind=SUPERSEDED_KIND,
                error=UNPROVED,
                **self._control.proof(ended)._asdict(),
            )
            detail = {"kind": row.kind[:_SHOWN_MAX], "target": row.target[:_SHOWN_MAX], "state": row.state}
            await self._audit.append(transaction, tenant_id, actor, "job.supersede", f"job:{job_id}", detail)
        return await self._jobs.get(scope, job_id)

    async def without_mac(self) -> AsyncGenerator[Adopted]:
        """Every control row of the deployment that has no MAC.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async for tenant_id in self._tenants():
            async with self._unit_of_work.snapshot(job_scope(tenant_id)) as transaction:
                async for row in self._without_mac(transaction, tenant_id):
                    yield Adopted(tenant_id, row)

    async def adopt(self, actor: str = LOCAL_ACTOR) -> AsyncGenerator[Adopted]:
        """Give every control row without a MAC one for what it says, a transaction and an event of the audit log each.

        Raises:
            CryptoError: the root key cannot be asked for the key of the MACs.
            Unavailable: the database cannot be reached; what was adopted stays, and this may be repeated.
        """
        await self._control.ready()
        async with aclosing(self.without_mac()) as rows:
            async for found in rows:
                tenant_id, row = found.tenant_id, found.row
                async with self._unit_of_work.begin(_scope_of(found)) as transaction:
                    if not await self._stamp(transaction, row):
                        continue  # it was written meanwhile
                    await self._audit.append(transaction, tenant_id, actor, "control-row.adopt", str(row)[:_SHOWN_MAX])
                yield found

    async def _tenants(self) -> AsyncIterator[UUID]:
        yield OPERATOR_CHAIN
        async for tenant_id in self._unit_of_work.each(OperatorScope(), EVERY_TENANT, UUID(int=0), _ROWS_AT_ONCE):
            yield tenant_id

    async def _without_mac(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[Row]:
        jobs = self._jobs.rows(transaction, tenant_id)
        others = () if tenant_id == OPERATOR_CHAIN else (
            self._schemas.rows(transaction, tenant_id), every_policy(transaction, tenant_id)
        )  # fmt: skip
        for rows in (*others, jobs):
            async for row, proof in rows:
                if proof.mac is None:
                    yield row

    async def _stamp(self, transaction: Transaction, row: Row) -> int:
        """Store a row's MAC where it says still the same and has none."""
        proof: Proof = self._control.proof(row)
        match row.kind:
            case "state-schema":
                statement = sql.ADOPT_SCHEMA
            case "job":
                statement = sql.ADOPT_JOB
            case _ if row.name[0] == THREAD_LEVEL:
                statement = sql.ADOPT_THREAD_RETENTION
            case _:
                statement = sql.ADOPT_RETENTION
        return await transaction.run(statement, **_columns(row), **proof._asdict())


def _scope_of(found: Adopted) -> AnyScope:
    level = found.row.name[0]
    if found.row.kind == "retention" and level == THREAD_LEVEL:
        return Scope(found.tenant_id, str(found.row.name[1]))
    return job_scope(found.tenant_id)


def _columns(row: Row) -> dict[str, object]:
    """A row's name and what it says, by its columns, without what the scope says."""
    if row.kind == "job":
        of_jobs = ("owner", "job_id", "kind", "target", "outcome", "position", "error", "note")
        return dict(zip(of_jobs, (row.tenant_id, *row.name, *row.says), strict=True))
    if row.kind == "retention":
        policy, held, updated_at = row.says
        says = {"policy": policy, "legal_hold": bool(held), "updated_at": updated_at}
        if row.name[0] == THREAD_LEVEL:
            return {"thread_id": row.name[2], **says}
        return {"level": row.name[0], "target": row.name[1], **says}
    of_schemas = ("schema", "number", "definition", "created_at")
    return dict(zip(of_schemas, (*row.name, *row.says), strict=True))
