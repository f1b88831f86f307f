"""Alembic environment: one transaction, short lock timeout, one migrator at a time."""

from alembic import context
from sqlalchemy import Connection, text

from storage.postgres.tables import SCHEMA, metadata

# One migrator at a time across all processes of a deployment; the number is arbitrary but fixed.
ADVISORY_LOCK = 5_370_001


def run(connection: Connection) -> None:
    """Run all pending revisions on ``connection``, which belongs to gw_migrate."""
    connection.execute(text("SET lock_timeout = '5s'"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table="db_revision",
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=lambda name, kind, _parents: name == SCHEMA if kind == "schema" else True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
