"""Know when a tenant's next approval expires, and find what waits among what has ended.

A build before this one neither reads nor writes the column; what it asks is found by rounds of retention, as before.
"""

from alembic import op

revision = "a50"
down_revision = "a49"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the indexes."""
    op.execute("ALTER TABLE stateroom.retention_rounds ADD COLUMN approvals_due_at timestamptz")
    op.execute("GRANT SELECT (approvals_due_at) ON stateroom.retention_rounds TO gw_ops")
    op.execute(
        "CREATE INDEX retention_rounds_by_approvals ON stateroom.retention_rounds USING btree (approvals_due_at)"
        " WHERE (approvals_due_at IS NOT NULL)"
    )
    op.execute(
        "CREATE INDEX approvals_pending ON stateroom.approvals USING btree (tenant_id, approval_id)"
        " WHERE (status = 'pending'::text)"
    )


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP INDEX stateroom.approvals_pending")
    op.execute("ALTER TABLE stateroom.retention_rounds DROP COLUMN approvals_due_at")
