"""How many bytes of rows each tenant has in PostgreSQL, as they were last counted, and how many it may have.

A row is made when a tenant is, or when its rows are counted for the first time; without a quota a tenant has as many
as it likes, and so have all tenants that were there before. An operator sees what every tenant has, so that one process
finds the tenants whose count is due and every process those that are over their quota.

Expands only: the previous release neither reads nor writes it, and goes on storing rows for whoever is over.
"""

from alembic import op

revision = "a31"
down_revision = "a30"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
OPERATOR = "current_setting('app.operator', true) = 'on'"


def upgrade() -> None:
    """Create the table."""
    # `count_after` is a timetable and a lease in one column, and changes with every count: room for HOT updates.
    op.execute("""
        CREATE TABLE stateroom.row_usage (
            tenant_id   uuid PRIMARY KEY,
            bytes       bigint CHECK (bytes >= 0),
            quota_bytes bigint CHECK (quota_bytes >= 0),
            counted_at  timestamptz,
            count_after timestamptz NOT NULL DEFAULT '-infinity'
        ) WITH (fillfactor = 60)
    """)
    op.execute("ALTER TABLE stateroom.row_usage ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.row_usage FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.row_usage TO gw_app")
    op.execute("GRANT SELECT (tenant_id, bytes, quota_bytes, counted_at, count_after) ON stateroom.row_usage TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.row_usage FOR SELECT TO gw_ops USING (true)")
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.row_usage TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute(f"CREATE POLICY operator_reads ON stateroom.row_usage FOR SELECT TO gw_app USING ({OPERATOR})")


def downgrade() -> None:
    """Drop it: quotas of rows are forgotten."""
    op.execute("DROP TABLE stateroom.row_usage")
