"""Waiting until every transaction has ended that may still believe what a row said before.

A save reads its key's state in its own statement and takes no lock on it: a lock on one row for every save of a
subject would be paid by all of them. So after a key's state changed, a save that began before may still commit what it
sealed under the old version. A job that destroys a version waits until no transaction of a gateway is open that began
before the change; what begins later sees it.

Relies on PostgreSQL's list of sessions (``track_activities`` on, as by default) and on gateways sharing one role.
"""

from datetime import datetime

from storage.errors import SetupError
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope
from storage.statements.keys import rotation as sql


class OlderTransactions:
    """The question whether transactions that began by some moment have ended."""

    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work

    async def moment(self) -> datetime:
        """The present moment by the database's clock."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return await transaction.fetch_only(NOW)

    async def have_ended(self, moment: datetime) -> bool:
        """Whether every transaction that began at ``moment`` or before has ended.

        Raises:
            SetupError: The server does not keep the list.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            found = await transaction.fetch_only(sql.OLDER_TRANSACTIONS, moment=moment)
        if not found.tracked:
            raise SetupError("track_activities is off; turn it on, so that old key versions can be destroyed safely")
        return not found.open
