"""What a job waits for, as a code, for whoever asks why it does not go on.

Expands only: the previous release neither reads nor writes it, and is not told by it. It steers nothing, so that no MAC
covers it.
"""

from alembic import op

revision = "a29"
down_revision = "a28"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE stateroom.jobs ADD waits_for text")
    op.execute("GRANT SELECT (waits_for) ON stateroom.jobs TO gw_ops")


def downgrade() -> None:
    """Drop it."""
    op.execute("ALTER TABLE stateroom.jobs DROP waits_for")
