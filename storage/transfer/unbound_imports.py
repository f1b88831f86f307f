"""Exports of format 1 that a tenant may take in all the same, each once, because an operator answers for it.

Such a file names a deployment and no tenant: an administrator who got hold of it could import it into another tenant.
Owns those acceptances. It does not look into the file: who accepts has to know whose it is.
"""

from datetime import datetime
from uuid import UUID

from storage.administration.audit import Audit
from storage.clock import Clock
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof
from storage.errors import TenantNotFound
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, TenantScope
from storage.statements.deployment import transfer as sql
from storage.statements.deployment.tenants import ONE_TENANT

UNBOUND_FORMAT = 1


class UnboundImports:
    """The acceptances of a deployment."""

    def __init__(self, unit_of_work: UnitOfWork, control: ControlRows, audit: Audit, clock: Clock) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self._audit = audit
        self._clock = clock

    async def accept(self, tenant_id: UUID, export_id: UUID, actor: str) -> None:
        """Let a tenant take in an export that names no tenant, once. Repeating it changes nothing.

        The export's id is in the file's name, and in the audit log of the exporting tenant.

        Raises:
            TenantNotFound: there is no such tenant.
        """
        await self._control.ready()
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            now = self._clock.now()
            proof = self._control.proof(_row(tenant_id, export_id, now))
            if await transaction.fetch_one(
                sql.ACCEPT_UNBOUND, tenant_id=tenant_id, export_id=export_id, accepted_at=now, **proof._asdict()
            ):
                detail = {"export_id": str(export_id)}
                for chain in (tenant_id, OPERATOR_CHAIN):
                    await self._audit.append(
                        transaction, chain, actor, "import.accept-unbound", f"tenant:{tenant_id}", detail
                    )

    async def accepted(self, scope: TenantScope) -> set[UUID]:
        """Read which exports a tenant may take in. A row that no gateway wrote accepts nothing."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.UNBOUND)
        if rows:
            await self._control.ready()
        return {
            row.export_id
            for row in rows
            if self._control.is_authentic(
                _row(scope.tenant_id, row.export_id, row.accepted_at), Proof(row.mac, row.mac_format)
            )
        }

    async def use_up(self, scope: TenantScope, export_id: UUID) -> None:
        """End an acceptance, as the export was taken in whole; one that broke off may be run again."""
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.USE_UP_UNBOUND, export_id=export_id)


def _row(tenant_id: UUID, export_id: UUID, accepted_at: datetime) -> Row:
    return Row("unbound-import", tenant_id, (export_id,), (accepted_at,))
