"""Time that passes for what is stored: rows are made older, because nobody can move the database's clock."""

from uuid import UUID

import asyncpg

from storage.clock import SystemClock

# What decides a removal, by table. Sealed times stay as they were sent.
_TIMES = {
    "threads": ("began_at", "updated_at"),
    "pending_writes": ("stored_at",),
    "archives": ("stored_at",),
    "retention_rounds": ("started_at", "thinned_until"),
}


class PassingTime(SystemClock):
    """The machine's clock, and a tenant whose rows can be made older."""

    def __init__(self, admin: asyncpg.Connection, tenant_id: UUID) -> None:
        self._admin = admin
        self._tenant_id = tenant_id

    async def go_on(self, seconds: float) -> None:
        """Make everything the tenant has so much older."""
        async with self._admin.transaction():
            # Without the trigger by which a thread that is written to was written to now.
            await self._admin.execute("SET LOCAL session_replication_role = replica")
            for table, columns in _TIMES.items():
                older = ", ".join(f"{each} = {each} - make_interval(secs => $2)" for each in columns)
                await self._admin.execute(
                    f"UPDATE stateroom.{table} SET {older} WHERE tenant_id = $1",  # noqa: S608  constants of this module
                    self._tenant_id, float(seconds),
                )  # fmt: skip
