"""Make room for namespaces that are in segments with their heads: which segment has the head of which.

Nothing is written there before the feature is switched on (ADR 30), and builds before this one read the column nowhere.
"""

from alembic import op

revision = "a42"
down_revision = "a41"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, which is looked at only where a namespace has no head in the database."""
    op.execute("ALTER TABLE stateroom.threads ADD COLUMN cold_namespaces bytea STORAGE EXTERNAL")


def downgrade() -> None:
    """Remove it, if no head is in a segment: builds of the revision before refuse sums that count one."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.threads WHERE cold_namespaces IS NOT NULL) THEN
        RAISE EXCEPTION 'heads of namespaces are in segments: restore them before this revision is undone';
    END IF;
END $body$
""")
    op.execute("ALTER TABLE stateroom.threads DROP COLUMN cold_namespaces")
