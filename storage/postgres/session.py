"""Running statements on a connection: values by name, rows by type.

Owns the way of a `Statement` to the driver and of its records back. A transaction of tenants' rows is a session that
knows its scope (`storage.postgres.unit_of_work`); what looks at the database from outside of any tenant, such as the
guard of a start, makes one of a connection. Nothing here begins or ends a transaction.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from storage.postgres.statement import Statement

R = TypeVar("R")


class Session:
    """A connection on which statements run.

    Args:
        connection: A connection of the driver.
        bound: The values of parameters that no caller may give: what the transaction's scope says.
        timeout_seconds: The time that the server has for an answer; None: as long as the connection allows.
    """

    def __init__(
        self, connection: Any, bound: Mapping[str, object] | None = None, timeout_seconds: float | None = None
    ) -> None:
        self._connection = connection
        self._bound = bound or {}
        self._timeout_seconds = timeout_seconds

    async def fetch_all(self, statement: Statement[R], **values: object) -> list[R]:
        """Run a statement and return its rows."""
        arguments = statement.arguments(self._bound, values)
        records = await self._connection.fetch(statement.text, *arguments, timeout=self._timeout_seconds)
        return [statement.made(record) for record in records]

    async def fetch_one(self, statement: Statement[R], **values: object) -> R | None:
        """Run a statement and return its first row, or None; of a single column that is None, too, if it is NULL."""
        arguments = statement.arguments(self._bound, values)
        record = await self._connection.fetchrow(statement.text, *arguments, timeout=self._timeout_seconds)
        return None if record is None else statement.made(record)

    async def fetch_only(self, statement: Statement[R], **values: object) -> R:
        """Run a statement that always has one row, such as a count, and return it."""
        arguments = statement.arguments(self._bound, values)
        record = await self._connection.fetchrow(statement.text, *arguments, timeout=self._timeout_seconds)
        return statement.made(record)

    async def run(self, statement: Statement[None], **values: object) -> int:
        """Run a statement and return how many rows it touched."""
        arguments = statement.arguments(self._bound, values)
        tag: str = await self._connection.execute(statement.text, *arguments, timeout=self._timeout_seconds)
        count = tag.rsplit(" ", 1)[-1]
        return int(count) if count.isdecimal() else 0

    async def run_many(self, statement: Statement[None], rows: Iterable[Mapping[str, object]]) -> None:
        """Run a statement once for each row of values."""
        arguments = [statement.arguments(self._bound, values) for values in rows]
        await self._connection.executemany(statement.text, arguments, timeout=self._timeout_seconds)
