"""Make room for segments: a thread has any number of stubs, and sums of what is cold beside its seal.

Nothing is written there before the feature is switched on (ADR 30). Builds before this one find an archived thread's
stub as before, for it is the only one.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a39"
down_revision = "a37"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"
MADE = "015_load_checkpoint_5"


def upgrade() -> None:
    """Add the columns; the key of a stub is longer by its number."""
    op.execute("""
ALTER TABLE stateroom.archives
    ADD COLUMN segment integer NOT NULL DEFAULT 0,
    ADD COLUMN volume integer NOT NULL DEFAULT 0,
    ADD COLUMN first_id text NOT NULL COLLATE "C" DEFAULT '',
    ADD COLUMN last_id text NOT NULL COLLATE "C" DEFAULT '',
    ADD COLUMN listed bytea STORAGE EXTERNAL,
    ADD CONSTRAINT archives_segment_check CHECK (segment >= 0)
""")
    op.execute("ALTER TABLE stateroom.archives DROP CONSTRAINT archives_pkey")
    op.execute("ALTER TABLE stateroom.archives ADD PRIMARY KEY (tenant_id, subject_id, thread_id, segment)")
    op.execute("ALTER TABLE stateroom.threads ADD COLUMN cold bytea STORAGE EXTERNAL")
    op.execute("GRANT SELECT (segment, volume, first_id, last_id) ON stateroom.archives TO gw_ops")
    for statement in statements(FUNCTIONS / f"{MADE}.sql"):
        op.execute(statement)


def downgrade() -> None:
    """Remove them, if nothing is in a segment."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.archives WHERE segment > 0) THEN
        RAISE EXCEPTION 'checkpoints are in segments: restore them before this revision is undone';
    END IF;
END $body$
""")
    op.execute(f"DROP FUNCTION stateroom.{MADE[4:]}")
    op.execute("ALTER TABLE stateroom.threads DROP COLUMN cold")
    op.execute("ALTER TABLE stateroom.archives DROP CONSTRAINT archives_pkey")
    op.execute("""
ALTER TABLE stateroom.archives
    DROP COLUMN segment, DROP COLUMN volume, DROP COLUMN first_id, DROP COLUMN last_id, DROP COLUMN listed
""")
    op.execute("ALTER TABLE stateroom.archives ADD PRIMARY KEY (tenant_id, subject_id, thread_id)")
