"""Statements on the server, its roles and the schema itself: what is asked before any tenant's row is looked at.

They run on connections that are bound to no tenant (`storage.postgres.session.Session`).
"""

from uuid import UUID

import msgspec

from storage.postgres.statement import Statement
from storage.postgres.tables import SCHEMA


class OwnRole(msgspec.Struct, frozen=True):
    """The role of a connection, and the powers that a gateway must not have."""

    name: str
    superuser: bool
    bypasses: bool
    bypass_member: bool
    owner: bool


class Role(msgspec.Struct, frozen=True):
    """A role of the cluster."""

    name: str
    superuser: bool
    bypasses: bool


class TenantTable(msgspec.Struct, frozen=True):
    """A table of tenants' rows, and whether row-level security is forced on it."""

    name: str
    forced: bool


class Setting(msgspec.Struct, frozen=True):
    """A setting of the server."""

    name: str
    setting: str


# What a save that was acknowledged needs in order to survive a power cut; none of them may be off.
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")

VERSION = Statement("SELECT current_setting('server_version_num')::int", int)
SETTINGS = Statement("SELECT name, setting FROM pg_settings WHERE name = ANY(:names::text[])", Setting)
READ_ONLY = Statement("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool", bool)
TAKES_WRITES = Statement(
    "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'", bool
)
OWN_ROLE = Statement(
    f"""
SELECT rolname AS name, rolsuper AS superuser, rolbypassrls AS bypasses,
    EXISTS (SELECT FROM pg_roles r WHERE r.rolbypassrls AND NOT r.rolsuper AND r.rolname <> current_user
            AND pg_has_role(current_user, r.oid, 'MEMBER')) AS bypass_member,
    EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = '{SCHEMA}' AND pg_has_role(current_user, c.relowner, 'MEMBER')) AS owner
FROM pg_roles WHERE rolname = current_user
""",
    OwnRole,
)
MAKES_TEMPORARY_TABLES = Statement("SELECT has_database_privilege(current_database(), 'TEMPORARY')", bool)
ROLES = Statement(
    """
SELECT rolname AS name, rolsuper AS superuser, rolbypassrls AS bypasses FROM pg_roles
WHERE rolname = ANY(:names::text[])
""",
    Role,
)
TENANT_TABLES = Statement(
    f"""
SELECT c.relname AS name, c.relrowsecurity AND c.relforcerowsecurity AS forced
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = '{SCHEMA}' AND c.relkind IN ('r', 'p')
  AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)
ORDER BY 1
""",
    TenantTable,
)
# What PostgreSQL keeps for superusers, and for members of pg_use_reserved_connections, is nothing that gw_app gets.
CONNECTIONS_ALLOWED = Statement(
    """
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - current_setting('reserved_connections')::int,
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))
""",
    int,
)
CONNECTIONS_TAKEN = Statement("SELECT count(*) - 1 FROM pg_stat_activity WHERE usename = current_user", int)
REVISION = Statement(f"SELECT version_num FROM {SCHEMA}.db_revision", str)
DEPLOYMENT = Statement(f"SELECT deployment_id FROM {SCHEMA}.deployment", UUID)
CLAIM_DEPLOYMENT = Statement(f"INSERT INTO {SCHEMA}.deployment VALUES (true, :deployment_id) ON CONFLICT DO NOTHING")

# For a cluster of our own; PostgreSQL takes no parameters where names and passwords stand.
DATABASE = Statement("SELECT datname FROM pg_database WHERE datname = :name", str)
QUOTED_NAME = Statement("SELECT quote_ident(:name::text)", str)
QUOTED_TEXT = Statement("SELECT quote_literal(:text::text)", str)
