"""Seals of API keys' rows, and suspended tenants.

Expands only. What is new of a key is a table of its own: a gateway of the release before reads all columns that the
look-up gives it, and refuses one that it does not know. A key without a seal is one that such a gateway made.
"""

from alembic import op

revision = "a27"
down_revision = "a26"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
OPERATOR = "current_setting('app.operator', true) = 'on' AND tenant_id IS NULL"

TABLE = """
CREATE TABLE stateroom.api_key_seals (
    key_id text COLLATE "C" PRIMARY KEY REFERENCES stateroom.api_keys ON DELETE CASCADE,
    tenant_id uuid,
    grants text[] NOT NULL,
    mac bytea NOT NULL CHECK (length(mac) = 32),
    pepper_version integer NOT NULL
)
"""

# Read before a tenant is known, as the look-up that it follows. Its owner can read these columns and do nothing else.
LOOK_UP = """
CREATE FUNCTION stateroom.look_up_api_key_2(wanted text) RETURNS TABLE (
    key_id text, kind text, name text, tenant_id uuid, subject_id text, permissions text[], mac bytea,
    pepper_version integer, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz,
    last_used_at timestamptz, grants text[], seal_mac bytea, seal_pepper_version integer, suspended boolean)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    AS 'SELECT k.key_id, k.kind, k.name, k.tenant_id, k.subject_id, k.permissions, k.mac, k.pepper_version,
            k.created_at, k.expires_at, k.revoked_at, k.last_used_at, s.grants, s.mac, s.pepper_version,
            t.suspended_at IS NOT NULL
        FROM stateroom.api_keys k LEFT JOIN stateroom.api_key_seals s ON s.key_id = k.key_id
        LEFT JOIN stateroom.tenants t ON t.tenant_id = k.tenant_id
        WHERE k.key_id = wanted'
"""


def upgrade() -> None:
    """Add the table, the column and the look-up that reads both."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.tenants ADD suspended_at timestamptz")
    op.execute("GRANT SELECT (suspended_at) ON stateroom.tenants TO gw_ops")
    op.execute("ALTER TABLE stateroom.api_key_seals ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.api_key_seals FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.api_key_seals TO gw_app")
    for name, condition in (("tenant_rows", TENANT), ("operator_rows", OPERATOR)):
        op.execute(
            f"CREATE POLICY {name} ON stateroom.api_key_seals TO gw_app USING ({condition}) WITH CHECK ({condition})"
        )
    op.execute("GRANT SELECT ON stateroom.api_key_seals TO gw_auth")
    op.execute("GRANT SELECT (tenant_id, suspended_at) ON stateroom.tenants TO gw_auth")
    op.execute("CREATE POLICY look_up ON stateroom.api_key_seals FOR SELECT TO gw_auth USING (true)")
    op.execute("CREATE POLICY look_up ON stateroom.tenants FOR SELECT TO gw_auth USING (true)")
    op.execute(LOOK_UP)
    op.execute("REVOKE ALL ON FUNCTION stateroom.look_up_api_key_2(text) FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION stateroom.look_up_api_key_2(text) TO gw_app")
    op.execute("GRANT CREATE ON SCHEMA stateroom TO gw_auth")
    op.execute("ALTER FUNCTION stateroom.look_up_api_key_2(text) OWNER TO gw_auth")
    op.execute("REVOKE CREATE ON SCHEMA stateroom FROM gw_auth")


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute("DROP FUNCTION stateroom.look_up_api_key_2(text)")
    op.execute("DROP POLICY look_up ON stateroom.tenants")
    op.execute("REVOKE SELECT (tenant_id, suspended_at) ON stateroom.tenants FROM gw_auth")
    op.execute("REVOKE SELECT (suspended_at) ON stateroom.tenants FROM gw_ops")
    op.execute("ALTER TABLE stateroom.tenants DROP suspended_at")
    op.execute("DROP TABLE stateroom.api_key_seals")
