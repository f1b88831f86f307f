"""Statements on tenants and credentials.

Operators reach all of them, and a credential is of a tenant or, without one, of the operators, which no scope says; so
which tenant is meant is always given.
"""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant as it is stored."""

    tenant_id: UUID
    name: str
    created_at: datetime
    suspended_at: datetime | None


class LivingTenant(msgspec.Struct, frozen=True):
    """A tenant that was not shredded."""

    tenant_id: UUID
    name: str
    suspended_at: datetime | None


class ApiKeyRow(msgspec.Struct, frozen=True):
    """A credential as it is stored, with its seal's columns, which are null where it has none."""

    key_id: str
    kind: Literal["subject", "service", "operator"]
    name: str
    tenant_id: UUID | None
    subject_id: str | None
    permissions: list[str]
    mac: bytes
    pepper_version: int
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    grants: list[str] | None
    seal_mac: bytes | None
    seal_pepper_version: int | None
    principal: str | None
    made_by: str | None


class LookedUpKey(ApiKeyRow, frozen=True):
    """A credential that a caller presented, whether its tenant is suspended, and whether that has events."""

    suspended: bool
    events: bool


_TENANTS = "SELECT tenant_id, name, created_at, suspended_at FROM stateroom.tenants"
# A key with its seal, where it has one.
_KEYS = """
SELECT k.key_id, k.kind, k.name, k.tenant_id, k.subject_id, k.permissions, k.mac, k.pepper_version, k.created_at,
    k.expires_at, k.revoked_at, k.last_used_at, s.grants, s.mac AS seal_mac, s.pepper_version AS seal_pepper_version,
    s.principal, s.made_by
FROM stateroom.api_keys k LEFT JOIN stateroom.api_key_seals s ON s.key_id = k.key_id"""
# Newest first, from after one of them on.
_KEYS_PAGE = """
  AND (k.created_at, k.key_id) < (:after_at, :after_id) ORDER BY k.created_at DESC, k.key_id DESC LIMIT :page_rows"""

LOOK_UP = Statement("SELECT * FROM stateroom.look_up_api_key_4(:key_id)", LookedUpKey)

# --- tenants ---------------------------------------------------------------------------------------------------------

EVERY_TENANT = Statement(
    "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > :after ORDER BY tenant_id LIMIT :limit", UUID
)
# All but those that were shredded.
LIVING_TENANTS = Statement(
    """
SELECT tenant_id, name, suspended_at FROM stateroom.tenants t
WHERE NOT EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = t.tenant_id)
   OR EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = t.tenant_id AND k.state <> 'destroyed')
ORDER BY tenant_id
""",
    LivingTenant,
)
TENANTS = Statement(
    f"""
{_TENANTS} WHERE (created_at, tenant_id) < (:after_at, :after_id)
ORDER BY created_at DESC, tenant_id DESC LIMIT :page_rows
""",
    TenantRow,
)
ONE_TENANT = Statement(f"{_TENANTS} WHERE tenant_id = :wanted", TenantRow)
IS_SUSPENDED = Statement("SELECT suspended_at IS NOT NULL FROM stateroom.tenants WHERE tenant_id = :wanted", bool)
# Adds nothing if the id is taken. A transaction that takes it at the same moment is waited for.
ADD_TENANT = Statement("""
INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES (:wanted, :name, :created_at) ON CONFLICT DO NOTHING
""")
# Of two operators who take a name at once, the second waits and then finds it taken.
LOCK_NAMES = Statement("SELECT pg_advisory_xact_lock(hashtextextended('stateroom/tenant-names', 0))")
NAME_TAKEN = Statement(
    "SELECT EXISTS (SELECT FROM stateroom.tenants WHERE name = :name AND tenant_id <> :wanted)", bool
)
RENAME = Statement("UPDATE stateroom.tenants SET name = :name WHERE tenant_id = :wanted")
SUSPEND = Statement(
    "UPDATE stateroom.tenants SET suspended_at = coalesce(suspended_at, :now) WHERE tenant_id = :wanted"
)
RESUME = Statement("UPDATE stateroom.tenants SET suspended_at = NULL WHERE tenant_id = :wanted")

# --- credentials -----------------------------------------------------------------------------------------------------

ONE_KEY = Statement(f"{_KEYS} WHERE k.key_id = :key_id", ApiKeyRow)
SOME_KEYS = Statement(f"{_KEYS} WHERE k.key_id = ANY(:key_ids::text[])", ApiKeyRow)
KEYS = Statement(f"{_KEYS} WHERE k.tenant_id = :wanted{_KEYS_PAGE}", ApiKeyRow)
OPERATOR_KEYS = Statement(f"{_KEYS} WHERE k.tenant_id IS NULL{_KEYS_PAGE}", ApiKeyRow)
# All that were not revoked.
KEYS_IN_FORCE = Statement(f"{_KEYS} WHERE k.tenant_id IS NOT DISTINCT FROM :wanted AND k.revoked_at IS NULL", ApiKeyRow)
# As `ADD_TENANT`.
ADD_KEY = Statement("""
INSERT INTO stateroom.api_keys
    (key_id, kind, name, tenant_id, subject_id, permissions, mac, pepper_version, created_at, expires_at, revoked_at,
     last_used_at)
VALUES (:key_id, :kind, :name, :owner, :owner_subject, :permissions, :mac, :pepper_version, :created_at, :expires_at,
    :revoked_at, :last_used_at)
ON CONFLICT DO NOTHING
""")
SEAL_KEY = Statement("""
INSERT INTO stateroom.api_key_seals (key_id, tenant_id, grants, mac, pepper_version, principal, made_by)
VALUES (:key_id, :owner, :grants, :mac, :pepper_version, :principal, :made_by)
ON CONFLICT (key_id) DO UPDATE SET grants = excluded.grants, mac = excluded.mac,
    pepper_version = excluded.pepper_version
""")
# Of the scope's keys, those that are not revoked and may do one thing. Locked in one order; a transaction that waited
# for a row looks again at whether it is still one of them.
LOCK_ALLOWED = Statement(
    """
SELECT key_id FROM stateroom.api_keys
WHERE tenant_id IS NOT DISTINCT FROM :wanted AND revoked_at IS NULL AND :permission = ANY(permissions)
ORDER BY key_id FOR UPDATE
""",
    str,
)
LOCK_KEY = Statement(
    """
SELECT key_id FROM stateroom.api_keys WHERE tenant_id IS NOT DISTINCT FROM :wanted AND key_id = :key_id FOR UPDATE
""",
    str,
)
LOCK_UNSEALED = Statement(
    """
SELECT key_id FROM stateroom.api_keys k
WHERE tenant_id IS NOT DISTINCT FROM :wanted
  AND NOT EXISTS (SELECT FROM stateroom.api_key_seals s WHERE s.key_id = k.key_id)
ORDER BY key_id FOR UPDATE
""",
    str,
)
REVOKE = Statement("UPDATE stateroom.api_keys SET revoked_at = :now, mac = :mac WHERE key_id = :key_id")
RESTAMP = Statement("UPDATE stateroom.api_keys SET mac = :mac, pepper_version = :pepper_version WHERE key_id = :key_id")
TOUCH = Statement("""
UPDATE stateroom.api_keys SET last_used_at = greatest(last_used_at, :used_at) WHERE key_id = :key_id
""")
