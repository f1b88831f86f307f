"""A tenant-wide listing of checkpoints for operators.

Expands only: the previous release keeps serving. A transaction that is bound to a tenant, to no subject, and to the
listing by name may read the tenant's checkpoint rows, and nothing of any other table; the statements that use it
select clear columns only, and the sealed ones open under no key that such a transaction can reach. The policy holds no
sub-SELECT and no change of role, which Citus would not run.
"""

from alembic import op

revision = "a6"
down_revision = "a4"
branch_labels = None
depends_on = None

LISTING = (
    "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
    " AND current_setting('app.tenant_listing', true) = 'on'"
)


def upgrade() -> None:
    """Add the policy, and an index for ranges of time that costs next to nothing to keep."""
    op.execute(f"CREATE POLICY tenant_listing ON stateroom.checkpoints FOR SELECT TO gw_app USING ({LISTING})")
    op.execute("CREATE INDEX checkpoints_by_time ON stateroom.checkpoints USING brin (created_at)")


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute("DROP INDEX stateroom.checkpoints_by_time")
    op.execute("DROP POLICY tenant_listing ON stateroom.checkpoints")
