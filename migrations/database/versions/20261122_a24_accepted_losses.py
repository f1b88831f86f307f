"""What a restore lost that was accepted: anchored heads, and tenants, that are known to be missing.

Expands only: the previous release goes on finding them.
"""

from alembic import op

revision = "a24"
down_revision = "a23"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
OPERATORS_OWN = (
    "current_setting('app.operator', true) = 'on' AND tenant_id = '00000000-0000-0000-0000-000000000000'::uuid"
)


def upgrade() -> None:
    """Create the table. Tenants that are missing have the tenant id of zeros."""
    op.execute("""
        CREATE TABLE stateroom.accepted_losses (
            tenant_id uuid NOT NULL,
            loss_id uuid NOT NULL,
            lost bytea NOT NULL,
            accepted_at timestamptz NOT NULL,
            mac bytea NOT NULL CHECK (length(mac) = 32),
            mac_format smallint,
            PRIMARY KEY (tenant_id, loss_id)
        )
    """)
    op.execute("ALTER TABLE stateroom.accepted_losses ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.accepted_losses FORCE ROW LEVEL SECURITY")
    # What was put on record stays: nobody who serves takes a record back, or makes it say more.
    op.execute("GRANT SELECT, INSERT ON stateroom.accepted_losses TO gw_app")
    op.execute("GRANT SELECT (tenant_id, loss_id, accepted_at) ON stateroom.accepted_losses TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.accepted_losses FOR SELECT TO gw_ops USING (true)")
    for name, condition in (("tenant_rows", TENANT), ("operator_chain", OPERATORS_OWN)):
        op.execute(
            f"CREATE POLICY {name} ON stateroom.accepted_losses TO gw_app USING ({condition}) WITH CHECK ({condition})"
        )


def downgrade() -> None:
    """Drop it: what was known to be lost is found again."""
    op.execute("DROP TABLE stateroom.accepted_losses")
