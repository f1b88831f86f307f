"""What every statement names and returns is what its callers are told, by the database itself."""

import asyncpg
import msgspec
import pytest

from storage.postgres.statement import column_names
from tests.support.statements import every_statement

STATEMENTS = every_statement()


@pytest.fixture(scope="module")
async def app(database):
    connection = await asyncpg.connect(database.dsn(database.app_url))
    yield connection
    await connection.close()


async def _fault(app: asyncpg.Connection, name: str) -> str | None:
    """What is wrong with a statement."""
    statement = STATEMENTS[name]
    try:
        for each in statement.text.split(";"):
            prepared = await app.prepare(each)
    except asyncpg.PostgresError as error:
        return f"{name}: {error}"
    columns = [column.name for column in prepared.get_attributes()]
    if len(prepared.get_parameters()) != len(statement.names):
        return f"{name}: {len(prepared.get_parameters())} parameters for {statement.names}"
    if statement.row is None:
        return None
    if issubclass(statement.row, msgspec.Struct):
        return None if columns == column_names(statement.row) else f"{name}: {columns} for {statement.row.__name__}"
    return None if len(columns) == 1 else f"{name}: {columns}"


async def test_the_columns_of_a_statement_are_the_fields_of_its_row_in_their_order(app: asyncpg.Connection):
    assert [fault for name in STATEMENTS if (fault := await _fault(app, name))] == []
    assert len(STATEMENTS) > 400
