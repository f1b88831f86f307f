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


@pytest.mark.parametrize("name", STATEMENTS)
async def test_the_columns_of_a_statement_are_the_fields_of_its_row_in_their_order(app: asyncpg.Connection, name: str):
    statement = STATEMENTS[name]
    for each in statement.text.split(";"):
        prepared = await app.prepare(each)
    columns = [column.name for column in prepared.get_attributes()]
    assert len(prepared.get_parameters()) == len(statement.names)
    if statement.row is None:
        return
    if issubclass(statement.row, msgspec.Struct):
        assert columns == column_names(statement.row)
    else:
        assert len(columns) == 1
