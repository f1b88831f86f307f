"""Alembic environment: one transaction, short lock timeout, one migrator at a time; or the same as a script of SQL."""

from alembic import context
from sqlalchemy import Connection, text

from storage.postgres.tables import SCHEMA, metadata

# One migrator at a time across all processes of a deployment; the number is arbitrary but fixed.
ADVISORY_LOCK = 5_370_001


_FIRST = (
    "SET LOCAL lock_timeout = '5s'",
    f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})",
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
)
_VERSION_TABLE = "db_revision"


def run(connection: Connection) -> None:
    """Run all pending revisions on ``connection``, which belongs to gw_migrate."""
    for statement in _FIRST:
        connection.execute(text(statement))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_schemas=True,
        include_name=lambda name, kind, _parents: name == SCHEMA if kind == "schema" else True,
        compare_type=True,
        version_table=_VERSION_TABLE,
        version_table_schema=SCHEMA,
    )
    with context.begin_transaction():
        context.run_migrations()


def write() -> None:
    """Write what `run` would do as SQL, with no connection."""
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # with another one, a percent sign in a function's body would be two
        literal_binds=True,
        version_table=_VERSION_TABLE,
        version_table_schema=SCHEMA,
    )
    with context.begin_transaction():
        for statement in _FIRST:
            context.execute(statement)
        context.run_migrations()


if context.is_offline_mode():
    write()
else:
    run(context.config.attributes["connection"])
