"""Which exports that name no tenant an operator lets a tenant take in.

Expands only: the previous release takes all of them in.
"""

from alembic import op

revision = "a28"
down_revision = "a27"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    """Create the table."""
    op.execute("""
        CREATE TABLE stateroom.unbound_imports (
            tenant_id uuid NOT NULL,
            export_id uuid NOT NULL,
            accepted_at timestamptz NOT NULL,
            mac bytea NOT NULL CHECK (length(mac) = 32),
            mac_format smallint,
            PRIMARY KEY (tenant_id, export_id)
        )
    """)
    op.execute("ALTER TABLE stateroom.unbound_imports ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.unbound_imports FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, DELETE ON stateroom.unbound_imports TO gw_app")
    op.execute("GRANT SELECT (tenant_id, export_id, accepted_at) ON stateroom.unbound_imports TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.unbound_imports FOR SELECT TO gw_ops USING (true)")
    op.execute(
        f"CREATE POLICY tenant_rows ON stateroom.unbound_imports TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})"
    )


def downgrade() -> None:
    """Drop it: nothing is accepted any more."""
    op.execute("DROP TABLE stateroom.unbound_imports")
