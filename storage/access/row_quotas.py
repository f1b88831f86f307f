"""Who may store no more rows: the tenants whose rows in PostgreSQL were last counted at their quota or above.

Every process keeps the set in memory and reads it again once a minute, so that a write costs one look-up and no round
trip. What would store rows asks `RowQuotas.require_room`; what reads or takes away never does, or a tenant that is over
could not get below, nor does a compaction that lets a prune take far more away (`storage.checkpoints.compacting`). Rows
that come back from an archive or a segment in order to be removed, or to tell that a request is a repeated one, come
without being asked for. It counts nothing: `storage.administration.row_census` does, and what a tenant writes between
two counts and until the set was read again goes beyond its quota.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from storage.errors import RowQuotaExceeded
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, Scope
from storage.statements.threads import row_usage as sql

# How long a tenant that was counted above its quota may go on, and one that was counted below it again is refused.
REFRESH_SECONDS: Final = 60.0


class RowQuotas:
    """The tenants that are over, as this process knows them."""

    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work
        self._over: frozenset[UUID] = frozenset()

    def has_room(self, scope: Scope) -> bool:
        """Whether the scope's tenant may store rows."""
        return scope.tenant_id not in self._over

    def require_room(self, scope: Scope) -> None:
        """Refuse a tenant that is over.

        Raises:
            RowQuotaExceeded: it has as many rows as it may.
        """
        if scope.tenant_id in self._over:
            raise RowQuotaExceeded

    async def refresh(self) -> None:
        """Read again who is over.

        Raises:
            Unavailable: the database cannot be reached; what was known stays.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            self._over = frozenset(await transaction.fetch_all(sql.OVER))

    async def keep_fresh(self, failed: Callable[[Exception], None]) -> None:
        """Read again and again who is over, until cancelled.

        ``failed`` is told of each failure; the next reading comes all the same.
        """
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except Exception as reason:  # noqa: BLE001  whatever it is, the next time must come
                failed(reason)
