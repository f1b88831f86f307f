"""Statements on state schemas."""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class VersionRow(msgspec.Struct, frozen=True):
    """A version of a schema as it is stored."""

    number: int
    definition: bytes
    created_at: datetime
    mac: bytes | None
    mac_format: int | None


class SchemaVersionRow(VersionRow, frozen=True):
    """A version of any schema as it is stored."""

    schema: str


class NewestVersion(msgspec.Struct, frozen=True):
    """A schema and the number of its newest version."""

    schema: str
    newest: int


# Registrations of one schema wait for each other, also the first, which finds no row to lock.
LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

VERSIONS = Statement(
    """
SELECT number, definition, created_at, mac, mac_format FROM stateroom.state_schemas
WHERE tenant_id = :tenant_id AND schema = :schema ORDER BY number
""",
    VersionRow,
)

# By order, so that the table is not scanned for it.
ANY = Statement(
    """
SELECT number FROM stateroom.state_schemas WHERE tenant_id = :tenant_id AND schema = :schema ORDER BY number LIMIT 1
""",
    int,
)

EVERY = Statement(
    """
SELECT number, definition, created_at, mac, mac_format, schema FROM stateroom.state_schemas WHERE tenant_id = :tenant_id
AND (schema, number) > (:after_schema, :after_number) ORDER BY schema, number LIMIT :page_rows
""",
    SchemaVersionRow,
)

NAMES = Statement(
    """
SELECT schema, max(number) AS newest FROM stateroom.state_schemas WHERE tenant_id = :tenant_id AND schema > :after
GROUP BY schema ORDER BY schema LIMIT :page_rows
""",
    NewestVersion,
)

# Of a version that no gateway registered as it is.
SUPERSEDE = Statement("""
UPDATE stateroom.state_schemas SET definition = :definition, created_at = :created_at, mac = :mac,
    mac_format = :mac_format
WHERE tenant_id = :tenant_id AND schema = :schema AND number = :number
""")

ADD = Statement("""
INSERT INTO stateroom.state_schemas (tenant_id, schema, number, definition, created_at, mac, mac_format)
VALUES (:tenant_id, :schema, :number, :definition, :created_at, :mac, :mac_format)
""")
