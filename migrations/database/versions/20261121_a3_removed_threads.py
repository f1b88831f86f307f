"""Removed threads: proof that a thread's life was ended by a request, and not by somebody who edits rows.

Expands only. A row is a MAC and a time; which thread it was can be told only by who knows its id and holds the
subject's keys.
"""

from alembic import op

revision = "a3"
down_revision = "a2"
branch_labels = None
depends_on = None

SUBJECT = (
    "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
    " AND subject_id = nullif(current_setting('app.subject_id', true), '')"
)

TABLE = """
CREATE TABLE stateroom.removed_threads (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    removal    bytea NOT NULL CHECK (length(removal) = 32),
    removed_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, removal)
)
"""


def upgrade() -> None:
    """Create the table, its policy and grants."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.removed_threads ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.removed_threads FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY subject_rows ON stateroom.removed_threads TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.removed_threads TO gw_app")
    op.execute("GRANT SELECT (tenant_id, subject_id, removed_at) ON stateroom.removed_threads TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.removed_threads FOR SELECT TO gw_ops USING (true)")


def downgrade() -> None:
    """Drop the table: tokens of threads that were deleted then look like rollbacks."""
    op.execute("DROP TABLE stateroom.removed_threads")
