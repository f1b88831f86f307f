"""Statements on what tenants say of their vectors; and whether the table for those in clear is there."""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class VectorPolicyRow(msgspec.Struct, frozen=True):
    """What a tenant says, as it is stored."""

    vectors: str
    accepted: str
    complete: bool
    updated_at: datetime
    mac: bytes | None
    mac_format: int | None


class PolicyNow(msgspec.Struct, frozen=True):
    """What a tenant says, if it says anything, and where the extension of the table in clear is, if that is there."""

    policy: VectorPolicyRow | None
    extension_schema: str | None


LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

# The name of the extension's schema; NULL: an operator made no table for clear vectors.
_EXTENSION_SCHEMA = """(SELECT n.nspname::text FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector' AND to_regclass('stateroom.item_clear_vectors') IS NOT NULL)"""
EXTENSION_SCHEMA = Statement(f"SELECT {_EXTENSION_SCHEMA}", str)
NOW = Statement(
    f"""
SELECT p.vectors, p.accepted, p.complete, p.updated_at, p.mac, p.mac_format,
    {_EXTENSION_SCHEMA} AS extension_schema
FROM (SELECT) one LEFT JOIN stateroom.vector_policies p ON p.tenant_id = :tenant_id
""",
    PolicyNow,
)
EVERY = Statement(
    """
SELECT vectors, accepted, complete, updated_at, mac, mac_format FROM stateroom.vector_policies
WHERE tenant_id = :tenant_id
""",
    VectorPolicyRow,
)
PUT = Statement("""
INSERT INTO stateroom.vector_policies (tenant_id, vectors, accepted, complete, updated_at, mac, mac_format)
VALUES (:tenant_id, :vectors, :accepted, :complete, :updated_at, :mac, :mac_format)
ON CONFLICT (tenant_id) DO UPDATE SET vectors = excluded.vectors, accepted = excluded.accepted,
    complete = excluded.complete, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
""")
TAKE_BACK = Statement("DELETE FROM stateroom.vector_policies WHERE tenant_id = :tenant_id")
