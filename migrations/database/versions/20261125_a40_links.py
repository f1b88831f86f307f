"""Make room for links of threads: a thread may name its parent.

Nothing is written there before the feature is switched on (ADR 30), so the index is empty: it takes one scan of the
threads. Builds before this one insert without the column.
"""

from alembic import op

revision = "a40"
down_revision = "a39"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and the index that children are listed by."""
    op.execute('ALTER TABLE stateroom.threads ADD COLUMN parent_thread_id text COLLATE "C"')
    op.execute("""
CREATE INDEX threads_by_parent ON stateroom.threads
    USING btree (tenant_id, subject_id, parent_thread_id, created_at, thread_id)
    WHERE (parent_thread_id IS NOT NULL)
""")
    op.execute("GRANT SELECT (parent_thread_id) ON stateroom.threads TO gw_ops")


def downgrade() -> None:
    """Remove them, if no thread names a parent: builds of the revision before do not read a seal that does."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.threads WHERE parent_thread_id IS NOT NULL) THEN
        RAISE EXCEPTION 'threads name their parents: unlink them before this revision is undone';
    END IF;
END $body$
""")
    op.execute("ALTER TABLE stateroom.threads DROP COLUMN parent_thread_id")
