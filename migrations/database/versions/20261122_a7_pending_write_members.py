"""Members of pending writes: what stands for a write in the sums that its thread's and its head's seals hold.

The seals change with it (format 2), and a database cannot compute what needs its subjects' keys. No release ever wrote
the older ones, so a database that holds threads is refused, by name, instead of being made unreadable.
"""

from alembic import op

revision = "a7"
down_revision = "a6"
branch_labels = None
depends_on = None

REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM stateroom.pending_writes) OR EXISTS (SELECT FROM stateroom.threads) THEN
        RAISE EXCEPTION 'this database holds threads or pending writes whose seals are of an unreleased format,'
            ' which this build cannot read; start with an empty database';
    END IF;
END $$
"""


def upgrade() -> None:
    """Add the column; refuse a database whose rows would not have one."""
    op.execute(REFUSE)
    op.execute("ALTER TABLE stateroom.pending_writes ADD COLUMN member bytea NOT NULL CHECK (length(member) = 16)")


def downgrade() -> None:
    """Drop the column; threads that were sealed meanwhile cannot be read by the older build."""
    op.execute("ALTER TABLE stateroom.pending_writes DROP COLUMN member")
