"""${message}

Rules: the previous release keeps serving while this runs, so expand now and contract in a later release; create
indexes CONCURRENTLY on large tables; every new tenant table needs RLS enabled and forced, and keys that begin with
tenant_id; grant gw_ops clear columns only.
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    ${upgrades if upgrades else "op.execute('')"}


def downgrade() -> None:
    """Revert."""
    ${downgrades if downgrades else "op.execute('')"}
