"""What an accepted restore lost: known from then on, and no damage.

A backup that is put back lacks what was saved after it; the anchored heads in the bucket go on telling so. When the
restore is accepted, the anchored heads that the database has not come to are put on record here, once, in rows that a
gateway proves (`storage.control.rows`); so are tenants that the backup does not have. From then on they are left out of
every comparison, and a verification says how many.

Owns those rows, and what is anchored without them. A thread that lost something is not compared with its anchors until
it has come further than it was.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from uuid import UUID, uuid4

from storage.access.head_anchors import ENTRY_BYTES, AnchoredHeads, HeadAnchors
from storage.clock import Clock
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import OperatorScope, TenantScope
from storage.statements.objects import accepted_losses as sql

_ENTRIES_A_ROW = 1000
_UUID_BYTES = 16


class AcceptedLosses:
    """Puts losses on record, and reads what is anchored without them."""

    def __init__(self, unit_of_work: UnitOfWork, control: ControlRows, anchors: HeadAnchors, clock: Clock) -> None:
        self._unit_of_work = unit_of_work
        self._control = control
        self._anchors = anchors
        self._clock = clock

    async def anchored(self, tenant_id: UUID) -> AnchoredHeads:
        """The anchored heads of a tenant that a comparison must account for.

        Raises:
            BlobUnavailable: the object store does not answer.
            CryptoError: the root key cannot be asked who wrote the records of losses.
        """
        anchored = await self._anchors.load(tenant_id)
        if anchored.tags:
            anchored.leave_out(await self._lost(TenantScope(tenant_id), tenant_id, ENTRY_BYTES))
        return anchored

    async def missing_tenants(self) -> set[UUID]:
        """Tenants that are known to be missing since a restore.

        Raises:
            CryptoError: as `anchored`.
        """
        return {UUID(bytes=part) for part in await self._lost(OperatorScope(), OPERATOR_CHAIN, _UUID_BYTES)}

    async def accept_heads(self, tenant_id: UUID, entries: Sequence[bytes]) -> None:
        """Put anchored heads of a tenant on record as lost."""
        await self._accept(TenantScope(tenant_id), tenant_id, entries)

    async def accept_tenants(self, tenant_ids: Iterable[UUID]) -> None:
        """Put tenants on record as lost."""
        await self._accept(OperatorScope(), OPERATOR_CHAIN, [each.bytes for each in tenant_ids])

    async def _accept(self, scope: TenantScope | OperatorScope, tenant_id: UUID, parts: Sequence[bytes]) -> None:
        await self._control.ready()
        now = self._clock.now()
        async with self._unit_of_work.begin(scope) as transaction:
            for at in range(0, len(parts), _ENTRIES_A_ROW):
                loss_id, lost = uuid4(), b"".join(parts[at : at + _ENTRIES_A_ROW])
                proof = self._control.proof(_row(tenant_id, loss_id, lost))
                await transaction.run(
                    sql.ADD, owner=tenant_id, loss_id=loss_id, lost=lost, accepted_at=now, **proof._asdict()
                )

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every record of a tenant's losses, with its proof, for a check of all of them."""
        for row in await transaction.fetch_all(sql.LOSSES, owner=tenant_id):
            yield _row(tenant_id, row.loss_id, row.lost), Proof(row.mac, row.mac_format)

    async def _lost(self, scope: TenantScope | OperatorScope, tenant_id: UUID, size: int) -> list[bytes]:
        """Read what was put on record. A row that no gateway wrote excuses nothing: what it names stays missing."""
        await self._control.ready()
        found: list[bytes] = []
        async with self._unit_of_work.snapshot(scope) as transaction:
            for row in await transaction.fetch_all(sql.LOSSES, owner=tenant_id):
                proved = _row(tenant_id, row.loss_id, row.lost)
                if self._control.is_authentic(proved, Proof(row.mac, row.mac_format)):
                    found += (row.lost[at : at + size] for at in range(0, len(row.lost), size))
        return found


def _row(tenant_id: UUID, loss_id: UUID, lost: bytes) -> Row:
    return Row("accepted-loss", tenant_id, (loss_id,), (lost,))
